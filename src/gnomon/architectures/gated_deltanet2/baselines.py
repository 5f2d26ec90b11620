"""What the method is compared with: its relatives' own recurrences, and models of one size on one recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gnomon.architectures.gated_deltanet2.layer import GatedDeltaNet2
from gnomon.architectures.gated_deltanet2.mamba3 import Mamba3
from gnomon.architectures.gated_deltanet2.model import GatedDeltaNet2Config, GatedDeltaNet2ForCausalLM

__all__ = ["VARIANTS", "build", "delta_net", "gated_delta_net", "gla", "kimi_delta", "mamba2"]

# --- recurrences, each as its own paper states it -------------------------------------------------------------------


def kimi_delta(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """KDA: ``S_t = (I - beta k k^T) Diag(exp g) S_{t-1} + beta k v^T``, ``o_t = S_t^T q_t`` (arXiv:2510.26692).

    Shapes [T, K] for q, k, g; [T, V] for v; [T] for beta. The same for the recurrences below.
    """
    state = q.new_zeros(k.shape[1], v.shape[1])
    identity, outputs = torch.eye(k.shape[1], dtype=q.dtype), []
    for t in range(len(q)):
        transition = (identity - beta[t] * torch.outer(k[t], k[t])) @ torch.diag(g[t].exp())
        state = transition @ state + beta[t] * torch.outer(k[t], v[t])
        outputs.append(state.T @ q[t])
    return torch.stack(outputs)


def gated_delta_net(q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor) -> Tensor:
    """Gated DeltaNet: ``S_t = exp(a) S_{t-1} (I - beta k k^T) + beta v k^T`` with S [V, K], a [T] (arXiv:2412.06464)."""
    state = q.new_zeros(v.shape[1], k.shape[1])
    identity, outputs = torch.eye(k.shape[1], dtype=q.dtype), []
    for t in range(len(q)):
        state = a[t].exp() * state @ (identity - beta[t] * torch.outer(k[t], k[t])) + beta[t] * torch.outer(v[t], k[t])
        outputs.append(state @ q[t])
    return torch.stack(outputs)


def delta_net(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """DeltaNet: ``S_t = S_{t-1} - beta (S_{t-1} k - v) k^T`` (arXiv:2406.06484)."""
    state, outputs = q.new_zeros(v.shape[1], k.shape[1]), []
    for t in range(len(q)):
        state = state - beta[t] * torch.outer(state @ k[t] - v[t], k[t])
        outputs.append(state @ q[t])
    return torch.stack(outputs)


def gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Gated linear attention: ``S_t = Diag(exp g) S_{t-1} + k v^T`` (arXiv:2312.06635)."""
    state, outputs = q.new_zeros(k.shape[1], v.shape[1]), []
    for t in range(len(q)):
        state = g[t].exp()[:, None] * state + torch.outer(k[t], v[t])
        outputs.append(state.T @ q[t])
    return torch.stack(outputs)


def mamba2(C: Tensor, B: Tensor, x: Tensor, dt: Tensor, A: float) -> Tensor:
    """Mamba-2: ``h_t = exp(dt A) h_{t-1} + dt x B^T``, ``y_t = h_t C`` with h [V, K], dt [T] (arXiv:2405.21060)."""
    state, outputs = C.new_zeros(x.shape[1], B.shape[1]), []
    for t in range(len(C)):
        state = (dt[t] * A).exp() * state + dt[t] * torch.outer(x[t], B[t])
        outputs.append(state @ C[t])
    return torch.stack(outputs)


# --- models ----------------------------------------------------------------------------------------------------------

#: Options of the configuration by name; "mixer" stands for one that replaces the recurrent layers.
VARIANTS: dict[str, dict[str, Any]] = {
    "gdn2": {},
    "kda": {"erase": "scalar", "write": "tied"},
    "gdn": {"erase": "scalar", "write": "tied", "decay": "scalar"},
    "mamba2": {"erase": "none", "write": "step", "decay": "scalar"},
    "erase-only": {"erase": "channel", "write": "scalar"},
    "write-only": {"erase": "scalar", "write": "channel"},
    "mamba3-siso": {"mixer": {"rank": 1}},
    "mamba3-mimo": {"mixer": {"rank": 4}},
    "transformer": {"layer_types": "full_attention"},
}


def build(variant: str, *, hybrid: bool = False, match: bool = True, **sizes: Any) -> GatedDeltaNet2ForCausalLM:
    """A model of a variant with as many parameters as Gated DeltaNet-2 of these sizes, within 1 %.

    What a mixer saves or costs is given to or taken from the width of the MLPs, so that all have the same budget; the
    state (heads x K x V a layer) is the same.

    Parameters
    ----------
    variant : str
        A name in ``VARIANTS``.
    hybrid : bool
        Every second layer is sliding-window attention.
    match : bool
        Whether the MLPs are adapted.
    **sizes
        Of :class:`~gnomon.architectures.GatedDeltaNet2Config`.

    Returns
    -------
    GatedDeltaNet2ForCausalLM

    Raises
    ------
    ValueError
        For an unknown variant.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    layers = int(sizes["num_hidden_layers"])
    kinds = ["gdn2" if i % 2 == 0 else "sliding_attention" for i in range(layers)] if hybrid else ["gdn2"] * layers
    sizes = {**sizes, "layer_types": kinds}
    config = GatedDeltaNet2Config(**sizes)
    if match and variant != "gdn2":
        with torch.device("meta"):
            short = _count(_model("gdn2", config, sizes)) - _count(_model(variant, config, sizes))
        unit = 3 * config.hidden_size * layers  # parameters of one more channel in every MLP
        config.intermediate_size = max(1, config.intermediate_size + round(short / unit))
    return _model(variant, config, sizes)


def _model(variant: str, config: GatedDeltaNet2Config, sizes: Mapping[str, Any]) -> GatedDeltaNet2ForCausalLM:
    options = dict(VARIANTS[variant])
    mixer, kind = options.pop("mixer", None), options.pop("layer_types", None)
    own = {**sizes, "intermediate_size": config.intermediate_size, **options}
    if kind is not None:
        own["layer_types"] = [kind if k == "gdn2" else k for k in sizes["layer_types"]]
    model = GatedDeltaNet2ForCausalLM(GatedDeltaNet2Config(**own))
    if mixer is not None:
        for block in model.model.layers:
            if isinstance(block.mixer, GatedDeltaNet2):
                block.mixer = Mamba3(config.hidden_size, config.head_dim, config.num_heads, **mixer)
    return model


def _count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
