"""The study of GEM: its material, the smoke scale end to end, and ``gnomon run`` on a person's files."""

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

from gnomon import catalog, datasets, models
from gnomon.architectures.gem.study import equal_time
from gnomon.architectures.gem.study.material import UNKNOWN, build, corpus, restored, words
from gnomon.architectures.gem.study.recipes import GRID, JUDGED, OBJECTIVES, OTHERS, Recipe
from gnomon.architectures.gem.study.training import rate, ready, train
from gnomon.study.check import check
from gnomon.study.runner import Running

# --- material and training ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n\n".join(datasets.wikipedia()[:2])[:60_000])
    return corpus(path, 64, 32, 8)


def test_words() -> None:
    assert words("It's 1984, again.") == ["it", "'", "s", "1", "9", "8", "4", ",", "again", "."]


def test_the_corpus_keeps_the_frequent_words(text: dict) -> None:
    assert len(text["words"]) == 64
    counts = np.bincount(text["train"], minlength=64)
    assert (np.diff(counts[1:]) <= 0).all()
    assert text["inside"].shape == text["outside"].shape == text["fitting"].shape == (8, 32)
    assert UNKNOWN in text["outside"]


def test_a_short_corpus_is_told(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("A few words only. " * 20)
    with pytest.raises(ValueError, match="too few"):
        corpus(tmp_path / "short.txt", 64, 64, 8)


def test_objectives_of_a_seed_start_alike_and_see_the_same_batches(text: dict) -> None:
    runs = {name: train(OBJECTIVES[name], text, 16, 2, 8, seed=1) for name in ("ce", "mse 0.1")}
    assert np.array_equal(runs["ce"]["used"], runs["mse 0.1"]["used"])
    states = [build(16, 2, 64, 32, True, 1).state_dict() for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))
    assert not np.array_equal(*(r["state"]["model.embed_tokens.weight"] for r in runs.values()))
    again = train(OBJECTIVES["ce"], text, 16, 2, 8, seed=1)
    assert all(np.array_equal(runs["ce"]["state"][k], v) for k, v in again["state"].items())
    model = restored(runs["ce"], 16, 2, 64, 32)
    found = float(models.token_nll(model, torch.from_numpy(text["inside"])).mean())
    assert found == pytest.approx(runs["ce"]["curve"][-1, 1], abs=1e-4)


@pytest.mark.parametrize("name", ["untied", "label smoothing", "confidence penalty", "z-loss", "cosine regularisation", "centred 0.1",
                                  "cos 0.1", "energy 0.1 through", "plain mse 1"])  # fmt: skip
def test_every_kind_of_objective_trains(text: dict, name: str) -> None:
    model, step, _ = ready(OBJECTIVES[name], 16, 2, 64, 32, 0)
    before = model.model.embed_tokens.weight.detach().clone()
    step(torch.from_numpy(text["inside"]), 1.0)
    assert torch.isfinite(model.model.embed_tokens.weight).all()
    assert not torch.equal(before, model.model.embed_tokens.weight)


def test_the_grid_is_whole() -> None:
    assert len(GRID) == 24
    assert len(set(GRID.values())) == 24
    assert set(JUDGED) == {"mse 0.1", "mse 1", "all 0.1", "ce"}
    assert OBJECTIVES["mse 0.1"] == Recipe(0.1)
    assert not set(OTHERS) & set(JUDGED)


def test_the_rate_rises_and_falls() -> None:
    values = [rate(x) for x in np.linspace(0, 1, 50)]
    assert max(values) == pytest.approx(1, abs=0.02)
    assert values[-1] == pytest.approx(0.1)


def test_equal_time_takes_the_curve_where_the_baselines_time_ends() -> None:
    curves = pd.DataFrame([{"objective": o, "seed": 0, "step": s, "held_nll": 5 - s / 100}
                           for o in ("ce", "mse 0.1") for s in (50, 100)])  # fmt: skip
    cost = pd.DataFrame({"contender": ["ce", "mse 0.1"], "step": [1.0, 1.25]})
    found = equal_time(curves, cost).set_index("objective")["nll_equal_time"]
    assert found["ce"] == pytest.approx(4.0)
    assert found["mse 0.1"] == pytest.approx(4.2)


# --- the smoke scale ---------------------------------------------------------------------------------------------------


