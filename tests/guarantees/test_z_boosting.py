"""Oracles: which sets are boostable, the booster's closed form, the classifier, centerpoints and amplification."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_breast_cancer, make_classification
from sklearn.ensemble import AdaBoostClassifier
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from gnomon.guarantees import ZBoostClassifier, ZSet, amplify, boostable, centerpoint
from gnomon.guarantees.z_boosting.amplification import failure_bound, runs_needed
from gnomon.guarantees.z_boosting.baselines import AdaMEC, JointBoostClassifier, JointScores, known_cost_balance
from gnomon.guarantees.z_boosting.centerpoints import _Deepest, halfplane_depth, mixture
from gnomon.guarantees.z_boosting.characterization import scalarise
from gnomon.guarantees.z_boosting.classifier import _threshold, rows_needed
from gnomon.guarantees.z_boosting.method import Asking, Scores, rounds, step

unit = st.floats(0.01, 0.99)


def square(centre, half=0.05):
    a, b = centre - half, centre + half
    return ZSet.polygon([(a, a), (b, a), (b, b), (a, b)])


# --- which sets are boostable ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.01, 0.1, 0.3])
def test_classical_guarantee(gamma):
    v = boostable(ZSet.halfplane((1, 1), 0.5 - gamma))
    assert (v.status, v.p, v.gap) == ("boostable", pytest.approx(0.5, abs=1e-6), pytest.approx(2 * gamma, abs=1e-6))


@given(unit, unit)
@settings(max_examples=25, deadline=None)
def test_rectangle(fp, fn):
    root = math.sqrt(fp) + math.sqrt(fn)
    v = boostable(ZSet.rectangle(fp, fn))
    if abs(root - 1) < 1e-4:
        return
    assert v.status == ("boostable" if root < 1 else "not_boostable")
    if root < 1:
        assert v.gap == pytest.approx(1 - root**2, abs=1e-6)
        assert v.p == pytest.approx(math.sqrt(fn) / root, abs=1e-4)


@pytest.mark.parametrize("a", [0.05, 0.25, 0.6])
def test_corner_on_the_curve_has_no_gap(a):
    z = ZSet.rectangle(a, (1 - math.sqrt(a)) ** 2)
    assert boostable(z).gap == 0
    assert boostable(z).status == "not_boostable"


@pytest.mark.parametrize(("w", "z"), [((1, 3), 0.2), ((1, 1), 0.3), ((2, 0.5), 0.35), ((1, 3), 0.8)])
def test_cost_sensitive_guarantee(w, z):
    v = boostable(ZSet.halfplane(w, z))
    gap = 1 - z * sum(w) / (w[0] * w[1])
    assert v.status == ("boostable" if gap > 0 else "not_boostable")
    if gap > 0:
        assert v.gap == pytest.approx(gap, abs=1e-6)
        assert v.p == pytest.approx(w[0] / sum(w), abs=1e-6) == pytest.approx(known_cost_balance(w), abs=1e-6)


@given(st.lists(st.tuples(unit, unit, unit), min_size=2, max_size=3))
@settings(max_examples=25, deadline=None)
def test_half_planes_are_boostable_when_a_convex_combination_is(planes):
    W, bounds = np.array(planes)[:, :2], np.array(planes)[:, 2] / 2
    v = boostable(ZSet.halfplanes(W, bounds))
    weights, margin = scalarise(W, bounds, v.p)
    assert weights.sum() == pytest.approx(1)
    if abs(margin) < 1e-7 or 0 < v.gap < 1e-6:
        return
    assert (v.status == "boostable") == (margin > 0)
    if margin > 0:
        assert boostable(ZSet.halfplane(weights @ W, float(weights @ bounds))).status == "boostable"


def test_two_blobs_on_both_sides_of_the_coins():
    z = ZSet.union(square(0.15), square(0.35))
    v = boostable(z, (0.2, 0.8))
    assert (v.status, v.p, v.gap) == ("boostable", pytest.approx(0.5, abs=1e-6), pytest.approx(0.2, abs=1e-6))
    v = boostable(z)
    assert v.status == "vacuous"
    assert v.empty == (pytest.approx((0, 0.1)), pytest.approx((0.9, 1)))
    assert v.rounds(10) == math.inf


def test_one_point():
    z = ZSet.points([(0.3, 0.2)])
    assert z.signed_gap([0.5, 0.4494897, 0.2]) == pytest.approx([0, 0.010102, 0.375], abs=1e-6)
    v = boostable(z, (0.2, 0.7))
    assert (v.status, v.p, v.gap) == ("boostable", 0.2, pytest.approx(0.375))
    assert z.weakest(0.2)[0] == pytest.approx(-0.375)  # anti-correlated: the booster negates it
    assert boostable(z).status == "vacuous"


def test_the_boundary_of_an_open_set():
    for closed, status in ((True, "not_boostable"), (False, "boundary")):
        assert boostable(ZSet.halfplane((1, 1), 0.5, closed=closed)).status == status
        assert boostable(ZSet.rectangle(0.25, 0.25, closed=closed)).status == status
    assert boostable(ZSet.halfplane((1, 1), 0.51, closed=False)).status == "not_boostable"


def test_rounds_of_the_bound():
    v = boostable(ZSet.rectangle(0.2, 0.2))
    assert v.rounds(500) == math.ceil(math.log(500) / -math.log(math.sqrt(1 - 0.04)))
    assert v.rounds(1) == 1
    assert boostable(ZSet.points([(0, 0)])).rounds(100) == 1
    assert boostable(ZSet.rectangle(0.3, 0.3)).rounds(100) == math.inf
    with pytest.raises(ValueError, match="m: got 0"):
        v.rounds(0)


def test_predicates_are_conservative():
    exact = boostable(ZSet.rectangle(0.55, 0.05))
    v = boostable(ZSet.from_predicate(lambda a, b: (a <= 0.55) & (b <= 0.05)))
    assert v.approximate
    assert v.status == "boostable"
    assert 0.5 * exact.gap < v.gap < exact.gap
    inner = boostable(ZSet.from_predicate(lambda a, b: (a <= 0.248) & (b <= 0.248)))
    assert inner.status == "not_boostable"  # .255 counts whole
    blob = ZSet.from_predicate(lambda a, b: (a - 0.2) ** 2 + (b - 0.2) ** 2 < 0.01)
    assert boostable(blob).status == "vacuous"
    assert boostable(blob, (0.3, 0.7)).status in ("boostable", "not_boostable")


@given(st.lists(st.tuples(unit, unit), min_size=3, max_size=7), st.floats(0.05, 0.95))
@settings(max_examples=60, deadline=None)
def test_gap_of_a_polygon_against_a_dense_sample(corners, p):
    """Any polygon, self-crossing ones too: no sampled pair of it inside R_p comes nearer to the coins."""
    z = ZSet.polygon(corners)
    grid = np.stack(np.meshgrid(np.linspace(0, 1 - p, 80), np.linspace(0, p, 80)), axis=-1).reshape(-1, 2)
    inside = grid[z.contains(grid, tol=0.0)]
    gap = max(float(z.signed_gap([p])[0]), 0.0)
    if len(inside):
        assert gap <= np.abs(1 - inside[:, 0] / (1 - p) - inside[:, 1] / p).min() + 1e-9
    if math.isfinite(gap):
        edge, at = z.weakest(p)
        assert abs(edge) == pytest.approx(gap, abs=1e-9)
        assert z.contains(at, tol=1e-6)
        assert at[0] <= 1 - p + 1e-9
        assert at[1] <= p + 1e-9
    else:
        with pytest.raises(ValueError, match="no pair of the set is possible"):
            z.weakest(p)


def test_membership_and_pieces():
    ring = ZSet.union(*(ZSet.polygon(np.clip(q, 0, 1)) for q in ([(0, 0), (0.3, 0), (0.2, 0.1), (0.1, 0.1)],
                                                                [(0, 0), (0.1, 0.1), (0.1, 0.2), (0, 0.3)])))  # fmt: skip
    assert ring.contains([[0.15, 0.05], [0.2, 0.2], [0.05, 0.2]]).tolist() == [True, False, True]
    assert ring.interior([0.15, 0.05])
    assert not ring.interior([0.15, 0.0])
    segment = ZSet([[(0.1, 0.1), (0.2, 0.2)]])
    assert segment.contains([0.15, 0.15])
    boxes = ZSet(boxes=[(0.1, 0.2, 0.0, 0.1)])
    assert boxes.contains([[0.15, 0.05], [0.25, 0.05]]).tolist() == [True, False]
    assert boxes.interior([0.15, 0.05])
    assert boxes.weakest(0.5)[1] == pytest.approx([0.2, 0.1])
    assert boostable(ZSet.rectangle(0.3, 0.2)).plot().axes


@pytest.mark.parametrize(("make", "says"), [
    (lambda: ZSet.rectangle(1.2, 0.1), "joint probabilities"),
    (lambda: ZSet.points([(0.1, math.nan)]), "joint probabilities"),
    (lambda: ZSet.points([0.1, 0.2]), "expected \\(n, 2\\)"),
    (lambda: ZSet.polygon([(0, 0), (1, 1)]), "3 or more"),
    (lambda: ZSet(), "the set is empty"),
    (lambda: ZSet(boxes=[(0.2, 0.1, 0, 1)]), "from <= to"),
    (lambda: ZSet.halfplane((-1, 1), 0.2), "weights >= 0"),
    (lambda: ZSet.halfplane((1, 1), -0.2), "finite numbers >= 0"),
    (lambda: ZSet.from_predicate(lambda a, b: a < -1), "holds at no point"),
    (lambda: ZSet.from_predicate(lambda a, b: True), "one truth value"),
    (lambda: ZSet.from_predicate(lambda a, b: a < 1, grid=1), "grid: got 1"),
    (lambda: boostable(ZSet.points([(0, 0)]), (0.7, 0.2)), "low <= high"),
    (lambda: boostable(ZSet.points([(0, 0)]), 0.5), "expected a pair"),
    (lambda: known_cost_balance((0, 1)), "two weights > 0"),
])  # fmt: skip
def test_mistakes_about_sets(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_types_about_sets():
    with pytest.raises(TypeError, match="expected a ZSet"):
        boostable([(0, 0)])
    with pytest.raises(TypeError, match="one ZSet or more"):
        ZSet.union()


# --- the booster -----------------------------------------------------------------------------------------------------


def test_hand_cases():
    one = step(0.1, 0.1, 1000)
    assert (one.alpha, one.beta, one.rho) == (pytest.approx(1.0986, abs=1e-4), 0, pytest.approx(0.6))
    one = step(0.4, 0.1, 1000)
    assert one.alpha == pytest.approx(0.6507, abs=1e-4)
    assert one.rho == pytest.approx(math.sqrt(0.06) + math.sqrt(0.36))
    for e in (0.1, 0.3, 0.6):  # equal rates: AdaBoost's vote, no offset
        assert step(e, e, 1000).alpha == pytest.approx(0.5 * math.log((1 - e) / e))
        assert step(e, e, 1000).beta == 0
    constant = step(1.0, 0.0, 50)
    assert (constant.edge, constant.alpha, constant.rho) == (0, pytest.approx(0, abs=1e-12), pytest.approx(1))
    assert math.isfinite(step(0.0, 0.0, 50).alpha)


@given(unit, unit)
def test_closed_form(fpr, fnr):
    one = step(fpr, fnr, 1e6)
    a, b = math.asin(math.sqrt(fnr)), math.asin(math.sqrt(fpr))
    assert one.rho == pytest.approx(math.sin(a + b), abs=1e-9)
    assert one.rho <= math.sqrt(max(1 - one.edge**2, 0)) + 1e-9
    assert one.positive * math.exp(-one.beta) == pytest.approx(one.negative * math.exp(one.beta))
    swapped = step(fnr, fpr, 1e6)  # y -> -y, h -> -h
    assert (swapped.alpha, swapped.beta) == (pytest.approx(one.alpha), pytest.approx(-one.beta, abs=1e-12))


@pytest.mark.parametrize(("fpr", "fnr"), [(0.1, 0.4), (0.3, 0.3), (0.05, 0.8), (0.7, 0.6)])
def test_closed_form_is_the_minimum(fpr, fnr):
    def larger(v):
        alpha, beta = v
        positive = (1 - fnr) * math.exp(-alpha) + fnr * math.exp(alpha)
        negative = (1 - fpr) * math.exp(-alpha) + fpr * math.exp(alpha)
        return max(positive * math.exp(-beta), negative * math.exp(beta))

    found = minimize(larger, (0.0, 0.0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 5000})
    assert step(fpr, fnr, 1e6).rho == pytest.approx(found.fun, abs=1e-6)


def noisy(positive, fpr, fnr, rng):
    """Errs at random with these rates."""
    truth = np.where(positive, 1.0, -1.0)
    return lambda w, p: (None, truth * np.where(rng.random(len(positive)) < np.where(positive, fnr, fpr), -1, 1))


@pytest.mark.parametrize("weight", [None, "drawn"])
def test_both_losses_are_the_product_of_rho(weight):
    rng = np.random.default_rng(3)
    positive = np.arange(200) < 60
    weight = None if weight is None else rng.uniform(0.2, 3, 200)
    share = np.ones(200) if weight is None else weight
    scores = Scores(positive, weight)
    log_rho = 0.0
    asking = Asking(0.3)
    for answer, t in zip(rounds(noisy(positive, 0.5, 0.1, rng), scores, asking), range(1, 60), strict=False):
        log_rho += math.log(answer.step.rho)
        for rows, sign in ((positive, -1), (~positive, 1)):
            loss = np.average(np.exp(sign * scores.F[rows]), weights=share[rows])
            assert math.log(loss) == pytest.approx(log_rho, rel=1e-9, abs=1e-12)
        assert scores.losses == (pytest.approx(log_rho), pytest.approx(log_rho))
        assert max(e / n for e, n in zip(scores.errors(), (140, 60), strict=True)) <= (
            1 if weight is not None else math.exp(log_rho)
        )
        assert asking.calls == t
        assert scores.weights(0.3)[positive].sum() == pytest.approx(0.3)


def test_labels_may_be_swapped():
    rng = np.random.default_rng(0)
    positive, H = np.arange(80) < 20, rng.choice([-1.0, 1.0], size=(30, 80))
    F = []
    for flip, p in ((1, 0.3), (-1, 0.7)):
        answers = iter(flip * H)
        scores = Scores(positive if flip > 0 else ~positive)
        for _ in itertools.islice(rounds(lambda w, p, answers=answers: (None, next(answers)), scores, Asking(p)), 20):
            pass
        F.append(scores.F)
    assert F[0] == pytest.approx(-F[1])


def test_equal_rates_give_adaboost():
    """Balanced classes and answers with fpr = fnr: the votes of AdaBoost."""
    positive, rng = np.arange(100) < 50, np.random.default_rng(1)
    truth = np.where(positive, 1.0, -1.0)

    def mirrored(w, p):  # errs on the same rows of both classes, so that both rates stay equal
        wrong = rng.random(50) < 0.3
        return None, truth * np.where(np.concatenate([wrong, wrong]), -1, 1)

    scores, joint = Scores(positive), JointScores(positive)
    for answer in itertools.islice(rounds(mirrored, scores, Asking(0.5)), 15):
        assert answer.step.alpha == pytest.approx(joint.add(answer.h))
        assert answer.step.beta == pytest.approx(0, abs=1e-12)
    assert list(scores.F) == pytest.approx(list(joint.F))
    assert scores.weights(0.5) == pytest.approx(joint.w)


def test_adaptive_balance():
    """The level halves until a balance of the sweep has an edge of it, and the balance is kept while it has half of it."""
    asked = []

    def learner(w, p):  # an edge of 0.3 at balances in [0.2, 0.35], none elsewhere
        asked.append(p)
        good = 0.2 <= p <= 0.35
        h = truth.copy()
        for rows in (scores.rows[0], scores.rows[1]):
            order = rows[np.argsort(np.cumsum(rng.random(len(rows))))]
            share = np.cumsum(w[order]) / w[order].sum()
            h[order[share <= (0.35 if good else 0.5)]] *= -1
        return None, h

    rng = np.random.default_rng(0)
    positive = np.arange(400) < 200
    truth, scores, asking = np.where(positive, 1.0, -1.0), Scores(positive), Asking()
    found = list(itertools.islice(rounds(learner, scores, asking), 5))
    assert all(0.2 <= a.p <= 0.35 for a in found)
    assert asking.level == 0.25
    assert asked[:12] == pytest.approx([k / 5 for k in range(1, 5)] + [k / 9 for k in range(1, 9)])
    assert asking.calls == len(asked) == 16
    assert Asking(p_range=(0.2, 0.8)).sweep() == pytest.approx(np.linspace(0.2, 0.8, 6))
    none = rounds(lambda w, p: (None, np.ones(400)), Scores(positive), Asking())
    assert list(none) == []  # a constant has no edge anywhere


@pytest.mark.parametrize(("options", "says"), [
    ({"p": 1.0}, "balance D"), ({"p": 0}, "balance D"), ({"p": "best"}, "'adaptive', 'free'"), ({"p": 0.1, "p_range": (0.2, 0.8)}, "inside p_range"),
    ({"gamma_min": 0.0}, "gamma_min"), ({"p_range": (0, 0)}, "p_range"), ({"n_estimators": 0}, "n_estimators"),
    ({"target_fpr": 0.0}, "target_fpr: got 0"), ({"target_fpr": 0.1, "target_fnr": 0.1}, "got both"), ({"target_fnr": 0.1, "confidence": 1}, "confidence"),
    ({"target_fpr": 0.1, "validation_fraction": 0}, "validation_fraction"),
])  # fmt: skip
def test_mistakes_about_the_classifier(options, says):
    X, y = make_classification(60, random_state=0)
    with pytest.raises(ValueError, match=says):
        ZBoostClassifier(**options).fit(X, y)


# --- the classifier --------------------------------------------------------------------------------------------------


@parametrize_with_checks([ZBoostClassifier(n_estimators=5)])
def test_scikit_learn_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return X, y


def test_classifier_on_real_rows(cancer):
    X, y = cancer
    clf = ZBoostClassifier(n_estimators=40, random_state=0).fit(X, y)
    assert clf.n_iter_ == len(clf.alphas_) == len(clf.ps_) == 40
    assert clf.n_calls_ > 40
    assert clf.bound_ == pytest.approx(np.prod(clf.rho_))
    assert clf.edges_ == pytest.approx(1 - clf.rates_.sum(axis=1))
    F = clf.decision_function(X)
    assert np.exp(-F[y == 1]).mean() == pytest.approx(clf.bound_) == pytest.approx(np.exp(F[y == 0]).mean())
    for kind in (0, 1):
        assert (clf.predict(X)[y == kind] != kind).mean() <= clf.bound_
    *_, last = clf.staged_predict(X)
    assert (last == clf.predict(X)).all()
    assert ((clf.predict_proba(X)[:, 1] > 0.5) == (F > 0)).all()
    points, z, verdict = clf.empirical_z_set()
    assert points.shape == (40, 2)
    assert z.contains(points).all()
    assert verdict.status in ("boostable", "vacuous")


def test_perfect_learner_stops():
    X = np.arange(20.0)[:, None]
    clf = ZBoostClassifier().fit(X, X[:, 0] > 9)
    assert clf.n_iter_ == 1
    assert not clf.no_edge_
    assert clf.score(X, X[:, 0] > 9) == 1
    upside_down = ZBoostClassifier(estimator=Backwards()).fit(X, X[:, 0] > 9)
    assert upside_down.alphas_[0] < 0
    assert upside_down.score(X, X[:, 0] > 9) == 1


class Backwards(ClassifierMixin, BaseEstimator):
    def fit(self, X, y, sample_weight=None):
        self.tree_ = DecisionTreeClassifier(max_depth=1).fit(X, ~np.asarray(y), sample_weight=sample_weight)
        return self

    def predict(self, X):
        return self.tree_.predict(X)


class Constant(ClassifierMixin, BaseEstimator):
    def fit(self, X, y, sample_weight=None):
        self.label_ = y[0]
        return self

    def predict(self, X):
        return np.full(len(X), self.label_)


@pytest.mark.parametrize("p", ["adaptive", "free", 0.5])
def test_no_edge_anywhere(p):
    X, y = make_classification(60, random_state=0)
    clf = ZBoostClassifier(estimator=Constant(), p=p, gamma_min=0.1).fit(X, y)
    assert clf.no_edge_
    assert clf.n_iter_ == 0
    assert (clf.decision_function(X) == 0).all()
    with pytest.raises(ValueError, match="no rounds"):
        clf.empirical_z_set()


def test_fixed_and_free_balances(cancer):
    X, y = cancer
    clf = ZBoostClassifier(n_estimators=10, p=0.3, random_state=0).fit(X, y)
    assert (clf.ps_ == 0.3).all()
    assert (clf.n_iter_, clf.n_calls_) == (6, 7)  # the seventh stump says the same everywhere
    assert clf.no_edge_
    free = ZBoostClassifier(n_estimators=10, p="free", random_state=0).fit(X, y)
    assert free.ps_[0] == pytest.approx(y.mean())
    assert np.ptp(free.ps_) > 0


def test_learner_without_weights_draws_rows(cancer):
    X, y = cancer
    with pytest.warns(UserWarning, match="KNeighborsClassifier takes no sample_weight") as told:
        clf = ZBoostClassifier(KNeighborsClassifier(1), n_estimators=5, p=0.5, random_state=0).fit(X[:200], y[:200])
    assert len(told) == 1
    assert clf.score(X[200:], y[200:]) > 0.8


def test_threshold_keeps_the_target_rate():
    """Over 200 draws of the held-out scores the rate exceeds 10 % in about 5 % of cases at confidence 95 %."""
    rng = np.random.default_rng(0)
    over = [1 - _threshold(rng.random(150), 0.1, 0.95) > 0.1 for _ in range(2000)]
    assert 0.02 < np.mean(over) <= 0.06
    assert rows_needed(0.05, 0.95) == 59
    assert _threshold(np.arange(59.0), 0.05, 0.95) == 58  # the largest of them


@pytest.mark.parametrize("which", ["target_fpr", "target_fnr"])
def test_target_rates(which, cancer):
    X, y = cancer
    y = y if which == "target_fpr" else 1 - y
    clf = ZBoostClassifier(n_estimators=30, random_state=1, validation_fraction=0.5, **{which: 0.05}).fit(X, y)
    wrong = (clf.predict(X) != y)[y == (0 if which == "target_fpr" else 1)]
    assert wrong.mean() <= 0.05
    assert clf.theta_ != 0
    with pytest.raises(ValueError, match="59 held-out rows of class"):
        ZBoostClassifier(**{which: 0.05}).fit(X[:150], y[:150])


def test_labels_weights_and_classes(cancer):
    X, y = cancer
    names = np.where(y == 1, "benign", "malignant")
    clf = ZBoostClassifier(n_estimators=3).fit(X, names)
    assert clf.classes_.tolist() == ["benign", "malignant"]
    with pytest.raises(ValueError, match=r"Only binary classification.*OneVsRestClassifier"):
        ZBoostClassifier().fit(X, np.arange(len(X)) % 3)
    with pytest.raises(ValueError, match="got one class"):
        ZBoostClassifier().fit(X, np.ones(len(X)))
    with pytest.raises(ValueError, match="weight > 0"):
        ZBoostClassifier().fit(X, y, sample_weight=y)
    with pytest.raises(NotFittedError):
        ZBoostClassifier().predict(X)
    with pytest.raises(NotFittedError):
        ZBoostClassifier().empirical_z_set()


# --- baselines -------------------------------------------------------------------------------------------------------


def test_joint_boosting_is_adaboost(cancer):
    X, y = cancer
    ours = JointBoostClassifier(n_estimators=15, rule="adaboost", random_state=0).fit(X, y)
    theirs = AdaBoostClassifier(DecisionTreeClassifier(max_depth=1), n_estimators=15, random_state=0).fit(X, y)
    assert np.corrcoef(ours.decision_function(X), theirs.decision_function(X))[0, 1] > 0.9999
    assert (ours.predict(X) == theirs.predict(X)).all()


@pytest.mark.parametrize("rule", ["adac2", "csb2"])
def test_costs_shift_the_errors(rule, cancer):
    X, y = cancer
    misses = []
    for costs in ((1, 10), (10, 1)):
        clf = JointBoostClassifier(DecisionTreeClassifier(max_depth=1), 8, rule, costs, random_state=0).fit(X, y)
        misses.append(((clf.predict(X) != y) & (y == 1)).sum())
    assert misses[0] < misses[1]
    with pytest.raises(ValueError, match="rule: got"):
        JointBoostClassifier(rule="x").fit(X, y)
    with pytest.raises(ValueError, match="costs: got"):
        JointBoostClassifier(costs=(0, 1)).fit(X, y)


def test_equal_costs_change_nothing():
    positive, rng = np.arange(60) < 20, np.random.default_rng(0)
    rules = [JointScores(positive, rule) for rule in ("adaboost", "adac2", "csb2")]
    for _ in range(10):
        h = np.where(rng.random(60) < 0.3, -1, 1) * np.where(positive, 1.0, -1.0)
        alphas = [r.add(h) for r in rules]
        assert alphas == pytest.approx([alphas[0]] * 3)
    assert rules[1].w == pytest.approx(rules[0].w)


def test_adamec(cancer):
    X, y = cancer
    shy, bold = (
        AdaMEC(n_estimators=10, costs=c, random_state=0).fit(X, y).predict(X).mean() for c in ((20, 1), (1, 20))
    )
    assert shy < bold


# --- centerpoints and amplification ----------------------------------------------------------------------------------


def brute_depth(z, c):
    """Over a direction on each side of every line through c and a point."""
    way = z - c
    angle = np.arctan2(way[:, 1], way[:, 0])
    tries = np.concatenate([angle + s * math.pi / 2 + e for s in (-1, 1) for e in (-1e-6, 0, 1e-6)])
    U = np.stack([np.cos(tries), np.sin(tries)])
    return int(((way @ U) >= -2e-7).sum(axis=0).min())


plane = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=3, max_size=30)


@given(plane)
@settings(max_examples=100, deadline=None)
def test_depth_of_the_centerpoint(points):
    z = np.array(points) / 12.0
    c = centerpoint(z)
    d = math.ceil(len(z) / 3)
    assert halfplane_depth(z, c)[0] >= d
    assert brute_depth(z, c) >= d
    kept, weights = mixture(z, c)
    assert len(kept) <= 3
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    assert weights @ z[kept] == pytest.approx(c, abs=1e-6)


def test_known_centerpoints():
    z = np.array([(0, 0), (1, 0), (0, 1), (1 / 3, 1 / 3)])
    assert centerpoint(z) == pytest.approx([1 / 3, 1 / 3])
    for k, low, high in ((9, 2, 6), (10, 3, 6), (4, 1, 2)):
        c = centerpoint(np.outer(np.arange(k), (1.0, 2.0)))
        assert c[1] == pytest.approx(2 * c[0], abs=1e-6)
        assert low - 1e-6 <= c[0] <= high + 1e-6
    assert centerpoint([(0.4, 0.2)] * 5) == pytest.approx([0.4, 0.2])
    assert halfplane_depth(z, (5, 5))[0] == 0


def test_centerpoints_move_with_the_points():
    rng = np.random.default_rng(0)
    z = rng.random((40, 2))
    A, b = np.array([(2.0, 0.3), (-0.5, 0.7)]), np.array([3.0, -1.0])
    moved = z @ A.T + b
    assert halfplane_depth(moved, A @ centerpoint(z) + b)[0] >= 14
    assert halfplane_depth(z, np.linalg.solve(A, centerpoint(moved) - b))[0] >= 14


def test_pivots_give_the_solution_of_highs():
    rng = np.random.default_rng(0)
    for k in (4, 9, 50):
        program = _Deepest(rng.random((k, 2)), math.ceil(k / 3))
        turn = rng.uniform(0, 2 * math.pi, 40)
        program.keep(np.stack([np.cos(turn), np.sin(turn)], axis=1))
        ours, theirs = ((program.reach - program.A[:, :2] @ c).min() for c in (program.solve(), program.reference()))
        assert ours == pytest.approx(theirs, abs=1e-9)


def test_mixture_outside_the_hull():
    with pytest.raises(ValueError, match="convex hull"):
        mixture([(0, 0), (1, 0), (0, 1)], (1, 1))
    with pytest.raises(ValueError, match="finite points"):
        centerpoint([(0, math.nan)])


def test_convexity_is_needed():
    """Two good points of a set that is not convex: their mean is bad."""
    z = ZSet.union(ZSet.rectangle(0.5, 0.02), ZSet.rectangle(0.02, 0.5))
    runs = np.array([(0.5, 0.01)] * 4 + [(0.01, 0.5)] * 4)
    assert z.contains(runs).all()
    assert not z.contains(runs.mean(axis=0))


def test_runs_needed():
    assert runs_needed() == 332
    assert failure_bound(332) <= 0.01 < failure_bound(331)
    assert failure_bound(61) == pytest.approx(0.43, abs=0.01)


def test_centerpoint_survives_bad_runs():
    """A third less one of the runs may be anything: the centerpoint stays in the hull of the good ones."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        good = np.column_stack([rng.uniform(0.1, 0.2, 21), rng.uniform(0.1, 0.15, 21)])
        c = centerpoint(np.vstack([good, rng.random((10, 2)) * 0.05]))
        assert (c >= (0.1 - 1e-6, 0.1 - 1e-6)).all()


