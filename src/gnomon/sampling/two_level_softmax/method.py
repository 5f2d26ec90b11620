"""Two-level softmax sampling with size and dispersion correction.

Notation: items v_i in clusters c of n_c members with mean mu_c; scores s_i = <u, v_i>. The exact mass of a cluster is

    log Z_c = log n_c + beta <u, mu_c> + psi_c,    psi_c = log mean_{i in c} exp(beta (s_i - <u, mu_c>)) >= 0

so choosing clusters by softmax(beta <u, mu_c>) (2LS) under-weights the large ones by n_c and the dispersed ones by
exp(psi_c). S-2LS adds log n_c, SD-2LS also the second cumulant beta^2/2 Var_c of psi_c. Inside a cluster all draw
exactly, so that every divergence over items is the divergence over clusters.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax, logsumexp
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from gnomon.sampling.two_level_softmax import dispersion as models
from gnomon.sampling.two_level_softmax import partition as groups

CORRECTIONS = ("none", "size", "size_dispersion", "exact")
CLUSTERINGS = ("kmeans", "spherical", "balanced")
FEW = 4  # queries up to which the compiled path is the faster one
TINY = np.finfo(np.float64).tiny
CHUNK = 2**24  # numbers in a (queries, clusters) or (queries, items) array at a time


class Divergence(NamedTuple):
    """How far the proposal q is from the exact softmax p, for each query (b,).

    ``kl`` is KL(p||q), ``kl_reverse`` KL(q||p), ``tv`` the total variation, ``chi2`` sum p^2/q - 1 (256 draws are worth
    256 / (1 + chi2) exact ones), and ``range`` the range over clusters of log Z_c - l_c, which bounds the first three.
    """

    kl: NDArray[np.float64]
    kl_reverse: NDArray[np.float64]
    tv: NDArray[np.float64]
    chi2: NDArray[np.float64]
    range: NDArray[np.float64]


class Bounds(NamedTuple):
    """What can be promised for each query (b,): R, the range of the log-errors, and the divergences that follow."""

    R: NDArray[np.float64]
    range: NDArray[np.float64]
    kl: NDArray[np.float64]
    tv: NDArray[np.float64]


class ClusterStatistics(NamedTuple):
    """Exact statistics of the scores inside each cluster, (b, K): log Z_c, mean, variance (divisor n_c), max - min."""

    log_z: NDArray[np.float64]
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    spread: NDArray[np.float64]


def kl_bound(log_error_range: ArrayLike) -> NDArray[np.float64]:
    """KL(P||Q) <= min(r, r^2/8) for the range r of the log-errors (Hoeffding's lemma)."""
    r = np.asarray(log_error_range, dtype=np.float64)
    return np.minimum(r, r**2 / 8)


def tv_bound(log_error_range: ArrayLike) -> NDArray[np.float64]:
    """TV(P, Q) <= tanh(r/4) for the range r of the log-errors."""
    return np.tanh(np.asarray(log_error_range, dtype=np.float64) / 4)


def two_level_logits(mean_scores: Any, sizes: Any, variance: Any = None, *, beta: float = 1.0,
                     correction: str = "size_dispersion") -> Any:  # fmt: skip
    r"""Logits l_c of the cluster draw, :math:`\beta \bar s_c + \log n_c + \tfrac{\beta^2}{2} D_c`.

    Parameters
    ----------
    mean_scores : array or tensor (..., K)
        <u, mu_c>, the mean score of each cluster.
    sizes : array or tensor (K,)
        Items n_c in each cluster.
    variance : array or tensor (..., K), optional
        D_c(u), variance of the scores inside the cluster; needed for "size_dispersion".
    beta : float
        Inverse temperature.
    correction : {"size_dispersion", "size", "none"}
        SD-2LS, S-2LS or 2LS.

    Returns
    -------
    array or tensor (..., K), as ``mean_scores``

    Raises
    ------
    ValueError
        For an unknown correction, or without a variance where it is needed.
    """
    if correction not in ("none", "size", "size_dispersion"):
        raise ValueError(f"correction: got {correction!r}; expected 'none', 'size' or 'size_dispersion'")
    if correction == "size_dispersion" and variance is None:
        raise ValueError("variance: 'size_dispersion' needs the variance of the scores inside each cluster")
    logits = beta * mean_scores
    if correction != "none":
        logits = logits + (sizes.log() if hasattr(sizes, "log") else np.log(sizes))
    if correction == "size_dispersion":
        logits = logits + (beta**2 / 2) * variance
    return logits


class TwoLevelSoftmax(BaseEstimator):
    """Draws from p(i|u) proportional to exp(beta <u, v_i>): a cluster first, then an item inside it.

    Parameters
    ----------
    correction : {"size_dispersion", "size", "none", "exact"}
        SD-2LS, S-2LS, 2LS, or the exact mass of every cluster (a reference, as slow as an exact softmax).
    dispersion : {"auto", "isotropic", "diagonal", "lowrank", "full", "calibrated", "offset"}
        Model of the variance of the scores inside a cluster, for "size_dispersion": the trace over d; the diagonal of
        the covariance; its ``rank`` leading directions; the exact variance (a reference, reads all items); a
        non-negative mix of the first two fitted by :meth:`fit_calibration`; or the mean of the exact log-error over
        the queries given there. "auto" is calibrated after :meth:`fit_calibration` and isotropic before.
    n_clusters : int, optional
        K, by default ceil(sqrt(n)).
    beta : float
        Inverse temperature, >= 0 and finite.
    clip : bool
        Cap the dispersion term at (2 beta ||u|| rho_c)^2 / 8 with the radius rho_c of the cluster, which the true
        log-error never exceeds.
    rank : int
        Directions kept by "lowrank".
    clustering : {"kmeans", "spherical", "balanced"}
        Used when ``fit`` gets no labels: k-means (faiss where installed, else scikit-learn), k-means on directions, or
        recursive bisection into clusters of equal size.
    copy : bool
        False keeps a view of V where its rows are grouped by label already (a memory map stays on disk).
    random_state : int, Generator or None
        Seeds the clustering and the draws.

    Attributes
    ----------
    n_clusters_ : int
    n_features_in_ : int
    partition_ : Partition
        Items, centroids, radii and variances.
    cluster_names_ : ndarray (K,)
        The label that each cluster was given.
    calibration_ : ndarray (2,), after ``fit_calibration``
        Weights (a1, a2) of the isotropic and the diagonal model.
    offset_ : ndarray (K,), after ``fit_calibration``
        Mean log-error of each cluster as a variance (2 psi / beta^2).

    Notes
    -----
    Paper: "Size- and Dispersion-Corrected Two-Level Softmax Sampling". Memory is the re-ordered items and K (2d + 2)
    numbers; a query costs O(K d + n_c d). Scores are computed in the dtype of V, everything after them in float64.

    Examples
    --------
    >>> import numpy as np
    >>> V = np.random.default_rng(0).normal(size=(1000, 16))
    >>> sampler = TwoLevelSoftmax(beta=0.5).fit(V)
    >>> ids, log_q = sampler.sample(V[:3], n_samples=5)
    >>> ids.shape, log_q.shape
    ((3, 5), (3, 5))
    """

    _factors: groups.Factors  # made when "lowrank" first needs them

    def __init__(self, correction: str = "size_dispersion", dispersion: str = "auto", n_clusters: int | None = None,
                 beta: float = 1.0, clip: bool = True, rank: int = 8, clustering: str = "kmeans", copy: bool = True,
                 random_state: Any = 0) -> None:  # fmt: skip
        self.correction = correction
        self.dispersion = dispersion
        self.n_clusters = n_clusters
        self.beta = beta
        self.clip = clip
        self.rank = rank
        self.clustering = clustering
        self.copy = copy
        self.random_state = random_state

    # --- fitting -----------------------------------------------------------------------------------------------------

    def fit(self, V: Any, labels: ArrayLike | None = None) -> TwoLevelSoftmax:
        """Group the items.

        Parameters
        ----------
        V : array or tensor (n, d)
            Item vectors; float32 stays float32.
        labels : array (n,), optional
            The cluster of each item: integers 0..K-1 with no gap, or any other sortable values. By default they are
            clustered.

        Raises
        ------
        ValueError
            For non-finite items or parameters, labels that do not fit, or more clusters than items.
        """
        self._check_parameters()
        V = validate_data(self, _numpy(V), dtype=[np.float64, np.float32], ensure_all_finite=False)
        _check_finite(V, "V")
        n = len(V)
        self._rng = np.random.default_rng(self.random_state)
        if labels is None:
            K = int(np.ceil(np.sqrt(n))) if self.n_clusters is None else self.n_clusters
            if not 1 <= K <= n:
                raise ValueError(f"n_clusters: got {K}; expected 1..{n}, the number of items")
            found = groups.cluster(V, K, self.clustering, self._rng)
            names = np.arange(found.max() + 1)
        else:
            found, names = groups.check_labels(_numpy(labels), n)
        self.partition_ = groups.group(V, found, self.copy)
        self.cluster_names_ = names
        self._next_id = n
        for name in ("calibration_", "offset_", "_calibrated_at", "_factors"):
            self.__dict__.pop(name, None)
        return self

    def fit_calibration(self, U_sample: Any) -> TwoLevelSoftmax:
        """Fit the models "calibrated" and "offset" to the exact log-errors psi_c on a sample of queries, O(n) each.

        (a1, a2) >= 0 minimise the squares of psi_c - beta^2/2 (a1 isotropic + a2 diagonal) over all clusters and
        queries (``scipy.optimize.nnls``).
        """
        from scipy.optimize import nnls

        U = self._queries(U_sample, "U_sample")
        exact = self.cluster_statistics(U)
        psi = exact.log_z - np.log(self.partition_.sizes) - self.beta * exact.mean
        with np.errstate(over="ignore"):  # where beta is so small that psi is lost in rounding, its limit
            variance = np.where(self.beta * exact.spread < 1e-6, exact.variance, psi / max(self.beta**2 / 2, TINY))
        terms = [models.isotropic(U, self.partition_), models.diagonal(U, self.partition_)]
        if self.clip:
            terms = [np.minimum(t, models.ceiling(U, self.partition_)) for t in terms]
        self.calibration_ = nnls(np.stack([t.ravel() for t in terms], 1), variance.ravel())[0]
        self.offset_ = variance.mean(0)
        self._calibrated_at = self.beta
        return self

    # --- changes -----------------------------------------------------------------------------------------------------

    def add(self, V_new: Any, labels: ArrayLike | None = None) -> NDArray[np.int64]:
        """Add items (m, d) to the nearest centroid, or to the clusters that ``labels`` (m,) name; return their ids."""
        V, clusters = self._newcomers(V_new, labels)
        ids = np.arange(self._next_id, self._next_id + len(V))
        self._change(np.empty(0, dtype=np.int64), V, ids, clusters)
        self._next_id += len(V)
        return ids

    def remove(self, ids: ArrayLike) -> None:
        """Remove items; a cluster that loses its last one is dropped. Ids are never used again.

        Raises
        ------
        ValueError
            For unknown or repeated ids, or when no item would be left.
        """
        rows = self._rows(ids, unique=True)
        if len(rows) == len(self.partition_.ids):
            raise ValueError(f"ids: these are all {len(rows)} items; at least one must be left")
        d = self.n_features_in_
        self._change(rows, np.empty((0, d), self.partition_.items.dtype), np.empty(0, np.int64), np.empty(0, np.int64))

    def partial_update(self, ids: ArrayLike, new_vectors: Any) -> TwoLevelSoftmax:
        """Give items new vectors (m, d); each goes to the nearest centroid and keeps its id."""
        rows = self._rows(ids, unique=True)
        V, clusters = self._newcomers(new_vectors, None)
        if len(V) != len(rows):
            raise ValueError(f"new_vectors: expected {len(rows)} rows, one for each id, got {len(V)}")
        self._change(rows, V, self.partition_.ids[rows], clusters)
        return self

    def _newcomers(self, V: Any, labels: ArrayLike | None) -> tuple[NDArray, NDArray[np.int64]]:
        known = self._fitted()
        V = self._queries(V, "V_new")
        if labels is None:
            return V, groups.nearest(V, known.centroids, self.clustering == "spherical")
        given = np.asarray(_numpy(labels))
        if given.shape != (len(V),):
            raise ValueError(f"labels: expected shape ({len(V)},), got {given.shape}")
        strange = ~np.isin(given, self.cluster_names_)
        if strange.any():
            raise ValueError(f"labels: no cluster bears {sorted(set(given[strange].tolist()))[:20]}")
        order = np.argsort(self.cluster_names_)
        return V, order[np.searchsorted(self.cluster_names_, given, sorter=order)]

    def _change(self, gone: NDArray[np.int64], V: NDArray, ids: NDArray[np.int64],
                clusters: NDArray[np.int64]) -> None:  # fmt: skip
        """Take rows away, put items in, and describe the clusters that this touches anew."""
        old = self.partition_
        labels = old.row_labels
        touched = np.zeros(len(old.radii), dtype=bool)
        touched[labels[gone]] = touched[clusters] = True
        stay = np.ones(len(old.ids), dtype=bool)
        stay[gone] = False
        self.partition_, kept = groups.regroup(
            old, np.concatenate([old.items[stay], V]), np.concatenate([old.ids[stay], ids]),
            np.concatenate([labels[stay], clusters]), touched)  # fmt: skip
        self.cluster_names_ = self.cluster_names_[kept]
        if hasattr(self, "_factors"):
            self._factors = groups.factors(
                self.partition_, self.rank, self._factors, kept, np.flatnonzero(touched[kept])
            )
        if hasattr(self, "calibration_"):
            self.offset_ = self.offset_[kept]
            warnings.warn("the calibration is that of the items before this change; fit_calibration renews it",
                          UserWarning, stacklevel=3)  # fmt: skip

    # --- the law of the draws ----------------------------------------------------------------------------------------

    def cluster_log_prob(self, U: Any) -> Any:
        """log Q(c|u) of the cluster draw, (b, K)."""
        return _like(log_softmax(self._logits(self._queries(U)), axis=1), U)

    def log_prob(self, U: Any, ids: ArrayLike | None = None) -> Any:
        """log q(i|u) of one draw, exact: (b, m) for ids (m,) or (b, m), or (b, n) for all items in order of their ids.

        Reads only the clusters that the ids lie in.
        """
        Q, known = self._queries(U), self._fitted()
        log_q = log_softmax(self._logits(Q), axis=1)
        if ids is None:
            out = np.empty((len(Q), len(known.ids)))
            for c, block in enumerate(known):
                scores = self._scores(Q, block)
                out[:, known.offsets[c] : known.offsets[c + 1]] = log_q[:, [c]] + log_softmax(scores, axis=1)
            return _like(out[:, np.argsort(known.ids, kind="stable")], U)
        rows = self._rows(ids)
        if rows.ndim == 2 and len(rows) != len(Q):
            raise ValueError(f"ids: expected one row for each of {len(Q)} queries, got shape {rows.shape}")
        rows = np.broadcast_to(rows, (len(Q), rows.shape[-1]))
        query = np.repeat(np.arange(len(Q)), rows.shape[1])
        found = self._item_log_prob(Q, log_q, query, rows.ravel())
        return _like(found.reshape(rows.shape), U)

    def cluster_statistics(self, U: Any) -> ClusterStatistics:
        """Exact log Z_c, mean, variance and range of the scores in each cluster, (b, K) each; reads all items."""
        Q, known = self._queries(U), self._fitted()
        out = ClusterStatistics(*(np.empty((len(Q), len(known.radii))) for _ in range(4)))
        for c, block in enumerate(known):
            for at in _chunks(len(Q), len(block)):
                scores = self._scores(Q[at], block, 1.0)
                out.log_z[at, c] = logsumexp(self.beta * scores, axis=1)
                out.mean[at, c] = mean = scores.mean(1)
                out.variance[at, c] = np.square(scores - mean[:, None]).mean(1)
                out.spread[at, c] = scores.max(1) - scores.min(1)
        return out

    def divergence(self, U: Any) -> Divergence:
        """Exact KL, TV and chi2 between the exact softmax and the proposal, for each query; reads all items."""
        Q = self._queries(U)
        log_z = self.cluster_statistics(Q).log_z
        return cluster_divergence(log_z, self._logits(Q, log_z))

    def bounds(self, U: Any, exact: bool = True) -> Bounds:
        """What Hoeffding's lemma promises for each query.

        The log-error of a cluster is its psi_c in [0, R_c^2/8], plus what the correction leaves out, so that its range
        over clusters is known without psi_c: R^2/8 for S-2LS and at most log(max n_c / min n_c) + R^2/8 for 2LS. With
        the exact variance (dispersion "full") it is at most R^3 / (18 sqrt(3)) as well.

        Parameters
        ----------
        exact : bool
            True takes R_c = beta (max - min of the scores in c), which reads all items; False R_c = 2 beta ||u|| rho_c
            from the stored radii, in O(K d).
        """
        Q, known = self._queries(U), self._fitted()
        if exact:
            spread = self.beta * self.cluster_statistics(Q).spread
        else:
            spread = 2 * self.beta * np.sqrt(models.ceiling(Q, known))
        R = spread.max(1)
        if self.correction == "exact":
            reach = np.zeros(len(Q))
        else:
            ends = self.beta * self._scores(Q, known.centroids, 1.0) + np.log(known.sizes) - self._logits(Q)
            reach = (ends + spread**2 / 8).max(1) - ends.min(1)
            if self.correction == "size_dispersion" and self._model() == "full":
                reach = np.minimum(reach, R**3 / (18 * np.sqrt(3)))
        return Bounds(R, reach, kl_bound(reach), tv_bound(reach))

    def effective_ranks(self) -> NDArray[np.float64]:
        """tr(Sigma_c)^2 / tr(Sigma_c^2) of each cluster: how far from d, so far is the isotropic model from right."""
        return groups.effective_ranks(self._fitted())

    def _model(self) -> str:
        if self.dispersion != "auto":
            return self.dispersion
        return "calibrated" if hasattr(self, "calibration_") else "isotropic"

    def _variance(self, U: NDArray) -> NDArray[np.float64]:
        """D_c(u), (b, K)."""
        known, model = self._fitted(), self._model()
        if model == "isotropic":
            return models.isotropic(U, known)
        if model == "diagonal":
            return models.diagonal(U, known)
        if model == "full":
            return self.cluster_statistics(U).variance
        if model == "lowrank":
            if not hasattr(self, "_factors"):
                self._factors = groups.factors(known, self.rank)
            return models.lowrank(U, known, self._factors)
        if not hasattr(self, "calibration_"):
            raise NotFittedError(f"dispersion={model!r} needs fit_calibration(U_sample) first")
        if self.beta != self._calibrated_at:
            raise ValueError(f"beta: calibrated at {self._calibrated_at}, now {self.beta}; call fit_calibration again")
        if model == "offset":
            found = np.broadcast_to(self.offset_, (len(U), len(self.offset_)))
        else:
            a, b = self.calibration_
            found = a * models.isotropic(U, known) + b * models.diagonal(U, known)
        return np.minimum(found, models.ceiling(U, known)) if self.clip else found

    def _logits(self, U: NDArray, log_z: NDArray | None = None) -> NDArray[np.float64]:
        """l_c, (b, K); ``log_z`` where it is known already."""
        if self.correction == "exact":
            return self.cluster_statistics(U).log_z if log_z is None else log_z
        known = self._fitted()
        variance = self._variance(U) if self.correction == "size_dispersion" else None
        return two_level_logits(self._scores(U, known.centroids, 1.0), known.sizes, variance, beta=self.beta,
                                correction=self.correction)  # fmt: skip

    def _scores(self, U: NDArray, V: NDArray, beta: float | None = None) -> NDArray[np.float64]:
        """beta <u, v> in float64."""
        return (self.beta if beta is None else beta) * (U @ V.T).astype(np.float64)

    # --- drawing -----------------------------------------------------------------------------------------------------

    def sample(self, U: Any, n_samples: int = 1, replace: bool = True, corrected: bool = False, steps: int = 20,
               random_state: Any = None) -> tuple[Any, Any]:  # fmt: skip
        """Draw items for each query.

        Parameters
        ----------
        U : array or tensor (b, d)
            Queries.
        n_samples : int
            Draws m for each query.
        replace : bool
            False gives m different items, in the order of successive draws from q (the law of Gumbel top-m).
        corrected : bool
            Run ``steps`` of independence Metropolis-Hastings over the clusters, each draw a chain of its own: the
            exact softmax is invariant, and the bias falls by a factor 1 - 1/max(P/Q) or better a step.
        steps : int
            Proposals of a chain.
        random_state : int, Generator or None
            None goes on with the generator that ``fit`` seeded.

        Returns
        -------
        ids : (b, m) int64
        log_q : (b, m) float64
            log q(i|u) of a single draw of the proposal, in all three modes.

        Raises
        ------
        ValueError
            For queries that are not finite or of another width, or more draws without replacement than items.
        NotFittedError
            Before ``fit``, or before ``fit_calibration`` where the dispersion needs it.
        """
        Q, known = self._queries(U), self._fitted()
        n = len(known.ids)
        if n_samples < 1 or steps < 0:
            raise ValueError(f"n_samples, steps: got {n_samples}, {steps}; expected at least 1 and 0")
        if not replace and corrected:
            raise ValueError("corrected: chains draw with replacement; give replace=True")
        if not replace and n_samples > n:
            raise ValueError(f"n_samples: got {n_samples} without replacement from {n} items")
        rng = self._rng if random_state is None else np.random.default_rng(random_state)
        rows = np.empty((len(Q), n_samples), dtype=np.int64)
        log_q = np.empty((len(Q), n_samples))
        for at in _chunks(len(Q), len(known.radii) + n_samples * (steps + 1 if corrected else 1)):
            if corrected:
                rows[at], log_q[at] = self._chains(Q[at], n_samples, rng, steps)
            elif not replace:
                rows[at], log_q[at] = self._different(Q[at], n_samples, rng)
            else:
                draw = self._draw_singly if len(Q) <= FEW else self._draw_grouped
                rows[at], log_q[at] = draw(Q[at], *rng.random((2, at.stop - at.start, n_samples)))
        return _like(known.ids[rows], U), _like(log_q, U)

    def _draw_singly(self, U: NDArray, first: NDArray, second: NDArray) -> tuple[NDArray, NDArray]:
        """As :meth:`_draw_grouped`, compiled, one query after the other."""
        from gnomon.sampling.two_level_softmax.kernels import cheap_logits, draw

        known, beta = self.partition_, float(self.beta)
        isotropic = self.correction == "size_dispersion" and self._model() == "isotropic"
        cheap = isotropic or self.correction in ("none", "size")
        bias, half = known.log_sizes * (self.correction != "none"), beta**2 / 2 * isotropic
        rows, log_q = np.empty(first.shape, dtype=np.int64), np.empty(first.shape)
        for b, u in enumerate(U):
            logits = (cheap_logits(known.centroids, u, beta, bias, half, known.mean_variances) if cheap
                      else self._logits(U[b : b + 1])[0])  # fmt: skip
            draw(known.items, known.offsets, u, beta, logits, first[b], second[b], rows[b], log_q[b])
        return rows, log_q

    def _draw_grouped(self, U: NDArray, first: NDArray, second: NDArray) -> tuple[NDArray, NDArray]:
        """Inverse distribution functions at two uniforms (b, m) a draw; queries in one cluster share a product."""
        log_q = log_softmax(self._logits(U), axis=1)
        clusters = _inverse_cdf(log_q, first)
        query = np.repeat(np.arange(len(U)), first.shape[1])
        rows, found = self._inside(U, query, clusters.ravel(), second.ravel())
        return rows.reshape(first.shape), np.take_along_axis(log_q, clusters, 1) + found.reshape(first.shape)

    def _inside(self, U: NDArray, query: NDArray, clusters: NDArray, uniform: NDArray) -> tuple[NDArray, NDArray]:
        """Draw an item inside the cluster of each (query, cluster) pair; its row and its log-probability there."""
        rows, log_p = np.empty(len(query), dtype=np.int64), np.empty(len(query))
        for c, pairs in _by_value(clusters):
            asking, which = np.unique(query[pairs], return_inverse=True)
            start, stop = self.partition_.offsets[c : c + 2]
            found = log_softmax(self._scores(U[asking], self.partition_.items[start:stop]), axis=1)
            at = _inverse_cdf(found, uniform[pairs], which)
            rows[pairs], log_p[pairs] = start + at, found[which, at]
        return rows, log_p

    def _item_log_prob(self, U: NDArray, log_q: NDArray, query: NDArray, rows: NDArray) -> NDArray:
        """log q of (query, row) pairs."""
        out = np.empty(len(rows))
        clusters = np.searchsorted(self.partition_.offsets, rows, side="right") - 1
        for c, pairs in _by_value(clusters):
            asking, which = np.unique(query[pairs], return_inverse=True)
            start, stop = self.partition_.offsets[c : c + 2]
            found = log_softmax(self._scores(U[asking], self.partition_.items[start:stop]), axis=1)
            out[pairs] = log_q[query[pairs], c] + found[which, rows[pairs] - start]
        return out

    def _different(self, U: NDArray, m: int, rng: np.random.Generator) -> tuple[NDArray, NDArray]:
        """Gumbel top-m over items, top down: a cluster's largest perturbed log-probability is one Gumbel variable.

        Clusters are opened in the order of that variable, their items' own conditioned on it (in logarithms, so that
        no probability underflows), until no closed cluster can hold one of the m largest.
        """
        known, log_q = self.partition_, log_softmax(self._logits(U), axis=1)
        rows, out = np.empty((len(U), m), dtype=np.int64), np.empty((len(U), m))
        for b, u in enumerate(U):
            top = log_q[b] + rng.gumbel(size=log_q.shape[1])
            best: NDArray = np.empty((3, 0))  # perturbed, row, log q
            for c in np.argsort(-top):
                if best.shape[1] == m and top[c] < best[0, -1]:
                    break
                start, stop = known.offsets[c : c + 2]
                log_p = log_q[b, c] + log_softmax(self._scores(u[None], known.items[start:stop])[0])
                free = log_p + rng.gumbel(size=len(log_p))
                with np.errstate(divide="ignore"):  # log 0 at the largest, which becomes top[c] itself
                    v = top[c] - free + np.log(-np.expm1(free - free.max()))
                bound = top[c] - np.maximum(v, 0) - np.log1p(np.exp(-np.abs(v)))
                best = np.concatenate(
                    [best, np.stack([bound, np.arange(start, stop, dtype=np.float64), log_p])], axis=1
                )
                best = best[:, np.argsort(-best[0])[:m]]
            rows[b], out[b] = best[1], best[2]
        return rows, out

    def _chains(self, U: NDArray, m: int, rng: np.random.Generator, steps: int) -> tuple[NDArray, NDArray]:
        """Independence Metropolis-Hastings over clusters, ratio exp(delta' - delta), delta_c = log Z_c - l_c."""
        logits = self._logits(U)
        log_q = log_softmax(logits, axis=1)
        first = rng.random((len(U), m * (steps + 1)))
        proposals = _inverse_cdf(log_q, first).reshape(len(U), m, steps + 1)
        drawn = np.zeros(log_q.shape, dtype=bool)
        np.put_along_axis(drawn, proposals.reshape(len(U), -1), True, 1)
        delta = np.full(log_q.shape, np.nan)  # only of the clusters drawn
        for c in np.flatnonzero(drawn.any(0)):
            asking = np.flatnonzero(drawn[:, c])
            start, stop = self.partition_.offsets[c : c + 2]
            scores = self._scores(U[asking], self.partition_.items[start:stop])
            delta[asking, c] = logsumexp(scores, axis=1) - logits[asking, c]
        errors = np.take_along_axis(delta, proposals.reshape(len(U), -1), 1).reshape(proposals.shape)
        state, error = proposals[..., 0], errors[..., 0]
        for t in range(1, steps + 1):
            accept = -rng.exponential(size=state.shape) < errors[..., t] - error
            state, error = np.where(accept, proposals[..., t], state), np.where(accept, errors[..., t], error)
        query = np.repeat(np.arange(len(U)), m)
        rows, found = self._inside(U, query, state.ravel(), rng.random(len(query)))
        return rows.reshape(state.shape), np.take_along_axis(log_q, state, 1) + found.reshape(state.shape)

    # --- keeping -----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Keep the fitted sampler as npz (arrays and JSON; no pickle)."""
        known = self._fitted()
        parameters = {k: v if isinstance(v, str | int | float | bool | None) else None
                      for k, v in self.get_params().items()}  # fmt: skip
        more = {"next_id": self._next_id, "calibrated_at": getattr(self, "_calibrated_at", None)}
        arrays: dict[str, Any] = {"items": known.items, "ids": known.ids, "offsets": known.offsets, "centroids": known.centroids,
                  "radii": known.radii, "variances": known.variances, "names": self.cluster_names_}  # fmt: skip
        if hasattr(self, "calibration_"):
            arrays |= {"calibration": self.calibration_, "offset": self.offset_}
        with open(path, "wb") as file:
            np.savez(file, parameters=np.array(json.dumps(parameters)), more=np.array(json.dumps(more)), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> TwoLevelSoftmax:
        """A sampler kept by :meth:`save`."""
        with np.load(path, allow_pickle=False) as kept:
            found = cls(**json.loads(str(kept["parameters"])))
            more = json.loads(str(kept["more"]))
            names = ("items", "ids", "offsets", "centroids", "radii", "variances")
            found.partition_ = groups.Partition(*(kept[name] for name in names))
            found.cluster_names_ = kept["names"]
            if "calibration" in kept:
                found.calibration_, found.offset_ = kept["calibration"], kept["offset"]
                found._calibrated_at = more["calibrated_at"]
        found.n_features_in_ = found.partition_.items.shape[1]
        found._next_id = more["next_id"]
        found._rng = np.random.default_rng(found.random_state)
        return found

    # --- checks ------------------------------------------------------------------------------------------------------

    @property
    def n_clusters_(self) -> int:
        return len(self._fitted().radii)

    @property
    def ids_(self) -> NDArray[np.int64]:
        """The ids of all items, ascending."""
        return np.sort(self._fitted().ids)

    @property
    def labels_(self) -> NDArray[np.int64]:
        """The cluster of each item, in order of their ids."""
        known = self._fitted()
        return known.row_labels[np.argsort(known.ids, kind="stable")]

    def _fitted(self) -> groups.Partition:
        try:
            return self.partition_
        except AttributeError:
            raise NotFittedError("this TwoLevelSoftmax is not fitted yet; call fit(V) first") from None

    def _check_parameters(self) -> None:
        if self.correction not in CORRECTIONS:
            raise ValueError(f"correction: got {self.correction!r}; expected one of {', '.join(CORRECTIONS)}")
        if self.dispersion not in models.MODELS:
            raise ValueError(f"dispersion: got {self.dispersion!r}; expected one of {', '.join(models.MODELS)}")
        if self.clustering not in CLUSTERINGS:
            raise ValueError(f"clustering: got {self.clustering!r}; expected one of {', '.join(CLUSTERINGS)}")
        if not 0 <= self.beta < np.inf:
            raise ValueError(f"beta: got {self.beta}; expected a finite inverse temperature >= 0")
        if self.rank < 1:
            raise ValueError(f"rank: got {self.rank}; expected at least 1")

    def _queries(self, U: Any, name: str = "U") -> NDArray:
        known = self._fitted()
        if type(U) is np.ndarray and U.dtype == known.items.dtype:
            Q = U
        else:
            Q = np.asarray(_numpy(U))
            if Q.dtype.kind not in "fiub":
                raise ValueError(f"{name}: expected real numbers, got dtype {Q.dtype}")
            Q = Q.astype(known.items.dtype)
        if Q.ndim != 2 or Q.shape[1] != known.items.shape[1]:
            raise ValueError(f"{name}: expected shape (b, {known.items.shape[1]}) as the items', got {Q.shape}")
        _check_finite(Q, name)
        self._check_parameters()
        return np.ascontiguousarray(Q)

    def _rows(self, ids: Any, unique: bool = False) -> NDArray[np.int64]:
        """The rows of items given by id."""
        known = self._fitted()
        given = np.asarray(_numpy(ids))
        if given.dtype.kind not in "iu" or given.ndim not in (1, 2):
            raise ValueError(f"ids: expected integers of shape (m,) or (b, m), got {given.dtype} {given.shape}")
        inside = (given >= 0) & (given < len(known.row_of))
        rows = np.where(inside, known.row_of[np.where(inside, given, 0)], -1)
        if (rows < 0).any():
            raise ValueError(f"ids: no item bears {sorted(set(given[rows < 0].tolist()))[:20]}")
        if unique and (rows.ndim != 1 or len(np.unique(rows)) != len(rows)):
            raise ValueError("ids: expected shape (m,) without repeats")
        return rows


# --- pieces ----------------------------------------------------------------------------------------------------------


def cluster_divergence(log_z: NDArray, logits: NDArray) -> Divergence:
    """Divergences between P = softmax(log Z) and Q = softmax(l), both (b, K)."""
    log_p, log_q = log_softmax(log_z, axis=1), log_softmax(logits, axis=1)
    delta = log_z - logits
    p, q = np.exp(log_p), np.exp(log_q)
    with np.errstate(over="ignore"):  # chi2 is infinite where it exceeds a float
        chi2 = np.expm1(logsumexp(2 * log_p - log_q, axis=1))
    return Divergence(
        kl=np.maximum(np.sum(p * (log_p - log_q), axis=1), 0),
        kl_reverse=np.maximum(np.sum(q * (log_q - log_p), axis=1), 0),
        tv=np.abs(p - q).sum(1) / 2,
        chi2=np.maximum(chi2, 0),
        range=delta.max(1) - delta.min(1),
    )


def _inverse_cdf(log_p: NDArray, uniform: NDArray, row: NDArray | None = None) -> NDArray[np.int64]:
    """Invert the distributions log_p (b, k), in float64: ``uniform`` is (b, m), or (m,) with the ``row`` of each."""
    k = log_p.shape[1]
    cumulative = np.cumsum(np.exp(log_p), axis=1)
    cumulative /= cumulative[:, -1:]
    which = np.arange(len(log_p))[:, None] if row is None else row
    # one sorted array for all rows: row r lies in (r, r + 1]
    flat = (cumulative + np.arange(len(log_p))[:, None]).ravel()
    at = np.searchsorted(flat, (which + uniform).ravel(), side="right").reshape(uniform.shape) - which * k
    return np.clip(at, 0, k - 1)


def _by_value(values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each distinct value with the positions that hold it."""
    order = np.argsort(values, kind="stable")
    cuts = np.flatnonzero(np.diff(values[order])) + 1
    for positions in np.split(order, cuts):
        if len(positions):
            yield int(values[positions[0]]), positions


def _chunks(rows: int, width: int) -> Iterator[slice]:
    step = max(1, CHUNK // max(1, width))
    return (slice(at, min(at + step, rows)) for at in range(0, rows, step))


def _numpy(x: Any) -> Any:
    """A tensor as an array (half precision as float32); anything else as it is."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        return (x.float() if x.is_floating_point() and x.element_size() < 4 else x).numpy()
    return x


def _like(found: NDArray, given: Any) -> Any:
    """As a tensor on the same device where a tensor was given."""
    if hasattr(given, "detach"):
        import torch

        return torch.from_numpy(np.ascontiguousarray(found)).to(given.device)
    return found


def _check_finite(x: NDArray, name: str) -> None:
    """Name the first entry that is not finite, a chunk of rows at a time."""
    for at in _chunks(len(x), x.shape[1]):
        good = np.isfinite(x[at])
        if not good.all():
            i, j = np.argwhere(~good)[0]
            raise ValueError(f"{name}: contains NaN or infinity, first at [{at.start + int(i)}, {int(j)}]")
