"""The compiled path for single queries: one pass over the K clusters, then only over the clusters that are drawn."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def cheap_logits(centroids, u, beta, bias, half, slope):  # type: ignore[no-untyped-def]  # pragma: no cover
    """beta <u, mu_c> + bias_c + half ||u||^2 slope_c: 2LS (no bias), S-2LS (log n_c), SD-2LS (tr/d) cost the same."""
    scores = np.dot(centroids, u)
    square = half * np.float64(np.dot(u, u))
    logits = np.empty(len(scores))
    for c in range(len(scores)):
        logits[c] = beta * np.float64(scores[c]) + bias[c] + square * slope[c]
    return logits


@numba.njit(cache=True)
def draw(items, offsets, u, beta, logits, first, second, rows, log_q):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Draws for one query, from two uniforms each: ``rows`` and ``log_q`` (m,) are filled.

    The same inverse distribution functions as ``TwoLevelSoftmax._draw_grouped``.
    """
    K = len(logits)
    peak = logits.max()
    total = 0.0
    clusters = np.empty(K)  # cumulative, float64 as all sums here
    for c in range(K):
        total += np.exp(logits[c] - peak)
        clusters[c] = total
    log_total = peak + np.log(total)
    inside = np.empty(offsets[K])  # cumulative weights, filled for the clusters that are drawn
    scores = np.empty(offsets[K], items.dtype)
    log_z = np.full(K, np.nan)
    for j in range(len(first)):
        c = min(np.searchsorted(clusters, first[j] * total, side="right"), K - 1)
        start, stop = offsets[c], offsets[c + 1]
        if np.isnan(log_z[c]):
            scores[start:stop] = np.dot(items[start:stop], u)
            top = scores[start:stop].max()
            mass = 0.0
            for i in range(start, stop):
                mass += np.exp(beta * (np.float64(scores[i]) - np.float64(top)))
                inside[i] = mass
            log_z[c] = beta * np.float64(top) + np.log(mass)
        at = np.searchsorted(inside[start:stop], second[j] * inside[stop - 1], side="right")
        i = start + min(at, stop - start - 1)
        rows[j] = i
        log_q[j] = logits[c] - log_total + beta * np.float64(scores[i]) - log_z[c]
