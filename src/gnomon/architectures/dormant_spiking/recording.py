"""What flowed into every synapse and what every neuron did, in one or more passes of a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gnomon.architectures.dormant_spiking.functional import Trace
from gnomon.architectures.dormant_spiking.neuron import DormantLIF


class Shortcut(nn.Identity):
    """A residual connection whose spikes are added to a current: one addition for each spike, and counted as such."""


SYNAPSES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, Shortcut)


def reach(module: nn.Module, x: Tensor) -> Tensor:
    """For each target, how much of the input reaches it: the layer with every kept weight as 1 (a pruned one is none)."""
    if isinstance(module, Shortcut):
        return x
    weight = (module.weight != 0).to(x.dtype)  # type: ignore[operator, union-attr]
    if isinstance(module, nn.Linear):
        return F.linear(x, weight)
    return module._conv_forward(x, weight, None)  # type: ignore[no-any-return, operator]


@dataclass
class Neurons:
    """A layer of neurons: its module, and spikes, awake flags and membranes [T, B, ...]."""

    module: DormantLIF
    traces: list[Trace] = field(default_factory=list)

    def _all(self, what: str) -> Tensor:
        parts = [getattr(trace, what) for trace in self.traces]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def spikes(self) -> Tensor:
        return self._all("spikes")

    @property
    def awake(self) -> Tensor:
        return self._all("awake")

    @property
    def membrane(self) -> Tensor:
        return self._all("membrane")


@dataclass
class Synapses:
    """A layer of synapses: its module, its inputs (one a call), and the name of the neurons it drives (None: readout)."""

    module: nn.Module
    target: str | None
    inputs: list[Tensor] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def spiking(self) -> bool:
        """Whether its inputs are 0 or 1: additions, not multiplications."""
        return all(bool(((x == 0) | (x == 1)).all()) for x in self.inputs)

    def reached(self) -> Tensor:
        """Inputs that reach each target, as its neurons are laid out [T, B, ...] (a readout: as its outputs)."""
        parts = [reach(self.module, x) for x in self.inputs]
        if self.target is not None:
            parts = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def fan_in(self) -> Tensor:
        """The same when every input is 1, for one sample: [1, 1, ...] to be broadcast (a readout: [1, ...])."""
        one = reach(self.module, torch.ones_like(self.inputs[0][:1] if self.target is None else self._sample()))
        return one if self.target is None else one.reshape(1, 1, *self.shapes[0][2:])

    def _sample(self) -> Tensor:
        x = self.inputs[0]
        return x[:1, :1] if isinstance(self.module, nn.Linear | Shortcut) and x.ndim == len(self.shapes[0]) else x[:1]


class Recording:
    """Watches a network: ``with Recording(net) as seen: net(x)``, then ``seen.neurons`` and ``seen.synapses``.

    Parameters
    ----------
    net : Module
        With :class:`DormantLIF` neurons, and Linear, Conv1d to Conv3d or :class:`Shortcut` layers.

    Attributes
    ----------
    neurons : dict of str to Neurons
        Layers of neurons by name, in the order in which they ran.
    synapses : dict of str to Synapses
        Layers of synapses by name. One drives the first neurons that run after it and have as many numbers as its
        output (with batch normalisation or a reshape between them); those that run last and drive none are readouts.

    Raises
    ------
    ValueError
        When there are no neurons, or it cannot be told which of them a layer drives.

    Notes
    -----
    Gradients flow through what is kept, so that the counts can be part of a loss.
    """

    def __init__(self, net: nn.Module) -> None:
        self.neurons: dict[str, Neurons] = {}
        self.synapses: dict[str, Synapses] = {}
        self._net = net
        self._pending: list[tuple[str, nn.Module, Tensor, int]] = []
        self._order: list[str] = []
        self._close: list[Callable[[], None]] = []

    def __enter__(self) -> Recording:
        layers = [(n, m) for n, m in self._net.named_modules() if isinstance(m, DormantLIF)]
        if not layers:
            raise ValueError(f"net: {type(self._net).__name__} has no DormantLIF neurons; use convert_to_dormant first")
        for name, module in self._net.named_modules():
            if isinstance(module, DormantLIF):
                module.watch = partial(self._neuron, name)
                self._close.append(partial(setattr, module, "watch", None))
            elif isinstance(module, SYNAPSES):
                self._close.append(module.register_forward_hook(partial(self._synapse, name)).remove)
        return self

    def _synapse(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._order += [name] if name not in self._order else []
        self._pending.append((name, module, inputs[0], output.numel()))

    def _neuron(self, name: str, module: DormantLIF, trace: Trace) -> None:
        self._order += [name] if name not in self._order else []
        self.neurons.setdefault(name, Neurons(module)).traces.append(trace)
        for item in [p for p in self._pending if p[3] == trace.awake.numel()]:
            self._pending.remove(item)
            self._add(item[0], item[1], item[2], name, tuple(trace.awake.shape))

    def _add(self, name: str, module: nn.Module, x: Tensor, target: str | None, shape: tuple[int, ...]) -> None:
        kept = self.synapses.setdefault(name, Synapses(module, target))
        if kept.target != target:
            raise ValueError(f"{name} drives both {kept.target} and {target}: its work cannot be told apart")
        kept.inputs.append(x)
        kept.shapes.append(shape)

    def __exit__(self, *error: Any) -> None:
        for close in self._close:
            close()
        self._close.clear()
        if error[0] is not None:
            return
        last = max((self._order.index(name) for name in self.neurons), default=-1)
        for name, module, x, _ in self._pending:
            if self._order.index(name) < last:
                raise ValueError(
                    f"{name}: no neurons with as many numbers as its output run after it (pool or reshape "
                    "before the layer, not between it and its neurons)"
                )
            self._add(name, module, x, None, ())
        self._pending.clear()
