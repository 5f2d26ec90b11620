"""Check a system: run its study, judge its claims, compare with what was recorded, keep the evidence."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.study import records
from gnomon.study.judge import Verdict, judge, summary
from gnomon.study.protocol import Inputs, Study
from gnomon.study.runner import Running, run

if TYPE_CHECKING:
    import pandas as pd

    from gnomon.catalog import System

LOOKS = 3  # --until-decided looks at n, 2n and 4n seeds
LEVEL = 0.95


@dataclass
class Check:
    """What a check found.

    Attributes
    ----------
    verdicts : list of Verdict
        One for each claim, in the study's order.
    tables : dict of str to DataFrame
        The rows of each experiment, and the derived tables.
    evidence : dict
        What ``evidence/<area>/<system>.json`` keeps for this scale.
    differences : list of str
        Claims whose verdict differs from the recorded one for the same inputs and scale.
    told : list of str
        The same for timed and borderline claims, which change no exit code.
    """

    system: System
    inputs: Inputs
    verdicts: list[Verdict]
    tables: dict[str, pd.DataFrame]
    evidence: dict[str, Any]
    figure: str | None = None
    differences: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return 1 if self.differences else 0


def check(
    system: System,
    *,
    scale: str = "laptop",
    running: Running | None = None,
    until_decided: bool = False,
    record: bool = False,
    **given: Any,
) -> Check:
    """Run a system's study and judge every claim.

    Parameters
    ----------
    system : System
        From :func:`gnomon.catalog.find`.
    scale : {"laptop", "smoke", "extended", "paper"}
        How much is run.
    running : Running, optional
        Jobs, backend, results folder, own contenders.
    until_decided : bool
        Look at n, 2n and 4n seeds, each at level 1 - 0.05/3, until no claim is undecided.
    record : bool
        Keep the verdicts as the system's recorded evidence.
    **given
        Values for the study's inputs.

    Raises
    ------
    ValueError
        For an unknown scale or input, or a value that the input does not accept.
    """
    running = running or Running()
    study = system.study()
    inputs = study.Inputs.at(scale, **given)
    level = 1 - (1 - LEVEL) / LOOKS if until_decided else LEVEL
    looks: list[dict[str, Any]] = []
    base = inputs.seeds
    for look in range(LOOKS if until_decided else 1):
        inputs = study.Inputs.at(scale, **{**given, "seeds": base * 2**look})
        tables, verdicts = judged(study, run(system, inputs, running), inputs.scale, level, looks)
        undecided = sum(v.verdict == "undecided" for v in verdicts)
        looks.append({"seeds": inputs.seeds, "level": level, "undecided": undecided})
        if not undecided:
            break
    if until_decided:
        tables, verdicts = judged(study, tables, inputs.scale, level, looks)
    figure = _figure(study, tables)
    outcome = Check(
        system, inputs, verdicts, tables, _evidence(system, study, inputs, verdicts, tables, running), figure
    )
    if not running.contenders:
        _compare(outcome)
    _keep(outcome, running.results, record and not running.contenders)
    return outcome


def judged(study: type[Study], tables: dict[str, pd.DataFrame], scale: str, level: float = LEVEL,
           looks: Sequence[dict[str, Any]] = ()) -> tuple[dict[str, pd.DataFrame], list[Verdict]]:  # fmt: skip
    """The tables with the derived ones, and the verdict of each claim over them."""
    experiments = {e.__name__: e for e in study.all_experiments()}
    tables = {**tables, **study().derive(dict(tables))}
    return tables, judge(study.claims, tables, experiments, scale=scale, level=level, looks=list(looks))


def shown(inputs: Any) -> dict[str, Any]:
    """The inputs as a person wrote them."""
    return {n: v if isinstance(v := getattr(inputs, n), str | int | float | bool | None) else str(v)
            for n in type(inputs).model_fields}  # fmt: skip


def _evidence(system: System, study: type[Study], inputs: Inputs, verdicts: list[Verdict],
              tables: dict[str, pd.DataFrame], running: Running) -> dict[str, Any]:  # fmt: skip
    now = datetime.datetime.now(datetime.UTC).date().isoformat()
    costs = [t.drop_duplicates(["contender", "seed", *[c for c in e.cells[0] if c in t]])
             for e in study.all_experiments() if (t := tables.get(e.__name__)) is not None and len(t)]  # fmt: skip
    return {
        "inputs": shown(inputs),
        "environment": {**records.environment(), "threads": 1, "date": now},
        "claims": [v.as_dict() for v in verdicts],
        "tables": {
            e.__name__: {
                "unit": e.unit if isinstance(e.unit, str) else " x ".join(e.unit),
                "metrics": {n: {"unit": m.unit, "sign": m.sign, "log": m.log} for n, m in e.metrics.items()},
                "rows": summary(tables[e.__name__], e),
            }
            for e in study.all_experiments()
            if e.__name__ in tables
        },
        "records": {
            "count": sum(len(t) for t in costs),
            "wall_s": round(float(sum(t["wall_s"].sum() for t in costs)), 1),
            "cpu_s": round(float(sum(t["cpu_s"].sum() for t in costs)), 1),
            "peak_mb": round(float(max((t["peak_mb"].max() for t in costs), default=0.0)), 1),
            "code": records.code_digest(f"{system.module}.study"),
        },
    }


def _figure(study: type[Study], tables: dict[str, pd.DataFrame]) -> str | None:
    import matplotlib

    matplotlib.use("Agg")
    picture = study().figure(tables)
    if picture is None:
        return None
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "gnomon", "svg.fonttype": "none"}):
        picture.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    from matplotlib import pyplot

    pyplot.close(picture)
    return out.getvalue()


def _compare(outcome: Check) -> None:
    """Fill in where the verdicts differ from the recorded ones for the same inputs and scale."""
    before = outcome.system.evidence()["scales"].get(outcome.inputs.scale)
    if before is None or before["inputs"] != outcome.evidence["inputs"]:
        return
    old = {claim["id"]: claim for claim in before["claims"]}
    for new in outcome.verdicts:
        was = old.get(new.id)
        if was is None or was["digest"] != new.digest or was["verdict"] == new.verdict:
            continue
        line = f"{new.id}: recorded {was['verdict']}, now {new.verdict}"
        (outcome.told if new.timed or new.borderline or was["borderline"] else outcome.differences).append(line)


def _keep(outcome: Check, results: Path, record: bool) -> None:
    """Write the evidence beside the records, and where ``record`` says so as the recorded one."""
    system, scale = outcome.system, outcome.inputs.scale
    for path in [system.evidence_path(results), *([system.evidence_path()] if record else [])]:
        known = system.evidence(path.parent.parent)
        fresh = outcome.evidence
        if before := known["scales"].get(scale):
            fresh = {**fresh, "claims": _restated(before["claims"], fresh["claims"])}
        known["scales"] = {**known["scales"], scale: fresh}
        records.write_whole(path, json.dumps(known, indent=1, sort_keys=True, allow_nan=False) + "\n")
        if outcome.figure is not None:
            records.write_whole(path.with_name(f"{system.name}.{scale}.svg"), outcome.figure)


def _restated(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A claim whose statement changed after its result was seen says so."""
    old = {claim["id"]: claim for claim in before}
    note = "restated after an earlier result was seen"
    out = []
    for claim in after:
        was = old.get(claim["id"])
        seen = was is not None and (was["digest"] != claim["digest"] or note in (was.get("reason") or ""))
        reason = claim.get("reason") or ""
        out.append({**claim, "reason": f"{reason}; {note}".lstrip("; ")} if seen and note not in reason else claim)
    return out
