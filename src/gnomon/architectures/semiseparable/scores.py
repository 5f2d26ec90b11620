"""Scores under a decay of each channel: the semiseparable mask inside the inner product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gnomon.architectures.semiseparable.mask import check_decay

__all__ = ["decayed_scores"]


def decayed_scores(
    x: Tensor, y: Tensor, a: Tensor, strict: bool = False, *, block: int = 16, validate: bool = True
) -> Tensor:
    r"""Inner products of a chunk under channel-wise decay, with gradients.

    .. math:: M_{ij} = \sum_d x_{id}\, y_{jd} \exp\Big(\sum_{k=j+1}^{i} a_{kd}\Big) \quad \text{for } j \le i

    Layers that decay each channel by itself (gated linear attention, the gated delta rule) need these scores; K masks
    of size Q x Q are never made. Below the diagonal blocks, M is a product of x times its prefix in the block and of y
    times its suffix, carried from block to block; inside a block y is carried row by row. As in
    :func:`~gnomon.architectures.segsum`, every factor is a product of numbers in [0, 1].

    Parameters
    ----------
    x, y : Tensor, shape [..., Q, K]
    a : Tensor, shape [..., Q, K]
        Log-decays, at most 0; ``-inf`` is a reset. Half precisions are promoted to float32.
    strict : bool
        Leave out the diagonal (``j < i`` only).
    block : int
        Block size; does not change the result beyond rounding.
    validate : bool
        Check the decays (skipped under ``torch.compile``).

    Returns
    -------
    Tensor, shape [..., Q, Q]
        Zero above the diagonal.

    Raises
    ------
    ValueError
        If the shapes differ, a decay is positive or NaN, or the block is below 1.
    """
    if not x.shape == y.shape == a.shape or a.ndim < 2:
        raise ValueError(
            f"x, y, a must share a shape [..., Q, K]: {tuple(x.shape)}, {tuple(y.shape)}, {tuple(a.shape)}"
        )
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    if validate:
        check_decay(a)
    working = torch.promote_types(torch.promote_types(torch.promote_types(x.dtype, y.dtype), a.dtype), torch.float32)
    length = a.shape[-2]
    if length == 0:
        return x.new_zeros(*x.shape[:-1], 0, dtype=working)
    block = min(block, length)
    x, y, a = (F.pad(t.to(working), (0, 0, 0, -length % block)) for t in (x, y, a))
    return _Scores.apply(x, y, a, block).tril(-1 if strict else 0)[..., :length, :length]


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, a: Tensor, block: int) -> Tensor:
        ctx.save_for_backward(x, y, a)
        ctx.block = block
        x, y, decay = (t.unflatten(-2, (-1, block)) for t in (x, y, a.exp()))
        prefix, suffix = _inside(decay)

        # Diagonal blocks: y under the decay from its own row to the current one.
        carried, rows = torch.zeros_like(y), []
        for r in range(block):
            carried = _advance(carried, decay, y, r)
            rows.append(carried @ x[..., r, :, None])
        diagonal = torch.cat(rows, -1).transpose(-1, -2)

        strips, kept = [], y[..., 0, :0, :]
        for i in range(x.shape[-3]):
            below = (x * prefix)[..., i, :, :] @ kept.transpose(-1, -2)
            strips.append(F.pad(torch.cat([below, diagonal[..., i, :, :]], -1), (0, (x.shape[-3] - 1 - i) * block)))
            kept = torch.cat([kept * prefix[..., i, -1:, :], (y * suffix)[..., i, :, :]], -2)
        return torch.cat(strips, -2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dM: Tensor) -> tuple[Any, ...]:
        x, y, a = ctx.saved_tensors
        block, count = ctx.block, x.shape[-2] // ctx.block
        dM = dM.tril()
        xs, ys, decay = (t.unflatten(-2, (-1, block)) for t in (x, y, a.exp()))
        prefix, suffix = _inside(decay)
        inner = torch.stack(
            [dM[..., i * block : (i + 1) * block, i * block : (i + 1) * block] for i in range(count)], -3
        )

        carried, rows = torch.zeros_like(ys), []
        for r in range(block):
            carried = _advance(carried, decay, ys, r)
            rows.append(inner[..., r, None, :] @ carried)
        dx = torch.cat(rows, -2)

        # The same walk backwards: x under the decay from each column to its own row.
        carried, columns = torch.zeros_like(xs), []
        position = torch.arange(block, device=x.device)[:, None]
        for c in reversed(range(block)):
            if c + 1 < block:
                carried = carried * decay[..., c + 1, None, :]
            carried = torch.where(position == c, xs, carried)
            columns.append(inner[..., None, :, c] @ carried)
        dy = torch.cat(columns[::-1], -2)

        across, kept = [], ys[..., 0, :0, :]
        for i in range(count):
            rows_of = dM[..., i * block : (i + 1) * block, : i * block]
            across.append(prefix[..., i, :, :] * (rows_of @ kept))
            kept = torch.cat([kept * prefix[..., i, -1:, :], (ys * suffix)[..., i, :, :]], -2)
        dx = (dx + torch.stack(across, -3)).flatten(-3, -2)
        across, kept = [], xs[..., 0, :0, :]
        for j in reversed(range(count)):
            columns_of = dM[..., (j + 1) * block :, j * block : (j + 1) * block]
            across.append(suffix[..., j, :, :] * (columns_of.transpose(-1, -2) @ kept))
            kept = torch.cat([(xs * prefix)[..., j, :, :], kept * prefix[..., j, -1:, :]], -2)
        dy = (dy + torch.stack(across[::-1], -3)).flatten(-3, -2)

        # A decay is crossed by the pairs i >= k > j: a difference that can cancel, so it is taken in float64.
        crossing = x.double() * dx.double() - y.double() * dy.double()
        da = crossing.flip(-2).cumsum(-2).flip(-2).to(a.dtype)
        return dx, dy, da, None


def _inside(decay: Tensor) -> tuple[Tensor, Tensor]:
    """Products from the start of each block to a row (inclusive) and from after a row to the block's end."""
    prefix, suffix = [decay[..., 0, :]], [torch.ones_like(decay[..., 0, :])]
    for r in range(1, decay.shape[-2]):
        prefix.append(prefix[-1] * decay[..., r, :])
        suffix.append(suffix[-1] * decay[..., -r, :])
    return torch.stack(prefix, -2), torch.stack(suffix[::-1], -2)


def _advance(carried: Tensor, decay: Tensor, y: Tensor, row: int) -> Tensor:
    """Decay what is carried by one row and take in that row's own y."""
    position = torch.arange(y.shape[-2], device=y.device)[:, None]
    return torch.where(position == row, y, carried * decay[..., row, None, :])
