"""What TG-ITE is compared with: winner stays, relative UCB, explore-verify, sequential elimination, and its own ablations.

Written anew from their papers in Numba, because a loop in Python does not reach 10^6 duels. Each takes a matrix and gives a
:class:`Simulation`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numba import njit

from gnomon.decisions.dueling.matrix import PreferenceMatrix
from gnomon.decisions.dueling.method import TGITE
from gnomon.decisions.dueling.phases import CONSTANT, GEOMETRIC, PER_MATCH
from gnomon.decisions.dueling.simulation import Ledger, Simulation, count, log_spaced
from gnomon.decisions.dueling.streams import generator

TREES = {"geometric": GEOMETRIC, "constant": CONSTANT, "per match": PER_MATCH}


class AblatedTGITE(TGITE):
    """TG-ITE with one idea taken out.

    Parameters
    ----------
    n_arms : int
        N.
    tree : {"geometric", "constant", "per match"}
        Confidence by level: growing as matches get fewer (the method), x / log2 N at each level, or x / N for each match (a
        union bound over the arms; N log N duels).
    union : bool
        Clear an arm in a screen at e+ >= 2N / delta_r (a union bound over the arms) instead of 2 / delta_r.
    reuse : bool
        False: every meeting of the regret objectives starts from fresh counts.
    **options
        Those of :class:`TGITE`.
    """

    def __init__(self, n_arms: int, *, tree: Literal["geometric", "constant", "per match"] = "geometric", union: bool = False,
                 reuse: bool = True, **options: Any):  # fmt: skip
        if tree not in TREES:
            raise ValueError(f"tree: got {tree!r}; expected one of {', '.join(TREES)}")
        super().__init__(n_arms, **options)
        self._state["tree_rule"], self._state["union"], self._state["reuse"] = TREES[tree], union, reuse


class _Run(Ledger):
    """What the baselines share: a checked matrix, a horizon, a generator, and the regret paid."""

    def __init__(self, matrix: PreferenceMatrix, horizon: int | None, times: Any, random_state: Any):
        if horizon is not None and (isinstance(horizon, bool) or horizon != int(horizon) or horizon < 1):
            raise ValueError(f"horizon: got {horizon!r}; expected a number of duels of 1 or more")
        self.horizon = 10**10 if horizon is None else int(horizon)
        super().__init__(matrix, log_spaced(self.horizon) if times is None else times)
        if matrix.n_arms < 2:
            raise ValueError("matrix: it has one arm; expected two or more")
        self.rng = generator(random_state)

    def outcome(self, incumbent: int, answered: bool = False) -> Simulation:
        """What came of it; ``answered`` when the incumbent is the algorithm's final word."""
        return self.result(
            best=incumbent if answered else None, incumbent=incumbent, answered_at=self.duels if answered else None
        )


# --- winner stays ----------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _choose(score, but, last_i, last_j, rng):  # type: ignore[no-untyped-def]
    """An arm of the highest score, ``but`` left out: one of the last pair if it is among them, else a random one."""
    best, ties = np.int64(-(2**62)), 0
    for k in range(score.size):
        if k != but:
            if score[k] > best:
                best, ties = score[k], 1
            elif score[k] == best:
                ties += 1
    for k in (last_i, last_j):
        if k >= 0 and k != but and score[k] == best:
            return k
    drawn = rng.integers(0, ties) if ties > 1 else 0
    for k in range(score.size):
        if k != but and score[k] == best:
            if drawn == 0:
                return k
            drawn -= 1
    return -1


@njit(cache=True, nogil=True)
def _winner_stays(p, rng, horizon, beta, by_round, curves, times, marks, totals, gaps, winner):  # type: ignore[no-untyped-def]
    n = p.shape[0]
    score = np.zeros(n, np.int64)
    i = j = -1
    length, rounds = beta, 1
    while marks[0] < horizon:
        first = _choose(score, -1, i, j, rng)
        second = _choose(score, first, i, j, rng)
        i, j = first, second
        if rng.random() < p[i, j]:
            score[i] += 1
            score[j] -= 1
        else:
            score[i] -= 1
            score[j] += 1
        count(curves, times, marks, totals, gaps, winner, i, j, 1)
        if beta > 1:
            leader = i if score[i] > score[j] else j
            if not by_round or score[leader] == rounds * (n - 1):
                again = min(int(length), horizon - marks[0])
                if again > 0:
                    count(curves, times, marks, totals, gaps, winner, leader, leader, again)
                length, rounds = min(length * beta, 1e17), rounds + 1
    return score.argmax()


