"""Algorithms of scikit-learn with their hyperparameters, and the estimator of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ConfigSpace as cs

from gnomon.decisions.lb_mcts.space import CASHSpace

TREES, ROUNDS, UNITS, EPOCHS = 60, 60, 64, 100  # the most of each: what an evaluation may cost
SCALED = ("logistic_regression", "svc", "knn", "discriminant", "mlp", "ridge", "svr")
TAKES_NAN = ("hist_gradient_boosting",)


class SklearnSpace(CASHSpace):
    """A :class:`CASHSpace` that makes the estimator of a configuration.

    Parameters
    ----------
    task : {"classification", "regression"}
    algorithms : sequence of str, optional
        Which of them (default: all).
    impute : bool
        Whether a median imputer goes before algorithms that reject missing values.

    Raises
    ------
    ValueError
        For an unknown task or algorithm.
    """

    def __init__(self, task: str = "classification", algorithms: Sequence[str] | None = None, impute: bool = True):
        if task not in TASKS:
            raise ValueError(f"task: got {task!r}; expected one of {', '.join(TASKS)}")
        known = TASKS[task]
        wanted = list(known) if algorithms is None else list(algorithms)
        if unknown := [a for a in wanted if a not in known]:
            raise ValueError(f"algorithms: unknown {', '.join(map(repr, unknown))}; {task} has {', '.join(known)}")
        super().__init__({name: known[name]() for name in wanted})
        self.task, self.impute = task, impute

    @property
    def rejects_nan(self) -> list[str]:
        """The algorithms that cannot take missing values as they are made here."""
        return [] if self.impute else [a for a in self if a not in TAKES_NAN]

    def build(self, config: Mapping[str, Any], random_state: int | None = 0) -> Any:
        """The estimator of a configuration.

        Parameters
        ----------
        config : mapping
            ``{"algorithm": name, "config": {...}}``, or the configuration with its ``"algorithm"`` among it.
        random_state : int or None
            Of estimators that draw.

        Returns
        -------
        Estimator or Pipeline
            Median imputer and standardisation, where the algorithm needs them, then the algorithm.

        Raises
        ------
        ValueError
            For a configuration that the space does not hold.
        """
        given = dict(config)
        if "algorithm" not in given:
            raise ValueError(f"config: no 'algorithm' in {given}; expected one of {', '.join(self)}")
        name = given.pop("algorithm")
        values = dict(given.pop("config", given))
        self[name].vector(values)
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        estimator = _estimator(name, values, self.task, random_state)
        before: list[Any] = [SimpleImputer(strategy="median")] if self.impute and name not in TAKES_NAN else []
        before += [StandardScaler()] if name in SCALED else []
        return make_pipeline(*before, estimator) if before else estimator


def sklearn_space(
    task: str = "classification", algorithms: Sequence[str] | None = None, impute: bool = True
) -> SklearnSpace:
    """scikit-learn's algorithms for a task: 8 for classification with 26 hyperparameters, 5 for regression.

    See :class:`SklearnSpace` for the parameters.

    Examples
    --------
    >>> space = sklearn_space("classification", ["svc"])
    >>> space.build({"algorithm": "svc", "C": 1.0, "kernel": "linear"})[-1]
    SVC(kernel='linear', random_state=0)
    """
    return SklearnSpace(task, algorithms, impute)


# --- the spaces ------------------------------------------------------------------------------------------------------


def _logistic_regression() -> cs.ConfigurationSpace:
    return _space(cs.Float("C", (1e-4, 1e3), log=True, default=1.0),
                  cs.Categorical("class_weight", ["none", "balanced"], default="none"))  # fmt: skip


def _svm(name: str) -> cs.ConfigurationSpace:
    kernel = cs.Categorical("kernel", ["rbf", "linear", "poly"], default="rbf")
    gamma = cs.Float("gamma", (1e-5, 10.0), log=True, default=0.02)
    degree = cs.Integer("degree", (2, 5), default=3)
    found = _space(kernel, cs.Float("C", (1e-3, 1e3), log=True, default=1.0), gamma, degree)
    found.add([cs.InCondition(gamma, kernel, ["rbf", "poly"]), cs.EqualsCondition(degree, kernel, "poly")])
    if name == "svr":
        found.add(cs.Float("epsilon", (1e-3, 1.0), log=True, default=0.1))
    return found


def _knn() -> cs.ConfigurationSpace:
    return _space(cs.Integer("n_neighbors", (1, 50), log=True, default=5),
                  cs.Categorical("weights", ["uniform", "distance"], default="uniform"),
                  cs.Categorical("p", [1, 2], default=2))  # fmt: skip


def _extra_trees(criteria: Sequence[str]) -> cs.ConfigurationSpace:
    return _space(cs.Integer("n_estimators", (10, TREES), default=TREES),
                  cs.Float("max_features", (0.05, 1.0), default=0.3),
                  cs.Integer("min_samples_leaf", (1, 20), log=True, default=1),
                  cs.Categorical("criterion", list(criteria), default=criteria[0]),
                  cs.Categorical("bootstrap", [False, True], default=False))  # fmt: skip


def _hist_gradient_boosting() -> cs.ConfigurationSpace:
    return _space(cs.Float("learning_rate", (0.01, 1.0), log=True, default=0.1),
                  cs.Integer("max_iter", (10, ROUNDS), default=ROUNDS),
                  cs.Integer("max_leaf_nodes", (4, 64), log=True, default=31),
                  cs.Integer("min_samples_leaf", (2, 50), log=True, default=20),
                  cs.Float("l2_regularization", (1e-6, 10.0), log=True, default=1e-6))  # fmt: skip


def _gaussian_nb() -> cs.ConfigurationSpace:
    return _space(cs.Float("var_smoothing", (1e-12, 1.0), log=True, default=1e-9))


def _discriminant() -> cs.ConfigurationSpace:
    return _space(cs.Categorical("kind", ["linear", "quadratic"], default="linear"),
                  cs.Float("shrinkage", (1e-3, 1.0), default=0.1))  # fmt: skip


def _mlp() -> cs.ConfigurationSpace:
    return _space(cs.Integer("hidden", (4, UNITS), log=True, default=UNITS),
                  cs.Float("alpha", (1e-6, 1.0), log=True, default=1e-4),
                  cs.Float("learning_rate_init", (1e-4, 0.1), log=True, default=1e-3),
                  cs.Categorical("activation", ["relu", "tanh"], default="relu"))  # fmt: skip


def _ridge() -> cs.ConfigurationSpace:
    return _space(cs.Float("alpha", (1e-4, 1e4), log=True, default=1.0))


def _space(*hyperparameters: Any) -> cs.ConfigurationSpace:
    found = cs.ConfigurationSpace()
    found.add(list(hyperparameters))
    return found


TASKS: dict[str, dict[str, Any]] = {
    "classification": {
        "logistic_regression": _logistic_regression,
        "svc": lambda: _svm("svc"),
        "knn": _knn,
        "extra_trees": lambda: _extra_trees(["gini", "entropy"]),
        "hist_gradient_boosting": _hist_gradient_boosting,
        "gaussian_nb": _gaussian_nb,
        "discriminant": _discriminant,
        "mlp": _mlp,
    },
    "regression": {
        "ridge": _ridge,
        "svr": lambda: _svm("svr"),
        "knn": _knn,
        "extra_trees": lambda: _extra_trees(["squared_error", "friedman_mse"]),
        "hist_gradient_boosting": _hist_gradient_boosting,
    },
}


def _estimator(name: str, given: dict[str, Any], task: str, seed: int | None) -> Any:
    import sklearn.discriminant_analysis as discriminant
    from sklearn import ensemble, linear_model, naive_bayes, neighbors, neural_network, svm

    classify = task == "classification"
    if name == "logistic_regression":
        weight = None if given["class_weight"] == "none" else "balanced"
        return linear_model.LogisticRegression(C=given["C"], class_weight=weight, max_iter=200)
    if name in ("svc", "svr"):
        return svm.SVC(**given, random_state=seed) if classify else svm.SVR(**given)
    if name == "knn":
        kind = neighbors.KNeighborsClassifier if classify else neighbors.KNeighborsRegressor
        return kind(**given)
    if name == "extra_trees":
        trees = ensemble.ExtraTreesClassifier if classify else ensemble.ExtraTreesRegressor
        return trees(**given, random_state=seed)
    if name == "hist_gradient_boosting":
        boosting = ensemble.HistGradientBoostingClassifier if classify else ensemble.HistGradientBoostingRegressor
        return boosting(**given, early_stopping=False, random_state=seed)
    if name == "gaussian_nb":
        return naive_bayes.GaussianNB(**given)
    if name == "discriminant":
        if given["kind"] == "linear":
            return discriminant.LinearDiscriminantAnalysis(solver="lsqr", shrinkage=given["shrinkage"])
        return discriminant.QuadraticDiscriminantAnalysis(solver="eigen", shrinkage=given["shrinkage"])
    if name == "mlp":
        options = {k: given[k] for k in ("alpha", "learning_rate_init", "activation")}
        return neural_network.MLPClassifier((given["hidden"],), **options, max_iter=EPOCHS, random_state=seed)
    return linear_model.Ridge(**given)
