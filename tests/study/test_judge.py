"""The judge on hand cases: every kind against an independent formula, every modifier, everything that is missing."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import scipy.stats as sps

from gnomon import study
from gnomon.study import judge
from gnomon.study.judge import summary


class Compare(study.Experiment):
    cells = study.grid(n=[3, 5])
    contenders = {"a": None, "b": None, "c": None, "random": None}
    metrics = {"nll": study.lower("nats"), "acc": study.higher(), "error": study.lower(log=True)}


class Windows(study.Experiment):
    contenders = {"a": None, "b": None}
    metrics = {"loss": study.lower(), "hit": study.higher()}
    unit, cluster = ("seed", "window"), "article"


class Times(study.Experiment):
    contenders = {"a": None, "b": None}
    metrics = {"seconds": study.lower("s", timed=True, log=True)}


class Exact(study.Experiment):
    contenders = {"a": None}
    seeds = 0


EXPERIMENTS = {e.__name__: e for e in (Compare, Windows, Times, Exact)}


def table(values, name="nll", n=3, **more):
    """Rows of {contender: one value per seed}."""
    return pd.DataFrame([{"n": n, "contender": c, "seed": s, name: v, **{k: f[s] for k, f in more.items()}}
                         for c, xs in values.items() for s, v in enumerate(xs)])  # fmt: skip


def one(claim, frame, name="Compare", experiments=None, **tables):
    experiments = experiments or {name: EXPERIMENTS[name]}
    return judge([claim], {name: frame, **tables}, experiments)[0]


A, B = [1.0, 1.2, 0.9, 1.1], [2.1, 2.0, 2.3, 1.9]


# --- comparisons -----------------------------------------------------------------------------------------------------


def test_better_is_the_paired_t_interval():
    v = one(study.better("nll", "a", than="b"), table({"a": A, "b": B}))
    expected = sps.ttest_rel(B, A).confidence_interval(0.95)
    assert v.verdict == "holds"
    assert v.interval == pytest.approx((expected.low, expected.high))
    assert v.effect == pytest.approx(np.mean(B) - np.mean(A))
    assert (v.n, v.unit, v.few, v.parts, v.level) == (4, "seed", True, [], 0.95)


def test_direction_follows_the_metric():
    frame = table({"a": A, "b": B}, "acc")
    assert one(study.better("acc", "b", than="a"), frame).verdict == "holds"
    assert one(study.better("acc", "a", than="b"), frame).verdict == "fails"
    assert one(study.worse("acc", "a", than="b"), frame).verdict == "holds"
    assert one(study.worse("nll", "b", than="a"), table({"a": A, "b": B})).verdict == "holds"


def test_pairing_is_by_seed_not_by_order():
    frame = table({"a": A, "b": [x + 0.1 for x in A]}).sample(frac=1, random_state=0)
    v = one(study.better("nll", "a", than="b"), frame)
    assert v.verdict == "holds"
    assert v.interval == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize(("by", "verdict"), [(0.3, "holds"), (3.0, "fails"), (1.0, "undecided"), (-0.1, "holds")])
def test_by(by, verdict):
    assert one(study.better("nll", "a", than="b", by=by), table({"a": A, "b": B})).verdict == verdict


def test_not_worse_by_more_than():
    frame = table({"a": [1.01, 0.99, 1.02, 1.0], "b": [1.0, 1.0, 1.0, 1.0]})
    assert one(study.better("nll", "a", than="b", by=-0.1), frame).verdict == "holds"
    assert one(study.better("nll", "a", than="b"), frame).verdict == "undecided"


@pytest.mark.parametrize(("factor", "verdict"), [(1.3, "holds"), (3, "fails"), (2, "undecided"), (1 / 1.02, "holds")])
def test_factor_is_the_paired_scaled_difference(factor, verdict):
    v = one(study.better("nll", "a", than="b", factor=factor), table({"a": A, "b": B}))
    expected = sps.ttest_1samp(np.array(B) - factor * np.array(A), 0).confidence_interval(0.95)
    assert v.verdict == verdict
    assert v.interval == pytest.approx((expected.low, expected.high))


def test_factor_of_a_higher_metric_and_of_worse():
    frame = table({"a": A, "b": B}, "acc")
    assert one(study.better("acc", "b", than="a", factor=1.3), frame).verdict == "holds"
    assert one(study.worse("acc", "a", than="b", factor=1.3), frame).verdict == "holds"
    assert one(study.worse("nll", "b", than="a", factor=1.3), table({"a": A, "b": B})).verdict == "holds"


def test_log_metric_is_judged_as_a_ratio():
    frame = table({"a": A, "b": B}, "error")
    v = one(study.better("error", "a", than="b", factor=1.3), frame)
    expected = sps.ttest_1samp(np.log(np.array(B) / A), 0).confidence_interval(0.95)
    assert v.verdict == "holds"
    assert v.effect == pytest.approx(np.exp(np.mean(np.log(np.array(B) / A))))
    assert v.interval == pytest.approx((np.exp(expected.low), np.exp(expected.high)))
    assert one(study.better("error", "a", than="b", factor=3), frame).verdict == "fails"
    with pytest.raises(ValueError, match="factor="):
        one(study.better("error", "a", than="b", by=0.1), frame)


def test_log_of_zero_is_undecided():
    v = one(study.better("error", "a", than="b"), table({"a": [0.0, *A[1:]], "b": B}, "error"))
    assert v.verdict == "undecided"
    assert "1 of 4 values of error are not positive" in v.reason


@pytest.mark.parametrize(("within", "verdict"), [(0.2, "holds"), (0.01, "undecided"), (0.002, "undecided")])
def test_close(within, verdict):
    frame = table({"a": [1.0, 1.01, 0.99, 1.02], "b": [1.0, 1.0, 1.0, 1.0]})
    assert one(study.close("nll", "a", "b", within=within), frame).verdict == verdict


def test_close_fails_outside_and_is_relative_on_logs():
    assert one(study.close("nll", "a", "b", within=0.1), table({"a": A, "b": B})).verdict == "fails"
    near = table({"a": [100, 101, 102, 99], "b": [100, 100, 100, 100]}, "error")
    assert one(study.close("error", "a", "b", within=0.05), near).verdict == "holds"
    assert one(study.close("error", "a", "b", within=0.001), near).verdict == "undecided"


def test_conjunction_over_contenders():
    c = [5.0, 5.1, 5.2, 4.9]
    v = one(study.better("nll", "a", than=["b", "c"]), table({"a": A, "b": B, "c": c}))
    assert v.verdict == "holds"
    assert [p["label"] for p in v.parts] == ["than b", "than c"]
    assert v.effect == v.parts[0]["effect"], "the weakest part speaks for the claim"
    v = one(study.better("nll", "b", than=["a", "c"]), table({"a": A, "b": B, "c": c}))
    assert v.verdict == "fails"
    assert "than a" in v.reason


def test_conjunction_fails_only_at_the_corrected_level():
    """Two-sided p of about 0.03: outside at 95 % alone, not at 1 - 0.05 / 2."""
    x = np.array([-1.0, 0.3, -0.9, -0.4, -1.1, 0.1, -0.8, 0.0])
    assert 0.025 < sps.ttest_1samp(x, 0).pvalue < 0.05
    frame = table({"a": [0.0] * 8, "b": x, "c": [9.0] * 8})
    assert one(study.better("nll", "a", than="b"), frame).verdict == "fails"
    assert one(study.better("nll", "a", than=["b", "c"]), frame).verdict == "undecided"


def test_exact_ties():
    frame = table({"a": A, "b": A})
    assert one(study.better("nll", "a", than="b"), frame).verdict == "fails"
    assert one(study.close("nll", "a", "b", within=1e-9), frame).verdict == "holds"
    assert one(study.ordered("nll", along=["b", "a"]), frame).verdict == "holds"


def test_sides_by_column():
    frame = pd.concat([table({"a": A}, n=3), table({"a": B}, n=5)])
    assert one(study.better("nll", {"n": 3}, than={"n": 5}), frame).verdict == "holds"
    assert (
        one(study.better("nll", {"contender": "a", "n": 3}, than={"contender": "a", "n": 5}), frame).verdict == "holds"
    )


def test_sides_by_column_do_not_mix_contenders():
    frame = pd.concat([table({"a": A, "b": B}, n=3), table({"a": B, "b": A}, n=5)])
    with pytest.raises(ValueError, match="several contenders"):
        one(study.better("nll", {"n": 3}, than={"n": 5}), frame)
    assert one(study.better("nll", {"n": 3}, than={"n": 5}, on={"contender": "a"}), frame).verdict == "holds"
    v = one(study.better("nll", {"n": 3}, than={"n": 5}, each="contender"), frame)
    assert v.verdict == "fails"
    assert [p["verdict"] for p in v.parts] == ["holds", "fails"]


def test_ordered():
    frame = table({"a": A, "b": B, "c": [4.0, 4.1, 4.2, 4.3]})
    assert one(study.ordered("nll", along=["c", "b", "a"]), frame).verdict == "holds"
    assert one(study.ordered("nll", along=["a", "b", "c"], towards="worse"), frame).verdict == "holds"
    v = one(study.ordered("nll", along=["b", "c", "a"]), frame)
    assert v.verdict == "fails"
    assert [p["label"] for p in v.parts] == ["b to c", "c to a"]
    sweep = pd.concat([table({"a": A}, n=5), table({"a": B}, n=3)])
    assert one(study.ordered("nll", "a", along="n"), sweep).verdict == "holds"
    assert one(study.ordered("nll", "a", along="n", towards="worse"), sweep).verdict == "fails"
    assert one(study.ordered("nll", "a", along="n", towards="worse", slack=2), sweep).verdict == "holds"


def test_ordered_slack_is_relative_on_logs():
    sweep = pd.concat([table({"a": [1.0, 1.01, 0.99]}, "error", n=3), table({"a": [1.03, 1.02, 1.01]}, "error", n=5)])
    assert one(study.ordered("error", "a", along="n", slack=0.2), sweep).verdict == "holds"
    assert one(study.ordered("error", "a", along="n", slack=0.001), sweep).verdict == "undecided"


# --- 0/1 outcomes ----------------------------------------------------------------------------------------------------


def outcomes(b, c, same, name="hit"):
    rows = [(1, 0)] * b + [(0, 1)] * c + [(1, 1)] * same
    return pd.DataFrame([{"contender": k, "seed": 0, "window": i, "article": i, name: v[j]}
                         for i, v in enumerate(rows) for j, k in enumerate("ab")])  # fmt: skip


def test_paired_outcomes_must_pass_mcnemar_too():
    """Six wins of six: t says yes at n = 40 (p < 0.05), exact McNemar says p = 0.03 and with five p = 0.06."""
    claim = study.better("hit", "a", than="b", unit="window")
    assert sps.binomtest(5, 5).pvalue > 0.05 > sps.binomtest(6, 6).pvalue
    assert one(claim, outcomes(6, 0, 34), "Windows").verdict == "holds"
    v = one(claim, outcomes(5, 0, 35), "Windows")
    t = sps.ttest_1samp([1.0] * 5 + [0.0] * 35, 0)
    assert t.pvalue < 0.05
    assert v.verdict == "undecided"
    assert "McNemar p = 0.062" in v.reason


def test_margins_of_outcomes_are_not_mcnemars():
    """As many wins as losses: McNemar has nothing to say on "at least half as good" nor on "not worse by 0.3"."""
    frame = outcomes(2, 2, 40)
    assert one(study.better("hit", "a", than="b", factor=0.5, unit="window"), frame, "Windows").verdict == "holds"
    assert one(study.better("hit", "a", than="b", by=-0.3, unit="window"), frame, "Windows").verdict == "holds"
    assert one(study.better("hit", "a", than="b", unit="window"), frame, "Windows").verdict == "undecided"


def test_ties_of_outcomes_keep_a_width():
    """No pair differs: t has no width, Tango's interval is +-0.16 at 20 pairs."""
    claim = study.close("hit", "a", "b", within=0.1, unit="window")
    same = outcomes(0, 0, 20)
    same.loc[same["window"] < 5, "hit"] = 0
    assert one(claim, same, "Windows").verdict == "undecided"
    same = outcomes(0, 0, 60)
    same.loc[same["window"] < 5, "hit"] = 0
    assert one(claim, same, "Windows").verdict == "holds"


