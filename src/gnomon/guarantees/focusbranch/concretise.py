r"""The least value of a linear function over a node: at most t pixels differ, at most t - l of them outside S.

For :math:`f(x') = b + \sum_p \langle a_p, x'_p\rangle` a changed pixel p gains at best
:math:`g_p = \sum_c \min(-a_{pc} x_{pc}, a_{pc} (1 - x_{pc})) \le 0`, and the choice of pixels is a laminar matroid, so greedy is
exact: the best t of (top-t in S) and (top-(t - l) outside).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor


def gains(coefficients: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
    """Value at the image and gains by pixel.

    Parameters
    ----------
    coefficients : tensor (..., c, v)
        a, by channel and pixel.
    image : tensor (c, v)
        x in [0, 1].

    Returns
    -------
    value : tensor (...)
        <a, x>.
    gains : tensor (..., v)
        g, at most 0.
    """
    here = coefficients * image
    return here.sum((-1, -2)), torch.minimum(-here, coefficients - here).sum(-2)


def reference(coefficients: Tensor, constant: Tensor, image: Tensor, masks: Tensor, l: Tensor, t: int) -> Tensor:
    """Least value over each node, by ``torch.topk``: differentiable, on any device.

    Parameters
    ----------
    coefficients : tensor (B or 1, R, c, v)
        Linear functions of each node.
    constant : tensor (B or 1, R)
        Their offsets.
    image : tensor (c, v)
        x.
    masks : bool tensor (B, v)
        S.
    l : int tensor (B,)
        At most t - l changed pixels lie outside S; ``l > t`` stands for the box in which all of S may change.
    t : int
        Most pixels that change.

    Returns
    -------
    tensor (B, R)
    """
    value, gain = gains(coefficients, image)
    base = (constant + value).expand(len(masks), -1)
    inside = torch.where(masks[:, None, :], gain, 0.0)
    outside = torch.where(masks[:, None, :], 0.0, gain)
    if t == 0:
        return torch.where((l > t)[:, None], base + inside.sum(-1), base)
    within = inside.topk(t, largest=False).values
    beyond = outside.topk(t, largest=False).values
    allowed = torch.arange(t, device=l.device) < (t - l)[:, None]
    both = torch.cat([within, torch.where(allowed[:, None, :], beyond, 0.0)], -1)
    node = base + both.topk(t, largest=False).values.sum(-1)
    return torch.where((l > t)[:, None], base + inside.sum(-1), node)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _gain_row(a, x, g):  # type: ignore[no-untyped-def]
    """Fill g (P,) for one function with coefficients a (c, P) where the image is x (c, P); return <a, x>."""
    channels, members = a.shape
    value = a[0, 0] * 0
    for p in range(members):
        here = a[0, p] * x[0, p]
        value += here
        g[p] = min(-here, a[0, p] - here)
    for c in range(1, channels):
        for p in range(members):
            here = a[c, p] * x[c, p]
            value += here
            g[p] += min(-here, a[c, p] - here)
    return value


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _sum_inside(g, weight):  # type: ignore[no-untyped-def]
    """Gains of a box: of every pixel whose weight is 1."""
    total = g[0] * 0
    for p in range(g.size):
        total += g[p] * weight[p]
    return total


@njit(cache=True, nogil=True)
def _select(g, index, mask, l, t, inner, outer):  # type: ignore[no-untyped-def]
    """Sum of the best gains of one row over one node; inner (t,) and outer (t,) are scratch.

    Most gains are better than none of those held, so that one comparison a pixel is the rule.
    """
    free = t - l
    for i in range(t):
        inner[i] = 0.0
        outer[i] = 0.0
    within, beyond = 0.0, 0.0 if free > 0 else -np.inf  # what a gain must be below
    for p in range(g.size):
        value = g[p]
        if value >= within and value >= beyond:
            continue
        if mask[index[p]]:
            if value < within:
                i = t - 1
                while i > 0 and inner[i - 1] > value:
                    inner[i] = inner[i - 1]
                    i -= 1
                inner[i] = value
                within = inner[t - 1]
        elif value < beyond:
            i = free - 1
            while i > 0 and outer[i - 1] > value:
                outer[i] = outer[i - 1]
                i -= 1
            outer[i] = value
            beyond = outer[free - 1]
    total, i, j = 0.0, 0, 0
    for _ in range(t):
        if j >= free or (i < t and inner[i] <= outer[j]):
            total += inner[i]
            i += 1
        else:
            total += outer[j]
            j += 1
    return total


@njit(cache=True, nogil=True)
def _every(a, constant, x, index, masks, l, t, out):  # type: ignore[no-untyped-def]
    """Functions of their own for each node; the image x (R or 1, c, P) and the pixels index (R or 1, P) by column."""
    nodes, rows, members = a.shape[0], a.shape[1], a.shape[3]
    g, weight = np.empty(members, a.dtype), np.empty(members, a.dtype)
    inner, outer = np.empty(t + 1), np.empty(t + 1)
    for b in range(nodes):
        box = l[b] > t
        for r in range(rows):
            own = min(r, index.shape[0] - 1)
            if box and (r == 0 or index.shape[0] > 1):
                for p in range(members):
                    weight[p] = masks[b, index[own, p]]
            base = constant[b, r] + _gain_row(a[b, r], x[own], g)
            if box:
                out[b, r] = base + _sum_inside(g, weight)
            else:
                out[b, r] = base + (_select(g, index[own], masks[b], l[b], t, inner, outer) if t > 0 else 0.0)


@njit(cache=True, nogil=True)
def _shared(base, order, g, masks, l, t, out):  # type: ignore[no-untyped-def]
    """The same functions for all nodes: gains are sorted once, and each node takes from the front."""
    nodes, rows, members = masks.shape[0], order.shape[0], order.shape[1]
    for b in range(nodes):
        box, free = l[b] > t, t - l[b]
        size = 0
        for q in range(masks.shape[1]):
            size += masks[b, q]
        for r in range(rows):
            total, taken, within, beyond = 0.0, 0, 0, 0
            for p in range(members):
                value = g[r, p]
                if value >= 0.0 or (not box and taken == t) or (within == size and (box or beyond >= free)):
                    break
                if masks[b, order[r, p]]:
                    total += value
                    within += 1
                    taken += 1
                elif not box and beyond < free:
                    total += value
                    beyond += 1
                    taken += 1
            out[b, r] = base[r] + total


class Shared:
    """Linear functions that all nodes of an image have in common (those of the first layer)."""

    def __init__(self, coefficients: np.ndarray, constant: np.ndarray, image: np.ndarray, index: np.ndarray):
        rows, _, members = coefficients.shape
        self.base = np.empty(rows)
        g = np.empty((rows, members), coefficients.dtype)
        x = columns(image, index)
        for r in range(rows):
            self.base[r] = constant[r] + _gain_row(coefficients[r], x[min(r, len(x) - 1)], g[r])
        kept = np.argsort(g, axis=1, kind="stable")
        self.order = np.take_along_axis(np.broadcast_to(index, g.shape), kept, axis=1)
        self.gain = np.take_along_axis(g, kept, axis=1)

    def __call__(self, masks: np.ndarray, l: np.ndarray, t: int) -> np.ndarray:
        """Least values (B, R)."""
        out = np.empty((len(masks), len(self.base)), self.gain.dtype)
        _shared(self.base, self.order, self.gain, masks, l, t, out)
        return out


def compiled(coefficients: np.ndarray, constant: np.ndarray, image: np.ndarray, index: np.ndarray, masks: np.ndarray,
             l: np.ndarray, t: int) -> np.ndarray:  # fmt: skip
    """:func:`reference` in one pass over the coefficients, on the CPU.

    ``index`` (R or 1, P) says which pixel each of the P columns is, so that a function may be given by its window (-1: none; the
    coefficients there are 0).
    """
    out: Any = np.empty((len(masks), coefficients.shape[1]), coefficients.dtype)
    _every(coefficients, constant, columns(image, index), index, masks, l, t, out)
    return out


def columns(image: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The image (c, v) at the pixels of each function's columns, (R or 1, c, P)."""
    return np.ascontiguousarray(image[:, index].swapaxes(0, 1))


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def relu_back(a, slope, upper, intercept, index, out, constant):  # type: ignore[no-untyped-def]
    """Replace ReLUs by lines in one pass: coefficients a (B or 1, R, K) of their outputs become those of their inputs.

    slope, upper, intercept (B, n): lower line ``slope z``, upper line ``upper z + intercept``; index (R or 1, K) says which
    neuron each column is (-1: none). Writes out (B, R, K), adds to constant (B, R).
    """
    nodes, rows, members = out.shape
    own = a.shape[0] > 1
    for b in range(nodes):
        for r in range(rows):
            row = a[b if own else 0, r]
            at = index[min(r, index.shape[0] - 1)]
            total = 0.0
            for k in range(members):
                n = at[k]
                value = row[k] if n >= 0 else row[k] * 0
                n = max(n, 0)
                low = min(value, value * 0)
                out[b, r, k] = (value - low) * slope[b, n] + low * upper[b, n]
                total += low * intercept[b, n]
            constant[b, r] += total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def relu_back_whole(a, slope, upper, intercept, out, constant):  # type: ignore[no-untyped-def]
    """:func:`relu_back` where column k is neuron k."""
    nodes, rows, members = out.shape
    own = a.shape[0] > 1
    for b in range(nodes):
        lower_line, upper_line, offset = slope[b], upper[b], intercept[b]
        for r in range(rows):
            row, to = a[b if own else 0, r], out[b, r]
            total = row[0] * 0
            for k in range(members):
                low = min(row[k], row[k] * 0)
                to[k] = (row[k] - low) * lower_line[k] + low * upper_line[k]
                total += low * offset[k]
            constant[b, r] += total
