"""Sampling error of optimal transport: closed forms, weak duality, invariances, limits, bad input, the study."""

from __future__ import annotations

import contextlib
import io
import math
import subprocess
import sys
import warnings

import numpy as np
import ot
import pytest
import scipy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from gnomon.geometry import (
    CalibratedSinkhorn,
    IntrinsicDimension,
    RichardsonWasserstein,
    SamplingError,
    required_samples,
    sampling_error,
)
from gnomon.geometry.ot_sampling import dimension, error, nearest
from gnomon.geometry.ot_sampling.distance import divergence, richardson
from gnomon.geometry.ot_sampling.sinkhorn import sinkhorn

pytestmark = pytest.mark.filterwarnings("ignore:dimension .* is not above 2p:UserWarning")
seeds = st.integers(0, 10**6)


def gaussian(n, d, seed=0, ambient=None):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X if ambient is None else X @ np.linalg.qr(rng.normal(size=(ambient, d)))[0].T


# --- the nearest cost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.array, lambda x: torch.tensor(x, dtype=torch.float64)])
def test_hand_case(kind):
    atoms, queries = kind([[0.0], [1.0]]), kind([[0.25], [0.5], [2.0]])
    assert float(sampling_error(atoms, queries, 2)) == 0.4375
    assert float(sampling_error(atoms, queries, 1)) == pytest.approx(1.75 / 3, abs=1e-15)


@given(seeds, st.sampled_from([1, 2, 5, 20]), st.sampled_from([1, 1.5, 2, 3]), st.sampled_from([0.0, 1e6]))
@settings(max_examples=40, deadline=None)
def test_equals_the_full_matrix_also_far_from_the_origin(seed, D, p, offset):
    rng = np.random.default_rng(seed)
    X, Q = rng.normal(size=(40, D)) + offset, rng.normal(size=(17, D)) + offset
    expected = (cdist(Q, X).min(1) ** p).mean()
    assert sampling_error(X, Q, p) == pytest.approx(expected, rel=1e-12)
    assert float(sampling_error(torch.tensor(X), torch.tensor(Q), p)) == pytest.approx(expected, rel=1e-12)


def test_close_points_lose_no_digits():
    X = np.random.default_rng(0).normal(size=(50, 30)) + 1e3
    Q = X[:20] + 1e-7 * np.random.default_rng(1).normal(size=(20, 30))
    assert sampling_error(X, Q, 2) == pytest.approx((cdist(Q, X).min(1) ** 2).mean(), rel=1e-12)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_gradients(p):
    rng = np.random.default_rng(0)
    X, Q = (torch.tensor(rng.normal(size=(n, 3)), requires_grad=True) for n in (8, 6))
    assert torch.autograd.gradcheck(lambda x, q: sampling_error(x, q, p), (X, Q))


def test_blocks_do_not_change_a_result(monkeypatch):
    X = gaussian(300, 5)
    whole = IntrinsicDimension().fit(X)
    monkeypatch.setattr(nearest, "BLOCK_BYTES", 5000)
    assert IntrinsicDimension().fit(X).dimension_ == pytest.approx(whole.dimension_, rel=1e-12)


def test_cosine_callable_and_precomputed_agree_with_their_definition():
    X = gaussian(200, 4)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    chord = cdist(unit, unit)
    city = cdist(X, X, "cityblock")
    for reference in ("split", "loo"):
        options = {"reference": reference, "upper": True}
        cosine = SamplingError(metric="cosine", **options).fit(X)
        assert cosine.error_ == pytest.approx(SamplingError(**options).fit(unit).error_, rel=1e-12)
        for matrix, other in ((chord, cosine), (city, SamplingError(metric=_cityblock, **options).fit(X))):
            given_matrix = SamplingError(metric="precomputed", **options).fit(matrix)
            assert given_matrix.error_ == pytest.approx(other.error_, rel=1e-9)
            assert given_matrix.bracket_[1] == pytest.approx(other.bracket_[1], rel=1e-9)
            assert given_matrix.dimension_ == pytest.approx(other.dimension_, rel=1e-6)


def _cityblock(a, b):
    return np.abs(a - b).sum()


def test_tensors_give_what_arrays_give():
    X, Y = gaussian(200, 5, 0), gaussian(200, 5, 1)
    for estimator in (SamplingError(), SamplingError(reference="loo"), IntrinsicDimension()):
        a, b = estimator.fit(X), None
        value = getattr(a, "error_", None) or a.dimension_
        b = estimator.fit(torch.tensor(X))
        assert (getattr(b, "error_", None) or b.dimension_) == pytest.approx(value, rel=1e-10)
    for estimator, name in ((CalibratedSinkhorn(), "divergence_"), (RichardsonWasserstein(), "distance_")):
        value = getattr(estimator.fit(X, Y), name)
        assert getattr(estimator.fit(torch.tensor(X), torch.tensor(Y)), name) == pytest.approx(value, rel=1e-9)


