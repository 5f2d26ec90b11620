"""Builds, checks and times the Triton kernels on one GPU, within ten minutes.

    python benchmarks/gpu/bench_semiseparable.py [--json FILE]

Needs torch with CUDA and triton. Beside them, where installed: mamba-ssm (``pip install mamba-ssm``), fla-core, and
always PyTorch's causal attention (FlashAttention), all in bfloat16 but for the masks. Exits 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import triton
from triton.testing import do_bench

from gnomon.architectures import segsum
from gnomon.architectures.semiseparable import io_bytes, plan_split, ssd_scan
from gnomon.architectures.semiseparable.baselines import attention, ssd_minimal

BATCH, HEADS, WIDTH, SIZE = 1, 64, 64, 128


def problem(batch: int, length: int, dtype: torch.dtype, heads: int = HEADS) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(batch, length, *shape, generator=generator, device="cuda").to(dtype)

    a = -0.1 * torch.rand(batch, length, heads, generator=generator, device="cuda")
    return [normal(heads, WIDTH), a, normal(1, SIZE), normal(1, SIZE)]


def check(name: str, error: float, bound: float, failed: list[str]) -> None:
    print(f"  {name:44s} {error:9.2e}  (at most {bound:.0e})")
    if not error <= bound:
        failed.append(name)


def checks() -> list[str]:
    """Every kernel against float64 on the GPU; the difference form's tree scan is expected to break."""
    failed: list[str] = []
    a = torch.full((64, 256), -1e-3, device="cuda") * torch.rand(64, 256, device="cuda")
    a[:, ::32] = -1e4
    truth = segsum(a.double(), "direct")
    for name, options in {"hier": {}, "hier, log": {"form": "log"}, "direct": {"method": "direct"}}.items():
        mask = segsum(a, **options, backend="triton").double()
        check(f"mask, {name}", float((mask - truth).abs().max()), 5e-6, failed)
        check(f"mask, {name}: largest entry above 1", float(mask.max() - 1), 0, failed)
    broken = segsum(a, "diff", backend="triton").double()
    print(f"  the difference form here: error {float((broken - truth).abs().max()):.1e}, "
          f"{int((broken > 1).sum())} entries above 1")  # fmt: skip
    for split in (64, 256, 4096):
        single = problem(2, 1000, torch.float32, heads=4)
        exact = ssd_scan(*(t.double() for t in single), backend="torch")
        y = ssd_scan(*single, backend="triton", split=split)
        check(f"layer, float32, split {split}", float((y - exact).abs().max() / exact.abs().max()), 1e-5, failed)
        half = [single[0].bfloat16(), single[1], single[2].bfloat16(), single[3].bfloat16()]
        y = ssd_scan(*half, backend="triton", split=split)
        check(
            f"layer, bfloat16, split {split}", float((y.double() - exact).abs().max() / exact.abs().max()), 2e-2, failed
        )
    return failed


def masks(length: int) -> list[dict[str, Any]]:
    a = -0.1 * torch.rand(2**26 // length**2, length, device="cuda")
    finished = segsum(a, backend="triton")
    out = torch.empty_like(finished)

    def fill(**options: Any) -> Callable[[], Any]:
        return lambda: segsum(a, **options, backend="triton", validate=False)

    calls = {"hier": fill(), "diff": fill(method="diff"), "direct": fill(method="direct"),
             "copy": lambda: out.copy_(finished)}  # fmt: skip
    return [{"what": "mask", "Q": length, "name": name, "ms": ms, "GB/s": finished.nbytes / ms / 1e6}
            for name, ms in timed(calls).items()]  # fmt: skip


def layers(length: int) -> list[dict[str, Any]]:
    x, a, B, C = problem(BATCH, length, torch.bfloat16)
    workers = 2 * torch.cuda.get_device_properties(0).multi_processor_count
    auto = plan_split(length, 64, BATCH, HEADS, workers)
    calls: dict[str, Callable[[], Any]] = {
        f"ssd, split {auto} (auto)": lambda: ssd_scan(x, a, B, C, backend="triton", validate=False),
        "ssd, one walk a tile": lambda: ssd_scan(x, a, B, C, backend="triton", split=64, validate=False),
        "attention": lambda: attention(x, a, B, C),
    }
    if length <= 8192:
        calls["ssd_minimal"] = lambda: ssd_minimal(x, a.to(x.dtype), B, C)
    if find_spec("mamba_ssm"):
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

        dt, A = -a, -torch.ones(HEADS, device="cuda")
        calls["mamba-ssm"] = lambda: mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size=256)
    if find_spec("fla"):
        from fla.ops.simple_gla import chunk_simple_gla

        q, k = (t.expand(-1, -1, HEADS, -1).contiguous() for t in (C, B))
        calls["fla simple_gla"] = lambda: chunk_simple_gla(q, k, x, a, scale=1.0)
    moved = io_bytes(BATCH, length, HEADS, WIDTH, SIZE, 1, 64, auto)["total"]
    return [{"what": "layer", "T": length, "name": name, "ms": ms, "GB/s": moved / ms / 1e6}
            for name, ms in timed(calls).items()]  # fmt: skip


def timed(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median milliseconds; a call that fails is said to, not hidden."""
    times = {}
    for name, call in calls.items():
        try:
            times[name] = float(do_bench(call, warmup=10, rep=50, return_mode="median"))
        except Exception as error:  # a peer that does not run here must not end the run
            print(f"  {name}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    failed = checks()
    rows = []
    parts = [(masks, n) for n in (64, 128, 256)] + [(layers, n) for n in (1024, 2048, 4096, 8192, 32768, 131072)]
    for part, length in parts:
        for row in part(length):
            rows.append(row)
            print("  " + "  ".join(f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()))
    if options.json:
        text = json.dumps({"device": torch.cuda.get_device_name(), "failed": failed, "rows": rows}, indent=1)
        options.json.write_text(text)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
