"""The figure of the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.optimization.byzantine.study.experiments import FOUR, MAIN, SHOWN

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = {
    "gd": "C7",
    "nesterov": "C1",
    "pigs": "C0",
    "aeg": "C3",
    "local prox": "C2",
    "heavy ball": "C4",
    "aeg, l = 0": "C5",
}


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """The objective gap over rounds with and without a liar, and floors against kappa G^2."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.8), layout="constrained")
    axes = figure.subplots(1, 3)
    found = tables["Convergence"]
    _curves(axes[0], found, MAIN, [*FOUR, "local prox"], "one liar in 21 (optimised ALIE), l2 = 0.01")
    honest = {**MAIN, "f": 0, "attack": "none"}
    for l2 in (1e-3, 1e-2):
        at = {**honest, "l2": l2}
        if _rows(found, at).any():
            _curves(axes[1], found, at, FOUR, f"no liar, l2 = {l2:g}")
            break
    if (floors := tables.get("Floors")) is not None:
        for mark, (split, part) in zip("osD^v", floors.groupby("split", sort=False), strict=False):
            axes[2].loglog(part["kappa_G2"], part["floor"], mark, ms=4, alpha=0.7, label=str(split))
        axes[2].legend(fontsize=8)
    axes[2].set(xlabel="κ G²", ylabel="floor of the objective gap", title="floors of pigs, 1 to 5 liars")
    return figure


def _rows(found: pd.DataFrame, at: dict[str, Any]) -> Any:
    return np.logical_and.reduce([found[k] == v for k, v in at.items()])


def _curves(axes: Axes, found: pd.DataFrame, at: dict[str, Any], names: list[str], title: str) -> None:
    """Geometric mean over seeds."""
    part = found[_rows(found, at)]
    columns = [f"gap_{r}" for r in SHOWN if f"gap_{r}" in part and part[f"gap_{r}"].notna().any()]
    rounds = [int(c.removeprefix("gap_")) for c in columns]
    for name in names:
        own = part[part["contender"] == name]
        if len(own):
            axes.loglog(rounds, np.exp(np.log(own[columns].astype(float)).mean()), color=STYLE[name], label=name,
                        lw=2 if name in ("pigs", "aeg") else 1.2)  # fmt: skip
    axes.set(xlabel="rounds of communication", ylabel="objective gap", title=title)
    axes.legend(fontsize=8)
