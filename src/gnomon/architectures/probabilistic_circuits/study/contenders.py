"""Who is compared: circuits on several vtrees, sums of vtrees, oracles and Transformers, built when they are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

KINDS = ("balanced", "linear", "chow_liu", "random")
RATES = {"hmm": (0.03, 0.1), "transformer": (0.005, 0.015), "lstm": (0.005, 0.015)}


def tree(kind: str, problem: Any, seed: int) -> Any:
    """A vtree over the columns of the problem; the cue, where there is one, is joined at the root."""
    from gnomon.architectures.probabilistic_circuits.trees import Vtree, vtree

    first = 1 if problem.cue else 0
    names = range(first, problem.X.shape[1])
    made = (vtree("chow_liu", data=problem.X[:, first:], variables=names) if kind == "chow_liu"
            else vtree(kind, variables=names, random_state=seed))  # fmt: skip
    return Vtree((0, made)) if problem.cue else made


@dataclass(frozen=True)
class Structured:
    """A circuit on one vtree."""

    kind: str
    width: int
    optimizer: str = "adam"

    def __call__(self, problem: Any, seed: int) -> Any:
        from gnomon.architectures.probabilistic_circuits.circuit import Circuit

        made = Circuit(tree(self.kind, problem, seed), problem.sizes, self.width)
        return made.fit(problem.X, optimizer=self.optimizer, n_steps=problem.steps, batch_size=500, dtype="float32",
                        random_state=seed)  # fmt: skip


@dataclass(frozen=True)
class Decomposable:
    """One vtree for each value of the cue: those of the matchings (``oracle``) or random ones."""

    which: str
    width: int = 8
    optimizer: str = "adam"

    def __call__(self, problem: Any, seed: int) -> Any:
        from gnomon.architectures.probabilistic_circuits.circuit import Circuit
        from gnomon.architectures.probabilistic_circuits.mixture import VtreeSum
        from gnomon.architectures.probabilistic_circuits.trees import vtree

        task = problem.task
        trees = [vtree("pairs", pairs=m) if self.which == "oracle" else vtree("random", task.T, random_state=seed + j)
                 for j, m in enumerate(task.matchings)]  # fmt: skip
        made = VtreeSum([Circuit(t, task.n_symbols, self.width) for t in trees], selector=0 if problem.cue else None)
        return made.fit(problem.X, optimizer=self.optimizer, n_steps=problem.steps, batch_size=500, dtype="float32",
                        random_state=seed)  # fmt: skip


@dataclass(frozen=True)
class Oracle:
    """The truth written down as a circuit of R = V on the matching's own vtree (a sum of them where a cue chooses)."""

    def __call__(self, problem: Any, seed: int) -> Any:
        from gnomon.architectures.probabilistic_circuits.mixture import VtreeSum

        task = problem.task
        parts = [copies(m, task.n_symbols, task.noise) for m in task.matchings]
        if len(parts) == 1 and not problem.cue:
            return parts[0]
        made = VtreeSum(parts, selector=0 if problem.cue else None).initialize(random_state=0)
        for module, part in zip(made.module_.parts, parts, strict=True):
            module.load_state_dict(part.module_.state_dict())
        return made


def copies(matching: Any, V: int, noise: float) -> Any:
    """Leaf unit k is symbol k; a pair's left end is kept, its right end passes the noise; above all is uniform."""
    from gnomon.architectures.probabilistic_circuits.circuit import Circuit
    from gnomon.architectures.probabilistic_circuits.trees import vtree

    made = vtree("pairs", pairs=matching)
    eye, uniform = np.eye(V), np.full((V, V), 1 / V)
    channel = (1 - noise) * eye + noise / V
    weight = np.stack([np.stack([eye, channel] if len(made.scopes[n]) == 2 else [uniform, uniform])
                       for n, _, _ in made.nodes])  # fmt: skip
    return Circuit.from_weights(made, np.repeat(eye[None], len(made.variables), 0), weight, np.full(V, 1 / V))


@dataclass(frozen=True)
class Transformer:
    """A Transformer over the same columns."""

    width: int = 32
    longer: float = 800 / 300  # steps, times those of a circuit
    batch: int = 128

    def __call__(self, problem: Any, seed: int) -> Any:
        from gnomon.architectures.probabilistic_circuits.baselines import JointTransformer

        made = JointTransformer(problem.sizes, self.width)
        return made.fit(problem.X, n_steps=round(self.longer * problem.steps), batch_size=self.batch, random_state=seed)


@dataclass(frozen=True)
class TransformerInit:
    """The same before training."""

    width: int = 16

    def __call__(self, problem: Any, seed: int) -> Any:
        from gnomon.architectures.probabilistic_circuits.baselines import JointTransformer

        return JointTransformer(problem.sizes, self.width).fit(problem.X[:8], n_steps=1, step=1e-12, random_state=seed)


@dataclass(frozen=True)
class RandomCircuit:
    """A circuit before training."""

    width: int = 4

    def __call__(self, problem: Any, seed: int) -> Any:
        from gnomon.architectures.probabilistic_circuits.circuit import Circuit

        return Circuit(tree("balanced", problem, seed), problem.sizes, self.width).initialize(random_state=seed)


@dataclass(frozen=True)
class Language:
    """A next-token model; the learning rate is the better of two on validation text, chosen in every run."""

    encoder: str
    head: str

    def __call__(self, problem: Any, seed: int) -> tuple[Any, float]:
        from gnomon.architectures.probabilistic_circuits.language_model import PCLanguageModel

        kept = []
        for rate in RATES[self.encoder]:
            lm = PCLanguageModel(problem.vocabulary, problem.width, self.encoder, self.head, context=problem.length,
                                 random_state=seed)  # fmt: skip
            lm.fit(problem.train, n_steps=problem.steps, batch_size=problem.batch, length=problem.length, step=rate,
                   random_state=seed)  # fmt: skip
            kept.append((-float(lm.log_prob(problem.valid).mean()), rate, lm))
        _, rate, lm = min(kept, key=lambda k: k[0])
        return lm, rate


@dataclass(frozen=True)
class Grams:
    """Interpolated Kneser-Ney."""

    order: int

    def __call__(self, problem: Any, seed: int) -> tuple[Any, float]:
        from gnomon.architectures.probabilistic_circuits.baselines import KneserNey

        return KneserNey(problem.vocabulary, self.order).fit(problem.train), 0.0


@dataclass(frozen=True)
class Head:
    """(P, R, restarts, steps, seed) -> the best prediction of given contexts through a head of width R."""

    kind: str

    def __call__(self, P: np.ndarray, width: int, restarts: int, steps: int, seed: int) -> Any:
        from gnomon.architectures.probabilistic_circuits import bounds

        if self.kind == "mixture":
            return bounds.best_mixture_nll(P, width, n_steps=steps, restarts=restarts, random_state=seed)
        return bounds.best_logit_nll(P, width, n_steps=3 * steps, restarts=max(1, restarts // 2), random_state=seed)
