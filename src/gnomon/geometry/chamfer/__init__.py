"""Chamfer: fidelity and coverage of generated samples from one-sided Chamfer distances in feature space.

Use it to judge an image, audio, text or molecule generator by features: how far generated rows are from real ones
(fidelity), how far real rows are from generated ones (coverage), each relative to what fresh real data gets, with
intervals, the worst and most missed items, and a test for copies; Frechet, kernel and ball metrics beside them.
"""

from gnomon.geometry.chamfer.baselines import (
    clipped_density_coverage,
    cmmd,
    fid,
    fid_infinity,
    kid,
    p_precision_recall,
    prdc,
    sliced_w2,
)
from gnomon.geometry.chamfer.diagnostics import (
    BallInflation,
    ball_inflation,
    dropped_modes,
    few_prototypes,
    memorised,
    midpoints,
    moment_matched,
    shell_noise,
    stability,
)
from gnomon.geometry.chamfer.features import FeatureExtractor
from gnomon.geometry.chamfer.method import (
    ChamferMetric,
    ChamferReport,
    GeneratorComparison,
    chamfer,
    compare_generators,
)

__all__ = [
    "BallInflation",
    "ChamferMetric",
    "ChamferReport",
    "FeatureExtractor",
    "GeneratorComparison",
    "ball_inflation",
    "chamfer",
    "clipped_density_coverage",
    "cmmd",
    "compare_generators",
    "dropped_modes",
    "few_prototypes",
    "fid",
    "fid_infinity",
    "kid",
    "memorised",
    "midpoints",
    "moment_matched",
    "p_precision_recall",
    "prdc",
    "shell_noise",
    "sliced_w2",
    "stability",
]
