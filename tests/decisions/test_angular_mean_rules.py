"""The rules that the angular mean is compared with, and voters from choices."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from gnomon.decisions import AngularMean, agreement, fit_voters
from gnomon.decisions.angular_mean.baselines import (
    arithmetic_mean,
    coordinate_median,
    geodesic_median,
    heaviest,
    kemeny_rule,
    leximin,
    max_min_slack,
    normalized_mean,
    random_dictator,
    random_dictator_agreement,
)
from gnomon.decisions.angular_mean.sphere import angles, unit

pytestmark = pytest.mark.filterwarnings("ignore:the angular mean is not unique")


def instance(seed, d, n):
    random = np.random.default_rng(seed)
    return unit(random.normal(size=(n, d))), random.dirichlet(np.full(n, 1.5))


def slack(theta, voters, weights):
    return agreement(theta, voters) - weights


def circle(count):
    turn = np.linspace(0, 2 * np.pi, count, endpoint=False)
    return np.column_stack([np.cos(turn), np.sin(turn)])


def test_means_by_hand():
    voters = np.array([[3.0, 0], [0, 1]])
    np.testing.assert_allclose(arithmetic_mean(voters), unit(np.array([3.0, 1])))
    np.testing.assert_allclose(normalized_mean(voters), unit(np.array([1.0, 1])))
    np.testing.assert_allclose(arithmetic_mean(voters, [1, 3]), unit(np.array([1.0, 1])))
    np.testing.assert_allclose(heaviest(voters, [1, 3]), [0, 1])
    np.testing.assert_allclose(heaviest([[1, 0], [0, 1], [0, 2]]), [0, 1])  # equal rows are one type
    np.testing.assert_allclose(
        coordinate_median([[1, 0, 0], [0, 1, 0], [1, 1, 0]]), unit(np.array([1, 1, 0]) * 2**-0.5)
    )
    for rule in (arithmetic_mean, normalized_mean):
        with pytest.raises(ValueError, match="vanishes"):
            rule([[1, 0], [-1, 0]])


def test_arithmetic_mean_may_violate_proportionality():
    """The majority of three opposed types takes all; the angular mean does not let it."""
    voters, weights = circle(360)[[0, 170, 190]], [0.4, 0.3, 0.3]
    assert slack(arithmetic_mean(voters, weights), voters, weights).min() < -0.2
    assert AngularMean().fit(voters, sample_weight=weights).slack_.min() >= -1e-9


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000))
def test_lottery_is_proportional_in_expectation(seed):
    voters, weights = instance(seed, 3, 5)
    expected = random_dictator_agreement(voters, weights)
    assert (expected >= weights - 1e-12).all()
    drawn = np.mean([agreement(random_dictator(voters, weights, random_state=k), voters) for k in range(400)], axis=0)
    np.testing.assert_allclose(drawn, expected, atol=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_medians_and_max_min_against_a_grid(seed):
    voters, weights = instance(seed, 2, 5)
    grid = circle(7200)
    slacks = np.array([slack(theta, voters, weights) for theta in grid])
    disagreement = -(slacks + weights) @ weights
    for found in (geodesic_median(voters, weights), kemeny_rule(voters, weights)):
        assert -agreement(found, voters) @ weights <= disagreement.min() + 1e-7
    assert slack(max_min_slack(voters, weights), voters, weights).min() >= slacks.min(axis=1).max() - 1e-7
    best = slack(leximin(voters, weights), voters, weights)
    ordered = np.sort(slacks, axis=1)
    top = ordered[np.lexsort(ordered.round(3).T[::-1])[-1]]
    assert np.sort(best)[0] >= top[0] - 2e-4
    assert np.sort(best)[1] >= top[1] - 4e-3  # a grid step moves a slack by 3e-4


def test_kemeny_rule_on_correlated_items():
    """Against the least disagreement on drawn pairs, over a grid."""
    random = np.random.default_rng(0)
    factor = np.array([[1.0, 0], [1.5, 0.4]])
    voters, weights = instance(3, 2, 4)
    rule = kemeny_rule(voters, weights, covariance=factor @ factor.T)
    pairs = random.normal(size=(20_000, 2)) @ factor.T
    own = pairs @ voters.T > 0

    def disagreement(theta):
        return ((pairs @ theta > 0)[:, None] != own).mean(axis=0) @ weights

    assert disagreement(rule) <= min(map(disagreement, circle(720))) + 0.01


def test_leximin_goes_beyond_the_least():
    """Two opposed voters fix each other's slack; a third, apart, is then served as well as can be."""
    voters = np.array([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0]])
    weights = np.array([0.3, 0.3, 0.4])
    theta = leximin(voters, weights)
    np.testing.assert_allclose(slack(theta, voters, weights), [0.2, 0.2, 0.6], atol=1e-4)


