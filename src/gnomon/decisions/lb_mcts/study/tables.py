"""From rows to what claims lean on: regrets and areas, ranks, how rho moved, how well a surrogate's reliability is founded."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.stats

from gnomon.decisions.lb_mcts.proposers import LEAST, fitted
from gnomon.decisions.lb_mcts.sklearn_space import sklearn_space
from gnomon.decisions.lb_mcts.study.experiments import COLD
from gnomon.decisions.lb_mcts.surrogate import reliability
from gnomon.decisions.lb_mcts.tree import Trial

if TYPE_CHECKING:
    import pandas as pd

RUN = ["data", "seed", "contender"]


def derive(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """``Regret``, ``Cold``, ``Trend``, ``Informative``: one row per run (of the last, per run and algorithm)."""
    import pandas as pd

    least = pd.concat([t.groupby("data")["best"].min() for t in tables.values() if len(t)]).groupby("data").min()
    found: dict[str, pd.DataFrame] = {}
    if "Searches" in tables:
        found["Regret"] = regrets(tables["Searches"], least)
    if "ColdStart" in tables:
        each = regrets(tables["ColdStart"], least, [*RUN, "draw"])
        found["Cold"] = each.groupby(RUN)[["area10"]].mean().reset_index()
    if "RealModel" in tables:
        found["Real"] = regrets(tables["RealModel"], least)
    if "Shift" in tables:
        found["Trend"] = trend(tables["Shift"])
        if "Searches" in tables and (tables["Searches"]["contender"] == "random").any():
            found["Informative"] = informative(tables["Shift"], tables["Searches"])
    return found


def regrets(rows: pd.DataFrame, least: Any, run: list[str] | None = None) -> pd.DataFrame:
    """The regret to the best error ever seen on the data set: at the end, and on average over all and over the first ten trials.

    ``rank`` is the place by the area among the contenders of a data set and seed, 1 the best; ``finished`` whether all trials were made.
    """
    import pandas as pd

    run = run or RUN
    found = []
    for key, part in rows.sort_values("trial").groupby(run, sort=False):
        regret = part["best"].to_numpy() - float(least[part["data"].iloc[0]])
        found.append({**dict(zip(run, key, strict=True)), "final": regret[-1], "area": regret.mean(), "area10": regret[:COLD].mean(),
                      "error": part["best"].iloc[-1], "test": part["test"].iloc[-1], "trials": len(part),
                      "failed": int(part["failed"].sum())})  # fmt: skip
    table = pd.DataFrame(found)
    table["rank"] = table.groupby(["data", "seed"])["area"].rank()
    table["finished"] = table["trials"] == table.groupby("data")["trials"].transform("max")
    return table


def trend(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each run Spearman's correlation of rho with the trial, and the share of BO in its first and last third."""
    import pandas as pd

    found = []
    for key, part in rows.sort_values("trial").groupby(RUN, sort=False):
        third = len(part) // 3
        bo = (part["proposer"] == "bo").to_numpy()
        rank = scipy.stats.spearmanr(part["rho"], part["trial"]).statistic if part["rho"].nunique() > 1 else 0.0
        first, last = float(bo[:third].mean()), float(bo[-third:].mean())
        found.append({**dict(zip(RUN, key, strict=True)), "rho_trend": float(rank), "first_third": first, "last_third": last,
                      "more_bo": last > first, "last_rho": float(part["rho"].iloc[-third:].mean())})  # fmt: skip
    return pd.DataFrame(found)


def informative(shift: pd.DataFrame, searches: pd.DataFrame) -> pd.DataFrame:
    """For each run and algorithm the reliability at the end, and Kendall's tau of the surrogate on configurations drawn at random.

    The latter are those of random search on the same data set, of all seeds.
    """
    import pandas as pd

    space, found = sklearn_space(), []
    pool = searches[(searches["contender"] == "random") & ~searches["failed"]]
    for key, part in shift.groupby([*RUN, "algorithm"], sort=False):
        data, algorithm = str(key[0]), str(key[-1])
        one, held = space[algorithm], pool[(pool["data"] == data) & (pool["algorithm"] == algorithm)]
        trials = _trials(part, one)
        surrogate = fitted(one, trials, "forest", 0)
        if surrogate is None or len(held) < LEAST:
            continue
        vectors = np.array([one.vector(json.loads(c)) for c in held["config"]])
        tau = scipy.stats.kendalltau(surrogate.predict(one.encode(vectors))[0], held["loss"]).statistic
        r = reliability(surrogate.held_out(), np.array([t.loss for t in trials if t.ok]))
        found.append({**dict(zip([*RUN, "algorithm"], key, strict=True)), "n": len(trials), "reliability": r,
                      "held_out_tau": 0.0 if math.isnan(tau) else float(tau), "held_out": len(held)})  # fmt: skip
    return pd.DataFrame(found)


def _trials(rows: pd.DataFrame, space: Any) -> list[Trial]:
    found = []
    for i, (text, loss) in enumerate(zip(rows["config"], rows["loss"], strict=True)):
        config = json.loads(text)
        one = Trial(i, space.name, config, space.key(config), space.vector(config), 0, loss=float(loss))
        one.status = "failed" if math.isnan(one.loss) else "done"
        found.append(one)
    return found
