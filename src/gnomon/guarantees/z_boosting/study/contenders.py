"""Who boosts: on synthetic learners by asking, on tables by scikit-learn's interface."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from imblearn.ensemble import BalancedBaggingClassifier, RUSBoostClassifier
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier, HistGradientBoostingClassifier

from gnomon.guarantees.z_boosting.baselines import (
    AdaMEC,
    JointBoostClassifier,
    JointScores,
    Rule,
    joint_rounds,
    known_cost_balance,
)
from gnomon.guarantees.z_boosting.classifier import ZBoostClassifier
from gnomon.guarantees.z_boosting.method import Asking, Balance, Scores, rounds
from gnomon.guarantees.z_boosting.study.worlds import Adversary, World

Array = NDArray[np.float64]
WORTH = 0.01  # adaptive search on tables: at the default of 0.001 hopeless sweeps take most of the time
LEAST = 4e-3  # adaptive search on the synthetic learners: under half the smallest gap of the study's boostable sets


@dataclass
class After:
    """What is known after a round: wrong negatives and positives, calls so far, how far both losses are from the product of rho."""

    false_positives: int
    false_negatives: int
    calls: int
    deviation: float = math.nan


def _deviation(scores: Scores, log_rho: float) -> float:
    """Relative, from F alone: mean exp(-F) over positives and mean exp(F) over negatives against the product of rho."""
    found = []
    for rows, sign in zip(scores.rows, (-1, 1), strict=True):
        f = sign * scores.F[rows]
        top = float(f.max())
        found.append(abs(math.expm1(top + math.log(float(np.exp(f - top).mean())) - log_rho)))
    return max(found)


@dataclass(frozen=True)
class Ours:
    """The booster at a balance: "adaptive", "free", "oracle" (p* of the known Z), "base" (the sample's), "known costs", or a number."""

    p: Balance | str

    def balance(self, world: World) -> Balance:
        """The balance in this world."""
        if self.p == "oracle":
            return world.verdict.p
        if self.p == "base":
            return float(world.positive.mean())
        if self.p == "known costs":
            return known_cost_balance(world.weights or (1, 1))
        return self.p  # type: ignore[return-value]

    def run(self, world: World, rng: np.random.Generator) -> Iterator[After]:
        """A state for each round."""
        p_range = world.verdict.p_range
        scores, asking = Scores(world.positive), Asking(self.balance(world), p_range, LEAST)
        log_rho = 0.0
        for answer in rounds(Adversary(world.z, world.positive, rng, world.loose), scores, asking):
            log_rho += math.log(answer.step.rho)
            yield After(*scores.errors(), asking.calls, _deviation(scores, log_rho))


@dataclass(frozen=True)
class Joint:
    """A booster by joint weights; the cost-sensitive ones get the costs that start them at the best balance of the known Z.

    With ``shift`` the threshold of the scores is the one, known in hindsight, at which the larger class error is least.
    """

    rule: Rule
    shift: bool = False

    def run(self, world: World, rng: np.random.Generator) -> Iterator[After]:
        """A state for each round."""
        p, q = world.verdict.p, float(world.positive.mean())
        costs = (1.0, p / (1 - p) * (1 - q) / q)
        scores = JointScores(world.positive, self.rule, costs)
        learner = _within(Adversary(world.z, world.positive, rng, world.loose), world.verdict.p_range)
        for t, _ in enumerate(joint_rounds(learner, scores), 1):
            yield After(*(_shifted(scores) if self.shift else scores.errors()), t)


def _shifted(scores: JointScores) -> tuple[int, int]:
    """Wrong negatives and positives at the threshold where the larger of both rates is least."""
    bad, good = np.sort(scores.F[~scores.positive]), np.sort(scores.F[scores.positive])
    theta = np.concatenate([bad, [good[0] - 1.0]])  # positive where F > theta
    fp, fn = len(bad) - bad.searchsorted(theta, side="right"), good.searchsorted(theta, side="right")
    i = int(np.maximum(fp / len(bad), fn / len(good)).argmin())
    return int(fp[i]), int(fn[i])


def _within(learner: Adversary, p_range: tuple[float, float]) -> Callable[[Array, float], tuple[None, Array]]:
    """Where a promise holds only at some balances, it is asked for at the nearest of them."""
    low, high = p_range

    def ask(w: Array, p: float) -> tuple[None, Array]:
        q = min(max(p, low or 1e-9), high if high < 1 else 1 - 1e-9)
        positive = learner.truth > 0
        return learner(w * np.where(positive, q / w[positive].sum(), (1 - q) / w[~positive].sum()), q)

    return ask


SYNTHETIC: dict[str, Any] = {
    "zboost": Ours("adaptive"),
    "oracle p": Ours("oracle"),
    "p = 1/2": Ours(0.5),
    "p = base rate": Ours("base"),
    "free p": Ours("free"),
    "known costs": Ours("known costs"),
    "adaboost": Joint("adaboost"),
    "adaboost + threshold": Joint("adaboost", shift=True),
    "adac2": Joint("adac2"),
    "csb2": Joint("csb2"),
}


# --- on tables -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fitted:
    """Makes an unfitted classifier from a weak learner, the rounds, the training labels and a seed."""

    make: Callable[[Any, int, NDArray[Any], int], Any]

    def fit(self, weak: Any, n: int, X: Array, y: NDArray[Any], seed: int) -> Any:
        """Trained on rows with labels 0 / 1."""
        return self.make(clone(weak), n, y, seed).fit(X, y)

    def scores(self, weak: Any, n: int, X: Array, y: NDArray[Any], seed: int) -> Scored:
        """The score of the second class after training."""
        return Scored(self.fit(weak, n, X, y, seed))


@dataclass(frozen=True)
class Scored:
    """Rows to scores of the second class, and how many weak learners were fitted for it (NaN where that is not said)."""

    model: Any

    def __call__(self, rows: Array) -> Array:
        if hasattr(self.model, "decision_function"):
            return np.asarray(self.model.decision_function(rows), dtype=float)
        return np.asarray(self.model.predict_proba(rows)[:, 1], dtype=float)

    @property
    def fits(self) -> float:
        """Weak learners fitted."""
        members = getattr(self.model, "estimators_", None)
        return float(getattr(self.model, "n_calls_", math.nan if members is None else len(members)))


@dataclass(frozen=True)
class Stubborn(Fitted):
    """scikit-learn's boosting and RUSBoost end with an error where their first weak learner is worse than half (a noisy one by chance, a
    stump of a balanced draw on unbalanced rows): they get ten seeds, and then keep one weak learner."""

    single: Callable[[Any, int], Any] = lambda weak, seed: BaggingClassifier(
        weak, 1, bootstrap=False, random_state=seed
    )

    def fit(self, weak: Any, n: int, X: Array, y: NDArray[Any], seed: int) -> Any:
        """Trained on rows with labels 0 / 1."""
        for i in range(10):
            try:
                return super().fit(weak, n, X, y, seed + i)
            except ValueError as error:
                if "worse than random" not in str(error):
                    raise
        return self.single(clone(weak), seed).fit(X, y)


def _costs(y: NDArray[Any]) -> tuple[float, float]:
    """That make both classes weigh the same."""
    share = float(np.mean(y))
    return share, 1 - share


TABLES: dict[str, Any] = {
    "zboost": Fitted(lambda weak, n, y, seed: ZBoostClassifier(weak, n, gamma_min=WORTH, random_state=seed)),
    "adaboost": Stubborn(lambda weak, n, y, seed: AdaBoostClassifier(weak, n_estimators=n, random_state=seed)),
    "p = 1/2": Fitted(lambda weak, n, y, seed: ZBoostClassifier(weak, n, p=0.5, random_state=seed)),
    "p = base rate": Fitted(lambda weak, n, y, seed: ZBoostClassifier(weak, n, p=float(np.mean(y)), random_state=seed)),
    "adac2": Fitted(lambda weak, n, y, seed: JointBoostClassifier(weak, n, "adac2", _costs(y), seed)),
    "csb2": Fitted(lambda weak, n, y, seed: JointBoostClassifier(weak, n, "csb2", _costs(y), seed)),
    "adamec": Fitted(lambda weak, n, y, seed: AdaMEC(weak, n, _costs(y), random_state=seed)),
    "rusboost": Stubborn(
        lambda weak, n, y, seed: RUSBoostClassifier(weak, n_estimators=n, random_state=seed),
        lambda weak, seed: BalancedBaggingClassifier(weak, n_estimators=1, random_state=seed),
    ),
    "balanced bagging": Fitted(
        lambda weak, n, y, seed: BalancedBaggingClassifier(weak, n_estimators=n, random_state=seed)
    ),
    "gradient boosting": Fitted(
        lambda weak, n, y, seed: HistGradientBoostingClassifier(max_iter=n, class_weight="balanced", random_state=seed)
    ),
}
