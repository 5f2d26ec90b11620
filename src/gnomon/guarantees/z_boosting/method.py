r"""The booster, from joint guarantees on false positives and false negatives.

Two weight vectors, D+ over positives and D- over negatives; the learner is asked on p D+ + (1-p) D-. Of its answer h with
fnr = D+(h = -1) and fpr = D-(h = +1)

.. math:: \alpha = \tfrac14 \log\frac{(1-fnr)(1-fpr)}{fnr\,fpr}, \quad
          P = (1-fnr) e^{-\alpha} + fnr\, e^{\alpha}, \quad N = (1-fpr) e^{-\alpha} + fpr\, e^{\alpha}, \quad
          \beta = \tfrac12 \log\frac PN,

then F += alpha h + beta, D+ ~ exp(-F), D- ~ exp(F). This minimises the larger of the two classes' factors, which become equal:
rho = sqrt(P N). So the mean of exp(-F) over positives and that of exp(F) over negatives are both the product of all rho.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gnomon.guarantees.z_boosting.characterization import check_balance, check_p_range

Array = NDArray[np.float64]
Balance = Literal["adaptive", "free"] | float
Learner = Callable[[Array, float], tuple[Any, Array]]  # weights of the rows, balance -> model, its answers -1 / +1


@dataclass(frozen=True)
class Step:
    """One weak answer's rates and what the booster makes of them.

    Attributes
    ----------
    fpr, fnr : float
        False-positive and false-negative rate on D- and D+, in [0, 1].
    alpha, beta : float
        Vote and offset.
    positive, negative : float
        P and N: the factors of the two classes' mean exponential losses before the offset.
    """

    fpr: float
    fnr: float
    alpha: float
    beta: float
    positive: float
    negative: float

    @property
    def edge(self) -> float:
        """J = 1 - fpr - fnr, in [-1, 1]."""
        return 1 - self.fpr - self.fnr

    @property
    def perfect(self) -> bool:
        """Whether the answer, or its negation, is right on every row."""
        return abs(self.edge) >= 1 - 1e-12

    @property
    def rho(self) -> float:
        """The factor of both classes' mean exponential losses, <= sqrt(1 - J^2) where no rate is clipped."""
        return math.sqrt(self.positive * self.negative)


def step(fpr: float, fnr: float, m: float) -> Step:
    """The vote and offset that minimise the larger class's factor.

    Parameters
    ----------
    fpr, fnr : float
        Rates in [0, 1].
    m : float
        Rows: inside alpha alone the rates are clipped to [1/(4m), 1 - 1/(4m)], so that a perfect answer's vote is finite. All
        else takes the true rates, which keeps the losses exact.
    """
    if not (0 <= fpr <= 1 and 0 <= fnr <= 1):
        raise ValueError(f"fpr, fnr: got {fpr}, {fnr}; expected rates in [0, 1]")
    edge = 0.25 / m
    a, b = (min(max(r, edge), 1 - edge) for r in (fnr, fpr))
    alpha = 0.25 * math.log((1 - a) * (1 - b) / (a * b))
    up, down = math.exp(alpha), math.exp(-alpha)
    positive, negative = (1 - fnr) * down + fnr * up, (1 - fpr) * down + fpr * up
    return Step(fpr, fnr, alpha, 0.5 * math.log(positive / negative), positive, negative)


class Scores:
    """F on the training rows, and the weights that follow from it.

    Parameters
    ----------
    positive : array_like (m,) of bool
        Which rows are positive; both kinds must occur.
    weight : array_like (m,), optional
        Weights > 0 of the rows; each class is normalised to sum 1.
    """

    def __init__(self, positive: ArrayLike, weight: ArrayLike | None = None):
        self.positive = np.asarray(positive, dtype=bool)
        self.rows = (np.flatnonzero(self.positive), np.flatnonzero(~self.positive))
        if not (len(self.rows[0]) and len(self.rows[1])):
            raise ValueError("positive: expected rows of both classes")
        weight = np.ones(len(self.positive)) if weight is None else np.asarray(weight, dtype=float)
        self.m = max(float(len(self.positive)), float(weight.sum()))  # whole weights count as copies
        self.base_rate = float(weight[self.rows[0]].sum() / weight.sum())
        self._sign = np.where(self.positive, 1.0, -1.0)
        self._log = np.log(weight)
        for rows in self.rows:
            self._log[rows] -= _log_sum_exp(self._log[rows])
        self.F = np.zeros(len(self.positive))
        self.losses = (0.0, 0.0)  # logs of the means of exp(-F) over positives and of exp(F) over negatives
        self.lean = (
            0.0  # log of the ratio of the two without the offsets: the balance AdaBoost's own weights would have
        )
        self._normalise()

    def _normalise(self) -> None:
        self._d = self._log - self._sign * self.F
        sums = []
        for rows in self.rows:
            part = self._d[rows]
            sums.append(_log_sum_exp(part))
            self._d[rows] = np.exp(part - sums[-1])
        self.losses = (sums[0], sums[1])

    def weights(self, p: float) -> Array:
        """p D+ + (1-p) D- over the rows, sum 1."""
        return self._d * np.where(self.positive, p, 1 - p)

    def rates(self, h: Array) -> tuple[float, float]:
        """fpr and fnr of answers -1 / +1 on D- and D+."""
        wrong = self._d * (h * self._sign < 0)
        fnr, fpr = (float(wrong[rows].sum()) for rows in self.rows)
        return min(fpr, 1.0), min(fnr, 1.0)

    def add(self, h: Array, one: Step) -> None:
        """F += alpha h + beta, and the weights anew from F."""
        self.F += one.alpha * h + one.beta
        self.lean += math.log(one.positive / one.negative)
        self._normalise()

    @property
    def free_balance(self) -> float:
        """The balance of AdaBoost's joint weights, exp(-y sum alpha h) without the offsets."""
        odds = math.log(self.base_rate / (1 - self.base_rate)) + self.lean
        return 1 / (1 + math.exp(-min(max(odds, -30.0), 30.0)))

    def errors(self) -> tuple[int, int]:
        """How many negatives and positives sign(F) gets wrong; F = 0 counts as wrong."""
        return int((self.F[self.rows[1]] >= 0).sum()), int((self.F[self.rows[0]] <= 0).sum())


