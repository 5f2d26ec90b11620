"""The normalised Hadamard matrix of LinearPatch-R, for every order that the Sylvester and Paley constructions reach."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import scipy.linalg
import torch
from torch import Tensor


@functools.lru_cache(maxsize=4)
def rotation(size: int) -> Tensor:
    """An orthogonal matrix (size, size), float64, whose entries all have the same magnitude where such a one is known.

    The order is written as 2^k m with the smallest known m: 1, or a Paley order (12, 20, 28, 36, 44, 60, ...). For
    other orders a fixed random orthogonal matrix takes its place.

    Warns
    -----
    UserWarning
        When no Hadamard matrix of this order is known here.
    """
    if size < 1:
        raise ValueError(f"size: got {size}; expected a positive number")
    sylvester = size & -size  # the largest power of two that divides the order
    while sylvester >= 1:
        small = _small(size // sylvester)
        if small is not None:
            matrix = np.kron(scipy.linalg.hadamard(sylvester), small)
            return torch.from_numpy(matrix / np.sqrt(size))
        sylvester //= 2
    warnings.warn(
        f"no Hadamard matrix of order {size} is known here; a random rotation takes its place",
        UserWarning,
        stacklevel=2,
    )
    return torch.from_numpy(scipy.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))[0])


def _small(order: int) -> np.ndarray | None:
    """Order 1, or the Paley constructions: q + 1 for a prime q = 3 mod 4, 2(q + 1) for a prime q = 1 mod 4."""
    if order == 1:
        return np.ones((1, 1))
    if order % 4:
        return None
    if _is_prime(order - 1):
        return np.asarray(np.eye(order) + _bordered(order - 1, -1.0))
    if _is_prime(q := order // 2 - 1) and q % 4 == 1:
        core, one = _bordered(q, 1.0), np.eye(q + 1)
        return np.asarray(np.kron(core, [[1, 1], [1, -1]]) + np.kron(one, [[1, -1], [-1, -1]]))
    return None


def _bordered(q: int, sign: float) -> np.ndarray:
    """Quadratic characters of the differences, with a border: the conference matrix of order q + 1."""
    squares = {i * i % q for i in range(1, q)}
    character = np.array([0.0] + [1.0 if i in squares else -1.0 for i in range(1, q)])
    matrix = np.zeros((q + 1, q + 1))
    matrix[0, 1:], matrix[1:, 0] = 1.0, sign
    matrix[1:, 1:] = character[(np.arange(q)[:, None] - np.arange(q)[None]) % q]
    return matrix


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))
