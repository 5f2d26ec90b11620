"""The experiments: rates, budgets, sequential learners, locks, certificates, and one large world."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gnomon.decisions.reward_free.certificate import lock_agents, lock_success
from gnomon.decisions.reward_free.environments import random_mdp
from gnomon.decisions.reward_free.study.contenders import ONE_BY_ONE, PAPER, PARALLEL, PHASED, SCALES
from gnomon.decisions.reward_free.study.locks import agents_for_half, share_opened
from gnomon.decisions.reward_free.study.material import HORIZONS, WORLDS, World, judged, world, worlds
from gnomon.study import Experiment, grid, higher, lower, stage
from gnomon.study.runner import generator

METRICS = {
    "gap": lower("reward"),
    "worst": lower("reward", log=True),
    "certificate": lower("reward"),
    "certificate_ratio": lower(log=True),
    "bound": lower("reward"),
}
DRAWS = 8  # of an experiment over locks, each of so many runs as the inputs say
TUNING = 2  # draws on which a bonus is chosen


@dataclass
class Problem:
    """Worlds, and how many episodes may be run in each."""

    name: str
    found: list[World]
    total: int
    horizon: int
    scales: dict[str, float]


def problem(name: str, total: int, rng: np.random.Generator, scales: dict[str, float] | None = None) -> Problem:
    """A world's name made into MDPs and rewards."""
    return Problem(name, [world(mdp, rng) for mdp in worlds(name, rng)], total, HORIZONS[name], scales or {})


class Exploring(Experiment):
    """What the experiments over worlds share. A contender of your own is a factory ``(trajectories, horizon, random_state)``
    of what has ``explore(mdp)`` and afterwards ``model_``, ``certificate_``, ``exact_gap``, ``n_phases_`` and ``n_trajectories_``."""

    metrics = METRICS

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        rows = []
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "n_agents", UserWarning)  # small budgets are part of the study
            for number, at in enumerate(problem.found):
                explorer = contender(problem.total, problem.horizon, rng)
                rows.append({"instance": number, **judged(explorer.explore(at.mdp), at)})
        return rows


class Rates(Exploring):
    """Does the worst gap fall as a power of the agents, with as many phases as steps?"""

    cells = grid(world=["frozenlake 4x4", "riverswim"], agents=[100, 316, 1000, 3162, 10_000])
    contenders = {name: PARALLEL[name] for name in (PHASED, PAPER)}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        return problem(cell.world, cell.agents * HORIZONS[cell.world], rng)


class Budgets(Exploring):
    """At equal totals of episodes, where do phases pay? ``agents`` are those a phase where there are as many phases as steps."""

    cells = grid(world=list(WORLDS), agents=[100, 1000, 10_000])
    contenders = PARALLEL

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        """At laptop scale the largest budget goes to those of whom a claim speaks."""
        few = inputs.scale == "laptop" and cell.agents == 10_000
        return not few or contender not in ("2 phases", "3 phases", "H/2 phases", "true reach")

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        return problem(cell.world, cell.agents * HORIZONS[cell.world], rng)


class Sequential(Exploring):
    """Against learners that plan anew after every episode, at equal totals; the scale of each one's bonus is chosen on
    draws that are not judged."""

    cells = grid(world=["frozenlake 4x4", "riverswim"], agents=[100, 1000])
    contenders = {name: PARALLEL[name] for name in (PHASED, PAPER)} | ONE_BY_ONE

    @stage(version=1, inputs=(), seeded=False)
    def tuning(self, inputs: Any, cell: Any, seed: Any) -> dict[str, dict[str, float]]:
        rng = generator("reward_free tuning", sorted((k, str(v)) for k, v in cell.items()))
        found: dict[str, dict[str, float]] = {name: {} for name in ONE_BY_ONE}
        problems = [problem(cell.world, cell.agents * HORIZONS[cell.world], rng) for _ in range(TUNING)]
        for name, make in ONE_BY_ONE.items():
            for scale in SCALES:
                rows = [r for p in problems for r in self.measure(p, partial(make, scale=scale), rng)]
                found[name][str(scale)] = float(np.mean([r["gap"] for r in rows]))
        return found

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        scores = self.tuning(inputs, cell)
        scales = {name: float(min(found, key=found.__getitem__)) for name, found in scores.items()}
        return problem(cell.world, cell.agents * HORIZONS[cell.world], rng, scales)

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        name = next((n for n, c in ONE_BY_ONE.items() if c is contender or _same(c, contender)), None)
        if name is None or not problem.scales:
            return super().measure(problem, contender, rng)
        scale = problem.scales[name]
        rows = super().measure(problem, partial(contender, scale=scale), rng)
        return [{"scale": scale, "trials": len(SCALES), **r} for r in rows]


