"""A shorter model with operators in front of some blocks, and how transformers saves and loads it.

The block after a cut becomes an instance of a subclass whose forward applies ``self.ghost`` to the hidden states first:
no hooks, every other parameter keeps its name, and the operator is ``model.layers.{i}.ghost.weight`` in the same file.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from gnomon import models
from gnomon.surgery.ghosted_layers.registration import PREFIX
from gnomon.surgery.ghosted_layers.selection import runs
from gnomon.surgery.ghosted_layers.solve import Operator

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# model_type -> class with the language-model head
FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}


class GhostedLayer(nn.Module):
    """x -> x W + b in float32 (or better), returned in the type of x.

    Parameters
    ----------
    size : int
        Width C of the residual stream.
    affine : bool
        With an intercept.

    Attributes
    ----------
    weight : Parameter (C, C), float32
        W', as ``torch.nn.Linear`` stores it.
    bias : Parameter (C,) or None
    """

    def __init__(self, size: int, affine: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(size, dtype=torch.float32), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(size, dtype=torch.float32), requires_grad=False) if affine else None

    @classmethod
    def of(cls, operator: Operator) -> GhostedLayer:
        """From a fitted operator; an intercept that is zero is left out."""
        affine = bool(operator.bias.any())
        layer = cls(len(operator.weight), affine)
        layer.weight.data = operator.weight.T.to(torch.float32).contiguous()
        if layer.bias is not None:
            layer.bias.data = operator.bias.to(torch.float32)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        kind = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(kind)
        return nn.functional.linear(x.to(kind), self.weight.to(kind), bias).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, affine={self.bias is not None}"


@functools.cache
def _ghosted(kind: Any) -> Any:
    """The subclass of a block (or norm) that applies its ghost first."""

    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return kind.forward(self, self.ghost(hidden_states), *args, **kwargs)

    return type(f"Ghosted{kind.__name__}", (kind,), {"forward": forward, "__module__": kind.__module__})


def install(module: Any, ghost: GhostedLayer) -> None:
    """Put an operator in front of a block or norm, in place."""
    module.ghost = ghost
    kind: Any = type(module)
    module.__class__ = _ghosted(kind)


# --- classes for transformers -----------------------------------------------------------------------------------------


@functools.cache
def config_class(family: str) -> type[transformers.PreTrainedConfig]:
    """The configuration class of a ghosted model: the family's own, with ``model_type`` "gnomon-ghosted-<family>"."""
    base = transformers.AutoConfig.for_model(family).__class__
    return type(f"Ghosted{base.__name__}", (base,), {"model_type": PREFIX + family, "__module__": __name__})


