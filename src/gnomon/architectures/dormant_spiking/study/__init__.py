"""The study of dormant spiking neurons: are the inhibited neurons idle, and what does it save to switch them off?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gnomon import study
from gnomon.architectures.dormant_spiking.study import drawing, person
from gnomon.architectures.dormant_spiking.study.experiments import (
    Activity,
    Diagnosis,
    Lazy,
    Networks,
    Other,
    PostHoc,
    Sweep,
)
from gnomon.study import always, at_least, at_most, better, estimate, grid

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

POINTS = 0.005  # half a point of accuracy
LEAK = {"data": "digits", "wake": "leak", "v_dormant": -0.25}
NEVER = {"data": "digits", "wake": "never", "v_dormant": -0.25}
EVENTS = {"data": "events", "v_dormant": -0.25}
KEYS = ["data", "wake", "v_dormant", "seed"]


def _at_equal_energy(tables: dict[str, Any]) -> tuple[bool, str]:
    """The pruned networks take as much energy as the dormant ones, within 3 % on average."""
    rows = tables["Networks"]
    energy = rows[rows["wake"] == "never"].pivot_table("pj", ["data", "v_dormant"], "contender").loc["digits"]
    ratios = {
        name: float((energy[name] / energy["dormant"] - 1).abs().max()) for name in ("unstructured", "structured")
    }
    return max(ratios.values()) < 0.03, f"energy of the pruned networks is off by {ratios}"


class DormantSpikingStudy(study.Study):
    """Dormant neurons against plain ones, pruning, rate regularisation and random gates."""

    title = "Dormant spiking neurons: state-driven, instance-level pruning inside the neuron"
    paper = "NeurIPS 2026 (read as an abstract; neither paper nor code were found)"
    bibtex = """@inproceedings{dormant2026spiking,
  title     = {Dormant Spiking Neuron},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2026},
  note      = {Known here by its abstract}
}"""
    question = (
        "In a trained spiking network many neurons are so deeply inhibited that they will not fire again in the time that is "
        "left. Does a neuron that stops reading its inputs below a negative threshold save that work at no loss of accuracy, "
        "beyond what pruning and sparser firing save?"
    )
    method = (
        "A leaky integrate-and-fire neuron gets a second, negative threshold. The gate is read from the state before the step, "
        "so it is known before any input is: below the threshold no input is added, and the membrane decays until it wakes "
        "('leak'), stays asleep to the end of the sample ('never') or for n steps ('after'). Both step functions have an arctan "
        "surrogate, so the gate is trained through. Work is counted synapse by synapse: an addition (0.9 pJ) for each spike at "
        "each awake target, a multiplication with addition (4.6 pJ) for each real-valued input at each awake target and for "
        "each state update, and a comparison for each look at the gate."
    )
    command = "gnomon run dormant-spiking --data digits.npz --v-dormant -0.25 --epochs 2 --hidden 32,32"
    example = """
import numpy as np
import torch

from gnomon.architectures import convert_to_dormant, energy_ledger, inhibition_profile
from gnomon.architectures.dormant_spiking import SpikingClassifier, fit, mlp

file = np.load("digits.npz")
X, y = torch.from_numpy(file["X"]).float(), torch.from_numpy(file["y"])
net = SpikingClassifier(mlp([64, 32, 32, 10], v_dormant=-0.25, learn_v_dormant=False), steps=6)
fit(net, X, y, epochs=2)
print(energy_ledger(net, [X]).table())

