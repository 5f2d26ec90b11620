"""Aggregators and attacks: hand cases, equivariance, certified robustness, byzfl's outputs, bad input."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.optimization import (
    ALIE,
    NNM,
    AdaptiveClipping,
    Bucketing,
    CenteredClipping,
    Chain,
    CoordinateMedian,
    Gaussian,
    GeometricMedian,
    InnerProduct,
    Krum,
    MeaMed,
    Mean,
    Mimic,
    MinimumDiameter,
    MultiKrum,
    SignFlip,
    StaticClipping,
    TrimmedMean,
    Zero,
    certified_kappa,
    empirical_kappa,
    optimised,
)
from gnomon.optimization.byzantine.aggregators import squared_distances
from gnomon.optimization.byzantine.attacks import LabelFlip

HERE = Path(__file__).parent
GOLDEN = HERE / "byzantine_byzfl.npz"  # outputs of byzfl 0.0.11's numpy path on the rows of `golden_rows`


def all_rules(f: int):
    return [Mean(), TrimmedMean(f), CoordinateMedian(), GeometricMedian(), Krum(f), MultiKrum(f), MeaMed(f), MinimumDiameter(f),
            Chain(NNM(f), TrimmedMean(f)), Chain(NNM(f), Krum(f))]  # fmt: skip


def rows_of(seed: int, n: int = 9, d: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)[:, None]


# --- hand cases ------------------------------------------------------------------------------------------------------


def test_five_scalars():
    x = column(0, 1, 2, 3, 100)
    assert TrimmedMean(1)(x) == 2
    assert CoordinateMedian()(x) == 2
    mixed = NNM(1)(x)[:, 0]
    assert mixed[4] == pytest.approx(26.5)
    assert mixed[0] == pytest.approx(1.5)
    assert Chain(NNM(1), TrimmedMean(1))(x)[0] == pytest.approx(1.5)
    assert Krum(1)(x)[0] in (1.0, 2.0)


def test_krum_counts_the_row_itself_among_the_nearest():
    # n - f = 3 nearest with itself: two others. Sums: 0 -> 1 + 4, 1 -> 1 + 1, 2 -> 1 + 4 (0 or 5 is farther), 5 -> 9 + 16
    x = column(0, 1, 2, 5)
    assert Krum(1)(x)[0] == 1.0
    assert MultiKrum(1)(x)[0] == pytest.approx(1.0)


def test_median_of_an_even_number_and_meamed():
    x = column(0, 1, 3, 10)
    assert CoordinateMedian()(x)[0] == 2
    # median 2: distances 2, 1, 1, 8: the three nearest are 0, 1, 3
    assert MeaMed(1)(x)[0] == pytest.approx(4 / 3)
    # median 1, ties at distance 1: the smaller index stays
    assert MeaMed(1)(column(0, 1, 2))[0] == pytest.approx(0.5)


def test_geometric_median_of_a_triangle_is_the_fermat_point():
    x = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
    assert np.allclose(GeometricMedian()(x), [0.5, np.sqrt(3) / 6], atol=1e-7)


def test_minimum_diameter_leaves_the_outlier_out():
    x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [50.0, 50.0]])
    assert np.allclose(MinimumDiameter(1)(x), [1 / 3, 1 / 3])


def test_centred_clipping_moves_by_clipped_differences():
    x = np.array([[3.0, 4.0], [300.0, 400.0]])
    assert np.allclose(CenteredClipping(10.0)(x), [(3 + 6) / 2, (4 + 8) / 2])
    assert np.allclose(CenteredClipping(1e9)(x), x.mean(axis=0))
    assert np.allclose(CenteredClipping(1.0)(np.zeros((3, 2))), 0)


def test_clipping():
    x = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [6.0, 8.0]])
    assert np.allclose(np.linalg.norm(StaticClipping(2.0)(x), axis=1), [2, 0.5, 0, 2])
    # floor(2 f (n - f) / n) = 1 row is shortened, to the longest of the others
    assert np.allclose(np.linalg.norm(AdaptiveClipping(1)(x), axis=1), [5, 0.5, 0, 5])


def test_bucketing_keeps_the_sum():
    x = rows_of(0, 7)
    buckets = Bucketing(2, random_state=0)(x)
    assert buckets.shape == (4, 6)
    assert np.allclose((buckets * np.array([2, 2, 2, 1])[:, None]).sum(axis=0), x.sum(axis=0))
    assert np.allclose(Bucketing(7)(x)[0], x.mean(axis=0))
    assert np.array_equal(Bucketing(2, random_state=0)(x), buckets)


def test_mimic_cannot_be_told_from_an_honest_client():
    honest = rows_of(1, 6)
    assert np.array_equal(Mimic(2)(honest), honest[2])


# --- properties ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", all_rules(2), ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_equivariance(rule, seed):
    x = rows_of(seed)
    merged = rule(x)
    rng = np.random.default_rng(seed)
    assert np.allclose(rule(x[rng.permutation(len(x))]), merged, atol=1e-7)
    shift = rng.normal(size=x.shape[1])
    assert np.allclose(rule(x + shift), merged + shift, atol=1e-7)
    for s in (2.5, -0.3, -40.0):
        assert np.allclose(rule(s * x), s * merged, atol=1e-7 * abs(s))


@pytest.mark.parametrize("rule", [*all_rules(2), CenteredClipping()], ids=repr)
def test_identical_rows(rule):
    row = rows_of(0, 1)[0]
    assert np.allclose(rule(np.tile(row, (7, 1))), row, atol=1e-14)


@pytest.mark.parametrize("rule", [TrimmedMean(0), MinimumDiameter(0), Chain(NNM(0), TrimmedMean(0)), MultiKrum(0), MeaMed(0)],
                         ids=repr)  # fmt: skip
def test_without_liars_the_mean(rule):
    x = rows_of(3)
    assert np.allclose(rule(x), x.mean(axis=0), atol=1e-13)


def test_nnm_without_liars_is_the_mean_in_every_row():
    x = rows_of(4)
    assert np.allclose(NNM(0)(x), x.mean(axis=0), atol=1e-13)


@pytest.mark.parametrize("rule", [*all_rules(2), CenteredClipping(1.0), Chain(AdaptiveClipping(2), TrimmedMean(2)),
                                  Chain(StaticClipping(1.0), Krum(2)), Chain(Bucketing(2, 0), CoordinateMedian())], ids=repr)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_torch_equals_numpy(rule, dtype):
    x = rows_of(5, 9, 40)
    found = rule(torch.from_numpy(x).to(dtype))
    assert found.dtype == dtype
    bound = 1e-10 if dtype == torch.float64 else 2e-5
    assert np.allclose(found.numpy(), rule(x), atol=bound)
    assert np.allclose(rule(list(torch.from_numpy(x).to(dtype))).numpy(), found.numpy())


vectors = st.integers(1, 3).flatmap(lambda f: st.tuples(
    st.just(f), st.integers(2 * f + 1, 8), st.integers(1, 4), st.integers(0, 2**31), st.sampled_from(
        ["normal", "cluster", "huge liar", "one point", "heavy tail", "alie"])))  # fmt: skip


def drawn(f: int, n: int, d: int, seed: int, kind: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_cauchy((n, d)) if kind == "heavy tail" else rng.normal(size=(n, d))
    if kind == "cluster":
        x[-f:] = x[0] + 5 + 1e-3 * rng.normal(size=(f, d))
    if kind == "huge liar":
        x[-f:] *= 1e6
    if kind == "one point":
        x[:-f] = x[0]
    if kind == "alie":
        x[-f:] = x[:-f].mean(axis=0) + 1.5 * x[:-f].std(axis=0)
    return x


@settings(max_examples=150, deadline=None)
@given(vectors)
def test_robustness_inequality(case):
    f, n, d, seed, kind = case
    x = drawn(f, n, d, seed, kind)
    rules = [TrimmedMean(f), Krum(f), GeometricMedian(), CoordinateMedian(), Chain(NNM(f), TrimmedMean(f)),
             Chain(NNM(f), Krum(f)), Chain(NNM(f), CoordinateMedian())]  # fmt: skip
    for rule in rules:
        merged, kappa = rule(x), certified_kappa(rule, n, f)
        assert kappa >= f / (n - 2 * f)
        for subset in itertools.combinations(range(n), n - f):
            part = x[list(subset)]
            mean = part.mean(axis=0)
            spread = ((part - mean) ** 2).sum(axis=1).mean()
            # rounding: a part in 1e6 of the largest vector, squared
            assert ((merged - mean) ** 2).sum() <= kappa * spread * (1 + 1e-6) + 1e-12 * (
                1e-12 * (x**2).max() + (part**2).max()
            )


@settings(max_examples=60, deadline=None)
@given(vectors)
def test_empirical_kappa_is_a_lower_bound(case):
    f, n, d, seed, kind = case
    x = drawn(f, n, d, seed, kind if kind != "one point" else "normal")
    rule = Chain(NNM(f), TrimmedMean(f))
    assert empirical_kappa(rule, x, f) <= certified_kappa(rule, n, f) * (1 + 1e-6)
    assert empirical_kappa(rule, x, f, most=3) <= empirical_kappa(rule, x, f) + 1e-12


def test_certified_kappas():
    n, f = 25, 5
    r = f / (n - 2 * f)
    assert certified_kappa(TrimmedMean(f), n, f) == pytest.approx(6 * r * (1 + r))
    assert certified_kappa(Krum(f), n, f) == pytest.approx(6 * (1 + r))
    assert certified_kappa(GeometricMedian(), n, f) == pytest.approx(4 * (1 + r) ** 2)
    assert certified_kappa(Chain(NNM(f), CoordinateMedian()), n, f) == pytest.approx(
        8 * f / (n - f) * (1 + 4 * (1 + r) ** 2)
    )
    assert certified_kappa(Mean(), n, 0) == 0
    assert certified_kappa(Mean(), n, 1) == np.inf
    with pytest.raises(ValueError, match="nothing is certified"):
        certified_kappa(MeaMed(f), n, f)
    with pytest.raises(ValueError, match="NNM is"):
        certified_kappa(Chain(StaticClipping(), TrimmedMean(f)), n, f)
    with pytest.raises(ValueError, match="built for f=1"):
        certified_kappa(TrimmedMean(1), n, f)
    with pytest.raises(ValueError, match="needs n > 2f"):
        certified_kappa(TrimmedMean(f), 10, f)


# --- distances -------------------------------------------------------------------------------------------------------


def direct(x: np.ndarray) -> np.ndarray:
    return ((x[:, None] - x[None]) ** 2).sum(axis=2)


@pytest.mark.parametrize("case", ["plain", "large mean", "huge liar", "huger liar", "copies"])
def test_distances_keep_their_digits(case, monkeypatch):
    x = rows_of(0, 8, 300)
    if case == "large mean":
        x += 1e8
    elif case == "huge liar":
        x[-2:] = 1e12 * rows_of(1, 1, 300)
    elif case == "huger liar":
        x[-1] = 1e200
    elif case == "copies":
        x[-3:] = x[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 1e200 squared overflows, as it should
        truth = direct(x)
        found = squared_distances(x)
        assert np.allclose(found, truth, rtol=1e-8)
        monkeypatch.setattr("gnomon.optimization.byzantine.aggregators.CHUNK", 100)
        assert np.allclose(squared_distances(x), truth, rtol=1e-8)
        assert np.allclose(TrimmedMean(2)(x[:-1]), np.sort(x[:-1], axis=0)[2:-2].mean(axis=0))


def test_a_huge_liar_does_not_blur_the_honest_rows():
    honest = rows_of(2, 8, 50)
    plain = Chain(NNM(1), TrimmedMean(1))(np.vstack([honest, np.full(50, 1e4)]))
    huge = Chain(NNM(1), TrimmedMean(1))(np.vstack([honest, np.full(50, 1e14)]))
    assert np.allclose(plain, huge, atol=1e-9)


# --- byzfl -----------------------------------------------------------------------------------------------------------


def golden_rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(20260203)
    plain = rng.normal(size=(11, 30))
    return {"plain": plain, "outliers": np.vstack([plain[:8], 20 + rng.normal(size=(3, 30))]),
            "mean": 5 + 0.1 * rng.normal(size=(12, 7)), "wide": rng.normal(size=(25, 200)) * rng.uniform(0.1, 3, 200)}  # fmt: skip


def ours(x: np.ndarray, f: int) -> dict[str, np.ndarray]:
    chain = Chain(NNM(f), TrimmedMean(f))
    return {
        "mean": Mean()(x), "median": CoordinateMedian()(x), "trmean": TrimmedMean(f)(x), "krum": Krum(f)(x),
        "multikrum": MultiKrum(f)(x), "meamed": MeaMed(f)(x), "cc": CenteredClipping(2.0)(x), "nnm": NNM(f)(x),
        "arc": AdaptiveClipping(f)(x), "clip": StaticClipping(2.0)(x), "gm": GeometricMedian()(x),
        **({"mda": MinimumDiameter(f)(x)} if len(x) < 15 else {}),
        "signflip": SignFlip()(x), "ipm": InnerProduct(2.0)(x), "alie": ALIE(1.5)(x), "mimic": Mimic(1)(x),
        "opt_alie": optimised(ALIE())(x, f=f, aggregator=chain), "opt_ipm": optimised(InnerProduct())(x, f=f, aggregator=chain),
    }  # fmt: skip


def byzfl():
    """byzfl's aggregators and attacks, without its __init__, which wants torchvision; None where it is not installed."""
    if "byzfl" not in sys.modules:
        if (spec := importlib.util.find_spec("byzfl")) is None:
            return None
        package = types.ModuleType("byzfl")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["byzfl"] = package
    import byzfl.aggregators
    import byzfl.attacks

    return types.SimpleNamespace(**{**vars(byzfl.aggregators), **vars(byzfl.attacks)})


