"""The continuous limit on 1/2 ||AB - Y||_F^2, its closed form on aligned starts, and where it can end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gnomon.optimization.spectral_descent.spectra import hitting_times, product_spectrum

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Trajectory:
    """A flow on 1/2 ||AB - Y||_F^2 + lam/2 (||A||_F^2 + ||B||_F^2).

    Attributes
    ----------
    t : array (T,)
    singular_values : array (T, r)
        Of A B, descending.
    A, B : array (m, r), (r, n)
        At the end.
    kind : {"global", "saddle", "unconverged"}
        Global: the value is the least one within 1e-6 of 1/2 ||Y||_F^2. Saddle: the gradient vanishes, and there is a
        direction of negative curvature.
    excess : float
        How far the value at the end is above the least one.
    curvature : float
        The second derivative at the end, per unit of squared length, along the direction that a missing mode would
        enter by: an upper bound of the Hessian's least eigenvalue.
    targets : array (min(r, s),)
        Singular values of AB at the minimum, (sigma_i - lam)_+, without the zeros.
    """

    t: Array
    singular_values: Array
    A: Array
    B: Array
    kind: Literal["global", "saddle", "unconverged"]
    excess: float
    curvature: float
    targets: Array

    def hitting_times(self, frac: float = 0.95) -> Array:
        """When each mode first reaches ``frac`` of its target, largest mode first; NaN where it never does."""
        return hitting_times(self.t, self.singular_values[:, : len(self.targets)], self.targets, frac)


def spectral_flow(A0: ArrayLike, B0: ArrayLike, Y: ArrayLike, beta: float = 1e-4, lam: float = 0.0, t_max: float = 4.0,
                  rtol: float = 1e-6, points: int = 401) -> Trajectory:  # fmt: skip
    r"""Spectral gradient flow ``A' = -T(G_A), B' = -T(G_B)``, T the smoothed polar map ``G (G'G + beta I)^{-1/2}``.

    G are the gradients of ``1/2 ||AB - Y||_F^2 + lam/2 (||A||_F^2 + ||B||_F^2)``. Dormand-Prince (`scipy` RK45) with an
    absolute tolerance of rtol/1000. The factors move at unit speed, so ``t_max`` must exceed the square root of the
    largest singular value of Y by the size of the start. The flow is stiff at the target, at a rate of about
    ``sigma / sqrt(beta)``: ten times less beta takes about 2.5 times as long.

    Parameters
    ----------
    A0, B0 : array (m, r), (r, n)
        Start.
    Y : array (m, n)
        Target.
    beta : float
        > 0. The limit beta = 0 is :class:`gnomon.optimization.SpectralDescent` with a small step.
    lam : float
        >= 0.
    t_max, rtol : float
    points : int
        Equally spaced times that are kept, >= 2.

    Raises
    ------
    ValueError
        For shapes that do not fit, r > min(m, n), numbers that are not finite, or an option out of range.
    RuntimeError
        When the integrator gives up.

    References
    ----------
    Kang et al., arXiv 2602.06385.

    Examples
    --------
    >>> import numpy as np
    >>> from gnomon.optimization import spectral_flow
    >>> Y = np.diag([4.0, 1.0])
    >>> path = spectral_flow(0.01 * np.eye(2), 0.01 * np.eye(2), Y, t_max=3)
    >>> path.kind
    'global'
    >>> path.hitting_times(0.9).round(1)  # the smaller first: sqrt(d) grows at rate 1 for both
    array([1.9, 0.9])
    """
    from scipy.integrate import solve_ivp

    A, B, target = _problem(A0, B0, Y, lam)
    if not (np.isfinite(beta) and beta >= 0):
        raise ValueError(f"beta: got {beta!r}; expected a positive number")
    if beta == 0:
        raise ValueError(
            "beta: got 0; the flow is then discontinuous: use SpectralDescent(orth='exact') with a small lr, or a positive beta"
        )
    for name, value in (("t_max", t_max), ("rtol", rtol)):
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name}: got {value!r}; expected a positive number")
    if points < 2:
        raise ValueError(f"points: got {points}; expected at least 2")
    shapes, border = (A.shape, B.shape), A.size

    def velocity(_: float, state: Array) -> Array:
        a, b = state[:border].reshape(shapes[0]), state[border:].reshape(shapes[1])
        step_a, step_b = _smooth(*gradients(a, b, target, lam), beta)
        return -np.concatenate([step_a.ravel(), step_b.ravel()])

    done = solve_ivp(velocity, (0.0, t_max), np.concatenate([A.ravel(), B.ravel()]), method="RK45", rtol=rtol,
                     atol=rtol * 1e-3, t_eval=np.linspace(0.0, t_max, points))  # fmt: skip
    if not done.success:
        raise RuntimeError(f"the integrator stopped at t = {done.t[-1]:g}: {done.message}")
    a = done.y[:border].T.reshape(-1, *shapes[0])
    b = done.y[border:].T.reshape(-1, *shapes[1])
    d = product_spectrum(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    sigma = np.linalg.svd(target, compute_uv=False)
    goal = np.maximum(sigma[: A.shape[1]] - lam, 0.0)
    goal = goal[goal > 1e-12 * max(sigma[0], 1e-300)]
    excess = objective(a[-1], b[-1], target, lam) - least_value(sigma, A.shape[1], lam)
    bend = escape_curvature(a[-1], b[-1], target, lam)
    return Trajectory(done.t, d, a[-1], b[-1], _kind(a[-1], b[-1], target, lam, excess, bend), excess, bend, goal)


def aligned_spectrum(t: ArrayLike, sigma: ArrayLike, a0: float, b0: float) -> Array:
    """The exact flow (beta = 0) from factors that are diagonal in Y's singular vectors: d_i(t), (T, s).

    ``(a0 + t)(b0 + t)`` until it reaches sigma_i, and sigma_i from then on: from a balanced start sqrt(d_i) = a0 + t
    whatever i, so that the smallest arrives first.

    Parameters
    ----------
    t : array (T,)
    sigma : array (s,)
        Singular values of Y.
    a0, b0 : float
        The factors' diagonals at t = 0, >= 0, with a0 b0 at most the least sigma.
    """
    time, target = np.asarray(t, float)[:, None], np.asarray(sigma, float)
    _start(target, a0, b0)
    return np.minimum((a0 + time) * (b0 + time), target)


def aligned_hitting_times(sigma: ArrayLike, a0: float, b0: float) -> Array:
    """When each mode of `aligned_spectrum` arrives: the positive root of (a0 + t)(b0 + t) = sigma_i.

    ``sqrt(sigma) - e`` for a0 = b0 = e, and ``(-b0 + sqrt(b0^2 + 4 sigma)) / 2`` for a0 = 0, as in LoRA.
    """
    target = np.asarray(sigma, float)
    _start(target, a0, b0)
    return np.asarray((np.sqrt((a0 - b0) ** 2 + 4 * target) - (a0 + b0)) / 2)


def gradients(A: Array, B: Array, Y: Array, lam: float = 0.0) -> tuple[Array, Array]:
    """(AB - Y) B' + lam A and A' (AB - Y) + lam B."""
    rest = A @ B - Y
    return rest @ B.T + lam * A, A.T @ rest + lam * B


def objective(A: Array, B: Array, Y: Array, lam: float = 0.0) -> float:
    """1/2 ||AB - Y||_F^2 + lam/2 (||A||_F^2 + ||B||_F^2)."""
    return float(0.5 * ((A @ B - Y) ** 2).sum() + 0.5 * lam * ((A**2).sum() + (B**2).sum()))


def least_value(sigma: ArrayLike, rank: int, lam: float = 0.0) -> float:
    """The least value of the objective: modes at (sigma_i - lam)_+ for the first ``rank``, at 0 for the others."""
    sigma = np.asarray(sigma, float)
    d = np.where(np.arange(len(sigma)) < rank, np.maximum(sigma - lam, 0.0), 0.0)
    return float((0.5 * (d - sigma) ** 2 + lam * d).sum())


def escape_curvature(A: Array, B: Array, Y: Array, lam: float = 0.0) -> float:
    """Second derivative, per squared length, along u w' and w v': u, v lead the residual, w is the least used direction.

    At a stationary point that is no minimum it is negative: the residual still holds a mode larger than that of w.
    """
    u, s, vh = np.linalg.svd(Y - A @ B)
    w = np.linalg.eigh(A.T @ A + B @ B.T)[1][:, 0]
    change = np.outer(u[:, 0], w @ B) + np.outer(A @ w, vh[0])
    return float(0.5 * (change**2).sum() - s[0] + lam)


def _kind(A: Array, B: Array, Y: Array, lam: float, excess: float, curvature: float) -> Literal[
    "global", "saddle", "unconverged"]:  # fmt: skip
    if excess <= 1e-6 * 0.5 * float((Y**2).sum()):
        return "global"
    size = np.linalg.norm(Y, 2) * (np.linalg.norm(A) + np.linalg.norm(B))
    still = sum(float(np.linalg.norm(g)) for g in gradients(A, B, Y, lam)) <= 1e-4 * size
    return "saddle" if still and curvature < 0 else "unconverged"


def _smooth(G: Array, H: Array, beta: float) -> tuple[Array, Array]:
    """G (G'G + beta)^{-1/2} and (HH' + beta)^{-1/2} H, by one call for both; an exact zero stays one."""
    squares, v = np.linalg.eigh(np.stack([G.T @ G, H @ H.T]))
    root = (v / np.sqrt(np.maximum(squares, 0.0) + beta)[:, None, :]) @ v.transpose(0, 2, 1)
    return G @ root[0], root[1] @ H


def _start(sigma: Array, a0: float, b0: float) -> None:
    if a0 < 0 or b0 < 0 or a0 * b0 > sigma.min():
        raise ValueError(f"a0 {a0!r}, b0 {b0!r}: expected numbers >= 0 with a product of at most {sigma.min():g}")


def _problem(A0: ArrayLike, B0: ArrayLike, Y: ArrayLike, lam: float) -> tuple[Array, Array, Array]:
    A, B, target = (np.array(value, float) for value in (A0, B0, Y))
    for name, value in (("A0", A), ("B0", B), ("Y", target)):
        if value.ndim != 2 or value.size == 0 or not np.isfinite(value).all():
            raise ValueError(f"{name}: expected a matrix of finite numbers, got shape {value.shape}")
    (m, n), r = target.shape, A.shape[1]
    if A.shape != (m, r) or B.shape != (r, n):
        raise ValueError(
            f"A0 and B0: got shapes {A.shape} and {B.shape}; expected ({m}, r) and (r, {n}) as Y is {m} x {n}"
        )
    check_rank(r, m, n)
    if not (np.isfinite(lam) and lam >= 0):
        raise ValueError(f"lam: got {lam!r}; expected a number >= 0")
    return A, B, target


def check_rank(rank: int, m: int, n: int) -> None:
    """Raise ValueError unless 1 <= rank <= min(m, n)."""
    if not 1 <= rank <= min(m, n):
        raise ValueError(
            f"rank: got {rank}; expected an integer from 1 to min(m, n) = {min(m, n)} of a {m} x {n} matrix"
        )
