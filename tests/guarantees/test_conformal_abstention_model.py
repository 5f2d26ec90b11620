"""Conformal abstention on language models: geometry, generation, the wrapper, endpoints."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from gnomon import models
from gnomon.guarantees import ConformalAbstainer, geometry_features, text_reference
from gnomon.guarantees.conformal_abstention import baselines
from gnomon.guarantees.conformal_abstention.generation import CONFIDENCES, respond, sample
from gnomon.guarantees.conformal_abstention.geometry import FEATURES, Probe, Reference, States, angle, state_features
from gnomon.guarantees.conformal_abstention.study.material import questions
from gnomon.stats import auroc

PROMPTS = [
    "The capital of France is",
    "2 + 2 =",
    "The chemical symbol of gold, a heavy metal that does not rust, is",
    "Water boils at",
]


@pytest.fixture(scope="module")
def tokenizer():
    return models.load().tokenizer


def llama(vocabulary, layers=6, **options):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2, **options)  # fmt: skip
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def tiny(tokenizer):
    return llama(len(tokenizer))


@pytest.fixture(scope="module")
def reference(tiny, tokenizer):
    return text_reference(
        tiny, tokenizer, texts=["the cat sat on the mat and looked at the moon. " * 60], windows=4, length=32
    )


# --- the features of given states ------------------------------------------------------------------------------------


def random_states(layers=6, rows=5, d=16, seed=0):
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    states = States(draw(layers + 1, rows, d), draw(layers, rows, d), draw(rows, d))
    basis = torch.linalg.qr(draw(layers + 1, d, 3))[0].transpose(1, 2)
    return (
        states,
        draw(rows, d),
        draw(rows, d),
        Reference(torch.nn.functional.normalize(draw(layers + 1, d), dim=-1), basis),
    )


def test_identical_consecutive_states_do_not_turn():
    states, emitted, other, reference = random_states()
    still = States(states.stream[:1].expand(7, -1, -1), states.stream[:1].expand(6, -1, -1), states.final)
    found = pd.DataFrame(state_features(still, emitted, other, reference).numpy(), columns=FEATURES)
    assert (found[["rotation", "rotation_middle", "rotation_last", "rotation_net"]].abs() < 1e-7).all(axis=None)


def test_geometry_is_invariant_under_rotation_and_scale():
    states, emitted, other, reference = random_states()
    Q = torch.linalg.qr(torch.randn(16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))[0]
    turned = States(*(3.7 * s @ Q for s in states))
    moved = Reference(reference.mean @ Q, reference.principal @ Q)
    one = state_features(states, emitted, other, reference)
    assert torch.allclose(one, state_features(turned, emitted @ Q, 0.3 * other @ Q, moved), atol=1e-10)


def test_ranges_and_thirds():
    states, emitted, other, reference = random_states(layers=7)
    found = pd.DataFrame(state_features(states, emitted, other, reference).numpy(), columns=FEATURES)
    assert found[["proximity", "alignment_middle", "alignment_last"]].abs().le(1).all(axis=None)
    assert found[["energy_middle", "energy_last", "mlp_share"]].ge(0).all(axis=None)
    assert found[["energy_middle", "energy_last", "mlp_share"]].le(1).all(axis=None)
    h, mid = states.stream, states.middle
    theta = torch.acos(torch.nn.functional.cosine_similarity(h[:-1], h[1:], dim=-1))
    assert np.allclose(found["rotation"], theta.sum(0))
    assert np.allclose(found["rotation_middle"], theta[2:4].sum(0))
    assert np.allclose(found["rotation_last"], theta[4:].sum(0))
    assert np.allclose(found["rotation_net"], angle(h[1], h[6]))
    attention, mlp = angle(h[:-1], mid)[2:4].sum(0), angle(mid, h[1:])[2:4].sum(0)
    assert np.allclose(found["mlp_share"], mlp / (mlp + attention))
    own = torch.nn.functional.cosine_similarity(h, reference.mean[:, None].expand_as(h), dim=-1)
    assert np.allclose(found["alignment_last"], own[4:7].mean(0))
    on = States(reference.mean[:, None].repeat(1, 5, 1), mid, states.final)  # states on the common direction
    assert torch.allclose(state_features(on, emitted, other, reference)[:, 7:9], torch.ones(5, 2, dtype=torch.float64))
    assert (state_features(states, emitted, other, None)[:, 7:] == 0).all()


# --- hooks -----------------------------------------------------------------------------------------------------------


def family(name, vocabulary):
    torch.manual_seed(0)
    if name == "llama":
        return llama(vocabulary, 3)
    if name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_embd=32, n_layer=3, n_head=4, n_positions=64)).eval()
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                              num_key_value_heads=2, head_dim=8, sliding_window=32)  # fmt: skip
    return Gemma3ForCausalLM(config).eval()


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_probe_sees_the_stream_of_each_family(name):
    model = family(name, 97)
    ids = torch.arange(10)[None].repeat(2, 1) + torch.tensor([[0], [7]])
    probe = Probe(model)
    hooks = lambda: sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())  # noqa: E731
    with torch.no_grad():
        out = model(input_ids=ids, output_hidden_states=True)  # transformers leaves hooks of its own
    before = hooks()
    with torch.no_grad(), probe.attached():
        probe.on = True
        model(input_ids=ids)
        states = probe.take()
        probe.on = False
        model(input_ids=ids)
        assert not probe._stream
        for i in range(3):
            assert torch.allclose(states.stream[i], out.hidden_states[i][:, -1], atol=1e-5)
        assert torch.allclose(
            states.final, out.hidden_states[3][:, -1], atol=1e-5
        )  # transformers' last one is behind the norm
        block = probe.parts.blocks[1]
        norm = (
            block.ln_2
            if name == "gpt2"
            else block.post_attention_layernorm
            if name == "llama"
            else block.pre_feedforward_layernorm
        )
        added = block.mlp(norm(states.middle[1]))
        added = block.post_feedforward_layernorm(added) if name == "gemma3" else added
        assert torch.allclose(states.middle[1] + added, states.stream[2], atol=1e-5)
    assert states.stream.shape == (4, 2, 32)
    assert hooks() == before


def test_features_do_not_depend_on_cache_padding_or_batch(tiny, tokenizer, reference):
    options = {"reference": reference, "max_new_tokens": 5}
    whole = geometry_features(tiny, tokenizer, PROMPTS, **options)
    assert list(whole) == ["response", *CONFIDENCES, *FEATURES]
    for other, tolerance in (
        (geometry_features(tiny, tokenizer, PROMPTS, use_cache=False, **options), 1e-4),
        (geometry_features(tiny, tokenizer, PROMPTS, batch_size=1, **options), 1e-3),
        (
            geometry_features(tiny, tokenizer, PROMPTS[::-1], batch_size=2, **options)
            .iloc[::-1]
            .reset_index(drop=True),
            1e-3,
        ),
    ):
        assert (other["response"] == whole["response"]).all()
        assert np.allclose(other.iloc[:, 1:], whole.iloc[:, 1:], atol=tolerance)
    mean = geometry_features(tiny, tokenizer, PROMPTS, tokens="mean", **options)
    again = geometry_features(tiny, tokenizer, PROMPTS, tokens="mean", use_cache=False, batch_size=1, **options)
    assert np.allclose(mean.iloc[:, 1:], again.iloc[:, 1:], atol=1e-3)
    assert not np.allclose(mean["rotation"], whole["rotation"])
    with pytest.raises(ValueError, match="tokens: got 'all'"):
        geometry_features(tiny, tokenizer, PROMPTS, tokens="all", **options)


@pytest.mark.parametrize("name", ["gpt2", "gemma3"])
def test_other_families_answer_with_geometry(name, tokenizer):
    model = family(name, len(tokenizer))
    reference = text_reference(model, tokenizer, texts=["a b c d e f g h. " * 40], windows=2, length=16)
    one, two = (
        geometry_features(model, tokenizer, PROMPTS, reference=reference, max_new_tokens=3, use_cache=c)
        for c in (True, False)
    )
    assert np.allclose(one.iloc[:, 1:], two.iloc[:, 1:], atol=1e-4)
    assert (one["rotation"] > 0).all()


def test_reference_leaves_the_first_position_out(tiny, tokenizer, reference):
    assert reference.mean.shape == (7, 32)
    assert torch.allclose(reference.mean.norm(dim=-1), torch.ones(7))
    gram = reference.principal @ reference.principal.transpose(1, 2)
    assert torch.allclose(gram, torch.eye(3).expand(7, 3, 3), atol=1e-4)
    tokens = models.encode(tokenizer, ["the cat sat on the mat and looked at the moon. " * 60], 32, n=4)
    with torch.no_grad():
        states = tiny(input_ids=tokens, output_hidden_states=True).hidden_states[2][:, 1:]
    mean = states.flatten(0, 1).mean(0)
    assert torch.allclose(reference.mean[2], mean / mean.norm(), atol=1e-4)


# --- generation ------------------------------------------------------------------------------------------------------


def test_greedy_answers_are_those_of_generate(tokenizer):
    lm = models.load()
    asked = [q.prompt for q in questions(40, 3)][:3]
    said = respond(lm.model, lm.tokenizer, asked, max_new_tokens=6, batch_size=3)
    theirs = models.generate(lm.model, lm.tokenizer, asked, max_new_tokens=6)
    assert said.texts == [t.split("\n")[0].strip() for t in theirs]
    assert said.geometry is None
    first = asked[0]
    logits = lm.model(**lm.tokenizer(first, return_tensors="pt")).logits[0, -1]
    logp = torch.log_softmax(logits, -1)
    top = logp.topk(2).values.exp()
    _, lead, entropy, margin = said.confidence[0]
    assert lead == pytest.approx(float(logp.max()), abs=1e-4)
    assert entropy == pytest.approx(-float((logp.exp() * logp).sum()), abs=1e-3)
    assert margin == pytest.approx(float(top[0] - top[1]), abs=1e-4)
    if said.texts[0]:
        total = models.log_likelihood(lm.model, lm.tokenizer, [first], [" " + said.texts[0]], per_token=True)
        assert said.confidence[0, 0] == pytest.approx(float(total[0]), abs=1e-3)


def test_samples_have_the_law_of_the_model(tiny, tokenizer):
    """With the prompt read once or for each sample: the same seed gives the same texts, and cold samples are greedy."""
    one, two = (
        sample(tiny, tokenizer, PROMPTS, share_prompt=s, random_state=3, max_new_tokens=4) for s in (False, True)
    )
    assert one == two
    assert [len(x) for x in one] == [5] * 4
    cold = sample(tiny, tokenizer, PROMPTS[:2], n=2, temperature=1e-4, max_new_tokens=4)
    greedy = respond(tiny, tokenizer, PROMPTS[:2], max_new_tokens=4).texts
    assert cold == [[t, t] for t in greedy]


def test_baselines_that_ask(tiny, tokenizer):
    assert baselines.p_true(tiny, tokenizer, PROMPTS, ["x"] * 4).shape == (4,)
    assert baselines.refuses(tiny, tokenizer, PROMPTS[:2], max_new_tokens=2).tolist() == [False, False]
    found = baselines.semantic_entropy([["a big dog", "the large dog"], ["a big dog", "quarterly taxes"]])
    assert found.tolist() == [0.0, pytest.approx(-math.log(2))]
    states = np.random.default_rng(0).normal(size=(80, 8))
    probe = baselines.LinearProbe().fit(states, states[:, 0] > 0)
    assert auroc(states[:, 0] > 0, probe.score(states)) > 0.9


def test_bad_prompts(tiny, tokenizer):
    with pytest.raises(TypeError, match="one str"):
        respond(tiny, tokenizer, "x")
    with pytest.raises(ValueError, match="an empty one"):
        respond(tiny, tokenizer, ["x", ""])
    with pytest.raises(ValueError, match="expected at least 1"):
        respond(tiny, tokenizer, ["x"], max_new_tokens=0)


# --- the wrapper -----------------------------------------------------------------------------------------------------


def labelled(model, tokenizer, n=48):
    """Prompts whose own greedy answers are right for the even ones."""
    asked = [f"Item {i} is called" for i in range(n)]
    said = respond(model, tokenizer, asked, max_new_tokens=3).texts
    return asked, [[t] if i % 2 == 0 else [] for i, t in enumerate(said)]


def test_a_model_is_wrapped(tiny, tokenizer, reference):
    asked, answers = labelled(tiny, tokenizer)
    ca = ConformalAbstainer(0.4, participation=0.6, certificate="both", max_new_tokens=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        ca.fit(tiny, tokenizer, asked, answers, reference=reference)
    assert ca.n_features_in_ == 2 + len(FEATURES)
    table = ca.responses_
    assert table["split"].value_counts()["fit"] == round(0.4 * 48)
    assert table["correct"].mean() == ca.accuracy_
    found = ca.answer([f"Thing {i} is called" for i in range(30)])
    assert {r.answered for r in found} <= {True, False}
    assert all((r.text is not None) == r.answered for r in found)
    assert all("at least" in r.guarantee for r in found)
    one = ca.answer("Thing 0 is called")
    assert len(one) == 1
    assert one[0].score == pytest.approx(found[0].score, abs=1e-3)
    assert ca.answer([]) == []


def test_a_judge_and_topics_of_ones_own(tiny, tokenizer):
    asked = [f"Item {i} is called" for i in range(40)]
    ca = ConformalAbstainer(
        0.5, score="logprob", certificate="both", participation=0.5, max_new_tokens=2, groups=lambda q: len(q) % 2
    )
    ca.fit(tiny, tokenizer, asked, ["x"] * 40, judge=lambda question, response, answer: question[5] in "02468")
    assert set(ca.certificate_) == {0, 1}
    assert 0.2 < ca.accuracy_ < 0.8
    assert len(ca.answer(asked[:3])) == 3
    with pytest.raises(ValueError, match="got 2 for 40 questions"):
        ca.fit(tiny, tokenizer, asked, ["x"] * 2)


def test_one_question_at_a_time_is_no_batch(tiny, tokenizer):
    asked, answers = labelled(tiny, tokenizer)
    ca = ConformalAbstainer(0.5, score="margin", max_new_tokens=3).fit(tiny, tokenizer, asked, answers)
    with pytest.warns(UserWarning, match="a batch of 1 questions"):
        found = ca.answer("Thing 7 is called")
    assert "only P(answered and wrong) <= 0.5" in found[0].guarantee


def test_empty_answers_count_as_wrong_and_are_told(tiny, tokenizer, monkeypatch):
    from gnomon.guarantees.conformal_abstention import generation

    original = generation.respond

    def silent(*arguments, **options):
        found = original(*arguments, **options)
        found.texts = ["" if i < 3 else t for i, t in enumerate(found.texts)]
        return found

    monkeypatch.setattr(generation, "respond", silent)
    ca = ConformalAbstainer(0.5, score="logprob", max_new_tokens=2)
    with pytest.warns(UserWarning, match="3 of 30 responses are empty"):
        ca.fit(tiny, tokenizer, [f"Item {i} is called" for i in range(30)], ["x"] * 30, judge=lambda q, r, a: True)
    assert ca.responses_["correct"].tolist() == [False] * 3 + [True] * 27


def test_repeated_questions_may_not_lie_in_both_splits(tiny, tokenizer):
    with pytest.raises(ValueError, match="lies in the fit and in the calibration split"):
        ConformalAbstainer(0.5, score="logprob", max_new_tokens=1).fit(tiny, tokenizer, ["The same"] * 30, ["x"] * 30)


# --- endpoints -------------------------------------------------------------------------------------------------------


@pytest.fixture
def endpoint(monkeypatch):
    rng = np.random.default_rng(0)

    def complete(self, prompt, max_new_tokens=32, temperature=0.0, logprobs=False, echo=False):
        word = f" w{len(prompt) % 3}" if temperature == 0 else f" w{rng.integers(3)}"
        values = [-0.1 * (len(prompt) % 7) - 0.01, -0.2, -3.0]
        return (
            models.Completion(word + "\nmore", [word, "\n", "more"], values)
            if logprobs
            else models.Completion(word + "\nmore", None, None)
        )

    monkeypatch.setattr(models.Endpoint, "complete", complete)
    return models.Endpoint("http://localhost:1/v1", "m")


def test_an_endpoint_is_wrapped(endpoint):
    asked = ["x" * (i + 1) for i in range(90)]
    answers = [f"w{len(q) % 3}" if len(q) % 7 < 4 else "no" for q in asked]
    ca = ConformalAbstainer(0.5, score="logprob").fit(endpoint, None, asked, answers)
    assert ca.responses_["response"].str.fullmatch("w[012]").all()
    assert sorted(set(np.round(ca.calibration_scores_, 2))) == [round(-0.1 * k - 0.01, 2) for k in range(6, -1, -1)]
    agree = ConformalAbstainer(0.4, score="self-consistency", certificate="both", participation=0.5).fit(
        endpoint, None, asked, answers
    )
    assert set(np.round(5 * agree.calibration_scores_)) <= set(range(6))


def test_an_endpoint_has_no_geometry(endpoint, tiny, tokenizer):
    for score in ("geometry", "gbdt", "entropy"):
        with pytest.raises(TypeError, match="use score='logprob'"):
            ConformalAbstainer(score=score).fit(endpoint, None, ["a", "b"], ["x", "y"])
    with pytest.raises(TypeError, match="is for endpoints"):
        ConformalAbstainer(score="self-consistency").fit(tiny, tokenizer, ["a", "b"], ["x", "y"])


def test_an_endpoint_without_log_probabilities(monkeypatch, endpoint):
    monkeypatch.setattr(models.Endpoint, "complete", lambda *a, **k: models.Completion("x", None, None))
    with pytest.raises(RuntimeError, match="offers no log-probabilities"):
        ConformalAbstainer(score="logprob").fit(endpoint, None, ["a", "b"], ["x", "y"])
