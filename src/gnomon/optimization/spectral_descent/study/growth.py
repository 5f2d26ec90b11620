"""How the spectrum of AB grows: the paper's toy problem, and real matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gnomon.optimization.spectral_descent.study.contenders import SWEPT, TOY, WholeMatrix
from gnomon.study import Experiment, grid, higher, lower

M, N, STEPS, LAG = 60, 70, 600, 10
SPECTRA = {"5 4 3 2 1": (5.0, 4.0, 3.0, 2.0, 1.0), "9 3 1": (9.0, 3.0, 1.0)}
TOP = 5.0  # largest singular value of the real matrices


class Factorization(NamedTuple):
    """Start and target of 1/2 ||AB - Y||_F^2."""

    A: np.ndarray
    B: np.ndarray
    Y: np.ndarray
    sigma: np.ndarray


def toy(rng: np.random.Generator, m: int, n: int, sigma: Any) -> np.ndarray:
    """A matrix with these singular values in random directions."""
    u, v = (np.linalg.qr(rng.standard_normal((k, len(sigma))))[0] for k in (m, n))
    return np.asarray(u @ np.diag(sigma) @ v.T)


def descend(problem: Factorization, contender: Any, steps: int = STEPS) -> tuple[np.ndarray, np.ndarray, float]:
    """Singular values after each step, the product at the end, and the learning rate."""
    from gnomon.optimization.spectral_descent.baselines import full_matrix_descent
    from gnomon.optimization.spectral_descent.descent import factor_descent

    A, B, Y, _ = problem
    if isinstance(contender, WholeMatrix):
        d, W = full_matrix_descent(Y, A.shape[1], contender.lr, steps, A @ B)
        return d, W, contender.lr
    rates: list[float] = []

    def make(params: Any) -> Any:
        optimizer = contender(params)
        rates.append(float(optimizer.param_groups[0]["lr"]))
        return optimizer

    d, A, B = factor_descent(A, B, Y, make, steps)
    return d, A @ B, rates[0]


def hits(d: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """The first step after which each mode has 95 % of its target, largest mode first; NaN where none."""
    reached = d[:, : len(sigma)] >= 0.95 * sigma
    return np.where(reached.any(0), reached.argmax(0), np.nan)


class Growth(Experiment):
    """Do the square roots of all singular values grow alike, and in which order do modes arrive?"""

    cells = (
        grid(spectrum=["5 4 3 2 1"], rank=[5], gamma=[1e-1, 1e-2, 1e-3, 1e-4])
        + grid(spectrum=["5 4 3 2 1"], rank=[3, 8], gamma=[1e-3])
        + grid(spectrum=["9 3 1"], rank=[3], gamma=[1e-3])
    )
    contenders = {**TOY, **SWEPT}
    metrics = {
        "spread": lower(), "spread_85": lower(), "law_error": lower("steps"), "span": lower(), "excess_residual": lower(),
        "rate_low": higher(), "rate_high": lower(), "third_rate": higher(), "third_hit": lower("steps"), "extra": lower(),
    }  # fmt: skip

    def includes(self, inputs: Any, cell: Any, contender: str) -> bool:
        if cell.gamma != 1e-3:
            return contender in ("exact", "gd")
        return contender in TOY or (cell.rank == 5)

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Factorization:
        sigma = np.array(SPECTRA[cell.spectrum])
        Y = toy(rng, M, N, sigma)
        return Factorization(np.zeros((M, cell.rank)), cell.gamma * rng.standard_normal((cell.rank, N)), Y, sigma)

    def measure(self, problem: Factorization, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        d, W, lr = descend(problem, contender)
        sigma, rank = problem.sigma, problem.A.shape[1]
        modes = min(rank, len(sigma))
        arrived = hits(d, sigma[:modes])
        whole = isinstance(contender, WholeMatrix)
        law = (0.95 * sigma[:modes] if whole else np.sqrt(0.95 * sigma[:modes])) / lr
        root = d if whole else np.sqrt(d)  # what the law says grows at unit rate
        rates = (root[LAG:, :modes] - root[:-LAG, :modes]) / (LAG * lr)
        start, *ends = (round(t / lr) for t in (0.2, 0.9, 0.85))
        row: dict[str, Any] = {}
        for end, name in zip(ends, ("", "_85"), strict=True):
            part = rates[start : end - LAG + 1]
            spread = np.ptp(part, axis=1) / np.maximum(np.abs(part.mean(1)), 1e-12)
            row |= {f"rate_low{name}": part.min(), f"rate_high{name}": part.max(), f"spread{name}": spread.max()}
        late = round(1.2 / lr)
        last = STEPS if np.isnan(arrived).any() else int(arrived.max())
        best = np.sqrt((sigma[rank:] ** 2).sum())
        row |= {
            "law_error": np.abs(arrived - law).max(), "span": arrived.max() / max(arrived.min(), 1),
            "smallest_first": int((np.diff(arrived) < 0).all()), "largest_first": int((np.diff(arrived) > 0).all()),
            "extra": d[: last + 1, modes:].max(initial=0.0) / sigma[0], "third_rate": rates[late, 2], "third_hit": arrived[2],
            "excess_residual": np.linalg.norm(W - problem.Y) - best,
            "band": 2 * lr * np.sqrt(sigma[:rank].sum()) + rank * lr**2,
        }  # fmt: skip
        row |= {f"hit_{i + 1}": arrived[i] for i in range(modes)}
        yield {name: float(value) for name, value in row.items()}


class Paths(Experiment):
    """The paths of the figure."""

    cells = grid(spectrum=["5 4 3 2 1"])
    contenders = {name: TOY[name] for name in ("exact", "newton-schulz", "gd", "adamw")}
    metrics = {"root": higher()}
    seeds = 1

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Factorization:
        sigma = np.array(SPECTRA[cell.spectrum])
        return Factorization(np.zeros((M, 5)), 1e-3 * rng.standard_normal((5, N)), toy(rng, M, N, sigma), sigma)

    def measure(self, problem: Factorization, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        d, _, lr = descend(problem, contender, 250)
        for step in range(0, len(d), 2):
            for mode in range(d.shape[1]):
                yield {"step": step, "mode": mode + 1, "root": float(np.sqrt(d[step, mode])), "lr": lr}


class Real(Experiment):
    """Rank 10 of the digits (1797 x 64) and of a photograph (256 x 256), scaled to a largest singular value of 5."""

    cells = grid(data=["digits", "camera"])
    contenders = TOY
    metrics = {"error_ratio": lower(), "order": higher(), "law_error": lower("steps")}
    seeds = 3

    def prepare(self, inputs: Any, cell: Any, rng: np.random.Generator) -> Factorization:
        Y = _digits() if cell.data == "digits" else _camera()
        Y = Y * (TOP / np.linalg.norm(Y, 2))
        sigma = np.linalg.svd(Y, compute_uv=False)
        return Factorization(np.zeros((len(Y), 10)), 1e-3 * rng.standard_normal((10, Y.shape[1])), Y, sigma)

    def measure(self, problem: Factorization, contender: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        from scipy.stats import spearmanr

        d, W, lr = descend(problem, contender)
        sigma = problem.sigma[:10]
        arrived = hits(d, sigma)
        known = ~np.isnan(arrived)
        law = np.sqrt(0.95 * sigma) / lr
        order = spearmanr(arrived[known], sigma[known])[0] if known.sum() > 2 else np.nan
        best = np.sqrt((problem.sigma[10:] ** 2).sum())
        yield {"error_ratio": float(np.linalg.norm(W - problem.Y) / best), "order": float(order), "arrived": int(known.sum()),
               "law_error": float(np.abs(arrived - law)[known].max(initial=0.0))}  # fmt: skip


def _digits() -> np.ndarray:
    from sklearn.datasets import load_digits

    return np.asarray(load_digits().data, float)


def _camera() -> np.ndarray:
    """The photograph of scikit-image's wheel, halved by means of 2 x 2 pixels."""
    from PIL import Image

    from gnomon.datasets import package_dir

    image = np.asarray(Image.open(package_dir("skimage", "scikit-image") / "data" / "camera.png"), float)
    return image.reshape(256, 2, 256, 2).mean((1, 3))
