"""What spectral descent on factors is compared with: gradient flow in closed form, the whole matrix, truncated SVD.

Gradient descent, momentum and AdamW on the same factors are torch's own optimisers.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gnomon.optimization.spectral_descent.orthogonal import polar

Array = NDArray[np.float64]


def gradient_flow_spectrum(t: ArrayLike, sigma: ArrayLike, d0: float) -> Array:
    """Gradient flow from balanced aligned factors: d_i(t) = sigma_i / (1 + (sigma_i / d0 - 1) exp(-2 sigma_i t)), (T, s).

    Parameters
    ----------
    t : array (T,)
    sigma : array (s,)
        Singular values of Y, positive.
    d0 : float
        Singular values of AB at t = 0, positive.
    """
    time, target = np.asarray(t, float)[:, None], np.asarray(sigma, float)
    if not d0 > 0 or not (target > 0).all():
        raise ValueError(f"d0 {d0!r}: it and sigma must be positive; gradient flow does not leave zero")
    return np.asarray(target / (1 + (target / d0 - 1) * np.exp(-2 * target * time)))


def gradient_flow_half_times(sigma: ArrayLike, d0: float) -> Array:
    """When d_i = sigma_i / 2: ln(sigma_i / d0 - 1) / (2 sigma_i), largest mode first."""
    target = np.asarray(sigma, float)
    if not d0 > 0 or not (target > 2 * d0).all():
        raise ValueError(f"d0 {d0!r}: expected a positive number below half of every sigma")
    return np.asarray(np.log(target / d0 - 1) / (2 * target))


def truncated_svd(Y: ArrayLike, rank: int, lam: float = 0.0) -> tuple[Array, Array]:
    """The global minimum of the factorised objective: balanced factors of the leading modes, shrunk by lam."""
    u, s, vh = np.linalg.svd(np.asarray(Y, float), full_matrices=False)
    root = np.sqrt(np.maximum(s[:rank] - lam, 0.0))
    return u[:, :rank] * root, root[:, None] * vh[:rank]


def full_matrix_descent(Y: Array, rank: int, lr: float, steps: int, start: Array) -> tuple[Array, Array]:
    """Spectral descent on W itself, projected onto matrices of rank ``rank``: each mode grows at unit rate in d.

    Returns
    -------
    d : array (steps + 1, rank)
        Singular values of W before the first and after each step.
    W : array (m, n)
        At the end.
    """
    W, target = torch.tensor(start, dtype=torch.float64), torch.as_tensor(Y, dtype=torch.float64)
    found = [torch.linalg.svdvals(W)[:rank]]
    largest = 0.0
    for _ in range(steps):
        G = W - target
        largest = max(largest, float(torch.linalg.matrix_norm(G, 2)))
        u, s, vh = torch.linalg.svd(W - lr * polar(G, "svd", largest=largest), full_matrices=False)
        W = (u[:, :rank] * s[:rank]) @ vh[:rank]
        found.append(s[:rank])
    return torch.stack(found).numpy(), W.numpy()