def _log_sum_exp(x: Array) -> float:
    top = float(x.max())
    return top + math.log(float(np.exp(x - top).sum()))


class Answer(NamedTuple):
    """What the learner said at a balance."""

    model: Any
    h: Array
    p: float
    step: Step


class Asking:
    """At which balance the learner is asked.

    Parameters
    ----------
    p : "adaptive", "free" or float
        Adaptive: keep the balance while \\|J\\| >= gamma/2; else sweep k/(K+1), K = ceil(2/gamma), and keep the best if its
        \\|J\\| >= gamma, else halve gamma (from 1/2) and sweep again. Free: that of AdaBoost's joint weights.
    p_range : (float, float)
        Balances that may be asked; ends other than 0 and 1 are swept too.
    gamma_min : float
        Where the adaptive search gives up.

    Attributes
    ----------
    calls : int
        How often the learner has been asked, sweeps included.
    """

    def __init__(self, p: Balance = "adaptive", p_range: tuple[float, float] = (0, 1), gamma_min: float = 1e-3):
        self.low, self.high = check_p_range(p_range)
        if isinstance(p, str):
            if p not in ("adaptive", "free"):
                raise ValueError(f"p: got {p!r}; expected 'adaptive', 'free' or a balance D(y = +1) in (0, 1)")
        else:
            p = check_balance(p)
            if not self.low <= p <= self.high:
                raise ValueError(f"p: got {p}; expected a balance inside p_range ({self.low}, {self.high})")
        if not 0 < gamma_min <= 0.5:
            raise ValueError(f"gamma_min: got {gamma_min}; expected a number in (0, 1/2]")
        self.p, self.gamma_min = p, float(gamma_min)
        self.calls = 0
        self.level, self.kept = 0.5, None if p == "adaptive" else p

    def choose(self, ask: Callable[[float], Answer], free: float) -> Answer | None:
        """An answer worth a round, or None where no balance gives an edge of gamma_min."""
        if self.p == "free":
            return ask(min(max(free, self.low or 1e-12), self.high if self.high < 1 else 1 - 1e-12))
        if self.p != "adaptive":
            return ask(float(self.p))
        if self.kept is not None:
            found = ask(float(self.kept))
            if abs(found.step.edge) >= self.level / 2:
                return found
        while self.level >= self.gamma_min:
            found = max((ask(p) for p in self.sweep()), key=lambda a: abs(a.step.edge))
            if abs(found.step.edge) >= self.level:
                self.kept = found.p
                return found
            self.level /= 2
        return None

    def sweep(self) -> list[float]:
        """The balances of a sweep at the present level."""
        k = math.ceil(2 / self.level)
        p = np.unique(np.linspace(self.low, self.high, k + 2))
        return [float(x) for x in p if 0 < x < 1]


def rounds(learner: Learner, scores: Scores, asking: Asking) -> Iterator[Answer]:
    """Boost: an answer for each round.

    ``scores`` already holds the round when it is given. The rounds end where no balance gives an edge, and after a perfect
    answer; otherwise it is the caller's to stop.

    Parameters
    ----------
    learner : callable
        Takes weights of the rows (m,), sum 1, and their balance; gives a model and its answers -1 / +1 on the rows.
    scores : Scores
        Changed in place.
    asking : Asking
        The balances.
    """

    def ask(p: float) -> Answer:
        asking.calls += 1
        model, h = learner(scores.weights(p), p)
        h = np.asarray(h, dtype=float)
        return Answer(model, h, p, step(*scores.rates(h), scores.m))

    while (found := asking.choose(ask, scores.free_balance)) is not None:
        scores.add(found.h, found.step)
        yield found
        if found.step.perfect:
            return
