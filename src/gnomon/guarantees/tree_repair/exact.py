"""Exact verification: a MILP over inputs on the thresholds that the trees test (Kantchelian, Tygar and Joseph, 2016).

One binary per distinct threshold of a feature, in order; per tree the leaves as continuous shares that sum to one, those
below a split bounded by its literal. A point of the program is a cell of inputs that reach the same leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.guarantees.tree_repair.encoding import EnsembleEncoding
from gnomon.guarantees.tree_repair.libraries import Tree
from gnomon.guarantees.tree_repair.solver import Program

TOLERANCE = 1e-6  # of the range of scores: how far into the safe side a counterexample is searched


@dataclass(frozen=True)
class Domain:
    """Which inputs are meant; missing values are not among them.

    Attributes
    ----------
    lower, upper : ndarray, shape (features,)
        Box; infinite where open.
    integer : ndarray of bool, shape (features,)
        Features that take whole numbers only.
    groups : sequence of sequences of int
        One-hot groups: exactly one of these columns is 1, the others are 0.
    near : ndarray, shape (rows, features), or None
        Where given, an input lies within ``radius`` of one of these rows in every feature.
    radius : ndarray, shape (features,), or None
    """

    lower: np.ndarray
    upper: np.ndarray
    integer: np.ndarray
    groups: tuple[tuple[int, ...], ...] = ()
    near: np.ndarray | None = None
    radius: np.ndarray | None = None

    @classmethod
    def of(cls, X: np.ndarray, *, integer: Sequence[int] | None = None, groups: Sequence[Sequence[int]] = (),
           box: bool = True, near: float | None = None) -> Domain:  # fmt: skip
        """What the rows suggest: their range, features that are whole in every row, a distance in standard deviations."""
        whole = np.zeros(X.shape[1], dtype=bool)
        known = np.where(np.isnan(X), 0.0, X)
        if integer is None:
            whole = (known == np.round(known)).all(axis=0)
        else:
            whole[list(integer)] = True
        for group in groups:
            whole[list(group)] = True
        open_end = np.full(X.shape[1], np.inf)
        low, high = (np.nanmin(X, axis=0), np.nanmax(X, axis=0)) if box else (-open_end, open_end)
        for group in groups:
            low[list(group)], high[list(group)] = 0.0, 1.0
        radius = None if near is None else near * np.nanstd(X, axis=0)
        return cls(low, high, whole, tuple(tuple(g) for g in groups), None if near is None else X, radius)


class Literals:
    """The thresholds of an ensemble that tell inputs of a domain apart, feature by feature."""

    def __init__(self, encoding: EnsembleEncoding, domain: Domain):
        self.encoding, self.domain = encoding, domain
        self.trees = encoding.trees()
        number = encoding.library.number
        self.low = domain.lower.astype(number).astype(float)
        self.high = domain.upper.astype(number).astype(float)
        kept: dict[int, set[float]] = {}
        for tree in self.trees:
            for f, q in zip(*self._tests(tree), strict=True):
                kept.setdefault(int(f), set()).add(float(q))
        self.thresholds = {f: np.array(sorted(q)) for f, q in sorted(kept.items())}
        self.first = dict(zip(self.thresholds, np.cumsum([0, *map(len, self.thresholds.values())]), strict=False))
        self.n = sum(map(len, self.thresholds.values()))

    def _tests(self, tree: Tree) -> tuple[np.ndarray, np.ndarray]:
        inner = tree.feature >= 0
        f, q = tree.feature[inner], tree.threshold[inner]
        return f, np.where(self.domain.integer[f], np.floor(q), q)  # x <= q iff x <= floor(q) among whole numbers

    def literal(self, f: int, q: float) -> int:
        """Position of the literal "feature f <= q"."""
        q = float(np.floor(q)) if self.domain.integer[f] else q
        return int(self.first[f] + np.searchsorted(self.thresholds[f], q))

    def of_features(self, features: Sequence[int]) -> np.ndarray:
        """Positions of the literals of these features."""
        parts = [self.first[f] + np.arange(len(self.thresholds[f])) for f in features if f in self.thresholds]
        return np.concatenate([np.empty(0, dtype=int), *parts])

    def box(self, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Least and largest value of every literal for inputs in a box."""
        number = self.encoding.library.number
        low, high = lower.astype(number).astype(float), upper.astype(number).astype(float)
        least, most = np.zeros(self.n), np.ones(self.n)
        low, high = (
            np.where(self.domain.integer, whole, x) for whole, x in ((np.ceil(low), low), (np.floor(high), high))
        )
        for f, q in self.thresholds.items():
            at = slice(self.first[f], self.first[f] + len(q))
            least[at], most[at] = q >= high[f], q >= low[f]
        return least, most

    def value(self, f: int, below: int, lower: float, upper: float, usual: float) -> float:
        """A value of feature f that lies above exactly ``below`` thresholds, within [lower, upper], if possible ``usual``."""
        q, number = self.thresholds.get(f, np.empty(0)), self.encoding.library.number
        low = q[below - 1] if below else -np.inf
        high = q[below] if below < len(q) else np.inf
        next_up = low + 1.0 if self.domain.integer[f] else low + max(1.0, abs(low) * 1e-3)
        if self.domain.integer[f]:
            usual, lower, upper = np.round(usual), np.ceil(lower), np.floor(upper)
        for v in (usual, high, upper, lower, next_up):
            if np.isfinite(v) and lower <= v <= upper and low < float(number(v)) <= high:
                return float(v)
        raise RuntimeError(f"feature {f}: no value between {low} and {high} within [{lower}, {upper}]")


