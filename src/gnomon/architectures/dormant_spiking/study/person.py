"""``gnomon run``: a person's own data, and what the gate saves on it."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, field_validator

from gnomon.study import Outcome
from gnomon.study.protocol import Options

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Run(Options):
    """What a person gives."""

    data: Path = Field(description=".npz with X [N, ...] (or [N, T, ...] with --events) and y [N]")
    v_dormant: float = Field(-0.25, lt=0, description="dormancy threshold, negative")
    wake: Literal["leak", "never", "after"] = Field("leak", description="what ends the sleep")
    n: int | None = Field(None, ge=1, description="steps to sleep, with --wake after")
    events: bool = Field(False, description="X is a sequence of spikes [N, T, ...], not a static input")
    steps: int = Field(6, ge=2, description="time steps that a static input is shown")
    hidden: str = Field("256,256,256", description="neurons of the hidden layers")
    epochs: int = Field(25, ge=0, description="training epochs (0 with --net: no training, the gate alone)")
    seed: int = Field(0, ge=0, description="of the split, the weights and the order")
    net: Path | None = Field(None, description="weights of a network of your own, .safetensors")
    builder: str | None = Field(
        None, description="module:function that builds that network ([T, B, ...] to [T, B, classes])"
    )

    @field_validator("data", "net")
    @classmethod
    def _there(cls, path: Path | None) -> Path | None:
        if path is not None and not path.expanduser().is_file():
            raise ValueError(f"{path} does not exist")
        return None if path is None else path.expanduser().resolve()

    @field_validator("hidden")
    @classmethod
    def _sizes(cls, value: str) -> str:
        if not all(part.strip().isdigit() and int(part) > 0 for part in value.split(",")):
            raise ValueError("expected positive numbers with commas between, such as 256,256")
        return value


def operate(inputs: Run, beside: bool) -> Outcome:
    """Train a plain and a dormant network (or gate the given one), and count what each does on the last fifth."""
    import torch

    from gnomon.architectures.dormant_spiking.convert import convert_to_dormant
    from gnomon.architectures.dormant_spiking.networks import SpikingClassifier, fit, mlp

    if (inputs.net is None) != (inputs.builder is None):
        raise ValueError("--net and --builder: a network of your own takes both")
    if (inputs.wake == "after") != (inputs.n is not None):
        raise ValueError("--n: the steps to sleep go with --wake after, and only with it")
    if inputs.epochs == 0 and inputs.net is None:
        raise ValueError("--epochs: 0 is for a trained network of your own (--net)")
    X, y, X_test, y_test, classes = _read(inputs)
    gate: dict[str, Any] = {"v_dormant": inputs.v_dormant, "wake": inputs.wake, "n": inputs.n, "learn_v_dormant": False}
    steps = None if inputs.events else inputs.steps

    def made(options: dict[str, Any], **training: Any) -> Any:
        torch.manual_seed(inputs.seed)
        width = math.prod(X.shape[2:] if inputs.events else X.shape[1:])
        body = mlp([width, *map(int, inputs.hidden.split(",")), len(classes)], **options)
        return fit(SpikingClassifier(body, steps), X, y, epochs=inputs.epochs, seed=inputs.seed, **training)

    plain_options = {"v_dormant": -math.inf, "learn_v_dormant": False}
    if inputs.net is not None:
        body = _own(inputs)
        plain: Any = SpikingClassifier(convert_to_dormant(body, -math.inf, step_mode="m"), steps).eval()
        dormant: Any = SpikingClassifier(convert_to_dormant(body, step_mode="m", **gate), steps).eval()
        fit(dormant, X, y, epochs=inputs.epochs, seed=inputs.seed)
    else:
        plain, dormant = made(plain_options), made(gate)
    nets = {"dormant": dormant, "lif": plain}
    if beside:
        nets["post hoc"] = convert_to_dormant(plain, **gate)
        if inputs.net is None:
            nets["rate"] = made(plain_options, rate=1.0)
    test = (X_test, y_test)
    return Outcome(
        inputs, {"classes": classes, "test": test}, {name: _result(net, *test) for name, net in nets.items()}
    )


def _result(net: Any, X: Any, y: Any) -> dict[str, Any]:
    from gnomon.architectures.dormant_spiking.ledger import energy_ledger
    from gnomon.architectures.dormant_spiking.networks import batches, predict

    return {"net": net, "right": (predict(net, X) == y).numpy(), "ledger": energy_ledger(net, batches(X, size=256))}


def _read(inputs: Run) -> tuple[Any, Any, Any, Any, np.ndarray]:
    """Training and test parts as tensors, a static input scaled to [0, 1] as its training part is."""
    import torch
    from sklearn.model_selection import train_test_split

    try:
        with np.load(inputs.data, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"--data: {inputs.data.name} is no .npz file of arrays ({error})") from error
    if missing := {"X", "y"} - set(arrays):
        raise ValueError(
            f"--data: {inputs.data.name} has {', '.join(sorted(arrays))} and no {', '.join(sorted(missing))}; expected X and y"
        )
    X, labels = arrays["X"], arrays["y"]
    if X.dtype.kind not in "fiub" or X.ndim < (3 if inputs.events else 2) or labels.shape != (len(X),):
        raise ValueError(f"--data: got X {X.dtype} {X.shape} and y {labels.shape}; expected numbers [N, {'T, ' * inputs.events}...] "
                         "and a label for each")  # fmt: skip
    X = X.astype(np.float32)
    if not np.isfinite(X).all():
        raise ValueError("--data: X holds NaN or infinity")
    classes, y = np.unique(labels, return_inverse=True)
    if len(classes) < 2 or np.bincount(y).min() < 5:
        raise ValueError("--data: expected two classes or more, with 5 samples or more of each")
    train, test = train_test_split(np.arange(len(X)), test_size=0.2, stratify=y, random_state=inputs.seed)
    if inputs.events:
        if not np.isin(X, (0, 1)).all():
            raise ValueError("--events: expected spikes, 0 and 1")
    else:
        low, high = X[train].min(), X[train].max()
        X = (X - low) / max(high - low, np.finfo(np.float32).tiny)
    parts = [torch.from_numpy(a[i]) for i in (train, test) for a in (X, y.astype(np.int64))]
    return parts[0], parts[1], parts[2], parts[3], classes


def _own(inputs: Run) -> Any:
    import importlib
    import os
    import sys

    from safetensors.torch import load_file

    module, _, function = str(inputs.builder).partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a person's own file lies where they stand
    try:
        body = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--builder: {inputs.builder!r} cannot be loaded: {error}") from error
    try:
        body.load_state_dict(load_file(str(inputs.net)))
    except Exception as error:
        raise ValueError(f"--net: {inputs.net} does not fit the network of {inputs.builder}: {error}") from error
    return body


def table(outcome: Outcome) -> pd.DataFrame:
    """Accuracy and work of each network."""
    import pandas as pd

    base = outcome.results["lif"]["ledger"].energy()
    rows = []
    for name, r in outcome.results.items():
        done = r["ledger"].operations()
        rows.append({"network": name, "accuracy": r["right"].mean(), "nJ": done["pj"] / 1e3, "saved": 1 - done["pj"] / base,
                     "nJ without layer 1": r["ledger"].energy(first_layer=False) / 1e3, "awake": r["ledger"].awake,
                     "firing rate": r["ledger"].rate})  # fmt: skip
    return pd.DataFrame(rows)


def present(outcome: Outcome) -> dict[str, Any]:
    """The inhibition profile, the ledger of both networks, and what the gate costs and saves."""
    from gnomon.architectures.dormant_spiking.networks import batches
    from gnomon.architectures.dormant_spiking.profile import inhibition_profile

    plain, dormant = outcome.results["lif"], outcome.results["dormant"]
    X, y = outcome.problem["test"]
    difference = dormant["right"].astype(float) - plain["right"]
    error = difference.std(ddof=1) / math.sqrt(len(y))
    saved = 1 - dormant["ledger"].energy() / plain["ledger"].energy()
    return {
        "the plain network: how much is deeply inhibited": inhibition_profile(plain["net"], batches(X, size=256)),
        "networks": table(outcome),
        "ledger of the plain network, per sample": plain["ledger"].table().T.reset_index(names="count"),
        "ledger of the dormant network, per sample": dormant["ledger"].table().T.reset_index(names="count"),
        "summary": f"dormancy saves {saved:.1%} of the energy; accuracy {100 * plain['right'].mean():.1f} -> "
                   f"{100 * dormant['right'].mean():.1f} on {len(y)} test samples (difference {100 * difference.mean():+.1f}, "
                   f"standard error {100 * error:.1f} points)",
    }  # fmt: skip


def picture(outcome: Outcome) -> Figure:
    """Energy and accuracy of each network, and who is awake by layer."""
    from matplotlib.figure import Figure

    rows = table(outcome)
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for row in rows.itertuples():
        left.plot(row.nJ, row.accuracy, "o", label=row.network)
    left.set(xlabel="nJ per sample", ylabel="accuracy")
    left.legend(frameon=False)
    layers = outcome.results["dormant"]["ledger"].layers()
    right.bar(range(len(layers)), layers["awake"], label="awake")
    right.bar(range(len(layers)), layers["rate"], width=0.4, label="firing")
    right.set(xticks=range(len(layers)), xticklabels=layers["layer"], ylim=(0, 1), ylabel="share of neuron-steps")
    right.legend(frameon=False)
    return figure


def save(outcome: Outcome, directory: Path) -> None:
    """Weights of both networks, and the tables."""
    from safetensors.torch import save_file

    for name in ("lif", "dormant"):
        save_file({k: v.contiguous() for k, v in outcome.results[name]["net"].body.state_dict().items()},
                  str(directory / f"{name}.safetensors"))  # fmt: skip
        outcome.results[name]["ledger"].table().to_csv(directory / f"{name}-ledger.csv", index_label="variant")
    table(outcome).to_csv(directory / "networks.csv", index=False)
