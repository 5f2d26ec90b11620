"""Conformal abstention on scores: every hand case, the guarantees by simulation, peers, bad input."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from gnomon.guarantees import ConformalAbstainer, abstention_threshold, density_ratio, drift_test
from gnomon.guarantees.conformal_abstention import baselines
from gnomon.guarantees.conformal_abstention.certificates import (
    CERTIFICATES,
    Sample,
    Target,
    certify,
    frontier,
    infeasible_probability,
    posterior,
)
from gnomon.guarantees.conformal_abstention.judging import alias_match, normalised
from gnomon.guarantees.conformal_abstention.scores import nearest_correct, out_of_fold
from gnomon.guarantees.conformal_abstention.study.synthetic import WORLDS
from gnomon.guarantees.conformal_abstention.thresholds import (
    ALWAYS,
    NEVER,
    benjamini_hochberg,
    empirical_threshold,
    joint_threshold,
    least_answered,
    lower_bound,
    pac_grid,
    pac_threshold,
    participation_threshold,
    rejection_threshold,
    selection_p_values,
    upper_bound,
    weighted_joint,
    weighted_participation,
)

INFORMATIVE, SHARP = WORLDS["informative"], WORLDS["sharp"]


def data(n, seed=0, world=INFORMATIVE):
    return world.draw(n, np.random.default_rng(seed))


# --- hand cases ------------------------------------------------------------------------------------------------------


def test_participation_by_hand():
    S = np.arange(1.0, 10)
    assert abstention_threshold(S, alpha=0.2) == 2.0
    assert abstention_threshold(S, alpha=0.09) == -math.inf
    rng = np.random.default_rng(0)
    kept = np.array([1 - participation_threshold(rng.random(9), 0.2).score for _ in range(100_000)])
    assert abs(kept.mean() - 0.8) < 3 * kept.std() / math.sqrt(len(kept))


def test_joint_error_by_hand():
    S, C = [0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0]
    assert abstention_threshold(S, C, eps=0.4, kind="joint") == np.nextafter(0.6, 1)
    assert abstention_threshold(S, C, eps=0.2, kind="joint") == np.nextafter(0.8, 1)
    assert abstention_threshold(S, C, eps=0.19, kind="joint") == math.inf
    assert abstention_threshold(S, [1, 1, 1, 1], eps=0.4, kind="joint") == -math.inf
    assert abstention_threshold(S, C, eps=0.2, alpha=0.2, kind="ratio") == np.nextafter(0.8, 1)


def test_within_a_class_by_hand():
    S, C = np.arange(1.0, 13), np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    assert abstention_threshold(S, C, alpha=0.2, kind="correct") == 5.0  # the second of nine
    assert abstention_threshold(S, C, alpha=0.5, kind="incorrect") == np.nextafter(2, 3)  # ceil(.5 * 4) = 2
    assert abstention_threshold(S, C, alpha=0.2, kind="incorrect") == math.inf  # the fourth of three
    assert rejection_threshold([], 0.5) == NEVER


def test_pac_first_rejects_at_nine_correct():
    assert least_answered(0.75, 0.1) == 9
    for m, answered in ((8, False), (9, True)):
        found = pac_threshold(np.arange(float(m)), np.ones(m), [0.0], 0.75, 0.1)
        assert (found != NEVER) == answered
    S = np.array([0.9] * 9 + [0.1] * 9)
    assert pac_threshold(S, np.ones(18), [0.5, 0.0], 0.75, 0.1).score == 0.0
    assert pac_threshold(S, S > 0.5, [0.5, 0.0], 0.75, 0.1).score == 0.5
    assert pac_threshold(S, S > 0.5, [0.95, 0.5, 0.0], 0.75, 0.1) == NEVER  # no answer, no test: it stops there


def test_pac_grid_starts_where_the_fit_split_says():
    fit = np.linspace(0, 1, 200)
    grid = pac_grid(fit, 100, 0.75, 0.1)
    assert np.mean(fit >= grid[0]) * 100 >= 18 > np.mean(fit >= grid[0] + 0.011) * 100
    assert (np.diff(grid) < 0).all()
    assert grid[-1] == fit[0]
    assert pac_grid(fit, 100, 0.75, 0.1, start="top")[0] > grid[0]
    assert len(pac_grid(fit, 10, 0.75, 0.1)) == 1  # too few for twice nine: answer all or nothing


def test_fdr_by_hand():
    S, C = np.array([0.1, 0.2, 0.5, 0.9]), np.array([0, 0, 1, 1])
    p = selection_p_values(S, C, [0.3, 0.6, 0.15, 0.05])
    assert np.allclose(p, [1 / 5, 1 / 5, 2 / 5, 3 / 5])
    assert benjamini_hochberg([0.2, 0.2], 0.2).all()
    assert not benjamini_hochberg([0.2, 0.2], 0.19).any()
    assert benjamini_hochberg([0.01, 0.04, 0.9, 0.03], 0.06).tolist() == [True, True, False, True]
    assert not benjamini_hochberg([0.5], 0.25).any()


def test_all_correct_and_all_wrong():
    fit = np.linspace(0, 1, 100)
    right = ConformalAbstainer(certificate="pac", score="logprob").fit_scores(fit, np.ones(100))
    assert right.decide(fit[fit > 0.5]).all()
    assert not right.infeasible_
    with pytest.warns(UserWarning, match=r"0\.0% of the questions"):
        wrong = ConformalAbstainer(certificate="pac", score="logprob").fit_scores(fit, np.zeros(100))
    assert wrong.threshold_ == math.inf
    assert wrong.infeasible_
    assert "nothing is answered" in str(wrong.certificate_)
    assert not wrong.decide(fit).any()


def test_uncorrected_threshold():
    S, C = np.array([5.0, 4, 3, 2, 1]), np.array([1, 1, 0, 1, 0])
    assert empirical_threshold(S, C, 0.75).score == 2
    assert empirical_threshold(S, C, 0.9).score == 4
    assert baselines.uncorrected(S, np.zeros(5), 0.5) == NEVER
    assert empirical_threshold([1.0, 1.0], [1, 0], 0.75) == NEVER  # tied scores count together


def test_best_coverage_of_the_prototype():
    assert INFORMATIVE.best_coverage(0.75) == pytest.approx(0.246, abs=0.002)  # exactly .2444


# --- properties ------------------------------------------------------------------------------------------------------

samples = st.integers(0, 2**31).map(lambda seed: data(60, seed))


@given(samples, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None)
def test_thresholds_are_monotone_in_their_level(s, a, b):
    a, b = sorted((a, b))
    assert participation_threshold(s.S, a) <= participation_threshold(s.S, b)
    assert joint_threshold(s.S, s.C, a) >= joint_threshold(s.S, s.C, b)
    assert rejection_threshold(s.S[~s.C], a) >= rejection_threshold(s.S[~s.C], b)


@given(samples, st.sampled_from(CERTIFICATES), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_a_monotone_transformation_changes_no_decision(s, kind, seed):
    new, fit, target = data(60, seed), data(40, seed + 1), Target(0.6, 0.5, 0.2)
    one = certify(kind, s, fit, target, None).decide(new.S, new.u)
    bent = [x._replace(S=np.exp(3 * x.S) - 7) for x in (s, fit, new)]
    assert (certify(kind, *bent[:2], target, None).decide(bent[2].S, new.u) == one).all()


@given(samples, st.floats(0.02, 0.98))
@settings(max_examples=60, deadline=None)
def test_duplicated_calibration_moves_by_one_order_statistic_at_most(s, level):
    ordered = np.append(-np.inf, np.sort(s.S))

    def rank(t):
        return int(np.searchsorted(ordered, t.score, side="right"))

    twice = Sample(*(np.repeat(x, 2) for x in s[:3]))
    assert abs(rank(participation_threshold(s.S, level)) - rank(participation_threshold(twice.S, level))) <= 1
    wrong = np.append(np.sort(s.S[~s.C]), np.inf)
    one, two = (joint_threshold(x.S, x.C, level).score for x in (s, twice))
    assert abs(np.searchsorted(wrong, one) - np.searchsorted(wrong, two)) <= 1


@given(samples, st.floats(0.02, 0.98), st.floats(0.1, 9))
@settings(max_examples=60, deadline=None)
def test_equal_weights_are_no_weights(s, level, w):
    weights, new = np.full(60, w), np.full(3, w)
    assert set(weighted_participation(s.S, weights, new, level, s.u)) == {participation_threshold(s.S, level, s.u)}
    assert set(weighted_joint(s.S, s.C, weights, new, level, s.u)) == {joint_threshold(s.S, s.C, level, s.u)}
    p, q = (selection_p_values(s.S, s.C, s.S[:3], **k) for k in ({}, {"weights": weights, "weights_new": new}))
    assert np.allclose(p, q)


def test_weighted_participation_by_hand():
    S, w = np.array([1.0, 2, 3]), np.array([1.0, 3, 1])
    at = weighted_participation(S, w, np.array([1.0, 5.0]), 0.4)  # (1 + 0)/6, (1 + 1)/6, (1 + 4)/6; (5 + 0)/10
    assert [t.score for t in at] == [2.0, -math.inf]
    assert [t.score for t in weighted_participation(S, w, np.array([5.0]), 0.5)] == [1.0]


@pytest.mark.parametrize("kind", CERTIFICATES)
def test_one_group_is_no_groups(kind):
    s, new = data(300), data(120, 1)
    options = {"certificate": kind, "participation": 0.5, "score": "logprob"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plain = ConformalAbstainer(**options).fit_scores(s.S, s.C)
        grouped = ConformalAbstainer(**options).fit_scores(s.S, s.C, groups=["a"] * 300)
    assert (plain.decide(new.S) == grouped.decide(new.S, groups=["a"] * 120)).all()
    assert str(grouped.certificate_["a"]) == str(plain.certificate_)


def test_groups_are_calibrated_apart():
    one, two = data(400), data(400, 1, WORLDS["reversed"])
    S, C = np.append(one.S, two.S), np.append(one.C, two.C)
    ca = ConformalAbstainer(certificate="both", participation=0.5).fit_scores(S, C, groups=["a"] * 400 + ["b"] * 400)
    assert set(ca.threshold_) == {"a", "b"}
    assert ca.certificate_["a"].values["correctness"] > ca.certificate_["b"].values["correctness"]
    new = data(200, 2).S
    assert ca.decide(new, groups=["a"] * 200).mean() == pytest.approx(0.5, abs=0.12)
    with pytest.raises(ValueError, match="'c' was not calibrated"):
        ca.decide(new, groups=["c"] * 200)
    with pytest.raises(ValueError, match="one for each new item"):
        ca.decide(new)


def test_ties_are_broken_at_random_and_exactly():
    """Scores of three values: participation is still 1 - k / (n + 1), and p-values are those of the lexicographic order."""
    rng = np.random.default_rng(1)
    kept = []
    for _ in range(4000):
        S, u = rng.integers(0, 3, 20) / 3.0, rng.random(20)
        kept.append(participation_threshold(S[:19], 0.25, u[:19]).accepts(S[19], u[19]))
    assert abs(np.mean(kept) - 0.75) < 3 * math.sqrt(0.75 * 0.25 / 4000)
    S, C, u = rng.integers(0, 3, 40).astype(float), rng.random(40) < 0.5, rng.random(40)
    p = selection_p_values(S[:30], C[:30], S[30:], u[:30], u[30:])
    for j in range(10):
        above = [(S[i], u[i]) >= (S[30 + j], u[30 + j]) for i in range(30) if not C[i]]
        assert p[j] == (1 + sum(above)) / 31


# --- the guarantees, by simulation -----------------------------------------------------------------------------------

DRAWS = 2000


@pytest.mark.parametrize(("world", "n"), [("informative", 50), ("noise", 200), ("sharp", 100)])
def test_every_certificate_keeps_its_statement(world, n):
    law, rng, target = WORLDS[world], np.random.default_rng(n), Target(0.75, 0.5, 0.125, 0.1)
    found = {
        k: []
        for k in ("answered", "joint", "both", "ratio joint", "ratio answered", "pac", "bayes", "fdr", "hit", "miss")
    }
    for _ in range(DRAWS):
        cal, fit, new = law.draw(n, rng), law.draw(2 * n // 3, rng), law.draw(100, rng)

        def at(threshold):
            hit, miss = (float(x) for x in law.truth(threshold.score))
            return hit, miss, 0.45 * hit + 0.55 * miss

        def correct(threshold):
            hit, _, share = at(threshold)
            return 0.45 * hit / share if share > 0 else 1.0

        rules = {k: certify(k, cal, fit, target, None) for k in CERTIFICATES}
        found["answered"].append(at(rules["both"].threshold)[2])
        found["joint"].append(0.55 * at(joint_threshold(cal.S, cal.C, 0.125, cal.u))[1])
        found["ratio joint"].append(0.55 * at(rules["ratio"].threshold)[1])
        found["ratio answered"].append(at(rules["ratio"].threshold)[2] + rules["ratio"].certificate.infeasible)
        for kind in ("both", "pac", "bayes"):
            found[kind].append(correct(rules[kind].threshold) < rules[kind].certificate.values["correctness"])
        answered = rules["fdr"].decide(new.S, new.u)
        found["fdr"].append((answered & ~new.C).sum() / max(1, answered.sum()))
        found["hit"].append(at(participation_threshold(cal.S[cal.C], 0.2))[0])
        found["miss"].append(at(rejection_threshold(cal.S[~cal.C], 0.2))[1])
    for name, side, bound in (("answered", 1, 0.5), ("joint", -1, 0.125), ("ratio joint", -1, 0.125), ("ratio answered", 1, 0.5),
                              ("both", -1, 0.1), ("pac", -1, 0.1), ("bayes", -1, 0.1), ("fdr", -1, 0.25), ("hit", 1, 0.8), ("miss", -1, 0.2)):  # fmt: skip
        x = np.array(found[name], float)
        assert side * (x.mean() - bound) + 3 * x.std() / math.sqrt(DRAWS) >= 0, (name, x.mean())
    k = math.floor(0.5 * (n + 1))
    x = np.array(found["answered"])
    assert abs(x.mean() - (1 - k / (n + 1))) < 3.5 * x.std() / math.sqrt(DRAWS)


def test_without_correction_three_in_ten_draws_and_more_miss():
    rng, missed = np.random.default_rng(3), []
    for _ in range(DRAWS):
        s = INFORMATIVE.draw(100, rng)
        hit, miss = INFORMATIVE.truth(empirical_threshold(s.S, s.C, 0.75).score)
        missed.append(0.45 * hit < 0.75 * (0.45 * hit + 0.55 * miss))
    assert np.mean(missed) > 0.3 + 3 * math.sqrt(0.25 / DRAWS)


def test_infeasible_probability_is_that_of_the_bootstrap():
    fit = data(120, 5)
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(3000):
        at = rng.integers(120, size=50)
        S = fit.S[at] + 1e-9 * rng.random(50)
        drawn.append(joint_threshold(S, fit.C[at], 0.15) > participation_threshold(S, 0.6))
    q = infeasible_probability(fit, 50, 0.6, 0.15, np.random.default_rng(1))
    assert 0.05 < q < 0.95
    assert abs(q - np.mean(drawn)) < 4 * math.sqrt(0.25 / 2000 + 0.25 / 3000)


def test_frontier_keeps_infeasibility_at_its_level():
    fit, rng = data(400, 6), np.random.default_rng(0)
    table = frontier(fit, 600, rng)
    assert table["eps"].is_monotonic_increasing
    row = table.iloc[9]
    assert infeasible_probability(fit, 600, 1 - row["participation"], row["eps"], rng) <= 0.07


def test_ratio_warns_when_both_levels_do_not_go_together():
    s = data(1000)
    with pytest.warns(UserWarning, match="does not meet both levels"):
        ca = ConformalAbstainer(participation=0.5, certificate="ratio", score="logprob").fit_scores(s.S, s.C)
    assert ca.infeasible_probability_ > 0.9
    sharp = data(1000, 1, SHARP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ca = ConformalAbstainer(participation=0.4, certificate="ratio", score="logprob").fit_scores(sharp.S, sharp.C)
    assert ca.infeasible_probability_ <= 0.05
    assert not ca.infeasible_
    assert ca.certificate_.values["wrong"] == pytest.approx(0.1 / (0.4 - ca.infeasible_probability_))


def test_expected_coverage_says_that_pac_is_weak_here():
    s = data(100)
    with pytest.warns(UserWarning, match="1,000 or more calibration items"):
        ConformalAbstainer(certificate="pac", score="logprob").fit_scores(s.S, s.C)
    sharp = data(400, 2, SHARP)
    ca = ConformalAbstainer(certificate="pac", score="logprob").fit_scores(sharp.S, sharp.C)
    assert ca.expected_coverage_ == pytest.approx(float(ca.decide(data(4000, 3, SHARP).S).mean()), abs=0.12)


def test_counted_bounds():
    from scipy.stats import binomtest

    for k, m in ((0, 5), (3, 10), (10, 10)):
        exact = binomtest(k, m).proportion_ci(0.8, method="exact")
        assert float(lower_bound(k, m, 0.1)) == pytest.approx(exact.low)
        assert float(upper_bound(k, m, 0.1)) == pytest.approx(exact.high)
    assert float(upper_bound(0, 0, 0.1)) == 1.0


def test_bayes_moves_with_the_base_rate():
    s = data(1000, 4, SHARP)
    ca = ConformalAbstainer(certificate="bayes", score="logprob").fit_scores(s.S, s.C)
    v = ca.certificate_.values
    assert v["correctness"] == posterior(v["accuracy"], v["answered_if_correct"], v["answered_if_wrong"]) > 0.6
    assert ca.certificate_.at_base_rate(0.9) > ca.certificate_.at_base_rate(0.1)
    assert posterior(0.0, 1.0, 1.0) == 0.0
    fdr = ConformalAbstainer(score="logprob").fit_scores(s.S, s.C)
    with pytest.raises(ValueError, match="no base rate"):
        fdr.certificate_.at_base_rate(0.5)


# --- peers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_crepes_answers_the_same(seed):
    """A conformal p-value above alpha is a score at or above the threshold."""
    crepes = pytest.importorskip("crepes")
    s, new = data(73, seed), data(50, seed + 100)
    model = crepes.ConformalClassifier().fit(alphas=-s.S)
    p = np.ravel(model.predict_p(-new.S[:, None], smoothing=False))
    at = participation_threshold(s.S, 0.3)
    assert (at.accepts(new.S) == (p > 0.3 + 1e-12)).all()


@pytest.mark.parametrize("eps", [0.1, 0.2, 0.37])
def test_mapie_controls_the_same_risk(eps):
    methods = pytest.importorskip("mapie.risk_control.methods")
    s = data(80, 9)
    lambdas = np.unique(np.append(s.S, np.nextafter(s.S, 2)))
    risks = ((s.S[:, None] >= lambdas) & ~s.C[:, None]).astype(float)
    _, bound = methods.get_r_hat_plus(risks, lambdas, "crc", None, None, 0.25)
    theirs = methods.find_best_predict_param(lambdas, bound, np.array([eps + 1e-9]))  # it asks for "below"
    assert abstention_threshold(s.S, s.C, eps=eps, kind="joint") == float(np.ravel(theirs)[0])


# --- the estimator ---------------------------------------------------------------------------------------------------


def test_from_scores_to_decisions():
    s, new = data(1000), data(400, 1)
    ca = ConformalAbstainer(score="logprob").fit_scores(s.S, s.C)
    answered = ca.decide(new.S)
    assert 0 < answered.mean() < 1
    assert answered.dtype == bool
    assert math.isnan(ca.threshold_)
    assert ca.accuracy_ == s.C.mean()
    assert "at most 0.25" in str(ca.certificate_)
    assert "not of a single one" in str(ca.certificate_)
    again = clone(ca).fit_scores(s.S, s.C)
    assert (again.decide(new.S) == answered).all()
    with pytest.warns(UserWarning, match="a batch of 10 questions"):
        ca.decide(new.S[:10])


def test_batches_are_disjoint():
    s, new = data(500, 2), data(400, 3)
    ca = ConformalAbstainer(score="logprob", batch=200).fit_scores(s.S, s.C)
    both = ca.decide(new.S)
    u = np.random.default_rng([0, 1]).random(400)
    rule = ca._rules[None]
    assert (both[:200] == rule.decide(new.S[:200], u[:200])).all()
    assert (both[200:] == rule.decide(new.S[200:], u[200:])).all()


@pytest.mark.parametrize("score", ["geometry", "isotonic", "product", "gbdt"])
def test_features_are_combined_on_the_fit_split(score):
    rng = np.random.default_rng(0)
    C = rng.random(400) < 0.5
    X = np.column_stack([rng.normal(C * 1.0) - 3, rng.normal(C * 1.5), rng.normal(size=400)])
    ca = ConformalAbstainer(certificate="both", participation=0.5, score=score).fit_scores(X, C)
    fresh = rng.random(4000) < 0.5
    new = np.column_stack([rng.normal(fresh * 1.0) - 3, rng.normal(fresh * 1.5), rng.normal(size=4000)])
    answered = ca.decide(new)
    assert answered.mean() == pytest.approx(0.5, abs=0.1)
    assert fresh[answered].mean() > max(0.6, ca.certificate_.values["correctness"] - 0.05)
    with pytest.raises(ValueError, match="got 2 columns; expected 3"):
        ca.decide(new[:, :2])


def test_out_of_fold_scores_do_not_flatter():
    rng = np.random.default_rng(0)
    X, C = rng.normal(size=(80, 30)), (rng.random(80) < 0.5).astype(float)
    from gnomon.guarantees.conformal_abstention.scores import combiner
    from gnomon.stats import auroc

    assert auroc(C, combiner("geometry").fit(X, C).score(X)) > 0.85
    assert abs(auroc(C, out_of_fold("geometry", X, C)) - 0.5) < 0.25


def test_weights_mend_a_shift_of_the_score():
    """Calibrated where half are right, used where the score's law is tilted by a known ratio."""
    rng = np.random.default_rng(0)

    def draw(n, a):
        S = rng.beta(a, 1, n)
        return S, rng.random(n) < S

    kept = []
    for _ in range(25):
        S, C = draw(300, 2)
        new, right = draw(100, 1)
        ca = ConformalAbstainer(0.7, score="logprob").fit_scores(S, C, weights=0.5 / S)  # density 1 over 2 s
        answered = ca.decide(new, weights=0.5 / new)
        kept.append(1 - (answered & ~right).sum() / max(1, answered.sum()))
    assert np.mean(kept) > 0.7 - 3 * np.std(kept) / math.sqrt(25)
    ratio = ConformalAbstainer(0.6, 0.3, "ratio", eps=0.15, score="logprob").fit_scores(S, C, weights=0.5 / S)
    new, right = draw(2000, 1)
    answered = ratio.decide(new, weights=0.5 / new)
    assert (answered & ~right).mean() < 0.18
    with pytest.raises(ValueError, match="one for each new item"):
        ratio.decide(new)
    with pytest.raises(ValueError, match="takes none"):
        ConformalAbstainer(certificate="pac", score="logprob").fit_scores(S, C, weights=S)


