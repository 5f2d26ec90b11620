"""Muon on river valleys: the scalar recursions, the sensing landscape, the two stages, the switch, the diagnostics."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gnomon.optimization import (
    MixedSpikedSensing,
    MuonThenAdamW,
    RiverMonitor,
    SpectralDescent,
    TwoStage,
    largest_decreasing_step,
    overshoot_1d,
    river_direction,
    river_hill,
    step_bounds,
)
from gnomon.optimization.muon_river.baselines import SignDescent, cosine, inverse_sqrt, linear, warmup_stable_decay
from gnomon.optimization.muon_river.curvature import directions, hessian_product
from gnomon.optimization.muon_river.scalar import muon_1d
from gnomon.optimization.muon_river.travel import Travel, noise_floor, trend


def muon(p, lr: float = 0.1, **options):
    return SpectralDescent(p, lr=lr, **options)


def sgd(p, lr: float = 0.019, **options):
    return torch.optim.SGD(p, lr=lr, **options)


# --- one dimension ----------------------------------------------------------------------------------------------------


def test_one_dimension_by_hand():
    assert muon_1d(1.0, 0.3, 6) == pytest.approx([1, 0.7, 0.4, 0.1, -0.2, 0.1, -0.2])
    assert [overshoot_1d(50.5, 0, 1, b) for b in (0, 0.9, 0.95, 0.99)] == pytest.approx(
        [0.5, 8.5, 17.5, 37.5], abs=1.01
    )
    assert overshoot_1d(0.0, 0.0, 1, 0.5) == 0
    assert overshoot_1d(-50.5, 0, 1, 0.95) == overshoot_1d(50.5, 0, 1, 0.95)


@settings(max_examples=40, deadline=None)
@given(x0=st.floats(0.5, 50), eta=st.floats(0.01, 0.4), c=st.floats(0.1, 10))
def test_the_bottom_is_met_on_time_and_never_held(x0, eta, c):
    path = muon_1d(x0, eta, 2 * math.ceil(x0 / eta) + 4, c=c)
    assert abs(int(np.argmax(path <= 0)) - math.ceil(x0 / eta)) <= (abs(x0 / eta - round(x0 / eta)) < 1e-9)
    assert np.abs(path[math.ceil(x0 / eta) + 1 :]).max() <= eta + 1e-9
    assert overshoot_1d(x0, 0, eta, 0.0, c) <= eta + 1e-9


@settings(max_examples=40, deadline=None)
@given(gam=st.floats(0.01, 10), c=st.floats(0.01, 10), share=st.floats(0.01, 3).filter(lambda s: abs(s - 1) > 1e-3))
def test_a_muon_step_decreases_a_parabola_iff_it_is_below_two_a(gam, c, share):
    eta = share * 2 * gam / c
    assert (-eta * gam + eta**2 * c / 2 < 0) == (share < 1)


def test_scalar_refuses():
    for change, says in (({"eta": 0}, "eta"), ({"beta": 1.0}, "beta"), ({"c": 0}, "c"), ({"x0": math.nan}, "x0")):
        with pytest.raises(ValueError, match=says):
            overshoot_1d(**{"x0": 1, "m0": 0, "eta": 0.1, "beta": 0.5, **change})


# --- the sensing landscape --------------------------------------------------------------------------------------------


def test_the_population_run_is_the_scalar_recursions():
    lab = MixedSpikedSensing(river=4.87, hills=(0.83, 1.07, 1.13), seed=1)
    path = lab.run(lambda p: muon(p), 45)  # coordinates are not yet zero
    assert path.river == pytest.approx(muon_1d(-4.87, 0.1, 45), abs=1e-10)
    for j, c in enumerate((0.83, 1.07, 1.13)):
        assert path.hills[:, j] == pytest.approx(muon_1d(c, 0.1, 45), abs=1e-10)
    assert path.bulk.max() < 1e-9
    crossed = lab.run(lambda p: muon(p), 60).river
    assert int(np.argmax(crossed >= 0)) == math.ceil(48.7)
    assert int(np.argmax(np.abs(crossed) <= 0.1)) == math.ceil(48.7) - 1
    down = lab.run(lambda p: sgd(p), 30)
    assert down.river == pytest.approx(-4.87 * 0.981 ** np.arange(31))
    assert down.hills[:, 0] == pytest.approx(0.83 * (1 - 1.9) ** np.arange(31))
    assert down.loss == pytest.approx(0.5 * (down.river**2 + down.hills**2 @ [100, 60, 40]))


def test_round_numbers_stop_at_the_optimum():
    """Every coordinate lands on zero; what is left is rounding noise, which must not be normalised."""
    lab = MixedSpikedSensing(river=5.0, hills=1.0)
    lab.run(lambda p: muon(p), 80)
    assert float((lab.W - lab.target).detach().norm()) < 1e-12


@pytest.mark.parametrize("options", [{}, {"decay": 0.5, "tail": 1.0}, {"samples": 400, "noise": 0.1}])
def test_loss_gradient_and_hessian_agree(options):
    lab = MixedSpikedSensing(6, 5, spikes=(20.0, 10.0), **options)
    W = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    (auto,) = torch.autograd.grad(lab.loss(W), W)
    assert torch.allclose(auto, lab.grad(W.detach()), atol=1e-10)
    lab.W.data.copy_(W.detach())
    lab().backward()
    assert torch.allclose(lab.W.grad, auto, atol=1e-10)
    H = torch.autograd.functional.hessian(lab.loss, W.detach()).reshape(30, 30)
    assert lab.curvature() == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-3)
    if "samples" not in options:
        for vector, value in zip(lab.basis, (1.0, 20.0, 10.0), strict=True):
            assert torch.allclose(H @ vector, value * vector, atol=1e-9)
        assert float(lab.loss(lab.target)) == 0
        river, hills, bulk = lab.coordinates(lab.start)
        assert [float(river), *hills.tolist()] == pytest.approx([-5, 1, 1])
        assert float(bulk) == pytest.approx(options.get("tail", 0.0), abs=1e-9)
    else:
        for vector, value in zip(lab.basis, (1.0, 20.0, 10.0), strict=True):
            assert abs(float(vector @ H @ vector) - value) < 5 * value * math.sqrt(2 / 400)


def test_scale_and_rotation():
    """Rescaling f leaves Muon's path alone; rotating or transposing the problem does so to the path."""
    lab = MixedSpikedSensing(8, 6, seed=2)
    assert lab.run(lambda p: sgd(p, 0.01), 20).river == pytest.approx(
        MixedSpikedSensing(8, 6, signal=2.0, spikes=(200, 120, 80), bulk=0.6, seed=2).run(lambda p: sgd(p, 0.005), 20).river)  # fmt: skip
    ends = []
    P, Q = (
        torch.linalg.qr(torch.randn(k, k, dtype=torch.float64, generator=torch.Generator().manual_seed(k))).Q
        for k in (8, 6)
    )
    for turn in (lambda W: W, lambda W: P @ W @ Q, lambda W: W.T, lambda W: 7 * W / 7):
        W = nn.Parameter(turn(lab.start).clone().contiguous())
        back = {0: lambda W: W, 1: lambda W: P.T @ W @ Q.T, 2: lambda W: W.T, 3: lambda W: W}[len(ends)]
        optimizer = muon([W])
        for _ in range(30):
            grad = lab.grad(back(W.detach()))
            W.grad = turn(3 * grad if len(ends) == 3 else grad).contiguous()
            optimizer.step()
        ends.append(back(W.detach()))
    for other in ends[1:]:
        assert torch.allclose(ends[0], other, atol=1e-9)


