r"""The MILP over leaf values: demands as constraints, performance as the objective.

With d = w - w0 = p - q, p, q >= 0, the *advantage* of label c over label k at a leaf pattern is linear in d:
F_c - F_k, or with two classes +F or -F. Every constraint and every objective is written in advantages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gnomon.guarantees.tree_repair.counterexamples import Demand, agreed, components
from gnomon.guarantees.tree_repair.encoding import EnsembleEncoding
from gnomon.guarantees.tree_repair.solver import Program, Solution, solve

OBJECTIVES = ("hinge", "errors", "flips", "l1", "logloss")
TANGENTS = (-6.0, -3.0, -1.5, -0.5, 0.5, 1.5, 3.0)  # where the logistic loss is first approximated
CUT_ROUNDS = 5


@dataclass(frozen=True)
class Rows:
    """Training rows in terms of leaves: distinct (pattern, label) with the number of rows that have them.

    Attributes
    ----------
    leaves : ndarray of int, shape (distinct, trees)
    labels, original : ndarray of int, shape (distinct,)
        Positions of the given label, and of the one that the original model decides.
    weight : ndarray, shape (distinct,)
    n : int
        Number of rows.
    coverage : ndarray, shape (leaves,)
        Share of the rows in each leaf.
    """

    leaves: np.ndarray
    labels: np.ndarray
    original: np.ndarray
    weight: np.ndarray
    n: int
    coverage: np.ndarray

    @classmethod
    def of(cls, encoding: EnsembleEncoding, X: np.ndarray, y: np.ndarray, compress: bool = True) -> Rows:
        """Find the leaves of the rows X (rows, features) with labels y (positions), and merge those that agree."""
        leaves = encoding.leaves(X)
        coverage = np.bincount(leaves.ravel(), minlength=encoding.n_leaves) / max(1, len(X))
        weight: np.ndarray = np.ones(len(X))
        if compress:
            both = np.ascontiguousarray(np.column_stack([leaves, y.astype(np.int32)]))
            whole = both.view([("", both.dtype)] * both.shape[1]).ravel()
            _, first, weight = np.unique(whole, return_index=True, return_counts=True)
            leaves, y, weight = leaves[first], y[first], weight.astype(float)
        return cls(leaves, y, encoding.decide(encoding.scores_at(leaves)), weight, len(X), coverage)


@dataclass(frozen=True)
class Options:
    """How the program is built.

    Attributes
    ----------
    objective : {"hinge", "errors", "flips", "l1", "logloss"}
    margin : float
        Absolute: by how much a demanded label must win.
    change : float
        Bound on the change of each leaf value.
    hinge : float
        Where the hinge loss ends.
    penalty : float
        lam, of the coverage-weighted sum of changes.
    distribution : bool
        Whether the leaves of a forest stay distributions.
    big_m : float or None
        One constant for all rows in place of each row's own.
    """

    objective: str = "hinge"
    margin: float = 1e-3
    change: float = math.inf
    hinge: float = 0.5
    penalty: float = 5e-3
    distribution: bool = True
    big_m: float | None = None


@dataclass
class Advantage:
    """R linear expressions in d: entries (row, variable, sign), the value at d = 0, and the interval they can lie in."""

    row: np.ndarray
    variable: np.ndarray
    sign: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass
class Choice:
    """The binaries of one demand: column of each label that may be decided."""

    demand: int
    labels: np.ndarray
    columns: np.ndarray


class RepairProgram:
    """The program of one repair.

    Parameters
    ----------
    encoding : EnsembleEncoding
        Of the original model.
    rows : Rows
        What the objective is over.
    wanted : sequence of Demand
        What must hold.
    options : Options
        See there.
    elastic : bool
        Whether each demand may be missed by a slack, and nothing but the sum of slacks is minimised.
    """

    def __init__(
        self, encoding: EnsembleEncoding, rows: Rows, wanted: Sequence[Demand], options: Options, elastic: bool = False
    ):
        self.encoding, self.rows, self.wanted, self.options, self.elastic = encoding, rows, wanted, options, elastic
        w = encoding.w
        low, high = w - options.change, w + options.change
        if encoding.votes and options.distribution:
            low = np.maximum(low, (-1 if encoding.n_outputs == 1 else 0) / encoding.n_trees)
            high = np.minimum(high, 1 / encoding.n_trees)
        self.down, self.up = np.maximum(0.0, w - low), np.maximum(0.0, high - w)
        self.program = Program()
        n = len(w)
        weight = self._penalty()
        self.p = self.program.columns(n, 0.0, self.up, weight)
        self.q = self.program.columns(n, 0.0, self.down, weight)
        self.offset = 0.0
        self.choices: list[Choice] = []
        if encoding.votes and options.distribution and encoding.n_outputs > 1:
            self._stay_distributions()
        self.slack = self.program.columns(len(wanted), cost=1.0) if elastic else None
        for i, demand in enumerate(wanted):
            self._demand(i, demand)
        self.loss: np.ndarray | None = None
        if not elastic:
            self._objective()

    # --- pieces ---
    def _penalty(self) -> np.ndarray:
        if self.elastic:
            return np.zeros(len(self.encoding.w))
        variable = self.encoding.variable
        leaf, output = np.nonzero(variable >= 0)
        coverage = np.empty(len(self.encoding.w))
        coverage[variable[leaf, output]] = self.rows.coverage[leaf]
        weight = self.options.penalty * (coverage + 1 / max(1, self.rows.n))
        return weight + 1 if self.options.objective == "l1" else weight

    def _stay_distributions(self) -> None:
        v = self.encoding.variable
        leaf = np.repeat(np.arange(len(v)), v.shape[1])
        row, variable = np.tile(leaf, 2), np.concatenate([self.p[v.ravel()], self.q[v.ravel()]])
        self.program.rows(len(v), row, variable, np.repeat([1.0, -1.0], v.size), 0.0, 0.0)

    def advantage(self, leaves: np.ndarray, label: Any, other: Any) -> Advantage:
        """Of ``label`` over ``other`` (positions, one each per pattern) at leaf patterns (R, trees)."""
        encoding = self.encoding
        label, other = (np.broadcast_to(np.asarray(v), len(leaves)) for v in (label, other))
        if encoding.n_outputs == 1:
            s = np.where(label == 1, 1.0, -1.0)
            variable, sign = encoding.variable[leaves, 0], np.repeat(s[:, None], leaves.shape[1], axis=1)
            base = s * encoding.base[0]
        else:
            variable = np.hstack([encoding.variable[leaves, label[:, None]], encoding.variable[leaves, other[:, None]]])
            sign = np.repeat([[1.0, -1.0]], len(leaves), axis=0).repeat(leaves.shape[1], axis=1)
            base = encoding.base[label] - encoding.base[other]
        there = variable >= 0
        row = np.nonzero(there)[0]
        variable, sign = variable[there], sign[there]

        def total(x: np.ndarray) -> np.ndarray:
            return np.bincount(row, x, minlength=len(leaves))

        value = base + total(sign * encoding.w[variable])
        up, down = self.up[variable], self.down[variable]
        return Advantage(
            row,
            variable,
            sign,
            value,
            value - total(np.where(sign > 0, down, up)),
            value + total(np.where(sign > 0, up, down)),
        )

    def _at_least(self, a: Advantage, bound: Any, extra: Sequence[tuple[np.ndarray, Any]] = ()) -> None:
        """Rows: advantage + sum of (column, coefficient) >= bound, one column of each pair per row."""
        n = len(a.value)
        row, column, value = [a.row, a.row], [self.p[a.variable], self.q[a.variable]], [a.sign, -a.sign]
        for columns, coefficient in extra:
            row.append(np.arange(n))
            column.append(np.broadcast_to(columns, n))
            value.append(np.broadcast_to(np.asarray(coefficient, dtype=float), n))
        self.program.rows(n, np.concatenate(row), np.concatenate(column), np.concatenate(value), bound - a.value)

    def _missed(self, i: int, n: int) -> list[tuple[np.ndarray, Any]]:
        return [] if self.slack is None else [(np.full(n, self.slack[i]), 1.0)]

    # --- demands ---
    def _demand(self, i: int, demand: Demand) -> None:
        if demand.kind == "close":
            return self._close(i, demand)
        classes = np.arange(len(self.encoding.classes))
        leaves = demand.leaves
        if len(leaves) == 2 and np.array_equal(leaves[0], leaves[1]):
            if not demand.strict:
                return None  # one score, one decision
            leaves = leaves[:1]
        if demand.kind == "same":
            return self._one_of(i, leaves, classes)
        if len(demand.labels) == len(classes):
            return None
        if len(demand.labels) == 1:
            for k in classes[classes != demand.labels[0]]:
                self._at_least(
                    self.advantage(leaves, demand.labels[0], k), self.options.margin, self._missed(i, len(leaves))
                )
            return None
        return self._one_of(i, leaves, np.array(demand.labels))

    def _one_of(self, i: int, leaves: np.ndarray, labels: np.ndarray) -> None:
        """One of the labels wins at all the patterns: z one-hot, and each advantage >= margin - M (1 - z)."""
        m, two = self.options.margin, len(self.encoding.classes) == 2
        z = self.program.columns(1 if two else len(labels), 0.0, 1.0, integer=True)
        if not two:
            self.program.rows(1, np.zeros(len(z), dtype=int), z, 1.0, 1.0, 1.0)
        self.choices.append(Choice(i, labels, z))
        for k, label in enumerate(labels):
            for other in range(len(self.encoding.classes)):
                if other == label:
                    continue
                a = self.advantage(leaves, label, other)
                big = (
                    np.maximum(0.0, m - a.low)
                    if self.options.big_m is None
                    else np.full(len(a.low), self.options.big_m)
                )
                if two and label == 0:  # its binary is 1 - z
                    self._at_least(a, m, [(np.full(len(big), z[0]), big), *self._missed(i, len(big))])
                else:
                    column = z[0] if two else z[k]
                    self._at_least(a, m - big, [(np.full(len(big), column), -big), *self._missed(i, len(big))])

    def _close(self, i: int, demand: Demand) -> None:
        encoding, (one, two) = self.encoding, demand.leaves
        for c in range(encoding.n_outputs):
            first, second = encoding.variable[one, c], encoding.variable[two, c]
            variable = np.concatenate([first[first >= 0], second[second >= 0]])
            sign = np.repeat([1.0, -1.0], [(first >= 0).sum(), (second >= 0).sum()])
            apart = float(sign @ encoding.w[variable])
            for side in (1.0, -1.0):  # side * (F(x) - F(x')) <= eps
                column = np.concatenate([self.p[variable], self.q[variable]])
                value = -side * np.concatenate([sign, -sign])
                if self.slack is not None:
                    column, value = np.append(column, self.slack[i]), np.append(value, 1.0)
                self.program.rows(1, np.zeros(len(column), dtype=int), column, value, side * apart - demand.eps)

    # --- objectives ---
    def _objective(self) -> None:
        kind, rows = self.options.objective, self.rows
        if kind == "l1" or not len(rows.weight):
            return
        if kind == "logloss":
            self.loss = self.program.columns(len(rows.weight), 0.0, cost=rows.weight / rows.n)
            for value in TANGENTS if self.encoding.n_outputs == 1 else ():
                self._tangent(np.full((len(rows.weight), 1), value))
            self._tangent(self.encoding.scores_at(rows.leaves))
            return
        labels = rows.original if kind == "flips" else rows.labels
        if kind == "hinge":
            self.loss = self.program.columns(len(rows.weight), 0.0, cost=rows.weight / rows.n)
        else:
            self.loss = self.program.columns(len(rows.weight), 0.0, 1.0, cost=rows.weight / rows.n, integer=True)
        for shift in range(1, len(self.encoding.classes)):
            other = (labels + shift) % len(self.encoding.classes)
            a = self.advantage(rows.leaves, labels, other)
            if kind == "hinge":
                self._at_least(a, self.options.hinge, [(self.loss, 1.0)])
            else:  # a row that no change within the bounds can lose needs no binary: its M is 0
                big = np.maximum(0.0, self.options.margin - a.low)
                if self.options.big_m is not None:
                    big = np.full(len(big), self.options.big_m)
                self._at_least(a, self.options.margin, [(self.loss, big)])

    def _tangent(self, at: np.ndarray) -> None:
        """loss >= its tangent plane at the scores ``at`` (distinct rows, outputs); the loss is convex in the scores."""
        assert self.loss is not None
        rows, encoding = self.rows, self.encoding
        if encoding.n_outputs == 1:
            s = np.where(rows.labels == 1, 1.0, -1.0)
            value, slope = np.logaddexp(0.0, -s * at[:, 0]), -s / (1 + np.exp(np.clip(s * at[:, 0], -500, 500)))
            gradient = slope[:, None]
        else:
            top = at.max(axis=1, keepdims=True)
            share = np.exp(at - top)
            value = top[:, 0] + np.log(share.sum(axis=1)) - at[np.arange(len(at)), rows.labels]
            gradient = share / share.sum(axis=1, keepdims=True)
            gradient[np.arange(len(at)), rows.labels] -= 1
        now = encoding.scores_at(rows.leaves)
        n, row, column, entry = len(at), [np.arange(len(at))], [self.loss], [np.ones(len(at))]
        for c in range(encoding.n_outputs):
            variable = encoding.variable[rows.leaves, c]
            there = variable >= 0
            at_row = np.nonzero(there)[0]
            g = gradient[at_row, c]
            row += [at_row, at_row]
            column += [self.p[variable[there]], self.q[variable[there]]]
            entry += [-g, g]
        self.program.rows(n, np.concatenate(row), np.concatenate(column), np.concatenate(entry),
                          value + (gradient * (now - at)).sum(axis=1))  # fmt: skip

    # --- solving ---
    def values(self, x: np.ndarray) -> np.ndarray:
        """Leaf values of a solution; a change below the solver's tolerance is none."""
        d = x[self.p] - x[self.q]
        return self.encoding.w + np.where(np.abs(d) < 1e-12, 0.0, d)

    def guess(self, w: np.ndarray, label: int | None = None) -> np.ndarray:
        """Values of the integer columns; those of the objective are NaN.

        Demands that leaf patterns tie together get one label: the one that leaf values ``w`` favour in sum, or ``label``,
        among those that all of them allow.
        """
        n = len(self.encoding.classes)
        chosen: dict[int, int] = {}
        for members in components(self.wanted):
            total = self.encoding.scores_at(np.vstack([self.wanted[i].leaves for i in members]), w).sum(axis=0)
            if self.encoding.n_outputs == 1:
                total = np.array([-total[0], total[0]])
            left = sorted(agreed(self.wanted, members, n)) or list(range(n))
            best = label if label in left else left[int(total[left].argmax())]
            chosen.update(dict.fromkeys(members, best))
        found = np.full(self.program.n_columns, np.nan)
        for choice in self.choices:
            if n == 2:
                found[choice.columns] = float(chosen[choice.demand])
            else:
                found[choice.columns] = choice.labels == chosen[choice.demand]
        return found[self.program.integer > 0]

    def warm_start(self, w: np.ndarray, time_limit: float, backend: str = "highs") -> np.ndarray | None:
        """A solution: the binaries that ``w`` suggests, else one label everywhere, the rest by linear programming.

        None where all of these are infeasible.
        """
        begin = time.perf_counter()
        at = np.flatnonzero(self.program.integer > 0)
        for label in (None, *range(len(self.encoding.classes))):
            left = time_limit - (time.perf_counter() - begin)
            if left <= 0:
                return None
            x = solve(self.program, left, fixed=self.guess(w, label), backend=backend).x
            if x is not None:
                x[at] = np.ceil(x[at] - 1e-9)  # an error counts whole
                return x
        return None

    def solve(self, time_limit: float = math.inf, gap: float = 1e-4, previous: np.ndarray | None = None,
              backend: str = "highs", warm: bool = True) -> Solution:  # fmt: skip
        """Minimise; ``previous`` are leaf values that suggest where to start (default: the original ones)."""
        begin = time.perf_counter()
        found = self._solve(time_limit, gap, previous, backend, warm)
        if self.options.objective == "logloss" and not self.elastic:
            for _ in range(CUT_ROUNDS):
                left = time_limit - (time.perf_counter() - begin)
                if found.x is None or left <= 0:
                    break
                self._tangent(self.encoding.scores_at(self.rows.leaves, self.values(found.x)))
                better = self._solve(left, gap, self.values(found.x), backend, warm)
                if better.x is None:
                    break
                found = better
        return replace(found, seconds=time.perf_counter() - begin)

    def _solve(self, time_limit: float, gap: float, previous: np.ndarray | None, backend: str, warm: bool) -> Solution:
        begin, start = time.perf_counter(), None
        mixed = bool((self.program.integer > 0).any())
        if mixed and warm and backend == "highs":
            start = self.warm_start(self.encoding.w if previous is None else previous, time_limit)
        left = time_limit - (time.perf_counter() - begin)
        if left <= 0:
            return self._only(start)
        found = solve(self.program, left, gap, start, backend=backend)
        return self._only(start) if found.x is None and found.status == "unknown" and start is not None else found

    def _only(self, start: np.ndarray | None) -> Solution:
        if start is None:
            return Solution("unknown", None, math.inf, -math.inf, 0.0)
        return Solution("feasible", start, float(self.program.cost @ start), -math.inf, 0.0)
