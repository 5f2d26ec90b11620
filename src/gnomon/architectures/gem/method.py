"""The objective as the paper states it: mixtures of embeddings, their free energy, and the loss (autograd, all logits)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

VARIANTS = ("mse", "cos", "energy")
DETACH = ("mixture", "none")
IGNORED = -100
TINY = 1e-8  # least norm in a cosine


def mixture(h: Tensor, E: Tensor, beta: float | Tensor = 1.0) -> Tensor:
    """m(h) = E^T softmax(beta E h), a point of the convex hull of the embeddings.

    Parameters
    ----------
    h : Tensor (..., d)
        Hidden states that enter the head.
    E : Tensor (V, d)
        Output embeddings, one row a token.
    beta : float or Tensor ()
        Positive scale of the logits.

    Returns
    -------
    Tensor (..., d)
    """
    check_shapes(h, E)
    _check_beta(beta)
    return torch.softmax(beta * (h @ E.T), -1) @ E


def free_energy(h: Tensor, E: Tensor, beta: float | Tensor = 1.0) -> Tensor:
    r"""F(h) = ||h||²/2 - log(sum_v exp(beta e_v·h)) / beta, whose gradient is the residual h - m(h).

    Parameters
    ----------
    h : Tensor (..., d)
    E : Tensor (V, d)
    beta : float or Tensor ()
        Positive.

    Returns
    -------
    Tensor (...)

    Notes
    -----
    Stationary points are self-consistent mixtures, and so lie in the hull; F(m(h)) <= F(h) - ||h - m(h)||²/2, since the
    second term is concave (the concave-convex procedure of Yuille and Rangarajan).
    """
    check_shapes(h, E)
    _check_beta(beta)
    return h.square().sum(-1) / 2 - torch.logsumexp(beta * (h @ E.T), -1) / beta


class Settled(NamedTuple):
    """Where the iteration ended: the states, ||h - m(h)|| of each, and the steps taken (of the slowest)."""

    h: Tensor
    residual: Tensor
    steps: int


def settle(h: Tensor, E: Tensor, beta: float | Tensor = 1.0, steps: int = 5000, tol: float = 1e-8) -> Settled:
    """Iterate h <- m(h), which never raises the free energy, until every residual is below ``tol``.

    Parameters
    ----------
    h : Tensor (..., d)
        Start.
    E : Tensor (V, d)
    beta : float or Tensor ()
    steps : int
        At most so many; thousands are needed only where beta times the largest eigenvalue of the mixture's covariance
        is close to 1 (a bifurcation).
    tol : float
        Of the residual's norm.

    Raises
    ------
    ValueError
        For shapes that do not fit, values that are not finite, or beta <= 0.
    """
    check_shapes(h, E)
    check_finite(h=h, E=E)
    if steps < 0:
        raise ValueError(f"steps: got {steps}; expected at least 0")
    with torch.no_grad():
        for step in range(steps + 1):
            m = mixture(h, E, beta)
            residual = (h - m).norm(dim=-1)
            if step == steps or bool((residual < tol).all()):
                return Settled(h, residual, step)
            h = m
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class GEMLoss:
    """What a loss gives; it unpacks as ``ce, gem, residual_ratio``.

    Attributes
    ----------
    ce : Tensor ()
        Mean cross-entropy in nats.
    gem : Tensor ()
        Mean of the term G, not yet multiplied by ``lam``.
    residual_ratio : Tensor ()
        E||h - m||² / E||h||², without gradient; NaN where ``lam`` is 0, since no mixture was made then.
    lam : float
        The weight.
    """

    ce: Tensor
    gem: Tensor
    residual_ratio: Tensor
    lam: float

    @property
    def total(self) -> Tensor:
        """ce + lam * gem; exactly ce where the weight is 0."""
        return self.ce + self.lam * self.gem if self.lam else self.ce

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.ce, self.gem, self.residual_ratio))


def gem_loss(h: Tensor, E: Tensor, targets: Tensor | None, lam: float = 0.1, beta: float | Tensor = 1.0,
             variant: str = "mse", detach: str = "mixture", logits: Tensor | None = None) -> GEMLoss:  # fmt: skip
    """Cross-entropy and the GEM term, by autograd through all logits: the reference of ``fused_gem_loss``.

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
        ||h - m||² / mean||e||², 1 - cos(h, m), or (F(h) - F(m(h))) / mean||e||² (m is one step of the descent).
    detach : {"mixture", "none"}
        Whether the mixture is a fixed target, or is differentiated through.
    logits : Tensor (..., V), optional
        Used for the probabilities instead of beta E h where a head has a bias or a soft cap.

    Returns
    -------
    GEMLoss

    Raises
    ------
    ValueError
        For an unknown variant or detach, lam < 0, beta <= 0, or shapes that do not fit.

    Warns
    -----
    UserWarning
        When all targets are ignored; the loss is then 0.

    Notes
    -----
    Reconstructed from the paper's abstract, the only text there is: see the study's departures. Values that are not
    finite give a loss that is not finite, as the losses of torch do.
    """
    check_arguments(h, E, targets, lam, beta, variant, detach)
    h, E, targets, kept = rows(h, E, targets)
    if len(h) == 0:
        return nothing(h, E, lam)
    if logits is None:
        scores = beta * (h @ E.T)
    else:
        scores = logits.reshape(-1, logits.shape[-1])[kept].to(h.dtype)
    zero = h.new_zeros(())
    ce = zero if targets is None else F.cross_entropy(scores, targets)
    if lam == 0:
        return GEMLoss(ce, zero, h.new_full((), math.nan), 0.0)
    m = torch.softmax(scores, -1) @ E
    with torch.no_grad():
        ratio = (h - m).square().sum() / h.square().sum()
    return GEMLoss(ce, _term(h, E, m, beta, variant, detach).mean(), ratio, float(lam))


def _term(h: Tensor, E: Tensor, m: Tensor, beta: float | Tensor, variant: str, detach: str) -> Tensor:
    scale = E.detach().square().sum(-1).mean()
    target = m.detach() if detach == "mixture" else m
    if variant == "mse":
        return (h - target).square().sum(-1) / scale
    if variant == "cos":
        return 1 - (h * target).sum(-1) / (h.norm(dim=-1).clamp_min(TINY) * target.norm(dim=-1).clamp_min(TINY))
    if detach == "mixture":
        E, beta = E.detach(), beta.detach() if isinstance(beta, Tensor) else beta
    return (free_energy(h, E, beta) - free_energy(target, E, beta)) / scale


# --- arguments -------------------------------------------------------------------------------------------------------


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise unless the value is one of the choices; the message lists them."""
    if value not in choices:
        raise ValueError(f"{name}: got {value!r}; expected one of {', '.join(map(repr, choices))}")


