"""The figure of the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """River error by step; admissible steps by distance; the language model's final loss by switch and branch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for name, rows in tables["Curves"].groupby("contender", sort=False):
        left.semilogy(rows["step"], rows["river"].clip(lower=1e-5), lw=1.2, label=name)
    left.set(title="sensing lab, population", xlabel="step", ylabel="error along the river")
    left.legend(fontsize=7)
    for name, rows in tables["Around"].groupby("contender", sort=False):
        means = rows.groupby("s")["largest"].mean()
        middle.loglog(means.index, means, "o-", ms=4, label={"muon": "Muon", "gd": "GD"}.get(str(name), str(name)))
    middle.set(
        title="digits MLP around its minimum", xlabel="distance from the minimum", ylabel="largest decreasing step"
    )
    middle.legend(fontsize=7)
    scan = tables["Scan"]
    for i, (name, rows) in enumerate(scan[scan["data"] == "large"].groupby("contender", sort=False)):
        rows = rows.sort_values("switch")
        right.plot(rows["switch"], rows["loss"], "o-", ms=4, color=f"C{i}", label=name)
    right.set(title="language model, seed 0", xlabel="switch (share of the steps)", ylabel="final validation loss")
    right.legend(fontsize=7)
    return figure
