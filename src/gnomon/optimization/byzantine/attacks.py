"""What liars send. They know the honest messages and the aggregation rule (omniscient), and all send the same vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from gnomon.optimization.byzantine.aggregators import Aggregator, Mean, as_rows, namespace


class Attack:
    """What the liars send, given what the honest clients do."""

    def __call__(self, honest: Any, *, f: int = 1, aggregator: Aggregator | None = None, x: Any = None) -> Any:
        """The liars' vector (d,).

        Parameters
        ----------
        honest : array_like (h, d)
            The honest messages.
        f : int
            Number of liars.
        aggregator : Aggregator, optional
            The server's rule, for attacks that tune themselves to it.
        x : array, optional
            The point that was broadcast, for attacks that compute something of their own there.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Scaled(Attack):
    """Attacks of the form base + tau * direction."""

    tau: float = 1.0

    def line(self, honest: Any) -> tuple[Any, Any]:
        """Base and direction, both (d,)."""
        raise NotImplementedError

    def __call__(self, honest: Any, *, f: int = 1, aggregator: Aggregator | None = None, x: Any = None) -> Any:
        base, direction = self.line(as_rows(honest))
        return base + self.tau * direction


@dataclass(frozen=True)
class InnerProduct(Scaled):
    """Inner-product manipulation: -tau times the honest mean (Xie et al. 2020)."""

    tau: float = 2.0

    def line(self, honest: Any) -> tuple[Any, Any]:
        mean = namespace(honest).mean(honest, axis=0)
        return 0 * mean, -mean


@dataclass(frozen=True)
class SignFlip(InnerProduct):
    """The honest mean with its sign flipped."""

    tau: float = 1.0


@dataclass(frozen=True)
class ALIE(Scaled):
    """A little is enough: the honest mean plus tau standard deviations of each coordinate (Baruch et al. 2019).

    The standard deviation divides by h - 1.
    """

    tau: float = 1.5

    def line(self, honest: Any) -> tuple[Any, Any]:
        xp = namespace(honest)
        if honest.shape[0] < 2:
            raise ValueError(f"ALIE needs at least 2 honest clients, got {honest.shape[0]}")
        return xp.mean(honest, axis=0), xp.std(honest, axis=0, correction=1)


@dataclass(frozen=True)
class Optimised(Attack):
    """An attack whose tau is chosen in every round; made by :func:`optimised`."""

    attack: Scaled
    grid: tuple[float, ...] | None = None
    start: float = 0.0
    step: float = 10.0
    ratio: float = 0.8
    evaluations: int = 20

    def __call__(self, honest: Any, *, f: int = 1, aggregator: Aggregator | None = None, x: Any = None) -> Any:
        base, direction = self.attack.line(as_rows(honest))
        return base + self.best(honest, f=f, aggregator=aggregator)[0] * direction

    def best(
        self, honest: Any, *, f: int = 1, aggregator: Aggregator | None = None
    ) -> tuple[float, dict[float, float]]:
        """The chosen tau, and the deviation from the honest mean at every tau that was tried."""
        honest = as_rows(honest)
        xp = namespace(honest)
        rule = aggregator or Mean()
        base, direction = self.attack.line(honest)
        mean = xp.mean(honest, axis=0)
        rows = xp.concat([honest, xp.stack([base] * f)]) if f else honest
        tried: dict[float, float] = {}

        def deviation(tau: float) -> float:
            if tau not in tried:
                rows[honest.shape[0] :] = base + tau * direction
                tried[tau] = float(xp.linalg.vector_norm(rule.apply(rows) - mean))
            return tried[tau]

        if self.grid is not None:
            return max(self.grid, key=deviation), tried
        tau, most, step = self.start, deviation(self.start), self.step
        growing = True
        for _ in range(self.evaluations - 1):
            here = tau + step
            if (found := deviation(here)) > most:
                tau, most = here, found
                step *= 2 if growing else self.ratio
            else:
                growing = False
                step *= self.ratio
        return tau, tried


def optimised(attack: Scaled, grid: Sequence[float] | None = None) -> Optimised:
    """The attack with the tau that moves the aggregate farthest from the honest mean, chosen anew in every round.

    Parameters
    ----------
    attack : InnerProduct, ALIE or SignFlip
        Its own ``tau`` plays no part.
    grid : sequence of float, optional
        The taus to choose from. By default a line search (ByzFL's): from 0 with steps that double from 10 while the
        deviation grows, then shrink by 0.8; 20 evaluations of the server's rule.

    Raises
    ------
    TypeError
        For an attack without tau.
    ValueError
        For an empty grid.
    """
    if not isinstance(attack, Scaled):
        raise TypeError(f"attack: got {attack!r}; expected one with a tau: InnerProduct, ALIE, SignFlip")
    if grid is not None and len(grid) == 0:
        raise ValueError("grid: got no tau")
    return Optimised(attack, None if grid is None else tuple(map(float, grid)))


@dataclass(frozen=True)
class Mimic(Attack):
    """A copy of one honest client: it cannot be told from that client, and only shifts the weights."""

    client: int = 0

    def __call__(self, honest: Any, *, f: int = 1, aggregator: Aggregator | None = None, x: Any = None) -> Any:
        honest = as_rows(honest)
        if not 0 <= self.client < honest.shape[0]:
            raise ValueError(f"client: got {self.client}; expected one of the {honest.shape[0]} honest clients")
        return honest[self.client]


class Gaussian(Attack):
    """Independent normal coordinates.

    Parameters
    ----------
    mean, std : float
        Of every coordinate.
    random_state : int, Generator or None
        Of the draws, which are new in every round.
    """

    def __init__(self, mean: float = 0.0, std: float = 1.0, random_state: Any = None):
        self.mean, self.std, self.random_state = mean, std, random_state
        self._rng = np.random.default_rng(random_state)

    def __call__(self, honest: Any, *, f: int = 1, aggregator: Aggregator | None = None, x: Any = None) -> Any:
        honest = as_rows(honest)
        xp = namespace(honest)
        drawn = self._rng.normal(self.mean, self.std, honest.shape[1])
        return xp.asarray(drawn, dtype=honest.dtype, device=array_api_compat.device(honest))


class Zero(Attack):
    """Nothing: a vector of zeros."""

    def __call__(self, honest: Any, *, f: int = 1, aggregator: Aggregator | None = None, x: Any = None) -> Any:
        honest = as_rows(honest)
        return namespace(honest).zeros_like(honest[0])


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Honest gradients on data with wrong labels.

    Parameters
    ----------
    gradients : callable
        x -> (h, d), the clients' gradients on their data with flipped labels, e.g.
        ``SoftmaxClients.flipped().gradients``.
    """

    gradients: Callable[[Any], Any]

    def __call__(self, honest: Any, *, f: int = 1, aggregator: Aggregator | None = None, x: Any = None) -> Any:
        if x is None:
            raise ValueError("label flip needs the point that was broadcast: x")
        flipped = as_rows(self.gradients(x))
        return namespace(flipped).mean(flipped, axis=0)
