"""Do bursts carry latent variables of their own, and are they found where spike counts say nothing of them?"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field, field_validator

from gnomon import study
from gnomon.geometry.burst_factors import baselines, recordings
from gnomon.geometry.burst_factors.method import BurstFactorAnalysis
from gnomon.geometry.burst_factors.permutation import burst_test
from gnomon.geometry.burst_factors.report import burst_code_report
from gnomon.geometry.burst_factors.simulate import Simulation, simulate_bursts, simulate_mechanism, simulate_rate_code
from gnomon.geometry.burst_factors.spikes import parse_bursts, read_spikes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

OURS = "burst factors"
Contender = Callable[[Simulation], Any]


def _file(path: Path) -> Path:
    if not path.expanduser().is_file():
        raise ValueError(f"{path} is no file")
    return path.expanduser()


SpikePath = Annotated[Path, AfterValidator(_file)]


# --- contenders: simulation -> a fitted BurstFactorAnalysis, or factors (T, k) without a name -------------------------


def _ours(**options: Any) -> Contender:
    def contender(s: Simulation) -> BurstFactorAnalysis:
        return BurstFactorAnalysis(s.x.shape[1], s.y.shape[1], **options).fit(s.E, s.B)

    return contender


def _factors(function: Callable[..., Any], k: int | None = None) -> Contender:
    """A baseline with ``k`` factors, by default as many as the simulation has in all."""
    return lambda s: function(s.E, s.B, s.S, k or s.x.shape[1] + s.y.shape[1])


def _surprise(s: Simulation) -> BurstFactorAnalysis:
    """Our factors on the events of the Poisson-surprise parser."""
    assert s.trains is not None
    T, bin_size = len(s.E), 0.25
    E, B = np.zeros_like(s.E), np.zeros_like(s.B)
    for i, times in enumerate(s.trains):
        first, size = baselines.poisson_surprise(times)
        for count, at in ((E, times[first]), (B, times[first[size > 1]])):
            count[:, i] = np.bincount(np.minimum((at / bin_size).astype(int), T - 1), minlength=T)
    return BurstFactorAnalysis(s.x.shape[1], s.y.shape[1]).fit(E, B)


def _r2(estimate: np.ndarray, truth: np.ndarray) -> float:
    """Share of the truth's variance that a linear regression on the estimates explains (mean over columns)."""
    if estimate.shape[1] == 0 or truth.shape[1] == 0:
        return 0.0
    X = np.column_stack([np.ones(len(estimate)), estimate])
    rest = truth - X @ np.linalg.lstsq(X, truth, rcond=None)[0]
    return float(np.mean(1 - rest.var(0) / np.maximum(truth.var(0), 1e-300)))


def _recovery(s: Simulation, found: Any) -> dict[str, float]:
    """How well x and y are found, and how much of x is in what stands for y."""
    if not isinstance(found, BurstFactorAnalysis):
        z = np.asarray(found)
        x, y = s.x[: len(z)], s.y[: len(z)]
        axes = [_r2(z[:, [j]], y) for j in range(z.shape[1])]
        best = z[:, [int(np.argmax(axes))]]
        return {"r2_y": _r2(z, y), "r2_x": _r2(z, x), "mixing": _r2(x, best), "axis_y": max(axes)}
    from scipy.linalg import subspace_angles

    angle = subspace_angles(found.burst_loadings_, s.burst_loadings).max()
    return {"r2_y": _r2(found.y_, s.y), "r2_x": _r2(found.x_, s.x), "mixing": _r2(s.x, found.y_),
            "axis_y": max(_r2(found.y_[:, [j]], s.y) for j in range(found.y_.shape[1])),
            "angle": float(np.degrees(angle)), "cross_x": _r2(found.x_, s.y), "cross_y": _r2(found.y_, s.x)}  # fmt: skip


QUALITY = {"r2_y": study.higher(), "r2_x": study.higher(), "mixing": study.lower(), "axis_y": study.higher(),
           "angle": study.lower("degrees"), "cross_x": study.lower(), "cross_y": study.lower()}  # fmt: skip


# --- experiments -----------------------------------------------------------------------------------------------------


