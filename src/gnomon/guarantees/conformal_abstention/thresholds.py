"""Thresholds on a confidence score from calibration pairs (S_i, C_i), and tests for a batch of new scores.

A response is answered iff its score is at or above the threshold. Ties are broken by u ~ U(0, 1), drawn for calibration
and new items alike: (S, u) are compared in lexicographic order, which is numpy's order of the complex numbers S + iu.
Nothing here looks at anything but order, so a monotone transformation of S changes no decision.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
ROUND = 1e-9  # so that .2 * 10 counts as 2 whatever the last bit


class Threshold(NamedTuple):
    """Answer iff (score, tie-breaker) is at or above this pair; ``-inf`` answers always, ``inf`` never."""

    score: float
    tie: float = 0.0

    def accepts(self, S: ArrayLike, u: ArrayLike = 0.0) -> Mask:
        """Which of the scores S (M,) with tie-breakers u (M,) are answered."""
        S = np.asarray(S, float)
        return np.asarray((self.score < S) | ((self.score == S) & (np.asarray(u, float) >= self.tie)))

    @property
    def above(self) -> Threshold:
        """The next threshold: what lies strictly above this one."""
        if self.tie:
            return Threshold(self.score, float(np.nextafter(self.tie, math.inf)))
        return Threshold(float(np.nextafter(self.score, math.inf)))


ALWAYS, NEVER = Threshold(-math.inf), Threshold(math.inf, math.inf)


def keys(S: Any, u: Any = None) -> Any:
    """Scores in the order of (S, u): S itself where there are no tie-breakers, else S + iu."""
    S = np.asarray(S, float)
    return S if u is None else S + 1j * np.asarray(u, float)


def _threshold(key: Any) -> Threshold:
    return Threshold(float(np.real(key)), float(np.imag(key)))


def _floor(x: float) -> int:
    return math.floor(x + ROUND)


# --- one threshold ---------------------------------------------------------------------------------------------------


def participation_threshold(S: ArrayLike, alpha: float, u: ArrayLike | None = None) -> Threshold:
    r"""The k-th smallest score, :math:`k = \lfloor \alpha (n+1) \rfloor` (k = 0: minus infinity).

    An exchangeable new item lies at or above it with probability at least 1 - alpha, exactly 1 - k / (n + 1) without
    ties. Applied to the scores of correct items only, it bounds P(answer | would be correct).

    Parameters
    ----------
    S : array_like (n,)
    alpha : float
        In (0, 1).
    u : array_like (n,), optional
        Tie-breakers.
    """
    key = keys(S, u)
    k = _floor(alpha * (len(key) + 1))
    return _threshold(np.partition(key, k - 1)[k - 1]) if k else ALWAYS


def rejection_threshold(S_wrong: ArrayLike, beta: float, u: ArrayLike | None = None) -> Threshold:
    r"""Strictly above the :math:`\lceil (1-\beta)(n_0+1) \rceil`-th smallest wrong score; never if there is none.

    P(answer | would be wrong) <= beta.
    """
    key = keys(S_wrong, u)
    k = math.ceil((1 - beta) * (len(key) + 1) - ROUND)
    return _threshold(np.partition(key, k - 1)[k - 1]).above if k <= len(key) else NEVER


def joint_threshold(S: ArrayLike, C: ArrayLike, eps: float, u: ArrayLike | None = None) -> Threshold:
    r"""Conformal risk control of 1{answer and wrong}.

    The threshold is :math:`\inf\{\lambda: (\#\{S_i \ge \lambda, C_i = 0\} + 1)/(n+1) \le \epsilon\}`.

    P(answer and wrong) <= eps. The infimum is not attained: the threshold lies just above a wrong score.

    Parameters
    ----------
    S, C : array_like (n,)
        Scores and whether the response was correct.
    eps : float
        In (0, 1).
    u : array_like (n,), optional
        Tie-breakers.

    References
    ----------
    A. N. Angelopoulos, S. Bates, A. Fisch, L. Lei, T. Schuster, "Conformal risk control", ICLR 2024.
    """
    key = keys(S, u)
    wrong = np.sort(key[~np.asarray(C, bool)])[::-1]
    allowed = _floor(eps * (len(key) + 1)) - 1
    if allowed < 0:
        return NEVER
    return _threshold(wrong[allowed]).above if allowed < len(wrong) else ALWAYS


def empirical_threshold(S: ArrayLike, C: ArrayLike, correctness: float) -> Threshold:
    """The smallest calibration score at which the empirical share of correct answers reaches the target."""
    order = np.argsort(-np.asarray(S, float), kind="stable")
    s, right = np.asarray(S, float)[order], np.cumsum(np.asarray(C, bool)[order])
    last = np.append(s[1:] != s[:-1], True)  # the lowest of tied scores counts them all
    good = np.flatnonzero(last & (right / np.arange(1, len(s) + 1) >= correctness))
    return Threshold(float(s[good[-1]])) if len(good) else NEVER


# --- counted bounds --------------------------------------------------------------------------------------------------


def lower_bound(k: ArrayLike, m: ArrayLike, delta: float) -> Any:
    """One-sided Clopper-Pearson: a rate with k events in m trials is at least this with probability 1 - delta."""
    k, m = np.asarray(k, float), np.asarray(m, float)
    return np.where(k > 0, special.betaincinv(np.maximum(k, 1.0), np.maximum(m - k + 1, 1.0), delta), 0.0)


def upper_bound(k: ArrayLike, m: ArrayLike, delta: float) -> Any:
    """The same from above; 1 where there are no trials."""
    return 1 - lower_bound(np.asarray(m, float) - np.asarray(k, float), m, delta)


def least_answered(correctness: float, delta: float) -> int:
    """The fewest answers, all correct, that show P(correct | answer) >= correctness at level delta."""
    return math.ceil(math.log(delta) / math.log(correctness) - ROUND)


# --- fixed-sequence testing ------------------------------------------------------------------------------------------


def pac_grid(
    S_fit: ArrayLike, n: int, correctness: float, delta: float, points: int = 100, start: str = "fixed"
) -> Array:
    r"""Thresholds to test from the top down: quantiles of an independent fit split.

    The first is where the fit split's share times n reaches twice :func:`least_answered`; calibration counts must not
    choose it. ``start="top"`` begins at the highest quantile.
    """
    S_fit = np.sort(np.asarray(S_fit, float))
    grid = np.unique(np.quantile(S_fit, 1 - np.arange(1, points + 1) / points, method="lower"))[::-1]
    if start == "top":
        return grid
    share = 1 - np.searchsorted(S_fit, grid) / len(S_fit)
    first = np.flatnonzero(share * n >= 2 * least_answered(correctness, delta))
    return grid[first[0] :] if len(first) else grid[-1:]


def pac_threshold(S: ArrayLike, C: ArrayLike, grid: ArrayLike, correctness: float, delta: float) -> Threshold:
    """Go down the grid while P(Bin(m, 1 - correctness) <= wrong) <= delta; the last rejection, or never.

    With probability 1 - delta over calibration P(correct | answer) >= correctness: given their number m, the points
    at or above a fixed threshold are i.i.d., and a fixed sequence of tests spends its level once.
    """
    S, grid = np.asarray(S, float), np.asarray(grid, float)
    wrong_scores = np.sort(S[~np.asarray(C, bool)])
    m = len(S) - np.searchsorted(np.sort(S), grid)
    wrong = len(wrong_scores) - np.searchsorted(wrong_scores, grid)
    accepted = np.append(special.bdtr(wrong, np.maximum(m, 1), 1 - correctness) > delta, True) | np.append(m < 1, True)
    rejected = int(np.argmax(accepted))
    return Threshold(float(grid[rejected - 1])) if rejected else NEVER


# --- a batch ---------------------------------------------------------------------------------------------------------


def selection_p_values(S: Any, C: Any, S_new: Any, u: Any = None, u_new: Any = None, weights: Any = None,
                       weights_new: Any = None) -> Array:  # fmt: skip
    r""":math:`p_j = (w_j + \sum_i w_i 1\{C_i = 0, S_i \ge S_j\}) / (w_j + \sum_i w_i)`, all weights 1 by default.

    References
    ----------
    Y. Jin, E. J. Candes, "Selection by prediction with conformal p-values", JMLR 24 (2023).
    """
    wrong = ~np.asarray(C, bool)
    key, new = keys(S, u)[wrong], keys(S_new, u_new)
    order = np.argsort(key)
    at = np.searchsorted(key[order], new)
    if weights is None:
        return np.asarray((1 + len(key) - at) / (1 + len(wrong)))
    w, w_new = np.asarray(weights, float), np.asarray(weights_new, float)
    tail = np.append(np.cumsum(w[wrong][order][::-1])[::-1], 0.0)
    return np.asarray((w_new + tail[at]) / (w_new + w.sum()))


def benjamini_hochberg(p: ArrayLike, level: float) -> Mask:
    """Which p-values (M,) Benjamini and Hochberg's procedure rejects."""
    p = np.asarray(p, float)
    ordered = np.sort(p)
    good = np.flatnonzero(ordered <= level * np.arange(1, len(p) + 1) / len(p) * (1 + ROUND))
    return np.asarray(p <= ordered[good[-1]]) if len(good) else np.zeros(len(p), bool)


