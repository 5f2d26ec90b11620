"""UCCA: identities, exact cases, the assignment solvers against brute force and scipy, the protocol, bad input."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linear_sum_assignment, quadratic_assignment
from scipy.stats import ortho_group
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from gnomon.geometry import UCCA, faq, kernelized_sorting, pairing_score, point_descriptors
from gnomon.geometry.ucca import baselines
from gnomon.geometry.ucca.assignment import (
    ascend,
    assign,
    doubly_stochastic,
    permutation_matrix,
    sinkhorn_plan,
)
from gnomon.geometry.ucca.cca import Basis, canonical, cross_covariance, paired_correlations, projections
from gnomon.geometry.ucca.kernels import gaussian, low_rank, squared_distances, view_kernel
from gnomon.geometry.ucca.search import View, descriptor_plan, search

seeds = st.integers(0, 10**6)
few = settings(max_examples=20, deadline=None)
QUICK = {"n_runs": 2, "n_null": 0, "max_rounds": 5}


def shaped(n, p, seed=0):
    """Points of independent skewed coordinates with different scales: no symmetry."""
    rng = np.random.default_rng(seed)
    return rng.exponential(size=(n, p)) * np.linspace(3, 1, p)


def whitened(n, d, rng):
    Z = rng.exponential(size=(n, d + 2))
    return Basis.of(Z, d).coordinates(Z)


# --- identities -------------------------------------------------------------------------------------------------------


@given(seeds, st.integers(8, 30), st.integers(1, 5))
@few
def test_qap_is_total_squared_canonical_correlation(seed, n, d):
    """T1: tr(K_X P K_Y P') = n^2 sum rho^2."""
    rng = np.random.default_rng(seed)
    X, Y, pairing = whitened(n, d, rng), whitened(n, d, rng), rng.permutation(n)
    P = permutation_matrix(pairing)
    value = np.trace(X @ X.T @ P @ Y @ Y.T @ P.T)
    rho = canonical(X, Y, pairing)[1]
    assert_allclose(value, n**2 * np.sum(rho**2), rtol=1e-10)
    assert_allclose(value, np.linalg.norm(X.T @ P @ Y) ** 2, rtol=1e-10)


@given(seeds, st.integers(8, 30), st.integers(1, 5))
@few
def test_frank_wolfe_step_is_cca_then_assignment(seed, n, d):
    """T2: the gradient is 2 n sum rho_j (X u_j)(Y v_j)', and so are the assignments."""
    rng = np.random.default_rng(seed)
    X, Y, pairing = whitened(n, d, rng), whitened(n, d, rng), rng.permutation(n)
    U, rho, V = canonical(X, Y, pairing)
    gradient = 2 * X @ X.T @ permutation_matrix(pairing) @ Y @ Y.T
    assert_allclose(gradient, 2 * n * (X @ U * rho) @ (Y @ V).T, atol=1e-10 * np.abs(gradient).max())
    step = faq(X @ X.T, Y @ Y.T, pairing, max_iter=1)
    rows, columns = linear_sum_assignment((X @ U * rho) @ (Y @ V).T, maximize=True)
    assert_allclose(gradient[rows, step.pairing].sum(), gradient[rows, columns].sum(), rtol=1e-9)
    assert step.objective >= n**2 * np.sum(rho**2) * (1 - 1e-10)


@given(seeds, st.integers(8, 20), st.integers(1, 4))
@few
def test_ascent_never_decreases_squared_correlation(seed, n, d):
    rng = np.random.default_rng(seed)
    X, Y, pairing = whitened(n, d, rng), whitened(n, d, rng), rng.permutation(n)
    values = [np.sum(canonical(X, Y, pairing)[1] ** 2)]
    for _ in range(8):
        U, rho, V = canonical(X, Y, pairing)
        pairing = linear_sum_assignment((X @ U * rho) @ (Y @ V).T, maximize=True)[1]
        values.append(np.sum(canonical(X, Y, pairing)[1] ** 2))
    assert (np.diff(values) > -1e-10).all()


def test_hand_case():
    x, y = np.array([[1.0], [2], [4]]), np.array([[8.0], [2], [4]])
    X, Y = (Basis.of(Z, 1).coordinates(Z) for Z in (x, y))
    ordered, same = np.array([1, 2, 0]), np.arange(3)
    assert_allclose(canonical(X, Y, ordered)[1], [1])
    assert_allclose(canonical(X, Y, same)[1], [0.5])  # |r|; the correlation itself is -0.5
    assert_allclose(paired_correlations(x, y), [-0.5])
    for pairing, value in ((ordered, 9), (same, 2.25)):
        P = permutation_matrix(pairing)
        assert_allclose(np.trace(X @ X.T @ P @ Y @ Y.T @ P.T), value)
    assert_array_equal(
        min(itertools.permutations(range(3)), key=lambda p: -canonical(X, Y, np.array(p))[1][0]), ordered
    )


def test_exact_image_attains_the_bound():
    """T3: for Y = X M the true pairing has sum rho^2 = d and nothing exceeds it."""
    rng = np.random.default_rng(0)
    X = shaped(7, 2)
    Y = X @ rng.normal(size=(2, 2))
    Z_x, Z_y = (Basis.of(Z, 2).coordinates(Z) for Z in (X, Y))
    totals = {p: np.sum(canonical(Z_x, Z_y, np.array(p))[1] ** 2) for p in itertools.permutations(range(7))}
    assert max(totals, key=totals.get) == tuple(range(7))
    assert_allclose(max(totals.values()), 2)
    assert sorted(totals.values())[-2] < 2 - 1e-6


def test_kernels():
    X = shaped(40, 3)
    K = view_kernel(X, "rbf")
    assert_allclose(K.sum(axis=0), 0, atol=1e-12)
    assert_allclose(K.sum(axis=1), 0, atol=1e-12)
    assert_allclose(np.linalg.norm(K), 1)
    D2 = squared_distances(X)
    assert_allclose(gaussian(D2), np.exp(-2 * D2 / np.median(D2)))
    assert_allclose(pairing_score(X, X), 1)
    assert_allclose(pairing_score(X, X, kernel="linear"), 1)
    H = np.eye(40) - 1 / 40
    p = np.random.default_rng(0).permutation(40)
    K_x, K_y = H @ gaussian(D2) @ H, H @ (X @ X.T) @ H
    expected = np.sum(K_x * K_y[np.ix_(p, p)]) / np.linalg.norm(K_x) / np.linalg.norm(K_y)
    assert_allclose(pairing_score(gaussian(D2), X @ X.T, p, kernel="precomputed"), expected)
    F = low_rank(K, 40)
    assert_allclose(F @ F.T, K, atol=1e-12)
    assert_allclose(gaussian(np.zeros((3, 3))), 1)  # no distance at all


# --- assignment -------------------------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 40), st.sampled_from(["normal", "integer", "low rank"]))
@settings(max_examples=60, deadline=None)
def test_assign_equals_scipy_from_any_prices(seed, n, kind):
    rng = np.random.default_rng(seed)
    C = {"normal": lambda: rng.normal(size=(n, n)), "integer": lambda: rng.integers(0, 4, (n, n)).astype(float),
         "low rank": lambda: rng.normal(size=(n, 2)) @ rng.normal(size=(2, n))}[kind]()  # fmt: skip
    best = C[linear_sum_assignment(C)].sum()
    prices = rng.normal(size=n) * rng.choice([0, 1, 100])
    for _ in range(2):  # the second time from the prices of the optimum
        found = assign(C, prices)
        assert_array_equal(np.sort(found), np.arange(n))
        assert_allclose(C[np.arange(n), found].sum(), best, atol=1e-9)
    reduced = C - prices - (C - prices).min(axis=1, keepdims=True)
    assert_allclose(reduced[np.arange(n), found], 0, atol=1e-9)  # the prices prove it


@pytest.mark.parametrize(("kind", "n", "restarts"), [("indefinite", 5, 50), ("indefinite", 7, 100), ("indefinite", 8, 150),
                                                     ("linear kernel", 8, 20)])  # fmt: skip
def test_faq_with_restarts_is_brute_force(kind, n, restarts):
    rng = np.random.default_rng(n)
    permutations = np.array(list(itertools.permutations(range(n))))
    hits = 0
    for _ in range(20):
        if kind == "indefinite":
            A, B = (M + M.T for M in rng.normal(size=(2, n, n)))
        else:
            A, B = (view_kernel(rng.exponential(size=(n, 2)), "linear") for _ in range(2))
        best = np.einsum("ij,kij->k", A, B[permutations[:, :, None], permutations[:, None, :]]).max()
        found = max(faq(A, B, doubly_stochastic(rng.gamma(0.3, size=(n, n)))).objective for _ in range(restarts))
        assert found <= best + 1e-9
        hits += found > best - 1e-9
    assert hits >= 18


@pytest.mark.parametrize("kind", ["kernels", "indefinite", "asymmetric"])
@pytest.mark.parametrize("maximize", [True, False])
def test_faq_equals_scipy(kind, maximize):
    rng = np.random.default_rng(3)
    n = 25
    for _ in range(4):
        if kind == "kernels":
            A, B = (view_kernel(rng.exponential(size=(n, 3)), "rbf") for _ in range(2))
        else:
            A, B = (rng.normal(size=(n, n)) for _ in range(2))
            A, B = (A + A.T, B + B.T) if kind == "indefinite" else (A, B)
        start = doubly_stochastic(rng.gamma(1.0, size=(n, n)))
        start /= start.sum(axis=1, keepdims=True)
        ours = faq(A, B, start, maximize=maximize, max_iter=60, tol=1e-9)
        theirs = quadratic_assignment(
            A, B, method="faq", options={"P0": start, "maximize": maximize, "maxiter": 60, "tol": 1e-9, "rng": rng}
        )
        assert_allclose(ours.objective, theirs.fun, rtol=1e-6)
        assert_array_equal(ours.pairing, theirs.col_ind)
        change = np.diff(ours.values) * (1 if maximize else -1)
        assert (change > -1e-9 * np.abs(ours.values).max()).all()
        if kind == "indefinite":
            assert any(0 < s < 1 for s in ours.steps)


@given(seeds)
@few
def test_steps_of_semidefinite_kernels_are_one(seed):
    """Against a grid on [0, 1]."""
    rng = np.random.default_rng(seed)
    n = 12
    A, B = (view_kernel(rng.exponential(size=(n, 2)), "rbf") for _ in range(2))
    P = doubly_stochastic(rng.gamma(1.0, size=(n, n)))
    found = faq(A, B, P)
    assert found.steps == [1.0] * found.n_iter
    D = permutation_matrix(assign(-2 * A @ P @ B, np.zeros(n))) - P
    grid = [np.sum(A * ((P + a * D) @ B @ (P + a * D).T)) for a in np.linspace(0, 1, 21)]
    assert np.argmax(grid) == 20


@given(seeds, st.integers(5, 40))
@few
def test_fast_ascent_equals_faq(seed, n):
    rng = np.random.default_rng(seed)
    A, B = (view_kernel(rng.exponential(size=(n, 3)), "rbf") for _ in range(2))
    start = doubly_stochastic(rng.gamma(1.0, size=(n, n)))
    assert_array_equal(ascend(low_rank(A, n), low_rank(B, n), start), faq(A, B, start).pairing)


def test_local_maxima_stay():
    rng = np.random.default_rng(0)
    A, B = (view_kernel(rng.exponential(size=(30, 3)), "rbf") for _ in range(2))
    end = faq(A, B, rng.permutation(30)).pairing
    again = faq(A, B, end)
    assert_array_equal(again.pairing, end)
    assert again.n_iter == 1
    assert_array_equal(ascend(low_rank(A, 30), low_rank(B, 30), permutation_matrix(end)), end)
    assert_array_equal(faq(A, A, np.arange(30)).pairing, np.arange(30))


@given(seeds, st.integers(2, 30), st.integers(2, 30))
@few
def test_plans_have_their_marginals(seed, n, m):
    rng = np.random.default_rng(seed)
    plan = sinkhorn_plan(rng.normal(size=(n, 2)), rng.normal(size=(m, 2)), 0.1, 500)
    assert (plan >= 0).all()
    assert_allclose(plan.sum(axis=1), 1 / n)
    assert_allclose(plan.sum(axis=0), 1 / m, rtol=0.05)
    P = doubly_stochastic(rng.gamma(1.0, size=(n, n)))
    assert_allclose(P.sum(axis=0), 1)
    assert_allclose(P.sum(axis=1), 1, rtol=1e-3)


def test_sinkhorn_plan_equals_pot():
    import ot

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), rng.normal(size=(25, 3))
    C = ot.dist(x, y)
    theirs = ot.sinkhorn([], [], C, 0.1 * C.mean(), stopThr=1e-14, numItermax=5000)
    assert_allclose(sinkhorn_plan(x, y, 0.1, 5000), theirs, atol=1e-10)
    far = sinkhorn_plan(np.array([[0.0], [1e4]]), np.array([[1.0], [1e4 + 1]]), 1e-3)  # where a plain exp underflows
    assert_allclose(far, np.eye(2) / 2, atol=1e-12)


