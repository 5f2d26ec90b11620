"""The mask of a 1-semiseparable matrix, by difference, by direct sums and hierarchically."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from gnomon.architectures.semiseparable.scans import SCANS, prefix_sum

__all__ = ["BACKENDS", "FORMS", "METHODS", "check_decay", "check_mask_options", "segsum", "tile_decays"]

METHODS = ("hier", "direct", "diff", "diff_clamped")
FORMS = ("product", "log")
BACKENDS = ("torch", "numba", "triton")


def segsum(
    a: Tensor,
    method: str = "hier",
    *,
    block: int = 16,
    form: str = "product",
    scan: str = "sequential",
    log: bool = False,
    backend: str = "torch",
    validate: bool = True,
) -> Tensor:
    r"""Mask of a 1-semiseparable matrix from its log-decays.

    .. math:: L_{ij} = \exp\Big(\sum_{k=j+1}^{i} a_k\Big) \text{ for } i \ge j, \qquad L_{ij} = 0 \text{ for } i < j

    Parameters
    ----------
    a : Tensor, shape [..., Q]
        Log-decays, at most 0; ``-inf`` is a hard reset. Half precisions are promoted to float32.
    method : {"hier", "direct", "diff", "diff_clamped"}
        ``"hier"`` builds the mask from blocks: inside a block row i is ``exp(a_i)`` times row i - 1, and every block
        below the diagonal is the outer product of the prefixes of its rows and the suffixes of its columns. All
        factors lie in [0, 1] and nothing is subtracted, so that ``L <= 1`` exactly and the relative error is about
        ``(i - j + 3)`` roundings. ``"direct"`` sums each column by itself. ``"diff"`` subtracts prefix sums, as most
        kernels do: its exponent is off by a rounding of the *whole* prefix; ``"diff_clamped"`` also caps it at 0.
    block : int
        Block size of ``"hier"``; does not change the result beyond rounding.
    form : {"product", "log"}
        What ``"hier"`` multiplies: decays (Q exponentials a chunk) or, as sums, their logarithms (one an entry).
    scan : {"sequential", "kogge_stone", "blelloch"}
        Order of the prefix sum of the difference forms.
    log : bool
        Return the exponents instead (``-inf`` above the diagonal); ``"hier"`` then always sums logarithms.
    backend : {"torch", "numba", "triton"}
        ``"torch"`` is differentiable on any device; ``"numba"`` (CPU) and ``"triton"`` (GPU; blocks and Q powers of
        two; the hardware's own tree scan in place of ``scan``) give the mask alone.
    validate : bool
        Check that ``a`` is neither positive nor NaN (skipped under ``torch.compile``).

    Returns
    -------
    Tensor, shape [..., Q, Q]

    Raises
    ------
    ValueError
        For positive or NaN decays, a block below 1, an unknown choice, or what a back end cannot do.
    TypeError
        If ``a`` is not a floating-point tensor.

    Notes
    -----
    The product form gives 0 where ``exp`` of the sum would be subnormal: right to 1e-38 absolutely. Do not take its
    logarithm; ask for ``log=True``. The product over the blocks between two blocks is carried as a running factor of
    the columns. Each entry is then no larger than its neighbours above and to the right, exactly and in every dtype.

    References
    ----------
    Dao and Gu, "Transformers are SSMs" (arXiv:2405.21060), section 6, for the mask and the direct form.
    """
    check_mask_options(method, block, form, scan)
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if not torch.is_floating_point(a):
        raise TypeError(f"a must be a floating-point tensor, got {a.dtype}")
    if validate:
        check_decay(a)
    a = a.float() if a.dtype in (torch.bfloat16, torch.float16) else a
    if a.shape[-1] == 0:
        return a.new_zeros(*a.shape, 0)
    if backend == "torch":
        exponent_of = {
            "direct": _direct,
            "diff": lambda a: _difference(a, scan),
            "diff_clamped": lambda a: _difference(a, scan).clamp(max=0.0),
            "hier": lambda a: _hierarchical(a, block, torch.add, identity=0.0, absorbing=-torch.inf),
        }[method]
        if method == "hier" and form == "product" and not log:
            return _hierarchical(a.exp(), block, torch.mul, identity=1.0, absorbing=0.0)
        # The mask comes before the exponential: after it the gradient above the diagonal would be 0 * inf.
        exponent = exponent_of(a).masked_fill(_above_diagonal(a), -torch.inf)
        return exponent if log else exponent.exp()
    if log or (a.requires_grad and torch.is_grad_enabled()):
        raise ValueError(f"backend {backend!r} gives the mask without exponents or gradients; use backend='torch'")
    if backend == "numba":
        from gnomon.architectures.semiseparable import compiled

        flat = a.detach().reshape(-1, a.shape[-1]).contiguous().numpy()
        return torch.from_numpy(compiled.mask(flat, method, block, form, scan)).reshape(*a.shape, a.shape[-1])
    from gnomon.architectures.semiseparable import gpu

    return gpu.mask(a, method, block, form)


def check_mask_options(method: str, block: int, form: str, scan: str) -> None:
    """Raise ValueError unless the choices of :func:`segsum` exist and the block is at least 1."""
    for name, value, known in (("method", method, METHODS), ("form", form, FORMS), ("scan", scan, tuple(SCANS))):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}")


def check_decay(a: Tensor) -> None:
    """Raise ValueError if a log-decay is NaN or positive; a no-op under ``torch.compile``."""
    if torch.compiler.is_compiling() or a.numel() == 0:
        return
    highest = a.detach().max()  # NaN wins every comparison, so one pass finds both faults
    if highest <= 0:
        return
    if bool(torch.isnan(highest)):
        index = tuple(torch.isnan(a.detach()).nonzero()[0].tolist())
        raise ValueError(f"a holds NaN, first at index {index}")
    raise ValueError(f"log-decay must be <= 0 (got max {float(highest):g}); pass dt >= 0 and A < 0")


def tile_decays(a: Tensor, method: str, scan: str) -> tuple[Tensor, Tensor, Tensor]:
    """What a compute tile does to a state that passes through it.

    Parameters
    ----------
    a : Tensor, shape [..., Q]
        Log-decays of the tile.
    method, scan
        As in :func:`segsum`; the difference forms take theirs from the prefix sum, as kernels in use do.

    Returns
    -------
    from_start : Tensor, shape [..., Q]
        Decay of what entered the tile, at each position (that position's own decay included).
    to_end : Tensor, shape [..., Q]
        Decay of what each position adds, at the end of the tile.
    total : Tensor, shape [...]
    """
    if method in ("diff", "diff_clamped"):
        prefix = prefix_sum(a, scan)
        rest = prefix[..., -1:] - prefix
        from_start, to_end = prefix.exp(), (rest.clamp(max=0.0) if method == "diff_clamped" else rest).exp()
    else:
        decay = a.exp()
        from_start = decay.cumprod(-1)
        to_end = F.pad(decay[..., 1:].flip(-1).cumprod(-1).flip(-1), (0, 1), value=1.0)
    return from_start, to_end, from_start[..., -1]


def _above_diagonal(a: Tensor) -> Tensor:
    return torch.ones(a.shape[-1], a.shape[-1], dtype=torch.bool, device=a.device).triu(1)


def _difference(a: Tensor, scan: str) -> Tensor:
    prefix = prefix_sum(a, scan)
    return prefix[..., :, None] - prefix[..., None, :]


def _direct(a: Tensor) -> Tensor:
    column = torch.arange(a.shape[-1], device=a.device)
    row, rows = torch.zeros_like(a), []
    for i, value in enumerate(a.unbind(-1)):
        row = torch.where(column < i, row + value[..., None], 0.0)
        rows.append(row)
    return torch.stack(rows, -2)


def _hierarchical(
    v: Tensor, block: int, combine: Callable[[Tensor, Tensor], Tensor], *, identity: float, absorbing: float
) -> Tensor:
    """The mask of ``v`` under (multiply, 1, 0) or, for exponents, under (add, 0, -inf)."""
    length = v.shape[-1]
    block = min(block, length)
    blocks = -(-length // block)
    v = F.pad(v, (0, blocks * block - length), value=identity).unflatten(-1, (blocks, block))

    # Diagonal blocks: row i is v_i times row i - 1, with the identity on the diagonal.
    column = torch.arange(block, device=v.device)
    row, rows = torch.full_like(v, absorbing), []
    prefix, prefixes = torch.full_like(v[..., 0], identity), []
    for r, value in enumerate(v.unbind(-1)):
        row = torch.where(column == r, identity, combine(row, value[..., None]))
        prefix = combine(prefix, value)
        rows.append(row)
        prefixes.append(prefix)
    diagonal, inclusive = torch.stack(rows, -2), torch.stack(prefixes, -1)

    # Below them: prefixes of the rows times what each earlier column keeps until the block begins.
    strips, kept = [], v[..., 0, :0]
    for i in range(blocks):
        below = combine(inclusive[..., i, :, None], kept[..., None, :])
        above = v.new_full((*below.shape[:-1], (blocks - 1 - i) * block), absorbing)
        strips.append(torch.cat([below, diagonal[..., i, :, :], above], -1))
        kept = torch.cat([combine(kept, inclusive[..., i, -1:]), diagonal[..., i, -1, :]], -1)
    return torch.cat(strips, -2)[..., :length, :length]
