"""From rows to samples: which rows, which units, and one number for each unit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gnomon.study.claims import Claim, label
from gnomon.study.protocol import Experiment, Metric

if TYPE_CHECKING:
    import pandas as pd

MIN_UNITS = 3  # fewer are never decided


class Undecided(Exception):
    """Why a claim, or a part of it, cannot be judged on these tables."""


@dataclass(frozen=True)
class Source:
    """The rows a claim is judged on, and how their metric and units are declared."""

    table: str
    rows: pd.DataFrame
    metric: Metric
    experiment: type[Experiment] | None  # None: a derived table
    unit: tuple[str, ...]
    cluster: str | None
    axes: tuple[str, ...] = ()  # of its cells; a derived table may have those of any experiment

    @property
    def columns(self) -> list[str]:
        """What tells the units apart."""
        return list(dict.fromkeys([*self.unit, *([self.cluster] if self.cluster else [])]))

    @property
    def seeds(self) -> int:
        return int(self.rows["seed"].nunique()) if "seed" in self.rows else 0

    def need(self, what: str, *columns: str | None) -> None:
        if lacking := [c for c in columns if c and c not in self.rows]:
            raise ValueError(f"{what} {lacking}: table {self.table} has {', '.join(map(str, self.rows))}")

    def outer(self) -> Source:
        """The seeds, where items are crossed with several of them; with one seed the items."""
        if len(self.unit) == 1 or "seed" not in self.unit:
            return self
        if self.seeds > 1:
            return replace(self, unit=("seed",), cluster=None)
        return replace(self, unit=tuple(u for u in self.unit if u != "seed"))


class Numbers(NamedTuple):
    """One number per cell and unit: a Series indexed by both; ``single`` when each is one row, nothing averaged."""

    series: Any
    single: bool


@dataclass(frozen=True)
class Sample:
    """One number per unit: a vector, or seeds x items."""

    x: np.ndarray
    unit: str
    single: bool = False
    trained: bool = False  # one seed, so that the items are the units: "of this trained model"
    notes: tuple[str, ...] = ()

    @property
    def crossed(self) -> bool:
        return self.x.ndim == 2


def axes(rows: pd.DataFrame, *experiments: type[Experiment]) -> tuple[str, ...]:
    """The columns that hold the cells of the experiments."""
    return tuple(dict.fromkeys(a for e in experiments for cell in e.cells for a in cell if a in rows))


def units(claim: Claim | None, rows: pd.DataFrame, experiment: type[Experiment] | None,
          metric: Metric) -> tuple[tuple[str, ...], str | None]:  # fmt: skip
    """What the numbers generalise over, and what these come in.

    A derived table has its seeds as units, else its rows. Of a time with fewer than three seeds the interleaved
    repeats are the units: the verdict is then about these problems on this machine. A claim that names its unit names
    its cluster too.
    """
    unit, cluster = (claim.unit, claim.cluster) if claim else (None, None)
    if unit is None and experiment is None:
        unit = ("seed",) if "seed" in rows else ("row",)
    elif unit is None and experiment is not None:
        unit = (experiment.unit,) if isinstance(experiment.unit, str) else tuple(experiment.unit)
        cluster = cluster or experiment.cluster
        if metric.timed and unit == ("seed",) and "repeat" in rows and rows["seed"].nunique() < MIN_UNITS:
            unit = ("repeat",)
    unit = tuple(unit or ())
    if len(unit) > 1 and "seed" in unit and rows["seed"].isna().all():
        unit = tuple(u for u in unit if u != "seed")
    return unit, cluster


# --- which rows ------------------------------------------------------------------------------------------------------


def ask(claim: Claim, argument: str, *arguments: Any) -> Any:
    """What a callable of a claim answers; its errors name the claim."""
    try:
        return getattr(claim, argument)(*arguments)
    except Exception as error:
        raise RuntimeError(f"claim {claim.id!r}: {argument} raised {type(error).__name__}: {error}") from error


def restrict(source: Source, claim: Claim) -> tuple[Source, dict[str, list[Any]]]:
    """The rows that a claim's ``on`` keeps, and those of its values that the table lacks."""
    rows, absent = source.rows, {}
    if callable(claim.on):
        mask = np.asarray(ask(claim, "on", rows))
        if mask.shape != (len(rows),) or mask.dtype != bool:
            raise ValueError(
                f"on gave {mask.dtype} of shape {mask.shape}: expected a boolean for each of {len(rows)} rows"
            )
        return replace(source, rows=rows[mask]), {}
    keep = np.ones(len(rows), dtype=bool)
    for column, value in (claim.on or {}).items():
        source.need("on", column)
        values = list(value) if isinstance(value, list | tuple) else [value]
        masks = [equal(rows[column], v) for v in values]
        if gone := [v for v, mask in zip(values, masks, strict=True) if not mask.any()]:
            absent[column] = gone
        keep &= np.logical_or.reduce(masks)
    return replace(source, rows=rows[keep]), absent


def side(source: Source, selection: Any, *, mixed: bool = False) -> pd.DataFrame:
    """The rows of one side of a claim; contenders are not averaged into each other unnoticed (unless ``mixed``)."""
    rows = source.rows
    for column, value in as_columns(selection).items():
        source.need(label(selection), column)
        rows = rows[equal(rows[column], value)]
    if not len(rows):
        raise Undecided(f"no rows of {label(selection)} at this scale")
    if not mixed and "contender" in rows and rows["contender"].nunique() > 1:
        names = ", ".join(sorted(set(map(str, rows["contender"]))))
        raise ValueError(f"{label(selection) or 'a'}: the rows hold several contenders ({names}); name one")
    return rows


