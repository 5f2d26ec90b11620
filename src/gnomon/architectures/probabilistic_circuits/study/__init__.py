"""The study of probabilistic circuits: how far from Transformers, because of which part, and by proof or by training?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from gnomon import study
from gnomon.architectures.probabilistic_circuits.study import drawing, person
from gnomon.architectures.probabilistic_circuits.study.contenders import KINDS
from gnomon.architectures.probabilistic_circuits.study.experiments import (
    Certificates,
    Output,
    Queries,
    Ranks,
    Sweep,
    Text,
    Topology,
    WideText,
)
from gnomon.architectures.probabilistic_circuits.study.real import Real
from gnomon.study import always, at_least, at_most, better

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SLACK = 1e-6  # nats, of a bound against an exact expectation in float64
NARROW = [f"{kind} {R}" for kind in KINDS for R in (4, 16)]
WIDE = [f"{kind} 64" for kind in KINDS]
SINGLE = ["hmm, prob", "hmm, prob untied", "hmm, logit", "hmm, logit of log", "transformer, prob"]


def _above(rows: Any) -> Any:
    """How far the exact excess lies above what theory allows this vtree, and any vtree."""
    return np.minimum(rows["excess"] - rows["bound"], rows["excess"] - rows["every_vtree"]) + SLACK


def _head_above(rows: Any) -> Any:
    return rows["least_nll"] - rows["bound"] + SLACK


def _as_certified(rows: Any) -> Any:
    hard = rows["case"] == "K_8"
    return (rows["pairs"] == np.where(hard, 3, 0)) & (rows["needed"] == np.where(hard, 64, 1))


class ProbabilisticCircuitsStudy(study.Study):
    """Probabilistic circuits against Transformers: the output head, the context, and the optimiser."""

    title = "The expressivity boundary of probabilistic circuits: a comparison with Transformers"
    paper = "arXiv 2605.12940"
    bibtex = """@article{zhao2026expressivity,
  title   = {The Expressivity Boundary of Probabilistic Circuits: A Comparison with Large Language Models},
  author  = {Zhao and Liu and Zhang and Liu},
  journal = {arXiv preprint arXiv:2605.12940},
  year    = {2026}
}"""
    question = (
        "Read left to right, a circuit and a Transformer are both an encoder of the past and a head over the next symbol. How "
        "much does the circuit lose by its head, which mixes R rows of probabilities, how much by its context, which passes "
        "R numbers across each cut of one tree, and how much of what is left is the optimiser's?"
    )
    method = (
        "Circuits are smooth and structured-decomposable: R units a node of a vtree, mixtures and products in log space, nodes "
        "of equal height in one matrix product; EM by expected flows or Adam; the next symbol from an incremental downward "
        "pass. A mixture head cannot give V symbols more than R in total, so that a bijection costs log(V / R). The rank across "
        "a cut is at most R, so that m noisy copies across it cost at least m (log V - h) - log R, sharpened by displacement; "
        "with several matchings and a cue every vtree has a cut that some matching crosses often. Where the truth is known the "
        "loss is computed over all states, so that it splits exactly into what theory demands and what training left."
    )
    departures = (
        "Only the abstract was readable: definitions, bounds with their proofs, tasks and experiments are reconstructed.",
        "KL between two circuits of a vtree is tractable by pairwise products only for deterministic ones; others get "
        "enumeration, or an upper bound over symbols and units (`method='latent'`).",
        "Text is words of a Wikipedia excerpt (512 kinds, 40 % of them 'other') in windows of 32, and characters in windows "
        "of 16 for whole-row densities; models have some 10^4 to 10^5 parameters and 300 steps.",
        "Each language model and each model of real rows chooses its learning rate or its steps from two by validation.",
        "The Transformer of the copies is trained on batches of 128 for 800 steps, circuits on batches of 500 for 300.",
        "Fewer matchings and real sequences are run once and reported, not judged; heads at R = 128, four matchings, "
        "Transformers on single matchings, and on crossing copies the random vtrees and Chow-Liu's but at width 16, are left to the extended "
        "scale; language models have 3 seeds at laptop scale.",
        "pyjuice needs a GPU; the benchmark compares with libcirkit (the field's cirkit), spflow and node-by-node evaluation.",
    )
    command = "gnomon run probabilistic-circuits --data data.npy --vtree chow_liu,linear,balanced --width 8 --save kept"
    example = """