# --- descriptors and CCA ----------------------------------------------------------------------------------------------


@given(seeds, st.integers(20, 40), st.floats(0.1, 10))
@few
def test_descriptors_know_neither_isometry_nor_order(seed, n, scale):
    rng = np.random.default_rng(seed)
    X = rng.exponential(size=(n, 3))
    order = rng.permutation(n)
    Y = scale * (X @ ortho_group.rvs(3, random_state=rng))[order] + rng.normal(size=3)
    first, second = point_descriptors(X), point_descriptors(Y)
    assert first.shape == (n, 33)
    assert first.min() > 0
    assert first.max() <= 1
    assert_allclose(second, first[order], atol=1e-8)
    assert_allclose(point_descriptors(np.sqrt(squared_distances(X)), metric="precomputed"), first, atol=1e-8)


def test_supervised_cca_is_the_closed_form():
    from scipy.linalg import sqrtm
    from sklearn.cross_decomposition import CCA

    rng = np.random.default_rng(0)
    Z = rng.normal(size=(300, 3))
    X, Y = (Z @ rng.normal(size=(3, p)) + 0.5 * rng.normal(size=(300, p)) for p in (5, 4))
    x, y = Basis.of(X, 15), Basis.of(Y, 15)
    cross = cross_covariance(x.coordinates(X), y.coordinates(Y), np.arange(300))
    A, B = projections(x, y, cross, 4, 0.0)
    P, Q = (X - x.mean) @ A, (Y - y.mean) @ B
    rho = paired_correlations(P, Q)
    S = np.cov(X.T, Y.T, bias=True)
    whole = np.linalg.inv(sqrtm(S[:5, :5])).real @ S[:5, 5:] @ np.linalg.inv(sqrtm(S[5:, 5:])).real
    assert_allclose(rho, np.linalg.svd(whole, compute_uv=False), atol=1e-8)
    assert_allclose(P.T @ P / 300, np.eye(4), atol=1e-8)
    theirs = CCA(4, max_iter=5000, tol=1e-12).fit(X, Y).transform(X, Y)
    assert_allclose(rho, paired_correlations(*theirs), atol=1e-3)


