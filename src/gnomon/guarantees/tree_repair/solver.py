"""A mixed-integer linear program as it grows, and HiGHS on it."""

from __future__ import annotations

import functools
import math
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse

FEASIBILITY = 1e-6  # HiGHS's absolute tolerance on rows and integers


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a solve; ``solution`` is what the solver had."""

    def __init__(self, solution: Solution):
        super().__init__("interrupted while solving")
        self.solution = solution


class Program:
    """minimise cost'x subject to row bounds and column bounds, some columns integer."""

    def __init__(self) -> None:
        self.lower, self.upper, self.cost, self.integer = (np.empty(0) for _ in range(4))
        self._low: list[np.ndarray] = []
        self._high: list[np.ndarray] = []
        self._entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.n_rows = 0

    @property
    def n_columns(self) -> int:
        return len(self.cost)

    def columns(
        self, n: int, lower: Any = 0.0, upper: Any = np.inf, cost: Any = 0.0, integer: bool = False
    ) -> np.ndarray:
        """Add columns; their positions."""
        first = self.n_columns
        for name, value in (("lower", lower), ("upper", upper), ("cost", cost), ("integer", float(integer))):
            setattr(
                self, name, np.concatenate([getattr(self, name), np.broadcast_to(np.asarray(value, dtype=float), n)])
            )
        return np.arange(first, first + n)

    def rows(self, n: int, row: Any, column: Any, value: Any, lower: Any = -np.inf, upper: Any = np.inf) -> np.ndarray:
        """Add n rows with entries (row within these n, column, value); entries at the same place are summed."""
        row, column, value = np.broadcast_arrays(np.asarray(row), np.asarray(column), np.asarray(value, dtype=float))
        self._entries.append((self.n_rows + row.ravel(), column.ravel(), value.ravel()))
        self._low.append(np.array(np.broadcast_to(np.asarray(lower, dtype=float), n)))
        self._high.append(np.array(np.broadcast_to(np.asarray(upper, dtype=float), n)))
        self.n_rows += n
        return np.arange(self.n_rows - n, self.n_rows)

    def matrix(self) -> scipy.sparse.csr_matrix:
        if not self._entries:
            return scipy.sparse.csr_matrix((0, self.n_columns))
        row, column, value = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        made = scipy.sparse.csr_matrix((value, (row, column)), shape=(self.n_rows, self.n_columns))
        made.sum_duplicates()
        made.eliminate_zeros()
        return made

    @property
    def row_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return np.concatenate([np.empty(0), *self._low]), np.concatenate([np.empty(0), *self._high])


@dataclass
class Solution:
    """What a solver found.

    Attributes
    ----------
    status : {"optimal", "feasible", "infeasible", "unknown"}
        ``feasible``: a limit was met with a solution at hand; ``unknown``: a limit was met without.
    x : ndarray or None
        Columns of the best solution.
    objective, bound : float
        Its value, and the least value that is not excluded yet.
    gap : float
        |objective - bound| / |objective|; infinite without a solution.
    seconds : float
        Elapsed.
    others : list of ndarray
        Earlier, worse solutions, where asked for.
    interrupted : bool
        Whether Ctrl-C ended it.
    """

    status: str
    x: np.ndarray | None
    objective: float
    bound: float
    seconds: float
    others: list[np.ndarray] = field(default_factory=list)
    interrupted: bool = False

    @property
    def gap(self) -> float:
        if self.x is None or not math.isfinite(self.bound):
            return math.inf
        return abs(self.objective - self.bound) / max(abs(self.objective), 1e-9)


