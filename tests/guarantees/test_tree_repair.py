"""Encodings, demands, objectives and the MILP: hand cases, brute force, every library, bad input."""

from __future__ import annotations

import _thread
import itertools
import json
import threading

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_classification
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from gnomon.guarantees import (
    Allowed,
    Close,
    EnsembleEncoding,
    Infeasible,
    NoSolution,
    Pair,
    Point,
    PointProperty,
    TreeRepair,
)
from gnomon.guarantees.tree_repair.counterexamples import conflicts, demands, satisfied
from gnomon.guarantees.tree_repair.program import Options, RepairProgram, Rows
from gnomon.guarantees.tree_repair.solver import Interrupted, Program, solve

MAKERS = {
    "tree": lambda: DecisionTreeClassifier(max_depth=4, random_state=0),
    "forest": lambda: RandomForestClassifier(7, max_depth=4, random_state=0),
    "extra": lambda: ExtraTreesClassifier(7, max_depth=4, random_state=0),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=8, max_depth=3, random_state=0),
    "hist": lambda: HistGradientBoostingClassifier(max_iter=8, max_depth=3, random_state=0),
    "xgboost": lambda: xgboost.XGBClassifier(n_jobs=1, n_estimators=8, max_depth=3),
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_jobs=1, n_estimators=8, max_depth=3, verbose=-1),
}


