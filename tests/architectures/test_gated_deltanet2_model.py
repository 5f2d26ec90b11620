"""The layer and the language model: gates, caches, padding, files, tasks of recall."""

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from gnomon.architectures import GatedDeltaNet2, GatedDeltaNet2Config, GatedDeltaNet2ForCausalLM
from gnomon.architectures.gated_deltanet2 import baselines, tasks
from gnomon.architectures.gated_deltanet2.attention import Attention
from gnomon.architectures.gated_deltanet2.training import answer, as_tensors, held_out_nll, train, windows

HYBRID = ["gdn2", "sliding_attention", "gdn2", "full_attention"]
SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "num_heads": 2,
    "sliding_window": 6,
}


def model(**options):
    torch.manual_seed(0)
    return GatedDeltaNet2ForCausalLM(GatedDeltaNet2Config(**{**SMALL, **options})).eval()


# --- the layer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"num_v_heads": 4, "expand_v": 2.0}, {"use_short_conv": False}, {"allow_neg_eigval": True},
     {"out_gate": "sigmoid"}, *({k: v for k, v in o.items() if k != "mixer" and k != "layer_types"}
                                for o in baselines.VARIANTS.values()),
     {"erase": "none", "write": "none"}, {"erase": "scalar", "write": "tied", "decay": "none"},
     {"erase": "scalar", "write": "tied", "allow_neg_eigval": True}],
)  # fmt: skip
def test_gates_are_what_they_should_be(options):
    torch.manual_seed(0)
    layer = GatedDeltaNet2(16, 8, 2, **options)
    x = torch.randn(2, 11, 16)
    q, k, v, g, b, w = layer.gates(x)
    heads = options.get("num_v_heads", 2)
    assert q.shape == k.shape == g.shape == b.shape == (2, 11, heads, 8)
    assert v.shape == w.shape == (2, 11, heads, 8 * options.get("expand_v", 1))
    assert (g <= 0).all()
    assert (b >= 0).all()
    assert float(b.max()) <= (2 if options.get("allow_neg_eigval") else 1)
    if options.get("erase") == "scalar":
        assert (b == b[..., :1]).all()
    if options.get("write") == "tied":
        assert (w == b[..., :1]).all()
    if options.get("write") == "step":
        rate = -layer.A_log.exp()[:, None]
        torch.testing.assert_close(g[..., :1], rate * w[..., :1])
    if options.get("decay") == "scalar":
        assert (g == g[..., :1]).all()
    o = layer(x)
    assert o.shape == x.shape
    o.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_initial_values_and_convolution():
    torch.manual_seed(0)
    layer = GatedDeltaNet2(64, 16, 4)
    step = F.softplus(layer.dt_bias)
    assert 1e-3 * 0.99 <= float(step.min()) <= float(step.max()) <= 0.1 * 1.01
    assert 0 <= float(layer.A_log.min()) <= float(layer.A_log.max()) <= np.log(16) + 1e-6
    bound = 2**-2.5 * (6 / (64 + 64)) ** 0.5
    assert 0.9 * bound < float(layer.o_proj.weight.abs().max()) <= bound
    mixed = torch.randn(2, 9, 3 * 64)
    expected = F.conv1d(mixed.transpose(1, 2), layer.conv_weight.T[:, None], padding=3, groups=3 * 64)[..., :9]
    torch.testing.assert_close(layer._convolve(mixed, None), expected.transpose(1, 2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"write": "tied"}, "write='tied' uses the scalar erase gate"),
        ({"write": "step"}, "it needs decay='scalar'"),
        ({"num_v_heads": 3}, "num_v_heads must be a multiple of num_heads = 2, got 3"),
        ({"erase": "row"}, "erase must be one of"),
        ({"out_gate": "relu"}, "out_gate must be one of"),
        ({"conv_size": 0}, "conv_size must be at least 1"),
    ],
)
def test_bad_layers(options, message):
    with pytest.raises(ValueError, match=message):
        GatedDeltaNet2(16, 8, 2, **options)


def test_the_layer_round_trips_compiles_and_copies():
    torch.manual_seed(0)
    layer, x = GatedDeltaNet2(16, 8, 2), torch.randn(1, 20, 16)
    other = GatedDeltaNet2(16, 8, 2)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    torch.testing.assert_close(torch.compile(layer, backend="eager")(x), layer(x))


# --- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [None, HYBRID], ids=["recurrent", "hybrid"])
def test_generation_with_a_cache_is_the_forward_pass(kinds):
    lm = model(layer_types=kinds)
    prompt = torch.randint(50, (2, 9))
    out = lm.generate(prompt, max_new_tokens=64, do_sample=False, pad_token_id=0)
    assert out.shape == (2, 73)
    logits = lm(out, use_cache=False).logits
    assert torch.equal(logits[:, 8:-1].argmax(-1), out[:, 9:])


