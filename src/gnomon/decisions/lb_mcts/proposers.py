"""Who proposes: Bayesian optimisation by a surrogate of the algorithm, or the language model given the node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gnomon.decisions.lb_mcts.llm import LLM, Answer, Request
from gnomon.decisions.lb_mcts.replies import ReplyError, parse
from gnomon.decisions.lb_mcts.space import AlgorithmSpace, Config
from gnomon.decisions.lb_mcts.surrogate import RandomForest, Surrogate, log_ei
from gnomon.decisions.lb_mcts.tree import Trial

RANDOM, NEIGHBOURS, BEST = 500, 10, 10  # candidates: random ones, neighbours of each of the best, how many of the best
LEAST = 3  # trials of an algorithm below which its surrogate is not used
DRAWS = 100  # random configurations that are looked at for one that was not tried


def seeded(seed: int, *what: int) -> np.random.Generator:
    """A generator that depends on nothing but what it is for."""
    return np.random.default_rng([seed, *what])


def fitted(space: AlgorithmSpace, trials: Sequence[Trial], kind: str, seed: int) -> Surrogate | None:
    """The surrogate of the trials that did not fail; None for fewer than three."""
    good = [t for t in trials if t.ok]
    if len(good) < LEAST:
        return None
    X, y = space.encode(np.array([t.vector for t in good])), np.array([t.loss for t in good])
    rng = seeded(seed, len(good), *space.name.encode())
    surrogate: Surrogate
    if kind == "gp":
        from gnomon.decisions.lb_mcts.gp import GaussianProcess

        surrogate = GaussianProcess(space.categorical_features, int(rng.integers(2**31)))
    else:
        surrogate = RandomForest(rng)
    surrogate.fit(X, y)
    return surrogate


def candidates(
    space: AlgorithmSpace, trials: Sequence[Trial], node: np.ndarray | None, rng: np.random.Generator
) -> np.ndarray:
    """500 random configurations and 100 neighbours of the ten best; half of those of the node, where one is given."""
    good = sorted((t for t in trials if t.ok), key=lambda t: (t.loss, t.key))[:BEST]
    each = NEIGHBOURS if node is None else NEIGHBOURS // 2
    found = [space.sample(RANDOM, rng), *(space.neighbours(t.vector, each, rng) for t in good)]
    if node is not None:
        found.append(space.neighbours(node, NEIGHBOURS * BEST // 2, rng))
    return np.vstack(found)


def expected(surrogate: Surrogate, space: AlgorithmSpace, vectors: np.ndarray, trials: Sequence[Trial]) -> np.ndarray:
    """log expected improvement over the algorithm's best trial."""
    mean, variance = surrogate.predict(space.encode(vectors))
    return log_ei(mean, np.sqrt(variance), min(t.loss for t in trials if t.ok))


def by_surrogate(space: AlgorithmSpace, surrogate: Surrogate | None, trials: Sequence[Trial], node: np.ndarray | None,
                 seen: set[str], rng: np.random.Generator) -> tuple[Config | None, str]:  # fmt: skip
    """The untried candidate of the largest log-EI, or without a surrogate a random one; and where it came from."""
    if surrogate is None:
        return fresh(space, seen, rng), "random"
    vectors = candidates(space, trials, node, rng)
    for i in np.argsort(-expected(surrogate, space, vectors, trials), kind="stable"):
        config = space.config(vectors[i])
        if space.key(config) not in seen:
            return config, "ei"
    return fresh(space, seen, rng), "random"


def fresh(space: AlgorithmSpace, seen: set[str], rng: np.random.Generator) -> Config | None:
    """A random configuration that was not tried; None where there seems to be none left."""
    for vector in space.sample(DRAWS, rng):
        config = space.config(vector)
        if space.key(config) not in seen:
            return config
    return None


def by_language(
    llm: LLM, request: Request, seen: set[str], n: int, retries: int, cost: Trial | Any
) -> list[Config] | None:
    """Untried configurations of a language model; empty when all were tried already; None when a reply was no configuration.

    What it cost is added to ``cost``.
    """
    for attempt in range(1 + retries):
        request.attempt = attempt
        answer: Answer = llm.propose(request, n)
        cost.prompt_tokens += answer.prompt_tokens
        cost.longest_prompt = max(cost.longest_prompt, answer.prompt_tokens // answer.prompts)
        cost.completion_tokens += answer.completion_tokens
        cost.llm_seconds += answer.seconds
        found: dict[str, Config] = {}
        legal = 0
        for text in answer.texts[:n]:
            try:
                config = parse(text, request.space, request.node)
            except ReplyError:
                cost.failures += 1
                continue
            legal += 1
            if (key := request.space.key(config)) not in seen:
                found.setdefault(key, config)
        if found:
            return list(found.values())
        if not legal:
            return None
    return []
