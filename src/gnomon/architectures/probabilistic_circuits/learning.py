"""Maximum likelihood for circuits: expectation-maximisation by expected flows, and Adam on the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def em_step(module: Any, x: Tensor, step: float = 1.0, pseudocount: float = 0.0) -> float:
    r"""One step of expectation-maximisation; returns the mean log-likelihood before it.

    The expected flow through a weight is the derivative of the log-likelihood by the logarithm of that weight,

    .. math:: F_{kj} = \sum_x \partial \log p(x) / \partial \log W_{kj},

    so that one backward pass gives those of all weights, and the step is :math:`W_k \leftarrow (1 - \eta) W_k + \eta
    F_k / \sum_j F_{kj}`. With :math:`\eta = 1` on all the data no step lowers the likelihood. A unit without flow
    stays as it is. A pseudocount is spread evenly over the nonzero weights of each unit and added to their flows: then
    no symbol becomes impossible because it was not seen.
    """
    logs = [w.detach().requires_grad_() for w in module.log_weights()]
    total = module(x, logs)
    flows = torch.autograd.grad(total.sum(), logs)
    new = []
    for log, flow in zip(logs, flows, strict=True):
        open_ = log.detach() > -torch.inf
        flow = flow.clamp_min(0) + pseudocount * open_ / open_.sum(-1, keepdim=True)
        mass = flow.sum(-1, keepdim=True)
        target = torch.where(mass > 0, flow / mass.clamp_min(torch.finfo(flow.dtype).tiny), log.detach().exp())
        new.append(((1 - step) * log.detach().exp() + step * target).log())
    module.set_weights(new)
    return float(total.detach().mean())


def fit_module(
    module: Any,
    x: Tensor,
    optimizer: str,
    *,
    n_steps: int,
    batch_size: int | None,
    step: float,
    pseudocount: float = 0.0,
    generator: torch.Generator,
) -> list[float]:
    """Fit in place; the mean log-likelihood of each step's batch before the step.

    ``optimizer``: ``em`` (``step`` is the share of the new weights) or ``adam`` (``step`` is the learning rate, which
    falls to nothing along a half cosine).
    """
    curve = []
    adam = torch.optim.Adam(module.parameters(), lr=step) if optimizer == "adam" else None
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, n_steps) if adam else None
    order, used = torch.randperm(len(x), generator=generator), 0
    for _ in range(n_steps):
        if batch_size is None or batch_size >= len(x):
            batch = x
        else:
            if used + batch_size > len(x):
                order, used = torch.randperm(len(x), generator=generator), 0
            batch = x[order[used : used + batch_size]]
            used += batch_size
        if adam is None or schedule is None:
            curve.append(em_step(module, batch, step, pseudocount))
            continue
        mean = module(batch).mean()
        adam.zero_grad()
        (-mean).backward()
        adam.step()
        schedule.step()
        curve.append(float(mean.detach()))
    return curve
