"""The compiled inner loops: dense kernels, low-rank transport, splits by capacity, stress majorisation."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def dense_kernel(leaves, left, right, start, members):
    """sum_t left_i right_j + right_i left_j over trees where i and j share a leaf, without the diagonal.

    ``members[start[l] : start[l + 1]]`` are the rows of leaf l in ascending order; weights are (n, T).
    """
    n, trees = leaves.shape
    out = np.zeros((n, n))
    for i in range(n):
        row = out[i]
        for t in range(trees):
            leaf = leaves[i, t]
            a, b = left[i, t], right[i, t]
            for position in range(start[leaf], start[leaf + 1]):
                j = members[position]
                if j >= i:
                    break
                row[j] += a * right[j, t] + b * left[j, t]
    for i in range(n):  # block by block it stays in the cache
        for j in range(i):
            out[j, i] = out[i, j]
    return out


@njit(cache=True, error_model="numpy")
def _project(logits, f, g, rows, column, sweeps):
    """Q = exp(logits + f + g) with row sums ``rows`` and column sums ``column``; the duals f, g are updated.

    Sweeps run on scalings of the warm-started kernel and are taken into the duals at the end: the same numbers as in
    the log domain with one exponential an entry.
    """
    n, r = logits.shape
    Q = np.empty((n, r))
    u, v = np.ones(n), np.ones(r)
    for i in range(n):
        top = -np.inf
        for z in range(r):
            top = max(top, logits[i, z] + g[z])
        f[i] = -top
        for z in range(r):
            Q[i, z] = np.exp(logits[i, z] + g[z] - top)
    for _ in range(sweeps):
        sums = np.zeros(r)
        for i in range(n):
            total = 0.0
            for z in range(r):
                total += Q[i, z] * v[z]
            u[i] = rows / total
            for z in range(r):
                sums[z] += Q[i, z] * u[i]
        for z in range(r):
            v[z] = column / sums[z]
    for i in range(n):
        for z in range(r):
            Q[i, z] *= u[i] * v[z]
        f[i] += np.log(u[i])
    g += np.log(v)
    return Q


@njit(cache=True, error_model="numpy")
def low_rank_plan(U, V, Q_logits, R_logits, steps, size, sweeps):
    """Mirror descent on sum_z (Q'U)_z (R'V)_z / g_z with g uniform, from the given logits; returns Q and R."""
    n, r = Q_logits.shape
    rows, column = 1.0 / n, 1.0 / r
    fq, gq, fr, gr = np.zeros(n), np.zeros(r), np.zeros(n), np.zeros(r)
    Q = _project(Q_logits, fq, gq, rows, column, sweeps)
    R = _project(R_logits, fr, gr, rows, column, sweeps)
    for _ in range(steps):
        into_q = U @ (V.T @ R) * r
        into_r = V @ (U.T @ Q) * r
        top = 0.0
        for G in (into_q, into_r):
            for i in range(n):  # a constant of the row does not change the projected step, but would set its scale
                G[i] -= G[i].mean()
            top = max(top, np.abs(G).max())
        if top <= 1e-14:  # every split costs the same
            break
        for i in range(n):
            for z in range(r):
                Q_logits[i, z] -= size / top * into_q[i, z]
                R_logits[i, z] -= size / top * into_r[i, z]
        Q = _project(Q_logits, fq, gq, rows, column, sweeps)
        R = _project(R_logits, fr, gr, rows, column, sweeps)
    return Q, R


@njit(cache=True)
def split_by_capacity(Q, capacity):
    """The column of each row that maximises the sum of Q, with exactly ``capacity`` rows a column.

    Greedy by the margin between the best and the second best column, then cycles of moves that gain are carried out
    until none is left, which is the optimum of this transportation problem.
    """
    n, r = Q.shape
    column = np.empty(n, dtype=np.int64)
    if r == 1:
        column[:] = 0
        return column
    margin = np.empty(n)
    for i in range(n):
        best, second = -np.inf, -np.inf
        for z in range(r):
            if Q[i, z] > best:
                best, second = Q[i, z], best
            elif Q[i, z] > second:
                second = Q[i, z]
        margin[i] = second - best
    left = np.full(r, capacity)
    for i in np.argsort(margin, kind="mergesort"):
        chosen = -1
        for z in range(r):
            if left[z] > 0 and (chosen < 0 or Q[i, z] > Q[i, chosen]):
                chosen = z
        column[i] = chosen
        left[chosen] -= 1
    loss, mover = np.empty((r, r)), np.empty((r, r), dtype=np.int64)
    for _ in range(4 * n):
        loss[:] = np.inf  # of moving the row that minds least from one column to another
        for i in range(n):
            z = column[i]
            for other in range(r):
                if other != z and Q[i, z] - Q[i, other] < loss[z, other]:
                    loss[z, other] = Q[i, z] - Q[i, other]
                    mover[z, other] = i
        # Bellman-Ford from everywhere at once; a node still relaxed in round r hangs on a negative cycle
        distance, before, hit = np.zeros(r), np.full(r, -1), -1
        for _ in range(r):
            hit = -1
            for a in range(r):
                for b in range(r):
                    if a != b and distance[a] + loss[a, b] < distance[b] - 1e-12:
                        distance[b], before[b], hit = distance[a] + loss[a, b], a, b
            if hit < 0:
                break
        if hit < 0:
            break
        for _ in range(r):
            hit = before[hit]
        b = hit
        while True:
            a = before[b]
            column[mover[a, b]] = b
            b = a
            if b == hit:
                break
    return column


@njit(cache=True, fastmath={"reassoc", "contract", "arcp"})
def majorise(target, X, rounds, tolerance):
    """SMACOF: X (transposed, d x n) and its stress after majorising sum_{i<j} (target_ij - |x_i - x_j|)^2."""
    dimensions, n = X.shape
    previous, stress = np.inf, 0.0
    ratio = np.empty(n)
    for _ in range(rounds):
        stress = 0.0
        new = np.empty_like(X)
        for i in range(n):
            ratio[:] = 0.0
            for k in range(dimensions):
                here = X[k, i]
                for j in range(n):
                    ratio[j] += (here - X[k, j]) ** 2
            for j in range(n):
                apart = np.sqrt(ratio[j])
                stress += (target[i, j] - apart) ** 2
                ratio[j] = target[i, j] / max(apart, 1e-150)  # coinciding points do not pull
            for k in range(dimensions):
                here, pull = X[k, i], 0.0
                for j in range(n):
                    pull += ratio[j] * (here - X[k, j])
                new[k, i] = pull / n
        X = new
        if previous - stress <= tolerance * stress:
            break
        previous = stress
    return X, stress / 2
