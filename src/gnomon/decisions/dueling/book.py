"""The book: wins of both arms of every pair that ever met, in a hash table of arrays (memory for pairs met, not for N^2)."""

from __future__ import annotations

import numpy as np
from numba import njit

EMPTY = -1


@njit(cache=True, nogil=True)
def slot(keys, key):  # type: ignore[no-untyped-def]
    """Where ``key`` is, or would be: Fibonacci hashing, then the next free place. The size is a power of two."""
    mask = keys.size - 1
    at = np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)) & mask
    while keys[at] != EMPTY and keys[at] != key:
        at = (at + 1) & mask
    return at


@njit(cache=True, nogil=True)
def look_up(keys, counts, n, i, j):  # type: ignore[no-untyped-def]
    """Wins of i over j and of j over i."""
    lo, hi = min(i, j), max(i, j)
    at = slot(keys, lo * n + hi)
    if keys[at] == EMPTY:
        return np.int64(0), np.int64(0)
    first, second = np.int64(counts[at, 0]), np.int64(counts[at, 1])
    return (first, second) if i < j else (second, first)


@njit(cache=True, nogil=True)
def enter(keys, counts, n, i, j, wins, losses):  # type: ignore[no-untyped-def]
    """Add wins of i over j and of j over i; 1 when the pair is new, else 0."""
    lo, hi = min(i, j), max(i, j)
    at = slot(keys, lo * n + hi)
    new = keys[at] == EMPTY
    keys[at] = lo * n + hi
    counts[at, 0] += wins if i < j else losses
    counts[at, 1] += losses if i < j else wins
    return 1 if new else 0


@njit(cache=True, nogil=True)
def _move(keys, counts, new_keys, new_counts):  # type: ignore[no-untyped-def]
    for k in range(keys.size):
        if keys[k] != EMPTY:
            at = slot(new_keys, keys[k])
            new_keys[at] = keys[k]
            new_counts[at] = counts[k]


def make(size: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """An empty book with room for ``size`` / 2 pairs (a power of two)."""
    return np.full(size, EMPTY, np.int64), np.zeros((size, 2), np.int32)


def grow(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same book in a table of twice the size."""
    more = make(2 * keys.size)
    _move(keys, counts, *more)
    return more


def restore(pairs: np.ndarray, wins: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """A book from pairs (m, 2) and the wins of their first and second arms (m, 2)."""
    size = 64
    while size < 2 * (len(pairs) + 1):
        size *= 2
    keys, counts = make(size)
    for (i, j), (first, second) in zip(pairs.tolist(), wins.tolist(), strict=True):
        enter(keys, counts, n, i, j, first, second)
    return keys, counts


def entries(keys: np.ndarray, counts: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (m, 2), lower arm first and sorted, and the wins of both (m, 2)."""
    held = np.flatnonzero(keys != EMPTY)
    held = held[np.argsort(keys[held])]
    return np.stack(np.divmod(keys[held], n), axis=1), counts[held].astype(np.int64)
