"""Intervals and rank statistics: what the judge of claims rests on, usable alone.

Every interval is two-sided. Functions that say so work on batches: the last axes are the sample, the ones before it
are independent problems.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate, its interval, and where there are such, its standard error and degrees of freedom."""

    estimate: Any
    low: Any
    high: Any
    se: Any = np.nan
    df: Any = np.nan


def student(mean: Any, se: Any, df: Any, level: float = 0.95) -> Interval:
    """The interval mean +- t_df se."""
    half = scipy.stats.t.ppf(1 - (1 - _level(level)) / 2, df) * se
    return Interval(mean, mean - half, mean + half, se, df)


def t_interval(x: ArrayLike, level: float = 0.95) -> Interval:
    r"""Student's t interval of a mean, :math:`\bar x \pm t_{n-1} s / \sqrt n`.

    Parameters
    ----------
    x : array_like, shape (..., n)
        Independent numbers, n >= 2; paired differences for a comparison.
    level : float
        Confidence, in (0, 1).

    Raises
    ------
    ValueError
        For fewer than two numbers, values that are not finite, or a level outside (0, 1).
    """
    x = _finite("x", x)
    n = x.shape[-1] if x.ndim else 0
    if n < 2:
        raise ValueError(f"x has {n} numbers: an interval needs 2 or more")
    se = x.std(-1, ddof=1) / np.sqrt(n)
    return student(x.mean(-1), se, n - 1, level)


def two_way(x: ArrayLike, level: float = 0.95) -> Interval:
    r"""Interval of the mean of seeds crossed with items, both random (no replication within a seed and item).

    The variance of the mean is :math:`(MS_s + MS_i - MS_r) / (SI)`, and at least the larger of :math:`MS_s / (SI)` and
    :math:`MS_i / (SI)`; the degrees of freedom are Satterthwaite's for that combination.

    Parameters
    ----------
    x : array_like, shape (..., S, I)
        One number for each seed and item, S >= 2 and I >= 2.
    level : float
        Confidence, in (0, 1).

    References
    ----------
    F. E. Satterthwaite, "An approximate distribution of estimates of variance components", Biometrics Bulletin 2
    (1946); S. R. Searle, G. Casella, C. E. McCulloch, *Variance Components* (1992), section 4.
    """
    x = _finite("x", x)
    if x.ndim < 2 or min(x.shape[-2:]) < 2:
        raise ValueError(f"x has shape {x.shape}: expected (..., S, I) with S >= 2 seeds and I >= 2 items")
    seeds, items = x.shape[-2:]
    mean = x.mean((-2, -1), keepdims=True)
    by_seed, by_item = x.mean(-1, keepdims=True), x.mean(-2, keepdims=True)
    ms_seed = items * ((by_seed - mean) ** 2).sum((-2, -1)) / (seeds - 1)
    ms_item = seeds * ((by_item - mean) ** 2).sum((-2, -1)) / (items - 1)
    ms_rest = ((x - by_seed - by_item + mean) ** 2).sum((-2, -1)) / ((seeds - 1) * (items - 1))
    combined = ms_seed + ms_item - ms_rest
    larger = np.maximum(ms_seed, ms_item)
    with np.errstate(divide="ignore", invalid="ignore"):
        satterthwaite = combined**2 / (
            ms_seed**2 / (seeds - 1) + ms_item**2 / (items - 1) + ms_rest**2 / ((seeds - 1) * (items - 1))
        )
    tie = np.isclose(ms_seed, ms_item, rtol=1e-9, atol=0.0)  # rounding must not choose between the factors
    of_larger = np.where(tie, min(seeds, items) - 1, np.where(ms_seed > ms_item, seeds - 1, items - 1))
    df = np.where(combined > larger * (1 + 1e-9), satterthwaite, of_larger)
    df = np.where(larger > 0, np.maximum(df, 1.0), min(seeds, items) - 1)
    return student(x.mean((-2, -1)), np.sqrt(np.maximum(combined, larger) / (seeds * items)), df, level)


def binomial(k: ArrayLike, n: ArrayLike, level: float = 0.95) -> Interval:
    """The Clopper-Pearson interval of a rate.

    Parameters
    ----------
    k, n : array_like
        Events among trials, 0 <= k <= n; need not be whole (effective numbers).
    level : float
        Confidence, in (0, 1).
    """
    k, n = _finite("k", k), _finite("n", n)
    if np.any(k < 0) or np.any(k > n) or np.any(n <= 0):
        raise ValueError("k events among n trials: expected 0 <= k <= n and n > 0")
    tail = (1 - _level(level)) / 2
    beta = scipy.stats.beta
    low = np.where(k > 0, beta.ppf(tail, np.maximum(k, 1e-300), n - k + 1), 0.0)
    high = np.where(k < n, beta.ppf(1 - tail, k + 1, np.maximum(n - k, 1e-300)), 1.0)
    p = k / n
    return Interval(p, low, high, np.sqrt(p * (1 - p) / n), np.inf)


