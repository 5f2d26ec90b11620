"""The angular mean beside geomstats and pymanopt, the exact circle, and agreement by merge sort, in one run.

    python benchmarks/decisions/bench_angular_mean.py [--json FILE] [--clock cpu] [--n 100000] [--geomstats PYTHON]

geomstats has one start, pymanopt the same eight as ours one after the other. Each goes on until the mean logarithm is as
small as geomstats' when it ends. --geomstats names the interpreter of benchmarks/peers/geomstats.txt. One thread.
"""

from __future__ import annotations

import importlib.util
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from gnomon.decisions import AngularMean, batch_shortfall
from gnomon.decisions.angular_mean.pairs import alike
from gnomon.decisions.angular_mean.solvers import descend, on_circle, starts
from gnomon.decisions.angular_mean.sphere import squared_angles, unit
from gnomon.study import bench

PEERS = Path(__file__).resolve().parents[1] / "peers"
EPSILON = 1e-18  # geomstats stops at a squared gradient of this times the dimension


def voters(n: int, d: int, spread: float) -> np.ndarray:
    """Around one direction; at spread 0.3 and d = 50 some lie more than 90 degrees from it."""
    return unit(np.eye(d)[0] + spread * np.random.default_rng(0).normal(size=(n, d)))


def geomstats(
    python: Path, v: np.ndarray, start: np.ndarray, circle: np.ndarray, repeats: int
) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/in.npz", voters=v, start=start, epsilon=EPSILON, circle=circle)
        subprocess.run(
            [python, PEERS / "geomstats_frechet.py", f"{folder}/in.npz", str(repeats), f"{folder}/out.npz"], check=True
        )
        with np.load(f"{folder}/out.npz") as found:
            return dict(found)


def pymanopt(v: np.ndarray, a: np.ndarray, first: np.ndarray, tol: float) -> Callable[[], np.ndarray]:
    """Conjugate gradients on the sphere with analytic derivatives, from each start; the best end."""
    from pymanopt import Problem, function
    from pymanopt.manifolds import Sphere
    from pymanopt.optimizers import ConjugateGradient

    manifold = Sphere(v.shape[1])

    @function.numpy(manifold)
    def cost(theta: np.ndarray) -> float:
        return float(a @ np.arccos(np.clip(v @ theta, -1, 1)) ** 2 / 2)

    @function.numpy(manifold)
    def gradient(theta: np.ndarray) -> np.ndarray:
        cosine = np.clip(v @ theta, -1, 1)
        sine = np.sqrt((1 - cosine) * (1 + cosine))
        return -(a * np.arccos(cosine) / np.maximum(sine, 1e-300)) @ v

    problem = Problem(manifold, cost, euclidean_gradient=gradient)

    def solve() -> np.ndarray:
        optimizer = ConjugateGradient(verbosity=0, min_gradient_norm=tol, max_iterations=500)
        ends = [optimizer.run(problem, initial_point=theta.copy()) for theta in first]
        return np.asarray(min(ends, key=lambda end: end.cost).point)

    return solve


def gradient_of(theta: np.ndarray, v: np.ndarray, a: np.ndarray) -> tuple[float, float]:
    (value,), (step,) = squared_angles(unit(theta)[None], v, a, np.random.default_rng(0))
    return float(value), float(np.linalg.norm(step))


