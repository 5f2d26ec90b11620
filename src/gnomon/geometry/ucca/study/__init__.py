"""The study of UCCA: does it put together what was taken apart, where does it fail, and does it say so?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gnomon import study
from gnomon.geometry.ucca.study import person
from gnomon.geometry.ucca.study.experiments import (
    BASELINES,
    HARD,
    SUPERVISED,
    TRAIN,
    UCCA_,
    Diagnosis,
    Landscape,
    Numerals,
    Pairs,
    Recovery,
    Theory,
    Threshold,
    Unpaired,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

EASY = ["fac-pix", "kar-fac"]
AT = {"n": TRAIN}


class UCCAStudy(study.Study):
    """UCCA against transport, assignment, spectral and adversarial alignment, and supervised CCA."""

    title = "UCCA: canonical correlation analysis without pairs"
    paper = "UCCA: Unpaired Canonical Correlation Analysis (NeurIPS 2026); known to us by its abstract"
    bibtex = """@inproceedings{ucca2026,
  title={UCCA: Unpaired Canonical Correlation Analysis},
  booktitle={Advances in Neural Information Processing Systems}, year={2026}}"""
    question = ("Two views of the same items have lost their correspondence. Can projections that correlate for the true pairs be "
                "learned from the two clouds alone, and can one tell whether it worked?")  # fmt: skip
    method = ("On whitened views the quadratic assignment problem is total squared canonical correlation, and Frank-Wolfe on it "
              "alternates CCA and assignment. UCCA searches the same problem on centred Gaussian kernels, where the true pairing "
              "stands out: starts from isometry-invariant point descriptors, then rounds that recombine a pool of local optima in "
              "their canonical spaces. Ridge CCA under the best pairing gives the projections; null searches and the agreement of "
              "independent runs say what to believe.")  # fmt: skip
    departures = [
        "Only the paper's abstract was found, and no code: the theory checks follow from it, the algorithm is this project's.",
        "Assignments are solved by an own Jonker-Volgenant that starts from the prices of the assignment before.",
        "Both views are put in an order that their contents decide, then shuffled by the seed: the same result for any row order.",
        "The ridge is in units of the mean variance of the principal components: on whitened coordinates it would change no direction.",
        "All starts but the first use a random third of the descriptors each. With noise on all of them, as the sheet has it, pixels "
        "against gradients were paired in 1 of 3 and kar against fac in 1 of 4 fresh splits: one mix of descriptors leads all "
        "starts into one basin. On five other splits 4 of 5 in place of 3 of 5 reached 0.99 of supervised CCA.",
        "The start without noise belongs to the first run alone: runs that share it agree where nothing was found.",
        "confidence_ divides by sqrt(1 + 1/n_null) as well, the error of a mean of few nulls: of 10 pairs of Gaussian clouds one "
        "else passed for matched.",
        "'paired' asks for confidence above 4 as well where nulls were run: on 60 points of a Gaussian cloud runs agree by chance.",
        "FAQ 'from the barycentre' starts half-way from it, as scipy's randomised start: of centred kernels it is a stationary point.",
        "Entropic GW is warm-started and stops at 1e-7: the same plans in a quarter of the time.",
        "Success over view pairs is 0.9 of supervised CCA; the spurious level is the score of one search against independent "
        "principal coordinates.",
        "Views of different sizes: each run uses three subsamples of the larger one, whose cross-covariances are averaged.",
        "CLIP features of the authors' kind are a person's own input: gnomon run ucca --x IMAGE.npy --y TEXT.npy.",
    ]  # fmt: skip
    command = "gnomon run ucca --x a.npy --y b.npy --components 5"
    example = """
import numpy as np
from gnomon.geometry import UCCA

