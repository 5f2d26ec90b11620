"""When new questions are not like those of calibration: weights, and a test that notices."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gnomon.guarantees.conformal_abstention.scores import logistic
from gnomon.guarantees.conformal_abstention.thresholds import check_scores


class Drift(NamedTuple):
    """Kolmogorov-Smirnov distance of two samples of scores, and its p-value."""

    statistic: float
    p_value: float


def drift_test(S: ArrayLike, S_new: ArrayLike) -> Drift:
    """Do unlabelled new scores (M,) have the distribution of the calibration scores (n,)?

    A small p says no. A large one does not say that P(correct | score) is unchanged: no test without labels can.
    """
    from scipy import stats

    found: Any = stats.ks_2samp(check_scores(S), check_scores(S_new, "S_new"))
    return Drift(float(found.statistic), float(found.pvalue))


def density_ratio(
    X: ArrayLike, X_new: ArrayLike, clip: float = 50.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Likelihood ratios new / calibration of both samples' features, by a logistic classifier that tells them apart.

    Parameters
    ----------
    X, X_new : array_like (n, p), (M, p) or (n,), (M,)
        Features or scores.
    clip : float
        Ratios are kept in [1 / clip, clip].

    Returns
    -------
    weights, weights_new : arrays (n,), (M,)
        It mends a shift of these features, if the classifier is right, and none of P(correct | features).
    """
    X, X_new = (
        x[:, None] if x.ndim == 1 else x for x in (check_scores(X, "X", True), check_scores(X_new, "X_new", True))
    )
    if X.shape[1] != X_new.shape[1]:
        raise ValueError(f"X_new: got {X_new.shape[1]} columns; expected {X.shape[1]} as in X")
    both, new = np.vstack([X, X_new]), np.repeat([0, 1], [len(X), len(X_new)])
    logit = logistic(1.0).fit(both, new).decision_function(both) + np.log(len(X) / len(X_new))
    ratio = np.exp(np.clip(logit, -np.log(clip), np.log(clip)))
    return ratio[: len(X)], ratio[len(X) :]