def test_fresh_queries_and_their_standard_error():
    X, Q = gaussian(400, 6, 0), gaussian(300, 6, 1)
    fit = SamplingError().fit(X, X_query=Q)
    costs = cdist(Q, X).min(1) ** 2
    assert (fit.n_atoms_, fit.n_queries_) == (400, 300)
    assert fit.error_ == pytest.approx(costs.mean(), rel=1e-12)
    assert fit.stderr_ == pytest.approx(costs.std(ddof=1) / math.sqrt(300), rel=1e-12)
    split = SamplingError().fit(X)
    assert (split.n_atoms_, split.n_queries_) == (300, 100)
    loo = SamplingError(reference="loo").fit(X)
    apart = cdist(X, X)
    np.fill_diagonal(apart, np.inf)
    assert loo.error_ == pytest.approx((apart.min(1) ** 2).mean(), rel=1e-12)
    assert loo.n_atoms_ == 399


# --- closed forms -----------------------------------------------------------------------------------------------------


def test_law_on_the_circle_is_exact():
    """d = 1, p = 2 on the circle: distance to the nearest of n is uniform spacing, E = 1 / (2 (n + 1)(n + 2))."""
    for n in (5, 50):
        assert error.gamma_law(n, 1, 2) == pytest.approx(1 / (2 * (n + 1) * (n + 2)), rel=1e-12)


@pytest.mark.parametrize(("d", "n", "p"), [(1, 20, 2), (2, 100, 2), (3, 200, 1), (3, 200, 2)])
def test_law_on_the_torus(d, n, p):
    rng = np.random.default_rng(d)
    found = []
    for _ in range(300):
        gap = np.abs(rng.random((20, 1, d)) - rng.random((1, n, d)))
        found.append((np.sqrt((np.minimum(gap, 1 - gap) ** 2).sum(2)).min(1) ** p).mean())
    se = np.std(found, ddof=1) / math.sqrt(len(found))
    assert abs(np.mean(found) - error.gamma_law(n, d, p)) < 4 * se


@pytest.mark.parametrize("d", [0.5, 1.0, 2.7, 6.0, 20.0, 90.0])
@pytest.mark.parametrize("p", [1, 2])
def test_fit_returns_the_dimension_of_the_law(d, p):
    n = np.array([50, 76, 115, 174, 264, 400])
    assert dimension.fit_form(n, error.gamma_law(n, d, p), np.arange(1, 7), p) == pytest.approx(d, rel=1e-6)


def test_uniform_on_the_line_where_the_bound_is_no_estimate():
    """d = 1: OT is the integral against the sorted atoms and 1 / (6 n) on average; the bound falls as n^-2."""
    rng = np.random.default_rng(0)
    n, found, bound = 40, [], []
    edges = np.arange(n + 1) / n
    for _ in range(400):
        y = np.sort(rng.random(n))
        found.append((((edges[1:] - y) ** 3 - (edges[:-1] - y) ** 3) / 3).sum())
        bound.append(sampling_error(y[:, None], rng.random((200, 1)), 2))
    assert abs(np.mean(found) - 1 / (6 * n)) < 4 * np.std(found) / 20
    assert np.mean(bound) < np.mean(found) / 3
    with pytest.warns(UserWarning, match="no estimate"):
        fit = SamplingError().fit(rng.random((400, 1)))
    assert not fit.valid_
    assert fit.rate_ == 0.5


# --- duality ----------------------------------------------------------------------------------------------------------


@given(seeds, st.integers(2, 12), st.integers(2, 12), st.sampled_from([1, 2]), st.floats(0, 10))
@settings(max_examples=60, deadline=None)
def test_weak_duality_for_any_potential(seed, m, n, p, spread):
    rng = np.random.default_rng(seed)
    Q, X, g = rng.normal(size=(m, 3)), rng.normal(size=(n, 3)), spread * rng.normal(size=n)
    optimal = ot.emd2([], [], cdist(Q, X) ** p)
    pairs = nearest.Pairs(Q, X)
    assert error.semidual(pairs, p, g) <= optimal + 1e-10
    assert error.semidual(pairs, p, np.zeros(n)) == pytest.approx(sampling_error(X, Q, p), rel=1e-12)


def test_zero_potential_does_not_see_the_weights_of_the_atoms():
    """Repeating atoms changes their weights, and not H(0)."""
    X, Q = gaussian(50, 3, 0), gaussian(40, 3, 1)
    repeated = np.concatenate([X, X[:20], X[:5]])
    assert sampling_error(repeated, Q) == sampling_error(X, Q)


def test_optimal_potentials_reach_the_optimum():
    Q, X = gaussian(30, 3, 0), gaussian(20, 3, 1)
    cost = cdist(Q, X) ** 2
    value, log = ot.emd2(np.full(30, 1 / 30), np.full(20, 1 / 20), cost, log=True)
    assert error.semidual(nearest.Pairs(Q, X), 2, log["v"]) == pytest.approx(value, rel=1e-10)


def test_bracket_and_ascent():
    X = gaussian(400, 5)
    fit = SamplingError(upper=True, ascent_steps=300).fit(X)
    lower, upper = fit.bracket_
    assert lower == fit.error_ < upper
    assert lower * 0.9 < fit.ascended_ < upper
    assert SamplingError().fit(X).bracket_[1] == math.inf
    rng = np.random.RandomState(0)
    Q, Y = gaussian(600, 2, 1), gaussian(30, 2, 2)  # few atoms in the plane: there is something to gain
    pairs = nearest.Pairs(Q, Y)
    start = error.semidual(pairs, 2, np.zeros(30))
    assert start * 1.05 < error.ascend(pairs, 2, 1000, start, rng) < ot.emd2([], [], cdist(Q, Y) ** 2) * 1.1


