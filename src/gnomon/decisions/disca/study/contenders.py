"""Ways to make a gap of the base's and the personas' gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnomon.decisions.disca import baselines
from gnomon.decisions.disca.correction import Correction, correct


@dataclass(frozen=True)
class Corrected:
    """The method, with options that differ from the defaults; how many personas it sees, and whose."""

    options: dict[str, Any] = field(default_factory=dict)
    personas: int = 4
    whose: str = "own"  # "own", "another country's", "each of another country's"

    def __call__(self, base: np.ndarray, panel: np.ndarray) -> Correction:
        return correct(base, panel[..., : self.personas], **self.options)


@dataclass(frozen=True)
class Rule:
    """A baseline on gaps: it takes the base's and four personas', and gives gaps."""

    rule: Callable[..., np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, base: np.ndarray, panel: np.ndarray) -> np.ndarray:
        return self.rule(base, panel[..., :4], **self.options)


ABLATIONS: dict[str, Corrected] = {
    "kappa 1": Corrected({"kappa": 1.0}),
    "no bound": Corrected({"bound": float("inf")}),
    "no shrinkage": Corrected({"reliability": "none"}),
    "fixed step": Corrected({"magnitude": 1.0}),
    "draws": Corrected({"estimator": "importance", "reliability": "both"}),
    "risk-neutral, no base": Corrected({"lam": 0.0, "kappa": 1.0, "power": 1.0}),
    "2 personas": Corrected(personas=2),
    "8 personas": Corrected(personas=8),
    "wrong country": Corrected(whose="another country's"),
    "mixed countries": Corrected(whose="each of another country's"),
}
RULES: dict[str, Rule] = {
    "base": Rule(baselines.vanilla),
    "panel mean": Rule(baselines.panel_mean),
    "panel majority": Rule(baselines.panel_majority),
    "temperature 2": Rule(baselines.tempered),
    "margin 1": Rule(baselines.clipped),
    "self-consistency": Rule(baselines.self_consistency),
}
