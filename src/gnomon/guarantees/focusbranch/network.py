"""A network as a short list of affine and piecewise linear steps, read from a torch module or an ONNX file.

Bounds, the mixed-integer leaf and the attacks all walk this one list.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Shape = tuple[int, ...]
Pair = tuple[int, int]
SUPPORTED = (
    "Linear, Conv2d, AvgPool2d, MaxPool2d, ReLU, Flatten, Normalize, BatchNorm, Identity, Dropout, addition of two branches; "
    "ONNX: Conv, Gemm, MatMul, Add, Sub, Mul, Div, Relu, Flatten, Reshape, AveragePool, MaxPool, BatchNormalization"
)


@dataclass(frozen=True)
class Step:
    """One step: ``inputs`` are indices of earlier steps, ``shape`` that of its output without the batch."""

    name: str
    inputs: tuple[int, ...]
    shape: Shape


@dataclass(frozen=True)
class Input(Step):
    """The image in [0, 1]."""


@dataclass(frozen=True)
class Linear(Step):
    """y = W x + b."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Conv(Step):
    """2-D convolution."""

    weight: Tensor
    bias: Tensor
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1


@dataclass(frozen=True)
class Scale(Step):
    """y = x * scale + offset, both broadcast to the shape."""

    scale: Tensor
    offset: Tensor


@dataclass(frozen=True)
class Reshape(Step):
    """The same numbers in another shape."""


@dataclass(frozen=True)
class Relu(Step):
    """max(x, 0)."""


@dataclass(frozen=True)
class MaxPool(Step):
    """Largest of each window."""

    kernel: Pair = (2, 2)
    stride: Pair = (2, 2)
    padding: Pair = (0, 0)

    def windows(self, source: Shape) -> Tensor:
        """Flat indices into the source of every window: (outputs, members); -1 where a window leaves the image."""
        c, h, w = source
        index = torch.arange(c * h * w, dtype=torch.float64).reshape(1, c, h, w)
        p = (self.padding[1], self.padding[1], self.padding[0], self.padding[0])
        index = F.pad(index, p, value=-1.0)
        parts = index.unfold(2, self.kernel[0], self.stride[0]).unfold(3, self.kernel[1], self.stride[1])
        return parts[0, :, : self.shape[1], : self.shape[2]].reshape(-1, math.prod(self.kernel)).long()


@dataclass(frozen=True)
class Add(Step):
    """Sum of two earlier steps."""


@dataclass(frozen=True)
class Network:
    """Steps in order of evaluation; the first is the input, the last gives the scores.

    Attributes
    ----------
    steps : list of Step
        What is computed.
    real : callable
        The person's own model: a batch of images (n, *shape) in [0, 1] to scores (n, classes), float32.
    """

    steps: list[Step]
    real: Callable[[Tensor], Tensor] = field(repr=False)

    @property
    def shape(self) -> Shape:
        """Of an image."""
        return self.steps[0].shape

    @property
    def classes(self) -> int:
        return self.steps[-1].shape[0]

    @property
    def channels(self) -> int:
        return self.shape[0] if len(self.shape) == 3 else 1

    @property
    def pixels(self) -> int:
        """Positions that can change: a pixel with all its channels is one."""
        return math.prod(self.shape) // self.channels

    def to(self, dtype: torch.dtype) -> Network:
        """The same with weights in another precision."""
        return replace(self, steps=[_cast(step, dtype) for step in self.steps])

    def __call__(self, images: Tensor) -> Tensor:
        """Scores (n, classes) of images (n, *shape) by these steps, in their own precision."""
        values: list[Tensor] = []
        for step in self.steps:
            values.append(images if isinstance(step, Input) else forward(step, [values[i] for i in step.inputs]))
        return values[-1]


