"""Which guarantees can be boosted: those that some coin segment misses.

Ignoring x and answering +1 with probability q gives (FP, FN) = (q (1-p), (1-q) p); over q this is the segment L_p from
(1-p, 0) to (0, p), and all L_p touch the curve sqrt(FP) + sqrt(FN) = 1. A learner that promises Z on every distribution
carries information exactly when some L_p misses Z: present it only distributions of that balance p, and
J = 1 - fpr - fnr stays away from 0 (where J < 0 the negated answer is used).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gnomon.guarantees.z_boosting.sets import ZSet, check_halfplanes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
NOTHING = 1e-9  # a gap below this is none
GRID, CELLS, NARROW = 2001, 5, 60  # balances looked at; best ones refined; steps of the golden section
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Verdict:
    """Whether a guarantee can be boosted.

    Attributes
    ----------
    status : {"boostable", "not_boostable", "boundary", "vacuous"}
        "boundary": the open set misses some coin segment, its closure does not. "vacuous": at some balance no pair of
        the set is possible at all, so no learner keeps the promise there.
    p : float
        The best balance D(y = +1) to ask at (NaN where vacuous).
    gap : float
        g(Z, p), the least ``|1 - fpr - fnr|`` of the set there, in [0, 1] (NaN where vacuous).
    approximate : bool
        The set is known on a grid only.
    empty : tuple of (float, float)
        The intervals of balances without a possible pair, where vacuous.
    p_range : (float, float)
        Balances at which the learner makes its promise.
    z : ZSet
        The set.
    """

    status: Literal["boostable", "not_boostable", "boundary", "vacuous"]
    p: float
    gap: float
    approximate: bool
    empty: tuple[tuple[float, float], ...]
    p_range: tuple[float, float]
    z: ZSet = field(repr=False)

    def rounds(self, m: int) -> float:
        r"""Rounds that suffice for no error on a sample: ceil(log m / -log sqrt(1 - g^2)).

        Parameters
        ----------
        m : int
            Rows of the larger class, 1 or more.

        Returns
        -------
        float
            A whole number; infinite where the guarantee is not boostable.
        """
        if m < 1:
            raise ValueError(f"m: got {m}; expected the rows of the larger class, 1 or more")
        if self.status != "boostable":
            return math.inf
        return 1.0 if self.gap >= 1 else float(max(1, math.ceil(math.log(m) / (-0.5 * math.log1p(-(self.gap**2))))))

    def plot(self) -> Figure:
        """The set beside the coin segments, and the gap over the balances."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 4), layout="constrained")
        left, right = figure.subplots(1, 2)
        a = np.linspace(0, 1, 301)
        x, y = np.meshgrid(a, a)
        inside = self.z.contains(np.stack([x, y], axis=-1), tol=0.004)  # points and segments would not be seen
        left.contourf(x, y, inside, levels=[0.5, 1], colors=["C0"], alpha=0.4)
        left.plot(a, (1 - np.sqrt(a)) ** 2, color="0.5", lw=1, label="√FP + √FN = 1")
        if math.isfinite(self.p):
            left.plot([1 - self.p, 0], [0, self.p], color="C3", label=f"coins at p = {self.p:.3g}")
        left.set(xlabel="FP", ylabel="FN", title=self.status, xlim=(0, 1), ylim=(0, 1), aspect="equal")
        left.legend(fontsize=8)
        p = _balances(self.z, *self.p_range)
        gap = np.maximum(self.z.signed_gap(p), 0)
        right.plot(p, np.where(np.isfinite(gap), gap, np.nan), color="C0")
        right.set(xlabel="balance p", ylabel="gap g(Z, p)", xlim=self.p_range, ylim=(0, None))
        return figure


def boostable(z: ZSet, p_range: tuple[float, float] = (0, 1)) -> Verdict:
    r"""Whether a guarantee can be boosted, at which class balance, and how strongly.

    .. math:: g(Z) = \max_p \min_{z \in Z \cap R_p} \left| 1 - \frac{z_1}{1-p} - \frac{z_2}{p} \right|,
              \qquad R_p = [0, 1-p] \times [0, p].

    Exact on polygons and points by checking edges against L_p; p is searched on a grid with every breakpoint of the set, then
    by golden section around the best five cells, as g(Z, .) has several maxima and jumps.

    Parameters
    ----------
    z : ZSet
        The guarantee.
    p_range : (float, float)
        Balances at which the learner promises it; ends included unless they are 0 and 1.

    Raises
    ------
    ValueError
        For a range that is no interval in [0, 1].

    Examples
    --------
    >>> v = boostable(ZSet.rectangle(0.2, 0.2))
    >>> v.status, round(v.p, 3), round(v.gap, 3), v.rounds(500)
    ('boostable', 0.5, 0.2, 305.0)
    """
    if not isinstance(z, ZSet):
        raise TypeError(f"z: got {type(z).__name__}; expected a ZSet")
    low, high = check_p_range(p_range)
    if empty := _uncovered(z.balances(), low, high):
        return Verdict("vacuous", math.nan, math.nan, z.approximate, empty, (low, high), z)
    p, gap = _best(z.signed_gap, _balances(z, low, high))
    status: Literal["boostable", "not_boostable", "boundary"] = "boostable"
    if gap <= NOTHING:
        status = "boundary" if not z.closed and _misses_open(z, p) else "not_boostable"
    return Verdict(status, p, max(gap, 0.0) if gap > NOTHING else 0.0, z.approximate, (), (low, high), z)


