"""Is the burst code separate from the rate code: four models of the burst probability, compared on held-out bins."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gnomon.geometry.burst_factors.method import BurstFactorAnalysis

MODELS = {"constant": "burst", "rate factors": "event", "burst factors": "burst", "both": "both"}


def burst_code_report(E: ArrayLike, B: ArrayLike, n_event: int = 2, n_burst: int = 1, *, n_boot: int = 999,
                      random_state: Any = 0, **options: Any) -> Any:  # fmt: skip
    """Held-out bits per burst of four models, each burst predicted from the other neurons (co-smoothing).

    "constant": no burst factors (0 bits by definition where there is no ``offset``); "rate factors": log odds
    nu + A x, with x as the events alone tell it; "burst factors": log odds nu + D y; "both": nu + A x + D y.

    Parameters
    ----------
    E, B : (T, N)
        Events and bursts.
    n_event, n_burst : int
        Numbers of factors.
    n_boot : int
        Resamples of the bins, the same for all models (paired).
    random_state : int
        Folds, groups and resamples.
    **options
        Of :class:`BurstFactorAnalysis`.

    Returns
    -------
    pandas.DataFrame
        A row for each model: ``bits`` per burst with a 95 % percentile interval (``low``, ``high``), and the gain over
        the rate factors (``over_rate``, ``over_rate_low``, ``over_rate_high``): above 0 the burst code says what the
        rate code does not.
    """
    import pandas as pd

    rng = np.random.default_rng(random_state)
    held = {}
    for name, drive in MODELS.items():
        k = 0 if name == "constant" else n_burst
        model = BurstFactorAnalysis(n_event, k, **{**options, "burst_drive": drive, "random_state": random_state})
        held[name] = model.cross_validate(E, B)
    T = len(held["constant"].bursts)
    resampled = rng.integers(T, size=(n_boot, T))

    def bits(gain: Any, rows: Any = slice(None)) -> Any:
        bursts = held["constant"].bursts[rows].sum(-1)
        return gain[rows].sum(-1) / np.log(2) / np.maximum(bursts, 1)

    rows = []
    for name, found in held.items():
        row: dict[str, Any] = {"model": name}
        for label, other in (("bits", found.constant), ("over_rate", held["rate factors"].model)):
            gain = found.model - other
            low, high = np.quantile(bits(gain, resampled), [0.025, 0.975])
            lows = ("low", "high") if label == "bits" else ("over_rate_low", "over_rate_high")
            row |= {label: float(bits(gain)), lows[0]: float(low), lows[1]: float(high)}
        rows.append(row)
    return pd.DataFrame(rows).set_index("model")
