"""The study's figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SHOWN = {"angular mean": "C0", "arithmetic mean": "C1", "Kemeny (geodesic median)": "C2", "max-min slack": "C7"}
MARKS = {"electricity": "o", "train": "s", "car": "^", "countries": "D", "file": "*"}


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """Least slack over disagreement; least slacks of random worlds; shortfall over batch size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    _regimes(axes[0], tables)
    _worlds(axes[1], tables)
    _gap(axes[2], tables)
    return figure


def _regimes(ax: Any, tables: dict[str, pd.DataFrame]) -> None:
    ax.axhline(0, color="0.6", lw=0.8)
    if "Regimes" in tables:
        means = tables["Regimes"].groupby(["data", "voters", "contender"])[["angle", "min_slack"]].mean().reset_index()
        for name, colour in SHOWN.items():
            for data, mark in MARKS.items():
                part = means[(means["contender"] == name) & (means["data"] == data)]
                ax.scatter(part["angle"], part["min_slack"], s=16, color=colour, marker=mark, alpha=0.8,
                           label=name if data == "electricity" else None)  # fmt: skip
        ax.legend(fontsize=7)
    ax.set(xlabel="mean angle between types (degrees)", ylabel="least slack (share of pairs)",
           title="real voters (o electricity, square train,\ntriangle car, diamond countries)")  # fmt: skip
    ax.title.set_fontsize(9)


def _worlds(ax: Any, tables: dict[str, pd.DataFrame]) -> None:
    ax.axvline(0, color="0.6", lw=0.8)
    if "Guarantee" in tables:
        for name, rows in tables["Guarantee"].groupby("contender", sort=False):
            x = np.sort(rows["min_slack"].to_numpy(float))
            ax.plot(x, np.arange(1, len(x) + 1) / len(x), label=str(name), lw=1.2)
        ax.set_yscale("log")
        ax.legend(fontsize=7)
    ax.set(xlabel="least slack", ylabel="share of random worlds below")
    ax.set_title("negative: some voter gets less than its share", fontsize=9)


def _gap(ax: Any, tables: dict[str, pd.DataFrame]) -> None:
    if "Gap" in tables:
        for weight in sorted(set(tables["Gap"]["weight"])):
            rows = tables["Gap"][tables["Gap"]["weight"] == weight]
            curve = rows.groupby("m")["shortfall"].mean()
            ax.plot(curve.index, curve, "o-", ms=3, label=f"opposed voters, weights {weight:g} / {1 - weight:g}")
        m = np.array([10.0, 100.0])
        ax.plot(m, 0.14 * m**-0.5, "k--", lw=0.8, label="$m^{-1/2}$")
        ax.set(xscale="log", yscale="log")
        ax.legend(fontsize=7)
    ax.set(xlabel="items in a batch, m", ylabel="expected shortfall of a voter")
    ax.set_title("batch by batch", fontsize=9)
