"""The sensing lab: who is ahead early, who stalls late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gnomon.optimization.muon_river.sensing import History, MixedSpikedSensing
from gnomon.optimization.muon_river.study.contenders import FINITE, LAB, STEPS
from gnomon.study import Experiment, grid, lower

SIDES = {"population": 24, "finite": 16}


def problem_of(kind: str, rng: np.random.Generator) -> MixedSpikedSensing:
    """A draw: river 4.5 to 5.5, hills 0.8 to 1.2 (round numbers would let Muon stop at the optimum)."""
    side = SIDES[kind]
    return MixedSpikedSensing(side, side, samples=None if kind == "population" else 6 * side * side, seed=int(rng.integers(2**31)),
                              river=float(rng.uniform(4.5, 5.5)), hills=rng.uniform(0.8, 1.2, 3).tolist())  # fmt: skip


def stays_below(error: np.ndarray, level: float) -> float:
    """The first step from which the error stays at or below a level; NaN where it does not."""
    above = np.flatnonzero(error > level)
    first = above[-1] + 1 if len(above) else 0
    return float(first) if first < len(error) else np.nan


class Sensing(Experiment):
    """River, hills and loss of every optimiser on the population problem and on N = 6 mn samples."""

    cells = grid(kind=["population", "finite"])
    contenders = LAB
    metrics = {**{f"river_{t}": lower() for t in (25, 200, 400, 600)}, "loss_400": lower(log=True), "late_loss": lower(log=True),
               "late_river": lower(), "overshoot": lower(), "time": lower("steps"), "hills_600": lower()}  # fmt: skip
    seeds = 10

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return cell.kind == "population" or contender in FINITE

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> MixedSpikedSensing:
        return problem_of(cell.kind, rng)

    def measure(
        self, problem: MixedSpikedSensing, contender: Any, rng: np.random.Generator
    ) -> Iterator[dict[str, Any]]:
        path: History = contender(problem)
        river = np.abs(path.river)
        row = {f"river_{t}": river[t] for t in (25, 200, 400, 600)}
        row |= {"loss_400": path.loss[400], "late_loss": path.loss[500:].mean(), "late_river": river[500:].max(), "time": stays_below(river, 1e-2),
                "overshoot": path.river.max(), "hills_600": np.abs(path.hills[600]).max(), "bulk_600": path.bulk[600]}  # fmt: skip
        yield {name: float(value) for name, value in row.items()}


class Curves(Experiment):
    """The paths of the figure."""

    cells = grid(kind=["population"])
    contenders = {name: LAB[name] for name in ("two-stage", "gd", "muon", "linear", "momentum")}
    metrics = {"river": lower()}
    seeds = 1

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> MixedSpikedSensing:
        return problem_of(cell.kind, rng)

    def measure(
        self, problem: MixedSpikedSensing, contender: Any, rng: np.random.Generator
    ) -> Iterator[dict[str, Any]]:
        path = contender(problem)
        for step in range(0, STEPS + 1, 4):
            yield {"step": step, "river": float(abs(path.river[step])), "loss": float(path.loss[step])}
