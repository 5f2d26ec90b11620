"""Is one coin worth as much as perfect predictions of the heavy items?"""

from __future__ import annotations

import csv
import functools
import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from gnomon import study
from gnomon.sampling.spacer import kernel
from gnomon.sampling.spacer.baselines import (
    CountMin,
    CountSketch,
    CountSketchPP,
    Learned,
    MisraGries,
    SpaceSaving,
    TrivialTop,
    noisy_oracle,
    perfect_oracle,
    two_pass_oracle,
)
from gnomon.sampling.spacer.keys import keys_of
from gnomon.sampling.spacer.lines import read_items
from gnomon.sampling.spacer.method import SpaceR
from gnomon.sampling.spacer.streams import Stream, arranged, encode, errors, weighted_error, zipf
from gnomon.study.protocol import Options

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# --- what a memory buys ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """A memory of B, counted in entries as the literature does (a cell is an entry), or in words (an entry is two).

    ``entries`` of a keyed table; or ``exact`` counters for predicted items and ``cells`` of a sketch. The share ``flip``
    of the predictions is wrong.
    """

    budget: str
    B: int
    entries: int
    exact: int
    cells: int
    flip: float = 0.0

    def oracle(self, p: int, rng: np.random.Generator) -> Any:
        """Who names p heavy items."""
        return noisy_oracle(p, self.flip, rng) if self.flip else perfect_oracle(p)


def budgets(size: int, predicted: int | None = None, flip: float = 0.0) -> list[Budget]:
    """Both ways of counting; predictions take half of the memory, or ``predicted`` items."""
    p, words = (size // 2, size // 4) if predicted is None else (predicted, predicted)
    return [Budget("entries", size, size, p, size - p, flip),
            Budget("bytes", size, size // 2, words, size - 2 * words, flip)]  # fmt: skip


# --- contenders: (stream, budget, rng) -> estimates (n,) of all items, or one such array for each setting of theirs ---

Estimates = np.ndarray | dict[str, np.ndarray]
Contender = Callable[[Stream, Budget, np.random.Generator], Estimates]
TAUS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
ROWS = (3, 5)


def _everyone(stream: Stream) -> np.ndarray:
    return np.arange(stream.n)


def _table(admission: str) -> Contender:
    def contender(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
        table = SpaceR(budget.entries, admission, rng)
        table.update_many(stream.items)
        return table.estimate_many(_everyone(stream))

    return contender


def _counters(kind: Callable[..., Any], **options: Any) -> Contender:
    def contender(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
        return kind(budget.entries, rng, **options).fit(stream).estimate_many(_everyone(stream))

    return contender


def _trivial(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
    return TrivialTop(budget.oracle(budget.entries, rng)).fit(stream).estimate_many(_everyone(stream))


def _sketch(kind: Callable[..., Any], **options: Any) -> Contender:
    """A plain sketch on all of the memory, with 3 and with 5 rows."""

    def contender(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
        return {f"L={rows}": kind(budget.B // rows, rows, random_state=rng, **options).fit(stream)
                .estimate_many(_everyone(stream)) for rows in ROWS}  # fmt: skip

    return contender


def _learned(kind: Callable[..., Any]) -> Contender:
    def contender(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
        oracle = budget.oracle(budget.exact, rng)
        return {f"L={rows}": Learned(kind(budget.cells // rows, rows, random_state=rng), oracle).fit(stream)
                .estimate_many(_everyone(stream)) for rows in ROWS}  # fmt: skip

    return contender


def _thresholds(stream: Stream, cells: int) -> dict[str, float]:
    """CountSketch++'s tau on its usual scale."""
    return {f"c={c}": c * stream.total * math.log2(cells) / cells for c in TAUS}


