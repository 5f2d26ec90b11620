"""The study of conformal abstention: are the guarantees kept, and does geometry sharpen the score?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gnomon import study
from gnomon.datasets import TextPath
from gnomon.guarantees.conformal_abstention.study import drawing, person
from gnomon.guarantees.conformal_abstention.study.claims import CLAIMS
from gnomon.guarantees.conformal_abstention.study.experiments import Cost, Ranking, Shift, Splits, Synthetic
from gnomon.guarantees.conformal_abstention.study.tables import side_by_side, validity
from gnomon.models import EMBEDDED, ModelRef

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class ConformalAbstentionStudy(study.Study):
    """Conformal abstention on known worlds and on a small language model."""

    title = "Geometry-calibrated conformal abstention for language models"
    paper = "arXiv 2604.27914"
    bibtex = """@article{conformal2026abstention,
  title   = {Geometry-Calibrated Conformal Abstention for Language Models},
  journal = {arXiv preprint arXiv:2604.27914},
  year    = {2026}
}"""
    question = (
        "A language model should say that it does not know instead of inventing. Can it be made to answer a chosen share of questions, and to be "
        "right in a chosen share of its answers, with finite-sample guarantees; and does the geometry of its hidden states tell better than its "
        "confidence when to answer?"
    )
    method = (
        "Labelled questions are split: one part fits the score and chooses every level, the other calibrates. Answer iff the score reaches a threshold: "
        "the k-th smallest score bounds participation, conformal risk control the joint error, Clopper-Pearson above the threshold, fixed-sequence "
        "testing or conformal selection with Benjamini-Hochberg the correctness of the answers. The score is an L2 logistic regression on the mean "
        "log-probability and on proximity to the emitted token, rotation between layers and alignment with the direction of generic text."
    )
    departures = (
        "Read were the abstract and a short summary; thresholds are standard conformal and risk-control results, features and their combination are "
        "reconstructed. Prototype figures are the sheet's.",
        "Synthetic statements are judged on blocks of 50 draws (100 blocks), each within three Monte Carlo errors of its bound.",
        "Questions are judged by whole normalised strings against the names and alternate names that the package carries; a few other names of "
        "countries are added.",
        "Geometry's figures are over all 600 questions, invented names included; those within kinds are reported.",
        "Samples of the 100 fixed questions are drawn with each prompt read once (the same law); costs are judged with each sample a generation of "
        "its own, as through an endpoint, and reported with the prompt read once.",
        "Intervals over the 200 splits are of this set of questions: splits overlap.",
        "A batch without answers counts as right in fdr, so a rule that answers nothing keeps it: on capitals the weighted rule answers none, and "
        "its claim holds vacuously. The correctness of the answers that are given is reported beside.",
        "PAC from the very top of the grid depends on the grid: a hundred quantiles here, and lower than the prototype's.",
        "MAPIE and crepes agree on the thresholds in the tests; torchcp needs torchvision, which cannot live here, and is left out.",
        "The paper scale reads a file of questions (--qa) and a model of 7-8B; it was not run.",
    )
    command = "gnomon run conformal-abstention --model DIR --qa qa.jsonl --correctness 0.75"
    example = """
import numpy as np

from gnomon.guarantees import ConformalAbstainer, abstention_threshold

rng = np.random.default_rng(0)
C = rng.random(600) < 0.5                      # was each labelled answer right?
S = rng.normal(1.5 * C, 1.0)                   # the model's confidence in it

print(round(abstention_threshold(S, C, eps=0.1, kind="joint"), 2))
ca = ConformalAbstainer(correctness=0.8).fit_scores(S, C)
print(ca.certificate_)
print(ca.decide(rng.normal(0.75, 1.2, 200)).mean(), "of 200 new questions are answered")
"""
    experiments = (Synthetic, Ranking, Splits, Shift, Cost)
    claims = CLAIMS

    class Inputs(study.Inputs):
        """What is studied."""

        model: ModelRef = Field(EMBEDDED, description="language model")
        qa: TextPath | None = Field(None, description="JSON lines of questions of one's own, in place of the study's")
        questions: int = Field(600, ge=40, description="questions made from packages")
        sampled: int = Field(100, ge=1, description="of these, how many the methods that sample or ask again get")
        draw: int = Field(0, ge=0, description="which draw of questions, splits and synthetic scores")
        draws: int = Field(5000, ge=20, description="synthetic calibration sets in each cell")
        splits: int = Field(200, ge=2, description="random splits into fit, calibration and test")
        windows: int = Field(32, ge=2, description="windows of generic text for its common direction")
        scales = {
            "smoke": {"questions": 40, "sampled": 4, "draws": 200, "splits": 5, "windows": 2, "Cost": False,
                      "Synthetic": {"cells": [{"world": w, "n": n} for w, n in (("informative", 100), ("noise", 50), ("reversed", 200))]},
                      "Ranking": {"contenders": ["logprob + geometry", "logprob", "log-probabilities", "log-probabilities + geometry", "linear probe",
                                                 "self-consistency"]}},
            "laptop": {},
            "extended": {"questions": 1000, "draws": 20000, "splits": 500},
            "paper": {"questions": 1000, "draws": 20000, "splits": 500},
        }  # fmt: skip

    def derive(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Statements against their bounds; every score of a question in one row."""
        import pandas as pd

        found, checked = {}, []
        if "Synthetic" in tables:
            checked += validity(tables["Synthetic"], "known truth", "units", ["world", "n"])
        if "Splits" in tables:
            rows = tables["Splits"].rename(columns={"contender": "score"}).rename(columns={"way": "contender"})
            checked += validity(rows, "splits", "units", ["score"], marginal=True)
        if checked:
            found["Validity"] = pd.DataFrame(checked)
        if "Ranking" in tables:
            found["Scores"] = side_by_side(tables["Ranking"])
        return found

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure:
        """Risk over coverage; failures over n; shift."""
        return drawing.evidence(tables)

    # --- gnomon run ---

    Run = person.Run

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        return person.calibrate(inputs, beside)

    def present(self, outcome: study.Outcome) -> dict[str, Any]:
        return person.present(outcome)

    def picture(self, outcome: study.Outcome) -> Figure:
        return person.picture(outcome)

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        person.save(outcome, directory)
