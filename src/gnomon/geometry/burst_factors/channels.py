"""Observation channels: the expected log-likelihood of counts under a Gaussian linear predictor.

A channel knows its data (T, N), and for a predictor a_ti ~ N(``a``, ``v``) gives, entry by entry, E_q log p, its
derivative by the mean, and its negative curvature w; by Price's theorem the derivative by the variance is -w / 2.
Missing entries (NaN) have neither data nor exposure and add nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, expit, gammaln, logsumexp, xlogy

from gnomon.geometry.burst_factors.kernels import NODES, WEIGHTS, softplus_moments

Array = NDArray[np.float64]
Moments = tuple[Array, Array, Array]
_WIDEST = (1e-2, 1e6)  # of a dispersion


@dataclass(frozen=True)
class Channel:
    """Counts of one kind; ``count`` and ``exposure`` are (T, N) and 0 where missing."""

    count: Array
    exposure: Array  # Poisson: seconds; binomial: trials; Gaussian: 1
    constant: Array  # the part of the log-likelihood that no parameter touches
    dispersion: Array  # (N,); size of the negative binomial, concentration of the beta-binomial, Gaussian variance

    dispersed = False

    def at(self, rows: Any = slice(None), columns: Any = slice(None)) -> Self:
        """A part of the bins, or of the neurons."""
        cut = {
            f.name: v[columns] if (v := getattr(self, f.name)).ndim == 1 else v[rows][:, columns] for f in fields(self)
        }
        return replace(self, **cut)

    def moments(self, a: Array, v: Array) -> Moments:
        raise NotImplementedError

    def start(self) -> Array:
        """Intercepts (N,) of the model without factors."""
        raise NotImplementedError

    def weight(self, b: Array) -> Array:
        """Mean curvature of the log-likelihood at the intercepts: what a residual weighs."""
        return self.moments(np.broadcast_to(b, self.count.shape).copy(), np.zeros(self.count.shape))[2].mean(0)

    def redispersed(self, a: Array, v: Array, step: Array) -> tuple[Self, Array]:
        """Dispersions by pattern search on a log scale; each neuron's step halves where neither side is better."""
        if not self.dispersed:
            return self, step
        found = {h: self._with(self.dispersion * np.exp(h * step)) for h in (0, 1, -1)}
        value = np.stack([c.moments(a, v)[0].sum(0) for c in found.values()])
        best = value.argmax(0)
        chosen = np.choose(best, [c.dispersion for c in found.values()])
        return replace(self, dispersion=chosen), np.where(best == 0, step / 2, step)

    def _with(self, dispersion: Array) -> Self:
        return replace(self, dispersion=np.clip(dispersion, *_WIDEST))


class Poisson(Channel):
    """count ~ Poisson(exposure exp(a))."""

    def moments(self, a: Array, v: Array) -> Moments:
        rate = self.exposure * np.exp(np.minimum(a + v / 2, 300.0))
        value = self.count * a - rate + self.constant
        return value, self.count - rate, rate

    def start(self) -> Array:
        return np.log(self.count.sum(0) / self.exposure.sum(0))


class Logistic(Channel):
    """What binomial and negative binomial share: count a - total log(1 + e^a)."""

    def _moments(self, total: Array, a: Array, v: Array) -> Moments:
        flat = softplus_moments(self.count.ravel(), np.ascontiguousarray(total).ravel(), np.ascontiguousarray(a).ravel(),
                                np.ascontiguousarray(v).ravel())  # fmt: skip
        value, slope, curvature = (x.reshape(a.shape) for x in flat)
        return value, slope, curvature


class Binomial(Logistic):
    """count ~ Binomial(exposure, sigma(a))."""

    def moments(self, a: Array, v: Array) -> Moments:
        value, slope, curvature = self._moments(self.exposure, a, v)
        return value + self.constant, slope, curvature

    def start(self) -> Array:
        k, n = self.count.sum(0), self.exposure.sum(0)
        return np.log(k) - np.log(n - k)

    def predictive(self, a: Array, v: Array) -> Array:
        """log p(count | exposure), the predictor integrated out."""
        nodes = a[..., None] + np.sqrt(v)[..., None] * NODES
        k, n = self.count[..., None], self.exposure[..., None]
        logs = -k * np.logaddexp(0, -nodes) - (n - k) * np.logaddexp(0, nodes)
        return np.asarray(logsumexp(logs, axis=-1, b=WEIGHTS) + self.constant)


class NegativeBinomial(Logistic):
    """count ~ NB(mean exposure exp(a), variance mean + mean^2 / r); log-concave in a."""

    dispersed = True

    def moments(self, a: Array, v: Array) -> Moments:
        r, seen = self.dispersion, self.exposure > 0
        shift = np.log(np.where(seen, self.exposure, 1)) - np.log(r)
        value, slope, curvature = self._moments(np.where(seen, self.count + r, 0), a + shift, v)
        free = np.where(seen, gammaln(self.count + r) - gammaln(r), 0)
        return value + free + self.constant, slope, curvature

    def start(self) -> Array:
        return np.log(self.count.sum(0) / self.exposure.sum(0))


