"""The study of LB-MCTS: does a tree that a language model and Bayesian optimisation share tune faster than either?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gnomon import study
from gnomon.decisions.lb_mcts.study import drawing, person, tables
from gnomon.decisions.lb_mcts.study.claims import CLAIMS
from gnomon.decisions.lb_mcts.study.contenders import LAPTOP
from gnomon.decisions.lb_mcts.study.experiments import THREE, ColdStart, RealModel, Searches, Shift

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def _on(*data: str) -> list[dict[str, str]]:
    return [{"data": name} for name in data]


class LBMCTSStudy(study.Study):
    """LB-MCTS beside its two ends, random search, TPE, SMAC and plain tree search."""

    title = "Tree-structured synergy of large language models and Bayesian optimisation for efficient CASH"
    paper = "arXiv 2601.12355"
    bibtex = """@article{xu2026tree,
  title   = {Tree-Structured Synergy of Large Language Models and {B}ayesian Optimization for Efficient {CASH}},
  author  = {Xu and Qian and Tung and Lu and Cui},
  journal = {arXiv preprint arXiv:2601.12355},
  year    = {2026}
}"""
    question = (
        "Which algorithm, with which hyperparameters, for this table? A language model knows good answers at once and Bayesian "
        "optimisation finds better ones in time. Does a search tree that both share, and that asks the one in which there is more reason "
        "to trust, beat each of them, and other optimisers, from the first trials to the last?"
    )
    method = (
        "A tree has a child per algorithm and below it tried configurations, each a refinement of its parent. UCB on normalised scores "
        "picks a node that may still widen; either the language model, shown the node's path and a few telling trials, or expected "
        "improvement on a random forest of the algorithm proposes its child. Bayesian optimisation is asked with a probability that grows "
        "with the rank correlation of the forest's out-of-bag predictions."
    )
    departures = (
        "Read were the abstract and the start of the introduction; no code was found. The tree policy, the choice of memory, the prompts, "
        "the reliability and the schedule are reconstructed.",
        "The back end is 'prior', a table of scikit-learn's documented defaults and usual ranges, drawn from at random: a stand-in for what "
        "a language model knows, written once and not tuned on these data. A small embedded model that scores candidates is run on one "
        "table; an endpoint takes any other. A claim about language models holds here for such a prior only.",
        "Reflections are written and shown, but the table reads none: without them its proposals are the same.",
        "Eight seeds instead of the sheet's four at laptop scale; the split of a data set is the same for all of them, so that verdicts are "
        "about the randomness of searches on these three data sets.",
        "Claims about rho use LB-MCTS runs of 60 trials, the others 30.",
        "Quadratic discriminant analysis is scikit-learn's with shrinkage (solver 'eigen'): the other one refuses classes with fewer rows "
        "than features.",
        "The paper scale has these five data sets with 100 trials and any model given by --llm; the 104 tasks of the AutoML benchmark, which "
        "need openml and a network, are not wired.",
        "The adversary of the sheet repeats the worst known configuration, which the rule on duplicates turns into random ones; a second "
        "one changes a parameter of it and is judged by the same bound.",
        "SMAC orders its initial design by hashes of strings: its runs repeat only with the same PYTHONHASHSEED.",
        "A configuration below another is drawn by the prior around its parent, about half of its parameters, with half the width of the "
        "first ones; the first of an algorithm is its defaults.",
    )
    command = "gnomon run lb-mcts --data wine.csv --target cultivar --trials 60 --llm prior --save tuned"
    example = """
import pandas as pd

from gnomon.decisions import LBMCTS, sklearn_space

table = pd.read_csv("wine.csv")
X, y = table.drop(columns="cultivar"), table["cultivar"]
opt = LBMCTS(sklearn_space("classification"), llm="prior", n_trials=15, scoring="balanced_accuracy", cv=3, random_state=0).fit(X, y)
print(opt.best_score_, opt.best_config_)
print(opt.trials_[["algorithm", "loss", "proposer", "rho"]])
"""
    experiments = (Searches, ColdStart, Shift, RealModel)
    claims = CLAIMS

    class Inputs(study.Inputs):
        """What is studied."""

        seeds: int = Field(8, ge=1, description="number of searches of each contender on each data set")
        trials: int = Field(30, ge=3, description="evaluations of a search (LB-MCTS makes 60 to show how rho moves)")
        digits: int = Field(300, ge=60, le=600, description="rows of the digits data that searches see")
        llm: str = Field(
            "prior",
            description="who proposes beside Bayesian optimisation: prior, embedded, endpoint:http://host/v1#name, ...",
        )
        first_seed: int = Field(0, ge=0, description="what the seeds count from")
        scales = {
            "smoke": {"seeds": 2, "trials": 12,
                      "Searches": {"cells": _on("iris", "wine"), "contenders": ["lb-mcts", "rho = 1", "random", "tpe", "garbage"]},
                      "ColdStart": {"cells": _on("wine"), "seeds": 1}, "Shift": {"cells": _on("iris", "wine"), "seeds": 1},
                      "RealModel": False},
            "laptop": {name: {"cells": _on(*THREE)} for name in ("ColdStart", "Shift")}
                      | {"Searches": {"cells": _on(*THREE), "contenders": LAPTOP}},
            "extended": {"seeds": 5, "trials": 60, "digits": 600},
            "paper": {"seeds": 5, "trials": 100, "digits": 600},
        }  # fmt: skip

    def derive(self, given: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Regrets and areas, how rho moved, how well reliabilities are founded."""
        return tables.derive(given)

    def figure(self, given: dict[str, pd.DataFrame]) -> Figure:
        """Regret over trials on each data set, and rho over trials."""
        return drawing.evidence(given)

    # --- gnomon run ---

    Run = person.Run

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        return person.tune(inputs, beside)

    def present(self, outcome: study.Outcome) -> dict[str, Any]:
        return person.present(outcome)

    def picture(self, outcome: study.Outcome) -> Figure:
        return person.picture(outcome)

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        person.save(outcome, directory)
