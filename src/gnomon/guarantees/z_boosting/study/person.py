"""``gnomon run``: a person's own table, boosted with a threshold that keeps a rate, and what they see of the result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from gnomon import stats
from gnomon.study import Inputs, Outcome

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from gnomon.guarantees.z_boosting.classifier import ZBoostClassifier

Array = NDArray[np.float64]
BALANCES = ("adaptive", "free")


def _file(path: Path) -> Path:
    if not path.expanduser().is_file():
        raise ValueError(f"{path} is no file")
    return path.expanduser()


def _balance(text: str) -> str:
    try:
        ok = text in BALANCES or 0 < float(text) < 1
    except ValueError:
        ok = False
    if not ok:
        raise ValueError("expected adaptive, free, or a balance in (0, 1)")
    return text


class Run(Inputs):
    """What a person gives."""

    data: Annotated[Path, AfterValidator(_file)] = Field(description="table in CSV: features and a label of two values")
    target: str = Field(description="column of the label")
    positive: str | None = Field(
        None, description="value of the label that counts as positive (default: the last in sorted order)"
    )
    target_fpr: float | None = Field(None, gt=0, lt=1, description="most false positives, as a share of the negatives")
    target_fnr: float | None = Field(None, gt=0, lt=1, description="most missed positives, as a share of the positives")
    confidence: float = Field(0.95, gt=0, lt=1, description="that the target rate is kept")
    rounds: int = Field(200, ge=1, description="most rounds")
    depth: int = Field(1, ge=1, description="depth of the trees that are boosted")
    p: Annotated[str, AfterValidator(_balance)] = Field(
        "adaptive", description="balance asked: adaptive, free, or a number in (0, 1)"
    )
    gamma_min: float = Field(0.01, gt=0, le=0.5, description="edge below which the search for a balance ends")
    test_fraction: float = Field(0.25, gt=0, lt=1, description="share of the rows kept for the report")


@dataclass
class Table:
    """The person's table: text columns as 0 / 1 indicators, and which rows are for testing."""

    X: Array
    y: NDArray[Any]
    names: list[str]
    positive: str
    negative: str
    test: NDArray[np.bool_]


def read(inputs: Run) -> Table:
    """Features and labels of the file.

    Raises
    ------
    ValueError
        For a column or label that is not there, labels that are not of two values, missing values, and no features.
    """
    import pandas as pd
    from sklearn.model_selection import train_test_split

    table = pd.read_csv(inputs.data)
    if inputs.target not in table:
        raise ValueError(
            f"target: {inputs.data.name} has no column {inputs.target!r}; it has {', '.join(map(str, table))}"
        )
    features = table.drop(columns=[inputs.target])
    gaps = table.isna().any() | table.apply(
        lambda c: pd.api.types.is_numeric_dtype(c) and not np.isfinite(c.astype(float)).all()
    )
    if gaps.any():
        raise ValueError(
            f"data: missing or infinite values in {', '.join(map(str, gaps[gaps].index))}; fill or drop them"
        )
    labels = table[inputs.target].astype(str)
    values = sorted(labels.unique())
    if len(values) != 2:
        raise ValueError(
            f"target: {inputs.target!r} has {len(values)} values; expected two (a column each for one class against the rest)"
        )
    positive = values[1] if inputs.positive is None else inputs.positive
    if positive not in values:
        raise ValueError(f"positive: {positive!r} is none of the labels {', '.join(values)}")
    if features.shape[1] == 0:
        raise ValueError("data: there is no column besides the target")
    coded = pd.get_dummies(features, dtype=float)
    y = (labels == positive).to_numpy().astype(int)
    if min(y.sum(), len(y) - y.sum()) < 4:
        raise ValueError(
            f"data: {int(y.sum())} positive and {int(len(y) - y.sum())} negative rows; expected 4 or more of each"
        )
    test = np.zeros(len(y), dtype=bool)
    test[train_test_split(np.arange(len(y)), test_size=inputs.test_fraction, stratify=y, random_state=0)[1]] = True
    return Table(
        coded.to_numpy(float),
        y,
        list(map(str, coded.columns)),
        positive,
        next(v for v in values if v != positive),
        test,
    )


