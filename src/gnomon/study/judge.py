"""The judge: one procedure for all kinds of claims.

A claim becomes parts (its cells x what it is compared with). A part gives an interval and a region
(:mod:`gnomon.study.kinds`, on one number per unit from :mod:`gnomon.study.samples`): inside holds, outside fails,
else undecided. The claim is the conjunction of its parts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.study.claims import Claim, label
from gnomon.study.kinds import Finding, Part, find, mean_interval, plain, plural, shown, where
from gnomon.study.protocol import Experiment, Metric
from gnomon.study.samples import (
    MIN_UNITS,
    Source,
    Undecided,
    arrange,
    as_columns,
    ask,
    axes,
    hashable,
    numbers,
    numeric,
    restrict,
    units,
)

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
FEW = 5  # up to here a verdict leans on near-normal units
COSTS = {"wall_s": Metric("s", -1, log=True, timed=True), "cpu_s": Metric("s", -1, log=True, timed=True),
         "peak_mb": Metric("MB", -1, log=True)}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What came out of one claim.

    Attributes
    ----------
    verdict : str
        ``holds``, ``fails``, ``undecided`` or ``reported``.
    effect, interval : float and (float, float), or None
        In the claimed direction (positive supports ``better``, ``worse`` and ``ordered``); of a ``log`` metric a ratio
        or a geometric mean; of ``always`` the share of rows that pass; of ``beyond`` the Monte Carlo p. Of a
        conjunction, those of the part that is furthest from its region.
    level : float
        Confidence of the interval.
    unit, n : str and int
        What the verdict generalises over, and how many there were (of crossed units the fewer).
    few : bool
        It leans on 3 to 5 units being near-normal.
    borderline : bool
        An end of an interval lies within 5 % of its width from the region's edge.
    timed : bool
        The metric is a time.
    looks : list of dict
        Of ``--until-decided``, what was looked at.
    reason : str
        Why it is undecided, where it fails, what was left out.
    parts : list of dict
        Of a conjunction: label, effect, interval, verdict and n of each part.
    """

    id: str
    text: str
    paper: str
    kind: str
    verdict: str
    effect: float | None = None
    interval: tuple[float, float] | None = None
    level: float = LEVEL
    unit: str = ""
    n: int = 0
    few: bool = False
    borderline: bool = False
    timed: bool = False
    looks: list[dict[str, Any]] = field(default_factory=list)
    digest: str = ""
    reason: str = ""
    parts: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The verdict as evidence keeps it: plain JSON."""
        return {**asdict(self), "interval": _list(self.interval)}


def judge(claims: Sequence[Claim], tables: Mapping[str, pd.DataFrame], experiments: Mapping[str, type[Experiment]], *,
          scale: str = "laptop", level: float = LEVEL, looks: Sequence[dict[str, Any]] = (),
          ) -> list[Verdict]:  # fmt: skip
    """Judge claims over tables.

    Parameters
    ----------
    claims : sequence of Claim
        Their ids must differ.
    tables : dict of str to DataFrame
        The rows of each experiment under its class name, and the derived tables.
    experiments : dict of str to Experiment class
        Where metrics, units and clusters are declared.
    scale : str
        ``smoke`` decides only ``always``.
    level : float
        Confidence of every interval; ``--until-decided`` passes 1 - 0.05 / 3.
    looks : sequence of dict
        Kept in the verdicts.

    Returns
    -------
    list of Verdict
        One for each claim, in order.

    Raises
    ------
    ValueError
        For a claim that does not fit the tables, or whose callable gives something else than asked for.
    RuntimeError
        When a callable of a claim raises; the claim is named and the error is its cause.
    """
    ids = [c.id for c in claims]
    if twice := sorted({i for i in ids if ids.count(i) > 1}):
        raise ValueError(f"claims {twice} are there more than once: give each an id= of its own")
    court = _Court({n: hashable(t) for n, t in tables.items() if len(t)}, dict(tables), experiments, scale, level)
    return [replace(court.verdict(claim), looks=list(looks)) for claim in claims]


@dataclass(frozen=True)
class _Court:
    run: Mapping[str, pd.DataFrame]  # the tables that have rows
    tables: dict[str, pd.DataFrame]
    experiments: Mapping[str, type[Experiment]]
    scale: str
    level: float

    def verdict(self, claim: Claim) -> Verdict:
        """A conjunction fails when one part fails at 1 - (1 - level) / k, and holds when every part holds."""
        blank = Verdict(
            claim.id, claim.text, claim.paper, claim.kind, "undecided", level=self.level, digest=claim.digest
        )
        try:
            source = self.source(claim)
            blank = replace(blank, timed=source.metric.timed)
            if self.scale == "smoke" and claim.kind != "always":
                raise Undecided("the smoke scale decides only what must hold in every row")
            self.measurable(claim)
            parts = self.parts(claim, source)
        except Undecided as why:
            return replace(blank, reason=str(why))
        except ValueError as error:
            raise ValueError(f"claim {claim.id!r}: {error}") from error
        verdict = next(v for v in ("fails", "undecided", "reported", "holds") if any(p.verdict == v for p in parts))
        deciding = [p for p in parts if p.verdict == verdict]
        worst = min(deciding, key=lambda p: p.margin)
        several = len(parts) > 1
        return replace(
            blank, verdict=verdict, effect=worst.effect, interval=worst.interval, unit=worst.unit, n=worst.n,
            few=any(p.few for p in parts), borderline=any(p.borderline for p in parts),
            reason=_reasons(deciding, several),
            text=claim.text + " (of this trained model)" * any(p.trained for p in parts),
            parts=[{"label": p.label, "effect": p.effect, "interval": _list(p.interval), "verdict": p.verdict, "n": p.n}
                   for p in parts] if several else [],
        )  # fmt: skip

    def source(self, claim: Claim) -> Source:
        """The one table that has the claim's columns, or the one it names."""
        wanted = [c for c in (claim.metric, claim.along) if isinstance(c, str)]
        everything_ran = set(self.experiments) <= set(self.run)
        name = claim.table
        if name is None:
            fits = {n for n, t in self.run.items() if wanted and set(wanted) <= set(t)}
            fits |= {n for n, e in self.experiments.items() if not wanted or claim.metric in e.metrics}
            if len(fits) > 1:
                raise ValueError(f"tables {sorted(fits)} all fit: say which with table=")
            if not fits and everything_ran:
                have = "; ".join(f"{n} has {', '.join(map(str, t))}" for n, t in self.run.items())
                raise ValueError(f"no table has {wanted}: {have}")
            name = next(iter(fits), "")
        if name not in self.run:
            if everything_ran and name not in self.tables:
                raise ValueError(f"table {name!r}: there are {', '.join(self.tables)}")
            raise Undecided("not run at this scale")
        rows, experiment = self.run[name], self.experiments.get(name)
        declared = [e.metrics for e in (experiment, *self.experiments.values()) if e]
        metric = next((m[claim.metric] for m in [*declared, COSTS] if claim.metric in m), Metric())  # type: ignore[index]
        unit, cluster = units(claim, rows, experiment, metric)
        if "row" in unit and "row" not in rows:
            rows = rows.assign(row=range(len(rows)))
        cells = axes(rows, *([experiment] if experiment else self.experiments.values()))
        source = Source(name, rows, metric, experiment, unit, cluster, cells)
        source.need("columns", *wanted)
        source.need("each", *claim.each)
        if claim.kind != "always":
            source.need("unit or cluster", *source.columns)
        return source

    def measurable(self, claim: Claim) -> None:
        """Raise where the claim's ``when`` is not met."""
        if isinstance(claim.when, Claim):
            other = self.verdict(claim.when)
            if other.verdict != "holds":
                raise Undecided(f"not measurable, for this {other.verdict}: {other.text}")
        elif claim.when is not None:
            try:
                answer = ask(claim, "when", self.tables)
            except RuntimeError as error:
                if isinstance(error.__cause__, KeyError) and error.__cause__.args[0] in self.absent:
                    raise Undecided("not run at this scale") from None
                raise
            ok, why = answer if isinstance(answer, tuple) else (answer, "its condition is not met")
            if not ok:
                raise Undecided(f"not measurable: {why}")

    @property
    def absent(self) -> set[str]:
        return set(self.experiments) - set(self.tables)

    def parts(self, claim: Claim, source: Source) -> list[Part]:
        """The claim's cells, each with all that it is compared with."""
        source, absent = restrict(source, claim)
        self.known(claim, source)
        if not absent.keys() <= set(claim.each):
            raise Undecided(f"not run at this scale: {label(absent)}")
        if not len(source.rows):
            raise Undecided("no rows are left after on=")
        cells: list[tuple[Any, Source]] = [((), source)]
        if claim.each:
            cells = [(k, replace(source, rows=r)) for k, r in source.rows.groupby(list(claim.each), sort=False)]
        todo = [(", ".join(f"{c}={shown(v)}" for c, v in zip(claim.each, key, strict=True)), what, finding)
                for key, cell in cells for what, finding in find(claim, cell, self.level)]  # fmt: skip
        missing = [f"{column}={shown(v)}" for column, values in absent.items() for v in values]
        named = len({what for _, what, _ in todo}) > 1 or not claim.each
        count = len(todo) + len(missing)
        return [self.part(claim, ", ".join(filter(None, [cell, what if named else ""])), finding, count)
                for cell, what, finding in todo] + [Part(m, "undecided", "not run at this scale")
                                                    for m in missing]  # fmt: skip

    def known(self, claim: Claim, source: Source) -> None:
        """A contender that no experiment has is a slip of the pen."""
        names = {n for e in self.experiments.values() for n in e.contenders}
        along = claim.along if isinstance(claim.along, tuple) else ()
        for name in (as_columns(s).get("contender") for s in (claim.a, *claim.than, *along)):
            if name is not None and source.experiment and name not in names | set(source.rows["contender"]):
                raise ValueError(
                    f"contender {name!r}: table {source.table} has {', '.join(source.experiment.contenders)}"
                )

    def part(self, claim: Claim, name: str, finding: Callable[[], Finding | Part], count: int) -> Part:
        """Judge one part of ``count``."""
        try:
            found = finding()
        except Undecided as why:
            return Part(name, "undecided", str(why))
        if isinstance(found, Part):
            return replace(found, label=name)
        wide, judged, notes = found.interval(self.level), found.n >= MIN_UNITS, list(found.notes)
        if claim.report:
            verdict = "reported"
        elif not judged:
            verdict = "undecided"
            notes = [f"{found.n} {plural(found.unit, found.n)}: fewer than {MIN_UNITS} are never decided", *notes]
        elif found.side(self.level) > 0:
            verdict = "holds"
        elif found.side(1 - (1 - self.level) / count) < 0:
            verdict = "fails"
        else:
            verdict = "undecided"
            notes = [_needed(found, self.level), *notes]
        ends = (found.back(float(wide.low)), found.back(float(wide.high)))
        half = max((float(wide.high) - float(wide.low)) / 2, 1e-300)
        gaps = [abs(e - r) for e in (wide.low, wide.high) for r in found.region]
        inside = min(float(wide.low) - found.region[0], found.region[1] - float(wide.high)) / half
        return Part(
            name, verdict, "; ".join(notes), _number(found.back(float(wide.estimate))),
            ends if all(map(math.isfinite, ends)) else None, found.unit, found.n,
            few=judged and found.normal and found.n <= FEW and verdict != "reported",
            borderline=judged and verdict != "reported" and half > 1e-300 and min(gaps) <= 0.1 * half,
            trained=found.trained, margin=math.inf if math.isnan(inside) else inside,
        )  # fmt: skip


