"""``gnomon run``: adapters on a person's own model and text, by Muon and by AdamW, and what became of their spectra."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from gnomon import datasets, models
from gnomon.optimization.spectral_descent.study.adapters import adapt
from gnomon.optimization.spectral_descent.study.contenders import ADAPTERS, Rule
from gnomon.optimization.spectral_descent.study.drawing import flat
from gnomon.optimization.spectral_descent.study.material import Material, gather
from gnomon.study import Inputs, Outcome

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SHOWN = ("muon", "adamw")
BESIDE: dict[str, Rule] = {
    **ADAPTERS,
    "newton-schulz": Rule("spectral", {"momentum": 0.95, "scale": "match_rms_adamw", "orth": "newton_schulz"}),
}


class Run(Inputs):
    """What a person gives."""

    model: models.ModelRef = Field(models.EMBEDDED, description="local folder, embedded:smollm2, or hub name")
    task: Literal["causal", "classification"] = Field("causal", description="next tokens, or labels of sentences")
    text: datasets.TextPath | None = Field(
        None, description="text file; for classification a CSV or TSV with the columns sentence and label"
    )
    steps: int = Field(24, ge=1, description="optimiser steps")
    lr: float = Field(2e-3, gt=0, description="learning rate of every optimiser")
    rank: int = Field(8, ge=1, description="rank of the adapters")
    alpha: int = Field(16, ge=1, description="scale of the adapters times their rank")
    batch: int = Field(2, ge=1, description="windows or sentences in a batch")
    window: int = Field(96, ge=4, description="tokens in a window, at most in a sentence")


def operate(inputs: Run, beside: bool) -> Outcome:
    """Train the adapters by each optimiser from one start on the same batches; the first one's are kept."""
    results: dict[str, dict[str, Any]] = {}
    problem: Material | None = None
    for name in BESIDE if beside else SHOWN:
        material = gather(inputs.model, inputs.task, inputs.text, inputs.window, inputs.batch)
        make = functools.partial(BESIDE[name], lr=inputs.lr)
        net, rows = adapt(
            material, make, rank=inputs.rank, alpha=inputs.alpha, steps=inputs.steps, batch=inputs.batch, seed=0
        )
        problem = problem or material
        results[name] = {"rows": rows, "net": net if not results else None}
    return Outcome(inputs, problem, results)


def curves(outcome: Outcome) -> pd.DataFrame:
    """Medians over the adapters, by optimiser and step."""
    import pandas as pd

    every = pd.concat([pd.DataFrame(r["rows"]).assign(contender=name, seed=0) for name, r in outcome.results.items()])
    columns = ["loss", "held", "flatness", "effective_rank", "largest", "smallest"]
    return every.groupby(["contender", "seed", "step"], sort=False, as_index=False)[columns].median()


def present(outcome: Outcome) -> dict[str, Any]:
    """The spectra at the end, and the flattest and the steepest adapters of the method."""
    import pandas as pd

    steps = curves(outcome)
    last = steps[steps["step"] == steps["step"].max()].drop(columns=["seed", "step"])
    rows = pd.DataFrame(outcome.result["rows"])
    rows = rows[rows["step"] == rows["step"].max()].sort_values("flatness")
    layers = rows[["layer", "largest", "smallest", "flatness", "effective_rank"]]
    return {f"after {outcome.inputs.steps} steps (medians over {len(rows)} adapters)": last.rename(columns={"contender": "optimiser", "held": "held-out loss"}),
            f"adapters by {next(iter(outcome.results))}, the steepest and the flattest":
                layers if len(layers) <= 6 else pd.concat([layers.head(3), layers.tail(3)])}  # fmt: skip


def picture(outcome: Outcome) -> Figure:
    """Flatness and held-out loss by step."""
    from matplotlib.figure import Figure

    steps = curves(outcome)
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    flat(left, steps)
    for i, name in enumerate(dict.fromkeys(steps["contender"])):
        rows = steps[steps["contender"] == name].dropna(subset=["held"])
        right.plot(rows["step"], rows["held"], "o-", ms=3, color=f"C{i}", label=name)
    right.set(xlabel="step", ylabel="held-out loss (nats)")
    right.legend(fontsize=8)
    return figure


def save(outcome: Outcome, directory: Path) -> None:
    """The adapters of the method as peft writes them (safetensors), and the curves of all optimisers as CSV."""
    outcome.result["net"].save_pretrained(directory)
    curves(outcome).drop(columns="seed").to_csv(directory / "curves.csv", index=False)