def test_level_of_outcomes_is_a_rate():
    frame = outcomes(0, 1, 49)
    v = one(study.at_least("hit", "a", 0.8, unit="window"), frame, "Windows")
    expected = sps.binomtest(49, 50).proportion_ci(0.95)
    assert v.verdict == "holds"
    assert v.interval == pytest.approx((expected.low, expected.high))


# --- levels, rates, laws ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [(study.at_least("nll", "a", 0.5), "holds"), (study.at_least("nll", "a", 2), "fails"),
     (study.at_least("nll", "a", 1.05), "undecided"), (study.at_most("nll", "a", 2), "holds"),
     (study.at_most("nll", "a", 0.5), "fails"), (study.between("nll", "a", 0.5, 1.5), "holds"),
     (study.between("nll", "a", 1.04, 1.06), "undecided"), (study.between("nll", "a", 2, 3), "fails")],
)  # fmt: skip
def test_levels(claim, verdict):
    v = one(claim, table({"a": A, "b": B}))
    expected = sps.ttest_1samp(A, 0).confidence_interval(0.95)
    assert v.verdict == verdict
    assert v.interval == pytest.approx((expected.low, expected.high))


def test_level_of_a_log_metric_is_geometric():
    v = one(study.at_most("error", "a", 10), table({"a": [1.0, 4.0, 2.0]}, "error"))
    assert v.effect == pytest.approx(2.0)
    assert one(study.at_least("error", "a", 0), table({"a": [1.0, 4.0, 2.0]}, "error")).verdict == "holds"
    with pytest.raises(ValueError, match="at_most -1"):
        one(study.at_most("error", "a", -1), table({"a": A}, "error"))


