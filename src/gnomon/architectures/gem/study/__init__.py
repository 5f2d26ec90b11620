"""The study of GEM: what drawing states into the hull does to prediction, geometry, decoding and faithfulness."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from gnomon import datasets, study
from gnomon.architectures.gem.study import drawing, person
from gnomon.architectures.gem.study.experiments import (
    Cost,
    Curves,
    Decoding,
    Faithfulness,
    Geometry,
    Memory,
    Predictions,
    Reference,
    Variants,
)
from gnomon.architectures.gem.study.recipes import CE, JUDGED, OTHERS, SHOWN
from gnomon.study import always, better, estimate, grid

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

GEM, STRONG, ALL, PLAIN = ({"objective": name} for name in ("mse 0.1", "mse 1", "all 0.1", CE))
TRAINED = {"contender": "as trained"}
UNTUNED = {"contender": "logit lens"}
FINAL, INNER = {"final": True}, {"inner": True, **UNTUNED}
ABSTRACT = "Abstract (the paper's only text that was found): "
FAITHFUL = ABSTRACT + "decoded layers are causally faithful"
DECODED = ABSTRACT + "intermediate layers decode directly with the untuned head"


class GEMStudy(study.Study):
    """Small language models trained with and without GEM, on the same batches."""

    title = "Geometric Embedding Mixture: pre-training inside the vocabulary's hull"
    paper = (
        "GEM: Geometric Embedding Mixture, NeurIPS 2026 (neither text nor code found; reconstructed from the abstract)"
    )
    bibtex = """@inproceedings{gem2026,
  title     = {Geometric Embedding Mixture},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2026},
  note      = {Only the abstract was available}
}"""
    question = (
        "A causal language model is trained with a term that asks its final hidden state to equal the mixture of token embeddings "
        "that it predicts. Do the states move into the hull of the embeddings, at what cost in perplexity, and do calibration, "
        "anisotropy, the decoding of earlier layers with the model's own head and the causal weight of what is decoded get better?"
    )
    method = (
        "L = CE + lambda G with G = ||h - m||² / mean||e||², m = E' softmax(beta E h), the mixture held fixed, lambda rising over the "
        "first tenth of the training. h - m is the gradient of the free energy ||h||²/2 - log sum exp(beta E h) / beta. All runs have "
        "the scale rule: the final norm's gain starts at mean||e|| / sqrt(d) and the logits' scale beta at its inverse, both trained."
    )
    command = "gnomon run gem --model model --text text.txt"
    example = """
from pathlib import Path

import transformers
from gnomon import models
from gnomon.architectures import GEMTrainer, gem_diagnostics

