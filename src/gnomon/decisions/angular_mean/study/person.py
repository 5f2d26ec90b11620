"""``gnomon run``: a person's own voters, and what each of them gets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from gnomon.decisions.angular_mean import baselines
from gnomon.decisions.angular_mean.batches import batch_shortfall, proportionality_report
from gnomon.decisions.angular_mean.choices import fit_voters
from gnomon.decisions.angular_mean.method import AngularMean
from gnomon.study import Options, Outcome

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Array = np.ndarray

SHOWN = 20  # voters in the table on the screen; the file has all


def csv_file(path: Path) -> Path:
    if not path.expanduser().is_file():
        raise ValueError(f"{path} is no file")
    return path.expanduser()


def numbers(text: str) -> str:
    parts = [p.strip() for p in text.split(",")]
    if not all(p.isdecimal() and int(p) >= 2 for p in parts):
        raise ValueError("expected whole numbers >= 2 with commas between, such as 2,5,10")
    return ",".join(parts)


File = Annotated[Path, AfterValidator(csv_file)]
Sizes = Annotated[str, AfterValidator(numbers)]


class Run(Options):
    """What a person gives."""

    voters: File | None = Field(
        None, description="CSV of scoring vectors: one voter a row, a numeric column an attribute"
    )
    weights: str | None = Field(None, description="column of the voters' weights; default equal")
    choices: File | None = Field(
        None, description="instead of voters, CSV of choices: one row an alternative, with columns person, task, chosen"
    )
    penalty: float | str = Field(1.0, description="ridge penalty of the voters from choices, or cv")
    items: File | None = Field(
        None, description="CSV of items, with the attributes as columns: agreement is counted on them"
    )
    whiten: bool = Field(False, description="take the covariance of the items into account")
    batch_sizes: Sizes = Field("2,5,10,50", description="items in a batch")
    batches: int = Field(2000, ge=1, description="batches drawn of each size")
    random_state: int = Field(0, ge=0, description="seed of starts and batches")

    @model_validator(mode="after")
    def _fits(self) -> Any:
        if (self.voters is None) == (self.choices is None):
            raise ValueError("give --voters or --choices, one of them")
        if self.weights is not None and self.voters is None:
            raise ValueError("--weights: a column of the voters; those from choices weigh the same")
        if self.whiten and self.items is None and self.choices is None:
            raise ValueError("--whiten needs --items")
        return self


@dataclass
class Given:
    """What was read."""

    vectors: Array
    weights: Array | None
    names: list[str]
    attributes: list[str]
    items: Array | None
    mean: Array | None = None  # the standardisation of voters from choices
    scale: Array | None = None


def read(inputs: Run) -> Given:
    """Voters, weights and items of the files."""
    import pandas as pd

    if inputs.choices is not None:
        penalty = inputs.penalty if inputs.penalty == "cv" else _number(inputs.penalty)
        found = fit_voters(pd.read_csv(inputs.choices), penalty=penalty, random_state=inputs.random_state)
        items = (
            found.items if inputs.items is None else (_items(inputs.items, found.attributes) - found.mean) / found.scale
        )
        return Given(found.coef, None, found.people, found.attributes, items, found.mean, found.scale)
    path: Any = inputs.voters
    table = pd.read_csv(path)
    weights = None
    if inputs.weights is not None:
        if inputs.weights not in table:
            raise ValueError(
                f"--weights: {path.name} has no column {inputs.weights!r}; it has {', '.join(map(str, table))}"
            )
        weights = table.pop(inputs.weights).to_numpy(float)
    words = [str(c) for c in table if not pd.api.types.is_numeric_dtype(table[c])]
    if len(words) > 1:
        raise ValueError(f"--voters: columns {', '.join(words)} hold no numbers; one may, as the voters' names")
    names = [str(n) for n in (table.pop(words[0]) if words else range(1, len(table) + 1))]
    attributes = list(map(str, table))
    return Given(table.to_numpy(float), weights, names, attributes, None if inputs.items is None else _items(inputs.items, attributes))  # fmt: skip


def use(inputs: Run, beside: bool) -> Outcome:
    """The angular mean and the arithmetic mean; ``beside`` adds the other rules."""
    given = read(inputs)
    rule = AngularMean(
        given.weights, covariance="empirical" if inputs.whiten else None, random_state=inputs.random_state
    )
    rule.fit(given.vectors, items=given.items if inputs.whiten else None)
    results: dict[str, Any] = {
        "angular mean": rule,
        "arithmetic mean": baselines.arithmetic_mean(given.vectors, given.weights),
    }
    if beside:
        results |= {
            "normalised mean": baselines.normalized_mean(given.vectors, given.weights),
            "heaviest voter": baselines.heaviest(given.vectors, given.weights),
            "Kemeny": baselines.kemeny_rule(given.vectors, given.weights, covariance=rule.covariance_),
            "coordinate median": baselines.coordinate_median(given.vectors, given.weights),
            "max-min slack": baselines.max_min_slack(given.vectors, given.weights, max_starts=8),
        }
    return Outcome(inputs, given, results)


def direction(rule: Any) -> Array:
    found: Array = getattr(rule, "coef_", rule)
    return found


def report(outcome: Outcome) -> pd.DataFrame:
    """A row for each type: names, weight, agreement and slack under both means."""
    rule, items = outcome.result, outcome.problem.items
    table = proportionality_report(rule, items, batch_sizes=())
    other = proportionality_report(outcome.results["arithmetic mean"], items, batch_sizes=(), voters=rule.types_,
                                   weights=rule.weights_, covariance=rule.covariance_)  # fmt: skip
    names = np.array(outcome.problem.names, dtype=object)
    table["voter"] = [", ".join(names[rule.labels_ == k]) for k in range(len(table))]
    return table.assign(**{"slack under arithmetic mean": other["slack"]})


def per_batch(outcome: Outcome) -> pd.DataFrame:
    """For each size of batch: how often some voter gets less than its share, and the largest expected shortfall."""
    import pandas as pd

    rule, items, inputs = outcome.result, outcome.problem.items, outcome.inputs
    rows = []
    for m in map(int, inputs.batch_sizes.split(",")):
        if items is not None and m > len(items):
            continue
        for name in ("angular mean", "arithmetic mean"):
            found = batch_shortfall(direction(outcome.results[name]), rule.types_, m, weights=rule.weights_, items=items,
                                    covariance=None if items is not None else rule.covariance_, n_batches=inputs.batches,
                                    random_state=inputs.random_state)  # fmt: skip
            rows.append({"items in a batch": m, "rule": name, "batches with a violation": found.any_violation,
                         "worst expected shortfall": found.shortfall.max()})  # fmt: skip
    return pd.DataFrame(rows)


def present(outcome: Outcome) -> dict[str, Any]:
    """The rule, what every voter gets, and the batches."""
    import pandas as pd

    given, rule = outcome.problem, outcome.result
    table = report(outcome).sort_values("slack")
    least, other = table["slack"].min(), table["slack under arithmetic mean"].min()
    counted = "on all pairs of the items given" if given.items is not None else "for isotropic items"
    merged = f" of {len(rule.weights_)} types" if len(rule.weights_) < len(given.names) else ""
    shown = {
        "voters": f"{len(given.names)} voters{merged}, {len(given.attributes)} attributes; agreement {counted}",
        "in the long run": f"{_says(least)} The arithmetic mean: least slack {other:.3f}. A voter's share is of all pairs, "
        "not of what exceeds chance.",
        "rule": pd.DataFrame(
            {"attribute": given.attributes, **{name: direction(r) for name, r in outcome.results.items()}}
        ),
        "what every voter gets" if len(table) <= SHOWN else f"the {SHOWN} voters with the least slack": table.head(
            SHOWN
        ),
        "batch by batch": per_batch(outcome),
    }
    if len(outcome.results) > 2:
        shown["beside"] = _beside(outcome)
    return shown


def picture(outcome: Outcome) -> Figure:
    """Agreement of every type over its weight, under both means; below the line a voter gets less than its share."""
    from matplotlib.figure import Figure

    table = report(outcome)
    figure = Figure(figsize=(5, 4), layout="constrained")
    ax = figure.subplots()
    for label, slack, mark in (("angular mean", "slack", "o"), ("arithmetic mean", "slack under arithmetic mean", "x")):
        ax.plot(table["weight"], table["weight"] + table[slack], mark, label=label, alpha=0.7)
    top = max(float(table["weight"].max()) * 1.1, 0.1)
    ax.plot([0, top], [0, top], color="0.5", lw=0.8)
    ax.set(xlabel="weight of the voter", ylabel="share of pairs ordered alike", ylim=(0, 1.02))
    ax.legend()
    return figure


def save(outcome: Outcome, directory: Path) -> None:
    """``rule.json`` (attributes, coefficients, standardisation) and ``voters.csv`` (what every voter gets)."""
    given, rule = outcome.problem, outcome.result
    body = {"attributes": given.attributes, "coef": rule.coef_.tolist(), "objective": rule.objective_,
            "least_slack": float(report(outcome)["slack"].min()), "unique": len(rule.ties_) == 1,
            "mean": None if given.mean is None else given.mean.tolist(),
            "scale": None if given.scale is None else given.scale.tolist()}  # fmt: skip
    (directory / "rule.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    report(outcome).to_csv(directory / "voters.csv", index=False)


def _says(least: float) -> str:
    if least >= -1e-9:
        return f"Every voter gets at least its share of pairs: least slack {max(least, 0.0):.3f}."
    return (
        f"Some voter gets less than its share of pairs: least slack {least:.3f} (the guarantee is for Gaussian items)."
    )


def _beside(outcome: Outcome) -> pd.DataFrame:
    import pandas as pd

    rule, items, rows = outcome.result, outcome.problem.items, []
    for name, other in outcome.results.items():
        got = proportionality_report(direction(other), items, batch_sizes=(), voters=rule.types_, weights=rule.weights_,
                                     covariance=rule.covariance_)  # fmt: skip
        rows.append({"rule": name, "least slack": got["slack"].min(), "types below their share": int((got["slack"] < -1e-9).sum()),
                     "mean agreement": float((got["weight"] * got["agreement"]).sum())})  # fmt: skip
    return pd.DataFrame(rows)


def _items(path: Path, attributes: list[str]) -> Array:
    import pandas as pd

    table = pd.read_csv(path)
    if lacking := [a for a in attributes if a not in table]:
        raise ValueError(f"--items: {path.name} has no column {', '.join(map(repr, lacking))}; the voters score by it")
    found: Array = table[attributes].to_numpy(float)
    return found


def _number(text: float | str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--penalty is {text!r}; expected a number > 0 or cv") from None
