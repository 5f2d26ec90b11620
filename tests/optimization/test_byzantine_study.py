"""The study from end to end at smoke scale, and using the method from the command line and from a file."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

from gnomon import catalog
from gnomon.optimization.byzantine.study.contenders import CONTENDERS, LOST, trace
from gnomon.optimization.byzantine.study.experiments import MAIN, PAPER, WIDE, Convergence, Tuned
from gnomon.optimization.byzantine.study.material import deal, load, make
from gnomon.study.check import check
from gnomon.study.protocol import Cell
from gnomon.study.runner import Running


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Where the command and the example find their input: measurements of tumours, in seven hospitals."""
    monkeypatch.chdir(tmp_path)
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    made = X.iloc[:, :6].assign(outcome=np.where(y == 1, "benign", "malignant"), hospital=np.arange(len(y)) % 7)
    made.to_csv(tmp_path / "hospitals.csv", index=False)
    return tmp_path


def test_smoke_scale_runs_from_end_to_end(tmp_path):
    found = check(catalog.find("byzantine"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v.verdict for v in found.verdicts}
    assert {verdicts[f"reduction-{t}"] for t in ("convergence", "acceleration", "floors")} == {"holds"}
    assert "fails" not in verdicts.values()
    assert found.figure is not None
    rows = found.tables["Convergence"].set_index(["f", "contender"])
    assert rows.loc[(1, "pigs"), "to_1e1"] < rows.loc[(1, "gd"), "to_1e1"]
    assert rows.loc[(0, "pigs"), "floor"] < 0.1 * rows.loc[(1, "pigs"), "floor"]
    assert rows.loc[(0, "pigs"), "accuracy"] > 0.93
    assert set(found.tables["Times"]["target"]) == {1e-1, 1e-2, 1e-3, 1e-6}
    assert (found.tables["Spread"]["spread"] >= 1).all()
    assert len(found.tables["Floors"]) == 2


def test_data_and_splits():
    X, y = load("digits")
    assert X.shape == (1797, 65)
    assert abs(X[:, :-1].mean()) < 0.01
    rng = np.random.default_rng(0)
    for split in ("iid", "dir 1", "dir 0.05"):
        sizes = np.bincount(deal(y, 20, split, rng), minlength=20)
        assert sizes.sum() == len(y)
        assert sizes.min() >= 2
        assert (np.ptp(sizes) <= 1) == (split == "iid")
    problem = make("digits", 1e-2, 1, "iid", "alie", 20, np.random.default_rng(0))
    assert len(problem.clients) == 20
    assert problem.clients.size == 650
    assert len(problem.test[1]) == 360
    assert 2.5 < problem.smoothness < 4.5
    assert 0.1 < problem.similarity < 1
    assert np.array_equal(problem.server.X, problem.clients.of(0).X)


def test_a_diverging_run_is_lost_and_stays_so():
    problem = make("wine", 1e-2, 2, "iid", "ipm", 8, np.random.default_rng(0))
    path = trace(CONTENDERS["mean"], problem, 4.0, 40)
    assert path.gaps[-1] == LOST
    assert path.rounds[-1] == 40


def test_the_step_is_chosen_where_it_is_not_judged():
    inputs = catalog.find("byzantine").study().Inputs.at("smoke", steps=3, rounds=20, clients=6)
    cell = Cell({**MAIN, "data": "wine", "f": 0, "attack": "none"}, 0)
    problem = Convergence().prepare(inputs, cell, np.random.default_rng(0))
    assert set(problem.scores) == set(Convergence().takes(inputs, cell))
    assert all(set(s) == {"1.0", "2.0", "0.5"} for s in problem.scores.values())
    problem.scores = {"gd": {"1.0": 0.0, "2.0": -1.0}}
    (row,) = Convergence().measure(problem, CONTENDERS["gd"], np.random.default_rng(0))
    assert (row["factor"], row["trials"]) == (2.0, 2)
    assert row["final"] != row["auto_final"]


def test_larger_scales_run_every_solver_in_every_cell():
    study = catalog.find("byzantine").study()
    assert len(WIDE) == 42
    for scale, cells in (("extended", WIDE), ("paper", PAPER)):
        inputs = study.Inputs.at(scale)
        assert all({"pigs", "aeg", "gd", "nesterov"} <= set(Tuned().takes(inputs, Cell(axes))) for axes in cells)
    assert Tuned().rounds(study.Inputs.at("paper"), Cell(PAPER[-1])) == 5000


def gnomon(line, *more):
    words = [sys.executable, "-m", "gnomon.cli", *shlex.split(line)[1:], *more]
    return subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})


def test_command(table):
    study = catalog.find("byzantine").study()
    done = gnomon(study.command, "--rounds", "60", "--save", "out", "--figure", "out.svg", "--beside")
    assert done.returncode == 0, done.stderr
    for text in ("569 rows, 6 features, 2 classes, 7 clients; 2 more clients lie (alie)", "mean radius", "malignant", "9 clients, at "
                 "most 2 liars", "kappa", "nesterov", "heavy_ball", "rounds to 1%", "plain mean"):  # fmt: skip
        assert text in done.stdout, text
    with np.load(table / "out" / "model.npz") as model:
        X = (pd.read_csv("hospitals.csv").iloc[:, :6].to_numpy() - model["mean"]) / model["scale"]
        guess = model["classes"][(X @ model["coef"].T + model["intercept"]).argmax(axis=1)]
    assert (guess == pd.read_csv("hospitals.csv")["outcome"]).mean() > 0.85
    assert json.loads((table / "out" / "certificate.json").read_text())["f"] == 2
    assert len(pd.read_csv(table / "out" / "history.csv")) > 3
    assert (table / "out.svg").stat().st_size > 1000
    assert gnomon(study.command, "--save", "out").returncode == 2


def test_example(table):
    study = catalog.find("byzantine").study()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", study.example], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "7 clients, at most 2 liars" in done.stdout
    assert "rounds" in done.stdout


@pytest.mark.parametrize(("line", "message"), [
    ("--data none.csv --target outcome --clients hospital", "none.csv is no file"),
    ("--data hospitals.csv --target result --clients hospital", "no column 'result'"),
    ("--data hospitals.csv --target outcome --clients hospital --f 4", "needs n > 2f, got n=7, f=4"),
    ("--data words.csv --target outcome --clients hospital", "columns town hold no numbers"),
    ("--data gaps.csv --target outcome --clients hospital", "missing or infinite values in age"),
    ("--data hospitals.csv --target outcome --clients hospital --attack mean", "alie"),
])  # fmt: skip
def test_mistakes_on_the_command_line(table, line, message):
    (table / "words.csv").write_text("town,outcome,hospital\nA,1,1\nB,0,2\n")
    (table / "gaps.csv").write_text("age,outcome,hospital\n3,1,1\n,0,2\n")
    done = gnomon(f"gnomon run byzantine {line}")
    assert done.returncode == 2, done.stderr
    assert message in " ".join(done.stderr.split())
