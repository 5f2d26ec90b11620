"""Who is compared: each is a search ``(fn, space, n_trials, random_state, card, llm)``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gnomon.decisions.lb_mcts import baselines
from gnomon.decisions.lb_mcts.llm import Embedded, Prior
from gnomon.decisions.lb_mcts.priors import PriorTable

Search = Callable[..., Any]
REDRAWS = 4  # tables of wrong defaults


def peer(made: Callable[..., list[baselines.Evaluation]], **options: Any) -> Search:
    """A search that is told nothing of the task."""

    def run(
        fn: Any, space: Any, n_trials: int, random_state: int, card: Any = None, llm: Any = None
    ) -> list[baselines.Evaluation]:
        return made(fn, space, n_trials, random_state, **options)

    return run


def wrong(draw: int) -> Search:
    """LB-MCTS with a table whose defaults were drawn anew."""

    def run(fn: Any, space: Any, n_trials: int, random_state: int, card: Any = None, llm: Any = None) -> Any:
        table = PriorTable(redrawn=1000 * draw + random_state % 1000)
        return baselines.by_tree({"llm": Prior(table)})(fn, space, n_trials, random_state, card)

    return run


RELATIVES = {name: baselines.by_tree(options) for name, options in baselines.RELATIVES.items()}
CONTENDERS: dict[str, Search] = {
    "lb-mcts": baselines.by_tree({}),
    "rho = 0": RELATIVES.pop("rho = 0"),
    "rho = 1": RELATIVES.pop("rho = 1"),
    "random": peer(baselines.random_search),
    "tpe": peer(baselines.optuna_search),
    "smac": peer(baselines.smac),
    "plain mcts": baselines.by_tree({"llm": None}, baselines.PlainMCTS),
    "garbage": baselines.by_tree({"llm": baselines.Garbage()}),
    "adversary": baselines.by_tree({"llm": baselines.Adversary()}),
    "adversary, moved": baselines.by_tree({"llm": baselines.Adversary(moved=True)}),
}
LAPTOP = [*CONTENDERS, "flat memory", "no reflection", "linear"]
CONTENDERS |= {
    "optuna gp": peer(baselines.optuna_search, sampler="gp"),
    "cfo": peer(baselines.flaml_search),
    "blendsearch": peer(baselines.flaml_search, search="blendsearch"),
    "rising bandit": peer(baselines.rising_bandit),
    **RELATIVES,
}
WRONG = [wrong(draw) for draw in range(REDRAWS)]


@functools.cache
def embedded() -> Search:
    """LB-MCTS with the embedded language model."""
    return baselines.by_tree({"llm": Embedded()})
