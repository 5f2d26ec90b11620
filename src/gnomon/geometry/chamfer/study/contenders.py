"""Contenders: functions of (reference, hold-out, training rows or None, seed) that give a function from a sample to named values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gnomon import study
from gnomon.geometry.chamfer import baselines
from gnomon.geometry.chamfer.method import ChamferMetric
from gnomon.geometry.neighbors import cross_neighbors

Scorer = Callable[[Any], Mapping[str, float]]
Contender = Callable[[Any, Any, Any, int], Scorer]


def chamfer(real: Any, holdout: Any, train: Any, seed: int) -> Scorer:
    metric = ChamferMetric(random_state=seed).fit(real, holdout=holdout, train=train)

    def score(sample: Any) -> dict[str, float]:
        report = metric.score(sample)
        ends = {f"{name}_{end}": report.intervals[f"{name}_ratio"][i]
                for name in ("fidelity", "coverage") for i, end in enumerate(("low", "high"))}  # fmt: skip
        copies = {} if report.copy_ratio is None else {"copy_ratio": report.copy_ratio}
        return {"fidelity_ratio": report.fidelity_ratio, "coverage_ratio": report.coverage_ratio, **ends,
                "fidelity_trimmed": report.fidelity_ratio_trimmed, "p_value": report.p_value, "hubness": report.hubness,
                **copies}  # fmt: skip

    return score


def _frechet(real: Any, holdout: Any, train: Any, seed: int) -> Scorer:
    trace = float(np.var(real, axis=0, ddof=1).sum())

    def score(sample: Any) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # ranks are deficient here by design
            fd = baselines.fid(real, sample)
        return {"fd": fd, "fd_share": abs(fd) / trace}

    return score


def balls(real: Any, holdout: Any, train: Any, seed: int) -> Scorer:
    k = 5
    around_real = baselines.ball_radii(real, k, "real")

    def score(sample: Any) -> dict[str, float]:
        around = baselines.ball_radii(sample, k, "sample")
        found = cross_neighbors(real, sample, radius_x=around_real, radius_y=around)
        values = baselines.prdc_from(found, around_real, k)
        values["ball_coverage"] = values.pop("coverage")
        return values

    return score


def _one(name: str, metric: Callable[[Any, Any], Any]) -> Contender:
    return lambda real, holdout, train, seed: lambda sample: {name: float(metric(real, sample))}


def _two(names: tuple[str, str], metric: Callable[[Any, Any], tuple[float, float]]) -> Contender:
    return lambda real, holdout, train, seed: lambda sample: dict(zip(names, metric(real, sample), strict=True))


MAIN: dict[str, Contender] = {"chamfer": chamfer, "FD": _frechet, "balls": balls}
ALL: dict[str, Contender] = {
    **MAIN,
    "FD infinity": _one("fd_infinity", lambda R, G: baselines.fid_infinity(R, G, random_state=0)),
    "KID": _one("kid", baselines.kid),
    "CMMD": _one("cmmd", baselines.cmmd),
    "sliced W2": _one("sliced_w2", lambda R, G: baselines.sliced_w2(R, G, n_projections=128, random_state=0)),
    "soft balls": _two(("p_precision", "p_recall"), baselines.p_precision_recall),
    "clipped balls": _two(("clipped_density", "clipped_coverage"), baselines.clipped_density_coverage),
}
# what a sweep looks at, and which way is worse
WORSE = {"fidelity_ratio": 1, "coverage_ratio": 1, "fd": 1, "fd_infinity": 1, "kid": 1, "cmmd": 1, "sliced_w2": 1,
         "precision": -1, "recall": -1, "density": -1, "ball_coverage": -1, "p_precision": -1, "p_recall": -1,
         "clipped_density": -1, "clipped_coverage": -1}  # fmt: skip
METRICS = {
    "fidelity_ratio": study.lower(), "coverage_ratio": study.lower(), "fidelity_trimmed": study.lower(),
    "copy_ratio": study.higher(), "fd": study.lower(), "precision": study.higher(), "recall": study.higher(),
    "density": study.higher(), "ball_coverage": study.higher(),
}  # fmt: skip


def swept(values: Mapping[str, float]) -> list[tuple[str, float]]:
    """(name, value with larger meaning worse); a name that is not known is taken as lower is better."""
    aside = {"fidelity_low", "fidelity_high", "coverage_low", "coverage_high", "fidelity_trimmed", "p_value", "hubness",
             "copy_ratio", "fd_share"}  # fmt: skip
    return [(name, WORSE.get(name, 1) * value) for name, value in values.items() if name not in aside]