def crossed_binomial(x: ArrayLike, level: float = 0.95) -> Interval:
    """The rate of a 0/1 outcome of seeds crossed with items: Clopper-Pearson at the effective number of trials.

    The trials are divided by the design effect, the ratio of the :func:`two_way` variance to the binomial one (at
    least 1), and by the ratio of squared t quantiles that accounts for how well that variance is known.

    Parameters
    ----------
    x : array_like, shape (S, I)
        0/1 outcomes.
    level : float
        Confidence, in (0, 1).

    References
    ----------
    E. L. Korn, B. I. Graubard, "Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data", Survey Methodology 24 (1998).
    """
    x = _finite("x", x)
    wide = two_way(x, level)
    p, trials = float(x.mean()), x.size
    if p in (0.0, 1.0):
        trials = max(x.shape)  # no variance to estimate: as if the seeds, or the items, were copies of each other
    else:
        effect = max(1.0, float(wide.se**2) * trials / (p * (1 - p)))
        quantile = scipy.stats.t.ppf(1 - (1 - level) / 2, [trials - 1, float(wide.df)])
        trials = trials / effect * (quantile[0] / quantile[1]) ** 2 if effect > 1 else trials
    return binomial(p * trials, trials, level)


def mcnemar(b: int, c: int) -> float:
    """The exact two-sided McNemar p of paired 0/1 outcomes that differ in ``b`` pairs one way, in ``c`` the other."""
    if min(b, c) < 0:
        raise ValueError(f"b {b} and c {c}: expected counts")
    return float(scipy.stats.binomtest(b, b + c).pvalue) if b + c else 1.0


def tango(b: int, c: int, n: int, level: float = 0.95) -> Interval:
    """Tango's score interval for the difference of paired proportions, (b - c) / n.

    Keeps its width where few or no pairs differ, so that ties and margins can be judged on 0/1 outcomes.

    Parameters
    ----------
    b, c : int
        Pairs that differ one way and the other.
    n : int
        All pairs.
    level : float
        Confidence, in (0, 1).

    References
    ----------
    T. Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample
    design", Statistics in Medicine 17 (1998).
    """
    if min(b, c) < 0 or b + c > n or n < 1:
        raise ValueError(f"b {b}, c {c}, n {n}: expected counts with b + c <= n")
    z = scipy.stats.norm.ppf(1 - (1 - _level(level)) / 2)
    d = (b - c) / n

    def score(delta: float) -> float:
        linear = -b - c + (2 * n - b + c) * delta
        discordant = (np.sqrt(linear**2 + 8 * n * c * delta * (1 - delta)) - linear) / (4 * n)
        variance = n * (2 * discordant + delta * (1 - delta))
        gap = b - c - n * delta
        return float(gap / np.sqrt(max(variance, 1e-300)))

    def end(side: int) -> float:
        edge = side * (1 - 1e-12)
        if side * d >= side * edge or abs(score(edge)) < z:
            return float(side)
        return float(scipy.optimize.brentq(lambda x: np.clip(score(x), -1e6, 1e6) + side * z, d, edge))

    return Interval(d, end(-1), end(1), np.sqrt(max(b + c - n * d * d, 0.0)) / n, np.inf)


