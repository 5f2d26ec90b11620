r"""The closed form: :math:`W^* = I + (X'X + \varepsilon I)^{-1} X'D`, and what any other W costs.

Row-vector convention throughout: the operator maps x to ``x @ W + b``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from gnomon.linalg import Moments, effective_rank, solve_min_norm, solve_ridge

if TYPE_CHECKING:
    from gnomon.surgery.ghosted_layers.moments import BoundaryMoments


class Operator(NamedTuple):
    """A boundary operator x -> x @ weight + bias, float64."""

    weight: Tensor
    bias: Tensor

    def then(self, other: Operator) -> Operator:
        """The operator that applies this one first, then ``other``."""
        return Operator(self.weight @ other.weight, self.bias @ other.weight + other.bias)


def solve(moments: Moments, *, ridge: float = 1e-6, ridge_mode: Literal["absolute", "relative"] = "absolute",
          solver: Literal["ridge", "pinv"] = "ridge") -> Tensor:  # fmt: skip
    """M = argmin ||X M - D||^2 + e ||M||^2 from the moments of (X, D).

    Parameters
    ----------
    moments : Moments
        Of X (N, C) and D (N, C).
    ridge, ridge_mode : float, {"absolute", "relative"}
        e is ``ridge``, or ``ridge`` times the mean eigenvalue tr(X'X) / C.
    solver : {"ridge", "pinv"}
        "pinv" is the minimum-norm solution with e = 0: M = 0 (so W = I) on the directions that X does not reach.

    Returns
    -------
    Tensor (C, C), float64
    """
    if not ridge >= 0 or ridge == float("inf"):
        raise ValueError(f"ridge: got {ridge}; expected a finite number >= 0")
    if ridge_mode not in ("absolute", "relative"):
        raise ValueError(f"ridge_mode: got {ridge_mode!r}; expected 'absolute' or 'relative'")
    if solver == "pinv":
        return solve_min_norm(moments.xx, moments.xy)
    if solver != "ridge":
        raise ValueError(f"solver: got {solver!r}; expected 'ridge' or 'pinv'")
    size = len(moments.xx)
    added = ridge * float(moments.xx.trace()) / size if ridge_mode == "relative" else ridge
    try:
        return solve_ridge(moments.xx, moments.xy, added)
    except ValueError:  # fewer tokens than channels, and a ridge below the rounding of X'X: M = 0 where X says nothing
        shifted = moments.xx + added * torch.eye(size, dtype=torch.float64, device=moments.xx.device)
        return solve_min_norm(shifted, moments.xy)


def ghost(stats: BoundaryMoments, moments: Moments, affine: bool = False, ridge: float = 1e-6,
          ridge_mode: Literal["absolute", "relative"] = "absolute",
          solver: Literal["ridge", "pinv"] = "ridge") -> Operator:  # fmt: skip
    """The unconstrained optimum W* = I + M*, with an intercept if ``affine`` (both sides centred by their means)."""
    change = solve(moments.centred() if affine else moments, ridge=ridge, ridge_mode=ridge_mode, solver=solver)
    weight = torch.eye(len(change), dtype=torch.float64, device=change.device) + change
    bias = (moments.y - moments.x @ change) / moments.n if affine else torch.zeros_like(moments.x)
    return Operator(weight, bias)


def excess(moments: Moments, weight: Tensor, best: Tensor) -> float:
    r"""What W costs more than the optimum: :math:`\|XW - Y\|^2 - \|XW^* - Y\|^2 = \|G^{1/2}(W - W^*)\|_F^2`.

    Exact for the unregularised optimum W* and any W.
    """
    gap = weight - best
    return float((gap * (moments.xx @ gap)).sum())


def antisymmetric_share(weight: Tensor) -> float:
    """||(M - M')/2||_F / ||M||_F of M = W - I: 0 for a symmetric operator; iid noise has :func:`noise_share`."""
    change = weight - torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
    norm = float(change.norm())
    return float((change - change.T).norm()) / 2 / norm if norm > 0 else 0.0


def noise_share(size: int) -> float:
    """The anti-symmetric share of a matrix of independent noise: sqrt((C - 1) / 2C), 0.707 for large C."""
    return math.sqrt((size - 1) / (2 * size))


def describe(weight: Tensor) -> dict[str, float]:
    """Anti-symmetric share of M with its noise null, effective rank of M, spectral norm of W."""
    change = weight - torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
    return {
        "antisymmetric": antisymmetric_share(weight),
        "noise_null": noise_share(len(weight)),
        "effective_rank": effective_rank(change),
        "spectral_norm": float(torch.linalg.matrix_norm(weight, 2)),
    }
