"""Sampling error of optimal transport before any solver: intrinsic dimension, rows needed, distances without bias.

Use it when Wasserstein distances are computed from samples (generative models, domain shift, single cells): how far a
sample is from its population, how many rows an error needs, the intrinsic dimension with its interval, the Sinkhorn
regularisation that fits the sample, and the distance with the sampling bias extrapolated away. Below dimension 4 the
plain distance is good already; above 30 the extrapolation mostly amplifies noise, which is said.
"""

from gnomon.geometry.ot_sampling.dimension import Curve, IntrinsicDimension
from gnomon.geometry.ot_sampling.distance import CalibratedSinkhorn, RichardsonWasserstein
from gnomon.geometry.ot_sampling.error import SampleSize, SamplingError, required_samples, sampling_error

__all__ = [
    "CalibratedSinkhorn",
    "Curve",
    "IntrinsicDimension",
    "RichardsonWasserstein",
    "SampleSize",
    "SamplingError",
    "required_samples",
    "sampling_error",
]
