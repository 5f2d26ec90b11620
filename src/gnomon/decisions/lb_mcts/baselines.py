"""What LB-MCTS is compared with: random search, SMAC, optuna, FLAML, bandits over algorithms, plain tree search, hostile models.

Each search takes ``(fn, space, n_trials, random_state)`` and gives its evaluations in order; ``fn(algorithm, config)`` returns a loss,
and raises or returns NaN where it fails.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gnomon.decisions.lb_mcts.llm import LLM, Answer, Request
from gnomon.decisions.lb_mcts.method import LBMCTS
from gnomon.decisions.lb_mcts.proposers import by_surrogate, fitted, fresh, seeded
from gnomon.decisions.lb_mcts.space import AlgorithmSpace, CASHSpace, Config, choices, tidy, whole
from gnomon.decisions.lb_mcts.surrogate import Surrogate
from gnomon.decisions.lb_mcts.tree import Trial

Objective = Callable[[str, Config], float]


class Evaluation(NamedTuple):
    """One evaluation; the loss is NaN where it failed."""

    algorithm: str
    config: Config
    loss: float


def attempt(fn: Objective, algorithm: str, config: Config) -> Evaluation:
    """Evaluate; an error is a failed evaluation."""
    try:
        loss = float(fn(algorithm, config))
    except Exception:  # whatever the function does
        loss = math.nan
    return Evaluation(algorithm, config, loss if math.isfinite(loss) else math.nan)


# --- without a model -------------------------------------------------------------------------------------------------


def random_search(fn: Objective, space: CASHSpace, n_trials: int, random_state: int) -> list[Evaluation]:
    """An algorithm and a configuration of it, both uniform."""
    rng, names = np.random.default_rng(random_state), list(space)
    found = []
    for _ in range(n_trials):
        name = names[int(rng.integers(len(names)))]
        found.append(attempt(fn, name, space[name].config(space[name].sample(1, rng)[0])))
    return found


# --- Bayesian optimisation -------------------------------------------------------------------------------------------


class ForestBO:
    """Bayesian optimisation of one algorithm with the forest and candidates that LB-MCTS uses; LB-MCTS is held to it.

    Parameters
    ----------
    space : AlgorithmSpace
    random_state : int or None
    surrogate : {"forest", "gp"}
    """

    def __init__(self, space: AlgorithmSpace, random_state: int | None = 0, surrogate: str = "forest"):
        self.space, self.surrogate = space, surrogate
        self.seed = int(np.random.default_rng(random_state).integers(2**31))
        self.rng = seeded(self.seed, 1)
        self.trials: list[Trial] = []

    def step(self, fn: Objective) -> Evaluation | None:
        """Propose, evaluate, learn; None when nothing is left."""
        model = fitted(self.space, self.trials, self.surrogate, self.seed)
        config, _ = by_surrogate(self.space, model, self.trials, None, {t.key for t in self.trials}, self.rng)
        if config is None:
            return None
        found = attempt(fn, self.space.name, config)
        trial = Trial(len(self.trials), self.space.name, config, self.space.key(config), self.space.vector(config), 0)
        trial.loss, trial.status = found.loss, "failed" if math.isnan(found.loss) else "done"
        self.trials.append(trial)
        return found


def rising_bandit(
    fn: Objective, space: CASHSpace, n_trials: int, random_state: int, window: int = 3
) -> list[Evaluation]:
    """One Bayesian optimiser per algorithm; an algorithm is dropped once its best loss, falling at its last rate until the end, stays
    above another's.

    References
    ----------
    Y. Li et al., "Efficient automatic CASH via rising bandits", AAAI (2020).
    """
    arms = {name: ForestBO(space[name], random_state + i) for i, name in enumerate(space)}
    curves: dict[str, list[float]] = {name: [] for name in arms}
    active = list(arms)
    found: list[Evaluation] = []
    while active:
        spent = set()
        for name in active:
            if len(found) == n_trials:
                return found
            one = arms[name].step(fn)
            if one is None:  # nothing left to try
                spent.add(name)
                continue
            found.append(one)
            curves[name].append(min([*curves[name][-1:], math.inf if math.isnan(one.loss) else one.loss]))
        left = n_trials - len(found)
        bounds = {name: _reachable(curves[name], window, left / len(active)) for name in active}
        best = min(c[-1] for c in curves.values() if c)
        active = [a for a in active if a not in spent and (bounds[a] < best or curves[a][-1] == best)]
    return found


def _reachable(curve: list[float], window: int, left: float) -> float:
    """The least loss that an arm can come to at the rate of its last evaluations."""
    if len(curve) <= window or not math.isfinite(curve[-1 - window]):
        return -math.inf
    return curve[-1] - (curve[-1 - window] - curve[-1]) / window * left


def smac(fn: Objective, space: CASHSpace, n_trials: int, random_state: int) -> list[Evaluation]:
    """SMAC3's facade for hyperparameters (random forest, log EI, Sobol start) over the joint conditional space, by ask and tell."""
    from smac import HyperparameterOptimizationFacade, Scenario
    from smac.runhistory import StatusType, TrialValue

    found: list[Evaluation] = []
    with tempfile.TemporaryDirectory() as folder, _silent("smac"):
        scenario = Scenario(
            space.joint(), deterministic=True, n_trials=n_trials, seed=random_state, output_directory=Path(folder)
        )
        optimiser = HyperparameterOptimizationFacade(
            scenario, lambda config, seed=0: 0.0, overwrite=True, logging_level=False
        )
        for _ in range(n_trials):
            info = optimiser.ask()
            one = attempt(fn, *space.split(dict(info.config)))
            found.append(one)
            failed = math.isnan(one.loss)
            worst = max((e.loss for e in found if not math.isnan(e.loss)), default=1.0)
            status = StatusType.CRASHED if failed else StatusType.SUCCESS
            optimiser.tell(info, TrialValue(cost=worst if failed else one.loss, status=status), save=False)
    return found


