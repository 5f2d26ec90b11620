"""The exact leaf: a mixed-integer program with one binary for each ReLU whose sign is open, solved by HiGHS.

A class is excluded only when the solver's *dual* bound of the margin is above ``SAFE``: the incumbent's value proves nothing.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor

from gnomon.guarantees.focusbranch.attack import Attack
from gnomon.guarantees.focusbranch.bounds import NodeBounds
from gnomon.guarantees.focusbranch.network import Add, Input, MaxPool, Network, Relu, forward

SAFE = 1e-5
SIGN = 0.9  # relative gap at which the sign of a margin is known


@dataclass
class Decision:
    """``status`` is "safe", "unsafe" (with the image) or "unknown"; ``dual`` the least dual bound met."""

    status: str
    image: np.ndarray | None = None
    dual: float = math.inf
    programs: int = 0


class Program:
    """The network over a node as linear constraints and binaries.

    Parameters
    ----------
    network : Network
        In float64.
    image : tensor (c, v)
        x.
    bounds : NodeBounds of one node
        Of all that goes into a ReLU or MaxPool, valid on the node.
    pixels : array of int, optional
        The pixels that may change; None for the ball, with a binary for each pixel.
    t : int
        Most pixels that change in the ball.
    """

    def __init__(self, network: Network, image: Tensor, bounds: NodeBounds, pixels: np.ndarray | None, t: int):
        self.network, self.bounds = network, bounds
        self.low: list[float] = []
        self.high: list[float] = []
        self.integer: list[int] = []
        self.rows: list[tuple[np.ndarray, np.ndarray, float]] = []  # columns, coefficients, upper limit
        x = image.double()
        c, v = x.shape
        free = np.arange(v) if pixels is None else np.asarray(pixels)
        self.free = free
        start = x.clone()
        if pixels is not None:
            start[:, free] = 0.0
        basis = [start.flatten()]
        for p in free.tolist():
            for channel in range(c):
                value = float(x[channel, p])
                self._variable(-value, 1 - value) if pixels is None else self._variable(0.0, 1.0)
                unit = torch.zeros(c, v, dtype=torch.float64)
                unit[channel, p] = 1
                basis.append(unit.flatten())
        if pixels is None:
            changed = [self._variable(0.0, 1.0, True) for _ in free]
            for i, p in enumerate(free.tolist()):
                for channel in range(c):
                    value, d = float(x[channel, p]), i * c + channel
                    self._row([d, changed[i]], [1.0, -(1 - value)], 0.0)
                    self._row([d, changed[i]], [-1.0, -value], 0.0)
            self._row(changed, [1.0] * len(changed), float(t))
        self.scores = self._walk(torch.stack(basis))

    def _variable(self, low: float, high: float, integer: bool = False) -> int:
        self.low.append(low)
        self.high.append(high)
        self.integer.append(int(integer))
        return len(self.low) - 1

    def _row(self, columns: Any, values: Any, limit: float) -> None:
        self.rows.append((np.asarray(columns, np.int64), np.asarray(values, float), limit))

    def _walk(self, image: Tensor) -> Tensor:
        """Scores as (1 + variables, classes): constants, then coefficients."""
        values: list[Tensor] = []
        for i, step in enumerate(self.network.steps):
            if isinstance(step, Input):
                values.append(image.reshape(-1, *step.shape))
                continue
            inputs = [values[j] for j in step.inputs]
            if isinstance(step, Relu | MaxPool):
                below = inputs[0].reshape(len(inputs[0]), -1)
                out = self._relu(step.inputs[0], below) if isinstance(step, Relu) else self._max(i, step, below)
                values.append(out.reshape(len(out), *step.shape))
            elif isinstance(step, Add):
                values.append(self._pad(inputs[0]) + self._pad(inputs[1]))
            else:
                constant = forward(step, [inputs[0][:1]])
                values.append(torch.cat([constant, forward(step, [inputs[0][1:]], constant=False)]))
        return self._pad(values[-1])

    def _pad(self, expression: Tensor) -> Tensor:
        missing = 1 + len(self.low) - len(expression)
        return torch.cat([expression, expression.new_zeros(missing, *expression.shape[1:])])

    def _over(self, column: Tensor) -> tuple[list[int], list[float], float]:
        """An expression as columns, coefficients and constant."""
        used = torch.nonzero(column[1:]).flatten()
        return used.tolist(), column[1:][used].tolist(), float(column[0])

    def _relu(self, source: int, below: Tensor) -> Tensor:
        low, high = self.bounds.lower[source][0], self.bounds.upper[source][0]
        open_ = torch.nonzero((low < 0) & (high > 0)).flatten().tolist()
        out = torch.where(low >= 0, below, 0.0)
        found = {}
        for n in open_:
            lo, up = float(low[n]), float(high[n])
            columns, coefficients, constant = self._over(below[:, n])
            y, z = self._variable(0.0, up), self._variable(0.0, 1.0, True)
            self._row([*columns, y], [*coefficients, -1.0], -constant)
            self._row([*columns, y, z], [*(-a for a in coefficients), 1.0, -lo], constant - lo)
            self._row([y, z], [1.0, -up], 0.0)
            found[n] = y
        out = self._pad(out)
        for n, y in found.items():
            out[:, n] = 0.0
            out[1 + y, n] = 1.0
        return out

    def _max(self, at: int, step: MaxPool, below: Tensor) -> Tensor:
        source = step.inputs[0]
        low, high = self.bounds.lower[source][0], self.bounds.upper[source][0]
        windows = step.windows(self.network.steps[source].shape)
        chosen: dict[int, int] = {}
        picked: dict[int, int] = {}
        for n, members in enumerate(windows):
            inside = members[members >= 0]
            best = inside[low[inside].argmax()]
            alive = inside[(high[inside] > low[best]) | (inside == best)]
            if len(alive) == 1:
                picked[n] = int(best)
                continue
            top = float(high[alive].max())
            y = self._variable(float(low[best]), top)
            binaries = [self._variable(0.0, 1.0, True) for _ in alive]
            for m, z in zip(alive.tolist(), binaries, strict=True):
                columns, coefficients, constant = self._over(below[:, m])
                self._row([*columns, y], [*coefficients, -1.0], -constant)
                wide = top - float(low[m])
                self._row([*columns, y, z], [*(-a for a in coefficients), 1.0, wide], constant + wide)
            self._row(binaries, [-1.0] * len(binaries), -1.0)
            chosen[n] = y
        below = self._pad(below)
        out = torch.zeros(len(below), len(windows), dtype=below.dtype)
        for n, m in picked.items():
            out[:, n] = below[:, m]
        for n, y in chosen.items():
            out[1 + y, n] = 1.0
        return out

    def least(self, label: int, other: int, time_limit: float, gap: float = 0.0) -> tuple[float, np.ndarray | None]:
        """Dual bound of the least margin f_label - f_other, and the incumbent's variables.

        The solver may stop at a relative ``gap`` of incumbent and dual bound: below 1 both then have the same sign.
        """
        objective = (self.scores[:, label] - self.scores[:, other]).numpy()
        n = len(self.low) + 1  # and a variable that is 1, so that the gap is one of the margin
        counts = [len(columns) for columns, _, _ in self.rows]
        constraints: Any = ()
        if self.rows:
            matrix = sparse.csr_matrix(
                (np.concatenate([v for _, v, _ in self.rows]), np.concatenate([c for c, _, _ in self.rows]),
                 np.concatenate([[0], np.cumsum(counts)])), shape=(len(self.rows), n))  # fmt: skip
            constraints = LinearConstraint(matrix, -np.inf, np.array([limit for _, _, limit in self.rows]))
        found = milp([*objective[1:], objective[0]], integrality=[*self.integer, 0], bounds=Bounds([*self.low, 1], [*self.high, 1]),
                     constraints=constraints, options={"time_limit": max(time_limit, 0.05), "mip_rel_gap": gap})  # fmt: skip
        dual = -math.inf
        if any(self.integer):
            if found.status in (0, 1) and found.mip_dual_bound is not None:
                dual = float(found.mip_dual_bound)
        elif found.status == 0:  # a linear program: its optimum is its bound
            dual = float(found.fun)
        return dual, None if found.x is None else np.asarray(found.x)

    def image(self, x: Tensor, variables: np.ndarray, ball: bool) -> Tensor:
        """The image that the variables say."""
        c = x.shape[0]
        out = x.double().clone()
        values = torch.from_numpy(variables[: len(self.free) * c].reshape(-1, c).T.copy())
        if ball:
            changed = torch.from_numpy(variables[len(self.free) * c : len(self.free) * (c + 1)] > 0.5)
            values = torch.where(changed, out + values, out)
        out[:, self.free] = values
        return out.clamp(0, 1)


def decide(network: Network, attack: Attack, bounds: NodeBounds, pixels: np.ndarray | None, t: int,
           time_limit: float) -> Decision:  # fmt: skip
    """Whether changing these pixels (or any t of the ball) can change the label.

    Parameters
    ----------
    network : Network
        In float64.
    attack : Attack
        Holds image, label and the real model that confirms.
    bounds : NodeBounds of one node
        In float64.
    pixels : array (t,) or None
        See :class:`Program`.
    t : int
        Most pixels that change.
    time_limit : float
        Seconds for all classes together.
    """
    deadline = time.monotonic() + time_limit
    others = [j for j in range(network.classes) if j != attack.label]
    open_ = [(float(m), j) for m, j in zip(bounds.margins[0], others, strict=True) if not m > 1e-6]
    if not open_:
        return Decision("safe")
    program = Program(network, attack.x, bounds, pixels, t)
    worst, solved = math.inf, 0
    for _, j in sorted(open_):
        dual, variables = program.least(attack.label, j, deadline - time.monotonic(), SIGN)
        solved += 1
        if (
            dual <= SAFE
            and variables is not None
            and attack.confirmed(program.image(attack.x, variables, pixels is None), t) is None
        ):
            dual, variables = program.least(attack.label, j, deadline - time.monotonic())  # too close for its sign
        worst = min(worst, dual)
        if variables is not None and dual <= SAFE:
            image = attack.confirmed(program.image(attack.x, variables, pixels is None), t)
            if image is not None:
                return Decision("unsafe", image, worst, solved)
        if dual <= SAFE and time.monotonic() > deadline:
            break
    return Decision("safe" if worst > SAFE else "unknown", None, worst, solved)
