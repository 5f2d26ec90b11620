r"""The restricted operators that the paper compares with, each at the exact optimum of its class.

All minimise (or, for LinearPatch, approximate) :math:`\|X W + b - Y\|_F^2` over a subset of the maps. With
:math:`D = Y - X` they are solved for :math:`M = W - I` from the sums X'X and X'D alone. Every function takes the
boundary's statistics and the moments to fit on, and returns ``(W, b)`` in float64, row-vector convention: ``x @ W +
b``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from gnomon.linalg import Moments, polar, solve_symmetric, sqrt_psd
from gnomon.surgery.ghosted_layers.hadamard import rotation
from gnomon.surgery.ghosted_layers.moments import BoundaryMoments
from gnomon.surgery.ghosted_layers.solve import Operator, ghost, solve


def _eye(moments: Moments) -> Tensor:
    return torch.eye(len(moments.xx), dtype=torch.float64, device=moments.xx.device)


def identity(stats: BoundaryMoments, moments: Moments) -> Operator:
    """W = I: plain removal."""
    return Operator(_eye(moments), torch.zeros_like(moments.x))


def scalar(stats: BoundaryMoments, moments: Moments) -> Operator:
    """W = a I with a = <X, Y> / ||X||^2."""
    gain = moments.xy.trace() / moments.xx.trace()
    return Operator((1 + gain) * _eye(moments), torch.zeros_like(moments.x))


def shift(stats: BoundaryMoments, moments: Moments) -> Operator:
    """x + mean(D)."""
    return Operator(_eye(moments), moments.y / moments.n)


def diagonal(stats: BoundaryMoments, moments: Moments) -> Operator:
    """W = diag(<X_c, Y_c> / ||X_c||^2): the best that scaling the channels can do."""
    power = moments.xx.diagonal()
    gain = torch.where(power > 0, moments.xy.diagonal() / power.where(power > 0, torch.ones_like(power)), 0.0)
    return Operator(torch.diag(1 + gain), torch.zeros_like(moments.x))


def symmetric(stats: BoundaryMoments, moments: Moments) -> Operator:
    """The best symmetric W, a bound for every LinearPatch: G W + W G = X'Y + Y'X with G = X'X."""
    return Operator(_eye(moments) + solve_symmetric(moments.xx, moments.xy), torch.zeros_like(moments.x))


def orthogonal(stats: BoundaryMoments, moments: Moments) -> Operator:
    """The best orthogonal W (Procrustes): U V' of the singular value decomposition of X'Y."""
    return Operator(polar(moments.xx + moments.xy), torch.zeros_like(moments.x))


def low_rank(stats: BoundaryMoments, moments: Moments, rank: int = 64, ridge: float = 1e-6,
             ridge_mode: Literal["absolute", "relative"] = "absolute") -> Operator:  # fmt: skip
    """W = I + M with M of rank at most ``rank`` (reduced-rank regression, Izenman 1975).

    M = M* V V' with V the first right singular vectors of G^(1/2) M*; the residual exceeds the unconstrained one by
    the sum of the squares of the singular values that are dropped.
    """
    if not 0 <= rank <= len(moments.xx):
        raise ValueError(f"rank: got {rank}; expected 0..{len(moments.xx)}")
    full = solve(moments, ridge=ridge, ridge_mode=ridge_mode)
    _, _, right = torch.linalg.svd(sqrt_psd(moments.xx) @ full)
    kept = right[:rank]
    return Operator(_eye(moments) + full @ kept.T @ kept, torch.zeros_like(moments.x))


def linearpatch_d(stats: BoundaryMoments, moments: Moments, ratio: Literal["sequence", "overall"] = "overall",
                  ) -> Operator:  # fmt: skip
    """LinearPatch without rotation: diag(mean|Y_c| / mean|X_c|). A ratio of magnitudes, not least squares."""
    if stats.scales is None:
        raise ValueError("linearpatch-d needs statistics that were collected with scales")
    return Operator(torch.diag(stats.scales.diagonal(ratio)), torch.zeros_like(moments.x))


def linearpatch_r(stats: BoundaryMoments, moments: Moments, ratio: Literal["sequence", "overall"] = "overall",
                  ) -> Operator:  # fmt: skip
    """LinearPatch in the Hadamard basis: Q diag(mean|(YQ)_c| / mean|(XQ)_c|) Q'."""
    if stats.rotated is None or stats.rotation is None:
        raise ValueError("linearpatch-r needs statistics that were collected with a rotation")
    q = rotation(stats.size).to(moments.xx.device)
    return Operator(q @ torch.diag(stats.rotated.diagonal(ratio)) @ q.T, torch.zeros_like(moments.x))


CLASSES: dict[str, Callable[..., Operator]] = {
    "ghost": ghost,
    "identity": identity,
    "scalar": scalar,
    "shift": shift,
    "diagonal": diagonal,
    "symmetric": symmetric,
    "orthogonal": orthogonal,
    "low-rank": low_rank,
    "linearpatch-d": linearpatch_d,
    "linearpatch-r": linearpatch_r,
}


# --- ReplaceMe (arXiv 2505.02819) -------------------------------------------------------------------------------------


def replaceme(stats: BoundaryMoments, ridge: float = 1e-6) -> Tensor:
    """T = argmin ||A T + R - Y||^2, to be folded into the MLP's last linear of the block before the cut.

    A is the output of that MLP and R the residual beside it (X_pre = R + A), so T - I = argmin ||A M - D||^2.

    Returns
    -------
    Tensor (C, C), float64
        ``A @ T`` takes the place of A.
    """
    if stats.mlp is None:
        raise ValueError("replaceme needs statistics that were collected with the MLP before the boundary")
    return _eye(stats.mlp) + solve(stats.mlp, ridge=ridge)


def replaceme_cosine(mlp: Tensor, pre: Tensor, post: Tensor, *, epochs: int = 10, lr: float = 1e-4,
                     batch: int = 1024, generator: torch.Generator | None = None) -> Tensor:  # fmt: skip
    """T that minimises the mean cosine distance of A T + R and Y, by Adam from T = I. It needs the activations.

    Parameters
    ----------
    mlp, pre, post : Tensor (N, C)
        A, X_pre and X_post.

    Returns
    -------
    Tensor (C, C), float64
    """
    size = mlp.shape[1]
    change = torch.zeros(size, size, requires_grad=True, device=mlp.device)
    optimiser = torch.optim.Adam([change], lr=lr)
    mlp, pre, post = mlp.float(), pre.float(), post.float()
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(mlp), generator=generator), batch):
            moved = pre[rows] + mlp[rows] @ change
            loss = 1 - torch.nn.functional.cosine_similarity(moved, post[rows], dim=-1).mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return torch.eye(size, dtype=torch.float64, device=mlp.device) + change.detach().double()
