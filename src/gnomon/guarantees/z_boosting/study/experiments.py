"""What is run: synthetic learners, real rows, the time of a fit, and amplifiers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.tree import DecisionTreeClassifier

from gnomon.guarantees.z_boosting import baselines
from gnomon.guarantees.z_boosting.amplification import amplify
from gnomon.guarantees.z_boosting.centerpoints import centerpoint
from gnomon.guarantees.z_boosting.study.contenders import SYNTHETIC, TABLES, Fitted
from gnomon.guarantees.z_boosting.study.material import TASKS, WEAK, Split, split
from gnomon.guarantees.z_boosting.study.worlds import SETS, World, world
from gnomon.study import Experiment, grid, higher, lower

Array = NDArray[np.float64]
SHOWN = 1500  # the round at which errors are compared with the prototype's
FOUR = ["0.2 x 0.2", "0.55 x 0.05", "0.5 x 0.06", "0.05 x 0.55"]
FULL = ["breast cancer", "german credit", "titanic", "wine", "digit 8"]  # where every contender is run
OTHERS = ["breast cancer", "german credit", "titanic", "digit 8"]
QUANTILE = 0.95


class Synthetic(Experiment):
    """Do boosters drive both training errors to zero, fed by an adversary that keeps a promise Z and nothing more?

    A contender of your own has ``run(world, rng)``, which yields an ``After`` for each round.
    """

    cells = grid(z=list(SETS), learner=["tight"]) + grid(z=FOUR, learner=["loose"])
    contenders = SYNTHETIC
    metrics = {"rounds": lower("rounds", log=True), "worst": lower()}

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        if contender == "known costs":
            return bool(cell.z == "half-plane")
        return contender in ("zboost", "oracle p") or (cell.z != "0.3 x 0.2" and cell.learner == "tight")

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> World:
        return world(cell.z, inputs.most, inputs.void, cell.learner == "loose")

    def measure(self, problem: World, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        positives = int(problem.positive.sum())
        negatives = len(problem.positive) - positives
        t, calls, deviation, shown, fp, fn = 0, 0, 0.0, 1.0, negatives, positives
        for t, now in enumerate(contender.run(problem, rng), 1):
            fp, fn, calls = now.false_positives, now.false_negatives, now.calls
            deviation = float(np.fmax(deviation, now.deviation)) if now.deviation == now.deviation else float("nan")
            if t <= SHOWN:
                shown = max(fp / negatives, fn / positives)
            if fp + fn == 0 or t >= problem.budget:
                break
        return [{"reached": bool(t and fp + fn == 0), "rounds": max(t, 1), "budget": problem.budget, "bound": problem.bound,
                 "boostable": problem.verdict.status == "boostable", "gap": problem.verdict.gap, "calls": calls,
                 "extra": calls / t - 1 if t else 0.0, "fp": fp / negatives, "fn": fn / positives,
                 "worst": max(fp / negatives, fn / positives), "worst_shown": shown, "deviation": deviation}]  # fmt: skip


@dataclass(frozen=True)
class Given:
    """A split, the weak learner, the rounds and a seed."""

    rows: Split
    weak: Any
    n: int
    seed: int


class Real(Experiment):
    """At a matched false-positive rate of 5 %, who misses fewest positives on real rows?

    A contender of your own has ``scores(weak, n, X, y, seed)``, which gives the score of rows.
    """

    cells = grid(task=TASKS, weak=["stump"]) + grid(task=OTHERS, weak=["depth 2", "noisy linear", "one-sided rule"])
    contenders = TABLES
    metrics = {"fnr": lower(), "fpr": lower(), "auc": higher()}
    seeds = 10

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return contender in ("zboost", "adaboost") or (cell.weak == "stump" and cell.task in FULL)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Given:
        return Given(split(cell.task, rng), WEAK[cell.weak], inputs.rounds, int(rng.integers(2**31)))

    def measure(self, problem: Given, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        rows = problem.rows
        score = contender.scores(problem.weak, problem.n, rows.X, rows.y, problem.seed)
        theta = float(np.quantile(score(rows.X_held[rows.y_held == 0]), QUANTILE))
        found = score(rows.X_test)
        said = found > theta
        return [{"fnr": float(1 - said[rows.y_test == 1].mean()), "fpr": float(said[rows.y_test == 0].mean()),
                 "auc": float(roc_auc_score(rows.y_test, found)), "fits": getattr(score, "fits", float("nan"))}]  # fmt: skip


class Speed(Experiment):
    """Seconds of a round: ours at a fixed balance beside scikit-learn's AdaBoost."""

    cells = grid(task=["breast cancer", "titanic", "digit 8"])
    contenders = {"zboost": TABLES["p = 1/2"], "adaboost": TABLES["adaboost"]}
    metrics = {"seconds": lower("s", log=True, timed=True)}
    seeds = 1

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Given:
        return Given(split(cell.task, rng), WEAK["stump"], inputs.rounds, 0)

    def measure(self, problem: Given, contender: Fitted, rng: np.random.Generator) -> list[dict[str, Any]]:
        start = time.process_time()
        model = contender.fit(problem.weak, problem.n, problem.rows.X, problem.rows.y, problem.seed)
        spent = time.process_time() - start
        return [{"seconds": spent / len(model.estimators_), "rounds": len(model.estimators_)}]


