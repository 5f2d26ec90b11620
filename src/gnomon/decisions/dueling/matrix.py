"""Who beats whom how often: preference matrices from arrays, votes, test scores, and generators."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from gnomon.decisions.dueling.streams import MATRICES, stream

TOLERANCE = 1e-6


class PreferenceMatrix:
    """The probability p_ij that arm i beats arm j, for all pairs.

    Parameters
    ----------
    p : array_like, shape (N, N)
        Probabilities in [0, 1] with p_ij + p_ji = 1 (to 1e-6); the diagonal is read as 1/2.
    labels : sequence, optional
        Names of the arms; by default 0..N-1.

    Attributes
    ----------
    n_arms : int
        N.
    condorcet_winner : int or None
        The arm a with p_aj > 1/2 for all j.
    gaps : numpy.ndarray, shape (N,)
        D_j = p_aj - 1/2, 0 for a itself. Without a Condorcet winner all are NaN.
    gap : float
        D, the least of the others' gaps (NaN without a winner; infinite for a single arm).

    Raises
    ------
    ValueError
        When it is not square, an entry is out of [0, 1], or a pair does not add up to 1; the message names the entry.
    """

    def __init__(self, p: ArrayLike, labels: Sequence[Hashable] | None = None):
        try:
            p = np.array(p, float)
        except (TypeError, ValueError):
            raise ValueError("p: expected a square array of numbers") from None
        if p.ndim != 2 or p.shape[0] != p.shape[1] or p.shape[0] == 0:
            raise ValueError(f"p: got shape {p.shape}; expected a square matrix (N, N)")
        np.fill_diagonal(p, 0.5)
        _refuse(~((p >= 0) & (p <= 1)), p, "expected a probability in [0, 1]")
        _refuse(np.abs(p + p.T - 1) > TOLERANCE, p, "expected p_ij + p_ji = 1, got {1!r} for p_ji")
        self._dense: np.ndarray | None = p
        self.scores = np.empty(0)
        self._name(labels, len(p))

    def _name(self, labels: Sequence[Hashable] | None, n: int) -> None:
        self.n_arms = n
        self.labels = list(range(n)) if labels is None else list(labels)
        if len(self.labels) != n or len(set(self.labels)) != n:
            raise ValueError(
                f"labels: got {len(self.labels)} names, {len(set(self.labels))} of them different; expected {n}"
            )

    @property
    def p(self) -> np.ndarray:
        """The matrix (N, N)."""
        if self._dense is None:
            self._dense = 1 / (1 + np.exp(self.scores - self.scores[:, None]))
        return self._dense

    @property
    def condorcet_winner(self) -> int | None:
        if self.scores.size:
            first = int(self.scores.argmax())
            return first if (self.scores == self.scores[first]).sum() == 1 else None
        won = (self.p > 0.5).sum(axis=1)
        first = int(won.argmax())
        return first if won[first] == self.n_arms - 1 else None

    @property
    def gaps(self) -> np.ndarray:
        a = self.condorcet_winner
        if a is None:
            return np.full(self.n_arms, np.nan)
        row = 1 / (1 + np.exp(self.scores - self.scores[a])) if self.scores.size else self.p[a]
        return np.where(np.arange(self.n_arms) == a, 0.0, row - 0.5)

    @property
    def gap(self) -> float:
        a = self.condorcet_winner
        if a is None:
            return float("nan")
        return float(np.delete(self.gaps, a).min(initial=np.inf))

    def three_cycles(self) -> int:
        """How many triples beat each other in a circle (p > 1/2 each)."""
        beats = (self.p > 0.5).astype(np.int64)
        return int(np.trace(beats @ beats @ beats)) // 3

    def restricted(self, arms: Sequence[int]) -> PreferenceMatrix:
        """The matrix among some arms."""
        arms = list(arms)
        return PreferenceMatrix(self.p[np.ix_(arms, arms)], [self.labels[a] for a in arms])

    # --- from data ---

    @classmethod
    def from_votes(cls, winners: Sequence[Hashable], losers: Sequence[Hashable], smoothing: float = 1.0) -> Self:
        """From votes "this one beat that one": p_ij = (w_ij + smoothing) / (w_ij + w_ji + 2 smoothing) (Laplace).

        Parameters
        ----------
        winners, losers : sequence, the same length
            Names; arms are numbered in the order in which they first appear.
        smoothing : float
            Above 0. Pairs without votes get 1/2.
        """
        winners, losers = list(winners), list(losers)
        if len(winners) != len(losers) or not winners:
            raise ValueError(
                f"winners and losers: got {len(winners)} and {len(losers)}; expected equal lengths of 1 or more"
            )
        if not smoothing > 0 or not np.isfinite(smoothing):
            raise ValueError(f"smoothing: got {smoothing!r}; expected a number above 0")
        names: dict[Hashable, int] = {}
        for k, pair in enumerate(zip(winners, losers, strict=True)):
            if pair[0] == pair[1]:
                raise ValueError(f"vote {k}: {pair[0]!r} against itself; expected two different arms")
            for name in pair:
                names.setdefault(name, len(names))
        wins = np.zeros((len(names), len(names)))
        np.add.at(wins, ([names[w] for w in winners], [names[x] for x in losers]), 1)
        return cls((wins + smoothing) / (wins + wins.T + 2 * smoothing), list(names))

    @classmethod
    def from_results(
        cls, wins: ArrayLike, draws: ArrayLike | None = None, labels: Sequence[Hashable] | None = None
    ) -> Self:
        """From counts: p_ij = (wins_ij + draws_ij / 2) / matches; pairs that never met get 1/2.

        Parameters
        ----------
        wins : array_like, shape (N, N)
            Wins of i over j.
        draws : array_like, shape (N, N), optional
            Symmetric.
        labels : sequence, optional
            Names.
        """
        w = np.asarray(wins, float)
        d = np.zeros_like(w) if draws is None else np.asarray(draws, float)
        if w.ndim != 2 or w.shape[0] != w.shape[1] or d.shape != w.shape:
            raise ValueError(f"wins and draws: got shapes {w.shape} and {d.shape}; expected (N, N)")
        if not (
            np.isfinite(w).all() and np.isfinite(d).all() and (w >= 0).all() and (d >= 0).all() and (d == d.T).all()
        ):
            raise ValueError("wins and draws: expected counts of 0 or more, draws the same both ways")
        matches = w + w.T + d
        return cls(np.where(matches > 0, (w + d / 2) / np.maximum(matches, 1), 0.5), labels)

    @classmethod
    def from_scores(cls, scores: ArrayLike, labels: Sequence[Hashable] | None = None) -> Self:
        """From scores of systems on shared test items: p_ij is the share of items on which i scores higher, ties halved.

        Parameters
        ----------
        scores : array_like, shape (N, items)
            Larger is better.
        labels : sequence, optional
            Names.
        """
        x = np.asarray(scores, float)
        if x.ndim != 2 or x.shape[1] == 0 or not np.isfinite(x).all():
            raise ValueError(f"scores: got shape {x.shape}; expected finite numbers (systems, items)")
        p = np.array([((row > x).mean(axis=1) + (row >= x).mean(axis=1)) / 2 for row in x])
        return cls(p, labels)

    @classmethod
    def bradley_terry(cls, scores: ArrayLike, labels: Sequence[Hashable] | None = None) -> Self:
        """p_ij = 1 / (1 + exp(s_j - s_i)). The matrix itself is made only when ``p`` is read: N = 10^5 is no problem."""
        s = np.array(scores, float)
        if s.ndim != 1 or s.size == 0 or not np.isfinite(s).all():
            raise ValueError(f"scores: got shape {s.shape}; expected finite numbers (N,)")
        made = cls.__new__(cls)
        made._dense, made.scores = None, s
        made._name(labels, s.size)
        return made

    # --- generators ---

    @classmethod
    def flat(cls, n_arms: int, gap: float = 0.1, random_state: Any = None) -> Self:
        """A Condorcet winner by ``gap`` over each other arm, who are all equal to each other."""
        _, a, p = _start(n_arms, gap, random_state)
        return cls(_crown(p, a, gap))

    @classmethod
    def cyclic(cls, n_arms: int, gap: float = 0.1, random_state: Any = None) -> Self:
        """A Condorcet winner by ``gap`` over each other arm; among these, p uniform on (0.1, 0.9), in circles too."""
        rng, a, p = _start(n_arms, gap, random_state)
        upper = np.triu(rng.uniform(0.1, 0.9, p.shape), 1)
        return cls(_crown(upper + np.tril(1 - upper.T, -1) + np.diag(np.full(n_arms, 0.5)), a, gap))

    @classmethod
    def random_bradley_terry(cls, n_arms: int, lift: float = 0.4, random_state: Any = None) -> Self:
        """Bradley-Terry with scores uniform on (0, 1), the best raised by ``lift``."""
        scores = _start(n_arms, 0.5, random_state)[0].uniform(size=n_arms)
        scores[scores.argmax()] += lift
        return cls.bradley_terry(scores)

    @classmethod
    def hard_condorcet(cls, n_arms: int, random_state: Any = None) -> Self:
        """A total order: the arm of rank r (1 the best) beats that of rank q > r with 1/2 + q / (2 N).

        Urvoy et al. (2013), section 5.2.1; the winner's gap over the second is 1 / N. (duelpy's generator counts from the
        other end, which leaves its winner a gap of 1e-10 over one arm: nobody can identify it.)
        """
        rng, _, _ = _start(n_arms, 0.5, random_state)
        rank = rng.permutation(n_arms)
        worse = np.maximum(rank[:, None], rank[None, :]) + 1
        return cls(0.5 + worse / (2 * n_arms) * np.sign(rank[None, :] - rank[:, None]))


def _refuse(wrong: np.ndarray, p: np.ndarray, why: str) -> None:
    if wrong.any():
        i, j = map(int, np.argwhere(wrong)[0])
        raise ValueError(f"p[{i}, {j}] is {float(p[i, j])!r}: " + why.format(p[i, j], float(p[j, i])))


def _start(n_arms: int, gap: float, random_state: Any) -> tuple[np.random.Generator, int, np.ndarray]:
    if isinstance(n_arms, bool) or not isinstance(n_arms, int | np.integer) or n_arms < 1:
        raise ValueError(f"n_arms: got {n_arms!r}; expected an integer of 1 or more")
    if not 0 < gap <= 0.5:
        raise ValueError(f"gap: got {gap!r}; expected a number in (0, 0.5]")
    rng = stream(random_state, MATRICES)
    return rng, int(rng.integers(n_arms)), np.full((n_arms, n_arms), 0.5)


def _crown(p: np.ndarray, a: int, gap: float) -> np.ndarray:
    p[a], p[:, a] = 0.5 + gap, 0.5 - gap
    p[a, a] = 0.5
    return p
