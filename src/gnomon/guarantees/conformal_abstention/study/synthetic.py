"""Beta mixtures with known truth, and one call for each way of choosing a threshold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from gnomon.guarantees.conformal_abstention.baselines import uncorrected
from gnomon.guarantees.conformal_abstention.certificates import Rule, Sample, Target, certify
from gnomon.guarantees.conformal_abstention.thresholds import (
    Threshold,
    joint_threshold,
    pac_grid,
    pac_threshold,
    participation_threshold,
    rejection_threshold,
)

ACCURACY, BATCH = 0.45, 200
TARGET = Target(correctness=0.75, participation=0.5, eps=0.125, delta=0.1)
CORRECT_KEPT, WRONG_LET = 0.8, 0.2  # of the thresholds within the correct and the wrong


class World(NamedTuple):
    """Scores of correct and of wrong responses: Beta(a, b) each."""

    correct: tuple[float, float]
    wrong: tuple[float, float]

    def draw(self, n: int, rng: np.random.Generator) -> Sample:
        """``n`` items with tie-breakers."""
        C = rng.random(n) < ACCURACY
        a, b = (np.where(C, *pair) for pair in zip(self.correct, self.wrong, strict=True))
        return Sample(rng.beta(a, b), C, rng.random(n))

    def truth(self, at: Any) -> tuple[Any, Any]:
        """P(answer | correct) and P(answer | wrong) at thresholds."""
        x = np.clip(at, 0, 1)
        return tuple(1 - special.betainc(*pair, x) for pair in (self.correct, self.wrong))  # type: ignore[return-value]

    def best_coverage(self, correctness: float) -> float:
        """The largest share of answers with P(correct | answer) >= correctness, the law being known."""
        hit, let = self.truth(np.linspace(0, 1, 100_001))
        share, right = ACCURACY * hit + (1 - ACCURACY) * let, ACCURACY * hit
        return float(share[right >= correctness * share].max())


WORLDS = {
    "informative": World((3, 2), (2, 3)),
    "sharp": World((12, 2), (2, 6)),
    "noise": World((1, 1), (1, 1)),
    "reversed": World((2, 3), (3, 2)),
}
SIZES = {
    "informative": (50, 100, 200, 400, 1000),
    "sharp": (50, 100, 200, 400, 1000),
    "noise": (50, 200, 1000),
    "reversed": (50, 200, 1000),
}

Way = Callable[[Sample, Sample, Target], "Rule | Threshold"]


def certificate(kind: str) -> Way:
    """One of the five, without the bootstrap that words a statement."""
    return lambda cal, fit, target: certify(kind, cal, fit, target, None)


WAYS: dict[str, Way] = {
    "both": certificate("both"),
    "ratio": certificate("ratio"),
    "pac": certificate("pac"),
    "fdr": certificate("fdr"),
    "bayes": certificate("bayes"),
    "pac from the top": lambda cal, fit, t: pac_threshold(
        cal.S, cal.C, pac_grid(fit.S, len(cal.S), t.correctness, t.delta, start="top"), t.correctness, t.delta),
    "participation": lambda cal, fit, t: participation_threshold(cal.S, 1 - float(t.participation or 0), cal.u),
    "if correct": lambda cal, fit, t: participation_threshold(cal.S[cal.C], 1 - CORRECT_KEPT, cal.u[cal.C]),
    "if wrong": lambda cal, fit, t: rejection_threshold(cal.S[~cal.C], WRONG_LET, cal.u[~cal.C]),
    "joint": lambda cal, fit, t: joint_threshold(cal.S, cal.C, float(t.eps or 0), cal.u),
    "uncorrected": lambda cal, fit, t: uncorrected(cal.S, cal.C, t.correctness),
}  # fmt: skip


def one_draw(way: Way, world: World, cal: Sample, fit: Sample, new: Sample) -> dict[str, float]:
    """What one calibration set leads to: exact probabilities given it, of ``fdr`` the outcome on one batch."""
    made = way(cal, fit, TARGET)
    if isinstance(made, Rule) and made.threshold is None:
        answered = made.decide(new.S, new.u)
        wrong = int((answered & ~new.C).sum())
        return {"answered": float(answered.mean()), "joint": wrong / len(new.S), "wrong_share": wrong / max(1, int(answered.sum())),
                "hit": math.nan, "miss": math.nan, "violated": math.nan, "infeasible": 0.0}  # fmt: skip
    at = made.threshold if isinstance(made, Rule) else made
    assert at is not None
    hit, miss = (float(x) for x in world.truth(at.score))
    share, joint = ACCURACY * hit + (1 - ACCURACY) * miss, (1 - ACCURACY) * miss
    bound = (
        made.certificate.values.get("correctness", TARGET.correctness) if isinstance(made, Rule) else TARGET.correctness
    )
    correct = 1 - joint / share if share > 0 else 1.0
    return {"answered": share, "joint": joint, "wrong_share": 1 - correct, "hit": hit, "miss": miss, "violated": float(correct < bound),
            "infeasible": float(isinstance(made, Rule) and made.certificate.infeasible)}  # fmt: skip


def blocks(way: Way, world: World, n: int, draws: int, rng: np.random.Generator) -> Iterator[dict[str, float]]:
    """Means over blocks of draws: as many numbers as a mean and its error need, few enough to keep."""
    count = min(100, draws // 10)
    for block in range(count):
        rows = []
        for _ in range(draws // count):
            cal, fit, new = world.draw(n, rng), world.draw(round(n * 2 / 3), rng), world.draw(BATCH, rng)
            rows.append(one_draw(way, world, cal, fit, new))
        yield {"block": block, **{k: float(np.mean([r[k] for r in rows])) for k in rows[0]}}
