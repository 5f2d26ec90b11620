"""What SpaceR is compared with: counter tables, linear sketches, and their versions with predicted heavy items.

All have ``fit(stream)`` and ``estimate_many(items)``. Linear sketches are made from the exact count vector, which gives
the same cells as reading the stream item by item.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, Self

import numpy as np
from numba import njit

from gnomon.sampling.spacer.coins import below, mix
from gnomon.sampling.spacer.streams import Stream

Oracle = Callable[[Stream], np.ndarray]  # the items that are said to be heavy


class Estimator(Protocol):
    """What a baseline is."""

    def fit(self, stream: Stream) -> Any: ...

    def estimate_many(self, items: np.ndarray) -> np.ndarray: ...


# --- hashing ---------------------------------------------------------------------------------------------------------


def _rows(rows: int, rng: np.random.Generator) -> np.ndarray:
    """Multiplier (odd) and shift of the bucket and of the sign of each row: (rows, 4) uint64, all drawn afresh."""
    hashes = rng.integers(2**64, size=(rows, 4), dtype=np.uint64)
    hashes[:, ::2] |= np.uint64(1)
    return hashes


@njit(cache=True, nogil=True)
def _bucket(mixed, row, width):  # type: ignore[no-untyped-def]
    """Multiply-shift (Dietzfelbinger et al. 1997) on the mixed item, scaled to the width."""
    return (((row[0] * mixed + row[1]) >> np.uint64(32)) * np.uint64(width)) >> np.uint64(32)


@njit(cache=True, nogil=True)
def _sign(mixed, row):  # type: ignore[no-untyped-def]
    return 1 - 2 * np.int64((row[2] * mixed + row[3]) >> np.uint64(63))


@njit(cache=True, nogil=True)
def _add(items, counts, hashes, cells, signed):  # type: ignore[no-untyped-def]
    for i in range(items.size):
        mixed = mix(items[i])
        for r in range(cells.shape[0]):
            sign = _sign(mixed, hashes[r]) if signed else 1
            cells[r, _bucket(mixed, hashes[r], cells.shape[1])] += sign * counts[i]


@njit(cache=True, nogil=True)
def _conservative(items, hashes, cells):  # type: ignore[no-untyped-def]
    """Estan and Varghese 2002: only the cells that hold the minimum grow."""
    at = np.empty(cells.shape[0], np.uint64)
    for item in items:
        mixed, least = mix(item), np.int64(2**62)
        for r in range(cells.shape[0]):
            at[r] = _bucket(mixed, hashes[r], cells.shape[1])
            least = min(least, cells[r, at[r]])
        for r in range(cells.shape[0]):
            cells[r, at[r]] = max(cells[r, at[r]], least + 1)


@njit(cache=True, nogil=True)
def _read(items, hashes, cells, signed):  # type: ignore[no-untyped-def]
    """Each row's estimate, (rows, n)."""
    found = np.empty((cells.shape[0], items.size), np.int64)
    for i in range(items.size):
        mixed = mix(items[i])
        for r in range(cells.shape[0]):
            sign = _sign(mixed, hashes[r]) if signed else 1
            found[r, i] = sign * cells[r, _bucket(mixed, hashes[r], cells.shape[1])]
    return found


def _median(rows: np.ndarray) -> np.ndarray:
    """np.median over the first axis of (r, n) where r is small, many times faster."""
    if len(rows) != 3:
        return _sorted_median(rows)
    a, b, c = rows
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


