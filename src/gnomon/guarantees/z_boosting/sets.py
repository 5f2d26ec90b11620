"""Sets of error pairs (FP, FN): what a weak learner promises.

Whether a coin meets a promise, and by how much the promise beats coins, depends only on the set's boundary: a closed set
that contains a point of the coin segment L_p contains one on an edge or meets L_p at its ends, and these lie on edges too.
So a set is kept as edges (a point is an edge of length zero) and, for predicates, as boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
TOUCH = 1e-12  # how far a point may lie outside and still count as on the boundary
CHUNK = 2_000_000  # entries of a balances x pieces array


class ZSet:
    r"""A subset of the square [0, 1]^2 of joint error probabilities (FP, FN).

    FP = D(h = +1, y = -1) and FN = D(h = -1, y = +1) are *joint* probabilities, not rates: at p = D(y = +1) = 0.1 an FN
    of 0.05 is a false-negative rate of 0.5.

    Parameters
    ----------
    polygons : sequence of array_like (n, 2)
        Simple polygons by their corners in order (convex or not; two corners are a segment). Their union is the set.
    points : array_like (n, 2), optional
        Isolated points.
    boxes : array_like (n, 4), optional
        Axis-parallel boxes, rows (FP from, FP to, FN from, FN to).
    closed : bool
        False: the set without its boundary (relative to the square), which decides between "not_boostable" and "boundary".
    approximate : bool
        The set stands for a larger one of which only a grid is known.

    Raises
    ------
    ValueError
        For coordinates outside [0, 1] or not finite, wrong shapes, or no piece at all.

    Examples
    --------
    >>> ZSet.rectangle(0.55, 0.05).contains([[0.5, 0.05], [0.5, 0.06]])
    array([ True, False])
    """

    def __init__(self, polygons: Sequence[ArrayLike] = (), points: ArrayLike | None = None, boxes: ArrayLike | None = None,
                 *, closed: bool = True, approximate: bool = False):  # fmt: skip
        self._polygons = [_pairs("polygons", p) for p in polygons]
        self._points = np.empty((0, 2)) if points is None else _pairs("points", points)
        self._boxes = np.empty((0, 4)) if boxes is None else _boxes(boxes)
        self.closed, self.approximate = bool(closed), bool(approximate)
        if not (self._polygons or len(self._points) or len(self._boxes)):
            raise ValueError("the set is empty: give a polygon, a point or a box")
        ends = [(p, np.roll(p, -1, axis=0)) if len(p) > 2 else (p[:1], p[-1:]) for p in self._polygons]
        self._from = np.concatenate([self._points, *(a for a, _ in ends)])
        self._to = np.concatenate([self._points, *(b for _, b in ends)])

    # --- makers ---

    @classmethod
    def rectangle(cls, fp: float, fn: float, *, closed: bool = True) -> ZSet:
        """All pairs with FP <= ``fp`` and FN <= ``fn``."""
        return cls([[(0, 0), (fp, 0), (fp, fn), (0, fn)]], closed=closed)

    @classmethod
    def halfplane(cls, w: ArrayLike, bound: float, *, closed: bool = True) -> ZSet:
        """All pairs of the square with ``w[0]`` FP + ``w[1]`` FN <= ``bound``: a guarantee on a weighted error."""
        return cls.halfplanes(np.atleast_2d(np.asarray(w, dtype=float)), [bound], closed=closed)

    @classmethod
    def halfplanes(cls, W: ArrayLike, bounds: ArrayLike, *, closed: bool = True) -> ZSet:
        """All pairs of the square that meet every one of several weighted bounds, W z <= bounds (multi-objective).

        Parameters
        ----------
        W : array_like (n, 2)
            Weights >= 0, none all zero.
        bounds : array_like (n,)
            Bounds >= 0.
        """
        W, bounds = check_halfplanes(W, bounds)
        corners = np.array([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
        for w, bound in zip(W, bounds, strict=True):
            corners = _cut(corners, w, bound)
        return cls([corners], closed=closed)

    @classmethod
    def polygon(cls, corners: ArrayLike, *, closed: bool = True) -> ZSet:
        """The polygon with these corners (n, 2), n >= 3, in order; it need not be convex."""
        corners = _pairs("corners", corners)
        if len(corners) < 3:
            raise ValueError(f"corners: got {len(corners)}; a polygon has 3 or more")
        return cls([corners], closed=closed)

    @classmethod
    def points(cls, z: ArrayLike) -> ZSet:
        """Finitely many pairs (n, 2)."""
        return cls(points=z)

    @classmethod
    def union(cls, *sets: ZSet) -> ZSet:
        """The union; closed when every part is, approximate when one is."""
        if not sets or not all(isinstance(s, ZSet) for s in sets):
            raise TypeError("sets: expected one ZSet or more")
        points, boxes = (np.concatenate([getattr(s, name) for s in sets]) for name in ("_points", "_boxes"))
        return cls([p for s in sets for p in s._polygons], points if len(points) else None, boxes, closed=all(s.closed for s in sets),
                   approximate=any(s.approximate for s in sets))  # fmt: skip

    @classmethod
    def from_predicate(cls, f: Callable[[Array, Array], Any], grid: int = 201) -> ZSet:
        """The pairs where ``f(fp, fn)`` is true, from a grid: every cell with a corner in the set counts whole.

        Parameters
        ----------
        f : callable
            Takes two arrays of one shape and gives a boolean array of that shape.
        grid : int
            Points along each axis, 2 or more. Features thinner than a cell are missed, and an axis nearer than a cell
            counts as touched, so that verdicts about the set are marked ``approximate``.
        """
        if grid < 2:
            raise ValueError(f"grid: got {grid}; expected 2 or more points along each axis")
        x = np.linspace(0, 1, grid)
        inside = np.asarray(f(*np.meshgrid(x, x, indexing="ij")))
        if inside.shape != (grid, grid):
            raise ValueError(f"f gave shape {inside.shape}: expected one truth value for each of {grid} x {grid} pairs")
        inside = inside.astype(bool)
        cells = inside[1:, 1:] | inside[1:, :-1] | inside[:-1, 1:] | inside[:-1, :-1]
        if not cells.any():
            raise ValueError(f"f holds at no point of a grid of {grid} x {grid}; use a finer grid")
        step = np.diff(np.pad(cells.astype(int), ((1, 1), (0, 0))), axis=0)  # runs of cells along FP become one box
        runs = [(x[a], x[b], x[j], x[j + 1]) for j in range(grid - 1)
                for a, b in zip(np.flatnonzero(step[:, j] == 1), np.flatnonzero(step[:, j] == -1), strict=True)]  # fmt: skip
        return cls(boxes=runs, approximate=True)

    # --- membership ---

    def contains(self, z: ArrayLike, tol: float = 1e-9) -> NDArray[np.bool_]:
        """Whether pairs (..., 2) lie in the closure, or within ``tol`` of it."""
        z = np.asarray(z, dtype=float)
        flat = z.reshape(-1, 2)
        found = self._inside(flat) | (self.boundary_distance(flat) <= tol)
        for a0, a1, b0, b1 in self._boxes:
            found |= ((flat >= (a0 - tol, b0 - tol)) & (flat <= (a1 + tol, b1 + tol))).all(axis=1)
        return found.reshape(z.shape[:-1])

    def interior(self, z: ArrayLike, margin: float = 1e-9) -> NDArray[np.bool_]:
        """Whether pairs (..., 2) lie in a polygon (or box) and farther than ``margin`` from every edge of the set."""
        z = np.asarray(z, dtype=float)
        flat = z.reshape(-1, 2)
        found = self._inside(flat) & (self.boundary_distance(flat) > margin)
        for a0, a1, b0, b1 in self._boxes:
            found |= ((flat > (a0 + margin, b0 + margin)) & (flat < (a1 - margin, b1 - margin))).all(axis=1)
        return found.reshape(z.shape[:-1])

    def _inside(self, z: Array) -> NDArray[np.bool_]:
        found = np.zeros(len(z), dtype=bool)
        for corners in self._polygons:
            found |= _even_odd(z, corners)
        return found

    def boundary_distance(self, z: ArrayLike) -> Array:
        """Euclidean distance of pairs (n, 2) to the nearest edge or point (infinite where there are only boxes)."""
        z = np.asarray(z, dtype=float).reshape(-1, 2)
        if not len(self._from):
            return np.full(len(z), np.inf)
        way = self._to - self._from
        length = (way**2).sum(axis=1)
        step = max(1, CHUNK // len(way))
        nearest = []
        for part in (z[i : i + step] for i in range(0, len(z), step)):
            along = ((part[:, None] - self._from) * way).sum(axis=2) / np.where(length > 0, length, 1)
            foot = self._from + np.clip(along, 0, 1)[..., None] * way
            nearest.append(np.sqrt(((part[:, None] - foot) ** 2).sum(axis=2).min(axis=1)))
        return np.concatenate([np.empty(0), *nearest])

    # --- against coins ---

    @property
    def corners(self) -> Array:
        """All corners (n, 2): where what a balance sees of the set may change."""
        a0, a1, b0, b1 = self._boxes.T
        return np.concatenate([self._from, self._to, np.stack([a0, b0], 1), np.stack([a1, b1], 1)])

    def signed_gap(self, p: ArrayLike) -> Array:
        r"""How far the part of the set that is possible at balance p stays away from coins.

        With J = 1 - FP/(1-p) - FN/p and R_p = [0, 1-p] x [0, p]: min of ``|J|`` over the set in R_p where no coin lies in
        it; else minus the depth by which some edge crosses the coin segment; infinite where the set misses R_p.

        Parameters
        ----------
        p : array_like (n,)
            Balances D(y = +1) in (0, 1).
        """
        p = np.atleast_1d(np.asarray(p, dtype=float))
        found = np.empty(len(p))
        step = max(1, CHUNK // (len(self._from) + len(self._boxes)))
        for start in range(0, len(p), step):
            low, high, _ = self._range(p[start : start + step])
            found[start : start + step] = np.maximum(low, -high).min(axis=1)
        return found

    def _range(self, p: Array) -> tuple[Array, Array, tuple[Array, Array]]:
        """Least and largest J on each edge and box inside R_p (n, pieces), and the clipped ends of the edges.

        Pieces outside R_p get +inf and -inf.
        """
        x, y = (1 - p)[:, None], p[:, None]
        first, last, empty = self._clip(p)
        way = self._to - self._from
        ends = [
            1 - (self._from[:, 0] + t * way[:, 0]) / x - (self._from[:, 1] + t * way[:, 1]) / y for t in (first, last)
        ]
        low, high = np.where(empty, np.inf, np.minimum(*ends)), np.where(empty, -np.inf, np.maximum(*ends))
        if len(self._boxes):
            a0, a1, b0, b1 = self._boxes.T
            outside = (a0 > x + TOUCH) | (b0 > y + TOUCH)
            least = 1 - np.minimum(a1, x) / x - np.minimum(b1, y) / y
            low = np.concatenate([low, np.where(outside, np.inf, least)], axis=1)
            high = np.concatenate([high, np.where(outside, -np.inf, 1 - a0 / x - b0 / y)], axis=1)
        return low, high, (first, last)

    def _clip(self, p: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
        """The stretch [first, last] of every edge that lies in R_p, by Liang and Barsky's rule; whether there is none."""
        first, last = np.zeros((len(p), len(self._from))), np.ones((len(p), len(self._from)))
        empty = np.zeros(first.shape, dtype=bool)
        for axis, bound in ((0, 1 - p), (1, p)):
            room = bound[:, None] - self._from[:, axis]
            way = np.broadcast_to(self._to[:, axis] - self._from[:, axis], room.shape)
            with np.errstate(divide="ignore", invalid="ignore"):
                t = room / way
            last = np.where(way > 0, np.minimum(last, t), last)
            first = np.where(way < 0, np.maximum(first, t), first)
            nearest = np.minimum(self._from[:, axis], self._to[:, axis])
            empty |= nearest > bound[:, None] + TOUCH
        empty |= first > last + TOUCH
        return np.clip(first, 0, 1), np.clip(last, 0, 1), empty

    def weakest(self, p: float) -> tuple[float, Array]:
        """What an adversary answers at balance p: the least ``|J|`` in the set, and a pair (FP, FN) that has it.

        Where a coin lies in the set, J = 0 and the pair is a coin's.

        Raises
        ------
        ValueError
            Where the set has no pair that is possible at p.
        """
        balance = np.array([float(p)])
        low, high, (first, last) = self._range(balance)
        signed = np.maximum(low, -high)[0]
        i = int(signed.argmin())
        if not np.isfinite(signed[i]):
            raise ValueError(f"p: at balance {p} no pair of the set is possible (FP <= {1 - p:g}, FN <= {p:g})")
        if i < len(self._from):
            ends = [self._from[i] + t[0, i] * (self._to[i] - self._from[i]) for t in (first, last)]
        else:
            a0, a1, b0, b1 = self._boxes[i - len(self._from)]
            ends = [np.array([min(a1, 1 - p), min(b1, p)]), np.array([a0, b0])]
        edge = [1 - z[0] / (1 - p) - z[1] / p for z in ends]
        if signed[i] > 0 or edge[0] == edge[1]:
            j = int(np.argmin(np.abs(edge)))
            return float(edge[j]), ends[j]
        t = edge[0] / (edge[0] - edge[1])
        return 0.0, ends[0] + np.clip(t, 0, 1) * (ends[1] - ends[0])

    def balances(self) -> list[tuple[float, float]]:
        """The closed intervals of balances p at which some pair of the set is possible (FN <= p <= 1 - FP), merged."""
        way = self._to - self._from
        total, change = self._from.sum(axis=1), way.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.clip((1 - total) / change, 0, 1)
        first, last = np.where((change < 0) & (total > 1), t, 0.0), np.where((change > 0) & (total <= 1), t, 1.0)
        ends = np.stack([self._from + s[:, None] * way for s in (first, last)])
        possible = ends.sum(axis=2).min(axis=0) <= 1 + TOUCH
        low, high = ends[:, possible, 1].min(axis=0), 1 - ends[:, possible, 0].min(axis=0)
        a0, _, b0, _ = self._boxes.T
        fits = a0 + b0 <= 1 + TOUCH
        spans = sorted(zip([*low, *b0[fits]], [*high, *(1 - a0[fits])], strict=True))
        merged: list[tuple[float, float]] = []
        for a, b in spans:
            if merged and a <= merged[-1][1] + TOUCH:
                merged[-1] = (merged[-1][0], max(merged[-1][1], float(b)))
            else:
                merged.append((float(a), float(b)))
        return merged


