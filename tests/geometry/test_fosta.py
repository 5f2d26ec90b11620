"""FoSTA: proximities against scikit-learn and loops, bijections, metrics by hand, limits, invariances, bad input."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from gnomon.geometry import (
    ForestKernel,
    FoSTA,
    alignment_score,
    foscttm,
    hierarchical_assignment,
    semantic_coupling,
)
from gnomon.geometry.fosta import embedding, forest, labels, reference, semantic, transport
from gnomon.geometry.fosta.metrics import label_transfer

WINE = load_wine(return_X_y=True)
IRIS = load_iris(return_X_y=True)


def masked(y, share=0.5, seed=0):
    """Float labels with NaN in a share of the rows."""
    out = np.asarray(y, dtype=float).copy()
    out[np.random.default_rng(seed).random(len(out)) < share] = np.nan
    return out


def unit(n, classes, seed, concentration=0.5):
    """Dirichlet semantic vectors."""
    S = np.random.default_rng(seed).dirichlet(np.full(classes, concentration), n)
    return S / np.linalg.norm(S, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def pair():
    """Half the features of wine each, B's labels half masked."""
    X, y = WINE
    model = FoSTA(80, random_state=0, n_components=3)
    Z = model.fit_transform(X[:, :6], X[:, 6:], y, masked(y))
    return model, Z, X, y


# --- forests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"max_depth": 3}, {"min_samples_leaf": 4}, {"model": "et"}])
def test_vote_is_the_out_of_bag_prediction(options):
    X, y = WINE
    kernel = ForestKernel(100, random_state=3, **options).fit(X, y)
    kernel.forest_.set_params(oob_score=True)
    model = type(kernel.forest_)(**kernel.forest_.get_params()).fit(X, y)
    np.testing.assert_allclose(kernel.votes(), model.oob_decision_function_, atol=1e-14)


def test_rows_sum_to_one_over_labelled_columns():
    X, y = WINE
    kernel = ForestKernel(100, random_state=0).fit(X, masked(y))
    p = (kernel.kernel_.left @ kernel.kernel_.right.T).toarray()
    labelled = kernel.codes_ >= 0
    np.testing.assert_allclose(p[:, labelled].sum(1), 1, atol=1e-12)
    np.testing.assert_array_equal(np.diag(p)[labelled], 0)


def test_one_tree_by_hand():
    everything = np.ones(4, dtype=bool)
    # with a second tree that has row 4 alone in its bag, so that every row is once in and once out of a bag
    counts, leaves = np.array([[2.0, 0], [1, 0], [1, 0], [0, 4]]), np.zeros((4, 2), dtype=np.int32)
    leaves[:, 1] = 1
    left, right, _ = forest.gap_factors(leaves, 2, counts, everything)
    np.testing.assert_allclose((left[3] * [1, 0])[0] * right[:, 0], [0.5, 0.25, 0.25, 0])
    np.testing.assert_allclose(reference.gap_proximity(leaves, counts, everything)[3, :3], [0.5, 0.25, 0.25])


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_factors_equal_the_loops(share):
    X, y = IRIS
    rows = np.random.default_rng(0).permutation(150)[:36]
    kernel = ForestKernel(25, random_state=1).fit(X[rows], masked(y[rows], share))
    labelled = kernel.codes_ >= 0
    counts = np.zeros((36, 25))
    counts[labelled] = forest.multiplicities(kernel.forest_, int(labelled.sum()))
    want = reference.gap_kernel(kernel.forest_.apply(X[rows]), counts, labelled)
    K = kernel.kernel_.toarray()
    np.testing.assert_allclose(K, want, atol=1e-12)
    np.testing.assert_allclose(kernel.kernel_ @ np.eye(36), want, atol=1e-12)
    rows = np.array([3, 1, 30])
    pick = sparse.csr_array(np.eye(36)[:, [0, 3, 7]])
    got = kernel.kernel_.rows_times(rows, kernel.kernel_.prepared(pick)).toarray()
    np.testing.assert_allclose(got, want[rows][:, [0, 3, 7]], atol=1e-12)


def test_multiplicities_are_those_that_grew_the_trees():
    """A tree grown anew with them as weights is the same tree."""
    X, y = WINE
    model = RandomForestClassifier(5, random_state=0).fit(X, y)
    for tree, counts in zip(model.estimators_, forest.multiplicities(model, len(X)).T, strict=True):
        assert counts.sum() == len(X)
        again = type(tree)(**tree.get_params()).fit(X.astype(np.float32), y, sample_weight=counts)
        np.testing.assert_array_equal(again.tree_.threshold, tree.tree_.threshold)


