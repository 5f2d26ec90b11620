"""The objectives that are trained: each a few plain settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """One objective.

    Parameters
    ----------
    lam : float
        Weight of the term; 0 for the baselines.
    variant, detach, apply_to : str
        See :class:`gnomon.architectures.GEMObjective`.
    warmup : float
        Share of the training over which the weight rises.
    scaled : bool
        Whether the scale rule is applied.
    centred : bool
        Whether the mixture is of the embeddings less their mean (the probabilities are the same).
    tied : bool
        Whether the head and the input embeddings share one matrix.
    baseline : str
        A loss of ``gem.baselines``, when the weight is 0.
    """

    lam: float = 0.0
    variant: str = "mse"
    detach: str = "mixture"
    apply_to: str = "last"
    warmup: float = 0.1
    scaled: bool = True
    centred: bool = False
    tied: bool = True
    baseline: str = "cross_entropy"


CE = "ce"
JUDGED = {
    "mse 0.1": Recipe(0.1),
    "mse 1": Recipe(1.0),
    "all 0.1": Recipe(0.1, apply_to="all"),
    CE: Recipe(),
}
SHOWN = {
    "plain ce": Recipe(scaled=False),
    "plain mse 1": Recipe(1.0, scaled=False),
    "cos 0.1": Recipe(0.1, "cos"),
    "energy 0.1": Recipe(0.1, "energy"),
    "mse 0.3 through": Recipe(0.3, detach="none"),
    "centred 0.1": Recipe(0.1, centred=True),
    "late 0.1": Recipe(0.1, warmup=1.0),
}
GRID = {
    f"{variant} {lam:g}{' through' if detach == 'none' else ''}": Recipe(lam, variant, detach)
    for variant in ("mse", "cos", "energy")
    for detach in ("mixture", "none")
    for lam in (0.03, 0.1, 0.3, 1.0)
}
BASELINES = {
    "untied": Recipe(tied=False),
    "label smoothing": Recipe(baseline="label_smoothing"),
    "confidence penalty": Recipe(baseline="confidence_penalty"),
    "z-loss": Recipe(baseline="z_loss"),
    "cosine regularisation": Recipe(baseline="cosine_regularisation"),
}
OBJECTIVES = {**SHOWN, **GRID, **BASELINES, **JUDGED}
OTHERS = [name for name in OBJECTIVES if name not in JUDGED]
