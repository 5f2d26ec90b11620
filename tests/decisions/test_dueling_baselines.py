"""TG-ITE's baselines: against slow references, against duelpy as it is, and their wrong inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gnomon.decisions import PreferenceMatrix, simulate
from gnomon.decisions.dueling import peers
from gnomon.decisions.dueling.baselines import (
    AblatedTGITE,
    _explore,
    explore_verify,
    relative_ucb,
    sequential_elimination,
    winner_stays_strong,
    winner_stays_weak,
)

needs_duelpy = pytest.mark.skipif(not peers.available(), reason="duelpy is not installed (requirements-peers.txt)")


def reference_rucb(p, horizon, alpha, rng):
    """RUCB with the whole matrix of bounds at each step; the weak gap regret it paid, and all its pairs."""
    n = len(p)
    wins, best, pairs = np.zeros((n, n)), -1, []
    for t in range(1, horizon + 1):
        total = wins + wins.T
        with np.errstate(divide="ignore", invalid="ignore"):
            u = np.where(total > 0, wins / total + np.sqrt(alpha * math.log(t) / total), np.inf)
        np.fill_diagonal(u, 0.5)
        able = np.flatnonzero((u >= 0.5).all(axis=1))
        c = int(rng.integers(0, n)) if len(able) == 0 else int(able[0])
        if best not in able:
            best = -1
        if len(able) == 1:
            best = c
        elif len(able) > 1 and best >= 0 and rng.random() < 0.5:
            c = best
        elif len(able) > 1:
            others = able[able != best]
            c = int(others[int(rng.integers(0, len(others)))])
        column = u[:, c].copy()
        column[c] = -1
        d = c
        if column.max() >= 0.5:
            rivals = np.flatnonzero(column == column.max())
            d = int(rivals[int(rng.integers(0, len(rivals))) if len(rivals) > 1 else 0])
        if c != d:
            i, j = (c, d) if rng.random() < p[c, d] else (d, c)
            wins[i, j] += 1
        pairs.append((c, d))
    return pairs


def test_relative_ucb_is_the_algorithm_of_the_paper():
    """Same draws, same pairs: the fast path keeps witnesses instead of all bounds."""
    matrix = PreferenceMatrix.cyclic(6, 0.25, random_state=2)
    pairs = reference_rucb(matrix.p, 4000, 0.51, np.random.default_rng(3))
    gaps = matrix.gaps
    strong = np.cumsum([(gaps[c] + gaps[d]) / 2 for c, d in pairs])
    found = relative_ucb(matrix, 4000, times=np.arange(1, 4001), random_state=3)
    assert len({p for p in pairs if p[0] == p[1]}) == 1  # in the end the best arm beside itself
    assert found.strong_gap == pytest.approx(strong, abs=1e-9)
    assert found.incumbent == found.winner


def test_winner_stays_goes_by_rounds():
    """In round l every arm but the leader falls to -l, then the leader meets itself floor(beta^l) times."""
    sure = PreferenceMatrix(np.tri(4, 4, -1) + 0.5 * np.eye(4))
    weak = winner_stays_weak(sure, 200, random_state=0)
    assert weak.incumbent == weak.winner == 3
    assert weak.weak_binary[-1] <= 3
    strong = winner_stays_strong(sure, 1000, beta=2, random_state=0)
    assert strong.strong_binary[-1] < 60  # nine rounds of three duels and the first pass
    single = winner_stays_strong(sure, 1000, beta=2, exploration="duel", random_state=0)
    assert single.strong_binary[-1] <= strong.strong_binary[-1]


def test_identification_finds_the_best_arm():
    wrong, fewer = 0, 0
    for seed in range(20):
        matrix = PreferenceMatrix.cyclic(6, 0.25, random_state=seed)
        known = sequential_elimination(matrix, 0.25, 0.05 / 6, random_state=seed)
        verified = explore_verify(matrix, 0.05, random_state=seed)
        ours = simulate(AblatedTGITE(6, random_state=seed), matrix, random_state=seed)
        assert ours.correct
        wrong += (not known.correct) + (not verified.correct)
        fewer += ours.n_duels < verified.n_duels
    assert wrong <= 2
    assert fewer >= 18


def test_horizons_cut_identification_short():
    matrix = PreferenceMatrix.flat(6, 0.1, random_state=0)
    for found in (
        explore_verify(matrix, horizon=50, random_state=0),
        sequential_elimination(matrix, 0.1, 0.01, horizon=50),
    ):
        assert (found.n_duels, found.best, found.duels_to_answer) == (50, None, None)


def test_ablations_cost_more():
    def duels(n, **options):
        return np.mean([simulate(AblatedTGITE(n, random_state=s, **options), PreferenceMatrix.flat(n, 0.15, random_state=s),
                                 random_state=s).n_duels for s in range(8)])  # fmt: skip

    assert duels(64, tree="per match", union=True) > 1.3 * duels(64)
    fresh, kept = (
        np.mean([simulate(AblatedTGITE(8, objective="strong", reuse=reuse, random_state=s),
                          PreferenceMatrix.flat(8, 0.2, random_state=s), 20_000, random_state=s).strong_gap[-1] for s in range(8)])
        for reuse in (False, True)
    )  # fmt: skip
    assert fresh > 1.5 * kept


@needs_duelpy
@pytest.mark.parametrize(("name", "ours", "options"), [
    ("WS-W", winner_stays_weak, {}),
    ("WS-S", lambda *a, **o: winner_stays_strong(*a, beta=1.5, exploration="duel", **o), {"exploitation_factor": 1.5}),
])  # fmt: skip
def test_winner_stays_has_the_regret_of_duelpy(name, ours, options):
    """Equal mean regret within three standard errors."""
    kind = "weak_binary" if name == "WS-W" else "strong_gap"
    pairs = []
    for seed in range(60):
        matrix = PreferenceMatrix.cyclic(8, 0.2, random_state=seed)
        theirs = peers.duelpy(name, matrix, 400, random_state=seed, **options)
        pairs.append((getattr(ours(matrix, 400, random_state=seed), kind)[-1], getattr(theirs, kind)[-1]))
    d = np.diff(pairs, axis=1).ravel()
    assert abs(d.mean()) < 3 * d.std(ddof=1) / math.sqrt(len(d))


@needs_duelpy
def test_sequential_elimination_has_the_duels_of_duelpy():
    ours, theirs = [], []
    for seed in range(60):
        matrix = PreferenceMatrix.cyclic(6, 0.3, random_state=seed)
        ours.append(sequential_elimination(matrix, 0.3, 0.05, random_state=seed).n_duels)
        theirs.append(peers.duelpy("sequential elimination", matrix, 10**4, random_state=seed, failure_probability=0.05,
                                   epsilon_upper=0.3, time_horizon=None).n_duels)  # fmt: skip
    d = np.subtract(ours, theirs)
    assert abs(d.mean()) < 3 * d.std(ddof=1) / math.sqrt(len(d))


@needs_duelpy
def test_exploration_has_the_duels_of_duelpy():
    ours, theirs = [], []
    for seed in range(12):
        matrix = PreferenceMatrix.cyclic(3, 0.4, random_state=seed)
        books = (
            np.empty((4, 0)),
            np.empty(0, np.int64),
            np.zeros(2, np.int64),
            np.zeros(4),
            matrix.gaps,
            matrix.condorcet_winner,
        )
        best, conqueror = _explore(matrix.p, np.random.default_rng(seed), 0.3, 10**6, *books)
        assert best == matrix.condorcet_winner
        assert all(conqueror[i] != i for i in range(3))
        ours.append(books[2][0])
        judge = peers._Judge(matrix, 10**6, np.array([10**6]), seed + 500)
        explorer = peers.algorithms().VerificationBasedCondorcet.CondorcetExplorer(
            judge, 0.3, np.random.RandomState(seed)
        )
        while not explorer.is_finished():
            explorer.step()
        theirs.append(judge.ledger.duels)
    d = np.subtract(ours, theirs)
    assert abs(d.mean()) < 3 * d.std(ddof=1) / math.sqrt(len(d))


@needs_duelpy
def test_every_peer_runs_through_the_adapter():
    matrix = PreferenceMatrix.flat(5, 0.3, random_state=0)
    for name in peers.REGRET:
        found = peers.duelpy(name, matrix, 300, random_state=0)
        assert 0 < found.n_duels <= 300, name
        assert found.weak_gap[-1] >= 0


@pytest.mark.parametrize(("call", "message"), [
    (lambda m: winner_stays_weak(m, 0), "horizon: got 0"), (lambda m: winner_stays_strong(m, 9, beta=1), "beta: got 1"),
    (lambda m: winner_stays_strong(m, 9, exploration="x"), "exploration: got 'x'"),
    (lambda m: relative_ucb(m, 9, alpha=0.5), "alpha: got 0.5"), (lambda m: explore_verify(m, 0.6), "delta: got 0.6"),
    (lambda m: sequential_elimination(m, 0, 0.1), "gap: got 0"), (lambda m: sequential_elimination(m, 0.1, 0), "error: got 0"),
    (lambda m: relative_ucb(PreferenceMatrix([[0.5]]), 5), "it has one arm"),
    (lambda m: relative_ucb(PreferenceMatrix(np.full((3, 3), 0.5)), 5), "no Condorcet winner"),
])  # fmt: skip
def test_wrong_inputs(call, message):
    with pytest.raises(ValueError, match=message):
        call(PreferenceMatrix.flat(3))
