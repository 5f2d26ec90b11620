"""On what: small nets trained on digits and on photograph patches, and the nets that Calzone published."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from gnomon import datasets
from gnomon.guarantees.focusbranch.network import Network, load_network

PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "ihc.png")
SPLIT = 1300  # digits to train on; the rest are looked at
NETS = {"ConvSmall": "MNIST_ConvSmallPGD.onnx", "6x200": "MNIST_6x200_PGD.onnx"}


@dataclass
class Data:
    """Images in [0, 1] with labels, to train on and to look at."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray


def digits(flat: bool) -> Data:
    """The 1,797 digits of scikit-learn, 8 x 8, shuffled once."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    images = (X[order] / 16).astype(np.float32)
    images = images if flat else images.reshape(-1, 1, 8, 8)
    return Data(images[:SPLIT], y[order][:SPLIT], images[SPLIT:], y[order][SPLIT:])


def patches() -> Data:
    """Patches of 32 x 32 of five photographs, averaged to 8 x 8 RGB; the class is the photograph.

    Training patches come from the upper four fifths of a photograph, those looked at from the rest.
    """
    from PIL import Image

    folder = datasets.package_dir("skimage", "scikit-image") / "data"
    parts: dict[bool, list[tuple[np.ndarray, int]]] = {True: [], False: []}
    for label, name in enumerate(PHOTOGRAPHS):
        photo = np.asarray(Image.open(folder / name).convert("RGB"), np.float32) / 255
        h, w = photo.shape[:2]
        edge = int(0.8 * h)
        for train, rows in ((True, range(0, edge - 32, 16)), (False, range(edge, h - 32 + 1, 16))):
            for r, c in itertools.product(rows, range(0, w - 32 + 1, 16)):
                patch = photo[r : r + 32, c : c + 32].reshape(8, 4, 8, 4, 3).mean((1, 3)).transpose(2, 0, 1)
                parts[train].append((patch, label))
    rng = np.random.default_rng(0)
    arrays = []
    for train in (True, False):
        order = rng.permutation(len(parts[train]))
        arrays += [np.stack([parts[train][i][0] for i in order]), np.array([parts[train][i][1] for i in order])]
    return Data(*arrays)


# --- nets ------------------------------------------------------------------------------------------------------------


def mlp() -> nn.Module:
    """64-60-60-10."""
    return nn.Sequential(nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 10))


def cnn(channels: int = 1, classes: int = 10, width: int = 4) -> nn.Module:
    """Two convolutions and a hidden layer on 8 x 8."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=1, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 4, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * width, 5 * width), nn.ReLU(), nn.Linear(5 * width, classes),
    )  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn, "colour": lambda: cnn(3, len(PHOTOGRAPHS))}


def data_of(name: str) -> Data:
    return patches() if name == "colour" else digits(flat=name == "mlp")


def few_pixels(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, pixels: int, generator: torch.Generator
) -> torch.Tensor:
    """Training images changed at a few pixels: half at random, half at those of the steepest gradient."""
    shape = x.shape
    channels = shape[1] if x.dim() == 4 else 1
    flat = x.reshape(len(x), channels, -1)
    v = flat.shape[2]
    probe = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(model(probe), y), probe)
    slope = slope.reshape(flat.shape)
    worth = torch.maximum(slope * (1 - flat), -slope * flat).sum(1)
    steep = torch.arange(len(x)) % 2 == 0
    score = torch.where(steep[:, None], worth, torch.rand(len(x), v, generator=generator))
    chosen = torch.zeros(len(x), 1, v).scatter_(2, score.topk(pixels, 1).indices[:, None], 1.0) > 0
    target = torch.where(steep[:, None, None], (slope > 0).float(), torch.rand(flat.shape, generator=generator).round())
    return torch.where(chosen, target, flat).reshape(shape).detach()


def train(name: str, epochs: int, seed: int = 0, pixels: int = 4) -> dict[str, np.ndarray]:
    """The weights of a net trained with few-pixel augmentation, as arrays by name."""
    data = data_of(name)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = MODELS[name]()
    x, y = torch.from_numpy(data.train), torch.from_numpy(data.train_labels).long()
    adam = torch.optim.Adam(model.parameters(), 2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(64):
            changed = few_pixels(model, x[rows], y[rows], pixels, generator)
            loss = F.cross_entropy(model(changed), y[rows]) + 0.5 * F.cross_entropy(model(x[rows]), y[rows])
            adam.zero_grad()
            loss.backward()
            adam.step()
        schedule.step()
    return {k: v.numpy() for k, v in model.state_dict().items()}


def network_of(name: str, weights: dict[str, np.ndarray]) -> tuple[Network, nn.Module]:
    """The trained net, and as a network."""
    model = MODELS[name]()
    model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
    shape = tuple(data_of(name).test.shape[1:])
    return load_network(model, shape), model


def first_right(network: Network, images: np.ndarray, labels: np.ndarray, n: int, skip: int = 0) -> np.ndarray:
    """Indices of the first n images (after ``skip`` of them) that the net labels right."""
    right = np.flatnonzero(network.real(torch.from_numpy(images)).argmax(1).numpy() == labels)
    return right[skip : skip + n]


# --- Calzone's -------------------------------------------------------------------------------------------------------


def published(net: str) -> tuple[Network, np.ndarray, np.ndarray]:
    """A net of Calzone's repository with the 100 test images there, (100, 1, 28, 28) in [0, 1], and their labels."""
    table = np.loadtxt(datasets.data_file("focusbranch", "mnist_test_100.csv"), delimiter=",", dtype=np.float32)
    network = load_network(datasets.data_file("focusbranch", NETS[net]))
    return network, (table[:, 1:] / 255).reshape(-1, 1, 28, 28), table[:, 0].astype(int)
