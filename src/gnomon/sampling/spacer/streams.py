"""Streams with their exact counts: what estimates are compared with."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

ORDERS = ("natural", "shuffled", "rare first", "frequent first", "bursts")


@dataclass(frozen=True)
class Stream:
    """A stream over the items 0..n-1, all of which occur.

    Attributes
    ----------
    items : array (N,) of int
        In the order of arrival.
    """

    items: np.ndarray

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """True frequencies (n,) int64."""
        return np.bincount(self.items)

    @property
    def n(self) -> int:
        """Distinct items."""
        return len(self.counts)

    @property
    def total(self) -> int:
        """Arrivals, N."""
        return len(self.items)

    def top(self, p: int) -> np.ndarray:
        """The p items of largest frequency (fewer where n < p), ties by item."""
        return self._ranked[:p]

    @functools.cached_property
    def _ranked(self) -> np.ndarray:
        return np.argsort(-self.counts, kind="stable")


def encode(values: Iterable[Any]) -> np.ndarray:
    """Items as ids 0..n-1 (int32), numbered by first appearance."""
    return pd.factorize(np.asarray(values))[0].astype(np.int32)


def zipf(n: int, a: float) -> np.ndarray:
    """The stream in which item i = 0..n-1 occurs ceil(n / (i + 1)^a) times, sorted by item."""
    counts = np.ceil(n / np.arange(1, n + 1, dtype=np.float64) ** a - 1e-9).astype(np.int64)
    return np.repeat(np.arange(n, dtype=np.int32), counts)


def arranged(items: np.ndarray, order: str, rng: np.random.Generator) -> Stream:
    """A stream in another order, its ids renamed at random, lest a hash profit from ids that are ranks.

    Parameters
    ----------
    items : array (N,) of int in 0..n-1
        The stream as it came.
    order : {"natural", "shuffled", "rare first", "frequent first", "bursts"}
        By falling or rising frequency, or all occurrences of an item in a row, the items in random order.
    rng : numpy.random.Generator
        Names the items, shuffles, and breaks ties between equally frequent ones.
    """
    if order not in ORDERS:
        raise ValueError(f"order: got {order!r}; expected one of {', '.join(ORDERS)}")
    counts = np.bincount(items)
    names = rng.permutation(len(counts)).astype(np.int32)
    if order == "natural":
        return Stream(names[items])
    if order == "shuffled":
        return Stream(rng.permutation(names[items]))
    place = rng.permutation(len(counts))
    if order != "bursts":
        place = np.lexsort((place, counts if order == "rare first" else -counts))
    return Stream(names[np.repeat(place, counts[place])])


def weighted_error(counts: np.ndarray, estimates: np.ndarray) -> float:
    """W, the error |f - e| of a query that is drawn like the stream: sum f |f - e| / sum f."""
    return float(counts @ np.abs(counts - estimates) / counts.sum())


def errors(stream: Stream, estimates: np.ndarray, size: int) -> dict[str, float]:
    """How good estimates (n,) of all items are, at a memory of ``size``.

    Returns
    -------
    dict
        ``W``, the weighted error; ``U``, the mean of |f - e|; over the ``size / 2`` most frequent items ``relative``, the
        mean of |f - e| / f; ``recall``, the share of these among the ``size`` largest positive estimates; ``overlap``,
        the same among no more estimates than there are such items. An item as frequent as the last of them is a hit.
    """
    counts, distance = stream.counts, np.abs(stream.counts - estimates)
    best = stream.top(size // 2)

    def hits(claimed: int) -> float:
        found = np.argpartition(-estimates, min(claimed, stream.n) - 1)[:claimed]
        found = found[estimates[found] > 0]
        return min(1.0, float((counts[found] >= counts[best[-1]]).sum() / len(best)))

    return {"W": weighted_error(counts, estimates), "U": float(distance.mean()),
            "relative": float((distance[best] / counts[best]).mean()),
            "recall": hits(size), "overlap": hits(len(best))}  # fmt: skip