def test_ridge_shrinks_small_components():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(100, 4)) * [10, 5, 1, 0.1]
    basis = Basis.of(X, 4)
    assert_allclose(basis.shrinkage(0.0), 1)
    assert (np.diff(basis.shrinkage(0.1)) < 0).all()
    assert_allclose(basis.coordinates(X).T @ basis.coordinates(X), 100 * np.eye(4), atol=1e-8)


# --- the estimator ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "seed"), [(60, 0), (100, 1)])
def test_isometric_copies_are_paired(n, seed):
    rng = np.random.default_rng(seed)
    X = shaped(n + 50, 4, seed)
    Y = 3 * X @ ortho_group.rvs(4, random_state=rng) + 7
    order = rng.permutation(n)
    u = UCCA(n_components=4, **QUICK).fit(X[:n], Y[:n][order])
    assert_array_equal(order[u.pairing_], np.arange(n))
    assert_allclose(u.score_, 1)
    assert u.status_ == "paired"
    assert u.converged_
    found = u.evaluate(X[n:], Y[n:], X[:n], Y[:n])
    assert_allclose(found.correlations, 1, atol=1e-6)
    assert_allclose(found.ratio, 1, atol=1e-6)
    assert_allclose(u.correlations_, 1, atol=1e-6)


def test_invertible_maps_with_whitened_kernels():
    rng = np.random.default_rng(0)
    X = shaped(80, 3)
    Y = X @ rng.normal(size=(3, 3)) + 1
    order = rng.permutation(80)
    u = UCCA(n_components=3, kernel_space="whitened", ridge=0.0, **QUICK).fit(X, Y[order])
    assert_array_equal(order[u.pairing_], np.arange(80))
    assert_allclose(u.correlations_, 1, atol=1e-8)


