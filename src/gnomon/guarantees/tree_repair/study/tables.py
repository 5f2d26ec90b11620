"""Derived tables: the price of halving violations, ends of loops, policies before and after, repair against refit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

LOOPS = ("repair", "repair, flips")
ROW = ["violation", "accuracy", "balanced"]


def turns(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """One line per case, seed, contender and round."""
    import pandas as pd

    rows = pd.concat([tables[t] for t in ("German", "Others") if t in tables], ignore_index=True)
    return rows.groupby(["case", "seed", "contender", "round"], as_index=False)[[*ROW, "fixed", "auc"]].mean()


def derive(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """All derived tables that the tables at hand allow."""
    import pandas as pd

    found: dict[str, pd.DataFrame] = {}
    if "German" in tables or "Others" in tables:
        every = turns(tables)
        half, ends, refits = [], [], []
        for (case, seed), part in every.groupby(["case", "seed"]):
            own = part[part["contender"] == "none"]
            if not len(own):
                continue
            before = own.iloc[0]
            for who in LOOPS:
                path = part[part["contender"] == who].sort_values("round")
                if not len(path):
                    continue
                at = {"case": case, "seed": seed, "contender": who}
                half.append(at | price(path, before))
                ends.append(at | lost(path.iloc[-1], before))
                refits.append(at | against_refits(path.iloc[-1], part[part["contender"].str.startswith("refit")]))
        found["Halved"], found["Ends"], found["Refits"] = pd.DataFrame(half), pd.DataFrame(ends), pd.DataFrame(refits)
        if "German" in tables and len(found["Ends"]):
            found["Ends"]["above_base"] = found["Ends"]["accuracy"] - BASE
    if "Safety" in tables:
        found["Policies"] = policies(tables["Safety"])
    return found


BASE = 0.7  # share of good credits in the data; the test rows of a split have it within 2 points


def lost(row: Any, before: Any) -> dict[str, float]:
    return {"accuracy": row["accuracy"], "violation": row["violation"], "accuracy_loss": before["accuracy"] - row["accuracy"],
            "balanced_loss": before["balanced"] - row["balanced"]}  # fmt: skip


def price(path: pd.DataFrame, before: Any) -> dict[str, Any]:
    """The first round (after none) with at most half of the violations; the last one, marked, where there is none."""
    after = path[path["round"] > 0] if (path["round"] > 0).any() else path
    there = after[after["violation"] <= 0.5 * before["violation"]]
    return {"reached": bool(len(there)), **lost((there if len(there) else after.tail(1)).iloc[0], before)}


def against_refits(end: Any, refits: pd.DataFrame) -> dict[str, float]:
    """Gains over the refits: accuracy among those with no more violations, violations among those of no lower accuracy.

    Where no refit has so few violations, or so high an accuracy, the nearest one is taken, which favours the refits.
    """
    if not len(refits):
        return {"accuracy_gain": float("nan"), "violation_gain": float("nan")}
    fair = refits[refits["violation"] <= end["violation"]]
    sharp = refits[refits["accuracy"] >= end["accuracy"]]
    fair = fair if len(fair) else refits.nsmallest(1, "violation")
    sharp = sharp if len(sharp) else refits.nlargest(1, "accuracy")
    return {"accuracy_gain": float(end["accuracy"] - fair["accuracy"].max()),
            "violation_gain": float(sharp["violation"].min() - end["violation"])}  # fmt: skip


def policies(rows: pd.DataFrame) -> pd.DataFrame:
    """Before and after repair, per task and seed; the change of the return relative to its size before."""
    import pandas as pd

    found = []
    for (task, seed), part in rows.groupby(["task", "seed"]):
        by = part.set_index("contender")
        for who in LOOPS:
            if not {who, "none"} <= set(by.index):
                continue
            after, before = by.loc[who], by.loc["none"]
            size = abs(before["expected_return"]) or 1.0
            found.append({"task": task, "seed": seed, "contender": who, "risk_before": before["risk"], "risk_after": after["risk"],
                          "return_before": before["expected_return"], "return_after": after["expected_return"],
                          "return_change": (after["expected_return"] - before["expected_return"]) / size})  # fmt: skip
    return pd.DataFrame(found)
