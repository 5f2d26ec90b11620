"""The figures: of the evidence, and of a person's run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.decisions.dueling.study.experiments import SHOWN, THREE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from gnomon.decisions.dueling.simulation import Simulation

COLOURS = {"tgite": "C0", "union bounds": "C3", "winner stays": "C1", "tree only": "C2", "relative UCB": "C4",
           "winner stays, strong": "C5", "no book": "C2"}  # fmt: skip
MARKS = dict(zip(THREE, "os^", strict=True))


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """Duels an arm against N, weak regret an arm against N, strong regret over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    axes = figure.subplots(1, 3)
    if "Scaling" in tables:
        _against_n(axes[0], tables["Scaling"], "per_arm", ["tgite", "union bounds"], "duels to the answer / N")
    if "Weak" in tables:
        _against_n(axes[1], tables["Weak"], "weak_per_arm", ["tgite", "winner stays"], "weak regret / N at the horizon")
        axes[1].set_yscale("log")
    if "Strong" in tables:
        found = tables["Strong"]
        part = found[(found["matrix"] == "cyclic") & (found["n"] == found["n"].max())]
        for name in ("tgite", "no book", "relative UCB", "winner stays, strong"):
            own = part[part["contender"] == name]
            if len(own):
                curve = [own[f"strong_{share:g}"].mean() for share in SHOWN]
                axes[2].loglog(SHOWN, curve, "o-", ms=3, color=COLOURS[name], label=name)
        axes[2].set(xlabel="duels / horizon", ylabel="strong regret", title=f"cyclic, N = {part['n'].max()}")
        axes[2].legend(fontsize=8)
    return figure


def _against_n(axes: Any, found: pd.DataFrame, column: str, names: list[str], what: str) -> None:
    for name in names:
        for matrix, part in found[found["contender"] == name].groupby("matrix"):
            each = part.groupby("n")[column]
            mean, error = each.mean(), 2 * each.sem()
            axes.errorbar(mean.index, mean, error.fillna(0), marker=MARKS.get(str(matrix), "x"), ms=4, lw=1,
                          color=COLOURS.get(name, "C7"), label=f"{name}, {matrix}")  # fmt: skip
    axes.set(xscale="log", xlabel="N", ylabel=what, xticks=sorted(set(found["n"])))
    axes.set_xticklabels([str(n) for n in sorted(set(found["n"]))])
    axes.minorticks_off()
    axes.legend(fontsize=7)


def regrets(results: dict[str, Simulation], objective: str) -> Figure:
    """Cumulative regret of a person's matrix over duels."""
    from matplotlib.figure import Figure

    kind = "strong" if objective == "strong" else "weak"
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.subplots()
    for name, found in results.items():
        axes.plot(found.times, getattr(found, f"{kind}_gap"), label=name)
    axes.set(xscale="log", xlabel="duels", ylabel=f"{kind} regret (gaps)")
    axes.legend()
    return figure


def standings(names: list[str], trace: pd.DataFrame) -> Figure:
    """Who met whom how often, and who won: wins of the row over the column."""
    from matplotlib.figure import Figure

    n = len(names)
    wins = np.zeros((n, n))
    np.add.at(wins, (trace["i"], trace["j"]), trace["wins"])
    np.add.at(wins, (trace["j"], trace["i"]), trace["losses"])
    np.fill_diagonal(wins, 0)
    met = wins + wins.T
    figure = Figure(figsize=(1.5 + 0.4 * n, 1.2 + 0.4 * n), layout="constrained")
    axes = figure.subplots()
    share = np.divide(wins, met, out=np.full((n, n), np.nan), where=met > 0)
    shown = axes.imshow(share, vmin=0, vmax=1, cmap="RdBu")
    axes.set_xticks(range(n), names, rotation=90)
    axes.set_yticks(range(n), names)
    for i, j in np.argwhere(met > 0):
        axes.text(j, i, f"{int(wins[i, j])}/{int(met[i, j])}", ha="center", va="center", fontsize=7)
    figure.colorbar(shown, label="share won by the row")
    return figure
