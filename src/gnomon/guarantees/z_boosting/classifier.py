"""The booster with scikit-learn's interface, and the choice of the final trade-off on held-out rows."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from scipy.stats import binom
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, has_fit_parameter, validate_data

from gnomon.guarantees.z_boosting.characterization import NOTHING, Verdict, boostable
from gnomon.guarantees.z_boosting.method import Answer, Asking, Balance, Scores, rounds
from gnomon.guarantees.z_boosting.sets import ZSet

Array = NDArray[np.float64]


class Observed(NamedTuple):
    """What the weak learner did in the rounds: joint errors (rounds, 2), their set, and whether that can be boosted."""

    points: Array
    z: ZSet
    verdict: Verdict


class ZBoostClassifier(ClassifierMixin, BaseEstimator):
    """Boosting of any two-class learner, at the class balance at which it knows most.

    Parameters
    ----------
    estimator : classifier, optional
        The weak learner (default: a tree of depth 1). One without ``sample_weight`` gets rows drawn by weight.
    n_estimators : int
        Most rounds, >= 1.
    p : "adaptive", "free" or float
        The balance D(y = +1) of the weights that the learner sees: searched, that of AdaBoost's own weights, or fixed in (0, 1).
    p_range : (float, float)
        Where the search stays.
    gamma_min : float
        Edge below which the search gives up, in (0, 1/2].
    target_fpr, target_fnr : float, optional
        In (0, 1), at most one: the threshold is chosen on held-out rows so that the rate lies below it with ``confidence``.
    confidence : float
        In (0, 1), over the draw of the held-out rows.
    validation_fraction : float
        Share of the rows held out where there is a target, in (0, 1); they are not trained on.
    random_state : int, RandomState or None
        Of the learners, the drawing and the holding out.

    Attributes
    ----------
    classes_ : ndarray (2,)
        The labels; the second is the positive one.
    estimators_ : list
        The weak answers.
    alphas_, betas_ : ndarray (rounds,)
        Votes and offsets.
    edges_, rho_, ps_ : ndarray (rounds,)
        J = 1 - fpr - fnr, the factor of both classes' losses, and the balance asked.
    rates_ : ndarray (rounds, 2)
        fpr and fnr on the round's weights.
    bound_ : float
        The product of ``rho_``: both training error rates of sign(F) are at most this.
    n_calls_ : int
        How often a weak learner was fitted, sweeps included.
    no_edge_ : bool
        Whether it stopped because no balance gave an edge.
    theta_ : float
        The threshold of F; 0 where there is no target.
    n_iter_, n_features_in_ : int
        Rounds and features.

    Notes
    -----
    A sweep at level gamma costs 2 / gamma fits. Where the learner has little left to say, most of the time goes into sweeps that find
    nothing: a larger ``gamma_min`` (0.01) ends them early.

    ``predict_proba`` is sigma(2 (F - theta)), consistent with ``predict`` and stated at balanced classes; for calibrated
    probabilities wrap the classifier in :class:`sklearn.calibration.CalibratedClassifierCV`. The bound on a target rate
    holds for equally likely rows; ``sample_weight`` weighs the training alone.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> clf = ZBoostClassifier(n_estimators=20, target_fpr=0.05).fit(X, y)
    >>> bool(clf.bound_ < 0.1)
    True
    """

    def __init__(self, estimator: Any = None, n_estimators: int = 200, p: Balance = "adaptive",
                 p_range: tuple[float, float] = (0, 1), gamma_min: float = 1e-3, target_fpr: float | None = None,
                 target_fnr: float | None = None, confidence: float = 0.95, validation_fraction: float = 0.3,
                 random_state: Any = None):  # fmt: skip
        self.estimator = estimator
        self.n_estimators = n_estimators
        self.p = p
        self.p_range = p_range
        self.gamma_min = gamma_min
        self.target_fpr = target_fpr
        self.target_fnr = target_fnr
        self.confidence = confidence
        self.validation_fraction = validation_fraction
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    # --- training ---

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> ZBoostClassifier:
        """Boost.

        Parameters
        ----------
        X : array_like (m, d)
            Features.
        y : array_like (m,)
            Labels of two classes.
        sample_weight : array_like (m,), optional
            Weights >= 0; within each class they are relative.

        Raises
        ------
        ValueError
            For one class or more than two, options outside their ranges, or too few held-out rows for the target (the
            message says how many are needed).
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) > 2:
            raise ValueError(f"Only binary classification is supported. The type of the target is {type_of_target(y)}: y has "
                             f"{len(self.classes_)} classes; wrap the classifier in sklearn.multiclass.OneVsRestClassifier")  # fmt: skip
        if (
            isinstance(self.n_estimators, bool)
            or not isinstance(self.n_estimators, numbers.Integral)
            or self.n_estimators < 1
        ):
            raise ValueError(f"n_estimators: got {self.n_estimators!r}; expected a whole number >= 1")
        asking = Asking(self.p, self.p_range, self.gamma_min)
        target = self._target()
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        if weight is not None and (weight == 0).any():
            X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
        if len(np.unique(y)) < 2:
            raise ValueError(
                f"y: got one class, {np.unique(y).tolist()} (of rows with weight > 0); expected two classes"
            )
        rng = check_random_state(self.random_state)
        if target is not None:
            split = self._hold_out(y, target, rng)
            weight = weight if weight is None else weight[split[0]]
            X, y, X_held, y_held = X[split[0]], y[split[0]], X[split[1]], y[split[1]]
        self._boost(X, y == self.classes_[1], weight, asking, y, rng)
        self.theta_: float = 0.0
        if target is not None:
            side = self._side()
            rows = X_held[y_held == self.classes_[0 if side > 0 else 1]]
            self.theta_ = _threshold(side * self._scores(rows), target, self.confidence)
            if side < 0:  # a positive is missed where F <= theta: just below the score that may be kept
                self.theta_ = float(np.nextafter(-self.theta_, -np.inf))
        return self

    def _side(self) -> int:
        return 1 if self.target_fpr is not None else -1

    def _target(self) -> float | None:
        if self.target_fpr is not None and self.target_fnr is not None:
            raise ValueError("target_fpr, target_fnr: got both; expected at most one, as the threshold is one number")
        target = self.target_fpr if self.target_fpr is not None else self.target_fnr
        if target is None:
            return None
        name = "target_fpr" if self.target_fpr is not None else "target_fnr"
        for label, value in (
            (name, target),
            ("confidence", self.confidence),
            ("validation_fraction", self.validation_fraction),
        ):
            if not 0 < value < 1:
                raise ValueError(f"{label}: got {value!r}; expected a number in (0, 1)")
        return float(target)

    def _hold_out(self, y: NDArray[Any], target: float, rng: Any) -> Any:
        kind = self.classes_[0] if self._side() > 0 else self.classes_[1]
        need, have = rows_needed(target, self.confidence), int((y == kind).sum())
        if have * self.validation_fraction >= need - 1:
            split = train_test_split(
                np.arange(len(y)), test_size=self.validation_fraction, stratify=y, random_state=rng
            )
            if (y[split[1]] == kind).sum() >= need:
                return split
        raise ValueError(
            f"target: {need} held-out rows of class {kind!r} are needed for a rate of {target:g} at confidence {self.confidence:g}, got "
            f"{self.validation_fraction:g} of {have}; expected more rows, a larger validation_fraction or a looser target"
        )

    def _boost(
        self, X: Array, positive: NDArray[np.bool_], weight: Array | None, asking: Asking, y: NDArray[Any], rng: Any
    ) -> None:
        learner = DecisionTreeClassifier(max_depth=1) if self.estimator is None else self.estimator
        weighted = has_fit_parameter(learner, "sample_weight")
        if not weighted:
            warnings.warn(
                f"{type(learner).__name__} takes no sample_weight: rows are drawn by weight", UserWarning, stacklevel=3
            )
        seeds = [name for name in learner.get_params() if name == "random_state" or name.endswith("__random_state")]
        scores = Scores(positive, weight)
        label = self.classes_[1]

        def ask(w: Array, p: float) -> tuple[Any, Array]:
            model = clone(learner)
            if seeds:
                model.set_params(**{name: int(rng.randint(2**31 - 1)) for name in seeds})
            if weighted:
                model.fit(X, y, sample_weight=w * len(w))
            else:
                rows = _draw(w, p, positive, rng)
                model.fit(X[rows], y[rows])
            return model, np.where(model.predict(X) == label, 1.0, -1.0)

        answers: list[Answer] = []
        self.no_edge_ = False
        fixed = self.p != "adaptive"
        for found in rounds(ask, scores, asking):
            if fixed and abs(found.step.edge) <= NOTHING:
                self.no_edge_ = True  # the weights stay as they are
                break
            answers.append(found)
            if len(answers) == self.n_estimators:
                break
        else:
            self.no_edge_ = not (answers and answers[-1].step.perfect)
        self.n_calls_ = asking.calls
        self._keep(answers)

    def _keep(self, answers: list[Answer]) -> None:
        steps = [a.step for a in answers]
        self.estimators_ = [a.model for a in answers]
        self.alphas_, self.betas_ = np.array([s.alpha for s in steps]), np.array([s.beta for s in steps])
        self.edges_, self.rho_ = np.array([s.edge for s in steps]), np.array([s.rho for s in steps])
        self.rates_ = np.array([(s.fpr, s.fnr) for s in steps]).reshape(-1, 2)
        self.ps_ = np.array([a.p for a in answers])
        self.bound_ = float(np.prod(self.rho_))
        self.n_iter_ = len(answers)

    # --- use ---

    def _terms(self, X: Array) -> Iterator[Array]:
        for model, alpha, beta in zip(self.estimators_, self.alphas_, self.betas_, strict=True):
            yield np.where(model.predict(X) == self.classes_[1], alpha + beta, beta - alpha)

    def _scores(self, X: Array) -> Array:
        return sum(self._terms(X), np.zeros(len(X)))

    def _checked(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        checked: Array = validate_data(self, X, dtype=np.float64, reset=False)
        return checked

    def decision_function(self, X: ArrayLike) -> Array:
        """F - theta of rows (n, d): positive where ``predict`` says the second class."""
        return self._scores(self._checked(X)) - self.theta_

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels (n,)."""
        above = self._scores(self._checked(X)) > self.theta_
        labels: NDArray[Any] = self.classes_[above.astype(int)]
        return labels

    def predict_proba(self, X: ArrayLike) -> Array:
        """sigma(2 (F - theta)) for the second class (n, 2)."""
        positive = expit(2 * self.decision_function(X))
        return np.column_stack([1 - positive, positive])

    def staged_decision_function(self, X: ArrayLike) -> Iterator[Array]:
        """F - theta after each round."""
        checked = self._checked(X)
        F = np.zeros(len(checked))
        for term in self._terms(checked):
            F = F + term
            yield F - self.theta_

    def staged_predict(self, X: ArrayLike) -> Iterator[NDArray[Any]]:
        """Labels after each round."""
        for F in self.staged_decision_function(X):
            yield self.classes_[(F > 0).astype(int)]

    def empirical_z_set(self) -> Observed:
        """The joint errors (FP, FN) of the rounds, and whether a learner that promised only these could be boosted.

        The promise is taken at the balances that were asked, from the least to the largest. A verdict "vacuous" says that between
        them there are balances at which none of the pairs seen is possible.
        """
        check_is_fitted(self)
        if not self.n_iter_:
            raise ValueError("there are no rounds: no balance gave an edge")
        points = self.rates_ * np.column_stack([1 - self.ps_, self.ps_])
        z = ZSet.points(points)
        return Observed(points, z, boostable(z, (float(self.ps_.min()), float(self.ps_.max()))))


def rows_needed(target: float, confidence: float) -> int:
    """Held-out rows of the kind whose rate is bounded: ceil(log(1 - confidence) / log(1 - target)), 59 at 5 % and 95 %."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - target))


def _threshold(scores: Array, target: float, confidence: float) -> float:
    """The smallest score s_(k) such that the chance of a score above it exceeds ``target`` only with 1 - ``confidence``.

    P(Bin(n, 1 - target) >= k) <= 1 - confidence (Neyman-Pearson classification by order statistics).
    """
    n = len(scores)
    k = int(np.flatnonzero(binom.sf(np.arange(n), n, 1 - target) <= 1 - confidence)[0]) + 1
    return float(np.sort(scores)[k - 1])


def _draw(w: Array, p: float, positive: NDArray[np.bool_], rng: Any) -> NDArray[np.int64]:
    """Rows drawn by weight within each class, as many positives as the balance says, at least one of each."""
    m = len(w)
    count = min(max(round(p * m), 1), m - 1)
    rows = []
    for mask, n in ((positive, count), (~positive, m - count)):
        at = np.flatnonzero(mask)
        rows.append(rng.choice(at, size=n, p=w[at] / w[at].sum()))
    return np.concatenate(rows)
