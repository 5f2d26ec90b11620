"""Tables made from the records: pooled success of locks, and exponents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.decisions.reward_free.study.contenders import PAPER

if TYPE_CHECKING:
    import pandas as pd


def success(locks: pd.DataFrame) -> pd.DataFrame:
    """Shares pooled over draws, beside the closed form: ``z`` is the difference in standard errors of the closed form."""
    rows = locks[locks["what"] == "share"]
    keys = ["A", "rho", "contender", "m", "expected"]
    found: Any = rows.groupby(keys, sort=False).agg(share=("share", "mean"), runs=("runs", "sum")).reset_index()
    error = np.sqrt(found["expected"] * (1 - found["expected"]) / found["runs"])
    return found.assign(z=(found["share"] - found["expected"]) / error)


def exponents(locks: pd.DataFrame) -> pd.DataFrame:
    """Per draw and number of actions A, the slope of ln(agents for success 1/2) on H / rho, in units of ln A."""
    import pandas as pd

    rows = locks[(locks["what"] == "root") & (locks["contender"] == PAPER)]
    found = []
    key: Any
    for key, part in rows.groupby(["A", "seed"]):
        A, seed = map(int, key)
        if part["length"].nunique() > 1:
            slope = np.polyfit(part["length"].astype(float), np.log(part["agents"].astype(float)), 1)[0]
            found.append({"A": A, "seed": seed, "contender": PAPER, "exponent": float(slope / np.log(A))})
    return pd.DataFrame(found)