@pytest.mark.parametrize("kinds", [None, HYBRID], ids=["recurrent", "hybrid"])
def test_pieces_of_a_prompt_and_left_padding_change_nothing(kinds):
    lm = model(layer_types=kinds)
    tokens = torch.randint(1, 50, (2, 20))
    whole = lm(tokens, use_cache=False).logits
    cache, parts = DynamicCache(config=lm.config), []
    for piece in tokens.split([7, 1, 1, 2, 9], 1):
        out = lm(piece, cache=cache, use_cache=True)
        cache = out.cache
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)

    padded = torch.cat([torch.zeros(2, 5, dtype=torch.long), tokens], 1)
    mask = (torch.arange(25) >= 5).long().expand(2, -1)
    torch.testing.assert_close(
        lm(padded, attention_mask=mask, use_cache=False).logits[:, 5:], whole, rtol=1e-5, atol=1e-6
    )
    one = lm.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0)[:, 20:]
    two = lm.generate(padded, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)[:, 25:]
    assert torch.equal(one, two)


def test_the_cache_does_not_grow():
    lm = model()
    sizes = []
    for length in (5, 200):
        cache = lm(torch.randint(50, (1, length)), use_cache=True).cache
        layers = [cache.layers[i] for i in range(4)]
        assert all(layer.recurrent_states[0].dtype == torch.float32 for layer in layers)
        sizes.append(sum(t.nbytes for la in layers for t in (la.recurrent_states[0], la.conv_states[0])))
    assert sizes[0] == sizes[1] == 4 * 4 * (2 * 8 * 8 + 48 * 4)


@pytest.mark.parametrize("tied", [False, True])
def test_files(tmp_path, tied):
    lm = model(layer_types=HYBRID, tie_word_embeddings=tied)
    lm.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is GatedDeltaNet2ForCausalLM
    tokens = torch.randint(50, (2, 12))
    assert torch.equal(again(tokens).logits, lm(tokens).logits)
    assert AutoConfig.from_pretrained(tmp_path).layer_types == lm.config.layer_types
    assert (lm.lm_head.weight is lm.model.embed_tokens.weight) == tied


def within(weight, parts=1):
    """Whether each part of a weight is uniform up to the bound of Xavier with gain 2^-2.5."""
    bounds = [2**-2.5 * (6 / sum(w.shape)) ** 0.5 for w in weight.chunk(parts)]
    return all(0.9 * b < float(w.abs().max()) <= b for w, b in zip(weight.chunk(parts), bounds, strict=True))


def saved_without(lm, folder, missing):
    """The model's files, less the weights whose names end so."""
    lm.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.endswith(missing)}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return kept


