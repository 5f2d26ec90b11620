"""From features of a response to one confidence score, fitted on a split of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

COMBINED = ("geometry", "isotonic", "product", "gbdt")  # the base confidence is column 0, geometry the others
PENALTY = 0.3  # C of the logistic regressions


class Combiner(Protocol):
    """What turns features (n, p) into scores (n,)."""

    def fit(self, X: Array, C: Array) -> Any: ...

    def score(self, X: Array) -> Array: ...


def logistic(penalty: float = PENALTY) -> Any:
    """Standardised L2 logistic regression."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=1000))


class Logistic:
    """P(correct) by logistic regression on all columns; the score is its logit."""

    def fit(self, X: Array, C: Array) -> Logistic:
        self.model = logistic().fit(X, C)
        return self

    def score(self, X: Array) -> Array:
        return np.asarray(self.model.decision_function(X))


class Isotonic:
    """Monotone regression of correctness on column 0 (ties are broken at random)."""

    def fit(self, X: Array, C: Array) -> Isotonic:
        from sklearn.isotonic import IsotonicRegression

        self.model = IsotonicRegression(out_of_bounds="clip").fit(X[:, 0], C)
        return self

    def score(self, X: Array) -> Array:
        return np.asarray(self.model.predict(X[:, 0]))


class Product:
    """exp of column 0 (a log-probability) times P(correct | the other columns); the score is its logarithm."""

    def fit(self, X: Array, C: Array) -> Product:
        if X.shape[1] < 2:
            raise ValueError("score='product': there is one feature; expected a confidence and geometry beside it")
        self.model = logistic().fit(X[:, 1:], C)
        return self

    def score(self, X: Array) -> Array:
        return np.asarray(X[:, 0] + self.model.predict_log_proba(X[:, 1:])[:, 1])


class Boosted:
    """P(correct) by gradient-boosted trees."""

    def fit(self, X: Array, C: Array) -> Boosted:
        from sklearn.ensemble import GradientBoostingClassifier

        self.model = GradientBoostingClassifier(
            n_estimators=60, max_depth=2, learning_rate=0.1, subsample=0.8, random_state=0
        ).fit(X, C)
        return self

    def score(self, X: Array) -> Array:
        return np.asarray(self.model.decision_function(X))


def combiner(name: str) -> Combiner:
    """By the names of ``COMBINED``."""
    made: dict[str, Any] = {"geometry": Logistic, "isotonic": Isotonic, "product": Product, "gbdt": Boosted}
    model: Combiner = made[name]()
    return model


def out_of_fold(name: str, X: Array, C: Array, random_state: int = 0, folds: int = 5) -> Array:
    """Scores of the fit split by models that did not see them: in-sample ones would promise too much."""
    from sklearn.model_selection import StratifiedKFold

    folds = int(min(folds, C.sum(), (1 - C).sum()))
    if folds < 2:
        return combiner(name).fit(X, C).score(X)
    found = np.empty(len(C))
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=random_state).split(X, C):
        found[test] = combiner(name).fit(X[train], C[train]).score(X[test])
    return found


def nearest_correct(states: Array, bank: Array, k: int = 10, same: bool = False) -> Array:
    """Mean cosine of each state (n, d) to its k nearest in the bank (m, d) of correct ones.

    ``same``: the states are those the bank was taken from, and none is a neighbour of its own.
    """
    unit, base = (
        x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)
        for x in (np.asarray(states, float), np.asarray(bank, float))
    )
    if not len(base):
        return np.zeros(len(unit))
    near = unit @ base.T
    if same:
        near[near > 1 - 1e-9] = -np.inf
    near = -np.sort(-near, axis=1)[:, :k]
    count = np.isfinite(near).sum(1)
    return np.asarray(np.where(np.isfinite(near), near, 0.0).sum(1) / np.maximum(count, 1))
