"""What a causal language model's states and predictions look like: calibration, anisotropy, the hull. Streaming over tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gnomon import linalg, models
from gnomon.architectures.gem.faithfulness import Faithfulness, causal_faithfulness
from gnomon.architectures.gem.lens import Lens, logit_lens
from gnomon.architectures.gem.method import free_energy
from gnomon.architectures.gem.projection import hull_distance
from gnomon.architectures.gem.reading import Reader, reader_for

if TYPE_CHECKING:
    import pandas as pd

BINS = 15
KEPT = 1024  # states of a layer that pairs are drawn from


# --- uncertainty ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Uncertainty:
    """How well the probabilities of a model are calibrated.

    Attributes
    ----------
    summary : dict of str to float
        ``nll`` and ``perplexity``; ``accuracy``; ``brier`` (the sum over tokens, 0 to 2); ``ece`` of the likeliest token over
        15 bins of equal mass; ``entropy_error`` (the correlation of entropy and error); ``aurc`` (the mean error rate
        over all coverages when the least confident are left out first: 0 to 1).
    reliability : DataFrame
        A row for each bin: ``confidence``, ``accuracy``, ``count``.
    """

    summary: dict[str, float]
    reliability: pd.DataFrame


def uncertainty(model: nn.Module, ids: Tensor, temperature: float = 1.0) -> Uncertainty:
    """Scores of the next-token probabilities over the rows of ``ids``.

    Parameters
    ----------
    model : PreTrainedModel
    ids : LongTensor (N, T)
        Every token but the first of a row is predicted.
    temperature : float
        The logits are divided by it.

    Returns
    -------
    Uncertainty
    """
    if not temperature > 0:
        raise ValueError(f"temperature: got {temperature}; expected a number > 0")
    reader, ids = reader_for(model, ids)
    columns: list[Tensor] = []
    for batch, streams in reader.walk(ids):
        flat, target = streams[reader.depth][:, :-1].flatten(0, 1), batch[:, 1:].flatten()
        for part in reader.chunks(len(flat)):
            logp = (reader.logits(flat[part]) / temperature).log_softmax(-1)
            p = logp.exp()
            own = logp.gather(1, target[part, None])[:, 0]
            top, best = p.max(-1)
            brier = p.square().sum(-1) - 2 * own.exp() + 1
            entropy = -(p * logp).sum(-1)
            columns.append(torch.stack([-own, top, (best == target[part]).float(), brier, entropy]).double().cpu())
    return scored(*torch.cat(columns, 1).numpy())


def scored(nll: Any, confidence: Any, correct: Any, brier: Any, entropy: Any) -> Uncertainty:
    """The summary of per-token scores."""
    import pandas as pd

    order = np.argsort(-confidence, kind="stable")
    bins = [b for b in np.array_split(order[::-1], BINS) if len(b)]
    table = pd.DataFrame(
        {"confidence": [confidence[b].mean() for b in bins], "accuracy": [correct[b].mean() for b in bins],
         "count": [len(b) for b in bins]}
    )  # fmt: skip
    risk = np.cumsum(1 - correct[order]) / np.arange(1, len(order) + 1)
    varies = correct.std() > 0 and entropy.std() > 0
    summary = {
        "nll": nll.mean(),
        "perplexity": np.exp(nll.mean()),
        "accuracy": correct.mean(),
        "brier": brier.mean(),
        "ece": (table["count"] * (table["confidence"] - table["accuracy"]).abs()).sum() / len(nll),
        "aurc": risk.mean(),
        "entropy_error": np.corrcoef(entropy, 1 - correct)[0, 1] if varies else float("nan"),
    }
    return Uncertainty({name: float(value) for name, value in summary.items()}, table)


# --- anisotropy -------------------------------------------------------------------------------------------------------


def anisotropy(model: nn.Module, ids: Tensor, layers: str | Sequence[int] = "all", pairs: int = 10_000,
               random_state: int = 0) -> pd.DataFrame:  # fmt: skip
    """How narrow a cone the states of each layer fill; of the last layer, the states that enter the head.

    Parameters
    ----------
    model : PreTrainedModel
    ids : LongTensor (N, T)
    layers : "all" or list of int
        0 (the embeddings) to L.
    pairs : int
        Random pairs of different states, of at most 1024 that are kept.
    random_state : int

    Returns
    -------
    DataFrame
        A row for each layer: ``cosine`` (mean over the pairs), ``centred_cosine`` (after the mean state is removed),
        ``top1`` and ``top10`` (share of the variance in so many principal components), ``effective_rank`` (exp of the
        entropy of the variance shares) and ``participation`` ((sum of variances)² / sum of squares / d: 1 when isotropic).
    """
    import pandas as pd

    if pairs < 1:
        raise ValueError(f"pairs: got {pairs}; expected at least 1")
    reader, ids = reader_for(model, ids)
    wanted, width = reader.layers(layers), reader.parts.hidden_size
    moments = {layer: linalg.Moments(width, products="float32") for layer in wanted}
    kept: dict[int, list[Tensor]] = {layer: [] for layer in wanted}
    generator = torch.Generator().manual_seed(random_state)
    chosen = torch.randperm(ids.numel(), generator=generator)[:KEPT].sort().values
    start = 0
    for batch, streams in reader.walk(ids, wanted):
        mine = chosen[(chosen >= start) & (chosen < start + batch.numel())] - start
        start += batch.numel()
        for layer in wanted:
            flat = streams[layer].flatten(0, 1).float().cpu()
            moments[layer].update(flat)
            kept[layer].append(flat[mine])
    a = torch.randint(len(chosen), (pairs,), generator=generator)
    b = (a + torch.randint(1, max(2, len(chosen)), (pairs,), generator=generator)) % len(chosen)
    rows = []
    for layer in wanted:
        found = moments[layer]
        mean = found.x / found.n
        variance = torch.linalg.eigvalsh(found.xx / found.n - torch.outer(mean, mean)).clamp_min(0).flip(0)
        total = variance.sum().clamp_min(torch.finfo(torch.float64).tiny)
        states = torch.cat(kept[layer]).double()
        cosines = [torch.cosine_similarity(s[a], s[b], dim=-1).mean().item() for s in (states, states - mean)]
        rows.append({"layer": layer, "cosine": cosines[0], "centred_cosine": cosines[1],
                     "top1": float(variance[0] / total), "top10": float(variance[:10].sum() / total),
                     "effective_rank": linalg.effective_rank(variance),
                     "participation": float(total**2 / variance.square().sum().clamp_min(1e-300) / width)})  # fmt: skip
    return pd.DataFrame(rows)


# --- the hull ---------------------------------------------------------------------------------------------------------


def hull(model: nn.Module, ids: Tensor, layers: str | Sequence[int] = "all", points: int = 0,
         used: Tensor | None = None, max_iter: int = 500, random_state: int = 0) -> pd.DataFrame:  # fmt: skip
    """How far the states of each layer are from their own mixtures, and from the hull of the embeddings.

    Parameters
    ----------
    model : PreTrainedModel
    ids : LongTensor (N, T)
    layers : "all" or list of int
    points : int
        States of each layer that are projected on the hull exactly (0: none); this costs up to ``max_iter`` products of
        ``points`` x V x d a layer.
    used : LongTensor (k,), optional
        Tokens whose embeddings span the hull: leave out padding and what the model never saw. Default: all.
    max_iter : int
        Of the projection; ``gap`` says what is left.
    random_state : int
        Draws the points.

    Returns
    -------
    DataFrame
        A row for each layer: ``ratio`` (E||h - m||² / E||h||²), ``cosine_hm`` (mean cosine of h and m), ``energy`` (mean
        of F(h) / mean||e||², which no change of unit moves), ``norm`` (mean ||h|| over root mean square ||e||); with
        points also ``distance`` and ``residual`` (means, in units of the root mean square ||e||), ``gap`` (the largest,
        squared units) and ``entropy`` (of the nearest point's weights, nats).
    """
    import pandas as pd

    reader, ids = reader_for(model, ids)
    wanted, E = reader.layers(layers), reader.head.E.detach().float()
    beta, scale = reader.head.beta_value, float(E.square().sum(1).mean())
    sums = {layer: torch.zeros(5, dtype=torch.float64) for layer in wanted}
    kept: dict[int, list[Tensor]] = {layer: [] for layer in wanted}
    generator = torch.Generator().manual_seed(random_state)
    chosen = torch.randperm(ids.numel(), generator=generator)[:points].sort().values
    start = 0
    for batch, streams in reader.walk(ids, wanted):
        mine = (chosen[(chosen >= start) & (chosen < start + batch.numel())] - start).to(batch.device)
        start += batch.numel()
        for layer in wanted:
            normed = reader.normed(layer, streams[layer]).flatten(0, 1)
            h = reader.head.states(normed).float()
            kept[layer].append(h[mine])
            for part in reader.chunks(len(h)):
                x = h[part]
                m = reader.logits(normed[part]).softmax(-1) @ E
                cosine = torch.cosine_similarity(x, m, dim=-1)
                found = [(x - m).square().sum(1), x.square().sum(1), cosine, free_energy(x, E, beta), x.norm(dim=1)]
                sums[layer] += torch.stack(found).double().sum(1).cpu()
    rows = []
    for layer in wanted:
        residual, square, cosine, energy, norm = (sums[layer] / ids.numel()).tolist()
        row = {"layer": layer, "ratio": residual / square, "cosine_hm": cosine, "energy": energy / scale,
               "norm": norm / scale**0.5}  # fmt: skip
        rows.append(row | (_projected(reader, torch.cat(kept[layer]), used, max_iter, scale) if points else {}))
    return pd.DataFrame(rows)


def _projected(reader: Reader, h: Tensor, used: Tensor | None, max_iter: int, scale: float) -> dict[str, float]:
    E = reader.head.E.detach().float()
    m = torch.softmax(reader.head.beta_value * (h @ E.T), -1) @ E
    found = hull_distance(h, E if used is None else E[used.to(E.device)], tol=1e-6, max_iter=max_iter)
    return {"distance": float(found.distance.mean()) / scale**0.5, "residual": float((h - m).norm(dim=1).mean()) / scale**0.5,
            "gap": float(found.gap.max()) / scale, "entropy": float(found.entropy.mean())}  # fmt: skip


# --- all of them ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Diagnostics:
    """The report of :func:`gem_diagnostics`.

    Attributes
    ----------
    uncertainty : Uncertainty
    anisotropy, hull : DataFrame
        A row for each layer.
    lens : Lens
    faithfulness : Faithfulness or None
    """

    uncertainty: Uncertainty
    anisotropy: pd.DataFrame
    hull: pd.DataFrame
    lens: Lens
    faithfulness: Faithfulness | None

    def to_frame(self) -> pd.DataFrame:
        """All that is measured by layer, a row for each."""
        return self.anisotropy.merge(self.hull, on="layer").merge(self.lens.frame, on="layer")


def gem_diagnostics(model: str | nn.Module, texts: str | Sequence[str] | Tensor, layers: str | Sequence[int] = "all",
                    tokenizer: Any = None, length: int = 64, tokens: int = 512, points: int = 16,
                    positions: int = 32, random_state: int = 0) -> Diagnostics:  # fmt: skip
    """Calibration, anisotropy, hull, logit lens and causal faithfulness of a causal language model.

    Parameters
    ----------
    model : str or PreTrainedModel
        A reference (see ``gnomon.models``: a local folder, "embedded:smollm2", a hub name), or a model.
    texts : str, list of str, or LongTensor (N, T)
        What is read; text is cut into windows.
    layers : "all" or list of int
    tokenizer : PreTrainedTokenizerBase, optional
        Needed where a model and text are given.
    length : int
        Tokens in a window.
    tokens : int
        Tokens read, at most.
    points : int
        States of the last layer that are projected on the hull exactly.
    positions : int
        At which causal faithfulness is measured, at the middle layer; 0 leaves it out.
    random_state : int

    Returns
    -------
    Diagnostics

    Raises
    ------
    ValueError
        For a model of fewer than 2 layers, or text that is shorter than one window.
    """
    used = None
    if isinstance(model, str):
        lm = models.load(model)
        model, tokenizer = lm.model, lm.tokenizer
    if isinstance(texts, Tensor):
        ids = texts
    elif tokenizer is None:
        raise ValueError("tokenizer: text is given, so the model's tokenizer is needed")
    else:
        ids = models.encode(tokenizer, texts, length)
        used = torch.tensor([v for k, v in tokenizer.get_vocab().items() if v not in set(tokenizer.all_special_ids)])
        used = used[used < Reader(model).head.E.shape[0]]
    rows = max(1, tokens // ids.shape[1])
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(random_state))
    ids = ids[order[:rows]]
    lens = logit_lens(model, ids, layers, tokenizer=tokenizer)
    faithful = None
    if positions:
        short = max(2, min(32, ids.shape[1]))
        faithful = causal_faithfulness(model, ids[:, :short][:positions], random_state=random_state)
    return Diagnostics(
        uncertainty(model, ids),
        anisotropy(model, ids, layers, random_state=random_state),
        _hull_of_all(model, ids, layers, points, used, random_state),
        lens,
        faithful,
    )


def _hull_of_all(model: nn.Module, ids: Tensor, layers: str | Sequence[int], points: int, used: Tensor | None,
                 random_state: int) -> pd.DataFrame:  # fmt: skip
    """Residuals of all layers, and the exact distance of the last: hundreds of products with E."""
    frame, last = hull(model, ids, layers), Reader(model).depth
    if not points or last not in set(frame["layer"]):
        return frame
    exact = hull(model, ids, [last], points, used, max_iter=200, random_state=random_state)
    return frame.merge(exact[["layer", "distance", "residual", "gap", "entropy"]], on="layer", how="left")
