"""TG-ITE: its test, its phases, asking and telling, keeping and resuming, and every wrong input."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

from gnomon.decisions import TGITE, PreferenceMatrix, log_e_value, simulate
from gnomon.decisions.dueling import book, phases
from gnomon.decisions.dueling.simulation import log_spaced
from gnomon.stats import binomial

MATRICES = {
    "flat": PreferenceMatrix.flat,
    "cyclic": PreferenceMatrix.cyclic,
    "bt": PreferenceMatrix.random_bradley_terry,
}


def interview(alg, p, judge, most=10**9):
    """Ask and tell with outcomes drawn as ``simulate(block=False)`` draws them."""
    for _ in range(most):
        if alg.done:
            break
        i, j = alg.ask()
        alg.tell(i if i == j or judge.random() < p[i, j] else j)
    return alg


# --- the e-value -----------------------------------------------------------------------------------------------------


def test_hand_cases():
    assert np.exp(log_e_value([0, 1, 0, 2], [0, 0, 1, 0])) == pytest.approx([1, 1.5, 0.5, 7 / 3], rel=1e-13)


@given(st.integers(0, 60), st.integers(0, 60), st.floats(0, 0.5))
@settings(max_examples=200, deadline=None)
def test_martingale_at_one_half_and_supermartingale_below(w, losses, p):
    now, up, down = np.exp(log_e_value([w, w + 1, w], [losses, losses, losses + 1]))
    assert (up + down) / 2 == pytest.approx(now, rel=1e-12)
    assert p * up + (1 - p) * down <= now * (1 + 1e-12)


@given(st.integers(0, 5000), st.integers(0, 5000))
@settings(max_examples=200, deadline=None)
def test_agrees_with_the_incomplete_beta_function(w, losses):
    n = w + losses
    tail = scipy.special.betainc(losses + 1, w + 1, 0.5)
    if tail > 1e-280:
        expected = (n + 1) * math.log(2) + scipy.special.betaln(w + 1, losses + 1) + math.log(tail)
        assert float(log_e_value(w, losses)) == pytest.approx(expected, rel=1e-8, abs=1e-8)


def test_extreme_counts_stay_finite_and_monotone():
    wins = np.array([0, 10**3, 10**5, 10**6, 5 * 10**6])
    found = log_e_value(wins, 10**6)
    assert np.isfinite(found).all()
    assert (np.diff(found) > 0).all()
    assert float(log_e_value(10**7, 0)) == pytest.approx((10**7 + 1) * math.log(2) - math.log(10**7 + 1), rel=1e-9)


def test_crossing_probability_by_dynamic_programming():
    """P(ever e+ >= 20 within 2000 fair duels), exactly."""
    n = 2000
    alive, crossed = np.array([1.0]), 0.0
    for m in range(1, n + 1):
        alive = np.concatenate([alive, [0]]) / 2 + np.concatenate([[0], alive]) / 2
        over = log_e_value(np.arange(m + 1), m - np.arange(m + 1)) >= math.log(20)
        crossed += alive[over].sum()
        alive[over] = 0
    assert crossed == pytest.approx(0.037384, abs=1e-6)
    assert crossed <= 0.05


@pytest.mark.parametrize(("wins", "losses", "name"), [(-1, 0, "wins"), (0, 1.5, "losses"), (np.nan, 0, "wins")])
def test_counts_are_whole(wins, losses, name):
    with pytest.raises(ValueError, match=f"{name}: got .* expected whole numbers"):
        log_e_value(wins, losses)


# --- the phases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["bai", "weak", "strong", "joint"])
def test_one_arm_is_the_answer_at_once(objective):
    alg = TGITE(1, objective)
    assert (alg.done, alg.best_, alg.n_duels_, alg.identified_at_, alg.confidence_ in (1.0, None)) == (
        True,
        0,
        0,
        0,
        True,
    )
    assert len(alg.trace_) == 0
    with pytest.raises(RuntimeError, match="nothing is left to ask"):
        alg.ask()


def test_two_arms_with_a_sure_winner_by_hand():
    sure = PreferenceMatrix([[0.5, 1], [0, 0.5]])
    alg = TGITE(2, random_state=0)
    found = simulate(alg, sure, block=False)
    assert (found.n_duels, found.best, alg.trace_["wins"].tolist()) == (
        17,
        0,
        [8, 9] if alg.trace_["i"][0] == 0 else [0, 9],
    )
    alg = TGITE(2, random_state=0)
    simulate(alg, sure)
    assert (alg.trace_["wins"] + alg.trace_["losses"]).tolist() == [8, 12]
    assert alg.phase_ == ("finished", 0)
    assert alg.confidence_ == 0.95


@pytest.mark.parametrize("objective", ["bai", "strong", "weak", "joint"])
def test_a_sure_total_order_gives_the_maximum(objective):
    for n in range(2, 41):
        rank = np.random.default_rng(n).permutation(n)
        matrix = PreferenceMatrix((rank[:, None] > rank[None, :]) + 0.5 * np.eye(n))
        for seed in range(3):
            alg = TGITE(n, objective, random_state=seed)
            found = simulate(alg, matrix, 100 * n, random_state=seed)
            assert found.best == rank.argmax() == found.winner
            tree = alg.trace_.query("stage == 'tree'")
            assert len(tree) == n - 1  # a bye eliminates nobody
            assert (
                len({b if lost else a for a, b, lost in zip(tree.i, tree.j, tree.wins > tree.losses, strict=True)})
                == n - 1
            )


def levels(n):
    while n > 1:
        yield n // 2
        n = (n + 1) // 2


@given(st.integers(2, 70), st.sampled_from(sorted(MATRICES)), st.integers(0, 10**6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_tree_keeps_to_its_caps(n, kind, seed, block):
    alg = TGITE(n, "strong", random_state=seed)
    simulate(alg, MATRICES[kind](n, random_state=seed), 2000 * n, block=block, random_state=seed)
    tree = alg.trace_.query("stage == 'tree'")
    at = 0
    bound = 0
    for level, matches in enumerate(levels(n), 1):
        x = 2.0**-level / 8
        cap = math.ceil(math.log(2 / x) / (2 / 16))
        rows = tree.iloc[at : at + matches]
        assert (rows.wins + rows.losses <= cap).all()
        at, bound = at + matches, bound + matches * cap
    assert at == len(tree) == n - 1
    assert (
        (tree.wins + tree.losses).sum()
        <= bound
        <= n * (math.log(16) + 2 * math.log(2)) / (2 / 16) + 80 * math.log2(n) ** 2
    )


@given(st.integers(2, 40), st.floats(0.01, 0.1), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_trees_of_later_phases_keep_to_their_caps(n, gap, seed):
    """Each phase halves g: its first matches may take four times as long."""
    alg = TGITE(n, max_duels=10**7, random_state=seed)
    simulate(alg, PreferenceMatrix.flat(n, gap, random_state=seed), random_state=seed)
    trace = alg.trace_
    for phase, rows in trace[trace.stage == "tree"].groupby("phase"):
        caps = [math.ceil(math.log(2 / (2.0**-level / 8)) / (2 * 4.0 ** -(phase + 2)))
                for level, matches in enumerate(levels(n), 1) for _ in range(matches)]  # fmt: skip
        assert len(rows) == n - 1
        assert (rows.wins + rows.losses <= caps).all()
    screens = trace[trace.stage == "screen"]
    assert (screens.groupby("phase")["i"].nunique() <= 2).all()
    assert set(trace.phase) == set(range(trace.phase.max() + 1))


def test_the_best_arm_survives_the_tree():
    """At a gap of 1/4 the tree of phase 0 is wrong with probability x = 1/8 at most."""
    wrong = 0
    for seed in range(400):
        alg = TGITE(33, "strong", random_state=seed)
        matrix = PreferenceMatrix.flat(33, 0.25, random_state=seed)
        simulate(alg, matrix, 33 * 60, random_state=seed)
        last = alg.trace_.query("stage == 'tree'").iloc[-1]
        first = last.wins > last.losses if last.end == "capped" else last.end == "cleared"
        wrong += (last.i if first else last.j) != matrix.condorcet_winner
    assert binomial(wrong, 400).high <= 1 / 8


@pytest.mark.parametrize(
    ("objective", "kind"), [("bai", "cyclic"), ("weak", "flat"), ("strong", "cyclic"), ("joint", "bt")]
)
def test_other_names_for_the_arms_change_names_only(objective, kind):
    n = 12
    matrix = MATRICES[kind](n, random_state=3)
    name = np.random.default_rng(5).permutation(n)
    back = np.argsort(name)
    renamed = PreferenceMatrix(matrix.p[np.ix_(back, back)])
    one, two = (TGITE(n, objective, random_state=1) for _ in range(2))
    two._arms = name.copy()  # the order in which arms are listed before anything is drawn
    simulate(one, matrix, 30_000, block=False, random_state=2)
    simulate(two, renamed, 30_000, block=False, random_state=2)
    expected = one.trace_.assign(i=name[one.trace_.i], j=name[one.trace_.j])
    assert two.trace_.equals(expected)
    assert two.incumbent_ == name[one.incumbent_]


@pytest.mark.parametrize("objective", ["bai", "weak", "strong", "joint"])
def test_asking_and_telling_is_the_simulation_duel_by_duel(objective):
    matrix = PreferenceMatrix.cyclic(9, 0.2, random_state=4)
    one, two = (TGITE(9, objective, random_state=6, max_duels=3000) for _ in range(2))
    simulate(one, matrix, block=False, random_state=np.random.default_rng(7))
    interview(two, matrix.p, np.random.default_rng(7))
    assert one.trace_.equals(two.trace_)
    assert one.state_dict() == {**two.state_dict(), "asked": False}


def test_screens_do_not_trust_the_past_and_regret_objectives_do():
    """Fresh counts in every screen; in passes only what is missing is played."""
    matrix = PreferenceMatrix.flat(8, 0.2, random_state=0)
    alg = TGITE(8, "joint", random_state=0)
    simulate(alg, matrix, 20_000, block=False, random_state=0)
    trace = alg.trace_
    screen = trace.query("stage == 'screen' and end == 'cleared'")
    assert (log_e_value(screen.wins, screen.losses) >= math.log(80)).all()
    later = trace[trace.stage == "pass"]
    assert (later.wins + later.losses).median() < 100
    met = {}
    for row in trace.itertuples():
        key = tuple(sorted((row.i, row.j)))
        a, b = met.get(key, (0, 0))
        won = (row.wins, row.losses) if row.i == key[0] else (row.losses, row.wins)
        met[key] = (a + won[0], b + won[1])
        if row.stage == "pass" and row.end == "cleared":
            w, x = met[key] if row.i == key[0] else met[key][::-1]
            assert float(log_e_value(w, x)) >= row.phase * math.log(2) - 1e-9
    assert all(alg.record_of(*key) == counts for key, counts in met.items())
    assert (later.i == alg.best_).all()


def test_wrong_answers_are_rare_where_many_arms_nearly_tie():
    """N = 64, p_aj = 0.51, delta = 0.1: reusing the counts that made the candidate would break the guarantee."""
    runs, wrong = 100, 0
    for seed in range(runs):
        matrix = PreferenceMatrix.flat(64, 0.01, random_state=seed)
        found = simulate(TGITE(64, delta=0.1, max_duels=10**8, random_state=seed), matrix, random_state=seed)
        assert found.best is not None
        wrong += not found.correct
    assert binomial(wrong, runs).high <= 0.1


def test_error_rate_on_small_matrices():
    wrong = 0
    for seed in range(400):
        matrix = PreferenceMatrix.cyclic(5, 0.15, random_state=seed)
        wrong += not simulate(TGITE(5, delta=0.2, random_state=seed), matrix, random_state=seed).correct
    assert binomial(wrong, 400).low <= 0.2
    assert wrong <= 80


def test_circles_do_not_hide_the_best_arm():
    """A best arm late in the list, behind arms that beat each other in circles, is met in every round and pass."""
    n = 9
    p = np.full((n, n), 0.5)
    for i in range(n):
        for j in range(i):
            p[i, j] = 0.9 if (i - j) % 3 == 1 else 0.1 if (i - j) % 3 == 2 else 0.5
            p[j, i] = 1 - p[i, j]
    p[-1], p[:, -1] = 0.6, 0.4
    matrix = PreferenceMatrix(p)
    assert matrix.condorcet_winner == n - 1
    assert matrix.three_cycles() > 0
    for seed in range(30):
        for objective in ("strong", "weak"):
            found = simulate(
                TGITE(n, objective, warm_delta=None, random_state=seed), matrix, 200_000, random_state=seed
            )
            assert found.incumbent == n - 1


def test_joint_answers_as_bai_does_and_weak_as_joint():
    matrix = PreferenceMatrix.cyclic(16, random_state=1)
    bai = simulate(TGITE(16, "bai", 0.01, random_state=3), matrix, random_state=4)
    joint, weak = (
        simulate(TGITE(16, objective, 0.01, warm_delta=0.01, random_state=3), matrix, 10**5, random_state=4)
        for objective in ("joint", "weak")
    )
    assert bai.n_duels == bai.duels_to_answer == joint.duels_to_answer == weak.duels_to_answer
    assert bai.best == joint.best == joint.winner
    assert np.array_equal(joint.weak, weak.weak)


# --- regret ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [True, False])
@pytest.mark.parametrize("objective", ["bai", "weak", "strong", "joint"])
def test_regret_is_what_the_trace_says(objective, block):
    matrix = PreferenceMatrix.cyclic(10, random_state=2)
    alg = TGITE(10, objective, random_state=3)
    found = simulate(alg, matrix, 20_000, block=block, random_state=4)
    trace, gaps, a = alg.trace_, matrix.gaps, found.winner
    n = (trace.wins + trace.losses).to_numpy()
    di, dj, has_i, has_j = gaps[trace.i], gaps[trace.j], (trace.i == a).to_numpy(), (trace.j == a).to_numpy()
    each = {"weak_gap": np.minimum(di, dj), "strong_gap": (di + dj) / 2, "weak_binary": ~(has_i | has_j),
            "strong_binary": ~(has_i & has_j)}  # fmt: skip
    times = np.cumsum(n)
    for name, per_duel in each.items():
        assert getattr(found, name)[-1] == pytest.approx((n * per_duel).sum(), rel=1e-9)
        whole = np.interp(found.times, np.append(0, times), np.append(0, np.cumsum(n * per_duel)))
        assert getattr(found, name) == pytest.approx(whole, rel=1e-9, abs=1e-9)
    assert n.sum() == found.n_duels == alg.n_duels_
    assert found.weak is found.weak_gap
    assert (np.diff(found.weak) >= 0).all()


def test_an_arm_beside_itself_costs_nothing_and_says_nothing():
    matrix = PreferenceMatrix.flat(4, 0.3, random_state=0)
    alg = TGITE(4, "strong", regret="binary", random_state=0)
    found = simulate(alg, matrix, 10**5, random_state=0)
    alone = alg.trace_.query("stage == 'exploit'")
    assert (alone.i == found.winner).all()
    assert (alone.i == alone.j).all()
    assert alone.wins.sum() > 90_000
    assert alg.record_of(found.winner, found.winner) == (0, 0)
    assert found.strong[-1] < 10_000
    assert found.strong is found.strong_binary


def test_times():
    assert log_spaced(1).tolist() == [1]
    assert {10, 40, 1000, 4000, 10_000} <= set(log_spaced(10_000))
    found = simulate(TGITE(5, "weak", random_state=0), PreferenceMatrix.flat(5, 0.3), 5000, times=[10, 1000, 5000])
    assert found.times.tolist() == [10, 1000, 5000]
    assert found.at("weak_binary", 10) == found.weak_binary[0]
    with pytest.raises(ValueError, match="time: got 11"):
        found.at("weak", 11)
    for times in ([], [0], [5, 5]):
        with pytest.raises(ValueError, match="times: expected ascending"):
            simulate(TGITE(5), PreferenceMatrix.flat(5), 10, times=times)


def test_blocks_cost_about_a_fifth_more():
    spent = {}
    for block in (True, False):
        spent[block] = np.mean([simulate(TGITE(16, random_state=s), PreferenceMatrix.flat(16, random_state=s), block=block,
                                         random_state=s).n_duels for s in range(200)])  # fmt: skip
    assert 1 < spent[True] / spent[False] < 1.4


def test_a_run_goes_on_where_another_stopped():
    """In two calls or one, with people in between."""
    matrix = PreferenceMatrix.flat(12, random_state=1)
    one, two = (TGITE(12, "weak", random_state=2) for _ in range(2))
    judge = np.random.default_rng(3)
    simulate(one, matrix, 9000, block=False, random_state=np.random.default_rng(3))
    first = simulate(two, matrix, 2500, block=False, random_state=judge)
    interview(two, matrix.p, judge, 1500)
    simulate(two, matrix, 5000, block=False, random_state=judge)
    assert one.trace_.equals(two.trace_)
    assert first.n_duels == 2500


def test_a_hundred_thousand_arms_fit():
    """The book holds the pairs that met."""
    n = 100_000
    scores = np.random.default_rng(0).uniform(size=n)
    scores[7] += 3
    alg = TGITE(n, random_state=0)
    found = simulate(alg, PreferenceMatrix.bradley_terry(scores), random_state=1)
    assert found.best == 7
    assert found.n_duels < 100 * n
    assert alg._keys.nbytes + alg._wins.nbytes < 20e6


# --- keeping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".json", ".npz"])
@pytest.mark.parametrize("objective", ["bai", "weak", "strong"])
def test_saving_and_resuming_in_the_middle_of_a_match(tmp_path, objective, suffix):
    matrix = PreferenceMatrix.cyclic(9, 0.2, random_state=8)
    whole = interview(TGITE(9, objective, max_duels=2500, random_state=5), matrix.p, np.random.default_rng(6))
    judge = np.random.default_rng(6)
    alg = TGITE(9, objective, max_duels=2500, random_state=5)
    while not alg.done:
        interview(alg, matrix.p, judge, 137)
        if not alg.done:
            pair = alg.ask()
            alg.save(tmp_path / f"state{suffix}")
            alg = TGITE.load(tmp_path / f"state{suffix}")
            alg.tell(pair[0] if pair[0] == pair[1] or judge.random() < matrix.p[pair] else pair[1])
    assert alg.trace_.equals(whole.trace_)
    assert alg.state_dict() == whole.state_dict()
    assert alg.best_ == whole.best_
    assert not list(tmp_path.glob("*.json?*")) + list(tmp_path.glob("*.npz?*"))


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_any_generator_can_be_kept(kind):
    alg = TGITE(5, random_state=np.random.Generator(kind(3)))
    again = TGITE.from_state_dict(json.loads(json.dumps(alg.state_dict())))
    assert again._rng.random() == alg._rng.random()


def test_damaged_states_are_refused(tmp_path):
    alg = interview(TGITE(6, random_state=0), PreferenceMatrix.flat(6).p, np.random.default_rng(0), 300)
    good = alg.state_dict()
    assert TGITE.from_state_dict(good).state_dict() == good

    def change(**parts):
        return json.loads(json.dumps({**good, **parts}))

    bad = [
        {}, [], change(format="other"), change(parameters={**good["parameters"], "delta": 2}),
        change(parameters={**good["parameters"], "n_arms": 5}), change(order=[0, 1, 2, 3, 4, 99]), change(arms=[0] * 6),
        change(record={**good["record"], "i": 40}), change(record={**good["record"], "pairs": 1}),
        change(record={k: v for k, v in good["record"].items() if k != "met"}), change(trace=good["trace"][1:]),
        change(pairs=[[0, 77]] * len(good["pairs"])), change(generator={"bit_generator": "os"}), change(generator={}),
        change(record={**good["record"], "stage": 9}),
    ]  # fmt: skip
    for state in bad:
        with pytest.raises(ValueError, match=r"state: |delta: got 2|generator: got|expected"):
            TGITE.from_state_dict(state)
    for name, data in (("a.json", b"{"), ("b.npz", b"PK"), ("c.json", b"\xff\xfe")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name} holds no state"):
            TGITE.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        TGITE.load(tmp_path / "none.json")
    with pytest.raises(ValueError, match=r"ends in \.json or \.npz"):
        alg.save(tmp_path / "state.pkl")


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 3), st.integers(0, 3)), max_size=200))
@settings(max_examples=50, deadline=None)
def test_the_book_is_a_dictionary(meetings):
    keys, wins = book.make(4)
    truth, pairs = {}, 0
    for i, j, a, b in meetings:
        if i == j:
            continue
        if 2 * (pairs + 1) > keys.size:
            keys, wins = book.grow(keys, wins)
        pairs += book.enter(keys, wins, 41, i, j, a, b)
        old = truth.get((i, j), (0, 0))
        truth[i, j] = (old[0] + a, old[1] + b)
        truth[j, i] = truth[i, j][::-1]
    assert all(tuple(book.look_up(keys, wins, 41, i, j)) == c for (i, j), c in truth.items())
    assert tuple(book.look_up(keys, wins, 41, 3, 3)) == (0, 0)
    held, counts = book.entries(keys, wins, 41)
    assert {tuple(p): tuple(c) for p, c in zip(held.tolist(), counts.tolist(), strict=True)} == {
        p: c for p, c in truth.items() if p[0] < p[1]
    }
    again = book.restore(held, counts, 41)
    assert all(tuple(book.look_up(*again, 41, i, j)) == c for (i, j), c in truth.items())


# --- wrong input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    ({"n_arms": 0}, "n_arms: got 0; expected an integer of 1 or more"),
    ({"n_arms": 2.5}, "n_arms: got 2.5"), ({"n_arms": True}, "n_arms: got True"),
    ({"delta": 0}, r"delta: got 0; expected a probability in \(0, 0.5\)"), ({"delta": 0.5}, "delta: got 0.5"),
    ({"delta": float("nan")}, "delta: got nan"), ({"delta": "x"}, "delta: got 'x'"),
    ({"warm_delta": 0.7}, "warm_delta: got 0.7"), ({"objective": "best"}, "objective: got 'best'; expected one of bai, weak"),
    ({"regret": "strong"}, "regret: got 'strong'; expected one of gap, binary"), ({"max_duels": 0}, "max_duels: got 0"),
    ({"random_state": "x"}, "random_state: got 'x'; expected an integer of 0 or more"), ({"random_state": -1}, "random_state: got -1"),
])  # fmt: skip
def test_parameters_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        TGITE(**{"n_arms": 4, **options})


def test_replace_is_a_truth_value():
    with pytest.raises(TypeError, match="replace: got 1"):
        TGITE(3, replace=1)


def test_telling_needs_a_pair_and_one_of_it():
    alg = TGITE(5, random_state=0)
    with pytest.raises(RuntimeError, match="no pair was asked for"):
        alg.tell(0)
    pair = alg.ask()
    assert alg.ask() == pair
    other = next(k for k in range(5) if k not in pair)
    for wrong in (other, -1, "a", True, None):
        with pytest.raises(ValueError, match=rf"expected one of the pair \({pair[0]}, {pair[1]}\)"):
            alg.tell(wrong)
    assert alg.n_duels_ == 0
    alg.tell(pair[1])
    assert alg.record_of(*pair) == (0, 1)
    with pytest.raises(RuntimeError, match="call ask"):
        alg.tell(pair[1])
    for i, j in ((0, 5), (-1, 2), ("a", 0)):
        with pytest.raises(ValueError, match=r"expected an arm in 0\.\.4"):
            alg.record_of(i, j)


@pytest.mark.parametrize(("p", "message"), [
    ([[0.5, 0.6]], r"shape \(1, 2\); expected a square"), ([0.5], "expected a square"), ([], "expected a square"),
    ([[0.5, 0.6], [0.5, 0.5]], r"p\[0, 1\] is 0.6: expected p_ij \+ p_ji = 1, got 0.5"),
    ([[0.5, 1.2], [-0.2, 0.5]], r"p\[0, 1\] is 1.2: expected a probability"),
    ([[0.5, float("nan")], [0.5, 0.5]], r"p\[0, 1\] is nan"), ([["a", 1], [2, 3]], "expected a square array of numbers"),
])  # fmt: skip
def test_matrices_that_are_none(p, message):
    with pytest.raises(ValueError, match=message):
        PreferenceMatrix(p)


def test_matrices_without_a_condorcet_winner():
    circle = PreferenceMatrix([[0.5, 0.9, 0.1], [0.1, 0.5, 0.9], [0.9, 0.1, 0.5]])
    assert (circle.condorcet_winner, circle.three_cycles()) == (None, 1)
    assert np.isnan(circle.gap)
    with pytest.raises(ValueError, match="no Condorcet winner"):
        simulate(TGITE(3), circle)
    with pytest.warns(UserWarning, match="no Condorcet winner"), pytest.raises(ValueError, match="horizon: needed"):
        simulate(TGITE(3), circle, check=False)
    alg = TGITE(3, max_duels=500, random_state=0)
    with (
        pytest.warns(ConvergenceWarning, match="no arm was identified in max_duels = 500"),
        pytest.warns(UserWarning, match="NaN"),
    ):
        found = simulate(alg, circle, check=False, random_state=0)
    assert (alg.done, alg.best_, alg.n_duels_, found.winner) == (True, None, 500, None)
    assert alg.incumbent_ in range(3)
    assert np.isnan(found.weak).all()


def test_ties_with_the_best_arm_end_at_max_duels():
    alg = TGITE(4, max_duels=20_000, random_state=0)
    with pytest.warns(ConvergenceWarning):
        interview(alg, np.full((4, 4), 0.5), np.random.default_rng(0))
    assert (alg.done, alg.best_, alg.confidence_, alg.identified_at_, alg.n_duels_) == (True, None, None, None, 20_000)
    assert alg.incumbent_ in range(4)
    with pytest.raises(RuntimeError, match="after 20000 duels"):
        alg.ask()


def test_more_duels_can_be_allowed():
    matrix = PreferenceMatrix.cyclic(6, 0.2, random_state=3)
    whole = interview(TGITE(6, random_state=1), matrix.p, np.random.default_rng(2))
    judge = np.random.default_rng(2)
    alg = TGITE(6, max_duels=50, random_state=1)
    with pytest.warns(ConvergenceWarning):
        interview(alg, matrix.p, judge)
    assert (alg.done, alg.n_duels_) == (True, 50)
    alg.allow(60)
    with pytest.warns(ConvergenceWarning):
        interview(alg, matrix.p, judge)
    alg.allow(None)
    interview(alg, matrix.p, judge)
    assert alg.trace_.equals(whole.trace_)
    assert TGITE.from_state_dict(alg.state_dict()).best_ == whole.best_
    alg.allow(10)  # an answer stays one
    assert (alg.done, alg.best_) == (True, whole.best_)
    with pytest.raises(ValueError, match="max_duels: got 0"):
        alg.allow(0)


def test_simulations_that_cannot_be():
    flat = PreferenceMatrix.flat(4)
    with pytest.raises(TypeError, match="matrix: got ndarray; expected a PreferenceMatrix"):
        simulate(TGITE(4), flat.p)
    with pytest.raises(TypeError, match="alg: got NoneType; expected a TGITE"):
        simulate(None, flat)
    with pytest.raises(ValueError, match="random_state: got -3"):
        PreferenceMatrix.flat(4, random_state=-3)
    with pytest.raises(ValueError, match="it has 4 arms; the bandit has 5"):
        simulate(TGITE(5), flat)
    with pytest.raises(ValueError, match="horizon: needed for objective 'weak'"):
        simulate(TGITE(4, "weak"), flat)
    for horizon in (-1, 2.5, True):
        with pytest.raises(ValueError, match="horizon: got"):
            simulate(TGITE(4), flat, horizon)
    assert simulate(TGITE(4), flat, 0).n_duels == 0


# --- matrices --------------------------------------------------------------------------------------------------------


def test_votes_results_and_scores():
    votes = PreferenceMatrix.from_votes(["a", "a", "b"], ["b", "b", "a"])
    assert votes.labels == ["a", "b"]
    assert votes.p[0, 1] == pytest.approx(3 / 5)
    results = PreferenceMatrix.from_results([[0, 3, 0], [1, 0, 0], [0, 0, 0]], [[0, 4, 0], [4, 0, 0], [0, 0, 0]])
    assert results.p[0, 1] == pytest.approx(5 / 8)
    assert results.p[0, 2] == 0.5
    scores = PreferenceMatrix.from_scores([[1, 2, 3, 4], [1, 3, 1, 1]])
    assert scores.p[0, 1] == pytest.approx((0.5 + 0 + 1 + 1) / 4)
    assert (scores.condorcet_winner, scores.gap) == (0, 0.125)
    assert scores.restricted([1, 0]).condorcet_winner == 1
    for call, message in (
        (lambda: PreferenceMatrix.from_votes(["a"], []), "expected equal lengths"),
        (lambda: PreferenceMatrix.from_votes(["a"], ["a"]), "vote 0: 'a' against itself"),
        (lambda: PreferenceMatrix.from_votes(["a"], ["b"], 0), "smoothing: got 0"),
        (lambda: PreferenceMatrix.from_results([[0, 1]]), "expected"),
        (lambda: PreferenceMatrix.from_results([[0, 1], [1, 0]], [[0, 1], [2, 0]]), "draws the same both ways"),
        (lambda: PreferenceMatrix.from_scores([[1, np.nan]]), "expected finite numbers"),
        (lambda: PreferenceMatrix.bradley_terry([[1]]), "expected finite numbers"),
        (lambda: PreferenceMatrix(votes.p, ["a", "a"]), "labels: got 2 names, 1 of them different"),
        (lambda: PreferenceMatrix.flat(0), "n_arms: got 0"),
        (lambda: PreferenceMatrix.cyclic(3, 0.7), "gap: got 0.7"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_generators():
    assert PreferenceMatrix.flat(500, random_state=3).condorcet_winner != int(np.random.default_rng(3).integers(500))
    for seed in range(5):
        flat, cyclic, bt = (make(30, random_state=seed) for make in MATRICES.values())
        assert flat.gap == pytest.approx(0.1)
        assert cyclic.gap == pytest.approx(0.1)
        assert cyclic.three_cycles() > 100
        assert bt.gap >= 1 / (1 + math.exp(-0.4)) - 0.5
        assert bt.p[3, 5] == pytest.approx(1 / (1 + math.exp(bt.scores[5] - bt.scores[3])))
        hard = PreferenceMatrix.hard_condorcet(20, random_state=seed)
        assert hard.gap == pytest.approx(1 / 20)
        assert hard.gaps.max() == pytest.approx(0.5)
        assert hard.three_cycles() == 0
    assert PreferenceMatrix.bradley_terry([1.0, 1.0]).condorcet_winner is None
    assert PreferenceMatrix.flat(1).gap == np.inf


def test_levels_of_the_ablated_trees():
    from gnomon.decisions.dueling.baselines import AblatedTGITE

    with pytest.raises(ValueError, match="tree: got 'round'"):
        AblatedTGITE(4, tree="round")
    cost = {}
    for tree in ("geometric", "constant", "per match"):
        alg = AblatedTGITE(64, tree=tree, objective="strong", random_state=0)
        alg._begin()
        cost[tree] = int(alg._state["cap"][0])
    assert cost == {t: math.ceil(math.log(2 / x) / 0.125) for t, x in (("geometric", 1 / 16), ("constant", 1 / 48),
                                                                       ("per match", 1 / 512))}  # fmt: skip
    assert phases.STAGES[0] == "tree"
