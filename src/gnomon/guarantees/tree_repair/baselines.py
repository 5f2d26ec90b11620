"""What repair is compared with: retraining, averaging and refitting leaves, group fairness, shields and DAgger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize

from gnomon.guarantees.tree_repair.encoding import EnsembleEncoding
from gnomon.guarantees.tree_repair.safety import MDP


class WithoutColumns:
    """A classifier that never sees some columns: trained without the sensitive ones it cannot decide by them.

    Parameters
    ----------
    model : estimator
        Unfitted; a clone is fitted.
    columns : sequence of int
        Positions of the columns to leave out.
    """

    def __init__(self, model: Any, columns: Sequence[int]):
        self.model, self.columns = model, list(columns)

    def _kept(self, X: np.ndarray) -> np.ndarray:
        return np.delete(X, self.columns, axis=1)

    def fit(self, X: np.ndarray, y: np.ndarray) -> WithoutColumns:
        from sklearn.base import clone

        self.fitted_ = clone(self.model).fit(self._kept(X), y)
        self.classes_ = self.fitted_.classes_
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.fitted_.predict(self._kept(X)))

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.fitted_.predict_proba(self._kept(X)))


def relabelled(encoding: EnsembleEncoding, one: np.ndarray, two: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both rows of every pair with the label that their two scores together favour: what a data fix would add."""
    scores = encoding.scores(one) + encoding.scores(two)
    labels = encoding.classes[encoding.decide(scores)]
    return np.vstack([one, two]), np.concatenate([labels, labels])


def retrained(model: Any, X: np.ndarray, y: np.ndarray, extra: np.ndarray, labels: np.ndarray, copies: int = 5) -> Any:
    """A clone of ``model`` fitted on the rows and ``copies`` copies of the relabelled counterexamples."""
    from sklearn.base import clone

    return clone(model).fit(np.vstack([X, *[extra] * copies]), np.concatenate([y, *[labels] * copies]))


def averaged(encoding: EnsembleEncoding, X: np.ndarray, sensitive: Sequence[int]) -> Any:
    """All leaves below a split on a sensitive column get their mean value, weighted by the rows in them.

    No tree then tells apart inputs that differ in these columns only: the naive repair that is always fair.
    """
    count = np.bincount(encoding.leaves(X).ravel(), minlength=encoding.n_leaves) + 1e-9
    table, w = encoding.table(encoding.w), encoding.w.copy()
    marked = set(sensitive)

    def below(tree: Any, node: int) -> list[int]:
        if tree.feature[node] < 0:
            return [int(tree.leaf[node])]
        return below(tree, int(tree.left[node])) + below(tree, int(tree.right[node]))

    for tree in encoding.trees():
        stack = [0]
        while stack:
            node = stack.pop()
            if tree.feature[node] < 0:
                continue
            if int(tree.feature[node]) not in marked:
                stack += [int(tree.left[node]), int(tree.right[node])]
                continue
            leaves = below(tree, node)
            mean = np.average(table[leaves], axis=0, weights=count[leaves])
            for leaf in leaves:
                there = encoding.variable[leaf] >= 0
                w[encoding.variable[leaf][there]] = mean[there]
    return encoding.with_leaves(encoding.rounded(w))


def refitted(encoding: EnsembleEncoding, X: np.ndarray, y: np.ndarray, extra: np.ndarray, labels: np.ndarray, weight: float = 5.0,
             ridge: float = 1e-2) -> Any:  # fmt: skip
    """Leaf values by logistic regression on the leaves of the rows and of the relabelled counterexamples, unconstrained.

    minimise mean logistic loss + ridge / 2 |w - w0|^2, two classes. A forest's values are shrunk together afterwards, so
    that its leaves are distributions; no decision depends on that.

    Parameters
    ----------
    encoding : EnsembleEncoding
        Of the original model.
    X, y : ndarray
        Training rows and labels.
    extra, labels : ndarray
        Relabelled counterexamples.
    weight : float
        Of each counterexample, a training row counting 1.
    ridge : float
        Penalty.
    """
    if encoding.n_outputs != 1:
        raise ValueError(f"refitted: the model has {len(encoding.classes)} classes; this baseline is for two")
    leaves = np.vstack([encoding.leaves(X), encoding.leaves(extra)])
    codes = np.concatenate([encoding.codes(y), encoding.codes(labels)])
    share = np.concatenate([np.ones(len(X)), np.full(len(extra), weight)])
    share /= share.sum()
    s = np.where(codes == 1, 1.0, -1.0)

    def loss(d: np.ndarray) -> tuple[float, np.ndarray]:
        margin = s * ((encoding.w + d)[leaves].sum(axis=1) + encoding.base[0])
        slope = -s * share / (1 + np.exp(np.clip(margin, -500, 500)))
        gradient = np.bincount(leaves.ravel(), np.repeat(slope, leaves.shape[1]), minlength=len(d)) + ridge * d
        return float(share @ np.logaddexp(0, -margin) + ridge / 2 * d @ d), gradient

    found = minimize(loss, np.zeros(len(encoding.w)), jac=True, method="L-BFGS-B")
    w = encoding.w + found.x
    if encoding.votes:
        w /= max(1.0, float(np.abs(w).max()) * encoding.n_trees)
    return encoding.with_leaves(encoding.rounded(w))


