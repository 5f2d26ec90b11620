"""The gated delta rule with separate erase and write gates: one function, four ways to compute it, and its family."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnomon.architectures.gated_deltanet2.chunked import chunked
from gnomon.architectures.gated_deltanet2.recurrent import fast_weight_step, recurrent

__all__ = ["MODES", "gated_delta_rule", "gated_delta_rule2", "gated_delta_rule2_step", "kda", "l2_normalize"]

MODES = ("auto", "recurrent", "chunk", "numba", "triton")


def gated_delta_rule2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    w: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = True,
    cu_seqlens: Tensor | None = None,
    use_qk_l2norm: bool = False,
    mode: str = "auto",
    chunk_size: int = 64,
    sub_chunk: int = 8,
    *,
    checkpoint: bool = False,
    validate: bool = True,
) -> tuple[Tensor, Tensor | None]:
    r"""Gated delta rule with an erase gate for each key channel and a write gate for each value channel.

    .. math::
        S_t = (I - k_t (b_t \odot k_t)^\top)\, \mathrm{Diag}(e^{g_t})\, S_{t-1} + k_t (w_t \odot v_t)^\top, \qquad
        o_t = \mathrm{scale} \cdot S_t^\top q_t

    Parameters
    ----------
    q, k : Tensor, shape [B, T, H, K]
        Queries and keys; the rule is meant for keys of unit length (see ``use_qk_l2norm``).
    v : Tensor, shape [B, T, H, V]
        Values.
    g : Tensor, shape [B, T, H, K]
        Log-decays, at most 0; ``-inf`` forgets the channel.
    b : Tensor, shape [B, T, H, K]
        Erase gates, in [0, 1] (up to 2 where negative eigenvalues are wanted).
    w : Tensor, shape [B, T, H, V]
        Write gates.
    scale : float, optional
        Of the queries; by default ``K ** -0.5``.
    initial_state : Tensor, shape [sequences, H, K, V], optional
        State before each sequence (default: zero).
    output_final_state : bool
        Whether the last state is returned; None stands in its place otherwise.
    cu_seqlens : int Tensor, shape [sequences + 1], optional
        Offsets of sequences packed into a batch of one, from 0 to T, each longer than the last.
    use_qk_l2norm : bool
        Normalise q and k first.
    mode : {"auto", "recurrent", "chunk", "numba", "triton"}
        ``"recurrent"`` is the definition in torch; ``"chunk"`` the chunkwise form with its own backward pass, on any
        device; ``"numba"`` a compiled recurrence for CPUs, with backward; ``"triton"`` a GPU's chunkwise forward (the
        backward pass is that of ``"chunk"``). ``"auto"`` takes numba on a CPU, Triton on CUDA where it can, else chunk.
    chunk_size, sub_chunk : int
        Tiles of the chunkwise forms; they change nothing beyond rounding.
    checkpoint : bool
        The chunkwise forms keep only a state a chunk for the backward pass and compute the rest again.
    validate : bool
        Check that everything is finite and g at most 0 (skipped under ``torch.compile``).

    Returns
    -------
    o : Tensor, shape [B, T, H, V], in the dtype of v
    final_state : Tensor, shape [sequences, H, K, V], or None
        float32, or float64 where every input is.

    Raises
    ------
    ValueError
        For a positive g, gates without channels, shapes that do not fit, NaN, bad offsets, or an unknown mode.
    TypeError
        If an input is not a floating-point tensor.

    Warns
    -----
    UserWarning
        When gradients are asked of the recurrent mode over more than 512 tokens.

    References
    ----------
    Hatamizadeh, Choi and Kautz, "Gated DeltaNet-2: Decoupling Erase and Write in Linear Attention" (arXiv:2605.22791).
    """
    offsets = _check(q, k, v, g, b, w, initial_state, cu_seqlens, mode, chunk_size, sub_chunk)
    if validate:
        _check_values(q=q, k=k, v=v, g=g, b=b, w=w, initial_state=initial_state)
    dtype, inputs = v.dtype, _working(q, k, v, g, b, w)
    q, k, v, g, b, w = inputs
    if use_qk_l2norm:
        q, k = l2_normalize(q), l2_normalize(k)
    batch, length, heads, K = q.shape
    state = initial_state
    if state is None:
        state = q.new_zeros(len(offsets) - 1, heads, K, v.shape[-1])
    state = state.to(q.dtype)
    scale = K**-0.5 if scale is None else scale
    if mode == "auto":
        mode = _fitting(q, chunk_size, sub_chunk)
    if mode == "recurrent" and length > 512 and torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        warnings.warn(
            f"gradients through {length} tokens in mode='recurrent' take long and keep {length} states; use mode='auto'",
            UserWarning, stacklevel=2,
        )  # fmt: skip

    tiles: Any = (chunk_size, sub_chunk, checkpoint, "ieee" if dtype == torch.float32 else "tf32")
    if mode == "numba":
        o, state = _on_cpu([t.flatten(0, 1) for t in (q, k, v, g, b, w)], state, scale, offsets)
        o = o.unflatten(0, (batch, length))
    elif cu_seqlens is None:
        o, state = _batch(mode, q * scale, k, v, g, b, w, state, *tiles)
    else:  # a batch with one sequence a row, the shorter ones padded behind with tokens that do nothing
        lengths = np.diff(offsets).tolist()
        rows: Any = [torch.nn.utils.rnn.pad_sequence(t[0].split(lengths), batch_first=True)
                for t in (q * scale, k, v, g, b, w)]  # fmt: skip
        o, state = _batch(mode, *rows, state, *tiles)  # type: ignore[call-arg]
        o = torch.cat([row[:n] for row, n in zip(o, lengths, strict=True)])[None]
    return o.to(dtype), state if output_final_state else None


def gated_delta_rule2_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, state: Tensor, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """One token of :func:`gated_delta_rule2`, for decoding.

    Parameters
    ----------
    q, k, g, b : Tensor, shape [B, H, K]
    v, w : Tensor, shape [B, H, V]
    state : Tensor, shape [B, H, K, V]
    scale : float, optional
        By default ``K ** -0.5``.

    Returns
    -------
    o : Tensor, shape [B, H, V], in the dtype of v
    state : Tensor, shape [B, H, K, V]
        The new state; the old one is left as it was.

    Raises
    ------
    ValueError
        If the shapes do not fit.
    """
    expected = (*k.shape, v.shape[-1])
    if state.shape != expected:
        raise ValueError(f"state must be {expected} for this k and v, got {tuple(state.shape)}")
    for name, tensor, like in (("q", q, k), ("g", g, k), ("b", b, k), ("w", w, v)):
        if tensor.shape != like.shape:
            raise ValueError(f"{name} must be {tuple(like.shape)}, got {tuple(tensor.shape)}")
    dtype = v.dtype
    q, k, v, g, b, w = (t.to(state.dtype) for t in (q, k, v, g, b, w))
    state = fast_weight_step(state, k, v, g, b, w).state
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    return scale * (q[..., None, :] @ state)[..., 0, :].to(dtype), state


def kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: object) -> tuple[Tensor, Tensor | None]:
    """Kimi Delta Attention: one gate for erasing and writing, a decay for each key channel.

    Parameters
    ----------
    q, k, g : Tensor, shape [B, T, H, K]
    v : Tensor, shape [B, T, H, V]
    beta : Tensor, shape [B, T, H]
    **options
        Of :func:`gated_delta_rule2`, of which this is the case ``b = w = beta``.

    Returns
    -------
    o, final_state
        As :func:`gated_delta_rule2`.
    """
    _scalar("beta", beta, k)
    b, w = (beta[..., None].expand_as(t) for t in (k, v))
    return gated_delta_rule2(q, k, v, g, b, w, **options)  # type: ignore[arg-type]


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: object
) -> tuple[Tensor, Tensor | None]:
    """Gated DeltaNet: one gate for erasing and writing, one decay for the whole state.

    Parameters
    ----------
    q, k : Tensor, shape [B, T, H, K]
    v : Tensor, shape [B, T, H, V]
    g, beta : Tensor, shape [B, T, H]
    **options
        Of :func:`gated_delta_rule2`.

    Returns
    -------
    o, final_state
        As :func:`gated_delta_rule2`.
    """
    _scalar("g", g, k)
    return kda(q, k, v, g[..., None].expand_as(k), beta, **options)


def l2_normalize(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Rows of unit length; eps stands under the root, so that a row of zeros has a gradient (zero) as well."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


# --- checks and choices ----------------------------------------------------------------------------------------------


def _scalar(name: str, tensor: Tensor, k: Tensor) -> None:
    if tensor.shape != k.shape[:3]:
        raise ValueError(f"{name} must be [B, T, H] = {tuple(k.shape[:3])}, got {tuple(tensor.shape)}")


def _check(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, state: Tensor | None, cu_seqlens: Tensor | None,
    mode: str, chunk: int, sub_chunk: int,
) -> np.ndarray:  # fmt: skip
    """Raise for what does not fit; return the offsets of the sequences in the flattened batch."""
    for name, tensor in (("q", q), ("k", k), ("v", v), ("g", g), ("b", b), ("w", w), ("initial_state", state)):
        if tensor is not None and not torch.is_floating_point(tensor):
            raise TypeError(f"{name} must be a floating-point tensor, got {tensor.dtype}")
    if k.ndim != 4:
        raise ValueError(f"k must be [B, T, H, K], got {tuple(k.shape)}")
    if v.ndim != 4 or v.shape[:3] != k.shape[:3]:
        raise ValueError(f"v must be [B, T, H, V] with the B, T, H of k, {tuple(k.shape[:3])}, got {tuple(v.shape)}")
    for name, tensor, like in (("q", q, k), ("g", g, k), ("b", b, k), ("w", w, v)):
        if tensor.shape == like.shape:
            continue
        hint = ""
        if name in ("b", "w") and tensor.shape == k.shape[:3]:
            hint = "; for one gate a head use gnomon.architectures.kda, or expand it over the channels"
        raise ValueError(f"{name} must be {tuple(like.shape)}, got {tuple(tensor.shape)}{hint}")
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    for name, value in (("chunk_size", chunk), ("sub_chunk", sub_chunk)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    batch, length, heads, K = k.shape
    if cu_seqlens is None:
        offsets = np.arange(batch + 1) * length
    else:
        if batch != 1:
            raise ValueError(f"cu_seqlens packs sequences into a batch of 1, got a batch of {batch}")
        offsets = torch.as_tensor(cu_seqlens).cpu().numpy().astype(np.int64)
        if (
            offsets.ndim != 1
            or len(offsets) < 2
            or offsets[0]
            or offsets[-1] != length
            or (np.diff(offsets) <= 0).any()
        ):
            raise ValueError(f"cu_seqlens must increase from 0 to {length}, got {offsets.tolist()}")
    expected = (len(offsets) - 1, heads, K, v.shape[-1])
    if state is not None and state.shape != expected:
        raise ValueError(f"initial_state must be {expected} for k {tuple(k.shape)}, got {tuple(state.shape)}")
    return offsets


def _check_values(**tensors: Tensor | None) -> None:
    if torch.compiler.is_compiling():
        return
    for name, tensor in tensors.items():
        if tensor is None or tensor.numel() == 0:
            continue
        if name == "g":
            highest = tensor.detach().max()  # NaN wins every comparison
            if not highest <= 0:
                raise ValueError(f"g is a log-decay and must be <= 0, got a maximum of {float(highest):g}")
        elif not torch.isfinite(tensor.detach()).all():
            raise ValueError(f"{name} must be finite, got NaN or infinity")


def _working(*tensors: Tensor) -> tuple[Tensor, ...]:
    dtype = torch.float64 if all(t.dtype == torch.float64 for t in tensors) else torch.float32
    return tuple(t.to(dtype) for t in tensors)


def _fitting(q: Tensor, chunk: int, sub_chunk: int) -> str:
    if q.device.type == "cpu":
        return "numba"
    if q.device.type == "cuda" and q.dtype == torch.float32 and find_spec("triton"):
        from gnomon.architectures.gated_deltanet2 import gpu

        return "triton" if gpu.fits(chunk) else "chunk"
    return "chunk"


def _batch(
    mode: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, state: Tensor, chunk: int,
    sub_chunk: int, checkpoint: bool, precision: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if mode == "recurrent":
        return recurrent(q, k, v, g, b, w, state)
    if mode == "triton":
        from gnomon.architectures.gated_deltanet2 import gpu

        return gpu.chunked(q, k, v, g, b, w, state, chunk=chunk, block=sub_chunk, precision=precision)
    return chunked(q, k, v, g, b, w, state, chunk=chunk, sub_chunk=sub_chunk, checkpoint=checkpoint)


@torch.compiler.disable
def _on_cpu(inputs: Any, state: Tensor, scale: float, offsets: np.ndarray) -> tuple[Tensor, Tensor]:
    from gnomon.architectures.gated_deltanet2.compiled import compiled

    if state.device.type != "cpu":
        raise ValueError(f"mode 'numba' needs tensors on the CPU, got {state.device}")
    return compiled(*inputs, state, scale=scale, offsets=offsets)  # type: ignore[arg-type, misc]
