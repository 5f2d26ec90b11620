"""Polar maps: the factor U V' of a matrix U S V', exactly, smoothed, or by Newton-Schulz iteration.

All work on batches, on the small side of the matrix. The exact and the smoothed map have an analytic derivative.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

METHODS = ("exact", "svd", "smoothed", "newton_schulz", "cubic")
QUINTIC = (3.4445, -4.7750, 2.0315)  # Muon's: steep at zero, does not converge
CUBIC = (1.5, -0.5, 0.0)  # converges to the polar factor
RANK_TOLERANCE = 1e-12  # of a singular value, relative to max(shape) and the largest one ever seen
# Below this s_min / s_max the Gram matrix, whose condition number is the square, has lost too many digits.
GUARD = {torch.float64: 1e-3}
GUARD_SINGLE = 1e-4


def polar(G: Tensor, method: str = "exact", beta: float = 0.0, ns_steps: int = 5, *,
          largest: Tensor | float | None = None, ns_dtype: torch.dtype | None = None) -> Tensor:  # fmt: skip
    r"""Polar factor of a matrix, or a map near it.

    With ``G = U S V'`` (singular values s):

    * ``"exact"``: ``U V'`` over the non-zero singular values. From the eigenvectors of the small side's Gram matrix,
      O(m r^2); where that would lose digits (s_min / s_max below 1e-4, for float64 1e-3), from the SVD.
    * ``"svd"``: the same from the SVD; the reference.
    * ``"smoothed"``: ``G (G'G + beta I)^{-1/2} = U diag(s / sqrt(s^2 + beta)) V'``, the gradient of
      ``sum sqrt(s^2 + beta)``. It tends to the exact map as beta -> 0 and to ``G / sqrt(beta)`` as beta -> inf.
    * ``"newton_schulz"``: Muon's quintic iteration from ``G / max(||G||_F, 1e-7)``, as `torch.optim.Muon`: after 5
      steps the singular values lie in about [0.68, 1.13] for s >= .01 ||G||_F, and lower below that.
    * ``"cubic"``: the Newton-Schulz iteration that converges to the polar factor, given enough steps.

    Parameters
    ----------
    G : Tensor (..., m, n)
        Real matrices; float32 or float64 (bfloat16 and float16 are computed in float32).
    method : str
        See above.
    beta : float
        Of "smoothed", >= 0, in the unit of s^2.
    ns_steps : int
        Iterations of "newton_schulz" and "cubic", >= 1.
    largest : Tensor (...) or float, optional
        The scale against which a singular value counts as zero: those below ``1e-12 max(m, n) largest`` are, and so are
        those below rounding, ``10 eps s_max``. By default s_max of each matrix. An optimiser gives the largest
        it ever saw: the polar factor of a gradient that is rounding noise would be a full step.
    ns_dtype : torch.dtype, optional
        Of the iteration; by default the matrix's own.

    Returns
    -------
    Tensor (..., m, n)
        In the dtype of G. The polar factor of a zero matrix is zero.

    Raises
    ------
    ValueError
        For an unknown method, beta < 0, ns_steps < 1, fewer than two dimensions, or numbers that are not finite.
    """
    check_options(method, beta, ns_steps, METHODS)
    if not isinstance(G, Tensor) or not G.is_floating_point():
        raise TypeError(f"G: expected a real floating-point Tensor, got {getattr(G, 'dtype', type(G).__name__)}")
    if G.dim() < 2:
        raise ValueError(f"G: expected matrices (..., m, n), got shape {tuple(G.shape)}")
    if not finite(G):
        raise ValueError("G: holds NaN or infinity; a polar factor needs finite numbers")
    if G.numel() == 0:
        return G.clone()
    flat = G.reshape(-1, *G.shape[-2:])
    top = None if largest is None else torch.as_tensor(largest, device=G.device).expand(G.shape[:-2]).reshape(-1)
    return orthogonalise(flat, method, beta, ns_steps, top, ns_dtype)[0].view(G.shape)


def check_options(method: str, beta: float, ns_steps: int, choices: tuple[str, ...], name: str = "method") -> None:
    """Raise ValueError for an option out of range; the message lists what is accepted."""
    if method not in choices:
        raise ValueError(f"{name}: got {method!r}; expected one of {', '.join(choices)}")
    if not (isinstance(beta, int | float) and math.isfinite(beta) and beta >= 0):
        raise ValueError(f"beta: got {beta!r}; expected a finite number >= 0")
    if not (isinstance(ns_steps, int) and ns_steps >= 1):
        raise ValueError(f"ns_steps: got {ns_steps!r}; expected an integer >= 1")


def finite(G: Tensor) -> bool:
    """Whether all entries are finite; a finite sum proves it in a fraction of the time."""
    return bool(torch.isfinite(G.sum())) or bool(torch.isfinite(G).all())


def orthogonalise(G: Tensor, method: str, beta: float, ns_steps: int, largest: Tensor | None,
                  ns_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`polar` of a batch (k, m, n) of finite matrices, and what their singular values were measured against (k,)."""
    tall = G.shape[1] > G.shape[2]
    wide = G.mT.contiguous() if tall else G  # products over contiguous rows are two to three times as fast
    if method in ("newton_schulz", "cubic"):
        X = newton_schulz(wide, ns_steps, QUINTIC if method == "newton_schulz" else CUBIC, ns_dtype)
        reference = G.new_zeros(len(G)) if largest is None else largest
    else:
        work = wide if wide.dtype in (torch.float32, torch.float64) else wide.float()
        start = G.new_zeros(len(G), dtype=torch.float64) if largest is None else largest.double()
        path = _by_svd if method == "svd" else _by_gram
        arguments = work, beta if method == "smoothed" else 0.0, start
        needed = torch.is_grad_enabled() and G.requires_grad
        X, reference = _Spectral.apply(*arguments, path) if needed else path(*arguments)
    return (X.mT if tall else X).to(G.dtype), reference


def newton_schulz(G: Tensor, steps: int, coefficients: tuple[float, float, float], dtype: torch.dtype | None) -> Tensor:
    """X <- a X + (b X X' + c (X X')^2) X from G / ||G||_F, for a batch of wide matrices (k, m, n), m <= n."""
    a, b, c = coefficients
    X = G.to(dtype or G.dtype)
    X = X / torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    if len(X) == 1:  # two-dimensional products are the faster ones on a CPU
        Y = X[0]
        for _ in range(steps):
            gram = Y @ Y.T
            Y = torch.addmm(Y, torch.addmm(gram, gram, gram, beta=b, alpha=c), Y, beta=a)
        return Y[None]
    for _ in range(steps):
        gram = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), X, beta=a)
    return X