def noisy(n, seed=0):
    rng = np.random.default_rng(seed)
    Z = shaped(n, 5, seed)
    return Z + 0.1 * rng.normal(size=Z.shape), Z @ rng.normal(size=(5, 6)) + 0.1 * rng.normal(size=(n, 6))


def test_order_of_the_rows_cannot_leak():
    """Two different shuffles, and none at all: the same projections, and pairings that follow the rows."""
    X, Y = noisy(60)
    plain = UCCA(n_components=2, **QUICK).fit(X, Y)
    for seed in (1, 2):
        order = np.random.default_rng(seed).permutation(60)
        u = UCCA(n_components=2, **QUICK).fit(X, Y[order])
        assert_array_equal(order[u.pairing_], plain.pairing_)
        assert_array_equal(u.x_rotations_, plain.x_rotations_)
        assert_array_equal(u.y_rotations_, plain.y_rotations_)
        v = UCCA(n_components=2, **QUICK).fit(X[order], Y)
        assert_array_equal(v.pairing_, plain.pairing_[order])
    assert np.mean(plain.pairing_ == np.arange(60)) < 0.9  # noise: had the order leaked, nearly all would agree


def test_gaussian_clouds_are_not_matched():
    for seed, p in itertools.product(range(5), (3, 8)):
        rng = np.random.default_rng(seed)
        u = UCCA(n_components=min(p, 5), n_runs=2, max_rounds=5, n_null=3, random_state=seed)
        assert not u.fit(rng.normal(size=(60, p)), rng.normal(size=(60, p))).converged_


