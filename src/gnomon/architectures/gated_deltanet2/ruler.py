"""Needles in text, after the kinds of RULER, for any causal language model with a tokenizer.

A sentence that states the number (or the identifier) of a word is hidden in a haystack; the text ends by asking for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["KINDS", "Needle", "evaluate", "hide"]

#: Haystack, kind of value, needles of other words.
KINDS = {
    "s-niah-1": ("noise", "number", 0),
    "s-niah-2": ("essay", "number", 0),
    "s-niah-3": ("essay", "uuid", 0),
    "mk-niah-1": ("essay", "number", 4),
}
NOISE = (
    "The rain fell on the roof.", "A dog slept by the door.", "The road went over the hill.",
    "Somebody closed the window.", "It was quiet again.",
)  # fmt: skip
WORDS = (
    "anchor", "barley", "candle", "desert", "engine", "falcon", "garden", "hammer", "island", "jacket", "kettle", "ladder",
    "marble", "needle", "orchid", "pepper", "quartz", "ribbon", "saddle", "temple", "urchin", "velvet", "walnut", "zipper",
)  # fmt: skip


@dataclass(frozen=True)
class Needle:
    """A prompt and what must follow it.

    Attributes
    ----------
    prompt, answer : str
    depth : float
        Where the needle is, from 0 (first) to 1.
    """

    prompt: str
    answer: str
    depth: float


def hide(
    kind: str, length: int, tokenizer: Any, essay: Sequence[str], rng: np.random.Generator, depth: float | None = None
) -> Needle:
    """Hide a needle in a haystack of about ``length`` tokens, never more.

    Parameters
    ----------
    kind : str
        A name in ``KINDS``.
    length : int
        Tokens of the prompt, at most.
    tokenizer : transformers tokenizer
    essay : sequence of str
        Sentences of the essay haystack, at least one.
    rng : numpy Generator
    depth : float, optional
        Where; by default anywhere.

    Raises
    ------
    ValueError
        For an unknown kind, no sentences, or a length into which not even the needles fit.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if not essay:
        raise ValueError("essay must hold at least one sentence")
    haystack, value, distractors = KINDS[kind]
    words = rng.choice(WORDS, distractors + 1, replace=False).tolist()
    values = [str(rng.integers(10**6, 10**7)) if value == "number" else str(uuid.UUID(bytes=rng.bytes(16)))
              for _ in words]  # fmt: skip
    facts = [f"The secret {value} of the {word} is {secret}." for word, secret in zip(words, values, strict=True)]
    question = f"What is the secret {value} of the {words[0]}? The secret {value} of the {words[0]} is"

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    left = length - sum(count(" " + fact) for fact in facts) - count(" " + question) - 1
    if left < 0:
        raise ValueError(f"length {length} is too short for the needles of {kind} and the question")
    start, sentences = int(rng.integers(len(essay))), []  # type: ignore[var-annotated]
    while True:
        n = len(sentences)
        sentence = NOISE[n % len(NOISE)] if haystack == "noise" else essay[(start + n) % len(essay)]
        left -= max(1, count(" " + sentence))
        if left < 0:
            break
        sentences.append(sentence)
    depth = float(rng.random()) if depth is None else depth
    places = [round(depth * len(sentences)), *rng.integers(len(sentences) + 1, size=distractors).tolist()]
    for place, fact in sorted(zip(places, facts, strict=True), reverse=True):
        sentences.insert(place, fact)
    return Needle(" ".join([*sentences, question]), f" {values[0]}", depth)


@torch.no_grad()
def evaluate(model: Any, tokenizer: Any, needles: Sequence[Needle]) -> list[dict[str, float]]:
    """Whether each answer is what greedy decoding gives, and its likelihood.

    Returns
    -------
    list of dict
        ``correct`` (all tokens of the answer), ``nll`` (nats a token of it), ``depth``, ``tokens`` (of the prompt).
    """
    rows = []
    for needle in needles:
        context = tokenizer(needle.prompt, add_special_tokens=False).input_ids
        answer = tokenizer(needle.answer, add_special_tokens=False).input_ids
        tokens = torch.tensor([context + answer], device=model.device)
        logits = model(tokens).logits[0, -len(answer) - 1 : -1].float()
        truth = tokens[0, -len(answer) :]
        nll = torch.nn.functional.cross_entropy(logits, truth)
        rows.append({"correct": float((logits.argmax(-1) == truth).all()), "nll": float(nll),
                     "depth": needle.depth, "tokens": len(context)})  # fmt: skip
    return rows
