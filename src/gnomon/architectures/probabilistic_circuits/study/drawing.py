"""The figures of the evidence and of a person's own run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TITLES = {"aligned": "copies along the vtree", "crossing": "copies across it", "cue 7": "seven matchings and a cue"}


def evidence(tables: dict[str, pd.DataFrame]) -> Figure | None:
    """Excess by model, split into bound and optimisation, for the three topologies; text by head and width."""
    from matplotlib.figure import Figure

    if "Topology" not in tables:
        return None
    rows = tables["Topology"]
    tasks = [t for t in TITLES if t in set(rows["task"])]
    figure = Figure(figsize=(13, 5), layout="constrained")
    axes = figure.subplots(1, len(tasks) + 1)
    for axis, task in zip(axes[:-1], tasks, strict=True):
        part = rows[rows["task"] == task].groupby("contender", sort=False)[["bound", "beyond"]].mean()
        axis.barh(part.index, part["bound"], color="0.4", label="demanded by theory")
        axis.barh(part.index, part["beyond"].clip(lower=0), left=part["bound"], color="C1", label="left by training")
        axis.invert_yaxis()
        axis.tick_params(labelsize=7)
        axis.set(title=TITLES[task], xlabel="nats above the entropy")
    axes[0].legend(frameon=False, fontsize=8)
    _text(axes[-1], tables)
    return figure


def _text(axis: Any, tables: dict[str, pd.DataFrame]) -> None:
    import pandas as pd

    rows = pd.concat([tables[name] for name in ("Text", "WideText") if name in tables] or [pd.DataFrame()])
    if rows.empty:
        axis.set_axis_off()
        return
    for name, part in rows[~rows["contender"].str.startswith("kneser")].groupby("contender", sort=False):
        mean = part.groupby("R")["text_nll"].mean()
        style = "--" if "prob" in str(name) else "-"
        axis.plot(mean.index, mean, style, marker="o", label=name)
    for name, part in rows[rows["contender"].isin(["kneser-ney 2", "kneser-ney 3"])].groupby("contender"):
        axis.axhline(part["text_nll"].mean(), color="0.6", lw=0.8)
        axis.annotate(
            name, (rows["R"].max(), part["text_nll"].mean()), ha="right", va="bottom", fontsize=7, color="0.4"
        )
    axis.set_xscale("log", base=2)
    axis.set(title="words of text", xlabel="width R", ylabel="held-out nats a word")
    axis.legend(frameon=False, fontsize=7)


def person(table: pd.DataFrame) -> Figure:
    """Held-out NLL of each model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axis = figure.subplots()
    axis.barh(table["model"], table["nats a row"])
    axis.invert_yaxis()
    axis.set_xlim(left=0.95 * table["nats a row"].min())
    axis.set(xlabel="held-out NLL, nats a row")
    return figure
