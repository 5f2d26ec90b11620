"""Exact nearest neighbours and distances in blocks: memory never grows with the product of the two sizes.

High-dimensional neighbours come from matrix products: single precision finds a few candidates more than asked for, whose
distances are then taken again from the differences in double precision, so that neither near-duplicates nor large
offsets lose digits. A row whose candidates cannot be told from the rest within the rounding error is searched again in
double precision: the result is that of a double-precision search. Low dimensions go to a k-d tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

TREE_DIMENSIONS = 12  # up to here a k-d tree beats the full product
SPARE = 2  # candidates beyond k
BLOCK, BLOCK_CUDA = 1024, 8192  # rows of a block
LAMBDA = 6.0  # the rounding of a dot product stays within LAMBDA sqrt(D) u |x| |y| (Higham and Mary 2019, eq. 3.3)


# --- input -----------------------------------------------------------------------------------------------------------


def check_rows(X: Any, name: str, *, min_rows: int = 1) -> Any:
    """A finite two-dimensional floating-point array (numpy, or torch where a tensor was given).

    Parameters
    ----------
    X : array-like, DataFrame or torch.Tensor, shape (n, D)
        Integers and booleans become float64; float16 becomes float32.
    name : str
        How messages call it.
    min_rows : int
        Fewest rows accepted.

    Raises
    ------
    ValueError
        When it is not two-dimensional, has too few rows or no columns, or holds NaN or infinity (the row is named).
    """
    if is_tensor(X):
        import torch

        if not X.is_floating_point():
            X = X.double()
        elif X.dtype not in (torch.float32, torch.float64):
            X = X.float()
    else:
        X = np.asarray(X)
        if X.dtype == np.float16:
            X = X.astype(np.float32)
        elif X.dtype not in (np.float32, np.float64):
            X = X.astype(np.float64)
    if X.ndim != 2:
        raise ValueError(f"{name}: got {X.ndim} dimensions, shape {tuple(X.shape)}; expected (rows, features)")
    if X.shape[1] < 1:
        raise ValueError(f"{name}: got 0 feature(s) (shape={tuple(X.shape)}) while a minimum of 1 is required.")
    if X.shape[0] < min_rows:
        raise ValueError(
            f"{name}: got n_samples = {X.shape[0]} (shape={tuple(X.shape)}); expected at least {min_rows} row(s)"
        )
    flat = X.detach() if is_tensor(X) else X
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(flat.sum())
    if not math.isfinite(total):  # the sum is finite unless an entry is not, or it overflows
        for start in range(0, X.shape[0], 4096):
            part = flat[start : start + 4096]
            bad = ~np.isfinite(part.cpu().numpy() if is_tensor(part) else part).all(axis=1)
            if bad.any():
                raise ValueError(
                    f"{name}: row {start + int(bad.argmax())} holds NaN or infinity; expected finite numbers"
                )
    return X


def is_tensor(X: Any) -> bool:
    """Whether it is a torch tensor, without importing torch."""
    return type(X).__module__.partition(".")[0] == "torch" and hasattr(X, "detach")


def same_width(X: Any, Y: Any, name_x: str, name_y: str) -> None:
    """Raise ValueError unless both have as many columns."""
    if X.shape[1] != Y.shape[1]:
        raise ValueError(
            f"{name_x} and {name_y} must have as many features; got shapes {tuple(X.shape)} and {tuple(Y.shape)}"
        )


# --- public ----------------------------------------------------------------------------------------------------------


def knn(queries: Any, refs: Any = None, k: int = 1) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The k nearest rows of ``refs`` for each row of ``queries``, exactly.

    Parameters
    ----------
    queries : array or tensor, shape (m, D)
        A CUDA tensor is searched on its device.
    refs : array or tensor, shape (n, D), optional
        Default: ``queries`` themselves, a row never counting as its own neighbour.
    k : int
        Number of neighbours, 1 to n (n - 1 without ``refs``).

    Returns
    -------
    distances : ndarray of float64, shape (m, k)
        Euclidean, ascending.
    indices : ndarray of int64, shape (m, k)
    """
    own = refs is None
    queries = check_rows(queries, "queries")
    refs = queries if own else check_rows(refs, "refs")
    same_width(queries, refs, "queries", "refs")
    _check_k(k, len(refs) - own, "refs")
    if queries.shape[1] <= TREE_DIMENSIONS and not is_tensor(queries):
        return _tree(queries, refs, k, own)
    both = _Pass(queries, refs, own=own)
    side = both.side(0, k)
    both.run([side])
    return side.result()