def test_in_sample_correlations_are_optimistic():
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        u = UCCA(n_components=1, n_runs=1, n_null=0, max_rounds=2).fit(
            rng.normal(size=(60, 8)), rng.normal(size=(60, 8))
        )
    assert u.correlations_[0] > 0.8
    assert abs(u.evaluate(rng.normal(size=(500, 8)), rng.normal(size=(500, 8))).correlation) < 0.2
    assert np.isnan([u.agreement_, u.confidence_, u.stability_]).all()
    assert u.status_ == "failed"


def test_runs_are_seeded_one_by_one():
    X, Y = noisy(50)
    two = UCCA(n_components=2, n_runs=2, n_null=2, max_rounds=2).fit(X, Y)
    three = UCCA(n_components=2, n_runs=3, n_null=0, max_rounds=2).fit(X, Y)
    assert_array_equal(two.run_pairings_, three.run_pairings_[:2])
    assert_array_equal(two.run_scores_, three.run_scores_[:2])
    assert two.score_ == two.run_scores_.max()
    assert len(two.null_scores_) == 2
    assert np.isfinite(two.confidence_)
    other = UCCA(n_components=2, n_runs=1, n_null=0, max_rounds=2, random_state=np.random.RandomState(1)).fit(X, Y)
    assert other.run_scores_.shape == (1,)


@pytest.mark.parametrize("swap", [False, True])
def test_unequal_sizes(swap):
    rng = np.random.default_rng(0)
    X = shaped(90, 3)
    Y = X @ ortho_group.rvs(3, random_state=rng)
    rows, order = rng.permutation(90)[:70], rng.permutation(90)
    a, b = X[rows], Y[order]
    u = UCCA(n_components=3, bijective=False, n_runs=1, n_null=0, max_rounds=3).fit(*((b, a) if swap else (a, b)))
    if swap:  # Y is the smaller view
        paired = u.pairing_ >= 0
        assert paired.sum() == 70
        assert_array_equal(np.sort(u.pairing_[paired]), np.arange(70))
        right = rows[u.pairing_[paired]] == order[paired]
    else:
        right = order[u.pairing_] == rows
        assert len(set(u.pairing_)) == 70
    assert right.mean() > 0.9
    fresh = shaped(200, 3, 5)
    views = (fresh @ np.linalg.lstsq(X, Y, rcond=None)[0], fresh)
    assert u.evaluate(*(views if swap else views[::-1])).correlation > 0.98


def test_soft_plan_and_linear_kernel():
    X = shaped(80, 3)
    order = np.random.default_rng(0).permutation(80)
    for options in ({"soft": True}, {"kernel": "linear"}, {"standardize": True}):
        u = UCCA(n_components=2, **options, **QUICK).fit(X, X[order])
        assert_array_equal(order[u.pairing_], np.arange(80))
        assert u.evaluate(X, X).correlation > 0.99


