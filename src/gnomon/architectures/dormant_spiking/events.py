"""A lazy kernel: only spikes are read, only awake neurons are touched, so that sleep saves time and not only operations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor, nn

from gnomon.architectures.dormant_spiking.functional import WAKES, reset
from gnomon.architectures.dormant_spiking.networks import NormLinear, SpikingClassifier
from gnomon.architectures.dormant_spiking.neuron import DormantLIF

_jit = numba.njit(nogil=True, cache=True, error_model="numpy")


@dataclass
class Events:
    """What a lazy pass gave.

    Attributes
    ----------
    spikes : list of ndarray
        Of each layer of neurons, bool [T, B, N].
    output : ndarray
        The readout in each step [T, B, classes], or the last layer's spikes where there is none.
    additions : list of int
        Weights added in each layer of neurons: spikes times awake targets.
    awake : list of float
        Share of neuron-steps that were awake.
    """

    spikes: list[np.ndarray]
    output: np.ndarray
    additions: list[int]
    awake: list[float]


@_jit
def _layer(inputs, weight, bias, given, direct, leak, threshold, dormant, soft, wake, n, spikes):  # type: ignore[no-untyped-def]
    """One layer on every sample; weight is [inputs, neurons]. With ``direct`` the current is ``given`` in each step."""
    steps, samples, width = spikes.shape
    zero = weight.dtype.type(0)
    current, v = np.empty(width, weight.dtype), np.empty(width, weight.dtype)
    awake = np.empty(width, np.int32)  # the neurons that are, in no order
    waking = np.empty(steps + 1, np.int32)  # heads of the lists of those that wake at a step
    following = np.empty(width, np.int32)
    additions, touched = 0, 0
    for b in range(samples):
        v[:] = zero
        waking[:] = -1
        count = width
        for i in range(width):
            awake[i] = i
        for t in range(steps):
            i = waking[t]
            while i >= 0:
                awake[count] = i
                count += 1
                i = following[i]
            touched += count
            if direct:
                for k in range(count):
                    current[awake[k]] = given[b, awake[k]]
            else:
                for k in range(count):
                    current[awake[k]] = bias[awake[k]]
                for j in range(inputs.shape[2]):
                    if inputs[t, b, j]:
                        row = weight[j]
                        for k in range(count):
                            current[awake[k]] += row[awake[k]]
                        additions += count
            left = 0
            for k in range(count):
                i = awake[k]
                h = leak * v[i] + current[i]
                if h >= threshold:
                    spikes[t, b, i] = True
                    h = h - threshold if soft else zero
                v[i] = h
                if h >= dormant[i]:
                    awake[left] = i
                    left += 1
                    continue
                # It sleeps from the next step on; the membrane on waking is the product that a dense loop would form.
                until = steps
                if wake == 0:
                    until = t + 1
                    while until < steps and h < dormant[i]:
                        h *= leak
                        until += 1
                    v[i] = h
                elif wake == 2:
                    until = min(t + 1 + n, steps)
                    v[i] = dormant[i]
                if until < steps:
                    following[i] = waking[until]
                    waking[until] = i
            count = left
    return additions, touched


@torch.no_grad()
def event_forward(net: nn.Module, x: Tensor) -> Events:
    """Run a network of linear layers and dormant neurons event by event.

    For each sample and step the awake neurons are kept in a list; the weights of each input spike are added at these
    alone, and these alone are updated; a neuron that falls asleep is put aside until the step in which it wakes. The
    cost is the number of input spikes times that of awake targets.

    Parameters
    ----------
    net : Module
        :class:`SpikingClassifier` around, or itself, a Sequential of (Flatten,) Linear and :class:`DormantLIF` layers by
        turns, with or without a last Linear (readout); with ``wake="never"`` in every layer, or any other kind.
    x : Tensor
        For a classifier its input. Else [T, B, inputs]; the first layer takes any numbers where they are the same in
        each step (their current is computed once), else 0 and 1.

    Returns
    -------
    Events

    Raises
    ------
    ValueError
        When the network has other layers, or an input is neither constant nor 0 and 1.

    Notes
    -----
    Spikes equal those of the dense pass wherever the currents do: they are summed in the order of the inputs, a matrix
    product in another, so a membrane within a rounding error of a threshold can differ (never when the sums are
    exact).

    Time falls with the awake share, and with the rate of the input spikes. It does not beat a dense matrix product of
    the same layer on a processor made for those: at 1024 x 1024, a fifth of the inputs spiking and a third of the
    neurons awake, the masked dense pass takes a third of the time. The kernel shows what event-driven hardware, or a
    layer too sparse for a dense product, has to gain.
    """
    body = net.body if isinstance(net, SpikingClassifier) else net
    if isinstance(net, SpikingClassifier):
        x = x.transpose(0, 1) if net.steps is None else x.expand(net.steps, *x.shape)
    layers = [m for m in body if not isinstance(m, nn.Flatten)] if isinstance(body, nn.Sequential) else []
    layers = [m.folded() if isinstance(m, NormLinear) and not m.training else m for m in layers]
    pairs: list[Any] = list(zip(layers[::2], layers[1::2], strict=False))
    if (
        not pairs
        or not all(type(a) is nn.Linear and type(b) is DormantLIF and b.step_mode == "m" for a, b in pairs)
        or (len(layers) % 2 and type(layers[-1]) is not nn.Linear)
    ):
        raise ValueError(
            "net: expected a Sequential of Linear and DormantLIF layers by turns, with or without a last Linear"
        )
    if x.ndim < 3 or not torch.isfinite(x).all():
        raise ValueError(f"x: got shape {tuple(x.shape)}; expected finite numbers [T, B, inputs]")
    reset(body)
    x = x.flatten(2)
    found = Events([], np.empty(0), [], [])
    inputs: Any = None if _binary(x) else x
    spikes = x.bool().numpy() if inputs is None else np.empty((len(x), x.shape[1], 0), bool)
    if inputs is not None and not bool((x == x[:1]).all()):
        raise ValueError("x: expected spikes (0 and 1), or the same numbers in each step")
    for linear, neuron in pairs:
        spikes = _run(linear, neuron, spikes, None if inputs is None else inputs[0], found)
        inputs = None
    last = layers[-1] if len(layers) % 2 else None
    as_numbers = torch.from_numpy(spikes).to(x.dtype)
    found.output = (last(as_numbers) if last is not None else as_numbers).numpy()
    return found


def _run(linear: nn.Linear, neuron: DormantLIF, spikes: np.ndarray, direct: Tensor | None, found: Events) -> np.ndarray:
    weight = np.ascontiguousarray(linear.weight.detach().numpy().T)
    kind = weight.dtype.type
    width = weight.shape[1]
    bias = np.zeros(width, kind) if linear.bias is None else linear.bias.detach().numpy()
    rest = neuron.v_reset or 0.0
    tau = neuron.tau.detach() if isinstance(neuron.tau, Tensor) else neuron.tau
    leak = torch.as_tensor(1 - 1 / tau, dtype=linear.weight.dtype).numpy()[()]  # rounded as the dense pass rounds it
    scale = kind(1 / float(neuron.tau)) if neuron.decay_input else kind(1)
    if scale != 1:
        weight, bias = weight * scale, bias * scale
    given = np.empty((0, 0), kind)
    if direct is not None:
        given = linear(direct).numpy() * scale
    dormant = np.broadcast_to(neuron.v_dormant.detach().numpy().astype(kind) - kind(rest), (width,)).copy()
    out = np.zeros((*spikes.shape[:2], width), bool)
    additions, touched = _layer(
        spikes, weight, bias, given, direct is not None, leak, kind(neuron.v_threshold - rest),
        dormant, neuron.v_reset is None, WAKES.index(neuron.wake), neuron.n or 0, out,
    )  # fmt: skip
    found.spikes.append(out)
    found.additions.append(int(additions))
    found.awake.append(touched / math.prod(out.shape))
    return out


def _binary(x: Tensor) -> bool:
    return bool(((x == 0) | (x == 1)).all())
