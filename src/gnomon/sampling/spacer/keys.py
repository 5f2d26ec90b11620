"""Items as 64-bit keys: integers are their own, text is hashed by a hash that every process shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd

Item = int | str | bytes
KINDS = {"int": int, "str": str, "bytes": bytes}


def key_of(item: Any) -> tuple[str, int]:
    """Kind and key of one item.

    Raises
    ------
    TypeError
        When it is no int, str or bytes.
    ValueError
        When an int does not fit in 64 bits.
    """
    if type(item) is int and -(2**63) <= item < 2**63:
        return "int", item
    if isinstance(item, str | bytes):
        return "str" if isinstance(item, str) else "bytes", int(_hashes(np.array([item], object))[0])
    if isinstance(item, Integral) and not isinstance(item, bool):
        if not -(2**63) <= int(item) < 2**63:
            raise ValueError(f"item {item}: ints must fit in 64 bits; give it as a str")
        return "int", int(item)
    raise TypeError(f"items must be int, str or bytes; got {type(item).__name__} {item!r}")


def _hashes(texts: np.ndarray) -> np.ndarray:
    """64 bits of SipHash of each str or bytes, the same in every process (Python's own hash is salted)."""
    try:
        found = pd.util.hash_array(texts, categorize=False)
    except UnicodeEncodeError:  # text with lone surrogates, as read from a file that is not UTF-8
        encoded = np.array([text.encode("utf-8", "surrogatepass") for text in texts], object)
        found = pd.util.hash_array(encoded, categorize=False)
    return found.view(np.int64)


Texts = tuple[np.ndarray, np.ndarray]


def keys_of(items: Iterable[Any]) -> tuple[str | None, np.ndarray, Texts | None]:
    """Kind (None where there are no items), keys (n,) int64, and for text the keys and items that differ.

    Raises
    ------
    TypeError
        When an item is no int, str or bytes, or two kinds are mixed; the message names them.
    ValueError
        When the array is not one-dimensional, or an int does not fit in 64 bits.
    """
    array = _array(items)
    if array.size == 0:
        return None, np.empty(0, np.int64), None
    if array.dtype.kind in "iu":
        if array.dtype == np.uint64 and array.max() >= 2**63:
            raise ValueError(f"item {array.max()}: ints must fit in 64 signed bits; give it as a str")
        return "int", np.ascontiguousarray(array, np.int64), None
    if array.dtype.kind not in "USO":
        raise TypeError(f"items must be int, str or bytes; got an array of {array.dtype}")
    array = array.astype(object)
    kind = _one_kind(array)
    if kind == "int":
        try:
            return kind, array.astype(np.int64), None
        except OverflowError:
            return kind, np.array([key_of(item)[1] for item in array]), None  # raises, and names the item
    hashes = _hashes(array)
    first = ~pd.Series(hashes).duplicated().to_numpy()  # pandas tells texts apart only as far as their first NUL
    return kind, hashes, (hashes[first], array[first])


def _array(items: Any) -> np.ndarray:
    _some(items)
    if not hasattr(items, "__array__"):
        given = list(items)
        items = np.empty(len(given), object)  # np.array([1, "a"]) would turn the number into text without a word
        items[:] = given
    array = np.asarray(items)
    if array.ndim != 1:
        raise ValueError(f"items: got an array of shape {array.shape}; expected one dimension")
    return array


def _some(items: Any) -> None:
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise TypeError(f"items: got one {type(items).__name__}; expected a sequence of items")


def _one_kind(array: np.ndarray) -> str:
    kinds = {"string": "str", "bytes": "bytes", "integer": "int"}
    kind = kinds.get(pd.api.types.infer_dtype(array, skipna=False))
    if kind is None:
        found = list(dict.fromkeys(key_of(item)[0] for item in array))
        if len(found) > 1:
            raise TypeError(f"items mix {found[0]} and {found[1]}; a table holds one kind")
        kind = found[0]
    return kind


def blocks(items: Any, size: int = 1 << 16) -> Iterator[Any]:
    """A stream in blocks: slices of an array or list, or what an iterator yields, ``size`` at a time."""
    _some(items)
    if hasattr(items, "__array__") or isinstance(items, list | tuple | range):
        by_place = getattr(items, "iloc", items)  # pandas slices by label where labels are floats
        for start in range(0, len(items), size):
            yield by_place[start : start + size]
        return
    block = []
    for item in items:
        block.append(item)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block
