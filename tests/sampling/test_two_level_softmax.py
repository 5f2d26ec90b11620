"""Oracles of two-level softmax sampling: hand cases, exact identities, bounds, laws of the draws, bad input."""

from __future__ import annotations

import builtins
import copy
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_softmax, logsumexp
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from gnomon.sampling import TwoLevelSoftmax, sampled_softmax_loss, two_level_logits
from gnomon.sampling.two_level_softmax.baselines import (
    ExactSoftmax,
    MidxUniform,
    Popularity,
    TopSoftmax,
    Uniform,
    VonMisesFisher,
)
from gnomon.sampling.two_level_softmax.method import cluster_divergence, kl_bound, tv_bound

CORRECTIONS = ("none", "size", "size_dispersion", "exact")
CALIBRATED = ("calibrated", "offset")
SIMPLE = ("isotropic", "diagonal", "lowrank", "full")
# every method as the parameters that make it
METHODS = {
    "2LS": {"correction": "none"},
    "S-2LS": {"correction": "size"},
    **{m: {"correction": "size_dispersion", "dispersion": m} for m in (*SIMPLE, *CALIBRATED)},
    "exact": {"correction": "exact"},
}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def mixture(rng, n=400, d=6, K=12, spread=0.3):
    """Items in clusters of unequal size and spread, every cluster non-empty."""
    share = rng.dirichlet(np.ones(K))
    labels = np.concatenate([np.arange(K), rng.choice(K, n - K, p=share)])
    scale = spread * rng.uniform(0.2, 2, K)
    return rng.normal(size=(K, d))[labels] + scale[labels, None] * rng.normal(size=(n, d)), labels


def fitted(V, labels, U, **parameters):
    return TwoLevelSoftmax(**parameters).fit(V, labels).fit_calibration(U)


def chi_square(ids, p, smallest=5.0):
    """p-value of the draws under probabilities p, rare items pooled."""
    expected = len(ids) * p
    counts = np.bincount(ids, minlength=len(p))
    rare = expected < smallest
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    if wanted[-1] < smallest:
        observed, wanted = observed[:-1], wanted[:-1]
        wanted *= observed.sum() / wanted.sum()
    return stats.chisquare(observed, wanted).pvalue


# --- hand cases ------------------------------------------------------------------------------------------------------


def test_hand_case_three_and_one():
    V = np.array([[0.0], [0.0], [0.0], [np.log(2)]])
    u = np.array([[1.0]])
    laws = {m: np.exp(TwoLevelSoftmax(**p).fit(V, [0, 0, 0, 1]).cluster_log_prob(u))[0]
            for m, p in METHODS.items() if m not in CALIBRATED}  # fmt: skip
    np.testing.assert_allclose(laws["2LS"], [1 / 3, 2 / 3])
    for name in ("S-2LS", "isotropic", "diagonal", "lowrank", "full", "exact"):
        np.testing.assert_allclose(laws[name], [0.6, 0.4], err_msg=name)


@given(a=st.floats(0, 5))
def test_hand_case_pair(a):
    sampler = TwoLevelSoftmax(correction="exact").fit([[-a], [a]], [0, 0])
    exact = sampler.cluster_statistics([[1.0]])
    assert exact.log_z[0, 0] == pytest.approx(np.log(2 * np.cosh(a)))
    assert exact.variance[0, 0] == pytest.approx(a**2)
    sizes = np.array([2])
    assert two_level_logits(exact.mean, sizes, correction="size")[0, 0] == pytest.approx(np.log(2))
    second = two_level_logits(exact.mean, sizes, exact.variance)[0, 0]
    assert second == pytest.approx(np.log(2) + a**2 / 2)
    assert second >= exact.log_z[0, 0] - 1e-12


def test_gaussian_cluster_error_falls_with_its_size(rng):
    errors = []
    for n in (10**2, 10**4, 10**6):
        V = rng.normal(size=(n, 1))
        sampler = TwoLevelSoftmax(dispersion="full").fit(V, np.zeros(n, dtype=int))
        exact = sampler.cluster_statistics(np.ones((1, 1)))
        errors.append(abs(exact.log_z - two_level_logits(exact.mean, sampler.partition_.sizes, exact.variance))[0, 0])
    assert errors[-1] < 0.01
    assert errors[-1] < errors[0]


def test_identical_items_in_each_cluster(rng):
    labels = np.repeat(np.arange(5), [1, 2, 3, 10, 40])
    V, U = rng.normal(size=(5, 3))[labels], rng.normal(size=(4, 3))
    for correction in ("size", "size_dispersion"):
        np.testing.assert_allclose(TwoLevelSoftmax(correction).fit(V, labels).divergence(U).kl, 0, atol=1e-12)
    assert (TwoLevelSoftmax("none").fit(V, labels).divergence(U).kl > 0.01).all()


def test_zero_and_small_inverse_temperature(rng):
    V, labels = mixture(rng)
    U = rng.normal(size=(3, 6))
    for name, p in METHODS.items():
        sampler = fitted(V, labels, U, beta=0.0, **p)
        if name == "2LS":
            np.testing.assert_allclose(sampler.cluster_log_prob(U), -np.log(12))
        else:
            np.testing.assert_allclose(sampler.log_prob(U), -np.log(400), atol=1e-12, err_msg=name)
        if name != "2LS":
            assert (fitted(V, labels, U, beta=1e-4, **p).divergence(U).kl < 1e-7).all()


def test_singletons_are_exact(rng):
    V, U = rng.normal(size=(30, 4)), rng.normal(size=(3, 4))
    expected = log_softmax(2 * U @ V.T, axis=1)
    for name, p in METHODS.items():
        sampler = fitted(V, np.arange(30), U, beta=2.0, **p)
        np.testing.assert_allclose(sampler.log_prob(U), expected, atol=1e-10, err_msg=name)


