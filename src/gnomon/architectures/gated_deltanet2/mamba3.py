"""Mamba-3, single and multiple input, on the kernels of the rule: the strongest recurrent baseline without erasing.

Its trapezoidal discretisation lets a token enter the state in two parts, one now and one a token later. Token j so
enters all later queries with weight ``gamma_j + (1 - lambda_{j+1}) Delta_{j+1}`` and its own query with ``gamma_j``: a
plain recurrence with those weights, less what its own query saw too much.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.architectures.gated_deltanet2.projection import Projection
from gnomon.architectures.gated_deltanet2.rule import gated_delta_rule2

__all__ = ["Mamba3", "trapezoidal"]

FLOOR = 1e-4  # of the rate -A


def trapezoidal(q: Tensor, k: Tensor, v: Tensor, step: Tensor, A: Tensor, lam: Tensor, mode: str = "auto") -> Tensor:
    r"""``S_t = a_t S_{t-1} + (1 - lam_t) Delta_t a_t k_{t-1} v_{t-1}^T + lam_t Delta_t k_t v_t^T``, ``y_t = S_t^T q_t``.

    Parameters
    ----------
    q, k : Tensor, shape [B, T, H, R, K]
        R copies: the state sums their rank-one terms, each query reads the whole state.
    v : Tensor, shape [B, T, H, R, V]
    step, A, lam : Tensor, shape [B, T, H]
        Delta > 0, A < 0, lambda in [0, 1]; ``a = exp(A Delta)``.
    mode : str
        Of :func:`~gnomon.architectures.gated_delta_rule2`.

    Returns
    -------
    Tensor, shape [B, T, H, R, V]
    """
    rank, length = q.shape[3], q.shape[1]
    late = F.pad(((1 - lam) * step)[:, 1:], (0, 0, 0, 1))  # what the next token adds of this one
    weight = lam * step + late
    decay = A * step

    # R writes, then R reads, as that many tokens; only the first of a token's writes decays the state.
    def spread(t: Tensor, reads: bool) -> Tensor:
        rows = torch.cat([torch.zeros_like(t), t] if reads else [t, torch.zeros_like(t)], 3)
        return rows.permute(0, 1, 3, 2, 4).flatten(1, 2)  # [B, T * 2R, H, D]

    if rank == 1:
        queries, keys, values = q[..., 0, :], k[..., 0, :], v[..., 0, :] * weight[..., None]
        g = decay[..., None].expand_as(keys)
    else:
        queries, keys, values = spread(q, True), spread(k, False), spread(v * weight[..., None, None], False)
        first = F.pad(decay[:, :, None], (0, 0, 0, 2 * rank - 1)).flatten(1, 2)
        g = first[..., None].expand_as(keys)
    y, _ = gated_delta_rule2(queries, keys, values, g, torch.zeros_like(keys), torch.ones_like(values), scale=1.0,
                             output_final_state=False, mode=mode, validate=False)  # fmt: skip
    y = y[:, :, :, None] if rank == 1 else y.unflatten(1, (length, 2 * rank))[:, :, rank:].transpose(2, 3)
    return y - late[..., None, None] * ((q @ k.transpose(-1, -2)) @ v)


class Mamba3(nn.Module):
    """The mixer of Mamba-3: no short convolution, rotated queries and keys with biases, a skip and a gate.

    Parameters
    ----------
    hidden_size, head_dim, num_heads : int
        Width, state size (= value channels) of a head, heads.
    rank : int
        1, or the number of inputs and outputs a token has (MIMO).
    rope_fraction : float
        Share of the state's pairs of channels that is rotated, 0.5 or 1.
    """

    def __init__(self, hidden_size: int, head_dim: int, num_heads: int, rank: int = 1, rope_fraction: float = 0.5):
        super().__init__()
        inner = num_heads * head_dim
        self.num_heads, self.head_dim, self.rank = num_heads, head_dim, rank
        self.pairs = int(head_dim // 2 * rope_fraction)
        self.parts = [inner, inner, rank * head_dim, rank * head_dim, num_heads, num_heads, num_heads, self.pairs]
        self.in_proj = Projection(hidden_size, *self.parts)  # v, z, B, C, dt, A, lambda, theta
        self.B_norm, self.C_norm = (nn.RMSNorm(head_dim, 1e-5) for _ in range(2))
        self.B_bias, self.C_bias = (nn.Parameter(torch.ones(num_heads, rank, head_dim)) for _ in range(2))
        self.dt_bias = nn.Parameter(torch.empty(num_heads))
        self.D = nn.Parameter(torch.ones(num_heads))
        if rank > 1:  # how a value becomes R inputs, a gate R gates, R outputs one
            self.X = nn.Parameter(torch.full((num_heads, rank, head_dim), 1 / rank))
            self.Z = nn.Parameter(torch.ones(num_heads, rank, head_dim))
            self.O = nn.Parameter(torch.full((num_heads, rank, head_dim), 1 / rank))
        self.o_norm = nn.Parameter(torch.ones(head_dim))
        self.out_proj = Projection(inner, hidden_size)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As the other mixers: Xavier-uniform with gain 2^-2.5, steps log-uniform from 1e-3 to 0.1."""
        self.in_proj.reset_parameters()
        self.out_proj.reset_parameters()
        step = nn.init.uniform_(self.dt_bias, math.log(1e-3), math.log(0.1)).exp()
        self.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        """Mix along the sequence, [B, T, hidden_size]; without padding or cache."""
        heads, rank = self.num_heads, self.rank
        v, z, B, C, dt, A, lam, theta = self.in_proj(hidden_states).split(self.parts, -1)
        v, z = (t.unflatten(-1, (heads, 1, self.head_dim)) for t in (v, z))
        step = F.softplus(dt + self.dt_bias)
        angle = (theta[:, :, None] * step[..., None]).cumsum(1)[:, :, :, None]  # [B, T, H, 1, pairs]
        k, q = (
            _rotated(norm(t.unflatten(-1, (1, rank, self.head_dim))) + bias, angle)
            for t, norm, bias in ((B, self.B_norm, self.B_bias), (C, self.C_norm, self.C_bias))
        )
        values = v if rank == 1 else v * self.X
        y = trapezoidal(q, k, values, step, (-F.softplus(A)).clamp(max=-FLOOR), lam.sigmoid())
        y = y + self.D[:, None, None] * values
        y = F.rms_norm(y, y.shape[-1:], self.o_norm, 1e-5) * F.silu(z if rank == 1 else z * self.Z)
        y = y[..., 0, :] if rank == 1 else (y * self.O).sum(-2)
        return self.out_proj(y.flatten(-2))


def _rotated(x: Tensor, angle: Tensor) -> Tensor:
    """The first pairs of neighbouring channels of x [..., K] turned by the angles [..., pairs]."""
    pairs = angle.shape[-1]
    turned, kept = x[..., : 2 * pairs].unflatten(-1, (pairs, 2)), x[..., 2 * pairs :]
    cos, sin = angle.cos(), angle.sin()
    first, second = turned.unbind(-1)
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)
    return torch.cat([turned, kept], -1)
