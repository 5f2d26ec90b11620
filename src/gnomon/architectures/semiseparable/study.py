"""Is the hierarchical mask right where the difference of prefix sums is not, and what does it cost?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field, field_validator, model_validator

from gnomon import datasets, models, study
from gnomon.architectures.semiseparable.algorithms import ALGORITHMS
from gnomon.architectures.semiseparable.plan import io_bytes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# --- contenders: imports wait until one is called, so that a study is cheap to look at ------------------------------


@dataclass(frozen=True)
class Mask:
    """Log-decays [chunks, Q] -> masks [chunks, Q, Q], in float32 by a compiled kernel."""

    options: dict[str, Any]

    def __call__(self, a: Any) -> Any:
        from gnomon.architectures.semiseparable.mask import segsum

        return segsum(a, **self.options, backend="numba", validate=False)


@dataclass(frozen=True)
class Layer:
    """(x, a, B, C) -> y: the SSD layer with a given mask, tile and split."""

    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, x: Any, a: Any, B: Any, C: Any) -> Any:
        from gnomon.architectures.semiseparable.layer import ssd_scan

        return ssd_scan(x, a, B, C, validate=False, **self.options)


@dataclass(frozen=True)
class Baseline:
    """(x, a, B, C) -> y: a function of ``baselines``."""

    name: str

    def __call__(self, x: Any, a: Any, B: Any, C: Any) -> Any:
        from gnomon.architectures.semiseparable import baselines

        return getattr(baselines, self.name)(x, a, B, C)


@dataclass(frozen=True)
class Fill:
    """Write masks of ``a`` into ``out``; ``copy`` moves finished ones, the least that any method must do."""

    name: str

    def __call__(self, a: np.ndarray, out: np.ndarray, finished: np.ndarray) -> None:
        if self.name == "copy":
            np.copyto(out, finished)
            return
        from gnomon.architectures.semiseparable import compiled

        compiled.mask(a, **ALGORITHMS[self.name], out=out)


def _as_layer(options: dict[str, Any]) -> dict[str, Any]:
    return {("segsum" if name == "method" else name): value for name, value in options.items()}


# --- the data --------------------------------------------------------------------------------------------------------

STRESS = ("benign", "resets -50", "resets -1e4", "1e-6..1e6", "1e-6..1e10")
TREES = ["diff_kogge_stone", "diff_blelloch"]
SCANS = ["diff_sequential", *TREES]


def stress(name: str, chunks: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Log-decays [chunks, length] of a stress set: mild ones, resets among small ones, sixteen orders of magnitude."""
    if name == "benign":
        return -rng.uniform(0, 0.1, (chunks, length))
    if name.startswith("resets"):
        a = -rng.uniform(0, 1e-3, (chunks, length))
        value, share = (-50.0, 20 / 256) if name == "resets -50" else (-1e4, 8 / 256)
        for row in a:
            row[rng.choice(length, max(1, round(share * length)), replace=False)] = value
        return a
    return -(10 ** rng.uniform(-6, 6 if name == "1e-6..1e6" else 10, (chunks, length)))


def _seconds(call: Callable[[], Any]) -> float:
    """Processor seconds of a call on this one thread: the best of five after one to warm up, of two if it is long.

    On an idle machine they are the seconds on the wall; a busy one disturbs them less.
    """
    taken = []
    for _ in range(6):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
        if len(taken) > 2 and sum(taken) > 0.5:
            break
    return min(taken[1:])


# --- is it right -----------------------------------------------------------------------------------------------------


