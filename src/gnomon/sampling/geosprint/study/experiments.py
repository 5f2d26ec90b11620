"""The experiments: samples in few calls, what the profile says, flows, and what the pilot costs."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from gnomon import study
from gnomon.sampling.geosprint import baselines, steps
from gnomon.sampling.geosprint.hyperplanarity import ProfileStream, hyperplanarity_profile
from gnomon.sampling.geosprint.method import GeoSprint
from gnomon.sampling.geosprint.samplers import ddim_sample
from gnomon.sampling.geosprint.straightness import trajectory_report
from gnomon.sampling.geosprint.study import worlds
from gnomon.sampling.geosprint.study.contenders import CONTENDERS, FEW, Contender, Task
from gnomon.sampling.geosprint.study.distances import frechet, mmd, rmse

SAMPLING = {"fd": study.lower(log=True), "rmse": study.lower(log=True), "mmd": study.lower()}


class Worlds(study.Experiment):
    """What experiments on trained or exact models share."""

    @study.stage(version=1, inputs=("components",), cell=(), seeded=False)
    def mixture(self, inputs: Any, cell: Any, seed: int | None) -> worlds.Weights:
        """A Gaussian mixture of the digits."""
        return worlds.fit_mixture(inputs.components)

    @study.stage(version=1, inputs=("poor_updates",), cell=(), seeded=False)
    def poor(self, inputs: Any, cell: Any, seed: int | None) -> worlds.Weights:
        """A poor noise predictor."""
        return worlds.train_poor(inputs.poor_updates)

    def world(self, inputs: Any, cell: Any) -> worlds.World:
        if cell.world == "mixture":
            return worlds.mixture_world(self.mixture(inputs, cell))
        if cell.world == "poor network":
            return worlds.poor_world(self.poor(inputs, cell))
        return worlds.own_world(inputs.model)

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        if (cell.world == "own") != (inputs.model is not None):
            return False
        return cell.world == "mixture" or contender in FEW


class Digits(Worlds):
    """How close do n network calls come to a thousand, from the same noise, with an exact score and with a poor network?

    A contender of your own is a function ``(task, n, rng)`` that gives samples from ``task.noise`` with ``task.world``
    as the denoiser, in n calls of it.
    """

    cells = study.grid(world=["mixture", "poor network", "own"])
    contenders = CONTENDERS
    metrics = SAMPLING

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        world = self.world(inputs, cell)
        pilot_noise, noise = world.noise(inputs.n_pilot, rng), world.noise(inputs.samples, rng)
        pilot = baselines.run_pilot(world, world.schedule, pilot_noise, inputs.grid, world.prediction_type)
        every = range(len(world.schedule) - 1, -1, -1)
        truth = ddim_sample(world, noise, every, world.schedule, world.prediction_type)
        return SimpleNamespace(task=Task(world, noise, pilot), truth=truth, nfes=inputs.nfes,
                               draws=2 if cell.world == "mixture" else 1)  # fmt: skip

    def measure(self, problem: Any, contender: Contender, rng: np.random.Generator) -> list[dict[str, Any]]:
        rows = []
        reference = _pooled(problem.truth)
        draws = problem.draws if contender is CONTENDERS["random"] else 1  # 10 over five seeds
        for n in problem.nfes:
            for draw in range(draws):
                before = problem.task.world.calls
                x = contender(problem.task, n, rng)
                flat = _pooled(x)
                rows.append({"nfe": n, "draw": draw, "calls": problem.task.world.calls - before,
                             "fd": frechet(flat, reference), "rmse": rmse(x, problem.truth), "mmd": mmd(flat, reference)})  # fmt: skip
        return rows


def _pooled(x: torch.Tensor) -> np.ndarray:
    """(n, d) for a Frechet distance: images of a person's own model are pooled to 8 x 8."""
    if x.ndim == 4 and x.shape[-1] > 8:
        x = torch.nn.functional.adaptive_avg_pool2d(x, 8)
    return x.flatten(1).double().cpu().numpy()