def data(classes: int = 2, n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(n, 6, n_informative=4, n_classes=classes, random_state=seed)
    return np.round(X, 2), y


def stumps(*trees: tuple[int, float, float, float]) -> xgboost.XGBClassifier:
    """An XGBoost model of stumps (feature, threshold, left, right) without a base: written leaf by leaf."""
    X = np.random.default_rng(0).normal(size=(40, 3))
    booster = xgboost.XGBClassifier(n_jobs=1, n_estimators=len(trees), max_depth=1, base_score=0.5).fit(
        X, (X[:, 0] > 0).astype(int)
    )
    body = json.loads(bytes(booster.get_booster().save_raw("json")))
    for tree, (feature, threshold, left, right) in zip(
        body["learner"]["gradient_booster"]["model"]["trees"], trees, strict=True
    ):
        tree["split_indices"] = [feature, 0, 0]
        tree["split_conditions"] = [float(threshold), float(left), float(right)]
        tree["base_weights"] = [0.0, float(left), float(right)]
    booster.get_booster().load_model(bytearray(json.dumps(body).encode()))
    return booster


ROWS = np.array([[-1.0, -1, 0], [-1, -1, 0], [-1, 1, 0], [1, 1, 0]])  # the right leaf of feature 0 is the rarer one
LABELS = np.array([0, 0, 0, 1])
EXACT = {"time_limit": 20, "gap": 0.0}


# --- hand cases ------------------------------------------------------------------------------------------------------


def test_one_stump_moves_its_right_leaf_to_minus_the_margin():
    repair = TreeRepair(objective="l1", **EXACT)
    repair.repair(stumps((0, 0.0, -1, 1)), [Point([1.0, 0, 0], 0)], ROWS, LABELS)
    margin = 1e-3 * 2
    assert repair.path_[-1] == pytest.approx([-1, -margin], abs=1e-6)
    assert np.abs(repair.path_[-1] - repair.path_[0]).sum() == pytest.approx(1 + margin, abs=1e-6)
    assert list(repair.changed_leaves_["leaf"]) == [1]


def test_two_stumps_share_the_change_as_their_weights_say():
    model = stumps((0, 0.0, -1, 1), (1, 0.0, -1, 1))  # F = 2 at the point; rows reach the first right leaf less often
    margin = 1e-3 * 4
    repair = TreeRepair(objective="l1", **EXACT)
    repair.repair(model, [Point([1.0, 1, 0], 0)], ROWS, LABELS)
    w = repair.path_[-1]
    assert np.abs(w - repair.path_[0]).sum() == pytest.approx(2 + margin, abs=1e-6)
    assert w[1] == pytest.approx(-1 - margin, abs=1e-6)
    equal = TreeRepair(objective="l1", penalty=0.0, **EXACT)
    equal.repair(model, [Point([1.0, 1, 0], 0)], ROWS, LABELS)
    assert np.abs(equal.path_[-1] - equal.path_[0]).sum() == pytest.approx(2 + margin, abs=1e-6)


def test_a_pair_with_the_same_leaves_needs_no_binary():
    encoding = EnsembleEncoding(stumps((0, 0.0, -1, 1)))
    rows = Rows.of(encoding, ROWS, LABELS)
    plain = RepairProgram(encoding, rows, demands(encoding, [Pair([1.0, 0, 0], [2.0, 5, 0])]), Options())
    assert not plain.choices
    assert not plain.program.integer.any()
    strict = RepairProgram(encoding, rows, demands(encoding, [Pair([1.0, 0, 0], [2.0, 5, 0], strict=True)]), Options())
    assert strict.program.integer.sum() == 1
    apart = RepairProgram(encoding, rows, demands(encoding, [Pair([1.0, 0, 0], [-2.0, 5, 0])]), Options())
    assert apart.program.integer.sum() == 1


def test_opposite_points_are_a_conflict_with_total_slack_of_two_margins():
    with pytest.raises(Infeasible) as caught:
        TreeRepair(**EXACT).repair(stumps((0, 0.0, -1, 1)), [Point([-1.0, 0, 0], 0), Point([1.0, 0, 0], 0), Point([2.0, 9, 9], 1)],
                                   ROWS, LABELS)  # fmt: skip
    assert isinstance(caught.value, ValueError)
    assert caught.value.conflicts == [[1, 2]]
    assert sum(caught.value.relaxed.values()) == pytest.approx(2 * 2e-3, abs=1e-5)
    assert set(caught.value.relaxed) <= {1, 2}
    assert "[[1, 2]]" in str(caught.value)


def test_conflicts_follow_pairs():
    encoding = EnsembleEncoding(stumps((0, 0.0, -1, 1), (1, 0.0, -1, 1)))
    a, b, c = [1.0, 1, 0], [-1.0, 1, 0], [-1.0, -1, 0]
    chain = [Point(a, 1), Pair(a, b), Point(c, 0), Pair(b, c)]
    assert conflicts(encoding, demands(encoding, chain)) == [[0, 1, 2, 3]]
    assert conflicts(encoding, demands(encoding, chain[:3])) == []
    assert conflicts(encoding, demands(encoding, [Allowed(a, [0, 1]), Point(a, 1)])) == []


def test_a_bound_on_the_change_makes_it_infeasible():
    with pytest.raises(Infeasible, match=r"within 0\.5") as caught:
        TreeRepair(max_change=0.5, **EXACT).repair(stumps((0, 0.0, -1, 1)), [Point([1.0, 0, 0], 0)], ROWS, LABELS)
    assert caught.value.conflicts == []
    assert caught.value.relaxed == {0: pytest.approx(0.5 + 2e-3, abs=1e-5)}


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_to_fix_changes_nothing(name):
    X, y = data()
    model = MAKERS[name]().fit(X, y)
    repair = TreeRepair(objective="l1", time_limit=20)
    fixed = repair.repair(model, [], X, y)
    assert np.array_equal(repair.path_[-1], repair.path_[0])
    assert np.array_equal(fixed.predict_proba(X), model.predict_proba(X))
    assert len(repair.changed_leaves_) == 0


def test_lipschitz_pairs_are_a_linear_program():
    model = stumps((0, 0.0, -1, 1), (1, 0.0, -1, 1))
    one, two = [1.0, 1, 0], [-1.0, -1, 0]
    repair = TreeRepair(objective="l1", **EXACT)
    fixed = repair.repair(model, [Close(one, two, 0.5)], ROWS, LABELS)
    scores = EnsembleEncoding(fixed).scores(np.array([one, two]))[:, 0]
    assert abs(scores[0] - scores[1]) <= 0.5 + 1e-5
    assert np.abs(repair.path_[-1] - repair.path_[0]).sum() == pytest.approx(4 - 0.5, abs=1e-5)


# --- the encoding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_encoding_equals_the_library(name, classes):
    X, y = data(classes)
    model = MAKERS[name]().fit(X, y)
    encoding = EnsembleEncoding(model)
    on = X[:60].copy()
    for tree in encoding.trees():  # values exactly on thresholds
        for f, q in zip(tree.feature, tree.threshold, strict=True):
            if f >= 0:
                on[np.random.default_rng(int(abs(q) * 1e6) % 997).integers(60), f] = q
    probe = np.vstack([X, on, np.random.default_rng(1).normal(size=(200, 6)) * 3])
    scores = encoding.scores(probe)
    assert scores.shape == (len(probe), 1 if classes == 2 else 3)
    assert np.abs(scores - encoding.library.raw(model, probe)).max() < 1e-6
    assert np.array_equal(encoding.decide(scores), encoding.predict(model, probe))
    assert np.array_equal(encoding.with_leaves(encoding.w).predict(probe), model.predict(probe))
    leaves = encoding.leaves(probe)
    for i in (0, 310, 500):  # the trees as read lead to the leaves that the library names
        for t, tree in enumerate(encoding.trees()):
            node, x = 0, probe[i].astype(encoding.library.number)
            while tree.feature[node] >= 0:
                node = tree.left[node] if float(x[tree.feature[node]]) <= tree.threshold[node] else tree.right[node]
            assert tree.leaf[node] == leaves[i, t]


@pytest.mark.parametrize("name", ["tree", "forest", "hist", "xgboost", "lightgbm"])
def test_missing_values_follow_the_library(name):
    X, y = data()
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    model = MAKERS[name]().fit(X, y)
    encoding = EnsembleEncoding(model)
    assert np.abs(encoding.scores(X) - encoding.library.raw(model, X)).max() < 1e-6
    fixed = TreeRepair(time_limit=5).repair(model, [Pair(X[0], X[1]), Point(X[2], 1 - model.predict(X[2:3])[0])], X, y)
    assert fixed.predict(X[2:3])[0] != model.predict(X[2:3])[0]


def test_boosters_and_frames():
    X, y = data(3)
    frame = pd.DataFrame(X, columns=list("abcdef"))
    for model in (xgboost.train({"objective": "multi:softprob", "num_class": 3, "max_depth": 3}, xgboost.DMatrix(frame, y), 4),
                  xgboost.train({"objective": "multi:softmax", "num_class": 3, "max_depth": 3}, xgboost.DMatrix(frame, y), 4),
                  lightgbm.train({"objective": "multiclass", "num_class": 3, "verbose": -1}, lightgbm.Dataset(frame, y), 4),
                  MAKERS["boosting"]().fit(frame, y), MAKERS["hist"]().fit(frame, y), MAKERS["xgboost"]().fit(frame, y)):  # fmt: skip
        encoding = EnsembleEncoding(model)
        assert np.abs(encoding.scores(X) - encoding.library.raw(model, X)).max() < 1e-6
        fixed = TreeRepair(time_limit=5, objective="l1").repair(model, [Point(X[0], (y[0] + 1) % 3)], frame, y)
        assert type(fixed) is type(model)
        assert encoding.predict(fixed, X[:1])[0] == (y[0] + 1) % 3
    binary = xgboost.train({"objective": "binary:logistic", "max_depth": 2}, xgboost.DMatrix(X, y > 0), 4)
    assert np.array_equal(
        EnsembleEncoding(binary).predict(binary, X), (binary.predict(xgboost.DMatrix(X)) > 0.5).astype(int)
    )


def test_early_stopping_counts_the_trees_that_are_used():
    X, y = data(2, 600)
    x = xgboost.XGBClassifier(
        n_jobs=1, n_estimators=200, max_depth=4, learning_rate=1.0, early_stopping_rounds=3, eval_metric="logloss"
    )
    x.fit(X[:300], y[:300], eval_set=[(X[300:], y[300:])], verbose=False)
    light = lightgbm.LGBMClassifier(n_jobs=1, n_estimators=200, learning_rate=1.0, verbose=-1)
    light.fit(
        X[:300], y[:300], eval_X=(X[300:],), eval_y=(y[300:],), callbacks=[lightgbm.early_stopping(3, verbose=False)]
    )
    for model, best in ((x, x.best_iteration + 1), (light, light.best_iteration_)):
        encoding = EnsembleEncoding(model)
        assert encoding.n_trees == best < 100
        assert np.abs(encoding.scores(X) - encoding.library.raw(model, X)).max() < 1e-5
        assert np.array_equal(encoding.decide(encoding.scores(X)), model.predict(X))
        fixed = TreeRepair(objective="l1", time_limit=10).repair(
            model, [Point(X[0], 1 - model.predict(X[:1])[0])], X, y
        )
        assert fixed.predict(X[:1])[0] != model.predict(X[:1])[0]


@pytest.mark.parametrize("name", ["forest", "boosting", "hist", "xgboost", "lightgbm"])
def test_region_is_where_the_leaves_stay(name):
    X, y = data()
    encoding = EnsembleEncoding(MAKERS[name]().fit(X, y))
    rng = np.random.default_rng(0)
    for x in X[:5]:
        lower, upper = encoding.region_of(x)
        inside = np.where(np.isfinite(upper), upper, x + 1)
        some = [np.where(rng.random(6) < 0.5, inside, x) for _ in range(20)]
        assert (encoding.leaves(np.array(some)) == encoding.leaves(x[None])).all()
        assert (lower < upper).all()
        for f in np.flatnonzero(np.isfinite(lower)):
            out = x.copy()
            out[f] = lower[f]
            assert (encoding.leaves(out[None]) != encoding.leaves(x[None])).any()


# --- repairs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["hinge", "errors", "flips", "l1", "logloss"])
@pytest.mark.parametrize("name", ["forest", "boosting"])
def test_every_objective_meets_every_demand(name, objective):
    X, y = data()
    model = MAKERS[name]().fit(X, y)
    cases = [*(Pair(X[i], X[i + 1]) for i in range(0, 12, 2)), Point(X[20], y[20]), Allowed(X[21], [0, 1])]
    repair = TreeRepair(objective=objective, time_limit=3)
    if (name, objective) == ("forest", "logloss"):
        with pytest.raises(ValueError, match="logloss"):
            repair.repair(model, cases, X, y)
        return
    fixed = repair.repair(model, cases, X, y)
    one, two = fixed.predict(X[0:12:2]), fixed.predict(X[1:13:2])
    assert np.array_equal(one, two)
    assert fixed.predict(X[20:21])[0] == y[20]
    assert type(fixed) is type(model)
    assert not np.array_equal(fixed.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("name", MAKERS)
def test_three_classes_and_what_the_library_saves(name, tmp_path):
    X, y = data(3)
    model = MAKERS[name]().fit(X, y)
    before = model.predict_proba(X)
    cases = [Pair(X[0], X[1]), Pair(X[2], X[3]), Allowed(X[4], [c for c in range(3) if c != model.predict(X[4:5])[0]])]
    fixed = TreeRepair(time_limit=4).repair(model, cases, X, y)
    assert np.array_equal(model.predict_proba(X), before)  # the person's model is not touched
    if name == "xgboost":
        fixed.save_model(tmp_path / "m.json")
        loaded = xgboost.XGBClassifier()
        loaded.load_model(tmp_path / "m.json")
    elif name == "lightgbm":
        fixed.booster_.save_model(tmp_path / "m.txt")
        booster = lightgbm.Booster(model_file=tmp_path / "m.txt")
        loaded = type(
            "",
            (),
            {"predict": staticmethod(lambda X: booster.predict(X).argmax(axis=1)), "predict_proba": booster.predict},
        )
    else:
        loaded = fixed
    assert np.allclose(loaded.predict_proba(X), fixed.predict_proba(X))
    decided = loaded.predict(X)
    assert decided[0] == decided[1]
    assert decided[2] == decided[3]
    assert decided[4] != model.predict(X[4:5])[0]
    if name in ("tree", "forest", "extra"):
        shares = fixed.predict_proba(X)
        assert shares.min() >= 0
        assert np.allclose(shares.sum(axis=1), 1)
        parts = fixed.estimators_ if name != "tree" else [fixed]
        assert all(np.allclose(p.tree_.value[p.tree_.children_left < 0].sum(axis=2), 1) for p in parts)


def test_forest_leaves_may_leave_the_simplex_on_request():
    X, y = data()
    model = MAKERS["forest"]().fit(X, y)
    repair = TreeRepair(objective="l1", distribution=False, time_limit=10)
    fixed = repair.repair(model, [Point(X[0], 1 - model.predict(X[:1])[0])], X, y)
    assert fixed.predict(X[:1])[0] != model.predict(X[:1])[0]


@pytest.mark.parametrize("case", range(4))
def test_optimum_equals_brute_force(case):
    encoding = EnsembleEncoding(stumps((0, 0.0, -0.375, 0.625), (1, 0.0, -0.25, 0.375)))  # eighths are exact in float32
    rows = Rows.of(encoding, ROWS, LABELS)
    points = [[1.0, 1, 0], [1.0, -1, 0], [-1.0, 1, 0], [-1.0, -1, 0]]
    cases = [[Pair(points[0], points[3])], [Point(points[1], 0)], [Pair(points[0], points[2]), Point(points[2], 0)],
             [Pair(points[1], points[2]), Pair(points[0], points[3], strict=True)]][case]  # fmt: skip
    options = Options(margin=0.125, change=1.0)
    wanted = demands(encoding, cases)
    found = RepairProgram(encoding, rows, wanted, options).solve(20, 0.0)

    d = np.array(list(itertools.product(np.arange(-8, 9) / 8, repeat=4)))
    w, base, meets = encoding.w + d, encoding.base[0], np.ones(len(d), dtype=bool)
    for demand in wanted:
        f = w[:, demand.leaves].sum(axis=2) + base
        positive, negative = (f >= 0.125).all(axis=1), (f <= -0.125).all(axis=1)
        meets &= positive | negative if demand.kind == "same" else negative
    s = np.where(rows.labels == 1, 1, -1)
    loss = np.maximum(0, options.hinge - s * (w[:, rows.leaves].sum(axis=2) + base)) @ rows.weight / rows.n
    cost = loss + np.abs(d) @ (options.penalty * (rows.coverage + 1 / rows.n))
    assert found.objective == pytest.approx(cost[meets].min(), abs=1e-6)


def test_hinge_without_demands_is_the_linear_program():
    from scipy.optimize import linprog

    X, y = data(2, 80)
    encoding = EnsembleEncoding(GradientBoostingClassifier(n_estimators=3, max_depth=2, random_state=0).fit(X, y))
    rows = Rows.of(encoding, X, y, compress=False)
    options = Options(change=1.0)
    ours = RepairProgram(encoding, Rows.of(encoding, X, y), [], options).solve(20, 0.0)
    n, m, s = len(encoding.w), len(X), np.where(y == 1, 1.0, -1.0)
    A = np.zeros((m, n))
    np.put_along_axis(A, rows.leaves, 1.0, axis=1)
    weight = options.penalty * (rows.coverage + 1 / m)
    # xi >= h - s (F0 + A (p - q))
    found = linprog(np.concatenate([weight, weight, np.full(m, 1 / m)]),
                    A_ub=np.hstack([-s[:, None] * A, s[:, None] * A, -np.eye(m)]),
                    b_ub=s * encoding.scores(X)[:, 0] - options.hinge, bounds=[(0, 1.0)] * (2 * n) + [(0, None)] * m)  # fmt: skip
    assert ours.objective == pytest.approx(found.fun, abs=1e-7)


def test_fewest_errors_are_no_more_than_those_of_the_hinge_repair():
    X, y = data(2, 120)
    model = GradientBoostingClassifier(n_estimators=4, max_depth=2, random_state=0).fit(X, y)
    cases = [Pair(X[i], X[i + 1]) for i in range(0, 20, 2)]
    errors = {}
    for objective in ("errors", "hinge"):
        repair = TreeRepair(objective=objective, penalty=1e-6, time_limit=20, gap=0.0)
        fixed = repair.repair(model, cases, X, y)
        margin = repair.certificate_.margin
        s = np.where(y == 1, 1, -1) * EnsembleEncoding(fixed).scores(X)[:, 0]
        errors[objective] = int((s < margin - 1e-6).sum())
    assert errors["errors"] <= errors["hinge"]


def test_more_demands_never_lower_the_optimum():
    X, y = data(2, 150)
    encoding = EnsembleEncoding(GradientBoostingClassifier(n_estimators=5, max_depth=2, random_state=0).fit(X, y))
    rows, cases = Rows.of(encoding, X, y), [Pair(X[i], X[i + 1]) for i in range(0, 20, 2)]
    found = [RepairProgram(encoding, rows, demands(encoding, cases[:k]), Options(margin=2e-3, change=1.0)).solve(20, 1e-9).objective
             for k in (0, 3, 6, 10)]  # fmt: skip
    assert all(a <= b + 1e-7 for a, b in itertools.pairwise(found))


def test_scaling_the_model_scales_the_change():
    X, y = data(2, 150)
    model = GradientBoostingClassifier(n_estimators=5, max_depth=2, random_state=0).fit(X, y)
    encoding = EnsembleEncoding(model)
    rows = Rows.of(encoding, X, y)
    wanted = demands(encoding, [Pair(X[i], X[i + 1]) for i in range(0, 16, 2)])

    def change(scale: float) -> tuple[np.ndarray, float]:
        scaled = EnsembleEncoding(model)
        scaled.w, scaled.base = encoding.w * scale, encoding.base * scale
        program = RepairProgram(scaled, rows, wanted, Options("l1", margin=2e-3 * scale, change=scale))
        found = program.solve(20, 0.0)
        return program.values(found.x) - scaled.w, found.objective

    (one, cost), (two, double) = change(1.0), change(2.0)
    assert double == pytest.approx(2 * cost, abs=1e-5)
    assert np.abs(two).sum() == pytest.approx(2 * np.abs(one).sum(), abs=1e-4)


def test_compression_and_both_solvers_agree():
    X, y = data(2, 150)
    X = np.round(X)
    encoding = EnsembleEncoding(GradientBoostingClassifier(n_estimators=4, max_depth=2, random_state=0).fit(X, y))
    wanted = demands(encoding, [Pair(X[i], X[i + 1]) for i in range(0, 12, 2)])
    options = Options(margin=2e-3, change=1.0)
    found = [RepairProgram(encoding, Rows.of(encoding, X, y, compress=c), wanted, replace_big(options, m)).solve(30, 1e-9, backend=b)
             for c, m, b in ((True, None, "highs"), (False, None, "highs"), (True, 20.0, "highs"), (True, None, "scipy"))]  # fmt: skip
    assert all(f.status == "optimal" for f in found)
    assert np.ptp([f.objective for f in found]) < 1e-5
    assert len(Rows.of(encoding, X, y).weight) < len(X)
    assert Rows.of(encoding, X, y).weight.sum() == len(X)


def replace_big(options, m):
    from dataclasses import replace

    return replace(options, big_m=m)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8), st.sampled_from(["hinge", "l1"]))
