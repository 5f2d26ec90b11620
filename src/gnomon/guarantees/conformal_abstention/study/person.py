"""``gnomon run``: a person's model and labelled questions in, a calibrated wrapper and its statement out."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from gnomon import models
from gnomon.datasets import TextPath, text_file
from gnomon.guarantees.conformal_abstention.geometry import text_reference
from gnomon.guarantees.conformal_abstention.judging import Answers, aliases
from gnomon.guarantees.conformal_abstention.method import ConformalAbstainer
from gnomon.models import EMBEDDED, ModelRef
from gnomon.study import Options, Outcome

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Run(Options):
    """What a person gives."""

    model: ModelRef = Field(EMBEDDED, description="folder, hub name, or endpoint:http://host/v1#name")
    qa: TextPath = Field(
        description='labelled questions, a JSON object a line: {"question": ..., "answer": ... or [...], "topic": ...}'
    )
    correctness: float = Field(0.75, gt=0, lt=1, description="wanted share of correct ones among the answers")
    participation: float | None = Field(
        None, gt=0, lt=1, description="wanted share of answered questions (both, ratio)"
    )
    certificate: Literal["fdr", "pac", "both", "ratio", "bayes"] = Field("fdr", description="which guarantee")
    score: str = Field(
        "geometry",
        description="geometry, logprob, product, gbdt, isotonic, entropy, margin, first_logprob, self-consistency",
    )
    delta: float = Field(0.1, gt=0, lt=1, description="how often the statement may fail (pac, both, bayes)")
    windows: int = Field(32, ge=2, description="windows of generic text for its common direction (geometry)")
    by_topic: bool = Field(False, description="calibrate within each topic")
    ask: TextPath | None = Field(
        None, description="new questions to answer, one a line (\\n for a line break within one)"
    )
    seed: int = Field(0, ge=0, description="of the split into fit and calibration")


def read(path: Path) -> list[tuple[str, Answers, str]]:
    """Questions, accepted answers and topics of a file of JSON lines.

    Raises
    ------
    ValueError
        For a line that is no such object; it is named.
    """
    found: list[tuple[str, Answers, str]] = []
    for number, line in enumerate(text_file(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            question, answer, topic = item["question"], item["answer"], item.get("topic", "")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f'qa: line {number} of {path.name}: expected {{"question": ..., "answer": ...}}') from None
        if (
            not isinstance(question, str)
            or not question.strip()
            or not all(isinstance(a, str) for a in aliases(answer))
        ):
            raise ValueError(
                f"qa: line {number} of {path.name}: expected a question in words, and one answer or a list of them"
            )
        found.append((question, answer, str(topic)))
    return found


def calibrate(inputs: Run, beside: bool = False) -> Outcome:
    """Fit, and answer what was asked; ``beside`` also calibrates on the log-probability alone."""
    items = read(inputs.qa)
    topics = {q: t for q, _, t in items}
    ca = ConformalAbstainer(inputs.correctness, inputs.participation, inputs.certificate, delta=inputs.delta, score=inputs.score,
                            groups=(lambda q: topics.get(q, "")) if inputs.by_topic else None, random_state=inputs.seed)  # fmt: skip
    ca.target()  # wrong options are told before a model is loaded
    model: Any
    tokenizer: Any = None
    reference = None
    if inputs.model.startswith("endpoint:"):
        model = models.Endpoint.from_ref(inputs.model)
    else:
        lm = models.load(inputs.model)
        model, tokenizer = lm.model, lm.tokenizer
        if inputs.score in ("geometry", "product", "gbdt"):
            reference = text_reference(model, tokenizer, windows=inputs.windows)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        ca.fit(model, tokenizer, [q for q, _, _ in items], [a for _, a, _ in items], reference=reference)
        asked = (
            [line.replace("\\n", "\n") for line in text_file(inputs.ask).splitlines() if line.strip()]
            if inputs.ask
            else []
        )
        answers = ca.answer(asked) if asked else []
        plain = ConformalAbstainer(**{**ca.get_params(), "score": "logprob"})
        if beside:
            plain.fit(model, tokenizer, [q for q, _, _ in items], [a for _, a, _ in items])
    notes = list(dict.fromkeys(str(w.message) for w in told if issubclass(w.category, UserWarning)))
    return Outcome(inputs, (items, asked, answers, notes), {inputs.score: ca, **({"logprob": plain} if beside else {})})


def present(outcome: Outcome) -> dict[str, Any]:
    """The data, the statement, what to expect, and the answers."""
    import pandas as pd

    ca, (items, asked, answers, notes) = outcome.result, outcome.problem
    counts = ca.responses_["split"].value_counts()
    shown: dict[str, Any] = {
        "data": f"{len(items)} questions ({counts['fit']} fit, {counts['calibration']} calibrate); accuracy without abstention {ca.accuracy_:.3f}",
        "guarantee": "\n".join(statements(ca)),
        "expected": f"about {ca.expected_coverage_:.0%} of the questions will be answered (simulated on the fit split)",
        "participation against joint error (fit split)": ca.frontier_.iloc[1::4],
    }
    if len(outcome.results) > 1:
        shown["scores"] = pd.DataFrame(
            {"score": name, "expected share answered": other.expected_coverage_}
            for name, other in outcome.results.items()
        )
    if notes:
        shown["notes"] = "\n".join(notes)
    if asked:
        shown["answers"] = pd.DataFrame({"question": [q.splitlines()[-1] for q in asked], "answer": [a.text if a.answered else "(abstains)" for a in answers],
                                         "score": [a.score for a in answers]})  # fmt: skip
    return shown


def statements(ca: ConformalAbstainer) -> list[str]:
    """The certificate's sentence, or one for each topic."""
    if isinstance(ca.certificate_, dict):
        return [f"{topic or '(no topic)'}: {c}" for topic, c in ca.certificate_.items()]
    return [str(ca.certificate_)]


def picture(outcome: Outcome) -> Figure:
    """Share right over share answered, on the calibration questions."""
    from matplotlib.figure import Figure

    from gnomon.guarantees.conformal_abstention.study.drawing import curves

    ca = outcome.result
    rows: pd.DataFrame = ca.responses_
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    curves(
        figure.subplots(),
        {outcome.inputs.score: (ca.calibration_scores_, rows["correct"][rows["split"] == "calibration"])},
    )
    return figure


def save(outcome: Outcome, directory: Path) -> None:
    """``judged.csv`` (for a person to check), ``certificate.json``, ``calibration.npz``, ``answers.csv``."""
    import pandas as pd

    ca, (_, asked, answers, _) = outcome.result, outcome.problem
    ca.responses_.to_csv(directory / "judged.csv", index=False)
    kept = ca.certificate_ if isinstance(ca.certificate_, dict) else {"all": ca.certificate_}
    body = {
        str(k): {**asdict(c), "values": {n: float(v) if np.isfinite(v) else str(v) for n, v in c.values.items()}}
        for k, c in kept.items()
    }
    (directory / "certificate.json").write_text(json.dumps(body, indent=1) + "\n")
    correct = ca.responses_["correct"][ca.responses_["split"] == "calibration"].to_numpy()
    np.savez(directory / "calibration.npz", scores=ca.calibration_scores_, correct=correct)
    if asked:
        pd.DataFrame([{"question": q, **asdict(a)} for q, a in zip(asked, answers, strict=True)]).to_csv(
            directory / "answers.csv", index=False
        )
