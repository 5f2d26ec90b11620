"""What the robust gradient is worth: heterogeneity, similarity, and the floor that follows from them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnomon.optimization.byzantine.aggregators import as_rows

Gradient = Callable[[np.ndarray], np.ndarray]


def heterogeneity_of(dispersions: Any, squared_norms: Any) -> tuple[float, float]:
    """The least (G, B) with v_t <= G^2 + B^2 s_t at every point t.

    Minimises G^2 + B^2 mean(s) subject to these constraints, a linear program in (G^2, B^2).

    Parameters
    ----------
    dispersions, squared_norms : array_like (T,)
        v_t: mean squared distance of the honest gradients to their mean; s_t: squared norm of that mean.

    Returns
    -------
    (float, float)
        G and B.

    Raises
    ------
    ValueError
        For no points, different lengths, negative numbers, NaN or infinity.
    """
    from scipy.optimize import linprog

    v, s = np.asarray(dispersions, dtype=float), np.asarray(squared_norms, dtype=float)
    if v.ndim != 1 or v.shape != s.shape or len(v) == 0:
        raise ValueError(f"expected two lists of one length >= 1, got shapes {v.shape} and {s.shape}")
    if not (np.isfinite(v).all() and np.isfinite(s).all() and (v >= 0).all() and (s >= 0).all()):
        raise ValueError("expected finite numbers >= 0")
    unit_v, unit_s = max(float(v.max()), 1e-300), max(float(s.max()), 1e-300)
    found = linprog([1.0, float((s / unit_s).mean())], A_ub=-np.column_stack([np.ones_like(s), s / unit_s]), b_ub=-v / unit_v,
                    bounds=[(0, None)] * 2, method="highs")  # fmt: skip
    square, slope = (max(0.0, float(t)) for t in found.x)
    short = float(np.max(v / unit_v - square - slope * s / unit_s))  # the solver's own tolerance
    return math.sqrt((square + max(0.0, short)) * unit_v), math.sqrt(slope * unit_v / unit_s)


def estimate_heterogeneity(client_grads: Any) -> tuple[float, float]:
    """(G, B) of the honest clients: ``1/|H| sum |grad L_i - grad L|^2 <= G^2 + B^2 |grad L|^2`` at the points given.

    Parameters
    ----------
    client_grads : array_like (T, h, d), or a sequence of (h, d)
        The honest clients' gradients at T points, e.g. those that a solver visited.

    Returns
    -------
    (float, float)
        G and B, see :func:`heterogeneity_of`.

    Raises
    ------
    ValueError
        For no points, ragged gradients, NaN or infinity.
    """
    v, s = [], []
    for rows in client_grads:
        x = np.asarray(as_rows(rows), dtype=float)
        mean = x.mean(axis=0)
        v.append(float(((x - mean) ** 2).sum() / len(x)))
        s.append(float(mean @ mean))
    return heterogeneity_of(v, s)


def largest_curvature(product: Callable[[np.ndarray], np.ndarray], size: int, n_iter: int = 100, tol: float = 1e-4,
                      random_state: Any = 0) -> float:  # fmt: skip
    """The largest absolute eigenvalue of a symmetric operator, by power iteration: a lower bound that converges.

    Parameters
    ----------
    product : callable
        v (d,) -> operator times v.
    size : int
        d.
    n_iter : int
        The most iterations.
    tol : float
        Stop when the estimate changes by less than this, relatively.
    random_state : int or Generator
        Of the start.
    """
    v = np.random.default_rng(random_state).normal(size=size)
    v /= np.linalg.norm(v)
    found = 0.0
    for _ in range(n_iter):
        w = product(v)
        before, found = found, float(np.linalg.norm(w))
        if found == 0.0 or abs(found - before) <= tol * found:
            break
        v = w / found
    return found


def differences(grad: Gradient, x: np.ndarray) -> Gradient:
    """Hessian-vector products of a gradient at x, by central differences."""
    h = 1e-5 * (1 + float(np.linalg.norm(x)))
    return lambda v: (grad(x + h * v) - grad(x - h * v)) / (2 * h)


def estimate_smoothness(grad: Gradient, points: Any, n_iter: int = 100, random_state: Any = 0) -> float:
    """The smoothness of a loss near some points: the largest curvature there, by power iteration.

    Parameters
    ----------
    grad : callable
        x (d,) -> gradient (d,).
    points : array_like (d,) or (T, d)
        Where to look.
    n_iter : int
        Of the power iteration, at each point.
    random_state : int or Generator
        Of its start.

    Returns
    -------
    float
        From below: the true constant is at least the curvature at the points.

    Raises
    ------
    ValueError
        For NaN or infinity among the points or the gradients.
    """
    points = np.atleast_2d(np.asarray(points, dtype=float))
    if points.size == 0 or not np.isfinite(points).all():
        raise ValueError("points: expected at least one, of finite numbers")
    found = [
        largest_curvature(differences(grad, x), points.shape[1], n_iter, random_state=random_state) for x in points
    ]
    if not np.isfinite(found).all():
        raise ValueError("the gradient is not finite at one of the points")
    return max(found)


def estimate_similarity(grad: Gradient, server_grad: Gradient, points: Any, n_iter: int = 100,
                        random_state: Any = 0) -> float:  # fmt: skip
    """Delta: the smoothness of L - l near some points, L the clients' objective and l the server's loss.

    See :func:`estimate_smoothness`; ``grad`` and ``server_grad`` give the gradients of L and l.
    """
    return estimate_smoothness(lambda x: grad(x) - server_grad(x), points, n_iter, random_state)


@dataclass(frozen=True)
class Certificate:
    """What is known of a robust run.

    Attributes
    ----------
    n, f : int
        Clients and liars.
    kappa : float
        Certified robustness of the rule; NaN where nothing is proved for it, infinite for the mean.
    G, B : float
        Heterogeneity at the points that were visited.
    zeta, alpha : float
        Inexactness of the robust gradient: ``|g - grad L|^2 <= zeta^2 + alpha^2 |grad L|^2``.
    breakdown : bool
        Whether alpha >= 1: no method has a finite guarantee.
    mu : float or None
        Strong convexity.
    floor : float
        zeta^2 / (2 mu (1 - alpha^2)), the objective gap that gradient descent stays below in the end; infinite at
        breakdown, NaN without mu.
    rounds : dict of str to float
        For each solver whose constants are known, the predicted order of rounds that shrink the initial gap a hundredfold
        (while it is above the floor).
    """

    n: int
    f: int
    kappa: float
    G: float
    B: float
    zeta: float
    alpha: float
    breakdown: bool
    mu: float | None
    floor: float
    rounds: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.n} clients, at most {self.f} liars: kappa {self.kappa:.4g}",
                 f"heterogeneity G {self.G:.4g}, B {self.B:.4g}: inexactness zeta {self.zeta:.4g}, alpha {self.alpha:.4g}"]  # fmt: skip
        if self.breakdown:
            lines.append("alpha >= 1: no method has a finite guarantee")
        elif not math.isnan(self.floor):
            lines.append(f"the objective gap of gradient descent ends below {self.floor:.4g}")
        if self.rounds:
            told = ", ".join(f"{name} {count:.0f}" for name, count in self.rounds.items())
            lines.append(f"predicted rounds to a hundredth of the initial gap: {told}")
        return "\n".join(lines)


def certificate(kappa: float, G: float, B: float, n: int, f: int, *, mu: float | None = None,
                smoothness: float | None = None, similarity: float | None = None) -> Certificate:  # fmt: skip
    """The guarantee that follows from the rule's kappa and the clients' heterogeneity.

    Parameters
    ----------
    kappa : float
        Of the rule, see :func:`certified_kappa`.
    G, B : float
        Of the clients, see :func:`estimate_heterogeneity`.
    n, f : int
        Clients and liars.
    mu, smoothness, similarity : float, optional
        Strong convexity, smoothness of the objective, smoothness of its difference from the server's loss.

    Returns
    -------
    Certificate
        With a RuntimeWarning where kappa B^2 >= 1.
    """
    zeta, alpha = (math.sqrt(kappa) * t if t else 0.0 for t in (G, B))
    broken = alpha >= 1 or math.isinf(zeta)
    if broken:
        warnings.warn(f"kappa*B^2 = {alpha**2:.4g} >= 1: no method has a finite guarantee" if alpha >= 1 else
                      "kappa is infinite: no method has a finite guarantee", RuntimeWarning, stacklevel=2)  # fmt: skip
    floor = math.inf if broken else math.nan if not mu else zeta**2 / (2 * mu * (1 - alpha**2))
    return Certificate(n, f, kappa, G, B, zeta, alpha, broken, mu, floor,
                       {} if broken or not mu else predicted_rounds(mu, smoothness, similarity, alpha))  # fmt: skip


def predicted_rounds(mu: float, smoothness: float | None, similarity: float | None, alpha: float = 0.0,
                     shrink: float = 100.0) -> dict[str, float]:  # fmt: skip
    """Rounds that shrink the initial gap by a factor, from the rates (up to constants for the accelerated ones).

    Gradient descent L / (mu (1 - alpha^2)) ln, Nesterov sqrt(L / mu) ln, PIGS (1/2 + Delta / mu) ln, AEG two rounds an
    iteration, 4 max(1, sqrt(Delta / mu)) ln.
    """
    ln = math.log(shrink)
    found: dict[str, float] = {}
    if smoothness:
        found |= {"gd": ln * smoothness / (mu * max(1 - alpha**2, 1e-12)), "nesterov": ln * math.sqrt(smoothness / mu)}
    if similarity is not None:
        found |= {"pigs": ln * (0.5 + similarity / mu), "aeg": ln * 4 * max(1.0, math.sqrt(similarity / mu))}
    return found
