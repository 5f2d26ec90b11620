"""Distances between two samples without their sampling bias: calibrated Sinkhorn, and Richardson extrapolation."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from gnomon.geometry.neighbors import same_width
from gnomon.geometry.ot_sampling.dimension import MIN_ROWS as DIMENSION_ROWS
from gnomon.geometry.ot_sampling.dimension import dimension_of
from gnomon.geometry.ot_sampling.error import MIN_ROWS, exact_cost
from gnomon.geometry.ot_sampling.nearest import (
    check_count,
    check_number,
    cloud,
    leave_one_out,
    pairwise,
)
from gnomon.geometry.ot_sampling.sinkhorn import MAX_ITER, TOLERANCE, Entropic, sinkhorn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Rows = NDArray[np.int64]

HIGH_DIMENSION = 30.0
ENTROPIC_KAPPA = 0.25
BASES = ("plugin", "entropic", "sinkhorn")
RULES = ("dense", "balanced")


class Costs:
    """The costs within and between two checked clouds; the parts within are made when they are asked for."""

    def __init__(self, X: Any, Y: Any, XY: Any, metric: Any, p: float):
        self.X, self.Y, self.metric, self.p = X, Y, metric, p
        self.xy: Array = XY**p if metric == "precomputed" else pairwise(X, Y, metric, p)
        self._within: dict[int, Array] = {}

    def made_within(self, side: int) -> Array:
        """Costs within X (0) or Y (1), made anew."""
        A = (self.X, self.Y)[side]
        return A**self.p if self.metric == "precomputed" else pairwise(A, A, self.metric, self.p)

    def within(self, side: int) -> Array:
        """The same, kept."""
        if side not in self._within:
            self._within[side] = self.made_within(side)
        return self._within[side]


def two_clouds(estimator: Any, X: Any, Y: Any, XY: Any, p: float) -> Costs:
    """Check two clouds and give their costs."""
    if Y is None:
        raise ValueError("Y: got None; expected the second cloud (requires y to be passed, but the target y is None)")
    X = cloud(X, "X", estimator.metric, MIN_ROWS, estimator=estimator)
    Y = cloud(Y, "Y", estimator.metric, MIN_ROWS)
    if estimator.metric != "precomputed":
        same_width(X, Y, "X", "Y")
    else:
        XY = np.asarray(XY, np.float64) if XY is not None else np.empty(0)
        if XY.shape != (len(X), len(Y)) or not np.isfinite(XY).all() or (XY < 0).any():
            raise ValueError(f"XY: got shape {XY.shape}; expected the {len(X)} x {len(Y)} distances between the clouds")
    return Costs(X, Y, XY, estimator.metric, p)


def divergence(xy: Any, xx: Any, yy: Any, epsilon: float, *, tol: float = TOLERANCE,
               max_iter: int = MAX_ITER) -> tuple[float, Entropic]:  # fmt: skip
    """S_eps = OT_eps(x, y) - OT_eps(x, x) / 2 - OT_eps(y, y) / 2, and the solved problem between the clouds."""
    between = sinkhorn(xy, epsilon, tol=tol, max_iter=max_iter)
    own = [sinkhorn(part, epsilon, symmetric=True, tol=tol, max_iter=max_iter).value for part in (xx, yy)]
    return between.value - sum(own) / 2, between


def dense_error(within: Array) -> float:
    """Leave-one-out nearest cost from the costs within a cloud."""
    apart = within.copy()
    np.fill_diagonal(apart, np.inf)
    return float(apart.min(1).mean())


class CalibratedSinkhorn(BaseEstimator):  # type: ignore[misc]
    r"""Sinkhorn divergence with the regularisation that the sample resolves.

    :math:`\varepsilon_n = \kappa (\hat E_n^\rho + \hat E_n^\mu) / 2`, leave-one-out: the blur of the plan is the gap
    between neighbouring atoms.

    Parameters
    ----------
    kappa : float
        Above 0.
    epsilon_rule : {"dense", "balanced"}
        ``balanced``: :math:`\kappa \sqrt{\hat E_n v}`, v the total variance over the dimension; kept for comparison.
    p : float
        The cost is distance ** p; above 0.
    metric : {"euclidean", "cosine", "precomputed"} or callable
        See :class:`SamplingError`; with ``precomputed`` give ``fit`` the distances within X, within Y and ``XY``.
    tol, max_iter : float, int
        L1 error of the marginals to stop at; beyond ``max_iter`` iterations a ConvergenceWarning says how far it is.
    random_state : int, RandomState or None
        For the dimension that ``balanced`` needs.

    Attributes
    ----------
    epsilon_ : float
        In the unit of the cost.
    divergence_ : float
        S_epsilon, in the unit of the cost: for p = 2 it stands for W2 squared.
    entropic_value_, transport_cost_ : float
        OT_epsilon with its KL term, and the cost of its plan without it.
    n_iter_, marginal_error_ : int, float
        Of the problem between the clouds.
    potentials_ : (ndarray, ndarray)

    Raises
    ------
    ValueError
        Fewer than 32 rows, clouds of different width, NaN or infinity, all points equal, parameters out of range.

    References
    ----------
    Genans and Wintenberger, arXiv 2602.04335; Feydy et al., AISTATS 2019 (divergence).
    """

    def __init__(self, kappa: float = 1.0, epsilon_rule: str = "dense", *, p: float = 2, metric: Any = "euclidean",
                 tol: float = TOLERANCE, max_iter: int = MAX_ITER, random_state: Any = 0):  # fmt: skip
        self.kappa = kappa
        self.epsilon_rule = epsilon_rule
        self.p = p
        self.metric = metric
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, Y: Any, *, XY: Any = None) -> CalibratedSinkhorn:
        """Estimate between the samples X, shape (n, D), and Y, shape (m, D)."""
        kappa, p, tol = (check_number(name, getattr(self, name)) for name in ("kappa", "p", "tol"))
        max_iter = check_count("max_iter", self.max_iter, 1)
        if self.epsilon_rule not in RULES:
            raise ValueError(f"epsilon_rule: got {self.epsilon_rule!r}; expected one of {', '.join(RULES)}")
        costs = two_clouds(self, X, Y, XY, p)
        errors = [float((leave_one_out(A, self.metric) ** p).mean()) for A in (costs.X, costs.Y)]
        self.epsilon_ = kappa * sum(errors) / 2
        if self.epsilon_rule == "balanced":
            self.epsilon_ = kappa * float(np.sqrt(sum(errors) / 2 * self._variance(costs, p)))
        if not self.epsilon_ > 0:
            raise ValueError(
                "X, Y: every point has a duplicate, so that the nearest costs are zero; drop the duplicates"
            )
        options: dict[str, Any] = {"tol": tol, "max_iter": max_iter}
        between = sinkhorn(costs.xy, self.epsilon_, **options)
        costs.xy = np.empty((0, 0))  # one matrix of costs at a time, beside the kernel
        own = [sinkhorn(costs.made_within(k), self.epsilon_, symmetric=True, **options).value for k in (0, 1)]
        self.divergence_ = between.value - sum(own) / 2
        self.entropic_value_, self.transport_cost_ = between.value, between.cost
        self.n_iter_, self.marginal_error_ = between.n_iter, between.marginal_error
        self.potentials_ = (between.f, between.g)
        return self

    def _variance(self, costs: Costs, p: float) -> float:
        """Total variance over the dimension, averaged over the clouds, in the unit of the cost."""
        rng = check_random_state(self.random_state)
        found = []
        for side, A in enumerate((costs.X, costs.Y)):
            d = dimension_of(A, p=p, rng=rng, metric=self.metric)[0].dimension
            found.append(
                float(costs.made_within(side).mean()) / 2 / d
            )  # half the mean squared distance is the variance
        return sum(found) / 2


class RichardsonWasserstein(BaseEstimator):  # type: ignore[misc]
    r"""Transport cost between two samples, its sampling bias removed by Richardson extrapolation in n.

    The cost :math:`B_n` of two samples of n has a bias of about :math:`C n^{-2/d}` (p = 2), so that with ratio r

    .. math:: T = \frac{r^{2/d} B_n - \overline{B_{n/r}}}{r^{2/d} - 1}.

    :math:`B_{n/r}` is averaged over random splits of both samples into r complementary folds each, independently for X
    and Y. Below d = 4 the plug-in cost is good already and extrapolation mostly adds variance.

    Parameters
    ----------
    ratio : float
        r, above 1; ``floor(ratio)`` folds of ``floor(n / ratio)`` rows.
    base : {"plugin", "entropic", "sinkhorn"}
        Exact OT; the cost of the entropic plan at a quarter of the nearest cost; the Sinkhorn divergence at the
        nearest cost, each at its own n.
    n_splits : int
        Random splits of the coarse term.
    n_bags : int
        1: the whole samples. More: T is averaged over so many bags of 80 % of both samples, and has an error.
    dimension : "auto" or float
        Intrinsic (never ambient) dimension; ``auto``: the mean of both samples' estimates.
    order : float, optional
        The bias falls as n^(-order / d); default p. 4 suits ``sinkhorn`` where the map is near an isometry.
    p : float
        The cost is distance ** p; above 0.
    metric : {"euclidean", "cosine", "precomputed"} or callable
        See :class:`SamplingError`; with ``precomputed`` give ``fit`` the distances within X, within Y and ``XY``.
    random_state : int, RandomState or None

    Attributes
    ----------
    distance_ : float
        T, in the unit of the cost (for p = 2 it stands for W2 squared). May be negative.
    distance_clipped_ : float
        The same, not below 0.
    plugin_ : float
        The base on all rows (on average over the bags).
    bias_estimate_ : float
        ``plugin_ - distance_``.
    dimension_ : float
    amplification_ : float
        r^(order/d) / (r^(order/d) - 1): what multiplies the noise of the base.
    stderr_, interval_ : float, (float, float)
        Delete-d jackknife over the bags, and 95 %; NaN with a single bag.

    Raises
    ------
    ValueError
        Fewer than 32 rows, clouds of different width, NaN or infinity, all points equal, parameters out of range.

    References
    ----------
    Genans and Wintenberger, arXiv 2602.04335.
    """

    def __init__(self, ratio: float = 2, base: str = "plugin", n_splits: int = 3, n_bags: int = 1,
                 dimension: Any = "auto", *, order: float | None = None, p: float = 2, metric: Any = "euclidean",
                 random_state: Any = 0):  # fmt: skip
        self.ratio = ratio
        self.base = base
        self.n_splits = n_splits
        self.n_bags = n_bags
        self.dimension = dimension
        self.order = order
        self.p = p
        self.metric = metric
        self.random_state = random_state

    def fit(self, X: Any, Y: Any, *, XY: Any = None) -> RichardsonWasserstein:
        """Estimate between the samples X, shape (n, D), and Y, shape (m, D)."""
        p = check_number("p", self.p)
        ratio = check_number("ratio", self.ratio, above=1.0)
        order = p if self.order is None else check_number("order", self.order)
        n_splits, n_bags = check_count("n_splits", self.n_splits, 1), check_count("n_bags", self.n_bags, 1)
        if self.base not in BASES:
            raise ValueError(f"base: got {self.base!r}; expected one of {', '.join(BASES)}")
        if self.dimension != "auto":
            check_number("dimension", self.dimension)
        costs = two_clouds(self, X, Y, XY, p)
        rng = check_random_state(self.random_state)
        if self.dimension == "auto":
            if min(len(costs.X), len(costs.Y)) < DIMENSION_ROWS:
                warnings.warn(f"X, Y: the dimension from fewer than {DIMENSION_ROWS} rows is rough; give dimension=",
                              UserWarning, stacklevel=2)  # fmt: skip
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                self.dimension_ = sum(dimension_of(A, p=p, rng=rng, metric=self.metric)[0].dimension
                                      for A in (costs.X, costs.Y)) / 2  # fmt: skip
        else:
            self.dimension_ = float(self.dimension)
        n, m = costs.xy.shape
        power = ratio ** (order / self.dimension_)
        self.amplification_ = power / (power - 1)
        if self.dimension_ > HIGH_DIMENSION:
            warnings.warn(f"dimension {self.dimension_:.1f}: extrapolation multiplies the noise of the base by "
                          f"{self.amplification_:.3g}", UserWarning, stacklevel=2)  # fmt: skip
        found = []
        for _ in range(n_bags):
            share = 0.8 if n_bags > 1 else 1.0
            rows, columns = rng.permutation(n)[: round(share * n)], rng.permutation(m)[: round(share * m)]
            found.append(self._extrapolated(costs, rows, columns, ratio, order, n_splits, rng))
        values = np.array([t for t, _ in found])
        self.distance_ = float(values.mean())
        self.plugin_ = float(np.mean([b for _, b in found]))
        self.bias_estimate_ = self.plugin_ - self.distance_
        self.distance_clipped_ = max(self.distance_, 0.0)
        # bags of 0.8 n without replacement: the delete-d jackknife, (n - d) / d times their variance
        self.stderr_ = float(np.sqrt(0.8 / 0.2 * values.var(ddof=1))) if n_bags > 1 else float("nan")
        half = float(scipy.stats.t.ppf(0.975, max(n_bags - 1, 1))) * self.stderr_
        self.interval_ = (self.distance_ - half, self.distance_ + half)
        return self

    def _extrapolated(self, costs: Costs, rows: Rows, columns: Rows, ratio: float, order: float, n_splits: int,
                      rng: np.random.RandomState) -> tuple[float, float]:  # fmt: skip
        """T on these rows, and the base."""
        fine = self._base(costs, rows, columns)
        n, m = int(len(rows) / ratio), int(len(columns) / ratio)
        coarse = []
        for _ in range(n_splits):
            x, y = rng.permutation(rows), rng.permutation(columns)
            coarse += [self._base(costs, x[k * n : (k + 1) * n], y[k * m : (k + 1) * m]) for k in range(int(ratio))]
        true_ratio = float(np.sqrt(len(rows) / n * len(columns) / m))  # whole rows
        return richardson(fine, float(np.mean(coarse)), true_ratio, order / self.dimension_), fine

    def _base(self, costs: Costs, rows: Rows, columns: Rows) -> float:
        xy = costs.xy[np.ix_(rows, columns)]
        if self.base == "plugin":
            return exact_cost(xy)
        xx, yy = costs.within(0)[np.ix_(rows, rows)], costs.within(1)[np.ix_(columns, columns)]
        epsilon = (dense_error(xx) + dense_error(yy)) / 2
        if self.base == "entropic":
            return sinkhorn(xy, ENTROPIC_KAPPA * epsilon).cost
        return divergence(xy, xx, yy, epsilon)[0]


def richardson(fine: float, coarse: float, ratio: float, rate: float) -> float:
    """W from B_n = W + C n^-rate and its value at n / ratio."""
    power = ratio**rate
    return (power * fine - coarse) / (power - 1)
