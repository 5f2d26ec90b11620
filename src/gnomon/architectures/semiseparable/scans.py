"""Inclusive prefix sums in the orders in which machines compute them.

A sequential scan adds from left to right; a GPU adds in a tree. The difference decides whether ``c[i] - c[j]`` of a
non-increasing sequence can come out positive. Every partial sum is rounded to the dtype of the input:
``torch.cumsum`` on a CPU accumulates float32 in float64 and would hide what this module is there to show.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["SCANS", "prefix_sum"]


def _sequential(a: Tensor) -> Tensor:
    total, sums = torch.zeros_like(a[..., 0]), []
    for value in a.unbind(-1):
        total = total + value
        sums.append(total)
    return torch.stack(sums, -1)


def _kogge_stone(a: Tensor) -> Tensor:
    step = 1
    while step < a.shape[-1]:
        a = torch.cat([a[..., :step], a[..., step:] + a[..., :-step]], -1)
        step *= 2
    return a


def _sweep(a: Tensor) -> Tensor:
    """Blelloch's exclusive scan: pairs are added on the way up, left halves on the way down."""
    if a.shape[-1] == 1:
        return torch.zeros_like(a)
    left, right = a[..., 0::2], a[..., 1::2]
    before = _sweep(left + right)
    return torch.stack([before, before + left], -1).flatten(-2)


def _blelloch(a: Tensor) -> Tensor:
    return _sweep(a) + a


SCANS: dict[str, Callable[[Tensor], Tensor]] = {
    "sequential": _sequential,
    "kogge_stone": _kogge_stone,
    "blelloch": _blelloch,
}


def prefix_sum(a: Tensor, scan: str = "sequential") -> Tensor:
    """Inclusive prefix sum along the last axis, every partial sum in the dtype of ``a``.

    Parameters
    ----------
    a : Tensor, shape [..., Q]
        Summands; Q at least 1.
    scan : {"sequential", "kogge_stone", "blelloch"}
        Order of the additions. The trees pad Q with zeros to a power of two.

    Returns
    -------
    Tensor, shape [..., Q]

    Raises
    ------
    ValueError
        For an unknown scan.

    References
    ----------
    Kogge and Stone, IEEE Trans. Comput. C-22 (1973); Blelloch, CMU-CS-90-190 (1990).
    """
    if scan not in SCANS:
        raise ValueError(f"scan must be one of {', '.join(SCANS)}, got {scan!r}")
    length = a.shape[-1]
    if scan != "sequential":
        a = F.pad(a, (0, (1 << (length - 1).bit_length()) - length))
    return SCANS[scan](a)[..., :length]
