"""Which steps decrease the loss: near a minimum, and along training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.study import Experiment, grid, higher, lower, stage

if TYPE_CHECKING:
    import torch

DISTANCES = [2.0**-k for k in range(-1, 5)]
TRAIN, EVERY = 100, 10


def mlp(rng: np.random.Generator) -> list[torch.Tensor]:
    """Weights of 64-128-128-10, without biases, float64."""
    import torch

    shapes = ((128, 64), (128, 128), (10, 128))
    return [torch.tensor(rng.standard_normal(s) / np.sqrt(s[1]), requires_grad=True) for s in shapes]


def digits_loss(weights: list[torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Cross-entropy of the whole of digits plus 1e-2 / 2 of the squared norm."""
    import torch
    from sklearn.datasets import load_digits

    data = load_digits()
    X, y = torch.tensor(data.data / 16.0), torch.tensor(data.target)

    def loss() -> torch.Tensor:
        hidden = X
        for W in weights[:-1]:
            hidden = torch.tanh(hidden @ W.T)
        penalty = sum((W**2).sum() for W in weights)
        return torch.nn.functional.cross_entropy(hidden @ weights[-1].T, y) + 0.5e-2 * penalty

    return loss


def factorised_loss(weights: list[torch.Tensor], rng: np.random.Generator) -> Callable[[], torch.Tensor]:
    """Sensing of U V'."""
    from gnomon.optimization.muon_river.sensing import MixedSpikedSensing

    lab = MixedSpikedSensing(16, 16, seed=int(rng.integers(2**31)), river=float(rng.uniform(4.5, 5.5)))
    return lambda: lab.loss(weights[0] @ weights[1].T)


def along_gradient(grads: list[torch.Tensor], signs: list[torch.Tensor], name: str) -> list[torch.Tensor]:
    """What each rule steps along."""
    return signs if name == "muon" else grads


class Rule:
    """Muon's direction or the gradient's."""

    def __init__(self, name: str) -> None:
        self.name = name


RULES = {"muon": Rule("muon"), "gd": Rule("gd")}


class Around(Experiment):
    """The largest decreasing step at W_min + s D, by the distance s from the minimum of an MLP on digits."""

    cells = grid(s=DISTANCES)
    contenders = RULES
    metrics = {"largest": lower(log=True)}
    seeds = 5

    @stage(version=1, inputs=("iterations",), cell=())
    def minimum(self, inputs: Any, cell: Any, seed: int) -> list[np.ndarray]:
        """The minimum by full-batch L-BFGS."""
        import torch

        weights = mlp(np.random.default_rng([seed, 7]))
        loss = digits_loss(weights)
        optimizer = torch.optim.LBFGS(
            weights,
            max_iter=inputs.iterations,
            tolerance_grad=1e-9,
            tolerance_change=1e-13,
            line_search_fn="strong_wolfe",
        )

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        optimizer.step(closure)
        return [W.detach().numpy() for W in weights]

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> dict[str, Any]:
        away = np.random.default_rng([cell.seed, 8])
        low = self.minimum(inputs, cell)
        D = [away.standard_normal(W.shape) for W in low]
        size = np.sqrt(sum((d**2).sum() for d in D))
        return {"weights": [W + cell.s * d / size for W, d in zip(low, D, strict=True)], "s": cell.s}

    def measure(self, problem: dict[str, Any], contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        import torch

        from gnomon.optimization.muon_river.curvature import directions, largest_decreasing_step

        weights = [torch.tensor(W, requires_grad=True) for W in problem["weights"]]
        loss = digits_loss(weights)
        grads, signs = directions(loss, weights)
        yield {"largest": largest_decreasing_step(loss, weights, along_gradient(grads, signs, contender.name), 1e-2)}


class Along(Experiment):
    """Along a decaying Muon run: the largest decreasing step over what curvature says, 2a for Muon and 2/c for GD."""

    cells = grid(problem=["digits", "factorised"])
    contenders = RULES
    metrics = {"ratio": higher(), "largest": lower(log=True)}
    seeds = 3

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> dict[str, Any]:
        return {"problem": cell.problem, "seed": int(rng.integers(2**31))}

    def measure(self, problem: dict[str, Any], contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        import torch

        from gnomon.optimization.muon_river.curvature import directions, largest_decreasing_step, step_bounds
        from gnomon.optimization.spectral_descent.method import SpectralDescent

        own = np.random.default_rng(problem["seed"])
        if problem["problem"] == "digits":
            weights = mlp(own)
            loss = digits_loss(weights)
        else:
            weights = [torch.tensor(0.3 * own.standard_normal((16, 4)), requires_grad=True) for _ in range(2)]
            loss = factorised_loss(weights, own)
        optimizer = SpectralDescent(weights, lr=0.1)
        for step in range(TRAIN + 1):
            if step and step % EVERY == 0:
                grads, signs = directions(loss, weights)
                bounds = step_bounds(loss, weights)
                bound = bounds.muon if contender.name == "muon" else bounds.gd
                found = largest_decreasing_step(loss, weights, along_gradient(grads, signs, contender.name), 1e-2)
                yield {
                    "step": step,
                    "largest": found,
                    "bound": bound,
                    "ratio": found / bound,
                    "loss": float(loss().detach()),
                }
            optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / (TRAIN + 1))
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
