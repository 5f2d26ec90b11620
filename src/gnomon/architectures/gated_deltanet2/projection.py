"""Linear maps from and to the residual stream, which every mixer starts alike."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["Projection"]


class Projection(nn.Linear):
    """Linear maps side by side as one product, without bias.

    They start for themselves, not by the layer that holds them: transformers initialises a layer of one's own only if
    it has parameters besides its submodules.

    Parameters
    ----------
    in_features : int
    *parts : int
        Outputs of each map; 0 for a map that is left out.
    """

    def __init__(self, in_features: int, *parts: int):
        self.parts = parts  # read when the parent class initialises
        super().__init__(in_features, sum(parts), bias=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Each map Xavier-uniform with gain 2^-2.5."""
        for weight in self.weight.split(self.parts):
            if len(weight):
                nn.init.xavier_uniform_(weight, gain=2**-2.5)
