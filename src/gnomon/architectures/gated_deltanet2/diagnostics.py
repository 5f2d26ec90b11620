"""What the gates of a trained model do: how strongly a step edits, how much it can stretch, how open the gates are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.architectures.gated_deltanet2.layer import GatedDeltaNet2
from gnomon.architectures.gated_deltanet2.norms import transition_norm

__all__ = ["gate_statistics"]


@torch.no_grad()
def gate_statistics(model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """Statistics over all recurrent layers, heads and tokens.

    Parameters
    ----------
    model : nn.Module
        Holds :class:`GatedDeltaNet2` layers; without any the result is empty.
    tokens : int Tensor, shape [B, T]

    Returns
    -------
    dict of str to float
        ``eta`` (mean of ``sum(b k^2)``), ``norm_mean`` and ``norm_max`` (of the step's matrix without its decay), and the
        10 %, 50 % and 90 % quantiles of both gates, ``b10`` to ``w90``.
    """
    found: list[Any] = []
    hooks = [
        m.register_forward_pre_hook(lambda layer, args: found.append(layer.gates(args[0])))
        for m in model.modules() if isinstance(m, GatedDeltaNet2)
    ]  # fmt: skip
    try:
        model(tokens, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        return {}
    k, b, w = (torch.cat([getattr(gates, name).flatten() for gates in found]) for name in "kbw")
    k, b = (t.unflatten(0, (-1, found[0].k.shape[-1])) for t in (k, b))
    real = k.norm(dim=-1) > 0.9  # a key of zeros has no direction
    k, b = F.normalize(k[real].double(), dim=-1), b[real].double()
    norms = transition_norm(k, b)
    rows: dict[str, Any] = {"eta": (b * k.square()).sum(-1).mean(), "norm_mean": norms.mean(), "norm_max": norms.max()}
    for name, gate in (("b", b), ("w", w.double())):
        for share, value in zip((10, 50, 90), np.quantile(gate.cpu().numpy(), [0.1, 0.5, 0.9]), strict=True):
            rows[f"{name}{share}"] = value
    return {name: float(value) for name, value in rows.items()}
