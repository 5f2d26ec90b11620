"""Labels with gaps: what counts as unlabelled, and codes for the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

UNLABELLED = -1


def encode(y: Any, name: str = "y") -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Codes 0..C-1 (-1: unlabelled) and the sorted classes.

    Parameters
    ----------
    y : array-like, shape (n,)
        Numbers, strings or categories. None, NaN, NA, -1 and the empty string mean unlabelled.
    name : str
        How errors call it.

    Raises
    ------
    ValueError
        When it is missing, not one column, continuous, or mixes strings and numbers.
    """
    import pandas as pd

    if y is None:
        raise ValueError(f"requires {name} to be passed, but the target {name} is None: give one label a row")
    values = np.asarray(column_or_1d(np.asarray(y, dtype=object), warn=True), dtype=object)
    missing = np.asarray(pd.isna(values), dtype=bool)
    missing |= np.array([not m and v in (-1, "") for v, m in zip(values, missing, strict=True)], dtype=bool)
    codes = np.full(len(values), UNLABELLED, dtype=np.int64)
    try:
        known = np.array(values[~missing].tolist())
        if any(isinstance(v, str) for v in values[~missing]) and known.dtype.kind in "US":
            if not all(isinstance(v, str) for v in values[~missing]):
                raise TypeError
            known = known.astype(object)
        classes, codes[~missing] = np.unique(known, return_inverse=True)
    except TypeError:
        raise ValueError(f"{name}: got a mix of types; expected labels of one kind (strings or numbers)") from None
    if classes.dtype.kind in "fc" and len(known):
        check_classification_targets(known)
    return codes, classes


def one_hot(codes: NDArray[np.int64], columns: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """Indicators (n, C) of the given codes (or of 0..C-1); rows of other codes and unlabelled ones are zero."""
    columns = np.arange(columns) if isinstance(columns, int) else columns
    return (codes[:, None] == columns).astype(np.float64)
