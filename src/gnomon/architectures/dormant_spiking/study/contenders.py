"""Who takes part: each makes a trained network from a problem."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnomon.architectures.dormant_spiking.study.material import EPOCHS, PLAIN, Split, ledger, network, neuron

if TYPE_CHECKING:
    from torch import nn

RATE = 1.0  # weight of the firing rate in the loss
KEEP = 0.5  # of the weights, where pruning is combined with dormancy
MU = 0.3  # weight of the relative energy in the loss
POST_HOC = -0.5


@dataclass
class Problem:
    """One fold with the two networks that its contenders start from."""

    fold: Split
    cell: Any
    hidden: int
    epochs: int
    seed: int
    plain_state: dict[str, Any]
    dormant_state: dict[str, Any] | None

    def network(self, **options: Any) -> Any:
        """An untrained network for the data, with neurons of these options."""
        return network(self.fold.data, self.hidden, self.seed, **options)

    def train(self, net: Any, share: float = 1.0, **options: Any) -> Any:
        """Train it for a share of the epochs that the others had."""
        from gnomon.architectures.dormant_spiking.networks import fit

        epochs = max(1, round(self.epochs * EPOCHS[self.fold.data] * share))
        return fit(net, self.fold.X, self.fold.y, epochs=epochs, seed=self.seed, **options)

    def plain(self) -> Any:
        """The trained network of plain neurons."""
        net = self.network(**PLAIN)
        net.load_state_dict(self.plain_state)
        return net.eval()

    def dormant(self) -> Any:
        """The trained network of the cell's dormant neurons."""
        net = self.network(**neuron(self.cell))
        net.load_state_dict(self.dormant_state)
        return net.eval()


@dataclass(frozen=True)
class Recipe:
    """A contender by the name of its function below; a contender of your own is a function of a :class:`Problem`."""

    name: str

    def __call__(self, problem: Problem) -> nn.Module:
        return RECIPES[self.name](problem)  # type: ignore[no-any-return]


def _detach_gate(problem: Problem) -> Any:
    return problem.train(problem.network(**neuron(problem.cell), detach_gate=True))


def _random(problem: Problem, net: Any) -> Any:
    """Asleep by chance, as often in each layer and step as the dormant network on its training inputs."""
    import torch

    from gnomon.architectures.dormant_spiking.baselines import random_gate
    from gnomon.architectures.dormant_spiking.recording import Recording

    with torch.no_grad(), Recording(dormant := problem.dormant()) as seen:
        dormant(problem.fold.X[:400])
    rates = {name: layer.awake.flatten(1).mean(1).tolist() for name, layer in seen.neurons.items()}
    return random_gate(net, rates, problem.seed)


def _pruned(problem: Problem, net: Any, keep: float) -> Any:
    """Without the smallest weights, then trained on with the rest."""
    from gnomon.architectures.dormant_spiking.baselines import magnitude_prune, mask

    pruned = magnitude_prune(net, keep)
    return problem.train(pruned, 0.4, after_step=mask(pruned))


def _structured(problem: Problem, net: Any, keep: float) -> Any:
    return problem.train(_narrow(net, keep), 0.4)


def _narrow(net: Any, keep: float) -> Any:
    from gnomon.architectures.dormant_spiking.baselines import structured_prune
    from gnomon.architectures.dormant_spiking.networks import SpikingClassifier

    return SpikingClassifier(structured_prune(net.body, keep), net.steps)


def _matched(problem: Problem, prune: Callable[[Any, float], Any], made: Callable[[Problem, Any, float], Any]) -> Any:
    """Pruned so far that it takes the energy of the dormant network on training inputs, after it was trained on."""
    from gnomon.architectures.dormant_spiking.baselines import keep_for

    X = problem.fold.X[:400]
    plain, target = problem.plain(), ledger(problem.dormant(), X).energy()
    keep = keep_for(target, lambda share: ledger(prune(plain, share), X).energy())
    net = made(problem, plain, keep)
    found = ledger(net, X).energy()
    if abs(found / target - 1) > 0.01:  # training on changed the firing rates
        net = made(problem, plain, min(1.0, keep * target / found))
    return net


def _unstructured_matched(problem: Problem) -> Any:
    from gnomon.architectures.dormant_spiking.baselines import magnitude_prune

    return _matched(problem, magnitude_prune, _pruned)


def _adaptive(problem: Problem) -> Any:
    from gnomon.architectures.dormant_spiking.baselines import adaptive_threshold

    return problem.train(adaptive_threshold(problem.network(**PLAIN)), rate=RATE)


def _relu(problem: Problem) -> Any:
    import torch

    from gnomon.architectures.dormant_spiking.baselines import relu_mlp

    with torch.random.fork_rng():
        torch.manual_seed(problem.seed)
        inputs = problem.fold.X[0].numel()
        net = relu_mlp([inputs, problem.hidden, problem.hidden, problem.hidden, 10])
    return problem.train(net)


def post_hoc(problem: Problem) -> Any:
    """A gate on the plain network, with no training."""
    from gnomon.architectures.dormant_spiking.convert import convert_to_dormant

    return convert_to_dormant(problem.plain(), POST_HOC)


RECIPES: dict[str, Callable[[Problem], Any]] = {
    "dormant": Problem.dormant,
    "lif": Problem.plain,
    "post hoc": post_hoc,
    "detach gate": _detach_gate,
    "random": lambda p: p.train(_random(p, p.network(**PLAIN))),
    "random post hoc": lambda p: _random(p, p.plain()),
    "rate": lambda p: p.train(p.network(**PLAIN), rate=RATE),
    "rate + dormant": lambda p: p.train(p.network(**neuron(p.cell)), rate=RATE),
    "pruned": lambda p: _pruned(p, p.plain(), KEEP),
    "pruned + dormant": lambda p: _pruned(p, p.dormant(), KEEP),
    "unstructured": _unstructured_matched,
    "structured": lambda p: _matched(p, _narrow, _structured),
    "energy loss": lambda p: p.train(p.network(**neuron(p.cell)), energy=MU),
    "adaptive threshold": _adaptive,
    "relu": _relu,
}


@dataclass(frozen=True)
class Pass:
    """A lazy pass over a layer's input spikes with this dormancy threshold."""

    v_dormant: float

    def __call__(self, net: Any, x: Any) -> Any:
        from gnomon.architectures.dormant_spiking.events import event_forward

        return event_forward(net, x)

    def of(self, net: Any) -> Any:
        """The layer with this threshold."""
        from gnomon.architectures.dormant_spiking.convert import convert_to_dormant

        return convert_to_dormant(net, self.v_dormant)


LAZY = {"lazy": Pass(-0.25), "all awake": Pass(-math.inf)}