def test_sensing_refuses_and_warns():
    with pytest.warns(UserWarning, match="no river"):
        MixedSpikedSensing(4, 4, signal=50.0, spikes=(40.0,))
    with pytest.warns(UserWarning, match="underdetermined"):
        MixedSpikedSensing(4, 4, spikes=(40.0,), samples=10)
    for change, says in (({"spikes": (9.0,) * 4}, "spikes"), ({"signal": 0.0}, "signal"), ({"bulk": -1.0}, "bulk"),
                         ({"noise": -1.0}, "noise"), ({"samples": 0}, "samples"), ({"decay": math.nan}, "decay")):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            MixedSpikedSensing(**{"m": 4, "n": 4, "spikes": (40.0,), **change})


def test_schedules():
    assert [linear(10)(t) for t in (0, 5, 10, 12)] == [1, 0.5, 0, 0]
    assert [cosine(10)(t) for t in (0, 5, 10)] == pytest.approx([1, 0.5, 0])
    assert [inverse_sqrt(10)(t) for t in (0, 30)] == [1, 0.5]
    assert [warmup_stable_decay(10, 0.2)(t) for t in (0, 7, 8, 9, 10)] == pytest.approx([1, 1, 1, 0.5, 0])
    W = nn.Parameter(torch.tensor([[2.0, -3.0]]))
    W.grad = torch.tensor([[5.0, 0.0]])
    SignDescent([W], lr=0.5).step()
    assert W.tolist() == [[1.5, -3.0]]
    with pytest.raises(ValueError, match="lr"):
        SignDescent([W], lr=0.0)


