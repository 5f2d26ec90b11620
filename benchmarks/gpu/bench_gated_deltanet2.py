"""Builds, checks and times the Triton kernels of the gated delta rule on one GPU, within ten minutes.

    python benchmarks/gpu/bench_gated_deltanet2.py [--json FILE]

Needs torch with CUDA and triton. Beside them, where installed: fla-core (``chunk_gdn2``, ``chunk_kda``: the peer, of
which at least 0.8 of the tokens a second is the aim), mamba-ssm, and always PyTorch's causal attention. In bfloat16,
the state in float32. Exits 1 if a check fails.
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
from torch.nn import functional as F
from triton.testing import do_bench

from gnomon.architectures import gated_delta_rule2

HEADS, SIZE = 16, 128


def problem(
    batch: int, length: int, heads: int, size: int, dtype: torch.dtype, depth: float = 0.3
) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (batch, length, heads, size)

    def normal() -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    def uniform() -> torch.Tensor:
        return torch.rand(shape, generator=generator, device="cuda")

    q, k = F.normalize(normal(), dim=-1), F.normalize(normal(), dim=-1)
    inputs = [q, k, normal(), -depth * uniform(), uniform(), uniform()]
    return [t if i == 3 else t.to(dtype) for i, t in enumerate(inputs)]  # log-decays stay float32


def run(mode: str, *inputs: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return gated_delta_rule2(*inputs, mode=mode, validate=False, **options)


def checks() -> list[str]:
    """Values and gradients of the kernels against the float64 recurrence on the GPU."""
    failed: list[str] = []

    def check(name: str, got: torch.Tensor, truth: torch.Tensor, bound: float) -> None:
        error = float((got.double() - truth).abs().max() / truth.abs().max())
        print(f"  {name:44s} {error:9.2e}  (at most {bound:.0e})")
        if not error <= bound:
            failed.append(name)

    for size in (16, 64, 128):
        for depth in (0.3, 60.0):
            single = [t.requires_grad_() for t in problem(2, 300, 2, size, torch.float32, depth)]
            exact = [t.detach().double().requires_grad_() for t in single]
            mine, truth = run("triton", *single), run("recurrent", *exact)
            name = f"{size} x {size}, decays to e^-{depth:g}"
            check(f"{name}: o", mine[0], truth[0], 1e-5)
            check(f"{name}: S", mine[1], truth[1], 1e-5)
            grads = [torch.autograd.grad(o.square().sum() + S.sum(), leaves)
                     for (o, S), leaves in ((mine, single), (truth, exact))]  # fmt: skip
            for which, one, other in zip("qkvgbw", *grads, strict=True):
                check(f"{name}: d{which}", one, other, 1e-4)
            half = [t.detach() if i == 3 else t.detach().bfloat16() for i, t in enumerate(single)]
            rounded = run("recurrent", *(t.double() for t in half))
            check(f"{name}: o, bfloat16", run("triton", *half)[0], rounded[0], 2e-2)
    return failed


def peers(inputs: list[torch.Tensor]) -> dict[str, Callable[..., Any]]:
    calls: dict[str, Callable[..., Any]] = {
        "triton": lambda *t: run("triton", *t)[0],
        "chunk in torch": lambda *t: run("chunk", *t)[0],
        "attention": lambda q, k, v, *_: F.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in (q, k, v)), is_causal=True
        ),
    }
    if find_spec("fla"):
        from fla.ops.gdn2 import chunk_gdn2
        from fla.ops.kda import chunk_kda

        calls["fla chunk_gdn2"] = lambda *t: chunk_gdn2(*t)[0]
        calls["fla chunk_kda"] = lambda q, k, v, g, b, w: chunk_kda(q, k, v, g, b[..., 0].contiguous())[0]
    if find_spec("mamba_ssm"):
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

        dt, A = -inputs[3].mean(-1), -torch.ones(HEADS, device="cuda")
        calls["mamba-ssm"] = lambda q, k, v, *_: mamba_chunk_scan_combined(v, dt, A, k, q, chunk_size=256)
    return calls


def times(batch: int, length: int) -> list[dict[str, Any]]:
    inputs = problem(batch, length, HEADS, SIZE, torch.bfloat16)
    rows = []
    for work in ("forward", "forward and backward"):
        for name, call in peers(inputs).items():
            leaves = [t.clone().requires_grad_(work != "forward") for t in inputs]

            def once(call: Any = call, leaves: Any = leaves, work: str = work) -> None:
                o = call(*leaves)
                if work != "forward":
                    torch.autograd.grad(o.float().sum(), leaves, allow_unused=True)

            try:
                ms = float(do_bench(once, warmup=10, rep=50, return_mode="median"))
            except Exception as error:  # a peer that does not run here must not end the run
                print(f"  {name}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
                continue
            rows.append({"work": work, "batch": batch, "T": length, "name": name, "ms": ms,
                         "tokens/s": batch * length / ms * 1e3})  # fmt: skip
        own = next((r["ms"] for r in rows if r["name"] == "triton" and r["work"] == work), None)
        for row in rows:
            if row["work"] == work and own:
                row["ratio"] = row["ms"] / own
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    failed = checks()
    rows = []
    for batch, length in ((8, 1024), (8, 4096), (2, 16384), (1, 32768)):
        for row in times(batch, length):
            rows.append(row)
            print("  " + "  ".join(f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()))
    if options.json:
        text = json.dumps({"device": torch.cuda.get_device_name(), "failed": failed, "rows": rows}, indent=1)
        options.json.write_text(text)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
