r"""What the booster is compared with.

Boosters by joint weights (AdaBoost and its cost-sensitive kin) ask the same learner as ours, at the balance that their weights happen
to have. :class:`JointBoostClassifier` gives them scikit-learn's interface; RUSBoost and balanced bagging come from imbalanced-learn, AdaBoost
and gradient boosting from scikit-learn. The amplifiers are what one would do with k runs without the centerpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import AdaBoostClassifier
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from gnomon.guarantees.z_boosting.method import Learner

Array = NDArray[np.float64]
Rule = Literal["adaboost", "adac2", "csb2"]
RULES = ("adaboost", "adac2", "csb2")


def known_cost_balance(w: ArrayLike) -> float:
    """The best balance for a known weighted guarantee {w1 FP + w2 FN <= z}: p = w1 / (w1 + w2), whatever z.

    There the coin segment is parallel to the guarantee's edge. Boosting at this fixed balance is what a booster for
    known costs and a known bound does (Bressan et al., "Of dice and games", 2025).
    """
    w = np.asarray(w, dtype=float)
    if w.shape != (2,) or not np.isfinite(w).all() or w.min() <= 0:
        raise ValueError(f"w: got {w.tolist()}; expected two weights > 0")
    return float(w[0] / w.sum())


@dataclass
class JointStep:
    """One round of a booster by joint weights."""

    model: Any
    h: Array
    p: float
    alpha: float


class JointScores:
    r"""Joint weights of all rows and the score sum alpha h.

    Parameters
    ----------
    positive : array_like (m,) of bool
    rule : {"adaboost", "adac2", "csb2"}
        AdaBoost: alpha = (1/2) log((1-e)/e), w ~ w exp(-alpha y h) (Freund and Schapire 1997).
        AdaC2: w ~ c w exp(-alpha y h), alpha from the cost-weighted shares (Sun et al. 2007).
        CSB2: as AdaBoost, and where h is wrong the weight is multiplied by its cost (Ting 2000).
    costs : (float, float)
        Of a false positive and of a false negative, > 0; AdaBoost takes none.
    weight : array_like (m,), optional
    """

    def __init__(self, positive: ArrayLike, rule: Rule = "adaboost", costs: tuple[float, float] = (1, 1),
                 weight: ArrayLike | None = None):  # fmt: skip
        if rule not in RULES:
            raise ValueError(f"rule: got {rule!r}; expected one of {', '.join(RULES)}")
        if len(costs) != 2 or min(costs) <= 0:
            raise ValueError(f"costs: got {costs}; expected the costs of a false positive and of a false negative, > 0")
        self.positive = np.asarray(positive, dtype=bool)
        self.sign = np.where(self.positive, 1.0, -1.0)
        self.cost = np.where(self.positive, costs[1], costs[0]) / max(costs)
        self.rule: Rule = rule
        m = len(self.positive)
        self.clip = 0.25 / m
        self.w = np.full(m, 1 / m) if weight is None else np.asarray(weight, dtype=float) / np.sum(weight)
        if rule == "csb2":
            self.w = self.w * self.cost / (self.w * self.cost).sum()
        self.F = np.zeros(m)

    @property
    def balance(self) -> float:
        """D(y = +1) of the present weights."""
        return float(self.w[self.positive].sum())

    def add(self, h: Array) -> float:
        """The vote of answers -1 / +1, and the weights after it."""
        wrong = h * self.sign < 0
        charged = self.cost * self.w if self.rule == "adac2" else self.w
        error = float(charged[wrong].sum() / charged.sum())
        error = min(max(error, self.clip), 1 - self.clip)
        alpha = 0.5 * math.log((1 - error) / error)
        w = charged * np.exp(-alpha * self.sign * h)
        if self.rule == "csb2":
            w = np.where(wrong, self.cost * w, w)
        w = np.maximum(w, 1e-300)
        self.w = w / w.sum()
        self.F += alpha * h
        return alpha

    def errors(self) -> tuple[int, int]:
        """How many negatives and positives sign(F) gets wrong; F = 0 counts as wrong."""
        return int((self.F[~self.positive] >= 0).sum()), int((self.F[self.positive] <= 0).sum())


def joint_rounds(learner: Learner, scores: JointScores) -> Iterator[JointStep]:
    """Boost by joint weights; ``scores`` holds the round when it is given. It is the caller's to stop."""
    while True:
        p = scores.balance
        model, h = learner(scores.w, p)
        h = np.asarray(h, dtype=float)
        yield JointStep(model, h, p, scores.add(h))


