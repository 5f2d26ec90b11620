"""Confidence amplification: from a learner that is right with probability above 2/3 to a reliable one, without knowing Z.

A learner's run has (FP, FN) in a convex Z with probability 2/3 + eta. Of k runs fewer than k/3 are bad but with probability
exp(-2 k eta^2), and then every centerpoint of the k points lies in Z: a half-plane that contains the centerpoint and misses Z
would hold k/3 points, all of them bad. Three runs, mixed at random, have their centerpoint as joint error.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import has_fit_parameter

from gnomon.guarantees.z_boosting.centerpoints import centerpoint, halfplane_depth, mixture

Array = NDArray[np.float64]
THEOREM = "a centerpoint is only in Z while fewer than a third of the runs are bad, so a run must succeed with probability > 2/3"


def runs_needed(delta: float = 0.01, success: float = 0.75) -> int:
    """k = ceil(log(1/delta) / (2 eta^2)), eta = success - 2/3.

    Raises
    ------
    ValueError
        For ``success`` <= 2/3 (the theorem needs more) or > 1, and ``delta`` outside (0, 1).
    """
    return max(3, math.ceil(math.log(1 / _delta(delta)) / (2 * _eta(success) ** 2)))


def failure_bound(k: int, success: float = 0.75) -> float:
    """exp(-2 k eta^2): how likely a third or more of k runs are bad, at most."""
    return math.exp(-2 * k * _eta(success) ** 2)


def _eta(success: float) -> float:
    if not 2 / 3 < success <= 1:
        raise ValueError(f"success: got {success}; expected a probability in (2/3, 1]: {THEOREM}")
    return success - 2 / 3


def _delta(delta: float) -> float:
    if not 0 < delta < 1:
        raise ValueError(f"delta: got {delta}; expected a probability in (0, 1)")
    return delta


class AmplifiedClassifier:
    """A randomised mixture of at most three runs whose joint error is a centerpoint of all runs'.

    Attributes
    ----------
    estimators_, weights_ : list, ndarray
        The runs and their probabilities.
    point_ : ndarray (2,)
        Its (FP, FN) under the weights of the data it was made on.
    points_ : ndarray (k, 2)
        Those of all runs.
    depth_ : int
        How many runs every half-plane through ``point_`` holds at least; ceil(k/3) or more where ``point_`` is the centerpoint.
    failure_ : float
        exp(-2 k eta^2), the chance that ``point_`` lies outside a convex Z.
    slack_ : float
        sqrt(log(4k/delta) / (2n)): what each coordinate adds on the population, where the data are n equally weighted draws.
    classes_ : ndarray (2,)
        The labels; the second is the positive one.
    derandomised_ : bool
        Whether a single run at least as good in both errors took the mixture's place.
    """

    def __init__(self, estimators: list[Any], weights: Array, point: Array, points: Array, classes: Array, failure: float,
                 slack: float, derandomised: bool, random_state: Any):  # fmt: skip
        self.estimators_, self.weights_, self.point_, self.points_ = estimators, weights, point, points
        self.classes_, self.failure_, self.slack_, self.derandomised_ = classes, failure, slack, derandomised
        self.depth_ = halfplane_depth(points, point)[0]
        self._rng = random_state

    def predict(self, X: ArrayLike, random_state: Any = None) -> NDArray[Any]:
        """Labels (n,): for each row one of the runs is drawn by its weight.

        ``random_state``: of the draw; by default every call draws anew from the generator of :func:`amplify`.
        """
        rng = self._rng if random_state is None else check_random_state(random_state)
        said = np.stack([np.asarray(e.predict(X)) for e in self.estimators_])
        which = rng.choice(len(self.weights_), size=said.shape[1], p=self.weights_)
        labels: NDArray[Any] = said[which, np.arange(said.shape[1])]
        return labels

    def predict_proba(self, X: ArrayLike) -> Array:
        """With which probability each row gets each label (n, 2)."""
        votes = np.stack([np.asarray(e.predict(X)) == self.classes_[1] for e in self.estimators_])
        positive = self.weights_ @ votes
        return np.column_stack([1 - positive, positive])


def amplify(learner: Any, X: Any, y: Any, k: int | None = None, delta: float = 0.01, success: float = 0.75,
            random_state: Any = 0, *, sample_weight: ArrayLike | None = None,
            derandomise: bool = False) -> AmplifiedClassifier:  # fmt: skip
    """Run a randomised learner k times and mix at most three runs into a reliable classifier.

    Parameters
    ----------
    learner : estimator or callable
        A scikit-learn classifier with a ``random_state`` (cloned and seeded for each run), or a callable
        ``learner(X, y, sample_weight, rng)`` that gives an object with ``predict``.
    X, y : array_like (n, p), (n,)
        Data of two classes; the second label in sorted order is the positive one. Z is what the learner promises on these.
    k : int, optional
        Runs, 3 or more; by default as many as ``delta`` needs (332 at the defaults).
    delta : float
        Chance of failure in (0, 1).
    success : float
        Chance that a run keeps its promise, in (2/3, 1].
    random_state : int, RandomState or None
        Of the runs and of the mixture's draws.
    sample_weight : array_like (n,), optional
        The distribution D; default uniform.
    derandomise : bool
        For downward-closed Z (smaller errors keep every promise): give a single run that is at least as good as the
        centerpoint in both errors, if there is one.

    Returns
    -------
    AmplifiedClassifier

    Raises
    ------
    ValueError
        For k < 3, ``success`` <= 2/3, ``delta`` outside (0, 1), labels of one class or more than two, a weight < 0, a learner
        without ``random_state`` (its runs would all be one).
    """
    X, y = check_array(X), np.asarray(y)
    classes, positive = np.unique(y, return_inverse=True)
    if len(classes) != 2 or y.shape != (len(X),):
        raise ValueError(f"y: got {len(classes)} classes for {len(X)} rows; expected a label for each row, two classes")
    _eta(success)
    if k is None:
        k = runs_needed(delta, success)
    if isinstance(k, bool) or not isinstance(k, numbers.Integral) or k < 3:
        raise ValueError(f"k: got {k!r}; expected 3 runs or more, as a third of them may be bad")
    weight = np.full(len(y), 1 / len(y)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
    if weight.shape != y.shape or not np.isfinite(weight).all() or weight.min() < 0 or weight.sum() <= 0:
        raise ValueError("sample_weight: expected a finite weight >= 0 for each row, not all 0")
    weight = weight / weight.sum()
    slack = math.sqrt(math.log(4 * k / _delta(delta)) / (2 * len(y)))
    rng = check_random_state(random_state)
    run = _runner(learner)
    models, points = [], np.empty((k, 2))
    for j in range(k):
        models.append(run(X, y, sample_weight if sample_weight is None else weight * len(y), rng))
        said = np.asarray(models[-1].predict(X)) == classes[1]
        points[j] = weight[said & (positive == 0)].sum(), weight[~said & (positive == 1)].sum()
    c = centerpoint(points)
    kept, shares = mixture(points, c)
    better = np.flatnonzero((points <= c + 1e-12).all(axis=1))
    if derandomised := bool(derandomise and len(better)):
        kept, shares = better[[points[better].sum(axis=1).argmin()]], np.ones(1)
    return AmplifiedClassifier([models[i] for i in kept], shares, shares @ points[kept], points, classes,
                               failure_bound(k, success), slack, derandomised, rng)  # fmt: skip


def _runner(learner: Any) -> Callable[[Any, Any, Any, np.random.RandomState], Any]:
    if not hasattr(learner, "fit"):
        if not callable(learner):
            raise TypeError(f"learner: got {type(learner).__name__}; expected a classifier or a callable")
        return lambda X, y, weight, rng: learner(X, y, weight, rng)
    seeds = [name for name in learner.get_params() if name == "random_state" or name.endswith("__random_state")]
    if not seeds:
        raise ValueError(f"learner: {type(learner).__name__} has no random_state, so that all its runs would be one")
    weighted = has_fit_parameter(learner, "sample_weight")

    def run(X: Any, y: Any, weight: Any, rng: np.random.RandomState) -> Any:
        if weight is not None and not weighted:
            raise ValueError(f"sample_weight: {type(learner).__name__} takes none")
        model = clone(learner).set_params(**{name: int(rng.randint(2**31 - 1)) for name in seeds})
        return model.fit(X, y) if weight is None else model.fit(X, y, sample_weight=weight)

    return run
