"""The neuron as a module: thresholds and leak as parameters or constants, a state that lasts until it is reset."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gnomon.architectures.dormant_spiking.functional import BACKENDS, State, Trace, check, dormant_lif

SILENT = 0.02  # below this awake fraction a layer of wake="never" is as good as dead


class DormantLIF(nn.Module):
    """A layer of leaky integrate-and-fire neurons that switch themselves off; see :func:`dormant_lif` for the equations.

    Parameters
    ----------
    tau : float
        Membrane time constant in steps, above 1: the leak is 1 - 1/tau.
    v_threshold : float
        Firing threshold.
    v_reset : float or None
        Rest and value after a spike; None subtracts the threshold ("soft").
    v_dormant : float
        Dormancy threshold, negative; ``-inf`` (not learnable) is the plain neuron.
    wake : {"leak", "never", "after"}
        What ends the sleep; ``n`` steps for "after".
    surrogate, alpha : str, float
        Derivative of both step functions: "atan", "sigmoid" or "triangle", and its sharpness.
    learn_v_dormant : bool
        Learn the threshold, as -softplus of a parameter: one a layer, or one a channel with ``channels``.
    learn_tau : bool
        Learn the time constant, 1/tau = sigmoid of a parameter.
    channels : int, optional
        Number of channels (the axis after the batch), for a learned threshold of each.
    decay_input : bool
        Divide the input by tau, as spikingjelly's neurons do by default.
    detach_reset, detach_gate : bool
        Leave the reset, or the gate, out of the gradient.
    step_mode : {"m", "s"}
        Input with all steps [T, B, ...], or one step [B, ...] a call.
    backend : {"auto", "torch", "numba"}
        See :func:`dormant_lif`.

    Attributes
    ----------
    state : State or None
        Membrane and sleep after the last call, until :meth:`reset`.
    watch : callable or None
        Called with (neuron, trace) after each pass; :class:`Recording` uses it.

    Raises
    ------
    ValueError
        For constants that make no neuron, for currents that are not finite or lack an axis.
    RuntimeError
        When the state is that of a batch of another size.

    Notes
    -----
    With ``wake="never"`` a strong initialisation can silence a whole layer, after which nothing is learned: a layer
    that is awake in less than 2 % of its neuron-steps warns once. Start at ``v_dormant=-1`` and raise it
    (:meth:`set_v_dormant`, or ``anneal=`` of :func:`fit`). After batch normalisation the currents are centred, and the
    threshold is in their units.
    """

    def __init__(
        self,
        tau: float = 2.0,
        v_threshold: float = 1.0,
        v_reset: float | None = 0.0,
        v_dormant: float = -0.25,
        wake: str = "leak",
        n: int | None = None,
        surrogate: str = "atan",
        alpha: float = 2.0,
        learn_v_dormant: bool = True,
        learn_tau: bool = False,
        channels: int | None = None,
        decay_input: bool = False,
        detach_reset: bool = False,
        detach_gate: bool = False,
        step_mode: str = "m",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check(tau, v_threshold, v_reset, v_dormant, wake, n, surrogate, alpha)
        if step_mode not in ("m", "s"):
            raise ValueError(
                f"step_mode: got {step_mode!r}; expected 'm' (all steps in one input) or 's' (one step a call)"
            )
        if backend not in BACKENDS:
            raise ValueError(f"backend: got {backend!r}; expected one of {', '.join(BACKENDS)}")
        if channels is not None and (channels < 1 or not learn_v_dormant):
            raise ValueError(f"channels: got {channels}; expected a positive number, with learn_v_dormant=True")
        self.v_threshold, self.v_reset, self.wake, self.n = float(v_threshold), v_reset, wake, n
        self.surrogate, self.alpha, self.step_mode, self.backend = surrogate, float(alpha), step_mode, backend
        self.decay_input, self.detach_reset, self.detach_gate = decay_input, detach_reset, detach_gate
        self.learn_v_dormant, self.learn_tau, self.channels = learn_v_dormant, learn_tau, channels
        given = torch.full((channels or 1,), float(v_dormant)) if channels else torch.tensor(float(v_dormant))
        if learn_v_dormant:
            self.rho = nn.Parameter(self._inverse(given))
        else:
            self.register_buffer("threshold", given)
            self.threshold: Tensor
        if learn_tau:
            self.w = nn.Parameter(torch.tensor(-math.log(tau - 1)))
        else:
            self.fixed_tau = float(tau)
        self.state: State | None = None
        self.watch: Callable[[DormantLIF, Trace], None] | None = None
        self._warned = False

    @property
    def _ceiling(self) -> float:
        """What a learned threshold stays below: 0, and the resting membrane."""
        return min(self.v_reset or 0.0, 0.0)

    def _inverse(self, v_dormant: Tensor) -> Tensor:
        depth = self._ceiling - v_dormant
        if not torch.isfinite(depth).all() or (depth <= 0).any():
            raise ValueError(f"v_dormant: got {v_dormant.min().item()}; a learned threshold starts at a finite number below "
                             f"{self._ceiling}")  # fmt: skip
        return depth + torch.log(-torch.expm1(-depth))

    @property
    def tau(self) -> Any:
        """Membrane time constant: a float, or a Tensor where it is learned."""
        return 1 / torch.sigmoid(self.w) if self.learn_tau else self.fixed_tau

    @property
    def v_dormant(self) -> Tensor:
        """Dormancy threshold, a scalar or [channels]."""
        return self._ceiling - F.softplus(self.rho) if self.learn_v_dormant else self.threshold

    @property
    def gated(self) -> bool:
        """Whether any neuron can fall asleep."""
        return bool((self.v_dormant > -math.inf).any())

    @torch.no_grad()
    def set_v_dormant(self, value: float | Tensor) -> None:
        """Move the threshold, for a schedule: of a learned one, the value (one, or one a channel) that it goes on from."""
        check(self.tau, self.v_threshold, self.v_reset, value, self.wake, self.n, self.surrogate, self.alpha)
        held = self.rho if self.learn_v_dormant else self.threshold
        given = torch.as_tensor(value, dtype=held.dtype, device=held.device).expand(held.shape)
        held.copy_(self._inverse(given) if self.learn_v_dormant else given)

    def reset(self) -> None:
        """Back to rest: call it between samples."""
        self.state = None

    def forward(self, current: Tensor) -> Tensor:
        """Spikes of the shape of ``current``: [T, B, ...], or [B, ...] with ``step_mode="s"``."""
        if self.step_mode == "m" and current.ndim < 3:
            raise ValueError(f"current: got shape {tuple(current.shape)}; in multi-step mode it is [T, B, ...], with a time axis first "
                             "and neurons last (step_mode='s' takes one step a call)")  # fmt: skip
        if current.ndim < 2:
            raise ValueError(f"current: got shape {tuple(current.shape)}; expected [B, ...]")
        steps = current if self.step_mode == "m" else current.unsqueeze(0)
        tau, dormant = self.tau, self.v_dormant
        if self.decay_input:
            steps = steps / tau
        if self.channels:
            if steps.shape[2] != self.channels:
                raise ValueError(f"current: got {steps.shape[2]} channels; this layer was made for {self.channels}")
            dormant = dormant.reshape(-1, *[1] * (steps.ndim - 3))
        trace = dormant_lif(
            steps, tau=tau, v_threshold=self.v_threshold, v_reset=self.v_reset, v_dormant=dormant, wake=self.wake,
            n=self.n, surrogate=self.surrogate, alpha=self.alpha, detach_reset=self.detach_reset,
            detach_gate=self.detach_gate, state=self.state, backend=self.backend,
        )  # fmt: skip
        return self._done(trace)

    def _done(self, trace: Trace) -> Tensor:
        """Keep the state, tell who watches, warn of a dead layer."""
        self.state = trace.state
        if self.watch is not None:
            self.watch(self, trace)
        whole = self.wake == "never" and self.step_mode == "m"
        if whole and not self._warned and (awake := float(trace.awake.detach().mean())) < SILENT:
            self._warned = True
            warnings.warn(f"a layer of wake='never' neurons is awake in only {awake:.1%} of its neuron-steps: it learns nothing; "
                          "start at v_dormant=-1 and raise it", stacklevel=3)  # fmt: skip
        return trace.spikes if self.step_mode == "m" else trace.spikes[0]

    def extra_repr(self) -> str:
        dormant = self.v_dormant.detach()
        shown = f"{dormant.item():g}" if dormant.numel() == 1 else f"[{dormant.min():g}, {dormant.max():g}]"
        tau = float(self.tau)
        until = f"{self.wake}, n={self.n}" if self.n else self.wake
        return f"tau={tau:g}, v_threshold={self.v_threshold:g}, v_reset={self.v_reset}, v_dormant={shown}, wake={until}"

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts at rest, and nobody watches it."""
        return {**self.__dict__, "state": None, "watch": None}
