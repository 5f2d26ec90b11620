"""The solvers: first-order methods that see nothing but an inexact gradient. Each yields its iterates, x_0 first.

A generator is asked for one more iterate when one more is wanted; rounds are counted by the oracle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from gnomon.optimization.byzantine.losses import Inner

Oracle = Callable[[np.ndarray], np.ndarray]
INNER_TOL = 1e-10


def gradient_descent(oracle: Oracle, x: np.ndarray, eta: float) -> Iterator[np.ndarray]:
    """x <- x - eta g(x); one round each."""
    while True:
        yield x
        x = x - eta * oracle(x)


def heavy_ball(oracle: Oracle, x: np.ndarray, eta: float, momentum: float = 0.9) -> Iterator[np.ndarray]:
    """Momentum on the server: v <- momentum v + g(x), x <- x - eta (1 - momentum) v; one round each."""
    v = np.zeros_like(x)
    while True:
        yield x
        v = momentum * v + oracle(x)
        x = x - eta * (1 - momentum) * v


def nesterov(oracle: Oracle, x: np.ndarray, eta: float, mu: float) -> Iterator[np.ndarray]:
    """Nesterov's method with constant momentum (1 - sqrt q) / (1 + sqrt q), q = mu eta; one round each."""
    root = math.sqrt(min(1.0, mu * eta))
    b = (1 - root) / (1 + root)
    before = x
    while True:
        yield x
        y = x + b * (x - before)
        before, x = x, y - eta * oracle(y)


def pigs(oracle: Oracle, x: np.ndarray, eta: float, inner: Inner) -> Iterator[np.ndarray]:
    """The proximal inexact gradient method under similarity; one round each.

    ``x+ = argmin_z <g(x) - grad l(x), z> + l(z) + |z - x|^2 / (2 eta)``, l the server's loss: what the clients say corrects the
    server's own gradient, and the server moves as far as its own loss carries. Needs about Delta / mu rounds, Delta the
    smoothness of L - l, not L / mu.
    """
    while True:
        yield x
        linear = oracle(x) - inner.gradient(x)
        x = inner.solve(linear, x, eta, x, lambda z, g: float(g @ g) <= INNER_TOL**2)


def aeg(oracle: Oracle, x: np.ndarray, smoothness: float, mu: float, inner: Inner) -> Iterator[np.ndarray]:
    """Accelerated extra-gradient sliding (Kovalev et al. 2022) with an inexact oracle; two rounds each.

    ``smoothness`` is that of p = L - l, l the server's loss. With Lp for it: x_g = tau x + (1 - tau) x_f;
    x_f <- argmin_z <g(x_g) - grad l(x_g), z> + l(z) + Lp |z - x_g|^2, to |grad|^2 <= Lp^2 / 3 |x_g - z|^2;
    x <- x + eta mu (x_f - x) - eta g(x_f). Yields x_f. About sqrt(Lp / mu) rounds; Lp must bound the true constant.
    """
    tau = min(1.0, math.sqrt(mu / smoothness) / 2)
    theta = 1 / (2 * smoothness)
    eta = min(1 / (2 * mu), 1 / (2 * math.sqrt(mu * smoothness)))
    x_f = x
    while True:
        yield x_f
        x_g = tau * x + (1 - tau) * x_f

        def near(z: np.ndarray, g: np.ndarray, x_g: np.ndarray = x_g) -> bool:
            away = z - x_g
            return bool(g @ g <= max(smoothness**2 / 3 * float(away @ away), INNER_TOL**2))

        linear = oracle(x_g) - inner.gradient(x_g)
        x_f = inner.solve(linear, x_g, theta, x_g, near)
        x = x + eta * mu * (x_f - x) - eta * oracle(x_f)
