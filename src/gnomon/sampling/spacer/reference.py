"""The rule as it is stated, on a dict, with the minimum found by looking at every entry: slow, exact, easy to check.

Tossing the same coins as :class:`~gnomon.sampling.spacer.method.SpaceR` it gives the same table bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gnomon.sampling.spacer.coins import KEEP, below, failures, rate, tie, uniform


class NaiveSpaceR:
    """SpaceR over int64 items on a dict of item -> [count, offset].

    Parameters
    ----------
    capacity : int
        Number of entries k.
    admission : {"inverse", "always", "unbiased", "hold"}
        The rule; see :class:`~gnomon.sampling.spacer.method.SpaceR`.
    state : sequence of 2 int
        Start of the coins, and the salt of the tie keys, both 64 bits.
    skip : bool
        Draw the number of misses to skip (as the fast path does), or toss a coin at each miss: the same law.
    """

    def __init__(self, capacity: int, admission: str, state: tuple[int, int], skip: bool = True):
        self.capacity, self.admission, self.skip = capacity, admission, skip
        self.rng = np.array(state[:1], np.uint64)
        self.salt: Any = np.uint64(state[1])
        self.entries: dict[int, list[int]] = {}
        self.pending: int | None = None  # misses still to skip
        self.thinned, self.p = 0, 1.0  # of hold

    def update(self, item: int, weight: int = 1) -> None:
        """One arrival."""
        if self.admission == "hold":
            for _ in range(weight):
                self._sample(item)
        elif len(self.entries) < self.capacity and item not in self.entries:
            self.entries[item] = [weight, 0]
        else:
            least = self._minimum()[1]
            if item in self.entries:
                self.entries[item][0] += weight
            else:
                self._newcomer(item, weight)
            if len(self.entries) == self.capacity and self._minimum()[1] != least:
                self.pending = None

    def _minimum(self) -> tuple[int, int]:
        """Item and count of the least (count, tie key)."""
        if len(self.entries) < self.capacity:
            return 0, 0
        item = min(self.entries, key=lambda i: (self.entries[i][0], int(tie(self.salt, i, self.entries[i][0]))))
        return item, self.entries[item][0]

    def _newcomer(self, item: int, weight: int) -> None:
        rarest, least = self._minimum()
        if self.admission == "inverse" and not self._admitted(weight, least):
            return
        if self.admission == "unbiased" and below(least + weight, self.rng) >= weight:
            self.entries[rarest][0] += weight
            self.entries[rarest][1] += weight
            return
        del self.entries[rarest]
        self.entries[item] = [least + weight, least]

    def _admitted(self, weight: int, least: int) -> bool:
        """A coin of w / (m + w)."""
        if weight > 1 or not self.skip:
            return below(least + weight, self.rng) < weight
        return self._waited(1 / (least + 1))

    def _waited(self, p: float) -> bool:
        if self.pending is None:
            self.pending = failures(p, self.rng)
        if self.pending > 0:
            self.pending -= 1
            return False
        self.pending = None
        return True

    def _sample(self, item: int) -> None:
        """Counting samples: one unit of one item."""
        if item in self.entries:
            self.entries[item][0] += 1
            return
        if not (self._waited(self.p) if self.skip else uniform(self.rng) <= self.p):
            return
        self.entries[item] = [1, 0]
        while len(self.entries) > self.capacity:
            self.thinned, self.pending = self.thinned + 1, None
            self.p = rate(self.thinned)
            for tracked, entry in list(self.entries.items()):
                if uniform(self.rng) > KEEP:
                    entry[0] = max(0, entry[0] - 1 - failures(self.p, self.rng))
                if entry[0] == 0:
                    del self.entries[tracked]
