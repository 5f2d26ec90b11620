"""Separation rank: the rank of a joint distribution as a matrix over two sides of a partition of its variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gnomon.architectures.probabilistic_circuits.data import MOST


class SeparationRank(NamedTuple):
    """Attributes
    ----------
    rank : int
        Singular values above ``tolerance`` times the largest.
    singular_values : array
        Descending.
    tolerance : float
    """

    rank: int
    singular_values: np.ndarray
    tolerance: float

    def above(self, tolerance: float) -> int:
        """The count above another relative tolerance."""
        s = self.singular_values
        return int((s > tolerance * s[0]).sum()) if s[0] > 0 else 0


def separation_rank(
    f: Any,
    subset: Sequence[int],
    *,
    tolerance: float = 1e-6,
    n_samples: int | None = None,
    random_state: int | None = None,
) -> SeparationRank:
    """Numerical rank of the matrix ``f[x_A, x_B]`` by singular values in float64.

    The rank of a circuit across a cut of its vtree is at most the width of that node. This is the ordinary rank, a
    lower bound of the nonnegative one. Numerical rank is bound to its tolerance: softmax-parameterised circuits have
    singular values that fall by orders of magnitude, so look at several (``above``).

    Parameters
    ----------
    f : array with T axes, or a model with ``joint()``
        The function of T symbols. For ``n_samples`` a model with ``score_samples`` and ``sizes_``.
    subset : sequence of int
        A; B is the rest. Neither may be empty.
    tolerance : float
        Relative to the largest singular value.
    n_samples : int, optional
        Random assignments of A and of B instead of all: the rank of that part of the matrix, a lower bound.

    Raises
    ------
    ValueError
        For more than 2^22 entries without ``n_samples``.
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance: got {tolerance!r}; expected a number in (0, 1)")
    table = np.asarray(f, dtype=np.float64) if not hasattr(f, "joint") else None
    sizes = table.shape if table is not None else tuple(f.sizes_)
    T = len(sizes)
    A = [int(v) for v in subset]
    B = [v for v in range(T) if v not in A]
    if len(set(A)) != len(A) or not all(0 <= v < T for v in A) or not A or not B:
        raise ValueError(f"subset: got {A}; expected some, not all, of the variables 0 .. {T - 1}, each once")
    if n_samples is not None:
        matrix = _sampled(f, sizes, A, B, n_samples, random_state)
    else:
        if math.prod(sizes) > MOST:
            raise ValueError(f"f: {math.prod(sizes)} entries are more than {MOST}; sample rows and columns instead "
                             "(n_samples=...), which bounds the rank from below")  # fmt: skip
        if table is None:
            table = np.asarray(f.joint(), dtype=np.float64)
        matrix = table.transpose([*A, *B]).reshape(math.prod(sizes[v] for v in A), -1)
    if not np.isfinite(matrix).all():
        raise ValueError("f: holds NaN or infinity")
    found = SeparationRank(0, np.linalg.svd(matrix, compute_uv=False), tolerance)
    return found._replace(rank=found.above(tolerance))


def _sampled(f: Any, sizes: Sequence[int], A: list[int], B: list[int], n: int, random_state: int | None) -> np.ndarray:
    if not hasattr(f, "score_samples"):
        raise ValueError("f: sampling needs a model with score_samples; an array is used whole")
    rng = np.random.default_rng(random_state)
    sides = [np.stack([rng.integers(sizes[v], size=n) for v in side], 1) for side in (A, B)]
    rows = np.zeros((n, n, len(sizes)), dtype=np.int64)
    rows[:, :, A] = sides[0][:, None]
    rows[:, :, B] = sides[1][None]
    logs = f.score_samples(rows.reshape(n * n, -1)).reshape(n, n)
    return np.exp(logs - logs.max())
