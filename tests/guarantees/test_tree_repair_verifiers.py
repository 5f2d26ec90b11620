"""Exact verification of fairness and robustness by enumeration, Veritas as a peer, policies by hand."""

from __future__ import annotations

import itertools
from importlib.util import find_spec

import gymnasium
import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier

from gnomon.guarantees import (
    MDP,
    EnsembleEncoding,
    FairnessProperty,
    Infeasible,
    RobustnessProperty,
    SafetyProperty,
    TreeRepair,
)
from gnomon.guarantees.tree_repair.counterexamples import satisfied
from gnomon.guarantees.tree_repair.exact import Domain, Literals, tolerance
from gnomon.guarantees.tree_repair.properties import Candidate, Context, exchanged, resampled


def people(n: int = 300, seed: int = 0, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """sex (0/1), age (whole years), income (a real number); the label leans on all three."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.integers(0, 2, n), rng.integers(18, 70, n), np.round(rng.normal(3, 1, n), 2)])
    score = 0.8 * X[:, 0] + 0.03 * X[:, 1] + X[:, 2] + rng.normal(0, 0.5, n)
    return X, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))


MODELS = {
    "boosting": lambda: GradientBoostingClassifier(n_estimators=8, max_depth=2, random_state=0),
    "forest": lambda: RandomForestClassifier(5, max_depth=3, random_state=0),
    "hist": lambda: HistGradientBoostingClassifier(max_iter=6, max_depth=2),
    "xgboost": lambda: xgboost.XGBClassifier(n_jobs=1, n_estimators=6, max_depth=2),
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_jobs=1, n_estimators=6, max_depth=2, verbose=-1),
}


def cells(encoding: EnsembleEncoding, X: np.ndarray, sensitive: int) -> tuple[np.ndarray, np.ndarray]:
    """One input of every cell of the data's range, paired over the sensitive column: all pairs (one, two)."""
    literals = Literals(encoding, Domain.of(X))
    values = []
    for f in range(X.shape[1]):
        q = literals.thresholds.get(f, np.empty(0))
        q = q[(q >= literals.low[f]) & (q < literals.high[f])]
        values.append([*q.tolist(), float(X[:, f].max())])
    grid = np.array(list(itertools.product(*values)))
    one, two = [], []
    for s, t in itertools.permutations(values[sensitive], 2):
        first = grid[grid[:, sensitive] == s]
        second = first.copy()
        second[:, sensitive] = t
        one.append(first)
        two.append(second)
    if not one:
        return np.empty((0, X.shape[1])), np.empty((0, X.shape[1]))
    return np.concatenate(one), np.concatenate(two)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.sampled_from(["boosting", "xgboost", "forest"]))
def test_exact_verifier_equals_enumeration(seed, n, kind):
    X, y = people(80, seed)
    X[:, 1] = np.round(X[:, 1] / 10)
    model = {"boosting": GradientBoostingClassifier(n_estimators=n, max_depth=1, learning_rate=1.0, random_state=seed),
             "xgboost": xgboost.XGBClassifier(n_jobs=1, n_estimators=n, max_depth=2, learning_rate=1.0),
             "forest": RandomForestClassifier(n, max_depth=2, random_state=seed)}[kind].fit(X, y)  # fmt: skip
    encoding = EnsembleEncoding(model)
    verifier = FairnessProperty([0]).bind(encoding, Context(X, None, np.random.default_rng(0)))
    one, two = cells(encoding, X, 0)
    tol = tolerance(encoding, encoding.w, verifier.spread)
    s, t = encoding.scores(one)[:, 0], encoding.scores(two)[:, 0]
    hit = (s >= -tol) & (t <= tol)
    candidate = Candidate(encoding, encoding.w)
    if not len(verifier.literals().of_features([0])):
        assert verifier.find(candidate, set(), 10, 5).proved
        return
    found = verifier.exact(candidate, 30, 5)
    assert found.proved == (not hit.any())
    if hit.any():
        pair = found.counterexamples[0]
        at = encoding.scores(np.array([pair.x, pair.other]))[:, 0]
        assert at[0] - at[1] == pytest.approx((s - t)[hit].max(), abs=1e-4)
        assert pair.x[1] == np.round(pair.x[1])
        assert (pair.x[1:] == pair.other[1:]).all()


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_proved_has_no_violation(kind):
    X, y = people()
    model = MODELS[kind]().fit(X, y)
    repair = TreeRepair(FairnessProperty([0], verifier="milp"), max_rounds=25, time_limit=5)
    fixed = repair.fit_transform(model, X, y)
    assert repair.proved_, repair.certificate_
    assert satisfied(repair.encoding_, fixed, repair.counterexamples_).all()
    rows = resampled(X, 100_000, np.random.default_rng(1))
    rows[:50_000, 2] = np.random.default_rng(2).uniform(X[:, 2].min(), X[:, 2].max(), 50_000)
    one, two = exchanged(rows, [0], np.array([[0.0], [1.0]]))
    assert len(one) == 100_000
    assert (fixed.predict(one) == fixed.predict(two)).all()
    assert (repair.history_["rate"].iloc[0] > 0) or repair.history_["proved"].iloc[0]