class Recovery(study.Experiment):
    """Which methods find the burst factor of counts drawn from the model, also where spike counts do not show it?

    A contender of your own is a function of a ``Simulation`` (``E``, ``B``, ``S``) that gives factors (T, k).
    """

    cells = study.grid(amplitude=[0.8, 0.4, 0.2], silent=[False, True])
    contenders = {
        OURS: _ours(),
        "uncoupled": _ours(coupling=False),
        "rates likelihood": _ours(likelihood="rates"),
        "Gaussian likelihood": _ours(likelihood="gaussian"),
        "negbin-betabinomial": _ours(likelihood="negbin-betabinomial"),
        "rate FA": _factors(baselines.rate_fa),
        "rate FA, 6 factors": _factors(baselines.rate_fa, 6),
        "stacked FA": _factors(baselines.stacked_fa),
        "fraction FA": _factors(baselines.fraction_fa, 1),
        "PCA": _factors(baselines.rate_pca),
        "NMF": _factors(baselines.rate_nmf),
        "Poisson factors": _factors(baselines.poisson_factors),
        **({"GPFA": _factors(baselines.gpfa)} if importlib.util.find_spec("elephant") else {}),
    }
    metrics = QUALITY

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return contender not in ("GPFA", "negbin-betabinomial") or (cell.amplitude == 0.4 and cell.seed < 3)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Simulation:
        return simulate_bursts(inputs.neurons, inputs.bins, burst_amplitude=cell.amplitude, rate_silent=cell.silent,
                               random_state=rng)  # fmt: skip

    def measure(self, problem: Simulation, contender: Contender, rng: np.random.Generator) -> list[dict[str, Any]]:
        return [_recovery(problem, contender(problem))]


