"""Samples built to fool a metric, and what the ball metrics and the Chamfer scores make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.geometry.chamfer.baselines import ball_radii, prdc
from gnomon.geometry.neighbors import check_rows, cross_neighbors, knn

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


# --- constructions ---------------------------------------------------------------------------------------------------


def moment_matched(R: Any, kind: str = "gaussian", random_state: Any = None) -> Array:
    """A sample with exactly R's mean and covariance that is otherwise noise: its Frechet distance to R is zero.

    With ``R - mean = U S V'`` (thin, rank r) the rows are ``mean + W S V'``, W an orthonormal basis of a centred random
    n x r matrix.

    Parameters
    ----------
    R : array (n, D)
    kind : {"gaussian", "rademacher"}
        Entries of the random matrix.

    Returns
    -------
    ndarray, shape (n, D)
    """
    if kind not in ("gaussian", "rademacher"):
        raise ValueError(f"kind: got {kind!r}; expected 'gaussian' or 'rademacher'")
    R = np.asarray(check_rows(R, "R", min_rows=2), dtype=np.float64)
    rng = np.random.default_rng(random_state)
    mean = R.mean(0)
    _, s, Vt = np.linalg.svd(R - mean, full_matrices=False)
    rank = min(int((s > s[0] * max(R.shape) * np.finfo(float).eps).sum()), len(R) - 1)
    shape = (len(R), rank)
    Z = rng.normal(size=shape) if kind == "gaussian" else rng.choice([-1.0, 1.0], size=shape)
    W = np.linalg.qr(Z - Z.mean(0))[0]
    W -= W.mean(0)
    return mean + (W * s[:rank]) @ Vt[:rank]


def midpoints(R: Any, m: int | None = None, random_state: Any = None) -> Array:
    """m (default n) averages of two different random rows: inside the hull, off the manifold."""
    R = np.asarray(check_rows(R, "R", min_rows=2))
    rng = np.random.default_rng(random_state)
    m = len(R) if m is None else m
    first = rng.integers(len(R), size=m)
    second = (first + rng.integers(1, len(R), size=m)) % len(R)
    return (R[first] + R[second]) / 2


def shell_noise(G: Any, s: float, delta: float | None = None, random_state: Any = None) -> Array:
    """``g + s delta u`` with u uniform on the sphere.

    ``delta`` defaults to the median distance of G's rows to their nearest neighbour (G being real rows).
    """
    G = np.asarray(check_rows(G, "G", min_rows=2), dtype=np.float64)
    rng = np.random.default_rng(random_state)
    delta = float(np.median(knn(G, k=1)[0])) if delta is None else delta
    u = rng.normal(size=G.shape)
    return G + s * delta * u / np.linalg.norm(u, axis=1, keepdims=True)


def dropped_modes(labels: Any, keep: Any) -> NDArray[np.int64]:
    """Indices of the rows whose label is in ``keep``."""
    found = np.flatnonzero(np.isin(np.asarray(labels), list(keep)))
    if not len(found):
        raise ValueError(f"keep: none of {list(keep)} is among the labels")
    return found


def few_prototypes(G: Any, q: int, m: int | None = None, random_state: Any = None) -> Any:
    """m (default all) draws from q random rows of G only."""
    G = check_rows(G, "G")
    if not 1 <= q <= len(G):
        raise ValueError(f"q: got {q}; expected 1 to {len(G)}")
    rng = np.random.default_rng(random_state)
    return G[rng.choice(rng.choice(len(G), q, replace=False), len(G) if m is None else m)]


def memorised(R: Any) -> Any:
    """The real sample itself, copied."""
    R = check_rows(R, "R")
    return R.clone() if hasattr(R, "clone") else R.copy()


# --- what the balls do -----------------------------------------------------------------------------------------------


@dataclass
class BallInflation:
    """How much larger the balls are than the data.

    Attributes
    ----------
    far_share : float
        Share of uniform points of the union of balls that lie farther from R than 95 % (``q``) of real points do.
    volume_excess, volume_excess_median : float
        Mean and median of ``(r_k / r_1)^d``: volume of a ball relative to the one that reaches the nearest neighbour. Where
        the density is even it follows 1 / Beta(1, k - 1) in every dimension, whose mean is infinite: read the median.
    dimension : float
        The intrinsic dimension d used (two-nearest-neighbours estimate).
    probes_accepted, probes_rejected : float
        Share of the probes that precision accepts; share that precision accepts and the Chamfer threshold of the same
        level (equal acceptance of held-out real rows) rejects.
    """

    far_share: float
    volume_excess: float
    volume_excess_median: float
    dimension: float
    probes_accepted: float
    probes_rejected: float


def ball_inflation(R: Any, k: int = 5, *, q: float = 0.95, n_points: int = 1000, probes: Any = None,
                   random_state: Any = None) -> BallInflation:  # fmt: skip
    """Measure how far k-nearest-neighbour balls inflate the support.

    Parameters
    ----------
    R : array (n, D)
        Half of it carries the balls, the other half sets the level for ``probes``.
    k : int
        Neighbour that sets the radius.
    q : float
        Quantile of real nearest-neighbour distances beyond which a point is far.
    n_points : int
        Uniform points of the union.
    probes : array (p, D), optional
        Points to be judged (default: midpoints of the other half).
    """
    R = np.asarray(check_rows(R, "R", min_rows=2 * k + 4), dtype=np.float64)
    if not 0 < q < 1:
        raise ValueError(f"q: got {q}; expected between 0 and 1")
    rng = np.random.default_rng(random_state)
    near = knn(R, k=max(k, 2))[0]
    dimension = two_nn(near)
    apart = near[:, 0] > 0
    excess = (near[apart, k - 1] / near[apart, 0]) ** dimension

    points = _uniform_in_union(R, near[:, k - 1], n_points, rng)
    far = float((knn(points, R, 1)[0][:, 0] > np.quantile(near[:, 0], q)).mean())

    order = rng.permutation(len(R))
    balls, held = R[order[: len(R) // 2]], R[order[len(R) // 2 :]]
    probes = (
        midpoints(held, random_state=rng)
        if probes is None
        else np.asarray(check_rows(probes, "probes"), dtype=np.float64)
    )
    radii = ball_radii(balls, k, "R")
    level = (cross_neighbors(balls, held, radius_x=radii).y_in_balls > 0).mean()
    threshold = np.quantile(knn(held, balls, 1)[0][:, 0], level)
    accepted = cross_neighbors(balls, probes, radius_x=radii).y_in_balls > 0
    rejected = accepted & (knn(probes, balls, 1)[0][:, 0] > threshold)
    return BallInflation(
        far, float(excess.mean()), float(np.median(excess)), dimension, float(accepted.mean()), float(rejected.mean())
    )


def two_nn(near: Array) -> float:
    """Intrinsic dimension from the ratio of the two nearest distances (Facco et al. 2017), rows with r_1 = 0 left out."""
    apart = near[:, 0] > 0
    logs = np.log(near[apart, 1] / near[apart, 0])
    if not logs.sum() > 0:
        raise ValueError("R: nearest-neighbour distances are all zero or all equal; no dimension can be read")
    return float(apart.sum() / logs.sum())


def _uniform_in_union(R: Array, radii: Array, n_points: int, rng: np.random.Generator) -> Array:
    """A ball by its volume, a point in it, kept with one over the number of balls that hold it."""
    D = R.shape[1]
    logs = D * np.log(np.maximum(radii, np.finfo(float).tiny))
    share = np.exp(logs - logs.max())
    kept: list[Array] = []
    while sum(map(len, kept)) < n_points:
        ball = rng.choice(len(R), size=n_points, p=share / share.sum())
        u = rng.normal(size=(n_points, D))
        u *= (rng.random((n_points, 1)) ** (1 / D)) / np.linalg.norm(u, axis=1, keepdims=True)
        points = R[ball] + radii[ball, None] * u
        held_by = cross_neighbors(R, points, radius_x=radii).y_in_balls
        kept.append(points[rng.random(n_points) * np.maximum(held_by, 1) < 1])
    return np.concatenate(kept)[:n_points]


# --- finite samples --------------------------------------------------------------------------------------------------


def stability(R: Any, G: Any, *, holdout: Any, sizes: Sequence[int] = (300, 600, 1200, 2400), ks: Sequence[int] = (1, 3, 5, 10),
              random_state: Any = None) -> tuple[pd.DataFrame, pd.Series]:  # fmt: skip
    """Recall, ball coverage and C / C0 over sample sizes and neighbourhoods.

    Parameters
    ----------
    R, G, holdout : array (n, D), (m, D), (h, D)
        Pools to subsample: n real rows, m generated and m held-out ones.
    sizes : sequence of int
        Every pair of sizes (n, m) that the pools allow is run.
    ks : sequence of int
        Neighbours: the balls' for recall and coverage, averaged over for C / C0.

    Returns
    -------
    table : DataFrame
        ``n, m, k, recall, coverage, coverage_ratio``.
    variation : Series
        Coefficient of variation of each of the three over the table.
    """
    import pandas as pd

    pools = [check_rows(A, name) for A, name in ((R, "R"), (G, "G"), (holdout, "holdout"))]
    rng = np.random.default_rng(random_state)
    rows = []
    for n in sizes:
        for m in sizes:
            if n > len(pools[0]) or m > min(len(pools[1]), len(pools[2])):
                continue
            real, generated, held = (
                A[rng.choice(len(A), s, replace=False)] for A, s in zip(pools, (n, m, m), strict=True)
            )
            for k in ks:
                old = prdc(real, generated, k)
                c, c0 = (knn(real, X, k)[0].mean() for X in (generated, held))
                rows.append(
                    {
                        "n": n,
                        "m": m,
                        "k": k,
                        "recall": old["recall"],
                        "coverage": old["coverage"],
                        "coverage_ratio": c / c0,
                    }
                )
    if not rows:
        raise ValueError(f"sizes: got {list(sizes)}; the pools hold {[len(A) for A in pools]} rows")
    table = pd.DataFrame(rows)
    scores = table[["recall", "coverage", "coverage_ratio"]]
    return table, scores.std() / scores.mean()
