"""The figure of the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = {"none": "x", "linearpatch-d": "v", "linearpatch-r": "^", "replaceme": "s", "ghost": "o", "weighted": "D"}


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """Perplexity by cut and operator, and held-out residual and perplexity by the number of calibration tokens."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=[1.5, 1, 1])
    _cuts(axes[0], tables["Recovery"])
    sweep = tables["CalibrationSize"]
    _sweep(axes[1], sweep, "residual", "held-out relative residual")
    axes[1].axhline(1, color="0.5", lw=0.8, ls=":")
    axes[1].annotate("plain removal", (sweep["size"].max(), 1), ha="right", va="bottom", fontsize=8, color="0.4")
    _sweep(axes[2], sweep, "nll", "perplexity", np.exp)
    axes[1].legend(fontsize=8)
    return figure


def _cuts(axes: Axes, rows: pd.DataFrame) -> None:
    """Geometric mean over seeds, with each seed as a dot."""
    rows = rows.assign(
        cut=rows["criterion"] + "\nn = " + rows["n"].astype(str) + np.where(rows["crosses"], "\n(sink)", "")
    )
    cuts = list(dict.fromkeys(rows["cut"]))
    seeds = rows.groupby(["cut", "contender", "seed"])["nll"].mean()
    names = [n for n in MARKS if n in set(rows["contender"])]
    for i, name in enumerate(names):
        shift = (i - (len(names) - 1) / 2) * 0.11
        for at, cut in enumerate(cuts):
            each = np.exp(seeds[cut, name])
            label = name if at == 0 else None
            axes.plot([at + shift] * len(each), each, ".", color=f"C{i}", ms=3, alpha=0.6)
            axes.plot(at + shift, np.exp(seeds[cut, name].mean()), MARKS[name], color=f"C{i}", ms=6, label=label)
    dense = np.exp(rows.loc[rows["contender"] == "dense", "nll"].mean())
    axes.axhline(dense, color="0.5", lw=0.8, ls=":")
    axes.annotate("dense", (-0.45, dense), va="bottom", fontsize=8, color="0.4")
    axes.set(yscale="log", xticks=range(len(cuts)), xticklabels=cuts, ylabel="perplexity, held-out articles")
    axes.legend(fontsize=8, ncols=2)


def _sweep(axes: Axes, rows: pd.DataFrame, column: str, label: str, shown: np.ufunc | None = None) -> None:
    for name, part in rows.dropna(subset=[column]).groupby("contender", sort=False):
        means = part.groupby("size")[column].mean()
        axes.plot(means.index, shown(means) if shown else means, "o-", ms=4, label=name)
    axes.set(xscale="log", yscale="log", xlabel="calibration tokens / C", ylabel=label)