def _needed(found: Finding, level: float) -> str:
    """How many units would decide at this effect."""
    unit, crossed = found.unit.split(" x ")[0], " x " in found.unit
    if found.p > 1 - level and where(found.interval(level), found.region, found.closed):
        return f"exact McNemar p = {found.p:.2g}"
    enough = functools.partial(_decides, found, level)
    few, many = float(found.n), 2.0 * found.n
    while many < 1e5 and not enough(many):
        few, many = many, 2 * many
    if not enough(many):
        return "no number of units within reach would decide at this effect"
    while many - few > max(0.5, 0.02 * few):
        middle = (few + many) / 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    size = math.ceil(many) if many < 100 else round(many, 1 - int(math.log10(many)))
    more = ", items in proportion," if crossed else ""
    return f"about {size:.0f} {plural(unit, 2)}{more} would decide at this effect"


def _decides(found: Finding, level: float, units: float) -> bool:
    return found.grow is not None and where(found.grow(units, level), found.region, found.closed) != 0


def _reasons(parts: Sequence[Part], several: bool) -> str:
    """What is to be said of the deciding parts, each once; at most four."""
    lines = [": ".join(filter(None, [p.label if several else "", p.reason])) for p in parts
             if p.reason or (several and p.verdict == "fails")]  # fmt: skip
    lines = list(dict.fromkeys(lines))
    return "; ".join([*lines[:4], *([f"and {len(lines) - 4} more"] if len(lines) > 4 else [])])


