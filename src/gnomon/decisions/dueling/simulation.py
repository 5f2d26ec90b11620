"""Simulated judges: a bandit meets a preference matrix, and its regret is counted duel by duel or in blocks."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from gnomon.decisions.dueling.matrix import PreferenceMatrix
from gnomon.decisions.dueling.phases import add_duels, forward
from gnomon.decisions.dueling.streams import OUTCOMES, stream

if TYPE_CHECKING:
    from gnomon.decisions.dueling.method import TGITE

LEAST_BLOCK = 4


@dataclass(frozen=True)
class Simulation:
    """What a bandit did against a matrix.

    Attributes
    ----------
    times : numpy.ndarray, shape (T,)
        Numbers of duels, log-spaced up to the horizon (or to the end, without one).
    weak_gap, strong_gap, weak_binary, strong_binary : numpy.ndarray, shape (T,)
        Cumulative regret at these times, in all four kinds; constant after the last duel.
    n_duels : int
        Duels in this call.
    duels_to_answer : int or None
        Duels of the bandit, from its own first one, until it first named a best arm.
    best, incumbent : int or None
        The arm it names, and its candidate at the end.
    winner : int or None
        The true Condorcet winner.
    regret : {"gap", "binary"}
        Which kind ``weak`` and ``strong`` are.
    """

    times: np.ndarray
    weak_gap: np.ndarray
    strong_gap: np.ndarray
    weak_binary: np.ndarray
    strong_binary: np.ndarray
    n_duels: int
    duels_to_answer: int | None
    best: int | None
    incumbent: int | None
    winner: int | None
    regret: str = "gap"

    @property
    def weak(self) -> np.ndarray:
        """Cumulative weak regret of the chosen kind."""
        return self.weak_gap if self.regret == "gap" else self.weak_binary

    @property
    def strong(self) -> np.ndarray:
        """Cumulative strong regret of the chosen kind."""
        return self.strong_gap if self.regret == "gap" else self.strong_binary

    @property
    def correct(self) -> bool:
        """Whether the arm named is the Condorcet winner."""
        return self.best is not None and self.best == self.winner

    def at(self, name: str, time: int) -> float:
        """A cumulative regret (``"weak"``, ``"strong_binary"``, ...) at one of ``times``."""
        found = np.flatnonzero(self.times == time)
        if not found.size:
            raise ValueError(f"time: got {time!r}; expected one of times ({self.times[0]} to {self.times[-1]})")
        return float(getattr(self, name)[found[0]])


# --- counting --------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def chance(p, scores, i, j):  # type: ignore[no-untyped-def]
    """p_ij, from the matrix or from Bradley-Terry scores."""
    return 1.0 / (1.0 + math.exp(scores[j] - scores[i])) if scores.size else p[i, j]


@njit(cache=True, nogil=True)
def count(curves, times, marks, totals, gaps, winner, i, j, duels):  # type: ignore[no-untyped-def]
    """Add the regret of ``duels`` duels of one pair; within them it grows by the same each duel.

    ``marks``: the number of duels so far, and of the times already passed.
    """
    for kind in range(4):
        if winner < 0:
            each = np.nan
        elif kind == 0:
            each = min(gaps[i], gaps[j])
        elif kind == 1:
            each = (gaps[i] + gaps[j]) / 2
        elif kind == 2:
            each = 0.0 if winner in (i, j) else 1.0
        else:
            each = 0.0 if winner == i and winner == j else 1.0
        k = marks[1]
        while k < times.size and times[k] <= marks[0] + duels:
            curves[kind, k] = totals[kind] + (times[k] - marks[0]) * each
            k += 1
        totals[kind] += duels * each
    marks[0] += duels
    while marks[1] < times.size and times[marks[1]] <= marks[0]:
        marks[1] += 1


@njit(cache=True, nogil=True)
def play(state, arms, order, keys, counts, trace, rng, p, scores, judge, block, limit,
         curves, times, marks, totals, gaps, winner):  # type: ignore[no-untyped-def]  # fmt: skip
    """Duel until ``limit`` duels of the bandit, or its end; False when book or trace must grow first."""
    s = state[0]
    while forward(state, arms, order, keys, counts, trace, rng):
        if s.done or s.duels >= limit:
            return True
        i, j, size = s.i, s.j, 1
        if i == j:
            size = min(s.cap - s.met, limit - s.duels)  # its outcomes say nothing
        elif block:
            size = min(max(LEAST_BLOCK, (s.wins + s.losses) // 4), s.cap - s.met, limit - s.duels)
        if i == j:
            wins = size
        elif block:
            wins = judge.binomial(size, chance(p, scores, i, j))
        else:
            wins = 1 if judge.random() < chance(p, scores, i, j) else 0
        add_duels(s, wins, size - wins)
        count(curves, times, marks, totals, gaps, winner, i, j, size)
    return False


class Ledger:
    """The regret that a run pays on a matrix, kept at given times."""

    def __init__(self, matrix: PreferenceMatrix, times: Any, check: bool = True):
        winner = checked(matrix, check)
        self.winner = None if winner < 0 else winner
        self.times = np.asarray(times, np.int64)
        if self.times.ndim != 1 or not self.times.size or self.times[0] < 1 or (np.diff(self.times) <= 0).any():
            raise ValueError("times: expected ascending numbers of duels of 1 or more")
        self.curves, self.totals, self.marks = np.full((4, self.times.size), -1.0), np.zeros(4), np.zeros(2, np.int64)
        self.arrays: tuple[Any, ...] = (self.curves, self.times, self.marks, self.totals, matrix.gaps, winner)

    @property
    def duels(self) -> int:
        return int(self.marks[0])

    def pay(self, i: int, j: int) -> None:
        """One duel."""
        curves, times, marks, totals, gaps, winner = self.arrays
        count(curves, times, marks, totals, gaps, winner, i, j, 1)

    def result(self, *, best: int | None, incumbent: int | None, answered_at: int | None, regret: str = "gap",
               up_to_the_end: bool = False) -> Simulation:  # fmt: skip
        """What was kept; ``up_to_the_end`` leaves out times after the last duel."""
        times, curves = (
            self.times,
            np.where(np.arange(self.times.size) < self.marks[1], self.curves, self.totals[:, None]),
        )
        if up_to_the_end:
            kept = np.append(np.flatnonzero(times < self.duels), times.size)
            times, curves = np.append(times, self.duels)[kept], np.column_stack([curves, self.totals])[:, kept]
        return Simulation(times, curves[0], curves[1], curves[2], curves[3], self.duels, answered_at, best, incumbent,
                          self.winner, regret)  # fmt: skip


def log_spaced(horizon: int, points: int = 40) -> np.ndarray:
    """Whole numbers from 1 to the horizon, evenly spaced in their logarithms, the powers of ten and 4 10^k among them."""
    tens = [c * 10**k for k in range(19) for c in (1, 4) if c * 10**k <= horizon]
    even = np.unique(np.round(np.geomspace(1, horizon, points)).astype(np.int64))
    return np.union1d(even, np.array([*tens, horizon], np.int64))


def checked(matrix: PreferenceMatrix, check: bool) -> int:
    """The Condorcet winner of a matrix, or -1 with a warning."""
    if not isinstance(matrix, PreferenceMatrix):
        raise TypeError(f"matrix: got {type(matrix).__name__}; expected a PreferenceMatrix")
    winner = matrix.condorcet_winner
    if winner is None:
        message = "matrix: it has no Condorcet winner (no arm beats every other more often than not)"
        if check:
            raise ValueError(f"{message}; give check=False to run all the same")
        warnings.warn(f"{message}; regret is undefined (NaN)", UserWarning, stacklevel=3)
    return -1 if winner is None else winner


def simulate(
    alg: TGITE,
    matrix: PreferenceMatrix,
    horizon: int | None = None,
    *,
    block: bool = True,
    check: bool = True,
    random_state: Any = None,
    times: Any = None,
) -> Simulation:
    """Run a bandit against a matrix, from where it stands.

    Parameters
    ----------
    alg : TGITE
        It is changed; a run that was begun (by people, say) goes on.
    matrix : PreferenceMatrix
        As many arms as ``alg`` has.
    horizon : int or None
        Duels in this call at most. None: until ``alg.done``, for objectives that end.
    block : bool
        Draw binomial blocks of max(4, n / 4) duels within a meeting of n so far, and test after each. The e-value may be looked
        at whenever one likes, so no guarantee changes; about a fifth more duels are used. False: test after each duel, which is
        exactly :meth:`TGITE.ask` and :meth:`TGITE.tell` with ``winner = i if random_state.random() < p_ij else j`` for a
        generator ``random_state``. (Of a pair of one arm twice nothing is drawn.)
    check : bool
        Refuse a matrix that has no Condorcet winner.
    random_state : int, numpy.random.Generator or None
        Draws the outcomes, from a stream of its own: the same seed as the bandit's does no harm.
    times : array_like of int, optional
        Where regret is kept, ascending; by default log-spaced.

    Returns
    -------
    Simulation

    Raises
    ------
    ValueError
        For a matrix without a Condorcet winner or of another size, and where nothing would end the run.
    """
    if not hasattr(alg, "ask"):
        raise TypeError(f"alg: got {type(alg).__name__}; expected a TGITE")
    if isinstance(matrix, PreferenceMatrix) and matrix.n_arms != alg.n_arms:
        raise ValueError(f"matrix: it has {matrix.n_arms} arms; the bandit has {alg.n_arms}")
    if horizon is not None and (isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or horizon < 0):
        raise ValueError(f"horizon: got {horizon!r}; expected a number of duels of 0 or more")
    most = min(horizon if horizon is not None else 10**18, alg.max_duels or 10**18)
    ledger = Ledger(matrix, log_spaced(max(1, min(most, 10**10))) if times is None else times, check)
    if (
        horizon is None
        and alg.max_duels is None
        and alg.n_arms > 1
        and (alg.objective != "bai" or ledger.winner is None)
    ):
        raise ValueError(f"horizon: needed for objective {alg.objective!r} on this matrix (or max_duels of the bandit)")
    alg._begin()
    limit = min(alg.n_duels_ + most, alg.max_duels or 2**62)
    dense = np.empty((0, 0)) if matrix.scores.size else matrix.p
    setting: tuple[Any, ...] = (dense, matrix.scores, stream(random_state, OUTCOMES), block, limit, *ledger.arrays)
    while not play(alg._state, *alg._arrays(), *setting):
        alg._grow()
    alg._asked = False
    alg._warn()
    return ledger.result(best=alg.best_, incumbent=alg.incumbent_, answered_at=alg.identified_at_, regret=alg.regret,
                         up_to_the_end=horizon is None and times is None)  # fmt: skip
