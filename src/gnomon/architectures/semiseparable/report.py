"""What each algorithm makes of given decays: errors, violations, order, overflow."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numba
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnomon.architectures.semiseparable.algorithms import ALGORITHMS
from gnomon.architectures.semiseparable.mask import check_decay, segsum

__all__ = ["exact", "measures", "segsum_report"]

FLOOR = 1e-30  # below it, float32 products are subnormal or zero


def segsum_report(
    a: Tensor | NDArray, algorithms: Iterable[str] | None = None, *, chunk_size: int | None = None,
    tolerance: float = 1e-3, limit: int = 512,
) -> pd.DataFrame:  # fmt: skip
    """How right the mask comes out in float32, by algorithm, on one's own decays.

    Parameters
    ----------
    a : Tensor or array, shape [..., Q]
        Log-decays, at most 0, time last.
    algorithms : iterable of str, optional
        Which of ``hier``, ``hier_log``, ``direct``, ``diff_sequential``, ``diff_kogge_stone``, ``diff_blelloch``,
        ``diff_clamped`` (default: all). ``diff_clamped`` uses the Blelloch scan.
    chunk_size : int, optional
        Cut the last axis into chunks of so many (a remainder is left out); default: one chunk, Q long.
    tolerance : float
        A chunk is ``wrong`` where a relative error exceeds it, an entry exceeds 1, or one is not finite.
    limit : int
        Examine at most so many chunks, evenly spread.

    Returns
    -------
    pandas.DataFrame
        One row an algorithm: ``chunks``; ``max_error`` and ``median_error``, relative to the direct sums in float64,
        over entries below the diagonal whose value exceeds 1e-30; ``violations`` (entries above 1); ``disorder``
        (neighbours out of order by more than 4 eps); ``inf``; ``nan``; ``wrong`` (share of chunks).

    Raises
    ------
    ValueError
        For positive or NaN decays, fewer than ``chunk_size`` of them, or an unknown algorithm.
    """
    a = torch.as_tensor(a).detach().cpu()
    check_decay(a)
    chunk_size = a.shape[-1] if chunk_size is None else chunk_size
    if not 1 <= chunk_size <= a.shape[-1]:
        raise ValueError(f"chunk_size must be from 1 to {a.shape[-1]}, got {chunk_size}")
    whole = a.shape[-1] // chunk_size * chunk_size
    chunks = a[..., :whole].reshape(-1, chunk_size).float()
    if not len(chunks):
        raise ValueError("a holds no chunk")
    chunks = chunks[np.unique(np.linspace(0, len(chunks) - 1, min(limit, len(chunks))).astype(int))]
    names = list(ALGORITHMS if algorithms is None else algorithms)
    if unknown := set(names) - set(ALGORITHMS):
        raise ValueError(f"algorithms must be among {', '.join(ALGORITHMS)}, got {', '.join(sorted(unknown))}")
    truth = exact(chunks)
    rows = []
    for name in names:
        mask = segsum(chunks, **ALGORITHMS[name], backend="numba", validate=False).numpy()
        rows.append({"algorithm": name, "chunks": len(chunks), **measures(mask, truth, tolerance)})
    return pd.DataFrame(rows).set_index("algorithm")


def exact(chunks: Tensor) -> NDArray[np.float64]:
    """The mask [chunks, Q, Q] by direct sums in float64."""
    return segsum(chunks.double(), "direct", backend="numba", validate=False).numpy()


def measures(mask: NDArray, truth: NDArray[np.float64], tolerance: float = 1e-3) -> dict[str, float]:
    """The columns of :func:`segsum_report` for masks [chunks, Q, Q] beside the true ones.

    Errors are over finite entries; infinities and NaN are counted beside them. A chunk of length 1 has no entry below
    the diagonal, and its errors are 0.
    """
    slack = mask.dtype.type(1 + 4 * np.finfo(mask.dtype).eps)
    errors, counts = _judge(np.ascontiguousarray(mask), truth, slack, tolerance)
    violations, disorder, infinite, undefined, wrong = (int(c) for c in counts)
    return {
        "max_error": float(errors.max(initial=0.0)),
        "median_error": float(np.median(errors)) if errors.size else 0.0,
        "violations": violations,
        "disorder": disorder,
        "inf": infinite,
        "nan": undefined,
        "wrong": wrong / len(mask),
    }


@numba.njit(nogil=True, cache=True)
def _judge(mask, truth, slack, tolerance):
    """Relative errors of the finite entries that count, and (violations, disorder, inf, nan, wrong chunks)."""
    chunks, length = mask.shape[0], mask.shape[1]
    errors = np.empty(chunks * length * (length - 1) // 2)
    kept = violations = disorder = infinite = undefined = wrong = 0
    for c in range(chunks):
        off = False
        for i in range(length):
            for j in range(i + 1):
                value, true = mask[c, i, j], truth[c, i, j]
                violations += value > 1
                infinite += math.isinf(value)
                undefined += math.isnan(value)
                off |= not value <= 1
                if i == j or true <= FLOOR:
                    continue
                if math.isfinite(value):
                    errors[kept] = abs(value - true) / true
                    off |= errors[kept] > tolerance
                    kept += 1
                # Whoever decayed one step longer must not be larger, but for rounding.
                if i + 1 < length and truth[c, i + 1, j] > FLOOR:
                    disorder += mask[c, i + 1, j] > value * slack
                if j > 0 and truth[c, i, j - 1] > FLOOR:
                    disorder += mask[c, i, j - 1] > value * slack
        wrong += off
    return errors[:kept], (violations, disorder, infinite, undefined, wrong)
