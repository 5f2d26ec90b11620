"""The pictures: learning curves and costs, and what a person's own run gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def evidence(tables: dict[str, pd.DataFrame]) -> Figure | None:
    """Accuracy of recall over training, needles by length, and the rule's time by length."""
    from matplotlib.figure import Figure

    if not {"Recall", "Needles", "Forward"} <= set(tables):
        return None
    figure = Figure(figsize=(13, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    rows = tables["Recall"].query("task == 'mqar' and place == -1 and updates == -1")
    for name, group in rows.groupby("contender", sort=False):
        curve = group.groupby("step")["accuracy"]
        left.plot(curve.mean(), label=name)
        left.fill_between(curve.mean().index, curve.min(), curve.max(), alpha=0.12)
    left.set(xlabel="training steps", ylabel="accuracy on 12 pairs", title="recall (mean and range of the seeds)")
    left.legend(frameon=False, fontsize=8)
    for (name, arch, kind), group in tables["Needles"].groupby(["contender", "arch", "kind"], sort=False):  # type: ignore[assignment]
        style = "-" if arch == "recurrent" else "--"
        colour = {"gdn2": "C0", "kda": "C1"}.get(name, "C2")  # type: ignore[arg-type]
        middle.plot(group.groupby("times")["found"].mean(), style, color=colour,
                    marker="o" if kind == "s-niah" else "s", label=f"{name}, {arch}, {kind}")  # fmt: skip
    middle.set(xlabel="length, in units of the training length", ylabel="needles found", ylim=(0, 1), title="needles")
    middle.legend(frameon=False, fontsize=7)
    for name, group in tables["Forward"].groupby("contender", sort=False):
        right.plot(group.groupby("T")["forward_s"].median() * 1e3, "o-", label=f"{name}, forward")
    if "Backward" in tables:
        for name, group in tables["Backward"].groupby("contender", sort=False):
            right.plot(group.groupby("T")["both_s"].median() * 1e3, "s--", label=f"{name}, with backward")
    right.set(
        xscale="log", yscale="log", xlabel="tokens", ylabel="ms", title="the rule, 2 heads of 64 x 64, one thread"
    )
    right.legend(frameon=False, fontsize=7)
    return figure


def trained(losses: dict[str, list[float]]) -> Figure:
    """Training loss of each mixer, averaged over every twentieth of the run."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, values in losses.items():
        parts = np.array_split(np.asarray(values), min(20, len(values)))
        axes.plot(np.cumsum([len(p) for p in parts]), [p.mean() for p in parts], "o-", label=name)
    axes.set(xlabel="steps", ylabel="loss in training (nats a token)")
    axes.legend(frameon=False)
    return figure
