"""Bounds of nodes beside auto_LiRPA's boxes on the same net and batch; how time grows; a whole search; leaves; coverings.

    python benchmarks/guarantees/bench_focusbranch.py [--json FILE] [--clock cpu] [--lirpa PYTHON]

One thread for all. --lirpa names the interpreter of benchmarks/peers/auto_lirpa.txt.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from rich import get_console
from torch import nn

from gnomon import datasets
from gnomon.guarantees import FocusBranch, covering_design
from gnomon.guarantees.focusbranch import concretise
from gnomon.guarantees.focusbranch.bounds import BOX, ImageBounds
from gnomon.guarantees.focusbranch.network import load_network
from gnomon.study import bench

ROOT = Path(__file__).resolve().parents[1]
T, SIZE = 3, 8


def say(text: str) -> None:
    get_console().print(text, markup=False, highlight=False, soft_wrap=True)


def dense() -> tuple[nn.Sequential, torch.Tensor, int]:
    """64-60-60-10 with random weights, and an image."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 10))
    x = torch.rand(64)
    return net, x, int(net(x).argmax())


def nodes(v: int, n: int, size: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    masks = np.zeros((n, v), bool)
    for mask in masks:
        mask[rng.choice(v, size, replace=False)] = True
    return masks


def against_lirpa(table: bench.Table, python: Path, clock: Any, n: int) -> None:
    net, x, label = dense()
    masks = nodes(64, n, SIZE)
    network = load_network(net, (64,)).to(torch.float32)
    boxes, ball = ImageBounds(network, x, label, T, ball=False), ImageBounds(network, x, label, T)
    own = bench.seconds({"node": lambda: ball.bound(masks, 1), "box": lambda: boxes.bound(masks, BOX)}, 7, clock=clock)
    table.add(f"nodes (S, 1), t = {T}, 64-60-60-10, batch {n:,}: gnomon", n / own["node"], "nodes/s")
    table.add(f"boxes of {SIZE} pixels, batch {n:,}: gnomon", n / own["box"], "nodes/s")
    if not python.is_file():
        say(
            "auto_LiRPA is left out: no environment of benchmarks/peers/auto_lirpa.txt (name its interpreter with --lirpa)"
        )
        return
    linear = torch.randn(5, 64)
    with tempfile.TemporaryDirectory() as folder:
        layers = [m for m in net if isinstance(m, nn.Linear)]
        weights = {
            f"{k}{i}": p.detach().numpy() for i, m in enumerate(layers) for k, p in (("w", m.weight), ("b", m.bias))
        }
        np.savez(
            f"{folder}/in.npz",
            layers=len(layers),
            image=x.numpy(),
            label=label,
            masks=masks,
            t=T,
            linear=linear.numpy(),
            **weights,
        )
        script = ROOT / "peers" / "auto_lirpa_boxes.py"
        done = subprocess.run(
            [python, "-W", "ignore", script, f"{folder}/in.npz", "5", f"{folder}/out.npz"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            say(f"auto_LiRPA is left out: {done.stderr.strip().splitlines()[-1]}")
            return
        with np.load(f"{folder}/out.npz") as found:
            spent = float(found["cpu" if clock == "cpu" else "wall"])
            table.add(f"boxes of {SIZE} pixels, batch {n:,}: auto_LiRPA", n / spent, "nodes/s")
            table.add(
                f"time for the batch of {n:,}: auto_LiRPA's boxes over our nodes",
                spent * 1e3,
                "ms",
                spent / own["node"],
            )
            table.add(
                f"time for the batch of {n:,}: auto_LiRPA's boxes over our boxes", spent * 1e3, "ms", spent / own["box"]
            )
            ours = boxes.bound(masks, BOX).margins.numpy()
            table.add(
                "largest difference of box margins from auto_LiRPA's", float(np.abs(ours - found["margins"]).max()), ""
            )
            least = concretise.reference(linear[None, :, None], torch.zeros(1, 5), x[None], torch.zeros(1, 64, dtype=torch.bool),
                                         torch.zeros(1, dtype=torch.long), T)  # fmt: skip
            table.add(
                "largest difference of l0 minima of a linear layer from auto_LiRPA's",
                float(np.abs(least.numpy() - found["least"]).max()),
                "",
            )


def growth(table: bench.Table, clock: Any) -> None:
    net, x, label = dense()
    own = ImageBounds(load_network(net, (64,)).to(torch.float32), x, label, T)
    counts, spent = [64, 256, 1024, 4096], []
    for n in counts:
        masks = nodes(64, n, SIZE)
        spent.append(bench.seconds({"gnomon": lambda masks=masks: own.bound(masks, 1)}, 5, clock=clock)["gnomon"])
    table.add(
        "growth of time with the batch, 64 to 4,096, exponent",
        float(np.polyfit(np.log(counts), np.log(spent), 1)[0]),
        "",
    )
    masks = nodes(64, 512, SIZE)
    rng = np.random.default_rng(0)
    a, constant = rng.standard_normal((512, 120, 1, 64), dtype=np.float32), np.zeros((512, 120), np.float32)
    image, levels = x[None].numpy(), np.ones(512, np.int64)
    index = np.arange(64)[None]
    both = {"one compiled pass": lambda: concretise.compiled(a, constant, image, index, masks, levels, T),
            "torch.topk": lambda: concretise.reference(*map(torch.from_numpy, (a, constant, image, masks, levels)), T)}  # fmt: skip
    table.times("least values of 512 x 120 functions over nodes", bench.seconds(both, 5, clock=clock))


def published(table: bench.Table, clock: Any) -> None:
    try:
        rows = np.loadtxt(datasets.data_file("focusbranch", "mnist_test_100.csv"), delimiter=",", dtype=np.float32)
    except FileNotFoundError as error:
        say(f"Calzone's nets are left out: {error}")
        return
    masks = nodes(784, 32, 30)
    image, label = torch.from_numpy(rows[0, 1:].reshape(1, 28, 28) / 255), int(rows[0, 0])
    for name, file in (("ConvSmall", "MNIST_ConvSmallPGD.onnx"), ("6x200", "MNIST_6x200_PGD.onnx")):
        network = load_network(datasets.data_file("focusbranch", file)).to(torch.float32)
        ball, boxes = ImageBounds(network, image, label, 2), ImageBounds(network, image, label, 2, ball=False)
        spent = bench.seconds(
            {"nodes": lambda b=ball: b.bound(masks, 1), "boxes": lambda b=boxes: b.bound(masks, BOX)}, 2, clock=clock
        )
        for kind, seconds in spent.items():
            table.add(f"{name}, t = 2, {kind} of 30 pixels", 32 / seconds, "nodes/s")


def search(table: bench.Table, clock: Any) -> None:
    net, x, label = dense()
    found = FocusBranch(1, leaf=None, falsify=False).verify(net, x, label)
    table.add(
        f"a search at t = 1 on 64-60-60-10 ({found.status}, {found.counts.calls} calls)", found.seconds * 1e3, "ms"
    )
    for v, k, l in ((64, 8, 2), (784, 60, 2), (784, 60, 3)):
        spent = bench.seconds(
            {"gnomon": lambda a=(v, k, l): sum(1 for _ in covering_design(*a, random_state=0))}, 2, clock=clock
        )
        table.add(f"covering design ({v}, {k}, {l})", spent["gnomon"] * 1e3, "ms")


def main() -> None:
    parser = bench.parser(__file__, __doc__)
    parser.add_argument("--lirpa", type=Path, default=ROOT / "peers" / "auto_lirpa" / "bin" / "python")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = bench.Table()
    for n in (256, 1024):
        against_lirpa(table, options.lirpa, options.clock, n)
    growth(table, options.clock)
    published(table, options.clock)
    search(table, options.clock)
    say(
        "Calzone's own code is left out: it needs ERAN, a GPU and a licence of Gurobi; it is re-implemented as a baseline"
    )
    table.save(options.json)


if __name__ == "__main__":
    main()
