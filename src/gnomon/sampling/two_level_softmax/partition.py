"""Items grouped by cluster in one contiguous array, and the few numbers that the method keeps of each cluster."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

SAMPLE = 128  # items a centroid in the sample that k-means sees
CHUNK = 2**22  # numbers in a temporary


@dataclass(frozen=True)
class Partition:
    """n items of dimension d in K clusters.

    Attributes
    ----------
    items : ndarray (n, d)
        Rows of one cluster lie next to each other.
    ids : ndarray (n,) of int64
        The id of each row.
    offsets : ndarray (K + 1,) of int64
        Cluster c holds the rows ``offsets[c]:offsets[c + 1]``.
    centroids : ndarray (K, d)
        Means of the items, in their dtype.
    radii : ndarray (K,)
        Largest distance of an item to its centroid.
    variances : ndarray (K, d)
        Diagonal of the population covariance (divisor n_c) of each cluster; its sum over d is the trace.
    """

    items: NDArray
    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    centroids: NDArray
    radii: NDArray[np.float64]
    variances: NDArray[np.float64]

    @functools.cached_property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    @functools.cached_property
    def log_sizes(self) -> NDArray[np.float64]:
        return np.log(self.sizes)

    @functools.cached_property
    def mean_variances(self) -> NDArray[np.float64]:
        """tr(Sigma_c) / d."""
        return self.variances.mean(1)

    @property
    def row_labels(self) -> NDArray[np.int64]:
        """The cluster of each row."""
        return np.repeat(np.arange(len(self.radii)), self.sizes)

    @functools.cached_property
    def row_of(self) -> NDArray[np.int64]:
        """The row of each id, -1 for ids that are gone."""
        rows = np.full(int(self.ids.max()) + 1, -1)
        rows[self.ids] = np.arange(len(self.ids))
        return rows

    def __iter__(self) -> Iterator[NDArray]:
        """The items of each cluster in turn."""
        for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield self.items[start:stop]


def group(V: NDArray, labels: NDArray[np.int64], copy: bool = True) -> Partition:
    """Group items (n, d) by their labels 0..K-1, none of which is empty.

    The items are stored re-ordered; without ``copy``, items that are grouped already are not copied.
    """
    ids = np.arange(len(V))
    if copy or np.any(labels[1:] < labels[:-1]):
        ids = np.argsort(labels, kind="stable")
        V = np.ascontiguousarray(V[ids])
    offsets = np.concatenate([[0], np.cumsum(np.bincount(labels))])
    K, d = len(offsets) - 1, V.shape[1]
    empty = Partition(V, ids, offsets, np.empty((K, d), V.dtype), np.empty(K), np.empty((K, d)))
    return _described(empty, range(K))


def _described(partition: Partition, clusters: Iterable[int]) -> Partition:
    """Compute mean, radius and variances of these clusters from their items, in place."""
    for c in clusters:
        block = partition.items[partition.offsets[c] : partition.offsets[c + 1]].astype(np.float64)
        mean = block.mean(0)
        block -= mean
        block *= block
        partition.centroids[c] = mean
        partition.variances[c] = block.mean(0)
        partition.radii[c] = np.sqrt(block.sum(1).max())
    return partition


def regroup(old: Partition, items: NDArray, ids: NDArray[np.int64], labels: NDArray[np.int64],
            touched: NDArray[np.bool_]) -> tuple[Partition, NDArray[np.int64]]:  # fmt: skip
    """The partition of other items into the same clusters; only ``touched`` clusters (K,) are described anew.

    Returns
    -------
    partition : Partition
    kept : ndarray
        The clusters that still hold an item, by their old number; the others are dropped.
    """
    counts = np.bincount(labels, minlength=len(old.radii))
    kept = np.flatnonzero(counts)
    order = np.argsort(labels, kind="stable")
    new = Partition(np.ascontiguousarray(items[order]), ids[order], np.concatenate([[0], np.cumsum(counts[kept])]),
                    old.centroids[kept], old.radii[kept], old.variances[kept])  # fmt: skip
    return _described(new, np.flatnonzero(touched[kept])), kept


# --- given labels ----------------------------------------------------------------------------------------------------


def check_labels(labels: ArrayLike, n: int) -> tuple[NDArray[np.int64], NDArray]:
    """Labels (n,) as integers 0..K-1, and the name of each cluster.

    Raises
    ------
    ValueError
        When the shape is not (n,), when an integer label is negative, or when one of 0..K-1 has no item.
    """
    given = np.asarray(labels)
    if given.shape != (n,):
        raise ValueError(f"labels: expected shape ({n},), got {given.shape}")
    if not np.issubdtype(given.dtype, np.integer):
        names, found = np.unique(given, return_inverse=True)
        return found.astype(np.int64), names
    if given.min() < 0:
        raise ValueError(f"labels: expected 0..K-1, got {given.min()} at index {int(given.argmin())}")
    if given.max() >= 2 * n + 1000:  # before bincount makes an array of that length
        raise ValueError(f"labels: expected 0..K-1, got {given.max()} for {n} items; most labels would be empty")
    counts = np.bincount(given)
    if not counts.all():
        raise ValueError(f"labels: no item bears {_some(np.flatnonzero(counts == 0))}; integers are 0..K-1 without "
                         "gaps (np.unique(labels, return_inverse=True)[1] closes them)")  # fmt: skip
    return given.astype(np.int64), np.arange(len(counts))


def _some(values: NDArray) -> str:
    shown = ", ".join(str(v) for v in values[:20])
    return shown if len(values) <= 20 else f"{shown}, ... ({len(values)} in all)"


# --- clustering ------------------------------------------------------------------------------------------------------


def cluster(V: NDArray, n_clusters: int, how: str, rng: np.random.Generator) -> NDArray[np.int64]:
    """Labels 0..K-1 of a clustering of items (n, d); K may come out smaller than asked for, with a warning.

    ``how`` is "kmeans", "spherical" (k-means on directions) or "balanced" (sizes that differ by at most one).
    """
    if how == "balanced":
        return _bisected(V, n_clusters)
    labels = nearest(V, _kmeans(V, n_clusters, how == "spherical", rng), how == "spherical")
    counts = np.bincount(labels, minlength=n_clusters)
    if not counts.all():
        warnings.warn(f"k-means left {int(np.sum(counts == 0))} of {n_clusters} clusters empty; they are dropped",
                      UserWarning, stacklevel=3)  # fmt: skip
        labels = np.cumsum(counts > 0)[labels] - 1
    return labels


def _kmeans(V: NDArray, k: int, spherical: bool, rng: np.random.Generator) -> NDArray:
    """Centroids (k, d) by k-means on a sample: faiss where it is installed, else scikit-learn's mini-batches."""
    n = len(V)
    some = V if n <= SAMPLE * k else V[np.sort(rng.choice(n, SAMPLE * k, replace=False))]
    seed = int(rng.integers(2**31 - 1))
    if spherical:
        some = _directions(some)
    try:
        import faiss
    except ImportError:
        from sklearn.cluster import MiniBatchKMeans

        return MiniBatchKMeans(k, random_state=seed, n_init=1).fit(some).cluster_centers_
    search = faiss.Kmeans(some.shape[1], k, niter=10, seed=seed, spherical=spherical, verbose=False,
                          min_points_per_centroid=1, max_points_per_centroid=SAMPLE)  # fmt: skip
    search.train(np.ascontiguousarray(some, dtype=np.float32))
    return np.asarray(search.centroids, dtype=V.dtype)


