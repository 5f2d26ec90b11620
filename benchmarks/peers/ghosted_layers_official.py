"""Fit one boundary with the official code of Ghosted Layers, from a checkout of yours, in an environment of its own.

Usage: python ghosted_layers_official.py CHECKOUT ACTIVATIONS.npz OUT.npz

Writes the operator, the seconds of CPU time, and the peak memory beyond the activations. It knows nothing of gnomon.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch


def status(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return float("nan")


checkout, activations, out = sys.argv[1:4]
sys.path.insert(0, checkout)
from lib.recovery import _compute_ghosted_from_activations  # noqa: E402

torch.set_num_threads(1)
with np.load(activations) as given:
    pre, post = torch.from_numpy(given["pre"]), torch.from_numpy(given["post"])
_compute_ghosted_from_activations(pre[:2048], post[:2048], "cpu")  # warm
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS:")
began = time.process_time()
layer = _compute_ghosted_from_activations(pre, post, "cpu")
seconds = time.process_time() - began
np.savez(out, weight=layer.get_weight().detach().numpy(), seconds=seconds, peak=status("VmHWM:") - before)
