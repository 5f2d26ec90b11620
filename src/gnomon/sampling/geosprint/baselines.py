"""What GeoSPRINT is compared with: fixed shapes of schedules, schedules from the same pilot, and UniPC.

All give a decreasing list of N training steps; ``leading`` and ``trailing`` are diffusers' own spacings and leave one
end out, all others keep both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gnomon.sampling.geosprint.noising import Denoiser, NoiseSchedule, predict
from gnomon.sampling.geosprint.samplers import check_timesteps
from gnomon.sampling.geosprint.steps import distinct_steps, grid_nodes

# --- fixed shapes ----------------------------------------------------------------------------------------------------


def linspace_steps(schedule: NoiseSchedule, n: int) -> list[int]:
    """Uniform in t, both ends."""
    return distinct_steps(np.linspace(len(schedule) - 1, 0, n), n)


def leading_steps(schedule: NoiseSchedule, n: int) -> list[int]:
    """diffusers' "leading": k (T // N), so that the noisiest end is left out."""
    return (np.arange(n)[::-1] * (len(schedule) // n)).tolist()


def trailing_steps(schedule: NoiseSchedule, n: int) -> list[int]:
    """diffusers' "trailing": T - k T / N, so that step 0 is left out."""
    return (np.rint(np.arange(n, 0, -1) * len(schedule) / n).astype(int) - 1).tolist()


def quadratic_steps(schedule: NoiseSchedule, n: int) -> list[int]:
    """Squares of uniform numbers: dense at the low-noise end."""
    return distinct_steps(np.linspace(np.sqrt(len(schedule) - 1), 0, n) ** 2, n)


def cosine_steps(schedule: NoiseSchedule, n: int) -> list[int]:
    """(T - 1) (1 + cos(pi k / (N - 1))) / 2: dense at both ends."""
    return distinct_steps((len(schedule) - 1) * (1 + np.cos(np.linspace(0, np.pi, n))) / 2, n)


def log_snr_steps(schedule: NoiseSchedule, n: int) -> list[int]:
    """Uniform in the log signal-to-noise ratio."""
    wanted = np.linspace(schedule.log_snr[-1], schedule.log_snr[0], n)
    return distinct_steps(_times_of(-wanted, np.log(schedule.sigma)), n)


def karras_steps(schedule: NoiseSchedule, n: int, rho: float = 7.0) -> list[int]:
    """The schedule of Karras et al. (2022), equation 5, between the schedule's own ends, mapped to t."""
    high, low = schedule.sigma[-1] ** (1 / rho), schedule.sigma[0] ** (1 / rho)
    return distinct_steps(_times_of(rho * np.log(np.linspace(high, low, n)), np.log(schedule.sigma)), n)


def random_steps(schedule: NoiseSchedule, n: int, rng: np.random.Generator) -> list[int]:
    """Both ends and N - 2 random steps between."""
    inner = rng.choice(np.arange(1, len(schedule) - 1), n - 2, replace=False)
    return sorted([0, len(schedule) - 1, *inner.tolist()], reverse=True)


def _times_of(log_sigma: np.ndarray, known: np.ndarray) -> np.ndarray:
    return np.interp(log_sigma, known, np.arange(len(known)))


# --- from a pilot ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pilot:
    """Trajectories with what the network said along them.

    Attributes
    ----------
    nodes : ndarray of shape (J + 1,)
        Decreasing times.
    states, data, noise : Tensor of shape (J + 1, n, d), (J, n, d), (J, n, d)
        x, x0hat and epshat.
    """

    schedule: NoiseSchedule
    nodes: np.ndarray
    states: torch.Tensor
    data: torch.Tensor
    noise: torch.Tensor


def run_pilot(denoiser: Denoiser, schedule: NoiseSchedule, x: torch.Tensor, grid: int = 201,
              prediction_type: str = "epsilon") -> Pilot:  # fmt: skip
    """DDIM along the fine grid from x (n, ...): J network calls a trajectory, as GeoSPRINT's pilot."""
    nodes = grid_nodes(len(schedule), grid)
    states, data, noise = [x], [], []
    with torch.no_grad():
        for t, s in zip(nodes[:-1].tolist(), nodes[1:].tolist(), strict=True):
            x0, eps = predict(denoiser, states[-1], t, schedule, prediction_type)
            states.append(float(schedule.data[s]) * x0 + float(schedule.noise[s]) * eps)
            data.append(x0)
            noise.append(eps)
    flat = [torch.stack(part).flatten(2) for part in (states, data, noise)]
    return Pilot(schedule, nodes, *flat)


class DynamicProgramming:
    """GITS-style: the N nodes whose single DDIM steps stray least from the pilot, in sum (arXiv 2405.11326).

    The cost of a step i -> j is the distance of one DDIM step from the stored x_i to the stored x_j, with the stored
    epshat: no further network calls; O(J^2) costs, then O(N J^2) for all N at once.
    """

    def __init__(self, pilot: Pilot):
        self.nodes = pilot.nodes
        a, s = (torch.as_tensor(v[pilot.nodes], dtype=pilot.states.dtype)[:, None, None]
                for v in (pilot.schedule.data, pilot.schedule.noise))  # fmt: skip
        J = len(pilot.nodes) - 1
        self.cost = np.full((J + 1, J + 1), np.inf)
        for i in range(J):
            jump = a[i + 1 :] * pilot.data[i] + s[i + 1 :] * pilot.noise[i]
            self.cost[i, i + 1 :] = torch.linalg.vector_norm(jump - pilot.states[i + 1 :], dim=-1).mean(-1).numpy()

    def timesteps(self, n: int) -> list[int]:
        """The best path of n nodes from the first to the last."""
        best = self.cost[0].copy()  # of paths with one step
        came = []
        for _ in range(n - 2):
            through = best[:, None] + self.cost
            came.append(through.argmin(0))
            best = through.min(0)
        path = [len(self.nodes) - 1]
        for origin in reversed(came):
            path.append(int(origin[path[-1]]))
        return self.nodes[[0, *path[::-1]]].tolist()


def adaptive_steps(pilot: Pilot, n: int, rounds: int = 60) -> list[int]:
    """Steps as long as an embedded Euler/Heun error allows, the tolerance bisected until N nodes are used.

    In y = x / a the sampling ODE is dy = epshat dsigma; Euler and Heun differ by half the change of epshat times the
    step, here with the pilot's stored epshat.
    """
    nodes = pilot.nodes[:-1]  # where epshat is known; the last node ends the list
    sigma = pilot.schedule.sigma[nodes]
    scale = pilot.schedule.data[nodes]
    error = np.zeros((len(nodes), len(nodes)))
    for i in range(len(nodes)):
        change = torch.linalg.vector_norm(pilot.noise[i + 1 :] - pilot.noise[i], dim=-1).mean(-1).numpy()
        error[i, i + 1 :] = 0.5 * np.abs(sigma[i + 1 :] - sigma[i]) * change * scale[i + 1 :]

    def walk(tolerance: float) -> list[int]:
        path = [0]
        while path[-1] < len(nodes) - 1:
            at = path[-1]
            over = np.flatnonzero(error[at, at + 1 :] > tolerance)
            path.append(at + max(1, int(over[0])) if len(over) else len(nodes) - 1)
        return [*path, len(nodes)]

    low, high = 0.0, float(error.max())
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if len(walk(middle)) > n else (low, middle)
    return distinct_steps(pilot.nodes[walk(high)].astype(float), n)


# --- another solver --------------------------------------------------------------------------------------------------


def diffusers_sample(scheduler: Any, denoiser: Denoiser, x: torch.Tensor, timesteps: Any = None) -> torch.Tensor:
    """Run a diffusers multistep scheduler, on its own steps or, after its ``set_timesteps``, on a list of ours.

    Parameters
    ----------
    scheduler : diffusers scheduler
        DPMSolverMultistepScheduler or UniPCMultistepScheduler with ``alphas_cumprod``, final sigma zero. With
        ``timesteps`` None its steps must have been set.
    denoiser, x
        See :func:`gnomon.sampling.ddim_sample`.
    """
    if timesteps is not None:
        listed = check_timesteps(timesteps, len(scheduler.alphas_cumprod))
        scheduler.set_timesteps(len(listed))
        abar = scheduler.alphas_cumprod[listed]
        scheduler.timesteps = torch.tensor(listed)
        scheduler.sigmas = torch.cat([((1 - abar) / abar).sqrt(), torch.zeros(1)])
    with torch.no_grad():
        for t in scheduler.timesteps:
            out = denoiser(x, torch.full((len(x),), int(t), dtype=torch.long))
            x = scheduler.step(getattr(out, "sample", out), t, x, return_dict=False)[0]
    return x