def test_precomputed_kernels():
    X = shaped(80, 3)
    order = np.random.default_rng(0).permutation(60)
    K = X @ X.T
    train, u = K[:60, :60], UCCA(n_components=3, kernel="precomputed", **QUICK)
    u.fit(train, 4 * train[np.ix_(order, order)])
    assert_array_equal(order[u.pairing_], np.arange(60))
    P, Q = u.transform(K[60:, :60], 4 * K[60:, :60][:, order])
    assert_allclose(paired_correlations(P, Q), 1, atol=1e-8)
    assert_allclose(np.mean(u.transform(train) ** 2, axis=0), 1)
    linear = UCCA(n_components=3, kernel="linear", **QUICK).fit(X[:60], 2 * X[:60][order])  # the same Gram matrices
    assert_allclose(np.abs(np.sum(linear.transform(X[60:]) * P, axis=0)),
                    np.linalg.norm(linear.transform(X[60:]), axis=0) * np.linalg.norm(P, axis=0), rtol=1e-6)  # fmt: skip
    assert u.evaluate(K[60:, :60], 4 * K[60:, :60][:, order], train, 4 * train[:, order]).ratio == pytest.approx(1)
    assert u.evaluate(K[60:, :60], 4 * K[60:, :60][:, order]).correlation == pytest.approx(1)


def test_indefinite_kernels_take_line_searches():
    D2 = squared_distances(shaped(60, 3)) ** 0.25  # such distances have an indefinite Gram matrix
    K = -0.5 * (D2 - D2.mean(0) - D2.mean(1)[:, None] + D2.mean()) - 0.5 * np.diag(np.arange(60) / 60.0)
    assert np.linalg.eigvalsh(K)[0] < -0.01
    order = np.random.default_rng(0).permutation(60)
    assert View.of(K, 5, kernel="precomputed").factor is None
    u = UCCA(n_components=2, kernel="precomputed", n_runs=1, n_null=0, max_rounds=1, n_starts=2).fit(
        K, K[np.ix_(order, order)]
    )
    assert u.score_ == pytest.approx(pairing_score(K, K[np.ix_(order, order)], u.pairing_, kernel="precomputed"))


def test_search_keeps_what_it_visits():
    X, Y = noisy(40)
    x, y = View.of(X, 4), View.of(Y, 4)
    found = search(x, y, np.random.default_rng(0), n_starts=3, max_rounds=4)
    assert found.n_rounds == 4
    assert len(found.visited) == 3 + 4 * (2 + 2)  # widths 3 and 4, and the two best
    assert found.best.score == max(o.score for o in found.visited)
    assert found.best_of_starts().score <= found.best.score
    for one in found.visited[:5]:
        assert_allclose(one.score, pairing_score(X, Y, one.pairing))
    assert len(search(x, y, np.random.default_rng(0), n_starts=3, max_rounds=0).visited) == 3


def test_descriptor_plans():
    X, Y = noisy(40)
    x, y = View.of(X, 4), View.of(Y, 4)
    rng = np.random.default_rng(0)
    plans = [descriptor_plan(x, y), descriptor_plan(x, y, rng), descriptor_plan(x, y, rng)]
    for plan in plans:
        assert_allclose(plan.sum(axis=1), 1 / 40)
    assert np.abs(plans[1] - plans[2]).max() > 1e-4
    assert np.trace(descriptor_plan(x, x)) > 0.5  # a view's points are nearest to themselves
    still = View.of(np.arange(20.0)[:, None] % 2, 1)  # two places, ten points each
    assert_allclose(descriptor_plan(still, still, rng), 1 / 400)


def test_threads_change_nothing():
    X, Y = noisy(50)
    one, two = (UCCA(n_components=2, n_runs=1, n_null=1, max_rounds=3, n_jobs=n).fit(X, Y) for n in (1, 2))
    assert_array_equal(one.pairing_, two.pairing_)
    assert_array_equal(one.null_scores_, two.null_scores_)