def bca(n: int, statistic: Callable[[NDArray[np.intp]], float], level: float = 0.95, *, resamples: int = 1999,
        random_state: int = 0) -> Interval:  # fmt: skip
    """The bias-corrected and accelerated bootstrap interval of a statistic of ``n`` independent units.

    Parameters
    ----------
    n : int
        Number of units; the interval is trustworthy from about 20 on.
    statistic : callable
        Takes the indices of the resampled units (with repetitions) and gives a number.
    level : float
        Confidence, in (0, 1).
    resamples, random_state : int
        Size and seed of the bootstrap.

    References
    ----------
    B. Efron, "Better bootstrap confidence intervals", Journal of the American Statistical Association 82 (1987).
    """
    if n < 2:
        raise ValueError(f"n {n}: a bootstrap needs 2 units or more")
    units = np.arange(n)
    value = float(statistic(units))
    found = scipy.stats.bootstrap((units,), statistic, vectorized=False, method="BCa", confidence_level=_level(level),
                                  n_resamples=resamples, rng=np.random.default_rng(random_state))  # fmt: skip
    low, high = map(float, found.confidence_interval)
    if np.isnan(low):  # every resample gives the same number
        low, high = float(np.min(found.bootstrap_distribution)), float(np.max(found.bootstrap_distribution))
    return Interval(value, low, high, float(found.standard_error))


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation with mid-ranks; NaN where a side is constant."""
    x, y = _finite("x", x), _finite("y", y)
    if x.shape != y.shape or x.ndim != 1 or x.size < 3:
        raise ValueError(f"x and y have shapes {x.shape} and {y.shape}: expected two equal lengths of 3 or more")
    rx, ry = (scipy.stats.rankdata(v) - (v.size + 1) / 2 for v in (x, y))
    scale = np.sqrt((rx @ rx) * (ry @ ry))
    return float(rx @ ry / scale) if scale > 0 else np.nan


def fisher_z(rho: ArrayLike, points: int) -> Array:
    """Fisher's z of a rank correlation; a perfect one stands half a step short of 1, so that it is finite.

    The step is the one between the two largest values that Spearman's correlation of ``points`` points can take.
    """
    top = 1 - 6 / (points * (points**2 - 1.0))
    return np.arctanh(np.clip(np.asarray(rho, float), -top, top))


def spearman_interval(rho: float, n: int, level: float = 0.95) -> Interval:
    r"""Interval of Spearman's correlation over ``n`` units: Fisher's z with error :math:`\sqrt{(1 + \rho^2/2)/(n-3)}`.

    References
    ----------
    D. G. Bonett, T. A. Wright, "Sample size requirements for estimating Pearson, Kendall and Spearman correlations",
    Psychometrika 65 (2000).
    """
    if n < 4 or not -1 <= rho <= 1:
        raise ValueError(f"rho {rho} over {n} units: expected a correlation over 4 units or more")
    se = np.sqrt((1 + rho**2 / 2) / (n - 3))
    wide = student(float(fisher_z(rho, n)), se, np.inf, level)
    return Interval(rho, float(np.tanh(wide.low)), float(np.tanh(wide.high)), se, np.inf)


def factor_difference(a: ArrayLike, b: ArrayLike, factor: float, level: float = 0.95) -> Interval:
    """Is ``b`` more than ``factor`` times ``a``? The t interval of the paired b - factor * a, which is above 0 if so.

    Says the same as Fieller's interval for the ratio of means lying above ``factor``, without dividing by a small
    number.

    Parameters
    ----------
    a, b : array_like, shape (..., n)
        Paired numbers.
    factor : float
        Positive.
    level : float
        Confidence, in (0, 1).
    """
    if not factor > 0:
        raise ValueError(f"factor {factor}: expected a positive number")
    return t_interval(_finite("b", b) - factor * _finite("a", a), level)


def power_law(x: ArrayLike, y: ArrayLike) -> Interval:
    """Exponent of y ~ x^slope: least squares of log y on log x, with the residual standard error of the slope.

    Parameters
    ----------
    x, y : array_like, shape (n,)
        Positive numbers, at least two different x. With two points there is no residual and no error.

    Returns
    -------
    Interval
        The slope, its 95 % t interval under independent homoscedastic log errors, its error, and n - 2.
    """
    x, y = _finite("x", x), _finite("y", y)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"x and y have shapes {x.shape} and {y.shape}: expected two equal lengths")
    if np.any(x <= 0) or np.any(y <= 0):
        raise ValueError("x and y must be positive: a power law is fitted on logarithms")
    u, v = np.log(x) - np.log(x).mean(), np.log(y) - np.log(y).mean()
    if not u @ u > 0:
        raise ValueError("x is constant: a slope needs two different values")
    slope, df = float(u @ v / (u @ u)), x.size - 2
    if df == 0:
        return Interval(slope, np.nan, np.nan, np.nan, 0)
    se = float(np.sqrt(((v - slope * u) ** 2).sum() / df / (u @ u)))
    return student(slope, se, df, 0.95)


def auroc(labels: ArrayLike, scores: ArrayLike) -> float:
    """Area under the ROC curve: the probability that a positive scores above a negative, ties counting one half.

    Parameters
    ----------
    labels : array_like of 0/1, shape (n,)
        Both classes must be there.
    scores : array_like, shape (n,)
        Larger means more positive.
    """
    y, s = np.asarray(labels), _finite("scores", scores)
    if y.shape != s.shape or y.ndim != 1:
        raise ValueError(f"labels and scores have shapes {y.shape} and {s.shape}: expected two equal lengths")
    if not np.isin(y, (0, 1)).all() or y.min() == y.max():
        raise ValueError("labels: expected 0 and 1, and both of them")
    positive = y.astype(bool)
    m = int(positive.sum())
    return float((scipy.stats.rankdata(s)[positive].sum() - m * (m + 1) / 2) / (m * (y.size - m)))


def _level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level {level}: expected a number in (0, 1)")
    return level


def _finite(name: str, value: ArrayLike) -> Array:
    array = np.asarray(value, dtype=float)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has {int((~np.isfinite(array)).sum())} values that are not finite")
    return array
