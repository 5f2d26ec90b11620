"""Chamfer scores: hand cases, invariances, bounds, gradients, the older metrics, bad input."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.special import gamma, gammaln
from sklearn.utils.estimator_checks import parametrize_with_checks

from gnomon.geometry import (
    ChamferMetric,
    ball_inflation,
    chamfer,
    clipped_density_coverage,
    cmmd,
    compare_generators,
    dropped_modes,
    few_prototypes,
    fid,
    fid_infinity,
    kid,
    memorised,
    midpoints,
    moment_matched,
    p_precision_recall,
    prdc,
    shell_noise,
    sliced_w2,
    stability,
)
from gnomon.geometry.neighbors import knn


def gaussians(n, m, D, seed=0, shift=0.0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, D)), rng.normal(size=(m, D)) + shift


shapes = st.tuples(st.integers(0, 10**6), st.integers(3, 30), st.integers(3, 30), st.sampled_from([1, 2, 5, 16, 40]))


# --- definition ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.array, lambda rows: torch.tensor(rows, dtype=torch.float64)])
def test_hand_case(kind):
    R, G = kind([[0.0, 0.0], [2.0, 0.0]]), kind([[0.0, 1.0], [5.0, 0.0]])
    root = np.sqrt(5)
    for options, expected in (({}, (2.0, (1 + root) / 2)), ({"power": 2}, (5.0, 3.0)),
                              ({"k": 2}, (((1 + root) / 2 + 4) / 2, (3 + (root + 3) / 2) / 2))):  # fmt: skip
        parts = chamfer(R, G, parts=True, **options)
        np.testing.assert_allclose([float(p) for p in parts], expected, rtol=1e-14)
        assert float(chamfer(R, G, **options)) == pytest.approx(sum(expected))
    np.testing.assert_allclose(expected, (2.809017, 2.809017), atol=5e-7)


@settings(max_examples=60, deadline=None)
@given(shapes, st.sampled_from([1, 2]), st.integers(1, 3))
def test_agrees_with_the_full_matrix(shape, power, k):
    seed, n, m, D = shape
    R, G = gaussians(n, m, D, seed)
    full = np.sort(cdist(R, G) ** power, axis=1)[:, :k].mean(), np.sort(cdist(G, R) ** power, axis=1)[:, :k].mean()
    F, C = chamfer(R, G, k, power=power, parts=True)
    np.testing.assert_allclose((C, F), full, rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(shapes, st.floats(0.01, 100))
def test_symmetry_permutation_isometry_scaling(shape, a):
    seed, n, m, D = shape
    R, G = gaussians(n, m, D, seed)
    rng = np.random.default_rng(seed)
    F, C = chamfer(R, G, parts=True)
    assert chamfer(G, R, parts=True) == pytest.approx((C, F), rel=1e-12)
    assert chamfer(rng.permutation(R), rng.permutation(G), parts=True) == pytest.approx((F, C), rel=1e-12)
    Q, shift = np.linalg.qr(rng.normal(size=(D, D)))[0], rng.normal(size=D)
    assert chamfer(R @ Q + shift, G @ Q + shift, parts=True) == pytest.approx((F, C), rel=1e-9)
    assert chamfer(a * R, a * G, parts=True) == pytest.approx((a * F, a * C), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(shapes)
def test_more_points_never_hurt(shape):
    seed, n, m, D = shape
    R, G = gaussians(n, m, D, seed)
    more = np.random.default_rng(seed + 1).normal(size=(5, D))
    F, C = chamfer(R, G, parts=True)
    assert chamfer(np.vstack([R, more]), G, parts=True)[0] <= F * (1 + 1e-12)
    assert chamfer(R, np.vstack([G, more]), parts=True)[1] <= C * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20))
def test_zero_exactly_when_the_sets_are_equal(seed, D):
    R, _ = gaussians(20, 1, D, seed)
    rng = np.random.default_rng(seed)
    repeated = R[np.concatenate([np.arange(20), rng.integers(20, size=9)])]  # equal as sets
    assert chamfer(R, rng.permutation(repeated), parts=True) == (0.0, 0.0)
    F, C = chamfer(R, R[:-1], parts=True)
    assert F == 0
    assert C > 0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 25), st.sampled_from([2, 20]))
def test_wasserstein_is_at_least_either_side(seed, n, D):
    import ot

    R, G = gaussians(n, n, D, seed, shift=0.3)
    w1 = ot.emd2([], [], cdist(R, G))
    assert max(chamfer(R, G, parts=True)) <= w1 * (1 + 1e-9)


def test_hausdorff_is_the_largest_sample_value():
    from scipy.spatial.distance import directed_hausdorff

    R, G = gaussians(80, 60, 20)
    report = ChamferMetric().fit(R, holdout=gaussians(60, 1, 20, 5)[0]).score(G)
    assert report.fidelity_samples.max() == pytest.approx(directed_hausdorff(G, R)[0])
    assert report.coverage_samples.max() == pytest.approx(directed_hausdorff(R, G)[0])


@pytest.mark.parametrize("d", [1, 2, 3])
def test_mean_distance_on_a_flat_torus(d):
    n, m, draws = 60, 40, 60
    rng = np.random.default_rng(d)
    means = []
    for _ in range(draws):
        R = rng.random((n, d))
        images = np.concatenate([R + np.array(s) for s in np.ndindex(*[3] * d)]) - 1.0
        means.append(chamfer(images, rng.random((m, d)), parts=True)[0])
    ball = np.pi ** (d / 2) / gamma(d / 2 + 1)
    expected = ball ** (-1 / d) * gamma(1 + 1 / d) * np.exp(gammaln(n + 1) - gammaln(n + 1 + 1 / d))
    assert abs(np.mean(means) - expected) < 4 * np.std(means, ddof=1) / np.sqrt(draws)


# --- torch -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "power"), [(1, 1), (2, 1), (3, 2)])
def test_gradcheck(k, power):
    R, G = (torch.from_numpy(A).requires_grad_() for A in gaussians(7, 9, 4))
    assert torch.autograd.gradcheck(lambda r, g: chamfer(r, g, k, power=power, parts=True), (R, G))


def test_gradient_is_the_unit_vector_from_the_nearest_real_point():
    R, G = (torch.from_numpy(A) for A in gaussians(30, 20, 5))
    G.requires_grad_()
    chamfer(R, G, parts=True)[0].backward()
    nearest = R[torch.from_numpy(knn(G.detach(), R, 1)[1][:, 0])]
    unit = torch.nn.functional.normalize(G.detach() - nearest, dim=1)
    torch.testing.assert_close(G.grad, unit / 20)


def test_loss_moves_points_onto_the_data_and_stays_finite_on_it():
    R, G = (torch.from_numpy(A).float() for A in gaussians(50, 50, 3, shift=2.0))
    G.requires_grad_()
    optimiser = torch.optim.Adam([G], lr=0.1)
    before = float(chamfer(R, G.detach()))
    for _ in range(50):
        optimiser.zero_grad()
        chamfer(R, G).backward()
        optimiser.step()
    assert float(chamfer(R, G.detach())) < before / 2
    same = R.clone().requires_grad_()
    chamfer(R, same).backward()
    assert torch.isfinite(same.grad).all()


def test_numpy_beside_a_tensor_and_a_loss_in_single_precision():
    R, G = gaussians(40, 30, 20)
    got = chamfer(R, torch.from_numpy(G).float(), parts=True)
    np.testing.assert_allclose([float(v) for v in got], chamfer(R, G, parts=True), rtol=1e-6)


# --- the estimator ---------------------------------------------------------------------------------------------------

EXEMPT = {"check_pipeline_consistency": "score returns a report, not a number"}


@parametrize_with_checks([ChamferMetric(random_state=0)], expected_failed_checks=lambda _: EXEMPT)
def test_estimator_protocol(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        check(estimator)


def test_fresh_real_data_score_one_and_shifted_data_do_not():
    rng = np.random.default_rng(0)
    real, held, fresh, bad = (rng.normal(size=(n, 8)) for n in (600, 400, 400, 400))
    metric = ChamferMetric(random_state=0).fit(real, holdout=held)
    good = metric.score(fresh)
    for name in ("fidelity_ratio", "coverage_ratio"):
        low, high = good.intervals[name]
        assert low < 1 < high
    assert good.p_value > 0.01
    worse = metric.score(bad * 1.4)
    assert worse.intervals["fidelity_ratio"][0] > 1
    assert worse.p_value < 0.01
    assert worse.fidelity_z.mean() > 0.3
    assert abs(good.fidelity_z.mean()) < 0.15


def test_intervals_cover():
    """The share of intervals of F / F0 that hold the large-sample ratio, within four binomial errors of 95 %."""
    rng = np.random.default_rng(0)

    def score(n, m):
        metric = ChamferMetric(random_state=0).fit(rng.normal(size=(n, 4)), holdout=rng.normal(size=(m, 4)))
        return metric.score(1.2 * rng.normal(size=(m, 4)))

    truth = {"fidelity_ratio": [], "coverage_ratio": []}
    inside = {"fidelity_ratio": 0, "coverage_ratio": 0}
    reports = [score(150, 120) for _ in range(150)]
    for name in truth:
        centre = np.mean([getattr(r, name) for r in reports])  # the mean at these sizes: what the intervals are for
        inside[name] = sum(r.intervals[name][0] <= centre <= r.intervals[name][1] for r in reports)
        assert inside[name] >= 0.88 * 150, (name, inside[name])


def test_sizes_are_matched():
    rng = np.random.default_rng(1)
    pool = rng.normal(size=(4000, 10))
    real, held = pool[:800], pool[800:1600]
    for fresh in (pool[1600:1800], pool[1600:3600]):
        metric = ChamferMetric(random_state=0).fit(real, holdout=held)
        report = metric.score(fresh)
        assert report.size == min(len(fresh), 800)
        assert report.coverage_ratio == pytest.approx(1, abs=0.06)
    with pytest.warns(UserWarning, match="not comparable"):
        unmatched = ChamferMetric(size="none").fit(real, holdout=held).score(pool[1600:1800])
    assert unmatched.coverage_ratio > 1.1  # a quarter of the rows: distances are 4^(1/10) larger


def test_leave_one_out_reference():
    rng = np.random.default_rng(2)
    real, fresh = rng.normal(size=(401, 6)), rng.normal(size=(400, 6))
    report = ChamferMetric(reference="loo").fit(real).score(fresh)
    own = knn(real, k=1)[0].mean()
    assert report.fidelity_ratio == pytest.approx(report.fidelity / own)
    assert report.coverage_ratio == pytest.approx(report.coverage / own)
    assert report.fidelity_ratio == pytest.approx(1, abs=0.08)
    assert np.isnan(report.p_value)
    with pytest.raises(ValueError, match="needs n - 1 = 400 within 5 %"):
        ChamferMetric(reference="loo").fit(real).score(fresh[:300])


def test_a_random_half_is_held_out_where_none_is_given():
    real, fresh = gaussians(200, 100, 6)
    metric = ChamferMetric(random_state=3).fit(real)
    assert len(metric.real_) == len(metric.holdout_) == 100
    assert metric.score(fresh).fidelity_ratio == pytest.approx(1, abs=0.15)
    assert ChamferMetric(random_state=3).fit(real).score(fresh).fidelity_ratio == metric.score(fresh).fidelity_ratio


def test_ratios_do_not_depend_on_scale_and_report_follows_the_definition():
    real, fresh = gaussians(150, 80, 20)
    held = gaussians(80, 1, 20, 7)[0]
    report = ChamferMetric(k=2, power=2, random_state=0).fit(real, holdout=held).score(fresh)
    F, C = chamfer(real, fresh, 2, power=2, parts=True)
    F0, C0 = chamfer(real, held, 2, power=2, parts=True)
    assert (report.fidelity, report.coverage) == pytest.approx((F, C))
    assert (report.fidelity_ratio, report.coverage_ratio) == pytest.approx((F / F0, C / C0))
    assert report.chamfer == pytest.approx(F + C)
    again = ChamferMetric(k=2, power=2, random_state=0).fit(1e4 * real, holdout=1e4 * held).score(1e4 * fresh)
    assert again.fidelity_ratio == pytest.approx(report.fidelity_ratio)
    assert again.intervals["coverage_ratio"] == pytest.approx(report.intervals["coverage_ratio"])
    np.testing.assert_array_equal(report.nearest_real, cdist(fresh, real).argmin(1))


def test_attribution_points_at_the_bad_and_the_missed():
    real, fresh = gaussians(300, 100, 5)
    real[:30] += 12  # a mode that the generator lacks
    labels = np.where(np.arange(300) < 30, "far", "near")
    fresh[:3] -= 9  # three bad samples
    report = ChamferMetric().fit(real, holdout=np.vstack([gaussians(90, 1, 5, 8)[0], real[:10] + 0.1])).score(fresh)
    assert set(np.argsort(-report.fidelity_z)[:3]) == {0, 1, 2}
    assert set(np.argsort(-report.coverage_z)[:30]) == set(range(30))
    table = report.per_class(real=labels, generated=np.full(100, "near")).set_index("class")
    assert table.loc["far", "coverage"] > 5 * table.loc["near", "coverage"]
    assert set(report.table()["metric"]) >= {"fidelity_ratio", "coverage_ratio"}
    with pytest.raises(ValueError, match="labels"):
        report.per_class(real=labels[:3])


def test_memorised_training_data():
    real, held = gaussians(300, 200, 16)
    G = memorised(real)
    assert G is not real
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = ChamferMetric(random_state=0).fit(real, holdout=held, train=real).score(G, also=("fid", "prdc"))
    assert report.copy_ratio == 0
    assert report.fidelity_ratio == 0
    assert report.intervals["fidelity_ratio"][1] < 0.05  # without a block of R some rows lose their copy
    assert [report.also[m] for m in ("precision", "recall", "density", "ball_coverage")] == [1, 1, 1, 1]
    assert abs(report.also["fd"]) < 1e-10
    fresh = (
        ChamferMetric(random_state=0)
        .fit(real, holdout=held, train=gaussians(250, 1, 16, 9)[0])
        .score(gaussians(200, 1, 16, 10)[0])
    )
    assert fresh.copy_ratio == pytest.approx(1, abs=0.05)


def test_one_outlier_lowers_fidelity_but_not_the_trimmed_one():
    rng = np.random.default_rng(0)
    real, held, noise = rng.normal(size=(400, 20)), rng.normal(size=(200, 20)), 3 + rng.random((204, 20))
    dirty = np.vstack([real, noise[:4]])
    clean, spoilt = (ChamferMetric(trim=0.02).fit(R, holdout=held).score(noise[4:]) for R in (real, dirty))
    assert spoilt.fidelity_ratio < 0.3 * clean.fidelity_ratio
    assert spoilt.fidelity_ratio_trimmed == pytest.approx(clean.fidelity_ratio_trimmed, rel=0.02)


def test_compare():
    real, good = gaussians(300, 150, 6)
    held, worse = gaussians(150, 150, 6, 5, shift=1.0)
    found = compare_generators(real, good, worse, holdout=held, random_state=0)
    assert found.fidelity_interval[1] < 0
    assert found.coverage_interval[1] < 0
    assert found.coverage_differences.shape == (300,)
    same = compare_generators(real, good, gaussians(400, 1, 6, 6)[0], holdout=held, random_state=0)
    assert same.coverage_interval[0] < 0.05
    assert same.coverage_interval[1] > -0.05
    flipped = compare_generators(real, worse, good, holdout=held, random_state=0)
    assert flipped.fidelity_difference == pytest.approx(-found.fidelity_difference)
    with pytest.warns(UserWarning, match="not comparable"):
        compare_generators(real, good, worse[:70], holdout=held, size="none")


def test_cosine_ignores_lengths():
    real, fresh = gaussians(100, 60, 8)
    held = gaussians(60, 1, 8, 4)[0]
    stretch = np.random.default_rng(0).uniform(0.5, 2, (60, 1))
    scores = [
        ChamferMetric(metric="cosine").fit(real, holdout=held).score(G).fidelity for G in (fresh, stretch * fresh)
    ]
    assert scores[0] == pytest.approx(scores[1])
    with pytest.raises(ValueError, match="row 3 is zero"):
        ChamferMetric(metric="cosine").fit(real, holdout=held).score(fresh * (np.arange(60) != 3)[:, None])


def test_tensors_give_the_same_scores():
    real, fresh = gaussians(200, 100, 20)
    held = gaussians(100, 1, 20, 4)[0]
    a = ChamferMetric(random_state=0).fit(real, holdout=held).score(fresh)
    b = (
        ChamferMetric(random_state=0)
        .fit(*map(torch.from_numpy, [real]), holdout=torch.from_numpy(held))
        .score(torch.from_numpy(fresh))
    )
    assert a.fidelity_ratio == pytest.approx(b.fidelity_ratio)
    for name, interval in a.intervals.items():
        assert interval == pytest.approx(b.intervals[name])


def test_hubness_is_skewness_of_the_neighbour_counts():
    from scipy.stats import skew

    real, fresh = gaussians(100, 300, 30)
    report = ChamferMetric().fit(real, holdout=gaussians(300, 1, 30, 3)[0]).score(fresh)
    counts = np.bincount(cdist(fresh, real).argmin(1), minlength=100)
    assert report.hubness == pytest.approx(skew(counts))


# --- the older metrics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "m", "D", "k"), [(200, 150, 20, 5), (150, 150, 60, 3), (120, 200, 3, 5)])
def test_prdc_equals_the_package(n, m, D, k, dtype):
    from prdc import compute_prdc

    R, G = (A.astype(dtype) for A in gaussians(n, m, D, shift=0.2))
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = compute_prdc(R, G, k)
    assert prdc(R, G, k) == {name: float(value) for name, value in theirs.items()}


def eigenvalue_form(R, G):
    """The formula of torch-fidelity, at its precision."""
    means, covs = [A.mean(0) for A in (R, G)], [np.cov(A, rowvar=False) for A in (R, G)]
    shared = np.sqrt(np.linalg.eigvals(covs[0] @ covs[1]).astype(complex)).real.sum()
    return ((means[0] - means[1]) ** 2).sum() + np.trace(covs[0]) + np.trace(covs[1]) - 2 * shared


@pytest.mark.parametrize(("n", "m", "D"), [(300, 200, 20), (40, 50, 90)])
def test_fid_agrees_with_the_eigenvalue_form(n, m, D):
    R, G = gaussians(n, m, D, shift=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert fid(R, G) == pytest.approx(eigenvalue_form(R, G), rel=1e-4)


def test_fid_of_translated_and_of_whitened_samples():
    R, _ = gaussians(400, 1, 10)
    a = np.arange(10) / 10
    assert fid(R, R + a) == pytest.approx(a @ a, abs=1e-9)
    assert fid(R, R) == pytest.approx(0, abs=1e-10)
    big = gaussians(40_000, 40_000, 4, shift=0.5)
    assert fid(*big) == pytest.approx(1.0, abs=0.03)
    assert abs(fid_infinity(*gaussians(800, 800, 10), random_state=0)) < fid(*gaussians(800, 800, 10))


def test_fid_warns_of_rank_deficiency():
    with pytest.warns(UserWarning, match="rank-deficient"):
        fid(*gaussians(20, 200, 30))


def test_kid_is_the_u_statistic_over_all_pairs():
    R, G = gaussians(60, 45, 12, shift=0.2)

    def k(A, B):
        return (A @ B.T / 12 + 1) ** 3

    n, m = 60, 45
    expected = (k(R, R).sum() - np.trace(k(R, R))) / (n * (n - 1)) + (k(G, G).sum() - np.trace(k(G, G))) / (m * (m - 1))
    assert kid(R, G) == pytest.approx(expected - 2 * k(R, G).mean())
    rbf = lambda A, B: np.exp(-(cdist(A, B) ** 2) / 18)  # noqa: E731
    expected = (rbf(R, R).sum() - n) / (n * (n - 1)) + (rbf(G, G).sum() - m) / (m * (m - 1)) - 2 * rbf(R, G).mean()
    assert cmmd(R, G, bandwidth=3.0) == pytest.approx(expected)
    assert cmmd(R, R + 3) > cmmd(R, R + 1) > 0


def test_sliced_distance_of_a_translation_is_its_square():
    R, _ = gaussians(200, 1, 6)
    a = np.array([2.0, 0, 0, 0, 0, 0])
    assert sliced_w2(R, R + a, n_projections=4000, random_state=0) == pytest.approx(4.0, rel=0.1)


def test_soft_and_clipped_balls_follow_their_definitions():
    R, G = gaussians(90, 70, 8, shift=0.4)
    own = [np.sort(cdist(A, A), 1) for A in (R, G)]
    full = cdist(R, G)
    reach = [1.2 * o[:, 4].mean() for o in own]
    inside = [np.maximum(0, 1 - full / r) for r in reach]
    expected = (1 - np.prod(1 - inside[0], axis=0)).mean(), (1 - np.prod(1 - inside[1], axis=1)).mean()
    assert p_precision_recall(R, G) == pytest.approx(expected)

    k, radii = 5, own[0][:, 5]
    clipped = np.minimum(radii, np.median(radii))
    real = cdist(R, R)
    np.fill_diagonal(real, np.inf)
    raw = (
        np.minimum((full < clipped[:, None]).sum(0), k).mean() / np.minimum((real <= clipped[:, None]).sum(0), k).mean()
    )
    density, coverage = clipped_density_coverage(R, G, k)
    assert density == pytest.approx(min(raw, 1))
    rng = np.random.default_rng(0)
    pool = rng.normal(size=(2000, 4))
    half = np.vstack([pool[1000:1500], pool[1500:] + 50])  # half of the samples are bad
    assert clipped_density_coverage(pool[:1000], half) == pytest.approx((0.5, 0.5), abs=0.06)
    assert clipped_density_coverage(pool[:1000], pool[1000:])[1] == pytest.approx(1, abs=0.08)
    assert coverage < 1


# --- constructions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
@pytest.mark.parametrize(("n", "D"), [(120, 20), (30, 60)])
def test_moment_matched_has_the_moments_and_no_frechet_distance(kind, n, D):
    R = np.random.default_rng(0).exponential(size=(n, D))
    R[:, 3] = 1.0  # a constant feature
    G = moment_matched(R, kind, random_state=0)
    np.testing.assert_allclose(G.mean(0), R.mean(0), atol=1e-12)
    np.testing.assert_allclose(np.cov(G.T), np.cov(R.T), atol=1e-10)
    assert not np.allclose(G, R)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert abs(fid(R, G)) <= 1e-6 * np.trace(np.cov(R.T))


def test_other_constructions():
    R, _ = gaussians(50, 1, 5)
    M = midpoints(R, random_state=0)
    pairs = {tuple(np.round((R[i] + R[j]) / 2, 9)) for i in range(50) for j in range(50) if i != j}
    assert all(tuple(np.round(row, 9)) in pairs for row in M)
    delta = np.median(knn(R, k=1)[0])
    moved = shell_noise(R, 0.5, random_state=0) - R
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 0.5 * delta)
    labels = np.repeat(["a", "b", "c"], [5, 6, 7])
    assert set(labels[dropped_modes(labels, ["a", "c"])]) == {"a", "c"}
    assert len(np.unique(few_prototypes(R, 4, random_state=0), axis=0)) <= 4
    assert len(few_prototypes(R, 4)) == 50
    for call in (
        lambda: dropped_modes(labels, ["z"]),
        lambda: few_prototypes(R, 51),
        lambda: moment_matched(R, "cauchy"),
    ):
        with pytest.raises(ValueError):
            call()


def test_balls_are_larger_than_the_data():
    rng = np.random.default_rng(0)
    found = [ball_inflation(rng.random((600, d)), random_state=0) for d in (2, 6)]
    assert found[0].dimension == pytest.approx(2, abs=0.3)
    for one in found:  # V_1 / V_5 is Beta(1, 4) in every dimension: the median ratio is 6.3, the mean infinite
        assert one.volume_excess_median == pytest.approx(1 / (1 - 0.5**0.25), rel=0.25)
        assert one.volume_excess > one.volume_excess_median
    assert found[1].far_share > 0.3
    assert 0 <= found[1].probes_rejected <= found[1].probes_accepted <= 1
    with pytest.raises(ValueError, match="q"):
        ball_inflation(rng.normal(size=(50, 3)), q=1.5)


def test_stability_table():
    rng = np.random.default_rng(0)
    pools = [rng.normal(size=(200, 5)) for _ in range(3)]
    table, variation = stability(*pools[:2], holdout=pools[2], sizes=(60, 120, 999), ks=(1, 5), random_state=0)
    assert len(table) == 8
    assert variation["coverage_ratio"] < variation["recall"]
    with pytest.raises(ValueError, match="sizes"):
        stability(*pools[:2], holdout=pools[2], sizes=(999,))


# --- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input():
    real, fresh = gaussians(60, 30, 8)
    held = gaussians(30, 1, 8, 3)[0]
    metric = ChamferMetric().fit(real, holdout=held)
    spoilt = fresh.copy()
    spoilt[4, 2] = np.inf
    for call, message in (
        (lambda: metric.score(fresh[:, :5]), r"\(30, 5\) and \(60, 8\)"),
        (lambda: chamfer(real, fresh[:, :5]), r"\(60, 8\) and \(30, 5\)"),
        (lambda: metric.score(spoilt), "G: row 4 holds NaN or infinity"),
        (lambda: ChamferMetric().fit(real, holdout=spoilt), "holdout: row 4"),
        (lambda: ChamferMetric(k=60).fit(real, holdout=held), "fewer than the 60 rows"),
        (lambda: ChamferMetric(k=31).fit(real, holdout=held), "the 30 rows of the hold-out"),
        (lambda: ChamferMetric(k=20).fit(real, holdout=held).score(fresh[:9]), "the 9 row"),
        (lambda: chamfer(real, fresh, 31), "k: got 31; expected 1 to 30"),
        (lambda: metric.score(fresh[:0]), "n_samples = 0"),
        (lambda: chamfer(real[:0], fresh), "n_samples = 0"),
        (lambda: ChamferMetric().fit(np.ones((20, 4)), holdout=held[:, :4]), "constant"),
        (lambda: ChamferMetric().fit(np.repeat(real[:2], 10, 0), holdout=real[:2]), "reference distance is zero"),
        (lambda: ChamferMetric(k=0).fit(real), "k: got 0"),
        (lambda: ChamferMetric(power=3).fit(real), "power: got 3"),
        (lambda: ChamferMetric(reference="x").fit(real), "reference: got 'x'"),
        (lambda: ChamferMetric(size="x").fit(real), "size"),
        (lambda: ChamferMetric(metric="l1").fit(real), "metric"),
        (lambda: ChamferMetric(trim=0.9).fit(real), "trim"),
        (lambda: ChamferMetric(n_boot=3).fit(real), "n_boot"),
        (lambda: metric.score(fresh, also=("is",)), "also"),
        (lambda: prdc(real, fresh, 60), "k: got 60"),
        (lambda: cmmd(np.ones((5, 2)), fresh[:, :2]), "bandwidth"),
        (lambda: compare_generators(real, fresh, fresh[:1], holdout=held, k=2), "smaller sample"),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            with pytest.raises(ValueError, match=message):
                call()


def test_images_where_features_are_expected():
    images = np.zeros((10, 28, 28, 1), dtype=np.uint8)
    with pytest.raises(TypeError, match="FeatureExtractor"):
        ChamferMetric().fit(images)
    with pytest.raises(TypeError, match="FeatureExtractor"):
        ChamferMetric().fit("some/folder")


def test_shared_rows_are_counted():
    real, held = gaussians(60, 30, 8)
    held[:4] = real[:4]
    with pytest.warns(UserWarning, match="share 4 row"):
        ChamferMetric().fit(real, holdout=held)
    with pytest.warns(UserWarning, match="holdout and train share 30 row"):
        ChamferMetric().fit(real[4:], holdout=held, train=held)


@pytest.mark.parametrize("first", ["from gnomon.geometry import chamfer", "import gnomon.geometry.chamfer.method"])
def test_the_public_name_is_the_function_in_both_orders(first):
    code = f"{first}\nimport gnomon.geometry.chamfer.baselines\nfrom gnomon.geometry import chamfer\nprint(chamfer([[0.0]], [[1.0]]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2.0"
