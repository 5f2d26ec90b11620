"""The order of events: which pair meets next, until when, and what follows from how the meeting ended.

One meeting after another, each with its stopping rule, so that asking a person, simulating duel by duel and simulating in
blocks run the same code. All that must survive a break between two duels is in one record and a few arrays.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from gnomon.decisions.dueling.book import enter, look_up
from gnomon.decisions.dueling.evidence import log_e

TREE, SCREEN, PASS, ROUND, EXPLOIT, FINISHED = range(6)
STAGES = ("tree", "screen", "pass", "round", "exploit", "finished")
OPEN, CLEARED, BEATEN, CAPPED = range(4)  # of a meeting (i, j): goes on, i shown better, j shown better, cap reached
ENDS = ("open", "cleared", "beaten", "capped")
GEOMETRIC, CONSTANT, PER_MATCH = range(3)  # how a tree spends its x over levels; the last two are ablations

TREE_ERROR = 1 / 8  # x of every tree
FIRST_CAP = 32  # n0: duels of a meeting in pass or round 0, before it may end undecided
BETA = 1.5  # growth of the rounds of the strong objective
FOREVER = 2**62

STATE = np.dtype(
    [
        *((name, np.int64) for name in (
            "n", "warm", "then", "replace", "max_duels", "tree_rule", "union", "reuse",  # what was asked for
            "stage", "phase", "level", "size", "position", "winners", "incumbent", "second", "clean",
            "i", "j", "wins", "losses", "wins_before", "losses_before", "met", "cap",  # the meeting at hand
            "duels", "answer", "answered_at", "done", "pairs", "rows",
        )),
        *((name, np.float64) for name in ("delta", "accept", "reject")),
    ]
)  # fmt: skip
TRACE = ("stage", "phase", "i", "j", "wins", "losses", "end")


# --- a meeting -------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def open_meeting(s, keys, counts, i, j, accept, reject, cap, fresh):  # type: ignore[no-untyped-def]
    """i meets j until log e+ >= accept, log e- >= reject, or cap duels (1 or more); from the book unless ``fresh``."""
    s.i, s.j, s.accept, s.reject, s.met = i, j, accept, reject, 0
    s.cap = int(cap)
    s.wins = s.losses = 0
    if not fresh:
        s.wins, s.losses = look_up(keys, counts, s.n, i, j)
    s.wins_before, s.losses_before = s.wins, s.losses


@njit(cache=True, nogil=True)
def standing(s):  # type: ignore[no-untyped-def]
    """Whether the meeting is over, and how it ended."""
    if s.i != s.j:
        plus, minus = log_e(s.wins, s.losses)
        if plus >= s.accept:
            return CLEARED
        if minus >= s.reject:
            return BEATEN
    return CAPPED if s.met >= s.cap else OPEN


@njit(cache=True, nogil=True)
def add_duels(s, wins, losses):  # type: ignore[no-untyped-def]
    """Count duels of the pair at hand. Those of an arm with itself say nothing and are only counted as met."""
    if s.i != s.j:
        s.wins += wins
        s.losses += losses
    s.met += wins + losses
    s.duels += wins + losses


@njit(cache=True, nogil=True)
def close_meeting(s, keys, counts, trace, end):  # type: ignore[no-untyped-def]
    """Enter the meeting into the book and the trace."""
    if s.met == 0:
        return
    wins, losses = s.wins - s.wins_before, s.losses - s.losses_before
    if s.i != s.j:
        s.pairs += enter(keys, counts, s.n, s.i, s.j, wins, losses)
    else:
        wins = s.met
    trace[s.rows] = (s.stage, s.phase, s.i, s.j, wins, losses, end)
    s.rows += 1


# --- TreeAscent ------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def level_error(s):  # type: ignore[no-untyped-def]
    """x_l: geometric, so that it sums to x over the levels; half for early stops, half for majorities at the cap."""
    if s.tree_rule == GEOMETRIC:
        return TREE_ERROR * 2.0**-s.level
    if s.tree_rule == CONSTANT:
        return TREE_ERROR / math.ceil(math.log2(s.n))
    return TREE_ERROR / s.n


@njit(cache=True, nogil=True)
def level_cap(error, gap):  # type: ignore[no-untyped-def]
    """Duels after which the majority is right with probability 1 - error/2 at a gap of ``gap`` or more (Hoeffding)."""
    return float(math.ceil(math.log(2 / error) / (2 * gap**2)))


@njit(cache=True, nogil=True)
def phase_gap(s):  # type: ignore[no-untyped-def]
    return 2.0 ** -(s.phase + 2)


@njit(cache=True, nogil=True)
def begin_tree(s, arms, order, keys, counts, rng):  # type: ignore[no-untyped-def]
    s.stage, s.level, s.size, s.position, s.winners = TREE, 1, s.n, 0, 0
    shuffle(arms, order, rng)
    next_in_tree(s, arms, order, keys, counts, rng)


@njit(cache=True, nogil=True)
def next_in_tree(s, arms, order, keys, counts, rng):  # type: ignore[no-untyped-def]
    """The next match; winners are written over the arms already played, an odd arm goes on without a match."""
    while s.size > 1:
        if s.position + 1 < s.size:
            error = level_error(s)
            test = math.log(2 / error)
            open_meeting(s, keys, counts, order[s.position], order[s.position + 1], test, test,
                         level_cap(error, phase_gap(s)), True)  # fmt: skip
            return
        if s.position < s.size:
            order[s.winners] = order[s.position]
            s.winners += 1
        s.size, s.position, s.winners, s.level = s.winners, 0, 0, s.level + 1
    s.incumbent = order[0]
    if s.warm:
        s.second = 0
        begin_screen(s, arms, order, keys, counts, rng)
    else:
        begin_exploitation(s, arms, order, keys, counts)


# --- the screen ------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def begin_screen(s, arms, order, keys, counts, rng):  # type: ignore[no-untyped-def]
    s.stage, s.position = SCREEN, 0
    shuffle(arms, order, rng)
    next_in_screen(s, arms, order, keys, counts)


@njit(cache=True, nogil=True)
def next_in_screen(s, arms, order, keys, counts):  # type: ignore[no-untyped-def]
    """The incumbent against the next arm, from fresh counts: it was chosen by its earlier wins, which prove nothing."""
    if s.position < s.n and order[s.position] == s.incumbent:
        s.position += 1
    if s.position == s.n:
        s.answer, s.answered_at = s.incumbent, s.duels
        begin_exploitation(s, arms, order, keys, counts)
        return
    error = s.delta / ((s.phase + 1) * (s.phase + 2))
    accept = math.log(2 / error) + (math.log(s.n) if s.union else 0.0)
    cap = float(math.ceil(4 * math.log(8 * s.n / error) / phase_gap(s) ** 2))
    open_meeting(s, keys, counts, s.incumbent, order[s.position], accept, math.log(8.0 * s.n), cap, True)


# --- exploitation ----------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def begin_exploitation(s, arms, order, keys, counts):  # type: ignore[no-untyped-def]
    s.stage = s.then
    if s.stage == FINISHED:
        s.done = 1
        return
    s.phase, s.position, s.clean = 1, 0, 1
    next_in_pass(s, arms, keys, counts)


@njit(cache=True, nogil=True)
def next_in_pass(s, arms, keys, counts):  # type: ignore[no-untyped-def]
    """The incumbent against the next arm of a pass (weak regret) or of a round (strong), the book in hand."""
    while s.position == s.n or arms[s.position] == s.incumbent:
        if s.position < s.n:
            s.position += 1
        elif s.stage == ROUND and s.clean:
            s.answer = s.incumbent
            if s.answered_at < 0:
                s.answered_at = s.duels
            s.stage = EXPLOIT
            open_meeting(s, keys, counts, s.incumbent, s.incumbent, np.inf, np.inf, float(math.floor(grown(s))), True)
            return
        else:
            next_pass(s)
    k, step = s.phase, math.log(2.0) if s.stage == PASS else math.log(BETA)
    reject = math.log(s.n) + (2 if s.stage == PASS else 1) * k * step
    open_meeting(s, keys, counts, s.incumbent, arms[s.position], k * step, reject, FIRST_CAP * grown(s), not s.reuse)


@njit(cache=True, nogil=True)
def next_pass(s):  # type: ignore[no-untyped-def]
    s.phase, s.position, s.clean = s.phase + 1, 0, 1


@njit(cache=True, nogil=True)
def grown(s):  # type: ignore[no-untyped-def]
    """2^k of pass k, beta^l of round l; kept below what overflows."""
    return min(2.0**s.phase if s.stage == PASS else BETA**s.phase, 1e16)


# --- what follows ----------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def shuffle(arms, order, rng):  # type: ignore[no-untyped-def]
    """The arms in random order. Only places in the list are drawn, so that other names for the arms change names only."""
    order[:] = arms
    for k in range(arms.size - 1, 0, -1):
        other = rng.integers(0, k + 1)
        order[k], order[other] = order[other], order[k]


@njit(cache=True, nogil=True)
def follow(s, end, arms, order, keys, counts, trace, rng):  # type: ignore[no-untyped-def]
    """Close the meeting and open the next one."""
    close_meeting(s, keys, counts, trace, end)
    if s.stage == TREE:
        first = end == CLEARED or (end == CAPPED and (s.wins > s.losses or (s.wins == s.losses and rng.random() < 0.5)))
        order[s.winners] = s.i if first else s.j
        s.winners += 1
        s.position += 2
        next_in_tree(s, arms, order, keys, counts, rng)
    elif s.stage == SCREEN:
        if end == CLEARED:
            s.position += 1
            next_in_screen(s, arms, order, keys, counts)
        elif end == BEATEN and s.replace and not s.second:
            s.incumbent, s.second = s.j, 1
            begin_screen(s, arms, order, keys, counts, rng)
        else:
            s.phase += 1
            begin_tree(s, arms, order, keys, counts, rng)
    elif s.stage == EXPLOIT:
        s.stage = ROUND
        next_pass(s)
        next_in_pass(s, arms, keys, counts)
    else:
        # A new incumbent goes on with the arms that are left and does not start over: were the best arm late in the list, a
        # few others that beat each other in circles would keep it from ever being met.
        s.position += 1
        if end == BEATEN:
            s.incumbent = s.j
        if end != CLEARED:
            s.clean = 0
        next_in_pass(s, arms, keys, counts)


@njit(cache=True, nogil=True)
def forward(state, arms, order, keys, counts, trace, rng):  # type: ignore[no-untyped-def]
    """Go on to a meeting that needs a duel, or to the end; False when book or trace must grow first."""
    s = state[0]
    while not s.done:
        end = standing(s)
        if end == OPEN:
            break
        if 2 * (s.pairs + 1) > keys.size or s.rows == trace.shape[0]:
            return False
        follow(s, end, arms, order, keys, counts, trace, rng)
    if s.duels >= s.max_duels:
        s.done = 1
    return True


@njit(cache=True, nogil=True)
def begin(state, arms, order, keys, counts, rng):  # type: ignore[no-untyped-def]
    """The first meeting; a single arm is the answer at once."""
    s = state[0]
    if s.n == 1:
        s.incumbent = s.answer = arms[0]
        s.answered_at = 0
        s.stage, s.done = FINISHED, 1
        return
    begin_tree(s, arms, order, keys, counts, rng)


@njit(cache=True, nogil=True)
def tell(state, first_won, arms, order, keys, counts, trace, rng):  # type: ignore[no-untyped-def]
    """One duel of the pair at hand, and on to the next."""
    s = state[0]
    add_duels(s, 1 if first_won else 0, 0 if first_won else 1)
    return forward(state, arms, order, keys, counts, trace, rng)
