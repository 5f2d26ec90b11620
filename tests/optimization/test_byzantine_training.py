"""Oracles, solvers, certificates, the trainer and the classifier: worked numbers, closed forms, bad input."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits, load_iris
from sklearn.utils.estimator_checks import check_estimator

from gnomon.optimization import (
    ALIE,
    NNM,
    ByzantineClassifier,
    Chain,
    InexactOracle,
    InnerProduct,
    MeaMed,
    Mean,
    QuadraticLoss,
    RobustOracle,
    RobustTrainer,
    SignFlip,
    SoftmaxClients,
    SoftmaxLoss,
    TrimmedMean,
    certificate,
    certified_kappa,
    estimate_heterogeneity,
    estimate_similarity,
    estimate_smoothness,
    optimised,
    robust_all_reduce,
)
from gnomon.optimization.byzantine import solvers
from gnomon.optimization.byzantine.attacks import LabelFlip
from gnomon.optimization.byzantine.baselines import local_prox, newton_cg
from gnomon.optimization.byzantine.certificate import heterogeneity_of, predicted_rounds
from gnomon.optimization.byzantine.losses import Custom, Inner, ZeroLoss, as_loss


def nth(iterates, k):
    for _ in range(k):
        next(iterates)
    return next(iterates)


def first_below(iterates, curvature, share):
    start = None
    for k, x in enumerate(iterates):
        value = 0.5 * curvature @ (x * x)
        start = value if start is None else start
        if value < share * start:
            return k
    raise AssertionError


def spd(seed, d, low=0.1):
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return Q @ np.diag(np.geomspace(low, 1, d)) @ Q.T


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    X = np.column_stack([(X[:600] / 16 - 0.305) / 0.376, np.ones(600)])
    who = np.random.default_rng(0).permutation(np.arange(600) % 8)
    return SoftmaxClients(X, y[:600], who, 1e-2)


# --- solvers on quadratics -------------------------------------------------------------------------------------------


def test_worked_example_of_aeg_and_gradient_descent():
    H, x = np.geomspace(1e-3, 1, 30), np.ones(30)
    for share, with_1, with_half, gd in ((1e-3, 82, 53, 274), (1e-6, 287, 198, 2822)):
        for smoothness, expected in ((1.0, with_1), (0.5, with_half)):
            oracle = InexactOracle(lambda x: H * x)
            assert first_below(solvers.aeg(oracle, x, smoothness, 1e-3, Inner(ZeroLoss())), H, share) == expected
            assert oracle.rounds == 2 * expected
        assert first_below(solvers.gradient_descent(lambda x: H * x, x, 1.0), H, share) == gd


def test_aeg_needs_a_bound_on_the_smoothness():
    H = np.geomspace(1e-3, 1, 30)
    x = nth(solvers.aeg(lambda x: H * x, np.ones(30), 0.25, 1e-3, Inner(ZeroLoss())), 200)
    assert H @ (x * x) > 1e3


def test_aeg_does_not_extrapolate_where_mu_is_at_least_four_times_the_smoothness():
    seen = []

    def oracle(x):
        seen.append(x)
        return 4.0 * x

    next(iterates := solvers.aeg(oracle, np.ones(2), 1.0, 4.0, Inner(ZeroLoss())))
    x = next(iterates)
    assert np.array_equal(seen[0], np.ones(2))  # x_g = x: tau is 1
    next(iterates)
    eta = 1 / 8
    expected = np.ones(2) + eta * 4 * (x - np.ones(2)) - eta * 4 * x  # the second x_g is x, without x_f
    assert np.allclose(seen[2], expected)


@pytest.mark.parametrize("eta", [0.3, 2.0, 50.0])
def test_pigs_on_a_quadratic_is_linear(eta):
    H, Hl = spd(0, 6), spd(1, 6)
    x = np.random.default_rng(2).normal(size=6)
    expected = x - np.linalg.solve(Hl + np.eye(6) / eta, H @ x)
    exact = Inner(QuadraticLoss(Hl))
    iterative = Inner(Custom(lambda z: (0.5 * z @ Hl @ z, Hl @ z)))
    for inner, bound in ((exact, 1e-12), (iterative, 1e-8)):
        found = nth(solvers.pigs(lambda x: H @ x, x, eta, inner), 1)
        assert np.abs(found - expected).max() <= bound
    assert iterative.evaluations > 1


def test_pigs_with_the_objective_itself_needs_one_round():
    H, c = spd(3, 5), np.arange(5.0)
    trainer = RobustTrainer("pigs", Mean(), eta=np.inf, server_loss=QuadraticLoss(H, c), max_rounds=1)
    trainer.fit([lambda x: H @ (x - c)] * 3, np.zeros(5))
    assert np.abs(trainer.x_ - c).max() <= 1e-10


def test_pigs_without_a_server_loss_is_gradient_descent():
    H, x = spd(4, 5), np.ones(5)
    a = solvers.pigs(lambda x: H @ x, x, 0.7, Inner(ZeroLoss()))
    b = solvers.gradient_descent(lambda x: H @ x, x, 0.7)
    for _ in range(20):
        assert np.allclose(next(a), next(b), atol=1e-15)


def test_nesterov_and_heavy_ball_by_their_recursions():
    H, x = spd(5, 4), np.ones(4)
    q = 0.1
    b = (1 - np.sqrt(q)) / (1 + np.sqrt(q))
    y = x - H @ x + b * (x - H @ x - x)
    assert np.allclose(nth(solvers.nesterov(lambda x: H @ x, x, 1.0, 0.1), 2), y - H @ y)
    v1 = H @ x
    x1 = x - 0.1 * v1
    assert np.allclose(nth(solvers.heavy_ball(lambda x: H @ x, x, 1.0), 2), x1 - 0.1 * (0.9 * v1 + H @ x1))


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.02, 0.5))
def test_every_solver_finds_the_minimiser(seed, low):
    H, c = spd(seed, 5, low), np.random.default_rng(seed).normal(size=5)
    near = H + 0.02 * (spd(seed + 1, 5, low) - H)
    clients = [lambda x, s=s: H @ (x - c) + s for s in (-1.0, 0.0, 1.0)]
    for solver in ("pigs", "aeg", "gd", "nesterov", "heavy_ball"):
        trainer = RobustTrainer(
            solver, Mean(), mu=low * 0.9, server_loss=QuadraticLoss(near), max_rounds=5000, tol=1e-8
        )
        assert np.abs(trainer.fit(clients, np.zeros(5)).x_ - c).max() <= 1e-6, solver


# --- inexact oracles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mu", "zeta"), [(0.5, 0.1), (0.01, 2.0)])
def test_floor_of_gradient_descent_under_a_fixed_error(mu, zeta):
    oracle = InexactOracle(lambda x: mu * x, zeta)
    x = nth(solvers.gradient_descent(oracle, np.ones(7), 1 / mu), 5)
    assert 0.5 * mu * x @ x == pytest.approx(zeta**2 / (2 * mu), rel=1e-12)
    assert certificate(1.0, zeta, 0.0, 3, 1, mu=mu).floor == pytest.approx(zeta**2 / (2 * mu))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(0, 2), st.floats(0, 0.95), st.sampled_from(["fixed", "opposing", "random"]))
def test_gradient_descent_stays_below_its_rate(seed, zeta, alpha, adversary):
    """L(x+) - L* <= (1 - (1 - alpha^2) mu / L) (L(x) - L*) + zeta^2 / (2 L), whatever the adversary does."""
    H = spd(seed, 4, 0.2)
    oracle = InexactOracle(lambda x: H @ x, zeta, alpha, adversary, random_state=seed)
    iterates = solvers.gradient_descent(oracle, np.random.default_rng(seed).normal(size=4), 1.0)
    x = next(iterates)
    for _ in range(20):
        ahead = next(iterates)
        bound = (1 - (1 - alpha**2) * 0.2) * 0.5 * x @ H @ x + zeta**2 / 2
        assert 0.5 * ahead @ H @ ahead <= bound * (1 + 1e-9) + 1e-12
        x = ahead


def test_a_compressor_is_an_adversary():
    def rounding(x, g, radius):
        return np.round(g, 1) - g

    oracle = InexactOracle(lambda x: x, zeta=0.05 * np.sqrt(3), adversary=rounding)
    assert np.allclose(oracle(np.array([0.26, 1.0, -0.11])), [0.3, 1.0, -0.1])
    with pytest.raises(ValueError, match="promises at most"):
        InexactOracle(lambda x: x, zeta=0.01, adversary=rounding)(np.array([0.26]))
    with pytest.raises(ValueError, match="zeta: got -1"):
        InexactOracle(lambda x: x, -1.0)
    with pytest.raises(ValueError, match="adversary: got 'evil'"):
        InexactOracle(lambda x: x, adversary="evil")
    given = InexactOracle(lambda x: x, 2.0, direction=[0, 3.0])
    assert np.allclose(given(np.array([1.0, 1.0])), [1, 3])
    assert np.allclose(InexactOracle(lambda x: x, 1.0, adversary="opposing")(np.zeros(2)), 0)


def test_quadratic_clients_and_constant_liars():
    """B = 0, G^2 is the dispersion of the centres; one step of length 1 goes to F of all centres, and stays."""
    rng = np.random.default_rng(0)
    centres, lie = rng.normal(size=(7, 3)), 9 * rng.normal(size=(2, 3))
    rule = Chain(NNM(2), TrimmedMean(2))
    goal = rule(np.vstack([centres, lie]))
    clients = [lambda x, c=c: x - c for c in np.vstack([centres, lie])]
    for start in (np.zeros(3), 100 * rng.normal(size=3)):
        trainer = RobustTrainer("gd", rule, f=2, eta=1.0, max_rounds=1).fit(clients, start, honest=range(7))
        assert np.allclose(trainer.x_, goal, atol=1e-11)
        assert np.allclose(trainer.fit(clients, trainer.x_).x_, goal, atol=1e-11)
    points = rng.normal(size=(6, 3))
    G, B = estimate_heterogeneity([x - centres for x in points])
    assert pytest.approx(0, abs=1e-6) == B
    assert pytest.approx(((centres - centres.mean(axis=0)) ** 2).sum(axis=1).mean()) == G**2


@pytest.mark.parametrize("attack", [optimised(ALIE()), optimised(InnerProduct()), SignFlip(), "label flip"])
def test_reduction_holds_along_a_run(digits, attack):
    attack = LabelFlip(digits.flipped().gradients) if attack == "label flip" else attack
    rule = Chain(NNM(2), TrimmedMean(2))
    oracle = RobustOracle(digits.gradients, rule, 2, attack)
    nth(solvers.gradient_descent(oracle, np.zeros(digits.size), 0.3), 15)
    kappa = certified_kappa(rule, 10, 2)
    assert len(oracle.log) == oracle.rounds == 15
    assert all(e["squared_error"] <= kappa * e["dispersion"] for e in oracle.log)
    G, B = heterogeneity_of([e["dispersion"] for e in oracle.log], [e["squared_norm"] for e in oracle.log])
    assert all(e["squared_error"] <= kappa * (G**2 + B**2 * e["squared_norm"]) * (1 + 1e-9) for e in oracle.log)


def test_worker_momentum_sends_averages():
    sent = iter([np.array([[0.0], [2.0]]), np.array([[4.0], [4.0]])])
    oracle = RobustOracle(lambda x: next(sent), Mean(), worker_momentum=0.5)
    assert oracle(np.zeros(1))[0] == 1.0
    assert oracle(np.zeros(1))[0] == pytest.approx((2 + 3) / 2)
    with pytest.raises(ValueError, match="worker_momentum: got 1"):
        RobustOracle(lambda x: x, Mean(), worker_momentum=1)


# --- losses and baselines --------------------------------------------------------------------------------------------


def test_softmax_gradients_equal_autograd(digits):
    x = 0.1 * np.random.default_rng(1).normal(size=digits.size)
    found = digits.gradients(x)
    for i in (0, 5):
        part = digits.of(i)
        W = torch.tensor(x, requires_grad=True)
        logits = torch.tensor(part.X) @ W.reshape(-1, 10)
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(part.Y)) + 0.005 * (W * W).sum()
        loss.backward()
        assert np.allclose(found[i], W.grad.numpy(), atol=1e-12)
        value, gradient = part.value_and_grad(x)
        assert value == pytest.approx(loss.item()) == pytest.approx(digits.values(x)[i])
        assert np.allclose(gradient, found[i], atol=1e-12)
    value, gradient = digits.value_and_grad(x)
    assert value == pytest.approx(digits.values(x).mean())
    assert np.allclose(gradient, found.mean(axis=0), atol=1e-12)


def test_newton_finds_the_minimum_and_products_are_those_of_the_hessian(digits):
    x = newton_cg(digits, np.zeros(digits.size))
    assert np.linalg.norm(digits.value_and_grad(x)[1]) <= 1e-10
    v = np.random.default_rng(2).normal(size=digits.size)
    h = 1e-5
    slope = (digits.value_and_grad(x + h * v)[1] - digits.value_and_grad(x - h * v)[1]) / (2 * h)
    assert np.allclose(digits.hessian_product(x, v), slope, atol=1e-7)
    assert estimate_smoothness(lambda z: digits.value_and_grad(z)[1], np.zeros(digits.size)) <= digits.smoothness()


def test_local_prox_is_biased_to_the_server():
    H, c = np.eye(2), np.array([1.0, -1.0])
    inner = Inner(QuadraticLoss(H, np.zeros(2)))  # the server's own optimum is 0
    x = nth(local_prox(lambda x: H @ (x - c), np.zeros(2), 1.0, inner), 100)
    assert np.linalg.norm(x - c) > 0.3
    x = nth(solvers.pigs(lambda x: H @ (x - c), np.zeros(2), 1.0, inner), 100)
    assert np.allclose(x, c)


# --- certificates ----------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=12))
def test_heterogeneity_bounds_every_point_and_is_least(points):
    v, s = np.array(points).T
    G, B = heterogeneity_of(v, s)
    assert (v <= (G**2 + B**2 * s) * (1 + 1e-7) + 1e-9).all()
    value = G**2 + B**2 * s.mean()
    assert value <= v.max() * (1 + 1e-6) + 1e-9  # B = 0 is allowed
    if (s > 1e-3).all():
        assert value <= (v / s).max() * s.mean() * (1 + 1e-6) + 1e-9  # G = 0 is allowed


def test_curvatures_of_quadratics():
    H, Hl = np.diag([3.0, 1.0, 0.1]), np.diag([2.5, 1.5, 0.1])
    assert estimate_smoothness(lambda x: H @ x, np.zeros((2, 3))) == pytest.approx(3, rel=1e-3)
    assert estimate_similarity(lambda x: H @ x, lambda x: Hl @ x, np.ones(3)) == pytest.approx(0.5, rel=1e-3)
    with pytest.raises(ValueError, match="points"):
        estimate_smoothness(lambda x: x, [np.nan])


def test_certificate():
    found = certificate(0.5, 0.2, 1.0, 21, 1, mu=0.01, smoothness=1.0, similarity=0.09)
    assert (found.zeta**2, found.alpha**2) == pytest.approx((0.02, 0.5))
    assert found.floor == pytest.approx(0.02 / (2 * 0.01 * 0.5))
    assert not found.breakdown
    ln = np.log(100)
    assert found.rounds == pytest.approx({"gd": ln * 200, "nesterov": ln * 10, "pigs": ln * 9.5, "aeg": ln * 12})
    assert "alpha 0.7071" in str(found)
    with pytest.warns(RuntimeWarning, match=r"kappa\*B\^2 = 2 >= 1: no method has a finite guarantee"):
        broken = certificate(0.5, 0.2, 2.0, 21, 1, mu=0.01)
    assert broken.breakdown
    assert broken.floor == np.inf
    assert "no method" in str(broken)
    with pytest.warns(RuntimeWarning, match="kappa is infinite"):
        certificate(np.inf, 1.0, 0.0, 3, 1)
    assert np.isnan(certificate(0.5, 0.2, 0.0, 21, 1).floor)
    assert predicted_rounds(1.0, None, 0.0) == pytest.approx({"pigs": ln / 2, "aeg": 4 * ln})
    for bad in (([], []), ([1.0], [1.0, 2.0]), ([np.nan], [1.0]), ([-1.0], [1.0])):
        with pytest.raises(ValueError, match="expected"):
            heterogeneity_of(*bad)


# --- the trainer -----------------------------------------------------------------------------------------------------


def centres(n=9, d=4, seed=0):
    c = np.random.default_rng(seed).normal(size=(n, d))
    return c, [lambda x, v=v: x - v for v in c]


def test_history_and_attributes(digits):
    trainer = RobustTrainer("pigs", f=2, mu=1e-2, server_loss=digits.of(0), max_rounds=12, attack=optimised(ALIE()))
    trainer.fit(digits, np.zeros(digits.size))
    history = trainer.history_
    assert list(history["round"]) == list(range(13))
    assert history["objective"].iloc[-1] < 0.5 < history["objective"].iloc[0]
    assert (history["oracle_error"].dropna() >= 0).all()
    assert history["inner_evaluations"].is_monotonic_increasing
    assert trainer.certificate_.n == 10
    assert trainer.certificate_.kappa == certified_kappa(Chain(NNM(2), TrimmedMean(2)), 10, 2)
    assert trainer.setup_rounds_ > 0
    again = RobustTrainer(
        "aeg", f=2, mu=1e-2, server_loss=digits.of(0), max_rounds=12, attack=SignFlip(), similarity=0.5
    )
    assert list(again.fit(digits, np.zeros(digits.size)).history_["round"]) == [0, 2, 4, 6, 8, 10, 12]
    assert again.setup_rounds_ == 0


def test_torch_clients_and_models():
    c, _ = centres()
    clients = [lambda x, v=v: x - v for v in torch.from_numpy(c)]
    trainer = RobustTrainer("gd", f=2, max_rounds=40, tol=1e-10).fit(clients, torch.zeros(4, dtype=torch.float64))
    assert isinstance(trainer.x_, torch.Tensor)
    plain = RobustTrainer("gd", f=2, max_rounds=40, tol=1e-10).fit(centres()[1], np.zeros(4))
    assert np.allclose(trainer.x_.numpy(), plain.x_)
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(60, 3)), np.array([1.0, -2.0, 0.5])

    def squared(p, X, y):
        return ((X @ p - y) ** 2).mean() / 2

    parts = [(squared, X[i::6], X[i::6] @ w) for i in range(6)]
    found = RobustTrainer("aeg", f=1, mu=0.3, server_loss=parts[0], max_rounds=200, tol=1e-9).fit(parts, np.zeros(3))
    assert np.allclose(found.x_, w, atol=1e-6)
    assert found.history_["objective"].iloc[-1] < 1e-10


def test_liars_among_the_clients_and_a_client_that_sends_nan():
    c, clients = centres(9)
    clients += [lambda x: 1e9 * np.ones(4), lambda x: np.full(4, np.nan)]
    with pytest.warns(RuntimeWarning, match=r"clients \[10\] sent NaN"):
        trainer = RobustTrainer("gd", f=2, max_rounds=60).fit(clients, np.zeros(4), honest=range(9))
    assert np.linalg.norm(trainer.x_ - c.mean(axis=0)) < 1
    with pytest.raises(ValueError, match=r"clients \[9, 10\] sent NaN or infinity; at most 1"):
        RobustTrainer("gd", f=1, eta=1.0).fit([*clients[:9], clients[10], clients[10]], np.zeros(4))


def test_a_rule_without_certificate_still_trains():
    _, clients = centres(9)
    trainer = RobustTrainer("gd", MeaMed(2), f=2, mu=1.0, max_rounds=5).fit(clients, np.zeros(4))
    assert np.isnan(trainer.certificate_.kappa)


def test_breakdown_warns():
    clients = [lambda x, a=a: a * x for a in (0.1, 0.2, 3.0, 9.0, 9.0)]
    with pytest.warns(RuntimeWarning, match="no method has a finite guarantee"):
        trainer = RobustTrainer("gd", f=2, eta=0.1, mu=0.1, max_rounds=5).fit(clients, np.ones(2), honest=range(5))
    assert trainer.certificate_.breakdown


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"solver": "adam"}, ValueError, "solver: got 'adam'"),
    ({"solver": "pigs"}, ValueError, "server_loss: pigs needs one"),
    ({"solver": "aeg", "mu": 1.0}, ValueError, "server_loss: aeg needs one"),
    ({"solver": "aeg", "server_loss": 0, "mu": 0.0}, ValueError, "mu: aeg needs a number > 0, got 0.0"),
    ({"solver": "aeg", "server_loss": 0}, ValueError, "mu: aeg needs a number > 0, got None"),
    ({"solver": "nesterov", "mu": -1.0}, ValueError, "mu: nesterov needs"),
    ({"solver": "gd", "mu": -1.0}, ValueError, "mu: got -1.0"),
    ({"solver": "gd", "eta": 0}, ValueError, "eta: got 0"),
    ({"solver": "gd", "max_rounds": 0}, ValueError, "max_rounds: got 0"),
    ({"solver": "gd", "f": 5}, ValueError, "needs n > 2f, got n=9, f=5"),
    ({"solver": "pigs", "server_loss": "mine"}, TypeError, "server_loss: got str"),
    ({"solver": "gd", "group": "world"}, ValueError, "each rank brings one"),
])  # fmt: skip
def test_what_the_trainer_refuses(options, error, message):
    with pytest.raises(error, match=message):
        RobustTrainer(**options).fit(centres()[1], np.zeros(4))


def test_what_the_trainer_refuses_of_clients():
    trainer = RobustTrainer("gd", eta=0.5)
    with pytest.raises(ValueError, match=r"shapes \[\(3,\), \(4,\)\]"):
        trainer.fit([lambda x: np.ones(3), lambda x: np.ones(4)], np.zeros(4))
    with pytest.raises(ValueError, match="clients: got none"):
        trainer.fit([], np.zeros(4))
    with pytest.raises(TypeError, match="clients: got int"):
        trainer.fit([1], np.zeros(4))
    for x0 in (np.zeros((2, 2)), np.array([np.nan]), np.zeros(0)):
        with pytest.raises(ValueError, match="x0"):
            trainer.fit(centres()[1], x0)


def test_a_server_loss_that_is_not_convex():
    def cliff(z):
        return float(-np.sum(z**4)), -4 * z**3

    with pytest.raises(RuntimeError, match=r"residual .* is server_loss convex"), np.errstate(all="ignore"):
        RobustTrainer("pigs", Mean(), server_loss=cliff, eta=100.0, max_rounds=3).fit([lambda x: x - 5] * 3, np.ones(2))
    assert isinstance(as_loss(0), ZeroLoss)


# --- the classifier --------------------------------------------------------------------------------------------------


def test_estimator_checks():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(ByzantineClassifier(max_rounds=60))


def test_classifier_is_robust_where_the_mean_is_not():
    X, y = load_digits(return_X_y=True)
    X = X / 8 - 1
    groups = np.random.default_rng(0).integers(0, 12, size=len(y))
    liars = np.isin(groups, (3, 7))
    rng = np.random.default_rng(1)
    bad = X.copy()
    bad[liars] = 50 * rng.normal(size=bad[liars].shape)  # two clients hold rubbish
    options = {"l2": 1e-2, "max_rounds": 40, "solver": "gd"}
    robust = ByzantineClassifier(f=2, **options).fit(bad, y, groups=groups)
    plain = ByzantineClassifier(f=2, aggregator=Mean(), **options).fit(bad, y, groups=groups)
    held = ~liars
    assert robust.score(X[held], y[held]) > 0.85
    assert robust.score(X[held], y[held]) > plain.score(X[held], y[held]) + 0.1
    assert robust.certificate_.f == 2


def test_classifier_details():
    X, y = load_iris(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    names = np.array(["a", "b", "c", "d", "e"])[np.arange(150) % 5]
    clf = ByzantineClassifier(f=1, trusted="c").fit(X, np.array(["x", "y", "z"])[y], groups=names)
    assert clf.predict_proba(X).sum(axis=1) == pytest.approx(1)
    assert set(clf.predict(X)) <= {"x", "y", "z"}
    assert list(clf.clients_) == list("abcde")
    assert clf.score(X, np.array(["x", "y", "z"])[y]) > 0.9
    assert clf.n_iter_ == clf.history_["round"].iloc[-1]
    reference = ByzantineClassifier(f=0, solver="gd", max_rounds=3000, tol=1e-9, n_clients=1).fit(X, y)
    loss = SoftmaxLoss(np.column_stack([X, np.ones(150)]), np.eye(3)[y], 1e-2)
    W = np.vstack([reference.coef_.T, reference.intercept_]).ravel()
    assert np.linalg.norm(loss.value_and_grad(W)[1]) < 1e-8


@pytest.mark.parametrize(("options", "message"), [
    ({"f": 3}, "needs n > 2f, got n=5, f=3"),
    ({"l2": 0}, "l2: got 0"),
    ({"n_clients": 0}, "n_clients: got 0"),
    ({"trusted": "q"}, "trusted: 'q' is none of the clients"),
    ({"solver": "sgd"}, "solver: got 'sgd'"),
])  # fmt: skip
def test_what_the_classifier_refuses(options, message):
    X, y = load_iris(return_X_y=True)
    groups = np.array(list("abcde"))[np.arange(150) % 5]
    with pytest.raises(ValueError, match=message):
        ByzantineClassifier(**options).fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="groups: expected one client"):
        ByzantineClassifier().fit(X, y, groups=groups[:10])
    with pytest.raises(ValueError, match="got one class"):
        ByzantineClassifier().fit(X, np.zeros(150))


# --- where it runs ---------------------------------------------------------------------------------------------------

RANKS = """
import sys, numpy as np, torch, torch.distributed as dist, torch.multiprocessing as mp
torch.set_num_threads(1)
from gnomon.optimization import NNM, Chain, TrimmedMean, RobustTrainer, robust_all_reduce
RULE = Chain(NNM(1), TrimmedMean(1))
CENTRES = np.random.default_rng(0).normal(size=(4, 3))

