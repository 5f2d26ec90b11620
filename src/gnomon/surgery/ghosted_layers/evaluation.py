"""Evaluate many short models cheaply: the dense model's states are kept once, each contender runs what is behind the cut.

A short model equals the dense one up to its first cut, so it is entered there with the dense model's residual stream.
The tail is a model of its own (:func:`tail`), whose first block gets the kept states instead of its input; masks,
positions and rotary angles are the model's own, and no cache of keys and values is involved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gnomon import activations, models
from gnomon.surgery.ghosted_layers.model import shorten
from gnomon.surgery.ghosted_layers.solve import Operator

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BATCH_TOKENS = 1024  # in a forward pass
HEAD_ROWS = 256  # positions whose logits are held at once


class Tail(NamedTuple):
    """What runs behind the first cut, and the dense layer whose input it takes."""

    model: PreTrainedModel
    entrance: int


class Scores(NamedTuple):
    """Per predicted token, shape (N, T - 1): negative log-likelihood in nats, and the most likely token."""

    nll: Tensor
    top: Tensor


def tail(model: PreTrainedModel, removed: list[int], operators: Mapping[int, Operator] | None = None,
         folds: Mapping[int, Tensor] | None = None) -> Tail:  # fmt: skip
    """The part of ``shorten(model, removed, operators, folds)`` behind the first cut; it shares the model's tensors.

    A fold changes the block before the cut, so that the tail then starts with that block.
    """
    start = removed[0] if removed else 0
    entrance = min([start, *(folds or {})])
    return Tail(shorten(model, {*range(entrance), *removed}, operators, folds, keep="share"), entrance)


def final_states(part: Tail, states: Tensor, ids: Tensor) -> Tensor:
    """Hidden states after the final norm, (N, T, C), from the dense states (N, T, C) at the entrance."""
    parts = models.structure(part.model)
    rows = max(1, BATCH_TOKENS // ids.shape[1])
    device = parts.embed.weight.device
    found = []
    with torch.no_grad():
        for given, tokens in zip(torch.split(states, rows), torch.split(ids, rows), strict=True):
            entering = activations.patch(given.to(device))
            with activations.edit(part.model, {parts.blocks[0]: entering}, inputs=True):
                found.append(parts.base(input_ids=tokens.to(device), use_cache=False).last_hidden_state)
    return torch.cat(found)


def score(model: PreTrainedModel, hidden: Tensor, ids: Tensor) -> Scores:
    """Score every token but the first of each row, from the states after the final norm (N, T, C)."""
    flat, target = hidden[:, :-1].flatten(0, 1), ids[:, 1:].flatten().to(hidden.device)
    nll, top = [], []
    with torch.no_grad():
        for h, t in zip(torch.split(flat, HEAD_ROWS), torch.split(target, HEAD_ROWS), strict=True):
            logits = models.head_logits(model, h).float()
            own = logits.gather(1, t[:, None])[:, 0]
            highest, best = logits.max(-1)
            total = logits.sub_(highest[:, None]).exp_().sum(-1)  # in place: no second array of positions x vocabulary
            nll.append(highest + total.log() - own)
            top.append(best)
    shape = (len(ids), ids.shape[1] - 1)
    return Scores(torch.cat(nll).view(shape).cpu(), torch.cat(top).view(shape).cpu())


def divergence(model: PreTrainedModel, dense: Tensor, hidden: Tensor) -> Tensor:
    """KL(dense || short) in nats at each position, from the two models' states after the final norm (..., C)."""
    with torch.no_grad():
        rows = (h.reshape(-1, h.shape[-1]) for h in (dense, hidden))  # one matrix product, not one per window
        p, q = (models.head_logits(model, h).float().log_softmax(-1) for h in rows)
        return (p.exp() * (p - q)).sum(-1).view(dense.shape[:-1])
