"""UCCA and its parts beside scipy's FAQ and assignment, scikit-learn's and cca-zoo's CCA; growth with n; peak memory.

    python benchmarks/geometry/bench_ucca.py [--json FILE] [--clock cpu] [--quick]

Everything on one thread, but for the whole fits, which are timed on the wall with two. ``--quick`` leaves out n = 1500.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from scipy.optimize import linear_sum_assignment, quadratic_assignment  # noqa: E402

from gnomon.geometry import UCCA, faq  # noqa: E402
from gnomon.geometry.ucca import sources  # noqa: E402
from gnomon.geometry.ucca.assignment import ascend, assign, doubly_stochastic  # noqa: E402
from gnomon.geometry.ucca.cca import Basis, cross_covariance, projections  # noqa: E402
from gnomon.geometry.ucca.search import View, descriptor_plan  # noqa: E402
from gnomon.study import bench  # noqa: E402

MEMORY = """
import re, warnings
warnings.simplefilter("ignore")
from gnomon.geometry import UCCA
from gnomon.geometry.ucca import sources
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
X, Y, _ = sources.gradients()
fit = lambda n: UCCA(n_runs=1, n_null=0, n_starts=2, max_rounds=1).fit(X[::5000 // n][:n], Y[::5000 // n][:n])
fit(100)
before = peak()
fit(SIZE)
print((peak() - before) / (8 * SIZE**2))
"""


def views(n: int) -> tuple[np.ndarray, np.ndarray]:
    """MNIST pixels and gradient histograms, shuffled each by itself."""
    X, Y, _ = sources.gradients()
    rows = np.random.default_rng(0).permutation(len(X))[:n]
    return X[rows], Y[np.random.default_rng(1).permutation(rows)]


def quadratic(table: bench.Table, clock: str) -> None:
    """One ascent from the same start."""
    for n in (400, 800):
        x, y = (View.of(Z, 15) for Z in views(n))
        start = doubly_stochastic(descriptor_plan(x, y))
        options = {
            "maximize": True,
            "P0": start / start.sum(axis=1, keepdims=True),
            "tol": 1e-6,
            "rng": np.random.default_rng(0),
        }
        table.times(f"one FAQ run, n {n}", bench.seconds({
            "factors of rank 60": lambda x=x, y=y, start=start: ascend(x.factor, y.factor, start),
            "full kernels": lambda x=x, y=y, start=start: faq(x.kernel, y.kernel, start),
            "scipy quadratic_assignment": lambda x=x, y=y, options=options: quadratic_assignment(
                x.kernel, y.kernel, method="faq", options=options),
        }, 3, clock=clock))  # fmt: skip


def linear(table: bench.Table, clock: str) -> None:
    """The assignments of one ascent, one after the other."""
    for n in (400, 800):
        x, y = (View.of(Z, 15) for Z in views(n))
        costs, pairing = [], np.random.default_rng(0).permutation(n)
        for _ in range(12):
            costs.append(-(x.factor @ ((x.factor.T @ y.factor[pairing]) @ y.factor.T)))
            pairing = linear_sum_assignment(costs[-1])[1]

        def warm(costs=costs, n=n):
            prices = np.zeros(n)
            for C in costs:
                assign(C, prices)

        def cold(costs=costs, n=n):
            for C in costs:
                assign(C, np.zeros(n))

        table.times(f"12 assignments of one ascent, n {n}", bench.seconds({
            "from the last prices": warm,
            "each from scratch": cold,
            "scipy linear_sum_assignment": lambda costs=costs: [linear_sum_assignment(C) for C in costs],
        }, 3, clock=clock))  # fmt: skip


def canonical(table: bench.Table, clock: str) -> None:
    """Supervised CCA, 5 components."""
    from cca_zoo.linear import CCA as ZooCCA
    from sklearn.cross_decomposition import CCA

    rng = np.random.default_rng(0)
    Z = rng.normal(size=(2000, 10))
    X, Y = (Z @ rng.normal(size=(10, p)) + rng.normal(size=(2000, p)) for p in (100, 80))

    def ours():
        x, y = Basis.of(X, 100), Basis.of(Y, 100)
        return projections(x, y, cross_covariance(x.coordinates(X), y.coordinates(Y), np.arange(2000)), 5, 0.0)

    table.times("supervised CCA, 2000 x (100, 80), 5 components", bench.seconds({
        "ours": ours,
        "cca-zoo": lambda: ZooCCA(5).fit([X, Y]),
        "scikit-learn": lambda: CCA(5, max_iter=2000).fit(X, Y),
    }, 3, clock=clock))  # fmt: skip


def exponent(sizes: list[int], times: list[float]) -> float:
    """Least-squares slope on logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def growth(table: bench.Table, clock: str, quick: bool) -> None:
    """How one ascent, the descriptors and kernels, and a whole short fit grow with n."""
    sizes = [200, 400, 800] if quick else [200, 400, 800, 1600]
    spent: dict[str, list[float]] = {
        "kernels and descriptors": [],
        "one ascent": [],
        "a fit of 4 starts and 2 rounds": [],
    }
    for n in sizes:
        X, Y = views(n)
        x, y = View.of(X, 15), View.of(Y, 15)
        start = doubly_stochastic(descriptor_plan(x, y) * np.random.default_rng(0).gamma(1.0, 1.0, (n, n)))
        calls = {
            "kernels and descriptors": lambda X=X: View.of(X, 15),
            "one ascent": lambda x=x, y=y, start=start: ascend(x.factor, y.factor, start),
            "a fit of 4 starts and 2 rounds": lambda X=X, Y=Y: UCCA(n_runs=1, n_null=0, n_starts=4, max_rounds=2).fit(
                X, Y
            ),
        }
        for what, seconds in bench.seconds(calls, 1 if n > 800 else 3, clock=clock, warm=n == sizes[0]).items():
            spent[what].append(seconds)
            table.add(f"{what}, n {n}", seconds, "s")
    for what, times in spent.items():
        table.add(f"growth of {what} with n: exponent", exponent(sizes, times), "")


def whole(table: bench.Table, quick: bool) -> None:
    """One run of 10 starts and 20 rounds at most, two threads, on the wall."""
    for n in (400,) if quick else (400, 1500):
        X, Y = views(n)
        start = time.perf_counter()
        fit = UCCA(n_runs=1, n_null=0, max_rounds=20, n_jobs=2).fit(X, Y)
        table.add(
            f"one run, n {n}, 10 starts and {fit.n_rounds_[0]} rounds, two threads", time.perf_counter() - start, "s"
        )


def memory(table: bench.Table) -> None:
    """Peak over that of n = 100, in n x n matrices of float64, in a process of its own."""
    n = 1500
    done = subprocess.run(
        [sys.executable, "-c", MEMORY.replace("SIZE", str(n))], capture_output=True, text=True, check=True
    )
    table.add(f"peak memory of a fit, n {n}, in n x n matrices", float(done.stdout), "")


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--quick", action="store_true", help="leave out the largest sizes")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table = bench.Table()
    quadratic(table, options.clock)
    linear(table, options.clock)
    canonical(table, options.clock)
    growth(table, options.clock, options.quick)
    whole(table, options.quick)
    memory(table)
    table.save(options.json)


if __name__ == "__main__":
    main()
