"""The study from end to end at smoke scale, its worlds and learners, and the method from the command line and from a file."""

from __future__ import annotations

import functools
import itertools
import json
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from gnomon import catalog
from gnomon.guarantees.z_boosting.study.contenders import SYNTHETIC, TABLES
from gnomon.guarantees.z_boosting.study.experiments import INSIDE, Real, Synthetic, bad, good
from gnomon.guarantees.z_boosting.study.material import DIGITS, TASKS, WEAK, load, split
from gnomon.guarantees.z_boosting.study.worlds import SETS, Adversary, world
from gnomon.study.check import check
from gnomon.study.protocol import Cell
from gnomon.study.runner import Running


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    running = Running(jobs=1, results=tmp_path_factory.mktemp("results"))
    return check(catalog.find("z-boosting"), scale="smoke", running=running)


def test_smoke_scale_runs_from_end_to_end(smoke):
    verdicts = {v.id: v.verdict for v in smoke.verdicts}
    for claim in ("not-boostable-never", "exact-losses", "stumps-mixture"):
        assert verdicts[claim] == "holds", claim
    assert verdicts["boostable-small-gap"] == "undecided"
    assert "fails" not in verdicts.values()
    assert smoke.figure is not None
    rows = smoke.tables["Synthetic"].set_index(["z", "contender"])
    assert rows.loc[("0.2 x 0.2", "zboost"), "reached"]
    assert not rows.loc[("0.25 x 0.25", "adaboost"), "reached"]
    assert set(smoke.tables["Real"]["contender"]) == set(TABLES)
    assert smoke.tables["Real"][["fnr", "fpr"]].to_numpy().max() <= 1
    assert set(smoke.tables["Amplification"]["k"]) == {9, 31}


@pytest.mark.parametrize("name", list(SETS))
def test_worlds(name):
    z, (low, high) = SETS[name]
    made = world(name, 100, 50)
    assert made.verdict.status == ("not_boostable" if name in ("0.25 x 0.25", "0.6 x 0.06") else "boostable")
    assert made.budget == (
        100 if made.verdict.status == "boostable" and name != "half-plane" else 18 if name == "half-plane" else 50
    )
    rng = np.random.default_rng(0)
    p = made.verdict.p
    learner = Adversary(z, made.positive, rng)
    w = rng.exponential(size=800)
    w[made.positive] *= p / w[made.positive].sum()
    w[~made.positive] *= (1 - p) / w[~made.positive].sum()
    aim = z.weakest(p)[1]
    pairs = []
    for _ in range(30):
        _, h = learner(w, p)
        pairs.append((w[(h > 0) & ~made.positive].sum(), w[(h < 0) & made.positive].sum()))
    assert np.abs(np.array(pairs) - aim).max() < 2e-3
    assert low <= p <= high


def test_a_loose_learner_is_right_on_average():
    made = world("0.2 x 0.2", 10, 10, loose=True)
    rng = np.random.default_rng(0)
    w = np.where(made.positive, 1.0, 1.0) * rng.pareto(1.5, 800)
    w[made.positive] *= 0.5 / w[made.positive].sum()
    w[~made.positive] *= 0.5 / w[~made.positive].sum()
    learner = Adversary(made.z, made.positive, rng, loose=True)
    wrong = np.array([w[(learner(w, 0.5)[1] * learner.truth) < 0].sum() for _ in range(3000)])
    assert wrong.mean() == pytest.approx(0.4, abs=4 * wrong.std() / np.sqrt(3000))
    assert wrong.std() > 0.01


@pytest.mark.parametrize("name", list(SYNTHETIC))
def test_contenders_on_synthetic_learners(name):
    made = world("half-plane", 50, 50)
    states = list(itertools.islice(SYNTHETIC[name].run(made, np.random.default_rng(5)), 30))
    assert states[-1].calls >= len(states)
    if name in ("zboost", "oracle p", "known costs"):
        assert min(s.false_positives + s.false_negatives for s in states) == 0
        assert max(s.deviation for s in states) < 1e-9
    extreme = world("0.05 x 0.55", 10, 10)
    assert list(itertools.islice(SYNTHETIC[name].run(extreme, np.random.default_rng(5)), 300))


