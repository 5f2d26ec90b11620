"""Derived tables: ranges, rank correlations, wins, areas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gnomon import stats

if TYPE_CHECKING:
    import pandas as pd


def excess(table: pd.DataFrame) -> pd.DataFrame:
    """How far the fidelity ratio of a sample lies above the upper end of fresh data's interval."""
    rows = table[table["contender"] == "chamfer"]
    fresh = rows[rows["sample"] == "fresh"].set_index(["space", "seed"])["fidelity_high"].rename("end")
    joined = rows.join(fresh, on=["space", "seed"])
    joined["excess"] = joined["fidelity_ratio"] - joined["end"]
    return joined[["space", "seed", "sample", "excess"]]


def ranges(table: pd.DataFrame) -> pd.DataFrame:
    """Range over k of each score, and of its distance from perfect relative to the mean distance."""
    import pandas as pd

    rows = []
    for (space, seed, contender, sample, n, m), part in table[table["sample"] != "sizes"].groupby(
        ["space", "seed", "contender", "sample", "n", "m"]
    ):
        used = (
            part[part["k"] != 5]["score"] if sample == "fresh" else part["score"]
        )  # k in {1, 3, 10} and in {3, 5, 10}
        gap = (used - 1).abs()
        rows.append({"space": space, "seed": seed, "contender": contender, "sample": sample, "n": n, "m": m,
                     "range": used.max() - used.min(), "relative_range": (gap.max() - gap.min()) / gap.mean()})  # fmt: skip
    return pd.DataFrame(rows)


def taus(table: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd
    from scipy.stats import kendalltau

    keys = ["space", "ladder", "seed", "contender", "metric"]
    rows = [(*key, _finite(kendalltau(part["level"], part["worse"]).statistic)) for key, part in table.groupby(keys)]
    return pd.DataFrame(rows, columns=[*keys, "tau"])


def _finite(tau: float) -> float:
    """A metric that says the same of all levels orders none of them."""
    return float(tau) if np.isfinite(tau) else 0.0


FIDELITY, COVERAGE = ("blur", "noise"), ("label drop", "prototypes")


def wins(taus: pd.DataFrame) -> pd.DataFrame:
    """In how many of the four ladders the Chamfer side is not below the Frechet distance and density or coverage."""
    import pandas as pd

    sides = [(ladder, "fidelity_ratio", "density") for ladder in FIDELITY]
    sides += [(ladder, "coverage_ratio", "ball_coverage") for ladder in COVERAGE]
    rows = []
    for (space, seed), part in taus.groupby(["space", "seed"]):
        tau = part.groupby(["ladder", "metric"])["tau"].mean().to_dict()
        run = [side for side in sides if (side[0], side[1]) in tau]
        won = sum(tau[ladder, ours] >= max(tau[ladder, "fd"], tau[ladder, theirs]) for ladder, ours, theirs in run)
        rows.append({"space": space, "seed": seed, "not_below": float(won), "ladders": len(run)})
    return pd.DataFrame(rows)


def areas(table: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    keys = ["space", "ladder", "seed", "contender", "metric"]
    return pd.DataFrame([(*key, stats.auroc(part["damaged"], part["worse"])) for key, part in table.groupby(keys)],
                        columns=[*keys, "auc"])  # fmt: skip
