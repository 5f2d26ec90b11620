"""Spectral gradient descent: each matrix steps along the polar factor of its (averaged) gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gnomon.optimization.spectral_descent.orthogonal import check_options, finite, orthogonalise

ORTHS = ("exact", "newton_schulz", "smoothed", "cubic")
SCALES = ("none", "original", "match_rms_adamw")


def step_scale(scale: str, shape: torch.Size) -> float:
    """What the polar factor of a matrix (rows, columns) is multiplied by."""
    rows, columns = shape
    if scale == "original":
        return math.sqrt(max(1.0, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns)) if scale == "match_rms_adamw" else 1.0


class SpectralDescent(Optimizer):
    r"""Spectral gradient descent; with momentum it is Muon.

    ``W <- (1 - lr weight_decay) W - lr scale(W) T(M)``, all parameters from the same iterate, T the polar map
    (:func:`gnomon.optimization.polar`) and M the gradient, or its running average: ``buf <- momentum buf + (1 - momentum)
    grad``, and with ``nesterov`` ``M = momentum buf + (1 - momentum) grad``, as in `torch.optim.Muon`. The exact polar
    map does not see scale, so that a heavy ball would give the same direction; the smoothed one does.

    Parameters of one shape, dtype and device are orthogonalised in one batched call.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
        Matrices only; give embeddings, norms and biases to AdamW.
    lr : float
        > 0. For ``scale="none"`` each singular direction moves by ``lr`` a step, in the units of the parameter.
    momentum : float
        In [0, 1).
    nesterov : bool
        Only with momentum > 0.
    orth : {"exact", "newton_schulz", "smoothed", "cubic"}
        The polar map.
    beta : float
        Of "smoothed", >= 0. At a minimum the exact map chatters with an amplitude of about lr; beta > 0 or a decaying
        learning rate ends that.
    ns_steps, ns_dtype
        Iterations of "newton_schulz" and "cubic" and their dtype (None: the parameter's own).
    scale : {"none", "original", "match_rms_adamw"}
        Multiplies the step by 1, by ``sqrt(max(1, rows / columns))``, or by ``0.2 sqrt(max(rows, columns))``, with which
        entries move about as AdamW's do at the same lr.
    weight_decay : float
        >= 0, decoupled.
    maximize : bool
        Ascend.
    foreach : bool or None
        False: one matrix at a time (slower; the same result to rounding).

    Raises
    ------
    ValueError
        For a parameter that is no matrix (it is named) or an option out of range.
    RuntimeError
        From `step`, before anything has changed: a gradient with NaN or infinity (the parameter is named), or sparse.

    Notes
    -----
    A singular value below ``1e-12 max(shape)`` times the largest that this parameter's update ever had counts as zero:
    the polar factor of a numerically zero gradient would be rounding noise at full step. In particular a LoRA factor
    whose partner is zero, and so has no gradient, does not move. Memory: one buffer a parameter, none at momentum 0.

    References
    ----------
    Kang, Yun, Shin, Cho, Yun, arXiv 2602.06385; Jordan et al., "Muon" (2024).

    Examples
    --------
    >>> import torch
    >>> from gnomon.optimization import SpectralDescent
    >>> W = torch.nn.Parameter(torch.zeros(3, 2))
    >>> optimizer = SpectralDescent([W], lr=0.5)
    >>> W.grad = torch.tensor([[3.0, 0.0], [0.0, -2.0], [0.0, 0.0]])
    >>> optimizer.step()
    >>> W.detach()
    tensor([[-0.5000,  0.0000],
            [ 0.0000,  0.5000],
            [ 0.0000,  0.0000]])
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.0, nesterov: bool = False,
                 orth: str = "exact", beta: float = 0.0, ns_steps: int = 5, ns_dtype: torch.dtype | None = torch.bfloat16,
                 scale: str = "none", weight_decay: float = 0.0, *, maximize: bool = False,
                 foreach: bool | None = None) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov, "orth": orth, "beta": beta,
                                  "ns_steps": ns_steps, "ns_dtype": ns_dtype, "scale": scale, "weight_decay": weight_decay,
                                  "maximize": maximize, "foreach": foreach})  # fmt: skip

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own; both are checked."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check(group, len(self.param_groups) - 1)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step; parameters without a gradient are left alone.

        Parameters
        ----------
        closure : callable, optional
            Computes the loss anew, with gradients, and returns it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # nothing moves unless every gradient is sound
        batches = [(group, batch) for index, group in enumerate(self.param_groups) for batch in _batches(group, index)]
        for group, batch in batches:
            self._update(group, batch)
        return loss

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """All matrices of one shape at once."""
        states = [self.state[p] for p in params]
        moved: list[Tensor] = [p.grad for p in params]  # type: ignore[misc]
        if group["maximize"]:
            moved = list(torch._foreach_neg(moved))
        momentum = group["momentum"]
        if momentum > 0:
            for state, grad in zip(states, moved, strict=True):
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(grad)
            buffers = [state["momentum_buffer"] for state in states]
            torch._foreach_lerp_(buffers, moved, 1 - momentum)
            moved = list(torch._foreach_lerp(moved, buffers, momentum)) if group["nesterov"] else buffers
        spectral = group["orth"] in ("exact", "smoothed")
        largest = None
        if spectral:
            for state, p in zip(states, params, strict=True):
                if "largest" not in state:  # the largest singular value that this parameter's update ever had
                    state["largest"] = torch.zeros((), dtype=torch.float32, device=p.device)
            largest = torch.stack([state["largest"] for state in states])
        stack = torch.stack(moved) if len(moved) > 1 else moved[0][None]
        step, seen = orthogonalise(stack, group["orth"], group["beta"], group["ns_steps"], largest, group["ns_dtype"])
        if spectral:
            torch._foreach_copy_([state["largest"] for state in states], list(seen.float().unbind()))
        lr = float(group["lr"])
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        torch._foreach_add_(params, list(step.unbind()), alpha=-lr * step_scale(group["scale"], params[0].shape))


