"""Derived tables and the figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PROTOTYPED = ("wine", "breast", "digits")


def derived(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Best in correspondence by cell, the advantage by noise, drops with fewer labels, and cost over the optimum."""
    import pandas as pd

    found: dict[str, pd.DataFrame] = {}
    if "Splits" in tables:
        t = tables["Splits"]
        t = t[t["table"].isin(PROTOTYPED) & t["split"].isin(["noise", "random"])]
        wide = t.pivot_table(index=["table", "split"], columns="contender", values="foscttm")
        if len(wide) and {"fosta", "MALI", "Euclidean"} <= set(wide):
            best = wide[["MALI", "Euclidean"]].min(axis=1)
            found["Correspondence"] = pd.DataFrame({"fosta": wide["fosta"], "best_other": best,
                                                    "room": best + 0.005 - wide["fosta"]}).reset_index()  # fmt: skip
    if "Sweep" in tables:
        wide = tables["Sweep"].pivot_table(index=["table", "seed", "multiple"], columns="contender", values="transfer")
        found["Advantage"] = (wide["fosta"] - wide["Euclidean"]).rename("advantage").reset_index()
    if "Scarcity" in tables:
        wide = tables["Scarcity"].pivot_table(index=["table", "seed"], columns="share", values="transfer")
        found["Drops"] = (wide.iloc[:, 0] - wide.iloc[:, -1]).rename("drop").reset_index()
    if "Refinement" in tables:
        wide = tables["Refinement"].pivot_table(index=["vectors", "n", "seed"], columns="contender", values="cost")
        if "exact" in wide:
            ratio = wide.drop(columns="exact").div(wide["exact"], axis=0)
            found["Excess"] = ratio.reset_index().melt(
                id_vars=["vectors", "n", "seed"], var_name="solver", value_name="ratio"
            )
    return found


def drawn(tables: dict[str, pd.DataFrame]) -> Figure:
    """Label transfer and correspondence by contender on the split "noise", the advantage by noise, time by rows."""
    from matplotlib import pyplot as plt

    figure, ((transfer, partners), (noise, growth)) = plt.subplots(2, 2, figsize=(11, 8))
    t = tables["Splits"]
    t = t[t["split"] == "noise"]
    for axis, metric, label in (
        (transfer, "transfer", "label transfer"),
        (partners, "foscttm", "FOSCTTM (lower is better)"),
    ):
        wide = t.pivot_table(index="contender", columns="table", values=metric, sort=False)[::-1]
        for name in wide:
            axis.plot(wide[name], range(len(wide)), "o", label=name, alpha=0.8)
        axis.set(xlabel=label, yticks=range(len(wide)), yticklabels=wide.index)
        axis.legend(fontsize=7)
    advantage = derived(tables)["Advantage"]
    for name, rows in advantage.groupby("table"):
        mean = rows.groupby("multiple")["advantage"].mean()
        noise.plot(mean.index, mean, "o-", label=name)
    noise.axhline(0, color="0.7")
    noise.set(xscale="symlog", xlabel="noise features over features", ylabel="transfer: FoSTA - Euclidean")
    noise.set_xticks(sorted(advantage["multiple"].unique()), [f"{m:g}" for m in sorted(advantage["multiple"].unique())])
    noise.legend(fontsize=7)
    for name, rows in tables["Growth"].groupby("contender", sort=False):
        mean = rows.groupby("n")["seconds"].mean()
        slope = np.polyfit(np.log(mean.index), np.log(mean), 1)[0] if len(mean) > 1 else np.nan
        growth.plot(mean.index, mean, "o-", label=f"{name!s}: exponent {slope:.2f}")
    growth.set(xscale="log", yscale="log", xlabel="rows a side", ylabel="s")
    growth.legend(fontsize=7)
    figure.tight_layout()
    return figure