def test_whatever_is_asked_is_met(seed, n, objective):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 3, size=(60, 3)).astype(float)
    y = (X.sum(axis=1) + rng.normal(size=60) > 3).astype(int)
    if len(set(y)) < 2:
        return
    model = GradientBoostingClassifier(n_estimators=3, max_depth=2, random_state=0).fit(X, y)
    probe = rng.integers(0, 3, size=(2 * n, 3)).astype(float)
    cases = [
        Pair(probe[2 * i], probe[2 * i + 1]) if rng.random() < 0.7 else Point(probe[2 * i], int(rng.integers(2)))
        for i in range(n)
    ]
    try:
        fixed = TreeRepair(objective=objective, time_limit=10).repair(model, cases, X, y)
    except Infeasible:
        with pytest.raises(Infeasible):  # the other solver says so too
            TreeRepair(objective=objective, time_limit=10, backend="scipy").repair(model, cases, X, y)
        return
    assert satisfied(EnsembleEncoding(model), fixed, cases).all()


# --- the loop and its ends -------------------------------------------------------------------------------------------


def test_points_are_proved_at_once():
    X, y = data()
    model = MAKERS["boosting"]().fit(X, y)
    wrong = np.flatnonzero(model.predict(X) != y)
    repair = TreeRepair(PointProperty(X[wrong[:3]], y[wrong[:3]]), time_limit=5)
    fixed = repair.fit_transform(model, X, y)
    assert repair.proved_
    assert len(repair.counterexamples_) == 2  # two of the points share their leaves
    assert np.array_equal(fixed.predict(X[wrong[:3]]), y[wrong[:3]])
    assert repair.certificate_.stopped == "proved"
    assert "proved: the property holds; 2 counterexamples" in str(repair.certificate_)
    assert np.array_equal(repair.at(0).predict(X), model.predict(X))
    assert np.array_equal(repair.at(1).predict(X), fixed.predict(X))
    assert list(repair.history_["round"]) == [0, 1]


