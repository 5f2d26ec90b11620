"""GEM: the mixture and its energy, the losses and their closed forms, the hull."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from gnomon.architectures import free_energy, fused_gem_loss, gem_loss, hull_distance, settle
from gnomon.architectures.gem import baselines, mixture

KINDS = list(itertools.product(("mse", "cos", "energy"), ("mixture", "none")))
TWO = torch.tensor([[1.0], [-1.0]], dtype=torch.double)


def problem(seed: int, n: int = 9, V: int = 11, d: int = 5, dtype: torch.dtype = torch.double):
    g = torch.Generator().manual_seed(seed)
    h, E = (torch.randn(k, d, generator=g, dtype=torch.double).to(dtype).requires_grad_() for k in (n, V))
    beta = torch.tensor(0.3 + 2 * torch.rand((), generator=g).item(), dtype=torch.double).to(dtype).requires_grad_()
    targets = torch.randint(0, V, (n,), generator=g)
    return h, E, beta, targets


# --- the mixture and its energy ---------------------------------------------------------------------------------------


def test_two_opposite_embeddings_by_hand() -> None:
    h = torch.linspace(-3, 3, 13, dtype=torch.double)[:, None]
    assert torch.allclose(mixture(h, TWO), torch.tanh(h), atol=1e-12)
    assert torch.allclose(free_energy(h, TWO), h[:, 0] ** 2 / 2 - torch.log(2 * torch.cosh(h[:, 0])), atol=1e-12)
    one = torch.ones(1, dtype=torch.double)
    assert float(one - mixture(one, TWO)) == pytest.approx(0.238406, abs=1e-6)
    for start, end in ((0.1, 0.957504), (-2.0, -0.957504), (0.0, 0.0)):
        found = settle(torch.tensor([start], dtype=torch.double), TWO, beta=2.0)
        assert float(found.h) == pytest.approx(end, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_residual_is_the_gradient_of_the_energy(seed: int) -> None:
    h, E, beta, _ = problem(seed)
    (slope,) = torch.autograd.grad(free_energy(h, E, beta).sum(), h)
    assert torch.allclose(slope, h - mixture(h, E, beta), atol=1e-10)
    hessian = torch.autograd.functional.hessian(lambda x: free_energy(x, E, beta), h[0].detach())
    p = torch.softmax(beta * (E @ h[0]), 0)
    m = p @ E
    covariance = E.T @ torch.diag(p) @ E - torch.outer(m, m)
    assert torch.allclose(hessian, torch.eye(5, dtype=torch.double) - beta * covariance, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 5), st.floats(0.01, 10), st.integers(1, 6))
def test_one_step_lowers_the_energy(seed: int, beta: float, size: float, d: int) -> None:
    g = torch.Generator().manual_seed(seed)
    h, E = size * torch.randn(4, d, generator=g, dtype=torch.double), torch.randn(7, d, generator=g, dtype=torch.double)
    m = mixture(h, E, beta)
    margin = free_energy(h, E, beta) - (h - m).square().sum(-1) / 2 - free_energy(m, E, beta)
    assert margin.min() >= -1e-10 * (1 + size**2)


def test_settling_reaches_a_self_consistent_mixture() -> None:
    rng = np.random.default_rng(0)
    steps = []
    for seed in range(200):
        g = torch.Generator().manual_seed(seed)
        E, h = (torch.randn(k, 4, generator=g, dtype=torch.double) for k in (12, 1))
        found = settle(h, E, beta=float(rng.uniform(0.05, 5)), tol=1e-8)
        assert found.residual.max() < 1e-8
        steps.append(found.steps)
    assert np.median(steps) < 50


def test_the_hull_is_never_farther_than_the_residual_on_the_way() -> None:
    h, E, _, _ = problem(3, n=6, V=12, d=4)
    h, E = 3 * h.detach(), E.detach()
    for _ in range(12):
        residual = (h - mixture(h, E, 1.5)).norm(dim=1)
        found = hull_distance(h, E)
        assert (found.distance <= residual + 1e-4).all()  # inside the hull the distance is known to sqrt(2 gap)
        assert ((found.distance**2 - 2 * found.gap).clamp_min(0).sqrt() <= residual + 1e-9).all()
        h = settle(h, E, 1.5, steps=1, tol=0.0).h


# --- the hull ---------------------------------------------------------------------------------------------------------


def test_a_vertex_and_a_point_inside_have_distance_zero() -> None:
    _, E, _, _ = problem(0)
    E = E.detach()
    at = hull_distance(E[3], E)
    assert at.distance == 0
    assert at.entropy == 0
    assert hull_distance(E.mean(0), E).distance < 1e-4


def test_a_known_projection() -> None:
    """2 e_v beyond the standard simplex: the nearest point is e_v."""
    E = torch.eye(4, dtype=torch.double)
    found = hull_distance(2 * E, E)
    assert torch.allclose(found.point, E, atol=1e-8)
    assert torch.allclose(found.distance, torch.ones(4, dtype=torch.double))
    corner = hull_distance(torch.zeros(4, dtype=torch.double), E)  # the centre of the simplex
    assert float(corner.distance) == pytest.approx(0.5, abs=1e-6)
    assert float(corner.entropy) == pytest.approx(math.log(4), abs=1e-3)


@pytest.mark.parametrize(("V", "d"), [(6, 5), (12, 4), (40, 8)])
def test_projections_are_those_of_nonnegative_least_squares(V: int, d: int) -> None:
    g = torch.Generator().manual_seed(V)
    E, h = torch.randn(V, d, generator=g, dtype=torch.double), 2 * torch.randn(5, d, generator=g, dtype=torch.double)
    found = hull_distance(h, E)
    assert torch.allclose(found.weights.sum(1), torch.ones(5, dtype=torch.double))
    assert (found.weights >= 0).all()
    assert torch.allclose(found.weights @ E, found.point, atol=1e-9)
    for i in range(5):
        stacked = np.vstack([E.numpy().T, 1e4 * np.ones(V)])
        w, _ = nnls(stacked, np.append(h[i].numpy(), 1e4))
        exact = np.linalg.norm(E.numpy().T @ w - h[i].numpy())
        assert float(found.distance[i]) == pytest.approx(exact, abs=1e-5)
        assert float(found.distance[i] ** 2 - 2 * found.gap[i]) <= exact**2 + 1e-6


def test_float32_and_batches_of_any_shape() -> None:
    h, E, _, _ = problem(1)
    h, E = h.detach(), E.detach()
    found = hull_distance(h.float().view(3, 3, 5), E.float(), tol=1e-6, max_iter=300)
    assert found.distance.shape == (3, 3)
    assert torch.allclose(found.distance.flatten().double(), hull_distance(h, E).distance, atol=1e-3)


# --- gradients --------------------------------------------------------------------------------------------------------


def closed_form(h, E, beta, variant: str):
    """The sheet's gradients of the sum over tokens of ||r||²/2 (mse) and of F(h) - F(m) (energy), detach none."""
    p = torch.softmax(beta * (h @ E.T), -1)
    m = p @ E
    r = h - m
    spread = lambda v: (p * (v @ E.T)) @ E - m * (m * v).sum(-1, keepdim=True)  # noqa: E731
    if variant == "energy":
        return r - beta * spread(m - mixture(m, E, beta))
    by_e = torch.einsum("nv,nd->vd", -p, r) - beta * torch.einsum("nv,nvd,nd,ne->ve", p, E[None] - m[:, None], r, h)
    return r - beta * spread(r), by_e, -(r * spread(h)).sum()


