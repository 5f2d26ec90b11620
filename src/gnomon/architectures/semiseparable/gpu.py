"""Triton kernels: the mask by every method, and the forward walk of the SSD layer.

A GPU has no cheap shift along a register tile, so decays that a scan needs one place or one block further on are
loaded again from cache; that costs a few exponentials a token, still far from the Q / 2 of the other forms.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gnomon.architectures.semiseparable.plan import Segments

__all__ = ["check_sizes", "forward", "mask"]


def check_sizes(chunk_size: int, block: int) -> None:
    """Raise ValueError unless the sizes are powers of two, which the kernels need."""
    for name, value in (("chunk_size", chunk_size), ("block", min(block, chunk_size))):
        if value & (value - 1):
            raise ValueError(f"the triton back end needs {name} to be a power of 2, got {value}")


@triton.jit
def _times(a, b):
    return a * b


# --- the mask --------------------------------------------------------------------------------------------------------


@triton.jit
def _difference_kernel(a_ptr, out_ptr, Q: tl.constexpr, CLAMPED: tl.constexpr):
    chunk = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, Q)
    sums = tl.cumsum(tl.load(a_ptr + chunk * Q + i), 0)
    exponent = sums[:, None] - sums[None, :]
    if CLAMPED:
        exponent = tl.minimum(exponent, 0.0)
    exponent = tl.where(i[:, None] >= i[None, :], exponent, float("-inf"))
    tl.store(out_ptr + chunk * Q * Q + i[:, None] * Q + i[None, :], tl.exp(exponent))


@triton.jit
def _direct_kernel(a_ptr, out_ptr, Q: tl.constexpr):
    chunk = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, Q)
    a = tl.load(a_ptr + chunk * Q + i)
    sums = tl.cumsum(tl.where(i[:, None] > i[None, :], a[:, None], 0.0), 0)
    exponent = tl.where(i[:, None] >= i[None, :], sums, float("-inf"))
    tl.store(out_ptr + chunk * Q * Q + i[:, None] * Q + i[None, :], tl.exp(exponent))


@triton.jit
def _hier_kernel(a_ptr, out_ptr, Q: tl.constexpr, S: tl.constexpr, LOG: tl.constexpr):
    """One chunk: strips of S rows, the columns before each strip carried as in the CPU kernel."""
    chunk = tl.program_id(0).to(tl.int64)
    a_ptr += chunk * Q
    out_ptr += chunk * Q * Q
    r, j = tl.arange(0, S), tl.arange(0, Q)
    block = tl.arange(0, Q // S)[:, None]
    following = tl.load(a_ptr + block * S + r[None, :] + 1, mask=(r[None, :] + 1 < S), other=0.0)
    if LOG:
        suffix = tl.reshape(tl.cumsum(following, 1, reverse=True), [Q])
    else:
        suffix = tl.reshape(tl.cumprod(tl.exp(following), 1, reverse=True), [Q])
    kept = suffix
    for start in range(0, Q, S):
        own = tl.load(a_ptr + start + r)
        if LOG:
            prefix = tl.cumsum(own, 0)
            total = tl.sum(own, 0)
            strip = tl.exp(prefix[:, None] + kept[None, :])
            diagonal = tl.exp(tl.cumsum(tl.where(r[:, None] > r[None, :], own[:, None], 0.0), 0))
        else:
            own = tl.exp(own)
            prefix = tl.cumprod(own, 0)
            total = tl.reduce(own, 0, _times)
            strip = prefix[:, None] * kept[None, :]
            diagonal = tl.cumprod(tl.where(r[:, None] > r[None, :], own[:, None], 1.0), 0)
        strip = tl.where(j[None, :] < start, strip, 0.0)
        diagonal = tl.where(r[:, None] >= r[None, :], diagonal, 0.0)
        rows = out_ptr + (start + r)[:, None] * Q
        outside = (j < start) | (j >= start + S)
        tl.store(rows + j[None, :], strip, mask=outside[None, :])
        tl.store(rows + start + r[None, :], diagonal)
        if LOG:
            kept = tl.where(j < start, kept + total, suffix)
        else:
            kept = tl.where(j < start, kept * total, suffix)


def mask(a: Tensor, method: str, block: int, form: str) -> Tensor:
    """Masks [..., Q, Q] of log-decays [..., Q] on a GPU; see :func:`gnomon.architectures.segsum`.

    Raises
    ------
    ValueError
        If Q or the block is no power of two.
    """
    length = a.shape[-1]
    check_sizes(length, block)
    a = a.contiguous()
    out = a.new_empty(*a.shape, length)
    grid = (a.numel() // length,)
    if not grid[0]:
        return out
    if method == "direct":
        _direct_kernel[grid](a, out, Q=length)
    elif method == "hier":
        _hier_kernel[grid](a, out, Q=length, S=min(block, length), LOG=form == "log")
    else:
        _difference_kernel[grid](a, out, Q=length, CLAMPED=method == "diff_clamped")
    return out


# --- the layer -------------------------------------------------------------------------------------------------------


@triton.jit
def _decays(a_ptr, stride, valid, Q: tl.constexpr, S: tl.constexpr):
    """All decays of a tile (see ``tile_decays``), its mask in registers; positions from ``valid`` on do not decay."""
    N: tl.constexpr = Q // S
    block, r = tl.arange(0, N)[:, None], tl.arange(0, S)[None, :]
    k = block * S + r
    decay = tl.exp(tl.load(a_ptr + k * stride, mask=k < valid, other=0.0))  # [blocks, S]
    following = tl.exp(tl.load(a_ptr + (k + 1) * stride, mask=(r + 1 < S) & (k + 1 < valid), other=0.0))
    earlier = tl.exp(tl.load(a_ptr + (k - S) * stride, mask=(block > 0) & (k - S < valid), other=0.0))
    later = tl.exp(tl.load(a_ptr + (k + S) * stride, mask=(block + 1 < N) & (k + S < valid), other=0.0))
    prefix = tl.cumprod(decay, 1)
    suffix = tl.cumprod(following, 1, reverse=True)
    before = tl.reduce(earlier, 1, _times)  # total of the block before each, [blocks]
    after = tl.reduce(later, 1, _times)

    # Between two blocks: the products of all blocks strictly between them.
    I, J = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    between = tl.cumprod(tl.where(I - 1 > J, before[:, None], 1.0), 0)
    columns = tl.reshape(between[:, :, None] * suffix[None, :, :], [N, Q])
    below = prefix[:, :, None] * columns[:, None, :]  # [blocks, S, Q]

    # Inside a block: row r is its decay times row r - 1.
    row, column = tl.arange(0, S)[:, None], tl.arange(0, Q)[None, :]
    spread = tl.reshape(tl.broadcast_to(tl.trans(decay)[:, :, None], [S, N, S]), [S, Q])
    inside = tl.cumprod(tl.where(row > column % S, spread, 1.0), 0)
    inside = tl.where(row >= column % S, inside, 0.0)

    own = (tl.arange(0, Q) // S)[None, None, :]
    index = tl.arange(0, N)[:, None, None]
    mask = tl.where(own == index, inside[None, :, :], tl.where(own < index, below, 0.0))
    from_start = tl.reshape(tl.cumprod(before, 0)[:, None] * prefix, [Q])
    to_end = tl.reshape(tl.cumprod(after, 0, reverse=True)[:, None] * suffix, [Q])
    total = tl.reduce(tl.reduce(decay, 1, _times), 0, _times)
    return tl.reshape(mask, [Q, Q]), from_start, to_end, total


@triton.jit
def _walk_kernel(
    x_ptr, a_ptr, b_ptr, c_ptr, y_ptr, state_ptr, out_ptr, total_ptr, start_ptr, stop_ptr,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, P: tl.constexpr, N: tl.constexpr,
    BP: tl.constexpr, BN: tl.constexpr, Q: tl.constexpr, S: tl.constexpr,
    OUTPUTS: tl.constexpr, LEAVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One (head, segment): its tiles in order, the state [P, N] in registers. BP and BN pad P and N to powers of two."""
    head, segment = tl.program_id(0), tl.program_id(1).to(tl.int64)
    group = head // (HEADS // GROUPS)
    start, stop = tl.load(start_ptr + segment), tl.load(stop_ptr + segment)
    i, p, n = tl.arange(0, Q), tl.arange(0, BP), tl.arange(0, BN)
    state_at = (segment * HEADS + head) * P * N + p[:, None] * N + n[None, :]
    inner = (p[:, None] < P) & (n[None, :] < N)
    state = tl.load(state_ptr + state_at, mask=inner, other=0.0)
    whole = 1.0
    for t in range(start, stop, Q):
        valid = stop - t
        live = i[:, None] < valid
        mask, from_start, to_end, total = _decays(a_ptr + t * HEADS + head, HEADS, valid, Q, S)
        x_at = (t + i[:, None]) * HEADS * P + head * P + p[None, :]
        g_at = (t + i[:, None]) * GROUPS * N + group * N + n[None, :]
        x = tl.load(x_ptr + x_at, mask=live & (p[None, :] < P), other=0.0)
        b = tl.load(b_ptr + g_at, mask=live & (n[None, :] < N), other=0.0)
        if OUTPUTS:
            c = tl.load(c_ptr + g_at, mask=live & (n[None, :] < N), other=0.0)
            scores = tl.dot(c, tl.trans(b), input_precision=PRECISION)
            y = tl.dot((mask * scores).to(b.dtype), x.to(b.dtype), input_precision=PRECISION)
            carried = tl.dot(c, tl.trans(state).to(c.dtype), input_precision=PRECISION)
            y += from_start[:, None] * carried
            tl.store(y_ptr + x_at, y, mask=live & (p[None, :] < P))
        if LEAVE or t + Q < stop:
            weighted = (to_end[:, None] * x).to(b.dtype)
            state = total * state + tl.dot(tl.trans(weighted), b, input_precision=PRECISION)
            whole = whole * total
    if LEAVE:
        tl.store(out_ptr + state_at, state, mask=inner)
        tl.store(total_ptr + segment * HEADS + head, whole)


