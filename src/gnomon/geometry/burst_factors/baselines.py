"""What burst factor analysis is compared with: factors of spike counts, of bursts without structure, another parser."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import poisson

from gnomon.geometry.burst_factors.method import BurstFactorAnalysis

Array = NDArray[Any]


def factor_analysis(X: Array, k: int) -> Array:
    """Factors (T, k) of scikit-learn's FactorAnalysis."""
    from sklearn.decomposition import FactorAnalysis
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(FactorAnalysis(k, random_state=0).fit_transform(X))


def rate_fa(E: Array, B: Array, S: Array, k: int) -> Array:
    """Factor analysis of the square roots of spike counts: the population code without bursts."""
    return factor_analysis(np.sqrt(S), k)


def stacked_fa(E: Array, B: Array, S: Array, k: int) -> Array:
    """Factor analysis of the square roots of single-spike and burst counts side by side."""
    return factor_analysis(np.sqrt(np.concatenate([E - B, B], 1)), k)


def fraction_fa(E: Array, B: Array, S: Array, k: int) -> Array:
    """Factor analysis of the burst fraction B / E; where there are no events a neuron's own mean."""
    mean = B.sum(0) / np.maximum(E.sum(0), 1)
    return factor_analysis(np.where(E > 0, B / np.maximum(E, 1), mean), k)


def rate_pca(E: Array, B: Array, S: Array, k: int) -> Array:
    """Principal components of the square roots of spike counts."""
    from sklearn.decomposition import PCA

    return np.asarray(PCA(k, random_state=0).fit_transform(np.sqrt(S)))


def rate_nmf(E: Array, B: Array, S: Array, k: int) -> Array:
    """Non-negative matrix factors of spike counts."""
    from sklearn.decomposition import NMF
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(NMF(k, init="nndsvda", random_state=0, max_iter=500).fit_transform(S.astype(float)))


def poisson_factors(E: Array, B: Array, S: Array, k: int) -> Array:
    """Poisson factors of spike counts (the model of GLM-PCA, by the same variational EM)."""
    model = BurstFactorAnalysis(k, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return model.fit(S, np.zeros_like(S)).x_


def gpfa(E: Array, B: Array, S: Array, k: int, segment: int = 40) -> Array:
    """Gaussian-process factor analysis of spike counts by elephant; the recording is cut into segments of bins.

    A time series of ``segment`` bins at a time, because elephant inverts a matrix of (bins k) squared. Needs the
    package ``elephant``. Spikes are laid evenly in their bins: GPFA sees nothing but counts.
    """
    import neo
    import quantities as pq
    from elephant.gpfa import GPFA

    trials = []
    for start in range(0, len(S) - segment + 1, segment):
        part = S[start : start + segment]
        trains = []
        for count in part.T:
            times = np.concatenate([t + (np.arange(n) + 0.5) / n for t, n in enumerate(count) if n] or [np.zeros(0)])
            trains.append(neo.SpikeTrain(times, units="s", t_stop=segment))
        trials.append(trains)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # elephant prints its progress
        warnings.simplefilter("ignore")
        found = GPFA(bin_size=1 * pq.s, x_dim=k, em_max_iters=50).fit_transform(trials)
    return np.concatenate([np.asarray(f).T for f in found])


def poisson_surprise(times: Array, least: float = 3.0, limit: int = 50) -> tuple[Array, Array]:
    """Bursts by Poisson surprise (Legendy and Salcman, J. Neurophysiol. 1985): index of first spike, and size, of all events.

    A burst starts with two intervals below half the mean, grows while the surprise -ln P(so many spikes in so short a
    time) does, at most to an interval of twice the mean, then loses leading spikes while that raises it. It counts
    from a surprise of ``least``; all other spikes are single. ``limit`` bounds the growth by spikes.
    """
    n = len(times)
    if n < 4:
        return np.arange(n), np.ones(n, int)
    isi = np.diff(times)
    rate = n / max(float(times[-1] - times[0]), 1e-12)

    def surprise(i: int, j: int) -> float:  # spikes i..j
        return -float(poisson.logsf(j - i - 1, rate * (times[j] - times[i])))

    first, size, i = [], [], 0
    while i < n:
        if i + 2 < n and isi[i] < 0.5 / rate and isi[i + 1] < 0.5 / rate:
            j, best = i + 2, surprise(i, i + 2)
            end = j
            while j + 1 < n and isi[j] < 2 / rate and j - i < limit:
                j += 1
                if (now := surprise(i, j)) > best:
                    best, end = now, j
            start = i
            while end - start > 2 and (now := surprise(start + 1, end)) > best:
                best, start = now, start + 1
            if best >= least:
                first += [*range(i, start), start]
                size += [1] * (start - i) + [end - start + 1]
                i = end + 1
                continue
        first.append(i)
        size.append(1)
        i += 1
    return np.array(first), np.array(size)
