"""Experiments: accuracy, degraded predictions, production sketches, the law of the error."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from gnomon import study
from gnomon.sampling.spacer.baselines import (
    CountMin,
    CountSketch,
    MisraGries,
    SpaceSaving,
    TrivialTop,
)
from gnomon.sampling.spacer.keys import keys_of
from gnomon.sampling.spacer.lines import read_items
from gnomon.sampling.spacer.streams import arranged, encode, errors, weighted_error, zipf
from gnomon.sampling.spacer.study.contenders import (
    Contender,
    Estimates,
    budgets,
    count_sketch_blogb,
    counters,
    datasketches,
    learned,
    learned_plus_plus,
    plus_plus,
    side_by_side,
    sketch,
    space_saving_blogb,
    table,
    trivial,
    two_pass,
)


def _main(source: str, order: str, size: int, n: int) -> bool:
    """The streams of the claims, with a table that is small for them."""
    regular = source in ("words", "Ta Feng") and order in ("natural", "shuffled")
    synthetic = source == "bigrams" or source.startswith(("Zipf 0.8", "Zipf 1,"))
    return (regular or source == "file" or (order == "shuffled" and synthetic)) and 30 * size <= n


NS = (2_000, 20_000, 100_000)
ZIPF = {f"Zipf {a}, n = {n}": (a, n) for a in (0.8, 1, 1.2) for n in NS}
CELLS = [
    *study.grid(source=["words"], order=["natural", "shuffled", "rare first", "frequent first", "bursts"]),
    *study.grid(source=["Ta Feng", "bigrams"], order=["natural", "shuffled"]),
    *study.grid(source=["5-grams"], order=["natural"]),
    *study.grid(source=list(ZIPF), order=["shuffled"]),
]
LAWS = {**ZIPF, "Zipf 1.2, N = 300000": (1.2, 52_600)}
OWN = {"source": "file", "order": "natural"}
SIZES = (64, 256, 1024)
REPORTED = {
    ("words", "natural"),
    ("words", "shuffled"),
    ("Ta Feng", "natural"),
    ("bigrams", "shuffled"),
    ("Zipf 1, n = 100000", "shuffled"),
    ("file", "natural"),
}
CLAIMED = ("spacer", "trivial, perfect", "learned CountSketch++, perfect", "two-pass, Space Saving", "two-pass, Misra-Gries",
           "two-pass, CountSketch", "Space Saving", "Unbiased Space Saving")  # fmt: skip


class Estimation(study.Experiment):
    """What the experiments on streams share: a stream, a contender, its errors."""

    sizes: ClassVar[tuple[int, ...]] = SIZES
    metrics = {"W": study.lower(log=True), "U": study.lower(), "relative": study.lower(), "recall": study.higher(),
               "overlap": study.higher()}  # fmt: skip

    @study.stage(version=1, inputs=("tokens", "stream", "field", "sep"), cell=("source",), seeded=False)
    def encoded(self, inputs: Any, cell: Any, seed: int | None) -> np.ndarray:
        """A source as ids in the order in which it came."""
        from gnomon import datasets

        if cell.source in LAWS:
            a, n = LAWS[cell.source]
            return zipf(n, a)
        if cell.source == "file":
            if inputs.stream is None:
                return np.empty(0, np.int32)
            blocks = read_items(inputs.stream, inputs.field, inputs.sep)
            return encode(np.concatenate([np.empty(0, np.int64), *(keys_of(block)[1] for block in blocks)]))
        if cell.source == "Ta Feng":
            return encode(datasets.ta_feng()[: inputs.tokens])
        words = datasets.wikipedia_words()[: inputs.tokens]
        if cell.source == "words":
            return encode(np.array(words, object))
        if cell.source == "bigrams":
            ids = encode(np.array(words, object)).astype(np.int64)
            return encode(ids[:-1] * len(ids) + ids[1:])
        letters = np.frombuffer(" ".join(words).encode("ascii"), np.uint8).astype(np.int64)[: 1_000_000 + 4]
        return encode(np.sum([letters[i : len(letters) - 4 + i] << (8 * i) for i in range(5)], axis=0))

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        """A person's own stream, or else ours."""
        return (cell.source == "file") == (inputs.stream is not None or inputs.memory == "log")

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        if inputs.memory == "log" and inputs.stream is None:
            raise ValueError("--stream: this scale reads a stream of yours (AOL queries, CAIDA flows): name its file")
        if not Estimation.includes(self, inputs, cell, ""):  # a contender of one's own is asked everywhere
            return SimpleNamespace(stream=None, memory=[])
        stream = arranged(self.encoded(inputs, cell), cell.order, rng)
        sizes: list[tuple[int, int | None]]
        if inputs.memory == "log":
            p = math.ceil(math.log2(stream.n))
            sizes = [(7 * p * k, p) for k in (1, 2, 5, 10, 20)]
        else:
            sizes = [(size, None) for size in self.sizes]
        sizes = [(size, p) for size, p in sizes if 10 * size <= stream.n]
        if cell.source == "file" and not sizes:
            raise ValueError(f"--stream: it has {stream.n} distinct items, too few to be of interest: 640 or more")
        return SimpleNamespace(source=cell.source, order=cell.order, flip=cell.get("flip", 0.0), stream=stream,
                               memory=sizes)  # fmt: skip

    def measure(self, problem: Any, contender: Contender, rng: np.random.Generator) -> list[dict[str, Any]]:
        stream = problem.stream
        rows = []
        for size, predicted in problem.memory:
            for budget in budgets(size, predicted, problem.flip):
                rows += [{"n": stream.n, "N": stream.total, "main": _main(problem.source, problem.order, size, stream.n),
                          "B": size, "budget": budget.budget, "setting": setting, **errors(stream, estimates, size)}
                         for setting, estimates in _settings(contender(stream, budget, rng))]  # fmt: skip
        return rows


