"""The view of a system, and what a check found, on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from gnomon.study.view import VERDICTS, ClaimView, SystemView, TableView, claim_view, table_view

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {"holds": "green", "fails": "red", "undecided": "yellow", "reported": "default", "unchecked": "dim"}


def claims_table(evidence: Mapping[str, Any], marks: Mapping[str, str] | None = None) -> Table:
    """The claims of one scale's evidence with what was found and the verdict; ``marks`` is rich markup for verdicts."""
    return _claims([claim_view(c) for c in evidence["claims"]], marks)


def metrics_tables(evidence: Mapping[str, Any]) -> list[Table]:
    """One table of contenders x metrics for each experiment of one scale's evidence."""
    return [_metrics(table_view(name, table)) for name, table in evidence.get("tables", {}).items()]


def print_view(view: SystemView, console: Console) -> None:
    """Question, method, claims with their verdicts, departures, how to cite, and the lines to run."""
    console.print(Text(view.title, style="bold"))
    console.print(Text(f"{view.area}/{view.slug}", style="dim"))
    console.print(Text(view.summary))
    for heading, text in (("Question", view.question), ("Method", view.method), ("Paper", view.paper)):
        if text:
            _section(console, heading, [text])
    if view.claims:
        console.print(Text("\nClaims", style="bold"))
        console.print(_claims(view.claims, None, scales=len(view.scales) > 1))
    if view.departures:
        _section(console, "Where it departs from the paper", [f"- {d}" for d in view.departures])
    for heading, text, language in (
        ("Run it", view.command, "bash"),
        ("Check it", view.check, "bash"),
        ("Example", view.example, "python"),
        ("Cite the paper", view.bibtex, "bibtex"),
    ):
        if text:
            console.print(Text(f"\n{heading}", style="bold"))
            console.print(Padding(Syntax(text, language, theme="ansi_light", background_color="default"), (0, 0, 0, 2)))


def _section(console: Console, heading: str, lines: Sequence[str]) -> None:
    console.print(Text(f"\n{heading}", style="bold"))
    for line in lines:
        console.print(Padding(Text(textwrap.dedent(line).strip()), (0, 0, 0, 2)))


def _claims(claims: Sequence[ClaimView], marks: Mapping[str, str] | None, scales: bool = False) -> Table:
    table = Table("claim", "paper", "found", "n", "verdict")
    for claim in claims:
        verdict = (marks or {}).get(claim.verdict) or f"[{STYLES[claim.verdict]}]{VERDICTS[claim.verdict]}[/]"
        notes = [*claim.marks, *([claim.scale] if scales and claim.scale else [])]
        text = Text(claim.text)
        if claim.reason:
            text.append(f"\n{claim.reason}", style="dim")
        table.add_row(
            text,
            Text(claim.paper),
            Text(" ".join(filter(None, (claim.found, claim.interval)))),
            "" if claim.n is None else str(claim.n),
            verdict + (f"\n[dim]{escape(', '.join(notes))}[/]" if notes else ""),
        )
    return table


def _metrics(view: TableView) -> Table:
    arrows = {"higher is better": " ↑", "lower is better": " ↓", "": ""}
    titles = [f"{c.name}{f' ({c.unit})' if c.unit else ''}{arrows[c.better]}" for c in view.columns]
    table = Table(*(escape(t) for t in (*view.axes, "contender", *titles)), title=Text(view.name), title_justify="left")
    last = None
    for row in view.rows:
        if last is not None and row.cell != last:
            table.add_section()
        last = row.cell
        table.add_row(*(Text(t) for t in (*row.cell, row.contender)),
                      *(Text(" ".join(filter(None, value))) for value in row.values))  # fmt: skip
    return table