# --- arguments -------------------------------------------------------------------------------------------------------


def check_halfplanes(W: ArrayLike, bounds: ArrayLike) -> tuple[Array, Array]:
    """Weights (n, 2) and bounds (n,) of half-planes, checked."""
    W, bounds = np.atleast_2d(np.asarray(W, dtype=float)), np.atleast_1d(np.asarray(bounds, dtype=float))
    if W.ndim != 2 or W.shape[1] != 2 or bounds.shape != (len(W),):
        raise ValueError(f"w and bound: got shapes {W.shape} and {bounds.shape}; expected (n, 2) and (n,)")
    if not (np.isfinite(W).all() and (W >= 0).all() and (W.sum(axis=1) > 0).all()):
        raise ValueError(f"w: got {W.tolist()}; expected finite weights >= 0, none all zero")
    if not (np.isfinite(bounds).all() and (bounds >= 0).all()):
        raise ValueError(f"bound: got {bounds.tolist()}; expected finite numbers >= 0")
    return W, bounds


def _pairs(name: str, z: ArrayLike) -> Array:
    z = np.asarray(z, dtype=float)
    if z.ndim != 2 or z.shape[1] != 2 or not len(z):
        raise ValueError(f"{name}: got shape {z.shape}; expected (n, 2) pairs (FP, FN), n >= 1")
    return _unit(name, z)


