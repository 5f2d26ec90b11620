"""Masks and SSD layers beside their peers, in one run; and how time grows with the length.

    OMP_NUM_THREADS=1 python benchmarks/architectures/bench_semiseparable.py [--json FILE] [--quick] [--clock cpu]

Peers: the difference form and direct sums in the same compiled back end and in torch, a plain copy; the minimal SSD
listing of arXiv 2405.21060, transformers' torch path, the recurrence, causal attention (PyTorch's flash kernel).
mamba-ssm, fla-core and FlashAttention need a GPU: see benchmarks/gpu/bench_semiseparable.py. Best of five, all in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

from gnomon.architectures import segsum, ssd
from gnomon.architectures.semiseparable import compiled, ssd_scan
from gnomon.architectures.semiseparable.baselines import attention, recurrence, ssd_minimal

ROOT = Path(__file__).resolve().parents[1]
HEADS, WIDTH = 8, 64
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock = CLOCKS["wall"]


def best(calls: dict[str, Callable[[], Any]], repeats: int = 5) -> dict[str, float]:
    """Best milliseconds of each call, every one in turn, after one to warm up."""
    times: dict[str, float] = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start = clock()
            call()
            times[name] = min(times[name], 1e3 * (clock() - start))
    return times


def show(title: str, times: dict[str, float], mine: str) -> None:
    print(title)
    for name, ms in times.items():
        print(f"  {name:24s} {ms:10.2f} ms   {ms / times[mine]:7.2f} x")


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = ROOT / "results" / "architectures" / "semiseparable.json"
    parser.add_argument("--json", type=Path, default=default, help="where to write the figures")
    parser.add_argument("--quick", action="store_true", help="up to 1024 tokens only")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for one thread on a busy machine")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    if options.clock == "cpu" and threads > 1:
        parser.error("--clock cpu adds up the threads: set OMP_NUM_THREADS=1")
    global clock
    clock = CLOCKS[options.clock]
    print(f"{threads} thread(s), {options.clock} time, torch {torch.__version__}, {platform.machine()}\n")
    rows: list[dict[str, Any]] = []

    def keep(what: str, times: dict[str, float], mine: str, **where: int) -> None:
        show(f"{what}, {', '.join(f'{k} = {v}' for k, v in where.items())}", times, mine)
        rows.extend({"what": what, **where, "name": n, "ms": ms, "ratio": ms / times[mine]} for n, ms in times.items())

    for chunk in (64, 128, 256):
        keep("mask", masks(chunk), "hier", Q=chunk)
    lengths = (256, 512, 1024) if options.quick else (256, 512, 1024, 2048, 4096, 8192)
    for size in (64, 128):
        for length in lengths:
            keep("layer", layers(length, size), "ssd", N=size, T=length)
        ours = [
            next(r["ms"] for r in rows if r["name"] == "ssd" and r.get("N") == size and r["T"] == t) for t in lengths
        ]
        print(f"N = {size}: time grows as T^{np.polyfit(np.log(lengths), np.log(ours), 1)[0]:.2f}\n")
    keep("forward and backward", training(lengths[-2], 64), "ssd", N=64, T=lengths[-2])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result = {
        "threads": threads,
        "clock": options.clock,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "peak_mb": peak,
        "rows": rows,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(options.json.read_text()) if options.json.exists() else []
    kept = [row for row in before if row["threads"] != threads]  # one run for each number of threads
    made = [{"threads": threads, "clock": result["clock"], **row} for row in result["rows"]]
    text = json.dumps(sorted([*kept, *made], key=lambda row: row["threads"]), indent=1)
    temporary = options.json.with_suffix(".part")
    temporary.write_text(text)
    os.replace(temporary, options.json)
    print(f"\nwritten: {options.json}")


if __name__ == "__main__":
    main()
