"""Contenders: a stream and a memory in, estimates of all items out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.sampling.spacer.baselines import (
    CountSketch,
    CountSketchPP,
    Learned,
    SpaceSaving,
    TrivialTop,
    noisy_oracle,
    perfect_oracle,
    two_pass_oracle,
)
from gnomon.sampling.spacer.method import SpaceR
from gnomon.sampling.spacer.streams import Stream


@dataclass(frozen=True)
class Budget:
    """A memory of B, counted in entries as the literature does (a cell is an entry), or in words (an entry is two).

    ``entries`` of a keyed table; or ``exact`` counters for predicted items and ``cells`` of a sketch. The share ``flip``
    of the predictions is wrong.
    """

    budget: str
    B: int
    entries: int
    exact: int
    cells: int
    flip: float = 0.0

    def oracle(self, p: int, rng: np.random.Generator) -> Any:
        """Who names p heavy items."""
        return noisy_oracle(p, self.flip, rng) if self.flip else perfect_oracle(p)


def budgets(size: int, predicted: int | None = None, flip: float = 0.0) -> list[Budget]:
    """Both ways of counting; predictions take half of the memory, or ``predicted`` items."""
    p, words = (size // 2, size // 4) if predicted is None else (predicted, predicted)
    return [Budget("entries", size, size, p, size - p, flip),
            Budget("bytes", size, size // 2, words, size - 2 * words, flip)]  # fmt: skip


Estimates = np.ndarray | dict[str, np.ndarray]
Contender = Callable[[Stream, Budget, np.random.Generator], Estimates]
TAUS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
ROWS = (3, 5)


def _everyone(stream: Stream) -> np.ndarray:
    return np.arange(stream.n)


def table(admission: str) -> Contender:
    def contender(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
        table = SpaceR(budget.entries, admission, rng)
        table.update_many(stream.items)
        return table.estimate_many(_everyone(stream))

    return contender


def counters(kind: Callable[..., Any], **options: Any) -> Contender:
    def contender(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
        return kind(budget.entries, rng, **options).fit(stream).estimate_many(_everyone(stream))

    return contender


def trivial(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
    return TrivialTop(budget.oracle(budget.entries, rng)).fit(stream).estimate_many(_everyone(stream))


def sketch(kind: Callable[..., Any], **options: Any) -> Contender:
    """A plain sketch on all of the memory, with 3 and with 5 rows."""

    def contender(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
        return {f"L={rows}": kind(budget.B // rows, rows, random_state=rng, **options).fit(stream)
                .estimate_many(_everyone(stream)) for rows in ROWS}  # fmt: skip

    return contender


def learned(kind: Callable[..., Any]) -> Contender:
    def contender(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
        oracle = budget.oracle(budget.exact, rng)
        return {f"L={rows}": Learned(kind(budget.cells // rows, rows, random_state=rng), oracle).fit(stream)
                .estimate_many(_everyone(stream)) for rows in ROWS}  # fmt: skip

    return contender


def _thresholds(stream: Stream, cells: int) -> dict[str, float]:
    """CountSketch++'s tau on its usual scale."""
    return {f"c={c}": c * stream.total * math.log2(cells) / cells for c in TAUS}


def plus_plus(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
    small, large = CountSketchPP(budget.B, random_state=rng).fit(stream).read(_everyone(stream))
    return {name: np.where(small < tau, 0, large) for name, tau in _thresholds(stream, budget.B).items()}


def learned_plus_plus(stream: Stream, budget: Budget, rng: np.random.Generator, oracle: Any = None) -> Estimates:
    oracle = oracle or budget.oracle(budget.exact, rng)
    learned = Learned(CountSketchPP(budget.cells, random_state=rng), oracle).fit(stream)
    small, large = learned.sketch.read(_everyone(stream))
    return {name: learned.join(_everyone(stream), np.where(small < tau, 0, large))
            for name, tau in _thresholds(stream, budget.cells).items()}  # fmt: skip


def two_pass(kind: str) -> Contender:
    """A first pass finds the predictions, a second one runs learned CountSketch++ with them."""

    def contender(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
        memory = budget.B if kind == "count-sketch" else budget.entries
        return learned_plus_plus(stream, budget, rng, two_pass_oracle(kind, budget.exact, memory, rng))

    return contender


def side_by_side(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
    """One pass: Space Saving's p items beside a CountSketch++ of the whole stream."""
    heavy = SpaceSaving(budget.exact, rng).fit(stream).estimate_many(_everyone(stream))
    small, large = CountSketchPP(budget.cells, random_state=rng).fit(stream).read(_everyone(stream))
    return {name: np.where(heavy > 0, heavy, np.where(small < tau, 0, large))
            for name, tau in _thresholds(stream, budget.cells).items()}  # fmt: skip


def _log_times(budget: Budget) -> int:
    return budget.B * math.ceil(math.log2(budget.B))


def space_saving_blogb(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
    return SpaceSaving(_log_times(budget), rng).fit(stream).estimate_many(_everyone(stream))


def count_sketch_blogb(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
    """Estimates below C N / (B ln n) read 0."""
    found = {}
    for rows in ROWS:
        sketch = CountSketch(_log_times(budget) // rows, rows, rng).fit(stream).estimate_many(_everyone(stream))
        for factor in (1, 2):
            tau = factor * stream.total / (budget.B * math.log(stream.n))
            found[f"L={rows}, C={factor}"] = np.where(sketch < tau, 0, sketch)
    return found


def datasketches(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
    """Apache DataSketches' frequent items; a table of 2^lg slots holds three quarters of them."""
    from datasketches import frequent_items_sketch

    sketch = frequent_items_sketch(math.ceil(math.log2(budget.entries / 0.75)))
    for item in stream.items.tolist():
        sketch.update(item)
    return np.array([sketch.get_estimate(item) for item in range(stream.n)])
