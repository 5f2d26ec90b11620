"""Two domains from one table, so that the true partner of every row is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon.geometry.fosta.forest import ForestKernel

Array = NDArray[np.float64]
TABLES = ("iris", "wine", "breast", "digits")
SPLITS = ("noise", "random", "importance", "alternating", "rotate", "distort")
SIGNAL_SHARE = 0.15  # of B's features in the split "noise"; the paper's lie between 0.1 and 0.2
DISTORTION = 0.5


@dataclass
class Pair:
    """Two domains and what is known of them.

    Attributes
    ----------
    XA, XB : ndarray
        Row i of both is one object, unless ``paired`` is False.
    yA, yB : ndarray of float
        NaN where masked.
    truth_b : ndarray
        All labels of B.
    hidden : ndarray of bool
        Rows of B whose labels are masked.
    """

    XA: Array
    XB: Array
    yA: Array
    yB: Array
    truth_b: NDArray[np.int64]
    hidden: NDArray[np.bool_]
    seed: int
    paired: bool = True
    _kernels: dict[int, list[ForestKernel]] = field(default_factory=dict)

    def kernels(self, n_estimators: int) -> list[ForestKernel]:
        """The forests of both domains: grown once for all contenders that use them."""
        if n_estimators not in self._kernels:
            self._kernels[n_estimators] = [ForestKernel(n_estimators, random_state=self.seed).fit(X, y)
                                           for X, y in ((self.XA, self.yA), (self.XB, self.yB))]  # fmt: skip
        return self._kernels[n_estimators]


def table(name: str, rng: np.random.Generator, rows: int | None = None) -> tuple[Array, NDArray[np.int64]]:
    """Standardised features and labels, rows in random order (500 of digits; constant pixels stay zero)."""
    from sklearn import datasets

    load = {"iris": datasets.load_iris, "wine": datasets.load_wine, "breast": datasets.load_breast_cancer,
            "digits": datasets.load_digits}  # fmt: skip
    X, y = load[name](return_X_y=True)
    order = rng.permutation(len(X))[: rows or (500 if name == "digits" else len(X))]
    return standardised(X[order]), np.asarray(y[order], dtype=np.int64)


def standardised(X: Any) -> Array:
    """Columns of mean 0 and sd 1; constant ones become 0."""
    X = np.asarray(X, dtype=np.float64)
    spread = X.std(0)
    return (X - X.mean(0)) / np.where(spread > 0, spread, 1.0)


def divided(X: Array, y: NDArray[np.int64], split: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """The features of A and of B.

    "noise": B is A beside Gaussian features that make up 85 % of it. "random", "importance", "alternating": disjoint
    halves, at random, the more important half (to a forest) against the less important one, or every other one.
    "rotate": B is A turned. "distort": B is A with noise of sd 0.5.
    """
    D = X.shape[1]
    if split == "noise":
        return X, noisy(X, 1 / SIGNAL_SHARE - 1, rng)
    if split == "rotate":
        return X, X @ np.linalg.qr(rng.normal(size=(D, D)))[0]
    if split == "distort":
        return X, X + DISTORTION * rng.normal(size=X.shape)
    order = rng.permutation(D)
    if split != "random":
        from sklearn.ensemble import RandomForestClassifier

        forest = RandomForestClassifier(100, random_state=int(rng.integers(2**31))).fit(X, y)
        order = order[np.argsort(-forest.feature_importances_[order], kind="stable")]
    if split == "alternating":
        return X[:, order[::2]], X[:, order[1::2]]
    return X[:, order[: D // 2]], X[:, order[D // 2 :]]


def noisy(X: Array, multiple: float, rng: np.random.Generator) -> Array:
    """X beside ``multiple`` times as many features of Gaussian noise."""
    return np.hstack([X, rng.normal(size=(len(X), round(multiple * X.shape[1])))])


def masked(y: NDArray[np.int64], share: float, rng: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    """Labels with NaN in a share of the rows (two of each class stay), and which rows these are."""
    hidden = np.zeros(len(y), dtype=bool)
    hidden[rng.permutation(len(y))[: round(share * len(y))]] = True
    for c in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == c))
        short = max(0, min(2, len(rows)) - int((~hidden[rows]).sum()))
        hidden[rows[hidden[rows]][:short]] = False
    return np.where(hidden, np.nan, y.astype(float)), hidden


def pair(name: str, split: str, rng: np.random.Generator, *, share: float = 0.5, multiple: float | None = None) -> Pair:
    """Two domains from a table; ``multiple`` sets how many noise features "noise" adds."""
    X, y = table(name, rng)
    XA, XB = divided(X, y, split, rng) if multiple is None else (X, noisy(X, multiple, rng))
    yB, hidden = masked(y, share, rng)
    return Pair(XA, XB, y.astype(float), yB, y, hidden, int(rng.integers(2**31)))


def thinned(given: Pair, rng: np.random.Generator, keep: float = 0.2) -> Pair:
    """One class of B, drawn at random, loses all but a share of its rows: priors differ between the domains."""
    c = rng.choice(np.unique(given.truth_b))
    labelled, rest = (
        rng.permutation(np.flatnonzero((given.truth_b == c) & (given.hidden == h))) for h in (False, True)
    )
    stay = given.truth_b != c
    for rows in (labelled, rest):
        stay[rows[: max(2, round(keep * len(rows)))]] = True
    return Pair(
        given.XA,
        given.XB[stay],
        given.yA,
        given.yB[stay],
        given.truth_b[stay],
        given.hidden[stay],
        given.seed,
        paired=False,
    )


def images(rng: np.random.Generator, rows: int) -> Pair:
    """MNIST digits as pixels and as histograms of gradients, half of the second domain's labels masked."""
    from gnomon import datasets

    pixels, labels = datasets.mnist()
    chosen = rng.permutation(len(pixels))[:rows]
    X, y = (
        np.asarray(pixels[chosen], dtype=np.float64).reshape(rows, 28, 28) / 255,
        np.asarray(labels[chosen], dtype=np.int64),
    )
    yB, hidden = masked(y, 0.5, rng)
    return Pair(standardised(X.reshape(rows, -1)), standardised(gradient_histograms(X)), y.astype(float), yB, y, hidden,
                int(rng.integers(2**31)))  # fmt: skip


def gradient_histograms(images: Array, cell: int = 7, bins: int = 8) -> Array:
    """Gradient magnitude by direction in each cell of an image: (n, cells * bins)."""
    down, right = np.gradient(images, axis=(1, 2))
    size, angle = np.hypot(down, right), np.arctan2(down, right) % np.pi
    which = np.minimum((angle / np.pi * bins).astype(int), bins - 1)
    n, side = len(images), images.shape[1] // cell
    by_bin = np.where(which[..., None] == np.arange(bins), size[..., None], 0.0)
    return by_bin.reshape(n, side, cell, side, cell, bins).sum((2, 4)).reshape(n, -1)