def test_three_classes_are_proved_too():
    X, y = people(200, classes=3)
    model = GradientBoostingClassifier(n_estimators=3, max_depth=2, learning_rate=0.5, random_state=0).fit(X, y)
    repair = TreeRepair(FairnessProperty([0], verifier="milp"), max_rounds=25, time_limit=5)
    fixed = repair.fit_transform(model, X, y)
    assert repair.proved_, repair.certificate_
    one, two = exchanged(resampled(X, 20_000, np.random.default_rng(1)), [0], np.array([[0.0], [1.0]]))
    assert (fixed.predict(one) == fixed.predict(two)).all()


def test_no_sensitive_split_is_a_proof_at_once():
    X, y = people()
    blind = X.copy()
    blind[:, 0] = 0
    model = MODELS["boosting"]().fit(blind, y)
    repair = TreeRepair(FairnessProperty(["sex"], verifier="milp"))
    frame = pd.DataFrame(X, columns=["sex", "age", "income"])
    fixed = repair.fit_transform(model, frame, y)
    assert repair.proved_
    assert repair.certificate_.basis == "no tree tests a sensitive column"
    assert len(repair.history_) == 1
    assert np.array_equal(fixed.predict(X), model.predict(X))


def test_groups_and_nearness_are_kept():
    rng = np.random.default_rng(0)
    X, y = people(200)
    origin = np.eye(3)[rng.integers(0, 3, 200)]
    rows = np.column_stack([X[:, 1:], origin])
    y = (rows[:, 0] / 20 + rows[:, 1] + 1.5 * rows[:, 2] + rng.normal(0, 0.3, 200) > 5.5).astype(int)
    model = GradientBoostingClassifier(n_estimators=10, max_depth=2, random_state=0).fit(rows, y)
    encoding = EnsembleEncoding(model)
    for near in (None, 0.5):
        prop = FairnessProperty([2, 3, 4], groups=[[2, 3, 4]], near=near)
        verifier = prop.bind(encoding, Context(rows, None, np.random.default_rng(0)))
        found = verifier.exact(Candidate(encoding, encoding.w), 30, 10)
        assert found.counterexamples
        for pair in found.counterexamples:
            for x in (pair.x, pair.other):
                assert sorted(x[2:]) == [0, 0, 1]
                assert (x >= rows.min(axis=0)).all()
                assert (x <= rows.max(axis=0)).all()
            assert pair.x[0] == np.round(pair.x[0])
            assert model.predict([pair.x])[0] != model.predict([pair.other])[0]
            if near:
                apart = np.abs(rows - pair.x) / np.maximum(rows.std(axis=0), 1e-12)
                assert apart.max(axis=1).min() <= near + 1e-9


