"""What a person is shown about a system: one view, made from its study and its evidence.

``gnomon show``, the report and the documentation render this and nothing else, so that all three agree.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gnomon.study.protocol import SCALES, Metric

if TYPE_CHECKING:
    from rich.console import Console

    from gnomon.study.claims import Claim
    from gnomon.study.protocol import Study

VERDICTS = {
    "holds": "holds",
    "fails": "fails",
    "undecided": "undecided",
    "reported": "reported",
    "unchecked": "not checked",
}
LEVEL = 0.95
ERROR = 1 - LEVEL


class Entry(Protocol):
    """What the catalogue gives for a system."""

    @property
    def area(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def slug(self) -> str: ...
    @property
    def summary(self) -> str: ...
    def study(self) -> type[Study]: ...
    def evidence(self, folder: Path | None = None) -> dict[str, Any]: ...
    def figure(self, scale: str, folder: Path | None = None) -> str | None: ...


# --- numbers as text --------------------------------------------------------------------------------------------------

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: Any, places: int | None = None) -> str:
    """A number for a person: four significant digits or ``places`` decimals, powers of ten where they help."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "undefined")
    size = abs(value)
    if size and not (1e-3 if places is None else 0) <= size < 1e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa} × 10{str(int(exponent)).translate(_SUPERSCRIPT)}".replace("-", "−")
    if places is None:
        places = max(0, 3 - math.floor(math.log10(size))) if size else 0
        text = f"{value:,.{places}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{value:,.{places}f}"
    return text.replace("-", "−")


def estimate(value: float | None, interval: Sequence[float | None] | None = None) -> tuple[str, str]:
    """A number and its interval, both to two significant digits of the interval's half width; None is an open end."""
    if interval is None or all(end is None for end in interval):
        return number(None if value is None else float(value)), ""
    low, high = (
        default if end is None else float(end) for end, default in zip(interval, (-math.inf, math.inf), strict=True)
    )
    half = (high - low) / 2
    places = max(0, 1 - math.floor(math.log10(half))) if 0 < half < math.inf else None
    if places is not None and places > 6:
        places = None
    ends = f"[{number(low, places)}, {number(high, places)}]"
    return number(None if value is None else float(value), places), ends


def inline(text: str) -> str:
    """A docstring's line without its markup: roles and double backticks become what they show."""
    return re.sub(r":[\w:]+:`~?([^`<]+)[^`]*`", r"\1", text).replace("``", "`")


# --- the view ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartView:
    """One comparison of a claim that is a conjunction."""

    label: str
    found: str
    interval: str
    verdict: str
    n: int | None


@dataclass(frozen=True)
class ClaimView:
    """A claim, what its paper says and what was found.

    ``found`` and ``interval`` are ``effect`` and its ``ends`` as a person reads them, ``quantity`` is what they are a
    value of; ``marks`` are the cautions (few units, a borderline interval, a time); ``scale`` is where it was judged.
    """

    id: str
    text: str
    paper: str
    kind: str
    verdict: str
    effect: float | None = None
    ends: tuple[float, float] | None = None
    found: str = ""
    interval: str = ""
    quantity: str = ""
    level: float | None = None
    unit: str = ""
    n: int | None = None
    marks: tuple[str, ...] = ()
    reason: str = ""
    parts: tuple[PartView, ...] = ()
    looks: int = 0
    scale: str = ""

    @property
    def judged(self) -> bool:
        """Whether it was decided by an interval, which is wrong now and then, rather than by counting rows."""
        return self.verdict in ("holds", "fails") and self.kind != "always"


@dataclass(frozen=True)
class ColumnView:
    """A metric: its name, its unit and which way is better."""

    name: str
    unit: str
    better: str


@dataclass(frozen=True)
class RowView:
    """One contender in one cell; ``values`` are (number, interval) texts, one for each column."""

    cell: tuple[str, ...]
    contender: str
    values: tuple[tuple[str, str], ...]
    n: int | None


@dataclass(frozen=True)
class TableView:
    """Contenders x metrics of one experiment."""

    name: str
    about: str
    unit: str
    axes: tuple[str, ...]
    columns: tuple[ColumnView, ...]
    rows: tuple[RowView, ...]
    method: str

    @property
    def groups(self) -> list[list[RowView]]:
        """The rows of each cell, in the order in which the cells first appear."""
        found: dict[tuple[str, ...], list[RowView]] = {}
        for row in self.rows:
            found.setdefault(row.cell, []).append(row)
        return list(found.values())


