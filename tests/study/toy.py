"""A small study for the tests of the runner: two experiments, two stages, a timed one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from pydantic import Field

from gnomon import study


def mean(x: np.ndarray) -> float:
    return float(x.mean())


def median(x: np.ndarray) -> float:
    return float(np.median(x))


class Location(study.Experiment):
    cells = study.grid(n=[10, 40])
    contenders = {"mean": mean, "median": median}
    metrics = {"error": study.lower(log=True)}

    @study.stage(version=1, inputs=("shift",), cell=(), seeded=False)
    def base(self, inputs, cell, seed):
        _count(f"base-{os.getpid()}-{time.time_ns()}")
        return np.full(3, inputs.shift)

    @study.stage(version=1, inputs=("shift",))
    def sample(self, inputs, cell, seed):
        base = self.base(inputs, cell)
        _count(f"sample-{cell.n}-{seed}-{time.time_ns()}")
        return base[0] + np.random.default_rng(seed).normal(size=cell.n)

    def prepare(self, inputs, cell, rng):
        if pause := os.environ.get("TOY_PAUSE"):
            time.sleep(float(pause))
        return self.sample(inputs, cell), inputs.shift, float(rng.normal())

    def measure(self, problem, contender, rng):
        x, truth, draw = problem
        return [{"error": abs(contender(x) - truth) + 1e-9, "draw": draw, "own": float(rng.normal())}]


class Speed(study.Experiment):
    contenders = {"mean": mean, "median": median}
    metrics = {"seconds": study.lower("s", timed=True, log=True)}
    unit = "repeat"
    repeats = 3
    seeds = 1

    def prepare(self, inputs, cell, rng):
        return rng.normal(size=1000)

    def measure(self, problem, contender, rng):
        start = time.perf_counter()
        contender(problem)
        return [{"seconds": time.perf_counter() - start}]


class ToyStudy(study.Study):
    title = "Toy"

    class Inputs(study.Inputs):
        shift: float = Field(0.0, description="true location")
        scales = {"smoke": {"seeds": 2, "Location": {"cells": {"n": [10]}}, "Speed": False}, "laptop": {"seeds": 4}}

    experiments = [Location, Speed]
    claims = [
        study.always(lambda t: t["error"] >= 0, table="Location", text="errors are not negative", id="not-negative"),
        study.better("error", "mean", than=["median"], each=["n"], id="mean-better"),
    ]


def _count(name: str) -> None:
    if folder := os.environ.get("TOY_COUNT"):
        Path(folder, name).touch()


class ToySystem:
    """What the catalogue gives for a system of the package."""

    area, name, slug = "toys", "toy", "toy"
    module = "tests.study.toy_package"
    summary = docstring = "A toy."

    def __init__(self, folder: Path):
        self.folder = folder

    def study(self):
        return ToyStudy

    def evidence_path(self, folder=None):
        return (folder or self.folder) / self.area / f"{self.name}.json"

    def figure(self, scale, folder=None):
        return None

    def evidence(self, folder=None):
        import json

        path = self.evidence_path(folder)
        return (
            json.loads(path.read_text()) if path.is_file() else {"area": self.area, "system": self.name, "scales": {}}
        )
