"""Folded circuits beside node-by-node evaluation, libcirkit and spflow; one-pass prediction beside full passes.

    OMP_NUM_THREADS=1 python benchmarks/architectures/bench_probabilistic_circuits.py [--json FILE] [--clock cpu]

T = 32 variables of 8 symbols, width 64 (16 for tucker), float32, one thread. libcirkit's circuit is folded, on the same
balanced tree, with as many weights; spflow's is its own einsum layers. Both are read from
benchmarks/peers/probabilistic_circuits.txt where they are installed. pyjuice has kernels for a GPU only and is left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import rich
import torch
from torch import Tensor

from gnomon.architectures import Circuit, vtree
from gnomon.architectures.probabilistic_circuits.inference import autoregressive
from gnomon.architectures.probabilistic_circuits.learning import em_step
from gnomon.architectures.probabilistic_circuits.module import CircuitModule, log_mix
from gnomon.study import bench

PEERS = Path(__file__).resolve().parents[1] / "peers/probabilistic_circuits"
INSTALL = f"pip install --no-deps --target benchmarks/peers/{PEERS.name} -r benchmarks/peers/{PEERS.name}.txt"
V = 8


def module(kind: str, T: int, R: int, product: str = "cp") -> CircuitModule:
    made: CircuitModule = Circuit(vtree(kind, T), V, R, product).initialize(random_state=0).module_.float()
    return made


def rows(n: int, T: int) -> Tensor:
    return torch.randint(V, (n, T), generator=torch.Generator().manual_seed(0))


def node_by_node(pc: CircuitModule, x: Tensor, mix: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The same circuit, one matrix product a child of a node."""
    logs = pc.log_weights()
    weight = logs[1].exp() if mix is log_mix else logs[1]
    value = pc.leaf_values(x, logs[0])
    for i, (_, left, right) in enumerate(pc.tree.nodes):
        value.append(mix(value[left], weight[i, 0]) + mix(value[right], weight[i, 1]))
    return (value[-1] + logs[2]).logsumexp(-1)


def by_logsumexp(v: Tensor, log_w: Tensor) -> Tensor:
    """The textbook form."""
    return (v[:, None, :] + log_w).logsumexp(-1)


def cirkit(T: int, R: int) -> Any:
    """libcirkit's folded circuit on a balanced tree: dense sums under Hadamard products."""
    from cirkit.pipeline import PipelineContext
    from cirkit.templates import utils
    from cirkit.templates.region_graph import RandomBinaryTree

    weight = utils.Parameterization(activation="softmax", initialization="normal")
    graph = RandomBinaryTree(T, depth=None, num_repetitions=1)
    symbolic = graph.build_circuit(
        input_factory=utils.name_to_input_layer_factory("categorical", num_categories=V),
        sum_product="cp",
        sum_weight_factory=utils.parameterization_to_factory(weight),
        num_input_units=R,
        num_sum_units=R,
    )
    return PipelineContext(backend="torch", semiring="lse-sum", fold=True, optimize=True).compile(symbolic)


def spflow(T: int, R: int) -> Any:
    """spflow's einsum layers, pairing neighbours."""
    from spflow.modules.einsum import EinsumLayer
    from spflow.modules.leaves import Categorical

    layer: Any = Categorical(scope=list(range(T)), out_channels=R, K=V)
    while T > 1:
        T //= 2
        layer = EinsumLayer(inputs=layer, out_channels=R if T > 1 else 1)
    return layer


def step_of(parameters: Any, loss: Callable[[], Tensor]) -> Callable[[], Any]:
    some = list(parameters)
    return lambda: torch.autograd.grad(-loss().mean(), some, allow_unused=True)


