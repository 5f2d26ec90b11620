"""What UCCA is compared with: each takes two views in unrelated order and gives a coupling of their rows.

A coupling is a permutation (row of Y for each row of X) or a transport plan of total mass 1; the same ridge CCA follows for
all (:func:`gnomon.geometry.ucca.cca.projections`), so that only the couplings differ.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment, quadratic_assignment
from scipy.spatial.distance import cdist

from gnomon.geometry.ucca.assignment import (
    ascend,
    assign,
    permutation_matrix,
)
from gnomon.geometry.ucca.cca import Basis
from gnomon.geometry.ucca.kernels import (
    Array,
    Pairing,
    check_view,
    low_rank,
    overlap,
    squared_distances,
    view_kernel,
)
from gnomon.geometry.ucca.search import View, canonical_coordinates, descriptor_plan

N_PCA = 15
Coupling = Any  # a pairing (n,) or a plan (n, n)
Generator = np.random.Generator


def kernelized_sorting(X: Any, Y: Any, *, kernel: str = "rbf", max_iter: int = 100) -> Pairing:
    """Kernelized sorting (Quadrianto, Smola, Song and Tuytelaars, IEEE TPAMI 2010).

    Maximises tr(K_X P K_Y P') over permutations by repeated linear assignment, from the pairing that sorts both views by
    the leading eigenvector of their centred kernel; of the two signs of an eigenvector the one with the better end is
    kept.

    Parameters
    ----------
    X, Y : array-like, shape (n, p), (n, q)
    kernel : {"rbf", "linear", "precomputed"}
        Positive semi-definite.
    max_iter : int
        Most assignments.

    Returns
    -------
    ndarray of int, shape (n,)
        Row of Y for each row of X.
    """
    X, Y = check_view(X, "X", kernel), check_view(Y, "Y", kernel)
    if len(X) != len(Y):
        raise ValueError(f"X and Y must have as many rows; got {len(X)} and {len(Y)}")
    K_x, K_y = view_kernel(X, kernel), view_kernel(Y, kernel)
    first, second = (np.linalg.eigh(K)[1][:, -1] for K in (K_x, K_y))
    F_x, F_y = low_rank(K_x, len(X)), low_rank(K_y, len(X))
    ends = []
    for sign in (1, -1):
        start = np.empty(len(X), np.int64)
        start[np.argsort(first)] = np.argsort(sign * second)
        ends.append(ascend(F_x, F_y, permutation_matrix(start), max_iter))
    return max(ends, key=lambda pairing: overlap(K_x, K_y, pairing))


def random_pairing(X: Array, Y: Array, rng: Generator) -> Coupling:
    """A random permutation."""
    return rng.permutation(len(X))


def descriptors(X: Array, Y: Array, rng: Generator) -> Coupling:
    """The Sinkhorn plan between isometry-invariant point descriptors, UCCA's own start."""
    return descriptor_plan(View.of(X, N_PCA), View.of(Y, N_PCA))


# --- Gromov-Wasserstein ----------------------------------------------------------------------------------------------


def _relative_distances(X: Array) -> Array:
    D = np.sqrt(squared_distances(X))
    return D / D.max()


def gromov_wasserstein(X: Array, Y: Array, rng: Generator) -> Coupling:
    """Gromov-Wasserstein plan of the distance matrices (POT, conditional gradient)."""
    import ot

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # iterations may run out
        return np.asarray(ot.gromov.gromov_wasserstein(_relative_distances(X), _relative_distances(Y), max_iter=500))


def entropic_gw(X: Array, Y: Array, rng: Generator, *, epsilon: float = 5e-3) -> Coupling:
    """Entropic Gromov-Wasserstein plan (POT, projected gradient); distances relative to the largest."""
    import ot

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = np.asarray(ot.gromov.entropic_gromov_wasserstein(
            _relative_distances(X), _relative_distances(Y), loss_fun="square_loss", epsilon=epsilon, max_iter=200,
            tol=1e-7, warmstart=True, numItermax=200))  # fmt: skip
    return plan if np.isfinite(plan).all() and plan.sum() > 0 else np.full(plan.shape, 1 / plan.size)


# --- quadratic assignment from the barycentre -------------------------------------------------------------------------


def faq_barycentre(X: Array, Y: Array, rng: Generator, *, kernel: str = "rbf") -> Coupling:
    """scipy's FAQ from near the barycentre, on Gaussian kernels or on linear kernels of whitened coordinates.

    The barycentre itself is a stationary point of centred kernels, where rounding decides: scipy's randomised start, half
    way between it and a random doubly stochastic matrix, takes its place.
    """
    views = (X, Y) if kernel == "rbf" else [_whitened(Z) for Z in (X, Y)]
    K_x, K_y = (view_kernel(Z, kernel) for Z in views)
    found = quadratic_assignment(K_x, K_y, method="faq", options={"maximize": True, "P0": "randomized", "rng": rng})
    return np.asarray(found.col_ind)


def sorted_kernels(X: Array, Y: Array, rng: Generator) -> Coupling:
    """Kernelized sorting on Gaussian kernels."""
    return kernelized_sorting(X, Y)


# --- alternations -----------------------------------------------------------------------------------------------------


def _whitened(X: Array, d: int = N_PCA) -> Array:
    return Basis.of(X, d).coordinates(X)


def matching_cca(
    X: Array, Y: Array, rng: Generator, *, start: str = "descriptors", k: int = 5, max_iter: int = 100
) -> Coupling:
    """Matching CCA (Haghighi et al., ACL 2008): CCA, assignment in the canonical space, and again until nothing changes."""
    x, y = View.of(X, N_PCA), View.of(Y, N_PCA)
    coupling: Coupling = descriptor_plan(x, y) if start == "descriptors" else rng.permutation(len(X))
    prices = np.zeros(len(X))
    for _ in range(max_iter):
        left, right = canonical_coordinates(x, y, coupling, k)
        found = assign(cdist(left, right, "sqeuclidean"), prices)
        if coupling.ndim == 1 and np.array_equal(found, coupling):
            break
        coupling = found
    return coupling


def wasserstein_procrustes(
    X: Array, Y: Array, rng: Generator, *, n_relaxed: int = 100, max_iter: int = 100
) -> Coupling:
    """Wasserstein-Procrustes (Grave, Joulin and Berthet, AISTATS 2019) on whitened coordinates, all rows in each batch.

    Start: Frank-Wolfe on the convex relaxation min ||K_X P - P K_Y||^2 over doubly stochastic P; then orthogonal maps and
    assignments in turn.
    """
    Z_x, Z_y = _whitened(X), _whitened(Y)
    n = len(Z_x)
    K_x, K_y = Z_x @ Z_x.T, Z_y @ Z_y.T
    K_x, K_y = K_x / np.linalg.norm(K_x), K_y / np.linalg.norm(K_y)
    P, prices = np.full((n, n), 1 / n), np.zeros(n)
    P = 0.5 * (P + permutation_matrix(rng.permutation(n)))  # the barycentre of centred kernels is stationary
    for step in range(n_relaxed):
        R = K_x @ P - P @ K_y
        towards = permutation_matrix(assign(K_x @ R - R @ K_y, prices))
        P += 2 / (step + 3) * (towards - P)
    Q = _orthogonal(Z_x.T @ P @ Z_y)
    pairing = np.full(n, -1)
    prices[:] = 0
    for _ in range(max_iter):
        found = assign(-(Z_x @ Q @ Z_y.T), prices)
        if np.array_equal(found, pairing):
            break
        pairing = found
        Q = _orthogonal(Z_x.T @ Z_y[pairing])
    return pairing


def _orthogonal(M: Array) -> Array:
    U, _, Vt = np.linalg.svd(M, full_matrices=True)
    size = min(M.shape)
    return U[:, :size] @ Vt[:size]


def vecmap(X: Array, Y: Array, rng: Generator, *, n_iter: int = 200, neighbours: int = 10) -> Coupling:
    """Unsupervised VecMap (Artetxe, Labaka and Agirre, ACL 2018): sorted-similarity start, then self-learning.

    Rows are centred and of unit length. The start pairs rows whose sorted similarities to their own view are nearest;
    self-learning alternates orthogonal maps with the dictionaries of both directions by CSLS, whose entries drop out with
    a probability that falls from 0.9 in steps as the objective stalls.
    """
    A, B = (_unit(_unit(Z) - _unit(Z).mean(axis=0)) for Z in (_principal(X), _principal(Y)))
    similar = []
    for Z in (A, B):
        U, s, _ = np.linalg.svd(Z, full_matrices=False)
        similar.append(_unit(np.sort((U * s) @ U.T, axis=1)))  # the square root of Z Z'
    S = similar[0] @ similar[1].T
    keep, best, idle = 0.1, -np.inf, 0
    for _ in range(n_iter):
        C = (
            2 * S
            - np.sort(S, axis=1)[:, -neighbours:].mean(axis=1)[:, None]
            - np.sort(S, axis=0)[-neighbours:].mean(axis=0)
        )
        dropped = np.where(rng.random(C.shape) < keep, C, C.min())
        rows = np.concatenate([np.arange(len(A)), dropped.argmax(axis=0)])
        columns = np.concatenate([dropped.argmax(axis=1), np.arange(len(B))])
        Q = _orthogonal(A[rows].T @ B[columns])
        S = A @ Q @ B.T
        value = float(S.max(axis=1).mean() + S.max(axis=0).mean()) / 2
        idle = 0 if value > best + 1e-6 else idle + 1
        best = max(best, value)
        if idle >= 10:
            if keep >= 1:
                break
            keep, idle = min(1.0, 2 * keep), 0
    return np.asarray(linear_sum_assignment(S, maximize=True)[1])


def _principal(X: Array, d: int = N_PCA) -> Array:
    return Basis.of(X, d).principal[:, :d]


def _unit(Z: Array) -> Array:
    return Z / np.maximum(np.linalg.norm(Z, axis=1, keepdims=True), 1e-12)


# --- matched marginals and spectra ------------------------------------------------------------------------------------


def ica_quantiles(X: Array, Y: Array, rng: Generator) -> Coupling:
    """Independent components of each view (FastICA), matched with signs by their quantile functions, then rows assigned."""
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        S, T = (FastICA(whiten="unit-variance", max_iter=500, random_state=int(rng.integers(2**31)))
                .fit_transform(_principal(Z)) for Z in (X, Y))  # fmt: skip
    return _assigned(*_matched_by_quantiles(S, T))


def spectral(X: Array, Y: Array, rng: Generator, *, d: int = 10, neighbours: int = 10) -> Coupling:
    """Spectral embeddings of both views' neighbour graphs (as SUE, without its pairs), matched with signs by quantiles."""
    from sklearn.manifold import SpectralEmbedding

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a graph of several pieces
        S, T = (SpectralEmbedding(d, affinity="nearest_neighbors", n_neighbors=neighbours,
                                  random_state=int(rng.integers(2**31))).fit_transform(Z) for Z in (X, Y))  # fmt: skip
    S, T = ((Z - Z.mean(axis=0)) / np.maximum(Z.std(axis=0), 1e-12) for Z in (S, T))
    return _assigned(*_matched_by_quantiles(S, T))


def _matched_by_quantiles(S: Array, T: Array) -> tuple[Array, Array]:
    """Columns of T, with signs, in the order that brings their quantile functions nearest to those of S."""
    up, down = np.sort(T, axis=0), np.sort(-T, axis=0)
    costs = np.stack([cdist(np.sort(S, axis=0).T, Q.T, "sqeuclidean") for Q in (up, down)])
    mine, other = linear_sum_assignment(costs.min(axis=0))
    signs = np.where(costs.argmin(axis=0)[mine, other] == 0, 1.0, -1.0)
    return S[:, mine], T[:, other] * signs


def _assigned(S: Array, T: Array) -> Pairing:
    return np.asarray(linear_sum_assignment(cdist(S, T, "sqeuclidean"))[1])


# --- learned maps -----------------------------------------------------------------------------------------------------


def linear_mmd(X: Array, Y: Array, rng: Generator, *, steps: int = 300) -> Coupling:
    """A linear map of the whitened X that minimises the MMD (Gaussian mixture kernel) to the whitened Y, then assignment."""
    import torch

    x, y = (torch.from_numpy(_whitened(Z)).float() for Z in (X, Y))
    frame = np.linalg.qr(rng.normal(size=(N_PCA, N_PCA)))[0][: x.shape[1], : y.shape[1]]
    W = torch.nn.Parameter(torch.from_numpy(frame).float())
    optimizer = torch.optim.Adam([W], 0.02)

    def similar(a: Any, b: Any) -> Any:
        D2 = torch.cdist(a, b).square() / y.shape[1]
        return sum(torch.exp(-D2 / width) for width in (0.25, 1.0, 4.0)).mean()  # type: ignore[union-attr]

    for _ in range(steps):
        optimizer.zero_grad()
        moved = x @ W
        (similar(moved, moved) - 2 * similar(moved, y)).backward()
        optimizer.step()
    return _assigned((x @ W).detach().numpy(), y.numpy())


def adversarial(
    X: Array, Y: Array, rng: Generator, *, steps: int = 600, batch: int = 64, beta: float = 0.01
) -> Coupling:
    """An adversarial orthogonal map as in MUSE (Conneau et al., ICLR 2018), refined by Procrustes on mutual CSLS neighbours."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits as loss

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        x, y = (torch.from_numpy(_whitened(Z)).float() for Z in (X, Y))
        d = min(x.shape[1], y.shape[1])
        x, y = x[:, :d], y[:, :d]
        W = torch.nn.Parameter(torch.eye(d))
        judge = torch.nn.Sequential(
            torch.nn.Dropout(0.1), torch.nn.Linear(d, 256), torch.nn.LeakyReLU(0.2), torch.nn.Linear(256, 1)
        )
        teach, move = torch.optim.SGD(judge.parameters(), 0.1), torch.optim.SGD([W], 0.1)
        real, fake = torch.full((batch, 1), 0.9), torch.full((batch, 1), 0.1)
        for _ in range(steps):
            for _ in range(2):
                a, b = x[torch.randint(len(x), (batch,))], y[torch.randint(len(y), (batch,))]
                teach.zero_grad()
                (loss(judge((a @ W).detach()), fake) + loss(judge(b), real)).backward()
                teach.step()
            move.zero_grad()
            loss(judge(x[torch.randint(len(x), (batch,))] @ W), real).backward()
            move.step()
            with torch.no_grad():
                W.copy_((1 + beta) * W - beta * W @ W.T @ W)
    Q, (Z_x, Z_y) = W.detach().double().numpy(), (x.double().numpy(), y.double().numpy())
    for _ in range(5):
        S = _unit(Z_x @ Q) @ _unit(Z_y).T
        C = 2 * S - np.sort(S, axis=1)[:, -10:].mean(axis=1)[:, None] - np.sort(S, axis=0)[-10:].mean(axis=0)
        to_y, to_x = C.argmax(axis=1), C.argmax(axis=0)
        mutual = np.flatnonzero(to_x[to_y] == np.arange(len(to_y)))
        Q = _orthogonal(Z_x[mutual].T @ Z_y[to_y[mutual]])
    return np.asarray(linear_sum_assignment(_unit(Z_x @ Q) @ _unit(Z_y).T, maximize=True)[1])