def test_generator_draws_groups_together():
    X = np.column_stack([np.arange(50.0), np.eye(2)[np.arange(50) % 2]])
    drawn = resampled(X, 500, np.random.default_rng(0), [[1, 2]])
    assert (drawn[:, 1:].sum(axis=1) == 1).all()
    assert len({tuple(r) for r in drawn.tolist()}) > 90


@pytest.mark.parametrize("kind", ["boosting", "xgboost", "forest", "lightgbm"])
def test_robustness_by_the_milp_by_enumeration_and_by_veritas(kind):
    X, y = people(120)
    model = MODELS[kind]().fit(X, y)
    encoding = EnsembleEncoding(model)
    eps = np.array([0.0, 4.0, 0.3])
    probe = X[:12]
    found = {}
    for backend in ("milp", "veritas") if find_spec("veritas") else ("milp",):
        verifier = RobustnessProperty(probe, eps, backend).bind(encoding, Context(X, None, np.random.default_rng(0)))
        candidate = Candidate(encoding, encoding.w)
        found[backend] = [
            verifier.attack(candidate, x, int(k), 20) for x, k in zip(probe, model.predict(probe), strict=True)
        ]
    for i, (x, label) in enumerate(zip(probe, model.predict(probe), strict=True)):
        steps = [np.unique(np.clip(np.concatenate([[x[f] - eps[f], x[f] + eps[f]], *(
            np.r_[t.threshold[t.feature == f], np.nextafter(t.threshold[t.feature == f].astype(np.float32), np.float32(np.inf))]
            for t in encoding.trees())]), x[f] - eps[f], x[f] + eps[f])) for f in range(3)]  # fmt: skip
        grid = np.array(list(itertools.product(*steps)))
        other = (model.predict(grid) != label).any()
        for backend, attacks in found.items():
            attack, size, sure = attacks[i]
            assert (attack is not None) == other, backend
            assert sure
            if attack is not None:
                assert model.predict(attack[None])[0] != label
                assert (np.abs(attack - x) <= eps + 1e-12).all()
                assert size >= 0


def test_a_robust_repair_is_proved():
    X, y = people(150)
    model = MODELS["boosting"]().fit(X, y)
    eps = np.array([0.0, 2.0, 0.1])
    repair = TreeRepair(RobustnessProperty(X[:8], eps), max_rounds=20, time_limit=5)
    fixed = repair.fit_transform(model, X, y)
    assert repair.proved_
    rng = np.random.default_rng(0)
    for x in X[:8]:
        around = x + eps * rng.uniform(-1, 1, (2000, 3))
        assert len(set(fixed.predict(np.vstack([around, x])))) == 1


# --- policies --------------------------------------------------------------------------------------------------------


def chain() -> dict:
    """Three states in a row: action 0 stays, 1 steps right; the last is bad; from the middle both actions end there."""
    return {0: {0: [(1.0, 0, 0.0, False)], 1: [(1.0, 1, 1.0, False)]},
            1: {0: [(1.0, 2, 0.0, False)], 1: [(1.0, 2, 0.0, False)]},
            2: {0: [(1.0, 2, 0.0, True)], 1: [(1.0, 2, 0.0, True)]}}  # fmt: skip


def test_safe_region_of_a_chain_by_hand():
    mdp = MDP(chain(), 0, {2})
    region = mdp.safe_region()
    assert region.tolist() == [True, False, False]
    assert mdp.safe_actions(region).tolist() == [[True, False], [False, False], [False, False]]
    assert mdp.reachable(np.array([1, 1, 0])).tolist() == [True, True, True]
    assert mdp.risk(np.array([1, 1, 0]))[0].tolist() == [1, 1, 1]
    assert mdp.risk(np.array([0, 1, 0]))[0].tolist() == [0, 1, 1]
    assert mdp.risk()[0].tolist() == [0, 1, 1]
    assert mdp.expected_return(np.array([1, 1, 0]), 5) == 1
    X = np.arange(3.0)[:, None]
    doomed = TreeRepair(SafetyProperty(MDP(chain(), 1, {2}), X))
    with pytest.raises(Infeasible, match=r"no safe policy: from start \[1\]"):
        doomed.fit_transform(policy(X, np.array([0, 1, 0])), X, [0, 1, 0])


