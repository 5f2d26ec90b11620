"""SpaceR: a table of k counted items whose newcomers toss a coin (randomised admission)."""

from __future__ import annotations

import functools
import heapq
import json
import math
import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gnomon.sampling.spacer import kernel
from gnomon.sampling.spacer.coins import below, rate
from gnomon.sampling.spacer.keys import KINDS, Item, Texts, blocks, key_of, keys_of

ADMISSIONS = {"inverse": kernel.INVERSE, "always": kernel.ALWAYS, "unbiased": kernel.UNBIASED, "hold": kernel.HOLD}
MAGIC, VERSION = b"gnomon.SpaceR", 1
LARGEST = 2**62  # of the sum of all weights: far enough from the end of int64
BATCH = 256  # single arrivals are counted so many at a time


class SpaceR:
    r"""Frequencies of a stream's items from one pass and a table of at most k entries, with no predictions.

    For an arriving item :math:`x` of weight :math:`w`: if it is in the table its count grows by :math:`w`; if the table
    is not full it is entered with count :math:`w`; otherwise, with :math:`m` the smallest count, with probability
    :math:`w / (m + w)` one entry of count :math:`m` (uniform among them) is replaced by :math:`x` with count
    :math:`m + w`, and else :math:`x` is dropped. If :math:`m` is constant while :math:`x` waits, the number of its
    occurrences until admission is geometric with mean :math:`m + 1`, the very count it then receives; from there on it
    is exact. Space Saving, which always admits, lets rare items push :math:`m` up to :math:`N / k`; the coin keeps it
    near the k-th frequency.

    Parameters
    ----------
    capacity : int
        Number of entries k, from 1 to 2^31 - 2. A table takes 64 bytes an entry or less, beside text items.
    admission : {"inverse", "always", "unbiased", "hold"}, default "inverse"
        ``"inverse"`` is SpaceR. ``"always"`` is Space Saving (Metwally et al. 2005). ``"unbiased"`` is Unbiased Space
        Saving (Ting 2018): the minimum always grows by w and changes its label with probability w / (m + w). ``"hold"``
        is adaptive sample-and-hold (counting samples, Gibbons and Matias 1998): newcomers are admitted with a
        probability p that falls by 0.9 whenever the table overflows, and estimates add 1/p - 1.
    random_state : int, numpy.random.Generator, numpy.random.SeedSequence or None, default None
        Seed of the coins and of the tie keys; the same seed and stream give the same table.

    Attributes
    ----------
    n_seen_ : int
        Sum of the weights so far, N.
    min_count_ : int
        The smallest count m of a full table; 0 while there is room (and always under ``"hold"``).

    Notes
    -----
    Items are ints (64 bits), str or bytes, one kind a table. Text is known by 64 bits of SipHash: among a billion
    distinct items two share a key with probability 0.03. ``update_many`` gives the same table, bit for bit, as
    ``update`` called on each item in turn, and :class:`~gnomon.sampling.spacer.reference.NaiveSpaceR` says the same
    more slowly.

    What is known of an estimate: :math:`f \ge` ``lower`` = count - offset, so that it is at most ``offset`` too high;
    there is no upper bound on :math:`f`, since what was missed before admission and in earlier stays is lost. The sum of the counts of SpaceR is
    at most N, so :math:`m \le N / k` and no estimate is more than the final :math:`m` too high. ``"unbiased"`` and
    ``"hold"`` are unbiased for every item; SpaceR is so at the moment of admission only, and too low overall, for
    evicted items read 0.

    References
    ----------
    Ben Basat, Einziger, Friedman and Kassner, "Randomized admission policy for efficient top-k and frequency
    estimation", INFOCOM 2017 (the admission rule).

    Examples
    --------
    >>> table = SpaceR(capacity=2, random_state=0)
    >>> table.update_many(["a", "b", "a", "a"])
    >>> table.top(1), table.estimate("b"), table.estimate("c")
    ([('a', 3)], 1, 0)
    """

    def __init__(self, capacity: int, admission: str = "inverse", random_state: Any = None):
        if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or not 1 <= capacity <= kernel.MOST:
            raise ValueError(f"capacity: got {capacity!r}; expected an integer of 1 or more, at most {kernel.MOST}")
        if admission not in ADMISSIONS:
            raise ValueError(f"admission: got {admission!r}; expected one of {', '.join(ADMISSIONS)}")
        self.capacity, self.admission, self.random_state = int(capacity), admission, random_state
        self._rule = ADMISSIONS[admission]
        self._take(None)
        self._seen = 0
        self._names: dict[int, Item] = {}  # text items by key
        room = kernel.room(self.capacity, self._rule)
        self._table = np.zeros((4, room), np.int64)
        self._heap = np.zeros(room, np.int32)
        self._index = np.zeros(kernel.index_size(room), np.int32)
        self._state = np.array([0, -1, 0], np.int64)
        self._rng = _seeded(random_state)

    # --- reading a stream ---

    def update(self, item: Item, weight: int = 1) -> None:
        """Count one arrival.

        Parameters
        ----------
        item : int, str or bytes
            Of the kind that the table holds.
        weight : int, default 1
            Its weight, 1 or more (an integer-valued float is taken as such).

        Raises
        ------
        TypeError
            When the item is of no such kind, or of another one than the table's.
        ValueError
            When the weight is not a positive integer, an int item exceeds 64 bits, or N would.
        """
        if type(item) is self._type and weight == 1:
            try:
                self._waiting.append(item)
            except OverflowError:
                key_of(item)  # raises, and names the item
            if len(self._waiting) == BATCH:
                self._flush()
        else:
            self.update_many([item], [weight])

    def update_many(self, items: Iterable[Any], weights: Any = None) -> None:
        """Count arrivals in order; the same as ``update`` on each.

        Parameters
        ----------
        items : array or iterable (n,) of int, str or bytes
            Of one kind. Nothing is counted when one of them is not acceptable.
        weights : array (n,) of int, optional
            Positive; integer-valued floats are taken as integers. Default: all 1.

        Raises
        ------
        TypeError, ValueError
            As :meth:`update`; and when weights and items differ in length.
        """
        self._flush()
        kind, keys, texts = keys_of(items)
        self._check(kind)
        given = None if weights is None else _weights(weights, keys.size)
        total = keys.size if given is None else int(given.sum(dtype=object))
        if self._seen + total > LARGEST:
            raise ValueError(f"weights: their sum {total} would bring that of all weights above 2^62")
        if kind is not None:
            self._take(kind)
            self._run(keys, given, texts)

    def _take(self, kind: str | None) -> None:
        """From now on the table holds this kind of items."""
        self._kind, self._type = kind, KINDS.get(kind or "")
        self._waiting: Any = array("q") if kind == "int" else []

    def _run(self, keys: np.ndarray, weights: np.ndarray | None, texts: Texts | None) -> None:
        given = np.empty(0, np.int64) if weights is None else weights
        kernel.update_many(keys, given, self._rule, self._table, self._heap, self._index, self._state, self._rng)
        self._seen += keys.size if weights is None else int(weights.sum())
        if texts:
            hashes, distinct = texts
            slots = np.empty(len(hashes), np.int64)
            kernel.find_many(hashes, slots, self._table, self._index, self._rng)
            self._names.update(zip(hashes[slots >= 0].tolist(), distinct[slots >= 0], strict=True))
            if len(self._names) > 2 * self.capacity:  # seldom, so that it costs next to nothing
                tracked = self._table[kernel.KEY, : self._state[kernel.SIZE]].tolist()
                self._names = {key: self._names[key] for key in tracked}

    def _flush(self) -> None:
        """Count the single arrivals that wait: a call into compiled code costs more than a hundred of them."""
        if self._waiting:
            _, keys, texts = keys_of(np.array(self._waiting) if self._kind == "int" else self._waiting)
            self._waiting = self._waiting[:0]
            self._run(keys, None, texts)

    def _check(self, kind: str | None) -> None:
        if kind and self._kind and self._kind != kind:
            raise TypeError(f"the table holds items of type {self._kind}; got {kind}")

    # --- asking ---

    def estimate(self, item: Item) -> int | float:
        """The estimated frequency of an item: its count, 0 if it is not in the table (a float for ``"hold"``)."""
        count, _ = self._entry(item)
        return count + self._missed if count else count * self._missed

    def estimate_many(self, items: Iterable[Any]) -> np.ndarray:
        """The estimates (n,) int64 (float64 for ``"hold"``) of items (n,)."""
        slots = self._slots(items)
        counts = np.where(slots >= 0, self._table[kernel.COUNT, slots], 0)
        return np.where(slots >= 0, counts + self._missed, 0 * self._missed)

    def lower(self, item: Item) -> int:
        """How often the item has occurred since it was last admitted: never more than its true frequency."""
        count, offset = self._entry(item)
        return count - offset

    def std(self, item: Item) -> float:
        r"""Standard deviation of how many occurrences were missed before the item was admitted.

        For SpaceR :math:`\sqrt{m (m + 1)}` with m the smallest count at admission (taken as constant while the item
        waited, and the item as never evicted before); 0 for items that found room. In a merged table it is an upper
        bound of the same, where both tables held the item. For ``"hold"``
        :math:`\sqrt{1 - p} / p`. NaN for items that are not in the table and for the two rules without such a law.
        """
        count, offset = self._entry(item)
        if count == 0 or (offset and self.admission != "inverse"):
            return math.nan
        if self.admission == "hold":
            p = rate(self._state[kernel.THINNED])
            return math.sqrt(1 - p) / p
        return math.sqrt(offset * (offset + 1))

    def top(self, n: int | None = None) -> list[tuple[Item, int | float]]:
        """The n items of largest estimate (all by default) with their estimates, by falling estimate, ties by item."""
        if n is not None and (isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0):
            raise ValueError(f"n: got {n!r}; expected an integer of 0 or more")
        items, counts, _ = self.items()
        entries = zip(items.tolist(), counts.tolist(), strict=True)
        found = heapq.nsmallest(len(self) if n is None else n, entries, key=lambda entry: (-entry[1], entry[0]))
        missed = self._missed
        return [(item, count + missed) for item, count in found]

    def items(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Items (int64, or objects for text), counts and offsets (int64) of all entries, in no particular order."""
        keys, counts, offsets = self._table[: kernel.COPY, : len(self)].copy()
        if self._kind in ("str", "bytes"):
            named = np.empty(keys.size, object)
            named[:] = [self._names[key] for key in keys.tolist()]
            return named, counts, offsets
        return keys, counts, offsets

    def __len__(self) -> int:
        self._flush()
        return int(self._state[kernel.SIZE])

    def __repr__(self) -> str:
        return f"SpaceR({self.capacity}, {self.admission!r}): {len(self)} entries, {self.n_seen_} seen"

    @property
    def n_seen_(self) -> int:
        return self._seen + len(self._waiting)

    @property
    def min_count_(self) -> int:
        return int(self._table[kernel.COPY, 0]) if len(self) == self._heap.size else 0

    @property
    def _missed(self) -> int | float:
        """What an estimate adds to a count."""
        return 1 / rate(self._state[kernel.THINNED]) - 1 if self.admission == "hold" else 0

    def _slots(self, items: Iterable[Any]) -> np.ndarray:
        kind, keys, _ = keys_of(items)
        self._check(kind)
        self._flush()
        slots = np.empty(keys.size, np.int64)
        kernel.find_many(keys, slots, self._table, self._index, self._rng)
        return slots

    def _entry(self, item: Item) -> tuple[int, int]:
        """Count and offset, 0 and 0 where there is no such entry."""
        kind, key = key_of(item)
        self._check(kind)
        self._flush()
        slot = kernel.find(key, self._table, self._index, self._rng)
        return (int(self._table[kernel.COUNT, slot]), int(self._table[kernel.OFFSET, slot])) if slot >= 0 else (0, 0)

    # --- joining tables ---

    def merge(self, other: SpaceR, reduce: str = "largest") -> SpaceR:
        """The table of both streams; neither input changes.

        Parameters
        ----------
        other : SpaceR
            Of the same capacity, admission rule and kind of items.
        reduce : {"largest", "unbiased"}, default "largest"
            What happens to more than k entries. ``"largest"`` keeps those of largest count, ties by the larger
            ``count - offset``, then by item, so that merging commutes. ``"unbiased"`` joins the two smallest, of counts
            a <= b, into one of count a + b that bears the label of b with probability b / (a + b), until k are left
            (Ting 2018): estimates stay unbiased if they were.

        Returns
        -------
        SpaceR
            Its ``n_seen_`` is the sum; its coins go on from where those of ``self`` stand.

        Raises
        ------
        TypeError
            When ``other`` is no SpaceR, or of another kind of items.
        ValueError
            When capacities or rules differ, or the rule is ``"hold"``, whose tables do not merge.
        """
        if not isinstance(other, SpaceR):
            raise TypeError(f"other: got {type(other).__name__}; expected a SpaceR")
        if reduce not in ("largest", "unbiased"):
            raise ValueError(f"reduce: got {reduce!r}; expected 'largest' or 'unbiased'")
        for name in ("capacity", "admission"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                raise ValueError(f"other: its {name} is {its!r}, this table's {mine!r}; only equal ones merge")
        if self.admission == "hold":
            raise ValueError("admission: tables of 'hold' do not merge; use 'inverse' or 'unbiased'")
        if self._kind and other._kind and self._kind != other._kind:
            raise TypeError(f"other: it holds items of type {other._kind}, this table {self._kind}")
        if self.n_seen_ + other.n_seen_ > LARGEST:
            raise ValueError("other: the sum of all weights would exceed 2^62")
        self._flush()
        merged = SpaceR(self.capacity, self.admission)
        merged._rng[:] = self._rng
        merged._take(self._kind or other._kind)
        merged._seen = self.n_seen_ + other.n_seen_
        entries: dict[Item, tuple[int, int]] = {}
        for table in (self, other):
            for item, count, offset in zip(*(a.tolist() for a in table.items()), strict=True):
                before = entries.get(item, (0, 0))
                entries[item] = before[0] + count, before[1] + offset
        if len(entries) > self.capacity:
            cut = _largest if reduce == "largest" else functools.partial(_joined, rng=merged._rng)
            entries = cut(entries, self.capacity)
        if entries:
            merged._fill(list(entries), *np.array(list(entries.values()), np.int64).T)
        if merged.min_count_ == self.min_count_:
            merged._state[kernel.SKIP] = self._state[kernel.SKIP]
        return merged

    def _fill(self, items: Sequence[Item], counts: np.ndarray, offsets: np.ndarray) -> None:
        keys = keys_of(items)[1]
        self._table[: kernel.COPY, : len(keys)] = keys, counts, offsets
        self._state[kernel.SIZE] = len(keys)
        if self._kind != "int":
            self._names = dict(zip(keys.tolist(), items, strict=True))
        kernel.build(self._table, self._heap, self._index, self._state, self._rng)

    # --- as bytes ---

    def to_bytes(self) -> bytes:
        """The whole table with the state of its coins: a versioned format of its own, JSON inside, no pickle."""
        items, counts, offsets = (array.tolist() for array in self.items())
        if self._kind == "bytes":
            items = [item.decode("latin-1") for item in items]
        body = {"capacity": self.capacity, "admission": self.admission, "kind": self._kind, "n_seen": self.n_seen_,
                "skip": int(self._state[kernel.SKIP]), "thinned": int(self._state[kernel.THINNED]),
                "rng": self._rng.tolist(), "items": items, "counts": counts, "offsets": offsets}  # fmt: skip
        text = json.dumps(body).encode("ascii")
        return MAGIC + bytes([VERSION]) + zlib.crc32(text).to_bytes(4, "big") + text

    @classmethod
    def from_bytes(cls, data: bytes) -> SpaceR:
        """The table that :meth:`to_bytes` wrote; fed the same stream, both go on alike.

        Raises
        ------
        ValueError
            When the bytes are no such table, damaged, or of a later version.
        """
        data = bytes(data)
        start = len(MAGIC) + 5
        if not data.startswith(MAGIC) or len(data) < start:
            raise ValueError("not a SpaceR table")
        if data[len(MAGIC)] != VERSION:
            raise ValueError(f"not a SpaceR table of version {VERSION}: it says {data[len(MAGIC)]}")
        if zlib.crc32(data[start:]).to_bytes(4, "big") != data[start - 4 : start]:
            raise ValueError("not a SpaceR table: damaged")
        try:
            return cls._from(json.loads(data[start:]))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, MemoryError) as error:
            raise ValueError(f"not a SpaceR table: {error}") from None

    @classmethod
    def _from(cls, body: dict[str, Any]) -> SpaceR:
        items, counts, offsets = body["items"], np.array(body["counts"], np.int64), np.array(body["offsets"], np.int64)
        if body["kind"] == "bytes":
            items = [item.encode("latin-1") for item in items]
        if len(items) > body["capacity"] or len(set(items)) < len(items) or not (0 <= body["n_seen"] < 2**63):
            raise ValueError("its entries do not fit it")
        if (offsets < 0).any() or (offsets >= counts).any() or body["skip"] < -1 or body["thinned"] < 0:
            raise ValueError("impossible counts")
        table = cls(body["capacity"], body["admission"])
        table._take(keys_of(items)[0])
        table._seen = body["n_seen"]
        table._rng[:] = np.array(body["rng"], np.uint64)
        if items:
            table._fill(items, counts, offsets)
        table._state[kernel.SKIP], table._state[kernel.THINNED] = body["skip"], body["thinned"]
        return table


def spacer_estimate(stream: Iterable[Any], capacity: int, queries: Iterable[Any], random_state: Any = 0) -> np.ndarray:
    """Estimated frequencies of items in a stream, read once into a table of ``capacity`` entries.

    Parameters
    ----------
    stream : array or iterable of int, str or bytes
        The stream; an iterator is read in blocks.
    capacity : int
        Number of entries.
    queries : array or iterable (n,)
        The items to ask about.
    random_state : int, Generator, SeedSequence or None, default 0
        As in :class:`SpaceR`.

    Returns
    -------
    array (n,) int64
        The estimates, 0 for items that are not in the table.
    """
    table = SpaceR(capacity, random_state=random_state)
    for block in blocks(stream):
        table.update_many(block)
    return table.estimate_many(queries)


def _seeded(random_state: Any) -> np.ndarray:
    """Start of the coins and salt, two 64-bit words."""
    if isinstance(random_state, np.random.Generator):
        return random_state.integers(2**64, size=2, dtype=np.uint64)
    if not isinstance(random_state, np.random.SeedSequence):
        try:
            random_state = np.random.SeedSequence(random_state)
        except (TypeError, ValueError):
            raise ValueError(f"random_state: got {random_state!r}; expected an int of 0 or more, a Generator, a "
                             "SeedSequence or None") from None  # fmt: skip
    state: np.ndarray = random_state.generate_state(2, np.uint64)
    return state


def _weights(weights: Any, n: int) -> np.ndarray:
    given = np.asarray(weights)
    if given.shape != (n,):
        raise ValueError(f"weights: got shape {given.shape} for {n} items; expected one weight an item")
    if given.size == 0:
        return np.empty(0, np.int64)
    if given.dtype.kind not in "iuf":
        raise ValueError(f"weights: got {given.dtype}; expected positive integers")
    wrong = ~((given > 0) & (given < 2**63) & (given == np.floor(given)))
    if wrong.any():
        raise ValueError(f"weights: got {given[wrong][0]}; weights must be positive integers; deletions are not "
                         "supported, use CountSketch")  # fmt: skip
    return np.ascontiguousarray(given, np.int64)


def _largest(entries: dict[Item, tuple[int, int]], capacity: int) -> dict[Item, tuple[int, int]]:
    order = heapq.nsmallest(capacity, entries, key=lambda i: (-entries[i][0], entries[i][1] - entries[i][0], i))
    return {item: entries[item] for item in order}


def _joined(entries: dict[Item, tuple[int, int]], capacity: int, rng: np.ndarray) -> dict[Item, tuple[int, int]]:
    heap = [(count, item, count - offset) for item, (count, offset) in entries.items()]
    heapq.heapify(heap)
    while len(heap) > capacity:
        a, b = heapq.heappop(heap), heapq.heappop(heap)
        _, label, own = b if below(a[0] + b[0], rng) < b[0] else a
        heapq.heappush(heap, (a[0] + b[0], label, own))
    return {item: (count, count - own) for count, item, own in heap}