def test_frames_tensors_and_names():
    import pandas as pd
    import torch

    X, Y = noisy(40)
    plain = UCCA(n_components=2, **QUICK).fit(X, Y)
    frame = UCCA(n_components=2, **QUICK).fit(pd.DataFrame(X, columns=list("abcde")), pd.DataFrame(Y))
    tensor = UCCA(n_components=2, **QUICK).fit(torch.from_numpy(X), torch.from_numpy(Y))
    assert_array_equal(frame.x_rotations_, plain.x_rotations_)
    assert_array_equal(tensor.x_rotations_, plain.x_rotations_)
    assert list(frame.feature_names_in_) == list("abcde")
    assert list(plain.get_feature_names_out()) == ["ucca0", "ucca1"]
    Zx, Zy = plain.transform(X[:3], Y[:7])
    assert Zx.shape == (3, 2)
    assert Zy.shape == (7, 2)
    assert_array_equal(plain.transform_y(Y[:7]), Zy)


# checks that need what the sheet refuses
EXEMPT = {
    "check_estimators_nan_inf": "fits 10 rows, then the same with NaN and infinity; fewer than 20 are refused",
    "check_fit2d_1feature": "fits 10 rows; fewer than 20 are refused",
    "check_n_features_in_after_fitting": "fits 15 rows; fewer than 20 are refused",
}


@pytest.mark.filterwarnings("ignore:.*duplicates:UserWarning")
@parametrize_with_checks([UCCA(n_components=1, n_runs=1, n_null=0, max_rounds=1, n_starts=2)],
                         expected_failed_checks=lambda _: EXEMPT)  # fmt: skip
def test_scikit_learn_protocol(estimator, check):
    check(estimator)


# --- baselines --------------------------------------------------------------------------------------------------------


def test_kernelized_sorting():
    X = shaped(60, 3)
    order = np.random.default_rng(0).permutation(60)
    assert_array_equal(order[kernelized_sorting(X, X[order])], np.arange(60))
    assert_array_equal(
        order[kernelized_sorting(X @ X.T, (X @ X.T)[np.ix_(order, order)], kernel="precomputed")], np.arange(60)
    )
    with pytest.raises(ValueError, match="as many rows"):
        kernelized_sorting(X, X[:50])


@pytest.mark.parametrize(
    "name",
    ["descriptors", "gromov_wasserstein", "entropic_gw", "matching_cca", "ica_quantiles", "vecmap", "sorted_kernels"],
)
def test_baselines_solve_an_easy_case(name):
    """A rotated copy of skewed points, where each has what it needs."""
    rng = np.random.default_rng(0)
    X = rng.exponential(size=(100, 3)) * [4, 2, 1]
    order = rng.permutation(100)
    options = {"epsilon": 5e-4} if name == "entropic_gw" else {}
    coupling = getattr(baselines, name)(X, (X @ ortho_group.rvs(3, random_state=rng))[order], rng, **options)
    pairing = coupling if coupling.ndim == 1 else coupling.argmax(axis=1)
    assert np.mean(order[pairing] == np.arange(100)) > 0.8


@pytest.mark.parametrize(
    "name", ["random_pairing", "faq_barycentre", "wasserstein_procrustes", "spectral", "linear_mmd", "adversarial"]
)
def test_other_baselines_give_permutations(name):
    rng = np.random.default_rng(0)
    X, Y = noisy(60)
    options = {
        "linear_mmd": {"steps": 20},
        "adversarial": {"steps": 20},
        "wasserstein_procrustes": {"n_relaxed": 10},
    }.get(name, {})
    assert_array_equal(np.sort(getattr(baselines, name)(X, Y, rng, **options)), np.arange(60))
    if name == "faq_barycentre":
        assert_array_equal(np.sort(baselines.faq_barycentre(X, Y, rng, kernel="linear")), np.arange(60))


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "x", "y", "message"), [
    ({}, (19, 6), (19, 6), "at least 20"),
    ({}, (60, 6), (19, 6), "at least 20"),
    ({}, (60, 6), (50, 6), "bijective=False"),
    ({"n_components": 4}, (60, 6), (60, 3), "n_components: got 4; expected at most 3"),
    ({"n_components": 7, "n_pca": 6}, (60, 8), (60, 9), "n_components"),
    ({"n_components": 0}, (60, 6), (60, 6), "n_components"),
    ({"n_runs": 0}, (60, 6), (60, 6), "n_runs"),
    ({"max_rounds": 1.5}, (60, 6), (60, 6), "max_rounds"),
    ({"n_starts": True}, (60, 6), (60, 6), "n_starts"),
    ({"kernel": "cosine"}, (60, 6), (60, 6), "kernel"),
    ({"kernel_space": "pca"}, (60, 6), (60, 6), "kernel_space"),
    ({"ridge": -1.0}, (60, 6), (60, 6), "ridge"),
    ({"ridge": float("nan")}, (60, 6), (60, 6), "ridge"),
    ({"kernel": "precomputed"}, (60, 6), (60, 6), "square and symmetric"),
    ({"kernel": "precomputed", "standardize": True}, (60, 60), (60, 60), "standardize"),
    ({"n_components": 1}, (3001, 2), (3001, 2), "blocks"),
])  # fmt: skip
def test_bad_input(options, x, y, message):
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=message):
        UCCA(**options).fit(rng.normal(size=x), rng.normal(size=y))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_nan_and_infinity(bad, side):
    views = [shaped(60, 6), shaped(60, 6)]
    views[side][3, 2] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        UCCA().fit(*views)


