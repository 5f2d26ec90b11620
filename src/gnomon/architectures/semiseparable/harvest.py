"""Log-decays of real layers: of a small language model trained here, or of a person's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon.architectures.semiseparable.mixer import SemiseparableMixer

__all__ = ["SmallLM", "harvest", "train"]


class SmallLM(nn.Module):
    """A byte-level language model of :class:`SemiseparableMixer` layers, each behind an RMS norm and a residual."""

    def __init__(self, width: int = 128, layers: int = 2, d_state: int = 32, headdim: int = 32):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))
        self.mixers = nn.ModuleList(SemiseparableMixer(width, d_state, headdim) for _ in range(layers))
        self.norm = nn.RMSNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [b, T, 256] of the next byte, the head tied to the embedding."""
        hidden = self.embedding(tokens)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            hidden = hidden + mixer(norm(hidden))
        return F.linear(self.norm(hidden), self.embedding.weight) / hidden.shape[-1] ** 0.5


def train(text: bytes, steps: int, *, batch: int = 8, length: int = 256, lr: float = 4e-3, seed: int = 0) -> SmallLM:
    """Train a :class:`SmallLM` on random windows of a text (AdamW, linear warm-up, cosine decay)."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = SmallLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    warm_up = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / warm_up) * 0.5 * (1 + np.cos(np.pi * s / steps))
    )
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    for _ in range(steps):
        starts = torch.randint(len(data) - length, (batch,), generator=generator)
        windows = torch.stack([data[s : s + length + 1] for s in starts.tolist()])
        loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def harvest(model: nn.Module, tokens: Tensor) -> tuple[NDArray[np.float32], float]:
    """The log-decays of every mixer of a model on given tokens, and its loss there.

    Parameters
    ----------
    model : nn.Module
        Holds :class:`SemiseparableMixer` layers; gives logits [b, T, V] or an output that has them.
    tokens : int Tensor, shape [b, T]

    Returns
    -------
    decays : array, shape [layers, b, heads, T]
    nll : float
        Mean negative log-likelihood of each next token, in nats.
    """
    found: list[Tensor] = []
    hooks = [
        m.register_forward_pre_hook(lambda mixer, args: found.append(mixer.log_decays(args[0]).transpose(1, 2)))
        for m in model.modules() if isinstance(m, SemiseparableMixer)
    ]  # fmt: skip
    try:
        out = model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    logits = out if isinstance(out, Tensor) else out.logits
    nll = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten())
    return torch.stack(found).float().numpy(), float(nll)


def windows(data: Sequence[int] | bytes, count: int, length: int) -> Tensor:
    """``count`` windows of ``length`` tokens [count, length], evenly spread over a text.

    Raises
    ------
    ValueError
        If the text is shorter than one window.
    """
    if len(data) < length:
        raise ValueError(f"the text has {len(data)} tokens, fewer than one window of {length}")
    starts = np.linspace(0, len(data) - length, count).astype(int)
    return torch.tensor(np.stack([np.asarray(list(data[s : s + length])) for s in starts]), dtype=torch.long)
