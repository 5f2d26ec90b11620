"""Triton kernels of the chunkwise forward pass: scores, the triangular solve, the walk of the state.

Each exponent is a sum of log-decays of one sign, never a difference of two: a chunk may hold any decay, ``-inf`` too.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnomon.architectures.gated_deltanet2.chunked import gradients, in_chunks

__all__ = ["chunked", "fits"]

LEAST = 16  # rows that a tensor core takes


def fits(chunk: int) -> bool:
    """Whether the kernels can use this chunk: a power of two from 16 to 64."""
    return LEAST <= chunk <= 64 and not chunk & (chunk - 1)


@triton.jit
def _scores_kernel(
    q_ptr, k_ptr, b_ptr, g_ptr, p_ptr, a_ptr, T, H: tl.constexpr, K: tl.constexpr, BK: tl.constexpr,
    C: tl.constexpr, S: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """S rows of the scores P and A of a chunk: the block on the diagonal token by token, those left of it as products."""
    chunk, I, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    batch, head = sequence // H, sequence % H
    i, d = tl.arange(0, S), tl.arange(0, BK)
    inside = d < K
    base = (batch.to(tl.int64) * T * H + head) * K
    t = chunk * C + I * S
    at = base + (t + i[:, None]) * H * K + d[None, :]
    live = (t + i[:, None] < T) & inside[None, :]
    q = tl.load(q_ptr + at, mask=live, other=0.0)
    k = tl.load(k_ptr + at, mask=live, other=0.0)
    e = k * tl.load(b_ptr + at, mask=live, other=0.0)
    g = tl.load(g_ptr + at, mask=live, other=0.0)
    rows = ((sequence.to(tl.int64) * tl.num_programs(0) + chunk) * C + I * S + i[:, None]) * C

    # From the last column to the first, the decay from the column to every row grows by one factor.
    carried = tl.full([S, BK], 1.0, tl.float32)
    P, A = tl.zeros([S, S], tl.float32), tl.zeros([S, S], tl.float32)
    for n in range(S):
        j = S - 1 - n
        token = t + j + 0 * d
        here = base + token * H * K + d
        step = tl.load(g_ptr + here + H * K, mask=inside & (token + 1 < T), other=0.0)
        key = tl.load(k_ptr + here, mask=inside & (token < T), other=0.0)
        carried = tl.where(i[:, None] > j, carried * tl.exp(step)[None, :], carried)
        weighted = carried * key[None, :]
        column = i[None, :] == j
        P = tl.where(column & (i[:, None] >= j), tl.sum(q * weighted, 1)[:, None], P)
        A = tl.where(column & (i[:, None] > j), tl.sum(e * weighted, 1)[:, None], A)
    tl.store(p_ptr + rows + I * S + i[None, :], P)
    tl.store(a_ptr + rows + I * S + i[None, :], A)

    prefix = tl.exp(tl.cumsum(g, 0))
    q, e = q * prefix, e * prefix
    between = tl.zeros([BK], tl.float32)  # log-decay of the blocks between the two
    for n in range(I):
        J = I - 1 - n
        token = chunk * C + J * S + i[:, None]
        live = (token < T) & inside[None, :]
        at = base + token * H * K + d[None, :]
        key = tl.load(k_ptr + at, mask=live, other=0.0)
        following = tl.load(g_ptr + at + H * K, mask=live & (token + 1 < T) & (i[:, None] + 1 < S), other=0.0)
        suffix = tl.exp(tl.cumsum(following, 0, reverse=True) + between[None, :])
        y = tl.trans(key * suffix)
        tl.store(p_ptr + rows + J * S + i[None, :], tl.dot(q, y, input_precision=PRECISION))
        tl.store(a_ptr + rows + J * S + i[None, :], tl.dot(e, y, input_precision=PRECISION))
        between += tl.sum(tl.load(g_ptr + at, mask=live, other=0.0), 0)


@triton.jit
def _solve_kernel(
    k_ptr, v_ptr, b_ptr, w_ptr, g_ptr, a_ptr, u_ptr, w_out_ptr, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(I + A)^-1 of a chunk by forward substitution, times the values and the decayed erase keys."""
    chunk, sequence = tl.program_id(0), tl.program_id(1)
    batch, head = sequence // H, sequence % H
    i, d, j = tl.arange(0, C), tl.arange(0, BK), tl.arange(0, BV)
    number = sequence.to(tl.int64) * tl.num_programs(0) + chunk
    inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for r in range(1, C):
        row = tl.load(a_ptr + (number * C + r) * C + i)
        solved = tl.where(i == r, 1.0, 0.0) - tl.sum(row[:, None] * inverse, 0)
        inverse = tl.where(i[:, None] == r, solved[None, :], inverse)

    token = chunk * C + i[:, None]
    place = (batch.to(tl.int64) * T + token) * H + head
    live_k, live_v = (token < T) & (d[None, :] < K), (token < T) & (j[None, :] < V)
    at = place * K + d[None, :]
    e = tl.load(k_ptr + at, mask=live_k, other=0.0) * tl.load(b_ptr + at, mask=live_k, other=0.0)
    e = e * tl.exp(tl.cumsum(tl.load(g_ptr + at, mask=live_k, other=0.0), 0))
    at = place * V + j[None, :]
    z = tl.load(v_ptr + at, mask=live_v, other=0.0) * tl.load(w_ptr + at, mask=live_v, other=0.0)
    out = number * C + i[:, None]
    tl.store(w_out_ptr + out * K + d[None, :], tl.dot(inverse, e, input_precision=PRECISION), mask=d[None, :] < K)
    tl.store(u_ptr + out * V + j[None, :], tl.dot(inverse, z, input_precision=PRECISION), mask=j[None, :] < V)


