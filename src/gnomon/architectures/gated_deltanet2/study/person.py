"""``gnomon run``: a language model of one's own text with a chosen mixer, or needles for any model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from gnomon import datasets, models
from gnomon.architectures.gated_deltanet2.study import drawing
from gnomon.study import Options, Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIXERS = ("gdn2", "kda", "gdn", "mamba2")
HELD_OUT_SHARE = 0.1  # of the text, from its end


class Run(Options):
    """What a person gives: a text to train on, or a model to look for needles with."""

    corpus: datasets.TextPath | None = Field(None, description="text file (UTF-8) to train a model on")
    mixer: Literal["gdn2", "kda", "gdn", "mamba2"] = Field("gdn2", description="which: " + ", ".join(MIXERS))
    hybrid: bool = Field(False, description="every second layer sliding-window attention")
    model: models.ModelRef | None = Field(None, description="evaluate this causal language model on needles instead")
    steps: int = Field(300, ge=1, description="training steps")
    width: int = Field(128, ge=8, description="hidden size")
    depth: int = Field(2, ge=1, description="layers")
    heads: int = Field(4, ge=1, description="heads of each layer")
    vocabulary: int = Field(1024, ge=257, description="byte-pair tokens")
    length: int = Field(128, ge=8, description="tokens in a training window, or in the shortest needle prompt")
    batch: int = Field(8, ge=1, description="windows in a step")
    lr: float = Field(3e-3, gt=0, description="highest learning rate")
    needles: int = Field(5, ge=1, description="prompts of each kind and length")
    seed: int = Field(0, ge=0, description="of initial weights and windows")

    @model_validator(mode="after")
    def _one(self) -> Any:
        if (self.corpus is None) == (self.model is None):
            raise ValueError("give --corpus or --model, one of the two")
        if self.corpus is not None and (self.width % self.heads or self.width // self.heads % 2):
            raise ValueError(f"width {self.width} must be an even multiple of heads {self.heads}")
        return self


@dataclass
class Text:
    """A text in its own tokens, and the models trained on it."""

    tokenizer: Any
    train: np.ndarray
    held_out: np.ndarray
    models: dict[str, Any]


def operate(inputs: Run, beside: bool) -> Outcome:
    """Train the chosen mixer (with ``beside`` every one), or evaluate the given model."""
    if inputs.model is not None:
        return Outcome(inputs, None, {"needles": _needles(inputs)})
    problem = _text(inputs)
    names = dict.fromkeys((inputs.mixer, *(MIXERS if beside else ())))
    return Outcome(inputs, problem, {name: _trained(inputs, problem, name) for name in names})


def _text(inputs: Run) -> Text:
    from gnomon.architectures.gated_deltanet2.text import encode, learn_tokenizer

    assert inputs.corpus is not None
    text = datasets.text_file(inputs.corpus)
    border = int(len(text) * (1 - HELD_OUT_SHARE))
    tokenizer = learn_tokenizer(text[:border], inputs.vocabulary)
    train, held_out = encode(tokenizer, text[:border]), encode(tokenizer, text[border:])
    for name, tokens in (("first 90 %", train), ("last 10 %", held_out)):
        if len(tokens) < inputs.length + 2:
            raise ValueError(f"corpus: its {name} are {len(tokens)} tokens, fewer than a window of {inputs.length + 2}; "
                             "give more text, or a smaller --length")  # fmt: skip
    return Text(tokenizer, train, held_out, {})


def _trained(inputs: Run, problem: Text, name: str) -> dict[str, Any]:
    import time

    import torch
    from rich.progress import track

    from gnomon.architectures.gated_deltanet2.baselines import build
    from gnomon.architectures.gated_deltanet2.diagnostics import gate_statistics
    from gnomon.architectures.gated_deltanet2.training import held_out_nll, train, windows

    torch.manual_seed(inputs.seed)
    model = build(
        name, hybrid=inputs.hybrid, vocab_size=len(problem.tokenizer), hidden_size=inputs.width,
        num_hidden_layers=inputs.depth, num_heads=inputs.heads, head_dim=inputs.width // inputs.heads,
        sliding_window=max(2, inputs.length // 2), eos_token_id=problem.tokenizer.eos_token_id,
        pad_token_id=problem.tokenizer.pad_token_id,
    )  # fmt: skip
    data = windows(torch.from_numpy(problem.train), inputs.batch, inputs.length, np.random.default_rng(inputs.seed))
    bar = iter(track(range(inputs.steps), description=f"training {name}", transient=True))
    start = time.perf_counter()
    losses = train(model, data, inputs.steps, inputs.lr, lambda step: next(bar, None))  # type: ignore[arg-type]
    spent = time.perf_counter() - start
    next(bar, None)
    held_out = torch.from_numpy(problem.held_out)
    nll = held_out_nll(model, held_out, max(1, min(64, len(held_out) // inputs.length)), inputs.length)
    problem.models[name] = model
    gates = gate_statistics(model, held_out[None, : inputs.length])
    return {"nll": nll, "losses": losses, "tokens_per_s": inputs.steps * inputs.batch * inputs.length / spent,
            "parameters": sum(p.numel() for p in model.parameters()), **gates}  # fmt: skip


def _needles(inputs: Run) -> list[dict[str, Any]]:
    from gnomon.architectures.gated_deltanet2.ruler import KINDS, evaluate, hide
    from gnomon.architectures.gated_deltanet2.text import sentences

    assert inputs.model is not None
    lm = models.load(inputs.model)
    essay = sentences("\n".join(datasets.wikipedia()[:20]))
    rng = np.random.default_rng(inputs.seed)
    rows = []
    for kind in KINDS:
        for times in (1, 2, 4):
            drawn = [hide(kind, times * inputs.length, lm.tokenizer, essay, rng, depth)
                     for depth in np.linspace(0, 1, inputs.needles)]  # fmt: skip
            found = evaluate(lm.model, lm.tokenizer, drawn)
            rows.append({"kind": kind, "tokens": times * inputs.length,
                         "found": float(np.mean([r["correct"] for r in found])),
                         "nll": float(np.mean([r["nll"] for r in found])), "prompts": len(found)})  # fmt: skip
    return rows


def present(outcome: Outcome) -> Any:
    """Needles by kind and length; or held-out loss, size and speed of each mixer."""
    import pandas as pd

    if outcome.problem is None:
        return {"needles": pd.DataFrame(outcome.result)}
    shown = ("nll", "parameters", "tokens_per_s", "eta", "norm_mean", "norm_max")
    table = pd.DataFrame({"mixer": name, **{k: r[k] for k in shown if k in r}} for name, r in outcome.results.items())
    own = outcome.result
    return {
        "models": table,
        "summary": f"held-out perplexity {math.exp(own['nll']):.1f} a token after {outcome.inputs.steps} steps "
                   f"({own['parameters']:,} parameters)",
    }  # fmt: skip


def picture(outcome: Outcome) -> Figure:
    """The training loss of each mixer."""
    if outcome.problem is None:
        raise ValueError("--figure shows training: give --corpus")
    return drawing.trained({name: r["losses"] for name, r in outcome.results.items()})


def save(outcome: Outcome, directory: Path) -> None:
    """The model and its tokenizer, as transformers writes them."""
    if outcome.problem is None:
        raise ValueError("--save keeps a trained model: give --corpus")
    outcome.problem.models[outcome.inputs.mixer].save_pretrained(directory)
    outcome.problem.tokenizer.save_pretrained(directory)
