"""Five certificates of correctness among answers: each a rule that decides, and the statement that holds for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gnomon.guarantees.conformal_abstention.thresholds import (
    NEVER,
    Array,
    Mask,
    Threshold,
    benjamini_hochberg,
    joint_threshold,
    keys,
    least_answered,
    lower_bound,
    pac_grid,
    pac_threshold,
    participation_threshold,
    selection_p_values,
    upper_bound,
    weighted_joint,
    weighted_participation,
)

if TYPE_CHECKING:
    import pandas as pd

CERTIFICATES = ("both", "ratio", "pac", "fdr", "bayes")
WEIGHTED = ("ratio", "fdr")  # those that take likelihood ratios; the others count i.i.d. items
SMALL_BATCH = 50
RISKY = 0.05  # infeasible more often than this is warned of
MARGINAL = "It speaks of the stream of questions, not of a single one."


class Target(NamedTuple):
    """What is asked for."""

    correctness: float
    participation: float | None = None
    eps: float | None = None
    delta: float = 0.1


class Sample(NamedTuple):
    """Scores, correctness, tie-breakers and, under shift, likelihood ratios, each (n,)."""

    S: Array
    C: Mask
    u: Array
    weights: Array | None = None

    def take(self, at: Any) -> Sample:
        """Some of the items."""
        return Sample(self.S[at], self.C[at], self.u[at], None if self.weights is None else self.weights[at])


@dataclass(frozen=True)
class Certificate:
    """What is guaranteed, in words and numbers.

    Attributes
    ----------
    kind : str
    statement : str
        The sentence that holds, and over what its probability is taken.
    values : dict of str to float
        The numbers in it.
    infeasible : bool
        The target could not be met: the statement still holds, but fewer questions (or none) are answered.
    """

    kind: str
    statement: str
    values: Mapping[str, float] = field(default_factory=dict)
    infeasible: bool = False

    def __str__(self) -> str:
        return self.statement + (" The target was not reached on this calibration set." if self.infeasible else "")

    def at_base_rate(self, accuracy: float) -> float:
        """Of ``"bayes"``: the lower bound on P(correct | answer) where the accuracy is known to be this."""
        if self.kind != "bayes":
            raise ValueError(f"certificate {self.kind!r} depends on no base rate; 'bayes' does")
        if not 0 <= accuracy <= 1:
            raise ValueError(f"accuracy: got {accuracy!r}; expected a share in [0, 1]")
        return posterior(accuracy, self.values["answered_if_correct"], self.values["answered_if_wrong"])


@dataclass(frozen=True)
class Rule:
    """A fitted certificate: decides new scores.

    Attributes
    ----------
    threshold : Threshold or None
        None where a batch decides jointly (``"fdr"``) or each item has its own (weights).
    """

    certificate: Certificate
    threshold: Threshold | None
    calibration: Sample
    target: Target

    def decide(self, S: Any, u: Any, weights: Any = None) -> Mask:
        """Which of the new scores S (M,) are answered; of ``"fdr"`` they are one batch."""
        cal = self.calibration
        if self.certificate.kind == "fdr":
            p = selection_p_values(cal.S, cal.C, S, cal.u, u, cal.weights, weights)
            return benjamini_hochberg(p, 1 - self.target.correctness)
        if cal.weights is not None:
            alpha, eps = 1 - float(self.target.participation or 0), float(self.target.eps or 0)
            one = weighted_participation(cal.S, cal.weights, weights, alpha, cal.u)
            two = weighted_joint(cal.S, cal.C, cal.weights, weights, eps, cal.u)
            return np.array(
                [max(pair).accepts(s, t) for pair, s, t in zip(zip(one, two, strict=True), S, u, strict=True)], bool
            )
        assert self.threshold is not None
        return self.threshold.accepts(S, u)


def least_calibration(kind: str, target: Target) -> int:
    """The fewest calibration items with which the certificate can ever answer."""
    c = target.correctness
    if kind == "pac":
        return least_answered(c, target.delta)
    if kind == "fdr":
        return math.ceil(c / (1 - c) - 1e-9)
    if kind == "ratio" and target.eps:
        return math.ceil(1 / target.eps - 1 - 1e-9)
    return 1


def certify(kind: str, cal: Sample, fit: Sample, target: Target, rng: np.random.Generator | None) -> Rule:
    """Fit one certificate.

    Parameters
    ----------
    kind : {"both", "ratio", "pac", "fdr", "bayes"}
    cal : Sample
        Calibration items, exchangeable with the questions to come, and used for nothing else.
    fit : Sample
        Independent items on which levels, grids and fixed thresholds may be chosen.
    target : Target
    rng : Generator
        Of the bootstrap of ``"ratio"``; None leaves it out (its statement then holds no q).
    """
    made: dict[str, Any] = {"both": _both, "ratio": _ratio, "pac": _pac, "fdr": _fdr, "bayes": _bayes}
    rule: Rule = made[kind](cal, fit, target, rng)
    if cal.weights is None:
        return rule
    text = f"{rule.certificate.statement} With weights this needs the true likelihood ratios" + (
        "; each p-value is then valid, the bound on the share not proved." if kind == "fdr" else "."
    )
    return replace(rule, certificate=replace(rule.certificate, statement=text))


# --- the five --------------------------------------------------------------------------------------------------------


def _both(cal: Sample, fit: Sample, target: Target, rng: Any) -> Rule:
    """Participation chosen, correctness reported.

    Given the k-th smallest score, the n - k above it are an i.i.d. sample of the answered questions.
    """
    n, alpha = len(cal.S), 1 - float(target.participation or 0)
    at = participation_threshold(cal.S, alpha, cal.u)
    above = at.above.accepts(cal.S, cal.u)
    m, right = int(above.sum()), int(cal.C[above].sum())
    low = float(lower_bound(right, m, target.delta))
    exact = (m + 1) / (n + 1) if m < n else 1.0  # 1 - k / (n + 1)
    text = (f"A question like those of calibration is answered with probability {exact:.4g} or more (over calibration and question); "
            f"with probability {1 - target.delta:g} over calibration at least {low:.3f} of the answers are correct. {MARGINAL}")  # fmt: skip
    values = {"participation": exact, "correctness": low, "answered": m, "correct": right, "delta": target.delta}
    return Rule(Certificate("both", text, values, low < target.correctness), at, cal, target)


def _ratio(cal: Sample, fit: Sample, target: Target, rng: np.random.Generator | None) -> Rule:
    """The larger of both thresholds; what is infeasible with probability q costs q of participation."""
    share, eps = float(target.participation or 0), float(target.eps or 0)
    one, two = participation_threshold(cal.S, 1 - share, cal.u), joint_threshold(cal.S, cal.C, eps, cal.u)
    q = math.nan if rng is None else infeasible_probability(fit, len(cal.S), 1 - share, eps, rng)
    kept = max(share - q, 0.0)
    wrong = eps / kept if kept > eps else 1.0
    text = (f"Over calibration and question together: P(answered and wrong) <= {eps:.4g}; P(answered) >= {kept:.3f} and P(wrong | answered) "
            f"<= {wrong:.3f}, where {q:.3f} is the estimated probability that a calibration set does not meet both levels. {MARGINAL}")  # fmt: skip
    values = {"eps": eps, "participation": kept, "wrong": wrong, "infeasible_probability": q}
    return Rule(Certificate("ratio", text, values, two > one), max(one, two), cal, target)


def _pac(cal: Sample, fit: Sample, target: Target, rng: Any) -> Rule:
    grid = pac_grid(fit.S, len(cal.S), target.correctness, target.delta)
    at = pac_threshold(cal.S, cal.C, grid, target.correctness, target.delta)
    text = (f"With probability {1 - target.delta:g} over calibration at least {target.correctness:g} of the answers are correct"
            + (" (vacuous here: nothing is answered)" if at == NEVER else "") + f". {MARGINAL}")  # fmt: skip
    return Rule(
        Certificate("pac", text, {"correctness": target.correctness, "delta": target.delta}, at == NEVER),
        at,
        cal,
        target,
    )


def _fdr(cal: Sample, fit: Sample, target: Target, rng: Any) -> Rule:
    level = 1 - target.correctness
    text = (f"Over calibration and a batch of questions, the expected share of wrong ones among its answers is at most {level:.4g} "
            f"(a batch without answers counts as 0). {MARGINAL}")  # fmt: skip
    return Rule(Certificate("fdr", text, {"wrong": level}, bool(1 / (len(cal.S) + 1) > level)), None, cal, target)


def small_batch(rule: Rule, size: int) -> Certificate:
    """What is left of ``"fdr"`` for a few questions at a time."""
    level = 1 - rule.target.correctness
    text = (f"In batches of {size} only P(answered and wrong) <= {level:.4g} can be used: it bounds no share among the answers. "
            f"Answer batches of {SMALL_BATCH} or more, or use certificate='pac'. {MARGINAL}")  # fmt: skip
    return replace(rule.certificate, statement=text)


def _bayes(cal: Sample, fit: Sample, target: Target, rng: Any) -> Rule:
    """From rates within the correct and the wrong, at a threshold fixed on the fit split: usable for another base rate."""
    at = _bayes_threshold(fit, len(cal.S), target)
    answered, level = at.accepts(cal.S, cal.u), target.delta / 3
    right, n = int(cal.C.sum()), len(cal.S)
    accuracy = float(lower_bound(right, n, level))
    a = float(lower_bound((answered & cal.C).sum(), right, level))
    b = float(upper_bound((answered & ~cal.C).sum(), n - right, level))
    low = posterior(accuracy, a, b)
    text = (f"With probability {1 - target.delta:g} over calibration at least {low:.3f} of the answers are correct, as the accuracy is {accuracy:.3f} or more, "
            f"{a:.3f} or more of the correct and {b:.3f} or less of the wrong responses are answered. {MARGINAL}")  # fmt: skip
    values = {
        "correctness": low,
        "accuracy": accuracy,
        "answered_if_correct": a,
        "answered_if_wrong": b,
        "delta": target.delta,
    }
    return Rule(Certificate("bayes", text, values, low < target.correctness), at, cal, target)


def posterior(accuracy: float, a: float, b: float) -> float:
    """pi a / (pi a + (1 - pi) b), 0 where nothing is answered."""
    hit = accuracy * a
    return float(hit / (hit + (1 - accuracy) * b)) if hit > 0 else 0.0


def _bayes_threshold(fit: Sample, n: int, target: Target) -> Threshold:
    """The lowest fit score whose bound, at the fit split's rates and n items, reaches the target; else the best one."""
    if target.participation is not None:
        return participation_threshold(fit.S, 1 - target.participation, fit.u)
    order = np.argsort(-keys(fit.S, fit.u))
    right = np.cumsum(fit.C[order])
    ranks = np.unique(np.linspace(1, len(order), min(len(order), 100)).astype(int))
    right = right[ranks - 1]
    wrong, scale, level = ranks - right, n / len(order), target.delta / 3
    total = scale * max(int(fit.C.sum()), 1)
    accuracy = lower_bound(scale * fit.C.sum(), n, level)
    a, b = lower_bound(scale * right, total, level), upper_bound(scale * wrong, max(n - total, 1e-9), level)
    bound = accuracy * a / np.maximum(accuracy * a + (1 - accuracy) * b, 1e-300)
    good = np.flatnonzero(bound >= target.correctness)
    at = order[ranks[good[-1] if len(good) else int(np.argmax(bound))] - 1]
    return Threshold(float(fit.S[at]), float(fit.u[at]))