def forward(step: Step, inputs: list[Tensor], constant: bool = True) -> Tensor:
    """One step on a batch; ``constant=False`` leaves the offsets of affine steps out."""
    x = inputs[0]
    match step:
        case Linear():
            return F.linear(x, step.weight, step.bias if constant else None)
        case Conv():
            bias = step.bias if constant else None
            return F.conv2d(x, step.weight, bias, step.stride, step.padding, step.dilation, step.groups)
        case Scale():
            return x * step.scale + step.offset if constant else x * step.scale
        case Reshape():
            return x.reshape(len(x), *step.shape)
        case Relu():
            return x.relu()
        case MaxPool():
            return F.max_pool2d(x, step.kernel, step.stride, step.padding)
        case Add():
            return x + inputs[1]
    raise TypeError(f"model: no evaluation of {type(step).__name__}")


def _cast(step: Step, dtype: torch.dtype) -> Step:
    tensors: dict[str, Any] = {name: value.to(dtype) for name, value in vars(step).items() if isinstance(value, Tensor)}
    return replace(step, **tensors) if tensors else step


# --- building --------------------------------------------------------------------------------------------------------


class Builder:
    """Appends steps and knows every shape; what the two readers share."""

    def __init__(self, shape: Shape):
        self.steps: list[Step] = [Input("input", (), shape)]

    def add(self, step: Step) -> int:
        for name, value in vars(step).items():
            if isinstance(value, Tensor) and not torch.isfinite(value).all():
                raise ValueError(f"model: parameter {step.name}.{name} holds NaN or infinity; expected finite numbers")
        self.steps.append(step)
        return len(self.steps) - 1

    def shape(self, at: int) -> Shape:
        return self.steps[at].shape

    def linear(self, name: str, at: int, weight: Tensor, bias: Tensor | None) -> int:
        weight = weight.detach().double()
        bias = torch.zeros(len(weight), dtype=torch.float64) if bias is None else bias.detach().double()
        if self.shape(at) != (weight.shape[1],):
            raise ValueError(f"model: {name} takes {weight.shape[1]} numbers and gets {self.shape(at)}")
        return self.add(Linear(name, (at,), (len(weight),), weight, bias))

    def conv(self, name: str, at: int, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair,
             groups: int) -> int:  # fmt: skip
        weight = weight.detach().double()
        bias = torch.zeros(len(weight), dtype=torch.float64) if bias is None else bias.detach().double()
        c, *size = self.shape(at)
        if c != weight.shape[1] * groups:
            raise ValueError(f"model: {name} takes {weight.shape[1] * groups} channels and gets {c}")
        out = [(n + 2 * p - d * (k - 1) - 1) // s + 1
               for n, k, s, p, d in zip(size, weight.shape[2:], stride, padding, dilation, strict=True)]  # fmt: skip
        return self.add(Conv(name, (at,), (len(weight), *out), weight, bias, stride, padding, dilation, groups))

    def scale(self, name: str, at: int, scale: Any, offset: Any) -> int:
        """Broadcast over the shape; a vector of as many numbers as channels is taken by channel."""
        shape = self.shape(at)

        def spread(value: Any) -> Tensor:
            value = torch.as_tensor(value).detach().double()
            while value.dim() > len(shape) and value.shape[0] == 1:
                value = value[0]
            if value.dim() == 1 and len(shape) == 3 and len(value) in (1, shape[0]):
                value = value[:, None, None]
            try:
                return value.expand(shape).clone()
            except RuntimeError:
                raise TypeError(
                    f"model: constant of shape {tuple(value.shape)} in {name} does not fit {shape}"
                ) from None

        return self.add(Scale(name, (at,), shape, spread(scale), spread(offset)))

    def pool_average(self, name: str, at: int, kernel: Pair, stride: Pair, padding: Pair, include_pad: bool) -> int:
        """An average is a convolution by channel; borders that leave padding out are scaled up again."""
        c = self.shape(at)[0]
        weight = torch.full((c, 1, *kernel), 1 / math.prod(kernel), dtype=torch.float64)
        found = self.conv(name, at, weight, None, stride, padding, (1, 1), c)
        if include_pad or padding == (0, 0):
            return found
        ones = torch.ones(1, 1, *self.shape(at)[1:], dtype=torch.float64)
        share = F.conv2d(ones, weight[:1], None, stride, padding)[0].expand(self.shape(found))
        return self.scale(f"{name} border", found, 1 / share, torch.zeros(()))

    def pool_max(self, name: str, at: int, kernel: Pair, stride: Pair, padding: Pair) -> int:
        c, *size = self.shape(at)
        out = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(size, kernel, stride, padding, strict=True)]
        return self.add(MaxPool(name, (at,), (c, *out), kernel, stride, padding))

    def norm(self, name: str, at: int, mean: Tensor, var: Tensor, eps: float, weight: Any, bias: Any) -> int:
        scale = (1.0 if weight is None else weight.double()) / torch.sqrt(var.double() + eps)
        return self.scale(name, at, scale, (0.0 if bias is None else bias.double()) - mean.double() * scale)

    def relu(self, name: str, at: int) -> int:
        return self.add(Relu(name, (at,), self.shape(at)))

    def reshape(self, name: str, at: int, shape: Shape) -> int:
        if shape == self.shape(at):
            return at
        return self.add(Reshape(name, (at,), shape))

    def sum(self, name: str, a: int, b: int) -> int:
        if self.shape(a) != self.shape(b):
            raise TypeError(f"model: {name} adds {self.shape(a)} and {self.shape(b)}; expected equal shapes")
        return self.add(Add(name, (a, b), self.shape(a)))

    def finish(self, at: int, real: Callable[[Tensor], Tensor]) -> Network:
        """The network; compared with the real model on random images."""
        steps = self.steps[: at + 1]
        if len(steps[-1].shape) != 1 or steps[-1].shape[0] < 2:
            raise ValueError(f"model: its output has shape {steps[-1].shape}; expected scores of 2 classes or more")
        if isinstance(steps[-1], Relu | MaxPool):  # so that the scores are affine in what is bounded
            n = steps[-1].shape[0]
            steps = [*steps, Scale("scores", (at,), (n,), torch.ones(n).double(), torch.zeros(n).double())]
        found = Network(steps, real)
        images = torch.rand(4, *found.shape, generator=torch.Generator().manual_seed(0))
        want, got = real(images), found.to(torch.float32)(images)
        if want.shape != got.shape or not torch.allclose(want, got, atol=1e-3 * (1 + float(want.abs().max()))):
            raise ValueError(
                "model: what was read gives other scores than the model itself (is a layer random or stateful?)"
            )
        return found


def load_network(model: Any, shape: Shape | None = None) -> Network:
    """Read a network.

    Parameters
    ----------
    model : torch.nn.Module, str, Path or Network
        A module (evaluated as in ``eval()``) or the path of an ONNX file.
    shape : tuple of int, optional
        (channels, height, width) or (pixels,) of an image; needed for a module.

    Returns
    -------
    Network

    Raises
    ------
    TypeError
        For a layer that is not supported, naming it and those that are.
    ValueError
        For parameters that are not finite, naming the parameter.
    """
    if isinstance(model, Network):
        found = model
    elif isinstance(model, nn.Module):
        from gnomon.guarantees.focusbranch.torch_reader import from_module

        if shape is None:
            raise ValueError("shape: got None; a torch module needs the shape of an image")
        found = from_module(model, shape)
    elif isinstance(model, str | Path):
        from gnomon.guarantees.focusbranch.onnx_reader import from_onnx

        found = from_onnx(Path(model))
    else:
        raise TypeError(f"model: got {type(model).__name__}; expected a torch.nn.Module or the path of an ONNX file")
    if shape is not None and found.shape != tuple(shape):
        raise ValueError(f"image: got shape {tuple(shape)}; the model takes {found.shape}")
    return found
