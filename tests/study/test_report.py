"""The view that all pages share, and the folder that the report writes: whole, escaped, never over a person's files."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gnomon.study import report
from gnomon.study.check import check
from gnomon.study.runner import Running
from gnomon.study.view import VERDICTS, estimate, expected_wrong, number, view
from tests.study.exhibits import FIGURE, HOSTILE, HOSTILE_FIGURE, Boundary, boundary_evidence, exhibits, scale
from tests.study.toy import ToySystem


@pytest.fixture
def views(tmp_path):
    return [view(e) for e in exhibits(tmp_path / "evidence")]


@pytest.fixture
def boundary(views):
    return views[0]


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "shown"), [
    (None, "–"), (True, "yes"), (0.0, "0"), (3, "3"), (-12345, "−12,345"), (3.14159, "3.142"), (0.5, "0.5"),
    (1234.56, "1,235"), (1.234e-7, "1.23 × 10⁻⁷"), (-2.5e8, "−2.50 × 10⁸"), (math.inf, "∞"), (math.nan, "undefined"),
    ("a", "a"),
])  # fmt: skip
def test_numbers(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(("value", "ends", "shown"), [
    (3.14159, [3.1, 3.2], ("3.142", "[3.100, 3.200]")),
    (0.143, [0.101, 0.185], ("0.143", "[0.101, 0.185]")),
    (0.0081, [0.0007, 0.0152], ("0.0081", "[0.0007, 0.0152]")),
    (812.3, [640.0, 990.0], ("812", "[640, 990]")),
    (1.0, [1.0, 1.0], ("1", "[1, 1]")),
    (1.0, None, ("1", "")),
    (1.0, [None, None], ("1", "")),
    (1.0, [0.5, None], ("1", "[0.5, ∞]")),
    (1.0, [-math.inf, 1.5], ("1", "[−∞, 1.5]")),
])  # fmt: skip
def test_an_estimate_is_as_precise_as_its_interval(value, ends, shown):
    assert estimate(value, ends) == shown


@given(st.floats(-1e5, 1e5), st.floats(1e-4, 1e4))
def test_rounding_an_estimate_stays_within_a_twentieth_of_its_half_width(middle, half):
    text, ends = estimate(middle, (middle - half, middle + half))
    if "×" not in text + ends:
        read = float(text.replace(",", "").replace("−", "-"))
        assert abs(read - middle) <= 0.05 * half + 1e-12


# --- the view ---------------------------------------------------------------------------------------------------------


def test_a_claim_is_shown_at_the_largest_scale_that_measured_it(boundary):
    found = {c.id: (c.verdict, c.scale) for c in boundary.claims}
    assert found == {
        "recovers-better": ("holds", "extended"),
        "identity": ("holds", "laptop"),
        "as-fast": ("holds", "laptop"),
        "agrees": ("fails", "laptop"),
        "deep": ("fails", "extended"),
        "plain": ("reported", "laptop"),
    }
    assert boundary.counts == {"holds": 3, "fails": 2, "reported": 1}


def test_each_scale_keeps_the_verdicts_of_its_evidence(boundary):
    evidence = boundary_evidence()["scales"]
    assert {s.scale: [(c.id, c.verdict) for c in s.claims] for s in boundary.scales} == {
        name: [(c["id"], c["verdict"]) for c in e["claims"]] for name, e in evidence.items()
    }


def test_what_a_check_found_is_what_the_view_shows(tmp_path):
    """With the runner and the judge in front, not evidence made up here."""
    system = ToySystem(tmp_path / "recorded")
    outcome = check(system, running=Running(jobs=1, results=tmp_path / "results"))
    shown = view(system, tmp_path / "results")
    assert [(c.id, c.verdict) for c in shown.claims] == [(v.id, v.verdict) for v in outcome.verdicts]
    assert shown.claims[1].quantity == "ratio"
    assert shown.scales[0].command == "gnomon check toy"
    assert {t.name for t in shown.scales[0].tables} == {"Location", "Speed"}
    text = report.write_report([shown], tmp_path / "out").parent.joinpath("toys/toy.html").read_text()
    assert text.count('data-claim="') == len(outcome.verdicts)


def test_what_a_claims_number_is_is_said(boundary):
    assert {c.id: c.quantity for c in boundary.claims} == {
        "recovers-better": "difference, nats", "identity": "share of rows", "as-fast": "difference, s",
        "agrees": "difference", "deep": "mean, nats", "plain": "mean",
    }  # fmt: skip


def test_without_evidence_every_claim_is_unchecked(views):
    assert views[2].scales == ()
    assert views[2].counts == {"unchecked": 1}


def test_own_results_take_the_place_of_the_recorded_ones_scale_by_scale(tmp_path):
    system = exhibits(tmp_path / "evidence")[0]
    mine = boundary_evidence()
    del mine["scales"]["extended"]
    mine["scales"]["laptop"]["claims"][0]["verdict"] = "fails"
    system.record(mine, tmp_path / "results")
    shown = view(system, tmp_path / "results")
    assert [(s.scale, s.source) for s in shown.scales] == [("laptop", "this machine"), ("extended", "recorded")]
    assert shown.scales[0].claims[0].verdict == "fails"


def test_the_command_names_what_differs_from_the_scale(tmp_path):
    system = exhibits(tmp_path)[0]
    evidence = boundary_evidence()
    for claim in evidence["scales"]["extended"]["claims"]:
        claim["looks"] = [{"seeds": 6}, {"seeds": 12}]
    commands = [s.command for s in view(system.record(evidence)).scales]
    assert commands == ["gnomon check boundary", "gnomon check boundary --scale extended --seeds 6 --until-decided"]


def test_the_table_has_every_cell_and_contender(boundary):
    (table,) = boundary.scales[0].tables
    assert table.about == "Does an unconstrained operator recover a shortened model better than constrained ones?"
    assert table.axes == ("n",)
    assert table.method == "ghosted"
    assert [c.better for c in table.columns] == ["lower is better", "higher is better", "lower is better"]
    assert [len(group) for group in table.groups] == [4, 4, 4]
    assert table.rows[0].values[0] == ("3.100", "[3.059, 3.143]")


def test_wrong_verdicts_are_expected_among_those_that_rest_on_an_interval(views):
    assert expected_wrong(views) == (5, pytest.approx(0.25))  # the identity is counted, not estimated


def test_as_dict_is_json_and_holds_no_figure(boundary):
    text = json.dumps(boundary.as_dict())
    assert "<svg" not in text
    assert json.loads(text)["counts"] == boundary.counts


def test_a_verdict_that_is_unknown_is_not_trusted(tmp_path):
    system = exhibits(tmp_path)[0]
    evidence = boundary_evidence()
    evidence["scales"]["laptop"]["claims"][3]["verdict"] = "<b>proven</b>"
    claims = view(system.record(evidence)).scales[0].claims
    assert all(c.verdict in VERDICTS for c in claims)


# --- on a terminal ----------------------------------------------------------------------------------------------------


def printed(*things, width=200) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, no_color=True)
    for thing in things:
        thing.to_console(console) if hasattr(thing, "to_console") else console.print(thing)
    return out.getvalue()


def test_show_says_what_the_page_says(boundary):
    text = printed(boundary)
    for words in (boundary.title, "Question", boundary.question, "Theorem 1", "0.143 [0.101, 0.185]", "departs",
                  "gnomon run boundary", "@inproceedings"):  # fmt: skip
        assert words in text
    for claim in boundary.claims:
        assert claim.verdict in text
        assert claim.text[:30] in text


def test_brackets_in_a_name_are_no_markup(views):
    claim = {**boundary_evidence()["scales"]["laptop"]["claims"][0], "text": "[red]x[/red]", "paper": "[/]"}
    value = {"mean": 1.0, "low": None, "high": None}
    row = {"cell": {"[u]": "[s]"}, "contender": "[blink]c", "metrics": {"[b]m": value}}
    table = {"unit": "", "metrics": {"[b]m": {"unit": "[i]", "sign": 0}}, "rows": [row]}
    evidence = scale([claim], {"[bold]T": table})
    text = printed(report.claims_table(evidence), *report.metrics_tables(evidence), *views)
    for words in ("[red]x[/red]", "[bold]T", "[b]m", "[i]", "[u]", "[s]", "[blink]c"):
        assert words in text


def test_a_wide_table_is_told_in_parts_that_fit():
    metrics = {f"metric_{j}": {"unit": "nats", "sign": -1} for j in range(12)}
    values = {name: {"mean": 1.25, "low": 1.0, "high": 1.5} for name in metrics}
    rows = [{"cell": {"data": "digits", "n": n}, "contender": c, "metrics": values} for n in (10, 20) for c in "ab"]
    parts = report.metrics_tables({"tables": {"T": {"unit": "seed", "metrics": metrics, "rows": rows}}}, 80)
    text = printed(*parts, width=80)
    assert len(parts) > 1
    assert "T (data digits), continued" in text
    for name in metrics:
        assert f"{name} ↓" in text  # no heading is cut
    assert "…" not in text


# --- the folder -------------------------------------------------------------------------------------------------------


def tree(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_the_report_is_a_folder_of_files_that_stand_alone(views, tmp_path):
    index = report.write_report(views, tmp_path / "out")
    assert index == tmp_path / "out/index.html"
    found = tree(tmp_path / "out")
    assert {"index.html", "surgery/boundary.html", "surgery/boundary.laptop.svg", "sampling/sketches.html",
            "assets/report.js", "evidence.json", report.MARKER} <= set(found)  # fmt: skip
    for page in (tmp_path / "out").rglob("*.html"):
        text = page.read_text()
        assert "Content-Security-Policy" in text
        assert "default-src 'none'" in text
        assert "<style" not in text
        assert " style=" not in text
        assert text.count("<script") == text.count('<script src="') == 1
        assert text.count("<h1") == 1
    assert list(tmp_path.glob(".gnomon*")) == []


def test_nothing_hostile_becomes_markup(views, tmp_path):
    report.write_report(views, tmp_path / "out")
    for page in (tmp_path / "out").rglob("*.html"):
        text = page.read_text()
        assert "<script>" not in text
        assert "<img src=x" not in text
    hostile = (tmp_path / "out/interpretability/hostile.html").read_text()
    assert "{{ 7*7 }}" in hostile  # a template in a name is not evaluated
    assert hostile.count("&lt;script&gt;") >= 15


def test_a_report_is_replaced_and_a_stale_page_goes_with_it(views, tmp_path):
    report.write_report(views, tmp_path / "out")
    report.write_report(views[:1], tmp_path / "out")
    assert not (tmp_path / "out/sampling").exists()
    assert [p.name for p in tmp_path.iterdir() if p.name != "evidence"] == ["out"]


def test_an_empty_folder_and_missing_parents_are_fine(views, tmp_path):
    (tmp_path / "empty").mkdir()
    assert report.write_report(views, tmp_path / "empty").is_file()
    assert report.write_report(views, tmp_path / "a/b/c").is_file()
    assert report.write_report([], tmp_path / "none").is_file()


@pytest.mark.parametrize("mine", ["notes.txt", "surgery/notes.txt"])
def test_a_folder_with_a_persons_files_is_refused(views, tmp_path, mine):
    out = tmp_path / "out"
    if "/" in mine:
        report.write_report(views, out)
    out.mkdir(exist_ok=True)
    (out / mine).write_text("precious")
    before = tree(out)
    with pytest.raises(FileExistsError, match="something else than a gnomon report"):
        report.write_report(views, out)
    assert tree(out) == before


def test_force_keeps_what_was_there(views, tmp_path):
    for _ in range(2):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out/notes.txt").write_text("precious")
        report.write_report(views, tmp_path / "out", force=True)
    assert (tmp_path / "out.old/notes.txt").read_text() == "precious"
    assert (tmp_path / "out.old-2/notes.txt").read_text() == "precious"
    assert not (tmp_path / "out/notes.txt").exists()


def test_a_file_and_the_current_folder_are_refused(views, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    for force in (False, True):
        with pytest.raises(FileExistsError):
            report.write_report(views, tmp_path / "file", force=force)
    assert (tmp_path / "file").read_text() == "x"
    (tmp_path / "here/below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here/below")
    with pytest.raises(ValueError, match="folder you are in"):
        report.write_report(views, tmp_path / "here", force=True)


def test_a_failure_half_way_leaves_the_earlier_report(views, tmp_path, monkeypatch):
    report.write_report(views, tmp_path / "out")
    before = {p: (tmp_path / "out" / p).read_bytes() for p in tree(tmp_path / "out")}
    monkeypatch.setattr(report.json, "dumps", lambda *a, **k: (_ for _ in ()).throw(OSError("no space left on device")))
    with pytest.raises(OSError, match="no space"):
        report.write_report(views[:1], tmp_path / "out")
    assert {p: (tmp_path / "out" / p).read_bytes() for p in tree(tmp_path / "out")} == before
    assert list(tmp_path.glob(".gnomon*")) == []


@pytest.mark.parametrize(("field", "value"), [("slug", "../../etc"), ("area", "a/b"), ("slug", ""), ("area", "<b>")])
def test_names_that_cannot_be_files_are_refused(boundary, tmp_path, field, value):
    with pytest.raises(ValueError, match="cannot be a file name"):
        report.write_report([dataclasses.replace(boundary, **{field: value})], tmp_path / "out")
    with pytest.raises(ValueError, match="same area and name"):
        report.write_report([boundary, boundary], tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- figures ----------------------------------------------------------------------------------------------------------


def test_a_figure_gets_a_title_and_a_description():
    root = ET.fromstring(report.safe_svg(FIGURE, "A & B", "what <it> shows"))
    assert root.get("role") == "img"
    named = {n: root.find(f"*[@id='{n}']").text for n in root.get("aria-labelledby").split()}
    assert list(named.values()) == ["A & B", "what <it> shows"]
    assert len(root.findall(".//{*}use")) == 2
    assert all(u.get(f"{{{report.XLINK}}}href") == "#dot" for u in root.findall(".//{*}use"))


def test_a_figure_only_draws():
    drawn = report.safe_svg(HOSTILE_FIGURE, HOSTILE, HOSTILE)
    root = ET.fromstring(drawn)
    tags = {e.tag.split("}")[-1] for e in root.iter()}
    assert tags.isdisjoint({"script", "foreignObject", "a", "body"})
    assert "example.org" not in drawn
    assert not any(a.lower().startswith("on") for e in root.iter() for a in e.attrib)


@pytest.mark.parametrize("bad", ["", "not xml", "<svg>", "<html xmlns='http://www.w3.org/1999/xhtml'/>"])
def test_what_is_no_figure_is_left_out(bad, caplog):
    assert report.safe_svg(bad, "t", "d") is None
    assert "left out" in caplog.text


def test_a_matplotlib_figure_survives():
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    axes.errorbar([1, 2], [3, 4], yerr=[0.1, 0.2], label="$x^2$")
    axes.imshow([[0, 1], [2, 3]])
    axes.legend()
    out = io.StringIO()
    figure.savefig(out, format="svg")
    before, after = ET.fromstring(out.getvalue()), ET.fromstring(report.safe_svg(out.getvalue(), "t", "d"))
    for tag in ("path", "use", "text", "image", "clipPath", "style"):
        assert len(before.findall(f".//{{*}}{tag}")) == len(after.findall(f".//{{*}}{tag}"))
    assert all(i.get(f"{{{report.XLINK}}}href", "").startswith("data:image/png") for i in after.findall(".//{*}image"))


def test_prose_marks_code_and_nothing_else():
    assert (
        report.prose("a `b<c` *d*\n\nsecond ``x``") == "<p>a <code>b&lt;c</code> *d*</p>\n<p>second <code>x</code></p>"
    )


def test_alternative_text_says_what_the_figure_shows(boundary):
    assert report.figure_alt(boundary, "laptop").startswith("Loss over the number of removed layers")
    assert Boundary.title in report.figure_alt(dataclasses.replace(boundary, figure_about=""), "laptop")
