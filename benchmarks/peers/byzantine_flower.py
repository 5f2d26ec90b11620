"""Time Flower's aggregation functions on given rows, in an environment of its own.

Usage: python byzantine_flower.py ROWS.npy F REPEATS OUT.npz

Writes the least wall and processor seconds of each function, and what it gave. It knows nothing of gnomon.
"""

import sys
import time

import numpy as np
from flwr.server.strategy.aggregate import aggregate_bulyan, aggregate_krum, aggregate_median, aggregate_trimmed_avg

rows, f, repeats, out = np.load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
answers = [([row], 1) for row in rows]
calls = {
    "median": lambda: aggregate_median(answers),
    "trimmed": lambda: aggregate_trimmed_avg(answers, f / len(rows)),
    "krum": lambda: aggregate_krum(answers, f, 0),
    "bulyan": lambda: aggregate_bulyan(list(answers), f, aggregate_krum, to_keep=0),
}
found = {}
for name, call in calls.items():
    best = [float("inf")] * 2
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        merged = call()
        best = [min(best[0], time.perf_counter() - wall), min(best[1], time.process_time() - cpu)]
    found[name], found[f"{name}_out"] = best, merged[0]
np.savez(out, **found)
