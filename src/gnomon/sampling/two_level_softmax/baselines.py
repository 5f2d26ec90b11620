"""What two-level sampling is compared with. All share ``fit(V)``, ``sample(U, n_samples)`` and, where the law of the
draws has a closed form, ``log_prob(U)`` over all items.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax

from gnomon.sampling.two_level_softmax.method import _check_finite, _inverse_cdf, _like, _numpy


class _Baseline:
    """Keeps the items; ``beta`` is the inverse temperature."""

    def __init__(self, beta: float = 1.0, random_state: Any = 0) -> None:
        if not 0 <= beta < np.inf:
            raise ValueError(f"beta: got {beta}; expected a finite inverse temperature >= 0")
        self.beta = beta
        self.random_state = random_state

    def fit(self, V: Any) -> Any:
        self.items_ = np.ascontiguousarray(_numpy(V))
        _check_finite(self.items_, "V")
        self._rng = np.random.default_rng(self.random_state)
        return self

    def _queries(self, U: Any) -> NDArray:
        Q = np.ascontiguousarray(np.asarray(_numpy(U)), dtype=self.items_.dtype)
        if Q.ndim != 2 or Q.shape[1] != self.items_.shape[1]:
            raise ValueError(f"U: expected shape (b, {self.items_.shape[1]}) as the items', got {Q.shape}")
        _check_finite(Q, "U")
        return Q

    def log_prob(self, U: Any) -> NDArray[np.float64]:
        """log q(i|u) of one draw, (b, n)."""
        raise NotImplementedError

    def sample(self, U: Any, n_samples: int = 1) -> tuple[Any, Any]:
        """ids (b, m) and log q (b, m)."""
        log_q = self.log_prob(U)
        ids = _inverse_cdf(log_q, self._rng.random((len(log_q), n_samples)))
        return _like(ids, U), _like(np.take_along_axis(log_q, ids, 1), U)


class ExactSoftmax(_Baseline):
    """softmax(beta <u, v_i>) over all items."""

    def log_prob(self, U: Any) -> NDArray[np.float64]:
        return log_softmax(self.beta * (self._queries(U) @ self.items_.T).astype(np.float64), axis=1)


class Popularity(_Baseline):
    """Items in proportion to given counts, whatever the query (the unigram proposal)."""

    def __init__(self, counts: ArrayLike | None = None, beta: float = 1.0, random_state: Any = 0) -> None:
        super().__init__(beta, random_state)
        self.counts = counts

    def fit(self, V: Any) -> Popularity:
        super().fit(V)
        counts = np.ones(len(self.items_)) if self.counts is None else np.asarray(self.counts, dtype=np.float64)
        if counts.shape != (len(self.items_),) or not np.all(counts > 0) or not np.all(np.isfinite(counts)):
            raise ValueError(f"counts: expected {len(self.items_)} positive numbers, one for each item")
        self.log_share_ = np.log(counts / counts.sum())
        return self

    def log_prob(self, U: Any) -> NDArray[np.float64]:
        return np.broadcast_to(self.log_share_, (len(self._queries(U)), len(self.log_share_)))

    def sample(self, U: Any, n_samples: int = 1) -> tuple[Any, Any]:
        ids = _inverse_cdf(self.log_share_[None], self._rng.random((1, len(_numpy(U)) * n_samples)))
        ids = ids.reshape(-1, n_samples)
        return _like(ids, U), _like(self.log_share_[ids], U)


class Uniform(Popularity):
    """Every item alike."""

    def __init__(self, beta: float = 1.0, random_state: Any = 0) -> None:
        super().__init__(None, beta, random_state)


class MidxUniform(_Baseline):
    """Inverted multi-index, uniform inside the cell (arXiv 2501.08563).

    Both halves of the vectors are quantised by k-means; an item is drawn with the logits of its two codewords, so that
    all items of a cell (k1, k2) are alike. ``codewords`` for each half.
    """

    def __init__(self, codewords: int = 32, beta: float = 1.0, random_state: Any = 0) -> None:
        super().__init__(beta, random_state)
        self.codewords = codewords

    def fit(self, V: Any) -> MidxUniform:
        from gnomon.sampling.two_level_softmax.partition import _kmeans, nearest

        super().fit(V)
        self._half = self.items_.shape[1] // 2
        if self._half < 1:
            raise ValueError(f"V: two half-vectors need at least 2 dimensions, got {self.items_.shape[1]}")
        k = min(self.codewords, len(self.items_))
        halves = [np.ascontiguousarray(h) for h in (self.items_[:, : self._half], self.items_[:, self._half :])]
        self.codebooks_ = [_kmeans(h, k, False, self._rng) for h in halves]
        first, second = (nearest(h, c) for h, c in zip(halves, self.codebooks_, strict=True))
        self.cells_ = first * len(self.codebooks_[1]) + second
        self._order = np.argsort(self.cells_, kind="stable")
        self._sizes = np.bincount(self.cells_, minlength=len(self.codebooks_[0]) * len(self.codebooks_[1]))
        self._starts = np.cumsum(self._sizes) - self._sizes
        return self

    def _cell_logits(self, U: Any) -> NDArray[np.float64]:
        Q = self._queries(U)
        first, second = Q[:, : self._half] @ self.codebooks_[0].T, Q[:, self._half :] @ self.codebooks_[1].T
        return self.beta * (first[:, :, None] + second[:, None, :]).reshape(len(Q), -1).astype(np.float64)

    def _cell_log_prob(self, U: Any) -> NDArray[np.float64]:
        with np.errstate(divide="ignore"):  # empty cells
            return log_softmax(self._cell_logits(U) + np.log(self._sizes), axis=1)

    def log_prob(self, U: Any) -> NDArray[np.float64]:
        return self._cell_log_prob(U)[:, self.cells_] - np.log(self._sizes[self.cells_])

    def sample(self, U: Any, n_samples: int = 1) -> tuple[Any, Any]:
        log_q = self._cell_log_prob(U)
        cells = _inverse_cdf(log_q, self._rng.random((len(log_q), n_samples)))
        inside = (self._rng.random(cells.shape) * self._sizes[cells]).astype(np.int64)
        ids = self._order[self._starts[cells] + inside]
        return _like(ids, U), _like(np.take_along_axis(log_q, cells, 1) - np.log(self._sizes[cells]), U)


class VonMisesFisher(_Baseline):
    """Draw a direction from von Mises-Fisher(u, kappa = beta) and take its nearest item (arXiv 2507.00518).

    For unit vectors. The probability of an item, the mass of its Voronoi cell, has no closed form: log q is NaN.
    """

    def fit(self, V: Any) -> VonMisesFisher:
        super().fit(V)
        self._unit(self.items_, "V")
        return self

    @staticmethod
    def _unit(X: NDArray, name: str) -> None:
        norms = np.linalg.norm(X, axis=1)
        worst = int(np.argmax(np.abs(norms - 1)))
        if abs(norms[worst] - 1) > 1e-4:
            raise ValueError(f"{name}: expected unit vectors, row {worst} has norm {norms[worst]:.6g}")

    def sample(self, U: Any, n_samples: int = 1) -> tuple[Any, Any]:
        from scipy.stats import vonmises_fisher

        Q = self._queries(U)
        self._unit(Q, "U")
        ids = np.empty((len(Q), n_samples), dtype=np.int64)
        step = max(1, 2**22 // len(self.items_))
        for b, u in enumerate(Q.astype(np.float64)):
            law = vonmises_fisher(u / np.linalg.norm(u), max(self.beta, 1e-8))
            for at in range(0, n_samples, step):
                m = min(step, n_samples - at)
                drawn = law.rvs(m, random_state=self._rng).reshape(m, -1)
                ids[b, at : at + m] = np.argmax(drawn @ self.items_.T, axis=1)
        return _like(ids, U), _like(np.full(ids.shape, np.nan), U)


class TopSoftmax(_Baseline):
    """Softmax over the ``top`` best items that a faiss index finds; the others are never drawn.

    ``index`` "ivf" searches an inverted file (approximate), "flat" all items. ``gumbel`` draws by the Gumbel-max trick
    over the shortlist instead of by inverse CDF: the same law.
    """

    def __init__(self, top: int = 256, index: str = "ivf", gumbel: bool = False, beta: float = 1.0,
                 random_state: Any = 0) -> None:  # fmt: skip
        super().__init__(beta, random_state)
        if index not in ("ivf", "flat"):
            raise ValueError(f"index: got {index!r}; expected 'ivf' or 'flat'")
        self.top, self.index, self.gumbel = top, index, gumbel

    def fit(self, V: Any) -> TopSoftmax:
        import faiss

        super().fit(V)
        n, d = self.items_.shape
        items = np.ascontiguousarray(self.items_, dtype=np.float32)
        self.index_: Any = faiss.IndexFlatIP(d)
        if self.index == "ivf":
            K = int(np.ceil(np.sqrt(n)))
            self.index_ = faiss.IndexIVFFlat(self.index_, d, K, faiss.METRIC_INNER_PRODUCT)
            self.index_.cp.min_points_per_centroid = 1
            self.index_.nprobe = max(1, K // 10)
            self.index_.train(items)
        self.index_.add(items)
        return self

    def shortlist(self, U: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The ids (b, top) that the index finds and their log-probabilities (-inf where it found fewer)."""
        Q = self._queries(U)
        scores, ids = self.index_.search(np.ascontiguousarray(Q, dtype=np.float32), min(self.top, len(self.items_)))
        return ids, log_softmax(np.where(ids < 0, -np.inf, self.beta * scores.astype(np.float64)), axis=1)

    def log_prob(self, U: Any) -> NDArray[np.float64]:
        ids, log_q = self.shortlist(U)
        out = np.full((len(ids), len(self.items_)), -np.inf)
        query, at = np.nonzero(ids >= 0)
        out[query, ids[query, at]] = log_q[query, at]
        return out

    def sample(self, U: Any, n_samples: int = 1) -> tuple[Any, Any]:
        ids, log_q = self.shortlist(U)
        if self.gumbel:
            at = np.empty((len(ids), n_samples), dtype=np.int64)
            for j in range(n_samples):
                at[:, j] = np.argmax(log_q + self._rng.gumbel(size=log_q.shape), axis=1)
        else:
            at = _inverse_cdf(log_q, self._rng.random((len(ids), n_samples)))
        return _like(np.take_along_axis(ids, at, 1), U), _like(np.take_along_axis(log_q, at, 1), U)
