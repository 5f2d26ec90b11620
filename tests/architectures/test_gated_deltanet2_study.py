"""The study from end to end at smoke scale, needles in text, and the method on a person's own text and model."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gnomon import catalog
from gnomon.architectures.gated_deltanet2.diagnostics import gate_statistics
from gnomon.architectures.gated_deltanet2.model import GatedDeltaNet2Config, GatedDeltaNet2ForCausalLM
from gnomon.architectures.gated_deltanet2.ruler import KINDS, evaluate, hide
from gnomon.architectures.gated_deltanet2.study import GatedDeltaNet2Study
from gnomon.architectures.gated_deltanet2.study.exact import Stepwise
from gnomon.architectures.gated_deltanet2.text import learn_tokenizer, sentences
from gnomon.study.check import check
from gnomon.study.runner import Running

TEXT = (
    "The quick brown fox jumps over the lazy dog. Then it sleeps until the sun goes down. Nobody sees it leave. " * 60
)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    running = Running(jobs=1, results=tmp_path_factory.mktemp("gated_deltanet2"))
    return check(catalog.find("gated_deltanet2"), scale="smoke", running=running)


def test_smoke(outcome):
    verdicts = {v.id: v.verdict for v in outcome.verdicts}
    assert set(verdicts.values()) <= {"holds", "undecided"}, verdicts
    for name in ("exact", "exact-gradients", "exact-single", "reductions", "stepwise", "constant-cache"):
        assert verdicts[name] == "holds"
    assert GatedDeltaNet2Study().figure(outcome.tables) is not None


def test_learning_curves(outcome):
    learning, curves = outcome.tables["Learning"], outcome.tables["Recall"]
    assert set(learning["contender"]) == {"gdn2", "kda"}
    run = curves.query("task == 'mqar' and contender == 'gdn2' and place == -1 and updates == -1")
    assert run["step"].tolist() == [50, 60]
    row = learning.query("task == 'mqar' and contender == 'gdn2'").iloc[0]
    assert row["area"] == pytest.approx(run["accuracy"].mean())
    assert row["final"] == run["accuracy"].iloc[-1]
    half = outcome.tables["Halfway"].query("task == 'mqar' and contender == 'gdn2'").iloc[0]
    assert (half["reached"], half["steps_to_half"]) == (False, 60)
    said = {v.id: "the budget" in str(v) for v in outcome.verdicts if v.id.startswith(("recall", "stretch", "edit"))}
    assert {name for name, budget in said.items() if budget} == {"recall-steps"}
    places = curves.query("task == 'mqar' and contender == 'gdn2' and place >= 0")
    assert sorted(places["place"]) == list(range(12))
    assert (curves.query("task == 'rebinding' and updates > 0")["updates"] > 1).any()


def test_gate_statistics():
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "head_dim": 8, "num_heads": 2}
    tokens = torch.randint(20, (2, 30))
    found = gate_statistics(GatedDeltaNet2ForCausalLM(GatedDeltaNet2Config(**sizes)), tokens)
    assert 0 < found["eta"] < 1
    assert 1 <= found["norm_mean"] <= found["norm_max"] <= 2 / 3**0.5 + 1e-6
    assert 0 < found["b10"] < found["b50"] < found["b90"] < 1
    tied = GatedDeltaNet2ForCausalLM(GatedDeltaNet2Config(**sizes, erase="scalar", write="tied"))
    assert gate_statistics(tied, tokens)["norm_max"] <= 1 + 1e-9
    plain = GatedDeltaNet2ForCausalLM(GatedDeltaNet2Config(**sizes, layer_types=["full_attention"] * 2))
    assert gate_statistics(plain, tokens) == {}


def test_gate_statistics_are_of_every_layer():
    torch.manual_seed(0)
    config = GatedDeltaNet2Config(vocab_size=20, hidden_size=16, num_hidden_layers=2, head_dim=32, num_heads=2)
    lm, tokens, seen = GatedDeltaNet2ForCausalLM(config).eval(), torch.randint(20, (40, 80)), []
    mixers = [block.mixer for block in lm.model.layers]
    with torch.no_grad():  # write gates of 1/2 in the first layer, of anything in the second
        mixers[0].in_proj.weight.split(mixers[0].in_proj.parts)[-1].zero_()
        hooks = [m.register_forward_pre_hook(lambda m, args: seen.append(m.gates(args[0]).w)) for m in mixers]
        lm(tokens)
    for hook in hooks:
        hook.remove()
    gates, found = torch.cat([w.flatten() for w in seen]).numpy(), gate_statistics(lm, tokens)
    assert len(gates) > 400_000
    for share in (10, 50, 90):
        assert found[f"w{share}"] == pytest.approx(np.quantile(gates, share / 100), abs=1e-6)
    assert found["w10"] < 0.5 < found["w90"]


def test_a_model_fed_token_by_token_is_drawn_by_the_study_alone():
    made = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        made.append(Stepwise().prepare(None, SimpleNamespace(tokens=8), np.random.default_rng(3)))
        assert torch.equal(torch.get_rng_state(), before)
    weights = zip(*(problem.model.parameters() for problem in made), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)


# --- needles in text -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return learn_tokenizer(TEXT, 300)


@pytest.mark.parametrize("kind", KINDS)
def test_needles_in_text(kind, tokenizer):
    rng, essay = np.random.default_rng(0), sentences(TEXT)
    for depth in (0.0, 0.5, 1.0):
        needle = hide(kind, 700, tokenizer, essay, rng, depth)
        count = len(tokenizer(needle.prompt, add_special_tokens=False).input_ids)
        assert 500 < count <= 700
        asked = needle.prompt.rsplit(" of the ", 1)[1].removesuffix(" is")
        assert needle.prompt.count(f"of the {asked} is{needle.answer}.") == 1
        assert needle.prompt.count("The secret") == 2 + KINDS[kind][2]
        assert len(needle.answer) == (37 if kind == "s-niah-3" else 8)
        place = needle.prompt.index(needle.answer) / len(needle.prompt)
        assert abs(place - depth) < 0.45


def test_bad_needles(tokenizer):
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="kind must be one of"):
        hide("s-niah-9", 100, tokenizer, ["a"], rng)
    with pytest.raises(ValueError, match="at least one sentence"):
        hide("s-niah-1", 100, tokenizer, [], rng)
    with pytest.raises(ValueError, match="length 20 is too short"):
        hide("s-niah-1", 20, tokenizer, ["a"], rng)
    with pytest.raises(ValueError, match="at least 257"):
        learn_tokenizer(TEXT, 100)


def test_needles_are_scored_as_greedy_decoding(tokenizer):
    rng = np.random.default_rng(0)
    needles = [hide("s-niah-1", 300, tokenizer, sentences(TEXT), rng) for _ in range(2)]

    class Knows(torch.nn.Module):  # gives the next token of a prompt it has seen
        device = torch.device("cpu")

        def forward(self, tokens):
            logits = torch.zeros(*tokens.shape, len(tokenizer))
            logits[0, torch.arange(tokens.shape[1] - 1), tokens[0, 1:]] = 9.0
            logits[..., 0] += 8.0 if tokens.shape[1] % 2 == 0 else 10.0
            return type("Out", (), {"logits": logits})

    lengths = [len(tokenizer(n.prompt + n.answer).input_ids) for n in needles]
    rows = evaluate(Knows(), tokenizer, needles)
    assert [r["correct"] for r in rows] == [float(n % 2 == 0) for n in lengths]
    assert [r["depth"] for r in rows] == [n.depth for n in needles]


# --- gnomon run ------------------------------------------------------------------------------------------------------


def test_the_command_and_the_example_of_the_docs(invoke, tmp_path, monkeypatch, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text(TEXT)
    assert invoke(*GatedDeltaNet2Study.command.split()[1:]) == 0
    assert "held-out perplexity" in " ".join(capsys.readouterr().out.split())
    lm, tokenizer = AutoModelForCausalLM.from_pretrained("lm"), AutoTokenizer.from_pretrained("lm")
    assert lm.config.layer_types == ["linear_attention", "sliding_attention"]
    out = lm.generate(**tokenizer("The quick", return_tensors="pt"), max_new_tokens=5, do_sample=False)
    assert tokenizer.decode(out[0]).startswith("The quick")
    assert invoke("run", "gated-deltanet2", "--model", "lm", "--length", "400", "--needles", "1", "--json") == 0
    shown = capsys.readouterr().out
    rows = json.loads(shown[shown.index("{") :])["needles"]
    assert {row["kind"] for row in rows} == set(KINDS)
    assert {row["tokens"] for row in rows} == {400, 800, 1600}

    seen: dict = {}
    exec(GatedDeltaNet2Study.example, seen)
    assert seen["o"].shape == (1, 100, 2, 16)
    assert seen["tokens"].shape == (1, 21)


def test_run_beside_and_a_figure(invoke, tmp_path, capsys):
    (tmp_path / "corpus.txt").write_text(TEXT)
    picture = tmp_path / "loss.svg"
    assert invoke("run", "gated-deltanet2", "--corpus", str(tmp_path / "corpus.txt"), "--mixer", "kda", "--steps", "4",
                  "--width", "16", "--heads", "2", "--length", "32", "--beside", "--figure", str(picture)) == 0  # fmt: skip
    shown = capsys.readouterr().out
    for name in ("gdn2", "kda", "gdn", "mamba2"):
        assert name in shown
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --corpus or --model, one of the two"),
        (["--corpus", "nowhere.txt"], "nowhere.txt"),
        (["--model", "nowhere"], "nowhere"),
        (["--corpus", "{tmp}/short.txt"], "fewer than a window of 130"),
        (["--corpus", "{tmp}/short.txt", "--width", "30"], "even multiple of heads 4"),
        (["--corpus", "{tmp}/short.txt", "--mixer", "rwkv"], "mixer"),
    ],
)
def test_run_says_what_is_wrong(arguments, message, invoke, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("too short")
    assert invoke("run", "gated-deltanet2", *(a.format(tmp=tmp_path) for a in arguments)) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error
    assert "Traceback" not in error
