"""Polar factors and optimiser steps on LoRA adapters: this implementation against SVD, Newton-Schulz and other Muons.

Usage: python benchmarks/optimization/bench_spectral_descent.py [--json FILE] [--clock wall|cpu]

* A polar factor of a LoRA gradient, 576 x 8: the Gram path against ``torch.linalg.svd`` and against 5 Newton-Schulz steps
  as ``torch.optim.Muon`` runs them (bfloat16) and in float32; by the number of rows, one matrix and 60 in a batch.
* One optimiser step on the 120 factors of 60 adapters of rank 8 (queries and values of SmolLM2-135M): against
  ``torch.optim.Muon`` and ``muon-optimizer`` (SingleDeviceMuon).
* The paths of `SpectralDescent(orth="newton_schulz")` and of ``torch.optim.Muon`` on a least squares: equal results.
* The spectra of 60 adapters: against the singular values of the dense products.

``dion`` has no wheel that can be installed here. One thread.
"""

from __future__ import annotations

import torch
from muon import SingleDeviceMuon
from torch import Tensor, nn
from torch.optim._muon import _zeropower_via_newtonschulz as torch_newton_schulz

from gnomon.optimization import SpectralDescent, polar, product_spectrum
from gnomon.study import bench

QUINTIC = (3.4445, -4.7750, 2.0315)


def by_svd(G: Tensor) -> Tensor:
    """The polar factor as the textbook has it."""
    u, _, vh = torch.linalg.svd(G, full_matrices=False)
    return u @ vh


def newton_schulz_float32(G: Tensor) -> Tensor:
    """torch.optim.Muon's iteration without the cast to bfloat16."""
    a, b, c = QUINTIC
    tall = G.shape[0] > G.shape[1]
    X = (G.T if tall else G) / G.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = X @ X.T
        X = torch.addmm(X, torch.addmm(gram, gram, gram, beta=b, alpha=c), X, beta=a)
    return X.T if tall else X


def polar_factors(table: bench.Table, options) -> None:
    """One matrix and 60 of them, by the number of rows."""
    for rows in (192, 576, 2304, 9216):
        G = torch.randn(rows, 8)
        times = bench.seconds({
            "gnomon, exact (Gram)": lambda G=G: polar(G), "torch.linalg.svd": lambda G=G: by_svd(G),
            "Newton-Schulz, bfloat16 (torch.optim.Muon)": lambda G=G: torch_newton_schulz(G, QUINTIC, 5, 1e-7),
            "Newton-Schulz, float32": lambda G=G: newton_schulz_float32(G),
        }, repeats=30, clock=options.clock)  # fmt: skip
        table.times(f"polar factor of {rows} x 8", times, "us")
        table.add(
            f"polar factor of {rows} x 8: largest difference from the SVD's",
            float((polar(G) - by_svd(G)).abs().max()),
            "",
        )
    for shape in ((60, 8, 576), (60, 576, 8), (60, 576, 64)):  # the A and the B of 60 adapters; a larger rank
        G = torch.randn(shape)
        times = bench.seconds({
            "gnomon, exact (Gram)": lambda G=G: polar(G), "torch.linalg.svd, batched": lambda G=G: by_svd(G),
            "Newton-Schulz, bfloat16, one by one": lambda G=G: [torch_newton_schulz(g, QUINTIC, 5, 1e-7) for g in G],
            "Newton-Schulz, float32, one by one": lambda G=G: [newton_schulz_float32(g) for g in G],
        }, repeats=15, clock=options.clock)  # fmt: skip
        table.times(f"60 polar factors of {shape[1]} x {shape[2]}", times)


def adapters() -> list[nn.Parameter]:
    """The LoRA factors of 30 query and 30 value projections (576 -> 576 and 576 -> 192), with gradients."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for rows, columns in [(8, 576), (576, 8), (8, 576), (192, 8)] * 30:
        p = nn.Parameter(torch.randn(rows, columns, generator=generator))
        p.grad = torch.randn(rows, columns, generator=generator)
        made.append(p)
    return made


def optimizer_steps(table: bench.Table, options) -> None:
    """A whole step, momentum and scale included."""
    common = {"lr": 1e-4, "momentum": 0.95, "weight_decay": 0.0}
    steps = {
        "gnomon, exact": SpectralDescent(adapters(), scale="match_rms_adamw", **common),
        "torch.optim.Muon": torch.optim.Muon(adapters(), adjust_lr_fn="match_rms_adamw", **common),
        "muon-optimizer (SingleDeviceMuon)": SingleDeviceMuon(adapters(), **common),
        "gnomon, Newton-Schulz in bfloat16": SpectralDescent(adapters(), orth="newton_schulz", scale="match_rms_adamw", **common),
        "gnomon, Newton-Schulz in float32": SpectralDescent(adapters(), orth="newton_schulz", ns_dtype=torch.float32,
                                                            scale="match_rms_adamw", **common),
        "torch.optim.AdamW": torch.optim.AdamW(adapters(), lr=1e-4),
    }  # fmt: skip
    times = bench.seconds({name: optimizer.step for name, optimizer in steps.items()}, repeats=10, clock=options.clock)
    table.times("a step on 60 adapters of rank 8", times)


def same_path(table: bench.Table) -> None:
    """20 steps of a 32 x 48 least squares."""
    X, W = (
        torch.randn(n, k, generator=torch.Generator().manual_seed(s)) for s, (n, k) in enumerate([(64, 32), (32, 48)])
    )
    ends = []
    for make in (lambda p: SpectralDescent(p, lr=0.02, momentum=0.95, nesterov=True, orth="newton_schulz", scale="original"),
                 lambda p: torch.optim.Muon(p, lr=0.02, momentum=0.95, nesterov=True, weight_decay=0.0)):  # fmt: skip
        P = nn.Parameter(torch.zeros(32, 48))
        optimizer = make([P])
        for _ in range(20):
            optimizer.zero_grad()
            ((X @ (P - W)) ** 2).mean().backward()
            optimizer.step()
        ends.append(P.detach())
    table.add(
        "20 steps: largest difference from torch.optim.Muon, Newton-Schulz in bfloat16",
        float((ends[0] - ends[1]).abs().max()),
        "",
    )


def spectra(table: bench.Table, options) -> None:
    """60 products of 576 x 8 and 8 x 576."""
    B, A = torch.randn(60, 576, 8), torch.randn(60, 8, 576)
    times = bench.seconds({"gnomon (QR of the factors)": lambda: product_spectrum(B, A),
                           "svdvals of the dense products": lambda: torch.linalg.svdvals(B @ A)},
                          repeats=2, clock=options.clock, warm=False)  # fmt: skip
    table.times("spectra of 60 adapters of 576 x 576", times)


def main() -> None:
    options = bench.parser(__file__, __doc__).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = bench.Table()
    polar_factors(table, options)
    optimizer_steps(table, options)
    same_path(table)
    spectra(table, options)
    table.save(options.json)


if __name__ == "__main__":
    main()