def forward(
    x: Tensor, a: Tensor, B: Tensor, C: Tensor | None, state: Tensor, parts: Segments, *, chunk: int, block: int,
    leave: bool, precision: str = "ieee",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Walk every segment of x [tokens, h, P], a [tokens, h], B and C [tokens, g, N] from its state [R, h, P, N].

    Parameters
    ----------
    chunk, block : int
        Compute tile and mask block, powers of two, the tile at least 16.
    leave : bool
        Bring the states to the end of the last tile and keep them.
    precision : {"ieee", "tf32x3", "tf32"}
        Of products where B is float32; where it is half, all products are taken in its dtype and summed in float32.

    Returns
    -------
    y : Tensor, shape [tokens, h, P], float32 (x itself without C)
    state : Tensor, shape [R, h, P, N]
        What leaves each segment (if ``leave``, else unspecified).
    total : Tensor, shape [R, h]
        Decay over each segment (likewise).

    Raises
    ------
    ValueError
        For float64 states, which the kernel does not hold.
    """
    if state.dtype != torch.float32:
        raise ValueError(f"the triton back end keeps float32 states, got {state.dtype}; use backend='torch'")
    x, a, B, state = x.contiguous(), a.contiguous(), B.contiguous(), state.contiguous()
    C = None if C is None else C.contiguous()
    heads, width, groups, size = x.shape[1], x.shape[2], B.shape[1], B.shape[2]
    y = x if C is None else torch.empty_like(x)
    out, total = torch.empty_like(state), state.new_empty(len(parts), heads)
    starts, stops = (torch.from_numpy(t).to(x.device) for t in (parts.start, parts.stop))
    padded = max(16, triton.next_power_of_2(width)), max(16, triton.next_power_of_2(size))
    _walk_kernel[(heads, len(parts))](
        x, a, B, B if C is None else C, y, state, out, total, starts, stops,
        HEADS=heads, GROUPS=groups, P=width, N=size, BP=padded[0], BN=padded[1], Q=chunk, S=min(block, chunk),
        OUTPUTS=C is not None, LEAVE=leave, PRECISION=precision,
        num_warps=8 if chunk * chunk + padded[0] * padded[1] > 8192 else 4,
    )  # fmt: skip
    return y, out, total