@dataclass
class CrossNeighbors:
    """What :func:`cross_neighbors` found between X (n rows) and Y (m rows).

    Attributes
    ----------
    x_distances, x_indices : ndarray, shape (n, k)
        Nearest rows of Y for each row of X.
    y_distances, y_indices : ndarray, shape (m, k)
        Nearest rows of X for each row of Y.
    y_in_balls, balls_filled : ndarray of int, shape (m,), (n,), or None
        In how many balls around X's rows (``radius_x``) each Y lies; how many Y lie in the ball of each X.
    x_in_balls : ndarray of int, shape (n,), or None
        In how many balls around Y's rows (``radius_y``) each X lies.
    """

    x_distances: NDArray[np.float64]
    x_indices: NDArray[np.int64]
    y_distances: NDArray[np.float64]
    y_indices: NDArray[np.int64]
    y_in_balls: Any = None
    balls_filled: Any = None
    x_in_balls: Any = None


def cross_neighbors(X: Any, Y: Any, k_x: int = 1, k_y: int | None = None, *, radius_x: Any = None,
                    radius_y: Any = None) -> CrossNeighbors:  # fmt: skip
    """Neighbours in both directions, and counts inside balls, from one pass over the distances.

    Parameters
    ----------
    X, Y : array or tensor, shape (n, D), (m, D)
    k_x, k_y : int
        Neighbours of each X among Y, and of each Y among X (default: ``k_x``).
    radius_x, radius_y : array, shape (n,), (m,), optional
        Radii of balls around the rows; a point lies inside when its distance is strictly smaller.
    """
    X, Y = check_rows(X, "X"), check_rows(Y, "Y")
    same_width(X, Y, "X", "Y")
    k_y = k_x if k_y is None else k_y
    _check_k(k_x, len(Y), "Y")
    _check_k(k_y, len(X), "X")
    both = _Pass(X, Y)
    sides = [both.side(0, k_x), both.side(1, k_y)]
    balls = [both.balls(axis, r) if r is not None else None for axis, r in enumerate((radius_x, radius_y))]
    both.run(sides, [b for b in balls if b is not None])
    (xd, xi), (yd, yi) = (s.result() for s in sides)
    found = CrossNeighbors(xd, xi, yd, yi)
    inside_x, inside_y = balls
    if inside_x is not None:
        found.balls_filled, found.y_in_balls = inside_x.counted
    if inside_y is not None:
        found.x_in_balls, _ = inside_y.counted
    return found


def distance_blocks(X: Any, Y: Any, metric: Any = "euclidean", megabytes: float = 64.0) -> Iterator[tuple[slice, Any]]:
    """Distances from consecutive rows of X to all of Y: ``(rows, block)`` with block of shape (rows, m).

    ``metric`` is what :func:`sklearn.metrics.pairwise_distances` accepts; float64 throughout.
    """
    from sklearn.metrics import pairwise_distances_chunked

    X, Y = (np.asarray(A, dtype=np.float64) for A in (X, Y))
    start = 0
    for block in pairwise_distances_chunked(X, Y, metric=metric, working_memory=megabytes):
        yield slice(start, start + len(block)), block
        start += len(block)


def _check_k(k: int, most: int, name: str) -> None:
    if not 1 <= k <= most:
        raise ValueError(f"k: got {k}; expected 1 to {most}, the neighbours that {name} can give")


def _tree(queries: Any, refs: Any, k: int, own: bool) -> tuple[Any, Any]:
    from scipy.spatial import cKDTree

    distances, indices = cKDTree(np.asarray(refs, dtype=np.float64)).query(
        np.asarray(queries, dtype=np.float64), k=list(range(1, k + own + 1))
    )
    if own:  # drop the row itself, or among more duplicates than k + 1 the last one
        keep = indices != np.arange(len(queries))[:, None]
        keep[keep.all(axis=1), -1] = False
        distances, indices = (a[keep].reshape(len(queries), k) for a in (distances, indices))
    return distances, indices.astype(np.int64)


# --- one pass over the blocks ----------------------------------------------------------------------------------------


