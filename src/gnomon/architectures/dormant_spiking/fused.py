"""All steps of a layer in one compiled kernel each way; the backward pass recomputes all but the membranes."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from gnomon.architectures.dormant_spiking.functional import NOT_FINITE, WAKES, Dynamics
from gnomon.architectures.dormant_spiking.surrogate import SURROGATES

# Fused multiply-add and reordering stay off, so that the numbers are those of the loop of single operations. Rows are
# functions of their own, with products by 0 and 1 instead of branches: so the compiler vectorises them.
_jit: Any = numba.njit(nogil=True, cache=True, error_model="numpy")
_LEAK, _NEVER, _AFTER = range(3)


@_jit
def _forward_row(x, before, dormant, leak, threshold, wake, soft, spikes, awake, after, poison):  # type: ignore[no-untyped-def]
    """One step of one sample of "leak" and "never" neurons."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    for p in range(x.size):
        u, i = before[p], x[p]
        poison[p] += i - i  # 0 until a current is NaN or infinite
        g = one if u >= dormant[p] else zero
        h = leak * u + g * i if wake == _LEAK else g * (leak * u + i) + (one - g) * u
        s = g * (one if h >= threshold else zero)
        spikes[p], awake[p] = s, g
        after[p] = h - threshold * s if soft else h * (one - s)


@_jit
def _forward_row_after(x, before, dormant, leak, threshold, n, soft, asleep, spikes, awake, after, poison):  # type: ignore[no-untyped-def]
    """One step of one sample of neurons that sleep ``n`` steps."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    for p in range(x.size):
        u, i = before[p], x[p]
        poison[p] += i - i
        if asleep[p] == 0 and u < dormant[p]:
            asleep[p] = n
        g = one if asleep[p] == 0 else zero
        h = leak * u + i if asleep[p] == 0 else u
        s = g * (one if h >= threshold else zero)
        spikes[p], awake[p] = s, g
        after[p] = h - threshold * s if soft else h * (one - s)
        if asleep[p] > 0:
            asleep[p] -= 1
            if asleep[p] == 0:
                after[p] = dormant[p]


@_jit
def _forward(x, leak, threshold, dormant, wake, n, soft, asleep, v, spikes, awake, first, last):  # type: ignore[no-untyped-def]
    """All steps of the samples from ``first`` to ``last``; v[0] is the membrane before. False where an input is not finite."""
    poison = np.zeros(x.shape[2], x.dtype)
    for b in range(first, last):
        for t in range(len(x)):
            i, u, s, a, w = x[t, b], v[t, b], spikes[t, b], awake[t, b], v[t + 1, b]
            if wake == _AFTER:
                _forward_row_after(i, u, dormant, leak, threshold, n, soft, asleep[b], s, a, w, poison)
            else:
                _forward_row(i, u, dormant, leak, threshold, wake, soft, s, a, w, poison)
    return poison.sum() == 0


# --- backwards -------------------------------------------------------------------------------------------------------


@_jit
def _again(x, before, dormant, leak, threshold, wake, left, a, h, y, z):  # type: ignore[no-untyped-def]
    """The awake flags and membranes before the reset of one step, and what the two step functions were taken of."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    for p in range(x.size):
        u = before[p]
        awake = left[p] == 0 if wake == _AFTER else u >= dormant[p]
        g = one if awake else zero
        a[p] = g
        h[p] = leak * u + g * x[p] if wake == _LEAK else g * (leak * u + x[p]) + (one - g) * u
        y[p] = h[p] - threshold
        z[p] = u - dormant[p]