class Mnist(study.Experiment):
    """How do the digits of a small U-Net look to a classifier, in n network calls?"""

    contenders = {name: CONTENDERS[name] for name in FEW}
    metrics = {"fd": study.lower(log=True), "mmd": study.lower(), "confidence": study.higher()}

    @study.stage(version=2, inputs=("unet_updates",), cell=(), seeded=False)
    def unet(self, inputs: Any, cell: Any, seed: int | None) -> worlds.Weights:
        """The small diffusion model, trained once."""
        return worlds.train_unet(inputs.unet_updates)

    @study.stage(version=1, inputs=("classifier_updates",), cell=(), seeded=False)
    def classifier(self, inputs: Any, cell: Any, seed: int | None) -> worlds.Weights:
        """Who judges."""
        return worlds.train_classifier(inputs.classifier_updates)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        world = worlds.unet_world(self.unet(inputs, cell))
        pilot = baselines.run_pilot(world, world.schedule, world.noise(inputs.mnist_pilot, rng), inputs.grid)
        judge = self.classifier(inputs, cell)
        real, _ = worlds.features(judge, worlds.mnist16()[0])
        return SimpleNamespace(task=Task(world, world.noise(inputs.mnist_samples, rng), pilot), judge=judge, real=real,
                               nfes=inputs.mnist_nfes)  # fmt: skip

    def measure(self, problem: Any, contender: Contender, rng: np.random.Generator) -> list[dict[str, Any]]:
        rows = []
        for n in problem.nfes:
            before = problem.task.world.calls
            x = contender(problem.task, n, rng)
            seen, sure = worlds.features(problem.judge, x)
            rows.append({"nfe": n, "calls": problem.task.world.calls - before, "fd": frechet(seen, problem.real),
                         "mmd": mmd(seen, problem.real), "confidence": sure})  # fmt: skip
        return rows


