"""An ensemble as a linear function of its leaf values: ``F(x) = b + a(x)' w``."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnomon.guarantees.tree_repair.libraries import Library, Tree, open_model

CHUNK = 1 << 22  # leaf look-ups at a time


class EnsembleEncoding:
    r"""The scores of a tree ensemble as a linear function of the values in its leaves.

    .. math:: F_c(x) = b_c + a(x)^\top w_c

    with a(x) the 0/1 vector of the leaves that x reaches, one in every tree. Which leaves these are is always asked of
    the model's own library, so that comparisons in float32, ``<`` or ``<=`` and missing values are its own.

    Parameters
    ----------
    model : estimator or Booster
        A fitted classifier of scikit-learn, XGBoost or LightGBM; it is not changed.

    Attributes
    ----------
    classes : ndarray
        Labels. With two there is one score: positive for the second label.
    w : ndarray, shape (variables,)
        Leaf values: log-odds, or for forests class shares divided by the number of trees (two classes: share of the
        second label less that of the first).
    variable : ndarray of int, shape (leaves, outputs)
        Which entry of ``w`` a leaf adds to an output; -1 for none.
    base : ndarray, shape (outputs,)
        Added to the sum.
    start : ndarray of int, shape (trees + 1,)
        First leaf of every tree.
    votes : bool
        Whether scores are votes (forests) and not log-odds.

    Raises
    ------
    TypeError
        For a model of another kind; the message lists those accepted.
    NotFittedError
        For a model that is not fitted.
    """

    def __init__(self, model: Any):
        self.library: Library = open_model(model)
        lib = self.library
        self.classes, self.base, self.start, self.votes = lib.classes, lib.base, lib.start, lib.votes
        self.n_trees, self.n_leaves, self.n_outputs = len(lib.start) - 1, int(lib.start[-1]), len(lib.base)
        tree = np.repeat(np.arange(self.n_trees), np.diff(self.start))
        if lib.output is None:
            self.variable = np.arange(self.n_leaves * self.n_outputs).reshape(self.n_leaves, self.n_outputs)
            self.w = lib.values.ravel().astype(float)
        else:
            self.variable = np.full((self.n_leaves, self.n_outputs), -1)
            self.variable[np.arange(self.n_leaves), lib.output[tree]] = np.arange(self.n_leaves)
            self.w = lib.values[:, 0].astype(float)
        self.tree = tree
        self._trees: list[Tree] | None = None

    # --- inputs ---
    def numbers(self, X: Any, name: str = "X") -> np.ndarray:
        """Rows as float64, shape (rows, features).

        Raises
        ------
        ValueError
            For columns that hold no numbers, another width, infinite values, or NaN where the model takes none.
        """
        try:
            rows = np.asarray(X, dtype=float)
        except (TypeError, ValueError):
            raise ValueError(
                f"{name}: it holds values that are no numbers; encode categories as numbers first"
            ) from None
        if rows.ndim != 2 or rows.shape[1] != self.library.n_features:
            raise ValueError(
                f"{name}: got shape {rows.shape}; expected (rows, {self.library.n_features}), as the model was fitted on"
            )
        if np.isinf(rows).any():
            raise ValueError(f"{name}: it holds infinite values; expected finite numbers")
        if not self.library.missing and np.isnan(rows).any():
            raise ValueError(
                f"{name}: it holds NaN, and this {type(self.library.model).__name__} takes no missing values"
            )
        return rows

    def codes(self, y: Any, name: str = "y") -> np.ndarray:
        """Labels as positions in ``classes``.

        Raises
        ------
        ValueError
            For a label that the model does not know.
        """
        y = np.asarray(y)
        order = np.argsort(self.classes)
        at = np.clip(np.searchsorted(self.classes[order], y), 0, len(order) - 1)
        found = order[at]
        if (wrong := np.flatnonzero(self.classes[found] != y)).size:
            raise ValueError(
                f"{name}: {y[wrong[0]].item()!r} is no class of the model, which knows {self.classes.tolist()}"
            )
        return found

    # --- leaves and scores ---
    def leaves(self, X: np.ndarray) -> np.ndarray:
        """Number of the leaf in every tree, shape (rows, trees)."""
        if len(X) == 0:
            return np.empty((0, self.n_trees), dtype=np.int32)
        return self.library.apply(X)

    def table(self, w: np.ndarray) -> np.ndarray:
        """Leaf values as (leaves, outputs), zero where a leaf adds nothing."""
        return np.where(self.variable >= 0, np.asarray(w, dtype=float)[self.variable], 0.0)

    def scores_at(self, leaves: np.ndarray, w: np.ndarray | None = None) -> np.ndarray:
        """Scores of leaf patterns (rows, trees), shape (rows, outputs)."""
        table = self.table(self.w if w is None else w)
        found = np.empty((len(leaves), self.n_outputs))
        step = max(1, CHUNK // max(1, self.n_trees * self.n_outputs))
        for first in range(0, len(leaves), step):
            found[first : first + step] = table[leaves[first : first + step]].sum(axis=1)
        return found + self.base

    def scores(self, X: np.ndarray, w: np.ndarray | None = None) -> np.ndarray:
        """Scores of rows, shape (rows, outputs)."""
        return self.scores_at(self.leaves(np.asarray(X, dtype=float)), w)

    def decide(self, scores: np.ndarray) -> np.ndarray:
        """Positions of the labels."""
        return (scores[:, 0] > 0).astype(int) if self.n_outputs == 1 else scores.argmax(axis=1)

    def rounded(self, w: np.ndarray) -> np.ndarray:
        """The values as the library will keep them; a value that is the model's own stays exactly so."""
        kept = np.asarray(w, dtype=float).astype(self.library.stored).astype(float)
        return np.where(w == self.w, self.w, kept)

    # --- models ---
    def with_leaves(self, w: np.ndarray) -> Any:
        """A copy of the model, of the same type, with these leaf values."""
        table = self.library.values.copy()
        if self.library.output is None:
            table = np.asarray(w, dtype=float).reshape(table.shape)
        else:
            table[:, 0] = w
        return self.library.rebuild(table)

    def predict(self, model: Any, X: np.ndarray) -> np.ndarray:
        """Positions of the labels that the library's own ``predict`` gives."""
        return self.codes(self.library.predict(model, X)) if len(X) else np.empty(0, dtype=int)

    # --- structure ---
    def trees(self) -> list[Tree]:
        """The trees as arrays, for verification; see :class:`~gnomon.guarantees.tree_repair.libraries.Tree`."""
        if self._trees is None:
            self._trees = list(self.library.trees())
        return self._trees

    def region_of(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """The box of inputs that share all leaves of ``x``: each with lower < value <= upper, once in the library's format.

        Parameters
        ----------
        x : array_like, shape (features,)
            One row, without missing values.

        Returns
        -------
        lower, upper : ndarray, shape (features,)
            Infinite where no split bounds the box.
        """
        row = self.numbers(np.asarray(x, dtype=float)[None])
        if np.isnan(row).any():
            raise ValueError("x: it holds NaN; a region is of values that are there")
        lower, upper = np.full(row.shape[1], -np.inf), np.full(row.shape[1], np.inf)
        compared = row[0].astype(self.library.number).astype(float)
        for tree in self.trees():
            node = 0
            while tree.feature[node] >= 0:
                f, q = tree.feature[node], tree.threshold[node]
                if compared[f] <= q:
                    upper[f], node = min(upper[f], q), tree.left[node]
                else:
                    lower[f], node = max(lower[f], q), tree.right[node]
        return lower, upper
