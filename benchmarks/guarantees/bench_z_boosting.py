"""The booster beside scikit-learn's AdaBoost and imbalanced-learn's, the verdict on a set, and the exact centerpoint, in one run.

    python benchmarks/guarantees/bench_z_boosting.py [--json FILE] [--rounds N]

Fits are at equal rounds with the same stumps, one thread. RUSBoost trains each stump on a balanced draw, so that it does less.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
from imblearn.ensemble import RUSBoostClassifier
from scipy.optimize import linprog
from sklearn.datasets import load_breast_cancer, make_classification
from sklearn.ensemble import AdaBoostClassifier
from sklearn.tree import DecisionTreeClassifier

from gnomon.guarantees import ZBoostClassifier, ZSet, boostable, centerpoint
from gnomon.guarantees.z_boosting.study.material import load
from gnomon.study import bench


def fits(table: bench.Table, rounds: int, repeats: int, clock: Any) -> None:
    """Seconds of a fit at equal rounds."""
    stump = DecisionTreeClassifier(max_depth=1)
    works: dict[str, Any] = {
        "breast cancer, 569 x 30": load_breast_cancer(return_X_y=True),
        "made, 5,000 x 20": make_classification(5_000, 20, n_informative=8, flip_y=0.2, class_sep=0.6, random_state=0),
        "made, 20,000 x 10": make_classification(
            20_000, 10, n_informative=6, flip_y=0.2, class_sep=0.6, random_state=0
        ),
    }
    for work, (X, y) in works.items():
        models = {
            "ZBoost, p = 1/2": ZBoostClassifier(stump, rounds, p=0.5, random_state=0),
            "sklearn AdaBoost": AdaBoostClassifier(stump, n_estimators=rounds, random_state=0),
            "imblearn RUSBoost": RUSBoostClassifier(stump, n_estimators=rounds, random_state=0),
        }
        times = bench.seconds(
            {name: functools.partial(m.fit, X, y) for name, m in models.items()}, repeats, clock=clock
        )
        done = {name: len(m.fit(X, y).estimators_) for name, m in models.items()}
        own = times["ZBoost, p = 1/2"] / done["ZBoost, p = 1/2"]
        for name, spent in times.items():
            each = spent / done[name]
            table.add(
                f"a round on {work}: {name}",
                each * 1e3,
                "ms",
                None if name == "ZBoost, p = 1/2" else each / own,
                rounds=done[name],
            )


def sweeping(table: bench.Table, task: str, rounds: int, repeats: int, clock: Any) -> None:
    """What the search for a balance adds; where the learner has little to say (titanic) sweeps take most of the time."""
    X, y = load(task)
    stump = DecisionTreeClassifier(max_depth=1)
    models = {f"p = {p}": ZBoostClassifier(stump, rounds, p, gamma_min=0.01, random_state=0) for p in (0.5, "adaptive")}
    times = bench.seconds({name: functools.partial(m.fit, X, y) for name, m in models.items()}, repeats, clock=clock)
    own = times["p = 0.5"]
    for name, spent in times.items():
        m = models[name]
        table.add(f"a fit on {task}: {name}", spent * 1e3, "ms", None if name == "p = 0.5" else spent / own,
                  fits=m.n_calls_, rounds=m.n_iter_)  # fmt: skip


def predictions(table: bench.Table, rounds: int, repeats: int, clock: Any) -> None:
    """Seconds of a prediction."""
    X, y = make_classification(20_000, 20, n_informative=8, flip_y=0.2, class_sep=0.6, random_state=0)
    stump = DecisionTreeClassifier(max_depth=1)
    ours = ZBoostClassifier(stump, rounds, p=0.5, random_state=0).fit(X, y)
    peer = AdaBoostClassifier(stump, n_estimators=rounds, random_state=0).fit(X, y)
    table.times(f"predicting 20,000 rows, {rounds} rounds", bench.seconds(
        {"ZBoost": lambda: ours.predict(X), "sklearn AdaBoost": lambda: peer.predict(X)}, repeats, clock=clock))  # fmt: skip


def verdicts(table: bench.Table, repeats: int, clock: Any) -> None:
    """Milliseconds of a verdict: the target is 50."""
    turn = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    disc = ZSet.polygon(0.15 + 0.1 * np.stack([np.cos(turn), np.sin(turn)], axis=1))
    sets = {
        "a rectangle": ZSet.rectangle(0.55, 0.05),
        "three half-planes": ZSet.halfplanes([(1, 3), (2, 1), (1, 1)], [0.4, 0.5, 0.35]),
        "a polygon of 64 edges": ZSet.union(disc, ZSet.rectangle(0.1, 0.1)),
        "200 points": ZSet.points(np.random.default_rng(0).random((200, 2)) * 0.2 * (1, 0.5)),
        "a predicate, 201 x 201": ZSet.from_predicate(lambda a, b: (a + b <= 0.4) & (a * b <= 0.01)),
    }
    for name, z in sets.items():
        spent = bench.seconds({name: functools.partial(boostable, z, (0.2, 0.8))}, repeats, clock=clock)[name]
        table.add(f"boostable: {name}", spent * 1e3, "ms")


def by_all_lines(z: np.ndarray) -> np.ndarray:
    """A centerpoint by one linear program over the normals of the lines through all pairs of points."""
    i, j = np.triu_indices(len(z), 1)
    way = z[j] - z[i]
    U = np.concatenate([way[:, ::-1] * (1, -1), way[:, ::-1] * (-1, 1)])
    U = U / np.linalg.norm(U, axis=1, keepdims=True)
    at = len(z) - int(np.ceil(len(z) / 3))
    reach = np.partition(z @ U.T, at, axis=0)[at]
    found = linprog([0, 0, -1], A_ub=np.column_stack([U, np.ones(len(U))]), b_ub=reach, bounds=[(None, None)] * 3)
    return found.x[:2]


def centerpoints(table: bench.Table, repeats: int, clock: Any) -> None:
    """Milliseconds of a centerpoint; beside it the linear program over all pairs, exact too."""
    rng = np.random.default_rng(0)
    for k in (9, 31, 100, 332, 5000):
        z = rng.random((k, 2))
        calls = {"cutting planes": lambda z=z: centerpoint(z)}
        if k <= 100:
            calls["all pairs, HiGHS"] = lambda z=z: by_all_lines(z)
        table.times(f"centerpoint of {k} points", bench.seconds(calls, repeats, clock=clock))


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.set_defaults(clock="cpu")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table = bench.Table()
    fits(table, options.rounds, options.repeats, options.clock)
    for task in ("breast cancer", "titanic"):
        sweeping(table, task, options.rounds, options.repeats, options.clock)
    predictions(table, options.rounds, options.repeats, options.clock)
    verdicts(table, options.repeats, options.clock)
    centerpoints(table, options.repeats, options.clock)
    table.save(options.json)


if __name__ == "__main__":
    main()
