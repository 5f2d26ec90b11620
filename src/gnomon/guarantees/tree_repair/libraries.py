"""Reading and writing the leaves of scikit-learn, XGBoost and LightGBM ensembles, each through its own library.

Every library is brought to the same terms: leaves numbered across the trees, one number per leaf (or one per leaf and
class), and for verification the split tests in the form "goes left iff x <= q", q a number of the library's own format.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

SUPPORTED = (
    "scikit-learn's DecisionTreeClassifier, RandomForestClassifier, ExtraTreesClassifier, GradientBoostingClassifier "
    "and HistGradientBoostingClassifier, xgboost's XGBClassifier, XGBRFClassifier and Booster, lightgbm's LGBMClassifier "
    "and Booster"
)


@dataclass(frozen=True)
class Tree:
    """One tree as arrays over its nodes; the root is node 0.

    Attributes
    ----------
    feature : ndarray of int
        Column that is tested; -1 in a leaf.
    threshold : ndarray of float
        A present value goes left iff x <= threshold.
    left, right : ndarray of int
        Children; -1 in a leaf.
    leaf : ndarray of int
        The ensemble's number of the leaf; -1 in an inner node.
    """

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    leaf: np.ndarray


class Library:
    """What all have in common.

    Attributes
    ----------
    model : object
        The person's model; never changed.
    classes : ndarray
        Its labels.
    votes : bool
        Whether the scores are differences or shares of votes (forests) and not log-odds.
    values : ndarray, shape (leaves, outputs)
        Leaf values; one output where there are two classes.
    base : ndarray, shape (outputs,)
        What is added to the sum over trees.
    output : ndarray, shape (trees,), or None
        The class that a tree adds to; None where each leaf holds a value for every class.
    number : type
        Format in which the library compares values with thresholds.
    missing : bool
        Whether it takes NaN.
    names : list of str or None
        Columns that the model was fitted on.
    """

    model: Any
    classes: np.ndarray
    votes = False
    values: np.ndarray
    base: np.ndarray
    output: np.ndarray | None
    number: type[np.floating[Any]] = np.float64
    stored: type[np.floating[Any]] = np.float64  # the format of a leaf's value
    missing = True
    names: list[str] | None = None
    n_features: int
    start: np.ndarray  # first leaf of each tree, and the number of leaves

    def frame(self, X: np.ndarray) -> Any:
        """The rows as the library wants them: with the names that the model was fitted on."""
        if self.names is None:
            return X
        import pandas as pd

        return pd.DataFrame(X, columns=self.names)

    def apply(self, X: np.ndarray) -> np.ndarray:
        """Number of the leaf in every tree, shape (rows, trees), by the library's own traversal."""
        nodes = self._nodes(X)
        found = np.empty(nodes.shape, dtype=np.int32)
        for t, leaf in enumerate(self._lookup):
            found[:, t] = leaf[nodes[:, t]]
        return found

    def predict(self, model: Any, X: np.ndarray) -> np.ndarray:
        """The library's own labels."""
        return np.asarray(model.predict(self.frame(X)))

    def raw(self, model: Any, X: np.ndarray) -> np.ndarray:
        """The library's own scores, shape (rows, outputs)."""
        raise NotImplementedError

    def rebuild(self, values: np.ndarray) -> Any:
        """A copy of the model with these leaf values; leaves whose value stays are not touched."""
        raise NotImplementedError

    def trees(self) -> Iterator[Tree]:
        """The trees, in order.

        Raises
        ------
        ValueError
            Where a split is not a comparison with a number (categories of LightGBM and others).
        """
        raise NotImplementedError

    def _nodes(self, X: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    _lookup: list[np.ndarray]

    def _count(self, leaves: list[np.ndarray]) -> None:
        """Number the leaves: ``leaves`` are the node numbers of each tree's leaves, in order."""
        self.start = np.concatenate([[0], np.cumsum([len(nodes) for nodes in leaves])])
        self._lookup = []
        for first, nodes in zip(self.start, leaves, strict=False):
            lookup = np.full(int(nodes.max()) + 1, -1, dtype=np.int32)
            lookup[nodes] = first + np.arange(len(nodes))
            self._lookup.append(lookup)

    def _changed(self, values: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """(tree, position within the tree, leaf) of each leaf whose value differs."""
        for leaf in np.flatnonzero((values != self.values).any(axis=1)):
            tree = int(np.searchsorted(self.start, leaf, side="right")) - 1
            yield tree, int(leaf - self.start[tree]), int(leaf)


def _names(model: Any) -> list[str] | None:
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else [str(n) for n in names]


def _left_of(thresholds: np.ndarray) -> np.ndarray:
    """The largest float32 that is <= each threshold: ``float32(x) <= threshold`` iff ``float32(x) <=`` this."""
    near = thresholds.astype(np.float32)
    return np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near).astype(float)


# --- scikit-learn ----------------------------------------------------------------------------------------------------


class _SklearnTrees(Library):
    """Ensembles of ``sklearn.tree`` trees: values in float32, ``<=``."""

    number = np.float32
    parts: list[Any]

    def _nodes(self, X: np.ndarray) -> np.ndarray:
        rows = np.ascontiguousarray(X, dtype=np.float32)
        return np.column_stack([part.tree_.apply(rows) for part in self.parts])

    def _read(self) -> None:
        self.leaves = [np.flatnonzero(part.tree_.children_left < 0) for part in self.parts]
        self._count(self.leaves)

    def trees(self) -> Iterator[Tree]:
        for part, lookup in zip(self.parts, self._lookup, strict=True):
            tree = part.tree_
            inner = tree.children_left >= 0
            numbers = np.full(len(inner), -1)
            numbers[: len(lookup)] = lookup
            yield Tree(np.where(inner, tree.feature, -1), _left_of(tree.threshold), tree.children_left,
                       tree.children_right, numbers)  # fmt: skip


class Forest(_SklearnTrees):
    """Decision tree, random forest, extra trees: class shares, averaged. Two classes: share of the second less the first's."""

    votes = True

    def __init__(self, model: Any):
        self.model, self.classes, self.names = model, np.asarray(model.classes_), _names(model)
        self.n_features = model.n_features_in_
        if model.n_outputs_ != 1:
            raise TypeError("model: an ensemble with several outputs; accepted is one label per row")
        self.parts = self._trees_of(model)
        self._read()
        shares = np.concatenate(
            [part.tree_.value[nodes, 0] for part, nodes in zip(self.parts, self.leaves, strict=True)]
        )
        self.output = None
        if len(self.classes) == 2:
            shares = shares[:, 1:] - shares[:, :1]
        self.values = shares / len(self.parts)
        self.base = np.zeros(self.values.shape[1])
        # scikit-learn knows of each tree whether it met missing values in training; what it refuses we refuse
        self.missing = all(bool(part.tree_.missing_go_to_left is not None) for part in self.parts) and _takes_nan(model)

    @staticmethod
    def _trees_of(model: Any) -> list[Any]:
        return list(model.estimators_) if hasattr(model, "estimators_") else [model]

    def raw(self, model: Any, X: np.ndarray) -> np.ndarray:
        shares = model.predict_proba(self.frame(X))
        return shares[:, 1:] - shares[:, :1] if len(self.classes) == 2 else shares

    def rebuild(self, values: np.ndarray) -> Any:
        made = copy.deepcopy(self.model)
        parts = self._trees_of(made)
        for tree, position, leaf in self._changed(values):
            step = (values[leaf] - self.values[leaf]) * len(parts)
            step = np.array([-step[0], step[0]]) / 2 if len(step) == 1 else step
            parts[tree].tree_.value[self.leaves[tree][position], 0] += step
        return made


def _takes_nan(model: Any) -> bool:
    from sklearn.utils import get_tags

    if not bool(get_tags(model).input_tags.allow_nan):
        return False
    row = np.full((1, model.n_features_in_), np.nan)
    try:
        model.predict_proba(row if _names(model) is None else _framed(row, _names(model)))
    except ValueError:  # fitted without missing values
        return False
    return True


def _framed(row: np.ndarray, names: Any) -> Any:
    import pandas as pd

    return pd.DataFrame(row, columns=names)


class GradientBoosting(_SklearnTrees):
    """``GradientBoostingClassifier``: log-odds, one tree per stage and class."""

    missing = False

    def __init__(self, model: Any):
        self.model, self.classes, self.names = model, np.asarray(model.classes_), _names(model)
        self.n_features = model.n_features_in_
        from sklearn.dummy import DummyClassifier

        if not (model.init_ == "zero" or isinstance(model.init_, DummyClassifier)):
            raise TypeError(
                f"model: GradientBoostingClassifier with init={model.init_!r}; accepted is its default or 'zero'"
            )
        outputs = model.estimators_.shape[1]
        self.parts = list(model.estimators_.ravel())  # stage by stage, within it class by class
        self.output = np.tile(np.arange(outputs), len(model.estimators_))
        self._read()
        self.values = np.concatenate(
            [part.tree_.value[nodes, 0] for part, nodes in zip(self.parts, self.leaves, strict=True)]
        )
        self.values = self.values * model.learning_rate
        anywhere = np.zeros((1, self.n_features), dtype=np.float32)
        self.base = np.asarray(model._raw_predict_init(anywhere), dtype=float)[0]

    def raw(self, model: Any, X: np.ndarray) -> np.ndarray:
        found = np.asarray(model.decision_function(self.frame(X)))
        return found[:, None] if found.ndim == 1 else found

    def rebuild(self, values: np.ndarray) -> Any:
        made = copy.deepcopy(self.model)
        parts = made.estimators_.ravel()
        for tree, position, leaf in self._changed(values):
            parts[tree].tree_.value[self.leaves[tree][position], 0, 0] = values[leaf, 0] / made.learning_rate
        return made


class HistGradientBoosting(Library):
    """``HistGradientBoostingClassifier``: log-odds; it has no public ``apply``, so its predictors carry node numbers."""

    def __init__(self, model: Any):
        self.model, self.classes, self.names = model, np.asarray(model.classes_), _names(model)
        self.n_features = model.n_features_in_
        outputs = model.n_trees_per_iteration_
        self.parts = [p for stage in model._predictors for p in stage]
        self.output = np.tile(np.arange(outputs), len(model._predictors))
        self.leaves = [np.flatnonzero(p.nodes["is_leaf"]) for p in self.parts]
        self._count(self.leaves)
        self.values = np.concatenate([p.nodes["value"][n] for p, n in zip(self.parts, self.leaves, strict=True)])[
            :, None
        ]
        self.base = np.asarray(model._baseline_prediction, dtype=float).reshape(-1)
        self._numbered = [copy.deepcopy(p) for p in self.parts]
        for part in self._numbered:
            part.nodes["value"] = np.arange(len(part.nodes))

    def _nodes(self, X: np.ndarray) -> np.ndarray:
        rows = self.model._preprocess_X(self.frame(X), reset=False)
        known, positions = self.model._bin_mapper.make_known_categories_bitsets()
        found = [p.predict(rows, known_cat_bitsets=known, f_idx_map=positions, n_threads=1) for p in self._numbered]
        return np.column_stack(found).astype(np.int64)

    def raw(self, model: Any, X: np.ndarray) -> np.ndarray:
        found = np.asarray(model.decision_function(self.frame(X)))
        return found[:, None] if found.ndim == 1 else found

    def rebuild(self, values: np.ndarray) -> Any:
        made = copy.deepcopy(self.model)
        parts = [p for stage in made._predictors for p in stage]
        for tree, position, leaf in self._changed(values):
            parts[tree].nodes["value"][self.leaves[tree][position]] = values[leaf, 0]
        return made

    def trees(self) -> Iterator[Tree]:
        for part, lookup in zip(self.parts, self._lookup, strict=True):
            nodes = part.nodes
            inner = nodes["is_leaf"] == 0
            if (nodes["is_categorical"][inner] != 0).any():
                raise ValueError(
                    "model: it splits on categories; the exact verifier reads comparisons with numbers only"
                )
            numbers = np.full(len(nodes), -1)
            numbers[: len(lookup)] = lookup
            yield Tree(np.where(inner, nodes["feature_idx"], -1), nodes["num_threshold"].astype(float),
                       np.where(inner, nodes["left"].astype(int), -1), np.where(inner, nodes["right"].astype(int), -1), numbers)  # fmt: skip


# --- XGBoost ---------------------------------------------------------------------------------------------------------


class XGBoost(Library):
    """``XGBClassifier``, ``XGBRFClassifier`` or ``Booster``: float32 throughout, ``<``; written through its JSON."""

    number = stored = np.float32

    def __init__(self, model: Any):
        import xgboost

        self.model = model
        booster = model.get_booster() if isinstance(model, xgboost.XGBModel) else model
        body = json.loads(bytes(booster.save_raw("json")))
        learner = body["learner"]
        objective, kind = learner["objective"]["name"], learner["gradient_booster"]["name"]
        if kind != "gbtree":
            raise TypeError(f"model: xgboost with booster {kind!r}; accepted is 'gbtree'")
        if not objective.startswith(("binary:logi", "multi:soft")):
            raise TypeError(f"model: xgboost with objective {objective!r}; accepted are classifiers, binary:logistic, "
                            "binary:logitraw, multi:softprob and multi:softmax")  # fmt: skip
        self.body, self.booster = body, booster
        self.is_booster, self.objective = booster is model, objective
        self.names = None if self.is_booster else _names(model)
        outputs = max(1, int(learner["learner_model_param"]["num_class"]))
        self.classes = np.arange(max(2, outputs)) if self.is_booster else np.asarray(model.classes_)
        self.n_features = booster.num_features()
        state = learner["gradient_booster"]["model"]
        self._trees = state["trees"]
        used = len(self._trees)
        if not self.is_booster and (best := booster.attr("best_iteration")) is not None:  # as its own predict does
            used = state["iteration_indptr"][int(best) + 1]
        self._used = used
        self._rounds = state["iteration_indptr"].index(used)
        if any(int(t["tree_param"]["size_leaf_vector"]) > 1 for t in self._trees):
            raise TypeError("model: xgboost with vector leaves (multi_output_tree); accepted is one_output_per_tree")
        self.output = np.array(state["tree_info"][:used], dtype=int)
        self.leaves = [np.flatnonzero(np.array(t["left_children"]) < 0) for t in self._trees[:used]]
        self._count(self.leaves)
        self.values = np.concatenate([np.array(t["split_conditions"], dtype=np.float32)[n].astype(float)
                                      for t, n in zip(self._trees, self.leaves, strict=False)])[:, None]  # fmt: skip
        blank = self._with(np.zeros_like(self.values), touched=range(len(self.values)))
        anywhere = self._matrix(np.zeros((1, self.n_features)))
        self.base = np.asarray(
            blank.predict(anywhere, output_margin=True, iteration_range=(0, self._rounds)), dtype=float
        ).reshape(-1)

    def _matrix(self, X: np.ndarray) -> Any:
        import xgboost

        types = self.booster.feature_types
        return xgboost.DMatrix(X, feature_names=self.booster.feature_names, feature_types=types,
                               enable_categorical=bool(types and "c" in types), nthread=1)  # fmt: skip

    def _nodes(self, X: np.ndarray) -> np.ndarray:
        found = self.booster.predict(self._matrix(X), pred_leaf=True, iteration_range=(0, self._rounds))
        return np.asarray(found).reshape(len(X), -1).astype(np.int64)

    def predict(self, model: Any, X: np.ndarray) -> np.ndarray:
        if not self.is_booster:
            return super().predict(model, X)
        found = np.asarray(model.predict(self._matrix(X)))
        if self.objective.startswith("binary"):
            return (found > (0.5 if self.objective == "binary:logistic" else 0.0)).astype(int)
        return found.argmax(axis=1) if found.ndim == 2 else found.astype(int)

    def raw(self, model: Any, X: np.ndarray) -> np.ndarray:
        booster = model if self.is_booster else model.get_booster()
        found = np.asarray(booster.predict(self._matrix(X), output_margin=True, iteration_range=(0, self._rounds)))
        return found[:, None] if found.ndim == 1 else found

    def _with(self, values: np.ndarray, touched: Any = None) -> Any:
        import xgboost

        body = copy.deepcopy(self.body)
        trees = body["learner"]["gradient_booster"]["model"]["trees"]
        changed = self._changed(values) if touched is None else self._all()
        for tree, position, leaf in changed:
            node = int(self.leaves[tree][position])
            for field in ("split_conditions", "base_weights"):
                trees[tree][field][node] = float(np.float32(values[leaf, 0]))  # xgboost refuses whole numbers here
        return xgboost.Booster(model_file=bytearray(json.dumps(body).encode()))

    def _all(self) -> Iterator[tuple[int, int, int]]:
        for tree, first in enumerate(self.start[:-1]):
            for position in range(len(self.leaves[tree])):
                yield tree, position, int(first) + position

    def rebuild(self, values: np.ndarray) -> Any:
        booster = self._with(values)
        if self.is_booster:
            return booster
        made = copy.deepcopy(self.model)
        made.get_booster().load_model(bytearray(bytes(booster.save_raw("json"))))
        return made

    def trees(self) -> Iterator[Tree]:
        for tree, lookup in zip(self._trees, self._lookup, strict=False):
            left, right = np.array(tree["left_children"]), np.array(tree["right_children"])
            inner = left >= 0
            if any(np.array(tree["split_type"])[inner]):
                raise ValueError(
                    "model: it splits on categories; the exact verifier reads comparisons with numbers only"
                )
            below = np.nextafter(np.array(tree["split_conditions"], dtype=np.float32), np.float32(-np.inf))
            numbers = np.full(len(left), -1)
            numbers[: len(lookup)] = lookup
            yield Tree(np.where(inner, np.array(tree["split_indices"]), -1), below.astype(float), left, right, numbers)


# --- LightGBM --------------------------------------------------------------------------------------------------------


class LightGBM(Library):
    """``LGBMClassifier`` or ``Booster``: float64, ``<=``; written by ``set_leaf_output``."""

    def __init__(self, model: Any):
        import lightgbm

        self.model = model
        self.is_booster = isinstance(model, lightgbm.Booster)
        booster = model if self.is_booster else model.booster_
        dump = booster.dump_model()
        objective = dump.get("objective", "").split()[0]
        if objective not in ("binary", "multiclass", "multiclassova"):
            raise TypeError(
                f"model: lightgbm with objective {objective!r}; accepted are binary, multiclass and multiclassova"
            )
        if dump.get("average_output"):
            raise TypeError("model: lightgbm with boosting='rf'; accepted are 'gbdt', 'goss' and 'dart'")
        if any(t["num_leaves"] > 1 and _first_leaf(t["tree_structure"]).get("leaf_coeff") for t in dump["tree_info"]):
            raise TypeError("model: lightgbm with linear trees; accepted are constant leaves")
        outputs = dump["num_tree_per_iteration"]
        self.booster, self.objective = booster, objective
        self.names = None if self.is_booster else _names(model)
        self.classes = np.arange(max(2, outputs)) if self.is_booster else np.asarray(model.classes_)
        self.n_features = booster.num_feature()
        rounds = booster.best_iteration if booster.best_iteration > 0 else booster.current_iteration()
        self._infos = dump["tree_info"][: rounds * outputs]
        self.output = np.tile(np.arange(outputs), rounds)
        self.leaves = [np.arange(t["num_leaves"]) for t in self._infos]
        self._count(self.leaves)
        self.values = np.array(
            [[booster.get_leaf_output(t, k)] for t, n in enumerate(self.leaves) for k in n], dtype=float
        )
        self.base = np.zeros(outputs)

    def _nodes(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.booster.predict(X, pred_leaf=True, num_threads=1)).reshape(len(X), -1).astype(np.int64)

    def predict(self, model: Any, X: np.ndarray) -> np.ndarray:
        if not self.is_booster:
            return super().predict(model, X)
        found = np.asarray(model.predict(X))
        return (found > 0.5).astype(int) if found.ndim == 1 else found.argmax(axis=1)

    def raw(self, model: Any, X: np.ndarray) -> np.ndarray:
        booster = model if self.is_booster else model.booster_
        found = np.asarray(booster.predict(X, raw_score=True, num_threads=1))
        return found[:, None] if found.ndim == 1 else found

    def rebuild(self, values: np.ndarray) -> Any:
        made = copy.deepcopy(self.model)
        booster = made if self.is_booster else made.booster_
        if self.is_booster:
            booster.best_iteration = self.booster.best_iteration
        for tree, position, leaf in self._changed(values):
            booster.set_leaf_output(tree, int(self.leaves[tree][position]), float(values[leaf, 0]))
        return made

    def trees(self) -> Iterator[Tree]:
        for info, lookup in zip(self._infos, self._lookup, strict=True):
            nodes: list[list[float]] = []

            def walk(part: Any, nodes: list[list[float]] = nodes, lookup: np.ndarray = lookup) -> int:
                here = len(nodes)
                nodes.append([-1, 0.0, -1, -1, -1])
                if "split_feature" not in part:
                    nodes[here][4] = int(lookup[int(part.get("leaf_index", 0))])
                    return here
                if part["decision_type"] != "<=":
                    raise ValueError(
                        "model: it splits on categories; the exact verifier reads comparisons with numbers only"
                    )
                if part["missing_type"] == "Zero":
                    raise ValueError("model: lightgbm with zero_as_missing; the exact verifier takes zero as a number")
                nodes[here][:2] = [part["split_feature"], part["threshold"]]
                nodes[here][2] = walk(part["left_child"])
                nodes[here][3] = walk(part["right_child"])
                return here

            walk(info["tree_structure"])
            table = np.array(nodes)
            yield Tree(
                table[:, 0].astype(int),
                table[:, 1],
                table[:, 2].astype(int),
                table[:, 3].astype(int),
                table[:, 4].astype(int),
            )


def _first_leaf(part: Any) -> Any:
    while "left_child" in part:
        part = part["left_child"]
    return part


# --- which --------------------------------------------------------------------------------------------------------------


def open_model(model: Any) -> Library:
    """The reader of a fitted model.

    Raises
    ------
    TypeError
        For anything but a classifier of the supported kinds; regressors too.
    NotFittedError
        Before ``fit``.
    """
    from sklearn.exceptions import NotFittedError

    names = {f"{base.__module__.split('.')[0]}.{base.__name__}" for base in type(model).__mro__}
    fitted = {"sklearn.DecisionTreeClassifier": (Forest, "tree_"), "sklearn.ForestClassifier": (Forest, "estimators_"),
              "sklearn.GradientBoostingClassifier": (GradientBoosting, "estimators_"),
              "sklearn.HistGradientBoostingClassifier": (HistGradientBoosting, "_predictors")}  # fmt: skip
    for name, (reader, attribute) in fitted.items():
        if name in names:
            if not hasattr(model, attribute):
                raise NotFittedError(f"model: this {type(model).__name__} is not fitted yet; call its fit first")
            return reader(model)
    if names & {"xgboost.XGBClassifier", "xgboost.Booster"}:
        if "xgboost.XGBClassifier" in names and not model.__sklearn_is_fitted__():
            raise NotFittedError(f"model: this {type(model).__name__} is not fitted yet; call its fit first")
        return XGBoost(model)
    if names & {"lightgbm.LGBMClassifier", "lightgbm.Booster"}:
        if "lightgbm.LGBMClassifier" in names and not model.__sklearn_is_fitted__():
            raise NotFittedError(f"model: this {type(model).__name__} is not fitted yet; call its fit first")
        return LightGBM(model)
    if any("Regressor" in name for name in names):
        raise TypeError(f"model: {type(model).__name__} is a regressor; a repair is of decisions: {SUPPORTED}")
    raise TypeError(f"model: got {type(model).__name__}; supported are {SUPPORTED}")
