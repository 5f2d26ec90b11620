"""The study of ghosted layers: evaluation by tails, the smoke scale end to end, and ``gnomon run`` on a person's files."""

from __future__ import annotations

import functools
import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE

from gnomon import catalog, datasets, models
from gnomon.study.check import check
from gnomon.study.runner import Running
from gnomon.surgery import GhostedLayers
from gnomon.surgery.ghosted_layers.calibrate import Batch, batches, collect, layer_inputs
from gnomon.surgery.ghosted_layers.evaluation import Tail, divergence, final_states, score, tail
from gnomon.surgery.ghosted_layers.model import shorten
from gnomon.surgery.ghosted_layers.study.contenders import CLASSES, MAIN, Recipe
from gnomon.surgery.ghosted_layers.study.experiments import Cut, Problem, evaluate
from gnomon.surgery.ghosted_layers.study.material import Random

IDS = torch.randint(3, 256, (9, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model() -> transformers.PreTrainedModel:
    return Random.load()


def dense_states(model) -> dict[int, torch.Tensor]:
    return layer_inputs(model, Batch(IDS), set(range(7)))[0]


# --- tails ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entrance", range(6))
def test_the_tail_from_any_layer_reproduces_the_dense_model(model, entrance: int) -> None:
    expected = models.token_nll(model, IDS)
    part = Tail(shorten(model, range(entrance), keep="share"), entrance)
    scores = score(model, final_states(part, dense_states(model)[entrance], IDS), IDS)
    assert abs(float(scores.nll.mean() - expected.mean())) < 1e-5
    assert torch.allclose(scores.nll, expected, atol=1e-4)
    with torch.no_grad():
        assert torch.equal(scores.top, model(IDS).logits[:, :-1].argmax(-1))


@pytest.mark.parametrize("removed", [[2, 3], [1, 3], [0, 2]])
@pytest.mark.parametrize("operator", ["affine", "replaceme"])
def test_the_tail_equals_the_whole_short_model(model, removed: list[int], operator: str) -> None:
    if operator == "replaceme" and 0 in removed:
        pytest.skip("nothing to fold into")
    ghost = GhostedLayers(layers=removed, operator=operator, options=None, ridge=1e-2)
    short = ghost.fit_transform(model, IDS.repeat(8, 1))
    if operator == "replaceme":
        part = tail(
            model,
            removed,
            folds={start - 1: o.weight for (start, _), o in zip(ghost.stats_, ghost.operators_.values(), strict=True)},
        )
        assert part.entrance == removed[0] - 1
    else:
        part = tail(
            model, removed, {end: o for (_, end), o in zip(ghost.stats_, ghost.operators_.values(), strict=True)}
        )
        assert part.entrance == removed[0]
    scores = score(model, final_states(part, dense_states(model)[part.entrance], IDS), IDS)
    assert torch.allclose(scores.nll, models.token_nll(short, IDS), atol=1e-4)


def test_divergence(model) -> None:
    a, b = (torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    assert divergence(model, a, a).abs().max() < 1e-6
    p, q = (model.lm_head(h).double().softmax(-1) for h in (a, b))
    assert torch.allclose(divergence(model, a, b).double(), (p * (p / q).log()).sum(-1), atol=1e-4)


def test_held_out_residuals_are_those_of_the_statistics(model) -> None:
    states, written = layer_inputs(model, Batch(IDS), {2, 4}, {1})
    stats = collect(model, batches(IDS), [(2, 4)], scales=True, mlp=True)[0]
    held = {"ids": IDS, "states": states, "written": written}
    problem = Problem(model, Cut([2, 3], [(2, 4)], False), stats, held)
    for name in ("ghost", "affine", "linearpatch-d"):
        made = problem.made_by({**MAIN, **CLASSES}[name])
        rows = list(evaluate(problem, made, language=False))
        operator = made[2, 4]
        assert np.mean([r["residual"] for r in rows]) == pytest.approx(stats[2, 4].residual(*operator), rel=1e-4)
        rest = stats[2, 4].residual(*operator, first=False)
        assert np.mean([r["residual_rest"] for r in rows]) == pytest.approx(rest, rel=1e-4)
    folded = problem.made_by(Recipe("replaceme"))
    rows = list(evaluate(problem, folded, language=False))
    change = folded[2, 4] - torch.eye(64, dtype=torch.float64)
    mlp = stats[2, 4].mlp
    assert np.mean([r["residual"] for r in rows]) == pytest.approx(mlp.residual(change) / mlp.y_square, rel=1e-4)


# --- the smoke scale ---------------------------------------------------------------------------------------------------


def mine(stats):
    """A person's own contender: any function of the statistics."""
    return torch.eye(stats.size, dtype=torch.float64), torch.zeros(stats.size, dtype=torch.float64)


def test_the_smoke_scale_runs(tmp_path: Path) -> None:
    found = check(catalog.find("ghosted-layers"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v for v in found.verdicts}
    for decided in ("least-residual", "nested-classes", "parameters"):
        assert verdicts[decided].verdict == "holds", verdicts[decided].reason
    assert {v.verdict for v in found.verdicts} == {"holds", "undecided"}
    recovery = found.tables["Recovery"]
    assert set(recovery["contender"]) == set(MAIN)
    assert recovery.groupby(["criterion", "contender", "seed"])["window"].nunique().eq(33).all()
    assert np.isfinite(recovery["nll"]).all()
    dense = recovery[recovery["contender"] == "dense"]
    assert (dense["agreement"] == 1).all()
    assert dense["kl"].abs().max() < 1e-6
    plain = recovery[recovery["contender"] == "none"]
    assert plain.groupby(["criterion", "seed"])["residual"].mean().to_numpy() == pytest.approx(1.0)
    assert found.figure.startswith("<?xml")
    again = check(catalog.find("ghosted-layers"), scale="smoke",
                  running=Running(jobs=1, results=tmp_path, contenders=(f"mine={__name__}:mine",)))  # fmt: skip
    own = again.tables["Recovery"].query("contender == 'mine'")
    assert own["nll"].to_numpy() == pytest.approx(plain["nll"].to_numpy(), rel=1e-5)


# --- gnomon run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small local model with a tokenizer of its own, and a text."""
    room = tmp_path_factory.mktemp("person")
    text = "\n\n".join(datasets.wikipedia()[:3])[:60_000]
    (room / "text.txt").write_text(text)
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(room / "model")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=400, hidden_size=32, intermediate_size=48, num_hidden_layers=6,
                                      num_attention_heads=4, num_key_value_heads=2, initializer_range=0.08)  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(room / "model")
    return room


OPTIONS = ("run", "ghosted-layers", "--window", "32", "--tokens", "1024")


@pytest.fixture
def gnomon(folder: Path, command_line):
    """The command line in the person's folder."""
    return functools.partial(command_line, folder, *OPTIONS)


def test_run_on_a_local_model_and_a_text_file(folder: Path, gnomon) -> None:
    common = ("--model", "model", "--drop", "2:4", "--calibration", "text.txt")
    code, out, err = gnomon(*common, "--save", "out", "--figure", "figure.svg")
    assert code == 0, err
    for word in ("dense", "none", "linearpatch-d", "ghost", "weighted", "removed blocks 2, 3", "first_token_norm"):
        assert word in out
    assert "Writing" not in err
    assert (folder / "figure.svg").read_text().startswith("<?xml")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder / "out")
    assert loaded.config.model_type == "gnomon-ghosted-llama"
    assert loaded.config.num_hidden_layers == 4
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out")
    ids = torch.tensor([tokenizer("Anarchism is a political philosophy").input_ids])
    dense = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    with torch.no_grad():
        states, _ = layer_inputs(dense, Batch(ids), {2})
        block = models.structure(loaded).blocks[2]
        entered, _ = layer_inputs(loaded, Batch(ids), {2})
        assert torch.allclose(entered[2], states[2], atol=1e-5)
        assert block.ghost.weight.shape == (32, 32)
    code, _, err = gnomon(*common, "--save", "out")
    assert code == 2
    assert "--force" in err


def test_the_command_and_the_example_of_the_docs(folder: Path, gnomon) -> None:
    asked = catalog.find("ghosted-layers").study()
    code, _, err = gnomon(*asked.command.split()[3:])
    assert code == 0, err
    exec(asked.example, {})
    for kept in ("short", "shorter"):
        assert transformers.AutoModelForCausalLM.from_pretrained(folder / kept).config.num_hidden_layers == 4


def test_run_beside_keeps_what_is_asked_for(folder: Path, gnomon) -> None:
    code, out, err = gnomon("--model", "model", "--n-remove", "2", "--criterion", "shortgpt", "--calibration", "text.txt",
                            "--beside", "--operator", "replaceme", "--save", "folded", "--json")  # fmt: skip
    assert code == 0, err
    shown = {row["model"] for row in json.loads(out)["perplexity"]}
    assert {"replaceme", "dense", "ghost", "linearpatch-r", "symmetric"} <= shown
    assert json.loads((folder / "folded" / "config.json").read_text())["model_type"] == "llama"


@pytest.mark.parametrize(("change", "says"), [
    ({"--model": "nowhere"}, "nowhere"),
    ({"--calibration": "binary"}, "binary"),
    ({"--calibration": "missing.txt"}, "missing.txt"),
    ({"--calibration": "empty.txt"}, "empty"),
    ({"--calibration": "short.txt"}, "shorter than one window"),
    ({"--drop": "4:40"}, "39"),
    ({"--drop": "4:2"}, "empty range"),
    ({"--drop": "4:6"}, "last block"),
    ({"--drop": "x"}, "A:B"),
    ({"--operator": "magic"}, "--operator"),
])  # fmt: skip
def test_a_mistake_leaves_nothing(folder: Path, gnomon, change: dict[str, str], says: str) -> None:
    (folder / "binary").write_bytes(bytes(range(256)) * 10)
    (folder / "empty.txt").write_text(" \n")
    (folder / "short.txt").write_text("A few words.")
    before = {p.name for p in folder.iterdir()}
    options = {"--model": "model", "--drop": "2:4", "--calibration": "text.txt", "--save": "new", **change}
    code, out, err = gnomon(*(word for pair in options.items() for word in pair))
    assert code == 2, out + err
    assert says in err
    assert len(err.strip().splitlines()) == 1, err
    assert {p.name for p in folder.iterdir()} == before


def test_a_full_disk_leaves_nothing(folder: Path) -> None:
    """A limit on the size of files stands for it: the writer of the weights gets an error half way."""
    before = {p.name for p in folder.iterdir()}
    command = [
        sys.executable,
        "-m",
        "gnomon.cli",
        *OPTIONS,
        "--model",
        "model",
        "--drop",
        "2:4",
        "--calibration",
        "text.txt",
    ]
    done = subprocess.run([*command, "--save", "new"], capture_output=True, text=True, check=False, cwd=folder,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)))  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "cannot be written" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert {p.name for p in folder.iterdir()} == before
