"""Tasks of recall, made from nothing: many queries on many pairs, pairs bound anew, needles in filler.

Every batch is ``(tokens [n, T], answers [n, Q])``: the answers to the last Q tokens of each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Batch", "NEEDLES", "needles", "rebinding", "recall"]

KEYS, VALUES = 24, 32  # of the recall tasks; values follow keys in the vocabulary
NEEDLE_KEYS = NEEDLE_VALUES = FILLERS = 64

#: Keys in a row of filler: the needle alone, or with distractors of other keys.
NEEDLES = {"s-niah": 1, "mk-niah": 5}


class Batch(NamedTuple):
    """Rows of a task.

    Attributes
    ----------
    tokens : int array, shape [n, T]
    answers : int array, shape [n, Q]
        What follows each of the last Q tokens.
    updates : int array, shape [n, Q]
        How often the queried key was bound.
    place : int array, shape [n, Q]
        Where, from 0 at the start of the bindings, the last one was.
    """

    tokens: NDArray
    answers: NDArray
    updates: NDArray
    place: NDArray


def recall(rng: np.random.Generator, rows: int, pairs: int, keys: int = KEYS, values: int = VALUES) -> Batch:
    """Multi-query associative recall: ``pairs`` distinct keys with their values, then every key again in some order.

    Raises
    ------
    ValueError
        If there are fewer keys than pairs.
    """
    if not 1 <= pairs <= keys:
        raise ValueError(f"pairs must be from 1 to the number of keys, {keys}, got {pairs}")
    shown = np.argsort(rng.random((rows, keys)), 1)[:, :pairs]
    bound = keys + rng.integers(values, size=(rows, pairs))
    order = np.argsort(rng.random((rows, pairs)), 1)
    asked, answers = (np.take_along_axis(t, order, 1) for t in (shown, bound))
    told = np.stack([shown, bound], 2).reshape(rows, -1)
    return Batch(np.concatenate([told, asked], 1), answers, np.ones_like(order), order)


def rebinding(rng: np.random.Generator, rows: int, pairs: int, keys: int = KEYS, values: int = VALUES) -> Batch:
    """The same with half as many keys as bindings: a key may be bound again, and its latest value counts."""
    distinct = max(1, pairs // 2)
    if distinct > keys:
        raise ValueError(f"pairs must be at most twice the number of keys, {2 * keys}, got {pairs}")
    chosen = np.argsort(rng.random((rows, keys)), 1)[:, :distinct]
    # Each key once, the other bindings to keys drawn at random, all in random order.
    which = np.concatenate(
        [np.tile(np.arange(distinct), (rows, 1)), rng.integers(distinct, size=(rows, pairs - distinct))], 1
    )
    which = np.take_along_axis(which, np.argsort(rng.random(which.shape), 1), 1)
    bound = keys + rng.integers(values, size=which.shape)
    same = which[:, None, :] == np.arange(distinct)[None, :, None]  # [rows, key, binding]
    last = pairs - 1 - same[:, :, ::-1].argmax(-1)
    order = np.argsort(rng.random((rows, distinct)), 1)
    place = np.take_along_axis(last, order, 1)
    told = np.stack([np.take_along_axis(chosen, which, 1), bound], 2).reshape(rows, -1)
    return Batch(
        np.concatenate([told, np.take_along_axis(chosen, order, 1)], 1),
        np.take_along_axis(bound, place, 1), np.take_along_axis(same.sum(-1), order, 1), place,
    )  # fmt: skip


def needles(rng: np.random.Generator, rows: int, length: int, pairs: int, asked: int = 1) -> Batch:
    """``pairs`` needles (a key and its value) at random depths of filler, then ``asked`` of the keys.

    Raises
    ------
    ValueError
        If the needles and the queries do not fit.
    """
    if not 1 <= asked <= pairs or length < 2 * pairs + asked:
        raise ValueError(
            f"{pairs} needles and {asked} queries need {2 * pairs + asked} tokens, got a length of {length}"
        )
    tokens = NEEDLE_KEYS + NEEDLE_VALUES + rng.integers(FILLERS, size=(rows, length))
    shown = np.argsort(rng.random((rows, NEEDLE_KEYS)), 1)[:, :pairs]
    bound = NEEDLE_KEYS + rng.integers(NEEDLE_VALUES, size=(rows, pairs))
    # Places without overlap: places among what is left when each needle counts as one token, then widened.
    free = length - asked - pairs
    place = np.sort(np.argsort(rng.random((rows, free)), 1)[:, :pairs], 1) + np.arange(pairs)
    np.put_along_axis(tokens, place, shown, 1)
    np.put_along_axis(tokens, place + 1, bound, 1)
    order = np.argsort(rng.random((rows, pairs)), 1)[:, :asked]
    tokens[:, -asked:] = np.take_along_axis(shown, order, 1)
    return Batch(tokens, np.take_along_axis(bound, order, 1), np.ones_like(order), np.take_along_axis(place, order, 1))


#: A task by name: (rng, rows, size) -> Batch.
RECALL: dict[str, Callable[[np.random.Generator, int, int], Batch]] = {"mqar": recall, "rebinding": rebinding}