def optuna_search(
    fn: Objective, space: CASHSpace, n_trials: int, random_state: int, sampler: str = "tpe"
) -> list[Evaluation]:
    """optuna over the joint conditional space; ``sampler`` is "tpe" or "gp"."""
    import optuna

    found: list[Evaluation] = []
    with _silent("optuna"):
        chosen = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}[sampler](seed=random_state)
        study = optuna.create_study(sampler=chosen)
        for _ in range(n_trials):
            trial = study.ask()
            name = trial.suggest_categorical("algorithm", list(space))
            config = _suggested(trial, space[name])
            one = Evaluation(name, config or {}, math.nan) if config is None else attempt(fn, name, config)
            found.append(one)
            if math.isnan(one.loss):
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, one.loss)
    return found


def _suggested(trial: Any, space: AlgorithmSpace) -> Config | None:
    """A configuration from optuna's suggestions, in the order of conditions; None where a clause forbids it."""
    config: Config = {}
    hp: Any
    for hp in space.hyperparameters:
        parents = space.space.parent_conditions_of[hp.name]
        if not all(c.satisfied_by_value(config) for c in parents if _known(c, config)) or not all(
            _known(c, config) for c in parents
        ):
            continue
        label = f"{space.name}:{hp.name}"
        if values := choices(hp):
            picked = trial.suggest_categorical(label, [str(v) for v in values])
        elif whole(hp):
            picked = trial.suggest_int(label, int(hp.lower), int(hp.upper), log=getattr(hp, "log", False))
        else:
            picked = trial.suggest_float(label, hp.lower, hp.upper, log=getattr(hp, "log", False))
        config[hp.name] = tidy(hp, picked)
    try:
        space.vector(config)
    except ValueError:
        return None
    return config


def _known(condition: Any, config: Config) -> bool:
    parents = [c.parent for c in getattr(condition, "components", [condition])]
    return all(p.name in config for p in parents)


def flaml_search(
    fn: Objective, space: CASHSpace, n_trials: int, random_state: int, search: str = "cfo"
) -> list[Evaluation]:
    """FLAML's frugal local search over a choice of algorithms ("cfo"), or with its global part ("blendsearch")."""
    from flaml import tune
    from flaml.tune.searcher.blendsearch import CFO, BlendSearch

    found: list[Evaluation] = []

    def evaluate(given: dict[str, Any]) -> dict[str, float]:
        chosen = given["algorithm"]
        name = chosen["name"]
        one_space = space[name]
        vector = np.array([hp.to_vector(tidy(hp, chosen[f"{name}.{hp.name}"])) for hp in one_space.hyperparameters])
        legal = one_space.legalise(vector, np.random.default_rng(0))
        one = attempt(fn, name, one_space.config(legal[0])) if len(legal) else Evaluation(name, {}, math.nan)
        found.append(one)
        return {"loss": 1e6 if math.isnan(one.loss) else one.loss}

    def domain(hp: Any) -> Any:
        if values := choices(hp):
            return tune.choice(values)
        if whole(hp):
            return (tune.lograndint if getattr(hp, "log", False) else tune.randint)(hp.lower, hp.upper + 1)
        return (tune.loguniform if getattr(hp, "log", False) else tune.uniform)(hp.lower, hp.upper)

    # a colon in a name would be FLAML's own separator
    options = [{"name": n, **{f"{n}.{hp.name}": domain(hp) for hp in s.hyperparameters}} for n, s in space.items()]
    with _silent("flaml", "optuna"):
        kind = BlendSearch if search == "blendsearch" else CFO
        searcher = kind(metric="loss", mode="min", space={"algorithm": tune.choice(options)}, seed=random_state)
        tune.run(evaluate, search_alg=searcher, num_samples=n_trials, metric="loss", mode="min", verbose=0)
    return found[:n_trials]