# --- what the fit split says beforehand ------------------------------------------------------------------------------


def _profile(fit: Sample) -> Array:
    """Whether the items are wrong, in ascending order of score."""
    return np.asarray(~fit.C[np.argsort(keys(fit.S, fit.u))])


def _wrong_above(wrong: Array, n: int, alpha: float, rng: np.random.Generator, draws: int = 2000) -> Array:
    """Wrong items at or above the participation threshold of ``draws`` bootstrap samples of n items.

    The k-th smallest of n draws is the quantile at U ~ Beta(k, n - k + 1); given it, the n - k items above are an
    i.i.d. sample of what lies above, so their wrong ones are binomial: no sample is drawn or sorted.
    """
    k = math.floor(alpha * (n + 1) + 1e-9)
    size = len(wrong)
    below = np.append(0, np.cumsum(wrong)) / size  # wrong mass among the j lowest
    at = rng.beta(k, n - k + 1, draws) if k else np.zeros(draws)
    above = below[-1] - np.interp(at, np.arange(size + 1) / size, below)
    rate = np.clip(above / np.maximum(1 - at, 1e-12), 0, 1)
    own = wrong[np.minimum((at * size).astype(int), size - 1)] if k else np.zeros(draws)
    return np.asarray(rng.binomial(n - k, rate) + own, float)


