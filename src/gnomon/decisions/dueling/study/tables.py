"""Tables derived from the records: how ablations' costs grow, and whether two modes answered at the same time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def overhead(scaling: pd.DataFrame) -> pd.DataFrame:
    """For each run and ablation the slope of ln(duels / those of TG-ITE) along ln N."""
    import pandas as pd

    rows = []
    wide = scaling.pivot_table(index=["matrix", "run", "n"], columns="contender", values="duels")
    for name in wide.columns.drop("tgite"):
        share: pd.Series = wide[name] / wide["tgite"]
        ratio = share.map(math.log).unstack("n")
        x = np.log(ratio.columns.to_numpy(float))
        if len(x) < 2:
            continue
        x = x - x.mean()
        for (matrix, run), y in zip(ratio.index, ratio.to_numpy(), strict=True):
            rows.append({"matrix": matrix, "run": run, "contender": name, "growth": float(x @ y / (x @ x))})
    return pd.DataFrame(rows, columns=["matrix", "run", "contender", "growth"])


def answers(joint: pd.DataFrame) -> pd.DataFrame:
    """Duels to the answer of each contender of a seed, side by side."""
    wide = joint.pivot_table(index=["matrix", "n", "seed"], columns="contender", values="answer").reset_index()
    return wide.rename_axis(columns=None)
