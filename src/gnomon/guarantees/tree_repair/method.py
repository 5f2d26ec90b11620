"""Repair of a tree ensemble: verify, fix the counterexamples by a MILP over leaf values, verify again."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from gnomon.guarantees.tree_repair.counterexamples import Counterexample, Demand, conflicts, demands, satisfied
from gnomon.guarantees.tree_repair.encoding import EnsembleEncoding
from gnomon.guarantees.tree_repair.program import OBJECTIVES, Options, RepairProgram, Rows
from gnomon.guarantees.tree_repair.properties import Candidate, Context, Found, Key, Property
from gnomon.guarantees.tree_repair.solver import Interrupted, Solution

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)
TIGHTENINGS = 4  # how often the margin is doubled when the library's own labels miss a demand


class Infeasible(ValueError):
    """No leaf values within the bounds meet all counterexamples.

    Attributes
    ----------
    conflicts : list of list of int
        Groups of counterexamples that contradict each other whatever the leaf values (positions in the list).
    relaxed : dict of int to float
        Least total relaxation (sum of slacks): the counterexamples that it relaxes and by how much. Which they are need
        not be unique.
    """

    def __init__(self, message: str, conflicts: Sequence[list[int]] = (), relaxed: dict[int, float] | None = None):
        super().__init__(message)
        self.conflicts, self.relaxed = list(conflicts), dict(relaxed or {})


class NoSolution(TimeoutError):
    """The time limit ended a round before the solver had any solution.

    Attributes
    ----------
    model : estimator, Booster or None
        The last repaired model, or None before the first; ``history_`` of the :class:`TreeRepair` says how good it is.
    """

    def __init__(self, message: str, model: Any = None):
        super().__init__(message)
        self.model = model


@dataclass(frozen=True)
class Certificate:
    """What is known of the repaired model.

    Attributes
    ----------
    proved : bool
        Whether the verifier ended with "none left".
    basis : str
        What it searched.
    stopped : str
        Why the loop ended: "proved", "nothing found", "max_rounds", "min_score", "interrupted" or "one shot".
    counterexamples : int
        How many are fixed, each checked by the library's own ``predict``.
    margin : float
        By how much each demanded decision wins at least, in units of the score.
    rate : float
        Share of violations (or the risk) that the last search saw.
    """

    proved: bool
    basis: str
    stopped: str
    counterexamples: int
    margin: float
    rate: float

    def __str__(self) -> str:
        head = "proved: the property holds" if self.proved else f"not proved (stopped: {self.stopped})"
        rate = "" if math.isnan(self.rate) else f"; violations at the last search: {self.rate:.2%}"
        return (
            f"{head}; {self.counterexamples} counterexamples fixed with margin {self.margin:.3g}{rate} ({self.basis})"
        )


@dataclass
class Repaired:
    """One solved program: leaf values and how the solver ended."""

    w: np.ndarray
    model: Any
    solution: Solution
    margin: float
    rows: int


class TreeRepair(BaseEstimator):
    r"""Repair a tree ensemble so that it provably meets given counterexamples, and by a loop a property.

    Trees and splits stay; the leaf values w = w0 + d change. With F linear in w, each counterexample is a constraint
    (with a binary where one of several decisions is allowed) of

    .. math:: \min_{|d| \le \Delta} \text{loss}(w) + \lambda \sum_{\text{leaves}} (\text{coverage} + 1/N) |d|

    and the verifier looks for the next counterexamples until it proves that there are none.

    Parameters
    ----------
    property : FairnessProperty, SafetyProperty, RobustnessProperty or PointProperty, optional
        What is to hold; not needed for :meth:`repair`.
    objective : {"hinge", "errors", "flips", "l1", "logloss"}
        Hinge loss on the training rows; training errors; changed decisions on the training rows; size of the change
        alone; logistic loss by tangent cuts (log-odds only).
    max_rounds : int
        Repairs at most.
    per_round : int
        Counterexamples added in each round at most.
    time_limit : float
        Seconds for each solve and for each exact verification.
    margin : float
        By how much a demanded decision must win, as a share of the range of scores on the training rows.
    max_change : float, optional
        Delta; default: five times the largest absolute leaf value.
    min_score : float, optional
        Floor of the accuracy on the training rows: a repair that falls below is not taken, and the loop ends.
    gap : float
        Relative gap at which a solve ends early.
    penalty : float
        lambda.
    distribution : bool
        Whether the leaves of a forest stay distributions over the classes, so that ``predict_proba`` keeps its sense.
    backend : {"highs", "scipy"}
        highspy (warm starts, interruptible), or ``scipy.optimize.milp``.
    progress : callable, optional
        Called as ``progress(text, done, total)`` before each step.
    random_state : int
        Of the generators of verifiers. Solves that the time limit ends depend on the machine.

    Attributes
    ----------
    counterexamples_ : list
        All that are fixed.
    proved_ : bool
        Whether the verifier proved the property for the returned model.
    history_ : DataFrame
        A line per round (0: the model as given): counterexamples, rate of violations at the search, training score,
        changed leaves, mean ``|d|``, objective, bound, gap, rows, seconds, and whether the point is Pareto-optimal.
    changed_leaves_ : DataFrame
        tree, leaf, class, before, after, coverage.
    certificate_ : Certificate
    encoding_ : EnsembleEncoding
    path_ : list of ndarray
        Leaf values after each round; see :meth:`at`.

    Notes
    -----
    Ctrl-C ends the loop: what is returned is the model of the last finished round, with ``certificate_.stopped ==
    "interrupted"``.

    References
    ----------
    Repair of tree ensembles by mixed-integer linear programming over leaf values, NeurIPS 2026 (read in abstract);
    encodings, objectives and verifiers are reconstructed. A. Kantchelian, J. D. Tygar, A. Joseph, "Evasion and
    hardening of tree ensemble classifiers", ICML 2016 (the exact verifier).
    """

    def __init__(self, property: Property | None = None, objective: str = "hinge", max_rounds: int = 10, per_round: int = 40,
                 time_limit: float = 10.0, margin: float = 1e-3, max_change: float | None = None,
                 min_score: float | None = None, gap: float = 1e-3, penalty: float = 5e-3, distribution: bool = True,
                 backend: str = "highs", progress: Callable[[str, int, int], None] | None = None, random_state: int = 0):  # fmt: skip
        self.property = property
        self.objective = objective
        self.max_rounds = max_rounds
        self.per_round = per_round
        self.time_limit = time_limit
        self.margin = margin
        self.max_change = max_change
        self.min_score = min_score
        self.gap = gap
        self.penalty = penalty
        self.distribution = distribution
        self.backend = backend
        self.progress = progress
        self.random_state = random_state

    # --- the two ways of use ---
    def fit_transform(self, model: Any, X: Any, y: Any) -> Any:
        """Repair until the property is proved, rounds run out or the score falls below the floor.

        Parameters
        ----------
        model : estimator or Booster
            A fitted classifier; not changed.
        X : array_like, shape (rows, features)
            Training rows.
        y : array_like, shape (rows,)
            Labels.

        Returns
        -------
        estimator or Booster
            The repaired model, of the same type.

        Raises
        ------
        Infeasible
            When no leaf values meet the counterexamples, or the property cannot hold (no safe policy).
        NoSolution
            When the time limit ends a round before there is any solution.
        ValueError, TypeError
            For inputs that do not fit the model.
        """
        if self.property is None:
            raise ValueError(
                "property: none is given; use repair(model, counterexamples, X, y) for a list of counterexamples"
            )
        encoding, X, y, context = self._open(model, X, y)
        verifier = self.property.bind(encoding, context)
        rows = Rows.of(encoding, X, y)
        self._history: list[dict[str, Any]] = []
        self.counterexamples_: list[Counterexample] = []
        known: set[Key] = set()
        done = Repaired(
            encoding.w,
            encoding.with_leaves(encoding.w),
            Solution("optimal", None, 0.0, 0.0, 0.0),
            self._margin(encoding, X),
            0,
        )
        self.path_ = [done.w]
        found, stopped = Found(), "interrupted"
        with contextlib.suppress(KeyboardInterrupt):
            for turn in range(self.max_rounds + 1):
                self._tell(f"round {turn}: looking for counterexamples", turn)
                begin = time.perf_counter()
                found = verifier.find(Candidate(encoding, done.w), known, self.time_limit, self.per_round)
                self._note(turn, encoding, rows, X, y, done, found, time.perf_counter() - begin)
                fresh = found.counterexamples
                if found.proved or not fresh or turn == self.max_rounds:
                    stopped = "proved" if found.proved else "max_rounds" if fresh else "nothing found"
                    break
                self._tell(f"round {turn + 1}: fixing {len(self.counterexamples_) + len(fresh)} counterexamples", turn)
                wanted = [*self.counterexamples_, *fresh]
                try:
                    after = self._solve(encoding, rows, wanted, done.margin, done.w, turn + 1, X)
                except NoSolution as error:
                    error.model = done.model if turn else None
                    self._end(encoding, rows, done, Found(rate=found.rate, note=found.note), "time limit")
                    raise
                if self.min_score is not None and self._score(encoding, after.model, X, y) < self.min_score:
                    stopped = "min_score"
                    break
                self.counterexamples_ = wanted
                known |= {d.key for d in demands(encoding, fresh)}
                done, found = after, Found(note="not searched after the last repair")
                self.path_.append(done.w)
        self._tell(stopped, self.max_rounds)
        self._end(encoding, rows, done, found, stopped)
        return done.model

    def repair(self, model: Any, counterexamples: Sequence[Counterexample], X: Any, y: Any) -> Any:
        """Fix a list of counterexamples, once; the same type of model comes back.

        Raises
        ------
        Infeasible, NoSolution, ValueError, TypeError
            See :meth:`fit_transform`.
        """
        encoding, X, y, _ = self._open(model, X, y)
        rows = Rows.of(encoding, X, y)
        self._history = []
        margin = self._margin(encoding, X)
        first = Repaired(encoding.w, None, Solution("optimal", None, 0.0, 0.0, 0.0), margin, 0)
        first.model = encoding.with_leaves(encoding.w)
        self.counterexamples_ = []
        self._note(0, encoding, rows, X, y, first, Found(), 0.0)
        demands(encoding, counterexamples)  # refuses what is no list of counterexamples
        done = self._solve(encoding, rows, list(counterexamples), margin, encoding.w, 1, X)
        self.counterexamples_ = list(counterexamples)
        self.path_ = [encoding.w, done.w]
        self._note(1, encoding, rows, X, y, done, Found(), 0.0)
        self._end(encoding, rows, done, Found(note="the list as given"), "one shot")
        return done.model

    def at(self, turn: int) -> Any:
        """The model after a round of :attr:`history_` (0: as given)."""
        if not hasattr(self, "path_"):
            raise NotFittedError("at: nothing is repaired yet; call fit_transform or repair first")
        if not 0 <= turn < len(self.path_):
            raise ValueError(f"turn: got {turn}; there are rounds 0 to {len(self.path_) - 1}")
        return self.encoding_.with_leaves(self.path_[turn])

    # --- pieces ---
    def _open(self, model: Any, X: Any, y: Any) -> tuple[EnsembleEncoding, np.ndarray, np.ndarray, Context]:
        self._check()
        encoding = EnsembleEncoding(model)
        if self.objective == "logloss" and encoding.votes:
            raise ValueError("objective 'logloss' needs log-odds; a forest's scores are shares of votes: use 'hinge'")
        names = [str(c) for c in X.columns] if hasattr(X, "columns") else encoding.library.names
        rows = encoding.numbers(X)
        if not len(rows):
            raise ValueError("X: it holds no rows; a repair needs training rows to keep its performance on")
        codes = encoding.codes(y)
        if len(codes) != len(rows):
            raise ValueError(f"y: got {len(codes)} labels for {len(rows)} rows of X")
        self.encoding_ = encoding
        return encoding, rows, codes, Context(rows, names, np.random.default_rng(self.random_state))

    def _check(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective {self.objective!r}: expected one of {', '.join(OBJECTIVES)}")
        if self.backend not in ("highs", "scipy"):
            raise ValueError(f"backend {self.backend!r}: expected 'highs' or 'scipy'")
        for name, value, ok, what in (
            ("max_rounds", self.max_rounds, self.max_rounds >= 1, "1 or more"),
            ("per_round", self.per_round, self.per_round >= 1, "1 or more"),
            ("time_limit", self.time_limit, self.time_limit > 0, "a positive number of seconds"),
            ("margin", self.margin, 0 < self.margin < 1, "a share in (0, 1)"),
            ("max_change", self.max_change, self.max_change is None or self.max_change > 0, "a positive number"),
            ("gap", self.gap, self.gap >= 0, "a number >= 0"),
            ("penalty", self.penalty, self.penalty >= 0, "a number >= 0"),
        ):
            if not ok:
                raise ValueError(f"{name}: got {value!r}; expected {what}")

    def _margin(self, encoding: EnsembleEncoding, X: np.ndarray) -> float:
        scores = encoding.scores(X)
        spread = float(scores.max() - scores.min())
        return self.margin * (spread if spread > 0 else 1.0)

    def _options(self, encoding: EnsembleEncoding, margin: float) -> Options:
        change = 5 * float(np.abs(encoding.w).max()) if self.max_change is None else float(self.max_change)
        return Options(self.objective, margin, change, 0.1 if encoding.votes else 0.5, self.penalty, self.distribution)

    def _solve(self, encoding: EnsembleEncoding, rows: Rows, wanted: Sequence[Counterexample], margin: float,
               previous: np.ndarray, turn: int, X: np.ndarray) -> Repaired:  # fmt: skip
        """One repair, checked by the library's own predictions; the margin grows where these miss a demand."""
        asked = demands(encoding, wanted)
        options = self._options(encoding, margin)
        if against := conflicts(encoding, asked):
            raise self._infeasible(encoding, rows, asked, options, against)
        for _ in range(TIGHTENINGS):
            program = RepairProgram(encoding, rows, asked, options)
            try:
                solution = program.solve(self.time_limit, self.gap, previous, self.backend)
            except Interrupted:
                raise KeyboardInterrupt from None
            if solution.status == "infeasible":
                raise self._infeasible(encoding, rows, asked, options, [])
            if solution.x is None:
                raise NoSolution(f"round {turn}: no solution within {self.time_limit:g} s "
                                 f"({len(asked)} counterexamples, {program.program.n_rows} rows, gap {solution.gap}); "
                                 "raise time_limit or lower per_round")  # fmt: skip
            w = encoding.rounded(_distributions(encoding, program.values(solution.x), self.distribution))
            model = encoding.with_leaves(w)
            if satisfied(encoding, model, wanted, 1e-5 * max(1.0, float(np.abs(w).max()))).all():
                return Repaired(w, model, solution, options.margin, program.program.n_rows)
            log.info("round %d: rounding undid a demand; the margin is doubled to %g", turn, 2 * options.margin)
            options = replace(options, margin=2 * options.margin)
        raise RuntimeError(
            f"round {turn}: the library's own labels miss a demand even at margin {options.margin:g}; raise margin"
        )

    def _infeasible(self, encoding: EnsembleEncoding, rows: Rows, asked: list[Demand], options: Options,
                    against: list[list[int]]) -> Infeasible:  # fmt: skip
        elastic = RepairProgram(encoding, rows, asked, options, elastic=True)
        found = elastic.solve(self.time_limit, previous=encoding.w, backend=self.backend)
        relaxed: dict[int, float] = {}
        if found.x is not None and elastic.slack is not None:
            slack = found.x[elastic.slack]
            relaxed = {int(j): float(slack[j]) for j in np.flatnonzero(slack > 1e-9)}
        why = f"counterexamples {against} share their leaves and exclude each other" if against else (
            f"no change of the leaf values within {options.change:g} meets all {len(asked)} counterexamples")  # fmt: skip
        least = ", ".join(f"{j} by {s:.3g}" for j, s in relaxed.items()) or "not found in time"
        return Infeasible(f"{why}; relaxed at least: {least}", against, relaxed)

    def _score(self, encoding: EnsembleEncoding, model: Any, X: np.ndarray, y: np.ndarray) -> float:
        return float((encoding.predict(model, X) == y).mean())

    def _note(self, turn: int, encoding: EnsembleEncoding, rows: Rows, X: np.ndarray, y: np.ndarray, done: Repaired,
              found: Found, verify: float) -> None:  # fmt: skip
        d = np.abs(done.w - encoding.w)
        self._history.append({
            "round": turn, "counterexamples": len(self.counterexamples_), "rate": found.rate,
            "found": len(found.counterexamples), "score": self._score(encoding, done.model, X, y),
            "changed_leaves": int((d > 0).sum()), "mean_change": float(d.mean()), "objective": done.solution.objective,
            "bound": done.solution.bound, "gap": done.solution.gap if turn else 0.0, "rows": done.rows,
            "solve_s": done.solution.seconds, "verify_s": verify, "proved": found.proved,
        })  # fmt: skip

    def _end(self, encoding: EnsembleEncoding, rows: Rows, done: Repaired, found: Found, stopped: str) -> None:
        import pandas as pd

        self.history_ = _pareto(pd.DataFrame(self._history))
        self.proved_ = bool(found.proved)
        self.certificate_ = Certificate(
            self.proved_, found.note, stopped, len(self.counterexamples_), done.margin, found.rate
        )
        leaf, output = np.nonzero(encoding.variable >= 0)
        at = encoding.variable[leaf, output]
        moved = encoding.w[at] != done.w[at]
        leaf, output, at = leaf[moved], output[moved], at[moved]
        names = encoding.classes[output] if encoding.n_outputs > 1 else np.full(len(at), encoding.classes[-1])
        self.changed_leaves_ = pd.DataFrame({
            "tree": encoding.tree[leaf], "leaf": leaf - encoding.start[encoding.tree[leaf]], "class": names,
            "before": encoding.w[at], "after": done.w[at], "coverage": rows.coverage[leaf]})  # fmt: skip

    def _tell(self, text: str, done: int) -> None:
        log.info(text)
        if self.progress is not None:
            self.progress(text, done, self.max_rounds)


def _distributions(encoding: EnsembleEncoding, w: np.ndarray, wanted: bool) -> np.ndarray:
    """Leaves of a forest of several classes as exact distributions, where the solver left them so within its tolerance."""
    if not (wanted and encoding.votes and encoding.n_outputs > 1):
        return w
    shares = np.maximum(w.reshape(-1, encoding.n_outputs), 0.0)
    shares /= shares.sum(axis=1, keepdims=True) * encoding.n_trees
    return np.where(
        (w == encoding.w).reshape(shares.shape).all(axis=1, keepdims=True), w.reshape(shares.shape), shares
    ).ravel()


def _pareto(history: pd.DataFrame) -> pd.DataFrame:
    """Mark the rounds that no other beats in both the rate of violations and the score."""
    rate, score = history["rate"].fillna(np.inf).to_numpy(), history["score"].to_numpy()
    beaten = ((rate[None] <= rate[:, None]) & (score[None] >= score[:, None])
              & ((rate[None] < rate[:, None]) | (score[None] > score[:, None]))).any(axis=1)  # fmt: skip
    return history.assign(pareto=np.logical_not(np.asarray(beaten)))
