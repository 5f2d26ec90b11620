"""The figure of the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """sqrt of the singular values by step, for each rule; the flatness of adapters by step."""
    from matplotlib.figure import Figure

    paths = tables["Paths"]
    names = list(dict.fromkeys(paths["contender"]))
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    axes = figure.subplots(1, len(names) + 1)
    for place, name in zip(axes[:-1], names, strict=True):
        for mode, rows in paths[paths["contender"] == name].groupby("mode"):
            place.plot(rows["step"], rows["root"], color=f"C{int(mode) - 1}", lw=1.2)
        place.set(title=name, xlabel="step", ylim=(0, 2.5))
    axes[0].set_ylabel("square root of the singular values of AB")
    flat(axes[-1], tables["Medians"])
    return figure


def flat(axes: Axes, steps: pd.DataFrame) -> None:
    """Median flatness of the adapters by step, a line for each seed."""
    for i, name in enumerate(dict.fromkeys(steps["contender"])):
        for k, (_, rows) in enumerate(steps[steps["contender"] == name].groupby("seed")):
            axes.plot(rows["step"], rows["flatness"], color=f"C{i}", lw=1, label=name if k == 0 else None)
    axes.set(title="LoRA adapters", xlabel="step", ylabel="smallest / largest singular value (median)", ylim=(0, 1))
    axes.legend(fontsize=8)
