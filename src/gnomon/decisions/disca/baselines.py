"""What the correction is compared with: other uses of the same gaps, other prompts, and two that need the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from gnomon.decisions.disca.correction import checked
from gnomon.decisions.disca.personas import PersonaPanel, country_name

if TYPE_CHECKING:
    from gnomon.decisions.disca.method import DISCA

# --- on gaps ---------------------------------------------------------------------------------------------------------


def vanilla(d0: ArrayLike, persona_gaps: ArrayLike) -> np.ndarray:
    """The base model's own gap."""
    return checked(d0, persona_gaps)[0]


def panel_mean(d0: ArrayLike, persona_gaps: ArrayLike) -> np.ndarray:
    """Consensus steering: the mean of the personas' gaps in place of the base's."""
    return checked(d0, persona_gaps)[1].mean(-1)  # type: ignore[no-any-return]


def panel_majority(d0: ArrayLike, persona_gaps: ArrayLike) -> np.ndarray:
    """The log-odds of the share of personas that prefer the first option, half a vote added to each side."""
    panel = checked(d0, persona_gaps)[1]
    votes = (panel > 0).sum(-1) + (panel == 0).sum(-1) / 2
    return np.log((votes + 0.5) / (panel.shape[-1] - votes + 0.5))  # type: ignore[no-any-return]


def tempered(d0: ArrayLike, persona_gaps: ArrayLike, temperature: float = 2.0) -> np.ndarray:
    """The base's gap over a temperature that no data chose."""
    if not temperature > 0:
        raise ValueError(f"temperature: got {temperature!r}; expected a number > 0")
    return checked(d0, persona_gaps)[0] / temperature


def clipped(d0: ArrayLike, persona_gaps: ArrayLike, margin: float = 1.0) -> np.ndarray:
    """The base's gap cut to a margin that no data chose."""
    if not margin > 0:
        raise ValueError(f"margin: got {margin!r}; expected a number > 0")
    return np.clip(checked(d0, persona_gaps)[0], -margin, margin)


def self_consistency(d0: ArrayLike, persona_gaps: ArrayLike, n: int = 20, random_state: Any = 0) -> np.ndarray:
    """The gap of n answers drawn from the base at temperature 1: log((a + 1/2) / (b + 1/2))."""
    if n < 1:
        raise ValueError(f"n: got {n}; expected at least 1")
    base = checked(d0, persona_gaps)[0]
    first = np.random.default_rng(random_state).binomial(n, 1 / (1 + np.exp(-base)))
    return np.log((first + 0.5) / (n - first + 0.5))  # type: ignore[no-any-return]


# --- other prompts ---------------------------------------------------------------------------------------------------


def country_prompt(country: str) -> str:
    """The country's name before the question, and nothing else."""
    return f"Answer as is usual in {country_name(country)}."


def average_citizen(country: str) -> str:
    """One persona: the last of the generic panel."""
    return PersonaPanel.generic(country).texts[-1]


# --- with the weights ------------------------------------------------------------------------------------------------


def _local(disca: DISCA) -> Any:
    """The local source of a DISCA, or TypeError: these need the weights."""
    from gnomon.decisions.disca.sources import LocalSource

    if not isinstance(disca.source, LocalSource):
        raise TypeError("model: activation steering and fine-tuning need the weights of a local model")
    return disca.source