@dataclass(frozen=True)
class ScaleView:
    """All that was found at one scale. ``source`` is "recorded", or "this machine" where a person checked it."""

    scale: str
    source: str
    command: str
    inputs: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    cost: str
    claims: tuple[ClaimView, ...]
    tables: tuple[TableView, ...]
    figure: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class SystemView:
    """A system as ``gnomon show``, the report and the documentation show it.

    ``claims`` has each claim once, with its verdict at the largest scale that measured it; ``scales`` has all. ``check``
    holds the lines that make the evidence again.
    """

    area: str
    name: str
    slug: str
    title: str
    summary: str
    question: str
    method: str
    paper: str
    paper_url: str
    bibtex: str
    departures: tuple[str, ...]
    command: str
    example: str
    check: str
    figure_about: str
    claims: tuple[ClaimView, ...]
    scales: tuple[ScaleView, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many claims have each verdict; verdicts that no claim has are left out."""
        return {v: n for v in VERDICTS if (n := sum(c.verdict == v for c in self.claims))}

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; figures are left out."""
        found = dataclasses.asdict(self)
        for scale in found["scales"]:
            del scale["figure"]
        return {**found, "counts": self.counts}

    def to_console(self, console: Console) -> None:
        """Print it on a rich console."""
        from gnomon.study.console import print_view

        print_view(self, console)


def expected_wrong(views: Sequence[SystemView]) -> tuple[int, float]:
    """Claims decided by an interval, and how many of these verdicts are expected to be wrong at most, at 95 %."""
    judged = sum(claim.judged for v in views for claim in v.claims)
    return judged, ERROR * judged


def view(system: Entry, results: Path | None = None) -> SystemView:
    """The view of a system.

    Parameters
    ----------
    system : System
        An entry of :mod:`gnomon.catalog`.
    results : path, optional
        A results folder: what was found there takes the place of what is recorded, scale by scale.
    """
    study = system.study()
    scales = []
    recorded, own = system.evidence(), system.evidence(results) if results is not None else {}
    for scale in SCALES:
        if scale in own.get("scales", {}):
            scales.append(
                _scale(system, study, scale, own["scales"][scale], "this machine", system.figure(scale, results))
            )
        elif scale in recorded.get("scales", {}):
            scales.append(_scale(system, study, scale, recorded["scales"][scale], "recorded", system.figure(scale)))
    arxiv = re.search(r"\b(\d{4}\.\d{4,5})(v\d+)?\b", study.paper)
    return SystemView(
        area=system.area,
        name=system.name,
        slug=system.slug,
        title=study.title or system.slug,
        summary=inline(system.summary),
        question=study.question,
        method=study.method,
        paper=study.paper,
        paper_url=f"https://arxiv.org/abs/{arxiv[1]}" if arxiv else "",
        bibtex=study.bibtex.strip(),
        departures=tuple(study.departures),
        command=study.command.strip(),
        example=study.example.strip("\n"),
        check="\n".join(s.command for s in scales) or f"gnomon check {system.slug}",
        figure_about=_first_paragraph(study.figure.__doc__) if "figure" in _own(study) else "",
        claims=_settled(study, scales),
        scales=tuple(scales),
    )


def _own(study: type[Study]) -> dict[str, Any]:
    """What the study defines itself, leaving out the protocol's defaults."""
    return {
        k: v for c in reversed(study.__mro__) if c.__module__ != "gnomon.study.protocol" for k, v in vars(c).items()
    }


def _first_paragraph(text: str | None) -> str:
    return inline(" ".join((text or "").strip().split("\n\n", 1)[0].split()))


def _settled(study: type[Study], scales: Sequence[ScaleView]) -> tuple[ClaimView, ...]:
    """Each claim at the largest scale that measured it; a claim without evidence is ``unchecked``."""
    known: dict[str, ClaimView] = {
        c.id: ClaimView(c.id, c.text, c.paper or "", c.kind, "unchecked") for c in study.claims
    }
    for scale in scales:
        for claim in scale.claims:
            old = known.get(claim.id)
            if old is None or claim.verdict != "undecided" or claim.effect is not None or not _measured(old):
                known[claim.id] = claim
    return tuple(known.values())


def _measured(claim: ClaimView) -> bool:
    return claim.verdict not in ("unchecked", "undecided") or claim.effect is not None


def _scale(system: Entry, study: type[Study], scale: str, found: Mapping[str, Any], source: str,
           figure: str | None) -> ScaleView:  # fmt: skip
    experiments = {e.__name__: e for e in study.all_experiments()}
    quantities = {c.id: _quantity(c, study) for c in study.claims}
    claims = tuple(claim_view(c, scale, quantities.get(c["id"], "")) for c in found["claims"])
    return ScaleView(
        scale=scale,
        source=source,
        command=_command(system, study, scale, found),
        inputs=tuple((k, number(v)) for k, v in found.get("inputs", {}).items() if k != "scale"),
        environment=_environment(found.get("environment", {})),
        cost=_cost(found.get("records")),
        claims=claims,
        tables=tuple(table_view(n, t, experiments.get(n)) for n, t in found.get("tables", {}).items()),
        figure=figure,
    )


def _quantity(claim: Claim, study: type[Study]) -> str:
    """What a claim's effect is a value of; see :class:`gnomon.study.judge.Verdict`."""
    metrics = {n: m for e in study.all_experiments() for n, m in e.metrics.items()}
    metric = metrics.get(claim.metric or "", Metric())
    unit = f", {metric.unit}" if metric.unit else ""
    match claim.kind:
        case "always":
            return "share of rows"
        case "better" | "worse" | "close" | "ordered":
            if metric.log:
                return "ratio"
            return f"difference{unit}" if claim.factor == 1 else f"margin over {number(claim.factor)} times{unit}"
        case "at_least" | "at_most" | "between":
            return f"{'geometric mean' if metric.log else 'mean'}{unit}"
        case "correlates":
            return "correlation"
        case "beyond":
            return "p"
        case "estimate":
            return f"{claim.metric or 'statistic'}{unit}"
        case kind:
            return kind


def claim_view(claim: Mapping[str, Any], scale: str = "", quantity: str = "") -> ClaimView:
    """A claim as evidence keeps it, for a person."""
    ends = claim.get("interval")
    found, interval = estimate(claim.get("effect"), ends)
    return ClaimView(
        id=claim["id"],
        text=claim["text"],
        paper=claim.get("paper") or "",
        kind=claim.get("kind") or "",
        verdict=claim["verdict"] if claim["verdict"] in VERDICTS else "undecided",
        effect=claim.get("effect"),
        ends=(ends[0], ends[1]) if ends else None,
        found=found,
        interval=interval,
        quantity=quantity,
        level=claim.get("level"),
        unit=claim.get("unit") or "",
        n=claim.get("n") or None,
        marks=tuple(word for word in ("few", "borderline", "timed") if claim.get(word)),
        reason=claim.get("reason") or "",
        parts=tuple(
            PartView(str(p.get("label", "")), *estimate(p.get("effect"), p.get("interval")), p["verdict"], p.get("n"))
            for p in claim.get("parts") or ()
        ),
        looks=len(claim.get("looks") or ()),
        scale=scale,
    )


def table_view(name: str, table: Mapping[str, Any], experiment: Any = None) -> TableView:
    """An experiment's table as evidence keeps it, for a person; the experiment says what it is about."""
    metrics, rows = table["metrics"], table["rows"]
    axes = tuple(dict.fromkeys(axis for row in rows for axis in row["cell"]))
    better = {1: "higher is better", -1: "lower is better"}
    return TableView(
        name=name,
        about=_first_paragraph(vars(experiment).get("__doc__")) if experiment is not None else "",
        unit=table.get("unit", ""),
        axes=axes,
        columns=tuple(ColumnView(n, m.get("unit", ""), better.get(m.get("sign", 0), "")) for n, m in metrics.items()),
        rows=tuple(
            RowView(
                tuple(number(row["cell"].get(axis)) for axis in axes),
                row["contender"],
                tuple(_value(row["metrics"].get(n)) for n in metrics),
                max((v["n"] for v in row["metrics"].values() if v and v.get("n")), default=None),
            )
            for row in rows
        ),
        method=next(iter(experiment.contenders), "") if experiment is not None else "",
    )


def _value(cell: Mapping[str, Any] | None) -> tuple[str, str]:
    return estimate(cell.get("mean"), (cell.get("low"), cell.get("high"))) if cell else ("–", "")


def _environment(found: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    packages = ", ".join(f"{n} {v}" for n, v in (found.get("packages") or {}).items())
    plain = tuple((k, str(v)) for k, v in found.items() if k != "packages" and v not in (None, ""))
    return (*plain, ("packages", packages)) if packages else plain


def _cost(records: Mapping[str, Any] | None) -> str:
    if not records:
        return ""
    return (
        f"{number(records['count'])} records, {duration(records['wall_s'])} of work "
        f"({duration(records['cpu_s'])} of processor time), at most {number(round(records['peak_mb']))} MB"
    )


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 120:
        return f"{number(float(f'{seconds:.3g}'))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _command(system: Entry, study: type[Study], scale: str, found: Mapping[str, Any]) -> str:
    """The line that makes this evidence again: the scale, and each input that differs from the scale's own."""
    fields = study.Inputs.model_fields
    usual = {n: f.default for n, f in fields.items()}
    usual |= {n: v for n, v in study.Inputs.scales.get(scale, {}).items() if n in fields}
    given = {n: v for n, v in found.get("inputs", {}).items() if n in usual and n != "scale"}
    looks = max((c.get("looks") or [] for c in found["claims"]), key=len, default=[])
    if looks and isinstance(looks[0], Mapping):  # the seeds were doubled from the first look on
        given["seeds"] = looks[0].get("seeds", given.get("seeds"))
    words = ["gnomon", "check", system.slug]
    if scale != "laptop":
        words += ["--scale", scale]
    for name, value in given.items():
        if str(value) != str(usual[name]) and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join([*words, *(["--until-decided"] if looks else [])])
