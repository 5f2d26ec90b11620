"""What the dormant neuron is compared with: the plain neuron, a random gate, pruning, thresholds, a network without spikes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gnomon.architectures.dormant_spiking.functional import State, Trace
from gnomon.architectures.dormant_spiking.networks import NormLinear
from gnomon.architectures.dormant_spiking.neuron import DormantLIF
from gnomon.architectures.dormant_spiking.surrogate import step


def lif(current: Tensor, tau: float = 2.0, v_threshold: float = 1.0, soft: bool = False, surrogate: str = "atan",
        alpha: float = 2.0) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Spikes and membranes of plain leaky integrate-and-fire neurons, as the equations read."""
    v = torch.zeros_like(current[0])
    spikes, membranes = [], []
    for x in current:
        h = (1 - 1 / tau) * v + x
        s = step(h - v_threshold, surrogate, alpha)
        v = h - v_threshold * s if soft else h * (1 - s)
        spikes.append(s)
        membranes.append(v)
    return torch.stack(spikes), torch.stack(membranes)


class RandomGateLIF(DormantLIF):
    """Neurons that sleep by chance: awake in each step with the probability of that step, whatever their state.

    Parameters
    ----------
    rates : list of float
        Probability of being awake in each step.
    seed : int
        Of the chance.
    **neuron
        Arguments of :class:`DormantLIF`.
    """

    def __init__(self, rates: list[float], seed: int = 0, **neuron: Any) -> None:
        super().__init__(**{**neuron, "v_dormant": -math.inf, "learn_v_dormant": False})
        self.rates, self.seed = rates, seed
        self._drawn = 0

    @property
    def gated(self) -> bool:
        return True

    def forward(self, current: Tensor) -> Tensor:
        if len(current) != len(self.rates):
            raise ValueError(f"current: got {len(current)} steps; this layer has the rates of {len(self.rates)}")
        generator = torch.Generator().manual_seed(hash((self.seed, self._drawn)) % 2**63)
        self._drawn += self.training  # anew in each training step, the same in every evaluation
        leak, v = 1 - 1 / self.tau, torch.zeros_like(current[0])
        kept: tuple[list[Tensor], ...] = ([], [], [])
        for x, rate in zip(current, self.rates, strict=True):
            gate = (torch.rand(x.shape, generator=generator) < rate).to(x)
            h = leak * v + gate * x
            s = gate * step(h - self.v_threshold, self.surrogate, self.alpha)
            v = h * (1 - s) if self.v_reset is not None else h - self.v_threshold * s
            for values, value in zip(kept, (s, gate, v), strict=True):
                values.append(value)
        spikes, gates, membranes = (torch.stack(values) for values in kept)
        return self._done(Trace(spikes, gates, membranes, State(v, None)))


def random_gate(net: nn.Module, rates: dict[str, list[float]], seed: int = 0) -> nn.Module:
    """A copy of a network whose neurons sleep by chance, each layer at its own rates."""
    new = copy.deepcopy(net)
    for position, (name, module) in enumerate(list(new.named_modules())):
        if isinstance(module, DormantLIF):
            same = {k: getattr(module, k) for k in ("v_threshold", "v_reset", "surrogate", "alpha")}
            neuron = RandomGateLIF(rates[name], 1000 * seed + position, tau=float(module.tau), **same).train(
                module.training
            )
            parent, _, child = name.rpartition(".")
            setattr(new.get_submodule(parent), child, neuron)
    return new


class AdaptiveThresholdLIF(nn.Module):
    """Plain neurons with a learned firing threshold, one a layer: the current is divided by it.

    A penalty on the firing rate raises it where spikes are not worth their cost.
    """

    def __init__(self, **neuron: Any) -> None:
        super().__init__()
        self.log_threshold = nn.Parameter(torch.zeros(()))
        self.neuron = DormantLIF(**{**neuron, "v_dormant": -math.inf, "learn_v_dormant": False})

    def forward(self, current: Tensor) -> Tensor:
        return self.neuron(current / self.log_threshold.exp())  # type: ignore[no-any-return]


