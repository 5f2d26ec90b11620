"""``gnomon run``: a person's own model and text, by Muon, Muon with a schedule, and two stages, from one start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field

from gnomon import datasets
from gnomon.optimization.muon_river.baselines import linear
from gnomon.optimization.muon_river.study import material
from gnomon.study import Inputs, Outcome

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

WAYS = ("two-stage", "muon", "muon linear")
BESIDE = (*WAYS, "adamw")
READINGS = 20  # points of a validation curve


def _switch(value: str) -> str:
    """A step, a fraction, or auto."""
    if value != "auto":
        try:
            number = float(value)
        except ValueError:
            raise ValueError("expected a step, a fraction in (0, 1), or auto") from None
        if number < 0 or (not value.isdigit() and not 0 < number < 1):
            raise ValueError("expected a step, a fraction in (0, 1), or auto")
    return value


class Run(Inputs):
    """What a person gives."""

    model: str = Field("small", description="folder of a causal language model, its config.json, or 'small'")
    corpus: datasets.TextPath | None = Field(
        None, description="text file (default: the standard library's source code)"
    )
    switch: Annotated[str, AfterValidator(_switch)] = Field(
        "auto", description="a step, a fraction of the steps, or auto"
    )
    steps: int = Field(600, ge=2, description="optimiser steps")
    min_steps: int = Field(100, ge=0, description="auto never switches before")
    lr_muon: float = Field(0.02, gt=0, description="learning rate of Muon")
    lr_adamw: float = Field(
        1e-3, gt=0, description="learning rate of AdamW, as refiner and on embeddings, head and norms"
    )
    batch: int = Field(16, ge=1, description="windows in a batch")
    context: int = Field(64, ge=4, description="tokens in a window")


@dataclass
class Corpus:
    """Tokens to train on, and held-out windows from the end of the text."""

    train: np.ndarray
    held: Any
    tokenizer: Any


def operate(inputs: Run, beside: bool) -> Outcome:
    """Train by each way on from one start, on the same batches."""
    model, tokenizer = _model(inputs)
    corpus = _corpus(inputs, tokenizer)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    results = {}
    for name in BESIDE if beside else WAYS:
        model.load_state_dict(start)
        results[name] = _train(inputs, model, corpus, name)
        if len(results) == 1:
            results[name]["state"] = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    return Outcome(inputs, (model, corpus), results)


def _model(inputs: Run) -> tuple[Any, Any]:
    if inputs.model == "small":
        return material.small(0, context=inputs.context), None
    model, tokenizer = material.own(inputs.model, 0)
    return model.requires_grad_(True), tokenizer


def _corpus(inputs: Run, tokenizer: Any) -> Corpus:
    if inputs.corpus is None and tokenizer is None:
        train, rest = material.source()
    else:
        text = (
            datasets.text_file(inputs.corpus)
            if inputs.corpus
            else bytes(material.source()[0].astype(np.uint8)).decode(errors="replace")
        )
        if tokenizer is None:
            tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
        else:
            tokens = np.array(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)
        border = int(0.9 * len(tokens))
        train, rest = tokens[:border], tokens[border:]
    if min(len(train), len(rest)) < inputs.context + 1:
        raise ValueError(
            f"corpus: {len(train)} tokens to train on and {len(rest)} held out; a window has {inputs.context}: give more text"
        )
    return Corpus(train, material.windows(rest, inputs.context, 64), tokenizer)


def _train(inputs: Run, model: Any, corpus: Corpus, name: str) -> dict[str, Any]:
    import torch

    from gnomon.optimization.muon_river.method import split
    from gnomon.optimization.muon_river.monitor import RiverMonitor
    from gnomon.optimization.muon_river.routing import MuonThenAdamW

    if name == "adamw":
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=inputs.lr_adamw, weight_decay=0.0)
        matrices = split(model)[0]
    else:
        given = inputs.switch
        when: Any = (
            inputs.steps + 1
            if name != "two-stage"
            else "auto"
            if given == "auto"
            else int(given)
            if given.isdigit()
            else float(given)
        )
        optimizer = MuonThenAdamW(
            model, inputs.lr_muon, inputs.lr_adamw, when, inputs.steps, min_steps=inputs.min_steps
        )
        matrices = optimizer.param_groups[0]["params"]
    decay = linear(inputs.steps) if name == "muon linear" else None
    watch = RiverMonitor(optimizer, interval=max(2, inputs.steps // READINGS))
    kept = {id(p) for p in matrices}
    watched = [i for i, p in enumerate(watch.matrices) if id(p) in kept]
    curve = [{"step": 0, "validation": material.validation(model, corpus.held)}]
    every = max(1, inputs.steps // READINGS)
    model.train()
    for step in range(inputs.steps):
        ids = material.batch(corpus.train, inputs.context, 0, step, inputs.batch)
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        if decay is not None:
            optimizer.param_groups[0]["lr"] = inputs.lr_muon * decay(step)
        if name != "adamw":
            optimizer.report(float(loss.detach()))
        optimizer.step()
        if (step + 1) % every == 0 or step + 1 == inputs.steps:
            curve.append({"step": step + 1, "validation": material.validation(model, corpus.held)})
    watch.remove()
    readings = [row for row in watch.history if row["matrix"] in watched]
    return {"curve": curve, "readings": readings, "switched": getattr(optimizer, "switched_at_", None),
            "reason": getattr(optimizer, "reason_", None), "lr2": getattr(optimizer, "lr2_", None)}  # fmt: skip


def curves(outcome: Outcome) -> pd.DataFrame:
    """Validation loss by step, a column for each way."""
    import pandas as pd

    columns = {name: pd.DataFrame(r["curve"]).set_index("step")["validation"] for name, r in outcome.results.items()}
    return pd.DataFrame(columns).reset_index()


def readings(outcome: Outcome) -> pd.DataFrame:
    """Medians over the matrices of the river diagnostics, by way and step."""
    import pandas as pd

    every = pd.concat([pd.DataFrame(r["readings"]).assign(optimiser=name) for name, r in outcome.results.items()])
    columns = ["cosine", "straightness", "flatness", "gradient"]
    return every.groupby(["optimiser", "step"], sort=False, as_index=False)[columns].median()


def present(outcome: Outcome) -> dict[str, Any]:
    """The curves, the diagnostics at the end, and when the switch was made."""
    found, last = outcome.result, readings(outcome)
    table = curves(outcome)
    thinned = table.iloc[np.unique(np.linspace(0, len(table) - 1, 8).astype(int))]
    told = ("no switch: the rule did not fire" if found["switched"] is None
            else f"switched at step {found['switched']} ({found['reason']}); AdamW at {found['lr2']:g}")  # fmt: skip
    return {"validation loss": thinned, "river diagnostics at the end (medians over matrices)": last.groupby("optimiser", sort=False).tail(1),
            "two stages": told}  # fmt: skip


def picture(outcome: Outcome) -> Figure:
    """Validation loss and straightness by step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    table = curves(outcome)
    for name in outcome.results:
        left.plot(table["step"], table[name], label=name)
    for way, rows in readings(outcome).groupby("optimiser", sort=False):
        right.plot(rows["step"], rows["straightness"], label=str(way))
    if outcome.result["switched"] is not None:
        left.axvline(outcome.result["switched"], color="0.6", lw=0.8, ls=":")
    left.set(xlabel="step", ylabel="validation loss (nats)")
    right.set(xlabel="step", ylabel="net displacement / path of two updates", ylim=(0, 1.02))
    left.legend(fontsize=8)
    return figure


def save(outcome: Outcome, directory: Path) -> None:
    """The model that the two stages trained, its tokenizer, and the curves as CSV."""
    model, corpus = outcome.problem
    model.load_state_dict(outcome.result["state"])
    model.save_pretrained(directory)
    if corpus.tokenizer is not None:
        corpus.tokenizer.save_pretrained(directory)
    curves(outcome).to_csv(directory / "curves.csv", index=False)
    readings(outcome).to_csv(directory / "river.csv", index=False)
