"""What two stages and their diagnostics cost beside the Muon they wrap.

Usage: python benchmarks/optimization/bench_muon_river.py [--json FILE] [--clock wall|cpu]

* A step of `TwoStage` (a fixed switch, and the automatic one) around ``torch.optim.Muon``, against that optimiser alone, and of
  its second stage against ``torch.optim.AdamW``; PyTorch's ``SequentialLR`` on Muon is the fixed-schedule alternative.
* A training step of a small language model with and without `RiverMonitor` at its default interval of 10.
* The sensing gradient, in the population limit and from N = 6 mn samples, by size.

One thread.
"""

from __future__ import annotations

import torch
from torch import nn

from gnomon.optimization import MixedSpikedSensing, RiverMonitor, TwoStage
from gnomon.optimization.muon_river.study import material
from gnomon.study import bench

SHAPES = [(256, 256)] * 8 + [(768, 256), (256, 768)] * 4  # the matrices of four blocks of width 256


def matrices() -> list[nn.Parameter]:
    """Parameters with gradients."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for shape in SHAPES:
        p = nn.Parameter(torch.randn(shape, generator=generator))
        p.grad = torch.randn(shape, generator=generator)
        made.append(p)
    return made


def muon(p):
    return torch.optim.Muon(p, lr=1e-4, weight_decay=0.0)


def steps(table: bench.Table, options) -> None:
    """Optimiser steps in either stage."""
    plain, scheduled = muon(matrices()), muon(matrices())
    schedule = torch.optim.lr_scheduler.SequentialLR(scheduled, [torch.optim.lr_scheduler.ConstantLR(scheduled, 1.0, 1),
                                                                 torch.optim.lr_scheduler.LinearLR(scheduled, 1.0, 0.0, 10**6)], [1])  # fmt: skip

    def with_schedule() -> None:
        scheduled.step()
        schedule.step()

    two = {name: TwoStage(matrices(), muon, lambda p: torch.optim.AdamW(p, lr=1e-4), switch, lr2=1e-4)
           for name, switch in (("fixed", 10**9), ("auto", "auto"), ("second", 0))}  # fmt: skip
    adamw = torch.optim.AdamW(matrices(), lr=1e-4)
    times = bench.seconds({
        "gnomon TwoStage, stage 1, fixed switch": two["fixed"].step, "torch.optim.Muon": plain.step,
        "torch.optim.Muon with SequentialLR": with_schedule, "gnomon TwoStage, stage 1, automatic switch": two["auto"].step,
    }, repeats=8, clock=options.clock)  # fmt: skip
    table.times("a step on the matrices of four blocks of width 256", times)
    times = bench.seconds(
        {"gnomon TwoStage, stage 2": two["second"].step, "torch.optim.AdamW": adamw.step},
        repeats=20,
        clock=options.clock,
    )
    table.times("a step on the same", times)
    kept = sum(v.numel() for state in two["second"]._second.state.values() for v in state.values() if v.dim())
    table.add(
        "stage 2: numbers of state per parameter (AdamW's own two; Muon's buffer is gone)",
        kept / sum(p.numel() for p in adamw.param_groups[0]["params"]),
        "",
    )


def monitored(table: bench.Table, options) -> None:
    """Ten training steps, a reading of the monitor among them."""
    runs = {}
    for name in ("with RiverMonitor", "without"):
        model = material.small(0)
        params = [p for p in model.parameters() if p.dim() == 2]
        optimizer = muon(params)
        if name == "with RiverMonitor":
            RiverMonitor(optimizer)

        def train(model=model, optimizer=optimizer) -> None:
            for step in range(10):
                ids = material.batch(material.source()[0], 64, 0, step)
                optimizer.zero_grad()
                model(input_ids=ids, labels=ids).loss.backward()
                optimizer.step()

        runs[name] = train
    times = bench.seconds(runs, repeats=8, clock=options.clock)
    table.times("ten training steps of a language model of two blocks", times)


def sensing(table: bench.Table, options) -> None:
    """Gradients by size."""
    for side in (8, 16, 32):
        labs = {
            "population": MixedSpikedSensing(side, side),
            "6 mn samples": MixedSpikedSensing(side, side, samples=6 * side * side),
        }
        for name, lab in labs.items():
            W = lab.start.clone()
            W.requires_grad_()

            def by_autograd(lab=lab, W=W) -> None:
                torch.autograd.grad(lab.loss(W), W)

            times = bench.seconds({"gnomon": lambda lab=lab: lab.grad(lab.start), "autograd through the loss": by_autograd},
                                  repeats=10, clock=options.clock)  # fmt: skip
            table.times(f"gradient of sensing, {side} x {side}, {name}", times, "us")


def main() -> None:
    options = bench.parser(__file__, __doc__).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = bench.Table()
    steps(table, options)
    monitored(table, options)
    sensing(table, options)
    table.save(options.json)


if __name__ == "__main__":
    main()
