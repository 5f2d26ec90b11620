"""Streaming moments, and least squares from them; polar and Procrustes factors; subspaces.

Moments and what is solved from them are float64 torch tensors, whatever the data's type; functions accept numpy arrays
too. Row-vector convention throughout: data X (N, p), Y (N, q), a map W (p, q) with predictions ``X @ W + b``.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

EPS = torch.finfo(torch.float64).eps
ROWS = 4096  # of a chunk: bounds the float64 copy of the data, and the length of float32 sums


class Fit(NamedTuple):
    """A linear map: predictions are ``X @ weight + bias``."""

    weight: Tensor
    bias: Tensor


def _gram(a: torch.Tensor) -> torch.Tensor:
    """A'A; numpy sees that both factors are one array and computes one half of it (BLAS syrk), torch does not."""
    if a.device.type != "cpu":
        return a.T @ a
    rows = a.numpy()
    return torch.from_numpy(rows.T @ rows)


class Moments:
    """Sums over the rows of X (N, p) and, where given, Y (N, q), accumulated chunk by chunk; the rows are not kept.

    Parameters
    ----------
    p : int
        Columns of X.
    q : int, optional
        Columns of Y; 0 when there is none.
    products : {"float64", "float32"}
        Type in which the products of a chunk are computed; sums are float64 either way. float32 is about twice as fast
        and keeps about 7 digits of each product's scale.
    device : str or torch.device
        Where the sums live.

    Attributes
    ----------
    n : float
        Sum of the weights: the number of rows when there are none.
    xx, xy : Tensor (p, p), (p, q)
        X'X and X'Y.
    x, y : Tensor (p,), (q,)
        Sums of the rows.
    y_square : float
        ||Y||^2, so that residuals follow from the sums alone.
    """

    def __init__(self, p: int, q: int = 0, *, products: Literal["float64", "float32"] = "float64",
                 device: str | torch.device = "cpu"):  # fmt: skip
        if p < 1 or q < 0:
            raise ValueError(f"p, q: got {p}, {q}; expected p >= 1 and q >= 0")
        if products not in ("float64", "float32"):
            raise ValueError(f"products: got {products!r}; expected 'float64' or 'float32'")
        zeros: Any = lambda *shape: torch.zeros(*shape, dtype=torch.float64, device=device)  # noqa: E731
        self.products = products
        self.n, self.y_square = 0.0, 0.0
        self.xx, self.xy, self.x, self.y = zeros(p, p), zeros(p, q), zeros(p), zeros(q)

    def __repr__(self) -> str:
        return f"Moments(p={self.xx.shape[0]}, q={self.xy.shape[1]}, n={self.n:g})"

    def update(self, x: Any, y: Any = None, weight: Any = None) -> Moments:
        """Add rows.

        Parameters
        ----------
        x, y : array (..., p), (..., q)
            All dimensions but the last are rows.
        weight : array (...), optional
            Non-negative weight of each row: X' diag(weight) X, and so on.

        Raises
        ------
        FloatingPointError
            When the rows are not finite; nothing is added then.
        """
        p, q = self.xy.shape
        x = _rows(x, p, "x")
        if (y is None) != (q == 0):
            raise ValueError(f"y: these moments have q = {q}, so y must {'not ' if q == 0 else ''}be given")
        y = x.new_zeros(len(x), 0) if y is None else _rows(y, q, "y")
        if len(x) != len(y):
            raise ValueError(f"y: got {len(y)} rows for the {len(x)} of x")
        if weight is not None:
            weight = torch.as_tensor(weight).detach().reshape(-1)
            if len(weight) != len(x):
                raise ValueError(f"weight: got {len(weight)} for {len(x)} rows")
            if not bool((weight >= 0).all()):
                raise ValueError("weight: expected non-negative numbers")
        dtype = torch.float64 if self.products == "float64" else torch.float32
        new = Moments(p, q, device=self.xx.device)
        for at in range(0, len(x), ROWS):
            a = x[at : at + ROWS].to(self.xx.device, dtype)
            b = y[at : at + ROWS].to(self.xx.device, dtype)
            root, wa, wb = a, a, b
            if weight is None:
                new.n += len(a)
            else:
                w = weight[at : at + ROWS].to(self.xx.device, torch.float64)
                new.n += float(w.sum())
                root, wa, wb = a * w.sqrt()[:, None].to(dtype), a * w[:, None].to(dtype), b * w[:, None].to(dtype)
            new.xx += _gram(root)
            new.xy += wa.T @ b
            new.x += wa.sum(0, dtype=torch.float64)
            new.y += wb.sum(0, dtype=torch.float64)
            new.y_square += float((wb * b).sum(dtype=torch.float64))
        finite = torch.isfinite(new.x).all() and torch.isfinite(new.y).all() and torch.isfinite(new.xx).all()
        if not (bool(finite) and math.isfinite(new.y_square) and math.isfinite(new.n)):
            raise FloatingPointError("x, y or weight: expected finite numbers (or the products overflow)")
        return self.merge(new)

    def merge(self, other: Moments) -> Moments:
        """Add the sums of other rows, in place; returns self."""
        if other.xy.shape != self.xy.shape:
            raise ValueError(f"other: got {other!r}; expected moments of the same p and q as {self!r}")
        self.n += other.n
        self.y_square += other.y_square
        for name in ("xx", "xy", "x", "y"):
            own: Tensor = getattr(self, name)
            own += getattr(other, name).to(own.device)
        return self

    def centred(self) -> Moments:
        """The moments of the same rows less their means."""
        if self.n <= 0:
            raise ValueError("these moments hold no rows")
        out = Moments(*self.xy.shape, products=self.products, device=self.xx.device)
        out.n = self.n
        out.xx = self.xx - torch.outer(self.x, self.x) / self.n
        out.xy = self.xy - torch.outer(self.x, self.y) / self.n
        out.y_square = self.y_square - float(self.y @ self.y) / self.n
        return out

    def residual(self, weight: Tensor, bias: Tensor | None = None) -> float:
        """||X weight + bias - Y||^2 from the sums alone: tr(W'X'X W) - 2 tr(W'X'Y) + ||Y||^2, and the bias's terms.

        It is a difference of large numbers: below about 1e-12 of ||Y||^2 it is rounding.
        """
        w = as_float64(weight).to(self.xx.device)
        value = float((w * (self.xx @ w)).sum() - 2 * (w * self.xy).sum()) + self.y_square
        if bias is not None:
            b = as_float64(bias).to(self.xx.device)
            value += float(2 * b @ (self.x @ w - self.y)) + self.n * float(b @ b)
        return max(value, 0.0)