def test_amplify(cancer):
    X, y = cancer
    stump = DecisionTreeClassifier(max_depth=1, max_features=1)
    h = amplify(stump, X, y, k=31, random_state=0)
    assert h.points_.shape == (31, 2)
    assert h.depth_ >= 11
    assert len(h.estimators_) <= 3
    chance = h.predict_proba(X)[:, 1]
    joint = [(chance * (y == 0)).mean(), ((1 - chance) * (y == 1)).mean()]
    assert joint == pytest.approx(h.point_, abs=1e-6)
    drawn = np.mean([h.predict(X, random_state=s) for s in range(300)], axis=0)
    assert np.abs(drawn - chance).max() < 0.15
    assert (h.predict(X, random_state=0) == h.predict(X, random_state=0)).all()
    assert h.slack_ == pytest.approx(math.sqrt(math.log(4 * 31 / 0.01) / (2 * len(y))))
    weighted = amplify(stump, X, y, k=9, sample_weight=np.where(y == 1, 2.0, 1.0))
    assert weighted.points_.max() <= 1
    single = amplify(stump, X, y, k=31, derandomise=True)
    if single.derandomised_:
        assert len(single.estimators_) == 1
        assert (single.point_ <= centerpoint(single.points_) + 1e-9).all()


def test_amplify_takes_a_callable(cancer):
    X, y = cancer
    h = amplify(
        lambda X, y, w, rng: DecisionTreeClassifier(max_depth=1, max_features=1, random_state=rng.randint(99)).fit(
            X, y
        ),
        X,
        y,
        k=5,
    )
    assert set(h.predict(X)) <= {0, 1}


@pytest.mark.parametrize(("options", "says"), [
    ({"k": 2}, "k: got 2; expected 3 runs"), ({"k": 3.5}, "k: got 3.5"), ({"success": 2 / 3}, "success.*2/3.*centerpoint"), ({"success": 0.6, "k": 9}, "success"),
    ({"delta": 0.0}, "delta"), ({"k": 5, "sample_weight": [-1.0]}, "sample_weight"),
    ({"learner": KNeighborsClassifier()}, "no random_state"),
])  # fmt: skip
def test_mistakes_about_amplifying(options, says, cancer):
    X, y = cancer
    options = {"learner": DecisionTreeClassifier(max_depth=1), **options}
    with pytest.raises(ValueError, match=says):
        amplify(X=X, y=y, **options)


def test_more_mistakes_about_amplifying(cancer):
    X, y = cancer
    with pytest.raises(ValueError, match="two classes"):
        amplify(DecisionTreeClassifier(), X, np.arange(len(y)) % 3)
    with pytest.raises(TypeError, match="expected a classifier or a callable"):
        amplify("tree", X, y)
