"""How straight are trajectories? The trajectory projection score and its companions. No reference model or data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch

from gnomon import stats
from gnomon.sampling.geosprint.hyperplanarity import trajectories

STILL = 1e-6  # a chord below this share of the trajectory's spread is none

Axis = Literal["chord", "pca"]


@dataclass(frozen=True)
class ProjectionScore:
    """alpha_traj: mean over trajectories, its interval (NaN with fewer than 2), and each trajectory's own."""

    mean: float
    low: float
    high: float
    each: np.ndarray

    def __float__(self) -> float:
        return self.mean


def trajectory_projection_score(X: Any, axis: Axis = "chord", level: float = 0.95) -> ProjectionScore:
    """The share of a trajectory's spread that lies along one line: 1 exactly when it is straight.

    .. math:: \\alpha = 1 - \\frac{\\sum_j \\lVert (I - u u^T)(x_j - x_0) \\rVert^2}{\\sum_j \\lVert x_j - \\bar x \\rVert^2}

    Parameters
    ----------
    X : array_like or Tensor of shape (J + 1, n, ...)
        States of n trajectories; (J + 1, d) is one. At least 2 states.
    axis : {"chord", "pca"}
        u along x_J - x_0 (alpha may then be negative: three quarters of a circle have -0.44); or the best line, which
        makes alpha the first explained-variance ratio.
    level : float
        Of the interval, Student's t over trajectories.

    Returns
    -------
    ProjectionScore
        ``float()`` of it is the mean. A trajectory that does not move has 1; one that ends where it began has no chord:
        NaN, left out of the mean with a UserWarning.
    """
    if axis not in ("chord", "pca"):
        raise ValueError(f"axis: got {axis!r}; expected 'chord' or 'pca'")
    x = _states(X)
    each = _alpha(x, axis)
    lost = np.isnan(each)
    if lost.any():
        warnings.warn(f"{lost.sum()} of {len(each)} trajectories end where they began: they have no chord and are left "
                      "out of the mean", UserWarning, stacklevel=2)  # fmt: skip
    kept = each[~lost]
    if len(kept) < 2:
        return ProjectionScore(float(kept.mean()) if len(kept) else float("nan"), float("nan"), float("nan"), each)
    interval = stats.t_interval(kept, level)
    return ProjectionScore(float(kept.mean()), float(interval.low), float(interval.high), each)


@dataclass(frozen=True)
class TrajectoryReport:
    """What :func:`trajectory_report` found.

    Attributes
    ----------
    alpha : ProjectionScore
        Along the chord.
    path_ratio : float
        Length of the path over that of its chord, mean over trajectories (1: straight).
    effective_dimension : float
        Participation ratio of the states' covariance, (sum of eigenvalues)^2 / (sum of their squares), mean.
    windows : ndarray of shape (w,)
        alpha of each of w consecutive windows of time.
    """

    alpha: ProjectionScore
    path_ratio: float
    effective_dimension: float
    windows: np.ndarray


def trajectory_report(X: Any, windows: int = 4) -> TrajectoryReport:
    """Straightness in whole and by window, length, and dimension of trajectories (J + 1, n, ...)."""
    x = _states(X)
    if not 1 <= windows <= len(x) - 1:
        raise ValueError(f"windows: got {windows}; expected 1 to {len(x) - 1} for {len(x)} states")
    length = torch.linalg.vector_norm(x[1:] - x[:-1], dim=-1).sum(0)
    chord = torch.linalg.vector_norm(x[-1] - x[0], dim=-1)
    ratio = torch.where(length > 0, length / chord, 1.0).cpu().numpy()
    spread = _spectrum(x)
    squares = (spread**2).sum(-1)
    dimension = np.where(squares > 0, spread.sum(-1) ** 2 / np.where(squares > 0, squares, 1), 0.0)
    borders = np.linspace(0, len(x) - 1, windows + 1).round().astype(int)
    parts = [np.nanmean(_alpha(x[a : b + 1], "chord")) for a, b in pairwise(borders)]
    score = trajectory_projection_score(x)
    finite = ratio[np.isfinite(ratio)]
    return TrajectoryReport(score, float(finite.mean()) if len(finite) else float("inf"), float(dimension.mean()),
                            np.array(parts))  # fmt: skip


def _states(X: Any) -> torch.Tensor:
    x = trajectories(X).double()
    if len(x) < 2:
        raise ValueError(f"X: got {len(x)} state; expected at least 2")
    return x


def _alpha(x: torch.Tensor, axis: Axis) -> np.ndarray:
    """alpha of each trajectory of (J + 1, n, d)."""
    from_start = x - x[0]
    scale = x.abs().amax((0, 2)) if len(x) else 0
    total = ((x - x.mean(0)) ** 2).sum((0, 2))
    moves = total > len(x) * (torch.finfo(x.dtype).eps * scale) ** 2
    if axis == "pca":
        spread = _spectrum(x)
        return np.where(moves.cpu().numpy(), spread[:, -1] / np.maximum(spread.sum(-1), 1e-300), 1.0)
    chord = from_start[-1]
    size = torch.linalg.vector_norm(chord, dim=-1)
    u = chord / size.clamp_min(1e-300)[:, None]
    along = torch.einsum("jnd,nd->jn", from_start, u)
    outside = ((from_start - along[..., None] * u) ** 2).sum((0, 2))
    alpha = 1 - outside / total.clamp_min(1e-300)
    alpha = torch.where(size > STILL * total.sqrt(), alpha, torch.nan)
    return torch.where(moves, alpha, 1.0).cpu().numpy()


def _spectrum(x: torch.Tensor) -> np.ndarray:
    """Eigenvalues of each trajectory's scatter, ascending, (n, J + 1): by its Gram matrix, as J is less than d."""
    centred = (x - x.mean(0)).transpose(0, 1)
    return np.asarray(torch.linalg.eigvalsh(centred @ centred.mT).clamp_min(0).cpu().numpy())
