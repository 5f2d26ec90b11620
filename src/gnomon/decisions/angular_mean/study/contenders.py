"""The rules as contenders: an electorate in, a direction out (or, of a lottery, directions and their chances)."""

from __future__ import annotations

import numpy as np

from gnomon.decisions.angular_mean import baselines
from gnomon.decisions.angular_mean.method import AngularMean
from gnomon.decisions.angular_mean.solvers import descend
from gnomon.decisions.angular_mean.sphere import unit
from gnomon.decisions.angular_mean.study.material import Electorate
from gnomon.decisions.angular_mean.voters import as_covariance, as_types

Array = np.ndarray
Rule = Array | tuple[Array, Array]

FEW = 20  # types up to which leximin is searched for; beyond, it is the max-min rule to 1e-4
STARTS = 8  # of the max-min rule: those with the largest least slack


def angular_mean(e: Electorate) -> Rule:
    return AngularMean().fit(e.vectors, sample_weight=e.weights).coef_


def angular_mean_whitened(e: Electorate) -> Rule:
    return AngularMean(covariance="empirical").fit(e.vectors, sample_weight=e.weights, items=e.items).coef_


def one_start(e: Electorate) -> Rule:
    """A stationary point of the same objective: descent from the mean alone."""
    types = as_types(e.vectors, e.weights)
    start = unit(types.weights @ types.vectors)[None]
    return descend(types.vectors, types.weights, start, 1e-10, np.random.default_rng(0)).theta


def arithmetic_mean(e: Electorate) -> Rule:
    return baselines.arithmetic_mean(e.vectors, e.weights)


def normalized_mean(e: Electorate) -> Rule:
    return baselines.normalized_mean(e.vectors, e.weights)


def heaviest(e: Electorate) -> Rule:
    return baselines.heaviest(e.vectors, e.weights)


def random_dictator(e: Electorate) -> Rule:
    types = as_types(e.vectors, e.weights)
    return types.vectors, types.weights


def kemeny(e: Electorate) -> Rule:
    """The geodesic median: isotropic items."""
    return baselines.geodesic_median(e.vectors, e.weights)


def kemeny_whitened(e: Electorate) -> Rule:
    covariance = as_covariance(np.cov(e.items, rowvar=False), e.vectors.shape[1])  # type: ignore[arg-type]
    return baselines.kemeny_rule(e.vectors, e.weights, covariance=covariance)


def coordinate_median(e: Electorate) -> Rule:
    return baselines.coordinate_median(e.vectors, e.weights)


def max_min_slack(e: Electorate) -> Rule:
    return baselines.max_min_slack(e.vectors, e.weights, max_starts=STARTS)


def leximin(e: Electorate) -> Rule | None:
    return baselines.leximin(e.vectors, e.weights, max_starts=STARTS) if len(e.vectors) <= FEW else None


CONTENDERS = {
    "angular mean": angular_mean,
    "arithmetic mean": arithmetic_mean,
    "normalised mean": normalized_mean,
    "heaviest voter": heaviest,
    "random dictator": random_dictator,
    "Kemeny (geodesic median)": kemeny,
    "coordinate median": coordinate_median,
    "max-min slack": max_min_slack,
    "leximin slack": leximin,
}
WHITENED = {"angular mean, whitened": angular_mean_whitened, "Kemeny, whitened": kemeny_whitened}
