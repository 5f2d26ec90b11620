"""The exact distance of states to the convex hull of the embeddings: away-step Frank-Wolfe with a duality gap."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gnomon.architectures.gem.method import check_finite, check_shapes

REFRESH = 64  # steps after which the point is summed anew from its weights


class HullDistance(NamedTuple):
    """The nearest points of the hull.

    Attributes
    ----------
    distance : Tensor (...)
        ||h - x||, x the best point found: never below the true distance.
    gap : Tensor (...)
        Frank-Wolfe's duality gap: distance² - 2 gap is at most the true distance squared.
    entropy : Tensor (...)
        Of the weights of x, in nats: 0 at a vertex.
    point : Tensor (..., d)
        x.
    weights : Tensor (..., V)
        Barycentric, of the rows of E.
    steps : int
        Steps of the slowest.
    """

    distance: Tensor
    gap: Tensor
    entropy: Tensor
    point: Tensor
    weights: Tensor
    steps: int


def hull_distance(h: Tensor, E: Tensor, tol: float = 1e-10, max_iter: int = 5000) -> HullDistance:
    """Project states on conv{e_v} (Lacoste-Julien and Jaggi 2015: away steps make the convergence linear).

    Parameters
    ----------
    h : Tensor (..., d)
        States; they are projected together, one matrix product with E a step.
    E : Tensor (V, d)
        The vertices: leave out rows of tokens that the model never saw, which lie anywhere.
    tol : float
        Of the duality gap, relative to the mean ||e||².
    max_iter : int
        Steps at most; the gap tells what is left.

    Returns
    -------
    HullDistance

    Raises
    ------
    ValueError
        For shapes that do not fit or values that are not finite.
    """
    check_shapes(h, E)
    check_finite(h=h, E=E)
    if max_iter < 1:
        raise ValueError(f"max_iter: got {max_iter}; expected at least 1")
    shape = h.shape[:-1]
    dtype = torch.promote_types(torch.promote_types(h.dtype, E.dtype), torch.float32)
    h, E = h.detach().reshape(-1, h.shape[-1]).to(dtype), E.detach().to(dtype)
    every = torch.arange(len(h), device=h.device)
    limit = tol * float(E.square().sum(1).mean())
    start = (E.square().sum(1) / 2 - h @ E.T).argmin(1)
    w = h.new_zeros(len(h), len(E))
    w[every, start] = 1.0
    x = E[start].clone()
    for step in range(max_iter + 1):
        r = x - h
        slope = r @ E.T  # of the objective, along each weight
        here = (r * x).sum(1)
        low, best = slope.min(1)
        high, worst = slope.masked_fill(w <= 0, -torch.inf).max(1)
        gap = here - low
        moving = gap > limit
        if step == max_iter or not bool(moving.any()):
            break
        toward = gap >= high - here
        direction = torch.where(toward[:, None], E[best] - x, x - E[worst])
        part = w[every, worst]
        most = torch.where(toward, 1.0, part / (1 - part).clamp_min(torch.finfo(dtype).tiny))
        length = direction.square().sum(1).clamp_min(torch.finfo(dtype).tiny)
        size = torch.minimum((-(r * direction).sum(1) / length).clamp_min(0), most) * moving
        signed = torch.where(toward, size, -size)
        w *= (1 - signed)[:, None]
        w[every, torch.where(toward, best, worst)] += signed
        dropped = ~toward & moving & (size >= most)
        w[every[dropped], worst[dropped]] = 0.0
        w.clamp_min_(0.0)
        x += size[:, None] * direction
        if step % REFRESH == REFRESH - 1:
            w /= w.sum(1, keepdim=True)
            x = w @ E
    entropy = -torch.special.xlogy(w, w).sum(1)
    distance, gap, entropy = (f.view(shape) for f in (r.norm(dim=1), gap.clamp_min(0), entropy))
    return HullDistance(distance, gap, entropy, x.view(*shape, -1), w.view(*shape, -1), step)