# --- weights ---------------------------------------------------------------------------------------------------------


def weighted_participation(S: Any, weights: Any, weights_new: Any, alpha: float, u: Any = None) -> list[Threshold]:
    r"""For each new item the largest :math:`S_{(j)}` with :math:`(w + \sum_{i<j} w_{(i)}) / (w + \sum_i w_i) \le \alpha`."""
    key, w, new = keys(S, u), np.asarray(weights, float), np.asarray(weights_new, float)
    order = np.argsort(key)
    before = np.append(0.0, np.cumsum(w[order])[:-1])
    at = np.searchsorted(before, alpha * (new + w.sum()) - new + ROUND * w.sum(), side="right")
    return [_threshold(key[order[j - 1]]) if j else ALWAYS for j in at]


def weighted_joint(S: Any, C: Any, weights: Any, weights_new: Any, eps: float, u: Any = None) -> list[Threshold]:
    r"""For each new item :math:`\inf\{\lambda: (w + \sum_{C_i=0, S_i \ge \lambda} w_i) / (w + \sum_i w_i) \le \epsilon\}`."""
    key, w, new = keys(S, u), np.asarray(weights, float), np.asarray(weights_new, float)
    wrong = np.flatnonzero(~np.asarray(C, bool))
    order = wrong[np.argsort(key[wrong])[::-1]]
    spent = np.cumsum(w[order])  # with the j highest wrong ones answered: spent[j - 1]
    room = eps * (new + w.sum()) - new + ROUND * w.sum()
    at = np.searchsorted(spent, room, side="right")
    return [NEVER if r < 0 else _threshold(key[order[j]]).above if j < len(order) else ALWAYS
            for r, j in zip(room, at, strict=True)]  # fmt: skip


