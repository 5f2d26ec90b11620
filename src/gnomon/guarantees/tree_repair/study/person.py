"""``gnomon run``: a person's own model file and table, and what they see of the repair."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field

from gnomon.guarantees.tree_repair.baselines import averaged, refitted, relabelled
from gnomon.guarantees.tree_repair.counterexamples import Pair
from gnomon.guarantees.tree_repair.encoding import EnsembleEncoding
from gnomon.guarantees.tree_repair.method import TreeRepair
from gnomon.guarantees.tree_repair.properties import FairnessProperty, exchanged, resampled
from gnomon.study import Options, Outcome

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

HELD_OUT = 4000  # drawn anew, to judge what no search saw


def _file(path: Path) -> Path:
    if not path.expanduser().is_file():
        raise ValueError(f"{path} is no file")
    return path.expanduser()


class Run(Options):
    """What a person gives."""

    model: Annotated[Path, AfterValidator(_file)] = Field(
        description="XGBoost (.json, .ubj) or LightGBM (.txt) classifier; for scikit-learn use Python"
    )
    data: Annotated[Path, AfterValidator(_file)] = Field(
        description="training table in CSV: numeric features and the label"
    )
    target: str = Field(description="column of the label; its values in order are the model's classes")
    sensitive: str = Field(description="columns that must not decide, separated by commas")
    verifier: Literal["milp", "generator", "data"] = Field("milp", description="how counterexamples are looked for")
    objective: Literal["hinge", "flips", "errors", "l1", "logloss"] = Field("hinge", description="what is kept")
    rounds: int = Field(10, ge=1, description="repairs at most")
    per_round: int = Field(40, ge=1, description="counterexamples added in a round at most")
    limit: float = Field(10.0, gt=0, description="seconds for each solve and each exact search")
    min_score: float | None = Field(None, ge=0, le=1, description="floor of the training accuracy")


@dataclass
class Given:
    """The person's model and table."""

    model: Any
    encoding: EnsembleEncoding
    X: np.ndarray
    y: np.ndarray
    names: list[str]
    sensitive: list[str]
    labels: list[Any]


def open_model(path: Path) -> Any:
    """A Booster from a file in its library's own format.

    Raises
    ------
    ValueError
        For another kind of file, or one that the library does not read.
    """
    try:
        if path.suffix in (".json", ".ubj"):
            import xgboost

            return xgboost.Booster(model_file=path)
        if path.suffix == ".txt":
            import lightgbm

            return lightgbm.Booster(model_file=path)
    except Exception as error:
        raise ValueError(f"model: {path.name} cannot be read: {str(error).splitlines()[0][:200]}") from None
    raise ValueError(
        f"model: {path.name} is neither .json or .ubj (XGBoost) nor .txt (LightGBM); for scikit-learn use Python"
    )


def read(inputs: Run) -> Given:
    """Model, features in the model's order, labels as the model's classes.

    Raises
    ------
    ValueError
        For columns that are not there, features that are not numbers, more labels than classes.
    """
    import pandas as pd

    model = open_model(inputs.model)
    encoding = EnsembleEncoding(model)
    table = pd.read_csv(inputs.data)
    sensitive = [c.strip() for c in inputs.sensitive.split(",") if c.strip()]
    for option, columns in (("target", [inputs.target]), ("sensitive", sensitive)):
        for column in columns:
            if column not in table:
                raise ValueError(
                    f"{option}: {inputs.data.name} has no column {column!r}; it has {', '.join(map(str, table))}"
                )
    features = table.drop(columns=[inputs.target])
    known = getattr(model, "feature_names", None) or (
        model.feature_name() if callable(getattr(model, "feature_name", None)) else None
    )
    if known and set(known) <= set(features):
        features = features[list(known)]
    if words := [str(c) for c in features if not pd.api.types.is_numeric_dtype(features[c])]:
        raise ValueError(f"data: columns {', '.join(words)} hold no numbers; encode them as the model was trained")
    labels = sorted(table[inputs.target].unique().tolist())
    if len(labels) > len(encoding.classes):
        raise ValueError(
            f"target: {inputs.target} has {len(labels)} values; the model has {len(encoding.classes)} classes"
        )
    y = table[inputs.target].map({v: i for i, v in enumerate(labels)}).to_numpy()
    return Given(
        model,
        encoding,
        encoding.numbers(features.to_numpy(float), "data"),
        y,
        [str(c) for c in features],
        sensitive,
        labels,
    )


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True,
                  disable=not console.is_terminal) as bar:  # fmt: skip
        task = bar.add_task("reading", total=None)

        def tell(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total)

        yield tell