def test_rate_is_clopper_pearson():
    frame = table({"a": np.r_[np.zeros(95), np.ones(5)]}, "wrong")
    for event in ("wrong", lambda t: t["wrong"] == 1):
        v = one(study.rate(event, "a", at_most=0.12, id="r"), frame)
        expected = sps.binomtest(5, 100).proportion_ci(0.95)
        assert v.verdict == "holds"
        assert v.interval == pytest.approx((expected.low, expected.high))
        assert (v.n, v.few) == (100, False)
    assert one(study.rate("wrong", "a", at_least=0.12), frame).verdict == "fails"
    v = one(study.rate("wrong", "a", at_most=0.06), frame)
    assert v.verdict == "undecided"
    assert "would decide" in v.reason


def test_rate_counts_cells_as_units():
    frame = pd.concat([table({"a": np.zeros(20)}, "wrong", n=n) for n in (3, 5)])
    v = one(study.rate("wrong", "a", at_most=0.1), frame)
    assert (v.n, v.unit, v.verdict) == (40, "seed x n", "holds")


def test_rate_of_crossed_outcomes_counts_what_they_are_worth():
    rng = np.random.default_rng(0)
    fates = rng.random(60) < 0.1  # the item decides: 5 seeds say the same
    frame = pd.DataFrame([{"contender": "a", "seed": s, "item": i, "wrong": bool(fates[i])}
                          for s in range(5) for i in range(60)])  # fmt: skip
    v = one(study.rate("wrong", at_most=0.5, unit=("seed", "item")), frame)
    alone = sps.binomtest(int(fates.sum()), 60).proportion_ci(0.95)
    assert v.verdict == "holds"
    assert v.interval[1] >= alone.high * 0.95


def test_rate_refuses_what_is_not_an_event():
    with pytest.raises(ValueError, match="expected 0 or 1"):
        one(study.rate("nll", "a", at_most=0.1), table({"a": A}))
    frame = pd.DataFrame([{"contender": "a", "seed": s, "draw": d, "wrong": d % 2} for s in range(3) for d in range(4)])
    with pytest.raises(ValueError, match="differs among the rows of one seed"):
        one(study.rate("wrong", "a", at_most=0.1), frame)


