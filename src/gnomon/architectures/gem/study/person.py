"""``gnomon run``: the diagnostics of a person's own model, or its training with and without GEM on the same batches."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from gnomon import datasets, models
from gnomon.architectures.gem.study import drawing
from gnomon.study import Inputs, Outcome

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.figure import Figure

    from gnomon.architectures.gem.diagnostics import Diagnostics

COLUMNS = ("layer", "lens_kl", "agreement", "rank", "step_cosine", "ratio", "cosine_hm", "cosine", "centred_cosine", "effective_rank")  # fmt: skip


class Run(Inputs):
    """What a person gives."""

    model: models.ModelRef = Field(models.EMBEDDED, description="local folder, embedded:smollm2, or hub name")
    text: datasets.TextPath | None = Field(None, description="text that is read (default: English Wikipedia articles)")
    length: int = Field(64, ge=2, description="tokens in a window")
    tokens: int = Field(256, ge=2, description="tokens that are read, at most")
    points: int = Field(8, ge=1, description="states of the last layer that are projected on the hull")
    positions: int = Field(16, ge=0, description="where causal faithfulness is measured; 0: not at all")
    train: bool = Field(False, description="go on pre-training with and without GEM; --save keeps both models")
    corpus: datasets.TextPath | None = Field(None, description="text to train on, with --train")
    steps: int = Field(50, ge=1, description="training steps")
    batch: int = Field(8, ge=1, description="windows in a step")
    rate: float = Field(1e-4, gt=0, description="learning rate")
    gem_lambda: float = Field(0.1, gt=0, description="weight of the term")
    variant: Literal["mse", "cos", "energy"] = Field("mse", description="form of the term")
    detach: Literal["mixture", "none"] = Field("mixture", description="whether the mixture is a fixed target")


@dataclass
class Problem:
    """One model and what it reads."""

    lm: models.LM
    texts: list[str]


def operate(inputs: Run, beside: bool) -> Outcome:
    """Diagnose the model, or train it twice and diagnose both; ``beside`` adds the embedded model's diagnostics."""
    if inputs.train and inputs.corpus is None:
        raise ValueError("corpus: --train needs a text to train on")
    lm = models.load(inputs.model)
    texts = datasets.wikipedia()[80:] if inputs.text is None else [datasets.text_file(inputs.text)]
    problem = Problem(lm, texts)
    made: dict[str, Any] = {"model": lm.model}
    if inputs.train:
        windows = models.encode(lm.tokenizer, [datasets.text_file(inputs.corpus)], inputs.length)  # type: ignore[arg-type]
        made = {"gem": _trained(lm, windows, inputs, inputs.gem_lambda), "plain": _trained(lm, windows, inputs, 0.0)}
    results = {
        name: {"model": model, "report": _diagnosed(model, lm.tokenizer, texts, inputs)} for name, model in made.items()
    }
    if beside:
        other = models.load(models.EMBEDDED)
        results["smollm2"] = {
            "model": other.model,
            "report": _diagnosed(other.model, other.tokenizer, datasets.wikipedia()[80:], inputs),
        }
    return Outcome(inputs, problem, results)


def _diagnosed(model: Any, tokenizer: Any, texts: list[str], inputs: Run) -> Diagnostics:
    from gnomon.architectures.gem.diagnostics import gem_diagnostics

    return gem_diagnostics(model, texts, tokenizer=tokenizer, length=inputs.length, tokens=inputs.tokens,
                           points=inputs.points, positions=inputs.positions)  # fmt: skip


def _trained(lm: models.LM, windows: torch.Tensor, inputs: Run, weight: float) -> Any:
    """A copy of the model after training; the batches depend on the seed alone."""
    import transformers
    from transformers.trainer_callback import PrinterCallback

    from gnomon.architectures.gem.trainer import GEMTrainer

    model = models.plain(lm.copy())
    model.requires_grad_(True)
    with tempfile.TemporaryDirectory() as room:
        args = transformers.TrainingArguments(
            room, max_steps=inputs.steps, per_device_train_batch_size=inputs.batch, learning_rate=inputs.rate, seed=0,
            save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        data = [{"input_ids": row, "labels": row} for row in windows]
        trainer = GEMTrainer(model=model, args=args, train_dataset=data, gem_lambda=weight, gem_variant=inputs.variant,
                             gem_detach=inputs.detach)  # fmt: skip
        trainer.remove_callback(PrinterCallback)  # the library never prints
        trainer.train()
    return model.eval().requires_grad_(False)


def summary(outcome: Outcome) -> pd.DataFrame:
    """A row for each model."""
    import pandas as pd

    rows = []
    for name, result in outcome.results.items():
        report = result["report"]
        last = report.to_frame().iloc[-1]
        row = {
            "model": name,
            **report.uncertainty.summary,
            "residual ratio": last["ratio"],
            "hull distance": last["distance"],
            "settled": report.lens.settled,
        }
        if report.faithfulness is not None:
            row |= {k: getattr(report.faithfulness, k) for k in ("ablation", "swap", "response")}
        rows.append(row)
    return pd.DataFrame(rows)


def present(outcome: Outcome) -> dict[str, Any]:
    """Predictions, layers, and what the first tokens decode to on their way."""
    shown: dict[str, Any] = {"predictions": summary(outcome)}
    for name, result in outcome.results.items():
        report = result["report"]
        shown[f"layers of {name}"] = report.to_frame()[list(COLUMNS)]
        words = report.lens.trajectories.pivot_table("token", "position", "layer", aggfunc="first", sort=False)
        chosen = list(words)[:: max(1, len(list(words)) // 8)]
        shown[f"decoded trajectories of {name}"] = words[sorted({*chosen, list(words)[-1]})].head(8).reset_index()
    return shown


def picture(outcome: Outcome) -> Figure:
    """Lens, residual ratio and mean cosine by layer."""
    return drawing.layers({name: result["report"].to_frame() for name, result in outcome.results.items()})


def save(outcome: Outcome, directory: Path) -> None:
    """The tables as CSV and JSON; after training, both models with their tokenizer too."""
    from transformers.utils import logging as theirs

    directory.mkdir(parents=True, exist_ok=True)
    for name, result in outcome.results.items():
        room = directory / name
        room.mkdir()
        if outcome.inputs.train and name in ("gem", "plain"):
            theirs.disable_progress_bar()  # type: ignore[no-untyped-call]
            result["model"].save_pretrained(room)
            outcome.problem.lm.tokenizer.save_pretrained(room)
        report = result["report"]
        report.to_frame().to_csv(room / "layers.csv", index=False)
        report.uncertainty.reliability.to_csv(room / "reliability.csv", index=False)
        report.lens.trajectories.to_csv(room / "trajectories.csv", index=False)
        (room / "uncertainty.json").write_text(
            json.dumps(report.uncertainty.summary, indent=1) + "\n", encoding="utf-8"
        )