class JointBoostClassifier(ClassifierMixin, BaseEstimator):
    """AdaBoost, AdaC2 or CSB2 over a scikit-learn classifier; two classes.

    Parameters
    ----------
    estimator : classifier, optional
        With ``sample_weight`` (default: a tree of depth 1).
    n_estimators : int
        Rounds.
    rule : {"adaboost", "adac2", "csb2"}
    costs : (float, float)
        Of a false positive and of a false negative.
    random_state : int, RandomState or None
    """

    def __init__(self, estimator: Any = None, n_estimators: int = 100, rule: Rule = "adac2", costs: tuple[float, float] = (1, 1),
                 random_state: Any = None):  # fmt: skip
        self.estimator = estimator
        self.n_estimators = n_estimators
        self.rule = rule
        self.costs = costs
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> JointBoostClassifier:
        """Boost on rows (m, d) with labels of two classes."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        self.classes_ = np.unique(y)
        if len(self.classes_) != 2:
            raise ValueError(f"y: got {len(self.classes_)} classes; expected two")
        rng = check_random_state(self.random_state)
        base = DecisionTreeClassifier(max_depth=1) if self.estimator is None else self.estimator
        seeds = [n for n in base.get_params() if n == "random_state" or n.endswith("__random_state")]

        def ask(w: Array, p: float) -> tuple[Any, Array]:
            model = clone(base).set_params(**{n: int(rng.randint(2**31 - 1)) for n in seeds})
            model.fit(X, y, sample_weight=w * len(w))
            return model, np.where(model.predict(X) == self.classes_[1], 1.0, -1.0)

        scores = JointScores(y == self.classes_[1], self.rule, self.costs)
        self.estimators_, self.alphas_ = [], []
        for one in joint_rounds(ask, scores):
            self.estimators_.append(one.model)
            self.alphas_.append(one.alpha)
            if len(self.alphas_) >= self.n_estimators or not ((one.h * scores.sign) < 0).any():
                break
        return self

    def decision_function(self, X: Any) -> Array:
        """The sum of alpha h of rows (n, d)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        F = np.zeros(len(X))
        for model, alpha in zip(self.estimators_, self.alphas_, strict=True):
            F += np.where(model.predict(X) == self.classes_[1], alpha, -alpha)
        return F

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels (n,)."""
        chosen = (self.decision_function(X) > 0).astype(int)
        labels: NDArray[Any] = self.classes_[chosen]
        return labels


class AdaMEC(ClassifierMixin, BaseEstimator):
    """AdaBoost with calibrated probabilities and the threshold of least expected cost (Nikolaou et al. 2016).

    Parameters
    ----------
    estimator : classifier, optional
        The weak learner.
    n_estimators : int
        Rounds.
    costs : (float, float)
        Of a false positive and of a false negative: positive where the probability exceeds c_fp / (c_fp + c_fn).
    cv : int
        Folds of Platt's calibration.
    random_state : int, RandomState or None
    """

    def __init__(self, estimator: Any = None, n_estimators: int = 100, costs: tuple[float, float] = (1, 1), cv: int = 3,
                 random_state: Any = None):  # fmt: skip
        self.estimator = estimator
        self.n_estimators = n_estimators
        self.costs = costs
        self.cv = cv
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> AdaMEC:
        """Boost and calibrate."""
        boosted = AdaBoostClassifier(self.estimator, n_estimators=self.n_estimators, random_state=self.random_state)
        self.model_ = CalibratedClassifierCV(boosted, method="sigmoid", cv=self.cv).fit(X, y)
        self.classes_ = self.model_.classes_
        return self

    def predict_proba(self, X: ArrayLike) -> Array:
        """Calibrated probabilities (n, 2)."""
        check_is_fitted(self)
        found: Array = self.model_.predict_proba(X)
        return found

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels (n,) of least expected cost."""
        positive = self.predict_proba(X)[:, 1] > self.costs[0] / sum(self.costs)
        labels: NDArray[Any] = self.classes_[positive.astype(int)]
        return labels


# --- amplifiers ------------------------------------------------------------------------------------------------------


def best_error(z: Array) -> Array:
    """Of runs' points (k, 2) the one with the least FP + FN."""
    found: Array = z[z.sum(axis=1).argmin()]
    return found


def best_cost(w: ArrayLike) -> Callable[[Array], Array]:
    """Of runs' points the one with the least w1 FP + w2 FN."""
    weights = np.asarray(w, dtype=float)
    return lambda z: z[(z @ weights).argmin()]


def coordinate_median(z: Array) -> Array:
    """The medians of both errors; in general no run's and no mixture's point."""
    found: Array = np.median(z, axis=0)
    return found


def mean_of_all(z: Array) -> Array:
    """The mean: what a uniform mixture of all runs has."""
    found: Array = z.mean(axis=0)
    return found
