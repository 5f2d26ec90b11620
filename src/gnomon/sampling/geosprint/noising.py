"""How noise is mixed into data, x_t = a_t x0 + s_t eps, and what a network's prediction says about the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

PREDICTIONS = ("epsilon", "sample", "v_prediction", "velocity")
Denoiser = Callable[[torch.Tensor, torch.Tensor], Any]


@dataclass(frozen=True)
class NoiseSchedule:
    """Scales of data and noise at each of the T training steps, from least noise (index 0) to most (T - 1).

    Made by :meth:`vp`, :meth:`ve`, :meth:`flow` or :meth:`read`, not by hand.

    Attributes
    ----------
    data, noise : ndarray of shape (T,)
        a_t and s_t of x_t = a_t x0 + s_t eps; s_t / a_t increases.
    prior : float
        Standard deviation of the state from which sampling starts.
    """

    data: np.ndarray
    noise: np.ndarray
    prior: float = 1.0

    @classmethod
    def vp(cls, alpha_bar: Any) -> NoiseSchedule:
        """Variance preserving: a_t = sqrt(abar_t), s_t = sqrt(1 - abar_t).

        Parameters
        ----------
        alpha_bar : array_like of shape (T,)
            Strictly decreasing, in (0, 1).

        Raises
        ------
        ValueError
            Where it is not.
        """
        abar = _vector("alpha_bar", alpha_bar)
        if not (np.all(abar > 0) and np.all(abar < 1)):
            bad = int(np.argmax(~((abar > 0) & (abar < 1))))
            raise ValueError(f"alpha_bar: got {abar[bad]} at index {bad}; expected values in (0, 1) "
                             "(for a schedule of sigmas use NoiseSchedule.ve)")  # fmt: skip
        _rising("alpha_bar", -abar, "strictly decreasing values")
        return cls(np.sqrt(abar), np.sqrt(1 - abar))

    @classmethod
    def ve(cls, sigmas: Any) -> NoiseSchedule:
        """Variance exploding (sigma-scaled, EDM coordinates): a_t = 1, s_t = sigma_t, strictly increasing, > 0."""
        sigma = _vector("sigmas", sigmas)
        if sigma[0] <= 0:
            raise ValueError(f"sigmas: got {sigma[0]} at index 0; expected positive values")
        _rising("sigmas", sigma, "strictly increasing values")
        return cls(np.ones_like(sigma), sigma, float(sigma[-1]))

    @classmethod
    def flow(cls, n: int = 1000) -> NoiseSchedule:
        """Rectified flow on n steps: x_t = (1 - t) x0 + t eps with t = (i + 1) / n."""
        if n < 2:
            raise ValueError(f"n: got {n}; expected at least 2 steps")
        t = np.arange(1, n + 1) / n
        return cls(1 - t, t)

    @classmethod
    def read(cls, schedule: Any) -> NoiseSchedule:
        """From a NoiseSchedule, an array of alpha-bars, or a diffusers scheduler with ``alphas_cumprod``."""
        if isinstance(schedule, NoiseSchedule):
            return schedule
        return cls.vp(getattr(schedule, "alphas_cumprod", schedule))

    def __len__(self) -> int:
        return len(self.data)

    @property
    def sigma(self) -> np.ndarray:
        """Noise per data, s_t / a_t (infinite where a_t is 0)."""
        with np.errstate(divide="ignore"):
            return self.noise / self.data

    @property
    def log_snr(self) -> np.ndarray:
        """Half the logarithm of the signal-to-noise ratio, log(a_t / s_t): decreasing."""
        return -np.log(self.sigma)


def _vector(name: str, values: Any) -> np.ndarray:
    values = values.detach().cpu() if isinstance(values, torch.Tensor) else values
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) < 2:
        raise ValueError(f"{name}: got shape {x.shape}; expected (T,) with at least 2 steps")
    if not np.isfinite(x).all():
        raise ValueError(f"{name}: not finite at index {int(np.argmax(~np.isfinite(x)))}")
    return x


def _rising(name: str, x: np.ndarray, expected: str) -> None:
    if np.any(np.diff(x) <= 0):
        raise ValueError(
            f"{name}: not monotone at index {int(np.argmax(np.diff(x) <= 0)) + 1}; expected {expected} "
            "along the training steps"
        )


def check_prediction(prediction_type: str) -> str:
    """``prediction_type`` itself, or a ValueError that lists the four."""
    if prediction_type not in PREDICTIONS:
        raise ValueError(f"prediction_type: got {prediction_type!r}; expected one of {', '.join(PREDICTIONS)}")
    return prediction_type


def data_and_noise(prediction: torch.Tensor, x: torch.Tensor, a: float, s: float,
                   prediction_type: str) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """x0hat and epshat with x = a x0hat + s epshat, from what the network predicts at x."""
    if prediction_type == "epsilon":
        if a == 0:
            raise ValueError("prediction_type 'epsilon': says nothing of the data at a step of pure noise (a_t = 0)")
        return (x - s * prediction) / a, prediction
    if prediction_type == "sample":
        return prediction, (x - a * prediction) / s
    if prediction_type == "v_prediction":  # v = a eps - s x0
        total = a * a + s * s
        return (a * x - s * prediction) / total, (s * x + a * prediction) / total
    check_prediction(prediction_type)  # velocity: eps - x0
    x0 = (x - s * prediction) / (a + s)
    return x0, x0 + prediction


def predict(denoiser: Denoiser, x: torch.Tensor, t: int, schedule: NoiseSchedule,
            prediction_type: str) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """One network call at training step t: x0hat and epshat.

    Raises
    ------
    FloatingPointError
        When the network gives NaN or infinity; the message names the step.
    """
    out: Any = denoiser(x, torch.full((len(x),), t, dtype=torch.long, device=x.device))
    out = getattr(out, "sample", out)  # diffusers wraps it
    if not torch.isfinite(out).all():
        raise FloatingPointError(f"the denoiser gave NaN or infinity at time step {t}")
    return data_and_noise(out, x, float(schedule.data[t]), float(schedule.noise[t]), prediction_type)
