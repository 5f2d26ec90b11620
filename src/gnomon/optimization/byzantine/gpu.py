"""The trimmed mean on a GPU: each block of columns is sorted in registers by a bitonic network, one pass over memory."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

MOST = 64  # rows

if find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _trimmed_mean_kernel(x_ptr, out_ptr, d, n, f, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        columns = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        rows = tl.arange(0, ROWS)
        inside = (columns[:, None] < d) & (rows[None, :] < n)
        at = rows[None, :].to(tl.int64) * d + columns[:, None]
        values = tl.load(x_ptr + at, mask=inside, other=float("inf"))  # padding sorts to the end
        ordered = tl.sort(values, dim=1)
        kept = (rows[None, :] >= f) & (rows[None, :] < n - f)
        mean = tl.sum(tl.where(kept, ordered, 0.0), axis=1) / (n - 2 * f)
        tl.store(out_ptr + columns, mean.to(out_ptr.dtype.element_ty), mask=columns < d)


def fits(x: torch.Tensor) -> bool:
    """Whether the kernel takes these rows."""
    return find_spec("triton") is not None and x.shape[0] <= MOST and x.dtype in (torch.float32, torch.float64)


def trimmed_mean(x: torch.Tensor, f: int, block: int = 128) -> Any:
    """The coordinate-wise trimmed mean of rows (n, d), n <= 64.

    Parameters
    ----------
    x : Tensor (n, d)
        float32 or float64, finite.
    f : int
        Dropped at either end; n > 2f.
    block : int
        Columns of a program, a power of two.

    Raises
    ------
    ValueError
        For more than 64 rows, another dtype, or n <= 2f.
    """
    n, d = x.shape
    if not fits(x) or n <= 2 * f:
        raise ValueError(
            f"the Triton trimmed mean needs float32 or float64 rows, 2f < n <= {MOST}; got n={n}, f={f}, {x.dtype}"
        )
    x = x.contiguous()
    out = torch.empty(d, dtype=x.dtype, device=x.device)
    rows = max(2, triton.next_power_of_2(n))
    _trimmed_mean_kernel[(triton.cdiv(d, block),)](x, out, d, n, f, ROWS=rows, BLOCK=block)
    return out
