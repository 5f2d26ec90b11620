"""Torch modules and ONNX files are read as what they compute."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from gnomon import datasets
from gnomon.guarantees import FocusBranch
from gnomon.guarantees.focusbranch.network import load_network

torch.set_num_threads(1)


def graph(nodes, weights, shape, classes=3):
    made = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", classes])],
        [numpy_helper.from_array(np.asarray(w), name) for name, w in weights.items()],
    )  # fmt: skip
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def full(tmp_path):
    """A file with every operator that is read."""
    rng = np.random.default_rng(0)

    def f(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    weights = {"mean": f(3, 1, 1), "std": np.abs(f(3, 1, 1)) + 0.5, "w1": f(4, 3, 3, 3), "b1": f(4), "s": np.abs(f(4)), "o": f(4), "m": f(4),
               "v": np.abs(f(4)) + 0.5, "w2": f(4, 4, 3, 3), "shape": np.array([0, -1]), "w3": f(4, 16), "w4": f(5, 4), "b4": f(5),
               "w5": f(3, 5), "b5": f(3), "two": np.float32(2)}  # fmt: skip
    nodes = [
        helper.make_node("Sub", ["x", "mean"], ["a"]), helper.make_node("Div", ["a", "std"], ["b"]),
        helper.make_node("Conv", ["b", "w1", "b1"], ["c"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["c", "s", "o", "m", "v"], ["d"]), helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Conv", ["e", "w2"], ["f"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]), helper.make_node("Add", ["e", "f"], ["g"]),
        helper.make_node("Relu", ["g"], ["h"]), helper.make_node("MaxPool", ["h"], ["i"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("AveragePool", ["i"], ["j"], kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["j", "shape"], ["k"]), helper.make_node("Mul", ["k", "two"], ["l"]),
        helper.make_node("MatMul", ["l", "w3T"], ["m1"]), helper.make_node("Gemm", ["m1", "w4", "b4"], ["n1"], transB=1, alpha=0.5),
        helper.make_node("Relu", ["n1"], ["o1"]), helper.make_node("Gemm", ["o1", "w5", "b5"], ["y"], transB=1),
    ]  # fmt: skip
    weights["w3T"] = weights.pop("w3").T.copy()
    path = tmp_path / "net.onnx"
    onnx.save(graph(nodes, weights, (3, 6, 6)), path)
    return path


def test_onnx_files_mean_what_onnxruntime_says(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    path = full(tmp_path)
    network = load_network(path)
    images = torch.rand(7, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    (wanted,) = runtime.InferenceSession(str(path)).run(None, {"x": images.numpy()})
    assert np.allclose(network.to(torch.float64)(images.double()).numpy(), wanted, atol=1e-3)
    assert np.allclose(network.real(images).numpy(), wanted, atol=1e-3)
    y = int(wanted[0].argmax())
    assert FocusBranch(1, timeout=30).verify(path, images[0].numpy(), y).status in ("verified", "falsified")


def test_calzones_nets_have_their_published_accuracy():
    runtime = pytest.importorskip("onnxruntime")
    try:
        table = np.loadtxt(datasets.data_file("focusbranch", "mnist_test_100.csv"), delimiter=",", dtype=np.float32)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    images, labels = torch.from_numpy((table[:, 1:] / 255).reshape(-1, 1, 28, 28)), table[:, 0]
    for name, right in (("MNIST_ConvSmallPGD.onnx", 95), ("MNIST_6x200_PGD.onnx", 99)):
        path = datasets.data_file("focusbranch", name)
        network = load_network(path)
        scores = network.to(torch.float32)(images)
        assert int((scores.argmax(1).numpy() == labels).sum()) == right
        session = runtime.InferenceSession(str(path))
        (wanted,) = session.run(None, {"input": images[:1].numpy()})
        assert np.allclose(scores[:1].numpy(), wanted, atol=1e-4)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 3, 3, stride=2, padding=1, groups=1), nn.Linear(3, 4)
        self.register_buffer("mean", torch.tensor(0.3))

    def forward(self, x):
        x = (x - self.mean) / 0.25
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.last(x.view(-1, 3))


def test_torch_modules():
    torch.manual_seed(0)
    kinds = {
        "functional": (Functional(), (1, 4, 4)),
        "grouped": (
            nn.Sequential(nn.Conv2d(2, 4, 3, groups=2, dilation=2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3)),
            (2, 5, 5),
        ),
        "norm": (nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 3)), (6,)),
        "relu last": (nn.Sequential(nn.Linear(6, 3), nn.ReLU()), (6,)),
        "one layer": (nn.Linear(6, 3), (6,)),
    }
    for name, (model, shape) in kinds.items():
        images = torch.rand(5, *shape)
        with torch.no_grad():
            wanted = model.eval()(images)
        model.train()
        assert torch.allclose(load_network(model, shape).to(torch.float32)(images), wanted, atol=1e-5), name
        assert model.training


@pytest.mark.parametrize(("model", "message"), [
    (nn.Sequential(nn.Linear(4, 3), nn.Sigmoid(), nn.Linear(3, 2)), r"unsupported layer Sigmoid .*supported are Linear"),
    (nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2)), "unsupported layer LayerNorm"),
])  # fmt: skip
def test_unsupported_layers_are_named(model, message):
    with pytest.raises(TypeError, match=message):
        load_network(model, (4,))


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_models_that_are_none():
    with pytest.raises(TypeError, match="cannot be traced"):
        load_network(Branching(), (4,))
    with pytest.raises(ValueError, match="expected scores of 2 classes"):
        load_network(nn.Linear(4, 1), (4,))
    with pytest.raises(ValueError, match="needs the shape"):
        load_network(nn.Linear(4, 2))


def test_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="is no file"):
        load_network(tmp_path / "net.onnx")
    (tmp_path / "net.onnx").write_bytes(b"not a network")
    with pytest.raises(ValueError, match="no valid ONNX file"):
        load_network(tmp_path / "net.onnx")
    made = graph([helper.make_node("Sigmoid", ["x"], ["y"])], {}, (3,))
    onnx.save(made, tmp_path / "net.onnx")
    with pytest.raises(TypeError, match="unsupported layer Sigmoid"):
        load_network(tmp_path / "net.onnx")
    w = np.ones((3, 3), np.float32)
    w[0, 0] = math.nan
    onnx.save(graph([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": w}, (3,)), tmp_path / "net.onnx")
    with pytest.raises(ValueError, match="parameter w holds NaN"):
        load_network(tmp_path / "net.onnx")
    w[0, 0] = 1
    onnx.save(graph([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": w}, (3,)), tmp_path / "net.onnx")
    with pytest.raises(ValueError, match="the model takes"):
        FocusBranch(1).verify(tmp_path / "net.onnx", np.zeros(4), 0)
