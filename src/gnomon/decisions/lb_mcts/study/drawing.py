"""The figure of the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = {"lb-mcts": ("C3", 2.2), "rho = 0": ("C1", 1.4), "rho = 1": ("C0", 1.4), "random": ("0.6", 1.2), "tpe": ("C2", 1.2),
         "smac": ("C4", 1.2), "plain mcts": ("C5", 1.2)}  # fmt: skip
FLOOR = 1e-4  # regrets of zero are drawn there


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """Mean regret to the best error ever seen over trials, a panel per data set; and mean rho over trials."""
    from matplotlib.figure import Figure

    rows = tables["Searches"]
    data = list(dict.fromkeys(rows["data"]))
    figure = Figure(figsize=(3.4 * (len(data) + 1), 3.4), layout="constrained")
    axes = figure.subplots(1, len(data) + 1, squeeze=False)[0]
    for ax, name in zip(axes, data, strict=False):
        curves(ax, rows[rows["data"] == name], name)
    axes[0].set(ylabel="regret (balanced error)")
    axes[0].legend(fontsize=7)
    shift(axes[-1], tables.get("Shift"))
    return figure


def curves(ax: Axes, rows: pd.DataFrame, name: str) -> None:
    least = rows["best"].min()
    for contender, (colour, width) in STYLE.items():
        part = rows[rows["contender"] == contender]
        if len(part):
            mean = part.groupby("trial")["best"].mean() - least
            ax.plot(mean.index, np.maximum(mean, FLOOR), color=colour, lw=width, label=contender)
    ax.set(yscale="log", xlabel="evaluations", title=name)


def shift(ax: Axes, rows: pd.DataFrame | None) -> None:
    if rows is None or not len(rows):
        ax.set_axis_off()
        return
    for name, part in rows.groupby("data", sort=False):
        ax.plot(part.groupby("trial")["rho"].mean(), label=f"rho, {name}")
    bo = rows.assign(bo=rows["proposer"] == "bo").groupby("trial")["bo"].mean().rolling(10, min_periods=5).mean()
    ax.plot(bo, color="0.3", lw=1, ls=":", label="share of BO (10 trials)")
    ax.set(xlabel="evaluations", ylim=(0, 1), title="who is asked")
    ax.legend(fontsize=7)
