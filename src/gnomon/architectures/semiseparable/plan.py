"""Split-sequence parallelism: who walks which tokens, and what that costs in memory traffic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Segments", "io_bytes", "plan_split", "segments"]


def plan_split(T: int, Q: int, b: int, h: int, workers: int) -> int:
    """Split length: the longest that still keeps every worker busy.

    Parameters
    ----------
    T, Q : int
        Sequence length and compute tile, in tokens.
    b, h : int
        Batch size and number of heads: what is parallel before any split.
    workers : int
        How many walks run at once (threads, or blocks resident on a GPU).

    Returns
    -------
    int
        Ls, the largest multiple of Q with ``b * h * ceil(T / Ls) >= workers``: the whole sequence where ``b * h``
        is enough, one tile where nothing is.

    Raises
    ------
    ValueError
        If an argument is below 1 (T: below 0).
    """
    _positive(Q=Q, b=b, h=h, workers=workers)
    if T < 0:
        raise ValueError(f"T must be at least 0, got {T}")
    tiles, needed = max(1, -(-T // Q)), -(-workers // (b * h))
    if needed <= 1:
        return tiles * Q
    return max(1, -(-tiles // (needed - 1)) - 1) * Q


def io_bytes(
    b: int, T: int, h: int, P: int, N: int, g: int, Q: int, Ls: int, itemsize: int = 2, state_itemsize: int = 4
) -> dict[str, int]:
    """Bytes that the split-sequence SSD moves through memory.

    Parameters
    ----------
    b, T, h, P, N, g : int
        Batch, length, heads, head dimension, state dimension, groups.
    Q, Ls : int
        Compute tile and split length; ``Ls = Q`` is the classic schedule, which passes a state at every tile.
    itemsize, state_itemsize : int
        Bytes of an element of x, B, C, y; of a state or a log-decay.

    Returns
    -------
    dict of str to int
        ``pass1`` (x, a and B read for the local states; 0 with one split), ``pass2`` (states that the scan over the
        splits reads and writes), ``pass3`` (x, a, B, C read and y written), ``boundary`` (states that pass 1 writes
        and pass 3 reads) and their sum ``total``. ``boundary`` goes as Q / Ls.
    """
    _positive(b=b, h=h, P=P, N=N, g=g, Q=Q, itemsize=itemsize, state_itemsize=state_itemsize)
    if Ls < Q or Ls % Q:
        raise ValueError(f"Ls must be a multiple of Q = {Q}, got {Ls}")
    splits = -(-T // Ls)
    tokens = b * T
    reads = tokens * ((h * P + g * N) * itemsize + h * state_itemsize)
    boundary = 2 * splits * b * h * P * N * state_itemsize if splits > 1 else 0
    parts = {
        "pass1": reads if splits > 1 else 0,
        "pass2": boundary,
        "pass3": reads + tokens * (g * N + h * P) * itemsize,
        "boundary": boundary,
    }
    return {**parts, "total": sum(parts.values())}


@dataclass(frozen=True)
class Segments:
    """Token ranges of a flattened batch, each walked by one worker in order; none crosses a sequence's start.

    Attributes
    ----------
    start, stop : int array, shape [R]
        Range of each segment.
    sequence : int array, shape [R]
        To which sequence it belongs.
    rank : int array, shape [R]
        Its place in that sequence.
    sequences : int
        How many sequences there are (empty ones included).
    """

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    sequence: NDArray[np.int64]
    rank: NDArray[np.int64]
    sequences: int

    def __len__(self) -> int:
        return len(self.start)

    @property
    def depth(self) -> int:
        """Largest number of segments in one sequence."""
        return int(self.rank.max()) + 1 if len(self) else 0


def segments(offsets: NDArray[np.int64], length: int) -> Segments:
    """Cut sequences, given by their offsets [n + 1], into segments of at most ``length`` tokens."""
    counts = -(-np.diff(offsets) // length)
    sequence = np.repeat(np.arange(len(counts)), counts)
    rank = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    start = offsets[sequence] + rank * length
    stop = np.minimum(start + length, offsets[sequence + 1])
    return Segments(start, stop, sequence, rank, len(counts))


def _positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