# --- the two stages ---------------------------------------------------------------------------------------------------


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def train(
    net: nn.Module, optimizer: torch.optim.Optimizer, steps: int, start: int = 0, scheduler=None
) -> list[torch.Tensor]:
    for step in range(start, start + steps):
        X = torch.randn(16, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = ((net(X) - X[:, :2].sin()) ** 2).mean()
        loss.backward()
        if hasattr(optimizer, "report"):
            optimizer.report(loss.item())
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return [p.detach().clone() for p in net.parameters()]


def two(net: nn.Module, switch, **options) -> TwoStage:
    return TwoStage(
        net, lambda p: muon(p, 0.05, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=1e-3), switch, **options
    )


def both(net: nn.Module, inner) -> list[torch.Tensor]:
    """An inner optimiser on the matrices and AdamW on the vectors, apart."""
    matrices, vectors = ([p for p in net.parameters() if (p.dim() == 2) == kind] for kind in (True, False))
    parts = [inner(matrices), torch.optim.AdamW(vectors, lr=3e-4, weight_decay=0.0)]

    class Both:
        def zero_grad(self):
            for part in parts:
                part.zero_grad()

        def step(self):
            for part in parts:
                part.step()

    return train(net, Both(), 12)


def same(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_the_ends_are_the_stages_alone():
    a, b = network(), network()
    assert same(train(a, two(a, 0), 12), both(b, lambda p: torch.optim.AdamW(p, lr=1e-3)))
    for never in (math.inf, 1000):
        a, b = network(), network()
        optimizer = two(a, never)
        assert same(train(a, optimizer, 12), both(b, lambda p: muon(p, 0.05, momentum=0.9)))
        assert optimizer.switched_at_ is None


@pytest.mark.parametrize("when", [4, 9])
@pytest.mark.parametrize("switch", [6, "auto"])
def test_a_checkpoint_resumes_identically_before_and_after(when, switch, tmp_path):
    options = {"min_steps": 2, "noisy": False} if switch == "auto" else {}
    a = network()
    straight = two(a, switch, **options)
    expected = train(a, straight, 14)
    b = network()
    first = two(b, switch, **options)
    train(b, first, when)
    torch.save({"net": b.state_dict(), "optimizer": first.state_dict()}, tmp_path / "c.pt")
    twin_net, twin = copy.deepcopy((b, first))
    kept = torch.load(tmp_path / "c.pt", weights_only=True)
    c = network(1)
    c.load_state_dict(kept["net"])
    second = two(c, switch, **options)
    groups = second.param_groups
    second.load_state_dict(kept["optimizer"])
    assert second.param_groups is groups
    assert same(train(c, second, 14 - when, when), expected)
    assert same(train(twin_net, twin, 14 - when, when), expected)
    assert (second.switched_at_, second.reason_, second.lr2_) == (
        straight.switched_at_,
        straight.reason_,
        straight.lr2_,
    )
    if switch == 6:
        assert second.switched_at_ == 6
        with pytest.raises(ValueError, match="has switched"):
            second.load_state_dict(two(network(), 6).state_dict())


def test_the_first_refiner_update_is_matched():
    net = network()
    optimizer = two(net, 3, match=0.25)
    before = train(net, optimizer, 3)
    after = train(net, optimizer, 1, 3)
    twin = network()
    still = two(twin, math.inf)
    train(twin, still, 3)
    moved = train(twin, still, 1, 3)

    def rms(x):
        steps = [a - b for a, b in zip(x, before, strict=True) if a.dim() == 2]
        return math.sqrt(sum(float((s**2).sum()) for s in steps) / sum(s.numel() for s in steps))

    assert rms(after) == pytest.approx(0.25 * rms(moved), rel=1e-9)
    assert optimizer.switched_at_ == 3
    assert optimizer.reason_ == "step 3"
    assert optimizer._first is None  # its buffers are free


def test_schedulers_act_in_both_stages():
    """The factor carries over, the base rate does not; the list of groups stays one object."""
    net = network()
    optimizer = TwoStage([net[0].weight], lambda p: muon(p, 0.4), lambda p: sgd(p, 9.0), 2, lr2=0.1)
    groups = optimizer.param_groups
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 0.5**t)
    for step in range(4):
        before = net[0].weight.detach().clone()
        net[0].weight.grad = torch.ones_like(net[0].weight)
        optimizer.step()
        moved = float((net[0].weight.detach() - before).norm() / (1 if step < 2 else math.sqrt(35)))
        assert moved == pytest.approx((0.4 if step < 2 else 0.1) * 0.5**step)
        scheduler.step()
    assert optimizer.param_groups is groups
    linear2 = TwoStage([net[0].weight], lambda p: muon(p), lambda p: sgd(p), 2, 6, lr2=0.1, schedule2="linear")
    rates = []
    for _ in range(6):
        linear2.step()
        rates.append(linear2._second.param_groups[0]["lr"] if linear2._second else None)
    assert rates[2:] == pytest.approx([0.1, 0.075, 0.05, 0.025])


@pytest.mark.parametrize("refiner", [lambda p: torch.optim.AdamW(p, lr=1e-2), lambda p: sgd(p, 1e-2, momentum=0.9)])
def test_momentum_can_be_carried(refiner):
    """The refiner's first update points along stage 1's buffer, at the gradient's norm."""
    W = nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))
    optimizer = TwoStage([W], lambda p: muon(p, momentum=0.9), refiner, 5, carry="momentum", lr2=0.01)
    g = torch.tensor([[1.0, 2.0], [0.0, 1.0], [3.0, -1.0]], dtype=torch.float64)
    for _ in range(6):
        before = W.detach().clone()
        W.grad = g.clone()
        optimizer.step()
    step = W.detach() - before
    if isinstance(optimizer._second, torch.optim.SGD):
        assert torch.allclose(step, -0.01 * g / (1 - 0.9), rtol=1e-9)
    else:
        assert torch.allclose(step, -0.01 * g.sign(), atol=2e-3)
    for first, second, says in ((0.9, lambda p: sgd(p), "no momentum to warm"), (0.0, refiner, "momentum_buffer")):
        broken = TwoStage([W], lambda p, m=first: muon(p, momentum=m), second, 1, carry="momentum", lr2=0.01)
        broken.step()
        with pytest.raises(ValueError, match=says):
            broken.step()


