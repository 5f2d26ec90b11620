"""The text, its words as tokens, and the model that is trained on them."""

from __future__ import annotations

import collections
import functools
import re
from pathlib import Path
from typing import Any

import numpy as np

from gnomon import datasets

TRAINING = slice(0, 80)  # articles of the Wikipedia excerpt; the rest is held out
WORD = re.compile(r"[a-z]+|[0-9]|[^\sa-z0-9]")
UNKNOWN = 0
OUTSIDE_CHARACTERS = 1_000_000  # of the King James Bible


def words(text: str) -> list[str]:
    """Lower-case words, digits and marks."""
    return WORD.findall(text.lower())


def corpus(path: Path | None, vocabulary: int, length: int, windows: int) -> dict[str, Any]:
    """Token ids: the training stream, and held-out windows inside and outside the domain.

    ``fitting`` windows are for what is fitted after training (temperatures, tuned lenses); they come from the second half
    of the held-out text, those that are judged (``inside``) from the first.
    """
    if path is None:
        articles = datasets.wikipedia()
        train, held = words("\n".join(articles[TRAINING])), words("\n".join(articles[TRAINING.stop :]))
    else:
        every = words(datasets.text_file(path))
        border = int(0.8 * len(every))
        train, held = every[:border], every[border:]
    outside = words("\n".join(datasets.king_james())[:OUTSIDE_CHARACTERS])
    kept = [w for w, _ in collections.Counter(train).most_common(vocabulary - 1)]
    known = {w: i + 1 for i, w in enumerate(kept)}

    def ids(text: list[str]) -> np.ndarray:
        return np.array([known.get(w, UNKNOWN) for w in text], dtype=np.int32)

    half = len(held) // 2
    parts = {"inside": ids(held[:half]), "fitting": ids(held[half:]), "outside": ids(outside)}
    stream = ids(train)
    if len(stream) < 4 * length or min(map(len, parts.values())) < 4 * length:
        raise ValueError(f"corpus: {len(stream) + len(held)} words are too few for windows of {length}; give more text")
    return {"train": stream, "words": ["<unk>", *kept], **{k: _spread(v, length, windows) for k, v in parts.items()}}


def _spread(stream: np.ndarray, length: int, n: int) -> np.ndarray:
    """At most n windows, evenly spaced over the stream; they do not overlap."""
    whole = len(stream) // length
    chosen = np.linspace(0, whole - 1, min(n, whole)).astype(int)
    return stream[: whole * length].reshape(whole, length)[chosen].astype(np.int64)


def build(width: int, depth: int, vocabulary: int, length: int, tied: bool, seed: int) -> Any:
    """An untrained Llama."""
    import torch
    import transformers

    heads = max(1, width // 16)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=max(8, int(width * 8 / 3) // 8 * 8),
        num_hidden_layers=depth, num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=length,
        tie_word_embeddings=tied, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transformers.LlamaForCausalLM(config)


@functools.lru_cache(maxsize=2)
def _shape(width: int, depth: int, vocabulary: int, length: int, tied: bool) -> Any:
    return build(width, depth, vocabulary, length, tied, 0)


def restored(run: dict[str, Any], width: int, depth: int, vocabulary: int, length: int) -> Any:
    """The trained model of a run, to read only: valid until the next one is asked for."""
    import torch

    from gnomon.architectures.gem.head import CONFIG

    model = _shape(width, depth, vocabulary, length, run["tied"])
    model.load_state_dict({k: torch.from_numpy(v) for k, v in run["state"].items()}, strict=False)
    model.config.__dict__[CONFIG] = run["beta"]
    return model.eval().requires_grad_(False)
