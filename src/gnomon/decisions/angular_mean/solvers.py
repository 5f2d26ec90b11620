"""The global minimiser of the weighted sum of squared angles: exactly on the circle, by many starts on the sphere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnomon.decisions.angular_mean.sphere import angles, exponential, hessian, squared_angles, unit

Array = np.ndarray

START_CAP = 64  # starts at voters and at their antipodes
HAND_OVER = 1e-2  # gradient at which Newton's method takes over
MERGE = 1e-4  # radians: starts that have come so close share their way from there
TIE, APART = 1e-9, 1e-3  # in F and in radians: another solution
ROUNDING = 1e-14


class Solution(NamedTuple):
    """What a solver found.

    Attributes
    ----------
    theta : ndarray, shape (d,)
        The best direction.
    objective, stationarity : float
        F there, in rad^2, and the length of the mean logarithm.
    ties : ndarray, shape (t, d)
        All solutions whose F is within 1e-9 of it and that lie 1e-3 rad apart, ``theta`` first.
    n_iter : int
        Iterations.
    """

    theta: Array
    objective: float
    stationarity: float
    ties: Array
    n_iter: int


def on_circle(voters: Array, weights: Array) -> Solution:
    """The exact minimiser for d = 2, in O(n log n).

    Cut the circle somewhere and the angles lie on a line, where the weighted mean minimises. For the cut opposite to
    the solution the distances on the line are those on the circle, and for any other they are no smaller: the best of
    the n different cuts is the solution.
    """
    angle = np.arctan2(voters[:, 1], voters[:, 0]) % (2 * np.pi)
    order = np.argsort(angle)
    x, a = angle[order], weights[order]
    # before the cut at k the angles 0..k-1 are moved up by a whole turn
    moved = np.concatenate([[0.0], np.cumsum(a)[:-1]])
    moved_x = np.concatenate([[0.0], np.cumsum(a * x)[:-1]])
    mean = a @ x + 2 * np.pi * moved
    spread = a @ x**2 + 4 * np.pi * (moved_x + np.pi * moved) - mean**2
    best = np.argmin(spread)
    close = np.flatnonzero(spread < spread[best] + TIE)
    close = np.concatenate([[best], close[close != best][:255]])  # uniform voters would tie everywhere
    directions = np.column_stack([np.cos(mean[close]), np.sin(mean[close])])
    random = np.random.default_rng(0)  # no minimiser lies at an antipode, where it would be asked
    value, step = squared_angles(directions[:1], voters, weights, random)
    return Solution(directions[0], float(value[0]), float(np.linalg.norm(step)), _distinct(directions), 1)


def on_sphere(voters: Array, weights: Array, *, n_restarts: int = 8, tol: float = 1e-10,
              random: np.random.Generator) -> Solution:  # fmt: skip
    """The best of many descents: from the mean, the heaviest voters, their antipodes, and random directions.

    Where all voters lie within less than 90 degrees of the mean the minimum is unique (Afsari 2011), and one start will do.
    """
    mean = weights @ voters
    if (voters @ mean).min() > 1e-9:
        return descend(voters, weights, unit(mean)[None], tol, random)
    return descend(voters, weights, starts(voters, weights, n_restarts, random), tol, random)


def starts(voters: Array, weights: Array, n_restarts: int, random: np.random.Generator) -> Array:
    """Where descents begin, (s, d)."""
    heavy = voters[np.argsort(-weights, kind="stable")[: START_CAP // 2]]
    mean = weights @ voters
    found = [*([mean[None]] if np.linalg.norm(mean) > 1e-12 else []), heavy, -heavy]
    return unit(np.concatenate([*found, random.normal(size=(n_restarts, voters.shape[1]))]))


def descend(voters: Array, weights: Array, theta: Array, tol: float, random: np.random.Generator, *,
            max_iter: int = 300) -> Solution:  # fmt: skip
    """Riemannian gradient descent of all starts at once until the gradient is small, then Newton's method from there.

    The gradient's unit step contracts fast where voters agree, but at a rate near 1 where they are opposed; Newton's
    method, which needs a d x d system a step, then ends it in a few steps.
    """
    theta, value, step, count = _by_gradient(voters, weights, theta, max(tol, HAND_OVER), random, max_iter)
    length = np.linalg.norm(step, axis=1)
    ends: list[tuple[Array, float, float]] = []
    curvatures: list[Array] = []
    best = np.inf
    for k in np.argsort(value):
        # a gradient g can gain no more than a few g on the whole sphere: the rest cannot win
        if value[k] > best + 10 * max(float(length[k]), HAND_OVER):
            continue
        if any(
            _leads_to(end[0], curvature, theta[k], step[k]) for end, curvature in zip(ends, curvatures, strict=True)
        ):
            continue
        end = _by_newton(voters, weights, theta[k], tol, random)
        ends.append(end[:3])
        curvatures.append(hessian(end[0], voters, weights))
        count += end[3]
        best = min(best, end[1])
    points, values, lengths = map(np.array, zip(*ends, strict=True))
    order = np.argsort(values)
    first = order[0]
    close = order[values[order] < values[first] + TIE]
    return Solution(points[first], float(values[first]), float(lengths[first]), _distinct(points[close]), count)


def _by_gradient(voters: Array, weights: Array, theta: Array, small: float, random: np.random.Generator,
                 max_iter: int) -> tuple[Array, Array, Array, int]:  # fmt: skip
    """Unit steps with backtracking, until every start has a gradient below ``small``; starts that meet are merged."""
    value, step = squared_angles(theta, voters, weights, random)
    size = np.ones(len(theta))
    count = 0
    while count < max_iter:
        theta, value, step, size = _merged(theta, value, step, size)
        length = np.linalg.norm(step, axis=1)
        at = np.flatnonzero(length > small)
        if not len(at):
            break
        count += 1
        trial = exponential(theta[at], size[at, None] * step[at])
        trial_value, trial_step = squared_angles(trial, voters, weights, random)
        gained = trial_value <= value[at] - 2e-4 * size[at] * length[at] ** 2 + ROUNDING
        moved = at[gained]
        theta[moved], value[moved], step[moved] = trial[gained], trial_value[gained], trial_step[gained]
        size[at] = np.where(gained, 1.0, size[at] / 2)
    return theta, value, step, count


def _by_newton(voters: Array, weights: Array, theta: Array, tol: float, random: np.random.Generator,
               max_iter: int = 60) -> tuple[Array, float, float, int]:  # fmt: skip
    """From one point to a gradient below ``tol``; curvatures enter by their size, so that it always descends."""
    (value,), (step,) = squared_angles(theta[None], voters, weights, random)
    count = 0
    while (length := float(np.linalg.norm(step))) > tol and count < max_iter:
        count += 1
        curvature, axes = np.linalg.eigh(hessian(theta, voters, weights) + np.outer(theta, theta))
        move = axes @ ((axes.T @ step) / np.maximum(np.abs(curvature), 1e-6))
        move -= (move @ theta) * theta
        move /= max(1.0, float(np.linalg.norm(move)) / 0.5)
        for size in 0.5 ** np.arange(40):
            trial = exponential(theta[None], size * move[None])
            trial_value, trial_step = squared_angles(trial, voters, weights, random)
            if trial_value[0] <= value - 2e-4 * size * (step @ move) + ROUNDING:
                break
        else:
            break
        if trial_value[0] >= value - ROUNDING and np.linalg.norm(trial_step) >= length:
            break  # at the accuracy of the arithmetic
        theta, value, step = trial[0], trial_value[0], trial_step[0]
    return theta, float(value), float(np.linalg.norm(step)), count


def _leads_to(end: Array, curvature: Array, theta: Array, step: Array) -> bool:
    """Whether a point near a minimum is in its basin: the gradient there is the one that the minimum's curvature makes."""
    apart = end - theta
    distance = float(np.linalg.norm(apart))
    error = float(np.linalg.norm(curvature @ apart - step))
    return distance < MERGE or (distance < 0.1 and error < 0.2 * float(np.linalg.norm(step)))


def _merged(theta: Array, value: Array, step: Array, size: Array) -> tuple[Array, Array, Array, Array]:
    """Of starts that have met, the lowest goes on."""
    order = np.argsort(value)
    near = np.triu(theta[order] @ theta[order].T > 1 - MERGE**2 / 2, 1)
    kept = order[~near.any(axis=0)]
    return theta[kept], value[kept], step[kept], size[kept]


def _distinct(points: Array) -> Array:
    """The first of each group of directions that are less than `APART` apart."""
    kept = points[:1]
    for point in points[1:]:
        if angles(point, kept).min() > APART:
            kept = np.vstack([kept, point])
    return kept
