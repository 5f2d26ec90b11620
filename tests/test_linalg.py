"""Moments and what is solved from them, against direct computation on the rows."""

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon import linalg
from gnomon.linalg import Moments, least_squares


def rows(n=200, p=7, q=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p)) + 2
    return x, x @ rng.standard_normal((p, q)) + rng.standard_normal((n, q)) - 1


def dense(x, y, weight=None):
    w = np.ones(len(x)) if weight is None else weight
    return {
        "xx": x.T * w @ x,
        "xy": x.T * w @ y,
        "x": w @ x,
        "y": w @ y,
        "y_square": (w[:, None] * y**2).sum(),
        "n": w.sum(),
    }


def assert_same(m, expected, rtol=1e-10):
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(getattr(m, name)), value, rtol=rtol, atol=rtol * 100, err_msg=name)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 199), max_size=6), st.booleans(), st.integers(0, 5))
def test_any_chunks_and_any_merge_give_the_same_sums(cuts, weighted, seed):
    x, y = rows(seed=seed)
    w = np.random.default_rng(seed).random(len(x)) if weighted else None
    edges = [0, *sorted(cuts), len(x)]
    parts = []
    for a, b in itertools.pairwise(edges):
        parts.append(Moments(7, 3).update(x[a:b], y[a:b], None if w is None else w[a:b]))
    total = Moments(7, 3)
    for part in parts:
        total.merge(part)
    assert_same(total, dense(x, y, w))


def test_inner_chunks(monkeypatch):
    x, y = rows()
    w = np.linspace(0, 1, len(x))
    monkeypatch.setattr(linalg, "ROWS", 13)
    assert_same(Moments(7, 3).update(x, y, w), dense(x, y, w))


def test_leading_dimensions_are_rows():
    x = torch.randn(4, 5, 7)
    assert_same(
        Moments(7).update(x), {"n": 20, "xx": (x.reshape(20, 7).double().T @ x.reshape(20, 7).double()).numpy()}
    )


def test_float32_products_lose_little():
    x, y = rows(20_000)
    exact, fast = Moments(7, 3).update(x, y), Moments(7, 3, products="float32").update(x, y)
    assert_same(fast, {k: np.asarray(getattr(exact, k)) for k in ("xx", "xy", "x", "y")}, rtol=1e-5)
    assert fast.xx.dtype == torch.float64
    assert not torch.equal(fast.xx, exact.xx)


def test_rejects_what_is_not_finite_and_stays_as_it_was():
    x, y = rows()
    m = Moments(7, 3).update(x, y)
    before = m.xx.clone()
    bad = x.copy()
    bad[5, 2] = np.nan
    for value in (bad, np.where(np.isnan(bad), np.inf, bad)):
        with pytest.raises(FloatingPointError, match="finite"):
            m.update(value, y)
    assert torch.equal(m.xx, before)
    assert m.n == 200
    with pytest.raises(FloatingPointError, match="overflow"):
        Moments(1, products="float32").update(torch.tensor([[1e30]]))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Moments(0), "p >= 1"),
        (lambda: Moments(2, products="half"), "float32"),
        (lambda: Moments(7, 3).update(rows()[0]), "must be given"),
        (lambda: Moments(7).update(*rows()), "must not be given"),
        (lambda: Moments(6).update(rows()[0]), "6 columns"),
        (lambda: Moments(7, 3).update(rows()[0], rows(9)[1]), "9 rows for the 200"),
        (lambda: Moments(7).update(rows()[0], weight=np.ones(3)), "3 for 200"),
        (lambda: Moments(7).update(rows()[0], weight=-np.ones(200)), "non-negative"),
        (lambda: Moments(7).merge(Moments(6)), "same p and q"),
        (lambda: Moments(7).centred(), "no rows"),
        (lambda: least_squares(Moments(7, 3)), "nothing to fit"),
        (lambda: least_squares(Moments(7, 3).update(*rows()), solver="lu"), "'pinv'"),
        (lambda: least_squares(Moments(7, 3).update(*rows()), solver="pinv", ridge=1.0), "takes none"),
        (lambda: linalg.solve_ridge(np.eye(2), np.eye(2), -1.0), "ridge"),
        (lambda: linalg.solve_ridge(np.zeros((2, 2)), np.eye(2)), "positive definite"),
        (lambda: linalg.solve_symmetric(np.eye(2), np.ones((2, 3))), "square"),
        (lambda: linalg.sqrt_psd(np.ones((2, 3))), "square matrix"),
        (lambda: linalg.sqrt_psd(np.full((2, 2), np.nan)), "finite"),
        (lambda: linalg.polar(np.full((2, 2), np.inf)), "finite"),
        (lambda: linalg.principal_angles(np.zeros((3, 1)), np.ones((3, 1))), "spans nothing"),
        (lambda: linalg.principal_angles(np.ones((3, 1)), np.ones((4, 1))), "4 rows"),
        (lambda: linalg.effective_rank([-1.0, 2.0]), "non-negative"),
        (lambda: linalg.effective_rank([]), "shape"),
    ],
)
def test_bad_arguments(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize("ridge", [0.0, 1e-6, 1.0, 50.0])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_ridge_is_the_augmented_least_squares_problem(ridge, intercept, weighted):
    x, y = rows()
    w = np.random.default_rng(1).random(len(x)) if weighted else np.ones(len(x))
    fit = least_squares(Moments(7, 3).update(x, y, w), ridge=ridge, intercept=intercept)
    design = np.hstack([x, np.ones((len(x), 1))]) if intercept else x
    penalty = np.sqrt(ridge) * np.eye(7, design.shape[1])  # none on the intercept
    a = np.vstack([np.sqrt(w)[:, None] * design, penalty])
    b = np.vstack([np.sqrt(w)[:, None] * y, np.zeros((7, 3))])
    truth = np.linalg.lstsq(a, b)[0]
    np.testing.assert_allclose(fit.weight, truth[:7], atol=1e-8)
    np.testing.assert_allclose(fit.bias, truth[7] if intercept else np.zeros(3), atol=1e-8)


def test_minimum_norm_with_fewer_rows_than_columns():
    x, y = rows(5)
    fit = least_squares(Moments(7, 3).update(x, y), solver="pinv")
    np.testing.assert_allclose(fit.weight, np.linalg.pinv(x) @ y, atol=1e-7)
    near = least_squares(Moments(7, 3).update(x, y), ridge=1e-6)  # the ridge tends to it
    np.testing.assert_allclose(near.weight, fit.weight, atol=1e-4)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.booleans())
