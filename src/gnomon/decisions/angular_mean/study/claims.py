"""What must come out; beside it the sheet's prototype."""

from __future__ import annotations

from typing import Any

from gnomon.study import always, at_most, estimate, slope

HIGH, LOW = 100.0, 80.0  # degrees: mean angle between types
BY_CELL = ["data", "voters"]


def _proportional(rows: Any) -> Any:
    return rows["min_slack"] + 1e-6


def _worse(rows: Any) -> Any:
    return rows["worse"] - 0.5


def _some(rows: Any) -> Any:
    return rows["some"] == 1


CLAIMS = [
    # 1: long-run proportionality
    always(
        _proportional,
        table="Guarantee",
        on={"contender": "angular mean"},
        id="long-run",
        text="With the angular mean every voter of every random world agrees with at least its share of pairs (to 1e-6)",
        paper="Abstract: the angular mean satisfies long-run individual proportionality; sheet: worst 0.0 at d = 2",
    ),
    *(
        always(
            _proportional,
            table="Guarantee",
            on={"contender": name},
            report=True,
            id=f"long-run-{slug}",
            text=f"The same with {said}: share of worlds, and the worst",
            paper=paper,
        )
        for name, slug, said, paper in (
            ("arithmetic mean", "arithmetic", "the arithmetic mean", "Sheet's prototype: worst -0.20 to -0.41"),
            ("one start", "one-start", "descent from the mean alone", "A stationary point that is no global minimum may violate it"),
            ("Kemeny (geodesic median)", "kemeny", "the Kemeny rule", ""),
            ("heaviest voter", "heaviest", "the heaviest voter's own rule", ""),
        )
    ),
    # 2: disagreement
    estimate(
        "difference",
        at_least=0.0,
        table="Difference",
        on={"regime": "high"},
        id="high-disagreement",
        text="Types 100 degrees apart or more: the angular mean's least slack exceeds the arithmetic mean's, on average over instances",
        paper="Abstract: the rules part where disagreement is high; sheet's prototype: +.118 against -.144 at 120 degrees",
    ),
    estimate(
        "difference",
        at_least=0.0,
        table="Difference",
        on={"regime": "high"},
        each=BY_CELL,
        id="high-disagreement-each",
        text="and on each such instance",
    ),
    estimate(
        "difference",
        between=(-0.02, 0.02),
        table="Difference",
        on={"regime": "low"},
        each=BY_CELL,
        id="low-disagreement",
        text="Types less than 80 degrees apart: the two least slacks differ by less than 0.02, on each instance",
        paper="Sheet's prototype: at most .009 (Electricity, 71 to 76 degrees)",
    ),
    estimate(
        "difference",
        table="Difference",
        on={"regime": "between"},
        each=BY_CELL,
        report=True,
        id="middle",
        text="The difference from 80 to 100 degrees",
        paper="Sheet's prototype: .319 / .292 and .307 / .292",
    ),
    estimate(
        "difference_items",
        table="Difference",
        on={"regime": "high", "data": ["electricity", "train", "car"]},
        each=BY_CELL,
        report=True,
        id="high-on-items",
        text="High disagreement, agreement counted on the real items' pairs",
    ),
    estimate(
        "whitened_items",
        table="Difference",
        on={"regime": "high", "data": ["electricity", "train", "car"]},
        each=BY_CELL,
        report=True,
        id="whitened-on-items",
        text="There, least slack of the angular mean of whitened voters, less the arithmetic mean's",
    ),
    estimate(
        "angle",
        table="Difference",
        on={"voters": "all"},
        each=["data"],
        report=True,
        id="angles",
        text="Mean angle between the real voters, in degrees",
        paper="Sheet's prototype: 71 (Electricity)",
    ),
    # 3: batches
    slope(
        "shortfall",
        "angular mean",
        along="m",
        between=(-0.62, -0.45),
        table="Gap",
        on={"m": [20, 50, 100]},
        each=["weight"],
        id="gap-rate",
        text="Opposed voters without slack: their mean shortfall in a batch decays as m^-b with b from 0.45 to 0.62 over m = 20, 50, 100",
        paper="Abstract: the per-batch gap shrinks with the batch; sheet: b = .55 to .56",
    ),
    at_most(
        "shortfall",
        "angular mean",
        0.05,
        table="Gap",
        on={"m": 50},
        each=["weight"],
        id="gap-small",
        text="and is below 0.05 at m = 50",
        paper="Sheet: .0159 to .0197",
    ),
    slope(
        "shortfall",
        "angular mean",
        along="m",
        table="Gap",
        each=["weight"],
        report=True,
        id="gap-rate-all",
        text="The exponent over all batch sizes from 2 on (not yet asymptotic)",
        paper="Sheet: -.71",
    ),
    # 4: impossibility
    always(
        _worse,
        table="Impossibility",
        id="impossible",
        text="Two opposed voters, batches of two: every direction violates the voter it serves worse in at least half of the batches",
        paper="Impossibility: no fixed linear rule is proportional in every batch",
    ),
    always(
        _some,
        table="Impossibility",
        id="always-someone",
        text="and in every batch one of the two is violated",
    ),
    # 5: the price
    estimate(
        "price",
        at_most=0.05,
        table="Difference",
        each=BY_CELL,
        id="price",
        text="The angular mean loses less than 5 points of mean agreement against the Kemeny rule, on each instance",
        paper="Sheet's prototype: at most .012",
    ),
]  # fmt: skip
