"""The experiments: digits, photograph patches and the published nets; the bound alone; pruning alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from gnomon.guarantees.focusbranch.bounds import BOX, ImageBounds
from gnomon.guarantees.focusbranch.families import masks_of
from gnomon.guarantees.focusbranch.method import FocusBranch, L0Result
from gnomon.guarantees.focusbranch.network import Network
from gnomon.guarantees.focusbranch.study.contenders import CONTENDERS, verifier
from gnomon.guarantees.focusbranch.study.material import data_of, first_right, network_of, published, train
from gnomon.study import Experiment, grid, higher, lower, stage

EPOCHS = {"mlp": 120, "cnn": 60, "colour": 40}
METRICS = {
    "calls": lower("bound calls", log=True),
    "seconds": lower("s", log=True),
    "visited": lower("concrete nodes", log=True),
    "leaves": lower("programs"),
    "margin": higher("score"),
    "slack": higher("score"),
}


@dataclass
class Problem:
    """A network, the images it labels right, and how each is looked at."""

    network: Network
    images: np.ndarray
    labels: np.ndarray
    t: int
    timeout: float
    samples: int
    first: int = 0  # number of the first image


def measured(problem: Problem, factory: Any, seed: int) -> list[dict[str, Any]]:
    """A row an image."""
    rows = []
    for i, (image, label) in enumerate(zip(problem.images, problem.labels, strict=True)):
        made = verifier(factory, problem.t, problem.timeout, problem.samples, seed)
        found = made.verify(problem.network, image, int(label))
        rows.append({"image": problem.first + i, **summary(found, problem, image, int(label))})
    return rows


def summary(found: L0Result, problem: Problem, image: np.ndarray, label: int) -> dict[str, Any]:
    """What is kept of a result."""
    counts = found.counts
    timed_out = found.status == "timeout"
    return {
        "verdict": found.status,
        "calls": float(max(counts.calls, 1)),
        "seconds": max(problem.timeout if timed_out else found.seconds, 1e-4),
        "timed_out": int(timed_out),
        "decided": int(found.status in ("verified", "falsified")),
        "confirmed": int(confirmed(found, problem, image, label)),
        "visited": float(max(counts.concrete, 1)),
        "leaves": float(counts.leaves),
        "sampling": float(counts.sampling),
        "sampling_seconds": counts.sampling_seconds,
        "predicted": None if math.isnan(found.predicted_seconds) else found.predicted_seconds,
        "open_share": counts.open_share.get(1, 0.0),
        "plan": found.plan,
        **{f"level_{l}": float(found.nodes_by_level.get(l, 0)) for l in range(4)},
    }


def confirmed(found: L0Result, problem: Problem, image: np.ndarray, label: int) -> bool:
    """Whether an adversarial image is one: at most t pixels differ, in [0, 1], another label. True where there is none."""
    if found.status != "falsified":
        return True
    other = found.adversarial
    assert other is not None
    channels = image.reshape(problem.network.channels, -1)
    few = int((other.reshape(channels.shape) != channels).any(0).sum()) <= problem.t
    scores = problem.network.real(torch.from_numpy(other)[None])[0]
    return few and float(other.min()) >= 0 and float(other.max()) <= 1 and int(scores.argmax()) != label


class Trained(Experiment):
    """What the experiments on our own nets share."""

    metrics = METRICS
    unit = "image"
    seeds = 1

    @stage(version=1, inputs=("training",), cell=("net",), seeded=False)
    def weights(self, inputs: Any, cell: Any, seed: Any) -> dict[str, np.ndarray]:
        return train(cell.net, max(1, round(EPOCHS[cell.net] * inputs.training)))

    def problem(self, inputs: Any, cell: Any, n: int) -> Problem:
        network, _ = network_of(cell.net, self.weights(inputs, cell))
        data = data_of(cell.net)
        rows = first_right(network, data.test, data.test_labels, n)
        return Problem(network, data.test[rows], data.test_labels[rows], cell.t, inputs.timeout, inputs.samples)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        return self.problem(inputs, cell, inputs.images)

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        return measured(problem, contender, int(rng.integers(2**31)))


class Digits(Trained):
    """A: digits, a dense and a convolutional net, every verifier; brute force is the judge.

    A contender of your own takes t and the options of FocusBranch, and has ``verify``.
    """

    cells = grid(net=["mlp", "cnn"], t=[1, 2, 3])
    contenders = {n: f for n, f in CONTENDERS.items() if n != "hull"}

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        if contender == "brute force":
            return bool(cell.t <= 2)
        if contender == "ball program":  # a binary for each pixel: minutes for each image from two pixels on
            return bool(cell.t == 1 and cell.net == "mlp") or inputs.scale in ("extended", "paper")
        return True


class Colour(Trained):
    """C: patches of photographs in colour, three channels a pixel."""

    cells = grid(net=["colour"], t=[1, 2])
    contenders = {n: CONTENDERS[n] for n in ("auto", "calzone", "level 1", "brute force")}

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return contender != "brute force" or cell.t == 1


class Published(Experiment):
    """B: Calzone's own nets on MNIST, 784 pixels."""

    cells = grid(net=["ConvSmall", "6x200"], t=[1, 2, 3, 4, 5])
    contenders = dict(CONTENDERS)
    metrics = METRICS
    unit = "image"
    seeds = 1

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return contender not in ("brute force", "ball program")

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        network, images, labels = published(cell.net)
        n = inputs.published[min(cell.t, len(inputs.published)) - 1]
        rows = first_right(network, images, labels, n)
        return Problem(network, images[rows], labels[rows], cell.t, inputs.published_timeout, inputs.samples)

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        return measured(problem, contender, int(rng.integers(2**31)))