# --- identities ------------------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), beta=st.floats(0, 10))
def test_law_is_normalised_and_divergences_agree(seed, beta):
    rng = np.random.default_rng(seed)
    V, labels = mixture(rng, n=60, K=5)
    U = rng.normal(size=(3, 6))
    log_p = log_softmax(beta * U @ V.T, axis=1)
    for name, parameters in METHODS.items():
        sampler = fitted(V, labels, U, beta=beta, **parameters)
        log_q = sampler.log_prob(U)
        np.testing.assert_allclose(logsumexp(log_q, axis=1), 0, atol=1e-10, err_msg=name)
        np.testing.assert_allclose(sampler.log_prob(U, np.arange(60)), log_q, atol=1e-10)
        found = sampler.divergence(U)
        p, q = np.exp(log_p), np.exp(log_q)
        np.testing.assert_allclose(found.kl, (p * (log_p - log_q)).sum(1), atol=1e-10, err_msg=name)
        np.testing.assert_allclose(found.kl_reverse, (q * (log_q - log_p)).sum(1), atol=1e-10, err_msg=name)
        np.testing.assert_allclose(found.tv, np.abs(p - q).sum(1) / 2, atol=1e-10, err_msg=name)
        chi2 = np.expm1(np.minimum(logsumexp(2 * log_p - log_q, axis=1), 700))
        np.testing.assert_allclose(np.minimum(found.chi2, np.expm1(700)), chi2, rtol=1e-6, atol=1e-9)
        assert (found.kl <= kl_bound(found.range) + 1e-10).all()
        assert (found.tv <= tv_bound(found.range) + 1e-10).all()
        for exact in (True, False):
            promised = sampler.bounds(U, exact=exact)
            assert (found.range <= promised.range + 1e-8).all(), name
            assert (found.kl <= promised.kl + 1e-8).all()
            assert (found.tv <= promised.tv + 1e-8).all()
        if name == "exact":
            np.testing.assert_allclose(log_q, log_p, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), beta=st.floats(0.01, 30), n=st.integers(1, 40))
def test_log_errors_lie_where_hoeffding_says(seed, beta, n):
    rng = np.random.default_rng(seed)
    V = rng.standard_t(2, size=(n, 2))
    exact = TwoLevelSoftmax(beta=beta).fit(V, np.zeros(n, dtype=int)).cluster_statistics(rng.normal(size=(4, 2)))
    psi = exact.log_z - np.log(n) - beta * exact.mean
    R = beta * exact.spread
    tolerance = 1e-9 * (1 + R**2)
    assert (psi >= -tolerance).all()
    assert (psi <= R**2 / 8 + tolerance).all()
    assert (np.abs(psi - beta**2 * exact.variance / 2) <= R**3 / (36 * np.sqrt(3)) + tolerance).all()


def test_a_priori_ranges_of_the_sheet(rng):
    V, labels = mixture(rng)
    U = rng.normal(size=(5, 6))
    sizes = np.bincount(labels)
    bounds = {m: fitted(V, labels, U, beta=0.5, **p).bounds(U) for m, p in METHODS.items()}
    R = bounds["2LS"].R
    np.testing.assert_allclose(bounds["S-2LS"].range, (R**2) / 8)
    assert (bounds["2LS"].range <= np.log(sizes.max() / sizes.min()) + R**2 / 8 + 1e-12).all()
    assert (bounds["full"].range <= R**3 / (18 * np.sqrt(3)) + 1e-12).all()
    tight = 9 * np.sqrt(3) / 4 > R
    assert tight.any()
    assert (bounds["full"].range[tight] < bounds["S-2LS"].range[tight]).all()
    np.testing.assert_array_equal(bounds["exact"].kl, 0)


def test_clip_holds_the_log_error_below_its_ceiling(rng):
    V, labels = mixture(rng, spread=0.1)
    V, sample, U = V.astype(float), 0.01 * rng.normal(size=(5, 6)), rng.normal(size=(5, 6))
    sampler = TwoLevelSoftmax(beta=3.0, dispersion="calibrated").fit(V, labels).fit_calibration(sample)
    sampler.calibration_ = np.array([40.0, 40.0])  # far too large
    p, half = sampler.partition_, 3.0**2 / 2
    ceiling = np.multiply.outer((2 * 3.0 * np.linalg.norm(U, axis=1)) ** 2 / 8, p.radii**2)
    exact = sampler.cluster_statistics(U)
    errors = {}
    for clip in (True, False):
        sampler.clip = clip
        errors[clip] = exact.log_z - sampler._logits(U)
        assert ((half * sampler._variance(U) <= ceiling + 1e-12).all()) == clip
    assert (np.abs(errors[True]) <= ceiling + 1e-9).all()
    for model in SIMPLE:  # never bind
        sampler.set_params(dispersion=model, clip=False)
        assert (half * sampler._variance(U) <= ceiling + 1e-9).all()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_invariances(seed):
    rng = np.random.default_rng(seed)
    V, labels = mixture(rng, n=100, K=6)
    U, t = rng.normal(size=(3, 6)), 3 * rng.normal(size=6)
    turn = stats.ortho_group(6, seed=int(seed % 2**31)).rvs()
    for name, p in METHODS.items():
        base = fitted(V, labels, U, beta=1.5, **p).log_prob(U)
        shifted = fitted(V + t, labels, U, beta=1.5, **p).log_prob(U)
        np.testing.assert_allclose(shifted, base, atol=1e-8, err_msg=f"{name}: shift")
        if name not in ("diagonal", "calibrated"):
            turned = fitted(V @ turn, labels, U @ turn, beta=1.5, **p).log_prob(U @ turn)
            np.testing.assert_allclose(turned, base, atol=1e-8, err_msg=f"{name}: rotation")
        scaled = fitted(V, labels, 2 * U, beta=0.75, **p).log_prob(2 * U)
        np.testing.assert_allclose(scaled, base, atol=1e-8, err_msg=f"{name}: scale")