def test_unlabelled_rows_with_their_labels_and_bag_reproduce_the_labelled_formula():
    X, _y = WINE
    rng = np.random.default_rng(0)
    leaves = np.stack([rng.integers(0, 6, len(X)) + 6 * tree for tree in range(30)], axis=1).astype(np.int32)
    counts = np.stack(
        [np.bincount(rng.integers(0, len(X), len(X)), minlength=len(X)) for _ in range(30)], axis=1
    ).astype(float)
    whole = forest.gap_factors(leaves, 180, counts, np.ones(len(X), dtype=bool))
    # the general formula with c from the bootstrap in place of its mean, for rows that are said to be unlabelled
    mass = np.bincount(leaves.ravel(), weights=counts.ravel(), minlength=180)[leaves]
    np.testing.assert_allclose(whole[1], counts / mass)
    half = np.arange(len(X)) % 2 == 0
    part = forest.gap_factors(leaves, 180, np.where(half[:, None], counts, 0), half)
    inside = np.bincount(leaves[half].ravel(), weights=counts[half].ravel(), minlength=180)[leaves]
    np.testing.assert_allclose(part[1][half], (counts / inside)[half])
    np.testing.assert_allclose(part[0][~half], 1 / 30)
    np.testing.assert_allclose((part[1] * inside)[~half], np.tile(counts[half].mean(0), ((~half).sum(), 1)))


@pytest.mark.parametrize("kernel", forest.KERNELS)
def test_kernels_are_symmetric_with_unit_diagonal(kernel):
    X, y = WINE
    fit = ForestKernel(60, kernel=kernel, random_state=0).fit(X, masked(y))
    K = fit.kernel_.toarray()
    np.testing.assert_allclose(K, K.T, atol=1e-14)
    np.testing.assert_allclose(np.diag(K), 1)
    assert K.min() >= 0
    V = np.random.default_rng(0).normal(size=(len(X), 3))
    np.testing.assert_allclose(fit.kernel_ @ V, K @ V, atol=1e-10)
    np.testing.assert_allclose(fit.kernel_ @ V[:, 0], K @ V[:, 0], atol=1e-10)
    query = fit.query(X[:7]).toarray()
    np.testing.assert_allclose(query.sum(1), 1)
    assert np.mean(fit.votes().argmax(1) == y) > 0.6


def test_other_kernels_by_their_definition():
    X, y = IRIS
    fits = {k: ForestKernel(40, kernel=k, random_state=0).fit(X, y) for k in ("original", "oob", "kerf")}
    leaves = fits["original"].forest_.apply(X)
    meet = leaves[:, None] == leaves
    np.testing.assert_allclose(fits["original"].kernel_.toarray(), meet.mean(2), atol=1e-12)
    out = forest.multiplicities(fits["oob"].forest_, 150) == 0
    both = out[:, None] & out
    with np.errstate(invalid="ignore"):
        want = (meet & both).sum(2) / both.sum(2)
    np.fill_diagonal(want, 1)
    np.testing.assert_allclose(fits["oob"].kernel_.toarray(), np.nan_to_num(want), atol=1e-12)
    kerf = (meet / meet.sum(1)[None]).mean(2)
    np.testing.assert_allclose(
        fits["kerf"].kernel_.toarray(), kerf / np.sqrt(np.outer(np.diag(kerf), np.diag(kerf))), atol=1e-12
    )


def test_alpha_decay_kernel_by_hand():
    X = np.array([[0.0], [1], [2], [4], [8]])
    width = forest.widths(X, 2)
    np.testing.assert_allclose(width, [2, 1, 2, 3, 6])
    K = forest.alpha_decay(X, width, 2.0).toarray()
    np.testing.assert_allclose(K[0, 1], (np.exp(-1 / 4) + np.exp(-1)) / 2)
    duplicates = forest.alpha_decay(np.zeros((6, 1)), forest.widths(np.zeros((6, 1)), 5), 40.0).toarray()
    np.testing.assert_array_equal(duplicates, 1)


def test_scaling_a_column_by_a_power_of_two_changes_nothing():
    X, y = WINE
    one = FoSTA(60, random_state=0).fit_transform(X[:, :6], X[:, 6:], y, masked(y))
    scaled = X * 2.0 ** np.arange(-6, 7)
    np.testing.assert_array_equal(
        one, FoSTA(60, random_state=0).fit_transform(scaled[:, :6], scaled[:, 6:], y, masked(y))
    )


def test_other_monotone_maps_hardly_change_the_transfer():
    X, y = load_breast_cancer(return_X_y=True)
    hidden = np.isnan(masked(y))
    found = []
    for B in (X / X.std(0), np.exp(X / X.std(0) - 5)):
        f = FoSTA(100, random_state=0).fit(X[:, :15], B[:, 15:], y, masked(y))
        found.append(label_transfer(f.embedding_a_, y, f.embedding_b_[hidden], y[hidden]))
    assert abs(found[0] - found[1]) <= 0.02


# --- semantic vectors ------------------------------------------------------------------------------------------------


def test_semantic_vectors_by_their_definition():
    X, y = WINE
    fit = ForestKernel(60, random_state=0).fit(X, masked(y))
    S = semantic.semantic_vectors(fit.kernel_, fit.codes_, np.array([0, 2]))
    known = fit.codes_[:, None] == [0, 2]
    want = fit.kernel_.toarray() @ known / (known.sum(0) / (fit.codes_ >= 0).sum())
    np.testing.assert_allclose(S, want / np.linalg.norm(want, axis=1, keepdims=True), atol=1e-12)
    flat = semantic.semantic_vectors(fit.kernel_, fit.codes_, np.array([0, 2]), norm="l1")
    np.testing.assert_allclose(flat.sum(1), 1)


