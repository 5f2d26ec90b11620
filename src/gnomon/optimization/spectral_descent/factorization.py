"""A scikit-learn transformer that factorises a matrix by spectral descent."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from gnomon.optimization.spectral_descent.baselines import truncated_svd
from gnomon.optimization.spectral_descent.descent import factor_descent
from gnomon.optimization.spectral_descent.flow import check_rank, least_value, objective
from gnomon.optimization.spectral_descent.method import SpectralDescent

SOLVERS = ("specgd", "svd")


class SpectralFactorization(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""X ~ A B with A (n_samples, rank) and B (rank, n_features), by spectral descent on both.

    Minimises ``1/2 ||AB - X||_F^2 + lam/2 (||A||_F^2 + ||B||_F^2)``, whose minimum has the leading singular vectors of X
    with singular values ``(sigma_i - lam)_+``. ``transform`` gives ``X B' (B B' + lam I)^-1``, the best A for that B.

    Parameters
    ----------
    rank : int
        From 1 to min(X.shape).
    lam : float
        >= 0.
    solver : {"specgd", "svd"}
        Spectral descent from small random factors with a learning rate that falls to zero, or the minimum from the SVD.
    max_iter : int
        Steps of "specgd".
    random_state : int, RandomState or None
        Of the start.

    Attributes
    ----------
    components_ : array (rank, n_features)
        B.
    singular_values_ : array (rank,)
        Of A B, descending.
    excess_ : float
        How far the objective is above its minimum, relative to 1/2 ||X||_F^2.
    n_features_in_, n_iter_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from gnomon.optimization import SpectralFactorization
    >>> X = np.outer([1.0, 2.0, 3.0], [1.0, 0.0, -1.0, 0.0])
    >>> model = SpectralFactorization(rank=1, random_state=0).fit(X)
    >>> bool(np.abs(model.inverse_transform(model.transform(X)) - X).max() < 1e-3)
    True
    """

    def __init__(self, rank: int = 2, lam: float = 0.0, solver: str = "specgd", max_iter: int = 500,
                 random_state: Any = None) -> None:  # fmt: skip
        self.rank, self.lam, self.solver = rank, lam, solver
        self.max_iter, self.random_state = max_iter, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Factorise X (n_samples, n_features)."""
        X = validate_data(self, X, dtype=np.float64)
        if self.solver not in SOLVERS:
            raise ValueError(f"solver: got {self.solver!r}; expected one of {', '.join(SOLVERS)}")
        if self.lam < 0 or not np.isfinite(self.lam):
            raise ValueError(f"lam: got {self.lam!r}; expected a number >= 0")
        if self.max_iter < 1:
            raise ValueError(f"max_iter: got {self.max_iter!r}; expected at least 1")
        check_rank(self.rank, *X.shape)
        sigma = np.linalg.svd(X, compute_uv=False)
        if self.solver == "svd" or sigma[0] == 0:
            A, B = truncated_svd(X, self.rank, self.lam)
        else:
            rng = check_random_state(self.random_state)
            scale = np.sqrt(sigma[0])
            start = 1e-3 * scale * rng.standard_normal((self.rank, X.shape[1])) / np.sqrt(X.shape[1])
            # unit speed over a falling rate covers lr max_iter / 2, twice what the largest mode needs
            rate = 4 * scale / self.max_iter
            _, A, B = factor_descent(np.zeros((len(X), self.rank)), start, X, lambda p: SpectralDescent(p, lr=rate),
                                     self.max_iter, self.lam, decay=True)  # fmt: skip
        self.components_ = B
        self.singular_values_ = np.linalg.svd(A @ B, compute_uv=False)[: self.rank]
        total = 0.5 * float((X**2).sum())
        gap = objective(A, B, X, self.lam) - least_value(sigma, self.rank, self.lam)
        self.excess_ = gap / total if total else 0.0
        self.n_iter_ = self.max_iter if self.solver == "specgd" else 1
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """The coordinates (n_samples, rank) of the rows of X."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        B = self.components_
        if self.lam:
            return np.asarray(np.linalg.solve(B @ B.T + self.lam * np.eye(len(B)), B @ X.T).T)
        return np.asarray(np.linalg.lstsq(B.T, X.T, rcond=None)[0].T)

    def inverse_transform(self, X: Any) -> NDArray[np.float64]:
        """``X B``: rows of data from coordinates (n_samples, rank)."""
        check_is_fitted(self)
        X = np.asarray(X, float)
        if X.ndim != 2 or X.shape[1] != len(self.components_):
            raise ValueError(f"X: got shape {X.shape}; expected (n_samples, {len(self.components_)})")
        return np.asarray(X @ self.components_)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)