def _boxes(boxes: ArrayLike) -> Array:
    boxes = np.asarray(boxes, dtype=float)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes: got shape {boxes.shape}; expected (n, 4)")
    if not ((boxes[:, 0] <= boxes[:, 1]) & (boxes[:, 2] <= boxes[:, 3])).all():
        raise ValueError("boxes: expected rows (FP from, FP to, FN from, FN to), from <= to")
    return _unit("boxes", boxes)


def _unit(name: str, z: Array) -> Array:
    if not np.isfinite(z).all() or z.min(initial=0) < -TOUCH or z.max(initial=1) > 1 + TOUCH:
        bad = z[~((z >= -TOUCH) & (z <= 1 + TOUCH)).all(axis=1)][0]
        raise ValueError(f"{name}: got {bad.tolist()}; joint probabilities (FP, FN) lie in [0, 1]")
    return np.clip(z, 0, 1)


# --- geometry --------------------------------------------------------------------------------------------------------


def _cut(corners: Array, w: Array, bound: float) -> Array:
    """A convex polygon without what lies beyond w z = bound (Sutherland and Hodgman)."""
    kept = []
    for a, b in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        over_a, over_b = float(w @ a) - bound, float(w @ b) - bound
        if over_a <= 0:
            kept.append(a)
        if (over_a < 0 < over_b) or (over_b < 0 < over_a):
            kept.append(a + over_a / (over_a - over_b) * (b - a))
    return np.array(kept)


def _even_odd(z: Array, corners: Array) -> NDArray[np.bool_]:
    a, b = corners, np.roll(corners, -1, axis=0)
    x, y = z[:, :1], z[:, 1:]
    straddles = (a[:, 1] > y) != (b[:, 1] > y)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = a[:, 0] + (y - a[:, 1]) / (b[:, 1] - a[:, 1]) * (b[:, 0] - a[:, 0])
    odd: NDArray[np.bool_] = (straddles & (x < crossing)).sum(axis=1) % 2 == 1
    return odd