class Number(study.Experiment):
    """How many burst factors does co-smoothing with the one-standard-error rule choose, where there are one or none?

    Uncoupled, so that the events have no part in it and are left out.
    """

    cells = study.grid(amplitude=[0.8, 0.4, 0.2, 0.0])
    contenders = {OURS: range(3)}
    metrics = {"gain_1": study.higher("bits/burst"), "gain_2": study.higher("bits/burst")}
    seeds = 20

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Simulation:
        return simulate_bursts(inputs.neurons, inputs.bins, burst_amplitude=cell.amplitude, random_state=rng)

    def measure(self, problem: Simulation, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        model = BurstFactorAnalysis(coupling=False)
        found = model.select(problem.E, problem.B, n_event=[0], n_burst=contender)
        bits = found.burst_bits.set_index("factors")["bits"]
        return [{"chosen": found.n_burst, "gain_1": bits[1], "gain_2": bits[2]}]


REGIMES: dict[str, tuple[Callable[..., Simulation], int, tuple[str, ...]]] = {
    # simulation, how many of them, tests
    "no burst code": (lambda n, T, r: simulate_bursts(n, T, burst_amplitude=0, random_state=r), 200, ("marks",)),
    "amplitude 0.2": (lambda n, T, r: simulate_bursts(n, T, burst_amplitude=0.2, random_state=r), 100, ("marks",)),
    "amplitude 0.4": (lambda n, T, r: simulate_bursts(n, T, burst_amplitude=0.4, random_state=r), 100, ("shift",)),
    "private drift": (lambda n, T, r: simulate_bursts(n, T, burst_amplitude=0, drift=0.8, random_state=r), 200,
                      ("shift", "marks")),
    "private trend": (lambda n, T, r: simulate_bursts(n, T, burst_amplitude=0, drift=0.8, trend=True, random_state=r), 40,
                      ("shift",)),
    "Poisson rate code": (lambda n, T, r: simulate_rate_code(n // 2, T // 2, random_state=r), 200, ("jitter", "marks")),
    "gamma rate code": (lambda n, T, r: simulate_rate_code(n // 2, T // 2, shape=4.0, random_state=r), 40, ("jitter",)),
    "spikes, amplitude 0.4": (lambda n, T, r: simulate_mechanism(n // 2, T // 2, 2, 1, burst_amplitude=0.4, private=0.0,
                                                                 drift=0.0, random_state=r), 100, ("jitter",)),
}  # fmt: skip
BLOCKS = 20  # records that the simulations of a regime are spread over
FEW = 20  # simulations of a test whose rejections the regime only illustrates


class Tests(study.Experiment):
    """How often does each test reject at 5 %, where it should and where it should not?"""

    cells = study.grid(regime=list(REGIMES))
    contenders = {"marks": "marks", "shift": "shift", "jitter": "jitter"}
    metrics = {"statistic": study.higher()}
    unit = "simulation"
    seeds = BLOCKS

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return contender in REGIMES[cell.regime][2]

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        make, count, _ = REGIMES[cell.regime]
        per_block = count // BLOCKS
        found = [make(inputs.neurons, inputs.bins, rng) for _ in range(per_block)]
        return cell.regime, cell.seed * per_block, found

    def measure(self, problem: Any, contender: str, rng: np.random.Generator) -> list[dict[str, Any]]:
        regime, start, simulations = problem
        if contender != REGIMES[regime][2][0]:
            simulations = simulations[: max(1, FEW // BLOCKS)]
        rows = []
        for i, s in enumerate(simulations):
            spikes = {"spike_trains": s.trains, "bin_size": 0.25, "t_start": 0.0} if contender == "jitter" else {}
            test = burst_test(s.E, s.B, contender, 99, random_state=rng, **spikes)
            rows.append({"simulation": start + i, "rejects": test.pvalue <= 0.05, "pvalue": test.pvalue,
                         "statistic": test.statistic, "null_mean": test.null_mean})  # fmt: skip
        return rows


class Mechanism(study.Experiment):
    """Do the factors of parsed spikes recover somatic and dendritic inputs of simulated two-compartment neurons?"""

    cells = [{"model": "two inputs"}]
    contenders = {
        OURS: _ours(),
        "with time scale": _ours(timescale=2.0),
        "Poisson-surprise parser": _surprise,
        "rate FA": _factors(baselines.rate_fa),
        "stacked FA": _factors(baselines.stacked_fa),
        "Poisson factors": _factors(baselines.poisson_factors),
    }
    metrics = QUALITY

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Simulation:
        return simulate_mechanism(inputs.neurons, inputs.bins, random_state=rng)

    def measure(self, problem: Simulation, contender: Contender, rng: np.random.Generator) -> list[dict[str, Any]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a parser may leave a neuron without bursts
            return [_recovery(problem, contender(problem))]


class _Recorded(study.Experiment):
    """What the experiments on recordings share."""

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        return (cell.recording == "own") == (inputs.spikes is not None)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return recordings.load(cell.recording, inputs.spikes, inputs.bin, inputs.theta), inputs.permutations


class Recorded(_Recorded):
    """The three tests on recordings."""

    cells = study.grid(recording=[*recordings.NAMES, "own"])
    contenders = Tests.contenders
    metrics = {"statistic": study.higher()}
    seeds = 0

    def measure(self, problem: Any, contender: str, rng: np.random.Generator) -> list[dict[str, Any]]:
        r, permutations = problem
        if contender == "jitter":
            E, B = r.all_bins()
            test = burst_test(
                E, B, "jitter", permutations, r.trains, r.bin_size, r.theta, random_state=rng, t_start=0.0
            )
        else:
            trials = r.trials if contender == "shift" else None
            test = burst_test(r.E, r.B, contender, permutations, random_state=rng, trials=trials)
        return [{"bins": len(r.E), "neurons": r.E.shape[1], "burst_fraction": float(r.B.sum() / r.E.sum()),
                 "statistic": test.statistic, "pvalue": test.pvalue, "null_mean": test.null_mean,
                 "null_std": test.null_std}]  # fmt: skip


def _bits(n_event: int, n_burst: int, **options: Any) -> Callable[..., float]:
    return lambda E, B, seed: (
        BurstFactorAnalysis(n_event, n_burst, random_state=seed, **options).cross_validate(E, B).bits
    )


def _tuned(E: np.ndarray, B: np.ndarray, seed: int) -> float:
    """One burst factor whose ridge is chosen within each training part by co-smoothing."""
    outer = BurstFactorAnalysis(0, 1, coupling=False, random_state=seed)
    gain = bursts = 0.0
    for held in outer._folds(len(E), 4):
        train = np.setdiff1d(np.arange(len(E)), held)
        models = [
            BurstFactorAnalysis(0, 1, coupling=False, ridge=ridge, random_state=seed) for ridge in (1.0, 10.0, 100.0)
        ]
        best = max(models, key=lambda m: m.cross_validate(E[train], B[train], 2).bits)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = best.fit(E[train], B[train]).held_out(E[held], B[held])
        gain += float((found.model - found.constant).sum())
        bursts += float(found.bursts.sum())
    return gain / np.log(2) / bursts


class Prediction(_Recorded):
    """Bits per burst on held-out bins of recordings, each neuron's bursts predicted from the others."""

    cells = study.grid(recording=["culture", "retina", "own"])
    contenders = {
        "1 burst factor": _bits(0, 1, coupling=False),
        "2 burst factors": _bits(0, 2, coupling=False),
        "3 burst factors": _bits(0, 3, coupling=False),
        "1, ridge tuned": _tuned,
        "rate factors": _bits(2, 1, burst_drive="event"),
        "both": _bits(2, 1, burst_drive="both"),
    }
    metrics = {"bits": study.higher("bits/burst")}
    unit = "split"
    seeds = 3

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Any:
        return *super().prepare(inputs, cell, rng), cell.seed

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
        r, _, seed = problem
        return [{"split": seed, "bits": contender(r.E, r.B, seed)}]


# --- the study -------------------------------------------------------------------------------------------------------


class BurstFactorsStudy(study.Study):
    """Event factors, burst factors, and tests of a burst code."""

    title = "Burst factors"
    paper = "Uncovering the latent structure of interwoven population and temporal codes (Friedenberger, Cao, Naud; NeurIPS 2026)"
    bibtex = """@inproceedings{friedenberger2026burst,
  title = {Uncovering the latent structure of interwoven population and temporal codes},
  author = {Friedenberger and Cao and Naud},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2026},
  note = {bioRxiv 10.64898/2026.05.11.724260}
}"""
    question = ("Do bursts carry latent variables of their own, and can they be told from those of the firing rates without "
                "any external covariate?")  # fmt: skip
    method = ("Spikes are parsed into events (single spikes or bursts). Event counts are Poisson with log rates driven by "
              "event factors; given its events, a neuron's bursts are binomial with log odds driven by burst factors. The "
              "block structure leaves no rotation that mixes the two. Variational EM; co-smoothing chooses the numbers of "
              "factors; permutations of burst marks, circular shifts and jittered spikes test whether there is a shared "
              "burst code at all.")  # fmt: skip
    departures = (
        "Only the abstract of the paper could be read: the model, its inference and the tests are a reconstruction.",
        "Numbers of factors are chosen one after the other (event factors by bits per event, then burst factors by bits per "
        "burst), not over the whole grid. The study's choice of burst factors runs uncoupled, where events have no part.",
        "In the report the rate factors are those that the events alone give. Inferred jointly they would turn into burst "
        "factors and the comparison would say nothing.",
        "EM starts from the singular vectors of the Pearson residuals; the Gaussian model is a likelihood of its own, fitted "
        "without ridge.",
        "Drift of single neurons is a stationary process (correlation time 25 bins). The shift test takes the residuals for "
        "circularly stationary; under trends of a period or less over the recording it rejects too often, which is reported.",
        "The jitter null fits single bins of the window's length: where rates change within a bin (network bursts of the "
        "culture) it is no model of them.",
    )  # fmt: skip

    class Inputs(study.Inputs):
        seeds: int = Field(5, ge=1, description="number of seeds")
        neurons: int = Field(40, ge=8, description="neurons of the simulated populations")
        bins: int = Field(400, ge=100, description="bins of the simulated recordings")
        permutations: int = Field(999, ge=19, description="draws from each null on recordings (jitter: 199 at most)")
        spikes: SpikePath | None = Field(
            None, description="your own recording: spike times in .json, .npz, .nwb or .txt"
        )
        bin: float = Field(0.25, gt=0, description="bin of your own recording, s")
        theta: float = Field(0.016, gt=0, description="interval limit of your own recording, s")
        scales = {
            "smoke": {"seeds": 1, "neurons": 15, "bins": 150, "permutations": 19,
                      "Recovery": {"cells": {"amplitude": [0.8], "silent": [True]},
                                   "contenders": [OURS, "Gaussian likelihood", "rate FA", "stacked FA", "fraction FA"]},
                      "Number": {"cells": {"amplitude": [0.8]}, "seeds": 1},
                      "Tests": {"seeds": 1, "cells": {"regime": ["amplitude 0.2", "private drift", "Poisson rate code"]}},
                      "Mechanism": {"contenders": [OURS, "rate FA", "Poisson-surprise parser"]},
                      "Recorded": {"cells": {"recording": ["Purkinje, control", "antennal lobe, vanillin", "own"]}},
                      "Prediction": False},
            "laptop": {},
            "extended": {"seeds": 20},
            "paper": {"neurons": 500, "bins": 20_000, "Tests": False, "Recorded": False, "Prediction": False},
        }  # fmt: skip

    class Run(study.Inputs):
        spikes: SpikePath = Field(description="spike times in seconds: .json (lists), .npz, .nwb, or a table in .txt")
        bin: float = Field(0.25, gt=0, description="bin, s")
        theta: str = Field("0.016", description="intervals below it make a burst, s; or logisi")
        max_event: int = Field(3, ge=0, description="most event factors to try")
        max_burst: int = Field(2, ge=0, description="most burst factors to try")
        permutations: int = Field(199, ge=19, description="draws from each null")
        seed: int = Field(0, ge=0, description="seed of folds and draws")

        @field_validator("theta")
        @classmethod
        def _seconds(cls, value: str) -> str:
            try:
                good = value == "logisi" or 0 < float(value) < np.inf
            except ValueError:
                good = False
            if not good:
                raise ValueError("expected a positive number of seconds, or logisi")
            return value

    command = "gnomon run burst-factors --spikes spikes.json --bin 0.25 --theta 0.016 --permutations 99"
    example = """
from gnomon.geometry import BurstFactorAnalysis, burst_test, parse_bursts, read_spikes

E, B, S = parse_bursts(read_spikes("spikes.json"), bin_size=0.25, theta=0.016)
print(burst_test(E, B, null="marks", n_perm=99))
fa = BurstFactorAnalysis(n_event=2, n_burst=1).fit(E, B)
x, y = fa.transform(E, B)
print(x.shape, y.shape, fa.canonical_correlations_)
"""

    experiments = [Recovery, Number, Tests, Mechanism, Recorded, Prediction]

    claims = [
        # 1: rates hide the burst factor
        study.at_least("r2_y", OURS, 0.85, on={"amplitude": [0.8, 0.4]}, each=["amplitude", "silent"], table="Recovery",
                       id="burst-factor-found", text="R^2 of the burst factor is at least 0.85 at amplitudes 0.8 and 0.4",
                       paper="Sheet: 0.97 and 0.89; rate-silent 0.97 and 0.90"),
        *(study.at_most("r2_y", name, 0.1, on={"silent": True}, each="amplitude", table="Recovery", id=f"rates-blind-{k}",
                        text=f"Where spike counts are silent about it, rate factor analysis with {k} factors explains at most "
                             "0.1 of it, at every amplitude", paper="Sheet: 0.03, 0.01, 0.01")
          for k, name in ((3, "rate FA"), (6, "rate FA, 6 factors"))),
        study.at_least("r2_y", "rate FA", 0.0, on={"silent": False}, each="amplitude", table="Recovery", report=True,
                       id="rates-not-silent", text="R^2 of rate factor analysis where bursts add spikes",
                       paper="Sheet: 0.75 at amplitude 0.8, 0.42 at 0.4"),
        # 2: against methods that see bursts but have no structure
        study.better("r2_y", OURS, ["fraction FA", "stacked FA"], on={"amplitude": 0.2}, each="silent", table="Recovery",
                     id="better-at-weak", text="At amplitude 0.2 the burst factor is found better than by factor analysis of "
                     "burst fractions, and of singles and bursts stacked", paper="Sheet: 0.70 against 0.58 and 0.65"),
        study.better("r2_y", OURS, ["fraction FA", "stacked FA"], by=-0.01, each=["amplitude", "silent"], table="Recovery",
                     id="never-worse", text="At no amplitude worse than either by more than 0.01; the margin over the stacked "
                     "one is small", paper="Sheet: stacked 0.95 to 0.97, 0.87 to 0.90, 0.65"),
        study.better("mixing", OURS, "stacked FA", each=["amplitude", "silent"], table="Recovery", id="unmixed",
                     text="The best single axis of stacked factor analysis mixes in more of x than ours"),
        study.at_most("mixing", OURS, 0.05, each=["amplitude", "silent"], table="Recovery", id="mixing-small",
                      text="R^2 of our burst factor on the true event factors is at most 0.05"),
        # 3: the right number
        study.rate(lambda rows: rows["chosen"] == 1, at_least=0.8, on={"amplitude": [0.8, 0.4]}, each="amplitude",
                   table="Number", id="one-factor", text="Co-smoothing chooses one burst factor in at least 80 % of seeds"),
        study.rate(lambda rows: rows["chosen"] == 0, at_least=0.8, on={"amplitude": 0.0}, table="Number", id="no-factor",
                   text="Co-smoothing chooses none in at least 80 % of seeds where there is none"),
        study.rate(lambda rows: rows["chosen"] == 1, at_least=0.8, on={"amplitude": 0.2}, table="Number", report=True,
                   id="one-weak-factor", text="How often one factor is chosen at amplitude 0.2",
                   paper="Sheet: the gain, 0.011 bits, is near the noise"),
        study.at_least("gain_1", OURS, 0.0, each="amplitude", table="Number", report=True, id="gain-1",
                       text="Bits per burst of one factor", paper="Sheet: 0.261, 0.072, 0.011, -0.013 (amplitude 0.8 to 0)"),
        study.at_least("gain_2", OURS, 0.0, each="amplitude", table="Number", report=True, id="gain-2",
                       text="Bits per burst of two factors", paper="Sheet: 0.249, 0.058, -0.003, -0.029"),
        # 4: the exact test
        study.rate("rejects", "marks", at_most=0.1, on={"regime": "no burst code"}, table="Tests", id="marks-size",
                   text="Where there is no burst code the marks test rejects in at most 10 %"),
        study.rate("rejects", "marks", at_least=0.95, on={"regime": "amplitude 0.2"}, table="Tests", id="marks-power",
                   text="At amplitude 0.2 the marks test rejects in at least 95 %"),
        # 5: chance bursts and private drift
        study.rate("rejects", "jitter", at_most=0.1, on={"regime": "Poisson rate code"}, table="Tests", id="jitter-size",
                   text="On a Poisson rate code the jitter test rejects in at most 10 %", paper="Sheet: 1 of 20"),
        study.rate("rejects", "marks", at_least=0.8, on={"regime": "Poisson rate code"}, table="Tests", report=True,
                   id="marks-on-rate-code", text="How often the marks test takes a rate code for a burst code",
                   paper="Sheet: 20 of 20"),
        study.rate("rejects", "jitter", at_most=0.1, on={"regime": "gamma rate code"}, table="Tests", report=True,
                   id="jitter-gamma", text="How often the jitter test rejects on a gamma rate code of shape 4"),
        study.rate("rejects", "shift", at_most=0.1, on={"regime": "private drift"}, table="Tests", id="shift-size",
                   text="Under private stationary drift the shift test rejects in at most 10 %", paper="Sheet: 1 of 20"),
        study.rate("rejects", "marks", at_least=0.8, on={"regime": "private drift"}, table="Tests", report=True,
                   id="marks-on-drift", text="How often the marks test rejects under private drift", paper="Sheet: 20 of 20"),
        study.rate("rejects", "shift", at_most=0.1, on={"regime": "private trend"}, table="Tests", report=True,
                   id="shift-on-trends", text="How often the shift test rejects under private trends"),
        study.rate("rejects", "shift", at_least=0.9, on={"regime": "amplitude 0.4"}, table="Tests", id="shift-power",
                   text="At amplitude 0.4 the shift test rejects in at least 90 %"),
        study.rate("rejects", "jitter", at_least=0.9, on={"regime": "spikes, amplitude 0.4"}, table="Tests", id="jitter-power",
                   text="On spikes with a burst code of amplitude 0.4 the jitter test rejects in at least 90 %"),
        # 6: recordings
        study.always(lambda rows: 0.01 - rows["pvalue"],
                     on=lambda rows: (rows["recording"] == "culture") & rows["contender"].isin(["marks", "shift"]),
                     table="Recorded", id="culture-shared", text="The culture has a shared burst code: marks and shift test at "
                     "1 %", paper="Sheet: statistic 17.3 against 1.21"),
        study.at_least("bits", "1 burst factor", 0.0, on={"recording": "culture"}, table="Prediction", id="culture-bits",
                       text="One burst factor predicts held-out bursts of the culture (over splits of this recording)",
                       paper="Sheet: 0.289, 0.297, 0.292 bits for 1, 2, 3 factors"),
        study.always(lambda rows: 0.05 - rows["pvalue"],
                     on=lambda rows: (rows["recording"] == "retina") & (rows["contender"] == "marks"), table="Recorded",
                     id="retina-marks", text="The retina rejects constant burst probabilities",
                     paper="Sheet: statistic 0.93 against 0.53"),
        study.at_least("bits", {"contender": "1 burst factor"}, 0.0, on={"recording": "retina"}, table="Prediction", report=True,
                       id="retina-bits", text="Bits per burst of one burst factor on the retina",
                       paper="Sheet: -0.92 with ridge 1 (MAP)"),
        study.at_least("bits", {"contender": "1, ridge tuned"}, 0.0, on={"recording": "retina"}, table="Prediction", report=True,
                       id="retina-tuned", text="The same with the ridge tuned inside folds"),
        study.better("bits", "both", "rate factors", each="recording", on={"recording": ["culture", "retina"]},
                     table="Prediction", report=True, id="beyond-rate-factors",
                     text="Bits per burst that burst factors add to rate factors"),
        *(study.always(lambda rows: 0.05 - rows["pvalue"], on={"recording": name, "contender": test}, table="Recorded",
                       report=True, id=f"{test}-{name}".replace(", ", "-").replace(" ", "-").lower(),
                       text=f"{name}: the {test} test rejects at 5 %", paper=sheet)
          for name, sheet in (("Purkinje, control", "Sheet: 1.26 against 0.98"),
                              ("Purkinje, bicuculline", "Sheet: 1.19 against 1.04"))
          for test in ("marks", "shift")),
        # 7: the mechanism
        study.at_least("r2_y", OURS, 0.6, table="Mechanism", id="dendritic", text="Burst factors recover dendritic inputs: R^2 at "
                       "least 0.6"),
        study.at_least("r2_x", OURS, 0.6, table="Mechanism", id="somatic", text="Event factors recover somatic inputs: R^2 at "
                       "least 0.6"),
        *(study.at_most(metric, OURS, 0.15, table="Mechanism", id=f"separate-{metric[-1]}", text=text)
          for metric, text in (("cross_y", "Burst factors explain at most 0.15 of the somatic inputs"),
                               ("cross_x", "Event factors explain at most 0.15 of the dendritic inputs"))),
        study.better("mixing", OURS, "rate FA", table="Mechanism", id="rate-fa-mixes",
                     text="The axis of rate factor analysis nearest to the dendritic inputs mixes in more of the somatic ones"),
        study.better("r2_y", OURS, "rate FA", table="Mechanism", id="rate-fa-misses",
                     text="Rate factor analysis with as many factors in all finds less of the dendritic inputs"),
        study.better("r2_y", "with time scale", OURS, table="Mechanism", report=True, id="time-scale-helps",
                     text="What an AR(1) prior adds"),
        study.better("r2_y", OURS, "Poisson-surprise parser", table="Mechanism", report=True, id="parsers",
                     text="Parsing by an interval limit against Poisson surprise"),
    ]  # fmt: skip

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure | None:
        """R^2 of the burst factor by amplitude, where bursts add spikes and where they do not."""
        from matplotlib.figure import Figure

        if "Recovery" not in tables:
            return None
        found = tables["Recovery"]
        figure = Figure(figsize=(9, 4), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        shown = [OURS, "stacked FA", "fraction FA", "rate FA", "rate FA, 6 factors", "Poisson factors", "PCA"]
        for axis, silent, title in zip(
            axes, (False, True), ("bursts add spikes", "spike counts are silent"), strict=True
        ):
            part = found[found["silent"] == silent]
            for name in shown:
                means = part[part["contender"] == name].groupby("amplitude")["r2_y"].agg(["mean", "std"])
                if len(means):
                    axis.errorbar(means.index, means["mean"], means["std"].fillna(0), marker="o" if name == OURS else ".",
                                  linewidth=2 if name == OURS else 1, capsize=2, label=name if not silent or len(axis.lines) else None)  # fmt: skip
            axis.set(title=title, xlabel="amplitude of the burst loadings", ylim=(-0.02, 1.02))
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("R² of the burst factor")
        handles, labels = axes[1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        return figure

    # --- gnomon run ---

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        """Parse, test, choose the numbers of factors, fit; ``beside`` adds factor analysis of the spike counts."""
        trains = read_spikes(inputs.spikes)
        theta: Any = inputs.theta if inputs.theta == "logisi" else float(inputs.theta)
        E, B, S = parse_bursts(trains, inputs.bin, theta)
        limit = theta if theta != "logisi" else 0.016
        model = BurstFactorAnalysis(bin_size=inputs.bin, theta=limit, random_state=inputs.seed)
        chosen = model.select(E, B, range(inputs.max_event + 1), range(inputs.max_burst + 1))
        model.fit(E, B)
        tests = {
            null: burst_test(E, B, null, inputs.permutations, random_state=inputs.seed) for null in ("marks", "shift")
        }
        if theta != "logisi":  # the jitter null parses again with one limit for all
            tests["jitter"] = burst_test(E, B, "jitter", inputs.permutations, trains, inputs.bin, theta,
                                         random_state=inputs.seed)  # fmt: skip
        report = burst_code_report(E, B, max(model.n_event, 1), max(model.n_burst, 1), random_state=inputs.seed,
                                   bin_size=inputs.bin)  # fmt: skip
        found = {OURS: {"model": model, "chosen": chosen, "tests": tests, "report": report}}
        if beside:
            found["rate FA"] = {"factors": baselines.rate_fa(E, B, S, max(model.n_event + model.n_burst, 1))}
        return study.Outcome(inputs, (list(trains), E, B, S), found)

    def present(self, outcome: study.Outcome) -> Any:
        """Counts, the tests, bits per burst of four models, and the factors chosen."""
        import pandas as pd

        names, E, B, S = outcome.problem
        found = outcome.result
        model = found["model"]
        counts = (f"{len(names)} neurons, {len(E)} bins of {outcome.inputs.bin:g} s: {S.sum():,} spikes, {E.sum():,} events, "
                  f"{B.sum():,} bursts ({B.sum() / max(E.sum(), 1):.1%})")  # fmt: skip
        shared = model.canonical_correlations_
        chosen = f"{model.n_event} event factors and {model.n_burst} burst factors" + (
            f"; canonical correlations {', '.join(f'{c:.2f}' for c in shared)}" if len(shared) else ""
        )
        tests = pd.DataFrame([{"null": name, "statistic": t.statistic, "null mean": t.null_mean, "null std": t.null_std,
                               "p": t.pvalue} for name, t in found["tests"].items()])  # fmt: skip
        shown = [counts, chosen, tests, found["report"].reset_index()]
        if "rate FA" in outcome.results:
            z = outcome.results["rate FA"]["factors"]
            shown.append("R² of each burst factor on the factors of spike counts: "
                         + ", ".join(f"{_r2(z, model.y_[:, [j]]):.2f}" for j in range(model.n_burst)))  # fmt: skip
        return shown

    def picture(self, outcome: study.Outcome) -> Figure:
        """The factors in time, and the loadings."""
        from matplotlib.figure import Figure

        model = outcome.result["model"]
        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.subplots(2, 2, width_ratios=(2, 1))
        for row, (name, z, L) in enumerate((("event", model.x_, model.event_loadings_),
                                            ("burst", model.y_, model.burst_loadings_))):  # fmt: skip
            axes[row, 0].plot(np.arange(len(z)) * outcome.inputs.bin, z, linewidth=0.8)
            axes[row, 0].set(xlabel="s", ylabel=f"{name} factors")
            axes[row, 1].plot(L, "o-", markersize=3, linewidth=0.5)
            axes[row, 1].set(xlabel="neuron", ylabel="loading")
        return figure

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        """``loadings.csv`` by neuron, ``factors.csv`` by bin, ``tests.csv`` and ``report.csv``."""
        import pandas as pd

        names, model = outcome.problem[0], outcome.result["model"]

        def columns(prefix: str, values: np.ndarray) -> dict[str, np.ndarray]:
            return {f"{prefix}{j + 1}": values[:, j] for j in range(values.shape[1])}

        loadings = {"neuron": names, **columns("event", model.event_loadings_), **columns("burst", model.burst_loadings_),
                    "log_rate": model.event_intercept_, "burst_log_odds": model.burst_intercept_}  # fmt: skip
        pd.DataFrame(loadings).to_csv(directory / "loadings.csv", index=False)
        start = np.arange(len(model.x_)) * outcome.inputs.bin
        factors = {"start": start, **columns("event", model.x_), **columns("burst", model.y_)}
        pd.DataFrame(factors).to_csv(directory / "factors.csv", index=False)
        tests = [{"null": name, **vars(test)} for name, test in outcome.result["tests"].items()]
        pd.DataFrame(tests).to_csv(directory / "tests.csv", index=False)
        outcome.result["report"].to_csv(directory / "report.csv")
