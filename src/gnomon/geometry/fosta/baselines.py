"""What FoSTA is compared with: other semantics, other couplings, joint projections, and simple maps.

Every aligner takes ``(XA, XB, yA, yB)`` with NaN for unlabelled rows, and gives the embedding of A's rows, then B's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse.csgraph import shortest_path
from sklearn.metrics import euclidean_distances

from gnomon.geometry.fosta import embedding, transport
from gnomon.geometry.fosta.embedding import JointAffinity
from gnomon.geometry.fosta.forest import ForestKernel
from gnomon.geometry.fosta.labels import UNLABELLED, encode, one_hot
from gnomon.geometry.fosta.method import FoSTA
from gnomon.geometry.neighbors import knn

Array = NDArray[np.float64]
NEIGHBOURS = 10


class Variant:
    """FoSTA with other options; forests that are grown already may be handed over."""

    def __init__(self, **options: Any):
        self.options = options

    def __call__(self, XA: Any, XB: Any, yA: Any, yB: Any, *, n_components: int, random_state: int,
                 kernels: list[ForestKernel] | None = None, n_estimators: int = 300) -> Array:  # fmt: skip
        model = _Prepared(n_estimators, n_components=n_components, random_state=random_state, **self.options)
        model.grown = kernels if model.kernel == "gap" else None
        return model.fit_transform(XA, XB, yA, yB)


class _Prepared(FoSTA):
    grown: list[ForestKernel] | None = None

    def _kernel(self, X: Any, y: Any, name: str, seed: int) -> ForestKernel:
        if self.grown is None:
            return super()._kernel(X, y, name, seed)
        return self.grown["AB".index(name)]


fosta = Variant()
mali = Variant(kernel="euclidean", propagation="dpt", solver="exact")
euclidean = Variant(kernel="euclidean")
exact = Variant(solver="exact")
no_prior = Variant(prior_correct=False)


# --- forest kernels with another coupling ----------------------------------------------------------------------------


def _grown(
    XA: Any, XB: Any, yA: Any, yB: Any, random_state: int, kernels: Any, n_estimators: int
) -> list[ForestKernel]:
    return kernels or [ForestKernel(n_estimators, random_state=random_state).fit(X, y) for X, y in ((XA, yA), (XB, yB))]


def laid_out(kernels: list[Any], plan: Any, n_components: int, seed: int) -> Array:
    """The joint affinity of two kernels and a coupling, embedded as FoSTA does."""
    W = JointAffinity(kernels, [sparse.csr_array(plan)])
    return embedding.phate(W, n_components, rng=np.random.default_rng(seed)).embedding


def random_coupling(XA: Any, XB: Any, yA: Any, yB: Any, *, n_components: int, random_state: int,
                    kernels: Any = None, n_estimators: int = 300) -> Array:  # fmt: skip
    """FoSTA with rows coupled at random: what the within-domain kernels give alone."""
    a, b = _grown(XA, XB, yA, yB, random_state, kernels, n_estimators)
    noise = np.random.default_rng(random_state)
    plan = transport.semantic_coupling(*(noise.random((len(k.codes_), 3)) for k in (a, b)), random_state=noise)
    return laid_out([a.kernel_, b.kernel_], plan, n_components, random_state)


def predict_proba(XA: Any, XB: Any, yA: Any, yB: Any, *, n_components: int, random_state: int,
                  kernels: Any = None, n_estimators: int = 300) -> Array:  # fmt: skip
    """FoSTA with the forests' (out-of-bag) class probabilities in place of kernel sums."""
    a, b = _grown(XA, XB, yA, yB, random_state, kernels, n_estimators)
    shared = np.intersect1d(a.classes_, b.classes_)
    vectors = []
    for k in (a, b):
        own = np.searchsorted(k.classes_, shared)
        shares = k.votes()[:, own] / (one_hot(k.codes_, own).sum(0) / (k.codes_ >= 0).sum())
        vectors.append(shares / np.maximum(np.linalg.norm(shares, axis=1, keepdims=True), 1e-300))
    plan = transport.semantic_coupling(*vectors, random_state=random_state)
    return laid_out([a.kernel_, b.kernel_], plan, n_components, random_state)


# --- transport on Euclidean graphs -----------------------------------------------------------------------------------


def dta(XA: Any, XB: Any, yA: Any, yB: Any, *, n_components: int, random_state: int) -> Array:
    """Diffusion transport alignment with classes as anchors: exact transport between diffused class profiles.

    The profile of a row is the chance of standing on each class's labelled rows after t steps (t at the knee of the
    entropy) of a walk on the alpha-decay graph.
    """
    kernels, profiles = [], []
    classes = np.unique(np.concatenate([encode(yA)[1], encode(yB)[1]]))
    for X, y in ((XA, yA), (XB, yB)):
        kernel = ForestKernel(kernel="euclidean").fit(X, y)
        P, eigenvalues = embedding.walk(kernel.kernel_.toarray(), 1.0)
        t = embedding.knee(embedding.von_neumann_entropy(eigenvalues))
        profile = np.linalg.matrix_power(P, t) @ _indicator(y, classes)
        profiles.append(profile / np.maximum(np.linalg.norm(profile, axis=1, keepdims=True), 1e-300))
        kernels.append(kernel.kernel_)
    plan = transport.semantic_coupling(*profiles, solver="exact", random_state=random_state)
    return laid_out(kernels, plan, n_components, random_state)