lm = models.load("model")  # a folder in Hugging Face format, or models.EMBEDDED
texts = Path("text.txt").read_text().split("\\n\\n")
ids = models.encode(lm.tokenizer, texts, length=32)
data = [{"input_ids": row, "labels": row} for row in ids]
args = transformers.TrainingArguments("runs", max_steps=3, per_device_train_batch_size=4, save_strategy="no", report_to=[])
model = lm.copy()
GEMTrainer(model=model, args=args, train_dataset=data, gem_lambda=0.1).train()
model.save_pretrained("trained")
print(gem_diagnostics(model, texts, tokenizer=lm.tokenizer, length=32).to_frame())
"""
    departures = (
        "Only the abstract was found: the objective, its variants, the gradients, the metrics of faithfulness and the scale rule are "
        "a reconstruction.",
        "Models of 4 layers and width 64 on a vocabulary of 1,024 words see 0.3 million tokens of a Wikipedia excerpt (300 steps of "
        "1,024), instead of 135 to 760 million parameters from scratch: the verdicts speak of this scale. The width (96 in the "
        "prototype behind the bounds) and the steps (350) were cut so that a check takes five minutes.",
        "The layers of apply_to='all' are the streams after each block, 1 to L; the embeddings themselves (layer 0) are left out.",
        "The fused loss makes its gradients on the way forward: (p - onehot) E = m - e_target serves the cross-entropy too, so that "
        "with the mixture detached the term costs no further product with E.",
        "The free energy is judged in units of mean||e||², since a change of unit of h and E moves F itself.",
        "Causal faithfulness is judged for mse 0.1 at layer L/2, on the last of 32 tokens of each of 200 windows.",
        "At laptop scale seven of the other variants run, on one seed; all of them at the extended scale (on all seeds with --full).",
        "The run without the scale rule is normalised by mean||e||² like the others (the prototype divided by d there): ||h||² is then "
        "thousands of times that at the start, and at lambda = 1 the model does not learn.",
        "Faithfulness (a) removes the span of the rows of E, as the abstract's hull suggests, not of the rows times the norm's gain.",
    )
    experiments = (Predictions, Curves, Geometry, Decoding, Faithfulness, Variants, Reference, Cost, Memory)
    claims = [
        better("ratio", GEM, PLAIN, factor=1 / 0.8, table="Geometry", on=FINAL, id="ratio-0.1",
               text="At lambda = 0.1 the residual ratio E||h - m||²/E||h||² is at most 0.8 of the baseline's",
               paper=ABSTRACT + "final states become mixtures of embeddings"),
        better("ratio", STRONG, PLAIN, factor=1 / 0.55, table="Geometry", on=FINAL, id="ratio-1",
               text="At lambda = 1 it is at most 0.55 of the baseline's", paper="As above"),
        better("cosine_hm", GEM, PLAIN, table="Geometry", on=FINAL, id="cosine-0.1",
               text="At lambda = 0.1 the cosine of state and mixture is above the baseline's", paper="As above"),
        better("cosine_hm", STRONG, PLAIN, table="Geometry", on=FINAL, id="cosine-1",
               text="At lambda = 1 the cosine of state and mixture is above the baseline's", paper="As above"),
        better("energy", GEM, PLAIN, table="Geometry", on=FINAL, id="energy-0.1",
               text="At lambda = 0.1 the free energy, in units of mean||e||², is below the baseline's",
               paper=ABSTRACT + "a free-energy reading"),
        better("energy", STRONG, PLAIN, table="Geometry", on=FINAL, id="energy-1",
               text="At lambda = 1 the free energy, in units of mean||e||², is below the baseline's", paper="As above"),
        always(lambda r: r["descent"] + 1e-9, table="Geometry", on=FINAL, id="descent",
               text="One step to the mixture lowers the free energy by at least half the squared residual, at every state",
               paper=ABSTRACT + "a free-energy reading"),
        always(lambda r: r["residual"] - r["distance"] + 1e-6, table="Geometry", on=FINAL, id="hull-distance",
               text="The exact distance to the hull is at most the residual", paper="The mixture lies in the hull"),
        better("ratio", {"objective": "plain mse 1"}, {"objective": "plain ce"}, table="Variants", report=True, id="without-scale-rule",
               text="Without the scale rule, lambda = 1 against the baseline: the change of the residual ratio", paper="Not in the abstract"),
        better("nll", GEM, PLAIN, table="Predictions", on=TRAINED, each="domain", id="perplexity",
               text="At lambda = 0.1 the negative log-likelihood is below the baseline's, in and out of domain",
               paper=ABSTRACT + "perplexity down by up to 53 % on benchmarks"),
        better("nll", GEM, PLAIN, by=-0.02, table="Predictions", on=TRAINED, each="domain", id="perplexity-kept",
               text="At lambda = 0.1 the negative log-likelihood is at most 0.02 nats above the baseline's, in and out of domain",
               paper="As above, as non-inferiority"),
        better("nll_equal_time", GEM, PLAIN, table="EqualTime", report=True, id="perplexity-equal-time",
               text="The same at equal time of training", paper="As above"),
        better("ece", GEM, PLAIN, table="Predictions", on={**TRAINED, "domain": "in"}, id="ece",
               text="At lambda = 0.1 the expected calibration error is below the baseline's",
               paper=ABSTRACT + "better uncertainty"),
        better("aurc", GEM, PLAIN, table="Predictions", on={**TRAINED, "domain": "in"}, id="aurc",
               text="At lambda = 0.1 the area under the risk-coverage curve is below the baseline's", paper="As above"),
        better("ece", GEM, PLAIN, by=-0.015, table="Predictions", on={**TRAINED, "domain": "in"}, id="ece-kept",
               text="At lambda = 0.1, without a temperature, the expected calibration error is at most 0.015 above the baseline's",
               paper="As above, as non-inferiority"),
        better("cosine", GEM, PLAIN, table="Geometry", on=FINAL, id="anisotropy",
               text="At lambda = 0.1 the mean cosine of two final states is below the baseline's",
               paper=ABSTRACT + "anisotropy is mitigated"),
        better("centred_cosine", GEM, PLAIN, table="Geometry", on=FINAL, report=True, id="anisotropy-centred",
               text="The same after the mean state is removed", paper="As above"),
        better("effective_rank", GEM, PLAIN, table="Geometry", on=FINAL, report=True, id="effective-rank",
               text="The effective rank of the final states' covariance", paper="As above"),
        better("lens_kl", GEM, PLAIN, table="Decoding", on=INNER, id="decoding-0.1",
               text="At lambda = 0.1 the divergence of what layers 1 to L - 1 decode to is below the baseline's", paper=DECODED),
        better("lens_kl", STRONG, PLAIN, table="Decoding", on=INNER, id="decoding-1", text="The same at lambda = 1", paper=DECODED),
        better("lens_kl", ALL, PLAIN, table="Decoding", on=INNER, id="decoding-all", text="The same with the term on all layers", paper=DECODED),
        estimate("share", "all 0.1", at_least=0.0, table="TunedShare", report=True, id="tuned-share",
                 text="Share of a tuned lens's gain over the untuned one that the term on all layers reaches", paper="Not in the abstract"),
        better("ablation", GEM, PLAIN, table="Faithfulness", id="faithful-ablation",
               text="Removing the decoded tokens' span costs the final token more, beyond a random subspace, than in the baseline",
               paper=FAITHFUL),
        better("swap", GEM, PLAIN, table="Faithfulness", id="faithful-swap",
               text="The lens predicts the effect of a push from one token to another better than in the baseline", paper=FAITHFUL),
        better("response", GEM, PLAIN, table="Faithfulness", id="faithful-response",
               text="Lens and model respond more alike to random pushes than in the baseline", paper=FAITHFUL),
        better("step", "mse 0.1", CE, factor=1 / 1.35, table="Cost", unit="repeat", id="cost",
               text="A training step takes at most 1.35 of the time with plain cross-entropy", paper="Not in the abstract"),
        always(lambda r: 0.5 - r["memory_share"], table="MemoryShare", id="memory",
               text="The fused loss holds at most half of the naive loss's memory at a vocabulary of 49,152 and 4,096 tokens",
               paper="Not in the abstract"),
    ]  # fmt: skip

    class Inputs(study.Inputs):
        """What is trained on what."""

        seeds: int = Field(5, ge=1, description="number of seeds")
        corpus: datasets.TextPath | None = Field(
            None, description="text file to train on (default: English Wikipedia articles)"
        )
        vocabulary: int = Field(1024, ge=16, description="words that are told apart")
        length: int = Field(64, ge=32, description="words in a window")
        windows: int = Field(200, ge=4, description="held-out windows of each kind")
        width: int = Field(64, ge=16, multiple_of=16, description="width of the model")
        depth: int = Field(4, ge=2, description="number of blocks")
        steps: int = Field(300, ge=8, description="training steps of 16 windows")
        full: bool = Field(False, description="all other variants on all seeds, not the first alone")
        scales = {
            "smoke": {"seeds": 2, "width": 32, "depth": 3, "steps": 16, "windows": 20, "vocabulary": 256,
                      "Variants": {"cells": {"objective": ["plain ce", "plain mse 1"]}},
                      "Reference": False, "Cost": {"contenders": ["mse 0.1", CE]}, "Memory": {"cells": grid(tokens=[4096], vocabulary=[8192])}},
            "laptop": {"Variants": {"cells": {"objective": list(SHOWN)}}},
            "extended": {"width": 96, "steps": 1200, "Variants": {"cells": {"objective": OTHERS}}},
            "paper": {"width": 576, "depth": 30, "vocabulary": 32768, "length": 1024, "steps": 20000},
        }  # fmt: skip

    def derive(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Likelihood at equal time, the share of a tuned lens's gain, and the fused loss's share of memory."""
        import pandas as pd

        found = {}
        if len(tables.get("Curves", ())) and len(tables.get("Cost", ())):
            found["EqualTime"] = equal_time(tables["Curves"], tables["Cost"])
        if len(tables.get("Decoding", ())):
            inner = tables["Decoding"].query("inner")
            means = inner.groupby(["objective", "contender", "seed"])["lens_kl"].mean()
            base, best = means[CE, "logit lens"], means[CE, "tuned lens"]
            found["TunedShare"] = pd.concat(
                pd.DataFrame({"contender": name, "share": (base - means[name, "logit lens"]) / (base - best)}).reset_index()
                for name in JUDGED if name != CE
            )  # fmt: skip
        if len(tables.get("Memory", ())):
            held = tables["Memory"].pivot_table("held_mb", ["tokens", "vocabulary"], "contender").reset_index()
            found["MemoryShare"] = held.assign(memory_share=held["fused"] / held["naive"])
        return found

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure:
        """Likelihood against residual ratio; the lens and the cone by layer."""
        return drawing.evidence(tables)

    # --- gnomon run ---

    Run = person.Run

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        return person.operate(inputs, beside)

    def present(self, outcome: study.Outcome) -> dict[str, Any]:
        return person.present(outcome)

    def picture(self, outcome: study.Outcome) -> Figure:
        return person.picture(outcome)

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        person.save(outcome, directory)


def equal_time(curves: pd.DataFrame, cost: pd.DataFrame) -> pd.DataFrame:
    """Held-out likelihood of each objective when it has trained for as long as the baseline's whole training takes."""
    import pandas as pd

    seconds = cost.groupby("contender")["step"].min()
    rows = []
    for (name, seed), part in curves[curves["objective"].isin(seconds.index)].groupby(["objective", "seed"]):
        part = part.sort_values("step")
        at = part["step"].max() * min(1.0, seconds[CE] / seconds[str(name)])
        rows.append({"objective": name, "seed": seed, "nll_equal_time": np.interp(at, part["step"], part["held_nll"])})
    return pd.DataFrame(rows)