def _list(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _number(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


# --- the table of means ----------------------------------------------------------------------------------------------


def summary(table: pd.DataFrame, experiment: type[Experiment]) -> list[dict[str, Any]]:
    """Mean and 95 % interval of each metric per cell and contender, by the units of the experiment.

    Of a ``log`` metric the geometric mean. Rows without a finite value are left out (``n`` says how many units remain);
    with fewer than two units there is no interval.

    Returns
    -------
    list of dict
        ``{"cell": {...}, "contender": str, "metrics": {name: {"mean", "low", "high", "n"}}}``.
    """
    names = axes(table, experiment)
    rows = []
    for key, part in hashable(table).groupby([*names, "contender"], sort=False, dropna=False):
        cell = {a: plain(v) for a, v in zip(names, key, strict=False) if v is not None and v == v}
        found = {
            name: _mean(part, experiment, name, metric) for name, metric in experiment.metrics.items() if name in part
        }
        rows.append({"cell": cell, "contender": str(key[-1]), "metrics": {n: m for n, m in found.items() if m["n"]}})
    return rows


def _mean(rows: pd.DataFrame, experiment: type[Experiment], name: str, metric: Metric) -> dict[str, Any]:
    rows = rows[np.isfinite(numeric(rows[name]))]
    if not len(rows) or (metric.log and not (rows[name] > 0).all()):
        return {"mean": None, "low": None, "high": None, "n": 0}
    source = Source(experiment.__name__, rows, metric, experiment, *units(None, rows, experiment, metric))
    sample = arrange(numbers(source, rows, name), source)
    wide = mean_interval(sample)(LEVEL)
    ends = [_number(float(np.exp(v) if metric.log else v)) for v in wide[:3]]
    return {**dict(zip(("mean", "low", "high"), ends, strict=True)), "n": int(min(sample.x.shape))}