def gromov(XA: Any, XB: Any, yA: Any, yB: Any, *, n_components: int, random_state: int) -> Array:
    """Gromov-Wasserstein between geodesic distances, without labels; affinity and embedding as in FoSTA."""
    import ot

    geodesics = [geodesic(X) for X in (XA, XB)]
    n, m = (len(C) for C in geodesics)
    plan = ot.gromov.gromov_wasserstein(*geodesics, np.full(n, 1 / n), np.full(m, 1 / m), "square_loss", max_iter=200)
    kernels = [ForestKernel(kernel="euclidean").fit(X, y).kernel_ for X, y in ((XA, yA), (XB, yB))]
    return laid_out(kernels, n * plan, n_components, random_state)


def pamona(XA: Any, XB: Any, yA: Any, yB: Any, *, n_components: int, random_state: int, mass: float = 0.9) -> Array:
    """Partial Gromov-Wasserstein between geodesic distances with labels as a prior, then a joint Laplacian map.

    The prior is a cost of pairs: 0 for equal known labels, 1 for different ones, 1/2 where one is unknown.
    """
    same, differ = _agreement(yA, yB)
    plan = partial_gromov(geodesic(XA), geodesic(XB), 0.5 + 0.5 * differ - 0.5 * same, mass)
    links = len(XA) / mass * plan
    return _laplacian_map(np.block([[neighbour_graph(XA), links], [links.T, neighbour_graph(XB)]]), _dimensions(yA, yB))


def partial_gromov(C1: Array, C2: Array, prior: Array, mass: float, alpha: float = 0.5, rounds: int = 15) -> Array:
    """A plan of the given mass between uniform marginals that nearly minimises Gromov-Wasserstein plus prior.

    alpha sum (C1_ik - C2_jl)^2 G_ij G_kl + (1 - alpha) sum prior_ij G_ij by conditional gradient: POT's solvers of this
    problem stop with an error or take minutes here.
    """
    import ot

    n, m = prior.shape
    a, b = np.append(np.full(n, 1 / n), 1 - mass), np.append(np.full(m, 1 / m), 1 - mass)

    def slope(G: Array) -> Array:
        return 2 * alpha * ((C1**2 @ G.sum(1))[:, None] + C2**2 @ G.sum(0) - 2 * C1 @ G @ C2)

    G = np.full((n, m), mass / (n * m))
    for _ in range(rounds):
        gradient = slope(G) + (1 - alpha) * prior
        cost = np.zeros((n + 1, m + 1))
        cost[:n, :m] = gradient - gradient.min()
        cost[n, m] = 10 * cost.max() + 1.0  # what is left over goes to the dummies, never between them
        step = np.asarray(ot.emd(a, b, cost, numItermax=1_000_000))[:n, :m] - G
        first, second = float((gradient * step).sum()), float((slope(step) * step).sum()) / 2
        if first > -1e-9:
            break
        G = G + (min(1.0, -first / (2 * second)) if second > 0 else 1.0) * step
    return G


def geodesic(X: Any) -> Array:
    """Shortest paths on the graph of nearest neighbours, over the largest; parts that do not hang together are 1 apart."""
    distance, index = knn(X, k=min(NEIGHBOURS, len(X) - 1))
    rows = np.repeat(np.arange(len(X)), distance.shape[1])
    graph = sparse.csr_array((np.maximum(distance.ravel(), 1e-12), (rows, index.ravel())), shape=(len(X), len(X)))
    paths = shortest_path(graph, directed=False)
    paths[~np.isfinite(paths)] = paths[np.isfinite(paths)].max()
    return np.asarray(paths / paths.max())


# --- joint projections -----------------------------------------------------------------------------------------------


def sma(XA: Any, XB: Any, yA: Any, yB: Any, *, n_components: int, random_state: int, weight: float = 3.0) -> Array:
    """Semi-supervised manifold alignment: Laplacian map of both neighbour graphs, with ties between equal labels.

    In C - 1 dimensions, whatever is asked for: further ones show one domain alone. The weight suits the split "noise".
    """
    same, _ = _agreement(yA, yB)
    ties = weight * same / max(same.sum(1).mean(), 1.0)  # as strong as a row's own graph
    return _laplacian_map(np.block([[neighbour_graph(XA), ties], [ties.T, neighbour_graph(XB)]]), _dimensions(yA, yB))