def train(inputs: Run, beside: bool) -> Outcome:
    """Repair; ``beside`` adds leaf averaging and a refit of the leaves."""
    given = read(inputs)
    with progress() as tell:
        repair = TreeRepair(FairnessProperty(given.sensitive, inputs.verifier), objective=inputs.objective, max_rounds=inputs.rounds,
                            per_round=inputs.per_round, time_limit=inputs.limit, min_score=inputs.min_score, progress=tell)  # fmt: skip
        import pandas as pd

        fixed = repair.fit_transform(given.model, pd.DataFrame(given.X, columns=given.names), given.y)
    results: dict[str, Any] = {"repair": fixed, "as it is": given.model}
    if beside:
        columns = [given.names.index(c) for c in given.sensitive]
        results["leaves averaged"] = averaged(given.encoding, given.X, columns)
        pairs = [c for c in repair.counterexamples_ if isinstance(c, Pair)]
        if given.encoding.n_outputs == 1 and pairs:
            extra = relabelled(given.encoding, np.array([p.x for p in pairs]), np.array([p.other for p in pairs]))
            results["leaves refitted"] = refitted(given.encoding, given.X, given.y, *extra)
    return Outcome(inputs, (given, repair), results)


def held_out(given: Given) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of a generator with a seed of its own."""
    columns = [given.names.index(c) for c in given.sensitive]
    rows = resampled(given.X, HELD_OUT, np.random.default_rng(20261130))
    return exchanged(rows, columns, np.unique(given.X[:, columns], axis=0))


def present(outcome: Outcome) -> dict[str, Any]:
    """The certificate, the models side by side, and round by round."""
    import pandas as pd

    given, repair = outcome.problem
    one, two = held_out(given)
    rows = []
    for name, model in outcome.results.items():
        guess = given.encoding.predict(model, given.X)
        differ = given.encoding.predict(model, one) != given.encoding.predict(model, two)
        rows.append({"model": name, "pairs decided differently": f"{differ.mean():.2%}" if len(one) else "none drawn",
                     "accuracy on this table": float((guess == given.y).mean()),
                     "decisions as before": float((guess == given.encoding.predict(given.model, given.X)).mean())})  # fmt: skip
    shown = ["round", "counterexamples", "rate", "score", "changed_leaves", "gap", "solve_s", "verify_s", "pareto"]
    return {"result": str(repair.certificate_), "models": pd.DataFrame(rows), "rounds": repair.history_[shown]}


def picture(outcome: Outcome) -> Figure:
    """Violations and training score over the rounds."""
    from matplotlib.figure import Figure

    _, repair = outcome.problem
    history: pd.DataFrame = repair.history_
    figure = Figure(figsize=(4.8, 3.6), layout="constrained")
    axis = figure.subplots()
    axis.plot(100 * history["rate"], history["score"], "-o", color="#b2432f")
    for turn, rate, score in zip(history["round"], history["rate"], history["score"], strict=True):
        if np.isfinite(rate):
            axis.annotate(str(turn), (100 * rate, score), xytext=(3, 3), textcoords="offset points", fontsize=8)
    axis.set(
        xlabel="pairs decided differently at the search (%)", ylabel="accuracy on the table", title="round by round"
    )
    return figure


def save(outcome: Outcome, directory: Path) -> None:
    """The repaired model in its own format, ``history.csv``, ``counterexamples.csv``, ``certificate.json``."""
    import pandas as pd

    given, repair = outcome.problem
    outcome.result.save_model(str(directory / f"model{outcome.inputs.model.suffix}"))
    repair.history_.to_csv(directory / "history.csv", index=False)
    pairs = [c for c in repair.counterexamples_ if isinstance(c, Pair)]
    sides = [pd.DataFrame(np.array(side).reshape(-1, len(given.names)), columns=given.names).assign(pair=range(len(pairs)))
             for side in ([p.x for p in pairs], [p.other for p in pairs])]  # fmt: skip
    pd.concat(sides).sort_values("pair", kind="stable").to_csv(directory / "counterexamples.csv", index=False)
    body = {
        k: v if not isinstance(v, float) or np.isfinite(v) else None
        for k, v in dataclasses.asdict(repair.certificate_).items()
    }
    (directory / "certificate.json").write_text(json.dumps(body, indent=1) + "\n")
