"""One pass of a model over tokens, with the residual stream of every layer and what the head reads there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gnomon import activations, models
from gnomon.architectures.gem.head import Head, head_of

BATCH_TOKENS = 2048
LOGITS = 2**24  # held at once
Translators = Mapping[int, Callable[[Tensor], Tensor]]


@dataclass(eq=False)
class Reader:
    """A model, its head, and how the stream of a layer becomes what the head takes: layer l is the stream after l blocks.

    Attributes
    ----------
    model : PreTrainedModel
    translators : mapping of int to callable
        Applied to the stream of a layer before the final norm (a tuned lens); none for the logit lens.
    """

    model: nn.Module
    translators: Translators = field(default_factory=dict)
    parts: models.Structure = field(init=False)
    head: Head = field(init=False)

    def __post_init__(self) -> None:
        self.parts, self.head = models.structure(self.model), head_of(self.model)

    @property
    def depth(self) -> int:
        """L, the number of blocks."""
        return len(self.parts.blocks)

    def layers(self, asked: str | Sequence[int]) -> list[int]:
        """Layer numbers from "all" (0 to L) or a list.

        Raises
        ------
        ValueError
            For layers that the model does not have.
        """
        if isinstance(asked, str):
            if asked != "all":
                raise ValueError(f"layers: got {asked!r}; expected 'all' or a list of layers in 0..{self.depth}")
            return list(range(self.depth + 1))
        found = sorted({int(x) for x in asked})
        if not found or found[0] < 0 or found[-1] > self.depth:
            raise ValueError(f"layers: got {list(asked)}; expected layers in 0..{self.depth}")
        return found

    def normed(self, layer: int, stream: Tensor) -> Tensor:
        """What enters the head, from the stream of a layer (of the last, from the final norm's output)."""
        if layer == self.depth:
            return stream
        translate = self.translators.get(layer)
        out: Tensor = self.parts.norm(stream if translate is None else translate(stream))
        return out

    def walk(self, ids: Tensor, layers: Sequence[int] = ()) -> Iterator[tuple[Tensor, dict[int, Tensor]]]:
        """For each batch of rows: the tokens (B, T), and the stream (B, T, d) of each layer with that of the last."""
        device = self.parts.embed.weight.device
        with torch.no_grad():
            for batch in torch.split(ids, max(1, BATCH_TOKENS // ids.shape[1])):
                found: dict[int, Tensor] = {}

                def keep(layer: int, found: dict[int, Tensor] = found) -> Any:
                    return lambda value: found.__setitem__(layer, value)

                blocks: dict[str | nn.Module, Any] = {self.parts.blocks[x]: keep(x) for x in layers if x < self.depth}
                with activations.capture(self.model, blocks, inputs=True):
                    found[self.depth] = self.parts.base(input_ids=batch.to(device), use_cache=False).last_hidden_state
                yield batch.to(device), found

    def chunks(self, n: int) -> Iterator[slice]:
        """Slices of n rows whose logits are bounded."""
        rows = max(1, LOGITS // self.head.E.shape[0])
        yield from (slice(at, at + rows) for at in range(0, n, rows))

    def logits(self, normed: Tensor) -> Tensor:
        """The model's own logits in float32."""
        return self.head.logits(normed).float()


def check_ids(ids: Tensor, vocabulary: int) -> Tensor:
    """Integer tokens (N, T), T >= 2, within the vocabulary."""
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens: expected integers (N, T), got {getattr(ids, 'dtype', type(ids).__name__)} of shape "
                         f"{tuple(getattr(ids, 'shape', ()))}")  # fmt: skip
    if len(ids) == 0 or ids.shape[1] < 2:
        raise ValueError(f"tokens: expected at least one row of 2 tokens, got shape {tuple(ids.shape)}")
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise ValueError(f"tokens: expected values in 0..{vocabulary - 1}, got {int(ids.min())}..{int(ids.max())}")
    return ids.long()


def reader_for(model: nn.Module, ids: Tensor, translators: Translators | None = None) -> tuple[Reader, Tensor]:
    """A reader with the tokens checked."""
    reader = Reader(model, translators or {})
    return reader, check_ids(ids, reader.parts.embed.num_embeddings)
