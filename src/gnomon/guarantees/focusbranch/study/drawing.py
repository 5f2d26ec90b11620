"""The figure of the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gnomon.guarantees.focusbranch.study.experiments import instances
from gnomon.guarantees.focusbranch.study.tables import prediction

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = {
    "auto": "C3",
    "level 1": "C0",
    "level 2": "C9",
    "calzone": "C1",
    "coverd": "C4",
    "top-t coverd": "C2",
    "l = t": "C5",
}


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """Instances decided within a number of bound calls, on the digits and the published nets; predicted and true seconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.8), layout="constrained")
    axes = figure.subplots(1, 3)
    for axis, table, title in ((axes[0], "Digits", "digits"), (axes[1], "Published", "Calzone's nets")):
        rows = instances(tables, (table,))
        if len(rows):
            _cactus(axis, rows)
            axis.legend(fontsize=8)
        axis.set(title=title)
    every = instances(tables)
    if len(every) and len(found := prediction(every)):
        for name, part in found.groupby("experiment"):
            axes[2].loglog(part["predicted"], part["seconds"], "o", ms=4, alpha=0.7, label=str(name))
        ends = [
            min(found["predicted"].min(), found["seconds"].min()),
            max(found["predicted"].max(), found["seconds"].max()),
        ]
        axes[2].loglog(ends, ends, "k:", lw=1)
        axes[2].legend(fontsize=8)
    axes[2].set(xlabel="predicted seconds", ylabel="seconds", title="prediction of auto")
    return figure


def _cactus(axis: Axes, rows: pd.DataFrame) -> None:
    """How many instances a verifier decides within so many calls: the further left and higher the better."""
    for name, colour in STYLE.items():
        part = rows[(rows["contender"] == name) & (rows["decided"] == 1)]
        if len(part):
            calls = np.sort(part["calls"].to_numpy(float))
            axis.step(
                calls,
                np.arange(1, len(calls) + 1),
                where="post",
                color=colour,
                label=name,
                lw=2 if name == "auto" else 1,
            )
    axis.set(xscale="log", xlabel="bound calls", ylabel="instances decided")
