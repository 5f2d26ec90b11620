"""Log-decays that stress a mask."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

STRESS = ("benign", "resets -50", "resets -1e4", "1e-6..1e6", "1e-6..1e10")
TREES = ["diff_kogge_stone", "diff_blelloch"]
SCANS = ["diff_sequential", *TREES]


def stress(name: str, chunks: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Log-decays [chunks, length] of a stress set: mild ones, resets among small ones, sixteen orders of magnitude."""
    if name == "benign":
        return -rng.uniform(0, 0.1, (chunks, length))
    if name.startswith("resets"):
        a = -rng.uniform(0, 1e-3, (chunks, length))
        value, share = (-50.0, 20 / 256) if name == "resets -50" else (-1e4, 8 / 256)
        for row in a:
            row[rng.choice(length, max(1, round(share * length)), replace=False)] = value
        return a
    return -(10 ** rng.uniform(-6, 6 if name == "1e-6..1e6" else 10, (chunks, length)))


def least_seconds(call: Callable[[], Any]) -> float:
    """Processor seconds of a call on this one thread: the best of five after one to warm up, of two if it is long.

    On an idle machine they are the seconds on the wall; a busy one disturbs them less.
    """
    taken = []
    for _ in range(6):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
        if len(taken) > 2 and sum(taken) > 0.5:
            break
    return min(taken[1:])
