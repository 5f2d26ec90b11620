"""Who takes part: the repair and what it is compared with, each as a function from a problem to models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnomon.guarantees.tree_repair.baselines import (
    GroupFair,
    Shield,
    WithoutColumns,
    averaged,
    dagger,
    refitted,
    relabelled,
    retrained,
)
from gnomon.guarantees.tree_repair.encoding import EnsembleEncoding
from gnomon.guarantees.tree_repair.method import Infeasible, NoSolution, TreeRepair
from gnomon.guarantees.tree_repair.program import Options, RepairProgram, Rows
from gnomon.guarantees.tree_repair.safety import SafetyProperty
from gnomon.guarantees.tree_repair.study.material import People, Task


@dataclass
class Turn:
    """A model and, of a repair, the counterexamples that it must meet and how it was solved."""

    model: Any
    fixed: int | None = None
    more: dict[str, float] = field(default_factory=dict)


# --- fairness --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """The repair with an objective: a model after every round."""

    objective: str

    def __call__(self, problem: People) -> list[Turn]:
        loop, encoding = problem.loops[self.objective], problem.encoded
        out = []
        for turn, w in enumerate(loop["w"]):
            d = np.abs(w - encoding.w)
            more = {"gap": float(loop["gap"][turn]), "solve": float(loop["solve"][turn]), "changed_leaves": float((d > 0).sum()),
                    "mean_change": float(d.mean())}  # fmt: skip
            out.append(Turn(encoding.with_leaves(w), int(loop["counterexamples"][turn]), more))
        return out


def none(problem: People) -> list[Turn]:
    """The model as it is."""
    return [Turn(problem.model)]


def without_sensitive(problem: People) -> list[Turn]:
    """Trained without the sensitive columns: no violation, ever; the yardstick of what equal decisions cost."""
    return [Turn(WithoutColumns(problem.make(), problem.sensitive).fit(problem.X, problem.y))]


def _extra(problem: People) -> tuple[np.ndarray, np.ndarray]:
    loop = problem.loops["hinge"]
    return relabelled(problem.encoded, loop["one"], loop["two"])


def retrain(problem: People) -> list[Turn]:
    """Trained anew with five copies of the repair's relabelled counterexamples."""
    return [Turn(retrained(problem.make(), problem.X, problem.y, *_extra(problem)))]


def average(problem: People) -> list[Turn]:
    """Leaves below each sensitive split averaged."""
    return [Turn(averaged(problem.encoded, problem.X, problem.sensitive))]


@dataclass(frozen=True)
class Refit:
    """Leaf values by logistic regression, the repair's counterexamples with a weight."""

    weight: float

    def __call__(self, problem: People) -> list[Turn]:
        return [Turn(refitted(problem.encoded, problem.X, problem.y, *_extra(problem), weight=self.weight))]


@dataclass(frozen=True)
class Groups:
    """fairlearn's group fairness: another goal."""

    method: str

    def __call__(self, problem: People) -> list[Turn]:
        return [Turn(GroupFair(problem.make(), problem.sensitive, self.method, problem.seed).fit(problem.X, problem.y))]


REFITS = (1.0, 5.0, 25.0)
FAIR = {
    "repair": Loop("hinge"),
    "repair, flips": Loop("flips"),
    "none": none,
    "without sensitive": without_sensitive,
    "retrained": retrain,
    "averaged": average,
    **{f"refit, weight {w:g}": Refit(w) for w in REFITS},
    "exponentiated gradient": Groups("exponentiated gradient"),
    "threshold optimizer": Groups("threshold optimizer"),
}


# --- policies --------------------------------------------------------------------------------------------------------


@dataclass
class Acted:
    """A policy (S,), and of a repair how it ended."""

    policy: np.ndarray
    satisfied: float = 1.0
    proved: bool = False
    rounds: int = 0
    counterexamples: int = 0
    changed_leaves: int = 0


def safety(problem: Task) -> SafetyProperty:
    return SafetyProperty(problem.mdp, problem.features, threshold=problem.threshold, tolerance=0.02)


@dataclass(frozen=True)
class RepairedPolicy:
    """The exact loop with an objective; ``share`` of the time limit for each solve."""

    objective: str
    share: float = 1.0

    def __call__(self, problem: Task) -> Acted:
        from gnomon.guarantees.tree_repair.counterexamples import satisfied

        step = 1 if problem.threshold is not None else 100  # a threshold is met by as few demands as it takes
        repair = TreeRepair(safety(problem), objective=self.objective, max_rounds=60, per_round=step,
                            time_limit=self.share * problem.limit)  # fmt: skip
        try:
            fixed = repair.fit_transform(problem.model, problem.X, problem.y)
        except (
            Infeasible,
            NoSolution,
        ):  # no leaf values meet all demands, or none were found in time: nothing is proved
            return taught(problem)
        met = satisfied(repair.encoding_, fixed, repair.counterexamples_)
        return Acted(np.asarray(fixed.predict(problem.features)).astype(int), float(met.mean()) if len(met) else 1.0,
                     repair.proved_, len(repair.path_) - 1, len(repair.counterexamples_), len(repair.changed_leaves_))  # fmt: skip


def taught(problem: Task) -> Acted:
    """The policy as it is."""
    return Acted(np.asarray(problem.model.predict(problem.features)).astype(int))


def shielded(problem: Task) -> Acted:
    """Unsafe actions masked when it acts: safe by construction, but the MDP must be at hand then."""
    verifier = safety(problem).bind(problem.encoding)
    return Acted(Shield(problem.encoding, problem.features, verifier.allowed[:, verifier.action]).policy.astype(int))


def daggered(problem: Task) -> Acted:
    """Retrained on the expert's actions in the states that the policy reaches."""
    model = dagger(problem.model, problem.mdp, problem.features, problem.X, problem.y, problem.expert)
    return Acted(np.asarray(model.predict(problem.features)).astype(int))


POLICIES = {
    "repair": RepairedPolicy("hinge"),
    "repair, flips": RepairedPolicy("flips", 0.2),
    "none": taught,
    "shield": shielded,
    "dagger": daggered,
}


# --- solving ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """How one round is solved."""

    compress: bool = True
    big_m: float | None = None
    backend: str = "highs"
    warm: bool = True

    def solve(
        self, encoding: EnsembleEncoding, X: np.ndarray, y: np.ndarray, wanted: Any, limit: float, margin: float
    ) -> Any:
        """The program and the solution."""
        rows = Rows.of(encoding, X, y, compress=self.compress)
        options = Options(margin=margin, change=5 * float(np.abs(encoding.w).max()), big_m=self.big_m)
        program = RepairProgram(encoding, rows, wanted, options)
        return program, program.solve(limit, 1e-3, backend=self.backend, warm=self.warm)


CONSTANT = 20.0  # the prototype's M
WAYS = {
    "ours": Way(),
    "constant M": Way(big_m=CONSTANT),
    "no compression": Way(compress=False),
    "scipy, constant M": Way(compress=False, big_m=CONSTANT, backend="scipy"),
}
