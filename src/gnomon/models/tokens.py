"""Texts into windows of tokens, prompts into continuations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gnomon.models.structure import structure

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def padded(rows: Sequence[Sequence[int]], value: int, left: bool = False) -> torch.Tensor:
    import torch

    width = max(map(len, rows))
    fill = [[value] * (width - len(r)) for r in rows]
    return torch.tensor([[*f, *r] if left else [*r, *f] for r, f in zip(rows, fill, strict=True)])


def generate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str | Sequence[str],
             max_new_tokens: int = 32, batch_size: int = 8) -> str | list[str]:  # fmt: skip
    """The greedy continuation of a prompt (without the prompt), up to the end-of-text token.

    Parameters
    ----------
    prompt : str or sequence of str
        A sequence is generated in batches, padded on the left, and gives a list.
    """
    import torch

    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: got {max_new_tokens}; expected at least 1")
    rows = [tokenizer(p).input_ids for p in prompts]
    if any(not r for r in rows):
        raise ValueError("prompt: an empty prompt gives the model nothing to go on")
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    texts: list[str] = []
    device = structure(model).embed.weight.device
    method: Any = model.generate
    for at in range(0, len(rows), batch_size):
        batch = rows[at : at + batch_size]
        ids = padded(batch, pad or 0, left=True).to(device)
        mask = padded([[1] * len(r) for r in batch], 0, left=True).to(device)
        with torch.no_grad():
            out = method(ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False, num_beams=1,
                         temperature=None, top_p=None, top_k=None, pad_token_id=pad or 0)  # fmt: skip
        texts += tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
    return texts[0] if isinstance(prompt, str) else texts


def windows(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], length: int, *, n: int | None = None,
            rng: np.random.Generator | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """As :func:`encode`, with the index of the text that each window comes from.

    Returns
    -------
    tokens : LongTensor (N, length)
    source : LongTensor (N,)
    """
    import numpy as np
    import torch

    if isinstance(texts, str):
        texts = [texts]
    special = tokenizer("").input_ids
    start = special if special == [tokenizer.bos_token_id] else []
    body = length - len(start)
    if body < 1:
        raise ValueError(f"length: got {length}; expected at least {len(start) + 1}")
    if n is not None and n < 1:
        raise ValueError(f"n: got {n}; expected at least 1")
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng: got {type(rng).__name__}; expected a numpy Generator")
    found: list[torch.Tensor] = []
    source: list[int] = []
    total = 0
    for i, text in enumerate(texts):
        ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        total += len(ids)
        whole = len(ids) // body
        if whole:
            cut = torch.tensor(ids[: whole * body]).view(whole, body)
            found.append(torch.cat([torch.tensor(start, dtype=torch.long).expand(whole, -1), cut], 1) if start else cut)
            source += [i] * whole
        if n is not None and rng is None and len(source) >= n:
            break
    if len(source) < (n or 1):
        raise ValueError(
            f"texts: {total} tokens give {len(source)} windows of {length}, {n or 1} wanted; give more text"
        )
    tokens, origin = torch.cat(found), torch.tensor(source)
    if n is None:
        n = len(tokens)
    order = torch.arange(n) if rng is None else torch.from_numpy(rng.permutation(len(tokens))[:n])
    return tokens[order], origin[order]


def encode(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], length: int, *, n: int | None = None,
           rng: np.random.Generator | None = None) -> torch.Tensor:  # fmt: skip
    """Cut texts into windows of ``length`` tokens that do not overlap; the rest of each text is dropped.

    Where the tokenizer starts a text with a BOS token (Llama, Gemma), so does each window.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
    texts : iterable of str
    length : int
        Tokens in a window.
    n : int, optional
        Windows to return (default: all): the first ones, or drawn without replacement when ``rng`` is given.
    rng : numpy.random.Generator, optional
        Draws and orders the windows.

    Returns
    -------
    LongTensor (N, length)

    Raises
    ------
    ValueError
        When the texts hold fewer than ``n`` windows.
    """
    return windows(tokenizer, texts, length, n=n, rng=rng)[0]