def test_density_ratio_and_drift():
    rng = np.random.default_rng(0)
    x, y = rng.normal(0, 1, 2000), rng.normal(0.5, 1, 2000)
    w, w_new = density_ratio(x, y)
    assert np.corrcoef(np.log(w), 0.5 * x - 0.125)[0, 1] > 0.99
    assert w.mean() == pytest.approx(1, abs=0.1)
    assert w_new.mean() > 1
    assert drift_test(x, y).p_value < 1e-6
    assert drift_test(x[:1000], x[1000:]).p_value > 0.01
    ca = ConformalAbstainer(score="logprob").fit_scores(x, x > 0)
    assert ca.drift(y).p_value < 1e-6
    with pytest.raises(ValueError, match="got 1 columns; expected 2"):
        density_ratio(np.zeros((3, 2)), np.zeros((3, 1)))


# --- baselines and judging -------------------------------------------------------------------------------------------


def test_temperature_is_recovered():
    rng = np.random.default_rng(0)
    lp = -rng.exponential(1.0, 20_000)
    C = rng.random(20_000) < np.exp(lp / 2.5)
    scale = baselines.TemperatureScaled().fit(lp, C)
    assert scale.temperature == pytest.approx(2.5, rel=0.05)
    assert scale.probability([-2.5])[0] == pytest.approx(math.exp(-1), abs=0.03)


