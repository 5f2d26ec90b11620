"""Kernels between the rows of one view, and the score of a pairing of two views."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

Array = NDArray[np.float64]
Pairing = NDArray[np.int64]

KERNELS = ("rbf", "linear", "precomputed")
RANK = 60  # of the factors that stand for a kernel in products


def squared_distances(X: Array) -> Array:
    """Squared Euclidean distances between all rows, (n, n)."""
    return np.asarray(cdist(X, X, "sqeuclidean"))


def gaussian(D2: Array) -> Array:
    """exp(-2 D2 / median D2) over all n x n entries; ones where more than half of the entries are 0."""
    median = float(np.median(D2))
    return np.exp(-2.0 * D2 / median) if median > 0 else np.where(D2 > 0, 0.0, 1.0)


def kernel_distances(K: Array) -> Array:
    """Squared distances of the points whose Gram matrix is K; at least 0 where K is indefinite."""
    diagonal = np.diag(K)
    return np.maximum(diagonal[:, None] + diagonal - 2 * K, 0.0)


def centred(K: Array) -> Array:
    """K with zero row and column sums, and Frobenius norm 1 (0 where nothing is left)."""
    K = K - K.mean(axis=0) - K.mean(axis=1)[:, None] + K.mean()
    norm = float(np.linalg.norm(K))
    return K / norm if norm > 0 else K


def low_rank(K: Array, rank: int = RANK) -> Array:
    """Factor F (n, rank), the best one with F F' near the positive semi-definite K."""
    values, vectors = np.linalg.eigh(K)
    return np.ascontiguousarray(vectors[:, -rank:] * np.sqrt(np.maximum(values[-rank:], 0.0)))


def overlap(K_x: Array, K_y: Array, pairing: Pairing) -> float:
    """<K_x, P K_y P'> for the permutation that pairs row i with ``pairing[i]``."""
    return float(np.einsum("ij,ij->", K_x, K_y[np.ix_(pairing, pairing)]))


def pairing_score(X: Any, Y: Any, pairing: Any = None, *, kernel: str = "rbf") -> float:
    r"""How alike two views' kernels are under a pairing: <K_X, P K_Y P'> / (||K_X|| ||K_Y||), both doubly centred.

    Also known as centred kernel alignment, or the normalised HSIC, of the paired rows.

    Parameters
    ----------
    X, Y : array-like, shape (n, p), (n, q)
        Two views; with ``kernel="precomputed"`` their n x n kernels.
    pairing : array-like of int, shape (n,), optional
        Row of Y for each row of X, a permutation (default: equal rows).
    kernel : {"rbf", "linear", "precomputed"}
        ``rbf`` is exp(-2 D^2 / median D^2).

    Returns
    -------
    float
        In [-1, 1]; 1 when the kernels agree. A positive semi-definite pair gives at least 0 at its best pairing.
    """
    X, Y = check_view(X, "X", kernel), check_view(Y, "Y", kernel)
    if len(X) != len(Y):
        raise ValueError(f"X and Y must have as many rows; got {len(X)} and {len(Y)}")
    n = len(X)
    pairing = np.arange(n) if pairing is None else np.asarray(pairing)
    if pairing.shape != (n,) or not np.array_equal(np.sort(pairing), np.arange(n)):
        raise ValueError(f"pairing: expected a permutation of 0 to {n - 1}")
    return overlap(view_kernel(X, kernel), view_kernel(Y, kernel), pairing)


def view_kernel(X: Array, kernel: str) -> Array:
    """The doubly centred kernel of norm 1 of one view."""
    if kernel == "rbf":
        return centred(gaussian(squared_distances(X)))
    return centred(X @ X.T if kernel == "linear" else X)


def check_view(X: Any, name: str, kernel: str = "rbf", min_rows: int = 2) -> Array:
    """A finite float64 matrix, symmetric where it is a kernel; a vector becomes one column."""
    if kernel not in KERNELS:
        raise ValueError(f"kernel: got {kernel!r}; expected one of {', '.join(KERNELS)}")
    if hasattr(X, "detach"):
        X = X.detach().cpu().numpy()
    X = np.asarray(X, dtype=np.float64)
    if X.ndim == 1:
        X = X[:, None]
    if X.ndim != 2 or not X.shape[1]:
        raise ValueError(f"{name}: got shape {X.shape}; expected (rows, features)")
    if len(X) < min_rows:
        raise ValueError(f"{name}: got n_samples = {len(X)}; expected at least {min_rows} rows")
    if not np.isfinite(X).all():
        raise ValueError(f"{name}: holds NaN or infinity; expected finite numbers")
    if kernel == "precomputed" and (X.shape[0] != X.shape[1] or not np.allclose(X, X.T)):
        raise ValueError(f"{name}: got shape {X.shape}; a precomputed kernel is square and symmetric")
    return X
