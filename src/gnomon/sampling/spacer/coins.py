"""The coins of a table: a splitmix64 stream, and tie keys that depend on nothing but salt, item and count.

Both the fast path and the reference toss these, which is why they can agree bit for bit.
"""

# mypy: disable-error-code="return-value, arg-type"
from __future__ import annotations

import math

import numpy as np
from numba import njit

STEP = np.uint64(0x9E3779B97F4A7C15)
KEEP = 0.9  # by how much the sampling rate of ``hold`` falls each time
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _30, _31, _11 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(11)


@njit(cache=True, nogil=True)
def mix(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014): a bijection of 64-bit words that looks random."""
    z = np.uint64(x)
    z = (z ^ (z >> _30)) * _A
    z = (z ^ (z >> _27)) * _B
    return z ^ (z >> _31)


@njit(cache=True, nogil=True)
def toss(rng: np.ndarray) -> int:
    """The next 64 random bits; ``rng`` is an array (1,) uint64 that holds the generator's state."""
    rng[0] += STEP
    return mix(rng[0])


@njit(cache=True, nogil=True)
def uniform(rng: np.ndarray) -> float:
    """A number in (0, 1], a multiple of 2^-53."""
    return (np.float64(toss(rng) >> _11) + 1.0) * 2.0**-53


@njit(cache=True, nogil=True)
def below(bound: int, rng: np.ndarray) -> int:
    """An integer uniform in [0, bound), by rejection: exact up to 2^63, where a float would be too coarse."""
    mask = np.uint64(bound - 1)
    for shift in (1, 2, 4, 8, 16, 32):
        mask |= mask >> np.uint64(shift)
    while True:
        draw = toss(rng) & mask
        if draw < np.uint64(bound):
            return np.int64(draw)


@njit(cache=True, nogil=True)
def failures(p: float, rng: np.ndarray) -> int:
    """How many tosses fail before one succeeds with probability p: geometric, by inversion; 0 where p = 1."""
    if p >= 1.0:
        return 0
    return np.int64(min(math.log(uniform(rng)) / math.log1p(-p), 2.0**62))  # more would not fit in an int64


@njit(cache=True, nogil=True)
def tie(salt: int, key: int, count: int) -> int:
    """The tie key of an item at a count: output number ``count`` of the generator that starts at (key xor salt).

    An item's counts only grow, within a stay and from one stay to the next, so no (key, count) comes up twice and each
    change of a count brings a fresh key. At equal counts different items have different keys.
    """
    return mix((np.uint64(key) ^ np.uint64(salt)) + np.uint64(count) * STEP)


@njit(cache=True, nogil=True)
def rate(thinned: int) -> float:
    """The sampling rate of ``hold`` after it has thinned so often."""
    return KEEP**thinned
