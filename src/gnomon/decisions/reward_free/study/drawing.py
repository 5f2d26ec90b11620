"""The figure of the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.decisions.reward_free.certificate import lock_agents
from gnomon.decisions.reward_free.study.contenders import PAPER, PHASED
from gnomon.decisions.reward_free.study.material import HORIZONS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {PHASED: "C0", PAPER: "C3", "uniform": "C7", "generator": "C2"}


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """Agents for success 1/2 on locks over the length of a block; gaps over episodes on an easy and on a hard world."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.8), layout="constrained")
    axes = figure.subplots(1, 3)
    if "Locks" in tables:
        _locks(axes[0], tables["Locks"])
    if "Budgets" in tables:
        shown = [w for w in ("frozenlake 4x4", "corridor", "random", "lock") if w in set(tables["Budgets"]["world"])]
        for panel, world in zip(axes[1:], shown, strict=False):
            _gaps(panel, tables["Budgets"], world)
    return figure


def _locks(axes: Axes, rows: pd.DataFrame) -> None:
    found = rows[rows["what"] == "root"]
    for k, A in enumerate(sorted(map(int, found["A"].unique()))):
        part = found[found["A"] == A]
        H = round(float((part["length"] * part["rho"]).iloc[0]))
        axes.semilogy(
            part["length"],
            part["agents"].astype(float),
            "os"[k % 2],
            color=f"C{k}",
            ms=4,
            alpha=0.6,
            label=f"measured, A = {A}",
        )
        lengths = sorted(part["length"].unique())
        axes.plot(
            lengths,
            [lock_agents(A, [int(L)] * int(H // L)) for L in lengths],
            color=f"C{k}",
            lw=1,
            label="closed form",
        )
    axes.set(
        xlabel="steps of a block, H / ρ",
        ylabel="agents a phase that open half of the locks",
        title="locks: exponential in H / ρ",
    )
    axes.legend(fontsize=8)


def _gaps(axes: Axes, rows: pd.DataFrame, world: str) -> None:
    """Means over seeds; a gap of zero is drawn at the bottom."""
    part = rows[rows["world"] == world]
    positive: Any = part["gap"][part["gap"] > 0]
    floor = float(positive.min()) / 3 if len(positive) else 1e-4
    for name, colour in COLOURS.items():
        own = part[part["contender"] == name].groupby("agents")["gap"].mean()
        if len(own):
            episodes = np.asarray(own.index, dtype=float) * HORIZONS[world]
            axes.loglog(episodes, np.maximum(own.to_numpy(), floor), "o-", ms=4, color=colour, label=name)
    nothing = " (no gap: drawn at the bottom)" if (part["gap"] == 0).any() else ""
    axes.set(xlabel="episodes in all", ylabel="worst gap, random and indicator rewards", title=world + nothing)
    axes.legend(fontsize=8)