def test_ratio_is_interpolated_in_one_over_d():
    for p, table in error.RATIOS.items():
        dims = sorted(table)
        assert dims[-1] == 64
        assert dims[0] == {1: 3, 2: 5}[p]
        for d in dims:
            assert error.ratio(d, p) == table[d]
        between = error.ratio(2 / (1 / dims[0] + 1 / dims[1]), p)
        assert between == pytest.approx((table[dims[0]] + table[dims[1]]) / 2, rel=1e-12)
        assert error.ratio(1e9, p) == pytest.approx(1, abs=1e-6)
    with pytest.raises(ValueError, match="from d = 5 on"):
        error.ratio(4.2, 2)
    with pytest.raises(ValueError, match="p = 1 and 2"):
        error.ratio(10, 3)
    X = gaussian(600, 12)
    plain, corrected = SamplingError().fit(X), SamplingError(calibrate=True).fit(X)
    assert corrected.error_ == pytest.approx(plain.error_ * error.ratio(plain.dimension_, 2), rel=1e-12)


def test_the_tabulated_ratio_comes_out_of_its_simulation():
    from gnomon.geometry.ot_sampling.study import simulate_ratio

    value, se = simulate_ratio(8, 2, np.random.default_rng(3), n=200, draws=4)
    assert abs(value - error.RATIOS[2][8]) < 4 * se + 0.004  # n = 200 here, 400 in the table


# --- scales and orders ------------------------------------------------------------------------------------------------