def train(inputs: Run, beside: bool) -> Outcome:
    """Boost on the rows that are not for testing; ``beside`` adds the booster at other balances and AdaBoost."""
    from sklearn.tree import DecisionTreeClassifier

    from gnomon.guarantees.z_boosting.classifier import ZBoostClassifier

    table = read(inputs)
    if inputs.target_fpr is not None and inputs.target_fnr is not None:
        raise ValueError("target_fpr, target_fnr: both given; expected at most one, as the threshold is one number")
    p: Any = inputs.p if inputs.p in BALANCES else float(inputs.p)
    ways = {"zboost": p, **({"zboost, p = 1/2": 0.5, "zboost, free p": "free"} if beside else {})}
    X, y = table.X[~table.test], table.y[~table.test]
    results: dict[str, Any] = {}
    for name, balance in ways.items():
        results[name] = ZBoostClassifier(DecisionTreeClassifier(max_depth=inputs.depth), inputs.rounds, balance, gamma_min=inputs.gamma_min,
                                         target_fpr=inputs.target_fpr, target_fnr=inputs.target_fnr, confidence=inputs.confidence,
                                         random_state=0).fit(X, y)  # fmt: skip
    if beside:
        results["adaboost, no threshold"] = _adaboost(inputs).fit(X, y)
    return Outcome(inputs, table, results)


def _adaboost(inputs: Run) -> Any:
    from sklearn.ensemble import AdaBoostClassifier
    from sklearn.tree import DecisionTreeClassifier

    return AdaBoostClassifier(
        DecisionTreeClassifier(max_depth=inputs.depth), n_estimators=inputs.rounds, random_state=0
    )


def present(outcome: Outcome) -> dict[str, Any]:
    """The rows, the promise that the rounds kept, and the errors on the test rows."""
    table, model, inputs = outcome.problem, outcome.result, outcome.inputs
    target = inputs.target_fpr if inputs.target_fpr is not None else inputs.target_fnr
    kind = "false positives" if inputs.target_fpr is not None else "missed positives"
    asked = f"; at most {target:.3g} {kind} asked, with confidence {inputs.confidence:g}" if target is not None else ""
    data = (f"{len(table.y)} rows, {table.X.shape[1]} features; positive: {table.positive} ({table.y.mean():.1%}); "
            f"{int(table.test.sum())} rows kept for testing{asked}")  # fmt: skip
    return {"data": data, "boosting": summary(model), "errors on the test rows": errors(outcome)}


def summary(model: ZBoostClassifier) -> str:
    """What the rounds were like."""
    if not model.n_iter_:
        return "no balance of the classes gives this learner an edge: nothing was boosted"
    seen = model.empirical_z_set().verdict
    ends = "; then no balance gave an edge" if model.no_edge_ else ""
    can = {"boostable": f"boostable, gap {seen.gap:.3g}", "vacuous": "no one set of pairs for all these balances"}.get(
        seen.status, "not boostable"
    )
    return (f"{model.n_iter_} rounds, {model.n_calls_} learners fitted{ends}; balances asked {model.ps_.min():.3g} to {model.ps_.max():.3g}, least edge "
            f"{np.abs(model.edges_).min():.3g}; training errors at most {model.bound_:.3g} in each class before the threshold {model.theta_:.4g}; "
            f"pairs (FP, FN) seen: {can}")  # fmt: skip


