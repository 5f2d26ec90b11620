"""Gradients with an error: all that the solvers ask for, whatever the source of the error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gnomon.optimization.byzantine.aggregators import Aggregator, as_rows, check_liars, finite
from gnomon.optimization.byzantine.attacks import Attack

Adversary = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


class InexactOracle:
    """A gradient with an error of at most ``sqrt(zeta^2 + alpha^2 |grad|^2)``.

    Robust aggregation, compression, quantisation and floating-point error all fit: ``|g - grad|^2 <= zeta^2 + alpha^2
    |grad|^2`` is everything that the rates of the solvers rest on.

    Parameters
    ----------
    grad : callable
        x (d,) -> exact gradient (d,).
    zeta, alpha : float
        Absolute and relative inexactness.
    adversary : {"fixed", "opposing", "random"} or callable
        Where the error points, always at its full length: to one fixed unit vector (``direction``, by default the
        diagonal), against the gradient, or anywhere. A callable (x, gradient, radius) -> error (d,) chooses itself,
        within the radius.
    direction : array_like (d,), optional
        Of the fixed error; normalised.
    random_state : int or Generator
        Of random errors.

    Attributes
    ----------
    rounds : int
        How often it was asked.
    """

    def __init__(self, grad: Callable[[np.ndarray], np.ndarray], zeta: float = 0.0, alpha: float = 0.0,
                 adversary: str | Adversary = "fixed", direction: Any = None, random_state: Any = 0):  # fmt: skip
        for name, value in (("zeta", zeta), ("alpha", alpha)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: got {value}; expected a finite number >= 0")
        if not callable(adversary) and adversary not in ("fixed", "opposing", "random"):
            raise ValueError(f"adversary: got {adversary!r}; expected 'fixed', 'opposing', 'random' or a callable")
        self.grad, self.zeta, self.alpha, self.adversary = grad, zeta, alpha, adversary
        self.direction = direction
        self.rounds = 0
        self._rng = np.random.default_rng(random_state)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The inexact gradient at x; one round.

        Raises
        ------
        ValueError
            Where an adversary's error is longer than the radius.
        """
        self.rounds += 1
        g = np.asarray(self.grad(x), dtype=float)
        radius = math.sqrt(self.zeta**2 + self.alpha**2 * float(g @ g))
        if callable(self.adversary):
            error = np.asarray(self.adversary(x, g, radius), dtype=float)
            if float(np.linalg.norm(error)) > radius * (1 + 1e-9) + 1e-300:
                raise ValueError(f"the adversary's error is {np.linalg.norm(error):.6g} long; the oracle promises at most "
                                 f"{radius:.6g}")  # fmt: skip
            return g + error
        if self.adversary == "fixed":
            way = np.ones_like(g) if self.direction is None else np.asarray(self.direction, dtype=float)
        else:
            way = -g if self.adversary == "opposing" else self._rng.normal(size=g.shape)
        length = float(np.linalg.norm(way))
        return g + (radius / length) * way if length > 0 else g


class RobustOracle:
    """One broadcast and one collection a call: the clients' gradients, the liars' vectors, merged by the server's rule.

    Parameters
    ----------
    gather : callable
        x (d,) -> messages (m, d).
    aggregator : Aggregator
        The server's rule.
    f : int
        Bound on the liars.
    attack : Attack, optional
        Simulated: f liars join the m clients and send what it says.
    worker_momentum : float
        In [0, 1): each honest client sends an exponential average of its gradients with this memory, not the last one.
    honest : array_like of int, optional
        Which of the messages are honest, where that is known (simulations): the log then compares with their mean.

    Attributes
    ----------
    rounds : int
        Calls.
    log : list of dict
        For each call ``dispersion`` (mean squared distance of honest messages to their mean), ``squared_norm`` of that
        mean, ``squared_error`` of the aggregate. Where it is not known who is honest, the n - f messages nearest to the
        aggregate stand for them, and the aggregate for their mean (error NaN).
    """

    def __init__(self, gather: Callable[[np.ndarray], Any], aggregator: Aggregator, f: int = 0,
                 attack: Attack | None = None, worker_momentum: float = 0.0, honest: Any = None):  # fmt: skip
        if not 0 <= worker_momentum < 1:
            raise ValueError(f"worker_momentum: got {worker_momentum}; expected a number in [0, 1)")
        self.gather, self.aggregator, self.f, self.attack = gather, aggregator, f, attack
        self.worker_momentum, self.honest = worker_momentum, honest
        self.rounds = 0
        self.log: list[dict[str, float]] = []
        self._average: np.ndarray | None = None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The merged gradient at x; one round.

        Raises
        ------
        ValueError
            Unless n > 2f; for messages of different lengths; where more than f clients send NaN or infinity.
        """
        self.rounds += 1
        sent = np.asarray(as_rows(self.gather(x)), dtype=float)
        if self.worker_momentum:
            before = sent if self._average is None else self._average
            sent = self._average = self.worker_momentum * before + (1 - self.worker_momentum) * sent
        merged = self.merge(sent, x)
        self.log.append(self._seen(sent, merged))
        return merged

    def merge(self, sent: np.ndarray, x: np.ndarray) -> np.ndarray:
        """What the server makes of these messages of the clients (no round, no log)."""
        rows = sent
        if self.attack is not None and self.f:
            good, _ = finite(sent, self.f)
            lie = np.asarray(self.attack(good, f=self.f, aggregator=self.aggregator, x=x), dtype=float)
            rows = np.concatenate([sent, np.tile(lie, (self.f, 1))])
        check_liars(len(rows), self.f)
        rows, dropped = finite(rows, self.f)
        rule = self.aggregator.without(dropped) if dropped else self.aggregator
        return np.asarray(rule.apply(rows), dtype=float)

    def _seen(self, sent: np.ndarray, merged: np.ndarray) -> dict[str, float]:
        if self.honest is not None or self.attack is not None or self.f == 0:
            rows = sent if self.honest is None else sent[np.asarray(self.honest)]
            mean = rows.mean(axis=0)
            error = float(((merged - mean) ** 2).sum())
            spread = float(((rows - mean) ** 2).sum() / len(rows))
        else:
            mean, error = merged, math.nan
            away = np.sort(((sent[np.isfinite(sent).all(axis=1)] - merged) ** 2).sum(axis=1))
            spread = float(away[: len(sent) - self.f].mean())
        return {"dispersion": spread, "squared_norm": float(mean @ mean), "squared_error": error}
