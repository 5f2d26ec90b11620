"""Dormant neurons beside spikingjelly, snntorch and the loop of single operations; the lazy kernel beside dense passes.

    OMP_NUM_THREADS=1 python benchmarks/architectures/bench_dormant_spiking.py [--json FILE] [--clock cpu]

A masked dense pass saves no time through dormancy, so the neurons' own figures are the cost of the gate, not a saving;
the saving is in the rows of the lazy kernel.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor, nn

from gnomon.architectures import DormantLIF, convert_to_dormant, dormant_lif, event_forward
from gnomon.architectures.dormant_spiking.baselines import lif
from gnomon.study import bench

SHAPE = (6, 256, 1024)


def peers() -> dict[str, Callable[[Tensor], Tensor]]:
    """Neurons of the named libraries; what is missing is said."""
    found: dict[str, Callable[[Tensor], Tensor]] = {}
    try:
        neuron = importlib.import_module("spikingjelly.activation_based.neuron")
        surrogate = importlib.import_module("spikingjelly.activation_based.surrogate")
        node = neuron.LIFNode(tau=2.0, decay_input=False, step_mode="m", surrogate_function=surrogate.ATan(2.0))

        def jelly(x: Tensor) -> Tensor:
            node.reset()
            return node(x)

        found["spikingjelly LIFNode"] = jelly
    except ImportError as error:
        print(f"spikingjelly is left out: {error} (pip install --no-deps spikingjelly loguru)")
    try:
        snn = importlib.import_module("snntorch")
        leaky = snn.Leaky(beta=0.5, reset_mechanism="zero", init_hidden=True)

        def torchlike(x: Tensor) -> Tensor:
            leaky.mem = torch.zeros_like(x[0])
            return torch.stack([leaky(step) for step in x])

        found["snntorch Leaky"] = torchlike
    except ImportError as error:
        print(f"snntorch is left out: {error}")
    return found


def both_ways(run: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Any]:
    weight = torch.ones_like(x)
    return lambda: torch.autograd.grad(run(x), x, weight)


def kept(run: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Bytes that a pass keeps for the backward pass, over those of its input."""
    sizes: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        held = run(x)  # keeps the storages alive, so that no address is used twice
    del held
    return sum(sizes.values()) / x.untyped_storage().nbytes()


def main() -> None:
    options = bench.parser(__file__, __doc__).parse_args()
    torch.set_num_threads(1)
    table = bench.Table()
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    others = peers()
    plain = DormantLIF(v_dormant=-math.inf, learn_v_dormant=False)
    plain_spikes = plain(x)
    for name, run in others.items():
        with torch.no_grad():
            table.add(
                f"spikes that differ from ours without a threshold: {name}",
                float((run(x) != plain_spikes).sum()),
                "spikes",
            )

    def ours(wake: str = "leak", backend: str = "auto", n: int | None = None) -> Callable[[Tensor], Tensor]:
        return lambda x: dormant_lif(x, wake=wake, backend=backend, n=n).spikes

    def no_gate(x: Tensor) -> Tensor:
        plain.reset()
        return plain(x)

    runs = {"dormant, leak": ours(), "dormant, never": ours("never"), "dormant, after": ours("after", n=2), "no threshold": no_gate,
            "dormant, leak, loop of single operations": ours(backend="torch"), "plain neuron, loop": lambda x: lif(x)[0], **others}  # fmt: skip
    with torch.no_grad():
        times = bench.seconds({k: lambda run=run: run(x) for k, run in runs.items()}, 9, clock=options.clock)
    table.times("forward, 6 x 256 x 1024", times)
    y = x.clone().requires_grad_()
    table.times("forward and backward, 6 x 256 x 1024",
                bench.seconds({k: both_ways(run, y) for k, run in runs.items()}, 7, clock=options.clock))  # fmt: skip
    mine = kept(runs["dormant, leak"], y)
    for name, run in runs.items():
        amount = kept(run, y)
        table.add(
            f"kept for the backward pass, in inputs: {name}",
            amount,
            "inputs",
            None if name == "dormant, leak" else amount / mine,
        )
    for steps in (6, 12, 24, 48):
        long = torch.randn(steps, 64, 1024, generator=torch.Generator().manual_seed(1), requires_grad=True)
        pair = {"dormant, leak": both_ways(runs["dormant, leak"], long),
                "loop of single operations": both_ways(runs["dormant, leak, loop of single operations"], long)}  # fmt: skip
        table.times(f"forward and backward, {steps} x 64 x 1024", bench.seconds(pair, 5, clock=options.clock))
    lazy(table, options.clock)
    table.save(options.json)


def lazy(table: bench.Table, clock: Any) -> None:
    """One layer of 1024 to 1024, 20 % of its inputs spiking, at several awake fractions."""
    rng = np.random.default_rng(0)
    width, steps, batch = 1024, 12, 32
    x = torch.from_numpy((rng.random((steps, batch, width)) < 0.2).astype(np.float32))
    weight = torch.from_numpy(rng.standard_normal((width, width)).astype(np.float32)) / math.sqrt(0.2 * width)
    net = nn.Sequential(nn.Linear(width, width), DormantLIF(v_dormant=-0.25, learn_v_dormant=False)).eval()
    net[0].weight.data = torch.round(weight * 256) / 256
    for bias in (-1.0, -0.25, 0.25):
        net[0].bias.data.fill_(bias)
        awake = event_forward(net, x).awake[0]
        ungated = convert_to_dormant(net, -math.inf)

        def dense(net: Any = net) -> Tensor:
            net[1].reset()
            return net(x)

        with torch.no_grad():
            calls = {f"lazy, {awake:.0%} awake": lambda net=net: event_forward(net, x),
                     "lazy, all awake": lambda net=ungated: event_forward(net, x), "dense product and masked neurons": dense}  # fmt: skip
            table.times("layer 1024 x 1024, 12 steps, 32 samples", bench.seconds(calls, 5, clock=clock))


if __name__ == "__main__":
    main()
