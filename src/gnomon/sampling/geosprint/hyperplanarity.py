"""Where does a denoising trajectory leave the plane of its last states? The test behind the schedule.

A DDIM step is exact when the predicted noise is constant, and then every state lies in span{x0hat, epshat}, a plane
through the origin. The part of the next state outside the span of the m states before it, over the length of the step,
says how far from free that step is.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import numpy as np
import torch

SPANS = ("linear", "affine")
REDUCE = ("mean", "median", "q90")
RANK = 1e-6  # columns with |R_kk| below this share of max |R| are dropped

Span = Literal["linear", "affine"]
Reduce = Literal["mean", "median", "q90"]


class ProfileStream:
    """The hyperplanarity profile of trajectories that are seen state by state; only the last m + 1 states are kept.

    Parameters
    ----------
    order : {2, 3}
        m, the number of states before the step.
    span : {"linear", "affine"}
        The span of the states (variance-preserving coordinates); or of their differences (rectified flows and
        sigma-scaled coordinates, where exact steps are straight lines).

    Examples
    --------
    >>> import torch
    >>> stream = ProfileStream()
    >>> for x in ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 1.0]):
    ...     stream.update(torch.tensor([x]))
    >>> stream.profile().tolist()
    [1.0, 1.0]
    """

    def __init__(self, order: int = 2, span: Span = "linear"):
        if order not in (2, 3):
            raise ValueError(f"order: got {order!r}; expected 2 or 3")
        if span not in SPANS:
            raise ValueError(f"span: got {span!r}; expected one of {', '.join(SPANS)}")
        self.order, self.span = order, span
        self._states: deque[torch.Tensor] = deque(maxlen=order + 1)
        self._found: list[np.ndarray] = []

    def update(self, x: torch.Tensor) -> None:
        """Take the next state of all trajectories, shape (n, ...)."""
        x = x.reshape(len(x), -1)
        if self._states and x.shape != self._states[-1].shape:
            raise ValueError(f"x: got shape {tuple(x.shape)} after {tuple(self._states[-1].shape)}")
        self._states.append(x)
        if len(self._states) > self.order:
            self._found.append(residuals(list(self._states), self.span).cpu().numpy().astype(np.float64))

    def residuals(self) -> np.ndarray:
        """r of each interval and trajectory, shape (J, n); the first m - 1 intervals bear the value of the next one.

        Raises
        ------
        ValueError
            With fewer than m + 1 states.
        """
        if not self._found:
            raise ValueError(
                f"trajectory: got {len(self._states)} states; expected at least {self.order + 1} (order {self.order})"
            )
        return np.stack([self._found[0]] * (self.order - 1) + self._found)

    def profile(self, reduce: Reduce = "mean") -> np.ndarray:
        """r of each interval over all trajectories, shape (J,)."""
        return reduced(self.residuals(), reduce)


def hyperplanarity_profile(X: Any, order: int = 2, span: Span = "linear", reduce: Reduce = "mean") -> np.ndarray:
    """r_j of each interval of stored trajectories.

    .. math:: r_j = \\lVert (I - Q Q^T) x_{j+1} \\rVert / \\lVert x_{j+1} - x_j \\rVert,
              \\qquad Q R = [x_{j-m+1} \\ldots x_j]

    Parameters
    ----------
    X : array_like or Tensor of shape (J + 1, n, ...)
        States of n trajectories in the order in which they came; (J + 1, d) is one trajectory.
    order, span
        See :class:`ProfileStream`.
    reduce : {"mean", "median", "q90"}
        Over trajectories.

    Returns
    -------
    ndarray of shape (J,)
        0 where a step does not move. It scales with the spacing of the grid: compare profiles of one grid only.

    Raises
    ------
    ValueError
        For fewer than ``order + 1`` states, NaN, or unknown options.
    """
    stream = ProfileStream(order, span)
    for x in trajectories(X):
        stream.update(x)
    return stream.profile(reduce)


def trajectories(X: Any) -> torch.Tensor:
    """X as a finite floating tensor of shape (J + 1, n, d)."""
    x = X if isinstance(X, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(X))
    if not x.is_floating_point():
        x = x.double()
    if x.ndim == 2:
        x = x[:, None]
    if x.ndim < 3 or x.shape[1] == 0:
        raise ValueError(
            f"X: got shape {tuple(x.shape)}; expected (J + 1, n, ...) states, or (J + 1, d) of one trajectory"
        )
    if not torch.isfinite(x).all():
        bad = int(torch.nonzero(~torch.isfinite(x.reshape(len(x), -1)).all(1))[0])
        raise ValueError(f"X: NaN or infinity in state {bad}; expected finite states")
    return x.reshape(len(x), x.shape[1], -1)


def reduced(values: np.ndarray, reduce: Reduce) -> np.ndarray:
    """Over the last axis."""
    if reduce not in REDUCE:
        raise ValueError(f"reduce: got {reduce!r}; expected one of {', '.join(REDUCE)}")
    if reduce == "mean":
        return np.asarray(values.mean(-1))
    return np.asarray(np.quantile(values, 0.5 if reduce == "median" else 0.9, axis=-1))


def residuals(states: list[torch.Tensor], span: Span) -> torch.Tensor:
    """r of the last step of each trajectory, shape (n,); the last of ``states`` (n, d) is its end.

    Gram-Schmidt on [x_j, x_{j-1} - x_j, ...]: the same Q as the QR of the states, newest first, as the columns differ
    by a unit triangular factor, but without the cancellation that nearly equal states bring. The step stands for its
    end, which differs from it by x_j, a vector of the span.
    """
    *before, end = states
    step = end - before[-1]
    columns = [older - newer for newer, older in zip(before[:0:-1], before[-2::-1], strict=True)]
    if span == "linear":
        columns.insert(0, before[-1])
    length = torch.linalg.vector_norm(step, dim=-1)
    rest = torch.linalg.vector_norm(_outside(columns, step), dim=-1)
    return torch.where(length > 0, rest / length.clamp_min(torch.finfo(rest.dtype).tiny), torch.zeros_like(rest))


def _outside(columns: list[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """The part of ``target`` orthogonal to the columns (all (n, d)), dependent columns dropped."""
    basis: list[tuple[torch.Tensor, torch.Tensor]] = []  # orthogonal vectors, and 1 / |q|^2 (0: dropped)
    largest = torch.zeros_like(target[:, :1])  # max |R| so far
    for column in columns:
        for q, inverse in basis:
            along = _dot(q, column) * inverse
            largest = torch.maximum(largest, along.abs() * _dot(q, q).sqrt())
            column = torch.addcmul(column, q, along, value=-1)
        square = _dot(column, column)
        largest = torch.maximum(largest, square.sqrt())
        inverse = torch.where((square.sqrt() > RANK * largest), 1 / square, 0.0)
        target = torch.addcmul(target, column, _dot(column, target) * inverse, value=-1)
        basis.append((column, inverse))
    return target


def _dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vecdot(x, y)[:, None]