def _plus_plus(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
    small, large = CountSketchPP(budget.B, random_state=rng).fit(stream).read(_everyone(stream))
    return {name: np.where(small < tau, 0, large) for name, tau in _thresholds(stream, budget.B).items()}


def _learned_plus_plus(stream: Stream, budget: Budget, rng: np.random.Generator, oracle: Any = None) -> Estimates:
    oracle = oracle or budget.oracle(budget.exact, rng)
    learned = Learned(CountSketchPP(budget.cells, random_state=rng), oracle).fit(stream)
    small, large = learned.sketch.read(_everyone(stream))
    return {name: learned.join(_everyone(stream), np.where(small < tau, 0, large))
            for name, tau in _thresholds(stream, budget.cells).items()}  # fmt: skip


def _two_pass(kind: str) -> Contender:
    """A first pass finds the predictions, a second one runs learned CountSketch++ with them."""

    def contender(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
        memory = budget.B if kind == "count-sketch" else budget.entries
        return _learned_plus_plus(stream, budget, rng, two_pass_oracle(kind, budget.exact, memory, rng))

    return contender


def _side_by_side(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
    """One pass: Space Saving's p items beside a CountSketch++ of the whole stream."""
    heavy = SpaceSaving(budget.exact, rng).fit(stream).estimate_many(_everyone(stream))
    small, large = CountSketchPP(budget.cells, random_state=rng).fit(stream).read(_everyone(stream))
    return {name: np.where(heavy > 0, heavy, np.where(small < tau, 0, large))
            for name, tau in _thresholds(stream, budget.cells).items()}  # fmt: skip


def _log_times(budget: Budget) -> int:
    return budget.B * math.ceil(math.log2(budget.B))


def _space_saving_blogb(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
    return SpaceSaving(_log_times(budget), rng).fit(stream).estimate_many(_everyone(stream))


def _count_sketch_blogb(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
    """Estimates below C N / (B ln n) read 0."""
    found = {}
    for rows in ROWS:
        sketch = CountSketch(_log_times(budget) // rows, rows, rng).fit(stream).estimate_many(_everyone(stream))
        for factor in (1, 2):
            tau = factor * stream.total / (budget.B * math.log(stream.n))
            found[f"L={rows}, C={factor}"] = np.where(sketch < tau, 0, sketch)
    return found


def _datasketches(stream: Stream, budget: Budget, rng: np.random.Generator) -> Estimates:
    """Apache DataSketches' frequent items; a table of 2^lg slots holds three quarters of them."""
    from datasketches import frequent_items_sketch

    sketch = frequent_items_sketch(math.ceil(math.log2(budget.entries / 0.75)))
    for item in stream.items.tolist():
        sketch.update(item)
    return np.array([sketch.get_estimate(item) for item in range(stream.n)])


# --- the streams -----------------------------------------------------------------------------------------------------


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
        "spacer": _table("inverse"),
        "trivial, perfect": _trivial,
        "learned CountSketch++, perfect": _learned_plus_plus,
        "learned CountSketch, perfect": _learned(CountSketch),
        "learned Count-Min, perfect": _learned(CountMin),
        "two-pass, Space Saving": _two_pass("space-saving"),
        "two-pass, Misra-Gries": _two_pass("misra-gries"),
        "two-pass, CountSketch": _two_pass("count-sketch"),
        "one-pass, Space Saving beside CountSketch++": _side_by_side,
        "CountSketch++": _plus_plus,
        "CountSketch": _sketch(CountSketch),
        "Count-Min": _sketch(CountMin),
        "conservative Count-Min": _sketch(CountMin, conservative=True),
        "Space Saving": _counters(SpaceSaving),
        "Unbiased Space Saving": _counters(SpaceSaving, unbiased=True),
        "sample-and-hold": _table("hold"),
        "Misra-Gries": _counters(MisraGries),
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
        "Space Saving, B log B": _space_saving_blogb,
        "thresholded CountSketch, B log B": _count_sketch_blogb,
        "trivial, perfect": _trivial,
        "learned CountSketch++, perfect": _learned_plus_plus,
    }


class Degrading(Estimation):
    """How wrong may the predictions be before learned methods fall behind SpaceR?"""

    cells = study.grid(source=["words"], order=["natural"], flip=[0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0])
    contenders = {
        "spacer": _table("inverse"),
        "trivial": _trivial,
        "learned CountSketch++": _learned_plus_plus,
        "learned CountSketch": _learned(CountSketch),
    }
    sizes = (256,)


class Production(Estimation):
    """Against Apache DataSketches' frequent items, a table that is in production, at equal capacity."""

    cells = [{"source": "Zipf 1.2, N = 300000", "order": "shuffled"}]
    contenders = {
        "spacer": _table("inverse"),
        "Space Saving": _counters(SpaceSaving),
        "trivial, perfect": _trivial,
        **({"datasketches": _datasketches} if importlib.util.find_spec("datasketches") else {}),
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


# --- the study -------------------------------------------------------------------------------------------------------

PER = ("source", "order", "B", "budget")
MAIN = {"main": True}
PLAIN = {"budget": "entries"}
LEARNED = "learned CountSketch++, perfect"
TWO_PASS = ["two-pass, Space Saving", "two-pass, Misra-Gries", "two-pass, CountSketch"]
ZIPF_1 = [s for s in ZIPF if s.startswith("Zipf 1,")]


class SpaceRStudy(study.Study):
    """SpaceR at equal memory beside sketches, tables, learned and two-pass methods."""

    title = "SpaceR: one-pass frequency estimation by randomised admission, without predictions"
    paper = "NeurIPS 2026, abstract only; the admission rule is that of Ben Basat et al. (INFOCOM 2017)"
    bibtex = """@inproceedings{spacer2026,
  title     = {One-pass frequency estimation by randomised admission},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2026},
  note      = {known to us by its abstract}
}"""
    question = (
        "Does a one-pass table whose newcomers toss a coin match learned sketches that know the heavy items beforehand?"
    )
    method = (
        "A table of k counted items. An item that is not in the full table replaces the rarest one, of count m, with "
        "probability 1/(m + 1) and takes count m + 1; otherwise it is dropped. An item that is not in the table reads 0."
    )
    departures = (
        "Only the abstract was available: the admission rule, its analysis, weights, merging and skip sampling are "
        "reconstructed; of four rules tried, this one gives what the abstract claims.",
        "The threshold of CountSketch++ and the rows of plain sketches are chosen on the judged stream, the best mean over "
        "seeds: this favours the baselines.",
        "In the order `bursts` all occurrences of an item come in a row, the items in random order. There the claim on two "
        "passes fails at B = 1024 in entries: Space Saving and Misra-Gries as first pass have two thirds of SpaceR's error.",
        "The 5-grams are the first million; the wordfreq source is left out (its package is not among the pinned ones).",
        "Recall is the share of the true top B/2 among the B largest estimates; `overlap` asks for them among the B/2 "
        "largest.",
    )

    class Inputs(study.Inputs):
        """What a check can be told."""

        seeds: int = Field(10, ge=1, description="number of seeds")
        tokens: int | None = Field(None, ge=10_000, description="cut the real streams to so many tokens")
        stream: Path | None = Field(None, description="a stream of your own: text, one item a line (.gz, .bz2 too)")
        field: int | None = Field(None, ge=1, description="which field of each line, from 1")
        sep: str | None = Field(None, description="what separates fields (one character); default white space")
        memory: Literal["powers", "log"] = Field("powers", description="B = 64, 256, 1024; or 7 log2(n) times 1 to 20")

        scales = {
            "smoke": {
                "seeds": 2, "tokens": 100_000,
                "Accuracy": {"cells": [{"source": "words", "order": "natural"},
                                       {"source": "Zipf 1, n = 2000", "order": "shuffled"}, OWN]},
                "LogFactor": {"cells": [{"source": "Zipf 1, n = 2000", "order": "shuffled"}]},
                "Degrading": {"cells": {"flip": [0.0, 0.5]}},
            },
            "laptop": {},
            "extended": {"seeds": 30},
            "paper": {"seeds": 5, "memory": "log", "Accuracy": {"cells": [OWN]}, "LogFactor": False, "Degrading": False,
                      "Production": False},
        }  # fmt: skip

        @field_validator("stream")
        @classmethod
        def _exists(cls, value: Path | None) -> Path | None:
            if value is not None and not value.expanduser().is_file():
                raise ValueError("expected a text file that exists")
            return None if value is None else value.expanduser()

    class Run(Options):
        """What a run can be told."""

        input: str = Field(..., description="text file (.gz and .bz2 too), or - for standard input")
        field: int | None = Field(None, ge=1, description="which field of each line, from 1; default the whole line")
        sep: str | None = Field(
            None, description="what separates fields: one character, read as CSV; default white space"
        )
        capacity: int = Field(4096, ge=1, le=kernel.MOST, description="entries of the table")
        admission: Literal["inverse", "always", "unbiased", "hold"] = Field("inverse", description="who is admitted")
        top: int = Field(20, ge=0, description="how many items to show")
        random_state: int = Field(0, ge=0, description="seed of the coins")

        @field_validator("input")
        @classmethod
        def _exists(cls, value: str) -> str:
            path = Path(value).expanduser()
            if value != "-" and (path.is_dir() or not path.exists()):  # a pipe will do
                raise ValueError("expected a text file that exists, or -")
            return value

        @model_validator(mode="after")
        def _fields(self) -> Any:
            if self.sep is not None and (self.field is None or len(self.sep) != 1):
                raise ValueError("--sep: expected one character, beside --field")
            return self

    experiments = [Accuracy, LogFactor, Degrading, Production, Law]

    command = "gnomon run spacer --input access.log --field 1 --capacity 4096 --top 50"
    example = """from gnomon.sampling import SpaceR

table = SpaceR(capacity=1024, random_state=0)
for word in "to be or not to be".split():
    table.update(word)
table.update_many(["to", "be"], weights=[3, 1])
print(table.top(2), table.estimate("not"), table.lower("to"))
"""

    def derive(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Each contender at its best setting; ratios over B log B; where degrading predictions cross."""
        found = {}
        if "Accuracy" in tables:
            found["Best"] = _best(tables["Accuracy"])
        if "LogFactor" in tables:
            best = _best(tables["LogFactor"])
            found["BestLogFactor"] = best
            wide = best[best["budget"] == "entries"].pivot_table(
                index=["source", "order", "n", "B", "seed"], columns="contender", values="W").reset_index()  # fmt: skip
            wide["sketch_ratio"] = wide["thresholded CountSketch, B log B"] / wide[LEARNED]
            wide["table_ratio"] = wide["Space Saving, B log B"] / wide["trivial, perfect"]
            found["Ratios"] = wide[["source", "order", "n", "B", "seed", "sketch_ratio", "table_ratio"]]
        if "Degrading" in tables:
            found["Crossings"] = _crossings(_best(tables["Degrading"]))
        return found

    claims = [
        # 1: predictions buy little
        study.better("W", "spacer", LEARNED, on=MAIN, each=PER, table="Best", id="beats-perfect-predictions",
                     text="SpaceR, one pass and no predictions, has a lower weighted error than learned CountSketch++ with "
                          "perfect predictions, at equal memory, on every main stream",
                     paper="Abstract: predictions buy little; sheet: ratios 1.02 to 1.81"),
        study.better("W", "spacer", LEARNED, on={"source": "bigrams", "order": "natural"}, each=PER, table="Best", report=True,
                     id="bigrams-in-natural-order", text="Against the same on bigrams in natural order (it falls short)",
                     paper="Sheet: 1.11 / 0.97 / 0.86 at B = 64 / 256 / 1024"),
        study.better("W", "spacer", LEARNED, on={"source": [s for s in ZIPF if "1.2" in s]}, each=PER, table="Best", report=True,
                     id="steep-zipf", text="Against the same on Zipf 1.2 (it falls short where the table is large)",
                     paper="Sheet: 0.85 at n = 20,000, B = 1024"),
        study.better("W", "spacer", LEARNED, on={"source": "5-grams"}, each=PER, table="Best", report=True, id="five-grams",
                     text="Against the same on character 5-grams"),
        # 2: as good as counting the true top B
        study.better("W", "spacer", "trivial, perfect", factor=1 / 1.6, on=MAIN, each=PER, table="Best",
                     id="near-offline-optimum", text="SpaceR's weighted error is at most 1.6 times that of counting exactly the "
                     "true top items, on every main stream", paper="Abstract: a trivial mechanism matches; sheet: 1.05 to 1.57"),
        study.better("W", "spacer", "trivial, perfect", factor=1 / 2, on={"source": "bigrams", "order": "natural"}, each=PER,
                     table="Best", id="near-offline-optimum-bigrams",
                     text="and at most 2 times on bigrams in natural order", paper="Sheet: 1.39 / 1.54 / 1.72"),
        study.better("W", "spacer", "trivial, perfect", on={"source": [s for s in ZIPF if "1.2" in s]}, each=PER, table="Best",
                     report=True, id="offline-optimum-steep-zipf", text="The same ratio on Zipf 1.2",
                     paper="Sheet: 1.1 (B = n / 1500) to 2.2 (n / 20)"),
        # 3: the trivial mechanism
        study.better("W", "trivial, perfect", LEARNED, each=PER, table="Best", id="trivial-matches-learned",
                     text="Counting exactly the true top items is no worse than learned CountSketch++ with the same oracle and "
                          "memory, on every stream", paper="Abstract: a trivial mechanism matches them; sheet: 44 of 44 cases"),
        study.always(lambda rows: 1e-12 - rows["off"], table="Law", id="trivial-closed-form",
                     text="On f = n / i its weighted error is (1/N) sum over i > B of f^2"),
        study.always(lambda rows: np.minimum(rows["to_limit"] - 0.85, 1 - rows["to_limit"]), on={"in_range": True}, table="Law",
                     id="trivial-limit", text="and 0.85 to 1 of (n / B) / ln n for 16 <= B <= n / 30"),
        # 4: predictions are worth a log factor of memory
        study.better("W", "Space Saving, B log B", "trivial, perfect", factor=1 / 2, on={"source": ZIPF_1, **PLAIN, **MAIN},
                     each=["source", "B"], table="BestLogFactor", id="space-saving-blogb",
                     text="Space Saving with B log2 B entries has at most twice the error of the trivial mechanism with perfect "
                          "predictions and B, on shuffled Zipf 1", paper="Abstract: B log B memory matches; sheet: 0.3 to 1.6"),
        study.estimate("sketch_ratio", between=(1.2, 4), on=lambda rows: rows["source"].isin(ZIPF_1) & (30 * rows["B"] <= rows["n"]),
                       each=["source", "B"], table="Ratios", id="sketch-blogb",
                       text="Thresholded CountSketch with B log2 B cells is 1.2 to 4 times learned CountSketch++ with B, on "
                            "shuffled Zipf 1", paper="Sheet: 2.3 to 3.3"),
        study.slope("sketch_ratio", along="n", between=(-0.1, 0.2), on={"source": ZIPF_1, "B": 64}, table="Ratios",
                    id="sketch-blogb-no-growth", text="and this ratio does not grow with n from 2,000 to 100,000",
                    paper="Sheet: 0.03 to 0.07"),
        study.estimate("table_ratio", report=True, on=lambda rows: ~rows["source"].isin(ZIPF_1), each=["source", "B"],
                       table="Ratios", id="space-saving-blogb-elsewhere",
                       text="Space Saving with B log2 B entries over the trivial mechanism, elsewhere",
                       paper="Sheet: up to 2.8 on Zipf 0.8, 3.5 on bigrams"),
        study.estimate("sketch_ratio", report=True, on=lambda rows: ~rows["source"].isin(ZIPF_1), each=["source", "B"],
                       table="Ratios", id="sketch-blogb-elsewhere",
                       text="Thresholded CountSketch with B log2 B cells over learned CountSketch++, elsewhere",
                       paper="Sheet: up to 5.4 on Zipf 1.2"),
        # 5: one pass against two
        study.better("W", "spacer", TWO_PASS, on=lambda rows: rows["order"] != "rare first", each=PER, table="Best",
                     id="one-pass-matches-two", text="SpaceR in one pass has a lower error than every two-pass pipeline at equal "
                     "memory, on every stream but rare-first", paper="Abstract: one randomised pass matches two; sheet: 1.4 to 12 "
                     "times with Space Saving"),
        # 6: near-perfect recovery of the head
        *(claim for source, order, name in (("words", "natural", "words"), ("Zipf 1, n = 100000", "shuffled", "zipf"))
          for claim in (
            study.at_most("relative", "spacer", 0.05, on={"source": source, "order": order, **PLAIN}, each="B", table="Best",
                          id=f"head-error-{name}", text=f"The true top B/2 of {source} ({order}) is estimated to 5 %",
                          paper="Sheet: 0.8 / 2.2 / 3.9 % (words), 0.1 / 0.5 / 1.4 % (Zipf 1)"),
            study.at_least("recall", "spacer", 0.98, on={"source": source, "order": order, **PLAIN}, each="B", table="Best",
                           id=f"head-recall-{name}", text=f"and 98 % of it is in the table ({source})",
                           paper="Sheet: 0.998 / 0.995 / 0.987 (words), 1 / 1 / 0.998 (Zipf 1)"))),
        study.at_most("relative", "spacer", 0.05, on={"source": ["bigrams", "Ta Feng"], "order": "natural", **PLAIN},
                      each=["source", "B"], table="Best", report=True, id="head-error-elsewhere",
                      text="The same error on bigrams and Ta Feng in natural order",
                      paper="Sheet: bigrams 13 to 16 % at B = 256, Ta Feng 21 / 8 / 4 %"),
        study.at_least("recall", "spacer", 0.98, on={"source": ["bigrams", "Ta Feng"], "order": "natural", **PLAIN},
                       each=["source", "B"], table="Best", report=True, id="head-recall-elsewhere",
                       text="The same recall on bigrams and Ta Feng in natural order",
                       paper="Sheet: bigrams 0.88 to 0.92 at B = 256, Ta Feng 0.81 / 0.97 / 0.99"),
        study.at_least("overlap", "spacer", 0.98, on={"source": ["words", "Zipf 1, n = 100000"], "order": ["natural", "shuffled"],
                                                      **PLAIN}, each=["source", "order", "B"], table="Best", report=True,
                       id="head-order", text="The true top B/2 among the B/2 largest estimates only"),
        # 7: what the coin is worth
        study.better("W", "spacer", "Space Saving", factor=3, on=MAIN, each=PER, table="Best", id="coin-against-always",
                     text="The coin makes the error at least 3 times less than admitting always, on every main stream",
                     paper="Sheet: 3.6 to 12 times"),
        study.close("W", "Space Saving", "Unbiased Space Saving", within=0.25, on=MAIN, each=PER, table="Best",
                    id="always-is-unbiased", text="Space Saving and its unbiased version are within 25 % of each other"),
        study.worse("W", "sample-and-hold", "Space Saving", on={"source": "words", "order": "natural", "B": [64, 256], **PLAIN},
                    each="B", table="Best", id="hold-is-worse", text="Sample-and-hold is worse than Space Saving on words",
                    paper="Sheet: 3159 / 1088 against 1154 / 277"),
        # 8: against what is in production
        study.better("W", "spacer", "datasketches", factor=3, on=PLAIN, table="Production", id="datasketches",
                     when=lambda tables: ("datasketches" in set(tables["Production"]["contender"]),
                                          "the package datasketches is not installed"),
                     text="At capacity 768 on Zipf 1.2 the error is at least 3 times less than that of Apache DataSketches' "
                          "frequent items", paper="Sheet: 1.50 against 6.5 to 7.8"),
        # 9: limits
        study.worse("W", "spacer", LEARNED, on={"order": "rare first"}, each=PER, table="Best", id="rare-first-hurts",
                    text="On a stream that brings rare items first SpaceR is worse than learned CountSketch++ with perfect "
                         "predictions", paper="Sheet: 186 to 214 against 80 at B = 256"),
        study.better("W", "spacer", "Space Saving", on={"order": ["rare first", "frequent first", "bursts"]}, each=PER,
                     table="Best", report=True, id="adversarial-against-space-saving",
                     text="In adversarial orders, against Space Saving"),
        study.better("W", "spacer", "trivial, perfect", on={"order": ["rare first", "frequent first", "bursts"]}, each=PER,
                     table="Best", report=True, id="adversarial-against-trivial",
                     text="In adversarial orders, against the trivial mechanism", paper="Sheet: frequent-first is 2.1 times trivial"),
        study.estimate("crossing", report=True, each="contender", table="Crossings", id="crossing",
                       text="The share of wrong predictions from which a learned method is worse than SpaceR (1: never)"),
    ]  # fmt: skip

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure | None:
        """Error over that of the trivial mechanism with perfect predictions, by stream."""
        from matplotlib.figure import Figure

        if "Best" not in tables:
            return None
        best = tables["Best"]
        best = best[
            (best["budget"] == "entries") & (best["B"] == (256 if (best["B"] == 256).any() else best["B"].min()))
        ]
        wide = best.pivot_table(index=["source", "order"], columns="contender", values="W", aggfunc="mean", sort=False)
        wide = wide.div(wide["trivial, perfect"], axis=0)[::-1]
        figure = Figure(figsize=(8, 1.5 + 0.3 * len(wide)), layout="constrained")
        axes = figure.subplots()
        shown = {"spacer": "o", LEARNED: "s", "CountSketch++": "D", "Space Saving": "^", "two-pass, Space Saving": "v",
                 "CountSketch": "x"}  # fmt: skip
        for name, marker in shown.items():
            if name in wide:
                axes.plot(wide[name], range(len(wide)), marker, label=name, markersize=8 if name == "spacer" else 5)
        axes.axvline(1, color="grey", linewidth=1)
        axes.set_yticks(range(len(wide)), [f"{source}, {order}" for source, order in wide.index])
        axes.set(xscale="log", xlabel=f"weighted error / that of counting the true top {best['B'].iloc[0]}")
        axes.grid(axis="x", alpha=0.3)
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
        return figure

    # --- gnomon run ---

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        """Read a text once into a table; ``beside`` into one of each admission rule."""
        rules = dict.fromkeys([inputs.admission, *(["inverse", "always", "unbiased", "hold"] if beside else [])])
        tables = {rule: SpaceR(inputs.capacity, rule, inputs.random_state) for rule in rules}
        for block in read_items(inputs.input, inputs.field, inputs.sep):
            for table in tables.values():
                table.update_many(block)
        return study.Outcome(inputs, None, tables)

    def present(self, outcome: study.Outcome) -> Any:
        """Item, estimate, guaranteed lower bound, standard deviation and share of the stream, by falling estimate."""
        import pandas as pd

        table = outcome.result
        rows = [{"item": item, "estimate": count, "at least": table.lower(item), "std": table.std(item),
                 "share": count / table.n_seen_,
                 **{rule: other.estimate(item) for rule, other in list(outcome.results.items())[1:]}}
                for item, count in table.top(outcome.inputs.top)]  # fmt: skip
        seen = f"{table.n_seen_:,} items read, {len(table):,} in the table, smallest count {table.min_count_:,}"
        return [pd.DataFrame(rows, columns=None if rows else ["item", "estimate", "at least", "std", "share"]), seen]

    def picture(self, outcome: study.Outcome) -> Figure:
        """Estimates by rank, with the guaranteed part."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for rule, table in outcome.results.items():
            counts = [count for _, count in table.top()]
            axes.plot(range(1, len(counts) + 1), counts, label=rule)
        axes.set(xlabel="rank", ylabel="estimated frequency")
        if outcome.result.n_seen_:
            axes.set(xscale="log", yscale="log")
        axes.legend(frameon=False)
        return figure

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        """``items.csv`` with all entries, and ``table.spacer``, which ``SpaceR.from_bytes`` reads."""
        table = outcome.result
        with open(directory / "items.csv", "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["item", "estimate", "at least", "std", "share"])
            for item, count in table.top():
                writer.writerow([item, count, table.lower(item), table.std(item), count / table.n_seen_])
        (directory / "table.spacer").write_bytes(table.to_bytes())


def _best(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of each contender's setting of least mean error in each cell."""
    cell = [c for c in ("source", "order", "flip", "B", "budget", "contender") if c in table]
    means = table.groupby([*cell, "setting"], sort=False)["W"].mean().reset_index()
    chosen = means.loc[means.groupby(cell, sort=False)["W"].idxmin(), [*cell, "setting"]]
    return table.merge(chosen, on=[*cell, "setting"])


def _crossings(best: pd.DataFrame) -> pd.DataFrame:
    """For each seed and learned method the share of wrong predictions at which it meets SpaceR, by linear interpolation."""
    import pandas as pd

    rows = []
    best = best[best["budget"] == "entries"]
    for seed, part in best.groupby("seed"):
        wide = part.pivot_table(index="flip", columns="contender", values="W").sort_index()
        flips = wide.index.to_numpy(float)
        for name in wide.columns.drop("spacer"):
            gap = (wide[name] / wide["spacer"]).to_numpy() - 1
            after = int(np.argmax(gap > 0)) if (gap > 0).any() else None
            if after is None or after == 0:
                crossing = 1.0 if after is None else 0.0
            else:
                crossing = float(np.interp(0, gap[after - 1 : after + 1], flips[after - 1 : after + 1]))
            rows.append({"seed": seed, "contender": name, "crossing": crossing, "reached": after is not None})
    return pd.DataFrame(rows)
