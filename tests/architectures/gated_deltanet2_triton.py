"""Run by test_gated_deltanet2_triton.py in a process of its own, where TRITON_INTERPRET is set before Triton loads.

Prints one JSON line: the largest error of each result against the float64 recurrence.
"""

import json
import sys

import torch
from torch.nn import functional as F

from gnomon.architectures import gated_delta_rule2

SHAPES = {"128 by 64": (1, 128, 2, 16, 16, 64), "50 by 32": (2, 50, 1, 8, 20, 32)}


def problem(B, T, H, K, V, depth, generator):
    q, k = (F.normalize(torch.randn(B, T, H, K, generator=generator), dim=-1) for _ in range(2))
    v = torch.randn(B, T, H, V, generator=generator)
    g = -depth * torch.rand(B, T, H, K, generator=generator)
    b, w = torch.rand(B, T, H, K, generator=generator), torch.rand(B, T, H, V, generator=generator)
    return [q, k, v, g, b, w, torch.randn(B, H, K, V, generator=generator)]


def results():
    generator = torch.Generator().manual_seed(0)
    for name, (*shape, chunk) in SHAPES.items():
        for depth in (0.3, 60.0) if chunk == 32 else (2.0,):
            inputs = problem(*shape, depth, generator)
            inputs[3][:, 20] = -torch.inf
            single = [t.requires_grad_() for t in inputs]
            exact = [t.detach().double().requires_grad_() for t in inputs]

            def run(mode, *inputs, chunk=chunk):
                return gated_delta_rule2(*inputs[:6], initial_state=inputs[6], mode=mode, chunk_size=chunk)

            mine, truth = run("triton", *single), run("recurrent", *exact)
            weights = [torch.randn(t.shape, generator=generator) for t in mine]
            grads = [
                torch.autograd.grad(sum((t * w.to(t.dtype)).sum() for t, w in zip(out, weights, strict=True)), leaves)
                for out, leaves in ((mine, single), (truth, exact))
            ]
            names = ("o", "S", *(f"d{x}" for x in "qkvgbwS"))
            for which, one, other in zip(names, (*mine, *grads[0]), (*truth, *grads[1]), strict=True):
                yield f"{name}, {depth}: {which}", one, other
    inputs = [t.detach() for t in problem(1, 40, 1, 8, 8, 0.5, generator)]
    cuts = torch.tensor([0, 17, 40])
    states = torch.randn(2, 1, 8, 8, generator=generator)
    packed = [gated_delta_rule2(*(t.to(d) for t in inputs[:6]), initial_state=states.to(d), cu_seqlens=cuts, mode=mode,
                                chunk_size=16) for mode, d in (("triton", torch.float), ("recurrent", torch.double))]  # fmt: skip
    yield "packed: o", packed[0][0], packed[1][0]
    yield "packed: S", packed[0][1], packed[1][1]


def refusals():
    inputs = [t.double() for t in problem(1, 16, 1, 4, 4, 0.5, torch.Generator().manual_seed(0))[:6]]
    for name, tensors, options in (
        ("chunk", [t.float() for t in inputs], {"chunk_size": 48}),
        ("block", [t.float() for t in inputs], {"sub_chunk": 24}),
        ("float64", inputs, {}),
    ):
        try:
            gated_delta_rule2(*tensors, mode="triton", **options)
        except ValueError as error:
            yield name, str(error)


if __name__ == "__main__":
    errors = {
        name: float((got.detach().double() - expected.detach()).abs().max() / expected.detach().abs().max())
        for name, got, expected in results()
    }
    sys.stdout.write(json.dumps({"errors": errors, "refusals": dict(refusals())}) + "\n")
