"""What calibration keeps of one boundary: sums over tokens, never the activations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from gnomon.linalg import Moments

RowWeight = Literal["none", "sqrt", "norm"] | Callable[[Tensor], Tensor]
WEIGHTS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "none": None,
    "sqrt": lambda post: post.norm(dim=-1).clamp_min(1e-12).rsqrt(),
    "norm": lambda post: post.norm(dim=-1).clamp_min(1e-12).reciprocal(),
}


class Scales:
    """Mean absolute values of each channel before and after a boundary (what LinearPatch is made of).

    Attributes
    ----------
    pre, post : Tensor (C,)
        Sums of |x_c| and |y_c| over all tokens.
    ratio : Tensor (C,)
        Sum over the sequences of mean|y_c| / mean|x_c|.
    sequences : int
    """

    def __init__(self, size: int, device: str | torch.device = "cpu"):
        self.pre, self.post, self.ratio = (torch.zeros(size, dtype=torch.float64, device=device) for _ in range(3))
        self.sequences = 0

    def update(self, pre: Tensor, post: Tensor) -> None:
        """Add one sequence (T, C)."""
        a, b = pre.abs().sum(0, dtype=torch.float64), post.abs().sum(0, dtype=torch.float64)
        self.pre += a
        self.post += b
        self.ratio += _ratio(b, a)
        self.sequences += 1

    def diagonal(self, ratio: Literal["sequence", "overall"]) -> Tensor:
        """The scale of each channel: the mean of the sequences' ratios, or the ratio of the overall means."""
        if ratio == "sequence":
            return self.ratio / self.sequences
        if ratio == "overall":
            return _ratio(self.post, self.pre)
        raise ValueError(f"ratio: got {ratio!r}; expected 'sequence' or 'overall'")


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """A channel that is silent before the boundary keeps its (zero) scale."""
    return torch.where(below > 0, above / below.where(below > 0, torch.ones_like(below)), 1.0)


