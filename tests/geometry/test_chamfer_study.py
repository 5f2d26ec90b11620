"""The study at smoke scale, its ladders and generators, the command and the example."""

from __future__ import annotations

import shlex
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from gnomon import catalog, cli
from gnomon.datasets import mnist
from gnomon.geometry.chamfer import generators, spaces
from gnomon.geometry.chamfer.study import ChamferStudy
from gnomon.study import Cell
from gnomon.study.check import check
from gnomon.study.runner import Running

SYSTEM = catalog.find("chamfer")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    return check(SYSTEM, scale="smoke", running=Running(jobs=1, results=tmp_path_factory.mktemp("results")))


def test_smoke_runs_and_its_identities_hold(smoke):
    verdicts = {v.id: v.verdict for v in smoke.verdicts}
    assert {"fd-blind", "copies-perfect-fd", "copies-perfect-balls", "copies-flagged"} <= {
        k for k, v in verdicts.items() if v == "holds"
    }
    assert not [name for name, verdict in verdicts.items() if verdict == "fails"]
    assert smoke.figure.startswith("<?xml")
    assert len(smoke.verdicts) == len(ChamferStudy.claims)


def test_derived_tables(smoke):
    taus = smoke.tables["Taus"]
    noise = taus[(taus["ladder"] == "noise") & (taus["metric"] == "fidelity_ratio")]
    assert (noise["tau"] > 0.8).all()
    ranges = smoke.tables["Ranges"].groupby("contender")["range"].mean()
    assert ranges["chamfer"] < ranges["recall"]
    assert set(smoke.tables["Excess"]["sample"]) >= {"fresh", "midpoints"}
    assert (smoke.tables["Wins"]["not_below"] <= smoke.tables["Wins"]["ladders"]).all()


def test_experiments_left_out_of_smoke_run_on_a_few_rows(monkeypatch):
    monkeypatch.setattr(generators, "VAE_EPOCHS", (1, 2))
    monkeypatch.setattr(generators, "DIFFUSION_UPDATES", 20)
    inputs = ChamferStudy.Inputs(rows=150, seeds=1)
    for experiment in ChamferStudy.experiments:
        if experiment.__name__ not in ("Detection", "Generators"):
            continue
        cell = {**experiment.cells[0], "space": "digits" if experiment.__name__ == "Detection" else "pixels"}
        problem = experiment().prepare(inputs, Cell(cell, 0), np.random.default_rng(0))
        problem.samples = (
            dict(list(problem.samples.items())[:3]) if isinstance(problem.samples, dict) else problem.samples[:4]
        )
        rows = {}
        for name, contender in experiment.contenders.items():
            rows[name] = experiment().measure(problem, contender, np.random.default_rng(0))
            assert rows[name]
        if experiment.__name__ == "Detection":
            table = pd.DataFrame([{**cell, "seed": 0, "contender": c, **r} for c, rs in rows.items() for r in rs])
            derived = ChamferStudy().derive({"Detection": table})
            assert derived["Areas"]["auc"].between(0, 1).all()
            assert len(derived["Alarms"]) == 2


def test_generators_make_images(monkeypatch):
    monkeypatch.setattr(generators, "VAE_EPOCHS", (1, 2))
    monkeypatch.setattr(generators, "DIFFUSION_UPDATES", 20)
    pixels, labels = mnist()
    rows = np.random.default_rng(0).permutation(5000)[:200]
    X = pixels[rows].astype(np.float32) / 255
    made = generators.generate(X, labels[rows], 30, seed=0)
    assert set(made) == {"copies", "gmm", "vae 1", "vae 2", "ddpm 0", "ddpm 1", "ddpm 3"}
    for sample in made.values():
        assert sample.shape == (30, 784)
        assert sample.dtype == np.float32
        assert (sample >= 0).all()
        assert (sample <= 1).all()
    again = generators.generate(X, labels[rows], 30, seed=0)
    assert all((again[name] == sample).all() for name, sample in made.items())


