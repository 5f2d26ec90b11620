"""Who is compared: a contender takes (task, n, rng) and gives samples from ``task.noise`` in n network calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gnomon.sampling.geosprint import baselines
from gnomon.sampling.geosprint.baselines import DynamicProgramming, Pilot
from gnomon.sampling.geosprint.method import GeoSprint
from gnomon.sampling.geosprint.samplers import ddim_sample, dpm_solver_pp
from gnomon.sampling.geosprint.study.worlds import World


@dataclass
class Task:
    """One world, noise to start from, and a pilot from other noise."""

    world: World
    noise: torch.Tensor
    pilot: Pilot
    made: dict[str, Any] = field(default_factory=dict)

    def sprint(self, **options: Any) -> GeoSprint:
        """GeoSPRINT fitted on the pilot."""
        key = repr(sorted(options.items()))
        if key not in self.made:
            self.made[key] = GeoSprint(2, **options).fit_trajectories(
                self.pilot.states, self.pilot.nodes, len(self.world.schedule)
            )
        found: GeoSprint = self.made[key]
        return found


Steps = Callable[[Task, int, np.random.Generator], list[int]]
Contender = Callable[[Task, int, np.random.Generator], torch.Tensor]


def sprint(**options: Any) -> Steps:
    return lambda task, n, rng: task.sprint(**options).timesteps(n)


def fixed(shape: Callable[[Any, int], list[int]]) -> Steps:
    return lambda task, n, rng: shape(task.world.schedule, n)


def gits(task: Task, n: int, rng: np.random.Generator) -> list[int]:
    if "gits" not in task.made:
        task.made["gits"] = DynamicProgramming(task.pilot)
    found: list[int] = task.made["gits"].timesteps(n)
    return found


def ddim(steps: Steps) -> Contender:
    return lambda task, n, rng: ddim_sample(task.world, task.noise, steps(task, n, rng), task.world.schedule,
                                            task.world.prediction_type)  # fmt: skip


def dpm(steps: Steps, variant: Any = "2M") -> Contender:
    return lambda task, n, rng: dpm_solver_pp(task.world, task.noise, steps(task, n, rng), task.world.schedule,
                                              task.world.prediction_type, variant)  # fmt: skip


def unipc(steps: Steps | None = None) -> Contender:
    """diffusers' UniPC, on its own steps where none are given."""

    def sample(task: Task, n: int, rng: np.random.Generator) -> torch.Tensor:
        from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler

        abar = task.world.schedule.data**2
        betas = 1 - abar / np.concatenate([[1.0], abar[:-1]])
        scheduler = UniPCMultistepScheduler(len(abar), trained_betas=betas, final_sigmas_type="zero",
                                            prediction_type=task.world.prediction_type)  # fmt: skip
        if steps is None:
            scheduler.set_timesteps(n)
            return baselines.diffusers_sample(scheduler, task.world, task.noise)
        return baselines.diffusers_sample(scheduler, task.world, task.noise, steps(task, n, rng))

    return sample


UNIFORM, LOG_SNR = fixed(baselines.linspace_steps), fixed(baselines.log_snr_steps)

CONTENDERS: dict[str, Contender] = {
    "geosprint": ddim(sprint()),
    "geosprint, gamma 1/2": ddim(sprint(gamma=0.5)),
    "geosprint, m = 3": ddim(sprint(order=3)),
    "geosprint, affine": ddim(sprint(span="affine")),
    "geosprint, eta 0": ddim(sprint(floor=0.0)),
    "geosprint, eta 0.3": ddim(sprint(floor=0.3)),
    "geosprint, prune": ddim(sprint(rule="prune")),
    "uniform": ddim(UNIFORM),
    "uniform, leading": ddim(fixed(baselines.leading_steps)),
    "uniform, trailing": ddim(fixed(baselines.trailing_steps)),
    "quadratic": ddim(fixed(baselines.quadratic_steps)),
    "log-SNR": ddim(LOG_SNR),
    "Karras": ddim(fixed(baselines.karras_steps)),
    "cosine": ddim(fixed(baselines.cosine_steps)),
    "random": ddim(lambda task, n, rng: baselines.random_steps(task.world.schedule, n, rng)),
    "GITS-style": ddim(gits),
    "adaptive": ddim(lambda task, n, rng: baselines.adaptive_steps(task.pilot, n)),
    "DPM-Solver++ 2M, uniform": dpm(UNIFORM),
    "DPM-Solver++ 2M, log-SNR": dpm(LOG_SNR),
    "DPM-Solver++ 2M, geosprint": dpm(sprint()),
    "DPM-Solver++ 2S, uniform": dpm(UNIFORM, "2S"),
    "DPM-Solver++ 2S, log-SNR": dpm(LOG_SNR, "2S"),
    "UniPC": unipc(),
    "UniPC, log-SNR": unipc(LOG_SNR),
    "UniPC, geosprint": unipc(sprint()),
}
# where a network is poor or costs much
FEW = ("geosprint", "uniform", "quadratic", "log-SNR", "GITS-style", "DPM-Solver++ 2M, uniform", "DPM-Solver++ 2M, log-SNR",
       "DPM-Solver++ 2M, geosprint")  # fmt: skip
