"""Do steps where trajectories bend give better samples in the same number of network calls?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from gnomon import study
from gnomon.sampling.geosprint.study import person
from gnomon.sampling.geosprint.study.experiments import (
    Amortisation,
    Digits,
    Flows,
    Mnist,
    PilotCost,
    Profiles,
    Stability,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

A = {"world": "mixture"}
POOR = {"world": "poor network"}
DPM, DPM_BEST = "DPM-Solver++ 2M, uniform", "DPM-Solver++ 2M, log-SNR"
PAPER = "Abstract: CIFAR-10 FID better by 0.7 to 1.1 over 49 to 89 calls, LSUN Church 1.48 to 1.26 at 52, SD v1.5 up to 1.93"


class GeoSprintStudy(study.Study):
    """GeoSPRINT beside fixed and measured schedules and higher-order solvers, on exact, poor and small networks."""

    title = "GeoSPRINT: sampling schedules from the geometry of denoising trajectories"
    paper = "NeurIPS 2026, abstract only"
    bibtex = """@inproceedings{geosprint2026,
  title     = {GeoSPRINT: Geometric Step Pruning for Inference in Trajectories},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2026},
  note      = {known to us by its abstract}
}"""
    question = (
        "Do a sampler's few network calls go further when they are spent where the denoising trajectory leaves the plane "
        "of its last states?"
    )
    method = (
        "A DDIM step is exact when the predicted noise is constant, and then states stay in a plane through the origin. "
        "On a pilot of trajectories over a fine grid, r is the part of each step outside the span of the two states before "
        "it, over its length. Time steps are placed with density proportional to the smoothed r, plus a floor; or the fine "
        "grid is pruned of its least r."
    )
    departures = (
        "Only the abstract was available: the test's span, the density and its exponent, smoothing, pruning and the "
        "definition of alpha_traj are reconstructed.",
        "Images are digits: no CIFAR-10, LSUN or Stable Diffusion weights and no Inception features can be carried. FD is a "
        "Frechet distance of pixels (digits) or of a small classifier's features (MNIST), never FID. The paper scale runs on "
        "a person's own pipeline (--model), against its own 1000-step samples from the same noise.",
        "Laptop scale judges MNIST on 300 samples of a 263,025-parameter U-Net at 8, 15 and 30 calls with three seeds; the "
        "extended scale on 1,000 samples at five numbers of calls with five seeds.",
        "Networks are trained for a fixed number of updates, not of seconds, so that they are the same on every machine.",
        "`--save` keeps a folder with steps.json in it.",
    )
    command = "gnomon run geosprint --model pipeline --nfe 12 --n-pilot 4 --grid 51 --save out --figure profile.svg"
    example = """\
import json
from diffusers import DDIMPipeline
from gnomon.sampling import GeoSprint

