"""Where gaps come from: token log-probabilities of a local model or an endpoint, or answers that are counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gnomon.models.endpoints import Endpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FLOOR = -20.0  # log-probability of a label that an endpoint does not list among its likeliest
BATCH = 16


class Source(Protocol):
    """Anything that says how likely each label is as the next token after a prompt, under an instruction."""

    name: str

    def label_logprobs(self, system: str, prompts: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        """log p(label | system, prompt), (prompts, labels)."""
        ...

    def sample(self, system: str, prompt: str, n: int, max_new_tokens: int, seed: int) -> list[str]:
        """n answers at temperature 1."""
        ...

    def score(self, system: str, prompt: str, answers: Sequence[str]) -> np.ndarray:
        """Mean log-likelihood of an answer's tokens, (answers,)."""
        ...


class LocalSource:
    """A transformers model: all prompts under one instruction share its computed prefix.

    Parameters
    ----------
    model, tokenizer
        A causal language model with its tokenizer.
    name : str
        What records call it.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str = "local"):
        self.model, self.tokenizer, self.name = model, tokenizer, name

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def _start(self) -> list[int]:
        """What the tokenizer puts before a text (a BOS token), else its end-of-text token: a prefix is never empty."""
        special = list(self.tokenizer("").input_ids)
        return special or [self.tokenizer.eos_token_id]

    def labels(self, labels: Sequence[str]) -> list[int]:
        """The first token of each label after a blank.

        Raises
        ------
        ValueError
            Where two labels begin with the same token.
        """
        first = [self._ids(f" {label}")[0] for label in labels]
        if len(set(first)) < len(first):
            twins = [labels[i] for i, token in enumerate(first) if first.count(token) > 1]
            raise ValueError(
                f"labels: {', '.join(map(repr, twins))} begin with the same token of {self.name}; "
                "choose others, such as A, B or 1, 2"
            )
        return first

    def label_logprobs(self, system: str, prompts: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        import torch

        from gnomon.models import head_logits, structure
        from gnomon.models.tokens import padded

        tokens = self.labels(labels)
        base = structure(self.model).base
        device = structure(self.model).embed.weight.device
        prefix = [*self._start(), *(self._ids(system + "\n\n") if system else [])]
        rows = [self._ids(p) for p in prompts]
        found = np.empty((len(rows), len(labels)))
        with torch.no_grad():
            for start in range(0, len(rows), BATCH):
                part = rows[start : start + BATCH]
                cache = base(torch.tensor([prefix], device=device), use_cache=True).cache
                cache.batch_repeat_interleave(len(part))
                ids = padded(part, 0).to(device)  # on the right: no token before the padding sees it
                hidden = base(input_ids=ids, cache=cache, use_cache=True).last_hidden_state
                last = torch.tensor([len(r) - 1 for r in part], device=device)
                logits = head_logits(self.model, hidden[torch.arange(len(part), device=device), last]).float()
                found[start : start + len(part)] = logits.log_softmax(-1)[:, tokens].double().cpu().numpy()
        return found

    def sample(self, system: str, prompt: str, n: int, max_new_tokens: int, seed: int) -> list[str]:
        import torch

        text = f"{system}\n\n{prompt}" if system else prompt
        ids = torch.tensor([[*self._start(), *self._ids(text)]])
        generate: Any = self.model.generate
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            out = generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                           num_return_sequences=n, max_new_tokens=max_new_tokens,
                           pad_token_id=self.tokenizer.eos_token_id)  # fmt: skip
        return [t.strip() for t in self.tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)]

    def score(self, system: str, prompt: str, answers: Sequence[str]) -> np.ndarray:
        from gnomon.models import log_likelihood

        text = f"{system}\n\n{prompt}" if system else prompt
        scores = log_likelihood(
            self.model, self.tokenizer, [text] * len(answers), [f" {a}" for a in answers], per_token=True
        )
        return np.asarray(scores, float)


class FirstTokens(Endpoint):
    """An endpoint asked for the likeliest first tokens of its answer."""

    def top_logprobs(self, messages: Sequence[dict[str, str]]) -> list[tuple[str, float]]:
        """The 20 likeliest with their log-probabilities; none where the server gives none."""
        answer = self._ask(
            lambda client: client.chat.completions.create(model=self.name, messages=list(messages), max_tokens=1, temperature=1.0,
                                                          logprobs=True, top_logprobs=20)
        )  # fmt: skip
        content = getattr(answer.logprobs, "content", None)
        return [(t.token, t.logprob) for t in content[0].top_logprobs] if content else []


class EndpointSource:
    """An OpenAI-compatible endpoint; labels that are not among its 20 likeliest tokens get a floor.

    Parameters
    ----------
    endpoint : Endpoint
    n_samples : int
        0: read log-probabilities. Otherwise count the labels among so many answers at temperature 1, for servers that
        give none.
    """

    def __init__(self, endpoint: Endpoint, n_samples: int = 0):
        self.endpoint = FirstTokens(endpoint.base_url, endpoint.name, endpoint.timeout)
        self.n_samples, self.name = n_samples, endpoint.name

    def label_logprobs(self, system: str, prompts: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        if self.n_samples:
            return np.stack([self._counted(system, p, labels) for p in prompts])
        return np.stack([self._told(system, p, labels) for p in prompts])

    def _messages(self, system: str, prompt: str) -> list[dict[str, str]]:
        told = [{"role": "system", "content": system}] if system else []
        return [*told, {"role": "user", "content": prompt}]

    def _choice(self, system: str, prompt: str) -> list[dict[str, str]]:
        return self._messages(system, f"{prompt} ... (Answer with the letter only.)")

    def _told(self, system: str, prompt: str, labels: Sequence[str]) -> np.ndarray:
        answer = self.endpoint.top_logprobs(self._choice(system, prompt))
        if not answer:
            raise ValueError(
                f"model: {self.endpoint.base_url} gives no log-probabilities of tokens; give n_samples (answers to count), "
                "such as 20"
            )
        found = dict.fromkeys(labels, -math.inf)
        for token, value in answer:
            if (word := token.strip().rstrip(".):")) in found:
                found[word] = float(np.logaddexp(found[word], value))
        return np.array([max(found[label], FLOOR) for label in labels])

    def _counted(self, system: str, prompt: str, labels: Sequence[str]) -> np.ndarray:
        """log((count + 1/2) / (n + 1/2)): gaps are log((a + 1/2) / (b + 1/2))."""
        messages = self._choice(system, prompt)
        said = [self.endpoint.chat(messages, max_new_tokens=4, temperature=1.0).text for _ in range(self.n_samples)]
        first = [s.strip()[:1].upper() for s in said]
        counts = np.array([first.count(label) for label in labels], float)
        return np.log((counts + 0.5) / (self.n_samples + 0.5))

    def sample(self, system: str, prompt: str, n: int, max_new_tokens: int, seed: int) -> list[str]:
        messages = self._messages(system, prompt)
        return [
            self.endpoint.chat(messages, max_new_tokens=max_new_tokens, temperature=1.0).text.strip() for _ in range(n)
        ]

    def score(self, system: str, prompt: str, answers: Sequence[str]) -> np.ndarray:
        text = f"{system}\n\n{prompt}" if system else prompt
        words = [max(1, len(a.split())) for a in answers]
        return np.array([self.endpoint.log_likelihood(text, f" {a}") / w for a, w in zip(answers, words, strict=True)])


def source(model: Any, tokenizer: Any = None, n_samples: int = 0) -> Source:
    """What gives gaps, from a reference, an :class:`gnomon.models.LM`, a model with its tokenizer, or a source itself.

    Raises
    ------
    TypeError
        For anything else, and for a model without its tokenizer.
    """
    from gnomon import models

    if isinstance(model, str):
        ref = models.check_ref(model if model != "embedded" else models.EMBEDDED)
        if ref.startswith("endpoint:"):
            return EndpointSource(models.Endpoint.from_ref(ref), n_samples)
        lm = models.load(ref)
        return LocalSource(lm.model, lm.tokenizer, ref)
    if isinstance(model, models.Endpoint):
        return EndpointSource(model, n_samples)
    if isinstance(model, models.LM):
        return LocalSource(model.model, model.tokenizer, model.ref)
    if hasattr(model, "label_logprobs"):
        return model  # type: ignore[no-any-return]
    if hasattr(model, "config") and tokenizer is not None:
        return LocalSource(model, tokenizer, type(model).__name__)
    raise TypeError(
        f"model: got {type(model).__name__}; expected a reference ('embedded', a folder, 'endpoint:...'), an LM, a model with "
        "tokenizer=, or an object with label_logprobs"
    )