class Input:
    """One input as columns of a program: literals, and the leaf shares of every tree."""

    def __init__(self, literals: Literals, program: Program, twin: Input | None = None, free: Sequence[int] = (),
                 box: tuple[np.ndarray, np.ndarray] | None = None):  # fmt: skip
        self.literals, self.free, self.first = literals, set(free), twin is None
        domain = literals.domain
        lower, upper = box or (domain.lower, domain.upper)
        least, most = literals.box(lower, upper)
        self.z = np.empty(literals.n, dtype=int)
        own = np.ones(literals.n, dtype=bool)
        if twin is not None:
            own[:] = False
            own[literals.of_features(list(free))] = True
            self.z[~own] = twin.z[~own]
        self.z[own] = program.columns(int(own.sum()), least[own], most[own], integer=True)
        for f, q in literals.thresholds.items():
            at = literals.first[f] + np.arange(len(q))
            if len(at) > 1 and own[at[0]]:  # x <= q1 implies x <= q2
                n = len(at) - 1
                program.rows(n, np.repeat(np.arange(n), 2), np.column_stack([self.z[at[:-1]], self.z[at[1:]]]).ravel(),
                             np.tile([1.0, -1.0], n), upper=0.0)  # fmt: skip
        for group in domain.groups:
            if twin is None or self.free & set(group):
                self._one_hot(program, group)
        if twin is None and domain.near is not None:
            self._near(program)
        self.leaf = np.empty(literals.encoding.n_leaves, dtype=int)
        for t, tree in enumerate(literals.trees):
            self._tree(program, t, tree, twin)

    def _one_hot(self, program: Program, group: Sequence[int]) -> None:
        tested = self.literals.of_features(group)
        if len(tested):  # one of the columns that no tree looks at may hold the 1
            whole = all(f in self.literals.thresholds for f in group)
            n = len(tested)
            program.rows(1, np.zeros(n, dtype=int), self.z[tested], 1.0, n - 1.0, n - 1.0 if whole else np.inf)

    def _near(self, program: Program) -> None:
        domain = self.literals.domain
        assert domain.near is not None
        assert domain.radius is not None
        boxes = [self.literals.box(row - domain.radius, row + domain.radius) for row in domain.near]
        whole = np.unique(np.array([np.concatenate(b) for b in boxes]), axis=0)
        chosen = program.columns(len(whole), 0.0, 1.0, integer=True)
        program.rows(1, np.zeros(len(whole), dtype=int), chosen, 1.0, 1.0, 1.0)
        n = self.literals.n
        for part, sign in ((whole[:, :n], 1.0), (whole[:, n:], -1.0)):  # z >= least of the row's box, z <= its most
            r, j = np.nonzero(part)
            program.rows(n, np.concatenate([np.arange(n), j]), np.concatenate([self.z, chosen[r]]),
                         np.concatenate([np.full(n, sign), np.full(len(r), -sign)]), lower=0.0)  # fmt: skip

    def _tree(self, program: Program, t: int, tree: Tree, twin: Input | None) -> None:
        first, last = self.literals.encoding.start[t : t + 2]
        if twin is not None and not self.free & {int(f) for f in tree.feature}:
            self.leaf[first:last] = twin.leaf[first:last]  # it cannot tell the two inputs apart
            return
        self.leaf[first:last] = program.columns(int(last - first), 0.0, 1.0)
        program.rows(1, np.zeros(last - first, dtype=int), self.leaf[first:last], 1.0, 1.0, 1.0)
        row: list[int] = []
        column: list[int] = []
        value: list[float] = []
        upper: list[float] = []

        def walk(node: int) -> list[int]:
            if tree.feature[node] < 0:
                return [int(tree.leaf[node])]
            left, right = walk(int(tree.left[node])), walk(int(tree.right[node]))
            z = self.z[self.literals.literal(int(tree.feature[node]), tree.threshold[node])]
            for leaves, sign, bound in ((left, -1.0, 0.0), (right, 1.0, 1.0)):  # left <= z, right <= 1 - z
                row.extend([len(upper)] * (len(leaves) + 1))
                column.extend([*self.leaf[leaves], z])
                value.extend([*[1.0] * len(leaves), sign])
                upper.append(bound)
            return left + right

        walk(0)
        if upper:
            program.rows(len(upper), row, column, value, upper=np.array(upper))

    def score(self, table: np.ndarray, c: int) -> tuple[np.ndarray, np.ndarray]:
        """Columns and coefficients of score c without its base."""
        return self.leaf, table[:, c]

    def decode(self, x: np.ndarray, usual: np.ndarray, box: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
        """An input of the cell that a solution stands for, as close to ``usual`` as the cell allows."""
        domain = self.literals.domain
        lower, upper = box or (domain.lower, domain.upper)
        z = np.round(x[self.z])
        if domain.near is not None and domain.radius is not None and self.first:
            usual, lower, upper = self._around(z, domain.near, domain.radius)
        row = np.clip(usual, lower, upper)
        for f in range(len(row)):
            at, n = self.literals.first.get(f, 0), len(self.literals.thresholds.get(f, ()))
            if n or domain.integer[f]:
                row[f] = self.literals.value(f, int((z[at : at + n] < 0.5).sum()), lower[f], upper[f], row[f])
        for group in domain.groups:
            held = [f for f in group if f in self.literals.thresholds and row[f] > 0]
            rest = [f for f in group if f not in self.literals.thresholds]
            row[rest] = 0.0
            if not held and rest:
                row[rest[0]] = 1.0
        return row

    def _around(self, z: np.ndarray, near: np.ndarray, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The row whose neighbourhood the cell meets, and that neighbourhood."""
        domain = self.literals.domain
        for row in near:
            lower, upper = np.maximum(row - radius, domain.lower), np.minimum(row + radius, domain.upper)
            least, most = self.literals.box(lower, upper)
            if (least <= z).all() and (z <= most).all():
                return row, lower, upper
        raise RuntimeError("the solver's input lies near no row")


def tolerance(encoding: EnsembleEncoding, w: np.ndarray, spread: float) -> float:
    """How far below zero a score still counts as on the border: solver tolerance, and what the library's sums may lose."""
    sums = float(np.abs(encoding.table(w)).max(initial=0.0)) * encoding.n_trees
    own = encoding.n_trees * float(np.finfo(encoding.library.stored).eps) * sums
    return max(TOLERANCE * spread, own)


def at_least(program: Program, terms: Sequence[tuple[np.ndarray, Any]], bound: float) -> None:
    """One row: the sum of (columns, coefficients) >= bound."""
    column = np.concatenate([np.asarray(c) for c, _ in terms])
    value = np.concatenate([np.broadcast_to(v, len(c)) for c, v in terms])
    program.rows(1, np.zeros(len(column), dtype=int), column, value, bound)


def differ(program: Program, one: Input, two: Input, at: np.ndarray) -> None:
    """Some literal among ``at`` has different values in the two inputs."""
    n = len(at)
    d = program.columns(n, 0.0, 1.0)
    for sign, bound in ((1.0, 0.0), (-1.0, -2.0)):  # d <= z + z', d <= 2 - z - z'
        program.rows(n, np.tile(np.arange(n), 3), np.concatenate([one.z[at], two.z[at], d]),
                     np.concatenate([np.full(2 * n, sign), np.full(n, -1.0)]), bound)  # fmt: skip
    program.rows(1, np.zeros(n, dtype=int), d, 1.0, 1.0)
