"""Random streams that grow from one seed without being the same."""

from __future__ import annotations

from typing import Any

import numpy as np

OUTCOMES, MATRICES = 1, 2


def generator(random_state: Any) -> np.random.Generator:
    """``numpy.random.default_rng`` with errors that name the argument."""
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError):
        raise ValueError(
            f"random_state: got {random_state!r}; expected an integer of 0 or more, a Generator or None"
        ) from None


def stream(random_state: Any, which: int) -> np.random.Generator:
    """A generator from a seed, independent of what a bandit or another stream draws from the same seed."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool) and random_state >= 0:
        return np.random.default_rng(np.random.SeedSequence(int(random_state), spawn_key=(which,)))
    return generator(random_state)
