"""One forward pass of the dense model: statistics of boundaries, similarity of layers, and nothing else is kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from gnomon import activations, models
from gnomon.surgery.ghosted_layers.moments import BoundaryMoments, RowWeight
from gnomon.surgery.ghosted_layers.selection import LayerSimilarity, SimilaritySums

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Pair = tuple[int, int]
MAX_TOKENS = 2048  # of one text: longer ones are truncated


class Batch(NamedTuple):
    """Token ids (B, T), and a mask (B, T) where there is padding."""

    ids: Tensor
    mask: Tensor | None = None


class _Enough(Exception):
    """Stops a forward pass that has passed the last layer of interest."""


def batches(calibration: Any, tokenizer: PreTrainedTokenizerBase | None = None, batch_size: int = 4) -> list[Batch]:
    """Calibration data in any accepted form, as a list of batches.

    Parameters
    ----------
    calibration : LongTensor (N, T), list of str, or iterable
        Token ids; texts (with ``tokenizer``; each is a sequence of its own, cut at 2,048 tokens); or batches, each a
        LongTensor (B, T) or a mapping with ``input_ids`` and perhaps ``attention_mask``.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: got {batch_size}; expected at least 1")
    if isinstance(calibration, str):
        calibration = [calibration]
    if isinstance(calibration, Tensor) and calibration.dim() == 2:
        calibration = torch.split(calibration, batch_size)
    found = [_batch(item, tokenizer) for item in calibration]
    found = [b for b in found if b.ids.numel()]
    if not found:
        raise ValueError("calibration: holds no tokens")
    for ids, mask in found:
        if ids.dim() != 2 or ids.is_floating_point():
            raise ValueError(f"calibration: expected token ids (N, T), got {ids.dtype} of shape {tuple(ids.shape)}")
        if mask is not None and not bool(mask.bool().any(1).all()):
            raise ValueError("calibration: a sequence holds nothing but padding")
    return found


def _batch(item: Any, tokenizer: PreTrainedTokenizerBase | None) -> Batch:
    if isinstance(item, str):
        if tokenizer is None:
            raise ValueError("tokenizer: needed when the calibration is text")
        ids = tokenizer(item, verbose=False).input_ids[:MAX_TOKENS]
        return Batch(torch.tensor([ids], dtype=torch.long))
    if isinstance(item, Mapping):
        return Batch(item["input_ids"], item.get("attention_mask"))
    if isinstance(item, Tensor):
        return Batch(item)
    raise TypeError(f"calibration: expected token ids, texts or batches of token ids, got {type(item).__name__}")


def layer_inputs(model: PreTrainedModel, batch: Batch, layers: Collection[int], mlps: Collection[int] = (),
                 ) -> tuple[dict[int, Tensor], dict[int, Tensor]]:  # fmt: skip
    """The residual stream where it enters some blocks, and what some MLPs write into it.

    The pass ends at the last layer asked for, and never reaches the output head.

    Parameters
    ----------
    layers : collection of int
        Blocks whose input is wanted; L is the final norm.
    mlps : collection of int
        Blocks whose MLP's output is wanted.

    Returns
    -------
    states, written : dict of int to Tensor (B, T, C)
    """
    parts = models.structure(model)
    last = max([*layers, *(m + 1 for m in mlps)])
    states: dict[int, Tensor] = {}
    written: dict[int, Tensor] = {}

    def keep(layer: int) -> Any:
        def reduce(value: Tensor) -> None:
            if layer in layers:
                states[layer] = value
            if layer == last:
                raise _Enough

        return reduce

    entrances: dict[Any, Any] = {module: keep(i) for i, module in enumerate([*parts.blocks, parts.norm])
                                 if i in layers or i == last}  # fmt: skip
    outputs: dict[Any, Any] = {parts.mlp(parts.blocks[i]): partial(written.__setitem__, i) for i in mlps}
    device = parts.embed.weight.device
    mask = None if batch.mask is None else batch.mask.to(device)
    with torch.no_grad(), ExitStack() as stack:
        stack.enter_context(activations.capture(parts.base, entrances, inputs=True))
        stack.enter_context(activations.capture(parts.base, outputs))
        stack.enter_context(suppress(_Enough))
        parts.base(input_ids=batch.ids.to(device), attention_mask=mask, use_cache=False)
    return states, written


def collect(model: PreTrainedModel, data: Iterable[Batch], pairs: Collection[Pair] = (), *, similarity: bool = False,
            row_weight: RowWeight = "none", scales: bool = False, rotation: Tensor | None = None, mlp: bool = False,
            products: Literal["float64", "float32"] = "float64",
            ) -> tuple[dict[Pair, BoundaryMoments], LayerSimilarity | None]:  # fmt: skip
    """Statistics of any number of boundaries, and the similarity of all layers, from one pass over the data.

    Parameters
    ----------
    pairs : collection of (int, int)
        Boundaries: (first removed block, block that follows the removed ones).
    similarity : bool
        Also compare all layers.
    row_weight, scales, rotation, products
        See :class:`BoundaryMoments`.
    mlp : bool
        Also keep what ReplaceMe needs, for boundaries behind a kept block.

    Raises
    ------
    FloatingPointError
        When an activation is not finite; the message names the layer and the batch.
    """
    parts = models.structure(model)
    depth = len(parts.blocks)
    device = parts.embed.weight.device
    found = {pair: BoundaryMoments(parts.hidden_size, row_weight=row_weight, scales=scales, rotation=rotation,
                                   products=products, device=device) for pair in pairs}  # fmt: skip
    sums = SimilaritySums(depth) if similarity else None
    wanted = set(range(depth + 1)) if similarity else {layer for pair in pairs for layer in pair}
    writers = {start - 1 for start, _ in pairs if start > 0} if mlp else set()
    for index, batch in enumerate(data):
        low, high = int(batch.ids.min()), int(batch.ids.max())
        if low < 0 or high >= parts.embed.num_embeddings:
            raise ValueError(
                f"calibration: token ids {low} to {high}; the model knows 0 to {parts.embed.num_embeddings - 1}"
            )
        states, written = layer_inputs(model, batch, wanted, writers)
        for layer, state in states.items():
            if not bool(torch.isfinite(state).all()):
                raise FloatingPointError(f"the input of layer {layer} is not finite in calibration batch {index}")
        mask = None if batch.mask is None else batch.mask.to(device)
        if sums is not None:
            sums.update(states, mask)
        for (start, end), moments in found.items():
            moments.update(states[start], states[end], mask, written.get(start - 1))
    return found, sums.result() if sums is not None else None


def layer_similarity(model: PreTrainedModel, calibration: Any, tokenizer: PreTrainedTokenizerBase | None = None, *,
                     batch_size: int = 4) -> LayerSimilarity:  # fmt: skip
    """Compare the residual stream at the inputs of all layers.

    Parameters
    ----------
    model : PreTrainedModel
    calibration, tokenizer, batch_size
        See :func:`batches`.

    Returns
    -------
    LayerSimilarity
        Mean cosines, block influence, angular distances, the sink table, and the layers that each criterion removes.
    """
    _, similarity = collect(model, batches(calibration, tokenizer, batch_size), similarity=True)
    assert similarity is not None
    return similarity
