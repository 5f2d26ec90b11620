"""Centerpoints in the plane, exactly: a point that no half-plane separates from a third of the points.

Cutting planes. A point c has depth d when every closed half-plane that contains c holds d of the points, so for every direction
u it satisfies <u, c> <= the d-th largest of <u, z_j>. A linear program finds the deepest c for the directions kept; a sweep over
angles finds the direction in which its depth is least. Between two neighbouring normals of lines through pairs of points one
and the same point is the d-th largest, and its constraint follows from those at the two normals: these are kept, until the depth
suffices. There are finitely many, so regions without interior (k = 4, points on a line) end as well.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog

Array = NDArray[np.float64]
LOOSE = 1e-7  # of the points' spread: nearer to a line counts as on it
CUTS, PIVOTS = 1000, 200


def halfplane_depth(z: ArrayLike, c: ArrayLike, tol: float | None = None) -> tuple[int, Array]:
    """The fewest points in a closed half-plane that has ``c`` on its edge (Tukey's depth), and that half-plane's normal.

    Parameters
    ----------
    z : array_like (k, 2)
        Points.
    c : array_like (2,)
        Where.
    tol : float, optional
        Points so near to the edge count as inside (default: 1e-7 of the points' spread).

    Returns
    -------
    depth : int
        In [0, k].
    u : ndarray (2,)
        Unit vector; the half-plane is <u, x - c> >= 0.
    """
    z, c = _points(z), np.asarray(c, dtype=float)
    tol = LOOSE * _spread(z) if tol is None else tol
    way = z - c
    radius = np.hypot(way[:, 0], way[:, 1])
    far = radius > tol
    at = int((~far).sum())
    if not far.any():
        return at, np.array([1.0, 0.0])
    angle, half = (
        np.arctan2(way[far, 1], way[far, 0]),
        np.arccos(-tol / radius[far]),
    )  # inside for u within half of angle
    start, stop = np.sort((angle - half) % (2 * np.pi)), np.sort((angle + half) % (2 * np.pi))
    critical = np.unique(np.concatenate([start, stop]))
    middle = (critical + np.append(critical[1:], critical[0] + 2 * np.pi)) / 2 % (2 * np.pi)
    # arcs open at angle 0 are those that have stopped more often than started
    wrapped = int(((angle - half) % (2 * np.pi) > (angle + half) % (2 * np.pi)).sum())
    inside = wrapped + np.searchsorted(start, middle) - np.searchsorted(stop, middle)
    i = int(inside.argmin())
    return at + int(inside[i]), np.array([math.cos(middle[i]), math.sin(middle[i])])


def centerpoint(z: ArrayLike) -> Array:
    """A point of depth ceil(k/3) among k points of the plane; by Helly's theorem there is one.

    Parameters
    ----------
    z : array_like (k, 2)
        Points, k >= 1, finite; they may coincide or lie on a line.

    Returns
    -------
    ndarray (2,)
        The centerpoint, deep inside its region where that has an interior. The depth holds with points within 1e-7 of the
        spread of a half-plane's edge counted as inside.

    Examples
    --------
    >>> centerpoint([(0, 0), (1, 0), (0, 1), (1 / 3, 1 / 3)]).round(6)
    array([0.333333, 0.333333])
    """
    z = _points(z)
    shift, scale = z.mean(axis=0), _spread(z)
    x = (z - shift) / scale
    d = math.ceil(len(x) / 3)
    deepest = _Deepest(x, d)
    for _ in range(CUTS):
        c = deepest.solve()
        depth, u = halfplane_depth(x, c, LOOSE)
        if depth >= d:
            return shift + scale * c
        deepest.keep(_facets(x, u, d))
    raise RuntimeError(f"no centerpoint of {len(x)} points after {CUTS} cuts (depth {depth} of {d})")


class _Deepest:
    """The linear program of the directions kept, max t with <u, c> + t <= reach(u), by the dual simplex method.

    Three constraints are active; a violated one enters, and the multipliers (>= 0, sum of u zero) say which one leaves.
    """

    def __init__(self, x: Array, d: int):
        self.x, self.d = x, d
        self.A, self.reach = np.empty((0, 3)), np.empty(0)
        self.keep(np.array([(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)]))
        wide = self.reach[[0, 2]] + self.reach[[1, 3]]  # twice t where the slab of one axis binds
        self.active = [0, 1, 2] if wide[0] <= wide[1] else [2, 3, 0]

    def keep(self, U: Array) -> None:
        """More directions (n, 2)."""
        at = len(self.x) - self.d
        self.reach = np.append(self.reach, np.partition(self.x @ U.T, at, axis=0)[at])
        self.A = np.vstack([self.A, np.column_stack([U, np.ones(len(U))])])

    def solve(self) -> Array:
        for _ in range(PIVOTS):
            basis = self.A[self.active]
            if abs(np.linalg.det(basis)) < 1e-14:
                break
            inverse = np.linalg.inv(basis)
            v = inverse @ self.reach[self.active]
            over = self.A @ v - self.reach
            worst = int(over.argmax())
            if over[worst] <= 1e-12:
                return v[:2]
            multipliers, share = inverse[2], self.A[worst] @ inverse
            ratio = np.where(share > 1e-12, multipliers / np.where(share > 1e-12, share, 1), np.inf)
            self.active[int(ratio.argmin())] = worst
        return self.reference()  # degenerate pivots

    def reference(self) -> Array:
        """The same by HiGHS."""
        free = [(None, None)] * 3
        found = linprog([0.0, 0.0, -1.0], A_ub=self.A, b_ub=self.reach, bounds=free, method="highs-ds")
        return found.x[:2]


def _facets(x: Array, u: Array, d: int) -> Array:
    """The two directions (2, 2) around u between which the d-th largest point stays the d-th."""
    along = x @ u
    way = x - x[np.argpartition(along, len(x) - d)[len(x) - d]]
    way = way[np.abs(way).max(axis=1) > 0]
    if not len(way):
        return u[None]
    base = math.atan2(u[1], u[0])
    ahead = (np.arctan2(way[:, 1], way[:, 0]) + np.pi / 2 - base) % np.pi  # a line has two normals, half a turn apart
    turn = np.array([base + ahead.min(), base + ahead.max() - np.pi])
    return np.column_stack([np.cos(turn), np.sin(turn)])


def mixture(z: ArrayLike, c: ArrayLike) -> tuple[NDArray[np.int64], Array]:
    """At most three of the points whose weighted mean is c (Caratheodory), as indices and weights that sum to 1.

    Raises
    ------
    ValueError
        Where c lies outside the convex hull (by more than 1e-6 of the spread).
    """
    z, c = _points(z), np.asarray(c, dtype=float)
    x, target = (z - z.mean(axis=0)) / _spread(z), (c - z.mean(axis=0)) / _spread(z)
    k = len(x)
    # least L1 distance to c, so that rounding cannot make it infeasible; a vertex has three positive weights or fewer
    found = linprog(np.append(np.zeros(k), np.ones(4)), A_eq=np.vstack([
        np.hstack([x.T, np.eye(2), -np.eye(2)]), np.append(np.ones(k), np.zeros(4))[None]]),
        b_eq=np.append(target, 1.0), bounds=[(0, None)] * (k + 4), method="highs-ds")  # fmt: skip
    if found.fun > 1e-6:
        raise ValueError(f"c: got {c.tolist()}; expected a point of the convex hull of z")
    weights = found.x[:k]
    kept = np.sort(np.argsort(-weights, kind="stable")[:3])
    kept = kept[weights[kept] > 1e-12]
    return kept, weights[kept] / weights[kept].sum()


def _spread(z: Array) -> float:
    return float(np.ptp(z, axis=0).max()) or 1.0


def _points(z: ArrayLike) -> Array:
    z = np.asarray(z, dtype=float)
    if z.ndim != 2 or z.shape[1] != 2 or not len(z) or not np.isfinite(z).all():
        raise ValueError(f"z: got shape {z.shape}; expected finite points (k, 2), k >= 1")
    return z
