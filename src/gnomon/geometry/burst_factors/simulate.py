"""Populations with known burst factors: counts from the model, spikes from a mechanism, spikes of a pure rate code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from gnomon.geometry.burst_factors.kernels import spike_loop

Array = NDArray[Any]
SILENT = 0.195  # d log(1 + 1.35 p) / d logit p at logit p = -1: what a burst adds to the log spike count
SPIKES_PER_STEP = 0.35  # probability that a burst has three spikes, not two


@dataclass(frozen=True)
class Simulation:
    """Counts (T, N) and what made them; ``trains`` where there are spikes."""

    E: Array
    B: Array
    S: Array
    x: Array
    y: Array
    event_loadings: Array
    burst_loadings: Array
    trains: list[Array] | None = None


def simulate_bursts(n_neurons: int = 40, n_bins: int = 400, n_event: int = 2, n_burst: int = 1, *,
                    burst_amplitude: float = 0.8, event_amplitude: float = 0.35, events_per_bin: float = 6.0,
                    burst_odds: float = -1.0, rate_silent: bool = False, drift: float = 0.0,
                    trend: bool = False, random_state: Any = None) -> Simulation:  # fmt: skip
    """Counts drawn from the model of :class:`BurstFactorAnalysis`.

    Parameters
    ----------
    n_neurons, n_bins, n_event, n_burst : int
        Sizes.
    burst_amplitude, event_amplitude : float
        Standard deviations of the normal loadings D and C.
    events_per_bin, burst_odds : float
        exp(mu) Delta and nu.
    rate_silent : bool
        Event rates fall as bursts get likelier, so that spike counts say nothing of y (for nu = -1).
    drift : float
        Standard deviation of a slow drift of each neuron's own burst log odds, shared by none.
    trend : bool
        Whether the drift is a trend (a sine of half a period to two over the recording) instead of a stationary
        process (Ornstein-Uhlenbeck, correlation time 25 bins).
    random_state : int or Generator
        The draws.

    Returns
    -------
    Simulation
        A burst has two spikes, or three with probability 0.35.
    """
    rng = np.random.default_rng(random_state)
    x, y = rng.normal(size=(n_bins, n_event)), rng.normal(size=(n_bins, n_burst))
    C = event_amplitude * rng.normal(size=(n_neurons, n_event))
    D = burst_amplitude * rng.normal(size=(n_neurons, n_burst))
    log_rate = np.log(events_per_bin) + x @ C.T - (SILENT * y @ D.T if rate_silent else 0)
    E = rng.poisson(np.exp(log_rate))
    B = rng.binomial(E, expit(burst_odds + y @ D.T + drift * _drifts(n_bins, n_neurons, 25.0, trend, rng)))
    return Simulation(E, B, E + B + rng.binomial(B, SPIKES_PER_STEP), x, y, C, D)


def simulate_mechanism(n_neurons: int = 40, n_bins: int = 400, n_event: int = 2, n_burst: int = 2, *,
                       burst_amplitude: float = 0.8, event_amplitude: float = 0.5, event_rate: float = 10.0,
                       burst_odds: float = -1.0, private: float = 0.2, drift: float = 0.2, time_constant: float = 0.5,
                       refractory: float = 0.01, bin_size: float = 0.25, theta: float = 0.016,
                       random_state: Any = None) -> Simulation:  # fmt: skip
    """Spikes of two-compartment neurons, parsed: somatic drive sets the event hazard, dendritic drive the bursts.

    The drives are Ornstein-Uhlenbeck processes (correlation time ``time_constant`` s, unit variance), constant over
    tenths of a bin; each neuron adds private noise to both and a slow drift to its burst log odds. After an event
    comes silence of ``refractory`` s; spikes within a burst are 3 to 8 ms apart. x and y are the drives' bin means.
    """
    from gnomon.geometry.burst_factors.spikes import parse_bursts

    rng = np.random.default_rng(random_state)
    fine, step = 10, bin_size / 10
    keep = np.exp(-step / time_constant)
    drives = ornstein_uhlenbeck(n_bins * fine, n_event + n_burst, keep, rng)
    C = event_amplitude * rng.normal(size=(n_neurons, n_event))
    D = burst_amplitude * rng.normal(size=(n_neurons, n_burst))
    noise = private * ornstein_uhlenbeck(n_bins * fine, 2 * n_neurons, keep, rng)
    hazard = event_rate * np.exp(drives[:, :n_event] @ C.T + noise[:, :n_neurons])
    odds = burst_odds + drives[:, n_event:] @ D.T + noise[:, n_neurons:]
    odds += drift * _drifts(n_bins * fine, n_neurons, 25.0 * fine, False, rng)
    trains = [spike_loop(np.ascontiguousarray(hazard[:, i]), np.ascontiguousarray(odds[:, i]), step / 25, 25, refractory, rng)
              for i in range(n_neurons)]  # fmt: skip
    E, B, S = parse_bursts(trains, bin_size, theta, t_start=0.0, t_stop=n_bins * bin_size)
    mean = drives.reshape(n_bins, fine, -1).mean(1)
    return Simulation(E, B, S, mean[:, :n_event], mean[:, n_event:], C, D, trains)


def simulate_rate_code(n_neurons: int = 20, n_bins: int = 200, *, rate: float = 25.0, amplitude: float = 0.35,
                       shape: float = 1.0, bin_size: float = 0.25, theta: float = 0.016,
                       random_state: Any = None) -> Simulation:  # fmt: skip
    """Spikes of a pure rate code with one factor: Poisson (``shape`` 1) or gamma renewal in operational time.

    Short intervals make "bursts" by chance; there is no burst code.
    """
    from gnomon.geometry.burst_factors.spikes import parse_bursts

    rng = np.random.default_rng(random_state)
    x = rng.normal(size=(n_bins, 1))
    C = amplitude * rng.normal(size=(n_neurons, 1))
    mass = np.cumsum(np.exp(np.log(rate) + x @ C.T) * bin_size, 0)
    edges = bin_size * np.arange(n_bins + 1)
    trains = []
    for i in range(n_neurons):
        grown = np.r_[0.0, mass[:, i]]
        n = int(grown[-1] + 10 * np.sqrt(grown[-1]) + 20)
        at = np.cumsum(rng.gamma(shape, 1 / shape, n))
        trains.append(np.interp(at[at < grown[-1]], grown, edges))
    E, B, S = parse_bursts(trains, bin_size, theta, t_start=0.0, t_stop=n_bins * bin_size)
    return Simulation(E, B, S, x, np.zeros((n_bins, 0)), C, np.zeros((n_neurons, 0)), trains)


def ornstein_uhlenbeck(n: int, k: int, keep: float, rng: np.random.Generator) -> Array:
    """Stationary AR(1) series (n, k) of unit variance with lag-one correlation ``keep``."""
    from scipy.signal import lfilter

    noise = rng.normal(size=(n, k)) * np.sqrt(1 - keep**2)
    first = rng.normal(size=(1, k))
    out, _ = lfilter([1.0], [1.0, -keep], noise, axis=0, zi=keep * first)
    return np.asarray(out)


def _drifts(n: int, k: int, time_constant: float, trend: bool, rng: np.random.Generator) -> Array:
    """Private slow series (n, k) of unit variance."""
    if not trend:
        return ornstein_uhlenbeck(n, k, float(np.exp(-1 / time_constant)), rng)
    t = np.arange(n)[:, None] / n
    return np.sqrt(2) * np.sin(2 * np.pi * (rng.uniform(0.5, 2, k) * t + rng.uniform(size=k)))
