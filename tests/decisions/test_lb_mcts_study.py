"""The study of LB-MCTS at smoke scale, its evaluation and tables, the command and the example."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

from gnomon import catalog
from gnomon.decisions.lb_mcts.baselines import Evaluation
from gnomon.decisions.lb_mcts.sklearn_space import sklearn_space
from gnomon.decisions.lb_mcts.study import material
from gnomon.decisions.lb_mcts.study.contenders import CONTENDERS, LAPTOP, WRONG
from gnomon.decisions.lb_mcts.study.experiments import ColdStart, Searches, Shift
from gnomon.decisions.lb_mcts.study.tables import informative, regrets, trend
from gnomon.study.check import check
from gnomon.study.protocol import Cell
from gnomon.study.runner import Running


@pytest.mark.timeout(300)
def test_smoke(tmp_path):
    found = check(catalog.find("lb-mcts"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v.verdict for v in found.verdicts}
    assert verdicts["no-crash"] == "holds"
    assert "fails" not in verdicts.values()
    assert found.figure is not None
    rows = found.tables["Searches"]
    assert set(rows["data"]) == {"iris", "wine"}
    assert rows["trial"].max() == 12
    assert (rows.groupby(["data", "seed", "contender"])["best"].diff().fillna(0) <= 0).all()
    garbage = rows[rows["contender"] == "garbage"]
    assert garbage["unread"].sum() > 5
    assert found.tables["Regret"]["final"].min() >= 0
    assert (found.tables["Regret"]["area"] >= found.tables["Regret"]["final"]).all()
    assert set(found.tables["Cold"]["contender"]) == {"lb-mcts", "rho = 1", "wrong defaults"}
    assert found.tables["Trend"]["rho_trend"].between(-1, 1).all()


def test_an_evaluation_is_made_once(monkeypatch):
    space = sklearn_space()
    objective = material.Objective(material.load("iris"), space)
    config = space["knn"].default
    first = objective("knn", config)
    assert 0 <= first < 0.2
    monkeypatch.setattr(material.Objective, "_evaluated", lambda *a: 1 / 0)
    assert objective("knn", config) == first
    other = {**config, "n_neighbors": 7}
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        objective("knn", other)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        objective("knn", other)
    assert math.isnan(objective.test("knn", other))


def test_data():
    for name, shape in (
        ("digits", (300, 64)),
        ("cancer", (426, 30)),
        ("wine", (133, 13)),
        ("fair", (750, 8)),
        ("anes96", (708, 9)),
    ):
        table = material.load(name)
        assert table.X.shape == shape, name
        assert np.isfinite(table.X).all()
        assert set(table.y) == set(table.y_test)
        assert "name" not in table.card()
    assert material.load("digits").X_test.shape[0] == 1197


def test_contenders_get_the_same_problem():
    inputs = catalog.find("lb-mcts").study().Inputs.at("smoke", trials=6)
    cell = Cell({"data": "iris"}, 3)
    one, two = (Searches().prepare(inputs, cell, np.random.default_rng(i)) for i in range(2))
    assert one.seed == two.seed
    assert one.seed == ColdStart().prepare(inputs, cell, np.random.default_rng(5)).seed
    later = catalog.find("lb-mcts").study().Inputs.at("smoke", trials=6, first_seed=3)
    assert Searches().prepare(later, Cell({"data": "iris"}, 0), np.random.default_rng(0)).seed == one.seed
    assert Shift().trials(catalog.find("lb-mcts").study().Inputs.at("laptop")) == 60
    assert len(WRONG) == 4
    assert set(LAPTOP) < set(CONTENDERS)
    assert next(iter(CONTENDERS)) == "lb-mcts"

    def mine(fn, space, n_trials, random_state, card, llm):
        return [Evaluation("knn", space["knn"].default, fn("knn", space["knn"].default))] * n_trials

    rows = Searches().measure(one, mine, np.random.default_rng(0))
    assert len(rows) == 6
    assert rows[-1]["test"] < 0.3


def curve(contender: str, seed: int, values: list[float]) -> pd.DataFrame:
    best = np.minimum.accumulate(values)
    return pd.DataFrame({"data": "d", "seed": seed, "contender": contender, "trial": range(1, len(best) + 1), "best": best,
                         "loss": values, "failed": False, "test": [math.nan] * (len(best) - 1) + [0.3]})  # fmt: skip


def test_regrets_by_hand():
    rows = pd.concat([curve("a", 0, [0.4] * 10 + [0.2, 0.2]), curve("b", 0, [0.3] * 12)])
    found = regrets(rows, {"d": 0.1}).set_index("contender")
    assert found.loc["a", "final"] == pytest.approx(0.1)
    assert found.loc["a", "area"] == pytest.approx((10 * 0.3 + 2 * 0.1) / 12)
    assert found.loc["a", "area10"] == pytest.approx(0.3)
    assert found["rank"].tolist() == [2.0, 1.0]
    assert found["finished"].all()


def test_trend_by_hand():
    rows = curve("a", 0, [0.1] * 9).assign(rho=np.arange(9) / 10, proposer=["llm"] * 6 + ["bo"] * 3)
    found = trend(rows).iloc[0]
    assert (found["rho_trend"], found["first_third"], found["last_third"]) == (pytest.approx(1.0), 0.0, 1.0)
    assert found["more_bo"]


def test_reliability_beside_unseen_configurations():
    space, rng = sklearn_space()["logistic_regression"], np.random.default_rng(0)
    rows = []
    for i, v in enumerate(space.sample(60, rng)):
        config = space.config(v)
        rows.append({"data": "d", "seed": 0, "contender": "random" if i < 30 else "lb-mcts", "algorithm": space.name,
                     "config": json.dumps(config), "loss": abs(math.log(config["C"])), "failed": False})  # fmt: skip
    table = pd.DataFrame(rows)
    found = informative(table[30:], table).iloc[0]
    assert found["held_out"] == 30
    assert found["held_out_tau"] > 0.7
    assert found["reliability"] > 0.4


@pytest.fixture
def wine(tmp_path):
    X, y = load_wine(return_X_y=True, as_frame=True)
    X.assign(cultivar=y.map({0: "barolo", 1: "grignolino", 2: "barbera"})).iloc[::2].to_csv(
        tmp_path / "wine.csv", index=False
    )
    return tmp_path


def test_command(wine, command_line):
    study = catalog.find("lb-mcts").study()
    words = study.command.replace("--trials 60", "--trials 12").split()[1:]
    code, out, err = command_line(
        wine, *words, "--figure", "out.svg", "--beside", "--algorithms", "svc, knn, gaussian_nb"
    )
    assert code == 0, err
    for text in (
        "89 rows, 13 features, 3 classes",
        "balanced_accuracy",
        "by prior",
        "random search",
        "BO alone",
        "evaluations failed",
    ):
        assert text in out, text
    best = json.loads((wine / "tuned" / "best.json").read_text())
    table = pd.read_csv(wine / "wine.csv")
    model = sklearn_space().build({"algorithm": best["algorithm"], "config": best["config"]})
    assert model.fit(table[best["features"]], table["cultivar"]).score(table[best["features"]], table["cultivar"]) > 0.9
    assert len(pd.read_csv(wine / "tuned" / "trials.csv")) == 12
    tree = json.loads((wine / "tuned" / "tree.json").read_text())
    assert sum(node["kind"] == "trial" for node in tree["nodes"]) == 12
    assert (wine / "out.svg").stat().st_size > 1000
    assert command_line(wine, *words)[0] == 2  # nothing is overwritten


def test_example(wine, monkeypatch, capsys):
    monkeypatch.chdir(wine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(catalog.find("lb-mcts").study().example, "example", "exec"), {})
    shown = capsys.readouterr().out
    assert "'algorithm':" in shown
    assert "proposer" in shown


@pytest.mark.parametrize(("more", "message"), [
    ("--data none.csv --target cultivar", "none.csv is no file"),
    ("--data wine.csv --target vintage", "no column 'vintage'"),
    ("--data words.csv --target y", "columns town hold no numbers"),
    ("--data gaps.csv --target y", "1 rows have none"),
    ("--data wine.csv --target cultivar --trials 0", "greater than or equal to 1"),
    ("--data wine.csv --target cultivar --algorithms svm", "unknown 'svm'"),
    ("--data wine.csv --target cultivar --llm gpt", "llm: got 'gpt'"),
    ("--data wine.csv --target cultivar --scoring goodness", "goodness"),
])  # fmt: skip
def test_mistakes_on_the_command_line(wine, command_line, more, message):
    (wine / "words.csv").write_text("town,y\nA,1\nB,0\n")
    (wine / "gaps.csv").write_text("x,y\n3,1\n1,\n")
    code, _, err = command_line(wine, "run", "lb-mcts", *more.split())
    assert code == 2
    assert message in " ".join(err.split())
