"""The pictures: violations against accuracy round by round, and policies before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnomon.guarantees.tree_repair.study.tables import LOOPS, turns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COLOURS = {"repair": "#b2432f", "repair, flips": "#1f6f8b"}
MARKS = {"none": "o", "without sensitive": "*", "retrained": "s", "averaged": "D", "refit, weight 1": "v", "refit, weight 5": "v",
         "refit, weight 25": "v", "exponentiated gradient": "P", "threshold optimizer": "X"}  # fmt: skip


def evidence(tables: dict[str, pd.DataFrame]) -> Figure | None:
    """Pareto fronts of each case, and the returns of policies before and after repair."""
    from matplotlib.figure import Figure

    every = turns(tables) if "German" in tables or "Others" in tables else None
    cases = [] if every is None else sorted(every["case"].unique(), key=lambda c: (c != "german-gbdt", c))
    panels = len(cases) + ("Policies" in tables and len(tables["Policies"]) > 0)
    if not panels:
        return None
    figure = Figure(figsize=(3.6 * panels, 3.8), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for axis, case in zip(axes, cases, strict=False):
        front(axis, every, case)
    if cases:
        axes[0].legend(fontsize=6)
    if panels > len(cases):
        returns(axes[-1], tables["Policies"])
    return figure


def front(axis: Any, every: Any, case: str) -> None:
    """Mean over splits: the loops as paths from the model as it is, the others as points."""
    mean = (
        every[every["case"] == case].groupby(["contender", "round"], as_index=False)[["violation", "accuracy"]].mean()
    )
    for name, part in mean.groupby("contender"):
        x, y = 100 * part["violation"], part["accuracy"]
        if name in LOOPS:
            axis.plot(x, y, "-o", color=COLOURS[name], ms=3, lw=1, label=name)
            axis.annotate("end", (x.iloc[-1], y.iloc[-1]), fontsize=6, color=COLOURS[name])
        else:
            axis.plot(x, y, MARKS.get(name, "."), color="#555555", ms=5, label=name)
    axis.set(title=case, xlabel="held-out pairs decided differently (%)", ylabel="test accuracy")


def returns(axis: Any, rows: Any) -> None:
    """Relative change of the expected return by repair, one dot a policy that was made safer."""
    names = list(dict.fromkeys(rows["task"]))
    rows = rows[rows["risk_before"] > rows["risk_after"]]
    for shift, who in zip((-0.12, 0.12), LOOPS, strict=True):
        part = rows[rows["contender"] == who]
        at = [names.index(t) + shift for t in part["task"]]
        axis.plot(at, part["return_change"].clip(-3, 3), "o", color=COLOURS[who], alpha=0.5, ms=4)
    axis.axhline(-0.05, lw=0.8, ls=":", color="k")
    axis.set(title="policies made safer", ylabel="relative change of the return", xticks=range(len(names)))
    axis.set_xticklabels(names, rotation=30, ha="right", fontsize=7)