def test_slope_is_the_mean_of_fits_within_seeds():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame([{"contender": "a", "n": n, "seed": s, "error": n**-0.5 * np.exp(0.05 * rng.normal())}
                          for s in range(6) for n in (10, 30, 100, 300)])  # fmt: skip
    v = one(study.slope("error", "a", along="n", between=(-0.6, -0.4)), frame)
    fits = [sps.linregress(np.log(g["n"]), np.log(g["error"])).slope for _, g in frame.groupby("seed")]
    expected = sps.ttest_1samp(fits, 0).confidence_interval(0.95)
    assert v.verdict == "holds"
    assert v.effect == pytest.approx(np.mean(fits))
    assert v.interval == pytest.approx((expected.low, expected.high))
    assert one(study.slope("error", "a", along="n", at_least=0), frame).verdict == "fails"


def test_slope_needs_two_points_and_positive_numbers():
    assert (
        "fewer than two values"
        in one(study.slope("error", "a", along="n", at_least=0), table({"a": A}, "error")).reason
    )
    with pytest.raises(ValueError, match="positive"):
        one(study.slope("error", "a", along="n", at_least=0), table({"a": A}, "error", n=-1))


def test_correlation_within_seeds():
    rng = np.random.default_rng(2)
    rows = [
        {"contender": "a", "seed": s, "x": x, "y": x + 0.5 * rng.normal()}
        for s in range(8)
        for x in rng.normal(size=30)
    ]
    frame = pd.DataFrame(rows)
    v = one(study.correlates("x", "y", at_least=0.5), frame)
    z = np.arctanh([sps.spearmanr(g["x"], g["y"]).statistic for _, g in frame.groupby("seed")])
    expected = sps.ttest_1samp(z, 0).confidence_interval(0.95)
    assert v.verdict == "holds"
    assert v.effect == pytest.approx(np.tanh(z.mean()))
    assert v.interval == pytest.approx((np.tanh(expected.low), np.tanh(expected.high)))


@pytest.mark.parametrize("how", [{"over": "graph"}, {"unit": "graph"}])
def test_correlation_over_units(how):
    rng = np.random.default_rng(3)
    x = rng.normal(size=14)
    frame = pd.DataFrame({"contender": "a", "seed": 0, "graph": range(14), "x": x, "y": x + 0.3 * rng.normal(size=14)})
    v = one(study.correlates("x", "y", at_least=0.3, **how), frame)
    rho = sps.spearmanr(frame["x"], frame["y"]).statistic
    half = sps.norm.ppf(0.975) * np.sqrt((1 + rho**2 / 2) / 11)
    assert v.verdict == "holds"
    assert v.interval == pytest.approx((np.tanh(np.arctanh(rho) - half), np.tanh(np.arctanh(rho) + half)))
    v = one(study.correlates("x", "y", at_least=0.3, **how), frame.head(9))
    assert v.verdict == "undecided"
    assert "9 points" in v.reason


def test_beyond_is_the_monte_carlo_p():
    def frame(value, draws):
        null = [{"contender": "random", "seed": 0, "acc": x} for x in draws]
        return pd.DataFrame([{"contender": "a", "seed": 0, "acc": value}, *null])

    draws = np.linspace(0, 1, 99)
    v = one(study.beyond("acc", "a", "random"), frame(0.97, draws))
    assert v.verdict == "holds"
    assert v.effect == pytest.approx((1 + (draws >= 0.97).sum()) / 100)
    assert v.n == 99
    assert one(study.beyond("acc", "a", "random"), frame(0.5, draws)).verdict == "fails"
    assert one(study.beyond("acc", "a", "random"), frame(0.93, draws)).verdict == "undecided"
    v = one(study.beyond("acc", "a", "random"), frame(2, draws[:10]))
    assert v.verdict == "undecided"
    assert "19 draws or more" in v.reason


def test_beyond_tests_the_mean_over_seeds():
    rng = np.random.default_rng(4)
    rows = [{"contender": "a", "seed": s, "nll": -1.0} for s in range(4)]
    rows += [{"contender": "random", "seed": s, "nll": rng.normal()} for s in range(4) for _ in range(200)]
    v = one(study.beyond("nll", "a", "random"), pd.DataFrame(rows))
    draws = np.array([r["nll"] for r in rows[4:]]).reshape(4, 200).mean(0)
    assert v.effect == pytest.approx((1 + (draws <= -1).sum()) / 201)
    assert v.verdict == "holds", "one seed alone would not be beyond: p is about 0.16 there"


def test_estimate_of_a_derived_table():
    leads = pd.DataFrame({"seed": range(5), "lead": [1.0, 2.0, 1.5, 1.2, 1.8]})
    v = one(study.estimate("lead", at_least=0), table({"a": A}), leads=leads)
    expected = sps.ttest_1samp(leads["lead"], 0).confidence_interval(0.95)
    assert v.verdict == "holds"
    assert v.interval == pytest.approx((expected.low, expected.high))
    rows = one(study.estimate("lead", at_least=0), table({"a": A}), leads=leads.drop(columns="seed"))
    assert (rows.unit, rows.n) == ("row", 5)


