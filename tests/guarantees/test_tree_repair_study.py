"""The study from end to end at smoke scale, its material and tables, and using the method from the command line."""

from __future__ import annotations

import json
import runpy

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.ensemble import RandomForestClassifier

from gnomon import catalog, datasets
from gnomon.guarantees import MDP, EnsembleEncoding
from gnomon.guarantees.tree_repair.baselines import (
    GroupFair,
    Shield,
    WithoutColumns,
    averaged,
    dagger,
    refitted,
    relabelled,
    retrained,
)
from gnomon.guarantees.tree_repair.properties import exchanged
from gnomon.guarantees.tree_repair.study import tables
from gnomon.guarantees.tree_repair.study.experiments import Fairness
from gnomon.guarantees.tree_repair.study.material import WORLDS, grid_world, load, maker, people, task
from gnomon.study.check import check
from gnomon.study.runner import Running


def missing() -> str:
    try:
        for name in ("german", "adult"):
            datasets.data_file("tree_repair", f"{name}.csv.gz")
    except FileNotFoundError as error:
        return str(error)
    return ""


needs_data = pytest.mark.skipif(bool(missing()), reason=missing() or "the data are there")


def credit(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """sex, age, income, and a label that leans on all of them."""
    rng = np.random.default_rng(seed)
    made = pd.DataFrame(
        {"sex": rng.integers(0, 2, n), "age": rng.integers(18, 70, n), "income": np.round(rng.normal(3, 1, n), 2)}
    )
    score = 0.8 * made["sex"] + 0.03 * made["age"] + made["income"] + rng.normal(0, 0.5, n)
    return made.assign(good=(score > score.median()).astype(int))


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Where the command and the example find their input."""
    monkeypatch.chdir(tmp_path)
    made = credit()
    made.to_csv(tmp_path / "credit.csv", index=False)
    X, y = made.drop(columns="good"), made["good"]
    xgboost.XGBClassifier(n_estimators=8, max_depth=2, n_jobs=1).fit(X, y).save_model(tmp_path / "model.json")
    lightgbm.LGBMClassifier(n_estimators=6, max_depth=2, n_jobs=1, verbose=-1).fit(X, y).booster_.save_model(
        tmp_path / "model.txt"
    )
    return tmp_path


@needs_data
def test_smoke_scale_runs_from_end_to_end(tmp_path):
    found = check(catalog.find("tree-repair"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v.verdict for v in found.verdicts}
    for name in ("counterexamples-met-german", "counterexamples-met-others", "counterexamples-met-safety", "no-risk-left",
                 "risk-below-threshold", "loop-ends-proved"):  # fmt: skip
        assert verdicts[name] == "holds", name
    assert "fails" not in verdicts.values()
    assert found.figure is not None
    german = found.tables["German"]
    assert (german.loc[german["contender"].isin(["without sensitive", "averaged"]), "violation"] == 0).all()
    assert set(german.loc[german["last"] & (german["contender"] == "repair"), "exact"]) <= {
        "proved",
        "violated",
        "open",
    }
    policies = found.tables["Safety"].set_index(["task", "contender"])
    for name in ("lake8-rf", "cliff-gbdt", "grid-gbdt"):
        assert policies.loc[(name, "repair"), "risk"] == 0
        assert policies.loc[(name, "shield"), "risk"] == 0
    assert len(found.tables["Halved"]) == 4
    assert (found.tables["Solving"]["gap"] <= 10).all()


@needs_data
def test_data_and_splits():
    X, y, names = load("german")
    assert X.shape == (1000, 20)
    assert y.mean() == 0.7
    assert set(X[:, names.index("sex")]) == {0, 1}
    X, y, names = load("adult")
    assert X.shape == (30162, 13)
    assert 0.24 < y.mean() < 0.26
    problem = people("adult-gbdt", 5, 2, 900, 1.0, 3)
    assert len(problem.X) == 4200
    assert len(problem.X_test) == 1800
    assert 800 < len(problem.one) <= 1000
    plain = np.delete(problem.one, problem.sensitive, axis=1)
    assert np.array_equal(plain, np.delete(problem.two, problem.sensitive, axis=1))
    assert (problem.one[:, problem.sensitive] != problem.two[:, problem.sensitive]).any(axis=1).all()
    again = people("adult-gbdt", 5, 2, 900, 1.0, 3)
    assert np.array_equal(problem.one, again.one)
    assert isinstance(maker("rf", 40, 3)(), RandomForestClassifier)
    assert maker("rf", 40, 3)().n_estimators == 25


def test_worlds():
    for name, make in WORLDS.items():
        mdp, features, threshold, horizon = make(np.random.default_rng(0))
        assert len(features) == mdp.n_states
        assert (threshold is not None) == name.startswith("slippery")
        assert horizon >= 100
        assert mdp.safe_region()[mdp.start].all() or threshold
    mdp, features = grid_world(np.random.default_rng(1))
    assert mdp.n_states == 144
    assert features.shape == (144, 7)
    assert mdp.bad_state.sum() == 20
    assert (features[mdp.bad_state, 2] == 0).all()
    problem = task("grid-gbdt", 3, 1.0, 0)
    assert len(problem.mdp.start) > 50
    taxi = task("taxi-gbdt", 2, 1.0, 0)
    assert taxi.features.shape == (500, 4)
    assert taxi.mdp.bad_step.any()


# --- baselines -------------------------------------------------------------------------------------------------------


def test_baselines_of_fairness():
    made = credit()
    X, y = made.drop(columns="good").to_numpy(float), made["good"].to_numpy()
    model = maker("gbdt", 20, 3)().fit(X, y)
    encoding = EnsembleEncoding(model)
    one, two = exchanged(X, [0], np.array([[0.0], [1.0]]))

    def differ(m: object) -> float:
        return float((m.predict(one) != m.predict(two)).mean())

    assert differ(model) > 0.05
    blind = WithoutColumns(maker("gbdt", 20, 3)(), [0]).fit(X, y)
    assert differ(blind) == 0
    assert blind.predict_proba(X).shape == (400, 2)
    assert differ(averaged(encoding, X, [0])) == 0
    bad = model.predict(one) != model.predict(two)
    extra, labels = relabelled(encoding, one[bad], two[bad])
    assert np.array_equal(labels[: bad.sum()], labels[bad.sum() :])
    assert differ(retrained(maker("gbdt", 20, 3)(), X, y, extra, labels)) < differ(model)
    light, heavy = (refitted(encoding, X, y, extra, labels, weight=w) for w in (0.0, 100.0))
    assert differ(heavy) < differ(light)
    forest = EnsembleEncoding(maker("rf", 16, 3)().fit(X, y))
    shares = refitted(forest, X, y, extra, labels).predict_proba(X)
    assert shares.min() >= 0
    assert np.allclose(shares.sum(axis=1), 1)
    for method in ("exponentiated gradient", "threshold optimizer"):
        fair = GroupFair(maker("gbdt", 5, 2)(), [0], method).fit(X, y)
        rates = [fair.predict(X)[X[:, 0] == s].mean() for s in (0, 1)]
        plain = [model.predict(X)[X[:, 0] == s].mean() for s in (0, 1)]
        assert abs(rates[0] - rates[1]) < abs(plain[0] - plain[1])
    with pytest.raises(ValueError, match="'lottery'"):
        GroupFair(model, [0], "lottery")
    three = EnsembleEncoding(maker("gbdt", 2, 2)().fit(X, np.arange(400) % 3))
    with pytest.raises(ValueError, match="for two"):
        refitted(three, X, y, extra, labels)


def test_refit_has_the_gradient_of_its_loss():
    made = credit(60)
    X, y = made.drop(columns="good").to_numpy(float), made["good"].to_numpy()
    encoding = EnsembleEncoding(maker("gbdt", 3, 2)().fit(X, y))
    fitted = EnsembleEncoding(refitted(encoding, X, y, X[:0], y[:0], ridge=0.1))
    leaves, s, d = encoding.leaves(X), np.where(y == 1, 1.0, -1.0), fitted.w - encoding.w
    slope = -s / (1 + np.exp(s * fitted.scores(X)[:, 0])) / 60
    gradient = np.bincount(leaves.ravel(), np.repeat(slope, leaves.shape[1]), minlength=len(d)) + 0.1 * d
    assert np.abs(gradient).max() < 1e-4


def test_baselines_of_policies():
    problem = task("lake8-rf", 4, 1.0, 1000)
    safe = problem.mdp.safe_actions(problem.mdp.safe_region())
    shield = Shield(problem.encoding, problem.features, safe[:, problem.encoding.classes])
    assert problem.mdp.risk(shield.policy)[0][problem.mdp.start].max() == 0
    before = problem.model.predict(problem.features)
    allowed = safe[np.arange(64), before]
    assert np.array_equal(shield.policy[allowed], before[allowed])
    after = dagger(problem.model, problem.mdp, problem.features, problem.X, problem.y, problem.expert).predict(
        problem.features
    )
    assert (after == problem.expert).mean() > (before == problem.expert).mean()
    two = MDP(
        {0: {0: [(1.0, 1, 0, True)], 1: [(1.0, 0, 0, False)]}, 1: {0: [(1.0, 1, 0, True)], 1: [(1.0, 1, 0, True)]}},
        0,
        {1},
    )
    policy = RandomForestClassifier(2, random_state=0).fit([[0.0], [1.0]] * 5, [0, 1] * 5)
    assert (
        Shield(EnsembleEncoding(policy), np.array([[0.0], [1.0]]), two.safe_actions(two.safe_region())).policy[0] == 1
    )


# --- tables ----------------------------------------------------------------------------------------------------------


def test_derived_tables_by_hand():
    rows = [("none", 0, 0.10, 0.75), ("repair", 0, 0.10, 0.75), ("repair", 1, 0.08, 0.74), ("repair", 2, 0.04, 0.72), ("repair", 3, 0.02, 0.66),
            ("refit, weight 1", 0, 0.06, 0.74), ("refit, weight 5", 0, 0.02, 0.64), ("refit, weight 25", 0, 0.01, 0.60)]  # fmt: skip
    made = pd.DataFrame([{"case": "german-gbdt", "seed": 0, "contender": c, "round": r, "violation": v, "accuracy": a, "balanced": a - 0.1,
                          "fixed": 1.0, "auc": 0.7} for c, r, v, a in rows])  # fmt: skip
    found = tables.derive({"German": made})
    half = found["Halved"].iloc[0]
    assert half["reached"]
    assert half["accuracy_loss"] == pytest.approx(0.03)
    end = found["Ends"].iloc[0]
    assert end["accuracy_loss"] == pytest.approx(0.09)
    assert end["above_base"] == pytest.approx(-0.04)
    refit = found["Refits"].iloc[0]
    assert refit["accuracy_gain"] == pytest.approx(0.02)
    assert refit["violation_gain"] == pytest.approx(0.04)
    never = tables.derive({"German": made[made["round"] < 2]})["Halved"].iloc[0]
    assert not never["reached"]


def test_a_contender_of_ones_own_takes_part():
    class Problem:
        loops = {"hinge": {"one": np.empty((0, 2)), "two": np.empty((0, 2))}}
        one, two, X_test, y_test, seed = (
            np.zeros((40, 2)),
            np.ones((40, 2)),
            np.zeros((4, 2)),
            np.array([0, 1, 0, 1]),
            3,
        )

        class model:
            @staticmethod
            def predict(X):
                return np.zeros(len(X))

    class Mine:
        @staticmethod
        def predict(X):
            return X[:, 0]

    rows = Fairness().measure(Problem(), lambda problem: Mine(), np.random.default_rng(0))
    assert len(rows) == 20
    assert {r["violation"] for r in rows} == {1.0}
    assert rows[0]["block"] == "3.0"


# --- the command line ------------------------------------------------------------------------------------------------


def test_command(table, command_line):
    study = catalog.find("tree-repair").study()
    words = study.command.split()[1:]
    code, out, err = command_line(table, *words, "--limit", "3", "--save", "out", "--figure", "out.svg", "--beside")
    assert code == 0, err
    for text in (
        "counterexamples fixed with margin",
        "as it is",
        "leaves averaged",
        "leaves refitted",
        "pairs decided differently",
    ):
        assert text in out, text
    fixed = xgboost.Booster(model_file=table / "out" / "model.json")
    pairs = pd.read_csv(table / "out" / "counterexamples.csv").sort_values("pair", kind="stable")
    decided = fixed.predict(xgboost.DMatrix(pairs[["sex", "age", "income"]])) > 0.5
    assert len(pairs) > 0
    assert (decided[::2] == decided[1::2]).all()
    assert json.loads((table / "out" / "certificate.json").read_text())["counterexamples"] == len(pairs) // 2
    assert len(pd.read_csv(table / "out" / "history.csv")) > 1
    assert (table / "out.svg").stat().st_size > 1000
    assert command_line(table, *words, "--save", "out")[0] == 2


def test_command_with_lightgbm(table, command_line):
    code, out, err = command_line(table, "run", "tree-repair", "--model", "model.txt", "--data", "credit.csv", "--target", "good",
                                  "--sensitive", "sex", "--verifier", "data", "--rounds", "2", "--limit", "2", "--save", "light")  # fmt: skip
    assert code == 0, err
    assert lightgbm.Booster(model_file=table / "light" / "model.txt").num_trees() == 6
    assert "not proved" in out


def test_example(table, capsys):
    (table / "example.py").write_text(catalog.find("tree-repair").study().example)
    runpy.run_path(str(table / "example.py"))
    out = capsys.readouterr().out
    assert "proved" in out
    assert "leaves changed" in out


@pytest.mark.parametrize(("line", "message"), [
    ("--model none.json --data credit.csv --target good --sensitive sex", "none.json is no file"),
    ("--model credit.csv --data credit.csv --target good --sensitive sex", "neither .json or .ubj"),
    ("--model broken.json --data credit.csv --target good --sensitive sex", "broken.json cannot be read"),
    ("--model model.json --data credit.csv --target bad --sensitive sex", "no column 'bad'"),
    ("--model model.json --data credit.csv --target good --sensitive gender", "no column 'gender'"),
    ("--model model.json --data words.csv --target good --sensitive sex", "columns sex hold no numbers"),
    ("--model model.json --data many.csv --target good --sensitive sex", "has 3 values; the model has 2 classes"),
    ("--model model.json --data credit.csv --target good --sensitive sex --objective mse", "flips"),
])  # fmt: skip
def test_mistakes_on_the_command_line(table, command_line, line, message):
    (table / "broken.json").write_text("{}")
    made = pd.read_csv(table / "credit.csv")
    made.assign(sex=np.where(made["sex"] == 1, "m", "f")).to_csv(table / "words.csv", index=False)
    made.assign(good=np.arange(len(made)) % 3).to_csv(table / "many.csv", index=False)
    code, out, err = command_line(table, "run", "tree-repair", *line.split())
    assert code == 2
    assert message in " ".join((out + err).split())
