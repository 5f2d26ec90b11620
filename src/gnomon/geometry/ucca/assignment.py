"""Assignments and transport plans: linear (exact, warm-started), quadratic (Frank-Wolfe), entropic (Sinkhorn)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from gnomon.geometry.ucca.kernels import Array, Pairing

FLOOR, CEILING, SCALINGS = 0.05, 200.0, 60  # of a start: what every entry gets, the most an entry counts, iterations


# --- the linear assignment problem ------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def assign(C: Array, v: Array) -> Pairing:
    """Column of each row in the assignment of least cost (Jonker and Volgenant, Computing 1987); ``v`` is overwritten.

    Parameters
    ----------
    C : (n, n) array
        Costs.
    v : (n,) array
        Prices of the columns to start from, any numbers; those of the optimum on return. Prices of a similar problem
        leave little to do, which is what makes a sequence of assignments three times as fast as from scratch.
    """
    n = C.shape[0]
    column, row = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    free, n_free = np.empty(n, np.int64), 0
    for i in range(n):  # every row to its cheapest column, if that is free
        cheapest, least = 0, C[i, 0] - v[0]
        for j in range(1, n):
            cost = C[i, j] - v[j]
            if cost < least:
                cheapest, least = j, cost
        if row[cheapest] < 0:
            column[i], row[cheapest] = cheapest, i
        else:
            free[n_free] = i
            n_free += 1
    n_free = _reduce(C, v, column, row, free, n_free)
    distance, before, order = np.empty(n), np.empty(n, np.int64), np.empty(n, np.int64)
    for f in range(n_free):  # the rest by shortest augmenting paths
        start = free[f]
        for j in range(n):
            distance[j], before[j], order[j] = C[start, j] - v[j], start, j
        ready, end, reach = 0, -1, 0.0
        while end < 0:
            nearest, reach = ready, distance[order[ready]]
            for k in range(ready + 1, n):
                if distance[order[k]] < reach:
                    nearest, reach = k, distance[order[k]]
            j1 = order[nearest]
            order[nearest], order[ready] = order[ready], j1
            ready += 1
            i = row[j1]
            if i < 0:
                end = j1
            else:
                height = C[i, j1] - v[j1] - reach
                for k in range(ready, n):
                    j = order[k]
                    cost = C[i, j] - v[j] - height
                    if cost < distance[j]:
                        distance[j], before[j] = cost, i
        for k in range(ready - 1):
            v[order[k]] += distance[order[k]] - reach
        while True:
            i = before[end]
            row[end] = i
            column[i], end = end, column[i]
            if i == start:
                break
    return column


@njit(cache=True, nogil=True, error_model="numpy")
def _reduce(C: Array, v: Array, column: Pairing, row: Pairing, free: Pairing, n_free: int) -> int:
    """One pass of augmenting row reduction: an unassigned row bids its margin for its cheapest column."""
    n = C.shape[0]
    k, bidders, n_free = 0, n_free, 0
    for _ in range(20 * n):  # near-ties could go round for long
        if k == bidders:
            break
        i = free[k]
        k += 1
        j1, j2, u1, u2 = 0, -1, np.inf, np.inf
        for j in range(n):
            cost = C[i, j] - v[j]
            if cost < u2:
                if cost < u1:
                    j2, u2, j1, u1 = j1, u1, j, cost
                else:
                    j2, u2 = j, cost
        lowered = u1 < u2 < np.inf
        if lowered:
            v[j1] -= u2 - u1
        elif row[j1] >= 0 and j2 >= 0:
            j1 = j2
        loser = row[j1]
        column[i], row[j1] = j1, i
        if loser >= 0:
            column[loser] = -1
            if lowered:
                k -= 1
                free[k] = loser
            else:
                free[n_free] = loser
                n_free += 1
    while k < bidders:
        free[n_free] = free[k]
        n_free, k = n_free + 1, k + 1
    return n_free


# --- transport plans --------------------------------------------------------------------------------------------------


def sinkhorn_plan(x: Array, y: Array, epsilon: float = 0.1, n_iter: int = SCALINGS) -> Array:
    """Entropic transport plan (n, m) of total mass 1 between the rows of x and y, equal masses, squared distances.

    ``epsilon`` is in units of the mean cost; ``n_iter`` alternating scalings, the last one of the rows.
    """
    from scipy.spatial.distance import cdist

    C = cdist(x, y, "sqeuclidean")
    C /= max(epsilon * float(C.mean()), 1e-300)
    C -= C.min(axis=1, keepdims=True)  # a row's and a column's constant change no plan, and keep exp from underflow
    C -= C.min(axis=0, keepdims=True)
    K = np.exp(-C) + 1e-300
    b = np.ones(K.shape[1])
    for _ in range(n_iter):
        a = 1 / (len(x) * (K @ b))
        b = 1 / (len(y) * (a @ K))
    a = 1 / (len(x) * (K @ b))
    return a[:, None] * K * b


def doubly_stochastic(M: Array, n_iter: int = SCALINGS) -> Array:
    """A start for the quadratic assignment: entries in units of their mean, at most 200, plus 0.05, rows and columns
    scaled in turn to sum to 1."""
    M = np.minimum(M / M.mean(), CEILING) + FLOOR
    b = np.ones(len(M))
    for _ in range(n_iter):
        a = 1 / (M @ b)
        b = 1 / (a @ M)
    return a[:, None] * M * b


def permutation_matrix(pairing: Pairing, m: int | None = None) -> Array:
    """P with P[i, pairing[i]] = 1."""
    P = np.zeros((len(pairing), m or len(pairing)))
    P[np.arange(len(pairing)), pairing] = 1
    return P


# --- the quadratic assignment problem ---------------------------------------------------------------------------------


class FAQResult(NamedTuple):
    """What :func:`faq` found.

    Attributes
    ----------
    pairing : ndarray of int, shape (n,)
        Column of each row.
    objective : float
        tr(A' P B P') of that permutation.
    n_iter : int
        Frank-Wolfe steps.
    steps, values : list of float
        Step lengths, and the objective before each step and after the last.
    """

    pairing: Pairing
    objective: float
    n_iter: int
    steps: list[float]
    values: list[float]


def faq(
    A: Any, B: Any, start: Any = None, *, maximize: bool = True, max_iter: int = 30, tol: float = 1e-6
) -> FAQResult:
    r"""Frank-Wolfe on the quadratic assignment problem (FAQ; Vogelstein et al., PLOS ONE 2015).

    .. math:: \max_{P} \operatorname{tr}(A^\top P B P^\top)

    over doubly stochastic P, each step an exact linear assignment and an exact line search on [0, 1], then the nearest
    permutation. For positive semi-definite A and B the objective is convex: every step length is 1, and from the first
    step on P is a permutation.

    Parameters
    ----------
    A, B : array-like, shape (n, n)
        Any real matrices, symmetric or not.
    start : array-like, optional
        A permutation (n,) or a doubly stochastic matrix (n, n); by default the barycentre, 1/n everywhere, which is a
        stationary point of doubly centred A and B.
    maximize : bool
        False minimises.
    max_iter : int
        Most Frank-Wolfe steps.
    tol : float
        Stop when a step's Frobenius norm is below ``tol sqrt(n)``.

    Raises
    ------
    ValueError
        When A and B are not square matrices of one size, not finite, or the start is no such thing.
    """
    A, B = _square(A, "A"), _square(B, "B")
    n = len(A)
    if len(B) != n:
        raise ValueError(f"A and B must have one size; got {len(A)} and {len(B)}")
    P = _start(start, n)
    sign = 1.0 if maximize else -1.0
    symmetric = np.array_equal(A, A.T) and np.array_equal(B, B.T)

    def gradient(P: Array) -> Array:
        return 2 * (A @ P @ B) if symmetric else A @ P @ B.T + A.T @ P @ B

    G, prices, steps = gradient(P), np.zeros(n), []
    values = [float(np.sum(P * G)) / 2]
    for _ in range(max_iter):
        Q = permutation_matrix(assign(-sign * G, prices))
        G_Q = gradient(Q)
        D, change = Q - P, G_Q - G
        linear, quadratic = sign * float(np.sum(D * G)), sign * float(np.sum(D * change)) / 2
        step = 1.0 if linear + 2 * quadratic >= 0 else max(0.0, -linear / (2 * quadratic))
        P, G = (Q, G_Q) if step == 1.0 else (P + step * D, G + step * change)
        steps.append(step)
        values.append(float(np.sum(P * G)) / 2)
        if step * float(np.linalg.norm(D)) < tol * np.sqrt(n):
            break
    pairing = assign(-P, np.zeros(n))
    return FAQResult(pairing, float(np.sum(A * B[np.ix_(pairing, pairing)])), len(steps), steps, values)


def ascend(F_x: Array, F_y: Array, start: Array, max_iter: int = 30) -> Pairing:
    """:func:`faq` for A = F_x F_x' and B = F_y F_y' (positive semi-definite, so that every step is 1).

    A step costs n^2 r for factors of rank r, and an assignment that starts from the prices of the one before.
    """
    prices = np.zeros(len(F_x))
    pairing = assign(-(F_x @ ((F_x.T @ start @ F_y) @ F_y.T)), prices)
    for _ in range(max_iter - 1):
        found = assign(-(F_x @ ((F_x.T @ F_y[pairing]) @ F_y.T)), prices)
        if np.array_equal(found, pairing):
            break
        pairing = found
    return pairing


def _square(A: Any, name: str) -> Array:
    A = np.asarray(A, dtype=np.float64)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not len(A):
        raise ValueError(f"{name}: got shape {A.shape}; expected a square matrix")
    if not np.isfinite(A).all():
        raise ValueError(f"{name}: holds NaN or infinity; expected finite numbers")
    return A


def _start(start: Any, n: int) -> Array:
    if start is None:
        return np.full((n, n), 1 / n)
    P = np.asarray(start)
    if P.shape == (n,) and np.array_equal(np.sort(P), np.arange(n)):
        return permutation_matrix(P.astype(np.int64))
    P = P.astype(np.float64)
    if P.shape == (n, n) and (P >= 0).all() and all(np.allclose(P.sum(axis), 1, atol=1e-3) for axis in (0, 1)):
        return P
    raise ValueError(
        f"start: got shape {P.shape}; expected a permutation of 0 to {n - 1} or a doubly stochastic matrix"
    )
