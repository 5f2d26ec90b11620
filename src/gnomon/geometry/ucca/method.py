"""UCCA: canonical projections of two views whose row correspondence is unknown."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from gnomon.geometry.ucca.assignment import sinkhorn_plan
from gnomon.geometry.ucca.cca import Basis, cross_covariance, paired_correlations, projections
from gnomon.geometry.ucca.kernels import KERNELS, Array, Pairing
from gnomon.geometry.ucca.search import EPSILON, Found, View, search

LEAST, MOST = 20, 3000  # rows
SUBSAMPLES = 3  # of the larger view
AGREEMENT, CONFIDENCE, COSINE = 0.2, 4.0, 0.7  # what a status needs more than
log = logging.getLogger(__name__)
Track = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Evaluation:
    """Projections on true pairs.

    Attributes
    ----------
    correlation : float
        Mean over the components of the Pearson correlation of paired projections.
    correlations : ndarray, shape (n_components,)
        Each component's.
    supervised : float
        The same of supervised CCA: fitted on the pairs given for it, or on four fifths of the test pairs for each fifth.
    ratio : float
        ``correlation / supervised``.
    """

    correlation: float
    correlations: Array
    supervised: float
    ratio: float


@dataclass
class _Part:
    """One search, and the row of the larger view that it gives each row of the smaller."""

    found: Found
    pairing: Pairing


class UCCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Canonical correlation analysis of two views without pairs.

    Finds a pairing P of the rows of X and Y and linear maps A, B that correlate x'A and y'B for the paired rows. On
    whitened linear kernels the quadratic assignment problem is total squared canonical correlation,

    .. math:: \max_P \operatorname{tr}(K_X P K_Y P^\top) = n^2 \max_P \sum_j \rho_j(P)^2,

    and a Frank-Wolfe step on it is one round of "CCA, then assign". Centred Gaussian kernels in place of linear ones make
    the true pairing stand out in the score, so they lead the search; the projections are then a ridge CCA under the
    pairing found. No pair is ever seen, and the order of the rows carries nothing: both views are put in an order that
    depends on their contents alone and shuffled before anything else.

    Recovery needs the true pairing's score to exceed the *spurious level* that any two clouds of n points can be made to
    reach, which falls with n and grows with the dimension (0.65 to 0.78 at n = 400). It is impossible for clouds with
    symmetries: a pair of rotationally symmetric (Gaussian) views of less than full rank is not identifiable at all. Read
    ``status_`` before anything else.

    Parameters
    ----------
    n_components : int
        Projections k.
    n_pca : int
        Principal components of each view that are whitened, at most; fewer where the rank is lower.
    kernel : {"rbf", "linear", "precomputed"}
        What the search compares; ``rbf`` is exp(-2 D^2 / median D^2). With ``precomputed``, X and Y are n x n kernels,
        possibly indefinite, and ``transform`` takes kernel values against the training rows.
    n_starts, pool, max_rounds : int
        Starts of a run, local optima that it keeps, and its most rounds (10 without gain end it).
    n_runs, n_null : int
        Independent runs, of which the best score is kept; searches of shapeless views for ``confidence_``.
    ridge : float
        Of the final CCA, in units of the mean variance of the principal components.
    kernel_space : {"input", "whitened"}
        Whether the kernels see the features as given or the whitened components. The scaling of the features is part of
        the method in the former; any invertible map of a view changes nothing in the latter, which overfits more.
    bijective : bool
        False accepts different numbers of rows: the larger view is subsampled to the size of the smaller three times.
    soft : bool
        Use a Sinkhorn plan in canonical space in place of the pairing for the projections.
    standardize : bool
        Give the features unit variance first. It flattens spectra and may break what works without.
    random_state : int, RandomState instance or None
        Run k is seeded by (random_state, k).
    n_jobs : int, optional
        Threads of a search, as scikit-learn counts them; the result does not depend on it.

    Attributes
    ----------
    pairing_ : ndarray of int, shape (n,)
        Row of Y for each row of X; -1 for rows of X that have none (``bijective=False``).
    score_ : float
        Normalised overlap of the kernels under the pairing, at most 1 (mean over subsamples where there are several).
    x_rotations_, y_rotations_ : ndarray, shape (p, k), (q, k)
        Maps of centred rows.
    x_mean_, y_mean_ : ndarray, shape (p,), (q,)
        What is subtracted first.
    correlations_ : ndarray, shape (k,)
        In the fitted pairing, hence optimistic: 0.9 for noise. Only true pairs of other rows count (`evaluate`).
    null_scores_ : ndarray, shape (n_null,)
        Scores that the same search reaches when Y's principal coordinates are permuted independently of each other.
    confidence_ : float
        (score - mean null) / (standard deviation of the nulls sqrt(1 + 1/n_null)); NaN with fewer than two. It says whether *distributions* were
        matched, not whether a bijection exists.
    agreement_ : float
        Mean share of equal rows between the pairings of the runs; NaN with one run.
    stability_ : float
        Mean principal cosine between the X-projections of the runs, in whitened coordinates; NaN with one run.
    status_ : {"paired", "distribution", "failed"}
        "paired": ``agreement_`` > 0.2, and ``confidence_`` > 4 where it is known; else "distribution": ``confidence_`` > 4 and ``stability_`` > 0.7; else "failed".
        With one run nothing vouches for the result, which is then "failed".
    converged_ : bool
        Whether ``status_`` is not "failed".
    run_scores_ : ndarray, shape (n_runs,)
        Each run's score (mean over subsamples).
    run_pairings_ : ndarray of int, shape (n_runs, n)
        Each run's pairing.
    n_rounds_ : list of int
        Rounds of each search.
    n_features_in_ : int
        Columns of X.

    Notes
    -----
    The paper known by the title words "UCCA: unpaired CCA, quadratic assignment" was read in its abstract only; the
    algorithm is this project's. Time O(n^3) for the assignments, memory O(n^2).

    Examples
    --------
    >>> import numpy as np
    >>> from gnomon.geometry import UCCA
    >>> rng = np.random.default_rng(0)
    >>> X = rng.exponential(size=(60, 3)) * [3, 2, 1]
    >>> order = rng.permutation(60)
    >>> u = UCCA(n_components=3, n_runs=2, n_null=0).fit(X, 2 * X[order])
    >>> bool((order[u.pairing_] == np.arange(60)).all()), u.status_
    (True, 'paired')
    """

    def __init__(self, n_components: int = 5, *, n_pca: int = 15, kernel: str = "rbf", n_starts: int = 10, pool: int = 4,
                 max_rounds: int = 60, n_runs: int = 3, n_null: int = 5, ridge: float = 0.1, kernel_space: str = "input",
                 bijective: bool = True, soft: bool = False, standardize: bool = False, random_state: Any = 0,
                 n_jobs: int | None = None):  # fmt: skip
        self.n_components = n_components
        self.n_pca = n_pca
        self.kernel = kernel
        self.n_starts = n_starts
        self.pool = pool
        self.max_rounds = max_rounds
        self.n_runs = n_runs
        self.n_null = n_null
        self.ridge = ridge
        self.kernel_space = kernel_space
        self.bijective = bijective
        self.soft = soft
        self.standardize = standardize
        self.random_state = random_state
        self.n_jobs = n_jobs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.input_tags.pairwise = self.kernel == "precomputed"
        return tags

    # --- fit ----------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, Y: Any) -> Self:
        """Find pairing and projections.

        Parameters
        ----------
        X, Y : array-like, shape (n, p), (m, q)
            Two views, rows in any order; n = m unless ``bijective=False``. 20 to 3,000 rows.

        Raises
        ------
        ValueError
            For a parameter or an array outside its range; the message names it.
        """
        return self._fit(X, Y)

    def _fit(self, X: Any, Y: Any, track: Track = iter) -> Self:
        """:meth:`fit`; ``track`` wraps the sequence of searches and sees each of them end."""
        self._check_parameters()
        X = validate_data(self, _plain(X), dtype=np.float64)
        Y = self._check_second(Y)
        self._check_rows(X, Y)
        seed = _seed(self.random_state)
        # an order that contents and seed decide: that of the input can neither leak nor matter
        shuffle = np.random.default_rng([seed, 2])
        orders = [self._content_order(Z)[shuffle.permutation(len(Z))] for Z in (X, Y)]
        X, Y = (self._rows(Z, order) for Z, order in zip((X, Y), orders, strict=True))
        bases = [self._basis(Z) for Z in (X, Y)]
        self._check_dimensions(bases, min(len(X), len(Y)))

        way = -1 if len(X) > len(Y) else 1  # the smaller view first
        small_rows, large_rows = (X, Y)[::way]
        runs, nulls = self._search(small_rows, large_rows, seed, track)
        coordinates = [b.coordinates(Z) for b, Z in zip(bases, (X, Y), strict=True)]
        small, large = coordinates[::way]
        crosses = [[cross_covariance(small, large, part.pairing) for part in run] for run in runs]
        scores = np.array([[part.found.best.score for part in run] for run in runs])
        best = scores.argmax(axis=0)  # run, for each subsample
        cross = np.mean([crosses[k][s] for s, k in enumerate(best)], axis=0)
        if len(small) == len(large):
            pairing, pairings = runs[best[0]][0].pairing, [run[0].pairing for run in runs]
        else:
            pairing, pairings = (
                _nearest(small, large, cross),
                [_nearest(small, large, np.mean(c, axis=0)) for c in crosses],
            )

        self.score_, self.run_scores_ = float(scores.max(axis=0).mean()), scores.mean(axis=1)
        self.n_rounds_ = [part.found.n_rounds for run in runs for part in run]
        given = [_by_row_of_x(p, orders[0], orders[1], way) for p in (pairing, *pairings)]
        self.pairing_, self.run_pairings_ = given[0], np.array(given[1:])
        frames = [np.mean(c, axis=0) if way == 1 else np.mean(c, axis=0).T for c in crosses]
        self._diagnose(np.array(nulls), pairings, frames)

        cross = cross if way == 1 else cross.T
        if self.soft:
            cross = cross_covariance(
                coordinates[0], coordinates[1], _soft(coordinates[0], coordinates[1], cross, self.n_components)
            )
        A, B = projections(bases[0], bases[1], cross, self.n_components, self.ridge)
        Z = [_centred(b, rows) @ R for b, rows, R in zip(bases, (X, Y), (A, B), strict=True)][::way]
        self.correlations_ = paired_correlations(Z[0], Z[1][pairing])
        self.x_mean_, self.x_rotations_ = self._columns(bases[0].mean, A, orders[0])
        self.y_mean_, self.y_rotations_ = self._columns(bases[1].mean, B, orders[1])
        self._n_features_out = self.n_components
        return self

    def _search(self, small: Array, large: Array, seed: int, track: Track) -> tuple[list[list[_Part]], list[float]]:
        """All runs, each on all subsamples of the larger view, and the scores of the nulls."""
        n = len(small)
        draws = np.random.default_rng([seed, 3])
        equal = n == len(large)
        subsets = [np.arange(n)] if equal else [draws.permutation(len(large))[:n] for _ in range(SUBSAMPLES)]
        x, ys = self._view(small), [self._view(self._rows(large, rows)) for rows in subsets]
        runs: list[list[_Part]] = [[] for _ in range(self.n_runs)]
        nulls: list[float] = []
        jobs = [(False, k, s) for k in range(self.n_runs) for s in range(len(subsets))]
        for null, k, s in track(jobs + [(True, k, 0) for k in range(self.n_null)]):
            rng = np.random.default_rng([seed, int(null), k, s])
            y = ys[s].null(self.n_pca, rng, self.kernel, self.kernel_space) if null else ys[s]
            found = search(
                x,
                y,
                rng,
                n_starts=self.n_starts,
                pool=self.pool,
                max_rounds=self.max_rounds,
                plain=null or k == 0,
                n_jobs=self.n_jobs,
            )
            log.info(
                "%s %d: score %.3f after %d rounds", "null" if null else "run", k, found.best.score, found.n_rounds
            )
            if null:
                nulls.append(found.best.score)
            else:
                runs[k].append(_Part(found, subsets[s][found.best.pairing]))
        return runs, nulls

    def _diagnose(self, nulls: Array, pairings: list[Pairing], crosses: list[Array]) -> None:
        self.null_scores_ = nulls
        # of one more null's distance from the mean of these
        spread = max(float(nulls.std(ddof=1)) * np.sqrt(1 + 1 / len(nulls)), 1e-12) if len(nulls) > 1 else 1.0
        self.confidence_ = float((self.score_ - nulls.mean()) / spread) if len(nulls) > 1 else float("nan")
        frames = [np.linalg.svd(c, full_matrices=False)[0][:, : self.n_components] for c in crosses]
        equal = [np.mean(a == b) for a, b in itertools.combinations(pairings, 2)]
        cosines = [np.linalg.svd(a.T @ b, compute_uv=False).mean() for a, b in itertools.combinations(frames, 2)]
        self.agreement_ = float(np.mean(equal)) if equal else float("nan")
        self.stability_ = float(np.mean(cosines)) if cosines else float("nan")
        # small clouds without a shape have few optima, on which runs agree: the nulls must not reach the score either
        if self.agreement_ > AGREEMENT and (len(nulls) < 2 or self.confidence_ > CONFIDENCE):
            self.status_ = "paired"
        else:
            self.status_ = "distribution" if self.confidence_ > CONFIDENCE and self.stability_ > COSINE else "failed"
        self.converged_ = self.status_ != "failed"

    def _content_order(self, Z: Array) -> Pairing:
        """An order of the rows that depends on what they hold alone."""
        return np.lexsort(np.sort(Z, axis=1).T if self.kernel == "precomputed" else Z.T)

    def _columns(self, mean: Array, rotations: Array, order: Pairing) -> tuple[Array, Array]:
        """Means and maps by given column: a kernel's columns were put in order with its rows."""
        if self.kernel != "precomputed":
            return mean, rotations
        back = np.argsort(order)
        return mean[back], rotations[back]

    def _rows(self, Z: Array, rows: Pairing) -> Array:
        return Z[np.ix_(rows, rows)] if self.kernel == "precomputed" else Z[rows]

    def _basis(self, Z: Array) -> Basis:
        if self.kernel == "precomputed":
            return Basis.of_kernel(Z, self.n_pca)
        return Basis.of(Z, self.n_pca, standardize=self.standardize)

    def _view(self, Z: Array) -> View:
        return View.of(Z, self.n_pca, kernel=self.kernel, space=self.kernel_space, standardize=self.standardize)

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        for name, least in (("n_components", 1), ("n_pca", 1), ("n_starts", 1), ("pool", 1), ("max_rounds", 0),
                            ("n_runs", 1), ("n_null", 0)):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name}: got {value!r}; expected an integer >= {least}")
        if self.kernel not in KERNELS:
            raise ValueError(f"kernel: got {self.kernel!r}; expected one of {', '.join(KERNELS)}")
        if self.kernel_space not in ("input", "whitened"):
            raise ValueError(f"kernel_space: got {self.kernel_space!r}; expected 'input' or 'whitened'")
        if isinstance(self.ridge, bool) or not isinstance(self.ridge, int | float) or not 0 <= self.ridge < np.inf:
            raise ValueError(f"ridge: got {self.ridge!r}; expected a number >= 0")
        if self.kernel == "precomputed" and (self.standardize or self.kernel_space == "whitened"):
            raise ValueError("kernel: a precomputed one goes with kernel_space='input' and standardize=False")

    def _check_second(self, Y: Any) -> Array:
        if Y is None:
            raise ValueError("UCCA requires y to be passed, but the target y is None: Y is the second view")
        Y = check_array(_plain(Y), dtype=np.float64, ensure_2d=False, input_name="Y")
        return Y[:, None] if Y.ndim == 1 else Y

    def _check_dimensions(self, bases: list[Basis], n: int) -> None:
        kept = [len(b.variances) for b in bases]
        if self.n_components > min(kept):
            raise ValueError(f"n_components: got {self.n_components}; expected at most {min(kept)}, the smaller of the two "
                             "numbers of principal components that are kept")  # fmt: skip
        if max(kept) >= n / 4:
            warnings.warn(f"{max(kept)} principal components for {n} rows: wrong pairings may score above the true one (n_pca "
                          "below a quarter of the rows is safer)", UserWarning, stacklevel=4)  # fmt: skip

    def _check_rows(self, X: Array, Y: Array) -> None:
        for name, Z in (("X", X), ("Y", Y)):
            if len(Z) < LEAST:
                raise ValueError(f"{name}: got n_samples = {len(Z)}; expected at least {LEAST} rows")
        if len(X) != len(Y) and self.bijective:
            raise ValueError(
                f"X and Y have {len(X)} and {len(Y)} rows; expected as many (bijective=False accepts different ones)"
            )
        for name, Z in (("X", X), ("Y", Y)):
            if len(Z) > MOST:
                raise ValueError(f"{name} has {len(Z)} rows; at most {MOST} fit (memory is quadratic, time cubic in them): fit blocks "
                                 "of about 2,000 rows and keep the one with the best score_")  # fmt: skip
            if self.kernel == "precomputed":
                if Z.shape[0] != Z.shape[1] or not np.allclose(Z, Z.T):
                    raise ValueError(f"{name}: got shape {Z.shape}; a precomputed kernel is square and symmetric")
                continue
            constant = np.ptp(Z, axis=0) == 0
            if constant.any():
                warnings.warn(f"{name}: {int(constant.sum())} of {len(constant)} columns are constant and play no part", UserWarning,
                              stacklevel=4)  # fmt: skip
            twins = 1 - len(np.unique(Z, axis=0)) / len(Z)
            if twins > 0.05:
                warnings.warn(
                    f"{name}: {twins:.0%} of the rows are duplicates: the pairing is not unique",
                    UserWarning,
                    stacklevel=4,
                )

    # --- use ----------------------------------------------------------------------------------------------------------

    def transform(self, X: Any, Y: Any = None) -> Any:
        """Project rows of either view.

        Parameters
        ----------
        X : array-like, shape (m, p)
            Rows of the first view (kernel values against its training rows with ``kernel="precomputed"``).
        Y : array-like, shape (l, q), optional
            Rows of the second view; l need not be m.

        Returns
        -------
        ndarray, shape (m, k), or a pair of ndarrays
        """
        check_is_fitted(self)
        X = validate_data(self, _plain(X), dtype=np.float64, reset=False)
        Z = self._projected(0, X)
        return Z if Y is None else (Z, self.transform_y(Y))

    def transform_y(self, Y: Any) -> Array:
        """Project rows of the second view, (l, k)."""
        check_is_fitted(self)
        Y = check_array(_plain(Y), dtype=np.float64, ensure_2d=False, input_name="Y")
        Y = Y[:, None] if Y.ndim == 1 else Y
        if Y.shape[1] != len(self.y_mean_):
            raise ValueError(
                f"Y has {Y.shape[1]} features, but UCCA was fitted with {len(self.y_mean_)} of the second view"
            )
        return self._projected(1, Y)

    def _projected(self, side: int, Z: Array) -> Array:
        rows = Z - (self.x_mean_, self.y_mean_)[side]
        if self.kernel == "precomputed":
            rows = rows - Z.mean(axis=1, keepdims=True) + (self.x_mean_, self.y_mean_)[side].mean()
        return np.asarray(rows @ (self.x_rotations_, self.y_rotations_)[side])

    def evaluate(self, X_test: Any, Y_test: Any, X_pairs: Any = None, Y_pairs: Any = None) -> Evaluation:
        """Correlation of the projections on true pairs: the one place where pairs are accepted.

        Parameters
        ----------
        X_test, Y_test : array-like, shape (m, p), (m, q)
            True pairs, in the same order, best of rows that were not fitted.
        X_pairs, Y_pairs : array-like, optional
            True pairs on which supervised CCA is fitted for comparison; by default it is cross-fitted on the test pairs
            (5 folds).

        Returns
        -------
        Evaluation
        """
        Z_x, Z_y = self.transform(X_test, Y_test)
        if len(Z_x) != len(Z_y):
            raise ValueError(f"X_test and Y_test have {len(Z_x)} and {len(Z_y)} rows; expected pairs")
        if (X_pairs is None) != (Y_pairs is None):
            raise ValueError("X_pairs and Y_pairs: expected both or neither")
        X, Y = self._features(X_test), self._features(Y_test)
        if X_pairs is not None:
            P, Q = self._features(X_pairs), self._features(Y_pairs)
            if len(P) != len(Q):
                raise ValueError(f"X_pairs and Y_pairs have {len(P)} and {len(Q)} rows; expected pairs")
            supervised = float(self._supervised(P, Q, X, Y).mean())
        else:
            folds = np.random.default_rng(0).permutation(len(X)) % 5
            parts = [self._supervised(X[folds != f], Y[folds != f], X[folds == f], Y[folds == f]) for f in range(5)]
            supervised = float(np.mean(parts))
        correlations = paired_correlations(Z_x, Z_y)
        mean = float(correlations.mean())
        return Evaluation(mean, correlations, supervised, mean / supervised if supervised else float("nan"))

    def _features(self, Z: Any) -> Array:
        Z = np.asarray(_plain(Z), dtype=np.float64).reshape(len(Z), -1)
        return Z - Z.mean(axis=1, keepdims=True) if self.kernel == "precomputed" else Z

    def _supervised(self, P: Array, Q: Array, X: Array, Y: Array) -> Array:
        """Correlations on X, Y of the same CCA fitted on the true pairs P, Q."""
        x, y = (Basis.of(Z, self.n_pca, standardize=self.standardize) for Z in (P, Q))
        cross = cross_covariance(x.coordinates(P), y.coordinates(Q), np.arange(len(P)))
        A, B = projections(x, y, cross, self.n_components, self.ridge)
        return paired_correlations((X - x.mean) @ A, (Y - y.mean) @ B)