def sphere(table: bench.Table, options: Any) -> None:
    random = np.random.default_rng(1)
    n, d = options.n, 50
    v, a = voters(n, d, 0.3), np.full(n, 1 / n)
    first = unit(random.normal(size=(8, d)))
    work = f"n={n:,}, d={d}"
    found = None
    if options.geomstats.is_file():
        plane = voters(n, 2, 1.0)
        found = geomstats(options.geomstats, v, first[0], plane, options.repeats)
        reached = gradient_of(found["theta"], v, a)
        table.add(f"gradient that geomstats reaches, {work}", reached[1], "rad")
    else:
        print(
            "geomstats is left out: no environment of benchmarks/peers/geomstats.txt (name its interpreter with --geomstats)"
        )
        reached = (np.nan, 1e-10)
    tol = max(reached[1], 1e-11)
    calls: dict[str, Callable[[], Any]] = {"gnomon, 8 starts": lambda: descend(v, a, first.copy(), tol, random).theta}
    if importlib.util.find_spec("pymanopt"):
        calls["pymanopt conjugate gradients, the same 8 starts"] = pymanopt(v, a, first, 2 * tol)
    else:
        print("pymanopt is left out: it is not installed")
    times = bench.seconds(calls, options.repeats, clock=options.clock)
    table.times(work, times, "s")
    for name, call in calls.items():
        value, gradient = gradient_of(call(), v, a)
        table.add(f"objective, {work}: {name}", value, "rad^2", gradient=f"{gradient:.1e}")
    one = bench.seconds(
        {"gnomon, 1 start": lambda: descend(v, a, first[:1].copy(), tol, random)}, options.repeats, clock=options.clock
    )
    if found is not None:
        table.times(
            f"{work}, from one start", {**one, "geomstats": float(found["sphere"][int(options.clock == "cpu")])}, "s"
        )
        table.add(f"objective, {work}: geomstats, 1 start", reached[0], "rad^2", gradient=f"{reached[1]:.1e}")
        table.add(f"geomstats' one start over gnomon's eight, {work}",
                  float(found["sphere"][int(options.clock == "cpu")]) / times["gnomon, 8 starts"], "times")  # fmt: skip
    else:
        table.times(f"{work}, from one start", one, "s")
    if found is not None and "circle" in found:
        weights = np.full(n, 1 / n)
        own = bench.seconds({"gnomon, exact": lambda: on_circle(plane, weights)}, options.repeats, clock=options.clock)
        table.times(f"d=2, n={n:,}", {**own, "geomstats": float(found["circle"][int(options.clock == "cpu")])}, "ms")
        table.add(f"objective, d=2, n={n:,}: geomstats less gnomon", gradient_of(found["circle_theta"], plane, weights)[0]
                  - on_circle(plane, weights).objective, "rad^2")  # fmt: skip
    full = bench.seconds({"fit": lambda: AngularMean().fit(v)}, 1, clock=options.clock, warm=False)["fit"]
    table.add(f"AngularMean().fit, {len(starts(v, a, 8, random))} starts, {work}", full, "s")


def circle(table: bench.Table, options: Any) -> None:
    n = 10 * options.n
    v, a = voters(n, 2, 1.0), np.full(n, 1 / n)
    for name, call in (("solver", lambda: on_circle(v, a)), ("AngularMean().fit", lambda: AngularMean().fit(v))):
        table.add(
            f"exact, d=2, n={n:,}: {name}", bench.seconds({"x": call}, options.repeats, clock=options.clock)["x"], "s"
        )


def batches(table: bench.Table, options: Any) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 10_000))
    table.times("agreement on 10,000 items", bench.seconds({
        "gnomon": lambda: alike(x[None], y[None, None]), "scipy kendalltau": lambda: kendalltau(x, y)}, options.repeats,
        clock=options.clock), "ms")  # fmt: skip
    few = random.normal(size=(2, 2000, 50))
    table.times("agreement on 2,000 batches of 50", bench.seconds({
        "gnomon": lambda: alike(few[0], few[1:]), "scipy kendalltau": lambda: [kendalltau(p, q) for p, q in few.transpose(1, 0, 2)]},
        1, clock=options.clock), "ms")  # fmt: skip
    rows = voters(100, 10, 0.3)
    spent = bench.seconds({"x": lambda: batch_shortfall(rows[0], rows, 50)}, options.repeats, clock=options.clock)["x"]
    table.add("shortfall of 100 voters in 2,000 batches of 50", spent, "s")


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.set_defaults(clock="cpu")
    parser.add_argument("--n", type=int, default=100_000, help="voters (ten times as many on the circle)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--geomstats", type=Path, default=PEERS / "geomstats" / "bin" / "python")
    options = parser.parse_args()
    table = bench.Table()
    sphere(table, options)
    circle(table, options)
    batches(table, options)
    table.save(options.json)


if __name__ == "__main__":
    main()
