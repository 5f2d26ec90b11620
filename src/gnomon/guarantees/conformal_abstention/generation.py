"""Greedy answers of a language model with the confidences, and the geometry, of each: one pass, no samples."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.guarantees.conformal_abstention.geometry import FEATURES, Probe, Reference, state_features, unembedding
from gnomon.models import structure
from gnomon.models.tokens import padded

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Array = NDArray[np.float64]

CONFIDENCES = ("logprob", "first_logprob", "entropy", "margin")


@dataclass
class Responses:
    """What a model answered.

    Attributes
    ----------
    texts : list of str
        Up to the first line break, stripped.
    confidence : array (n, 4)
        The columns of ``CONFIDENCES``: mean log-probability of the answer's tokens, log-probability of the first one,
        entropy of its distribution (nats), difference of its two largest probabilities.
    geometry, average : array (n, 11) or None
        At the first answer token, and averaged over the answer's tokens.
    states : array (n, d) or None
        After the final norm, at the position that emits the first token.
    """

    texts: list[str]
    confidence: Array
    geometry: Array | None = None
    average: Array | None = None
    states: NDArray[np.float32] | None = None


class Decoder:
    """One step after another for a batch of left-padded prompts."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, use_cache: bool = True):
        self.model, self.tokenizer, self.use_cache = model, tokenizer, use_cache
        self.device = structure(model).embed.weight.device
        ids = [tokenizer.pad_token_id, tokenizer.eos_token_id, 0]
        self.pad = next(int(i) for i in ids if i is not None)
        ends: Any = getattr(model.generation_config, "eos_token_id", None)
        self.ends = {
            int(e) for e in (ends if isinstance(ends, list) else [ends, tokenizer.eos_token_id]) if e is not None
        }

    def start(self, rows: list[list[int]]) -> Tensor:
        """Read the prompts; logits (B, V) of the first token."""
        self.ids = padded(rows, self.pad, left=True).to(self.device)
        self.mask = padded([[1] * len(r) for r in rows], 0, left=True).to(self.device)
        self.cache: Any = None
        return self._forward(self.ids)

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token (B,) to each row; logits (B, V) of the next."""
        import torch

        self.ids = torch.cat([self.ids, tokens[:, None]], 1)
        self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], 1)
        return self._forward(self.ids[:, -1:] if self.use_cache else self.ids)

    def _forward(self, ids: Tensor) -> Tensor:
        call: Any = self.model
        positions = (self.mask.cumsum(1) - 1).clamp_min(0)[:, -ids.shape[1] :]
        out = call(input_ids=ids, attention_mask=self.mask, position_ids=positions, cache=self.cache,
                   use_cache=self.use_cache, logits_to_keep=1)  # fmt: skip
        self.cache = out.cache if self.use_cache else None
        logits: Tensor = out.logits[:, -1].float()
        return logits

    def repeat(self, times: int) -> None:
        """Every row as often, behind each other; their prompt is not read again."""
        self.cache.batch_repeat_interleave(times)
        self.ids, self.mask = (x.repeat_interleave(times, 0) for x in (self.ids, self.mask))

    def ended(self, token: int) -> bool:
        """End of text, or a line break within the token."""
        return token in self.ends or "\n" in str(self.tokenizer.decode([token]))

    def text(self, tokens: list[int]) -> str:
        """The answer's first line."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True)).split("\n")[0].strip()

    def answers(self, tokens: list[list[int]]) -> list[list[int]]:
        """Each row up to where it ends; an end token that carries text before its line break counts."""
        kept = []
        for row in tokens:
            stop = next((i for i, t in enumerate(row) if self.ended(t)), len(row))
            more = (
                stop < len(row)
                and row[stop] not in self.ends
                and str(self.tokenizer.decode([row[stop]])).split("\n")[0].strip()
            )
            kept.append(row[: stop + bool(more)])
        return kept


