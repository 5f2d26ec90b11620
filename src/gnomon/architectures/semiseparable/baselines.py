"""What the layer is compared with: the recurrence, the dense form, the minimal chunked listing, attention.

All take ``(x, a, B, C)`` as :func:`gnomon.architectures.semiseparable.ssd_scan` does, and return y.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gnomon.architectures.semiseparable.mask import segsum

__all__ = ["attention", "dense", "recurrence", "ssd_minimal"]


def recurrence(x: Tensor, a: Tensor, B: Tensor, C: Tensor, state: Tensor | None = None) -> Tensor:
    """The definition, one token at a time: ``S_t = exp(a_t) S_{t-1} + x_t B_t^T``, ``y_t = S_t C_t``."""
    B, C = _by_head(x, B, C)
    if state is None:
        state = x.new_zeros(*x.shape[:1], *x.shape[2:], B.shape[-1])
    outputs = []
    for t in range(x.shape[1]):
        state = a[:, t, :, None, None].exp() * state + x[:, t, ..., None] * B[:, t, :, None]
        outputs.append((state @ C[:, t, ..., None])[..., 0])
    return torch.stack(outputs, 1)


def dense(x: Tensor, a: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The quadratic form, ``Y = (L * C B^T) X`` over the whole sequence, the mask by direct sums."""
    B, C = _by_head(x, B, C)
    scores = torch.einsum("bthn,bshn->bhts", C, B)
    return torch.einsum("bhts,bshp->bthp", segsum(a.transpose(1, 2), "direct", validate=False) * scores, x)


def ssd_minimal(x: Tensor, a: Tensor, B: Tensor, C: Tensor, chunk: int = 64) -> Tensor:
    """The minimal chunked listing of Dao and Gu (arXiv:2405.21060, listing 1), written anew.

    Direct sums for every chunk's mask and for the recurrence over chunks, all chunks at once, by einsum.

    Raises
    ------
    ValueError
        If the length is no multiple of the chunk.
    """
    if x.shape[1] % chunk:
        raise ValueError(f"the length {x.shape[1]} must be a multiple of the chunk {chunk}")
    B, C = _by_head(x, B, C)
    x, B, C = (t.unflatten(1, (-1, chunk)) for t in (x, B, C))
    a = a.unflatten(1, (-1, chunk)).permute(0, 3, 1, 2)  # b h c l
    mask = _segment_sums(a).exp()
    inside = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", C, B, mask, x)

    sums = a.cumsum(-1)
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", B, (sums[..., -1:] - sums).exp(), x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    across = _segment_sums(F.pad(sums[..., -1], (1, 0))).exp()
    entering = torch.einsum("bhzc,bchpn->bzhpn", across, states)[:, :-1]
    carried = torch.einsum("bclhn,bchpn,bhcl->bclhp", C, entering, sums.exp())
    return (inside + carried).flatten(1, 2)


def attention(x: Tensor, a: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Causal softmax attention at the same width: h heads of dimension P, ``x`` for queries, keys and values alike.

    What a softmax layer of this size costs, not what it computes: the decays and the projections to N are unused.
    """
    q = x.transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2)


def _by_head(x: Tensor, *projections: Tensor) -> list[Tensor]:
    return [p.repeat_interleave(x.shape[2] // p.shape[2], 2) for p in projections]


def _segment_sums(a: Tensor) -> Tensor:
    """Exponents of the mask of every chunk: a masked cumulative sum down the rows, in one call."""
    length = a.shape[-1]
    lower = torch.ones(length, length, dtype=torch.bool, device=a.device).tril()
    sums = a[..., None].expand(*a.shape, length).masked_fill(~lower.tril(-1), 0).cumsum(-2)
    return sums.masked_fill(~lower, -torch.inf)