def test_attention_starts_as_the_recurrent_layers_do(tmp_path):
    lm = model(layer_types=HYBRID)
    for block in lm.model.layers:
        if isinstance(block.mixer, Attention):
            assert within(block.mixer.qkv_proj.weight, 3)
            assert within(block.mixer.o_proj.weight)
        else:
            assert within(block.mixer.o_proj.weight)
    assert float(lm.model.layers[1].gate_up_proj.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    lm.save_pretrained(tmp_path / "whole")
    again = GatedDeltaNet2ForCausalLM.from_pretrained(tmp_path / "whole").state_dict()
    assert all(torch.equal(again[name], value) for name, value in lm.state_dict().items())
    saved_without(lm, tmp_path / "part", ("qkv_proj.weight", "in_proj.weight"))
    part = GatedDeltaNet2ForCausalLM.from_pretrained(tmp_path / "part").model.layers
    assert within(part[1].mixer.qkv_proj.weight, 3)
    for weight in part[0].mixer.in_proj.weight.split(part[0].mixer.in_proj.parts):
        assert within(weight)


@pytest.mark.parametrize("missing", ["o_norm", "in_proj.weight", "A_log", "dt_bias", "conv_weight"])
def test_files_without_some_weights_leave_the_others(missing, tmp_path):
    lm = model(layer_types=HYBRID)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(0.1)
    kept = saved_without(lm, tmp_path, missing)
    again = GatedDeltaNet2ForCausalLM.from_pretrained(tmp_path).state_dict()
    for name, value in lm.state_dict().items():
        assert torch.equal(again[name], value) == (name in kept), name
        assert again[name].isfinite().all()
    layer = GatedDeltaNet2ForCausalLM.from_pretrained(tmp_path).model.layers[0].mixer
    before = layer.A_log.clone()
    layer.reset_parameters()  # asked for, so done
    assert not torch.equal(layer.A_log, before)


def test_gradients_with_checkpointing():
    lm, tokens = model(layer_types=HYBRID).train(), torch.randint(50, (2, 20))
    lm(tokens, labels=tokens).loss.backward()
    expected = [p.grad.clone() for p in lm.parameters()]
    lm.zero_grad()
    lm.activation_checkpointing_enable()
    calls = []
    hook = lm.model.layers[0].mixer.register_forward_hook(lambda *_: calls.append(1))
    out = lm(tokens, labels=tokens, use_cache=True)
    assert out.cache is None
    out.loss.backward()
    assert len(calls) == 2  # computed again on the way back
    hook.remove()
    for parameter, gradient in zip(lm.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-7)
    assert lm.eval()(tokens, use_cache=True).cache is not None


def test_a_causal_model_that_learns():
    lm = model()
    tokens = torch.randint(50, (1, 30))
    changed = tokens.clone()
    changed[:, 20] = (changed[:, 20] + 1) % 50
    assert torch.equal(lm(tokens).logits[:, :20], lm(changed).logits[:, :20])
    loss = lm(tokens, labels=tokens).loss
    expected = F.cross_entropy(lm(tokens).logits[0, :-1], tokens[0, 1:])
    torch.testing.assert_close(loss, expected)
    text = torch.arange(50).repeat(20)
    before = held_out_nll(lm, text, 8, 16)
    train(lm, windows(text, 4, 16, np.random.default_rng(0)), 30, 1e-2)
    assert held_out_nll(lm, text, 8, 16) < before - 1


def test_bad_configurations():
    for kinds in (["gdn2"], ["gdn2", "gdn2", "gdn2", "mamba"]):
        with pytest.raises(ValueError, match="layer_types must name one of"):
            GatedDeltaNet2Config(**SMALL, layer_types=kinds)
    with pytest.raises(ValueError, match="one of the two"):
        model()(None)


# --- baselines of one size -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hybrid", [False, True])
def test_every_variant_has_the_same_budget(hybrid):
    sizes = {"vocab_size": 56, "hidden_size": 32, "num_hidden_layers": 2, "head_dim": 8, "num_heads": 2,
             "intermediate_size": 64, "sliding_window": 16}  # fmt: skip
    budget = baselines._count(baselines.build("gdn2", hybrid=hybrid, **sizes))
    for name in baselines.VARIANTS:
        lm = baselines.build(name, hybrid=hybrid, **sizes)
        assert abs(baselines._count(lm) / budget - 1) <= 0.01, name
        loss = lm(torch.randint(56, (2, 10)), labels=torch.randint(56, (2, 10))).loss
        loss.backward()
        assert all(p.grad is not None for p in lm.parameters()), name
    with pytest.raises(ValueError, match="variant must be one of"):
        baselines.build("rwkv", **sizes)


# --- tasks -----------------------------------------------------------------------------------------------------------


def last_value(tokens, key, upto):
    """The token after the last occurrence of a key in a row's bindings."""
    at = np.nonzero(tokens[:upto] == key)[0][-1]
    return tokens[at + 1], at


@pytest.mark.parametrize("task", ["mqar", "rebinding"])
def test_recall_tasks(task):
    rng = np.random.default_rng(0)
    batch = tasks.RECALL[task](rng, 30, 12)
    queries = 12 if task == "mqar" else 6
    assert batch.tokens.shape == (30, 24 + queries)
    assert batch.answers.shape == batch.updates.shape == batch.place.shape == (30, queries)
    for row in range(30):
        tokens = batch.tokens[row]
        for n in range(queries):
            key = tokens[24 + n]
            value, at = last_value(tokens, key, 24)
            assert key < tasks.KEYS <= value < tasks.KEYS + tasks.VALUES
            assert value == batch.answers[row, n]
            assert at == 2 * batch.place[row, n]
            assert (tokens[:24:2] == key).sum() == batch.updates[row, n]
        assert len(set(tokens[24:])) == queries
    assert (batch.updates.sum(1) == 12).all()
    with pytest.raises(ValueError, match="pairs must be"):
        tasks.RECALL[task](rng, 1, 100)


@pytest.mark.parametrize(("pairs", "asked"), [(1, 1), (5, 1), (8, 8)])
def test_needles(pairs, asked):
    batch = tasks.needles(np.random.default_rng(1), 40, 64, pairs, asked)
    assert batch.tokens.shape == (40, 64)
    for row in range(40):
        tokens = batch.tokens[row]
        assert (tokens[: 64 - asked] < tasks.NEEDLE_KEYS).sum() == pairs
        for n in range(asked):
            value, at = last_value(tokens, tokens[64 - asked + n], 64 - asked)
            assert value == batch.answers[row, n]
            assert at == batch.place[row, n]
    with pytest.raises(ValueError, match="need 26 tokens, got a length of 20"):
        tasks.needles(np.random.default_rng(1), 1, 20, 13 - 1, 2)


def test_answers_are_scored_by_the_most_likely_token():
    batch = tasks.recall(np.random.default_rng(0), 5, 4)
    lm = model(vocab_size=56)
    right = answer(lm, batch, rows=2)
    tokens, answers = as_tensors(batch)
    assert np.array_equal(right, (lm(tokens).logits[:, -4:].argmax(-1) == answers).numpy())
