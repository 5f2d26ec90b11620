"""On what: the model, the text, and the windows that are drawn from it."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator

from gnomon import datasets, models

CALIBRATION, HELD_OUT = slice(0, 60), slice(60, 93)  # articles of the Wikipedia excerpt


def _model_ref(value: str) -> str:
    return value if value == "random" else models.check_ref(value)


def _text_of(ref: str) -> str:
    return f"random-{Random.VERSION}" if ref == "random" else models.identity(ref)


class _ByContent:
    """Records name the model by its content."""

    identity = staticmethod(_text_of)


Model = Annotated[str, AfterValidator(_model_ref), _ByContent()]


class Random:
    """The smoke scale's model: an untrained Llama of 6 blocks that reads bytes. It proves that everything runs."""

    VERSION = 1

    @staticmethod
    def load() -> Any:
        import torch
        import transformers

        config = transformers.LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=6,
                                          num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                                          initializer_range=0.08, pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


@functools.lru_cache(maxsize=2)
def dense_model(ref: str) -> Any:
    """The model of a reference, shared by the process."""
    return Random.load() if ref == "random" else models.load(ref).model


@functools.lru_cache(maxsize=2)
def articles(ref: str) -> list[np.ndarray]:
    """The token ids of each article of the Wikipedia excerpt."""
    texts = datasets.wikipedia()
    if ref == "random":
        return [np.frombuffer(t.encode()[:4000], np.uint8).astype(np.int64) for t in texts]
    tokenizer = models.load(ref).tokenizer
    return [np.array(tokenizer(t, add_special_tokens=False, verbose=False).input_ids) for t in texts]


def windows(texts: list[np.ndarray], length: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """n windows that do not overlap, drawn from all articles."""
    cut = [a[: len(a) // length * length].reshape(-1, length) for a in texts]
    every = np.concatenate([c for c in cut if len(c)])
    if len(every) < n:
        raise ValueError(f"calibration: the text holds {len(every)} windows of {length} tokens; {n} are wanted")
    return every[rng.permutation(len(every))[:n]]


def one_each(texts: list[np.ndarray], length: int, rng: np.random.Generator) -> np.ndarray:
    """One window from a random place of each article."""
    starts = [rng.integers(0, max(1, len(a) - length + 1)) for a in texts]
    return np.stack([a[s : s + length] for a, s in zip(texts, starts, strict=True)])
