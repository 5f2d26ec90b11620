"""Mixed-spiked matrix sensing: a landscape with one flat informative direction (the river) between steep ones (hills)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

Array = NDArray[np.float64]


class History(NamedTuple):
    """Loss and errors before the first and after each step: arrays (steps + 1,), hills (steps + 1, k)."""

    loss: Array
    river: Array
    hills: Array
    bulk: Array


class MixedSpikedSensing(nn.Module):
    r"""``f(W) = 1/(2N) sum (<A_i, W> - b_i)^2`` with measurements that see few directions well, or its population limit.

    ``A_i = sqrt(l_sig) xi_i d + sum_j sqrt(l_j) zeta_ij p_j + sqrt(l_bulk) Z_i``: standard Gaussian coefficients in an
    orthonormal basis of rank-one matrices u_i v_j', with ``d = u_0 v_0'`` the river, ``p_j = u_j v_j'`` the hills. The
    target is ``W* = river d`` (plus a bulk), the start ``W_0 = sum_j hills_j p_j``. The population Hessian has the
    eigenvalues signal, spikes and bulk on these directions.

    Parameters
    ----------
    m, n : int
        Shape of W.
    signal : float
        Curvature along the river.
    spikes : sequence of float
        Curvatures of the hills, at most min(m, n) - 1 of them.
    bulk : float
        Curvature of all other directions.
    samples : int, optional
        N; the population where None.
    noise : float
        Standard deviation of noise in b.
    seed : int
        Of the bases, the measurements and the noise.
    river : float
        Coordinate of the target along d.
    hills : float or sequence of float
        Coordinates of the start along the hills.
    decay : float
        q >= 0 of a bulk with the power-law spectrum ``bulk i^-q``.
    tail : float
        Frobenius norm of a bulk part of the target.

    Attributes
    ----------
    W : torch.nn.Parameter (m, n)
        Float64; starts at W_0.
    target, direction : Tensor (m, n)
        W* and d.

    Raises
    ------
    ValueError
        For an option out of range.

    Warns
    -----
    UserWarning
        Where no spike exceeds the signal (there is no river), or with fewer samples than mn.
    """

    def __init__(self, m: int = 24, n: int = 24, signal: float = 1.0, spikes: Sequence[float] = (100.0, 60.0, 40.0), bulk: float = 0.3,
                 samples: int | None = None, noise: float = 0.0, seed: int = 0, *, river: float = 5.0,
                 hills: float | Sequence[float] = 1.0, decay: float = 0.0, tail: float = 0.0) -> None:  # fmt: skip
        super().__init__()
        spikes = tuple(float(s) for s in spikes)
        if len(spikes) >= min(m, n):
            raise ValueError(f"spikes: got {len(spikes)}; expected at most min(m, n) - 1 = {min(m, n) - 1}")
        for name, value in (("signal", signal), ("bulk", bulk), *(("spikes", s) for s in spikes)):
            if not (np.isfinite(value) and value > 0):
                raise ValueError(f"{name}: got {value!r}; expected positive numbers")
        for name, value in (("noise", noise), ("decay", decay), ("tail", tail)):
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: got {value!r}; expected a number >= 0")
        if samples is not None and samples < 1:
            raise ValueError(f"samples: got {samples}; expected at least 1, or None for the population")
        if not spikes or min(spikes) <= signal:
            warnings.warn(
                f"spikes {spikes} do not all exceed the signal {signal}: there is no river", UserWarning, stacklevel=2
            )
        if samples is not None and samples < m * n:
            warnings.warn(f"underdetermined: {samples} samples of {m * n} unknowns", UserWarning, stacklevel=2)
        made = torch.Generator().manual_seed(seed)

        def gaussian(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=made)

        self.rows, self.columns = (torch.linalg.qr(gaussian(k, k)).Q for k in (m, n))
        k = len(spikes)
        weights = bulk * torch.arange(1, m * n + 1, dtype=torch.float64).pow(-decay).view(m, n)
        special = torch.tensor([signal, *spikes], dtype=torch.float64)
        weights.diagonal()[: k + 1] = special
        self.weights, self.flat = weights, decay == 0
        self.bulk_weight = bulk
        basis = self.rows[:, : k + 1].T[:, :, None] * self.columns[:, : k + 1].T[:, None, :]
        self.basis, self.special = basis.reshape(k + 1, -1), special
        self.direction = basis[0].clone()
        rest = gaussian(m, n)
        rest -= (self.basis.T @ (self.basis @ rest.flatten())).view(m, n)
        self.target = river * self.direction + tail * rest / rest.norm()
        start = torch.as_tensor(hills, dtype=torch.float64).expand(k)
        self.start = (start @ self.basis[1:]).view(m, n)
        self.W = nn.Parameter(self.start.clone())
        self.measured: Tensor | None = None
        self.answers = torch.zeros(0, dtype=torch.float64)
        if samples is not None:
            self.measured = gaussian(samples, m * n) * weights.flatten().sqrt()  # in the basis u_i v_j'
            self.answers = self.measured @ self._inside(self.target) + noise * gaussian(samples)

    def _inside(self, W: Tensor) -> Tensor:
        """Coordinates in the basis u_i v_j', flat."""
        return (self.rows.T @ W @ self.columns).flatten()

    def loss(self, W: Tensor) -> Tensor:
        """f(W), differentiable; in the population limit without the constant of the noise."""
        if self.measured is not None:
            rest = self.measured @ self._inside(W) - self.answers
            return 0.5 * (rest @ rest) / len(rest)
        gap = W - self.target
        return 0.5 * (gap * self._hessian(gap)).sum()

    def grad(self, W: Tensor) -> Tensor:
        """The gradient of f, by two products with the measurements, or O(mn k) in the population limit."""
        if self.measured is None:
            return self._hessian(W - self.target)
        rest = self.measured @ self._inside(W) - self.answers
        return self.rows @ (self.measured.T @ rest / len(rest)).view(W.shape) @ self.columns.T

    def _hessian(self, D: Tensor) -> Tensor:
        if self.flat:
            special = (self.special - self.bulk_weight) * (self.basis @ D.flatten())
            return self.bulk_weight * D + (self.basis.T @ special).view(D.shape)
        return self.rows @ (self.weights * (self.rows.T @ D @ self.columns)) @ self.columns.T

    def coordinates(self, W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Errors along the river () and the hills (k,), and the Frobenius norm of the rest ()."""
        gap = (W - self.target).flatten()
        inside = self.basis @ gap
        return inside[0], inside[1:], (gap - self.basis.T @ inside).norm()

    def curvature(self) -> float:
        """The largest eigenvalue of the Hessian: of the sample, by power iteration, where there is one."""
        if self.measured is None:
            return float(self.weights.max())
        x = torch.ones(self.measured.shape[1], dtype=torch.float64)
        for _ in range(200):
            x = self.measured.T @ (self.measured @ (x / x.norm())) / len(self.measured)
        return float(x.norm())

    def forward(self) -> Tensor:
        """The loss at W."""
        return self.loss(self.W)

    @torch.no_grad()
    def run(self, optimizer: Callable[[list[Tensor]], Optimizer], steps: int,
            schedule: Callable[[int], float] | None = None) -> History:  # fmt: skip
        """Steps of an optimiser from the start.

        Parameters
        ----------
        optimizer : callable
            Makes it from [W].
        steps : int
        schedule : callable, optional
            Multiplies the learning rate at step t = 0, 1, ...
        """
        self.W.copy_(self.start)
        made = optimizer([self.W])
        rates = [group["lr"] for group in made.param_groups]
        seen: list[tuple[float, ...]] = []
        for step in range(steps + 1):
            river, hills, bulk = self.coordinates(self.W)
            seen.append((float(self.loss(self.W)), float(river), float(bulk), *hills.tolist()))
            if step == steps:
                break
            self.W.grad = self.grad(self.W)
            for group, rate in zip(made.param_groups, rates, strict=True):
                group["lr"] = rate * (schedule(step) if schedule else 1.0)
            made.step()
        table = np.array(seen)
        return History(table[:, 0], table[:, 1], table[:, 3:], table[:, 2])
