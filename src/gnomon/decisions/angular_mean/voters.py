"""From rows as a person has them to voter types: checked, of unit length, equal ones merged."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gnomon.decisions.angular_mean.sphere import unit

Array = np.ndarray

EQUAL = 1e-12


class Types(NamedTuple):
    """Voter types.

    Attributes
    ----------
    vectors : ndarray, shape (k, d)
        Unit rows, in the order in which they first occur.
    weights : ndarray, shape (k,)
        Shares, of sum 1.
    labels : ndarray, shape (n,)
        The type of each row given.
    """

    vectors: Array
    weights: Array
    labels: Array


def as_types(thetas: Any, weights: Any = None) -> Types:
    """Check and normalise voters and merge equal ones.

    Parameters
    ----------
    thetas : array_like, shape (n, d)
        One linear scoring rule a row, d >= 2; their lengths do not matter.
    weights : array_like, shape (n,), optional
        Nonnegative, not all zero; by default equal. Voters of weight 0 are left out (label -1).

    Raises
    ------
    ValueError
        For another shape, values that are not finite, a zero row, or weights that do not fit.
    """
    rows = as_rows(thetas)
    share = as_weights(weights, len(rows))
    kept = np.flatnonzero(share > 0)
    if len(kept) < len(rows):
        rows_kept, share_kept = rows[kept], share[kept]
    else:
        rows_kept, share_kept = rows, share
    found = _group(rows_kept)
    if found is None:  # all differ
        labels = np.full(len(rows), -1)
        labels[kept] = np.arange(len(kept))
        return Types(rows_kept, share_kept, labels)
    first = np.full(found.max() + 1, len(kept))
    np.minimum.at(first, found, np.arange(len(kept)))
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    labels = np.full(len(rows), -1)
    labels[kept] = rank[found]
    return Types(rows_kept[first[order]], np.bincount(rank[found], weights=share_kept), labels)


def as_rows(thetas: Any, name: str = "thetas") -> Array:
    """Unit rows of checked vectors."""
    rows = np.asarray(thetas, dtype=float)
    if rows.ndim != 2 or rows.shape[0] < 1:
        raise ValueError(f"{name} has shape {rows.shape}; expected (n, d): one vector a row")
    if rows.shape[1] < 2:
        raise ValueError(f"{name} has {rows.shape[1]} feature(s), d = {rows.shape[1]}; expected d >= 2")
    if not np.isfinite(rows).all():
        raise ValueError(f"{name}: row {int(np.argwhere(~np.isfinite(rows))[0, 0])} holds NaN or infinity")
    largest = np.abs(rows).max(axis=1, keepdims=True)
    if not largest.all():
        raise ValueError(f"{name}: row {int(np.argmin(largest))} is zero; a scoring rule needs a direction")
    return unit(rows / largest)  # first scaled, so that no square overflows or vanishes


def as_weights(weights: Any, n: int) -> Array:
    """Shares of sum 1."""
    if weights is None:
        return np.full(n, 1 / n)
    share = np.asarray(weights, dtype=float)
    if share.shape != (n,):
        raise ValueError(f"weights has shape {share.shape}; expected ({n},), one for each voter")
    if not np.isfinite(share).all():
        raise ValueError(f"weights: entry {int(np.argmin(np.isfinite(share)))} is NaN or infinite")
    if (share < 0).any():
        raise ValueError(f"weights: entry {int(np.argmin(share))} is {share.min():g}; expected numbers >= 0")
    if not share.any():
        raise ValueError("weights: all are zero")
    share = share / share.max()
    return share / share.sum()


def as_covariance(covariance: Any, d: int) -> Array:
    """A symmetric positive definite matrix (d, d), scaled to trace d."""
    matrix = np.asarray(covariance, dtype=float)
    if matrix.shape != (d, d):
        raise ValueError(f"covariance has shape {matrix.shape}; expected ({d}, {d})")
    if not np.isfinite(matrix).all():
        raise ValueError("covariance holds NaN or infinity; expected a symmetric positive definite matrix")
    scale = np.abs(matrix).max()
    least = float(np.linalg.eigvalsh((matrix + matrix.T) / 2).min())
    symmetric = np.abs(matrix - matrix.T).max() <= 1e-8 * scale
    if not symmetric or least <= 1e-12 * scale:
        why = "" if symmetric else "is not symmetric; "
        raise ValueError(f"covariance: {why}its smallest eigenvalue is {least:.3g}; expected a symmetric positive "
                         "definite matrix (drop or merge columns that depend on each other)")  # fmt: skip
    return (matrix + matrix.T) * (d / 2 / np.trace(matrix))


def root(matrix: Array) -> tuple[Array, Array]:
    """The symmetric square root of a positive definite matrix, and its inverse."""
    value, vector = np.linalg.eigh(matrix)
    return (vector * np.sqrt(value)) @ vector.T, (vector / np.sqrt(value)) @ vector.T


def _group(rows: Array) -> Array | None:
    """A number for each row, the same for rows that agree to `EQUAL` (not in order of occurrence); None: all differ.

    Equal rows have equal projections on a generic direction, so only neighbours in that order are compared.
    """
    projection = rows @ unit(np.sin(1.0 + np.arange(rows.shape[1]) ** 2))
    order = np.argsort(projection, kind="stable")
    near = np.diff(projection[order]) <= EQUAL * np.sqrt(rows.shape[1])
    same = np.zeros(len(rows) - 1, dtype=bool)
    at = np.flatnonzero(near)
    if not len(at):
        return None
    same[at] = np.abs(rows[order[at + 1]] - rows[order[at]]).max(axis=1) <= EQUAL
    found = np.empty(len(rows), dtype=int)
    found[order] = np.concatenate([[0], np.cumsum(~same)])
    for start, stop in _mixed_runs(near, same):  # different vectors that share a projection
        found[order[start:stop]] = _by_leaders(rows[order[start:stop]], found[order[start:stop]])
    return np.cumsum(np.bincount(found) > 0)[found] - 1


def _mixed_runs(near: Array, same: Array) -> list[tuple[int, int]]:
    """Runs of equal projections whose neighbours are not all the same vector, as slices."""
    run = np.concatenate([[0], np.cumsum(~near)])
    mixed = np.unique(run[:-1][near & ~same])
    return list(zip(np.searchsorted(run, mixed), np.searchsorted(run, mixed, side="right"), strict=True))


def _by_leaders(rows: Array, names: Array) -> Array:
    """Each row gets the name of the first one that it equals."""
    found = names.copy()
    left = np.arange(len(rows))
    while len(left):
        equal = np.abs(rows[left] - rows[left[0]]).max(axis=1) <= EQUAL
        found[left[equal]] = names[left[0]]
        left = left[~equal]
    return found
