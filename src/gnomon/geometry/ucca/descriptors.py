"""What a point looks like from where it stands: numbers that no isometry and no order of the rows changes."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rankdata

from gnomon.geometry.ucca.kernels import Array, check_view, gaussian, squared_distances

ORDERS, TIMES, NEIGHBOURS = 25, (1, 2, 4, 8, 16, 32), 10


def point_descriptors(X: Any, *, metric: str = "euclidean") -> Array:
    """33 descriptors of each row, as ranks within the view.

    Log-spaced order statistics of a row's distances to the others over the mean distance (25); the heat-kernel
    signature sum_l V_il^2 w_l^t, t in {1, 2, 4, 8, 16, 32}, of the symmetrically normalised Gaussian kernel (6); mean and
    standard deviation, over its 10 nearest neighbours, of their mean distance (2).

    Parameters
    ----------
    X : array-like, shape (n, p)
        One view, or with ``metric="precomputed"`` its n x n distances.
    metric : {"euclidean", "precomputed"}

    Returns
    -------
    ndarray, shape (n, 33)
        Ranks over n, in (0, 1]; ties share their mean rank.
    """
    if metric not in ("euclidean", "precomputed"):
        raise ValueError(f"metric: got {metric!r}; expected 'euclidean' or 'precomputed'")
    X = check_view(X, "X", "precomputed" if metric == "precomputed" else "rbf")
    return descriptors_of(squared_distances(X) if metric == "euclidean" else X**2)


def descriptors_of(D2: Array) -> Array:
    """:func:`point_descriptors` from squared distances."""
    n = len(D2)
    ordered = np.sort(np.sqrt(D2), axis=1)[:, 1:]  # without the row itself
    mean = ordered.mean(axis=1)
    at = np.round(np.geomspace(1, n - 1, ORDERS)).astype(int) - 1
    K = gaussian(D2)
    root = np.sqrt(K.sum(axis=1))
    values, vectors = np.linalg.eigh(K / root[:, None] / root)
    values = np.clip(values, 1e-6, 1.0)
    heat = vectors**2 @ np.stack([values**t for t in TIMES], axis=1)
    near = mean[np.argpartition(D2 + np.diag(np.full(n, np.inf)), min(NEIGHBOURS, n - 1) - 1, axis=1)[:, :NEIGHBOURS]]
    raw = np.column_stack([ordered[:, at] / max(float(mean.mean()), 1e-300), heat, near.mean(axis=1), near.std(axis=1)])
    # equal numbers must stay equal whatever the order of the rows they were computed in
    raw = np.round(raw / np.maximum(np.abs(raw).max(axis=0), 1e-300), 10)
    return np.asarray(rankdata(raw, axis=0)) / n
