"""Softmax regression on tables that clients hold, some of whom may lie, with scikit-learn's interface."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from gnomon.optimization.byzantine.aggregators import Aggregator, check_liars
from gnomon.optimization.byzantine.attacks import Attack
from gnomon.optimization.byzantine.losses import SoftmaxClients
from gnomon.optimization.byzantine.method import RobustTrainer


class ByzantineClassifier(ClassifierMixin, BaseEstimator):
    """Multinomial logistic regression trained robustly over clients.

    Parameters
    ----------
    f : int
        Bound on the clients that lie; more than 2 f clients are needed.
    solver : {"pigs", "aeg", "gd", "nesterov", "heavy_ball"}
        See :class:`RobustTrainer`.
    aggregator : Aggregator, optional
        By default nearest-neighbour mixing and the trimmed mean.
    l2 : float
        Ridge penalty on all parameters; it is the strong convexity.
    n_clients : int
        Where ``fit`` gets no ``groups``: rows are dealt at random to so many clients (fewer where there are fewer rows).
    trusted : optional
        The client whose data the server uses for its own loss (default: the first in sorted order). A poor choice costs
        rounds, not correctness.
    max_rounds, tol : int, float
        When to stop, see :class:`RobustTrainer`.
    attack : Attack, optional
        Simulation: f liars join the clients.
    random_state : int, RandomState or None
        Of the dealing.

    Attributes
    ----------
    classes_ : ndarray (k,)
        The labels.
    coef_, intercept_ : ndarray (k, p), (k,)
        Weights. With two classes there are still two rows.
    clients_ : ndarray (n,)
        The clients' names.
    history_, certificate_, setup_rounds_
        Of the :class:`RobustTrainer`.
    n_features_in_, n_iter_ : int
        Features; rounds.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> clf = ByzantineClassifier(f=3, solver="pigs", max_rounds=20).fit(X / 16, y)
    >>> clf.certificate_.n
    20
    """

    def __init__(self, f: int = 0, solver: Literal["pigs", "aeg", "gd", "nesterov", "heavy_ball"] = "pigs",
                 aggregator: Aggregator | None = None, l2: float = 1e-2, n_clients: int = 20, trusted: Any = None,
                 max_rounds: int = 300, tol: float = 1e-5, attack: Attack | None = None, random_state: Any = 0):  # fmt: skip
        self.f = f
        self.solver = solver
        self.aggregator = aggregator
        self.l2 = l2
        self.n_clients = n_clients
        self.trusted = trusted
        self.max_rounds = max_rounds
        self.tol = tol
        self.attack = attack
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> ByzantineClassifier:
        """Train on rows that belong to clients.

        Parameters
        ----------
        X : array_like (m, p)
            Features; standardise them first.
        y : array_like (m,)
            Labels.
        groups : array_like (m,), optional
            Which client holds the row.

        Raises
        ------
        ValueError
            For n <= 2f, l2 <= 0, one class only, an unknown ``trusted``, and what :class:`RobustTrainer` refuses.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y: got one class, {self.classes_.tolist()}; expected 2 or more")
        if not self.l2 > 0:
            raise ValueError(f"l2: got {self.l2}; expected a number > 0")
        if self.n_clients < 1:
            raise ValueError(f"n_clients: got {self.n_clients}; expected a number >= 1")
        if groups is None:
            n = min(self.n_clients, len(X))
            groups = check_random_state(self.random_state).permutation(np.arange(len(X)) % n)
        groups = np.asarray(groups)
        if groups.shape != (len(X),):
            raise ValueError(f"groups: expected one client for each of the {len(X)} rows, got shape {groups.shape}")
        self.clients_, who = np.unique(groups, return_inverse=True)
        check_liars(len(self.clients_) + (self.f if self.attack is not None else 0), self.f)
        clients = SoftmaxClients(_with_ones(X), labels, who, self.l2, len(self.classes_))
        trainer = RobustTrainer(self.solver, self.aggregator, self.f, mu=self.l2, server_loss=clients.of(self._trusted()),
                                max_rounds=self.max_rounds, tol=self.tol, attack=self.attack)  # fmt: skip
        trainer.fit(clients, np.zeros(clients.size))
        W = trainer.x_.reshape(-1, len(self.classes_))
        self.coef_, self.intercept_ = W[:-1].T.copy(), W[-1].copy()
        self.history_, self.certificate_ = trainer.history_, trainer.certificate_
        self.setup_rounds_, self.n_iter_ = trainer.setup_rounds_, int(trainer.history_["round"].iloc[-1])
        return self

    def _trusted(self) -> int:
        if self.trusted is None:
            return 0
        at = np.flatnonzero(self.clients_ == self.trusted)
        if len(at) == 0:
            raise ValueError(f"trusted: {self.trusted!r} is none of the clients {self.clients_.tolist()}")
        return int(at[0])

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits (m, k); of two classes their difference (m,)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        Z = X @ self.coef_.T + self.intercept_
        return Z[:, 1] - Z[:, 0] if len(self.classes_) == 2 else Z

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities (m, k)."""
        from scipy.special import softmax

        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return softmax(X @ self.coef_.T + self.intercept_, axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row (m,)."""
        chosen = self.predict_proba(X).argmax(axis=1)
        return self.classes_[chosen]


def _with_ones(X: np.ndarray) -> np.ndarray:
    return np.column_stack([X, np.ones(len(X))])