def test_routing_of_a_model():
    config = transformers.LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                                      num_key_value_heads=1, tie_word_embeddings=False)  # fmt: skip
    net = transformers.LlamaForCausalLM(config)
    optimizer = MuonThenAdamW(net, switch=0.5, total_steps=4)
    names = {id(p): n for n, p in net.named_parameters()}
    hidden = {names[id(p)].split(".")[-2] for p in optimizer.param_groups[0]["params"]}
    assert hidden == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    rest = {names[id(p)].split(".")[-2] for p in optimizer.param_groups[1]["params"]}
    assert rest == {"embed_tokens", "lm_head", "norm", "input_layernorm", "post_attention_layernorm"}
    plain = MuonThenAdamW(network(), switch=3)
    assert [len(g["params"]) for g in plain.param_groups] == [3, 3]
    with pytest.raises(ValueError, match="lr_adamw"):
        MuonThenAdamW(network(), lr_adamw=0.0)


def test_in_the_trainer(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    )
    net = transformers.LlamaForCausalLM(config)
    optimizer = MuonThenAdamW(net, switch=3)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (16, 8))]
    arguments = transformers.TrainingArguments(tmp_path, max_steps=6, per_device_train_batch_size=4, report_to=[], disable_tqdm=True,
                                               save_steps=4, use_cpu=True, lr_scheduler_type="linear")  # fmt: skip
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / 6)
    trainer = transformers.Trainer(net, arguments, train_dataset=rows, optimizers=(optimizer, scheduler))
    trainer.train()
    assert optimizer.switched_at_ == 3
    saved = torch.load(tmp_path / "checkpoint-4" / "optimizer.pt", weights_only=True)
    assert saved["two_stage"]["switched_at"] == 3