def test_prior_correction_does_nothing_to_balanced_labels():
    X, y = IRIS
    fit = ForestKernel(60, random_state=0).fit(X, y)
    with_, without = (
        semantic.semantic_vectors(fit.kernel_, fit.codes_, np.arange(3), prior_correct=p) for p in (True, False)
    )
    np.testing.assert_allclose(with_, without, atol=1e-14)


def test_a_row_that_resembles_nothing_is_zero():
    kernel = forest.ExplicitKernel(sparse.eye_array(4).tocsr())
    S = semantic.semantic_vectors(kernel, np.array([0, 1, -1, -1]), np.arange(2))
    np.testing.assert_array_equal(S, [[1, 0], [0, 1], [0, 0], [0, 0]])


def test_pseudotime_operator_sums_the_walks():
    rng = np.random.default_rng(0)
    K = rng.random((8, 8))
    K = K + K.T
    P, phi = K / K.sum(1, keepdims=True), K.sum(1) / K.sum()
    series, power = np.zeros((8, 8)), np.eye(8)
    for _ in range(400):
        power = power @ P
        series += power - phi
    low, high = series.min(1, keepdims=True), series.max(1, keepdims=True)
    np.testing.assert_allclose(semantic.dpt_operator(K), (series - low) / (high - low), atol=1e-10)


def test_pseudotime_on_landmarks_stays_near():
    X, y = WINE
    fit = ForestKernel(80, random_state=0).fit(X, masked(y))
    whole, part = (
        semantic.semantic_vectors(fit.kernel_, fit.codes_, np.arange(3), propagation="dpt", landmarks=m)
        for m in (178, 120)
    )
    assert np.median((whole * part).sum(1)) > 0.95


# --- hierarchical refinement -----------------------------------------------------------------------------------------


def test_ranks():
    assert transport.prime_factors(360) == [2, 2, 2, 3, 3, 5]
    assert transport.prime_factors(97) == [97]
    assert transport.prime_factors(1) == []
    assert transport.next_smooth(17) == 18
    assert transport.next_smooth(169) == 169
    for n, leaf in ((2000, 256), (20_000, 256), (360, 1), (13, 1), (1024, 10)):
        ranks = transport.schedule(n, leaf)
        assert n % np.prod(ranks) == 0
        assert n // np.prod(ranks) <= leaf
        assert max(ranks) <= 16
    assert transport.schedule(100, 100) == []
    assert sum(transport.schedule(360, 1)) == sum([2, 2, 2, 3, 3, 5])


@pytest.mark.parametrize("init", ["kmeans", "random"])
def test_a_permutation_for_every_size(init):
    for n in range(2, 201, 1 if init == "kmeans" else 13):
        X, Y = unit(n, 3, n), unit(n, 3, n + 1)
        match = hierarchical_assignment(X, Y, leaf_size=1 + n // 4, init=init, random_state=n)
        np.testing.assert_array_equal(np.sort(match), np.arange(n))


def test_two_clusters_are_split_at_once_and_then_matched_exactly():
    for seed in range(24):
        rng = np.random.default_rng(seed)
        X, Y = (rng.permutation(np.r_[rng.normal(0, 0.1, 32), rng.normal(10, 0.1, 32)])[:, None] for _ in range(2))
        left, right = transport._split(*transport.factors(X, Y), X, Y, 2, "kmeans", rng)
        high = left[X[:, 0].argmax()]
        np.testing.assert_array_equal(left == high, X[:, 0] > 5)
        np.testing.assert_array_equal(right == high, Y[:, 0] > 5)
        match = hierarchical_assignment(X, Y, leaf_size=32, random_state=seed)
        np.testing.assert_array_equal(np.sort(X[:, 0]).argsort().argsort(), np.arange(64))
        cost, best = ((X - Y[match]) ** 2).sum(), ((np.sort(X[:, 0]) - np.sort(Y[:, 0])) ** 2).sum()
        assert cost == pytest.approx(best, rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 90), classes=st.integers(2, 5), leaf=st.integers(1, 100), seed=st.integers(0, 10**6))
def test_cost_is_never_below_the_optimum_and_equal_with_one_leaf(n, classes, leaf, seed):
    X, Y = unit(n, classes, seed), unit(n, classes, seed + 1)
    cost = cdist(X, Y, "sqeuclidean")
    best = cost[linear_sum_assignment(cost)].sum()
    found = cost[np.arange(n), hierarchical_assignment(X, Y, leaf_size=leaf, random_state=seed)].sum()
    assert found >= best - 1e-9
    if leaf >= n:
        assert found == pytest.approx(best, abs=1e-9)


def test_refinement_is_near_the_optimum():
    ratios = []
    for seed in range(6):
        X, Y = unit(512, 5, seed, 1.0), unit(512, 5, seed + 100, 1.0)
        cost = cdist(X, Y, "sqeuclidean")
        found = cost[np.arange(512), hierarchical_assignment(X, Y, leaf_size=64, random_state=seed)].sum()
        ratios.append(found / cost[linear_sum_assignment(cost)].sum())
    assert np.median(ratios) < 1.4


