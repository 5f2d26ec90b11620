"""Who is compared: a solver with its constant, and the server's rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.optimization.byzantine import solvers
from gnomon.optimization.byzantine.aggregators import NNM, Aggregator, Chain, Mean, TrimmedMean
from gnomon.optimization.byzantine.baselines import local_prox
from gnomon.optimization.byzantine.losses import Inner, ZeroLoss
from gnomon.optimization.byzantine.oracle import RobustOracle
from gnomon.optimization.byzantine.study.material import Problem

FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25, 0.125)  # of the theoretical step, the same for every contender; nearest first
LOST = 1e6  # an objective gap that counts as divergence


@dataclass(frozen=True)
class Contender:
    """A solver: ``kind``, whether it knows the server's loss, whether clients average, and the rule."""

    kind: str
    server: bool = False
    worker_momentum: float = 0.0
    mean: bool = False

    def rule(self, f: int) -> Aggregator:
        return Mean() if self.mean else Chain(NNM(f), TrimmedMean(f))

    def start(self, problem: Problem, factor: float) -> Run:
        """The iterates with a step of ``factor`` times the theoretical one."""
        oracle = RobustOracle(problem.clients.gradients, self.rule(problem.f), problem.f, problem.attack,
                              self.worker_momentum)  # fmt: skip
        inner = Inner(problem.server if self.server else ZeroLoss())
        constant = (problem.similarity if self.server else problem.smoothness) / factor
        x, mu = np.zeros(problem.clients.size), problem.mu
        iterates = {
            "gd": lambda: solvers.gradient_descent(oracle, x, 1 / constant),
            "heavy ball": lambda: solvers.heavy_ball(oracle, x, 1 / constant),
            "nesterov": lambda: solvers.nesterov(oracle, x, 1 / constant, mu),
            "pigs": lambda: solvers.pigs(oracle, x, 1 / constant, inner),
            "aeg": lambda: solvers.aeg(oracle, x, 1.1 * constant, mu, inner),
            "local prox": lambda: local_prox(oracle, x, 1 / constant, inner),
        }[self.kind]()
        return Run(oracle, inner, iterates)


@dataclass
class Run:
    oracle: RobustOracle
    inner: Inner
    iterates: Iterator[np.ndarray]


CONTENDERS = {
    "pigs": Contender("pigs", server=True),
    "aeg": Contender("aeg", server=True),
    "gd": Contender("gd"),
    "nesterov": Contender("nesterov"),
    "aeg, l = 0": Contender("aeg"),
    "heavy ball": Contender("heavy ball"),
    "worker momentum": Contender("gd", worker_momentum=0.9),
    "local prox": Contender("local prox", server=True),
    "mean": Contender("gd", mean=True),
}


@dataclass
class Path:
    """What one run did: rounds so far and the objective gap at each iterate, and the log of its oracle."""

    rounds: np.ndarray
    gaps: np.ndarray
    x: np.ndarray
    log: list[dict[str, float]]
    inner: int

    @property
    def score(self) -> float:
        """Mean logarithm of the gap over the rounds, the lower the better: what a step is chosen by."""
        return float(
            np.log(np.clip(np.interp(np.arange(self.rounds[-1] + 1), self.rounds, self.gaps), 1e-12, LOST)).mean()
        )


def trace(contender: Contender, problem: Problem, factor: float, rounds: int) -> Path:
    """Run for so many rounds, or until it is lost."""
    run = contender.start(problem, factor)
    at: list[int] = []
    gaps: list[float] = []
    x = np.zeros(0)
    step = 2 if contender.kind == "aeg" else 1
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            for x in run.iterates:
                gap = float(problem.clients.value_and_grad(x)[0] - problem.least)
                at.append(run.oracle.rounds)
                gaps.append(gap if np.isfinite(gap) and gap < LOST else LOST)
                if gaps[-1] == LOST or run.oracle.rounds + step > rounds:
                    break
        except (RuntimeError, ValueError):  # a step so long that the numbers ran out
            at.append(run.oracle.rounds)
            gaps.append(LOST)
    if gaps[-1] == LOST:  # and stays so
        at, gaps = [*at, *range(at[-1] + 1, rounds + 1)], [*gaps, *[LOST] * (rounds - at[-1])]
    return Path(np.array(at), np.maximum(gaps, 0.0), x, run.oracle.log, run.inner.evaluations)


def best_factors(problem: Problem, names: Any, factors: Any, rounds: int) -> dict[str, dict[str, float]]:
    """For each contender, the score of every factor."""
    return {name: {str(f): trace(CONTENDERS[name], problem, f, rounds).score for f in factors} for name in names}
