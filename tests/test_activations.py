"""Capture and edit on tiny networks, and on decoder layers that give a tensor or a tuple."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from gnomon.activations import ablate, add, capture, edit, patch


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).eval()
    model(TOKENS, output_hidden_states=True)  # transformers puts hooks of its own in place here, for good
    return model


TOKENS = torch.arange(12).view(2, 6)


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


class Old(nn.Module):
    """A decoder layer as transformers before 5 had it: a tuple whose head is the hidden state."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden_states, scale=1.0):
        return self.linear(hidden_states) * scale, "cache"


def test_capture_gives_what_the_model_computes(model):
    seen = {}
    names = [f"model.layers.{i}" for i in range(3)]
    before = hooks(model)
    with torch.no_grad(), capture(model, {n: (lambda h, n=n: seen.__setitem__(n, h)) for n in names}):
        out = model(TOKENS, output_hidden_states=True)
    for i, name in enumerate(names[:-1]):
        torch.testing.assert_close(seen[name], out.hidden_states[i + 1], rtol=0, atol=0)
    torch.testing.assert_close(model.model.norm(seen[names[-1]]), out.hidden_states[-1], rtol=0, atol=0)
    inputs = []
    with torch.no_grad(), capture(model, {model.model.layers[1]: inputs.append}, inputs=True):
        model(TOKENS)
    torch.testing.assert_close(inputs[0], out.hidden_states[1], rtol=0, atol=0)
    assert hooks(model) == before


def test_inputs_by_keyword_and_output_classes(model):
    attention, base = [], []
    with torch.no_grad(), capture(model, {"model.layers.0.self_attn": attention.append}, inputs=True):
        model(TOKENS)  # transformers calls it with hidden_states=...
    expected = model.model.layers[0].input_layernorm(model.model.embed_tokens(TOKENS))
    torch.testing.assert_close(attention[0], expected)
    with torch.no_grad(), capture(model, {"model": base.append}), edit(model, {"model": add(torch.zeros(16))}):
        out = model(TOKENS)
    torch.testing.assert_close(model.lm_head(base[0]), out.logits)


def test_detached_or_with_the_graph(model):
    kept = []
    with capture(model, {"model.layers.1": kept.append}):
        model(TOKENS)
    with capture(model, {"model.layers.1": kept.append}, detach=False):
        model(TOKENS)
    assert not kept[0].requires_grad
    assert kept[1].requires_grad


def test_tuples_and_the_rest_of_them():
    layer = Old()
    net = nn.Sequential(layer)
    x = torch.randn(2, 3, 4)
    with edit(net, {"0": add(torch.ones(4))}):
        hidden, rest = layer(x)
    torch.testing.assert_close(hidden, layer(x)[0] + 1)
    assert rest == "cache"
    with edit(net, {layer: lambda h: 2 * h}, inputs=True):
        twice, also = layer(x, scale=3.0), layer(hidden_states=x)
    torch.testing.assert_close(twice[0], 3 * layer.linear(2 * x))
    torch.testing.assert_close(also[0], layer.linear(2 * x))


def test_an_edit_changes_what_follows_and_only_inside(model):
    with torch.no_grad():
        plain = model(TOKENS).logits
        with edit(model, {"model.layers.1": ablate()}):
            zeroed = model(TOKENS).logits
        with edit(model, {"model.layers.1": lambda h: None}):
            untouched = model(TOKENS).logits
        after = model(TOKENS).logits
    assert not torch.allclose(plain, zeroed)
    assert torch.equal(plain, untouched)
    assert torch.equal(plain, after)


def test_patching_another_run_in_gives_that_run(model):
    kept = []
    other = TOKENS.flip(1)
    with torch.no_grad():
        with capture(model, {"model.layers.1": kept.append}):
            theirs = model(other).logits
        with edit(model, {"model.layers.1": patch(kept[0])}):
            ours = model(TOKENS).logits
        with edit(model, {"model.layers.1": patch(kept[0][:, 2:4], at=slice(2, 4))}):
            part = model(TOKENS).logits
        plain = model(TOKENS).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert torch.equal(part[:, :2], plain[:, :2])  # causal: what stands before is not touched
    assert not torch.allclose(part[:, 2:], plain[:, 2:])


