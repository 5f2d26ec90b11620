"""Who takes part in the sensing lab: how each makes its optimiser, given GD's largest safe rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gnomon.optimization.muon_river.baselines import (
    Schedule,
    SignDescent,
    cosine,
    inverse_sqrt,
    linear,
    warmup_stable_decay,
)

if TYPE_CHECKING:
    from gnomon.optimization.muon_river.sensing import History, MixedSpikedSensing

STEPS = 600
ETA = 0.1
SAFE = 1.9  # GD's rate times the largest curvature


@dataclass(frozen=True)
class Plan:
    """Runs one optimiser on a sensing problem; any callable from the problem to a `History` can take its place.

    Parameters
    ----------
    kind : {"muon", "gd", "two-stage", "sign", "adamw"}
    options : dict
        Of that optimiser; ``switch`` of the two stages.
    schedule : callable, optional
        Factor of the learning rate by step.
    """

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    schedule: Schedule | None = None

    def __call__(self, lab: MixedSpikedSensing, steps: int = STEPS) -> History:
        return lab.run(self.maker(SAFE / lab.curvature()), steps, self.schedule)

    def maker(self, safe: float) -> Callable[[list[Any]], Any]:
        """Makes the optimiser from [W]; ``safe`` is GD's rate."""
        import torch

        from gnomon.optimization.muon_river.method import TwoStage
        from gnomon.optimization.spectral_descent.method import SpectralDescent

        def muon(p: Any, **options: Any) -> Any:
            return SpectralDescent(p, **{"lr": ETA, **options})

        def gd(p: Any, **options: Any) -> Any:
            return torch.optim.SGD(p, **{"lr": safe, **options})

        if self.kind == "two-stage":
            return lambda p: TwoStage(p, muon, gd, min_steps=0, noisy=False, lr2=safe, **self.options)
        makers: dict[str, Callable[..., Any]] = {
            "muon": muon,
            "gd": gd,
            "sign": SignDescent,
            "adamw": torch.optim.AdamW,
        }
        return lambda p: makers[self.kind](p, **self.options)


LAB = {
    "two-stage": Plan("two-stage", {"switch": 60}),
    "two-stage auto": Plan("two-stage", {"switch": "auto"}),
    "gd": Plan("gd"),
    "heavy ball": Plan("gd", {"momentum": 0.9, "dampening": 0.9}),
    "muon": Plan("muon"),
    "muon 0.05": Plan("muon", {"lr": 0.05}),
    "momentum": Plan("muon", {"momentum": 0.95}),
    "linear": Plan("muon", schedule=linear(STEPS)),
    "cosine": Plan("muon", schedule=cosine(STEPS)),
    "inverse sqrt": Plan("muon", schedule=inverse_sqrt()),
    "stable decay": Plan("muon", schedule=warmup_stable_decay(STEPS)),
    "sign": Plan("sign", {"lr": 0.01}),
    "adamw": Plan("adamw", {"lr": 0.05, "weight_decay": 0.0}),
}
FINITE = ("two-stage", "two-stage auto", "gd", "muon", "linear", "cosine")
