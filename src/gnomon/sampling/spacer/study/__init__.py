"""Is one coin worth as much as perfect predictions of the heavy items?"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from gnomon import study
from gnomon.sampling.spacer import kernel
from gnomon.sampling.spacer.lines import read_items
from gnomon.sampling.spacer.method import SpaceR
from gnomon.sampling.spacer.study.experiments import OWN, ZIPF, Accuracy, Degrading, Law, LogFactor, Production
from gnomon.study.protocol import Options

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


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
