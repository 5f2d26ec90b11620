"""The study of TG-ITE: are best-arm identification and regret both linear in the number of arms, with a Condorcet winner alone?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from gnomon import study
from gnomon.decisions.dueling.study import drawing, person, tables
from gnomon.decisions.dueling.study.claims import CLAIMS
from gnomon.decisions.dueling.study.experiments import EXPERIMENTS, THREE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ALL_N = [8, 16, 32, 64, 128, 256]


def _file(path: Path) -> Path:
    if not path.expanduser().is_file():
        raise ValueError(f"{path} is no file")
    return path.expanduser()


class DuelingStudy(study.Study):
    """Duels to the answer, error, weak and strong regret of TG-ITE and of its rivals."""

    title = (
        "Tree-guided identify-then-exploit: best-arm identification and regret minimisation for dueling bandits in one"
    )
    paper = "arXiv 2606.01799"
    bibtex = """@article{wang2026tree,
  title   = {Tree-Guided Identify-Then-Exploit: A Unified Framework of Best Arm Identification and Regret Minimization for Dueling Bandits},
  author  = {Wang and Ding},
  journal = {arXiv preprint arXiv:2606.01799},
  year    = {2026}
}"""
    question = (
        "Someone who can only ask which of two is better wants the best of N. Do the duels needed, and the regret paid on the "
        "way, grow in proportion to N with no logarithm of N, when nothing but a Condorcet winner is assumed?"
    )
    method = (
        "A knock-out tree gives level l the error x / 2^l: confidence grows as the number of matches halves, so that duels are "
        "linear in N. Its winner is screened against every other arm with e-values from fresh counts; a wrong winner must pass "
        "the arm that beats it, so no union over arms is paid. For weak regret the winner then stays in every duel, and is "
        "replaced on overwhelming evidence only; for strong regret it is shown beside itself between ever rarer checks."
    )
    departures = (
        "Read were the abstract, the introduction and a summary; the tests, constants, caps and phases are reconstructed.",
        "In a round of the strong objective an arm that replaces the incumbent goes on with the arms that are left, as in the weak "
        "objective; the round counts as unverified. Were a new round begun at once, with higher thresholds and caps, a few arms "
        "that beat each other in circles would keep the best arm from being met (15 of 40 development runs at N = 16, cyclic, ended with a wrong one).",
        "The matrix called hard is that of Urvoy et al. (2013); duelpy's generator counts from the other end, which leaves its "
        "winner a gap of 1e-10 over one arm.",
        "RUCB, WS-W, WS-S, explore-verify and sequential elimination are written anew from their papers: 10^6 duels are out of "
        "reach of a loop in Python. duelpy 1.0's RUCB credits every duel to its champion, its explore-verify loosens its "
        "confidence each round where the paper tightens it, and its WS-S explores by duels where the paper explores by rounds; "
        "they are shown as they are, at 2,000 duels.",
        "Simulations draw blocks of duels and test after each, which costs about a fifth more duels than testing after every one.",
        "The answers of `gnomon run` are kept by --state FILE; --save keeps the result in a folder, as for every system.",
    )
    command = "gnomon run dueling --items items.txt --objective bai --delta 0.05 --state state.json"
    example = """from gnomon.decisions import TGITE, PreferenceMatrix, simulate

alg = TGITE(n_arms=8, objective="bai", delta=0.05, random_state=0)
while not alg.done:
    i, j = alg.ask()
    alg.tell(max(i, j))  # a judge who always prefers the higher number
print(alg.best_, alg.confidence_, alg.n_duels_)

votes = PreferenceMatrix.from_votes(["a", "a", "a", "b", "c"], ["b", "c", "b", "c", "b"])
found = simulate(TGITE(3, "weak", regret="binary", random_state=0), votes, horizon=10_000, random_state=0)
print(votes.labels[found.incumbent], found.weak[-1])
"""
    experiments = EXPERIMENTS
    claims = CLAIMS

    class Inputs(study.Inputs):
        """What is studied."""

        seeds: int = Field(
            40, ge=1, description="seeds of the experiments on regret (half as many where RUCB takes part)"
        )
        runs: int = Field(200, ge=1, description="runs for each error rate")
        scaling_runs: int = Field(40, ge=1, description="runs for each point of the growth of duels with N")
        horizon: int = Field(10**6, ge=1000, description="duels of the experiments on regret")
        peer_horizon: int = Field(2000, ge=100, description="duels of duelpy's algorithms")
        matrix: Annotated[Path, AfterValidator(_file)] | None = Field(
            None, description="CSV of a preference matrix of one's own (N rows of N probabilities)"
        )
        scales = {
            "smoke": {
                "seeds": 5, "runs": 5, "scaling_runs": 5, "horizon": 100_000, "peer_horizon": 300,
                "Error": {"cells": {"n": [16], "delta": [0.05], "matrix": ["flat", "cyclic"]}, "contenders": ["tgite"]},
                "Scaling": {"cells": [{"matrix": m, "n": n} for m in THREE for n in (8, 16)],
                            "contenders": ["tgite", "union bounds"]},
                "Weak": {"cells": [{"matrix": m, "n": n} for m in THREE for n in (8, 16)]},
                "Strong": {"cells": {"n": [16]}},
                "Joint": {"cells": {"n": [16]}},
                "Real": {"cells": {"matrix": ["hard 16", "own"]}, "seeds": 2},
                "Peers": {"cells": {"matrix": ["cyclic"]}, "contenders": ["tgite", "tgite, strong", "duelpy WS-W"], "seeds": 2},
            },
            "laptop": {"Strong": {"seeds": 20}, "Real": {"seeds": 20}, "Peers": {"seeds": 4}},
            "extended": {"seeds": 120, "runs": 1000, "scaling_runs": 200},
            "paper": {
                "seeds": 60, "runs": 1000, "scaling_runs": 200,
                "Scaling": {"cells": [{"matrix": m, "n": n} for m in THREE for n in ALL_N]},
                "Weak": {"cells": [{"matrix": m, "n": n} for m in THREE for n in ALL_N]},
            },
        }  # fmt: skip

    def derive(self, tables_: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """How the ablations' overhead grows; answers of the joint mode and of identification side by side."""
        found = {}
        if "Scaling" in tables_:
            found["Overhead"] = tables.overhead(tables_["Scaling"])
        if "Joint" in tables_:
            found["Answers"] = tables.answers(tables_["Joint"])
        return found

    def figure(self, tables_: dict[str, pd.DataFrame]) -> Figure | None:
        """Duels and weak regret an arm against N, strong regret over time."""
        return drawing.evidence(tables_)

    # --- gnomon run ---

    Run = person.Run

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        return person.run(inputs, beside)

    def present(self, outcome: study.Outcome) -> dict[str, Any]:
        return person.present(outcome)

    def picture(self, outcome: study.Outcome) -> Figure | None:
        return person.picture(outcome)

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        person.save(outcome, directory)
