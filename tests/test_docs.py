"""The documentation is made from the same view as the report, and nothing hostile in it is read as markup."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gnomon.study.view import view
from tests.study.exhibits import HOSTILE, exhibits

pytest.importorskip("sphinx", reason="the docs extra is not installed")
DOCS = Path(__file__).resolve().parents[1] / "docs"
BUILD = """
import json, sys
sys.path[:0] = [sys.argv[1] + "/_ext", sys.argv[1] + "/.."]
from pathlib import Path
from tests.study.exhibits import exhibits
import systems
from sphinx.application import Sphinx

source, evidence, out = (Path(a) for a in sys.argv[2:])
systems.catalog.systems = lambda area=None: exhibits(evidence)
systems.reference = lambda system: []
systems.BENCHMARKS = evidence / "benchmarks"
(systems.BENCHMARKS / "surgery").mkdir(parents=True)
rows = [{"name": "ours", "value": 0.11, "unit": "s"}, {"name": "<b>peer</b>", "value": 0.22, "unit": "s", "ratio": 2.0}]
(systems.BENCHMARKS / "surgery/boundary.json").write_text(json.dumps(rows))
app = Sphinx(source, sys.argv[1], out, out / "doctrees", "html", warningiserror=True, status=None)
app.build()
sys.exit(app.statuscode)
"""


class Page(HTMLParser):
    """The tags of a page, the verdict of each claim, and all its text."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags, self.verdicts, self.text, self.sources = [], [], "", []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        if "data-claim" in found:
            self.verdicts.append((found["data-claim"], found["data-verdict"]))
        self.sources += [v for k, v in found.items() if k in ("src", "href") and v]
        assert not any(k.startswith("on") for k in found)

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site with the made-up systems in the place of the real ones, built with warnings as errors."""
    room = tmp_path_factory.mktemp("docs")
    (room / "source").mkdir()
    (room / "source/index.md").write_text("# Test\n\n```{toctree}\nsystems/index\n```\n")
    command = [sys.executable, "-c", BUILD, DOCS, room / "source", room / "evidence", room / "html"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0, done.stderr
    return room / "html", [view(e) for e in exhibits(room / "again")]


def test_a_page_shows_what_the_view_says(site):
    folder, views = site
    for v in views:
        page = Page(folder / f"systems/{v.area}/{v.slug}.html")
        expected = [(c.id, c.verdict) for c in v.claims]
        if len(v.scales) > 1:
            expected += [(c.id, c.verdict) for s in v.scales for c in s.claims]
        assert page.verdicts == expected
        for words in (v.title, v.question, v.bibtex, v.command, *(s.command for s in v.scales)):
            assert " ".join(words.replace("`", "").split()) in " ".join(page.text.split())


def test_nothing_hostile_becomes_markup(site):
    folder, _ = site
    for path in folder.rglob("*.html"):
        page = Page(path)
        assert "alert(" not in "".join(page.sources)
        assert "x" not in page.sources
        assert "<script>alert" not in path.read_text().replace("&lt;script&gt;", "")
    assert HOSTILE in Page(folder / "systems/interpretability/hostile.html").text


def test_figures_and_benchmarks_are_there(site):
    folder, _ = site
    page = (folder / "systems/surgery/boundary.html").read_text()
    assert "boundary.laptop.svg" in page
    assert "one line for each contender" in page
    assert "&lt;b&gt;peer&lt;/b&gt;" in page
    assert (folder / "_images/boundary.laptop.svg").is_file()


def test_the_real_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(DOCS), str(tmp_path / "html")],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "html/systems/surgery/ghosted-layers.html").is_file()