def _name(group: dict[str, Any], position: int, index: int) -> str:
    if "param_names" in group:
        return f"parameter {group['param_names'][position]!r}"
    return f"parameter {position} of group {index}"


def _check(group: dict[str, Any], index: int) -> None:
    check_options(group["orth"], group["beta"], group["ns_steps"], ORTHS, "orth")
    if group["scale"] not in SCALES:
        raise ValueError(f"scale: got {group['scale']!r}; expected one of {', '.join(SCALES)}")
    for name, low, high, told in (("lr", 0.0, math.inf, ">= 0"), ("momentum", 0.0, 1.0, "in [0, 1)"),
                                  ("weight_decay", 0.0, math.inf, ">= 0")):  # fmt: skip
        if not low <= float(group[name]) < high:
            raise ValueError(f"{name}: got {group[name]!r}; expected a number {told}")
    if group["nesterov"] and group["momentum"] == 0:
        raise ValueError("nesterov: got True with momentum 0; expected momentum > 0")
    for position, p in enumerate(group["params"]):
        if p.dim() != 2:
            raise ValueError(
                f"{_name(group, position, index)} has shape {tuple(p.shape)}; SpectralDescent takes matrices only: "
                "give it to torch.optim.AdamW"
            )
        if not p.is_floating_point():
            raise ValueError(f"{_name(group, position, index)} is of {p.dtype}; expected real floating-point numbers")


def _batches(group: dict[str, Any], index: int) -> list[list[Tensor]]:
    """The parameters that have a gradient, those of one shape, dtype and device together."""
    found: dict[Any, list[Tensor]] = {}
    for position, p in enumerate(group["params"]):
        if p.grad is None or p.numel() == 0:
            continue
        if p.grad.is_sparse:
            raise RuntimeError(f"{_name(group, position, index)} has a sparse gradient, which has no polar factor here")
        alone = position if group["foreach"] is False else None
        found.setdefault((tuple(p.shape), p.dtype, p.grad.dtype, p.device, alone), []).append(p)
    # a finite sum proves all entries finite; an infinite one may be an overflow
    totals = [torch.stack([p.grad.sum() for p in batch if p.grad is not None]) for batch in found.values()]
    if not all(bool(torch.isfinite(total).all()) for total in totals):
        for position, p in enumerate(group["params"]):
            if p.grad is not None and not finite(p.grad):
                raise RuntimeError(f"{_name(group, position, index)} has a gradient with NaN or infinity")
    return list(found.values())
