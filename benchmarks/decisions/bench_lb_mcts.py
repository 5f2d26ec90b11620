"""LB-MCTS beside SMAC3 and optuna in one run: what a trial costs besides its evaluation, the forest, the length of prompts.

    python benchmarks/decisions/bench_lb_mcts.py [--json FILE] [--clock cpu] [--trials N]

The objective costs nothing, so that all time is the search's own. One thread.
"""

from __future__ import annotations

import os
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from gnomon.decisions import LBMCTS, CASHSpace, Prior, sklearn_space
from gnomon.decisions.lb_mcts import prompt
from gnomon.decisions.lb_mcts.baselines import _silent
from gnomon.decisions.lb_mcts.proposers import by_surrogate, fitted
from gnomon.decisions.lb_mcts.surrogate import RandomForest
from gnomon.decisions.lb_mcts.tree import Trial
from gnomon.study import bench

SPACE = sklearn_space()


def objective(name: str, config: dict[str, Any]) -> float:
    vector = SPACE[name].vector(config)
    return float(np.nanmean((vector - 0.4) ** 2) + 0.01 * len(name))


def ours(trials: int, **options: Any) -> Callable[[], Iterator[None]]:
    def run() -> Iterator[None]:
        opt = LBMCTS(SPACE, n_trials=trials, **options)
        for _ in range(trials):
            trial = opt.ask()
            opt.tell(trial, objective(trial.algorithm, trial.config))
            yield

    return run


def smac(trials: int) -> Callable[[], Iterator[None]]:
    def run() -> Iterator[None]:
        from smac import HyperparameterOptimizationFacade, Scenario
        from smac.runhistory import TrialValue

        with tempfile.TemporaryDirectory() as folder, _silent("smac"):
            scenario = Scenario(
                SPACE.joint(), deterministic=True, n_trials=trials, seed=0, output_directory=Path(folder)
            )
            facade = HyperparameterOptimizationFacade(
                scenario, lambda config, seed=0: 0.0, overwrite=True, logging_level=False
            )
            for _ in range(trials):
                info = facade.ask()
                facade.tell(info, TrialValue(cost=objective(*SPACE.split(dict(info.config)))), save=False)
                yield

    return run


def tpe(trials: int) -> Callable[[], Iterator[None]]:
    def run() -> Iterator[None]:
        import optuna

        from gnomon.decisions.lb_mcts.baselines import _suggested

        with _silent("optuna"):
            study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
            for _ in range(trials):
                trial = study.ask()
                name = trial.suggest_categorical("algorithm", list(SPACE))
                study.tell(trial, objective(name, _suggested(trial, SPACE[name]) or SPACE[name].default))
                yield

    return run


def by_trial(run: Callable[[], Iterator[None]], clock: str) -> np.ndarray:
    """Seconds of each trial."""
    now = bench.CLOCKS[clock]
    marks = [now()]
    for _ in run():
        marks.append(now())
    return np.diff(marks)


def overhead(table: bench.Table, trials: int, clock: Any) -> None:
    """Of the last twenty trials, the mean; every search once before, on few trials, so that nothing is compiled or imported."""
    runs: dict[str, Callable[[int], Callable[[], Iterator[None]]]] = {
        "LB-MCTS, prior": lambda n: ours(n),
        "LB-MCTS, BO alone": lambda n: ours(n, llm=None),
        "LB-MCTS, BO alone, gp": lambda n: ours(n, llm=None, surrogate="gp"),
        "SMAC3": smac,
        "optuna TPE": tpe,
    }
    times: dict[str, float] = {}
    for name, make in runs.items():
        by_trial(make(20), clock)
        times[name] = float(by_trial(make(trials), clock)[-20:].mean())
    table.times(f"a trial without its evaluation, trials {trials - 19} to {trials}, 8 algorithms", times)


def one_algorithm(table: bench.Table, clock: Any) -> None:
    """All 100 trials in one algorithm: the largest surrogate there can be."""
    from sklearn.ensemble import RandomForestRegressor

    space, rng = SPACE["extra_trees"], np.random.default_rng(0)
    trials = []
    for i, vector in enumerate(space.sample(100, rng)):
        config = space.config(vector)
        trials.append(
            Trial(
                i, space.name, config, space.key(config), vector, 1, loss=objective(space.name, config), status="done"
            )
        )

    def step() -> None:
        by_surrogate(space, fitted(space, trials, "forest", 0), trials, trials[0].vector, set(), rng)

    X, y = space.encode(np.array([t.vector for t in trials])), np.array([t.loss for t in trials])
    new = space.encode(space.sample(1000, rng))

    def forest() -> None:
        RandomForest(np.random.default_rng(0)).fit(X, y).predict(new)

    def theirs() -> None:
        RandomForestRegressor(100, min_samples_leaf=3, max_features=5 / 6, oob_score=True, random_state=0).fit(
            X, y
        ).predict(new)

    table.add(
        "fit, 600 candidates and log EI at 100 trials of one algorithm",
        bench.seconds({"a": step}, 7, clock=clock)["a"] * 1e3,
        "ms",
    )
    times = bench.seconds({"compiled forest": forest, "scikit-learn's": theirs}, 5, clock=clock)
    table.times("100 trees on 100 points, out of bag, and 1,000 predictions", times)


class Spy(Prior):
    """The prior, which notes how long the prompts are that a language model would get."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[float] = []

    def propose(self, request: Any, n: int) -> Any:
        self.lengths.append(float(prompt.tokens(request.prompt(most=10**9))))
        return super().propose(request, n)


def prompts(table: bench.Table) -> None:
    """Tokens of a prompt over trials: a selective memory, and all trials so far."""
    for memory, size in (("selective", 12), ("full", 10**6)):
        spy = Spy()
        space = CASHSpace({"svc": SPACE["svc"]})
        options: dict[str, Any] = {"memory": memory, "memory_size": size, "policy": "fixed", "rho": 0.0}
        LBMCTS(space, llm=spy, n_trials=160, **options).minimize(objective)
        curve = np.array(spy.lengths)
        for at in (20, 40, 80, 160):
            table.add(
                f"tokens of a prompt around trial {at}: {memory} memory", float(curve[at - 10 : at].mean()), "tokens"
            )
        growth = float(np.polyfit(np.arange(80, len(curve)), curve[80:], 1)[0])
        table.add(f"growth from trial 80 on: {memory} memory", growth, "tokens a trial")
        table.add(f"longest prompt: {memory} memory", float(curve.max()), "tokens")


def memory(table: bench.Table) -> None:
    """What a trial leaves behind."""

    def held(trials: int) -> int:
        tracemalloc.start()
        opt = LBMCTS(SPACE, n_trials=trials)
        opt.minimize(objective)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(opt._tree) == trials + len(SPACE) + 1
        return size

    held(10)
    few, many = held(100), held(400)
    table.add("memory, growth from 100 to 400 trials", (many - few) / 300 / 1024, "KiB a trial")


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.set_defaults(clock="cpu")
    parser.add_argument("--trials", type=int, default=100)
    options = parser.parse_args()
    table = bench.Table()
    overhead(table, options.trials, options.clock)
    one_algorithm(table, options.clock)
    prompts(table)
    memory(table)
    table.save(options.json)


if __name__ == "__main__":
    sys.exit(main())
