"""What the two stages are compared with: schedules that must know the horizon, sign descent.

Gradient descent, momentum, AdamW and Muon are torch's own (`torch.optim.Muon`) or `gnomon.optimization.SpectralDescent`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

Schedule = Callable[[int], float]


def linear(total: int) -> Schedule:
    """1 - t / total."""
    return lambda t: max(0.0, 1 - t / total)


def cosine(total: int) -> Schedule:
    """(1 + cos(pi t / total)) / 2."""
    return lambda t: 0.5 * (1 + math.cos(math.pi * min(t, total) / total))


def inverse_sqrt(scale: float = 10.0) -> Schedule:
    """1 / sqrt(1 + t / scale)."""
    return lambda t: 1 / math.sqrt(1 + t / scale)


def warmup_stable_decay(total: int, share: float = 0.2) -> Schedule:
    """1, then linear to 0 over the last ``share`` of the steps (without a warm-up, which Muon does not need)."""
    start = total * (1 - share)
    return lambda t: 1.0 if t < start else max(0.0, (total - t) / (total - start))


class SignDescent(Optimizer):
    """``W <- W - lr sign(G)``, entry by entry."""

    def __init__(self, params: Iterable[Any], lr: float) -> None:
        if not lr > 0:
            raise ValueError(f"lr: got {lr!r}; expected a positive number")
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad.sign(), alpha=-group["lr"])
        return loss
