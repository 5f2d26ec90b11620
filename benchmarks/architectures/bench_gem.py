"""The fused GEM loss beside cross-entropies, in time and memory, and a whole training step; the hull beside a QP by NNLS.

    OMP_NUM_THREADS=1 python benchmarks/architectures/bench_gem.py [--json FILE] [--clock cpu]

Peers: torch's cross-entropy on stored logits, torch's own ``linear_cross_entropy`` (chunked), and a cross-entropy over
checkpointed chunks. Each call is a forward and a backward pass. Liger's kernels need a GPU with Triton and are left out.
Memory is the high-water mark beyond the inputs of a process of its own (Linux).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import functools
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import nnls

from gnomon.architectures import fused_gem_loss, gem_loss, hull_distance
from gnomon.architectures.gem.baselines import chunked_ce
from gnomon.architectures.gem.study.experiments import status
from gnomon.architectures.gem.study.recipes import OBJECTIVES
from gnomon.architectures.gem.study.training import BATCH, ready
from gnomon.study import bench

Calls = dict[str, Callable[[], Any]]


def losses(tokens: int, vocabulary: int, width: int) -> Calls:
    """Forward and backward pass of each loss on the same states."""
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(tokens, width, generator=generator).requires_grad_()
    E = (torch.randn(vocabulary, width, generator=generator) / width**0.5).requires_grad_()
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    chunked = torch.nn.LinearCrossEntropyOptions()

    def both(loss: Callable[[], torch.Tensor]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(loss(), (h, E))

    return {
        "fused GEM, mixture detached": both(lambda: fused_gem_loss(h, E, targets, 0.1).total),
        "fused GEM, through the mixture": both(lambda: fused_gem_loss(h, E, targets, 0.1, detach="none").total),
        "fused, weight 0": both(lambda: fused_gem_loss(h, E, targets, 0.0).total),
        "naive GEM": both(lambda: gem_loss(h, E, targets, 0.1).total),
        "torch cross_entropy": both(lambda: F.cross_entropy(h @ E.T, targets)),
        "torch linear_cross_entropy": both(lambda: F.linear_cross_entropy(h, E, targets, options=chunked)),
        "checkpointed chunks": both(lambda: chunked_ce(h, E, targets)),
    }


def held(name: str) -> float:
    """MB that a call holds at most; in a process of its own, where nothing that was freed before is used again."""
    call = losses(4096, 49152, 64)[name]
    losses(64, 512, 64)[name]()  # warm
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


def peaks() -> dict[str, float]:
    """MB held by each call at most."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as pool:
        return {name: pool.submit(held, name).result() for name in losses(8, 8, 8)}


def steps() -> Calls:
    """A training step of the study's model."""
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 1024, (BATCH, 64)))
    made = {
        name: ready(OBJECTIVES[name], 64, 4, 1024, 64, 0)[1] for name in ("mse 0.1", "all 0.1", "mse 0.3 through", "ce")
    }
    return {name: functools.partial(step, ids, 1.0) for name, step in made.items()}


def projections() -> Calls:
    """16 states on the hull of 1024 embeddings."""
    generator = torch.Generator().manual_seed(0)
    E, h = (torch.randn(n, 64, generator=generator, dtype=torch.double) for n in (1024, 16))
    stacked = np.vstack([E.numpy().T, 1e3 * np.ones(len(E))])

    def peer() -> list[Any]:
        return [nnls(stacked, np.append(x, 1e3)) for x in h.numpy()]

    return {"away-step Frank-Wolfe, gap 1e-6": lambda: hull_distance(h, E, tol=1e-6), "scipy nnls, one by one": peer}


def main() -> None:
    options = bench.parser(__file__, __doc__).parse_args()
    table = bench.Table()
    for tokens, vocabulary, width, repeats in ((4096, 4096, 128, 3), (2048, 49152, 128, 2)):
        work = f"loss, {tokens} tokens, V = {vocabulary}, d = {width}"
        table.times(work, bench.seconds(losses(tokens, vocabulary, width), repeats, clock=options.clock))
    if Path("/proc/self/clear_refs").exists():
        found = peaks()
        own = next(iter(found.values()))
        for name, mb in found.items():
            table.add(f"memory, 4096 tokens, V = 49152, d = 64: {name}", mb, "MB", mb / own if mb != own else None)
    table.times(
        "training step, 1024 tokens, 4 layers, d = 64, V = 1024", bench.seconds(steps(), 5, clock=options.clock)
    )
    table.times("hull, 16 states, V = 1024, d = 64", bench.seconds(projections(), 2, clock=options.clock))
    table.save(options.json)


if __name__ == "__main__":
    main()
