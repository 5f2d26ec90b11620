"""The picture: risk over coverage, statements against their bounds, cities to capitals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

CURVES = {"logprob": "log-probability", "logprob + geometry": "with geometry", "linear probe": "linear probe"}
WAYS = {"fdr": "o", "pac": "s", "both": "D", "uncorrected": "x"}


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """Three panels from the tables that were run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    if (rows := tables.get("Scores")) is not None:
        curves(left, {name: (rows[column], rows["correct"]) for column, name in CURVES.items() if column in rows})
    synthetic: Any = tables.get("Synthetic")
    if synthetic is not None:
        part = synthetic[synthetic["world"] == "informative"]
        for way, mark in WAYS.items():
            column = "wrong_share" if way == "fdr" else "violated"
            own = part[part["contender"] == way].groupby("n")[column].mean()
            middle.plot(
                own.index,
                own,
                marker=mark,
                label=f"{way}: {'share of wrong answers' if way == 'fdr' else 'draws that fail'}",
            )
        middle.axhline(0.25, color="C0", lw=0.8, ls="--")
        middle.axhline(0.1, color="0.4", lw=0.8, ls=":")
        middle.set(
            xscale="log",
            xlabel="calibration questions",
            ylabel="rate",
            ylim=(0, None),
            title="known truth: bounds .25 (fdr), .1",
        )
        middle.legend(fontsize=7)
    shift: Any = tables.get("Shift")
    if shift is not None:
        names, part = ["plain", "weighted", "mondrian"], shift[shift["way"] == "fdr"]
        for i, name in enumerate(names):
            own = part[part["contender"] == name]
            given = own["answered"].sum()
            right.bar(i - 0.2, own["answered"].mean(), 0.4, color="0.75", label="share answered" if i == 0 else None)
            if given > 0:
                right.bar(
                    i + 0.2,
                    1 - own["joint"].sum() / given,
                    0.4,
                    color="C0",
                    label="right among all answers" if i == 0 else None,
                )
        right.axhline(0.75, color="C3", lw=0.8, ls="--")
        right.set(xticks=range(len(names)), xticklabels=names, ylim=(0, 1), title="cities to capitals (fdr)")
        right.legend(fontsize=7)
    return figure


def curves(axes: Any, scores: dict[str, tuple[Any, Any]]) -> None:
    """Share right among the most confident, over the share answered."""
    for name, (score, correct) in scores.items():
        order = np.argsort(-np.asarray(score, float))
        share = np.arange(1, len(order) + 1) / len(order)
        axes.plot(
            share, np.cumsum(np.asarray(correct, float)[order]) / np.arange(1, len(order) + 1), label=name, lw=1.4
        )
    axes.axhline(0.75, color="C3", lw=0.8, ls="--")
    axes.set(xlabel="share answered", ylabel="right among the answers", ylim=(0, 1.02), title="selective answering")
    axes.legend(fontsize=7)
