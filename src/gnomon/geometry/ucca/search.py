"""The search for a pairing: Frank-Wolfe from descriptor starts, then rounds that recombine a pool of the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from joblib import Parallel, delayed

from gnomon.geometry.ucca.assignment import (
    ascend,
    doubly_stochastic,
    faq,
    permutation_matrix,
    sinkhorn_plan,
)
from gnomon.geometry.ucca.cca import Basis, canonical
from gnomon.geometry.ucca.descriptors import descriptors_of
from gnomon.geometry.ucca.kernels import (
    Array,
    Pairing,
    centred,
    gaussian,
    kernel_distances,
    low_rank,
    overlap,
    squared_distances,
)

WIDTHS = (3, 5, 8, 12)  # canonical components that a round looks at
EPSILON, SHARP = 0.1, 0.05  # of the plan of the consensus, and of a pool member's own
DISTINCT = 0.02  # share of rows by which members of the pool differ at least
PATIENCE, GAIN = 10, 1e-9
PARTS, FEW_PARTS = 6, 4  # principal components of all descriptors, and of a third of them


@dataclass(frozen=True)
class View:
    """One view as the search sees it: kernel, its factor (None where it is indefinite), whitened coordinates, descriptors."""

    basis: Basis
    kernel: Array
    factor: Array | None
    coordinates: Array
    descriptors: Array

    @classmethod
    def of(cls, X: Array, n_pca: int, *, kernel: str = "rbf", space: str = "input", standardize: bool = False) -> View:
        """Of features (n, p), or of a kernel (n, n) with ``kernel="precomputed"``."""
        if kernel == "precomputed":
            basis = Basis.of_kernel(X, n_pca)
            D2, K = kernel_distances(X), centred(X)
        else:
            basis = Basis.of(X, n_pca, standardize=standardize)
            X_k = X if not standardize else basis.principal  # an isometric copy of the standardised rows
            X_k = basis.coordinates(X) if space == "whitened" else X_k
            D2 = squared_distances(X_k)
            K = centred(gaussian(D2) if kernel == "rbf" else X_k @ X_k.T)
        psd = kernel != "precomputed" or float(np.linalg.eigvalsh(K)[0]) > -1e-8
        return cls(basis, K, low_rank(K) if psd else None, basis.coordinates(X), descriptors_of(D2))

    def null(self, n_pca: int, rng: np.random.Generator, kernel: str, space: str) -> View:
        """The same spectrum without a shape: principal coordinates permuted independently of each other."""
        shuffled = rng.permuted(self.basis.principal, axis=0)
        return View.of(shuffled, n_pca, kernel="linear" if kernel == "precomputed" else kernel, space=space)


@dataclass
class Optimum:
    """A local maximum: pairing, score, and the round that found it (0: a start)."""

    pairing: Pairing
    score: float
    round: int


@dataclass
class Found:
    """What one search found: the best optimum, and all that were visited."""

    best: Optimum
    n_rounds: int
    visited: list[Optimum] = field(repr=False)

    def best_of_starts(self) -> Optimum:
        """The best before any round."""
        return max((o for o in self.visited if o.round == 0), key=lambda o: o.score)


def descriptor_plan(x: View, y: View, rng: np.random.Generator | None = None) -> Array:
    """Sinkhorn plan between the descriptors of both views, in 6 whitened principal components common to both.

    With ``rng``, of a random third of the descriptors, in 4 components: what one mix of descriptors confuses, another may
    tell apart, and starts from different mixes end in different optima.
    """
    D_x, D_y, parts = x.descriptors, y.descriptors, PARTS
    if rng is not None:
        some = rng.permutation(D_x.shape[1])[: D_x.shape[1] // 3]
        D_x, D_y, parts = D_x[:, some], D_y[:, some], FEW_PARTS
    basis = Basis.of(np.concatenate([D_x, D_y]), parts)
    if not len(basis.variances):  # all points alike
        return np.full((len(D_x), len(D_y)), 1 / (len(D_x) * len(D_y)))
    return sinkhorn_plan(basis.coordinates(D_x), basis.coordinates(D_y), EPSILON)


def canonical_plan(x: View, y: View, coupling: Array | Pairing, k: int, epsilon: float) -> Array:
    """Sinkhorn plan between the first k canonical coordinates under a coupling, weighted by sqrt(rho)."""
    left, right = canonical_coordinates(x, y, coupling, k)
    return sinkhorn_plan(left, right, epsilon)


def canonical_coordinates(x: View, y: View, coupling: Array | Pairing, k: int) -> tuple[Array, Array]:
    """Coordinates (n, k) of both views in the canonical space of a coupling, weighted by sqrt(min(rho, 0.99))."""
    U, rho, V = canonical(x.coordinates, y.coordinates, coupling)
    weight = np.sqrt(np.minimum(rho[:k], 0.99))
    return x.coordinates @ U[:, :k] * weight, y.coordinates @ V[:, :k] * weight


def ascent(x: View, y: View, max_iter: int = 30) -> Callable[[Array], Pairing]:
    """From a doubly stochastic start to a pairing that one Frank-Wolfe step does not change."""
    if x.factor is None or y.factor is None:
        return lambda start: faq(x.kernel, y.kernel, start, max_iter=max_iter).pairing
    F_x, F_y = x.factor, y.factor
    return lambda start: ascend(F_x, F_y, start, max_iter)


def search(x: View, y: View, rng: np.random.Generator, *, n_starts: int = 10, pool: int = 4, max_rounds: int = 60,
           plain: bool = True, n_jobs: int | None = None) -> Found:  # fmt: skip
    """One run: ``n_starts`` ascents from descriptors, then rounds until 10 in a row gain nothing or ``max_rounds``.

    ``plain``: the first start is from all descriptors without noise. Runs that share it are not independent, and may agree
    for that alone.
    ``n_jobs``: threads over the ascents of a round, as joblib counts them; the result does not depend on it.
    """
    climb = ascent(x, y)
    visited: list[Optimum] = []

    def optimum(plan: Array, step: int) -> Optimum:
        pairing = climb(doubly_stochastic(plan))
        return Optimum(pairing, overlap(x.kernel, y.kernel, pairing), step)

    def visit(plans: Iterator[Array], step: int) -> list[Optimum]:
        found = Parallel(n_jobs=n_jobs, prefer="threads")(delayed(optimum)(plan, step) for plan in plans)
        visited.extend(found)
        return list(found)

    shape = (len(x.kernel), len(y.kernel))

    def starts() -> Iterator[Array]:
        for k in range(n_starts):
            yield descriptor_plan(x, y) if plain and not k else descriptor_plan(x, y, rng) * rng.gamma(1.0, 1.0, shape)

    best = _distinct(visit(starts(), 0), pool)
    d = min(x.coordinates.shape[1], y.coordinates.shape[1])
    widths = sorted({min(k, d) for k in WIDTHS})

    def proposals(best: list[Optimum]) -> Iterator[Array]:
        consensus = np.mean([permutation_matrix(o.pairing) for o in best], axis=0) / len(x.kernel)
        for k in widths:
            yield canonical_plan(x, y, consensus, k, EPSILON) * rng.gamma(2.0, 0.5, shape)
        for own in best[:2]:
            yield canonical_plan(x, y, own.pairing, int(rng.choice(widths)), SHARP)

    idle = step = 0
    while idle < PATIENCE and step < max_rounds:
        step += 1
        before = best[0].score
        best = _distinct(best + visit(proposals(best), step), pool)
        idle = 0 if best[0].score > before + GAIN else idle + 1
    return Found(best[0], step, visited)


def _distinct(optima: list[Optimum], most: int) -> list[Optimum]:
    """The best by score, no two of which are nearly the same pairing."""
    kept: list[Optimum] = []
    for one in sorted(optima, key=lambda o: -o.score):
        if all(np.mean(one.pairing != other.pairing) > DISTINCT for other in kept):
            kept.append(one)
        if len(kept) == most:
            break
    return kept