def _directions(V: NDArray) -> NDArray:
    norms = np.linalg.norm(V, axis=1, keepdims=True)
    return V / np.where(norms > 0, norms, 1)


def nearest(V: NDArray, centroids: NDArray, spherical: bool = False) -> NDArray[np.int64]:
    """The nearest centroid of each item (by direction where ``spherical``), a chunk of items at a time."""
    centroids = _directions(centroids) if spherical else centroids
    half = 0.0 if spherical else np.einsum("ij,ij->i", centroids, centroids) / 2
    labels = np.empty(len(V), dtype=np.int64)
    step = max(1, CHUNK // len(centroids))
    for at in range(0, len(V), step):
        labels[at : at + step] = np.argmax(V[at : at + step] @ centroids.T - half, axis=1)
    return labels


def _bisected(V: NDArray, k: int) -> NDArray[np.int64]:
    """Cut in two along the leading principal direction, again and again, in proportion: sizes differ by at most one."""
    n = len(V)
    labels = np.empty(n, dtype=np.int64)
    pending = [(np.arange(n), 0, k)]
    while pending:
        rows, first, parts = pending.pop()
        if parts == 1:
            labels[rows] = first
            continue
        block = V[rows].astype(np.float64)
        block -= block.mean(0)
        direction = block[np.argmax(np.einsum("ij,ij->i", block, block))]
        for _ in range(10):  # power iterations; any direction gives equal sizes
            direction = block.T @ (block @ direction)
            direction /= np.linalg.norm(direction) or 1.0
        left = parts // 2
        # what the left parts hold when the sizes are floor and ceil of n / k, larger ones first
        cut = left * (len(rows) // parts) + min(left, len(rows) % parts)
        order = np.argsort(block @ direction, kind="stable")
        pending += [(rows[order[:cut]], first, left), (rows[order[cut:]], first + left, parts - left)]
    return labels


# --- what a model of the dispersion may need -------------------------------------------------------------------------


@dataclass(frozen=True)
class Factors:
    """Leading eigenpairs of each cluster's covariance and the variance left in every other direction."""

    values: NDArray[np.float64]  # (K, r)
    vectors: NDArray[np.float64]  # (K, r, d)
    rest: NDArray[np.float64]  # (K,)


def factors(partition: Partition, rank: int, known: Factors | None = None, kept: NDArray[np.int64] | None = None,
            touched: Iterable[int] = ()) -> Factors:  # fmt: skip
    """The ``rank`` leading eigenpairs of each cluster's covariance (population, divisor n_c).

    After a change, ``known`` are those of before, ``kept`` the clusters that are left, and only ``touched`` are new.
    """
    K, d = partition.variances.shape
    rank = min(rank, d)
    if known is None or kept is None:
        values, vectors, touched = np.zeros((K, rank)), np.zeros((K, rank, d)), range(K)
    else:
        values, vectors = known.values[kept], known.vectors[kept]
    for c in touched:
        block = partition.items[partition.offsets[c] : partition.offsets[c + 1]].astype(np.float64)
        _, singular, right = np.linalg.svd(block - block.mean(0), full_matrices=False)
        r = min(rank, len(singular))
        values[c], vectors[c] = 0.0, 0.0
        values[c, :r], vectors[c, :r] = singular[:r] ** 2 / len(block), right[:r]
    left = np.maximum(partition.variances.sum(1) - values.sum(1), 0)
    return Factors(values, vectors, left / (d - rank) if d > rank else np.zeros(K))


def effective_ranks(partition: Partition) -> NDArray[np.float64]:
    """tr(Sigma_c)^2 / tr(Sigma_c^2), from 1 (a line) to d (a ball); 0 for clusters without spread."""
    ranks = np.zeros(len(partition.radii))
    for c, block in enumerate(partition):
        centred = block.astype(np.float64) - block.mean(0, dtype=np.float64)
        gram = centred @ centred.T if len(centred) <= centred.shape[1] else centred.T @ centred
        square = np.sum(gram**2)
        ranks[c] = np.trace(gram) ** 2 / square if square > 0 else 0.0
    return ranks
