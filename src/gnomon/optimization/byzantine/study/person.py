"""``gnomon run``: a person's own table split by client, and what they see of the result."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field

from gnomon.optimization.byzantine.attacks import ALIE, InnerProduct, SignFlip, Zero, optimised
from gnomon.study import Inputs, Outcome

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SOLVERS = ("pigs", "aeg", "gd", "nesterov", "heavy_ball")
ATTACKS = {
    "none": None,
    "alie": optimised(ALIE()),
    "ipm": optimised(InnerProduct()),
    "sign-flip": SignFlip(),
    "zero": Zero(),
}
CLOSE = 0.01  # of the first gradient


def _file(path: Path) -> Path:
    if not path.expanduser().is_file():
        raise ValueError(f"{path} is no file")
    return path.expanduser()


class Run(Inputs):
    """What a person gives."""

    data: Annotated[Path, AfterValidator(_file)] = Field(description="table in CSV: numeric features, label, client")
    target: str = Field(description="column of the label")
    clients: str = Field(description="column that says which client holds the row")
    f: int = Field(1, ge=0, description="bound on the clients that lie")
    attack: Literal["none", "alie", "ipm", "sign-flip", "zero"] = Field(
        "none", description="simulate f more clients that lie in this way"
    )
    solver: Literal["pigs", "aeg", "gd", "nesterov", "heavy_ball"] = Field("pigs", description="whose model is kept")
    trusted: str | None = Field(None, description="client whose rows the server uses (default: the first)")
    l2: float = Field(1e-2, gt=0, description="ridge penalty")
    rounds: int = Field(300, ge=2, description="most rounds of communication")


@dataclass
class Table:
    """The person's table, standardised."""

    X: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    names: list[str]
    mean: np.ndarray
    scale: np.ndarray


def read(inputs: Run) -> Table:
    """Features, labels and clients of the file.

    Raises
    ------
    ValueError
        For a column that is not there, features that are not numbers, and missing values.
    """
    import pandas as pd

    table = pd.read_csv(inputs.data)
    for option, column in (("target", inputs.target), ("clients", inputs.clients)):
        if column not in table:
            raise ValueError(
                f"{option}: {inputs.data.name} has no column {column!r}; it has {', '.join(map(str, table))}"
            )
    features = table.drop(columns=[inputs.target, inputs.clients])
    if words := [str(c) for c in features if not pd.api.types.is_numeric_dtype(features[c])]:
        raise ValueError(f"data: columns {', '.join(words)} hold no numbers; encode or drop them")
    if features.shape[1] == 0 or len(table) == 0:
        raise ValueError("data: there is no row, or no column besides target and clients")
    if table.isna().any(axis=None) or not np.isfinite(features.to_numpy(float)).all():
        gaps = table.isna() | ~np.isfinite(table.where(table.map(np.isreal), 0.0).to_numpy(float))
        raise ValueError(f"data: missing or infinite values in {', '.join(map(str, gaps.any()[gaps.any()].index))}")
    X = features.to_numpy(float)
    scale = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    return Table((X - X.mean(axis=0)) / scale, table[inputs.target].to_numpy(), table[inputs.clients].astype(str).to_numpy(),
                 list(map(str, features)), X.mean(axis=0), scale)  # fmt: skip


def train(inputs: Run, beside: bool) -> Outcome:
    """Fit by the chosen solver and, for comparison, by the others; ``beside`` adds the plain mean."""
    from gnomon.optimization.byzantine.aggregators import Mean
    from gnomon.optimization.byzantine.classifier import ByzantineClassifier

    table = read(inputs)
    results = {}
    ways: dict[str, dict[str, Any]] = {s: {"solver": s} for s in (inputs.solver, *SOLVERS)}
    if beside:
        ways["gd, plain mean"] = {"solver": "gd", "aggregator": Mean()}
    for name, options in ways.items():
        model = ByzantineClassifier(inputs.f, l2=inputs.l2, trusted=inputs.trusted, max_rounds=inputs.rounds,
                                    attack=ATTACKS[inputs.attack], **options)  # fmt: skip
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "kappa", RuntimeWarning)  # the certificate says it
            results[name] = model.fit(table.X, table.y, table.groups)
    return Outcome(inputs, table, results)


def present(outcome: Outcome) -> dict[str, Any]:
    """The model, the certificate, the rounds by solver."""
    import pandas as pd

    table, model, inputs = outcome.problem, outcome.result, outcome.inputs
    liars = f"; {inputs.f} more clients lie ({inputs.attack})" if inputs.attack != "none" and inputs.f else ""
    counts = f"{len(table.X)} rows, {table.X.shape[1]} features, {len(model.classes_)} classes, {len(model.clients_)} clients{liars}"
    weights = pd.DataFrame(np.vstack([model.coef_.T, model.intercept_]), columns=[str(c) for c in model.classes_])
    weights.insert(0, "feature (standardised)", [*table.names, "intercept"])
    return {"data": counts, f"model by {inputs.solver}": weights, "certificate": str(model.certificate_),
            "rounds by solver": rounds(outcome)}  # fmt: skip


def rounds(outcome: Outcome) -> pd.DataFrame:
    """Rounds until the gradient is a hundredth of the first, and where each solver ended."""
    import pandas as pd

    rows = []
    for name, model in outcome.results.items():
        path = model.history_
        near = path["round"][path["grad_norm"] <= CLOSE * path["grad_norm"].dropna().iloc[0]]
        rows.append({"solver": name, f"rounds to {CLOSE:.0%} of the gradient": str(near.iloc[0]) if len(near) else "not reached",
                     "rounds": model.n_iter_, "set-up rounds": model.setup_rounds_, "objective": path["objective"].iloc[-1],
                     "gradient": path["grad_norm"].iloc[-1], "accuracy on these rows": model.score(outcome.problem.X, outcome.problem.y)})  # fmt: skip
    return pd.DataFrame(rows)


def picture(outcome: Outcome) -> Figure:
    """The objective over rounds, by solver."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, model in outcome.results.items():
        axes.plot(
            model.history_["round"] + 1,
            model.history_["objective"],
            lw=2 if name == outcome.inputs.solver else 1,
            label=name,
        )
    axes.set(xscale="log", xlabel="rounds of communication", ylabel="objective over the clients of the table")
    axes.legend()
    return figure


def save(outcome: Outcome, directory: Path) -> None:
    """``model.npz`` (with the standardisation), ``history.csv``, ``certificate.json``."""
    model, table = outcome.result, outcome.problem
    np.savez(directory / "model.npz", coef=model.coef_, intercept=model.intercept_, classes=np.asarray(model.classes_, dtype=str),
             features=np.array(table.names), mean=table.mean, scale=table.scale)  # fmt: skip
    model.history_.to_csv(directory / "history.csv", index=False)
    body = {
        k: v if not isinstance(v, float) or np.isfinite(v) else str(v) for k, v in asdict(model.certificate_).items()
    }
    (directory / "certificate.json").write_text(json.dumps(body, indent=1) + "\n")
