"""``gnomon run``: a person's own questions, model and country."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field

from gnomon.models import EMBEDDED, ModelRef
from gnomon.study import Inputs, Outcome

if TYPE_CHECKING:
    import pandas as pd

    from gnomon.decisions.disca.method import Decision


def _file(path: Path) -> Path:
    if not path.expanduser().is_file():
        raise ValueError(f"{path} is no file")
    return path.expanduser()


class Run(Inputs):
    """What a person gives."""

    questions: Annotated[Path, AfterValidator(_file)] = Field(
        description="JSON lines: 'question' (text) and 'options' (two texts or more)"
    )
    country: str = Field(description="ISO 3166 alpha-3 code, such as VNM")
    model: ModelRef = Field(EMBEDDED, description="folder, hub name, endpoint or embedded model")
    wvs: Annotated[Path, AfterValidator(_file)] | None = Field(
        None, description="your World Values Survey file (wave 7, CSV): personas are then grounded in it"
    )
    n_samples: int = Field(0, ge=0, description="answers to count, for an endpoint without log-probabilities")
    bound: float = Field(1.0, gt=0, description="largest shift in standard deviations of the personas")


def read(path: Path) -> list[tuple[str, list[str]]]:
    """The questions of a file.

    Raises
    ------
    ValueError
        For a line that is no JSON object of this form, naming it.
    """
    from gnomon.datasets import text_file
    from gnomon.decisions.disca.scenarios import read_questions

    rows = []
    for i, line in enumerate(text_file(path).splitlines()):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"questions, line {i + 1}: {error.msg}") from None
        if not isinstance(row, dict):
            raise ValueError(f"questions, line {i + 1}: expected an object, got {line[:60]}")
        rows.append(row)
    return read_questions(rows)


def ask(inputs: Run, beside: bool) -> Outcome:
    """Decide every question; ``beside`` adds the panel's mean and the country's name in the prompt."""
    from gnomon.decisions.disca import baselines
    from gnomon.decisions.disca.method import DISCA, softmax
    from gnomon.decisions.disca.personas import PersonaPanel

    questions = read(inputs.questions)
    try:
        panel = (
            PersonaPanel.from_wvs(inputs.wvs, inputs.country) if inputs.wvs else PersonaPanel.generic(inputs.country)
        )
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    disca = DISCA(inputs.model, panel, bound=inputs.bound, n_samples=inputs.n_samples)
    results: dict[str, Any] = {"disca": disca.decide_many(questions)}
    if beside:
        told = baselines.country_prompt(inputs.country)
        means, prompted = [], []
        for one in questions:
            logs = np.mean([disca.read(text, [one]).logs[0] for text in panel.texts], axis=0)
            means.append(softmax(logs))
            prompted.append(softmax(disca.read(told, [one]).logs[0]))
        results |= {"panel mean": means, "country prompt": prompted}
    return Outcome(inputs, (questions, panel), results)


def table(outcome: Outcome) -> pd.DataFrame:
    """One row a question and option."""
    import pandas as pd

    rows = []
    for i, (decision, (question, _)) in enumerate(zip(outcome.result, outcome.problem[0], strict=True)):
        favourite = int(decision.base.argmax())
        others = [k for k in range(len(decision.options)) if k != favourite]
        for k, option in enumerate(decision.options):
            row: dict[str, Any] = {"question": question if k == 0 else "", "option": option, "base": _p(decision.base_probabilities[k]),
                                   "corrected": _p(decision.probabilities[k])}  # fmt: skip
            told = (
                0
                if len(decision.options) == 2 and k == 0
                else others.index(k)
                if k in others and len(decision.options) > 2
                else None
            )
            row |= {"personas": "", "spread": "", "correction": "", "reliability": ""}
            if told is not None:
                row |= {"personas": "  ".join(f"{g:+.2f}" for g in decision.persona_gaps[told]),
                        "spread": f"{decision.spread[told]:.2f}", "correction": f"{decision.correction[told]:+.3f}",
                        "reliability": f"{decision.reliability[told]:.2f}"}  # fmt: skip
            for name in list(outcome.results)[1:]:
                row[name] = _p(outcome.results[name][i][k])
            row["note"] = _note(decision) if k == 0 else ""
            rows.append(row)
    return pd.DataFrame(rows)


def _p(p: float) -> str:
    return f"{p:.3f}"


def _note(decision: Decision) -> str:
    notes = [] if decision.grounded else ["ungrounded"]
    if decision.refused:
        notes.append("hardly answers with a letter")
    return ", ".join(notes)


def present(outcome: Outcome) -> list[Any]:
    """The decisions, and what the panel rests on."""
    panel, n = outcome.problem[1], len(outcome.problem[0])
    rests = "the survey file" if panel.grounded else "names and ages alone (ungrounded): give --wvs to ground it"
    bias = np.mean([d.order_bias for d in outcome.result])
    lines = (f"{n} question{'s' if n != 1 else ''}, {len(panel)} personas of {panel.country}, resting on {rests}. Gaps are in nats "
             f"(first option - second; of three or more, against the base's favourite); order bias {bias:.2f}, averaged out.")  # fmt: skip
    return [table(outcome), lines]


def save(outcome: Outcome, directory: Path) -> None:
    """``decisions.jsonl`` and ``panel.json``."""
    panel = outcome.problem[1]
    lines = []
    for decision, (question, _) in zip(outcome.result, outcome.problem[0], strict=True):
        row = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(decision).items()}
        lines.append(json.dumps({"question": question, **row}, ensure_ascii=False))
    (directory / "decisions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    told = {"country": panel.country, "grounded": panel.grounded, "texts": list(panel.texts)}
    (directory / "panel.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
