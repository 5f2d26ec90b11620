"""Forest proximities as sparse factors: GAP and its relatives, extended to unlabelled rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator
from sklearn.base import BaseEstimator
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from gnomon.geometry.fosta.labels import UNLABELLED, encode
from gnomon.geometry.neighbors import distance_blocks, knn

Array = NDArray[np.float64]
KERNELS = ("gap", "original", "oob", "kerf", "euclidean")
FORESTS = {"rf": RandomForestClassifier, "et": ExtraTreesClassifier}
FEWEST_ROWS = 10
SMALLEST = 1e-4  # entries of the alpha-decay kernel below it are zero


class Kernel(LinearOperator):
    """A symmetric similarity with unit diagonal; ``K @ V``, ``K.toarray()``, and products with sparse matrices."""

    def __init__(self, n: int):
        super().__init__(np.float64, (n, n))

    def _adjoint(self) -> Kernel:
        return self

    def _matvec(self, v: Array) -> Array:
        return self._matmat(v.reshape(-1, 1))

    def toarray(self) -> Array:
        """All n x n entries."""
        raise NotImplementedError

    def prepared(self, right: Any) -> Any:
        """What :meth:`rows_times` needs to multiply rows by a sparse matrix, made once."""
        raise NotImplementedError

    def rows_times(self, rows: Any, prepared: Any) -> Any:
        """``K[rows] @ right`` as a sparse matrix."""
        raise NotImplementedError


class FactoredKernel(Kernel):
    """scale (L R' + R L') scale / 2 with a diagonal of one; L and R have one entry per row and tree.

    Parameters
    ----------
    leaves : ndarray of int32, shape (n, T)
        The leaf of each row in each tree, numbered over all trees.
    left, right : ndarray, shape (n, T)
        Weights of a row in its leaf.
    diagonal : ndarray, shape (n,)
        Self-similarities, by which the kernel is normalised.
    """

    def __init__(self, leaves: NDArray[np.int32], n_leaves: int, left: Array, right: Array, diagonal: Array):
        n, trees = leaves.shape
        super().__init__(n)
        shape, pointer = (n, n_leaves), np.arange(0, n * trees + 1, trees)
        self.left = sparse.csr_matrix((left.ravel(), leaves.ravel(), pointer), shape=shape, copy=False)
        self.right = sparse.csr_matrix((right.ravel(), leaves.ravel(), pointer), shape=shape, copy=False)
        self.leaves, self.scale = leaves, 1.0 / np.sqrt(diagonal)
        # what has to be added to the product's own diagonal
        self.correction = diagonal - np.einsum("it,it->i", left, right)

    def _matmat(self, V: Array) -> Array:
        V = self.scale[:, None] * V
        out = self.left @ (self.right.T @ V)
        out += self.right @ (self.left.T @ V)
        return self.scale[:, None] * (0.5 * out + self.correction[:, None] * V)

    def toarray(self) -> Array:
        from gnomon.geometry.fosta.loops import dense_kernel

        n, trees = self.leaves.shape
        order = np.argsort(self.leaves, axis=None, kind="stable")
        start = np.zeros(self.left.shape[1] + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.leaves.ravel(), minlength=self.left.shape[1]), out=start[1:])
        left, right = self.left.data.reshape(n, trees), self.right.data.reshape(n, trees)
        out = dense_kernel(self.leaves, left, right, start, order // trees)
        out *= 0.5 * self.scale[:, None]
        out *= self.scale
        np.fill_diagonal(out, 1.0)
        return out

    def prepared(self, right: Any) -> Any:
        scaled = sparse.diags_array(self.scale) @ sparse.csr_array(right)
        return tuple(sparse.csr_matrix(side.T @ scaled) for side in (self.right, self.left)) + (scaled,)

    def rows_times(self, rows: Any, prepared: Any) -> Any:
        by_right, by_left, scaled = prepared
        out = 0.5 * (self.left[rows] @ by_right + self.right[rows] @ by_left)
        out = out + sparse.diags_array(self.correction[rows]) @ scaled[rows]
        return sparse.csr_array(sparse.diags_array(self.scale[rows]) @ out)


class ExplicitKernel(Kernel):
    """A kernel kept as a sparse matrix."""

    def __init__(self, matrix: Any):
        super().__init__(matrix.shape[0])
        self.matrix = sparse.csr_array(matrix)

    def _matmat(self, V: Array) -> Array:
        return np.asarray(self.matrix @ V)

    def toarray(self) -> Array:
        return self.matrix.toarray()

    def prepared(self, right: Any) -> Any:
        return sparse.csr_array(right)

    def rows_times(self, rows: Any, prepared: Any) -> Any:
        return self.matrix[rows] @ prepared


class ForestKernel(BaseEstimator):
    r"""Similarities that a classification forest sees, between labelled and unlabelled rows alike.

    The GAP proximity of rows i and j, over the trees :math:`S_i` in whose bag i is not (all, if i is unlabelled):

    .. math:: p(i, j) = \frac{1}{|S_i|} \sum_{t \in S_i} 1[l_t(i) = l_t(j)]\, c_j(t) / M_t(l_t(i))

    with :math:`c_j(t)` how often tree t's bag holds j (for an unlabelled j its mean over all labelled rows, one) and
    :math:`M_t(l)` the labelled rows in a leaf, counted with multiplicity. Votes with these weights are the forest's
    out-of-bag predictions. The kernel is :math:`(p + p') / 2`, normalised to a diagonal of one.

    Parameters
    ----------
    n_estimators : int
        Trees.
    kernel : {"gap", "original", "oob", "kerf", "euclidean"}
        "original": share of trees in which two rows meet in a leaf; "oob": the same over trees that have neither in
        their bag; "kerf": meetings weighted by one over the labelled rows of the leaf; "euclidean": no forest, the
        alpha-decay kernel of nearest neighbours.
    model : {"rf", "et"}
        Random forest, or extremely randomised trees; both with bootstrap.
    max_depth, min_samples_leaf : int or None
        Of the trees.
    missing : {"raise", "forest"}
        Whether NaN in X is an error or left to the trees.
    knn, decay : int, float
        Of the Euclidean kernel: the neighbour whose distance is the width, and the exponent of the decay.
    n_jobs : int or None
        Threads that grow trees.
    random_state : int, RandomState or None

    Attributes
    ----------
    kernel_ : Kernel
        The similarity as an operator; ``kernel_.toarray()`` gives all n x n entries.
    classes_ : ndarray
    codes_ : ndarray of int, shape (n,)
        Classes by their index, -1 where unlabelled.
    forest_ : RandomForestClassifier or ExtraTreesClassifier
        Not with "euclidean".

    References
    ----------
    Aumon et al., arXiv 2602.00974; Rhodes, Cutler and Moon, Geometry- and accuracy-preserving random forest
    proximities, IEEE TPAMI 2023.
    """

    def __init__(self, n_estimators: int = 300, *, kernel: str = "gap", model: str = "rf", max_depth: int | None = None,
                 min_samples_leaf: int = 1, missing: str = "raise", knn: int = 5, decay: float = 40.0,
                 n_jobs: int | None = None, random_state: Any = None):  # fmt: skip
        self.n_estimators, self.kernel, self.model = n_estimators, kernel, model
        self.max_depth, self.min_samples_leaf, self.missing = max_depth, min_samples_leaf, missing
        self.knn, self.decay, self.n_jobs, self.random_state = knn, decay, n_jobs, random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.missing == "forest" and self.kernel != "euclidean"
        return tags

    def fit(self, X: Any, y: ArrayLike) -> ForestKernel:
        """Grow the forest on the labelled rows and send all rows down.

        Parameters
        ----------
        X : array-like or sparse matrix, shape (n, D)
            At least 10 rows.
        y : array-like, shape (n,)
            Labels; None, NaN, -1 and "" mean unlabelled.

        Raises
        ------
        ValueError
            Fewer than 10 rows, no labelled row, NaN with ``missing="raise"``, or too few trees for a row to be both in
            and out of a bag.

        Warns
        -----
        UserWarning
            For a class with a single labelled row: trees that know the class have it in their bag.
        """
        self._check_options()
        finite = "allow-nan" if self.missing == "forest" and self.kernel != "euclidean" else True
        X = validate_data(self, X, accept_sparse="csr", ensure_all_finite=finite, ensure_min_samples=2)
        codes, self.classes_ = encode(y)
        if len(codes) != X.shape[0]:
            raise ValueError(f"y: got {len(codes)} labels; expected one for each of {X.shape[0]} rows")
        if X.shape[0] < FEWEST_ROWS:
            raise ValueError(f"X: got n_samples = {X.shape[0]} rows; expected at least {FEWEST_ROWS}")
        if not (codes >= 0).any():
            raise ValueError("y: got no labelled row; expected labels for some rows")
        for code in np.flatnonzero(np.bincount(codes[codes >= 0]) == 1):
            warnings.warn(f"y: class {self.classes_.tolist()[code]!r} has one labelled row, which is never out of the bag of a "
                          "tree that knows the class", UserWarning, stacklevel=2)  # fmt: skip
        self.codes_ = codes
        if self.kernel == "euclidean":
            X = X.toarray() if sparse.issparse(X) else X
            self.train_, self.width_ = X, widths(X, self.knn)
            self.kernel_: Kernel = ExplicitKernel(alpha_decay(X, self.width_, self.decay))
            return self
        self._grow(X)
        return self

    def _check_options(self) -> None:
        for name, allowed in (("kernel", KERNELS), ("model", tuple(FORESTS)), ("missing", ("raise", "forest"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: got {getattr(self, name)!r}; expected one of {', '.join(allowed)}")
        if not self.n_estimators >= 1:
            raise ValueError(f"n_estimators: got {self.n_estimators!r}; expected a positive number of trees")
        if not (self.knn >= 1 and self.decay > 0):
            raise ValueError(f"knn, decay: got {self.knn!r}, {self.decay!r}; expected positive numbers")

    def _grow(self, X: Any) -> None:
        labelled = self.codes_ != UNLABELLED
        self.forest_ = FORESTS[self.model](
            self.n_estimators, bootstrap=True, max_depth=self.max_depth, min_samples_leaf=self.min_samples_leaf,
            n_jobs=self.n_jobs, random_state=self.random_state).fit(X[labelled], self.codes_[labelled])  # fmt: skip
        self._number_leaves()
        leaves = self._leaves(X)
        counts = np.zeros((len(self.codes_), self.n_estimators))
        counts[labelled] = multiplicities(self.forest_, int(labelled.sum()))
        make = {"gap": gap_factors, "original": original_factors, "kerf": kerf_factors}
        if self.kernel == "oob":
            self.kernel_ = ExplicitKernel(oob_kernel(leaves, self.n_leaves_, counts == 0))
            self.right_ = one_hot_leaves(leaves, self.n_leaves_)
        else:
            left, right, diagonal = make[self.kernel](leaves, self.n_leaves_, counts, labelled)
            kernel = FactoredKernel(leaves, self.n_leaves_, left, right, diagonal)
            self.kernel_, self.right_ = kernel, kernel.right

    def _number_leaves(self) -> None:
        """Leaves get numbers over all trees; nodes that are none get the next one and are never asked for."""
        self._number, first = [], 0
        for tree in self.forest_.estimators_:
            is_leaf = tree.tree_.children_left == -1
            self._number.append((first + np.cumsum(is_leaf) - is_leaf).astype(np.int32))
            first += int(is_leaf.sum())
        self.n_leaves_ = first

    def _leaves(self, X: Any) -> NDArray[np.int32]:
        nodes = self.forest_.apply(X)
        leaves = np.empty(nodes.shape, dtype=np.int32)
        for t, number in enumerate(self._number):
            leaves[:, t] = number[nodes[:, t]]
        return leaves

    def query(self, X: Any) -> sparse.csr_array:
        """Similarities of new rows to those of ``fit``, each row summing to one: a sparse (m, n) matrix.

        New rows count as unlabelled: of every tree they are out of the bag.
        """
        check_is_fitted(self, "kernel_")
        finite = "allow-nan" if self.missing == "forest" and self.kernel != "euclidean" else True
        X = validate_data(self, X, accept_sparse="csr", ensure_all_finite=finite, reset=False)
        if self.kernel == "euclidean":
            X = X.toarray() if sparse.issparse(X) else X
            width = np.maximum(knn(X, self.train_, min(self.knn, len(self.train_)))[0][:, -1], np.finfo(float).tiny)
            found = sparse.csr_array(decayed(X, self.train_, width, self.width_, self.decay))
        else:
            found = sparse.csr_array(one_hot_leaves(self._leaves(X), self.n_leaves_) @ self.right_.T)
        total = np.asarray(found.sum(axis=1)).ravel()
        return sparse.csr_array(sparse.diags_array(1.0 / np.where(total > 0, total, 1.0)) @ found)

    def votes(self) -> Array:
        """Class shares (n, C) of each row: the forest's out-of-bag (unlabelled: full) prediction, or the kernel's vote."""
        check_is_fitted(self, "kernel_")
        n_classes = len(self.classes_)
        if isinstance(self.kernel_, FactoredKernel) and self.kernel == "gap":
            weights, indicator = self.kernel_, self.codes_[:, None] == np.arange(n_classes)
            shares = weights.left @ (weights.right.T @ indicator.astype(np.float64))
        else:
            indicator = (self.codes_[:, None] == np.arange(n_classes)).astype(np.float64)
            shares = self.kernel_ @ indicator - indicator
        total = shares.sum(1, keepdims=True)
        return np.divide(shares, total, out=np.full_like(shares, 1.0 / n_classes), where=total > 0)


# --- weights of rows in leaves ---------------------------------------------------------------------------------------


def multiplicities(forest: Any, n: int) -> Array:
    """How often each tree's bag holds each of the n training rows: (n, T), as scikit-learn drew them."""
    return np.stack([np.bincount(drawn, minlength=n) for drawn in forest.estimators_samples_], axis=1).astype(float)