import numpy as np

from gnomon.architectures import Circuit, context_bound, separation_rank, vtree, vtree_certificate

X = np.load("data.npy")  # integers [n, T], -1 where missing
pc = Circuit(vtree("chow_liu", data=X), width=8).fit(X, n_steps=50, random_state=0)
print(pc.score(X), pc.conditional(X[:1], query=[3], given=[0, 1]))
print(pc.autoregressive(X[:2]).shape, pc.sample(3))
print(separation_rank(pc, [0, 1]).rank)

print(context_bound(4, 4, 16, noise=0.05))  # four noisy copies across a cut of width 16
print(vtree_certificate([[(0, 1), (2, 3)], [(0, 2), (1, 3)]], 4, 4))
"""
    experiments = (Output, Text, WideText, Topology, Sweep, Ranks, Certificates, Queries, Real)
    claims = [
        always(_head_above, table="Output", on={"contender": "mixture"}, id="output-bound",
               text="No mixture head is below log(V / R) on the bijection, in any start", paper="Output bottleneck (O3)"),
        at_most("above_bound", "mixture", 0.03, table="Output", on={"R": [2, 4, 8, 16]}, each=["V", "R"], id="output-attained",
                text="EM, best of 20 starts, is within 0.03 nats of it where R divides V"),
        at_most("head_nll", "logit", 0.05, table="Output", on={"V": 16, "R": 3}, id="logit-head-three",
                text="A logit head of width 3 is below 0.05 nats for 16 symbols", paper="A logit-space head has no such bound"),
        at_most("single", "mixture", 0.0, table="Output", each=["V", "R"], report=True, id="output-single",
                text="How far a single start of EM stays above the bound"),
        better("text_nll", "hmm, logit", ["hmm, prob", "hmm, prob untied"], table="Text", each="R", id="logit-head-text",
               text="On text, with the same HMM encoder, a logit head is better than a mixture head, tied or with as many parameters",
               paper="A logit head substantially narrows the gap"),
        better("text_nll", "transformer, logit", "transformer, prob", table="Text", each="R", report=True, id="transformer-head",
               text="On text, what a mixture head costs a Transformer"),
        better("text_nll", "transformer, logit", ["hmm, logit", "hmm, prob"], table="Text", each="R", report=True, id="encoders",
               text="On text, a Transformer's lead over the HMM encoder with either head, at as many parameters"),
        at_most("text_entropy", None, 0.0, table="Text", on={"contender": SINGLE}, each=["R", "contender"], report=True,
                id="entropies", text="Mean entropy of the predictions by head"),
        better("text_nll", "hmm, logit", ["hmm, prob", "hmm, prob untied", "transformer, logit"], table="WideText", report=True,
               id="wide-text", text="The same heads at R = 128"),
        at_most("excess", "balanced 16", 0.02, table="Topology", on={"task": "aligned"}, id="aligned",
                text="Copies along the vtree: a circuit of width 16 reaches the entropy within 0.02 nats",
                paper="Circuits match Transformers on vtree-aligned partitions"),
        at_most("excess", "truth as a circuit", 1e-9, table="Topology", on={"task": ["aligned", "crossing", "cue 7"]}, each="task",
                id="exact-circuits", text="On the right vtree, or a sum of them, width V = 4 represents the truth exactly"),
        at_least("beyond", "balanced 4", 0.0, table="Topology", on={"task": "aligned"}, report=True, id="aligned-optimisation",
                 text="What training leaves at width 4 on aligned copies, where width 4 suffices"),
        always(_above, table="Topology", on={"task": ["aligned", "crossing"], "contender": [*NARROW, *WIDE]}, id="context-bound",
               when=lambda tables: "crossing" in set(tables["Topology"]["task"]),
               text="No trained circuit is below its vtree's bound on aligned or crossing copies", paper="Context bottleneck (C3)"),
        at_least("excess", None, 1.0, table="Topology", each="contender", id="crossing",
                 on={"task": "crossing", "contender": ["balanced 4", "balanced 16", "linear 4", "linear 16"]},
                 text="Copies across the vtree: circuits of width up to 16 stay 1 nat or more above the entropy"),
        at_most("excess", "transformer", 0.1, table="Topology", on={"task": "cue 7"}, id="transformer-heterogeneous",
                text="Seven matchings with a cue: a Transformer is within 0.1 nats of the entropy",
                paper="Transformers handle heterogeneous dependencies"),
        at_least("excess", None, 1.5, table="Topology", on={"task": "cue 7", "contender": NARROW}, each="contender",
                 id="heterogeneous", text="and every structured circuit of width up to 16 stays 1.5 nats or more above",
                 paper="Structured circuits degrade severely"),
        at_least("excess", None, 1.5, table="Topology", on={"task": "cue 7", "contender": WIDE}, each="contender",
                 id="width-does-not-rescue", text="as does width 64 at this budget"),
        always(_as_certified, table="Certificates", id="certificates",
               text="Every vtree needs width 64 for the seven matchings of eight variables; one matching demands nothing",
               paper="Strict inclusion of structured in decomposable circuits"),
        always(_above, table="Topology", on={"task": "cue 7", "contender": [*NARROW, *WIDE]}, id="heterogeneous-bound",
               text="No trained structured circuit is below the bound of its vtree, or of all, averaged over the cue"),
        at_least("bound", None, 0.0, table="Topology", on={"task": "cue 7", "contender": ["balanced 4", "balanced 16", "balanced 64"]},
                 each="contender", report=True, id="bound-part", text="Seven matchings: the part of the gap that theory demands"),
        at_least("beyond", None, 0.0, table="Topology", on={"task": "cue 7", "contender": ["balanced 4", "balanced 16", "balanced 64"]},
                 each="contender", report=True, id="optimisation-part", text="and the part that training leaves"),
        at_most("excess", "oracle vtrees", 0.5, table="Topology", on={"task": "cue 7"}, id="oracle-vtrees",
                text="One vtree for each cue value, the right ones: within 0.5 nats of the entropy at 8,000 parameters",
                paper="Decomposable circuits are strictly more expressive"),
        at_least("excess", "random vtrees", 1.5, table="Topology", on={"task": "cue 7"}, id="random-vtrees",
                 text="with random ones of equal size: 1.5 nats or more above", paper="Optimisation remains an open challenge"),
        at_least("excess", None, 0.0, table="Topology", on={"task": "cue 7", "contender": ["oracle vtrees, EM", "random vtrees, EM"]},
                 each="contender", report=True, id="vtrees-em", text="The same by EM"),
        at_least("excess", None, 0.0, table="Sweep", each=["task", "contender"], report=True, id="sweep",
                 text="Fewer matchings, two without a cue, and Transformers on all: nats above the entropy"),
        always(lambda rows: 4.0 - rows["rank_6"], table="Ranks", on={"contender": ["circuit 4", "random circuit 4"], "kind": "root cut"},
               id="rank-at-the-root", text="A circuit of width 4 has rank at most 4 across the root's cut, on every task",
               paper="The separation rank across a cut is at most the width"),
        at_least("rank_6", "circuit 4", 17, table="Ranks", on={"task": "aligned", "V": 4, "kind": "sibling split"}, id="rank-aligned",
                 text="trained on aligned copies it has rank above 16 across the partition that splits every pair",
                 paper="Circuits match Transformers on vtree-aligned partitions"),
        at_least("rank_6", "transformer", 17, table="Ranks", on={"task": "crossing", "V": 4, "kind": "root cut"}, id="rank-transformer",
                 text="and a Transformer trained on crossing copies has rank above 16 across the root's cut"),
        at_least("rank_2", None, 0, table="Ranks", on={"V": 4, "kind": ["root cut", "sibling split"]},
                 each=["task", "kind", "contender"], report=True, id="ranks-coarse", text="Singular values above 1e-2 of the largest"),
        always(lambda rows: 1e-9 - np.maximum(rows["query_error"], rows["mass_error"]), table="Queries", id="exact-queries",
               text="Trained circuits answer conditionals in any order as enumeration does", paper="Tractable exact inference"),
        better("row_nll", "chow_liu 16", ["balanced 16", "linear 16", "random 16"], table="Real", each="data", report=True, id="real-vtrees",
               text="Chorales and text: what the Chow-Liu vtree gains over others"),
        better("row_nll", "transformer", ["chow_liu 16", "linear 16", "sum of vtrees", "chow_liu tree"], table="Real", each="data",
               report=True, id="real-transformer", text="Chorales and text: a Transformer's lead over circuits"),
    ]  # fmt: skip

    class Inputs(study.Inputs):
        """How much is trained on how much."""

        seeds: int = Field(5, ge=1, description="number of seeds")
        steps: int = Field(
            300, ge=1, description="steps of a circuit or language model (a Transformer of copies takes 8/3)"
        )
        rows: int = Field(20000, ge=16, description="training rows of the copy tasks (half as many windows of text)")
        restarts: int = Field(20, ge=1, description="starts of a mixture head")
        em_steps: int = Field(500, ge=1, description="EM steps of a mixture head")
        vocabulary: int = Field(512, ge=8, description="words of the text experiments")
        train_words: int = Field(200_000, ge=1000, description="words that language models are trained on")
        length: int = Field(32, ge=2, description="words in a window")
        batch: int = Field(16, ge=1, description="windows a step")
        windows: int = Field(256, ge=1, description="held-out windows")
        scales = {
            "smoke": {
                "seeds": 1, "steps": 20, "rows": 1000, "restarts": 3, "em_steps": 50, "vocabulary": 64, "train_words": 5000,
                "length": 16, "windows": 16, "WideText": False,
                "Output": {"cells": [{"V": 16, "R": 3}, {"V": 16, "R": 4}]},
                "Text": {"cells": [{"R": 8}], "contenders": ["hmm, logit", "hmm, prob", "hmm, prob untied", "transformer, logit"]},
                "Topology": {"contenders": ["balanced 4", "linear 4", "oracle vtrees, EM", "truth as a circuit"],
                             "cells": {"task": ["aligned", "crossing", "cue 7"]}},
                "Sweep": {"cells": {"task": ["mixed"]}, "contenders": ["balanced 4", "truth as a circuit"]},
                "Ranks": {"cells": [{"task": "crossing", "V": 4}], "contenders": ["circuit 4", "random circuit 4"]},
                "Queries": {"cells": [{"order": 0}], "contenders": ["balanced 16", "oracle vtrees"]},
                "Real": {"cells": {"data": ["text"]}, "contenders": ["chow_liu 16", "chow_liu tree", "transformer"]},
            },
            "laptop": {"Text": {"seeds": 3}, "WideText": False, "Sweep": {"cells": {"task": ["cue 1", "cue 2", "mixed"]}}},
            "extended": {"seeds": 10, "steps": 1000},
            "paper": {"vocabulary": 8192, "steps": 20000, "rows": 200_000, "train_words": 300_000, "length": 128, "batch": 64,
                      "Text": {"cells": study.grid(R=[1024, 4096])}},
        }  # fmt: skip

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure | None:
        """What theory demands and what training leaves; text by head; ranks."""
        return drawing.evidence(tables)

    # --- gnomon run ---

    Run = person.Run

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        return person.operate(inputs, beside)

    def present(self, outcome: study.Outcome) -> dict[str, Any]:
        return person.present(outcome)

    def picture(self, outcome: study.Outcome) -> Figure:
        return drawing.person(person.table(outcome))

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        person.save(outcome, directory)