@pytest.mark.parametrize(("options", "says"), [
    ({"switch": 0.5}, "total_steps"), ({"switch": -1}, "switch"), ({"switch": "later"}, "switch"), ({"switch": 1.5}, "fraction"),
    ({"switch": True}, "switch"), ({"switch": 3, "carry": "all"}, "carry"), ({"switch": 3, "lr2": 0.0}, "lr2"),
    ({"switch": 3, "match": -1.0}, "match"), ({"switch": 3, "schedule2": "linear"}, "total_steps"),
])  # fmt: skip
def test_two_stage_refuses(options, says):
    with pytest.raises(ValueError, match=says):
        two(network(), **options)


def test_two_stage_refuses_parameters():
    W = nn.Parameter(torch.eye(2))
    with pytest.raises(ValueError, match=r"Muon needs matrices; found shapes \(3,\)"):
        two([nn.Parameter(torch.ones(3))], 3)
    with pytest.raises(ValueError, match="given twice"):
        two([W, W], 3)
    with pytest.raises(TypeError, match="dict"):
        two([{"params": [W]}], 3)
    with pytest.raises(RuntimeError, match="no more parameters"):
        two([W], 3).add_param_group({"params": [nn.Parameter(torch.eye(2))]})
    with pytest.raises(ValueError, match="TwoStage"):
        two([W], 3).load_state_dict(muon([W]).state_dict())


def test_closures():
    net = network()
    optimizer = two(net, 2)
    X = torch.randn(16, 5, dtype=torch.float64)

    def closure():
        optimizer.zero_grad()
        loss = net(X).square().mean()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(5)]
    assert losses[-1] < losses[0]


# --- the automatic switch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("samples", [None, 6 * 16 * 16])
def test_auto_fires_when_the_river_has_been_travelled(seed, samples):
    rng = np.random.default_rng(seed)
    river = float(rng.uniform(4.5, 5.5))
    lab = MixedSpikedSensing(16, 16, samples=samples, seed=seed, river=river, hills=rng.uniform(0.8, 1.2, 3).tolist())
    held = []

    def make(p):
        held.append(TwoStage(p, lambda q: muon(q), lambda q: sgd(q, 0.01), "auto", min_steps=0, noisy=False))
        return held[0]

    lab.run(make, 140)
    assert river / 0.1 - 1 <= held[0].switched_at_ <= river / 0.1 + 40
    assert "travel" in held[0].reason_


@pytest.mark.parametrize("noisy", [True, False])
def test_auto_never_fires_on_a_linear_loss(noisy):
    W = nn.Parameter(torch.zeros(5, 4))
    optimizer = TwoStage([W], lambda p: muon(p), lambda p: sgd(p), "auto", min_steps=0, noisy=noisy)
    g = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    for _ in range(300):
        W.grad = g.clone()
        optimizer.report(float((g * W.detach()).sum()))
        optimizer.step()
    assert optimizer.switched_at_ is None
    assert optimizer._travel.value == pytest.approx(1.0, abs=1e-4)


def test_auto_with_noise_asks_for_a_flat_loss():
    generator = torch.Generator().manual_seed(0)

    def feed(slope: float, losses: bool = True) -> str | None:
        travel, found = Travel(noisy=True), None
        for t in range(250):
            noise = torch.randn(6, 5, generator=generator)
            travel.update([noise], slope * t + 0.1 * float(torch.randn((), generator=generator)) if losses else None)
            found = found or travel.reason()
        return found

    assert "slope" in feed(0.0)
    assert feed(-0.01) is None
    assert "10 steps" in feed(0.0, losses=False)
    assert noise_floor((30, 30)) == pytest.approx(0.4588, abs=1e-4)
    still = Travel(noisy=True)
    seen = [still.update([torch.randn(30, 30, generator=generator)]) for _ in range(200)][50:]
    assert np.mean(seen) == pytest.approx(0.4588, rel=0.1)
    slope, error = trend(np.array([1.0, 3.0, 2.0, 4.0]))
    assert slope == pytest.approx(0.8)
    assert error == pytest.approx(math.sqrt(1.8 / 2 / 5))