def gap_factors(leaves: NDArray[np.int32], n_leaves: int, counts: Array,
                labelled: NDArray[np.bool_]) -> tuple[Array, Array, Array]:  # fmt: skip
    """L, R and the diagonal of the GAP proximity p = L R'.

    Parameters
    ----------
    leaves : ndarray, shape (n, T)
    n_leaves : int
    counts : ndarray, shape (n, T)
        Multiplicities in the bags; zero for unlabelled rows.
    labelled : ndarray of bool, shape (n,)
    """
    mass = np.bincount(leaves[labelled].ravel(), weights=counts[labelled].ravel(), minlength=n_leaves)[leaves]
    out = counts == 0
    if (mass <= 0).any() or not out.any(1).all() or out[labelled].all(1).any():
        raise ValueError("a tree has no labelled row in its bag at some leaf, or a labelled row is in (or out of) the bag "
                         f"of all {leaves.shape[1]} trees: raise n_estimators or labels")  # fmt: skip
    left = out / out.sum(1, keepdims=True)
    bag = np.where(labelled[:, None], counts, counts[labelled].mean(0))
    right = bag / mass
    in_bag = counts[labelled].sum(0) / (counts[labelled] > 0).sum(0)
    own = np.where(labelled[:, None], counts, in_bag) / mass
    diagonal = own.sum(1) / np.where(labelled, (counts > 0).sum(1), leaves.shape[1])
    return left, right, diagonal


