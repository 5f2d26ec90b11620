"""Synthetic distributions with a known truth: copied pairs along matchings, one of which a cue chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gnomon.architectures.probabilistic_circuits.bounds import Matching, copy_entropy


def factorization(T: int) -> list[list[tuple[int, int]]]:
    """The T - 1 perfect matchings of the complete graph on T vertices by the circle method (T even).

    The first is the one that a balanced vtree holds, (0, 1), (2, 3), ...: the vertices are renamed so.
    """
    if T < 2 or T % 2:
        raise ValueError(f"T: got {T}; expected an even number of at least 2")
    rounds = []
    for r in range(T - 1):
        pairs = [(T - 1, r)] + [((r + i) % (T - 1), (r - i) % (T - 1)) for i in range(1, T // 2)]
        rounds.append(pairs)
    name = {v: i for i, v in enumerate(v for pair in rounds[0] for v in pair)}
    return [sorted((min(name[a], name[b]), max(name[a], name[b])) for a, b in pairs) for pairs in rounds]


def aligned(T: int) -> list[tuple[int, int]]:
    """(0, 1), (2, 3), ...: siblings of a balanced vtree."""
    return [(i, i + 1) for i in range(0, T - 1, 2)]


def crossing(T: int) -> list[tuple[int, int]]:
    """(0, T/2), (1, T/2 + 1), ...: every pair crosses the middle."""
    return [(i, i + T // 2) for i in range(T // 2)]


@dataclass(frozen=True)
class Copies:
    """x_1 .. x_T in pairs: one end uniform over V, the other a noisy copy; a uniform cue chooses the matching.

    Attributes
    ----------
    matchings : sequence of matchings
        Over the T variables.
    n_symbols : int
        V.
    noise : float
        Probability that a copy is replaced by a uniform symbol.
    cue : bool
        Whether column 0 of the data is the number of the matching; otherwise nobody sees which it was.
    """

    matchings: Sequence[Matching]
    T: int = 8
    n_symbols: int = 4
    noise: float = 0.05
    cue: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Alphabets of the columns."""
        return ((len(self.matchings),) if self.cue else ()) + (self.n_symbols,) * self.T

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """n rows [n, T], or [n, 1 + T] with the cue."""
        X = rng.integers(self.n_symbols, size=(n, self.T))
        which = rng.integers(len(self.matchings), size=n)
        for j, matching in enumerate(self.matchings):
            rows = np.flatnonzero(which == j)
            for a, b in matching:
                kept = rng.random(len(rows)) >= self.noise
                X[rows[kept], b] = X[rows[kept], a]
        return np.column_stack([which, X]) if self.cue else X

    @cached_property
    def conditionals(self) -> np.ndarray:
        """p(x | matching) [M, V, ..., V]."""
        V = self.n_symbols
        pair = (self.noise / V + (1 - self.noise) * np.eye(V)) / V
        tables = []
        for matching in self.matchings:
            table = np.ones((V,) * self.T)
            free = set(range(self.T))
            for a, b in matching:
                shape = [V if v in (a, b) else 1 for v in range(self.T)]
                table = table * pair.reshape(shape)  # symmetric, so that the order of its axes does not matter
                free -= {a, b}
            tables.append(table / V ** len(free))
        return np.stack(tables)

    @property
    def truth(self) -> np.ndarray:
        """p(x | cue) [M, V, ..., V]; without a cue the mixture [1, V, ..., V]."""
        return self.conditionals if self.cue else self.conditionals.mean(0, keepdims=True)

    @property
    def entropy(self) -> float:
        """Least NLL in nats of a row given its cue."""
        p = self.truth
        return float(-np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum() / len(p))

    @property
    def copy_entropy(self) -> float:
        return copy_entropy(self.n_symbols, self.noise)
