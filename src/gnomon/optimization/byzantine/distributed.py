"""The same on a cluster: every rank holds one client, gathers what all send, and merges it by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.optimization.byzantine.aggregators import Aggregator

if TYPE_CHECKING:
    import torch


def robust_all_reduce(grad: torch.Tensor, aggregator: Aggregator, group: Any = None) -> torch.Tensor:
    """An all-reduce that up to f lying ranks cannot steer: all_gather, then the rule on every rank.

    Parameters
    ----------
    grad : Tensor
        This rank's gradient, of any shape; the same shape and dtype on all ranks.
    aggregator : Aggregator
        The rule, the same on all ranks; deterministic.
    group : ProcessGroup, optional
        By default all ranks.

    Returns
    -------
    Tensor
        The merged gradient, of the same shape. Every rank applies the rule to the same rows in the same order, so that
        on like machines all get the same bits.

    Raises
    ------
    RuntimeError
        Where torch.distributed is not initialised.
    ValueError, TypeError
        As the rule: n <= 2f, too many ranks that send NaN or infinity.
    """
    rows = gathered(grad, group)
    return aggregator(rows).reshape(grad.shape)


def gathered(grad: torch.Tensor, group: Any = None) -> torch.Tensor:
    """The flat gradients of all ranks, (world size, d)."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError("torch.distributed is not initialised; call init_process_group first")
    flat = grad.detach().reshape(-1).contiguous()
    rows = [torch.empty_like(flat) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, flat, group=group)
    return torch.stack(rows)


def gathered_array(values: np.ndarray, group: Any = None) -> np.ndarray:
    """The same for a float64 array."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda") if dist.is_initialized() and dist.get_backend(group) == "nccl" else None
    return gathered(torch.as_tensor(values, dtype=torch.float64, device=device), group).cpu().numpy()
