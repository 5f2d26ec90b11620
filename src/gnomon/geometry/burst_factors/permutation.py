"""Tests for a shared burst code: is the burst probability constant, is its variation shared, is it more than chance?"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from gnomon.geometry.burst_factors.kernels import redraw_marks
from gnomon.geometry.burst_factors.method import check_counts
from gnomon.geometry.burst_factors.spikes import FALLBACK, as_trains, parse_bursts, stretch

Array = NDArray[Any]
NULLS = ("marks", "shift", "jitter")
MIN_LAG = 10


@dataclass(frozen=True)
class BurstTest:
    """The statistic, its Monte Carlo p-value, and mean and standard deviation under the null."""

    statistic: float
    pvalue: float
    null_mean: float
    null_std: float


def residuals(E: Array, B: Array) -> Array:
    """R_ti = (B - E p_i) / sqrt(E p_i (1 - p_i)), p_i = sum B / sum E; 0 where E is 0 or p_i is 0 or 1."""
    total = E.sum(0)
    p = np.divide(B.sum(0), total, out=np.zeros(E.shape[1]), where=total > 0)
    variance = E * (p * (1 - p))
    return np.divide(B - E * p, np.sqrt(variance), out=np.zeros(E.shape), where=variance > 0)


def statistic(R: Array) -> float:
    """The top eigenvalue of R'R / T, by the smaller of R'R and RR'."""
    R = R[:, np.abs(R).sum(0) > 0]
    if R.size == 0:
        return 0.0
    G = R.T @ R if R.shape[1] <= R.shape[0] else R @ R.T
    top = len(G) - 1
    return float(eigh(G, eigvals_only=True, subset_by_index=[top, top], check_finite=False)[0]) / len(R)


def burst_test(E: ArrayLike, B: ArrayLike, null: str = "marks", n_perm: int = 999, spike_trains: Any = None,
               bin_size: float | None = None, theta: float = FALLBACK, jitter_window: float | None = None,
               random_state: Any = 0, *, trials: ArrayLike | None = None,
               t_start: float | None = None) -> BurstTest:  # fmt: skip
    """Monte Carlo test on the top eigenvalue of the burst residuals' covariance.

    Parameters
    ----------
    E, B : (T, N)
        Events and bursts.
    null : {"marks", "shift", "jitter"}
        "marks": every neuron's burst probability is constant. Given its events and its number of bursts, all placements
        are equally likely (multivariate hypergeometric): exact at any count. Private drift rejects it too.
        "shift": variation is private. Each neuron's residuals are shifted around the circle by a lag of its own, from
        10 to T - 10 bins (whole trials where ``trials`` says so), which keeps private drift.
        "jitter": short intervals are what the rates make. Every spike is redrawn within its window, the trains parsed
        again. Needs ``spike_trains`` and ``bin_size``.
    n_perm : int
        Draws from the null.
    spike_trains, bin_size, theta, t_start
        As :func:`parse_bursts` had them.
    jitter_window : float, optional
        Seconds; by default the bin, so that all spike counts stay.
    random_state : int or Generator
        The draws.
    trials : (T,), optional
        The trial of each bin; trials follow one another and have equally many bins.

    Returns
    -------
    BurstTest
        ``pvalue`` is (1 + nulls at least as large) / (1 + n_perm).

    Raises
    ------
    ValueError
        Counts as :meth:`BurstFactorAnalysis.fit` refuses them or missing, "jitter" without spike times, "shift" with
        fewer than 40 bins or 3 trials.
    """
    E, B = check_counts(E, B)
    if np.isnan(E).any():
        raise ValueError("E, B: missing counts; the test needs all of them")
    if null not in NULLS:
        raise ValueError(f"null: got {null!r}; expected one of {', '.join(map(repr, NULLS))}")
    if isinstance(n_perm, bool) or not isinstance(n_perm, int | np.integer) or n_perm < 1:
        raise ValueError(f"n_perm: got {n_perm!r}; expected an integer >= 1")
    rng = np.random.default_rng(random_state)
    R = residuals(E, B)
    if null == "marks":
        events, total = E.astype(np.int64), B.sum(0).astype(np.int64)
        draws = (statistic(residuals(E, redraw_marks(events, total, rng))) for _ in range(n_perm))
    elif null == "shift":
        lags = _lags(len(E), trials)
        draws = (statistic(_shifted(R, rng.choice(lags, R.shape[1]))) for _ in range(n_perm))
    else:
        if spike_trains is None or bin_size is None:
            raise ValueError("spike_trains, bin_size: the jitter null redraws spike times and needs both")
        draws = _jittered(E, spike_trains, bin_size, theta, jitter_window, t_start, n_perm, rng)
    observed = statistic(R)
    nulls = np.array(list(draws))
    exceed = int((nulls >= observed - 1e-12 * abs(observed)).sum())  # equal but for the order of a sum
    return BurstTest(observed, (1 + exceed) / (1 + n_perm), float(nulls.mean()), float(nulls.std()))


def _lags(T: int, trials: ArrayLike | None) -> Array:
    if trials is None:
        if T < 4 * MIN_LAG:
            raise ValueError(f"E: {T} bins; the shift null needs at least {4 * MIN_LAG}")
        return np.arange(MIN_LAG, T - MIN_LAG + 1)
    label = np.asarray(trials)
    if label.shape != (T,):
        raise ValueError(f"trials: shape {label.shape}; expected the trial of each of {T} bins")
    starts = np.flatnonzero(np.r_[True, label[1:] != label[:-1]])
    length = np.diff(np.r_[starts, T])
    if np.ptp(length) or len(np.unique(label)) != len(starts) or len(starts) < 3:
        raise ValueError(f"trials: {len(starts)} runs of {sorted(set(length.tolist()))} bins; expected at least 3, each in "
                         "one piece and equally long")  # fmt: skip
    return length[0] * np.arange(1, len(starts))


def _shifted(R: Array, lags: Array) -> Array:
    T = len(R)
    return R[(np.arange(T)[:, None] - lags) % T, np.arange(R.shape[1])]


def _jittered(E: Array, spike_trains: Any, bin_size: float, theta: float, window: float | None, t_start: float | None,
              n_perm: int, rng: np.random.Generator) -> Any:  # fmt: skip
    trains, limits = as_trains(spike_trains)
    width = bin_size if window is None else window
    if not 0 < width < np.inf:
        raise ValueError(f"jitter_window: got {window!r}; expected a positive number of seconds")
    if len(trains) != E.shape[1]:
        raise ValueError(f"spike_trains: {len(trains)} neurons; the counts have {E.shape[1]}")
    start = stretch(trains, limits, bin_size, t_start, None)[0]
    stop = start + len(E) * bin_size
    at = [np.floor((t - start) / width) * width + start for t in trains]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if not np.array_equal(parse_bursts(trains, bin_size, theta, t_start=start, t_stop=stop)[0], E):
            raise ValueError("spike_trains: parsed with this bin_size, theta and t_start they do not give E")
        for _ in range(n_perm):
            drawn = [np.sort(a + width * rng.random(len(a))) for a in at]
            e, b, _ = parse_bursts(drawn, bin_size, theta, t_start=start, t_stop=stop)
            yield statistic(residuals(e.astype(float), b.astype(float)))