def winner_stays_weak(
    matrix: PreferenceMatrix, horizon: int, *, times: Any = None, random_state: Any = None
) -> Simulation:
    """WS-W: the two arms that won most more often than they lost; of equal ones those of the last duel.

    Chen and Frazier, "Dueling bandits with weak regret", ICML 2017. Weak regret O(N^2), O(N log N) under a total order.

    Parameters
    ----------
    matrix : PreferenceMatrix
        With a Condorcet winner.
    horizon : int
        Duels.
    times : array_like of int, optional
        Where regret is kept.
    random_state : int, Generator or None
        Draws ties and outcomes.
    """
    run = _Run(matrix, horizon, times, random_state)
    return run.outcome(int(_winner_stays(matrix.p, run.rng, run.horizon, 0.0, False, *run.arrays)))


def winner_stays_strong(matrix: PreferenceMatrix, horizon: int, *, beta: float = 1.1, exploration: Literal["round", "duel"] = "round",
                        times: Any = None, random_state: Any = None) -> Simulation:  # fmt: skip
    """WS-S: rounds of WS-W, after the l-th of which the leader meets itself floor(beta^l) times.

    A round ends when every arm but the leader lies at -l (same source as :func:`winner_stays_weak`, section 4).

    Parameters
    ----------
    beta : float
        Growth, above 1.
    exploration : {"round", "duel"}
        ``duel``: one duel a round, as duelpy has it.
    matrix, horizon, times, random_state
        See :func:`winner_stays_weak`.
    """
    if not beta > 1:
        raise ValueError(f"beta: got {beta!r}; expected a number above 1")
    if exploration not in ("round", "duel"):
        raise ValueError(f"exploration: got {exploration!r}; expected round or duel")
    run = _Run(matrix, horizon, times, random_state)
    return run.outcome(int(_winner_stays(matrix.p, run.rng, run.horizon, beta, exploration == "round", *run.arrays)))


# --- relative UCB ----------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _falls_short(w, n, spread):  # type: ignore[no-untyped-def]
    """u = w/n + sqrt(spread/n) < 1/2, without a root."""
    return n > 0 and 2 * w < n and spread * n < (0.5 * n - w) ** 2


@njit(cache=True, nogil=True)
def _rucb(p, rng, horizon, alpha, curves, times, marks, totals, gaps, winner):  # type: ignore[no-untyped-def]
    n = p.shape[0]
    wins = np.zeros((n, n), np.int64)
    witness, best = np.zeros(n, np.int64), -1  # of each arm one that it seems to lose to
    able, bounds = np.empty(n, np.int64), np.empty(n)
    while marks[0] < horizon:
        spread = alpha * math.log(marks[0] + 1.0)
        size = 0
        for i in range(n):
            k = witness[i]
            if i != k and _falls_short(wins[i, k], wins[i, k] + wins[k, i], spread):
                continue
            short = False
            for j in range(n):
                if i != j and _falls_short(wins[i, j], wins[i, j] + wins[j, i], spread):
                    witness[i], short = j, True
                    break
            if not short:
                able[size] = i
                size += 1
        c = rng.integers(0, n) if size == 0 else able[0]
        if best >= 0:
            kept = False
            for k in range(size):
                kept = kept or able[k] == best
            if not kept:
                best = -1
        if size == 1:
            best = c
        elif size > 1 and best >= 0 and rng.random() < 0.5:
            c = best
        elif size > 1:
            drawn = rng.integers(0, size - (1 if best >= 0 else 0))
            for k in range(size):
                if able[k] != best:
                    if drawn == 0:
                        c = able[k]
                    drawn -= 1
        top, ties, d = 0.5, 0, c  # u_cc = 1/2: the challenger is c itself where no other reaches it
        for j in range(n):
            bounds[j] = -1.0
            if j != c:
                total = wins[j, c] + wins[c, j]
                bounds[j] = np.inf if total == 0 else wins[j, c] / total + math.sqrt(spread / total)
                if bounds[j] > top:
                    top, ties = bounds[j], 0
                ties += bounds[j] == top
        drawn = rng.integers(0, ties) if ties > 1 else 0
        for j in range(n):
            if ties > 0 and bounds[j] == top:
                if drawn == 0:
                    d = j
                drawn -= 1
        if c != d:
            if rng.random() < p[c, d]:
                wins[c, d] += 1
            else:
                wins[d, c] += 1
        count(curves, times, marks, totals, gaps, winner, c, d, 1)
    return best if best >= 0 else c


