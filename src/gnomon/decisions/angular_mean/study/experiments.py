"""Experiments: random worlds, real voters on a dial of disagreement, batches, and what no rule can do."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np

from gnomon.decisions.angular_mean.agreement import agreement
from gnomon.decisions.angular_mean.batches import batch_shortfall
from gnomon.decisions.angular_mean.study.contenders import CONTENDERS, WHITENED, Rule, one_start
from gnomon.decisions.angular_mean.study.material import Electorate, electorates, own, voters_of, world
from gnomon.decisions.angular_mean.voters import as_types
from gnomon.study import Experiment, grid, higher, lower, stage

Array = np.ndarray

DATA = ("electricity", "train", "car", "countries")
VIOLATED = -1e-9
OPPOSED = np.array([[1.0, 0.0], [-1.0, 0.0]])


def found_by(contender: Any, e: Electorate) -> Rule | None:
    """The contender's rule; that a minimum is not unique is no news here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the angular mean is not unique", UserWarning)
        rule: Rule | None = contender(e)
    return rule


def served(rule: Rule, types: Any, items: Array | None = None) -> Array:
    """Long-run agreement of each type with a rule, or expected over a lottery."""
    if isinstance(rule, tuple):
        expected: Array = rule[1] @ np.array([agreement(r, types.vectors, items) for r in rule[0]])
        return expected
    return agreement(rule, types.vectors, items)


def summary(got: Array, weights: Array, suffix: str = "") -> dict[str, Any]:
    slack = got - weights
    return {f"min_slack{suffix}": float(slack.min()), f"violated{suffix}": int((slack < VIOLATED).sum()),
            f"utility{suffix}": float(weights @ got)}  # fmt: skip


