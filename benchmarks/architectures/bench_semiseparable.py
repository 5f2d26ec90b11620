"""Masks and SSD layers beside their peers, in one run; and how time grows with the length.

    OMP_NUM_THREADS=1 python benchmarks/architectures/bench_semiseparable.py [--json FILE] [--quick] [--clock cpu]

Peers: the difference form and direct sums in the same compiled back end and in torch, a plain copy; the minimal SSD
listing of arXiv 2405.21060, transformers' torch path, the recurrence, causal attention (PyTorch's flash kernel).
mamba-ssm, fla-core and FlashAttention need a GPU: see benchmarks/gpu/bench_semiseparable.py. Best of five, all in turn.
"""

from __future__ import annotations

import json
import os
import platform
import resource
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

from gnomon.architectures import segsum, ssd
from gnomon.architectures.semiseparable import compiled, ssd_scan
from gnomon.architectures.semiseparable.baselines import attention, recurrence, ssd_minimal
from gnomon.study import bench

HEADS, WIDTH = 8, 64
clock: Any = "wall"


def best(calls: dict[str, Callable[[], Any]], repeats: int = 5) -> dict[str, float]:
    """Best milliseconds of each call."""
    return {name: 1e3 * spent for name, spent in bench.seconds(calls, repeats, clock=clock).items()}


def masks(chunk: int) -> dict[str, float]:
    """5.2 million mask entries."""
    count = 80 * 256**2 // chunk**2
    a = np.random.default_rng(0).uniform(-0.1, 0, (count, chunk)).astype(np.float32)
    out, finished = np.empty((count, chunk, chunk), np.float32), np.ones((count, chunk, chunk), np.float32)
    tensor = torch.from_numpy(a)
    lower = torch.ones(chunk, chunk, dtype=torch.bool).tril()

    def minimal() -> torch.Tensor:
        sums = tensor[..., None].expand(-1, -1, chunk).masked_fill(~lower.tril(-1), 0).cumsum(-2)
        return sums.masked_fill(~lower, -torch.inf).exp()

    def difference() -> torch.Tensor:
        sums = tensor.cumsum(-1)
        return (sums[:, :, None] - sums[:, None, :]).masked_fill(~lower, -torch.inf).exp()

    return best({
        "hier": lambda: compiled.mask(a, out=out),
        "hier, log form": lambda: compiled.mask(a, form="log", out=out),
        "diff": lambda: compiled.mask(a, "diff", out=out),
        "direct": lambda: compiled.mask(a, "direct", out=out),
        "copy": lambda: np.copyto(out, finished),
        "torch hier": lambda: segsum(tensor, validate=False),
        "torch diff": difference,
        "torch ssd_minimal segsum": minimal,
    })  # fmt: skip


def problem(length: int, size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, B, C = (torch.randn(1, length, *s, generator=generator) for s in ((HEADS, WIDTH), (1, size), (1, size)))
    return [x, -0.1 * torch.rand(1, length, HEADS, generator=generator), B, C]


@torch.no_grad()
def layers(length: int, size: int) -> dict[str, float]:
    inputs = problem(length, size)
    x, a, B, C = inputs
    dt, A = -a, -torch.ones(HEADS)
    calls = {
        "ssd": lambda: ssd(x, dt, A, B, C, validate=False),
        "ssd, one walk a tile": lambda: ssd(x, dt, A, B, C, split=64, validate=False),
        "ssd, torch back end": lambda: ssd(x, dt, A, B, C, backend="torch", validate=False),
        "ssd_minimal": lambda: ssd_minimal(x * dt[..., None], a, B, C),
        "transformers": lambda: mamba2_chunk_scan(x, dt, A, B, C, chunk_size=64),
        "attention": lambda: attention(*inputs),
    }
    if length <= 1024:
        calls["recurrence"] = lambda: recurrence(*inputs)
    return best(calls)


def training(length: int, size: int) -> dict[str, float]:
    """Forward and backward, against autograd through the minimal listing."""
    inputs = [t.requires_grad_() for t in problem(length, size)]

    def step(layer: Callable[..., torch.Tensor]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(layer(*inputs).sum(), inputs)

    return best({"ssd": step(lambda *t: ssd_scan(*t, validate=False)), "ssd_minimal": step(ssd_minimal)}, repeats=3)


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--quick", action="store_true", help="up to 1024 tokens only")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    if options.clock == "cpu" and threads > 1:
        parser.error("--clock cpu adds up the threads: set OMP_NUM_THREADS=1")
    global clock
    clock = options.clock
    print(f"{threads} thread(s), {options.clock} time, torch {torch.__version__}, {platform.machine()}\n")
    table = bench.Table()

    def keep(what: str, times: dict[str, float], mine: str, **where: int) -> None:
        place = ", ".join(f"{k} = {v}" for k, v in where.items())
        for name, ms in times.items():
            table.add(f"{what}, {place}: {name}", ms, "ms", ms / times[mine], threads=threads)

    for chunk in (64, 128, 256):
        keep("mask", masks(chunk), "hier", Q=chunk)
    lengths = (256, 512, 1024) if options.quick else (256, 512, 1024, 2048, 4096, 8192)
    for size in (64, 128):
        ours = []
        for length in lengths:
            times = layers(length, size)
            ours.append(times["ssd"])
            keep("layer", times, "ssd", N=size, T=length)
        exponent = float(np.polyfit(np.log(lengths), np.log(ours), 1)[0])
        table.add(f"layer, N = {size}: exponent of the time in T", exponent, "", threads=threads)
    keep("forward and backward", training(lengths[-2], 64), "ssd", N=64, T=lengths[-2])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    table.add("peak memory of all", peak, "MB", threads=threads)
    before = json.loads(options.json.read_text()) if options.json.exists() else []
    kept = [row for row in before if row["threads"] != threads]  # one run for each number of threads
    table.rows[:] = sorted([*kept, *table.rows], key=lambda row: row["threads"])
    table.save(options.json)


if __name__ == "__main__":
    main()
