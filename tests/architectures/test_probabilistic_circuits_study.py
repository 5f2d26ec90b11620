"""The study from end to end at smoke scale, its material, and the circuits on a person's own rows and text."""

import json
import math

import numpy as np
import pytest

from gnomon import catalog, datasets
from gnomon.architectures import Circuit
from gnomon.architectures.probabilistic_circuits.study import ProbabilisticCircuitsStudy, material
from gnomon.architectures.probabilistic_circuits.study.contenders import copies
from gnomon.architectures.probabilistic_circuits.study.experiments import TASKS, expected_nll
from gnomon.study.check import check
from gnomon.study.runner import Running


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    running = Running(jobs=1, results=tmp_path_factory.mktemp("circuits"))
    return check(catalog.find("probabilistic-circuits"), scale="smoke", running=running)


def test_smoke(outcome):
    verdicts = {v.id: v.verdict for v in outcome.verdicts}
    assert set(verdicts.values()) <= {"holds", "undecided", "reported"}, verdicts
    for name in ("output-bound", "certificates", "rank-at-the-root", "exact-queries"):
        assert verdicts[name] == "holds"
    rows = outcome.tables["Topology"]
    structured = rows[rows["contender"].isin(["balanced 4", "linear 4"])]
    assert (structured["excess"] >= structured["bound"] - 1e-6).all()
    assert (rows.loc[rows["contender"] == "truth as a circuit", "excess"].abs() < 1e-9).all()
    assert len(outcome.tables["Ranks"]) == 2 * 127
    assert ProbabilisticCircuitsStudy().figure(outcome.tables) is not None
    assert ProbabilisticCircuitsStudy().figure({}) is None


def test_bounds_of_the_crossing_task(outcome):
    rows = outcome.tables["Topology"].query("task == 'crossing' and contender == 'balanced 4'")
    assert math.isclose(rows["bound"].iloc[0], 9.706 - 6.350, abs_tol=1e-3)
    rows = outcome.tables["Topology"].query("task == 'cue 7' and contender == 'balanced 4'")
    assert math.isclose(rows["bound"].iloc[0], 1.555, abs_tol=1e-3)
    assert math.isclose(rows["every_vtree"].iloc[0], 1.243, abs_tol=1e-3)


def test_expected_nll_of_the_truth_is_its_entropy():
    for name in ("aligned", "crossing"):
        task = TASKS[name]
        assert math.isclose(expected_nll(task, copies(task.matchings[0], 4, task.noise)), task.entropy, abs_tol=1e-9)


# --- the material ----------------------------------------------------------------------------------------------------


def test_words_and_characters():
    streams = material.words(50)
    assert {k: v.max() for k, v in streams.items()} == dict.fromkeys(("train", "valid", "test"), 49)
    np.testing.assert_array_equal(material.characters("Ab, c!"), [0, 1, 26, 2, 26])
    parts = material.text_windows(8, 100, np.random.default_rng(0))
    assert {k: v.shape for k, v in parts.items()} == {"train": (100, 8), "valid": (10, 8), "test": (10, 8)}


def test_chorales_are_read_beat_by_beat():
    try:
        folder = datasets.package_dir("music21") / "corpus" / "bach"
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    soprano, *_, bass = material._voices(folder / "bwv227.11.mxl")  # Jesu, meine Freude: B B A G | F# F# E
    assert soprano[:7] == [71, 71, 69, 67, 66, 66, 64]
    assert len(soprano) == len(bass)
    pitches = np.array([soprano[:16] + bass[:16], [0, *soprano[1:16], *bass[16:32]]])
    X, sizes = material.coded(pitches)
    assert X[1, 0] == 0
    assert (np.array(sizes) > X).all()
    assert (X[0, :16] - X[0, 0] == pitches[0, :16] - pitches[0, 0]).all()


# --- gnomon run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def room(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.integers(3, size=(200, 5))
    X[:, 3] = X[:, 0]
    np.save("data.npy", X)
    X[::7, 2] = -1
    np.save("missing.npy", X)
    np.save("wrong.npy", np.array([[0.5, 1.0]] * 30))
    np.save("few.npy", np.zeros((3, 2), int))
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 30)
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "text.npy").write_text("no array")
    return tmp_path


def test_the_command_and_the_example_of_the_docs(invoke, room, capsys):
    assert invoke(*ProbabilisticCircuitsStudy.command.split()[1:], "--steps", "40") == 0
    shown = capsys.readouterr().out
    for words in ("chow_liu", "transformer", "mixture of 8 rows", "p(x_4 | x_0"):
        assert words in shown
    kept = Circuit.load(room / "kept" / "chow_liu.safetensors")
    assert kept.score(np.load("data.npy")) > -4 * math.log(3) - 0.3  # one variable is a copy
    assert {r["model"] for r in json.loads((room / "kept" / "nll.json").read_text())} >= {"linear", "transformer"}
    exec(ProbabilisticCircuitsStudy.example, {})


def test_run_on_text_beside_others(invoke, room, capsys):
    arguments = ["--data", "text.txt", "--vtree", "linear", "--width", "4", "--steps", "20", "--beside"]
    assert invoke("run", "probabilistic-circuits", *arguments, "--figure", "nll.svg") == 0
    shown = capsys.readouterr().out
    assert "sum of vtrees" in shown
    assert "Chow-Liu tree" in shown
    assert (room / "nll.svg").is_file()


def test_run_with_missing_symbols(invoke, room, capsys):
    assert invoke("run", "probabilistic-circuits", "--data", "missing.npy", "--width", "2", "--steps", "10") == 0
    assert "no Transformer was fitted" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere.npy"], "expected an .npy or .txt file that exists"),
        (["--data", "text.npy"], "is no .npy file of numbers"),
        (["--data", "wrong.npy"], "no integers"),
        (["--data", "few.npy"], "20 rows or more"),
        (["--data", "short.txt"], "expected 20 windows"),
        (["--data", "data.npy", "--vtree", "oak"], "expected some of chow_liu"),
        (["--data", "data.npy", "--optimizer", "sgd"], "expected em or adam"),
        (["--data", "data.npy", "--width", "0"], "greater than or equal to 1"),
    ],
)
def test_run_says_what_is_wrong(arguments, message, invoke, room, capsys):
    assert invoke("run", "probabilistic-circuits", *arguments, "--save", "kept") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error
    assert "Traceback" not in error
    assert not (room / "kept").exists()
