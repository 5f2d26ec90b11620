"""Proof of the judge by simulation: coverage, the error of every kind at its border, of conjunctions and of looks.

The intervals are drawn in large batches; the judge itself meets a smaller number of tables, at the border of each kind,
where every decided verdict of a two-sided claim is a wrong one. Bounds are the nominal rate plus 3.5 standard errors.
"""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from gnomon import stats, study
from gnomon.study import judge

DRAWS = 40_000
LOOK = 1 - 0.05 / 3


def rng(*key):
    return np.random.default_rng([ord(c) for k in key for c in str(k)])


def covers(wide, truth=0.0):
    return float(np.mean((wide.low <= truth) & (truth <= wide.high)))


def slack(rate, draws):
    return 3.5 * np.sqrt(rate * (1 - rate) / draws)


# --- coverage of the intervals ---------------------------------------------------------------------------------------

PAIRED = {
    "gaussian": lambda g, shape: g.normal(size=shape),
    "heavy": lambda g, shape: g.standard_t(3, size=shape),
    "skewed": lambda g, shape: g.exponential(size=shape) - g.exponential(size=shape),  # both sides alike
    "very skewed": lambda g, shape: g.lognormal(size=shape) - g.lognormal(size=shape),
}


@pytest.mark.parametrize("n", [3, 5, 10, 30])
@pytest.mark.parametrize("kind", ["gaussian", "heavy", "skewed"])
def test_paired_t_covers(kind, n):
    assert 0.93 <= covers(stats.t_interval(PAIRED[kind](rng(kind, n), (DRAWS, n)))) <= 0.98


@pytest.mark.parametrize("n", [3, 5, 10, 30])
def test_very_skewed_pairs_err_on_the_safe_side(n):
    assert covers(stats.t_interval(PAIRED["very skewed"](rng("very", n), (DRAWS, n)))) >= 0.95


def test_a_raw_skewed_level_is_why_metrics_are_declared_log():
    x = rng("level").lognormal(size=(DRAWS, 5))
    assert covers(stats.t_interval(x), np.exp(0.5)) < 0.85
    assert 0.94 <= covers(stats.t_interval(np.log(x))) <= 0.96


# spread of seeds, of items and of the rest
COMPONENTS = [(1, 1, 1), (1, 0, 1), (0, 1, 1), (0.3, 0.3, 1), (1, 0.2, 0.2), (0.2, 1, 0.2), (0.5, 0.2, 1)]


def crossed(g, draws, seeds, items, spread):
    s, i, r = spread
    return (
        s * g.normal(size=(draws, seeds, 1))
        + i * g.normal(size=(draws, 1, items))
        + r * g.normal(size=(draws, seeds, items))
    )


@pytest.mark.parametrize(("seeds", "items"), [(3, 30), (3, 100), (5, 30), (10, 50)])
def test_two_way_covers(seeds, items):
    for spread in COMPONENTS:
        x = crossed(rng("two-way", seeds, items, spread), 4000, seeds, items, spread)
        assert 0.91 <= covers(stats.two_way(x)) <= 0.975, spread


def test_two_way_errs_on_the_safe_side_without_effects_and_with_few_items():
    for seeds, items, spread in [(3, 30, (0, 0, 1)), (3, 3, (1, 1, 1)), (5, 5, (0.3, 0.3, 1)), (3, 10, (0, 0, 1))]:
        assert covers(stats.two_way(crossed(rng(seeds, items), 10_000, seeds, items, spread))) >= 0.94


def test_seeds_alone_would_be_wrong_where_items_are_shared():
    """Why two-way: t over seeds covers the items at hand, not those that they stand for."""
    x = crossed(rng("shared"), 4000, 5, 20, (0.3, 1, 0.3))
    assert covers(stats.t_interval(x.mean(2))) < 0.8
    assert covers(stats.two_way(x)) >= 0.91


def test_clopper_pearson_covers_at_least():
    for n, p in itertools.product([5, 20, 100], [0.02, 0.1, 0.5]):
        k = rng(n, p).binomial(n, p, size=4000)
        assert covers(stats.binomial(k, np.full(4000, n)), p) >= 0.95 - slack(0.05, 4000)


