r"""Entropic optimal transport between uniform weights, stabilised and over-relaxed.

:math:`OT_\varepsilon = \min_\pi \langle C, \pi\rangle + \varepsilon KL(\pi | \rho\otimes\mu)`. Potentials live in the log
domain; between absorptions the iterations are matrix products with one kernel (Schmitzer 2019). The cost and that
kernel are the only n x m arrays.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

ABSORB = 50.0  # scalings beyond exp(50) move into the potentials
WINDOW = 10  # iterations between looks at the marginals
DIVERGED = 10.0  # growth of the marginal error over a window that ends over-relaxation
TOLERANCE, MAX_ITER = 1e-6, 20_000


@dataclass(frozen=True)
class Entropic:
    r"""A solved problem.

    Attributes
    ----------
    value : float
        The regularised cost, KL term included: the dual value.
    cost : float
        :math:`\langle C, \pi\rangle` alone.
    f, g : ndarray, shape (n,), (m,)
        Potentials: :math:`\pi_{ij} = \exp((f_i + g_j - C_{ij}) / \varepsilon) / (n m)`.
    epsilon : float
    n_iter : int
        Updates of both potentials, over all regularisations on the way.
    marginal_error : float
        L1 distance of the plan's marginals from the weights.
    converged : bool
    """

    value: float
    cost: float
    f: Array
    g: Array
    epsilon: float
    n_iter: int
    marginal_error: float
    converged: bool


def sinkhorn(C: Any, epsilon: float, *, symmetric: bool = False, scaling: bool = False, tol: float = TOLERANCE,
             max_iter: int = MAX_ITER) -> Entropic:  # fmt: skip
    """Solve entropic OT for a cost matrix and uniform weights.

    Parameters
    ----------
    C : array or tensor, shape (n, m)
        Costs; worked on in double precision where a tensor is.
    epsilon : float
        Above 0, in the unit of C.
    symmetric : bool
        C is that of a cloud with itself: both potentials are one, updated by averaging, which takes few iterations.
    scaling : bool
        Start at the largest cost and halve down to ``epsilon``, one iteration each. Off: with over-relaxation it saves
        no iterations at the epsilons of this package (see the benchmark).
    tol : float
        L1 error of the marginals to stop at.
    max_iter : int
        Beyond it a ConvergenceWarning names the marginal error.
    """
    import torch

    C = torch.as_tensor(C).to(torch.float64)
    n, m = C.shape
    f, g = C.new_zeros(n), C.new_zeros(m)
    K = torch.empty_like(C)
    count = 0
    if scaling:
        eps = float(C.max())
        while eps > epsilon and count < max_iter:
            f, g = _log_step(C, K, f, g, eps, symmetric)
            count, eps = count + 1, eps / 2
    f, g = _log_step(C, K, f, g, epsilon, symmetric)
    count += 1
    error, last, omega = math.inf, math.inf, 1.0
    while True:
        _kernel(C, K, f, g, epsilon)  # the plan, times n m
        u, v = torch.ones_like(f), torch.ones_like(g)
        while True:
            row = K.mv(v).div_(m)
            if count % WINDOW == 0 or count >= max_iter:
                column = row if symmetric else K.T.mv(u).div_(n)
                error = float((u * row - 1).abs().mean() + (0.0 if symmetric else (v * column - 1).abs().mean()))
                if error <= tol or count >= max_iter or not math.isfinite(error):
                    break
                omega, last = _relaxation(omega, error / last), error
            if symmetric:
                u = (u / row).sqrt_()
                v = u
            else:
                u = u ** (1 - omega) * row.pow_(-omega)
                v = v ** (1 - omega) * K.T.mv(u).div_(n).pow_(-omega)
            count += 1
            if float(torch.maximum(u.log().abs().max(), v.log().abs().max())) > ABSORB:
                break
        f, g = f + epsilon * u.log(), g + epsilon * v.log()
        if error <= tol or count >= max_iter or not math.isfinite(error):
            break
    if not error <= tol:
        warnings.warn(f"Sinkhorn stopped after {count} iterations with a marginal error of {error:.2g}, above {tol:.2g}: "
                      "raise max_iter or epsilon", ConvergenceWarning, stacklevel=2)  # fmt: skip
    _kernel(C, K, f, g, epsilon)
    mass = float(K.mean())
    value = float(f.mean() + g.mean()) - epsilon * (mass - 1)
    cost = float(torch.dot(K.view(-1), C.reshape(-1))) / (n * m)
    return Entropic(value, cost, f.cpu().numpy(), g.cpu().numpy(), epsilon, count, error, error <= tol)


def _relaxation(omega: float, shrunk: float) -> float:
    """The over-relaxation that suits the rate seen over the last window.

    Near the solution Sinkhorn is Gauss-Seidel with contraction theta; relaxed by omega its rate is a lambda with
    (lambda + omega - 1)^2 = lambda omega^2 theta, and omega = 2 / (1 + sqrt(1 - theta)) is best (Lehmann et al. 2021).
    """
    if not 0 < shrunk < 1:
        return omega if shrunk < DIVERGED else 1.0
    rate = shrunk ** (1 / WINDOW)
    theta = min((rate + omega - 1) ** 2 / (rate * omega**2), 1 - 1e-6)
    return 2 / (1 + math.sqrt(1 - theta))


def _kernel(C: torch.Tensor, K: torch.Tensor, f: torch.Tensor, g: torch.Tensor, eps: float) -> None:
    """K = exp((f + g - C) / eps), in place."""
    K.copy_(C).neg_().add_(f[:, None]).add_(g).div_(eps).exp_()


def _log_step(C: torch.Tensor, K: torch.Tensor, f: torch.Tensor, g: torch.Tensor, eps: float,
              symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """One update of both potentials in the log domain; K is room to work in."""
    new = _soft_minimum(C, K, g, eps)
    if symmetric:
        f = (f + new) / 2
        return f, f
    return new, _soft_minimum(C.T, K.T, new, eps)


def _soft_minimum(C: torch.Tensor, K: torch.Tensor, g: torch.Tensor, eps: float) -> torch.Tensor:
    """-eps log mean_j exp((g_j - C_ij) / eps) for each i."""
    K.copy_(C).neg_().add_(g).div_(eps)
    top = K.amax(1)
    total = K.sub_(top[:, None]).exp_().mean(1)
    return -eps * (top + total.log_())