def test_tables():
    for task in TASKS:
        X, y = load(task)
        assert np.isfinite(X).all()
        assert set(np.unique(y)) == {0, 1}
    assert load("titanic")[0].shape[0] == 2207
    assert load("german credit")[1].mean() == pytest.approx(0.3)
    assert np.mean([load(d)[1].mean() for d in DIGITS]) == pytest.approx(0.1)
    rows = split("wine", np.random.default_rng(0))
    assert [len(part) for part in (rows.y, rows.y_held, rows.y_test)] == [59, 59, 60]


@pytest.mark.parametrize("name", list(WEAK))
def test_weak_learners(name):
    rows = split("breast cancer", np.random.default_rng(1))
    weak = clone(WEAK[name]).set_params(random_state=0)
    w = np.where(rows.y == 1, 3.0, 1.0)
    said = weak.fit(rows.X, rows.y, sample_weight=w).predict(rows.X_test)
    assert set(said) <= {0, 1}
    assert (said == rows.y_test).mean() > 0.6
    if name == "one-sided rule":
        assert said[rows.y_test == 0].mean() < 0.1
    again = clone(weak).fit(rows.X, rows.y, sample_weight=w).predict(rows.X_test)
    assert (said == again).all()


@pytest.mark.parametrize("name", list(TABLES))
def test_contenders_on_tables(name):
    rows = split("breast cancer", np.random.default_rng(2))
    found = TABLES[name].scores(WEAK["stump"], 5, rows.X, rows.y, 0)(rows.X_test)
    assert found[rows.y_test == 1].mean() > found[rows.y_test == 0].mean()


def test_rusboost_where_its_first_learner_is_worse_than_half():
    rows = split("digit 8", np.random.default_rng(77))
    found = TABLES["rusboost"].scores(WEAK["stump"], 5, rows.X, rows.y, 0)(rows.X_test)
    assert np.isfinite(found).all()


def test_boosters_whose_first_learner_is_worse_than_half():
    """They try ten seeds, then keep one learner."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), np.arange(60) % 2
    wild = clone(WEAK["noisy linear"]).set_params(noise=1e6)
    found = [TABLES["adaboost"].scores(wild, 3, X, y, seed)(X) for seed in range(12)]
    assert np.isfinite(found).all()
    assert np.isfinite(TABLES["adaboost"].single(clone(wild), 0).fit(X, y).predict_proba(X)).all()


@pytest.mark.parametrize("name", list(INSIDE))
def test_runs_of_the_amplified_learner(name):
    rng = np.random.default_rng(0)
    assert INSIDE[name](good(name, (50, 9), rng)).all()
    for kind in ("scattered", "one-sided"):
        points = bad(name, kind, (50, 9), rng)
        assert points.shape == (50, 9, 2)
        assert not INSIDE[name](points).any()
        assert points.min() >= 0


def test_who_takes_part():
    inputs = catalog.find("z-boosting").study().Inputs.at("laptop")
    tight = [n for n in SYNTHETIC if Synthetic().includes(inputs, Cell({"z": "0.2 x 0.2", "learner": "tight"}), n)]
    assert set(SYNTHETIC) - set(tight) == {"known costs"}
    loose = [n for n in SYNTHETIC if Synthetic().includes(inputs, Cell({"z": "0.2 x 0.2", "learner": "loose"}), n)]
    assert loose == ["zboost", "oracle p"]
    assert not Real().includes(inputs, Cell({"task": "digit 3", "weak": "stump"}), "adac2")
    assert Real().includes(inputs, Cell({"task": "digit 8", "weak": "stump"}), "adac2")


# --- gnomon run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the command and the example find a table with words and numbers."""
    rng = np.random.default_rng(0)
    n = 600
    y = rng.random(n) < 0.3
    table = pd.DataFrame({"amount": rng.normal(size=n) + 1.5 * y, "hour": rng.integers(0, 24, n), "known": rng.normal(size=n) - y,
                          "y": np.where(y, 1, 0)})  # fmt: skip
    table.to_csv(tmp_path / "d.csv", index=False)
    words = table.assign(country=rng.choice(["A", "B"], n), y=np.where(y, "fraud", "fair"))
    words.to_csv(tmp_path / "words.csv", index=False)
    words.assign(amount=words["amount"].where(words.index > 2)).to_csv(tmp_path / "gaps.csv", index=False)
    words.assign(y=words["hour"]).to_csv(tmp_path / "many.csv", index=False)
    words[["y"]].to_csv(tmp_path / "bare.csv", index=False)
    return tmp_path