def adaptive_threshold(net: nn.Module, **neuron: Any) -> nn.Module:
    """A copy of a network with learned thresholds."""
    new = copy.deepcopy(net)
    for name, module in list(new.named_modules()):
        if isinstance(module, DormantLIF):
            parent, _, child = name.rpartition(".")
            setattr(new.get_submodule(parent), child, AdaptiveThresholdLIF(**neuron))
    return new


# --- pruning ---------------------------------------------------------------------------------------------------------


def magnitude_prune(net: nn.Module, keep: float) -> nn.Module:
    """A copy without its smallest weights, one threshold for the whole network ("unstructured, global").

    Parameters
    ----------
    net : Module
        With Linear or Conv layers.
    keep : float
        Share of the weights that stay, in (0, 1].
    """
    new = copy.deepcopy(net)
    weights = _weights(new)
    sizes = torch.cat([w.detach().abs().flatten() for w in weights])
    kept = max(1, round(_share(keep) * sizes.numel()))
    least = sizes.kthvalue(sizes.numel() - kept + 1).values
    for w in weights:
        w.data.mul_(w.abs() >= least)
    return new


def structured_prune(net: nn.Sequential, keep: float) -> nn.Sequential:
    """A narrower copy of :func:`mlp`: of each hidden layer the neurons with the largest incoming L1 norm stay.

    Parameters
    ----------
    net : Sequential
        Flatten, then Linear and neuron layers by turns, then Linear.
    keep : float
        Share of the neurons of each hidden layer that stay, in (0, 1].
    """
    new = copy.deepcopy(net)
    linear = [m for m in new if isinstance(m, nn.Linear)]
    for layer, following in pairwise(linear):
        norm = layer.weight.detach().abs().sum(1)
        chosen = norm.topk(max(1, round(_share(keep) * len(norm)))).indices.sort().values
        layer.weight = nn.Parameter(layer.weight.detach()[chosen])
        _narrow(layer, chosen)
        following.weight = nn.Parameter(following.weight.detach()[:, chosen])
        layer.out_features = following.in_features = len(chosen)
    return new


def _narrow(layer: nn.Linear, chosen: Tensor) -> None:
    """Bias and normalisation of the neurons that stay."""
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.detach()[chosen])
    if isinstance(layer, NormLinear):
        norm = nn.BatchNorm1d(len(chosen))
        norm.load_state_dict({k: v if v.ndim == 0 else v[chosen] for k, v in layer.norm.state_dict().items()})
        layer.norm = norm


def mask(net: nn.Module) -> Callable[[], None]:
    """Puts the weights that are 0 now back to 0 whenever it is called: what fine-tuning calls after each step."""
    weights = _weights(net)
    kept = [(w != 0) for w in weights]

    @torch.no_grad()
    def again() -> None:
        for w, keep in zip(weights, kept, strict=True):
            w.mul_(keep)

    return again


def keep_for(target: float, energy: Callable[[float], float], tolerance: float = 0.005, rounds: int = 12) -> float:
    """The share to keep at which ``energy`` (which grows with it) comes to ``target``, by bisection."""
    low, high = 0.0, 1.0
    middle = 0.5
    for _ in range(rounds):
        middle = 0.5 * (low + high)
        found = energy(middle)
        if abs(found / target - 1) < tolerance:
            break
        low, high = (low, middle) if found > target else (middle, high)
    return middle


def _weights(net: nn.Module) -> list[Tensor]:
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return [m.weight for m in net.modules() if isinstance(m, kinds)]


def _share(keep: float) -> float:
    if not 0 < keep <= 1:
        raise ValueError(f"keep: got {keep}; expected a share above 0, at most 1")
    return keep


# --- without spikes --------------------------------------------------------------------------------------------------


def relu_mlp(sizes: list[int]) -> nn.Sequential:
    """The same layers with rectified linear units: one step, every product a multiplication with addition."""
    layers: list[nn.Module] = [nn.Flatten(1)]
    for into, out in pairwise(sizes[:-1]):
        layers += [nn.Linear(into, out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))
