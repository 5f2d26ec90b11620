"""The kinds of claims: what each is judged on.

Every kind gives a :class:`Finding`, the interval of a quantity and the region it is said to lie in, but for two:
``always`` counts and ``beyond`` has a p; these give their :class:`Part` of the verdict at once.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gnomon import stats
from gnomon.study.claims import Claim, label
from gnomon.study.protocol import Metric
from gnomon.study.samples import (
    MIN_UNITS,
    Numbers,
    Sample,
    Source,
    Undecided,
    arrange,
    as_columns,
    ask,
    censored,
    finite,
    numbers,
    numeric,
    side,
)

MIN_BOOTSTRAP, MIN_CORRELATION = 20, 10
Region = tuple[float, float]
Interval = Callable[[float], stats.Interval]  # by level


@dataclass(frozen=True)
class Finding:
    """A quantity by its interval, and the region it is said to lie in."""

    interval: Interval
    region: Region
    unit: str
    n: int
    closed: bool = True  # whether the region holds its own edge
    back: Callable[[float], float] = float  # from the scale of judging to the reader's
    normal: bool = True  # leans on near-normal units
    also: Interval | None = None  # a second interval that must agree (of paired proportions)
    p: float = 0.0  # of an exact test that must pass too
    grow: Callable[[float, float], stats.Interval] | None = None  # the interval at m units and the same effect
    trained: bool = False
    notes: tuple[str, ...] = ()

    def side(self, level: float) -> int:
        """+1 inside the region, -1 outside, 0 neither."""
        sides = {where(f(level), self.region, self.closed) for f in (self.interval, self.also) if f}
        return sides.pop() if len(sides) == 1 and self.p <= 1 - level else 0


@dataclass(frozen=True)
class Part:
    """The verdict of one part of a claim."""

    label: str
    verdict: str
    reason: str = ""
    effect: float | None = None
    interval: tuple[float, float] | None = None
    unit: str = ""
    n: int = 0
    few: bool = False
    borderline: bool = False
    trained: bool = False
    margin: float = math.inf


def where(wide: stats.Interval, region: Region, closed: bool) -> int:
    """+1 when the interval lies inside the region, -1 when outside, else 0 (also where there is none)."""
    low, high = float(wide.low), float(wide.high)
    if math.isnan(low) or math.isnan(high):
        return 0
    if closed:
        return 1 if low >= region[0] and high <= region[1] else -1 if high < region[0] or low > region[1] else 0
    return 1 if low > region[0] and high < region[1] else -1 if high <= region[0] or low >= region[1] else 0


def find(claim: Claim, source: Source, level: float) -> Iterator[tuple[str, Callable[[], Finding | Part]]]:
    """All that the claim compares within one cell: a label, and how to find it."""
    if claim.kind in ("better", "worse"):
        for other in claim.than:
            sides = (claim.a, other) if claim.kind == "better" else (other, claim.a)
            yield f"than {label(other)}", functools.partial(_versus, claim, source, *sides)
    elif claim.kind == "close":
        for other in claim.than:
            yield f"to {label(other)}", functools.partial(_close, claim, source, other)
    elif claim.kind == "ordered":
        for before, after in itertools.pairwise(_steps(claim, source)):
            sides = (after, before) if claim.towards == "better" else (before, after)
            step = " to ".join(_shown_step(claim, s) for s in (before, after))
            yield step, functools.partial(_versus, claim, source, *sides)
    else:
        how: dict[str, Callable[[], Finding | Part]] = {
            "always": lambda: _always(claim, source),
            "rate": lambda: _rate(claim, source),
            "slope": lambda: _slope(claim, source),
            "correlates": lambda: _correlates(claim, source),
            "beyond": lambda: _beyond(claim, source, level),
            "estimate": lambda: _statistic(claim, source) if claim.test else _level(claim, source),
        }
        yield "", how.get(claim.kind, lambda: _level(claim, source))


# --- comparisons -----------------------------------------------------------------------------------------------------


def _versus(claim: Claim, source: Source, winner: Any, loser: Any) -> Finding:
    """The paired difference in the metric's direction lies above the margin (``better``, ``worse``, ``ordered``)."""
    metric, ordered = source.metric, claim.kind == "ordered"
    if metric.log and claim.by and not ordered:
        raise ValueError(f"by {claim.by:g}: {claim.metric} is judged on logarithms, give the margin as factor=")
    w, l, notes = _pairs(claim, source, winner, loser)
    if metric.log:
        edge = -math.log1p(-claim.by) if ordered else math.log(claim.factor)
        x = metric.sign * (w.series - l.series)
    else:
        large, small = (w.series, l.series) if metric.sign > 0 else (l.series, w.series)
        edge, x = (claim.by if claim.factor == 1 else 0.0), large - claim.factor * small
    return _difference(source, x, w, l, (edge, math.inf), ordered, notes, exact=claim.factor == 1)


