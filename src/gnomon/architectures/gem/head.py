"""A model's head as GEM sees it: embeddings, scale of the logits, and the scale rule that lets states lie in the hull.

With a norm of gain 1, ||h|| = sqrt(d) while ||e|| is about 1, so that h cannot lie in the hull. The scale rule divides the
final norm's gain by beta = sqrt(d) / mean||e|| and multiplies the logits by it: the model computes what it did, with
states of the embeddings' size, and both factors are trained. Folding puts the two together again, which gives a plain
model of its class; its configuration keeps beta, so that diagnostics still know which h is meant.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnomon import models

CONFIG = "gem_logit_scale"  # of a folded model's configuration
MODULE = "gem_scale"  # of a model with the scale attached


class LogitScale(nn.Module):
    """Multiplies what enters the head by exp(log_scale), which is trained."""

    def __init__(self, beta: float):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(beta)))

    def forward(self, h: Tensor) -> Tensor:
        return h * self.log_scale.exp().to(h.dtype)


class _BeforeHead:
    """The hook: an object, so that a deep copy of the model holds the copy's own scale."""

    def __init__(self, scale: LogitScale):
        self.scale = scale

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.scale(args[0]), *args[1:])


@dataclass(frozen=True, eq=False)
class Head:
    """What reads the states of one model.

    Attributes
    ----------
    module : torch.nn.Module
        The head.
    scale : LogitScale or None
        Attached, and trained.
    folded : float
        What the final norm's output is divided by to give h.
    factor : float
        Of the logits, from the configuration (Cohere, Granite).
    cap : float or None
        Soft cap of the logits (Gemma 2).
    """

    module: nn.Module
    scale: LogitScale | None
    folded: float
    factor: float
    cap: float | None

    @property
    def E(self) -> Tensor:
        """Output embeddings (V, d)."""
        return self.module.weight  # type: ignore[return-value]

    @property
    def beta(self) -> Tensor | float:
        """Scale of the logits with respect to h; a tensor with its graph where it is trained."""
        if self.scale is not None:
            return self.scale.log_scale.exp() * self.factor
        return self.folded * self.factor

    @property
    def beta_value(self) -> float:
        """The scale as a number."""
        beta = self.beta
        return float(beta.detach()) if isinstance(beta, Tensor) else float(beta)

    @property
    def exact(self) -> bool:
        """Whether the logits are beta E h, nothing else."""
        return self.cap is None and getattr(self.module, "bias", None) is None

    def states(self, normed: Tensor) -> Tensor:
        """h, from the output of the final norm."""
        return normed if self.folded == 1 else normed / self.folded

    def logits(self, normed: Tensor) -> Tensor:
        """The model's own logits, from the output of the final norm."""
        logits: Tensor = self.module(normed)
        if self.factor != 1:
            logits = logits * self.factor
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


def head_of(model: nn.Module) -> Head:
    """The head of a causal language model.

    Raises
    ------
    TypeError
        When it has no output embeddings, or is not built as such models are (see ``gnomon.models.structure``).
    ValueError
        When the head's rows are not as wide as the hidden states.

    Warns
    -----
    UserWarning
        When the head has a bias or a soft cap: the mixture is of the rows alone, the probabilities are the model's own.
    """
    parts = models.structure(model)
    width = models.linear_weight(parts.head).shape[1]
    if width != parts.hidden_size:
        name = next(n for n, m in model.named_modules() if m is parts.head)
        raise ValueError(
            f"model: the rows of {name!r} have {width} numbers and the hidden states {parts.hidden_size}: "
            "a projection lies between them, so that a state is no mixture of its rows"
        )
    config: Any = model.config.get_text_config()  # type: ignore[operator, union-attr]
    scale = getattr(model, MODULE, None)
    factor = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    folded = 1.0 if scale is not None else float(getattr(config, CONFIG, 1.0))
    head = Head(parts.head, scale, folded, factor, getattr(config, "final_logit_softcapping", None))
    if not head.exact:
        what = "a soft cap" if head.cap is not None else "a bias"
        warnings.warn(f"the head has {what}: the mixture is of its rows alone, with the model's own probabilities",
                      UserWarning, stacklevel=2)  # fmt: skip
    return head


# --- the scale rule ---------------------------------------------------------------------------------------------------


