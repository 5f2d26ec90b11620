"""How often locks are opened, and by how many agents every second one is."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from gnomon.decisions.reward_free.environments import combination_lock, opened
from gnomon.decisions.reward_free.method import PhasedRewardFree

FINE = 1.1  # the bracket of the search ends at this ratio


def share_opened(H: int, A: int, rho: int, m: int, runs: int, rng: np.random.Generator, **options: Any) -> float:
    """The share of ``runs`` locks with fresh secrets that m agents a phase open."""
    count = 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "n_agents", UserWarning)  # too few agents are the point
        for _ in range(runs):
            lock = combination_lock(H, A, rng)
            count += opened(PhasedRewardFree(rho, m, random_state=rng, **options).explore(lock).counts_, lock)
    return count / runs


def agents_for_half(H: int, A: int, rho: int, runs: int, rng: np.random.Generator, **options: Any) -> tuple[float, int]:
    """Bisection over runs: doubling until half of the locks open, then halving the bracket (on logarithms).

    Doubling takes half as many runs at each m as bisection does.

    Returns
    -------
    float
        Where a line between the bracket's ends crosses one half.
    int
        The bracket's upper end: the fewest whole agents found to open half.
    """
    low, high, shares = 1, 2, {1: 0.0}
    while (found := share_opened(H, A, rho, high, max(1, runs // 2), rng, **options)) < 0.5:
        shares[high] = found
        low, high = high, 2 * high
    shares[high] = found
    while high / low > FINE and high - low > 1:
        middle = round(math.sqrt(low * high))
        middle = min(max(middle, low + 1), high - 1)
        shares[middle] = share_opened(H, A, rho, middle, runs, rng, **options)
        low, high = (low, middle) if shares[middle] >= 0.5 else (middle, high)
    rise = shares[high] - shares[low]
    part = min(1.0, (0.5 - shares[low]) / rise) if rise > 0 else 1.0
    return float(low * (high / low) ** part), high