def solve(program: Program, time_limit: float = math.inf, gap: float = 1e-4, start: np.ndarray | None = None, *,
          backend: str = "highs", keep: bool = False, fixed: np.ndarray | None = None) -> Solution:  # fmt: skip
    """Minimise.

    Parameters
    ----------
    program : Program
        What is solved.
    time_limit : float
        Seconds.
    gap : float
        Relative gap at which to stop.
    start : ndarray, optional
        A solution to start from (``backend="highs"``).
    backend : {"highs", "scipy"}
        highspy, or ``scipy.optimize.milp`` (the same solver, but no start and no interruption).
    keep : bool
        Whether to keep improving solutions (``others``).
    fixed : ndarray, optional
        Values of the integer columns: these are fixed, and what is left is a linear program. NaN leaves a column free
        and continuous.

    Raises
    ------
    Interrupted
        On Ctrl-C, with the solution at hand.
    """
    lower, upper, integer = program.lower.copy(), program.upper.copy(), program.integer.copy()
    if fixed is not None:
        at = np.flatnonzero(integer > 0)
        known = ~np.isnan(fixed)
        lower[at[known]] = upper[at[known]] = fixed[known]
        integer[:] = 0
    if backend == "scipy":
        return _scipy(program, lower, upper, integer, time_limit, gap)
    return _highs(program, lower, upper, integer, time_limit, gap, start, keep)


@functools.lru_cache(maxsize=1)
def _quiet_start() -> None:
    """The first HiGHS of a process prints a banner from C++ whatever its options; this one goes nowhere."""
    import highspy

    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        highspy.Highs()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _highs(program: Program, lower: np.ndarray, upper: np.ndarray, integer: np.ndarray, time_limit: float, gap: float,
           start: np.ndarray | None, keep: bool) -> Solution:  # fmt: skip
    import highspy

    matrix = program.matrix()
    low, high = program.row_bounds
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = program.n_columns, program.n_rows
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.cost, lower, upper
    lp.row_lower_, lp.row_upper_ = low, high
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
    mixed = bool(integer.any())
    if mixed:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(i)] for i in integer]
    _quiet_start()
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.HandleUserInterrupt = True
    options: dict[str, Any] = {"threads": 1, "parallel": "off", "mip_rel_gap": gap, "random_seed": 0,
               "mip_improving_solution_save": keep}  # fmt: skip
    if math.isfinite(time_limit):
        options["time_limit"] = max(1e-3, time_limit)
    for name, value in options.items():
        highs.setOptionValue(name, value)
    highs.passModel(lp)
    if start is not None and mixed:
        given = highspy.HighsSolution()
        given.col_value = list(start)
        highs.setSolution(given)
    begin = time.perf_counter()
    interrupted = False
    highs.startSolve()
    while True:
        try:
            if highs.wait(0.1)[0]:
                break
        except KeyboardInterrupt:
            interrupted = True
            highs.cancelSolve()
    seconds = time.perf_counter() - begin
    status, info = highs.getModelStatus(), highs.getInfo()
    known = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = np.array(highs.getSolution().col_value) if known else None
    done = highspy.HighsModelStatus
    if status in (done.kInfeasible, done.kUnboundedOrInfeasible) and not interrupted:
        name, x = "infeasible", None
    elif status in (done.kOptimal, done.kModelEmpty) and not interrupted:
        name, x = "optimal", np.array(highs.getSolution().col_value)
    else:
        name = "unknown" if x is None else "feasible"
    objective = math.inf if x is None else float(program.cost @ x)
    bound = info.mip_dual_bound if mixed else objective if name == "optimal" else -math.inf
    others = [np.array(s.col_value) for s in highs.getSavedMipSolutions()] if keep and mixed else []
    found = Solution(name, x, objective, float(bound), seconds, others, interrupted)
    if interrupted:
        raise Interrupted(found)
    return found


def _scipy(
    program: Program, lower: np.ndarray, upper: np.ndarray, integer: np.ndarray, time_limit: float, gap: float
) -> Solution:
    from scipy.optimize import Bounds, LinearConstraint, milp

    low, high = program.row_bounds
    options = {"mip_rel_gap": gap, **({"time_limit": time_limit} if math.isfinite(time_limit) else {})}
    begin = time.perf_counter()
    rows = LinearConstraint(program.matrix(), low, high) if program.n_rows else ()
    found: Any = milp(program.cost, integrality=integer, bounds=Bounds(lower, upper), constraints=rows, options=options)
    seconds = time.perf_counter() - begin
    name = {0: "optimal", 1: "feasible", 2: "infeasible"}.get(found.status, "unknown")
    if found.x is None and name != "infeasible":
        name = "unknown"
    bound = found.mip_dual_bound if found.mip_dual_bound is not None else -math.inf
    return Solution(name, found.x, math.inf if found.x is None else float(found.fun), float(bound), seconds)
