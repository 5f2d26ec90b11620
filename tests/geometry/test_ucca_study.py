"""The study from end to end at smoke scale, its views, and using the method from the command line and from a file."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ortho_group

from gnomon import catalog, datasets
from gnomon.geometry.ucca import sources
from gnomon.geometry.ucca.study.experiments import (
    BASELINES,
    Diagnosis,
    Ours,
    Recovery,
    Threshold,
    Unpaired,
    taken_apart,
)
from gnomon.study.check import check
from gnomon.study.protocol import Cell
from gnomon.study.runner import Running

needs_data = pytest.mark.skipif(
    not (Path(os.environ.get("GNOMON_DATA", "")) / "ucca").is_dir(), reason="ucca/ is not under GNOMON_DATA"
)


@pytest.fixture
def views(tmp_path, monkeypatch):
    """Where the command and the example find their input."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.exponential(size=(60, 6)) * np.linspace(3, 1, 6)
    order = rng.permutation(60)
    np.save("a.npy", X)
    np.save("b.npy", (2 * X @ ortho_group.rvs(6, random_state=rng) + 1)[order])
    np.save("t.npy", np.argsort(order))
    return tmp_path


def test_smoke_scale_runs_from_end_to_end(tmp_path):
    found = check(catalog.find("ucca"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v.verdict for v in found.verdicts}
    assert {i for i, v in verdicts.items() if v == "holds"} == {"identities", "self-score"}
    assert set(verdicts.values()) <= {"holds", "undecided"}
    assert found.figure is not None
    pairs = found.tables["Pairs"].set_index("contender")
    assert pairs.loc["supervised", "correlation"] > 0.7
    assert (pairs["ratio"] <= 1.05).all()
    optima = found.tables["Landscape"]
    assert len(optima) > 10
    assert optima["optimum_score"].between(0, 1).all()


def test_taken_apart_is_put_together_by_the_truth():
    found = taken_apart(sources.latents(0.1), 100, np.random.default_rng(0))
    assert np.array_equal(found.Y[found.partner], found.Y_paired)
    assert found.row(found.partner)["accuracy"] == 1
    assert found.row(found.partner)["ratio"] == pytest.approx(1)
    assert found.supervised() > 0.9
    assert len(found.X_test) == sources.ITEMS - 100
    part = taken_apart(sources.latents(0.1), 100, np.random.default_rng(0), 0.5)
    known = part.partner >= 0
    assert known.sum() == 50
    assert np.array_equal(part.Y[part.partner[known]], part.Y_paired[known])
    assert len(part.X_test) == sources.ITEMS - 150
    none = taken_apart(sources.latents(0.1), 100, np.random.default_rng(0), 0.0)
    assert (none.partner == -1).all()
    assert not {tuple(r) for r in none.Y} & {tuple(r) for r in none.Y_paired}
    with pytest.raises(ValueError, match="leave none for tests"):
        taken_apart(sources.latents(0.1), sources.ITEMS, np.random.default_rng(0))


def test_every_experiment_measures(monkeypatch):
    """At a size where it takes no time; the smoke scale leaves these out."""
    inputs = catalog.find("ucca").study().Inputs.at("laptop", max_rounds=1, runs=2, nulls=2)
    population = tuple(sources.load("latents-0.1"))
    for experiment in (Recovery, Threshold, Unpaired, Diagnosis):
        monkeypatch.setattr(experiment, "population", lambda *_: population)
        cell = Cell({"task": "gradients", "n": 60, "overlap": 0.5}, 0)
        problem = experiment().prepare(inputs, cell, np.random.default_rng(0))
        row = experiment().measure(problem, Ours(), np.random.default_rng(0))[0]
        if experiment is Threshold:
            assert {"true_score", "spurious", "success", "predicted"} <= set(row)
        else:
            assert row["status"] in ("paired", "distribution", "failed")
            assert row["regret"] >= 0 or experiment is Unpaired
    problem = Recovery().prepare(inputs, cell, np.random.default_rng(0))
    for name in set(BASELINES) - {"linear MMD", "adversarial"}:  # a second each
        assert np.isfinite(Recovery().measure(problem, BASELINES[name], np.random.default_rng(0))[0]["correlation"]), (
            name
        )


def test_views(monkeypatch):
    pixels, labels = datasets.mnist()
    monkeypatch.setattr(datasets, "mnist", lambda: (pixels[:50], labels[:50]))
    X, Y, _ = sources.load("gradients")
    assert (X.shape, Y.shape) == ((50, 784), (50, 392))
    assert (Y >= 0).all()
    ramp = sources.gradient_histogram(
        np.broadcast_to(np.arange(8.0), (1, 8, 8))
    )  # to the right: direction 0 everywhere
    assert ramp.shape == (1, 8 * 4)
    assert ramp.reshape(8, 4)[0].tolist() == [16.0] * 4
    assert not ramp.reshape(8, 4)[1:].any()
    left, right, _ = sources.load("halves")
    images = X.reshape(-1, 28, 28)
    assert np.array_equal(left[0], images[0, :, :15].ravel())
    assert np.array_equal(right[0], images[0, :, 13:].ravel())
    assert sources.load("digits").Y.shape == (1797, 64)
    assert sources.load("genes").X.shape[0] == 700
    assert len(sources.paragraphs()) == sources.PARAGRAPHS
    z = sources.load("latents-0.5")
    assert z.X.shape == z.Y.shape == (sources.ITEMS, sources.MIXED)
    for wrong in ("nothing", "fac-nothing"):
        with pytest.raises(ValueError, match="task"):
            sources.load(wrong)


@needs_data
def test_numerals():
    X, Y, labels = sources.load("fac-pix")
    assert (X.shape, Y.shape) == ((2000, 216), (2000, 240))
    assert np.bincount(labels).tolist() == [200] * 10
    raw, flat = sources.load("kar-fac").X, sources.load("kar*-fac").X
    assert np.ptp(raw.std(axis=0)) > 1
    assert np.allclose(flat.std(axis=0), flat.std(axis=0)[0])


def test_encoded_text_has_unit_rows():
    early, late = sources.encoded(
        ["A cat sat on the mat.", "Stocks fell sharply today.", "A kitten sat on a rug."], (2, 6)
    )
    assert np.allclose(np.linalg.norm(late, axis=1), 1)
    assert late[0] @ late[2] > late[0] @ late[1] + 0.2
    assert early.shape == (3, 384)


def gnomon(line, *more):
    words = [sys.executable, "-m", "gnomon.cli", *shlex.split(line)[1:], *more]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_command(views):
    study = catalog.find("ucca").study()
    done = gnomon(
        study.command,
        "--pairs",
        "t.npy",
        "--save",
        "out",
        "--figure",
        "out.svg",
        "--beside",
        "--runs",
        "2",
        "--nulls",
        "2",
    )
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    for text in ("status paired", "score 1.000", "nulls 0.", "agreement of the runs 1.00", "100% of the rows paired right", "entropic GW",
                 "in-sample correlation"):  # fmt: skip
        assert text in shown, (text, shown)
    with np.load("out/ucca.npz", allow_pickle=False) as kept:
        assert kept["A"].shape == kept["B"].shape == (6, 5)
        assert np.array_equal(kept["pairing"], np.load("t.npy"))
        assert str(kept["status"]) == "paired"
    assert (views / "out.svg").stat().st_size > 1000


def test_example(views):
    study = catalog.find("ucca").study()
    done = subprocess.run([sys.executable, "-c", study.example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "paired score" in done.stdout
    assert "1.00 of supervised CCA" in done.stdout


def test_tables_and_unequal_views(views):
    import pandas as pd

    pd.DataFrame(np.load("a.npy")[:45]).to_csv("a.csv", index=False)
    line = "gnomon run ucca --x a.csv --y b.npy --components 2 --runs 1 --nulls 0 --rounds 1"
    assert "bijective=False" in " ".join(gnomon(line).stderr.split())
    done = gnomon(line, "--unequal", "--soft")
    assert done.returncode == 0, done.stderr
    assert "status failed" in done.stdout  # one run vouches for nothing
    Path("out").mkdir()
    Path("out/mine.txt").write_text("kept")
    assert gnomon(line, "--unequal", "--save", "out").returncode == 2


@pytest.mark.parametrize(("line", "message"), [
    ("--x none.npy --y b.npy", "none.npy does not exist"),
    ("--x a.npy", "--y is required"),
    ("--x a.npy --y notes.txt", "ends in .npy or .csv"),
    ("--x a.npy --y b.npy --components 0", "greater than or equal to 1"),
    ("--x a.npy --y b.npy --components 9", "n_components: got 9; expected at most 6"),
    ("--x a.npy --y b.npy --runs 1 --nulls 0 --pairs a.npy", "--pairs: got shape (60, 6); expected 60 rows of y"),
])  # fmt: skip
def test_mistakes_on_the_command_line(views, line, message):
    Path("notes.txt").write_text("nothing")
    done = gnomon(f"gnomon run ucca {line}")
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
