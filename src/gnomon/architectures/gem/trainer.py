"""GEM in one line of a transformers training script."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Trainer

from gnomon.architectures.gem.head import CONFIG, MODULE, fold_scale, scale_rule
from gnomon.architectures.gem.method import IGNORED, check_weight
from gnomon.architectures.gem.objective import GEMObjective, Layers


class GEMMixin:
    """Adds the GEM term to a ``transformers.Trainer`` (or a subclass, put after this one).

    Parameters
    ----------
    gem_lambda : float
        Weight >= 0; at 0 this is the trainer that it is mixed into, to the bit.
    gem_variant, gem_detach, gem_apply_to, gem_warmup, gem_chunk
        See :class:`GEMObjective`.
    gem_scale : bool, optional
        Whether the scale rule is applied at the start of training and folded at its end. By default where the weight is
        positive and the variant is not "cos", which needs none.
    *args, **kwargs
        Of the trainer.

    Notes
    -----
    ``eval_loss`` stays the plain cross-entropy. Logs get ``ce``, ``gem``, ``gem_weight`` and ``residual_ratio``, and
    ``embedding_cosine`` and ``embedding_norm``: with ``gem_detach="none"`` the term can be lowered by the collapse of the
    embeddings, which these two show.
    """

    def __init__(self, *args: Any, gem_lambda: float = 0.1, gem_variant: str = "mse", gem_detach: str = "mixture",
                 gem_apply_to: Layers = "last", gem_warmup: float = 0.1, gem_scale: bool | None = None,
                 gem_chunk: int = 1024, **kwargs: Any):  # fmt: skip
        check_weight("gem_lambda", gem_lambda)
        super().__init__(*args, **kwargs)
        mine: Any = self
        self.gem_lambda = gem_lambda
        self.gem_scale = (gem_lambda > 0 and gem_variant != "cos") if gem_scale is None else gem_scale
        self._gem_settings = (gem_lambda, gem_variant, gem_detach, gem_apply_to, gem_warmup, gem_chunk)
        self._gem_sums: dict[str, float] = {}
        self._gem_steps = 0
        if gem_lambda > 0 and (mine.label_smoother is not None or mine.compute_loss_func is not None):
            raise ValueError("gem_lambda: GEM brings its own loss; label smoothing and compute_loss_func need 0")
        self._gem_objective = GEMObjective(mine.model, *self._gem_settings)  # an early look: bad settings raise here

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As the trainer's; the scale rule is applied before and folded after."""
        mine: Any = self
        if self.gem_scale and not hasattr(mine.model, MODULE):
            scale_rule(mine.model)
            if mine.optimizer is not None:  # a person's own, or that of an earlier training
                mine.optimizer.add_param_group(
                    {"params": list(getattr(mine.model, MODULE).parameters()), "weight_decay": 0.0}
                )
        self._gem_objective = GEMObjective(mine.model, *self._gem_settings)
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]
        finally:
            if self.gem_scale:
                fold_scale(mine.model)
                self._gem_objective = GEMObjective(mine.model, *self._gem_settings)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False,
                     num_items_in_batch: Any = None) -> Any:  # fmt: skip
        """The GEM loss in training; elsewhere, and where the weight is 0, the trainer's own."""
        mine: Any = self
        if self.gem_lambda == 0 or return_outputs or not model.training or "labels" not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)  # type: ignore[misc]
        progress = (mine.state.global_step + 1) / max(1, mine.state.max_steps)
        loss = self._gem_objective(model, inputs, progress)
        self._note(loss)
        total = loss.total
        if mine.model_accepts_loss_kwargs and num_items_in_batch is not None:  # as the trainer's losses are scaled
            total = total * (inputs["labels"][:, 1:] != IGNORED).sum() / num_items_in_batch
            if mine.args.average_tokens_across_devices:
                total = total * (mine.accelerator.num_processes if mine.args.n_gpu <= 1 else mine.args.n_gpu)
        return total

    def get_decay_parameter_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """As the trainer's, without the scale: decay would draw it to 1."""
        names = super().get_decay_parameter_names(*args, **kwargs)  # type: ignore[misc]
        return [name for name in names if not name.startswith(MODULE)]

    def _note(self, loss: Any) -> None:
        values = {"ce": loss.ce, "gem": loss.gem, "residual_ratio": loss.residual_ratio, "gem_weight": loss.lam}
        for name, value in values.items():
            self._gem_sums[name] = self._gem_sums.get(name, 0.0) + float(
                value.detach() if isinstance(value, torch.Tensor) else value
            )
        self._gem_steps += 1

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As the trainer's, with the term's own figures since the last time."""
        if self._gem_steps and "loss" in logs:
            logs |= {name: value / self._gem_steps for name, value in self._gem_sums.items()} | collapse(
                self._gem_objective.head.E
            )
            self._gem_sums, self._gem_steps = {}, 0
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def _save(self, *args: Any, **kwargs: Any) -> None:
        mine: Any = self
        if hasattr(mine.model, MODULE):  # the weights are folded as they are written; so is the configuration
            mine.model.config.__dict__[CONFIG] = float(getattr(mine.model, MODULE).log_scale.detach().exp())
        super()._save(*args, **kwargs)  # type: ignore[misc]


class GEMTrainer(GEMMixin, Trainer):
    """A ``transformers.Trainer`` with the GEM term: all its arguments, and those of :class:`GEMMixin`.

    >>> trainer = GEMTrainer(model=model, args=args, train_dataset=data, gem_lambda=0.1)  # doctest: +SKIP
    >>> trainer.train()  # doctest: +SKIP
    """


def collapse(E: torch.Tensor) -> dict[str, float]:
    """Mean cosine over all pairs of embeddings, and their mean norm: 1 and anything when they have collapsed."""
    with torch.no_grad():
        e = E.detach().float()
        norm = e.norm(dim=1)
        unit = e / norm.clamp_min(1e-12)[:, None]
        pairs = (unit.sum(0).square().sum() - unit.square().sum()) / (len(e) * (len(e) - 1))
        return {"embedding_cosine": float(pairs), "embedding_norm": float(norm.mean())}
