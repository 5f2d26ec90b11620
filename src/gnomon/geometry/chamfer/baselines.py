"""The older metrics: Frechet and kernel distances, and everything that counts points in k-nearest-neighbour balls."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.geometry.neighbors import check_rows, cross_neighbors, distance_blocks, knn, same_width

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gnomon.geometry.neighbors import CrossNeighbors


def _pair(R: Any, G: Any, min_rows: int = 2) -> tuple[Any, Any]:
    R, G = check_rows(R, "R", min_rows=min_rows), check_rows(G, "G", min_rows=min_rows)
    same_width(R, G, "R", "G")
    return R, G


def _numpy(X: Any) -> NDArray[np.float64]:
    return np.asarray(X.detach().cpu().numpy() if hasattr(X, "detach") else X, dtype=np.float64)


# --- moments and kernels ---------------------------------------------------------------------------------------------


def fid(R: Any, G: Any) -> float:
    """Frechet distance between the Gaussians with the samples' means and covariances.

    ``||m_R - m_G||^2 + tr(S_R + S_G - 2 (S_R S_G)^{1/2})``; the last trace is the sum of the singular values of
    ``X_R X_G'`` (centred rows over sqrt(n - 1)), taken from the triangular factors: no square root of a matrix, no
    eigenvalues that rounding makes negative, exact with fewer rows than features too.

    Parameters
    ----------
    R, G : array or tensor, shape (n, D), (m, D)
        Called FID only when the features are those of the Inception network; a Frechet distance (FD) otherwise.

    Warns
    -----
    UserWarning
        With no more rows than features: the covariances are rank-deficient and the value is mostly bias.

    References
    ----------
    Heusel et al. 2017 (arXiv:1706.08500), equation 6.
    """
    R, G = (_numpy(A) for A in _pair(R, G))
    for name, X in (("R", R), ("G", G)):
        if len(X) <= X.shape[1]:
            warnings.warn(f"{name}: {len(X)} rows for {X.shape[1]} features: the covariance is rank-deficient and the "
                          "Frechet distance mostly bias", UserWarning, stacklevel=2)  # fmt: skip
    return _frechet(R, G)


def _frechet(R: NDArray[np.float64], G: NDArray[np.float64]) -> float:
    means = [X.mean(0) for X in (R, G)]
    roots = (np.linalg.qr((X - mean) / np.sqrt(len(X) - 1), mode="r") for X, mean in zip((R, G), means, strict=True))
    left, right = (np.asarray(root) for root in roots)
    shared = np.linalg.svd(left @ right.T, compute_uv=False).sum()
    traces = (left**2).sum() + (right**2).sum()
    return float(((means[0] - means[1]) ** 2).sum() + traces - 2 * shared)


def fid_infinity(R: Any, G: Any, n_points: int = 10, random_state: Any = None) -> float:
    """Frechet distance extrapolated to infinitely many samples: a line through values at sizes n against 1/n.

    Sizes run from a quarter of the smaller set to all of it. Source: Chong and Forsyth 2020 (arXiv:1911.07023).
    """
    R, G = (_numpy(A) for A in _pair(R, G, min_rows=16))
    rng = np.random.default_rng(random_state)
    most = min(len(R), len(G))
    sizes = np.linspace(max(most // 4, 8), most, n_points).astype(int)
    values = [_frechet(R[rng.choice(len(R), n, replace=False)], G[rng.choice(len(G), n, replace=False)]) for n in sizes]
    return float(np.polyfit(1.0 / sizes, values, 1)[1])


def kid(R: Any, G: Any) -> float:
    """Kernel distance: the unbiased MMD^2 with the kernel ``(x'y / D + 1)^3``, over all pairs.

    Source: Binkowski et al. 2018 (arXiv:1801.01401). Subsets, which most code draws to save memory, only add noise:
    products are taken in blocks here.
    """
    R, G = (_numpy(A) for A in _pair(R, G))
    return _mmd2(R, G, lambda X, Y: (X @ Y.T / X.shape[1] + 1.0) ** 3)


def cmmd(R: Any, G: Any, bandwidth: float | None = None) -> float:
    """The unbiased MMD^2 with a Gaussian kernel ``exp(-||x - y||^2 / (2 bandwidth^2))``.

    The recipe of CMMD (Jayasumana et al. 2024, arXiv:2401.09603) on any features; there the features are CLIP's and the
    bandwidth 10. Default bandwidth: the median distance within (up to 500 rows of) R.
    """
    R, G = (_numpy(A) for A in _pair(R, G))
    if bandwidth is None:
        from scipy.spatial.distance import pdist

        bandwidth = float(np.median(pdist(R[:: max(1, len(R) // 500)])))
    if not bandwidth > 0:
        raise ValueError(f"bandwidth: got {bandwidth}; expected a positive number (is R constant?)")

    def kernel(X: NDArray[np.float64], Y: NDArray[np.float64]) -> NDArray[np.float64]:
        squared = (X**2).sum(1)[:, None] + (Y**2).sum(1) - 2 * X @ Y.T
        return np.exp(-np.maximum(squared, 0) / (2 * bandwidth**2))

    return _mmd2(R, G, kernel)


def _mmd2(R: NDArray[np.float64], G: NDArray[np.float64], kernel: Any) -> float:
    def total(X: NDArray[np.float64], Y: NDArray[np.float64]) -> float:
        return sum(float(kernel(X[s : s + 2048], Y[t : t + 2048]).sum())
                   for s in range(0, len(X), 2048) for t in range(0, len(Y), 2048))  # fmt: skip

    def diagonal(X: NDArray[np.float64]) -> float:
        return sum(float(kernel(x[None], x[None])[0, 0]) for x in X)

    n, m = len(R), len(G)
    within = [(total(X, X) - diagonal(X)) / (len(X) * (len(X) - 1)) for X in (R, G)]
    return within[0] + within[1] - 2 * total(R, G) / (n * m)


def sliced_w2(R: Any, G: Any, n_projections: int = 256, random_state: Any = None) -> float:
    """Mean over random directions of the squared Wasserstein-2 distance of the projections, times D.

    The recipe of the Monge-Inception distance (MIND): optimal transport without its sample complexity; the factor D
    makes it comparable with a squared distance in the space. Computed by :func:`ot.sliced_wasserstein_distance`.
    """
    import ot

    R, G = (_numpy(A) for A in _pair(R, G))
    seed = np.random.default_rng(random_state).integers(2**31)
    return float(R.shape[1] * ot.sliced_wasserstein_distance(R, G, n_projections=n_projections, seed=int(seed)) ** 2)


# --- balls around every point ----------------------------------------------------------------------------------------


def prdc(R: Any, G: Any, k: int = 5) -> dict[str, float]:
    """Improved precision and recall, density and coverage.

    Precision and density ask in which balls around real points a generated point lies, recall in which balls around
    generated points a real one lies, coverage whether a real point's ball holds a generated one. A ball reaches to the
    k-th neighbour within its own set.

    Returns
    -------
    dict
        ``precision``, ``recall``, ``density``, ``coverage``.

    References
    ----------
    Kynkaanniemi et al. 2019 (arXiv:1904.06991); Naeem et al. 2020 (arXiv:2002.09797), whose package ``prdc`` gives the
    same values from three full matrices.
    """
    R, G = _pair(R, G)
    radii = ball_radii(R, k, "R"), ball_radii(G, k, "G")
    return prdc_from(cross_neighbors(R, G, radius_x=radii[0], radius_y=radii[1]), radii[0], k)


def ball_radii(X: Any, k: int, name: str) -> NDArray[np.float64]:
    """Distance of each row to its k-th neighbour in the same set."""
    if not 1 <= k < len(X):
        raise ValueError(f"k: got {k}; expected 1 to {len(X) - 1}, fewer than the rows of {name}")
    return knn(X, k=k)[0][:, -1]


def prdc_from(pass_: CrossNeighbors, real_radii: NDArray[np.float64], k: int) -> dict[str, float]:
    """The four values from one pass over the distances with both sets of balls."""
    return {
        "precision": float((pass_.y_in_balls > 0).mean()),
        "recall": float((pass_.x_in_balls > 0).mean()),
        "density": float(1.0 / k * pass_.y_in_balls.mean()),
        "coverage": float((pass_.x_distances[:, 0] < real_radii).mean()),
    }


def p_precision_recall(R: Any, G: Any, k: int = 4, a: float = 1.2) -> tuple[float, float]:
    """P-precision and P-recall: every point is in the support with a probability, not a verdict.

    A point at distance d of a support point belongs to it with probability ``max(0, 1 - d / (a r))``, r the mean
    distance to the k-th neighbour; support points speak independently. Source: Park and Kim 2023 (arXiv:2309.01590),
    whose k and a are the defaults.
    """
    R, G = (_numpy(A) for A in _pair(R, G))
    reach = [a * ball_radii(X, k, name).mean() for X, name in ((R, "R"), (G, "G"))]

    def beyond(block: NDArray[np.float64], r: float) -> NDArray[np.float64]:
        return np.minimum(1.0, block / r) if r > 0 else (block > 0).astype(float)  # only duplicates: balls of no size

    outside_real, in_generated = np.zeros(len(G)), np.zeros(len(R))
    with np.errstate(divide="ignore"):
        for rows, block in distance_blocks(R, G):
            outside_real += np.log(beyond(block, reach[0])).sum(0)
            in_generated[rows] = -np.expm1(np.log(beyond(block, reach[1])).sum(1))
    return float(-np.expm1(outside_real).mean()), float(in_generated.mean())


def clipped_density_coverage(R: Any, G: Any, k: int = 5) -> tuple[float, float]:
    """Clipped density and clipped coverage, both calibrated to fall linearly with the share of bad samples.

    Density with radii clipped at their median and each point's count at k, relative to what real points get among
    themselves; coverage as the mean of min(count, k) / k over the real points' balls, mapped through the inverse of its
    expected value when ``good`` of the m samples are real (a beta-binomial count). Source: Salvy et al. 2025
    (arXiv:2507.01761), sections 3 and 4.
    """
    from scipy.stats import betabinom

    R, G = _pair(R, G)
    n, m = len(R), len(G)
    radii = ball_radii(R, k, "R")
    clipped = np.minimum(radii, np.median(radii))
    hits = cross_neighbors(R, G, radius_x=clipped).y_in_balls
    distances, indices = knn(R, k=k)
    own = np.bincount(indices[distances <= clipped[:, None]], minlength=n)
    density = (np.minimum(hits, k) / k).mean() / (np.minimum(own, k) / k).mean()

    filled = cross_neighbors(R, G, radius_x=radii).balls_filled
    raw = (np.minimum(filled, k) / k).mean()
    good = np.arange(k, m + 1)
    short = sum((k - c) * betabinom.pmf(c, good, k, n - k) for c in range(k))
    expected = np.concatenate([np.zeros(k), 1.0 - short / k])
    return float(min(density, 1.0)), float(np.searchsorted(expected, raw) / len(expected))
