"""The rule beside its peers, in one run: forward, forward and backward, decoding; and how time grows with the length.

    OMP_NUM_THREADS=1 python benchmarks/architectures/bench_gated_deltanet2.py [--json FILE] [--clock cpu] [--quick]

Peers: the recurrence in torch, flash-linear-attention's naive operators (fla-core), causal attention (PyTorch's flash
kernel), semiseparable's SSD of the same state size. fla's Triton operators and mamba-ssm need a GPU: see
benchmarks/gpu/bench_gated_deltanet2.py.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch.nn import functional as F

from gnomon.architectures import gated_delta_rule2, kda
from gnomon.architectures.gated_deltanet2.baselines import VARIANTS, build
from gnomon.architectures.semiseparable import ssd_scan
from gnomon.study import bench

HEADS, SIZE = 2, 64


def problem(length: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """q, k, v, g, b, w of one sequence."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, length, HEADS, SIZE)
    q, k = (F.normalize(torch.randn(shape, generator=generator), dim=-1) for _ in range(2))
    v, g = torch.randn(shape, generator=generator), -0.3 * torch.rand(shape, generator=generator)
    b, w = (torch.rand(shape, generator=generator) for _ in range(2))
    return [t.to(dtype) for t in (q, k, v, g, b, w)]


def form(mode: str) -> Callable[..., torch.Tensor]:
    return lambda *inputs: gated_delta_rule2(*inputs, mode=mode, validate=False)[0]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)


def fla(name: str) -> Callable[..., torch.Tensor]:
    with warnings.catch_warnings():  # it misses a GPU
        warnings.simplefilter("ignore", UserWarning)
        from fla.ops.gdn2 import naive as gdn2
        from fla.ops.kda import naive as kimi
    if "kda" in name:
        return lambda q, k, v, g, b, w: getattr(kimi, name)(q, k, v, g, b[..., 0])[0]
    return lambda *inputs: getattr(gdn2, name)(*inputs)[0]


def both(call: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> Callable[[], Any]:
    leaves = [t.clone().requires_grad_() for t in inputs]
    return lambda: torch.autograd.grad(call(*leaves).sum(), leaves, allow_unused=True)


def forward(length: int, slow: bool) -> dict[str, Callable[[], Any]]:
    inputs = problem(length)
    q, k, v, g, b, _ = inputs
    a = g.mean(-1)
    calls: dict[str, Callable[[], Any]] = {
        "numba": lambda: form("numba")(*inputs),
        "chunk": lambda: form("chunk")(*inputs),
        "numba, as KDA": lambda: kda(q, k, v, g, b[..., 0], mode="numba", validate=False),
        "semiseparable SSD": lambda: ssd_scan(v, a, k, q, validate=False),
        "causal attention": lambda: attention(*inputs),
    }
    if slow:
        calls["recurrence in torch"] = lambda: form("recurrent")(*inputs)
        if find_spec("fla"):
            for name in ("naive_chunk_gdn2", "naive_recurrent_gdn2", "naive_chunk_kda"):
                calls[f"fla {name}"] = partial(fla(name), *inputs)
    return calls


def backward(length: int, slow: bool) -> dict[str, Callable[[], Any]]:
    inputs = problem(length)
    calls = {"numba": both(form("numba"), inputs), "chunk": both(form("chunk"), inputs),
             "chunk, checkpointed": both(lambda *t: gated_delta_rule2(*t, mode="chunk", checkpoint=True, validate=False)[0],
                                         inputs),
             "causal attention": both(attention, inputs)}  # fmt: skip
    if slow:
        calls["recurrence in torch"] = both(form("recurrent"), inputs)
    return calls


def training(length: int) -> dict[str, Callable[[], Any]]:
    """A step of a model of two layers, four heads of 32: what the gates cost."""
    tokens = torch.randint(256, (1, length), generator=torch.Generator().manual_seed(0))
    sizes = {"vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 2, "head_dim": 32, "num_heads": 4}

    def step(name: str) -> Callable[[], Any]:
        model = build(name, match=False, **sizes).train()
        return lambda: model(tokens, labels=tokens).loss.backward()

    return {name: step(name) for name in VARIANTS}


def decoding(position: int) -> dict[str, Callable[[], Any]]:
    """32 tokens after a text."""
    sizes = {"vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 2, "head_dim": 32, "num_heads": 4}
    tokens = torch.zeros(1, position, dtype=torch.long)

    def tail(name: str) -> Callable[[], Any]:
        model = build(name, match=False, **sizes).eval()
        cache = model(tokens, use_cache=True, logits_to_keep=1).cache

        def some() -> None:
            for _ in range(32):
                model(tokens[:, :1], cache=cache, use_cache=True)

        return some

    with torch.no_grad():
        calls = {name: tail(name) for name in ("gdn2", "transformer")}
    return {name: torch.no_grad()(call) for name, call in calls.items()}


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--quick", action="store_true", help="up to 1024 tokens only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = bench.Table()
    lengths = (256, 512, 1024) if options.quick else (512, 1024, 2048, 4096, 8192)
    slow_at = lengths[2]
    own: dict[str, list[float]] = {"forward": [], "forward and backward": []}
    for work, make, repeats in (("forward", forward, 5), ("forward and backward", backward, 3)):
        for length in lengths:
            with torch.set_grad_enabled(work != "forward"):
                times = bench.seconds(make(length, length == slow_at), repeats, clock=options.clock)
            own[work].append(times["numba"])
            table.times(f"{work}, T = {length}, {HEADS} heads of {SIZE} x {SIZE}", times)
        exponent = float(np.polyfit(np.log(lengths), np.log(own[work]), 1)[0])
        table.add(f"{work}: time grows as T to the power", exponent, "")
    table.times("training step, 1024 tokens", bench.seconds(training(1024), 3, clock=options.clock))
    for position in (256, 8192):
        table.times(f"32 decoded tokens after {position}", bench.seconds(decoding(position), 5, clock=options.clock))
    table.save(options.json)


if __name__ == "__main__":
    main()
