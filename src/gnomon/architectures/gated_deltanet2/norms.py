"""How much one step of the rule can stretch a state."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BOUND", "transition_norm"]

#: Of the norm for unit keys and erase gates in [0, 1], attained by a binary gate that covers a third of the key.
BOUND = 2 / 3**0.5


def transition_norm(k: Tensor, b: Tensor, g: Tensor | None = None) -> Tensor:
    r"""Spectral norm of ``(I - k (b * k)^T) Diag(exp g)`` for keys of unit length.

    Without a decay the matrix acts on the plane of k and ``b * k`` alone, as
    ``[[1 - beta, -s], [0, 1]]`` with ``beta = sum(b k^2)`` and ``s^2 = sum(b^2 k^2) - beta^2``. Gates that differ by
    channel make it expansive: at most ``2 / sqrt(3)`` for gates in [0, 1], where a scalar gate stays at 1.

    Parameters
    ----------
    k : Tensor, shape [..., K]
        Keys of unit length.
    b : Tensor, shape [..., K]
        Erase gates. Above 1 (negative eigenvalues) the bound does not apply.
    g : Tensor, shape [..., K], optional
        Log-decays, at most 0. With them a singular value decomposition is taken.

    Returns
    -------
    Tensor, shape [...]

    Raises
    ------
    ValueError
        If the shapes differ, a key is not of unit length (to 1e-3), or g is positive.
    """
    for name, tensor in (("b", b), ("g", g)):
        if tensor is not None and tensor.shape != k.shape:
            raise ValueError(f"{name} must have the shape of k, {tuple(k.shape)}, got {tuple(tensor.shape)}")
    length = k.detach().square().sum(-1)
    if not ((length - 1).abs() <= 2e-3).all():
        raise ValueError(f"keys must be of unit length, got lengths from {float(length.min().sqrt()):g} "
                         f"to {float(length.max().sqrt()):g}")  # fmt: skip
    if g is not None:
        if not (g <= 0).all():
            raise ValueError(f"g is a log-decay and must be <= 0, got a maximum of {float(g.max()):g}")
        identity = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
        return torch.linalg.matrix_norm((identity - k[..., None] * (b * k)[..., None, :]) * g.exp()[..., None, :], 2)
    if k.shape[-1] == 1:
        return (1 - b[..., 0]).abs()
    beta = (b * k.square()).sum(-1)
    s2 = ((b * k).square().sum(-1) - beta.square()).clamp(min=0)
    # The larger root of x^2 - trace x + det = 0 for the squared singular values of the 2 x 2 matrix.
    half = ((1 - beta).square() + s2 + 1) / 2
    return (half + (half.square() - (1 - beta).square()).clamp(min=0).sqrt()).sqrt()
