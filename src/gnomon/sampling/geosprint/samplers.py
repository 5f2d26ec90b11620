"""DDIM and DPM-Solver++ on any decreasing list of time steps. N listed steps are N network calls; the last goes to x0hat.

References: Song, Meng, Ermon, "Denoising Diffusion Implicit Models", equation 12 (eta = 0); Lu et al., "DPM-Solver++",
algorithms 1 (2S) and 2 (2M), midpoint form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch

from gnomon.sampling.geosprint.noising import Denoiser, NoiseSchedule, check_prediction, predict


def check_timesteps(timesteps: Any, total: int) -> list[int]:
    """Whole numbers, strictly decreasing, in 0..total - 1; a ValueError names the index where they are not."""
    listed = timesteps.tolist() if isinstance(timesteps, torch.Tensor | np.ndarray) else list(timesteps)
    if not listed:
        raise ValueError("timesteps: got none; expected at least one")
    for i, t in enumerate(listed):
        if int(t) != t or not 0 <= t < total:
            raise ValueError(f"timesteps: got {t} at index {i}; expected a whole number in 0..{total - 1}")
        if i and t >= listed[i - 1]:
            raise ValueError(
                f"timesteps: got {listed[i - 1]}, {t} at index {i}; expected strictly decreasing time steps"
            )
    return [int(t) for t in listed]


def ddim_states(denoiser: Denoiser, x: torch.Tensor, timesteps: Sequence[int], schedule: NoiseSchedule,
                prediction_type: str = "epsilon") -> Iterator[torch.Tensor]:  # fmt: skip
    """The states at the listed times, x itself first: one network call between each two."""
    yield x
    for t, s in pairwise(timesteps):
        with torch.no_grad():
            x0, eps = predict(denoiser, x, t, schedule, prediction_type)
            x = float(schedule.data[s]) * x0 + float(schedule.noise[s]) * eps
        yield x


def ddim_sample(denoiser: Denoiser, x: torch.Tensor, timesteps: Any, schedule: Any,
                prediction_type: str = "epsilon") -> torch.Tensor:  # fmt: skip
    """Deterministic DDIM along a list of time steps.

    Parameters
    ----------
    denoiser : callable
        ``denoiser(x, t)`` with x of shape (n, ...) and t a long tensor of shape (n,).
    x : Tensor of shape (n, ...)
        Noise at the first listed step.
    timesteps : sequence of int
        Strictly decreasing training steps; N of them are N network calls, the last goes to x0hat.
    schedule : NoiseSchedule, array of alpha-bars, or diffusers scheduler
        The training schedule.
    prediction_type : {"epsilon", "sample", "v_prediction", "velocity"}
        What the denoiser predicts. With ``NoiseSchedule.flow`` and "velocity" this is Euler's method.

    Returns
    -------
    Tensor of shape (n, ...)

    Raises
    ------
    ValueError
        For time steps that do not decrease (with the index), an unknown prediction type, a schedule out of range.
    FloatingPointError
        When the network gives NaN or infinity, with the step.
    """
    schedule = NoiseSchedule.read(schedule)
    check_prediction(prediction_type)
    listed = check_timesteps(timesteps, len(schedule))
    for state in ddim_states(denoiser, x, listed, schedule, prediction_type):
        x = state
    with torch.no_grad():
        return predict(denoiser, x, listed[-1], schedule, prediction_type)[0]


def dpm_solver_pp(denoiser: Denoiser, x: torch.Tensor, timesteps: Any, schedule: Any,
                  prediction_type: str = "epsilon", variant: Literal["2M", "2S"] = "2M") -> torch.Tensor:  # fmt: skip
    """DPM-Solver++ of second order (midpoint form) along a list of time steps; the last step, to zero noise, is DDIM's.

    Parameters
    ----------
    denoiser, x, timesteps, schedule, prediction_type
        See :func:`ddim_sample`; N listed steps are N network calls in both variants.
    variant : {"2M", "2S"}
        Multistep; or singlestep, whose second-order steps each use two listed times (an even N ends with two steps of
        first order, as no second-order step reaches zero noise).

    Raises
    ------
    ValueError, FloatingPointError
        As :func:`ddim_sample`.
    """
    schedule = NoiseSchedule.read(schedule)
    check_prediction(prediction_type)
    if variant not in ("2M", "2S"):
        raise ValueError(f"variant: got {variant!r}; expected '2M' or '2S'")
    listed = check_timesteps(timesteps, len(schedule))
    last, old = len(listed) - 1, x
    previous: torch.Tensor | None = None
    for k, t in enumerate(listed):
        with torch.no_grad():
            data = predict(denoiser, x, t, schedule, prediction_type)[0]
            if k == last:
                return data
            s = listed[k + 1]
            if previous is None:
                previous, old = data, x
                x = _first_order(x, data, t, s, schedule)
            elif variant == "2M":
                x = _second_order(x, data, data, previous, (t, s), (listed[k - 1], t), schedule)
                previous = data
            else:  # from the state before, with this call as its midpoint
                x = _second_order(old, previous, data, previous, (listed[k - 1], s), (listed[k - 1], t), schedule)
                previous = None
    raise AssertionError("unreachable")


def _first_order(x: torch.Tensor, data: torch.Tensor, t: int, s: int, schedule: NoiseSchedule) -> torch.Tensor:
    h = float(schedule.log_snr[s] - schedule.log_snr[t])
    return float(schedule.noise[s] / schedule.noise[t]) * x - float(schedule.data[s]) * math.expm1(-h) * data


def _second_order(x: torch.Tensor, data: torch.Tensor, newer: torch.Tensor, older: torch.Tensor, step: tuple[int, int],
                  between: tuple[int, int], schedule: NoiseSchedule) -> torch.Tensor:  # fmt: skip
    """A step t -> s with the slope of the data prediction in log-SNR, from two calls ``between`` two times."""
    t, s = step
    h = float(schedule.log_snr[s] - schedule.log_snr[t])
    r = float(schedule.log_snr[between[1]] - schedule.log_snr[between[0]]) / h
    slope = (newer - older) / r
    weight = -float(schedule.data[s]) * math.expm1(-h)
    return float(schedule.noise[s] / schedule.noise[t]) * x + weight * data + 0.5 * weight * slope