def theirs(b, x: np.ndarray, f: int) -> dict[str, np.ndarray]:
    """What byzfl gives; it wrote byzantine_byzfl.npz."""
    pre = [b.NNM(f)]
    return {
        "mean": b.Average()(x), "median": b.Median()(x), "trmean": b.TrMean(f)(x), "krum": b.Krum(f)(x),
        "multikrum": b.MultiKrum(f)(x), "meamed": b.Meamed(f)(x), "cc": b.CenteredClipping(tau=2.0)(x), "nnm": b.NNM(f)(x),
        "arc": b.ARC(f)(x.copy()), "clip": b.Clipping(2.0)(x.copy()), "gm": b.GeometricMedian(nu=1e-8, T=2000)(x),
        **({"mda": b.MDA(f)(x)} if len(x) < 15 else {}),
        "signflip": b.SignFlipping()(x), "ipm": b.InnerProductManipulation(2.0)(x), "alie": b.ALittleIsEnough(1.5)(x),
        "mimic": b.Mimic(1)(x),
        "opt_alie": b.Optimal_ALittleIsEnough(b.TrMean(f), pre, f)(x),
        "opt_ipm": b.Optimal_InnerProductManipulation(b.TrMean(f), pre, f)(x),
    }  # fmt: skip


def same(mine: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert set(mine) == set(other)
    for name, value in mine.items():
        bound = 1e-4 if name == "gm" else 1e-10
        assert np.allclose(value, other[name], atol=bound, rtol=0), name


@pytest.mark.parametrize("name", golden_rows())
@pytest.mark.parametrize("f", [1, 3])
def test_equal_to_what_byzfl_gave(name, f):
    kept = np.load(GOLDEN)
    prefix = f"{name}/{f}/"
    same(ours(golden_rows()[name], f), {k.removeprefix(prefix): kept[k] for k in kept.files if k.startswith(prefix)})


@pytest.mark.parametrize("seed", range(3))
def test_equal_to_byzfl_on_random_rows(seed):
    if (b := byzfl()) is None:
        pytest.skip("byzfl is not installed (pip install --no-deps byzfl==0.0.11); its kept outputs are compared above")
    x = np.random.default_rng(seed + 100).normal(size=(13, 60))
    for f in (1, 2, 5):
        same(ours(x, f), theirs(b, x, f))


# --- attacks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", [ALIE(), InnerProduct()], ids=repr)
@pytest.mark.parametrize("grid", [None, (0.0, 0.5, 1.0, 2.0, 8.0)])
def test_optimised_attack_is_the_best_that_it_tried(attack, grid):
    honest, rule = rows_of(7, 10, 30), Chain(NNM(3), TrimmedMean(3))
    tau, tried = optimised(attack, grid).best(honest, f=3, aggregator=rule)
    base, direction = attack.line(honest)

    def deviation(t):
        return np.linalg.norm(rule(np.vstack([honest, np.tile(base + t * direction, (3, 1))])) - honest.mean(axis=0))

    assert all(deviation(tau) >= deviation(t) - 1e-12 for t in tried)
    assert all(np.isclose(deviation(t), d) for t, d in tried.items())
    assert len(tried) <= 20
    assert grid is None or tau in grid


def test_attacks_in_torch():
    honest = rows_of(8, 10, 20)
    rule = Chain(NNM(2), TrimmedMean(2))
    for attack in (ALIE(), InnerProduct(), SignFlip(), Zero(), Mimic(), optimised(ALIE()), optimised(InnerProduct())):
        lie = attack(torch.from_numpy(honest), f=2, aggregator=rule)
        assert np.allclose(lie.numpy(), attack(honest, f=2, aggregator=rule), atol=1e-10)
    noise = Gaussian(1.0, 2.0, random_state=0)
    first = noise(torch.from_numpy(np.tile(honest, (1, 500))))
    assert abs(float(first.mean()) - 1) < 4 * 2 / 100  # four standard errors of 10,000 draws
    assert not torch.equal(first, noise(torch.from_numpy(np.tile(honest, (1, 500)))))


def test_what_attacks_refuse():
    with pytest.raises(TypeError, match="with a tau"):
        optimised(Zero())
    with pytest.raises(ValueError, match="no tau"):
        optimised(ALIE(), [])
    with pytest.raises(ValueError, match="client: got 9"):
        Mimic(9)(rows_of(0, 4))
    with pytest.raises(ValueError, match="at least 2 honest"):
        ALIE()(rows_of(0, 1))
    with pytest.raises(ValueError, match="broadcast"):
        LabelFlip(lambda x: x)(rows_of(0, 3))


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule", [TrimmedMean(2), Krum(2), NNM(2), Chain(NNM(2), TrimmedMean(2)), MinimumDiameter(2)], ids=repr
)
def test_too_many_liars(rule):
    with pytest.raises(ValueError, match="needs n > 2f, got n=4, f=2"):
        rule(rows_of(0, 4))