@settings(max_examples=40, deadline=None)
@given(rank=st.integers(1, 5), each=st.integers(1, 12), seed=st.integers(0, 10**6), ties=st.booleans())
def test_split_is_the_best_one_with_these_capacities(rank, each, seed, ties):
    from gnomon.geometry.fosta.loops import split_by_capacity

    Q = np.random.default_rng(seed).random((rank * each, rank))
    Q = np.round(Q, 1) if ties else Q
    column = split_by_capacity(Q, each)
    np.testing.assert_array_equal(np.bincount(column, minlength=rank), each)
    rows, cols = linear_sum_assignment(np.repeat(Q, each, axis=1), maximize=True)
    assert Q[np.arange(len(Q)), column].sum() == pytest.approx(np.repeat(Q, each, axis=1)[rows, cols].sum(), abs=1e-9)


def test_projection_keeps_its_marginals_and_equals_the_log_domain():
    from scipy.special import logsumexp

    from gnomon.geometry.fosta.loops import _project

    rng = np.random.default_rng(0)
    logits, f, g = rng.normal(size=(30, 3)) * 40, np.zeros(30), np.zeros(3)
    Q = _project(logits, f, g, 1 / 30, 1 / 3, 15)
    v = np.zeros(3)
    for _ in range(15):
        u = -np.log(30) - logsumexp(logits + v, axis=1)
        v = -np.log(3) - logsumexp(logits + u[:, None], axis=0)
    np.testing.assert_allclose(Q, np.exp(logits + u[:, None] + v), rtol=1e-9)
    np.testing.assert_allclose(Q.sum(0), 1 / 3)
    np.testing.assert_allclose(np.exp(logits + f[:, None] + g), Q, rtol=1e-9)


def test_identical_points_and_constant_blocks():
    X = np.ones((50, 3))
    np.testing.assert_array_equal(np.sort(hierarchical_assignment(X, X, leaf_size=4, random_state=0)), np.arange(50))


