"""On what: data sets that scikit-learn carries, dealt to clients, with an attack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon import datasets
from gnomon.optimization.byzantine.attacks import ALIE, Attack, InnerProduct, SignFlip, optimised
from gnomon.optimization.byzantine.baselines import newton_cg
from gnomon.optimization.byzantine.certificate import estimate_similarity, estimate_smoothness
from gnomon.optimization.byzantine.losses import SoftmaxClients, SoftmaxLoss

ATTACKS: dict[str, Attack | None] = {
    "none": None,
    "alie": optimised(ALIE()),
    "ipm": optimised(InnerProduct()),
    "sign flip": SignFlip(),
}
HELD_OUT = 0.2


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features, scaled and with a column of ones, and labels."""
    from sklearn import datasets as carried

    if name == "digits":
        X, y = carried.load_digits(return_X_y=True)
        X = (X / 16 - 0.305) / 0.376
    elif name == "mnist":
        X, y = datasets.mnist()
        X = (np.asarray(X, dtype=float).reshape(len(y), -1) / 255 - 0.1307) / 0.3081
    else:
        X, y = {"wine": carried.load_wine, "cancer": carried.load_breast_cancer}[name](return_X_y=True)
        X = (X - X.mean(axis=0)) / X.std(axis=0)
    return np.column_stack([X, np.ones(len(X))]), np.asarray(y, dtype=int)


def deal(labels: np.ndarray, n: int, split: str, rng: np.random.Generator) -> np.ndarray:
    """Which of n clients gets which row: "iid" in equal shares, or "dir A": each class by a draw of Dirichlet(A).

    Every client gets at least two rows, from those that have most.
    """
    if split == "iid":
        return rng.permutation(np.arange(len(labels)) % n)
    who = np.empty(len(labels), dtype=int)
    for c in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == c))
        shares = rng.dirichlet(np.full(n, float(split.removeprefix("dir "))))
        who[rows] = np.searchsorted(np.cumsum(shares)[:-1] * len(rows), np.arange(len(rows)), side="right")
    while (sizes := np.bincount(who, minlength=n)).min() < 2:
        rows = np.flatnonzero(who == sizes.argmax())
        who[rng.choice(rows)] = sizes.argmin()
    return who


@dataclass
class Problem:
    """Honest clients, what the server knows, the liars, and the least value of the honest objective."""

    clients: SoftmaxClients
    server: SoftmaxLoss  # the data of client 0, which is trusted
    f: int
    attack: Attack | None
    mu: float
    smoothness: float  # L and Delta at x_0, by power iteration
    similarity: float
    least: float
    test: tuple[np.ndarray, np.ndarray]


def make(data: str, l2: float, f: int, split: str, attack: str, n: int, rng: np.random.Generator) -> Problem:
    """A problem: train and test rows, the split, the constants, all drawn from ``rng``."""
    X, y = load(data)
    order = rng.permutation(len(X))
    held = round(HELD_OUT * len(X)) if data != "digits" else 360
    train, test = order[held:], order[:held]
    clients = SoftmaxClients(X[train], y[train], deal(y[train], n, split, rng), l2, int(y.max()) + 1)
    server = clients.of(0)
    start = np.zeros(clients.size)

    def gradient(x: np.ndarray) -> np.ndarray:
        return clients.value_and_grad(x)[1]

    least = clients.value_and_grad(newton_cg(clients, start))[0]
    return Problem(clients, server, f, ATTACKS[attack] if f else None, l2, estimate_smoothness(gradient, start),
                   estimate_similarity(gradient, lambda x: server.value_and_grad(x)[1], start), least,
                   (X[test], y[test]))  # fmt: skip


def accuracy(problem: Problem, x: np.ndarray) -> float:
    """On the held-out rows."""
    X, y = problem.test
    found: Any = (X @ x.reshape(-1, problem.clients.k)).argmax(axis=1) == y
    return float(found.mean())
