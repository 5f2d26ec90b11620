"""Who takes part: rules that make an optimiser from parameters, and the flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

    from gnomon.optimization.spectral_descent.flow import Trajectory


@dataclass(frozen=True)
class Rule:
    """Makes an optimiser from parameters; any such callable can take its place.

    Parameters
    ----------
    kind : {"spectral", "sgd", "adamw"}
    options : dict
        Of that optimiser.
    """

    kind: str
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, params: list[torch.Tensor], **changes: Any) -> torch.optim.Optimizer:
        import torch

        from gnomon.optimization.spectral_descent.method import SpectralDescent

        made: Any = {"spectral": SpectralDescent, "sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[self.kind]
        optimizer: torch.optim.Optimizer = made(params, **{**self.options, **changes})
        return optimizer


@dataclass(frozen=True)
class WholeMatrix:
    """Spectral descent on W = AB itself, projected to the rank."""

    lr: float


ETA = 0.01  # the paper's
TOY = {
    "exact": Rule("spectral", {"lr": ETA}),
    "newton-schulz": Rule("spectral", {"lr": ETA, "orth": "newton_schulz", "ns_dtype": None}),
    "muon": Rule("spectral", {"lr": ETA, "momentum": 0.95}),
    "gd": Rule("sgd", {"lr": 0.05}),
    "momentum": Rule("sgd", {"lr": 0.005, "momentum": 0.9}),
    "adamw": Rule("adamw", {"lr": ETA, "weight_decay": 0.0}),
}
SWEPT = {
    "smoothed 1e-12": Rule("spectral", {"lr": ETA, "orth": "smoothed", "beta": 1e-12}),
    "smoothed 1e-6": Rule("spectral", {"lr": ETA, "orth": "smoothed", "beta": 1e-6}),
    "smoothed 1e-3": Rule("spectral", {"lr": ETA, "orth": "smoothed", "beta": 1e-3}),
    "whole matrix": WholeMatrix(ETA),
}
ADAPTERS = {
    "muon": Rule("spectral", {"momentum": 0.95, "scale": "match_rms_adamw"}),
    "adamw": Rule("adamw", {"weight_decay": 0.0}),
    "sgd": Rule("sgd", {"momentum": 0.9}),
}


def flow(A: np.ndarray, B: np.ndarray, Y: np.ndarray, lam: float, t_max: float, points: int = 2) -> Trajectory:
    """The smoothed flow with the study's beta."""
    from gnomon.optimization.spectral_descent.flow import spectral_flow

    return spectral_flow(A, B, Y, beta=1e-3, lam=lam, t_max=t_max, points=points)
