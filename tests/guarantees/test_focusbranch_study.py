"""The study from end to end at smoke scale, and using the method from the command line and from a file."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from gnomon import catalog
from gnomon.guarantees.focusbranch.network import load_network
from gnomon.guarantees.focusbranch.study import material
from gnomon.guarantees.focusbranch.study.experiments import Digits, Problem, summary
from gnomon.guarantees.focusbranch.study.tables import agreement, ratio_to, ratio_to_best_fixed, saving
from gnomon.study.check import check
from gnomon.study.protocol import Cell
from gnomon.study.runner import Running, plan


def test_smoke_scale_runs_from_end_to_end(tmp_path):
    found = check(catalog.find("focusbranch"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v.verdict for v in found.verdicts}
    for name in ("agreement", "adversarial-images", "monotone-paths", "pruning-changes-nothing"):
        assert verdicts[name] == "holds", name
    assert "fails" not in verdicts.values()
    assert found.figure is not None
    assert (found.tables["Digits"]["calls"] >= 1).all()
    assert set(found.tables["Calls"].columns) >= {"auto", "calzone", "level 1", "late"}
    assert found.tables["Tighter"]["tighter"].mean() > 0.9


def test_scales_run_what_they_say():
    study = catalog.find("focusbranch").study()
    laptop = plan(study, study.Inputs.at("laptop"))
    asked = {(j.experiment.__name__, j.cell["net"], j.cell["t"], j.contender) for j in laptop}
    assert ("Digits", "mlp", 3, "auto") in asked
    assert ("Digits", "cnn", 3, "auto") not in asked
    assert ("Digits", "mlp", 3, "brute force") not in asked
    assert {c for e, _, _, c in asked if e == "Published"} == {"auto", "calzone", "level 1"}
    paper = plan(study, study.Inputs.at("paper"))
    assert ("Published", 5) in {(j.experiment.__name__, j.cell["t"]) for j in paper}
    assert ("Digits", "cnn", 3) in {(j.experiment.__name__, j.cell["net"], j.cell["t"]) for j in paper}


def test_patches_do_not_overlap_between_training_and_the_rest():
    data = material.patches()
    assert data.train.shape[1:] == data.test.shape[1:] == (3, 8, 8)
    assert set(data.train_labels) == set(data.test_labels) == set(range(5))
    assert min(data.train.min(), data.test.min()) >= 0
    assert max(data.train.max(), data.test.max()) <= 1


def test_training_changes_few_pixels():
    model, generator = material.mlp(), torch.Generator().manual_seed(0)
    x = torch.rand(10, 64, generator=generator)
    changed = material.few_pixels(model, x, torch.zeros(10, dtype=torch.long), 4, generator)
    assert ((changed != x).sum(1) <= 4).all()
    assert (changed != x).any(1).all()
    assert changed.min() >= 0
    assert changed.max() <= 1


def test_tables():
    rows = pd.DataFrame({"experiment": "Digits", "net": "mlp", "t": 1, "image": [0, 0, 0], "instance": "i", "decided": 1, "confirmed": 1,
                         "contender": ["auto", "calzone", "brute force"], "verdict": ["verified", "falsified", "verified"]})  # fmt: skip
    assert agreement(rows).set_index("contender")["agrees"].to_dict() == {"auto": 1, "calzone": 0, "brute force": 1}
    calls = pd.DataFrame(
        {"auto": [10, 20], "level 1": [5, 50], "level 2": [40, 40], "level 3": [10, 20], "calzone": [30, 30]}
    )
    assert ratio_to_best_fixed(calls) == 1.0
    assert ratio_to(calls, "calzone") == 0.5
    two = pd.DataFrame({"net": "mlp", "t": 2, "image": 0, "contender": ["pruned", "unpruned"], "visited": [10.0, 80.0],
                        "verdict": "verified", "open_share": [0.1, 0.1], "plan": "x"})  # fmt: skip
    assert saving(two)["saving"].tolist() == [8.0]


def test_false_adversarial_images_are_seen():
    from gnomon.guarantees.focusbranch.method import L0Result

    model = nn.Linear(4, 2)
    network = load_network(model, (4,))
    image = np.full(4, 0.5, np.float32)
    label = int(model(torch.from_numpy(image)).argmax())
    problem = Problem(network, image[None], np.array([label]), 1, 1.0, 4)
    assert summary(L0Result("falsified", image.copy()), problem, image, label)["confirmed"] == 0
    assert summary(L0Result("verified"), problem, image, label)["confirmed"] == 1
    assert Digits().includes(None, Cell({"net": "mlp", "t": 3}), "brute force") is False


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An ONNX net for digits and a table of images, as a person would have them."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    made = tmp_path_factory.mktemp("focus")
    weights = material.train("mlp", 8)
    nodes, before = [], "image"
    for i in (0, 2, 4):
        nodes.append(helper.make_node("Gemm", [before, f"{i}.weight", f"{i}.bias"], [f"g{i}"], transB=1))
        before = f"g{i}"
        if i < 4:
            nodes.append(helper.make_node("Relu", [before], [f"r{i}"]))
            before = f"r{i}"
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info(before, TensorProto.FLOAT, ["n", 10])], [numpy_helper.from_array(w, n) for n, w in weights.items()])  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), made / "net.onnx")
    X, y = load_digits(return_X_y=True)
    np.savetxt(made / "bytes.csv", np.column_stack([y, X])[:4], delimiter=",", fmt="%d")
    np.savetxt(made / "test.csv", np.column_stack([y, X / 16])[:4], delimiter=",", fmt="%.6g")
    return made


def test_command(folder, command_line, tmp_path):
    study = catalog.find("focusbranch").study()
    words = shlex.split(study.command)[1:]
    out = tmp_path / "out"
    code, shown, wrong = command_line(
        folder, *words, "--first", "3", "--save", str(out), "--figure", str(tmp_path / "a.svg"), "--beside"
    )
    assert code == 0, wrong
    for text in ("3 images of 64 pixels x 1", "at most 2 change", "bound calls", "calzone", "top-t coverd"):
        assert text in shown, text
    results = pd.read_csv(out / "results.csv")
    assert set(results["status"]) <= {"verified", "falsified", "misclassified", "unknown", "timeout"}
    with np.load(out / "adversarial.npz") as found:
        assert set(found.files) == {str(i) for i in results.index[results["status"] == "falsified"]}
        table = np.loadtxt(folder / "test.csv", delimiter=",", dtype=np.float32)
        for i in found.files:
            assert (np.abs(found[i] - table[int(i), 1:]) > 1e-7).sum() <= 2
    assert (tmp_path / "a.svg").stat().st_size > 1000
    assert command_line(folder, *words, "--save", str(out))[0] == 2


def test_example(folder):
    study = catalog.find("focusbranch").study()
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", study.example], capture_output=True, text=True, check=False,
                          cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


@pytest.mark.parametrize(("line", "message"), [
    ("--model none.onnx --images test.csv", "none.onnx is no file"),
    ("--model net.onnx --images none.csv", "none.csv is no file"),
    ("--model test.csv --images test.csv", "is no valid ONNX file"),
    ("--model net.onnx --images words.csv", "no table of numbers"),
    ("--model net.onnx --images short.csv", "has 3 columns; expected a label and 64 pixels"),
    ("--model net.onnx --images label.csv", "labels must be integers in 0..9"),
    ("--model net.onnx --images bytes.csv --pixels unit", "expected 0..1"),
    ("--model net.onnx --images test.csv --t -1", "t"),
    ("--model net.onnx --images test.csv --t 65", "t: got 65"),
    ("--model net.onnx --images test.csv --timeout 0", "timeout"),
])  # fmt: skip
def test_mistakes_on_the_command_line(folder, command_line, line, message):
    (folder / "words.csv").write_text("label,pixel\n")
    (folder / "short.csv").write_text("1,0,0\n")
    (folder / "label.csv").write_text(",".join(["11", *["0"] * 64]) + "\n")
    code, _, wrong = command_line(folder, "run", "focusbranch", *line.split())
    assert code == 2
    assert message in " ".join(wrong.split())