def test_warnings():
    X, Y = noisy(60)
    u = UCCA(n_components=2, n_runs=1, n_null=0, max_rounds=0, n_starts=1)
    with pytest.warns(UserWarning, match="components for 60 rows"):
        UCCA(n_components=2, n_runs=1, n_null=0, max_rounds=0).fit(shaped(60, 20), shaped(60, 20))
    with pytest.warns(UserWarning, match="1 of 6 columns are constant"):
        u.fit(np.column_stack([X, np.ones(60)]), Y)
    assert_allclose(u.transform(np.column_stack([X, np.full(60, 5.0)])), u.transform(np.column_stack([X, np.ones(60)])))
    assert_allclose(u.score_, UCCA(**u.get_params()).fit(X, Y).score_)
    twins = X.copy()
    twins[:6] = X[6:12]
    with pytest.warns(UserWarning, match="duplicates"):
        u.fit(twins, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        u.fit(X, Y)


def test_fewer_rows_than_columns():
    rng = np.random.default_rng(0)
    X = np.hstack([shaped(60, 4), 0.01 * rng.normal(size=(60, 100))])
    order = rng.permutation(60)
    u = UCCA(n_components=3, n_pca=10, **QUICK).fit(X, (X @ ortho_group.rvs(104, random_state=rng))[order])
    assert_array_equal(order[u.pairing_], np.arange(60))


@pytest.mark.filterwarnings("ignore")
def test_constant_view():
    with pytest.raises(ValueError, match="n_components: got 2; expected at most 0"):
        UCCA(n_components=2).fit(np.ones((60, 3)), noisy(60)[1])


def test_use_before_fit_and_wrong_widths():
    X, Y = noisy(60)
    with pytest.raises(NotFittedError):
        UCCA().transform(X)
    u = UCCA(n_components=2, n_runs=1, n_null=0, max_rounds=0).fit(X, Y)
    with pytest.raises(ValueError, match="expecting 5 features"):
        u.transform(Y)
    with pytest.raises(ValueError, match="fitted with 6 of the second view"):
        u.transform(X, X)
    with pytest.raises(ValueError, match="expected pairs"):
        u.evaluate(X, Y[:50])
    with pytest.raises(ValueError, match="both or neither"):
        u.evaluate(X, Y, X)
    with pytest.raises(ValueError, match="expected pairs"):
        u.evaluate(X, Y, X, Y[:50])


@pytest.mark.parametrize(("call", "message"), [
    (lambda A: faq(A, A[:5, :5]), "one size"),
    (lambda A: faq(A[:5], A), "square matrix"),
    (lambda A: faq(A * np.nan, A), "NaN"),
    (lambda A: faq(A, A, np.zeros(6, int)), "start"),
    (lambda A: faq(A, A, np.ones((6, 6))), "start"),
    (lambda A: pairing_score(A, A, [0, 0, 1, 2, 3, 4]), "permutation"),
    (lambda A: pairing_score(A, A[:5]), "as many rows"),
    (lambda A: pairing_score(A, A, kernel="poly"), "kernel"),
    (lambda A: pairing_score(A, A[:, :5], kernel="precomputed"), "square"),
    (lambda A: point_descriptors(A, metric="cosine"), "metric"),
    (lambda A: point_descriptors(A * np.inf), "NaN or infinity"),
    (lambda A: point_descriptors(A[:1]), "at least 2"),
    (lambda A: point_descriptors(np.zeros((3, 0))), "features"),
])  # fmt: skip
def test_bad_input_of_the_parts(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.arange(36.0).reshape(6, 6) + 1)