# --- couplings of unequal sizes --------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(3, 40), m=st.integers(3, 40), unequal=st.sampled_from(transport.UNEQUAL), seed=st.integers(0, 10**6)
)
def test_unequal_sizes(n, m, unequal, seed):
    A, B = unit(n, 3, seed), unit(m, 3, seed + 1)
    T = semantic_coupling(A, B, unequal=unequal, random_state=seed).toarray()
    small, big = sorted((n, m))
    axis = 0 if n <= m else 1  # of the larger side's rows, as an axis to sum over
    assert T.shape == (n, m)
    assert (T >= 0).all()
    if unequal == "dummy" and n != m:
        assert T.sum() == pytest.approx(n)
        assert (T > 0).sum() == small
        return
    np.testing.assert_array_equal((T > 0).sum(axis), 1)  # each row of the larger side once
    np.testing.assert_allclose(T.sum(1 - axis), 1)  # each row of the smaller side has mass one
    assert T.sum() == pytest.approx(small)
    if unequal == "surjection":
        uses = (T > 0).sum(1 - axis)
        assert set(uses) <= {big // small, -(-big // small)}
    if n == m:
        assert set(np.unique(T)) == {0, 1}


def test_equal_sizes_are_the_bijection():
    A, B = unit(30, 3, 0), unit(30, 3, 1)
    T = semantic_coupling(A, B, random_state=5)
    np.testing.assert_array_equal(
        T.toarray().argmax(1), hierarchical_assignment(A, B, random_state=np.random.default_rng(5))
    )


def test_extra_uses_go_where_the_larger_side_is_denser():
    S, B = np.repeat(np.eye(2), 10, axis=0), np.repeat(np.eye(2), (25, 10), axis=0)
    copies = transport.repeats(S, B, np.random.default_rng(0))
    assert copies[:10].sum() == 20
    assert copies[10:].sum() == 15
    assert copies.sum() == 35
    assert set(copies) == {1, 2}
    T = semantic_coupling(S, B, random_state=0).toarray()
    assert T[:10, 25:].sum() == 0


@pytest.mark.parametrize("solver", ["exact", "sinkhorn", "partial"])
def test_other_solvers_keep_their_marginals(solver):
    A, B = unit(20, 3, 0), unit(30, 3, 1)
    T = semantic_coupling(A, B, solver=solver, random_state=0).toarray()
    if solver == "partial":
        assert T.sum() == pytest.approx(0.9 * 20, rel=1e-3)
        assert T.sum(1).max() <= 1 + 1e-6
    else:
        np.testing.assert_allclose(T.sum(1), 1, atol=1e-4)
        np.testing.assert_allclose(T.sum(0), 2 / 3, atol=1e-4)


def test_swapping_the_domains_transposes_the_coupling():
    X, y = WINE
    options = {"solver": "exact", "random_state": 0}
    f, g = FoSTA(60, **options).fit(X[:, :6], X[:, 6:], y, y), FoSTA(60, **options).fit(X[:, 6:], X[:, :6], y, y)
    cost = cdist(f.semantic_a_, f.semantic_b_, "sqeuclidean")
    assert (f.coupling_ * cost).sum() == pytest.approx((g.coupling_ * cost.T).sum(), abs=1e-9)
    S, R = unit(40, 4, 0), unit(40, 4, 1)  # all costs distinct
    there, back = (semantic_coupling(*p, solver="exact", random_state=0).toarray() for p in ((S, R), (R, S)))
    np.testing.assert_array_equal(there, back.T)


# --- the affinity and its embedding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("affinity", ["product", "symmetric"])
def test_affinity_is_the_symmetrised_block_matrix(affinity):
    X, y = WINE
    f = FoSTA(40, affinity=affinity, mu=0.4, random_state=0).fit(X[:100, :6], X[:, 6:], y[:100], masked(y))
    K = [k.kernel_.toarray() for k in (f.kernel_a_, f.kernel_b_)]
    want = reference.joint_affinity(*K, f.coupling_.toarray(), 0.4, affinity)
    W = f.affinity_
    np.testing.assert_allclose(W.toarray(), want, atol=1e-12)
    np.testing.assert_allclose(W @ np.eye(278), want, atol=1e-12)
    chosen = np.array([0, 5, 99, 100, 177, 277])
    got = np.zeros((278, 6))
    for rows, block in W.columns(chosen):
        got[rows] = block
    np.testing.assert_allclose(got, want[:, chosen], atol=1e-12)


def test_walk_limits():
    rng = np.random.default_rng(0)
    W = rng.random((30, 30))
    W = W + W.T
    P, eigenvalues = embedding.walk(W, 0.0)
    np.testing.assert_allclose(P, 1 / 30)
    P, eigenvalues = embedding.walk(W, 0.7)
    np.testing.assert_allclose(P.sum(1), 1)
    np.testing.assert_allclose(np.sort(eigenvalues), np.sort(np.abs(np.linalg.eigvals(P))), atol=1e-10)
    U = embedding.potential(P, 2000)
    np.testing.assert_allclose(U, np.broadcast_to(U[0], U.shape), atol=1e-8)
    np.testing.assert_allclose(embedding.potential(P, 2), -np.log(P @ P + 1e-7))


def test_entropy_and_its_knee():
    entropy = embedding.von_neumann_entropy(np.array([1.0, 0.5]), 3)
    for t, found in enumerate(entropy, 1):
        p = np.array([1, 0.5**t]) / (1 + 0.5**t)
        assert found == pytest.approx(-(p * np.log(p)).sum())
    broken = np.r_[np.linspace(10, 2, 9), np.linspace(2, 1, 40)[1:]]
    assert embedding.knee(broken) == 9


def test_scaling_recovers_distances_and_agrees_with_scikit_learn():
    from sklearn.manifold import smacof

    P = np.random.default_rng(0).normal(size=(60, 6))
    apart = cdist(P[:, :3], P[:, :3])
    np.testing.assert_allclose(cdist(*[embedding.metric_mds(apart, 3)] * 2), apart, atol=1e-8)
    full = cdist(P, P)
    Z = embedding.metric_mds(full, 2, rounds=50, tolerance=-1.0)
    start = embedding.classical_mds(full, 2)
    peer, _ = smacof(full, n_components=2, init=start, n_init=1, max_iter=50, eps=0, normalized_stress=False)
    np.testing.assert_allclose(cdist(Z, Z), cdist(peer, peer), atol=1e-4)
    assert embedding.metric_mds(np.zeros((5, 5)), 2).shape == (5, 2)


def test_infinite_potential_is_an_error():
    with pytest.raises(FloatingPointError, match="potential"):
        embedding.potential(np.array([[np.nan, 1.0], [0.5, 0.5]]), 2)


def test_landmarks_keep_the_picture(pair):
    _model, Z, X, y = pair
    part = FoSTA(80, random_state=0, n_components=3, landmarks=150).fit_transform(X[:, :6], X[:, 6:], y, masked(y))
    assert part.shape == Z.shape
    hidden = np.isnan(masked(y))
    accuracy = [label_transfer(E[:178], y, E[178:][hidden], y[hidden]) for E in (Z, part)]
    assert abs(accuracy[0] - accuracy[1]) < 0.1
    assert accuracy[1] > 0.8


def test_umap_gets_the_potential_distances(monkeypatch):
    """UMAP itself compiles for minutes: what it is handed is looked at instead."""
    given = {}

    class Recorder:
        def __init__(self, **options):
            given.update(options)

        def fit_transform(self, apart):
            given["apart"] = apart
            return apart[:, : given["n_components"]]

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=Recorder))
    X, y = WINE
    f = FoSTA(40, embedder="umap", t=3, random_state=0)
    Z = f.fit_transform(X[:, :6], X[:, 6:], y, y)
    assert Z.shape == (356, 2)
    assert given["metric"] == "precomputed"
    U = embedding.potential(embedding.walk(f.affinity_.toarray(), 0.7)[0], 3)
    np.testing.assert_allclose(given["apart"], cdist(U, U), atol=1e-5)


def test_spectral_embedder():
    X, y = WINE
    Z = FoSTA(40, embedder="spectral", random_state=0).fit_transform(X[:, :6], X[:, 6:], y, y)
    assert Z.shape == (356, 2)
    assert np.isfinite(Z).all()
    assert label_transfer(Z[:178], y, Z[178:], y) > 0.8


# --- the estimator ---------------------------------------------------------------------------------------------------


