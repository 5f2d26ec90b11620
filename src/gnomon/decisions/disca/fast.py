"""The quadrature of the correction, compiled.

Up to a persona (between the base and it) a shift gains exactly what it moves, whoever the persona is, so that the value
function is tabulated there; a power is taken only beyond a persona.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit(cache=True, inline="always")
def _value(x: float, kappa: float, power: float) -> float:
    return x**power if x >= 0 else -kappa * (-x) ** power


@numba.njit(cache=True)
def shifts(u: Any, z: Any, weight: Any, lam: float, kappa: float, eta: float, power: float) -> Any:
    """E_w[z] (N,) for standardised personas u (N, n) over nodes z (m,): as ``reference_shift``."""
    n, m = u.shape[1], len(z)
    towards_up, towards_down, own = np.empty(m), np.empty(m), np.empty(m)
    for j in range(m):
        towards_up[j] = _value(z[j], kappa, power)  # a persona above: the gain is z
        towards_down[j] = _value(-z[j], kappa, power)
        own[j] = lam * _value(-abs(z[j]), kappa, power) / eta
    share = (1 - lam) / (n * eta)
    found = np.empty(len(u))
    U = np.empty(m)
    for row in range(len(u)):
        U[:] = own
        for i in range(n):
            at = u[row, i]
            if at >= 0:
                for j in range(m):
                    U[j] += share * (towards_up[j] if z[j] <= at else _value(2 * at - z[j], kappa, power))
            else:
                for j in range(m):
                    U[j] += share * (towards_down[j] if z[j] >= at else _value(z[j] - 2 * at, kappa, power))
        top = U.max()
        total, moment = 0.0, 0.0
        for j in range(m):
            w = weight[j] * np.exp(U[j] - top)
            total += w
            moment += w * z[j]
        found[row] = moment / total
    return found
