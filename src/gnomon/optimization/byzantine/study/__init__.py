"""The study of Byzantine-robust optimisation: is robust training an inexact gradient method, and who needs fewest rounds?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gnomon import study
from gnomon.optimization.byzantine.study import drawing, person
from gnomon.optimization.byzantine.study.claims import CLAIMS
from gnomon.optimization.byzantine.study.experiments import (
    FOUR,
    MAIN,
    PAPER,
    SHOWN,
    TARGETS,
    WIDE,
    Acceleration,
    Convergence,
    Floors,
    cell,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

AXES = [*MAIN, "seed"]


class ByzantineStudy(study.Study):
    """Robust gradient descent, Nesterov, PIGS and AEG under attack."""

    title = "From inexact gradients to Byzantine robustness: acceleration and optimisation under similarity"
    paper = "arXiv 2602.03329"
    bibtex = """@article{gaucher2026inexact,
  title   = {From Inexact Gradients to Byzantine Robustness: Acceleration and Optimization under Similarity},
  author  = {Gaucher, Renaud and Dieuleveut, Aymeric and Hendrikx, Hadrien},
  journal = {arXiv preprint arXiv:2602.03329},
  year    = {2026}
}"""
    question = (
        "Some of the clients of a federated training lie. Is a robustly merged gradient just an inexact gradient, so that "
        "acceleration and a server's own similar data save rounds of communication as they do among honest clients, and what "
        "do they cost in final error?"
    )
    method = (
        "The server merges the clients' gradients by nearest-neighbour mixing and a trimmed mean. The result is an inexact gradient: "
        "its squared error is at most zeta^2 + alpha^2 times the gradient's squared norm, zeta^2 = kappa G^2, alpha^2 = kappa B^2, "
        "with kappa of the rule and (G, B) the heterogeneity of the clients. PIGS takes proximal steps on the server's own loss l, "
        "corrected by g - grad l; AEG is accelerated extra-gradient sliding with the same oracle."
    )
    departures = (
        "Read were the abstract, summaries and the official code; the constants of the rates and the accelerated "
        "extra-gradient recursion are reconstructed (Kovalev et al. 2022 with the robust oracle in place of the gradient).",
        "Softmax regression on scikit-learn's digits, wine and breast cancer data; the paper scale takes the 5,000 MNIST digits "
        "that a package carries, with the same grid of relative steps as elsewhere in place of the authors' absolute ones.",
        "Theoretical steps use L and Delta at x_0 (power iteration), for all solvers alike; the softmax bound on L is five times "
        "larger here and no solver would choose it.",
        "A step that is best on one draw is not safe on another: without liars at penalty 0.01 the step chosen for PIGS (four times "
        "the theory's) diverges on two of five draws. The claims are judged with the chosen steps; those of the theory are reported "
        "beside.",
        "A step is chosen by the mean logarithm of the gap, on a draw that is not judged; under attack on a quarter of the rounds.",
        "The slope of the floor is measured with pigs, which reaches its floor in 80 rounds; gradient descent does not in 400.",
        "Laptop scale runs ten settings, not the whole grid of penalties, liars, splits and attacks; the extended scale does.",
    )
    command = "gnomon run byzantine --data hospitals.csv --target outcome --clients hospital --f 2 --attack alie"
    example = """
import pandas as pd

from gnomon.optimization import ByzantineClassifier

table = pd.read_csv("hospitals.csv")
X = table.drop(columns=["outcome", "hospital"])
clf = ByzantineClassifier(f=2, solver="pigs", max_rounds=100).fit((X - X.mean()) / X.std(), table["outcome"], groups=table["hospital"])
print(clf.certificate_)
print(clf.n_iter_, "rounds")
"""
    experiments = (Convergence, Acceleration, Floors)
    claims = CLAIMS

    class Inputs(study.Inputs):
        """What is studied."""

        seeds: int = Field(
            5, ge=1, description="number of judged draws of split and attack; one more chooses the steps"
        )
        clients: int = Field(20, ge=3, description="honest clients")
        rounds: int = Field(400, ge=20, description="rounds of communication (four times as many in Acceleration)")
        steps: int = Field(
            6, ge=1, le=6, description="step sizes to choose from: 1, 2, 1/2, 4, 1/4, 1/8 of the theory's"
        )
        scales = {
            "smoke": {"seeds": 1, "rounds": 60, "steps": 1,
                      "Convergence": {"cells": [MAIN, cell(f=0, attack="none")], "contenders": FOUR},
                      "Floors": {"cells": {"f": [1], "split": ["iid", "dir 1"]}}},
            "laptop": {},
            "extended": {"seeds": 20, "Convergence": {"cells": [*WIDE, cell(data="wine"), cell(data="cancer")]}},
            "paper": {"Convergence": {"cells": PAPER}, "Floors": False},
        }  # fmt: skip

    def derive(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Rounds to each target and last gaps as rows; the spread of the floors; where the curves of Acceleration cross."""
        import pandas as pd

        found, times = {}, []
        for name in ("Convergence", "Acceleration"):
            for step, prefix in (("best", ""), ("auto", "auto_")):
                for column, target in TARGETS.items():
                    if name in tables and f"{prefix}{column}" in tables[name]:
                        rows = tables[name].dropna(subset=[f"{prefix}{column}"])
                        times.append(rows[[*AXES, "contender"]].assign(
                            experiment=name, step=step, target=target, rounds=rows[f"{prefix}{column}"],
                            reached=rows[f"{prefix}reached_{column}"].astype(bool)))  # fmt: skip
        if times:
            found["Times"] = pd.concat(times, ignore_index=True)
        if "Convergence" in tables:
            rows = tables["Convergence"]
            floors = rows[rows["contender"].isin(FOUR)].pivot_table("floor", AXES, "contender")
            found["Final"] = pd.concat(
                [
                    rows[[*AXES, "contender"]].assign(step=step, final=rows[f"{prefix}final"])
                    for step, prefix in (("best", ""), ("auto", "auto_"))
                    if f"{prefix}final" in rows
                ],
                ignore_index=True,
            ).dropna(subset=["final"])
            found["Spread"] = (floors.max(axis=1) / floors.min(axis=1)).rename("spread").reset_index()
        if "Acceleration" in tables:
            found["Crossing"] = crossings(tables["Acceleration"])
        return found

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure:
        """Gaps over rounds, floors over kappa G^2."""
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


def crossings(rows: pd.DataFrame) -> pd.DataFrame:
    """For each seed the round from which AEG without similarity stays below gradient descent, and the gap there."""
    import pandas as pd

    shown = [r for r in SHOWN if f"gap_{r}" in rows]
    found = []
    for seed, part in rows.groupby("seed"):
        own: Any = part.set_index("contender")
        if not {"aeg, l = 0", "gd"} <= set(own.index):
            continue
        for prefix, step in (("", "best"), ("auto_", "auto")):
            aeg, gd = ([float(own.loc[name, f"{prefix}gap_{r}"]) for r in shown] for name in ("aeg, l = 0", "gd"))
            ahead = [i for i in range(len(shown)) if all(a < g for a, g in zip(aeg[i:], gd[i:], strict=True))]
            at = ahead[0] if ahead else len(shown) - 1
            found.append(
                {
                    "seed": seed,
                    "step": step,
                    "crossing_round": shown[at],
                    "crossing_gap": gd[at],
                    "reached": bool(ahead),
                }
            )
    return pd.DataFrame(found)