def _by_gram(G: Tensor, beta: float, largest: Tensor) -> tuple[Tensor, Tensor]:
    """By the eigenvectors of GG', in float64; the matrices that are too ill-conditioned for it by the SVD."""
    work = G.double()
    squares, u = torch.linalg.eigh(work @ work.mT)
    s = squares.clamp(min=0).sqrt()
    top = torch.maximum(largest, s[:, -1])
    root = (u * _inverse(s, beta, top, G)[:, None, :]) @ u.mT
    X = root.to(G.dtype) @ G
    bad = (squares[:, 0] + beta < GUARD.get(G.dtype, GUARD_SINGLE) ** 2 * squares[:, -1]).nonzero().flatten()
    if len(bad):
        X[bad], top[bad] = _by_svd(G[bad], beta, largest[bad])
    return X, top


def _by_svd(G: Tensor, beta: float, largest: Tensor) -> tuple[Tensor, Tensor]:
    """U diag(s / sqrt(s^2 + beta)) V' itself."""
    v, s, uh = torch.linalg.svd(G.mT, full_matrices=False)  # of the tall matrix: up to three times as fast
    values = s.double()
    top = torch.maximum(largest, values[:, 0])
    return ((v * (values * _inverse(values, beta, top, G)).to(G.dtype)[:, None, :]) @ uh).mT, top


def _inverse(s: Tensor, beta: float, largest: Tensor, G: Tensor) -> Tensor:
    """1 / sqrt(s^2 + beta); for beta = 0 zero where s counts as zero."""
    if beta > 0:
        return (s * s + beta).rsqrt()
    noise = 10 * torch.finfo(G.dtype).eps * s.amax(1)  # in float64 below the other
    floor = torch.maximum(RANK_TOLERANCE * max(G.shape[-2:]) * largest, noise)
    return torch.where(s > floor[:, None], 1 / s.clamp(min=torch.finfo(torch.float64).tiny), 0.0)


class _Spectral(torch.autograd.Function):
    """(GG' + beta)^{-1/2} G of wide matrices: the gradient of sum sqrt(s^2 + beta), so its Jacobian is symmetric."""

    @staticmethod
    def forward(ctx: Any, G: Tensor, beta: float, largest: Tensor, path: Any) -> tuple[Tensor, Tensor]:
        X, top = path(G, beta, largest)
        ctx.save_for_backward(G, top)
        ctx.beta = beta
        ctx.mark_non_differentiable(top)
        return X, top

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        (G, largest), beta, H = ctx.saved_tensors, ctx.beta, cotangents[0].double()
        u, s, vh = torch.linalg.svd(G.double(), full_matrices=False)
        h = _inverse(s, beta, largest, G)
        f = s * h
        total, pair = s[:, :, None] + s[:, None, :], h[:, :, None] * h[:, None, :]
        # (f_i + f_j) / (s_i + s_j), and by f^2 = 1 - beta h^2 the difference quotient without a cancellation
        odd = torch.where(total > 0, (f[:, :, None] + f[:, None, :]) / total.clamp(min=1e-300), pair.sqrt())
        even = beta * pair**2 / odd if beta > 0 else torch.zeros_like(odd)
        P = u.mT @ H @ vh.mT
        inside = 0.5 * (even * (P + P.mT) + odd * (P - P.mT)) @ vh
        outside = h[:, :, None] * (u.mT @ H - P @ vh)
        return (u @ (inside + outside)).to(G.dtype), None, None, None
