"""The study of DISCA: does the disagreement of personas bring a model nearer to a country's people?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gnomon import study
from gnomon.decisions.disca.study import drawing, person
from gnomon.decisions.disca.study.claims import CLAIMS
from gnomon.decisions.disca.study.experiments import FEW, Model, OpenEnded, Panels, WhiteBox
from gnomon.models import EMBEDDED, ModelRef

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class DISCAStudy(study.Study):
    """Simulated panels about real preferences of 20 countries, and a language model's own personas."""

    title = "Training-free cultural alignment of large language models via persona disagreement"
    paper = "arXiv 2605.10843"
    bibtex = """@article{minh2026trainingfree,
  title   = {Training-Free Cultural Alignment of Large Language Models via Persona Disagreement},
  author  = {Minh and Kiet and Tuan Nguyen and Tran and Pham and Quy and The Anh Han and Tran-Thanh},
  journal = {arXiv preprint arXiv:2605.10843},
  year    = {2026}
}"""
    question = (
        "One model serves many countries, without training, country data or weights. Do a few personas of a country bring its "
        "answers nearer to that country's people, and is it their disagreement, rather than what they agree on, that one may trust?"
    )
    method = (
        "Four personas answer beside the base model. All shifts of the base's log-odds in units of the personas' standard deviation "
        "are weighed by a loss-averse value (a persona's loss counts 2.25 times its gain, the base's own movement is a loss), the "
        "mean shift is shrunk by a jackknife over personas and cut at one standard deviation."
    )
    departures = (
        "Only the abstract and the first page were readable: the formulas, the defaults and the simulation are reconstructed.",
        "The draws of the importance estimator come from the normal cut to [-3, 3], as the quadrature's grid does.",
        "Scenarios in the style of MultiTP are written here: 9 dimensions, 3 wordings, 4 pairs of characters; at laptop scale one wording "
        "and two pairs, in five countries.",
        "The World Values Survey may not be passed on: the study's personas know a name and an age only, and every result says so.",
        "The question ends in 'I choose option': a small instruct model leaves 97 % on the letters there, and 3 % after 'Answer:'.",
        "The file's column '[Omission -> Commission]' is read as the preference for inaction, as in the published figure.",
        "More than two options are read in the given and in the reversed order.",
    )
    command = "gnomon run disca --country VNM --questions questions.jsonl --save decided"
    example = """
from gnomon.decisions import DISCA, PersonaPanel, correct

found = correct([0.0, 1.5], [[1.0, 2.0, 3.0, 2.0], [1.2, 1.3, 1.1, 1.2]])  # gaps in nats: no model needed
print(found.gap.round(3), found.reliability.round(3))

disca = DISCA("embedded", PersonaPanel.generic("VNM"))
decision = disca.decide("A driverless car cannot stop. Whom should it save?", ["a child", "an old man"])
print(decision.base_probabilities.round(3), decision.probabilities.round(3), decision.spread.round(3))
"""
    experiments = (Panels, Model, OpenEnded, WhiteBox)
    claims = CLAIMS

    class Inputs(study.Inputs):
        """What is studied."""

        seeds: int = Field(1, ge=1, description="number of seeds (the simulated panels count in repeats)")
        repeats: int = Field(100, ge=1, description="draws of the simulated panels")
        model: ModelRef = Field(EMBEDDED, description="the language model")
        templates: int = Field(1, ge=1, le=3, description="wordings of the scenarios")
        characters: int = Field(2, ge=1, le=4, description="pairs of characters a dimension")
        human: Path | None = Field(None, description="CountriesChangePr.csv (default: disca/ under GNOMON_DATA)")
        scales = {
            "smoke": {"repeats": 2, "characters": 1, "Model": {"cells": {"country": ["VNM"]}}, "OpenEnded": False, "WhiteBox": False},
            "laptop": {"Model": {"cells": {"country": FEW}}, "OpenEnded": False, "WhiteBox": False},
            "extended": {"repeats": 400, "templates": 3, "characters": 4, "OpenEnded": {"cells": {"country": FEW}},
                         "WhiteBox": {"cells": {"country": FEW}}},
            "paper": {"repeats": 400, "templates": 3, "characters": 4},
        }  # fmt: skip

    def derive(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """The share of the gain that personas of a wrong country do not give, by regime and repeat."""
        rows = tables["Panels"]
        wide = rows.pivot_table("mis", ["regime", "repeat"], "contender")
        if not {"base", "disca", "wrong country"} <= set(wide):
            return {}
        # means over repeats below the line, so that no repeat divides by a gain near zero
        gain = (wide["base"] - wide["disca"]).groupby(level="regime").transform("mean")
        specific = (wide["wrong country"] - wide["disca"]) / gain
        return {"Specific": specific.rename("specific").reset_index().assign(contender="disca")}

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure:
        """Change of misalignment by regime and rule; the model's effects by dimension."""
        return drawing.evidence(tables)

    # --- gnomon run ---

    Run = person.Run

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        return person.ask(inputs, beside)

    def present(self, outcome: study.Outcome) -> list[Any]:
        return person.present(outcome)

    def picture(self, outcome: study.Outcome) -> Figure:
        return drawing.person(outcome.result)

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        person.save(outcome, directory)