def as_float64(value: Any) -> Tensor:
    """A float64 tensor on the value's own device, without its graph."""
    return torch.as_tensor(value).detach().to(torch.float64)


def _rows(value: Any, columns: int, name: str) -> Tensor:
    rows = torch.as_tensor(value).detach()
    if rows.dim() == 0 or rows.shape[-1] != columns:
        raise ValueError(f"{name}: got shape {tuple(rows.shape)}; expected {columns} columns")
    if not rows.is_floating_point():
        rows = rows.double()
    return rows.reshape(-1, columns)


# --- least squares ---------------------------------------------------------------------------------------------------


def solve_ridge(gram: Any, cross: Any, ridge: float = 0.0) -> Tensor:
    """argmin_W ||X W - Y||^2 + ridge ||W||^2 from G = X'X and X'Y: (G + ridge I)^-1 X'Y by Cholesky.

    Raises
    ------
    ValueError
        When G + ridge I is not positive definite in float64 (take a larger ridge, or :func:`solve_min_norm`).
    """
    gram, cross = as_float64(gram), as_float64(cross)
    if not ridge >= 0 or not math.isfinite(ridge):
        raise ValueError(f"ridge: got {ridge}; expected a finite number >= 0")
    shifted = gram + ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    factor, info = torch.linalg.cholesky_ex(shifted)
    if int(info) or not bool(torch.isfinite(factor).all()):
        raise ValueError(f"gram: X'X + {ridge:g} I is not positive definite; take a larger ridge or the minimum norm")
    return torch.cholesky_solve(cross, factor)


def solve_min_norm(gram: Any, cross: Any, rtol: float | None = None) -> Tensor:
    """The least-squares W of minimum norm, G^+ X'Y, by the eigenvalues of G = X'X.

    Eigenvalues below ``rtol`` (default: p times the float64 epsilon) of the largest count as zero.
    """
    values, vectors, kept = _spectrum(gram, rtol)
    inverse = torch.where(kept, 1 / values.where(kept, torch.ones_like(values)), 0.0)
    return vectors @ (inverse[:, None] * (vectors.T @ as_float64(cross)))


def least_squares(moments: Moments, *, ridge: float = 0.0, intercept: bool = False,
                  solver: Literal["ridge", "pinv"] = "ridge", rtol: float | None = None) -> Fit:  # fmt: skip
    """Fit Y by X W + b from moments.

    Parameters
    ----------
    moments : Moments
        With q > 0.
    ridge : float
        Penalty on ||W||^2, absolute; never on the intercept.
    intercept : bool
        Fit b (both sides centred by their means, weighted as the moments are); else b = 0.
    solver : {"ridge", "pinv"}
        Cholesky of X'X + ridge I, or the minimum norm (``ridge`` must be 0 then).

    Returns
    -------
    Fit
        ``weight`` (p, q) and ``bias`` (q,), float64.
    """
    if solver not in ("ridge", "pinv"):
        raise ValueError(f"solver: got {solver!r}; expected 'ridge' or 'pinv'")
    if solver == "pinv" and ridge:
        raise ValueError(f"ridge: got {ridge} with solver='pinv', which takes none")
    if moments.n <= 0 or moments.xy.shape[1] == 0:
        raise ValueError(f"moments: {moments!r} holds nothing to fit")
    used = moments.centred() if intercept else moments
    weight = solve_ridge(used.xx, used.xy, ridge) if solver == "ridge" else solve_min_norm(used.xx, used.xy, rtol)
    bias = torch.zeros_like(moments.y)
    if intercept:
        bias = (moments.y - moments.x @ weight) / moments.n
    return Fit(weight, bias)