@triton.jit
def _walk_kernel(
    q_ptr, k_ptr, g_ptr, p_ptr, u_ptr, w_ptr, state_ptr, states_ptr, o_ptr, T, COUNT, H: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Some value channels of one head: its chunks in order, the state [K, BV] in registers."""
    sequence = tl.program_id(1)
    batch, head = sequence // H, sequence % H
    i, d, j = tl.arange(0, C), tl.arange(0, BK), tl.program_id(0) * BV + tl.arange(0, BV)
    inner = (d[:, None] < K) & (j[None, :] < V)
    at_state = sequence.to(tl.int64) * K * V + d[:, None] * V + j[None, :]
    state = tl.load(state_ptr + at_state, mask=inner, other=0.0)
    for chunk in range(COUNT):
        number = sequence.to(tl.int64) * COUNT + chunk
        if KEEP:
            tl.store(states_ptr + number * K * V + d[:, None] * V + j[None, :], state, mask=inner)
        token = chunk * C + i[:, None]
        place = (batch.to(tl.int64) * T + token) * H + head
        live = (token < T) & (d[None, :] < K)
        at = place * K + d[None, :]
        g = tl.load(g_ptr + at, mask=live, other=0.0)
        following = tl.load(g_ptr + at + H * K, mask=live & (token + 1 < T) & (i[:, None] + 1 < C), other=0.0)
        q = tl.load(q_ptr + at, mask=live, other=0.0) * tl.exp(tl.cumsum(g, 0))
        k = tl.load(k_ptr + at, mask=live, other=0.0) * tl.exp(tl.cumsum(following, 0, reverse=True))
        rows = number * C + i[:, None]
        w = tl.load(w_ptr + rows * K + d[None, :], mask=d[None, :] < K, other=0.0)
        u = tl.load(u_ptr + rows * V + j[None, :], mask=j[None, :] < V, other=0.0)
        p = tl.load(p_ptr + rows * C + i[None, :])
        u -= tl.dot(w, state, input_precision=PRECISION)
        o = tl.dot(q, state, input_precision=PRECISION) + tl.dot(p, u, input_precision=PRECISION)
        tl.store(o_ptr + place * V + j[None, :], o, mask=(token < T) & (j[None, :] < V))
        state = tl.exp(tl.sum(g, 0))[:, None] * state + tl.dot(tl.trans(k), u, input_precision=PRECISION)
    tl.store(state_ptr + at_state, state, mask=inner)


def chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, state: Tensor, *, chunk: int = 64,
    block: int = 16, precision: str = "ieee",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The rule over whole sequences on a GPU; the backward pass is that of the chunkwise form in torch.

    Parameters
    ----------
    q, k, g, b : Tensor, shape [B, T, H, K], float32
        The query already scaled.
    v, w : Tensor, shape [B, T, H, V], float32
    state : Tensor, shape [B, H, K, V], float32
    chunk : int
        A power of two from 16 to 64.
    block : int
        Sub-chunks; at least 16 here, at most the chunk.
    precision : {"ieee", "tf32x3", "tf32"}
        Of the products.

    Returns
    -------
    o : Tensor, shape [B, T, H, V]
    state : Tensor, shape [B, H, K, V]

    Raises
    ------
    ValueError
        For a chunk or sub-chunk that is no such power of two, or float64.
    """
    block = min(max(block, LEAST), chunk)
    if not fits(chunk) or block & (block - 1):
        raise ValueError(f"mode 'triton' needs chunk_size and sub_chunk to be powers of two, the former from 16 to 64, "
                         f"got {chunk} and {block}")  # fmt: skip
    if q.dtype != torch.float32:
        raise ValueError(f"mode 'triton' computes in float32, got {q.dtype}; use mode='chunk'")
    if q.shape[1] == 0:
        return torch.zeros_like(v), state
    o, state = _Triton.apply(q, k, v, g, b, w, state, chunk, block, precision)
    return o, state


class _Triton(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, state: Tensor, chunk: int,
        block: int, precision: str,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        q, k, v, g, b, w = (t.contiguous() for t in (q, k, v, g, b, w))
        B, T, H, K = q.shape
        V, count = v.shape[-1], -(-T // chunk)
        keep = any(ctx.needs_input_grad)
        P, A = q.new_zeros(2, B, H, count, chunk, chunk).unbind()
        W, U = q.new_empty(B, H, count, chunk, K), q.new_empty(B, H, count, chunk, V)
        states = q.new_empty(B, H, count, K, V) if keep else state
        o, state = torch.empty_like(v), state.clone(memory_format=torch.contiguous_format)
        BK, BV = (max(LEAST, triton.next_power_of_2(n)) for n in (K, V))
        part = min(BV, 32)
        shape = {"H": H, "K": K, "BK": BK, "C": chunk, "PRECISION": precision,
                 "num_warps": 8 if BK >= 64 else 4, "num_stages": 1}  # fmt: skip
        _scores_kernel[(count, chunk // block, B * H)](q, k, b, g, P, A, T, S=block, **shape)
        _solve_kernel[(count, B * H)](k, v, b, w, g, A, U, W, T, V=V, BV=BV, **shape)
        _walk_kernel[(triton.cdiv(V, part), B * H)](q, k, g, P, U, W, state, states, o, T, count, V=V, BV=part,
                                                   KEEP=keep, **shape)  # fmt: skip
        if keep:
            ctx.save_for_backward(q, k, v, g, b, w, states)
            ctx.chunk, ctx.block = chunk, block
        return o, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dstate: Tensor) -> tuple[Any, ...]:
        q, k, v, g, b, w, states = ctx.saved_tensors
        split: Any = [in_chunks(t, ctx.chunk) for t in (q, k, b * k, w * v, g, do)]
        *made, first = gradients(*split[:5], states, split[5], dstate, ctx.block)  # type: ignore[call-arg]
        dq, dk, de, dz, dg = (t.flatten(2, 3)[:, :, : q.shape[1]].transpose(1, 2) for t in made)
        return dq, dk + b * de, w * dz, dg, k * de, v * dz, first, None, None, None
