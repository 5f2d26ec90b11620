"""The angular mean of voters: the Frechet mean of their directions under the geodesic distance."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from gnomon.decisions.angular_mean.agreement import agreement, as_items
from gnomon.decisions.angular_mean.solvers import on_circle, on_sphere
from gnomon.decisions.angular_mean.sphere import angles, unit
from gnomon.decisions.angular_mean.voters import as_covariance, as_types, root

Array = np.ndarray


class AngularMean(BaseEstimator):
    r"""The linear ranking rule that is closest to all voters in squared angle.

    .. math:: \theta^* = \arg\min_{|\theta| = 1} \sum_i \alpha_i \phi_i(\theta)^2, \qquad
              \phi_i(\theta) = \arccos \langle \theta, \theta_i \rangle

    For items that are symmetric under rotation a voter agrees with the rule on a share :math:`1 - \phi_i / \pi` of all
    pairs; the global minimum gives every type at least its own share :math:`\alpha_i` ("long-run individual
    proportionality"). Gaussian items of covariance S are whitened first.

    Parameters
    ----------
    weights : array_like, shape (n,), optional
        Of the voters, nonnegative; by default equal. ``fit`` takes ``sample_weight`` instead.
    covariance : array_like of shape (d, d), "empirical" or None
        Of the items. "empirical" estimates it from the ``items`` of ``fit``; None: isotropic.
    solver : {"auto", "exact", "riemannian"}
        "exact" is for d = 2, where "auto" takes it; "riemannian" descends from many starts and finds the global
        minimum nearly always, not provably.
    n_restarts : int
        Random starts besides the arithmetic mean, the 32 heaviest voters and their antipodes.
    tol : float
        Length of the mean logarithm at which the descent ends, > 0.
    random_state : int or None
        Seed of the random starts.

    Attributes
    ----------
    coef_ : ndarray, shape (d,)
        The rule, of unit length.
    types_, weights_ : ndarray, shapes (k, d) and (k,)
        Voter types: unit rows, equal ones merged and their weights added; shares of sum 1.
    labels_ : ndarray, shape (n,)
        The type of each row of ``fit`` (-1: weight 0).
    angles_ : ndarray, shape (k,)
        From each type to the rule, in radians, of whitened vectors where there is a covariance.
    agreement_, slack_ : ndarray, shape (k,)
        Long-run agreement 1 - angle / pi, and what of it exceeds the type's weight: >= 0 is proportional. The weight
        is a share of pairs, not of what exceeds chance: a type of weight 0.1 may be disagreed with on 90 %.
    objective_ : float
        The minimum, in rad^2.
    stationarity_ : float
        Length of the mean logarithm at the solution, 0 at a minimum.
    ties_ : ndarray, shape (t, d)
        ``coef_``, and further directions with the same objective to 1e-9 where the minimum is not unique.
    covariance_ : ndarray, shape (d, d), or None
        That was used, scaled to trace d.
    n_iter_ : int
        Iterations.
    n_features_in_ : int
        d.

    Raises
    ------
    ValueError
        In ``fit``, for d < 2, zero rows, values that are not finite, weights or a covariance that do not fit.

    Warns
    -----
    UserWarning
        Where the minimum is not unique, for instance with two opposed voters.

    References
    ----------
    C. Baharav, N. Boehmer, B. Flanigan, M. Wittmann, "The End Justifies the Mean: A Linear Ranking Rule for Proportional
    Sequential Decisions", arXiv 2605.12717.

    Examples
    --------
    >>> from gnomon.decisions import AngularMean
    >>> rule = AngularMean().fit([[1, 0], [0, 3], [-2, 0]], sample_weight=[1, 2, 1])
    >>> rule.coef_.round(6) + 0.0
    array([0., 1.])
    >>> rule.slack_.round(6)
    array([0.25, 0.5 , 0.25])
    """

    def __init__(self, weights: Any = None, covariance: Any = None,
                 solver: Literal["auto", "exact", "riemannian"] = "auto", n_restarts: int = 8, tol: float = 1e-10,
                 random_state: int | None = 0):  # fmt: skip
        self.weights = weights
        self.covariance = covariance
        self.solver = solver
        self.n_restarts = n_restarts
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, items: Any = None) -> AngularMean:
        """Find the rule.

        Parameters
        ----------
        X : array_like, shape (n, d)
            The voters' scoring vectors; rows are normalised, so that long ones buy no weight.
        y : ignored
        sample_weight : array_like, shape (n,), optional
            Weights of the voters, where ``weights`` was not given.
        items : array_like, shape (m, d), optional
            For ``covariance="empirical"``.
        """
        if sample_weight is not None and self.weights is not None:
            raise ValueError("sample_weight and weights: give one of them")
        self._check()
        X = validate_data(self, X, dtype=float, ensure_all_finite=False)
        types = as_types(X, self.weights if sample_weight is None else sample_weight)
        d = types.vectors.shape[1]
        covariance = self._covariance(items, d)
        half, back = (np.eye(d), np.eye(d)) if covariance is None else root(covariance)
        whitened = types.vectors if covariance is None else unit(types.vectors @ half)
        if self.solver == "exact" or (self.solver == "auto" and d == 2):
            if d != 2:
                raise ValueError(f"solver 'exact' is for d = 2; the voters have d = {d}")
            found = on_circle(whitened, types.weights)
        else:
            found = on_sphere(whitened, types.weights, n_restarts=self.n_restarts, tol=self.tol,
                              random=np.random.default_rng(self.random_state))  # fmt: skip
        self.types_, self.weights_, self.labels_ = types
        self.coef_ = unit(found.theta @ back)
        self.angles_ = angles(found.theta, whitened)
        self.agreement_ = 1 - self.angles_ / np.pi
        self.slack_ = self.agreement_ - self.weights_
        self.objective_, self.stationarity_, self.n_iter_ = found.objective, found.stationarity, found.n_iter
        self.ties_ = unit(found.ties @ back)
        self.covariance_ = covariance
        if found.stationarity > max(self.tol, 1e-8):
            warnings.warn(
                f"the descent ended at a gradient of {found.stationarity:.1e}", ConvergenceWarning, stacklevel=2
            )
        if len(self.ties_) > 1:
            warnings.warn(f"the angular mean is not unique: {len(self.ties_)} directions found are as good (ties_)",
                          UserWarning, stacklevel=2)  # fmt: skip
        return self

    def decision_function(self, items: Any) -> Array:
        """The rule's scores (m,) of items (m, d)."""
        check_is_fitted(self)
        items = validate_data(self, items, dtype=float, reset=False)
        scores: Array = items @ self.coef_
        return scores

    def rank(self, items: Any) -> Array:
        """Indices (m,) of the items, best first; of equal scores the earlier item first."""
        return np.argsort(-self.decision_function(items), kind="stable")

    def agreement(self, items: Any = None) -> Array:
        """Long-run agreement (k,) of the types: by the Gaussian formula, or over all pairs of ``items``."""
        check_is_fitted(self)
        return agreement(self.coef_, self.types_, items, covariance=None if items is not None else self.covariance_)

    def _covariance(self, items: Any, d: int) -> Array | None:
        if isinstance(self.covariance, str):
            if self.covariance != "empirical":
                raise ValueError(f"covariance is {self.covariance!r}; expected a matrix, 'empirical' or None")
            if items is None:
                raise ValueError("covariance 'empirical' needs fit(..., items=)")
            rows = as_items(items, d)
            if len(rows) < 2:
                raise ValueError(f"items has {len(rows)} rows; a covariance needs 2 or more")
            return as_covariance(np.cov(rows, rowvar=False), d)
        if items is not None:
            raise ValueError("items: they are used with covariance='empirical' only")
        return None if self.covariance is None else as_covariance(self.covariance, d)

    def _check(self) -> None:
        if self.solver not in ("auto", "exact", "riemannian"):
            raise ValueError(f"solver is {self.solver!r}; expected 'auto', 'exact' or 'riemannian'")
        if not isinstance(self.n_restarts, int | np.integer) or self.n_restarts < 0:
            raise ValueError(f"n_restarts is {self.n_restarts!r}; expected a whole number >= 0")
        if not (isinstance(self.tol, int | float | np.floating) and self.tol > 0):
            raise ValueError(f"tol is {self.tol!r}; expected a number > 0")