class BoundaryMoments:
    """Streaming statistics of one boundary, in float64: O(C^2) memory whatever the number of tokens.

    With X = X_pre, Y = X_post and D = Y - X, the sums are X'X, X'D, the column sums and ||D||^2 (X'Y = X'X + X'D and
    ||Y||^2 follow, and the small residuals of a good operator do not drown in ||Y||^2). The first token of each
    sequence has sums of its own, since its norm can be a hundred times that of the others.

    Parameters
    ----------
    size : int
        Width C of the residual stream.
    row_weight : {"none", "sqrt", "norm"} or callable
        w_i = 1, ||y_i||^(-1/2), ||y_i||^(-1), or a function of Y (N, C) that returns w (N,): the fitted problem is
        min ||diag(w)(X W - Y)||_F^2. The unweighted sums are kept beside the weighted ones.
    scales : bool
        Keep the mean absolute values of X and Y, for LinearPatch-D.
    rotation : Tensor (C, C), optional
        Q: keep those of XQ and YQ, for LinearPatch-R.
    products : {"float64", "float32"}
        Type of the products within a chunk; sums are float64.
    device : str or torch.device
        Where the sums live.

    Attributes
    ----------
    first, rest : Moments
        Of (X, D), over the first tokens and over the others.
    weighted_first, weighted_rest : Moments or None
        The same with row weights w^2.
    scales, rotated : Scales or None
        Of (X, Y), and of (XQ, YQ).
    mlp : Moments or None
        Of (A, D), A the output of the MLP just before the boundary (ReplaceMe).
    """

    def __init__(self, size: int, *, row_weight: RowWeight = "none", scales: bool = False, rotation: Tensor | None = None,
                 products: Literal["float64", "float32"] = "float64", device: str | torch.device = "cpu"):  # fmt: skip
        def fresh() -> Moments:
            return Moments(size, size, products=products, device=device)

        self.size = size
        self.weight = weight_function(row_weight)
        self.first, self.rest = fresh(), fresh()
        self.weighted_first: Moments | None = fresh() if self.weight else None
        self.weighted_rest: Moments | None = fresh() if self.weight else None
        self.scales = Scales(size, device) if scales else None
        self.rotated = None if rotation is None else Scales(size, device)
        self.rotation = None if rotation is None else rotation.to(device, torch.float32)
        self.mlp: Moments | None = None
        self._fresh = fresh

    def __getstate__(self) -> dict[str, Any]:
        """Functions stay behind: what is kept or sent is finished."""
        return {**self.__dict__, "weight": None, "_fresh": None}

    @property
    def n(self) -> int:
        """Tokens seen."""
        return int(self.first.n + self.rest.n)

    def update(self, pre: Tensor, post: Tensor, mask: Tensor | None = None, mlp: Tensor | None = None) -> None:
        """Add a chunk of sequences.

        Parameters
        ----------
        pre, post : Tensor (B, T, C)
            The residual stream before and after the removed blocks.
        mask : Tensor (B, T), optional
            1 for tokens, 0 for padding.
        mlp : Tensor (B, T, C), optional
            The output of the MLP of the block before the boundary.
        """
        high = torch.float64 if self.rest.products == "float64" else torch.float32
        every, first, rest = _positions(mask)
        for chosen, plain, weighted in (
            (first, self.first, self.weighted_first),
            (rest, self.rest, self.weighted_rest),
        ):
            x, y = (value[chosen].to(high).reshape(-1, self.size) for value in (pre, post))
            gap = y - x
            plain.update(x, gap)
            if weighted is not None and self.weight is not None:
                weighted.update(x, gap, self.weight(y) ** 2)
        for scales, turn in ((self.scales, None), (self.rotated, self.rotation)):
            if scales is not None:
                for one in range(len(pre)):
                    x, y = (value[one] if mask is None else value[one][mask[one].bool()] for value in (pre, post))
                    scales.update(*((x, y) if turn is None else (x.float() @ turn, y.float() @ turn)))
        if mlp is not None:
            self.mlp = self.mlp or self._fresh()
            self.mlp.update(mlp[every].to(high), post[every].to(high) - pre[every].to(high))

    def unweighted(self) -> BoundaryMoments:
        """The same statistics, to be fitted without row weights."""
        plain = copy.copy(self)
        plain.weighted_first = plain.weighted_rest = None
        return plain

    def fitted(self, skip_first: bool = False) -> Moments:
        """The moments to fit on: weighted where there are weights, without first tokens if asked."""
        first, rest = self.weighted_first or self.first, self.weighted_rest or self.rest
        return rest if skip_first else copy.deepcopy(rest).merge(first)

    def residual(self, weight: Tensor, bias: Tensor, *, weighted: bool = False, first: bool = True) -> float:
        """||XW + b - Y||^2 / ||Y - X||^2 from the sums alone: 1 for plain removal.

        Parameters
        ----------
        weight, bias : Tensor (C, C), (C,)
        weighted : bool
            With the row weights (only where there are some).
        first : bool
            False leaves out the first token of each sequence.
        """
        parts = [self.weighted_rest, self.weighted_first] if weighted else [self.rest, self.first]
        used = [p for p in parts[: 2 if first else 1] if p is not None and p.n > 0]
        change = weight - torch.eye(self.size, dtype=weight.dtype, device=weight.device)
        total = sum(p.y_square for p in used)
        return sum(p.residual(change, bias) for p in used) / total if total > 0 else 0.0


def _positions(mask: Tensor | None) -> tuple[Any, Any, Any]:
    """All tokens, the first of each sequence, and the others, as indices into (B, T)."""
    if mask is None:
        return (..., (slice(None), 0), (slice(None), slice(1, None)))
    token = mask.bool()
    first = token & (token.cumsum(1) == 1)
    return token, first, token & ~first


def weight_function(row_weight: RowWeight) -> Callable[[Tensor], Tensor] | None:
    """The row weights w as a function of X_post (N, C), or None for none."""
    if callable(row_weight):
        return row_weight
    if row_weight not in WEIGHTS:
        raise ValueError(
            f"row_weight: got {row_weight!r}; expected one of {', '.join(WEIGHTS)}, or a function of X_post"
        )
    return WEIGHTS[row_weight]