class Guarantee(Experiment):
    """Does every voter of every random world get its share in the long run?

    A contender of your own is a function of an electorate (``vectors``, ``weights``, ``items``) that gives a direction.
    """

    cells = grid(d=[2, 3, 5, 10], opposed=[False, True])
    contenders = {"angular mean": CONTENDERS["angular mean"], "one start": one_start,
                  **{k: CONTENDERS[k] for k in ("arithmetic mean", "Kemeny (geodesic median)", "heaviest voter")}}  # fmt: skip
    metrics = {"min_slack": higher("share of pairs")}
    unit = "world"
    seeds = 0

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> list[Electorate]:
        return [world(cell.d, cell.opposed, rng) for _ in range(max(1, inputs.worlds // len(self.cells)))]

    def measure(self, problem: list[Electorate], contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        rows = []
        for k, e in enumerate(problem):
            got = served(found_by(contender, e), types := as_types(e.vectors, e.weights))  # type: ignore[arg-type]
            rows.append({"world": k, "n": len(types.weights), "min_slack": float((got - types.weights).min())})
        return rows


class Real(Experiment):
    """What real voters share: a data set, a subsample of it, types and the dial."""

    @stage(version=1, inputs=("penalty", "voters"), cell=("data",), seeded=False)
    def vectors(self, inputs: Any, cell: Any, seed: Any) -> dict[str, Array]:
        """Voters of a data set; of a person's own nothing where none is given."""
        if cell.data == "file":
            return own(inputs.voters) if inputs.voters is not None else {}
        return voters_of(cell.data, inputs.penalty)

    def electorates(self, inputs: Any, cell: Any, rng: np.random.Generator) -> list[Electorate]:
        if cell.data == "file" and inputs.voters is None:
            if inputs.scale == "paper":
                raise ValueError(
                    "--voters: this scale reads voters of yours (the paper's data sets): name their CSV file"
                )
            return []
        data = self.vectors(inputs, cell)
        ks = tuple(k for k in range(2, 9) if k < len(data["vectors"]) / 2)
        return electorates(data, inputs.most, ks, rng)


class Regimes(Real):
    """Real voters from agreement to opposition: who is served in proportion, and at what price?

    A contender of your own is a function of an electorate (``vectors``, ``weights``, ``items``) that gives a direction.
    """

    cells = grid(data=[*DATA, "file"])
    contenders = {**CONTENDERS, **WHITENED}
    metrics = {"min_slack": higher("share of pairs"), "violated": lower("types"), "utility": higher("share of pairs"),
               "min_slack_items": higher("share of pairs"), "violated_items": lower("types"),
               "utility_items": higher("share of pairs")}  # fmt: skip

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        if cell.data == "file" and inputs.voters is None and inputs.scale != "paper":
            return False
        return cell.data not in ("countries", "file") or contender not in WHITENED

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> list[Electorate]:
        return self.electorates(inputs, cell, rng)

    def measure(self, problem: list[Electorate], contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        rows = []
        for e in problem:
            rule = found_by(contender, e)
            if rule is None:
                continue
            types = as_types(e.vectors, e.weights)
            row = {
                "voters": e.voters,
                "types": len(types.weights),
                "angle": e.angle,
                **summary(served(rule, types), types.weights),
            }
            if e.items is not None:
                row |= summary(served(rule, types, e.items), types.weights, "_items")
            rows.append(row)
        return rows


class Batches(Real):
    """How far do single batches of real voters fall short, by size?"""

    cells = grid(data=["electricity", "train"])
    contenders = {k: CONTENDERS[k] for k in ("angular mean", "arithmetic mean", "max-min slack")}
    metrics = {
        "mean_shortfall": lower("share of pairs"),
        "worst_shortfall": lower("share of pairs"),
        "any_violation": lower(),
    }

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        some = [e for e in self.electorates(inputs, cell, rng) if e.voters in ("all", "k = 4", "dial 0")]
        return SimpleNamespace(some=some, sizes=inputs.sizes, batches=inputs.batches, seed=int(rng.integers(2**31)))

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        rows = []
        for e in problem.some:
            rule, types = found_by(contender, e), as_types(e.vectors, e.weights)
            batches = max(1, problem.batches // (40 if len(types.weights) > 20 else 4))
            for kind, items in (("isotropic", None), ("real", e.items)):
                for m in problem.sizes:
                    if items is not None and m > len(items):
                        continue
                    found = batch_shortfall(rule, types.vectors, m, weights=types.weights, items=items, n_batches=batches,
                                            random_state=problem.seed)  # fmt: skip
                    rows.append({"voters": e.voters, "items": kind, "m": m, "mean_shortfall": float(found.shortfall.mean()),
                                 "worst_shortfall": float(found.shortfall.max()), "any_violation": found.any_violation})  # fmt: skip
        return rows


class Gap(Experiment):
    """Two opposed voters without slack: how does their shortfall in a batch shrink with its size?"""

    cells = grid(weight=[0.3, 0.5, 0.7])
    contenders = {"angular mean": CONTENDERS["angular mean"]}
    metrics = {"shortfall": lower("share of pairs")}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        e = Electorate("opposed", OPPOSED, np.array([cell.weight, 1 - cell.weight]))
        return SimpleNamespace(e=e, sizes=inputs.sizes, batches=inputs.batches, seed=int(rng.integers(2**31)))

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        e, rows = problem.e, []
        rule = found_by(contender, e)
        slack = served(rule, as_types(e.vectors, e.weights)) - e.weights  # type: ignore[arg-type]
        for m in problem.sizes:
            found = batch_shortfall(
                rule, e.vectors, m, weights=e.weights, n_batches=problem.batches, random_state=problem.seed + m
            )
            rows += [{"m": m, "voter": i, "slack": float(slack[i]), "shortfall": float(found.shortfall[i]),
                      "violation": float(found.violation[i])} for i in range(2)]  # fmt: skip
        return rows


def every_direction() -> Array:
    """1000 rules in the plane."""
    turn = np.linspace(0, 2 * np.pi, 1000, endpoint=False)
    return np.column_stack([np.cos(turn), np.sin(turn)])


class Impossibility(Experiment):
    """Two opposed voters of weight 1/2 and batches of two items: can any fixed rule serve both?"""

    contenders = {"1000 directions": every_direction}
    metrics = {"worse": lower()}
    unit = "rule"
    seeds = 0

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return SimpleNamespace(batches=max(1, inputs.batches // 4), seed=int(rng.integers(2**31)))

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        rows = []
        for k, rule in enumerate(contender()):
            found = batch_shortfall(rule, OPPOSED, 2, n_batches=problem.batches, random_state=problem.seed + k)
            rows.append({"rule": k, "worse": float(found.violation.max()), "some": found.any_violation})
        return rows