def test_orders_of_the_rules():
    for seed in range(5):
        voters, weights = instance(seed, 4, 6)
        least = {rule.__name__: slack(rule(voters, weights), voters, weights).min()
                 for rule in (max_min_slack, leximin, normalized_mean, geodesic_median, heaviest)}  # fmt: skip
        angular = AngularMean().fit(voters, sample_weight=weights)
        assert least["max_min_slack"] >= max(*least.values(), angular.slack_.min()) - 1e-6
        assert least["leximin"] >= least["max_min_slack"] - 1e-5
        served = [agreement(theta, voters) @ weights for theta in (geodesic_median(voters, weights), angular.coef_)]
        assert served[0] >= served[1] - 1e-9


# --- voters from choices ---------------------------------------------------------------------------------------------


def choices(people=6, tasks=80, offered=4, seed=0):
    random = np.random.default_rng(seed)
    beta = random.normal(size=(people, 3)) * 2
    rows = []
    for p in range(people):
        for t in range(tasks):
            x = random.normal(size=(offered, 3)) * [1, 5, 0.2] + [0, 10, 1]
            score = ((x - [0, 10, 1]) / [1, 5, 0.2]) @ beta[p] + random.gumbel(size=offered)
            rows += [{"person": f"p{p}", "task": t, "chosen": j == score.argmax(), "a": x[j, 0], "b": x[j, 1], "c": x[j, 2]}
                     for j in range(offered)]  # fmt: skip
    return pd.DataFrame(rows), beta


def test_fitted_voters_are_those_who_chose():
    table, beta = choices()
    found = fit_voters(table, penalty=0.1)
    assert found.people == [f"p{k}" for k in range(6)]
    assert found.attributes == ["a", "b", "c"]
    assert (found.tasks == 80).all()
    for fitted, true in zip(found.coef, beta, strict=True):
        assert angles(unit(fitted), unit(true)[None])[0] < np.deg2rad(20)
    shuffled = fit_voters(table.sample(frac=1, random_state=0), penalty=0.1)
    for k, name in enumerate(shuffled.people):
        np.testing.assert_allclose(shuffled.coef[k], found.coef[found.people.index(name)], atol=1e-3)


def test_pairwise_choices_are_a_logistic_regression():
    table, _ = choices(people=2, offered=2)
    found = fit_voters(table, penalty=1.0)
    for k in range(2):
        part = table[table["person"] == f"p{k}"]
        x = (part[["a", "b", "c"]].to_numpy() - found.mean) / found.scale
        gap, first = x[0::2] - x[1::2], part["chosen"].to_numpy()[0::2]
        own = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10).fit(gap, first).coef_[0]
        np.testing.assert_allclose(found.coef[k], own, atol=1e-3)


def test_penalty_by_cross_validation():
    table, _ = choices(people=3, tasks=40)
    found = fit_voters(table, penalty="cv")
    assert 0.01 <= found.penalty <= 10
    noise = table.assign(chosen=np.tile(np.eye(4, dtype=int), (30, 1)).ravel())
    assert fit_voters(noise, penalty="cv").penalty > found.penalty


def test_tasks_of_several_sizes_and_names_of_columns():
    table, _ = choices(people=3, tasks=20)
    cut = table[~((table["task"] % 2 == 0) & (table.groupby(["person", "task"]).cumcount() == 3) & ~table["chosen"])]
    named = cut.rename(columns={"person": "id", "task": "q", "chosen": "y"}).assign(
        y=lambda t: t["y"].astype(int), note="x"
    )
    found = fit_voters(named, person="id", task="q", chosen="y", attributes=["a", "b"])
    assert found.coef.shape == (3, 2)
    assert len(found.items) == len(cut)


@pytest.mark.parametrize(("change", "options", "message"), [
    (lambda t: t.drop(columns="task"), {}, "no column 'task'"),
    (lambda t: t.assign(a="x"), {}, "columns a hold no numbers"),
    (lambda t: t.assign(a=1.0), {}, "'a' is constant"),
    (lambda t: t.assign(a=t["a"].where(t.index > 0)), {}, "missing values in a"),
    (lambda t: t.assign(a=t["a"].where(t.index > 0, np.inf)), {}, "infinite values"),
    (lambda t: t.assign(chosen=0), {}, "not exactly one chosen"),
    (lambda t: t.assign(chosen="maybe"), {}, "holds 'maybe'"),
    (lambda t: t.assign(task=np.arange(len(t)), chosen=1), {}, "one alternative"),
    (lambda t: t.iloc[:0], {}, "expected rows"),
    (lambda t: t, {"penalty": 0}, "penalty is 0"),
    (lambda t: t, {"penalty": "loo"}, "penalty is 'loo'"),
])  # fmt: skip
def test_bad_choices(change, options, message):
    table, _ = choices(people=2, tasks=4)
    with pytest.raises(ValueError, match=message):
        fit_voters(change(table), **options)
