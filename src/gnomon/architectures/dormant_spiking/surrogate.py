"""The step function with a surrogate derivative, and the smooth function that has that derivative."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

SURROGATES = ("atan", "sigmoid", "triangle")


def slope(x: Tensor, surrogate: str = "atan", alpha: float = 2.0) -> Tensor:
    """The surrogate's derivative: arctan (a/2) / (1 + (pi a x / 2)^2), the logistic density, or a triangle of height a."""
    if surrogate == "atan":
        y = (0.5 * math.pi * alpha) * x
        return (0.5 * alpha) / (1 + y * y)
    if surrogate == "sigmoid":
        p = torch.sigmoid(alpha * x)
        return alpha * (p * (1 - p))
    return (alpha - (alpha * alpha) * x.abs()).clamp(min=0)


def primitive(x: Tensor, surrogate: str = "atan", alpha: float = 2.0) -> Tensor:
    """The integral of :func:`slope` from minus infinity: a smooth step from 0 to 1."""
    if surrogate == "atan":
        return torch.atan((0.5 * math.pi * alpha) * x) / math.pi + 0.5
    if surrogate == "sigmoid":
        return torch.sigmoid(alpha * x)
    y = (alpha * x).clamp(-1, 1)
    return 0.5 + y - 0.5 * y * y.abs()


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, surrogate: str, alpha: float, smooth: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.options = surrogate, alpha
        return primitive(x, surrogate, alpha) if smooth else (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * slope(x, *ctx.options), None, None, None


def step(x: Tensor, surrogate: str = "atan", alpha: float = 2.0, smooth: bool = False) -> Tensor:
    """1 where x >= 0 (so at 0 too), else 0; backwards the surrogate's derivative.

    Parameters
    ----------
    x : Tensor
        Membrane less threshold.
    surrogate : {"atan", "sigmoid", "triangle"}
        Shape of the derivative; each integrates to 1.
    alpha : float
        Its sharpness.
    smooth : bool
        Give the smooth step itself: a network that has the surrogate as its true derivative.
    """
    return _Step.apply(x, surrogate, alpha, smooth)  # type: ignore[no-any-return]