def test_derived_tables_are_paired_by_cell_too():
    """A contender that lacks a cell is not compared over other cells."""
    best = pd.concat([table({"a": A, "b": B}, "gain", n=3), table({"a": [9.0] * 4}, "gain", n=5)])
    v = one(study.better("gain", "b", than="a", table="best"), table({"a": A}), best=best)
    assert v.effect == pytest.approx(np.mean(B) - np.mean(A))
    assert "4 of 8 pairs dropped" in v.reason


def test_statistic_over_all_units_is_bca():
    rng = np.random.default_rng(5)
    x = rng.normal(size=30)
    fits = pd.DataFrame({"graph": range(30), "x": x, "y": x + 0.3 * rng.normal(size=30)})

    def r2(t):
        return np.corrcoef(t["x"], t["y"])[0, 1] ** 2

    claim = study.estimate(r2, at_least=0.5, table="fits", unit="graph")
    v = one(claim, table({"a": A}), fits=fits)
    reference = sps.bootstrap((fits["x"], fits["y"]), lambda a, b: np.corrcoef(a, b)[0, 1] ** 2, paired=True, vectorized=False,
                              method="BCa", n_resamples=1999, rng=np.random.default_rng(9))  # fmt: skip
    assert v.verdict == "holds"
    assert v.interval == pytest.approx(tuple(reference.confidence_interval), abs=0.03)
    v = one(claim, table({"a": A}), fits=fits.head(12))
    assert v.verdict == "undecided"
    assert "12 graphs: not judged over fewer than 20" in v.reason


def test_always():
    frame = table({"a": A, "b": B})
    v = one(study.always(lambda t: t["nll"] < 3, id="x"), frame)
    assert (v.verdict, v.effect, v.interval, v.n, v.reason) == ("holds", 1.0, None, 8, "8 of 8 rows pass")
    v = one(study.always(lambda t: t["nll"] < 2.2, id="x"), frame)
    assert v.verdict == "fails"
    assert v.reason == "7 of 8 rows pass; the first that does not: n=3, contender=b, seed=2"
    assert one(study.always(lambda t: t["nll"] < 2.2, share=0.8, id="x"), frame).verdict == "holds"
    v = one(study.always(lambda t: 2 - t["nll"], id="x", on={"contender": "b"}), frame)
    assert v.verdict == "fails"
    assert "the worst (-0.3): n=3, contender=b, seed=2" in v.reason


def test_always_on_columns_and_nan():
    frame = table({"a": A}, passed=[True, True, False, True])
    assert one(study.always("passed", share=0.75), frame).verdict == "holds"
    assert one(study.always("passed"), frame).verdict == "fails"
    assert one(study.always(lambda t: t["passed"].astype(int), id="x"), frame).verdict == "fails"
    assert one(study.always(lambda t: t["nll"], id="x"), table({"a": [np.nan, 1.0]})).verdict == "fails"
    with pytest.raises(ValueError, match="give booleans"):
        one(study.always(lambda t: t["passed"].astype(float), id="x"), frame)
    with pytest.raises(ValueError, match="one value for each of 4 rows"):
        one(study.always(lambda t: True, id="x"), frame)


def test_always_needs_no_seeds_nor_units():
    frame = pd.DataFrame({"contender": "a", "seed": None, "gap": [1e-12, 0.0]})
    assert one(study.always(lambda t: 1e-9 - t["gap"], id="x"), frame, "Exact").verdict == "holds"


# --- units -----------------------------------------------------------------------------------------------------------


def windows(seeds=4, articles=6, per=3, gap=0.5, fresh=False, noise=0.1):
    rng = np.random.default_rng(6)
    rows = []
    for s in range(seeds):
        for w in range(articles * per):
            name, base = (w + 999 * s * fresh), rng.normal()
            for c, shift in (("a", 0.0), ("b", gap)):
                rows.append({"contender": c, "seed": s, "window": name, "article": name // per,
                             "loss": base + shift + noise * rng.normal(), "hit": int(rng.random() < 0.5)})  # fmt: skip
    return pd.DataFrame(rows)


def paired(frame, keys):
    wide = frame.pivot_table(index=keys, columns="contender", values="loss")
    return wide["b"] - wide["a"]


def test_two_way_by_the_explicit_formula_with_clusters_averaged():
    frame = windows()
    v = one(study.better("loss", "a", than="b"), frame, "Windows")
    x = paired(frame, ["seed", "article", "window"]).groupby(level=["seed", "article"]).mean().unstack().to_numpy()
    s, i = x.shape
    m, rows, columns = x.mean(), x.mean(1), x.mean(0)
    ms_s, ms_i = i * ((rows - m) ** 2).sum() / (s - 1), s * ((columns - m) ** 2).sum() / (i - 1)
    ms_r = sum((x[j, k] - rows[j] - columns[k] + m) ** 2 for j in range(s) for k in range(i)) / ((s - 1) * (i - 1))
    total = ms_s + ms_i - ms_r
    if total > max(ms_s, ms_i):
        df = total**2 / (ms_s**2 / (s - 1) + ms_i**2 / (i - 1) + ms_r**2 / ((s - 1) * (i - 1)))
    else:
        total, df = max((ms_s, s - 1), (ms_i, i - 1))
    half = sps.t.ppf(0.975, df) * np.sqrt(total / (s * i))
    assert v.interval == pytest.approx((m - half, m + half))
    assert (v.verdict, v.unit, v.n) == ("holds", "seed x article", 4)
    assert "4 seeds crossed with 6 items" in v.reason


