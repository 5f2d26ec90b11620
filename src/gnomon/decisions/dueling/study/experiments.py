"""Experiments: error, growth with N, weak and strong regret, both at once, real matrices, duelpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon import study
from gnomon.decisions.dueling import peers
from gnomon.decisions.dueling.baselines import (
    AblatedTGITE,
    explore_verify,
    relative_ucb,
    sequential_elimination,
    winner_stays_strong,
    winner_stays_weak,
)
from gnomon.decisions.dueling.matrix import PreferenceMatrix
from gnomon.decisions.dueling.simulation import Simulation, log_spaced, simulate
from gnomon.decisions.dueling.study import material

THREE = ["flat", "cyclic", "bradley-terry"]
NS = [16, 64, 256]
DELTAS = [0.05, 0.1]
REAL = ["classifiers", "bundesliga", "hard 16", "hard 64"]
SHOWN = (1e-3, 1e-2, 1e-1, 0.4, 1)  # shares of the horizon at which regret is kept


@dataclass(frozen=True)
class Problem:
    """A matrix and the seed of everything drawn on it."""

    matrix: PreferenceMatrix
    seed: int
    delta: float
    horizon: int
    dropped: str = ""


Contender = Callable[[Problem], Simulation]


def tgite(objective: str, **options: Any) -> Contender:
    """TG-ITE, or an ablation of it; ``bai`` runs to its answer, all else to the horizon."""

    def run(problem: Problem) -> Simulation:
        given = {
            "delta": problem.delta,
            "warm_delta": 0.05,
            "regret": "binary" if objective != "strong" else "gap",
            **options,
        }
        alg = AblatedTGITE(problem.matrix.n_arms, objective=objective, random_state=problem.seed, **given)
        limit = None if objective == "bai" else problem.horizon
        return simulate(alg, problem.matrix, limit, random_state=problem.seed)

    return run


def baseline(function: Callable[..., Simulation], **options: Any) -> Contender:
    """A baseline to the horizon."""
    return lambda problem: function(problem.matrix, problem.horizon, random_state=problem.seed, **options)


def verified(problem: Problem) -> Simulation:
    return explore_verify(problem.matrix, problem.delta, random_state=problem.seed)


def sequential(problem: Problem) -> Simulation:
    """It is told the gap."""
    n = problem.matrix.n_arms
    return sequential_elimination(problem.matrix, material.GAP, problem.delta / n, random_state=problem.seed)


def whole_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**62))


# --- identification --------------------------------------------------------------------------------------------------


class Identified(study.Experiment):
    """What the experiments on naming the best arm share: many runs in one record, a matrix drawn anew for each."""

    seeds = 0
    unit = "run"
    metrics = {"duels": study.lower(log=True), "wrong": study.lower(), "per_arm": study.lower("duels")}

    def runs(self, inputs: Any, cell: Any) -> int:
        return int(inputs.runs)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> list[Problem]:
        """The problems, drawn from seeds that do not depend on how many there are."""
        seeds = [whole_seed(rng) for _ in range(self.runs(inputs, cell))]
        delta = cell.get("delta", 0.05)
        if cell.matrix == "bundesliga":
            matrix = material.bundesliga()
            return [Problem(matrix, seed, delta, 0) for seed in seeds]
        return [Problem(material.generate(cell.matrix, cell.n, seed), seed, delta, 0) for seed in seeds]

    def measure(self, problem: list[Problem], contender: Contender, rng: np.random.Generator) -> list[dict[str, Any]]:
        rows = []
        for k, p in enumerate(problem):
            found = contender(p)
            gaps = p.matrix.gaps
            others = gaps[gaps > 0]
            rows.append({"run": k, "wrong": int(not found.correct), "duels": found.n_duels,
                         "per_arm": found.n_duels / p.matrix.n_arms, "hardness": float((1 / others**2).sum())})  # fmt: skip
        return rows


class Error(Identified):
    """How often is the wrong arm named, and after how many duels?"""

    cells = [
        *study.grid(matrix=THREE, n=[16, 64], delta=DELTAS),
        *study.grid(matrix=["bundesliga"], n=[16], delta=DELTAS),
    ]
    contenders = {
        "tgite": tgite("bai"),
        "no replacement": tgite("bai", replace=False),
        "explore-verify": verified,
        "sequential elimination": sequential,
    }

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        """Peers, which take many more duels or must be told the gap, on the small matrices."""
        return contender in ("tgite", "no replacement") or (
            cell.n == 16 and cell.delta == 0.05 and cell.matrix != "bundesliga"
        )


class Scaling(Identified):
    """How do duels grow with the number of arms, with and without union bounds?"""

    cells = study.grid(matrix=THREE, n=NS)
    contenders = {
        "tgite": tgite("bai"),
        "union bounds": tgite("bai", tree="per match", union=True),
        "constant tree": tgite("bai", tree="constant"),
    }

    def runs(self, inputs: Any, cell: Any) -> int:
        return int(inputs.scaling_runs)


# --- regret ----------------------------------------------------------------------------------------------------------


class Regret(study.Experiment):
    """What the experiments on regret share."""

    metrics = {
        "weak": study.lower(),
        "strong": study.lower(),
        "weak_per_arm": study.lower(),
        "strong_per_arm": study.lower(),
    }

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        seed = whole_seed(rng)
        return Problem(material.generate(cell.matrix, cell.n, seed), seed, 0.01, inputs.horizon)

    def measure(self, problem: Problem, contender: Contender, rng: np.random.Generator) -> list[dict[str, Any]]:
        found, n, horizon = contender(problem), problem.matrix.n_arms, problem.horizon
        weak, strong = found.weak_binary, found.strong_gap

        def at(curve: np.ndarray, share: float) -> float:
            return float(curve[np.searchsorted(found.times, min(round(share * horizon), found.times[-1]))])

        row = {"weak": float(weak[-1]), "strong": float(strong[-1]), "weak_per_arm": float(weak[-1]) / n,
               "strong_per_arm": float(strong[-1]) / n, "right": found.incumbent == found.winner,
               "growth": float(weak[-1]) - 1.05 * at(weak, 0.4), "answer": found.duels_to_answer or 0,
               "named_wrong": found.best is not None and not found.correct}  # fmt: skip
        late = at(strong, 0.1)
        row["exponent"] = math.log10(strong[-1] / late) if late > 0 else 0.0
        for share, name in ((1e-2, "r2"), (1e-1, "r2_late")):
            row[name] = straightness(found.times, strong, share * horizon)
        for share in SHOWN:
            row |= {f"weak_{share:g}": at(weak, share), f"strong_{share:g}": at(strong, share)}
        return [row]


def straightness(times: np.ndarray, curve: np.ndarray, start: float) -> float:
    """R^2 of the straight line of a curve in ln T from ``start`` on (1 for a constant)."""
    late = times >= start
    if late.sum() < 3 or np.ptp(curve[late]) == 0:
        return 1.0
    return float(np.corrcoef(np.log(times[late]), curve[late])[0, 1] ** 2)


class Weak(Regret):
    """Does weak regret end, and is it linear in N?"""

    cells = study.grid(matrix=THREE, n=NS)
    contenders = {
        "tgite": tgite("weak"),
        "tree only": tgite("weak", warm_delta=None),
        "winner stays": baseline(winner_stays_weak),
    }


class Strong(Regret):
    """Does strong regret grow as ln T, and how does it compare with specialists?"""

    cells = study.grid(matrix=THREE, n=[16, 64])
    contenders = {
        "tgite": tgite("strong"),
        "no book": tgite("strong", reuse=False),
        "relative UCB": baseline(relative_ucb),
        "winner stays, strong": baseline(winner_stays_strong),
    }


class Joint(Regret):
    """What does naming the best arm cost in weak regret?"""

    cells = study.grid(matrix=THREE, n=[16, 64])
    contenders = {"joint": tgite("joint"), "weak": tgite("weak"), "bai": tgite("bai")}


class Real(Regret):
    """Real matrices, and the hard one of the literature."""

    cells = study.grid(matrix=[*REAL, "own"])
    contenders = {
        "tgite, bai": tgite("bai", delta=0.05),
        "tgite, weak": tgite("weak"),
        "tgite, strong": tgite("strong"),
        "winner stays": baseline(winner_stays_weak),
        "relative UCB": baseline(relative_ucb),
    }

    @study.stage(version=1, inputs=(), cell=("matrix",), seeded=False)
    def scores(self, inputs: Any, cell: Any, seed: int | None) -> dict[str, Any]:
        """Each classifier's probability of the true class on each test item."""
        if cell.matrix != "classifiers":
            return {}
        scores, names = material.judged_classifiers()
        return {"scores": scores, "names": names}

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return cell.matrix != "own" or inputs.matrix is not None

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        seed = whole_seed(rng)
        if cell.matrix.startswith("hard"):
            matrix = material.generate("hard", int(cell.matrix.split()[1]), seed)
        elif cell.matrix == "own":
            matrix = material.own(inputs.matrix)
        elif cell.matrix == "bundesliga":
            matrix = material.bundesliga()
        else:
            held = self.scores(inputs, cell)
            matrix = PreferenceMatrix.from_scores(held["scores"], held["names"])
        matrix, dropped = material.with_winner(matrix)
        return Problem(matrix, seed, 0.05, inputs.horizon, "; ".join(map(str, dropped)))

    def measure(self, problem: Problem, contender: Contender, rng: np.random.Generator) -> list[dict[str, Any]]:
        more = {"n": problem.matrix.n_arms, "gap": problem.matrix.gap, "circles": problem.matrix.three_cycles(),
                "dropped": problem.dropped, "best": str(problem.matrix.labels[problem.matrix.condorcet_winner or 0])}  # fmt: skip
        return [{**row, **more} for row in super().measure(problem, contender, rng)]


def duelpy(name: str) -> Contender:
    return lambda problem: peers.duelpy(name, problem.matrix, problem.horizon, times=log_spaced(problem.horizon),
                                        random_state=problem.seed % 2**32)  # fmt: skip


class Peers(Regret):
    """duelpy's algorithms as they are, at a horizon that they reach."""

    cells = study.grid(matrix=THREE, n=[16])
    contenders = {
        "tgite": tgite("weak"),
        "tgite, strong": tgite("strong"),
        **({f"duelpy {name}": duelpy(name) for name in peers.REGRET} if peers.available() else {}),
    }

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        seed = whole_seed(rng)
        return Problem(material.generate(cell.matrix, cell.n, seed), seed, 0.01, inputs.peer_horizon)


EXPERIMENTS = (Error, Scaling, Weak, Strong, Joint, Real, Peers)
