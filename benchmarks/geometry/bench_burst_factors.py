"""Burst factor analysis beside elephant's GPFA and scikit-learn's factor analysis, in one run; tests and parsing.

    python benchmarks/geometry/bench_burst_factors.py [--json FILE] [--neurons N] [--bins T] [--repeats R]

One thread for all. GPFA sees the same spike counts, with as many factors in all, in segments of 40 bins (it inverts a
matrix of (bins x factors) squared); its library's own stopping rule, at most 50 EM iterations. Ratios: peer / ours.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from gnomon.geometry import BurstFactorAnalysis, burst_test, parse_bursts, simulate_bursts, simulate_rate_code
from gnomon.geometry.burst_factors.baselines import gpfa, poisson_surprise, stacked_fa

ROOT = Path(__file__).resolve().parents[1]


def interleaved(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, tuple[float, float]]:
    """Median wall and CPU seconds of each call, every one in turn."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {name: tuple(np.median(t, axis=0)) for name, t in times.items()}  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "geometry" / "burst_factors.json")
    parser.add_argument("--neurons", type=int, default=100)
    parser.add_argument("--bins", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def show(name: str, value: float, unit: str = "s", ratio: float | None = None) -> None:
        rows.append({"name": name, "value": float(value), "unit": unit, "ratio": ratio})
        print(
            f"{name:64s} {value:10.4g} {unit:10s}" + (f" {ratio:8.2f} x ours" if ratio is not None else ""), flush=True
        )

    small = simulate_bursts(10, 60, random_state=0)  # compiles
    BurstFactorAnalysis().fit(small.E, small.B)
    burst_test(small.E, small.B, n_perm=9)
    s = simulate_bursts(given.neurons, given.bins, random_state=0)
    calls: dict[str, Callable[[], Any]] = {
        "burst factors": lambda: BurstFactorAnalysis(2, 1).fit(s.E, s.B),
        "scikit-learn FactorAnalysis (singles and bursts)": lambda: stacked_fa(s.E, s.B, s.S, 3),
    }
    if importlib.util.find_spec("elephant"):
        calls["elephant GPFA"] = lambda: gpfa(s.E, s.B, s.S, 3)
    else:
        print("elephant is not installed (pip install elephant): GPFA is left out")
    found = interleaved(calls, given.repeats)
    ours = found["burst factors"]
    for name, (wall, cpu) in found.items():
        size = f"N = {given.neurons}, T = {given.bins}, k = 3"
        show(f"fit, {name}, {size}", wall, "s", None if name == "burst factors" else wall / ours[0])
        show(f"fit, {name}, {size}, CPU", cpu, "s", None if name == "burst factors" else cpu / ours[1])

    model = BurstFactorAnalysis(2, 1).fit(s.E, s.B)
    show("one EM iteration, CPU", ours[1] / model.n_iter_)
    lengths = given.bins * np.array([0.25, 0.5, 1])
    took = []
    for T in lengths.astype(int):
        took.append(interleaved({"fit": lambda T=T: BurstFactorAnalysis(2, 1, tol=0, max_iter=8).fit(s.E[:T], s.B[:T])},
                                given.repeats)["fit"][1])  # fmt: skip
    show("growth of CPU time with T, exponent", np.polyfit(np.log(lengths), np.log(took), 1)[0], "")

    t = simulate_bursts(60, 500, random_state=0)
    wall, cpu = interleaved({"marks": lambda: burst_test(t.E, t.B, n_perm=999)}, 1)["marks"]
    show("999 redraws of marks, N = 60, T = 500", wall)
    show("999 redraws of marks, N = 60, T = 500, CPU", cpu)
    r = simulate_rate_code(20, 200, random_state=0)
    wall, cpu = interleaved({"jitter": lambda: burst_test(r.E, r.B, "jitter", 199, r.trains, 0.25, t_start=0.0)}, 1)[
        "jitter"
    ]
    show("199 jittered recordings of 25,000 spikes, CPU", cpu)

    times = np.cumsum(np.random.default_rng(0).exponential(0.04, 1_000_000))
    short = times[:20_000]
    parse_bursts([short])
    million = interleaved({"ours": lambda: parse_bursts([times])}, 5)["ours"]
    show("parsing 1,000,000 spikes", million[0])
    show("parsing 1,000,000 spikes, CPU", million[1])
    pair = interleaved({"ours": lambda: parse_bursts([short]), "surprise": lambda: poisson_surprise(short)}, 1)
    show(
        "parsing 20,000 spikes by Poisson surprise (our code), CPU",
        pair["surprise"][1],
        "s",
        pair["surprise"][1] / pair["ours"][1],
    )

    given.json.parent.mkdir(parents=True, exist_ok=True)
    temporary = given.json.with_suffix(".tmp")
    temporary.write_text(json.dumps(rows, indent=1) + "\n")
    temporary.replace(given.json)


if __name__ == "__main__":
    main()