@contextmanager
def _silent(*loggers: str) -> Iterator[None]:
    """No lines of peers' loggers, and none of their warnings."""
    logs = [logging.getLogger(name) for name in loggers]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)


# --- relatives of the method -----------------------------------------------------------------------------------------


class PlainMCTS(LBMCTS):
    """The same tree without surrogate or prior, as MOSAIC's search: random configurations, refined by changes of one parameter.

    References
    ----------
    H. Rakotoarison, M. Schoenauer, M. Sebag, "Automated machine learning with Monte-Carlo tree search", IJCAI (2019).
    """

    def _surrogate(self, algorithm: str) -> tuple[Surrogate | None, float]:
        return None, 0.0

    def _by_surrogate(self, node: int, surrogate: Surrogate | None, algorithm: str) -> tuple[Config | None, str]:
        space, above = self._space[algorithm], self._tree.trials[node]
        if above is not None:
            for vector in space.neighbours(above.vector, 10, self._bo_rng):
                config = space.config(vector)
                if space.key(config) not in self._seen:
                    return config, "neighbour"
        return fresh(space, self._seen, self._bo_rng), "random"


class RandomSearch(LBMCTS):
    """An algorithm and a configuration of it, both uniform, in the interface of LB-MCTS: every trial hangs below its algorithm."""

    def _propose(self, node: int) -> Trial:
        name = list(self._space)[int(self._bo_rng.integers(len(self._space)))]
        trial = Trial(self._asked, name, {}, "", np.empty(0), self._tree.node_of(name), rho=1.0, source="random")
        config = fresh(self._space[name], self._seen, self._bo_rng)
        if config is not None:
            trial.config, trial.key, trial.vector = (
                config,
                self._space[name].key(config),
                self._space[name].vector(config),
            )
        return trial


def by_tree(options: dict[str, Any], kind: type[LBMCTS] = LBMCTS) -> Callable[..., LBMCTS]:
    """A search ``(fn, space, n_trials, random_state, card, llm)`` by LB-MCTS with these options, which gives the finished optimiser."""

    def search(
        fn: Objective, space: CASHSpace, n_trials: int, random_state: int, card: Any = None, llm: Any = "prior"
    ) -> LBMCTS:
        opt = kind(space, **{"llm": llm, "n_trials": n_trials, "random_state": random_state, **options})
        with suppress(RuntimeError):  # every trial failed: the rows say so
            opt.minimize(fn, card=card)
        return opt

    return search


RELATIVES: dict[str, dict[str, Any]] = {
    "rho = 0": {"policy": "fixed", "rho": 0.0},
    "rho = 1": {"policy": "fixed", "rho": 1.0},
    "linear": {"policy": "linear"},
    "bandit": {"policy": "bandit"},
    "alternating": {"policy": "alternate"},
    "llm only": {"policy": "fixed", "rho": 0.0, "memory": "full", "max_depth": 2},  # as LLAMBO: a flat history
    "no tree": {"max_depth": 2, "memory": "full"},
    "flat memory": {"memory": "full"},
    "no path memory": {"memory": "no_path"},
    "no reflection": {"reflections": False},
    "gp": {"surrogate": "gp"},
}


# --- hostile language models -----------------------------------------------------------------------------------------


class Garbage(LLM):
    """Never says anything that can be read."""

    name = "garbage"

    def propose(self, request: Request, n: int) -> Answer:
        words = ["As a model I cannot", "{", "C = ???", "}{", "null", '{"reason": "none"}']
        return Answer([words[int(request.rng.integers(len(words)))] for _ in range(n)], 100, 10)


class Adversary(LLM):
    """Proposes the worst known configuration of the algorithm, which was tried already, so that a random one takes its place.

    Parameters
    ----------
    moved : bool
        With one parameter changed: then nothing stops it.
    """

    def __init__(self, moved: bool = False):
        self.moved, self.name = moved, "adversary, moved" if moved else "adversary"

    def propose(self, request: Request, n: int) -> Answer:
        space = request.space
        known = sorted(request.trials, key=lambda t: (t.ok, -t.loss if t.ok else 0.0, t.key))
        around = known[0].vector if known else space.sample(1, request.rng)[0]
        found = space.neighbours(around, n, request.rng) if known and self.moved else around[None]
        return Answer([json.dumps(space.config(v)) for v in found], 100, 20)