def test_identical_domains_meet_at_no_cost():
    X, y = load_breast_cancer(return_X_y=True)
    X, y = X[:200], y[:200]
    f = FoSTA(100, random_state=0).fit(X, X, y, y)
    cost = ((f.semantic_a_ - f.coupling_ @ f.semantic_b_) ** 2).sum()
    assert cost < 1e-12
    np.testing.assert_array_equal(f.semantic_a_, f.semantic_b_)
    if len(np.unique(f.semantic_a_, axis=0)) == 200:
        np.testing.assert_array_equal(f.coupling_.toarray(), np.eye(200))
    assert foscttm(f.embedding_a_, f.embedding_b_) < 0.02


def test_identical_domains_with_distinct_vectors_get_the_identity():
    S = unit(150, 4, 0)
    np.testing.assert_array_equal(hierarchical_assignment(S, S, random_state=0), np.arange(150))
    T = semantic_coupling(S, S, solver="exact", random_state=1)
    np.testing.assert_array_equal(T.toarray(), np.eye(150))


def test_masked_labels_reach_nothing():
    """Whatever stands behind the mask: forest, priors, coupling and embedding are the same."""
    X, y = WINE
    yb = masked(y)
    words = np.array(["a", "b", "c"], dtype=object)
    as_words = words[y]
    as_words[np.isnan(yb)] = None
    one = FoSTA(60, random_state=0).fit(X[:, :6], X[:, 6:], y, yb)
    two = FoSTA(60, random_state=0).fit(X[:, :6], X[:, 6:], words[y], as_words)
    np.testing.assert_array_equal(one.coupling_.toarray(), two.coupling_.toarray())
    np.testing.assert_array_equal(one.embedding_b_, two.embedding_b_)
    np.testing.assert_array_equal(words[one.transfer_labels().labels.astype(int)], two.transfer_labels().labels)


def test_what_a_fit_gives(pair):
    model, Z, X, y = pair
    assert Z.shape == (356, 3)
    assert model.coupling_.shape == (178, 178)
    assert "178 rows, 0 unlabelled" in repr(model)
    assert "3 shared classes" in repr(model)
    assert 1 <= model.t_ <= 100
    hidden = np.isnan(masked(y))
    found = model.transfer_labels("a->b")
    assert np.mean(found.labels[hidden] == y[hidden]) > 0.85
    np.testing.assert_allclose(found.shares.sum(1), 1)
    assert np.mean(model.transfer_labels("b->a").labels == y) > 0.85
    mapped = model.barycentric_map()
    np.testing.assert_allclose(mapped, X[model.coupling_.toarray().argmax(1)][:, 6:])
    placed = model.transform(X[:, 6:], domain="b")
    assert label_transfer(Z[:178], y, placed[hidden], y[hidden]) > 0.85
    assert placed.shape == (178, 3)
    again = FoSTA(80, random_state=0, n_components=3).fit_transform(X[:, :6], X[:, 6:], y, masked(y))
    np.testing.assert_array_equal(Z, again)


@pytest.mark.parametrize("unlabeled", ["include", "exclude", "predict_shared"])
def test_coupled_rows(unlabeled):
    X, y = WINE
    ya = np.array(["zero", "one", "two"], dtype=object)[y]
    yb = np.array(["zero", "other", "two"], dtype=object)[y]
    yb[::3] = ""
    f = FoSTA(60, unlabeled=unlabeled, random_state=0).fit(X[:, :6], X[:, 6:], ya, yb)
    assert list(f.shared_classes_) == ["two", "zero"]
    used_a, used_b = (np.asarray(f.coupling_.sum(axis=k)).ravel() > 0 for k in (1, 0))
    np.testing.assert_array_equal(used_a, y != 1)
    shared, empty = np.isin(yb, ["zero", "two"]), yb == ""
    predicted = np.isin(f.kernel_b_.classes_[f.kernel_b_.votes().argmax(1)], ["zero", "two"])
    want = {"include": shared | empty, "exclude": shared, "predict_shared": shared | (empty & predicted)}
    np.testing.assert_array_equal(used_b, want[unlabeled])
    assert np.isnan(f.barycentric_map()[y == 1]).all()


def test_labels_of_every_kind():
    codes, classes = labels.encode(pd.Series(["b", None, "", "a", np.nan], dtype=object))
    np.testing.assert_array_equal(codes, [1, -1, -1, 0, -1])
    assert list(classes) == ["a", "b"]
    np.testing.assert_array_equal(labels.encode([3, -1, 7, 3])[0], [0, -1, 1, 0])
    np.testing.assert_array_equal(labels.encode([3.0, np.nan, 7.0])[0], [0, -1, 1])
    np.testing.assert_array_equal(labels.encode(pd.Categorical(["x", None, "y"]))[0], [0, -1, 1])
    np.testing.assert_array_equal(labels.encode(pd.array([1, None, 2], dtype="Int64"))[0], [0, -1, 1])
    with pytest.raises(ValueError, match="mix of types"):
        labels.encode(np.array(["a", 1, None], dtype=object))


def test_frames_and_sparse_features():
    X, y = WINE
    frame = pd.DataFrame(X[:, :6], columns=list("abcdef"))
    one = FoSTA(40, random_state=0).fit(frame, sparse.csr_array(X[:, 6:]), pd.Series(y), pd.Series(masked(y)))
    two = FoSTA(40, random_state=0).fit(X[:, :6], X[:, 6:], y, masked(y))
    np.testing.assert_array_equal(one.embedding_a_, two.embedding_a_)
    np.testing.assert_allclose(one.barycentric_map(), two.barycentric_map())


