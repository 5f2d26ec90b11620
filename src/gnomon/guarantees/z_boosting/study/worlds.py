"""Synthetic learners that keep a promise Z and nothing more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnomon.guarantees.z_boosting.characterization import Verdict, boostable
from gnomon.guarantees.z_boosting.sets import ZSet

Array = NDArray[np.float64]
POSITIVES, NEGATIVES = 300, 500
PASSES = 4  # over ever lighter rows


def _square(centre: float, half: float = 0.05) -> list[tuple[float, float]]:
    a, b = centre - half, centre + half
    return [(a, a), (b, a), (b, b), (a, b)]


def _half_ring(sign: int, centre: float = 0.14, inner: float = 0.06, outer: float = 0.09) -> Array:
    turn = np.linspace(0, np.pi, 13) * sign
    arc = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    return centre + np.concatenate([inner * arc, outer * arc[::-1]])


RECTANGLES = {f"{a:g} x {b:g}": (a, b) for a, b in
              ((0.2, 0.2), (0.55, 0.05), (0.5, 0.06), (0.05, 0.55), (0.3, 0.2), (0.25, 0.25), (0.6, 0.06))}  # fmt: skip
SETS: dict[str, tuple[ZSet, tuple[float, float]]] = {
    **{name: (ZSet.rectangle(*corner), (0.0, 1.0)) for name, corner in RECTANGLES.items()},
    "half-plane": (ZSet.halfplane((1, 3), 0.2), (0.0, 1.0)),
    "L": (ZSet.polygon([(0, 0), (0.35, 0), (0.35, 0.05), (0.1, 0.05), (0.1, 0.3), (0, 0.3)]), (0.0, 1.0)),
    "blobs": (ZSet.union(ZSet.polygon(_square(0.15)), ZSet.polygon(_square(0.35))), (0.2, 0.8)),
    "ring": (ZSet.union(ZSet.polygon(_half_ring(1)), ZSet.polygon(_half_ring(-1))), (0.2, 0.8)),
}
WEIGHTS = {"half-plane": (1.0, 3.0)}  # of the sets that are one known weighted bound


class Adversary:
    """Knows the labels, answers with the pair of Z that is worth least at the balance asked.

    It errs on a random part of each class whose weight is the pair's. Rows that would overshoot are passed over for lighter ones, and the
    last row errs with the probability that makes the expected weight exact: so every answer keeps the promise to within a light row, as
    near as a finite sample lets it. With ``loose`` the first row that overshoots is that last row, and the promise holds on average
    only. Where a coin meets Z it does as well as a coin and no better.
    """

    def __init__(self, z: ZSet, positive: NDArray[np.bool_], rng: np.random.Generator, loose: bool = False):
        self.z, self.rng = z, rng
        self.truth = np.where(positive, 1.0, -1.0)
        self.rows = (np.flatnonzero(~positive), np.flatnonzero(positive))
        self.passes = 1 if loose else PASSES
        self._at: dict[float, Array] = {}

    def __call__(self, w: Array, p: float) -> tuple[None, Array]:
        """Weights of the rows (sum 1) and their balance; answers -1 / +1."""
        if p not in self._at:
            if len(self._at) > 100_000:
                self._at.clear()
            self._at[p] = self.z.weakest(p)[1]
        h = self.truth.copy()
        for rows, joint in zip(self.rows, self._at[p], strict=True):
            h[self._wrong(w, rows, float(joint))] *= -1
        return None, h

    def _wrong(self, w: Array, rows: NDArray[np.int64], left: float) -> NDArray[np.int64]:
        order = self.rng.permutation(rows)
        chosen = []
        for _ in range(self.passes):
            weight = w[order]
            sums = weight.cumsum()
            k = int(sums.searchsorted(left, side="right"))
            chosen.append(order[:k])
            if k == len(order):
                return np.concatenate(chosen)
            left -= float(sums[k - 1]) if k else 0.0
            last, heavy = order[k : k + 1], float(weight[k])
            order = order[k + 1 :][weight[k + 1 :] <= left]
            if not len(order):
                break
        if self.rng.random() * heavy < left:
            chosen.append(last)
        return np.concatenate(chosen)


@dataclass(frozen=True)
class World:
    """A promise, its verdict, the sample's classes, and how many rounds are run."""

    z: ZSet
    verdict: Verdict
    positive: NDArray[np.bool_]
    budget: int
    weights: tuple[float, float] | None
    loose: bool = False

    @property
    def bound(self) -> float:
        """Rounds that suffice."""
        return self.verdict.rounds(max(POSITIVES, NEGATIVES))


def world(name: str, most: int, void: int, loose: bool = False) -> World:
    """The world of a set: the bound and one round more, at most ``most``; ``void`` rounds where none suffice."""
    z, p_range = SETS[name]
    verdict = boostable(z, p_range)
    bound = verdict.rounds(max(POSITIVES, NEGATIVES))
    positive = np.arange(POSITIVES + NEGATIVES) < POSITIVES
    return World(z, verdict, positive, int(min(bound + 1, most)) if np.isfinite(bound) else void,
                 WEIGHTS.get(name), loose)  # fmt: skip
