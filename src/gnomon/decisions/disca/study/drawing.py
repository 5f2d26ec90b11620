"""The figures: of the evidence, and of a person's own questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gnomon.decisions.disca.human import DIMENSIONS
from gnomon.decisions.disca.study.worlds import REGIMES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from gnomon.decisions.disca.method import Decision

SHOWN = ("disca", "panel mean", "kappa 1", "wrong country", "temperature 2")


def evidence(tables: dict[str, pd.DataFrame]) -> Figure:
    """Change of misalignment by regime and rule, and the model's effects beside people's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    found = tables["Panels"]
    regimes = [r for r in REGIMES if r in set(found["regime"])]
    names = [n for n in SHOWN if n in set(found["contender"])]
    for k, name in enumerate(names):
        changes = found[found["contender"] == name].groupby("regime")["relative"]
        mean, sd = changes.mean()[regimes], changes.std()[regimes].fillna(0)
        at = np.arange(len(regimes)) + 0.16 * (k - (len(names) - 1) / 2)
        left.bar(at, 100 * mean, 0.15, yerr=100 * sd, label=name, error_kw={"lw": 0.8})
    left.axhline(0, color="black", lw=0.8)
    left.set_xticks(range(len(regimes)), regimes, rotation=15)
    left.set(ylabel="change of misalignment, %", title="simulated personas (bars: sd over repeats)")
    left.set_yscale("symlog", linthresh=20)
    left.legend(fontsize=8)
    if (model := tables.get("Model")) is not None:
        for name, mark in (("base", "o"), ("disca", "s"), ("panel mean", "^")):
            own = model[model["contender"] == name]
            if len(own):
                right.plot(
                    range(len(DIMENSIONS)), [own[f"amce_{d}"].mean() for d in DIMENSIONS], mark, label=name, alpha=0.8
                )
        right.axhline(0, color="black", lw=0.8)
        right.set_xticks(range(len(DIMENSIONS)), DIMENSIONS, rotation=30)
        right.set(ylabel="effect, 2 p - 1", title="the language model, mean over countries")
        right.legend(fontsize=8)
    return figure


def person(decisions: list[Decision]) -> Figure:
    """For each question the probability of its first option, before and after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 1.2 + 0.4 * len(decisions)), layout="constrained")
    axes = figure.subplots()
    for i, d in enumerate(decisions):
        axes.plot([d.base_probabilities[0], d.probabilities[0]], [i, i], "-", color="C7", zorder=1)
    rows = range(len(decisions))
    axes.plot([d.base_probabilities[0] for d in decisions], rows, "o", color="C7", label="base")
    axes.plot([d.probabilities[0] for d in decisions], rows, "s", color="C0", label="corrected")
    axes.set_yticks(rows, [f"{i + 1}: {d.options[0]}"[:40] for i, d in enumerate(decisions)])
    axes.set(xlim=(0, 1), xlabel="probability of the first option")
    axes.invert_yaxis()
    axes.legend()
    return figure
