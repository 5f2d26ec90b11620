"""Models D_c(u) of the variance of the scores <u, v_i> inside each cluster, all as (b, K) arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnomon.sampling.two_level_softmax.partition import Factors, Partition

MODELS = ("auto", "isotropic", "diagonal", "lowrank", "full", "calibrated", "offset")


def isotropic(U: NDArray, partition: Partition) -> NDArray[np.float64]:
    """||u||^2 tr(Sigma_c) / d: one number stored for each cluster."""
    return np.multiply.outer(squares(U), partition.mean_variances)


def diagonal(U: NDArray, partition: Partition) -> NDArray[np.float64]:
    """sum_j u_j^2 Sigma_c[jj]."""
    return np.square(U, dtype=np.float64) @ partition.variances.T


def lowrank(U: NDArray, partition: Partition, found: Factors) -> NDArray[np.float64]:
    """sum_k lambda_ck <u, w_ck>^2, and the mean of the other variances in the directions that are left."""
    onto = np.einsum("bd,krd->bkr", U.astype(np.float64), found.vectors, optimize=True) ** 2
    outside = np.maximum(squares(U)[:, None] - onto.sum(2), 0)
    return np.einsum("bkr,kr->bk", onto, found.values) + outside * found.rest


def ceiling(U: NDArray, partition: Partition) -> NDArray[np.float64]:
    """||u||^2 rho_c^2 with the radius rho_c: beta^2/2 of it is Hoeffding's (2 beta ||u|| rho_c)^2 / 8.

    The models that average the covariance (isotropic, diagonal, lowrank, full) never exceed it, since no variance of
    a cluster exceeds its squared radius; those that are fitted can.
    """
    return np.multiply.outer(squares(U), partition.radii**2)


def squares(U: NDArray) -> NDArray[np.float64]:
    """||u||^2 of each query (b,)."""
    return np.einsum("ij,ij->i", U, U, dtype=np.float64)
