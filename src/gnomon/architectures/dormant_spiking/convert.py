"""Dormant neurons in the place of another library's leaky integrate-and-fire nodes."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from gnomon.architectures.dormant_spiking.neuron import DormantLIF

_SPIKINGJELLY = {"ATan": "atan", "Sigmoid": "sigmoid"}


def convert_to_dormant(net: nn.Module, v_dormant: float = -0.25, **options: Any) -> nn.Module:
    """A copy of a network with dormant neurons instead of spikingjelly's or snntorch's leaky ones.

    Weights, leak, thresholds, reset and step mode are kept, so with ``v_dormant=-inf`` the copy spikes as the original
    does. Neither library is imported.

    Parameters
    ----------
    net : Module
        With ``LIFNode`` or ``ParametricLIFNode`` of spikingjelly, ``Leaky`` of snntorch (``init_hidden=True``), or
        :class:`DormantLIF`.
    v_dormant : float
        Dormancy threshold of every layer.
    **options
        Of :class:`DormantLIF`, over what the original has: ``wake``, ``n``, ``learn_v_dormant`` (here False by
        default), ``detach_gate``, ``step_mode``, ...

    Returns
    -------
    Module
        The copy; the original is left alone.

    Raises
    ------
    ValueError
        When there is no such node, or one that the dormant neuron has no counterpart for; the message says why.
    RuntimeError
        When the network holds the state of a pass with gradients: reset it first.

    Notes
    -----
    snntorch fires above the threshold and spikingjelly, like this neuron, from the threshold on. Its subtracting reset
    comes one step late, or (``reset_delay=False``) twice where a membrane is above two thresholds; its reset to zero is
    the one here.
    """
    try:
        new = copy.deepcopy(net)
    except RuntimeError as error:  # torch does not copy a state that gradients flow through
        raise RuntimeError("net cannot be copied: reset it first if it holds the state of an earlier pass") from error
    found = 0
    for name, module in list(new.named_modules()):
        settings = _settings(name, module)
        if settings is None:
            continue
        found += 1
        neuron = DormantLIF(**{"v_dormant": v_dormant, "learn_v_dormant": False, **settings, **options})
        place = next(module.parameters(), None)
        if place is not None:
            neuron.to(place.device)
        neuron.train(module.training)
        if not name:
            return neuron
        parent, _, child = name.rpartition(".")
        setattr(new.get_submodule(parent), child, neuron)
    if not found:
        raise ValueError(f"net: {type(net).__name__} has no LIFNode, ParametricLIFNode, Leaky or DormantLIF")
    return new


def _settings(name: str, node: nn.Module) -> dict[str, Any] | None:
    """The arguments of :class:`DormantLIF` that a node of another library stands for; None for any other module."""
    if isinstance(node, DormantLIF):
        same = ("v_threshold", "v_reset", "wake", "n", "surrogate", "alpha", "learn_tau", "decay_input", "detach_reset",
                "detach_gate", "step_mode", "backend")  # fmt: skip
        return {"tau": float(node.tau), **{key: getattr(node, key) for key in same}}
    kinds = {(base.__module__.partition(".")[0], base.__name__) for base in type(node).__mro__}
    if ("spikingjelly", "BaseNode") in kinds:
        return _spikingjelly(name, node, {kind for library, kind in kinds if library == "spikingjelly"})
    if ("snntorch", "SpikingNeuron") in kinds:
        return _snntorch(name, node, ("snntorch", "Leaky") in kinds)
    return None


def _spikingjelly(name: str, node: Any, kinds: set[str]) -> dict[str, Any]:
    if not kinds & {"LIFNode", "ParametricLIFNode"}:
        raise ValueError(
            f"{name}: {type(node).__name__} is no leaky integrate-and-fire neuron; expected LIFNode or ParametricLIFNode"
        )
    learned = "ParametricLIFNode" in kinds
    surrogate = node.surrogate_function
    kind = _SPIKINGJELLY.get(type(surrogate).__name__)
    shape = {"surrogate": kind, "alpha": float(surrogate.alpha)} if kind else {}
    return {
        "tau": float(1 / node.w.sigmoid()) if learned else float(node.tau), "learn_tau": learned,
        "v_threshold": float(node.v_threshold), "v_reset": node.v_reset, "decay_input": node.decay_input,
        "detach_reset": node.detach_reset, "step_mode": node.step_mode, **shape,
    }  # fmt: skip


def _snntorch(name: str, node: Any, leaky: bool) -> dict[str, Any]:
    beta, threshold = node.beta, node.threshold
    wrong = {
        "it is no Leaky": not leaky,
        "it hands out its membrane: expected init_hidden=True, output=False": not node.init_hidden or node.output,
        "expected one beta and one threshold a layer": beta.numel() != 1 or threshold.numel() != 1,
        "its subtracting reset is another one: expected reset_mechanism='zero'": node.reset_mechanism != "zero",
        "inhibition, state_quant and graded spikes have no counterpart": bool(
            node.inhibition or node.state_quant or float(node.graded_spikes_factor) != 1
        ),
    }
    if reasons := [why for why, is_so in wrong.items() if is_so]:
        raise ValueError(f"{name}: {type(node).__name__} cannot be converted: {'; '.join(reasons)}")
    leak = float(beta.detach().clamp(0, 1))
    if not 0 < leak < 1:
        raise ValueError(f"{name}: beta is {leak}; expected a number between 0 and 1")
    return {"tau": 1 / (1 - leak), "learn_tau": isinstance(beta, nn.Parameter), "v_threshold": float(threshold),
            "v_reset": 0.0, "detach_reset": True, "step_mode": "s"}  # fmt: skip