def test_rows_that_are_not_finite_count_as_liars():
    x = rows_of(0, 7)
    x[3, 2], x[5, 0] = np.nan, np.inf
    with pytest.warns(RuntimeWarning, match=r"clients \[3, 5\]"):
        merged = TrimmedMean(2)(x)
    assert np.allclose(merged, x[[0, 1, 2, 4, 6]].mean(axis=0))  # both liars are found: none is left to trim
    with pytest.raises(ValueError, match=r"clients \[3, 5\] sent NaN or infinity; at most 1"):
        TrimmedMean(1)(x)
    with pytest.raises(ValueError, match="at most 0"):
        Mean()(x)
    with pytest.warns(RuntimeWarning):
        assert np.isfinite(Chain(NNM(2), TrimmedMean(2))(torch.from_numpy(x)).numpy()).all()
    with pytest.warns(RuntimeWarning):
        assert np.isfinite(GeometricMedian()(x)).all()


def test_overflowing_sum_is_no_infinity():
    x = np.full((3, 2), 1.5e308)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(Krum(1)(x), x[0])
    assert np.array_equal(CoordinateMedian()(x)[:1], [1.5e308])


def test_shapes_and_types():
    with pytest.raises(ValueError, match=r"got shapes \[\(2,\), \(3,\)\]"):
        Mean()([np.zeros(2), np.zeros(3)])
    with pytest.raises(ValueError, match="one for each client"):
        Mean()([])
    with pytest.raises(ValueError, match="clients x parameters"):
        Mean()(np.zeros(3))
    with pytest.raises(TypeError, match="real numbers"):
        Mean()(np.zeros((3, 2), dtype=complex))
    assert Mean()(np.array([[1, 2], [2, 4]])).tolist() == [1.5, 3.0]
    with pytest.raises(NotImplementedError, match="NNM"):
        MinimumDiameter(10)(np.zeros((30, 2)))
    with pytest.raises(TypeError, match="last step"):
        Chain(NNM(1))
    with pytest.raises(TypeError, match="before the last"):
        Chain(Mean(), Mean())
    with pytest.raises(ValueError, match="f: got -1"):
        TrimmedMean(-1)(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="size: got 0"):
        Bucketing(0)


if __name__ == "__main__":  # writes the kept outputs: python tests/optimization/test_byzantine.py
    made = {
        f"{name}/{f}/{k}": v
        for name, x in golden_rows().items()
        for f in (1, 3)
        for k, v in theirs(byzfl(), x, f).items()
    }
    np.savez_compressed(GOLDEN, **made)
