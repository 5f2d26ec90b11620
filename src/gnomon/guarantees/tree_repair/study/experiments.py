"""What is measured: fairness of credit decisions, safety of policies, and the solving of one round."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.guarantees.tree_repair.counterexamples import Pair, demands, satisfied
from gnomon.guarantees.tree_repair.method import NoSolution, TreeRepair
from gnomon.guarantees.tree_repair.properties import (
    Candidate,
    Context,
    FairnessProperty,
    FairnessVerifier,
    Key,
    resampled,
)
from gnomon.guarantees.tree_repair.study.contenders import FAIR, POLICIES, WAYS, Loop, Turn
from gnomon.guarantees.tree_repair.study.material import People, Task, people, reloaded, task
from gnomon.study import Experiment, grid, higher, lower, stage

BLOCKS = 20  # the held-out pairs in equal parts
LEAST = 10.0  # what a gap counts as where there is no solution
STAGED = ("trees", "depth", "rounds", "per_round", "limit", "population", "offset")
ALONE = ["german-rf", "german-xgb", "adult-gbdt"]
DETERMINISTIC = ["lake8-rf", "cliff-gbdt", "grid-gbdt"]
SLIPPERY = "slippery4-rf"


def given(inputs: Any, cell: Any, seed: int) -> People:
    limit = inputs.limit * (2 if cell.case.startswith("adult") else 1)  # it has six times the rows
    return people(cell.case, inputs.trees, inputs.depth, inputs.population, limit, seed + inputs.offset)


def repaired(problem: People, objective: str, rounds: int, per_round: int) -> dict[str, Any]:
    """One loop: leaf values after each round, all pairs, how many were fixed in each round, gaps and seconds."""
    prop = FairnessProperty(problem.sensitive, verifier="generator", samples=4000)
    repair = TreeRepair(prop, objective=objective, max_rounds=rounds, per_round=per_round, time_limit=problem.limit)
    with contextlib.suppress(NoSolution):  # then what is measured is where the loop had come to
        repair.fit_transform(problem.model, problem.X, problem.y)
    pairs, history = repair.counterexamples_, repair.history_
    width = problem.X.shape[1]
    return {
        "w": np.array(repair.path_),
        "one": np.array([p.x for p in pairs if isinstance(p, Pair)]).reshape(-1, width),
        "two": np.array([p.other for p in pairs if isinstance(p, Pair)]).reshape(-1, width),
        "counterexamples": history["counterexamples"].to_numpy(),
        "gap": np.minimum(history["gap"].to_numpy(dtype=float), LEAST),
        "solve": history["solve_s"].to_numpy(dtype=float),
    }


class Fairness(Experiment):
    """Base of the two experiments on people."""

    contenders = FAIR
    metrics = {"violation": lower(), "accuracy": higher(), "balanced": higher(), "auc": higher(), "fidelity": higher(),
               "fixed": higher(), "satisfied": higher(), "gap": lower(), "changed_leaves": lower(), "mean_change": lower(),
               "solve": lower("s")}  # fmt: skip
    unit = ("seed", "block")

    @stage(version=1, inputs=STAGED)
    def hinge(self, inputs: Any, cell: Any, seed: Any) -> dict[str, Any]:
        return repaired(given(inputs, cell, seed), "hinge", inputs.rounds, inputs.per_round)

    @stage(version=1, inputs=STAGED)
    def flips(self, inputs: Any, cell: Any, seed: Any) -> dict[str, Any]:
        return repaired(given(inputs, cell, seed), "flips", inputs.rounds, inputs.per_round)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> People:
        problem = given(inputs, cell, cell.seed)
        problem.loops = {"hinge": self.hinge(inputs, cell), "flips": self.flips(inputs, cell)}
        return problem

    def measure(self, problem: People, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        turns = contender(problem)
        if not isinstance(turns, list):  # a person's own: a function from the problem to a model
            turns = [Turn(turns)]
        loop = problem.loops[contender.objective if isinstance(contender, Loop) else "hinge"]
        rows = []
        for number, turn in enumerate(turns):
            last = number == len(turns) - 1
            shared = scores(problem, turn, loop) | turn.more
            shared["exact"] = exact(problem, loop["w"][-1]) if last and isinstance(contender, Loop) else "not asked"
            differs = turn.model.predict(problem.one) != turn.model.predict(problem.two)
            for k, block in enumerate(np.array_split(differs, BLOCKS)):
                rows.append(
                    {
                        "round": number,
                        "last": last,
                        "block": f"{problem.seed}.{k}",
                        "violation": float(block.mean()),
                        **shared,
                    }
                )
        return rows


def scores(problem: People, turn: Turn, loop: dict[str, Any]) -> dict[str, float]:
    """On the test rows, and on the counterexamples."""
    from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score

    guess = np.asarray(turn.model.predict(problem.X_test))
    level = turn.model.predict_proba(problem.X_test)[:, 1] if hasattr(turn.model, "predict_proba") else guess
    out = {
        "accuracy": float(accuracy_score(problem.y_test, guess)),
        "balanced": float(balanced_accuracy_score(problem.y_test, guess)),
        "auc": float(roc_auc_score(problem.y_test, level)),
        "fidelity": float((guess == problem.model.predict(problem.X_test)).mean()),
        "fixed": 1.0,
        "satisfied": 1.0,
        **dict.fromkeys(("gap", "solve", "changed_leaves", "mean_change"), 0.0),
    }
    if len(loop["one"]):
        out["fixed"] = float((turn.model.predict(loop["one"]) == turn.model.predict(loop["two"])).mean())
    if turn.fixed:  # what this round had to fix, in the library's own words after a save and a load
        pairs = [Pair(a, b) for a, b in zip(loop["one"][: turn.fixed], loop["two"][: turn.fixed], strict=True)]
        out["satisfied"] = float(satisfied(problem.encoded, reloaded(turn.model), pairs).mean())
    return out


def exact(problem: People, w: np.ndarray) -> str:
    """What the exact verifier says of leaf values within a fifth of the time limit of a solve."""
    verifier = fairness(problem)
    found = verifier.find(Candidate(problem.encoded, w), set(), problem.limit / 5, 1)
    return "proved" if found.proved else "violated" if found.counterexamples else "open"


def fairness(problem: People) -> FairnessVerifier:
    context = Context(problem.X, None, np.random.default_rng([problem.seed, 11]))
    return FairnessProperty(problem.sensitive, verifier="milp").bind(problem.encoded, context)


class German(Fairness):
    """Does repair make equal decisions for the sexes on German credit, and what does it cost?"""

    cells = grid(case=["german-gbdt"])


class Others(Fairness):
    """The same on one split of other models and of Adult."""

    cells = grid(case=ALONE)
    seeds = 1


class Safety(Experiment):
    """Does repair make an imitated policy safe, and what does it cost in return?"""

    cells = grid(task=[*DETERMINISTIC, SLIPPERY])
    seeds = 20
    contenders = POLICIES
    metrics = {
        "risk": lower(),
        "expected_return": higher(),
        "fidelity": higher(),
        "rounds": lower(),
        "changed_leaves": lower(),
    }

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Task:
        return task(cell.task, inputs.policy_trees, inputs.limit, cell.seed + inputs.offset)

    def measure(self, problem: Task, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        found, mdp = contender(problem), problem.mdp
        before = np.asarray(problem.model.predict(problem.features)).astype(int)
        return [{
            "risk": float(mdp.risk(found.policy)[0][mdp.start].max()),
            "expected_return": mdp.expected_return(found.policy, problem.horizon),
            "fidelity": float((found.policy == before).mean()), "threshold": problem.threshold or 0.0,
            "satisfied": found.satisfied, "proved": found.proved, "rounds": found.rounds,
            "counterexamples": found.counterexamples, "changed_leaves": found.changed_leaves,
        }]  # fmt: skip


@dataclass
class Round:
    """One round to solve."""

    people: People
    wanted: list[Any]
    margin: float
    limit: float


class Solving(Experiment):
    """How near to the optimum is one round of up to 80 counterexamples after equal time?"""

    contenders = WAYS
    seeds = 3
    metrics = {"gap": lower(), "cost": lower(), "solve": lower("s"), "rows": lower(), "demands": lower()}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Round:
        problem = people("german-gbdt", inputs.trees, inputs.depth, 100, inputs.limit, cell.seed + inputs.offset)
        return Round(problem, violating(problem, inputs.demanded), margin_of(problem), inputs.solving)

    def measure(self, problem: Round, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        program, found = contender.solve(problem.people.encoded, problem.people.X, problem.people.y, problem.wanted, problem.limit,
                                         problem.margin)  # fmt: skip
        return [{"gap": min(LEAST, found.gap), "cost": min(LEAST, found.objective), "solve": found.seconds,
                 "rows": program.program.n_rows, "demands": len(problem.wanted)}]  # fmt: skip


def margin_of(problem: People) -> float:
    level = problem.encoded.scores(problem.X)
    return 1e-3 * float(level.max() - level.min())


def violating(problem: People, n: int, draws: int = 40) -> list[Any]:
    """Up to n pairs with different decisions, from as many draws of the generator as that takes."""
    verifier, known, pairs = fairness(problem), set[Key](), list[Any]()
    candidate = Candidate(problem.encoded, problem.encoded.w)
    for _ in range(draws):
        rows = resampled(problem.X, 4000, verifier.context.rng)
        fresh, _ = verifier.violations(candidate, rows, known, n - len(pairs))
        pairs += fresh
        known |= {d.key for d in demands(problem.encoded, fresh)}
        if len(pairs) >= n:
            break
    return demands(problem.encoded, pairs)
