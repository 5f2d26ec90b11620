"""What is to hold of an ensemble, and the search for inputs where it does not."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gnomon.guarantees.tree_repair.counterexamples import Counterexample, Demand, Pair, Point, demands
from gnomon.guarantees.tree_repair.encoding import EnsembleEncoding
from gnomon.guarantees.tree_repair.exact import Domain, Input, Literals, at_least, differ, tolerance
from gnomon.guarantees.tree_repair.solver import Program, solve

Key = tuple[str, bytes, tuple[int, ...]]


class Candidate:
    """Leaf values under test: scores by the encoding, labels by the library's own ``predict``."""

    def __init__(self, encoding: EnsembleEncoding, w: np.ndarray):
        self.encoding, self.w = encoding, encoding.rounded(w)
        self.model = encoding.with_leaves(self.w)

    def scores(self, X: np.ndarray) -> np.ndarray:
        return self.encoding.scores(X, self.w)

    def labels(self, X: np.ndarray) -> np.ndarray:
        """Positions of the labels."""
        return self.encoding.predict(self.model, X)


@dataclass
class Found:
    """What a verifier found.

    Attributes
    ----------
    counterexamples : list
        The worst first, at most one per leaf pattern; empty where none was found.
    proved : bool
        Whether there is none at all.
    rate : float
        Share of the inputs that were tried which violate the property; NaN where none were tried.
    note : str
        What the answer rests on.
    """

    counterexamples: list[Counterexample] = field(default_factory=list)
    proved: bool = False
    rate: float = math.nan
    note: str = ""


class Verifier(Protocol):
    """Looks for counterexamples: ``find(candidate, exclude, budget, limit)``.

    ``exclude`` holds the keys of demands that are known already, ``budget`` are seconds, ``limit`` is the most that is
    returned.
    """

    def find(self, model: Candidate, exclude: set[Key], budget: float, limit: int) -> Found: ...


@dataclass
class Context:
    """The training data that a property is bound to.

    Attributes
    ----------
    X : ndarray, shape (rows, features)
    names : list of str or None
        Of the columns.
    rng : numpy.random.Generator
    """

    X: np.ndarray
    names: list[str] | None
    rng: np.random.Generator

    def columns(self, wanted: Sequence[str | int], name: str) -> list[int]:
        """Positions of columns given by name or position."""
        found = []
        for column in wanted:
            if isinstance(column, str) and self.names is not None and column in self.names:
                found.append(self.names.index(column))
            elif (
                isinstance(column, int | np.integer) and not isinstance(column, bool) and 0 <= column < self.X.shape[1]
            ):
                found.append(int(column))
            else:
                known = ", ".join(self.names) if self.names else f"positions 0 to {self.X.shape[1] - 1}"
                raise ValueError(f"{name}: there is no column {column!r}; there are {known}")
        return found


class Property(Protocol):
    """What is to hold; ``bind`` makes the verifier for an encoding and training data."""

    def bind(self, encoding: EnsembleEncoding, context: Context) -> Verifier: ...


def worst(encoding: EnsembleEncoding, candidates: Sequence[Counterexample], violation: np.ndarray, exclude: set[Key],
          limit: int) -> list[Counterexample]:  # fmt: skip
    """The most violated, at most one per leaf pattern, none that is known."""
    kept: list[Counterexample] = []
    seen = set(exclude)
    order = np.argsort(-violation, kind="stable")[: 50 * limit]
    wanted: list[Demand] = demands(encoding, [candidates[i] for i in order])
    for i, demand in zip(order, wanted, strict=True):
        if demand.key not in seen:
            seen.add(demand.key)
            kept.append(candidates[i])
            if len(kept) == limit:
                break
    return kept


# --- points ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PointProperty:
    """The decision at each of these inputs is the given one.

    Attributes
    ----------
    X : array_like, shape (points, features)
    y : array_like, shape (points,)
        Required labels.
    """

    X: Any
    y: Any

    def bind(self, encoding: EnsembleEncoding, context: Context) -> Verifier:
        X = encoding.numbers(self.X, "PointProperty.X")
        codes = encoding.codes(self.y, "PointProperty.y")
        if len(X) != len(codes):
            raise ValueError(f"PointProperty: X has {len(X)} rows and y {len(codes)}; expected as many")
        return _Points(X, codes)


