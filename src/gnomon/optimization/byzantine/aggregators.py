"""Rules that merge the vectors of n clients of whom up to f lie, and what is done to the rows before.

Every rule takes rows (n, d), as a numpy array, a torch tensor or a list of vectors, and gives a vector (d,) of the same
kind. Rows that hold NaN or infinity are dropped and count as liars.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import array_api_compat
import numpy as np

CHUNK = 2**24  # entries of a temporary array; above, columns are taken in turns
SUBSETS = 100_000  # the most that minimum-diameter averaging looks through


# --- rows ------------------------------------------------------------------------------------------------------------


def namespace(x: Any) -> Any:
    """numpy itself (which follows the array API), or that of a torch tensor."""
    return np if isinstance(x, np.ndarray) else array_api_compat.array_namespace(x)


def as_rows(rows: Any) -> Any:
    """The rows as one floating-point array (n, d) of numpy or torch.

    Raises
    ------
    ValueError
        Where the vectors have different lengths, there is none, or the array has not two axes.
    TypeError
        Where the numbers are not real.
    """
    if isinstance(rows, list | tuple):
        shapes = [tuple(np.shape(r)) for r in rows]
        if not shapes:
            raise ValueError("rows: got no vector; expected one for each client")
        if len(set(shapes)) > 1 or len(shapes[0]) != 1:
            raise ValueError(f"rows: expected one vector for each client, all of one length, got shapes {shapes}")
        tensors = all(array_api_compat.is_torch_array(r) for r in rows)
        rows = namespace(rows[0]).stack(rows) if tensors else np.stack(rows)
    xp = namespace(rows)
    if rows.ndim != 2 or rows.shape[0] == 0 or rows.shape[1] == 0:
        raise ValueError(f"rows: expected an array of clients x parameters, got shape {tuple(rows.shape)}")
    if xp.isdtype(rows.dtype, "real floating"):
        return rows
    if not xp.isdtype(rows.dtype, ("bool", "integral")):
        raise TypeError(f"rows: expected real numbers, got {rows.dtype}")
    return xp.astype(rows, xp.float64)


def check_liars(n: int, f: int) -> None:
    """Raise ValueError unless n clients outvote f liars."""
    if f < 0:
        raise ValueError(f"f: got {f}; expected a number >= 0")
    if n <= 2 * f:
        raise ValueError(f"needs n > 2f, got n={n}, f={f}")


@np.errstate(over="ignore", invalid="ignore")
def finite(x: Any, most: int) -> tuple[Any, int]:
    """The rows without those that hold NaN or infinity, and how many these were; a warning names them.

    Raises
    ------
    ValueError
        Where there are more than ``most``.
    """
    xp = namespace(x)
    if bool(xp.isfinite(xp.sum(x))):  # one pass; a sum may also overflow, then the rows are looked at one by one
        return x, 0
    good = xp.all(xp.isfinite(x), axis=1)
    bad = [i for i, ok in enumerate(good.tolist()) if not ok]
    if len(bad) > most:
        raise ValueError(f"clients {bad} sent NaN or infinity; at most {most} liars are tolerated")
    if bad:
        warnings.warn(f"clients {bad} sent NaN or infinity and count as liars", RuntimeWarning, stacklevel=3)
    return (x[good] if bad else x), len(bad)


@np.errstate(over="ignore", invalid="ignore")
def squared_distances(x: Any) -> Any:
    """Squared Euclidean distances between the rows (n, n), through one Gram matrix.

    Columns are centred first, since a large common mean costs digits; a pair that still lost digits (near beside its
    norms, as honest rows are beside a huge liar) is computed from its difference.
    """
    xp = namespace(x)
    n, d = x.shape
    gram = _centred_gram(x, 1.0)
    if not bool(xp.isfinite(xp.sum(gram))):  # squares overflow
        unit = float(xp.max(xp.abs(x)))
        gram = _centred_gram(x, unit) * unit * unit
    norms = xp.linalg.diagonal(gram)
    sums = norms[:, None] + norms[None, :]
    found = sums - 2 * gram
    lost = found <= float(xp.finfo(x.dtype).eps) ** 0.25 * sums
    on = xp.arange(n)
    found[on, on] = 0.0
    lost[on, on] = False
    lost = lost | ~xp.isfinite(found)
    if bool(xp.any(lost)):
        i, j = xp.nonzero(xp.triu(lost))
        step = max(1, CHUNK // (4 * d))
        for start in range(0, i.shape[0], step):
            a, b = i[start : start + step], j[start : start + step]
            found[a, b] = found[b, a] = xp.sum((x[a] - x[b]) ** 2, axis=1)
    return found


def _centred_gram(x: Any, unit: float) -> Any:
    n, d = x.shape
    width = max(1, CHUNK // n)
    gram: Any = 0
    for start in range(0, d, width):
        part = x[:, start : start + width]
        part = part if unit == 1.0 else part / unit
        part = part - part.mean(0)
        gram = gram + part @ part.T
    return gram


# --- what every rule shares ------------------------------------------------------------------------------------------


class Step:
    """A rule or a pre-aggregation; ``f`` is the number of liars it is built for."""

    f: int = 0

    def tolerated(self, n: int) -> int:
        """How many of n rows may be unusable."""
        return self.f

    def without(self, k: int) -> Any:
        """The same step once k liars have been found out."""
        named = {f.name for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return dataclasses.replace(self, f=max(0, self.f - k)) if "f" in named else self  # type: ignore[type-var]

    def __call__(self, rows: Any) -> Any:
        """Apply to rows (n, d).

        Raises
        ------
        ValueError
            Unless n > 2f; for vectors of different lengths; for more rows with NaN or infinity than are tolerated.
        TypeError
            For complex numbers.
        """
        x = as_rows(rows)
        check_liars(x.shape[0], self.f)
        x, dropped = finite(x, self.tolerated(x.shape[0]))
        return (self.without(dropped) if dropped else self).apply(x)

    def apply(self, x: Any) -> Any:
        """The same for rows that are known to be good."""
        raise NotImplementedError


class Aggregator(Step):
    """Rows (n, d) to one vector (d,)."""


class PreAggregator(Step):
    """Rows (n, d) to rows (m, d), of which an aggregator then makes one."""


# --- aggregators -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean(Aggregator):
    """The average: best without liars, at the mercy of a single one."""

    def apply(self, x: Any) -> Any:
        return namespace(x).mean(x, axis=0)


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """Of each coordinate, the mean without the f smallest and the f largest values (Yin et al. 2018).

    On a GPU with Triton, up to 64 rows are sorted in registers (:mod:`gnomon.optimization.byzantine.gpu`).
    """

    f: int = 0

    def apply(self, x: Any) -> Any:
        xp = namespace(x)
        n = x.shape[0]
        if self.f == 0:
            return xp.mean(x, axis=0)
        if array_api_compat.is_torch_array(x) and x.is_cuda:
            from gnomon.optimization.byzantine import gpu

            if gpu.fits(x):
                return gpu.trimmed_mean(x, self.f)
        width = max(1, CHUNK // n)
        parts = [
            xp.mean(xp.sort(x[:, s : s + width], axis=0, stable=False)[self.f : n - self.f], axis=0)
            for s in range(0, x.shape[1], width)
        ]
        return parts[0] if len(parts) == 1 else xp.concat(parts)


@dataclass(frozen=True)
class CoordinateMedian(Aggregator):
    """Of each coordinate, the median (the mean of the middle two of an even number)."""

    def tolerated(self, n: int) -> int:
        return (n - 1) // 2

    def apply(self, x: Any) -> Any:
        return TrimmedMean((x.shape[0] - 1) // 2).apply(x)


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """The point with the least sum of distances to the rows, by Weiszfeld's iteration.

    Parameters
    ----------
    nu : float
        Distances below nu times the rows' median distance from their coordinate median count as that.
    tol : float
        Stop when a step is shorter than this, on the same scale.
    max_iter : int
        The most iterations.
    """

    nu: float = 1e-8
    tol: float = 1e-8
    max_iter: int = 1000

    def tolerated(self, n: int) -> int:
        return (n - 1) // 2

    def apply(self, x: Any) -> Any:
        xp = namespace(x)
        z = CoordinateMedian().apply(x)
        scale = float(xp.sort(xp.linalg.vector_norm(x - z, axis=1))[x.shape[0] // 2])
        if scale == 0.0:  # more than half of the rows are this point
            return z
        for _ in range(self.max_iter):
            weights = 1 / xp.clip(xp.linalg.vector_norm(x - z, axis=1), self.nu * scale, None)
            before, z = z, (weights / xp.sum(weights)) @ x
            if float(xp.linalg.vector_norm(z - before)) <= self.tol * scale:
                break
        return z


def _krum_scores(x: Any, f: int) -> Any:
    """The sum of squared distances to the other n - f - 1 of the n - f nearest rows."""
    xp = namespace(x)
    near = xp.sort(squared_distances(x), axis=1)[:, 1 : x.shape[0] - f]  # the first is the row itself
    return xp.sum(near, axis=1)


@dataclass(frozen=True)
class Krum(Aggregator):
    """The row that is nearest to its n - f nearest rows (Blanchard et al. 2017)."""

    f: int = 0

    def apply(self, x: Any) -> Any:
        xp = namespace(x)
        return x[int(xp.argmin(_krum_scores(x, self.f)))]


@dataclass(frozen=True)
class MultiKrum(Aggregator):
    """The mean of the n - f rows with the best Krum scores."""

    f: int = 0

    def apply(self, x: Any) -> Any:
        xp = namespace(x)
        best = xp.argsort(_krum_scores(x, self.f), stable=True)[: x.shape[0] - self.f]
        return xp.mean(x[best], axis=0)


@dataclass(frozen=True)
class MeaMed(Aggregator):
    """Of each coordinate, the mean of the n - f values nearest to the median (Xie et al. 2018)."""

    f: int = 0

    def apply(self, x: Any) -> Any:
        xp = namespace(x)
        away = xp.abs(x - CoordinateMedian().apply(x))
        nearest = xp.argsort(away, axis=0, stable=True)[: x.shape[0] - self.f]
        return xp.mean(xp.take_along_axis(x, nearest, axis=0), axis=0)


@dataclass(frozen=True)
class MinimumDiameter(Aggregator):
    """The mean of the n - f rows of least diameter, by looking through all subsets.

    Raises
    ------
    NotImplementedError
        When there are more than 100,000 subsets.
    """

    f: int = 0

    def apply(self, x: Any) -> Any:
        xp = namespace(x)
        n = x.shape[0]
        if math.comb(n, self.f) > SUBSETS:
            raise NotImplementedError(f"minimum-diameter averaging of n={n} rows with f={self.f} looks through "
                                      f"{math.comb(n, self.f)} subsets; use Chain(NNM(f), TrimmedMean(f))")  # fmt: skip
        distances = np.asarray(array_api_compat.to_device(squared_distances(x), "cpu"))
        best, least = np.arange(n), np.inf
        subsets = itertools.combinations(range(n), n - self.f)
        while len(block := np.array(list(itertools.islice(subsets, max(1, CHUNK // (8 * n * n)))), dtype=np.int64)):
            diameters = distances[block[:, :, None], block[:, None, :]].max(axis=(1, 2))
            at = int(diameters.argmin())
            if diameters[at] < least:
                best, least = block[at], diameters[at]
        return xp.mean(x[xp.asarray(best, device=array_api_compat.device(x))], axis=0)


@dataclass(frozen=True)
class CenteredClipping(Aggregator):
    """The mean of differences from a centre, each clipped to a radius (Karimireddy et al. 2021).

    Parameters
    ----------
    radius : float
        Largest norm of a difference.
    iterations : int
        How often the centre is moved; it starts at 0 in every call (stateless).
    """

    radius: float = 100.0
    iterations: int = 1

    def tolerated(self, n: int) -> int:
        return (n - 1) // 2

    def apply(self, x: Any) -> Any:
        xp = namespace(x)
        centre = xp.zeros_like(x[0])
        for _ in range(self.iterations):
            centre = centre + xp.mean(_clipped(x - centre, self.radius), axis=0)
        return centre


# --- pre-aggregations ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NNM(PreAggregator):
    """Nearest-neighbour mixing: each row becomes the mean of the n - f rows nearest to it, itself included.

    (Allouah et al. 2023.) O(n^2 d) through one Gram matrix and one product with a mixing matrix; O(n d) memory.
    """

    f: int = 0

    def apply(self, x: Any) -> Any:
        xp = namespace(x)
        n = x.shape[0]
        distances = squared_distances(x)
        on = xp.arange(n)
        distances[on, on] = -1.0  # itself first, whoever else is as near
        nearest = xp.argsort(distances, axis=1, stable=True)[:, : n - self.f]
        mixing = xp.zeros_like(distances)
        mixing[on[:, None], nearest] = 1 / (n - self.f)
        return mixing @ x


@dataclass(frozen=True)
class Bucketing(PreAggregator):
    """The means of buckets of ``size`` rows drawn at random; the last bucket may hold fewer (Karimireddy et al. 2022).

    Parameters
    ----------
    size : int
        Rows of a bucket.
    random_state : int, Generator or None
        An integer gives the same buckets in every call.
    """

    size: int = 1
    random_state: Any = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size: got {self.size}; expected a number >= 1")

    def apply(self, x: Any) -> Any:
        xp = namespace(x)
        order = np.random.default_rng(self.random_state).permutation(x.shape[0])
        parts = [order[s : s + self.size] for s in range(0, len(order), self.size)]
        return xp.stack([xp.mean(x[xp.asarray(p, device=array_api_compat.device(x))], axis=0) for p in parts])


def _clipped(x: Any, most: Any) -> Any:
    xp = namespace(x)
    norms = xp.linalg.vector_norm(x, axis=1)
    factors = xp.where(norms > most, most / xp.where(norms > 0, norms, xp.ones_like(norms)), xp.ones_like(norms))
    return x * factors[:, None]


@dataclass(frozen=True)
class StaticClipping(PreAggregator):
    """Rows longer than ``most`` are shortened to it."""

    most: float = 2.0

    def apply(self, x: Any) -> Any:
        return _clipped(x, self.most)


@dataclass(frozen=True)
class AdaptiveClipping(PreAggregator):
    """The floor(2 f (n - f) / n) longest rows are shortened to the longest of the others (Allouah et al. 2025)."""

    f: int = 0

    def apply(self, x: Any) -> Any:
        xp = namespace(x)
        n = x.shape[0]
        norms = xp.sort(xp.linalg.vector_norm(x, axis=1))
        return _clipped(x, norms[n - int(2 * self.f / n * (n - self.f)) - 1])


@dataclass(frozen=True, init=False)
class Chain(Aggregator):
    """Pre-aggregations, then an aggregator: ``Chain(NNM(f), TrimmedMean(f))`` is the paper's.

    Raises
    ------
    TypeError
        Unless all steps but the last are pre-aggregations and the last is an aggregator.
    """

    steps: tuple[Step, ...] = field(default=())

    def __init__(self, *steps: Step):
        if not steps or not isinstance(steps[-1], Aggregator):
            raise TypeError(f"the last step of a chain is an aggregator, got {steps[-1:] or 'no step'}")
        if others := [s for s in steps[:-1] if not isinstance(s, PreAggregator)]:
            raise TypeError(f"the steps before the last are pre-aggregations, got {others}")
        object.__setattr__(self, "steps", steps)

    @property
    def f(self) -> int:  # type: ignore[override]
        return max(s.f for s in self.steps)

    def tolerated(self, n: int) -> int:
        return max(s.tolerated(n) for s in self.steps)

    def without(self, k: int) -> Chain:
        return Chain(*(s.without(k) for s in self.steps))

    def apply(self, x: Any) -> Any:
        for step in self.steps:
            x = step.apply(x)
        return x

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.steps))})"


# --- what is certified -----------------------------------------------------------------------------------------------


def certified_kappa(aggregator: Step, n: int, f: int) -> float:
    """The kappa of (f, kappa)-robustness that is proved for a rule.

    For every set S of n - f rows: ``|F(x) - mean_S|^2 <= kappa / |S| sum_S |x_i - mean_S|^2``. With r = f / (n - 2f):
    trimmed mean 6 r (1 + r), Krum 6 (1 + r), geometric and coordinate median 4 (1 + r)^2; NNM before a rule gives
    8 f / (n - f) (1 + kappa) (Allouah et al. 2023). No rule has less than r. The mean has none (infinity) where f > 0.

    Parameters
    ----------
    aggregator : Aggregator
        One of those named, or a chain of NNM and one of them.
    n, f : int
        Clients and liars.

    Raises
    ------
    ValueError
        Where n <= 2f, the rule is built for another number of liars, or nothing is proved for it.
    """
    check_liars(n, f)
    r = f / (n - 2 * f)
    if isinstance(aggregator, Chain) and len(aggregator.steps) > 1:
        first, *rest = aggregator.steps
        if not isinstance(first, NNM):
            raise ValueError(f"aggregator: nothing is certified for a chain that begins with {first}; NNM is")
        _built_for(first, f)
        return 8 * f / (n - f) * (1 + certified_kappa(Chain(*rest), n, f)) if f else 0.0
    rule = aggregator.steps[0] if isinstance(aggregator, Chain) else aggregator
    if isinstance(rule, Mean):
        return math.inf if f else 0.0
    if isinstance(rule, CoordinateMedian | GeometricMedian):
        return 4 * (1 + r) ** 2
    if isinstance(rule, TrimmedMean | Krum):
        _built_for(rule, f)
        return 6 * r * (1 + r) if isinstance(rule, TrimmedMean) else 6 * (1 + r)
    raise ValueError(f"aggregator: nothing is certified for {aggregator}; it is for Mean, TrimmedMean, Krum, "
                     "GeometricMedian, CoordinateMedian, and NNM before them")  # fmt: skip


def _built_for(step: Step, f: int) -> None:
    if step.f != f:
        raise ValueError(f"aggregator: {step} is built for f={step.f}, not for f={f}")


def empirical_kappa(aggregator: Aggregator, rows: Any, f: int, most: int = 1000, random_state: Any = 0) -> float:
    """The largest ``|F(x) - mean_S|^2 / (1/|S| sum_S |x_i - mean_S|^2)`` seen over subsets S of n - f rows.

    A lower bound on the kappa of the rule: what these rows show.

    Parameters
    ----------
    aggregator : Aggregator
        The rule.
    rows : array_like (n, d)
        What the clients sent.
    f : int
        Liars.
    most : int
        All subsets are looked at if there are no more than this, else so many drawn at random.
    random_state : int or Generator
        Of the draws.

    Raises
    ------
    ValueError
        As the rule itself; unless n > 2f.
    """
    x = as_rows(rows)
    n = x.shape[0]
    check_liars(n, f)
    merged = np.asarray(aggregator(x), dtype=float)
    values = np.asarray(x, dtype=float)
    subsets: Any = itertools.combinations(range(n), n - f)
    if math.comb(n, f) > most:
        rng = np.random.default_rng(random_state)
        subsets = (rng.permutation(n)[: n - f] for _ in range(most))
    worst = 0.0
    for subset in subsets:
        part = values[list(subset)]
        mean = part.mean(axis=0)
        spread = float(((part - mean) ** 2).sum(axis=1).mean())
        away = float(((merged - mean) ** 2).sum())
        if away > 1e-24 * max(1.0, float((mean**2).sum())):
            worst = max(worst, away / spread if spread > 0 else math.inf)
    return worst
