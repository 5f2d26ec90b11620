"""The compiled inner loops: expectations of the softplus, parsing, exact redraws of burst marks."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np
from numba import njit


def gauss_hermite(n):
    """Nodes and weights: E f(a) = sum_j weight_j f(mean + sqrt(v) node_j) for a ~ N(mean, v)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / weights.sum()


NODES, WEIGHTS = gauss_hermite(20)
# the positive half of three rules: a small variance needs fewer nodes for the same 1e-11
_LIMITS = (0.03, 0.2)
_HALF, _HALF_WEIGHTS = np.zeros((3, 10)), np.zeros((3, 10))
for _row, _n in enumerate((6, 10, 20)):
    _HALF[_row, : _n // 2], _HALF_WEIGHTS[_row, : _n // 2] = (x[_n // 2 :] for x in gauss_hermite(_n))
_EDGE = 300.0  # exp of twice this is still finite
ROUNDING = 1e-9  # seconds: intervals that differ by less are equal


@njit(cache=True, error_model="numpy")
def softplus_moments(count, total, a, v):
    """E_q[count a - total log(1 + e^a)], its derivative by the mean, and its negative curvature, a ~ N(``a``, ``v``).

    Nodes come in pairs +-h of equal weight, and (1 + u e)(1 + u / e) = 1 + u^2 + u (e + 1/e) with u = e^a, e = e^h:
    one exponential and one logarithm for two nodes. Arrays are flat.
    """
    value, slope, curvature = np.zeros_like(a), np.zeros_like(a), np.zeros_like(a)
    for i in range(a.size):
        if total[i] == 0.0:
            continue
        rule = 0 if v[i] < _LIMITS[0] else 1 if v[i] < _LIMITS[1] else 2
        nodes, weights = _HALF[rule], _HALF_WEIGHTS[rule]
        u = math.exp(-min(abs(a[i]), _EDGE))  # softplus(a) = a + softplus(-a): the exponential stays below 1
        s = math.sqrt(v[i])
        f = g = h = 0.0
        for j in range((3, 5, 10)[rule]):
            far = s * nodes[j]
            e = math.exp(min(far, _EDGE))
            up, down = u * e, u / e
            p, q = up / (1 + up), down / (1 + down)
            f += weights[j] * (math.log(1 + u * u + up + down) + max(far - _EDGE, 0.0))
            g += weights[j] * (p + q)
            h += weights[j] * (p / (1 + up) + q / (1 + down))
        if a[i] > 0:
            f, g = f + a[i], 1 - g
        value[i] = count[i] * a[i] - total[i] * f
        slope[i] = count[i] - total[i] * g
        curvature[i] = total[i] * h
    return value, slope, curvature


@njit(cache=True)
def find_events(times, theta):
    """Index of each event's first spike, and its number of spikes; events are runs of intervals below theta."""
    first, size = np.empty(times.size, np.int64), np.empty(times.size, np.int64)
    n = 0
    for i in range(times.size):
        if i > 0 and times[i] - times[i - 1] < theta - ROUNDING:
            size[n - 1] += 1
        else:
            first[n], size[n] = i, 1
            n += 1
    return first[:n], size[:n]


@njit(cache=True)
def redraw_marks(E, total, rng):
    """Burst counts given the events and each neuron's total: multivariate hypergeometric, event by event.

    Selection sampling: each event in turn is a burst with probability (bursts left) / (events left).
    """
    T, N = E.shape
    B = np.zeros((T, N))
    for i in range(N):
        events, bursts = 0, total[i]
        for t in range(T):
            events += E[t, i]
        for t in range(T):
            for _ in range(E[t, i]):
                if bursts == 0:
                    break
                if rng.random() * events < bursts:
                    B[t, i] += 1
                    bursts -= 1
                events -= 1
    return B


@njit(cache=True)
def tridiagonal(J, h, off):
    """Solve a symmetric block-tridiagonal system: solution, diagonal blocks of the inverse, log-determinant.

    ``J`` (T, k, k) holds the diagonal blocks, ``off`` (k, k) the block above the diagonal, alike at every step, and
    ``h`` (T, k) the right-hand side.
    """
    T, k = h.shape
    inverse, carried = np.empty((T, k, k)), np.empty((T, k))
    logdet = 0.0
    down = np.ascontiguousarray(off.T)
    for t in range(T):
        block, right = J[t].copy(), h[t].copy()
        if t > 0:
            block -= down @ (inverse[t - 1] @ off)
            right -= down @ (inverse[t - 1] @ carried[t - 1])
        inverse[t] = np.linalg.inv(block)
        carried[t] = right
        logdet += math.log(np.linalg.det(block))
    m, V = np.empty((T, k)), np.empty((T, k, k))
    m[T - 1], V[T - 1] = inverse[T - 1] @ carried[T - 1], inverse[T - 1]
    for s in range(T - 1):
        t = T - 2 - s
        m[t] = inverse[t] @ (carried[t] - off @ m[t + 1])
        step = inverse[t] @ off
        V[t] = inverse[t] + step @ V[t + 1] @ np.ascontiguousarray(step.T)
    return m, V, logdet


@njit(cache=True)
def spike_loop(event_rate, burst_logit, dt, bin_steps, refractory, rng):
    """Spike times of one neuron: events by their hazard, bursts of 2 or 3 spikes 3 to 8 ms apart, then silence."""
    out = []
    rest = 0.0
    for step in range(event_rate.size * bin_steps):
        t = step * dt
        if t < rest:
            continue
        i = step // bin_steps
        if rng.random() < 1 - math.exp(-event_rate[i] * dt):
            now = t + dt * rng.random()
            out.append(now)
            if rng.random() < 1 / (1 + math.exp(-burst_logit[i])):
                for _ in range(2 if rng.random() < 0.35 else 1):
                    now += 0.003 + 0.005 * rng.random()
                    out.append(now)
            rest = now + refractory
    return np.array(out)
