"""A Gaussian process as the surrogate: Matern 5/2 with one length per numeric feature times a Hamming kernel."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    ConstantKernel,
    Hyperparameter,
    Kernel,
    NormalizedKernelMixin,
    StationaryKernelMixin,
    WhiteKernel,
)


class MaternHamming(StationaryKernelMixin, NormalizedKernelMixin, Kernel):
    r"""Matern 5/2 (ARD) on numeric features times :math:`\exp(-h / \ell)` on the share h of one-hot features that differ.

    Parameters
    ----------
    lengths : array_like (F,) or (F + 1,)
        Lengths of the numeric features, then that of the Hamming part where there are categories.
    categorical : array_like (F,) of bool
        Which features are one-hot.
    """

    def __init__(self, lengths: Any, categorical: Any):
        self.lengths, self.categorical = lengths, categorical

    @property
    def hyperparameter_lengths(self) -> Hyperparameter:
        return Hyperparameter("lengths", "numeric", (0.05, 20.0), len(self.lengths))

    def __call__(self, X: np.ndarray, Y: np.ndarray | None = None, eval_gradient: bool = False) -> Any:
        Y_ = X if Y is None else Y
        kind, lengths = np.asarray(self.categorical, bool), np.asarray(self.lengths, float)
        scales = lengths[: (~kind).sum()]
        gaps = (X[:, None, ~kind] - Y_[None, :, ~kind]) / scales
        r = np.sqrt(5 * (gaps**2).sum(-1))
        matern = (1 + r + r**2 / 3) * np.exp(-r)
        share = np.abs(X[:, None, kind] - Y_[None, :, kind]).sum(-1) / max(kind.sum(), 1)
        hamming = np.exp(-share / lengths[-1]) if kind.any() else np.ones_like(matern)
        K = matern * hamming
        if not eval_gradient:
            return K
        # d / d log length: of the Matern part 5/3 (1 + r) exp(-r) gap^2, of the other K h / length
        parts = [5 / 3 * ((1 + r) * np.exp(-r) * hamming)[..., None] * gaps**2]
        if kind.any():
            parts.append((K * share / lengths[-1])[..., None])
        return K, np.concatenate(parts, axis=-1)


class GaussianProcess:
    """scikit-learn's Gaussian process with the kernel above, on standardised losses.

    Parameters
    ----------
    categorical : ndarray (F,) of bool
        Which features are one-hot.
    seed : int
        Of the optimiser's restart.
    """

    def __init__(self, categorical: np.ndarray, seed: int = 0):
        self.categorical, self.seed = np.asarray(categorical, bool), seed

    def fit(self, X: np.ndarray, y: np.ndarray) -> GaussianProcess:
        """Features (n, F), losses (n,)."""
        self._mean, self._scale = float(np.mean(y)), float(np.std(y)) or 1.0
        count = int((~self.categorical).sum()) + bool(self.categorical.any())
        kernel = ConstantKernel(1.0, (0.05, 20.0)) * MaternHamming(np.ones(count), self.categorical) + WhiteKernel(
            1e-2, (1e-6, 1.0)
        )
        self._process = GaussianProcessRegressor(kernel, n_restarts_optimizer=1, random_state=self.seed)
        self._y = (np.asarray(y, float) - self._mean) / self._scale
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound says the feature does nothing
            self._process.fit(X, self._y)
        return self

    def predict(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance (m,)."""
        mean, std = self._process.predict(X, return_std=True)
        return self._mean + self._scale * mean, (self._scale * std) ** 2

    def held_out(self) -> np.ndarray:
        """Leave-one-out predictions in closed form (n,): y_i - [K^-1 y]_i / [K^-1]_ii."""
        L = self._process.L_
        inverse = np.linalg.inv(L @ L.T)
        return self._mean + self._scale * (self._y - inverse @ self._y / np.diag(inverse))
