"""The proximities as loops over trees, rows and columns: slow, and readable beside the equations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def gap_proximity(leaves: NDArray[Any], counts: Array, labelled: NDArray[np.bool_]) -> Array:
    """p(i, j) of :class:`gnomon.geometry.ForestKernel`, with its diagonal.

    Parameters
    ----------
    leaves : ndarray, shape (n, T)
        Any names of leaves, per tree.
    counts : ndarray, shape (n, T)
        Multiplicities in the bags; zero for unlabelled rows.
    labelled : ndarray of bool, shape (n,)
    """
    n, trees = leaves.shape
    p = np.zeros((n, n))
    for i in range(n):
        out = [t for t in range(trees) if not labelled[i] or counts[i, t] == 0]
        for j in range(n):
            for t in out if i != j else _trees_of_self(i, counts, labelled):
                if leaves[i, t] == leaves[j, t]:
                    mass = sum(counts[k, t] for k in range(n) if labelled[k] and leaves[k, t] == leaves[i, t])
                    p[i, j] += _weight(i, j, t, counts, labelled) / mass
            p[i, j] /= len(out) if i != j else len(_trees_of_self(i, counts, labelled))
    return p


def _trees_of_self(i: int, counts: Array, labelled: NDArray[np.bool_]) -> list[int]:
    return [t for t in range(counts.shape[1]) if not labelled[i] or counts[i, t] > 0]


def _weight(i: int, j: int, t: int, counts: Array, labelled: NDArray[np.bool_]) -> float:
    if labelled[j]:
        return float(counts[j, t])
    bag = counts[labelled, t]
    return float(bag.mean() if i != j else bag[bag > 0].mean())


def gap_kernel(leaves: NDArray[Any], counts: Array, labelled: NDArray[np.bool_]) -> Array:
    """(p + p') / 2, normalised to a diagonal of one."""
    p = gap_proximity(leaves, counts, labelled)
    K = (p + p.T) / 2
    return np.asarray(K / np.sqrt(np.outer(np.diag(K), np.diag(K))))


def joint_affinity(KA: Array, KB: Array, T: Array, mu: float = 1.0, affinity: str = "product") -> Array:
    """(W + W') / 2 of the paper's W, or of its first version's."""
    if affinity == "product":
        W = np.block([[KA, mu * KA @ T], [mu * KB @ T.T, KB]])
    else:
        cross = (KA @ T + T @ KB) / 2
        W = np.block([[(1 - mu) * KA, mu * cross], [mu * cross.T, (1 - mu) * KB]])
    return (W + W.T) / 2
