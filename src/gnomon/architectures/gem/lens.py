"""The logit lens: what the model's own norm and head say at every layer, without any training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gnomon.architectures.gem.reading import Translators, reader_for

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 16  # tokens whose trajectory is kept


@dataclass(frozen=True)
class Lens:
    """What is read at each layer.

    Attributes
    ----------
    frame : DataFrame
        A row for each layer: ``lens_nll`` (of the next token, nats), ``lens_kl`` (KL(final || layer), nats), ``agreement``
        (share of tokens whose likeliest next token is already the final one), ``rank`` (mean rank of the final likeliest
        token, 1 is best), ``step_cosine`` (mean cosine of the layer's decoded mixture and that of the layer before it).
    settled : float
        Mean over tokens of the first layer from which the likeliest token never changes.
    trajectories : DataFrame
        For the first tokens: ``position``, ``layer``, ``token`` (decoded where a tokenizer was given), ``probability``, ``step_cosine``.
    """

    frame: pd.DataFrame
    settled: float
    trajectories: pd.DataFrame


def logit_lens(model: nn.Module, ids: Tensor, layers: str | Sequence[int] = "all", tokenizer: Any = None,
               translators: Translators | None = None) -> Lens:  # fmt: skip
    """Apply the final norm and the untuned head to the residual stream of each layer.

    Parameters
    ----------
    model : PreTrainedModel
    ids : LongTensor (N, T)
        Every token but the first of a row is predicted.
    layers : "all" or list of int
        0 (the embeddings) to L, the model's own output.
    tokenizer : PreTrainedTokenizerBase, optional
        To show trajectories as text.
    translators : mapping of int to callable, optional
        Applied to a layer's stream before the norm: a tuned lens.

    Returns
    -------
    Lens

    Raises
    ------
    ValueError
        For a model of fewer than 2 layers, or layers that it does not have.
    """
    import pandas as pd

    reader, ids = reader_for(model, ids, translators)
    if reader.depth < 2:
        raise ValueError(f"model: it has {reader.depth} layer; a lens needs at least 2")
    wanted, E = reader.layers(layers), reader.head.E.detach().float()
    sums = {layer: torch.zeros(5, dtype=torch.float64) for layer in wanted}
    shown: list[dict[str, Any]] = []
    n, settled = 0, 0.0
    for batch, streams in reader.walk(ids, wanted):
        flat = {x: reader.normed(x, s)[:, :-1].flatten(0, 1) for x, s in streams.items()}
        target = batch[:, 1:].flatten()
        for part in reader.chunks(len(target)):
            final = reader.logits(flat[reader.depth][part]).log_softmax(-1)
            top = final.argmax(-1)
            tops, before = [], None
            for layer in wanted:
                logp = final if layer == reader.depth else reader.logits(flat[layer][part]).log_softmax(-1)
                m = logp.exp() @ E
                step = torch.full((len(m),), torch.nan) if before is None else torch.cosine_similarity(m, before).cpu()
                best = logp.argmax(-1)
                found = [-logp.gather(1, target[part, None])[:, 0], (final.exp() * (final - logp)).sum(-1),
                         (best == top).float(), 1.0 + (logp > logp.gather(1, top[:, None])).sum(-1), step.to(m)]  # fmt: skip
                sums[layer] += torch.stack([f.double() for f in found]).sum(1).cpu()
                if n + part.start < SHOWN:
                    shown += [{"position": n + part.start + i, "layer": layer, "token": _shown(tokenizer, int(best[i])),
                               "probability": float(logp[i, best[i]].exp()), "step_cosine": float(step[i])}
                              for i in range(min(SHOWN - n - part.start, len(best)))]  # fmt: skip
                tops.append(best)
                before = m
            settled += float(_settled(torch.stack(tops), wanted).sum())
        n += len(target)
    names = ("lens_nll", "lens_kl", "agreement", "rank", "step_cosine")
    frame = pd.DataFrame([{"layer": x, **dict(zip(names, (sums[x] / n).tolist(), strict=True))} for x in wanted])
    return Lens(frame, settled / n, pd.DataFrame(shown).sort_values(["position", "layer"], ignore_index=True))


def _settled(tops: Tensor, layers: list[int]) -> Tensor:
    """The first layer from which the token never changes, for each column of ``tops`` (layers, tokens)."""
    same = (tops == tops[-1]).long().flip(0).cumprod(0).sum(0)  # layers at the end that agree with the last
    return torch.tensor(layers, device=tops.device)[len(layers) - same]


def _shown(tokenizer: Any, token: int) -> Any:
    return token if tokenizer is None else tokenizer.decode([token])
