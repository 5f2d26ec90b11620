"""Variational EM for factors that drive several channels of counts.

z_t ~ N(0, Sigma), or an AR(1) series with this marginal law; channel c sees a_ti = b_i + o_ti + L_i' z_t[columns_c].
q_t = N(m_t, V_t), V_t^-1 = Sigma^-1 + W_t. The bound

    sum_t sum_c E_q log p_c(t) - KL(q || prior) - ridge / 2 (sum of squared loadings)

never decreases: every step is halved until it does not, per bin in the E-step and per neuron in the M-step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon.geometry.burst_factors.channels import Channel
from gnomon.geometry.burst_factors.kernels import tridiagonal

Array = NDArray[np.float64]
HALVINGS = 6
SLACK = 1e-12  # relative: rounding of sums is no decrease


@dataclass(frozen=True)
class Loaded:
    """A channel with its intercepts (N,), loadings (N, len(columns)), offset (T, N) or None, and dispersion steps."""

    channel: Channel
    columns: NDArray[np.intp]
    intercept: Array
    loadings: Array
    offset: Array | None = None
    step: Array = field(default_factory=lambda: np.zeros(0))

    def predictor(self, m: Array, V: Array, rows: Any = slice(None)) -> tuple[Array, Array]:
        """Mean and variance (T, N) of a."""
        L, k = self.loadings, len(self.columns)
        a = m[:, self.columns] @ L.T + self.intercept
        if self.offset is not None:
            a = a + self.offset[rows]
        block = V[:, self.columns][:, :, self.columns].reshape(len(m), k * k)
        return a, np.maximum(block @ (L[:, :, None] * L[:, None, :]).reshape(len(L), k * k).T, 0.0)

    def at(self, rows: Any) -> Loaded:
        return replace(self, channel=self.channel.at(rows), offset=None if self.offset is None else self.offset[rows])


@dataclass(frozen=True)
class Prior:
    """Covariance (k, k) with unit blocks on the diagonal, and AR(1) coefficients (k,) or None for independent bins."""

    covariance: Array
    phi: Array | None = None

    @property
    def precision(self) -> Array:
        return np.asarray(np.linalg.inv(self.covariance), float)


@dataclass
class State:
    """q: means (T, k), site precisions W (T, k, k), covariances V (T, k, k), and log-determinants of the precision."""

    m: Array
    W: Array
    V: Array
    logdet: Array  # (T,), or a number for a time series


def independent(prior: Prior, m: Array, W: Array) -> State:
    J = prior.precision + W
    return State(m, W, np.asarray(np.linalg.inv(J), float), np.linalg.slogdet(J)[1])


class _Chain:
    """The AR(1) prior as a block-tridiagonal precision: diagonal blocks (first, inner, last) and the block above."""

    def __init__(self, prior: Prior, T: int):
        assert prior.phi is not None
        phi = prior.phi
        root = np.sqrt(1 - phi**2)
        innovation = prior.covariance * np.outer(root, root)
        stationary = innovation / (1 - np.outer(phi, phi))
        Q = np.linalg.inv(innovation)
        back = phi[:, None] * Q * phi
        self.diagonal = np.broadcast_to(Q + back, (T, len(phi), len(phi))).copy()
        self.diagonal[0] = np.linalg.inv(stationary) + (back if T > 1 else 0)
        if T > 1:
            self.diagonal[-1] = Q
        self.off = np.ascontiguousarray(-phi[:, None] * Q)
        self.logdet = -np.linalg.slogdet(stationary)[1] - (T - 1) * np.linalg.slogdet(innovation)[1]

    def times(self, m: Array) -> Array:
        out = np.einsum("tij,tj->ti", self.diagonal, m)
        out[:-1] += m[1:] @ self.off.T
        out[1:] += m[:-1] @ self.off
        return out


def expected(loaded: list[Loaded], m: Array, V: Array, rows: Any = slice(None)) -> list[tuple[Array, Array, Array]]:
    """Moments of each channel, (value, slope, curvature), each (T, N)."""
    return [part.channel.at(rows).moments(*part.predictor(m, V, rows)) for part in loaded]


def _gradient(loaded: list[Loaded], found: list[tuple[Array, Array, Array]], T: int, k: int) -> tuple[Array, Array]:
    """Gradient (T, k) of the expected log-likelihood by m, and the site precisions (T, k, k)."""
    g, W = np.zeros((T, k)), np.zeros((T, k, k))
    for part, (_, slope, curvature) in zip(loaded, found, strict=True):
        L, c = part.loadings, part.columns
        g[:, c] += slope @ L
        outer = (L[:, :, None] * L[:, None, :]).reshape(len(L), len(c) ** 2)
        W[:, c[:, None], c[None, :]] += (curvature @ outer).reshape(T, len(c), len(c))
    return g, W


def divergence(prior: Prior, q: State) -> Array:
    """KL(q_t || prior) of each bin (T,); of a time series the total (1,)."""
    quadratic = np.einsum("tij,tji->t", q.W, q.V)
    if prior.phi is None:
        energy = np.einsum("ti,ij,tj->t", q.m, prior.precision, q.m)
        return np.asarray((energy - quadratic + q.logdet + np.linalg.slogdet(prior.covariance)[1]) / 2)
    chain = _Chain(prior, len(q.m))
    energy = float((q.m * chain.times(q.m)).sum())
    return np.atleast_1d((energy - quadratic.sum() + q.logdet - chain.logdet) / 2)


def bound(loaded: list[Loaded], prior: Prior, q: State) -> float:
    """The bound without the ridge."""
    return float(sum(f[0].sum() for f in expected(loaded, q.m, q.V)) - divergence(prior, q).sum())


def start_state(loaded: list[Loaded], prior: Prior, m: Array) -> State:
    """Means as given, covariances from the curvature there."""
    T, k = m.shape
    _, W = _gradient(loaded, expected(loaded, m, np.zeros((T, k, k))), T, k)
    return _solved(prior, m, W)


def _solved(prior: Prior, m: Array, W: Array) -> State:
    if prior.phi is None:
        return independent(prior, m, W)
    _, V, logdet = tridiagonal(_Chain(prior, len(m)).diagonal + W, np.zeros_like(m), _Chain(prior, len(m)).off)
    return State(m, W, V, np.asarray(logdet))


def e_step(loaded: list[Loaded], prior: Prior, q: State, steps: int = 3, tol: float = 0.0) -> State:
    """Damped natural-gradient (Newton) steps on q; stops early when the bound gains less than ``tol`` relative."""
    return (_e_step_bins if prior.phi is None else _e_step_series)(loaded, prior, q, steps, tol)


def _e_step_bins(loaded: list[Loaded], prior: Prior, q: State, steps: int, tol: float) -> State:
    T, k = q.m.shape
    if k == 0:
        return q
    m, W, V, logdet = q.m.copy(), q.W.copy(), q.V.copy(), q.logdet.copy()
    found = expected(loaded, m, V)
    value = _per_bin(found) - divergence(prior, q)
    precision = prior.precision
    for _ in range(steps):
        g, target = _gradient(loaded, found, T, k)
        g -= m @ precision
        before = value.sum()
        rows, size = np.arange(T), 1.0
        for _ in range(HALVINGS):
            sites = W[rows] + size * (target[rows] - W[rows])
            trial = independent(prior, m[rows], sites)
            trial.m = m[rows] + size * np.einsum("tij,tj->ti", trial.V, g[rows])
            part = expected(loaded, trial.m, trial.V, rows)
            now = _per_bin(part) - divergence(prior, trial)
            ok = now >= value[rows] - SLACK * np.abs(value[rows])
            if ok.all():
                took, whole = rows, part
            else:
                took, whole = rows[ok], [tuple(x[ok] for x in f) for f in part]  # type: ignore[misc]
            m[took], W[took], V[took], logdet[took] = trial.m[ok], trial.W[ok], trial.V[ok], trial.logdet[ok]
            value[took] = now[ok]
            for old, new in zip(found, whole, strict=True):
                for x, y in zip(old, new, strict=True):
                    x[took] = y
            rows, size = rows[~ok], size / 2
            if not len(rows):
                break
        if value.sum() - before <= tol * abs(before):
            break
    return State(m, W, V, logdet)


def _per_bin(found: list[tuple[Array, Array, Array]]) -> Array:
    return np.asarray(sum(f[0].sum(1) for f in found))


def _e_step_series(loaded: list[Loaded], prior: Prior, q: State, steps: int, tol: float) -> State:
    T, k = q.m.shape
    chain = _Chain(prior, T)
    value = bound(loaded, prior, q)
    for _ in range(steps):
        g, target = _gradient(loaded, expected(loaded, q.m, q.V), T, k)
        g -= chain.times(q.m)
        before, size = value, 1.0
        for _ in range(HALVINGS):
            sites = q.W + size * (target - q.W)
            step, V, logdet = tridiagonal(chain.diagonal + sites, g, chain.off)
            trial = State(q.m + size * step, sites, V, np.asarray(logdet))
            if (now := bound(loaded, prior, trial)) >= value - SLACK * abs(value):
                q, value = trial, now
                break
            size /= 2
        if value - before <= tol * abs(before):
            break
    return q


def m_step(part: Loaded, q: State, ridge: float, steps: int = 2) -> Loaded:
    """Penalised Newton on (intercept, loadings) of all neurons at once; the Hessian is cut to its concave part.

    The gradient is exact. Of the Hessian the terms in V L, which vanish with the posterior variance, are left out.
    """
    m, V = q.m[:, part.columns], q.V[:, part.columns][:, :, part.columns]
    T, k = m.shape
    one = np.concatenate([np.ones((T, 1)), m], 1)
    second = one[:, :, None] * one[:, None, :]
    second[:, 1:, 1:] += V
    flat, penalty = second.reshape(T, (k + 1) ** 2), np.diag(np.r_[0.0, np.full(k, ridge)])
    N = len(part.intercept)
    theta = np.concatenate([part.intercept[:, None], part.loadings], 1)
    found = part.channel.moments(*part.predictor(q.m, q.V))
    value = found[0].sum(0) - ridge / 2 * (theta[:, 1:] ** 2).sum(1)
    for _ in range(steps):
        _, slope, curvature = found
        gradient = slope.T @ one
        gradient[:, 1:] -= np.einsum("nij,nj->ni", (curvature.T @ V.reshape(T, k * k)).reshape(N, k, k), theta[:, 1:])
        gradient[:, 1:] -= ridge * theta[:, 1:]
        H = (curvature.T @ flat).reshape(N, k + 1, k + 1) + penalty
        H[:, np.arange(k + 1), np.arange(k + 1)] *= 1 + 1e-10
        move = np.linalg.solve(H, gradient[:, :, None])[:, :, 0]
        columns, size = np.arange(N), 1.0
        for _ in range(HALVINGS):
            trial = theta[columns] + size * move[columns]
            cut = replace(part, channel=part.channel.at(columns=columns), intercept=trial[:, 0], loadings=trial[:, 1:],
                          offset=None if part.offset is None else part.offset[:, columns])  # fmt: skip
            new = cut.channel.moments(*cut.predictor(q.m, q.V))
            now = new[0].sum(0) - ridge / 2 * (trial[:, 1:] ** 2).sum(1)
            ok = now >= value[columns] - SLACK * np.abs(value[columns])
            theta[columns[ok]], value[columns[ok]] = trial[ok], now[ok]
            if ok.all() and len(columns) == N:
                found = new
            else:
                found = tuple(_placed(x, y, columns[ok], ok) for x, y in zip(found, new, strict=True))  # type: ignore[assignment]
            columns, size = columns[~ok], size / 2
            if not len(columns):
                break
    part = replace(part, intercept=theta[:, 0].copy(), loadings=theta[:, 1:].copy())
    if not part.channel.dispersed:
        return part
    channel, step = part.channel.redispersed(*part.predictor(q.m, q.V), part.step)
    return replace(part, channel=channel, step=step)


def _placed(x: Array, y: Array, columns: NDArray[np.intp], ok: NDArray[np.bool_]) -> Array:
    x = np.array(x)
    x[:, columns] = y[:, ok]
    return x


def prior_step(loaded: list[Loaded], prior: Prior, q: State, blocks: tuple[int, int], coupling: bool,
               ridge: float) -> tuple[list[Loaded], Prior, State]:  # fmt: skip
    """The coupling from the mean of E[x y'], with the factors brought to unit variance by the way.

    The change of basis z -> A^-1 z, L -> L A leaves the likelihood as it is and speeds EM up (parameter expansion); it
    is taken where the bound with its ridge does not fall, else the coupling alone, shortened until it does not.
    """
    a, b = blocks
    if a + b == 0:
        return loaded, prior, q
    S = (q.m.T @ q.m + q.V.sum(0)) / len(q.m)
    A, inverse = np.zeros((a + b, a + b)), np.zeros((a + b, a + b))
    for block in (slice(0, a), slice(a, a + b)):
        values, vectors = np.linalg.eigh(S[block, block])
        A[block, block] = (vectors * np.sqrt(values)) @ vectors.T
        inverse[block, block] = (vectors / np.sqrt(values)) @ vectors.T
    P = (inverse @ S @ inverse)[:a, a:]
    coupled = coupling and a > 0 and b > 0

    def correlated(P: Array) -> Array:
        return np.block([[np.eye(a), P], [P.T, np.eye(b)]])

    if prior.phi is not None:
        return (loaded, *_series_coupling(loaded, prior, q, P, correlated)) if coupled else (loaded, prior, q)
    new = Prior(correlated(P) if coupled else np.eye(a + b))
    J = np.linalg.inv(q.V)
    before = _penalised(loaded, prior, q, ridge)
    moved = [replace(part, loadings=part.loadings @ A[np.ix_(part.columns, part.columns)]) for part in loaded]
    basis = State(q.m @ inverse.T, A.T @ J @ A - new.precision, inverse @ q.V @ inverse.T,
                  q.logdet + 2 * np.linalg.slogdet(A)[1])  # fmt: skip
    if _penalised(moved, new, basis, ridge) >= before:
        return moved, new, basis
    size = 1.0
    for _ in range(HALVINGS if coupled else 0):
        new = Prior(prior.covariance + size * (correlated(P) - prior.covariance))
        same = State(q.m, J - new.precision, q.V, q.logdet)
        if _penalised(loaded, new, same, ridge) >= before:
            return loaded, new, same
        size /= 2
    return loaded, prior, q


def _penalised(loaded: list[Loaded], prior: Prior, q: State, ridge: float) -> float:
    """The part of the bound that a change of basis or of the prior touches."""
    return float(-divergence(prior, q).sum() - ridge / 2 * sum((part.loadings**2).sum() for part in loaded))


def _series_coupling(loaded: list[Loaded], prior: Prior, q: State, P: Array, correlated: Any) -> tuple[Prior, State]:
    before, size = bound(loaded, prior, q), 1.0
    for _ in range(HALVINGS):
        new = Prior(prior.covariance + size * (correlated(P) - prior.covariance), prior.phi)
        trial = _solved(new, q.m, q.W)
        if bound(loaded, new, trial) >= before:
            return new, trial
        size /= 2
    return prior, q


def fit(loaded: list[Loaded], prior: Prior, q: State, *, blocks: tuple[int, int], coupling: bool, ridge: float,
        max_iter: int, tol: float) -> tuple[list[Loaded], Prior, State, list[float]]:  # fmt: skip
    """Variational EM until the penalised bound gains less than ``tol`` relative; the bounds of all iterations."""
    loaded = [replace(p, step=np.full(len(p.intercept), np.log(2.0))) for p in loaded]
    trace: list[float] = []
    for _ in range(max_iter):
        q = e_step(loaded, prior, q)
        loaded = [m_step(part, q, ridge) for part in loaded]
        loaded, prior, q = prior_step(loaded, prior, q, blocks, coupling, ridge)
        trace.append(bound(loaded, prior, q) - ridge / 2 * sum(float((p.loadings**2).sum()) for p in loaded))
        if len(trace) > 1 and trace[-1] - trace[-2] < tol * abs(trace[-2]):
            break
    return loaded, prior, e_step(loaded, prior, q, 10, tol), trace
