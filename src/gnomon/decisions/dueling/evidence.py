"""The evidence after w wins and l losses, as an anytime-valid e-value for "wins more often than not"."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import ArrayLike


@njit(cache=True, nogil=True)
def log_e(wins, losses):  # type: ignore[no-untyped-def]
    """Logarithms of e+ (for p > 1/2) and of e- (for p < 1/2).

    e+ = 2 times the integral of (2p)^w (2 - 2p)^l over p in (1/2, 1), and e- the same over (0, 1/2); together they are the beta
    function S = 2^(n+1) B(w+1, l+1). The smaller is the incomplete beta function's series of positive terms, in which the
    beta function cancels; the larger is the rest, at least half of S: nothing is lost at any count.
    """
    n, more = wins + losses, max(wins, losses)
    term = total = 1.0
    m = 0
    while term > 1e-17 * total:
        term *= (n + 2 + m) / (2.0 * (more + 2 + m))
        total += term
        m += 1
    small = math.log(total) - math.log(2.0 * (more + 1))
    both = (n + 1) * math.log(2.0) + math.lgamma(wins + 1.0) + math.lgamma(losses + 1.0) - math.lgamma(n + 2.0)
    large = both + math.log1p(-math.exp(small - both))
    return (large, small) if wins >= losses else (small, large)


@njit(cache=True, nogil=True)
def _many(wins, losses, found):  # type: ignore[no-untyped-def]
    for k in range(wins.size):
        found[k] = log_e(wins[k], losses[k])[0]


def log_e_value(wins: ArrayLike, losses: ArrayLike) -> np.ndarray:
    r"""Logarithm of the one-sided e-value for "p > 1/2" with a uniform prior on (1/2, 1).

    .. math:: e_+ = 2 \int_{1/2}^1 (2p)^w (2 - 2p)^l \, dp = 2^{n+1} B(w+1, l+1) (1 - I_{1/2}(w+1, l+1))

    Under p <= 1/2 it is a supermartingale that starts at 1, so P(ever e+ >= 1/x) <= x, however often one looks (Ville).

    Parameters
    ----------
    wins, losses : array_like of int
        Counts w and l, 0 or more; they are broadcast.

    Returns
    -------
    numpy.ndarray
        log e+; that of e- is ``log_e_value(losses, wins)``.

    Raises
    ------
    ValueError
        For counts that are negative or not whole.
    """
    w, b = np.broadcast_arrays(np.asarray(wins), np.asarray(losses))
    for name, value in (("wins", w), ("losses", b)):
        if not (np.issubdtype(value.dtype, np.number) and np.all(np.isfinite(value)) and np.all(value == np.floor(value))
                and np.all(value >= 0)):  # fmt: skip
            raise ValueError(f"{name}: got {value.tolist()!r}; expected whole numbers of 0 or more")
    found = np.empty(w.size)
    _many(w.ravel().astype(np.int64), b.ravel().astype(np.int64), found)
    return found.reshape(w.shape)