def test_crossed_rate_covers_at_least():
    """Items that are hard for every seed."""
    g, hits, draws = rng("crossed"), 0, 600
    for _ in range(draws):
        hard = g.beta(0.5, 2, size=40)  # mean 0.2
        hits += covers(stats.crossed_binomial(g.random((4, 40)) < hard), 0.2) == 1
    assert hits / draws >= 0.95 - slack(0.05, draws)


def test_score_interval_of_paired_outcomes_covers():
    for n, b, c in [(30, 0.1, 0.05), (100, 0.02, 0.02), (50, 0.3, 0.1)]:
        counts = rng(n, b).multinomial(n, [b, c, 1 - b - c], size=600)
        inside = np.mean([covers(stats.tango(int(x), int(y), n), b - c) for x, y, _ in counts])
        assert 0.95 - slack(0.05, 600) <= inside <= 0.99


def test_spearman_interval_covers():
    g, draws = rng("spearman"), 1500
    for n, r in [(10, 0.0), (14, 0.6), (30, 0.8)]:
        truth = 6 / np.pi * np.arcsin(r / 2)  # of a bivariate normal
        x = g.normal(size=(draws, n))
        y = r * x + np.sqrt(1 - r * r) * g.normal(size=(draws, n))
        inside = np.mean(
            [covers(stats.spearman_interval(stats.spearman(a, b), n), truth) for a, b in zip(x, y, strict=True)]
        )
        assert 0.91 <= inside <= 0.98


def test_bca_covers_from_20_units_on():
    g, draws = rng("bca"), 150
    inside = 0.0
    for _ in range(draws):
        x = g.exponential(size=25)
        inside += covers(stats.bca(25, lambda i, x=x: x[i].mean(), resamples=399), 1.0)
    assert inside / draws >= 0.92 - slack(0.08, draws)


# --- conjunctions and looks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 5])
def test_conjunctions(parts):
    """Wrong to hold: one part at its border, the others far inside. Wrong to fail: all parts at the border."""
    x = rng("parts", parts).normal(size=(DRAWS, parts, 5))
    holds = (stats.t_interval(x + 10 * (np.arange(parts) > 0)[:, None]).low > 0).all(-1).mean()
    fails = (stats.t_interval(x, 1 - 0.05 / parts).high < 0).any(-1).mean()
    assert holds <= 0.025 + slack(0.025, DRAWS)
    assert fails <= 0.025 + slack(0.025, DRAWS)


def looked(x, looks, level):
    """The share of draws that some look decides."""
    outside = [~((w.low <= 0) & (w.high >= 0)) for w in (stats.t_interval(x[:, :n], level) for n in looks)]
    return float(np.logical_or.reduce(outside).mean())


@pytest.mark.parametrize("kind", ["gaussian", "heavy", "skewed"])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_three_looks_are_wrong_four_times_in_a_hundred(kind, n):
    x = PAIRED[kind](rng("looks", kind, n), (DRAWS, 4 * n))
    assert looked(x, (n, 2 * n, 4 * n), LOOK) <= 0.048  # the union bound is 0.05


def test_a_look_after_every_seed_would_be_wrong_five_times_as_often():
    x = rng("every").normal(size=(DRAWS, 20))
    assert 0.19 <= looked(x, range(3, 21), 0.95) <= 0.27


# --- the judge itself, at the border of every kind -------------------------------------------------------------------

TABLES = 100


class Border(study.Experiment):
    cells = study.grid(table=list(range(TABLES)))
    contenders = {"a": None, "b": None, "c": None, "null": None}
    metrics = {"up": study.higher(), "down": study.lower(), "error": study.lower(log=True)}


class Crossed(Border):
    metrics = {"loss": study.lower(), "hit": study.higher()}
    unit, cluster = ("seed", "window"), "article"


class Outcomes(Border):
    metrics = {"hit": study.higher()}
    unit = ("seed", "window")


def rows(make, **columns):
    """A table of every draw: ``columns`` are the axes, ``make`` takes the generator and the shape."""
    names = {"table": range(TABLES), **columns}
    index = pd.MultiIndex.from_product(list(names.values()), names=list(names))
    frame = index.to_frame(index=False)
    shape = tuple(len(v) for v in names.values())
    for name, values in make(rng(*names), shape).items():
        frame[name] = np.broadcast_to(values, shape).ravel()
    return frame


