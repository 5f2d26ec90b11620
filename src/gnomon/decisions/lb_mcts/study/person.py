"""``gnomon run``: the best algorithm and hyperparameters for a person's own table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field

from gnomon.study import Options, Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gnomon.decisions.lb_mcts.method import LBMCTS

SHOWN = 8  # trials that are shown


def _file(path: Path) -> Path:
    if not path.expanduser().is_file():
        raise ValueError(f"{path} is no file")
    return path.expanduser()


class Run(Options):
    """What a person gives."""

    data: Annotated[Path, AfterValidator(_file)] = Field(
        description="table in CSV: numeric features and what is predicted"
    )
    target: str = Field(description="column that is predicted")
    task: Literal["classification", "regression"] = Field("classification", description="what the target is")
    trials: int = Field(60, ge=1, description="evaluations")
    llm: str = Field(
        "prior",
        description="prior (documented defaults), embedded (a small model), endpoint:http://host/v1#name (any other; its key is read from "
        "OPENAI_API_KEY), a model's folder or hub name, or none",
    )
    llm_fallback: bool = Field(False, description="go on with the prior where the endpoint cannot be reached")
    scoring: str = Field("", description="scikit-learn's name of the metric (default: balanced_accuracy, or r2)")
    folds: int = Field(3, ge=2, description="folds of cross-validation")
    timeout: float = Field(30.0, gt=0, description="seconds that one evaluation may take")
    algorithms: str = Field("", description="names separated by commas (default: all)")
    name: str = Field("", description="of the data set, told to a language model; not given unless you write it here")
    seed: int = Field(0, ge=0, description="of the search")


def read(inputs: Run) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Features, target, and the features' names.

    Raises
    ------
    ValueError
        For a column that is not there, features that are not numbers, and rows without a target.
    """
    import pandas as pd

    table = pd.read_csv(inputs.data)
    if inputs.target not in table:
        raise ValueError(
            f"target: {inputs.data.name} has no column {inputs.target!r}; it has {', '.join(map(str, table))}"
        )
    features = table.drop(columns=[inputs.target])
    if words := [str(c) for c in features if not pd.api.types.is_numeric_dtype(features[c])]:
        raise ValueError(f"data: columns {', '.join(words)} hold no numbers; encode or drop them")
    if features.shape[1] == 0 or len(table) == 0:
        raise ValueError("data: there is no row, or no column besides the target")
    if gone := int(table[inputs.target].isna().sum()):
        raise ValueError(f"target: {gone} rows have none")
    return features.to_numpy(float), table[inputs.target].to_numpy(), list(map(str, features))


def tune(inputs: Run, beside: bool) -> Outcome:
    """LB-MCTS; ``beside`` adds Bayesian optimisation alone and random search with as many trials."""
    from rich.console import Console
    from rich.progress import Progress

    from gnomon.decisions.lb_mcts.baselines import RandomSearch
    from gnomon.decisions.lb_mcts.method import LBMCTS
    from gnomon.decisions.lb_mcts.sklearn_space import sklearn_space

    X, y, names = read(inputs)
    wanted = [a.strip() for a in inputs.algorithms.split(",") if a.strip()] or None
    space = sklearn_space(inputs.task, wanted)
    common: dict[str, Any] = {"n_trials": inputs.trials, "scoring": inputs.scoring or None, "cv": inputs.folds, "timeout_per_trial": inputs.timeout,
                              "random_state": inputs.seed, "name": inputs.name, "anonymise": not inputs.name, "llm_fallback": inputs.llm_fallback}  # fmt: skip
    llm = None if inputs.llm == "none" else inputs.llm
    ways: dict[str, tuple[Any, dict[str, Any]]] = {"lb-mcts": (LBMCTS, {"llm": llm})}
    if beside:
        ways |= {"BO alone": (LBMCTS, {"llm": None}), "random search": (RandomSearch, {"llm": None})}
    results = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for name, (kind, options) in ways.items():
            task = progress.add_task(name, total=inputs.trials)
            found = kind(space, **options, **common, callback=lambda trial, task=task: progress.advance(task))
            results[name] = found.fit(X, y)
    return Outcome(inputs, (X, y, names), results)


def present(outcome: Outcome) -> dict[str, Any]:
    """The best configuration, the trials that led to it, who proposed them."""
    import pandas as pd

    X, y, _ = outcome.problem
    best: LBMCTS = outcome.result
    chosen: dict[str, Any] = best.best_config_
    inputs, rows = outcome.inputs, best.trials_
    metric = inputs.scoring or ("balanced_accuracy" if inputs.task == "classification" else "r2")
    config = ", ".join(f"{k}={v}" for k, v in chosen["config"].items())
    found: dict[str, Any] = {
        "data": f"{X.shape[0]} rows, {X.shape[1]} features"
        + (f", {len(np.unique(y))} classes" if inputs.task == "classification" else ""),
        "best": f"{chosen['algorithm']} ({config}): {metric} {best.best_score_:.4f} in {inputs.folds}-fold cross-validation",
        "proposals": f"{(rows['proposer'] == 'bo').sum()} by Bayesian optimisation, {(rows['proposer'] == 'llm').sum()} by {inputs.llm}; "
        f"{(rows['status'] == 'failed').sum()} evaluations failed, {rows['failures'].sum()} replies could not be read, "
        f"{rows['prompt_tokens'].sum() + rows['completion_tokens'].sum()} tokens; evaluations {rows['seconds'].sum():.1f} s, "
        f"language model {rows['llm_seconds'].sum():.1f} s, the rest {rows['overhead'].sum():.1f} s",
    }
    top = rows.sort_values(["loss", "number"]).head(SHOWN)
    shown = pd.DataFrame({"trial": top["number"], "algorithm": top["algorithm"], "configuration": top["config"], metric: -top["loss"],
                          "by": top["source"], "seconds": top["seconds"]})  # fmt: skip
    found["best trials"] = shown
    if len(outcome.results) > 1:
        found["beside"] = pd.DataFrame([{"search": n, metric: o.best_score_, "algorithm": o.best_config_["algorithm"],
                                         "found at trial": int(o.trials_["loss"].idxmin())} for n, o in outcome.results.items()])  # fmt: skip
    return found


def picture(outcome: Outcome) -> Figure:
    """The best score so far over evaluations, and rho."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, found in outcome.results.items():
        axes.plot(range(1, len(found.trials_) + 1), -found.trials_["loss"].fillna(np.inf).cummin(), label=name)
    axes.set(xlabel="evaluations", ylabel="best score so far")
    axes.legend(loc="lower right")
    right = axes.twinx()
    right.plot(range(1, len(outcome.result.trials_) + 1), outcome.result.trials_["rho"], color="0.7", lw=0.8)
    right.set(ylim=(0, 1), ylabel="rho (grey)")
    return figure


def save(outcome: Outcome, directory: Path) -> None:
    """``best.json`` (for ``sklearn_space(...).build``), ``trials.csv``, ``tree.json`` (networkx's node-link form)."""
    import networkx as nx

    best = outcome.result
    body = {**best.best_config_, "score": best.best_score_, "task": outcome.inputs.task, "features": outcome.problem[2]}
    (directory / "best.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    best.trials_.to_csv(directory / "trials.csv", index=False)
    tree = nx.node_link_data(best.tree_, edges="edges")
    (directory / "tree.json").write_text(json.dumps(tree) + "\n", encoding="utf-8")
