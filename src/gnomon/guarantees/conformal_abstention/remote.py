"""Answers of a model behind an endpoint: its log-probabilities, or how well its samples agree."""

from __future__ import annotations

import numpy as np

from gnomon.guarantees.conformal_abstention.generation import Responses
from gnomon.guarantees.conformal_abstention.judging import normalised
from gnomon.models import Endpoint

SAMPLES = 5


def respond_remotely(endpoint: Endpoint, prompts: list[str], score: str, max_new_tokens: int) -> Responses:
    """Complete prompts on a server.

    Parameters
    ----------
    endpoint : Endpoint
    prompts : list of str
    score : str
        ``"self-consistency"`` asks for five samples more and puts their agreement in the place of the log-probability.
    max_new_tokens : int

    Raises
    ------
    TypeError
        For a score that needs hidden states, or more of the distribution than servers tell.
    RuntimeError
        When the server gives no log-probabilities.
    """
    if score not in ("logprob", "first_logprob", "isotonic", "self-consistency"):
        raise TypeError(
            f"score={score!r} needs a model's hidden states or its whole distribution, and an endpoint gives text; use score='logprob'"
        )
    texts, confidence = [], np.zeros((len(prompts), 4))
    for i, prompt in enumerate(prompts):
        found = endpoint.complete(prompt, max_new_tokens, logprobs=score != "self-consistency")
        text = found.text.split("\n")[0].strip()
        texts.append(text)
        if score == "self-consistency":
            others = [
                endpoint.complete(prompt, max_new_tokens, temperature=1.0).text.split("\n")[0] for _ in range(SAMPLES)
            ]
            confidence[i, 0] = np.mean([normalised(o) == normalised(text) for o in others])
            continue
        if not found.logprobs or found.tokens is None:
            raise RuntimeError(
                f"{endpoint.base_url} offers no log-probabilities for {endpoint.name!r}; use score='self-consistency'"
            )
        stop = next((j for j, t in enumerate(found.tokens) if "\n" in t), len(found.tokens))
        confidence[i, :2] = np.mean(found.logprobs[: max(stop, 1)]), found.logprobs[0]
    return Responses(texts, confidence)
