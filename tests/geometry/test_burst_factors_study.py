"""The study from end to end at smoke scale, and using the method from the command line and from a file."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gnomon import catalog
from gnomon.geometry import parse_bursts, read_spikes, simulate_mechanism
from gnomon.geometry.burst_factors import recordings
from gnomon.study.check import check
from gnomon.study.protocol import Cell
from gnomon.study.runner import Running

needs_data = pytest.mark.skipif(
    not (Path(os.environ.get("GNOMON_DATA", "")) / "burst_factors").is_dir(),
    reason="burst_factors/ is not under GNOMON_DATA",
)


@pytest.fixture
def spikes(tmp_path, monkeypatch):
    """Where the command and the example find their input."""
    monkeypatch.chdir(tmp_path)
    found = simulate_mechanism(15, 150, 1, 1, random_state=0)
    trains = {f"unit {i}": np.round(t, 5).tolist() for i, t in enumerate(found.trains)}
    (tmp_path / "spikes.json").write_text(json.dumps(trains))
    return tmp_path


@needs_data
def test_smoke_scale_runs_from_end_to_end(tmp_path):
    found = check(catalog.find("burst-factors"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    assert {v.verdict for v in found.verdicts} <= {"undecided", "reported"}
    assert found.figure is not None
    recovery = found.tables["Recovery"].set_index("contender")["r2_y"]
    assert recovery["burst factors"] > 0.8
    assert recovery["rate FA"] < 0.3
    tests = found.tables["Tests"].groupby(["regime", "contender"])["rejects"].mean()
    assert tests["private drift", "marks"] == 1
    assert tests["private drift", "shift"] < 0.6
    recorded = found.tables["Recorded"].set_index(["recording", "contender"])
    assert recorded.loc[("Purkinje, control", "marks"), "statistic"] == pytest.approx(1.26, abs=0.01)
    assert set(found.tables["Number"]["chosen"]) <= {0, 1, 2}


@needs_data
def test_recordings_are_those_of_the_sheet():
    culture, retina = recordings.load("culture"), recordings.load("retina")
    assert culture.E.shape == (342, 40)
    assert retina.E.shape[1] == 23
    assert retina.B.sum() / retina.E.sum() == pytest.approx(0.18, abs=0.01)
    lobe = recordings.load("antennal lobe, vanillin")
    assert lobe.E.shape == (800, 4)
    assert np.bincount(lobe.trials).tolist() == [40] * 20


def gnomon(line, *more):
    words = [sys.executable, "-m", "gnomon.cli", *shlex.split(line)[1:], *more]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_command(spikes):
    study = catalog.find("burst-factors").study()
    done = gnomon(study.command, "--save", "out", "--figure", "out.svg", "--beside")
    assert done.returncode == 0, done.stderr
    for text in ("15 neurons, 150 bins", "burst factors", "marks", "shift", "jitter", "constant", "spike counts"):
        assert text in done.stdout, text
    loadings, factors = (pd.read_csv(spikes / "out" / f"{name}.csv") for name in ("loadings", "factors"))
    assert list(loadings["neuron"][:2]) == ["unit 0", "unit 1"]
    assert {"event1", "burst1"} <= set(loadings) & set(factors)
    assert len(factors) == len(parse_bursts(read_spikes("spikes.json"))[0])
    assert pd.read_csv(spikes / "out" / "tests.csv")["pvalue"].between(0, 1).all()
    assert (spikes / "out.svg").stat().st_size > 1000
    assert gnomon(study.command, "--save", "out").returncode == 2


def test_example(spikes):
    study = catalog.find("burst-factors").study()
    done = subprocess.run([sys.executable, "-c", study.example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "(150, 2) (150, 1)" in done.stdout


@pytest.mark.parametrize(("line", "message"), [
    ("--spikes none.json", "none.json is no file"),
    ("", "--spikes is required"),
    ("--spikes spikes.json --theta slow", "expected a positive number of seconds, or logisi"),
    ("--spikes spikes.json --bin 0", "greater than 0"),
    ("--spikes bad.json", "not sorted"),
])  # fmt: skip
def test_mistakes_on_the_command_line(spikes, line, message):
    (spikes / "bad.json").write_text("[[0.2, 0.1]]")
    done = gnomon(f"gnomon run burst-factors {line}")
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_own_recording(spikes):
    study = catalog.find("burst-factors").study()
    inputs = study.Inputs.at("laptop", spikes=spikes / "spikes.json", permutations=19)
    tests, prediction = study.experiments[-2:]
    assert not tests().includes(inputs, Cell({"recording": "culture"}), "marks")
    problem = tests().prepare(inputs, Cell({"recording": "own"}), np.random.default_rng(0))
    for null in tests.contenders:
        assert tests().measure(problem, null, np.random.default_rng(0))[0]["pvalue"] <= 1
    problem = prediction().prepare(inputs, Cell({"recording": "own"}, 0), np.random.default_rng(0))
    for name, contender in prediction.contenders.items():
        assert np.isfinite(prediction().measure(problem, contender, np.random.default_rng(0))[0]["bits"]), name