def relative_ucb(matrix: PreferenceMatrix, horizon: int, *, alpha: float = 0.51, times: Any = None,
                 random_state: Any = None) -> Simulation:  # fmt: skip
    """RUCB: a champion that may still beat all by its upper confidence bounds, against its most dangerous rival.

    Zoghi et al., "Relative upper confidence bound for the K-armed dueling bandit problem", ICML 2014.

    Parameters
    ----------
    alpha : float
        Exploration, above 1/2.
    matrix, horizon, times, random_state
        See :func:`winner_stays_weak`.
    """
    if not alpha > 0.5:
        raise ValueError(f"alpha: got {alpha!r}; expected a number above 0.5")
    run = _Run(matrix, horizon, times, random_state)
    return run.outcome(int(_rucb(matrix.p, run.rng, run.horizon, alpha, *run.arrays)))


# --- identification --------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _radius(n, size, error):  # type: ignore[no-untyped-def]
    """Hoeffding's, for all pairs and all n at once."""
    return math.sqrt(math.log(2.0 * n * n * size * size / error) / (2 * n))


@njit(cache=True, nogil=True)
def _explore(p, rng, error, limit, curves, times, marks, totals, gaps, winner):  # type: ignore[no-untyped-def]
    """All pairs in question once a turn, until each arm but one has a certain conqueror: (arm, conquerors of the others)."""
    n = p.shape[0]
    wins, met = np.zeros((n, n), np.int64), np.zeros((n, n), np.int64)
    active = np.ones((n, n), np.bool_)
    low, high, least = -np.ones((n, n)), np.ones((n, n)), np.empty(n)
    for i in range(n):
        active[i, i] = False
        low[i, i] = high[i, i] = 0.0
    left = n * (n - 1)
    while left > 0 and marks[0] < limit:
        for i in range(n):
            for j in range(i):
                if (active[i, j] or active[j, i]) and marks[0] < limit:
                    first = rng.random() < p[i, j]
                    wins[i, j] += first
                    wins[j, i] += not first
                    met[i, j] += 1
                    met[j, i] += 1
                    count(curves, times, marks, totals, gaps, winner, i, j, 1)
                    r = 2 * _radius(met[i, j], n, error)  # on the scale of 2p - 1
                    mean = 2 * wins[i, j] / met[i, j] - 1
                    low[i, j], high[i, j] = max(mean - r, -1.0), min(mean + r, 1.0)
                    low[j, i], high[j, i] = -high[i, j], -low[i, j]
        for i in range(n):
            least[i] = high[i].min()
        for i in range(n):
            for j in range(n):
                if active[i, j]:
                    wins_surely = low[i, j] > 0
                    loses_clearly = high[i, j] < 0 and 2 * high[i, j] < low[i, j]
                    other_is_worse = low[i, j] < 0 and low[i, j] > least[i]
                    if wins_surely or loses_clearly or other_is_worse:
                        active[i, j] = False
                        left -= 1
    best, fewest = 0, n + 1
    conqueror = np.zeros(n, np.int64)
    for i in range(n):
        doubts = 0
        for j in range(n):
            doubts += low[i, j] < 0
        if doubts < fewest:
            best, fewest = i, doubts
        worst = 2.0
        for j in range(n):
            if j != i and high[i, j] < worst:
                worst, conqueror[i] = high[i, j], j
    return best, conqueror