def errors(outcome: Outcome) -> pd.DataFrame:
    """Both error rates on the test rows, with exact 95 % intervals."""
    import pandas as pd

    table = outcome.problem
    X, y = table.X[table.test], table.y[table.test]
    rows = []
    for name, model in outcome.results.items():
        wrong = model.predict(X) != y
        row: dict[str, Any] = {"classifier": name}
        for what, kind in (("false positives", 0), ("missed positives", 1)):
            found = stats.binomial(int(wrong[y == kind].sum()), int((y == kind).sum()))
            row[what] = f"{found.estimate:.3f} ({found.low:.3f} to {found.high:.3f})"
        rows.append({**row, "accuracy": f"{1 - wrong.mean():.3f}"})
    return pd.DataFrame(rows)


def picture(outcome: Outcome) -> Figure:
    """Both test error rates over the rounds, and the pairs (FP, FN) of the rounds beside the coins."""
    from matplotlib.figure import Figure

    table, model = outcome.problem, outcome.result
    X, y = table.X[table.test], table.y[table.test]
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    said = np.array(list(model.staged_predict(X)))
    for kind, name in ((0, "false positives"), (1, "missed positives")):
        if len(said):
            left.plot(np.arange(1, len(said) + 1), (said != y)[:, y == kind].mean(axis=1), label=name)
    left.set(xlabel="round", ylabel="rate on the test rows, at the final threshold", ylim=(0, 1))
    left.legend()
    a = np.linspace(0, 1, 301)
    right.plot(a, (1 - np.sqrt(a)) ** 2, color="0.5", lw=1, label="√FP + √FN = 1")
    points = model.rates_ * np.column_stack([1 - model.ps_, model.ps_])
    if len(points):
        right.scatter(points[:, 0], points[:, 1], c=np.arange(len(points)), s=12, label="rounds (dark: early)")
    right.set(xlabel="FP of the round", ylabel="FN of the round", xlim=(0, 1), ylim=(0, 1))
    right.legend(fontsize=8)
    return figure


def save(outcome: Outcome, directory: Path) -> None:
    """``scores.csv`` (every row), ``rounds.csv``, ``trees.csv`` (with ``model.json`` the whole model), ``model.json``."""
    import pandas as pd

    table, model, inputs = outcome.problem, outcome.result, outcome.inputs
    F = model.decision_function(table.X) + model.theta_
    pd.DataFrame(
        {"F": F, "predicted": np.where(model.theta_ < F, table.positive, table.negative), "test": table.test}
    ).to_csv(directory / "scores.csv", index=False)
    pd.DataFrame({"p": model.ps_, "fpr": model.rates_[:, 0], "fnr": model.rates_[:, 1], "edge": model.edges_, "rho": model.rho_,
                  "alpha": model.alphas_, "beta": model.betas_}).to_csv(directory / "rounds.csv", index_label="round")  # fmt: skip
    trees(model, table.names).to_csv(directory / "trees.csv", index=False)
    body = {"theta": model.theta_, "bound": model.bound_, "calls": model.n_calls_, "positive": table.positive, "negative": table.negative,
            "features": table.names, "target_fpr": inputs.target_fpr, "target_fnr": inputs.target_fnr, "confidence": inputs.confidence}  # fmt: skip
    (directory / "model.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def trees(model: ZBoostClassifier, names: list[str]) -> pd.DataFrame:
    """All nodes of all trees: go left where the feature is <= the threshold; leaves vote -1 / +1."""
    import pandas as pd

    rows = []
    for t, estimator in enumerate(model.estimators_):
        tree = estimator.tree_
        for node in range(tree.node_count):
            leaf = tree.children_left[node] < 0
            vote = 1 if estimator.classes_[int(tree.value[node][0].argmax())] == 1 else -1
            rows.append({"round": t, "node": node, "feature": "" if leaf else names[tree.feature[node]], "threshold": np.nan if leaf else tree.threshold[node],
                         "left": tree.children_left[node], "right": tree.children_right[node], "vote": vote if leaf else np.nan})  # fmt: skip
    return pd.DataFrame(rows, columns=["round", "node", "feature", "threshold", "left", "right", "vote"])
