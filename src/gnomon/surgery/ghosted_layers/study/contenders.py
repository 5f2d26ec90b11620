"""Who takes part: how each contender makes the operator of a boundary from its statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from gnomon.surgery.ghosted_layers.moments import BoundaryMoments
    from gnomon.surgery.ghosted_layers.solve import Operator


@dataclass(frozen=True)
class Recipe:
    """Makes the operator of a boundary from its statistics; any function of the statistics can take its place.

    Parameters
    ----------
    kind : str
        See :func:`gnomon.surgery.fit_operator`; "replaceme" gives T, to be folded; "dense" is the whole model.
    weighted : bool
        Use the row weights ||x_post||^(-1/2).
    options : dict
        Of the operator.
    """

    kind: str
    weighted: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, stats: BoundaryMoments) -> Operator | Tensor:
        from gnomon.surgery.ghosted_layers.baselines import replaceme
        from gnomon.surgery.ghosted_layers.method import fit_operator

        if self.kind == "replaceme":
            return replaceme(stats, **self.options)
        return fit_operator(stats if self.weighted else stats.unweighted(), kind=self.kind, **self.options)


def relative(ridge: float, weighted: bool = False) -> Recipe:
    """Ghost with a ridge relative to the mean eigenvalue."""
    return Recipe("ghost", weighted, {"ridge": ridge, "ridge_mode": "relative"})


GHOST, NONE, WEIGHTED = Recipe("ghost"), Recipe("identity"), relative(1e-2, weighted=True)
MAIN = {
    "ghost": GHOST,
    "weighted": WEIGHTED,
    "linearpatch-d": Recipe("linearpatch-d"),
    "linearpatch-r": Recipe("linearpatch-r"),
    "replaceme": Recipe("replaceme"),
    "none": NONE,
    "dense": Recipe("dense"),
}
CLASSES = {
    "ghost": GHOST,
    "affine": Recipe("affine"),
    "symmetric": Recipe("symmetric"),
    "orthogonal": Recipe("orthogonal"),
    "low-rank": Recipe("low-rank", options={"rank": 64}),
    "diagonal": Recipe("diagonal"),
    "scalar": Recipe("scalar"),
    "shift": Recipe("shift"),
}
