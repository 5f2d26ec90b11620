"""``gnomon run``: a person's own model and text, and what they see of the result."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from gnomon import datasets, models
from gnomon.study import Inputs, Outcome
from gnomon.surgery.ghosted_layers.study.contenders import CLASSES, MAIN
from gnomon.surgery.ghosted_layers.study.experiments import split

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.figure import Figure

    from gnomon.surgery.ghosted_layers.moments import BoundaryMoments
    from gnomon.surgery.ghosted_layers.selection import LayerSimilarity

log = logging.getLogger(__name__)

HELD_OUT_SHARE = 0.2  # of the text, from its end: never used for fitting
SHOWN = ("dense", "none", "linearpatch-d", "ghost", "weighted")
BESIDE = {**MAIN, **{name: CLASSES[name] for name in ("affine", "symmetric", "orthogonal")}}
Kept = Literal[
    "ghost", "weighted", "affine", "symmetric", "orthogonal", "linearpatch-d", "linearpatch-r", "replaceme", "none"
]


class Run(Inputs):
    """What a person gives."""

    model: models.ModelRef = Field(models.EMBEDDED, description="local folder, embedded:smollm2, or hub name")
    drop: str | None = Field(
        None, description="blocks to remove, A:B (half-open); overrides --n-remove and --criterion"
    )
    n_remove: int = Field(5, description="number of blocks to remove")
    criterion: Literal["streamline", "shortgpt", "angular"] = Field("streamline", description="which blocks go")
    calibration: datasets.TextPath | None = Field(None, description="text file (default: English Wikipedia articles)")
    operator: Kept = Field("ghost", description="what --save keeps: " + ", ".join(Kept.__args__))  # type: ignore[attr-defined]
    tokens: int = Field(8192, ge=1, description="calibration tokens at most")
    window: int = Field(256, ge=2, description="tokens in a window")


@dataclass
class Surgery:
    """One model, what goes, and the statistics of its boundaries."""

    lm: models.LM
    similarity: LayerSimilarity
    removed: list[int]
    stats: dict[tuple[int, int], BoundaryMoments]
    held_out: torch.Tensor


def operate(inputs: Run, beside: bool) -> Outcome:
    """Choose the blocks, collect the statistics, and measure the perplexity of each contender on held-out text."""
    problem = _prepare(inputs)
    names = dict.fromkeys((inputs.operator, *(BESIDE if beside else SHOWN)))  # what is kept comes first
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        made = {} if name == "dense" else {run: BESIDE[name](stats) for run, stats in problem.stats.items()}
        short = problem.lm.model if name == "dense" else shortened(problem, made)
        results[name] = {"made": made, "perplexity": models.perplexity(short, problem.held_out),
                         "parameters": sum(p.numel() for p in short.parameters())}  # fmt: skip
    return Outcome(inputs, problem, results)


def _prepare(inputs: Run) -> Surgery:
    from gnomon.surgery.ghosted_layers.calibrate import batches, collect
    from gnomon.surgery.ghosted_layers.hadamard import rotation
    from gnomon.surgery.ghosted_layers.selection import check_count, parse_layers, runs

    lm = models.load(inputs.model)
    parts = models.structure(lm.model)
    depth = len(parts.blocks)
    removed = None if inputs.drop is None else parse_layers(inputs.drop, depth)
    if removed is not None and depth - 1 in removed:
        raise ValueError(f"drop: {inputs.drop} removes the last block, {depth - 1}, which has to stay")
    if removed is not None and removed[0] == 0 and inputs.operator == "replaceme":
        raise ValueError("operator: replaceme is folded into the block before the cut, and block 0 has none")
    if removed is None:
        check_count(inputs.n_remove, depth)
        if inputs.n_remove == 0:
            raise ValueError("n_remove: got 0; expected at least 1 block to remove")
    fitting, held_out = _text(inputs, lm)
    data = batches(fitting)
    _, similarity = collect(lm.model, data, similarity=True)
    assert similarity is not None
    removed = removed or similarity.choose(inputs.n_remove, inputs.criterion)
    log.info("removing blocks %s", removed)
    size = parts.hidden_size
    stats, _ = collect(lm.model, data, runs(removed), row_weight="sqrt", scales=True, rotation=rotation(size),
                       mlp=removed[0] > 0)  # fmt: skip
    return Surgery(lm, similarity, removed, stats, held_out)


def _text(inputs: Run, lm: models.LM) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows to fit on, from the first 80 % of the text, and held-out windows from the rest."""
    if inputs.calibration is None:
        text = "\n\n".join(datasets.wikipedia())
    else:
        text = datasets.text_file(inputs.calibration)
    border = int(len(text) * (1 - HELD_OUT_SHARE))
    parts = []
    for name, piece, most in (
        ("first 80 %", text[:border], inputs.tokens),
        ("last 20 %", text[border:], 16 * inputs.window),
    ):
        n = len(lm.tokenizer(piece[: 16 * most], add_special_tokens=False, verbose=False).input_ids) // inputs.window
        if n == 0:
            raise ValueError(f"calibration: the {name} of the text is shorter than one window of {inputs.window} tokens; "
                             "give more text, or a smaller --window")  # fmt: skip
        parts.append(
            models.encode(
                lm.tokenizer, [piece[: 16 * most]], inputs.window, n=max(1, min(n, most // inputs.window) - 1)
            )
        )
    return parts[0], parts[1]


def shortened(problem: Surgery, made: dict[tuple[int, int], Any]) -> Any:
    """The short model with what a contender made; plain removal where it made the identity."""
    from gnomon.surgery.ghosted_layers.model import shorten

    operators, folds = split(made)
    return shorten(problem.lm.model, problem.removed, operators, folds, keep="share")


def table(outcome: Outcome) -> pd.DataFrame:
    """Perplexity and size of each contender."""
    import pandas as pd

    dense = math.log(outcome.results["dense"]["perplexity"])
    return pd.DataFrame(
        {"model": name, "perplexity": r["perplexity"], "nll above dense": math.log(r["perplexity"]) - dense,
         "parameters (M)": r["parameters"] / 1e6} for name, r in outcome.results.items()
    )  # fmt: skip


def present(outcome: Outcome) -> dict[str, Any]:
    """The sink table, what was removed, the perplexities."""
    problem = outcome.problem
    tokens = next(iter(problem.stats.values())).n
    width = next(iter(problem.stats.values())).size
    crossing = "which includes the block that makes the attention sink" if problem.similarity.crosses_sink(problem.removed) else (
        f"which keeps block {problem.similarity.sink_block}, where the attention sink arises")  # fmt: skip
    lines = [f"removed blocks {', '.join(map(str, problem.removed))} of {problem.similarity.layers}, {crossing}",
             f"fitted on {tokens} tokens ({tokens / width:.1f} per channel); perplexity on {problem.held_out.numel()} held-out tokens",
             f"kept by --save: {outcome.inputs.operator}"]  # fmt: skip
    if tokens < 4 * width:
        lines.append("fewer than 4 tokens per channel: give more text, or keep 'weighted', whose ridge is made for it")
    return {"norms of the residual stream at each layer": problem.similarity.sink_table(), "perplexity": table(outcome),
            "what was done": "\n".join(lines)}  # fmt: skip


def picture(outcome: Outcome) -> Figure:
    """Perplexity of each contender, and the norms of the residual stream with the cut."""
    from matplotlib.figure import Figure

    rows, problem = table(outcome), outcome.problem
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.barh(
        rows["model"], rows["perplexity"], color=["C1" if m == outcome.inputs.operator else "C0" for m in rows["model"]]
    )
    left.set(xscale="log", xlabel="perplexity on held-out text")
    left.invert_yaxis()
    sink = problem.similarity.sink_table()
    right.semilogy(sink["layer"], sink["first_token_norm"], label="first token (mean)")
    right.semilogy(sink["layer"], sink["median_norm"], label="other tokens (median)")
    for layer in problem.removed:
        right.axvspan(layer, layer + 1, color="0.9", lw=0)
    right.set(xlabel="layer (removed blocks shaded)", ylabel="norm of the residual stream")
    right.legend()
    return figure


def save(outcome: Outcome, directory: Path) -> None:
    """The short model and its tokenizer, as transformers writes them."""
    from safetensors import SafetensorError
    from transformers.utils import logging as theirs

    theirs.disable_progress_bar()  # type: ignore[no-untyped-call]
    short = shortened(outcome.problem, outcome.results[outcome.inputs.operator]["made"])
    try:
        short.save_pretrained(directory)
        outcome.problem.lm.tokenizer.save_pretrained(directory)
    except SafetensorError as error:  # a full disk, as seen by the writer of weights
        raise OSError(f"the model cannot be written: {error}") from error
