"""One-sided Chamfer distances between samples: fidelity, coverage, their scale, intervals and attribution."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from gnomon.geometry.chamfer import baselines
from gnomon.geometry.chamfer.features import FeatureExtractor
from gnomon.geometry.neighbors import TREE_DIMENSIONS, check_rows, cross_neighbors, is_tensor, knn, same_width

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

BLOCKS = 20  # of the delete-block jackknife
SPARE = 6  # neighbours kept beyond k: a random twentieth of the rows holds more than these once in 20^7
REPEATS = 5  # subsamples when sizes are matched
PERMUTATIONS = 999


# --- the functional form ---------------------------------------------------------------------------------------------


def chamfer(R: Any, G: Any, k: int = 1, *, power: int = 1, parts: bool = False) -> Any:
    r"""Chamfer distance between two samples, or its two one-sided parts.

    .. math:: F = \frac1m \sum_j NN_k(g_j, R), \qquad C = \frac1n \sum_i NN_k(r_i, G),

    :math:`NN_k(a, B)` the mean distance from a to its k nearest points of B.

    Parameters
    ----------
    R, G : array or torch.Tensor, shape (n, D), (m, D)
        Real and generated. If one is a tensor the result is a tensor, differentiable in both (neighbours are held
        fixed, which is exact away from ties), so that it can serve as a loss; computed where R is.
    k : int
        Neighbours averaged over, at most min(n, m).
    power : {1, 2}
        2 averages squared distances.
    parts : bool
        Return the pair (F, C) instead of the sum.

    Returns
    -------
    float or torch scalar, or a pair of them

    Raises
    ------
    ValueError
        Shapes that do not match, empty sets, NaN or infinity, k or power out of range.
    """
    R, G = check_rows(R, "R"), check_rows(G, "G")
    same_width(R, G, "R", "G")
    _check_power(power)
    if not 1 <= k <= min(len(R), len(G)):
        raise ValueError(f"k: got {k}; expected 1 to {min(len(R), len(G))}, the rows of the smaller set")
    if is_tensor(R) or is_tensor(G):
        F, C = _tensor_parts(R, G, k, power)
    else:
        to_real, to_generated = _both_ways(R, G, k)
        F, C = (float(_mean_power(side[0], power).mean()) for side in (to_real, to_generated))
    return (F, C) if parts else F + C


def _tensor_parts(R: Any, G: Any, k: int, power: int) -> tuple[Any, Any]:
    import torch

    like = R if is_tensor(R) else G
    R, G = (torch.as_tensor(A).to(like.device) for A in (R, G))
    found = cross_neighbors(R, G, k)

    def side(queries: Any, refs: Any, indices: Any) -> Any:
        nearest = refs[torch.from_numpy(indices).to(refs.device)]
        difference = queries[:, None, :] - nearest
        return (difference.square().sum(-1) if power == 2 else torch.linalg.vector_norm(difference, dim=-1)).mean()

    return side(G, R, found.y_indices), side(R, G, found.x_indices)


def _both_ways(R: Any, G: Any, k: int) -> tuple[tuple[Array, Any], tuple[Array, Any]]:
    """(distances, indices) of G's neighbours in R and of R's neighbours in G."""
    if R.shape[1] <= TREE_DIMENSIONS:
        return knn(G, R, min(k, len(R))), knn(R, G, min(k, len(G)))
    found = cross_neighbors(R, G, min(k, len(G)), min(k, len(R)))
    return (found.y_distances, found.y_indices), (found.x_distances, found.x_indices)


def _mean_power(distances: Array, power: int) -> Array:
    return (distances**power).mean(axis=1)


def _check_power(power: int) -> None:
    if power not in (1, 2):
        raise ValueError(f"power: got {power!r}; expected 1 (distances) or 2 (squared distances)")


# --- lists of neighbours and what deleting rows does to them ---------------------------------------------------------


@dataclass(frozen=True)
class _Neighbours:
    """k + spare nearest rows of set ``refs`` for each row of set ``queries``."""

    queries: str
    refs: str
    distances: Array
    indices: NDArray[np.int64]
    k: int
    power: int

    @property
    def values(self) -> Array:
        """NN_k of each query."""
        return _mean_power(self.distances[:, : self.k], self.power)

    def without(self, name: str, drop: NDArray[np.bool_]) -> Array:
        """NN_k of the queries when the rows ``drop`` of the set ``name`` are deleted."""
        values = self._thinned(drop) if name == self.refs else self.values
        return values[~drop] if name == self.queries else values

    def _thinned(self, drop: NDArray[np.bool_]) -> Array:
        gone = drop[self.indices]
        # those that stay come first, in order; where too few stay, deleted ones fill up (see SPARE)
        order = np.argsort(gone, axis=1, kind="stable")[:, : self.k]
        return _mean_power(np.take_along_axis(self.distances, order, 1), self.power)

    def enough(self, drop: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether k neighbours of each query stay."""
        return (~drop[self.indices]).sum(1) >= self.k