@pytest.mark.parametrize("seed", range(3))
def test_the_gradients_are_the_closed_forms(seed: int) -> None:
    h, E, beta, targets = problem(seed)
    n, c = len(h), E.detach().square().sum(1).mean()
    for loss in (gem_loss, fused_gem_loss):
        term = loss(h, E, targets, 1.0, beta, "mse", detach="none").gem
        for found, exact in zip(torch.autograd.grad(term, (h, E, beta)), closed_form(h, E, beta, "mse"), strict=True):
            assert torch.allclose(found, 2 * exact / (c * n), atol=1e-10)
        term = loss(h, E, targets, 1.0, beta, "energy", detach="none").gem
        assert torch.allclose(torch.autograd.grad(term, h)[0], closed_form(h, E, beta, "energy") / (c * n), atol=1e-10)
        r = (h - mixture(h, E, beta)).detach()
        for variant, factor in (("mse", 2), ("energy", 1)):
            term = loss(h, E, targets, 1.0, beta, variant, detach="mixture").gem
            found = torch.autograd.grad(term, (h, E, beta), allow_unused=True)
            assert torch.allclose(found[0], factor * r / (c * n), atol=1e-12)
            assert all(g is None or g.abs().max() == 0 for g in found[1:])


@pytest.mark.parametrize(("variant", "detach"), KINDS)
@pytest.mark.parametrize("chunk", [1, 4, 7, 1000])
def test_fused_equals_naive(variant: str, detach: str, chunk: int) -> None:
    for dtype, near in ((torch.double, 1e-10), (torch.float32, 1e-6)):
        h, E, beta, targets = problem(7, n=14, dtype=dtype)
        targets[[2, 9]] = -100
        both = []
        for result in (gem_loss(h, E, targets, 0.3, beta, variant, detach),
                       fused_gem_loss(h, E, targets, 0.3, beta, variant, chunk, detach)):  # fmt: skip
            both.append([*result, result.total, *torch.autograd.grad(result.total + 0.2 * result.ce, (h, E, beta))])
        for a, b in zip(*both, strict=True):
            assert torch.allclose(a, b, atol=near, rtol=near)


