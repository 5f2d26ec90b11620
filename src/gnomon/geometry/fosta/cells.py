"""Single cells: batches with a known and with a real effect, corrections to compare with, and scores of integration."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon import datasets
from gnomon.geometry.fosta.method import FoSTA
from gnomon.geometry.neighbors import knn

Array = NDArray[np.float64]
COMPONENTS = 10  # of every embedding
ABSENT = "CD19+ B"
COARSE = {"CD19+ B": "B", "CD56+ NK": "NK", "CD14+ Monocyte": "monocyte", "Dendritic": "dendritic",
          **dict.fromkeys(("CD4+/CD25 T Reg", "CD8+ Cytotoxic T", "CD8+/CD45RA+ Naive Cytotoxic", "CD4+/CD45RO+ Memory", "CD4+/CD45RA+/CD25- Naive T"), "T")}  # fmt: skip
MARKERS = {"B": ("CD79A", "CD79B", "MS4A1"), "T": ("CD3D", "CD3E", "CD3G", "IL7R"), "NK": ("GNLY", "NKG7", "PRF1", "GZMB"),
           "monocyte": ("LYZ", "S100A8", "S100A9", "FCN1"), "dendritic": ("FCER1A", "CLEC10A", "CST3", "HLA-DRA")}  # fmt: skip


@dataclass
class Batches:
    """Cells of two batches.

    Attributes
    ----------
    X : ndarray, shape (n, genes)
        Log-normalised expression.
    batch : ndarray of int, shape (n,)
    given : ndarray of object
        Labels that a method may see, None elsewhere.
    truth : ndarray of object
        All labels ("real" batches: the type whose markers stand out most).
    scored : ndarray of bool
        Cells whose labels no method saw.
    """

    X: Array
    batch: NDArray[np.int64]
    given: NDArray[Any]
    truth: NDArray[Any]
    scored: NDArray[np.bool_]
    seed: int


def _reduced() -> tuple[Array, NDArray[Any], NDArray[Any]]:
    """pbmc68k_reduced: log-normalised expression, labels and genes."""
    import anndata

    folder = datasets.package_dir("scanpy") / "datasets"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adata = anndata.read_h5ad(folder / "10x_pbmc68k_reduced.h5ad")
    raw = adata.raw
    return (
        raw.X.toarray().astype(np.float64),
        adata.obs["bulk_labels"].astype(object).to_numpy(),
        np.asarray(raw.var_names),
    )


def simulated(rng: np.random.Generator) -> Batches:
    """700 blood cells in two halves; the second gets gene-wise scales and shifts, dropout, and loses the B cells.

    Scales are log-normal with sd 0.3; 40 % of the genes shift by half their sd; 10 % of the entries become zero. Half of
    the labels of either batch are masked.
    """
    X, truth, _ = _reduced()
    batch = np.zeros(len(X), dtype=np.int64)
    batch[rng.permutation(len(X))[: len(X) // 2]] = 1
    second = batch == 1
    effect = X[second] * np.exp(rng.normal(0, 0.3, X.shape[1]))
    effect += 0.5 * X.std(0) * (rng.random(X.shape[1]) < 0.4)
    effect[rng.random(effect.shape) < 0.1] = 0.0
    X[second] = effect
    stay = ~(second & (truth == ABSENT))
    X, batch, truth = X[stay], batch[stay], truth[stay]
    scored = np.zeros(len(X), dtype=bool)
    scored[rng.permutation(len(X))[: len(X) // 2]] = True
    return Batches(X, batch, hide(truth, scored), truth, scored, int(rng.integers(2**31)))


def real(rng: np.random.Generator) -> Batches:
    """The 700 cells beside 559 immune cells of another laboratory (``GNOMON_DATA``), on the genes both have.

    The second batch has no labels: cells whose markers of one type stand out get it, half of these are kept back, and
    the rest stays unlabelled.
    """
    X, labels, genes = _reduced()
    with np.load(datasets.data_file("fosta", "immune_559.npz"), allow_pickle=False) as file:
        counts, total, names = file["counts"].astype(np.float64), file["total"].astype(np.float64), file["genes"]
    other = np.log1p(counts / total[:, None] * 1e4)
    place = {g: i for i, g in enumerate(genes)}
    common = np.array([g in place for g in names])
    X, other, names = X[:, [place[g] for g in names[common]]], other[:, common], names[common]
    best, margin = marker_types(other, names)
    sure = margin > np.quantile(margin, 0.5)
    kept = sure & (rng.random(len(sure)) < 0.5)
    first = np.array([COARSE.get(t) for t in labels], dtype=object)
    given = np.concatenate([first, hide(best, ~kept)])
    batch = np.repeat([0, 1], (len(X), len(other)))
    scored = np.concatenate([np.zeros(len(X), dtype=bool), sure & ~kept])
    return Batches(np.vstack([X, other]), batch, given, np.concatenate([first, best]), scored, int(rng.integers(2**31)))


def hide(labels: NDArray[Any], where: NDArray[np.bool_]) -> NDArray[Any]:
    """The labels with None in some places."""
    out = np.array(labels, dtype=object)
    out[where] = None
    return out


def marker_types(X: Array, genes: NDArray[Any]) -> tuple[NDArray[Any], Array]:
    """The type whose markers stand out most in each cell, and by how much over the next (in sd of a marker's mean)."""
    types = sorted(MARKERS)
    columns = [[i for i, g in enumerate(genes) if g in MARKERS[t]] for t in types]
    means = np.stack([X[:, c].mean(1) for c in columns], axis=1)
    score = (means - means.mean(0)) / np.maximum(means.std(0), 1e-12)
    ranked = np.sort(score, axis=1)
    return np.array(types, dtype=object)[score.argmax(1)], ranked[:, -1] - ranked[:, -2]


# --- corrections -----------------------------------------------------------------------------------------------------


def components(X: Array) -> Array:
    """Leading principal components."""
    from sklearn.decomposition import PCA

    return np.asarray(PCA(COMPONENTS, random_state=0).fit_transform(X))


def uncorrected(cells: Batches) -> Array:
    """Principal components as they are."""
    return components(cells.X)


def fosta(cells: Batches, n_estimators: int = 300) -> Array:
    """FoSTA on expression, with the labels that may be seen."""
    import pandas as pd
    from anndata import AnnData

    names = [str(i) for i in range(len(cells.X))]
    adata = AnnData(cells.X, obs=pd.DataFrame({"batch": cells.batch, "cell_type": cells.given}, index=names))
    FoSTA(n_estimators, n_components=COMPONENTS, random_state=cells.seed).fit_anndata(adata)
    return np.asarray(adata.obsm["X_fosta"])


def harmony(cells: Batches) -> Array:
    """harmonypy on principal components."""
    import harmonypy
    import pandas as pd

    logging.getLogger("harmonypy").setLevel(logging.WARNING)
    corrected = harmonypy.run_harmony(components(cells.X), pd.DataFrame({"batch": cells.batch.astype(str)}), "batch",
                                      random_state=cells.seed % 2**31, verbose=False)  # fmt: skip
    Z = np.asarray(corrected.Z_corr)
    return Z if len(Z) == len(cells.X) else Z.T


def combat(cells: Batches) -> Array:
    """scanpy's ComBat, then principal components."""
    import pandas as pd
    import scanpy
    from anndata import AnnData

    names = [str(i) for i in range(len(cells.X))]
    adata = AnnData(cells.X.copy(), obs=pd.DataFrame({"batch": pd.Categorical(cells.batch.astype(str))}, index=names))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scanpy.pp.combat(adata, key="batch")
    return components(np.nan_to_num(np.asarray(adata.X)))


def scanorama(cells: Batches) -> Array:
    """scanorama's integrated embedding."""
    import scanorama as peer

    genes = [str(g) for g in range(cells.X.shape[1])]
    parts = [cells.X[cells.batch == b] for b in np.unique(cells.batch)]
    found, _ = peer.integrate(parts, [genes] * len(parts), dimred=COMPONENTS, verbose=0, seed=cells.seed % 2**31)
    Z = np.empty((len(cells.X), COMPONENTS))
    for b, part in zip(np.unique(cells.batch), found, strict=True):
        Z[cells.batch == b] = part
    return Z


def bbknn(cells: Batches) -> Array:
    """The batch-balanced neighbour graph, by its leading normalised eigenvectors."""
    from bbknn import matrix
    from sklearn.manifold import spectral_embedding

    graph = matrix.bbknn(components(cells.X), cells.batch.astype(str))[1]
    return np.asarray(spectral_embedding(graph, n_components=COMPONENTS, random_state=0))


CORRECTIONS: dict[str, Callable[..., Array]] = {
    "fosta": fosta, "harmony": harmony, "combat": combat, "scanorama": scanorama, "BBKNN": bbknn, "uncorrected": uncorrected,
}  # fmt: skip


# --- scores ----------------------------------------------------------------------------------------------------------


def integration_scores(Z: Array, batch: NDArray[Any], labels: NDArray[Any], scored: NDArray[np.bool_],
                       neighbours: int = 90) -> dict[str, float]:  # fmt: skip
    """Batch and biology scores of scib, each in [0, 1], and 0.4 batch + 0.6 biology.

    Parameters
    ----------
    Z : ndarray, shape (n, d)
    batch, labels : ndarray, shape (n,)
    scored : ndarray of bool
        Cells on which biology (NMI, ARI, silhouette, cLISI) is scored; mixing is scored on all.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score

    names, codes = np.unique(labels.astype(str), return_inverse=True)
    inside, own = Z[scored], codes[scored]
    clusters = KMeans(len(np.unique(own)), n_init=10, random_state=0).fit_predict(inside)
    found = {
        "silhouette_batch": silhouette_batch(Z, codes, batch),
        "ilisi": (lisi(Z, batch, neighbours) - 1) / (len(np.unique(batch)) - 1),
        "graph_connectivity": graph_connectivity(Z, codes, neighbours),
        "nmi": float(normalized_mutual_info_score(own, clusters)),
        "ari": float(adjusted_rand_score(own, clusters)),
        "silhouette_label": (float(silhouette_score(inside, own)) + 1) / 2,
        "clisi": (len(np.unique(own)) - lisi(inside, own, neighbours)) / (len(np.unique(own)) - 1),
    }
    values = list(found.values())
    mixing, biology = float(np.mean(values[:3])), float(np.mean(values[3:]))
    return {
        **found,
        "mixing": mixing,
        "biology": biology,
        "aggregate": 0.4 * mixing + 0.6 * biology,
        "types": len(names),
    }


def lisi(Z: Array, groups: NDArray[Any], neighbours: int) -> float:
    """Median over cells of the effective number of groups among the neighbours (perplexity a third of their number)."""
    import pandas as pd
    from harmonypy import compute_lisi

    neighbours = min(neighbours, len(Z) - 1)
    frame = pd.DataFrame({"group": pd.Categorical(groups)})
    return float(np.median(compute_lisi(Z, frame, ["group"], perplexity=neighbours // 3)))


def silhouette_batch(Z: Array, labels: NDArray[Any], batch: NDArray[Any]) -> float:
    """One minus the mean absolute silhouette of the batches within a label, averaged over labels."""
    from sklearn.metrics import silhouette_samples

    found = []
    for c in np.unique(labels):
        rows = labels == c
        if 1 < len(np.unique(batch[rows])) < rows.sum():
            found.append(1 - np.abs(silhouette_samples(Z[rows], batch[rows])).mean())
    return float(np.mean(found))


def graph_connectivity(Z: Array, labels: NDArray[Any], neighbours: int) -> float:
    """Share of a label's cells in its largest strongly connected part of the neighbour graph, averaged over labels."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    index = knn(Z, k=min(neighbours, len(Z) - 1))[1]
    rows = np.repeat(np.arange(len(Z)), index.shape[1])
    graph = csr_array((np.ones(index.size), (rows, index.ravel())), shape=(len(Z), len(Z)))
    found = []
    for c in np.unique(labels):
        own = np.flatnonzero(labels == c)
        _, part = connected_components(graph[own][:, own], connection="strong")
        found.append(np.bincount(part).max() / len(own))
    return float(np.mean(found))


def separation(Z: Array, labels: NDArray[Any], kind: str) -> float:
    """Mean silhouette of one kind of cells against all others."""
    from sklearn.metrics import silhouette_samples

    is_kind = labels == kind
    return float(silhouette_samples(Z, is_kind)[is_kind].mean())
