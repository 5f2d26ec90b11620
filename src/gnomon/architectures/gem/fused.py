"""The same loss without storing the logits: chunks of tokens, gradients in closed form, computed on the way forward.

The gradient of the cross-entropy with respect to h is beta (m - e_target), so the product that gives the mixture is the
one that a fused cross-entropy needs anyway: with the mixture detached, the term costs no further product with E.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnomon.architectures.gem.method import TINY, GEMLoss, check_arguments, nothing, rows


def fused_gem_loss(h: Tensor, E: Tensor, targets: Tensor | None, lam: float = 0.1, beta: float | Tensor = 1.0,
                   variant: str = "mse", chunk: int = 1024, detach: str = "mixture") -> GEMLoss:  # fmt: skip
    """Cross-entropy and the GEM term with memory O(chunk V): equal to ``gem_loss`` in values and gradients.

    Parameters
    ----------
    h : Tensor (..., d)
        Hidden states that enter the head. Half precision is computed in float32.
    E : Tensor (V, d)
        Output embeddings.
    targets : LongTensor (...) or None
        The next token of each state; -100 is ignored, in both terms. None: every state counts and ce is 0.
    lam : float
        Weight >= 0 of the term in ``total``; at 0 the term is not computed.
    beta : float or Tensor ()
        Positive scale of the logits, which may ask for a gradient.
    variant : {"mse", "cos", "energy"}
    chunk : int
        Tokens whose logits are held at once.
    detach : {"mixture", "none"}
        With "none" the gradient goes through the mixture: four more products with E, and a second (V, d) buffer.

    Returns
    -------
    GEMLoss
        ``ce, gem, residual_ratio``; gradients go to h, E and beta, once (no double backward).

    Raises
    ------
    ValueError
        As ``gem_loss``, and for chunk < 1.
    """
    check_arguments(h, E, targets, lam, beta, variant, detach)
    if chunk < 1:
        raise ValueError(f"chunk: got {chunk}; expected at least 1")
    with torch.autocast(h.device.type, enabled=False):
        h, E, targets, _ = rows(h, E, targets)
        if len(h) == 0:
            return nothing(h, E, lam)
        scale = beta.to(h) if isinstance(beta, Tensor) else h.new_tensor(beta)
        ce, gem, ratio = _Fused.apply(h, E, scale, targets, variant if lam else None, detach, chunk)  # type: ignore[no-untyped-call]
    return GEMLoss(ce, gem, ratio, float(lam))


class _Grads(NamedTuple):
    """Gradients of one of the two means with respect to h, E and beta; None stands for zero."""

    h: Tensor | None
    E: Tensor | None
    beta: Tensor | None


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, E: Tensor, beta: Tensor, targets: Tensor | None, variant: str | None,
                detach: str, chunk: int) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        n, wanted = len(h), ctx.needs_input_grad[:3]
        trained = any(wanted)
        ce, gem, square, total = (h.new_zeros((), dtype=torch.float64) for _ in range(4))
        norm = E.square().sum(-1).mean()
        through = variant is not None and detach == "none" and trained
        by_ce = _empty(h, E, beta, wanted) if targets is not None else _Grads(None, None, None)
        by_gem = _Grads(torch.empty_like(h) if variant and wanted[0] else None, *_empty(h, E, beta, wanted)[1:])
        if not through:
            by_gem = by_gem._replace(E=None, beta=None)
        for at in range(0, n, chunk):
            x = h[at : at + chunk]
            scores = (x @ E.T).mul_(beta)
            own = None if targets is None else scores.gather(1, targets[at : at + chunk, None])[:, 0]
            p, lse = _softmax(scores)  # in place: the one buffer of chunk x V
            if own is not None:
                ce += (lse - own).sum(dtype=torch.float64)
            if variant is None and not trained:
                continue
            m = p @ E
            if own is not None and trained:
                assert targets is not None
                to_h = m - E[targets[at : at + chunk]]  # (p - onehot) E
                if by_ce.h is not None:
                    by_ce.h[at : at + chunk] = to_h * (beta / n)
                if by_ce.E is not None:
                    by_ce.E.addmm_(p.T, x, alpha=float(beta) / n)
                if by_ce.beta is not None:
                    by_ce.beta.add_((to_h * x).sum() / n)
            if variant is not None:
                square += (x - m).square().sum(dtype=torch.float64)
                total += x.square().sum(dtype=torch.float64)
                value, to_h = _term(x, E, beta, p, lse, m, norm, variant, by_gem if through else None, n)
                gem += value.sum(dtype=torch.float64)
                if by_gem.h is not None:
                    by_gem.h[at : at + chunk] = to_h / n
        if by_ce.E is not None and targets is not None:
            by_ce.E.index_add_(0, targets, h, alpha=-float(beta) / n)
        ctx.kinds = [[g is not None for g in grads] for grads in (by_ce, by_gem)]
        ctx.save_for_backward(*[g for grads in (by_ce, by_gem) for g in grads if g is not None])
        ratio = (square / total).to(h.dtype) if variant else h.new_full((), math.nan)
        ctx.mark_non_differentiable(ratio)
        return (ce / n).to(h.dtype), (gem / n).to(h.dtype), ratio

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, ce: Tensor, gem: Tensor, ratio: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        given = [_Grads(*(next(saved) if there else None for there in kinds)) for kinds in ctx.kinds]
        sums: list[Tensor | None] = []
        for a, b in zip(*given, strict=True):
            parts = [g * w for g, w in ((a, ce), (b, gem)) if g is not None]
            sums.append(sum(parts[1:], parts[0]) if parts else None)
        return (*sums, None, None, None, None)


def _empty(h: Tensor, E: Tensor, beta: Tensor, wanted: tuple[bool, ...]) -> _Grads:
    makers = (torch.empty_like, torch.zeros_like, torch.zeros_like)
    return _Grads(*(make(x) if w else None for make, x, w in zip(makers, (h, E, beta), wanted, strict=True)))


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities in the place of the scores, and the log of the partition sum."""
    top = scores.amax(1, keepdim=True)
    total = scores.sub_(top).exp_().sum(1, keepdim=True)
    return scores.div_(total), (top + total.log())[:, 0]


