"""One dimension, exactly: what the sign of an averaged gradient does at the bottom of a parabola."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def muon_1d(
    x0: float, eta: float, steps: int, beta: float = 0.0, m0: float = 0.0, c: float = 1.0
) -> NDArray[np.float64]:
    """The iterates of ``m <- beta m + (1 - beta) c x, x <- x - eta sign(m)``, steps + 1 of them from x0.

    Raises
    ------
    ValueError
        For eta <= 0, beta outside [0, 1), c <= 0, or numbers that are not finite.
    """
    check(x0, m0, eta, beta, c)
    path = np.empty(steps + 1)
    path[0], m = x0, m0
    for t in range(steps):
        m = beta * m + (1 - beta) * c * path[t]
        path[t + 1] = path[t] - eta * np.sign(m)
    return path


def overshoot_1d(x0: float, m0: float, eta: float, beta: float, c: float = 1.0) -> float:
    """How far past the bottom of ``c x^2 / 2`` the first swing of momentum-sign descent goes.

    The sign of the buffer stays for K(beta) steps after the bottom is crossed, so that the overshoot is about K eta:
    0.85 eta / (1 - beta) while x0 / eta is much larger than 1 / (1 - beta), at most eta without momentum.

    Parameters
    ----------
    x0 : float
        Start; its sign does not matter where m0 has the same.
    m0 : float
        The buffer at the start.
    eta : float
        Step, > 0.
    beta : float
        Of the running average, in [0, 1).
    c : float
        Curvature, > 0.

    Returns
    -------
    float
        The largest distance on the other side before the first return; 0 where the bottom is met exactly.

    Examples
    --------
    >>> from gnomon.optimization import overshoot_1d
    >>> [round(overshoot_1d(50.5, 0.0, 1.0, beta), 1) for beta in (0.0, 0.9, 0.95)]
    [0.5, 8.5, 16.5]
    """
    check(x0, m0, eta, beta, c)
    side = math.copysign(1.0, x0 or m0 or 1.0)
    x, m, furthest = x0, m0, 0.0
    while True:
        m = beta * m + (1 - beta) * c * x
        if m == 0 or (furthest > 0 and math.copysign(1.0, m) != side):  # at rest, or on the way back
            return furthest
        x -= eta * math.copysign(1.0, m)
        furthest = max(furthest, -side * x)


def check(x0: float, m0: float, eta: float, beta: float, c: float) -> None:
    """Raise ValueError for what is out of range."""
    for name, value, ok, told in (("x0", x0, True, "a finite number"), ("m0", m0, True, "a finite number"),
                                  ("eta", eta, eta > 0, "a positive number"), ("beta", beta, 0 <= beta < 1, "a number in [0, 1)"),
                                  ("c", c, c > 0, "a positive number")):  # fmt: skip
        if not (math.isfinite(value) and ok):
            raise ValueError(f"{name}: got {value!r}; expected {told}")