def test_a_floor_ends_the_loop_before_it_is_passed():
    X, y = data()
    model = MAKERS["boosting"]().fit(X, y)
    repair = TreeRepair(
        PointProperty(X[:40], 1 - y[:40]), min_score=0.99 * (model.predict(X) == y).mean(), time_limit=5
    )
    fixed = repair.fit_transform(model, X, y)
    assert not repair.proved_
    assert repair.certificate_.stopped == "min_score"
    assert np.array_equal(fixed.predict(X), model.predict(X))
    assert repair.counterexamples_ == []


def hard() -> tuple[GradientBoostingClassifier, np.ndarray, np.ndarray]:
    X, y = make_classification(500, 10, n_informative=8, n_classes=4, random_state=0)
    return GradientBoostingClassifier(n_estimators=25, max_depth=4, random_state=0).fit(X, y), X, y


def test_the_time_limit_without_a_solution_names_round_rows_and_gap():
    model, X, y = hard()
    other = (model.predict(X[:40]) + 1) % 4
    with pytest.raises(
        TimeoutError, match=r"round 1: no solution within 0.01 s \(40 counterexamples, \d+ rows, gap inf\)"
    ) as caught:
        TreeRepair(PointProperty(X[:40], other), time_limit=0.01).fit_transform(model, X, y)
    assert isinstance(caught.value, NoSolution)
    assert caught.value.model is None


