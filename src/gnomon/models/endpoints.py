"""Endpoints: models behind an OpenAI-compatible server, which give text and log-probabilities."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gnomon.models.references import ENDPOINT, check_ref

if TYPE_CHECKING:
    pass


class Completion(NamedTuple):
    """A text and, where the server gives them, its tokens and their log-probabilities (else None)."""

    text: str
    tokens: list[str] | None
    logprobs: list[float] | None


@dataclass(frozen=True)
class Endpoint:
    """A model behind an OpenAI-compatible server (vLLM, llama.cpp, Ollama, OpenAI, ...).

    The key is read from the environment variable ``OPENAI_API_KEY`` at each call, and kept nowhere; servers that ask
    for none need none.

    Parameters
    ----------
    base_url : str
        "http://host:8000/v1".
    name : str
        The model's name on that server.
    timeout : float
        Seconds for a request; failed requests are tried again twice.
    """

    base_url: str
    name: str
    timeout: float = 60.0

    @classmethod
    def from_ref(cls, ref: str) -> Endpoint:
        """From ``"endpoint:http(s)://host/v1#model"``."""
        match = ENDPOINT.fullmatch(check_ref(ref))
        if match is None:
            raise ValueError(f"model: {ref!r} is no endpoint; expected 'endpoint:http(s)://host/v1#model'")
        return cls(match[1], match[2])

    def chat(self, messages: str | Sequence[dict[str, str]], max_new_tokens: int = 128, temperature: float = 0.0,
             logprobs: bool = False) -> Completion:  # fmt: skip
        """The assistant's answer to a conversation (a str stands for one user message).

        Raises
        ------
        RuntimeError
            When the server cannot be reached or refuses.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        answer = self._ask(
            lambda client: client.chat.completions.create(
                model=self.name, messages=list(messages), max_tokens=max_new_tokens, temperature=temperature,
                **({"logprobs": True} if logprobs else {}),
            )
        )  # fmt: skip
        content = getattr(answer.logprobs, "content", None)
        if not content:
            return Completion(answer.message.content or "", None, None)
        return Completion(answer.message.content or "", [t.token for t in content], [t.logprob for t in content])

    def complete(self, prompt: str, max_new_tokens: int = 32, temperature: float = 0.0, logprobs: bool = False,
                 echo: bool = False) -> Completion:  # fmt: skip
        """The continuation of a text; ``echo`` puts the prompt and its own log-probabilities before it."""
        answer = self._ask(
            lambda client: client.completions.create(
                model=self.name, prompt=prompt, max_tokens=max_new_tokens, temperature=temperature, echo=echo,
                **({"logprobs": 1} if logprobs else {}),
            )
        )  # fmt: skip
        found = answer.logprobs
        if found is None or not found.token_logprobs:
            return Completion(answer.text, None, None)
        values = [math.nan if p is None else p for p in found.token_logprobs]  # a text's first token has none
        return Completion(answer.text, list(found.tokens or []), values)

    def log_likelihood(self, prompt: str, continuation: str) -> float:
        """log p(continuation | prompt) in nats, from the echoed log-probabilities of the server.

        Raises
        ------
        RuntimeError
            When the server offers no log-probabilities of a prompt.
        """
        answer = self.complete(prompt + continuation, max_new_tokens=0, logprobs=True, echo=True)
        if answer.tokens is None or answer.logprobs is None or "".join(answer.tokens) != prompt + continuation:
            raise RuntimeError(f"{self.base_url} offers no log-probabilities of a prompt for {self.name!r}")
        total, seen = 0.0, 0
        for token, value in zip(answer.tokens, answer.logprobs, strict=True):
            seen += len(token)
            if seen > len(prompt):
                total += value
        return total

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        import openai

        key = os.environ.get("OPENAI_API_KEY") or "none"
        with openai.OpenAI(base_url=self.base_url, api_key=key, timeout=self.timeout, max_retries=2) as client:
            try:
                choices = call(client).choices
            except openai.OpenAIError as error:
                told = str(error).replace(key, "...") if key != "none" else str(error)
                raise RuntimeError(f"{self.base_url} ({self.name}): {type(error).__name__}: {told}") from None
        if not choices:
            raise RuntimeError(f"{self.base_url} ({self.name}): the answer holds no choice")
        return choices[0]