def _centred(basis: Basis, Z: Array) -> Array:
    rows = Z - basis.mean
    return rows - Z.mean(axis=1, keepdims=True) + basis.mean.mean() if basis.kernel else rows


def _plain(Z: Any) -> Any:
    """A torch tensor as an array; anything else as it is."""
    return Z.detach().cpu().numpy() if hasattr(Z, "detach") else Z


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer) and random_state >= 0:
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _by_row_of_x(pairing: Pairing, order_x: Pairing, order_y: Pairing, way: int) -> Pairing:
    """A pairing of ordered rows, smaller view to larger, as the given row of Y for each given row of X."""
    found = np.full(len(order_x), -1)
    if way == 1:
        found[order_x] = order_y[pairing]
    else:
        found[order_x[pairing]] = order_y
    return found


def _soft(x: Array, y: Array, cross: Array, k: int) -> Array:
    """Sinkhorn plan in the canonical space of a cross-covariance."""
    U, rho, Vt = np.linalg.svd(cross, full_matrices=False)
    weight = np.sqrt(np.clip(rho[:k], 0, 0.99))
    return sinkhorn_plan(x @ U[:, :k] * weight, y @ Vt[:k].T * weight, EPSILON)


def _nearest(small: Array, large: Array, cross: Array) -> Pairing:
    """Row of the larger view for each row of the smaller one: the assignment of least distance in canonical space."""
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    U, rho, Vt = np.linalg.svd(cross, full_matrices=False)
    weight = np.sqrt(np.clip(rho, 0, 0.99))
    return np.asarray(linear_sum_assignment(cdist(small @ U * weight, large @ Vt.T * weight, "sqeuclidean"))[1])