def sides(*shift, name="up", noise=1.0):
    """Contenders a, b, c with these means, and a spread that they share."""

    def make(g, shape):
        shared = g.normal(size=(shape[0], 1, *shape[2:]))
        return {name: shared + np.reshape(shift, (1, -1, *[1] * (len(shape) - 2))) + noise * g.normal(size=shape)}

    return make


def levels(make, n=5, contenders=("a", "b")):
    return rows(make, contender=list(contenders), seed=range(n))


def exponents(g, shape):
    slope = -0.5 + 0.1 * g.normal(size=(*shape[:-1], 1))
    return {"error": np.exp(slope * np.log(np.array([10.0, 40, 160])) + 0.1 * g.normal(size=shape))}


def ratios(g, shape):
    return {"error": np.exp(g.normal(size=shape) + np.reshape([0, np.log(3)], (1, 2, 1)))}


def thirds(g, shape):
    a = 1 + 0.1 * g.normal(size=shape)
    return {"down": np.where(np.arange(2)[:, None] == 0, a, 3 + 0.3 * g.normal(size=shape))}


def independent(g, shape):
    return {"x": g.normal(size=shape), "y": g.normal(size=shape)}


def windows(g, shape):
    t, k, s, a, w = shape
    seed = (
        0.5 * (s > 1) * g.normal(size=(t, k, s, 1, 1))
    )  # what one trained model is better by is no error of its verdict
    base = g.normal(size=(t, 1, s, a, w)) + seed + 0.5 * g.normal(size=(t, k, 1, a, 1))
    return {"loss": base + 0.3 * g.normal(size=shape)}


def coins(g, shape):
    return {"hit": (g.random(shape) < 0.6).astype(int)}


def crossed_windows(seeds=4):
    frame = rows(windows, contender=["a", "b"], seed=range(seeds), article=range(12), part=range(2))
    return frame.assign(window=frame["article"] * 2 + frame["part"]).drop(columns="part")


def event(share):
    return lambda g, shape: {"wrong": (g.random(shape) < share).astype(int)}


# name -> (experiment, table, the claim on one table of it)
BORDERS = {
    "better": (Border, lambda: levels(sides(0.7, 0)), lambda on: study.better("up", "a", than="b", by=0.7, on=on)),
    "worse": (Border, lambda: levels(sides(0, 0)), lambda on: study.worse("up", "a", than="b", on=on)),
    "factor": (Border, lambda: levels(thirds), lambda on: study.better("down", "a", than="b", factor=3, on=on)),
    "log factor": (Border, lambda: levels(ratios), lambda on: study.better("error", "a", than="b", factor=3, on=on)),
    "close": (Border, lambda: levels(sides(5, 0)), lambda on: study.close("up", "a", "b", within=5, on=on)),
    "at least": (Border, lambda: levels(sides(2, 0)), lambda on: study.at_least("up", "a", 2, on=on)),
    "at most": (Border, lambda: levels(sides(2, 0), n=3), lambda on: study.at_most("up", "a", 2, on=on)),
    "between": (Border, lambda: levels(sides(2, 0)), lambda on: study.between("up", "a", 2, 99, on=on)),
    "rate": (Border, lambda: levels(event(0.1), n=60, contenders="a"), lambda on: study.rate("wrong", at_most=0.1, on=on)),
    "slope": (Border, lambda: rows(exponents, contender=["a"], seed=range(5), n=[10, 40, 160]),
              lambda on: study.slope("error", "a", along="n", between=(-0.5, 9), on=on)),
    "correlates": (Border, lambda: rows(independent, contender=["a"], seed=range(5), item=range(15)),
                   lambda on: study.correlates("x", "y", at_least=0, on=on)),
    "correlates over": (Border, lambda: rows(independent, contender=["a"], graph=range(14)),
                        lambda on: study.correlates("x", "y", at_least=0, over="graph", unit="graph", on=on)),
    "ordered": (Border, lambda: levels(sides(-20, 0, 0), contenders="abc"),
                lambda on: study.ordered("up", along=["a", "b", "c"], on=on)),
    "several": (Border, lambda: levels(sides(0, 0, -20), contenders="abc"),
                lambda on: study.better("up", "a", than=["b", "c"], on=on)),
    "estimate": (Border, lambda: levels(sides(3, 0), contenders="ab").query("contender == 'a'").drop(columns="contender"),
                 lambda on: study.estimate("up", at_least=3, on=on)),
    "two-way": (Crossed, crossed_windows, lambda on: study.better("loss", "a", than="b", on=on)),
    "one seed": (Crossed, lambda: crossed_windows(1), lambda on: study.better("loss", "a", than="b", on=on)),
    "mcnemar": (Outcomes, lambda: rows(coins, contender=["a", "b"], seed=[0], window=range(40)),
                lambda on: study.better("hit", "a", than="b", on=on)),
    "level of outcomes": (Outcomes, lambda: rows(coins, contender=["a"], seed=[0], window=range(40)),
                          lambda on: study.at_least("hit", "a", 0.6, on=on)),
    "crossed outcomes": (Outcomes, lambda: rows(coins, contender=["a"], seed=range(4), window=range(30)),
                         lambda on: study.at_least("hit", "a", 0.6, on=on)),
}  # fmt: skip


