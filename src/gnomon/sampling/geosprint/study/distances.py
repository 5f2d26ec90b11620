"""How far samples are from a reference: paired and as distributions."""

from __future__ import annotations

import numpy as np
import torch


def rmse(x: torch.Tensor, truth: torch.Tensor) -> float:
    """Root mean square over samples and pixels."""
    return float((x - truth).double().pow(2).mean().sqrt())


def frechet(x: np.ndarray, y: np.ndarray, ridge: float = 1e-6) -> float:
    """The Frechet distance of two Gaussians fitted to (n, d) and (m, d), covariances + ridge I."""
    C, D = (np.cov(z, rowvar=False) + ridge * np.eye(z.shape[1]) for z in (x, y))
    values, vectors = np.linalg.eigh(C)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ D @ root).clip(0)).sum()
    gap = x.mean(0) - y.mean(0)
    return float(max(gap @ gap + np.trace(C) + np.trace(D) - 2 * cross, 1e-12))


def mmd(x: np.ndarray, y: np.ndarray) -> float:
    """Squared maximum mean discrepancy with the cubic kernel (x'y / d + 1)^3, unbiased (it may be negative)."""

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray((a @ b.T / a.shape[1] + 1) ** 3)

    xx, yy = kernel(x, x), kernel(y, y)
    n, m = len(x), len(y)
    within = (xx.sum() - np.trace(xx)) / (n * (n - 1)) + (yy.sum() - np.trace(yy)) / (m * (m - 1))
    return float(within - 2 * kernel(x, y).mean())
