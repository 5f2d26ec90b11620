"""Tree repair: one round to a 2 % gap beside scipy's milp, exact robustness beside Veritas, leaf look-ups, in one run.

    python benchmarks/guarantees/bench_tree_repair.py [--json FILE] [--limit SECONDS]

The peer of a round is what a person would write first: scipy.optimize.milp, one constant M = 20 for all rows, one row
per training row, no start. The same counterexamples, bounds and objective; one thread. A solve that meets its limit
counts with the limit, so that the ratio is a lower bound, and the gap beside says how far it was (infinite: its start was all there was). German credit (from
GNOMON_DATA), 700 rows, 40 trees of depth 3; pairs of people who differ in sex, those decided differently first.
"""

from __future__ import annotations

import importlib.util

import numpy as np

from gnomon.guarantees.tree_repair.counterexamples import Pair, demands
from gnomon.guarantees.tree_repair.encoding import EnsembleEncoding
from gnomon.guarantees.tree_repair.program import Options, RepairProgram, Rows
from gnomon.guarantees.tree_repair.properties import (
    Candidate,
    Context,
    RobustnessProperty,
    exchanged,
    resampled,
)
from gnomon.guarantees.tree_repair.study.experiments import margin_of, violating
from gnomon.guarantees.tree_repair.study.material import People, people
from gnomon.study import bench

GAP = 0.02
CONSTANT = 20.0


def rounds(table: bench.Table, problem: People, limit: float) -> None:
    """Seconds to the gap with 40, 80 and 160 counterexamples."""
    encoding, X, y = problem.encoded, problem.X, problem.y
    wanted = violating(problem, 160)
    known = {d.key for d in wanted}
    one, two = exchanged(resampled(X, 1000, np.random.default_rng(2)), problem.sensitive, np.array([[0.0], [1.0]]))
    for demand in demands(encoding, [Pair(a, b) for a, b in zip(one, two, strict=True)]):
        if demand.key not in known and not np.array_equal(*demand.leaves):
            wanted.append(demand)
            known.add(demand.key)
    margin, change = margin_of(problem), 5 * float(np.abs(encoding.w).max())
    for n in (40, 80, 160):
        ours = RepairProgram(encoding, Rows.of(encoding, X, y), wanted[:n], Options(margin=margin, change=change))
        plain = RepairProgram(encoding, Rows.of(encoding, X, y, compress=False), wanted[:n],
                              Options(margin=margin, change=change, big_m=CONSTANT))  # fmt: skip
        found = ours.solve(limit, GAP)
        peer = plain.solve(limit, GAP, backend="scipy", warm=False)
        for name, way, it in (("gnomon", ours, found), ("scipy milp, constant M", plain, peer)):
            table.add(f"a round of {n} counterexamples to a gap of 2 %: {name}", it.seconds, "s",
                      None if it is found else peer.seconds / found.seconds, gap=f"{it.gap:.3f}",
                      objective=f"{it.objective:.4f}", rows=way.program.n_rows)  # fmt: skip


def robustness(table: bench.Table, encoding: EnsembleEncoding, X: np.ndarray, limit: float) -> None:
    """The most adverse input in a box, proved so, for ten points."""
    if not importlib.util.find_spec("veritas"):
        print("veritas: left out, it is not installed")
        return
    candidate = Candidate(encoding, encoding.w)
    labels = candidate.labels(X[:10])
    times = {}
    for name in ("milp", "veritas"):
        verifier = RobustnessProperty(X[:10], 0.5 * X.std(axis=0), name).bind(
            encoding, Context(X, None, np.random.default_rng(0))
        )

        def search(verifier: object = verifier) -> list[object]:
            return [verifier.attack(candidate, x, int(k), limit) for x, k in zip(X[:10], labels, strict=True)]  # type: ignore[attr-defined]

        answers = search()
        done, changed = sum(bool(a[2]) for a in answers), sum(a[0] is not None for a in answers)
        print(f"{name}: {done} of 10 boxes searched to the end, in {changed} of them the decision can change")
        times["gnomon's MILP" if name == "milp" else "veritas"] = bench.seconds({"one": search}, 1, warm=False)["one"]
    table.times("robustness of ten points, whole boxes searched", times, "s")


def lookups(table: bench.Table, encoding: EnsembleEncoding, X: np.ndarray) -> None:
    """Leaves of rows and their scores, in leaf look-ups a second."""
    rows = resampled(X, 20_000, np.random.default_rng(0))
    times = bench.seconds({"leaves": lambda: encoding.leaves(rows), "scores": lambda: encoding.scores(rows)}, 5)
    for name, spent in times.items():
        table.add(f"encoding, {name}", len(rows) * encoding.n_trees / spent / 1e6, "M look-ups/s")


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each solve")
    options = parser.parse_args()
    problem = people("german-gbdt", 40, 3, 100, options.limit, 0)
    encoding, X = problem.encoded, problem.X
    table = bench.Table()
    lookups(table, encoding, X)
    robustness(table, encoding, X, options.limit)
    rounds(table, problem, options.limit)
    table.save(options.json)


if __name__ == "__main__":
    main()