def test_ctrl_c_keeps_what_is_finished():
    X, y = data(2, 300)
    model = MAKERS["boosting"]().fit(X, y)
    wrong = np.flatnonzero(model.predict(X) != y)
    seen: list[str] = []

    def progress(text: str, done: int, total: int) -> None:
        seen.append(text)
        if text.startswith("round 2: fixing"):
            raise KeyboardInterrupt

    repair = TreeRepair(PointProperty(X[wrong], y[wrong]), per_round=5, time_limit=5, progress=progress)
    fixed = repair.fit_transform(model, X, y)
    assert repair.certificate_.stopped == "interrupted"
    assert not repair.proved_
    assert len(repair.path_) == 2
    assert len(repair.counterexamples_) == 5
    assert satisfied(repair.encoding_, fixed, repair.counterexamples_).all()
    assert seen[0].startswith("round 0: looking")


def test_ctrl_c_reaches_the_solver_and_keeps_its_solution():
    model, X, y = hard()
    encoding = EnsembleEncoding(model)
    wanted = demands(encoding, [Pair(X[i], X[i + 1]) for i in range(0, 200, 2)])
    program = RepairProgram(encoding, Rows.of(encoding, X, y), wanted, Options(margin=0.01, change=2.0))
    threading.Timer(3.0, _thread.interrupt_main).start()  # by then HiGHS is at work, which would go on for minutes
    with pytest.raises(Interrupted) as caught:
        solve(program.program, 90, 0.0)
    assert caught.value.solution.interrupted
    assert caught.value.solution.status in ("feasible", "unknown")
    assert isinstance(caught.value, KeyboardInterrupt)


