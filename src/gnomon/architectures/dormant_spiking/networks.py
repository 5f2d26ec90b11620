"""Spiking classifiers, and how they are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gnomon.architectures.dormant_spiking.functional import reset
from gnomon.architectures.dormant_spiking.ledger import relative_energy
from gnomon.architectures.dormant_spiking.neuron import DormantLIF
from gnomon.architectures.dormant_spiking.recording import Recording, Shortcut


class OverTime(nn.Module):
    """A layer for images applied to every step: [T, B, ...] as [T B, ...] and back."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])  # type: ignore[no-any-return]


class NormLinear(nn.Linear):
    """A linear layer without bias and batch normalisation over samples and steps: [T, B, inputs] to [T, B, outputs]."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__(into, out, bias=False)
        self.norm = nn.BatchNorm1d(out)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return self.norm(y.flatten(0, -2)).view(y.shape)  # type: ignore[no-any-return]

    def folded(self) -> nn.Linear:
        """The plain linear layer that this one is in evaluation."""
        norm = self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        plain = nn.Linear(self.in_features, self.out_features)
        plain.weight = nn.Parameter((self.weight * scale[:, None]).detach())
        plain.bias = nn.Parameter((norm.bias - norm.running_mean * scale).detach())
        return plain


class Residual(nn.Module):
    """Two convolutions with neurons, the second one's current plus that of a shortcut from the block's input."""

    def __init__(self, into: int, out: int, neuron: Callable[[], nn.Module], stride: int = 2) -> None:
        super().__init__()
        self.first = OverTime(_conv(into, out, 3, stride))
        self.fire = neuron()
        self.second = OverTime(_conv(out, out, 3, 1))
        same = into == out and stride == 1
        self.shortcut: nn.Module = Shortcut() if same else OverTime(_conv(into, out, 1, stride))
        self.out = neuron()

    def forward(self, x: Tensor) -> Tensor:
        current = self.second(self.fire(self.first(x)))
        return self.out(current + self.shortcut(x))  # type: ignore[no-any-return]


def _conv(into: int, out: int, size: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(into, out, size, stride, size // 2, bias=False), nn.BatchNorm2d(out))


class SpikingClassifier(nn.Module):
    """A network over time as a classifier: encodes, resets, runs, and averages the outputs of all steps.

    Parameters
    ----------
    body : Module
        Takes [T, B, ...], gives [T, B, classes].
    steps : int or None
        Direct coding: the input [B, ...] is given in each of so many steps. None: the input is a sequence [B, T, ...]
        (events).
    """

    def __init__(self, body: nn.Module, steps: int | None = 6) -> None:
        super().__init__()
        if steps is not None and steps < 1:
            raise ValueError(f"steps: got {steps}; expected a positive number, or None for sequences")
        self.body, self.steps = body, steps

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes]."""
        reset(self.body)
        sequence = x.transpose(0, 1).contiguous() if self.steps is None else x.expand(self.steps, *x.shape)
        return self.body(sequence).mean(0)  # type: ignore[no-any-return]


def mlp(sizes: list[int], **neuron: Any) -> nn.Sequential:
    """Linear layers, batch normalisation and dormant neurons by turns: [T, B, sizes[0]] to [T, B, sizes[-1]].

    Parameters
    ----------
    sizes : list of int
        Inputs, hidden layers, outputs.
    **neuron
        Arguments of :class:`DormantLIF`.
    """
    if len(sizes) < 3 or min(sizes) < 1:
        raise ValueError(f"sizes: got {sizes}; expected inputs, one hidden layer or more, and outputs, all positive")
    layers: list[nn.Module] = [nn.Flatten(2)]
    for into, out in pairwise(sizes[:-1]):
        layers += [NormLinear(into, out), DormantLIF(**neuron)]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def residual(
    image: tuple[int, int, int], classes: int, widths: tuple[int, ...] = (16, 32, 64), **neuron: Any
) -> nn.Sequential:
    """A convolution and residual blocks that halve the image: [T, B, C, H, W] to [T, B, classes].

    Parameters
    ----------
    image : (int, int, int)
        Channels, height, width.
    classes : int
        Outputs.
    widths : tuple of int
        Channels of the first convolution and of each block.
    **neuron
        Arguments of :class:`DormantLIF`.
    """
    channels, height, width = image

    def make() -> nn.Module:
        return DormantLIF(**neuron)

    layers: list[nn.Module] = [OverTime(_conv(channels, widths[0], 3, 1)), make()]
    for into, out in pairwise(widths):
        layers.append(Residual(into, out, make))
        height, width = (height + 1) // 2, (width + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(2), nn.Linear(widths[-1] * height * width, classes))