def original_factors(leaves: NDArray[np.int32], n_leaves: int, counts: Array,
                     labelled: NDArray[np.bool_]) -> tuple[Array, Array, Array]:  # fmt: skip
    """Share of trees in which two rows fall into one leaf."""
    half = np.full(leaves.shape, leaves.shape[1] ** -0.5)
    return half, half, np.ones(len(leaves))


def kerf_factors(leaves: NDArray[np.int32], n_leaves: int, counts: Array,
                 labelled: NDArray[np.bool_]) -> tuple[Array, Array, Array]:  # fmt: skip
    """Meetings weighted by one over the labelled rows of the leaf (kernel random forests)."""
    held = np.bincount(leaves[labelled].ravel(), minlength=n_leaves)[leaves]
    left, right = np.full(leaves.shape, 1.0 / leaves.shape[1]), 1.0 / held
    return left, right, (left * right).sum(1)


def one_hot_leaves(leaves: NDArray[np.int32], n_leaves: int) -> sparse.csr_matrix:
    """Indicators of the leaves over the number of trees."""
    n, trees = leaves.shape
    ones = np.full(n * trees, 1.0 / trees)
    return sparse.csr_matrix((ones, leaves.ravel(), np.arange(0, n * trees + 1, trees)), shape=(n, n_leaves))