def test_items_drawn_anew_are_judged_over_seeds():
    frame = windows(fresh=True)
    v = one(study.better("loss", "a", than="b"), frame, "Windows")
    x = paired(frame, ["seed", "article", "window"]).groupby("seed").mean()
    expected = sps.ttest_1samp(x, 0).confidence_interval(0.95)
    assert (v.unit, v.n) == ("seed", 4)
    assert v.interval == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_one_seed_is_judged_over_items_and_says_so():
    frame = windows(seeds=1)
    v = one(study.better("loss", "a", than="b", text="a wins"), frame, "Windows")
    x = paired(frame, ["article", "window"]).groupby("article").mean()
    expected = sps.ttest_1samp(x, 0).confidence_interval(0.95)
    assert v.text == "a wins (of this trained model)"
    assert (v.unit, v.n) == ("article", 6)
    assert v.interval == pytest.approx((expected.low, expected.high))


def test_two_seeds_are_not_enough():
    v = one(study.better("loss", "a", than="b"), windows(seeds=2), "Windows")
    assert v.verdict == "undecided"
    assert "fewer than 3" in v.reason


def test_a_claim_may_name_its_unit():
    frame = windows()
    v = one(study.better("loss", "a", than="b", unit="seed"), frame, "Windows")
    expected = sps.ttest_1samp(paired(frame, ["seed", "window"]).groupby("seed").mean(), 0).confidence_interval(0.95)
    assert (v.unit, v.n) == ("seed", 4)
    assert v.interval == pytest.approx((expected.low, expected.high))
    v = one(study.better("loss", "a", than="b", unit=("seed", "window")), frame, "Windows")
    assert v.reason == "4 seeds crossed with 18 items"
    v = one(study.better("loss", "a", than="b", unit=("seed", "window"), cluster="article"), frame, "Windows")
    assert v.reason == "4 seeds crossed with 6 items"


def test_items_that_a_seed_lacks_are_dropped():
    frame = windows()
    frame = frame[~((frame["seed"] == 0) & (frame["article"] == 2))]
    v = one(study.better("loss", "a", than="b"), frame, "Windows")
    assert "1 of 6 items dropped" in v.reason
    assert v.verdict == "holds"


def test_cells_are_averaged_within_a_seed():
    frame = pd.concat([table({"a": A, "b": B}, n=3), table({"a": B, "b": A}, n=5)])
    v = one(study.better("nll", "a", than="b"), frame)
    assert v.effect == pytest.approx(0)
    assert v.n == 4


def times(seeds):
    rng = np.random.default_rng(7)
    return pd.DataFrame([{"contender": c, "seed": s, "repeat": r, "seconds": t * np.exp(0.02 * rng.normal())}
                         for c, t in (("a", 1.0), ("b", 2.0)) for s in range(seeds) for r in range(7)])  # fmt: skip


def test_repeats_are_the_units_of_a_time_unless_there_are_seeds():
    v = one(study.better("seconds", "a", than="b", factor=1.5), times(1), "Times")
    assert (v.verdict, v.unit, v.n, v.timed) == ("holds", "repeat", 7, True)
    assert v.effect == pytest.approx(2, abs=0.1)
    assert "trained model" not in v.text
    frame = times(3)
    frame.loc[(frame["repeat"] == 3) & (frame["contender"] == "a"), "seconds"] *= 100  # a hiccup: medians do not mind
    v = one(study.better("seconds", "a", than="b", factor=1.5), frame, "Times")
    assert (v.verdict, v.unit, v.n) == ("holds", "seed", 3)


def test_costs_have_a_direction():
    frame = table({"a": A, "b": B}, "wall_s")
    v = one(study.better("wall_s", "a", than="b"), frame)
    assert (v.verdict, v.timed) == ("holds", True)


# --- modifiers -------------------------------------------------------------------------------------------------------


def both():
    return pd.concat([table({"a": A, "b": B}, n=3), table({"a": B, "b": A}, n=5)])


def test_each_is_a_conjunction():
    v = one(study.better("nll", "a", than="b", each="n"), both())
    assert v.verdict == "fails"
    assert [(p["label"], p["verdict"], p["n"]) for p in v.parts] == [("n=3", "holds", 4), ("n=5", "fails", 4)]
    assert v.reason.startswith("n=5")


@pytest.mark.parametrize("on", [{"n": 3}, {"n": [3]}, lambda t: t["n"] == 3])
def test_on(on):
    assert one(study.better("nll", "a", than="b", on=on, id="x"), both()).verdict == "holds"


def test_on_a_cell_that_was_not_run():
    v = one(study.better("nll", "a", than="b", on={"n": [3, 8]}), both())
    assert (v.verdict, v.reason) == ("undecided", "not run at this scale: n=8")
    v = one(study.better("nll", "a", than="b", on={"n": [3, 8]}, each="n"), both())
    assert v.verdict == "undecided"
    assert [p["verdict"] for p in v.parts] == ["holds", "undecided"]
    with pytest.raises(ValueError, match="on \\['size'\\]"):
        one(study.better("nll", "a", than="b", on={"size": 3}), both())
    with pytest.raises(ValueError, match="expected a boolean"):
        one(study.better("nll", "a", than="b", on=lambda t: t["n"], id="x"), both())


