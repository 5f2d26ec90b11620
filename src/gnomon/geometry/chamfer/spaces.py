"""What the study measures on: real images and their features, and samples made worse by known steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon import datasets
from gnomon.geometry.chamfer.features import FeatureExtractor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

SPACES = ("pixels", "cnn", "efficientnet", "digits", "photos")
PHOTOGRAPHS = ("astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "grass.png",
               "gravel.png", "hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png", "retina.jpg",
               "rocket.jpg")  # fmt: skip
LEVELS = 6  # of each ladder; level 0 changes nothing


@dataclass(frozen=True)
class Parts:
    """Disjoint random parts of a data set: reference R, hold-out H, fresh rows V, and the rest T."""

    R: Any
    H: Any
    V: Any
    T: Any

    def map(self, function: Callable[[Any], Any]) -> Parts:
        return Parts(*(function(part) for part in (self.R, self.H, self.V, self.T)))


def images(space: str) -> tuple[Array, NDArray[np.int64]]:
    """All images of a space in [0, 1], shape (n, height, width), and labels (photographs: which one)."""
    if space == "digits":
        from sklearn.datasets import load_digits

        found: Any = load_digits()
        return found.images.astype(np.float32) / 16, found.target.astype(np.int64)
    if space == "photos":
        return _patches()
    digits, labels = datasets.mnist()
    return digits.reshape(-1, 28, 28).astype(np.float32) / np.float32(255), labels


def _patches() -> tuple[Array, NDArray[np.int64]]:
    """Grey 28 x 28 patches on a grid, so that no two share a pixel; at most 400 of a photograph."""
    from PIL import Image

    folder = datasets.package_dir("skimage", "scikit-image") / "data"
    found: list[Any] = []
    labels: list[Any] = []
    for label, name in enumerate(PHOTOGRAPHS):
        grey = np.asarray(Image.open(folder / name).convert("L"), dtype=np.float32) / 255
        height, width = (s // 28 for s in grey.shape)
        patches = grey[: 28 * height, : 28 * width].reshape(height, 28, width, 28).swapaxes(1, 2).reshape(-1, 28, 28)
        kept = np.random.default_rng(label).permutation(len(patches))[:400]
        found.append(patches[kept])
        labels.append(np.full(len(kept), label))
    return np.concatenate(found), np.concatenate(labels)


def extractor(space: str) -> FeatureExtractor:
    """The feature map of a space."""
    names = {"cnn": "mnist_cnn", "efficientnet": "efficientnet_lite0"}
    return FeatureExtractor(names.get(space, "raw"), cache=False)


def split(n: int, rows: int, rng: np.random.Generator) -> Parts:
    """Indices of three disjoint parts of ``rows`` (or a third of what there is) and of the rest."""
    rows = min(rows, n // 3)
    order = rng.permutation(n)
    return Parts(order[:rows], order[rows : 2 * rows], order[2 * rows : 3 * rows], order[3 * rows :])


# --- ladders ---------------------------------------------------------------------------------------------------------


def blur(X: Array, level: int, rng: np.random.Generator) -> Array:
    """Gaussian blur, standard deviation 0 to 2 pixels of a 28-pixel image."""
    from scipy.ndimage import gaussian_filter

    sigma = 2.0 * level / (LEVELS - 1) * X.shape[-1] / 28
    return gaussian_filter(X, (0, sigma, sigma)) if level else X


def noise(X: Array, level: int, rng: np.random.Generator) -> Array:
    """Gaussian noise, standard deviation 0 to 0.4, clipped to [0, 1]."""
    return np.clip(X + 0.4 * level / (LEVELS - 1) * rng.normal(size=X.shape), 0, 1).astype(np.float32) if level else X


def occlusion(X: Array, level: int, rng: np.random.Generator) -> Array:
    """A black square at a random place, side 0 to half of the image."""
    side = round(0.5 * X.shape[-1] * level / (LEVELS - 1))
    out = X.copy()
    for image in out:
        i, j = rng.integers(0, X.shape[-1] - side + 1, size=2)
        image[i : i + side, j : j + side] = 0
    return out


def label_drop(labels: NDArray[np.int64], level: int, m: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """m rows (repeated only if they must be) without the first 0, 1, 2, 3, 5 or 7 of the classes, in random order."""
    classes = rng.permutation(np.unique(labels))
    kept = np.flatnonzero(np.isin(labels, classes[(0, 1, 2, 3, 5, 7)[level] :]))
    return rng.choice(kept, m, replace=len(kept) < m)


def prototypes(labels: NDArray[np.int64], level: int, m: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """m rows, from all of them down to 10 distinct ones."""
    q = (m, 300, 150, 75, 30, 10)[level]
    chosen = rng.choice(len(labels), min(q, len(labels)), replace=False)
    return chosen if level == 0 else rng.choice(chosen, m)


CORRUPTIONS = {"blur": blur, "noise": noise, "occlusion": occlusion}
SELECTIONS = {"label drop": label_drop, "prototypes": prototypes}
