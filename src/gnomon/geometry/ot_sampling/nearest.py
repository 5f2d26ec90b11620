"""Nearest costs: the semi-dual at zero potential needs, for each query, its nearest atom and nothing else.

Atoms are ordered for each query by scores from one matrix product a block (|y|^2 - 2 xy, which cancels for close
points); the cost of the winner is then taken again from the difference, in double precision.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import validate_data

from gnomon.geometry.neighbors import check_rows, distance_blocks, is_tensor, knn, same_width

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

BLOCK_BYTES = 2**26
DUPLICATES = 0.01  # share of repeated rows from which the estimate is said to be biased
TIES = 0.5  # share of distinct nearest distances below which the data are said to be a grid
METRICS = ("euclidean", "cosine", "precomputed")


# --- input -----------------------------------------------------------------------------------------------------------


def check_number(name: str, value: Any, above: float = 0.0) -> float:
    """A finite number above a bound, or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not above < float(value) < np.inf:
        raise ValueError(f"{name}: got {value!r}; expected a finite number above {above:g}")
    return float(value)


def check_count(name: str, value: Any, least: int) -> int:
    """A whole number of at least ``least``, or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name}: got {value!r}; expected a whole number of {least} or more")
    return int(value)


def check_metric(metric: Any) -> Any:
    """One of the metrics, or a callable on two rows."""
    if not callable(metric) and metric not in METRICS:
        raise ValueError(f"metric: got {metric!r}; expected one of {', '.join(METRICS)}, or a callable on two rows")
    return metric


def cloud(X: Any, name: str, metric: Any, least: int, *, estimator: Any = None, drop_duplicates: bool = False,
          warn: bool = True) -> Any:  # fmt: skip
    """A checked point cloud: finite rows, on the unit sphere for ``cosine``; a distance matrix for ``precomputed``.

    Parameters
    ----------
    X : array or tensor, shape (n, D), or (n, n) distances
    name : str
        How messages call it.
    metric : str or callable
        See :class:`SamplingError`.
    least : int
        Fewest rows accepted.
    estimator : estimator, optional
        Gets ``n_features_in_`` and ``feature_names_in_``.
    drop_duplicates : bool
        Keep one of several equal rows.
    warn : bool
        Warn about repeated rows.

    Raises
    ------
    ValueError
        Too few rows (the minimum is named), NaN or infinity (the row is named), all rows equal, a zero row with
        ``cosine``, a matrix of distances that is not square or has negative entries.
    """
    check_metric(metric)
    if is_tensor(X):
        if estimator is not None:
            estimator.n_features_in_ = X.shape[-1]
    elif estimator is not None:
        X = validate_data(estimator, X, dtype=[np.float64, np.float32], ensure_all_finite=False)
    X = check_rows(X, name, min_rows=least)
    if metric == "precomputed":
        X = X.detach().cpu().numpy() if is_tensor(X) else X
        if X.shape[0] != X.shape[1] or (X < 0).any():
            raise ValueError(f"{name}: got shape {X.shape}; expected the square matrix of distances, none negative")
        if not X.any():
            raise ValueError(f"{name}: all points are equal: a zero-dimensional support has no sampling error")
        return X
    if metric == "cosine":
        length = (X * X).sum(1) ** 0.5
        if not bool((length > 0).all()):
            raise ValueError(f"{name}: row {int((length == 0).nonzero()[0].ravel()[0])} is zero; it has no direction")
        X = X / length[:, None]
    if bool((X[:1] == X).all()):
        raise ValueError(f"{name}: all points are equal: a zero-dimensional support has no sampling error")
    if warn or drop_duplicates:
        keep = distinct(X)
        if drop_duplicates and len(keep) < len(X):
            if len(keep) < least:
                raise ValueError(f"{name}: {len(keep)} distinct rows; expected at least {least}")
            X = X[keep]
        elif len(keep) < (1 - DUPLICATES) * len(X):
            warnings.warn(f"{len(X) - len(keep)} of {len(X)} rows of {name} are duplicates: nearest distances of zero bias "
                          "the sampling error low; drop_duplicates=True keeps one of each", UserWarning, stacklevel=3)  # fmt: skip
    return X


def distinct(X: Any) -> NDArray[np.int64]:
    """The first of each of the different rows, in order; only rows with equal sums are compared."""
    rows = np.ascontiguousarray(X.detach().cpu().numpy() if is_tensor(X) else X) + 0.0  # -0.0 is 0.0
    total = rows.sum(1)
    order = np.argsort(total)
    equal = np.flatnonzero(np.diff(total[order]) == 0)
    suspects = np.unique(order[np.concatenate([equal, equal + 1])])
    first: set[bytes] = set()
    repeated = []
    for i in suspects:
        row = rows[i].tobytes()
        if row in first:
            repeated.append(i)
        first.add(row)
    return np.setdiff1d(np.arange(len(rows)), np.array(repeated, np.int64), assume_unique=True)


def warn_grid(nearest: Array, name: str) -> None:
    """Warn where many nearest distances are exactly equal: atoms on a grid have no dimension of a continuum."""
    positive = nearest[nearest > 0]
    if len(positive) >= 8 and len(np.unique(positive)) < TIES * len(positive):
        warnings.warn(f"{name}: only {len(np.unique(positive))} of {len(positive)} nearest distances are distinct: on a grid "
                      "of discrete values the decay with n says nothing about a dimension", UserWarning, stacklevel=3)  # fmt: skip


# --- queries against atoms -------------------------------------------------------------------------------------------


class Pairs:
    """Distances between queries and atoms, by blocks of queries.

    Parameters
    ----------
    queries, atoms : array or tensor, shape (M, D), (n, D)
        A tensor is worked on where it is. With ``precomputed``: the (M, n) distances, and None.
    metric : str or callable
    """

    def __init__(self, queries: Any, atoms: Any, metric: Any = "euclidean"):
        self.queries, self.atoms, self.metric = queries, atoms, metric
        self.shape = queries.shape if metric == "precomputed" else (len(queries), len(atoms))

    @property
    def product(self) -> bool:
        """Whether scores come from a matrix product, so that winners have to be measured again."""
        return self.metric in ("euclidean", "cosine")

    def blocks(self) -> Iterator[tuple[slice, Any]]:
        """Scores that order the atoms for each query: ``(rows, block)``, the block of shape (rows, n)."""
        m, n = self.shape
        if self.metric == "precomputed":
            yield slice(0, m), self.queries
            return
        if not self.product:
            yield from distance_blocks(self.queries, self.atoms, self.metric, BLOCK_BYTES / 2**20)
            return
        queries, atoms, concatenate = self._double()
        centre = atoms.mean(0)
        atoms = atoms - centre
        augmented = concatenate([atoms, (atoms * atoms).sum(1)[:, None]], 1).T  # |y|^2 rides along in the product
        step = max(1, BLOCK_BYTES // (8 * n))
        for start in range(0, m, step):
            part = -2 * (queries[start : start + step] - centre)
            yield slice(start, start + len(part)), concatenate([part, part[:, :1] * 0 + 1], 1) @ augmented

    def _double(self) -> tuple[Any, Any, Callable[..., Any]]:
        if not (is_tensor(self.queries) or is_tensor(self.atoms)):
            return np.asarray(self.queries, np.float64), np.asarray(self.atoms, np.float64), np.concatenate
        import torch

        device = (self.queries if is_tensor(self.queries) else self.atoms).device
        queries, atoms = (torch.as_tensor(A).detach().to(device, torch.float64) for A in (self.queries, self.atoms))
        return queries, atoms, torch.cat

    def best(self, size: int) -> tuple[Array, NDArray[np.int64]]:
        """The best score and its atom within each run of ``size`` atoms (a shorter last run: the rest).

        Returns
        -------
        scores, index : ndarray, shape (M, ceil(n / size))
        """
        m, n = self.shape
        whole, runs = n // size, -(-n // size)
        scores, index = np.empty((m, runs)), np.empty((m, runs), np.int64)
        for rows, block in self.blocks():
            parts = [(slice(0, whole), block[:, : whole * size].reshape(-1, whole, size))]
            if whole < runs:
                parts.append((slice(whole, runs), block[:, None, whole * size :]))
            for columns, part in parts:
                if is_tensor(part):
                    value, at = (t.cpu().numpy() for t in part.min(-1))
                else:
                    at = part.argmin(-1)
                    value = np.take_along_axis(part, at[..., None], -1)[..., 0]
                scores[rows, columns], index[rows, columns] = value, at
        return scores, index + size * np.arange(runs)

    def distances(self, i: NDArray[np.int64], j: NDArray[np.int64]) -> Array:
        """Distances of pairs, from differences in double precision."""
        if self.metric == "precomputed":
            return np.asarray(self.queries[i, j], np.float64)
        if not self.product:
            return np.array(
                [self.metric(self.queries[a], self.atoms[b]) for a, b in zip(i, j, strict=True)], np.float64
            )
        queries, atoms, _ = self._double()
        out = np.empty(len(i))
        step = max(1, 2**21 // queries.shape[1])
        for start in range(0, len(i), step):
            part = slice(start, start + step)
            difference = queries[i[part]] - atoms[j[part]]
            if is_tensor(difference):
                out[part] = (difference * difference).sum(1).sqrt().cpu().numpy()
            else:
                out[part] = np.sqrt(np.einsum("ij,ij->i", difference, difference))
        return out


def leave_one_out(X: Any, metric: Any = "euclidean") -> Array:
    """Distance of each point to the nearest of the others, shape (n,)."""
    if metric in ("euclidean", "cosine"):
        return knn(X, k=1)[0][:, 0]
    if metric == "precomputed":
        apart = np.array(X, np.float64)
        np.fill_diagonal(apart, np.inf)
        return apart.min(1)
    nearest = np.empty(len(X))
    for rows, block in distance_blocks(X, X, metric, BLOCK_BYTES / 2**20):
        block[np.arange(len(block)), np.arange(rows.start, rows.start + len(block))] = np.inf
        nearest[rows] = block.min(1)
    return nearest


def pairwise(X: Any, Y: Any, metric: Any, p: float) -> Array:
    """The whole cost matrix ||x - y||^p in double precision, shape (n, m)."""
    X, Y = (A.detach().cpu().numpy() if is_tensor(A) else np.asarray(A) for A in (X, Y))
    same_width(X, Y, "X", "Y")
    if metric in ("euclidean", "cosine"):
        from scipy.spatial.distance import cdist

        squared = cdist(X.astype(np.float64), Y.astype(np.float64), "sqeuclidean")
        return squared if p == 2 else squared ** (p / 2)
    return np.concatenate([block for _, block in distance_blocks(X, Y, metric)]) ** p
