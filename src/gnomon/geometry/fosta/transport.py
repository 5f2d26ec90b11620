"""Semantic transport: hierarchical refinement, and couplings of domains of unequal size."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from sklearn.utils import check_array

Array = NDArray[np.float64]
Index = NDArray[np.int64]
MAX_RANK = 16
STEPS, SWEEPS = 60, 15
STEP_SIZE = {"kmeans": 2.0, "random": 60.0}
SOLVERS = ("hiref", "exact", "sinkhorn", "partial")
UNEQUAL = ("surjection", "compress", "dummy")


def factors(X: Array, Y: Array) -> tuple[Array, Array]:
    """U, V of rank C + 2 with (U V')_ij = |x_i - y_j|^2."""
    x, y = ((S**2).sum(1, keepdims=True) for S in (X, Y))
    return np.hstack([x, np.ones_like(x), -2 * X]), np.hstack([np.ones_like(y), y, Y])


def hierarchical_assignment(X: Any, Y: Any, *, leaf_size: int = 256, init: str = "kmeans",
                            random_state: Any = None) -> Index:  # fmt: skip
    r"""A bijection between two sets of n points that nearly minimises the sum of squared distances.

    Hierarchical refinement: low-rank optimal transport

    .. math:: \min_{Q, R} \sum_z (Q^\top U)_z \cdot (R^\top V)_z / g_z,\quad g_z = 1/r

    splits both sides into r blocks of equal size that belong together, each pair of blocks is split again, and pairs
    of at most ``leaf_size`` rows are matched exactly. Cost and memory grow as n log n, not as n^3 and n^2.

    Parameters
    ----------
    X, Y : array-like, shape (n, d)
    leaf_size : int
        Blocks of so many rows or fewer are solved by linear assignment; n or more gives the optimum.
    init : {"kmeans", "random"}
        Start of the mirror descent: soft memberships to r centres of the pooled rows with steps of 2, or random logits
        with steps of 60, as in the official code, which at times splits well-separated clusters wrongly.
    random_state : int, RandomState, Generator or None
        Rows are shuffled first, so that ties are not broken by position.

    Returns
    -------
    ndarray of int, shape (n,)
        Row i of X goes with row ``result[i]`` of Y.

    References
    ----------
    Halmos et al., Hierarchical Refinement, arXiv 2503.03025; Scetbon et al., Low-rank Sinkhorn factorization, ICML 2021.
    """
    X, Y = (check_array(S, dtype=np.float64, input_name=name) for S, name in ((X, "X"), (Y, "Y")))
    if X.shape != Y.shape:
        raise ValueError(f"X, Y: got shapes {X.shape} and {Y.shape}; expected as many rows and columns in both")
    if init not in STEP_SIZE:
        raise ValueError(f"init: got {init!r}; expected one of {', '.join(STEP_SIZE)}")
    if not leaf_size >= 1:
        raise ValueError(f"leaf_size: got {leaf_size!r}; expected at least 1")
    rng, n = as_generator(random_state), len(X)
    here, there = rng.permutation(n), rng.permutation(n)
    total = n if n <= leaf_size else next_smooth(n)
    U, V = (np.vstack([F, np.zeros((total - n, F.shape[1]))]) for F in factors(X[here], Y[there]))
    points = [np.vstack([S, np.full((total - n, S.shape[1]), np.nan)]) for S in (X[here], Y[there])]
    match = np.empty(total, dtype=np.int64)
    blocks = [(np.arange(total), np.arange(total), schedule(total, leaf_size))]
    while blocks:
        a, b, ranks = blocks.pop()
        if not ranks:
            match[a] = b[linear_sum_assignment(U[a] @ V[b].T)[1]] if len(a) > 1 else b
            continue
        left, right = _split(U[a], V[b], points[0][a], points[1][b], ranks[0], init, rng)
        blocks += [(a[left == z], b[right == z], ranks[1:]) for z in range(ranks[0])]
    # dummy rows cost nothing, so they may sit between two real rows: those are matched among themselves
    result, rest = np.empty(n, dtype=np.int64), np.flatnonzero(match[:n] >= n)
    whole = np.flatnonzero(match[:n] < n)
    result[here[whole]] = there[match[whole]]
    if len(rest):
        free = np.setdiff1d(np.arange(n), match[whole])
        result[here[rest]] = there[free[linear_sum_assignment(U[rest] @ V[free].T)[1]]]
    return result


def _split(U: Array, V: Array, X: Array, Y: Array, rank: int, init: str,
           rng: np.random.Generator) -> tuple[Index, Index]:  # fmt: skip
    """Blocks of equal size on both sides, by low-rank transport and a rounding to capacity."""
    from gnomon.geometry.fosta.loops import low_rank_plan, split_by_capacity

    logits = _start(X, Y, rank, rng) if init == "kmeans" else [rng.normal(size=(len(S), rank)) for S in (X, Y)]
    plans = low_rank_plan(U, V, logits[0], logits[1], STEPS, STEP_SIZE[init], SWEEPS)
    return tuple(split_by_capacity(Q * len(Q), len(Q) // rank) for Q in plans)  # type: ignore[return-value]


def _start(X: Array, Y: Array, rank: int, rng: np.random.Generator) -> list[Array]:
    """Logits of soft memberships to k-means centres of the pooled rows; a dummy row (NaN) belongs to all alike."""
    from scipy.spatial.distance import cdist
    from sklearn.cluster import kmeans_plusplus

    pooled = np.vstack([X, Y])
    pooled = pooled[np.isfinite(pooled[:, 0])]
    if len(pooled) < rank:
        return [np.zeros((len(X), rank)), np.zeros((len(Y), rank))]
    centres, _ = kmeans_plusplus(pooled, rank, random_state=int(rng.integers(2**31)))
    for _ in range(20):  # Lloyd
        nearest = cdist(pooled, centres, "sqeuclidean").argmin(1)
        moved = np.stack([pooled[nearest == z].mean(0) if (nearest == z).any() else centres[z] for z in range(rank)])
        if np.array_equal(moved, centres):
            break
        centres = moved
    temperature = cdist(pooled, centres, "sqeuclidean").mean() / 4
    if temperature == 0:
        return [np.zeros((len(X), rank)), np.zeros((len(Y), rank))]
    return [np.nan_to_num(-cdist(S, centres, "sqeuclidean") / temperature, nan=0.0) for S in (X, Y)]


def as_generator(random_state: Any) -> np.random.Generator:
    """A Generator from a seed, a RandomState (which is advanced), a Generator or None."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31))
    return np.random.default_rng(random_state)


# --- ranks -----------------------------------------------------------------------------------------------------------


def prime_factors(n: int) -> list[int]:
    """Ascending, with multiplicity."""
    found, p = [], 2
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1 if p * p <= n else max(1, n - p)
    return found


def next_smooth(n: int) -> int:
    """The least number from n on without a prime factor above 13."""
    while max(prime_factors(n), default=1) > MAX_RANK:
        n += 1
    return n


def schedule(n: int, leaf_size: int) -> list[int]:
    """Ranks whose product divides n into blocks of at most ``leaf_size``, with the least sum; a pair of 2s is one 4."""
    best: dict[int, tuple[int, list[int]]] = {1: (0, [])}
    for p in prime_factors(n):
        for divisor, (total, ranks) in list(best.items()):
            new = (total + p, sorted([*ranks, p]))
            if divisor * p not in best or new < best[divisor * p]:
                best[divisor * p] = new
    enough = [(total, d, ranks) for d, (total, ranks) in best.items() if -(-n // d) <= leaf_size]
    ranks = min(enough)[2] if enough else []
    fours, twos = divmod(ranks.count(2), 2)
    return sorted([r for r in ranks if r != 2] + [4] * fours + [2] * twos, reverse=True)


# --- couplings -------------------------------------------------------------------------------------------------------


def semantic_coupling(SA: Array, SB: Array, *, solver: str = "hiref", unequal: str = "surjection", leaf_size: int = 256,
                      hiref_init: str = "kmeans", reg: float = 0.05, mass: float = 0.9,
                      random_state: Any = None) -> sparse.csr_array:  # fmt: skip
    """A transport plan (n_a, n_b) between semantic vectors at squared Euclidean cost.

    Parameters
    ----------
    SA, SB : ndarray, shape (n_a, C), (n_b, C)
    solver : {"hiref", "exact", "sinkhorn", "partial"}
        Hierarchical refinement, or POT's exact, entropic and partial transport with marginals 1 and n_a / n_b; these
        three hold n_a x n_b costs.
    unequal : {"surjection", "compress", "dummy"}
        Of "hiref" where n_a and n_b differ: rows of the smaller side are repeated (each at least floor(n_big / n_small)
        times, extra ones where the larger side is denser); the larger side is reduced to k-means centres; or the
        smaller side is padded with undecided rows, which are dropped.
    leaf_size, hiref_init
        See :func:`hierarchical_assignment`.
    reg, mass : float
        Entropic regularisation over the mean cost; share of the mass that "partial" moves.
    random_state : int, RandomState, Generator or None

    Returns
    -------
    csr_array, shape (n_a, n_b)
        Equal sizes with "hiref": a permutation. "surjection": one entry per row of the larger side, the rows of the
        smaller side sum to one.
    """
    rng = as_generator(random_state)
    if solver == "hiref":
        if len(SA) > len(SB):
            flipped: sparse.csr_array = _assigned(SB, SA, unequal, leaf_size, hiref_init, rng).T.tocsr()
            if unequal == "dummy" and len(SA) != len(SB):
                flipped *= len(SA) / len(SB)
            return flipped
        return _assigned(SA, SB, unequal, leaf_size, hiref_init, rng)
    a, b = rng.permutation(len(SA)), rng.permutation(len(SB))
    dense = _pot(SA[a], SB[b], solver, reg, mass)
    plan = np.empty_like(dense)
    plan[np.ix_(a, b)] = np.where(dense > 1e-9 * dense.max(), dense, 0.0)
    return sparse.csr_array(plan)


def _assigned(
    S: Array, B: Array, unequal: str, leaf_size: int, init: str, rng: np.random.Generator
) -> sparse.csr_array:
    """Coupling of the smaller S with the larger B; rows sum to one."""
    n, m = len(S), len(B)

    def solve(X: Array, Y: Array) -> Index:
        return hierarchical_assignment(X, Y, leaf_size=leaf_size, init=init, random_state=rng)

    if n == m:
        return sparse.csr_array((np.ones(n), (np.arange(n), solve(S, B))), shape=(n, n))
    if unequal == "surjection":
        copies = repeats(S, B, rng)
        owner = np.repeat(np.arange(n), copies)
        return sparse.csr_array((1.0 / copies[owner], (owner, solve(S[owner], B))), shape=(n, m))
    if unequal == "compress":
        centres, member = _clusters(B, n, rng)
        row = np.argsort(solve(S, centres))[member]
        return sparse.csr_array((1.0 / np.bincount(row, minlength=n)[row], (row, np.arange(m))), shape=(n, m))
    uniform = np.full((m - n, S.shape[1]), S.shape[1] ** -0.5)
    match = solve(np.vstack([S, uniform]), B)[:n]
    return sparse.csr_array((np.ones(n), (np.arange(n), match)), shape=(n, m))


def repeats(S: Array, B: Array, rng: np.random.Generator) -> Index:
    """How often each row of the smaller side is used: floor or ceil of m / n, m in all.

    The extra uses go to the classes (nearest label of a semantic vector) of which the larger side has most in excess of
    the floor; within a class the rows are drawn.
    """
    base, extra = divmod(len(B), len(S))
    near, far = S.argmax(1), B.argmax(1)
    lacking = np.bincount(far, minlength=S.shape[1]) - base * np.bincount(near, minlength=S.shape[1])
    order = rng.permutation(len(S))
    place = np.empty(len(S), dtype=np.int64)  # of each row within its class, in random order
    for c in range(S.shape[1]):
        rows = order[near[order] == c]
        place[rows] = np.arange(len(rows))
    need = lacking[near] - place
    copies = np.full(len(S), base, dtype=np.int64)
    copies[order[np.argsort(-need[order], kind="stable")[:extra]]] += 1
    return copies


def _clusters(B: Array, n: int, rng: np.random.Generator) -> tuple[Array, Index]:
    """n k-means centres and the members of each, none empty."""
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct vectors than centres
        means = MiniBatchKMeans(n, n_init=1, random_state=int(rng.integers(2**31)), batch_size=max(1024, n)).fit(B)
    member = means.labels_.astype(np.int64)
    for empty in np.flatnonzero(np.bincount(member, minlength=n) == 0):
        member[rng.choice(np.flatnonzero(member == np.bincount(member, minlength=n).argmax()))] = empty
    centres = np.zeros((n, B.shape[1]))
    np.add.at(centres, member, B)
    return centres / np.bincount(member, minlength=n)[:, None], member


def _pot(SA: Array, SB: Array, solver: str, reg: float, mass: float) -> Array:
    import ot
    from scipy.spatial.distance import cdist

    n, m = len(SA), len(SB)
    cost = cdist(SA, SB, "sqeuclidean")
    a, b = np.ones(n), np.full(m, n / m)
    if solver == "exact":
        return np.asarray(ot.emd(a, b, cost, numItermax=10_000_000))
    if solver == "sinkhorn":
        scale = reg * cost.mean() or 1.0
        return n * np.asarray(
            ot.sinkhorn(a / n, b / n, cost, scale, method="sinkhorn_log", numItermax=5000, warn=False)
        )
    return n * np.asarray(ot.partial.partial_wasserstein(a / n, b / n, cost, m=mass, nb_dummies=10))