@pytest.mark.parametrize(("variant", "detach"), KINDS)
def test_fused_in_bfloat16_is_computed_in_float32(variant: str, detach: str) -> None:
    h, E, _, targets = problem(2, n=12, dtype=torch.bfloat16)
    fused = fused_gem_loss(h, E, targets, 0.3, 1.5, variant, 5, detach)
    upcast = [x.detach().float().requires_grad_() for x in (h, E)]
    naive = gem_loss(*upcast, targets, 0.3, 1.5, variant, detach)
    assert all(torch.allclose(a, b, atol=1e-6, rtol=1e-5) for a, b in zip(fused, naive, strict=True))
    found, exact = torch.autograd.grad(fused.total, (h, E)), torch.autograd.grad(naive.total, upcast)
    for a, b in zip(found, exact, strict=True):
        assert a.dtype == torch.bfloat16
        assert torch.allclose(a.float(), b, atol=1e-5, rtol=1e-2)


def test_gradcheck_and_where_no_gradient_is_asked_for() -> None:
    h, E, beta, targets = problem(5, n=5, V=6, d=3)

    def unscaled(h, E, beta, variant: str):
        """mean||e||² is a constant to autograd: its share is taken out, for finite differences would see it."""
        ce, gem, _ = fused_gem_loss(h, E, targets, 0.5, beta, variant, 2, "none")
        return ce, gem if variant == "cos" else gem * E.detach().square().sum(1).mean()

    for variant in ("mse", "cos", "energy"):
        assert torch.autograd.gradcheck(lambda *x, v=variant: unscaled(*x, v), (h, E, beta))
    with torch.no_grad():
        silent = fused_gem_loss(h, E, targets, 0.3, beta)
    assert torch.allclose(silent.total, gem_loss(h, E, targets, 0.3, beta).total)
    (only,) = torch.autograd.grad(fused_gem_loss(h, E.detach(), targets, 0.3, 1.5).total, h)
    assert torch.allclose(only, torch.autograd.grad(gem_loss(h, E, targets, 0.3, 1.5).total, h)[0])


def test_without_targets_every_state_counts() -> None:
    h, E, beta, targets = problem(4)
    a, b = gem_loss(h, E, None, 0.3, beta), fused_gem_loss(h, E, None, 0.3, beta, chunk=4)
    assert a.ce == b.ce == 0
    assert torch.allclose(a.gem, gem_loss(h, E, targets, 0.3, beta).gem)
    assert torch.allclose(torch.autograd.grad(a.total, h)[0], torch.autograd.grad(b.total, h)[0])


def test_non_contiguous_input_and_any_leading_shape() -> None:
    h, E, beta, targets = problem(6, n=12)
    turned = h.detach().T.contiguous().T.view(12, 5)
    assert torch.allclose(
        fused_gem_loss(turned, E, targets, beta=beta).total, fused_gem_loss(h, E, targets, beta=beta).total
    )
    shaped = fused_gem_loss(h.view(3, 4, 5), E, targets.view(3, 4), beta=beta)
    assert torch.allclose(shaped.total, fused_gem_loss(h, E, targets, beta=beta).total)


def test_mixed_types_are_computed_in_the_wider_one() -> None:
    h, E, _, targets = problem(6)
    for loss in (gem_loss, fused_gem_loss):
        found = loss(h.float(), E.to(torch.bfloat16), targets, 0.3)
        exact = loss(h.float(), E.to(torch.bfloat16).float(), targets, 0.3)
        assert found.total.dtype == torch.float32
        assert torch.equal(found.total, exact.total)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fused_gem_loss(h, E, targets, 0.3).total, fused_gem_loss(h, E, targets, 0.3).total)
        assert fused_gem_loss(h, E, targets, 0.3).total.dtype == torch.double


# --- limits and identities --------------------------------------------------------------------------------------------


def test_sharp_and_flat_probabilities() -> None:
    h, E, _, _ = problem(0)
    h, E = h.detach(), E.detach()
    assert torch.allclose(mixture(h, E, 1e6), E[(h @ E.T).argmax(1)])
    assert torch.allclose(mixture(h, E, 1e-12), E.mean(0).expand(len(h), -1), atol=1e-9)


def test_the_cosine_variant_does_not_see_the_size_of_h() -> None:
    h, E, beta, targets = (x.detach() for x in problem(1))
    small = gem_loss(h, E, targets, 0.1, beta, "cos").gem
    assert torch.allclose(gem_loss(3 * h, E, targets, 0.1, beta / 3, "cos").gem, small)  # the same p


