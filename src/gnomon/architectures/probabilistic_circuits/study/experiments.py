"""The experiments on tasks with a known truth, and those on text and music."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from gnomon import study
from gnomon.architectures.probabilistic_circuits.study.contenders import (
    KINDS,
    Decomposable,
    Grams,
    Head,
    Language,
    Oracle,
    RandomCircuit,
    Structured,
    Transformer,
    TransformerInit,
)
from gnomon.architectures.probabilistic_circuits.tasks import Copies, aligned, crossing, factorization

T, V, NOISE = 8, 4, 0.05


def seed_of(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def predictions(logs: np.ndarray, x: np.ndarray) -> dict[str, float]:
    """Mean entropy and largest probability of predictions [n, L, V], and the calibration error of the likeliest symbol."""
    P = np.exp(logs).reshape(-1, logs.shape[-1])
    top, right = P.max(1), P.argmax(1) == x.ravel()
    bins = np.minimum((10 * top).astype(int), 9)
    gap = sum(abs(top[bins == b].sum() - right[bins == b].sum()) for b in range(10)) / len(top)
    entropy = -np.where(P > 0, P * np.log(np.where(P > 0, P, 1)), 0).sum(1).mean()
    return {"entropy": float(entropy), "max_p": float(top.mean()), "calibration": float(gap)}


# --- A. output -------------------------------------------------------------------------------------------------------


class Output(study.Experiment):
    """V contexts, each with its own next symbol, equally likely: what can a head of width R say?"""

    cells = study.grid(V=[16], R=[2, 3, 4, 8, 16]) + study.grid(V=[64], R=[4, 16])
    contenders = {"mixture": Head("mixture"), "logit": Head("logit")}
    metrics = {"head_nll": study.lower("nats"), "above_bound": study.lower("nats"), "single": study.lower("nats")}

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return contender != "logit" or cell.R in (2, 3)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return SimpleNamespace(V=cell.V, R=cell.R, restarts=inputs.restarts, steps=inputs.em_steps)

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        from gnomon.architectures.probabilistic_circuits.bounds import output_bound

        found = contender(np.eye(problem.V), problem.R, problem.restarts, problem.steps, seed_of(rng))
        bound = output_bound(problem.V, problem.R)
        Q = found.prediction
        entropy = -np.where(Q > 0, Q * np.log(np.where(Q > 0, Q, 1)), 0).sum(1).mean()
        return [{"head_nll": found.nll, "least_nll": float(found.every.min()), "bound": bound,
                 "above_bound": found.nll - bound, "single": float(found.every.mean()) - bound,
                 "optimum": output_bound(problem.V, problem.R, exact=True), "head_entropy": float(entropy),
                 "head_max_p": float(Q.max(1).mean())}]  # fmt: skip


class Text(study.Experiment):
    """Two encoders x two heads on a stream of words, with controls: which part costs what?"""

    cells = study.grid(R=[16, 64])
    contenders = {
        "hmm, logit": Language("hmm", "logit"),
        "hmm, prob": Language("hmm", "prob"),
        "hmm, prob untied": Language("hmm", "prob_untied"),
        "hmm, logit of log": Language("hmm", "logit_log"),
        "transformer, logit": Language("transformer", "logit"),
        "transformer, prob": Language("transformer", "prob"),
        "lstm, logit": Language("lstm", "logit"),
        **{f"kneser-ney {n}": Grams(n) for n in (1, 2, 3, 4)},
    }
    metrics = {"text_nll": study.lower("nats a word"), "text_entropy": study.lower("nats")}

    @study.stage(version=1, inputs=("vocabulary",), cell=(), seeded=False)
    def streams(self, inputs: Any, cell: Any, seed: int | None) -> dict[str, Any]:
        """Word streams of the excerpt."""
        from gnomon.architectures.probabilistic_circuits.study.material import words

        return words(inputs.vocabulary)

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return not contender.startswith("kneser") or min(c["R"] for c in self.cells) == cell.R

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        streams = self.streams(inputs, cell)
        L = inputs.length
        cut = {name: part[: len(part) // L * L].reshape(-1, L) for name, part in streams.items()}
        start = int(rng.integers(max(1, len(streams["train"]) - inputs.train_words)))
        return SimpleNamespace(
            train=streams["train"][start : start + inputs.train_words], valid=cut["valid"][: inputs.windows],
            test=cut["test"][: inputs.windows], vocabulary=inputs.vocabulary, width=cell.R, length=L,
            steps=inputs.steps, batch=inputs.batch,
        )  # fmt: skip

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        import torch

        start = time.process_time()
        model, rate = contender(problem, seed_of(rng))
        row = {"text_nll": -float(model.log_prob(problem.test).mean()), "rate": rate, "trials": 2 if rate else 1,
               "train_s": time.process_time() - start}  # fmt: skip
        if hasattr(model, "n_parameters"):
            with torch.no_grad():
                logs = model(torch.from_numpy(problem.test[:64])).numpy()
            told = predictions(logs, problem.test[:64])
            row |= {"parameters": model.n_parameters, **{f"text_{k}": v for k, v in told.items()}}
        return [row]


class WideText(Text):
    """The same with a wider head, once."""

    seeds = 1
    cells = study.grid(R=[128])
    contenders = {k: c for k, c in Text.contenders.items() if not k.startswith(("kneser", "lstm"))}


# --- C. topology -----------------------------------------------------------------------------------------------------

TASKS = {
    "aligned": Copies([aligned(T)], T, V, NOISE),
    "crossing": Copies([crossing(T)], T, V, NOISE),
    "mixed": Copies([aligned(T), crossing(T)], T, V, NOISE),  # two matchings, and nobody is told which
    **{f"cue {m}": Copies(factorization(T)[:m], T, V, NOISE, cue=True) for m in (1, 2, 4, 7)},
}


class Topology(study.Experiment):
    """Copies along the vtree, across it, and along several matchings of which a cue chooses."""

    cells = study.grid(task=["aligned", "crossing", "cue 7"])
    contenders = {
        **{f"{kind} {R}": Structured(kind, R) for kind in KINDS for R in (4, 16, 64)},
        "balanced 16, EM": Structured("balanced", 16, "em"),
        "oracle vtrees": Decomposable("oracle"),
        "random vtrees": Decomposable("random"),
        "oracle vtrees, EM": Decomposable("oracle", optimizer="em"),
        "random vtrees, EM": Decomposable("random", optimizer="em"),
        "truth as a circuit": Oracle(),
        "transformer": Transformer(),
    }
    metrics = {"nll": study.lower("nats"), "excess": study.lower("nats"), "beyond": study.lower("nats"),
               "bound": study.lower("nats")}  # fmt: skip

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        sums = contender.startswith(("oracle vtrees", "random vtrees"))
        if cell.task == "cue 7":
            return True
        if cell.task == "crossing":
            spared = inputs.scale == "laptop" and contender in (
                "chow_liu 4",
                "chow_liu 64",
                "random 4",
                "random 16",
                "random 64",
            )
            return not (sums or spared or contender == "transformer")
        return contender.startswith(("balanced 4", "balanced 16", "linear 16", "truth"))

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        task = TASKS[cell.task]
        return SimpleNamespace(task=task, cue=task.cue, sizes=task.sizes, X=task.sample(inputs.rows, rng),
                               test=task.sample(500, rng), steps=inputs.steps)  # fmt: skip

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        start = time.process_time()
        model = contender(problem, seed_of(rng))
        spent = time.process_time() - start
        task = problem.task
        nll = expected_nll(task, model)
        row = {"nll": nll, "excess": nll - task.entropy, "train_s": spent, **bounds_of(task, model),
               **predictions(model.autoregressive(problem.test), problem.test)}  # fmt: skip
        row["beyond"] = row["excess"] - row["bound"]
        return [row]


def expected_nll(task: Copies, model: Any) -> float:
    """Exact mean of -log q(x | cue) under the truth, over all states."""
    q = np.maximum(model.joint(), np.finfo(float).tiny)
    states = q.reshape(len(q), -1) if task.cue else q.reshape(1, -1)
    p = task.truth.reshape(len(task.truth), -1)
    if task.cue:
        states = states / states.sum(1, keepdims=True)
    return float(-(p * np.log(states)).sum() / len(p))


def bounds_of(task: Copies, model: Any) -> dict[str, float]:
    """Least excess that theory allows this vtree (C3), and any vtree (C4); 0 for what is no structured circuit."""
    from gnomon.architectures.probabilistic_circuits.bounds import context_bound, vtree_bound, vtree_certificate

    row = {"bound": 0.0, "every_vtree": 0.0, "parameters": float(model.n_parameters)}
    module: Any = getattr(model, "module_", None)
    if not hasattr(module, "tree") or (len(task.matchings) > 1 and not task.cue):
        return row
    first = 1 if task.cue else 0
    matchings = [[(a + first, b + first) for a, b in m] for m in task.matchings]
    R = module.width
    row["bound"] = vtree_bound(module.tree, matchings, task.n_symbols, R, noise=task.noise)
    row["every_vtree"] = vtree_certificate(task.matchings, task.T, task.n_symbols, width=R, noise=task.noise).nll_gap
    row["all_cross"] = context_bound(task.T // 2, task.n_symbols, R, noise=task.noise)
    return row


class Sweep(Topology):
    """Once each: fewer matchings, a mixture without a cue, and Transformers on every task."""

    seeds = 1
    cells = study.grid(task=["cue 1", "cue 2", "cue 4", "mixed", "aligned", "crossing"])

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        if contender == "transformer":
            return cell.task in ("cue 1", "mixed") or (
                cell.task in ("aligned", "crossing") and inputs.scale != "laptop"
            )
        if cell.task in ("aligned", "crossing"):
            return False
        if cell.task == "mixed":
            return contender in ("balanced 4", "balanced 16", "linear 4", "linear 16", "oracle vtrees, EM",
                                 "truth as a circuit")  # fmt: skip
        return contender in ("balanced 16", "linear 16", "chow_liu 16", "random 16", "oracle vtrees", "random vtrees")


# --- B. separation rank ----------------------------------------------------------------------------------------------


class Ranks(study.Experiment):
    """The rank of the joint distribution across every partition of the variables into two sides."""

    cells = [*study.grid(task=["aligned", "crossing"], V=[4]), {"task": "aligned", "V": 3}]
    contenders = {
        "circuit 4": Structured("balanced", 4),
        "random circuit 4": RandomCircuit(4),
        "transformer": Transformer(16, longer=1.0),
        "random transformer": TransformerInit(16),
        "truth": Oracle(),
    }
    metrics = {"rank_6": study.higher(), "rank_10": study.higher(), "rank_2": study.higher()}

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return cell.V == 4 or contender in ("circuit 4", "random circuit 4", "truth")

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        task = Copies(TASKS[cell.task].matchings, T, cell.V, NOISE)
        return SimpleNamespace(task=task, cue=False, sizes=task.sizes, X=task.sample(inputs.rows, rng),
                               steps=inputs.steps)  # fmt: skip

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        from gnomon.architectures.probabilistic_circuits.rank import separation_rank

        table = contender(problem, seed_of(rng)).joint()
        named: dict[tuple[int, ...], str] = {(0, 1, 2, 3): "root cut", (0, 2, 4, 6): "sibling split"}
        rows = []
        for code in range(2 ** (T - 1) - 1):  # every partition once: the side with variable 0, not all
            side = (0, *(t for t in range(1, T) if code >> (t - 1) & 1))
            found = separation_rank(table, side)
            rows.append({"partition": "".join(map(str, side)), "kind": named.get(side, "other"), "side": len(side),
                         "rank_2": found.above(1e-2), "rank_6": found.rank, "rank_10": found.above(1e-10),
                         "most": problem.task.n_symbols ** min(len(side), T - len(side))})  # fmt: skip
        return rows


# --- hand cases ------------------------------------------------------------------------------------------------------


class Certificates(study.Experiment):
    """What every vtree needs, and what no circuit of a given width can reach."""

    seeds = 0
    cells = study.grid(case=["K_8", "one matching"], R=[4, 16, 64])
    contenders = {"certificate": "vtree_certificate"}
    metrics = {"pairs": study.higher()}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return SimpleNamespace(matchings=factorization(T) if cell.case == "K_8" else [aligned(T)], R=cell.R)

    def measure(self, problem: Any, contender: str, rng: np.random.Generator) -> list[dict[str, Any]]:
        from gnomon.architectures.probabilistic_circuits import bounds
        from gnomon.architectures.probabilistic_circuits.trees import vtree

        found = getattr(bounds, contender)(problem.matchings, T, V, width=problem.R, noise=NOISE)
        return [{"pairs": found.pairs, "needed": found.width, "gap": found.nll_gap,
                 "balanced_gap": bounds.vtree_bound(vtree("balanced", T), problem.matchings, V, problem.R, noise=NOISE)}]  # fmt: skip


class Queries(study.Experiment):
    """Conditionals in random order against enumeration: what a Transformer cannot do."""

    cells = study.grid(order=list(range(5)))
    contenders = {
        **{f"{kind} 16": Structured(kind, 16) for kind in KINDS},
        "oracle vtrees": Decomposable("oracle"),
    }
    metrics = {"query_error": study.lower()}

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        task = Copies(factorization(4), 4, 3, NOISE, cue=True)
        return SimpleNamespace(task=task, cue=True, sizes=task.sizes, X=task.sample(2000, rng),
                               order=rng.permutation(5).tolist(), steps=min(inputs.steps, 60))  # fmt: skip

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        model = contender(problem, seed_of(rng))
        table, rows, worst = model.joint(), problem.X[:50], 0.0
        for i, asked in enumerate(problem.order):
            known = problem.order[:i]
            p = model.conditional(rows, [asked], known)
            for row, mine in zip(rows, p, strict=True):
                left = table[tuple(row[t] if t in known else slice(None) for t in range(5))]
                axis = sorted(set(range(5)) - set(known)).index(asked)
                exact = np.moveaxis(left, axis, 0).reshape(left.shape[axis], -1).sum(1)
                worst = max(worst, float(np.abs(mine - exact / exact.sum()).max()))
        return [{"query_error": worst, "mass_error": abs(math.log(float(table.sum())))}]