@njit(cache=True, nogil=True)
def _verify(p, rng, best, conqueror, error, limit, curves, times, marks, totals, gaps, winner):  # type: ignore[no-untyped-def]
    """Whether every other arm loses to its conqueror."""
    n = p.shape[0]
    for i in range(n):
        if i == best:
            continue
        j, wins, met = conqueror[i], 0, 0
        while marks[0] < limit:
            wins += rng.random() < p[i, j]
            met += 1
            count(curves, times, marks, totals, gaps, winner, i, j, 1)
            r = _radius(met, n, error)
            if wins / met + r < 0.5:
                break
            if wins / met - r > 0.5:
                return False
    return marks[0] < limit


def explore_verify(matrix: PreferenceMatrix, delta: float = 0.05, *, explore_error: float | None = None, horizon: int | None = None,
                   times: Any = None, random_state: Any = None) -> Simulation:  # fmt: skip
    """Explore with a constant error, then verify each arm's conqueror with error delta / (2 r^2) in round r, and repeat if refuted.

    Karnin, "Verification based solution for structured MAB problems", NIPS 2016, section 4 (the exploration is SAVAGE-like).

    Parameters
    ----------
    matrix : PreferenceMatrix
        With a Condorcet winner.
    delta : float
        Error of the answer, in (0, 0.5).
    explore_error : float or None
        Of the exploration; by default min(1/3, 1 / ln(1 / delta)).
    horizon : int or None
        Give up after so many duels.
    times, random_state
        See :func:`winner_stays_weak`.
    """
    if not 0 < delta < 0.5:
        raise ValueError(f"delta: got {delta!r}; expected a probability in (0, 0.5)")
    kappa = min(1 / 3, 1 / math.log(1 / delta)) if explore_error is None else explore_error
    run = _Run(matrix, horizon, times, random_state)
    best, r, found = -1, 0, False
    while not found and run.duels < run.horizon:
        r += 1
        best, conqueror = _explore(matrix.p, run.rng, kappa, run.horizon, *run.arrays)
        found = bool(_verify(matrix.p, run.rng, best, conqueror, delta / (2 * r * r), run.horizon, *run.arrays))
    return run.outcome(int(best), found)


@njit(cache=True, nogil=True)
def _eliminate(p, rng, gap, error, limit, curves, times, marks, totals, gaps, winner):  # type: ignore[no-untyped-def]
    n = p.shape[0]
    order = np.arange(n)
    for k in range(n - 1, 0, -1):
        other = rng.integers(0, k + 1)
        order[k], order[other] = order[other], order[k]
    anchor, most, middle = order[0], int(2 * math.log(2 / error) / gap**2), gap / 2
    for k in range(1, n):
        j, wins, met, mean, radius = order[k], 0, 0, 0.0, 0.5
        while met < most and abs(mean - middle) <= radius and marks[0] < limit:
            wins += rng.random() < p[j, anchor]
            met += 1
            count(curves, times, marks, totals, gaps, winner, j, anchor, 1)
            mean = wins / met - 0.5
            radius = math.sqrt(math.log(4.0 * met * met / error) / (2 * met))
        if mean >= middle:
            anchor = j
        if marks[0] >= limit:
            break
    return anchor


def sequential_elimination(matrix: PreferenceMatrix, gap: float, error: float, *, horizon: int | None = None, times: Any = None,
                           random_state: Any = None) -> Simulation:  # fmt: skip
    """One pass with an anchor: whoever beats it by half of ``gap`` takes its place.

    Falahatgar et al., "Maxing and ranking with few assumptions", NIPS 2017, section 3. It must be told a gap.

    Parameters
    ----------
    gap : float
        Least gap that matters, in (0, 0.5].
    error : float
        Of each of the N - 1 comparisons (delta / N for an error of delta).
    matrix, horizon, times, random_state
        See :func:`explore_verify`.
    """
    if not 0 < gap <= 0.5:
        raise ValueError(f"gap: got {gap!r}; expected a number in (0, 0.5]")
    if not 0 < error < 1:
        raise ValueError(f"error: got {error!r}; expected a probability in (0, 1)")
    run = _Run(matrix, horizon, times, random_state)
    anchor = int(_eliminate(matrix.p, run.rng, gap, error, run.horizon, *run.arrays))
    return run.outcome(anchor, run.duels < run.horizon)
