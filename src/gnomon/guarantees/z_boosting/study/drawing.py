"""The figure of the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gnomon.guarantees.z_boosting.study.experiments import SUCCESS
from gnomon.guarantees.z_boosting.study.worlds import RECTANGLES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """Which rectangles can be boosted and by whom; missed positives on real rows; broken promises of amplifiers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _rectangles(left, tables.get("Synthetic"))
    _missed(middle, tables.get("Real"))
    _broken(right, tables.get("Amplification"))
    return figure


def _rectangles(axes: Axes, rows: pd.DataFrame | None) -> None:
    a = np.linspace(0, 1, 301)
    axes.fill_between(a, 0, (1 - np.sqrt(a)) ** 2, color="C0", alpha=0.12, label="boostable: √FP + √FN < 1")
    axes.plot([0.5, 0], [0, 0.5], "k:", lw=1, label="classical: FP + FN < 1/2")
    axes.set(
        xlabel="promised FP",
        ylabel="promised FN",
        title="who reaches zero error, by corner of the rectangle",
        xlim=(0, 0.7),
        ylim=(0, 0.7),
    )
    if rows is not None:
        for i, (name, mark) in enumerate((("zboost", "o"), ("adaboost", "s"), ("p = 1/2", "^"))):
            part = rows[(rows["contender"] == name) & (rows["learner"] == "tight") & rows["z"].isin(list(RECTANGLES))]
            done = part.groupby("z")["reached"].mean()
            for z, share in done.items():
                x, y = RECTANGLES[str(z)]
                axes.plot(x + 0.014 * (i - 1), y, mark, color=f"C{i}", mfc=f"C{i}" if share == 1 else "white", ms=7)
            axes.plot([], [], mark, color=f"C{i}", label=f"{name} (filled: reached)")
    axes.legend(fontsize=8)


def _missed(axes: Axes, rows: pd.DataFrame | None) -> None:
    axes.set(xlabel="missed positives at 5 % false positives", title="real rows, stumps, means over splits")
    if rows is None:
        return
    means = rows[rows["weak"] == "stump"].groupby(["task", "contender"], sort=False)["fnr"].mean().unstack()
    for name in means.columns.difference(["zboost", "adaboost"]):
        axes.plot(means[name], means.index, ".", color="0.75", ms=5)
    axes.plot([], [], ".", color="0.75", label="others")
    for name, color in (("adaboost", "C1"), ("zboost", "C0")):
        if name in means:
            axes.plot(means[name], means.index, "o", color=color, label=name)
    axes.invert_yaxis()
    axes.legend(fontsize=8)


def _broken(axes: Axes, rows: pd.DataFrame | None) -> None:
    axes.set(
        xlabel="runs k",
        ylabel="promise broken",
        title="a quarter of the runs bad, all on one side (slab)",
        xscale="log",
    )
    if rows is None:
        return
    part = rows[(rows["z"] == "slab") & (rows["bad"] == "one-sided")]
    for name, own in part.groupby("contender", sort=False):
        mean = own.groupby("k")["failed"].mean()
        axes.plot(mean.index, mean, "o-", ms=4, label=str(name))
    k = np.unique(part["k"])
    axes.plot(k, np.exp(-2 * k * (SUCCESS - 2 / 3) ** 2), "k--", lw=1, label="exp(-2 k η²)")
    axes.set_xticks(k, [str(int(i)) for i in k])
    axes.minorticks_off()
    axes.set_ylim(-0.03, 1.03)
    axes.legend(fontsize=8)
