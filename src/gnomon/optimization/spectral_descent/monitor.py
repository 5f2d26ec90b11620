"""A callback of the transformers Trainer that logs the spectra of the adapters."""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback

from gnomon.optimization.spectral_descent.lora import LoraSpectrum

log = logging.getLogger(__name__)


class SpectrumCallback(TrainerCallback):  # type: ignore[misc]
    """Every ``every`` steps, the medians over the adapters of flatness, effective rank and the extreme singular values.

    Parameters
    ----------
    every : int
        Optimiser steps between two readings, >= 1.
    adapter : str, optional
        See :class:`gnomon.optimization.LoraSpectrum`.

    Attributes
    ----------
    history : list of dict
        ``step`` and what :meth:`LoraSpectrum.summary` gives. The last reading also goes into what the Trainer logs, as
        ``lora_flatness`` and so on.
    """

    def __init__(self, every: int = 10, adapter: str | None = None) -> None:
        if not (isinstance(every, int) and every >= 1):
            raise ValueError(f"every: got {every!r}; expected an integer >= 1")
        self.every, self.adapter = every, adapter
        self.history: list[dict[str, float]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse a model without adapters before it is trained."""
        LoraSpectrum(kwargs["model"], self.adapter)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take a reading."""
        if state.global_step % self.every == 0:
            reading = {"step": state.global_step, **LoraSpectrum(kwargs["model"], self.adapter).summary()}
            self.history.append(reading)
            log.info("adapter spectra: %s", reading)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the last reading to what is logged."""
        if self.history:
            reading = {f"lora_{name}": value for name, value in self.history[-1].items() if name != "step"}
            for shown in (kwargs.get("logs"), *state.log_history[-1:]):
                if shown is not None:
                    shown.update(reading)
