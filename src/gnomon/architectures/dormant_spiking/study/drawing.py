"""The figure of the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = {"leak": "o", "never": "s", "after": "^"}


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """Energy against accuracy, the sweep of thresholds, and who is awake by step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=[1.4, 1, 1])
    _networks(axes[0], tables["Networks"])
    _sweep(axes[1], tables["Sweep"])
    _activity(axes[2], tables["Activity"])
    return figure


def _networks(axes: Axes, rows: Any) -> None:
    rows = rows[(rows["data"] == "digits") & (rows["contender"] != "relu")]
    for i, (name, part) in enumerate(rows.groupby("contender", sort=False)):
        where = part.groupby(["wake", "v_dormant"])[["pj", "accuracy"]].mean()
        if name == "lif":
            where = where.iloc[:1]
        for (wake, _), row in where.iterrows():
            axes.plot(
                row["pj"] / 1e3, row["accuracy"], MARKS[wake], color=f"C{i % 10}", label=name, alpha=0.4 if i > 9 else 1
            )
            name = None
    axes.set(xlabel="nJ per image, mean over folds", ylabel="accuracy", title="digits (circle: leak, square: never)")
    axes.legend(fontsize=7, frameon=False)


def _sweep(axes: Axes, rows: Any) -> None:
    for (wake, learn), part in rows.groupby(["wake", "learn"], sort=False):
        part = part.sort_values("v_dormant")
        axes.plot(part["v_dormant"], part["pj"] / 1e3, MARKS[wake] + ("--" if learn else "-"),
                  label=f"{wake}{', learned' if learn else ''}")  # fmt: skip
    axes.set(xlabel="dormancy threshold (at the start, where learned)", ylabel="nJ per image, one fold")
    axes.legend(fontsize=7, frameon=False)


def _activity(axes: Axes, rows: Any) -> None:
    for wake, part in rows[rows["contender"] == "dormant"].groupby("wake", sort=False):
        for layer, line in part.groupby("layer"):
            axes.plot(line["step"], line["awake_share"], MARKS[wake] + "-", ms=3, color=f"C{layer}",
                      label=f"{wake}, layer {layer + 1}")  # fmt: skip
    axes.set(xlabel="step", ylabel="awake neurons", ylim=(0, 1.02))
    axes.legend(fontsize=7, frameon=False)