@_jit
def _slope(x, surrogate, alpha):  # type: ignore[no-untyped-def]
    """The surrogate's derivative, in place."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    sharp, height = x.dtype.type(0.5 * math.pi) * alpha, x.dtype.type(0.5) * alpha
    if surrogate == 0:
        for p in range(x.size):
            x[p] = height / (one + (sharp * x[p]) * (sharp * x[p]))
    elif surrogate == 1:
        for p in range(x.size):
            q = one / (one + math.exp(-alpha * x[p]))
            x[p] = alpha * (q * (one - q))
    else:
        for p in range(x.size):
            x[p] = max(alpha - alpha * alpha * abs(x[p]), zero)


@_jit
def _reset_row(a, h, slope, threshold, soft, reset, g_spikes, carry, g_h, g_a):  # type: ignore[no-untyped-def]
    """Through v = h (1 - s) or h - threshold s, and s = a step(h - threshold)."""
    zero, one = a.dtype.type(0), a.dtype.type(1)
    for p in range(a.size):
        over = one if h[p] >= threshold else zero
        gv = carry[p]
        gs = g_spikes[p] - reset * (threshold if soft else h[p]) * gv
        g_h[p] = (gv if soft else gv * (one - a[p] * over)) + gs * a[p] * slope[p]
        g_a[p] += gs * over


@_jit
def _input_row(x, before, a, leak, wake, g_h, g_a, g_x, carry, g_leak):  # type: ignore[no-untyped-def]
    """Through h = leak u + a x ("leak") or a (leak u + x) + (1 - a) u."""
    one = x.dtype.type(1)
    for p in range(x.size):
        u, g = before[p], g_h[p]
        g_x[p] = g * a[p]
        if wake == _LEAK:
            g_a[p] += g * x[p]
            carry[p] = g * leak
            g_leak[p] += g * u
        else:
            g_a[p] += g * (leak * u + x[p] - u)
            carry[p] = g * (a[p] * leak + one - a[p])
            g_leak[p] += g * a[p] * u


@_jit
def _gate_row(slope, g_a, carry, g_dormant):  # type: ignore[no-untyped-def]
    """Through a = step(u - dormant)."""
    for p in range(slope.size):
        g = g_a[p] * slope[p]
        carry[p] += g
        g_dormant[p] -= g


@_jit
def _sleeps(v, dormant, n, asleep, left):  # type: ignore[no-untyped-def]
    """Steps still to be slept before each step, this one included, of one sample [T, P]."""
    for p in range(dormant.size):
        rest = asleep[p]
        for t in range(len(left)):
            if rest == 0 and v[t, p] < dormant[p]:
                rest = n
            left[t, p] = rest
            rest = max(rest - 1, 0)


@_jit
def _backward(  # type: ignore[no-untyped-def]
    x, leak, threshold, dormant, wake, n, soft, surrogate, alpha, reset, gate, asleep, v, g_spikes, g_awake, g_v,
    g_x, g_start, g_dormant, g_leak, first, last,
):  # fmt: skip
    """The gradients of the samples from ``first`` to ``last``; g_awake and g_v have no steps where there is none."""
    steps, _, width = x.shape
    # arrays of their own: the rows of one are not known to be contiguous
    a, h, y, z, g_h, g_a = (
        np.empty(width, x.dtype), np.empty(width, x.dtype), np.empty(width, x.dtype),
        np.empty(width, x.dtype), np.empty(width, x.dtype), np.empty(width, x.dtype),
    )  # fmt: skip
    earlier = np.zeros(width, x.dtype)  # gradient of the awake flags one step before (wake="never")
    left = np.zeros((steps, width), np.int32)
    for b in range(first, last):
        carry = g_start[b]
        carry[:] = 0
        earlier[:] = 0
        if wake == _AFTER:
            _sleeps(v[:, b], dormant, n, asleep[b], left)
        for t in range(steps - 1, -1, -1):
            if len(g_v):
                carry += g_v[t, b]
            if wake == _AFTER:
                for p in range(width):
                    if left[t, p] == 1:  # the sleep ends: v = dormant
                        g_dormant[p] += carry[p]
                        carry[p] = 0
            g_a[:] = 0
            if len(g_awake):
                g_a += g_awake[t, b]
            i, u, gs, gx = x[t, b], v[t, b], g_spikes[t, b], g_x[t, b]
            _again(i, u, dormant, leak, threshold, wake, left[t], a, h, y, z)
            _slope(y, surrogate, alpha)
            _reset_row(a, h, y, threshold, soft, reset, gs, carry, g_h, g_a)
            _input_row(i, u, a, leak, wake, g_h, g_a, gx, carry, g_leak)
            if not gate:
                continue
            if wake == _NEVER:  # a = a_before step(u - dormant)
                before = v[max(t - 1, 0), b]
                for p in range(width):
                    g = g_a[p] + earlier[p]
                    earlier[p] = g * a[p]
                    g_a[p] = g * (1 if before[p] >= dormant[p] else 0)
            elif wake == _AFTER:
                for p in range(width):
                    if 0 < left[t, p] < n:  # asleep already: the gate is not asked
                        g_a[p] = 0
            _slope(z, surrogate, alpha)
            _gate_row(z, g_a, carry, g_dormant)


def _shared(call: Callable[[int, int], Any], batch: int, work: int) -> list[Any]:
    """``call(first, last)`` over the samples, by as many threads as torch uses."""
    threads = min(torch.get_num_threads(), batch, 1 + work // 2**16)
    edges = [round(k * batch / threads) for k in range(threads + 1)]
    if threads == 1:
        return [call(0, batch)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(call, edges[:-1], edges[1:]))


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, leak: Tensor, dormant: Tensor, start: Tensor, asleep: Tensor, dynamics: Dynamics
    ) -> Any:
        arrays = [t.numpy() for t in (x, dormant, asleep)]
        spikes, awake = torch.empty_like(x), torch.empty_like(x)
        v = x.new_empty((len(x) + 1, *x.shape[1:]))
        v[0] = start
        left = arrays[2].copy()
        one = arrays[0].dtype.type
        constants = (
            one(leak.item()),
            one(dynamics.v_threshold),
            arrays[1],
            WAKES.index(dynamics.wake),
            dynamics.n,
            dynamics.soft,
        )
        out = (left, v.numpy(), spikes.numpy(), awake.numpy())
        parts = _shared(lambda first, last: _forward(arrays[0], *constants, *out, first, last), x.shape[1], x.numel())
        if not all(parts):
            raise ValueError(NOT_FINITE)
        ctx.save_for_backward(x, leak, dormant, asleep, v)
        ctx.dynamics = dynamics
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(asleep_after := torch.from_numpy(left))
        return spikes, awake, v[1:], asleep_after

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, leak, dormant, asleep, v = ctx.saved_tensors
        dynamics: Dynamics = ctx.dynamics
        one = v.numpy().dtype.type
        none = np.empty((0, *x.shape[1:]), one)
        given = [none if g is None else g.contiguous().numpy() for g in gradients[:3]]
        if not len(given[0]):
            given[0] = np.zeros(x.shape, one)
        constants = (one(leak.item()), one(dynamics.v_threshold), dormant.numpy(), WAKES.index(dynamics.wake), dynamics.n,
                     dynamics.soft, SURROGATES.index(dynamics.surrogate), one(dynamics.alpha), one(not dynamics.detach_reset),
                     not dynamics.detach_gate)  # fmt: skip
        g_x, g_start = torch.empty_like(x), torch.empty_like(v[0])
        state = (asleep.numpy(), v.detach().numpy(), *given, g_x.numpy(), g_start.numpy())
        inputs = x.detach().numpy()  # here, not in a thread: whether gradients are recorded is each thread's own

        def part(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
            g_dormant, g_leak = np.zeros((2, x.shape[2]), one)
            _backward(inputs, *constants, *state, g_dormant, g_leak, first, last)
            return g_dormant, g_leak

        sums = [np.sum(parts, axis=0) for parts in zip(*_shared(part, x.shape[1], x.numel()), strict=True)]
        return g_x, torch.from_numpy(sums[1]).sum().reshape(leak.shape), torch.from_numpy(sums[0]), g_start, None, None


def simulate(current: Tensor, leak: Tensor, dormant: Tensor, v: Tensor, asleep: Tensor, dynamics: Dynamics) -> Any:
    """As ``functional._simulate``; currents [T, B, ...] are seen as [T, B, P]."""
    shape = current.shape
    batch = shape[1] if current.ndim > 2 else 1
    x = current.reshape(shape[0], batch, -1).contiguous()
    flat = [t.reshape(batch, -1).contiguous() for t in (v, asleep)]
    width = dormant.reshape(-1).contiguous() if current.ndim != 1 else dormant.reshape(1)
    spikes, awake, membrane, left = _Layer.apply(x, leak, width, *flat, dynamics)
    return *(t.reshape(shape) for t in (spikes, awake, membrane)), left.reshape(shape[1:])
