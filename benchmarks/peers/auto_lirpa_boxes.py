"""auto_LiRPA's side of bench_focusbranch.py, run by the interpreter of its own environment.

    python auto_lirpa_boxes.py IN.npz REPEATS OUT.npz

Reads weights w0, b0, ..., the image, label, masks and t; writes the least wall and processor seconds of a batch of boxes, its
margins, and the least values of one linear layer under its l0 perturbation.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from auto_LiRPA import BoundedModule, BoundedTensor
from auto_LiRPA.perturbations import PerturbationL0Norm, PerturbationLpNorm
from torch import nn


def contrast(label: int, classes: int, n: int) -> torch.Tensor:
    """Rows e_y - e_j, for each of n inputs."""
    rows = -torch.eye(classes)
    rows[:, label] += 1
    return rows[[j for j in range(classes) if j != label]][None].expand(n, -1, -1).contiguous()


def main() -> None:
    torch.set_num_threads(1)
    given, repeats, out = np.load(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    layers: list[nn.Module] = []
    for i in range(int(given["layers"])):
        weight = torch.from_numpy(given[f"w{i}"])
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data, linear.bias.data = weight, torch.from_numpy(given[f"b{i}"])
        layers += [linear, nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    image, masks, label, t = (
        torch.from_numpy(given["image"]),
        torch.from_numpy(given["masks"]),
        int(given["label"]),
        int(given["t"]),
    )
    x = image[None].expand(len(masks), -1).contiguous()
    low, high = torch.where(masks, 0.0, x), torch.where(masks, 1.0, x)
    model = BoundedModule(net, torch.empty_like(x))
    C = contrast(label, layers[-2].out_features, len(x))
    boxes = BoundedTensor(x, PerturbationLpNorm(norm=np.inf, x_L=low, x_U=high))
    wall, cpu = [], []
    with torch.no_grad():
        for _ in range(repeats + 1):
            start = time.perf_counter(), time.process_time()
            margins, _ = model.compute_bounds(x=(boxes,), C=C, method="backward", bound_upper=False)
            wall.append(time.perf_counter() - start[0])
            cpu.append(time.process_time() - start[1])
        one = nn.Sequential(nn.Linear(x.shape[1], 5, bias=False))
        one[0].weight.data = torch.from_numpy(given["linear"])
        few = BoundedModule(one, x[:1])
        norm = PerturbationL0Norm(eps=t, x_L=torch.zeros_like(x[:1]), x_U=torch.ones_like(x[:1]))
        least, _ = few.compute_bounds(x=(BoundedTensor(x[:1], norm),), method="backward", bound_upper=False)
    np.savez(out, wall=min(wall[1:]), cpu=min(cpu[1:]), margins=margins.numpy(), least=least.numpy())


if __name__ == "__main__":
    main()
