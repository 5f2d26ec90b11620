"""The study of the angular mean: who is served in proportion, when it matters, and what no fixed rule can do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from gnomon import study
from gnomon.decisions.angular_mean.study import drawing, person
from gnomon.decisions.angular_mean.study.claims import CLAIMS, HIGH, LOW
from gnomon.decisions.angular_mean.study.experiments import Batches, Gap, Guarantee, Impossibility, Regimes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class AngularMeanStudy(study.Study):
    """The angular mean beside means, medians, dictators and the max-min rule."""

    title = "The End Justifies the Mean: a linear ranking rule for proportional sequential decisions"
    paper = "arXiv 2605.12717"
    bibtex = """@article{baharav2026end,
  title   = {The End Justifies the Mean: A Linear Ranking Rule for Proportional Sequential Decisions},
  author  = {Baharav, Carmel and Boehmer, Niclas and Flanigan, Bailey and Wittmann, Maximilian},
  journal = {arXiv preprint arXiv:2605.12717},
  year    = {2026}
}"""
    question = (
        "Voters score items by linear rules of their own, and one fixed rule must rank every batch to come. Which rule lets each "
        "voter agree with the outcomes at least in proportion to its size, in the long run and batch by batch, and when does it "
        "differ from averaging the weights?"
    )
    method = (
        "The angular mean is the direction with the least weighted sum of squared angles to the voters' (a Frechet mean on the "
        "sphere), the global minimum: exact on the circle, by descent from many starts and Newton's method in higher dimensions. "
        "For rotation-symmetric items agreement is 1 - angle / pi, so long-run proportionality bounds each angle by "
        "(1 - weight) pi; Gaussian items of another covariance are whitened first."
    )
    departures = (
        "Only the abstract and the references were read: the inequality, the algorithm, the extension to items that are not "
        "isotropic and the measures of batches are reconstructed.",
        "The descent's last steps are Newton's: the unit step's rate tends to 1 where voters are opposed. Starts that meet are "
        "merged, and voters within 90 degrees of their mean need one start, for the minimum is then unique.",
        "Data are stated-choice surveys and Moral Machine countries in place of the paper's three sets of individuals, which the "
        "paper scale takes as a CSV of vectors. They are homogeneous (10 to 75 degrees); strong disagreement is made by scaling "
        "the component that three clusters of them share.",
        "Cars: one choice a person, so the voters are 8 segments, on the nine numeric attributes (not body and fuel).",
        "Least slack is by the formula for isotropic items, as in the sheet's prototype; beside it, reported, on the items' pairs "
        "(at most 400 items a seed). Batches of real suppliers end at m = 20: there are 35.",
        "Leximin is searched for up to 20 types; the max-min rule starts from the 8 best of all starts.",
    )
    command = "gnomon run angular-mean --voters thetas.csv --weights members --items items.csv --save rule"
    example = """
import pandas as pd

from gnomon.decisions import AngularMean, proportionality_report

voters = pd.read_csv("thetas.csv")
rule = AngularMean().fit(voters[["price", "speed", "comfort"]].to_numpy(), sample_weight=voters["members"])
print(rule.coef_.round(3), "least slack", rule.slack_.min().round(3))
print(proportionality_report(rule, batch_sizes=(2, 10, 50)).round(3).to_string(index=False))
"""
    experiments = (Guarantee, Regimes, Batches, Gap, Impossibility)
    claims = CLAIMS

    class Inputs(study.Inputs):
        """What is studied."""

        seeds: int = Field(20, ge=1, description="subsamples of voters and items, and sets of batches")
        worlds: int = Field(10_000, ge=8, description="random worlds of the guarantee")
        batches: int = Field(4000, ge=40, description="batches drawn of each size")
        batch_sizes: person.Sizes = Field("2,3,5,10,20,50,100", description="items in a batch")
        most: int | None = Field(None, ge=20, description="use at most so many voters of a data set")
        penalty: float | Literal["cv"] = Field(1.0, description="ridge penalty of the voters from choices, or cv")
        voters: person.File | None = Field(None, description="CSV of scoring vectors of your own, one voter a row")
        scales = {
            "smoke": {"seeds": 2, "worlds": 160, "batches": 400, "batch_sizes": "2,10,50", "most": 30,
                      "Regimes": {"cells": {"data": ["electricity"]}}, "Batches": {"cells": {"data": ["electricity"]}}},
            "laptop": {},
            "extended": {"seeds": 50, "worlds": 100_000, "batches": 20_000},
            "paper": {"Regimes": {"cells": {"data": ["file"]}}, "Batches": False},
        }  # fmt: skip

        @property
        def sizes(self) -> tuple[int, ...]:
            return tuple(map(int, self.batch_sizes.split(",")))

    def derive(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """The angular mean's least slack over the arithmetic mean's, and its price against the Kemeny rule, by instance."""
        if "Regimes" not in tables:
            return {}
        rows = tables["Regimes"]
        columns = ["min_slack", "utility", *(["min_slack_items"] if "min_slack_items" in rows else [])]
        wide = rows.pivot_table(columns, ["data", "voters", "seed"], "contender")
        found = rows.groupby(["data", "voters", "seed"])[["angle"]].first()
        found["difference"] = wide["min_slack"]["angular mean"] - wide["min_slack"]["arithmetic mean"]
        if "Kemeny (geodesic median)" in wide["utility"]:
            found["price"] = wide["utility"]["Kemeny (geodesic median)"] - wide["utility"]["angular mean"]
        if len(columns) == 3:
            on_items = wide["min_slack_items"]
            found["difference_items"] = on_items["angular mean"] - on_items["arithmetic mean"]
            if "angular mean, whitened" in on_items:
                found["whitened_items"] = on_items["angular mean, whitened"] - on_items["arithmetic mean"]
        angle = found.groupby(["data", "voters"])["angle"].transform("mean")
        found["regime"] = ["high" if a >= HIGH else "low" if a < LOW else "between" for a in angle]
        return {"Difference": found.reset_index()}

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure:
        """Least slack over disagreement, least slacks of random worlds, shortfall over batch size."""
        return drawing.evidence(tables)

    # --- gnomon run ---

    Run = person.Run

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        return person.use(inputs, beside)

    def present(self, outcome: study.Outcome) -> dict[str, Any]:
        return person.present(outcome)

    def picture(self, outcome: study.Outcome) -> Figure:
        return person.picture(outcome)

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        person.save(outcome, directory)
