"""ONNX files as networks."""

from __future__ import annotations

import importlib
import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnomon.guarantees.focusbranch.network import SUPPORTED, Builder, Network, Shape


def from_onnx(path: Path) -> Network:
    """Read an ONNX file whose first dimension is the batch.

    Raises
    ------
    ValueError
        For a path that is no ONNX file, and for an input whose shape is not fixed.
    TypeError
        For an operator that is not supported.
    """
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import numpy_helper

    if not path.is_file():
        raise ValueError(f"model: {path} is no file; expected an ONNX file")
    try:
        proto = onnx.load(path)
        onnx.checker.check_model(proto)
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise ValueError(f"model: {path} is no valid ONNX file: {str(error).splitlines()[0]}") from error
    constants: dict[str, np.ndarray] = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    for name, value in constants.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ValueError(f"model: parameter {name} holds NaN or infinity; expected finite numbers")
    (given,) = [i for i in proto.graph.input if i.name not in constants]
    dims = [d.dim_value for d in given.type.tensor_type.shape.dim][1:]
    if not dims or min(dims) < 1 or len(dims) not in (1, 3):
        raise ValueError(
            f"model: its input has shape {dims}; expected (channels, height, width) or (pixels,), all fixed"
        )
    build = Builder(tuple(dims))
    known: dict[str, int] = {given.name: 0}
    for node in proto.graph.node:
        options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Constant":
            constants[node.output[0]] = numpy_helper.to_array(options["value"])
        else:
            known[node.output[0]] = _convert(build, node, options, known, constants)
    last = known[proto.graph.output[0].name]
    return build.finish(
        last, _evaluator(proto, given.name, 1 if given.type.tensor_type.shape.dim[0].dim_value == 1 else 0)
    )


def _evaluator(proto: Any, name: str, one: int) -> Any:
    """The file's own meaning, by onnxruntime where it is installed, else by onnx's reference evaluator.

    An image at a time where the batch is fixed at one.
    """
    session: Any
    if importlib.util.find_spec("onnxruntime") is not None:
        runtime: Any = importlib.import_module("onnxruntime")
        settings = runtime.SessionOptions()
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1
        session = runtime.InferenceSession(proto.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    else:
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(proto)

    def real(images: Tensor) -> Tensor:
        array = images.numpy().astype(np.float32)
        parts = np.split(array, len(array)) if one and len(array) else [array]
        return torch.from_numpy(np.concatenate([session.run(None, {name: part})[0] for part in parts])).float()

    return real


def _convert(build: Builder, node: Any, options: dict[str, Any], known: dict[str, int],
             constants: dict[str, np.ndarray]) -> int:  # fmt: skip
    name, kind, inputs = node.name or node.output[0], node.op_type, list(node.input)

    def constant(at: int) -> Tensor | None:
        if at >= len(inputs) or not inputs[at]:
            return None
        if inputs[at] not in constants:
            raise TypeError(f"model: {kind} ({name}) whose weights are computed is not supported")
        return torch.from_numpy(np.array(constants[inputs[at]]))

    steps = [known[i] for i in inputs if i in known]
    at = steps[0] if steps else -1
    if at < 0:
        raise TypeError(f"model: {kind} ({name}) of constants alone is not supported")
    shape = build.shape(at)
    match kind:
        case "Relu":
            return build.relu(name, at)
        case "Gemm" if not options.get("transA", 0) and inputs[0] in known:
            weight, bias = constant(1), constant(2)
            assert weight is not None
            weight = weight.double() if options.get("transB", 0) else weight.double().T
            bias = None if bias is None else bias.double().expand(len(weight)) * options.get("beta", 1.0)
            return build.linear(name, at, weight * options.get("alpha", 1.0), bias)
        case "MatMul" if inputs[0] in known and len(shape) == 1:
            weight = constant(1)
            assert weight is not None
            return build.linear(name, at, weight.double().T, None)
        case "Conv" if len(shape) == 3:
            weight = constant(1)
            assert weight is not None
            stride, dilation = (tuple(options.get(n, (1, 1))) for n in ("strides", "dilations"))
            return build.conv(
                name, at, weight, constant(2), stride, _padding(options, kind), dilation, options.get("group", 1)
            )
        case "AveragePool" | "MaxPool" if not options.get("ceil_mode", 0) and len(shape) == 3:
            kernel, stride = tuple(options["kernel_shape"]), tuple(options.get("strides", (1, 1)))
            if kind == "MaxPool" and set(options.get("dilations", (1,))) == {1}:
                return build.pool_max(name, at, kernel, stride, _padding(options, kind))
            if kind == "AveragePool":
                include = bool(options.get("count_include_pad", 0))
                return build.pool_average(name, at, kernel, stride, _padding(options, kind), include)
        case "BatchNormalization":
            weight, bias, mean, var = (constant(i) for i in (1, 2, 3, 4))
            assert mean is not None
            assert var is not None
            return build.norm(name, at, mean, var, options.get("epsilon", 1e-5), weight, bias)
        case "Flatten" if options.get("axis", 1) == 1:
            return build.reshape(name, at, (math.prod(shape),))
        case "Reshape":
            return build.reshape(name, at, _target(shape, constants[inputs[1]].tolist()))
        case "Identity" | "Dropout":
            return at
        case "Add" | "Sub" | "Mul" | "Div":
            return _arithmetic(build, name, kind, inputs, known, constants)
    raise TypeError(f"model: unsupported layer {kind} ({name}); supported are {SUPPORTED}")


def _arithmetic(build: Builder, name: str, kind: str, inputs: list[str], known: dict[str, int],
                constants: dict[str, np.ndarray]) -> int:  # fmt: skip
    first, second = inputs
    if first in known and second in known:
        if kind == "Add":
            return build.sum(name, known[first], known[second])
        if kind == "Sub":
            return build.sum(name, known[first], build.scale(f"{name} negated", known[second], -1.0, 0.0))
    elif first in known:
        c = torch.from_numpy(np.array(constants[second])).double()
        scale, offset = {"Add": (1.0, c), "Sub": (1.0, -c), "Mul": (c, 0.0), "Div": (1 / c, 0.0)}[kind]
        return build.scale(name, known[first], scale, offset)
    elif kind != "Div":
        c = torch.from_numpy(np.array(constants[first])).double()
        scale, offset = {"Add": (1.0, c), "Sub": (-1.0, c), "Mul": (c, 0.0)}[kind]
        return build.scale(name, known[second], scale, offset)
    raise TypeError(f"model: unsupported layer {kind} ({name}) of these operands; supported are {SUPPORTED}")


def _padding(options: dict[str, Any], kind: str) -> tuple[int, int]:
    pads = list(options.get("pads", (0, 0, 0, 0)))
    if options.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or pads[:2] != pads[2:]:
        raise TypeError(f"model: {kind} with uneven or automatic padding is not supported; supported are {SUPPORTED}")
    return int(pads[0]), int(pads[1])


def _target(shape: Shape, wanted: list[int]) -> Shape:
    """Of an ONNX reshape, without the batch."""
    rest = [shape[i] if n == 0 and i < len(shape) else n for i, n in enumerate(wanted[1:])]
    fixed = math.prod(n for n in rest if n != -1)
    return tuple(math.prod(shape) // fixed if n == -1 else n for n in rest)