def _term(h: Tensor, E: Tensor, beta: Tensor, p: Tensor, lse: Tensor, m: Tensor, norm: Tensor, variant: str,
          grads: _Grads | None, n: int) -> tuple[Tensor, Tensor]:  # fmt: skip
    """G of each token and its gradient with respect to h; what goes to E and beta is added to ``grads``.

    ``direct`` is the gradient at a fixed mixture and ``g`` that with respect to the mixture. Through the softmax g
    becomes w = p * (E g - m·g) on the logits: beta E^T w on h, beta h w^T + p g^T on E, h·(E^T w) on beta.
    """
    r = h - m
    if variant == "mse":
        value, direct, g = r.square().sum(1) / norm, 2 * r / norm, -2 * r / norm
    elif variant == "cos":
        size, length = (x.norm(dim=1, keepdim=True).clamp_min(TINY) for x in (h, m))
        u, v = h / size, m / length
        cosine = (u * v).sum(1, keepdim=True)
        value, direct, g = 1 - cosine[:, 0], (cosine * u - v) / size, (cosine * v - u) / length
    else:
        q, lse_m = _softmax((m @ E.T).mul_(beta))  # the mixture of the mixture: one more step of the descent
        value = ((h.square().sum(1) - m.square().sum(1)) / 2 - (lse - lse_m) / beta) / norm
        direct = r / norm
        if grads is None:
            return value, direct
        next_m = q @ E
        g = (next_m - m) / norm
        if grads.E is not None:
            grads.E.addmm_(p.T, h, alpha=-1 / (n * float(norm))).addmm_(q.T, m, alpha=1 / (n * float(norm)))
        if grads.beta is not None:
            by_beta = ((lse - lse_m) / beta + (next_m * m).sum(1) - (m * h).sum(1)) / (beta * norm)
            grads.beta.add_(by_beta.sum() / n)
    if grads is None:
        return value, direct
    w = (g @ E.T).sub_((m * g).sum(1, keepdim=True)).mul_(p)
    to_h = w @ E
    if grads.E is not None:
        grads.E.addmm_(w.T, h, alpha=float(beta) / n).addmm_(p.T, g, alpha=1 / n)
    if grads.beta is not None:
        grads.beta.add_((to_h * h).sum() / n)
    return value, direct + beta * to_h