def _jackknife(
    top: _Neighbours, bottom: _Neighbours, sizes: dict[str, int], rng: np.random.Generator
) -> tuple[float, float]:
    """Standard errors of mean(top) and mean(top) / mean(bottom): delete-block jackknife over every set that takes part."""
    variances = np.zeros(2)
    for name in sorted({s for side in (top, bottom) for s in (side.queries, side.refs)}):
        blocks = min(BLOCKS, sizes[name])
        label = rng.permutation(np.arange(sizes[name]) % blocks)
        means = np.array([[side.without(name, label == b).mean() for side in (top, bottom)] for b in range(blocks)])
        variances += (blocks - 1) * np.array([means[:, 0].var(), (means[:, 0] / means[:, 1]).var()])
    level, ratio = np.sqrt(variances)
    return float(level), float(ratio)


# --- the estimator ---------------------------------------------------------------------------------------------------


@dataclass
class ChamferReport:
    """Scores of one generated sample.

    Attributes
    ----------
    fidelity, coverage, chamfer : float
        F, C and their sum. They scale with features and sample sizes: compare ratios, not these, between papers.
    fidelity_ratio, coverage_ratio : float
        F / F0 and C / C0: 1 is as good as fresh real data, more is worse; a fidelity ratio well under 1 means copies.
    intervals : dict
        95 % intervals by name of the five numbers but ``chamfer``, from a delete-block jackknife over all sets.
    p_value : float
        Permutation test that generated and held-out rows are equally far from R (nan without a hold-out).
    fidelity_ratio_trimmed : float
        The fidelity ratio against R without its ``trim`` sparsest rows: what outliers in R cannot lower.
    fidelity_samples, coverage_samples : ndarray, shape (m,), (n,)
        NN_k of each generated and each real row: which generated ones are bad, which real ones are missed.
    fidelity_z, coverage_z : ndarray
        The same, standardised by the distribution over held-out real rows.
    nearest_real : ndarray of int, shape (m,)
        The real row nearest to each generated one.
    copy_ratio : float or None
        mean NN(G, T) / mean NN(V, T), T the training set, V the hold-out; less than 1 flags copying.
    hubness : float
        Skewness of how often each real row is a nearest neighbour of a generated one (high in high dimension).
    also : dict
        The older metrics asked for.
    n, m, size, k, power, features
        Rows of R and G, common size after matching, what was computed, on which features.
    """

    fidelity: float
    coverage: float
    fidelity_ratio: float
    coverage_ratio: float
    intervals: dict[str, tuple[float, float]]
    p_value: float
    fidelity_ratio_trimmed: float
    fidelity_samples: Array
    coverage_samples: Array
    fidelity_z: Array
    coverage_z: Array
    nearest_real: NDArray[np.int64]
    copy_ratio: float | None
    hubness: float
    n: int
    m: int
    size: int
    k: int
    power: int
    features: str
    also: dict[str, float] = field(default_factory=dict)

    @property
    def chamfer(self) -> float:
        return self.fidelity + self.coverage

    def table(self) -> pd.DataFrame:
        """The numbers with their intervals, one row each."""
        import pandas as pd

        rows = [
            (name, getattr(self, name), *self.intervals[name])
            for name in ("fidelity_ratio", "coverage_ratio", "fidelity", "coverage")
        ]
        more = {"fidelity_ratio_trimmed": self.fidelity_ratio_trimmed, "copy_ratio": self.copy_ratio, "p_value": self.p_value,
                "hubness": self.hubness, **self.also}  # fmt: skip
        rows += [(name, value, np.nan, np.nan) for name, value in more.items() if value is not None]
        return pd.DataFrame(rows, columns=["metric", "value", "low", "high"])

    def per_class(self, real: Any = None, generated: Any = None) -> pd.DataFrame:
        """Mean fidelity of each class of generated rows and mean coverage of each class of real rows.

        Parameters
        ----------
        real, generated : array-like, shape (n,), (m,), optional
            Labels of R's and G's rows.
        """
        import pandas as pd

        columns: dict[str, Any] = {}
        for name, labels, values in (
            ("coverage", real, self.coverage_samples),
            ("fidelity", generated, self.fidelity_samples),
        ):
            if labels is None:
                continue
            labels = np.asarray(labels)
            if labels.shape != values.shape:
                raise ValueError(f"labels: got shape {labels.shape} for {name}; expected {values.shape}")
            by = pd.Series(values).groupby(labels)
            columns |= {f"{name}_rows": by.size(), name: by.mean()}
        if not columns:
            raise ValueError("labels: give those of the real rows, of the generated rows, or both")
        return pd.DataFrame(columns).rename_axis("class").reset_index()