def client(rank):
    return lambda x: x - CENTRES[rank] if rank != 2 else 1e3 * np.ones(3)  # rank 2 lies

def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=4)
    grad = torch.from_numpy(CENTRES[rank] if rank != 2 else 1e3 * np.ones(3)).reshape(3, 1)
    merged = robust_all_reduce(grad, RULE)
    assert merged.shape == (3, 1)
    trainer = RobustTrainer("gd", RULE, f=1, max_rounds=30, tol=0.0, group="world").fit([client(rank)], np.zeros(3))
    np.savez(f"{folder}/{rank}.npz", merged=merged.numpy(), x=trainer.x_)
    dist.destroy_process_group()

if __name__ == "__main__":
    folder = sys.argv[1]
    mp.spawn(work, (folder,), nprocs=4)
    found = [np.load(f"{folder}/{r}.npz") for r in range(4)]
    rows = CENTRES.copy(); rows[2] = 1e3
    assert all(f["merged"].tobytes() == found[0]["merged"].tobytes() for f in found)
    assert all(f["x"].tobytes() == found[0]["x"].tobytes() for f in found)
    assert np.array_equal(found[0]["merged"].ravel(), RULE(torch.from_numpy(rows)).numpy())
    alone = RobustTrainer("gd", RULE, f=1, max_rounds=30, tol=0.0).fit([client(r) for r in range(4)], np.zeros(3))
    assert np.allclose(found[0]["x"], alone.x_, atol=1e-12), (found[0]["x"], alone.x_)
    print("equal")
"""


def test_four_processes_equal_the_simulation(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "equal" in done.stdout


def test_all_reduce_needs_a_group():
    with pytest.raises(RuntimeError, match="not initialised"):
        robust_all_reduce(torch.zeros(3), Mean())
