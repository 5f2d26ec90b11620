"""Burst factor analysis beside elephant's GPFA and scikit-learn's factor analysis, in one run; tests and parsing.

    python benchmarks/geometry/bench_burst_factors.py [--json FILE] [--neurons N] [--bins T] [--repeats R]

One thread for all. GPFA sees the same spike counts, with as many factors in all, in segments of 40 bins (it inverts a
matrix of (bins x factors) squared); its library's own stopping rule, at most 50 EM iterations. Ratios: peer / ours.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from gnomon.geometry import BurstFactorAnalysis, burst_test, parse_bursts, simulate_bursts, simulate_rate_code
from gnomon.geometry.burst_factors.baselines import gpfa, poisson_surprise, stacked_fa
from gnomon.study import bench


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--neurons", type=int, default=100)
    parser.add_argument("--bins", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    table = bench.Table()

    def timed(call: Callable[[], Any], repeats: int = given.repeats, warm: bool = True) -> float:
        return bench.seconds({"": call}, repeats, clock=given.clock, warm=warm)[""]

    s = simulate_bursts(given.neurons, given.bins, random_state=0)
    calls: dict[str, Callable[[], Any]] = {
        "burst factors": lambda: BurstFactorAnalysis(2, 1).fit(s.E, s.B),
        "scikit-learn FactorAnalysis (singles and bursts)": lambda: stacked_fa(s.E, s.B, s.S, 3),
    }
    if importlib.util.find_spec("elephant"):
        calls["elephant GPFA"] = lambda: gpfa(s.E, s.B, s.S, 3)
    else:
        print("elephant is not installed (pip install elephant): GPFA is left out")
    found = bench.seconds(calls, given.repeats, clock=given.clock)
    table.times(f"fit, N = {given.neurons}, T = {given.bins}, k = 3", found, "s")

    model = BurstFactorAnalysis(2, 1).fit(s.E, s.B)
    table.add("one EM iteration", 1e3 * found["burst factors"] / model.n_iter_, "ms")
    lengths = given.bins * np.array([0.25, 0.5, 1])
    took = [
        timed(lambda T=T: BurstFactorAnalysis(2, 1, tol=0, max_iter=8).fit(s.E[:T], s.B[:T]))
        for T in lengths.astype(int)
    ]
    table.add("growth with T, exponent", np.polyfit(np.log(lengths), np.log(took), 1)[0], "")

    small = simulate_bursts(10, 60, random_state=0)
    burst_test(small.E, small.B, n_perm=9)  # compiles
    t = simulate_bursts(60, 500, random_state=0)
    table.add("999 redraws of marks, N = 60, T = 500", timed(lambda: burst_test(t.E, t.B, n_perm=999), 1, False), "s")
    r = simulate_rate_code(20, 200, random_state=0)
    jitter = timed(lambda: burst_test(r.E, r.B, "jitter", 199, r.trains, 0.25, t_start=0.0), 1, False)
    table.add("199 jittered recordings of 25,000 spikes", jitter, "s")

    times = np.cumsum(np.random.default_rng(0).exponential(0.04, 1_000_000))
    short = times[:20_000]
    table.add("parsing 1,000,000 spikes", 1e3 * timed(lambda: parse_bursts([times]), 5), "ms")
    pair = {"ours": lambda: parse_bursts([short]), "Poisson surprise (our code)": lambda: poisson_surprise(short)}
    table.times("parsing 20,000 spikes", bench.seconds(pair, 1, clock=given.clock))
    table.save(given.json)


if __name__ == "__main__":
    main()
