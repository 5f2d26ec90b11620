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


def metrics_tables(evidence: Mapping[str, Any], width: int = 80) -> list[Table]:
    """Contenders x metrics for each experiment of one scale's evidence, in as many tables as fit the width."""
    return [
        table
        for name, found in evidence.get("tables", {}).items()
        for table in _metrics(table_view(name, found), width)
    ]


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


def _metrics(view: TableView, width: int) -> list[Table]:
    """One experiment: what all cells share goes into the title, the rest of a cell is one column, metrics come in turns."""
    varied = [i for i in range(len(view.axes)) if len({row.cell[i] for row in view.rows}) > 1]
    shared = ", ".join(f"{a} {view.rows[0].cell[i]}" for i, a in enumerate(view.axes) if view.rows and i not in varied)
    arrows = {"higher is better": " ↑", "lower is better": " ↓", "": ""}
    titles = [f"{c.name}{arrows[c.better]}" + (f"\n{c.unit}" if c.unit else "") for c in view.columns]
    cells = ["  ".join(row.cell[i] for i in varied) for row in view.rows]
    lead = ["  ".join(view.axes[i] for i in varied)] if varied else []
    texts = [["\n".join(filter(None, value)) for value in row.values] for row in view.rows]
    wide = [_wide(titles[j], *(row[j] for row in texts)) for j in range(len(titles))]
    taken = _wide("contender", *(row.contender for row in view.rows)) + (_wide(*lead, *cells) if varied else 0) + 1
    tables: list[Table] = []
    for part in _parts(wide, max(width - taken, 1)):
        name = view.name + (f" ({shared})" if shared else "") + (", continued" if tables else "")
        table = Table(*(escape(t) for t in (*lead, "contender", *(titles[j] for j in part))),
                      title=Text(name), title_justify="left")  # fmt: skip
        last = None
        for row, cell, text in zip(view.rows, cells, texts, strict=True):
            if last is not None and row.cell != last:
                table.add_section()
            first = [] if not varied else ["" if row.cell == last else cell]
            table.add_row(*(Text(t) for t in (*first, row.contender, *(text[j] for j in part))))
            last = row.cell
        tables.append(table)
    return tables


def _wide(*texts: str) -> int:
    """Columns of the terminal that texts of several lines take, with the frame."""
    return 3 + max((len(line) for text in texts for line in text.split("\n")), default=0)


def _parts(wide: Sequence[int], room: int) -> list[list[int]]:
    """The columns in their order, in as few groups as fit; one too wide for the room stands alone."""
    parts: list[list[int]] = [[]]
    for j, w in enumerate(wide):
        if parts[-1] and sum(wide[i] for i in parts[-1]) + w > room:
            parts.append([])
        parts[-1].append(j)
    return parts
