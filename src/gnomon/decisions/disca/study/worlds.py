"""Panels of simulated personas about what people in 20 countries really preferred."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

# noise of a persona, sd of a bias that all share, how far a persona goes towards its country
REGIMES = {
    "unbiased": (0.4, 0.0, 1.0),
    "shared bias": (0.4, 1.0, 1.0),
    "agreeing biased": (0.05, 1.0, 1.0),
    "amplified": (0.6, 0.3, 2.0),
    "noise": (0.8, 0.0, 0.0),
}
MOST = 8  # personas drawn; the method takes the first four
BASE_GAIN, BASE_NOISE = 1.6, 0.3  # the base model is an over-confident USA
CUT = (0.02, 0.98)


@dataclass(frozen=True)
class World:
    """Gaps in nats: of the base (D,), of people (C, D), of personas (C, D, 8); and human effects (C, D)."""

    base: np.ndarray
    people: np.ndarray
    panel: np.ndarray
    human: np.ndarray


def log_odds(amce: np.ndarray) -> np.ndarray:
    """Log-odds of p = (1 + AMCE) / 2, cut to [.02, .98]."""
    p: np.ndarray = np.clip((1 + amce) / 2, *CUT)
    return np.asarray(np.log(p / (1 - p)))


def world(human: pd.DataFrame, regime: str, rng: np.random.Generator) -> World:
    """One draw: u_i ~ U(.5, 1.5) for each persona, country and dimension; the bias once a dimension."""
    noise, bias, towards = REGIMES[regime]
    people = log_odds(human.to_numpy())
    C, D = people.shape
    usa: np.ndarray = people[list(human.index).index("USA")]
    base = BASE_GAIN * usa + rng.normal(0, BASE_NOISE, usa.shape)
    u = rng.uniform(0.5, 1.5, (C, D, MOST))
    shared = rng.normal(0, bias, usa.shape)
    way = towards * u * (people - base)[..., None]
    panel = base[None, :, None] + way + shared[None, :, None] + rng.normal(0, noise, (C, D, MOST))
    return World(base, people, panel, human.to_numpy())


def effects(gap: np.ndarray) -> np.ndarray:
    """2 sigma(gap) - 1."""
    return np.tanh(gap / 2)


def mis(gap: np.ndarray, human: np.ndarray) -> float:
    """Distance over dimensions, mean over countries."""
    return float(np.linalg.norm(effects(gap) - human, axis=-1).mean())


def derangement(n: int, rng: np.random.Generator) -> np.ndarray:
    """A permutation that leaves nobody in place."""
    while True:
        found = rng.permutation(n)
        if n < 2 or (found != np.arange(n)).all():
            return found