# --- amplification ---------------------------------------------------------------------------------------------------

SUCCESS, RUNS = 0.75, [9, 15, 31, 61, 100, 332]
LOOSE = 2e-7  # a centerpoint's depth is exact to 1e-7 of the points' spread


def _slab(z: Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.abs(z @ np.array([1.0, 2.0]) - 0.5) <= 0.03 + LOOSE
    return found


def _rectangle(z: Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.all(z <= np.array([0.55, 0.05]) + LOOSE, axis=-1)
    return found


INSIDE: dict[str, Callable[[Array], NDArray[np.bool_]]] = {"slab": _slab, "rectangle": _rectangle}


def good(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Pairs that keep the promise."""
    if name == "rectangle":
        return rng.random((*shape, 2)) * (0.55, 0.05)
    a, over = rng.uniform(0.05, 0.45, shape), rng.uniform(-0.03, 0.03, shape)
    return np.stack([a, (0.5 - a + over) / 2], axis=-1)


def bad(name: str, kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Pairs that break it: anywhere in the square, or all on the side where the sum of errors is small."""
    n = int(np.prod(shape))
    if kind == "one-sided":
        if name == "rectangle":  # too many misses, few false alarms
            found = np.array([0.0, 0.06]) + rng.random((n, 2)) * (0.05, 0.04)
        else:
            a = rng.uniform(0, 0.4, n)
            found = np.stack([a, (0.46 - a) / 2 * rng.random(n)], axis=1)
    else:
        found = rng.random((n, 2))
        while len(at := np.flatnonzero(INSIDE[name](found))):
            found[at] = rng.random((len(at), 2))
    return found.reshape(*shape, 2)


@dataclass(frozen=True)
class Draws:
    """For each draw the points of k runs, a quarter of them bad; what the promise is."""

    points: Array
    inside: Callable[[Array], NDArray[np.bool_]]


class Amplification(Experiment):
    """A learner that fails one time in four: how often does what is made of k runs break a convex promise?"""

    cells = grid(z=list(INSIDE), bad=["scattered", "one-sided"], k=RUNS)
    contenders = {"amplify": centerpoint, "best error": baselines.best_error, "best cost": baselines.best_cost((1.0, 2.0)),
                  "median": baselines.coordinate_median, "mean": baselines.mean_of_all}  # fmt: skip
    metrics = {"failed": lower()}
    unit = "draw"
    seeds = 0

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Draws:
        shape = (inputs.draws, cell.k)
        fails = rng.random(shape) >= SUCCESS
        points = np.where(fails[..., None], bad(cell.z, cell.bad, shape, rng), good(cell.z, shape, rng))
        return Draws(points, INSIDE[cell.z])

    def measure(self, problem: Draws, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        said = np.array([contender(z) for z in problem.points])
        return [{"draw": i, "failed": bool(f)} for i, f in enumerate(~problem.inside(said))]


class Stumps(Experiment):
    """One real use: 31 stumps on a feature each, mixed."""

    cells = [{"k": 31}]
    contenders = {"amplify": amplify}
    metrics = {"fp": lower(), "fn": lower()}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        X, y = load_breast_cancer(return_X_y=True)
        return X, 1 - y, cell.k, int(rng.integers(2**31))

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        X, y, k, seed = problem
        h = contender(DecisionTreeClassifier(max_depth=1, max_features=1), X, y, k=k, random_state=seed)
        chance = h.predict_proba(X)[:, 1]
        fp, fn = float((chance * (y == 0)).mean()), float(((1 - chance) * (y == 1)).mean())
        means = h.points_.mean(axis=0)
        return [{"fp": fp, "fn": fn, "depth": h.depth_, "runs": len(h.estimators_), "mean_fp": float(means[0]), "mean_fn": float(means[1]),
                 "off": float(np.abs(np.array([fp, fn]) - h.point_).max())}]  # fmt: skip