@functools.cache
def model_class(family: str) -> type[PreTrainedModel]:
    """The causal language model of a family with operators where ``config.ghosted_layers`` says."""
    base = getattr(transformers, FAMILIES[family])

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, config, *args, **kwargs)
        parts = models.structure(self)
        for index, about in config.ghosted_layers.items():
            target = parts.norm if int(index) == len(parts.blocks) else parts.blocks[int(index)]
            install(target, GhostedLayer(parts.hidden_size, about["affine"]))

    def from_pretrained(cls: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        model, info = base.from_pretrained.__func__(cls, *args, output_loading_info=True, **kwargs)
        if missing := sorted(key for key in info["missing_keys"] if ".ghost." in key):
            raise ValueError(f"the checkpoint lacks the weights of a ghosted layer: {', '.join(missing)}")
        return (model, info) if output_loading_info else model

    return type(f"Ghosted{base.__name__}", (base,), {
        "__module__": __name__, "__init__": __init__,
        "from_pretrained": classmethod(from_pretrained), "config_class": config_class(family),
        "_keep_in_fp32_modules_strict": {*(base._keep_in_fp32_modules_strict or ()), "ghost"},
        "_no_split_modules": [n for k in base._no_split_modules or () for n in (k, f"Ghosted{k}")],
    })  # fmt: skip


# --- surgery ----------------------------------------------------------------------------------------------------------


def shorten(model: PreTrainedModel, removed: Iterable[int], operators: Mapping[int, Operator] | None = None,
            folds: Mapping[int, Tensor] | None = None, *, keep: Literal["copy", "share", "consume"] = "copy",
            ) -> PreTrainedModel:  # fmt: skip
    """A model without some blocks, with operators in front of others.

    Parameters
    ----------
    model : PreTrainedModel
    removed : iterable of int
        Blocks to leave out.
    operators : mapping of int to Operator
        Keyed by the *old* index of the block that the operator stands before; L is the final norm.
    folds : mapping of int to Tensor (C, C)
        T by the old index of a kept block: what its MLP writes is multiplied by T (ReplaceMe), in its own weights.
    keep : {"copy", "share", "consume"}
        The given model is untouched and shares nothing, is untouched and shares its tensors with the result, or is
        changed into the result.

    Returns
    -------
    PreTrainedModel
        Of the model's own class, or with operators of its ghosted subclass. Indices of attention layers are renumbered,
        so that caches of keys and values work; ``num_hidden_layers`` and ``layer_types`` of the configuration follow.
    """
    operators, folds, removed = operators or {}, folds or {}, sorted(removed)
    family = model.config.model_type
    if family.startswith(PREFIX):
        raise ValueError(f"the model is already ghosted ({family}); prune the model that it was made from")
    if family not in FAMILIES:
        raise TypeError(f"model_type {family!r} is not supported; supported are {', '.join(FAMILIES)}")
    if removed and getattr(model.config, "scale_attn_by_inverse_layer_idx", False):
        raise ValueError("the model scales attention by the layer's index, which removing layers would change")
    model = models.plain(model)
    if keep != "consume":
        model = _copied(model, removed, share=keep == "share")
    parts = models.structure(model)
    blocks = list(parts.blocks)
    kept = [i for i in range(len(blocks)) if i not in set(removed)]
    for index, matrix in folds.items():
        _fold(parts.mlp_out(blocks[index]), matrix)
    setattr(parts.base, parts.blocks_path.rpartition(".")[2], nn.ModuleList(blocks[i] for i in kept))
    for new, old in enumerate(kept):
        for module in blocks[old].modules():
            if hasattr(module, "layer_idx"):
                vars(module)["layer_idx"] = new
    config = model.config
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in kept]
    config.num_hidden_layers = len(kept)
    if operators:
        behind = {end: list(range(start, end)) for start, end in runs(removed)}
        about = {}
        for old, operator in sorted(operators.items()):
            new = kept.index(old) if old < len(blocks) else len(kept)
            ghost = GhostedLayer.of(operator).to(parts.embed.weight.device)
            install(parts.norm if new == len(kept) else blocks[old], ghost)
            about[new] = {"removed": behind.get(old, []), "affine": ghost.bias is not None}
        config.ghosted_layers = about
        config.__class__ = config_class(family)
        config.architectures = [model_class(family).__name__]
        model.__class__ = model_class(family)
    return model


def _copied(model: PreTrainedModel, removed: list[int], share: bool) -> PreTrainedModel:
    """A copy that spends no memory on the blocks that go, or on any tensor if they are shared."""
    blocks = models.structure(model).blocks
    as_they_are: list[Any] = [blocks[i] for i in removed]
    if share:
        as_they_are += [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(item): item for item in as_they_are})


def _fold(linear: Any, matrix: Tensor) -> None:
    """h W -> h W T, in new tensors."""
    weight = models.linear_weight(linear)  # (outputs, inputs)
    folded = (matrix.T.to(weight.device) @ weight.double()).to(weight.dtype)
    linear.weight = nn.Parameter(folded.T.contiguous() if isinstance(linear, Conv1D) else folded, requires_grad=False)
    if getattr(linear, "bias", None) is not None:
        moved = (linear.bias.double() @ matrix.to(weight.device)).to(weight.dtype)
        linear.bias = nn.Parameter(moved, requires_grad=False)


def _register() -> None:
    for family in FAMILIES:
        transformers.AutoConfig.register(PREFIX + family, config_class(family), exist_ok=True)
        transformers.AutoModelForCausalLM.register(config_class(family), model_class(family), exist_ok=True)


_register()
