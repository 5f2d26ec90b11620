"""The study from end to end at smoke scale, and the method on a person's own data and network."""

import numpy as np
import pytest
import torch

from gnomon import catalog
from gnomon.architectures.dormant_spiking.study import DormantSpikingStudy
from gnomon.architectures.dormant_spiking.study.contenders import RECIPES
from gnomon.architectures.dormant_spiking.study.material import measures, network, split
from gnomon.study.check import check
from gnomon.study.runner import Running


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    running = Running(jobs=1, results=tmp_path_factory.mktemp("dormant-spiking"))
    return check(catalog.find("dormant-spiking"), scale="smoke", running=running)


def test_smoke(outcome):
    verdicts = {v.id: v.verdict for v in outcome.verdicts}
    assert set(verdicts.values()) <= {"holds", "undecided"}, verdicts
    assert verdicts["lazy-exact"] == "holds"
    assert set(outcome.tables) >= {"Diagnosis", "PostHocSaving", "Saving", "Together", "Lazy"}
    networks = outcome.tables["Networks"]
    assert set(networks["contender"]) == set(RECIPES) - {"post hoc"}
    assert (networks["pj"] > 0).all()
    lazy = outcome.tables["Lazy"]
    assert abs(lazy.loc[lazy["contender"] == "lazy", "awake"] - 0.3).max() < 0.02
    assert (lazy.loc[lazy["contender"] == "all awake", "awake"] == 1).all()
    assert DormantSpikingStudy().figure(outcome.tables) is not None


def test_every_image_is_tested_once():
    tests = [split("digits", seed, 10**6) for seed in range(5)]
    assert sum(len(t.y_test) for t in tests) == 1797
    together = torch.cat([t.X_test for t in tests])
    whole = torch.cat([tests[0].X, tests[0].X_test])
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, whole.tolist()))
    assert not torch.equal(split("digits", 5, 100).X, tests[0].X[:100])


def test_the_same_seed_gives_the_same_weights_whatever_the_neuron():
    a, b = (
        network("digits", 16, 3, wake="never", learn_v_dormant=False),
        network("digits", 16, 3, learn_v_dormant=False),
    )
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("data", ["events", "mnist", "mnist1d"])
def test_the_other_data(data):
    if data == "mnist1d":
        pytest.importorskip("mnist1d")
    fold = split(data, 0, 60)
    row = measures(network(data, 64, 0, learn_v_dormant=False), fold)
    assert 0 < row["pj_rest"] < row["pj"]
    assert (row["macs"] == 0) == (data == "events")


# --- gnomon run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def digits(tmp_path, monkeypatch):
    from sklearn.datasets import load_digits

    monkeypatch.chdir(tmp_path)
    X, y = load_digits(return_X_y=True)
    np.savez("digits.npz", X=X[:300], y=y[:300])
    return tmp_path


def test_the_command_and_the_example_of_the_docs(invoke, digits, capsys):
    assert invoke(*DormantSpikingStudy.command.split()[1:]) == 0
    shown = capsys.readouterr().out
    assert "dormancy saves" in shown
    assert "state_compares" in shown
    exec(DormantSpikingStudy.example, seen := {})
    assert seen["net"](seen["X"]).shape == (300, 10)


def test_run_beside_with_events_and_keep_it(invoke, tmp_path, capsys):
    from safetensors.torch import load_file

    rng = np.random.default_rng(0)
    y = np.repeat(["left", "right"], 30)
    X = rng.random((60, 5, 2, 4)) < np.where(y == "left", 0.2, 0.6)[:, None, None, None]
    np.savez(tmp_path / "events.npz", X=X, y=y)
    kept, picture = tmp_path / "kept", tmp_path / "picture.svg"
    assert invoke("run", "dormant-spiking", "--data", str(tmp_path / "events.npz"), "--events", "--wake", "after", "--n", "2",
                  "--epochs", "3", "--hidden", "16", "--beside", "--figure", str(picture), "--save", str(kept)) == 0  # fmt: skip
    shown = capsys.readouterr().out
    assert "post hoc" in shown
    assert "rate" in shown
    assert picture.stat().st_size > 0
    assert load_file(str(kept / "dormant.safetensors"))["1.weight"].shape == (16, 8)
    assert (kept / "lif-ledger.csv").read_text().startswith("variant")


def test_run_on_a_network_of_ones_own(invoke, digits, capsys):
    pytest.importorskip("spikingjelly")
    from safetensors.torch import save_file

    (digits / "spiking_builder_for_test.py").write_text(
        "from torch import nn\n"
        "from spikingjelly.activation_based.neuron import LIFNode\n"
        "def build():\n"
        "    return nn.Sequential(nn.Linear(64, 20), LIFNode(step_mode='m'), nn.Linear(20, 10))\n"
    )
    weights = {
        "0.weight": torch.randn(20, 64),
        "0.bias": torch.zeros(20),
        "2.weight": torch.randn(10, 20),
        "2.bias": torch.zeros(10),
    }
    save_file(weights, str(digits / "net.safetensors"))
    line = ["run", "dormant-spiking", "--data", "digits.npz", "--net", "net.safetensors", "--epochs", "0", "--builder"]
    assert invoke(*line, "spiking_builder_for_test:build", "--save", "kept") == 0
    assert "dormancy saves" in capsys.readouterr().out
    assert invoke(*line, "spiking_builder_for_test:nothing") == 2
    assert "cannot be loaded" in " ".join(capsys.readouterr().err.split())
    save_file({"0.weight": torch.zeros(2, 2)}, str(digits / "net.safetensors"))
    assert invoke(*line, "spiking_builder_for_test:build") == 2
    assert "does not fit the network" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere.npz"], "does not exist"),
        (["--data", "text.npz"], "is no .npz file"),
        (["--data", "other.npz"], "expected X and y"),
        (["--data", "short.npz"], "a label for each"),
        (["--data", "holes.npz"], "NaN or infinity"),
        (["--data", "one.npz"], "two classes or more"),
        (["--data", "digits.npz", "--v-dormant", "0.5"], "--v-dormant: got"),
        (["--data", "digits.npz", "--hidden", "12,x"], "expected positive numbers"),
        (["--data", "digits.npz", "--net", "digits.npz"], "takes both"),
        (["--data", "digits.npz", "--wake", "after"], "--n"),
        (["--data", "digits.npz", "--epochs", "0"], "--epochs"),
        (["--data", "sequence.npz", "--events"], "expected spikes"),
    ],
)
def test_run_says_what_is_wrong(arguments, message, invoke, digits, capsys):
    (digits / "text.npz").write_text("not an archive")
    X, y = np.random.default_rng(0).random((20, 3, 4)), np.repeat([0, 1], 10)
    np.savez("other.npz", Z=X)
    np.savez("short.npz", X=X, y=y[:5])
    np.savez("holes.npz", X=np.where(X > 0.9, np.nan, X), y=y)
    np.savez("one.npz", X=X, y=np.zeros(20))
    np.savez("sequence.npz", X=X, y=y)
    assert invoke("run", "dormant-spiking", *arguments) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error
    assert "Traceback" not in error
