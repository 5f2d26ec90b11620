"""The node bound: exact on linear functions, sound on networks, monotone where it must be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gnomon.guarantees import NodeBounder
from gnomon.guarantees.focusbranch import concretise
from gnomon.guarantees.focusbranch.bounds import BOX, ImageBounds, NodeBounds
from gnomon.guarantees.focusbranch.families import masks_of
from gnomon.guarantees.focusbranch.network import load_network

torch.set_num_threads(1)


def least_over_node(a, x, inside, l, t):
    """By enumeration: every set of at most t pixels, at most t - l outside S, each to its better corner."""
    v = a.shape[1]
    best = float((a * x).sum())
    for n in range(1, t + 1):
        for chosen in itertools.combinations(range(v), n):
            if sum(not inside[p] for p in chosen) <= t - l:
                moved = x.copy()
                for p in chosen:
                    moved[:, p] = np.where(a[:, p] > 0, 0.0, 1.0)
                best = min(best, float((a * moved).sum()))
    return best


@st.composite
def nodes(draw):
    v, c = draw(st.integers(1, 7)), draw(st.sampled_from([1, 3]))
    t = draw(st.integers(0, min(v, 3)))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    a, x = rng.integers(-4, 5, (c, v)) / 2, rng.integers(0, 5, (c, v)) / 4
    return a, x, rng.random(v) < draw(st.floats(0, 1)), draw(st.integers(0, t)), t


@given(nodes())
@settings(max_examples=150, deadline=None)
def test_the_least_value_of_a_linear_function_is_exact(node):
    a, x, inside, l, t = node
    expected = least_over_node(a, x, inside, l, t)
    given_ = (torch.tensor(a)[None, None], torch.zeros(1, 1).double(), torch.tensor(x), torch.tensor(inside)[None])
    assert concretise.reference(*given_, torch.tensor([l]), t).item() == pytest.approx(expected)
    index = np.arange(a.shape[1])[None]
    fast = concretise.compiled(a[None, None], np.zeros((1, 1)), x, index, inside[None], np.array([l]), t)
    assert fast.item() == pytest.approx(expected)
    shared = concretise.Shared(a[None], np.zeros(1), x, index)
    assert shared(inside[None], np.array([l]), t).item() == pytest.approx(expected)


@pytest.mark.parametrize(("inside", "expected"), [((0, 1), (-15, -15, -15, -9)), ((0, 4), (-15, -15, -12, -6))])
def test_the_least_value_by_hand(inside, expected):
    """Gains -5, -4, -6, -3, -1 in S and outside."""
    gain = np.array([-5.0, -4, -6, -3, -1])
    masks = np.isin(np.arange(5), inside)[None]
    for l, value in enumerate(expected):
        found = concretise.compiled(-gain[None, None, None], np.zeros((1, 1)), np.ones((1, 5)), np.arange(5)[None], masks,
                                    np.array([l]), 3)  # fmt: skip
        assert found.item() == pytest.approx(value - gain.sum())  # f(x) is 19 here


@given(st.integers(0, 10_000), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_the_compiled_paths_equal_the_reference(seed, t):
    rng = np.random.default_rng(seed)
    for dtype, tolerance in ((np.float32, 1e-5), (np.float64, 1e-12)):
        a = rng.standard_normal((4, 5, 3, 9)).astype(dtype)
        x, masks = rng.random((3, 9)).astype(dtype), rng.random((4, 9)) < 0.4
        constant = rng.standard_normal((4, 5)).astype(dtype)
        l = np.where(rng.random(4) < 0.2, BOX, rng.integers(0, t + 1, 4))
        wanted = concretise.reference(*map(torch.from_numpy, (a, constant, x, masks, l)), t).numpy()
        index = np.arange(9)[None]
        found = concretise.compiled(a, constant, x, index, masks, l, t)
        assert np.allclose(found, wanted, atol=tolerance * 10)
        shared = concretise.Shared(a[0], constant[0], x, index)(masks, l, t)
        same = concretise.compiled(np.repeat(a[:1], 4, 0), np.repeat(constant[:1], 4, 0), x, index, masks, l, t)
        assert np.allclose(shared, same, atol=tolerance * 10)


# --- networks --------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.first, self.second = nn.Conv2d(c, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.pool, self.last = nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Linear(16, 3)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(x + self.norm(self.second(x)))
        return self.last(torch.flatten(self.pool(x), 1))


class Normalize(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, x):
        return (x - torch.tensor(self.mean)[:, None, None]) / torch.tensor(self.std)[:, None, None]


def nets():
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 4))
    conv = nn.Sequential(Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.25]), nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(),
                         nn.Conv2d(4, 5, 3, stride=2, padding=1), nn.ReLU(), nn.AvgPool2d(2, padding=1, count_include_pad=False),
                         nn.Flatten(), nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, 3))  # fmt: skip
    residual = Residual(2)
    residual.norm.running_mean.uniform_(-0.2, 0.2)
    residual.norm.running_var.uniform_(0.5, 1.5)
    return {"dense": (dense, (16,)), "conv": (conv, (3, 5, 5)), "residual": (residual.eval(), (2, 4, 4))}


def within_node(x, inside, l, t, n, rng):
    """Random images of a node, corners and interiors."""
    c, v = x.reshape(-1, len(inside)).shape
    found = np.repeat(x.reshape(1, c, v), n, 0)
    for image in found:
        outer = rng.permutation(np.flatnonzero(~inside))[: rng.integers(0, t - l + 1)]
        inner = rng.permutation(np.flatnonzero(inside))[: t - len(outer)]
        chosen = np.concatenate([outer, inner])
        values = rng.random((c, len(chosen)))
        image[:, chosen] = values.round() if rng.random() < 0.5 else values
    return found.reshape(n, *x.shape)


@pytest.mark.parametrize("name", ["dense", "conv", "residual"])
@pytest.mark.parametrize("ball", [True, False])
def test_no_image_of_a_node_is_below_its_bound(name, ball):
    model, shape = nets()[name]
    rng = np.random.default_rng(1)
    x = rng.random(shape).astype(np.float32)
    own = ImageBounds(load_network(model, shape).to(torch.float64), torch.from_numpy(x), 0, 3, ball)
    v = own.network.pixels
    for l in range(4):
        masks = rng.random((6, v)) < 0.3
        margins = own.bound(masks, l).margins.numpy()
        for mask, bound in zip(masks, margins, strict=True):
            images = within_node(x, mask, l, 3, 200, rng)
            with torch.no_grad():
                scores = model(torch.from_numpy(images).float()).numpy()
            assert ((scores[:, :1] - scores[:, 1:]).min(0) >= bound - 1e-4).all()


@pytest.mark.parametrize("name", ["conv", "residual", "dense"])
def test_bounds_by_receptive_field_equal_those_of_whole_images(name, monkeypatch):
    model, shape = nets()[name]
    x = torch.rand(shape, generator=torch.Generator().manual_seed(3))
    network = load_network(model, shape).to(torch.float64)
    masks = np.random.default_rng(0).random((5, network.pixels)) < 0.3
    fast = ImageBounds(network, x, 1, 2).bound(masks, 1)
    monkeypatch.setattr(ImageBounds, "_window", lambda self, i: None)
    slow = ImageBounds(network, x, 1, 2).bound(masks, 1)
    assert torch.allclose(fast.margins, slow.margins)
    assert all(
        torch.allclose(fast.lower[i], slow.lower[i]) and torch.allclose(fast.upper[i], slow.upper[i])
        for i in slow.lower
    )


@pytest.mark.parametrize("name", ["dense", "conv"])
def test_torch_and_compiled_backward_passes_agree(name, monkeypatch):
    model, shape = nets()[name]
    x = torch.rand(shape, generator=torch.Generator().manual_seed(4))
    network = load_network(model, shape).to(torch.float64)
    masks = np.random.default_rng(0).random((5, network.pixels)) < 0.3
    fast = ImageBounds(network, x, 1, 2).bound(masks, 1).margins
    own = ImageBounds(network, x, 1, 2, ball=False)
    bounds = own.bound(masks, 1, parent=ImageBounds(network, x, 1, 2).root)
    lines = {}
    from gnomon.guarantees.focusbranch.bounds import relu_lines

    for k in own.kinks:
        i = own.steps[k].inputs[0]
        lines[k] = relu_lines(bounds.lower[i], bounds.upper[i])
        lines[k].slope.requires_grad_()
    image, constant = own._down(dict(own._margins.above), own._margins.constant, lines, None, own._margins.image)
    slow = own._concrete(image, constant, masks, np.full(5, 1))
    assert torch.allclose(fast, slow.detach())


def test_all_pixels_free_is_the_box():
    model, shape = nets()["dense"]
    x = torch.rand(shape, generator=torch.Generator().manual_seed(5))
    network = load_network(model, shape).to(torch.float64)
    whole = np.ones((1, 16), bool)
    node = ImageBounds(network, x, 0, 16, ball=False).bound(whole, 16).margins
    box = ImageBounds(network, x, 0, 1, ball=False).bound(whole, BOX).margins
    assert torch.allclose(node, box)
    low, high = torch.zeros(16).double(), torch.ones(16).double()  # intervals are never tighter
    for step in network.steps[1:]:
        if hasattr(step, "weight"):
            w = step.weight
            low, high = (
                w.clamp(min=0) @ low + w.clamp(max=0) @ high + step.bias,
                w.clamp(min=0) @ high + w.clamp(max=0) @ low + step.bias,
            )
        else:
            low, high = low.relu(), high.relu()
    assert (box[0] >= low[0] - high[1:] - 1e-9).all()


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_larger_sets_and_smaller_levels_never_raise_the_bound(seed):
    """Of a linear model, and of a network whose slopes and inner bounds are fixed."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    x = torch.from_numpy(rng.random(8))
    inside = rng.random(8) < 0.4
    chain = [(inside, 2), (inside | (rng.random(8) < 0.3), 2), (inside, 1), (inside, 0)]
    for model in (nn.Linear(8, 3), nn.Sequential(nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))):
        own = ImageBounds(load_network(model, (8,)).to(torch.float64), x, 0, 3)
        small, large, lower, least = (own.bound(m[None], l, given=own.root).margins for m, l in chain)
        assert (large <= small + 1e-12).all()
        assert (lower <= small + 1e-12).all()
        assert (least <= lower + 1e-12).all()
    own = ImageBounds(load_network(model, (8,)).to(torch.float64), x, 0, 3)
    parent: NodeBounds = own.root
    for l in range(1, 4):  # reuse="parent": exactly monotone
        child = own.bound(masks_of(np.arange(l)[None], 8), l, parent=parent)
        assert (child.margins >= parent.margins).all()
        assert all((child.lower[i] >= parent.lower[i]).all() for i in child.lower)
        parent = child


