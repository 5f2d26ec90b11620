"""Any torch optimiser on the factors of 1/2 ||AB - Y||_F^2, with the spectrum of the product at every step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Optimizer

from gnomon.optimization.spectral_descent.spectra import product_spectrum

Array = NDArray[np.float64]


def factor_descent(A0: Array, B0: Array, Y: Array, optimizer: Callable[[list[torch.Tensor]], Optimizer], steps: int,
                   lam: float = 0.0, decay: bool = False) -> tuple[Array, Array, Array]:  # fmt: skip
    """Simultaneous steps of an optimiser on A and B.

    Parameters
    ----------
    A0, B0, Y : array (m, r), (r, n), (m, n)
    optimizer : callable
        Makes the optimiser from [A, B].
    steps : int
    lam : float
        Of lam/2 (||A||_F^2 + ||B||_F^2).
    decay : bool
        Let the learning rate fall linearly to 0.

    Returns
    -------
    d : array (steps + 1, r)
        Singular values of A B before the first and after each step.
    A, B : array
        At the end.
    """
    A, B = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (A0, B0))
    target = torch.tensor(Y, dtype=torch.float64)
    made = optimizer([A, B])
    rates = [group["lr"] for group in made.param_groups]
    factors = [(A.detach().clone(), B.detach().clone())]
    with torch.no_grad():
        for step in range(steps):
            rest = A @ B - target
            A.grad, B.grad = rest @ B.T + lam * A, A.T @ rest + lam * B
            for group, rate in zip(made.param_groups, rates, strict=True):
                group["lr"] = rate * (1 - step / steps) if decay else rate
            made.step()
            factors.append((A.detach().clone(), B.detach().clone()))
        d = torch.cat([product_spectrum(*(torch.stack(side) for side in zip(*part, strict=True)))
                       for part in (factors[i : i + 100] for i in range(0, len(factors), 100))])  # fmt: skip
    return d.numpy(), A.detach().numpy(), B.detach().numpy()
