"""Events from images, as a camera that sees change would give them while it makes three small movements."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike


def saccade_events(
    images: ArrayLike,
    *,
    bins: int = 12,
    zoom: int = 2,
    amplitude: float = 2.0,
    threshold: float = 0.1,
    substeps: int = 2,
) -> np.ndarray:
    """ON and OFF events of images seen through three micro-saccades along a triangle (the recipe of N-MNIST).

    Parameters
    ----------
    images : array_like
        [N, H, W], intensities in [0, 1].
    bins : int
        Time steps, a multiple of 3.
    zoom : int
        Pixels of the sensor for each one of the image, a side (bilinear).
    amplitude : float
        Length of each movement in pixels of the sensor.
    threshold : float
        Change of the logarithm of (intensity + 0.1) that makes an event.
    substeps : int
        Positions looked at in each bin.

    Returns
    -------
    ndarray of float32
        [N, bins, 2, zoom H, zoom W]: 1 where a pixel gave one event or more in the bin; channel 0 is ON, 1 OFF.
    """
    images = np.asarray(images, dtype=np.float64)
    if images.ndim != 3 or not np.isfinite(images).all() or images.min() < 0 or images.max() > 1:
        raise ValueError(f"images: got shape {images.shape}; expected [N, H, W] with numbers from 0 to 1")
    if bins < 3 or bins % 3:
        raise ValueError(f"bins: got {bins}; expected a multiple of 3")
    side = amplitude / 2
    corners = np.array([[0.0, 0.0], [side, amplitude], [-side, amplitude], [0.0, 0.0]])
    each = bins // 3 * substeps
    path = np.concatenate([np.linspace(a, b, each + 1)[1:] for a, b in pairwise(corners)])
    height, width = images.shape[1] * zoom, images.shape[2] * zoom
    events = np.zeros((len(images), bins, 2, height, width), np.float32)
    reference = np.log(_seen(images, zoom, corners[0]) + 0.1)
    for k, where in enumerate(path):
        change = np.log(_seen(images, zoom, where) + 0.1) - reference
        crossed = np.trunc(change / threshold)
        reference += crossed * threshold
        events[:, k // substeps, 0] += crossed > 0
        events[:, k // substeps, 1] += crossed < 0
    return np.minimum(events, 1)


def _seen(images: np.ndarray, zoom: int, shift: np.ndarray) -> np.ndarray:
    """The images on the finer grid of the sensor, moved by (x, y) of its pixels, dark outside; bilinear."""
    height, width = images.shape[1:]
    rows = (np.arange(height * zoom) + 0.5 - shift[1]) / zoom - 0.5
    columns = (np.arange(width * zoom) + 0.5 - shift[0]) / zoom - 0.5
    return _weights(rows, height) @ images @ _weights(columns, width).T


def _weights(at: np.ndarray, size: int) -> np.ndarray:
    """Linear interpolation at places ``at`` as a matrix [len(at), size]."""
    return np.maximum(0.0, 1 - np.abs(at[:, None] - np.arange(size)[None]))
