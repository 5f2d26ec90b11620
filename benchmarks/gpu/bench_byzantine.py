"""Builds, checks and times the Triton trimmed mean on one GPU, within ten minutes.

    python benchmarks/gpu/bench_byzantine.py [--json FILE]

Needs torch with CUDA and triton, nothing else. Beside it ``torch.sort`` along the rows, a copy of the rows (the limit of
memory), and the whole chain with nearest-neighbour mixing. Exits 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from triton.testing import do_bench

from gnomon.optimization import NNM, Chain, TrimmedMean
from gnomon.optimization.byzantine import gpu


def rows(n: int, d: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.randn(n, d, generator=generator, device="cuda", dtype=dtype)


def checks() -> list[str]:
    """The kernel against the sort in float64, and the chain on the GPU against numpy."""
    failed = []
    for n, f in ((3, 1), (25, 5), (33, 3), (64, 31)):
        for dtype, bound in ((torch.float32, 2e-6), (torch.float64, 1e-12)):
            x = rows(n, 100_003, dtype)
            truth = torch.sort(x.double(), dim=0).values[f : n - f].mean(dim=0)
            error = float((gpu.trimmed_mean(x, f).double() - truth).abs().max())
            print(f"  n={n}, f={f}, {dtype}: {error:.1e} (at most {bound:.0e})")
            if not error <= bound:
                failed.append(f"trimmed mean {n} {f} {dtype}")
    x = rows(25, 20_000, torch.float64)
    chain = Chain(NNM(5), TrimmedMean(5))
    error = float(abs(chain(x).cpu().numpy() - chain(x.cpu().numpy())).max())
    print(f"  chain on the GPU against numpy: {error:.1e} (at most 1e-10)")
    return failed + (["chain"] if not error <= 1e-10 else [])


def ways(x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """The kernel by block, and what it is measured against."""
    out = torch.empty_like(x)
    return {
        **{f"triton, block {b}": lambda b=b: gpu.trimmed_mean(x, 5, b) for b in (64, 128, 256)},
        "torch.sort": lambda: torch.sort(x, dim=0).values[5:20].mean(dim=0),
        "copy": lambda: out.copy_(x),
        "NNM + trimmed mean": lambda: Chain(NNM(5), TrimmedMean(5))(x),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    print(torch.cuda.get_device_name())
    failed, found = checks(), []
    for d in (200_000, 5_000_000, 50_000_000):
        x = rows(25, d, torch.float32)
        calls = ways(x)
        for name, call in calls.items():
            try:
                ms = float(do_bench(call, warmup=10, rep=50, return_mode="median"))
            except torch.cuda.OutOfMemoryError:
                print(f"  {name}, d={d:,}: out of memory")
                continue
            found.append({"d": d, "name": name, "ms": ms, "GB/s": x.nbytes / ms / 1e6})
            print(f"  d={d:,}  {name:24s} {ms:9.3f} ms  {x.nbytes / ms / 1e6:8.1f} GB/s of rows")
    if options.json:
        options.json.write_text(
            json.dumps({"device": torch.cuda.get_device_name(), "failed": failed, "rows": found}, indent=1)
        )
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
