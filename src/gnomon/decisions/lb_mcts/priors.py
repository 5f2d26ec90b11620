"""Semantic priors as a table: documented defaults and usual ranges, a stand-in for what a language model knows."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.special

from gnomon.decisions.lb_mcts.space import AlgorithmSpace, Config, choices

WIDTH = 0.25  # half the usual range in the unit interval, of a parameter that no table knows
CHANGED = 0.5  # the probability with which a refinement changes a parameter


@functools.cache
def documented() -> dict[str, Any]:
    """The table that ships with the package: ``order``, ``small_rows`` and ``parameters`` by algorithm."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("priors.json").read_text(encoding="utf-8"))
    return found


class PriorTable:
    """Draws configurations around documented defaults.

    Parameters
    ----------
    table : mapping, optional
        ``{"order": {"small": [...], "large": [...]}, "small_rows": n, "parameters": {algorithm: {name: {"default", "low", "high"}}}}``; of a
        category ``{"default", "usual"}``. Numbers may be ``"a/features"`` or ``"sqrt"`` (1/sqrt of the features). Default:
        scikit-learn's documentation. What it does not know has ConfigSpace's default.
    redrawn : int, optional
        Seed of wrong defaults: each is drawn anew, uniform over its parameter's range, with the same width.
    """

    def __init__(self, table: Mapping[str, Any] | None = None, redrawn: int | None = None):
        self.table, self.redrawn = documented() if table is None else table, redrawn

    def order(self, algorithms: list[str], rows: int | None) -> list[str]:
        """The algorithms in the order in which they are first tried; those that the table lacks come last."""
        size = "large" if rows is not None and rows >= self.table.get("small_rows", 10_000) else "small"
        known = self.table.get("order", {}).get(size, [])
        return sorted(algorithms, key=lambda a: known.index(a) if a in known else len(known))

    def about(self, space: AlgorithmSpace, card: Mapping[str, Any]) -> dict[str, tuple[Any, Any, Any]]:
        """For each parameter its centre and the ends of its usual range: unit-interval numbers, of a category (default, usual)."""
        features = max(int(card.get("features", 10)), 1)
        found: dict[str, Any] = {}
        wrong = None if self.redrawn is None else np.random.default_rng([self.redrawn, *space.name.encode()])
        for hp in space.hyperparameters:
            entry = self.table.get("parameters", {}).get(space.name, {}).get(hp.name, {})
            if values := choices(hp):
                default = entry.get("default", hp.default_value)
                usual = [v for v in entry.get("usual", values) if v in values] or values
                if wrong is not None:
                    default = values[int(wrong.integers(len(values)))]
                found[hp.name] = (default if default in values else hp.default_value, usual, usual)
                continue
            centre = _unit(hp, entry.get("default", hp.default_value), features)
            low = _unit(hp, entry["low"], features) if "low" in entry else max(0.0, centre - WIDTH)
            high = _unit(hp, entry["high"], features) if "high" in entry else min(1.0, centre + WIDTH)
            low, high = min(low, centre), max(high, centre)
            if wrong is not None:  # the range moves along
                shift = wrong.random() - centre
                centre, low, high = (float(np.clip(v + shift, 0, 1)) for v in (centre, low, high))
            found[hp.name] = (centre, low, high)
        return found

    def draw(self, space: AlgorithmSpace, node: Config | None, moves: Mapping[str, int], card: Mapping[str, Any],
             rng: np.random.Generator, exact: bool = False) -> Config:  # fmt: skip
        """One configuration.

        Without ``node`` each numeric parameter is a truncated normal around its default (standard deviation a quarter of the usual
        range); ``exact`` gives the defaults themselves. With a node about half of its parameters are drawn around its values with half
        that deviation, the centre moved by one deviation along ``moves``.
        """
        about = self.about(space, card)
        vector = np.full(len(space), np.nan)
        base = space.vector(node) if node else vector
        changed = rng.random(len(space)) < CHANGED
        active = np.flatnonzero(~np.isnan(base))
        if node and len(active) and not changed[active].any():
            changed[rng.choice(active)] = True
        for j, hp in enumerate(space.hyperparameters):
            centre, low, high = about[hp.name]
            known = not np.isnan(base[j])
            if known and not changed[j]:
                vector[j] = base[j]
            elif choices(hp):
                usual = exact or rng.random() < 0.5
                vector[j] = hp.to_vector(centre if usual else low[int(rng.integers(len(low)))])
            elif exact:
                vector[j] = centre
            else:
                sd = max((high - low) / 4, 1e-3)
                if known:
                    low, high = min(low, base[j]), max(high, base[j])
                    centre, sd = base[j] + moves.get(hp.name, 0) * sd, sd / 2
                vector[j] = _truncated(centre, sd, low, high, rng)
        legal = space.legalise(vector, rng)
        return space.config(legal[0] if len(legal) else space.sample(1, rng)[0])


def _unit(hp: Any, value: Any, features: int) -> float:
    if isinstance(value, str):
        value = features**-0.5 if value == "sqrt" else float(value.removesuffix("/features")) / features
    return float(np.clip(hp.to_vector(min(max(value, hp.lower), hp.upper)), 0.0, 1.0))


def _truncated(centre: float, sd: float, low: float, high: float, rng: np.random.Generator) -> float:
    """A normal number within [low, high], by the inverse of its distribution; where that has no mass there, the nearer end."""
    a, b = scipy.special.ndtr((low - centre) / sd), scipy.special.ndtr((high - centre) / sd)
    if not b - a > 1e-12:
        return low if centre < low else high
    return float(np.clip(centre + sd * scipy.special.ndtri(a + (b - a) * rng.random()), low, high))
