"""The report: one folder that opens in any browser, with no network.

Everything shown is escaped by the templates; figures are separate files that the pages include as images, where no
script of theirs could run, and a content security policy forbids whatever is not a file of the folder.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import shutil
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gnomon.study.console import claims_table, metrics_tables
from gnomon.study.view import LEVEL, VERDICTS, SystemView, duration, expected_wrong, number, view

__all__ = [
    "SystemView",
    "claims_table",
    "environment",
    "figure_alt",
    "metrics_tables",
    "safe_svg",
    "view",
    "write_report",
]

log = logging.getLogger(__name__)

TEMPLATES = Path(__file__).with_name("templates")
ASSETS = ("parts.css", "report.css", "report.js", "gnomon.svg")
MARKER = "gnomon-report.json"

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
DRAWING = frozenset(
    """
    svg g defs title desc style path rect circle ellipse line polyline polygon text tspan textPath use symbol marker
    clipPath mask pattern linearGradient radialGradient stop image filter feGaussianBlur feOffset feBlend feColorMatrix
    feMerge feMergeNode feFlood feComposite
    """.split()  # noqa: SIM905
)


@functools.lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates, with everything escaped; the documentation uses their parts too."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"prose": prose, "number": number, "duration": duration}
    made.globals |= {
        "VERDICTS": VERDICTS,
        "LEVEL": LEVEL,
        "figure_alt": figure_alt,
        "gnomon_version": version("gnomon"),
    }
    return made


def prose(text: str) -> Markup:
    """Plain text as HTML: blank lines part paragraphs, backticks mark code; all else is shown as it is."""
    paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", text.strip()) if p.strip()]
    shown = (re.sub(r"(`+)(.+?)\1", r"<code>\2</code>", str(escape(p))) for p in paragraphs)
    return Markup("\n".join(f"<p>{p}</p>" for p in shown))


def figure_alt(system: SystemView, scale: str) -> str:
    """What a person who cannot see the figure is told."""
    about = system.figure_about.rstrip(".") or f"What the study of {system.title} found"
    return f"{about}, at {scale} scale. The numbers are in the tables of this page."


# --- figures ----------------------------------------------------------------------------------------------------------


def safe_svg(text: str, title: str, description: str) -> str | None:
    """A figure that only draws, with a title and a description; None when it is not an SVG.

    Scripts, foreign content, event attributes and references to anything outside the file are left out.
    """
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        log.warning("a figure is left out, it is not well-formed SVG: %s", error)
        return None
    if root.tag != f"{{{SVG}}}svg":
        log.warning("a figure is left out, its root is %s", root.tag)
        return None
    _clean(root)
    for child in root.findall(f"{{{SVG}}}title") + root.findall(f"{{{SVG}}}desc"):
        root.remove(child)
    for place, (tag, words) in enumerate((("title", title), ("desc", description))):
        made = ET.Element(f"{{{SVG}}}{tag}", {"id": f"gnomon-{tag}"})
        made.text = words
        root.insert(place, made)
    root.set("role", "img")
    root.set("aria-labelledby", "gnomon-title gnomon-desc")
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _clean(node: ET.Element) -> None:
    for name, value in list(node.attrib.items()):
        plain = name.rsplit("}", 1)[-1].lower()
        if (
            plain.startswith("on")
            or (plain == "href" and not value.startswith(("#", "data:image/png;")))
            or _outside(value)
        ):
            del node.attrib[name]
    for child in list(node):
        tag = child.tag if isinstance(child.tag, str) else ""
        if tag.removeprefix(f"{{{SVG}}}") not in DRAWING:
            node.remove(child)
        else:
            if tag == f"{{{SVG}}}style" and (_outside(child.text or "") or "@import" in (child.text or "").lower()):
                child.text = ""
            _clean(child)


def _outside(value: str) -> bool:
    """Whether a presentation value or a style refers to another file."""
    return any(not target.startswith("#") for target in re.findall(r"url\(\s*['\"]?([^'\")]*)", value, re.IGNORECASE))


# --- the folder -------------------------------------------------------------------------------------------------------


def write_report(views: Sequence[SystemView], directory: Path | str, *, force: bool = False) -> Path:
    """Write the report, whole or not at all.

    Parameters
    ----------
    views : sequence of SystemView
        From :func:`view`.
    directory : path
        An earlier report there is replaced, and so is an empty folder.
    force : bool
        Write where a folder with anything else in it is; that folder is kept beside it, as ``NAME.old``.

    Returns
    -------
    Path
        The report's ``index.html``.

    Raises
    ------
    FileExistsError
        When ``directory`` is a file, or a folder with anything in it that is not an earlier report's, and ``force`` is
        False.
    ValueError
        When an area or a name is no plain identifier (they become file names), when two systems share one, or when
        ``directory`` is the current folder or above it.
    """
    target = Path(directory).expanduser().resolve()
    ours = _is_replaceable(target)
    if not ours and not force:
        raise FileExistsError(f"{directory} holds something else than a gnomon report; choose another folder, or force")
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{directory} is a file; give a folder")
    if Path.cwd().is_relative_to(target):
        raise ValueError(f"{directory} is the folder you are in, or above it; choose another")
    target.parent.mkdir(parents=True, exist_ok=True)
    room = Path(tempfile.mkdtemp(dir=target.parent, prefix=".gnomon-report-"))
    try:
        fresh = room / "new"
        fresh.mkdir()
        _write_pages(views, fresh)
        if target.exists():
            aside = room / "old" if ours else _free(target)
            os.replace(target, aside)
            try:
                os.replace(fresh, target)
            except OSError:
                os.replace(aside, target)
                raise
        else:
            os.replace(fresh, target)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    return target / "index.html"


def _is_replaceable(target: Path) -> bool:
    """Whether nothing is there, or an earlier report with no file that a person added."""
    if not target.exists():
        return True
    if not target.is_dir():
        return False
    there = {p.relative_to(target).as_posix() for p in target.rglob("*") if not p.is_dir() or p.is_symlink()}
    try:
        listed = set(json.loads((target / MARKER).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        listed = set()
    return there <= listed


def _free(target: Path) -> Path:
    """The first of NAME.old, NAME.old-2, ... that is not taken."""
    candidate, count = target.with_name(f"{target.name}.old"), 1
    while candidate.exists():
        count += 1
        candidate = target.with_name(f"{target.name}.old-{count}")
    return candidate


def _write_pages(views: Sequence[SystemView], folder: Path) -> None:
    views = sorted(views, key=lambda v: (v.area, v.title.lower(), v.slug))
    for v in views:
        for what, value in (("area", v.area), ("name", v.slug)):
            if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", value):
                raise ValueError(f"{what}: {value!r} cannot be a file name; letters a-z, digits, - and _ are accepted")
    if len({(v.area, v.slug) for v in views}) < len(views):
        raise ValueError("two systems have the same area and name")

    assets = folder / "assets"
    assets.mkdir()
    for name in ASSETS:
        shutil.copyfile(TEMPLATES / name, assets / name)
    page = environment().get_template("system.html.j2")
    for place, v in enumerate(views):
        (folder / v.area).mkdir(exist_ok=True)
        figures = {}
        for scale in v.scales:
            alt = figure_alt(v, scale.scale)
            if scale.figure and (drawn := safe_svg(scale.figure, v.title, alt)):
                figures[scale.scale] = f"{v.slug}.{scale.scale}.svg"
                (folder / v.area / figures[scale.scale]).write_text(drawn, encoding="utf-8")
        near = {
            "before": views[place - 1] if place else None,
            "after": views[place + 1] if place + 1 < len(views) else None,
        }
        text = page.render(system=v, figures=figures, root="../", **near)
        (folder / v.area / f"{v.slug}.html").write_text(text, encoding="utf-8")

    judged, wrong = expected_wrong(views)
    totals = {verdict: sum(v.counts.get(verdict, 0) for v in views) for verdict in VERDICTS}
    areas = [(area, list(group)) for area, group in groupby(views, key=lambda v: v.area)]
    index = environment().get_template("index.html.j2")
    (folder / "index.html").write_text(
        index.render(areas=areas, views=views, totals=totals, judged=judged, wrong=wrong, root=""), encoding="utf-8"
    )
    data = [v.as_dict() for v in views]
    (folder / "evidence.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    marker = {"gnomon": version("gnomon"), "files": [*files, MARKER]}
    (folder / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