def evaluation(table: bench.Table, clock: Any, peer: Callable[[int, int], Any] | None) -> None:
    T, R = 32, 64
    pc = module("balanced", T, R)
    for n in (32, 256):
        x = rows(n, T)
        calls: dict[str, Callable[[], Any]] = {
            "folded": lambda x=x: pc(x),
            "node by node, same kernel": lambda x=x: node_by_node(pc, x, log_mix),
            "node by node, logsumexp": lambda x=x: node_by_node(pc, x, by_logsumexp),
        }
        steps = {name: step_of(pc.parameters(), call) for name, call in calls.items()}
        if peer is not None:
            other = peer(T, R)
            calls["libcirkit, folded"] = lambda x=x, other=other: other(x)
            steps["libcirkit, folded"] = step_of(other.parameters(), calls["libcirkit, folded"])
        with torch.no_grad():
            table.times(f"log p of {n} rows, T = {T}, R = {R}", bench.seconds(calls, clock=clock))
        table.times(f"and its gradient, {n} rows", bench.seconds(steps, clock=clock))
    x = rows(256, T)
    table.times("one step of learning, 256 rows", bench.seconds({
        "EM": lambda: em_step(pc, x, 0.05), "gradient": step_of(pc.parameters(), lambda: pc(x)),
    }, clock=clock))  # fmt: skip


def tucker(table: bench.Table, clock: Any, peer: Callable[[int, int], Any] | None) -> None:
    T, R = 32, 16
    pc, x = module("balanced", T, R, "tucker"), rows(256, T)
    calls: dict[str, Callable[[], Any]] = {"folded": lambda: pc(x)}
    if peer is not None:
        other = peer(T, R)
        floats = x.float()
        calls["spflow, einsum layers"] = lambda: other.log_likelihood(floats)
    with torch.no_grad():
        table.times(f"tucker: log p of 256 rows, T = {T}, R = {R}", bench.seconds(calls, clock=clock))


def left_to_right(table: bench.Table, clock: Any) -> None:
    R, n = 32, 64
    for kind in ("balanced", "linear"):
        for T in (16, 32, 64, 128):
            pc, x = module(kind, T, R), rows(n, T)
            prefixes = [torch.where(torch.arange(T) < t, x, -1) for t in range(T)]
            with torch.no_grad():
                calls = {"incremental": lambda pc=pc, x=x: autoregressive(pc, x)}
                if T <= 64:  # evaluations only; each would need a downward pass too
                    calls["T full passes"] = lambda pc=pc, p=prefixes: [pc(row) for row in p]
                table.times(
                    f"every next symbol of {n} rows, {kind}, T = {T}, R = {R}", bench.seconds(calls, 3, clock=clock)
                )


def agree(T: int, R: int, peer: Callable[[int, int], Any] | None) -> None:
    """That they compute the same kind of thing: mass, weights, and ours by three roads."""
    pc, x = module("balanced", T, R), rows(16, T)
    for mix in (log_mix, by_logsumexp):
        torch.testing.assert_close(node_by_node(pc, x, mix), pc(x), atol=1e-3, rtol=1e-4)
    if peer is not None:
        small = peer(4, 3)
        states = torch.from_numpy(np.indices((V,) * 4).reshape(4, -1).T.copy())
        assert abs(float(small(states).detach().exp().sum()) - 1) < 1e-3
        theirs, ours = sum(p.numel() for p in peer(T, R).parameters()), sum(p.numel() for p in pc.parameters())
        assert abs(theirs / ours - 1) < 0.05, (theirs, ours)


def available(name: str, make: Callable[[int, int], Any]) -> Callable[[int, int], Any] | None:
    try:
        make(4, 2)
    except ImportError as error:
        rich.get_console().print(f"{name}: left out ({error}); {INSTALL}", markup=False, soft_wrap=True)
        return None
    return make


def main() -> None:
    options = bench.parser(__file__, __doc__).parse_args()
    torch.set_num_threads(1)
    sys.path.append(str(PEERS))
    table = bench.Table()
    folded, einsum = available("libcirkit", cirkit), available("spflow", spflow)
    agree(32, 64, folded)
    evaluation(table, options.clock, folded)
    tucker(table, options.clock, einsum)
    left_to_right(table, options.clock)
    table.save(options.json)


if __name__ == "__main__":
    main()
