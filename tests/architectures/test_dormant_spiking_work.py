"""Oracles of what surrounds the neuron: the ledger, the profile, the lazy kernel, conversion, baselines, events."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from gnomon.architectures import DormantLIF, convert_to_dormant, energy_ledger, event_forward, inhibition_profile
from gnomon.architectures.dormant_spiking import (
    Recording,
    SpikingClassifier,
    baselines,
    fit,
    mlp,
    relative_energy,
    reset,
    residual,
)
from gnomon.architectures.dormant_spiking.networks import NormLinear, OverTime, predict
from gnomon.architectures.dormant_spiking.recording import Shortcut
from gnomon.architectures.dormant_spiking.saccades import saccade_events


def spikes(*shape, rate=0.4, seed=0):
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < rate).float()


def plain(sizes, seed=0, **neuron):
    """Linear and neurons by turns, with weights large enough for spikes and sleep."""
    torch.manual_seed(seed)
    layers = []
    for into, out in pairwise(sizes[:-1]):
        layers += [nn.Linear(into, out), DormantLIF(learn_v_dormant=False, **neuron)]
        layers[-2].weight.data.mul_(4)
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1])).eval()


# --- the ledger ------------------------------------------------------------------------------------------------------


def test_dense_ledger_by_brute_force():
    net = plain([5, 7, 6, 3])
    net[2].weight.data[:, 2] = 0  # a pruned input, and single pruned weights
    net[2].weight.data[1:3, 4] = 0
    x = spikes(4, 3, 5)
    with Recording(net) as seen:
        net(x)
    first, second = (seen.neurons[name] for name in ("1", "3"))
    layers = [("0", x, first.awake), ("2", first.spikes, second.awake), ("4", second.spikes, torch.ones(4, 3, 3))]
    ledger = energy_ledger(net, [x])
    counts = {s.name: s.ops for s in ledger.synapses}
    total = 0
    for name, inputs, awake in layers:
        weight = net[int(name)].weight
        brute = dict.fromkeys(("baseline", "input sparsity", "dormancy", "both"), 0)
        for t in range(4):
            for b in range(3):
                for j in range(inputs.shape[2]):
                    for i in range(weight.shape[0]):
                        if weight[i, j] != 0:
                            fired, up = bool(inputs[t, b, j]), bool(awake[t, b, i])
                            for key, counted in (
                                ("baseline", True),
                                ("input sparsity", fired),
                                ("dormancy", up),
                                ("both", fired and up),
                            ):
                                brute[key] += counted
        assert counts[name] == brute
        total += brute["both"]
    assert ledger.operations()["synops"] == pytest.approx(total / 3)
    assert ledger.operations()["macs"] == 0


@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1}, {"padding": 2, "groups": 2}, {"dilation": 2, "padding": 1}], ids=str
)
def test_convolutional_ledger_by_brute_force(options):
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 4, 3, bias=False, **options)
    conv.weight.data.mul_(4)
    neuron = DormantLIF(learn_v_dormant=False)
    net = nn.Sequential(OverTime(conv), neuron)
    x = spikes(3, 2, 2, 6, 5)
    with Recording(net) as seen, torch.no_grad():
        net(x)
    awake = seen.neurons["1"].awake
    assert 0.2 < awake.mean() < 0.95
    brute = 0
    stride, padding, dilation = options.get("stride", 1), options.get("padding", 0), options.get("dilation", 1)
    per_group = 2 // options.get("groups", 1)
    for t, b, o, y, z in np.argwhere(awake.numpy() == 1):
        group = o // (4 // options.get("groups", 1))
        for c in range(group * per_group, (group + 1) * per_group):
            for dy in range(3):
                for dz in range(3):
                    row, column = y * stride - padding + dy * dilation, z * stride - padding + dz * dilation
                    if 0 <= row < 6 and 0 <= column < 5:
                        brute += int(x[t, b, c, row, column])
    reset(net)
    (counted,) = energy_ledger(net, [x]).synapses
    assert counted.spiking
    assert counted.ops["both"] == brute


def test_all_awake_is_rate_times_fan_out_times_steps():
    net = plain([8, 9, 7, 4], v_dormant=-math.inf)
    x = spikes(5, 6, 8)
    ledger = energy_ledger(net, [x[:, :4], x[:, 4:]])
    assert ledger.samples == 6
    rates = [float(x.mean()), *(n.spikes / n.steps for n in ledger.neurons)]
    expected = sum(r * into * out * 5 for r, into, out in zip(rates, (8, 9, 7), (9, 7, 4), strict=True))
    assert ledger.operations()["synops"] == pytest.approx(expected)
    assert ledger.operations("both") == ledger.operations("input sparsity")
    assert ledger.operations()["gate_compares"] == 0
    assert ledger.operations()["state_macs"] == 5 * 16
    assert ledger.awake == 1


def test_direct_coding_multiplies_and_the_gate_is_paid_for():
    net = SpikingClassifier(plain([6, 10, 8, 3]), 5).eval()
    x = torch.rand(7, 6, generator=torch.Generator().manual_seed(1))
    ledger = energy_ledger(net, [x])
    done, base = ledger.operations(), ledger.operations("baseline")
    first, last = ledger.neurons
    assert not ledger.synapses[0].spiking
    assert base["macs"] == 5 * 6 * 10
    assert done["macs"] == pytest.approx(6 * first.awake / 7)
    asleep = first.steps + last.steps - first.awake - last.awake
    assert asleep > 0
    assert done["gate_compares"] == pytest.approx((first.steps + last.steps) / 7)
    assert done["gate_macs"] == pytest.approx(asleep / 7)
    timer = energy_ledger(net, [x], gate="timer").operations()
    assert timer["gate_macs"] == pytest.approx((first.sleeps + last.sleeps) / 7)
    assert timer["gate_compares"] == pytest.approx((first.awake + last.awake) / 7)
    once = energy_ledger(net, [x], first_layer="once").operations()
    assert once["macs"] == 60
    assert once["synops"] == pytest.approx(done["synops"] + first.awake / 7)
    macs = done["macs"] + done["state_macs"] + done["gate_macs"]
    adds = done["synops"] + done["state_compares"] + done["gate_compares"]
    assert done["pj"] == pytest.approx(4.6 * macs + 0.9 * adds)
    table = ledger.table()
    assert table.loc["both", "pj without layer 1"] == pytest.approx(done["pj"] - 4.6 * done["macs"])
    assert table.loc["both", "product"] == pytest.approx(
        table.loc["input sparsity", "left"] * table.loc["dormancy", "left"]
    )
    assert list(ledger.layers()["layer"]) == ["body.1", "body.3"]


def test_a_sleep_for_good_costs_nothing_more():
    net = SpikingClassifier(plain([6, 10, 3], wake="never"), 5).eval()
    ledger = energy_ledger(net, [torch.rand(7, 6, generator=torch.Generator().manual_seed(1))])
    done = ledger.operations()
    assert done["gate_macs"] == 0
    assert done["gate_compares"] == done["state_macs"] == ledger.neurons[0].awake / 7 < 50


def test_residual_network_and_its_shortcut():
    torch.manual_seed(0)
    net = SpikingClassifier(residual((1, 8, 8), 3, widths=(4, 8), learn_v_dormant=False), 3).eval()
    ledger = energy_ledger(net, [torch.rand(2, 1, 8, 8)])
    by_name = {s.name: s.target for s in ledger.synapses}
    assert by_name == {"body.0.layer.0": "body.1", "body.2.first.layer.0": "body.2.fire", "body.2.second.layer.0": "body.2.out",
                       "body.2.shortcut.layer.0": "body.2.out", "body.4": None}  # fmt: skip
    neuron = DormantLIF(learn_v_dormant=False, v_dormant=-math.inf)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.shortcut, self.neuron = nn.Linear(6, 6), Shortcut(), neuron

        def forward(self, x):
            return self.neuron(self.linear(x) + self.shortcut(x))

    x = spikes(4, 3, 6)
    counts = {s.name: s.ops for s in energy_ledger(Block(), [x]).synapses}
    assert counts["shortcut"]["both"] == x.sum()
    assert counts["shortcut"]["baseline"] == x.numel()


def test_single_steps_are_counted_as_all_steps_are():
    together = plain([6, 8, 7, 3])
    single = convert_to_dormant(together, step_mode="s")

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = single

        def forward(self, x):
            return torch.stack([self.net(step) for step in x])

    x = spikes(5, 4, 6)
    a, b = energy_ledger(together, [x]), energy_ledger(Loop(), [x])
    assert a.operations() == b.operations()
    assert b.samples == 4
    pairs = zip(
        inhibition_profile(together, [x]).to_numpy()[:, 1:],
        inhibition_profile(Loop(), [x]).to_numpy()[:, 1:],
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_allclose(one.astype(float), other.astype(float))


def test_ledger_refuses():
    net = plain([3, 4, 2])
    with pytest.raises(ValueError, match="no batch"):
        energy_ledger(net, [])
    with pytest.raises(ValueError, match="gate"):
        energy_ledger(net, [], gate="free")
    with pytest.raises(ValueError, match="first_layer"):
        energy_ledger(net, [], first_layer="twice")
    with pytest.raises(ValueError, match="e_ac, e_mac"):
        energy_ledger(net, [], e_ac=-1)
    with pytest.raises(ValueError, match="no DormantLIF"):
        energy_ledger(nn.Linear(3, 3), [torch.zeros(2, 3)])
    with pytest.raises(ValueError, match="variant"):
        energy_ledger(net, [torch.zeros(2, 1, 3)]).energy("none")
    pooled = nn.Sequential(nn.Linear(4, 8), nn.MaxPool1d(2), DormantLIF())
    with pytest.raises(ValueError, match="0: no neurons with as many numbers"):
        energy_ledger(pooled, [torch.zeros(2, 3, 4)])


def test_relative_energy_is_the_ledgers_and_has_gradients():
    net = SpikingClassifier(plain([6, 10, 8, 3]), 5)
    for m in net.modules():
        if isinstance(m, DormantLIF):
            m.threshold.fill_(-0.2)
    x = torch.rand(7, 6)
    with Recording(net) as seen:
        net(x)
    term = relative_energy(seen)
    ledger = energy_ledger(net, [x])
    cost = {v: sum((0.9 if s.spiking else 4.6) * s.ops[v] for s in ledger.synapses) for v in ("both", "input sparsity")}
    assert term.item() == pytest.approx(cost["both"] / cost["input sparsity"], rel=1e-5)
    term.backward()
    assert net.body[0].weight.grad.abs().sum() > 0


# --- the profile -----------------------------------------------------------------------------------------------------


def test_profile_by_brute_force():
    net = plain([5, 12, 10, 3], v_dormant=-math.inf)
    x = spikes(6, 8, 5)
    with Recording(net) as seen:
        net(x)
    profile = inhibition_profile(net, [(x[:, :5], None), (x[:, 5:], None)], level=-0.3)
    for row, (name, inputs, weight) in zip(profile.itertuples(), [("1", x, net[0].weight), ("3", seen.neurons["1"].spikes, net[2].weight)],
                                           strict=True):  # fmt: skip
        layer = seen.neurons[name]
        v, s = layer.membrane, layer.spikes
        low, fires = [], []
        mostly = 0
        for b in range(8):
            for i in range(v.shape[2]):
                flags = [bool(v[t, b, i] < -0.3) for t in range(5)]
                low += flags
                fires += [bool(s[t + 1 :, b, i].any()) for t in range(5)]
                mostly += sum(flags) > 2.5
        low, fires = np.array(low), np.array(fires)
        assert row.low == pytest.approx(low.mean())
        assert row.mostly_low == pytest.approx(mostly / (8 * v.shape[2]))
        assert row.fires_if_low == pytest.approx(fires[low].mean())
        assert row.fires_otherwise == pytest.approx(fires[~low].mean())
        was_low = torch.cat([torch.zeros(1, 8, v.shape[2]), (v[:-1] < -0.3).float()])
        reached = inputs @ (weight != 0).float().T
        assert row.ops_on_low == pytest.approx(float((reached * was_low).sum() / reached.sum()), rel=1e-5)


def test_profile_refuses():
    net = plain([3, 4, 2])
    with pytest.raises(ValueError, match="level must be negative"):
        inhibition_profile(net, [], level=0.5)
    with pytest.raises(ValueError, match="no batch"):
        inhibition_profile(net, [])
    with pytest.raises(ValueError, match="expected 2 or more"):
        inhibition_profile(net, [torch.zeros(1, 2, 3)])


# --- the lazy kernel -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{"wake": "leak"}, {"wake": "never"}, {"wake": "after", "n": 2}, {"v_reset": None},
                                  {"v_dormant": -math.inf}, {"tau": 10.0}, {"decay_input": True}], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lazy_spikes_are_the_dense_ones_exactly(kind, dtype):
    """Weights on a dyadic grid, so that the sums are exact in any order."""
    net = plain([20, 30, 25, 4], **kind).to(dtype)
    for layer in net:
        if isinstance(layer, nn.Linear):
            layer.weight.data = (torch.floor(layer.weight.data * 64) + 0.5) / 64  # none is 0
            layer.bias.data = torch.round(layer.bias.data * 64) / 64
    x = spikes(15, 6, 20, rate=0.3).to(dtype)
    with Recording(net) as seen, torch.no_grad():
        output = net(x)
    reset(net)
    lazy = event_forward(net, x)
    ledger = energy_ledger(net, [x])
    for position, name in enumerate(("1", "3")):
        layer = seen.neurons[name]
        assert layer.spikes.sum() > 0
        np.testing.assert_array_equal(lazy.spikes[position], layer.spikes.numpy().astype(bool))
        assert lazy.awake[position] == pytest.approx(float(layer.awake.mean()))
        assert lazy.additions[position] == ledger.synapses[position].ops["both"]
    np.testing.assert_allclose(lazy.output, output.numpy(), rtol=1e-5)


def test_lazy_pass_of_a_trained_kind_of_network():
    torch.manual_seed(0)
    net = SpikingClassifier(mlp([12, 40, 30, 5], learn_v_dormant=False).double(), 6)
    x = torch.rand(50, 12, dtype=torch.float64)
    net(x)
    net.eval()
    lazy = event_forward(net, x)
    with torch.no_grad(), Recording(net) as seen:
        logits = net(x)
    for layer, fired in zip(seen.neurons.values(), lazy.spikes, strict=True):
        np.testing.assert_array_equal(fired, layer.spikes.numpy().astype(bool))
    np.testing.assert_allclose(lazy.output.mean(0), logits.numpy(), atol=1e-10)
    assert lazy.additions[0] == 0  # the same current in every step: computed once


def test_lazy_kernel_refuses():
    with pytest.raises(ValueError, match="by turns"):
        event_forward(residual((1, 8, 8), 3), torch.zeros(2, 1, 1, 8, 8))
    net = plain([3, 4, 2])
    with pytest.raises(ValueError, match="the same numbers in each step"):
        event_forward(net, torch.rand(4, 2, 3))
    with pytest.raises(ValueError, match="expected finite numbers"):
        event_forward(net, torch.zeros(2, 3))


# --- conversion ------------------------------------------------------------------------------------------------------


def test_converting_spikingjelly():
    neuron = pytest.importorskip("spikingjelly.activation_based.neuron")
    surrogate = pytest.importorskip("spikingjelly.activation_based.surrogate")
    functional = pytest.importorskip("spikingjelly.activation_based.functional")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 20), neuron.LIFNode(tau=2.0, step_mode="m", surrogate_function=surrogate.ATan()),
                        nn.Linear(20, 12), neuron.ParametricLIFNode(init_tau=3.0, step_mode="m", decay_input=False))  # fmt: skip
    for layer in (net[0], net[2]):
        layer.weight.data.mul_(6)
    x = 3 * torch.rand(7, 5, 8)
    same = convert_to_dormant(net, -math.inf)
    theirs = net(x)
    with pytest.raises(RuntimeError, match="reset it first"):
        convert_to_dormant(net)
    functional.reset_net(net)
    assert theirs.sum() > 0
    assert torch.equal(same(x), theirs)
    assert same[1].decay_input
    assert same[3].learn_tau
    assert same[3].surrogate == "sigmoid"
    assert same[3].alpha == 4.0
    assert isinstance(net[1], neuron.LIFNode)
    gated = convert_to_dormant(net, -0.25, wake="never")
    assert gated[1].v_dormant == -0.25
    ours = DormantLIF()
    ours(torch.zeros(3, 2, 4))
    functional.reset_net(nn.Sequential(ours))
    assert ours.state is None
    assert list(inhibition_profile(net, [x])["layer"]) == ["1", "3"]
    with pytest.raises(ValueError, match="IFNode is no leaky"):
        convert_to_dormant(nn.Sequential(neuron.IFNode()))


def test_converting_snntorch():
    snn = pytest.importorskip("snntorch")
    x = 3 * torch.randn(9, 4, 6)
    leaky = snn.Leaky(beta=0.8, init_hidden=True, reset_mechanism="zero")
    ours = convert_to_dormant(leaky, -math.inf)
    assert torch.equal(torch.stack([leaky(step) for step in x]), torch.stack([ours(step) for step in x]))
    assert ours.tau == pytest.approx(5.0)
    for options in ({}, {"init_hidden": True}, {"init_hidden": True, "reset_mechanism": "zero", "inhibition": True}):
        with pytest.raises(ValueError, match="cannot be converted"):
            convert_to_dormant(nn.Sequential(snn.Leaky(beta=0.8, **options)))


def test_converting_one_of_ours_or_nothing():
    net = plain([3, 4, 2], tau=3.0)
    other = convert_to_dormant(net, -0.5, wake="never")
    assert other[1].tau == pytest.approx(3.0)
    assert (other[1].wake, net[1].wake) == ("never", "leak")
    assert torch.equal(other[0].weight, net[0].weight)
    with pytest.raises(ValueError, match="has no LIFNode"):
        convert_to_dormant(nn.Linear(2, 2))


# --- baselines and data ----------------------------------------------------------------------------------------------


def test_random_gate_has_the_rates_that_it_was_given():
    net = SpikingClassifier(plain([6, 200, 100, 3]), 4).eval()
    rates = {"body.1": [1.0, 0.5, 0.2, 0.0], "body.3": [1.0, 0.9, 0.8, 0.7]}
    other = baselines.random_gate(net, rates)
    x = torch.rand(50, 6)
    with Recording(other) as seen:
        other(x)
    for name, given in rates.items():
        found = seen.neurons[name].awake.mean((1, 2))
        np.testing.assert_allclose(found, given, atol=0.03)
        assert (seen.neurons[name].spikes <= seen.neurons[name].awake).all()
    with torch.no_grad():
        assert torch.equal(other(x), other(x))
    with pytest.raises(ValueError, match="rates of 4"):
        other.body[1](torch.zeros(3, 2, 200))
    assert energy_ledger(other, [x]).awake < 0.8


def test_pruning():
    torch.manual_seed(0)
    net = mlp([10, 30, 20, 4]).eval()
    pruned = baselines.magnitude_prune(net, 0.3)
    kept = torch.cat([m.weight.flatten() for m in pruned if isinstance(m, nn.Linear)])
    before = torch.cat([m.weight.flatten() for m in net if isinstance(m, nn.Linear)])
    assert (kept != 0).sum() == round(0.3 * kept.numel())
    assert before[kept == 0].abs().max() <= before[kept != 0].abs().min()
    again = baselines.mask(pruned)
    pruned[1].weight.data.add_(1)
    again()
    assert (torch.cat([m.weight.flatten() for m in pruned if isinstance(m, nn.Linear)]) != 0).sum() == round(
        0.3 * kept.numel()
    )
    narrow = baselines.structured_prune(net, 0.5)
    assert [tuple(m.weight.shape) for m in narrow if isinstance(m, nn.Linear)] == [(15, 10), (10, 15), (4, 10)]
    norms = net[1].weight.abs().sum(1)
    chosen = norms.topk(15).indices.sort().values
    assert torch.equal(narrow[1].weight, net[1].weight[chosen])
    assert narrow(torch.rand(3, 2, 10)).shape == (3, 2, 4)
    for bad in (0.0, 1.5):
        with pytest.raises(ValueError, match="keep"):
            baselines.magnitude_prune(net, bad)
    assert baselines.keep_for(0.3, lambda keep: keep**2) == pytest.approx(math.sqrt(0.3), abs=0.01)


def test_adaptive_threshold_divides_the_current():
    net = SpikingClassifier(mlp([6, 10, 3]), 4).eval()
    other = baselines.adaptive_threshold(net)
    assert isinstance(other.body[2], baselines.AdaptiveThresholdLIF)
    x = torch.rand(3, 5, 10) * 3
    other.body[2].log_threshold.data.fill_(math.log(2.0))
    direct = DormantLIF(v_threshold=2.0, v_dormant=-math.inf, learn_v_dormant=False)
    assert torch.equal(other.body[2](x), direct(x))
    assert baselines.relu_mlp([4, 5, 6, 2])(torch.rand(3, 4)).shape == (3, 2)


def test_folded_normalisation():
    torch.manual_seed(0)
    layer = NormLinear(5, 7)
    layer(torch.randn(4, 3, 5))
    layer.norm.weight.data.uniform_(0.5, 2)
    layer.eval()
    x = torch.randn(4, 3, 5)
    torch.testing.assert_close(layer.folded()(x), layer(x))


def test_training_learns_and_can_be_annealed():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(200, 8, generator=generator)
    y = (X[:, 0] > X[:, 1]).long()
    torch.manual_seed(0)
    net = SpikingClassifier(mlp([8, 32, 2], v_dormant=-0.25, learn_v_dormant=False), 4)
    fit(net, X, y, epochs=30, anneal=5, lr=1e-2)
    assert (predict(net, X) == y).float().mean() > 0.9
    assert net.body[2].v_dormant == -0.25
    before = energy_ledger(net, [X]).rate
    fit(net, X, y, epochs=10, rate=5.0, energy=0.1, lr=1e-2)
    assert energy_ledger(net, [X]).rate < before


def test_annealing_keeps_a_threshold_for_each_channel():
    X = torch.rand(20, 8, generator=torch.Generator().manual_seed(0))
    net = SpikingClassifier(nn.Sequential(nn.Linear(8, 3), DormantLIF(channels=3), nn.Linear(3, 2)), 3)
    goal = torch.tensor([-0.2, -0.5, -1.5])
    net.body[1].set_v_dormant(goal)
    torch.testing.assert_close(net.body[1].v_dormant, goal)
    for epochs, anneal in ((3, 1), (2, 5)):  # a training shorter than the annealing reaches it in its last epoch
        fit(net, X, torch.zeros(20, dtype=torch.long), epochs=epochs, anneal=anneal, lr=0.0)
        torch.testing.assert_close(net.body[1].v_dormant, goal)


def test_lazy_spikes_are_the_dense_ones_with_a_learned_tau():
    """The leak 1 - 1 / tau is rounded as the dense pass rounds it."""
    for seed in range(20):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(8, 6), DormantLIF(learn_tau=True, tau=1.3 + 0.17 * seed), nn.Linear(6, 2)).eval()
        net[0].weight.data.mul_(4).mul_(64).round_().div_(64)  # currents without rounding
        net[0].bias.data.mul_(64).round_().div_(64)
        x = spikes(40, 16, 8, seed=seed)
        with torch.no_grad():
            dense = net[1](net[0](x))
        net[1].reset()
        assert (event_forward(net, x).spikes[0] == dense.bool().numpy()).all()


def test_saccades():
    images = np.zeros((2, 8, 8))
    images[0, 2:6, 3:5] = 1.0
    events = saccade_events(images)
    assert events.shape == (2, 12, 2, 16, 16)
    assert set(np.unique(events)) == {0, 1}
    assert events[1].sum() == 0  # nothing to see, no change
    assert (events[0].sum((1, 2, 3)) > 0).all()
    first = events[0, 0]  # the first movement is downwards: ON below an edge, OFF above
    on, off = np.argwhere(first[0])[:, 0], np.argwhere(first[1])[:, 0]
    assert on.mean() > off.mean()
    assert saccade_events(images, threshold=0.5).sum() < events.sum()
    with pytest.raises(ValueError, match="multiple of 3"):
        saccade_events(images, bins=10)
    with pytest.raises(ValueError, match="numbers from 0 to 1"):
        saccade_events(images * 16)
