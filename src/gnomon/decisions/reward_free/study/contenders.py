"""Who explores: factories ``(trajectories, horizon, random_state)`` of explorers, all with the same total of episodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gnomon.decisions.reward_free.baselines import (
    RFUCRL,
    GenerativeModel,
    OracleReach,
    RFExpress,
    UCBVIZero,
    UniformExploration,
)
from gnomon.decisions.reward_free.certificate import blocks
from gnomon.decisions.reward_free.method import Explored, PhasedRewardFree

Factory = Callable[[int, int, Any], Explored]


def phased(
    total: int, H: int, seed: Any, *, rho: int | str | None = None, reuse: bool = True, make: Any = PhasedRewardFree
) -> Any:
    """The episodes are shared out evenly among the phases; ``rho`` None: H of them, "half": H / 2."""
    phases = max(1, H // 2) if rho == "half" else H if rho is None else int(rho)
    return make(phases, max(1, total // len(blocks(H, phases))), reuse=reuse, random_state=seed)


def uniform(total: int, H: int, seed: Any) -> Explored:
    """One phase."""
    return UniformExploration(total, random_state=seed)


def generative(total: int, H: int, seed: Any) -> Explored:
    """Even sampling of every pair."""
    return GenerativeModel(total, random_state=seed)


def sequential(total: int, H: int, seed: Any, *, make: Any, scale: float = 1.0) -> Explored:
    """A learner that plans after every episode."""
    return make(total, scale=scale, random_state=seed)


PHASED = "phased"  # as many phases as steps, all data used: the library's default
PAPER = "phased, own data"  # each step's estimate from its own phase alone: the paper's
PARALLEL: dict[str, Factory] = {
    PHASED: phased,
    PAPER: partial(phased, reuse=False),
    "uniform": uniform,
    "2 phases": partial(phased, rho=2),
    "3 phases": partial(phased, rho=3),
    "H/2 phases": partial(phased, rho="half"),
    "true reach": partial(phased, make=OracleReach),
    "generator": generative,
}
ONE_BY_ONE: dict[str, Any] = {
    "rf-ucrl": partial(sequential, make=RFUCRL),
    "rf-express": partial(sequential, make=RFExpress),
    "ucbvi-zero": partial(sequential, make=UCBVIZero),
}
SCALES = (1.0, 0.1, 0.01, 0.001)  # of the bonus; the theory's is 1