def steered_gaps(
    disca: DISCA,
    country: str,
    questions: Sequence[tuple[str, Sequence[str]]],
    layer: int | None = None,
    scale: float = 1.0,
) -> np.ndarray:
    """Gaps of two-option questions under activation steering by a country's prompts, (questions,).

    The vector is the mean difference of the residual stream at the last token, after one block, between the questions with
    and without the country's prompt; it is added at the last token of the base prompt.

    Parameters
    ----------
    layer : int, optional
        The block after which it is added; default the middle one.
    scale : float
        Times the difference.
    """
    import torch

    from gnomon import activations
    from gnomon.decisions.disca.method import prompt
    from gnomon.models import head_logits, structure

    held = _local(disca)
    parts = structure(held.model)
    layer = len(parts.blocks) // 2 if layer is None else layer
    if not 0 <= layer < len(parts.blocks):
        raise ValueError(f"layer: got {layer}; the model has {len(parts.blocks)} blocks")
    block = parts.blocks[layer]
    told = country_prompt(country) + "\n\n"

    def ids(text: str) -> Any:
        return torch.tensor([[*held._start(), *held._ids(text)]])

    def last(text: str) -> Any:
        kept: list[Any] = []
        with torch.no_grad(), activations.capture(held.model, {block: lambda x: kept.append(x[0, -1].clone())}):
            parts.base(input_ids=ids(text), use_cache=False)
        return kept[0]

    texts = [[prompt(q, o), prompt(q, list(o)[::-1])] for q, o in questions]
    vector = torch.stack([last(told + t) - last(t) for both in texts for t in both]).mean(0)
    tokens = held.labels("AB")
    gaps = np.empty((len(texts), 2))
    with torch.no_grad(), activations.edit(held.model, {block: activations.add(vector, scale, -1)}):
        for i, both in enumerate(texts):
            for j, text in enumerate(both):
                hidden = parts.base(input_ids=ids(text), use_cache=False).last_hidden_state[:, -1]
                a, b = head_logits(held.model, hidden)[0, tokens].double().tolist()
                gaps[i, j] = a - b
    return (gaps[:, 0] - gaps[:, 1]) / 2  # type: ignore[no-any-return]


def fine_tuned_gaps(
    disca: DISCA, questions: Sequence[tuple[str, Sequence[str]]], targets: ArrayLike, asked: Sequence[tuple[str, Sequence[str]]],
    *, steps: int = 30, step: float = 1e-3, beta: float = 1.0, random_state: int = 0,
) -> np.ndarray:  # fmt: skip
    """Gaps of ``asked`` after DPO with soft labels on a country's own pairs: an upper bound, as it uses human data.

    The loss is the cross-entropy of sigma(beta (gap - gap of the base)) with the target, so that the base is the reference
    policy; the last block alone is trained (a copy: the model itself stays).

    Parameters
    ----------
    questions : sequence of (question, options)
        Training pairs of two options.
    targets : array_like (questions,)
        The human probability of the first option.
    steps, step, beta : int, float, float
        Adam steps over all pairs, its rate, and the strength.
    """
    import copy

    import torch
    import torch.nn.functional as F

    from gnomon.decisions.disca.method import prompt
    from gnomon.models import head_logits, structure

    held = _local(disca)
    y = torch.as_tensor(np.asarray(targets, float))
    if len(y) != len(questions) or not ((y >= 0) & (y <= 1)).all():
        raise ValueError(f"targets: expected {len(questions)} probabilities, got {np.asarray(targets).tolist()}")
    model = copy.deepcopy(held.model)
    model.requires_grad_(False)
    parts = structure(model)
    parts.blocks[-1].requires_grad_(True)
    tokens = held.labels("AB")

    def gap(question: str, options: Sequence[str]) -> Any:
        found = []
        for order in (list(options), list(options)[::-1]):
            ids = torch.tensor([[*held._start(), *held._ids(prompt(question, order))]])
            hidden = parts.base(input_ids=ids, use_cache=False).last_hidden_state[:, -1]
            logits = head_logits(model, hidden)[0, tokens].double()
            found.append(logits[0] - logits[1])
        return (found[0] - found[1]) / 2

    with torch.no_grad():
        reference = [gap(*q) for q in questions]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_state)
        adam = torch.optim.Adam(parts.blocks[-1].parameters(), lr=step)
        for _ in range(steps):
            adam.zero_grad()
            for question, before, target in zip(questions, reference, y, strict=True):
                moved = beta * (gap(*question) - before)
                (F.binary_cross_entropy_with_logits(moved, target) / len(y)).backward()
            adam.step()
    with torch.no_grad():
        return np.array([float(gap(*q)) for q in asked])
