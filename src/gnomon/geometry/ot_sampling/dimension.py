r"""Intrinsic dimension from how fast the nearest cost falls with the number of atoms.

On a flat torus of dimension d the mean of the p-th power of the nearest distance among n atoms is
:math:`V_d^{-p/d} \Gamma(1+p/d) \Gamma(n+1) / \Gamma(n+1+p/d)`: the logarithm of a measured curve is fitted by this form
in its level and in d. All scales and permutations come from one pass over the distances: atoms are kept in small
groups, a scale is a number of groups, a permutation an order of them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from gnomon.geometry.neighbors import is_tensor
from gnomon.geometry.ot_sampling.nearest import Pairs, check_count, check_number, cloud, warn_grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LEAST, MOST = 0.3, 200.0  # dimensions searched
GROUPS = 64  # at least so many groups of atoms, where there are so many atoms
FIRST = 16  # fewest atoms of a scale
BLOCKS = 20  # of the jackknife over queries
MIN_ROWS = 128  # so that six scales of 16 atoms and more exist


class Curve(NamedTuple):
    """Nearest cost by number of atoms: ``n``, its mean over queries and its standard error, each of shape (K,)."""

    n: NDArray[np.int64]
    error: Array
    stderr: Array


@dataclass(frozen=True)
class Decay:
    """Nearest distances of the same queries among nested sets of atoms.

    Attributes
    ----------
    n : ndarray of int, shape (K,)
        Atoms of each scale.
    distances : ndarray, shape (n_perm, M, K)
        Of each query, for each order of the atoms; along the last axis they never grow.
    p : float
    """

    n: NDArray[np.int64]
    distances: Array
    p: float

    @property
    def costs(self) -> Array:
        """Costs, averaged over the orders, shape (M, K)."""
        return (self.distances**self.p).mean(0)

    @property
    def curve(self) -> Curve:
        costs = self.costs
        return Curve(self.n, costs.mean(0), costs.std(0, ddof=1) / np.sqrt(len(costs)))


@dataclass(frozen=True)
class DimensionFit:
    """A dimension, its standard error, 95 % interval, and two-point dimensions between neighbouring scales."""

    dimension: float
    stderr: float
    interval: tuple[float, float]
    local: Array


# --- the curve -------------------------------------------------------------------------------------------------------


def scales(n: int, count: int) -> tuple[NDArray[np.int64], int]:
    """Numbers of atoms, geometric from n / 8 (at least 16) to n in whole groups; and the size of a group."""
    size = max(1, n // GROUPS)
    wanted = np.geomspace(min(max(n / 8, FIRST), n), n, count)[:-1]
    found = size * np.maximum(np.round(wanted / size), 1).astype(np.int64)
    return np.unique(np.append(found[found < n], n)), size


def decay(queries: Any, atoms: Any, *, p: float, n_scales: int, n_perm: int, rng: np.random.RandomState,
          metric: Any = "euclidean") -> Decay:  # fmt: skip
    """Nearest distances at all scales and orders of the atoms, from one pass over the distances.

    Parameters
    ----------
    queries, atoms : array or tensor, shape (M, D), (n, D)
        No query is an atom. With ``precomputed``: the (M, n) distances, and None.
    p : float
    n_scales, n_perm : int
        Scales, and random orders of the atoms.
    rng : RandomState
    metric : str or callable
    """
    n = queries.shape[1] if metric == "precomputed" else len(atoms)
    order = rng.permutation(n)
    pairs = Pairs(queries[:, order], None, metric) if metric == "precomputed" else Pairs(queries, atoms[order], metric)
    sizes, group = scales(n, n_scales)
    scores, index = pairs.best(group)
    whole, m = n // group, len(scores)
    winners = np.empty((n_perm, m, len(sizes)), np.int64)
    each = np.arange(m)
    for winner in winners:
        columns = rng.permutation(whole)
        best = np.full(m, np.inf)
        at = np.zeros(m, np.int64)
        start = 0
        for k, size in enumerate(sizes):
            stop = size // group
            chosen = columns[start:stop]
            if size == n:  # the rest that fills no group comes last
                chosen = np.append(columns[start:], np.arange(whole, scores.shape[1]))
            local = scores[:, chosen].argmin(1)
            value = scores[each, chosen[local]]
            better = value < best
            best = np.where(better, value, best)
            at = np.where(better, index[each, chosen[local]], at)
            winner[:, k] = at
            start = stop
    pair, inverse = np.unique(winners + n * each[:, None], return_inverse=True)
    exact = pairs.distances(pair // n, pair % n)[inverse.reshape(winners.shape)]
    # scores that rounding cannot tell apart may have picked a winner that is farther by that rounding
    return Decay(sizes, np.minimum.accumulate(exact, axis=2), p)


# --- the fit ---------------------------------------------------------------------------------------------------------


def log_form(n: Any, s: float) -> Array:
    """log Gamma(n + 1) - log Gamma(n + 1 + s), s = p / d."""
    return scipy.special.gammaln(n + 1.0) - scipy.special.gammaln(n + 1.0 + s)


def fit_form(n: Any, error: Any, weight: Any, p: float) -> float:
    """Dimension whose curve is nearest to log ``error`` in weighted least squares, the level free.

    The derivative along s = p / d is brought to zero (a minimum of the sum of squares is located to half the digits
    only); a curve that does not fall within the searched range gives the end of it.
    """
    n, w = np.asarray(n, np.float64), np.asarray(weight, np.float64)
    w, y = w / w.sum(), np.log(np.maximum(error, 1e-300))

    def slope(s: float) -> float:
        residual = y - log_form(n, s)
        direction = -scipy.special.digamma(n + 1.0 + s)
        return float((w * (residual - w @ residual)) @ direction)

    low, high = p / MOST, p / LEAST
    at_low, at_high = slope(low), slope(high)
    if at_low * at_high >= 0:
        return MOST if abs(at_low) <= abs(at_high) else LEAST
    return p / float(scipy.optimize.brentq(slope, low, high, xtol=1e-15, rtol=1e-14))


def fit_dimension(found: Decay) -> DimensionFit:
    """Dimension of a measured decay, with a jackknife over queries and over the orders of the atoms.

    Raises
    ------
    ValueError
        When all nearest distances are zero.
    """
    costs = found.costs
    m = len(costs)
    mean = costs.mean(0)
    if mean[-1] <= 0:
        raise ValueError("all nearest distances are zero: a zero-dimensional support has no dimension to estimate")
    weight = 1 / np.maximum(costs.var(0, ddof=1) / (m * mean**2), 1e-12)
    d = fit_form(found.n, mean, weight, found.p)
    blocks = np.array_split(np.arange(m), min(BLOCKS, m))
    total = costs.sum(0)
    left_out = [fit_form(found.n, (total - costs[b].sum(0)) / (m - len(b)), weight, found.p) for b in blocks]
    variance = (len(blocks) - 1) * float(np.var(left_out))
    if len(found.distances) > 1:
        orders = [fit_form(found.n, (one**found.p).mean(0), weight, found.p) for one in found.distances]
        variance += float(np.var(orders, ddof=1)) / len(orders)
    stderr = float(np.sqrt(variance))
    half = float(scipy.stats.t.ppf(0.975, len(blocks) - 1)) * stderr
    local = [fit_form(found.n[k : k + 2], mean[k : k + 2], [1, 1], found.p) for k in range(len(mean) - 1)]
    return DimensionFit(d, stderr, (max(d - half, 0.0), d + half), np.array(local))


def split(X: Any, queries: int, rng: np.random.RandomState, metric: Any) -> tuple[Any, Any]:
    """Rows held out as queries, and the others as atoms."""
    order = rng.permutation(len(X))
    held, kept = order[:queries], order[queries:]
    if metric == "precomputed":
        return X[np.ix_(held, kept)], None
    if is_tensor(X):
        import torch

        return tuple(X[torch.as_tensor(rows, device=X.device)] for rows in (held, kept))  # type: ignore[return-value]
    return X[held], X[kept]


def dimension_of(X: Any, *, p: float, n_scales: int = 6, n_queries: int = 1000, n_perm: int = 5,
                 rng: np.random.RandomState, metric: Any = "euclidean") -> tuple[DimensionFit, Decay]:  # fmt: skip
    """Dimension of a checked cloud; of fewer than 128 rows it is rough, which is said."""
    if len(X) < MIN_ROWS:
        warnings.warn(f"a dimension from {len(X)} rows is rough; give the dimension, or {MIN_ROWS} rows or more",
                      UserWarning, stacklevel=3)  # fmt: skip
    queries, atoms = split(X, min(n_queries, len(X) // 4), rng, metric)
    found = decay(queries, atoms, p=p, n_scales=n_scales, n_perm=n_perm, rng=rng, metric=metric)
    return fit_dimension(found), found


class IntrinsicDimension(BaseEstimator):  # type: ignore[misc]
    r"""Intrinsic dimension in time linear in the number of points, from the decay of the nearest cost with n.

    ``min(n_queries, n / 4)`` rows are queries; :math:`\log \hat E_{n_k}` over nested sets of the others is fitted by
    the exact law of a flat torus. Boundaries lower the result, curvature and noise raise it: look at
    ``local_dimensions_``.

    Parameters
    ----------
    p : float
        Power of the distance, above 0.
    n_scales : int
        Numbers of atoms, geometric from an eighth of the atoms to all of them; 2 or more.
    n_queries : int
        At most so many queries.
    n_perm : int
        Random orders of the atoms (they cost no further distances).
    metric : {"euclidean", "cosine", "precomputed"} or callable
        ``cosine`` is the Euclidean distance between rows scaled to unit length (its square is 2 - 2 cos).
    drop_duplicates : bool
        Keep one of several equal rows.
    random_state : int, RandomState or None

    Attributes
    ----------
    dimension_ : float
    interval_ : (float, float)
        95 % of the noise of sampling, jackknife over queries and orders; boundary and curvature shift it as they do the
        estimate.
    stderr_ : float
    local_dimensions_ : ndarray, shape (n_scales - 1,)
        Between neighbouring scales, from coarse to fine.
    rate_ : float
        p / dimension: errors fall as n to the minus this.
    curve_ : Curve
        ``n``, ``error`` (unit of distance ** p), ``stderr``.

    Raises
    ------
    ValueError
        Fewer than 128 rows, NaN or infinity, all points equal, parameters out of range.

    References
    ----------
    Genans and Wintenberger, arXiv 2602.04335.
    """

    def __init__(self, p: float = 2, n_scales: int = 6, n_queries: int = 1000, n_perm: int = 5, *,
                 metric: Any = "euclidean", drop_duplicates: bool = False, random_state: Any = 0):  # fmt: skip
        self.p = p
        self.n_scales = n_scales
        self.n_queries = n_queries
        self.n_perm = n_perm
        self.metric = metric
        self.drop_duplicates = drop_duplicates
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> IntrinsicDimension:
        """Estimate from points X, shape (n, D), n >= 128 (or their n x n distances); y is ignored."""
        p = check_number("p", self.p)
        n_scales, n_perm = check_count("n_scales", self.n_scales, 2), check_count("n_perm", self.n_perm, 1)
        n_queries = check_count("n_queries", self.n_queries, 2)
        X = cloud(X, "X", self.metric, MIN_ROWS, estimator=self, drop_duplicates=self.drop_duplicates)
        fit, found = dimension_of(X, p=p, n_scales=n_scales, n_queries=n_queries, n_perm=n_perm,
                                  rng=check_random_state(self.random_state), metric=self.metric)  # fmt: skip
        warn_grid(found.distances[0, :, -1], "X")
        self.dimension_, self.stderr_, self.interval_ = fit.dimension, fit.stderr, fit.interval
        self.local_dimensions_, self.curve_ = fit.local, found.curve
        self.rate_ = p / fit.dimension
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.metric == "precomputed"
        return tags
