"""Numba kernels: the mask by every method, and the fused forward pass of the SSD layer on a CPU.

Arithmetic stays in the dtype of the input (a float64 accumulator would hide the error that the difference form makes
and halve the speed), and ``fastmath`` stays off, because it breaks infinities and NaN.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numba
import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  (the BLAS behind np.dot must be loaded when its threads are limited)
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

__all__ = ["carry", "forward", "mask"]

_jit = numba.njit(nogil=True, cache=True, error_model="numpy")


# --- the mask --------------------------------------------------------------------------------------------------------


@_jit
def _scan(a, scan, sums):
    """Inclusive prefix sums of one chunk: 0 sequential, 1 Kogge-Stone, 2 Blelloch (sums has a power of two entries)."""
    length, width = a.size, sums.size
    zero = a.dtype.type(0)
    for i in range(width):
        sums[i] = a[i] if i < length else zero
    if scan == 0:
        for i in range(1, length):
            sums[i] = sums[i - 1] + sums[i]
    elif scan == 1:
        step = 1
        while step < width:
            for i in range(width - 1, step - 1, -1):
                sums[i] = sums[i] + sums[i - step]
            step *= 2
    else:
        step = 1
        while step < width:
            for i in range(2 * step - 1, width, 2 * step):
                sums[i] = sums[i - step] + sums[i]
            step *= 2
        sums[width - 1] = zero
        step = width // 2
        while step >= 1:
            for i in range(2 * step - 1, width, 2 * step):
                left = sums[i - step]
                sums[i - step] = sums[i]
                sums[i] = sums[i] + left
            step //= 2
        for i in range(length):
            sums[i] = sums[i] + a[i]


@_jit
def _diff(a, out, scan, clamped):
    zero = a.dtype.type(0)
    length = a.shape[1]
    width = length
    if scan > 0:
        width = 1
        while width < length:
            width *= 2
    sums = np.empty(width, a.dtype)
    for c in range(a.shape[0]):
        _scan(a[c], scan, sums)
        for i in range(length):
            for j in range(i + 1):
                exponent = sums[i] - sums[j]
                if clamped and exponent > zero:
                    exponent = zero
                out[c, i, j] = math.exp(exponent)
            out[c, i, i + 1 :] = zero


@_jit
def _direct(a, out):
    zero = a.dtype.type(0)
    length = a.shape[1]
    sums = np.empty(length, a.dtype)
    for c in range(a.shape[0]):
        for i in range(length):
            value = a[c, i]
            for j in range(i):
                sums[j] = sums[j] + value
            sums[i] = zero
            for j in range(i + 1):
                out[c, i, j] = math.exp(sums[j])
            out[c, i, i + 1 :] = zero


@_jit
def _hier(a, out, block):
    zero, one = a.dtype.type(0), a.dtype.type(1)
    length = a.shape[1]
    kept = np.empty(length, a.dtype)  # what each earlier column keeps until the current block begins
    for c in range(a.shape[0]):
        for start in range(0, length, block):
            stop = min(start + block, length)
            prefix = one
            for i in range(start, stop):
                decay = math.exp(a[c, i])
                prefix = prefix * decay
                for j in range(start):
                    out[c, i, j] = prefix * kept[j]
                for j in range(start, i):
                    out[c, i, j] = decay * out[c, i - 1, j]
                out[c, i, i] = one
                out[c, i, i + 1 :] = zero
            for j in range(start):
                kept[j] = kept[j] * prefix
            for j in range(start, stop):
                kept[j] = out[c, stop - 1, j]


@_jit
def _hier_log(a, out, block):
    zero = a.dtype.type(0)
    length = a.shape[1]
    kept, row = np.empty(length, a.dtype), np.empty(length, a.dtype)
    for c in range(a.shape[0]):
        for start in range(0, length, block):
            stop = min(start + block, length)
            prefix = zero
            for i in range(start, stop):
                value = a[c, i]
                prefix = prefix + value
                for j in range(start):
                    out[c, i, j] = math.exp(prefix + kept[j])
                for j in range(start, i):
                    row[j] = value + row[j]
                row[i] = zero
                for j in range(start, i + 1):
                    out[c, i, j] = math.exp(row[j])
                out[c, i, i + 1 :] = zero
            for j in range(start):
                kept[j] = kept[j] + prefix
            for j in range(start, stop):
                kept[j] = row[j]


def mask(
    a: NDArray, method: str = "hier", block: int = 16, form: str = "product", scan: str = "sequential",
    out: NDArray | None = None,
) -> NDArray:  # fmt: skip
    """Masks of many chunks; see :func:`gnomon.architectures.segsum`, whose checks apply before this.

    Parameters
    ----------
    a : array, shape [chunks, Q], float32 or float64
    method, block, form, scan
        As in :func:`~gnomon.architectures.segsum`.
    out : array, shape [chunks, Q, Q], optional
        Where to write.

    Returns
    -------
    array, shape [chunks, Q, Q]
    """
    if out is None:
        out = np.empty((*a.shape, a.shape[1]), a.dtype)
    if method == "direct":
        _direct(a, out)
    elif method == "hier":
        (_hier if form == "product" else _hier_log)(a, out, min(block, a.shape[1]))
    else:
        _diff(a, out, ("sequential", "kogge_stone", "blelloch").index(scan), method == "diff_clamped")
    return out


# --- the layer -------------------------------------------------------------------------------------------------------


@_jit
def _fill(a, out, method, block, scan):
    if method == 0:
        _hier(a, out, block)
    elif method == 1:
        _hier_log(a, out, block)
    elif method == 2:
        _direct(a, out)
    else:
        _diff(a, out, scan, method == 4)


@_jit
def _walk(tasks, x, a, B, C, starts, stops, chunk, method, block, scan, entering, leaving, total, y, outputs, leave):
    """One worker: for each task (segment, group, first head, last head) the tiles of the segment in order.

    ``outputs`` starts from the entering states, else from zero, and writes y; ``leave`` also brings the state to the end
    of the last tile, which no output needs, and keeps it.
    """
    width, size, dtype = x.shape[2], B.shape[2], x.dtype
    most = 0
    for task in range(len(tasks)):
        most = max(most, tasks[task, 3] - tasks[task, 2])
    b_buffer, c_buffer = np.empty(chunk * size, dtype), np.empty(chunk * size, dtype)
    score_buffer, mixed_buffer = np.empty(chunk * chunk, dtype), np.empty(chunk * chunk, dtype)
    x_buffer, y_buffer = np.empty(chunk * width, dtype), np.empty(chunk * width, dtype)
    weighted_buffer, carried_buffer = np.empty(chunk * most * width, dtype), np.empty(chunk * most * width, dtype)
    state_buffer, update_buffer = np.empty(most * width * size, dtype), np.empty(most * width * size, dtype)
    mask_buffer = np.empty(chunk * chunk, dtype)
    decays, from_start, to_end = np.empty((1, chunk), dtype), np.empty(chunk, dtype), np.empty(chunk, dtype)
    tile_total = np.empty(most, dtype)
    scan_width = 1
    while scan_width < chunk:
        scan_width *= 2
    sums = np.empty(scan_width, dtype)

    for task in range(len(tasks)):
        segment, group, first, last = tasks[task]
        heads = last - first
        own = state_buffer[: heads * width * size].reshape(heads * width, size)
        for row in range(heads * width):
            for s in range(size):
                own[row, s] = entering[segment, first * width + row, s] if outputs else dtype.type(0)
        update = update_buffer[: heads * width * size].reshape(heads * width, size)
        start, stop = starts[segment], stops[segment]
        for t in range(start, stop, chunk):
            n = min(chunk, stop - t)
            b_tile = b_buffer[: n * size].reshape(n, size)
            weighted = weighted_buffer[: n * heads * width].reshape(n, heads * width)
            scores, mixed = score_buffer[: n * n].reshape(n, n), mixed_buffer[: n * n].reshape(n, n)
            carried = carried_buffer[: n * heads * width].reshape(n, heads * width)
            mask = mask_buffer[: n * n].reshape(1, n, n)
            x_tile, y_tile = x_buffer[: n * width].reshape(n, width), y_buffer[: n * width].reshape(n, width)
            for i in range(n):
                for s in range(size):
                    b_tile[i, s] = B[t + i, group, s]
            if outputs:
                c_tile = c_buffer[: n * size].reshape(n, size)
                for i in range(n):
                    for s in range(size):
                        c_tile[i, s] = C[t + i, group, s]
                np.dot(c_tile, b_tile.T, scores)
                np.dot(c_tile, own.T, carried)
            for k in range(heads):
                head, left = first + k, k * width
                for i in range(n):
                    decays[0, i] = a[t + i, head]
                if outputs or method > 0:
                    _fill(decays[:, :n], mask, method, min(block, n), scan)
                    if method <= 2:
                        decay = math.exp(decays[0, 0])
                        for i in range(n):
                            from_start[i] = mask[0, i, 0] * decay
                    else:
                        _scan(decays[0, :n], scan, sums)
                        for i in range(n):
                            from_start[i] = math.exp(sums[i])
                    tile_total[k] = from_start[n - 1]
                    for i in range(n):
                        to_end[i] = mask[0, n - 1, i]
                else:  # a state alone needs no mask
                    kept = dtype.type(1)
                    for i in range(n - 1, -1, -1):
                        to_end[i] = kept
                        kept = kept * math.exp(decays[0, i])
                    tile_total[k] = kept
                for i in range(n):
                    for p in range(width):
                        x_tile[i, p] = x[t + i, head, p]
                        weighted[i, left + p] = to_end[i] * x_tile[i, p]
                if outputs:
                    for i in range(n):
                        for j in range(n):
                            mixed[i, j] = mask[0, i, j] * scores[i, j]
                    np.dot(mixed, x_tile, y_tile)
                    for i in range(n):
                        for p in range(width):
                            y[t + i, head, p] = y_tile[i, p] + from_start[i] * carried[i, left + p]
            if leave or t + chunk < stop:
                np.dot(weighted.T, b_tile, update)
                for k in range(heads):
                    total[segment, first + k] = total[segment, first + k] * tile_total[k]
                    for row in range(k * width, (k + 1) * width):
                        for s in range(size):
                            own[row, s] = tile_total[k] * own[row, s] + update[row, s]
        if leave:
            for row in range(heads * width):
                for s in range(size):
                    leaving[segment, first * width + row, s] = own[row, s]


@_jit
def carry(order, local, total, state, sequence):
    """Pass 2, in place: local states [R, h, P * N] become those that enter each segment, ``state`` the last ones.

    ``order`` visits the segments of each sequence one after the other; ``state`` is [sequences, h, P * N].
    """
    for r in order:
        for h in range(local.shape[1]):
            decay = total[r, h]
            for s in range(local.shape[2]):
                before = state[sequence[r], h, s]
                state[sequence[r], h, s] = decay * before + local[r, h, s]
                local[r, h, s] = before


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def forward(
    x: NDArray, a: NDArray, B: NDArray, C: NDArray | None, entering: NDArray | None, starts: NDArray, stops: NDArray, *,
    chunk: int, method: str, block: int, form: str, scan: str, threads: int, leave: bool,
) -> tuple[NDArray, NDArray, NDArray]:  # fmt: skip
    """Walk every segment: with C and the entering states to its outputs, without them from zero to its own state.

    Parameters
    ----------
    x, a, B, C : arrays, shape [tokens, h, P], [tokens, h], [tokens, g, N], [tokens, g, N]
        One dtype, contiguous.
    entering : array, shape [R, h, P, N]
        State entering each segment; left as it is.
    starts, stops : int arrays, shape [R]
        Token ranges of the segments.
    chunk, method, block, form, scan
        Compute tile and the options of the mask.
    threads : int
        Workers run in so many threads, each with a single-threaded BLAS.
    leave : bool
        Bring the states to the end of their segments and keep them.

    Returns
    -------
    y : array, shape [tokens, h, P] (x itself without C)
    leaving : array, shape [R, h, P, N] (unspecified without ``leave``)
    total : array, shape [R, h]
        Decay over each segment (likewise).
    """
    heads, groups, width, size = x.shape[1], B.shape[1], x.shape[2], B.shape[2]
    y = x if C is None else np.empty_like(x)
    total = np.ones((len(starts), heads), x.dtype)
    leaving = np.empty((len(starts) if leave else 1, heads * width, size), x.dtype)
    before = leaving if entering is None else entering.reshape(len(starts), heads * width, size)
    code = {("hier", "product"): 0, ("hier", "log"): 1}.get((method, form))
    if code is None:
        code = {"direct": 2, "diff": 3, "diff_clamped": 4}[method]
    order = ("sequential", "kogge_stone", "blelloch").index(scan)

    # The heads of a group share its scores, so a group is cut only as far as the threads need.
    per_group = heads // groups
    pieces = min(per_group, -(-threads // max(1, len(starts) * groups)))
    cuts = np.arange(pieces + 1) * per_group // pieces
    tasks = np.array(
        [
            (r, g, g * per_group + low, g * per_group + high)
            for r in range(len(starts)) for g in range(groups) for low, high in pairwise(cuts)
        ],
        dtype=np.int64,
    ).reshape(-1, 4)  # fmt: skip

    def run(part: NDArray) -> None:
        _walk(part, x, a, B, B if C is None else C, starts, stops, chunk, code, block, order, before, leaving, total,
              y, C is not None, leave)  # fmt: skip

    with _controller().limit(limits=1, user_api="blas"):
        if threads == 1 or len(tasks) <= 1:
            run(tasks)
        else:
            shares = [np.ascontiguousarray(tasks[k::threads]) for k in range(min(threads, len(tasks)))]
            with ThreadPoolExecutor(len(shares)) as pool:
                list(pool.map(run, shares))
    return y, leaving.reshape(-1, heads, width, size), total