class Masks(study.Experiment):
    """What the experiments on masks share: log-decays, a contender, its errors against direct sums in float64.

    A contender of your own is a function of log-decays, a float32 tensor [chunks, Q], that gives masks [chunks, Q, Q].
    """

    contenders = {
        "hier": Mask(ALGORITHMS["hier"]),
        "hier, block 8": Mask({"method": "hier", "block": 8}),
        "hier, block 32": Mask({"method": "hier", "block": 32}),
        **{name: Mask(options) for name, options in ALGORITHMS.items() if name != "hier"},
    }
    metrics = {
        "max_error": study.lower(log=True),
        "median_error": study.lower(log=True),
        "median_eps": study.lower("eps"),
        "violations": study.lower("entries"),
        "disorder": study.lower("pairs"),
        "inf": study.lower("entries"),
        "nan": study.lower("entries"),
        "wrong": study.lower("share of chunks"),
    }

    def measure(self, problem: Any, contender: Callable[..., Any], rng: np.random.Generator) -> list[dict[str, Any]]:
        from gnomon.architectures.semiseparable.report import measures

        row = measures(contender(problem.a).numpy(), problem.truth)
        row["median_eps"] = row["median_error"] / float(np.finfo(np.float32).eps)
        for name in ("max_error", "median_error"):  # an error of exactly 0 has no logarithm
            row[name] = max(row[name], 1e-12)
        return [row]


def _problem(a: Any) -> SimpleNamespace:
    from gnomon.architectures.semiseparable.report import exact

    return SimpleNamespace(a=a, truth=exact(a))


class Stability(Masks):
    """How wrong is each algorithm on decays made to break it?"""

    cells = [
        *study.grid(data=STRESS, Q=[256], dtype=["float32"]),
        *study.grid(data=["benign", "1e-6..1e6"], Q=[64, 128], dtype=["float32"]),
        {"data": "1e-6..1e6", "Q": 256, "dtype": "bfloat16"},
    ]

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch

        a = torch.from_numpy(stress(cell.data, inputs.chunks, cell.Q, rng).astype(np.float32))
        return _problem(a.to(getattr(torch, cell.dtype)).float())  # a half is promoted before anything else


