"""Tables for claims and figure: statements against their bounds, scores side by side."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.guarantees.conformal_abstention.study.synthetic import CORRECT_KEPT, TARGET, WRONG_LET

if TYPE_CHECKING:
    import pandas as pd

SHARE, EPS, WRONG, DELTA = 0.5, 0.125, 1 - TARGET.correctness, TARGET.delta
ERRORS = 3.0  # Monte Carlo standard errors that a statement may miss its bound by
# contender, column, side (+1: at least), bound
STATEMENTS = {
    "participation": [("participation", "answered", 1, SHARE), ("both", "answered", 1, SHARE)],
    "joint error": [("joint", "joint", -1, EPS), ("ratio", "joint", -1, EPS)],
    "within a class": [("if correct", "hit", 1, CORRECT_KEPT), ("if wrong", "miss", -1, WRONG_LET)],
    "false discovery rate": [("fdr", "wrong_share", -1, WRONG)],
    "both": [("both", "violated", -1, DELTA)],
    "pac": [("pac", "violated", -1, DELTA), ("pac from the top", "violated", -1, DELTA)],
    "bayes": [("bayes", "violated", -1, DELTA)],
}


def validity(
    rows: pd.DataFrame, where: str, unit: str, cells: list[str], marginal: bool = False
) -> list[dict[str, Any]]:
    """One row for each statement, cell and contender: estimate, bound, and the slack at 3 Monte Carlo errors.

    ``marginal`` leaves out statements over calibration sets, which need the true law.
    """
    found = []
    for cell, part in rows.groupby(cells):
        shown = {"where": where, "cell": ", ".join(map(str, cell))}

        def keep(
            statement: str, name: str, values: Any, side: int, bound: float, shown: dict[str, str] = shown
        ) -> None:
            x = np.asarray(values, float)
            se = float(x.std(ddof=1) / math.sqrt(len(x)))
            slack = side * (float(x.mean()) - bound) + ERRORS * se
            found.append({**shown, "statement": statement, "contender": name, "estimate": float(x.mean()), "bound": bound, "error": se,
                          "slack": slack, unit: len(x)})  # fmt: skip

        for statement, entries in STATEMENTS.items():
            for name, column, side, bound in entries:
                own = part[part["contender"] == name]
                if len(own) > 1 and not (marginal and column in ("violated", "hit", "miss")):
                    keep(statement, name, own[column], side, bound)
        own = part[part["contender"] == "ratio"]
        if len(own) > 1:
            q = float(own["infeasible"].mean())
            keep("ratio", "ratio", own["joint"], -1, EPS)
            keep("ratio", "ratio", own["answered"] + own["infeasible"], 1, SHARE)
            bound = EPS / (SHARE - q) if SHARE - q > EPS else 1.0
            level = float(own["answered"].mean())  # wrong / answered <= bound, as the mean of wrong - bound * answered
            keep("ratio", "ratio", (own["joint"] - bound * own["answered"]) / max(level, 1e-9) + bound, -1, bound)
    return found


def side_by_side(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each question: its label and every contender's score."""
    wide = rows.pivot_table("score", ["question", "kind", "correct", "sampled"], "contender", dropna=False).dropna(
        how="all"
    )
    return wide.reset_index()
