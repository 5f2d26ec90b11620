"""The optimiser of two stages for a model, with the usual routing."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from gnomon.optimization.muon_river.method import TwoStage
from gnomon.optimization.spectral_descent.method import SpectralDescent


def MuonThenAdamW(
    model: nn.Module,
    lr_muon: float = 0.02,
    lr_adamw: float = 3e-4,
    switch: int | float | Literal["auto"] = "auto",
    total_steps: int | None = None,
    *,
    momentum: float = 0.95,
    weight_decay: float = 0.0,
    min_steps: int = 100,
    noisy: bool = True,
) -> TwoStage:
    """Muon on the hidden matrices, then AdamW on them; AdamW throughout on embeddings, head, norms and biases.

    Parameters
    ----------
    model : torch.nn.Module
    lr_muon, lr_adamw : float
        Of Muon (scaled by sqrt(max(1, rows / columns))), and of AdamW in both roles.
    switch, total_steps, min_steps, noisy
        See :class:`gnomon.optimization.TwoStage`.
    momentum, weight_decay : float
        Of Muon (Nesterov); of all matrices.

    Examples
    --------
    >>> import torch
    >>> from gnomon.optimization import MuonThenAdamW
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> optimizer = MuonThenAdamW(net, switch=0.5, total_steps=10)
    >>> for _ in range(10):
    ...     optimizer.zero_grad()
    ...     net(torch.eye(4)).square().sum().backward()
    ...     optimizer.step()
    >>> optimizer.switched_at_
    5
    """
    for name, value in (("lr_muon", lr_muon), ("lr_adamw", lr_adamw)):
        if not value > 0:
            raise ValueError(f"{name}: got {value!r}; expected a positive number")
    return TwoStage(
        model,
        lambda p: SpectralDescent(p, lr_muon, momentum, momentum > 0, "newton_schulz", scale="original", weight_decay=weight_decay),
        lambda p: torch.optim.AdamW(p, lr_adamw, weight_decay=weight_decay), switch, total_steps, min_steps, noisy, lr2=lr_adamw,
        aux=lambda p: torch.optim.AdamW(p, lr_adamw, weight_decay=0.0),
    )  # fmt: skip