def _close(claim: Claim, source: Source, other: Any) -> Finding:
    """The paired difference lies within the margin on both sides."""
    a, b, notes = _pairs(claim, source, claim.a, other)
    edge = math.log1p(claim.within) if source.metric.log else claim.within
    return _difference(source, a.series - b.series, a, b, (-edge, edge), True, notes)


def _pairs(claim: Claim, source: Source, one: Any, two: Any) -> tuple[Numbers, Numbers, tuple[str, ...]]:
    """Both sides' numbers by cell and unit, where there are both."""
    told = {**as_columns(one), **as_columns(two)}
    a, b = (numbers(source, side(source, s), str(claim.metric), but=told) for s in (one, two))
    both = a.series.index.intersection(b.series.index)
    if not len(both):
        raise Undecided(f"no unit has both {label(one)} and {label(two)}")
    lost = len(a.series.index.union(b.series.index)) - len(both)
    notes = (f"{lost} of {lost + len(both)} pairs dropped: one side is missing",) if lost else ()
    return (Numbers(a.series.loc[both], a.single), Numbers(b.series.loc[both], b.single),
            notes + censored(source, one, two))  # fmt: skip


def _difference(source: Source, x: Any, a: Numbers, b: Numbers, region: Region, closed: bool,
                notes: tuple[str, ...], exact: bool = True) -> Finding:  # fmt: skip
    """Student's t or two-way on the differences; 0/1 outcomes must pass McNemar too, at a margin Tango's interval."""
    sample = arrange(Numbers(x, a.single and b.single), source)
    found = _mean(sample, region, _exp if source.metric.log else float, closed, notes)
    if source.metric.log or not exact or not sample.single or not _outcomes(a.series, b.series):
        return found
    wins, losses = int((a.series > b.series).sum()), int((a.series < b.series).sum())
    if region == (0.0, math.inf):
        return replace(found, p=stats.mcnemar(wins, losses))
    copies = sample.x.shape[0] if sample.crossed else 1  # at worst the seeds are copies of each other
    up, down = (round((s * sample.x > 0).sum() / copies) for s in (1, -1))
    return replace(found, also=functools.partial(stats.tango, up, down, sample.x.size // copies))


# --- levels ----------------------------------------------------------------------------------------------------------


def _level(claim: Claim, source: Source) -> Finding:
    """The mean of one contender, or of a derived column; of 0/1 outcomes a rate."""
    found = numbers(source, side(source, claim.a), str(claim.metric))
    sample, notes, (low, high) = arrange(found, source), censored(source, claim.a), claim.bounds
    if not source.metric.log:
        outcomes = sample.single and _outcomes(found.series)
        return (_proportion if outcomes else _mean)(sample, claim.bounds, notes=notes)
    if high <= 0:
        raise ValueError(f"at_most {high:g}: {claim.metric} is judged on logarithms, its bound must be positive")
    region = (math.log(low) if low > 0 else -math.inf, math.log(high))
    return _mean(sample, region, _exp, notes=notes)


def _rate(claim: Claim, source: Source) -> Finding:
    """How often the event happens, over units and cells; the rates of clusters, which are not 0/1, as a mean."""
    rows = side(source, claim.a)
    event = numeric(rows[claim.test] if isinstance(claim.test, str) else ask(claim, "test", rows))
    if bad := int(np.isnan(event).sum()):
        raise Undecided(f"{bad} of {len(rows)} events are NaN")
    if event.shape != (len(rows),) or not np.isin(event, (0, 1)).all():
        raise ValueError("event: expected 0 or 1 for each row")
    source = replace(source, metric=Metric(), rows=rows.assign(event=event))
    found = numbers(source, source.rows, "event")
    if source.cluster is None and not np.isin(found.series, (0, 1)).all():
        raise ValueError(f"event differs among the rows of one {' x '.join(source.unit)}: name its unit with unit=")
    sample = arrange(found, source, apart=source.axes)
    return (_proportion if np.isin(sample.x, (0, 1)).all() else _mean)(sample, claim.bounds)


def _statistic(claim: Claim, source: Source) -> Finding:
    """A statistic that exists only over all the units: the BCa bootstrap of the outer ones."""
    source = source.outer()
    rows = side(source, claim.a, mixed=True)
    unit = [source.cluster] if source.cluster else list(source.unit)
    code = rows.groupby(unit, dropna=False).ngroup().to_numpy()
    groups, name = [np.flatnonzero(code == i) for i in range(code.max() + 1)], " x ".join(unit)
    n = len(groups)

    def over(chosen: np.ndarray) -> float:
        return float(ask(claim, "test", rows.iloc[np.concatenate([groups[i] for i in chosen])]))

    value = over(np.arange(n))
    if not math.isfinite(value):
        raise Undecided("the statistic is not finite")
    if n >= MIN_BOOTSTRAP:
        trained = source.experiment is not None and source.seeds == 1 and "seed" not in unit
        interval = functools.lru_cache(lambda level: stats.bca(n, over, level))
        return Finding(interval, claim.bounds, name, n, normal=False, trained=trained)
    if not claim.report:
        raise Undecided(f"{value:.4g} over {n} {plural(name, n)}: not judged over fewer than {MIN_BOOTSTRAP}")
    return Finding(lambda level: stats.Interval(value, math.nan, math.nan), claim.bounds, name, n)


# --- laws ------------------------------------------------------------------------------------------------------------


def _slope(claim: Claim, source: Source) -> Finding:
    """A log-log fit within each unit (each seed, where items are crossed with seeds), and the mean of the slopes."""
    along, source = str(claim.along), source.outer()
    source.need("along", along)
    rows = side(source, claim.a)
    finite(rows, along)
    source = replace(source, metric=replace(source.metric, log=True))
    points = numbers(source, rows, str(claim.metric), also=[along]).series
    if not (points.index.get_level_values(along) > 0).all():
        raise ValueError(f"along {along!r}: a log-log fit needs positive values")
    points = points.groupby(level=[*source.columns, along]).mean()

    def fit(unit: Any) -> float:
        x = unit.index.get_level_values(along)
        if len(set(x)) < 2:
            raise Undecided(f"a unit has fewer than two values of {along}")
        return float(stats.power_law(x, np.exp(unit - unit.mean())).estimate)

    slopes = points.groupby(level=source.columns).apply(fit)
    return _mean(arrange(Numbers(slopes, False), source), claim.bounds)


def _correlates(claim: Claim, source: Source) -> Finding:
    """Spearman within each unit, averaged on Fisher's z; or one over all points, with the Bonett-Wright error."""
    x, y = str(claim.metric), str(claim.along)
    rows = side(source, claim.a, mixed=True)
    finite(rows, x, y)
    source.need("over", claim.over)
    outer = source.outer()
    trained = "seed" in source.unit and "seed" not in outer.unit
    if claim.over or trained or rows.groupby(outer.columns, dropna=False).size().max() == 1:
        keys = [claim.over] if claim.over else outer.columns
        points, name = rows.groupby(keys)[[x, y]].mean(), " x ".join(keys)
        if (n := len(points)) < MIN_CORRELATION:
            raise Undecided(f"{n} points: one correlation is not judged over fewer than {MIN_CORRELATION}")
        rho = _rho(points[x], points[y])
        return Finding(lambda level: stats.spearman_interval(rho, n, level), claim.bounds, name, n, normal=False,
                       grow=lambda m, level: stats.spearman_interval(rho, int(m), level),
                       trained=trained and not claim.over)  # fmt: skip
    z = rows.groupby(outer.columns, dropna=False)[[x, y]].apply(
        lambda unit: float(stats.fisher_z(_rho(unit[x], unit[y]), len(unit)))
    )
    low, high = (math.copysign(math.inf, b) if abs(b) >= 1 else math.atanh(b) for b in claim.bounds)
    return _mean(arrange(Numbers(z, False), outer), (low, high), math.tanh)


def _rho(x: Any, y: Any) -> float:
    if len(x) < 3:
        raise Undecided(f"a unit has {len(x)} points: a correlation needs 3")
    rho = stats.spearman(x.to_numpy(float), y.to_numpy(float))
    if math.isnan(rho):
        raise Undecided("a side of the correlation is constant")
    return rho


# --- counts ----------------------------------------------------------------------------------------------------------


def _always(claim: Claim, source: Source) -> Part:
    """A count over the rows, the worst one shown; no interval, for it speaks of these rows and no others."""
    rows = source.rows
    if not len(rows):
        raise Undecided("no rows")
    test = np.asarray(rows[claim.test] if isinstance(claim.test, str) else ask(claim, "test", rows))
    if test.shape != (len(rows),):
        raise ValueError(f"test gave shape {test.shape}: expected one value for each of {len(rows)} rows")
    value = numeric(test)
    yes_no = isinstance(claim.test, str) or test.dtype.kind in "biu" or {type(v) for v in test} <= {bool, type(None)}
    if not yes_no and set(value) == {0.0, 1.0}:
        raise ValueError("test gave 0.0 and 1.0: give booleans, or margins that are >= 0 where it passes")
    passed = value > 0 if yes_no else value >= 0  # NaN does not pass
    share, count = float(passed.mean()), int(passed.sum())
    verdict = "reported" if claim.report else "holds" if count >= claim.share * len(rows) - 1e-9 else "fails"
    reason = f"{count} of {len(rows)} rows pass"
    if not (yes_no and passed.all()):
        at = int(np.argmin(passed if yes_no else np.where(np.isnan(value), -np.inf, value)))
        which = "the first that does not" if yes_no else f"the worst ({value[at]:.3g})"
        reason += f"; {which}: {_shown_row(source, claim, at)}"
    return Part("", verdict, reason, share, None, "row", len(rows), margin=share - claim.share)


def _beyond(claim: Claim, source: Source, level: float) -> Part:
    """Monte Carlo p of the mean over units: the j-th null rows of all units make the j-th draw of that mean."""
    source, name, null = source.outer(), str(claim.metric), claim.than[0]
    told = {**as_columns(claim.a), **as_columns(null)}
    observed = numbers(source, side(source, claim.a), name, but=told).series
    rows = side(source, null)
    keys = list(observed.index.names)
    rows = rows.assign(draw_of_null=rows.groupby(keys, dropna=False).cumcount())
    drawn = numbers(source, rows, name, but=told, also=["draw_of_null"]).series.unstack("draw_of_null").dropna(axis=1)
    both = [k for k in observed.index if (k if len(keys) > 1 else k[0]) in drawn.index]
    draws = drawn.loc[both if len(keys) > 1 else [k[0] for k in both]].to_numpy().mean(0) if both else np.empty(0)
    if (n := len(draws)) < MIN_UNITS:
        raise Undecided(f"{n} draws of the null that every unit has")
    value = float(observed.loc[both].mean())
    extreme = int((source.metric.sign * draws >= source.metric.sign * value).sum())
    p, wide = (1 + extreme) / (1 + n), stats.binomial(extreme, n, level)
    edge = (1 - claim.share) * (1 - level) / 0.05  # stricter at repeated looks
    verdict = "reported" if claim.report else "holds" if p <= edge else "fails" if wide.low > edge else "undecided"
    back = _exp if source.metric.log else float
    reason = f"{back(value):.4g} against {back(float(draws.mean())):.4g} on average over {n} draws of the null"
    if 1 / (1 + n) > edge and not claim.report:
        reason += f": {math.ceil(1 / edge - 1e-9) - 1} draws or more can decide"
    close = verdict in ("holds", "undecided") and abs(p - edge) <= 0.05 * float(wide.high - wide.low)
    return Part("", verdict, reason, p, (float(wide.low), float(wide.high)), "draw of the null", n,
                borderline=close, margin=edge - p)  # fmt: skip


# --- what they share -------------------------------------------------------------------------------------------------


def mean_interval(sample: Sample) -> Interval:
    """Two-way for seeds x items, else Student's t; without two units there is no interval."""
    x = sample.x
    if sample.crossed:
        return lambda level: stats.two_way(x, level)
    if len(x) < 2:
        return lambda level: stats.Interval(float(x.mean()), math.nan, math.nan)
    return lambda level: stats.t_interval(x, level)


def _mean(sample: Sample, region: Region, back: Callable[[float], float] = float, closed: bool = True,
          notes: tuple[str, ...] = ()) -> Finding:  # fmt: skip
    return _over(sample, mean_interval(sample), region, back, closed, notes)


def _over(sample: Sample, interval: Interval, region: Region, back: Callable[[float], float], closed: bool,
          notes: tuple[str, ...]) -> Finding:  # fmt: skip
    n = min(sample.x.shape)
    if sample.crossed:
        notes = (f"{sample.x.shape[0]} seeds crossed with {sample.x.shape[1]} items", *notes)

    def grow(m: float, level: float) -> stats.Interval:
        now = interval(level)
        return stats.student(now.estimate, now.se * math.sqrt(n / m), max(now.df, 1) * m / n, level)

    return Finding(interval, region, sample.unit, n, closed, back, grow=grow if n > 1 else None,
                   trained=sample.trained, notes=(*notes, *sample.notes))  # fmt: skip


def _proportion(sample: Sample, region: Region, *, notes: tuple[str, ...] = ()) -> Finding:
    if sample.crossed:
        x = sample.x
        found = _over(sample, lambda level: stats.crossed_binomial(x, level), region, float, True, notes)
        return replace(found, grow=None)
    k, n = float(sample.x.sum()), sample.x.size
    found = _over(sample, lambda level: stats.binomial(k, n, level), region, float, True, notes)
    return replace(found, normal=False, grow=lambda m, level: stats.binomial(k / n * m, m, level))


def _outcomes(*columns: Any) -> bool:
    """0/1 outcomes: all are 0 or 1, and both occur (1.0 in every seed is a share, not an outcome)."""
    return {float(v) for c in columns for v in np.unique(c)} == {0.0, 1.0}


def _exp(x: float) -> float:
    return float(np.exp(x))


def _steps(claim: Claim, source: Source) -> list[dict[str, Any]]:
    base = as_columns(claim.a)
    if not isinstance(claim.along, str):
        return [{**base, **as_columns(s)} for s in claim.along]
    values = sorted(set(source.rows[claim.along].dropna()))
    if len(values) < 2:
        raise Undecided(f"{claim.along} has {len(values)} values at this scale: an order needs two")
    return [{**base, claim.along: v} for v in values]


def _shown_step(claim: Claim, step: dict[str, Any]) -> str:
    told = {k: v for k, v in step.items() if k not in as_columns(claim.a)}
    return ", ".join(shown(v) if k == "contender" else f"{k}={shown(v)}" for k, v in told.items())


def _shown_row(source: Source, claim: Claim, at: int) -> str:
    row = {str(name): value for name, value in source.rows.iloc[at].items()}
    front = [*source.axes, "contender", "seed", *source.unit, claim.metric]
    names = [c for c in dict.fromkeys(front) if c in row] or list(row)
    return ", ".join(f"{c}={shown(row[c])}" for c in names[:8] if row[c] is not None and row[c] == row[c])


def plain(value: Any) -> Any:
    """A cell's value as JSON has it; whole floats (an axis that some cells lack) are integers again."""
    value = value.item() if hasattr(value, "item") else value
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole else list(value) if isinstance(value, tuple) else value


def shown(value: Any) -> str:
    value = plain(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def plural(unit: str, n: int) -> str:
    return unit if n == 1 or " " in unit else f"{unit[:-1]}ies" if unit.endswith("y") else f"{unit}s"
