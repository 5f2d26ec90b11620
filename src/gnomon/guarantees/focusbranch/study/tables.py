"""What the claims lean on besides the experiments' own rows."""

from __future__ import annotations

from typing import Any

import pandas as pd

from gnomon.guarantees.focusbranch.study.contenders import FIXED
from gnomon.guarantees.focusbranch.study.experiments import instances

HARD = 1000  # bound calls from which an instance counts as hard
KEYS = ["experiment", "net", "t", "image", "instance"]


def derive(tables: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """Agreement, calls by contender, the published nets' pairs, predictions, and what pruning saves."""
    found: dict[str, pd.DataFrame] = {}
    every = instances(tables)
    if len(every):
        found["Agreement"] = agreement(every)
        found["Prediction"] = prediction(every)
    if (digits := instances(tables, ("Digits",))).shape[0]:
        found["Calls"] = wide(digits, "calls")
        found["Seconds"] = wide(digits, "seconds")
    if (published := instances(tables, ("Published",))).shape[0]:
        found["Pairs"] = pairs(published)
    if (bounds := tables.get("Bounds")) is not None and "margin" in bounds:
        both = bounds.dropna(subset=["margin"]).pivot_table("margin", ["net", "image"], "contender")
        found["Tighter"] = (both["hull"] > both["box"]).astype(int).rename("tighter").reset_index()
    if (pruning := tables.get("Pruning")) is not None and len(pruning):
        found["Saving"] = saving(pruning)
    return found


def agreement(every: pd.DataFrame) -> pd.DataFrame:
    """A row for each decided verdict: whether it is that of brute force, else of whoever decided first."""
    decided = every[every["decided"] == 1]
    judge = decided[decided["contender"] == "brute force"].set_index("instance")["verdict"]
    first = decided.groupby("instance")["verdict"].first()
    want = decided["instance"].map(judge).fillna(decided["instance"].map(first))
    out = decided[[*KEYS, "contender", "verdict", "confirmed"]].copy()
    out["judged"] = decided["instance"].isin(judge.index).astype(int)
    out["agrees"] = (decided["verdict"] == want).astype(int)
    return out


def wide(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """One row an instance, one column a contender; ``late`` counts the time-outs of auto."""
    found = rows.pivot_table(column, KEYS, "contender").reset_index()
    late = rows[rows["contender"] == "auto"].set_index("instance")["timed_out"]
    found["late"] = found["instance"].map(late)
    return found


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Instances that auto and Calzone both decided, in long form."""
    decided = rows[(rows["decided"] == 1) & rows["contender"].isin(["auto", "calzone"])]
    both = decided.groupby("instance")["contender"].nunique()
    keep = decided["instance"].isin(both[both == 2].index)
    return decided.loc[keep, [*KEYS, "contender", "calls", "seconds"]].reset_index(drop=True)


def prediction(every: pd.DataFrame) -> pd.DataFrame:
    """Auto's planned instances that were decided: predicted and true seconds, and the share that sampling took."""
    rows = every[(every["contender"] == "auto") & every["predicted"].notna() & (every["decided"] == 1)]
    out = rows[[*KEYS, "predicted", "seconds", "calls", "verdict"]].copy()
    out["predicted"] = out["predicted"].astype(float)
    out["share"] = rows["sampling_seconds"] / rows["seconds"]
    out["hard"] = (rows["calls"] >= HARD).astype(int)
    return out.reset_index(drop=True)


def saving(rows: pd.DataFrame) -> pd.DataFrame:
    """Concrete nodes visited without pruning over those with it, and whether the verdicts are the same."""
    keys = ["net", "t", "image"]
    two = rows.set_index([*keys, "contender"])
    visited, verdict = (two[c].unstack("contender") for c in ("visited", "verdict"))
    share = two["open_share"].unstack("contender")["pruned"]
    searched = two["plan"].unstack("contender")["pruned"] != ""
    out = pd.DataFrame({"saving": visited["unpruned"] / visited["pruned"], "open_share": share, "searched": searched.astype(int),
                        "same": (verdict["pruned"] == verdict["unpruned"]).astype(int)})  # fmt: skip
    out["verified"] = (verdict["pruned"] == "verified").astype(int)
    return out.reset_index()


def ratio_to_best_fixed(rows: pd.DataFrame) -> float:
    """Calls of auto over those of the fixed strategy that needs fewest in all."""
    return float(rows["auto"].sum() / min(rows[name].sum() for name in FIXED))


def ratio_to(rows: pd.DataFrame, other: str) -> float:
    """Sum of auto's over that of another."""
    return float(rows["auto"].sum() / rows[other].sum())