@dataclass
class _Points:
    X: np.ndarray
    y: np.ndarray

    def find(self, model: Candidate, exclude: set[Key], budget: float, limit: int) -> Found:
        wrong = np.flatnonzero(model.labels(self.X) != self.y)
        if not len(wrong):
            return Found(proved=True, rate=0.0, note="every point was tried")
        scores = model.scores(self.X[wrong])
        size = (
            np.abs(scores[:, 0])
            if scores.shape[1] == 1
            else scores.max(axis=1) - scores[np.arange(len(wrong)), self.y[wrong]]
        )
        points = [Point(self.X[i], model.encoding.classes[self.y[i]]) for i in wrong]
        return Found(
            worst(model.encoding, points, size, exclude, limit), rate=len(wrong) / max(1, len(self.X)), note="points"
        )


# --- fairness --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FairnessProperty:
    """Two inputs that differ in sensitive columns only get the same decision.

    Attributes
    ----------
    sensitive : sequence of str or int
        Columns. Their observed joint values are those that are exchanged.
    verifier : {"milp", "generator", "data"}
        ``data`` exchanges the sensitive values of the training rows; ``generator`` does so in rows whose other columns
        are drawn each from its own training values; ``milp`` tries both and, where they find nothing, searches all
        inputs of the domain, and ends with a proof or with a pair.
    samples : int
        Rows that the generator draws in each round.
    integers : sequence of str or int, optional
        Columns of whole numbers (default: those that are whole in training).
    groups : sequence of sequences of str or int
        One-hot groups of columns; the generator draws them together.
    box : bool
        Whether the exact search keeps to the range of the training data.
    near : float, optional
        The exact search keeps within this many standard deviations of a training row, in every column.
    """

    sensitive: Sequence[str | int]
    verifier: str = "milp"
    samples: int = 2000
    integers: Sequence[str | int] | None = None
    groups: Sequence[Sequence[str | int]] = ()
    box: bool = True
    near: float | None = None

    def bind(self, encoding: EnsembleEncoding, context: Context) -> FairnessVerifier:
        if self.verifier not in ("milp", "generator", "data"):
            raise ValueError(f"verifier {self.verifier!r}: expected 'milp', 'generator' or 'data'")
        if isinstance(self.sensitive, str) or not len(self.sensitive):
            raise ValueError(f"sensitive: got {self.sensitive!r}; expected a list of columns, one or more")
        if self.samples < 1:
            raise ValueError(f"samples: got {self.samples}; expected 1 or more")
        if self.near is not None and not self.near > 0:
            raise ValueError(f"near: got {self.near}; expected a positive number of standard deviations")
        sensitive = context.columns(self.sensitive, "sensitive")
        groups = [context.columns(g, "groups") for g in self.groups]
        for g in groups:
            block = context.X[:, g]
            if not (np.isin(block, (0.0, 1.0)).all() and (block.sum(axis=1) == 1).all()):
                raise ValueError(f"groups: columns {g} are not one-hot in the training rows")
        integer = None if self.integers is None else context.columns(self.integers, "integers")
        if np.isnan(context.X[:, sensitive]).any():
            raise ValueError("sensitive: its columns hold missing values; give them a value of their own")
        domain = Domain.of(context.X, integer=integer, groups=groups, box=self.box, near=self.near)
        return FairnessVerifier(self, encoding, context, sensitive, groups, domain)


