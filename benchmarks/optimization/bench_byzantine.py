"""Robust aggregation beside byzfl and Flower, in one run; how time grows with dimension; one robust round.

    python benchmarks/optimization/bench_byzantine.py [--json FILE] [--clock cpu] [--flower PYTHON] [--large]

One thread for all. byzfl (pip install --no-deps byzfl==0.0.11) is run without its __init__, which wants torchvision; its
outputs are compared with ours. --flower names the interpreter of benchmarks/peers/byzantine.txt. --large adds d = 5,000,000,
where byzfl's mixing would gather n (n - f) d numbers (20 GB in float64) and is left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from rich import get_console

from gnomon.optimization import ALIE, NNM, Chain, CoordinateMedian, Krum, MultiKrum, TrimmedMean, optimised
from gnomon.study import bench

N, F = 25, 5
ROOT = Path(__file__).resolve().parents[1]


def say(text: str) -> None:
    get_console().print(text, markup=False, highlight=False, soft_wrap=True)


def byzfl() -> Any:
    """byzfl's aggregators, or None."""
    if (spec := importlib.util.find_spec("byzfl")) is None:
        say("byzfl is left out: not installed (pip install --no-deps byzfl==0.0.11)")
        return None
    package = types.ModuleType("byzfl")
    package.__path__ = list(spec.submodule_search_locations or [])
    sys.modules["byzfl"] = package
    return importlib.import_module("byzfl.aggregators")


def rows(d: int, dtype: Any) -> np.ndarray:
    """Honest rows around a common gradient, and liars by ALIE."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, d), dtype=np.float32).astype(dtype)
    x += rng.standard_normal(d, dtype=np.float32).astype(dtype)
    x[N - F :] = x[: N - F].mean(axis=0) + 1.5 * x[: N - F].std(axis=0)
    return x


def against_byzfl(table: bench.Table, peer: Any, d: int, dtype: Any, clock: Any, repeats: int) -> None:
    x = rows(d, dtype)
    kind = np.dtype(dtype).name
    ours = {"NNM": NNM(F), "trimmed mean": TrimmedMean(F), "NNM + trimmed mean": Chain(NNM(F), TrimmedMean(F)), "Krum": Krum(F),
            "multi-Krum": MultiKrum(F), "median": CoordinateMedian()}  # fmt: skip
    mix, trim = peer.NNM(F), peer.TrMean(F)
    theirs = {"NNM": mix, "trimmed mean": trim, "NNM + trimmed mean": lambda x: trim(mix(x)), "Krum": peer.Krum(F),
              "multi-Krum": peer.MultiKrum(F), "median": peer.Median()}  # fmt: skip
    for name, rule in ours.items():
        times = bench.seconds(
            {"gnomon": lambda rule=rule: rule(x), "byzfl": lambda name=name: theirs[name](x)}, repeats, clock=clock
        )
        table.times(f"{name}, n={N}, f={F}, d={d:,}, {kind}", times)
        table.add(
            f"largest difference from byzfl: {name}, d={d:,}, {kind}",
            float(np.abs(rule(x) - theirs[name](x)).max()),
            "",
        )
    seen = bench.seconds({"three passes": lambda: [x.sum() for _ in range(3)]}, repeats, clock=clock)
    table.add(f"three passes over the rows (memory), d={d:,}, {kind}", seen["three passes"] * 1e3, "ms")


def against_flower(table: bench.Table, python: Path, d: int, clock: Any, repeats: int) -> None:
    x = rows(d, np.float64)
    ours = {
        "median": CoordinateMedian(),
        "trimmed": TrimmedMean(F),
        "krum": Krum(F),
        "bulyan": Chain(NNM(F), TrimmedMean(F)),
    }
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/rows.npy", x)
        script = ROOT / "peers" / "byzantine_flower.py"
        subprocess.run([python, script, f"{folder}/rows.npy", str(F), str(repeats), f"{folder}/out.npz"], check=True)
        with np.load(f"{folder}/out.npz") as found:
            for name, rule in ours.items():
                shown = "Bulyan (ours: NNM + trimmed mean)" if name == "bulyan" else name
                own = bench.seconds({"gnomon": lambda rule=rule: rule(x)}, repeats, clock=clock)["gnomon"]
                table.times(
                    f"{shown}, n={N}, f={F}, d={d:,}, float64",
                    {"gnomon": own, "Flower": float(found[name][int(clock == "cpu")])},
                )
                if name in ("median", "trimmed"):
                    table.add(
                        f"largest difference from Flower: {name}",
                        float(np.abs(rule(x) - found[f"{name}_out"]).max()),
                        "",
                    )


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--flower", type=Path, default=ROOT / "peers" / "byzantine" / "bin" / "python")
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    table, clock = bench.Table(), options.clock
    if (peer := byzfl()) is not None:
        for dtype in (np.float64, np.float32):
            against_byzfl(table, peer, 200_000, dtype, clock, 3)
    if options.flower.is_file():
        against_flower(table, options.flower, 50_000, clock, 3)
    else:
        say("Flower is left out: no environment of benchmarks/peers/byzantine.txt (name its interpreter with --flower)")
    say("blades is left out: it pins torchvision 0.15 and with it torch 2.0, against the torch of this environment")

    chain = Chain(NNM(F), TrimmedMean(F))
    sizes, spent = [20_000, 200_000, 1_000_000], []
    for d in sizes:
        x = rows(d, np.float32)
        spent.append(bench.seconds({"gnomon": lambda x=x: chain(x)}, 3, clock=clock)["gnomon"])
        table.add(f"NNM + trimmed mean, d={d:,}, float32", spent[-1] * 1e3, "ms")
    table.add("growth of time with d, exponent", float(np.polyfit(np.log(sizes), np.log(spent), 1)[0]), "")
    if options.large:
        x = rows(5_000_000, np.float32)
        times = bench.seconds({"gnomon": lambda: chain(x)}, 1, clock=clock, warm=False)
        table.add("NNM + trimmed mean, d=5,000,000, float32", times["gnomon"] * 1e3, "ms")
        passes = bench.seconds({"passes": lambda: [x.sum() for _ in range(3)]}, 1, clock=clock)["passes"]
        table.add("three passes over the rows (memory), d=5,000,000, float32", passes * 1e3, "ms")
        if peer is not None:
            times = bench.seconds(
                {"gnomon": lambda: TrimmedMean(F)(x), "byzfl": lambda: peer.TrMean(F)(x)}, 1, clock=clock, warm=False
            )
            table.times("trimmed mean, d=5,000,000, float32", times)
            say("byzfl's NNM is left out at d=5,000,000: it would gather 10 GB")

    honest = rows(650, np.float64)[: N - F]
    attack = optimised(ALIE())
    times = bench.seconds({"gnomon": lambda: attack(honest, f=F, aggregator=chain)}, 20, clock=clock)
    table.add("optimised ALIE, 20 evaluations of NNM + trimmed mean, d=650", times["gnomon"] * 1e3, "ms")
    if peer is not None:
        attacks = importlib.import_module("byzfl.attacks")
        theirs = attacks.Optimal_ALittleIsEnough(peer.TrMean(F), [peer.NNM(F)], F)
        both = bench.seconds(
            {"gnomon": lambda: attack(honest, f=F, aggregator=chain), "byzfl": lambda: theirs(honest)}, 10, clock=clock
        )
        table.times("optimised ALIE beside byzfl's, d=650", both)
    table.save(options.json)


if __name__ == "__main__":
    main()
