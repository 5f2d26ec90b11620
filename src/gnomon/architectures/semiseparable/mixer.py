"""The Mamba-2 block on the stable SSD, and its conversion from ``transformers``."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.architectures.semiseparable.layer import ssd, ssd_step

__all__ = ["GatedRMSNorm", "SemiseparableMixer", "use_semiseparable"]


class GatedRMSNorm(nn.Module):
    """RMS norm of ``y * silu(z)``, over each of ``groups`` equal parts of the last axis."""

    def __init__(self, size: int, groups: int = 1, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.groups, self.eps = groups, eps

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        gated = (y.float() * F.silu(z.float())).unflatten(-1, (self.groups, -1))
        normed = gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.flatten(-2).to(y.dtype)


class SemiseparableMixer(nn.Module):
    """A Mamba-2 block: projections, a short causal convolution, the SSD, a gated norm.

    Parameters have the names and shapes of ``transformers``' ``Mamba2Mixer``, so that state dicts are exchanged.

    Parameters
    ----------
    d_model : int
        Width of the residual stream.
    d_state : int
        State dimension N.
    headdim : int
        Head dimension P; must divide ``expand * d_model``.
    expand : float
        Inner width in units of ``d_model``.
    ngroups : int
        Groups of B and C; must divide the number of heads.
    d_conv : int
        Length of the convolution over (x, B, C).
    chunk_size : int
        Compute tile of the SSD.
    bias, conv_bias : bool
        Biases of the projections and of the convolution.
    norm_eps : float
    dt_limit : (float, float)
        Bounds of the step, in decoding as well.
    split, segsum : optional
        As in :func:`~gnomon.architectures.ssd`.
    layer_idx : int
        Which entry of a cache is this layer's.

    Raises
    ------
    ValueError
        If ``headdim`` does not divide the inner width or ``ngroups`` the heads.

    References
    ----------
    Dao and Gu, "Transformers are SSMs" (arXiv:2405.21060), section 7.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        headdim: int = 64,
        expand: float = 2,
        ngroups: int = 1,
        d_conv: int = 4,
        chunk_size: int = 64,
        *,
        bias: bool = False,
        conv_bias: bool = True,
        norm_eps: float = 1e-5,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        split: str | int = "auto",
        segsum: str = "hier",
        layer_idx: int = 0,
    ):
        super().__init__()
        inner = int(expand * d_model)
        if inner % headdim:
            raise ValueError(f"headdim {headdim} must divide expand * d_model = {inner}")
        heads = inner // headdim
        if heads % ngroups:
            raise ValueError(f"ngroups {ngroups} must divide the {heads} heads")
        self.d_state, self.headdim, self.ngroups, self.d_conv = d_state, headdim, ngroups, d_conv
        self.inner, self.heads, self.chunk_size, self.dt_limit = inner, heads, chunk_size, (dt_limit[0], dt_limit[1])
        self.split, self.segsum, self.layer_idx = split, segsum, layer_idx
        mixed = inner + 2 * ngroups * d_state  # x, B, C
        self.conv1d = nn.Conv1d(mixed, mixed, d_conv, groups=mixed, padding=d_conv - 1, bias=conv_bias)
        self.in_proj = nn.Linear(d_model, inner + mixed + heads, bias=bias)
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.A_log = nn.Parameter(torch.empty(heads))
        self.D = nn.Parameter(torch.empty(heads))
        self.norm = GatedRMSNorm(inner, ngroups, norm_eps)
        self.out_proj = nn.Linear(inner, d_model, bias=bias)
        self.reset_decays()

    @torch.no_grad()
    def reset_decays(self, generator: torch.Generator | None = None) -> None:
        """Draw rates from U(1, 16) and steps log-uniformly from 1e-3 to 0.1; D = 1."""
        self.A_log.uniform_(1, 16, generator=generator).log_()
        dt = self.dt_bias.uniform_(math.log(1e-3), math.log(0.1), generator=generator).exp()
        self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
        self.D.fill_(1.0)

    def forward(
        self, hidden_states: Tensor, cache: Any = None, attention_mask: Tensor | None = None, **_: Any
    ) -> Tensor:
        """Mix along the sequence.

        Parameters
        ----------
        hidden_states : Tensor, shape [b, T, d_model]
        cache : transformers.Cache, optional
            Convolution and recurrent states, read and updated; one token at a time then takes the decode step.
        attention_mask : Tensor, shape [b, T], optional
            0 for padding, on the left.

        Returns
        -------
        Tensor, shape [b, T, d_model]
        """
        hidden_states = _unpadded(hidden_states, attention_mask)
        z, mixed, dt = self.in_proj(hidden_states).split([self.inner, self.conv1d.in_channels, self.heads], -1)
        mixed = _unpadded(self._convolve(mixed, cache), attention_mask)
        x, B, C = mixed.split([self.inner, *(2 * [self.ngroups * self.d_state])], -1)
        x = x.unflatten(-1, (self.heads, self.headdim))
        B, C = (t.unflatten(-1, (self.ngroups, self.d_state)) for t in (B, C))
        A = -torch.exp(self.A_log.float())
        state = None if cache is None else cache.get_recurrent_state(self.layer_idx)

        if state is not None and x.shape[1] == 1:
            dt = F.softplus(dt.float() + self.dt_bias).clamp(*self.dt_limit)[:, 0]
            y, state = ssd_step(state, x[:, 0].float() * dt[..., None], dt * A, B[:, 0].float(), C[:, 0].float())
            y = (y + self.D[:, None] * x[:, 0].float()).to(x.dtype)[:, None]
        else:
            y, state = ssd(
                x, dt, A, B, C, self.D, dt_bias=self.dt_bias, dt_softplus=True, dt_limit=self.dt_limit,
                chunk_size=self.chunk_size, split=self.split, segsum=self.segsum, return_final_state=True,
                initial_state=None if state is None else state.float(), validate=False,
            )  # fmt: skip
        if cache is not None:
            cache.update_recurrent_state(state, layer_idx=self.layer_idx)
        return self.out_proj(self.norm(y.flatten(-2), z))

    def log_decays(self, hidden_states: Tensor) -> Tensor:
        """The log-decays ``a = dt * A`` [b, T, heads] that an input [b, T, d_model] gives."""
        dt = self.in_proj(hidden_states)[..., -self.heads :].float()
        return F.softplus(dt + self.dt_bias).clamp(*self.dt_limit) * -torch.exp(self.A_log.float())

    def _convolve(self, mixed: Tensor, cache: Any) -> Tensor:
        length, mixed = mixed.shape[1], mixed.transpose(1, 2)
        if cache is not None:  # the last tokens of the past in front
            mixed = cache.update_conv_state(mixed, self.layer_idx, conv_kernel_size=self.d_conv)
        out = self.conv1d(mixed)[..., : mixed.shape[-1]][..., -length:]
        return F.silu(out).transpose(1, 2)