class Locks(Experiment):
    """With fewer phases than steps: how often do m agents a phase open a lock of 12 steps, and how many open every second one?"""

    cells = grid(A=[2, 3], rho=[2, 3, 4, 6])
    contenders = {PAPER: {"reuse": False}, PHASED: {"reuse": True}}
    metrics = {"share": higher(), "agents": lower("agents", log=True), "ratio": lower(log=True)}
    seeds = DRAWS
    steps = 12

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return contender in self.contenders

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return {**cell, "H": self.steps if inputs.scale != "smoke" else 4, "runs": inputs.runs}

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        A, rho, H, runs = (problem[k] for k in ("A", "rho", "H", "runs"))
        lengths = [H // rho] * rho
        root = lock_agents(A, lengths)
        rows: list[dict[str, Any]] = []
        for times in (0.5, 1, 2):
            m = 2 * max(1, round(times * root / 2))  # even: half of the agents go to each of the two states
            share = share_opened(H, A, rho, m, runs, rng, **contender)
            rows.append(
                {"what": "share", "m": m, "runs": runs, "share": share, "expected": lock_success(m, A, lengths)}
            )
        if contender.get("reuse") is False:  # the closed form's own estimator is searched
            found, _ = agents_for_half(H, A, rho, runs, rng, **contender)
            rows.append({"what": "root", "agents": found, "formula": root, "ratio": found / root, "length": H / rho})
        return rows


class Layers(Experiment):
    """With as many phases as steps: how do the agents that open every second lock grow with steps and with actions?"""

    cells = [{"along": "H", "H": H, "A": 3} for H in (4, 8, 16)] + [{"along": "A", "H": 8, "A": A} for A in (2, 4, 8)]
    contenders = {PAPER: {"reuse": False}, "phased, drawn actions": {"reuse": False, "design": "random"}}
    metrics = {"agents": lower("agents", log=True), "interpolated": lower("agents", log=True)}
    seeds = DRAWS

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return contender in self.contenders

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return {"H": cell.H, "A": cell.A, "runs": inputs.runs}

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        H, A, runs = problem["H"], problem["A"], problem["runs"]
        crossing, fewest = agents_for_half(H, A, H, runs, rng, **contender)
        return [{"agents": float(fewest), "interpolated": crossing, "steps": H, "actions": A}]


class Certificates(Exploring):
    """How small does the certificate get on a world of 4 states, 2 actions and 4 steps, where trivial is 3?"""

    cells = grid(visits=[100, 3000, 100_000])
    contenders = {"generator": PARALLEL["generator"]}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        return Problem("random", [world(random_mdp(4, 2, 4, rng), rng)], 8 * cell.visits, 4, {})


class Large(Exploring):
    """Taxi, once: 500 states kept sparse."""

    cells = grid(world=["taxi"], agents=[20_000])
    contenders = {name: PARALLEL[name] for name in (PHASED, PAPER, "uniform")}
    seeds = 1

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        return problem(cell.world, cell.agents * HORIZONS[cell.world], rng)


def _same(a: Any, b: Any) -> bool:
    """Partial objects that have travelled to another process are equal in what they call."""
    return isinstance(b, partial) and isinstance(a, partial) and (a.func, a.keywords) == (b.func, b.keywords)