def test_splitting_a_cluster_of_identical_items(rng):
    sizes = [4, 6, 2]
    labels = np.repeat(np.arange(3), sizes)
    split = labels.copy()
    split[:2] = 3
    V, U = rng.normal(size=(3, 4))[labels], rng.normal(size=(2, 4))
    for correction in ("size", "size_dispersion"):
        np.testing.assert_allclose(TwoLevelSoftmax(correction).fit(V, split).log_prob(U),
                                   TwoLevelSoftmax(correction).fit(V, labels).log_prob(U), atol=1e-12)  # fmt: skip
    odds = []
    for given_labels in (labels, split):
        q = np.exp(TwoLevelSoftmax("none").fit(V, given_labels).log_prob(U))
        odds.append(q[:, :4].sum(1) / q[:, 4:].sum(1))
    np.testing.assert_allclose(odds[1], 2 * odds[0])


def test_equal_sizes_make_size_correction_idle(rng):
    V, U = rng.normal(size=(60, 4)), rng.normal(size=(3, 4))
    for labels in (np.arange(60) % 6, None):
        laws = [TwoLevelSoftmax(c, n_clusters=6, clustering="balanced").fit(V, labels).log_prob(U)
                for c in ("none", "size")]  # fmt: skip
        np.testing.assert_allclose(*laws, atol=1e-12)


def test_low_rank_reaches_both_ends(rng):
    V, labels = mixture(rng)
    U = rng.normal(size=(4, 6))
    sampler = TwoLevelSoftmax(dispersion="lowrank", rank=6).fit(V, labels)
    np.testing.assert_allclose(sampler._variance(U), sampler.cluster_statistics(U).variance, rtol=1e-9)
    errors = []
    exact = sampler.cluster_statistics(U).variance
    for rank in (1, 3, 5, 6):
        found = TwoLevelSoftmax(dispersion="lowrank", rank=rank).fit(V, labels)._variance(U)
        errors.append(np.abs(found - exact).sum())
    assert errors[-1] < 1e-9 < errors[0]


def test_calibration_is_the_least_squares_fit(rng):
    V, labels = mixture(rng)
    U = rng.normal(size=(50, 6))
    sampler = TwoLevelSoftmax(beta=0.7).fit(V, labels)
    assert sampler._model() == "isotropic"
    sampler.fit_calibration(U)
    assert sampler._model() == "calibrated"
    exact = sampler.cluster_statistics(U)
    psi = exact.log_z - np.log(np.bincount(labels)) - 0.7 * exact.mean
    np.testing.assert_allclose(0.7**2 / 2 * sampler.offset_, psi.mean(0), rtol=1e-9)

    def loss(a):
        sampler.calibration_ = np.asarray(a)
        return np.sum((psi - 0.7**2 / 2 * sampler._variance(U)) ** 2)

    best = sampler.calibration_.copy()
    at_best = loss(best)
    assert (best >= 0).all()
    for step in np.array([[0.05, 0], [-0.05, 0], [0, 0.05], [0, -0.05]]):
        assert loss(np.maximum(best + step, 0)) >= at_best - 1e-9