def test_missing_values_go_down_the_trees():
    X, y = WINE
    X = X.copy()
    X[::7, 2] = np.nan
    f = FoSTA(60, missing="forest", random_state=0).fit(X[:, :6], X[:, 6:], y, masked(y))
    assert np.isfinite(f.embedding_a_).all()
    with pytest.raises(ValueError, match=r"domain A: .*NaN"):
        FoSTA(60).fit(X[:, :6], X[:, 6:], y, y)


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_foscttm_by_hand():
    A, B = np.array([[0.0], [1], [3]]), np.array([[0.1], [2.5], [2.8]])
    np.testing.assert_allclose(foscttm(A, B, per_row=True), [0, 1 / 3, 0, 0, 1 / 3, 0])
    assert foscttm(A, B) == pytest.approx(1 / 9)
    assert foscttm(A, A) == 0
    assert foscttm(np.zeros((5, 2)), np.zeros((5, 2))) == 0  # strictly closer
    X = np.random.default_rng(0).normal(size=(2500, 3))
    assert foscttm(X, X[np.random.default_rng(1).permutation(2500)]) == pytest.approx(0.5, abs=0.03)


def test_alignment_of_mixed_and_parted_domains():
    Z, domain = np.random.default_rng(0).normal(size=(2000, 2)), np.arange(2000) % 2
    assert alignment_score(Z, domain) == pytest.approx(1, abs=0.05)
    assert alignment_score(Z + 100 * domain[:, None], domain) == 0
    uneven = np.arange(2000) % 4 == 0
    assert alignment_score(Z, uneven) == pytest.approx(1, abs=0.05)
    by_hand = alignment_score([[0.0], [1.0], [10.0], [11.0]], ["a", "b", "a", "b"], k=1)
    assert by_hand == 1 - (0 - 0.5) / (1 - 0.5)


# --- scikit-learn's protocol -----------------------------------------------------------------------------------------


@parametrize_with_checks([ForestKernel(50, random_state=0), ForestKernel(kernel="euclidean")])
def test_kernel_keeps_the_protocol(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        check(estimator)


PARAMETER_CHECKS = ("check_no_attributes_set_in_init", "check_parameters_default_constructible", "check_get_params_invariance",
                    "check_set_params", "check_estimator_cloneable", "check_estimator_repr", "check_do_not_raise_errors_in_init_or_set_param",
                    "check_estimator_tags_renamed", "check_valid_tag_types")  # fmt: skip


@parametrize_with_checks([FoSTA()])
def test_parameters_keep_the_protocol(estimator, check):
    if getattr(check, "func", check).__name__ not in PARAMETER_CHECKS:
        pytest.skip("fit takes two domains and two label vectors where the check passes one of each")
    check(estimator)


# --- bad input -------------------------------------------------------------------------------------------------------


def fit(XA=None, XB=None, yA=None, yB=None, **options):
    X, y = WINE
    given = (XA, XB, yA, yB)
    defaults = (X[:, :6], X[:, 6:], y, y)
    return FoSTA(**{"n_estimators": 40, "random_state": 0, **options}).fit(
        *(d if g is None else g for g, d in zip(given, defaults, strict=True))
    )


def test_no_shared_class_lists_both_label_sets():
    with pytest.raises(ValueError, match=r"share no class.*'p', 'q', 'r'.*0, 1, 2"):
        fit(yA=np.array(list("pqr"))[WINE[1]])


def test_a_domain_without_labels():
    with pytest.raises(ValueError, match="domain B: y: got no labelled row"):
        fit(yB=np.full(178, np.nan))


def test_a_class_with_one_row_warns():
    y = WINE[1].copy()
    y[0] = 9
    with pytest.warns(UserWarning, match="class 9 has one labelled row"):
        fit(yA=y)


def test_few_rows():
    with pytest.raises(ValueError, match="domain A: X: got n_samples = 9 rows; expected at least 10"):
        fit(XA=WINE[0][:9, :6], yA=WINE[1][:9])


def test_few_trees():
    with pytest.raises(ValueError, match="raise n_estimators or labels"):
        fit(n_estimators=1)


def test_one_domain_much_larger_warns():
    X, y = np.tile(WINE[0], (4, 1)), np.tile(WINE[1], 4)
    rows = np.r_[0:4, 60:64, 140:144]
    with pytest.warns(UserWarning, match="more than 50 times"):
        fit(XA=WINE[0][rows, :6], yA=y[rows], XB=X[:, 6:], yB=y)


@pytest.mark.parametrize(("options", "says"), [
    ({"kernel": "rbf"}, "kernel: got 'rbf'"), ({"model": "gbt"}, "model: got 'gbt'"), ({"solver": "lp"}, "solver: got 'lp'"),
    ({"unequal": "drop"}, "unequal"), ({"unlabeled": "all"}, "unlabeled"), ({"affinity": "max"}, "affinity"),
    ({"embedder": "tsne"}, "embedder"), ({"norm": "l3"}, "norm"), ({"propagation": "walk"}, "propagation"),
    ({"hiref_init": "zero"}, "hiref_init"), ({"mu": 0}, "mu: got 0"), ({"mu": 1.0, "affinity": "symmetric"}, "mu: got 1.0"),
    ({"beta": 1.5}, "beta: got 1.5"), ({"t": 0}, "t: got 0"), ({"n_components": 0}, "n_components"), ({"landmarks": 3}, "landmarks"),
    ({"reg": 0}, "reg"), ({"mass": 2}, "mass"), ({"leaf_size": 0}, "leaf_size"), ({"n_estimators": 0}, "n_estimators"),
    ({"missing": "mean"}, "missing"),
])  # fmt: skip
def test_unknown_options(options, says):
    with pytest.raises(ValueError, match=says):
        fit(**options)


def test_bad_arguments_elsewhere(pair):
    model = pair[0]
    with pytest.raises(ValueError, match="domain: got 'c'"):
        model.transform(WINE[0][:, :6], domain="c")
    with pytest.raises(ValueError, match="direction: got 'b'"):
        model.transfer_labels("b")
    with pytest.raises(ValueError, match="as many rows"):
        hierarchical_assignment(np.zeros((3, 2)), np.zeros((4, 2)))
    with pytest.raises(ValueError, match="init: got 'pca'"):
        hierarchical_assignment(np.zeros((3, 2)), np.zeros((3, 2)), init="pca")
    with pytest.raises(ValueError, match="leaf_size: got 0"):
        hierarchical_assignment(np.zeros((3, 2)), np.zeros((3, 2)), leaf_size=0)
    with pytest.raises(ValueError, match="partners"):
        foscttm(np.zeros((3, 2)), np.zeros((4, 2)))
    with pytest.raises(ValueError, match="two or more"):
        alignment_score(np.zeros((30, 2)), np.zeros(30))
    with pytest.raises(ValueError, match="labels; expected one for each"):
        ForestKernel().fit(WINE[0], WINE[1][:5])
    with pytest.raises(ValueError, match="requires y"):
        ForestKernel().fit(WINE[0], None)
    with pytest.raises(ValueError, match="at most 2000"):
        embedding.umap(embedding.JointAffinity([forest.ExplicitKernel(sparse.eye_array(2001).tocsr())], []))


# --- single cells ----------------------------------------------------------------------------------------------------


def cells(n=240, batches=3, seed=0):
    from anndata import AnnData

    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, n)
    X = rng.normal(size=(n, 12)) + 3 * np.eye(3, 12)[kind]
    batch = rng.choice(batches, n, p=[0.5, 0.3, 0.2][:batches] if batches == 3 else None)
    X += rng.normal(size=(batches, 12))[batch]
    obs = pd.DataFrame({"batch": pd.Categorical([f"b{b}" for b in batch]), "cell_type": pd.Categorical(np.array(["T", "B", "NK"])[kind])},
                       index=[f"c{i}" for i in range(n)])  # fmt: skip
    obs.loc[rng.random(n) < 0.4, "cell_type"] = np.nan
    return AnnData(X.astype(np.float32), obs=obs), np.array(["T", "B", "NK"])[kind]