@given(seeds, st.integers(24, 400), st.integers(2, 8), st.sampled_from([2, 5, 20]))
@settings(max_examples=30, deadline=None)
def test_running_minimum_is_what_each_scale_gives_alone(seed, n, K, D):
    rng = np.random.default_rng(seed)
    Q, X = rng.normal(size=(15, D)), rng.normal(size=(n, D))
    found = dimension.decay(Q, X, p=2, n_scales=K, n_perm=3, rng=np.random.RandomState(seed % 1000))
    # the same draws again: the order of the atoms, then that of the groups
    state = np.random.RandomState(seed % 1000)
    atoms = X[state.permutation(n)]
    _, size = dimension.scales(n, K)
    for one in found.distances:
        groups = state.permutation(n // size)
        rows = np.concatenate([np.arange(g * size, (g + 1) * size) for g in groups] + [np.arange(n // size * size, n)])
        alone = [nearest.Pairs(Q, atoms[rows[:k]]) for k in found.n]
        for k, pairs in enumerate(alone):
            assert np.array_equal(one[:, k], pairs.distances(np.arange(15), pairs.best(found.n[k])[1][:, 0]))


@pytest.mark.parametrize("n", [24, 96, 128, 300, 3000, 75_001])
def test_scales_are_geometric_from_an_eighth(n):
    found, size = dimension.scales(n, 6)
    assert len(found) == 6
    assert found[-1] == n
    assert found[0] >= 16 - 1
    assert np.all(found[:-1] % size == 0)
    wanted = np.geomspace(max(n / 8, 16), n, 6)
    assert np.all(np.abs(found / wanted - 1) < 0.07)


@pytest.mark.parametrize(
    ("kind", "d", "low", "high"), [("cube", 2, 1.8, 2.2), ("sphere", 5, 4.3, 5.5), ("circles", 3, 2.6, 3.4)]
)
def test_known_dimensions(kind, d, low, high):
    from gnomon.geometry.ot_sampling.sources import draw, embedded

    rng = np.random.default_rng(0)
    fit = IntrinsicDimension().fit(embedded(draw(kind, d, 2000, rng), 25, rng))
    assert low < fit.dimension_ < high
    assert fit.interval_[0] < fit.dimension_ < fit.interval_[1]
    assert len(fit.local_dimensions_) == 5
    assert fit.rate_ == 2 / fit.dimension_
    assert np.all(np.diff(fit.curve_.error) < 0)


def test_noise_shows_in_the_local_curve():
    rng = np.random.default_rng(0)
    X = np.zeros((4000, 20))
    X[:, :2] = rng.random((4000, 2))
    noisy = IntrinsicDimension().fit(X + 0.02 * rng.normal(size=X.shape))
    assert noisy.local_dimensions_[-1] > noisy.local_dimensions_[0]
    assert noisy.dimension_ > 1.3 * IntrinsicDimension().fit(X).dimension_


def test_required_samples():
    X = gaussian(400, 6)
    fit = SamplingError().fit(X)
    plan = fit.required_samples(fit.error_)
    assert plan.n == pytest.approx(fit.n_atoms_)
    assert plan.low < plan.n < plan.high
    assert fit.required_samples(fit.error_ / 2).n == pytest.approx(300 * 2 ** (fit.dimension_ / 2), rel=1e-12)
    assert required_samples(X, fit.error_ / 2) == fit.required_samples(fit.error_ / 2)
    with pytest.raises(ValueError, match="delta"):
        fit.required_samples(0)


# --- invariances ------------------------------------------------------------------------------------------------------


@given(seeds, st.sampled_from([1, 2]), st.floats(-3, 3))
@settings(max_examples=15, deadline=None)
def test_scale_rotation_translation_padding_and_doubled_columns(seed, p, power):
    X, a = gaussian(150, 4, seed), 10.0**power
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0]

    def both(A):
        return SamplingError(p).fit(A).error_, IntrinsicDimension(p).fit(A).dimension_

    value, d = both(X)
    scaled, same = both(a * X)
    assert scaled == pytest.approx(a**p * value, rel=1e-10)
    assert same == pytest.approx(d, rel=1e-9)
    for moved in (X @ rotation, X + rng.normal(size=4), np.pad(X, ((0, 0), (0, 9)))):
        assert both(moved) == pytest.approx((value, d), rel=1e-9)
    assert both(np.tile(X, 2)) == pytest.approx((2 ** (p / 2) * value, d), rel=1e-9)


def test_scaling_by_powers_of_two_leaves_the_dimension_alone():
    X = gaussian(300, 5)
    assert IntrinsicDimension().fit(2.0**40 * X).dimension_ == pytest.approx(
        IntrinsicDimension().fit(X).dimension_, abs=1e-10
    )


def test_distances_scale_and_do_not_see_a_rotation():
    X, Y = gaussian(150, 5, 0), gaussian(150, 5, 1) + 0.5
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
    for estimator, name in ((CalibratedSinkhorn(), "divergence_"), (RichardsonWasserstein(), "distance_")):
        value = getattr(estimator.fit(X, Y), name)
        assert getattr(estimator.fit(3 * X, 3 * Y), name) == pytest.approx(9 * value, rel=1e-4)
        assert getattr(estimator.fit(X @ rotation + 1, Y @ rotation + 1), name) == pytest.approx(value, rel=1e-4)


# --- Sinkhorn ---------------------------------------------------------------------------------------------------------


def clouds(n=60, m=50, shift=0.5, d=3):
    return gaussian(n, d, 0), gaussian(m, d, 1) + shift


def costs(X, Y):
    return cdist(X, Y, "sqeuclidean"), cdist(X, X, "sqeuclidean"), cdist(Y, Y, "sqeuclidean")


@pytest.mark.parametrize("fraction", [1.0, 0.1, 0.03])
@pytest.mark.parametrize("scaling", [True, False])
def test_plan_is_pots_and_the_marginals_hold(fraction, scaling):
    xy = costs(*clouds())[0]
    eps = fraction * xy.mean()
    found = sinkhorn(xy, eps, scaling=scaling, tol=1e-9)
    n, m = xy.shape
    plan = np.exp((found.f[:, None] + found.g - xy) / eps) / (n * m)
    assert np.abs(plan.sum(1) - 1 / n).sum() < 1e-6
    assert np.abs(plan.sum(0) - 1 / m).sum() < 1e-6
    peer = ot.sinkhorn(
        np.full(n, 1 / n), np.full(m, 1 / m), xy, eps, method="sinkhorn_log", numItermax=100_000, stopThr=1e-10
    )
    assert np.abs(plan - peer).sum() < 1e-5
    assert found.cost == pytest.approx((peer * xy).sum(), rel=1e-5)
    kl = (peer * np.log(np.maximum(peer, 1e-300) * n * m)).sum()
    assert found.value == pytest.approx((peer * xy).sum() + eps * kl, rel=1e-5)


def test_both_potentials_of_a_cloud_with_itself_are_one():
    own = costs(*clouds())[1]
    eps = 0.05 * own.mean()
    fast, plain = sinkhorn(own, eps, symmetric=True, tol=1e-10), sinkhorn(own, eps, tol=1e-10)
    assert fast.value == pytest.approx(plain.value, rel=1e-8)
    assert fast.n_iter < plain.n_iter
    assert np.array_equal(fast.f, fast.g)


def test_divergence_limits():
    X, Y = clouds(60, 60, shift=1.0, d=2)
    xy, xx, yy = costs(X, Y)
    mean = xy.mean()
    assert divergence(xx, xx, xx, 0.1 * mean, tol=1e-12)[0] == pytest.approx(0, abs=1e-9)
    exact = ot.emd2([], [], xy)
    assert divergence(xy, xx, yy, 1e-2 * mean)[0] == pytest.approx(exact, rel=1e-2)
    apart = ((X.mean(0) - Y.mean(0)) ** 2).sum()
    assert divergence(xy, xx, yy, 1e3 * mean, tol=1e-12)[0] == pytest.approx(apart, rel=1e-3)


def test_over_relaxation_needs_fewer_iterations(monkeypatch):
    from gnomon.geometry.ot_sampling import sinkhorn as module

    xy = costs(*clouds(200, 200, d=8))[0]
    quick = sinkhorn(xy, 0.02 * xy.mean())
    monkeypatch.setattr(module, "_relaxation", lambda omega, shrunk: 1.0)
    plain = sinkhorn(xy, 0.02 * xy.mean())
    assert 2 * quick.n_iter < plain.n_iter
    assert quick.value == pytest.approx(plain.value, rel=1e-6)


def test_potentials_that_leave_the_range_of_floats_are_absorbed():
    xy = costs(gaussian(40, 2, 0), 30 * gaussian(40, 2, 1))[0]
    found = sinkhorn(xy, 1e-3 * xy.mean(), scaling=False)
    assert found.converged
    assert found.cost == pytest.approx(ot.emd2([], [], xy), rel=1e-2)


def test_not_converged_says_the_marginal_error():
    X, Y = clouds()
    with pytest.warns(ConvergenceWarning, match="marginal error of"):
        fit = CalibratedSinkhorn(kappa=0.01, max_iter=20).fit(X, Y)
    assert fit.marginal_error_ > 1e-6


def test_calibrated_epsilon():
    X, Y = gaussian(300, 6, 0), gaussian(300, 6, 1) + 0.3
    loo = [SamplingError(reference="loo").fit(A).error_ for A in (X, Y)]
    fit = CalibratedSinkhorn(kappa=2).fit(X, Y)
    assert fit.epsilon_ == pytest.approx(sum(loo), rel=1e-12)
    assert fit.marginal_error_ <= 1e-6
    balanced = CalibratedSinkhorn(epsilon_rule="balanced").fit(X, Y)
    d = [IntrinsicDimension().fit(A).dimension_ for A in (X, Y)]
    v = np.mean([A.var(0).sum() / k for A, k in zip((X, Y), d, strict=True)])
    assert balanced.epsilon_ == pytest.approx(math.sqrt(sum(loo) / 2 * v), rel=0.05)  # dimensions from other draws
    truth = 6 * 0.3**2
    assert abs(fit.divergence_ - truth) < abs(ot.emd2([], [], costs(X, Y)[0]) - truth) / 2.5


# --- Richardson -------------------------------------------------------------------------------------------------------


@given(st.floats(0, 10), st.floats(0.01, 10), st.floats(1.1, 8), st.floats(1, 30))
@settings(max_examples=100, deadline=None)
def test_a_synthetic_law_is_undone(W, C, r, d):
    n, rate = 1000.0, 2 / d
    fine, coarse = W + C * n**-rate, W + C * (n / r) ** -rate
    scale = r**rate / (r**rate - 1)
    assert richardson(fine, coarse, r, rate) == pytest.approx(W, abs=1e-12 + 1e-15 * scale * (W + C))


def test_attributes_and_definition():
    X, Y = gaussian(200, 6, 0), gaussian(200, 6, 1) + 0.4
    fit = RichardsonWasserstein(dimension=6.0).fit(X, Y)
    assert fit.plugin_ == pytest.approx(ot.emd2([], [], costs(X, Y)[0]), rel=1e-12)
    assert fit.bias_estimate_ == pytest.approx(fit.plugin_ - fit.distance_, rel=1e-12)
    power = 2 ** (2 / 6)
    assert fit.amplification_ == pytest.approx(power / (power - 1), rel=1e-12)
    rng = np.random.RandomState(0)
    rows, columns = rng.permutation(200), rng.permutation(200)
    coarse = []
    for _ in range(3):
        x, y = rng.permutation(rows), rng.permutation(columns)
        coarse += [ot.emd2([], [], cdist(X[x[h]], Y[y[h]]) ** 2) for h in (slice(0, 100), slice(100, 200))]
    assert fit.distance_ == pytest.approx((power * fit.plugin_ - np.mean(coarse)) / (power - 1), rel=1e-10)
    assert math.isnan(fit.stderr_)
    auto = RichardsonWasserstein().fit(X, Y)
    assert 3 < auto.dimension_ < 8


def test_negative_values_are_told_and_clipped_only_beside():
    found = [
        RichardsonWasserstein(dimension=6.0, random_state=s).fit(gaussian(64, 6, s), gaussian(64, 6, 99 + s))
        for s in range(6)
    ]
    assert min(f.distance_ for f in found) < 0
    assert all(f.distance_clipped_ == max(f.distance_, 0) for f in found)


def test_complementary_folds_are_drawn_apart_for_the_two_clouds():
    """Rows that correspond must not meet: with Y a copy of X in the same order, shared folds would give zero."""
    X = gaussian(128, 6)
    fit = RichardsonWasserstein(dimension=6.0).fit(X, X.copy())
    assert fit.plugin_ == pytest.approx(0, abs=1e-12)
    assert fit.distance_ < -1


def test_bags_ratios_and_bases():
    X, Y = gaussian(160, 6, 0), gaussian(130, 6, 1) + 0.4
    bagged = RichardsonWasserstein(n_bags=4, dimension=6.0).fit(X, Y)
    assert bagged.stderr_ > 0
    assert bagged.interval_[0] < bagged.distance_ < bagged.interval_[1]
    plain = RichardsonWasserstein(dimension=6.0).fit(X, Y)
    for options in ({"ratio": 3}, {"ratio": 1.7}, {"base": "entropic"}, {"base": "sinkhorn", "order": 4}):
        found = RichardsonWasserstein(dimension=6.0, **options).fit(X, Y)
        assert abs(found.distance_ - plain.distance_) < 1.5
    same = RichardsonWasserstein(dimension=6.0, random_state=0).fit(X, Y)
    assert same.distance_ == plain.distance_


def test_precomputed_clouds():
    X, Y = gaussian(140, 4, 0), gaussian(150, 4, 1)
    given_matrices = {"X": cdist(X, X), "Y": cdist(Y, Y), "XY": cdist(X, Y)}
    for kind, name in ((CalibratedSinkhorn, "divergence_"), (RichardsonWasserstein, "distance_")):
        expected = getattr(kind().fit(X, Y), name)
        assert getattr(kind(metric="precomputed").fit(**given_matrices), name) == pytest.approx(expected, rel=1e-5)
        with pytest.raises(ValueError, match="XY"):
            kind(metric="precomputed").fit(given_matrices["X"], given_matrices["Y"])


# --- bad input --------------------------------------------------------------------------------------------------------

ONE = [SamplingError, IntrinsicDimension]
TWO = [CalibratedSinkhorn, RichardsonWasserstein]


@pytest.mark.parametrize(("kind", "least"), [(SamplingError, 32), (IntrinsicDimension, 128), *((k, 32) for k in TWO)])
def test_too_few_rows_name_the_minimum(kind, least):
    X = gaussian(least - 1, 3)
    with pytest.raises(ValueError, match=str(least)):
        kind().fit(X, X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        kind().fit(gaussian(least, 3), gaussian(least, 3, 1))


@pytest.mark.parametrize("kind", ONE + TWO)
def test_degenerate_clouds(kind):
    with pytest.raises(ValueError, match="zero-dimensional support"):
        kind().fit(np.ones((200, 3)), np.ones((200, 3)))
    bad = gaussian(200, 3)
    for value in (np.nan, np.inf):
        bad[17, 1] = value
        with pytest.raises(ValueError, match="row 17"):
            kind().fit(bad, gaussian(200, 3))
    with pytest.raises(ValueError, match="metric"):
        kind(metric="manhattan").fit(gaussian(200, 3), gaussian(200, 3, 1))
    with pytest.raises(ValueError, match=r"p: got"):
        kind(p=0).fit(gaussian(200, 3), gaussian(200, 3, 1))
    with pytest.raises(ValueError, match="row 3 is zero"):
        kind(metric="cosine").fit(gaussian(200, 3) * (np.arange(200) != 3)[:, None], gaussian(200, 3, 1))


@pytest.mark.parametrize("kind", TWO)
def test_two_clouds_must_match(kind):
    with pytest.raises(ValueError, match="as many features"):
        kind().fit(gaussian(64, 3), gaussian(64, 4))
    with pytest.raises(ValueError, match="Y: got None"):
        kind().fit(gaussian(64, 3), None)
    with pytest.raises(ValueError, match=r"Y.*row 2"):
        kind().fit(gaussian(64, 3), np.where(np.arange(192).reshape(64, 3) == 7, np.nan, 1.0))


@pytest.mark.parametrize(("kind", "options"), [
    (SamplingError, {"reference": "half"}), (SamplingError, {"ascent_steps": -1}), (IntrinsicDimension, {"n_scales": 1}),
    (IntrinsicDimension, {"n_queries": 0}), (IntrinsicDimension, {"n_perm": 0}), (CalibratedSinkhorn, {"kappa": 0}),
    (CalibratedSinkhorn, {"kappa": -1}), (CalibratedSinkhorn, {"epsilon_rule": "best"}), (CalibratedSinkhorn, {"max_iter": 0}),
    (RichardsonWasserstein, {"ratio": 1}), (RichardsonWasserstein, {"ratio": 0.5}), (RichardsonWasserstein, {"base": "emd"}),
    (RichardsonWasserstein, {"n_splits": 0}), (RichardsonWasserstein, {"n_bags": 0}), (RichardsonWasserstein, {"dimension": 0}),
    (RichardsonWasserstein, {"dimension": "ambient"}), (RichardsonWasserstein, {"order": 0}),
])  # fmt: skip
def test_parameters_out_of_range_are_named(kind, options):
    X, Y = gaussian(150, 3), gaussian(150, 3, 1)
    with pytest.raises(ValueError, match=f"^{next(iter(options))}: got"):
        kind(**options).fit(X, Y)


def test_functional_form_checks_its_input():
    with pytest.raises(ValueError, match="as many features"):
        sampling_error(gaussian(10, 3), gaussian(10, 2))
    with pytest.raises(ValueError, match="p: got"):
        sampling_error(gaussian(10, 3), gaussian(10, 3, 1), -1)
    with pytest.raises(ValueError, match="precomputed"):
        sampling_error(gaussian(10, 3), gaussian(10, 3, 1), metric="precomputed")
    with pytest.raises(ValueError, match="X_query"):
        SamplingError().fit(gaussian(40, 3), X_query=gaussian(40, 2))
    with pytest.raises(ValueError, match="square"):
        SamplingError(metric="precomputed").fit(gaussian(40, 3))


@pytest.mark.parametrize("kind", ONE)
def test_duplicates_warn_and_can_be_dropped(kind):
    X = gaussian(200, 4)
    with pytest.warns(UserWarning, match="drop_duplicates=True"):
        kind().fit(np.concatenate([X, X[:20]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "dimension .* is not above 2p")
        dropped = kind(drop_duplicates=True).fit(np.concatenate([X, X[:20]]))
        plain = kind().fit(X)
    name = "error_" if kind is SamplingError else "dimension_"
    assert getattr(dropped, name) == getattr(plain, name)


@given(seeds, st.sampled_from([np.float32, np.float64]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_distinct_rows_are_the_first_of_each(seed, dtype, order):
    rng = np.random.default_rng(seed)
    X = rng.integers(-1, 2, (30, 3)).astype(dtype) * (rng.normal() if seed % 2 else 1)
    X = np.asarray(X, order="F" if order else "C")
    expected = sorted({tuple(row): i for i, row in reversed(list(enumerate((X + 0.0).tolist())))}.values())
    assert nearest.distinct(X).tolist() == expected
    assert nearest.distinct(torch.tensor(X)).tolist() == expected


@pytest.mark.parametrize("kind", ONE)
def test_grids_warn(kind):
    X = np.random.default_rng(0).integers(0, 6, (400, 6)).astype(float)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*duplicates")
        with pytest.warns(UserWarning, match="grid"):
            kind().fit(X)


def test_only_copies_have_no_dimension():
    X = np.repeat(gaussian(40, 3), 40, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="zero-dimensional support"):
            IntrinsicDimension().fit(X)
        with pytest.raises(ValueError, match="duplicate"):
            CalibratedSinkhorn().fit(X, X)


def test_high_dimension_and_few_rows_warn():
    with pytest.warns(UserWarning, match="multiplies the noise of the base by"):
        RichardsonWasserstein(dimension=40.0).fit(gaussian(64, 3), gaussian(64, 3, 1))
    with pytest.warns(UserWarning, match="rough"):
        RichardsonWasserstein().fit(gaussian(64, 3), gaussian(64, 3, 1))


# --- the ecosystem ----------------------------------------------------------------------------------------------------

# fits on the 10 to 60 rows that these checks draw, where the method itself asks for 32 or 128
FEW = "the check draws fewer rows than the method's minimum"


@pytest.fixture
def any_number_of_rows(monkeypatch):
    monkeypatch.setattr(error, "MIN_ROWS", 8)
    monkeypatch.setattr(dimension, "MIN_ROWS", 8)


@pytest.mark.usefixtures("any_number_of_rows")
@pytest.mark.filterwarnings("ignore::UserWarning")
@parametrize_with_checks([SamplingError(), SamplingError(reference="loo"), IntrinsicDimension()])
def test_scikit_learn_protocol(estimator, check):
    check(estimator)


# two-cloud estimators take a cloud where the protocol has labels: only what needs no fit applies to them
PARAMETER_CHECKS = ("check_no_attributes_set_in_init", "check_parameters_default_constructible", "check_get_params_invariance",
                    "check_set_params", "check_estimator_cloneable", "check_estimator_repr", "check_do_not_raise_errors_in_init_or_set_param",
                    "check_estimator_tags_renamed", "check_valid_tag_types")  # fmt: skip


@parametrize_with_checks([CalibratedSinkhorn(), RichardsonWasserstein()])
def test_scikit_learn_parameters_of_two_cloud_estimators(estimator, check):
    name = getattr(check, "func", check).__name__
    if name not in PARAMETER_CHECKS:
        pytest.skip("fit takes a second cloud where the check passes labels")
    check(estimator)


def test_frames_keep_their_names():
    import pandas as pd

    frame = pd.DataFrame(gaussian(150, 3), columns=["a", "b", "c"])
    fit = IntrinsicDimension().fit(frame)
    assert list(fit.feature_names_in_) == ["a", "b", "c"]


# --- baselines --------------------------------------------------------------------------------------------------------


def test_baselines_on_what_they_are_exact_for():
    from gnomon.geometry.ot_sampling import baselines

    X, b = gaussian(120, 3), np.array([0.3, -0.4, 0.5])
    Y = X + b
    truth = float(b @ b)
    assert baselines.plugin(X, Y) == pytest.approx(truth, rel=1e-9)
    assert baselines.bures(X, Y) == pytest.approx(truth, rel=1e-4)
    assert baselines.sliced(X, Y, 2000) == pytest.approx(truth, rel=0.1)
    assert baselines.fixed_sinkhorn(0.1)(X, Y) == pytest.approx(truth, rel=1e-3)
    assert baselines.chizat(X, Y) == pytest.approx(truth, rel=1e-3)
    eps = 0.1 * costs(X, Y)[0].mean()
    Z = gaussian(110, 3, 5)
    assert baselines.geomloss_divergence(X, Z, math.sqrt(eps / 2)) == pytest.approx(
        divergence(*costs(X, Z), eps)[0], rel=0.02
    )
    xy, xx, yy = (sinkhorn(c, eps, tol=1e-9).cost for c in costs(X, Z))
    assert baselines.pot_divergence(X, Z, eps) == pytest.approx(xy - (xx + yy) / 2, rel=1e-3)
    assert baselines.pot_sinkhorn(X, Z, eps) == pytest.approx(xy, rel=1e-4)
    with pytest.raises(ValueError, match="expected one of"):
        baselines.dimension("PCA")


def test_the_maps_have_the_distances_they_claim():
    from gnomon.geometry.ot_sampling import baselines, sources

    rng = np.random.default_rng(0)
    X, Y, truth = sources.gaussian_pair(6, 1000, rng)
    assert truth == pytest.approx(0.95, abs=1e-12)
    assert baselines.bures(X, Y) == pytest.approx(truth, rel=0.15)
    population = sources.digits()
    image, truth = sources.moved(population)
    rows = rng.permutation(len(population))[:300]
    # the map is optimal between the same rows: no other assignment is cheaper
    assert ot.emd2([], [], cdist(population[rows], image[rows]) ** 2) == pytest.approx(
        ((image - population)[rows] ** 2).sum(1).mean(), rel=1e-9)  # fmt: skip
    with pytest.raises(ValueError, match="kind"):
        sources.draw("ball", 2, 10, rng)


def test_the_distance_on_mnist_is_the_known_one():
    from gnomon.geometry.ot_sampling import sources

    assert sources.moved(sources.mnist())[1] == pytest.approx(14.2689, abs=1e-3)


# --- the study --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_study_at_smoke_scale(tmp_path):
    from gnomon import catalog
    from gnomon.study.check import check
    from gnomon.study.runner import Running

    outcome = check(catalog.find("ot-sampling"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v for v in outcome.verdicts}
    assert verdicts["bracket"].verdict == "holds"
    assert set(verdicts) == {c.id for c in catalog.find("ot-sampling").study().claims}
    assert outcome.figure.startswith("<?xml")


def test_derived_tables_on_hand_made_numbers():
    import pandas as pd

    from gnomon.geometry.ot_sampling.study import OTSamplingStudy

    rows = [{"data": "mnist", "n": n, "seed": s, "contender": c, "error": e * (1 + s / 100), "truth": 10.0, "dimension": 10.0}
            for s in range(3) for n in (100, 200, 400)
            for c, e in (("plugin", 50 * (n / 400) ** -0.2), ("calibrated", -2.0), ("richardson", 0.1),
                         ("fixed 0.01", 40.0), ("fixed 0.1", -3.0), ("fixed 1", -30.0))]  # fmt: skip
    found = OTSamplingStudy().derive({"Distance": pd.DataFrame(rows)})
    assert found["Rate"]["slope_ratio"].to_numpy() == pytest.approx(np.ones(3))
    side = found["Calibration"].query("seed == 0").set_index("side")["margin"]
    assert (side["above"], side["below"]) == (55.0, 45.0)
    best = found["BestFixed"].query("seed == 0").set_index("side")
    assert set(best["best"]) == {"fixed 0.1"}
    assert (best.loc["above", "margin"], best.loc["below", "margin"]) == (5.0, 1.0)


@pytest.fixture
def files(tmp_path):
    import pandas as pd

    np.save(tmp_path / "x.npy", gaussian(200, 6, 0, ambient=20))
    pd.DataFrame(gaussian(180, 6, 1, ambient=20)).to_csv(tmp_path / "y.csv", index=False)
    np.save(tmp_path / "y.npy", gaussian(180, 6, 1, ambient=20))
    return tmp_path


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_command_of_the_page(files, monkeypatch):
    import json
    import shlex

    from typer.testing import CliRunner

    from gnomon import cli
    from gnomon.geometry.ot_sampling.study import OTSamplingStudy

    monkeypatch.chdir(files)
    words = [*shlex.split(OTSamplingStudy.command)[1:], "--figure", "f.svg", "--save", "out"]
    done = CliRunner().invoke(cli.build(words), words)
    assert done.exit_code == 0, done.output
    for word in (
        "sampling error",
        "intrinsic dimension",
        "local dimension",
        "rows needed",
        "plug-in",
        "calibrated Sinkhorn",
    ):
        assert word in done.output
    assert (files / "f.svg").stat().st_size > 1000
    kept = json.loads((files / "out" / "result.json").read_text())
    assert kept["x"]["error"]["atoms"] == 150
    assert kept["x"]["error"]["lower"] < kept["x"]["error"]["upper"]


def test_run_beside_one_cloud_and_mistakes(files):
    from gnomon.geometry.ot_sampling.study import OTSamplingStudy as Study

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = Study().run(Study.Run(x=files / "x.npy", delta=0.1))
        assert set(Study().present(one)) == {"sampling error", "intrinsic dimension", "decay of x", "rows needed"}
        assert one.results["x"]["rows"]["delta"] == 0.1
        both = Study().present(Study().run(Study.Run(x=files / "x.npy", y=files / "y.csv"), beside=True))
    assert {"other dimensions", "distance ** p between the clouds"} <= set(both)
    assert len(both["distance ** p between the clouds"]) == 8
    for path, message in (("none.npy", "does not exist"), ("x.txt", "does not exist")):
        with pytest.raises(ValueError, match=message):
            Study.Run(x=files / path)
    (files / "x.txt").write_text("1")
    with pytest.raises(ValueError, match="ends in"):
        Study.Run(x=files / "x.txt")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_example_of_the_page():
    from gnomon.geometry.ot_sampling.study import OTSamplingStudy

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(OTSamplingStudy.example, "example", "exec"), {})
    assert "true 2.00" in out.getvalue()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
def test_memory_is_one_block():
    """20,000 rows of 64: nothing of the size of the 15,000 x 5,000 distances (600 MB in double precision) is made."""
    code = """
import re, numpy as np, warnings
warnings.simplefilter("ignore")
from gnomon.geometry import SamplingError
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
X = np.random.default_rng(0).normal(size=(20_000, 64)).astype(np.float32)
SamplingError().fit(X[:200])
before = peak()
SamplingError().fit(X)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 10 < float(done.stdout) < 300  # a block is 64 MB


def test_scipy_gamma_form_is_a_power_of_n():
    n = np.array([1e3, 1e5])
    assert dimension.log_form(n, 0.4) == pytest.approx(-0.4 * np.log(n), rel=1e-3)
    assert scipy.special.gammaln(n[0] + 1) - scipy.special.gammaln(n[0] + 1.4) == dimension.log_form(n, 0.4)[0]
