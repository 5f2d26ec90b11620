"""On what: German credit and Adult, a split, a model; policies that imitate a noisy optimal one."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gnomon import datasets
from gnomon.guarantees.tree_repair.encoding import EnsembleEncoding
from gnomon.guarantees.tree_repair.properties import exchanged, resampled
from gnomon.guarantees.tree_repair.safety import MDP

ADULT_ROWS = 6000
TEST_SHARE = 0.3
SENSITIVE = {"german": ["sex"], "adult": ["sex", "race"]}


def load(name: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Features as numbers (categories by their order in the alphabet), labels 0/1 (1: good credit, income above 50K), names.

    Raises
    ------
    FileNotFoundError
        Where ``GNOMON_DATA`` has no folder ``tree_repair`` with the file; the message says where to put it.
    """
    import pandas as pd

    table = pd.read_csv(datasets.data_file("tree_repair", f"{name}.csv.gz"))
    target = table.pop({"german": "credit", "adult": "income-per-year"}[name])
    y = (target == 1) if name == "german" else target.str.startswith(">50K")
    X = np.column_stack([c if pd.api.types.is_numeric_dtype(c) else pd.Categorical(c).codes for _, c in table.items()])
    return X.astype(float), y.to_numpy(dtype=int), list(table.columns)


@dataclass
class People:
    """A split, the model to repair, and held-out pairs that differ in the sensitive columns only.

    Attributes
    ----------
    one, two : ndarray, shape (pairs, features)
        From test rows whose columns were drawn independently; no search sees them.
    loops : dict
        What each objective's loop gave (see ``experiments``).
    """

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    sensitive: list[int]
    make: Callable[[], Any]
    one: np.ndarray
    two: np.ndarray
    limit: float
    seed: int
    model: Any = None
    encoding: EnsembleEncoding | None = None
    loops: dict[str, dict[str, Any]] = field(default_factory=dict)

    def fit(self) -> People:
        self.model = self.make().fit(self.X, self.y)
        self.encoding = EnsembleEncoding(self.model)
        return self

    @property
    def encoded(self) -> EnsembleEncoding:
        assert self.encoding is not None
        return self.encoding