@pytest.mark.parametrize("batches", [2, 3])
def test_anndata(batches):
    adata, truth = cells(batches=batches)
    model = FoSTA(60, random_state=0).fit_anndata(adata)
    assert adata.obsm["X_fosta"].shape == (240, 2)
    assert len(model.couplings_) == batches - 1
    assert model.batches_[0] == adata.obs["batch"].value_counts().index[0]
    assert np.mean(adata.obs["X_fosta_label"] == truth) > 0.85
    assert adata.obs["X_fosta_share"].between(0, 1).all()
    W = model.affinity_
    chosen = np.sort(np.random.default_rng(0).permutation(240)[:60])
    dense = W.toarray()
    got = np.zeros((240, 60))
    for rows, block in W.columns(chosen):
        got[rows] = block
    np.testing.assert_allclose(got, dense[:, chosen], atol=1e-12)
    np.testing.assert_allclose(W @ np.eye(240), dense, atol=1e-12)


def test_anndata_is_never_overwritten_unasked():
    adata, _ = cells(batches=2)
    adata.obsm["X_pca"] = np.asarray(adata.X[:, :8])
    FoSTA(60, random_state=0).fit_anndata(adata, use_rep="X_pca", key_added="a")
    with pytest.raises(ValueError, match="'a' is in adata already"):
        FoSTA(60).fit_anndata(adata, key_added="a")
    FoSTA(60, random_state=0).fit_anndata(adata, key_added="a", overwrite=True)


@pytest.mark.parametrize(("options", "says"), [
    ({"batch_key": "lab"}, "no column 'lab'"), ({"label_key": "kind"}, "no column 'kind'"), ({"use_rep": "X_pca"}, "no entry 'X_pca'"),
    ({"batch_key": "one"}, "1 batch"), ({"batch_key": "gap"}, "lacks 1 values"),
])  # fmt: skip
def test_anndata_bad_input(options, says):
    adata, _ = cells(batches=2)
    adata.obs["one"] = "x"
    adata.obs["gap"] = adata.obs["batch"].where(np.arange(240) > 0)
    with pytest.raises(ValueError, match=says):
        FoSTA(60).fit_anndata(adata, **options)