class ChamferMetric(BaseEstimator):
    """Fidelity and coverage of generated samples, on the scale of fresh real data.

    Parameters
    ----------
    k : int
        Neighbours averaged over; it only smooths.
    power : {1, 2}
        2 averages squared distances.
    reference : {"holdout", "loo"}
        What F and C are divided by: the same distances for held-out real rows, or leave-one-out distances inside R
        (then the generated sample needs n - 1 rows within 5 %, since neighbour distances shrink with the size).
    size : {"match", "none"}
        ``"match"`` brings generated and held-out sample to a common size for coverage, averaged over 5 subsamples.
        (Fidelity is a mean over rows given R, whose size is common anyway.)
    n_boot : int
        Bootstrap resamples of :meth:`compare`.
    metric : {"euclidean", "cosine"}
        ``"cosine"`` divides rows by their length first.
    trim : float
        Share of R's sparsest rows left out for ``fidelity_ratio_trimmed``.
    extractor : FeatureExtractor or str, optional
        Lets ``fit`` and ``score`` take images: arrays of three or four dimensions, or folders.
    random_state : int, Generator or None

    Attributes
    ----------
    fidelity_reference_, coverage_reference_ : float
        F0 and C0 (C0 at the hold-out's full size).
    real_, holdout_, train_ : ndarray
        Features; ``holdout_`` is None with ``reference="loo"``.
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> real, fresh, wide = rng.normal(size=(400, 5)), rng.normal(size=(200, 5)), 1.5 * rng.normal(size=(200, 5))
    >>> report = ChamferMetric(random_state=0).fit(real, holdout=fresh).score(wide)
    >>> report.fidelity_ratio > 1.2
    True

    Notes
    -----
    ``fit(R, holdout=V)`` compares on equal terms when V is a random part of the same data. Without V a random half of R is
    held out.
    """

    def __init__(self, k: int = 1, power: int = 1, reference: str = "holdout", size: str = "match", n_boot: int = 200,
                 metric: str = "euclidean", trim: float = 0.02, extractor: Any = None, random_state: Any = None):  # fmt: skip
        self.k = k
        self.power = power
        self.reference = reference
        self.size = size
        self.n_boot = n_boot
        self.metric = metric
        self.trim = trim
        self.extractor = extractor
        self.random_state = random_state

    # --- fit ---

    def fit(self, R: Any, y: Any = None, *, holdout: Any = None, train: Any = None) -> ChamferMetric:
        """Take in the real data.

        Parameters
        ----------
        R : array or tensor (n, D), or images with ``extractor``
            Real rows.
        y : ignored
        holdout : like R, optional
            More real rows, disjoint from R.
        train : like R, optional
            What the generator was trained on, for ``copy_ratio``.

        Raises
        ------
        ValueError
            For parameters out of range, NaN or infinity (set and row named), widths that differ, features that are all
            constant, k >= n, or a reference distance of zero.
        TypeError
            For images where features are expected.
        """
        self._check_parameters()
        rng = np.random.default_rng(self.random_state)
        real = self._features(R, "R", min_rows=2, reset=True)
        if self.reference == "holdout":
            if holdout is None:
                if len(real) < 4:
                    raise ValueError(f"R: got n_samples = {len(real)}; expected at least 4 to hold out half of them")
                order = rng.permutation(len(real))
                half = len(real) // 2
                held, real = real[np.sort(order[:half])], real[np.sort(order[half:])]
            else:
                held = self._features(holdout, "holdout")
        elif holdout is not None:
            held = self._features(holdout, "holdout")
        else:
            held = None
        if not (real != real[:1]).any():
            raise ValueError("R: every feature is constant (zero variance); there is nothing to measure distances with")
        if self.k >= len(real):
            raise ValueError(f"k: got {self.k}; expected fewer than the {len(real)} rows of R")
        self.real_, self.holdout_ = real, held
        self.train_ = None if train is None else self._features(train, "train")
        self._warn_shared()

        spare = min(self.k + SPARE, len(real) - 1)
        self._own = self._neighbours("R", "R", *knn(real, k=spare))
        radius = self._own.distances[:, min(4, spare - 1)]
        self._sparse = np.zeros(len(real), dtype=bool)
        if dropped := int(self.trim * len(real)):
            self._sparse[np.argsort(radius)[len(real) - dropped :]] = True
        if self.reference == "loo":
            self._to_real, self._from_real = self._own, self._own
        else:
            if self.k > len(held):
                raise ValueError(f"k: got {self.k}; expected at most the {len(held)} rows of the hold-out")
            to_real, from_real = _both_ways(real, held, self.k + SPARE)
            self._to_real, self._from_real = (
                self._neighbours("H", "R", *to_real),
                self._neighbours("R", "H", *from_real),
            )
        self.fidelity_reference_ = float(self._to_real.values.mean())
        self.coverage_reference_ = float(self._from_real.values.mean())
        if not self.fidelity_reference_ > 0 or not self.coverage_reference_ > 0:
            raise ValueError(
                "R: the reference distance is zero (every held-out row repeats a row of R); give distinct rows"
            )
        self._trimmed_reference = self._trimmed(self._to_real, held if self.reference == "holdout" else real)
        return self

    def _check_parameters(self) -> None:
        for name, known in (
            ("reference", ("holdout", "loo")),
            ("size", ("match", "none")),
            ("metric", ("euclidean", "cosine")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: got {getattr(self, name)!r}; expected one of {known}")
        _check_power(self.power)
        if self.k < 1:
            raise ValueError(f"k: got {self.k}; expected 1 or more")
        if self.n_boot < 20:
            raise ValueError(f"n_boot: got {self.n_boot}; expected 20 or more")
        if not 0 <= self.trim < 0.5:
            raise ValueError(f"trim: got {self.trim}; expected 0 to 0.5")

    def _features(self, X: Any, name: str, *, min_rows: int = 1, reset: bool = False) -> Any:
        if self.extractor is not None and (isinstance(X, str | Path | list) or getattr(X, "ndim", 2) >= 3):
            X = self._extractor()(X)
        elif isinstance(X, str | Path):
            raise TypeError(
                f"{name}: got a path; give extractor=FeatureExtractor(...) to read a folder of images, or load the array"
            )
        elif getattr(X, "ndim", 2) == 4:
            raise TypeError(f"{name}: got images of shape {tuple(X.shape)} where features (rows, D) are expected; turn them "
                            "into features with gnomon.geometry.FeatureExtractor, or pass extractor=")  # fmt: skip
        if not is_tensor(X):
            if hasattr(X, "toarray"):
                raise TypeError(f"{name}: sparse input is not supported; expected a dense array (use .toarray())")
            if not hasattr(X, "shape") or getattr(getattr(X, "dtype", None), "kind", "f") == "O":
                X = np.asarray(X)
                X = X if X.dtype.kind == "c" else X.astype(np.float64)
            if getattr(getattr(X, "dtype", None), "kind", "f") == "c":
                raise ValueError(f"{name}: Complex data not supported; expected real features")
        rows = check_rows(X, name, min_rows=min_rows)
        if is_tensor(X):
            if reset:
                self.n_features_in_ = rows.shape[1]
            elif rows.shape[1] != self.n_features_in_:
                same_width(rows, self.real_, name, "R")
        elif not reset and rows.shape[1] != self.n_features_in_:
            raise ValueError(f"{name} and R must have as many features; got shapes {rows.shape} and {tuple(self.real_.shape)} "
                             f"(X has {rows.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                             "features as input)")  # fmt: skip
        else:
            validate_data(self, X, reset=reset, skip_check_array=True)
        if self.metric == "cosine":
            lengths = (rows**2).sum(1) ** 0.5
            if not (lengths > 0).all():
                raise ValueError(
                    f"{name}: row {int((lengths == 0).nonzero()[0][0])} is zero; the cosine metric needs a direction"
                )
            rows = rows / lengths[:, None]
        return rows

    def _extractor(self) -> FeatureExtractor:
        return FeatureExtractor(self.extractor) if isinstance(self.extractor, str) else self.extractor

    def _warn_shared(self) -> None:
        pairs = [("holdout", self.holdout_, "R", self.real_), ("holdout", self.holdout_, "train", self.train_)]
        for a, first, b, second in pairs:
            if first is None or second is None:
                continue
            shared = len(_row_set(first) & _row_set(second))
            if shared:
                warnings.warn(f"{a} and {b} share {shared} row(s); they must be disjoint for the ratios to mean anything",
                              UserWarning, stacklevel=3)  # fmt: skip

    def _neighbours(self, queries: str, refs: str, distances: Array, indices: Any) -> _Neighbours:
        return _Neighbours(queries, refs, distances, indices, self.k, self.power)

    def _trimmed(self, found: _Neighbours, queries: Any) -> float:
        """Mean NN_k to R without its sparsest rows; lists that run out are searched again."""
        values = found.without("R", self._sparse) if found.queries != "R" else found._thinned(self._sparse)
        short = ~found.enough(self._sparse)
        if found.queries == "R":
            short &= ~self._sparse
        if short.any():
            if found.queries == "R":  # leave-one-out: one row more, and the row itself at distance zero dropped
                again = knn(queries[short], self.real_[~self._sparse], self.k + 1)[0][:, 1:]
            else:
                again = knn(queries[short], self.real_[~self._sparse], self.k)[0]
            values[short] = _mean_power(again, self.power)
        return float(values[~self._sparse].mean() if found.queries == "R" else values.mean())

    # --- score ---

    def score(self, G: Any, y: Any = None, *, also: Sequence[str] = (), prdc_k: int = 5) -> ChamferReport:
        """Score a generated sample.

        Parameters
        ----------
        G : array or tensor (m, D), or images with ``extractor``
        y : ignored
        also : sequence of {"fid", "kid", "prdc"}
            Older metrics to compute beside; the ball counts of ``"prdc"`` come from the same pass over the distances.
            The Frechet distance is reported as ``fd``, the coverage of Naeem et al. as ``ball_coverage``.
        prdc_k : int
            Neighbour that sets the radius of the balls.

        Warns
        -----
        UserWarning
            Sizes of generated and held-out sample differ and ``size="none"``.
        """
        check_is_fitted(self, "real_")
        if unknown := set(also) - {"fid", "kid", "prdc"}:
            raise ValueError(f"also: got {sorted(unknown)}; expected any of fid, kid, prdc")
        rng = np.random.default_rng(self.random_state)
        real, generated = self.real_, self._features(G, "G")
        n, m = len(real), len(generated)
        if self.k > m:
            raise ValueError(f"k: got {self.k}; expected at most the {m} row(s) of G")
        if self.reference == "loo" and abs(m - (n - 1)) > 0.05 * (n - 1):
            raise ValueError(f"G: got {m} rows; reference='loo' needs n - 1 = {n - 1} within 5 % (neighbour distances shrink "
                             "with the size); give a hold-out and reference='holdout'")  # fmt: skip

        older: dict[str, float] = {}
        if "prdc" in also:
            radii = baselines.ball_radii(real, prdc_k, "R"), baselines.ball_radii(generated, prdc_k, "G")
            found = cross_neighbors(real, generated, min(self.k + SPARE, m), min(self.k + SPARE, n),
                                    radius_x=radii[0], radius_y=radii[1])  # fmt: skip
            counted = baselines.prdc_from(found, radii[0], prdc_k)
            older |= {"ball_coverage" if name == "coverage" else name: value for name, value in counted.items()}
            lists = (found.y_distances, found.y_indices), (found.x_distances, found.x_indices)
        else:
            lists = _both_ways(real, generated, self.k + SPARE)
        to_real, from_real = self._neighbours("G", "R", *lists[0]), self._neighbours("R", "G", *lists[1])
        if "fid" in also:
            older["fd"] = baselines.fid(real, generated)
        if "kid" in also:
            older["kid"] = baselines.kid(real, generated)

        size, tops, bottoms = self._matched(generated, from_real, rng)
        coverage_samples = np.mean([t.values for t in tops], axis=0)
        coverage_reference = np.mean([b.values for b in bottoms], axis=0)
        fidelity, coverage = float(to_real.values.mean()), float(coverage_samples.mean())
        ratios = fidelity / self.fidelity_reference_, coverage / float(coverage_reference.mean())

        sizes = {"R": n, "G": m, "H": 0 if self.holdout_ is None else len(self.holdout_)}
        matched = sizes if size is None else {"R": n, "G": size, "H": size}
        errors = [_jackknife(to_real, self._to_real, sizes, rng), _jackknife(tops[0], bottoms[0], matched, rng)]
        intervals = {
            "fidelity": _interval(fidelity, errors[0][0]),
            "coverage": _interval(coverage, errors[1][0]),
            "fidelity_ratio": _interval(ratios[0], errors[0][1]),
            "coverage_ratio": _interval(ratios[1], errors[1][1]),
        }
        return ChamferReport(
            fidelity=fidelity, coverage=coverage, fidelity_ratio=ratios[0], coverage_ratio=ratios[1],
            intervals=intervals,
            p_value=self._permutation(to_real.values, rng),
            fidelity_ratio_trimmed=self._trimmed(to_real, generated) / self._trimmed_reference,
            fidelity_samples=to_real.values, coverage_samples=coverage_samples,
            fidelity_z=_standardised(to_real.values, self._to_real.values),
            coverage_z=_standardised(coverage_samples, coverage_reference),
            nearest_real=to_real.indices[:, 0], copy_ratio=self._copy_ratio(generated),
            hubness=_hubness(to_real.indices[:, : self.k], n), also=older, n=n, m=m,
            size=m if size is None else size, k=self.k, power=self.power,
            features="array" if self.extractor is None else self._extractor().name,
        )  # fmt: skip

    def _matched(
        self, generated: Any, from_real: _Neighbours, rng: np.random.Generator
    ) -> tuple[Any, list[_Neighbours], list[_Neighbours]]:
        """Neighbours of the real rows in generated and in held-out samples of one size; several subsamples if need be."""
        m = len(generated)
        if self.reference == "loo":
            return None, [from_real], [self._own]
        held = len(self.holdout_)
        if m == held:
            return m, [from_real], [self._from_real]
        if self.size == "none":
            warnings.warn(f"G has {m} rows, the hold-out {held}: neighbour distances shrink with the size, the ratios are not "
                          "comparable; use size='match'", UserWarning, stacklevel=3)  # fmt: skip
            return None, [from_real], [self._from_real]
        size = min(m, held)
        larger, name = (generated, "G") if m > held else (self.holdout_, "H")
        lists = []
        for _ in range(REPEATS):
            rows = np.sort(rng.choice(len(larger), size, replace=False))
            lists.append(self._neighbours("R", name, *knn(self.real_, larger[rows], min(self.k + SPARE, size))))
        return (size, lists, [self._from_real]) if m > held else (size, [from_real], lists)

    def _permutation(self, generated: Array, rng: np.random.Generator) -> float:
        """Two-sided: R is given, so under the hypothesis the distances of both samples are exchangeable."""
        if self.reference == "loo":
            return float("nan")
        held = self._to_real.values
        pooled, m = np.concatenate([generated, held]), len(generated)
        total = pooled.sum()

        def gap(first: float) -> float:
            return abs(first / m - (total - first) / len(held))

        seen = gap(generated.sum())
        extreme = sum(gap(rng.permutation(pooled)[:m].sum()) >= seen * (1 - 1e-12) for _ in range(PERMUTATIONS))
        return (1 + extreme) / (1 + PERMUTATIONS)

    def _copy_ratio(self, generated: Any) -> float | None:
        if self.train_ is None or self.holdout_ is None:
            return None
        held = knn(self.holdout_, self.train_, 1)[0].mean()
        if held == 0:
            return None
        return float(knn(generated, self.train_, 1)[0].mean() / held)

    # --- compare ---

    def compare(self, G1: Any, G2: Any) -> GeneratorComparison:
        """Two generators on the same real data.

        Coverage differences are paired by real row; the fidelity difference is bootstrapped over both samples. Samples of
        different sizes are brought to the smaller one for coverage (averaged over 5 subsamples) if ``size="match"``.
        """
        check_is_fitted(self, "real_")
        rng = np.random.default_rng(self.random_state)
        samples = [self._features(G, name) for G, name in ((G1, "G1"), (G2, "G2"))]
        size = min(len(G) for G in samples)
        if self.k > size:
            raise ValueError(f"k: got {self.k}; expected at most the {size} row(s) of the smaller sample")
        if self.size == "none" and len(samples[0]) != len(samples[1]):
            warnings.warn(f"G1 has {len(samples[0])} rows, G2 {len(samples[1])}: their coverages are not comparable; use "
                          "size='match'", UserWarning, stacklevel=2)  # fmt: skip
        fidelity = [_mean_power(knn(G, self.real_, self.k)[0], self.power) for G in samples]
        coverage = []
        for G in samples:
            repeats = REPEATS if self.size == "match" and len(G) > size else 1
            subsets = [
                np.sort(rng.choice(len(G), size, replace=False)) if repeats > 1 else slice(None) for _ in range(repeats)
            ]
            coverage.append(
                np.mean([_mean_power(knn(self.real_, G[s], self.k)[0], self.power) for s in subsets], axis=0)
            )
        paired = coverage[0] - coverage[1]
        boot_f = [_resampled(fidelity[0], rng) - _resampled(fidelity[1], rng) for _ in range(self.n_boot)]
        boot_c = [_resampled(paired, rng) for _ in range(self.n_boot)]
        return GeneratorComparison(
            float(fidelity[0].mean() - fidelity[1].mean()), _percentiles(boot_f), float(paired.mean()), _percentiles(boot_c),
            paired, self.fidelity_reference_, self.coverage_reference_,
        )  # fmt: skip


@dataclass
class GeneratorComparison:
    """First generator minus second; negative is in favour of the first.

    Attributes
    ----------
    fidelity_difference, coverage_difference : float
        In units of distance; divide by the references for the scale of the ratios.
    fidelity_interval, coverage_interval : tuple of float
        95 % bootstrap intervals: over generated rows, and over real rows (paired).
    coverage_differences : ndarray, shape (n,)
        Per real row.
    fidelity_reference, coverage_reference : float
        F0 and C0.
    """

    fidelity_difference: float
    fidelity_interval: tuple[float, float]
    coverage_difference: float
    coverage_interval: tuple[float, float]
    coverage_differences: Array
    fidelity_reference: float
    coverage_reference: float


def compare_generators(R: Any, G1: Any, G2: Any, *, holdout: Any = None, **parameters: Any) -> GeneratorComparison:
    """Compare two generated samples on the same real data; see :meth:`ChamferMetric.compare`.

    ``parameters`` are those of :class:`ChamferMetric`.
    """
    return ChamferMetric(**parameters).fit(R, holdout=holdout).compare(G1, G2)


# --- small statistics ------------------------------------------------------------------------------------------------


def _interval(value: float, error: float) -> tuple[float, float]:
    from scipy.stats import t

    half = float(t.ppf(0.975, BLOCKS - 1)) * error
    return max(value - half, 0.0), value + half


def _resampled(values: Array, rng: np.random.Generator) -> float:
    return float(values[rng.integers(len(values), size=len(values))].mean())


def _percentiles(values: list[float]) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _standardised(values: Array, reference: Array) -> Array:
    spread = reference.std()
    return (values - reference.mean()) / (spread if spread > 0 else 1.0)


def _hubness(indices: NDArray[np.int64], n: int) -> float:
    from scipy.stats import skew

    counts = np.bincount(indices.ravel(), minlength=n)
    return float(skew(counts)) if counts.std() > 0 else 0.0


def _row_set(X: Any) -> set[int]:
    """Hashes of the rows, whatever their precision."""
    found: set[int] = set()
    for start in range(0, len(X), 1024):
        part = X[start : start + 1024]
        part = np.asarray(part.detach().cpu() if is_tensor(part) else part, dtype=np.float64) + 0.0  # -0.0 is 0.0
        found.update(hash(row.tobytes()) for row in part)
    return found
