"""The study of Muon on river valleys: its smoke scale end to end, and ``gnomon run`` on a person's files."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE

from gnomon import catalog, datasets
from gnomon.optimization.muon_river.study import material
from gnomon.optimization.muon_river.study.lab import problem_of, stays_below
from gnomon.optimization.muon_river.study.language import BRANCHES, Run
from gnomon.study.check import check
from gnomon.study.runner import Running


def test_the_smoke_scale_runs(tmp_path: Path) -> None:
    found = check(catalog.find("muon-river"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v for v in found.verdicts}
    decided = [
        "late-floor",
        "two-stages",
        "two-stages-time",
        "muon-never",
        "momentum-overshoots",
        "overshoot-bounded",
    ]
    assert {name: verdicts[name].verdict for name in decided} == dict.fromkeys(decided, "holds")
    assert {v.verdict for v in found.verdicts} <= {"holds", "undecided", "reported"}
    scan = found.tables["Scan"]
    assert scan.groupby("switch")["contender"].nunique().eq(len(BRANCHES)).all()
    constant = scan[scan["contender"] == "muon"]["loss"]
    assert np.ptp(constant) < 1e-6  # the same run, whichever checkpoint it goes on from
    assert found.figure.startswith("<?xml")


def test_branches_go_on_from_a_checkpoint_as_if_there_were_none() -> None:
    inputs = type("Inputs", (), {"steps": 6, "held": 4})
    straight = Run(inputs, "small", 0)
    straight.go(6, BRANCHES["muon"])
    first = Run(inputs, "small", 0)
    first.go(3, BRANCHES["muon"])
    kept = first.state()
    first.go(5, BRANCHES["sgd"])  # does not disturb what was kept
    second = Run(inputs, "small", 1)
    second.seed = 0
    second.load(kept)
    second.go(6, BRANCHES["muon"])
    for a, b in zip(straight.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_stays_below_by_hand() -> None:
    assert stays_below(np.array([3.0, 0.5, 2.0, 0.4, 0.3]), 1.0) == 3
    assert stays_below(np.array([0.5, 0.4]), 1.0) == 0
    assert np.isnan(stays_below(np.array([0.5, 2.0]), 1.0))


def test_a_contender_of_ones_own() -> None:
    study = catalog.find("muon-river").study()
    lab = problem_of("population", np.random.default_rng(0))
    (row,) = study.experiments[0]().measure(
        lab, lambda given: given.run(lambda p: torch.optim.SGD(p, lr=0.01), 600), np.random.default_rng(0)
    )
    assert row["river_600"] < row["river_25"]


# --- gnomon run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small language model with a tokenizer, a configuration alone, and a text."""
    room = tmp_path_factory.mktemp("person")
    text = "\n\n".join(datasets.wikipedia()[:3])[:30_000]
    (room / "text.txt").write_text(text)
    (room / "short.txt").write_text("A few words.")
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=400, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(room / "model")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(room / "model")
    (room / "blank").mkdir()
    config.save_pretrained(room / "blank")
    (room / "tiny").mkdir()
    config.vocab_size = 20
    config.save_pretrained(room / "tiny")
    return room


@pytest.fixture
def gnomon(folder: Path, command_line):
    """The command line in the person's folder."""
    return functools.partial(command_line, folder)


def test_the_command_and_the_example_of_the_docs(folder: Path, gnomon) -> None:
    asked = catalog.find("muon-river").study()
    code, out, err = gnomon(*asked.command.split()[1:], "--figure", "figure.svg")
    assert code == 0, err
    for word in ("two-stage", "linear", "straightness", "switch"):
        assert word in out
    assert (folder / "figure.svg").read_text().startswith("<?xml")
    assert transformers.AutoModelForCausalLM.from_pretrained(folder / "trained").config.hidden_size == 32
    curves = pd.read_csv(folder / "trained" / "curves.csv")
    assert curves["step"].iloc[-1] == 40
    assert curves["two-stage"].iloc[-1] < curves["two-stage"].iloc[0]
    assert curves.iloc[0][["two-stage", "muon", "muon linear"]].nunique() == 1  # one start
    code, _, err = gnomon(*asked.command.split()[1:])
    assert code == 2
    assert "--force" in err
    exec(asked.example, {})


def test_a_configuration_alone_reads_bytes(folder: Path, gnomon) -> None:
    code, out, err = gnomon("run", "muon-river", "--model", "blank/config.json", "--corpus", "text.txt", "--switch", "0.5", "--steps", "8",
                            "--context", "16", "--batch", "2", "--beside", "--json")  # fmt: skip
    assert code == 0, err
    found = json.loads(out)
    assert "switched at step 4" in found["two stages"]
    assert "adamw" in found["validation loss"][0]
    assert material.own(str(folder / "blank"), 0)[1] is None


@pytest.mark.parametrize(("change", "says"), [
    ({"--model": "nowhere"}, "nowhere"),
    ({"--model": "tiny"}, "too few for bytes"),
    ({"--corpus": "missing.txt"}, "missing.txt"),
    ({"--corpus": "short.txt"}, "give more text"),
    ({"--switch": "later"}, "--switch"),
    ({"--switch": "1.5"}, "--switch"),
    ({"--steps": "0"}, "--steps"),
])  # fmt: skip
def test_a_mistake_leaves_nothing(folder: Path, gnomon, change: dict[str, str], says: str) -> None:
    before = {p.name for p in folder.iterdir()}
    options = {"--model": "model", "--corpus": "text.txt", "--steps": "4", "--save": "new", **change}
    code, out, err = gnomon("run", "muon-river", *(word for pair in options.items() for word in pair))
    assert code == 2, out + err
    assert says in err
    assert {p.name for p in folder.iterdir()} == before
