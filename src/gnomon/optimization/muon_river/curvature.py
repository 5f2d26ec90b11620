"""Which steps decrease the loss at a point: by its curvature, and by trying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnomon.optimization.spectral_descent.orthogonal import polar

Loss = Callable[[], Tensor]


class Bounds(NamedTuple):
    """At one point, to second order.

    Attributes
    ----------
    residual : float
        a = <G, U> / <U, HU>, U the polar factor of G: a Muon step decreases the loss iff it is below 2a.
    curvature : float
        c = <G, HG> / <G, G>: a gradient step does iff it is below 2 / c, whatever the residual.
    """

    residual: float
    curvature: float

    @property
    def muon(self) -> float:
        """The largest decreasing Muon step, 2a."""
        return 2 * self.residual

    @property
    def gd(self) -> float:
        """The largest decreasing gradient step, 2 / c."""
        return 2 / self.curvature


def directions(loss: Loss, params: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The gradient, and the polar factor of each matrix (of a vector: its sign)."""
    grads = [g.detach() for g in torch.autograd.grad(loss(), list(params))]
    return grads, [polar(g) if g.dim() == 2 else g.sign() for g in grads]


def step_bounds(loss: Loss, params: Sequence[Tensor]) -> Bounds:
    """`Bounds` at the current point, by two Hessian-vector products.

    Parameters
    ----------
    loss : callable
        Computes the loss from ``params``, differentiably (twice).
    params : sequence of Tensor
        With ``requires_grad``.
    """
    grads, signs = directions(loss, params)

    def curve(direction: list[Tensor]) -> float:
        return _dot(direction, hessian_product(loss, params, direction))

    return Bounds(_dot(grads, signs) / curve(signs), curve(grads) / _dot(grads, grads))


def hessian_product(loss: Loss, params: Sequence[Tensor], direction: Sequence[Tensor]) -> list[Tensor]:
    """H times a direction, at the current point."""
    grads = torch.autograd.grad(loss(), list(params), create_graph=True)
    inner = sum((g * d).sum() for g, d in zip(grads, direction, strict=True))
    found = torch.autograd.grad(inner, list(params), allow_unused=True)  # type: ignore[arg-type]
    return [torch.zeros_like(p) if h is None else h.detach() for h, p in zip(found, params, strict=True)]


@torch.no_grad()
def largest_decreasing_step(loss: Loss, params: Sequence[Tensor], direction: Sequence[Tensor], start: float = 1e-3,
                            rtol: float = 1e-3) -> float:  # fmt: skip
    """The first step along ``-direction`` at which the loss is back where it was, by doubling and bisection.

    Parameters
    ----------
    loss, params
        As in `step_bounds`; the parameters are put back.
    direction : sequence of Tensor
    start : float
        A first guess, > 0; it is halved while the loss does not decrease there.
    rtol : float

    Returns
    -------
    float
        0 where no step above 1e-12 of ``start`` decreases the loss, inf where all up to 1e12 times it do.
    """
    kept, here = [p.detach().clone() for p in params], float(loss())

    def lower(step: float) -> bool:
        for p, before, d in zip(params, kept, direction, strict=True):
            p.copy_(before - step * d)
        return float(loss()) < here

    try:
        low = start
        while not lower(low):
            low /= 2
            if low < 1e-12 * start:
                return 0.0
        high = 2 * low
        while lower(high):
            low, high = high, 2 * high
            if high > 1e12 * start:
                return float("inf")
        while high - low > rtol * low:
            middle = (low + high) / 2
            low, high = (middle, high) if lower(middle) else (low, middle)
        return low
    finally:
        for p, before in zip(params, kept, strict=True):
            p.copy_(before)


def river_direction(loss: Loss, params: Sequence[Tensor], floor: float = 1e-3, steps: int = 40,
                    seed: int = 0) -> tuple[float, list[Tensor]]:  # fmt: skip
    """The least curved direction that is not flat, by Lanczos iteration on Hessian-vector products.

    Parameters
    ----------
    loss, params
        As in `step_bounds`.
    floor : float
        Curvatures below ``floor`` times the largest count as flat.
    steps : int
        Of Lanczos, with full reorthogonalisation.
    seed : int
        Of the start.

    Returns
    -------
    curvature : float
    direction : list of Tensor
        Of norm 1 together.
    """
    sizes = [p.numel() for p in params]
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(sum(sizes), dtype=torch.float64, generator=generator)
    basis, alphas, betas = [q / q.norm()], [], []

    def product(x: Tensor) -> Tensor:
        parts = [s.view_as(p).to(p) for s, p in zip(x.split(sizes), params, strict=True)]
        return torch.cat([h.flatten().double() for h in hessian_product(loss, params, parts)])

    for _ in range(min(steps, len(q))):
        rest = product(basis[-1])
        alphas.append(float(rest @ basis[-1]))
        for b in basis * 2:
            rest = rest - (rest @ b) * b
        betas.append(float(rest.norm()))
        if betas[-1] < 1e-10 * max(map(abs, alphas)):
            break
        basis.append(rest / betas[-1])
    k = len(alphas)
    values, vectors = np.linalg.eigh(np.diag(alphas) + np.diag(betas[: k - 1], 1) + np.diag(betas[: k - 1], -1))
    chosen = int(np.flatnonzero(values > floor * values[-1])[0])
    x = sum(float(w) * b for w, b in zip(vectors[:, chosen], basis, strict=False))
    return float(values[chosen]), [s.view_as(p).to(p) for s, p in zip((x / x.norm()).split(sizes), params, strict=True)]  # type: ignore[union-attr, operator]


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(sum((x * y).sum() for x, y in zip(a, b, strict=True)))
