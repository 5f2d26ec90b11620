"""What is measured, and where."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gnomon.architectures.dormant_spiking.study.contenders import LAZY, Problem, Recipe
from gnomon.architectures.dormant_spiking.study.material import EPOCHS, PLAIN, measures, network, neuron, split
from gnomon.study import Experiment, grid, higher, lower, stage

if TYPE_CHECKING:
    import numpy as np

SHARED = ("epochs", "hidden", "samples")
WORK = {"accuracy": higher(), "pj": lower("pJ"), "pj_rest": lower("pJ"), "pj_once": lower("pJ"), "synops": lower("additions"),
        "macs": lower("multiplications"), "awake": lower("share"), "rate": lower("spikes per neuron-step")}  # fmt: skip


class Folds(Experiment):
    """What all share: a fold of the data, and the networks that are trained once on it."""

    metrics = WORK

    @stage(version=1, inputs=SHARED, cell=("data",))
    def plain(self, inputs: Any, cell: Any, seed: int) -> dict[str, Any]:
        """The trained network of plain neurons, as its state."""
        return _trained(inputs, cell, seed, PLAIN)

    def problem(self, inputs: Any, cell: Any, dormant: dict[str, Any] | None = None) -> Problem:
        fold = split(cell.data, cell.seed, inputs.samples)
        return Problem(fold, cell, inputs.hidden, inputs.epochs, cell.seed, self.plain(inputs, cell), dormant)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        return self.problem(inputs, cell)

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        yield measures(contender(problem), problem.fold)


class Trained(Folds):
    """And a network of dormant neurons, trained as the cell says."""

    @stage(version=1, inputs=SHARED, cell=("data", "wake", "v_dormant", "learn"))
    def dormant(self, inputs: Any, cell: Any, seed: int) -> dict[str, Any]:
        """The trained network of dormant neurons, as its state."""
        return _trained(inputs, cell, seed, neuron(cell))

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Problem:
        return self.problem(inputs, cell, self.dormant(inputs, cell))


def _trained(inputs: Any, cell: Any, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    from gnomon.architectures.dormant_spiking.networks import fit

    fold = split(cell["data"], seed, inputs.samples)
    net = network(cell["data"], inputs.hidden, seed, **options)
    fit(net, fold.X, fold.y, epochs=max(1, round(inputs.epochs * EPOCHS[cell["data"]])), seed=seed)
    return dict(net.state_dict())


class Diagnosis(Folds):
    """How much of a trained plain network is deeply inhibited, and does it fire later?"""

    cells = grid(data=["digits", "events"])
    contenders = {"lif": Recipe("lif")}
    metrics = {"low": higher("share"), "mostly_low": higher("share"), "fires_if_low": lower("probability"),
               "fires_otherwise": higher("probability"), "ops_on_low": higher("share")}  # fmt: skip

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        from gnomon.architectures.dormant_spiking.networks import batches
        from gnomon.architectures.dormant_spiking.profile import inhibition_profile

        profile = inhibition_profile(contender(problem), batches(problem.fold.X_test, size=400))
        for layer, row in enumerate(profile.drop(columns="layer").fillna(0.0).to_dict("records")):
            yield {"layer": layer, **{str(k): float(v) for k, v in row.items()}}


class PostHoc(Folds):
    """Is the low state really idle: what does a gate cost that the network was not trained with?"""

    cells = grid(data=["digits", "events"])
    contenders = {"post hoc": Recipe("post hoc"), "lif": Recipe("lif")}


class Networks(Trained):
    """Trained dormant networks beside plain, pruned, rate-regularised and randomly gated ones."""

    cells = grid(data=["digits"], wake=["leak"], v_dormant=[-0.25], learn=[False]) \
        + grid(data=["digits"], wake=["never"], v_dormant=[-0.25, -0.1], learn=[False]) \
        + grid(data=["events"], wake=["leak", "never"], v_dormant=[-0.25], learn=[False])  # fmt: skip
    contenders = {name: Recipe(name) for name in (
        "dormant", "lif", "detach gate", "random", "random post hoc", "rate", "rate + dormant", "pruned", "pruned + dormant",
        "unstructured", "structured", "energy loss", "adaptive threshold", "relu")}  # fmt: skip

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        if contender in ("dormant", "lif"):
            return True
        if cell.data != "digits":
            return False
        if contender in ("unstructured", "structured"):
            return bool(cell.wake == "never")
        if contender == "detach gate":  # reported, not judged
            return bool(cell.wake == "leak" and cell.seed < 3)
        if contender in ("energy loss", "adaptive threshold", "relu", "random post hoc"):  # outside the claims
            return bool(cell.wake == "leak" and cell.seed == 0)
        return bool(cell.wake == "leak")


class Sweep(Trained):
    """Accuracy and energy by dormancy threshold, by what ends the sleep, and with a learned threshold."""

    cells = grid(data=["digits"], wake=["leak", "never", "after"], v_dormant=[-1.0, -0.5, -0.25, -0.1], learn=[False]) \
        + grid(data=["digits"], wake=["leak", "never"], v_dormant=[-1.0, -0.5, -0.25, -0.1], learn=[True])  # fmt: skip
    contenders = {"dormant": Recipe("dormant")}
    seeds = 1


class Other(Trained):
    """The same on a convolutional network for MNIST and on MNIST-1D (at the extended scale)."""

    cells = grid(data=["mnist", "mnist1d"], wake=["leak", "never"], v_dormant=[-0.25], learn=[False])
    contenders = {"dormant": Recipe("dormant"), "lif": Recipe("lif")}


class Activity(Trained):
    """Who is awake, and who fires, by layer and step."""

    cells = grid(data=["digits"], wake=["leak", "never"], v_dormant=[-0.25], learn=[False])
    contenders = {"dormant": Recipe("dormant"), "lif": Recipe("lif")}
    metrics = {"awake_share": lower("share"), "firing": lower("spikes per neuron-step")}
    seeds = 1

    def measure(self, problem: Problem, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        import torch

        from gnomon.architectures.dormant_spiking.recording import Recording

        net = contender(problem)
        with torch.no_grad(), Recording(net) as seen:
            net(problem.fold.X_test)
        for layer, found in enumerate(seen.neurons.values()):
            for step, (awake, spikes) in enumerate(zip(found.awake, found.spikes, strict=True), 1):
                yield {"layer": layer, "step": step, "awake_share": float(awake.mean()), "firing": float(spikes.mean())}


class Lazy(Experiment):
    """Time of the lazy kernel on one layer whose neurons are awake in 30 % of their steps, and with all awake."""

    cells = grid(width=[1024])
    contenders = LAZY
    metrics = {"seconds": lower("s", log=True, timed=True)}
    unit = ("repeat",)
    seeds = 1
    repeats = 7

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        import torch
        from torch import nn

        from gnomon.architectures.dormant_spiking.neuron import DormantLIF

        width = min(cell.width, 4 * inputs.hidden)
        x = torch.from_numpy((rng.random((12, 32, width)) < 0.2).astype("float32"))
        linear = nn.Linear(width, width)
        # On a dyadic grid the currents are exact in any order of summation, so that spikes can be compared bit for bit.
        weight = torch.from_numpy(rng.standard_normal((width, width)).astype("float32")) / math.sqrt(0.2 * width)
        linear.weight.data = torch.round(weight * 256) / 256
        net = nn.Sequential(linear, DormantLIF(v_dormant=-0.25, learn_v_dormant=False))
        low, high = -4.0, 4.0
        for _ in range(12):  # the bias at which 30 % are awake
            middle = round(128 * (low + high)) / 256
            linear.bias.data.fill_(middle)
            low, high = (low, middle) if _dense(net, x).awake.mean() > 0.3 else (middle, high)
        return net, x

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        import numpy as np

        net, x = contender.of(problem[0]), problem[1]
        dense = _dense(net, x)
        contender(net, x[:, :1])  # compiled
        start = time.perf_counter()
        found = contender(net, x)
        spent = time.perf_counter() - start
        yield {"seconds": spent, "awake": found.awake[0], "additions": found.additions[0],
               "identical": bool(np.array_equal(found.spikes[0], dense.spikes.numpy().astype(bool)))}  # fmt: skip


def _dense(net: Any, x: Any) -> Any:
    import torch

    from gnomon.architectures.dormant_spiking.functional import dormant_lif

    with torch.no_grad():
        return dormant_lif(net[0](x), v_dormant=net[1].v_dormant)
