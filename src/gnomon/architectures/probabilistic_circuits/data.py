"""Checks of arrays of symbols, and all assignments of a few variables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

MOST = 2**22  # states that are enumerated


def check_symbols(X: ArrayLike, n_symbols: Sequence[int] | None = None, *, name: str = "X") -> np.ndarray:
    """Integers [n, T], each in [0, n_symbols[t]) or -1 (missing).

    Raises
    ------
    ValueError
        For another shape, numbers that are no integers, or symbols outside the alphabet.
    """
    array = np.asarray(X)
    if array.ndim != 2:
        raise ValueError(f"{name}: got shape {array.shape}; expected [n, T]")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name}: got {array.dtype}; expected integers")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds NaN or infinity; a missing symbol is -1")
        if (array != np.round(array)).any():
            raise ValueError(f"{name} holds numbers that are no integers")
    out = array.astype(np.int64)
    if n_symbols is not None and out.shape[1] != len(n_symbols):
        raise ValueError(f"{name}: got {out.shape[1]} columns; expected {len(n_symbols)} variables")
    limits = np.asarray(n_symbols if n_symbols is not None else np.iinfo(np.int64).max)
    wrong = (out < -1) | (out >= limits)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        limit = "V" if n_symbols is None else n_symbols[column]
        raise ValueError(
            f"{name}: got the symbol {out[row, column]} in row {row}, column {column}; "
            f"expected one in [0, {limit}), or -1 where it is missing"
        )
    return out


def check_alphabets(n_symbols: int | Sequence[int], T: int) -> tuple[int, ...]:
    """The number of symbols of each of T variables, from one number for all or one for each."""
    sizes = (n_symbols,) * T if isinstance(n_symbols, int | np.integer) else tuple(n_symbols)
    if len(sizes) != T or any(not isinstance(v, int | np.integer) or v < 1 for v in sizes):
        raise ValueError(f"n_symbols: got {n_symbols!r}; expected an integer of at least 1, or one for each of {T}")
    return tuple(int(v) for v in sizes)


def states(sizes: Sequence[int]) -> np.ndarray:
    """All assignments [prod(sizes), len(sizes)], the last variable fastest.

    Raises
    ------
    ValueError
        When there are more than 2^22.
    """
    count = int(np.prod([int(s) for s in sizes], dtype=object)) if len(sizes) else 1
    if count > MOST:
        raise ValueError(f"{count} states are more than the {MOST} that are enumerated; sample instead")
    return np.stack(np.unravel_index(np.arange(count), tuple(sizes)), axis=1) if len(sizes) else np.zeros((1, 0), int)