def test_agreement_and_meaning_of_samples():
    samples = [["Paris", "paris.", "Lyon", "Paris", "Paris"], ["a", "b", "c", "d", "e"]]
    assert baselines.self_consistency(["Paris", "z"], samples).tolist() == [0.8, 0.0]

    def embed(texts):
        names = sorted(set(map(normalised, texts)))
        return np.eye(len(names))[[names.index(normalised(t)) for t in texts]]

    found = baselines.semantic_entropy(samples, embed)
    assert found[0] == pytest.approx(0.8 * math.log(0.8) + 0.2 * math.log(0.2))
    assert found[1] == pytest.approx(-math.log(5))


def test_answers_are_whole_strings():
    assert not alias_match("", "Guinea-Bissau", "Guinea")
    assert not alias_match("", "Guinea", ["Guinea-Bissau"])
    assert alias_match("", " Brasilia. ", ["Brasília"])
    assert alias_match("", "Saint Johns", ["x", "St. John's", "Saint John's"])
    assert alias_match("", "Netherlands", "The Netherlands")
    assert alias_match("", "Trinidad and Tobago", "Trinidad & Tobago")
    assert not alias_match("", "", [])
    assert not alias_match("", "anything", [])


def test_nearest_correct_leaves_an_item_out_of_its_own_bank():
    bank = np.array([[1.0, 0], [0, 1.0], [1.0, 1.0]])
    assert nearest_correct(bank[:1], bank, k=1)[0] == pytest.approx(1.0)
    assert nearest_correct(bank[:1], bank, k=1, same=True)[0] == pytest.approx(math.sqrt(0.5))
    assert nearest_correct(bank, np.empty((0, 2))).tolist() == [0, 0, 0]