def test_weight_zero_is_the_cross_entropy_alone() -> None:
    h, E, _, targets = problem(2)
    for loss in (gem_loss, fused_gem_loss):
        found = loss(h, E, targets, 0.0)
        assert found.total is found.ce
        assert found.gem == 0
        assert torch.allclose(found.ce, F.cross_entropy(h @ E.T, targets))


def test_it_unpacks_as_three() -> None:
    h, E, _, targets = problem(2)
    result = fused_gem_loss(h, E, targets, 0.1, 1.0, "mse")
    ce, gem, ratio = result
    assert result.total == ce + 0.1 * gem
    m = mixture(h, E)
    assert ratio == pytest.approx(float(((h - m).square().sum() / h.square().sum()).detach()))


def test_given_logits_give_the_probabilities() -> None:
    h, E, _, targets = problem(2)
    bias = torch.randn(len(E), dtype=torch.double, generator=torch.Generator().manual_seed(0))
    found = gem_loss(h, E, targets, 0.1, logits=h @ E.T + bias)
    m = torch.softmax(h @ E.T + bias, -1) @ E
    assert torch.allclose(found.gem, (h - m).square().sum(1).mean() / E.square().sum(1).mean())


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [gem_loss, fused_gem_loss])
def test_bad_arguments(loss) -> None:
    h, E, _, targets = problem(0)
    for change, says in [
        ({"lam": -0.1}, "lam"),
        ({"lam": math.nan}, "lam"),
        ({"variant": "mae"}, "'mse', 'cos', 'energy'"),
        ({"detach": "all"}, "'mixture', 'none'"),
        ({"beta": 0.0}, "beta"),
        ({"beta": -torch.ones(())}, "beta"),
        ({"targets": targets[:3]}, "targets"),
        ({"targets": targets.double()}, "targets"),
        ({"h": h[:, :3]}, "h, E"),
    ]:
        with pytest.raises(ValueError, match=says):
            loss(**{"h": h, "E": E, "targets": targets, **change})
    with pytest.raises(ValueError, match="chunk"):
        fused_gem_loss(h, E, targets, chunk=0)


@pytest.mark.parametrize("loss", [gem_loss, fused_gem_loss])
def test_nothing_but_padding_costs_nothing(loss) -> None:
    h, E, _, targets = problem(0)
    with pytest.warns(UserWarning, match="ignored"):
        found = loss(h, E, torch.full_like(targets, -100), 0.1)
    assert found.total == 0
    assert all(g.abs().max() == 0 for g in torch.autograd.grad(found.total, (h, E)))
    with pytest.warns(UserWarning, match="ignored"):
        assert loss(h[:0], E, targets[:0], 0.1).total == 0


def test_bad_states_and_settings_of_the_hull_and_of_settling() -> None:
    h, E, _, _ = (x.detach() for x in problem(0))
    wrong = h.clone()
    wrong[0, 0] = math.nan
    for call, says in [
        (lambda: hull_distance(wrong, E), "h: expected finite"),
        (lambda: settle(wrong, E), "h: expected finite"),
        (lambda: hull_distance(h, E[:, :2]), "h, E"),
        (lambda: hull_distance(h, E, max_iter=0), "max_iter"),
        (lambda: settle(h, E, steps=-1), "steps"),
        (lambda: settle(h, E, beta=-1.0), "beta"),
        (lambda: free_energy(h, E, math.inf), "beta"),
    ]:
        with pytest.raises(ValueError, match=says):
            call()


# --- baselines --------------------------------------------------------------------------------------------------------


def test_baseline_losses() -> None:
    h, E, _, targets = problem(3)
    logits = h @ E.T
    ce = F.cross_entropy(logits, targets)
    logp = logits.log_softmax(-1)
    assert torch.allclose(baselines.cross_entropy(logits, targets, E), ce)
    smooth = 0.9 * ce - 0.1 * logp.mean()
    assert torch.allclose(baselines.label_smoothing(logits, targets, E), smooth)
    entropy = -(logp.exp() * logp).sum(-1).mean()
    assert torch.allclose(baselines.confidence_penalty(logits, targets, E), ce - 0.1 * entropy)
    z = logits.exp().sum(-1).log().square().mean()
    assert torch.allclose(baselines.z_loss(logits, targets, E), ce + 1e-4 * z)
    cosines = F.cosine_similarity(E[:, None], E[None], dim=-1)
    pairs = (cosines.sum() - len(E)) / (len(E) * (len(E) - 1))
    assert torch.allclose(baselines.cosine_regularisation(logits, targets, E), ce + pairs)
    targets[1] = -100
    chunked = baselines.chunked_ce(h, E, targets, chunk=4)
    exact = F.cross_entropy(logits, targets)
    assert torch.allclose(chunked, exact)
    for a, b in zip(torch.autograd.grad(chunked, (h, E)), torch.autograd.grad(exact, (h, E)), strict=True):
        assert torch.allclose(a, b)