class _Pass:
    """All blocks of squared distances between two sets, shown to whoever reads them.

    Coordinates are centred on Y's mean, so that single precision does not cancel needlessly, and divided by ``scale``
    where they are so large or small that squares would overflow; everything inside is in these units.
    """

    def __init__(self, X: Any, Y: Any, *, own: bool = False, double: bool = False):
        import torch

        self.sets = tuple(A.detach() if is_tensor(A) else torch.from_numpy(np.ascontiguousarray(A)) for A in (X, Y))
        self.device = self.sets[0].device if self.sets[0].is_cuda else self.sets[1].device
        self.own, self.dtype = own, torch.float64 if double else torch.float32
        self.block = BLOCK_CUDA if self.device.type == "cuda" else BLOCK
        self.centre = _mean(self.sets[1]).to(self.device)
        given = torch.promote_types(self.sets[0].dtype, self.sets[1].dtype)
        self.scale = 1.0
        for work in (self.dtype if double else given, torch.float64):
            self.work = work  # the type of the differences from the centre
            self.norms = [self._norms(A) for A in self.sets]
            largest = max(float(norms.max()) for norms in self.norms)
            if largest == 0 or 1e-12 < largest < 1e12:
                break
        else:
            self.scale = largest
            self.norms = [norms / largest for norms in self.norms]
        unit = 2.0**-53 if double else 2.0**-24
        self.rounding = unit * (LAMBDA * math.sqrt(X.shape[1]) + 8.0)  # times (|x| + |y|)^2

    def _norms(self, A: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.cat([torch.linalg.vector_norm(self._centred(A, rows), dim=1) for rows in self._blocks(A)])

    def _blocks(self, A: torch.Tensor, first: int = 0) -> Iterator[slice]:
        return (slice(start, min(start + self.block, len(A))) for start in range(first, len(A), self.block))

    def _centred(self, A: torch.Tensor, rows: slice) -> torch.Tensor:
        return A[rows].to(self.device, self.work) - self.centre.to(self.work)

    def _ready(self, axis: int, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows as they enter the product, and their squared norms."""
        part = self._centred(self.sets[axis], rows)
        part = (part if self.scale == 1.0 else part / self.scale).to(self.dtype)
        return part, self.norms[axis][rows].square().to(self.dtype)

    def slack(self, axis: int) -> torch.Tensor:
        """How far a squared distance of each row may be off."""
        return self.rounding * (self.norms[axis].double() + float(self.norms[1 - axis].max())) ** 2

    def side(self, axis: int, k: int) -> _Side:
        return _Side(self, axis, k)

    def balls(self, axis: int, radius: Any) -> _Balls:
        return _Balls(self, axis, radius)

    def run(self, sides: list[_Side], balls: Sequence[_Balls] = ()) -> None:
        for rows in self._blocks(self.sets[0]):
            x, x2 = self._ready(0, rows)
            # of a set against itself one triangle serves both sides
            for cols in self._blocks(self.sets[1], rows.start if self.own else 0):
                y, y2 = self._ready(1, cols)
                squared = (x @ y.T).mul_(-2).add_(x2[:, None]).add_(y2)
                if self.own and rows == cols:
                    squared.fill_diagonal_(math.inf)
                for side in sides:
                    if side.axis == 0:
                        side.see(rows, squared, cols)
                    if side.axis == 1 or (self.own and rows != cols):
                        side.see(cols, squared.T.contiguous(), rows)
                for ball in balls:
                    ball.see(rows, cols, squared)


def _mean(A: torch.Tensor) -> torch.Tensor:
    """Column means in double precision, block by block."""
    import torch

    parts = (A[start : start + 512].sum(0, dtype=torch.float64) for start in range(0, len(A), 512))
    return sum(parts) / len(A)  # type: ignore[return-value]


class _Side:
    """The nearest neighbours of one set's rows, as the blocks go by."""

    def __init__(self, both: _Pass, axis: int, k: int):
        import torch

        self.both, self.axis, self.k = both, axis, k
        n, others = len(both.sets[axis]), len(both.sets[1 - axis]) - both.own
        self.kept = min(k + SPARE, others)
        self.all_kept = self.kept == others
        self.values = torch.full((n, self.kept), math.inf, dtype=both.dtype, device=both.device)
        self.index = torch.zeros((n, self.kept), dtype=torch.int64, device=both.device)

    def see(self, rows: slice, squared: torch.Tensor, cols: slice) -> None:
        import torch

        values, index = torch.topk(squared, min(self.kept, squared.shape[1]), dim=1, largest=False, sorted=False)
        values = torch.cat([self.values[rows], values], 1)
        index = torch.cat([self.index[rows], index + cols.start], 1)
        self.values[rows], best = torch.topk(values, self.kept, dim=1, largest=False, sorted=False)
        self.index[rows] = index.gather(1, best)

    def result(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        import torch

        both, n = self.both, len(self.index)
        queries, refs = both.sets[self.axis], both.sets[1 - self.axis]
        here = torch.arange(n, device=self.index.device)
        exact = _exact(queries, refs, here.repeat_interleave(self.kept), self.index.reshape(-1)).reshape(n, self.kept)
        distances, order = torch.sort(exact, dim=1, stable=True)
        distances, index = distances[:, : self.k], self.index.gather(1, order)[:, : self.k]
        if both.dtype == torch.float32 and not self.all_kept:
            # everything that was not kept is at least this far
            floor = self.values.max(1).values.double() - both.slack(self.axis)
            doubtful = torch.nonzero((distances[:, -1] / both.scale) ** 2 > floor).ravel()
            if len(doubtful):
                distances[doubtful], index[doubtful] = self._again(doubtful)
        return distances.cpu().numpy(), index.cpu().numpy()

    def _again(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Search these rows in double precision."""
        import torch

        queries, refs = self.both.sets[self.axis], self.both.sets[1 - self.axis]
        second = _Pass(queries[rows.to(queries.device)], refs, double=True)
        side = _Side(second, 0, self.k + self.both.own)  # the row itself is found too
        second.run([side])
        distances, index = (torch.from_numpy(a).to(rows.device) for a in side.result())
        if self.both.own:
            keep = index != rows[:, None]
            keep[keep.all(1), -1] = False
            distances, index = (a[keep].reshape(len(rows), self.k) for a in (distances, index))
        return distances, index


class _Balls:
    """Counts of points strictly inside balls around one set's rows; those near the sphere are measured exactly."""

    def __init__(self, both: _Pass, axis: int, radius: Any):
        import torch

        self.both, self.axis = both, axis
        radius = torch.as_tensor(np.asarray(radius, dtype=np.float64), device=both.device)
        if radius.shape != (len(both.sets[axis]),):
            raise ValueError(
                f"radius: got shape {tuple(radius.shape)}; expected one for each of {len(both.sets[axis])} rows"
            )
        self.radius = radius
        squared = (radius / both.scale) ** 2
        slack = both.slack(axis) + 2 * 2.0**-24 * squared  # the threshold is rounded as well
        self.low, self.high = (squared - slack).to(both.dtype), (squared + slack).to(both.dtype)
        self.counts = [torch.zeros(len(A), dtype=torch.int64, device=both.device) for A in both.sets]

    def see(self, rows: slice, cols: slice, squared: torch.Tensor) -> None:
        import torch

        own, across = (rows, 1) if self.axis == 0 else (cols, 0)
        i, j = torch.nonzero(squared < self.high[own].unsqueeze(across), as_tuple=True)  # few where k is small
        value, i, j = squared[i, j], i + rows.start, j + cols.start
        ball = i if self.axis == 0 else j
        inside = value < self.low[ball]
        near = torch.nonzero(~inside).ravel()
        inside[near] = _exact(self.both.sets[0], self.both.sets[1], i[near], j[near]) < self.radius[ball[near]]
        for count, where in zip(self.counts, (i, j), strict=True):
            count += torch.bincount(where[inside], minlength=len(count))

    @property
    def counted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Per row of X and of Y: in its own set how many points the ball holds, in the other in how many balls it lies."""
        x, y = (c.cpu().numpy() for c in self.counts)
        return x, y


def _exact(X: torch.Tensor, Y: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    """Distances of pairs of rows from their differences, in double precision: symmetric to the last bit."""
    import torch

    out = torch.empty(len(i), dtype=torch.float64, device=i.device)
    step = max(1, 2**17 // X.shape[1])  # what stays in the cache of a core
    for start in range(0, len(i), step):
        a, b = i[start : start + step].to(X.device), j[start : start + step].to(Y.device)
        difference = X[a].to(i.device).double().sub_(Y[b].to(i.device))
        out[start : start + step] = torch.linalg.vector_norm(difference, dim=1)
    return out