def test_bad_steps_and_probabilities():
    table = {0: {0: [(0.5, 0, 0.0, False), (0.5, 1, 0.0, True)], 1: [(1.0, 0, 0.0, False)]},
             1: {0: [(1.0, 1, 0.0, True)], 1: [(1.0, 1, 0.0, True)]}}  # fmt: skip
    mdp = MDP(table, 0, {(0, 1)})
    assert mdp.safe_actions(mdp.safe_region())[0].tolist() == [True, False]
    assert mdp.risk(np.array([1, 0]))[0][0] == 1
    assert mdp.risk(np.array([0, 0]))[0][0] == 0
    lucky = MDP({0: {0: [(0.25, 1, 0.0, True), (0.5, 0, 0.0, False), (0.25, 2, 1.0, True)]}, 1: {0: [(1.0, 1, 0.0, True)]},
                 2: {0: [(1.0, 2, 0.0, True)]}}, 0, {1})  # fmt: skip
    assert lucky.risk()[0][0] == pytest.approx(0.5)


def policy(features: np.ndarray, actions: np.ndarray) -> GradientBoostingClassifier:
    return GradientBoostingClassifier(n_estimators=5, max_depth=2, random_state=0).fit(features, actions)


def grid_features(rows: int, columns: int) -> np.ndarray:
    return np.array([[s // columns, s % columns] for s in range(rows * columns)], dtype=float)


@pytest.mark.parametrize("task", ["cliff", "lake"])
def test_a_repaired_policy_avoids_what_is_bad(task):
    if task == "cliff":
        mdp = MDP.from_gym(gymnasium.make("CliffWalking-v1"), lambda s, a, reward, after: reward == -100)
        X = grid_features(4, 12)
    else:
        env = gymnasium.make("FrozenLake-v1", map_name="8x8", is_slippery=False)
        holes = set(np.flatnonzero(env.unwrapped.desc.ravel() == b"H").tolist())
        mdp, X = MDP.from_gym(env, holes), grid_features(8, 8)
    rng = np.random.default_rng(0)
    states = np.repeat(np.arange(mdp.n_states), 3)
    actions = mdp.optimal(penalty=100.0)[states]
    noisy = rng.random(len(states)) < 0.4
    actions[noisy] = rng.integers(0, 4, noisy.sum())
    model = RandomForestClassifier(6, max_depth=3, random_state=0).fit(X[states], actions)
    prop = SafetyProperty(mdp, X)
    verifier = prop.bind(EnsembleEncoding(model))
    inside = verifier.region & ~mdp.bad_state
    acting = inside & (mdp.go[np.arange(mdp.n_states) * 4].getnnz(axis=1) > 0)
    assert verifier.allowed[acting].any(axis=1).all()
    repair = TreeRepair(prop, max_rounds=60, time_limit=5)
    fixed = repair.fit_transform(model, X[states], actions)
    assert repair.proved_
    chosen = fixed.predict(X)
    assert mdp.risk(chosen)[0][mdp.start].max() == 0
    seen = mdp.reachable(chosen)
    assert not mdp.bad_state[seen].any()
    assert not mdp.bad_step[seen, chosen[seen]].any()
    assert repair.history_["rate"].iloc[0] > 0 or len(repair.history_) == 1


def test_a_threshold_on_a_slippery_lake():
    env = gymnasium.make("FrozenLake-v1", map_name="4x4", is_slippery=True)
    holes = set(np.flatnonzero(env.unwrapped.desc.ravel() == b"H").tolist())
    mdp, X = MDP.from_gym(env, holes), grid_features(4, 4)
    rng = np.random.default_rng(1)
    actions = mdp.optimal(0.999)
    noisy = rng.random(16) < 0.4
    actions[noisy] = rng.integers(0, 4, noisy.sum())
    model = RandomForestClassifier(5, random_state=0).fit(X, actions)
    before = mdp.risk(model.predict(X))[0][0]
    assert before > 0.3
    repair = TreeRepair(SafetyProperty(mdp, X, threshold=0.2, tolerance=0.05), per_round=1, max_rounds=20, time_limit=5)
    fixed = repair.fit_transform(model, X, actions)
    assert repair.proved_
    assert mdp.risk(fixed.predict(X))[0][0] <= 0.2
    assert repair.certificate_.rate <= 0.2


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    ({"sensitive": ["gender"]}, "no column 'gender'; there are sex, age, income"), ({"sensitive": [7]}, "no column 7"),
    ({"sensitive": []}, "one or more"), ({"sensitive": "sex"}, "a list of columns"), ({"sensitive": ["sex"], "verifier": "smt"}, "'smt'"),
    ({"sensitive": ["sex"], "samples": 0}, "samples"), ({"sensitive": ["sex"], "near": 0}, "near"),
    ({"sensitive": ["sex"], "groups": [["sex", "age"]]}, "not one-hot"),
])  # fmt: skip
def test_fairness_that_is_not_taken(options, message):
    X, y = people(60)
    frame = pd.DataFrame(X, columns=["sex", "age", "income"])
    with pytest.raises(ValueError, match=message):
        TreeRepair(FairnessProperty(**options)).fit_transform(MODELS["boosting"]().fit(X, y), frame, y)


def test_other_properties_that_are_not_taken():
    X, y = people(60)
    model = MODELS["boosting"]().fit(X, y)
    for prop, message in ((RobustnessProperty(X[:2], -1.0), "finite numbers >= 0"), (RobustnessProperty(X[:2], 1.0, "z3"), "'z3'"),
                          (RobustnessProperty(X[:2, :2], 1.0), "expected .rows, 3.")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            TreeRepair(prop).fit_transform(model, X, y)
    F = np.arange(3.0)[:, None]
    pi = policy(F, np.array([0, 1, 0]))
    mdp = MDP(chain(), 0, {2})
    for prop, message in ((SafetyProperty(mdp, F[:2]), "the MDP has 3 states"), (SafetyProperty(mdp, F, actions=[0]), "2 actions"),
                          (SafetyProperty(mdp, F, actions=["stay", "go"]), "which is none of"),
                          (SafetyProperty(mdp, F, threshold=2.0), "a probability")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            TreeRepair(prop).fit_transform(pi, F, [0, 1, 0])
    for table, start, bad, message in ((chain(), 5, {2}, "start: got 5"), (chain(), 0, {9}, "bad: 9"), (chain(), 0, {(0, 7)}, "bad: .0, 7."),
                                       ({**chain(), 0: {0: [(0.5, 0, 0, False)], 1: []}}, 0, {}, "sum to 0.5"),
                                       ({**chain(), 0: {0: [(1.0, 8, 0, False)], 1: []}}, 0, {}, "leads to 8")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            MDP(table, start, bad)


def test_categories_are_refused_by_the_exact_verifier_only():
    X, _ = people(200)
    X[:, 1] = np.round(X[:, 1] / 10)
    model = lightgbm.LGBMClassifier(n_jobs=1, n_estimators=5, max_depth=2, verbose=-1, min_data_per_group=5, cat_smooth=1).fit(
        X, (X[:, 1] % 2).astype(int), categorical_feature=[1])  # fmt: skip
    with pytest.raises(ValueError, match="splits on categories"):
        TreeRepair(FairnessProperty([0], verifier="milp")).fit_transform(model, X, (X[:, 1] % 2).astype(int))
    repair = TreeRepair(FairnessProperty([1], verifier="data"), max_rounds=2, time_limit=3)
    fixed = repair.fit_transform(model, X, (X[:, 1] % 2).astype(int))
    assert satisfied(repair.encoding_, fixed, repair.counterexamples_).all()