def use_semiseparable(model: nn.Module, *, split: str | int = "auto", segsum: str = "hier") -> nn.Module:
    """Replace every mixer of a ``transformers`` Mamba-2 in place by one on the stable SSD.

    The parameters are shared, so that the state dict keeps its keys; caches, left padding and generation work as
    before, and nothing of the library is patched. One difference: a bounded ``time_step_limit`` holds in decoding
    too, where the library applies it to the prompt only.

    Parameters
    ----------
    model : transformers.Mamba2ForCausalLM or Mamba2Model
    split, segsum
        As in :func:`~gnomon.architectures.ssd`.

    Returns
    -------
    nn.Module
        The same object.

    Raises
    ------
    TypeError
        If the model holds no ``Mamba2Mixer``.
    ValueError
        For an activation other than SiLU.
    """
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    found = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()
             if isinstance(child, Mamba2Mixer)]  # fmt: skip
    if not found:
        raise TypeError(f"model must hold Mamba2Mixer layers (a transformers Mamba-2), got {type(model).__name__}")
    for parent, name, old in found:
        if old.activation not in ("silu", "swish"):
            raise ValueError(f"the mixer's activation must be silu, got {old.activation!r}")
        with torch.device("meta"):
            new = SemiseparableMixer(
                old.hidden_size, old.ssm_state_size, old.head_dim, old.intermediate_size / old.hidden_size,
                old.n_groups, old.conv_kernel_size, old.chunk_size, bias=old.use_bias, conv_bias=old.use_conv_bias,
                norm_eps=old.norm.variance_epsilon, dt_limit=(old.time_step_limit[0], old.time_step_limit[1]), split=split, segsum=segsum,
                layer_idx=old.layer_idx,
            )  # fmt: skip
        for module in ("in_proj", "conv1d", "out_proj"):
            setattr(new, module, getattr(old, module))
        for parameter in ("dt_bias", "A_log", "D"):
            setattr(new, parameter, getattr(old, parameter))
        new.norm.weight = old.norm.weight
        setattr(parent, name, new.train(old.training))
    return model


def _unpadded(t: Tensor, attention_mask: Tensor | None) -> Tensor:
    return t if attention_mask is None else (t * attention_mask[:, :, None]).to(t.dtype)