def oob_kernel(leaves: NDArray[np.int32], n_leaves: int, out: NDArray[np.bool_]) -> sparse.csr_array:
    """Meetings over trees that have neither row in their bag; the count of such trees does not factor."""
    seen = one_hot_leaves(leaves, n_leaves) * leaves.shape[1]
    seen.data *= out.ravel()
    seen.eliminate_zeros()
    together = (seen @ seen.T).tocoo()
    pairs = np.empty(together.nnz)
    for start in range(0, together.nnz, 1 << 16):
        part = slice(start, start + (1 << 16))
        pairs[part] = (out[together.row[part]] & out[together.col[part]]).sum(1)
    found = sparse.csr_array((together.data / pairs, (together.row, together.col)), shape=together.shape).tolil()
    found.setdiag(1.0)
    return found.tocsr()


# --- the Euclidean kernel --------------------------------------------------------------------------------------------


def widths(X: Any, k: int) -> Array:
    """Distance to the k-th nearest neighbour; among so many duplicates the smallest positive number."""
    return np.maximum(knn(X, k=min(k, len(X) - 1))[0][:, -1], np.finfo(float).tiny)


def decayed(X: Any, Y: Any, width_x: Array, width_y: Array, decay: float) -> sparse.coo_array:
    """(exp(-(d / width_x)^decay) + exp(-(d / width_y)^decay)) / 2, zero where both are below 1e-4."""
    rows, cols, values = [], [], []
    for block, distance in distance_blocks(X, Y):
        with np.errstate(over="ignore"):
            value = np.exp(-((distance / width_x[block, None]) ** decay)) + np.exp(-((distance / width_y) ** decay))
        i, j = np.nonzero(value > 2 * SMALLEST)
        rows.append(i + block.start)
        cols.append(j)
        values.append(value[i, j] / 2)
    found = (np.concatenate(values), (np.concatenate(rows), np.concatenate(cols)))
    return sparse.coo_array(found, shape=(len(X), len(Y)))


def alpha_decay(X: Any, width: Array, decay: float) -> sparse.csr_array:
    """The symmetric alpha-decay kernel of a set, with a diagonal of one."""
    kernel = sparse.csr_array(decayed(X, X, width, width, decay))
    kernel = ((kernel + kernel.T) / 2).tolil()
    kernel.setdiag(1.0)
    return kernel.tocsr()
