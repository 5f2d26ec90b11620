"""SpaceR beside the tables and sketches that are in production, all fed from Python, in one run.

    python benchmarks/sampling/bench_spacer.py [--json FILE] [--items N]

Peers: Apache DataSketches (frequent items, frequent strings, Count-Min), bounter (Count-Min in C) and
``collections.Counter`` (exact, so the yardstick). Each is fed in the fastest way that its interface has. One thread.
"""

from __future__ import annotations

import collections
import importlib.util
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from gnomon.sampling import SpaceR
from gnomon.sampling.spacer.streams import arranged, zipf
from gnomon.study import bench

CAPACITY = 768  # what DataSketches' 2^10 slots hold


def fed(update: Callable[[Any], Any], items: list[Any]) -> None:
    for item in items:
        update(item)


def contenders(ints: np.ndarray, words: list[str]) -> dict[str, dict[str, Callable[[], Any]]]:
    """For each kind of work, what does it: the first is this implementation."""
    numbers = ints.tolist()

    def many(stream: Any, **options: Any) -> SpaceR:
        table = SpaceR(CAPACITY, random_state=0, **options)
        table.update_many(stream)
        return table

    works: dict[str, dict[str, Callable[[], Any]]] = {
        "ints, an array": {"SpaceR.update_many": lambda: many(ints)},
        "ints, one by one": {"SpaceR.update": lambda: fed(SpaceR(CAPACITY, random_state=0).update, numbers)},
        "strings, a list": {"SpaceR.update_many": lambda: many(words)},
    }
    for rule in ("always", "unbiased", "hold"):
        works["ints, an array"][f"SpaceR.update_many, {rule}"] = lambda rule=rule: many(ints, admission=rule)
    if importlib.util.find_spec("datasketches"):
        import datasketches

        for work in ("ints, an array", "ints, one by one"):  # it takes no arrays
            works[work]["datasketches frequent_items_sketch"] = lambda: fed(
                datasketches.frequent_items_sketch(10).update, numbers)  # fmt: skip
            works[work]["datasketches count_min_sketch"] = lambda: fed(
                datasketches.count_min_sketch(3, CAPACITY // 3).update, numbers)  # fmt: skip
        works["strings, a list"]["datasketches frequent_strings_sketch"] = lambda: fed(
            datasketches.frequent_strings_sketch(10).update, words)  # fmt: skip
    else:
        print("datasketches: left out, it is not installed")
    if importlib.util.find_spec("bounter"):
        import bounter

        works["strings, a list"]["bounter CountMinSketch"] = lambda: bounter.CountMinSketch(size_mb=1).update(words)
    else:
        print("bounter: left out, it is not installed")
    for work, items in (("ints, an array", numbers), ("ints, one by one", numbers), ("strings, a list", words)):
        works[work]["collections.Counter (exact)"] = lambda items=items: collections.Counter(items)
    return works


def peak(call: Callable[[], Any]) -> float:
    """Peak of Python's and numpy's allocations, MB; what a peer's C++ allocates is not seen."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def memory(table: bench.Table) -> None:
    """Bytes an entry, and growth with the length of the stream."""

    def grown(capacity: int, blocks: int) -> int:
        tracemalloc.start()
        table = SpaceR(capacity, random_state=0)
        for block in range(blocks):
            table.update_many(np.arange(capacity) + block % 7 * capacity // 8)
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return held

    grown(10, 2)
    for capacity in (1024, 65_536, 1 << 20):
        table.add(f"SpaceR({capacity:,}): memory", grown(capacity, 2) / capacity, "bytes an entry")
    growth = grown(65_536, 80) - grown(65_536, 8)
    table.add("SpaceR(65,536): growth from 0.5 M to 5 M items", growth, "bytes")


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.set_defaults(clock="cpu")
    parser.add_argument("--items", type=int, default=300_000, help="length of the stream")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    stream = arranged(zipf(options.items, 1.2), "shuffled", np.random.default_rng(0)).items[: options.items]
    ints = stream.astype(np.int64) * 2_654_435_761  # arbitrary ids, no dense index
    words = [f"item-{x}" for x in stream.tolist()]
    print(f"Zipf 1.2, {options.items:,} arrivals, {len(np.unique(ints)):,} distinct, capacity {CAPACITY}; "
          "ratio: time over that of the first of its kind")  # fmt: skip
    table = bench.Table()
    for work, calls in contenders(ints, words).items():
        times = bench.seconds(calls, options.repeats, clock=options.clock)
        own = next(iter(times.values()))
        for name, spent in times.items():
            table.add(f"{work}: {name}", options.items / spent / 1e6, "M items/s", spent / own,
                      peak_mb=round(peak(calls[name]), 2))  # fmt: skip
    memory(table)
    table.save(options.json)


if __name__ == "__main__":
    main()