pipeline = DDIMPipeline.from_pretrained("pipeline", use_safetensors=True)
gs = GeoSprint(n_steps=12, n_pilot=4, grid=51).fit(pipeline.unet, pipeline.scheduler, shape=(1, 8, 8))
pipeline.scheduler = gs.as_scheduler(pipeline.scheduler)
images = pipeline(num_inference_steps=12, output_type="np").images
print(images.shape, gs.timesteps_[0], gs.timesteps_[-1], gs.pilot_nfe_)
"""

    class Inputs(study.Inputs):
        """What a check can be told."""

        seeds: int = Field(5, ge=1, description="number of seeds")
        nfes: tuple[int, ...] = Field((8, 15, 30, 50, 89), description="network calls")
        samples: int = Field(600, ge=8, description="samples on the 8 x 8 digits")
        n_pilot: int = Field(64, ge=8, description="pilot trajectories on the 8 x 8 digits")
        grid: int = Field(201, ge=11, description="states of a pilot trajectory")
        components: int = Field(40, ge=1, description="components of the mixture")
        poor_updates: int = Field(2000, ge=1, description="updates of the poor noise predictor")
        flow_updates: int = Field(1000, ge=32, description="updates of each flow")
        unet_updates: int = Field(2000, ge=1, description="updates of the U-Net")
        classifier_updates: int = Field(400, ge=1, description="updates of the classifier that judges")
        mnist_samples: int = Field(300, ge=40, description="samples of the U-Net")
        mnist_pilot: int = Field(16, ge=1, description="pilot trajectories of the U-Net")
        mnist_nfes: tuple[int, ...] = Field((8, 15, 30), description="network calls of the U-Net")
        model: str | None = Field(None, description="your own diffusers pipeline (scale paper)")

        scales = {
            "smoke": {
                "seeds": 1, "nfes": (10, 15), "samples": 64, "n_pilot": 8, "grid": 51, "components": 10, "poor_updates": 50,
                "flow_updates": 32, "unet_updates": 2, "classifier_updates": 20, "mnist_samples": 40, "mnist_pilot": 2,
                "mnist_nfes": (4,), "Digits": {"cells": {"world": ["mixture"]}},
                "Mnist": {"contenders": ["geosprint", "uniform"]},
            },
            "laptop": {
                "Digits": {"cells": {"world": ["mixture", "poor network"]}},
                "Mnist": {"seeds": 3, "contenders": ["geosprint", "uniform", DPM, DPM_BEST]},
            },
            "extended": {
                "mnist_samples": 1000, "mnist_nfes": (8, 15, 30, 50, 89), "unet_updates": 8000,
                "Digits": {"cells": {"world": ["mixture", "poor network"]}},
            },
            "paper": {
                "samples": 50_000, "n_pilot": 64, "nfes": (30, 49, 64, 89), "Digits": {"cells": {"world": ["own"]}},
                "Mnist": False, "Stability": False, "Profiles": False, "Flows": False, "PilotCost": False,
            },
        }  # fmt: skip

        @model_validator(mode="after")
        def _own(self) -> Any:
            if (self.scale == "paper") != (self.model is not None):
                raise ValueError("model: the paper scale needs your own diffusers pipeline, and the others take none")
            if any(n < 2 or n > 1000 for n in (*self.nfes, *self.mnist_nfes)):
                raise ValueError("nfes: expected 2 to 1000 network calls")
            return self

    Run = person.Run
    experiments = [Digits, Mnist, Stability, Profiles, Flows, Amortisation, PilotCost]

    claims = [
        # 0: everyone gets the same number of calls
        study.always(lambda rows: rows["calls"] == rows["nfe"], table="Digits", id="same-calls",
                     text="Every contender made exactly the stated number of network calls (digits)"),
        study.always(lambda rows: rows["calls"] == rows["nfe"], table="Mnist", id="same-calls-mnist",
                     text="Every contender made exactly the stated number of network calls (MNIST)"),
        # 1: better than uniform DDIM
        study.better("fd", "geosprint", "uniform", on=A, each="nfe", table="Digits", id="beats-uniform",
                     text="DDIM on GeoSPRINT's steps has a lower FD than on uniform ones at every number of calls (exact score)",
                     paper=f"{PAPER}; sheet: 0.976 to 0.391 at 8, 0.027 to 0.008 at 50"),
        study.better("fd", "geosprint", ["uniform, leading", "uniform, trailing"], on=A, each="nfe", table="Digits",
                     id="beats-uniform-spacings", text="and than with diffusers' leading and trailing spacing"),
        study.better("rmse", "geosprint", "uniform", on={**A, "nfe": [8, 15, 30, 50]}, each="nfe", table="Digits",
                     id="beats-uniform-rmse", text="and a lower RMSE to the 1000-step sample up to 50 calls",
                     paper="Sheet: 0.161 to 0.127 at 8, 0.0335 to 0.0317 at 50"),
        study.better("rmse", "geosprint", "uniform", on={**A, "nfe": 89}, table="Digits", report=True, id="rmse-at-89",
                     text="RMSE at 89 calls", paper="Sheet: 0.0215, 0.0264, 0.0323 against 0.0244, 0.0293, 0.0293"),
        study.better("fd", "geosprint", "uniform", on={**POOR, "nfe": [8, 15, 30]}, each="nfe", table="Digits",
                     id="beats-uniform-poor", text="The same in FD with a poor network, at 8, 15 and 30 calls",
                     paper="Sheet: 112 / 17.9 / 3.24 to 32.3 / 5.47 / 1.00"),
        study.better("fd", "geosprint", "uniform", each="nfe", table="Mnist", id="beats-uniform-mnist",
                     text="and on MNIST with a small U-Net, by a classifier's features", paper=PAPER),
        # 2: DPM-Solver++
        study.better("fd", "geosprint", DPM, on={**A, "nfe": [30, 50, 89]}, each="nfe", table="Digits", id="beats-dpm",
                     text="DDIM on GeoSPRINT's steps has a lower FD than DPM-Solver++ (2M) on uniform ones at 30 calls and more "
                          "(exact score)", paper="Abstract: surpasses DPM-Solver++ from 30 calls on; sheet: a tie at 89"),
        study.better("fd", "geosprint", DPM, on={"nfe": [30]}, each="nfe", table="Mnist", id="beats-dpm-mnist",
                     text="and on MNIST at 30 calls", paper="Abstract: surpasses DPM-Solver++ from 30 calls on"),
        study.better("fd", "geosprint", DPM, on={**POOR, "nfe": [30, 50, 89]}, each="nfe", table="Digits", id="beats-dpm-poor",
                     text="and with a poor network", paper="Sheet: fails, 0.19 against 1.00 at 30"),
        study.better("fd", "geosprint", DPM_BEST, on=A, each="nfe", table="Digits", report=True, id="dpm-log-snr",
                     text="Against DPM-Solver++ (2M) on its best steps, uniform in log-SNR (exact score)"),
        study.better("fd", "geosprint", DPM_BEST, each="nfe", table="Mnist", report=True, id="dpm-log-snr-mnist",
                     text="Against the same on MNIST"),
        study.better("rmse", "geosprint", DPM, on={**A, "nfe": [50, 89]}, each="nfe", table="Digits", report=True,
                     id="dpm-rmse", text="Against DPM-Solver++ (2M) on uniform steps in RMSE",
                     paper="Sheet: 0.0317 against 0.0241 at 50"),
        study.better("fd", "DPM-Solver++ 2M, geosprint", [DPM, DPM_BEST], on=A, each="nfe", table="Digits", report=True,
                     id="dpm-on-geosprint", text="DPM-Solver++ (2M) on GeoSPRINT's steps, against its other steps"),
        study.better("fd", "UniPC, geosprint", ["UniPC", "UniPC, log-SNR"], on=A, each="nfe", table="Digits", report=True,
                     id="unipc-on-geosprint", text="UniPC on GeoSPRINT's steps, against its other steps"),
        # 3: other schedules
        study.better("fd", "geosprint", ["quadratic", "log-SNR"], on=A, each="nfe", table="Digits", id="beats-shapes",
                     text="GeoSPRINT has a lower FD than quadratic and log-SNR steps with DDIM (exact score)",
                     paper="Sheet: 0.097 to 0.109 against 0.134 to 0.144 and 0.302 at 15"),
        study.better("fd", "geosprint", ["quadratic", "log-SNR"], on=POOR, each="nfe", table="Digits", report=True,
                     id="shapes-poor", text="The same with a poor network", paper="Sheet: quadratic 495 / 93.8 / 14.7 at 8 / 15 / 30"),
        study.better("fd", "geosprint", ["Karras", "cosine", "random", "adaptive"], on=A, each="nfe", table="Digits", report=True,
                     id="other-shapes", text="Against Karras, cosine, random and adaptive steps"),
        study.better("fd", "geosprint", "GITS-style", on=A, each="nfe", table="Digits", report=True, id="gits",
                     text="Against dynamic programming on the same pilot (GITS-style)"),
        study.better("fd", "geosprint", "GITS-style", on=POOR, each="nfe", table="Digits", report=True, id="gits-poor",
                     text="The same with a poor network"),
        # 4: the profile
        study.at_least("density", "geosprint", 0.95, each="world", table="Stability", id="density-follows-profile",
                       text="Steps are dense where the profile is high: Spearman 0.95 or more at 15 calls and more"),
        study.at_least("noise", "geosprint", 0.95, each="world", table="Stability", id="stable-in-noise",
                       text="Pilots from other noise rank the intervals alike: 0.95 or more"),
        study.at_least("few", "geosprint", 0.95, each="world", table="Stability", id="stable-in-number",
                       text="and 8 trajectories as 64 do"),
        study.at_least("coarse", "geosprint", 0.95, each="world", table="Stability", id="stable-in-grid",
                       text="and half the grid as the whole"),
        study.at_least("low_half", "geosprint", 0.5, on=A, table="Stability", id="low-noise-end",
                       text="With an exact score most steps fall in the less noisy half", paper="Sheet: r grows from 0.001 to 0.04"),
        study.at_least("peak", "geosprint", 0.5, on=POOR, table="Stability", id="high-noise-end",
                       text="With a poor network the profile peaks in the noisier half", paper="Sheet: 0.07 falling to 0.013"),
        # 5: straightness
        study.better("alpha", "2-RF", "1-RF", on={"longest": True}, table="Flows", id="reflow-is-straighter",
                     text="alpha_traj of a reflow is above that of its rectified flow"),
        study.correlates("alpha", "minus_error", at_least=0.8, table="Models", id="alpha-says-one-step-error",
                         text="Over twelve flows (both, at six lengths of training) alpha_traj and minus the one-step error "
                              "correlate at 0.8 or more"),
        study.at_least("alpha", "geosprint", 0.0, each="world", table="Stability", report=True, id="alpha-of-diffusion",
                       text="alpha_traj of variance-preserving diffusion", paper="Sheet: 0.875, with the poor network 0.28"),
        # 6: ablation
        study.better("rmse", "geosprint, gamma 1/2", "geosprint", on={**A, "nfe": [30, 50]}, each="nfe", table="Digits",
                     id="gamma-half-rmse", text="gamma 1/2 is better than 1 in RMSE at 30 and 50 calls"),
        study.better("fd", "geosprint", "geosprint, gamma 1/2", on=A, each="nfe", table="Digits", id="gamma-one-fd",
                     text="gamma 1 is better than 1/2 in FD"),
        study.worse("fd", "geosprint, m = 3", "geosprint", on=A, each="nfe", table="Digits", id="order-three",
                    text="m = 3 is worse than m = 2 in FD"),
        study.better("rmse", "geosprint, affine", "geosprint", on=A, each="nfe", table="Digits", report=True, id="affine",
                     text="The affine span against the linear one in RMSE", paper="Sheet: slightly better"),
        study.better("fd", "geosprint", ["geosprint, eta 0", "geosprint, eta 0.3"], on=A, each="nfe", table="Digits", report=True,
                     id="eta", text="eta 0.1 against 0 and 0.3 in FD"),
        study.better("fd", "geosprint", "geosprint, prune", on=A, each="nfe", table="Digits", report=True, id="prune",
                     text="The density rule against pruning in FD"),
        # 7: cost
        study.always(lambda rows: rows["seen"] == rows["reported"], table="Amortisation", id="pilot-calls",
                     text="pilot_nfe_ is what the network saw"),
        study.always(lambda rows: 0.01 - rows["share"], on=lambda rows: (rows["nfe"] >= 30) & (rows["pilot"] == "64 x 201"),
                     table="Amortisation", id="amortised",
                     text="The default pilot is at most 1 % of the calls of 50,000 samples at 30 calls and more"),
        study.always(lambda rows: 0.01 - rows["share"], on=lambda rows: rows["pilot"] != "64 x 201", table="Amortisation",
                     id="amortised-cheap", text="and pilots of 16 x 201 and 4 x 51 at 8 calls and more"),
        study.at_most("share", "geosprint", 0.02, table="PilotCost", id="test-is-cheap",
                      text="The hyperplanarity test takes at most 2 % of the network's time (U-Net)"),
    ]  # fmt: skip

    def derive(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Twelve flows per seed, whichever kind they are."""
        if "Flows" not in tables:
            return {}
        flows = tables["Flows"]
        found = flows[["seed", "alpha"]].assign(model=flows["contender"] + ", " + flows["updates"].astype(str),
                                                minus_error=-flows["one_step"])  # fmt: skip
        return {"Models": found}

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure | None:
        """FD by calls, the two profiles, and straightness against one-step error."""
        from matplotlib.figure import Figure

        if not {"Digits", "Profiles", "Flows"} <= set(tables):
            return None
        figure = Figure(figsize=(12, 3.6), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        digits = tables["Digits"]
        digits = digits[digits["world"] == "mixture"]
        shown = ["geosprint", "uniform", "quadratic", "log-SNR", "GITS-style", DPM, DPM_BEST]
        for name in shown:
            mean = digits[digits["contender"] == name].groupby("nfe")["fd"].mean()
            left.plot(mean.index, mean, "o-", lw=2.5 if name == "geosprint" else 1, ms=4, label=name)
        left.set(
            xscale="log",
            yscale="log",
            xlabel="network calls",
            ylabel="FD to the 1000-step samples",
            title="exact score",
        )
        left.legend(frameon=False, fontsize=7)
        for world, part in tables["Profiles"].groupby("world", sort=False):
            middle.plot(part["t"], part["r"], label=world)
        middle.invert_xaxis()
        middle.set(yscale="log", xlabel="training step t", ylabel="r", title="where trajectories leave the plane")
        middle.legend(frameon=False)
        for flow, part in tables["Flows"].groupby("contender", sort=False):
            right.plot(part["alpha"], part["one_step"], "o", ms=4, label=flow)
        right.set(yscale="log", xlabel="alpha_traj", ylabel="error of one step", title="rectified flows")
        right.legend(frameon=False)
        return figure

    # --- gnomon run ---

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        """Fit the schedule to a person's model or trajectories."""
        return person.make(inputs, beside)

    def present(self, outcome: study.Outcome) -> Any:
        """Steps, where the trajectories bend, straightness and cost."""
        return person.present(outcome)

    def picture(self, outcome: study.Outcome) -> Figure:
        """The profile and the steps."""
        return person.picture(outcome)

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        """steps.json and profile.csv."""
        person.save(outcome, directory)
