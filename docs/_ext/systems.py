"""Writes ``docs/systems/`` before the sources are read: a page per area, and one per system.

A system's page shows the same view as ``gnomon show`` and the report, with the same templates, so the three agree.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shutil
from pathlib import Path
from typing import Any

from markupsafe import Markup
from sphinx.application import Sphinx

from gnomon import catalog
from gnomon.study import report
from gnomon.study.view import SystemView, number

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "results"
BENCHMARK = """
<div class="g-scroll" role="region" tabindex="0" aria-label="Benchmark"><table class="g-table g-metrics">
<thead><tr>{% for c in columns %}<th scope="col">{{ c }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}
<tr>{% for c in columns %}<td>{{ row.get(c, "") | number }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table></div>
"""


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True}


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what a class has from elsewhere (scikit-learn's metadata routing, pydantic's configuration)."""
    nested = what == "class" and inspect.isclass(obj)
    elsewhere = not str(getattr(obj, "__module__", None) or "gnomon").startswith("gnomon")
    return True if nested or elsewhere or name == "model_config" else None


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "systems"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    areas = {}
    for system in catalog.systems():
        areas.setdefault(system.area, []).append(system)
    pages = "\n".join(areas)
    listed = f"```{{toctree}}\n:maxdepth: 2\n\n{pages}\n```" if areas else "No system has been added yet."
    (folder / "index.md").write_text(f"# Systems\n\n{listed}\n", encoding="utf-8")
    for area, systems in areas.items():
        (folder / area).mkdir()
        views = [(system, report.view(system)) for system in systems]
        (folder / f"{area}.md").write_text(area_page(area, [v for _, v in views]), encoding="utf-8")
        for system, view in views:
            page = system_page(system, view, folder / area)
            (folder / area / f"{view.slug}.md").write_text(page, encoding="utf-8")


# --- pages ------------------------------------------------------------------------------------------------------------


def area_page(area: str, views: list[SystemView]) -> str:
    lines = [f"# {area.capitalize()}", "", plain(catalog.AREAS[area]) + ".", ""]
    for v in views:
        counts = ", ".join(f"{n} {verdict}" for verdict, n in v.counts.items()) or "no claims"
        lines += [f"[{plain(v.title)}]({area}/{v.slug}.md)", f": {plain(v.summary)} *({counts})*", ""]
    entries = "\n".join(f"{area}/{v.slug}" for v in views)
    return "\n".join([*lines, f"```{{toctree}}\n:hidden:\n\n{entries}\n```", ""])


def system_page(system: catalog.System, v: SystemView, folder: Path) -> str:
    parts = report.environment().get_template("parts.html.j2").module

    def html(name: str, fragment: Markup) -> str:
        """A fragment in a file of its own, so that nothing in it is read as Markdown."""
        (folder / f"{v.slug}.{name}.html").write_text(str(fragment), encoding="utf-8")
        return f"```{{raw}} html\n:file: {v.slug}.{name}.html\n```"

    page = [f"# {plain(v.title)}", autodoc("module", system.module, ":no-index:")]
    if v.paper:
        page.append(f"Paper: [{plain(v.paper)}]({v.paper_url})" if v.paper_url else f"Paper: {plain(v.paper)}")
    for heading, text in (("Question", v.question), ("Method in brief", v.method)):
        if text:
            page += [f"## {heading}", html(heading.split()[0].lower(), report.prose(text))]
    if v.example or v.command:
        page.append("## Use it")
    if v.example:
        page.append(fence(v.example, "python"))
    if v.command:
        page += ["On the command line:", fence(v.command, "shell")]
    page += ["## Claims", html("marks", parts.marks(v))]
    if v.claims:
        page.append(html("claims", parts.claims(v.claims, "Claims and verdicts", len(v.scales) > 1)))
    page.append(fence(v.check, "shell"))
    for s in v.scales:
        page.append(f"## At {s.scale} scale")
        if s.figure:
            page.append(figure(v, s.scale, s.figure, folder))
        for i, table in enumerate(s.tables):
            page += [f"### {plain(table.name)}", html(f"{s.scale}-{i}", parts.experiment(table))]
        if len(v.scales) > 1:
            page.append(html(f"{s.scale}-claims", parts.claims_at(s)))
        page.append(html(f"{s.scale}-conditions", parts.conditions(s)))
    if v.departures:
        page += ["## Where it departs from the paper", html("departures", parts.departures(v))]
    if bench := benchmark(v):
        page += ["## Speed", html("benchmark", bench)]
    page += ["## Reference", *reference(system)]
    if v.bibtex:
        page += ["## How to cite the paper", fence(v.bibtex, "text")]
    return "\n\n".join(page) + "\n"


def figure(v: SystemView, scale: str, svg: str, folder: Path) -> str:
    alt = report.figure_alt(v, scale)
    if (drawn := report.safe_svg(svg, v.title, alt)) is None:
        return ""
    (folder / f"{v.slug}.{scale}.svg").write_text(drawn, encoding="utf-8")
    options = f":alt: {' '.join(alt.split())}\n:class: g-figure"
    return f"```{{figure}} {v.slug}.{scale}.svg\n{options}\n\n{plain(v.figure_about)}\n```"


def reference(system: catalog.System) -> list[str]:
    """The public names, as one imports them: from the area."""
    module, area = importlib.import_module(system.module), importlib.import_module(f"gnomon.{system.area}")
    found = []
    for name in module.__all__:
        home = area if name in area.__all__ else module
        thing = getattr(home, name)
        kind = "class" if inspect.isclass(thing) else "function" if callable(thing) else "data"
        options = [":members:", ":show-inheritance:"] if kind == "class" else []
        found.append(autodoc(kind, f"{home.__name__}::{name}", *options))
    return found or ["It has no public names."]


def autodoc(kind: str, name: str, *options: str) -> str:
    """Docstrings are reStructuredText, wherever they are shown."""
    return "\n".join(["```{eval-rst}", f".. auto{kind}:: {name}", *(f"   {o}" for o in options), "```"])


def benchmark(v: SystemView) -> Markup | None:
    """What ``make bench`` measured: rows of plain values, this implementation beside its peers."""
    path = BENCHMARKS / v.area / f"{v.name}.json"
    if not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = found["rows"] if isinstance(found, dict) else found
    columns = list(dict.fromkeys(c for row in rows for c in row))
    return Markup(report.environment().from_string(BENCHMARK).render(columns=columns, rows=rows, number=number))


# --- text in Markdown -------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(text.split()))


def fence(text: str, language: str) -> str:
    """A block of code; the fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{language}\n{text}\n{marks}"
