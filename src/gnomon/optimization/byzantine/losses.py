"""Losses that the server and the clients hold: quadratics, softmax regression, and whatever a person brings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp


class Loss(Protocol):
    """A function with its gradient."""

    def value_and_grad(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and the gradient (d,) at x (d,)."""


class Custom:
    """A callable x -> (value, gradient) as a loss."""

    def __init__(self, function: Callable[[Any], tuple[Any, Any]]):
        self.function = function

    def value_and_grad(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = self.function(x)
        return float(value), np.asarray(gradient, dtype=float)


class TorchLoss:
    """``model_fn(x, X, y)``, a scalar torch function of the flat parameters, with its gradient by autograd."""

    def __init__(self, model_fn: Callable[..., Any], X: Any, y: Any):
        import torch

        self.model_fn, self.X, self.y = model_fn, torch.as_tensor(X), torch.as_tensor(y)

    def value_and_grad(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        import torch

        p = torch.tensor(np.asarray(x), dtype=torch.float64, requires_grad=True)
        value = self.model_fn(p, self.X, self.y)
        (gradient,) = torch.autograd.grad(value, p)
        return float(value.detach()), gradient.numpy()


class ZeroLoss:
    """No server loss: the standard setting."""

    def value_and_grad(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        return 0.0, np.zeros_like(x)

    def prox(self, linear: np.ndarray, centre: np.ndarray, step: float) -> np.ndarray:
        """``argmin <linear, z> + |z - centre|^2 / (2 step)``."""
        return centre - step * linear


class QuadraticLoss:
    """``1/2 (x - centre)' H (x - centre)``, whose proximal step is solved exactly.

    Parameters
    ----------
    H : array_like (d, d)
        Symmetric.
    centre : array_like (d,), optional
        The minimiser (default 0).
    """

    def __init__(self, H: Any, centre: Any = 0.0):
        self.H = np.asarray(H, dtype=float)
        self.centre = np.broadcast_to(np.asarray(centre, dtype=float), self.H.shape[:1])

    def value_and_grad(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        gradient = self.H @ (x - self.centre)
        return float(0.5 * (x - self.centre) @ gradient), gradient

    def prox(self, linear: np.ndarray, centre: np.ndarray, step: float) -> np.ndarray:
        """``argmin <linear, z> + loss(z) + |z - centre|^2 / (2 step)``; an infinite step is no pull."""
        pull = 1 / step
        matrix = self.H + pull * np.eye(len(self.H))
        return np.linalg.solve(matrix, self.H @ self.centre - linear + pull * centre)


class SoftmaxLoss:
    """Mean cross-entropy of softmax regression plus ``l2 / 2 |W|^2``.

    Parameters
    ----------
    X : ndarray (m, p)
        Features; a column of ones stands for the intercept (and is penalised like the others).
    Y : ndarray (m, k)
        One-hot labels.
    l2 : float
        Also the loss's strong convexity.
    """

    def __init__(self, X: np.ndarray, Y: np.ndarray, l2: float):
        self.X, self.Y, self.l2 = X, Y, l2

    def value_and_grad(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        W = x.reshape(self.X.shape[1], self.Y.shape[1])
        value, residual = _cross_entropy(self.X @ W, self.Y)
        gradient = self.X.T @ residual / len(self.X) + self.l2 * W
        return float(value.mean() + 0.5 * self.l2 * (x @ x)), gradient.ravel()


def _cross_entropy(Z: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Loss of each row, and its derivative in the logits."""
    Z = Z - Z.max(axis=1, keepdims=True)
    exp = np.exp(Z)
    total = exp.sum(axis=1, keepdims=True)
    return np.log(total[:, 0]) - (Z * Y).sum(axis=1), exp / total - Y


class SoftmaxClients:
    """Softmax regression on the data of many clients, all gradients at once.

    Parameters
    ----------
    X : array_like (m, p)
        Features of all clients, with the intercept's column of ones.
    labels : array_like (m,) of int
        Classes 0 .. k - 1.
    clients : array_like (m,) of int
        Who holds which row: 0 .. n - 1, each with at least one row.
    l2 : float
        Strong convexity.
    n_classes : int, optional
        k, by default the largest label + 1.
    """

    def __init__(self, X: Any, labels: Any, clients: Any, l2: float, n_classes: int | None = None):
        clients = np.asarray(clients)
        order = np.argsort(clients, kind="stable")
        self.labels = np.asarray(labels)[order]
        self.X = np.ascontiguousarray(np.asarray(X, dtype=float)[order])
        self.k = int(n_classes or self.labels.max() + 1)
        self.Y = np.eye(self.k)[self.labels]
        self.sizes = np.bincount(clients)
        if (self.sizes == 0).any():
            raise ValueError(f"clients: {np.flatnonzero(self.sizes == 0).tolist()} hold no row")
        self.ends = np.cumsum(self.sizes)
        self.starts = self.ends - self.sizes
        self.l2 = l2
        self._share = np.repeat(1 / self.sizes, self.sizes) / len(self.sizes)  # the weight of a row in the objective
        self._last: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.X.shape[1] * self.k

    def __len__(self) -> int:
        return len(self.sizes)

    def _at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._last is None or not np.array_equal(self._last[0], x):
            self._last = (x.copy(), *_cross_entropy(self.X @ x.reshape(-1, self.k), self.Y))
        return self._last[1:]

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """Every client's gradient, (n, d)."""
        residual = self._at(x)[1]
        found = np.empty((len(self), self.size))
        for i, (a, b) in enumerate(zip(self.starts, self.ends, strict=True)):
            np.matmul(self.X[a:b].T, residual[a:b], out=found[i].reshape(-1, self.k))
        found /= self.sizes[:, None]
        found += self.l2 * x
        return found

    def values(self, x: np.ndarray) -> np.ndarray:
        """Every client's loss, (n,)."""
        loss = np.add.reduceat(self._at(x)[0], self.starts) / self.sizes
        return loss + 0.5 * self.l2 * float(x @ x)

    def value_and_grad(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective, which is the mean over clients, and its gradient."""
        loss, residual = self._at(x)
        gradient = self.X.T @ (residual * self._share[:, None]) + self.l2 * x.reshape(-1, self.k)
        return float(loss @ self._share + 0.5 * self.l2 * (x @ x)), gradient.ravel()

    def hessian_product(self, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The objective's Hessian at x times v."""
        p = self._at(x)[1] + self.Y
        z = self.X @ v.reshape(-1, self.k)
        z = p * (z - (p * z).sum(axis=1, keepdims=True)) * self._share[:, None]
        return (self.X.T @ z).ravel() + self.l2 * v

    def smoothness(self) -> float:
        """A bound on the objective's smoothness: half the largest eigenvalue of the second moment, plus l2."""
        return float(0.5 * np.linalg.eigvalsh(self.X.T @ (self.X * self._share[:, None]))[-1] + self.l2)

    def of(self, client: int) -> SoftmaxLoss:
        """One client's own loss."""
        a, b = self.starts[client], self.ends[client]
        return SoftmaxLoss(self.X[a:b], self.Y[a:b], self.l2)

    def flipped(self) -> SoftmaxClients:
        """The same clients with label c turned into k - 1 - c."""
        who = np.repeat(np.arange(len(self)), self.sizes)
        return SoftmaxClients(self.X, self.k - 1 - self.labels, who, self.l2, self.k)

    def probabilities(self, X: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Class probabilities of other rows (with their column of ones), (m, k)."""
        Z = X @ x.reshape(-1, self.k)
        return np.exp(Z - logsumexp(Z, axis=1, keepdims=True))


def as_loss(given: Any, name: str = "server_loss") -> Any:
    """A loss of what a person gives: a loss, a callable x -> (value, gradient), (model_fn, X, y), or 0 for none.

    Raises
    ------
    TypeError
        For anything else.
    """
    if hasattr(given, "value_and_grad"):
        return given
    if isinstance(given, int | float) and given == 0:
        return ZeroLoss()
    if isinstance(given, Sequence) and len(given) == 3 and callable(given[0]):
        return TorchLoss(*given)
    if callable(given):
        return Custom(given)
    raise TypeError(f"{name}: got {type(given).__name__}; expected a callable x -> (value, gradient), (model_fn, X, y), "
                    "a loss with value_and_grad, or 0")  # fmt: skip


class _GoodEnough(Exception):
    pass


class Inner:
    """The server's inner problem, ``argmin <linear, z> + loss(z) + |z - centre|^2 / (2 step)``.

    Exact where the loss has a ``prox``; else L-BFGS, warm-started, until ``small(z, gradient)``.

    Attributes
    ----------
    evaluations : int
        Gradients of the server's loss taken so far.
    """

    def __init__(self, loss: Any, max_evaluations: int = 2000):
        self.loss, self.max_evaluations = loss, max_evaluations
        self.evaluations = 0

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """The server loss's own gradient."""
        self.evaluations += 1
        return self.loss.value_and_grad(x)[1]

    def solve(self, linear: np.ndarray, centre: np.ndarray, step: float, start: np.ndarray,
              small: Callable[[np.ndarray, np.ndarray], bool]) -> np.ndarray:  # fmt: skip
        """The minimiser.

        Raises
        ------
        RuntimeError
            Where the residual stays large: the server's loss is not convex or not smooth.
        """
        if hasattr(self.loss, "prox"):
            return self.loss.prox(linear, centre, step)
        best: list[Any] = [np.inf, start]

        def function(z: np.ndarray) -> tuple[float, np.ndarray]:
            self.evaluations += 1
            value, gradient = self.loss.value_and_grad(z)
            away = z - centre
            value += float(linear @ z + away @ away / (2 * step))
            gradient = gradient + linear + away / step
            residual = float(np.linalg.norm(gradient))
            if residual < best[0]:
                best[:] = residual, z.copy()
            if small(z, gradient):
                raise _GoodEnough
            return value, gradient

        try:
            minimize(function, start, jac=True, method="L-BFGS-B",
                     options={"gtol": 0.0, "ftol": 0.0, "maxiter": self.max_evaluations, "maxfun": self.max_evaluations,
                              "maxcor": 10})  # fmt: skip
        except _GoodEnough:
            return best[1]
        # the line search ends where the value's digits do, long before 1e-10 is reached; that is no failure
        if not best[0] <= 1e-5 * (1 + float(np.linalg.norm(linear))):
            raise RuntimeError(f"the server's inner problem was not solved: residual {best[0]:.3g} after "
                               f"{self.max_evaluations} evaluations at most; is server_loss convex?")  # fmt: skip
        return best[1]