plain = convert_to_dormant(net, float("-inf"))  # also takes networks of spikingjelly and snntorch
print(inhibition_profile(plain, [X]))
"""
    departures = (
        "The equations are reconstructed: the abstract names a negative threshold, a state-driven gate in the dynamics, "
        "backpropagation through time with surrogates, and pruning for each input. Waking by input is refused, because it would "
        "read what is to be skipped.",
        "Digits (8 x 8, six steps) and events made from them by saccades, in networks of three hidden layers of 256, instead of "
        "ImageNet, CIFAR and camera recordings; a residual network on MNIST and MNIST-1D at the extended scale.",
        "Linear layers are followed by batch normalisation, so that currents are centred; the threshold is in their units.",
        "The decay of a sleeping neuron ('leak') is counted as one multiplication a step besides the gate's comparison, which "
        "the sheet leaves out: it costs about 1.5 points of the saving.",
        "Thresholds are fixed in the claims and learned in the sweep (the whole of it at the extended scale).",
        "Event networks train for 15 epochs, the others for 25; pruned ones are trained on for 10 more, twice where the energy "
        "missed its aim by more than 1 %.",
        "The lazy kernel forms a waking membrane as the dense loop does, by repeated multiplication, and does not need the "
        "logarithm for its first guess; wake_steps has it.",
        "The random gate is trained in place, which is its stronger form: digits stand it as they stand dropout, and it fires "
        "less. Put on a trained plain network it was run on one fold only.",
        "The lazy kernel is compared with itself; a dense product of the same layer is faster than both on this processor (see "
        "the benchmark).",
        "Paired by image, but judged over the five folds: images of a fold share its training.",
    )
    experiments = (Diagnosis, PostHoc, Networks, Sweep, Other, Activity, Lazy)
    claims = [
        at_least("low", "lif", 0.25, table="Diagnosis", on={"data": "digits"}, id="inhibited",
                 text="At least 25 % of the neuron-steps of a trained plain network lie below -0.5 of the firing threshold",
                 paper="Abstract: up to 44 % (ResNet-18)"),
        at_most("fires_if_low", "lif", 0.01, table="Diagnosis", on={"data": "digits"}, id="inhibited-is-idle",
                text="They fire later in the window with a probability below 1 %", paper="Abstract: negligible probability of firing"),
        at_least("low", "lif", 0.25, table="Diagnosis", on={"data": "events"}, report=True, id="inhibited-events",
                 text="The same share on saccade events"),
        better("accuracy", "post hoc", "lif", by=-POINTS, table="PostHoc", on={"data": "digits"}, id="post-hoc-accuracy",
               text="A gate at -0.5 put on a trained plain network costs at most 0.5 points of accuracy"),
        estimate("saving", at_least=0.15, table="PostHocSaving", on={"data": "digits"}, id="post-hoc-energy",
                 text="and removes at least 15 % of its energy"),
        estimate("saving", at_least=0.25, table="Saving", on=LEAK, id="leak-energy",
                 text="A trained dormant network (leak, -0.25) takes at least 25 % less energy than the plain one",
                 paper="Abstract: 40-70 % less"),
        better("accuracy", "dormant", "lif", by=-POINTS, table="Networks", on=LEAK, id="leak-accuracy",
               text="at an accuracy that is not lower by more than 0.5 points", paper="Abstract: no loss"),
        estimate("saving", at_least=0.33, table="Saving", on=NEVER, id="never-energy",
                 text="Asleep to the end of the sample (never, -0.25) it takes at least 33 % less", paper="Abstract: 40-70 % less"),
        better("accuracy", "dormant", "lif", by=-POINTS, table="Networks", on=NEVER, id="never-accuracy",
               text="at an accuracy that is not lower by more than 0.5 points", paper="Abstract: no loss"),
        estimate("saving_rest", table="Saving", each=["wake"], on={"data": "digits", "v_dormant": -0.25}, report=True,
                 id="energy-without-layer-1", text="The saving without the synapses of the first layer"),
        estimate("saving_once", table="Saving", each=["wake"], on={"data": "digits", "v_dormant": -0.25}, report=True,
                 id="energy-layer-1-once", text="The saving where the current of the first layer is computed once"),
        better("accuracy", "dormant", ["unstructured", "structured"], table="Networks", each="v_dormant", when=_at_equal_energy,
               on={"data": "digits", "wake": "never", "v_dormant": [-0.25, -0.1]}, id="beats-pruning",
               text="At the two highest savings a dormant network is more accurate than a pruned plain one of the same energy",
               paper="Abstract: +1.34 points on ImageNet at equal saving"),
        estimate("excess", at_most=1.1, table="Together", each="other", id="orthogonal",
                 text="With pruning or rate regularisation on top, the energy that is left is at most 1.1 times the product of what "
                 "each leaves alone", paper="Abstract: orthogonal to input sparsity"),
        better("accuracy", "dormant", "random", by=0.02, table="Networks", on=LEAK, id="random-gate",
               text="A random gate with the same awake rate, trained alike, loses more than 2 points"),
        better("accuracy", "dormant", "detach gate", table="Networks", on=LEAK, report=True, id="gate-gradient-accuracy",
               text="Accuracy with the gate's gradient, over that without"),
        better("pj", "dormant", "detach gate", table="Networks", on=LEAK, report=True, id="gate-gradient-energy",
               text="Energy saved by the gate's gradient"),
        estimate("saving", at_least=0.25, table="Saving", on={**EVENTS, "wake": "leak"}, id="events-leak-energy",
                 text="On saccade events, dormant (leak, -0.25): at least 25 % less energy",
                 paper="Abstract: on static and neuromorphic data alike"),
        better("accuracy", "dormant", "lif", by=-POINTS, table="Networks", on={**EVENTS, "wake": "leak"}, id="events-leak-accuracy",
               text="at an accuracy that is not lower by more than 0.5 points", paper="As above"),
        estimate("saving", at_least=0.33, table="Saving", on={**EVENTS, "wake": "never"}, id="events-never-energy",
                 text="On saccade events, dormant (never, -0.25): at least 33 % less energy", paper="As above"),
        better("accuracy", "dormant", "lif", by=-POINTS, table="Networks", on={**EVENTS, "wake": "never"}, id="events-never-accuracy",
               text="at an accuracy that is not lower by more than 0.5 points", paper="As above"),
        better("seconds", "lazy", "all awake", factor=1.5, table="Lazy", id="lazy-time",
               text="With 30 % awake the lazy kernel is at least 1.5 times as fast as with all awake"),
        always("identical", table="Lazy", id="lazy-exact", text="and its spikes are those of the dense pass, bit for bit"),
    ]  # fmt: skip

    class Inputs(study.Inputs):
        """What is studied on what."""

        seeds: int = Field(5, ge=1, description="number of seeds: folds of the data")
        epochs: int = Field(25, ge=1, description="training epochs on the digits")
        hidden: int = Field(256, ge=16, description="neurons of each hidden layer")
        samples: int = Field(1_000_000, ge=50, description="samples of each part of a fold at most")
        scales = {
            "smoke": {"seeds": 2, "epochs": 2, "hidden": 32, "samples": 200, "Other": False,
                      "Networks": {"cells": grid(data=["digits"], wake=["leak", "never"], v_dormant=[-0.25], learn=[False])
                                   + grid(data=["events"], wake=["leak"], v_dormant=[-0.25], learn=[False])},
                      "Sweep": {"cells": grid(data=["digits"], wake=["leak", "after"], v_dormant=[-0.25], learn=[False, True])}},
            "laptop": {"Other": False,
                       "Sweep": {"cells": [c for c in Sweep.cells if not c["learn"] or c["v_dormant"] == -0.25]}},
            "extended": {"seeds": 10, "Other": {"seeds": 5}},
            "paper": {"seeds": 10, "epochs": 100, "hidden": 512},
        }  # fmt: skip

    def derive(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Energy saved against the plain network of the same fold, and what is left of it with two methods together."""
        import pandas as pd

        found: dict[str, pd.DataFrame] = {}
        if "PostHoc" in tables:
            energy = tables["PostHoc"].pivot_table("pj", ["data", "seed"], "contender")
            found["PostHocSaving"] = pd.DataFrame({"saving": 1 - energy["post hoc"] / energy["lif"]}).reset_index()
        parts = [tables[name] for name in ("Networks", "Other") if name in tables]
        if parts:
            rows = pd.concat(parts)
            savings = {}
            for column in ("pj", "pj_rest", "pj_once"):
                energy = rows.pivot_table(column, KEYS, "contender")
                savings["saving" + column.removeprefix("pj")] = 1 - energy["dormant"] / energy["lif"]
            found["Saving"] = pd.DataFrame(savings).reset_index()
        if "Networks" in tables:
            rows = tables["Networks"]
            chosen = rows[(rows["wake"] == "leak") & (rows["data"] == "digits")]
            energy = chosen.pivot_table("pj", "seed", "contender")
            left = energy.div(energy["lif"], axis=0)
            found["Together"] = pd.concat([
                pd.DataFrame({"seed": left.index, "other": other, "alone": left[other], "together": left[f"{other} + dormant"],
                              "excess": left[f"{other} + dormant"] / (left[other] * left["dormant"])})
                for other in ("pruned", "rate")], ignore_index=True)  # fmt: skip
        return found

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure | None:
        """Energy against accuracy, the sweep of thresholds, who is awake."""
        if not {"Networks", "Sweep", "Activity"} <= set(tables):
            return None
        figure = drawing.evidence(tables)
        # too many names for the axes: below them
        figure.axes[0].legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=4)
        return figure

    # --- gnomon run ---

    Run = person.Run

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        return person.operate(inputs, beside)

    def present(self, outcome: study.Outcome) -> dict[str, Any]:
        return person.present(outcome)

    def picture(self, outcome: study.Outcome) -> Figure:
        return person.picture(outcome)

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        person.save(outcome, directory)
