"""The experiment on real sequences: which vtree suits music and text, and how far is a Transformer?"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from gnomon import study
from gnomon.architectures.probabilistic_circuits.study.contenders import KINDS, tree


@dataclass(frozen=True)
class Fitted:
    """A model of rows; how long it is trained is the best of two on validation rows, chosen in every run."""

    kind: str
    width: int = 16
    optimizer: str = "adam"

    def __call__(self, problem: Any, seed: int) -> Any:
        from gnomon.architectures.probabilistic_circuits.baselines import chow_liu_tree

        if self.kind == "chow_liu_tree":
            return chow_liu_tree(problem.X, max(problem.sizes))
        kept = []
        for steps in (max(1, problem.steps // 3), problem.steps):
            made = self._fit(problem, steps, seed)
            kept.append((float(made.score_samples(problem.valid).mean()), steps, made))
        return max(kept, key=lambda k: k[:2])[2]

    def _fit(self, problem: Any, steps: int, seed: int) -> Any:
        from gnomon.architectures.probabilistic_circuits.baselines import JointTransformer
        from gnomon.architectures.probabilistic_circuits.circuit import Circuit
        from gnomon.architectures.probabilistic_circuits.mixture import VtreeSum

        if self.kind == "transformer":
            return JointTransformer(problem.sizes, 32).fit(problem.X, n_steps=steps, batch_size=128, random_state=seed)
        how: dict[str, Any] = {
            "optimizer": self.optimizer,
            "n_steps": steps,
            "batch_size": 250,
            "dtype": "float32",
            "step": 0.1,
            "pseudocount": 0.01,
        }
        if self.kind == "sum":
            parts = [Circuit(tree(kind, problem, seed), problem.sizes, self.width) for kind in KINDS]
            return VtreeSum(parts).fit(problem.X, random_state=seed, **how)
        return Circuit(tree(self.kind, problem, seed), problem.sizes, self.width).fit(
            problem.X, random_state=seed, **how
        )


class Real(study.Experiment):
    """Soprano and bass of chorales, and windows of text: held-out NLL of a row by model."""

    seeds = 1
    unit = ("seed", "window")
    cells = study.grid(data=["chorales", "text"])
    contenders = {
        **{f"{kind} 16": Fitted(kind) for kind in KINDS},
        "chow_liu 16, EM": Fitted("chow_liu", optimizer="em"),
        "sum of vtrees": Fitted("sum"),
        "chow_liu tree": Fitted("chow_liu_tree"),
        "transformer": Fitted("transformer"),
    }
    metrics = {"row_nll": study.lower("nats")}

    @study.stage(version=1, inputs=(), cell=(), seeded=False)
    def pitches(self, inputs: Any, cell: Any, seed: int | None) -> np.ndarray:
        """Chorales as arrays."""
        from gnomon.architectures.probabilistic_circuits.study.material import chorales

        return chorales()

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        from gnomon.architectures.probabilistic_circuits.study import material

        if cell.data == "chorales":
            X, sizes = material.coded(self.pitches(inputs, cell))
            tenth = len(X) // 10  # whole pieces stay together: the windows are in the order of the files
            parts = {"train": X[: -2 * tenth], "valid": X[-2 * tenth : -tenth], "test": X[-tenth:]}
        else:
            parts = material.text_windows(16, inputs.rows // 2, rng)
            sizes = (len(material.LETTERS),) * 16
        return SimpleNamespace(X=parts["train"], valid=parts["valid"], test=parts["test"][: inputs.windows], sizes=sizes,
                               cue=False, steps=inputs.steps)  # fmt: skip

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        start = time.process_time()
        model = contender(problem, int(rng.integers(2**31)))
        spent = time.process_time() - start
        parameters = model.n_parameters
        return [{"window": i, "row_nll": -float(v), "train_s": spent, "parameters": parameters}
                for i, v in enumerate(model.score_samples(problem.test))]  # fmt: skip