def scalarise(W: ArrayLike, bounds: ArrayLike, p: float) -> tuple[Array, float]:
    """The convex combination of weighted bounds W z <= bounds that best separates them from the coins of balance p.

    An intersection of half-planes is boostable exactly when some convex combination of them is: a segment that misses a convex
    set is separated from it by a combination of the set's own constraints (Farkas).

    Parameters
    ----------
    W, bounds : array_like (n, 2), (n,)
        Weights >= 0 and bounds >= 0.
    p : float
        Balance in (0, 1).

    Returns
    -------
    weights : ndarray (n,)
        >= 0, sum 1.
    margin : float
        By how much the coins break the combined bound; positive exactly where L_p misses the set.
    """
    from scipy.optimize import linprog

    W, bounds = check_halfplanes(W, bounds)
    check_balance(p)
    coins = np.array([(1 - p, 0.0), (0.0, p)])
    cost = coins @ W.T - bounds  # rows: both ends of L_p
    found = linprog(np.append(np.zeros(len(W)), -1.0), A_ub=np.column_stack([-cost, np.ones(2)]), b_ub=np.zeros(2),
                    A_eq=[[1.0] * len(W) + [0.0]], b_eq=[1.0], bounds=[(0, None)] * len(W) + [(None, None)])  # fmt: skip
    return found.x[:-1], float(found.x[-1])


# --- arguments -------------------------------------------------------------------------------------------------------


def check_p_range(p_range: Any) -> tuple[float, float]:
    """A range of balances as two floats."""
    try:
        low, high = map(float, p_range)
    except (TypeError, ValueError):
        raise ValueError(f"p_range: got {p_range!r}; expected a pair (low, high) in [0, 1]") from None
    if not (0 <= low <= high <= 1 and low < 1 and high > 0):
        raise ValueError(f"p_range: got ({low}, {high}); expected 0 <= low <= high <= 1, more than an end alone")
    return low, high


def check_balance(p: Any) -> float:
    """A balance D(y = +1) as a float."""
    if isinstance(p, bool) or not isinstance(p, int | float | np.floating) or not 0 < p < 1:
        raise ValueError(f"p: got {p!r}; expected a balance D(y = +1) in (0, 1)")
    return float(p)


# --- the search ------------------------------------------------------------------------------------------------------


def _uncovered(covered: list[tuple[float, float]], low: float, high: float) -> tuple[tuple[float, float], ...]:
    """The parts of [low, high] (without 0 and 1) that no closed interval covers."""
    found, at = [], low
    for a, b in covered:
        if a > at + NOTHING / 10 and at < high:
            found.append((at, min(a, high)))
        at = max(at, b)
    if at < high - NOTHING / 10:
        found.append((at, high))
    elif low == high and not any(a <= low + NOTHING / 10 and b >= low - NOTHING / 10 for a, b in covered):
        found = [(low, high)]
    return tuple(found)


def _balances(z: ZSet, low: float, high: float) -> Array:
    """The grid, denser towards 0 and 1, and the breakpoints, where a piece enters or leaves R_p, from both sides."""
    corners = z.corners
    breaks = np.concatenate([corners[:, 1], 1 - corners[:, 0]])
    near = np.logspace(-9, -3, 61)
    p = np.concatenate([np.linspace(low, high, GRID), breaks, breaks - NOTHING, breaks + NOTHING, near, 1 - near])
    return np.unique(p[(p >= low) & (p <= high) & (p > 0) & (p < 1)])


def _best(f: Callable[[Array], Array], p: Array) -> tuple[float, float]:
    """The largest value of f and where it is: the best of the grid, then golden section in the best cells, all at once."""
    value = f(p)
    if len(p) == 1:
        return float(p[0]), float(value[0])
    padded = np.concatenate([[-np.inf], value, [-np.inf]])
    peaks = np.flatnonzero((value >= padded[:-2]) & (value >= padded[2:]))
    top = peaks[np.argsort(-value[peaks], kind="stable")[:CELLS]]
    a, b = p[np.maximum(top - 1, 0)], p[np.minimum(top + 1, len(p) - 1)]
    c, d = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
    fc, fd = f(c), f(d)
    tried, values = [p, c, d], [value, fc, fd]
    for _ in range(NARROW):
        left = fc >= fd
        a, b = np.where(left, a, c), np.where(left, d, b)
        new = np.where(left, b - GOLDEN * (b - a), a + GOLDEN * (b - a))
        fresh = f(new)
        c, d = np.where(left, new, d), np.where(left, c, new)
        fc, fd = np.where(left, fresh, fd), np.where(left, fc, fresh)
        tried.append(new)
        values.append(fresh)
    every, found = np.concatenate(tried), np.concatenate(values)
    i = int(found.argmax())
    return float(every[i]), float(found[i])


def _misses_open(z: ZSet, p: float, margin: float = 1e-6) -> bool:
    """Whether L_p runs through no interior point of the set."""
    q = np.linspace(0, 1, 1025)[1:-1]
    return not z.interior(np.stack([q * (1 - p), (1 - q) * p], axis=1), margin).any()