def maker(kind: str, trees: int, depth: int) -> Callable[[], Any]:
    """The model of a case: ``gbdt`` and ``xgb`` as given, ``rf`` with five eighths of the trees, two levels deeper."""

    def make() -> Any:
        if kind == "rf":
            from sklearn.ensemble import RandomForestClassifier

            return RandomForestClassifier(max(5, trees * 5 // 8), max_depth=depth + 2, random_state=0)
        if kind == "xgb":
            import xgboost

            return xgboost.XGBClassifier(n_estimators=trees, max_depth=depth, learning_rate=0.1, n_jobs=1)
        from sklearn.ensemble import GradientBoostingClassifier

        return GradientBoostingClassifier(n_estimators=trees, max_depth=depth, random_state=0)

    return make


def people(case: str, trees: int, depth: int, population: int, limit: float, seed: int) -> People:
    """A case ("german-gbdt"): the split and the held-out pairs are drawn from ``seed`` alone."""
    data, kind = case.split("-")
    X, y, names = load(data)
    rng = np.random.default_rng([seed, len(X)])
    order = rng.permutation(len(X))[: ADULT_ROWS if data == "adult" else None]
    held = round(TEST_SHARE * len(order))
    test, train = order[:held], order[held:]
    sensitive = [names.index(n) for n in SENSITIVE[data]]
    values = np.unique(X[:, sensitive], axis=0)
    one, two = exchanged(resampled(X[test], population // (len(values) - 1), rng), sensitive, values)
    shuffled = rng.permutation(len(one))
    return People(X[train], y[train], X[test], y[test], sensitive, maker(kind, trees, depth), one[shuffled], two[shuffled],
                  limit, seed).fit()  # fmt: skip


def reloaded(model: Any) -> Any:
    """The model after a save and a load in its library's own format; scikit-learn's has none that is no pickle: a copy."""
    import xgboost

    if not isinstance(model, xgboost.XGBClassifier):
        return copy.deepcopy(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(path)
        loaded = xgboost.XGBClassifier(n_jobs=1)
        loaded.load_model(path)
    return loaded


# --- policies --------------------------------------------------------------------------------------------------------


@dataclass
class Task:
    """A Markov decision process, what a policy sees, and what it was taught.

    Attributes
    ----------
    threshold : float or None
        None: deterministic, and surely safe is asked for.
    horizon : int
        Steps that the expected return counts.
    """

    mdp: MDP
    features: np.ndarray
    X: np.ndarray
    y: np.ndarray
    expert: np.ndarray
    model: Any
    threshold: float | None
    horizon: int
    limit: float
    encoding: EnsembleEncoding


def task(name: str, trees: int, limit: float, seed: int, copies: int = 2) -> Task:
    """A task ("cliff-gbdt"): every state ``copies`` times with the best action, a fifth of them replaced by a random one.

    Where sure safety is asked for, an episode may begin in every state from which it is possible: from one corner most
    imitators meet few of the states where they err.
    """
    where, kind = name.rsplit("-", 1)
    rng = np.random.default_rng([seed, 7])
    mdp, features, threshold, horizon = WORLDS[where](rng)
    if threshold is None:
        mdp.start = np.flatnonzero(mdp.safe_region() & (mdp.moves > 0)).tolist()
    expert = mdp.optimal(0.999 if threshold else 0.99, penalty=100.0 if threshold is None else 0.0)
    states = np.repeat(np.arange(mdp.n_states), copies)
    actions = expert[states].copy()
    noisy = rng.random(len(states)) < 0.2
    actions[noisy] = rng.integers(0, mdp.n_actions, int(noisy.sum()))
    if kind == "rf":
        from sklearn.ensemble import RandomForestClassifier

        model: Any = RandomForestClassifier(3 * trees, max_depth=6, random_state=0)
    else:
        from sklearn.ensemble import GradientBoostingClassifier

        model = GradientBoostingClassifier(n_estimators=trees, max_depth=4, random_state=0)
    model.fit(features[states], actions)
    return Task(
        mdp, features, features[states], actions, expert, model, threshold, horizon, limit, EnsembleEncoding(model)
    )


def _places(rows: int, columns: int) -> np.ndarray:
    return np.array([[s // columns, s % columns] for s in range(rows * columns)], dtype=float)


def _lake(size: str, slippery: bool) -> Callable[[np.random.Generator], tuple[MDP, np.ndarray, float | None, int]]:
    def make(rng: np.random.Generator) -> tuple[MDP, np.ndarray, float | None, int]:
        from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

        env: Any = FrozenLakeEnv(map_name=size, is_slippery=slippery)
        letters = env.unwrapped.desc
        holes = np.flatnonzero(letters.ravel() == b"H").tolist()
        side = len(letters)
        return MDP.from_gym(env, holes), _places(side, side), 0.25 if slippery else None, 100 if side == 4 else 200

    return make


def _cliff(rng: np.random.Generator) -> tuple[MDP, np.ndarray, float | None, int]:
    from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv

    return MDP.from_gym(CliffWalkingEnv(), lambda s, a, reward, after: reward == -100), _places(4, 12), None, 200


def _taxi(rng: np.random.Generator) -> tuple[MDP, np.ndarray, float | None, int]:
    from gymnasium.envs.toy_text.taxi import TaxiEnv

    env: Any = TaxiEnv()
    mdp = MDP.from_gym(env, lambda s, a, reward, after: reward == -10)
    return mdp, np.array([list(env.unwrapped.decode(s)) for s in range(mdp.n_states)], dtype=float), None, 200


def grid_world(rng: np.random.Generator, side: int = 12, hazards: int = 20) -> tuple[MDP, np.ndarray]:
    """A deterministic grid: from the upper left to the lower right corner, a step costs 1, the goal pays 20, a hazard
    costs 20 and ends it. A policy sees row, column, the distance to the nearest hazard and that in each direction."""
    moves = ((0, -1), (1, 0), (0, 1), (-1, 0))
    n = side * side
    while True:
        bad = set((1 + rng.choice(n - 2, hazards, replace=False)).tolist())
        table: dict[int, dict[int, list[tuple[float, int, float, bool]]]] = {}
        for s in range(n):
            table[s] = {}
            for a, (dr, dc) in enumerate(moves):
                r, c = min(max(s // side + dr, 0), side - 1), min(max(s % side + dc, 0), side - 1)
                after = r * side + c
                reward = 20.0 if after == n - 1 else -20.0 if after in bad else -1.0
                table[s][a] = [(1.0, after, reward, after in bad or after == n - 1)]
        mdp = MDP(table, 0, bad)
        if mdp.expected_return(mdp.optimal(penalty=100.0), 200) > -20:  # the goal can be reached
            break
    places = np.array([[s // side, s % side] for s in range(n)])
    at = places[sorted(bad)]
    nearest = np.abs(places[:, None] - at[None]).sum(axis=2).min(axis=1)
    sight = np.full((n, 4), side)
    for s, (r, c) in enumerate(places):
        for a, (dr, dc) in enumerate(moves):
            for k in range(1, side):
                y, x = r + k * dr, c + k * dc
                if not (0 <= y < side and 0 <= x < side):
                    break
                if y * side + x in bad:
                    sight[s, a] = k
                    break
    return mdp, np.column_stack([places, nearest, sight]).astype(float)


def _grid(rng: np.random.Generator) -> tuple[MDP, np.ndarray, float | None, int]:
    return *grid_world(rng), None, 200


WORLDS: dict[str, Callable[[np.random.Generator], tuple[MDP, np.ndarray, float | None, int]]] = {
    "lake4": _lake("4x4", False), "lake8": _lake("8x8", False), "slippery4": _lake("4x4", True), "cliff": _cliff,
    "taxi": _taxi, "grid": _grid,
}  # fmt: skip
