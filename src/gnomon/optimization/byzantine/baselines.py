"""What the solvers are compared with, beyond those of :mod:`solvers`: a local prox, and the exact minimiser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from gnomon.optimization.byzantine.losses import Inner
from gnomon.optimization.byzantine.solvers import INNER_TOL, Oracle


def local_prox(oracle: Oracle, x: np.ndarray, eta: float, inner: Inner) -> Iterator[np.ndarray]:
    """FedProx's proximal step on the server's loss after a gradient step, without the linear correction.

    x+ = argmin_z l(z) + |z - (x - eta g(x))|^2 / (2 eta): biased to the server's own optimum, whatever the clients say.
    """
    while True:
        yield x
        x = inner.solve(oracle(x), x, eta, x, lambda z, g: float(g @ g) <= INNER_TOL**2)


def newton_cg(objective: Any, x: np.ndarray, tol: float = 1e-11, most: int = 100) -> np.ndarray:
    """The minimiser of the honest objective, by Newton's method with conjugate gradients (knows who is honest).

    Parameters
    ----------
    objective : SoftmaxClients or alike
        With ``value_and_grad`` and ``hessian_product``.
    x : ndarray (d,)
        Start.
    tol : float
        On the norm of the gradient; it also ends where no step decreases the value any more.
    most : int
        Newton steps.
    """
    value, gradient = objective.value_and_grad(x)
    for _ in range(most):
        size = float(np.linalg.norm(gradient))
        if size <= tol:
            break
        here = x
        hessian = LinearOperator(
            (len(x), len(x)), matvec=lambda v, here=here: objective.hessian_product(here, v), dtype=float
        )
        step, _ = cg(hessian, -gradient, rtol=min(1e-2, size), maxiter=10 * len(x))
        length = 1.0
        while length > 1e-6:
            ahead, ahead_gradient = objective.value_and_grad(x + length * step)
            # near the end the value's digits are spent, and the gradient tells
            if ahead <= value + 1e-4 * length * float(gradient @ step) or np.linalg.norm(ahead_gradient) < 0.5 * size:
                break
            length /= 2
        else:
            break
        x, value, gradient = x + length * step, ahead, ahead_gradient
    return x