def scale_rule(model: nn.Module) -> float:
    """Attach beta = sqrt(d) / mean||e||, by which states with a norm's gain of 1 get the embeddings' size.

    A model that was folded keeps its own beta.

    Returns
    -------
    float
        beta.
    """
    head = head_of(model)
    given = head.folded
    if given == 1:
        given = float(math.sqrt(head.E.shape[1]) / head.E.detach().float().norm(dim=1).mean())
    attach_scale(model, given)
    return given


def attach_scale(model: nn.Module, beta: float) -> None:
    """Divide the final norm's gain by ``beta`` and multiply the logits by it, in place; both are trained from then on.

    The model's state dict, and so every checkpoint, holds the gain with beta folded in: what is saved is a model of its
    class with the right logits.

    Raises
    ------
    ValueError
        For beta <= 0, or a model that has its scale already.
    TypeError
        For a final norm without a gain.
    """
    if not (beta > 0 and math.isfinite(beta)):
        raise ValueError(f"beta: got {beta}; expected a finite number > 0")
    if hasattr(model, MODULE):
        raise ValueError("model: the scale is attached already")
    parts = models.structure(model)
    norm, rescale = parts.norm, _rescaling(parts.norm)
    names = {m: n for n, m in model.named_modules()}
    scale = LogitScale(beta).to(parts.head.weight.device)  # type: ignore[arg-type]
    hook = parts.head.register_forward_pre_hook(_BeforeHead(scale))
    model.add_module(MODULE, scale)
    with torch.no_grad():
        for name, value in norm.named_parameters():
            value.copy_(rescale(name, value, 1 / beta))
    model.config.__dict__[CONFIG] = beta  # type: ignore[union-attr]

    def folded(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        own = state.get(f"{prefix}{MODULE}.log_scale")
        for name, _value in norm.named_parameters():
            key = f"{prefix}{names[norm]}.{name}"
            if own is not None and key in state:
                state[key] = rescale(name, state[key], float(own.exp()))

    def unfolded(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        own = state.get(f"{prefix}{MODULE}.log_scale")
        for name, _value in norm.named_parameters():
            key = f"{prefix}{names[norm]}.{name}"
            if own is not None and key in state:
                state[key] = rescale(name, state[key], 1 / float(own.exp()))

    saving = model.register_state_dict_post_hook(folded)
    loading = model.register_load_state_dict_pre_hook(unfolded)
    scale.handles = [hook, saving, loading]  # type: ignore[assignment]


def fold_scale(model: nn.Module) -> float:
    """Put an attached scale into the final norm's gain, in place; the configuration keeps its value.

    Returns
    -------
    float
        beta (1 where none was attached).
    """
    scale = getattr(model, MODULE, None)
    if scale is None:
        return float(getattr(model.config, CONFIG, 1.0))
    beta = float(scale.log_scale.detach().exp())
    norm = models.structure(model).norm
    rescale = _rescaling(norm)
    with torch.no_grad():
        for name, value in norm.named_parameters():
            value.copy_(rescale(name, value, beta))
    for handle in scale.handles:
        handle.remove()
    delattr(model, MODULE)
    model.config.__dict__[CONFIG] = beta  # type: ignore[union-attr]
    return beta


def _rescaling(norm: nn.Module) -> Callable[[str, Tensor, float], Tensor]:
    """How a parameter of this norm changes for its output to be multiplied: w f, or Gemma's (1 + w) f - 1."""
    given = dict(norm.named_parameters())
    if "weight" not in given or not set(given) <= {"weight", "bias"}:
        raise TypeError(
            f"{type(norm).__name__}: the final norm has no gain to scale, but {', '.join(given) or 'nothing'}"
        )
    kept = {name: value.detach().clone() for name, value in given.items()}
    x = torch.linspace(-1, 1, 2 * len(given["weight"])).view(2, -1).to(given["weight"])

    def plain(name: str, value: Tensor, factor: float) -> Tensor:
        return value * factor

    def shifted(name: str, value: Tensor, factor: float) -> Tensor:
        return (1 + value) * factor - 1 if name == "weight" else value * factor

    with torch.no_grad():
        before = norm(x).float()
        for rule in (plain, shifted):
            for name, value in given.items():
                value.copy_(rule(name, kept[name], 2.0))
            after = norm(x).float()
            for name, value in given.items():
                value.copy_(kept[name])
            if torch.allclose(after, 2 * before, rtol=1e-2, atol=1e-2 * float(before.abs().max())):
                return rule
    raise TypeError(f"{type(norm).__name__}: the final norm's gain does not scale its output")


def takes(model: nn.Module, name: str) -> bool:
    """Whether the model's forward has a parameter of this name."""
    return name in inspect.signature(model.forward).parameters
