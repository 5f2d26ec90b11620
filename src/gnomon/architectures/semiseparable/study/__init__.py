"""Is the hierarchical mask right where the difference of prefix sums is not, and what does it cost?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field, field_validator, model_validator

from gnomon import datasets, models, study
from gnomon.architectures.semiseparable.algorithms import ALGORITHMS
from gnomon.architectures.semiseparable.study.accuracy import (
    Downstream,
    Harvested,
    SplitExactness,
    Stability,
    converted,
)
from gnomon.architectures.semiseparable.study.contenders import Fill
from gnomon.architectures.semiseparable.study.cost import LayerSpeed, MaskSpeed, SplitSpeed
from gnomon.architectures.semiseparable.study.data import SCANS, STRESS, TREES, least_seconds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


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
            model, tokens = converted(inputs.model, text)
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
    rows = [{"algorithm": name, "ms": 1e3 * least_seconds(partial(Fill(name), chunks, out, finished))}
            for name in (*ALGORITHMS, "copy")]  # fmt: skip
    table = pd.DataFrame(rows)
    return table.assign(times=table["ms"] / table["ms"].iloc[0])
