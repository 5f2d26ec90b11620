"""The study of FocusBranch: who needs the fewest bounds to decide whether a few pixels can change a label?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gnomon import study
from gnomon.guarantees.focusbranch.study import drawing, person, tables
from gnomon.guarantees.focusbranch.study.claims import CLAIMS
from gnomon.guarantees.focusbranch.study.experiments import Bounds, Colour, Digits, Pruning, Published
from gnomon.study import grid

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

THREE = ("auto", "calzone", "level 1")


class FocusBranchStudy(study.Study):
    """Branch and bound over focus sets against Calzone, CoVerD, fixed starts and brute force."""

    title = "FocusBranch: few-pixel robustness verification by branch and bound over focus sets"
    paper = "NeurIPS 2026 (abstract)"
    bibtex = """@inproceedings{focusbranch2026,
  title     = {Branch and Bound over Focus Sets for Few-Pixel Robustness Verification},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2026}
}"""
    question = (
        "Can changing at most t pixels of an image, in any way, change what a classifier says? There are too many sets of t pixels "
        "to look at each. Which larger sets should be bounded first, and how should those that fail be split?"
    )
    method = (
        "A node (S, l) holds the changes of at most t pixels of which at most t - l lie outside S. Its bound is a backward linear "
        "relaxation whose least value on exactly that node is found greedily. A node that fails is split by a covering design of S, by "
        "adding a pixel (upper shadow) or a group of pixels (lift) with l + 1; a set of t pixels that stays open is attacked and then "
        "solved as a mixed-integer program. Sampled nodes and a dynamic program choose the start and the branching."
    )
    departures = (
        "Only the paper's abstract was at hand: the cost model over levels, the lift rule and the pruning by subsets are reconstructed.",
        "The plan is chosen by bound calls alone. Which sets of t pixels stay open does not depend on the way there, so the exact "
        "leaves cost the same under every plan; their measured cost counts in the predicted seconds.",
        "The cost of a bound is taken as the same for all sizes of a network, as it is here to within a few per cent; success rates "
        "are made monotone by isotonic regression in place of smoothing with an exponential tail.",
        "The share of sets whose subsets are all open is counted on sampled clusters (all l-subsets of a set of l + 1): under "
        "independence it comes out several times too small.",
        "Neurons whose sign is certain on the whole ball are not bounded again in its nodes. Boxes (Calzone, CoVerD) do not lie in the "
        "ball, so those methods bound every neuron: this changes their seconds, not their calls.",
        "Calzone and CoVerD are re-implemented on the same bounds, coverings, attacks and leaves; coverings are constructed, not "
        "looked up in tables; projective blocks may have several pixels to a point.",
        "Limits and seconds are processor time. Laptop scale leaves out t = 3 on the convolutional digits net and t > 2 on the "
        "published nets; the extended scale has them.",
    )
    command = "gnomon run focusbranch --model net.onnx --images test.csv --t 2 --timeout 60"
    example = """
import numpy as np

from gnomon.guarantees import FocusBranch

table = np.loadtxt("test.csv", delimiter=",")
for label, *pixels in table[:3]:
    image = np.array(pixels, np.float32)
    result = FocusBranch(t=2, timeout=30).verify("net.onnx", image, int(label))
    print(int(label), result.status, result.nodes_by_level, result.plan)
"""
    experiments = (Digits, Colour, Published, Bounds, Pruning)
    claims = CLAIMS

    class Inputs(study.Inputs):
        """What is studied."""

        seeds: int = Field(1, ge=1, description="networks trained once: claims generalise over images")
        images: int = Field(20, ge=1, description="images of each of our own nets")
        published: tuple[int, ...] = Field(
            (10, 3), description="images of each published net at t = 1, 2, ... (the last for all larger t)"
        )
        bounded: int = Field(450, ge=1, description="images on which the bounds of ball and box are compared")
        training: float = Field(1.0, gt=0, description="length of training, relative")
        samples: int = Field(64, ge=1, description="most sampled nodes for each size and level, for every contender")
        timeout: float = Field(30.0, gt=0, description="processor seconds for an image of our own nets")
        published_timeout: float = Field(15.0, gt=0, description="processor seconds for an image of a published net")
        scales = {
            "smoke": {"images": 3, "bounded": 10, "training": 0.15, "samples": 16, "timeout": 5.0,
                      "Digits": {"cells": grid(net=["mlp"], t=[2]),
                                 "contenders": ["auto", "level 1", "level 2", "level 3", "calzone", "coverd", "top-t coverd",
                                                "calzone in rounds", "l = t", "brute force"]},
                      "Colour": False, "Published": False, "Bounds": {"cells": {"net": ["mlp"]}}, "Pruning": {"cells": {"t": [2]}}},
            "laptop": {"Digits": {"cells": grid(net=["mlp"], t=[1, 2, 3]) + grid(net=["cnn"], t=[1, 2])},
                       "Published": {"cells": {"net": ["ConvSmall", "6x200"], "t": [1, 2]}, "contenders": list(THREE)}},
            "extended": {"timeout": 120.0, "published": (20, 10, 5), "published_timeout": 120.0,
                         "Published": {"cells": {"t": [1, 2, 3]}}},
            "paper": {"published": (20,), "published_timeout": 1800.0, "timeout": 600.0, "samples": 400},
        }  # fmt: skip

    def derive(self, found: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Agreement, calls by contender, pairs, predictions, savings."""
        return tables.derive(found)

    def figure(self, found: dict[str, pd.DataFrame]) -> Figure:
        """Instances decided within so many calls; predicted and true seconds."""
        return drawing.evidence(found)

    # --- gnomon run ---

    Run = person.Run

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        return person.verify(inputs, beside)

    def present(self, outcome: study.Outcome) -> dict[str, Any]:
        return person.present(outcome)

    def picture(self, outcome: study.Outcome) -> Figure:
        return person.picture(outcome)

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        person.save(outcome, directory)