def test_travel_of_large_matrices_is_that_of_small_ones():
    g = torch.randn(140, 150, generator=torch.Generator().manual_seed(0))
    travel = Travel()
    for sign in [1.0] * 30:
        straight = travel.update([sign * g])
    bounce = Travel()
    for t in range(30):
        alternating = bounce.update([(-1) ** t * g])
    assert straight > 0.6
    assert alternating < 0.15


# --- diagnostics ------------------------------------------------------------------------------------------------------


def test_the_monitor():
    lab = MixedSpikedSensing(8, 8, river=2.03, hills=0.97)
    held = []

    def make(p):
        optimizer = muon(p)
        held.append(RiverMonitor(optimizer, interval=10, window=4, directions={0: lab.direction}))
        return optimizer

    lab.run(make, 60)
    rows = held[0].history
    assert [r["step"] for r in rows] == [10, 20, 30, 40, 50, 60]
    assert rows[0]["river"] == pytest.approx(0.1)  # unit speed along the river
    assert rows[0]["flatness"] < 1e-6  # rank 4 of 8
    assert rows[-1]["cosine"] == pytest.approx(-1, abs=1e-6)  # everything bounces
    assert rows[-1]["straightness"] < 0.05 < rows[0]["straightness"]
    held[0].remove()
    lab.run(lambda p: muon(p), 20)
    assert len(held[0].history) == 6
    net = network()
    optimizer = two(net, 5)
    watch = RiverMonitor(optimizer, interval=4)
    train(net, optimizer, 8)
    assert len(watch.history) == 2 * 3
    assert all(np.isfinite(r["gradient"]) for r in watch.history)


def test_monitor_refuses():
    optimizer = muon([nn.Parameter(torch.eye(2))])
    for options, says in (
        ({"window": 1}, "window"),
        ({"interval": 1}, "interval"),
        ({"directions": {0: torch.ones(3)}}, "d:"),
    ):
        with pytest.raises(ValueError, match=says):
            RiverMonitor(optimizer, **options)
    with pytest.raises(ValueError, match="no matrices"):
        RiverMonitor(torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1))
    assert river_hill(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0]])) == (3.0, 4.0)


def test_steps_around_the_minimum_of_the_lab():
    """Muon's largest decreasing step is 2<G,U>/<U,HU>, in proportion to the distance; GD's does not depend on it."""
    lab = MixedSpikedSensing(8, 6, seed=4)
    D = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    W = torch.zeros(8, 6, dtype=torch.float64, requires_grad=True)
    found = []
    for s in (1.0, 0.25):
        W.data.copy_(lab.target + s * D / D.norm())
        G, U = directions(lambda: lab.loss(W), [W])
        bounds = step_bounds(lambda: lab.loss(W), [W])
        (HU,) = hessian_product(lambda: lab.loss(W), [W], U)
        assert bounds.muon == pytest.approx(float(2 * (G[0] * U[0]).sum() / (U[0] * HU).sum()))
        steps = [largest_decreasing_step(lambda: lab.loss(W), [W], d, rtol=1e-6) for d in (U, G)]
        assert steps == pytest.approx([bounds.muon, bounds.gd], rel=1e-4)
        found.append(steps)
    assert found[0][0] / found[1][0] == pytest.approx(4, rel=1e-3)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-3)
    before = W.detach().clone()
    assert largest_decreasing_step(lambda: lab.loss(W), [W], [-U[0]]) == 0  # uphill
    assert largest_decreasing_step(lambda: -W.sum(), [W], [-torch.ones_like(W)]) == math.inf
    assert torch.equal(W, before)


def test_the_river_is_found():
    lab = MixedSpikedSensing(5, 4, signal=1.0, spikes=(50.0, 20.0), bulk=1e-7)
    curvature, (d,) = river_direction(lambda: lab.loss(lab.W), [lab.W])
    assert curvature == pytest.approx(1.0, rel=1e-6)
    assert abs(float((d * lab.direction).sum())) == pytest.approx(1.0, abs=1e-6)