def check_weight(name: str, value: float) -> None:
    """Raise unless the value is a finite number >= 0."""
    if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: got {value!r}; expected a finite number >= 0")


def check_arguments(h: Tensor, E: Tensor, targets: Tensor | None, lam: float, beta: float | Tensor, variant: str,
                    detach: str) -> None:  # fmt: skip
    """What both losses ask of their arguments."""
    check_choice("variant", variant, VARIANTS)
    check_choice("detach", detach, DETACH)
    check_weight("lam", lam)
    check_shapes(h, E)
    _check_beta(beta)
    if targets is not None and (targets.shape != h.shape[:-1] or targets.dtype not in (torch.int64, torch.int32)):
        raise ValueError(
            f"targets: got {targets.dtype} of shape {tuple(targets.shape)}; expected integers {tuple(h.shape[:-1])}"
        )


def rows(h: Tensor, E: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor | slice]:
    """States (n, d) and targets (n,) that count, with E, in float32 at least; and which of the flat rows they are."""
    dtype = torch.promote_types(torch.promote_types(h.dtype, E.dtype), torch.float32)
    h, E = h.reshape(-1, h.shape[-1]).to(dtype), E.to(dtype)
    if targets is None:
        return h, E, None, slice(None)
    targets = targets.reshape(-1).long()
    kept = targets != IGNORED
    if bool(kept.all()):
        return h, E, targets, slice(None)
    return h[kept], E, targets[kept], kept


def nothing(h: Tensor, E: Tensor, lam: float) -> GEMLoss:
    """The loss of no tokens: 0 with zero gradients, and a warning."""
    warnings.warn("all targets are ignored: the loss is 0", UserWarning, stacklevel=3)
    zero = h.sum() + 0 * E[:1].sum()
    return GEMLoss(zero, zero, zero.detach(), float(lam))


def check_shapes(h: Tensor, E: Tensor) -> None:
    if E.dim() != 2 or h.dim() < 1 or h.shape[-1] != E.shape[1]:
        raise ValueError(f"h, E: got shapes {tuple(h.shape)} and {tuple(E.shape)}; expected (..., d) and (V, d)")


def _check_beta(beta: float | Tensor) -> None:
    value = float(beta.detach()) if isinstance(beta, Tensor) else float(beta)
    if not value > 0 or math.isinf(value):
        raise ValueError(f"beta: got {value}; expected a finite number > 0")


def check_finite(**values: Tensor) -> None:
    for name, value in values.items():
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
