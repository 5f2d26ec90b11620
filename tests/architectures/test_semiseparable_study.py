"""The study from end to end at smoke scale, and the method on a person's own decays and model."""

import numpy as np
import pytest
import torch

from gnomon import catalog
from gnomon.architectures import segsum
from gnomon.architectures.semiseparable.baselines import recurrence
from gnomon.architectures.semiseparable.harvest import SmallLM, harvest, train, windows
from gnomon.architectures.semiseparable.study import SemiseparableStudy
from gnomon.architectures.semiseparable.study.contenders import Layer
from gnomon.architectures.semiseparable.study.cost import Transformers
from gnomon.architectures.semiseparable.study.data import STRESS, stress
from gnomon.study.check import check
from gnomon.study.runner import Running


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    running = Running(jobs=1, results=tmp_path_factory.mktemp("semiseparable"))
    return check(catalog.find("semiseparable"), scale="smoke", running=running)


def test_smoke(outcome):
    verdicts = {v.id: v.verdict for v in outcome.verdicts}
    assert set(verdicts.values()) <= {"holds", "undecided"}, verdicts
    for name in ("no-violations", "monotone", "harvested-stable", "split-exact", "split-traffic"):
        assert verdicts[name] == "holds"
    assert set(outcome.tables) >= {"Stability", "Harvested", "Crossover", "First", "Bandwidth", "LayerBandwidth"}
    assert SemiseparableStudy().figure(outcome.tables) is not None


def test_stress_sets():
    rng = np.random.default_rng(0)
    for name in STRESS:
        a = stress(name, 3, 256, rng)
        assert a.shape == (3, 256)
        assert (a <= 0).all()
    assert ((stress("resets -50", 4, 256, rng) == -50).sum(1) == 20).all()
    assert ((stress("resets -1e4", 4, 256, rng) == -1e4).sum(1) == 8).all()


def test_peers_compute_the_same_layer():
    generator = torch.Generator().manual_seed(0)
    x, B, C = (torch.randn(1, 128, *s, generator=generator) for s in ((2, 4), (1, 3), (1, 3)))
    a = -0.1 * torch.rand(1, 128, 2, generator=generator) - 1e-3
    exact = recurrence(*(t.double() for t in (x, a, B, C)))
    for layer in (Layer(), Layer({"segsum": "direct"}), Transformers()):
        torch.testing.assert_close(layer(x, a, B, C).double(), exact, rtol=0, atol=1e-4)


def test_training_learns_and_decays_are_those_of_the_layers():
    text = b"the quick brown fox jumps over the lazy dog. " * 200
    tokens = windows(text, 2, 64)
    torch.manual_seed(0)
    _, before = harvest(SmallLM(), tokens)
    model = train(text, 12, batch=2, length=64)
    a, after = harvest(model, tokens)
    assert after < before - 0.3
    assert a.shape == (2, 2, 8, 64)
    inside = model.norms[0](model.embedding(tokens))
    torch.testing.assert_close(torch.from_numpy(a[0]), model.mixers[0].log_decays(inside).transpose(1, 2))
    with pytest.raises(ValueError, match="fewer than one window of 64"):
        windows(text[:10], 1, 64)


# --- gnomon run ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import Mamba2Config, Mamba2ForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("mamba2")
    torch.manual_seed(0)
    config = Mamba2Config(num_heads=4, head_dim=8, hidden_size=16, vocab_size=130, state_size=8, num_hidden_layers=2,
                          n_groups=1, chunk_size=32, expand=2)  # fmt: skip
    Mamba2ForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({"?": 0, **{chr(i): i for i in range(1, 128)}}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(folder)
    return folder


def test_run_on_decays(invoke, tmp_path, capsys):
    file = tmp_path / "decays.npy"
    a = -np.random.default_rng(0).uniform(0, 1e-3, (6, 128)).astype(np.float32)
    a[:, ::16] = -1e4
    np.save(file, a)
    assert invoke("run", "semiseparable", "--decays", str(file), "--chunk-size", "64", "--json") == 0
    shown = capsys.readouterr().out
    assert '"chunks": 12' in shown
    assert "hier: 0.0%" in shown


def test_the_command_and_the_example_of_the_docs(invoke, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("decays.npy", -np.random.default_rng(0).exponential(size=(4, 64)).astype(np.float32))
    assert invoke(*SemiseparableStudy.command.split()[1:]) == 0
    seen: dict = {}
    exec(SemiseparableStudy.example, seen)
    assert (seen["mask"] <= 1).all()
    assert torch.isfinite(seen["y"]).all()
    assert seen["y"].shape == (1, 512, 2, 64)


def test_run_on_a_model_and_keep_it(folder, invoke, tmp_path, capsys):
    from transformers import Mamba2ForCausalLM

    text = tmp_path / "text.txt"
    text.write_text("a short text, read by a model that knows nothing. " * 40)
    kept = tmp_path / "kept"
    assert invoke("run", "semiseparable", "--model", str(folder), "--text", str(text), "--save", str(kept)) == 0
    assert "hier" in capsys.readouterr().out
    old, new = (Mamba2ForCausalLM.from_pretrained(f) for f in (folder, kept))
    for name, value in old.state_dict().items():
        assert torch.equal(new.state_dict()[name], value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --model or --decays, one of the two"),
        (["--decays", "nowhere.npy"], "expected an .npy file that exists"),
        (["--decays", "{tmp}/text.npy"], "is no .npy file of numbers"),
        (["--decays", "{tmp}/whole.npy"], "expected floats"),
        (["--decays", "{tmp}/growing.npy"], "log-decay must be <= 0"),
        (["--model", "nowhere"], "nowhere"),
        (["--decays", "{tmp}/fine.npy", "--save", "{tmp}/kept"], "give --model"),
    ],
)
def test_run_says_what_is_wrong(arguments, message, invoke, tmp_path, capsys):
    (tmp_path / "text.npy").write_text("not an array")
    np.save(tmp_path / "whole.npy", np.zeros((2, 8), int))
    np.save(tmp_path / "growing.npy", np.ones((2, 8)))
    np.save(tmp_path / "fine.npy", -np.ones((2, 8)))
    assert invoke("run", "semiseparable", *(a.format(tmp=tmp_path) for a in arguments)) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "kept").exists()


def test_masks_of_a_small_model_are_stable():
    torch.manual_seed(0)
    a, _ = harvest(SmallLM(), torch.randint(256, (1, 64)))
    assert (segsum(torch.from_numpy(a)) <= 1).all()
