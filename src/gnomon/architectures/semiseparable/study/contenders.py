"""Contenders: masks and layers; imports wait until one is called, so that a study is cheap to look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnomon.architectures.semiseparable.algorithms import ALGORITHMS


@dataclass(frozen=True)
class Mask:
    """Log-decays [chunks, Q] -> masks [chunks, Q, Q], in float32 by a compiled kernel."""

    options: dict[str, Any]

    def __call__(self, a: Any) -> Any:
        from gnomon.architectures.semiseparable.mask import segsum

        return segsum(a, **self.options, backend="numba", validate=False)


@dataclass(frozen=True)
class Layer:
    """(x, a, B, C) -> y: the SSD layer with a given mask, tile and split."""

    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, x: Any, a: Any, B: Any, C: Any) -> Any:
        from gnomon.architectures.semiseparable.layer import ssd_scan

        return ssd_scan(x, a, B, C, validate=False, **self.options)


@dataclass(frozen=True)
class Baseline:
    """(x, a, B, C) -> y: a function of ``baselines``."""

    name: str

    def __call__(self, x: Any, a: Any, B: Any, C: Any) -> Any:
        from gnomon.architectures.semiseparable import baselines

        return getattr(baselines, self.name)(x, a, B, C)


@dataclass(frozen=True)
class Fill:
    """Write masks of ``a`` into ``out``; ``copy`` moves finished ones, the least that any method must do."""

    name: str

    def __call__(self, a: np.ndarray, out: np.ndarray, finished: np.ndarray) -> None:
        if self.name == "copy":
            np.copyto(out, finished)
            return
        from gnomon.architectures.semiseparable import compiled

        compiled.mask(a, **ALGORITHMS[self.name], out=out)


def as_layer(options: dict[str, Any]) -> dict[str, Any]:
    return {("segsum" if name == "method" else name): value for name, value in options.items()}
