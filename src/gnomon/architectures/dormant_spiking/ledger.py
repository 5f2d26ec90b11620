"""The work of a spiking network, operation by operation, with and without input sparsity and dormancy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor, nn

from gnomon.architectures.dormant_spiking.functional import reset
from gnomon.architectures.dormant_spiking.profile import first
from gnomon.architectures.dormant_spiking.recording import Neurons, Recording, Synapses

VARIANTS = ("baseline", "input sparsity", "dormancy", "both")


@dataclass
class SynapseCount:
    """Operations of one layer of synapses, summed over samples: for each variant, inputs times targets."""

    name: str
    spiking: bool
    target: str | None
    ops: dict[str, float] = field(default_factory=lambda: dict.fromkeys(VARIANTS, 0.0))
    once: float = 0.0  # when each input is read in one step only


@dataclass
class NeuronCount:
    """Neuron-steps of one layer, summed over samples."""

    name: str
    gated: bool
    wake: str
    steps: float = 0.0
    awake: float = 0.0
    sleeps: float = 0.0  # how often a neuron fell asleep
    spikes: float = 0.0


@dataclass
class EnergyLedger:
    """Operations and energy of a network, per sample; made by :func:`energy_ledger`.

    Attributes
    ----------
    synapses, neurons : list
        Counts of each layer, summed over ``samples``.
    samples : int
        How many inputs were run.
    e_mac, e_ac : float
        pJ of a multiplication with addition, and of an addition or a comparison.
    gate : {"compare", "timer"}
        How a sleeping neuron is passed over: looked at in every step, or woken by a timer.
    first_layer : {"every step", "once"}
        How often the current of a real-valued input is computed.
    """

    synapses: list[SynapseCount]
    neurons: list[NeuronCount]
    samples: int
    e_mac: float = 4.6
    e_ac: float = 0.9
    gate: str = "compare"
    first_layer: str = "every step"

    def operations(self, variant: str = "both", first_layer: bool = True) -> dict[str, float]:
        """Operations per sample: ``macs`` and ``synops`` of the synapses, ``state_macs`` and ``state_compares`` of the
        neurons, ``gate_macs`` and ``gate_compares`` of the gate, ``pj`` in all."""
        if variant not in VARIANTS:
            raise ValueError(f"variant: got {variant!r}; expected one of {', '.join(VARIANTS)}")
        sleeping = variant in ("dormancy", "both")
        found = dict.fromkeys(("macs", "synops", "state_macs", "state_compares", "gate_macs", "gate_compares"), 0.0)
        by_name = {n.name: n for n in self.neurons}
        for position, synapse in enumerate(self.synapses):
            if position == 0 and not first_layer:
                continue
            if synapse.spiking:
                found["synops"] += synapse.ops[variant]
            elif self.first_layer == "once" and synapse.target is not None:
                layer = by_name[synapse.target]
                found["macs"] += synapse.once  # at the first step every neuron is awake
                found["synops"] += layer.awake if sleeping else layer.steps  # the kept current is added
            else:
                found["macs"] += synapse.ops[variant]
        for layer in self.neurons:
            updated = layer.awake if sleeping and layer.gated else layer.steps
            found["state_macs"] += updated
            found["state_compares"] += updated
            if sleeping and layer.gated:
                macs, compares = self._gate(layer)
                found["gate_macs"] += macs
                found["gate_compares"] += compares
        found = {k: v / self.samples for k, v in found.items()}
        macs = found["macs"] + found["state_macs"] + found["gate_macs"]
        found["pj"] = self.e_mac * macs + self.e_ac * (
            found["synops"] + found["state_compares"] + found["gate_compares"]
        )
        return found

    def _gate(self, layer: NeuronCount) -> tuple[float, float]:
        """Multiplications and comparisons of the gate itself."""
        asleep = layer.steps - layer.awake
        if layer.wake == "leak":
            # looked at: a comparison a step, and a decay for each step asleep; by timer: one product for each sleep
            return (asleep, layer.steps) if self.gate == "compare" else (layer.sleeps, layer.awake)
        return 0.0, layer.awake

    def energy(self, variant: str = "both", first_layer: bool = True) -> float:
        """pJ per sample; ``first_layer=False`` leaves out the synapses of the first layer."""
        return self.operations(variant, first_layer)["pj"]

    def table(self) -> pd.DataFrame:
        """Operations and pJ per sample of the four variants, with and without the first layer, and the share that is left.

        ``product`` is what would be left if the savings of input sparsity and of dormancy multiplied.
        """
        rows = {v: self.operations(v) for v in VARIANTS}
        table = pd.DataFrame.from_dict(rows, orient="index")
        table["pj without layer 1"] = [self.energy(v, first_layer=False) for v in VARIANTS]
        left = {v: rows[v]["pj"] / rows["baseline"]["pj"] for v in VARIANTS}
        table["left"] = pd.Series(left)
        table["product"] = [math.nan] * 3 + [left["input sparsity"] * left["dormancy"]]
        return table

    def layers(self) -> pd.DataFrame:
        """Per layer of neurons: awake fraction, firing rate, and the operations of its synapses, per sample."""
        rows = []
        for layer in self.neurons:
            mine = [s for s in self.synapses if s.target == layer.name]
            rows.append({"layer": layer.name, "awake": layer.awake / layer.steps, "rate": layer.spikes / layer.steps,
                         **{v: sum(s.ops[v] for s in mine) / self.samples for v in VARIANTS}})  # fmt: skip
        return pd.DataFrame(rows)

    @property
    def awake(self) -> float:
        """Share of neuron-steps that are awake."""
        return sum(n.awake for n in self.neurons) / sum(n.steps for n in self.neurons)

    @property
    def rate(self) -> float:
        """Spikes per neuron-step."""
        return sum(n.spikes for n in self.neurons) / sum(n.steps for n in self.neurons)


@torch.no_grad()
def energy_ledger(
    net: nn.Module,
    loader: Iterable[Any],
    *,
    e_ac: float = 0.9,
    e_mac: float = 4.6,
    gate: Literal["compare", "timer"] = "compare",
    first_layer: Literal["every step", "once"] = "every step",
) -> EnergyLedger:
    """Count the operations of a network on data, synapse by synapse, and what they cost.

    A spike costs an addition at each *awake* target that it reaches over a weight that is not 0; an input that is not
    a spike costs a multiplication with addition at each awake target in every step. An awake neuron-step costs one
    multiplication with addition and one comparison. The gate costs a comparison in every neuron-step, and a sleeping
    neuron that decays its decay; a neuron that is asleep for good, or for a known time, costs nothing. Batch
    normalisation counts as folded into the weights, biases into the state.

    Parameters
    ----------
    net : Module
        With :class:`DormantLIF` neurons (see :class:`Recording`); it is called on each batch and reset before.
    loader : iterable
        Batches: tensors, or tuples whose first is the input.
    e_ac, e_mac : float
        pJ of an addition (or comparison) and of a multiplication with addition: 32-bit floats at 45 nm.
    gate : {"compare", "timer"}
        "timer": a sleeping neuron of ``wake="leak"`` costs one multiplication in all, for its membrane on waking.
    first_layer : {"every step", "once"}
        "once": the current of a real-valued input is computed once a sample and added in each awake step. Only right
        where the input is the same in every step.

    Returns
    -------
    EnergyLedger
        ``table()``, ``layers()``, ``energy(variant)``.

    Raises
    ------
    ValueError
        For other options, for an empty loader, or where it cannot be told what a layer drives.
    """
    for name, value, known in (
        ("gate", gate, ("compare", "timer")),
        ("first_layer", first_layer, ("every step", "once")),
    ):
        if value not in known:
            raise ValueError(f"{name}: got {value!r}; expected one of {', '.join(known)}")
    if not (e_ac > 0 and e_mac > 0 and math.isfinite(e_ac + e_mac)):
        raise ValueError(f"e_ac, e_mac: got {e_ac}, {e_mac}; expected positive numbers")
    synapses: dict[str, SynapseCount] = {}
    neurons: dict[str, NeuronCount] = {}
    samples = 0
    training = net.training
    net.eval()
    for batch in loader:
        reset(net)
        with Recording(net) as seen:
            net(first(batch))
        for name, layer in seen.neurons.items():
            count = neurons.setdefault(name, NeuronCount(name, layer.module.gated, layer.module.wake))
            _count_neurons(count, layer)
        samples += next(iter(seen.neurons.values())).awake.shape[1]
        for name, found in seen.synapses.items():
            kept = synapses.setdefault(name, SynapseCount(name, True, found.target))
            kept.spiking &= found.spiking
            _count_synapses(kept, found, seen)
    reset(net)
    net.train(training)
    if not samples:
        raise ValueError("loader: it gave no batch")
    for kept in synapses.values():
        if not kept.spiking:  # a real-valued input is never skipped
            kept.ops["input sparsity"], kept.ops["both"] = kept.ops["baseline"], kept.ops["dormancy"]
    return EnergyLedger(list(synapses.values()), list(neurons.values()), samples, e_mac, e_ac, gate, first_layer)


def _count_neurons(count: NeuronCount, layer: Neurons) -> None:
    awake = layer.awake
    count.steps += awake.numel()
    count.awake += _total(awake)
    count.spikes += _total(layer.spikes)
    count.sleeps += _total(1 - awake[0]) + _total((awake[:-1] - awake[1:]).clamp(min=0))


def _count_synapses(kept: SynapseCount, found: Synapses, seen: Recording) -> None:
    reached = found.reached()
    fan_in = found.fan_in().expand(reached.shape)
    awake = torch.ones_like(reached) if found.target is None else seen.neurons[found.target].awake
    kept.ops["baseline"] += _total(fan_in)
    kept.ops["dormancy"] += _total(fan_in * awake)
    kept.ops["input sparsity"] += _total(reached)
    kept.ops["both"] += _total(reached * awake)
    kept.once += _total(fan_in[0]) if found.target is not None else _total(fan_in)


def _total(x: Tensor) -> float:
    return float(x.sum(dtype=torch.float64))


def relative_energy(seen: Recording, e_ac: float = 0.9, e_mac: float = 4.6) -> Tensor:
    """Energy of the synapses in a recorded pass over that of the same spikes without a gate, as a term of a loss.

    Differentiable through the spikes and the gates; the denominator is a constant. Training with
    ``loss + mu * relative_energy(seen)`` makes the network pay for what it computes.

    Parameters
    ----------
    seen : Recording
        Of a pass with gradients.
    e_ac, e_mac : float
        As for :func:`energy_ledger`.
    """
    with_gate: Any = 0.0
    without: Any = 0.0
    for found in seen.synapses.values():
        cost = e_ac if found.spiking else e_mac
        reached = found.reached()
        if not found.spiking:
            reached = found.fan_in().expand(reached.shape)
        awake = 1.0 if found.target is None else seen.neurons[found.target].awake
        with_gate = with_gate + cost * (reached * awake).sum()
        without = without + cost * reached.detach().sum()
    return with_gate / without  # type: ignore[no-any-return]