def test_cells_may_be_lists():
    frame = pd.concat(
        [table({"a": A, "b": B}).assign(n=[[20, 25]] * 8), table({"a": B, "b": A}).assign(n=[[1, 2]] * 8)]
    )
    assert one(study.better("nll", "a", than="b", on={"n": [[20, 25]]}), frame).verdict == "holds"
    assert one(study.better("nll", "a", than="b", each="n"), frame).verdict == "fails"
    assert summary(frame, Compare)[0]["cell"] == {"n": [20, 25]}


def test_grids_that_differ_in_axes():
    class Mixed(study.Experiment):
        cells = study.grid(n=[3]) + study.grid(width=[4])
        contenders = {"a": None, "b": None}
        metrics = {"nll": study.lower()}

    frame = pd.concat([table({"a": A, "b": B}), table({"a": A, "b": B}).drop(columns="n").assign(width=4)])
    v = one(study.better("nll", "a", than="b"), frame, "Mixed", {"Mixed": Mixed})
    assert (v.verdict, v.n) == ("holds", 4)
    assert one(study.better("nll", "a", than="b", each="width"), frame, "Mixed", {"Mixed": Mixed}).parts == []
    assert [r["cell"] for r in summary(frame, Mixed)] == [{"n": 3}, {"n": 3}, {"width": 4}, {"width": 4}]


def test_when():
    frame = both()
    yes, no = study.at_most("nll", "a", 9), study.at_most("nll", "a", 0)
    assert one(study.better("nll", "a", than="b", on={"n": 3}, when=yes), frame).verdict == "holds"
    v = one(study.better("nll", "a", than="b", on={"n": 3}, when=no), frame)
    assert (v.verdict, v.reason) == ("undecided", "not measurable, for this fails: nll of a is at most 0")
    for when, why in [
        (lambda t: (len(t["Compare"]) > 99, "too few rows"), "too few rows"),
        (lambda t: False, "not met"),
    ]:
        v = one(study.better("nll", "a", than="b", when=when), frame)
        assert v.verdict == "undecided"
        assert why in v.reason
    assert one(study.better("nll", "a", than="b", on={"n": 3}, when=lambda t: (True, "")), frame).verdict == "holds"


def test_when_on_an_experiment_that_was_not_run():
    claim = study.better("nll", "a", than="b", when=lambda t: len(t["Times"]) > 0)
    assert one(claim, both(), experiments={"Compare": Compare, "Times": Times}).reason == "not run at this scale"


def test_report_gives_no_verdict():
    v = one(study.better("nll", "a", than="b", report=True), table({"a": A, "b": B}))
    assert v.verdict == "reported"
    assert v.interval is not None
    v = one(study.correlates("nll", "x", report=True), table({"a": A}, x=[1, 2, 3, 4]))
    assert v.verdict == "undecided"
    v = one(study.at_least("nll", "a", 9, report=True), table({"a": [1.0]}))
    assert (v.verdict, v.effect, v.interval) == ("reported", 1.0, None)


def test_borderline_and_few():
    x = np.array([1.0, 1.1, 0.9, 1.2, 1.0, 0.8])
    low = sps.ttest_1samp(x, 0).confidence_interval(0.95).low
    v = one(study.at_least("nll", "a", low - 1e-4), table({"a": x}))
    assert (v.verdict, v.borderline, v.few) == ("holds", True, False)
    assert one(study.at_least("nll", "a", low + 1e-4), table({"a": x})).borderline
    assert not one(study.at_least("nll", "a", 0), table({"a": x})).borderline


def test_undecided_says_how_many_would_decide():
    x = np.array([0.5, -0.4, 0.6, 0.3, -0.2, 0.7])
    v = one(study.at_least("nll", "a", 0), table({"a": x}))
    needed = next(n for n in range(6, 1000) if sps.t.ppf(0.975, n - 1) * x.std(ddof=1) / np.sqrt(n) < x.mean())
    assert v.verdict == "undecided"
    said = int(v.reason.split()[1])
    assert abs(said - needed) <= max(2, 0.1 * needed)
    assert v.reason.endswith("seeds would decide at this effect")


def test_fewer_than_three_are_never_decided():
    v = one(study.better("nll", "a", than="b"), table({"a": [1.0, 1.0], "b": [9.0, 9.0]}))
    assert (v.verdict, v.reason) == ("undecided", "2 seeds: fewer than 3 are never decided")


def test_smoke_decides_only_always():
    frame = table({"a": A, "b": B})
    claims = [study.better("nll", "a", than="b"), study.always(lambda t: t["nll"] > 0, id="x")]
    assert [v.verdict for v in judge(claims, {"Compare": frame}, {"Compare": Compare}, scale="smoke")] == [
        "undecided",
        "holds",
    ]


def test_a_stricter_level_for_looks():
    claim, looks = study.better("nll", "a", than="b"), [{"seeds": 4}]
    v = judge([claim], {"Compare": table({"a": A, "b": B})}, {"Compare": Compare}, level=1 - 0.05 / 3, looks=looks)[0]
    expected = sps.ttest_rel(B, A).confidence_interval(1 - 0.05 / 3)
    assert v.interval == pytest.approx((expected.low, expected.high))
    assert (v.level, v.looks) == (1 - 0.05 / 3, looks)


# --- what is missing -------------------------------------------------------------------------------------------------


