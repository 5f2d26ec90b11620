"""The figures: of the evidence, and of a person's own model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """What the term costs for how far it draws the states; the lens, and the mean cosine, by layer."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=[1.3, 1, 1])
    nll = tables["Predictions"].query("domain == 'in' and contender == 'as trained'").set_index(["objective", "seed"])
    last = tables["Geometry"].query("final").set_index(["objective", "seed"])
    both = last[["ratio"]].join(nll[["nll"]]).reset_index()
    for name, part in both.groupby("objective", sort=False):
        axes[0].plot(part["ratio"], part["nll"], "o", ms=5, label=name)
    top = both["nll"].max() + 0.1  # a run that failed to learn is shown at the edge, with its figure
    for name, part in tables["Variants"].groupby("objective", sort=False):
        ratio, nll_of = part["ratio"].iloc[0], part["nll"].iloc[0]
        axes[0].plot(part["ratio"], part["nll"].clip(upper=top), "v", ms=4, color="0.5")
        label = f"{name} ({nll_of:.2f})" if nll_of > top else str(name)
        axes[0].annotate(
            label, (ratio, min(nll_of, top)), fontsize=6, color="0.4", ha="right" if ratio > 0.8 else "left"
        )
    axes[0].set(xlabel="residual ratio E||h - m||² / E||h||²", ylabel="held-out nats a word")
    axes[0].legend(fontsize=8)
    lens = tables["Decoding"]
    for name, part in lens[lens["contender"] == "logit lens"].groupby("objective", sort=False):
        _layers(axes[1], part.query("layer < layer.max()"), "lens_kl", str(name))
    _layers(axes[1], lens.query("contender == 'tuned lens' and layer < layer.max()"), "lens_kl", "ce, tuned lens", ":")
    axes[1].set(yscale="log", xlabel="layer", ylabel="KL(final || layer), nats")
    axes[1].legend(fontsize=7)
    for name, part in tables["Geometry"].groupby("objective", sort=False):
        _layers(axes[2], part, "cosine", str(name))
    axes[2].set(xlabel="layer", ylabel="mean cosine of two states")
    return figure


def _layers(axes: Axes, rows: pd.DataFrame, column: str, label: str, style: str = "-") -> None:
    means = rows.groupby("layer")[column].mean()
    axes.plot(means.index, means, f"o{style}", ms=4, label=label)


def layers(frames: dict[str, pd.DataFrame]) -> Figure:
    """Lens, residual ratio and mean cosine by layer, of one model or of several."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    labels = {
        "lens_kl": "KL(final || layer), nats",
        "ratio": "E||h - m||² / E||h||²",
        "cosine": "mean cosine of two states",
    }
    for axes, (column, text) in zip(figure.subplots(1, 3), labels.items(), strict=True):
        for name, frame in frames.items():
            axes.plot(frame["layer"], frame[column], "o-", ms=4, label=name)
        axes.set(xlabel="layer", ylabel=text)
        axes.legend(fontsize=8)
    return figure