# --- training --------------------------------------------------------------------------------------------------------


def batches(
    X: Tensor, y: Tensor | None = None, size: int = 64, generator: torch.Generator | None = None
) -> Iterator[Any]:
    """Batches of (X, y), shuffled where a generator is given; of X alone without y."""
    order = torch.arange(len(X)) if generator is None else torch.randperm(len(X), generator=generator)
    for chosen in order.split(size):
        yield X[chosen] if y is None else (X[chosen], y[chosen])


def fit(
    net: nn.Module,
    X: Tensor,
    y: Tensor,
    *,
    epochs: int = 25,
    lr: float = 1e-3,
    batch: int = 64,
    energy: float = 0.0,
    rate: float = 0.0,
    anneal: int = 0,
    seed: int = 0,
    after_step: Callable[[], None] | None = None,
) -> nn.Module:
    """Train a classifier through time with AdamW; loss = cross-entropy + energy x relative energy + rate x firing rate.

    Parameters
    ----------
    net : Module
        Gives logits [B, classes]; changed in place.
    X, y : Tensor
        Inputs and class numbers.
    epochs, lr, batch : int, float, int
        Of AdamW.
    energy : float
        Weight mu of :func:`relative_energy`.
    rate : float
        Weight of the mean firing rate of all neurons.
    anneal : int
        Epochs in which the dormancy thresholds go from -1 to their values (all at once to them by default).
    seed : int
        Of the shuffling.
    after_step : callable, optional
        Called after each step (a pruning mask is put on again).

    Returns
    -------
    Module
        ``net``, in evaluation mode.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    goals = [(m, m.v_dormant.detach().clone()) for m in net.modules() if isinstance(m, DormantLIF) and m.gated]
    steps = min(anneal, epochs - 1)  # a short training reaches the goal too, in its last epoch
    net.train()
    for epoch in range(epochs):
        for neuron, goal in goals if epoch <= steps and anneal else ():
            share = epoch / steps if steps else 1.0
            neuron.set_v_dormant(goal.clamp_max(-1.0) * (1 - share) + goal * share)
        for inputs, labels in batches(X, y, batch, generator):
            optimizer.zero_grad(set_to_none=True)
            loss = _loss(net, inputs, labels, energy, rate)
            loss.backward()
            optimizer.step()
            if after_step is not None:
                after_step()
    reset(net)
    return net.eval()


def _loss(net: nn.Module, inputs: Tensor, labels: Tensor, energy: float, rate: float) -> Tensor:
    if not energy and not rate:
        return F.cross_entropy(net(inputs), labels)
    with Recording(net) as seen:
        loss = F.cross_entropy(net(inputs), labels)
    if energy:
        loss = loss + energy * relative_energy(seen)
    if rate:
        layers = list(seen.neurons.values())
        loss = loss + rate * sum(n.spikes.sum() for n in layers) / sum(n.spikes.numel() for n in layers)
    return loss


@torch.no_grad()
def predict(net: nn.Module, X: Tensor, batch: int = 512) -> Tensor:
    """Class numbers of each input."""
    net.eval()
    return torch.cat([net(x).argmax(1) for x in batches(X, size=batch)])
