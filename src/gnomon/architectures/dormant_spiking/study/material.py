"""The data, the networks, and what is measured of one."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon import datasets

if TYPE_CHECKING:
    from torch import Tensor, nn

FOLDS = 5
EPOCHS = {"digits": 1.0, "events": 0.6, "mnist1d": 1.0, "mnist": 0.4}  # of the epochs asked for


@dataclass(frozen=True)
class Split:
    """Training and test inputs of one fold; ``steps`` is None where the inputs are sequences."""

    data: str
    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor
    steps: int | None


@functools.lru_cache(maxsize=2)
def _whole(data: str) -> tuple[np.ndarray, np.ndarray]:
    if data in ("digits", "events"):
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        X = X / 16
        if data == "events":
            from gnomon.architectures.dormant_spiking.saccades import saccade_events

            X = saccade_events(X.reshape(-1, 8, 8), zoom=1, amplitude=1.0)
        return X.astype(np.float32), y
    if data == "mnist":
        X, y = datasets.mnist()
        return (X / 255).astype(np.float32).reshape(-1, 1, 28, 28), y
    from mnist1d.data import get_dataset_args, make_dataset

    made = make_dataset(get_dataset_args())
    X, y = np.concatenate([made["x"], made["x_test"]]), np.concatenate([made["y"], made["y_test"]])
    return (X / np.abs(X).max()).astype(np.float32), y


def split(data: str, seed: int, samples: int) -> Split:
    """Fold ``seed`` of five stratified ones (from five on, of another shuffle); the first ``samples`` of each part."""
    import torch
    from sklearn.model_selection import StratifiedKFold

    X, y = _whole(data)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed // FOLDS)
    train, test = list(folds.split(X[:, :1], y))[seed % FOLDS]
    X_train, y_train, X_test, y_test = (torch.from_numpy(a[i[:samples]]) for i in (train, test) for a in (X, y))
    return Split(data, X_train, y_train, X_test, y_test, None if data == "events" else 6)


def network(data: str, hidden: int, seed: int, **neuron: Any) -> Any:
    """A network for the data; the same seed gives the same weights, whatever the neuron."""
    import torch

    from gnomon.architectures.dormant_spiking.networks import SpikingClassifier, mlp, residual

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if data == "mnist":
            body = residual((1, 28, 28), 10, (hidden // 16, hidden // 8, hidden // 4), **neuron)
        else:
            inputs = {"digits": 64, "events": 128, "mnist1d": 40}[data]
            body = mlp([inputs, hidden, hidden, hidden, 10], **neuron)
    return SpikingClassifier(body, None if data == "events" else 6)


PLAIN = {"v_dormant": -math.inf, "learn_v_dormant": False}


def neuron(cell: Any) -> dict[str, Any]:
    """The neuron that a cell names."""
    return {"v_dormant": cell["v_dormant"], "wake": cell["wake"], "n": 2 if cell["wake"] == "after" else None,
            "learn_v_dormant": bool(cell.get("learn", False))}  # fmt: skip


def ledger(net: nn.Module, X: Tensor) -> Any:
    """The energy ledger of a network on inputs."""
    from gnomon.architectures.dormant_spiking.ledger import energy_ledger
    from gnomon.architectures.dormant_spiking.networks import batches

    return energy_ledger(net, batches(X, size=400))


def measures(net: nn.Module, fold: Split) -> dict[str, float]:
    """Accuracy and the work of a network on the test inputs."""
    import torch

    from gnomon.architectures.dormant_spiking.networks import predict
    from gnomon.architectures.dormant_spiking.neuron import DormantLIF

    row = {"accuracy": float((predict(net, fold.X_test) == fold.y_test).float().mean())}
    if not any(isinstance(m, DormantLIF) for m in net.modules()):
        macs = float(sum(m.weight.numel() for m in net.modules() if isinstance(m, torch.nn.Linear)))
        return {**row, "pj": 4.6 * macs, "macs": macs, "synops": 0.0, "awake": 1.0, "rate": 1.0}
    counted = ledger(net, fold.X_test)
    done = counted.operations()
    row |= {"pj": done["pj"], "pj_rest": counted.energy(first_layer=False), "macs": done["macs"], "synops": done["synops"],
            "awake": counted.awake, "rate": counted.rate}  # fmt: skip
    if fold.steps is not None:
        row["pj_once"] = replace(counted, first_layer="once").energy()
    return row
