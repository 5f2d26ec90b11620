"""When to switch: is any direction still travelled, or do all of them only bounce?"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnomon.optimization.spectral_descent.orthogonal import polar

DECAY = 0.9  # of the average of the gradients' polar factors
PATIENCE = 10  # steps in a row
FULL_BATCH, MINI_BATCH = 0.5, 0.3  # travel below which the river is over
NOISE = 1.3  # times the travel of independent noise, where that is more than MINI_BATCH
WINDOW = 100  # losses whose slope is tested
LARGE = 128  # smaller side above which Newton-Schulz and power iteration stand for SVD


class Travel:
    """The spectral norm of a running average of the gradient's polar factor, by matrix: 1 while a direction is travelled.

    Along the river successive polar factors agree; where every direction bounces they cancel, and it falls to about 0.05.
    The cosine of successive updates would not do: hills bounce long before the river ends.

    Parameters
    ----------
    noisy : bool
        Mini-batches: fire below 0.3 where the slope of the last 100 losses is not 2 standard errors from 0 (without
        losses, below 0.3 for 10 steps in a row). Else below 0.5 for 10 steps in a row. Independent noise alone has a
        travel of 0.23 (1 + sqrt(min / max)) of the sides, up to 0.46: the bound is 1.3 times that where it is more.
    """

    def __init__(self, noisy: bool = True) -> None:
        self.noisy = noisy
        self.steps = self.streak = 0
        self.means: list[Tensor] = []
        self.largest: list[float] = []
        self.losses: deque[float] = deque(maxlen=WINDOW)
        self.value, self.limit = 1.0, FULL_BATCH

    @torch.no_grad()
    def update(self, grads: Sequence[Tensor], loss: float | None = None) -> float:
        """Take the gradients of a step; returns travel, the median over the matrices."""
        self.steps += 1
        if loss is not None:
            self.losses.append(loss)
        factors = []
        for i, grad in enumerate(grads):
            if min(grad.shape) > LARGE:
                factors.append(polar(grad.float(), "newton_schulz"))
                continue
            size = float(torch.linalg.matrix_norm(grad.float() if grad.dtype.itemsize < 4 else grad, 2))
            if len(self.largest) <= i:
                self.largest.append(0.0)
            self.largest[i] = max(self.largest[i], size)
            factors.append(polar(grad, largest=self.largest[i]))
        if not self.means:
            self.means = [torch.zeros_like(factor) for factor in factors]
        for mean, factor in zip(self.means, factors, strict=True):
            mean.lerp_(factor, 1 - DECAY)
        unbiased = 1 - DECAY**self.steps
        self.value = float(np.median([_norm(mean) for mean in self.means])) / unbiased
        if self.noisy:
            self.limit = max(MINI_BATCH, NOISE * float(np.median([noise_floor(mean.shape) for mean in self.means])))
        self.streak = self.streak + 1 if self.value < self.limit else 0
        return self.value

    def reason(self) -> str | None:
        """Why to switch now, or None."""
        if not self.streak:
            return None
        if self.noisy and self.losses:
            if len(self.losses) < WINDOW:
                return None
            slope, error = trend(np.array(self.losses))
            if abs(slope) < 2 * error:
                return (
                    f"travel {self.value:.2f} < {self.limit:.2f}, slope of the loss {slope:.1e} within 2 x {error:.1e}"
                )
            return None
        if self.streak >= PATIENCE:
            return f"travel {self.value:.2f} below {self.limit:.2f} for {PATIENCE} steps"
        return None

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes."""
        return {"steps": self.steps, "streak": self.streak, "means": list(self.means), "largest": list(self.largest),
                "losses": list(self.losses), "value": self.value}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where another left off."""
        self.steps, self.streak, self.value = state["steps"], state["streak"], state["value"]
        self.means, self.largest = [mean.clone() for mean in state["means"]], list(state["largest"])
        self.losses = deque(state["losses"], maxlen=WINDOW)


def noise_floor(shape: torch.Size) -> float:
    """The spectral norm of the average of independent random polar factors (Marchenko-Pastur edge)."""
    return float(np.sqrt((1 - DECAY) / (1 + DECAY)) * (1 + np.sqrt(min(shape) / max(shape))))


def trend(values: np.ndarray) -> tuple[float, float]:
    """Least-squares slope per step of a series, and its standard error."""
    t = np.arange(len(values)) - (len(values) - 1) / 2
    square = float((t**2).sum())
    slope = float((t * values).sum()) / square
    rest = values - values.mean() - slope * t
    return slope, float(np.sqrt((rest**2).sum() / (len(values) - 2) / square))


def _norm(matrix: Tensor) -> float:
    """Spectral norm; of a large matrix by 20 power iterations, which is enough to tell 1 from 0.3."""
    if min(matrix.shape) <= LARGE:
        return float(torch.linalg.matrix_norm(matrix, 2))
    x = matrix.sum(0)
    for _ in range(20):
        x = matrix.mT @ (matrix @ (x / x.norm().clamp(min=1e-30)))
    return float(x.norm().sqrt())
