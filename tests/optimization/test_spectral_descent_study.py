"""The study of spectral descent: its smoke scale end to end, and ``gnomon run`` on a person's files."""

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
from gnomon.optimization.spectral_descent.study.adapters import uniformity
from gnomon.optimization.spectral_descent.study.growth import hits
from gnomon.optimization.spectral_descent.study.material import gather, targets
from gnomon.study.check import check
from gnomon.study.protocol import Cell
from gnomon.study.runner import Running


def mine(params):
    """A person's own contender: anything that makes an optimiser."""
    return torch.optim.SGD(params, lr=0.05)


def test_the_smoke_scale_runs(tmp_path: Path) -> None:
    found = check(catalog.find("spectral-descent"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v for v in found.verdicts}
    decided = ["equal-rate", "equal-rate-spread", "smallest-first", "hitting-law", "gd-largest-first", "over-parameterised",
               "flow-converges", "flow-regularised", "saddle-stays", "saddle-left", "newton-schulz-rate", "newton-schulz-order",
               "newton-schulz-apart"]  # fmt: skip
    assert {name: verdicts[name].verdict for name in decided} == dict.fromkeys(decided, "holds")
    assert {v.verdict for v in found.verdicts} <= {"holds", "undecided", "reported"}
    adapters = found.tables["Adapters"]
    assert adapters.groupby(["contender", "step"])["layer"].nunique().eq(4).all()
    assert np.isfinite(adapters[["flatness", "effective_rank", "loss"]]).all(axis=None)
    first = adapters[adapters["step"] == 1].groupby("contender")["loss"].first()
    assert first["muon"] == pytest.approx(first["adamw"])  # one start, the same batches
    assert found.figure.startswith("<?xml")


def test_a_contender_of_ones_own() -> None:
    study = catalog.find("spectral-descent").study()
    problem = study.experiments[0]().prepare(
        None, Cell({"spectrum": "9 3 1", "rank": 3, "gamma": 1e-2}), np.random.default_rng(0)
    )
    (row,) = study.experiments[0]().measure(problem, mine, np.random.default_rng(0))
    assert row["largest_first"] == 1
    assert row["excess_residual"] < 1e-6


def test_hits_by_hand() -> None:
    d = np.array([[0.0, 0.0], [1.9, 0.5], [2.0, 0.9], [2.0, 0.9]])
    assert hits(d, np.array([2.0, 1.0])).tolist()[0] == 1
    assert np.isnan(hits(d, np.array([2.0, 1.0]))[1])


def test_what_is_said_of_adapters_by_hand() -> None:
    """AdamW reaches Muon's final loss 2.0 half way between steps 4 and 8, where its flatness is 0.2."""
    rows = []
    for name, losses, flat in (("muon", [3.0, 2.5, 2.0], [0.9, 0.8, 0.6]), ("adamw", [2.8, 2.2, 1.8], [0.4, 0.3, 0.1])):
        for step, held, flatness in zip((1, 4, 8), losses, flat, strict=True):
            rows += [{"contender": name, "seed": 0, "step": step, "layer": layer, "flatness": flatness, "effective_rank": 7.0,
                      "loss": held, "held": held} for layer in "ab"]  # fmt: skip
    rows[3]["flatness"] = 0.2  # one layer of Muon's step 4 is steeper than AdamW's
    found = uniformity(pd.DataFrame(rows))
    assert found["Pairs"]["flatter"].tolist() == [0.75]
    assert found["Matched"].loc[0, ["flatness_ratio", "same_loss", "at_step"]].tolist() == pytest.approx(
        [3.0, 1.0, 6.0]
    )
    runs = found["Uniformity"].set_index("contender")
    assert runs.loc["muon", ["low_flatness", "final_held"]].tolist() == pytest.approx([0.5, 2.0])


# --- gnomon run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small language model and a small encoder with a tokenizer, a text, and labelled sentences."""
    room = tmp_path_factory.mktemp("person")
    text = "\n\n".join(datasets.wikipedia()[:3])[:40_000]
    (room / "text.txt").write_text(text)
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=["<pad>"], show_progress=False)  # fmt: skip
    tokenizer.train_from_iterator([text], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 400,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    llama = transformers.LlamaConfig(**sizes, num_key_value_heads=2, initializer_range=0.08)
    transformers.LlamaForCausalLM(llama).save_pretrained(room / "model")
    roberta = transformers.RobertaConfig(**sizes, max_position_embeddings=66, pad_token_id=0)
    transformers.RobertaForSequenceClassification(roberta).save_pretrained(room / "encoder")
    for name in ("model", "encoder"):
        fast.save_pretrained(room / name)
    lines = [
        (f"a {w} film", label) for w, label in (("good", "yes"), ("bad", "no"), ("fine", "yes"), ("dull", "no"))
    ] * 6
    pd.DataFrame(lines, columns=["sentence", "label"]).to_csv(room / "films.tsv", sep="\t", index=False)
    (room / "other.csv").write_text("text,class\nhello,1\n")
    (room / "one.csv").write_text("sentence,label\nhello,1\nthere,1\n")
    (room / "short.txt").write_text("A few words.")
    return room


@pytest.fixture
def gnomon(folder: Path, command_line):
    """The command line in the person's folder."""
    return functools.partial(command_line, folder)


def test_the_command_and_the_example_of_the_docs(folder: Path, gnomon) -> None:
    asked = catalog.find("spectral-descent").study()
    code, out, err = gnomon(*asked.command.split()[1:], "--figure", "figure.svg")
    assert code == 0, err
    for word in ("muon", "adamw", "flatness", "held-out", "q_proj"):  # a narrow table breaks "held-out loss"
        assert word in out
    assert (folder / "figure.svg").read_text().startswith("<?xml")
    assert (folder / "adapter" / "adapter_model.safetensors").exists()
    assert json.loads((folder / "adapter" / "adapter_config.json").read_text())["r"] == 4
    curves = pd.read_csv(folder / "adapter" / "curves.csv")
    assert curves.groupby("contender")["step"].max().to_dict() == {"muon": 8, "adamw": 8}
    code, _, err = gnomon(*asked.command.split()[1:])
    assert code == 2
    assert "--force" in err
    exec(asked.example, {})


def test_an_encoder_that_classifies(folder: Path, gnomon) -> None:
    code, out, err = gnomon("run", "spectral-descent", "--model", "encoder", "--task", "classification", "--text", "films.tsv",
                            "--steps", "4", "--rank", "2", "--window", "12", "--beside", "--json")  # fmt: skip
    assert code == 0, err
    shown = next(rows for title, rows in json.loads(out).items() if title.startswith("after"))
    assert {row["optimiser"] for row in shown} == {"muon", "adamw", "sgd", "newton-schulz"}


@pytest.mark.parametrize(("change", "says"), [
    ({"--model": "nowhere"}, "nowhere"),
    ({"--text": "missing.txt"}, "missing.txt"),
    ({"--text": "short.txt"}, "windows"),
    ({"--task": "regression"}, "--task"),
    ({"--task": "classification", "--text": "other.csv"}, "sentence and label"),
    ({"--task": "classification", "--text": "one.csv"}, "at least 2"),
    ({"--task": "classification", "--model": "embedded:smollm2", "--text": "films.tsv"}, "no encoder"),
    ({"--steps": "0"}, "--steps"),
])  # fmt: skip
def test_a_mistake_leaves_nothing(folder: Path, gnomon, change: dict[str, str], says: str) -> None:
    before = {p.name for p in folder.iterdir()}
    options = {"--model": "model", "--text": "text.txt", "--save": "new", **change}
    code, out, err = gnomon("run", "spectral-descent", *(word for pair in options.items() for word in pair))
    assert code == 2, out + err
    assert says in err
    assert {p.name for p in folder.iterdir()} == before


def test_a_classifier_needs_a_file_and_projections(folder: Path) -> None:
    with pytest.raises(ValueError, match="sentence and label"):
        gather(str(folder / "encoder"), "classification", None, 12, 2)
    with pytest.raises(ValueError, match="q_proj/v_proj"):
        targets(torch.nn.Linear(2, 2))
