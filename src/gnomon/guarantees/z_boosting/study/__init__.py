"""The study of boosting from joint guarantees: which can be boosted, by whom, and how a learner is made reliable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gnomon import study
from gnomon.guarantees.z_boosting.study import drawing, person
from gnomon.guarantees.z_boosting.study.claims import CLAIMS
from gnomon.guarantees.z_boosting.study.experiments import Amplification, Real, Speed, Stumps, Synthetic

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class ZBoostingStudy(study.Study):
    """Boosting from (FP, FN) guarantees, and amplification by centerpoints."""

    title = "Boosting from joint false-positive and false-negative guarantees"
    paper = "NeurIPS 2026 (abstract); Bressan, Brukhim, Cesa-Bianchi, Esposito, Mansour, Moran and Thiessen, arXiv 2412.08012"
    bibtex = """@inproceedings{zboosting2026,
  title     = {Boosting from joint false-positive and false-negative guarantees},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2026},
  note      = {Known here by its abstract}
}"""
    question = (
        "A weak learner promises that its false positives and false negatives lie jointly in a set Z. Can such a promise be boosted to "
        "no errors, at which class balance, without knowing Z, and what if the learner keeps it only three times in four?"
    )
    method = (
        "A coin that ignores its input has (FP, FN) on the segment L_p between (1-p, 0) and (0, p), p the share of positives. Z can be "
        "boosted exactly when some L_p misses it: ask the learner only on distributions of that balance, and vote with a closed-form "
        "step that keeps the exponential losses of both classes equal to one product. The balance is found by sweeps. Of k runs of an "
        "unreliable learner, a centerpoint of their error pairs lies in every convex Z while under a third are bad; three runs mixed have it."
    )
    departures = (
        "Read were the abstract of the paper and that of Bressan et al.; theorem, step, adaptive search and rates are this library's own "
        "derivation, checked by oracles.",
        "The synthetic learner errs on a part of the rows that comes as near to the promised weight as light rows allow, so that each "
        "answer keeps the promise. Cut at the first row that overshoots, it keeps it only on average, and the adaptive search sweeps "
        "again and again: reported as 'loose'.",
        "The share of extra calls is judged on the four rectangles of the prototype; on sets of large gap so few rounds are needed that "
        "the first sweeps weigh more (reported).",
        "Rectangle (.3, .2) has a bound of 121,788 rounds and gets 20,000; sets that are not boostable get 4,000. The extended scale runs more.",
        "The adaptive search ends at an edge of .004 on synthetic learners and .01 on tables, not .001: where nothing is left to learn, "
        "sweeps of 2,000 fits would take most of the time.",
        "AdaC2 and CSB2 get the costs at which they start at the best balance of the known Z, on tables those that make both "
        "classes weigh the same; scikit-learn's AdaBoost and RUSBoost get ten seeds where their first learner is worse than half, and then keep one learner.",
        "Amplification draws good pairs uniformly in Z and bad ones in two ways, anywhere or all on the side of small error sums; the latter is the hard one.",
    )
    command = "gnomon run z-boosting --data d.csv --target y --target-fpr 0.05"
    example = """
import pandas as pd

from gnomon.guarantees import ZBoostClassifier, ZSet, boostable

print(boostable(ZSet.rectangle(0.55, 0.05)))     # sums to more than 1/2, and is boostable
print(boostable(ZSet.rectangle(0.25, 0.25)))     # a coin does as well

table = pd.read_csv("d.csv")
clf = ZBoostClassifier(n_estimators=50, target_fpr=0.05, random_state=0).fit(table.drop(columns="y"), table["y"])
print(clf.n_iter_, "rounds; training errors at most", clf.bound_, "before the threshold", clf.theta_)
print(clf.empirical_z_set().verdict)
"""
    experiments = (Synthetic, Real, Speed, Amplification, Stumps)
    claims = CLAIMS

    class Inputs(study.Inputs):
        """What is studied."""

        seeds: int = Field(5, ge=1, description="fresh seeds of the synthetic learners")
        most: int = Field(20_000, ge=1, description="most rounds with a synthetic learner whose set is boostable")
        void: int = Field(4_000, ge=1, description="rounds where the set is not boostable")
        rounds: int = Field(100, ge=1, description="rounds on real rows")
        draws: int = Field(1_000, ge=1, description="repetitions of each amplification")
        scales = {
            "smoke": {"seeds": 1, "most": 200, "void": 200, "rounds": 20, "draws": 20,
                      "Synthetic": {"cells": {"z": ["0.2 x 0.2", "0.55 x 0.05", "0.25 x 0.25"], "learner": ["tight"]}},
                      "Real": {"cells": {"task": ["breast cancer"], "weak": ["stump"]}, "seeds": 1},
                      "Speed": {"cells": {"task": ["breast cancer"]}}, "Amplification": {"cells": {"k": [9, 31]}}},
            "laptop": {},
            "extended": {"seeds": 10, "most": 125_000, "void": 20_000, "rounds": 200, "Real": {"seeds": 20}},
            "paper": {"seeds": 20, "most": 125_000, "void": 100_000, "rounds": 500, "draws": 10_000, "Real": {"seeds": 50}},
        }  # fmt: skip

    def derive(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """For each seed the adaptive booster's rounds over those at the best balance, and its extra calls, where both ended."""
        if "Synthetic" not in tables:
            return {}
        rows = tables["Synthetic"]
        keys = ["z", "learner", "seed"]
        ours, best = (
            rows[(rows["contender"] == name) & rows["reached"].astype(bool)].set_index(keys)
            for name in ("zboost", "oracle p")
        )
        both = ours.index.intersection(best.index)
        if not len(both):
            return {}
        found = ours.loc[both, ["extra"]].assign(ratio=ours.loc[both, "rounds"] / best.loc[both, "rounds"])
        return {"Adaptive": found.reset_index()}

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure:
        """Who reaches zero error, missed positives on real rows, broken promises of amplifiers."""
        return drawing.evidence(tables)

    # --- gnomon run ---

    Run = person.Run

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        return person.train(inputs, beside)

    def present(self, outcome: study.Outcome) -> dict[str, Any]:
        return person.present(outcome)

    def picture(self, outcome: study.Outcome) -> Figure:
        return person.picture(outcome)

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        person.save(outcome, directory)
