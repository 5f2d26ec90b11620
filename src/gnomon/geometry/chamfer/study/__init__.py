"""Do one-sided Chamfer distances measure fidelity and coverage where Frechet and ball metrics mislead?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from gnomon import study
from gnomon.geometry.chamfer import generators, spaces
from gnomon.geometry.chamfer.features import FeatureExtractor, image_files
from gnomon.geometry.chamfer.method import ChamferMetric, ChamferReport
from gnomon.geometry.chamfer.study.contenders import ALL, MAIN
from gnomon.geometry.chamfer.study.experiments import (
    Constructions,
    Detection,
    Generators,
    Inflation,
    Ladder,
    Neighbourhood,
    Outliers,
    Speed,
)
from gnomon.geometry.chamfer.study.tables import areas, excess, ranges, taus, wins
from gnomon.study.protocol import Options

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


BIG = ["pixels", "cnn"]  # 1,500 rows
MNIST = {"space": BIG}


def _sample(contender: str, name: str) -> dict[str, str]:
    return {"contender": contender, "sample": name}


class ChamferStudy(study.Study):
    """Chamfer fidelity and coverage beside Frechet, kernel and ball metrics."""

    title = "Chamfer distance as an evaluation metric for generative models"
    paper = "NeurIPS 2026, abstract only (found under no title)"
    bibtex = """@inproceedings{chamfer2026,
  title     = {Chamfer distance as an evaluation metric for generative models},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2026},
  note      = {known to us by its abstract; the title is ours}
}"""
    question = (
        "Do the mean distances from generated to real and from real to generated points measure fidelity and coverage where "
        "the Frechet distance sees only two moments and ball metrics inflate the support?"
    )
    method = (
        "Fidelity is the mean distance of generated rows to their nearest real row, coverage that of real rows to their "
        "nearest generated row. Each is divided by what held-out real rows of the same number get, so that 1 is as good as "
        "fresh real data; a delete-block jackknife over all sets gives the interval."
    )
    departures = (
        "Only the abstract was available: the definitions, the reference scale, the intervals and the constructions are "
        "reconstructed.",
        "Fidelity is a mean over rows given R, which both sides share: only coverage needs matched sizes.",
        "Constructions are made of held-out rows and act on features; a midpoint of reference rows would be near its parents.",
        "The volume ratio (r_5 / r_1)^d follows 1 / Beta(1, 4) in every dimension where the density is even, with an infinite "
        "mean: the expected growth with the dimension is not a property of balls, and the median is reported beside it.",
        "Photograph patches are split at random from a grid without overlap: split by photograph, fresh data would not be "
        "from the distribution of the reference.",
        "EfficientNet features are taken of 900 digits: 50 ms an image on a processor.",
        "The diffusion model lives on 48 principal components. A Frechet distance here is an FD: no Inception network.",
        "k = n is allowed in the functional form (the hand case needs it); the estimator refuses k >= n.",
    )
    command = "gnomon run chamfer --real real.npy --generated generated.npy --holdout holdout.npy"
    example = """
import numpy as np
from gnomon.geometry import ChamferMetric

