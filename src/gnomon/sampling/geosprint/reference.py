"""The hyperplanarity test as its equation reads: one batched QR of all windows. The fast path is tested against it."""

from __future__ import annotations

import numpy as np
import torch

from gnomon.sampling.geosprint.hyperplanarity import RANK, Span, trajectories


def profile_by_qr(X: torch.Tensor, order: int = 2, span: Span = "linear") -> np.ndarray:
    """r of each interval and trajectory, shape (J, n), by ``torch.linalg.qr`` of d x m (affine: d x (m - 1)) matrices.

    A column whose |R_kk| is below 1e-6 max |R| is dropped.
    """
    x = trajectories(X)
    windows = x.unfold(0, order + 1, 1)  # (J - m + 1, n, d, m + 1)
    before, end = windows[..., :-1], windows[..., -1]
    step = end - before[..., -1]
    columns = before if span == "linear" else before[..., :-1] - before[..., 1:]
    q, r = torch.linalg.qr(columns)
    diagonal = torch.diagonal(r, dim1=-2, dim2=-1).abs()
    keep = diagonal > RANK * r.abs().amax((-2, -1))[..., None]
    q = q * keep[..., None, :]
    target = end if span == "linear" else step
    rest = target - (q @ (q.mT @ target[..., None]))[..., 0]
    length = torch.linalg.vector_norm(step, dim=-1)
    found = torch.where(length > 0, torch.linalg.vector_norm(rest, dim=-1) / length, 0.0).cpu().numpy()
    return np.concatenate([found[:1]] * (order - 1) + [found])