def infeasible_probability(fit: Sample, n: int, alpha: float, eps: float, rng: np.random.Generator) -> float:
    """How often, over calibration sets of n items, the joint threshold lies above the participation threshold."""
    return float(((_wrong_above(_profile(fit), n, alpha, rng) + 1) / (n + 1) > eps + 1e-12).mean())


def frontier(fit: Sample, n: int, rng: np.random.Generator, risky: float = RISKY) -> pd.DataFrame:
    """For each participation the least joint error that n calibration items meet but with probability ``risky``.

    Returns
    -------
    DataFrame
        ``participation`` (chosen), ``eps``, and what ``"ratio"`` then states: ``participation_kept``, ``correctness``.
    """
    import pandas as pd

    rows, wrong = [], _profile(fit)
    for share in np.linspace(0.05, 0.95, 19):
        eps = float(np.quantile((_wrong_above(wrong, n, 1 - share, rng) + 1) / (n + 1), 1 - risky, method="higher"))
        kept = share - risky
        rows.append({"participation": round(float(share), 2), "eps": eps, "participation_kept": max(kept, 0.0),
                     "correctness": max(0.0, 1 - eps / kept) if kept > 1e-9 else 0.0})  # fmt: skip
    return pd.DataFrame(rows)


def expected_coverage(kind: str, fit: Sample, n: int, batch: int, target: Target, rng: np.random.Generator) -> float:
    """The share of questions that will be answered: a mean over sets and batches resampled from the fit split."""
    draws = int(np.clip(100_000 / n, 2, 100))
    found = []
    for _ in range(draws):
        cal, new = (fit.take(rng.integers(len(fit.S), size=size)) for size in (n, batch))
        cal, new = (s._replace(u=rng.random(len(s.S)), weights=None) for s in (cal, new))
        found.append(certify(kind, cal, fit, target, None).decide(new.S, new.u).mean())
    return float(np.mean(found))