real, fresh, generated = np.load("real.npy"), np.load("holdout.npy"), np.load("generated.npy")
report = ChamferMetric(random_state=0).fit(real, holdout=fresh).score(generated, also=("fid", "prdc"))
print(report.table())
worst = np.argsort(-report.fidelity_z)[:10]      # generated rows farthest from real data
missed = np.argsort(-report.coverage_z)[:10]     # real rows that nothing generated comes near
"""

    class Inputs(study.Inputs):
        """What a check can be told."""

        rows: int = Field(1500, ge=100, description="rows of each part: reference, hold-out, fresh sample")

        scales = {
            "smoke": {
                "seeds": 1, "rows": 300, "Constructions": {"cells": {"space": ["digits"]}},
                "Inflation": {"cells": {"space": ["digits"]}}, "Outliers": {"cells": [{"space": "digits"}]},
                "Neighbourhood": {"cells": [{"space": "digits"}]},
                "Ladder": {"cells": [{"space": "digits", "ladder": "noise"}, {"space": "digits", "ladder": "label drop"}]},
                "Detection": False, "Generators": False, "Speed": False,
            },
            "laptop": {},
            "extended": {"seeds": 10},
        }  # fmt: skip

    class Run(Options):
        """What a run can be told."""

        real: Path = Field(..., description="real rows: .npy of features or images, or a folder of images")
        generated: Path = Field(..., description="generated rows, in the same form")
        holdout: Path | None = Field(None, description="more real rows (default: a random half of --real)")
        train: Path | None = Field(None, description="what the generator was trained on, for the copy ratio")
        features: str = Field("raw", description="raw, mnist_cnn, efficientnet_lite0, or a transformers model's folder")
        k: int = Field(1, ge=1, description="nearest neighbours averaged over")
        reference: Literal["holdout", "loo"] = Field(
            "holdout", description="what 1 means: held-out rows, or leave-one-out"
        )
        worst: int = Field(10, ge=0, description="how many of the worst and most missed to show")
        random_state: int = Field(0, ge=0, description="seed")

        @field_validator("real", "generated", "holdout", "train")
        @classmethod
        def _there(cls, value: Path | None) -> Path | None:
            if value is not None and not (value.is_dir() or (value.is_file() and value.suffix == ".npy")):
                raise ValueError("expected a .npy file or a folder of images that exists")
            return value

        @model_validator(mode="after")
        def _known(self) -> Any:
            FeatureExtractor(self.features)
            return self

    experiments = [Constructions, Inflation, Outliers, Neighbourhood, Ladder, Detection, Generators, Speed]

    def derive(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Excess over fresh data's interval, ranges over k, rank correlations with the severity, areas under curves."""
        found = {}
        if "Constructions" in tables:
            found["Excess"] = excess(tables["Constructions"])
        if "Neighbourhood" in tables:
            found["Ranges"] = ranges(tables["Neighbourhood"])
        if "Ladder" in tables:
            found["Taus"] = taus(tables["Ladder"])
            found["Wins"] = wins(found["Taus"])
        if "Detection" in tables:
            found["Areas"] = areas(tables["Detection"])
            alarms = tables["Detection"]
            found["Alarms"] = alarms[
                (alarms["contender"] == "chamfer") & ~alarms["damaged"] & (alarms["metric"] == "fidelity_ratio")
            ]
        return found

    claims = [
        # 1: the Frechet distance is blind beyond two moments
        study.always(lambda rows: 1e-6 - rows["fd_share"], on={"sample": ["moments", "moments, signs"], "contender": "FD"},
                     table="Constructions", id="fd-blind", paper="Abstract: FID is blind beyond mean and covariance",
                     text="Noise with the sample's own mean and covariance has a Frechet distance below 1e-6 of tr(cov)"),
        study.at_least("fidelity_ratio", "chamfer", 1.25, on={"sample": "moments", **MNIST}, each="space", table="Constructions",
                       id="moments-seen", text="while its fidelity ratio is at least 1.25 at 1,500 rows",
                       paper="Sheet: 1.66 (CNN), 1.37 (pixels)"),
        study.better("fd", _sample("FD", "moments"), _sample("FD", "fresh"), each="space", table="Constructions",
                     id="fd-prefers-noise", text="and the Frechet distance ranks it above fresh real data",
                     paper="Sheet: -0.0 against 4.80 (CNN), 1.98 (pixels)"),
        study.at_least("fidelity_ratio", "chamfer", 1.25, report=True, each=["space", "sample"], table="Constructions",
                       on={"sample": ["moments", "moments, signs"], "space": ["digits", "photos", "efficientnet"]},
                       id="moments-seen-elsewhere", text="Fidelity ratio of such noise on smaller samples and other features"),
        # 2: inflated balls accept what lies between the data
        study.better("precision", _sample("balls", "midpoints"), _sample("balls", "fresh"), by=-0.02, on=MNIST, each="space",
                     table="Constructions", id="midpoints-precise",
                     text="Midpoints of real rows have a precision (k = 5) not 0.02 below that of fresh real data",
                     paper="Abstract: balls accept off-manifold samples; sheet: 0.999 / 0.955 (pixels), 0.953 / 0.955 (CNN)"),
        study.estimate("excess", at_least=0, on={"sample": "midpoints", **MNIST}, each="space", table="Excess", id="midpoints-seen",
                       text="while their fidelity ratio is above the 95 % interval of fresh real data",
                       paper="Sheet: 1.054 / 0.982 (pixels), 1.222 / 1.010 (CNN)"),
        study.at_least("density", "balls", 1.0, on={"sample": "midpoints"}, each="space", table="Constructions", report=True,
                       id="midpoints-density", text="Density of midpoints", paper="Sheet: 3.86 against 1.05 (pixels)"),
        # 3: recall accepts clouds around the data; one ball is enough for precision
        study.better("recall", _sample("balls", "shell"), _sample("balls", "fresh"), on=MNIST, each="space", table="Constructions",
                     id="shell-recalled", text="Real rows moved off the data by one neighbour distance have a higher recall than "
                     "fresh real data", paper="Sheet: 0.996 to 1.0 against 0.95 to 0.97"),
        study.at_most("precision", "balls", 0.45, on={"sample": "shell", **MNIST}, each="space", table="Constructions",
                      id="shell-imprecise", text="though their precision is below 0.45", paper="Sheet: 0.03 to 0.39"),
        study.at_least("coverage_ratio", "chamfer", 1.3, on={"sample": "shell", **MNIST}, each="space", table="Constructions",
                       id="shell-seen", text="and their coverage ratio above 1.3", paper="Sheet: 1.42 to 1.43"),
        study.at_least("volume_excess", "balls", 10, on={"space": "cnn"}, table="Inflation", id="volume-excess",
                       text="A fifth-neighbour ball is on average more than 10 times the volume that reaches the nearest one",
                       paper="Abstract: balls inflate the support"),
        study.at_least("volume_excess_median", "balls", 10, each="space", table="Inflation", report=True,
                       id="volume-excess-median", text="Median of the same (6.3 where the density is even, in any dimension)"),
        study.at_least("far_share", "balls", 0.5, each="space", table="Inflation", report=True, id="far-share",
                       text="Share of the union's volume that is farther from the data than 95 % of real rows"),
        study.at_least("probes_rejected", "balls", 0.1, each="space", table="Inflation", report=True, id="probes-rejected",
                       text="Share of midpoints that balls accept and a Chamfer threshold of the same level rejects"),
        study.at_most("precision", "balls", 0.05, on={"reference": "clean", "space": "pixels"}, table="Outliers",
                      id="noise-imprecise", text="Pure noise has a precision below 0.05 against clean reference rows"),
        study.at_least("precision", "balls", 0.85, on={"reference": "dirty", "space": "pixels"}, table="Outliers",
                       id="one-per-cent-is-enough", text="and above 0.85 once 1 % of the reference rows are noise",
                       paper="Sheet: 0.91 to 0.95"),
        study.better("fidelity_ratio", {"contender": "chamfer", "reference": "dirty"},
                     {"contender": "chamfer", "reference": "clean"}, table="Outliers", on={"space": "pixels"}, report=True,
                     id="outliers-lower-fidelity", text="The fidelity ratio falls too", paper="Sheet: 1.58 to 1.04"),
        study.close("fidelity_trimmed", {"contender": "chamfer", "reference": "dirty"},
                    {"contender": "chamfer", "reference": "clean"}, within=0.05, table="Outliers", on={"space": "pixels"},
                    id="trimmed-unmoved", text="but not the one against the reference without its 2 % sparsest rows"),
        # 4: the neighbourhood
        study.at_most("range", "chamfer", 0.05, on={"sample": "fresh"}, each=["space", "n"], table="Ranges", id="range-of-ratio",
                      text="On fresh real data the coverage ratio moves by at most 0.05 over k = 1, 3, 10",
                      paper="Abstract: depends less on the neighbourhood; sheet: 0.97 to 0.99, 0.99 to 1.00"),
        study.better("range", "chamfer", "recall", factor=5, on={"sample": "fresh"}, each=["space", "n"], table="Ranges",
                     id="range-against-recall", text="five times less than recall", paper="Sheet: recall 0.63 to 0.99"),
        # 5: finite samples
        study.better("relative_range", "chamfer", "recall", on={"sample": "half of the classes"}, each=["space", "m"],
                     table="Ranges", id="range-half-missing",
                     text="With half of the classes missing the range over k = 3, 5, 10 of C / C0 - 1, relative to its mean, is below "
                          "that of 1 - recall", paper="Sheet: recall 0.65 to 0.94"),
        study.between("score", "recall", 0.9, 1.0, on={"sample": "sizes"}, each=["space", "m"], table="Neighbourhood", report=True,
                      id="recall-over-sizes", text="Recall of fresh data over m at fixed n (k = 5)",
                      paper="Abstract: recall is unstable in finite samples; sheet: 0.957 / 0.957 / 0.952, not seen"),
        study.between("score", "chamfer", 0.95, 1.05, on={"sample": "sizes"}, each=["space", "m"], table="Neighbourhood", report=True,
                      id="ratio-over-sizes", text="The coverage ratio over the same sizes", paper="Sheet: 0.993 to 1.007"),
        # 6: two axes
        study.between("fidelity_ratio", "chamfer", 0.95, 1.05, on={"sample": "half of the classes", **MNIST}, each="space",
                      table="Constructions", id="dropped-classes-faithful",
                      text="Dropping 5 of 10 classes leaves the fidelity ratio within 5 % of 1", paper="Sheet: 1.011, 0.971"),
        study.worse("coverage_ratio", _sample("chamfer", "half of the classes"), _sample("chamfer", "fresh"), by=0.05, on=MNIST,
                    each="space", table="Constructions", id="dropped-classes-missed",
                    text="and raises the coverage ratio by more than 0.05", paper="Sheet: 1.320 (CNN), 1.112 (pixels)"),
        study.worse("coverage_ratio", _sample("chamfer", "prototypes"), _sample("chamfer", "fresh"), by=0.25, on=MNIST, each="space",
                    table="Constructions", id="prototypes-missed", text="30 prototypes raise it by more than 0.25",
                    paper="Sheet: 1.84"),
        study.at_most("fidelity_ratio", "chamfer", 1.2, on={"sample": "prototypes"}, each="space", table="Constructions", report=True,
                      id="prototypes-faithful", text="Fidelity ratio of 30 prototypes", paper="Sheet: 1.15"),
        study.worse("fidelity_ratio", _sample("chamfer", "shell"), _sample("chamfer", "fresh"), by=0.1, on=MNIST, each="space",
                    table="Constructions", id="shell-unfaithful", text="Shell noise raises the fidelity ratio too"),
        # 7: copies
        study.always(lambda rows: rows["fd_share"] < 1e-9, on={"sample": "memorised", "contender": "FD"}, table="Constructions",
                     id="copies-perfect-fd", text="A sample that copies the reference has a Frechet distance of zero"),
        study.always(lambda rows: (rows[["precision", "recall", "ball_coverage"]] == 1).all(axis=1) & (rows["density"] >= 0.99),
                     on=lambda rows: (rows["sample"] == "memorised") & (rows["contender"] == "balls") & (rows["space"] != "photos"),
                     table="Constructions", id="copies-perfect-balls",
                     text="and precision, recall, coverage and (ties aside) density of one (flat patches of photographs, all "
                          "duplicates, left out), but"),
        study.always(lambda rows: rows["copy_ratio"] == 0, on={"sample": "memorised", "contender": "chamfer"},
                     table="Constructions", id="copies-flagged", text="a copy ratio of zero"),
        # 8: ladders
        study.at_least("tau", {"metric": "fidelity_ratio"}, 0.9, on={"ladder": ["blur", "noise"]}, each=["space", "ladder"],
                       table="Taus", id="fidelity-ladders", text="Fidelity orders blur and noise: Kendall tau at least 0.9"),
        study.at_least("tau", {"metric": "coverage_ratio"}, 0.9, on={"ladder": ["label drop", "prototypes"]},
                       each=["space", "ladder"], table="Taus", id="coverage-ladders",
                       text="Coverage orders dropped classes and prototypes: at least 0.9"),
        study.estimate("not_below", at_least=3, each="space", table="Wins", id="ladders-won",
                       text="Not below the Frechet distance and density or coverage in at least 3 of these 4 ladders"),
        study.at_least("tau", {"metric": "fidelity_ratio"}, 0.9, on={"ladder": "occlusion"}, each="space", table="Taus", report=True,
                       id="occlusion-ladder", text="Fidelity on occlusion"),
        study.estimate("tau", report=True, each="metric", table="Taus", id="ladders-of-all",
                       text="Mean Kendall tau of each metric over all ladders"),
        # detection
        study.estimate("auc", report=True, each=["metric", "ladder"], table="Areas", id="detection",
                       text="Fresh and slightly damaged samples of 200 rows told apart: area under the curve"),
        study.rate("alarm", "chamfer", at_most=0.1, report=True, table="Alarms", unit=["seed", "ladder", "draw"], id="false-alarms",
                   text="Fresh samples of 200 rows accused at level 0.05 by the permutation test"),
        # generators
        study.ordered("fidelity_ratio", along=[_sample("chamfer", f"vae {e}") for e in generators.VAE_EPOCHS], report=True,
                      each="space", table="Generators", id="vae-fidelity", text="Fidelity gets better as an autoencoder trains"),
        study.ordered("coverage_ratio", along=[_sample("chamfer", f"vae {e}") for e in generators.VAE_EPOCHS], report=True,
                      each="space", table="Generators", id="vae-coverage", text="Coverage gets better as an autoencoder trains"),
        study.ordered("coverage_ratio", along=[_sample("chamfer", f"ddpm {g:g}") for g in generators.GUIDANCE], towards="worse",
                      report=True, each="space", table="Generators", id="guidance-coverage",
                      text="Coverage gets worse with guidance"),
        study.at_most("copy_ratio", "chamfer", 0.9, on={"sample": "copies"}, each="space", table="Generators", id="copies-of-training",
                      text="A generator that copies its training rows with a little noise has a copy ratio below 0.9"),
        study.at_least("copy_ratio", "chamfer", 0.9, on={"sample": "fresh"}, each="space", table="Generators",
                       id="fresh-is-no-copy", text="and fresh real data do not"),
        # 9: cost
        study.better("seconds", "precision to coverage", "prdc package", factor=3, table="Speed", id="faster-than-prdc",
                     text="All four ball metrics three times faster than the prdc package (n = m = 2,000, D = 2,048, one thread)",
                     when=lambda tables: ("prdc package" in set(tables["Speed"]["contender"]), "the package prdc is not installed")),
        study.better("seconds", "one direction", "faiss", factor=1 / 1.5, table="Speed", id="near-faiss",
                     text="One direction within 1.5 times faiss's exact index",
                     when=lambda tables: ("faiss" in set(tables["Speed"]["contender"]), "faiss is not installed")),
        study.better("seconds", "chamfer", "FD", table="Speed", id="faster-than-fd",
                     text="Both directions faster than the Frechet distance", paper="Abstract: cheap"),
    ]  # fmt: skip

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure | None:
        """What each construction gets: Frechet distance, precision and recall against the two ratios."""
        from matplotlib.figure import Figure

        if "Constructions" not in tables:
            return None
        table = tables["Constructions"]
        shown = [space for space in spaces.SPACES if space in set(table["space"])][:2]
        figure = Figure(figsize=(9, 1 + 3 * len(shown)), layout="constrained")
        for axes, space in zip(np.atleast_2d(figure.subplots(len(shown), 3, sharey=True)), shown, strict=True):
            means = table[table["space"] == space].groupby("sample", sort=False).mean(numeric_only=True)[::-1]
            places = range(len(means))
            for name, marker in (("fidelity_ratio", "o"), ("coverage_ratio", "s")):
                axes[0].plot(means[name], places, marker, label=name.replace("_", " "))
            axes[0].axvline(1, color="grey", linewidth=1)
            axes[1].plot(means["fd"], places, "D", color="C2", label="FD")
            for name, marker in (("precision", "^"), ("recall", "v")):
                axes[2].plot(means[name], places, marker, label=name)
            axes[0].set_yticks(places, means.index)
            axes[0].set_title(space, loc="left")
            for ax, label in zip(
                axes, ("ratio to fresh real data", "Frechet distance", "share inside balls"), strict=True
            ):
                ax.set_xlabel(label)
                ax.legend(frameon=False, fontsize="small")
                ax.grid(axis="x", alpha=0.3)
        return figure

    # --- gnomon run ---

    def run(self, inputs: Any, beside: bool = False) -> study.Outcome:
        """Score a generated sample; ``beside`` adds every other metric."""
        extract = FeatureExtractor(inputs.features)
        sets = {name: _loaded(getattr(inputs, name), extract, inputs.features)
                for name in ("real", "generated", "holdout", "train") if getattr(inputs, name) is not None}  # fmt: skip
        metric = ChamferMetric(k=inputs.k, reference=inputs.reference, random_state=inputs.random_state)
        metric.fit(sets["real"][0], holdout=sets.get("holdout", (None,))[0], train=sets.get("train", (None,))[0])
        generated = sets["generated"][0]
        found: dict[str, Any] = {"chamfer": metric.score(generated, also=("fid", "prdc"))}
        if beside:
            train = metric.train_
            others = {name: ALL[name] for name in ALL if name not in MAIN}
            found |= {
                name: make(metric.real_, metric.holdout_, train, inputs.random_state)(generated)
                for name, make in others.items()
            }
        names = {name: sets[name][1] for name in ("real", "generated")}
        if inputs.holdout is None and inputs.reference == "holdout":
            names["real"] = None  # half of the rows were held out: see indices
        return study.Outcome(inputs, names, found)

    def present(self, outcome: study.Outcome) -> Any:
        """Ratios with intervals, the older metrics, and the worst and most missed items."""
        import pandas as pd

        report: ChamferReport = outcome.result
        said = (f"{report.n:,} real and {report.m:,} generated rows, coverage at {report.size:,}, k = {report.k}, features: "
                f"{outcome.inputs.features}. A ratio of 1 is as good as fresh real data.")  # fmt: skip
        table = report.table()
        others = [
            (n, v, np.nan, np.nan)
            for name, values in outcome.results.items()
            if name != "chamfer"
            for n, v in values.items()
        ]
        if others:
            table = pd.concat([table, pd.DataFrame(others, columns=table.columns)])
        shown: dict[str, Any] = {"scores": table, "on": said}
        for title, frame in _items(outcome).items():
            if outcome.inputs.worst:
                shown[title] = frame.head(outcome.inputs.worst)
        return shown

    def picture(self, outcome: study.Outcome) -> Figure:
        """Distances of generated and of real rows, standardised by those of fresh real data."""
        from matplotlib.figure import Figure

        report: ChamferReport = outcome.result
        figure = Figure(figsize=(8, 3.5), layout="constrained")
        for ax, values, title in zip(figure.subplots(1, 2), (report.fidelity_z, report.coverage_z),
                                     ("generated to nearest real", "real to nearest generated"), strict=True):  # fmt: skip
            ax.hist(np.clip(values, -4, 8), bins=40)
            ax.axvline(0, color="grey", linewidth=1)
            ax.set(xlabel=f"{title}\n(standard deviations from fresh real data)", ylabel="rows")
        return figure

    def save(self, outcome: study.Outcome, directory: Path) -> None:
        """``scores.csv``, ``generated.csv`` (worst first) and ``real.csv`` (most missed first)."""
        outcome.result.table().to_csv(directory / "scores.csv", index=False)
        for title, frame in _items(outcome).items():
            frame.to_csv(directory / ("generated.csv" if "generated" in title else "real.csv"), index=False)


def _items(outcome: study.Outcome) -> dict[str, pd.DataFrame]:
    import pandas as pd

    report: ChamferReport = outcome.result
    found = {}
    for title, which, values, z in (("worst generated", "generated", report.fidelity_samples, report.fidelity_z),
                                    ("most missed real", "real", report.coverage_samples, report.coverage_z)):  # fmt: skip
        order = np.argsort(-values, kind="stable")
        frame = pd.DataFrame({"row": order, "distance": values[order], "z": z[order]})
        if which == "generated":
            frame["nearest real"] = report.nearest_real[order]
        if (names := outcome.problem[which]) is not None:
            frame.insert(1, "file", [names[i] for i in order])
        found[title] = frame
    return found


def _loaded(path: Path, extract: FeatureExtractor, features: str) -> tuple[Any, list[str] | None]:
    """Features of a .npy file or a folder, and the names of its files."""
    if path.is_dir():
        files = image_files(path)
        return extract(files), [file.name for file in files]
    array = np.load(path, allow_pickle=False)
    if array.ndim == 2:
        if features != "raw":
            raise ValueError(
                f"--features: got {features!r}, but {path} holds {array.shape[1]} features a row, not images; leave it out"
            )
        return array, None
    return extract(array), None
