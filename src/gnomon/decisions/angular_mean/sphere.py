"""Angles, logarithms and the objective on the unit sphere."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

Array = np.ndarray

OPPOSITE = -0.999  # cosines below: phi / sin(phi) amplifies rounding, so the tangent is formed from the difference
SAME_POINT = 1e-12
BLOCK = 1 << 18  # entries (starts x voters) at a time: they stay in the processor's cache


def unit(x: Array) -> Array:
    """Rows of unit length."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def angles(theta: Array, voters: Array) -> Array:
    """Angles (n,) in [0, pi] between a unit vector (d,) and unit rows (n, d), to full accuracy at both ends."""
    cosine = voters @ theta
    sine = np.linalg.norm(voters - cosine[:, None] * theta, axis=1)
    return np.arctan2(sine, cosine)


def pairwise_angles(voters: Array) -> Array:
    """Angles (n, n) between unit rows."""
    return np.stack([angles(v, voters) for v in voters])


def exponential(theta: Array, tangent: Array) -> Array:
    """Where the geodesics from the rows of ``theta`` along those of ``tangent`` end, (s, d)."""
    length = np.linalg.norm(tangent, axis=1, keepdims=True)
    return unit(np.cos(length) * theta + np.sinc(length / np.pi) * tangent)


def squared_angles(theta: Array, voters: Array, weights: Array, random: np.random.Generator) -> tuple[Array, Array]:
    r"""The objective :math:`F(\theta) = \sum_i \alpha_i \phi_i^2` and half its descent direction.

    Parameters
    ----------
    theta : ndarray, shape (s, d)
        Where; unit rows.
    voters, weights : ndarray, shapes (n, d) and (n,)
        Unit rows and weights of sum 1.
    random : numpy.random.Generator
        Gives the direction in which to leave the antipode of a voter, where the objective has a kink.

    Returns
    -------
    F, step : ndarray, shapes (s,) and (s, d)
        ``step`` is :math:`\sum_i \alpha_i \mathrm{Log}_\theta(\theta_i) = -\nabla F / 2`.
    """
    value, step = np.zeros(len(theta)), np.zeros_like(theta)
    rows = max(1, BLOCK // len(theta))
    for start in range(0, len(voters), rows):
        v, a = voters[start : start + rows], weights[start : start + rows]
        weight = theta @ v.T
        along = _weigh(weight, a, value)
        for k in np.flatnonzero((weight < 0).any(axis=1)):
            j = np.flatnonzero(weight[k] < 0)
            weight[k, j] = 0.0
            cosine = v[j] @ theta[k]
            tangent = v[j] - cosine[:, None] * theta[k]
            length = np.linalg.norm(tangent, axis=1)
            phi = np.arctan2(length, cosine)
            for i in np.flatnonzero(length < SAME_POINT):
                tangent[i] = random.normal(size=theta.shape[1])
                tangent[i] -= (tangent[i] @ theta[k]) * theta[k]
            value[k] += a[j] @ phi**2
            step[k] += (a[j] * phi) @ unit(tangent)
        step += weight @ v - along[:, None] * theta
    return value, step


@njit(cache=True)
def _weigh(cosine, weights, value):  # type: ignore[no-untyped-def]
    """Cosines (s, n) become alpha phi / sin(phi) in place, -1 near an antipode; their phi^2 are added to ``value``.

    Returns the sums of weight times cosine, (s,).
    """
    along = np.zeros(len(cosine))
    for k in range(cosine.shape[0]):
        total = 0.0
        for j in range(cosine.shape[1]):
            c = min(cosine[k, j], 1.0)
            if c < OPPOSITE:
                cosine[k, j] = -1.0
                continue
            phi = math.acos(c)
            sine = math.sqrt((1.0 - c) * (1.0 + c))
            weight = weights[j] * (phi / sine if sine > 0 else 1.0)
            total += weights[j] * phi * phi
            along[k] += weight * c
            cosine[k, j] = weight
        value[k] += total
    return along


def hessian(theta: Array, voters: Array, weights: Array) -> Array:
    r"""Half the Riemannian Hessian of F at one point (d,), in ambient coordinates (d, d); zero along ``theta``.

    Each voter adds :math:`u u^T + \phi \cot\phi\,(P - u u^T)` with u the direction to it and P the tangent projection.
    """
    cosine = np.clip(voters @ theta, -1.0, 1.0)
    phi = angles(theta, voters)
    sine = np.maximum(np.sin(phi), 1e-8)
    across = phi * cosine / sine
    excess = np.where(phi < 1e-3, 1 / 3, (1 - across) / sine**2)  # of u u^T over P, by the length of the tangent
    tangent = np.eye(len(theta)) - np.outer(theta, theta)
    along = tangent @ ((voters * (weights * excess)[:, None]).T @ voters) @ tangent
    return along + (weights @ across) * tangent
