r"""Sampling error of optimal transport without a solver: the semi-dual at zero potential.

:math:`OT_c(\rho, \rho_n) = \max_g H(g)`, :math:`H(g) = E_X \min_j [c(X, y_j) - g_j] + \frac1n \sum_j g_j`. At g = 0
nothing is optimised: :math:`E_n = H(0) = E_X \min_j c(X, y_j)` is a lower bound, and for dimensions d > 2p it has the
rate and the dependence on the density of the optimal value, up to a constant R(d, p) that tends to 1 as d grows.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from gnomon.geometry.neighbors import check_rows, is_tensor, same_width
from gnomon.geometry.ot_sampling.dimension import DimensionFit, decay, dimension_of, fit_dimension, split
from gnomon.geometry.ot_sampling.nearest import (
    BLOCK_BYTES,
    Pairs,
    check_count,
    check_metric,
    check_number,
    cloud,
    leave_one_out,
    pairwise,
    warn_grid,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

MIN_ROWS = 32
SCALES, ORDERS = 6, 5
BATCH = 32  # queries of an ascent step
# R(d, p) = OT / E_n on the flat torus at n = 400, extrapolated to infinitely many draws of rho: simulate_ratio in study.py
RATIOS: dict[int, dict[int, float]] = {
    1: {3: 1.0725, 4: 1.031, 5: 1.0149, 6: 1.0084, 8: 1.0022, 10: 1.0022, 14: 1.0004, 20: 1.0002, 32: 1.0, 64: 1.0},
    2: {5: 1.0308, 6: 1.0188, 7: 1.0101, 8: 1.0084, 10: 1.004, 14: 1.0011, 20: 1.0007, 32: 1.0001, 64: 1.0001},
}


def ratio(d: float, p: float) -> float:
    """R(d, p), the constant between the optimal value and the semi-dual at zero, interpolated in 1 / d.

    Parameters
    ----------
    d : float
        From 3 (p = 1) or 5 (p = 2) on; from 64 on it goes to 1 as 1 / d does to 0.
    p : {1, 2}

    Raises
    ------
    ValueError
        For another p, or a smaller d: there OT and E_n fall at different rates and no constant exists.
    """
    if p not in RATIOS:
        raise ValueError(f"calibrate: R(d, p) is tabulated for p = 1 and 2, got p = {p:g}")
    table = RATIOS[int(p)]
    if d < min(table):
        raise ValueError(f"calibrate: R(d, {p:g}) is tabulated from d = {min(table)} on, got d = {d:.3g}")
    inverse = [0.0, *(1 / key for key in sorted(table, reverse=True))]
    return float(np.interp(1 / d, inverse, [1.0, *(table[key] for key in sorted(table, reverse=True))]))


def sampling_error(X: Any, X_query: Any, p: float = 2, *, metric: Any = "euclidean") -> Any:
    r"""The semi-dual at zero, :math:`\hat E_n = \frac1M \sum_m \min_j \|x_m - y_j\|^p`.

    Parameters
    ----------
    X, X_query : array or torch.Tensor, shape (n, D), (M, D)
        Atoms, and fresh draws. If one is a tensor the result is a tensor, differentiable in both (the nearest atoms are
        held fixed, which is exact away from ties).
    p : float
        Power, above 0.
    metric : {"euclidean", "cosine"} or callable

    Returns
    -------
    float or torch scalar
        In the unit of distance ** p.

    Raises
    ------
    ValueError
        Shapes that do not match, NaN or infinity, p <= 0.
    """
    p = check_number("p", p)
    if check_metric(metric) == "precomputed":
        raise ValueError("metric: 'precomputed' has no atoms here; the mean of distances.min(1) ** p is the value")
    X, X_query = check_rows(X, "X"), check_rows(X_query, "X_query")
    same_width(X, X_query, "X", "X_query")
    if metric == "cosine":
        X, X_query = (A / ((A * A).sum(1) ** 0.5)[:, None] for A in (X, X_query))
    pairs = Pairs(X_query, X, metric)
    _, index = pairs.best(len(X))
    if not (is_tensor(X) or is_tensor(X_query)):
        return float((pairs.distances(np.arange(len(index)), index[:, 0]) ** p).mean())
    import torch

    like = X if is_tensor(X) else X_query
    X, X_query = (torch.as_tensor(A).to(like.device) for A in (X, X_query))
    squared = ((X_query - X[torch.as_tensor(index[:, 0], device=like.device)]) ** 2).sum(1)
    return (squared if p == 2 else squared ** (p / 2)).mean()


class SampleSize(NamedTuple):
    """Rows needed, and their 95 % interval."""

    n: float
    low: float
    high: float


def planned(n: int, error: float, stderr: float, fit: DimensionFit, p: float, delta: float) -> SampleSize:
    """n (error / delta)^(d / p), with the interval of the error's and the dimension's own."""
    ratio, d = math.log(error / delta), fit.dimension
    se = math.hypot(ratio / p * fit.stderr, d / p * stderr / error)
    centre, half = math.log(n) + d / p * ratio, 1.959964 * se
    return SampleSize(*(math.exp(min(v, 700.0)) for v in (centre, centre - half, centre + half)))


def required_samples(X: Any, delta: float, p: float = 2, *, metric: Any = "euclidean",
                     random_state: Any = 0) -> SampleSize:  # fmt: skip
    """Rows needed so that OT between the population and a sample of it is about ``delta``.

    Parameters
    ----------
    X : array or tensor, shape (n, D)
        A sample, n >= 32.
    delta : float
        Target of the sampling error E_n, above 0, in the unit of distance ** p.
    p, metric, random_state
        See :class:`SamplingError`.

    Raises
    ------
    ValueError
        See :class:`SamplingError`; delta <= 0.
    """
    return SamplingError(p, metric=metric, random_state=random_state).fit(X).required_samples(delta)


class SamplingError(BaseEstimator):  # type: ignore[misc]
    r"""How far a sample is from its population in optimal transport, before any solver is run.

    :math:`\hat E_n`, the mean cost from a fresh draw to its nearest atom, is unbiased for a lower bound of
    :math:`OT_c(\rho, \rho_n)` that has its rate and, for d > 2p, its value up to R(d, p) (1.03 at d = 5 and p = 2,
    falling to 1; more near a boundary). It speaks of the sample against the population, not of the distance between two samples.

    Parameters
    ----------
    p : float
        The cost is distance ** p; above 0.
    reference : {"split", "loo"}
        ``split`` holds out a quarter of the rows as queries: the error is that of the other three quarters.
        ``loo`` measures each row against all the others: that of n - 1 atoms; its standard error is optimistic.
    upper : bool
        Also solve one OT problem, of the atoms against the queries (of two halves with ``loo``): its mean is an upper
        bound.
    calibrate : bool
        Multiply by R(d, p), d the estimated dimension.
    ascent_steps : int
        Improve g by so many averaged stochastic-ascent steps, on half of the queries; the other half evaluates.
    metric : {"euclidean", "cosine", "precomputed"} or callable
        ``cosine`` is the Euclidean distance between rows scaled to unit length.
    drop_duplicates : bool
        Keep one of several equal rows.
    random_state : int, RandomState or None

    Attributes
    ----------
    error_, stderr_ : float
        In the unit of distance ** p.
    n_atoms_, n_queries_ : int
        What the error is the error of, and from how many queries.
    bracket_ : (float, float)
        The lower bound, and with ``upper`` the upper one (else infinity).
    valid_ : bool
        Whether d > 2p; else the error falls slower than the bound (a UserWarning says so).
    rate_ : float
        The optimal value falls as n to the minus this: p / d, or where not valid min(p / d, 1 / 2).
    dimension_, dimension_interval_ : float, (float, float)
    ratio_ : float
        R(d, p) applied, 1 without ``calibrate``.
    curve_ : Curve
        The nearest cost by number of atoms.
    ascended_ : float
        H(g) after the ascent (with ``ascent_steps``).

    Raises
    ------
    ValueError
        Fewer than 32 rows, NaN or infinity, all points equal, parameters out of range.

    References
    ----------
    Genans and Wintenberger, arXiv 2602.04335.
    """

    def __init__(self, p: float = 2, reference: str = "split", upper: bool = False, calibrate: bool = False, *,
                 ascent_steps: int = 0, metric: Any = "euclidean", drop_duplicates: bool = False,
                 random_state: Any = 0):  # fmt: skip
        self.p = p
        self.reference = reference
        self.upper = upper
        self.calibrate = calibrate
        self.ascent_steps = ascent_steps
        self.metric = metric
        self.drop_duplicates = drop_duplicates
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, X_query: Any = None) -> SamplingError:
        """Estimate from a sample.

        Parameters
        ----------
        X : array or tensor, shape (n, D)
            n >= 32; with ``precomputed`` the n x n distances.
        y : ignored
        X_query : array or tensor, shape (M, D), optional
            Fresh draws of the population, none of them in X: all of X are then atoms. With ``precomputed`` the M x n
            distances.
        """
        p = check_number("p", self.p)
        if self.reference not in ("split", "loo"):
            raise ValueError(f"reference: got {self.reference!r}; expected 'split' or 'loo'")
        steps = check_count("ascent_steps", self.ascent_steps, 0)
        X = cloud(X, "X", self.metric, MIN_ROWS, estimator=self, drop_duplicates=self.drop_duplicates)
        rng = check_random_state(self.random_state)
        loo = self.reference == "loo" and X_query is None
        if loo:
            costs = leave_one_out(X, self.metric) ** p
            fit, found = dimension_of(X, p=p, n_scales=SCALES, n_perm=ORDERS, rng=rng, metric=self.metric)
            self.n_atoms_ = len(X) - 1
        else:
            if X_query is None:
                queries, atoms = split(X, len(X) // 4, rng, self.metric)
            else:
                queries, atoms = self._queries(X_query, X), X
            given = None if self.metric == "precomputed" else atoms
            found = decay(queries, given, p=p, n_scales=SCALES, n_perm=ORDERS, rng=rng, metric=self.metric)
            fit, costs = fit_dimension(found), found.distances[0, :, -1] ** p
            self.n_atoms_ = int(found.n[-1])
        warn_grid(costs, "X")
        self._fit, self._p = fit, p
        self.n_queries_ = len(costs)
        lower = float(costs.mean())
        self.dimension_, self.dimension_interval_, self.curve_ = fit.dimension, fit.interval, found.curve
        self.valid_ = fit.dimension > 2 * p
        self.rate_ = p / fit.dimension if self.valid_ else min(p / fit.dimension, 0.5)
        if not self.valid_:
            warnings.warn(f"dimension {fit.dimension:.2g} is not above 2p = {2 * p:g}: OT of the sample falls as n^-{self.rate_:.2g}, "
                          "slower than this bound, which is therefore no estimate of it", UserWarning, stacklevel=2)  # fmt: skip
        self.ratio_ = ratio(fit.dimension, p) if self.calibrate and self.valid_ else 1.0
        self._error, self._se = lower, float(costs.std(ddof=1)) / math.sqrt(len(costs))
        self.error_, self.stderr_ = lower * self.ratio_, self._se * self.ratio_
        if loo and (self.upper or steps):
            queries, atoms = split(X, len(X) // 2, rng, self.metric)
        self.bracket_ = (lower, self._upper(queries, atoms) if self.upper else math.inf)
        if steps:
            self.ascended_ = ascend(Pairs(queries, atoms, self.metric), p, steps, lower, rng)
        return self

    def _queries(self, X_query: Any, X: Any) -> Any:
        queries = check_rows(X_query, "X_query", min_rows=2)
        same_width(queries, X, "X_query", "X")
        return queries / ((queries * queries).sum(1) ** 0.5)[:, None] if self.metric == "cosine" else queries

    def _upper(self, queries: Any, atoms: Any) -> float:
        """Convexity: the mean of OT(rho_n, rho'_m) over rho'_m is at least OT(rho, rho_n)."""
        cost = queries**self._p if self.metric == "precomputed" else pairwise(queries, atoms, self.metric, self._p)
        return exact_cost(cost)

    def required_samples(self, delta: float) -> SampleSize:
        """Rows needed for a sampling error E_n of ``delta`` (above 0), with a 95 % interval."""
        check_is_fitted(self)
        return planned(self.n_atoms_, self._error, self._se, self._fit, self._p, check_number("delta", delta))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.metric == "precomputed"
        return tags


def exact_cost(cost: Array) -> float:
    """Exact OT cost between uniform weights, by POT's network simplex."""
    import ot

    return float(ot.emd2([], [], np.ascontiguousarray(cost), numItermax=10_000_000))


def semidual(pairs: Pairs, p: float, g: Array) -> float:
    """H(g), the mean over all queries, a block of them at a time; at most OT between queries and atoms, for any g."""
    m, n = pairs.shape
    step = max(1, BLOCK_BYTES // (8 * n))
    total = sum(
        float((_cost_rows(pairs, np.arange(s, min(s + step, m)), p) - g).min(1).sum()) for s in range(0, m, step)
    )
    return total / m + float(g.mean())


def ascend(pairs: Pairs, p: float, steps: int, scale: float, rng: np.random.RandomState) -> float:
    """H at the average of ``steps`` stochastic-ascent steps from zero; queries that climb are not those that evaluate."""
    m, n = pairs.shape
    order = rng.permutation(m)
    climb, judge = order[: m // 2], order[m // 2 :]
    g, mean = np.zeros(n), np.zeros(n)
    for t in range(1, steps + 1):
        batch = climb[rng.randint(len(climb), size=BATCH)]
        served = (_cost_rows(pairs, batch, p) - g).argmin(1)
        gradient = 1 / n - np.bincount(served, minlength=n) / BATCH
        g += scale / math.sqrt(t) * gradient
        mean += (g - mean) / t
    rest = Pairs(pairs.queries[judge], pairs.atoms, pairs.metric)
    return semidual(rest, p, mean)


def _cost_rows(pairs: Pairs, rows: NDArray[np.int64], p: float) -> Array:
    if pairs.metric == "precomputed":
        return np.asarray(pairs.queries[rows], np.float64) ** p
    return pairwise(pairs.queries[rows], pairs.atoms, pairs.metric, p)


def gamma_law(n: Any, d: float, p: float) -> Any:
    """E min^p among n atoms on a flat torus of dimension d and volume 1, up to wrap-around terms."""
    log_volume = d / 2 * math.log(math.pi) - math.lgamma(d / 2 + 1)
    return np.exp(-p / d * log_volume + math.lgamma(1 + p / d) + scipy.special.gammaln(n + 1.0)
                  - scipy.special.gammaln(n + 1.0 + p / d))  # fmt: skip