@pytest.fixture
def gnomon(folder: Path, command_line):
    return functools.partial(command_line, folder)


def test_the_command_and_the_example_of_the_docs(folder: Path, gnomon, capsys) -> None:
    study = catalog.find("z-boosting").study()
    code, out, err = gnomon(
        *shlex.split(study.command)[1:], "--rounds", "30", "--beside", "--save", "out", "--figure", "out.svg"
    )
    assert code == 0, err
    for text in ("600 rows, 3 features; positive: 1", "150 rows kept for testing; at most 0.05 false positives asked", "rounds",
                 "zboost, p = 1/2", "adaboost, no threshold", "missed positives"):  # fmt: skip
        assert text in out, text
    model = json.loads((folder / "out" / "model.json").read_text())
    scores, rounds, trees = (pd.read_csv(folder / "out" / f"{name}.csv") for name in ("scores", "rounds", "trees"))
    assert ((scores["F"] > model["theta"]) == (scores["predicted"] == 1)).all()
    assert np.prod(rounds["rho"]) == pytest.approx(model["bound"])
    assert (folder / "out.svg").stat().st_size > 1000
    table = pd.read_csv(folder / "d.csv")
    F = np.zeros(len(table))
    for t, tree in trees.groupby("round"):  # the saved model gives the saved scores
        at = np.zeros(len(table), dtype=int)
        tree = tree.set_index("node")
        while (inner := tree.loc[at, "left"].to_numpy() >= 0).any():
            node = tree.loc[at]
            value = np.array([table[f].iloc[i] if isinstance(f, str) else 0.0 for i, f in enumerate(node["feature"])])
            down = np.where(value.astype(np.float32) <= node["threshold"], node["left"], node["right"])
            at = np.where(inner, down, at).astype(int)
        F += rounds["alpha"][t] * tree.loc[at, "vote"].to_numpy() + rounds["beta"][t]
    assert list(F) == pytest.approx(list(scores["F"]))
    assert gnomon(*shlex.split(study.command)[1:], "--save", "out")[0] == 2
    exec(study.example, {})
    out = capsys.readouterr().out
    assert "status='boostable'" in out
    assert "status='not_boostable'" in out


def test_words_and_other_options(gnomon) -> None:
    code, out, err = gnomon("run", "z-boosting", "--data", "words.csv", "--target", "y", "--positive", "fraud", "--target-fnr", "0.2",
                            "--depth", "2", "--p", "0.4", "--rounds", "10")  # fmt: skip
    assert code == 0, err
    assert "5 features; positive: fraud" in out
    assert "at most 0.2 missed positives asked" in out
    assert "balances asked 0.4 to 0.4" in out
    assert gnomon("run", "z-boosting", "--data", "words.csv", "--target", "y", "--p", "free", "--rounds", "5")[0] == 0


@pytest.mark.parametrize(("line", "message"), [
    ("--data none.csv --target y", "none.csv is no file"),
    ("--data d.csv --target z", "no column 'z'"),
    ("--data gaps.csv --target y", "missing or infinite values in amount"),
    ("--data many.csv --target y", "has 24 values; expected two"),
    ("--data bare.csv --target y", "no column besides the target"),
    ("--data words.csv --target y --positive theft", "'theft' is none of the labels fair, fraud"),
    ("--data d.csv --target y --p best", "expected adaptive, free, or a balance"),
    ("--data d.csv --target y --target-fpr 0.05 --target-fnr 0.05", "both given"),
    ("--data d.csv --target y --target-fpr 0.001", "held-out rows of class"),
    ("--data d.csv --target y --target-fpr 1.5", "less than 1"),
])  # fmt: skip
def test_mistakes_on_the_command_line(gnomon, line, message):
    code, out, err = gnomon("run", "z-boosting", *line.split())
    assert code == 2
    assert message in " ".join((out + err).split())
