"""Families of l-subsets of pixels as integer arrays (n, l), rows sorted: membership, pruned joins, upper shadows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

CHUNK = 50_000  # subsets in hand at a time


def codes(sets: np.ndarray, v: int) -> np.ndarray:
    """One key a row: an integer where v^l fits, else the row's bytes."""
    n, l = sets.shape
    if l == 0:
        return np.zeros(n, np.int64)
    if v**l < 2**62:
        return sets.astype(np.int64) @ (np.int64(v) ** np.arange(l - 1, -1, -1, dtype=np.int64))
    return np.ascontiguousarray(sets.astype(">i4")).view(f"S{4 * l}").ravel()


class Family:
    """A set of l-subsets that grows.

    Parameters
    ----------
    v, l : int
        Points, and the size of the subsets.
    """

    def __init__(self, v: int, l: int, sets: np.ndarray | None = None):
        self.v, self.l = v, l
        self.sets = np.empty((0, l), np.int64)
        self.codes = codes(self.sets, v)
        if sets is not None:
            self.add(sets)

    def __len__(self) -> int:
        return len(self.sets)

    def add(self, sets: np.ndarray) -> None:
        """Take in rows; twice the same is once."""
        if not len(sets):
            return
        every = np.concatenate([self.sets, sets])
        self.codes, first = np.unique(codes(every, self.v), return_index=True)
        self.sets = every[first]

    def find(self, sets: np.ndarray) -> np.ndarray:
        """Where each row (n, l) is in ``self.sets``, -1 for those that do not belong."""
        if not len(self.sets) or not len(sets):
            return np.full(len(sets), -1)
        asked = codes(sets, self.v)
        at = np.minimum(np.searchsorted(self.codes, asked), len(self.codes) - 1)
        return np.where(self.codes[at] == asked, at, -1)

    def has(self, sets: np.ndarray) -> np.ndarray:
        """Whether each row (n, l) belongs, (n,) bool."""
        return np.asarray(self.find(sets) >= 0)


def _faces(sets: np.ndarray) -> Iterator[np.ndarray]:
    """Each row without one of its elements, by position."""
    for i in range(sets.shape[1]):
        yield np.delete(sets, i, axis=1)


def joined(family: Family) -> Iterator[np.ndarray]:
    """The (l + 1)-subsets all of whose l-subsets belong (apriori join), in chunks (n, l + 1)."""
    v, l = family.v, family.l
    if l == 0:
        if len(family):
            yield np.arange(v)[:, None]
        return
    sets = family.sets[np.lexsort(family.sets.T[::-1])]
    starts = np.flatnonzero(np.r_[True, (sets[1:, :-1] != sets[:-1, :-1]).any(1)])
    for start, stop in zip(starts, [*starts[1:], len(sets)], strict=True):
        tails = sets[start:stop, -1]
        for i in range(len(tails) - 1):
            rest = tails[i + 1 :]
            made = np.empty((len(rest), l + 1), np.int64)
            made[:, :-1], made[:, -1] = sets[start + i], rest
            good = np.ones(len(made), bool)
            for face in itertools.islice(_faces(made), l - 1):  # the other two gave the row
                good[good] = family.has(face[good])
            if good.any():
                yield made[good]


def shadow(family: Family) -> Iterator[np.ndarray]:
    """The (l + 1)-subsets with at least one l-subset that belongs, each once, in chunks (n, l + 1).

    A subset is made from the first of its faces that belongs, so that none has to be remembered.
    """
    v, l = family.v, family.l
    per = max(1, CHUNK // max(v, 1))
    for start in range(0, len(family), per):
        some = family.sets[start : start + per]
        made = np.empty((len(some), v, l + 1), np.int64)
        made[:, :, :-1], made[:, :, -1] = some[:, None, :], np.arange(v)
        fresh = (some[:, None, :] != np.arange(v)[None, :, None]).all(2)
        own = np.repeat(codes(some, v), v)[fresh.ravel()]
        grown = np.sort(made[fresh], axis=1)
        first = np.full(len(grown), True)
        for face in _faces(grown):  # a smaller face that belongs makes it instead
            first &= ~((codes(face, v) < own) & family.has(face))
        if first.any():
            yield grown[first]


def batches(chunks: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """The same rows in batches of ``size`` or less (the last)."""
    held: list[np.ndarray] = []
    count = 0
    for chunk in chunks:
        held.append(chunk)
        count += len(chunk)
        if count >= size:
            every = np.concatenate(held)
            whole = count - count % size
            for start in range(0, whole, size):
                yield every[start : start + size]
            held, count = [every[whole:]], count - whole
    if count:
        yield np.concatenate(held)


def masks_of(sets: np.ndarray, v: int) -> np.ndarray:
    """Rows of pixels as masks (n, v)."""
    masks = np.zeros((len(sets), v), bool)
    masks[np.arange(len(sets))[:, None], sets] = True
    return masks


def within(blocks: np.ndarray, l: int, family: Family | None = None) -> Iterator[np.ndarray]:
    """All l-subsets of some blocks, each once (from the first block that holds it), in chunks.

    Parameters
    ----------
    blocks : bool array (n, v)
        Masks.
    l : int
        Size of the subsets.
    family : Family, optional
        Subsets to leave out.
    """
    for i, block in enumerate(blocks):
        combos = itertools.combinations(np.flatnonzero(block).tolist(), l)
        while len(made := np.array(list(itertools.islice(combos, CHUNK)), np.int64)):
            if i:
                earlier = np.ones((len(made), i), bool)
                for column in made.T:
                    earlier &= blocks[:i, column].T
                made = made[~earlier.any(1)]
            if family is not None:
                made = made[~family.has(made)]
            if len(made):
                yield made


def inside_any(masks: np.ndarray, safe: np.ndarray) -> np.ndarray:
    """Whether each mask (n, v) lies inside one of the safe ones (m, v), (n,) bool."""
    if not len(safe) or not len(masks):
        return np.zeros(len(masks), bool)
    outside = masks.astype(np.float32) @ (~safe).T.astype(np.float32)
    return np.asarray((outside == 0).any(1))