@njit(cache=True, nogil=True)
def _sorted_median(rows):  # type: ignore[no-untyped-def]
    r, n = rows.shape
    found, sorted_ = np.empty(n), np.empty(r)
    for i in range(n):
        for j in range(r):
            value, at = np.float64(rows[j, i]), j
            while at > 0 and sorted_[at - 1] > value:
                sorted_[at] = sorted_[at - 1]
                at -= 1
            sorted_[at] = value
        found[i] = 0.5 * (sorted_[(r - 1) // 2] + sorted_[r // 2])
    return found


class _Sketch:
    """Rows of cells, each with its own hash."""

    signed = False

    def __init__(self, width: int, rows: int = 3, random_state: Any = None):
        for name, value in (("width", width), ("rows", rows)):
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name}: got {value!r}; expected an integer of 1 or more")
        self.hashes = _rows(rows, np.random.default_rng(random_state))
        self.cells = np.zeros((rows, width), np.int64)

    def add(self, items: np.ndarray, counts: np.ndarray) -> Self:
        """Add counts (n,) of items (n,); negative ones take away."""
        _add(np.asarray(items, np.int64), np.asarray(counts, np.int64), self.hashes, self.cells, self.signed)
        return self

    def fit(self, stream: Stream) -> Self:
        """Read a whole stream."""
        return self.add(np.arange(stream.n), stream.counts)

    def rows(self, items: np.ndarray) -> np.ndarray:
        """What each row says, (rows, n)."""
        return _read(np.asarray(items, np.int64), self.hashes, self.cells, self.signed)


class CountMin(_Sketch):
    """Count-Min (Cormode and Muthukrishnan 2005): the least of the rows; never too low.

    Parameters
    ----------
    width, rows : int
        Cells a row, and rows.
    conservative : bool
        Raise only what must be raised (Estan and Varghese 2002); it reads the stream in order and is not linear.
    random_state : int, Generator or None
        Draws the hashes.
    """

    def __init__(self, width: int, rows: int = 3, conservative: bool = False, random_state: Any = None):
        super().__init__(width, rows, random_state)
        self.conservative = conservative

    def add(self, items: np.ndarray, counts: np.ndarray) -> Self:
        if self.conservative:
            raise TypeError("conservative Count-Min is not linear: it has no add, only fit")
        return super().add(items, counts)

    def fit(self, stream: Stream) -> Self:
        if not self.conservative:
            return super().fit(stream)
        _conservative(stream.items, self.hashes, self.cells)
        return self

    def estimate_many(self, items: np.ndarray) -> np.ndarray:
        """Estimates (n,) of items (n,)."""
        return self.rows(items).min(0)


class CountSketch(_Sketch):
    """CountSketch (Charikar, Chen and Farach-Colton 2002): random signs, and the median of the rows; unbiased, linear."""

    signed = True

    def estimate_many(self, items: np.ndarray) -> np.ndarray:
        """Estimates (n,) of items (n,); they may be negative."""
        return _median(self.rows(items))


class CountSketchPP:
    """CountSketch++: one large CountSketch for the estimate, and many small ones that say whether an item is rare.

    Half of the S cells are one 3-row CountSketch, half floor(log2 S) 3-row ones. An item reads 0 where the median of
    the small tables' estimates is below tau, else what the large one says.

    Parameters
    ----------
    cells : int
        S, 12 or more.
    tau : float
        The threshold; the usual scale is N log2(S) / S.
    random_state : int, Generator or None
        Draws the hashes.
    """

    def __init__(self, cells: int, tau: float = 0.0, random_state: Any = None):
        if not isinstance(cells, int | np.integer) or cells < 12:
            raise ValueError(f"cells: got {cells!r}; expected an integer of 12 or more")
        rng = np.random.default_rng(random_state)
        self.tau = tau
        self.large = CountSketch(cells // 6, 3, rng)
        width = max(1, math.floor(cells / (6 * math.log2(cells))))
        self.small = [CountSketch(width, 3, rng) for _ in range(math.floor(math.log2(cells)))]

    def add(self, items: np.ndarray, counts: np.ndarray) -> CountSketchPP:
        """Add counts (n,) of items (n,)."""
        for sketch in (self.large, *self.small):
            sketch.add(items, counts)
        return self

    def fit(self, stream: Stream) -> CountSketchPP:
        """Read a whole stream."""
        return self.add(np.arange(stream.n), stream.counts)

    def read(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Median of the small tables, and the large one's estimates, each (n,)."""
        return _median(np.stack([s.estimate_many(items) for s in self.small])), self.large.estimate_many(items)

    def estimate_many(self, items: np.ndarray) -> np.ndarray:
        """Estimates (n,) of items (n,)."""
        small, large = self.read(items)
        return np.where(small < self.tau, 0, large)


# --- tables of counters ----------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _space_saving(items, n, capacity, unbiased, rng):  # type: ignore[no-untyped-def]
    """Counts (n,) of the items in the table at the end, and the smallest count of a full table.

    The entries of the smallest count wait in a queue in random order; when it is empty they are looked for anew, which
    happens once for each value of the smallest count.
    """
    slot_of, item_of = np.full(n, -1, np.int64), np.empty(capacity, np.int64)
    counts, queue = np.zeros(capacity, np.int64), np.empty(capacity, np.int64)
    size = head = tail = least = 0
    for item in items:
        slot = slot_of[item]
        if slot >= 0:
            counts[slot] += 1
            continue
        if size < capacity:
            slot_of[item], item_of[size], counts[size] = size, item, 1
            size += 1
            continue
        while head < tail and counts[queue[head]] != least:  # hit in the meantime
            head += 1
        if head == tail:
            least, head, tail = counts.min(), 0, 0
            for slot in range(capacity):
                if counts[slot] == least:
                    other = below(tail + 1, rng)
                    queue[tail], queue[other] = queue[other], slot
                    tail += 1
        slot = queue[head]
        counts[slot] += 1
        if not unbiased or below(least + 1, rng) == 0:
            slot_of[item_of[slot]], slot_of[item], item_of[slot] = -1, slot, item
    found = np.zeros(n, np.int64)
    for slot in range(size):
        found[item_of[slot]] = counts[slot]
    return found, counts.min() if size == capacity else 0


class SpaceSaving:
    """Space Saving (Metwally et al. 2005), which always admits, in O(1) an item; ``unbiased``: that of Ting (2018).

    The law of ``SpaceR(admission="always")`` and ``"unbiased"``, written for items 0..n-1 of weight 1.
    """

    def __init__(self, capacity: int, random_state: Any = None, unbiased: bool = False):
        if not isinstance(capacity, int | np.integer) or capacity < 1:
            raise ValueError(f"capacity: got {capacity!r}; expected an integer of 1 or more")
        self.capacity, self.unbiased = capacity, unbiased
        self.rng = np.random.default_rng(random_state).integers(2**64, size=1, dtype=np.uint64)

    def fit(self, stream: Stream) -> SpaceSaving:
        """Read a whole stream."""
        self.counts, self.least = _space_saving(stream.items, stream.n, self.capacity, self.unbiased, self.rng)
        return self

    def estimate_many(self, items: np.ndarray) -> np.ndarray:
        """Estimates (n,) of items (n,)."""
        return self.counts[items]


class MisraGries(SpaceSaving):
    """Misra and Gries 1982 with ``capacity`` counters: Space Saving with one more, less its smallest count."""

    def __init__(self, capacity: int, random_state: Any = None):
        super().__init__(capacity + 1, random_state)

    def estimate_many(self, items: np.ndarray) -> np.ndarray:
        return np.maximum(super().estimate_many(items) - self.least, 0)


# --- predictions -----------------------------------------------------------------------------------------------------


class Learned:
    """A sketch beside exact counters for the items that an oracle calls heavy (Hsu et al. 2019).

    Parameters
    ----------
    sketch : a linear sketch
        It is given the other items only.
    oracle : function from a stream to items
        The predictions.
    """

    def __init__(self, sketch: Any, oracle: Oracle):
        self.sketch, self.oracle = sketch, oracle

    def fit(self, stream: Stream) -> Learned:
        """Read a whole stream."""
        self.exact = np.zeros_like(stream.counts)
        heavy = self.oracle(stream)
        self.exact[heavy] = stream.counts[heavy]
        light = np.flatnonzero(self.exact == 0)
        self.sketch.add(light, stream.counts[light])
        return self

    def estimate_many(self, items: np.ndarray) -> np.ndarray:
        """Estimates (n,) of items (n,)."""
        return self.join(items, self.sketch.estimate_many(items))

    def join(self, items: np.ndarray, light: np.ndarray) -> np.ndarray:
        """Exact counts where there are such, else the sketch's estimates ``light``."""
        return np.where(self.exact[items] > 0, self.exact[items], light)


class TrivialTop:
    """Count exactly what an oracle calls heavy, and answer 0 otherwise."""

    def __init__(self, oracle: Oracle):
        self.oracle = oracle

    def fit(self, stream: Stream) -> TrivialTop:
        """Read a whole stream."""
        self.exact = np.zeros_like(stream.counts)
        heavy = self.oracle(stream)
        self.exact[heavy] = stream.counts[heavy]
        return self

    def estimate_many(self, items: np.ndarray) -> np.ndarray:
        """Estimates (n,) of items (n,)."""
        return self.exact[items]


def perfect_oracle(p: int) -> Oracle:
    """The p items that are most frequent in truth."""
    return lambda stream: stream.top(p)


def noisy_oracle(p: int, flip: float, random_state: Any = None) -> Oracle:
    """The true top p, of which the share ``flip`` is replaced by random other items."""
    if not 0 <= flip <= 1:
        raise ValueError(f"flip: got {flip!r}; expected a share in [0, 1]")

    def predict(stream: Stream) -> np.ndarray:
        rng = np.random.default_rng(random_state)
        heavy = stream.top(p)
        wrong = rng.permutation(len(heavy))[: round(flip * len(heavy))]
        others = rng.choice(np.setdiff1d(np.arange(stream.n), heavy), len(wrong), replace=False)
        heavy = heavy.copy()
        heavy[wrong] = others
        return heavy

    return predict


def two_pass_oracle(kind: str, p: int, memory: int, random_state: Any = None) -> Oracle:
    """The p items of largest estimate after a first pass.

    Parameters
    ----------
    kind : {"space-saving", "misra-gries", "count-sketch"}
        What reads the first pass; CountSketch has 3 rows and is asked about every distinct item, which favours it.
    p : int
        How many items to name.
    memory : int
        Entries of a table, or cells of the sketch.
    random_state : int, Generator or None
        Its coins or hashes.
    """
    makers: dict[str, Callable[..., Any]] = {"space-saving": SpaceSaving, "misra-gries": MisraGries,
              "count-sketch": lambda cells, rng: CountSketch(max(1, cells // 3), 3, rng)}  # fmt: skip
    if kind not in makers:
        raise ValueError(f"kind: got {kind!r}; expected one of {', '.join(makers)}")

    def predict(stream: Stream) -> np.ndarray:
        estimates = (
            makers[kind](memory, np.random.default_rng(random_state)).fit(stream).estimate_many(np.arange(stream.n))
        )
        first = np.argsort(-estimates, kind="stable")[:p]
        return first[estimates[first] > 0]

    return predict
