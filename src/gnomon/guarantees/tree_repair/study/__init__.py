"""The study of tree repair: are decisions made equal and policies safe, and what does it cost?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gnomon import study
from gnomon.guarantees.tree_repair.study import drawing, person, tables
from gnomon.guarantees.tree_repair.study.claims import CLAIMS
from gnomon.guarantees.tree_repair.study.experiments import (
    ALONE,
    DETERMINISTIC,
    SLIPPERY,
    German,
    Others,
    Safety,
    Solving,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

EVERY_TASK = ["lake4-gbdt", "lake4-rf", "lake8-gbdt", "cliff-rf", "grid-rf", "taxi-gbdt"]


class TreeRepairStudy(study.Study):
    """Fair credit decisions and safe policies by repair of leaf values."""

    title = "Repairing tree ensembles by mixed-integer linear programming"
    paper = "NeurIPS 2026 (abstract)"
    bibtex = """@inproceedings{treerepair2026,
  title     = {Repairing Tree Ensembles by Mixed-Integer Linear Programming over Leaf Values},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2026},
  note      = {Read in abstract; authors and title to be completed from the proceedings}
}"""
    question = (
        "A trained tree ensemble decides two people differently who differ in sex only, or as a policy can walk into a hazard. "
        "Can new leaf values alone fix every counterexample that is found, do violations then fall on inputs that nobody searched, "
        "and what does it cost in accuracy or return?"
    )
    method = (
        "The score of an ensemble is linear in its leaf values, so each counterexample is a constraint of a mixed-integer linear "
        "program over them (a binary where one of several decisions is allowed), and performance on the training rows is its objective. "
        "A verifier looks for the next counterexamples, by sampling or exactly, until it proves that there are none."
    )
    departures = (
        "No paper text or code was found: loop and use cases follow the abstract; encodings, objectives, verifiers and studies are "
        "reconstructed.",
        "Two objectives are judged by the same claims: the sheet's default, hinge loss on the training rows, and fidelity to the "
        "original decisions (flips). The first refits all leaves to the labels and can rely on the sensitive column more than the "
        "model did before.",
        "German credit has all 20 columns (the prototype's table had 10), categories as ordered numbers; Adult is a sample of 6,000 "
        "rows whose solves get twice the limit.",
        "Held-out pairs come from test rows whose columns are drawn independently: they are no people, but no search saw them.",
        "Policies imitate a best policy with a fifth of the labels random, two labels a state; where sure safety is asked for, "
        "episodes begin in every state from which it is possible, as from one corner most imitators are safe by chance.",
        "The share of the larger class is taken as 0.7, that of the whole German table.",
        "Solves end by elapsed time, so a slower machine repairs a little worse.",
    )
    command = "gnomon run tree-repair --model model.json --data credit.csv --target good --sensitive sex"
    example = """
import pandas as pd
import xgboost

from gnomon.guarantees import FairnessProperty, TreeRepair

table = pd.read_csv("credit.csv")
X, y = table.drop(columns="good"), table["good"]
model = xgboost.XGBClassifier(n_estimators=10, max_depth=2).fit(X, y)
repair = TreeRepair(FairnessProperty(sensitive=["sex"], verifier="milp"), max_rounds=20, time_limit=5)
fixed = repair.fit_transform(model, X, y)
print(repair.certificate_)
print(f"accuracy {model.score(X, y):.3f} -> {fixed.score(X, y):.3f}, {len(repair.changed_leaves_)} leaves changed")
"""
    experiments = (German, Others, Safety, Solving)
    claims = CLAIMS

    class Inputs(study.Inputs):
        """What is studied."""

        seeds: int = Field(
            5, ge=1, description="number of splits of German credit (policies: 20, solving: 3, the rest: 1)"
        )
        trees: int = Field(40, ge=2, description="boosted trees; forests have five eighths as many")
        depth: int = Field(3, ge=1, description="of boosted trees; forests are two levels deeper")
        policy_trees: int = Field(
            10, ge=2, description="boosted trees per action of a policy; forests have three times as many"
        )
        rounds: int = Field(4, ge=1, description="repairs in a loop")
        per_round: int = Field(60, ge=1, description="counterexamples added in a round at most")
        limit: float = Field(
            5.0, gt=0, description="seconds for each solve (Adult: twice as many; fidelity of policies: a fifth)"
        )
        population: int = Field(2000, ge=100, description="held-out pairs")
        demanded: int = Field(80, ge=1, description="counterexamples of the round whose solving is measured")
        solving: float = Field(4.0, gt=0, description="seconds for that round")
        offset: int = Field(0, ge=0, description="added to the seeds of splits and tasks (development)")
        scales = {
            "smoke": {"seeds": 1, "trees": 10, "depth": 2, "rounds": 2, "per_round": 20, "limit": 0.5, "population": 400,
                      "policy_trees": 4, "solving": 0.5, "demanded": 10, "Others": {"cells": {"case": ["german-xgb"]}},
                      "Safety": {"seeds": 1}, "Solving": {"seeds": 1}},
            "laptop": {},
            "extended": {"seeds": 10, "rounds": 8, "limit": 20.0, "solving": 15.0, "Others": {"seeds": 5},
                         "Safety": {"cells": [{"task": t} for t in [*DETERMINISTIC, SLIPPERY, *EVERY_TASK]]}},
            "paper": {"seeds": 20, "trees": 200, "depth": 5, "rounds": 30, "limit": 300.0, "solving": 300.0, "policy_trees": 30,
                      "Others": {"cells": [{"case": c} for c in [*ALONE, "adult-rf", "adult-xgb"]], "seeds": 10},
                      "Safety": {"cells": [{"task": t} for t in [*DETERMINISTIC, SLIPPERY, *EVERY_TASK]]}},
        }  # fmt: skip

    def derive(self, tables_: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """The price of halving violations, the ends of the loops, repair against refit, policies before and after."""
        return tables.derive(tables_)

    def figure(self, tables_: dict[str, pd.DataFrame]) -> Figure | None:
        """Violations against accuracy round by round; returns of policies."""
        return drawing.evidence(tables_)

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