def _settings(found: Estimates) -> list[tuple[str, np.ndarray]]:
    return list(found.items()) if isinstance(found, Mapping) else [("", found)]


class Accuracy(Estimation):
    """How well does each one-pass, two-pass and learned estimator do at equal memory, on real and synthetic streams?

    A contender of your own is a function ``(stream, budget, rng)`` that gives the estimates (n,) of the items 0..n-1,
    or a dict of such arrays, one for each setting: the best one on average is judged. ``stream.items`` is the stream,
    ``budget.entries`` how many keyed entries it may keep, ``budget.B`` how many bare cells.
    """

    cells = [*CELLS, OWN]
    contenders = {
        "spacer": table("inverse"),
        "trivial, perfect": trivial,
        "learned CountSketch++, perfect": learned_plus_plus,
        "learned CountSketch, perfect": learned(CountSketch),
        "learned Count-Min, perfect": learned(CountMin),
        "two-pass, Space Saving": two_pass("space-saving"),
        "two-pass, Misra-Gries": two_pass("misra-gries"),
        "two-pass, CountSketch": two_pass("count-sketch"),
        "one-pass, Space Saving beside CountSketch++": side_by_side,
        "CountSketch++": plus_plus,
        "CountSketch": sketch(CountSketch),
        "Count-Min": sketch(CountMin),
        "conservative Count-Min": sketch(CountMin, conservative=True),
        "Space Saving": counters(SpaceSaving),
        "Unbiased Space Saving": counters(SpaceSaving, unbiased=True),
        "sample-and-hold": table("hold"),
        "Misra-Gries": counters(MisraGries),
    }

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        """Those that no claim is about are shown on a few streams."""
        return ((cell.source, cell.order) in REPORTED or contender in CLAIMED) and super().includes(
            inputs, cell, contender
        )


class LogFactor(Estimation):
    """Does B log B memory without predictions match B with perfect ones?"""

    cells = [
        *study.grid(source=[s for s in ZIPF if s.startswith("Zipf 1,")], order=["shuffled"]),
        *study.grid(source=["Zipf 0.8, n = 100000", "Zipf 1.2, n = 100000", "words", "bigrams"], order=["shuffled"]),
    ]
    contenders = {
        "Space Saving, B log B": space_saving_blogb,
        "thresholded CountSketch, B log B": count_sketch_blogb,
        "trivial, perfect": trivial,
        "learned CountSketch++, perfect": learned_plus_plus,
    }


class Degrading(Estimation):
    """How wrong may the predictions be before learned methods fall behind SpaceR?"""

    cells = study.grid(source=["words"], order=["natural"], flip=[0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0])
    contenders = {
        "spacer": table("inverse"),
        "trivial": trivial,
        "learned CountSketch++": learned_plus_plus,
        "learned CountSketch": learned(CountSketch),
    }
    sizes = (256,)


class Production(Estimation):
    """Against Apache DataSketches' frequent items, a table that is in production, at equal capacity."""

    cells = [{"source": "Zipf 1.2, N = 300000", "order": "shuffled"}]
    contenders = {
        "spacer": table("inverse"),
        "Space Saving": counters(SpaceSaving),
        "trivial, perfect": trivial,
        **({"datasketches": datasketches} if importlib.util.find_spec("datasketches") else {}),
    }
    sizes = (768,)


class Law(study.Experiment):
    """The trivial mechanism on f = n / i, against its closed form and its limit."""

    seeds = 0
    cells = study.grid(n=NS)
    contenders = {"trivial, perfect": None}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        counts = cell.n / np.arange(1, cell.n + 1)
        return SimpleNamespace(n=cell.n, counts=counts)

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        rows = []
        for size in (1, 16, 64, 256, 1024):
            table = TrivialTop(functools.partial(_first, size)).fit(problem)
            weighted = weighted_error(problem.counts, table.estimate_many(np.arange(problem.n)))
            closed = float((problem.counts[size:] ** 2).sum() / problem.counts.sum())
            rows.append({"B": size, "in_range": 16 <= size <= problem.n / 30, "weighted": weighted,
                         "off": abs(weighted / closed - 1), "to_limit": weighted * size * math.log(problem.n) / problem.n})  # fmt: skip
        return rows


def _first(size: int, stream: Any) -> np.ndarray:
    """The items of a law come by falling frequency."""
    return np.arange(stream.n)[:size]
