"""Whether a training run still travels: updates split into river and hills, or judged by how straight they go."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

log = logging.getLogger(__name__)


def river_hill(update: Tensor, d: Tensor) -> tuple[float, float]:
    """The component of an update along a direction, and the norm of the rest.

    Parameters
    ----------
    update, d : Tensor
        Of one shape; d need not be of norm 1.
    """
    if update.shape != d.shape or not float(d.norm()) > 0:
        raise ValueError(
            f"d: got shape {tuple(d.shape)}, norm {float(d.norm()):g}; expected {tuple(update.shape)} and a norm > 0"
        )
    unit = d / d.norm()
    along = (update * unit).sum()
    return float(along), float((update - along * unit).norm())


class RiverMonitor:
    """Watches the matrices of any torch optimiser, by hooks around its step.

    Every ``interval`` steps it measures ``window`` updates in a row, of each matrix: the cosine of the last two; net
    displacement over path length (1 on the river, 0 where updates cancel); the flatness of the last update's spectrum,
    smallest over largest singular value (1 for Muon); the norm of the gradient, the scale that Muon removes; and with
    ``directions`` the update's river and hill parts.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    interval : int
        Steps between readings, at least ``window``.
    window : int
        Updates in a reading, at least 2.
    directions : dict of int to Tensor, optional
        The river of a matrix, by its position among the optimiser's matrices.

    Attributes
    ----------
    history : list of dict
        ``step``, ``matrix`` and the readings.
    """

    def __init__(
        self, optimizer: Optimizer, interval: int = 10, window: int = 2, directions: dict[int, Tensor] | None = None
    ) -> None:
        if not (isinstance(window, int) and window >= 2 and isinstance(interval, int) and interval >= window):
            raise ValueError(f"interval {interval!r}, window {window!r}: expected integers, 2 <= window <= interval")
        self.matrices = [p for group in optimizer.param_groups for p in group["params"] if p.dim() == 2]
        if not self.matrices:
            raise ValueError("optimizer: it has no matrices to monitor")
        self.interval, self.window, self.directions = interval, window, directions or {}
        for i, d in self.directions.items():
            river_hill(self.matrices[i].detach(), d)  # its shape
        self.history: list[dict[str, float]] = []
        self._step = 0
        self._before: list[Tensor] = []
        self._start: list[Tensor] = []
        self._previous: list[Tensor] = []
        self._length = np.zeros(len(self.matrices))
        self._handles = (optimizer.register_step_pre_hook(self._enter), optimizer.register_step_post_hook(self._leave))

    def remove(self) -> None:
        """Detach from the optimiser."""
        for handle in self._handles:
            handle.remove()

    def _place(self) -> int:
        """Where this step is in a reading: 0 for its first update, window - 1 for its last, negative outside."""
        return self._step % self.interval - (self.interval - self.window)

    @torch.no_grad()
    def _enter(self, *_: Any) -> None:
        if (place := self._place()) >= 0:
            self._before = [p.detach().clone() for p in self.matrices]
            if place == 0:
                self._start, self._length = self._before, np.zeros(len(self.matrices))

    @torch.no_grad()
    def _leave(self, *_: Any) -> None:
        place = self._place()
        self._step += 1
        if place < 0:
            return
        updates = [p - before for p, before in zip(self.matrices, self._before, strict=True)]
        self._length += [float(u.norm()) for u in updates]
        if place == self.window - 1:
            for i, update in enumerate(updates):
                self.history.append({"step": self._step, "matrix": i, **self._reading(i, update)})
            log.info(
                "step %d: straightness %.2f",
                self._step,
                np.median([r["straightness"] for r in self.history[-len(updates) :]]),
            )
            self._start = self._previous = []
        else:
            self._previous = updates
        self._before = []

    def _reading(self, i: int, update: Tensor) -> dict[str, float]:
        p, previous = self.matrices[i], self._previous[i]
        product = float(update.norm() * previous.norm())
        small = update if update.shape[0] <= update.shape[1] else update.T
        squares = torch.linalg.eigvalsh((small @ small.T).double()).clamp(min=0)
        found = {
            "cosine": float((update * previous).sum()) / product if product else np.nan,
            "straightness": float((p - self._start[i]).norm()) / self._length[i] if self._length[i] else np.nan,
            "flatness": float((squares[0] / squares[-1]).sqrt()) if float(squares[-1]) > 0 else np.nan,
            "gradient": float(p.grad.norm()) if p.grad is not None else np.nan,
        }  # fmt: skip
        if i in self.directions:
            found["river"], found["hill"] = river_hill(update, self.directions[i].to(update))
        return found