def as_columns(selection: Any) -> dict[str, Any]:
    return {} if selection is None else {"contender": selection} if isinstance(selection, str) else dict(selection)


def equal(column: Any, value: Any) -> np.ndarray:
    if value is None:
        return np.asarray(column.isna())
    if isinstance(value, list | tuple):  # a cell that is a list
        return np.array([v == tuple(value) for v in column])
    return np.asarray(column == value)


def hashable(rows: pd.DataFrame) -> pd.DataFrame:
    """Cells may be lists, which cannot be grouped by: tuples can."""
    mutable = [c for c in rows if rows[c].dtype == object and rows[c].map(lambda v: isinstance(v, list)).any()]
    return rows.assign(**{str(c): rows[c].map(lambda v: tuple(v) if isinstance(v, list) else v) for c in mutable})


def numeric(values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype == object:
        array = np.array([math.nan if v is None else v for v in array])
    try:
        return array.astype(float)
    except (ValueError, TypeError):
        raise ValueError(f"expected numbers, got {array[0]!r}") from None


def finite(rows: pd.DataFrame, *columns: str) -> None:
    """NaN is no result: a claim over it is undecided."""
    for column in columns:
        if bad := int((~np.isfinite(numeric(rows[column]))).sum()):
            raise Undecided(f"{bad} of {len(rows)} values of {column} are NaN or infinite")


def censored(source: Source, *selections: Any) -> tuple[str, ...]:
    """Times that were not reached count as the budget; the reader is told how many."""
    if "reached" not in source.rows:
        return ()
    flags = [f for s in selections for f in side(source, s, mixed=True)["reached"]]
    gone = sum(f is not None and not f for f in flags)
    return (f"{gone} of {len(flags)} values are the budget, not reached",) if gone else ()


# --- one number per unit ---------------------------------------------------------------------------------------------


def numbers(source: Source, rows: pd.DataFrame, column: str, *, but: Mapping[str, Any] | None = None,
            also: Sequence[str] = ()) -> Numbers:  # fmt: skip
    """One number per cell and unit: rows within are averaged (of times the median), ``log`` metrics on logarithms.

    Cell axes named in ``but`` tell the sides apart and are left out; columns in ``also`` are kept apart.
    """
    import pandas as pd

    finite(rows, column)
    x = pd.Series(numeric(rows[column]), index=rows.index)
    if source.metric.log:
        if bad := int((x <= 0).sum()):
            raise Undecided(f"{bad} of {len(x)} values of {column} are not positive: they have no logarithm")
        x = x.map(math.log)
    keys = list(dict.fromkeys([*(c for c in source.axes if c not in (but or {})), *source.columns, *also]))
    source.need("unit or cluster", *source.columns)
    groups = x.groupby([_filled(rows[k]) for k in keys], sort=False)
    series = groups.median() if source.metric.timed else groups.mean()
    if series.index.nlevels == 1:
        series.index = pd.MultiIndex.from_arrays([series.index], names=keys)
    return Numbers(series, len(series) == len(x))


def arrange(found: Numbers, source: Source, apart: Sequence[str] = ()) -> Sample:
    """A vector over units, or seeds x items: cells are averaged within a unit, units within their cluster.

    Items that most seeds do not share were drawn anew with each seed: then the seeds alone are the units. Cells in
    ``apart`` are units of their own.
    """
    items = [source.cluster] if source.cluster else [u for u in source.unit if u != "seed"]
    apart = [c for c in apart if c not in source.columns and source.rows[c].nunique() > 1]
    seeded = "seed" in source.unit and len(source.unit) > 1
    x = found.series.groupby(level=[*source.columns, *apart]).mean()
    single = found.single and len(x) == len(found.series) and source.cluster is None
    if not seeded:
        names = items or ["seed"]
        x = x.groupby(level=[*names, *apart]).mean()
        trained = source.experiment is not None and source.seeds == 1 and not {"seed", "repeat"} & set(names)
        return Sample(x.to_numpy(), " x ".join([*names, *apart]), single, trained)
    table = x.groupby(level=["seed", *items, *apart]).mean().unstack("seed")
    whole = table.dropna()
    if table.shape[1] == 1:
        return Sample(whole.to_numpy()[:, 0], " x ".join([*items, *apart]), single, trained=True)
    if 2 * whole.size < table.notna().to_numpy().sum():
        return Sample(table.mean(0).to_numpy(), "seed")
    lost = len(table) - len(whole)
    notes = (f"{lost} of {len(table)} items dropped: a seed lacks them",) if lost else ()
    if len(whole) == 1:
        return Sample(whole.to_numpy()[0], "seed", single, notes=notes)
    return Sample(whole.to_numpy().T, " x ".join(["seed", *items, *apart]), single, notes=notes)


def _filled(column: pd.Series) -> pd.Series:
    """Grids that are put together leave axes empty, and experiments without seeds the seed: a value like any other."""
    return column.astype(object).where(column.notna(), "none") if column.isna().any() else column
