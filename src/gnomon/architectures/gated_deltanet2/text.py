"""A text of one's own as tokens: byte-pair encoding learnt on it."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["learn_tokenizer", "sentences"]


def learn_tokenizer(text: str, vocabulary: int) -> Any:
    """A byte-level BPE tokenizer (``transformers.PreTrainedTokenizerFast``) of at most so many tokens.

    Raises
    ------
    ValueError
        If the vocabulary is below 257: all bytes and the end of a text.
    """
    if vocabulary < 257:
        raise ValueError(f"vocabulary must be at least 257, all bytes and an end, got {vocabulary}")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<end>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator((text[i : i + 10_000] for i in range(0, len(text), 10_000)), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def encode(tokenizer: Any, text: str) -> np.ndarray:
    """Token ids of a text, int64."""
    return np.asarray(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids, np.int64)


def sentences(text: str) -> list[str]:
    """Sentences of a text, roughly: cut after full stops, of 20 to 300 characters."""
    found = (part.strip() + "." for part in text.replace("\n", " ").split(". "))
    return [sentence for sentence in found if 20 <= len(sentence) <= 300]
