"""The experiments: solvers against each other, acceleration without liars, and floors over liars and skews."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.optimization.byzantine.aggregators import certified_kappa
from gnomon.optimization.byzantine.certificate import Certificate, certificate, heterogeneity_of
from gnomon.optimization.byzantine.study.contenders import CONTENDERS, FACTORS, Path, best_factors, trace
from gnomon.optimization.byzantine.study.material import Problem, accuracy, make
from gnomon.study import Experiment, grid, higher, lower, stage
from gnomon.study.runner import generator

TARGETS = {"to_1e1": 1e-1, "to_1e2": 1e-2, "to_1e3": 1e-3, "to_1e6": 1e-6}
SHOWN = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 400, 600, 800, 1100, 1600)  # rounds of the curves
METRICS = {
    "rounds": lower("rounds", log=True),  # of the derived table Times
    **{name: lower("rounds", log=True) for name in TARGETS},
    "floor": lower("nats", log=True),
    "final": lower("nats", log=True),
    "accuracy": higher(),
    "inner": lower("evaluations"),
    "floats": lower("floats"),
}
FOUR = ["gd", "nesterov", "pigs", "aeg"]
MAIN = {"data": "digits", "l2": 1e-2, "f": 1, "split": "iid", "attack": "alie"}


def cell(**changes: Any) -> dict[str, Any]:
    """The main cell with changes."""
    return {**MAIN, **changes}


CELLS = {  # and who takes part
    "main": (cell(), [*FOUR, "heavy ball", "worker momentum", "local prox"]),
    "dir 5": (cell(split="dir 5"), ["gd", "pigs"]),
    "five": (cell(f=5), FOUR),
    "five, dir 5": (cell(f=5, split="dir 5"), FOUR),
    "ipm": (cell(f=5, attack="ipm"), ["gd", "mean"]),
    "sign": (cell(attack="sign flip"), ["pigs"]),
    "honest": (cell(f=0, attack="none"), ["pigs", "aeg"]),
    "ill-conditioned": (cell(f=0, attack="none", l2=1e-3), FOUR),
    "wine": (cell(data="wine"), ["gd", "pigs"]),
    "cancer": (cell(data="cancer"), ["gd", "pigs"]),
}
BY_CELL = {repr(sorted(axes.items())): names for axes, names in CELLS.values()}
WIDE = [c for c in grid(data=["digits"], l2=[1e-2, 1e-3], f=[0, 1, 5], split=["iid", "dir 5", "dir 1"],
                        attack=["none", "alie", "ipm", "sign flip"]) if (c["attack"] == "none") == (c["f"] == 0)]  # fmt: skip
PAPER = [cell(data="mnist", f=f, split=s, l2=1e-3, rounds=500) for f in (1, 5) for s in ("iid", "dir 1")] + [
    cell(data="mnist", f=f, split="dir 5", rounds=5000, attack="alie" if f else "none") for f in (0, 1)
]


def guarantee(path: Path, contender: Any, problem: Problem) -> Certificate:
    """The certificate that the visited points give."""
    f, n = problem.f, len(problem.clients) + problem.f
    G, B = heterogeneity_of(*np.array([(e["dispersion"], e["squared_norm"]) for e in path.log]).T)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a breakdown is recorded as an infinite floor
        return certificate(certified_kappa(contender.rule(f), n, f), G, B, n, f, mu=problem.mu)


def slack(path: Path, kappa: float) -> float:
    """How far below the certified kappa the worst round stayed: kappa - max |g - grad L|^2 / dispersion."""
    return min(kappa - e["squared_error"] / e["dispersion"] for e in path.log) + 1e-12  # rounding, where kappa is 0


def summary(path: Path, contender: Any, problem: Problem, rounds: int) -> dict[str, Any]:
    """The row of one run."""
    row: dict[str, Any] = {}
    for name, target in TARGETS.items():
        hit = np.flatnonzero(path.gaps <= target)
        row[name] = float(max(1, path.rounds[hit[0]])) if len(hit) else float(rounds)
        row[f"reached_{name}"] = bool(len(hit))
    found = guarantee(path, contender, problem)
    lost = not np.isfinite(found.kappa)
    row |= {"floor": float(max(path.gaps[-5:].mean(), 1e-16)), "final": float(max(path.gaps[-1], 1e-16)),
            "accuracy": accuracy(problem, path.x), "inner": float(path.inner),
            "floats": float(path.rounds[-1] * problem.clients.size * (len(problem.clients) + problem.f)),
            "kappa": 1e9 if lost else found.kappa, "kappa_G2": 1e9 if lost else found.kappa * found.G**2,
            "alpha": 1e9 if lost else found.alpha, "certified": min(found.floor, 1e9),
            "slack": 1.0 if lost else slack(path, found.kappa)}  # fmt: skip
    for r in (r for r in SHOWN if r <= rounds):
        at = np.flatnonzero(path.rounds <= r)[-1]
        row[f"gap_{r}"] = float(max(path.gaps[at], 1e-16))
    return row


@dataclass
class Given:
    problem: Problem
    scores: dict[str, dict[str, float]]
    rounds: int
    auto: bool


class Tuned(Experiment):
    """What the experiments share: the step is chosen on a draw that is not judged."""

    metrics = METRICS
    auto = False  # whether the theoretical step is run as well

    def takes(self, inputs: Any, at: Any) -> list[str]:
        """The contenders of a cell: at laptop scale those that a claim needs there."""
        every = [name for name in CONTENDERS if name not in ("aeg, l = 0", "mean")]
        return BY_CELL.get(repr(sorted(at.items())), every) if inputs.scale == "laptop" else every

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return contender in self.takes(inputs, cell) or contender not in CONTENDERS

    def rounds(self, inputs: Any, at: Any) -> int:
        return int(at.get("rounds", inputs.rounds))

    def tune(self, inputs: Any, at: Any) -> dict[str, dict[str, float]]:
        """The score of every factor of the step: on all rounds, or, under attacks, which cost most, on a quarter."""
        if inputs.steps == 1:
            return {}
        problem = self.problem(inputs, at, generator("tuning", sorted((k, str(v)) for k, v in at.items())))
        rounds = self.rounds(inputs, at) // (4 if at.f else 1)
        return best_factors(problem, self.takes(inputs, at), FACTORS[: inputs.steps], max(10, rounds))

    def problem(self, inputs: Any, at: Any, rng: np.random.Generator) -> Problem:
        return make(at.data, at.l2, at.f, at.split, at.attack, inputs.clients, rng)

    def measure(self, problem: Given, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        name = next((n for n, c in CONTENDERS.items() if c == contender), "")
        scores = problem.scores.get(name, {"1.0": 0.0})  # no choice: the theoretical step; a person's own has its own
        best = float(min(scores, key=lambda factor: scores[factor]))

        def row(factor: float) -> dict[str, Any]:
            path = trace(contender, problem.problem, factor, problem.rounds)
            return summary(path, contender, problem.problem, problem.rounds)

        found = row(best)
        if problem.auto and name in (*FOUR, "aeg, l = 0"):
            found |= {f"auto_{k}": v for k, v in (found if best == 1.0 else row(1.0)).items()}
        return [{"factor": best, "trials": len(scores), **found}]


class Convergence(Tuned):
    """How many rounds does each solver need, and where does it end, with liars and without?

    A contender of your own has ``rule(f)`` and ``start(problem, factor)`` like ``gd``'s.
    """

    cells = [axes for axes, _ in CELLS.values()]
    contenders = {name: c for name, c in CONTENDERS.items() if name != "aeg, l = 0"}

    @stage(version=1, inputs=("rounds", "clients", "steps", "scale"), seeded=False)
    def tuning(self, inputs: Any, cell: Any, seed: Any) -> dict[str, dict[str, float]]:
        return self.tune(inputs, cell)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Given:
        found = self.problem(inputs, cell, rng)
        auto = cell.f == 0 or dict(cell) == MAIN
        return Given(found, self.tuning(inputs, cell), self.rounds(inputs, cell), auto)


class Acceleration(Tuned):
    """Without liars and on an ill-conditioned objective: is acceleration worth its two rounds an iteration?"""

    cells = [cell(f=0, attack="none", l2=1e-3)]
    contenders = {name: CONTENDERS[name] for name in ("aeg, l = 0", "gd", "nesterov")}

    def takes(self, inputs: Any, at: Any) -> list[str]:
        return ["aeg, l = 0", "gd", "nesterov"]

    def rounds(self, inputs: Any, at: Any) -> int:
        return 4 * int(inputs.rounds)

    @stage(version=1, inputs=("rounds", "clients", "steps", "scale"), seeded=False)
    def tuning_long(self, inputs: Any, cell: Any, seed: Any) -> dict[str, dict[str, float]]:
        return self.tune(inputs, cell)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Given:
        return Given(self.problem(inputs, cell, rng), self.tuning_long(inputs, cell), self.rounds(inputs, cell), True)


class Floors(Tuned):
    """How does the floor grow with kappa G^2, over liars and skews? By ``pigs``, the first to be there."""

    cells = [cell(f=f, split=s) for f in (1, 2, 3, 4, 5) for s in ("iid", "dir 5", "dir 1")]
    contenders = {"pigs": CONTENDERS["pigs"]}

    def takes(self, inputs: Any, at: Any) -> list[str]:
        return ["pigs"]

    def rounds(self, inputs: Any, at: Any) -> int:
        return max(60, int(inputs.rounds) // 5)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Given:
        return Given(self.problem(inputs, cell, rng), {}, self.rounds(inputs, cell), False)
