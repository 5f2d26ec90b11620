"""What GEM is compared with: other terms beside the cross-entropy, calibration after training, trained lenses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gnomon.architectures.gem.method import IGNORED
from gnomon.architectures.gem.reading import reader_for


def cross_entropy(logits: Tensor, targets: Tensor, E: Tensor) -> Tensor:
    """Plain next-token cross-entropy."""
    return F.cross_entropy(logits, targets)


def label_smoothing(logits: Tensor, targets: Tensor, E: Tensor, amount: float = 0.1) -> Tensor:
    """Cross-entropy against (1 - amount) onehot + amount / V (Szegedy et al. 2016)."""
    return F.cross_entropy(logits, targets, label_smoothing=amount)


def confidence_penalty(logits: Tensor, targets: Tensor, E: Tensor, amount: float = 0.1) -> Tensor:
    """Cross-entropy less ``amount`` times the entropy of the prediction (Pereyra et al. 2017)."""
    logp = logits.log_softmax(-1)
    return F.nll_loss(logp, targets) + amount * (logp.exp() * logp).sum(-1).mean()


def z_loss(logits: Tensor, targets: Tensor, E: Tensor, amount: float = 1e-4) -> Tensor:
    """Cross-entropy and ``amount`` times the square of the log-partition (Chowdhery et al. 2022)."""
    return F.cross_entropy(logits, targets) + amount * torch.logsumexp(logits, -1).square().mean()


def cosine_regularisation(logits: Tensor, targets: Tensor, E: Tensor, amount: float = 1.0) -> Tensor:
    """Cross-entropy and ``amount`` times the mean cosine of all pairs of embeddings (Gao et al. 2019, anti-degeneration)."""
    unit = F.normalize(E, dim=1)
    pairs = unit.sum(0).square().sum() - len(E)
    return F.cross_entropy(logits, targets) + amount * pairs / (len(E) * (len(E) - 1))


def chunked_ce(h: Tensor, E: Tensor, targets: Tensor, chunk: int = 1024) -> Tensor:
    """Cross-entropy whose logits are made again on the way back, a chunk of tokens at a time: torch's own checkpointing."""

    def part(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x @ E.T, y, reduction="sum", ignore_index=IGNORED)

    pieces = zip(torch.split(h, chunk), torch.split(targets, chunk), strict=True)
    total = sum((checkpoint(part, x, y, use_reentrant=False) for x, y in pieces), h.new_zeros(()))
    return total / (targets != IGNORED).sum()


def fit_temperature(model: nn.Module, ids: Tensor) -> float:
    """The temperature that minimises the negative log-likelihood of held-out rows (Guo et al. 2017), between 1/4 and 4."""
    reader, ids = reader_for(model, ids)
    logits, targets = [], []
    for batch, streams in reader.walk(ids):
        logits.append(reader.logits(streams[reader.depth][:, :-1].flatten(0, 1)))
        targets.append(batch[:, 1:].flatten())
    scores, target = torch.cat(logits), torch.cat(targets)

    def nll(log_temperature: float) -> float:
        return float(F.cross_entropy(scores / float(np.exp(log_temperature)), target))

    return float(
        np.exp(minimize_scalar(nll, bounds=(-np.log(4), np.log(4)), method="bounded", options={"xatol": 1e-3}).x)
    )


class Translator(nn.Module):
    """x + A x + b, of the residual stream of one layer; the identity at first."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x)


def tuned_lens(model: nn.Module, ids: Tensor, layers: Sequence[int], steps: int = 100, lr: float = 1e-2,
               batch: int = 512, random_state: int = 0) -> dict[int, Callable[[Tensor], Tensor]]:  # fmt: skip
    """An affine map for each layer, trained so that the head says what the model says (Belrose et al. 2023).

    Parameters
    ----------
    model : PreTrainedModel
    ids : LongTensor (N, T)
        Text to train on, which is not that of the evaluation.
    layers : list of int
        0 to L - 1.
    steps, lr, batch : int, float, int
        Of Adam, on KL(final || lens) of random tokens; the rate falls linearly to 0.
    random_state : int

    Returns
    -------
    dict of int to callable
        For ``logit_lens(..., translators=)``.
    """
    reader, ids = reader_for(model, ids)
    layers = [x for x in reader.layers(layers) if x < reader.depth]
    found = [{x: s.flatten(0, 1) for x, s in streams.items()} for _, streams in reader.walk(ids, layers)]
    streams = {x: torch.cat([f[x] for f in found]) for x in found[0]}
    generator = torch.Generator().manual_seed(random_state)
    translators = {x: Translator(reader.parts.hidden_size).to(streams[x]) for x in layers}
    parameters = [p for t in translators.values() for p in t.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=steps)
    for _ in range(steps):
        rows = torch.randint(len(streams[reader.depth]), (batch,), generator=generator)
        with torch.no_grad():
            final = reader.logits(streams[reader.depth][rows]).log_softmax(-1)
        loss = torch.zeros(())
        for x in layers:
            said = reader.logits(reader.parts.norm(translators[x](streams[x][rows]))).log_softmax(-1)
            loss = loss + F.kl_div(said, final, reduction="batchmean", log_target=True)
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.grad = g
        optimiser.step()
        schedule.step()
    return {x: t.requires_grad_(False) for x, t in translators.items()}