def test_missing_pairs_are_dropped_and_counted():
    v = one(study.better("nll", "a", than="b"), table({"a": [*A, 1.0], "b": B}))
    assert (v.verdict, v.n, v.reason) == ("holds", 4, "1 of 5 pairs dropped: one side is missing")
    frame = table({"a": A, "b": B})
    frame.loc[frame["contender"] == "b", "seed"] += 10
    assert one(study.better("nll", "a", than="b"), frame).reason == "no unit has both a and b"


def test_nan_is_no_result():
    for bad in (np.nan, np.inf, None):
        v = one(study.better("nll", "a", than="b"), table({"a": [bad, *A[1:]], "b": B}))
        assert (v.verdict, v.reason) == ("undecided", "1 of 4 values of nll are NaN or infinite")
    assert one(study.at_most("nll", "b", 9), table({"a": [np.nan, *A[1:]], "b": B})).verdict == "holds"


def test_censored_values_are_used_and_told():
    frame = table({"a": A, "b": B}).assign(reached=[True] * 4 + [False] * 4)
    v = one(study.better("nll", "a", than="b"), frame)
    assert (v.verdict, v.reason) == ("holds", "4 of 8 values are the budget, not reached")


def test_tables_that_were_not_run():
    claim = study.better("nll", "a", than="b")
    for tables in ({}, {"Compare": pd.DataFrame()}):
        v = judge([claim], tables, {"Compare": Compare})[0]
        assert (v.verdict, v.reason) == ("undecided", "not run at this scale")
    v = one(study.better("nll", "a", than="c"), table({"a": A, "b": B}))
    assert (v.verdict, v.reason) == ("undecided", "no rows of c at this scale")


@pytest.mark.parametrize(
    ("claim", "says"),
    [(study.better("nll", "a", than="d"), "contender 'd'"), (study.better("nul", "a", than="b"), r"no table has \['nul'\]"),
     (study.better("nll", "a", than="b", table="Other"), "table 'Other'"),
     (study.better("nll", "a", than="b", each="size"), r"each \['size'\]"),
     (study.better("nll", "a", than="b", unit="window"), r"unit or cluster \['window'\]"),
     (study.at_most("nll", None, 1), "several contenders"), (study.at_most("contender", "a", 1), "expected numbers")],
)  # fmt: skip
def test_claims_that_do_not_fit_name_themselves(claim, says):
    with pytest.raises(ValueError, match=says) as caught:
        one(claim, table({"a": A, "b": B}))
    assert claim.id in str(caught.value)


def test_a_metric_of_two_tables_needs_a_name():
    experiments = {"Compare": Compare, "Other": type("Other", (Compare,), {})}
    frame = table({"a": A, "b": B})
    for tables in ({"Compare": frame, "Other": frame}, {"Compare": frame}):  # at any scale alike
        with pytest.raises(ValueError, match="table="):
            judge([study.better("nll", "a", than="b")], tables, experiments)
    v = judge([study.better("nll", "a", than="b", table="Other")], {"Compare": frame}, experiments)[0]
    assert v.reason == "not run at this scale"


def test_errors_of_callables_name_the_claim():
    for claim in (study.always(lambda t: t["nothing"], id="mine"), study.better("nll", "a", than="b", id="mine", on=lambda t: 1 / 0),
                  study.rate(lambda t: t.nothing, "a", at_most=1, id="mine")):  # fmt: skip
        with pytest.raises(RuntimeError, match="claim 'mine'") as caught:
            one(claim, table({"a": A, "b": B}))
        assert caught.value.__cause__ is not None


def test_ids_are_unique():
    claim = study.better("nll", "a", than="b")
    with pytest.raises(ValueError, match="more than once"):
        judge([claim, study.better("nll", "a", than="b")], {}, {"Compare": Compare})


def test_verdicts_are_plain_json():
    claims = [study.better("nll", "a", than=["b", "c"], each="n"), study.always(lambda t: t["nll"] > 0, id="x")]
    frame = table({"a": A, "b": B, "c": [9.0, np.nan, 9.0, 9.0]})
    for v in judge(claims, {"Compare": frame}, {"Compare": Compare}):
        body = json.loads(json.dumps(v.as_dict(), allow_nan=False))
        assert set(body) == {"id", "text", "paper", "kind", "verdict", "effect", "interval", "level", "unit", "n", "few",
                             "borderline", "timed", "looks", "digest", "reason", "parts"}  # fmt: skip


# --- the table of means ----------------------------------------------------------------------------------------------


def test_summary():
    frame = pd.concat([table({"a": A, "b": B}, n=3, error=[1.0, 4.0, 2.0, 2.0]), table({"a": [1.0]}, n=5)])
    rows = summary(frame, Compare)
    expected = sps.ttest_1samp(A, 0).confidence_interval(0.95)
    assert rows[0]["cell"] == {"n": 3}
    assert rows[0]["contender"] == "a"
    assert rows[0]["metrics"]["nll"] == pytest.approx(
        {"mean": np.mean(A), "low": expected.low, "high": expected.high, "n": 4}
    )
    assert rows[0]["metrics"]["error"]["mean"] == pytest.approx(2.0)
    assert rows[2]["metrics"] == {"nll": {"mean": 1.0, "low": None, "high": None, "n": 1}}
    json.dumps(rows, allow_nan=False)


def test_summary_by_the_units_of_the_experiment():
    assert summary(windows(), Windows)[0]["metrics"]["loss"]["n"] == 4
    assert summary(windows(seeds=1), Windows)[0]["metrics"]["loss"]["n"] == 6
    assert summary(times(1), Times)[0]["metrics"]["seconds"]["n"] == 7