# --- the public one --------------------------------------------------------------------------------------------------

KINDS = ("participation", "correct", "incorrect", "joint", "ratio")


def abstention_threshold(S: ArrayLike, C: ArrayLike | None = None, *, alpha: float | None = None, eps: float | None = None,
                         kind: str = "participation") -> float:  # fmt: skip
    """The score from which to answer, with a finite-sample guarantee.

    Parameters
    ----------
    S : array_like (n,)
        Confidence scores of calibration responses, larger is more confident; finite.
    C : array_like (n,) of 0/1, optional
        Whether each was correct; ``"participation"`` needs none.
    alpha : float
        In (0, 1): the share of items that may be left unanswered (of ``"incorrect"``: answered).
    eps : float
        In (0, 1): bound on P(answer and wrong), of ``"joint"`` and ``"ratio"``.
    kind : str
        ``"participation"``: P(answer) >= 1 - alpha. ``"correct"``: P(answer | would be correct) >= 1 - alpha.
        ``"incorrect"``: P(answer | would be wrong) <= alpha. ``"joint"``: P(answer and wrong) <= eps. ``"ratio"``: the
        larger of participation and joint.

    Returns
    -------
    float
        Answer iff the score is at or above it; ``-inf`` answers always, ``inf`` never. With tied scores the
        inequalities still hold; they are tight only without ties.

    Raises
    ------
    ValueError
        For scores that are not finite, levels outside (0, 1), labels other than 0 and 1, unknown kinds.
    """
    S = check_scores(S)
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}; expected one of {', '.join(KINDS)}")
    right = np.ones(len(S), bool) if kind == "participation" else check_labels(C, len(S))
    first: dict[str, Any] = {
        "participation": lambda: participation_threshold(S, check_share("alpha", alpha)),
        "correct": lambda: participation_threshold(S[right], check_share("alpha", alpha)),
        "incorrect": lambda: rejection_threshold(S[~right], check_share("alpha", alpha)),
        "joint": lambda: joint_threshold(S, right, check_share("eps", eps)),
    }
    if kind == "ratio":
        return float(max(first["participation"]().score, first["joint"]().score))
    return float(first[kind]().score)


# --- checks ----------------------------------------------------------------------------------------------------------


def check_share(name: str, value: Any) -> float:
    """A number in (0, 1)."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < 1:
        raise ValueError(f"{name}: got {value!r}; expected a number in (0, 1)")
    return float(value)


def check_scores(S: Any, name: str = "S", columns: bool = False) -> Array:
    """Finite numbers (n,), or (n, p) where columns are allowed."""
    try:
        S = np.asarray(S, float)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected numbers, got {type(S).__name__}") from None
    if S.ndim not in ((1, 2) if columns else (1,)) or len(S) == 0:
        raise ValueError(f"{name}: got shape {S.shape}; expected (n,){' or (n, p)' if columns else ''} with n > 0")
    if bad := int((~np.isfinite(S)).sum()):
        raise ValueError(f"{name}: {bad} values are NaN or infinite; expected finite scores")
    return np.asarray(S)


def check_labels(C: Any, n: int) -> Mask:
    """0/1 of length n."""
    if C is None:
        raise ValueError("C: got None; expected 0 or 1 for each score")
    C = np.asarray(C)
    if C.shape != (n,):
        raise ValueError(f"C: got shape {C.shape}; expected ({n},), one label for each score")
    if not np.isin(C, (0, 1)).all():
        raise ValueError("C: expected 0 (wrong) or 1 (correct) for each score")
    return np.asarray(C, bool)