def kema(kernel: str, mu: float = 10.0) -> Callable[..., Array]:
    """Kernel manifold alignment with a linear or Gaussian ("rbf") kernel.

    Directions of the joint kernel space that spread different labels most while they keep neighbours and equal labels
    together: K L_d K v = lambda K (L + mu L_s) K v; C - 1 of them, whatever is asked for (L_d tells no more apart). The
    weight suits the split "noise".
    """

    def align(XA: Any, XB: Any, yA: Any, yB: Any, *, n_components: int, random_state: int) -> Array:
        K = linalg.block_diag(*(_gram(X, kernel) for X in (XA, XB)))
        K *= len(K) / np.trace(K)
        labels = np.concatenate([np.asarray(yA, dtype=float), np.asarray(yB, dtype=float)])
        same, differ = _agreement(labels, labels)
        graph = linalg.block_diag(neighbour_graph(XA), neighbour_graph(XB))
        keep, spread = K @ (_laplacian(graph) + mu * _laplacian(same)) @ K, K @ _laplacian(differ) @ K
        keep += 1e-3 * np.trace(keep) / len(keep) * np.eye(len(keep))
        n, width = len(K), _dimensions(yA, yB)
        _, vectors = linalg.eigh((spread + spread.T) / 2, (keep + keep.T) / 2, subset_by_index=(n - width, n - 1))
        return np.asarray(K @ vectors[:, ::-1])

    return align


def procrustes(XA: Any, XB: Any, yA: Any, yB: Any, *, n_components: int, random_state: int) -> Array:
    """Principal components of each domain; B's are shifted, turned and scaled so that its class means meet A's."""
    from sklearn.decomposition import PCA

    width = min(n_components, XA.shape[1], XB.shape[1])
    A, B = (PCA(width).fit_transform(X) for X in (XA, XB))
    shared = np.intersect1d(encode(yA)[1], encode(yB)[1])
    means = [np.stack([Z[np.asarray(y, dtype=float) == c].mean(0) for c in shared]) for Z, y in ((A, yA), (B, yB))]
    centres = [M.mean(0) for M in means]
    left, right = (M - c for M, c in zip(means, centres, strict=True))
    turn, scale = linalg.orthogonal_procrustes(right, left)
    moved = (B - centres[1]) @ turn * (scale / max((right**2).sum(), 1e-300)) + centres[0]
    return np.pad(np.vstack([A, moved]), ((0, 0), (0, n_components - width)))


def neighbour_graph(X: Any) -> Array:
    """Who is among whose ten nearest, rows summing to one on average."""
    index = knn(np.asarray(X, dtype=np.float64), k=min(NEIGHBOURS, len(X) - 1))[1]
    W = np.zeros((len(X), len(X)))
    np.put_along_axis(W, index, 1.0, axis=1)
    W = np.maximum(W, W.T)
    return np.asarray(W / W.sum(1).mean())


def _dimensions(yA: Any, yB: Any) -> int:
    return max(1, len(np.union1d(encode(yA)[1], encode(yB)[1])) - 1)


def _gram(X: Any, kernel: str) -> Array:
    X = np.asarray(X, dtype=np.float64)
    if kernel == "linear":
        centred = X - X.mean(0)
        return np.asarray(centred @ centred.T / X.shape[1])
    squared = euclidean_distances(X, squared=True)
    return np.asarray(np.exp(-squared / (2 * np.median(squared[squared > 0]))))


def _indicator(y: Any, classes: NDArray[Any]) -> Array:
    return (np.asarray(y, dtype=float)[:, None] == classes).astype(np.float64)


def _agreement(yA: Any, yB: Any) -> tuple[Array, Array]:
    """Pairs of equal and of different known labels."""
    a, b = np.asarray(yA, dtype=float)[:, None], np.asarray(yB, dtype=float)[None]
    known = np.isfinite(a) & np.isfinite(b) & (a != UNLABELLED) & (b != UNLABELLED)
    return (known & (a == b)).astype(np.float64), (known & (a != b)).astype(np.float64)


def _laplacian(W: Array) -> Array:
    """D - W of a graph scaled to a total weight of one."""
    W = W / max(W.sum(), 1e-300)
    return np.asarray(np.diag(W.sum(1)) - W)


def _laplacian_map(W: Array, n_components: int) -> Array:
    degree = np.maximum(W.sum(1), 1e-12)
    root = 1 / np.sqrt(degree)
    n = len(W)
    _, vectors = linalg.eigh(root[:, None] * W * root, subset_by_index=(n - n_components - 1, n - 1))
    return np.asarray(vectors[:, ::-1][:, 1:] * root[:, None])


ALIGNERS: dict[str, Any] = {
    "fosta": fosta, "MALI": mali, "Euclidean": euclidean, "exact": exact, "random coupling": random_coupling,
    "no prior": no_prior, "predict_proba": predict_proba, "DTA": dta, "SMA": sma, "KEMA linear": kema("linear"),
    "KEMA RBF": kema("rbf"), "Pamona": pamona, "GW": gromov, "Procrustes": procrustes,
}  # fmt: skip
FORESTED = ("fosta", "exact", "random coupling", "no prior", "predict_proba")