def tokenised(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of prompts, none of them empty."""
    if isinstance(prompts, str):
        raise TypeError("prompts: got one str; expected a sequence of them")
    rows = [
        list(tokenizer(p.rstrip(" ")).input_ids) for p in prompts
    ]  # byte-pair vocabularies have the space with the next word
    if any(not r for r in rows):
        raise ValueError("prompts: an empty one gives the model nothing to go on")
    return rows


def respond(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], *, reference: Reference | None = None,
            max_new_tokens: int = 12, batch_size: int = 16, average: bool = False, use_cache: bool = True) -> Responses:  # fmt: skip
    """Answer prompts greedily.

    Parameters
    ----------
    model, tokenizer
        A causal language model of transformers.
    prompts : sequence of str
    reference : Reference, optional
        Given, geometry is recorded as well; without, this is plain generation.
    max_new_tokens, batch_size : int
    average : bool
        Also geometry averaged over the answer's tokens.
    use_cache : bool
    """
    import torch

    if max_new_tokens < 1 or batch_size < 1:
        raise ValueError(f"max_new_tokens, batch_size: got {max_new_tokens}, {batch_size}; expected at least 1")
    rows = tokenised(tokenizer, prompts)
    decoder, probe = Decoder(model, tokenizer, use_cache), Probe(model) if reference is not None else None
    n, p = len(rows), len(FEATURES)
    texts, confidence = [""] * n, np.zeros((n, len(CONFIDENCES)))
    geometry, means, states = np.zeros((n, p)), np.zeros((n, p)), [np.empty(0, np.float32)] * n
    order = sorted(range(n), key=lambda i: len(rows[i]))  # little padding in a batch
    with torch.no_grad(), probe.attached() if probe else nullcontext():
        for at in range(0, n, batch_size):
            chosen = order[at : at + batch_size]
            batch = _greedy(decoder, [rows[i] for i in chosen], max_new_tokens, probe, reference, average)
            for b, i in enumerate(chosen):
                texts[i], confidence[i] = batch.texts[b], batch.confidence[b]
                if batch.geometry is not None and batch.average is not None and batch.states is not None:
                    geometry[i], means[i], states[i] = batch.geometry[b], batch.average[b], batch.states[b]
    if probe is None:
        return Responses(texts, confidence)
    return Responses(
        texts,
        confidence,
        geometry,
        means if average else geometry,
        np.stack(states) if n else np.empty((0, 0), np.float32),
    )


def _greedy(decoder: Decoder, rows: list[list[int]], length: int, probe: Probe | None, reference: Reference | None,
            average: bool) -> Responses:  # fmt: skip
    import torch

    size = len(rows)
    tokens: list[list[int]] = [[] for _ in range(size)]
    spent: list[list[float]] = [[] for _ in range(size)]
    found: list[Array] = []
    final = None
    chosen: Any = None
    first, done = np.zeros((size, 2)), [False] * size
    for step in range(length):
        if probe:
            probe.on = step == 0 or average
        logits = decoder.start(rows) if step == 0 else decoder.step(chosen)
        logp = torch.log_softmax(logits, -1)
        top = logp.topk(2)
        chosen = top.indices[:, 0]
        if step == 0:
            first = (
                torch.stack([-(logp.exp() * logp).sum(-1), top.values[:, 0].exp() - top.values[:, 1].exp()], 1)
                .double()
                .cpu()
                .numpy()
            )
        if probe and probe.on:
            states = probe.take()
            final = states.final.cpu().numpy() if step == 0 else final
            found.append(state_features(states, unembedding(probe.parts, chosen), unembedding(probe.parts, top.indices[:, 1]),
                                        reference).cpu().numpy())  # fmt: skip
        for b, (token, value) in enumerate(zip(chosen.tolist(), top.values[:, 0].tolist(), strict=True)):
            tokens[b].append(token)
            spent[b].append(value)
            done[b] |= decoder.ended(token)
        if all(done):
            break
    if probe:
        probe.on = False
    kept = decoder.answers(tokens)
    counts = [max(1, len(k)) for k in kept]  # of an empty answer the token that ended it
    confidence = np.array([[np.mean(s[:c]), s[0], *f] for s, c, f in zip(spent, counts, first, strict=True)])
    texts = [decoder.text(k) for k in kept]
    if not probe:
        return Responses(texts, confidence)
    mean = np.array([np.mean([f[b] for f in found[:c]], axis=0) for b, c in enumerate(counts)])
    return Responses(texts, confidence, found[0], mean, final)


def sample(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], n: int = 5, *, temperature: float = 1.0,
           max_new_tokens: int = 12, batch_size: int = 8, share_prompt: bool = False, random_state: int = 0) -> list[list[str]]:  # fmt: skip
    """``n`` random answers to each prompt.

    ``share_prompt`` reads each prompt once for its n samples; otherwise each sample is a generation of its own, as
    through an endpoint or ``generate(num_return_sequences=n)``.
    """
    import torch

    rows = tokenised(tokenizer, prompts)
    decoder = Decoder(model, tokenizer)
    generator = torch.Generator(decoder.device).manual_seed(random_state)
    found: list[list[str]] = []
    with torch.no_grad():
        for at in range(0, len(rows), batch_size):
            batch = rows[at : at + batch_size]
            if share_prompt:
                logits = decoder.start(batch).repeat_interleave(n, 0)
                decoder.repeat(n)
            else:
                logits = decoder.start([r for r in batch for _ in range(n)])
            tokens: list[list[int]] = [[] for _ in range(n * len(batch))]
            done = [False] * len(tokens)
            for step in range(max_new_tokens):
                drawn = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)[:, 0]
                for i, token in enumerate(drawn.tolist()):
                    tokens[i].append(token)
                    done[i] |= decoder.ended(token)
                if step + 1 == max_new_tokens or all(done):
                    break
                logits = decoder.step(drawn)
            texts = [decoder.text(k) for k in decoder.answers(tokens)]
            found += [texts[i : i + n] for i in range(0, len(texts), n)]
    return found
