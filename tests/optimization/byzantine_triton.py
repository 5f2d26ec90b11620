"""Run by test_byzantine_triton.py in a process of its own, where TRITON_INTERPRET is set before Triton loads.

Prints one JSON line: the largest error of the kernel against the sort in float64, by case.
"""

import json
import sys

import torch

from gnomon.optimization import TrimmedMean
from gnomon.optimization.byzantine import gpu

errors = {}
generator = torch.Generator().manual_seed(0)
for n, f, d, both in ((1, 0, 5, False), (3, 1, 130, True), (25, 5, 40, True), (64, 31, 20, False)):
    for dtype in (torch.float32, torch.float64)[: 1 + both]:
        x = torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)
        x[0] = 1e30  # a liar
        x[n // 2, : d // 2] = x[-1, : d // 2]  # ties
        truth = TrimmedMean(f)(x.double())
        found = gpu.trimmed_mean(x, f, block=32)
        assert found.dtype == dtype
        errors[f"{n} {f} {d} {dtype}"] = float(((found.double() - truth).abs() / truth.abs().clamp(min=1)).max())
strided = torch.randn(40, 9, generator=generator).T
errors["not contiguous"] = float((gpu.trimmed_mean(strided, 2, block=32) - TrimmedMean(2)(strided)).abs().max())
refusals = []
for x, f in ((torch.zeros(65, 3), 1), (torch.zeros(4, 3), 2), (torch.zeros(5, 3, dtype=torch.float16), 1)):
    try:
        gpu.trimmed_mean(x, f)
    except ValueError as error:
        refusals.append(str(error))
sys.stdout.write(json.dumps({"errors": errors, "refusals": refusals}) + "\n")
