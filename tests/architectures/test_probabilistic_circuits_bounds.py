"""Separation ranks, bounds and certificates, with the figures that can be worked out by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.architectures import (
    Circuit,
    best_logit_nll,
    best_mixture_nll,
    context_bound,
    information_bound,
    output_bound,
    separation_rank,
    vtree,
    vtree_bound,
    vtree_certificate,
)
from gnomon.architectures.probabilistic_circuits.tasks import Copies, aligned, crossing, factorization

K8 = factorization(8)
ROOT = [0, 1, 2, 3]
SPLIT = [0, 2, 4, 6]


# --- separation rank -------------------------------------------------------------------------------------------------


def test_rank_at_a_cut_is_the_width():
    pc = Circuit(vtree("balanced", 8), 4, 4).initialize(random_state=0)
    found = separation_rank(pc, ROOT)
    assert found.rank == 4
    for tolerance in (1e-6, 1e-8, 1e-10, 1e-12):
        assert found.above(tolerance) == 4
    for node, scope in enumerate(vtree("balanced", 8).scopes):
        if 0 < len(scope) < 8:
            assert separation_rank(pc, sorted(scope)).rank <= 4, node


def test_generic_rank_across_every_pair_falls_off():
    """It is 256, but softmax weights leave few singular values above a tolerance."""
    found = separation_rank(Circuit(vtree("balanced", 8), 4, 4).initialize(random_state=0), SPLIT)
    assert 16 < found.above(1e-6) < found.above(1e-10) < 256


def copy_circuit():
    """Leaf unit k is symbol k, pairs mix by the identity, all above uniformly: p is a product of (1/4)[x_2i = x_2i+1]."""
    tree, eye = vtree("balanced", 8), np.eye(4)
    weight = np.stack([np.stack([eye, eye] if len(tree.scopes[n]) == 2 else [np.full((4, 4), 0.25)] * 2)
                       for n, _, _ in tree.nodes])  # fmt: skip
    return Circuit.from_weights(tree, np.repeat(eye[None], 8, 0), weight, np.full(4, 0.25))


def test_copy_circuit_has_full_rank_across_its_pairs():
    pc = copy_circuit()
    np.testing.assert_allclose(pc.joint(), Copies([aligned(8)], noise=0.0).truth[0], atol=1e-15)
    found = separation_rank(pc, SPLIT)
    assert found.rank == 256
    np.testing.assert_allclose(found.singular_values, found.singular_values[0], rtol=1e-10)
    assert separation_rank(pc, ROOT).rank == 1


def test_rank_of_arrays_and_samples():
    rng = np.random.default_rng(0)
    a, b = rng.random((6, 3)), rng.random((6, 3))
    table = np.einsum("ik,jk->ij", a, b)
    assert separation_rank(table, [0]).rank == 3
    assert separation_rank(np.zeros((2, 2)), [0]).rank == 0
    pc = Circuit(vtree("balanced", 8), 4, 3).initialize(random_state=0)
    assert separation_rank(pc, ROOT, n_samples=40, random_state=0).rank == 3
    big = Circuit(vtree("balanced", 12), 4, 3).initialize(random_state=0)
    assert separation_rank(big, range(6), n_samples=40, random_state=0).rank == 3
    with pytest.raises(ValueError, match="sample rows and columns"):
        separation_rank(big, range(6))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: separation_rank(np.ones((2, 2)), []), "subset"),
        (lambda: separation_rank(np.ones((2, 2)), [0, 1]), "not all"),
        (lambda: separation_rank(np.ones((2, 2)), [2]), "subset"),
        (lambda: separation_rank(np.ones((2, 2)), [0], tolerance=2), "tolerance"),
        (lambda: separation_rank(np.ones((2, 2)), [0], n_samples=3), "score_samples"),
        (lambda: separation_rank(np.full((2, 2), np.nan), [0]), "NaN"),
    ],
)
def test_bad_rank_input(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# --- the output bottleneck -------------------------------------------------------------------------------------------


def test_output_bound():
    assert math.isclose(output_bound(16, 4), 1.386294, abs_tol=1e-6)
    assert math.isclose(output_bound(16, 4, exact=True), 1.386294, abs_tol=1e-6)
    assert math.isclose(output_bound(6, 4, exact=True), 0.462098, abs_tol=1e-6)
    assert math.isclose(output_bound(6, 4), 0.405465, abs_tol=1e-6)
    assert output_bound(4, 9) == output_bound(4, 9, exact=True) == 0


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 7), st.integers(1, 7))
def test_em_keeps_the_output_bound_and_finds_the_optimum(V, R):
    found = best_mixture_nll(np.eye(V), R, restarts=20, n_steps=300, random_state=0)
    assert (found.every >= output_bound(V, R) - 1e-9).all()
    assert found.nll >= output_bound(V, R, exact=True) - 1e-6
    assert found.nll <= output_bound(V, R, exact=True) + 0.12


def test_em_attains_the_bound_where_the_width_divides():
    found = best_mixture_nll(np.eye(16), 4, random_state=0)
    assert abs(found.nll - math.log(4)) < 1e-6
    np.testing.assert_allclose(found.prediction.sum(1), 1, atol=1e-9)
    assert found.prediction.max() <= 1


def test_logit_head_needs_three():
    assert best_logit_nll(np.eye(16), 3, random_state=0).nll < 0.05
    assert best_logit_nll(np.eye(6), 2, random_state=0).nll < 0.05  # with the bias even two will do


def test_best_heads_reach_what_has_low_rank():
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(3), 10) @ rng.dirichlet(np.ones(6), 3)
    weights = rng.random(10)
    entropy = float(-(weights[:, None] / weights.sum() * P * np.log(P)).sum())
    found = best_mixture_nll(P, 3, weights=weights, n_steps=3000, restarts=5, random_state=0)
    assert -1e-9 <= found.nll - entropy < 1e-3
    assert best_mixture_nll(P, 1, weights=weights).nll > found.nll
    logit = best_logit_nll(P, 6, weights=weights, random_state=0)
    assert -1e-9 <= logit.nll - entropy < 1e-2


# --- the context bottleneck ------------------------------------------------------------------------------------------


def test_context_bound():
    assert math.isclose(context_bound(4, 4, 16, noise=0.05), 1.9924, abs_tol=1e-4)
    assert math.isclose(context_bound(4, 4, 16, noise=0.05, form="simple"), 1.9681, abs_tol=1e-4)
    assert math.isclose(context_bound(4, 4, 16), 2.772589, abs_tol=1e-6)
    assert context_bound(4, 4, 16, noise=1.0) == 0
    assert context_bound(0, 4, 16) == context_bound(4, 4, 256, noise=0.05) == 0
    entropy = Copies([crossing(8)]).entropy
    for R, nll in {4: 9.706, 16: 8.342, 64: 7.172, 256: 6.350}.items():
        assert math.isclose(entropy + context_bound(4, 4, R, noise=0.05), nll, abs_tol=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5), st.integers(2, 5), st.integers(1, 80), st.floats(0, 1))
def test_the_sharp_form_is_at_least_the_simple_one(m, V, R, noise):
    sharp, simple = (context_bound(m, V, R, noise=noise, form=f) for f in ("sharp", "simple"))
    assert sharp >= simple - 1e-9
    assert context_bound(m, V, R + 1, noise=noise) <= sharp + 1e-9


def test_bound_holds_for_the_best_mixture_of_one_cut():
    """Two noisy pairs across one cut: the best circuit there is a mixture of R rows, found by EM."""
    task = Copies([crossing(4)], T=4)
    P = task.truth[0].reshape(16, 16)
    P = P / P.sum(1, keepdims=True)
    entropy = 2 * task.copy_entropy
    for R in (2, 4, 8):
        gap = best_mixture_nll(P, R, restarts=10, n_steps=400, random_state=0).nll - entropy
        assert gap >= context_bound(2, 4, R, noise=0.05) - 1e-9


def test_certificate_of_the_factorization_of_eight():
    assert sorted(tuple(p) for m in K8 for p in m) == list(itertools.combinations(range(8), 2))
    found = vtree_certificate(K8, 8, 4)
    assert (found.pairs, found.width, found.proven) == (3, 64, True)
    assert found.by_size == {3: 3, 4: 4, 5: 3}
    for R, every, balanced in ((4, 1.243, 1.555), (16, 0.285, 0.569), (64, 0.0, 0.235)):
        assert math.isclose(vtree_certificate(K8, 8, 4, width=R, noise=0.05).nll_gap, every, abs_tol=1e-3)
        assert math.isclose(vtree_bound(vtree("balanced", 8), K8, 4, R, noise=0.05), balanced, abs_tol=1e-3)


def test_certificate_of_a_single_matching_is_empty():
    for matching in (aligned(8), crossing(8), K8[3]):
        assert vtree_certificate([matching], 8, 4)[:2] == (0, 1)
    assert vtree_certificate([[(0, 1)]], 2, 4).pairs == 1  # both leaves are singletons


def test_certificate_by_samples():
    found = vtree_certificate(factorization(24)[:2], 24, 4, method="sample", n_samples=200, random_state=0)
    assert not found.proven
    assert vtree_certificate(K8, 8, 4, method="sample", random_state=0).pairs == 3
    with pytest.raises(ValueError, match="use method='sample'"):
        vtree_certificate(factorization(24), 24, 4)


def test_information_bound_is_below_the_divergence_and_sees_copies():
    rng = np.random.default_rng(0)
    X = Copies([crossing(4)], T=4, noise=0.0).sample(4000, rng)
    found = information_bound(vtree("balanced", 4), X, 4)
    assert math.isclose(found["bound"], math.log(4), abs_tol=0.05)  # 2 log 4 - log 4
    assert information_bound(vtree("pairs", pairs=crossing(4)), X, 4)["bound"] == 0
    assert information_bound(vtree("balanced", 4), np.zeros((0, 4), int), 4)["node"] == -1
    pc = Circuit(vtree("balanced", 4), 4, 4).fit(X, n_steps=50, random_state=0)
    p = Copies([crossing(4)], T=4, noise=0.0).truth[0]
    q = pc.joint()
    assert (p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum() >= found["bound"] - 0.05


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: output_bound(0, 4), "n_symbols"),
        (lambda: output_bound(4, 1.5), "width"),
        (lambda: context_bound(-1, 4, 4), "pairs: got -1"),
        (lambda: context_bound([], 4, 4), "pairs: got none"),
        (lambda: context_bound(1, 4, 4, noise=2), "noise: got 2"),
        (lambda: context_bound(1, 4, 4, form="best"), "form 'best'"),
        (lambda: best_mixture_nll(np.ones((2, 2)), 1), "sum to 1"),
        (lambda: best_mixture_nll(np.ones(2), 1), "shape"),
        (lambda: best_mixture_nll(np.eye(2), 1, weights=[1.0]), "2 numbers"),
        (lambda: best_logit_nll(np.eye(2), 0), "width: got 0"),
        (lambda: vtree_certificate([], 8, 4), "matchings: got none"),
        (lambda: vtree_certificate([[(0, 0)]], 8, 4), "twice"),
        (lambda: vtree_certificate([[(0, 9)]], 8, 4), "outside"),
        (lambda: vtree_certificate(K8, 8, 4, method="guess"), "method 'guess'"),
        (lambda: factorization(5), "even"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_copies_are_drawn_from_their_table():
    for task in (
        Copies([aligned(4)], T=4, n_symbols=2),
        Copies(factorization(4), T=4, n_symbols=2, cue=True),
        Copies([[(0, 2)]], T=3, n_symbols=2),
    ):
        X = task.sample(40000, np.random.default_rng(0))
        joint = task.truth / len(task.truth) if task.cue else task.truth[0]
        seen = np.bincount(np.ravel_multi_index(X.T, task.sizes), minlength=joint.size) / len(X)
        assert math.isclose(joint.sum(), 1, abs_tol=1e-12)
        assert np.abs(seen - joint.ravel()).max() < 5 * math.sqrt(joint.max() / len(X))
    assert math.isclose(Copies([aligned(8)]).entropy, 6.34973, abs_tol=1e-4)
