"""The rule itself, one token at a time: the definition that every other form is tested against."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["FastWeightStep", "fast_weight_step", "recurrent"]


class FastWeightStep(NamedTuple):
    """What one token does to a memory: forget, read, compare, write.

    Attributes
    ----------
    forgotten : Tensor, shape [..., K, V]
        The state after the decay.
    read : Tensor, shape [..., V]
        What the gated key ``b * k`` finds there.
    residual : Tensor, shape [..., V]
        ``w * v`` less that.
    strength : Tensor, shape [...]
        ``eta = sum(b * k**2)``, in [0, 1] for a unit key and gates in [0, 1].
    state : Tensor, shape [..., K, V]
        The new state: the forgotten one plus the outer product of k and the residual.
    """

    forgotten: Tensor
    read: Tensor
    residual: Tensor
    strength: Tensor
    state: Tensor


def fast_weight_step(state: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor) -> FastWeightStep:
    r"""One token of the rule, seen as a step of learning on a fast weight.

    .. math::
        \bar S = \mathrm{Diag}(e^{g}) S, \quad r = \bar S^\top (b \odot k), \quad \delta = w \odot v - r, \quad
        S' = \bar S + k\, \delta^\top

    With ``b = w = beta`` this is one gradient step of size beta on ``||S^T k - v||^2 / 2``. With a gate that differs
    by channel the step is oblique: it reads along ``b * k`` and writes along ``k``, so that
    ``S'^T (b * k) = (1 - eta) r + eta (w * v)``.

    Parameters
    ----------
    state : Tensor, shape [..., K, V]
    k, g, b : Tensor, shape [..., K]
        Key, log-decay (at most 0) and erase gate.
    v, w : Tensor, shape [..., V]
        Value and write gate.

    Returns
    -------
    FastWeightStep
    """
    e = b * k
    forgotten = g.exp()[..., None] * state
    read = (e[..., None, :] @ forgotten)[..., 0, :]
    residual = w * v - read
    return FastWeightStep(forgotten, read, residual, (e * k).sum(-1), forgotten + k[..., None] * residual[..., None, :])


def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence over a whole sequence, by torch and its autograd.

    Parameters
    ----------
    q, k, g, b : Tensor, shape [B, T, H, K]
        The query already scaled.
    v, w : Tensor, shape [B, T, H, V]
    state : Tensor, shape [B, H, K, V]

    Returns
    -------
    o : Tensor, shape [B, T, H, V]
    state : Tensor, shape [B, H, K, V]
    """
    outputs = []
    for t in range(q.shape[1]):
        state = fast_weight_step(state, k[:, t], v[:, t], g[:, t], b[:, t], w[:, t]).state
        outputs.append((q[:, t, :, None] @ state)[..., 0, :])
    return (torch.stack(outputs, 1) if outputs else torch.zeros_like(v)), state