class Bounds(Trained):
    """The bound of the whole ball beside that of the box of all pixels, and margins along paths from root to leaf."""

    cells = grid(net=["mlp", "cnn"], t=[3])
    contenders = {"hull": "hull", "box": "box", "paths": "paths"}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        return self.problem(inputs, cell, inputs.bounded)

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        rows = []
        double = problem.network.to(torch.float64)
        v, t = double.pixels, problem.t
        for i, (image, label) in enumerate(zip(problem.images, problem.labels, strict=True)):
            if contender == "paths" and i >= 20:
                break
            own = ImageBounds(double, torch.from_numpy(image), int(label), t, ball=contender == "paths")
            if contender == "paths":
                rows.append({"image": i, "slack": min(self._path(own, rng, t) for _ in range(5))})
            else:
                mask, level = np.full((1, v), contender == "box"), BOX if contender == "box" else 0
                rows.append({"image": i, "margin": float(own.bound(mask, level).margins.min())})
        return rows

    @staticmethod
    def _path(own: ImageBounds, rng: np.random.Generator, t: int) -> float:
        """Least gain of a margin along root, level 1, ..., leaf, each child bounded with what its parent knows."""
        pixels = rng.permutation(own.network.pixels)[:t]
        assert own.root is not None
        parent, least = own.root, math.inf
        for l in range(1, t + 1):
            child = own.bound(masks_of(np.sort(pixels[:l])[None], own.network.pixels), l, parent=parent)
            least = min(least, float((child.margins - parent.margins).min()))
            parent = child
        return least


class Pruning(Trained):
    """Concrete sets from single pixels on, with and without the pruning by subsets."""

    cells = grid(net=["mlp"], t=[2, 3])
    contenders = {
        "pruned": partial(FocusBranch, strategy="levels"),
        "unpruned": partial(FocusBranch, strategy="levels", prune=False),
    }


def instances(tables: dict[str, Any], names: tuple[str, ...] = ("Digits", "Colour", "Published")) -> Any:
    """The rows of several experiments, with a column that names the instance."""
    import pandas as pd

    found = []
    for name in names:
        if name in tables and len(tables[name]):
            rows = tables[name].assign(experiment=name)
            keys = zip(rows["experiment"], rows["net"], rows["t"], rows["image"], strict=True)
            rows["instance"] = [" ".join(map(str, key)) for key in keys]
            found.append(rows)
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()
