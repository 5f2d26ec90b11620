"""Sums of circuits on several vtrees: decomposable, no longer structured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from gnomon.architectures.probabilistic_circuits.circuit import Circuit, Density
from gnomon.architectures.probabilistic_circuits.data import MOST
from gnomon.architectures.probabilistic_circuits.module import MixtureModule


class VtreeSum(Density):
    """A mixture of circuits, each on its own vtree, with free weights or chosen by an observed variable.

    Parameters
    ----------
    circuits : sequence of Circuit
        The parts (their weights are not used; `fit` makes its own).
    selector : int, optional
        The column of X whose symbol i says that the row belongs to part i. The parts are circuits over the *other*
        columns, in their order. The sum is then deterministic in that variable.
    """

    def __init__(self, circuits: Sequence[Circuit], selector: int | None = None) -> None:
        self.circuits = circuits
        self.selector = selector

    def _sizes(self, X: np.ndarray | None) -> tuple[int, ...]:
        if not len(self.circuits):
            raise ValueError("circuits: got none; expected at least one")
        inside = X
        if self.selector is not None and X is not None and X.ndim == 2:
            self._check_selector(X.shape[1])
            inside = np.delete(X, int(self.selector), 1)
        several = [c._sizes(inside) for c in self.circuits]
        if len(set(several)) > 1:
            raise ValueError(f"circuits: expected the same alphabets in all; got {sorted(set(several))}")
        sizes = list(several[0])
        if self.selector is not None:
            self._check_selector(len(sizes) + 1)
            sizes.insert(int(self.selector), len(self.circuits))
        return tuple(sizes)

    def _check_selector(self, columns: int) -> None:
        if not isinstance(self.selector, int | np.integer) or not 0 <= self.selector < columns:
            raise ValueError(f"selector: got {self.selector!r}; expected a column in [0, {columns})")

    def _module(self, sizes: tuple[int, ...]) -> MixtureModule:
        inner = [s for i, s in enumerate(sizes) if i != self.selector]
        return MixtureModule([c._module(tuple(inner)) for c in self.circuits], self.selector)

    def _weights(self) -> np.ndarray:
        module: MixtureModule = self._fitted()
        return module.weight.detach().softmax(-1).numpy()

    def fitted_circuits(self) -> list[Circuit]:
        """The fitted parts, as circuits of their own (they share their weights with the sum)."""
        inner = tuple(s for i, s in enumerate(self._all_sizes()) if i != self.selector)
        made = []
        for circuit, module in zip(self.circuits, self._fitted().parts, strict=True):
            new = Circuit(circuit.vtree, inner, circuit.width, circuit.product)
            made.append(new._keep(module, inner))
        return made

    def _all_sizes(self) -> tuple[int, ...]:
        self._fitted()
        return self.sizes_

    def joint(self) -> np.ndarray:
        """p(x) for every x, with one axis for each variable (at most 2^22 states)."""
        count = math.prod(self._all_sizes())
        if count > MOST:
            raise ValueError(f"{count} states are more than the {MOST} that are enumerated; sample instead")
        tables = [w * c.joint() for w, c in zip(self._weights(), self.fitted_circuits(), strict=True)]
        return np.sum(tables, 0) if self.selector is None else np.stack(tables, int(self.selector))

    def autoregressive(self, X: ArrayLike) -> np.ndarray:
        """log p(x_t = v | x_<t) [n, T, V]: the parts' predictions, weighted by how well each foretold the past."""
        rows = self._rows(X).numpy()
        n, T = rows.shape
        V = max(self.sizes_)
        logs = np.log(np.maximum(self._weights(), np.finfo(float).tiny))
        own = [t for t in range(T) if t != self.selector]
        each = np.full((len(self.circuits), n, T, V), -np.inf)
        for i, circuit in enumerate(self.fitted_circuits()):
            found = circuit.autoregressive(rows[:, own])
            each[i, :, own, : found.shape[-1]] = found.transpose(1, 0, 2)
        belief = np.repeat(logs[:, None], n, 1)  # [parts, n]
        out = np.full((n, T, V), -np.inf)
        for t in range(T):
            share = belief - np.logaddexp.reduce(belief, 0)
            if t == self.selector:
                out[:, t, : len(logs)] = share.T
                seen = rows[:, t] >= 0
                chosen = np.arange(len(logs))[:, None] == rows[None, :, t]
                belief = np.where(seen & ~chosen, -np.inf, belief)
                continue
            out[:, t] = np.logaddexp.reduce(share[:, :, None] + each[:, :, t], 0)
            told = np.take_along_axis(each[:, :, t], np.maximum(rows[:, t], 0)[None, :, None], -1)[..., 0]
            belief = belief + np.where(rows[:, t] >= 0, told, 0)
        return out

    def sample(self, n_samples: int = 1, *, random_state: int | None = None) -> np.ndarray:
        """Independent draws [n_samples, T]."""
        rng = np.random.default_rng(random_state)
        part = rng.choice(len(self.circuits), n_samples, p=self._weights())
        inner = [t for t in range(len(self._all_sizes())) if t != self.selector]
        out = np.zeros((n_samples, len(self.sizes_)), np.int64)
        if self.selector is not None:
            out[:, self.selector] = part
        for i, circuit in enumerate(self.fitted_circuits()):
            rows = np.flatnonzero(part == i)
            if len(rows):
                out[rows[:, None], inner] = circuit.sample(len(rows), random_state=int(rng.integers(2**31)))
        return out
