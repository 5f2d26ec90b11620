"""The closed forms of ghosted layers and their baselines, against slow references; selection; bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.surgery import fit_operator
from gnomon.surgery.ghosted_layers.baselines import CLASSES, replaceme_cosine
from gnomon.surgery.ghosted_layers.hadamard import rotation
from gnomon.surgery.ghosted_layers.moments import BoundaryMoments
from gnomon.surgery.ghosted_layers.selection import LayerSimilarity, parse_layers, runs
from gnomon.surgery.ghosted_layers.solve import antisymmetric_share, excess, noise_share, solve

C = 12
PATCHES = ("linearpatch-d", "linearpatch-r")
LINEAR = ("identity", "scalar", "shift", "diagonal", "symmetric", "orthogonal", "low-rank", *PATCHES)


def draw(seed: int = 0, n: int = 200, size: int = C) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlated X, and Y = X A + noise with a mean."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, size, dtype=torch.float64, generator=g) @ torch.randn(
        size, size, dtype=torch.float64, generator=g
    )
    a = torch.eye(size, dtype=torch.float64) + 0.4 * torch.randn(size, size, dtype=torch.float64, generator=g)
    return x, x @ a + torch.randn(n, size, dtype=torch.float64, generator=g) + 0.5


def statistics(x: torch.Tensor, y: torch.Tensor, chunk: int | None = None, **options) -> BoundaryMoments:
    stats = BoundaryMoments(x.shape[-1], **options)
    for at in range(0, len(x), chunk or len(x)):
        stats.update(x[None, at : at + (chunk or len(x))], y[None, at : at + (chunk or len(x))])
    return stats


def both(x: torch.Tensor, y: torch.Tensor) -> BoundaryMoments:
    """Statistics for every class of operators."""
    return statistics(x, y, scales=True, rotation=rotation(C))


def options_of(kind: str) -> dict[str, int]:
    return {"rank": 3} if kind == "low-rank" else {}


def loss(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor | float = 0.0) -> float:
    return float(((x @ w + b - y) ** 2).sum())


# --- the closed form ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "tolerance"), [(4 * C, 1e-6), (2 * C, 1e-6), (C, 1e-2)])
def test_an_exact_map_is_found(n: int, tolerance: float) -> None:
    g = torch.Generator().manual_seed(1)
    x, a = (torch.randn(r, C, dtype=torch.float64, generator=g) for r in (n, C))
    weight, bias = fit_operator(x, x @ a)
    assert (weight - a).abs().max() < tolerance
    assert not bias.any()


@pytest.mark.parametrize("ridge", [1e-6, 1.0])
def test_normal_equations(ridge: float) -> None:
    x, y = draw()
    weight, _ = fit_operator(x, y, ridge=ridge)
    change = weight - torch.eye(C)
    assert (x.T @ (x @ weight - y) + ridge * change).norm() <= 1e-9 * (x.T @ (y - x)).norm()


def test_nothing_changed_gives_the_identity() -> None:
    x, _ = draw()
    for kind in (*CLASSES, "affine"):
        weight, bias = fit_operator(x, x, kind=kind, **options_of(kind))
        assert (weight - torch.eye(C)).abs().max() < 1e-9, kind
        assert bias.abs().max() < 1e-9, kind


@pytest.mark.parametrize("options", [{"ridge": 1e-6}, {"ridge": 1.0}, {"solver": "pinv"}])
def test_a_change_of_basis_carries_over(options: dict) -> None:
    x, y = draw()
    q = torch.linalg.qr(torch.randn(C, C, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))[0]
    turned = fit_operator(x @ q, y @ q, **options).weight
    assert (turned - q.T @ fit_operator(x, y, **options).weight @ q).abs().max() < 1e-8
    patch = fit_operator(x @ q, y @ q, kind="linearpatch-d").weight
    assert (patch - q.T @ fit_operator(x, y, kind="linearpatch-d").weight @ q).abs().max() > 1e-2


def test_two_tokens_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    y = torch.tensor([[1.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    weight, _ = fit_operator(x, y)
    assert torch.allclose(weight, torch.ones(2, 2, dtype=torch.float64), atol=1e-5)
    assert antisymmetric_share(weight) < 1e-5
    patch = fit_operator(x, y, kind="linearpatch-d").weight
    assert torch.allclose(patch, torch.diag(torch.tensor([3.0, 1.5], dtype=torch.float64)))
    assert loss(x, y, patch) == pytest.approx(10)
    assert loss(x, y, weight) < 1e-9
    assert torch.allclose(fit_operator(x, y, kind="symmetric").weight, torch.ones(2, 2, dtype=torch.float64))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(3 * C, 90), st.integers(1, 95), st.sampled_from(["none", "sqrt", "norm"]))
def test_streaming_equals_one_shot(seed: int, n: int, chunk: int, row_weight: str) -> None:
    x, y = draw(seed, n)
    weight, _ = fit_operator(statistics(x, y, chunk, row_weight=row_weight), ridge=0.0)
    w = (
        torch.ones(n, dtype=torch.float64)
        if row_weight == "none"
        else y.norm(dim=1) ** {"sqrt": -0.5, "norm": -1.0}[row_weight]
    )
    direct = np.linalg.lstsq((w[:, None] * x).numpy(), (w[:, None] * y).numpy(), rcond=None)[0]
    assert np.abs(weight.numpy() - direct).max() < 1e-8 * max(1, np.abs(direct).max()) * np.linalg.cond(x.numpy())


@pytest.mark.parametrize("first", [True, False])
def test_the_residual_from_statistics_is_the_direct_one(first: bool) -> None:
    x, y = draw()
    stats = statistics(x, y, 50, row_weight="sqrt")
    keep = torch.ones(len(x), dtype=torch.bool) if first else torch.arange(len(x)) % 50 != 0
    for kind in ("ghost", "affine", "shift", "scalar"):
        weight, bias = fit_operator(stats, kind=kind)
        direct = loss(x[keep], y[keep], weight, bias) / float(((y - x)[keep] ** 2).sum())
        assert stats.residual(weight, bias, first=first) == pytest.approx(direct, rel=1e-9)
    rows = y.norm(dim=1)[:, None] ** -0.5
    weighted = loss(rows * x, rows * y, weight := fit_operator(stats).weight) / float(((rows * (y - x)) ** 2).sum())
    assert stats.residual(weight, torch.zeros(C), weighted=True) == pytest.approx(weighted, rel=1e-9)
    assert stats.unweighted().residual(weight, torch.zeros(C)) == stats.residual(weight, torch.zeros(C))


def test_single_precision_products_lose_little() -> None:
    x, y = draw(n=5000)
    exact = fit_operator(statistics(x, y)).weight
    rough = fit_operator(statistics(x, y, products="float32")).weight
    assert 0 < (rough - exact).norm() < 1e-2 * exact.norm()
    assert loss(x, y, rough) < (1 + 1e-6) * loss(x, y, exact)  # what it costs


def test_rank_deficient_statistics() -> None:
    x, y = draw(n=C // 2)
    ridged, least = (fit_operator(x, y, **o).weight for o in ({}, {"solver": "pinv"}))
    assert (ridged - least).abs().max() < 1e-5
    assert loss(x, y, least) < 1e-16 * float((y**2).sum())
    unseen = torch.linalg.svd(x)[2][C // 2 :]
    assert (unseen @ least - unseen).abs().max() < 1e-9  # W = I where X says nothing
    huge = 1e8 * x  # the ridge is below the rounding of X'X: still W = I there
    weight = fit_operator(huge, huge).weight
    assert (weight - torch.eye(C)).abs().max() < 1e-9


def test_relative_ridge_scales_with_the_data() -> None:
    x, y = draw()
    small, large = (fit_operator(s * x, s * y, ridge=1e-2, ridge_mode="relative").weight for s in (1.0, 100.0))
    assert torch.allclose(small, large)
    added = 1e-2 * float((x**2).sum()) / C
    assert torch.allclose(small, fit_operator(x, y, ridge=added).weight)


def test_skip_first_and_row_weights() -> None:
    x, y = draw()
    x[0] *= 1e3
    skipped = fit_operator(x, y, skip_first=True).weight
    assert torch.allclose(skipped, fit_operator(x[1:], y[1:]).weight, atol=1e-10)
    own = fit_operator(x, y, row_weight=lambda post: post.norm(dim=-1) ** -0.5).weight
    assert torch.allclose(own, fit_operator(x, y, row_weight="sqrt").weight)
    weighted = fit_operator(x, y, kind="affine", row_weight="norm", ridge=0.0)
    shifted = fit_operator(x, y, kind="affine", ridge=0.0)
    w = y.norm(dim=1)[:, None] ** -1.0
    design = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    direct = torch.linalg.lstsq(w * design, w * y).solution
    assert torch.allclose(weighted.weight, direct[:-1], atol=1e-6)
    assert torch.allclose(weighted.bias, direct[-1], atol=1e-5)
    assert not torch.allclose(weighted.weight, shifted.weight, atol=1e-3)


# --- the classes of operators --------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_excess_identity(seed: int) -> None:
    x, y = draw(seed)
    stats = both(x, y)
    moments = stats.fitted()
    best = torch.eye(C) + solve(moments, ridge=0.0)
    tried = [fit_operator(stats, kind=k).weight for k in ("diagonal", "symmetric", "orthogonal", *PATCHES)]
    for weight in (*tried, torch.randn(C, C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))):
        gap = loss(x, y, weight) - loss(x, y, best)
        assert excess(moments, weight, best) == pytest.approx(gap, rel=1e-9, abs=1e-9 * loss(x, y, best))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_order_of_the_classes(seed: int) -> None:
    x, y = draw(seed)
    stats = both(x, y)
    found = {k: stats.residual(*fit_operator(stats, kind=k, **options_of(k))) for k in ("ghost", "affine", *LINEAR)}
    slack = 1 + 1e-8
    assert all(found["ghost"] <= slack * found[k] for k in LINEAR if k != "shift")
    assert found["symmetric"] <= slack * found["diagonal"] <= slack**2 * found["scalar"] <= slack**3 * found["identity"]
    assert found["diagonal"] <= slack * found["linearpatch-d"]
    assert found["symmetric"] <= slack * found["linearpatch-r"]
    assert found["affine"] <= slack * min(found["shift"], found["ghost"])


def test_each_class_is_optimal_within_itself() -> None:
    """No small step inside the class lowers the loss; the members are of the class."""
    x, y = draw()
    g = torch.Generator().manual_seed(0)
    for kind in ("scalar", "diagonal", "symmetric", "orthogonal"):
        weight = fit_operator(x, y, kind=kind).weight
        for _ in range(50):
            step = 1e-3 * torch.randn(C, C, dtype=torch.float64, generator=g)
            moved = {
                "scalar": weight + step[0, 0] * torch.eye(C),
                "diagonal": weight + torch.diag(step[0]),
                "symmetric": weight + step + step.T,
                "orthogonal": weight @ torch.matrix_exp(step - step.T),
            }[kind]
            assert loss(x, y, weight) <= loss(x, y, moved)
    symmetric, orthogonal = (fit_operator(x, y, kind=k).weight for k in ("symmetric", "orthogonal"))
    gram, cross = x.T @ x, x.T @ y
    assert (gram @ symmetric + symmetric @ gram - cross - cross.T).norm() < 1e-10 * cross.norm()
    assert (symmetric - symmetric.T).abs().max() == 0
    assert (orthogonal.T @ orthogonal - torch.eye(C)).abs().max() < 1e-12


def test_symmetric_equals_ghost_when_the_map_is_symmetric() -> None:
    x, _ = draw()
    a = torch.randn(C, C, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    assert torch.allclose(
        fit_operator(x, x @ (a + a.T), kind="symmetric").weight, fit_operator(x, x @ (a + a.T)).weight, atol=1e-6
    )
    assert not torch.allclose(fit_operator(x, x @ a, kind="symmetric").weight, fit_operator(x, x @ a).weight, atol=1e-2)


def test_reduced_rank() -> None:
    x, y = draw()
    best = fit_operator(x, y, ridge=0.0).weight
    full, none, some = (fit_operator(x, y, kind="low-rank", rank=r, ridge=0.0).weight for r in (C, 0, 4))
    assert torch.allclose(full, best)
    assert torch.equal(none, torch.eye(C, dtype=torch.float64))
    assert torch.linalg.matrix_rank(some - torch.eye(C)) == 4
    dropped = torch.linalg.svdvals(x @ (best - torch.eye(C)))[4:]
    assert loss(x, y, some) - loss(x, y, best) == pytest.approx(float((dropped**2).sum()), rel=1e-8)


def test_linearpatch_ratios() -> None:
    x, y = draw(n=60)
    stats = statistics(x, y, 20, scales=True)
    mean = (y.abs().mean(0) / x.abs().mean(0)).diag()
    assert torch.allclose(fit_operator(stats, kind="linearpatch-d", ratio="overall").weight, mean)
    each = torch.stack([y[i : i + 20].abs().mean(0) / x[i : i + 20].abs().mean(0) for i in (0, 20, 40)]).mean(0).diag()
    assert torch.allclose(fit_operator(stats, kind="linearpatch-d", ratio="sequence").weight, each)
    q = rotation(C)
    turned = q @ ((y @ q).abs().mean(0) / (x @ q).abs().mean(0)).diag() @ q.T
    assert torch.allclose(fit_operator(x, y, kind="linearpatch-r").weight, turned, atol=1e-6)


def test_mean_shift() -> None:
    x, y = draw()
    weight, bias = fit_operator(x, y, kind="shift")
    assert torch.equal(weight, torch.eye(C, dtype=torch.float64))
    assert torch.allclose(bias, (y - x).mean(0))


@pytest.mark.parametrize("size", [1, 2, 4, 12, 20, 24, 28, 36, 576, 640, 896, 768])
def test_hadamard(size: int) -> None:
    q = rotation(size)
    assert torch.allclose(q @ q.T, torch.eye(size, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(q.abs(), torch.full_like(q, size**-0.5))


def test_no_hadamard_matrix() -> None:
    with pytest.warns(UserWarning, match="order 6"):
        q = rotation(6)
    assert torch.allclose(q @ q.T, torch.eye(6, dtype=torch.float64), atol=1e-12)


def test_cosine_variant_lowers_its_loss() -> None:
    x, y = draw(n=400)
    mlp = 0.5 * x + 0.1
    before = 1 - torch.nn.functional.cosine_similarity(x, y, dim=1).mean()
    matrix = replaceme_cosine(mlp, x, y, epochs=50, lr=1e-2, batch=100, generator=torch.Generator().manual_seed(0))
    after = 1 - torch.nn.functional.cosine_similarity(x + mlp @ (matrix - torch.eye(C)), y, dim=1).mean()
    assert after < 0.5 * before


def test_noise_has_its_share() -> None:
    shares = [
        antisymmetric_share(torch.eye(C) + torch.randn(C, C, generator=torch.Generator().manual_seed(s)))
        for s in range(200)
    ]
    assert (
        abs(np.mean(shares) - noise_share(C)) < 4 * np.std(shares) / 200**0.5 + 0.005
    )  # the mean of a ratio is biased


# --- which layers -----------------------------------------------------------------------------------------------------


def similarity(**given) -> LayerSimilarity:
    base = {"cosine": np.zeros((7, 7)), "angular": np.ones((7, 7)), "median_norm": np.ones(7), "tokens": 10,
            "first_norm": np.array([1.0, 1, 1, 50, 50, 50, 2])}  # fmt: skip
    return LayerSimilarity(**{**base, **given})


def test_criteria() -> None:
    cosine = np.zeros((7, 7))
    cosine[0, 2], cosine[2, 4], cosine[4, 6] = 0.99, 0.9, 0.95  # the first and the last are out of bounds
    assert similarity(cosine=cosine).choose(2) == [2, 3]
    assert similarity(cosine=cosine).choose(2, allow_last=True) == [4, 5]
    assert similarity().choose(2) == [1, 2]  # ties go to the lowest
    influence = np.zeros((7, 7))
    for layer, value in enumerate([0.5, 0.9, 0.1, 0.9, 0.8, 0.99]):
        influence[layer, layer + 1] = value
    assert similarity(cosine=influence).choose(2, "shortgpt") == [1, 3]
    assert similarity(cosine=influence).choose(3, "shortgpt") == [1, 3, 4]
    assert similarity(cosine=influence).choose(1, "shortgpt", allow_last=True) == [5]
    angular = np.ones((7, 7))
    angular[3, 5] = 0.2
    assert similarity(angular=angular).choose(2, "angular") == [3, 4]
    assert similarity().choose(0) == []


def test_sink() -> None:
    table = similarity()
    assert table.sink_block == 2
    assert table.crosses_sink([2, 3])
    assert not table.crosses_sink([3, 4])
    assert table.sink_table()["growth"][2] == 50


def test_lists_of_layers() -> None:
    assert parse_layers("2:5", 8) == [2, 3, 4]
    assert parse_layers([5, 2], 8) == [2, 5]
    assert runs([1, 2, 4, 6, 7]) == [(1, 3), (4, 5), (6, 8)]
    for wrong, match in [
        ("5:2", "empty"),
        ("2", "A:B"),
        ("a:b", "A:B"),
        ("2:40", "39"),
        ([1, 1], "1 given more than once"),
        ([0, 9], "9 out of range"),
        ([-1], "-1 out of range"),
        (list(range(7)), "L = 8"),
        (None, "None"),
    ]:
        with pytest.raises(ValueError, match=match):
            parse_layers(wrong, 8)


@pytest.mark.parametrize("n", [-1, 5, 6])
def test_too_many_layers(n: int) -> None:
    with pytest.raises(ValueError, match="L = 6"):
        similarity().choose(n)


# --- bad input --------------------------------------------------------------------------------------------------------


def test_bad_operators() -> None:
    x, y = draw()
    for arguments, options, match in [
        ((x, y), {"kind": "magic"}, "kind"),
        ((x,), {}, "Y: needed"),
        ((x, y[:5]), {}, "shapes"),
        ((x, y), {"ridge": -1.0}, "ridge"),
        ((x, y), {"ridge_mode": "odd"}, "ridge_mode"),
        ((x, y), {"solver": "odd"}, "solver"),
        ((x, y), {"row_weight": "odd"}, "row_weight"),
        ((x, y), {"kind": "low-rank", "rank": C + 1}, "rank"),
        ((x, y), {"kind": "linearpatch-d", "ratio": "odd"}, "ratio"),
        ((BoundaryMoments(C),), {}, "no tokens"),
        ((statistics(x, y),), {"kind": "linearpatch-r"}, "rotation"),
        ((statistics(x, y),), {"kind": "linearpatch-d"}, "scales"),
        ((statistics(x, y), y), {}, "beside statistics"),
    ]:
        with pytest.raises(ValueError, match=match):
            fit_operator(*arguments, **options)
    with pytest.raises(FloatingPointError):
        fit_operator(x, y * float("nan"))
