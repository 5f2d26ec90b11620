"""The intervals and rank statistics against independent implementations, hand cases and their symmetries."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats as sps
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import roc_auc_score

from gnomon import stats

RNG = np.random.default_rng(0)
numbers = st.floats(-100, 100, allow_nan=False).map(lambda v: round(v, 3))


def ends(wide):
    return pytest.approx((float(wide.low), float(wide.high)))


# --- means -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 10])
def test_t_interval_is_scipys_and_works_on_batches(n):
    x = RNG.normal(size=(5, n))
    wide = stats.t_interval(x, 0.9)
    for i in range(5):
        expected = sps.ttest_1samp(x[i], 0).confidence_interval(0.9)
        assert (wide.low[i], wide.high[i]) == pytest.approx((expected.low, expected.high))
    assert wide.df == n - 1


@given(arrays(float, 6, elements=numbers), numbers, st.floats(0.1, 10))
def test_t_interval_moves_and_scales_with_the_numbers(x, shift, scale):
    before, after = stats.t_interval(x), stats.t_interval(shift + scale * x)
    assert after.low == pytest.approx(shift + scale * before.low, abs=1e-6)
    assert after.high == pytest.approx(shift + scale * before.high, abs=1e-6)


def test_factor_difference():
    a, b = np.array([1.0, 1.2, 0.9]), np.array([3.5, 4.1, 3.0])
    expected = sps.ttest_1samp(b - 3 * a, 0).confidence_interval(0.95)
    assert ends(stats.factor_difference(a, b, 3)) == (expected.low, expected.high)


def test_two_way_hand_case():
    """x = [[0, 1], [2, 3], [4, 5]]: seeds 0.5, 2.5, 4.5, items 2, 3, no rest."""
    wide = stats.two_way([[0, 1], [2, 3], [4, 5]])
    ms_seed, ms_item = 2 * (4 + 0 + 4) / 2, 3 * 0.5
    total = ms_seed + ms_item
    assert wide.estimate == 2.5
    assert wide.se**2 == pytest.approx(total / 6)
    assert wide.df == pytest.approx(total**2 / (ms_seed**2 / 2 + ms_item**2 / 1))


def test_two_way_is_never_narrower_than_seeds_or_items_alone():
    """Where the rest exceeds both, the larger of the two terms stands, with its own degrees of freedom."""
    x = np.array([[0.0, 1.0, -1.0], [1.0, -1.0, 0.0], [-1.0, 0.0, 1.01]])
    wide = stats.two_way(x)
    ms_seed, ms_item = 3 * x.mean(1).var(ddof=1), 3 * x.mean(0).var(ddof=1)
    assert wide.se**2 == pytest.approx(max(ms_seed, ms_item) / 9)
    assert wide.df == 2


@settings(max_examples=50)
@given(arrays(float, (3, 4), elements=numbers))
def test_two_way_does_not_care_which_factor_is_which(x):
    assert ends(stats.two_way(x)) == ends(stats.two_way(x.T)).expected


def test_two_way_of_copies_is_t():
    """Items that are copies of each other leave the seeds as the only units."""
    seeds = RNG.normal(size=5)
    expected = stats.t_interval(seeds)
    assert ends(stats.two_way(np.tile(seeds[:, None], (1, 7)))) == (expected.low, expected.high)
    assert ends(stats.two_way(np.ones((3, 4)))) == (1, 1)


def test_two_way_works_on_batches():
    x = RNG.normal(size=(4, 3, 5))
    wide = stats.two_way(x)
    assert [float(v) for v in wide.low] == pytest.approx([float(stats.two_way(v).low) for v in x])


# --- proportions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (3, 10), (95, 100)])
def test_binomial_is_clopper_pearson(k, n):
    expected = sps.binomtest(k, n).proportion_ci(0.95)
    assert ends(stats.binomial(k, n)) == (expected.low, expected.high)


def test_crossed_binomial_between_its_extremes():
    fates = np.arange(40) < 10
    copies = stats.crossed_binomial(np.tile(fates, (6, 1)))  # the items decide
    alone = stats.binomial(10, 40)
    assert copies.low <= alone.low * 1.05
    assert copies.high >= alone.high * 0.95
    none = stats.crossed_binomial(np.zeros((3, 40)))
    assert none.high == pytest.approx(float(stats.binomial(0, 40).high))
    independent = stats.crossed_binomial(np.random.default_rng(1).random((30, 400)) < 0.2)
    assert independent.high - independent.low < 0.03


def test_mcnemar():
    assert stats.mcnemar(0, 0) == 1
    assert stats.mcnemar(5, 0) == pytest.approx(2 * 0.5**5)
    assert stats.mcnemar(8, 2) == stats.mcnemar(2, 8) == pytest.approx(2 * sps.binom.cdf(2, 10, 0.5))


def test_tango_hand_cases():
    z2 = sps.norm.ppf(0.975) ** 2
    assert ends(stats.tango(0, 0, 20)) == (-z2 / (20 + z2), z2 / (20 + z2))
    wide = stats.tango(20, 0, 20)
    assert wide.high == 1
    assert wide.low == pytest.approx((20 - z2) / (20 + z2)), "a single side: Wilson's interval, on -1 to 1"


@pytest.mark.parametrize(("b", "c", "n"), [(12, 2, 50), (1, 0, 30), (10, 10, 40), (3, 40, 60)])
def test_tango_ends_have_the_score_of_the_level(b, c, n):
    """The constrained maximum of the likelihood, found numerically, gives the same score."""
    wide = stats.tango(b, c, n)
    for delta, sign in ((wide.low, 1), (wide.high, -1)):
        q = np.linspace(max(0, -delta), (1 - delta) / 2, 200_001)[1:-1]  # q = P(second only), q + delta = P(first only)
        likelihood = b * np.log(q + delta) + c * np.log(q) + (n - b - c) * np.log1p(-2 * q - delta)
        best = q[np.argmax(likelihood)]
        score = (b - c - n * delta) / np.sqrt(n * (2 * best + delta * (1 - delta)))
        assert score == pytest.approx(sign * sps.norm.ppf(0.975), abs=2e-3)
    assert ends(stats.tango(c, b, n)) == (-wide.high, -wide.low)


# --- bootstrap and ranks ---------------------------------------------------------------------------------------------


def test_bca_is_scipys():
    x = RNG.exponential(size=25)
    wide = stats.bca(25, lambda i: float(x[i].mean()), resamples=999, random_state=3)
    expected = sps.bootstrap(
        (x,), np.mean, method="BCa", n_resamples=999, vectorized=False, rng=np.random.default_rng(3)
    )
    assert ends(wide) == tuple(expected.confidence_interval)
    assert wide.estimate == pytest.approx(x.mean())


@pytest.mark.filterwarnings("ignore")
def test_bca_of_a_constant():
    assert ends(stats.bca(20, lambda i: 1.0, resamples=50)) == (1, 1)


def test_spearman_is_scipys_with_ties():
    x, y = RNG.integers(0, 5, 30), RNG.integers(0, 5, 30)
    assert stats.spearman(x, y) == pytest.approx(sps.spearmanr(x, y).statistic)
    assert np.isnan(stats.spearman([1, 1, 1], [1, 2, 3]))


def test_fisher_z_of_a_perfect_correlation_is_finite_and_beyond_the_next():
    next_best = stats.spearman([1, 2, 3, 4, 5], [1, 2, 3, 5, 4])
    assert np.arctanh(next_best) < stats.fisher_z(1, 5) < np.inf
    assert stats.fisher_z(-1, 5) == -stats.fisher_z(1, 5)
    assert stats.fisher_z(0.3, 10) == pytest.approx(np.arctanh(0.3))


def test_spearman_interval_by_hand():
    half = 1.959963984540054 * np.sqrt((1 + 0.5**2 / 2) / 25)
    assert ends(stats.spearman_interval(0.5, 28)) == (np.tanh(np.arctanh(0.5) - half), np.tanh(np.arctanh(0.5) + half))


def test_power_law_is_linregress_on_logs():
    x = np.array([1.0, 2, 4, 8, 16])
    y = 3 * x**-0.7 * np.exp(0.1 * RNG.normal(size=5))
    wide, line = stats.power_law(x, y), sps.linregress(np.log(x), np.log(y))
    assert (wide.estimate, wide.se) == pytest.approx((line.slope, line.stderr))
    assert wide.high == pytest.approx(line.slope + sps.t.ppf(0.975, 3) * line.stderr)
    assert stats.power_law([1, 10], [2, 200]).estimate == pytest.approx(2)


def test_auroc_is_sklearns_with_ties():
    labels, scores = RNG.integers(0, 2, 60), RNG.integers(0, 10, 60)
    assert stats.auroc(labels, scores) == pytest.approx(roc_auc_score(labels, scores))
    assert stats.auroc([0, 1], [5, 5]) == 0.5
    assert stats.auroc([0, 0, 1], [1, 2, 3]) == 1


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [(lambda: stats.t_interval([1.0]), "x has 1 numbers"), (lambda: stats.t_interval([1, np.nan]), "x has 1 values"),
     (lambda: stats.t_interval([1, 2], 1.0), "level 1.0"), (lambda: stats.two_way(np.ones((1, 3))), r"shape \(1, 3\)"),
     (lambda: stats.binomial(5, 3), "k events"), (lambda: stats.mcnemar(-1, 3), "counts"),
     (lambda: stats.tango(3, 3, 5), r"b \+ c"), (lambda: stats.bca(1, lambda i: 0.0), "n 1"),
     (lambda: stats.spearman([1, 2], [1, 2]), "3 or more"), (lambda: stats.spearman_interval(0.5, 3), "4 units"),
     (lambda: stats.power_law([1, 2], [0, 1]), "positive"), (lambda: stats.power_law([2, 2], [1, 1]), "constant"),
     (lambda: stats.auroc([1, 1], [1, 2]), "both"), (lambda: stats.auroc([0, 2], [1, 2]), "both"),
     (lambda: stats.factor_difference([1, 2], [1, 2], 0), "factor 0"), (lambda: stats.crossed_binomial([1, 0]), "shape")],
)  # fmt: skip
def test_bad_input_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()
