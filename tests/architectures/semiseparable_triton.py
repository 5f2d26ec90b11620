"""Run by test_semiseparable_triton.py in a process of its own, where TRITON_INTERPRET is set before Triton loads.

Prints one JSON line: the largest error of each kernel against the float64 reference.
"""

import json
import sys

import torch

from gnomon.architectures import segsum
from gnomon.architectures.semiseparable import ssd_scan
from gnomon.architectures.semiseparable.baselines import recurrence


def masks():
    generator = torch.Generator().manual_seed(0)
    for length in (16, 64):
        a = -0.3 * torch.rand(3, length, generator=generator)
        a[0, 5], a[0, length // 2] = -torch.inf, -torch.inf
        truth = segsum(a.double(), "direct")
        for form in ("product", "log"):
            for block in (8, 16, 32):
                mask = segsum(a, form=form, block=block, backend="triton")
                yield f"hier {form} {length}/{block}", mask, truth
        yield f"direct {length}", segsum(a, "direct", backend="triton"), truth
        for method in ("diff", "diff_clamped"):
            yield f"{method} {length}", segsum(a[1:], method, backend="triton"), truth[1:]


def layers():
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 64, 2, 16, 1, 16, 32, "auto"), (2, 50, 2, 5, 2, 6, 16, 16), (1, 70, 4, 16, 2, 16, 16, 32)]
    for b, T, h, P, g, N, chunk, split in shapes:
        x, B, C = (torch.randn(b, T, *s, generator=generator) for s in ((h, P), (g, N), (g, N)))
        a = -0.3 * torch.rand(b, T, h, generator=generator)
        a[:, 20] = -torch.inf
        state = torch.randn(b, h, P, N, generator=generator)
        inputs = [t.requires_grad_() for t in (x, a, B, C, state)]

        def run(backend, x, a, B, C, state, chunk=chunk, split=split):
            return ssd_scan(x, a, B, C, chunk_size=chunk, split=split, block=8, initial_state=state, backend=backend,
                            return_final_state=True)  # fmt: skip

        y, last = run("triton", *inputs)
        exact = [t.detach().double().requires_grad_() for t in inputs]
        y64, last64 = run("torch", *exact)
        name = f"layer {T} by {chunk}"
        yield f"{name}: reference", y64, recurrence(*exact)
        yield f"{name}: y", y, y64
        yield f"{name}: state", last, last64
        mine = torch.autograd.grad(y.square().sum() + last.sum(), inputs)
        theirs = torch.autograd.grad(y64.square().sum() + last64.sum(), exact)
        for which, one, other in zip("xaBCS", mine, theirs, strict=True):
            yield f"{name}: d{which}", one, other
    # float16, not bfloat16, which the interpreter's dot products take for integers.
    half, _ = run("triton", x.half(), a, B.half(), C.half(), state)
    yield "layer half", half, y64


def refusals():
    a, one = torch.zeros(2, 24), torch.zeros(1, 4, 1, 1)
    inputs = (one, one[..., 0], one, one)
    for name, call in {
        "Q": lambda: segsum(a, backend="triton"),
        "block": lambda: segsum(a[:, :16], block=5, backend="triton"),
        "layer chunk": lambda: ssd_scan(*inputs, chunk_size=24, backend="triton"),
        "layer method": lambda: ssd_scan(*inputs, segsum="diff", backend="triton"),
        "float64": lambda: ssd_scan(*(t.double() for t in inputs), backend="triton"),
    }.items():
        try:
            call()
        except ValueError as error:
            yield name, str(error)


if __name__ == "__main__":
    errors = {
        name: float((got.detach().double() - expected.detach().double()).abs().max() / expected.abs().max())
        for name, got, expected in [*masks(), *layers()]
    }
    sys.stdout.write(json.dumps({"errors": errors, "refusals": dict(refusals())}) + "\n")
