"""Surrogates of one algorithm's loss, how far they can be relied on, and the log expected improvement."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import scipy.special
import scipy.stats

TREES, MIN_LEAF, TRIED = 100, 3, 5 / 6


class Surrogate(Protocol):
    """Mean and variance of a loss over features."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Any: ...

    def predict(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...

    def held_out(self) -> np.ndarray: ...


class RandomForest:
    """100 bootstrap regression trees with at least 3 points in a leaf, as in SMAC.

    Parameters
    ----------
    rng : numpy.random.Generator
        Draws bootstraps, features and split points.
    trees, min_leaf : int
        Number of trees, least points in a leaf.

    References
    ----------
    F. Hutter, H. Hoos, K. Leyton-Brown, "Sequential model-based optimization for general algorithm configuration" (2011).
    """

    def __init__(self, rng: np.random.Generator, trees: int = TREES, min_leaf: int = MIN_LEAF):
        self.rng, self.trees, self.min_leaf = rng, trees, min_leaf

    def fit(self, X: np.ndarray, y: np.ndarray) -> RandomForest:
        """Features (n, F), losses (n,)."""
        from gnomon.decisions.lb_mcts import forest

        self._X = np.ascontiguousarray(X, dtype=float)
        self._samples = self.rng.integers(len(X), size=(self.trees, len(X)))
        tried = max(1, round(TRIED * X.shape[1]))
        uniforms = self.rng.random((self.trees, 2 * len(X), tried + 1))
        self._fitted = forest.fit(self._X, np.asarray(y, float), self._samples, self.min_leaf, uniforms)
        return self

    def predict(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance (m,): of the trees' means, plus the mean variance in a leaf."""
        from gnomon.decisions.lb_mcts import forest

        return forest.predict(np.ascontiguousarray(X, dtype=float), *self._fitted)  # type: ignore[no-any-return]

    def held_out(self) -> np.ndarray:
        """Out-of-bag predictions of the training points (n,); NaN where every tree saw the point."""
        from gnomon.decisions.lb_mcts import forest

        feature, threshold, left, right, mean, _ = self._fitted
        return forest.out_of_bag(self._X, self._samples, feature, threshold, left, right, mean)  # type: ignore[no-any-return]


def reliability(predicted: np.ndarray, true: np.ndarray, n0: float = 8.0) -> float:
    r"""How far a surrogate can be relied on: :math:`\max(0, \tau_b)\, n / (n + n_0)` in [0, 1).

    Parameters
    ----------
    predicted, true : ndarray (n,)
        Held-out predictions and the losses; pairs with a NaN are left out.
    n0 : float
        Trials at which a perfect ranking counts one half.
    """
    both = np.isfinite(predicted) & np.isfinite(true)
    n = int(both.sum())
    if n < 2:
        return 0.0
    tau = scipy.stats.kendalltau(predicted[both], true[both]).statistic
    return 0.0 if math.isnan(tau) else max(0.0, float(tau)) * n / (n + n0)


def log_ei(mean: np.ndarray, std: np.ndarray, best: float) -> np.ndarray:
    r"""Logarithm of the expected improvement below ``best`` of a normal prediction.

    :math:`\log \mathrm{EI} = \log\sigma + \log(\varphi(z) + z \Phi(z))`, :math:`z = (f^* - \mu) / \sigma`, stable for z far below
    0; at :math:`\sigma = 0` it is :math:`\log \max(f^* - \mu, 0)`.

    References
    ----------
    S. Ament et al., "Unexpected improvements to expected improvement for Bayesian optimization" (2023).
    """
    mean, std = np.broadcast_arrays(np.asarray(mean, float), np.asarray(std, float))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = (best - mean) / std
        plain = np.log(scipy.stats.norm.pdf(z) + z * scipy.special.ndtr(z))
        # log phi(z) + log(1 + z Phi(z) / phi(z)), with the scaled erfc for the ratio
        ratio = math.sqrt(math.pi / 2) * scipy.special.erfcx(-z / math.sqrt(2))
        tail = np.where(z > -1e4, np.log1p(np.maximum(z * ratio, -1 + 1e-300)), -2 * np.log(np.abs(z)))
        far = -(z**2) / 2 - math.log(2 * math.pi) / 2 + tail
        found = np.log(std) + np.where(z > -1, plain, far)
        limit = np.log(np.maximum(best - mean, 0.0))
    return np.where(std > 0, found, limit)
