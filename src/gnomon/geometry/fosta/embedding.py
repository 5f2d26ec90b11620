"""One embedding of all rows: the joint affinity as an operator, and PageRank-PHATE on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse.linalg import LinearOperator
from sklearn.metrics import euclidean_distances

from gnomon.geometry.fosta.forest import Kernel

Array = NDArray[np.float64]
LANDMARKS = 2000
MOST_STEPS = 100
FLOOR = 1e-7  # added to probabilities before the logarithm
CHUNK = 1000


class JointAffinity(LinearOperator):
    r"""Within-domain kernels and the couplings between them, as one symmetric operator.

    .. math:: W = \begin{bmatrix} \alpha K_a & \mu (K_a T + T K_b) / 2 \\ \cdot & \alpha K_b \end{bmatrix}

    This is (W + W') / 2 of the paper's W = [[K_a, mu K_a T], [mu K_b T', K_b]] (alpha = 1), and of its first version
    (alpha = 1 - mu). The first domain is the reference; every other one is coupled to it.

    Parameters
    ----------
    kernels : list of Kernel
        The reference first.
    couplings : list of csr_array, shape (n_0, n_k)
        For each domain but the first.
    mu : float
        Weight between domains.
    own : float
        Weight alpha within domains.
    """

    def __init__(self, kernels: list[Kernel], couplings: list[sparse.csr_array], mu: float = 1.0, own: float = 1.0):
        self.kernels, self.mu, self.own = kernels, mu, own
        self.couplings = [sparse.csr_array(T) for T in couplings]
        self.bounds = np.cumsum([0, *(K.shape[0] for K in kernels)])
        super().__init__(np.float64, (self.bounds[-1], self.bounds[-1]))

    def _adjoint(self) -> JointAffinity:
        return self

    def _matvec(self, v: Array) -> Array:
        return self._matmat(v.reshape(-1, 1))

    def _matmat(self, V: Array) -> Array:
        parts = [V[a:b] for a, b in zip(self.bounds, self.bounds[1:], strict=False)]
        images = [K @ part for K, part in zip(self.kernels, parts, strict=True)]
        out = [self.own * image for image in images]
        for k, T in enumerate(self.couplings, 1):
            out[0] += self.mu / 2 * (self.kernels[0] @ (T @ parts[k]) + T @ images[k])
            out[k] += self.mu / 2 * (T.T @ images[0] + self.kernels[k] @ (T.T @ parts[0]))
        return np.concatenate(out)

    def toarray(self) -> Array:
        """All N x N entries."""
        out = np.zeros(self.shape)
        dense = [K.toarray() for K in self.kernels]
        for k, K in enumerate(dense):
            here = slice(self.bounds[k], self.bounds[k + 1])
            out[here, here] = self.own * K
            if k:
                T = self.couplings[k - 1]
                block = self.mu / 2 * (np.asarray(dense[0] @ T) + np.asarray(T @ K))
                out[: self.bounds[1], here], out[here, : self.bounds[1]] = block, block.T
        return out

    def columns(self, chosen: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Array]]:
        """Dense pieces of ``W[:, chosen]``: (rows, block), ``chosen`` ascending."""
        ends = np.searchsorted(chosen, self.bounds)
        own = [chosen[a:b] - first for a, b, first in zip(ends, ends[1:], self.bounds, strict=False)]
        picks = [sparse.csr_array((np.ones(len(c)), (c, np.arange(len(c)))), shape=(K.shape[0], len(c)))
                 for K, c in zip(self.kernels, own, strict=True)]  # fmt: skip
        direct = [K.prepared(pick) for K, pick in zip(self.kernels, picks, strict=True)]
        # K_0 T_k E_k and K_k T_k' E_0: kernels times what the couplings make of the chosen columns
        across = [(self.kernels[0].prepared(T[:, own[k]]), self.kernels[k].prepared(T.T.tocsr()[:, own[0]]))
                  for k, T in enumerate(self.couplings, 1)]  # fmt: skip

        def mapped(k: int, links: Any) -> Any:  # links @ (K_k E_k), for the few rows that the links touch
            touched = np.unique(links.indices)
            return links[:, touched] @ self.kernels[k].rows_times(touched, direct[k])

        for k, K in enumerate(self.kernels):
            for rows in np.array_split(np.arange(K.shape[0]), -(-K.shape[0] // CHUNK)):
                block = np.zeros((len(rows), len(chosen)))
                block[:, ends[k] : ends[k + 1]] = self.own * K.rows_times(rows, direct[k]).toarray()
                if k:
                    T = self.couplings[k - 1]
                    found = mapped(0, T.T.tocsr()[rows]) + K.rows_times(rows, across[k - 1][1])
                    block[:, : ends[1]] = self.mu / 2 * found.toarray()
                else:
                    for other, T in enumerate(self.couplings, 1):
                        found = K.rows_times(rows, across[other - 1][0]) + mapped(other, T[rows])
                        block[:, ends[other] : ends[other + 1]] = self.mu / 2 * found.toarray()
                yield rows + self.bounds[k], block


class Phate(NamedTuple):
    """An embedding, the number of steps, and the entropies from which that was read."""

    embedding: Array
    t: int
    entropy: Array


def phate(W: JointAffinity, n_components: int = 2, *, t: int | str = "auto", beta: float = 0.7,
          landmarks: int = LANDMARKS, rng: np.random.Generator | None = None) -> Phate:  # fmt: skip
    """PageRank-PHATE: diffuse with restarts, take logarithms, and lay out by metric scaling.

    Parameters
    ----------
    W : JointAffinity
    n_components : int
    t : int or "auto"
        Steps of the walk; "auto": the knee of the von Neumann entropy over 1 to 100 steps.
    beta : float
        Chance of following the affinity rather than jumping anywhere, in [0, 1].
    landmarks : int
        With more rows than this, the walk goes from landmarks over all rows to landmarks, the landmarks are laid out by
        classical scaling, and every row takes the mean of the landmarks it resembles.
    rng : numpy Generator, optional
        Draws the landmarks.

    Raises
    ------
    FloatingPointError
        When the potential is not finite.
    """
    N = W.shape[0]
    if landmarks >= N:
        P, eigenvalues = walk(W.toarray(), beta)
        steps, entropy = _steps(eigenvalues, t)
        apart = euclidean_distances(potential(P, steps))
        return Phate(metric_mds(apart, n_components), steps, entropy)
    chosen = np.sort((rng or np.random.default_rng(0)).permutation(N)[:landmarks])
    through, visits = np.zeros((landmarks, landmarks)), sparse_rows(W, chosen)
    for _, share, block in visits:
        through += block.T @ share
    P, eigenvalues = walk((through + through.T) / 2, beta)
    steps, entropy = _steps(eigenvalues, t)
    laid_out = classical_mds(euclidean_distances(potential(P, steps)), n_components)
    out = np.empty((N, n_components))
    for rows, share, _ in sparse_rows(W, chosen):
        out[rows] = share @ laid_out
    return Phate(out, steps, entropy)


def sparse_rows(W: JointAffinity, chosen: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Array, Array]]:
    """(rows, shares of each landmark in a row, affinities): a row that meets no landmark resembles all alike."""
    for rows, block in W.columns(chosen):
        total = block.sum(1, keepdims=True)
        lost = total[:, 0] == 0
        block[lost], total[lost] = 1.0, len(chosen)
        yield rows, block / total, block


def walk(W: Array, beta: float) -> tuple[Array, Array]:
    """beta D^-1 W + (1 - beta) / N, and the eigenvalues of it: those of D^-1 W times beta, but for the leading one."""
    degree = W.sum(1)
    root = 1.0 / np.sqrt(degree)
    eigenvalues = linalg.eigvalsh(root[:, None] * W * root)
    eigenvalues[:-1] *= beta
    return beta * W / degree[:, None] + (1 - beta) / len(W), np.abs(eigenvalues)


def _steps(eigenvalues: Array, t: int | str) -> tuple[int, Array]:
    entropy = von_neumann_entropy(eigenvalues)
    return (knee(entropy) if t == "auto" else int(t)), entropy


def von_neumann_entropy(eigenvalues: Array, most: int = MOST_STEPS) -> Array:
    """Entropy of the normalised spectrum of P^t for t = 1 to ``most``."""
    found = []
    for t in range(1, most + 1):
        p = eigenvalues**t
        p = p[p > 0] / p.sum()
        found.append(float(-(p * np.log(p, where=p > 0, out=np.zeros_like(p))).sum()))
    return np.array(found)


def knee(y: Array) -> int:
    """The place (from 1) where two straight lines fit a curve best, one up to it and one from it on."""
    x, n = np.arange(1.0, len(y) + 1), len(y)

    def misfit(part: slice) -> float:
        return float(np.abs(np.polyval(np.polyfit(x[part], y[part], 1), x[part]) - y[part]).sum())

    return 1 + min(range(1, n - 1), key=lambda i: misfit(slice(0, i + 1)) + misfit(slice(i, n)))


def potential(P: Array, t: int) -> Array:
    """-log(P^t + 1e-7)."""
    with np.errstate(all="ignore"):
        U = -np.log(np.linalg.matrix_power(P, t) + FLOOR)
    if not np.isfinite(U).all():
        raise FloatingPointError("the potential -log(P^t + 1e-7) is not finite: the affinity holds rows of no or infinite "
                                 "weight (look for constant or huge features)")  # fmt: skip
    return np.asarray(U)


def classical_mds(apart: Array, n_components: int) -> Array:
    """Coordinates from distances by the leading eigenvectors of the centred squares."""
    n = len(apart)
    B = -0.5 * apart**2
    B = B - B.mean(0) - B.mean(1)[:, None] + B.mean()
    keep = min(n_components, n)
    values, vectors = linalg.eigh(B, subset_by_index=(n - keep, n - 1))
    coordinates = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
    sign = np.sign(coordinates[np.abs(coordinates).argmax(0), np.arange(keep)])  # so that it does not depend on LAPACK
    return np.pad(coordinates * np.where(sign == 0, 1.0, sign), ((0, 0), (0, n_components - keep)))


def metric_mds(apart: Array, n_components: int, rounds: int = 300, tolerance: float = 1e-4) -> Array:
    """Coordinates whose distances are nearest to the given ones: SMACOF from the classical solution."""
    from gnomon.geometry.fosta.loops import majorise

    start = np.ascontiguousarray(classical_mds(apart, n_components).T)
    return np.ascontiguousarray(majorise(apart, start, rounds, tolerance)[0].T)


def spectral(W: JointAffinity, n_components: int = 2) -> Array:
    """Leading non-trivial eigenvectors of the normalised affinity, over the square root of the degrees."""
    from scipy.sparse.linalg import eigsh

    root = 1.0 / np.sqrt(W @ np.ones(W.shape[0]))
    normalised = LinearOperator(W.shape, matvec=lambda v: root * (W @ (root * v.ravel())), dtype=np.float64)
    _, vectors = eigsh(normalised, n_components + 1, v0=1.0 / root)
    return np.asarray(vectors[:, ::-1][:, 1:] * root[:, None])


def umap(W: JointAffinity, n_components: int = 2, *, t: int | str = "auto", beta: float = 0.7,
         random_state: Any = None) -> Array:  # fmt: skip
    """UMAP of the potential distances of :func:`phate`, for at most 2,000 rows."""
    if W.shape[0] > LANDMARKS:
        raise ValueError(
            f"embedder 'umap': got {W.shape[0]} rows; expected at most {LANDMARKS} (it holds all distances)"
        )
    from umap import UMAP

    P, eigenvalues = walk(W.toarray(), beta)
    apart = euclidean_distances(potential(P, _steps(eigenvalues, t)[0]))
    return np.asarray(UMAP(n_components=n_components, metric="precomputed", random_state=random_state,
                           n_jobs=1).fit_transform(apart), dtype=np.float64)  # fmt: skip
