"""The chunkwise form: all work inside the chunks at once, one short step of the state a chunk.

Notation of a chunk of C tokens with incoming state S: ``e = b * k`` and ``z = w * v``; ``gamma_i`` is the decay from
the chunk's start to token i (inclusive), ``rest_j`` that from token j (exclusive) to its end. The residuals U of all
tokens solve the unit lower triangular system ``(I + A) U = Z - (gamma * e) S``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gnomon.architectures.semiseparable.scores import decayed_scores

__all__ = ["chunked", "gradients", "in_chunks"]


def chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, state: Tensor, *, chunk: int = 64,
    sub_chunk: int = 8, checkpoint: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The rule over whole sequences, chunk by chunk, with its own backward pass.

    Parameters
    ----------
    q, k, g, b : Tensor, shape [B, T, H, K]
        The query already scaled.
    v, w : Tensor, shape [B, T, H, V]
    state : Tensor, shape [B, H, K, V]
    chunk, sub_chunk : int
        Tokens of a chunk, and of the blocks in which its scores are made. Neither changes the result.
    checkpoint : bool
        Keep only the state of each chunk for the backward pass and compute all else again.

    Returns
    -------
    o : Tensor, shape [B, T, H, V]
    state : Tensor, shape [B, H, K, V]
    """
    length = q.shape[1]
    if length == 0:
        return torch.zeros_like(v), state
    split = (in_chunks(t, min(chunk, length)) for t in (q, k, b * k, w * v, g))
    o, state = _Chunked.apply(*split, state, sub_chunk, checkpoint)
    return o.flatten(2, 3)[:, :, :length].transpose(1, 2), state


def in_chunks(t: Tensor, chunk: int) -> Tensor:
    """[B, T, H, D] as [B, H, n, C, D]; padding (k = v = 0 and g = 0) changes neither the state nor any gradient."""
    return F.pad(t.transpose(1, 2), (0, 0, 0, -t.shape[1] % chunk)).unflatten(2, (-1, chunk))