rng = np.random.default_rng(0)
Z = rng.exponential(size=(300, 6)) * [3, 2.5, 2, 1.5, 1.2, 1]        # items with a shape of their own
X = Z + 0.05 * rng.normal(size=Z.shape)
Y = Z @ np.linalg.qr(rng.normal(size=(6, 6)))[0] + 0.05 * rng.normal(size=Z.shape)
order = rng.permutation(200)                                          # the lost correspondence
u = UCCA(n_components=3, n_runs=2, n_null=2, max_rounds=10).fit(X[:200], Y[:200][order])
print(u.status_, f"score {u.score_:.3f}, {np.mean(order[u.pairing_] == np.arange(200)):.0%} of the rows paired right")
found = u.evaluate(X[200:], Y[200:], X[:200], Y[:200])
print(f"correlation of true pairs {found.correlation:.3f}, {found.ratio:.2f} of supervised CCA")
"""

    class Inputs(study.Inputs):
        seeds: int = Field(3, ge=1, description="number of seeds")
        runs: int = Field(
            2, ge=1, description="independent runs of UCCA on pixels and gradients, and for the diagnosis"
        )
        other_runs: int = Field(1, ge=1, description="runs elsewhere")
        nulls: int = Field(3, ge=0, description="null searches of the diagnosis")
        max_rounds: int = Field(60, ge=0, description="rounds of a run at most")
        scales = {
            "smoke": {
                "seeds": 1, "runs": 1, "nulls": 0, "max_rounds": 5,
                "Recovery": False, "Numerals": False, "Threshold": False, "Unpaired": False, "Diagnosis": False,
                "Pairs": {"cells": [{"task": "digits", "n": 120}]},
                "Landscape": {"cells": [{"task": "digits", "n": 120}]},
                "Theory": {"cells": [{"task": "digits", "n": 120}, {"task": "latents-0.1", "n": 120}]},
            },
            "laptop": {
                "Recovery": {"cells": [{"task": "gradients", "n": TRAIN}]},
                "Pairs": {"cells": [{"task": "halves", "n": TRAIN}]},
                "Numerals": {"cells": [{"task": t, "n": TRAIN} for t in EASY]},
                "Threshold": {"cells": [{"task": t, "n": TRAIN} for t in (*EASY, *HARD)]},
                "Unpaired": {"cells": [{"task": "gradients", "n": TRAIN, "overlap": 0.0}]},
                "Theory": {"cells": [c for c in Theory.cells if c["task"] != "layers"]},  # a minute of encoding
            },
            "extended": {"seeds": 5, "runs": 3, "other_runs": 3, "nulls": 5},
            "paper": {"seeds": 5, "runs": 3, "other_runs": 3, "nulls": 5},
        }  # fmt: skip

    Run = person.Run
    experiments = [Recovery, Pairs, Numerals, Threshold, Unpaired, Diagnosis, Landscape, Theory]

    claims = [
        # 1, 2: pixels against gradients
        study.at_least("ratio", UCCA_, 0.8, on=AT, table="Recovery", id="gradients-ratio",
                       text="Pixels against gradients: at least 0.8 of the correlation of supervised CCA",
                       paper="Abstract: projections that maximise the correlation of the hidden pairing; sheet: 0.887, 0.891, 0.659 of 0.90"),
        study.at_most("regret", UCCA_, 0.05, on=AT, table="Recovery", id="score-chooses",
                      text="The run chosen by score is at most 0.05 below the best run"),
        study.better("correlation", UCCA_, list(BASELINES), on=AT, table="Recovery", id="beats-baselines",
                     text="Better than every baseline on pixels against gradients",
                     paper="Abstract: better than recent unpaired alignment; sheet: best baseline entropic GW, 0.634"),
        # 3: halves
        study.at_least("correlation", UCCA_, 0.6, on={"task": "halves"}, table="Pairs", id="halves-level",
                       text="Image halves: test correlation at least 0.6", paper="Sheet: 0.716 of 0.906"),
        study.better("correlation", UCCA_, "entropic GW", on={"task": "halves"}, table="Pairs", id="halves-beats-gw",
                     text="Image halves: above entropic GW"),
        # 4: the rounds
        study.better("correlation", UCCA_, "starts alone", on=AT, table="Recovery", id="rounds-gradients",
                     text="The pool's rounds raise the correlation on pixels against gradients", paper="Sheet: 0.525 to 0.887"),
        study.better("correlation", UCCA_, "starts alone", on={"task": "halves"}, table="Pairs", id="rounds-halves",
                     text="The pool's rounds raise the correlation on image halves", paper="Sheet: 0.606 to 0.716"),
        study.better("correlation", UCCA_, "starts alone", on={"task": "text"}, table="Pairs", id="rounds-text",
                     text="The pool's rounds raise the correlation on text", paper="Sheet: 0.217 to 0.23-0.33"),
        # 5: the failure
        study.always(lambda rows: rows["status"] == "failed", on={"task": "text"}, table="Diagnosis", id="text-says-failed",
                     text="On MiniLM against TF-IDF the search fails and status_ says so", paper="Sheet: 0.23-0.33 of 0.814"),
        study.at_least("ratio", UCCA_, 0.0, on={"task": "text"}, table="Diagnosis", report=True, id="text-ratio",
                       text="What the failed search reaches on text, of supervised CCA"),
        study.always(lambda rows: rows["status"] == "paired", on={"task": "gradients"}, table="Diagnosis", report=True,
                     id="gradients-says-paired", text="On pixels against gradients status_ is 'paired'"),
        study.at_least("ratio", UCCA_, 0.0, on={"task": ["digits", "layers", "genes", "latents-0.1", "latents-0.5"]}, each="task",
                       table="Pairs", report=True, id="other-pairs", text="Digits, layers, genes and latents, of supervised CCA"),
        # 6: no bijection
        study.at_least("correlation", UCCA_, 0.5, on={"task": "gradients", "overlap": 0.0}, table="Unpaired", id="unpaired-level",
                       text="Views of different images: test correlation at least 0.5", paper="Sheet: 0.645, 0.722 of 0.90"),
        study.better("correlation", UCCA_, "entropic GW", on={"task": "gradients", "overlap": 0.0}, table="Unpaired",
                     id="unpaired-beats-gw", text="Views of different images: above entropic GW in the same setting"),
        study.at_least("correlation", UCCA_, 0.0, on={"task": "gradients"}, each="overlap", table="Unpaired", report=True,
                       id="overlap-sweep", text="Test correlation by the share of common images"),
        study.at_least("correlation", UCCA_, 0.0, on={"task": "text", "overlap": 0.0}, table="Unpaired", report=True,
                       id="unpaired-text", text="Views of different paragraphs"),
        # 7: numerals
        study.at_least("ratio", UCCA_, 0.95, on={"task": EASY}, each="task", table="Numerals", id="numerals-ratio",
                       text="fac-pix and kar-fac: at least 0.95 of supervised CCA", paper="Sheet: 1.00 and 1.00"),
        study.at_least("accuracy", UCCA_, 0.9, on={"task": EASY}, each="task", table="Numerals", id="numerals-accuracy",
                       text="fac-pix and kar-fac: at least 90 % of the rows paired right", paper="Sheet: 0.995, 0.98"),
        study.always(lambda rows: rows["success"] == rows["predicted"], table="Threshold", id="threshold",
                     text="Recovery succeeds exactly where the true score exceeds the spurious level by 0.03",
                     paper="Sheet: 0.53 under 0.73 on fou-kar, 0.896 on the successes"),
        study.at_most("ratio", UCCA_, 0.5, on={"task": "kar*-fac"}, table="Numerals", id="standardised-kar",
                      text="Standardising kar breaks kar-fac: the scaling of the features is part of the method",
                      paper="Sheet: 0.08"),
        # 8: theory and the score
        study.always(lambda rows: 1e-10 - rows[["qap_error", "gradient_error"]].max(axis=1), table="Theory", id="identities",
                     text="The QAP value is n^2 sum rho^2 and its gradient is the CCA step, to 1e-10, on all data",
                     paper="Abstract: theory that links the quadratic assignment problem to CCA"),
        study.always(lambda rows: 1e-10 - (rows["self_score"] - 1).abs(), table="Theory", id="self-score",
                     text="A view's score with itself is 1"),
        study.always(lambda rows: rows["true_score_here"] - rows["wrong_score"], on={"task": ["gradients", "text"]}, table="Theory",
                     id="true-scores-highest", text="On images and text the true pairing scores above every optimum from random starts",
                     paper="Sheet: 0.84 against 0.50-0.62, 0.81 against 0.55-0.60"),
        study.correlates("optimum_score", "optimum_correlation", UCCA_, at_least=0.7, table="Landscape", id="score-ranks",
                         text="Over all local optima of a run, score and test correlation rank alike: Spearman at least 0.7"),
    ]  # fmt: skip

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure | None:
        """Test correlation by contender; score against correlation over local optima; true against spurious scores."""
        from matplotlib.figure import Figure

        main = tables.get("Recovery", tables.get("Pairs"))
        if main is None:
            return None
        figure = Figure(figsize=(13, 4.5), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        main = main[main["task"] == main["task"].iloc[0]]
        means = main.groupby("contender")["correlation"].agg(["mean", "std"]).sort_values("mean")
        colours = ["C1" if n == UCCA_ else "0.4" if n == SUPERVISED else "C0" for n in means.index]
        left.barh(
            range(len(means)), means["mean"], xerr=means["std"].fillna(0), color=colours, error_kw={"linewidth": 0.8}
        )
        left.set(
            yticks=range(len(means)),
            yticklabels=means.index,
            xlabel="mean test correlation",
            title=main["task"].iloc[0],
        )
        if "Landscape" in tables:
            for seed, rows in tables["Landscape"].groupby("seed"):
                middle.plot(rows["optimum_score"], rows["optimum_correlation"], ".", label=f"seed {seed}")
            middle.set(xlabel="score", ylabel="test correlation", title="local optima of a run")
            middle.legend(fontsize=7)
        if "Threshold" in tables:
            rows = tables["Threshold"]
            for success, part in rows.groupby("success"):
                right.plot(part["true_score"] - part["spurious"], part["recovered"], "o" if success else "x",
                           label="recovered" if success else "failed")  # fmt: skip
            for _, one in rows.iterrows():
                right.annotate(one["task"], (one["true_score"] - one["spurious"], one["recovered"]), fontsize=7)
            right.axvline(0.03, color="0.7")
            right.set(xlabel="true score - spurious level", ylabel="correlation / supervised", title="numeral views")
            right.legend(fontsize=7)
        return figure

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        """Fit a person's own views."""
        return person.run(inputs, beside)

    def present(self, outcome: study.Outcome) -> Any:
        """Status, scores, correlations."""
        return person.present(outcome)

    def picture(self, outcome: study.Outcome) -> Figure:
        """Paired projections."""
        return person.picture(outcome)

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        """``ucca.npz``."""
        person.save(outcome, directory)
