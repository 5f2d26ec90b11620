"""Which share of the pairs of a batch two scores order alike: all pairs for few items, merge sort for many."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np
from numba import njit

DIRECT = 64  # items up to which comparing all pairs is as fast as sorting


def alike(rule: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The share of pairs ordered alike, a pair that either side ties counting 1/2.

    Parameters
    ----------
    rule : ndarray, shape (b, m)
        The rule's scores of m items in b batches.
    scores : ndarray, shape (n, b, m)
        Each voter's scores.

    Returns
    -------
    ndarray, shape (n, b)
        (1 + Kendall's tau_a) / 2, in O(m log m) each where m > 64.
    """
    rule, scores = np.ascontiguousarray(rule, dtype=float), np.ascontiguousarray(scores, dtype=float)
    return _alike(rule, scores, np.argsort(rule, axis=1))


@njit(cache=True)
def _alike(rule, scores, order):
    n, batches, m = scores.shape
    found = np.empty((n, batches))
    pairs = m * (m - 1) / 2
    y, other = np.empty(m), np.empty(m)
    for b in range(batches):
        x = rule[b][order[b]]
        for i in range(n):
            for j in range(m):
                y[j] = scores[i, b, order[b, j]]
            discordant, tied = _direct(x, y) if m <= DIRECT else _sorted(x, y, other)
            found[i, b] = 1.0 - (discordant + tied / 2) / pairs
    return found


@njit(cache=True)
def _direct(x, y):
    """Discordant pairs, and pairs that one side ties; x ascends."""
    discordant = tied = 0
    for j in range(1, len(x)):
        for k in range(j):
            if x[k] == x[j] or y[k] == y[j]:
                tied += 1
            elif y[k] > y[j]:
                discordant += 1
    return discordant, tied


@njit(cache=True)
def _sorted(x, y, other):
    """The same by Knight's method; y is sorted in place."""
    m = len(x)
    tied_x = tied_both = start = 0
    for j in range(1, m + 1):  # within ties of x, y in ascending order is no inversion
        if j == m or x[j] != x[start]:
            size = j - start
            if size > 1:
                tied_x += size * (size - 1) // 2
                y[start:j].sort()
                tied_both += _tied(y, start, j)
            start = j
    discordant = _inversions(y, other)
    return discordant, tied_x + _tied(y, 0, m) - tied_both


@njit(cache=True)
def _tied(y, start, stop):
    """Pairs of equal values in a sorted stretch."""
    count = run = 0
    for j in range(start + 1, stop):
        run = run + 1 if y[j] == y[j - 1] else 0
        count += run
    return count


@njit(cache=True)
def _inversions(y, other):
    """Pairs with the larger value first, by a bottom-up merge sort of y."""
    m, count, width = len(y), 0, 1
    while width < m:
        for left in range(0, m, 2 * width):
            middle, right = min(left + width, m), min(left + 2 * width, m)
            i, j = left, middle
            for k in range(left, right):
                if i < middle and (j >= right or y[i] <= y[j]):
                    other[k] = y[i]
                    i += 1
                else:
                    count += middle - i
                    other[k] = y[j]
                    j += 1
        y[:] = other
        width *= 2
    return count
