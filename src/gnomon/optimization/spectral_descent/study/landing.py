"""Where the flow ends: the global minimum from random starts, saddles from exact zeros."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gnomon.optimization.spectral_descent.study.contenders import flow
from gnomon.optimization.spectral_descent.study.growth import SPECTRA, Factorization, toy
from gnomon.study import Experiment, grid, higher, lower

M, N = 12, 14
SIGMA = np.array(SPECTRA["5 4 3 2 1"])
WRONG = ["".join(map(str, s)) for s in itertools.combinations(range(1, 6), 3) if s != (1, 2, 3)] + ["12"]


class Landing(Experiment):
    """Does the flow reach the global minimum from every random start?"""

    cells = grid(rank=[3, 5], lam=[0.0, 0.3], scale=[1e-3, 0.1, 1.0])
    contenders = {"flow": flow}
    metrics = {"excess": lower(), "spectrum_error": lower(), "factor_norm": lower(), "curvature": higher()}
    seeds = 25

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> tuple[Factorization, float]:
        Y = toy(rng, M, N, SIGMA)
        A, B = (cell.scale * rng.standard_normal(shape) for shape in ((M, cell.rank), (cell.rank, N)))
        return Factorization(A, B, Y, SIGMA), cell.lam

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        (A, B, Y, sigma), lam = problem
        # the factors move at unit speed
        path = contender(A, B, Y, lam, 4 + np.linalg.norm(A, 2) + np.linalg.norm(B, 2))
        goal = np.maximum(sigma[: A.shape[1]] - lam, 0)
        yield {"excess": float(path.excess), "spectrum_error": float(np.abs(path.singular_values[-1] - goal).max()),
               "curvature": float(path.curvature), "arrived": int(path.kind == "global"),
               "factor_norm": float(max(np.linalg.norm(path.A, 2), np.linalg.norm(path.B, 2)))}  # fmt: skip


class FarLanding(Landing):
    """The same from starts ten times the size of the target: minutes a run."""

    cells = grid(rank=[5], lam=[0.0, 0.3], scale=[10.0])
    seeds = 3


def stay(rng: np.random.Generator) -> list[np.ndarray]:
    """Coordinates of rows, columns and the inner dimension as they are: the zeros of the factors are exact."""
    return [np.eye(k) for k in (M, N, 3)]


def rotate(rng: np.random.Generator) -> list[np.ndarray]:
    """The same problem in random coordinates: the zeros are rounding noise."""
    return [np.linalg.qr(rng.standard_normal((k, k)))[0] for k in (M, N, 3)]


class Controls(Experiment):
    """A start that is aligned with a wrong subset of modes: a saddle, kept only while its zeros are exact."""

    cells = grid(modes=WRONG)
    contenders = {"exact zeros": stay, "rotated": rotate}
    metrics = {"excess": lower(), "escape": lower()}
    seeds = 1

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Factorization:
        Y, A, B = np.zeros((M, N)), np.zeros((M, 3)), np.zeros((3, N))
        Y[np.arange(5), np.arange(5)] = SIGMA
        for column, mode in enumerate(cell.modes):
            A[int(mode) - 1, column] = B[column, int(mode) - 1] = 0.1
        return Factorization(A, B, Y, SIGMA)

    def measure(self, problem: Factorization, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        P, Q, R = contender(rng)
        path = flow(P @ problem.A @ R, R.T @ problem.B @ Q, P @ problem.Y @ Q, 0.0, 8.0, points=401)
        used = np.linalg.norm(problem.A, axis=1)[:5] > 0
        saddle = np.zeros(3)
        saddle[: used.sum()] = SIGMA[used]
        gap = np.abs(path.singular_values - saddle).max(1)
        landed = int(np.argmax(gap < 0.05))
        away = np.flatnonzero(gap[landed:] > 0.5)
        yield {"kind": path.kind, "stays": int(path.kind == "saddle" and gap[-1] < 1e-3), "left": int(path.kind == "global"),
               "excess": float(path.excess), "curvature": float(path.curvature),
               "escape": float(path.t[landed + away[0]] - path.t[landed]) if len(away) else np.nan}  # fmt: skip
