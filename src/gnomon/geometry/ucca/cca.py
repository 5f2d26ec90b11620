"""Whitened principal coordinates of a view, and canonical correlation analysis under a pairing or a plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnomon.geometry.ucca.kernels import Array, Pairing


@dataclass(frozen=True)
class Basis:
    """A view's principal coordinates, learned from its rows.

    Attributes
    ----------
    mean : ndarray, shape (p,)
        Column means (of the kernel where the view is one).
    rotation : ndarray, shape (p, d)
        Maps a centred row to d whitened coordinates.
    variances : ndarray, shape (d,)
        Of the coordinates before whitening, descending.
    principal : ndarray, shape (n, r)
        All principal coordinates of the rows, not whitened.
    kernel : bool
        Whether rows are kernel values against the n training rows, which are centred by their own mean too.
    """

    mean: Array
    rotation: Array
    variances: Array
    principal: Array
    kernel: bool = False

    @classmethod
    def of(cls, X: Array, d: int, *, standardize: bool = False) -> Basis:
        """Of features (n, p): PCA to at most d dimensions, fewer where the rank is lower."""
        n = len(X)
        mean = X.mean(axis=0)
        scale = X.std(axis=0) if standardize else np.ones(X.shape[1])
        scale = np.where(scale > 0, scale, 1.0)
        left, values, right = np.linalg.svd((X - mean) / scale, full_matrices=False)
        rank = int(np.sum(values > max(X.shape) * np.finfo(float).eps * 10 * max(values[0], 1e-300)))
        variances = values[: min(d, rank)] ** 2 / n
        rotation = right[: len(variances)].T / np.sqrt(variances) / scale[:, None]
        return cls(mean, rotation, variances, left[:, :rank] * values[:rank])

    @classmethod
    def of_kernel(cls, K: Array, d: int) -> Basis:
        """Of a kernel (n, n): the leading positive components, as in kernel PCA."""
        n, mean = len(K), K.mean(axis=0)
        values, vectors = np.linalg.eigh(K - mean - mean[:, None] + K.mean())
        values, vectors = values[::-1], vectors[:, ::-1]
        rank = int(np.sum(values > n * np.finfo(float).eps * 10 * np.abs(values).max()))
        kept = min(d, rank)
        return cls(mean, vectors[:, :kept] * np.sqrt(n) / values[:kept], values[:kept] / n,
                   vectors[:, :rank] * np.sqrt(values[:rank]), kernel=True)  # fmt: skip

    def coordinates(self, X: Array) -> Array:
        """Whitened coordinates (m, d); of the training rows Z'Z = n I."""
        rows = X - self.mean
        if self.kernel:
            rows = rows - X.mean(axis=1, keepdims=True) + self.mean.mean()
        return rows @ self.rotation

    def shrinkage(self, ridge: float) -> Array:
        """What a ridge of ``ridge`` times the mean variance leaves of each whitened coordinate, (d,)."""
        return np.sqrt(self.variances / (self.variances + ridge * self.variances.mean()))


def cross_covariance(Z_x: Array, Z_y: Array, coupling: Array | Pairing) -> Array:
    """Z_x' P Z_y / n for a pairing (n,), or Z_x' Pi Z_y for a plan (n, m) of total mass 1."""
    if coupling.ndim == 1:
        return Z_x.T @ Z_y[coupling] / len(Z_x)
    return Z_x.T @ coupling @ Z_y


def canonical(Z_x: Array, Z_y: Array, coupling: Array | Pairing) -> tuple[Array, Array, Array]:
    """(U, rho, V) of whitened views under a coupling: canonical directions in columns, correlations descending."""
    U, rho, Vt = np.linalg.svd(cross_covariance(Z_x, Z_y, coupling), full_matrices=False)
    return U, rho, Vt.T


def projections(x: Basis, y: Basis, cross: Array, k: int, ridge: float) -> tuple[Array, Array]:
    """Ridge CCA from the cross-covariance of the whitened coordinates: maps (p, k), (q, k) of centred rows.

    Projections of the training rows have unit variance.
    """
    g_x, g_y = x.shrinkage(ridge), y.shrinkage(ridge)
    U, _, Vt = np.linalg.svd(g_x[:, None] * cross * g_y, full_matrices=False)
    W_x, W_y = g_x[:, None] * U[:, :k], g_y[:, None] * Vt[:k].T
    return (x.rotation @ (W_x / np.linalg.norm(W_x, axis=0)), y.rotation @ (W_y / np.linalg.norm(W_y, axis=0)))


def paired_correlations(P: Array, Q: Array) -> Array:
    """Pearson correlation of each column of P with that of Q; 0 where one does not vary."""
    P, Q = P - P.mean(axis=0), Q - Q.mean(axis=0)
    norms = np.linalg.norm(P, axis=0) * np.linalg.norm(Q, axis=0)
    return np.where(norms > 0, (P * Q).sum(axis=0) / np.where(norms > 0, norms, 1), 0.0)
