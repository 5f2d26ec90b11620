"""The SSD layer: chunked, split along the sequence, with its backward pass and its decode step."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gnomon.architectures.semiseparable.mask import BACKENDS, check_decay, check_mask_options, tile_decays
from gnomon.architectures.semiseparable.mask import segsum as mask_of
from gnomon.architectures.semiseparable.plan import Segments, plan_split, segments

__all__ = ["ssd", "ssd_scan", "ssd_step"]


@dataclass(frozen=True)
class Options:
    """How a walk computes: the compute tile, the mask's algorithm and who runs it."""

    chunk: int
    method: str
    block: int
    form: str
    scan: str
    backend: str


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    *,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    return_final_state: bool = False,
    validate: bool = True,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""State space dual of Mamba-2, in the shapes of ``mamba_ssm``.

    .. math::
        S_t = e^{\Delta_t A} S_{t-1} + \Delta_t x_t B_t^\top, \qquad
        y_t = (S_t C_t + D x_t) \odot \mathrm{silu}(z_t)

    Parameters
    ----------
    x : Tensor, shape [b, T, h, P]
        Inputs, one block of P channels a head.
    dt : Tensor, shape [b, T, h]
        Step sizes: ``dt_bias`` is added, then the softplus taken (``dt_softplus``), then ``dt_limit`` applied.
    A : Tensor, shape [h]
        Decay rates, negative.
    B, C : Tensor, shape [b, T, g, N]
        What a token writes and reads; g divides h, and head i uses group ``i // (h // g)``.
    D : Tensor, shape [h], optional
        Skip connection from x as given (not multiplied by dt).
    z : Tensor, shape [b, T, h, P], optional
        Gate.
    dt_bias : Tensor, shape [h], optional
    dt_softplus : bool
    dt_limit : (float, float)
    chunk_size, initial_state, return_final_state, validate, **options
        As in :func:`ssd_scan`, to which ``a = dt * A`` and ``dt * x`` go.

    Returns
    -------
    y : Tensor, shape [b, T, h, P], in the dtype of x
    final_state : Tensor, shape [b, h, P, N]
        Only with ``return_final_state``.

    Raises
    ------
    ValueError
        For a positive ``dt * A``, NaN, groups that do not divide the heads, or shapes that do not fit.

    References
    ----------
    Dao and Gu, "Transformers are SSMs" (arXiv:2405.21060).
    """
    if x.ndim != 4 or dt.shape != x.shape[:3]:
        raise ValueError(f"x must be [b, T, h, P] and dt [b, T, h], got {tuple(x.shape)} and {tuple(dt.shape)}")
    for name, value in (("A", A), ("D", D), ("dt_bias", dt_bias)):
        if value is not None and value.shape != x.shape[2:3]:
            raise ValueError(f"{name} must have one entry for each of {x.shape[2]} heads, got {tuple(value.shape)}")
    if z is not None and z.shape != x.shape:
        raise ValueError(f"z must have the shape of x, {tuple(x.shape)}, got {tuple(z.shape)}")
    working = _working_dtype(x, dt, A, B, C)
    dt = dt.to(working) if dt_bias is None else dt.to(working) + dt_bias.to(working)
    dt = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    y, state = ssd_scan(
        x.to(working) * dt[..., None], dt * A.to(working), B, C, chunk_size=chunk_size,
        initial_state=initial_state, return_final_state=True, validate=validate, **options,
    )  # fmt: skip
    if D is not None:
        y = y + D.to(working)[:, None] * x.to(working)
    if z is not None:
        y = y * F.silu(z.to(working))
    y = y.to(x.dtype)
    return (y, state) if return_final_state else y


def ssd_scan(
    x: Tensor,
    a: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    chunk_size: int = 64,
    split: str | int = "auto",
    segsum: str = "hier",
    block: int = 16,
    form: str = "product",
    scan: str = "sequential",
    initial_state: Tensor | None = None,
    return_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
    validate: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""The same layer from log-decays: ``S_t = exp(a_t) S_{t-1} + x_t B_t^T``, ``y_t = S_t C_t``.

    Parameters
    ----------
    x : Tensor, shape [b, T, h, P]
        Inputs, already multiplied by their step.
    a : Tensor, shape [b, T, h]
        Log-decays, at most 0; ``-inf`` forgets all that came before.
    B, C : Tensor, shape [b, T, g, N]
    chunk_size : int
        Compute tile Q: inside it the layer is a masked product of scores, across it a recurrence.
    split : "auto" or int
        Tokens that one worker walks in order, rounded up to a multiple of ``chunk_size``. Independent of the tile;
        never changes the result beyond rounding. ``"auto"`` asks :func:`~gnomon.architectures.plan_split`.
    segsum, block, form, scan
        How the mask is computed: ``method`` and options of :func:`~gnomon.architectures.segsum`.
    initial_state : Tensor, shape [sequences, h, P, N], optional
        State before each sequence (default: zero); float32, or float64 when all inputs are.
    return_final_state : bool
    cu_seqlens : int Tensor, shape [sequences + 1], optional
        Offsets of sequences packed into a batch of one, from 0 to T. The state starts anew at each.
    backend : {"auto", "torch", "numba", "triton"}
        Who runs the forward pass. ``"auto"``: Numba on a CPU, Triton on CUDA where it is installed and the sizes are
        powers of two, else torch. The backward pass is torch's.
    validate : bool
        Check the log-decays (skipped under ``torch.compile``).

    Returns
    -------
    y : Tensor, shape [b, T, h, P], in the dtype of x
    final_state : Tensor, shape [sequences, h, P, N]
        Only with ``return_final_state``.

    Raises
    ------
    ValueError
        As for :func:`ssd`, and for a state of the wrong shape or dtype or offsets that do not run from 0 to T.
    """
    check_mask_options(segsum, block, form, scan)
    offsets = _check(x, a, B, C, chunk_size, split, initial_state, cu_seqlens)
    if validate:
        check_decay(a)
    batch, length, heads, width = x.shape
    working = _working_dtype(x, a, B, C)
    state = initial_state
    if state is None:
        state = torch.zeros(len(offsets) - 1, heads, width, B.shape[3], dtype=working, device=x.device)
    options = Options(chunk_size, segsum, block, form, scan, _backend(backend, state, chunk_size, block, segsum))
    if split == "auto":
        split = plan_split(length, chunk_size, batch, heads, _workers(x.device))
    parts = segments(offsets, -(-int(split) // chunk_size) * chunk_size)
    y, final = _Scan.apply(
        x.flatten(0, 1).to(working),
        a.flatten(0, 1).to(working),
        B.flatten(0, 1),
        C.flatten(0, 1),
        state,
        parts,
        options,
    )
    y = y.unflatten(0, (batch, length)).to(x.dtype)
    return (y, final) if return_final_state else y


def ssd_step(state: Tensor, x_t: Tensor, a_t: Tensor, B_t: Tensor, C_t: Tensor) -> tuple[Tensor, Tensor]:
    """One token of the recurrence, for decoding.

    Parameters
    ----------
    state : Tensor, shape [b, h, P, N]
    x_t : Tensor, shape [b, h, P]
        Input, already multiplied by its step.
    a_t : Tensor, shape [b, h]
        Log-decay.
    B_t, C_t : Tensor, shape [b, g, N]

    Returns
    -------
    y_t : Tensor, shape [b, h, P], in the dtype of x_t
    state : Tensor, shape [b, h, P, N]
        The new state; the old one is left as it was.

    Raises
    ------
    ValueError
        If shapes do not fit or the groups do not divide the heads.
    """
    heads, groups = x_t.shape[1], B_t.shape[1]
    if heads % groups:
        raise ValueError(f"the {groups} groups of B and C must divide the {heads} heads")
    if state.shape != (*x_t.shape, B_t.shape[-1]):
        raise ValueError(f"state must be {(*x_t.shape, B_t.shape[-1])}, got {tuple(state.shape)}")
    B_t, C_t = (t.to(state.dtype).repeat_interleave(heads // groups, 1) for t in (B_t, C_t))
    decay = a_t.to(state.dtype).exp()[..., None, None]
    state = decay * state + x_t.to(state.dtype)[..., None] * B_t[:, :, None]
    return (state @ C_t[..., None])[..., 0].to(x_t.dtype), state


# --- checks and choices ----------------------------------------------------------------------------------------------


def _check(
    x: Tensor, a: Tensor, B: Tensor, C: Tensor, chunk_size: int, split: str | int, initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> np.ndarray:  # fmt: skip
    """Raise ValueError for what does not fit; return the offsets of the sequences."""
    if x.ndim != 4:
        raise ValueError(f"x must be [b, T, h, P], got {tuple(x.shape)}")
    batch, length, heads, width = x.shape
    if a.shape != x.shape[:3]:
        raise ValueError(f"a must be [b, T, h] = {tuple(x.shape[:3])}, got {tuple(a.shape)}")
    if B.ndim != 4 or B.shape[:2] != x.shape[:2] or C.shape != B.shape:
        raise ValueError(f"B and C must both be [b, T, g, N] with x's b and T, got {tuple(B.shape)}, {tuple(C.shape)}")
    if heads % B.shape[2]:
        raise ValueError(f"the {B.shape[2]} groups of B and C must divide the {heads} heads")
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
    if split != "auto" and (isinstance(split, str) or split < 1):
        raise ValueError(f"split must be 'auto' or at least 1 token, got {split!r}")
    offsets = np.arange(batch + 1) * length
    if cu_seqlens is not None:
        offsets = np.asarray(cu_seqlens.cpu(), dtype=np.int64)
        if batch != 1 or offsets.ndim != 1 or len(offsets) < 2:
            raise ValueError("cu_seqlens must be [sequences + 1] offsets into a batch of one")
        if offsets[0] != 0 or offsets[-1] != length or (np.diff(offsets) < 0).any():
            raise ValueError(f"cu_seqlens must rise from 0 to T = {length}, got {offsets.tolist()}")
    if initial_state is not None:
        shape = (len(offsets) - 1, heads, width, B.shape[3])
        if initial_state.shape != shape:
            raise ValueError(f"initial_state must have shape {shape}, got {tuple(initial_state.shape)}")
        if initial_state.dtype != _working_dtype(x, a, B, C):
            raise ValueError(f"initial_state must be {_working_dtype(x, a, B, C)}, got {initial_state.dtype}")
    return offsets


def _working_dtype(*inputs: Tensor) -> torch.dtype:
    return torch.float64 if all(t.dtype == torch.float64 for t in inputs) else torch.float32


def _workers(device: torch.device) -> int:
    if device.type == "cuda":
        return 2 * torch.cuda.get_device_properties(device).multi_processor_count
    return torch.get_num_threads() if device.type == "cpu" else 1


def _backend(backend: str, state: Tensor, chunk_size: int, block: int, method: str) -> str:
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend must be one of auto, {', '.join(BACKENDS)}, got {backend!r}")
    device = state.device.type
    if backend == "numba" and device != "cpu":
        raise ValueError(f"backend 'numba' runs on a CPU, but the tensors are on {state.device}")
    if backend == "triton":
        from gnomon.architectures.semiseparable import gpu

        if method != "hier":
            raise ValueError(f"the triton layer has the segsum 'hier' only, got {method!r}")
        gpu.check_sizes(chunk_size, block)
    if backend != "auto":
        return backend
    if torch.compiler.is_compiling():
        return "torch"
    if device == "cpu":
        return "numba"
    powers = all(size & (size - 1) == 0 for size in (chunk_size, min(block, chunk_size)))
    fits = powers and chunk_size >= 16 and method == "hier" and state.dtype == torch.float32
    return "triton" if device == "cuda" and fits and find_spec("triton") else "torch"


# --- the three passes ------------------------------------------------------------------------------------------------


class _Scan(torch.autograd.Function):
    """x [tokens, h, P], a [tokens, h], B and C [tokens, g, N], state [sequences, h, P, N] -> y, final state.

    B and C come in their own dtype, because tensor cores multiply half precisions as they are.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, a: Tensor, B: Tensor, C: Tensor, state: Tensor, parts: Segments, options: Options
    ) -> tuple[Tensor, Tensor]:
        ctx.parts, ctx.options = parts, options
        if not len(parts):
            ctx.save_for_backward(x, a, B, C, state)
            return torch.empty_like(x), state.clone()
        final = None
        if parts.depth > 1:
            _, local, total = _pass(x, a, B, None, None, parts, options, leave=True)
            entering, final = _carry(local, total, state, parts)
        else:
            entering = state[torch.from_numpy(parts.sequence).to(x.device)]
        y, leaving, _ = _pass(x, a, B, C, entering, parts, options, leave=final is None)
        if final is None:
            final = state.index_copy(0, torch.from_numpy(parts.sequence).to(x.device), leaving)
        ctx.save_for_backward(x, a, B, C, entering)
        return y, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dfinal: Tensor) -> tuple[Any, ...]:
        x, a, B, C, entering = ctx.saved_tensors
        return *_backward(x, a, B, C, entering, dy, dfinal, ctx.parts, ctx.options), None, None


def _carry(local: Tensor, total: Tensor, state: Tensor, parts: Segments) -> tuple[Tensor, Tensor]:
    """Pass 2: the recurrence over the segments of each sequence; the states that enter them, and the last ones.

    ``local`` is overwritten.
    """
    state = state.detach().clone(memory_format=torch.contiguous_format)
    if local.device.type == "cpu" and not torch.compiler.is_compiling():
        from gnomon.architectures.semiseparable import compiled

        entering, order = local.flatten(2).contiguous(), np.argsort(parts.rank, kind="stable")
        compiled.carry(order, _array(entering), _array(total), _array(state.flatten(2)), parts.sequence)
        return entering.view_as(local), state
    entering = torch.empty_like(local)
    for rank in range(parts.depth):
        index = torch.from_numpy(np.flatnonzero(parts.rank == rank)).to(local.device)
        sequence = torch.from_numpy(parts.sequence[parts.rank == rank]).to(local.device)
        entering[index] = state[sequence]
        state[sequence] = total[index][..., None, None] * state[sequence] + local[index]
    return entering, state


def _pass(
    x: Tensor, a: Tensor, B: Tensor, C: Tensor | None, entering: Tensor | None, parts: Segments, options: Options,
    leave: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Walk all segments, from the states that enter them to y, or without C from zero to their own states.

    Returns y (x itself without C), the states that leave, and the total decays (both only if ``leave``).
    """
    if options.backend == "triton":
        from gnomon.architectures.semiseparable import gpu

        if entering is None:
            entering = x.new_zeros(len(parts), *x.shape[1:], B.shape[2])
        return gpu.forward(x, a, B, C, entering, parts, chunk=options.chunk, block=options.block, leave=leave)
    B, C = B.to(x.dtype), None if C is None else C.to(x.dtype)
    return (_numba_pass if options.backend == "numba" else _torch_pass)(x, a, B, C, entering, parts, options, leave)


def _numba_pass(
    x: Tensor, a: Tensor, B: Tensor, C: Tensor | None, entering: Tensor | None, parts: Segments, options: Options,
    leave: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from gnomon.architectures.semiseparable import compiled

    found = compiled.forward(
        _array(x), _array(a), _array(B), _array(C), _array(entering), parts.start, parts.stop, chunk=options.chunk,
        method=options.method, block=options.block, form=options.form, scan=options.scan,
        threads=torch.get_num_threads(), leave=leave,
    )  # fmt: skip
    y, leaving, total = map(torch.from_numpy, found)
    return y, leaving, total


def _array(t: Tensor | None) -> Any:
    return None if t is None else t.detach().contiguous().numpy()


def _torch_pass(
    x: Tensor, a: Tensor, B: Tensor, C: Tensor | None, entering: Tensor | None, parts: Segments, options: Options,
    leave: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    tiles = _Tiles(x, a, B, parts, options)
    Cs = None if C is None else tiles.arrange(C)
    if entering is None:
        entering = x.new_zeros(len(parts), *x.shape[1:], B.shape[2])
    state, total = tiles.grouped(entering), x.new_ones(len(parts), tiles.groups, x.shape[1] // tiles.groups)
    outputs = []
    for t in range(tiles.count):
        from_start, to_end, tile_total = tiles.decays(t)
        xt, Bt = tiles.x[:, t], tiles.B[:, t]
        if Cs is not None:
            Ct = Cs[:, t]
            mixed = tiles.mask(t) * (Ct @ Bt.mT)[:, :, None]
            outputs.append(mixed @ xt + from_start[..., None] * _apply(state, Ct))
        if leave or t + 1 < tiles.count:
            state = tile_total[..., None, None] * state + _outer(xt * to_end[..., None], Bt)
            total = total * tile_total
    y = tiles.tokens(torch.stack(outputs, 1), heads=True) if outputs else x
    return y, state.flatten(1, 2), total.flatten(1, 2)


# Products with a state [R, g, e, P, N], the heads of a group at once: one large product instead of e small ones.


def _outer(x: Tensor, B: Tensor) -> Tensor:
    """Sum over a tile of x B^T: [R, g, e, Q, P], [R, g, Q, N] -> [R, g, e, P, N]."""
    return (x.transpose(2, 3).flatten(3).mT @ B).unflatten(2, (x.shape[2], x.shape[4]))


def _apply(state: Tensor, C: Tensor) -> Tensor:
    """S C at each position: [R, g, e, P, N], [R, g, Q, N] -> [R, g, e, Q, P]."""
    return (C @ state.flatten(2, 3).mT).unflatten(-1, state.shape[2:4]).transpose(2, 3)


def _gather(x: Tensor, state: Tensor) -> Tensor:
    """S^T x at each position, summed over the heads: [R, g, e, Q, P], [R, g, e, P, N] -> [R, g, Q, N]."""
    return x.transpose(2, 3).flatten(3) @ state.flatten(2, 3)


class _Tiles:
    """Tokens arranged for a walk: x [R, m, g, e, Q, P], a [R, m, g, e, Q], B [R, m, g, Q, N].

    R segments of m tiles of Q tokens, g groups of e heads. Short segments are padded with zeros, which change nothing:
    a decay of 1 and an empty input.
    """

    def __init__(self, x: Tensor, a: Tensor, B: Tensor, parts: Segments, options: Options):
        self.options, self.groups, self.length = options, B.shape[1], len(x)
        lengths = parts.stop - parts.start
        self.count = -(-int(lengths.max(initial=0)) // options.chunk)
        position = parts.start[:, None] + np.arange(self.count * options.chunk)
        inside = position < parts.stop[:, None]
        self.whole = bool(inside.all()) and int(lengths.sum()) == self.length
        self.index = torch.from_numpy(np.where(inside, position, self.length)).to(x.device)
        self.x, self.a = self.heads(x), self.heads(a[..., None])[..., 0]
        self.B = self.arrange(B)

    def arrange(self, t: Tensor) -> Tensor:
        """[tokens, k, n] -> [R, m, k, Q, n]."""
        if not self.whole:
            t = F.pad(t, (0, 0, 0, 0, 0, 1))[self.index]
        return t.reshape(-1, self.count, self.options.chunk, *t.shape[-2:]).transpose(2, 3)

    def heads(self, t: Tensor) -> Tensor:
        """[tokens, h, n] -> [R, m, g, e, Q, n]."""
        return self.arrange(t).unflatten(2, (self.groups, -1))

    def grouped(self, state: Tensor) -> Tensor:
        """[R, h, P, N] -> [R, g, e, P, N]."""
        return state.unflatten(1, (self.groups, -1))

    def tokens(self, t: Tensor, heads: bool) -> Tensor:
        """Inverse of :meth:`heads` or :meth:`arrange`, padding dropped."""
        t = (t.flatten(2, 3) if heads else t).transpose(2, 3).flatten(0, 2)
        if self.whole:
            return t.contiguous()
        out = t.new_empty(self.length + 1, *t.shape[1:])
        out[self.index.flatten()] = t
        return out[:-1]

    def decays(self, t: int) -> tuple[Tensor, Tensor, Tensor]:
        return tile_decays(self.a[:, t], self.options.method, self.options.scan)

    def mask(self, t: int) -> Tensor:
        o, a = self.options, self.a[:, t]
        compiled = a.device.type == "cpu" and not torch.compiler.is_compiling()
        backend = "numba" if compiled else "torch"
        return mask_of(a, o.method, block=o.block, form=o.form, scan=o.scan, backend=backend, validate=False)


def _backward(
    x: Tensor, a: Tensor, B: Tensor, C: Tensor, entering: Tensor, dy: Tensor, dfinal: Tensor, parts: Segments,
    options: Options,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The same walks in reverse; gradients of x, a, B, C and the initial state.

    The gradient of a decay is the sum of all terms whose path crosses it. For the mask these are the entries
    ``i >= k > j`` of R, the strictly lower part of dM * G * L: a difference of two reverse cumulative sums, taken in
    float64 because it can cancel.
    """
    if not len(parts):
        return torch.zeros_like(x), torch.zeros_like(a), torch.zeros_like(B), torch.zeros_like(C), dfinal
    B, C = B.to(x.dtype), C.to(x.dtype)
    tiles = _Tiles(x, a, B, parts, options)
    Cs, dys = tiles.arrange(C), tiles.heads(dy)
    sequence = torch.from_numpy(parts.sequence).to(x.device)

    # States that enter each tile, and the adjoint that reaches each segment from those after it.
    decays = [tiles.decays(t) for t in range(tiles.count)]
    states, total = [tiles.grouped(entering)], torch.ones_like(tiles.a[:, 0, :, :, 0])
    for t, (_, to_end, tile_total) in enumerate(decays):
        added = _outer(tiles.x[:, t] * to_end[..., None], tiles.B[:, t])
        states.append(tile_total[..., None, None] * states[-1] + added)
        total = total * tile_total
    dinitial = dfinal.clone()
    adjoint = dfinal[sequence]
    if parts.depth > 1:
        local = torch.zeros_like(states[0])
        for t in reversed(range(tiles.count)):
            from_start, _, tile_total = decays[t]
            local = tile_total[..., None, None] * local + _outer(dys[:, t] * from_start[..., None], Cs[:, t])
        backwards = Segments(parts.start, parts.stop, parts.sequence, _reversed_rank(parts), parts.sequences)
        adjoint, dinitial = _carry(local.flatten(1, 2), total.flatten(1, 2), dfinal, backwards)
    adjoint = tiles.grouped(adjoint)

    dxs, das, dBs, dCs = [], [], [], []
    for t in reversed(range(tiles.count)):
        (from_start, to_end, tile_total), mask = decays[t], tiles.mask(t)
        xt, Bt, Ct, dyt, state = tiles.x[:, t], tiles.B[:, t], Cs[:, t], dys[:, t], states[t]
        received, given = dyt * from_start[..., None], xt * to_end[..., None]
        mixed, dmixed = mask * (Ct @ Bt.mT)[:, :, None], dyt @ xt.mT
        dscores = (mask * dmixed).sum(2)
        written = _apply(adjoint, Bt)
        dxs.append(mixed.mT @ dyt + to_end[..., None] * written)
        dCs.append(dscores @ Bt + _gather(received, state))
        dBs.append(dscores.mT @ Ct + _gather(given, adjoint))

        crossing = (dmixed * mixed).tril(-1)
        ahead = crossing.sum(-1, dtype=torch.float64) + (received * _apply(state, Ct)).sum(-1, dtype=torch.float64)
        behind = crossing.sum(-2, dtype=torch.float64)
        into = (given * written).sum(-1, dtype=torch.float64)
        through = tile_total * (state * adjoint).sum((-1, -2))
        da = _sum_from(ahead) - _sum_from(behind) + (into.cumsum(-1) - into) + through[..., None]
        das.append(da.to(a.dtype))
        adjoint = tile_total[..., None, None] * adjoint + _outer(received, Ct)
    if parts.depth <= 1:
        dinitial = dinitial.index_copy(0, sequence, adjoint.flatten(1, 2))
    dx, dB, dC = (torch.stack(g[::-1], 1) for g in (dxs, dBs, dCs))
    da = torch.stack(das[::-1], 1)
    return (
        tiles.tokens(dx, heads=True), tiles.tokens(da[..., None], heads=True)[..., 0],
        tiles.tokens(dB, heads=False), tiles.tokens(dC, heads=False), dinitial,
    )  # fmt: skip


def _reversed_rank(parts: Segments) -> np.ndarray:
    counts = np.bincount(parts.sequence, minlength=parts.sequences)
    return counts[parts.sequence] - 1 - parts.rank


def _sum_from(t: Tensor) -> Tensor:
    """Sums over the positions from each one on."""
    return t.flip(-1).cumsum(-1).flip(-1)