class Stability(Worlds):
    """Is the profile a property of the model: the same from other noise, fewer trajectories, a coarser grid?"""

    cells = study.grid(world=["mixture", "poor network"])
    contenders = {"geosprint": None}
    metrics = {name: study.higher() for name in ("density", "noise", "few", "coarse", "low_half", "peak", "alpha")}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        world = self.world(inputs, cell)
        return SimpleNamespace(world=world, one=world.noise(inputs.n_pilot, rng), other=world.noise(inputs.n_pilot, rng),
                               grid=inputs.grid, nfes=[n for n in inputs.nfes if n >= 15] or inputs.nfes)  # fmt: skip

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        from scipy.stats import spearmanr

        world = problem.world
        one, other, coarse = (baselines.run_pilot(world, world.schedule, x, grid) for x, grid in (
            (problem.one, problem.grid), (problem.other, problem.grid), (problem.one, problem.grid // 2 + 1)))  # fmt: skip
        gs = GeoSprint(2).fit_trajectories(one.states, one.nodes)
        r = steps.smooth(gs.profile_)
        few, fresh, halved = (
            steps.smooth(hyperplanarity_profile(x)) for x in (one.states[:, :8], other.states, coarse.states)
        )
        density = [spearmanr(r, steps.step_density(gs.timesteps(n), gs.nodes_))[0] for n in problem.nfes]
        listed = np.array(gs.timesteps(30 if len(gs.nodes_) > 30 else 10))
        return [{"density": min(density), "noise": spearmanr(r, fresh)[0],
                 "few": spearmanr(r, few)[0], "coarse": spearmanr(r[: len(halved) * 2].reshape(-1, 2).mean(1), halved)[0],
                 "low_half": float((listed < len(world.schedule) / 2).mean()),
                 "peak": float(gs.nodes_[int(r.argmax())] / gs.nodes_[0]), "alpha": gs.alpha_traj_,
                 "path_ratio": gs.report_.path_ratio, "dimension": gs.report_.effective_dimension,
                 "r_start": float(r[0]), "r_end": float(r[-1])}]  # fmt: skip


class Profiles(Worlds):
    """The profile itself, for the figure."""

    cells = study.grid(world=["mixture", "poor network"])
    contenders = {"geosprint": None}
    metrics = {"r": study.lower()}
    seeds = 1

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        world = self.world(inputs, cell)
        return baselines.run_pilot(world, world.schedule, world.noise(inputs.n_pilot, rng), inputs.grid)

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        gs = GeoSprint(15).fit_trajectories(problem.states, problem.nodes)
        r = steps.smooth(gs.profile_)
        density = steps.step_density(gs.timesteps_, gs.nodes_)
        return [
            {"t": int(t), "r": float(v), "step_density": float(w)}
            for t, v, w in zip(gs.nodes_[:-1], r, density, strict=True)
        ]


class Flows(study.Experiment):
    """Does alpha_traj tell a rectified flow from its reflow, and say how well one step does?"""

    contenders = {"2-RF": "2-RF", "1-RF": "1-RF"}
    metrics = {"alpha": study.higher(), "one_step": study.lower(log=True)}

    @study.stage(version=1, inputs=("flow_updates",), cell=())
    def flows(self, inputs: Any, cell: Any, seed: int) -> dict[str, dict[int, worlds.Weights]]:
        """Both flows at six lengths of training."""
        return worlds.train_flows(inputs.flow_updates, seed)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return SimpleNamespace(
            flows=self.flows(inputs, cell), noise=torch.from_numpy(rng.standard_normal((100, 64))).float()
        )

    def measure(self, problem: Any, contender: str, rng: np.random.Generator) -> list[dict[str, Any]]:
        rows = []
        lengths = sorted(problem.flows[contender])
        for updates in lengths:
            path = worlds.flow_path(problem.flows[contender][updates], problem.noise, 100)
            once = worlds.flow_path(problem.flows[contender][updates], problem.noise, 1)
            report = trajectory_report(path)
            rows.append({"updates": updates, "longest": updates == lengths[-1], "alpha": report.alpha.mean,
                         "one_step": rmse(once[-1], path[-1]), "path_ratio": report.path_ratio,
                         "dimension": report.effective_dimension})  # fmt: skip
        return rows


class Amortisation(study.Experiment):
    """Network calls of the pilot, counted, beside those of 50,000 samples."""

    seeds = 0
    cells = study.grid(pilot=["64 x 201", "16 x 201", "4 x 51"])
    contenders = {"geosprint": None}
    metrics = {"share": study.lower()}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return [int(v) for v in cell.pilot.split(" x ")]

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        n_pilot, grid = problem
        seen = 0

        def denoiser(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            nonlocal seen
            seen += len(x)
            return torch.tanh(x)

        gs = GeoSprint(8, n_pilot=n_pilot, grid=grid).fit(denoiser, worlds.VP, (4,))
        return [
            {"nfe": n, "seen": seen, "reported": gs.pilot_nfe_, "share": seen / (50_000 * n)}
            for n in (8, 15, 30, 49, 89)
        ]


class PilotCost(study.Experiment):
    """Seconds of the hyperplanarity test beside those of the network, on the U-Net."""

    seeds = 1
    repeats = 5
    contenders = {"geosprint": None}
    metrics = {"share": study.lower(timed=True)}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        world = worlds.unet_world()
        return SimpleNamespace(world=world, x=world.noise(inputs.n_pilot, rng))

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        network = test = 0.0
        stream, x = ProfileStream(), problem.x
        for t in range(990, 890, -10):
            start = time.perf_counter()
            with torch.no_grad():
                x = x - 0.01 * problem.world(x, torch.full((len(x),), t))
            between = time.perf_counter()
            stream.update(x)
            network, test = network + between - start, test + time.perf_counter() - between
        return [{"share": test / network, "network_s": network, "test_s": test}]