class GroupFair:
    """``fairlearn``: demographic parity between groups, another goal than equal decisions for one person.

    Parameters
    ----------
    model : estimator
        Unfitted.
    sensitive : sequence of int
        Columns whose joint value is the group.
    method : {"exponentiated gradient", "threshold optimizer"}
        Retraining under a constraint; or thresholds by group (needs the group at prediction).
    seed : int
        Both randomise their decisions.
    """

    def __init__(self, model: Any, sensitive: Sequence[int], method: str = "exponentiated gradient", seed: int = 0):
        if method not in ("exponentiated gradient", "threshold optimizer"):
            raise ValueError(f"method {method!r}: expected 'exponentiated gradient' or 'threshold optimizer'")
        self.model, self.sensitive, self.method, self.seed = model, list(sensitive), method, seed

    def _group(self, X: np.ndarray) -> np.ndarray:
        return np.array(["/".join(map(str, row)) for row in X[:, self.sensitive].tolist()])

    def fit(self, X: np.ndarray, y: np.ndarray) -> GroupFair:
        from fairlearn.postprocessing import ThresholdOptimizer
        from fairlearn.reductions import DemographicParity, ExponentiatedGradient
        from sklearn.base import clone

        if self.method == "exponentiated gradient":
            self.fitted_ = ExponentiatedGradient(clone(self.model), DemographicParity(), max_iter=10)
        else:
            self.fitted_ = ThresholdOptimizer(estimator=clone(self.model), constraints="demographic_parity",
                                              predict_method="predict_proba")  # fmt: skip
        self.fitted_.fit(X, y, sensitive_features=self._group(X))
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        more = {} if self.method == "exponentiated gradient" else {"sensitive_features": self._group(X)}
        return np.asarray(self.fitted_.predict(X, random_state=self.seed, **more))


class Shield:
    """Action masking: the best allowed action of the policy at every state; it needs the MDP when it acts.

    Parameters
    ----------
    encoding : EnsembleEncoding
        Of the policy.
    features : ndarray, shape (S, features)
    allowed : ndarray of bool, shape (S, classes)
        By class of the model; a state without any allowed action keeps the policy's own.
    """

    def __init__(self, encoding: EnsembleEncoding, features: np.ndarray, allowed: np.ndarray):
        scores = encoding.scores(features)
        if scores.shape[1] == 1:
            scores = np.column_stack([-scores[:, 0], scores[:, 0]])
        masked = np.where(allowed | ~allowed.any(axis=1, keepdims=True), scores, -np.inf)
        self.policy = encoding.classes[masked.argmax(axis=1)]


def dagger(model: Any, mdp: MDP, features: np.ndarray, X: np.ndarray, y: np.ndarray, expert: np.ndarray, rounds: int = 4,
           learn: Callable[[Any, np.ndarray, np.ndarray], Any] | None = None) -> Any:  # fmt: skip
    """DAgger (Ross, Gordon and Bagnell, 2011): add the expert's action at every state that the policy reaches, refit.

    Parameters
    ----------
    model : estimator
        The fitted policy; clones of it are refitted.
    mdp : MDP
    features : ndarray, shape (S, features)
    X, y : ndarray
        What the policy was trained on.
    expert : ndarray of int, shape (S,)
        The expert's action in every state.
    rounds : int
        Refits.
    learn : callable, optional
        ``learn(model, X, y)`` gives the refitted policy (default: a clone's ``fit``).
    """
    from sklearn.base import clone

    learn = learn or (lambda m, a, b: clone(m).fit(a, b))
    for _ in range(rounds):
        seen = np.flatnonzero(mdp.reachable(np.asarray(model.predict(features)).astype(int)))
        X, y = np.vstack([X, features[seen]]), np.concatenate([y, expert[seen]])
        model = learn(model, X, y)
    return model
