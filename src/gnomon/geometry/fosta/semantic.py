"""Semantic vectors: what classes a row is near to, in terms that two domains share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gnomon.geometry.fosta.forest import Kernel
from gnomon.geometry.fosta.labels import one_hot

Array = NDArray[np.float64]
NORMS = ("l2", "l1")
PROPAGATIONS = (None, "dpt")


def semantic_vectors(kernel: Kernel, codes: NDArray[np.int64], shared: NDArray[np.int64], *, prior_correct: bool = True,
                     norm: str = "l2", propagation: str | None = None, landmarks: int = 2000,
                     rng: np.random.Generator | None = None) -> Array:  # fmt: skip
    """Similarity mass of each row on each shared class, divided by the class's prior, of length one.

    Parameters
    ----------
    kernel : Kernel
        n x n.
    codes : ndarray of int, shape (n,)
        Classes, -1 where unlabelled.
    shared : ndarray of int, shape (C,)
        Codes of the classes that become columns.
    prior_correct : bool
        Divide by the share of each class among the labelled rows.
    norm : {"l2", "l1"}
    propagation : {None, "dpt"}
        "dpt": multiply by the diffusion pseudotime operator (I - P + 1 phi')^-1 - I, its rows scaled to [0, 1]; on
        ``landmarks`` random rows where there are more, the others taking the mean of the landmarks they resemble.
    landmarks : int
    rng : numpy Generator, optional
        Draws the landmarks.

    Returns
    -------
    ndarray, shape (n, C)
        A row that resembles no labelled row of a shared class is zero.
    """
    indicator = one_hot(codes, shared)
    vectors = kernel @ indicator
    if propagation == "dpt":
        vectors = _propagated(kernel, vectors, landmarks, rng or np.random.default_rng(0))
    if prior_correct:
        vectors = vectors / (indicator.sum(0) / (codes >= 0).sum())
    length = np.linalg.norm(vectors, ord=2 if norm == "l2" else 1, axis=1, keepdims=True)
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)


def dpt_operator(K: Array) -> Array:
    """(I - P + 1 phi')^-1 - I with P = D^-1 K and phi its stationary law, each row scaled to [0, 1]."""
    degree = K.sum(1)
    M = np.linalg.inv(np.eye(len(K)) - K / degree[:, None] + degree / degree.sum()) - np.eye(len(K))
    low, high = M.min(1, keepdims=True), M.max(1, keepdims=True)
    return np.divide(M - low, high - low, out=np.zeros_like(M), where=high > low)


def _propagated(kernel: Kernel, vectors: Array, landmarks: int, rng: np.random.Generator) -> Array:
    n = len(vectors)
    if n <= landmarks:
        return dpt_operator(kernel.toarray()) @ vectors
    chosen = np.sort(rng.permutation(n)[:landmarks])
    pick = sparse.csr_array((np.ones(landmarks), (chosen, np.arange(landmarks))), shape=(n, landmarks))
    prepared = kernel.prepared(pick)
    known = dpt_operator(np.asarray(kernel.rows_times(chosen, prepared).toarray())) @ vectors[chosen]
    out = np.empty_like(vectors)
    for rows in np.array_split(np.arange(n), -(-n // 1000)):
        part: Any = kernel.rows_times(rows, prepared)
        total = np.asarray(part.sum(axis=1)).reshape(-1, 1)
        out[rows] = (part @ known) / np.where(total > 0, total, 1.0)
    out[chosen] = known
    return out
