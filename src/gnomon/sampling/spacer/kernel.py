"""The table in arrays, compiled: open addressing over int64 keys, and a heap that is put right only where it is read.

Layout, for room for r entries (r = k; k + 1 for ``hold``, which overflows by one before it thins):

``table`` (4, r) int64
    key, count, offset of each slot; the last row is the heap's own copy of counts, in heap order.
``heap`` (r,) int32
    Slots in heap order by (count, tie key). Only the root is kept exact. An entry's copy of its count may be stale, but
    counts only grow, so a stale copy is a lower bound and the exact root is still the minimum. A hit elsewhere than at
    the root therefore costs no more than the addition.
``index`` (2^j >= 2r,) int32
    Slot + 1 of the entry that hashes here (linear probing), 0 where there is none.
``state`` (3,) int64
    Entries in use; misses still to skip (-1: not drawn yet); times that ``hold`` has thinned.
``rng`` (2,) uint64
    The state of the coins, and the salt of hashes and tie keys.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np
from numba import njit

from gnomon.sampling.spacer.coins import KEEP, below, failures, mix, rate, tie, uniform

KEY, COUNT, OFFSET, COPY = 0, 1, 2, 3  # rows of table
SIZE, SKIP, THINNED = 0, 1, 2  # of state
SALT = 1  # of rng
INVERSE, ALWAYS, UNBIASED, HOLD = 0, 1, 2, 3  # admission rules
MOST = 2**31 - 2  # entries: slots are int32, and ``hold`` needs one more
ONE = np.uint64(1)


def room(capacity: int, rule: int) -> int:
    """Slots that a table needs."""
    return capacity + (rule == HOLD)


def index_size(slots: int) -> int:
    """A power of two that keeps the load at one half or less."""
    return 1 << max(1, math.ceil(math.log2(2 * slots)))


# --- the index -------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _home(key, salt, last):
    return mix(np.uint64(key) ^ salt) & last


@njit(cache=True, nogil=True)
def find(key, table, index, rng):
    """The slot of a key, or -1."""
    last = np.uint64(index.size - 1)
    at = _home(key, rng[SALT], last)
    slot = np.int64(index[at]) - 1
    while slot >= 0 and table[KEY, slot] != key:
        at = (at + ONE) & last
        slot = np.int64(index[at]) - 1
    return slot


@njit(cache=True, nogil=True)
def find_many(keys, slots, table, index, rng):
    """Write the slots of keys (n,) into ``slots`` (n,), -1 where there is none."""
    for i in range(keys.size):
        slots[i] = find(keys[i], table, index, rng)


@njit(cache=True, nogil=True)
def _enter(slot, table, index, rng):
    last = np.uint64(index.size - 1)
    at = _home(table[KEY, slot], rng[SALT], last)
    while index[at] != 0:
        at = (at + ONE) & last
    index[at] = slot + 1


@njit(cache=True, nogil=True)
def _leave(slot, table, index, rng):
    """Remove a slot and close the gap in its run, so that no tombstones pile up."""
    last, salt = np.uint64(index.size - 1), rng[SALT]
    gap = _home(table[KEY, slot], salt, last)
    while index[gap] != slot + 1:
        gap = (gap + ONE) & last
    at = (gap + ONE) & last
    while index[at] != 0:
        home = _home(table[KEY, index[at] - 1], salt, last)
        if ((at - home) & last) >= ((at - gap) & last):
            index[gap] = index[at]
            gap = at
        at = (at + ONE) & last
    index[gap] = 0


# --- the heap --------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _sink(at, count, slot, size, table, heap, rng):
    """Put (count, slot) at a place of the heap whose subtrees are in order, and let it sink."""
    salt = rng[SALT]
    key = tie(salt, table[KEY, slot], count)
    child = 2 * at + 1
    while child < size:
        least, its = table[COPY, child], tie(salt, table[KEY, heap[child]], table[COPY, child])
        if child + 1 < size and table[COPY, child + 1] <= least:
            right = tie(salt, table[KEY, heap[child + 1]], table[COPY, child + 1])
            if table[COPY, child + 1] < least or right < its:
                child, least, its = child + 1, table[COPY, child + 1], right
        if least > count or (least == count and its > key):
            break
        table[COPY, at], heap[at] = least, heap[child]
        at, child = child, 2 * child + 1
    table[COPY, at], heap[at] = count, slot


@njit(cache=True, nogil=True)
def _settle(table, heap, state, rng):
    """Make the root exact again; a minimum that moved calls for a new skip."""
    before = table[COPY, 0]
    while table[COPY, 0] != table[COUNT, heap[0]]:
        _sink(0, table[COUNT, heap[0]], heap[0], state[SIZE], table, heap, rng)
    if table[COPY, 0] != before:
        state[SKIP] = -1


@njit(cache=True, nogil=True)
def build(table, heap, index, state, rng):
    """Index and heap of the first ``state[SIZE]`` slots."""
    index[:] = 0
    for slot in range(state[SIZE]):
        _enter(slot, table, index, rng)
        table[COPY, slot], heap[slot] = table[COUNT, slot], slot
    for at in range(state[SIZE] // 2 - 1, -1, -1):
        _sink(at, table[COPY, at], heap[at], state[SIZE], table, heap, rng)


# --- arrivals ---------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _admit(key, weight, rule, table, heap, index, state, rng):
    """An item that is not in the table: in if there is room or its coin says so."""
    if state[SIZE] < heap.size:
        slot = state[SIZE]
        table[KEY, slot], table[COUNT, slot], table[OFFSET, slot] = key, weight, 0
        _enter(slot, table, index, rng)
        state[SIZE] += 1
        if state[SIZE] == heap.size:
            build(table, heap, index, state, rng)
        return
    least, slot = table[COPY, 0], heap[0]
    if rule == INVERSE:
        if weight == 1:
            if state[SKIP] < 0:
                state[SKIP] = failures(1.0 / (least + 1.0), rng)
            if state[SKIP] > 0:
                state[SKIP] -= 1
                return
            state[SKIP] = -1
        elif below(least + weight, rng) >= weight:
            return
    if rule == UNBIASED and below(least + weight, rng) >= weight:
        table[COUNT, slot] += weight
        table[OFFSET, slot] += weight  # the label stays: count - offset remains its own occurrences
    else:
        _leave(slot, table, index, rng)
        table[KEY, slot], table[COUNT, slot], table[OFFSET, slot] = key, least + weight, least
        _enter(slot, table, index, rng)
    _settle(table, heap, state, rng)


@njit(cache=True, nogil=True)
def _hold(key, weight, table, index, state, rng):
    """Counting samples (Gibbons and Matias 1998): each unit of an untracked item is admitted with probability p."""
    while weight > 0:
        slot = find(key, table, index, rng)
        if slot >= 0:  # admitted by an earlier unit of this arrival
            table[COUNT, slot] += weight
            return
        if state[SKIP] < 0:
            state[SKIP] = failures(rate(state[THINNED]), rng)
        if state[SKIP] >= weight:
            state[SKIP] -= weight
            return
        weight -= state[SKIP] + 1
        state[SKIP] = -1
        slot = state[SIZE]
        table[KEY, slot], table[COUNT, slot], table[OFFSET, slot] = key, 1, 0
        _enter(slot, table, index, rng)
        state[SIZE] += 1
        while state[SIZE] == table.shape[1]:
            _thin(table, index, state, rng)


@njit(cache=True, nogil=True)
def _thin(table, index, state, rng):
    """Lower p by the factor KEEP, and toss again for what each entry owes to the higher rate."""
    state[THINNED] += 1
    state[SKIP] = -1
    p = rate(state[THINNED])
    kept = 0
    for slot in range(state[SIZE]):
        count = table[COUNT, slot]
        if uniform(rng) > KEEP:
            count = max(0, count - 1 - failures(p, rng))
        if count > 0:
            table[KEY, kept], table[COUNT, kept] = table[KEY, slot], count
            kept += 1
    state[SIZE] = kept
    index[:] = 0
    for slot in range(kept):
        _enter(slot, table, index, rng)


@njit(cache=True, nogil=True)
def update_many(keys, weights, rule, table, heap, index, state, rng):
    """Arrivals in order; ``weights`` is empty where all are 1.

    Hits and skipped misses, nearly all there is, are dealt with here without a call.
    """
    salt, last = rng[SALT], np.uint64(index.size - 1)
    for i in range(keys.size):
        key = keys[i]
        weight = weights[i] if weights.size else 1
        at = _home(key, salt, last)
        slot = np.int64(index[at]) - 1
        while slot >= 0 and table[KEY, slot] != key:
            at = (at + ONE) & last
            slot = np.int64(index[at]) - 1
        if slot >= 0:
            table[COUNT, slot] += weight
            if slot == heap[0] and state[SIZE] == heap.size:  # never full under hold
                _settle(table, heap, state, rng)
        elif weight == 1 and state[SKIP] > 0:
            state[SKIP] -= 1
        elif rule == HOLD:
            _hold(key, weight, table, index, state, rng)
        else:
            _admit(key, weight, rule, table, heap, index, state, rng)