class BetaBinomial(Binomial):
    """count ~ beta-binomial(exposure, mean sigma(a), concentration s); not log-concave: negative curvature is cut."""

    dispersed = True

    def _log_likelihood(self, p: Array) -> Array:
        k, n, s = self.count[..., None], self.exposure[..., None], self.dispersion[:, None]
        return np.asarray(gammaln(k + s * p) - gammaln(s * p) + gammaln(n - k + s * (1 - p)) - gammaln(s * (1 - p))
                          + gammaln(s) - gammaln(s + n))  # fmt: skip

    def moments(self, a: Array, v: Array) -> Moments:
        sd = np.sqrt(v)[..., None]
        p = np.clip(expit(a[..., None] + sd * NODES), 1e-9, 1 - 1e-9)
        k, n, s = self.count[..., None], self.exposure[..., None], self.dispersion[:, None]
        slope = (
            s
            * p
            * (1 - p)
            * (digamma(k + s * p) - digamma(s * p) - digamma(n - k + s * (1 - p)) + digamma(s * (1 - p)))
        )
        curvature = self.exposure * self._spread(a) * (1 + self.dispersion) / (self.exposure + self.dispersion)
        wide = v > 1e-4  # where -E[l'(a) (a - mean)] / v, Stein's form of the mean curvature, is well conditioned
        stein = -(slope * NODES) @ WEIGHTS / np.where(wide, np.sqrt(v), 1)
        return (
            self._log_likelihood(p) @ WEIGHTS + self.constant,
            slope @ WEIGHTS,
            np.where(wide, np.maximum(stein, 0), curvature),
        )

    @staticmethod
    def _spread(a: Array) -> Array:
        p = expit(a)
        return np.asarray(p * (1 - p))

    def predictive(self, a: Array, v: Array) -> Array:
        p = np.clip(expit(a[..., None] + np.sqrt(v)[..., None] * NODES), 1e-9, 1 - 1e-9)
        return np.asarray(logsumexp(self._log_likelihood(p), axis=-1, b=WEIGHTS) + self.constant)


class Gaussian(Channel):
    """count (already transformed) ~ N(a, dispersion) where exposure is 1: EM is exact and the bound is tight."""

    dispersed = True

    def moments(self, a: Array, v: Array) -> Moments:
        seen, noise = self.exposure, self.dispersion
        off = self.count - a
        value = -0.5 * seen * (np.log(2 * np.pi * noise) + (off**2 + v) / noise)
        return value, seen * off / noise, seen / noise

    def start(self) -> Array:
        return np.asarray((self.count * self.exposure).sum(0) / self.exposure.sum(0))

    def redispersed(self, a: Array, v: Array, step: Array) -> tuple[Gaussian, Array]:
        noise = (self.exposure * ((self.count - a) ** 2 + v)).sum(0) / self.exposure.sum(0)
        return replace(self, dispersion=np.maximum(noise, 1e-6)), step


def event_channel(likelihood: str, E: Array, B: Array, bin_size: float) -> Channel:
    """The channel that event factors drive; of ``rates`` it holds single spikes."""
    seen = np.isfinite(E)
    count = np.where(seen, E - B if likelihood == "rates" else E, 0.0)
    exposure = np.where(seen, bin_size, 0.0)
    if likelihood == "gaussian":
        return _gaussian(2 * np.sqrt(count + 3 / 8), seen)
    if likelihood == "negbin-betabinomial":
        return NegativeBinomial(count, exposure, -gammaln(count + 1), np.full(E.shape[1], 10.0))
    return _poisson(count, exposure)


def burst_channel(likelihood: str, E: Array, B: Array, bin_size: float) -> Channel:
    """The channel that burst factors drive."""
    seen = np.isfinite(E)
    count, total = np.where(seen, B, 0.0), np.where(seen, E, 0.0)
    if likelihood == "gaussian":
        return _gaussian(np.arcsin(np.sqrt((count + 3 / 8) / (total + 3 / 4))), total > 0)
    if likelihood == "rates":
        return _poisson(count, np.where(seen, bin_size, 0.0))
    kind = BetaBinomial if likelihood == "negbin-betabinomial" else Binomial
    choose = gammaln(total + 1) - gammaln(count + 1) - gammaln(total - count + 1)
    return kind(count, total, choose, np.full(E.shape[1], 10.0))


def _poisson(count: Array, exposure: Array) -> Poisson:
    return Poisson(count, exposure, xlogy(count, exposure) - gammaln(count + 1), np.zeros(count.shape[1]))


def _gaussian(y: Array, seen: NDArray[np.bool_]) -> Gaussian:
    n = np.maximum(seen.sum(0), 1)
    y = np.where(seen, y, 0.0)
    mean = y.sum(0) / n
    noise = (seen * (y - mean) ** 2).sum(0) / n
    return Gaussian(y, seen.astype(float), np.zeros(y.shape), np.maximum(noise, 1e-6))