def test_ladders_start_unchanged_and_climb():
    X, labels = spaces.images("pixels")[0][::50], spaces.images("digits")[1]
    rng = np.random.default_rng(0)
    for change in spaces.CORRUPTIONS.values():
        damage = [np.abs(change(X, level, rng) - X).mean() for level in range(spaces.LEVELS)]
        assert damage[0] == 0
        assert np.all(np.diff(damage) > 0)
    classes = [len(np.unique(labels[spaces.label_drop(labels, level, 300, rng)])) for level in range(spaces.LEVELS)]
    assert classes == [10, 9, 8, 7, 5, 3]
    distinct = [len(np.unique(spaces.prototypes(labels, level, 400, rng))) for level in range(spaces.LEVELS)]
    assert distinct[0] == 400
    assert np.all(np.diff(distinct) < 0)
    assert distinct[-1] <= 10


def test_photographs_are_cut_without_overlap_and_parts_are_disjoint():
    X, labels = spaces.images("photos")
    assert X.shape[1:] == (28, 28)
    assert len(X) > 4000
    assert np.bincount(labels).max() <= 400
    parts = spaces.split(5000, 1500, np.random.default_rng(0))
    assert len(np.unique(np.concatenate(list(vars(parts).values())))) == 5000


# --- gnomon run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for name, scale, n in (("real", 1, 120), ("holdout", 1, 60), ("generated", 1.3, 60), ("train", 1, 80)):
        np.save(tmp_path / f"{name}.npy", scale * rng.normal(size=(n, 6)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gnomon(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    code = 0
    try:
        cli.main()
    except SystemExit as stop:
        code = stop.code or 0
    said = capsys.readouterr()
    return code, said.out + said.err


def test_command(arrays, monkeypatch, capsys):
    code, out = gnomon(ChamferStudy.command, monkeypatch, capsys)
    assert code == 0, out
    for word in (
        "fidelity_ratio",
        "coverage_ratio",
        "fd",
        "precision",
        "ball_coverage",
        "worst generated",
        "most missed real",
    ):
        assert word in out


def test_command_with_everything(arrays, monkeypatch, capsys):
    code, out = gnomon(
        f"{ChamferStudy.command} --train train.npy --save out --figure hist.svg --beside --k 2 --worst 3",
        monkeypatch,
        capsys,
    )
    assert code == 0, out
    assert "copy_ratio" in out
    assert "kid" in out
    scores = pd.read_csv(arrays / "out/scores.csv").set_index("metric")
    assert (
        scores.loc["fidelity_ratio", "low"]
        < scores.loc["fidelity_ratio", "value"]
        < scores.loc["fidelity_ratio", "high"]
    )
    worst = pd.read_csv(arrays / "out/generated.csv")
    assert len(worst) == 60
    assert worst["distance"].is_monotonic_decreasing
    assert len(pd.read_csv(arrays / "out/real.csv")) == 120
    assert (arrays / "hist.svg").stat().st_size > 1000
    before = (arrays / "out/scores.csv").read_bytes()
    code, out = gnomon(f"{ChamferStudy.command} --save out", monkeypatch, capsys)
    assert code == 2
    assert "--force" in out
    assert (arrays / "out/scores.csv").read_bytes() == before


def test_folders_of_images(arrays, monkeypatch, capsys):
    pixels, _ = mnist()
    rows = np.random.default_rng(0).permutation(5000)[:100]
    for folder, part in (("a", rows[:70]), ("b", rows[70:])):
        (arrays / folder).mkdir()
        for i in part:
            Image.fromarray(pixels[i].reshape(28, 28)).save(arrays / folder / f"{i:04d}.png")
    code, out = gnomon("gnomon run chamfer --real a --generated b --features raw --save out", monkeypatch, capsys)
    assert code == 0, out
    assert pd.read_csv(arrays / "out/generated.csv")["file"].str.endswith(".png").all()


def test_example(arrays, capsys):
    found: dict = {}
    exec(ChamferStudy.example, found)
    assert "fidelity_ratio" in capsys.readouterr().out
    assert len(found["worst"]) == len(found["missed"]) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--real nowhere.npy --generated generated.npy", "real"),
        ("--real real.npy --generated generated.npy --features vgg", "vgg"),
        ("--real real.npy --generated generated.npy --features mnist_cnn", "not images"),
        ("--real real.npy", "generated"),
        ("--real real.npy --generated generated.npy --k 500", "k: got 500"),
    ],
)
def test_mistakes_are_one_line(arrays, monkeypatch, capsys, options, message):
    code, out = gnomon(f"gnomon run chamfer {options}", monkeypatch, capsys)
    assert code == 2
    assert message in out
    assert "Traceback" not in out
