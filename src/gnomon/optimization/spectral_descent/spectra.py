"""Numbers that say how a spectrum grows: rates, spread, flatness, ranks, hitting times."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Array = NDArray[np.float64]


def product_spectrum(A: Tensor, B: Tensor) -> Tensor:
    """Singular values of A B, descending, without forming the product.

    Those of ``R_B R_A'`` where ``A = Q_A R_A`` and ``B' = Q_B R_B``: O((m + n) r^2).

    Parameters
    ----------
    A : Tensor (..., m, r)
    B : Tensor (..., r, n)

    Returns
    -------
    Tensor (..., min(m, r, n))
    """
    if A.dim() < 2 or B.dim() < 2 or A.shape[-1] != B.shape[-2]:
        raise ValueError(f"A and B: got shapes {tuple(A.shape)} and {tuple(B.shape)}; expected (m, r) and (r, n)")
    left = torch.linalg.qr(A, mode="r").R
    right = torch.linalg.qr(B.mT, mode="r").R
    return torch.linalg.svdvals(left @ right.mT)


def flatness(d: ArrayLike) -> Array:
    """Smallest over largest singular value, 1 for a flat spectrum: (..., r) gives (...); NaN where all are zero."""
    values = _spectrum(d)
    return _ratio(values.min(-1), values.max(-1))


def stable_rank(d: ArrayLike) -> Array:
    """``sum d^2 / max d^2``: (..., r) gives (...), from 1 to r; NaN where all are zero."""
    values = _spectrum(d)
    return _ratio((values**2).sum(-1), values.max(-1) ** 2)


def effective_rank(d: ArrayLike) -> Array:
    """exp of the entropy of ``d / sum d`` over the last axis (Roy and Vetterli 2007), from 1 to r; NaN where all are zero."""
    values = _spectrum(d)
    share = _ratio(values, values.sum(-1, keepdims=True))
    entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(-1)
    return np.asarray(np.exp(entropy))


def growth_rate(t: ArrayLike, d: ArrayLike, lag: int = 1) -> Array:
    """Finite differences of sqrt(d) over ``lag`` points: the rate that the equal-rate law says is 1.

    Parameters
    ----------
    t : array (T,)
        Times; the step number times the learning rate for a discrete run.
    d : array (T, ...)
        Singular values.
    lag : int
        In [1, T).

    Returns
    -------
    array (T - lag, ...)
    """
    time, values = np.asarray(t, float), _spectrum(d)
    if time.ndim != 1 or len(time) != len(values):
        raise ValueError(f"t: got shape {time.shape}; expected ({len(values)},), one for each row of d")
    if not 1 <= lag < len(time):
        raise ValueError(f"lag: got {lag}; expected an integer in [1, {len(time)})")
    root = np.sqrt(values)
    span = (time[lag:] - time[:-lag]).reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray((root[lag:] - root[:-lag]) / span)


def rate_spread(rates: ArrayLike) -> Array:
    """(max - min) / mean over the last axis: 0 where all modes grow alike."""
    rates = np.asarray(rates, float)
    return _ratio(rates.max(-1) - rates.min(-1), rates.mean(-1))


def hitting_times(t: ArrayLike, d: ArrayLike, targets: ArrayLike, fraction: float = 0.95) -> Array:
    """When each mode first reaches ``fraction`` of its target; NaN where it never does.

    Between two points sqrt(d) is taken as linear in time.

    Parameters
    ----------
    t : array (T,)
    d : array (T, k)
    targets : array (k,)
        Positive.
    fraction : float
        In (0, 1].
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction: got {fraction!r}; expected a number in (0, 1]")
    time, root, goal = np.asarray(t, float), np.sqrt(_spectrum(d)), np.sqrt(fraction * np.asarray(targets, float))
    found = np.full(len(goal), np.nan)
    for mode in range(len(goal)):
        above = np.flatnonzero(root[:, mode] >= goal[mode])
        if len(above) and (k := above[0]) == 0:
            found[mode] = time[0]
        elif len(above):
            low, high = root[k - 1, mode], root[k, mode]
            found[mode] = time[k - 1] + (time[k] - time[k - 1]) * (goal[mode] - low) / (high - low)
    return found


def _spectrum(d: Any) -> Array:
    values = np.asarray(d, float)
    if values.ndim == 0 or values.size == 0 or not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(f"d: expected finite singular values >= 0, (..., r), got shape {values.shape}")
    return values


def _ratio(a: Any, b: Any) -> Array:
    a, b = np.asarray(a, float), np.asarray(b, float)
    return np.divide(a, b, out=np.full(np.broadcast_shapes(a.shape, b.shape), np.nan), where=b != 0)
