"""duelpy's algorithms on the same matrices and with the same regret, as they are."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any
from unittest import mock

import numpy as np

from gnomon.decisions.dueling.matrix import PreferenceMatrix
from gnomon.decisions.dueling.simulation import Ledger, Simulation, log_spaced

REGRET = {
    "WS-W": "WinnerStaysWeakRegret",
    "WS-S": "WinnerStaysStrongRegret",
    "RUCB": "RelativeUCB",
    "MergeRUCB": "MergeRUCB",
    "Double Thompson": "DoubleThompsonSampling",
    "Beat the Mean": "BeatTheMeanBandit",
    "RMED1": "Rmed1",
    "knockout": "KnockoutTournament",
    "single elimination": "SingleEliminationTop1Select",
    "sequential elimination": "SequentialElimination",
    "explore-verify": "VerificationBasedCondorcet",
}


def available() -> bool:
    """Whether duelpy is installed."""
    return importlib.util.find_spec("duelpy") is not None


def algorithms() -> Any:
    """``duelpy.algorithms``; it was written for a numpy that still had ``numpy.float``."""
    with mock.patch.object(np, "float", float, create=True), mock.patch.object(np, "int", int, create=True):
        import duelpy.algorithms as found
    return found


class Enough(Exception):
    """The horizon is reached."""


class _Judge:
    """A feedback mechanism of duelpy that draws from a matrix and counts regret."""

    def __init__(self, matrix: PreferenceMatrix, horizon: int, times: Any, random_state: Any):
        self.p, self.horizon, self.ledger = matrix.p, horizon, Ledger(matrix, times)
        self.rng = np.random.default_rng(random_state)
        self.arms = list(range(matrix.n_arms))

    def duel(self, i: int, j: int) -> bool:
        if self.ledger.duels >= self.horizon:
            raise Enough
        self.ledger.pay(int(i), int(j))
        return bool(self.rng.random() < self.p[i, j])

    def duel_repeatedly(self, i: int, j: int, duel_count: int) -> int:
        return sum(self.duel(i, j) for _ in range(duel_count))

    def get_arms(self) -> list[int]:
        return self.arms.copy()

    def get_num_arms(self) -> int:
        return len(self.arms)


def duelpy(name: str, matrix: PreferenceMatrix, horizon: int, *, times: Any = None, random_state: Any = None,
           **options: Any) -> Simulation:  # fmt: skip
    """Run an algorithm of duelpy.

    Parameters
    ----------
    name : str
        A key of ``REGRET``, or the name of a class.
    matrix : PreferenceMatrix
        With a Condorcet winner.
    horizon : int
        Duels.
    times : array_like of int, optional
        Where regret is kept.
    random_state : int or None
        Seeds both the algorithm and the outcomes.
    **options
        Of the algorithm.
    """
    seeds = np.random.SeedSequence(random_state).spawn(2)
    judge = _Judge(matrix, horizon, log_spaced(horizon) if times is None else times, seeds[0])
    kind = getattr(algorithms(), REGRET.get(name, name))
    options.setdefault("time_horizon", horizon)
    with mock.patch.object(np, "float", float, create=True), mock.patch.object(np, "int", int, create=True):
        if "random_state" in inspect.signature(kind).parameters:
            options["random_state"] = np.random.RandomState(seeds[1].generate_state(4))
        algorithm = kind(judge, **options)
        ended = True
        try:
            algorithm.run()
        except Enough:
            ended = False
        ask = getattr(algorithm, "get_condorcet_winner", None) or getattr(algorithm, "get_copeland_winner", None)
        found = None if ask is None else ask()
    best, ledger = None if found is None else int(found), judge.ledger
    answered = ended and ledger.duels < horizon and best is not None
    return ledger.result(
        best=best if answered else None, incumbent=best, answered_at=ledger.duels if answered else None
    )
