"""Who is compared: a verifier made for t, a limit of seconds, and as many sampled nodes as everyone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gnomon.guarantees.focusbranch.baselines import (
    BallMilp,
    BruteForce,
    Calzone,
    CoVerD,
    Hull,
    IncrementalCalzone,
    TopCoVerD,
)
from gnomon.guarantees.focusbranch.method import FocusBranch

Factory = Callable[..., FocusBranch]


def _level(s: int) -> Factory:
    """Concrete sets from level s on; below it where t is smaller."""

    def make(t: int, **options: Any) -> FocusBranch:
        return FocusBranch(t, strategy=[(min(s, t), min(s, t))], **options)

    return make


def _only_top(t: int, **options: Any) -> FocusBranch:
    return FocusBranch(t, strategy="calzone", **options)


CONTENDERS: dict[str, Factory] = {
    "auto": FocusBranch,
    "level 1": _level(1),
    "level 2": _level(2),
    "level 3": _level(3),
    "calzone": Calzone,
    "coverd": CoVerD,
    "top-t coverd": TopCoVerD,
    "calzone in rounds": IncrementalCalzone,
    "l = t": _only_top,
    "brute force": BruteForce,
    "hull": Hull,
    "ball program": BallMilp,
}
FIXED = ("level 1", "level 2", "level 3")


def verifier(factory: Factory, t: int, timeout: float, samples: int, seed: int) -> FocusBranch:
    """By the processor's time, so that a busy machine changes no answer."""
    return factory(
        t, timeout=timeout, leaf_timeout=timeout, samples=samples, random_state=seed, clock=time.process_time
    )
