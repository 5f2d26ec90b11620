"""An optimiser of two stages: one that travels (Muon), then one that sees scale (the refiner)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gnomon.optimization.muon_river.travel import Travel

Make = Callable[[list[Tensor]], Optimizer]


class TwoStage(Optimizer):
    r"""Stage 1 until the switch, then stage 2, on the matrices; an optimiser of their own for everything else.

    Parameters
    ----------
    params_or_model : iterable of Tensor, or torch.nn.Module
        Matrices go to the two stages, all other parameters to ``aux``; of a module, embeddings and the output head too.
    stage1, stage2 : callable
        Make an optimiser from a list of matrices: Muon (`torch.optim.Muon` or `SpectralDescent`) and the refiner (AdamW,
        SGD with or without momentum).
    switch : int, float or "auto"
        A step (0: the refiner from the start; ``math.inf``: never), a fraction of ``total_steps`` in (0, 1), or when
        nothing is travelled any more (:class:`gnomon.optimization.muon_river.travel.Travel`; this rule is ours, not
        the paper's). It costs one more polar factor of each matrix a step.
    total_steps : int, optional
        Needed by a fraction, and by ``schedule2="linear"``.
    min_steps : int
        "auto" never fires before.
    noisy : bool
        Whether gradients come from mini-batches; then give "auto" the losses, by the closure or by `report`.
    carry : {"reset", "momentum"}
        Whether the refiner starts from stage 1's buffer M, as ``M / ||M||_F ||G||_F`` (AdamW or SGD with momentum).
    lr2 : float, optional
        The refiner's learning rate. None: that with which its first update has ``match`` times the RMS of a Muon update
        at the same point (where the switch is at step 0, as stage2 has it).
    match : float
        > 0.
    schedule2 : {"constant", "linear"}
        Of stage 2 on its own: as it is, or linear to zero at ``total_steps``. The factor of a torch scheduler applies
        on top of it in both stages; its base rate does not.
    aux : callable, optional
        Makes the optimiser of what is no hidden matrix (default: AdamW at 3e-4, without weight decay).

    Attributes
    ----------
    switched_at_ : int or None
        The first step of stage 2.
    reason_ : str or None
        Why.
    lr2_ : float or None
        What the refiner runs at.

    Raises
    ------
    ValueError
        For an option out of range, a parameter given twice, no matrix at all, or a fraction without total_steps.

    Notes
    -----
    ``param_groups`` is one list with stage 1's groups and ``aux``'s: what schedulers act on, before and after.

    References
    ----------
    Shen et al., arXiv 2606.21514.
    """

    def __init__(self, params_or_model: Any, stage1: Make, stage2: Make, switch: int | float | Literal["auto"] = "auto",
                 total_steps: int | None = None, min_steps: int = 100, noisy: bool = True,
                 carry: Literal["reset", "momentum"] = "reset", lr2: float | None = None, match: float = 0.3, *,
                 schedule2: Literal["constant", "linear"] = "constant", aux: Make | None = None) -> None:  # fmt: skip
        matrices, others = split(params_or_model)
        if carry not in ("reset", "momentum") or schedule2 not in ("constant", "linear"):
            raise ValueError(
                f"carry {carry!r}, schedule2 {schedule2!r}: expected reset or momentum; constant or linear"
            )
        for name, value in (("lr2", lr2), ("match", match), ("total_steps", total_steps)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: got {value!r}; expected a positive number")
        if schedule2 == "linear" and total_steps is None:
            raise ValueError("total_steps: needed where stage 2 decays linearly to zero")
        self._at = switch_step(switch, total_steps)
        super().__init__([*matrices, *others], {})
        self.total_steps, self.min_steps, self.carry = total_steps, min_steps, carry
        self.lr2, self.match, self.schedule2 = lr2, match, schedule2
        self._make2, self._matrices = stage2, matrices
        self._first: Optimizer | None = stage1(matrices)
        self._second: Optimizer | None = None
        make_aux = aux or (lambda p: torch.optim.AdamW(p, lr=3e-4, weight_decay=0.0))
        self._aux = make_aux(others) if others else None
        self._step = 0
        self._loss: float | None = None
        self._travel = Travel(noisy) if self._at is None else None
        self.switched_at_: int | None = None
        self.reason_: str | None = None
        self.lr2_: float | None = None
        self._outer = self._first.param_groups
        self._base = float(self._outer[0]["lr"])
        self._link()

    # --- stepping ---

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of the stage at hand; the switch, where it is due, comes before it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            self.report(float(loss))
        if self._second is None and (reason := self._due()) is not None:
            self._switch(reason)
        elif self._second is not None:
            self._refine()
        elif self._first is not None:
            self._first.step()
        if self._aux is not None:
            self._aux.step()
        self._step += 1
        return loss

    def report(self, loss: float) -> None:
        """Tell "auto" the loss of the step that follows."""
        self._loss = float(loss)

    def _due(self) -> str | None:
        if self._travel is None:
            return f"step {self._at}" if self._at is not None and self._step >= self._at else None
        grads = [p.grad for p in self._matrices if p.grad is not None]
        if len(grads) < len(self._matrices):
            return None  # a matrix without a gradient: nothing to judge by
        self._travel.update(grads, self._loss)
        self._loss = None
        return self._travel.reason() if self._step >= self.min_steps else None

    def _switch(self, reason: str) -> None:
        """The first refiner step, in place of stage 1's."""
        first, second = self._first, self._make2(self._matrices)
        assert first is not None
        rates = [float(group["lr"]) for group in second.param_groups]
        moved = None
        if self.lr2 is None and self._step > 0:  # how far Muon would have moved, from here
            before = [p.clone() for p in self._matrices]
            first.step()
            moved = _rms([p - b for p, b in zip(self._matrices, before, strict=True)])
            torch._foreach_copy_(self._matrices, before)
        if self.carry == "momentum" and self._step > 0:
            warm_start(first, second)
        self._first, self._second, self._travel = None, second, None
        self._ratios = [rate / rates[0] for rate in rates]
        self.lr2_ = self.lr2 if self.lr2 is not None else rates[0]
        self.switched_at_, self.reason_ = self._step, reason
        if moved is None:
            self._refine()
            return
        before = [p.clone() for p in self._matrices]
        self._refine()
        steps = [p - b for p, b in zip(self._matrices, before, strict=True)]
        own = _rms(steps)
        if own > 0:  # an update is linear in the learning rate, decoupled weight decay included
            scale = self.match * moved / own
            torch._foreach_copy_(self._matrices, [b + scale * s for b, s in zip(before, steps, strict=True)])
            self.lr2_ *= scale

    def _refine(self) -> None:
        assert self._second is not None
        assert self.lr2_ is not None
        assert self.switched_at_ is not None
        group = self._outer[0]
        factor = float(group["lr"]) / float(group.get("initial_lr", self._base) or 1.0)
        if self.schedule2 == "linear" and self.total_steps is not None:
            left = self.total_steps - self.switched_at_
            factor *= max(0.0, 1 - (self._step - self.switched_at_) / left) if left > 0 else 0.0
        for inner, ratio in zip(self._second.param_groups, self._ratios, strict=True):
            inner["lr"] = self.lr2_ * ratio * factor
        self._second.step()

    # --- the contract of torch.optim.Optimizer ---

    def _link(self) -> None:
        """One list object, holding the group objects that the inner optimisers and schedulers act on."""
        self.param_groups[:] = [*self._outer, *(self._aux.param_groups if self._aux is not None else [])]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not after the start: the stages would not agree on what is theirs."""
        if hasattr(self, "_first"):
            raise RuntimeError("TwoStage takes no more parameters once it is made; give them all at the start")
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def state_dict(self) -> dict[str, Any]:
        """Plain containers and tensors, in either stage."""
        inner = {name: None if made is None else made.state_dict()
                 for name, made in (("first", self._first), ("second", self._second), ("aux", self._aux))}  # fmt: skip
        outer = [{k: v for k, v in group.items() if k != "params"} for group in self._outer]
        own = {"step": self._step, "switched_at": self.switched_at_, "reason": self.reason_, "lr2": self.lr2_, "base": self._base,
               "travel": self._travel.state_dict() if self._travel is not None else None}  # fmt: skip
        return copy.copy({"state": inner, "param_groups": outer, "two_stage": own})

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up where another left off, in whichever stage it was.

        Raises
        ------
        ValueError
            For a state of another kind of optimiser.
        """
        if "two_stage" not in state_dict:
            raise ValueError("state_dict: not of a TwoStage optimiser")
        inner, own = state_dict["state"], state_dict["two_stage"]
        if inner["second"] is None:
            if self._first is None:
                raise ValueError("state_dict: of stage 1, and this optimiser has switched; make a new one")
            self._first.load_state_dict(inner["first"])
            self._outer = self._first.param_groups
        else:
            self._second = self._make2(self._matrices)
            rates = [float(group["lr"]) for group in self._second.param_groups]
            self._ratios = [rate / rates[0] for rate in rates]
            self._second.load_state_dict(inner["second"])
            self._first = self._travel = None
            for group, saved in zip(self._outer, state_dict["param_groups"], strict=True):
                group.update(saved)
        if self._aux is not None:
            self._aux.load_state_dict(inner["aux"])
        self._step, self.switched_at_, self.reason_ = own["step"], own["switched_at"], own["reason"]
        self.lr2_, self._base = own["lr2"], own["base"]
        if self._travel is not None and own["travel"] is not None:
            self._travel.load_state_dict(own["travel"])
        self._link()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of all parameters."""
        super().zero_grad(set_to_none)


def split(params_or_model: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Hidden matrices, and everything else that is trained."""
    excluded: set[int] = set()
    if isinstance(params_or_model, nn.Module):
        params: list[Tensor] = [p for p in params_or_model.parameters() if p.requires_grad]
        excluded = outer_weights(params_or_model)
    else:
        params = list(params_or_model)
    if bad := [type(p).__name__ for p in params if not isinstance(p, Tensor)]:
        raise TypeError(f"params: got {bad[0]}; expected tensors or a module")
    if len({id(p) for p in params}) < len(params):
        raise ValueError("params: the same parameter is given twice")
    matrices = [p for p in params if p.dim() == 2 and id(p) not in excluded]
    if not matrices:
        raise ValueError(
            f"Muon needs matrices; found shapes {', '.join(str(tuple(p.shape)) for p in params) or 'none'}"
        )
    chosen = {id(p) for p in matrices}
    return matrices, [p for p in params if id(p) not in chosen]


def outer_weights(model: nn.Module) -> set[int]:
    """Embeddings and the output head (of a transformers model, or named so): no hidden matrices."""
    found = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    ask: Any = getattr(model, "get_output_embeddings", None)
    head = ask() if ask is not None else None
    heads = (
        [head]
        if isinstance(head, nn.Module)
        else [m for name, m in model.named_modules() if name.split(".")[-1] in HEADS]
    )
    return found | {id(p) for module in heads for p in module.parameters()}


HEADS = ("lm_head", "head", "classifier", "score")


def switch_step(switch: Any, total_steps: int | None) -> float | None:
    """The step of the switch; None for "auto"."""
    if switch == "auto":
        return None
    if isinstance(switch, bool) or not isinstance(switch, int | float) or math.isnan(switch) or switch < 0:
        raise ValueError(f"switch: got {switch!r}; expected a step, a fraction in (0, 1), inf, or 'auto'")
    if isinstance(switch, int) or math.isinf(switch):
        return switch
    if not 0 < switch < 1:
        raise ValueError(f"switch: got {switch!r}; a fraction lies in (0, 1); a step is an int")
    if total_steps is None:
        raise ValueError(f"total_steps: needed where the switch is a fraction ({switch})")
    return round(switch * total_steps)


@torch.no_grad()
def warm_start(first: Optimizer, second: Optimizer) -> None:
    """The refiner's momentum from stage 1's buffer M: ``M / ||M||_F ||G||_F``, as if it had had it all along."""
    for group in second.param_groups:
        for p in group["params"]:
            buffer = first.state.get(p, {}).get("momentum_buffer")
            if buffer is None:
                raise ValueError("carry: stage 1 keeps no momentum_buffer to carry; use carry='reset'")
            if p.grad is None:
                continue
            warm = buffer / buffer.norm().clamp(min=1e-30) * p.grad.norm()
            if isinstance(second, torch.optim.Adam):  # AdamW is one
                steps = round(1 / (1 - group["betas"][0]))
                second.state[p] = {
                    "step": torch.tensor(float(steps)), "exp_avg": warm * (1 - group["betas"][0] ** steps),
                    "exp_avg_sq": p.grad.square() * (1 - group["betas"][1] ** steps),
                }  # fmt: skip
            elif isinstance(second, torch.optim.SGD) and group["momentum"] > 0:
                second.state[p]["momentum_buffer"] = warm / (1 - group["momentum"])  # its buffer is a sum, not a mean
            else:
                raise ValueError(f"carry: {type(second).__name__} has no momentum to warm; use carry='reset'")


def _rms(steps: Iterable[Tensor]) -> float:
    parts = list(steps)
    return math.sqrt(sum(float(s.double().square().sum()) for s in parts) / sum(s.numel() for s in parts))