def decided(name, level=0.95):
    experiment, table, claim = BORDERS[name]
    tables = {experiment.__name__: table()}
    claims = [claim({"table": i}) for i in range(TABLES)]
    return [v.verdict for v in judge(claims, tables, {experiment.__name__: experiment}, level=level)]


@pytest.fixture(scope="module")
def verdicts():
    return {name: decided(name) for name in BORDERS}


@pytest.mark.parametrize("name", BORDERS)
def test_the_judge_at_the_border(verdicts, name):
    """Wrong at most 5 times in a hundred, either way together: the quantity lies on the edge."""
    wrong = sum(v != "undecided" for v in verdicts[name])
    assert wrong / TABLES <= 0.05 + slack(0.05, TABLES), verdicts[name]


def test_the_judge_at_all_borders_together(verdicts):
    everything = [v for name in BORDERS for v in verdicts[name]]
    assert 0.02 <= np.mean([v != "undecided" for v in everything]) <= 0.05 + slack(0.05, len(everything))
    assert np.mean([v == "holds" for v in everything]) <= 0.025 + slack(0.025, len(everything))
    assert np.mean([v == "fails" for v in everything]) <= 0.03 + slack(0.03, len(everything))


def test_beyond_at_its_border():
    """``holds``: the observed is one more draw of the null. ``fails``: exactly 5 % of the null lie beyond it."""

    def exchangeable(g, shape):
        return {"up": g.random(shape)}

    frame = rows(exchangeable, draw=range(60))
    frame["contender"] = np.where(frame["draw"] == 0, "a", "null")
    claims = [study.beyond("up", "a", "null", on={"table": i}) for i in range(TABLES)]
    found = [v.verdict for v in judge(claims, {"Border": frame.assign(seed=0)}, {"Border": Border})]
    assert found.count("holds") / TABLES <= 0.05 + slack(0.05, TABLES)
    frame.loc[frame["draw"] == 0, "up"] = 0.95
    found = [v.verdict for v in judge(claims, {"Border": frame.assign(seed=0)}, {"Border": Border})]
    assert found.count("fails") / TABLES <= 0.025 + slack(0.025, TABLES)


def test_the_judge_looks_at_n_2n_and_4n():
    """``--until-decided``: the same claims on more and more seeds, each at 1 - 0.05 / 3."""
    frame = levels(sides(0, 0), n=12)
    claims = [study.better("up", "a", than="b", on={"table": i}) for i in range(TABLES)]
    ended = set()
    for n in (3, 6, 12):
        found = judge(claims, {"Border": frame[frame["seed"] < n]}, {"Border": Border}, level=LOOK)
        ended |= {i for i, v in enumerate(found) if v.verdict != "undecided"}
    assert len(ended) / TABLES <= 0.04 + slack(0.04, TABLES)


def test_the_judge_decides_where_there_is_something_to_decide():
    frame = levels(sides(0, 5))
    for make, verdict in [(study.worse, "holds"), (study.better, "fails")]:
        claims = [make("up", "a", than="b", on={"table": i}) for i in range(40)]
        found = [v.verdict for v in judge(claims, {"Border": frame}, {"Border": Border})]
        assert found.count(verdict) >= 38