def test_the_library_does_not_print(capfd):
    X, y = data()
    TreeRepair(time_limit=3).repair(MAKERS["boosting"]().fit(X, y), [Pair(X[0], X[1])], X, y)
    program = Program()
    program.columns(2, 0, 1, [-1.0, -1.0], integer=True)
    program.rows(1, [0, 0], [0, 1], [1.0, 1.0], upper=1.0)
    assert solve(program).objective == -1
    assert capfd.readouterr() == ("", "")


# --- bad input -------------------------------------------------------------------------------------------------------


def test_models_that_are_not_taken():
    X, y = data()
    with pytest.raises(TypeError, match="LogisticRegression; supported are scikit-learn's DecisionTreeClassifier"):
        EnsembleEncoding(LogisticRegression().fit(X, y))
    for model in (GradientBoostingRegressor(n_estimators=2).fit(X, y), xgboost.XGBRegressor(n_estimators=2).fit(X, y),
                  lightgbm.LGBMRegressor(n_estimators=2, verbose=-1).fit(X, y)):  # fmt: skip
        with pytest.raises(TypeError, match="regressor"):
            EnsembleEncoding(model)
    with pytest.raises(TypeError, match="reg:squarederror"):
        EnsembleEncoding(xgboost.train({"objective": "reg:squarederror"}, xgboost.DMatrix(X, y), 2))
    with pytest.raises(TypeError, match="'dart'"):
        EnsembleEncoding(xgboost.train({"objective": "binary:logistic", "booster": "dart"}, xgboost.DMatrix(X, y), 2))
    with pytest.raises(TypeError, match="regression"):
        EnsembleEncoding(lightgbm.train({"objective": "regression", "verbose": -1}, lightgbm.Dataset(X, y), 2))
    rf = lightgbm.LGBMClassifier(
        n_jobs=1, n_estimators=2, boosting_type="rf", bagging_freq=1, bagging_fraction=0.5, verbose=-1
    ).fit(X, y)
    with pytest.raises(TypeError, match="boosting='rf'"):
        EnsembleEncoding(rf)
    with pytest.raises(TypeError, match="init="):
        EnsembleEncoding(GradientBoostingClassifier(n_estimators=2, init=LogisticRegression()).fit(X, y))
    with pytest.raises(TypeError, match="several outputs"):
        EnsembleEncoding(DecisionTreeClassifier().fit(X, np.column_stack([y, y])))
    for model in (make() for make in MAKERS.values()):
        with pytest.raises(NotFittedError, match="not fitted"):
            EnsembleEncoding(model)


