"""The study from end to end at smoke scale, and using the method from the command line and from a file."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import numpy as np
import pytest

from gnomon import catalog, cli
from gnomon.sampling import TwoLevelSoftmax
from gnomon.sampling.two_level_softmax.study import data
from gnomon.sampling.two_level_softmax.vectors import read_vectors
from gnomon.study.check import check
from gnomon.study.protocol import Cell
from gnomon.study.runner import Running


@pytest.fixture
def vectors(tmp_path, monkeypatch):
    """Where the command and the example find their input."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(20, 16))
    for name, n in (("items", 1500), ("queries", 40)):
        x = centres[rng.integers(20, size=n)] + 0.3 * rng.normal(size=(n, 16))
        np.save(tmp_path / f"{name}.npy", (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32))
    return tmp_path


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    running = Running(jobs=1, results=tmp_path_factory.mktemp("results"))
    return check(catalog.find("two-level-softmax"), scale="smoke", running=running)


def test_smoke_scale_runs_from_end_to_end(smoke):
    verdicts = {v.id: v.verdict for v in smoke.verdicts}
    for name in ("bounds-hold", "equal-sizes", "singletons-exact", "identical-exact"):
        assert verdicts[name] == "holds", name
    assert "fails" not in verdicts.values()
    assert smoke.figure is not None
    fidelity = smoke.tables["Fidelity"]
    assert np.isfinite(fidelity[["kl", "kl_reverse", "tv", "ess"]].to_numpy(float)).all()
    means = fidelity[fidelity["beta"] == 5].groupby("contender")["kl"].mean()
    assert means["SD-full"] < means["S-2LS"] < means["2LS"]
    slopes = fidelity[fidelity["beta"] == 5].groupby("contender")[["size_slope", "dispersion_slope"]].mean()
    assert abs(slopes.loc["S-2LS", "dispersion_slope"] - 1) < 0.5
    draws = smoke.tables["Draws"].groupby("contender")["empirical_tv"].mean()
    assert draws["exact"] < draws["2LS"]
    assert smoke.tables["Gradient"].groupby("contender")["cosine"].mean().between(-1, 1).all()


def test_digit_classes_are_balanced_and_queries_held_out():
    found = data.load("mnist", 2000, 32, 16)
    assert set(np.bincount(found["classes"])) == {200}
    assert len(found["queries"]) == 32
    assert len(found["calibration"]) == 16
    together = np.concatenate([found["queries"], found["calibration"]])
    assert not np.any(np.all(found["items"][:, None, :4] == together[None, :, :4], axis=2))
    np.testing.assert_allclose(np.linalg.norm(found["items"], axis=1), 1, rtol=1e-5)


@pytest.fixture
def gnomon(monkeypatch, capsys):
    """Run a command line in this process: its exit code and what it printed."""

    def run(line, *more):
        monkeypatch.setattr(sys, "argv", [*shlex.split(line), *more])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        shown = capsys.readouterr()
        return code, shown.out, " ".join(shown.err.split())

    return run


def test_command(vectors, gnomon):
    study = catalog.find("two-level-softmax").study()
    code, out, err = gnomon(study.command, "--save", "out", "--figure", "out.svg")
    assert code == 0, err
    for text in ("SD-2LS", "S-2LS", "1500 items in 39 clusters", "kl", "chi2", "R = "):
        assert text in out, text
    kept = np.load(vectors / "out" / "draws.npz")
    assert kept["ids"].shape == (40, 10)
    sampler = TwoLevelSoftmax.load(vectors / "out" / "sampler.npz")
    np.testing.assert_allclose(sampler.log_prob(np.load("queries.npy"), kept["ids"]), kept["log_q"], atol=1e-5)
    assert (vectors / "out.svg").stat().st_size > 1000
    code, _, err = gnomon(study.command, "--save", "out")
    assert code == 2
    assert "out exists" in err


def test_command_with_calibration(vectors, gnomon):
    code, out, err = gnomon(
        "gnomon run two-level-softmax --items items.npy --queries queries.npy --calibrate items.npy --json"
    )
    assert code == 0, err
    shown = json.loads(out)
    assert [row["method"] for row in shown[1]] == ["2LS", "S-2LS", "SD-2LS"]


def test_example(vectors):
    study = catalog.find("two-level-softmax").study()
    done = subprocess.run([sys.executable, "-c", study.example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(30, 5)")


@pytest.mark.parametrize(("line", "message"), [
    ("--items none.npy --queries queries.npy", "none.npy is no file"),
    ("--items items.npy", "--queries is required"),
    ("--items items.npy --queries queries.npy --beta inf", "finite inverse temperature"),
    ("--items items.npy --queries queries.npy --beta=-1", "finite inverse temperature"),
    ("--items items.npy --queries narrow.npy", "queries: 8 dimensions, the items have 16"),
    ("--items items.npy --queries queries.npy --dispersion round", "dispersion: got 'round'"),
])  # fmt: skip
def test_mistakes_on_the_command_line(vectors, gnomon, line, message):
    np.save("narrow.npy", np.load("queries.npy")[:, :8])
    code, _, err = gnomon(f"gnomon run two-level-softmax {line}")
    assert code == 2
    assert message in err


def test_read_vectors(tmp_path):
    x = np.random.default_rng(0).normal(size=(7, 5)).astype("<f4")
    np.save(tmp_path / "x.npy", x)
    np.concatenate([np.full((7, 1), 5, "<i4"), x.view("<i4")], axis=1).tofile(tmp_path / "x.fvecs")
    for name in ("x.npy", "x.fvecs"):
        np.testing.assert_array_equal(read_vectors(tmp_path / name), x)
    np.save(tmp_path / "flat.npy", x[0])
    np.save(tmp_path / "text.npy", np.array([["a"]]))
    np.save(tmp_path / "pickle.npy", np.array([[{}]]), allow_pickle=True)
    (tmp_path / "bad.npy").write_bytes(b"no")
    (tmp_path / "bad.fvecs").write_bytes(x.tobytes())
    (tmp_path / "empty.fvecs").touch()
    (tmp_path / "x.txt").touch()
    for name, message in (("flat.npy", r"shape \(n, d\)"), ("text.npy", r"shape \(n, d\)"), ("bad.npy", "cannot be read"),
                          ("pickle.npy", "cannot be read"), ("bad.fvecs", "no .fvecs file"), ("empty.fvecs", "no .fvecs"),
                          ("x.txt", "ends in .npy or .fvecs"), ("missing.npy", "is no file")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            read_vectors(tmp_path / name)


def test_own_vectors(vectors):
    """The paper scale runs on a person's own vectors."""
    study = catalog.find("two-level-softmax").study()
    given = {"n_queries": 30, "n_calibration": 10, "beta": 5.0}
    inputs = study.Inputs.at("paper", items=vectors / "items.npy", queries=vectors / "queries.npy", **given)
    experiment = study.experiments[0]()
    cell = Cell({"data": "own", "partition": "kmeans", "beta": 0}, 0)
    problem = experiment.prepare(inputs, cell, np.random.default_rng(0))
    rows = list(experiment.measure(problem, experiment.contenders["SD-calibrated"], np.random.default_rng(0)))
    assert len(rows) == 30
    assert problem.base.beta == 5.0
    with pytest.raises(ValueError, match="items, queries: this scale runs on your own vectors"):
        experiment.prepare(study.Inputs.at("paper", **given), cell, np.random.default_rng(0))
