"""Circuits against enumeration, recursion and the node-by-node reference; EM; two circuits on one vtree; bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from gnomon.architectures import Circuit, Vtree, VtreeSum, vtree
from gnomon.architectures.probabilistic_circuits.baselines import hmm_log_likelihood
from gnomon.architectures.probabilistic_circuits.data import states
from gnomon.architectures.probabilistic_circuits.learning import em_step
from gnomon.architectures.probabilistic_circuits.module import log_mix
from gnomon.architectures.probabilistic_circuits.reference import log_likelihood

SLOW = settings(max_examples=20, deadline=None)
PRODUCTS = ("cp", "tucker")


def random_circuit(seed, T=5, V=3, R=3, product="cp", kind="random"):
    return Circuit(vtree(kind, T, random_state=seed), V, R, product).initialize(random_state=seed)


circuits = st.builds(
    random_circuit,
    seed=st.integers(0, 10**6),
    T=st.integers(1, 6),
    V=st.integers(1, 4),
    R=st.integers(1, 4),
    product=st.sampled_from(PRODUCTS),
    kind=st.sampled_from(["random", "linear", "balanced"]),
)


# --- vtrees ----------------------------------------------------------------------------------------------------------


def test_kinds_of_vtree():
    assert vtree("balanced", 4).tree == ((0, 1), (2, 3))
    assert vtree("linear", 4).tree == (0, (1, (2, 3)))
    assert vtree("pairs", pairs=[(0, 2), (1, 3)]).tree == ((0, 2), (1, 3))
    assert vtree("balanced", variables=[5, 2]).tree == (5, 2)
    assert vtree("random", 6, random_state=1) == vtree("random", 6, random_state=1)
    assert set(vtree("random", 6, random_state=1).order) == set(range(6))
    assert vtree("linear", 1500).depth == 1499
    assert vtree("balanced", 8).depth == 3


def test_chow_liu_joins_what_depends():
    rng = np.random.default_rng(0)
    x = rng.integers(4, size=(500, 2))
    X = np.column_stack([x[:, 0], x[:, 1], x[:, 0], x[:, 1]])
    tree = vtree("chow_liu", data=X)
    assert {frozenset((0, 2)), frozenset((1, 3))} <= set(tree.scopes)
    renamed = vtree("chow_liu", data=X, variables=[4, 5, 6, 7])
    assert {frozenset((4, 6)), frozenset((5, 7))} <= set(renamed.scopes)


def test_cuts_and_levels():
    tree = vtree("balanced", 8)
    assert tree.cuts([(0, 4), (1, 5), (2, 6), (3, 7)]) == [2, 2, 2, 2, 4, 4]
    assert tree.cuts([(0, 1)]) == [0] * 6
    assert [s.stop - s.start for s in tree.levels] == [4, 2, 1]
    assert tree.relabel([7, 6, 5, 4, 3, 2, 1, 0]).order == (7, 6, 5, 4, 3, 2, 1, 0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Vtree(((0, 1), (1, 2))), r"not decomposable: variables \[1\]"),
        (lambda: Vtree((0, 0)), r"not decomposable: variables \[0\]"),
        (lambda: Vtree((0, -1)), "negative"),
        (lambda: vtree("oak", 4), "kind 'oak'"),
        (lambda: vtree("balanced"), "n_variables"),
        (lambda: vtree("balanced", variables=[]), "at least one"),
        (lambda: vtree("pairs"), "pairs: needed"),
        (lambda: vtree("chow_liu"), "data: needed"),
        (lambda: vtree("chow_liu", data=[[0, 1]], variables=[1]), "1 names for the 2 columns"),
        (lambda: Circuit(((0, 1), 3), 2).initialize(), r"vtree: variables \[2\] are missing"),
        (lambda: Circuit((0, 1), 2).fit([[0, 1, 1]]), r"vtree: variables \[2\] of X are missing"),
        (lambda: Circuit(((0, 1), (0, 2)), 2).initialize(), r"not decomposable: variables \[0\]"),
    ],
)
def test_bad_vtrees(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_a_vtree_is_made_of_pairs():
    with pytest.raises(TypeError, match="expected a variable"):
        Vtree((0, 1, 2))
    with pytest.raises(TypeError, match="expected a variable"):
        Vtree((0, "a"))


# --- values ----------------------------------------------------------------------------------------------------------


def test_one_unit_is_a_product_of_marginals():
    X = np.array([[0, 0], [0, 1], [1, 0], [1, 1], [0, 0], [0, 0]])
    pc = Circuit((0, 1), 2, width=1).fit(X, n_steps=5)
    marginals = [np.bincount(X[:, t], minlength=2) / len(X) for t in (0, 1)]
    np.testing.assert_allclose(pc.joint(), np.outer(*marginals), atol=1e-12)


def test_two_units_are_any_two_by_two_joint():
    X = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [5, 1, 2, 8], axis=0)
    pc = Circuit((0, 1), 2, width=2).fit(X, n_steps=500, restarts=2, random_state=0)
    np.testing.assert_allclose(pc.joint(), np.array([[5, 1], [2, 8]]) / 16, atol=1e-6)


@SLOW
@given(circuits)
def test_the_whole_mass_is_one(pc):
    p = np.exp(pc.score_samples(states(pc.sizes_)))
    assert math.isclose(p.sum(), 1, abs_tol=1e-12)
    np.testing.assert_allclose(pc.joint().ravel(), p, rtol=1e-10, atol=1e-300)
    nothing = np.full((2, len(pc.sizes_)), -1)
    np.testing.assert_allclose(pc.score_samples(nothing), 0, atol=1e-12)


@SLOW
@given(circuits, st.integers(0, 10**6))
def test_values_and_gradients_are_those_of_the_reference(pc, seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(-1, pc.sizes_[0], size=(4, len(pc.sizes_)))
    np.testing.assert_allclose(pc.score_samples(X), [log_likelihood(pc, row) for row in X], atol=1e-10)


@pytest.mark.parametrize("product", PRODUCTS)
def test_gradients_in_both_precisions(product):
    pc = random_circuit(3, T=4, V=3, R=2, product=product)
    x = torch.tensor([[0, 2, -1, 1], [1, 1, 0, 0]])
    logs = [w.detach().requires_grad_() for w in pc.module_.log_weights()]
    assert torch.autograd.gradcheck(lambda *w: pc.module_(x, w), logs)
    exact = torch.autograd.grad(pc.module_(x, logs).sum(), logs)
    single = [w.detach().float().requires_grad_() for w in logs]
    for a, b in zip(torch.autograd.grad(pc.module_(x, single).sum(), single), exact, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-4)


def test_exact_zeros_pass_no_nan():
    v = torch.tensor([[[-torch.inf, 0.0], [-torch.inf, -torch.inf]]], dtype=torch.float64, requires_grad=True)
    w = torch.eye(2, dtype=torch.float64)[None].requires_grad_()
    out = log_mix(v, w)
    assert out.tolist() == [[[-math.inf, 0.0], [-math.inf, -math.inf]]]
    out[torch.isfinite(out)].sum().backward()
    assert torch.isfinite(v.grad).all()
    assert torch.isfinite(w.grad).all()


@SLOW
@given(circuits, st.integers(0, 10**6))
def test_marginals_and_conditionals_are_those_of_enumeration(pc, seed):
    rng = np.random.default_rng(seed)
    T, table = len(pc.sizes_), pc.joint()
    order = rng.permutation(T)
    known, asked = sorted(order[: T // 2]), [int(order[-1])]
    row = rng.integers(pc.sizes_[0], size=(1, T))
    partial = np.full((1, T), -1)
    partial[:, known] = row[:, known]
    at = tuple(row[0, t] if t in known else slice(None) for t in range(T))
    assert math.isclose(float(np.exp(pc.score_samples(partial)[0])), table[at].sum(), rel_tol=1e-9)
    if asked[0] not in known:
        left = table[at]
        axis = [t for t in range(T) if t not in known].index(asked[0])
        expected = left.sum(tuple(a for a in range(left.ndim) if a != axis)) / left.sum()
        np.testing.assert_allclose(pc.conditional(row, asked, known)[0], expected, atol=1e-10)


@SLOW
@given(circuits, st.integers(0, 10**6))
def test_left_to_right_is_the_chain_rule(pc, seed):
    X = np.random.default_rng(seed).integers(pc.sizes_[0], size=(5, len(pc.sizes_)))
    logs = pc.autoregressive(X)
    told = np.take_along_axis(logs, X[..., None], -1)[..., 0]
    np.testing.assert_allclose(told.sum(1), pc.score_samples(X), atol=1e-10)
    np.testing.assert_allclose(np.exp(logs).sum(-1), 1, atol=1e-10)
    for t in range(len(pc.sizes_)):
        expected = pc.conditional(X, [t], list(range(t)))
        np.testing.assert_allclose(np.exp(logs[:, t]), expected, atol=1e-10)
    c = pc.contexts(X)
    np.testing.assert_allclose(c.sum(-1), 1, atol=1e-10)
    leaf = pc.module_.leaf.detach().softmax(-1).numpy()
    np.testing.assert_allclose(np.einsum("ntr,trv->ntv", c, leaf), np.exp(logs), atol=1e-10)


def test_left_to_right_leaves_out_what_is_missing():
    pc = random_circuit(0, T=5, V=3)
    X = np.array([[0, -1, 2, -1, 1]])
    np.testing.assert_allclose(np.exp(pc.autoregressive(X)[:, 4]), pc.conditional(X, [4], [0, 2]), atol=1e-12)


@pytest.mark.parametrize("product", PRODUCTS)
def test_renaming_variables_with_the_vtree_changes_nothing(product):
    pc = random_circuit(1, T=5, V=3, R=3, product=product)
    names = np.random.default_rng(0).permutation(5)
    leaf, weight, root = (w.detach().exp().numpy() for w in pc.module_.log_weights())
    moved = Circuit.from_weights(pc._tree().relabel(names), leaf[np.argsort(names)], weight, root, product=product)
    X = states((3,) * 5)
    np.testing.assert_allclose(moved.score_samples(X[:, np.argsort(names)]), pc.score_samples(X), atol=1e-12)


def test_linear_circuit_is_a_hidden_markov_model():
    rng = np.random.default_rng(0)
    T, R, V = 7, 4, 5
    initial, A, B = rng.dirichlet(np.ones(R)), rng.dirichlet(np.ones(R), R), rng.dirichlet(np.ones(V), R)
    weight = np.repeat(np.stack([np.eye(R), A])[None], T - 1, 0)
    pc = Circuit.from_weights(vtree("linear", T), np.repeat(B[None], T, 0), weight, initial)
    X = rng.integers(-1, V, size=(50, T))
    np.testing.assert_allclose(pc.score_samples(X), hmm_log_likelihood(X, initial, A, B), rtol=1e-12, atol=1e-12)


def test_alphabets_of_their_own():
    pc = Circuit(vtree("balanced", 3), [2, 4, 3], 3).initialize(random_state=0)
    assert pc.joint().shape == (2, 4, 3)
    assert math.isclose(pc.joint().sum(), 1, abs_tol=1e-12)
    assert (pc.autoregressive([[0, 0, 0]])[0, 0, 2:] == -np.inf).all()
    with pytest.raises(ValueError, match=r"symbol 2 in row 0, column 0; expected one in \[0, 2\)"):
        pc.score_samples([[2, 0, 0]])


# --- draws and explanations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", PRODUCTS)
def test_draws_follow_the_distribution(product):
    pc = random_circuit(5, T=3, V=3, R=3, product=product)
    X = pc.sample(20000, random_state=0)
    seen = np.bincount(np.ravel_multi_index(X.T, (3, 3, 3)), minlength=27)
    assert stats.chisquare(seen, pc.joint().ravel() * len(X)).pvalue > 1e-3
    assert (pc.sample(10, random_state=1) == pc.sample(10, random_state=1)).all()


def test_draws_given_evidence():
    pc = random_circuit(6, T=4, V=3, R=3)
    rows = np.repeat([[1, -1, -1, 2]], 20000, 0)
    X = pc.sample(given=rows, random_state=0)
    assert (X[:, [0, 3]] == [1, 2]).all()
    expected = pc.conditional(rows[:1], [1, 2], [0, 3]).ravel()
    seen = np.bincount(X[:, 1] * 3 + X[:, 2], minlength=9)
    assert stats.chisquare(seen, expected * len(X)).pvalue > 1e-3


@pytest.mark.parametrize("product", PRODUCTS)
def test_most_probable_beats_every_other_explanation(product):
    """One-hot rows to start from make units observable: then it is the exact MAP."""
    pc = random_circuit(2, T=4, V=3, R=3, product=product)
    _, weight, root = (w.detach().exp().numpy() for w in pc.module_.log_weights())
    one_hot = np.zeros_like(weight)
    np.put_along_axis(one_hot, weight.argmax(-1)[..., None], 1, -1)
    pc = Circuit.from_weights(pc._tree(), np.repeat(np.eye(3)[None], 4, 0), one_hot, root, product=product)
    table = pc.joint()
    best = np.unravel_index(table.argmax(), table.shape)
    found = pc.most_probable(np.full((1, 4), -1))[0]
    assert math.isclose(table[tuple(found)], table[best], rel_tol=1e-12)


# --- learning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("kind", ["balanced", "linear"])
def test_em_never_lowers_the_likelihood(product, kind):
    rng = np.random.default_rng(0)
    X = rng.integers(3, size=(60, 5))
    X[:, 3] = X[:, 0]
    X[rng.random(X.shape) < 0.2] = -1
    pc = Circuit(vtree(kind, 5), 3, 4, product).fit(X, n_steps=40, random_state=0)
    curve = np.array([*pc.loss_curve_, pc.log_likelihood_])
    assert (np.diff(curve) >= -1e-10).all()
    assert curve[-1] > curve[0] + 0.1


def test_em_of_a_sum_never_lowers_the_likelihood():
    rng = np.random.default_rng(0)
    X = rng.integers(3, size=(60, 4))
    parts = [Circuit(vtree("random", 4, random_state=i), 3, 3) for i in range(3)]
    for model, data in (
        (VtreeSum(parts), X),
        (VtreeSum(parts, selector=0), np.column_stack([rng.integers(3, size=60), X])),
    ):
        curve = np.array(model.fit(data, n_steps=30, random_state=0).loss_curve_)
        assert (np.diff(curve) >= -1e-10).all()


def test_a_pseudocount_leaves_nothing_impossible():
    X = np.array([[0, 1], [0, 1], [1, 0]])
    free, kept = (Circuit((0, 1), 3, 2).fit(X, n_steps=30, pseudocount=c) for c in (0.0, 0.1))
    assert free.score_samples([[2, 2]])[0] == -np.inf
    assert np.isfinite(kept.score_samples([[2, 2]])).all()
    assert math.isclose(kept.joint().sum(), 1, abs_tol=1e-12)
    one = Circuit((0, 1), 3, 1).fit(X, n_steps=3, pseudocount=3.0)
    np.testing.assert_allclose(one.joint().sum(1), [3 / 6, 2 / 6, 1 / 6], atol=1e-12)


def test_flows_are_expected_counts():
    """The E step by enumeration of the units of the smallest circuit: p(k | x) at the root."""
    pc = random_circuit(0, T=2, V=2, R=2)
    leaf, weight, root = (w.detach().exp().numpy() for w in pc.module_.log_weights())
    X = np.array([[0, 1], [1, 1], [0, 0]])
    units = np.stack([root * (weight[0, 0] @ leaf[0, :, a]) * (weight[0, 1] @ leaf[1, :, b]) for a, b in X])
    expected = (units / units.sum(1, keepdims=True)).mean(0)
    em_step(pc.module_, torch.from_numpy(X))
    np.testing.assert_allclose(pc.module_.root.detach().softmax(-1).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(
    "how",
    [
        {"optimizer": "adam"},
        {"optimizer": "em", "batch_size": 50, "step": 0.2},
        {"optimizer": "adam", "dtype": "float32"},
    ],
)
def test_learning_finds_copies(how):
    rng = np.random.default_rng(0)
    x = rng.integers(3, size=(400, 2))
    X = np.column_stack([x[:, 0], x[:, 0], x[:, 1], x[:, 1]])
    pc = Circuit(vtree("balanced", 4), 3, 6).fit(X, n_steps=100, random_state=0, **how)
    assert pc.score(X) > -2 * math.log(3) - 0.2
    assert pc.module_.leaf.dtype == torch.float64
    again = clone(pc).fit(X, n_steps=100, random_state=0, **how)
    np.testing.assert_array_equal(again.score_samples(X), pc.score_samples(X))


def test_restarts_and_warm_starts_do_not_lower_the_likelihood():
    X = np.random.default_rng(1).integers(3, size=(80, 4))
    one = Circuit(vtree("balanced", 4), 3, 2).fit(X, n_steps=10, random_state=0)
    five = Circuit(vtree("balanced", 4), 3, 2).fit(X, n_steps=10, restarts=5, random_state=0)
    assert five.log_likelihood_ >= one.log_likelihood_
    before = one.log_likelihood_
    assert one.fit(X, n_steps=10, warm_start=True).log_likelihood_ >= before


def test_a_warm_start_keeps_what_was_fitted():
    X = np.random.default_rng(0).integers(0, 3, (40, 3))
    one = Circuit(((0, 1), 2), width=2).fit(X, n_steps=3, random_state=0)
    with pytest.raises(ValueError, match=r"symbol 4 .* expected one in \[0, 3\)"):
        one.fit(np.where(X == 2, 4, X), n_steps=1, warm_start=True)
    one.fit(np.minimum(X, 1), n_steps=1, warm_start=True)
    assert one.sizes_ == (3, 3, 3)
    for change in ({"width": 3}, {"vtree": (0, (1, 2))}, {"product": "tucker"}):
        other = Circuit(((0, 1), 2), width=2).fit(X, n_steps=1, random_state=0).set_params(**change)
        with pytest.raises(ValueError, match=f"warm_start: {next(iter(change))} changed"):
            other.fit(X, n_steps=1, warm_start=True)
    both = VtreeSum([Circuit(((0, 1), 2), width=2), Circuit((0, (1, 2)), width=2)]).fit(X, n_steps=2, random_state=0)
    with pytest.raises(ValueError, match="symbol 3"):
        both.fit(X + 1, n_steps=1, warm_start=True)


def test_a_conditional_reads_only_what_is_given():
    X = np.random.default_rng(0).integers(0, 3, (40, 3))
    one = Circuit(((0, 1), 2), width=2).fit(X, n_steps=3, random_state=0)
    np.testing.assert_array_equal(one.conditional([[1, 99, 99]], [2], [0]), one.conditional([[1, 0, 0]], [2], [0]))
    with pytest.raises(ValueError, match="symbol 99"):
        one.conditional([[1, 99, 0]], [2], [1])
    with pytest.raises(ValueError, match=r"expected \[n, 3\]"):
        one.conditional([[1, 2]], [1], [0])


def test_state_survives_a_round_trip(tmp_path):
    pc = random_circuit(0)
    other = Circuit(pc.vtree, 3, 3).initialize(random_state=9)
    other.module_.load_state_dict(pc.module_.state_dict())
    X = states(pc.sizes_)
    np.testing.assert_array_equal(other.score_samples(X), pc.score_samples(X))
    mixed = Circuit(vtree("linear", 3), [2, 4, 3], 2, "tucker").initialize(random_state=0)
    mixed.save(tmp_path / "pc.safetensors")
    again = Circuit.load(tmp_path / "pc.safetensors")
    np.testing.assert_array_equal(again.joint(), mixed.joint())
    assert [f.name for f in tmp_path.iterdir()] == ["pc.safetensors"]
    (tmp_path / "text").write_text("nothing of the kind")
    with pytest.raises(ValueError, match="holds no circuit"):
        Circuit.load(tmp_path / "text")


# --- two circuits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", PRODUCTS)
def test_inner_product_and_divergences(product):
    tree = vtree("random", 4, random_state=0)
    p, q = (Circuit(tree, 3, 3, product).initialize(random_state=i) for i in (1, 2))
    a, b = p.joint(), q.joint()
    assert math.isclose(p.log_inner_product(q), math.log((a * b).sum()), abs_tol=1e-10)
    exact = float((a * np.log(a / b)).sum())
    assert math.isclose(p.kl_divergence(q), exact, abs_tol=1e-12)
    assert p.kl_divergence(q, "latent") >= exact
    assert math.isclose(p.kl_divergence(p, "latent"), 0, abs_tol=1e-12)


def test_entropies_of_leaves():
    pc = Circuit.from_weights((0, 1), [[[0.5, 0.5], [1, 0]]] * 2, [[[[1, 0], [0, 1]]] * 2], [0.5, 0.5])
    np.testing.assert_allclose(pc.leaf_entropies(), [[math.log(2), 0]] * 2, atol=1e-12)


# --- sums of vtrees --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("selector", [None, 0, 2])
def test_sum_of_vtrees(selector):
    parts = [Circuit(vtree("random", 3, random_state=i), 3, 2) for i in range(3)]
    model = VtreeSum(parts, selector).initialize(random_state=0)
    model.module_.weight.data = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    table = model.joint()
    assert table.shape == model.sizes_
    assert math.isclose(table.sum(), 1, abs_tol=1e-12)
    X = states(model.sizes_)
    np.testing.assert_allclose(np.exp(model.score_samples(X)), table.ravel(), atol=1e-14)
    hidden = X[:20].copy()
    hidden[:, 0] = -1
    expected = [table[(slice(None), *row[1:])].sum() for row in hidden]
    np.testing.assert_allclose(np.exp(model.score_samples(hidden)), expected, atol=1e-14)
    logs = model.autoregressive(X)
    told = np.take_along_axis(logs, X[..., None], -1)[..., 0].sum(1)
    np.testing.assert_allclose(told, model.score_samples(X), atol=1e-10)
    np.testing.assert_allclose(model.conditional(X[:1], [1], [0])[0].sum(), 1)
    drawn = model.sample(20000, random_state=0)
    seen = np.bincount(np.ravel_multi_index(drawn.T, model.sizes_), minlength=table.size)
    assert stats.chisquare(seen, table.ravel() * len(drawn)).pvalue > 1e-3


def test_bad_sums():
    a, b = Circuit((0, 1), 2), Circuit((0, 1), 3)
    with pytest.raises(ValueError, match="circuits: got none"):
        VtreeSum([]).initialize()
    with pytest.raises(ValueError, match="same alphabets"):
        VtreeSum([a, b]).initialize()
    with pytest.raises(ValueError, match="selector: got 5"):
        VtreeSum([a, a], selector=5).initialize()
    with pytest.raises(ValueError, match="symbol 2"):
        VtreeSum([a, a], selector=0).fit([[2, 0, 0]])


# --- bad input -------------------------------------------------------------------------------------------------------

fitted = random_circuit(0, T=3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: fitted.score_samples([[0, 1, 3]]), r"symbol 3 in row 0, column 2; expected one in \[0, 3\)"),
        (lambda: fitted.score_samples([[0, -2, 0]]), "symbol -2"),
        (lambda: fitted.score_samples([[0.5, 0, 0]]), "no integers"),
        (lambda: fitted.score_samples([[np.nan, 0, 0]]), "NaN"),
        (lambda: fitted.score_samples([0, 1, 2]), "shape"),
        (lambda: fitted.score_samples([["a", "b", "c"]]), "expected integers"),
        (lambda: fitted.score_samples([[0, 1]]), "2 columns"),
        (lambda: fitted.conditional([[0, 0, 0]], [1], [1]), r"variables \[1\] are given too"),
        (lambda: fitted.conditional([[0, 0, 0]], [3], [1]), "query"),
        (lambda: fitted.conditional([[0, 0, 0]], [], [1]), "query: got none"),
        (lambda: fitted.kl_divergence(random_circuit(1, T=4)), "same vtree"),
        (lambda: fitted.kl_divergence(fitted, "guess"), "method 'guess'"),
        (lambda: Circuit((0, 1), 2, width=0).initialize(), "width: got 0"),
        (lambda: Circuit((0, 1), 2, product="sum").initialize(), "product 'sum'"),
        (lambda: Circuit((0, 1)).initialize(), "n_symbols: needed"),
        (lambda: Circuit((0, 1), [2, 3, 4]).initialize(), "n_symbols"),
        (lambda: Circuit((0, 1), 2).fit([[0, 1]], optimizer="sgd"), "optimizer 'sgd'"),
        (lambda: Circuit((0, 1), 2).fit([[0, 1]], n_steps=0), "n_steps: got 0"),
        (lambda: Circuit((0, 1), 2).fit([[0, 1]], step=1.5), "step: got 1.5"),
        (lambda: Circuit((0, 1), 2).fit([[0, 1]], dtype="float16"), "dtype 'float16'"),
        (lambda: Circuit((0, 1), 2).fit([[0, 1]], pseudocount=-1), "pseudocount: got -1"),
        (lambda: Circuit((0, 1), 2).fit(np.zeros((0, 2), int)), "no rows"),
        (lambda: Circuit(vtree("linear", 30), 3).initialize().joint(), "sample instead"),
        (lambda: Circuit.from_weights((0, 1), np.ones((2, 1, 2)), np.ones((1, 2, 1, 1)), [1.0]), "leaf: expected rows"),
        (lambda: Circuit.from_weights((0, 1), np.ones((2, 1, 1)), np.ones((1, 2, 1)), [1.0]), "weight: got shape"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_nothing_is_asked_before_it_is_fitted():
    for call in (lambda c: c.joint(), lambda c: c.score_samples([[0, 0]]), lambda c: c.sample(1)):
        with pytest.raises(NotFittedError, match="call fit or initialize first"):
            call(Circuit((0, 1), 2))
    with pytest.raises(NotFittedError):
        VtreeSum([Circuit((0, 1), 2)]).joint()


def test_one_variable_and_no_rows():
    pc = Circuit(0, 3, 2).initialize(random_state=0)
    assert math.isclose(pc.joint().sum(), 1, abs_tol=1e-12)
    assert pc.autoregressive([[1]]).shape == (1, 1, 3)
    assert pc.score_samples(np.zeros((0, 1), int)).shape == (0,)
    assert pc.sample(3).shape == (3, 1)