class _Chunked(torch.autograd.Function):
    """(q, k, e, z, g) in chunks [B, H, n, C, K | V] and S [B, H, K, V] to o and the last state."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, e: Tensor, z: Tensor, g: Tensor, state: Tensor, block: int, checkpoint: bool
    ) -> tuple[Tensor, Tensor]:
        keep = any(ctx.needs_input_grad) and not checkpoint
        P, A, graph = _scores(q, k, e, g, block, keep)
        gamma, rest = _decays(g)
        U0, W = _solve(A, z, e * gamma)
        kept, total = k * rest, gamma[..., -1, :, None]
        states, residuals = [], []
        for c in range(q.shape[2]):
            states.append(state)
            residuals.append(U0[:, :, c] - W[:, :, c] @ state)
            state = total[:, :, c] * state + kept[:, :, c].transpose(-1, -2) @ residuals[c]
        S, U = torch.stack(states, 2), torch.stack(residuals, 2)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(q, k, e, z, g, S, *([P, A, U] if keep else []))
            ctx.graph, ctx.block = graph, block
        return (q * gamma) @ S + P @ U, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dO: Tensor, dS: Tensor) -> tuple[Any, ...]:
        *inputs, S = ctx.saved_tensors[:6]
        known = (*ctx.saved_tensors[6:], ctx.graph) if ctx.graph else None
        return (*gradients(*inputs, S, dO, dS, ctx.block, known), None, None)  # type: ignore[call-arg]


def gradients(
    q: Tensor, k: Tensor, e: Tensor, z: Tensor, g: Tensor, S: Tensor, dO: Tensor, dS: Tensor, block: int,
    known: tuple[Any, ...] | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The backward pass, from the last chunk to the first.

    Parameters
    ----------
    q, k, e, z, g : Tensor, shape [B, H, n, C, K | V]
    S : Tensor, shape [B, H, n, K, V]
        State entering each chunk.
    dO : Tensor, shape [B, H, n, C, V]
    dS : Tensor, shape [B, H, K, V]
        Gradient of the last state.
    block : int
    known : tuple, optional
        Scores P and A, residuals U and the scores' graph, where the forward pass kept them.

    Returns
    -------
    tuple of Tensor
        Gradients of q, k, e, z, g and the first state. That of k is without the part that it has in e.
    """
    gamma, rest = _decays(g)
    q_hat, e_hat, kept, total = q * gamma, e * gamma, k * rest, gamma[..., -1, :, None]
    if known is None:
        P, A, graph = _scores(q, k, e, g, block, True)
        U0, W = _solve(A, z, e_hat)
        U = U0 - W @ S
    else:
        P, A, U, graph = known

    # What does not wait for the gradient of the outgoing state, then that.
    from_outputs, reads = P.transpose(-1, -2) @ dO, q_hat.transpose(-1, -2) @ dO
    A_t = A.transpose(-1, -2)
    leaving, dR = [], []
    for c in reversed(range(q.shape[2])):
        leaving.append(dS)
        dU = from_outputs[:, :, c] + kept[:, :, c] @ dS
        dR.append(torch.linalg.solve_triangular(A_t[:, :, c], dU, upper=True, unitriangular=True))
        dS = reads[:, :, c] + total[:, :, c] * dS - e_hat[:, :, c].transpose(-1, -2) @ dR[-1]
    after, dz = torch.stack(leaving[::-1], 2), torch.stack(dR[::-1], 2)

    S_t, U_t = S.transpose(-1, -2), U.transpose(-1, -2)
    d_q_hat, d_e_hat, d_kept = dO @ S_t, -dz @ S_t, U @ after.transpose(-1, -2)
    dM = torch.stack([(dO @ U_t).tril(), -(dz @ U_t).tril(-1)])
    scores, leaves = graph  # type: ignore[misc]
    dx, dy, da = torch.autograd.grad(scores, leaves, dM, retain_graph=True)

    # A decay is crossed by what entered the chunk and is read at or after it, by what was written before it and
    # leaves the chunk, and by the state that passes through: sums in which nothing cancels.
    entered, written = q_hat * d_q_hat + e_hat * d_e_hat, kept * d_kept
    crossing = entered.flip(-2).cumsum(-2).flip(-2) + F.pad(written.cumsum(-2)[..., :-1, :], (0, 0, 1, 0))
    passing = total * (S * after).sum(-1, keepdim=True)
    dg = da.sum(0) + crossing + passing.transpose(-1, -2)
    return dx[0] + d_q_hat * gamma, dy.sum(0) + d_kept * rest, dx[1] + d_e_hat * gamma, dz, dg, dS


def _scores(
    q: Tensor, k: Tensor, e: Tensor, g: Tensor, block: int, graph: bool
) -> tuple[Tensor, Tensor, tuple[Tensor, tuple[Tensor, ...]] | None]:
    """P (queries on keys) and A (erase keys on earlier keys) under the decay, and what their gradients need."""
    leaves = (torch.stack([q, e]), k.expand(2, *k.shape), g.expand(2, *g.shape))
    with torch.set_grad_enabled(graph):
        if graph:
            leaves = tuple(t.detach().requires_grad_() for t in leaves)  # type: ignore[assignment]
        scores = decayed_scores(*leaves, block=block, validate=False)
    P, A = scores.detach().unbind()
    return P, A.tril(-1), (scores, leaves) if graph else None


def _decays(g: Tensor) -> tuple[Tensor, Tensor]:
    """Products of decays from the chunk's start to each token, and from after each token to the chunk's end."""
    decay = g.exp()
    rest = F.pad(decay[..., 1:, :].flip(-2).cumprod(-2).flip(-2), (0, 0, 0, 1), value=1.0)
    return decay.cumprod(-2), rest


def _solve(A: Tensor, *sides: Tensor) -> tuple[Tensor, ...]:
    """Columns of ``(I + A)^-1`` times each right-hand side; the diagonal of A is not looked at."""
    solved = torch.linalg.solve_triangular(A, torch.cat(sides, -1), upper=False, unitriangular=True)
    return solved.split([side.shape[-1] for side in sides], -1)
