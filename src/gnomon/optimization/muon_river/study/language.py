"""A language model on source code: one Muon run, and what it ends at by every way on from its checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.optimization.muon_river.baselines import cosine, linear
from gnomon.optimization.muon_river.study import material
from gnomon.study import Experiment, grid, lower, stage

if TYPE_CHECKING:
    import torch

SWITCHES = [0.3, 0.6, 0.8, 0.9]
LR_MUON, LR_AUX = 0.02, 3e-3
SMALL = 4096  # bytes of the small corpus, near whose bottom the model comes


@dataclass(frozen=True)
class Branch:
    """A way on: Muon with a schedule over what is left, or a refiner whose rate falls linearly to zero."""

    kind: str
    lr: float = LR_MUON
    schedule: str = "constant"


BRANCHES = {
    "muon": Branch("muon"),
    "muon linear": Branch("muon", schedule="linear"),
    "muon cosine": Branch("muon", schedule="cosine"),
    "adamw 1e-3": Branch("adamw", 1e-3, "linear"),
    "adamw 3e-4": Branch("adamw", 3e-4, "linear"),
    "sgd": Branch("sgd", 0.05, "linear"),
}
REFINERS = ("adamw 1e-3", "adamw 3e-4", "sgd")
THROUGHOUT = Branch("adamw throughout", 3e-3, "linear")


class Run:
    """One training run: the model, its two optimisers, and its place in the data."""

    def __init__(self, inputs: Any, data: str, seed: int) -> None:
        self.tokens = material.source()[0][: SMALL if data == "small" else None]
        self.model, self.seed, self.step, self.total = material.small(seed), seed, 0, inputs.steps
        self.held = material.windows(material.source()[1], 64, inputs.held)
        from gnomon.optimization.muon_river.method import split

        self.matrices, others = split(self.model)
        import torch

        self.aux = torch.optim.AdamW(others, lr=LR_AUX, weight_decay=0.0)  # the same in every branch
        self.main = self.make(BRANCHES["muon"])

    def make(self, branch: Branch) -> torch.optim.Optimizer:
        """The optimiser of the hidden matrices."""
        import torch

        from gnomon.optimization.spectral_descent.method import SpectralDescent

        if branch.kind == "muon":
            return SpectralDescent(
                self.matrices, branch.lr, 0.95, True, "newton_schulz", ns_dtype=torch.float32, scale="original"
            )
        if branch.kind == "sgd":
            return torch.optim.SGD(self.matrices, branch.lr, momentum=0.9)
        return torch.optim.AdamW(self.matrices, branch.lr, weight_decay=0.0)

    def go(self, until: int, branch: Branch) -> None:
        """On to a step, with the branch's schedule over what is left from here."""
        start, left = self.step, max(1, self.total - self.step)
        factor = {"constant": lambda t: 1.0, "linear": linear(left), "cosine": cosine(left)}[branch.schedule]
        while self.step < until:
            ids = material.batch(self.tokens, 64, self.seed, self.step)
            self.main.zero_grad()
            self.aux.zero_grad()
            self.model(input_ids=ids, labels=ids).loss.backward()
            for group in self.main.param_groups:
                group["lr"] = branch.lr * factor(self.step - start)
            self.main.step()
            self.aux.step()
            self.step += 1

    def state(self) -> dict[str, Any]:
        """A checkpoint."""
        return copy.deepcopy({"model": self.model.state_dict(), "main": self.main.state_dict(), "aux": self.aux.state_dict(),
                              "step": self.step})  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        """Back to a checkpoint of a Muon run."""
        state = copy.deepcopy(state)
        self.model.load_state_dict(state["model"])
        self.main = self.make(BRANCHES["muon"])
        self.main.load_state_dict(state["main"])
        self.aux.load_state_dict(state["aux"])
        self.step = state["step"]

    def finish(self, branch: Branch, state: dict[str, Any] | None) -> float:
        """The validation loss at the end of a branch from a checkpoint (None: from the start)."""
        if state is not None:
            self.load(state)
        if branch.kind != "muon":
            self.main = self.make(branch)
        self.go(self.total, branch)
        return material.validation(self.model, self.held)


class Trunk(Experiment):
    """What the experiments on language share: the Muon run's checkpoints, and seed 0's scan of all ways on."""

    metrics = {"loss": lower("nats")}

    @stage(version=1, inputs=("steps", "held"), cell=("data",))
    def trunk(self, inputs: Any, cell: Any, seed: int) -> dict[float, dict[str, Any]]:
        """The checkpoints of one Muon run, by share of the steps."""
        run, found = Run(inputs, cell.data, seed), {}
        for share in SWITCHES:
            run.go(round(share * inputs.steps), BRANCHES["muon"])
            found[share] = run.state()
        return found

    @stage(version=1, inputs=("steps", "held"), cell=("data",), seeded=False)
    def scan(self, inputs: Any, cell: Any, seed: None) -> list[dict[str, Any]]:
        """Final validation losses of seed 0, by switch and branch."""
        states = self.trunk(inputs, cell, 0)
        run = Run(inputs, cell.data, 0)
        return [{"switch": share, "branch": name, "loss": run.finish(branch, states[share])}
                for share in SWITCHES for name, branch in BRANCHES.items()]  # fmt: skip


class Scan(Trunk):
    """Where, if anywhere, switching pays: four switch times, all branches, much data and little, seed 0."""

    cells = grid(data=["large", "small"], switch=SWITCHES)
    contenders = BRANCHES
    seeds = 1

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        return [row for row in self.scan(inputs, cell) if row["switch"] == cell.switch]

    def measure(
        self, problem: list[dict[str, Any]], contender: Any, rng: np.random.Generator
    ) -> Iterator[dict[str, Any]]:
        name = next(n for n, b in BRANCHES.items() if b == contender)
        yield from ({"loss": row["loss"]} for row in problem if row["branch"] == name)


class Judged(Trunk):
    """The refiner and the switch that were best on seed 0, against Muon's ways on, on other seeds."""

    cells = grid(data=["large", "small"])
    contenders = {"two-stage": Branch("chosen"), **{n: BRANCHES[n] for n in ("muon", "muon linear", "muon cosine")},
                  "adamw throughout": THROUGHOUT}  # fmt: skip

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return cell.data == "large" or contender not in ("muon cosine", "adamw throughout")

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> dict[str, Any]:
        best = min((row for row in self.scan(inputs, cell) if row["branch"] in REFINERS), key=lambda row: row["loss"])
        seed = cell.seed + 1
        return {
            "inputs": inputs,
            "data": cell.data,
            "seed": seed,
            "best": best,
            "state": self.trunk(inputs, cell, seed)[best["switch"]],
        }

    def measure(self, problem: dict[str, Any], contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        best = problem["best"]
        branch = BRANCHES[best["branch"]] if contender.kind == "chosen" else contender
        run = Run(problem["inputs"], problem["data"], problem["seed"])
        loss = run.finish(branch, None if branch == THROUGHOUT else problem["state"])
        yield {"loss": loss, "switch": best["switch"], "refiner": best["branch"]}
