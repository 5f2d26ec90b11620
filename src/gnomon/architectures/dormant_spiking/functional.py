"""The dynamics of a layer of dormant leaky integrate-and-fire neurons, as a function."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from gnomon.architectures.dormant_spiking.surrogate import SURROGATES, step

WAKES = ("leak", "never", "after")
BACKENDS = ("auto", "torch", "numba")


class State(NamedTuple):
    """What a layer carries to its next step: the membrane [B, ...] and the steps still to be slept (``wake="after"``)."""

    membrane: Tensor
    asleep: Tensor | None


class Trace(NamedTuple):
    """What a layer did: spikes, awake neurons and membranes after the reset, each [T, B, ...], and the last state."""

    spikes: Tensor
    awake: Tensor
    membrane: Tensor
    state: State


class Dynamics(NamedTuple):
    """The constants of a layer, in coordinates in which the resting membrane is 0."""

    v_threshold: float
    soft: bool
    wake: str
    n: int
    surrogate: str
    alpha: float
    detach_reset: bool
    detach_gate: bool
    smooth: bool


def dormant_lif(
    current: Tensor,
    *,
    tau: float | Tensor = 2.0,
    v_threshold: float = 1.0,
    v_reset: float | None = 0.0,
    v_dormant: float | Tensor = -0.25,
    wake: str = "leak",
    n: int | None = None,
    surrogate: str = "atan",
    alpha: float = 2.0,
    detach_reset: bool = False,
    detach_gate: bool = False,
    smooth: bool = False,
    state: State | None = None,
    backend: str = "auto",
) -> Trace:
    r"""Leaky integrate-and-fire neurons that read no input while their membrane is below a negative threshold.

    With :math:`\lambda = 1 - 1/\tau`, the gate from the state before the step and :math:`\Theta(0) = 1`,

    .. math::
        g_t = \Theta(v_{t-1} - \theta_d), \quad h_t = \lambda v_{t-1} + g_t I_t, \quad
        s_t = g_t \Theta(h_t - \theta), \quad v_t = h_t (1 - s_t)

    (``wake="leak"``; ``v_reset=None`` subtracts the threshold instead: :math:`v_t = h_t - \theta s_t`). A sleeping
    neuron decays and so wakes by itself. With ``"never"`` it keeps its membrane and stays silent to the end of the
    sample, :math:`a_t = a_{t-1} g_t`; with ``"after"`` it sleeps exactly ``n`` steps and goes on from
    :math:`\theta_d`. Both step functions have a surrogate derivative, so the gate is trained through.

    Parameters
    ----------
    current : Tensor
        Input currents [T, B, ...] (or [T]), finite, T >= 1.
    tau : float or scalar Tensor
        Membrane time constant in steps, above 1.
    v_threshold : float
        Firing threshold.
    v_reset : float or None
        Resting membrane and the value after a spike ("hard"); None rests at 0 and subtracts the threshold ("soft").
    v_dormant : float or Tensor
        Dormancy threshold: negative, not above ``v_reset``; ``-inf`` is the plain neuron. A tensor broadcasts to the
        neurons of one sample.
    wake : {"leak", "never", "after"}
        What ends the sleep. Waking by input would have to read the input, which is what is to be saved.
    n : int, optional
        Steps to sleep, for ``"after"``.
    surrogate, alpha : str, float
        "atan", "sigmoid" or "triangle", and its sharpness.
    detach_reset, detach_gate : bool
        Leave the reset, or the gate, out of the gradient.
    smooth : bool
        Replace the step functions by the smooth ones that have the surrogate as derivative.
    state : State, optional
        Of an earlier call; by default every neuron is at rest and awake.
    backend : {"auto", "torch", "numba"}
        "torch" is the loop of single operations that reads like the equations; "numba" runs all steps in one compiled
        kernel each way (CPU, float32 or float64) and keeps the membranes alone for the backward pass. Both give the
        same numbers.

    Returns
    -------
    Trace
        ``spikes``, ``awake`` and ``membrane`` [T, B, ...], and the last ``state``.

    Raises
    ------
    ValueError
        For a value outside the ranges above; the message names it.
    RuntimeError
        When ``state`` belongs to a batch of another size.
    """
    check(tau, v_threshold, v_reset, v_dormant, wake, n, surrogate, alpha)
    if backend not in BACKENDS:
        raise ValueError(f"backend: got {backend!r}; expected one of {', '.join(BACKENDS)}")
    if not current.is_floating_point() or current.ndim == 0 or 0 in current.shape:
        raise ValueError(f"current: got {current.dtype} of shape {tuple(current.shape)}; expected floats [T, B, ...], none of "
                         "these zero")  # fmt: skip
    rest = 0.0 if v_reset is None else v_reset
    leak = torch.as_tensor(1 - 1 / tau, dtype=current.dtype, device=current.device)
    dormant = torch.as_tensor(v_dormant, dtype=current.dtype, device=current.device)
    try:
        dormant = (dormant - rest).expand(current.shape[2:] or current.shape[1:])
    except RuntimeError:
        raise ValueError(
            f"v_dormant: shape {tuple(dormant.shape)} does not fit one sample of currents {tuple(current.shape)}"
        ) from None
    start, asleep = _start(state, current, rest)
    dynamics = Dynamics(
        v_threshold - rest, v_reset is None, wake, n or 0, surrogate, alpha, detach_reset, detach_gate, smooth
    )
    if _compiled(current, backend, smooth):
        from gnomon.architectures.dormant_spiking.fused import simulate
    else:
        if not torch.isfinite(current).all():
            raise ValueError(NOT_FINITE)
        simulate = _simulate
    spikes, awake, membrane, asleep = simulate(current, leak, dormant, start, asleep, dynamics)
    if rest:
        membrane = membrane + rest
    return Trace(spikes, awake, membrane, State(membrane[-1], asleep))


NOT_FINITE = "current: holds NaN or infinity; expected finite numbers"


def check(
    tau: Any,
    v_threshold: float,
    v_reset: float | None,
    v_dormant: Any,
    wake: str,
    n: int | None,
    surrogate: str,
    alpha: float,
) -> None:
    """Refuse constants that make no neuron; the message names the argument, what it was and what is accepted."""
    rest = 0.0 if v_reset is None else v_reset
    given_tau, given = (torch.as_tensor(x, dtype=torch.float64).detach() for x in (tau, v_dormant))
    if given_tau.numel() != 1 or not given_tau.gt(1).all():
        raise ValueError(f"tau: got {tau}; expected one number above 1")
    if not math.isfinite(rest) or not math.isfinite(v_threshold) or v_threshold <= max(rest, 0.0):
        raise ValueError(
            f"v_threshold: got {v_threshold} with v_reset {v_reset}; expected a finite number above it and above 0"
        )
    highest = float(given.max())
    if not highest < 0:
        raise ValueError(f"v_dormant must be negative; got {v_dormant}")
    if highest > rest:
        raise ValueError(f"v_dormant: got {v_dormant}, above v_reset {v_reset}: every neuron that fired would sleep")
    if wake == "input":
        raise ValueError("wake: 'input' would read every input, which is the work that sleep is to save; expected one of "
                         + ", ".join(WAKES))  # fmt: skip
    if wake not in WAKES:
        raise ValueError(f"wake: got {wake!r}; expected one of {', '.join(WAKES)}")
    if (wake == "after") != (n is not None) or (n is not None and (isinstance(n, bool) or int(n) != n or n < 1)):
        raise ValueError(
            f"n: got {n} with wake={wake!r}; expected a number of steps from 1 on for wake='after', else None"
        )
    if surrogate not in SURROGATES:
        raise ValueError(f"surrogate: got {surrogate!r}; expected one of {', '.join(SURROGATES)}")
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha: got {alpha}; expected a positive number")


def _start(state: State | None, current: Tensor, rest: float) -> tuple[Tensor, Tensor]:
    """Membrane (from rest) and steps still to be slept, before the first step."""
    shape = current.shape[1:]
    if state is None:
        return current.new_zeros(shape), torch.zeros(shape, dtype=torch.int32, device=current.device)
    if state.membrane.shape != shape or state.membrane.dtype != current.dtype:
        raise RuntimeError(
            f"the state is of an earlier batch, {state.membrane.dtype} of shape {tuple(state.membrane.shape)}, and this one is "
            f"{current.dtype} of shape {tuple(shape)}: call reset() between samples"
        )  # fmt: skip
    asleep = state.asleep if state.asleep is not None else torch.zeros(shape, dtype=torch.int32, device=current.device)
    return (state.membrane - rest if rest else state.membrane), asleep


def _compiled(current: Tensor, backend: str, smooth: bool) -> bool:
    fits = current.device.type == "cpu" and current.dtype in (torch.float32, torch.float64) and not smooth
    if backend == "numba" and not fits:
        raise ValueError(f"backend: 'numba' takes float32 or float64 on the CPU, not smooth; got {current.dtype} on "
                         f"{current.device}, smooth={smooth}")  # fmt: skip
    return fits and backend != "torch"


def _simulate(current: Tensor, leak: Tensor, dormant: Tensor, v: Tensor, asleep: Tensor, dynamics: Dynamics) -> Any:
    """The equations, one operation after another."""
    threshold, soft, wake, n = dynamics[:4]
    theta = partial(step, surrogate=dynamics.surrogate, alpha=dynamics.alpha, smooth=dynamics.smooth)
    awake = (v >= dormant).to(v)  # of wake="never": asleep is below the threshold, also where a state is carried on
    spikes, gates, membranes = [], [], []
    for x in current:
        gate = theta(v - dormant)
        if dynamics.detach_gate:
            gate = gate.detach()
        if wake == "leak":
            awake = gate
            h = leak * v + awake * x
        else:
            if wake == "never":
                awake = awake * gate
            else:
                awake = torch.where(asleep > 0, 0.0, gate)
                asleep = torch.where((asleep == 0) & (v < dormant), n, asleep)
            h = awake * (leak * v + x) + (1 - awake) * v
        spike = awake * theta(h - threshold)
        fired = spike.detach() if dynamics.detach_reset else spike
        v = h - threshold * fired if soft else h * (1 - fired)
        if wake == "after":  # the last step of a sleep leaves the neuron at the threshold, awake
            v = torch.where(asleep == 1, dormant, v)
            asleep = (asleep - 1).clamp(min=0)
        spikes.append(spike)
        gates.append(awake)
        membranes.append(v)
    return torch.stack(spikes), torch.stack(gates), torch.stack(membranes), asleep


def wake_steps(v: ArrayLike, v_dormant: float, leak: float) -> np.ndarray:
    """Steps that a neuron of ``wake="leak"`` sleeps through: the least n >= 0 with v leak^n >= v_dormant.

    The closed form ceil(log(v_dormant / v) / log(leak)) is one off at near-ties, so it is only the first guess: n moves
    until the product, formed by repeated multiplication in the dtype of ``v`` as the dense loop forms it, agrees.

    Parameters
    ----------
    v : array_like
        Membranes (from rest); 0 steps where they are not below the threshold.
    v_dormant : float
        Dormancy threshold, negative.
    leak : float
        In (0, 1).

    Returns
    -------
    ndarray of int
    """
    v = np.asarray(v)
    v = v.astype(np.result_type(v.dtype, np.float32))
    if not np.isfinite(v).all():
        raise ValueError("v: holds NaN or infinity; expected finite membranes")
    factor, border = v.dtype.type(leak), v.dtype.type(v_dormant)
    if not 0 < factor < 1:
        raise ValueError(f"leak: got {leak}; expected a number between 0 and 1 (in {v.dtype})")
    if not border < 0:
        raise ValueError(f"v_dormant must be negative; got {v_dormant}")
    low = v < border
    with np.errstate(divide="ignore", invalid="ignore"):
        guess = np.ceil(np.log(border / v) / np.log(factor))
    steps = np.where(low, np.maximum(np.nan_to_num(guess, nan=0, posinf=0, neginf=0), 1), 0).astype(np.int64)
    before, product = v.copy(), v.copy()  # after n - 1 steps and after n
    for k in range(1, int(steps.max(initial=0)) + 1):
        before = np.where(k <= steps, product, before)
        product = np.where(k <= steps, product * factor, product)
    while (late := low & (product < border)).any():
        before, product = np.where(late, product, before), np.where(late, product * factor, product)
        steps = steps + late
    while (early := low & (before >= border)).any():
        steps = steps - early
        before = np.where(early, _powers(v, factor, steps - 1), before)
    return steps


def _powers(v: np.ndarray, factor: Any, steps: np.ndarray) -> np.ndarray:
    """v factor^steps by repeated multiplication."""
    product = v.copy()
    for k in range(1, int(steps.max(initial=0)) + 1):
        product = np.where(k <= steps, product * factor, product)
    return product


def reset(net: nn.Module) -> None:
    """Put every stateful neuron of a network back to rest: call it between samples."""
    for module in net.modules():
        has_parts = next(module.children(), None) is not None
        if not (module is net and has_parts) and callable(found := getattr(module, "reset", None)):
            found()
