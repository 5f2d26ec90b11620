"""Does the model act on what the lens reads at a layer? Three interventions on its residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gnomon import activations, stats
from gnomon.architectures.gem.reading import Reader, reader_for

if TYPE_CHECKING:
    import pandas as pd

FREQUENT = 100  # tokens that a swap puts in the top token's place are drawn from so many


@dataclass(frozen=True)
class Faithfulness:
    """What the interventions give; larger is more faithful.

    Attributes
    ----------
    ablation : float
        Nats by which log p of the final token falls when the span of the lens's top tokens is removed, less the fall
        when a random subspace of as many dimensions loses as much norm.
    swap : float
        Spearman correlation, over positions, of the change in the logit difference b - a that the lens predicts for a push
        from token a to token b, and the change that the model shows.
    response : float
        Mean cosine of the centred changes of log-probabilities of lens and model under random pushes.
    layer : int
    rows : DataFrame
        A row for each position: ``ablation``, ``predicted``, ``realised``, ``response``.
    """

    ablation: float
    swap: float
    response: float
    layer: int
    rows: pd.DataFrame


def causal_faithfulness(model: nn.Module, ids: Tensor, layer: int | None = None, k: int = 5, alpha: float = 0.25,
                        draws: int = 3, random_state: int = 0) -> Faithfulness:  # fmt: skip
    """Intervene on the residual stream of a layer at the last position of each row.

    Parameters
    ----------
    model : PreTrainedModel
    ids : LongTensor (N, T)
        One position a row: its last.
    layer : int, optional
        1 to L - 1: the stream after so many blocks. Default: the middle.
    k : int
        Top tokens of the lens whose span is removed.
    alpha : float
        Size of a push, in norms of the stream.
    draws : int
        Random subspaces, and random pushes, of each position.
    random_state : int

    Returns
    -------
    Faithfulness

    Raises
    ------
    ValueError
        For a model of fewer than 2 layers, or values out of range.
    """
    import pandas as pd

    reader, ids = reader_for(model, ids)
    if reader.depth < 2:
        raise ValueError(f"model: it has {reader.depth} layer; a lens needs at least 2")
    layer = reader.depth // 2 if layer is None else layer
    if not 1 <= layer < reader.depth:
        raise ValueError(f"layer: got {layer}; expected one in 1..{reader.depth - 1}")
    width = reader.parts.hidden_size
    if not 1 <= k < width or not alpha > 0 or draws < 1:
        raise ValueError(
            f"k, alpha, draws: got {k}, {alpha}, {draws}; expected 1 <= k < {width}, alpha > 0, draws >= 1"
        )
    site = _Site(reader, ids, layer)
    h, E = site.stream, reader.head.E.detach().to(site.stream)
    size = h.norm(dim=1, keepdim=True)
    generator = torch.Generator().manual_seed(random_state)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(h)

    lens, final = site.lens(h), site.model(h)
    top = lens.topk(k).indices
    basis = torch.linalg.qr(E[top].transpose(1, 2)).Q  # (N, d, k)
    removed = _within(basis, h)
    said = final.argmax(1, keepdim=True)
    falls = [(final - site.model(h - removed)).gather(1, said)[:, 0]]
    for _ in range(draws):
        other = _within(torch.linalg.qr(noise(len(h), width, k)).Q, h)
        other = other * (removed.norm(dim=1, keepdim=True) / other.norm(dim=1, keepdim=True).clamp_min(1e-12))
        falls.append((final - site.model(h - other)).gather(1, said)[:, 0])
    ablation = falls[0] - torch.stack(falls[1:]).mean(0)

    a = top[:, :1]
    frequent = torch.bincount(ids.flatten(), minlength=len(E)).argsort(descending=True, stable=True)[:FREQUENT]
    b = frequent[torch.randint(len(frequent), (len(h),), generator=generator)].to(a.device)[:, None]
    b = torch.where(b == a, frequent[0].to(b), b)
    b = torch.where(b == a, frequent[min(1, len(frequent) - 1)].to(b), b)
    push = (E[b] - E[a])[:, 0]
    pushed = h + alpha * size * push / push.norm(dim=1, keepdim=True).clamp_min(1e-12)
    predicted, realised = ((now - was).gather(1, b) - (now - was).gather(1, a)
                           for now, was in ((site.lens(pushed), lens), (site.model(pushed), final)))  # fmt: skip

    cosines = []
    for _ in range(draws):
        push = noise(len(h), width)
        pushed = h + alpha * size * push / push.norm(dim=1, keepdim=True)
        said_so, done = (c - c.mean(1, keepdim=True) for c in (site.lens(pushed) - lens, site.model(pushed) - final))
        cosines.append(torch.cosine_similarity(said_so, done, dim=1))
    response = torch.stack(cosines).mean(0)

    columns = {"ablation": ablation, "predicted": predicted[:, 0], "realised": realised[:, 0], "response": response}
    rows = pd.DataFrame({name: value.double().cpu().numpy() for name, value in columns.items()})
    swap = stats.spearman(rows["predicted"], rows["realised"]) if len(rows) > 2 else float("nan")
    return Faithfulness(float(rows["ablation"].mean()), float(swap), float(rows["response"].mean()), layer, rows)


def _within(basis: Tensor, h: Tensor) -> Tensor:
    """The part of each row of h in the span of its basis (N, d, k)."""
    return torch.einsum("ndk,nk->nd", basis, torch.einsum("ndk,nd->nk", basis, h))


class _Site:
    """The stream of one layer at the last position of each row, and what lens and model say of changes to it."""

    def __init__(self, reader: Reader, ids: Tensor, layer: int):
        self.reader, self.ids, self.layer = reader, ids, layer
        self.stream = torch.cat([s[layer][:, -1] for _, s in reader.walk(ids, [layer])])

    def lens(self, h: Tensor) -> Tensor:
        """Log-probabilities (N, V) that the untuned head reads."""
        with torch.no_grad():
            return self.reader.logits(self.reader.normed(self.layer, h)).log_softmax(-1)

    def model(self, h: Tensor) -> Tensor:
        """Log-probabilities (N, V) of the model when the stream there is ``h``."""
        found, at = [], 0
        block = self.reader.parts.blocks[self.layer]

        def put(value: Tensor) -> Tensor:
            out = value.clone()
            out[:, -1] = h[at : at + len(value)].to(value)
            return out

        with activations.edit(self.reader.model, {block: put}, inputs=True):
            for batch, streams in self.reader.walk(self.ids):
                found.append(self.reader.logits(streams[self.reader.depth][:, -1]).log_softmax(-1))
                at += len(batch)
        return torch.cat(found)