def exchanged(X: np.ndarray, sensitive: Sequence[int], values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows beside copies with each other joint value of the sensitive columns: two arrays (pairs, features)."""
    first, second = [], []
    for value in values:
        other = X.copy()
        other[:, sensitive] = value
        moved = (other[:, sensitive] != X[:, sensitive]).any(axis=1)
        first.append(X[moved])
        second.append(other[moved])
    return np.concatenate(first), np.concatenate(second)


def resampled(X: np.ndarray, n: int, rng: np.random.Generator, groups: Sequence[Sequence[int]] = ()) -> np.ndarray:
    """Rows whose columns are drawn independently, each from its own values; columns of a group together."""
    made = np.empty((n, X.shape[1]))
    grouped = {f for g in groups for f in g}
    for block in [*([f] for f in range(X.shape[1]) if f not in grouped), *groups]:
        made[:, block] = X[rng.integers(len(X), size=n)][:, block]
    return made


@dataclass
class FairnessVerifier:
    """See :class:`FairnessProperty`."""

    property: FairnessProperty
    encoding: EnsembleEncoding
    context: Context
    sensitive: list[int]
    groups: list[list[int]]
    domain: Domain

    def __post_init__(self) -> None:
        self.values = np.unique(self.context.X[:, self.sensitive], axis=0)
        self.spread = 0.0
        if len(self.context.X):
            scores = self.encoding.scores(self.context.X)
            self.spread = float(scores.max() - scores.min())
        self._literals: Literals | None = None

    def literals(self) -> Literals:
        if self._literals is None:
            self._literals = Literals(self.encoding, self.domain)
        return self._literals

    def find(self, model: Candidate, exclude: set[Key], budget: float, limit: int) -> Found:
        kind = self.property.verifier
        if kind == "milp" and not len(self.literals().of_features(self.sensitive)):
            return Found(proved=True, rate=0.0, note="no tree tests a sensitive column")
        known, seen = set(exclude), Found(rate=math.nan)
        pairs: list[Counterexample] = []
        sources = {"data": ["data"], "generator": ["generator"], "milp": ["data", "generator"]}[kind]
        for source in sources:
            rows = self.context.X
            if source == "generator":
                rows = resampled(rows, self.property.samples, self.context.rng, self.groups)
            found, rate = self.violations(model, rows, known, limit - len(pairs))
            pairs += found
            known |= {d.key for d in demands(self.encoding, found)}
            seen = Found(pairs, rate=rate, note=source)
            if len(pairs) >= limit:
                break
        if kind != "milp" or pairs:
            return seen
        exact = self.exact(model, budget, limit)
        exact.rate = seen.rate
        return exact

    def violations(
        self, model: Candidate, rows: np.ndarray, exclude: set[Key], limit: int
    ) -> tuple[list[Counterexample], float]:
        """Pairs among rows with exchanged sensitive values that are decided differently, and the share of such rows."""
        one, two = exchanged(rows, self.sensitive, self.values)
        if not len(one):
            return [], 0.0
        a, b = model.labels(one), model.labels(two)
        bad = np.flatnonzero(a != b)
        if not len(bad):
            return [], 0.0
        s, t = model.scores(one[bad]), model.scores(two[bad])
        if s.shape[1] == 1:
            size = np.abs(s - t)[:, 0]
        else:
            at = np.arange(len(bad))
            size = s[at, a[bad]] - s[at, b[bad]] + t[at, b[bad]] - t[at, a[bad]]
        pairs = [Pair(one[i], two[i]) for i in bad]
        return worst(self.encoding, pairs, size, exclude, limit), len(bad) / len(one)

    def exact(self, model: Candidate, budget: float, limit: int) -> Found:
        """Search all inputs of the domain: pairs (the most different scores first), or a proof that there is none."""
        end = time.perf_counter() + budget
        classes = range(len(self.encoding.classes))
        wanted = [(1, 0)] if len(classes) == 2 else [(c, k) for c in classes for k in classes if c < k]
        proved, pairs = True, []
        for c, k in wanted:
            program, one, two = self.program(model.w, c, k)
            left = end - time.perf_counter()
            found = solve(program, max(left, 0.01), keep=True)
            proved &= found.status == "infeasible"
            usual = np.nanmedian(self.context.X, axis=0)
            for x in ([] if found.x is None else [found.x, *reversed(found.others)])[:limit]:
                first = one.decode(x, usual)
                second = first.copy()
                second[self.sensitive] = two.decode(x, usual)[self.sensitive]
                pairs.append(Pair(first, second, strict=True))
        kept: dict[Key, Counterexample] = {}
        for demand, pair in zip(demands(self.encoding, pairs), pairs, strict=True):
            kept.setdefault(demand.key, pair)
        note = (
            "all inputs of the domain were searched"
            if proved or kept
            else f"the search was not finished in {budget:g} s"
        )
        return Found(list(kept.values())[:limit], proved=proved and not kept, note=note)

    def program(self, w: np.ndarray, c: int, k: int) -> tuple[Program, Input, Input]:
        """maximise the advantage of c over k at x plus that of k over c at x', where x is decided c and x' is decided k."""
        encoding, tol = self.encoding, tolerance(self.encoding, w, self.spread)
        program, table = Program(), self.encoding.table(w)
        one = Input(self.literals(), program)
        two = Input(self.literals(), program, one, self.sensitive)
        at = self.literals().of_features(self.sensitive)
        differ(program, one, two, at)
        if encoding.n_outputs == 1:
            base = encoding.base[0]
            at_least(program, [one.score(table, 0)], -tol - base)
            at_least(program, [(two.leaf, -table[:, 0])], -tol + base)
            np.subtract.at(program.cost, one.leaf, table[:, 0])
            np.add.at(program.cost, two.leaf, table[:, 0])
            return program, one, two
        for here, label in ((one, c), (two, k)):
            for other in range(encoding.n_outputs):
                if other != label:
                    at_least(program, [(here.leaf, table[:, label] - table[:, other])],
                             -tol - encoding.base[label] + encoding.base[other])  # fmt: skip
        np.subtract.at(program.cost, one.leaf, table[:, c] - table[:, k])
        np.add.at(program.cost, two.leaf, table[:, c] - table[:, k])
        return program, one, two


# --- robustness ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RobustnessProperty:
    """The decision at each of these inputs stays what it is within an l-infinity distance.

    Attributes
    ----------
    X : array_like, shape (points, features)
    eps : float or array_like, shape (features,)
        Half the width of the box around a point.
    verifier : {"milp", "veritas"}
        The exact search of this package, or the ``dtai-veritas`` package (two classes; scikit-learn's gradient
        boosting and forests, XGBoost and LightGBM).
    """

    X: Any
    eps: Any
    verifier: str = "milp"

    def bind(self, encoding: EnsembleEncoding, context: Context) -> Verifier:
        if self.verifier not in ("milp", "veritas"):
            raise ValueError(f"verifier {self.verifier!r}: expected 'milp' or 'veritas'")
        X = encoding.numbers(self.X, "RobustnessProperty.X")
        eps = np.broadcast_to(np.asarray(self.eps, dtype=float), X.shape[1])
        if not (np.isfinite(eps).all() and (eps >= 0).all()):
            raise ValueError(f"eps: got {self.eps!r}; expected finite numbers >= 0")
        if np.isnan(X).any():
            raise ValueError("RobustnessProperty.X: it holds NaN; a box needs values that are there")
        scores = encoding.scores(context.X) if len(context.X) else encoding.scores(X)
        return RobustnessVerifier(encoding, X, eps, float(scores.max() - scores.min()), self.verifier)


@dataclass
class RobustnessVerifier:
    """See :class:`RobustnessProperty`."""

    encoding: EnsembleEncoding
    X: np.ndarray
    eps: np.ndarray
    spread: float
    backend: str = "milp"

    def __post_init__(self) -> None:
        whole = np.full(self.X.shape[1], np.inf)
        self.literals = Literals(self.encoding, Domain(-whole, whole, np.zeros(len(whole), dtype=bool)))

    def find(self, model: Candidate, exclude: set[Key], budget: float, limit: int) -> Found:
        end, proved, pairs, sizes, bad = time.perf_counter() + budget, True, [], [], 0
        labels = model.labels(self.X)
        for x, label in zip(self.X, labels, strict=True):
            left = end - time.perf_counter()
            if left <= 0:
                proved = False
                break
            other, size, sure = self.attack(model, x, int(label), left)
            proved &= sure and other is None
            if other is not None:
                bad += 1
                pairs.append(Pair(x, other, strict=True))
                sizes.append(size)
        found = worst(self.encoding, pairs, np.array(sizes), exclude, limit) if pairs else []
        note = (
            "the box of every point was searched" if proved or found else f"the search was not finished in {budget:g} s"
        )
        return Found(found, proved=proved and not pairs, rate=bad / max(1, len(self.X)), note=note)

    def attack(
        self, model: Candidate, x: np.ndarray, label: int, budget: float
    ) -> tuple[np.ndarray | None, float, bool]:
        """An input in the box around x that is decided otherwise (or None), by how much, and whether the box was searched."""
        if self.backend == "veritas":
            from gnomon.guarantees.tree_repair.peers import veritas_attack

            return veritas_attack(model, x, self.eps, label, budget)
        encoding, table = self.encoding, self.encoding.table(model.w)
        tol = tolerance(encoding, model.w, self.spread)
        box = (x - self.eps, x + self.eps)
        best: tuple[np.ndarray | None, float] = (None, 0.0)
        sure, end = True, time.perf_counter() + budget
        for k in range(len(encoding.classes)):
            if k == label:
                continue
            program = Program()
            other = Input(self.literals, program, box=box)
            if encoding.n_outputs == 1:
                s = 1.0 if k == 1 else -1.0
                gain, base = s * table[:, 0], s * float(encoding.base[0])
            else:
                gain, base = table[:, k] - table[:, label], float(encoding.base[k] - encoding.base[label])
            at_least(program, [(other.leaf, gain)], -tol - base)
            np.subtract.at(program.cost, other.leaf, gain)
            found = solve(program, max(0.01, end - time.perf_counter()))
            sure &= found.status in ("infeasible", "optimal")
            if found.x is not None and (best[0] is None or base - found.objective > best[1]):
                best = other.decode(found.x, x, box), base - found.objective
        return *best, sure
