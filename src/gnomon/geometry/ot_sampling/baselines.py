"""What the paper is compared with: other dimensions from scikit-dimension, other distances from POT and geomloss."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gnomon.geometry.ot_sampling.distance import divergence
from gnomon.geometry.ot_sampling.error import exact_cost
from gnomon.geometry.ot_sampling.nearest import pairwise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

DIMENSIONS = ("TwoNN", "MLE", "lPCA", "CorrInt", "DANCo")


def dimension(name: str) -> Callable[[Array], float]:
    """An estimator of scikit-dimension at its defaults; ``CorrInt`` is the correlation dimension."""
    if name not in DIMENSIONS:
        raise ValueError(f"name: got {name!r}; expected one of {', '.join(DIMENSIONS)}")

    def estimate(X: Array) -> float:
        import skdim

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(getattr(skdim.id, name)().fit(np.asarray(X, np.float64)).dimension_)

    return estimate


def plugin(X: Array, Y: Array) -> float:
    """Exact W2 squared between the samples (POT)."""
    return exact_cost(pairwise(X, Y, "euclidean", 2))


def fixed_sinkhorn(fraction: float) -> Callable[[Array, Array], float]:
    """Sinkhorn divergence with epsilon a fixed fraction of the mean cost."""

    def estimate(X: Array, Y: Array) -> float:
        xy, xx, yy = (pairwise(A, B, "euclidean", 2) for A, B in ((X, Y), (X, X), (Y, Y)))
        return divergence(xy, xx, yy, fraction * float(xy.mean()))[0]

    return estimate


def chizat(X: Array, Y: Array, fraction: float = 0.1) -> float:
    """Richardson in epsilon: 2 S_eps - S_(sqrt 2 eps) (Chizat et al., NeurIPS 2020), epsilon 0.1 of the mean cost."""
    xy, xx, yy = (pairwise(A, B, "euclidean", 2) for A, B in ((X, Y), (X, X), (Y, Y)))
    eps = fraction * float(xy.mean())
    return 2 * divergence(xy, xx, yy, eps)[0] - divergence(xy, xx, yy, np.sqrt(2) * eps)[0]


def bures(X: Array, Y: Array) -> float:
    """W2 squared between the Gaussians with the samples' moments.

    The trace of the geometric mean is the nuclear norm of X Y' of the centred samples, which holds for singular
    covariances too (POT's root of them gives NaN).
    """
    x, y = X - X.mean(0), Y - Y.mean(0)
    shared = np.linalg.norm(x @ y.T, "nuc") / np.sqrt(len(x) * len(y))
    return float(((X.mean(0) - Y.mean(0)) ** 2).sum() + x.var(0).sum() + y.var(0).sum() - 2 * shared)


def sliced(X: Array, Y: Array, n_projections: int = 200, seed: int = 0) -> float:
    """Sliced W2 squared times the ambient dimension, which makes it W2 squared for translations (POT)."""
    import ot

    value = ot.sliced_wasserstein_distance(X, Y, n_projections=n_projections, p=2, seed=seed)
    return float(value) ** 2 * X.shape[1]


def geomloss_divergence(X: Array, Y: Array, blur: float) -> float:
    """geomloss' Sinkhorn divergence, doubled (its cost is half the squared distance), at epsilon = 2 blur^2."""
    import torch
    from geomloss import SamplesLoss

    loss = SamplesLoss("sinkhorn", p=2, blur=blur, scaling=0.9, backend="tensorized")
    return 2 * float(loss(torch.as_tensor(X), torch.as_tensor(Y)))


def pot_divergence(X: Array, Y: Array, epsilon: float) -> float:
    """POT's empirical Sinkhorn divergence (its values leave the KL term out)."""
    import ot

    return float(ot.bregman.empirical_sinkhorn_divergence(X, Y, epsilon, numIterMax=10_000, stopThr=1e-7))


def pot_sinkhorn(X: Array, Y: Array, epsilon: float) -> float:
    """POT's ``sinkhorn2``: the cost of the entropic plan."""
    import ot

    return float(ot.sinkhorn2([], [], pairwise(X, Y, "euclidean", 2), epsilon, numItermax=10_000, stopThr=1e-7))
