"""Sampled softmax: the cross-entropy of a large output layer from a few sampled negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Sampler(Protocol):
    """Anything that draws item ids with their log-probability."""

    def sample(self, U: Any, n_samples: int) -> tuple[Any, Any]: ...


def sampled_softmax_loss(hidden: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor, sampler: Sampler,
                         n_samples: int = 256) -> torch.Tensor:  # fmt: skip
    r"""Mean cross-entropy of softmax(hidden weight^T) at the targets, its normaliser estimated from drawn negatives.

    .. math:: \log\Big(e^{o_y} + \frac1m \sum_{j \ne y} e^{o_j - \log q_j}\Big) - o_y, \qquad o = W h

    The sum runs over m draws from q; those that hit the target are left out, so that the bracket is an unbiased
    estimate of the normaliser whatever q is. Gradients flow to ``hidden`` and to the drawn rows of ``weight``.

    Parameters
    ----------
    hidden : Tensor (B, d)
    targets : LongTensor (B,)
        Rows of ``weight``.
    weight : Tensor (n, d)
        Output vectors; the sampler may have been fitted to an earlier state of them.
    sampler : object with ``sample(U, n_samples) -> (ids, log_q)``
        A fitted :class:`TwoLevelSoftmax` whose ids are the rows of ``weight``, or a baseline. Its ``beta`` should be 1.
    n_samples : int
        Draws m for each row of ``hidden``.

    Returns
    -------
    Tensor ()

    Raises
    ------
    TypeError
        When hidden, targets or weight are no tensors.
    ValueError
        When shapes do not fit or a target is no row of ``weight``.
    """
    import torch

    for name, value in (("hidden", hidden), ("targets", targets), ("weight", weight)):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(value).__name__}")
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"hidden, weight: expected (B, d) and (n, d), got {tuple(hidden.shape)}, {tuple(weight.shape)}"
        )
    if targets.shape != hidden.shape[:1] or targets.is_floating_point():
        raise ValueError(f"targets: expected integers ({len(hidden)},), got {targets.dtype} {tuple(targets.shape)}")
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < len(weight):
        raise ValueError(f"targets: expected 0..{len(weight) - 1}, got {int(targets.min())}..{int(targets.max())}")
    ids, log_q = sampler.sample(hidden.detach(), n_samples)
    ids, log_q = torch.as_tensor(ids, device=hidden.device), torch.as_tensor(log_q, device=hidden.device)
    of_target = (hidden * weight[targets]).sum(1)
    of_drawn = torch.einsum("bd,bmd->bm", hidden, weight[ids]) - log_q.to(hidden.dtype)
    of_drawn = of_drawn - torch.log(torch.tensor(float(n_samples)))
    of_drawn = of_drawn.masked_fill(ids == targets[:, None], float("-inf"))
    return (torch.logsumexp(torch.cat([of_target[:, None], of_drawn], 1), 1) - of_target).mean()
