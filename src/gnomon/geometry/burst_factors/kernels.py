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
    ``h`` (T, k) the right-hand side. Block elimination forwards, then back; written in loops, which compile fast.
    """
    T, k = h.shape
    inverse, step, V, m = np.zeros((T, k, k)), np.zeros((T, k, k)), np.zeros((T, k, k)), np.zeros((T, k))
    block = np.zeros((k, k))
    logdet = 0.0
    for t in range(T):
        for i in range(k):
            m[t, i] = h[t, i]
            for j in range(k):
                block[i, j] = J[t, i, j]
                inverse[t, i, j] = 1.0 if i == j else 0.0
                if t > 0:
                    m[t, i] -= step[t - 1, j, i] * m[t - 1, j]
                    for l in range(k):
                        block[i, j] -= off[l, i] * step[t - 1, l, j]
        for i in range(k):  # Gauss-Jordan
            pivot = block[i, i]
            logdet += math.log(pivot)
            for c in range(k):
                block[i, c] /= pivot
                inverse[t, i, c] /= pivot
            for r in range(k):
                factor = block[r, i]
                if r != i:
                    for c in range(k):
                        block[r, c] -= factor * block[i, c]
                        inverse[t, r, c] -= factor * inverse[t, i, c]
        for i in range(k):
            for j in range(k):
                for l in range(k):
                    step[t, i, j] += inverse[t, i, l] * off[l, j]
    right = np.zeros(k)
    for s in range(T):
        t = T - 1 - s
        for i in range(k):
            right[i] = m[t, i]
        for i in range(k):
            m[t, i] = 0.0
            for j in range(k):
                m[t, i] += inverse[t, i, j] * right[j] - (step[t, i, j] * m[t + 1, j] if s > 0 else 0.0)
        for i in range(k):
            for j in range(k):
                block[i, j] = 0.0
                if s > 0:
                    for l in range(k):
                        block[i, j] += step[t, i, l] * V[t + 1, l, j]
        for i in range(k):
            for j in range(k):
                V[t, i, j] = inverse[t, i, j]
                for l in range(k):
                    V[t, i, j] += block[i, l] * step[t, j, l]
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
