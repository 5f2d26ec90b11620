"""How much a network spends on neurons that are far below threshold and will not fire."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from gnomon.architectures.dormant_spiking.convert import convert_to_dormant
from gnomon.architectures.dormant_spiking.functional import reset
from gnomon.architectures.dormant_spiking.neuron import DormantLIF
from gnomon.architectures.dormant_spiking.recording import Recording


@torch.no_grad()
def inhibition_profile(net: nn.Module, loader: Iterable[Any], level: float = -0.5) -> pd.DataFrame:
    """For each layer, how many neuron-steps are deeply inhibited, whether they fire later, and what they cost.

    Parameters
    ----------
    net : Module
        A spiking network, with :class:`DormantLIF` neurons or those that :func:`convert_to_dormant` takes; it is
        called on each batch and reset before.
    loader : iterable
        Batches: tensors, or tuples whose first is the input.
    level : float
        In units of the firing threshold, negative: a membrane below it is low.

    Returns
    -------
    DataFrame
        A row per layer: ``layer``; ``low``, the share of neuron-steps that are low (all but the last step, which has
        no later); ``mostly_low``, the share of neurons (of a sample) that are low in more than half of these steps;
        ``fires_if_low`` and ``fires_otherwise``, the probability of a spike later in the window; ``ops_on_low``, the
        share of the inputs added (or multiplied) that went to neurons that were low when they came.

    Raises
    ------
    ValueError
        When ``level`` is not negative, the loader is empty, or the window has but one step.
    """
    if not level < 0:
        raise ValueError(f"level must be negative; got {level}")
    if not any(isinstance(m, DormantLIF) for m in net.modules()):
        net = convert_to_dormant(net, -torch.inf)
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for batch in loader:
        reset(net)
        with Recording(net) as seen:
            net(first(batch))
        below = {}
        for name, layer in seen.neurons.items():
            v, spikes = layer.membrane, layer.spikes
            if len(v) < 2:
                raise ValueError(f"{name}: the window has {len(v)} step; expected 2 or more")
            low = v < level * layer.module.v_threshold
            below[name] = torch.cat([torch.zeros_like(low[:1]), low[:-1]])
            later = spikes.flip(0).cumsum(0).flip(0)[1:] > 0
            _add(sums[name], low[:-1], later)
        for synapses in seen.synapses.values():
            if synapses.target is not None:
                reached = synapses.reached()
                sums[synapses.target]["ops"] += float(reached.sum(dtype=torch.float64))
                sums[synapses.target]["ops_low"] += float((reached * below[synapses.target]).sum(dtype=torch.float64))
    reset(net)
    if not sums:
        raise ValueError("loader: it gave no batch")
    return pd.DataFrame({"layer": name, **_shares(s)} for name, s in sums.items())


def first(batch: Any) -> Tensor:
    """The input of a batch: itself, or the first of a tuple."""
    return batch[0] if isinstance(batch, tuple | list) else batch


def _add(sums: dict[str, float], low: Tensor, later: Tensor) -> None:
    sums["steps"] += low.numel()
    sums["low"] += float(low.sum())
    sums["neurons"] += low[0].numel()
    sums["mostly"] += float((2 * low.sum(0) > len(low)).sum())
    sums["fires_low"] += float((low & later).sum())
    sums["fires"] += float(later.sum())


def _shares(s: dict[str, float]) -> dict[str, float]:
    def share(a: float, b: float) -> float:
        return a / b if b else float("nan")

    return {
        "low": share(s["low"], s["steps"]),
        "mostly_low": share(s["mostly"], s["neurons"]),
        "fires_if_low": share(s["fires_low"], s["low"]),
        "fires_otherwise": share(s["fires"] - s["fires_low"], s["steps"] - s["low"]),
        "ops_on_low": share(s["ops_low"], s["ops"]),
    }
