"""Sampling errors and dimensions beside exact OT (POT), scikit-dimension and geomloss, in one run; growth and memory.

    python benchmarks/geometry/bench_ot_sampling.py [--json FILE] [--quick]

Ratios are the peer's time over this implementation's, the least processor time of interleaved repeats on one thread
(what a busy machine adds is never negative). ``--quick`` leaves out the largest sizes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402

from gnomon.study import bench  # noqa: E402

Rows = list[dict[str, Any]]
PEAK = """
import re, time, warnings, numpy as np
def peak():  # of this process alone: what getrusage gives starts from the parent's
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
"""
MEMORY = (
    PEAK
    + """
warnings.simplefilter("ignore")
from gnomon.geometry import IntrinsicDimension, SamplingError
X = np.random.default_rng(0).normal(size=(100_000, 64)).astype(np.float32)
start = time.process_time()
ESTIMATOR.fit(X)
print(time.process_time() - start, peak())
"""
)

KERNELS = (
    PEAK
    + """
warnings.simplefilter("ignore")
from gnomon.geometry import CalibratedSinkhorn
rng, n = np.random.default_rng(0), SIZE
X, Y = rng.normal(size=(n, 10)), rng.normal(size=(n, 10)) + 0.3
CalibratedSinkhorn().fit(X[:64], Y[:64])
before = peak()
CalibratedSinkhorn().fit(X, Y)
print((peak() - before) * 2**20 / (8 * n * n))
"""
)


def timed(contenders: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    return bench.seconds(contenders, repeats, clock="cpu", warm=False)


def table(title: str, times: dict[str, float]) -> Rows:
    mine = next(iter(times.values()))
    return [{"name": f"{title}: {name}", "value": t, "unit": "s", "ratio": t / mine} for name, t in times.items()]


def manifold(n: int, D: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 8)) @ np.linalg.qr(rng.normal(size=(D, 8)))[0].T


def against_emd(quick: bool) -> Rows:
    import ot

    from gnomon.geometry import SamplingError

    n = 1000 if quick else 4000
    X, Y = manifold(n, 784), manifold(n, 784, 1)
    return table(f"sampling error, n {n}, D 784", timed({
        "split": lambda: SamplingError().fit(X),
        "leave one out": lambda: SamplingError(reference="loo").fit(X),
        "POT emd2": lambda: ot.emd2([], [], ot.dist(X, Y), numItermax=10_000_000),
    }, 2))  # fmt: skip


def against_dimensions() -> Rows:
    from gnomon.geometry import IntrinsicDimension
    from gnomon.geometry.ot_sampling import baselines

    rows: Rows = []
    for D in (50, 784):
        X = manifold(4000, D)
        Q, R = X[:1000].copy(), X[1000:].copy()
        rows += table(f"dimension, n 4000, D {D}", timed({
            "decay": lambda X=X: IntrinsicDimension().fit(X),
            "TwoNN (scikit-dimension)": lambda X=X: baselines.dimension("TwoNN")(X),
            "MLE (scikit-dimension)": lambda X=X: baselines.dimension("MLE")(X),
            "one product of 1000 x 3000, the limit": lambda Q=Q, R=R: Q @ R.T,
        }, 5))  # fmt: skip
    return rows


def limit() -> Rows:
    """The share of the time of the nearest-cost pass that the matrix product alone takes."""
    from gnomon.geometry.ot_sampling.nearest import Pairs

    X = manifold(4000, 784)
    Q, R = X[:1000].copy(), X[1000:].copy()
    found = timed({"product": lambda: Q @ R.T, "pass": lambda: Pairs(Q, R).best(46)}, 7)
    return [{"name": "nearest-cost pass, 1000 x 3000 x 784: share of the product's rate", "value": found["product"] / found["pass"],
             "unit": "", "ratio": None}]  # fmt: skip


def sinkhorns(quick: bool) -> Rows:
    from gnomon.geometry import CalibratedSinkhorn
    from gnomon.geometry.ot_sampling import baselines
    from gnomon.geometry.ot_sampling import sinkhorn as module
    from gnomon.geometry.ot_sampling.nearest import pairwise

    n = 500 if quick else 2000
    X, Y = manifold(n, 50), manifold(n, 50, 1) + 0.2
    eps = CalibratedSinkhorn().fit(X, Y).epsilon_
    rows = table(f"Sinkhorn divergence at the calibrated epsilon, n {n}", timed({
        "calibrated": lambda: CalibratedSinkhorn().fit(X, Y),
        "geomloss": lambda: baselines.geomloss_divergence(X, Y, (eps / 2) ** 0.5),
        "POT empirical_sinkhorn_divergence": lambda: baselines.pot_divergence(X, Y, eps),
    }, 3))  # fmt: skip
    C = pairwise(X[:500], Y[:500], "euclidean", 2)
    relaxation = module._relaxation
    for label, value in (("calibrated epsilon", eps), ("epsilon 0.02 of the mean cost", 0.02 * C.mean())):
        counts = {}
        for scaling in (False, True):
            for relaxed in (True, False):
                module._relaxation = relaxation if relaxed else lambda omega, shrunk: 1.0
                counts[scaling, relaxed] = module.sinkhorn(C, value, scaling=scaling).n_iter
        module._relaxation = relaxation
        for (scaling, relaxed), count in counts.items():
            what = f"{'scaled' if scaling else 'cold'}, {'over-relaxed' if relaxed else 'plain'}"
            rows.append({"name": f"Sinkhorn iterations, {label}: {what}", "value": count, "unit": "iterations",
                         "ratio": count / counts[False, True]})  # fmt: skip
    return rows


def growth(quick: bool) -> Rows:
    """Fitted exponents of the time in n."""
    from gnomon.geometry import IntrinsicDimension, SamplingError

    sizes = [4000, 8000, 16_000] if quick else [4000, 8000, 16_000, 32_000, 64_000]
    rows: Rows = []
    for name, call, upto in (
        ("dimension", IntrinsicDimension(), len(sizes)),
        ("sampling error, split", SamplingError(), 2 if quick else 3),
    ):
        times = []
        for n in sizes[:upto]:
            X = manifold(n, 64).astype(np.float32)
            times.append(timed({"": lambda X=X, call=call: call.fit(X)}, 3)[""])
        slope = float(np.polyfit(np.log(sizes[:upto]), np.log(times), 1)[0])
        rows.append({"name": f"growth of {name} with n: exponent", "value": slope, "unit": "", "ratio": None})
        rows += [
            {"name": f"{name}, n {n}, D 64", "value": t, "unit": "s", "ratio": None}
            for n, t in zip(sizes, times, strict=False)
        ]
    return rows


def memory(quick: bool) -> Rows:
    """Peak memory at 100,000 x 64 in single precision, each in a process of its own (imports: about 300 MB)."""
    rows: Rows = []
    for name in ("IntrinsicDimension()", *([] if quick else ["SamplingError()"])):
        done = subprocess.run(
            [sys.executable, "-c", MEMORY.replace("ESTIMATOR", name)], capture_output=True, text=True, check=True
        )
        seconds, megabytes = map(float, done.stdout.split())
        rows.append(
            {"name": f"{name}, 100,000 x 64 float32: peak memory", "value": megabytes, "unit": "MB", "ratio": None}
        )
        rows.append({"name": f"{name}, 100,000 x 64 float32", "value": seconds, "unit": "s", "ratio": None})
    n = 1000 if quick else 4000
    done = subprocess.run(
        [sys.executable, "-c", KERNELS.replace("SIZE", str(n))], capture_output=True, text=True, check=True
    )
    rows.append({"name": f"CalibratedSinkhorn, n {n}: peak memory over that of n 64, in n x n matrices",
                 "value": float(done.stdout), "unit": "", "ratio": None})  # fmt: skip
    return rows


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    shown = bench.Table()
    for part in (lambda: against_emd(options.quick), against_dimensions, limit, lambda: sinkhorns(options.quick),
                 lambda: growth(options.quick), lambda: memory(options.quick)):  # fmt: skip
        for row in part():
            shown.add(**row)
    shown.save(options.json)


if __name__ == "__main__":
    main()
