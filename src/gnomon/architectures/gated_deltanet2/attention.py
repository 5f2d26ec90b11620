"""Causal softmax attention with rotary positions, over a window or over all: the other layers of a hybrid."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.architectures.gated_deltanet2.projection import Projection

__all__ = ["Attention"]


class Attention(nn.Module):
    """Softmax attention; what it may see is decided by the mask it is given. It starts as the recurrent layers do.

    Parameters
    ----------
    hidden_size, head_dim, num_heads : int
    rope_theta : float
        Base of the rotary frequencies.
    layer_idx : int
        Which entry of a cache is this layer's.
    """

    def __init__(self, hidden_size: int, head_dim: int, num_heads: int, rope_theta: float = 1e4, layer_idx: int = 0):
        super().__init__()
        self.head_dim, self.num_heads, self.rope_theta, self.layer_idx = head_dim, num_heads, rope_theta, layer_idx
        inner = head_dim * num_heads
        self.qkv_proj = Projection(hidden_size, inner, inner, inner)
        self.o_proj = Projection(inner, hidden_size)

    def forward(
        self, hidden_states: Tensor, cache: Any = None, attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Attend.

        Parameters
        ----------
        hidden_states : Tensor, shape [B, T, hidden_size]
        cache : transformers.Cache, optional
        attention_mask : bool Tensor, shape [B, 1, T, seen], optional
            What each token may see; None: all up to itself.
        position_ids : Tensor, shape [B or 1, T], optional

        Returns
        -------
        Tensor, shape [B, T, hidden_size]
        """
        q, k, v = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv_proj(hidden_states).chunk(3, -1)
        )
        if position_ids is None:
            position_ids = torch.arange(q.shape[2], device=q.device)[None]
        q, k = rotate(q, position_ids, self.rope_theta), rotate(k, position_ids, self.rope_theta)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        causal = attention_mask is None and q.shape[2] > 1
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask, is_causal=causal)
        return self.o_proj(o.transpose(1, 2).flatten(-2))


def rotate(x: Tensor, position_ids: Tensor, theta: float) -> Tensor:
    """Rotary position embedding of x [B, H, T, K], K even, the two halves of a head forming the pairs."""
    half = x.shape[-1] // 2
    rates = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = position_ids[:, None, :, None].float() * rates
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