@pytest.mark.parametrize(("options", "message"), [
    ({"objective": "mse"}, "objective 'mse'"), ({"max_rounds": 0}, "max_rounds"), ({"per_round": 0}, "per_round"),
    ({"time_limit": 0}, "time_limit"), ({"margin": 0}, "margin"), ({"max_change": -1}, "max_change"), ({"gap": -1}, "gap"),
    ({"penalty": -1}, "penalty"), ({"backend": "cplex"}, "backend 'cplex'"),
])  # fmt: skip
def test_settings_that_are_not_taken(options, message):
    X, y = data()
    with pytest.raises(ValueError, match=message):
        TreeRepair(**options).repair(MAKERS["tree"]().fit(X, y), [], X, y)


def test_inputs_that_are_not_taken():
    X, y = data()
    model = MAKERS["boosting"]().fit(X, y)
    repair = TreeRepair()
    gaps, endless, words = X.copy(), X.copy(), X.astype(object)
    gaps[0, 0], endless[0, 0], words[0, 0] = np.nan, np.inf, "male"
    for rows, labels, message in ((gaps, y, "NaN, and this GradientBoostingClassifier"), (endless, y, "infinite"),
                                  (words, y, "no numbers"), (X[:, :3], y, "expected .rows, 6."), (X, y + 1, "2 is no class"),
                                  (X, y[:5], "5 labels for 300"), (X[:0], y[:0], "no rows")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            repair.repair(model, [], rows, labels)
    for case, error, message in ((Point(X[0], 7), ValueError, "7 is no class"), (Allowed(X[0], []), ValueError, "no label is allowed"),
                                 (Close(X[0], X[1], -1), ValueError, "eps is -1"), ("x", TypeError, "got str"),
                                 (Point(X[0, :2], 1), ValueError, "expected .rows, 6.")):  # fmt: skip
        with pytest.raises(error, match=message):
            repair.repair(model, [case], X, y)
    with pytest.raises(TypeError, match="got one Point; expected a list"):
        repair.repair(model, Point(X[0], 1), X, y)
    with pytest.raises(ValueError, match="different shapes"):
        repair.repair(model, [Point(X[0], 1), Point(X[0, :2], 1)], X, y)
    with pytest.raises(ValueError, match="none is given"):
        repair.fit_transform(model, X, y)
    with pytest.raises(NotFittedError, match="nothing is repaired yet"):
        TreeRepair().at(0)
    with pytest.raises(ValueError, match="X has 2 rows and y 1"):
        TreeRepair(PointProperty(X[:2], y[:1])).fit_transform(model, X, y)
    done = TreeRepair(time_limit=5)
    done.repair(model, [], X, y)
    with pytest.raises(ValueError, match="rounds 0 to 1"):
        done.at(2)