# --- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("queries", [1, 6])
def test_draws_follow_their_log_prob(rng, name, queries):
    V, labels = mixture(rng, n=60, K=6)
    U = rng.normal(size=(queries, 6))
    sampler = fitted(V, labels, U, random_state=1, **METHODS[name])
    ids, log_q = sampler.sample(U, 100_000 // queries)
    np.testing.assert_allclose(log_q[:, :50], sampler.log_prob(U, ids[:, :50]), atol=1e-9)
    law = np.exp(sampler.log_prob(U))
    assert min(chi_square(ids[b], law[b]) for b in range(queries)) > 1e-3 / queries


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", METHODS)
def test_compiled_path_is_the_grouped_one(rng, name, dtype):
    V, labels = mixture(rng)
    U = rng.normal(size=(5, 6)).astype(dtype)
    sampler = fitted(V.astype(dtype), labels, U, beta=2.0, **METHODS[name])
    first, second = rng.random((2, 5, 40))
    one, log_one = sampler._draw_singly(U, first, second)
    many, log_many = sampler._draw_grouped(U, first, second)
    assert np.mean(one == many) >= (1.0 if dtype == np.float64 else 0.99)
    same = one == many
    np.testing.assert_allclose(log_one[same], log_many[same], atol=1e-10 if dtype == np.float64 else 1e-4)


def test_without_replacement_is_the_law_of_successive_draws(rng):
    V, U = rng.normal(size=(5, 2)), rng.normal(size=(1, 2))
    sampler = TwoLevelSoftmax(random_state=3).fit(V, [0, 0, 1, 1, 1])
    q = np.exp(sampler.log_prob(U))[0]
    ids, log_q = sampler.sample(np.repeat(U, 20_000, axis=0), 2, replace=False)
    assert (ids[:, 0] != ids[:, 1]).all()
    np.testing.assert_allclose(np.exp(log_q), q[ids])
    pairs = np.array([[0.0 if i == j else q[i] * q[j] / (1 - q[i]) for j in range(5)] for i in range(5)])
    kept = pairs.ravel() > 0
    counts = np.bincount(ids[:, 0] * 5 + ids[:, 1], minlength=25)[kept]
    assert stats.chisquare(counts, 20_000 * pairs.ravel()[kept]).pvalue > 1e-3


def test_without_replacement_can_take_every_item(rng):
    V, U = 50 * rng.normal(size=(40, 3)), rng.normal(size=(3, 3))  # some probabilities underflow
    sampler = TwoLevelSoftmax().fit(V)
    ids, log_q = sampler.sample(U, 40, replace=False)
    np.testing.assert_array_equal(np.sort(ids, axis=1), np.tile(np.arange(40), (3, 1)))
    assert np.isfinite(log_q).all()


def test_metropolis_leaves_the_softmax_invariant(rng):
    V, labels = mixture(rng, n=50, K=8, spread=0.6)
    U = rng.normal(size=(1, 6))
    sampler = TwoLevelSoftmax("none", random_state=5).fit(V, labels)
    exact = TwoLevelSoftmax("exact").fit(V, labels)
    q, p = np.exp(sampler.cluster_log_prob(U)[0]), np.exp(exact.cluster_log_prob(U)[0])
    delta = sampler.cluster_statistics(U).log_z[0] - sampler._logits(U)[0]
    move = q[None, :] * np.minimum(1, np.exp(delta[None, :] - delta[:, None]))
    np.fill_diagonal(move, 0)
    np.fill_diagonal(move, 1 - move.sum(1))
    np.testing.assert_allclose(p @ move, p, atol=1e-12)
    law, factor = q, 1 - 1 / (p / q).max()
    for t in range(1, 40):
        law = law @ move
        assert np.abs(law - p).sum() / 2 <= factor**t + 1e-12
    # what is drawn after t steps is q move^t, and after many the softmax
    for steps, chains in ((2, 100_000), (60, 100_000)):
        ids, log_q = sampler.sample(U, chains, corrected=True, steps=steps)
        clusters = sampler.labels_[ids[0]]
        assert chi_square(clusters, q @ np.linalg.matrix_power(move, steps)) > 1e-3
        np.testing.assert_allclose(log_q[0, :20], sampler.log_prob(U, ids[0, :20])[0], atol=1e-9)
    assert chi_square(ids[0], np.exp(log_softmax(U @ V.T, axis=1)[0])) > 1e-3
    uncorrected, _ = sampler.sample(U, 100_000)
    assert chi_square(uncorrected[0], np.exp(log_softmax(U @ V.T, axis=1)[0])) < 1e-6


def test_many_queries_are_drawn_in_pieces(rng, monkeypatch):
    V, labels = mixture(rng)
    U = rng.normal(size=(23, 6))
    sampler = TwoLevelSoftmax().fit(V, labels)
    whole = sampler.divergence(U)
    monkeypatch.setattr("gnomon.sampling.two_level_softmax.method.CHUNK", 50)
    np.testing.assert_allclose(sampler.divergence(U), whole, atol=1e-12)
    for options in ({}, {"replace": False}, {"corrected": True, "steps": 3}):
        ids, log_q = sampler.sample(U, 7, **options)
        np.testing.assert_allclose(log_q, sampler.log_prob(U, ids), atol=1e-9)


def test_importance_weights_estimate_the_softmax_mean(rng):
    V, labels = mixture(rng)
    U = rng.normal(size=(1, 6))
    g = rng.normal(size=400)
    truth = np.exp(log_softmax(U @ V.T, axis=1)[0]) @ g
    ids, log_q = TwoLevelSoftmax("none", random_state=0).fit(V, labels).sample(U, 100_000)
    log_w = (V @ U[0])[ids[0]] - log_q[0]
    w = np.exp(log_w - logsumexp(log_w))
    error = np.sqrt(np.sum(w**2 * (g[ids[0]] - truth) ** 2))
    assert abs(w @ g[ids[0]] - truth) < 4 * error


def test_seeds_repeat_draws(rng):
    V, labels = mixture(rng)
    U = rng.normal(size=(3, 6))
    draws = [TwoLevelSoftmax(random_state=7).fit(V, labels).sample(U, 5)[0] for _ in range(2)]
    np.testing.assert_array_equal(*draws)
    sampler = TwoLevelSoftmax(random_state=7).fit(V, labels)
    first, second = sampler.sample(U, 20)[0], sampler.sample(U, 20)[0]
    assert (first != second).any()
    np.testing.assert_array_equal(*(sampler.sample(U, 5, random_state=1)[0] for _ in range(2)))


def test_extreme_scores_do_not_overflow(rng):
    V, U = 100 * rng.normal(size=(50, 4)), 10 * rng.normal(size=(3, 4))
    for name, p in METHODS.items():
        sampler = fitted(V, np.arange(50) % 7, U, beta=10.0, **p)
        _, log_q = sampler.sample(U, 10)
        assert np.isfinite(log_q).all(), name
        assert np.isfinite(sampler.divergence(U).kl).all(), name


# --- items that come and go ------------------------------------------------------------------------------------------


def described(sampler):
    """Everything known of the clusters."""
    p = sampler.partition_
    return {
        "n": p.sizes,
        "mu": p.centroids,
        "D": p.variances,
        "radius": p.radii,
        "lowrank": sampler._variance(p.centroids),
    }


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_changes_equal_a_refit(seed):
    rng = np.random.default_rng(seed)
    V, labels = mixture(rng, n=100, K=6)
    extra, where = rng.normal(size=(15, 6)), rng.integers(6, size=15)
    sampler = TwoLevelSoftmax(dispersion="lowrank", rank=2).fit(V, labels)
    sampler._variance(V[:1])
    new = sampler.add(extra, where)
    np.testing.assert_array_equal(new, np.arange(100, 115))
    gone = rng.choice(
        np.setdiff1d(np.arange(115), [np.flatnonzero(labels == c)[0] for c in range(6)]), 30, replace=False
    )
    sampler.remove(gone)
    stay = np.setdiff1d(np.arange(115), gone)
    refit = TwoLevelSoftmax(dispersion="lowrank", rank=2).fit(
        np.concatenate([V, extra])[stay], np.concatenate([labels, where])[stay])  # fmt: skip
    for name, value in described(refit).items():
        np.testing.assert_allclose(described(sampler)[name], value, atol=1e-10, err_msg=name)
    U = rng.normal(size=(2, 6))
    np.testing.assert_array_equal(sampler.ids_, stay)
    np.testing.assert_allclose(sampler.log_prob(U), refit.log_prob(U), atol=1e-10)
    assert sampler.add(extra[:1])[0] == 115  # never used again


def test_moving_items(rng):
    V, labels = mixture(rng, n=100, K=6)
    sampler = TwoLevelSoftmax().fit(V, labels)
    target = sampler.partition_.centroids[4]
    sampler.partial_update([30, 50], np.stack([target, target]))
    np.testing.assert_array_equal(sampler.ids_, np.arange(100))
    changed = V.copy()
    changed[[30, 50]] = target
    moved = labels.copy()
    moved[[30, 50]] = 4
    np.testing.assert_array_equal(sampler.labels_, moved)
    U = rng.normal(size=(2, 6))
    np.testing.assert_allclose(sampler.log_prob(U), TwoLevelSoftmax().fit(changed, moved).log_prob(U), atol=1e-10)
    np.testing.assert_allclose(sampler.log_prob(U, [30]), sampler.log_prob(U, [50]))  # the same vector now


def test_new_items_go_to_the_nearest_centroid(rng):
    V, labels = mixture(rng)
    sampler = TwoLevelSoftmax().fit(V, labels)
    centroids = sampler.partition_.centroids.copy()
    new = rng.normal(size=(20, 6))
    ids = sampler.add(new)
    expected = np.argmin(((new[:, None] - centroids[None]) ** 2).sum(2), axis=1)
    np.testing.assert_array_equal(sampler.labels_[ids], expected)


def test_an_emptied_cluster_is_dropped_and_calibration_warns(rng):
    V, labels = mixture(rng, n=100, K=6)
    names = np.array(list("abcdef"))[labels]
    sampler = TwoLevelSoftmax(dispersion="offset").fit(V, names).fit_calibration(V[:10])
    before = sampler.offset_.copy()
    with pytest.warns(UserWarning, match="fit_calibration"):
        sampler.remove(np.flatnonzero(labels == 2))
    assert sampler.n_clusters_ == 5
    assert list(sampler.cluster_names_) == list("abdef")
    np.testing.assert_array_equal(sampler.offset_, np.delete(before, 2))
    with pytest.warns(UserWarning, match="fit_calibration"):
        new = sampler.add(V[:1], ["e"])
    assert sampler.cluster_names_[sampler.labels_[sampler.ids_ == new[0]][0]] == "e"
    with pytest.raises(ValueError, match=r"labels: no cluster bears \['c'\]"):
        sampler.add(V[:1], ["c"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TwoLevelSoftmax().fit(V, labels).add(V[:1])


# --- partitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clustering", ["kmeans", "spherical", "balanced"])
def test_clusterings(rng, clustering):
    V, _ = mixture(rng)
    sampler = TwoLevelSoftmax(clustering=clustering).fit(V)
    assert sampler.n_clusters_ == 20
    p = sampler.partition_
    for c, block in enumerate(p):
        np.testing.assert_allclose(p.centroids[c], block.mean(0), atol=1e-12)  # true means, also where spherical
        np.testing.assert_allclose(p.variances[c], block.var(0), atol=1e-12)
        assert p.radii[c] == pytest.approx(np.linalg.norm(block - block.mean(0), axis=1).max())
    np.testing.assert_array_equal(V[p.ids], p.items)
    if clustering == "balanced":
        assert set(TwoLevelSoftmax(clustering="balanced", n_clusters=7).fit(V).partition_.sizes) == {57, 58}


def test_k_means_without_faiss(rng, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "faiss":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    V, _ = mixture(rng)
    assert TwoLevelSoftmax().fit(V).n_clusters_ == 20


def test_empty_clusters_of_k_means_are_dropped(rng):
    V = np.repeat(rng.normal(size=(3, 4)), 20, axis=0)  # 3 distinct points, 8 clusters
    with pytest.warns(UserWarning, match="dropped"):
        sampler = TwoLevelSoftmax(n_clusters=8).fit(V)
    assert sampler.n_clusters_ <= 3
    assert (sampler.divergence(V[:2]).kl < 1e-12).all()


def test_no_copy_of_grouped_items(rng, tmp_path):
    V = np.ascontiguousarray(rng.normal(size=(60, 4)).astype(np.float32))
    labels = np.repeat(np.arange(6), 10)
    assert TwoLevelSoftmax(copy=False).fit(V, labels).partition_.items is V or np.shares_memory(
        TwoLevelSoftmax(copy=False).fit(V, labels).partition_.items, V)  # fmt: skip
    assert not np.shares_memory(TwoLevelSoftmax().fit(V, labels).partition_.items, V)
    np.save(tmp_path / "items.npy", V)
    mapped = np.load(tmp_path / "items.npy", mmap_mode="r")
    sampler = TwoLevelSoftmax(copy=False).fit(mapped, labels)
    assert np.shares_memory(sampler.partition_.items, mapped)
    ids, _ = sampler.sample(V[:2], 5)
    assert ids.shape == (2, 5)


def test_one_item_and_duplicates(rng):
    sampler = TwoLevelSoftmax().fit([[1.0, 2.0]])
    ids, log_q = sampler.sample([[0.5, 0.5]], 3)
    np.testing.assert_array_equal(ids, 0)
    np.testing.assert_array_equal(log_q, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same = TwoLevelSoftmax(n_clusters=4).fit(np.ones((30, 3)))
    np.testing.assert_allclose(same.log_prob(rng.normal(size=(2, 3))), -np.log(30))


def test_fewer_items_than_dimensions_and_constant_features(rng):
    V = np.concatenate([rng.normal(size=(7, 50)), np.ones((7, 3))], axis=1)
    U = rng.normal(size=(2, 53))
    for name, p in METHODS.items():
        sampler = fitted(V, np.arange(7) % 2, U, beta=0.3, **p)
        np.testing.assert_allclose(logsumexp(sampler.log_prob(U), axis=1), 0, atol=1e-10, err_msg=name)
    exact = TwoLevelSoftmax(dispersion="lowrank", rank=4).fit(
        V, np.arange(7) % 2
    )  # 3 or 4 items span at most 3 directions
    np.testing.assert_allclose(exact._variance(U), exact.cluster_statistics(U).variance, rtol=1e-9)


def test_no_queries(rng):
    ids, log_q = TwoLevelSoftmax().fit(rng.normal(size=(20, 3))).sample(np.empty((0, 3)), 4)
    assert ids.shape == log_q.shape == (0, 4)


def test_effective_rank(rng):
    line = rng.normal(size=(50, 1)) * np.ones(8)
    ball = rng.normal(size=(5000, 8))
    ranks = TwoLevelSoftmax().fit(np.concatenate([line, ball, ball[:1]]), [0] * 50 + [1] * 5000 + [2]).effective_ranks()
    np.testing.assert_allclose(ranks, [1, 8, 0], rtol=0.02)


# --- torch, copies, files --------------------------------------------------------------------------------------------


def test_torch_in_torch_out(rng):
    V, labels = mixture(rng)
    U = rng.normal(size=(3, 6))
    plain = TwoLevelSoftmax(random_state=0).fit(V, labels)
    sampler = TwoLevelSoftmax(random_state=0).fit(torch.from_numpy(V), torch.from_numpy(labels))
    ids, log_q = sampler.sample(torch.from_numpy(U), 4)
    assert isinstance(ids, torch.Tensor)
    assert isinstance(log_q, torch.Tensor)
    np.testing.assert_array_equal(ids.numpy(), plain.sample(U, 4)[0])
    assert isinstance(sampler.log_prob(torch.from_numpy(U), ids), torch.Tensor)
    half = TwoLevelSoftmax().fit(torch.from_numpy(V).bfloat16(), labels)
    assert half.partition_.items.dtype == np.float32


def test_logits_take_tensors_and_pass_gradients(rng):
    scores = torch.from_numpy(rng.normal(size=(2, 4))).requires_grad_()
    sizes, variance = np.array([1, 2, 3, 4]), rng.random((2, 4))
    expected = two_level_logits(scores.detach().numpy(), sizes, variance, beta=2.0)
    found = two_level_logits(scores, torch.from_numpy(sizes), torch.from_numpy(variance), beta=2.0)
    np.testing.assert_allclose(found.detach().numpy(), expected)
    found.sum().backward()
    np.testing.assert_allclose(scores.grad.numpy(), 2.0)
    with pytest.raises(ValueError, match="variance"):
        two_level_logits(scores, sizes)
    with pytest.raises(ValueError, match="correction: got 'half'"):
        two_level_logits(scores, sizes, correction="half")


def test_save_and_load(rng, tmp_path):
    V, labels = mixture(rng)
    U = rng.normal(size=(3, 6))
    sampler = TwoLevelSoftmax(beta=0.5).fit(V, labels).fit_calibration(U)
    sampler.save(tmp_path / "sampler.npz")
    again = TwoLevelSoftmax.load(tmp_path / "sampler.npz")
    np.testing.assert_array_equal(again.log_prob(U), sampler.log_prob(U))
    assert again.get_params() == sampler.get_params()
    assert again.sample(U, 4)[0].shape == (3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert again.add(V[:1])[0] == 400


class Unlabelled(TwoLevelSoftmax):
    """The estimator protocol's second argument is a target; here it would be taken for cluster labels."""

    def fit(self, V, y=None):
        return super().fit(V)


@parametrize_with_checks([Unlabelled()])
def test_estimator_protocol(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # clusters that k-means leaves empty on duplicated points
        check(estimator)


# --- sampled softmax -------------------------------------------------------------------------------------------------


def test_sampled_softmax_approaches_the_cross_entropy(rng):
    hidden = torch.from_numpy(rng.normal(size=(8, 6))).requires_grad_()
    weight = torch.from_numpy(mixture(rng)[0]).requires_grad_()
    targets = torch.from_numpy(rng.integers(400, size=8))
    exact = torch.nn.functional.cross_entropy(hidden @ weight.T, targets)
    gradients = torch.autograd.grad(exact, [hidden, weight])
    sampler = TwoLevelSoftmax(random_state=0).fit(weight, None)
    loss = sampled_softmax_loss(hidden, targets, weight, sampler, n_samples=20_000)
    assert abs(loss.item() - exact.item()) < 0.01
    for found, true in zip(torch.autograd.grad(loss, [hidden, weight]), gradients, strict=True):
        assert torch.nn.functional.cosine_similarity(found.flatten(), true.flatten(), dim=0) > 0.995


def test_sampled_softmax_gradient(rng):
    """The gradient is that of the estimate, with the drawn items held fixed."""

    class Fixed:
        ids, log_q = torch.tensor([[0, 1, 2], [1, 1, 3]]), torch.log(torch.tensor([[0.2, 0.3, 0.1], [0.3, 0.3, 0.4]]))

        def sample(self, U, n_samples):
            return self.ids, self.log_q

    hidden = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([4, 1])
    assert torch.autograd.gradcheck(lambda h, w: sampled_softmax_loss(h, targets, w, Fixed(), 3), (hidden, weight))
    o = (hidden @ weight.T).detach()
    second = torch.log(torch.exp(o[1, 1]) + torch.exp(o[1, 3]) / 0.4 / 3) - o[1, 1]  # hits of the target left out
    first = torch.log(torch.exp(o[0, 4]) + sum(torch.exp(o[0, j]) / q / 3 for j, q in ((0, 0.2), (1, 0.3), (2, 0.1))))
    expected = (first - o[0, 4] + second) / 2
    assert sampled_softmax_loss(hidden, targets, weight, Fixed(), 3).item() == pytest.approx(expected.item(), rel=1e-6)


def test_sampled_softmax_bad_input(rng):
    h, w, y = torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(2, dtype=torch.long)
    sampler = Uniform().fit(w)
    with pytest.raises(TypeError, match="hidden: expected a tensor"):
        sampled_softmax_loss(h.numpy(), y, w, sampler)
    with pytest.raises(ValueError, match="hidden, weight"):
        sampled_softmax_loss(h, y, w[:, :2], sampler)
    with pytest.raises(ValueError, match="targets: expected integers"):
        sampled_softmax_loss(h, y[:1], w, sampler)
    with pytest.raises(ValueError, match=r"targets: expected 0\.\.3"):
        sampled_softmax_loss(h, y + 4, w, sampler)


# --- baselines -------------------------------------------------------------------------------------------------------


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("make", [
    ExactSoftmax, Uniform, lambda **k: Popularity(np.arange(1, 61), **k), lambda **k: MidxUniform(4, **k),
    lambda **k: TopSoftmax(10, "flat", **k), lambda **k: TopSoftmax(10, "ivf", **k),
    lambda **k: TopSoftmax(10, "flat", gumbel=True, **k),
])  # fmt: skip
def test_baselines_follow_their_log_prob(rng, make):
    V, U = rng.normal(size=(60, 6)), rng.normal(size=(2, 6))
    sampler = make(beta=0.8, random_state=2).fit(V)
    law = np.exp(sampler.log_prob(U))
    np.testing.assert_allclose(law.sum(1), 1)
    ids, log_q = sampler.sample(U, 20_000)
    np.testing.assert_allclose(np.exp(log_q), np.take_along_axis(law, ids, 1))
    for b in range(2):
        assert chi_square(ids[b], law[b]) > 1e-3


def test_baselines_that_know_the_answer(rng):
    V, U = rng.normal(size=(60, 6)), rng.normal(size=(2, 6))
    expected = log_softmax(0.8 * U @ V.T, axis=1)
    np.testing.assert_allclose(ExactSoftmax(0.8).fit(V).log_prob(U), expected)
    np.testing.assert_allclose(TopSoftmax(60, "flat", beta=0.8).fit(V).log_prob(U), expected, atol=1e-5)
    np.testing.assert_allclose(MidxUniform(60, beta=0.8).fit(V).log_prob(U), expected, atol=1e-4)  # a word an item


def test_von_mises_fisher_finds_the_nearest_item(rng):
    V = unit(rng.normal(size=(50, 5)))
    ids, log_q = VonMisesFisher(beta=1e6).fit(V).sample(V[:4], 30)
    assert (ids == np.arange(4)[:, None]).all()
    assert np.isnan(log_q).all()
    circle = np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    drawn, _ = VonMisesFisher(beta=2.0).fit(circle).sample(circle[:1], 50_000)
    law = stats.vonmises(2.0)
    edges = np.array([-np.pi / 4, np.pi / 4, 3 * np.pi / 4])
    side = law.cdf(edges[2]) - law.cdf(edges[1])
    centre = law.cdf(edges[1]) - law.cdf(edges[0])
    assert chi_square(drawn[0], np.array([centre, side, 1 - centre - 2 * side, side])) > 1e-3
    with pytest.raises(ValueError, match=r"V: expected unit vectors, row [0-9]+ has norm 2"):
        VonMisesFisher().fit(2 * V)
    with pytest.raises(ValueError, match="U: expected unit vectors"):
        VonMisesFisher().fit(V).sample(2 * V[:1])


def test_baselines_bad_input(rng):
    V = rng.normal(size=(20, 4))
    with pytest.raises(ValueError, match="beta: got -1"):
        ExactSoftmax(-1)
    with pytest.raises(ValueError, match="V: contains NaN or infinity"):
        ExactSoftmax().fit(np.where(V > 1.5, np.nan, V) if (V > 1.5).any() else V * np.inf)
    with pytest.raises(ValueError, match=r"U: expected shape \(b, 4\)"):
        ExactSoftmax().fit(V).log_prob(V[:, :3])
    with pytest.raises(ValueError, match="counts: expected 20 positive numbers"):
        Popularity(np.zeros(20)).fit(V)
    with pytest.raises(ValueError, match="index: got 'tree'"):
        TopSoftmax(index="tree")
    with pytest.raises(ValueError, match="two half-vectors"):
        MidxUniform().fit(V[:, :1])


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_input_is_named(rng, value):
    V = rng.normal(size=(30, 3))
    bad = V.copy()
    bad[4, 2] = bad[9, 0] = value
    with pytest.raises(ValueError, match=r"V: contains NaN or infinity, first at \[4, 2\]"):
        TwoLevelSoftmax().fit(bad)
    sampler = TwoLevelSoftmax().fit(V)
    for call in (sampler.sample, sampler.log_prob, sampler.divergence, sampler.bounds, sampler.cluster_log_prob):
        with pytest.raises(ValueError, match=r"U: contains NaN or infinity, first at \[4, 2\]"):
            call(bad)
    with pytest.raises(ValueError, match=r"U_sample: .*first at \[4, 2\]"):
        sampler.fit_calibration(bad)
    with pytest.raises(ValueError, match=r"V_new: .*first at \[4, 2\]"):
        sampler.add(bad)
    with pytest.raises(ValueError, match="beta: got"):
        TwoLevelSoftmax(beta=value).fit(V)  # a temperature of zero is an infinite beta


@pytest.mark.parametrize(("parameters", "message"), [
    ({"beta": -1.0}, "beta: got -1.0; expected a finite inverse temperature >= 0"),
    ({"correction": "both"}, "correction: got 'both'; expected one of none, size, size_dispersion, exact"),
    ({"dispersion": "round"}, "dispersion: got 'round'"),
    ({"clustering": "tree"}, "clustering: got 'tree'"),
    ({"rank": 0}, "rank: got 0"),
    ({"n_clusters": 31}, r"n_clusters: got 31; expected 1\.\.30"),
    ({"n_clusters": 0}, r"n_clusters: got 0; expected 1\.\.30"),
])  # fmt: skip
def test_parameters_are_checked(rng, parameters, message):
    with pytest.raises(ValueError, match=message):
        TwoLevelSoftmax(**parameters).fit(rng.normal(size=(30, 3)))


def test_labels_are_checked(rng):
    V = rng.normal(size=(6, 2))
    with pytest.raises(ValueError, match=r"labels: expected shape \(6,\), got \(5,\)"):
        TwoLevelSoftmax().fit(V, [0, 1, 2, 3, 4])
    with pytest.raises(ValueError, match="labels: no item bears 1, 3"):
        TwoLevelSoftmax().fit(V, [0, 2, 4, 0, 2, 4])
    with pytest.raises(ValueError, match=r"labels: expected 0\.\.K-1, got -1 at index 5"):
        TwoLevelSoftmax().fit(V, [0, 1, 2, 0, 1, -1])
    with pytest.raises(ValueError, match="most labels would be empty"):
        TwoLevelSoftmax().fit(V, [0, 1, 2, 0, 1, 10**12])


def test_calls_are_checked(rng):
    V = rng.normal(size=(30, 3))
    sampler = TwoLevelSoftmax().fit(V)
    with pytest.raises(ValueError, match=r"U: expected shape \(b, 3\) as the items', got \(2, 4\)"):
        sampler.sample(rng.normal(size=(2, 4)))
    with pytest.raises(ValueError, match="U: expected shape"):
        sampler.sample(V[0])
    with pytest.raises(ValueError, match="U: expected real numbers"):
        sampler.sample(np.array([["a", "b", "c"]]))
    with pytest.raises(ValueError, match="n_samples: got 31 without replacement from 30 items"):
        sampler.sample(V[:1], 31, replace=False)
    with pytest.raises(ValueError, match="n_samples, steps"):
        sampler.sample(V[:1], 0)
    with pytest.raises(ValueError, match="corrected: chains draw with replacement"):
        sampler.sample(V[:1], 2, replace=False, corrected=True)
    with pytest.raises(ValueError, match=r"ids: no item bears \[30\]"):
        sampler.log_prob(V[:1], [1, 30])
    with pytest.raises(ValueError, match="ids: expected integers"):
        sampler.log_prob(V[:1], [1.5])
    with pytest.raises(ValueError, match="ids: expected one row for each of 2 queries"):
        sampler.log_prob(V[:2], [[1], [2], [3]])
    with pytest.raises(ValueError, match="without repeats"):
        sampler.remove([1, 1])
    with pytest.raises(ValueError, match="at least one must be left"):
        sampler.remove(np.arange(30))
    with pytest.raises(ValueError, match="new_vectors: expected 2 rows"):
        sampler.partial_update([1, 2], V[:1])
    with pytest.raises(ValueError, match=r"labels: expected shape \(1,\)"):
        sampler.add(V[:1], [0, 1])


@pytest.mark.parametrize("model", CALIBRATED)
def test_not_fitted(rng, model):
    V = rng.normal(size=(30, 3))
    for call in (lambda s: s.sample(V), lambda s: s.log_prob(V), lambda s: s.add(V), lambda s: s.fit_calibration(V)):
        with pytest.raises(NotFittedError):
            call(TwoLevelSoftmax())
    sampler = TwoLevelSoftmax(dispersion=model).fit(V)
    with pytest.raises(NotFittedError, match="needs fit_calibration"):
        sampler.sample(V[:1])
    sampler.fit_calibration(V)
    copy.deepcopy(sampler).sample(V[:1])
    with pytest.raises(ValueError, match=r"calibrated at 1\.0, now 2\.0"):
        sampler.set_params(beta=2.0).sample(V[:1])


def test_divergence_of_equal_laws_is_zero(rng):
    log_z = rng.normal(size=(3, 5))
    found = cluster_divergence(log_z, log_z + rng.normal(size=(3, 1)))
    np.testing.assert_allclose(np.stack(found), 0, atol=1e-12)