# --- bad input -------------------------------------------------------------------------------------------------------

S100, C100 = np.linspace(0, 1, 100), np.arange(100) % 2


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        ({"certificate": "pac"}, {"S": S100[:14], "C": C100[:14]}, "needs at least 9"),
        ({"certificate": "fdr", "correctness": 0.9}, {"S": S100[:12], "C": C100[:12]}, "needs at least 9"),
        ({"certificate": "ratio", "participation": 0.5}, {"S": S100[:8], "C": C100[:8]}, "needs at least 7"),
        ({"score": "geometry"}, {"S": np.column_stack([S100, S100]), "C": np.ones(100)}, "needs both classes"),
        ({"score": "isotonic"}, {"S": S100, "C": np.zeros(100)}, "needs both classes"),
        ({"correctness": 1.0}, {}, "correctness: got 1.0; expected a number in"),
        ({"correctness": True}, {}, "correctness"),
        ({"delta": 0}, {}, "delta"),
        ({"eps": 1.5}, {}, "eps"),
        ({"participation": -0.1}, {}, "participation"),
        ({"fit_share": 1}, {}, "fit_share"),
        ({"batch": 0}, {}, "batch"),
        ({"certificate": "sure"}, {}, "certificate: got 'sure'; expected one of both, ratio, pac, fdr, bayes"),
        ({"certificate": "both"}, {}, "participation: got None"),
        ({"score": "vibes"}, {}, "score: got 'vibes'"),
        ({}, {"S": np.append(S100[:99], np.nan)}, "1 values are NaN or infinite"),
        ({}, {"S": ["a"] * 100}, "expected numbers"),
        ({}, {"S": S100[:0]}, "got shape"),
        ({}, {"C": C100[:50]}, "C: got shape"),
        ({}, {"C": C100 + 1}, "expected 0 .wrong. or 1"),
        ({}, {"ids": np.arange(100) // 4}, "lies in the fit and in the calibration split"),
        ({}, {"ids": [1]}, "ids: got shape"),
        ({}, {"split": np.ones(100)}, "expected both to hold some"),
        ({}, {"weights": -S100 - 1}, "non-negative"),
    ],
)
def test_bad_input_is_named(options, arguments, words):
    with pytest.raises(ValueError, match=words):
        ConformalAbstainer(**{"score": "logprob", **options}).fit_scores(**{"S": S100, "C": C100, **arguments})


def test_one_class_is_fine_for_plain_scores():
    ca = ConformalAbstainer(score="logprob").fit_scores(S100, np.ones(100))
    assert ca.decide(S100).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"alpha": None}, "alpha: got None"),
        ({"alpha": 1}, "alpha: got 1"),
        ({"alpha": 0.2, "kind": "best"}, "kind: got 'best'"),
        ({"kind": "joint", "eps": 0.1}, "C: got None"),
        ({"kind": "joint", "C": C100, "eps": 2.0}, "eps: got 2.0"),
        ({"S": [1.0, math.inf], "alpha": 0.2}, "NaN or infinite"),
    ],
)
def test_thresholds_reject_bad_input(arguments, words):
    with pytest.raises(ValueError, match=words):
        abstention_threshold(**{"S": S100, **arguments})


def test_not_fitted():
    with pytest.raises(NotFittedError, match="call fit"):
        ConformalAbstainer().decide(S100)
    ca = ConformalAbstainer(score="logprob").fit_scores(S100, S100 > 0.5)
    with pytest.raises(NotFittedError, match="fitted on scores"):
        ca.answer("x")
    assert ALWAYS.accepts(S100).all()
    assert not NEVER.accepts(S100, 0.9).any()
