"""What it costs: masks, layers, splits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from gnomon import study
from gnomon.architectures.semiseparable.plan import io_bytes
from gnomon.architectures.semiseparable.study.contenders import Baseline, Fill, Layer
from gnomon.architectures.semiseparable.study.data import least_seconds, stress


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
        seconds = least_seconds(lambda: contender(problem.a, problem.out, problem.finished))
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
            seconds = least_seconds(lambda: contender(*problem.inputs))
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
            return [{"split_s": least_seconds(lambda: layer(*problem.inputs))}]
