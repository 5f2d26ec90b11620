"""Phased reward-free exploration beside loops over gymnasium environments, in one run.

    python benchmarks/decisions/bench_reward_free.py [--json FILE] [--clock cpu]

Peers: a Python loop over one gymnasium environment, ``gymnasium.vector`` (64 copies), and, for the planning, one dynamic
program a target. One thread. rlberry, which has RF-UCRL, needs packages that cannot live beside this library's: left out.
"""

from __future__ import annotations

import tracemalloc
import warnings

import gymnasium
import numpy as np

from gnomon.decisions import PhasedRewardFree, TabularMDP, VectorEnvironment, combination_lock
from gnomon.decisions.reward_free.baselines import RFUCRL
from gnomon.decisions.reward_free.tabular import Model
from gnomon.study import bench

H, OPTIONS = 20, {"map_name": "8x8"}


def loop(episodes: int) -> np.ndarray:
    """Uniform exploration as a person would write it: the same counts, one environment step at a time."""
    env = gymnasium.make("FrozenLake-v1", max_episode_steps=H + 1, **OPTIONS)
    counts, rng = np.zeros((H, 64, 4, 64), dtype=int), np.random.default_rng(0)
    for episode in range(episodes):
        state, _ = env.reset(seed=episode if episode == 0 else None)
        ended = False
        for h in range(H):
            action = int(rng.integers(4))
            following = state
            if not ended:
                following, _, ended, _, _ = env.step(action)
            counts[h, state, action, following] += 1
            state = following
    return counts


def one_by_one(model: Model, layer: int) -> list[np.ndarray]:
    """A dynamic program for each target."""
    found = []
    for target in range(model.n_states):
        V = np.eye(model.n_states)[target]
        policy = []
        for t in range(layer - 1, -1, -1):
            Q = (model.kernels[t] @ V).reshape(model.n_states, -1)
            policy.append(Q.argmax(axis=1))
            V = Q.max(axis=1)
        found.append(V)
    return found


def peak(call) -> float:  # type: ignore[no-untyped-def]
    """Peak of Python's and numpy's allocations, MB."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.set_defaults(clock="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "n_agents", UserWarning)
    table, mdp = bench.Table(), TabularMDP.from_gymnasium("FrozenLake-v1", horizon=H, **OPTIONS)

    def explore(env, agents, phases=1):  # type: ignore[no-untyped-def]
        return PhasedRewardFree(phases, agents, random_state=0).explore(env)

    copies = VectorEnvironment(lambda: gymnasium.make("FrozenLake-v1", max_episode_steps=H + 1, **OPTIONS), H)
    work = {  # episodes of each, so that all take about as long
        "PhasedRewardFree, one phase": (20_000, lambda n: explore(mdp, n)),
        "gymnasium, a Python loop": (500, loop),
        "gymnasium.vector, 64 copies": (640, lambda n: explore(copies, n)),
    }
    times = bench.seconds(
        {name: lambda f=f, n=n: f(n) for name, (n, f) in work.items()}, options.repeats, clock=options.clock
    )
    own = next(iter(times.values())) / (20_000 * H)
    for name, (episodes, _) in work.items():
        each = times[name] / (episodes * H)
        table.add(
            f"FrozenLake 8x8, H = 20, uniform: {name}",
            1e-6 / each,
            "M agent-steps/s",
            None if each == own else each / own,
        )
    learned = explore(mdp, 20_000).model_
    planning = bench.seconds({"one recursion for all targets": lambda: learned.reach(H - 1), "one a target": lambda: one_by_one(learned, H - 1)},
                             options.repeats, clock=options.clock)  # fmt: skip
    table.times("reach of the last step, FrozenLake 8x8", planning)
    whole = bench.seconds({"explore": lambda: explore(mdp, 100_000, None)}, 2, clock=options.clock, warm=False)
    table.add("FrozenLake 8x8, H = 20, 20 phases of 100,000 agents: explore", whole["explore"], "s")
    lock = combination_lock(12, 2, 0)
    locks = bench.seconds({"6 phases": lambda: explore(lock, 16, 6)}, 20, clock=options.clock)
    table.add("lock of 12 steps, 6 phases of 16 agents: explore", locks["6 phases"] * 1e3, "ms")
    small = TabularMDP.from_gymnasium("FrozenLake-v1", horizon=12)
    sequential = bench.seconds({"phased": lambda: explore(small, 1000, 12), "RF-UCRL": lambda: RFUCRL(12_000, random_state=0).explore(small)},
                               options.repeats, clock=options.clock)  # fmt: skip
    table.times("FrozenLake 4x4, H = 12, 12,000 episodes", sequential)
    taxi = TabularMDP.from_gymnasium("Taxi-v4", horizon=15)
    found = bench.seconds({"explore": lambda: explore(taxi, 20_000, None)}, 1, clock=options.clock, warm=False)
    table.add("Taxi (500 states), H = 15, 15 phases of 20,000 agents: explore", found["explore"], "s")
    table.add(
        "Taxi: peak memory while exploring",
        peak(lambda: explore(taxi, 20_000, None)),
        "MB",
        dense_mb=round(15 * 500 * 6 * 500 * 8 / 2**20),
    )
    table.save(options.json)


if __name__ == "__main__":
    main()
