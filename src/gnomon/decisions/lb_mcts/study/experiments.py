"""The experiments: searches beside each other, their first trials with right and wrong priors, how rho moves, a real model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from gnomon.decisions.lb_mcts.method import LBMCTS
from gnomon.decisions.lb_mcts.study.contenders import CONTENDERS, WRONG, embedded
from gnomon.decisions.lb_mcts.study.material import Problem, problem
from gnomon.study import Experiment, grid, lower
from gnomon.study.runner import generator

THREE, FIVE = ["digits", "cancer", "wine"], ["digits", "cancer", "wine", "fair", "anes96"]
COLD = 10  # trials of a cold start
REGRETS = {name: lower("balanced error") for name in ("final", "area", "area10", "test")}  # of derived tables


def rows_of(found: Any, given: Problem) -> Iterable[dict[str, Any]]:
    """One row per trial: what was tried, the best so far, and of LB-MCTS who proposed it and at what rho."""
    best, best_at = 1.0, None
    trials: list[Any] = list(found.trials_.itertuples()) if isinstance(found, LBMCTS) else list(found)
    for i, t in enumerate(trials, 1):
        own = isinstance(found, LBMCTS)
        config = json.loads(t.config) if own else t.config
        loss = float(t.loss)
        if loss < best:
            best, best_at = loss, (t.algorithm, config)
        row = {"trial": i, "algorithm": t.algorithm, "config": json.dumps(config), "loss": loss, "best": best,
               "failed": math.isnan(loss)}  # fmt: skip
        if own:
            row |= {"proposer": t.proposer, "source": t.source, "rho": t.rho, "reliability": t.reliability,
                    "prompt_tokens": t.prompt_tokens, "longest_prompt": t.longest_prompt, "completion_tokens": t.completion_tokens, "unread": t.failures,
                    "overhead": t.overhead, "llm_seconds": t.llm_seconds}  # fmt: skip
        row["test"] = given.objective.test(*best_at) if i == len(trials) and best_at else math.nan
        yield row


class Searches(Experiment):
    """What each search has found after each evaluation.

    A contender of your own is a function ``(fn, space, n_trials, random_state, card, llm)`` that gives its evaluations in order, each with
    ``algorithm``, ``config`` and ``loss``.
    """

    cells = grid(data=FIVE)
    contenders: ClassVar[Mapping[str, Any]] = CONTENDERS
    metrics = {"best": lower("balanced error"), "overhead": lower("s")}

    def trials(self, inputs: Any) -> int:
        return int(inputs.trials)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        seed = int(generator("search", cell.data, cell.seed + inputs.first_seed).integers(2**31 - 1))
        return problem(cell.data, inputs.digits, self.trials(inputs), seed, inputs.llm)

    def measure(self, given: Problem, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        return list(
            rows_of(contender(given.objective, given.space, given.trials, given.seed, given.card, given.llm), given)
        )


class ColdStart(Searches):
    """The first ten trials, with the documented defaults and with defaults drawn at random (four tables)."""

    contenders: ClassVar[Mapping[str, Any]] = {name: [CONTENDERS[name]] for name in ("lb-mcts", "rho = 1")} | {
        "wrong defaults": WRONG
    }

    def trials(self, inputs: Any) -> int:
        return min(COLD, int(inputs.trials))

    def measure(self, given: Problem, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        several = contender if isinstance(contender, list) else [contender]
        return [
            {"draw": i, **row}
            for i, one in enumerate(several)
            for row in super(ColdStart, self).measure(given, one, rng)
        ]


class Shift(Searches):
    """Twice as many trials of LB-MCTS: how rho moves."""

    contenders: ClassVar[Mapping[str, Any]] = {"lb-mcts": CONTENDERS["lb-mcts"]}

    def trials(self, inputs: Any) -> int:
        return max(60, int(inputs.trials)) if inputs.trials > 20 else int(inputs.trials)


class RealModel(Searches):
    """The embedded language model, by scoring, on one table and seed."""

    cells = grid(data=["wine"])
    contenders: ClassVar[Mapping[str, Any]] = {
        "embedded": None,
        "rho = 1": CONTENDERS["rho = 1"],
    }  # a model is made where it is used
    seeds = 1
    metrics = {**Searches.metrics, **REGRETS}

    def trials(self, inputs: Any) -> int:
        return min(12, int(inputs.trials))

    def measure(self, given: Problem, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        return super().measure(given, contender or embedded(), rng)
