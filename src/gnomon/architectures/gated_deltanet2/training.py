"""Training of small models, the same for every mixer: AdamW, one cycle of the rate, clipped gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gnomon.architectures.gated_deltanet2.model import GatedDeltaNet2ForCausalLM
from gnomon.architectures.gated_deltanet2.tasks import Batch

__all__ = ["answer", "held_out_nll", "train"]

Pairs = tuple[Tensor, Tensor]


def train(
    model: GatedDeltaNet2ForCausalLM, batches: Callable[[int], Pairs], steps: int, lr: float,
    after: Callable[[int], None] | None = None,
) -> list[float]:  # fmt: skip
    """Train in place; returns the loss of each step.

    Parameters
    ----------
    model : GatedDeltaNet2ForCausalLM
    batches : callable
        Step to ``(tokens [n, T], answers [n, Q])``; the loss is that of the last Q tokens' next tokens.
    steps : int
    lr : float
        Highest rate of the cycle.
    after : callable, optional
        Called with the number of steps done, after each.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.01, fused=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=max(steps, 2))
    model.train()
    losses = []
    for step in range(steps):
        tokens, answers = batches(step)
        logits = model(tokens, logits_to_keep=answers.shape[1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        cycle.step()
        losses.append(float(loss.detach()))
        if after is not None:
            after(step + 1)
    model.eval()
    return losses


def as_tensors(batch: Batch) -> Pairs:
    """Tokens and answers of a task's batch."""
    return torch.from_numpy(batch.tokens), torch.from_numpy(batch.answers)


@torch.no_grad()
def answer(model: GatedDeltaNet2ForCausalLM, batch: Batch, rows: int = 64) -> np.ndarray:
    """Whether each answer [n, Q] is the most likely token."""
    training, found = model.training, []
    model.eval()
    for tokens, answers in zip(*(t.split(rows) for t in as_tensors(batch)), strict=True):
        logits = model(tokens, logits_to_keep=answers.shape[1], use_cache=False).logits
        found.append(logits.argmax(-1) == answers)
    model.train(training)
    return torch.cat(found).numpy()


def windows(tokens: Tensor, batch: int, length: int, rng: np.random.Generator) -> Callable[[int], Pairs]:
    """Random windows of a text: (first tokens, the token after each)."""

    def draw(step: int) -> Pairs:
        starts = rng.integers(len(tokens) - length, size=batch)
        rows = torch.stack([tokens[s : s + length + 1] for s in starts.tolist()])
        return rows[:, :-1], rows[:, 1:]

    return draw


@torch.no_grad()
def held_out_nll(model: GatedDeltaNet2ForCausalLM, tokens: Tensor, count: int, length: int) -> float:
    """Mean negative log-likelihood, in nats a token, of windows evenly spread over a text."""
    starts = np.linspace(0, len(tokens) - length - 1, count).astype(int).tolist()
    total = 0.0
    for some in _groups(starts, 16):
        rows = torch.stack([tokens[s : s + length + 1] for s in some])
        logits = model(rows[:, :-1], use_cache=False).logits
        total += float(F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum"))
    return total / (count * length)


def _groups(items: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (items[i : i + size] for i in range(0, len(items), size))
