"""From what a language model wrote to a legal configuration, or a counted failure."""

from __future__ import annotations

import ast
import difflib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gnomon.decisions.lb_mcts.space import AlgorithmSpace, Config, choices, tidy

MOST = 20_000  # characters of a reply that are looked at


class ReplyError(ValueError):
    """A reply that gives no configuration; the message says why."""


def parse(text: str, space: AlgorithmSpace, parent: Mapping[str, Any] | None = None) -> Config:
    """The configuration of the first balanced JSON object in a reply.

    Unknown keys are dropped, missing ones take the parent's value (else the default), numbers outside are clipped, numbers in
    strings read, categories matched without regard to case and, failing that, to the nearest spelling. Single quotes and an object
    nested in another are understood.

    Raises
    ------
    ReplyError
        When there is no object, none of its keys is a parameter, or a value is none of the above.
    """
    for found in objects(text):
        known = _known(found, space)
        if not known:
            nested = (_known(v, space) for v in found.values() if isinstance(v, dict))
            known = next(filter(None, nested), {})
        if known:
            return _legal(known, space, parent or {})
        raise ReplyError(f"none of the keys {', '.join(map(str, found)) or '(none)'} is a parameter")
    raise ReplyError("no JSON object in the reply")


def objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a text in order, outermost first."""
    text = text[:MOST]
    at = text.find("{")
    while at >= 0:
        end = _closing(text, at)
        found = None if end < 0 else _read(text[at : end + 1])
        if isinstance(found, dict):
            yield found
            at = text.find("{", end)
        else:
            at = text.find("{", at + 1)


def _closing(text: str, at: int) -> int:
    """Where the object that opens at ``at`` closes; braces in strings do not count."""
    depth, quote, i = 0, "", at
    while i < len(text):
        char = text[i]
        if quote:
            if char == "\\":
                i += 1
            elif char == quote:
                quote = ""
        elif char == '"' or (char == "'" and text[:i].rstrip()[-1:] in "{,:["):  # not the apostrophe of a word
            quote = char
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    return -1


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:  # Python's own notation: single quotes, True, None, a comma at the end
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def _known(found: Mapping[Any, Any], space: AlgorithmSpace) -> dict[str, Any]:
    by_case = {n.lower(): n for n in space.names}
    return {by_case[str(k).strip().lower()]: v for k, v in found.items() if str(k).strip().lower() in by_case}


def _legal(known: Mapping[str, Any], space: AlgorithmSpace, parent: Mapping[str, Any]) -> Config:
    vector = np.full(len(space), np.nan)
    for j, hp in enumerate(space.hyperparameters):
        value = parent.get(hp.name, hp.default_value)
        given = known.get(hp.name)
        if given is not None or (hp.name in known and None in choices(hp)):
            value = _value(hp, given)
        vector[j] = hp.to_vector(value)
    legal = space.legalise(vector, np.random.default_rng(0))  # nothing is left to draw
    if not len(legal):
        raise ReplyError("the space forbids this combination")
    return space.config(legal[0])


def _value(hp: Any, given: Any) -> Any:
    if values := choices(hp):
        exact = [v for v in values if type(v) is type(given) and v == given]
        names = [str(v).lower() for v in values]
        name = str(given).strip().lower()
        if exact or name in names:
            return exact[0] if exact else values[names.index(name)]
        close = difflib.get_close_matches(name, names, n=1) if isinstance(given, str) else []
        if not close:
            raise ReplyError(f"{hp.name}: {given!r} is none of {', '.join(map(str, values))}")
        return values[names.index(close[0])]
    if isinstance(given, bool | list | dict | tuple | set):
        raise ReplyError(f"{hp.name}: {given!r} is no number")
    try:
        number = float(given)
    except (ValueError, TypeError, OverflowError):
        raise ReplyError(f"{hp.name}: {given!r} is no number") from None
    if math.isnan(number):
        raise ReplyError(f"{hp.name}: NaN")
    return tidy(hp, min(max(number, float(hp.lower)), float(hp.upper)))
