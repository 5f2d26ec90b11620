"""Numba kernels: the recurrence and its backward pass on a CPU, each head's state in the core's own cache.

A core reads and writes a state of K x V numbers faster than it multiplies small matrices, so on a CPU the recurrence
itself is the fastest form. It also needs no chunkwise decays: every factor is one token's own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["compiled"]

# Sums may be taken in another order (for vector units); infinities and NaN keep their meaning.
_jit = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})

SPAN = 32  # tokens between two states kept for the backward pass
LEAST = {torch.float32: np.float32(1e-30), torch.float64: np.float64(1e-290)}  # less is 0: subnormal numbers are slow


@_jit
def _token(S, q, k, v, decay, b, w, u, o, least):
    """Forget, read, compare, write, answer: S [K, V] in place, the residual into u, the output into o."""
    K, V = S.shape
    zero = S.dtype.type(0)
    u[:] = 0
    for d in range(K):
        keep, e = decay[d], b[d] * k[d]
        for j in range(V):
            s = keep * S[d, j]
            S[d, j] = s = zero if abs(s) < least else s  # NaN stays
            u[j] += e * s
    for j in range(V):
        u[j] = w[j] * v[j] - u[j]
    o[:] = 0
    for d in range(K):
        key, query = k[d], q[d]
        for j in range(V):
            S[d, j] += key * u[j]
            o[j] += query * S[d, j]


@_jit
def _forward(tasks, q, k, v, decay, b, w, scale, least, state, kept, o, keep):
    """Each task (sequence, first token, last token, head, first kept state): a whole sequence of one head."""
    K, V = state.shape[2], state.shape[3]
    u, query = np.empty(V, q.dtype), np.empty(K, q.dtype)
    for task in range(len(tasks)):
        sequence, start, stop, h, place = tasks[task]
        S = state[sequence, h]
        for t in range(start, stop):
            if keep and (t - start) % SPAN == 0:
                kept[place] = S
                place += 1
            for d in range(K):
                query[d] = scale * q[t, h, d]
            _token(S, query, k[t, h], v[t, h], decay[t, h], b[t, h], w[t, h], u, o[t, h], least)


@_jit
def _backward(tasks, q, k, v, decay, b, w, scale, least, kept, do, dstate, dq, dk, dv, dg, db, dw):
    """The same tasks from the last token to the first; ``dstate`` turns from the last state's gradient to the first's."""
    K, V = dstate.shape[2], dstate.shape[3]
    dtype = q.dtype
    zero = dtype.type(0)
    states, residuals = np.empty((SPAN + 1, K, V), dtype), np.empty((SPAN, V), dtype)
    ignored, query, du = np.empty(V, dtype), np.zeros(K, dtype), np.empty(V, dtype)
    for task in range(len(tasks)):
        sequence, start, stop, h, place = tasks[task]
        dS = dstate[sequence, h]
        spans = (stop - start + SPAN - 1) // SPAN
        for span in range(spans - 1, -1, -1):
            first = start + span * SPAN
            count = min(SPAN, stop - first)
            states[0] = kept[place + span]
            for i in range(count):
                t = first + i
                states[i + 1] = states[i]
                _token(
                    states[i + 1], query, k[t, h], v[t, h], decay[t, h], b[t, h], w[t, h], residuals[i], ignored, least
                )
            for i in range(count - 1, -1, -1):
                t = first + i
                before, after, u = states[i], states[i + 1], residuals[i]
                du[:] = 0
                for d in range(K):
                    key, ask = k[t, h, d], scale * q[t, h, d]
                    answered, written = zero, zero
                    for j in range(V):
                        grad = dS[d, j] + ask * do[t, h, j]
                        dS[d, j] = grad
                        answered += after[d, j] * do[t, h, j]
                        written += grad * u[j]
                        du[j] += key * grad
                    dq[t, h, d] = scale * answered
                    dk[t, h, d] = written
                for d in range(K):
                    keep, gate, key = decay[t, h, d], b[t, h, d], k[t, h, d]
                    e = gate * key
                    read, lost = zero, zero
                    for j in range(V):
                        forgotten = keep * before[d, j]
                        grad = dS[d, j] - e * du[j]
                        read -= forgotten * du[j]
                        lost += forgotten * grad
                        grad *= keep
                        dS[d, j] = zero if abs(grad) < least else grad
                    dg[t, h, d] = lost
                    dk[t, h, d] += gate * read
                    db[t, h, d] = key * read
                for j in range(V):
                    dv[t, h, j] = w[t, h, j] * du[j]
                    dw[t, h, j] = v[t, h, j] * du[j]


def compiled(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, state: Tensor, *, scale: float, offsets: NDArray
) -> tuple[Tensor, Tensor]:
    """The rule over sequences laid end to end, on the threads that torch would use.

    Parameters
    ----------
    q, k, g, b : Tensor, shape [tokens, H, K]
        One dtype, float32 or float64, on the CPU.
    v, w : Tensor, shape [tokens, H, V]
    state : Tensor, shape [sequences, H, K, V]
    scale : float
        Of the query.
    offsets : int array, shape [sequences + 1]
        Where the sequences begin and end.

    Returns
    -------
    o : Tensor, shape [tokens, H, V]
    state : Tensor, shape [sequences, H, K, V]
    """
    return _Compiled.apply(q, k, v, g, b, w, state, scale, offsets)


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, state: Tensor, scale: float,
        offsets: NDArray,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        inputs = [t.detach().contiguous() for t in (q, k, v, g.exp(), b, w)]
        heads, (K, V) = q.shape[1], state.shape[2:]
        tasks = _tasks(offsets, heads)
        keep = any(ctx.needs_input_grad)
        spans = heads * int(sum(-(-n // SPAN) for n in np.diff(offsets)))
        state, o = state.detach().clone(memory_format=torch.contiguous_format), torch.empty_like(inputs[2])
        kept = q.new_empty(spans if keep else 0, K, V)
        arrays = [t.numpy() for t in inputs]
        _parallel(tasks, lambda part: _forward(part, *arrays, *_scalars(scale, q), state.numpy(), kept.numpy(),  # type: ignore[call-arg]
                                               o.numpy(), keep))  # fmt: skip
        if keep:
            ctx.save_for_backward(*inputs, kept)
            ctx.scale, ctx.tasks = scale, tasks
        return o, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dstate: Tensor) -> tuple[Any, ...]:
        *inputs, kept = ctx.saved_tensors
        made = [torch.empty_like(inputs[i]) for i in (0, 1, 2, 0, 4, 5)]
        dstate = dstate.clone(memory_format=torch.contiguous_format)
        arrays = [t.numpy() for t in inputs]
        out = [t.numpy() for t in made]
        do = do.contiguous()
        _parallel(ctx.tasks, lambda part: _backward(part, *arrays, *_scalars(ctx.scale, do), kept.numpy(), do.numpy(),  # type: ignore[call-arg]
                                                    dstate.numpy(), *out))  # fmt: skip
        return (*made, dstate, None, None)


def _scalars(scale: float, like: Tensor) -> tuple[Any, Any]:
    least = LEAST[like.dtype]
    return type(least)(scale), least  # type: ignore[call-arg]


def _tasks(offsets: NDArray, heads: int) -> NDArray:
    rows, place = [], 0
    for sequence, (start, stop) in enumerate(pairwise(offsets.tolist())):
        for h in range(heads):
            rows.append((sequence, start, stop, h, place))
            place += -(-(stop - start) // SPAN)
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


def _parallel(tasks: NDArray, run: Callable[[NDArray], None]) -> None:
    threads = min(torch.get_num_threads(), len(tasks))
    if threads <= 1:
        run(tasks)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, [np.ascontiguousarray(tasks[i::threads]) for i in range(threads)]))