def test_positions():
    net, x = nn.Sequential(nn.Identity()), torch.randn(2, 5, 4)
    vector = torch.arange(4.0)
    for at, rows in [(1, [1]), (-1, [4]), ([0, 3], [0, 3]), (slice(2, None), [2, 3, 4]), (None, list(range(5)))]:
        with edit(net, {"0": add(vector, 2.0, at=at)}):
            out = net(x)
        expected = x.clone()
        expected[:, rows] += 2 * vector
        torch.testing.assert_close(out, expected)
    with pytest.raises(ValueError, match="positions"), edit(net, {"0": add(vector, at=1)}):
        net(x[0, 0])


def test_ablation_removes_the_span_and_nothing_else():
    net, x = nn.Sequential(nn.Identity()), torch.randn(2, 5, 4, dtype=torch.float64)
    d = torch.tensor([[1.0, 1, 0, 0], [2.0, 2, 0, 0], [0.0, 0, 3, 0]], dtype=torch.float64)  # rank 2
    with edit(net, {"0": ablate(d)}):
        out = net(x)
    assert (out @ d.T).abs().max() < 1e-12
    torch.testing.assert_close(out[..., 3], x[..., 3])
    torch.testing.assert_close(out[..., 0] - out[..., 1], x[..., 0] - x[..., 1])
    mean = torch.randn(4, dtype=torch.float64)
    with edit(net, {"0": ablate(d, mean=mean)}):
        out = net(x)
    torch.testing.assert_close(out @ d.T, (mean @ d.T).expand(2, 5, 3))
    with edit(net, {"0": ablate(mean=mean)}):
        torch.testing.assert_close(net(x), mean.expand_as(x))
    with pytest.raises(ValueError, match="other than zero"):
        ablate(torch.zeros(4))


def test_inner_sees_what_outer_made():
    net, x, seen = nn.Sequential(nn.Identity()), torch.ones(1, 2, 3), []
    with edit(net, {"0": add(torch.ones(3))}), capture(net, {"0": seen.append}):
        net(x)
    assert torch.equal(seen[0], x + 1)


def test_restored_after_an_exception(model):
    before = hooks(model)
    with pytest.raises(IndexError), edit(model, {"model.layers.0": add(torch.ones(16))}):
        model(TOKENS + 50)  # outside of the vocabulary
    with pytest.raises(ZeroDivisionError), capture(model, {"model.layers.0": lambda h: 1 / 0}):
        model(TOKENS)
    with (
        pytest.raises(ValueError, match="nowhere"),
        edit(model, {"model.layers.0": add(torch.ones(16)), "nowhere": None}),
    ):
        pass
    assert hooks(model) == before


def test_names_that_are_not_there(model):
    with (
        pytest.raises(ValueError, match=r"'model.layer.1'; close ones: .*model\.layers\.1"),
        capture(model, {"model.layer.1": print}),
    ):
        pass
    with pytest.raises(ValueError, match="no part of"), capture(model, {nn.Linear(2, 2): print}):
        pass


@pytest.mark.parametrize(
    ("fn", "error", "match"),
    [
        (lambda h: h[:, :1], ValueError, r"\(2, 1, 16\).*expected.*\(2, 6, 16\)"),
        (lambda h: h.double(), ValueError, "float64"),
        (lambda h: 3, TypeError, "int"),
    ],
)
def test_wrong_edits(model, fn, error, match):
    with pytest.raises(error, match=match), edit(model, {"model.layers.0": fn}):
        model(TOKENS)


def test_not_a_tensor():
    class Words(nn.Module):
        def forward(self, x):
            return "word"

    net = nn.Sequential(Words())
    with pytest.raises(TypeError, match="str, not a tensor"), capture(net, {"0": print}):
        net(torch.ones(1))
