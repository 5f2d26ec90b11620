"""Systems made up for the tests of the report: studies, evidence of several scales, and hostile words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gnomon import study

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">"\'&{{ 7*7 }} javascript:alert(3)'
FIGURE = """<?xml version="1.0"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"
viewBox="0 0 360 160" width="360pt" height="160pt">
<defs><style type="text/css">*{stroke-linejoin: round}</style>
<path id="dot" d="M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0"/></defs>
<rect width="360" height="160" fill="#ffffff"/><path d="M40 130H340M40 130V20" style="fill: none; stroke: #222222"/>
<path d="M60 110 150 80 240 60 330 30" style="fill: none; stroke: #0d5568; stroke-width: 1.5"/>
<use xlink:href="#dot" x="150" y="80"/><use xlink:href="#dot" x="240" y="60"/>
<text x="190" y="152" style="font: 10px sans-serif; text-anchor: middle">removed layers</text></svg>"""
HOSTILE_FIGURE = FIGURE.replace(
    "</svg>",
    "<script>alert(4)</script><g onload='alert(5)'/><a href='https://example.org/'><text>x</text></a>"
    "<image href='https://example.org/spy.png'/><rect fill='url(https://example.org/paint)'/>"
    "<foreignObject><body xmlns='http://www.w3.org/1999/xhtml' onload='alert(6)'/></foreignObject></svg>",
)


class Recovery(study.Experiment):
    """Does an unconstrained operator recover a shortened model better than constrained ones?"""

    cells = study.grid(n=[3, 5, 8])
    contenders = {"ghosted": object, "replaceme": object, "linearpatch": object, "none": object}
    metrics = {"nll": study.lower("nats"), "agreement": study.higher(), "prefill": study.lower("s", timed=True)}
    unit = ("seed", "window")


class Boundary(study.Study):
    title = "Boundary operators"
    paper = "Unconstrained alignment for shortened models, arXiv 2605.15491"
    bibtex = (
        "@inproceedings{boundary2026,\n  title  = {Unconstrained alignment for shortened models},\n  year   = {2026}\n}"
    )
    question = (
        "When layers are cut out of a language model, how much of the loss does one matrix at the cut bring back?"
    )
    method = "Least squares from the states before the cut to those after it: `W = (X'X + eI)^-1 X'Y`, in float64."
    departures = [
        "SmolLM2-135M in place of models of 8 billion weights.",
        "Perplexity on articles of Wikipedia; the paper's zero-shot tasks are left out.",
    ]
    command = "gnomon run boundary --model DIR --drop 14:19"
    example = "from gnomon.surgery import Boundary\n\nBoundary(n=5).fit(model)"
    experiments = [Recovery]
    claims = [
        study.better("nll", "ghosted", than=["replaceme", "linearpatch", "none"], each=["n"], id="recovers-better",
                     text="The unconstrained operator has lower loss than each constrained one, at every depth",
                     paper="Table 1: 8.9 against 10.4 and 21.7"),
        study.always(lambda t: t["nll"] > 0, id="identity", table="Recovery",
                     text="The price of a constraint is its distance from the optimum, exactly", paper="Theorem 1"),
        study.better("prefill", "ghosted", than="none", by=-0.01, id="as-fast",
                     text="Prefill is no more than 10 ms slower"),
        study.better("agreement", "ghosted", than="linearpatch", id="agrees",
                     text="It agrees more often with the whole model", paper="Figure 4: 71 % against 64 %"),
        study.at_most("nll", "ghosted", 3.0, on={"n": [8]}, id="deep", text="A cut of eight layers stays below 3 nats"),
        study.at_least("agreement", "none", 0, report=True, id="plain", text="How often the plainly cut model agrees"),
    ]  # fmt: skip

    def figure(self, tables):
        """Loss over the number of removed layers, one line for each contender."""


class Other(study.Study):
    title = "Sketches of streams"
    question = "How few counters does a stream need?"
    experiments: list[type[study.Experiment]] = []
    claims = [study.at_most("x", "a", 1, id="few-counters", text="A thousand counters are enough")]


class Hostile(study.Study):
    title = f"Title {HOSTILE}"
    paper = f"Paper {HOSTILE}"
    bibtex = f"@misc{{{HOSTILE}}}"
    question = f"Question {HOSTILE}"
    method = f"Method `{HOSTILE}`"
    departures = [f"Departure {HOSTILE}"]
    command = f"gnomon run {HOSTILE}"
    example = f"print({HOSTILE!r})"
    experiments = [Recovery]
    claims = [study.at_most("x", "a", 1, id=f"id-{HOSTILE}", text=f"Claim {HOSTILE}", paper=f"Says {HOSTILE}")]


def claim(of: study.Claim, verdict: str, effect: float | None = None, interval: list[float] | None = None, **more: Any):
    return {
        "id": of.id, "text": of.text, "paper": of.paper, "kind": of.kind, "verdict": verdict, "effect": effect,
        "interval": interval, "level": 0.95, "unit": "seed", "n": 3 if effect is not None else None, "few": False,
        "borderline": False, "timed": False, "looks": [], "digest": of.digest, "reason": "", "parts": [], **more,
    }  # fmt: skip


def rows(contenders, metrics, cells=(3, 5, 8)) -> list[dict[str, Any]]:
    out = []
    for i, n in enumerate(cells):
        for j, contender in enumerate(contenders):
            mean = {m: 3.1 + 0.31 * i + 0.17 * j + 0.01 * k for k, m in enumerate(metrics)}
            out.append({"cell": {"n": n}, "contender": contender, "metrics": {
                m: {"mean": x, "low": x - 0.041, "high": x + 0.043, "n": 24} for m, x in mean.items()}})  # fmt: skip
    return out


def scale(claims, tables=None, **inputs: Any) -> dict[str, Any]:
    return {
        "inputs": {"model": "embedded", "seeds": 3, "scale": "laptop", **inputs},
        "environment": {"gnomon": "0.1.0", "commit": "abc123", "date": "2026-11-30", "python": "3.11.2",
                        "platform": "Linux", "processor": "Example CPU", "cores": 2, "threads": 1,
                        "packages": {"numpy": "2.4", "torch": "2.9"}},
        "claims": claims,
        "tables": tables or {},
        "records": {"count": 36, "wall_s": 431.2, "cpu_s": 428.0, "peak_mb": 1843.2, "code": "0" * 20},
    }  # fmt: skip


def boundary_evidence() -> dict[str, Any]:
    better, identity, fast, agrees, deep, plain = Boundary.claims
    parts = [{"label": f"than={b}, n={n}", "effect": 0.31 - 0.02 * n, "interval": [0.2 - 0.02 * n, 0.42 - 0.02 * n],
              "verdict": "holds" if n < 8 else "undecided", "n": 3}
             for n in (3, 5, 8) for b in ("replaceme", "linearpatch", "none")]  # fmt: skip
    metrics = {"nll": {"unit": "nats", "sign": -1, "log": False}, "agreement": {"unit": "", "sign": 1, "log": False},
               "prefill": {"unit": "s", "sign": -1, "log": False}}  # fmt: skip
    table = {"unit": "seed x window", "metrics": metrics, "rows": rows(Recovery.contenders, metrics)}
    laptop = scale([
        claim(better, "undecided", 0.152, [-0.02, 0.32], parts=parts, few=True,
              reason="9 seeds would decide at this effect"),
        claim(identity, "holds", 1.0, n=72, unit="rows"),
        claim(fast, "holds", 0.0081, [0.0007, 0.0152], timed=True, borderline=True),
        claim(agrees, "fails", -0.0213, [-0.0311, -0.0115], few=True),
        claim(deep, "undecided", reason="not run at this scale"),
        claim(plain, "reported", 0.412, [0.39, 0.44]),
    ], {"Recovery": table})  # fmt: skip
    extended = scale([
        claim(better, "holds", 0.143, [0.101, 0.185], n=12),
        claim(identity, "undecided", reason="not run at this scale"),
        claim(fast, "undecided", reason="not run at this scale"),
        claim(agrees, "undecided", reason="not run at this scale"),
        claim(deep, "fails", 4.87, [4.4, 5.3], n=12),
        claim(plain, "undecided", reason="not run at this scale"),
    ], seeds=12, scale="extended")  # fmt: skip
    return {"area": "surgery", "system": "boundary", "scales": {"laptop": laptop, "extended": extended}}


def hostile_evidence() -> dict[str, Any]:
    (one,) = Hostile.claims
    metrics = {f"metric {HOSTILE}": {"unit": f"unit {HOSTILE}", "sign": -1, "log": False}}
    table = {"unit": f"unit {HOSTILE}", "metrics": metrics, "rows": rows([f"contender {HOSTILE}", "plain"], metrics)}
    for row in table["rows"]:
        row["cell"] = {f"axis {HOSTILE}": f"value {HOSTILE}"}
    parts = [{"label": f"part {HOSTILE}", "effect": 1.0, "interval": [0.9, 1.1], "verdict": "fails", "n": 3}] * 2
    judged = claim(one, "fails", 1.5, [1.2, 1.8], unit=f"unit {HOSTILE}", reason=f"reason {HOSTILE}", parts=parts)
    found = scale([judged], {f"Table {HOSTILE}": table}, model=f"model {HOSTILE}")
    found["environment"]["processor"] = f"processor {HOSTILE}"
    return {"area": "interpretability", "system": "hostile", "scales": {"laptop": found}}


class Exhibit:
    """What the catalogue gives for a system; its evidence lives in files below ``folder``."""

    module = "gnomon.study.claims"

    def __init__(self, folder: Path, area: str, name: str, made: type[study.Study], summary: str):
        self.folder, self.area, self.name, self.slug, self.summary = folder, area, name, name.replace("_", "-"), summary
        self._study = made

    def study(self) -> type[study.Study]:
        return self._study

    def _path(self, folder: Path | None) -> Path:
        return (folder or self.folder) / self.area / f"{self.name}.json"

    def evidence(self, folder: Path | None = None) -> dict[str, Any]:
        path = self._path(folder)
        return (
            json.loads(path.read_text()) if path.is_file() else {"area": self.area, "system": self.name, "scales": {}}
        )

    def figure(self, scale: str, folder: Path | None = None) -> str | None:
        path = self._path(folder).with_name(f"{self.name}.{scale}.svg")
        return path.read_text() if path.is_file() else None

    def record(self, evidence: dict[str, Any], folder: Path | None = None, **figures: str) -> Exhibit:
        path = self._path(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(evidence))
        for scale_name, svg in figures.items():
            path.with_name(f"{self.name}.{scale_name}.svg").write_text(svg)
        return self


def exhibits(folder: Path) -> list[Exhibit]:
    """A system with two scales, one with hostile words everywhere, one that nobody has checked yet."""
    boundary = Exhibit(folder, "surgery", "boundary", Boundary, "Recovers a shortened language model with one matrix.")
    hostile = Exhibit(folder, "interpretability", "hostile", Hostile, f"Summary {HOSTILE}")
    return [
        boundary.record(boundary_evidence(), laptop=FIGURE),
        hostile.record(hostile_evidence(), laptop=HOSTILE_FIGURE),
        Exhibit(folder, "sampling", "sketches", Other, "Counts what is frequent in one pass."),
    ]
