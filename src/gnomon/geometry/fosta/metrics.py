"""How well two domains are aligned: true partners, mixing, and labels carried over."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from gnomon.geometry.neighbors import knn

Array = NDArray[np.float64]


def foscttm(A: Any, B: Any, *, per_row: bool = False) -> Any:
    """Fraction of rows closer than the true match, averaged over both directions.

    Parameters
    ----------
    A, B : array-like, shape (n, d)
        Row i of A is the partner of row i of B.
    per_row : bool
        Return the 2 n fractions (of A's rows, then of B's) instead of their mean.

    Returns
    -------
    float in [0, 1)
        Non-partners *strictly* closer than the partner, over n: 0 for a perfect match, about 0.5 for a random one.
    """
    from scipy.spatial.distance import cdist

    A, B = (check_array(S, dtype=np.float64, input_name=name) for S, name in ((A, "A"), (B, "B")))
    if A.shape != B.shape:
        raise ValueError(f"A, B: got shapes {A.shape} and {B.shape}; expected partners row by row")
    n, found = len(A), []
    for X, Y in ((A, B), (B, A)):
        for rows in np.array_split(np.arange(n), -(-n // 1000)):
            apart = cdist(X[rows], Y)
            found.append((apart < apart[np.arange(len(rows)), rows][:, None]).sum(1) / n)
    fractions = np.concatenate(found)
    return fractions if per_row else float(fractions.mean())


def alignment_score(Z: Any, domain: Any, k: int | None = None) -> float:
    """How well domains mix in an embedding: about 1 when mixed, 0 when apart.

    1 - (x - k s) / (k - k s) with x the mean number of own-domain rows among the k nearest neighbours and s the
    domain's share of the rows, averaged over domains.

    Parameters
    ----------
    Z : array-like, shape (N, d)
    domain : array-like, shape (N,)
        At least two values.
    k : int, optional
        Default: 1 % of N, at least 10.
    """
    Z, domain = check_array(Z, dtype=np.float64, input_name="Z"), np.asarray(domain)
    names, member = np.unique(domain, return_inverse=True)
    if domain.shape != (len(Z),) or len(names) < 2:
        raise ValueError(
            f"domain: got shape {domain.shape} with {len(names)} values; expected {len(Z)} with two or more"
        )
    k = min(max(10, len(Z) // 100), len(Z) - 1) if k is None else k
    own = (member[knn(Z, k=k)[1]] == member[:, None]).sum(1)
    scores = [1 - (own[member == d].mean() - k * (s := (member == d).mean())) / (k - k * s) for d in range(len(names))]
    return float(np.mean(scores))


def label_transfer(known: Any, labels: Any, queries: Any, truth: Any, k: int = 5) -> float:
    """Accuracy of k nearest neighbours that carry labels from ``known`` rows to ``queries``, in [0, 1]."""
    from sklearn.neighbors import KNeighborsClassifier

    return float(KNeighborsClassifier(min(k, len(np.asarray(known)))).fit(known, labels).score(queries, truth))
