"""The layer: projections, a short causal convolution, the rule, a gated norm."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.architectures.gated_deltanet2.projection import Projection
from gnomon.architectures.gated_deltanet2.rule import gated_delta_rule2, gated_delta_rule2_step, l2_normalize

__all__ = ["DECAYS", "ERASES", "GatedDeltaNet2", "Gates", "OUT_GATES", "WRITES"]

ERASES = ("channel", "scalar", "none")
WRITES = ("channel", "scalar", "tied", "step", "none")
DECAYS = ("channel", "scalar", "none")
OUT_GATES = ("silu", "sigmoid")


class Gates(NamedTuple):
    """What the rule is given: q, k, g, b of shape [B, T, HV, K]; v, w of shape [B, T, HV, V]."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    b: Tensor
    w: Tensor


class GatedDeltaNet2(nn.Module):
    """A token mixer with O(T) training and a memory of constant size in decoding.

    The defaults are Gated DeltaNet-2. The choices of gates give its relatives in the same block, with the same
    projections, convolution and output: KDA is ``erase="scalar", write="tied"``; Gated DeltaNet also
    ``decay="scalar"``, DeltaNet ``decay="none"``; Mamba-2's recurrence ``erase="none", write="step",
    decay="scalar"``; gated linear attention ``erase="none", write="none"``.

    Parameters
    ----------
    hidden_size : int
        Width of the residual stream.
    head_dim : int
        Key channels K of a head.
    num_heads : int
        Heads of queries, keys, decays and erase gates.
    num_v_heads : int, optional
        Heads of values and write gates, a multiple of ``num_heads`` (default: the same), over which the former are
        repeated.
    expand_v : float
        Value channels of a head in units of ``head_dim``.
    use_short_conv : bool
        Convolve queries, keys and values, channel by channel and causally.
    conv_size : int
        Length of the convolution.
    allow_neg_eigval : bool
        Erase gates up to 2, and with ``write="tied"`` so the write gates.
    erase : {"channel", "scalar", "none"}
        A gate for each key channel, for each head, or no erasing.
    write : {"channel", "scalar", "tied", "step", "none"}
        A gate for each value channel, for each head, the scalar erase gate, the step that also sets the scalar decay
        (softplus, as in Mamba-2), or 1.
    decay : {"channel", "scalar", "none"}
    out_gate : {"silu", "sigmoid"}
        Of the output.
    norm_eps : float
    layer_idx : int
        Which entry of a cache is this layer's.
    mode : str
        As in :func:`~gnomon.architectures.gated_delta_rule2`.

    Raises
    ------
    ValueError
        For an unknown choice, ``write="tied"`` without ``erase="scalar"``, ``write="step"`` without
        ``decay="scalar"``, value heads that are no multiple of the heads, or sizes below 1.

    References
    ----------
    Hatamizadeh, Choi and Kautz (arXiv:2605.22791).
    """

    def __init__(
        self,
        hidden_size: int = 2048,
        head_dim: int = 128,
        num_heads: int = 16,
        num_v_heads: int | None = None,
        expand_v: float = 1.0,
        use_short_conv: bool = True,
        conv_size: int = 4,
        allow_neg_eigval: bool = False,
        *,
        erase: str = "channel",
        write: str = "channel",
        decay: str = "channel",
        out_gate: str = "silu",
        norm_eps: float = 1e-5,
        layer_idx: int = 0,
        mode: str = "auto",
    ):
        super().__init__()
        num_v_heads = num_heads if num_v_heads is None else num_v_heads
        for name, value, known in (("erase", erase, ERASES), ("write", write, WRITES), ("decay", decay, DECAYS),
                                   ("out_gate", out_gate, OUT_GATES)):  # fmt: skip
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if write == "tied" and erase != "scalar":
            raise ValueError(f"write='tied' uses the scalar erase gate: it needs erase='scalar', got {erase!r}")
        if write == "step" and decay != "scalar":
            raise ValueError(f"write='step' uses the step of a scalar decay: it needs decay='scalar', got {decay!r}")
        head_v_dim = int(head_dim * expand_v)
        for name, size in (("hidden_size", hidden_size), ("head_dim", head_dim), ("num_heads", num_heads),
                           ("head_dim * expand_v", head_v_dim), ("conv_size", conv_size)):  # fmt: skip
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if num_v_heads % num_heads or num_v_heads < 1:
            raise ValueError(f"num_v_heads must be a multiple of num_heads = {num_heads}, got {num_v_heads}")
        self.head_dim, self.head_v_dim, self.num_heads, self.num_v_heads = head_dim, head_v_dim, num_heads, num_v_heads
        self.erase, self.write, self.decay, self.out_gate = erase, write, decay, out_gate
        self.allow_neg_eigval, self.conv_size, self.norm_eps = allow_neg_eigval, conv_size, norm_eps
        self.layer_idx, self.mode = layer_idx, mode
        keys, values = num_heads * head_dim, num_v_heads * head_v_dim

        # One product with the stream: q, k, v, the first factors of decay and output gate, the gates b and w.
        self.parts = {
            "q": keys, "k": keys, "v": values, "g": head_v_dim,
            "f": {"channel": head_v_dim, "scalar": num_heads, "none": 0}[decay],
            "b": {"channel": keys, "scalar": num_heads, "none": 0}[erase],
            "w": {"channel": values, "scalar": num_v_heads}.get(write, 0),
        }  # fmt: skip
        self.in_proj = Projection(hidden_size, *self.parts.values())
        # One weight [conv_size, channels] over q, k and v side by side: each channel is convolved by itself.
        self.conv_weight = nn.Parameter(torch.empty(conv_size, 2 * keys + values)) if use_short_conv else None
        if decay == "channel":
            self.f_proj = Projection(head_v_dim, keys)
        if decay != "none":
            self.A_log = nn.Parameter(torch.empty(num_heads))
            self.dt_bias = nn.Parameter(torch.empty(keys if decay == "channel" else num_heads))
        self.g_proj = Projection(head_v_dim, values)
        self.o_norm = nn.Parameter(torch.empty(head_v_dim))
        self.o_proj = Projection(values, hidden_size)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Projections Xavier-uniform with gain 2^-2.5; rates from U(1, 16), steps log-uniform from 1e-3 to 0.1."""
        for projection in (self.in_proj, self.g_proj, self.o_proj):
            projection.reset_parameters()
        if self.decay == "channel":
            self.f_proj.reset_parameters()
        if self.conv_weight is not None:
            nn.init.uniform_(self.conv_weight, -(self.conv_size**-0.5), self.conv_size**-0.5)
        nn.init.ones_(self.o_norm)
        if self.decay != "none":
            nn.init.uniform_(self.A_log, 1, 16)
            self.A_log.log_()
            nn.init.uniform_(self.dt_bias, math.log(1e-3), math.log(0.1))
            step = self.dt_bias.exp()
            self.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus

    def forward(
        self, hidden_states: Tensor, cache: Any = None, attention_mask: Tensor | None = None, **_: Any
    ) -> Tensor:
        """Mix along the sequence.

        Parameters
        ----------
        hidden_states : Tensor, shape [B, T, hidden_size]
        cache : transformers.Cache, optional
            Convolution tails and state, read and updated; one token at a time then takes the decode step.
        attention_mask : Tensor, shape [B, T], optional
            0 for padding, which neither reads nor writes.

        Returns
        -------
        Tensor, shape [B, T, hidden_size]
        """
        gates, gate = self._gates(hidden_states, cache, attention_mask)
        state = None if cache is None else cache.get_recurrent_state(self.layer_idx)
        if state is not None and hidden_states.shape[1] == 1:
            token: Any = [t[:, 0] for t in gates]
            o, state = gated_delta_rule2_step(*token, state)  # type: ignore[call-arg]
            o = o[:, None]
        else:
            o, state = gated_delta_rule2(
                *gates, initial_state=state, output_final_state=True, mode=self.mode, validate=False
            )
        if cache is not None:
            cache.update_recurrent_state(state, layer_idx=self.layer_idx)
        normed = F.rms_norm(o, o.shape[-1:], self.o_norm.to(o.dtype), self.norm_eps)
        gate = self.g_proj(gate).unflatten(-1, (self.num_v_heads, -1))
        opened = F.silu(gate) if self.out_gate == "silu" else gate.sigmoid()
        return self.o_proj((normed * opened).flatten(-2))

    def gates(self, hidden_states: Tensor) -> Gates:
        """All that the rule is given, from a stream [B, T, hidden_size]."""
        return self._gates(hidden_states, None, None)[0]

    def _gates(self, x: Tensor, cache: Any, mask: Tensor | None) -> tuple[Gates, Tensor]:
        """What the rule is given, and the inner part of the output gate."""
        if mask is not None:
            x = x * mask[..., None].to(x.dtype)
        projected = self.in_proj(x)
        keys, convolved = self.parts["q"], 2 * self.parts["q"] + self.parts["v"]
        mixed = projected[..., :convolved]
        out, f, b, w = projected[..., convolved:].split(list(self.parts.values())[3:], -1)
        if self.conv_weight is not None:
            mixed = self._convolve(mixed, cache)
        if mask is not None:
            mixed = mixed * mask[..., None].to(x.dtype)
        q, k, v = F.silu(mixed).split([keys, keys, self.parts["v"]], -1)
        q, k = (l2_normalize(t.unflatten(-1, (self.num_heads, -1))) for t in (q, k))
        v = v.unflatten(-1, (self.num_v_heads, -1))

        # Float32 from here: sums of log-decays and the state need it.
        group = self.num_v_heads // self.num_heads
        step = g = None
        if self.decay != "none":
            f = self.f_proj(f) if self.decay == "channel" else f
            step = F.softplus(f.float() + self.dt_bias).unflatten(-1, (self.num_heads, -1))
            g = -self.A_log.float().exp()[:, None] * step
            if mask is not None:
                g = g * mask[..., None, None].to(g.dtype)
        erase = b.unflatten(-1, (self.num_heads, -1)).sigmoid() if self.erase != "none" else None
        if erase is not None and self.allow_neg_eigval:
            erase = 2 * erase
        if self.write in ("tied", "step"):
            write = _repeated(erase if self.write == "tied" else step, group)
        else:
            write = w.unflatten(-1, (self.num_v_heads, -1)).sigmoid() if self.write != "none" else None
        q, k, g, erase = (_repeated(t, group) for t in (q, k, g, erase))
        gates = Gates(
            q, k, v,
            torch.zeros_like(k) if g is None else g.expand_as(k),
            torch.zeros_like(k) if erase is None else erase.expand_as(k),
            torch.ones_like(v) if write is None else write.expand_as(v),
        )  # fmt: skip
        return gates, out

    def _convolve(self, mixed: Tensor, cache: Any) -> Tensor:
        """Each channel over its own last tokens, [B, T, channels]."""
        length = mixed.shape[1]
        if cache is None:
            padded = F.pad(mixed, (0, 0, self.conv_size - 1, 0))
        else:  # the last tokens of the past in front
            seen = cache.update_conv_state(
                mixed.transpose(1, 2), self.layer_idx, conv_kernel_size=self.conv_size
            ).transpose(1, 2)
            padded = F.pad(seen, (0, 0, max(0, length + self.conv_size - 1 - seen.shape[1]), 0))
            padded = padded[:, -(length + self.conv_size - 1) :]
        weight: Any = self.conv_weight
        weight = weight.to(mixed.dtype)
        out: Any = sum(padded[:, i : i + length] * weight[i] for i in range(self.conv_size))
        return out

    def extra_repr(self) -> str:
        return (f"heads={self.num_heads}, head_dim={self.head_dim}, head_v_dim={self.head_v_dim}, erase={self.erase}, "
                f"write={self.write}, decay={self.decay}")  # fmt: skip


def _repeated(t: Tensor | None, group: int) -> Any:
    """Each key head over its group of value heads."""
    return t if t is None or group == 1 else t.repeat_interleave(group, 2)
