"""On what: worlds, families of rewards, and how far plans are from the best ones under them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.decisions.reward_free.environments import combination_lock, corridor, random_mdp, riverswim
from gnomon.decisions.reward_free.method import Explored, suboptimality
from gnomon.decisions.reward_free.tabular import Floats, Model, TabularMDP

WORLDS = (
    "frozenlake 4x4",
    "frozenlake 8x8",
    "cliffwalking",
    "riverswim",
    "riverswim hard",
    "lock",
    "corridor",
    "random",
)
EASY, HARD = ("frozenlake 4x4", "random"), ("lock", "corridor", "riverswim hard")
HORIZONS = {"frozenlake 4x4": 12, "frozenlake 8x8": 20, "cliffwalking": 16, "riverswim": 12, "riverswim hard": 20, "lock": 12,
            "corridor": 12, "random": 5, "taxi": 15}  # fmt: skip
FAMILY = 50  # random rewards, and as many indicators
ASCENT = 10  # steps of the adversary


def worlds(name: str, rng: np.random.Generator) -> list[TabularMDP]:
    """The MDPs of a name: one, or of "random" two; secrets and random transitions are drawn."""
    H, seed = HORIZONS[name], int(rng.integers(2**31))
    if name == "random":
        return [random_mdp(8, 3, H, rng) for _ in range(2)]
    if name == "lock":
        return [combination_lock(H, 3, seed)]
    if name == "corridor":
        return [corridor(12, 3, H, seed)]
    if name == "riverswim":
        return [riverswim(6, H)]
    if name == "riverswim hard":
        return [riverswim(6, H, drift=0.35)]
    gym: dict[str, tuple[str, dict[str, Any]]] = {
        "frozenlake 4x4": ("FrozenLake-v1", {"map_name": "4x4"}), "frozenlake 8x8": ("FrozenLake-v1", {"map_name": "8x8"}),
        "cliffwalking": ("CliffWalking-v1", {}), "taxi": ("Taxi-v4", {})}  # fmt: skip
    return [TabularMDP.from_gymnasium(gym[name][0], horizon=H, **gym[name][1])]


@dataclass
class World:
    """An MDP and the rewards under which plans are judged: its own, random ones, indicators; (H, S, A, 1 + 2 FAMILY)."""

    mdp: TabularMDP
    rewards: Floats


def world(mdp: TabularMDP, rng: np.random.Generator) -> World:
    """Draw the families: uniform rewards, and indicators of single (h, s, a), all different."""
    shape = (mdp.horizon, mdp.n_states, mdp.n_actions)
    own = np.zeros(shape) if mdp.rewards is None else np.asarray(mdp.rewards, dtype=float)
    low, high = min(own.min(), 0.0), max(own.max(), 1.0)  # rewards in other units than [0, 1] are scaled
    single = np.zeros((own.size, FAMILY))
    count = min(FAMILY, own.size)
    single[rng.choice(own.size, size=count, replace=False), np.arange(count)] = 1.0
    rewards = [((own - low) / (high - low))[..., None], rng.random((*shape, FAMILY)), single.reshape(*shape, FAMILY)]
    return World(mdp, np.concatenate(rewards, axis=-1))


def adversary(truth: Model, model: Model, reward: Floats, steps: int = ASCENT) -> float:
    """Gradient ascent on the true gap over rewards in [0, 1], from ``reward`` (H, S, A); the largest on the way.

    Where neither policy changes, the gap's gradient is the difference of the two occupancies.
    """
    largest = 0.0
    for _ in range(steps):
        best, value = truth.optimise(reward[..., None])
        plan, _ = model.optimise(reward[..., None])
        there = truth.occupancy(plan[..., 0])
        largest = max(largest, float(value[0] - (there * reward).sum()))
        uphill = truth.occupancy(best[..., 0]) - there
        size = np.abs(uphill).max()
        if size < 1e-12:
            break
        reward = np.clip(reward + uphill / size, 0.0, 1.0)
    return largest


def judged(found: Explored, at: World) -> dict[str, Any]:
    """What an exploration is worth: gaps by family, the bounds, and its costs."""
    gaps = np.maximum(suboptimality(at.mdp, found.model_, at.rewards), 0.0)  # rounding
    own, drawn, single = gaps[0], gaps[1 : 1 + FAMILY], gaps[1 + FAMILY :]
    against = adversary(at.mdp, found.model_, at.rewards[..., int(gaps.argmax())])
    worst, H = max(float(gaps.max()), against), at.mdp.horizon
    most, bound = min(float(H), 2 * found.certificate_), found.exact_gap(at.mdp)
    return {
        "gap": float(max(drawn.max(), single.max())), "own": float(own), "random": float(drawn.max()),
        "indicator": float(single.max()), "adversarial": against, "worst": worst, "certificate": found.certificate_,
        "covered": most - worst, "below_trivial": found.certificate_ < H - 1 - 1e-9, "certificate_ratio": most / max(worst, 1e-12),
        "bound": float(bound), "bound_slack": float(bound) - worst + 1e-12, "phases": found.n_phases_,
        "trajectories": found.n_trajectories_,
    }  # fmt: skip
