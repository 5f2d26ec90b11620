"""The training loop: the same initial weights and the same batches for every objective of a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.architectures.gem.study.material import build
from gnomon.architectures.gem.study.recipes import Recipe

if TYPE_CHECKING:
    import torch

BATCH = 16  # windows in a step
RATE, DECAY, WARMUP = 3e-3, 0.1, 0.1
LOOKS = 8  # held-out likelihoods along the way
SEEN = 32  # windows of each


def train(recipe: Recipe, text: dict[str, Any], width: int, depth: int, steps: int, seed: int) -> dict[str, Any]:
    """Train one model.

    Returns
    -------
    dict
        ``state`` (float32 arrays, scale folded), ``beta``, ``tied``, ``curve`` (rows of step and held-out nats), ``used``
        (tokens that were seen), ``collapse`` (mean cosine and norm of the embeddings).
    """
    import torch

    from gnomon import models
    from gnomon.architectures.gem.head import fold_scale
    from gnomon.architectures.gem.trainer import collapse

    stream, length = text["train"], text["inside"].shape[1]
    model, step_of, optimiser = ready(recipe, width, depth, len(text["words"]), length, seed)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate(step / steps))
    starts = np.random.default_rng([seed, 7]).integers(0, len(stream) - length, (steps, BATCH))
    seen = torch.from_numpy(text["inside"][:SEEN])
    curve = []
    looks = {round(steps * (i + 1) / LOOKS) for i in range(LOOKS)}
    model.train()
    for step in range(steps):
        ids = torch.from_numpy(stream[starts[step][:, None] + np.arange(length)].astype(np.int64))
        step_of(ids, (step + 1) / steps)
        schedule.step()
        if step + 1 in looks:
            curve.append((step + 1, float(models.token_nll(model, seen, batch_size=SEEN).mean())))
    beta = fold_scale(model)
    return {
        "state": {k: v.detach().numpy().copy() for k, v in model.state_dict().items()},
        "beta": beta,
        "tied": recipe.tied,
        "curve": np.array(curve),
        "used": np.unique(stream[starts[..., None] + np.arange(length)]),
        "collapse": collapse(models.structure(model).head.weight),  # type: ignore[arg-type]
    }


def rate(progress: float) -> float:
    """Share of the learning rate: linear from 0, then a cosine to a tenth."""
    if progress < WARMUP:
        return (progress + 1e-3) / WARMUP
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (progress - WARMUP) / (1 - WARMUP)))


def ready(recipe: Recipe, width: int, depth: int, vocabulary: int, length: int,
          seed: int) -> tuple[Any, Callable[[torch.Tensor, float], None], torch.optim.Optimizer]:  # fmt: skip
    """A model, a function that takes one step on ids (B, T) at a share of the training, and its optimiser."""
    import torch

    from gnomon.architectures.gem.head import scale_rule

    model = build(width, depth, vocabulary, length, recipe.tied, seed)
    if recipe.scaled:
        scale_rule(model)
    loss_of = loss(recipe, model)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), fused=True)

    def step(ids: torch.Tensor, progress: float) -> None:
        optimiser.zero_grad()
        loss_of(ids, progress).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return model, step, optimiser


def loss(recipe: Recipe, model: Any) -> Callable[[torch.Tensor, float], torch.Tensor]:
    """The objective as a function of ids (B, T) and the share of the training that is done."""
    from gnomon import models
    from gnomon.architectures.gem import baselines
    from gnomon.architectures.gem.fused import fused_gem_loss
    from gnomon.architectures.gem.head import head_of
    from gnomon.architectures.gem.objective import GEMObjective

    head, base = head_of(model), models.structure(model).base
    if recipe.lam and not recipe.centred:
        objective = GEMObjective(model, recipe.lam, recipe.variant, recipe.detach, recipe.apply_to, recipe.warmup)
        return lambda ids, progress: objective(model, {"input_ids": ids, "labels": ids}, progress).total
    term = getattr(baselines, recipe.baseline)

    def other(ids: torch.Tensor, progress: float) -> torch.Tensor:
        h, targets = base(input_ids=ids, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        if recipe.centred:
            lam = recipe.lam * min(1.0, progress / recipe.warmup)
            return fused_gem_loss(h, head.E - head.E.mean(0), targets, lam, head.beta).total
        return term(head.logits(h), targets, head.E)

    return other
