"""A diffusers DDIM scheduler on any list of time steps.

``DDIMScheduler`` takes the step before t to be t - T // N: on unequal steps it would integrate to the wrong times. This
one looks the next step up in its list.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.configuration_utils import register_to_config
from diffusers.schedulers.scheduling_ddim import DDIMScheduler, DDIMSchedulerOutput
from diffusers.utils.torch_utils import randn_tensor

from gnomon.sampling.geosprint.samplers import check_timesteps

# what a person's scheduler says of how its network was trained
TRAINING = ("num_train_timesteps", "beta_start", "beta_end", "beta_schedule", "trained_betas", "prediction_type",
            "thresholding", "dynamic_thresholding_ratio", "clip_sample_range", "sample_max_value",
            "rescale_betas_zero_snr")  # fmt: skip


class ListedDDIMScheduler(DDIMScheduler):
    """DDIM along ``listed_timesteps``; the last step goes to x0hat."""

    num_inference_steps: Any

    @register_to_config
    def __init__(self, num_train_timesteps: int = 1000, beta_start: float = 0.0001, beta_end: float = 0.02,
                 beta_schedule: str = "linear", trained_betas: Any = None, clip_sample: bool = False,
                 prediction_type: str = "epsilon", thresholding: bool = False, dynamic_thresholding_ratio: float = 0.995,
                 clip_sample_range: float = 1.0, sample_max_value: float = 1.0, rescale_betas_zero_snr: bool = False,
                 listed_timesteps: Any = None):  # fmt: skip
        super().__init__(num_train_timesteps, beta_start, beta_end, beta_schedule, trained_betas, clip_sample, True, 0,
                         prediction_type, thresholding, dynamic_thresholding_ratio, clip_sample_range, sample_max_value,
                         "leading", rescale_betas_zero_snr)  # fmt: skip
        self.listed = check_timesteps(listed_timesteps or [num_train_timesteps - 1, 0], num_train_timesteps)
        self._following = dict(zip(self.listed, [*self.listed[1:], -1], strict=True))

    def set_timesteps(self, num_inference_steps: int | None = None, device: Any = None, **_: Any) -> None:
        """Install the list; ``num_inference_steps`` must be its length."""
        if num_inference_steps not in (None, len(self.listed)):
            raise ValueError(f"num_inference_steps: got {num_inference_steps}, the schedule lists {len(self.listed)} steps; "
                             "make one for another budget with as_scheduler(..., n_steps=...)")  # fmt: skip
        self.num_inference_steps = len(self.listed)
        self.timesteps = torch.tensor(self.listed, device=device)

    def step(self, model_output: torch.Tensor, timestep: Any, sample: torch.Tensor, eta: float = 0.0,
             use_clipped_model_output: bool = False, generator: Any = None, variance_noise: Any = None,
             return_dict: bool = True) -> Any:  # fmt: skip
        """From ``timestep`` to the next listed one (DDIM, equation 12)."""
        config: Any = self.config
        t = int(timestep)
        if t not in self._following:
            raise ValueError(f"timestep: got {t}; expected one of the listed {self.listed}")
        s = self._following[t]
        abar_t = self.alphas_cumprod[t]
        abar_s = self.alphas_cumprod[s] if s >= 0 else torch.ones_like(abar_t)
        a, b = abar_t.sqrt(), (1 - abar_t).sqrt()
        x0, eps = {
            "epsilon": lambda: ((sample - b * model_output) / a, model_output),
            "sample": lambda: (model_output, (sample - a * model_output) / b),
            "v_prediction": lambda: (a * sample - b * model_output, a * model_output + b * sample),
        }[config.prediction_type]()
        if config.thresholding:
            x0 = self._threshold_sample(x0)
        elif config.clip_sample:
            x0 = x0.clamp(-config.clip_sample_range, config.clip_sample_range)
        if use_clipped_model_output:
            eps = (sample - a * x0) / b
        noise = eta * ((1 - abar_s) / (1 - abar_t) * (1 - abar_t / abar_s)).sqrt()
        before = abar_s.sqrt() * x0 + (1 - abar_s - noise**2).clamp_min(0).sqrt() * eps
        if eta > 0:
            drawn = variance_noise if variance_noise is not None else randn_tensor(
                model_output.shape, generator=generator, device=model_output.device, dtype=model_output.dtype)  # fmt: skip
            before = before + noise * drawn
        return DDIMSchedulerOutput(prev_sample=before, pred_original_sample=x0) if return_dict else (before, x0)


def listed_ddim(scheduler: Any, timesteps: list[int], clip_sample: bool = False) -> ListedDDIMScheduler:
    """DDIM on these steps, with the training schedule and prediction type of a diffusers scheduler."""
    if not hasattr(scheduler, "alphas_cumprod"):
        raise ValueError(
            f"scheduler: got {type(scheduler).__name__}; expected a diffusers scheduler with alphas_cumprod"
        )
    known = {k: v for k, v in dict(scheduler.config).items() if k in TRAINING}
    return ListedDDIMScheduler(**known, clip_sample=clip_sample, listed_timesteps=[int(t) for t in timesteps])
