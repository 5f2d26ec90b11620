"""The correction of 10^6 questions by four personas: compiled beside the numpy reference, one thread.

    python benchmarks/decisions/bench_disca.py [--json FILE]

No library has this correction; the reference is the peer. The bound of the specification is a minute for 10^6 questions.
"""

from __future__ import annotations

import time

import numpy as np

from gnomon.decisions import correct
from gnomon.study import bench


def main() -> None:
    options = bench.parser(__file__, __doc__).parse_args()
    rng = np.random.default_rng(0)
    d0 = rng.normal(size=1_000_000)
    panel = d0[:, None] + rng.normal(size=(len(d0), 4))
    table = bench.Table()
    few = 5_000
    times = bench.seconds(
        {
            "compiled": lambda: correct(d0[:few], panel[:few]),
            "numpy reference": lambda: correct(d0[:few], panel[:few], backend="numpy"),
            "draws (2 x 128), numpy": lambda: correct(
                d0[:few], panel[:few], estimator="importance", reliability="both"
            ),
        },
        repeats=3,
        clock=options.clock,
    )
    table.times(f"{few} questions x 4 personas", times)
    now = bench.CLOCKS[options.clock]
    start = now()
    correct(d0, panel)
    table.add("10^6 questions x 4 personas: compiled", now() - start, "s")
    for n in (2, 4, 8, 16):
        wide = d0[:few, None] + rng.normal(size=(few, n))
        start = time.perf_counter()
        correct(d0[:few], wide)
        table.add(f"{few} questions x {n} personas: compiled", (time.perf_counter() - start) * 1e3, "ms")
    table.save(options.json)


if __name__ == "__main__":
    main()
