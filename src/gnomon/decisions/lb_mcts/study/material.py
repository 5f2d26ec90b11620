"""The tables, the evaluation that all contenders share, and its memory on disk."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon import cache
from gnomon.decisions.lb_mcts.evaluate import cross_validated
from gnomon.decisions.lb_mcts.prompt import describe
from gnomon.decisions.lb_mcts.sklearn_space import SklearnSpace, sklearn_space
from gnomon.decisions.lb_mcts.space import Config

VERSION = 1  # raised when an evaluation comes to mean something else
FOLDS = 3
DATA = ("digits", "cancer", "wine", "fair", "anes96", "iris")
MOST = 1000  # rows of statsmodels' larger table


@dataclass
class Table:
    """A data set, split once: what the search sees, and what it does not."""

    name: str
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray

    @property
    def key(self) -> str:
        return f"{self.name}-{len(self.X)}"

    def card(self) -> dict[str, Any]:
        """What the language model is told: no name."""
        return describe(self.X, self.y, "balanced_accuracy")


@functools.lru_cache(maxsize=8)
def load(name: str, digits: int = 300) -> Table:
    """Digits: the first rows, tested on those from 600 on; the others: a quarter held out, the same for every seed."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    if name == "digits":
        X, y = datasets.load_digits(return_X_y=True)
        return Table(name, X[:digits], y[:digits], X[600:], y[600:])
    if name in ("fair", "anes96"):
        X, y = _statsmodels(name)
    else:
        loaders = {"cancer": datasets.load_breast_cancer, "wine": datasets.load_wine, "iris": datasets.load_iris}
        X, y = loaders[name](return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)
    return Table(name, X, y, X_test, y_test)


def _statsmodels(name: str) -> tuple[np.ndarray, np.ndarray]:
    """``fair``: any affair, 1,000 of its rows; ``anes96``: the vote of 1996."""
    import statsmodels.api as sm

    if name == "anes96":
        table = sm.datasets.anes96.load_pandas().data
        return table.drop(columns=["vote", "popul"]).to_numpy(float), table["vote"].to_numpy(int)
    table = sm.datasets.fair.load_pandas().data.sample(MOST, random_state=0)
    return table.drop(columns=["affairs"]).to_numpy(float), (table["affairs"] > 0).to_numpy(int)


class Objective:
    """Balanced error of a configuration by stratified cross-validation, each computed once on this machine.

    Parameters
    ----------
    table : Table
    space : SklearnSpace
    """

    def __init__(self, table: Table, space: SklearnSpace):
        from sklearn.metrics import get_scorer
        from sklearn.model_selection import StratifiedKFold

        self.table, self.space = table, space
        self.scorer = get_scorer("balanced_accuracy")
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
        self.splits = list(folds.split(table.X, table.y))

    def __call__(self, algorithm: str, config: Config) -> float:
        """1 - mean balanced accuracy.

        Raises
        ------
        RuntimeError
            Where a fit fails.
        """
        found = self._remembered("cv", algorithm, config)
        if found["error"] is None:
            raise RuntimeError(found["why"])
        return float(found["error"])

    def test(self, algorithm: str, config: Config) -> float:
        """Balanced error on the held-out rows after a fit on all others; NaN where it fails."""
        error = self._remembered("test", algorithm, config)["error"]
        return math.nan if error is None else float(error)

    def _remembered(self, kind: str, algorithm: str, config: Config) -> dict[str, Any]:
        import sklearn

        about = [VERSION, sklearn.__version__, self.table.key, kind, self.space[algorithm].key(config)]
        key = hashlib.sha256(json.dumps(about).encode()).hexdigest()
        if (known := _read(key)) is not None:
            return known
        begin = time.perf_counter()
        try:
            error, why = self._evaluated(kind, algorithm, config), ""
        except Exception as raised:  # of whatever kind scikit-learn raises
            error, why = None, f"{type(raised).__name__}: {str(raised)[:100]}"
        found = {"error": error, "why": why, "seconds": time.perf_counter() - begin}
        _write(key, found)
        return found

    def _evaluated(self, kind: str, algorithm: str, config: Config) -> float:
        model = self.space.build({"algorithm": algorithm, "config": config})
        table = self.table
        if kind == "cv":
            return 1 - cross_validated(model, table.X, table.y, self.splits, self.scorer)
        X, y = np.vstack([table.X, table.X_test]), np.concatenate([table.y, table.y_test])
        cut = len(table.X)
        return 1 - cross_validated(model, X, y, [(np.arange(cut), np.arange(cut, len(X)))], self.scorer)


# --- what was evaluated already --------------------------------------------------------------------------------------


@contextmanager
def _memory() -> Iterator[sqlite3.Connection]:
    folder = cache.folder() / "lb_mcts"
    folder.mkdir(exist_ok=True)
    with closing(sqlite3.connect(folder / "evaluations.sqlite", timeout=60)) as connection, connection:
        connection.execute("pragma synchronous = off")  # what is lost with the machine is computed again
        connection.execute("create table if not exists evaluations (key text primary key, found text)")
        yield connection


def _read(key: str) -> dict[str, Any] | None:
    with _memory() as connection:
        row = connection.execute("select found from evaluations where key = ?", (key,)).fetchone()
    return None if row is None else dict(json.loads(row[0]))


def _write(key: str, found: dict[str, Any]) -> None:
    with _memory() as connection:
        connection.execute("insert or replace into evaluations values (?, ?)", (key, json.dumps(found)))


@dataclass
class Problem:
    """One data set, one seed."""

    objective: Objective
    space: SklearnSpace
    card: dict[str, Any]
    trials: int
    seed: int
    llm: str


def problem(name: str, digits: int, trials: int, seed: int, llm: str) -> Problem:
    """The problem that all contenders of a data set and seed get."""
    table, space = load(name, digits), sklearn_space()
    return Problem(Objective(table, space), space, table.card(), trials, seed, llm)