class Harvested(Masks):
    """And on the decays of a language model: one trained here on Wikipedia, or ``--model``."""

    cells = study.grid(Q=[64, 256])

    @study.stage(version=1, inputs=("model", "steps"), cell=(), seeded=False)
    def decays(self, inputs: Any, cell: Any, seed: int | None) -> dict[str, Any]:
        """Log-decays [rows, T] of every layer and head on held-out articles."""
        from gnomon.architectures.semiseparable.harvest import harvest, train, windows

        articles = datasets.wikipedia()
        held_out = "\n\n".join(articles[-10:])
        if inputs.model is None:
            data: Any = held_out.encode()
            model = train("\n\n".join(articles[:-10]).encode(), inputs.steps)
        else:
            model, data = _converted(inputs.model, held_out)
        a, nll = harvest(model, windows(data, 8, 512))
        return {"a": a.reshape(-1, a.shape[-1]), "nll": nll}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch

        a = self.decays(inputs, cell)["a"]
        chunks = a[:, : a.shape[1] // cell.Q * cell.Q].reshape(-1, cell.Q)
        return _problem(
            torch.from_numpy(chunks[rng.choice(len(chunks), min(inputs.chunks, len(chunks)), replace=False)])
        )


def _converted(ref: str, text: str) -> tuple[Any, list[int]]:
    """A transformers Mamba-2 on this layer, and a text in its tokens."""
    from gnomon.architectures.semiseparable.mixer import use_semiseparable

    lm = models.load(ref)
    return use_semiseparable(lm.copy()), lm.tokenizer(text)["input_ids"]


class Downstream(study.Experiment):
    """What the mask's error does to a layer in float32."""

    cells = study.grid(data=STRESS)
    contenders = {name: Layer(_as_layer(options)) for name, options in ALGORITHMS.items()}
    metrics = {"y_error": study.lower(log=True), "not_finite": study.lower("share")}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch

        length, heads, width, size = inputs.tokens, 4, 16, 16
        a = stress(cell.data, heads, length, rng).T[None]
        x, B, C = (rng.standard_normal((1, length, *s)) for s in ((heads, width), (1, size), (1, size)))
        single = [torch.from_numpy(np.ascontiguousarray(t)).float() for t in (x, a, B, C)]
        exact = Layer({"segsum": "direct", "backend": "torch"})(*(t.double() for t in single))
        return SimpleNamespace(inputs=single, exact=exact.numpy())

    def measure(self, problem: Any, contender: Callable[..., Any], rng: np.random.Generator) -> list[dict[str, Any]]:
        y = contender(*problem.inputs).numpy()
        finite = np.isfinite(y)
        error = np.abs(y - problem.exact)[finite].max(initial=0.0) / np.abs(problem.exact).max()
        return [{"y_error": max(float(error), 1e-12), "not_finite": float(1 - finite.mean())}]


class SplitExactness(study.Experiment):
    """Does the result depend on the tile or on the split, and what crosses the splits' boundaries?"""

    cells = study.grid(Q=[64, 128, 256], Ls=[64, 128, 256, 512, 1024, 2048])
    contenders = {"split": Layer()}
    metrics = {"split_error": study.lower(), "boundary": study.lower("bytes")}

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return cell.Ls >= cell.Q

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch

        length, heads, width, size = inputs.tokens, 4, 16, 16
        rng = np.random.default_rng([cell.seed, length])  # one problem for every tile and split
        shapes = ((1, length, heads, width), (1, length, 1, size), (1, length, 1, size))
        x, B, C = (torch.from_numpy(rng.standard_normal(s)) for s in shapes)
        a = -torch.from_numpy(rng.uniform(0, 0.1, (1, length, heads)))
        exact = Layer({"segsum": "direct", "backend": "torch"})(x, a, B, C)
        shape = {"b": 1, "T": length, "h": heads, "P": width, "N": size, "g": 1, "Q": cell.Q}
        return SimpleNamespace(inputs=[t.float() for t in (x, a, B, C)], exact=exact, shape=shape, Q=cell.Q, Ls=cell.Ls)

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        y = Layer({**contender.options, "chunk_size": problem.Q, "split": problem.Ls})(*problem.inputs)
        classic = io_bytes(**problem.shape, Ls=problem.Q)["boundary"]
        boundary = io_bytes(**problem.shape, Ls=problem.Ls)["boundary"]
        splits = problem.Ls < problem.shape["T"]
        exactly = boundary * problem.Ls == classic * problem.Q if splits else boundary == 0
        scale = float(problem.exact.abs().max())
        return [
            {"split_error": float((y - problem.exact).abs().max()) / scale, "boundary": boundary, "exactly": exactly}
        ]


# --- what it costs ---------------------------------------------------------------------------------------------------


class MaskSpeed(study.Experiment):
    """Masks of 5.2 million entries by compiled kernels on one thread, beside copying them."""

    seeds = 1
    repeats = 9
    cells = study.grid(Q=[64, 128, 256])
    contenders = {n: Fill(n) for n in ("hier", "hier_log", "direct", "diff_sequential", "diff_kogge_stone", "copy")}
    metrics = {"mask_s": study.lower("s", log=True, timed=True)}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        chunks = inputs.entries // cell.Q**2
        a = stress("benign", chunks, cell.Q, rng).astype(np.float32)
        out, finished = (np.zeros((chunks, cell.Q, cell.Q), np.float32) for _ in range(2))
        finished += rng.random(finished.shape, dtype=np.float32)
        return SimpleNamespace(a=a, out=out, finished=finished)

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        seconds = _seconds(lambda: contender(problem.a, problem.out, problem.finished))
        return [{"mask_s": seconds, "bytes_per_s": problem.out.nbytes / seconds}]


HEADS, WIDTH = 8, 64


def _layer_problem(length: int, size: int, rng: np.random.Generator) -> list[Any]:
    import torch

    x, B, C = (rng.standard_normal((1, length, *s), dtype=np.float32) for s in ((HEADS, WIDTH), (1, size), (1, size)))
    a = -rng.uniform(0, 0.1, (1, length, HEADS)).astype(np.float32)
    return [torch.from_numpy(t) for t in (x, a, B, C)]


@dataclass(frozen=True)
class Transformers:
    """The torch path of transformers' Mamba-2, in its own terms: the step is a and the rate 1, so that x is x / a."""

    def __call__(self, x: Any, a: Any, B: Any, C: Any) -> Any:
        import torch
        from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

        limits = (-float("inf"), float("inf"))
        return mamba2_chunk_scan(x / a[..., None], a, torch.ones(a.shape[-1]), B, C, chunk_size=64, dt_limit=limits)


class LayerSpeed(study.Experiment):
    """The layer at 8 heads of 64 on one thread, beside the minimal listing, the library's and causal attention."""

    seeds = 1
    cells = study.grid(T=[256, 512, 1024, 2048, 4096, 8192], N=[64, 128])
    contenders = {
        "ssd": Layer(),
        "ssd_minimal": Baseline("ssd_minimal"),
        "transformers": Transformers(),
        "attention": Baseline("attention"),
    }
    metrics = {"layer_s": study.lower("s", log=True, timed=True)}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return SimpleNamespace(T=cell.T, N=cell.N, inputs=_layer_problem(cell.T, cell.N, rng))

    def measure(self, problem: Any, contender: Callable[..., Any], rng: np.random.Generator) -> list[dict[str, Any]]:
        import torch

        with torch.no_grad():
            seconds = _seconds(lambda: contender(*problem.inputs))
        moved = io_bytes(1, problem.T, HEADS, WIDTH, problem.N, 1, 64, -(-problem.T // 64) * 64, itemsize=4)["total"]
        return [{"layer_s": seconds, "tokens_per_s": problem.T / seconds, "bytes_per_s": moved / seconds}]


class SplitSpeed(study.Experiment):
    """One walk over the whole sequence against one for every tile, where the heads alone keep the thread busy."""

    seeds = 1
    repeats = 9
    cells = study.grid(T=[512, 1024, 2048, 4096], Q=[64, 128])
    contenders = {"whole": "whole", "per tile": "tile"}
    metrics = {"split_s": study.lower("s", log=True, timed=True)}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return SimpleNamespace(T=cell.T, Q=cell.Q, inputs=_layer_problem(cell.T, 128, rng))

    def measure(self, problem: Any, contender: str, rng: np.random.Generator) -> list[dict[str, Any]]:
        import torch

        layer = Layer({"chunk_size": problem.Q, "split": problem.T if contender == "whole" else problem.Q})
        with torch.no_grad():
            return [{"split_s": _seconds(lambda: layer(*problem.inputs))}]


# --- the study -------------------------------------------------------------------------------------------------------

SINGLE = {"Q": 256, "dtype": "float32"}
STABLE = ["hier", "hier, block 8", "hier, block 32"]


def _none(*columns: str) -> Callable[[Any], Any]:
    return lambda rows: (rows[list(columns)] == 0).all(axis=1)


class SemiseparableStudy(study.Study):
    """Stable, fast 1-semiseparable masks and split-sequence SSD."""

    title = "Stable and fast 1-semiseparable masks, and split-sequence SSD"
    paper = "Split-sequence SSD with hierarchy-aware segment sums (NeurIPS 2026; only its abstract was available)"
    bibtex = """@inproceedings{semiseparable2026,
  title     = {Stable and Fast 1-Semiseparable Masks with Split-Sequence State Space Duality},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2026},
  note      = {Only the abstract was available; authors and exact title to be completed from the proceedings}
}"""
    command = "gnomon run semiseparable --decays decays.npy"
    example = """
import torch

from gnomon.architectures import segsum, segsum_report, ssd

a = -torch.rand(4, 256) * 0.1  # log-decays, 4 chunks of 256 tokens
a[:, 100] = -1e4  # a reset
mask = segsum(a)  # (4, 256, 256), every entry in [0, 1]
print(segsum_report(a))

x, dt = torch.randn(1, 512, 2, 64), torch.rand(1, 512, 2)
B, C = torch.randn(2, 1, 512, 1, 32)
y = ssd(x, dt, -torch.ones(2), B, C, chunk_size=64)
"""
    question = (
        "Does a mask built from products of numbers in [0, 1] stay right where the difference of prefix sums does not, "
        "and is the layer on it faster than the usual ones and than attention from one or two thousand tokens on?"
    )
    method = (
        "The mask L[i, j] = exp(a[j+1] + ... + a[i]) is cut into blocks. Inside a diagonal block row i is exp(a[i]) "
        "times row i - 1. A block below the diagonal is the outer product of the prefixes of its rows and of what its "
        "columns keep until the block begins. So there is one exponential a token and no subtraction. The layer walks "
        "tiles in order with its state held locally; how many walks share a sequence is chosen apart from the tile."
    )
    departures = [
        "The paper's text and kernels were not available: formulas, cost model and kernels are reconstructed from its "
        "abstract and from the public Mamba-2 algorithm.",
        "The products over blocks between two blocks are carried as running factors of the columns instead of a second "
        "mask over block totals. Cost and rank are the same; the mask becomes exactly monotone along rows and columns.",
        "Speed is measured on a CPU with Numba kernels on one thread; the paper's figures are of an H100. There "
        "exponentials decide, here too, but a vectorised exp (SVML) would shrink the ratio; none is installed.",
        "The attention peer is PyTorch's CPU flash kernel, the SSD peers are the minimal listing and transformers' "
        "torch path: mamba-ssm and FlashAttention need a GPU (see benchmarks/gpu).",
        "Times are processor seconds of one thread, best of five in each of the interleaved repeats.",
        "For the difference forms the decay into and out of a tile is taken from the prefix sum itself, as kernels in "
        "use do, so that their layer is not made worse than it is.",
    ]

    class Inputs(study.Inputs):
        """What a check can be told."""

        seeds: int = Field(5, ge=1, description="number of seeds")
        chunks: int = Field(200, ge=1, description="chunks of decays a seed")
        tokens: int = Field(2048, ge=512, multiple_of=256, description="length of the sequences of the exact checks")
        steps: int = Field(150, ge=1, description="training steps of the default model whose decays are harvested")
        model: models.ModelRef | None = Field(None, description="a transformers Mamba-2 to harvest decays from")
        entries: int = Field(80 * 256**2, ge=256**2, description="mask entries of a timing")

        scales = {
            "smoke": {
                "seeds": 1, "chunks": 10, "tokens": 512, "steps": 2, "entries": 256**2,
                "Stability": {"cells": {"Q": [64]}},
                "Harvested": {"cells": {"Q": [64]}},
                "Downstream": {"cells": {"data": ["benign", "resets -1e4"]}},
                "SplitExactness": {"cells": [{"Q": 64, "Ls": 64}, {"Q": 64, "Ls": 256}]},
                "MaskSpeed": {"cells": {"Q": [64]}},
                "LayerSpeed": {"cells": {"T": [512], "N": [64]}},
                "SplitSpeed": {"cells": {"T": [512], "Q": [64]}},
            },
            "laptop": {},
            "extended": {"seeds": 20, "steps": 1500},
        }  # fmt: skip

    class Run(study.Inputs):
        """What a run can be told."""

        model: models.ModelRef | None = Field(None, description="a transformers Mamba-2: a folder or a hub name")
        text: datasets.TextPath | None = Field(None, description="text to read it on; default: Wikipedia")
        decays: Path | None = Field(None, description="or log-decays, an .npy file [..., T]")
        chunk_size: int | None = Field(None, ge=1, description="chunk length; default the model's, or the whole axis")

        @field_validator("decays")
        @classmethod
        def _exists(cls, value: Path | None) -> Path | None:
            if value is not None and not value.expanduser().is_file():
                raise ValueError("expected an .npy file that exists")
            return None if value is None else value.expanduser()

        @model_validator(mode="after")
        def _one(self) -> Any:
            if (self.model is None) == (self.decays is None):
                raise ValueError("give --model or --decays, one of the two")
            return self

    experiments = [Stability, Harvested, Downstream, SplitExactness, MaskSpeed, LayerSpeed, SplitSpeed]

    def derive(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """How far ahead of attention, from which length on, and how near to the speed of memory."""
        import pandas as pd

        found = {}
        if "LayerSpeed" in tables:
            wide = tables["LayerSpeed"].pivot_table("layer_s", ["N", "T", "repeat"], "contender").reset_index()
            wide["advantage"] = wide["attention"] / wide["ssd"]
            found["Crossover"] = wide[["N", "T", "repeat", "advantage"]]
            first = []
            for (size, repeat), rows in wide.sort_values("T").groupby(["N", "repeat"]):
                slower = rows.loc[rows["advantage"] <= 1, "T"]
                later = rows.loc[rows["T"] > slower.max(), "T"] if len(slower) else rows["T"]
                if len(later):
                    first.append({"N": size, "repeat": repeat, "first_T": int(later.min())})
            found["First"] = pd.DataFrame(first, columns=["N", "repeat", "first_T"])
        if "MaskSpeed" in tables:
            speed = tables["MaskSpeed"].pivot_table("bytes_per_s", ["Q", "repeat"], "contender").reset_index()
            speed["of_copy"] = speed["hier"] / speed["copy"]
            found["Bandwidth"] = speed[["Q", "repeat", "of_copy"]]
            if "LayerSpeed" in tables:
                layer = tables["LayerSpeed"].query("contender == 'ssd'").copy()
                layer["layer_of_copy"] = layer["bytes_per_s"] / speed["copy"].median()
                found["LayerBandwidth"] = layer[["T", "N", "repeat", "layer_of_copy"]]
        return found

    claims = [
        study.always(
            lambda rows: 5e-6 - rows["max_error"], table="Stability", id="product-accurate",
            on={"contender": STABLE, "dtype": "float32", "data": list(STRESS)},
            text="hier (product): the largest relative error is at most 5e-6 on every stress set",
            paper="numerically stable 1-SS masks (bound of this reconstruction)",
        ),
        study.always(
            lambda rows: 1e-4 - rows["max_error"], table="Stability", id="sums-accurate",
            on={"contender": ["direct", "hier_log"], "dtype": "float32", "data": list(STRESS)},
            text="direct and hier (log): the largest relative error is at most 1e-4 on every stress set",
        ),
        study.always(
            _none("violations", "inf", "nan"), table="Stability", id="no-violations",
            on={"contender": [*STABLE, "hier_log", "direct"]},
            text="hier and direct: no entry above 1, none infinite or NaN, in float32 and from bfloat16",
        ),
        study.always(
            _none("disorder"), table="Stability", id="monotone", on={"contender": STABLE},
            text="hier (product): no neighbours out of order by more than 4 eps",
        ),
        study.always(
            lambda rows: rows["violations"] > 0, table="Stability", id="trees-violate",
            on={**SINGLE, "contender": TREES, "data": ["resets -50", "resets -1e4", "1e-6..1e6"]},
            text="the difference form on a tree scan gives entries above 1 on the reset and log-uniform sets",
            paper="the difference form is unstable (also state-spaces/mamba PR 713, vllm PR 37501)",
        ),
        study.always(
            lambda rows: rows["inf"] > 0, table="Stability", id="trees-overflow",
            on={**SINGLE, "contender": TREES, "data": "1e-6..1e10"},
            text="and infinities on decays from 1e-6 to 1e10",
        ),
        study.better(
            "max_error", "hier", than=["diff_clamped"], factor=1000, each=["data"], table="Stability",
            on={**SINGLE, "data": ["resets -1e4", "1e-6..1e6"]}, id="clamping-hides",
            text="capping the exponent at 0 leaves an error more than 1000 times that of hier (product)",
        ),
        study.better(
            "max_error", "hier", than=["direct"], each=["data"], table="Stability", on=SINGLE, report=True,
            id="product-and-direct", text="largest error, direct over hier (product)",
        ),
        study.better(
            "median_error", "hier_log", than=SCANS, each=["data"], table="Stability", on=SINGLE, id="median-log",
            text="hier (log): median error below that of the difference form, every scan, every set",
            paper="lower median error than the diff form",
        ),
        study.better(
            "median_error", "hier", than=SCANS, each=["data"], table="Stability",
            on={**SINGLE, "data": list(STRESS[1:])}, id="median-product",
            text="hier (product): median error below that of the difference form, every scan, every set but the benign",
        ),
        study.close(
            "median_eps", "hier", TREES, within=2e-7 / 2**-23, table="Stability", on={**SINGLE, "data": "benign"},
            id="median-benign", text="hier (product) ties with the tree scans on benign decays: within 2e-7",
        ),
        study.better(
            "median_error", "hier", than=["diff_sequential"], table="Stability", on={**SINGLE, "data": "benign"},
            id="median-benign-sequential", text="hier (product) beats the sequential scan on benign decays",
        ),
        study.always(
            lambda rows: (rows["max_error"] <= 5e-6) & _none("violations", "inf", "nan", "disorder")(rows),
            table="Harvested", on={"contender": STABLE}, id="harvested-stable",
            text="hier (product) is as accurate on the decays of a trained model",
        ),
        study.better(
            "median_error", "hier", than=SCANS, table="Harvested", each=["Q"], report=True, id="harvested-median",
            text="median error on a trained model's decays, difference forms over hier (product)",
        ),
        study.better(
            "y_error", "hier", than=[*SCANS, "diff_clamped"], each=["data"], report=True, id="downstream",
            text="error of a float32 layer's output, difference forms over hier (product)",
        ),
        study.always(
            lambda rows: 1e-5 - rows["split_error"], table="SplitExactness", id="split-exact",
            text="the output is the same for every tile and split, within 1e-5 of its largest entry",
            paper="split-sequence: parallel split independent of the compute tile",
        ),
        study.always(
            "exactly", table="SplitExactness", id="split-traffic",
            text="boundary traffic falls exactly as Q / Ls, to nothing with one split",
        ),
        study.better(
            "mask_s", "hier", than=["diff_sequential", "diff_kogge_stone"], factor=3, each=["Q"], id="mask-vs-diff",
            text="the mask: hier at least 3 times as fast as the difference form",
            paper="on an H100: as fast as the diff form",
        ),
        study.better(
            "mask_s", "hier", than=["direct"], factor=4, each=["Q"], id="mask-vs-direct",
            text="the mask: hier at least 4 times as fast as direct sums", paper="on an H100: 1.35-1.40 times",
        ),
        study.better(
            "mask_s", "hier", than=["copy"], factor=1 / 1.5, each=["Q"], id="mask-vs-copy",
            text="the mask: hier within 1.5 times of copying it",
        ),
        study.estimate(
            "of_copy", at_least=0.8, table="Bandwidth", each=["Q"], id="mask-bandwidth",
            text="the mask kernel writes at 0.8 or more of the rate of a copy", paper="91 % of an H100's bandwidth",
        ),
        study.better(
            "layer_s", "ssd", than=["ssd_minimal"], factor=1.8, each=["T", "N"],
            on={"T": [512, 1024, 2048, 4096, 8192]}, id="layer-vs-minimal",
            text="the layer: at least 1.8 times as fast as the minimal listing from 512 tokens on",
            paper="4.1 times over the Triton kernel",
        ),
        study.better(
            "layer_s", "ssd", than=["transformers"], each=["T", "N"], report=True, id="layer-vs-transformers",
            text="the layer's speed over transformers' torch path",
        ),
        study.better(
            "layer_s", "ssd", than=["attention"], each=["T", "N"], on={"T": [1024, 2048, 4096, 8192]},
            id="layer-vs-attention", text="the layer is faster than causal attention from 1024 tokens on",
            paper="from 1-2k tokens on against FlashAttention 4",
        ),
        study.slope(
            "advantage", along="T", between=(0.5, 1.2), table="Crossover", each=["N"], unit="repeat",
            on={"T": [1024, 2048, 4096, 8192]}, id="advantage-slope",
            text="the advantage over attention grows as T to a power between 0.5 and 1.2",
        ),
        study.estimate(
            "first_T", table="First", each=["N"], report=True, id="crossover",
            text="the first length from which the layer stays faster than attention",
        ),
        study.better(
            "split_s", "whole", than=["per tile"], each=["T", "Q"], on={"T": [2048, 4096]}, id="split-speed-long",
            text="with heads enough for every worker, one walk a sequence is no slower than one a tile from 2048 tokens on",
            paper="split-sequence: less boundary traffic",
        ),
        study.better(
            "split_s", "whole", than=["per tile"], factor=0.9, each=["T", "Q"], on={"T": [512, 1024]},
            id="split-speed-short", text="and at most 1.11 times as slow below",
        ),
        study.estimate(
            "layer_of_copy", table="LayerBandwidth", each=["T", "N"], report=True, id="layer-bandwidth",
            text="bytes that the layer must move a second, over the rate of a copy",
        ),
    ]  # fmt: skip

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure | None:
        """Largest error by stress set, and the layer's time by length."""
        from matplotlib.figure import Figure

        if "Stability" not in tables or "LayerSpeed" not in tables:
            return None
        figure = Figure(figsize=(10, 4), layout="constrained")
        left, right = figure.subplots(1, 2)
        rows = tables["Stability"]
        rows = rows[(rows["Q"] == rows["Q"].max()) & (rows["dtype"] == "float32")]
        sets = [s for s in STRESS if s in set(rows["data"])]
        for name, marker in {"hier": "o", "hier_log": "s", "direct": "D", "diff_sequential": "x",
                             "diff_kogge_stone": "^", "diff_blelloch": "v", "diff_clamped": "+"}.items():  # fmt: skip
            worst = rows[rows["contender"] == name].groupby("data")["max_error"].max()
            left.plot([min(worst[s], 1e6) for s in sets], range(len(sets)), marker, label=name)
        left.set_yticks(range(len(sets)), sets)
        left.set(xscale="log", xlabel="largest relative error of the mask (above 1e6: shown at 1e6)")
        left.legend(frameon=False, fontsize=8)
        speed = tables["LayerSpeed"]
        size = speed["N"].max()
        for name, group in speed[speed["N"] == size].groupby("contender", sort=False):
            right.plot(group.groupby("T")["layer_s"].median() * 1e3, "o-", label=name)
        right.set(xscale="log", yscale="log", xlabel="tokens", ylabel="ms")
        right.set_title(f"layer, 8 heads of 64, N = {size}, one thread")
        right.legend(frameon=False, fontsize=8)
        return figure

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        """What each algorithm makes of a person's own decays; ``beside`` changes nothing, for all are compared."""
        from gnomon.architectures.semiseparable.harvest import harvest, windows
        from gnomon.architectures.semiseparable.report import segsum_report

        model, chunk_size = None, inputs.chunk_size
        if inputs.decays is not None:
            try:
                a = np.load(inputs.decays, allow_pickle=False)
            except ValueError as error:
                raise ValueError(f"--decays: {inputs.decays} is no .npy file of numbers ({error})") from error
            if a.ndim == 0 or a.dtype.kind != "f":
                raise ValueError(f"--decays: expected floats [..., T], got {a.dtype} of shape {a.shape}")
        else:
            text = datasets.text_file(inputs.text) if inputs.text else "\n\n".join(datasets.wikipedia()[-10:])
            model, tokens = _converted(inputs.model, text)
            chunk_size = chunk_size or min(model.config.chunk_size, 256)
            a, _ = harvest(model, windows(tokens, min(8, max(1, len(tokens) // 512)), min(512, len(tokens))))
        report = segsum_report(a, chunk_size=chunk_size)
        timing = _timing(a, chunk_size or a.shape[-1])
        return study.Outcome(inputs, model, {"segsum": (report, timing)})

    def present(self, outcome: study.Outcome) -> Any:
        """Errors and times of every algorithm on these decays, and how much the difference form gets wrong."""
        report, timing = outcome.result
        wrong = report.loc[SCANS, "wrong"]
        lines = ", ".join(
            f"{name.removeprefix('diff_').replace('_', '-')} {share:.1%}" for name, share in wrong.items()
        )
        return {
            "errors": report.reset_index(),
            "timing": timing,
            "summary": f"chunks that the difference form gets wrong (by more than 0.1 %, or above 1), by scan: {lines}; "
                       f"hier: {report.loc['hier', 'wrong']:.1%}",
        }  # fmt: skip

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        """The model on this layer; a plain transformers Mamba-2 reads the same files."""
        if outcome.problem is None:
            raise ValueError("--save keeps a converted model: give --model")
        outcome.problem.save_pretrained(directory)


def _timing(a: np.ndarray, length: int) -> pd.DataFrame:
    """Milliseconds of every algorithm, and of a copy, on up to 512 of the chunks."""
    import pandas as pd

    a = np.asarray(a, np.float32)
    chunks = np.ascontiguousarray(a[..., : a.shape[-1] // length * length].reshape(-1, length)[:512])
    out, finished = (
        np.empty((len(chunks), length, length), np.float32),
        np.ones((len(chunks), length, length), np.float32),
    )
    rows = [{"algorithm": name, "ms": 1e3 * _seconds(partial(Fill(name), chunks, out, finished))}
            for name in (*ALGORITHMS, "copy")]  # fmt: skip
    table = pd.DataFrame(rows)
    return table.assign(times=table["ms"] / table["ms"].iloc[0])
