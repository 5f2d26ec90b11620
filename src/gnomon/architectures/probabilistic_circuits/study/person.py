"""``gnomon run``: circuits on a person's own rows or text, by vtree, beside a Transformer and the two bounds."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field, field_validator

from gnomon import datasets, study

if TYPE_CHECKING:
    import pandas as pd

KNOWN = ("chow_liu", "linear", "balanced", "random")
PSEUDOCOUNT = 0.01  # of EM, for each unit and step
OUTPUT_SYMBOLS = 256  # beyond, the factorisation of next-symbol conditionals would take long


class Run(study.Options):
    """Options of ``gnomon run probabilistic-circuits``."""

    data: Path | None = Field(
        None, description="integers [n, T] (.npy, -1 missing) or a text (.txt); default: chorales"
    )
    vtree: str = Field("chow_liu,linear,balanced", description="vtrees to fit, of chow_liu, linear, balanced, random")
    width: int = Field(16, ge=1, description="units of every node")
    optimizer: str = Field("em", description="em or adam")
    steps: int = Field(300, ge=1, description="steps of a circuit; a Transformer takes twice as many")
    window: int = Field(16, ge=2, description="characters of a row where the data are a text")
    seed: int = Field(0, ge=0, description="of starts, batches and the split")

    @field_validator("data")
    @classmethod
    def _a_file(cls, value: Path | None) -> Path | None:
        if value is not None and (not value.is_file() or value.suffix not in (".npy", ".txt")):
            raise ValueError("expected an .npy or .txt file that exists")
        return value

    @field_validator("vtree")
    @classmethod
    def _known(cls, value: str) -> str:
        names = value.split(",")
        if not all(n in KNOWN for n in names) or len(set(names)) != len(names):
            raise ValueError(f"expected some of {', '.join(KNOWN)}, with commas between, each once")
        return value

    @field_validator("optimizer")
    @classmethod
    def _optimizer(cls, value: str) -> str:
        if value not in ("em", "adam"):
            raise ValueError("expected em or adam")
        return value


def rows_of(inputs: Run) -> tuple[np.ndarray, tuple[int, ...], list[str] | None]:
    """The rows, their alphabets, and what the symbols stand for where that is known."""
    from gnomon.architectures.probabilistic_circuits.data import check_symbols
    from gnomon.architectures.probabilistic_circuits.study import material

    if inputs.data is None:
        X, sizes = material.coded(material.chorales())
        return X, sizes, None
    if inputs.data.suffix == ".txt":
        text = datasets.text_file(inputs.data)
        names = sorted(set(text))
        stream = np.array([names.index(c) for c in text])
        if len(stream) < 20 * inputs.window:
            raise ValueError(
                f"data: the text has {len(stream)} characters; expected 20 windows of {inputs.window} or more"
            )
        X = stream[: len(stream) // inputs.window * inputs.window].reshape(-1, inputs.window)
        return X, (len(names),) * inputs.window, names
    try:
        array = np.load(inputs.data, allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"data: {inputs.data} is no .npy file of numbers ({error})") from error
    X = check_symbols(array, name="data")
    if X.shape[1] < 2 or len(X) < 20:
        raise ValueError(f"data: got shape {X.shape}; expected 20 rows or more of 2 variables or more")
    return X, (int(X.max(initial=0)) + 1,) * X.shape[1], None


def operate(inputs: Run, beside: bool) -> study.Outcome:
    """Fit every vtree and a Transformer on nine tenths of the rows; score the others."""
    from gnomon.architectures.probabilistic_circuits.baselines import JointTransformer, chow_liu_tree
    from gnomon.architectures.probabilistic_circuits.circuit import Circuit
    from gnomon.architectures.probabilistic_circuits.mixture import VtreeSum
    from gnomon.architectures.probabilistic_circuits.study.contenders import tree

    X, sizes, names = rows_of(inputs)
    rng = np.random.default_rng(inputs.seed)
    order = rng.permutation(len(X))
    held = max(1, len(X) // 10)
    problem = SimpleNamespace(X=X[order[held:]], test=X[order[:held]], sizes=sizes, names=names, cue=False)
    batch = 250 if len(problem.X) > 500 else None
    how: dict[str, Any] = {"optimizer": inputs.optimizer, "n_steps": inputs.steps, "batch_size": batch,
                           "step": 0.1 if inputs.optimizer == "adam" or batch else 1.0, "pseudocount": PSEUDOCOUNT,
                           "random_state": inputs.seed}  # fmt: skip
    results: dict[str, Any] = {}
    for kind in inputs.vtree.split(","):
        results[kind] = Circuit(tree(kind, problem, inputs.seed), sizes, inputs.width).fit(problem.X, **how)
    if beside:
        parts = [Circuit(results[kind].vtree, sizes, inputs.width) for kind in results]
        results["sum of vtrees"] = VtreeSum(parts).fit(problem.X, **how)
        results["Chow-Liu tree"] = chow_liu_tree(problem.X, max(sizes))
    whole = (X >= 0).all()
    if whole:
        results["transformer"] = JointTransformer(sizes).fit(
            problem.X, n_steps=2 * inputs.steps, batch_size=128, random_state=inputs.seed
        )
    return study.Outcome(inputs, problem, results)


def table(outcome: study.Outcome) -> pd.DataFrame:
    """Held-out NLL and size of each model."""
    import pandas as pd

    test = outcome.problem.test
    seen = max(1.0, float((test >= 0).sum(1).mean()))
    rows = []
    for name, model in outcome.results.items():
        nll = -float(model.score_samples(test).mean())
        rows.append({"model": name, "nats a row": nll, "nats a symbol": nll / seen, "parameters": model.n_parameters})
    return pd.DataFrame(rows)


def present(outcome: study.Outcome) -> dict[str, Any]:
    """NLL by vtree and Transformer, the bounds of the two bottlenecks, and one conditional query."""
    import pandas as pd

    from gnomon.architectures.probabilistic_circuits.bounds import information_bound

    problem, width = outcome.problem, outcome.inputs.width
    kinds = outcome.inputs.vtree.split(",")
    context = []
    for kind in kinds:
        circuit = outcome.results[kind]
        found = information_bound(circuit._tree(), problem.X, width)
        context.append({"vtree": kind, "information across the worst cut (nats)": found["information"],
                        "least loss at this width (nats a row)": found["bound"]})  # fmt: skip
    shown: dict[str, Any] = {"held-out NLL": table(outcome), "context bottleneck (estimates)": pd.DataFrame(context)}
    if (output := _output(problem, width)) is not None:
        shown["output bottleneck (next symbol given the last)"] = output
    shown["a conditional query"] = _query(outcome, kinds[0])
    if "transformer" not in outcome.results:
        shown["note"] = "symbols are missing: no Transformer was fitted, for it has no marginals"
    return shown


def _output(problem: Any, width: int) -> pd.DataFrame | None:
    """The best heads of this width for the conditionals of a symbol given the one before it."""
    import pandas as pd

    from gnomon.architectures.probabilistic_circuits.bounds import best_logit_nll, best_mixture_nll

    V = max(problem.sizes)
    if V > OUTPUT_SYMBOLS:
        return None
    before, after = problem.X[:, :-1].ravel(), problem.X[:, 1:].ravel()
    both = (before >= 0) & (after >= 0)
    counts = np.bincount(before[both] * V + after[both], minlength=V * V).reshape(V, V).astype(float)
    counts = counts[counts.sum(1) > 0]
    rho, P = counts.sum(1) / counts.sum(), counts / counts.sum(1, keepdims=True)
    entropy = -float((rho[:, None] * np.where(P > 0, P * np.log(np.where(P > 0, P, 1)), 0)).sum())
    kept = {"entropy": entropy,
            f"mixture of {width} rows": best_mixture_nll(P, width, weights=rho, restarts=5, n_steps=300, random_state=0).nll,
            f"softmax of rank {width}": best_logit_nll(P, width, weights=rho, restarts=3, n_steps=500, random_state=0).nll}  # fmt: skip
    return pd.DataFrame([{"head": k, "nats": v, "above the entropy": v - entropy} for k, v in kept.items()])


def _query(outcome: study.Outcome, kind: str) -> str:
    """p(last | first two) for the first held-out row."""
    circuit, row = outcome.results[kind], outcome.problem.test[:1]
    last = row.shape[1] - 1
    given = [t for t in (0, 1) if t != last]
    p = circuit.conditional(row, [last], given)[0]
    names = outcome.problem.names or [str(v) for v in range(len(p))]
    likeliest = ", ".join(f"{names[v]!r} {p[v]:.3f}" for v in np.argsort(-p)[:5])
    known = ", ".join(f"x_{t} = {names[row[0, t]] if row[0, t] >= 0 else 'missing'!r}" for t in given)
    return f"{kind}: p(x_{last} | {known}), all between summed out: {likeliest}"


def save(outcome: study.Outcome, directory: Path) -> None:
    """Every circuit as a file for ``Circuit.load``, and the table."""
    from gnomon.architectures.probabilistic_circuits.circuit import Circuit

    for name, model in outcome.results.items():
        if isinstance(model, Circuit):
            model.save(directory / f"{name.replace(' ', '_')}.safetensors")
    (directory / "nll.json").write_text(json.dumps(table(outcome).to_dict("records"), indent=1) + "\n")