def test_residual_from_the_sums(seed, bias):
    x, y = rows(seed=seed)
    rng = np.random.default_rng(seed)
    w, b = rng.standard_normal((7, 3)), rng.standard_normal(3)
    m = Moments(7, 3).update(x, y)
    direct = ((x @ w + (b if bias else 0) - y) ** 2).sum()
    assert m.residual(torch.tensor(w), torch.tensor(b) if bias else None) == pytest.approx(direct, rel=1e-10)


def test_symmetric_least_squares_is_optimal_and_solves_lyapunov():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 6)) * np.geomspace(1, 30, 6)
    y = x @ rng.standard_normal((6, 6)) + rng.standard_normal((100, 6))
    m = Moments(6, 6).update(x, y)
    w = linalg.solve_symmetric(m.xx, m.xy).numpy()
    assert np.array_equal(w, w.T)
    g, b = x.T @ x, x.T @ y
    np.testing.assert_allclose(w, scipy.linalg.solve_continuous_lyapunov(g, b + b.T), atol=1e-8)
    best = m.residual(torch.tensor(w))
    for _ in range(20):
        step = rng.standard_normal((6, 6)) * 1e-3
        assert m.residual(torch.tensor(w + step + step.T)) > best
    symmetric = rng.standard_normal((6, 6))
    symmetric += symmetric.T
    m = Moments(6, 6).update(x, x @ symmetric)
    np.testing.assert_allclose(linalg.solve_symmetric(m.xx, m.xy), symmetric, atol=1e-8)


def test_symmetric_on_unseen_directions_is_zero():
    x = np.array([[1.0, 0.0], [2.0, 0.0]])
    w = linalg.solve_symmetric(x.T @ x, x.T @ (3 * x))
    np.testing.assert_allclose(w, [[3, 0], [0, 0]], atol=1e-12)


def test_polar_and_procrustes():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((50, 5)), rng.standard_normal((50, 5))
    q = linalg.polar(x.T @ y).numpy()
    np.testing.assert_allclose(q, scipy.linalg.orthogonal_procrustes(x, y)[0], atol=1e-10)
    truth = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    np.testing.assert_allclose(linalg.polar(x.T @ (x @ truth)), truth, atol=1e-10)
    np.testing.assert_allclose(
        linalg.polar(rng.standard_normal((5, 3))).T @ linalg.polar(np.eye(5, 3)), np.eye(3), atol=2
    )
    tall = linalg.polar(rng.standard_normal((5, 3)))
    np.testing.assert_allclose(tall.T @ tall, np.eye(3), atol=1e-12)


def test_square_root():
    x, _ = rows(4)  # rank 4 of 7
    root = linalg.sqrt_psd(x.T @ x)
    np.testing.assert_allclose(root @ root, x.T @ x, atol=1e-9)
    np.testing.assert_allclose(root, root.T, atol=1e-12)


def test_principal_angles():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((9, 3)), rng.standard_normal((9, 4))
    np.testing.assert_allclose(linalg.principal_angles(a, b), np.sort(scipy.linalg.subspace_angles(a, b)), atol=1e-12)
    np.testing.assert_allclose(linalg.principal_angles(b, a), linalg.principal_angles(a, b), atol=1e-12)
    tiny = np.array([[1.0], [1e-9]])  # an arccos of the cosine alone would give 0
    np.testing.assert_allclose(linalg.principal_angles([[1.0], [0.0]], tiny), [1e-9], rtol=1e-6)
    np.testing.assert_allclose(
        linalg.principal_angles(np.eye(4)[:, :2], np.eye(4)[:, 1:3]), [0, math.pi / 2], atol=1e-12
    )
    repeated = np.hstack([a[:, :1], 2 * a[:, :1]])  # rank 1: one angle
    assert linalg.principal_angles(repeated, b).shape == (1,)


def test_effective_rank():
    assert linalg.effective_rank(np.ones(5)) == pytest.approx(5)
    assert linalg.effective_rank([3.0, 0.0, 0.0]) == pytest.approx(1)
    assert linalg.effective_rank(np.zeros(3)) == 0
    assert linalg.effective_rank(np.diag([2.0, -2.0, 0.0])) == pytest.approx(2)
    p = np.array([0.7, 0.2, 0.1])
    assert linalg.effective_rank(10 * p) == pytest.approx(math.exp(-(p * np.log(p)).sum()))
