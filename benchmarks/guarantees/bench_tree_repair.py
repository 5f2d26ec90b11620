"""Tree repair: one round to a 2 % gap beside scipy's milp, exact robustness beside Veritas, leaf look-ups, in one run.

    python benchmarks/guarantees/bench_tree_repair.py [--json FILE] [--limit SECONDS]

The peer of a round is what a person would write first: scipy.optimize.milp, one constant M = 20 for all rows, one row
per training row, no start. The same counterexamples, bounds and objective; one thread. A solve that meets its limit
counts with the limit, so that the ratio is a lower bound, and the gap beside says how far it was. Data are drawn (700
rows, eight whole-number features, a sensitive one), the ensemble has 40 trees of depth 3.
"""

from __future__ import annotations

import importlib.util

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier

from gnomon.guarantees.tree_repair.counterexamples import demands
from gnomon.guarantees.tree_repair.encoding import EnsembleEncoding
from gnomon.guarantees.tree_repair.program import Options, RepairProgram, Rows
from gnomon.guarantees.tree_repair.properties import (
    Candidate,
    Context,
    FairnessProperty,
    RobustnessProperty,
    resampled,
)
from gnomon.study import bench

GAP = 0.02
CONSTANT = 20.0


def people(n: int = 700) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 2, n), *(rng.integers(0, 8, n) for _ in range(7))]).astype(float)
    score = 1.5 * X[:, 0] + X[:, 1:5].sum(axis=1) - 0.3 * X[:, 1] * X[:, 0] + rng.normal(0, 2, n)
    return X, (score > np.median(score)).astype(int)


def rounds(table: bench.Table, encoding: EnsembleEncoding, X: np.ndarray, y: np.ndarray, limit: float) -> None:
    """Seconds to the gap with 40, 80 and 160 counterexamples."""
    verifier = FairnessProperty([0], verifier="generator").bind(encoding, Context(X, None, np.random.default_rng(1)))
    candidate = Candidate(encoding, encoding.w)
    pairs, _ = verifier.violations(candidate, resampled(X, 40_000, np.random.default_rng(2)), set(), 160)
    scores = encoding.scores(X)
    margin, change = 1e-3 * float(np.ptp(scores)), 5 * float(np.abs(encoding.w).max())
    for n in (40, 80, 160):
        wanted = demands(encoding, pairs[:n])
        ours = RepairProgram(encoding, Rows.of(encoding, X, y), wanted, Options(margin=margin, change=change))
        plain = RepairProgram(encoding, Rows.of(encoding, X, y, compress=False), wanted,
                              Options(margin=margin, change=change, big_m=CONSTANT))  # fmt: skip
        found = ours.solve(limit, GAP)
        peer = plain.solve(limit, GAP, backend="scipy", warm=False)
        table.add(f"a round of {len(wanted)} counterexamples to a gap of 2 %: gnomon", found.seconds, "s",
                  gap=f"{found.gap:.3f}", objective=f"{found.objective:.4f}", rows=ours.program.n_rows)  # fmt: skip
        table.add(f"a round of {len(wanted)} counterexamples to a gap of 2 %: scipy milp, constant M", peer.seconds, "s",
                  peer.seconds / found.seconds, gap=f"{peer.gap:.3f}", objective=f"{peer.objective:.4f}", rows=plain.program.n_rows)  # fmt: skip


def robustness(table: bench.Table, encoding: EnsembleEncoding, X: np.ndarray, limit: float) -> None:
    """The most adverse input in a box, proved so, for ten points."""
    if not importlib.util.find_spec("veritas"):
        print("veritas: left out, it is not installed")
        return
    candidate = Candidate(encoding, encoding.w)
    labels = candidate.labels(X[:10])
    times = {}
    for name in ("milp", "veritas"):
        verifier = RobustnessProperty(X[:10], 1.5, name).bind(encoding, Context(X, None, np.random.default_rng(0)))

        def search(verifier: object = verifier) -> list[object]:
            return [verifier.attack(candidate, x, int(k), limit) for x, k in zip(X[:10], labels, strict=True)]  # type: ignore[attr-defined]

        answers = search()
        print(
            name,
            "proved or found:",
            sum(bool(a[2]) for a in answers),
            "of 10; changed:",
            sum(a[0] is not None for a in answers),
        )
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
    X, y = people()
    encoding = EnsembleEncoding(GradientBoostingClassifier(n_estimators=40, max_depth=3, random_state=0).fit(X, y))
    table = bench.Table()
    lookups(table, encoding, X)
    robustness(table, encoding, X, options.limit)
    rounds(table, encoding, X, y, options.limit)
    table.save(options.json)


if __name__ == "__main__":
    main()