def test_slopes_chosen_by_gradient_are_sound_and_no_looser():
    model, shape = nets()["dense"]
    x = torch.rand(shape, generator=torch.Generator().manual_seed(6))
    network = load_network(model, shape).to(torch.float64)
    rng = np.random.default_rng(0)
    masks = rng.random((4, 16)) < 0.3
    plain = ImageBounds(network, x, 0, 3).bound(masks, 1).margins
    own = ImageBounds(network, x, 0, 3, alpha_steps=10).bound(masks, 1).margins
    assert (own >= plain - 1e-12).all()
    assert (own > plain + 1e-6).any()
    for mask, bound in zip(masks, own.numpy(), strict=True):
        with torch.no_grad():
            scores = model(torch.from_numpy(within_node(x.numpy(), mask, 1, 3, 500, rng)).float()).numpy()
        assert ((scores[:, :1] - scores[:, 1:]).min(0) >= bound - 1e-4).all()


def test_the_public_bounder():
    model, shape = nets()["dense"]
    x = torch.rand(shape, generator=torch.Generator().manual_seed(7)).numpy()
    masks = np.zeros((3, 16), bool)
    masks[:, :2] = True
    for dtype in (torch.float32, torch.float64):
        margins = NodeBounder(model, dtype)(x, 2, masks, 1, 2)
        assert margins.shape == (3, 3)
        assert margins.dtype == dtype
    for arguments, message in [
        ((x + 1, 2, masks, 1, 2), "image: got values"),
        ((x[:-1], 2, masks, 1, 2), "takes 16 numbers and gets"),
        ((x, 4, masks, 1, 2), "label: got 4"),
        ((x, -1, masks, 1, 2), "label: got -1"),
        ((x, 2, masks[:, :5], 1, 2), "masks: got bool of shape"),
        ((x, 2, masks.astype(int), 1, 2), "masks: got int64"),
        ((x, 2, masks, 3, 2), "l: got 3"),
        ((x, 2, masks, 1, 17), "t: got 17"),
    ]:
        with pytest.raises(ValueError, match=message):
            NodeBounder(model)(*arguments)
    with pytest.raises(ValueError, match="dtype"):
        NodeBounder(model, torch.float16)
    with pytest.raises(ValueError, match="alpha_steps"):
        NodeBounder(model, alpha_steps=-1)


def test_a_relu_whose_bounds_are_both_zero():
    """A neuron that never moves, and one that is zero on the whole ball."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight[:2] = 0
        model[0].bias[:2] = torch.tensor([0.0, -1.0])
    own = NodeBounder(model, torch.float64)(np.full(4, 0.5), 0, np.ones((1, 4), bool), 1, 1)
    assert torch.isfinite(own).all()
