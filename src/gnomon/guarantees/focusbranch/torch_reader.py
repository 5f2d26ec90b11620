"""Torch modules as networks, by tracing."""

from __future__ import annotations

import copy
import math
import operator
from typing import Any

import torch
from torch import Tensor, fx, nn

from gnomon.guarantees.focusbranch.network import SUPPORTED, Builder, Network, Shape

PASSED = (nn.Identity, nn.Dropout, nn.Dropout2d, nn.AlphaDropout)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, qualified: str) -> bool:
        return type(m).__name__ == "Normalize" or super().is_leaf_module(m, qualified)


def pair(value: Any) -> tuple[int, int]:
    a, b = value if isinstance(value, tuple | list) else (value, value)
    return int(a), int(b)


def _unsupported(what: Any) -> TypeError:
    return TypeError(f"model: unsupported layer {what}; supported are {SUPPORTED}")


def from_module(model: nn.Module, shape: Shape) -> Network:
    """Trace and convert; dropout and batch normalisation act as in evaluation."""
    for name, value in model.named_parameters():
        if not torch.isfinite(value).all():
            raise ValueError(f"model: parameter {name} holds NaN or infinity; expected finite numbers")
    own = copy.deepcopy(model).eval()
    device = next((p.device for p in own.parameters()), torch.device("cpu"))
    plain: nn.Module = copy.deepcopy(own).cpu().float()
    if _Tracer().is_leaf_module(plain, ""):  # a single layer
        plain = nn.Sequential(plain)
    try:
        graph = _Tracer().trace(plain)
    except Exception as error:
        raise TypeError(f"model: its forward cannot be traced ({error}); supported are {SUPPORTED}") from error
    modules, build = dict(plain.named_modules()), Builder(tuple(shape))
    known: dict[fx.Node, Any] = {}
    last = 0
    for node in graph.nodes:
        if node.op == "placeholder":
            known[node] = 0
        elif node.op == "get_attr":
            known[node] = operator.attrgetter(str(node.target))(plain).detach()
        elif node.op == "output":
            last = known[node.args[0]]
        elif node.op == "call_module":
            known[node] = _module(build, modules[str(node.target)], str(node.target), known[node.args[0]])
        else:
            known[node] = _function(build, node, known)

    def real(images: Tensor) -> Tensor:
        with torch.no_grad():
            return own(images.to(device, next((p.dtype for p in own.parameters()), torch.float32))).cpu().float()

    return build.finish(last, real)


def _module(build: Builder, m: nn.Module, name: str, at: int) -> int:
    if isinstance(m, PASSED):
        return at
    if type(m).__name__ == "Normalize":
        mean, std = (torch.as_tensor(getattr(m, n)).double() for n in ("mean", "std"))
        return build.scale(name, at, 1 / std, -mean / std)
    if isinstance(m, nn.Linear):
        return build.linear(name, at, m.weight, m.bias)
    if isinstance(m, nn.Conv2d) and m.padding_mode == "zeros" and not isinstance(m.padding, str):
        return build.conv(name, at, m.weight, m.bias, pair(m.stride), pair(m.padding), pair(m.dilation), m.groups)
    if isinstance(m, nn.ReLU):
        return build.relu(name, at)
    if isinstance(m, nn.Flatten) and m.start_dim == 1 and m.end_dim == -1:
        return build.reshape(name, at, (math.prod(build.shape(at)),))
    if isinstance(m, nn.AvgPool2d) and not m.ceil_mode and m.divisor_override is None:
        return build.pool_average(name, at, pair(m.kernel_size), pair(m.stride), pair(m.padding), m.count_include_pad)
    if isinstance(m, nn.MaxPool2d) and not m.ceil_mode and pair(m.dilation) == (1, 1) and not m.return_indices:
        return build.pool_max(name, at, pair(m.kernel_size), pair(m.stride), pair(m.padding))
    if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) and m.running_mean is not None and m.running_var is not None:
        return build.norm(name, at, m.running_mean, m.running_var, m.eps, m.weight, m.bias)
    raise _unsupported(f"{type(m).__name__} ({m})")


def _function(build: Builder, node: fx.Node, known: dict[fx.Node, Any]) -> int:
    name, what = node.name, node.target
    values: list[Any] = [known[a] if isinstance(a, fx.Node) else a for a in node.args]
    steps = [isinstance(a, fx.Node) and isinstance(known[a], int) for a in node.args]
    if what in (torch.relu, nn.functional.relu, "relu"):
        return build.relu(name, values[0])
    if what in (torch.flatten, "flatten"):
        start = values[1] if len(values) > 1 else node.kwargs.get("start_dim", 0)
        if start == 1 and len(values) < 3 and "end_dim" not in node.kwargs:
            return build.reshape(name, values[0], (math.prod(build.shape(values[0])),))
    if what in (nn.functional.max_pool2d, nn.functional.avg_pool2d):
        kinds: Any = {nn.functional.max_pool2d: nn.MaxPool2d, nn.functional.avg_pool2d: nn.AvgPool2d}
        return _module(build, kinds[what](*values[1:], **node.kwargs), name, values[0])
    if what in ("view", "reshape"):
        return build.reshape(name, values[0], _resolved(build.shape(values[0]), values[1:], node))
    if what in (operator.add, operator.iadd, torch.add, "add"):
        if steps == [True, True]:
            return build.sum(name, values[0], values[1])
        if sum(steps) == 1:
            at, constant = (values[0], values[1]) if steps[0] else (values[1], values[0])
            return build.scale(name, at, 1.0, constant)
    if what in (operator.sub, torch.sub) and sum(steps) == 1:
        if steps[0]:
            return build.scale(name, values[0], 1.0, -torch.as_tensor(values[1]))
        return build.scale(name, values[1], -1.0, values[0])
    if what in (operator.mul, torch.mul) and sum(steps) == 1:
        at, constant = (values[0], values[1]) if steps[0] else (values[1], values[0])
        return build.scale(name, at, constant, 0.0)
    if what in (operator.truediv, torch.div) and steps[:1] == [True] and sum(steps) == 1:
        return build.scale(name, values[0], 1 / torch.as_tensor(values[1]).double(), 0.0)
    raise _unsupported(getattr(what, "__name__", what))


def _resolved(shape: Shape, args: list[Any], node: fx.Node) -> Shape:
    """``x.view(n, -1)``: the first argument is the batch, whatever it says."""
    args = list(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list) else args
    rest = [a for a in args[1:] if isinstance(a, int)]
    if len(rest) != len(args) - 1 or not rest:
        raise _unsupported(f"{node.target} with shape {node.args[1:]}")
    total, fixed = math.prod(shape), math.prod(a for a in rest if a != -1)
    return tuple(total // fixed if a == -1 else a for a in rest)