def solve_symmetric(gram: Any, cross: Any, rtol: float | None = None) -> Tensor:
    r"""The symmetric W that minimises ||X W - Y||^2: the solution of the Lyapunov equation G W + W G = X'Y + Y'X.

    Solved in the eigenbasis of G = X'X; on pairs of directions that X does not reach (eigenvalues below ``rtol``, as in
    :func:`solve_min_norm`) W is zero.
    """
    values, vectors, kept = _spectrum(gram, rtol)
    cross = as_float64(cross)
    if cross.shape != vectors.shape:
        raise ValueError(
            f"cross: got shape {tuple(cross.shape)}; a symmetric map needs X'Y square, {tuple(vectors.shape)}"
        )
    right = vectors.T @ (cross + cross.T) @ vectors
    values = values.where(kept, torch.zeros_like(values))
    sums = values[:, None] + values[None]
    inner = torch.where(sums > 0, right / sums.where(sums > 0, torch.ones_like(sums)), 0.0)
    result: Tensor = vectors @ inner @ vectors.T
    return (result + result.T) / 2


def sqrt_psd(gram: Any, rtol: float | None = None) -> Tensor:
    """The symmetric square root of a positive semi-definite matrix."""
    values, vectors, kept = _spectrum(gram, rtol)
    return (vectors * values.where(kept, torch.zeros_like(values)).sqrt()) @ vectors.T


def _spectrum(gram: Any, rtol: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues, eigenvectors, and which eigenvalues are not rounding."""
    gram = as_float64(gram)
    if gram.dim() != 2 or gram.shape[0] != gram.shape[1]:
        raise ValueError(f"gram: got shape {tuple(gram.shape)}; expected a square matrix")
    if not bool(torch.isfinite(gram).all()):
        raise ValueError("gram: expected finite numbers")
    values, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    limit = (len(gram) * EPS if rtol is None else rtol) * float(values.abs().max())
    return values, vectors, values > limit


# --- orthogonal factors and subspaces --------------------------------------------------------------------------------


def polar(matrix: Any) -> Tensor:
    """The orthogonal polar factor U V' of a matrix U S V' (p, q): the nearest one with orthonormal columns (or rows).

    For X'Y it is the orthogonal Procrustes solution, argmin ||X Q - Y||_F over orthogonal Q. Where a singular value is
    zero it is not unique, and one of the solutions is returned.
    """
    matrix = as_float64(matrix)
    if matrix.dim() != 2 or not bool(torch.isfinite(matrix).all()):
        raise ValueError(f"matrix: expected finite numbers (p, q), got shape {tuple(matrix.shape)}")
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    return u @ vh


def principal_angles(a: Any, b: Any) -> Tensor:
    """Angles between the column spans of a (p, k) and b (p, l), in radians, ascending, min(rank a, rank b) of them.

    Small angles come from sines and large ones from cosines, so both are exact to rounding (Bjorck and Golub 1973).
    """
    qa, qb = _orthonormal(a, "a"), _orthonormal(b, "b")
    if len(qa) != len(qb):
        raise ValueError(f"b: got {len(qb)} rows; expected {len(qa)} as in a")
    if qa.shape[1] < qb.shape[1]:
        qa, qb = qb, qa
    cosines = torch.linalg.svdvals(qa.T @ qb).clamp(max=1)
    sines = torch.linalg.svdvals(qb - qa @ (qa.T @ qb)).clamp(max=1).flip(0)
    return torch.where(cosines**2 > 0.5, torch.asin(sines), torch.acos(cosines))


def _orthonormal(matrix: Any, name: str) -> Tensor:
    matrix = as_float64(matrix)
    matrix = matrix[:, None] if matrix.dim() == 1 else matrix
    if matrix.dim() != 2 or not bool(torch.isfinite(matrix).all()):
        raise ValueError(f"{name}: expected finite numbers (p, k), got shape {tuple(matrix.shape)}")
    u, s, _ = torch.linalg.svd(matrix, full_matrices=False)
    basis: Tensor = u[:, s > max(matrix.shape) * EPS * s[0]]
    if not basis.shape[1]:
        raise ValueError(f"{name}: spans nothing")
    return basis


def effective_rank(spectrum: Any) -> float:
    """exp of the entropy of the normalised spectrum (Roy and Vetterli 2007): from 1 to the number of values.

    Parameters
    ----------
    spectrum : array (k,) or (p, q)
        Non-negative values, or a matrix whose singular values are taken.
    """
    values = as_float64(spectrum)
    if not bool(torch.isfinite(values).all()) or values.dim() not in (1, 2) or values.numel() == 0:
        raise ValueError(f"spectrum: expected finite numbers (k,) or (p, q), got shape {tuple(values.shape)}")
    if values.dim() == 2:
        values = torch.linalg.svdvals(values)
    if bool((values < 0).any()):
        raise ValueError(f"spectrum: expected non-negative values, got {float(values.min()):g}")
    total = float(values.sum())
    if total == 0:
        return 0.0
    share = values / total
    return math.exp(-float(torch.special.xlogy(share, share).sum()))
