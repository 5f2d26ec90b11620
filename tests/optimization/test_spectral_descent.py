"""Spectral descent: the polar maps, the optimiser, the flow and its closed forms, the factorisation, adapter spectra."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict

import numpy as np
import peft
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from gnomon import linalg
from gnomon.optimization import (
    LoraSpectrum,
    SpectralDescent,
    SpectralFactorization,
    SpectrumCallback,
    flatness,
    growth_rate,
    polar,
    product_spectrum,
    rate_spread,
    spectral_flow,
    stable_rank,
)
from gnomon.optimization.spectral_descent.baselines import (
    full_matrix_descent,
    gradient_flow_half_times,
    gradient_flow_spectrum,
    truncated_svd,
)
from gnomon.optimization.spectral_descent.descent import factor_descent
from gnomon.optimization.spectral_descent.flow import (
    aligned_hitting_times,
    aligned_spectrum,
    escape_curvature,
    least_value,
    objective,
)
from gnomon.optimization.spectral_descent.method import step_scale
from gnomon.optimization.spectral_descent.spectra import effective_rank, hitting_times

SIGMA = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
shapes = st.tuples(st.integers(1, 9), st.integers(1, 9))
seeds = st.integers(0, 2**32 - 1)


def gaussian(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def rotation(rng: np.random.Generator, n: int, k: int | None = None) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(n, n)))[0][:, :k]


def target(rng: np.random.Generator, m: int, n: int, sigma: np.ndarray = SIGMA) -> np.ndarray:
    k = len(sigma)
    return rotation(rng, m, k) @ np.diag(sigma) @ rotation(rng, n, k).T


# --- polar maps -------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(shape=shapes, seed=seeds, scale=st.floats(1e-6, 1e6))
def test_the_polar_factor(shape, seed, scale):
    G = gaussian(seed, *shape)
    X = polar(G)
    assert torch.allclose(X, polar(G, "svd"), atol=1e-9)
    assert torch.allclose(polar(scale * G), X, atol=1e-9)
    projector = X.T @ X
    assert torch.allclose(projector @ projector, projector, atol=1e-8)
    assert float((X * G).sum()) == pytest.approx(float(torch.linalg.svdvals(G).sum()), rel=1e-9)
    U, V = (torch.linalg.qr(gaussian(seed + 1, k, k)).Q for k in shape)
    assert torch.allclose(polar(U @ G @ V), U @ X @ V, atol=1e-8)
    assert torch.allclose(polar(G.T.contiguous()), X.T, atol=1e-9)


def test_the_polar_factor_by_hand():
    assert torch.allclose(polar(torch.diag(torch.tensor([3.0, -2.0]))), torch.diag(torch.tensor([1.0, -1.0])))
    assert torch.equal(polar(torch.zeros(3, 2)), torch.zeros(3, 2))
    assert polar(torch.zeros(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0, 2, 6, 12])
def test_fast_and_reference_agree_at_any_condition(dtype, spread):
    """Singular values over up to 12 decades, beside a well-conditioned matrix in the same batch."""
    U, V = (torch.linalg.qr(gaussian(s, 2, k, 5)).Q for s, k in ((0, 40), (1, 6)))
    s = torch.stack([torch.logspace(0, -spread, 5, dtype=torch.float64), torch.linspace(2, 1, 5, dtype=torch.float64)])
    G = (U * s[:, None]) @ V.mT
    X, Y = polar(G.to(dtype)), polar(G.to(dtype), "svd")
    assert torch.allclose(X, Y, atol=1e-9 if dtype == torch.float64 else 2e-4)
    kept = s > max(1e-12 * 40, 10 * torch.finfo(dtype).eps) * s.amax(1, keepdim=True)
    if dtype == torch.float64:
        assert torch.equal(torch.linalg.matrix_rank(X, atol=0.5), kept.sum(1))


def test_what_counts_as_zero_is_told_by_the_largest_seen():
    G = 1e-13 * gaussian(0, 4, 3)
    assert torch.linalg.matrix_rank(polar(G)) == 3
    assert torch.equal(polar(G, largest=1.0), torch.zeros(4, 3, dtype=torch.float64))
    both = polar(torch.stack([G, G]), largest=torch.tensor([1.0, 1e-13]))
    assert torch.equal(both[0], torch.zeros(4, 3, dtype=torch.float64))
    assert torch.allclose(both[1], polar(G))


def test_a_full_rank_polar_factor_is_that_of_linalg():
    G = gaussian(3, 7, 4)
    assert torch.allclose(polar(G), linalg.polar(G), atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(shape=shapes, seed=seeds, beta=st.floats(1e-8, 1e8))
def test_the_smoothed_map(shape, seed, beta):
    G = gaussian(seed, *shape)
    u, s, vh = torch.linalg.svd(G, full_matrices=False)
    assert torch.allclose(polar(G, "smoothed", beta), (u * (s / (s * s + beta).sqrt())) @ vh, atol=1e-7)


def test_limits_of_the_smoothed_map():
    G = gaussian(0, 6, 4)
    assert torch.allclose(polar(G, "smoothed", 1e-16), polar(G), atol=1e-10)
    assert torch.equal(polar(G, "smoothed", 0.0), polar(G))
    assert torch.allclose(polar(G, "smoothed", 1e16) * 1e8, G, rtol=1e-10)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (2, 4, 3)])
@pytest.mark.parametrize("beta", [0.5, 1e-2])
def test_gradcheck_of_the_smoothed_map(shape, beta):
    assert torch.autograd.gradcheck(lambda G: polar(G, "smoothed", beta), gaussian(0, *shape).requires_grad_())


@pytest.mark.parametrize("shape", [(5, 3), (3, 3)])
def test_gradcheck_where_singular_values_coincide_or_vanish(shape):
    u, v = (torch.linalg.qr(gaussian(i, k, 3)).Q for i, k in enumerate(shape))
    for s in ([2.0, 2.0, 1.0], [1.0, 0.0, 0.0]):
        G = ((u * torch.tensor(s, dtype=torch.float64)) @ v.T).requires_grad_()
        assert torch.autograd.gradcheck(lambda G: polar(G, "smoothed", 0.1), G)


def test_gradcheck_of_the_exact_map():
    assert torch.autograd.gradcheck(lambda G: polar(G), gaussian(1, 5, 3).requires_grad_())
    assert torch.autograd.gradcheck(lambda G: polar(G, "svd"), gaussian(1, 3, 5).requires_grad_())


def test_newton_schulz():
    G = gaussian(0, 3, 30, 20)
    s = torch.linalg.svdvals(G / torch.linalg.matrix_norm(G)[:, None, None])
    got = torch.linalg.svdvals(polar(G, "newton_schulz"))
    assert (s > 0.01).all()
    assert ((got > 0.67) & (got < 1.14)).all()
    assert torch.allclose(polar(G, "cubic", ns_steps=40), polar(G), atol=1e-9)
    assert torch.allclose(polar(G, "newton_schulz")[1], polar(G[1], "newton_schulz"), atol=1e-12)
    reference = torch.optim._muon._zeropower_via_newtonschulz(G[0], (3.4445, -4.7750, 2.0315), 5, 1e-7)
    assert torch.equal(polar(G[0], "newton_schulz", ns_dtype=torch.bfloat16), reference.double())
    assert torch.equal(polar(torch.zeros(2, 3), "newton_schulz"), torch.zeros(2, 3))


@pytest.mark.parametrize(("change", "says"), [
    ({"method": "qr"}, "exact, svd, smoothed, newton_schulz, cubic"),
    ({"beta": -1.0}, "beta"),
    ({"beta": math.nan}, "beta"),
    ({"ns_steps": 0}, "ns_steps"),
    ({"G": torch.ones(3)}, r"\(3,\)"),
    ({"G": torch.full((2, 2), math.nan)}, "NaN"),
    ({"G": torch.full((2, 2), math.inf)}, "NaN"),
])  # fmt: skip
def test_polar_refuses(change, says):
    with pytest.raises(ValueError, match=says):
        polar(**{"G": torch.eye(2), **change})


def test_polar_refuses_other_types():
    with pytest.raises(TypeError, match="int64"):
        polar(torch.ones(2, 2, dtype=torch.int64))


# --- the optimiser ----------------------------------------------------------------------------------------------------


def quadratic(seed: int, dtype: torch.dtype = torch.float32):
    """A least squares of 32 x 48 and its start."""
    X, W = gaussian(seed, 64, 32, dtype=dtype), gaussian(seed + 1, 32, 48, dtype=dtype)
    parameter = nn.Parameter(torch.zeros(32, 48, dtype=dtype))
    return parameter, lambda: ((X @ (parameter - W)) ** 2).mean()


def train(make, steps: int = 20, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    parameter, loss = quadratic(seed, dtype)
    optimizer = make([parameter])
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_it_follows_torchs_muon(scale, nesterov):
    """In bfloat16, as that runs; in float32 the paths part by little."""
    common = {"lr": 0.02, "momentum": 0.95, "nesterov": nesterov, "weight_decay": 0.0}
    muon = train(lambda p: torch.optim.Muon(p, adjust_lr_fn=scale, **common))
    ours = train(lambda p: SpectralDescent(p, orth="newton_schulz", scale=scale, **common))
    assert (ours - muon).abs().max() < 2e-6
    full = train(lambda p: SpectralDescent(p, orth="newton_schulz", ns_dtype=torch.float32, scale=scale, **common))
    assert (full - muon).norm() / muon.norm() < 0.01


def test_weight_decay_is_torchs():
    common = {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.3}
    muon = train(lambda p: torch.optim.Muon(p, **common))
    ours = train(lambda p: SpectralDescent(p, orth="newton_schulz", scale="original", **common))
    assert (ours - muon).abs().max() < 2e-6


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        OrderedDict((n, nn.Linear(6, 6, bias=False).double()) for n in "abc"),
    )


def run(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int, scheduler=None) -> list[torch.Tensor]:
    X = gaussian(5, 12, 6)
    for _ in range(steps):
        optimizer.zero_grad()
        ((net(X) - X.flip(1)) ** 2).mean().backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
    return [p.detach().clone() for p in net.parameters()]


@pytest.mark.parametrize("options", [
    {}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"orth": "smoothed", "beta": 1e-3, "weight_decay": 0.1},
    {"orth": "cubic", "ns_steps": 12, "ns_dtype": None}, {"orth": "newton_schulz", "ns_dtype": None, "scale": "original"},
])  # fmt: skip
def test_batches_equal_one_at_a_time(options):
    a, b = network(), network()
    batched = run(a, SpectralDescent(a.parameters(), lr=0.03, **options), 8)
    single = run(b, SpectralDescent(b.parameters(), lr=0.03, foreach=False, **options), 8)
    assert all(torch.allclose(x, y, atol=1e-10) for x, y in zip(batched, single, strict=True))


@pytest.mark.parametrize("orth", ["exact", "newton_schulz"])
def test_a_checkpoint_resumes_identically(orth, tmp_path):
    def make(net):
        return SpectralDescent(net.named_parameters(), lr=0.05, momentum=0.9, orth=orth)

    straight = network()
    expected = run(straight, make(straight), 9)
    first = network()
    optimizer = make(first)
    run(first, optimizer, 4)
    torch.save({"net": first.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    kept = torch.load(tmp_path / "state.pt", weights_only=True) if orth == "exact" else copy.deepcopy(
        {"net": first.state_dict(), "optimizer": optimizer.state_dict()})  # fmt: skip
    second = network()
    second.load_state_dict(kept["net"])
    resumed = make(second)
    resumed.load_state_dict(kept["optimizer"])
    assert all(torch.equal(x, y) for x, y in zip(run(second, resumed, 5), expected, strict=True))
    twin, other = copy.deepcopy((first, optimizer))
    assert all(torch.equal(x, y) for x, y in zip(run(twin, other, 5), expected, strict=True))


def test_groups_schedulers_and_closures():
    net = network()
    optimizer = SpectralDescent([{"params": [net.a.weight], "lr": 0.5}, {"params": [net.b.weight]}], lr=0.1)
    optimizer.add_param_group({"params": [net.c.weight], "orth": "smoothed", "beta": 0.1})
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    before = net.a.weight.detach().clone()
    run(net, optimizer, 1, scheduler)
    assert torch.linalg.svdvals(net.a.weight.detach() - before) == pytest.approx(0.5 * np.ones(6))
    assert [g["lr"] for g in optimizer.param_groups] == [0.25, 0.05, 0.05]
    X = gaussian(5, 12, 6)

    def closure():
        optimizer.zero_grad()
        loss = ((net(X) - X.flip(1)) ** 2).mean()
        loss.backward()
        return loss

    values = [optimizer.step(closure).item() for _ in range(6)]
    assert values[-1] < values[0]
    assert SpectralDescent([net.a.weight], maximize=True).step() is None


def test_maximize_is_minimising_the_negative():
    a, b = (nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    a.grad, b.grad = gaussian(0, 3, 2, dtype=torch.float32), -gaussian(0, 3, 2, dtype=torch.float32)
    SpectralDescent([a], lr=0.1, momentum=0.5).step()
    SpectralDescent([b], lr=0.1, momentum=0.5, maximize=True).step()
    assert torch.equal(a, b)


def test_memory_is_one_buffer_and_none_without_momentum():
    for momentum, buffers in ((0.0, 0), (0.9, 1)):
        net = network()
        optimizer = SpectralDescent(net.parameters(), momentum=momentum)
        run(net, optimizer, 2)
        for p in net.parameters():
            assert sum(v.numel() == p.numel() for v in optimizer.state[p].values()) == buffers
            assert sum(v.numel() for v in optimizer.state[p].values()) == buffers * p.numel() + 1


def test_half_precision_non_contiguous_and_absent_gradients():
    for dtype in (torch.bfloat16, torch.float16):
        p = nn.Parameter(torch.zeros(4, 8, dtype=dtype))
        p.grad = gaussian(0, 8, 4).to(dtype).T
        SpectralDescent([p], lr=1.0).step()
        assert torch.linalg.svdvals(p.detach().float()) == pytest.approx(np.ones(4), abs=0.02)
    still, moved = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    moved.grad = torch.eye(2)
    SpectralDescent([still, moved], lr=1.0).step()
    assert torch.equal(still, torch.ones(2, 2))
    assert not torch.equal(moved, torch.ones(2, 2))


def test_a_lora_factor_whose_partner_is_zero_does_not_move():
    """B = 0 makes the gradient of A zero, and its polar factor zero, not noise."""
    A, B = nn.Parameter(gaussian(0, 2, 6)), nn.Parameter(torch.zeros(5, 2, dtype=torch.float64))
    before = A.detach().clone()
    optimizer = SpectralDescent([A, B], lr=0.1)
    ((B @ A @ gaussian(1, 6, 9) - gaussian(2, 5, 9)) ** 2).sum().backward()
    optimizer.step()
    assert torch.equal(A, before)
    assert torch.linalg.svdvals(B.detach()) == pytest.approx([0.1, 0.1])


def test_rounding_noise_is_no_direction():
    p = nn.Parameter(torch.zeros(4, 3, dtype=torch.float64))
    optimizer = SpectralDescent([p], lr=0.1)
    p.grad = gaussian(0, 4, 3)
    optimizer.step()
    before = p.detach().clone()
    p.grad = 1e-13 * gaussian(1, 4, 3)
    optimizer.step()
    assert torch.equal(p, before)


def test_step_scales():
    assert step_scale("none", torch.Size([8, 2])) == 1
    assert step_scale("original", torch.Size([8, 2])) == 2
    assert step_scale("original", torch.Size([2, 8])) == 1
    assert step_scale("match_rms_adamw", torch.Size([2, 16])) == pytest.approx(0.8)


@pytest.mark.parametrize(("options", "says"), [
    ({"orth": "polar"}, "exact, newton_schulz, smoothed, cubic"), ({"scale": "big"}, "none, original, match_rms_adamw"),
    ({"beta": -0.1}, "beta"), ({"ns_steps": 0}, "ns_steps"), ({"lr": -1.0}, "lr"), ({"momentum": 1.0}, "momentum"),
    ({"weight_decay": -1.0}, "weight_decay"), ({"nesterov": True}, "momentum > 0"), ({"lr": math.nan}, "lr"),
])  # fmt: skip
def test_options_out_of_range(options, says):
    with pytest.raises(ValueError, match=says):
        SpectralDescent([nn.Parameter(torch.eye(2))], **options)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), ()])
def test_only_matrices(shape):
    bad = nn.Parameter(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"'bias'.*AdamW"):
        SpectralDescent([("weight", nn.Parameter(torch.eye(2))), ("bias", bad)])
    optimizer = SpectralDescent([nn.Parameter(torch.eye(2))])
    with pytest.raises(ValueError, match="parameter 0 of group 1"):
        optimizer.add_param_group({"params": [bad]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_gradient_changes_nothing(value):
    net = network()
    optimizer = SpectralDescent(net.named_parameters(), lr=0.1, momentum=0.9)
    before = run(net, optimizer, 2)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    net.b.weight.grad[1, 2] = value
    with pytest.raises(RuntimeError, match=r"'b.weight'.*NaN or infinity"):
        optimizer.step()
    assert all(torch.equal(x, y) for x, y in zip(net.parameters(), before, strict=True))


def test_sparse_gradients_and_integers_are_refused():
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = SpectralDescent(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    with pytest.raises(ValueError, match="complex"):
        SpectralDescent([nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))])


# --- the flow ---------------------------------------------------------------------------------------------------------


def test_one_by_one_by_hand():
    assert aligned_hitting_times([1.0], 0.1, 0.1) == pytest.approx([0.9])
    assert aligned_hitting_times([1.0], 0.0, 0.5) == pytest.approx([0.7807764], abs=1e-7)
    assert aligned_hitting_times(SIGMA, 0.2, 0.2) == pytest.approx(np.sqrt(SIGMA) - 0.2)
    for a0, b0, time in ((0.1, 0.1, 0.9), (0.0, 0.5, 0.7807764)):
        path = spectral_flow([[a0]], [[b0]], [[1.0]], beta=1e-6, t_max=time + 0.1, points=1201)
        assert path.hitting_times(0.995)[0] == pytest.approx(time, abs=4e-3)
        W = factor_descent(np.array([[a0]]), np.array([[b0]]), np.array([[1.0]]),
                           lambda p: SpectralDescent(p, lr=1e-3), round(1e3 * time))  # fmt: skip
        assert W[0][-1, 0] == pytest.approx(1.0, abs=4e-3)
    assert gradient_flow_half_times([5.0], 1e-6) == pytest.approx([1.5425], abs=1e-4)
    assert gradient_flow_spectrum(gradient_flow_half_times([5.0], 1e-6), [5.0], 1e-6) == pytest.approx(2.5)


def test_gradient_flow_in_closed_form_is_gradient_descent_with_small_steps():
    sigma, d0 = np.array([3.0, 1.0]), 1e-2
    d, *_ = factor_descent(np.eye(2) * d0**0.5, np.eye(2) * d0**0.5, np.diag(sigma),
                           lambda p: torch.optim.SGD(p, lr=1e-3), 3000)  # fmt: skip
    expected = gradient_flow_spectrum(np.arange(3001) * 1e-3, sigma, d0)
    assert np.abs(d - expected).max() < 0.01


def test_an_aligned_start_stays_aligned_and_follows_the_law():
    rng = np.random.default_rng(0)
    U, V, Q = rotation(rng, 12, 5), rotation(rng, 14, 5), rotation(rng, 5)
    Y = U @ np.diag(SIGMA) @ V.T
    for a0, b0 in ((0.05, 0.05), (0.0, 0.3)):
        path = spectral_flow(a0 * U @ Q.T, b0 * Q @ V.T, Y, beta=1e-5, t_max=2.3)
        law = aligned_spectrum(path.t, SIGMA, a0, b0)
        assert np.abs(path.singular_values - law).max() < 0.02
        inside = U.T @ path.A @ path.B @ V
        assert np.abs(inside - np.diag(np.diag(inside))).max() < 1e-10
        assert path.kind == "global"
        grown = growth_rate(path.t, path.singular_values, 20)[:90]  # before the first arrives
        assert rate_spread(grown).max() < 5e-3  # beta > 0 slows the smallest first
    law = aligned_hitting_times(SIGMA, 0.05, 0.05)
    assert (np.diff(law) < 0).all()  # the smallest first
    path = spectral_flow(0.05 * U, 0.05 * V.T, Y, beta=1e-5, t_max=2.3)
    assert path.hitting_times(0.98) == pytest.approx(np.sqrt(0.98 * SIGMA) - 0.05, abs=0.01)


def test_equal_singular_values_tie():
    rng = np.random.default_rng(1)
    U, V = rotation(rng, 8, 3), rotation(rng, 7, 3)
    path = spectral_flow(0.1 * U, 0.1 * V.T, 2 * U @ V.T, t_max=1.5)
    assert np.ptp(path.singular_values, axis=1).max() < 1e-5
    assert np.ptp(path.hitting_times(0.9)) < 1e-4


def test_rotations_of_the_problem_rotate_the_flow():
    rng = np.random.default_rng(2)
    A, B, Y = 0.1 * rng.normal(size=(6, 3)), 0.1 * rng.normal(size=(3, 5)), target(rng, 6, 5, SIGMA[:3])
    P, Q = rotation(rng, 6), rotation(rng, 5)
    one, other = spectral_flow(A, B, Y, t_max=1.5), spectral_flow(P @ A, B @ Q, P @ Y @ Q, t_max=1.5)
    assert np.abs(one.singular_values - other.singular_values).max() < 1e-4
    assert np.abs(P @ one.A - other.A).max() < 1e-4


def test_an_orthogonal_gauge_is_free_and_another_is_not():
    rng = np.random.default_rng(3)
    A, B, Y = 0.3 * rng.normal(size=(6, 3)), 0.3 * rng.normal(size=(3, 5)), target(rng, 6, 5, SIGMA[:3])
    R, S = rotation(rng, 3), np.diag([3.0, 1.0, 0.5])
    one, turned = spectral_flow(A, B, Y, t_max=1.0), spectral_flow(A @ R, R.T @ B, Y, t_max=1.0)
    assert np.abs(one.singular_values - turned.singular_values).max() < 1e-4
    stretched = spectral_flow(A @ S, np.linalg.inv(S) @ B, Y, t_max=1.0)
    assert np.abs(one.singular_values[0] - stretched.singular_values[0]).max() < 1e-10
    assert np.abs(one.singular_values - stretched.singular_values).max() > 0.1


@pytest.mark.parametrize("lam", [0.0, 0.3, 5.5])
@pytest.mark.parametrize("rank", [3, 5])
def test_the_flow_reaches_the_global_minimum(rank, lam):
    """Singular values (sigma - lam)_+; lam above the largest leaves nothing."""
    rng = np.random.default_rng(4)
    Y = target(rng, 12, 14)
    path = spectral_flow(0.1 * rng.normal(size=(12, rank)), 0.1 * rng.normal(size=(rank, 14)), Y, beta=1e-3, lam=lam)
    goal = np.maximum(SIGMA[:rank] - lam, 0)
    assert path.kind == "global"
    assert path.excess < 1e-6
    assert np.abs(path.singular_values[-1] - goal).max() < 1e-4
    assert len(path.targets) == (goal > 0).sum()
    A, B = truncated_svd(Y, rank, lam)
    assert objective(A, B, Y, lam) == pytest.approx(least_value(SIGMA, rank, lam), rel=1e-9)
    W = rng.normal(size=(12, rank)), rng.normal(size=(rank, 14))
    assert objective(*W, Y, lam) > least_value(SIGMA, rank, lam)


def test_a_wrong_mode_is_a_saddle_that_is_left_once_rotated():
    rng = np.random.default_rng(5)
    Y, A, B = np.zeros((12, 14)), np.zeros((12, 3)), np.zeros((3, 14))
    Y[np.arange(5), np.arange(5)] = SIGMA
    A[[1, 2, 4], [0, 1, 2]], B[[0, 1, 2], [1, 2, 4]] = 0.1, 0.1
    path = spectral_flow(A, B, Y, beta=1e-3, t_max=8)
    assert path.kind == "saddle"
    assert path.singular_values[-1] == pytest.approx([4, 3, 1], abs=1e-4)
    assert path.excess == pytest.approx(0.5 * (25 + 4) - 0.5 * (4 + 1), abs=1e-3)
    # mode 1 (sigma 5) can replace the mode of sigma 1: -5 + (1 + 1) / 2 = -4 at least
    assert path.curvature == pytest.approx(-4.0, abs=1e-3)
    P, Q = rotation(rng, 12), rotation(rng, 14)
    left = spectral_flow(P @ A, B @ Q, P @ Y @ Q, beta=1e-3, t_max=8)
    assert left.kind == "global"
    nothing = spectral_flow(np.zeros((12, 3)), np.zeros((3, 14)), Y, t_max=1)
    assert nothing.kind == "saddle"
    assert nothing.curvature == pytest.approx(-5)
    assert spectral_flow(0.1 * rng.normal(size=(12, 3)), B, Y, t_max=0.5).kind == "unconverged"


def test_escape_curvature_bounds_the_hessian():
    rng = np.random.default_rng(6)
    A, B, Y, lam = rng.normal(size=(3, 2)), rng.normal(size=(2, 4)), rng.normal(size=(3, 4)), 0.2
    a, b, y = (torch.tensor(v) for v in (A, B, Y))

    def value(z):
        p, q = z[:6].view(3, 2), z[6:].view(2, 4)
        return 0.5 * ((p @ q - y) ** 2).sum() + 0.5 * lam * (z**2).sum()

    z = torch.cat([a.flatten(), b.flatten()])
    assert float(value(z)) == pytest.approx(objective(A, B, Y, lam))
    H = torch.autograd.functional.hessian(value, z)
    bound = escape_curvature(A, B, Y, lam)
    assert float(torch.linalg.eigvalsh(H)[0]) <= bound + 1e-9
    u, _, vh = np.linalg.svd(Y - A @ B)
    w = np.linalg.eigh(A.T @ A + B @ B.T)[1][:, 0]
    d = torch.tensor(np.concatenate([np.outer(u[:, 0], w).ravel(), np.outer(w, vh[0]).ravel()]))
    assert float(d @ H @ d / (d @ d)) == pytest.approx(bound)


@pytest.mark.parametrize(("change", "says"), [
    ({"beta": 0.0}, "SpectralDescent"), ({"beta": -1.0}, "beta"), ({"lam": -1.0}, "lam"), ({"t_max": 0.0}, "t_max"),
    ({"points": 1}, "points"), ({"A0": np.ones((3, 2)), "B0": np.ones((2, 1)), "Y": np.ones((3, 1))}, "rank"),
    ({"A0": np.ones((2, 1))}, "shapes"), ({"Y": np.full((3, 3), np.nan)}, "Y"), ({"B0": np.ones(3)}, "B0"), ({"rtol": -1.0}, "rtol"),
])  # fmt: skip
def test_flow_refuses(change, says):
    with pytest.raises(ValueError, match=says):
        spectral_flow(**{"A0": np.ones((3, 1)), "B0": np.ones((1, 3)), "Y": np.ones((3, 3)), **change})


def test_closed_forms_refuse():
    with pytest.raises(ValueError, match="a0"):
        aligned_spectrum([0.0], SIGMA, 2.0, 2.0)
    with pytest.raises(ValueError, match="d0"):
        gradient_flow_spectrum([0.0], SIGMA, 0.0)
    with pytest.raises(ValueError, match="d0"):
        gradient_flow_half_times(SIGMA, 3.0)


# --- descent on factors -----------------------------------------------------------------------------------------------


def lora_start(seed: int, rank: int = 5, gamma: float = 1e-3, m: int = 20, n: int = 24):
    rng = np.random.default_rng(seed)
    return np.zeros((m, rank)), gamma * rng.normal(size=(rank, n)), target(rng, m, n)


def test_the_discrete_law_and_its_chatter():
    """Hits within two steps of sqrt(.95 sigma) / eta; at rest |d - sigma| <= 2 eta sqrt(sigma) + eta^2."""
    eta, (A, B, Y) = 0.01, lora_start(0)
    d, a, b = factor_descent(A, B, Y, lambda p: SpectralDescent(p, lr=eta), 400)
    hits = hitting_times(np.arange(401), d, SIGMA)
    assert np.abs(np.ceil(hits) - np.sqrt(0.95 * SIGMA) / eta).max() <= 2
    assert (np.abs(d[-1] - SIGMA) <= 2 * eta * np.sqrt(SIGMA) + eta**2).all()
    assert np.linalg.norm(a @ b - Y) <= 2 * eta * np.sqrt(SIGMA.sum()) + 5 * eta**2
    d, *_ = factor_descent(A, B, Y, lambda p: torch.optim.SGD(p, lr=0.05), 400)
    assert (np.diff(hitting_times(np.arange(401), d, SIGMA)) > 0).all()  # gradient descent: the largest first


def test_strong_regularisation_leaves_nothing():
    """To within the chatter, a few eta^2 (more as lam comes near the largest singular value)."""
    A, B, Y = lora_start(1, gamma=0.1)
    d, *_ = factor_descent(A, B, Y, lambda p: SpectralDescent(p, lr=0.01), 300, lam=7)
    assert d[-1].max() <= 3 * 0.01**2


def test_the_whole_matrix_grows_at_unit_rate_in_d():
    _, _, Y = lora_start(2)
    d, W = full_matrix_descent(Y, 5, 0.01, 600, np.zeros((20, 24)))
    assert np.diff(d[:90], axis=0) == pytest.approx(0.01, abs=1e-9)
    assert np.abs(d[-1] - SIGMA).max() <= 0.01 + 1e-9
    assert np.linalg.matrix_rank(W) == 5


# --- spectra ----------------------------------------------------------------------------------------------------------


def test_spectrum_of_a_product():
    A, B = gaussian(0, 3, 9, 4), gaussian(1, 3, 4, 7)
    assert torch.allclose(product_spectrum(A, B), torch.linalg.svdvals(A @ B)[:, :4], atol=1e-12)
    with pytest.raises(ValueError, match="shapes"):
        product_spectrum(A, A)


def test_measures_by_hand():
    d = np.array([[4.0, 1.0], [2.0, 2.0], [0.0, 0.0]])
    assert flatness(d)[:2] == pytest.approx([0.25, 1.0])
    assert stable_rank(d)[:2] == pytest.approx([17 / 16, 2.0])
    assert effective_rank(d)[:2] == pytest.approx([linalg.effective_rank([4.0, 1.0]), 2.0])
    assert np.isnan([flatness(d)[2], stable_rank(d)[2], effective_rank(d)[2]]).all()
    t = np.arange(5) * 0.5
    assert growth_rate(t, np.outer(t**2, [1.0, 4.0]), 2) == pytest.approx(np.tile([1.0, 2.0], (3, 1)))
    assert rate_spread([1.0, 2.0, 3.0]) == pytest.approx(1.0)
    assert hitting_times(t, np.outer(t**2, [1.0, 1.0, 1.0]), [1.0, 2.25, 100.0], 1.0) == pytest.approx(
        [1, 1.5, np.nan], nan_ok=True
    )
    assert hitting_times(t, np.ones((5, 1)), [1.0])[0] == 0
    for call, says in ((lambda: growth_rate(t, d), "t"), (lambda: growth_rate(t[:3], d, 3), "lag"), (lambda: flatness(-d), "d"),
                       (lambda: hitting_times(t[:3], d, [1.0, 1.0], 0.0), "fraction")):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            call()


# --- scikit-learn -----------------------------------------------------------------------------------------------------


@parametrize_with_checks([SpectralFactorization(rank=1, max_iter=100, random_state=0)])
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_the_factorisation_is_the_truncated_svd(lam):
    rng = np.random.default_rng(0)
    X = target(rng, 30, 12)
    ours = SpectralFactorization(rank=3, lam=lam, random_state=0).fit(X)
    best = SpectralFactorization(rank=3, lam=lam, solver="svd").fit(X)
    assert ours.singular_values_ == pytest.approx(SIGMA[:3] - lam, abs=5e-3)
    assert best.singular_values_ == pytest.approx(SIGMA[:3] - lam)
    assert abs(best.excess_) < 1e-12
    assert ours.excess_ < 1e-5
    for model in (ours, best):
        H = model.transform(X)
        assert model.fit_transform(X) == pytest.approx(H, abs=1e-8)
        assert np.linalg.norm(model.inverse_transform(H) - X) == pytest.approx(np.sqrt(5 + 3 * lam**2), rel=1e-3)
    assert list(ours.get_feature_names_out()) == [f"spectralfactorization{i}" for i in range(3)]
    assert SpectralFactorization(rank=2).fit(np.zeros((4, 3))).excess_ == 0


@pytest.mark.parametrize(("options", "says"), [
    ({"rank": 13}, "rank"), ({"rank": 0}, "rank"), ({"lam": -1}, "lam"), ({"solver": "als"}, "specgd, svd"), ({"max_iter": 0}, "max_iter"),
])  # fmt: skip
def test_factorisation_refuses(options, says):
    with pytest.raises(ValueError, match=says):
        SpectralFactorization(**{"rank": 2, **options}).fit(np.ones((30, 12)))


# --- adapters ---------------------------------------------------------------------------------------------------------


class Zoo(nn.Module):
    """One layer of each kind that peft adapts."""

    def __init__(self):
        super().__init__()
        self.table, self.conv, self.one, self.two = (
            nn.Embedding(11, 6),
            nn.Conv2d(3, 4, 3),
            nn.Linear(6, 9),
            nn.Linear(6, 9),
        )

    def forward(self, x):
        return self.one(self.table(x))


def zoo(rank: int = 2, **options) -> nn.Module:
    torch.manual_seed(0)
    net = peft.get_peft_model(
        Zoo(), peft.LoraConfig(r=rank, lora_alpha=5, target_modules=["table", "conv", "one", "two"], **options)
    )
    with torch.no_grad():
        for p in net.parameters():
            if p.requires_grad:
                p.normal_()
    return net


def test_adapter_spectra_are_those_of_the_dense_product():
    for options in ({}, {"use_rslora": True}, {"rank_pattern": {"two": 3}}):
        net = zoo(**options)
        found = LoraSpectrum(net).singular_values()
        assert len(found) == 4
        for name, d in found.items():
            delta = net.get_submodule(name).get_delta_weight("default")
            dense = torch.linalg.svdvals(delta.flatten(1).double())[: len(d)]
            assert (d.double() - dense).abs().max() < 1e-5 * dense[0], name
        assert len(found["base_model.model.two"]) == (3 if "rank_pattern" in options else 2)
    table = LoraSpectrum(net).table()
    assert table["flatness"].to_numpy() == pytest.approx((table["smallest"] / table["largest"]).to_numpy())
    assert LoraSpectrum(net).summary()["effective_rank"] == pytest.approx(table["effective_rank"].median())


def test_adapters_by_name_and_fresh_ones():
    net = zoo()
    net.add_adapter("other", peft.LoraConfig(r=3, target_modules=["one"]))
    assert len(LoraSpectrum(net).singular_values()) == 4
    other = LoraSpectrum(net, "other")
    assert [len(d) for d in other.singular_values().values()] == [3]
    assert np.isnan(other.summary()["flatness"])  # B is still zero
    with pytest.raises(ValueError, match="default, other"):
        LoraSpectrum(net, "third")
    with pytest.raises(ValueError, match="no lora_A/lora_B found"):
        LoraSpectrum(Zoo())


def llama() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                                      num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32)  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def test_the_trainer_with_the_optimiser_and_the_callback(tmp_path):
    net = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = SpectralDescent(trained, lr=1e-2, momentum=0.9, scale="match_rms_adamw")
    ids = torch.randint(0, 64, (12, 8), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    callback = SpectrumCallback(every=2)
    arguments = transformers.TrainingArguments(tmp_path, max_steps=6, per_device_train_batch_size=4, report_to=[], logging_steps=2,
                                               disable_tqdm=True, save_strategy="no", use_cpu=True)  # fmt: skip
    trainer = transformers.Trainer(
        net, arguments, train_dataset=rows, optimizers=(optimizer, None), callbacks=[callback]
    )
    trainer.train()
    assert [r["step"] for r in callback.history] == [2, 4, 6]
    assert all(0 < r["flatness"] <= 1 for r in callback.history)
    assert trainer.state.log_history[0]["lora_flatness"] == callback.history[0]["flatness"]
    with pytest.raises(ValueError, match="no lora_A"):
        callback.on_train_begin(None, None, None, model=llama())
    with pytest.raises(ValueError, match="every"):
        SpectrumCallback(every=0)
