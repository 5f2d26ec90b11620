"""L = CE + lambda(t) G on the batches of a causal language model; the trainer and the study's loop share it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gnomon import activations, models
from gnomon.architectures.gem.fused import fused_gem_loss
from gnomon.architectures.gem.head import Head, head_of, takes
from gnomon.architectures.gem.method import (
    DETACH,
    IGNORED,
    VARIANTS,
    GEMLoss,
    check_choice,
    check_weight,
    gem_loss,
)

Layers = str | Sequence[int] | Mapping[int, float]


class GEMObjective:
    """Cross-entropy and the GEM term of one model.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model; ``scale_rule`` goes before this.
    lam : float
        Weight >= 0.
    variant : {"mse", "cos", "energy"}
    detach : {"mixture", "none"}
    apply_to : "last", "all", list of int, or mapping of int to float
        Layers whose states are drawn to their mixtures, 1 to L; layer l is the residual stream after l blocks, read
        through the model's own final norm, and L the state that enters the head. "all" is 1 to L with equal weights;
        the term is the weighted mean over layers.
    warmup : float
        Share of the training during which the weight rises linearly from 0.
    chunk : int
        Tokens whose logits are held at once.

    Raises
    ------
    ValueError
        For an unknown variant, detach or layer, or a weight below 0.
    """

    def __init__(self, model: nn.Module, lam: float = 0.1, variant: str = "mse", detach: str = "mixture",
                 apply_to: Layers = "last", warmup: float = 0.1, chunk: int = 1024):  # fmt: skip
        check_choice("variant", variant, VARIANTS)
        check_choice("detach", detach, DETACH)
        check_weight("lam", lam)
        if not 0 <= warmup <= 1:
            raise ValueError(f"warmup: got {warmup}; expected a share in [0, 1]")
        self.lam, self.variant, self.detach, self.warmup, self.chunk = float(lam), variant, detach, warmup, chunk
        self.parts = models.structure(model)
        self.head: Head = head_of(model)
        self.weights = layer_weights(apply_to, len(self.parts.blocks))

    def weight(self, progress: float) -> float:
        """lambda at a share of the training in [0, 1]."""
        return self.lam if self.warmup == 0 else self.lam * min(1.0, progress / self.warmup)

    def __call__(self, model: nn.Module, inputs: Mapping[str, Any], progress: float = 1.0) -> GEMLoss:
        """The loss of one batch, with its graph.

        Parameters
        ----------
        model : torch.nn.Module
            The model, or what wraps it for training on several devices: its forward is called once.
        inputs : mapping
            As the model takes them, with ``labels`` (B, T); -100 is ignored.
        progress : float
            Share of the training that is done.
        """
        inputs = dict(inputs)
        labels = inputs.pop("labels")
        depth = len(self.parts.blocks)
        found: dict[int, Tensor] = {}

        def keep(layer: int) -> Any:
            return lambda value: found.__setitem__(layer, value)

        wanted: dict[str | nn.Module, Any] = {self.parts.norm: keep(depth)}
        wanted |= {self.parts.blocks[layer - 1]: keep(layer) for layer in self.weights if layer < depth}
        few = {"logits_to_keep": 1} if self.head.exact and takes(inner(model), "logits_to_keep") else {}
        with activations.capture(inner(model), wanted, detach=False):
            out = model(**inputs, **few, use_cache=False)
        targets = labels[:, 1:].to(found[depth].device)
        lam = self.weight(progress)
        last = self._loss(found[depth], targets, lam if depth in self.weights else 0.0, None if few else out.logits)
        if lam == 0 or list(self.weights) == [depth]:
            return last
        counted = targets != IGNORED
        gem = self.weights.get(depth, 0.0) * last.gem
        for layer, share in self.weights.items():
            if layer < depth and bool(counted.any()):
                gem = gem + share * self._term(self.parts.norm(found[layer]), counted, lam)
        with torch.no_grad():
            ratio = last.residual_ratio
            if depth not in self.weights:
                ratio = self._loss(found[depth].detach(), targets, 1.0, None).residual_ratio
        return GEMLoss(last.ce, gem, ratio, lam)

    def _loss(self, normed: Tensor, targets: Tensor, lam: float, logits: Tensor | None) -> GEMLoss:
        h, head = self.head.states(normed[:, :-1]), self.head
        if head.exact:
            return fused_gem_loss(h, head.E, targets, lam, head.beta, self.variant, self.chunk, self.detach)
        logits = head.logits(normed[:, :-1]) if logits is None else logits[:, :-1]
        return gem_loss(h, head.E, targets, lam, head.beta, self.variant, self.detach, logits)

    def _term(self, normed: Tensor, counted: Tensor, lam: float) -> Tensor:
        """G of an inner layer."""
        head, kept = self.head, normed[:, :-1][counted]
        h = head.states(kept)
        if head.exact:
            return fused_gem_loss(h, head.E, None, lam, head.beta, self.variant, self.chunk, self.detach).gem
        return gem_loss(h, head.E, None, lam, head.beta, self.variant, self.detach, head.logits(kept)).gem


def layer_weights(apply_to: Layers, depth: int) -> dict[int, float]:
    """Layer to weight, summing to 1.

    Raises
    ------
    ValueError
        For a word other than "last" and "all", layers outside 1..depth, or weights that are not positive.
    """
    if isinstance(apply_to, str):
        check_choice("apply_to", apply_to, ("last", "all"))
        apply_to = [depth] if apply_to == "last" else range(1, depth + 1)
    given = dict(apply_to) if isinstance(apply_to, Mapping) else dict.fromkeys(apply_to, 1.0)
    if not given or any(not isinstance(x, int) or not 1 <= x <= depth for x in given):
        raise ValueError(f"apply_to: got {apply_to!r}; expected 'last', 'all', or layers in 1..{depth}")
    if any(not (math.isfinite(w) and w > 0) for w in given.values()):
        raise ValueError(f"apply_to: got {apply_to!r}; expected positive weights")
    total = sum(given.values())
    return {layer: w / total for layer, w in sorted(given.items())}


def inner(model: nn.Module) -> nn.Module:
    """The model inside a wrapper for training on several devices, or compiled."""
    while not hasattr(model, "config") and isinstance(getattr(model, "module", None), nn.Module):
        model = model.module  # type: ignore[assignment]
    return getattr(model, "_orig_mod", model)  # type: ignore[return-value]