def test_the_smoke_scale_runs(tmp_path: Path) -> None:
    found = check(catalog.find("gem"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v for v in found.verdicts}
    for decided in ("descent", "hull-distance", "memory"):
        assert verdicts[decided].verdict == "holds", verdicts[decided].reason
    assert all(v.verdict in ("holds", "undecided", "reported") for v in found.verdicts)
    tables = found.tables
    assert set(tables["Predictions"]["objective"]) == set(JUDGED)
    assert tables["Predictions"].groupby(["objective", "seed", "contender"])["domain"].nunique().eq(2).all()
    assert np.isfinite(tables["Predictions"]["nll"]).all()
    assert set(tables["Geometry"].query("final")["layer"]) == {3}
    last = tables["Decoding"].query("layer == 3")
    assert last["lens_kl"].abs().max() == 0
    assert set(tables["Decoding"].query("contender == 'tuned lens'")["objective"]) == {"ce"}
    assert set(tables["Variants"]["objective"]) == {"plain ce", "plain mse 1"}
    assert set(tables["Variants"]["seed"]) == {0}
    assert set(tables["EqualTime"]["objective"]) == {"ce", "mse 0.1"}
    assert found.figure.startswith("<?xml")


# --- gnomon run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small local model with a tokenizer of its own, and two texts."""
    room = tmp_path_factory.mktemp("person")
    text = "\n\n".join(datasets.wikipedia()[:3])[:60_000]
    (room / "text.txt").write_text(text[:20_000])
    (room / "corpus.txt").write_text(text[20_000:])
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(room / "model")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=400, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                                      num_attention_heads=4, num_key_value_heads=2, initializer_range=0.08)  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(room / "model")
    return room


@pytest.fixture
def gnomon(folder: Path, command_line):
    """The command line in the person's folder."""
    return functools.partial(command_line, folder)


def test_the_command_and_the_example_of_the_docs(folder: Path, gnomon, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = catalog.find("gem").study()
    code, out, err = gnomon(*asked.command.split()[1:], "--save", "kept", "--figure", "figure.svg", "--json")
    assert code == 0, err
    shown = json.loads(out)
    assert [row["layer"] for row in shown["layers of model"]] == [0, 1, 2, 3]
    assert {"nll", "ece", "aurc", "swap"} <= set(shown["predictions"][0])
    assert len(shown["decoded trajectories of model"]) == 8
    kept = {p.name for p in (folder / "kept" / "model").iterdir()}
    assert kept == {"layers.csv", "reliability.csv", "trajectories.csv", "uncertainty.json"}
    assert len(pd.read_csv(folder / "kept" / "model" / "layers.csv")) == 4
    assert (folder / "figure.svg").read_text().startswith("<?xml")
    monkeypatch.chdir(folder)
    exec(asked.example, {})
    assert transformers.AutoModelForCausalLM.from_pretrained(folder / "trained").config.num_hidden_layers == 3


def test_training_with_and_without_keeps_both(folder: Path, gnomon) -> None:
    code, out, err = gnomon("run", "gem", "--model", "model", "--text", "text.txt", "--train", "--corpus", "corpus.txt", "--steps", "6",
                            "--batch", "4", "--length", "32", "--tokens", "512", "--rate", "0.001", "--gem-lambda", "1", "--save", "both")  # fmt: skip
    assert code == 0, err
    assert "gem" in out
    assert "plain" in out
    assert "train_runtime" not in out
    both = {
        name: transformers.AutoModelForCausalLM.from_pretrained(folder / "both" / name) for name in ("gem", "plain")
    }
    assert both["gem"].config.gem_logit_scale > 0
    assert not hasattr(both["plain"].config, "gem_logit_scale")
    assert (folder / "both" / "gem" / "tokenizer.json").is_file()
    before = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    ids = torch.tensor(
        [
            transformers.AutoTokenizer.from_pretrained(folder / "model")(
                (folder / "corpus.txt").read_text()[:3000]
            ).input_ids[:256]
        ]
    )
    for model in both.values():
        assert models.perplexity(model, ids) < models.perplexity(before, ids)


@pytest.mark.parametrize(("change", "says"), [
    ({"--model": "nowhere"}, "nowhere"),
    ({"--text": "missing.txt"}, "missing.txt"),
    ({"--text": "empty.txt"}, "empty"),
    ({"--text": "short.txt"}, "give more text"),
    ({"--train": None}, "--train needs a text"),
    ({"--gem-lambda": "-1"}, "--gem-lambda"),
    ({"--variant": "magic"}, "--variant"),
])  # fmt: skip
def test_a_mistake_leaves_nothing(folder: Path, gnomon, change: dict, says: str) -> None:
    (folder / "empty.txt").write_text(" \n")
    (folder / "short.txt").write_text("A few words.")
    before = {p.name for p in folder.iterdir()}
    options = {"--model": "model", "--text": "text.txt", "--save": "new", **change}
    code, out, err = gnomon("run", "gem", *(w for pair in options.items() for w in pair if w is not None))
    assert code == 2, out + err
    assert says in err
    assert len(err.strip().splitlines()) == 1, err
    assert {p.name for p in folder.iterdir()} == before
