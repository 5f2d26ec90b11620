"""Covering designs: blocks of at most k of v points such that every l points lie together in some block.

Constructed, not looked up; blocks are streamed and never all stored. Blocks of fewer than l points are dropped.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("auto", "projective", "groups", "greedy", "trivial")
GREEDY_POINTS, GREEDY_SUBSETS = 40, 20_000
PRIMES = [p for p in range(2, 200) if all(p % d for d in range(2, p))]


def schonheim(v: int, k: int, l: int) -> int:
    """Schonheim's lower bound on the number of blocks of size k."""
    bound = 1
    for i in reversed(range(l)):
        bound = -(-(v - i) * bound // (k - i))
    return bound


# --- projective geometry ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def projective_points(dimension: int, q: int) -> np.ndarray:
    """Points of PG(dimension, q), q prime: vectors of F_q^(dimension + 1) whose first nonzero entry is 1, (points, dimension + 1)."""
    found = []
    for lead in range(dimension + 1):
        for rest in itertools.product(range(q), repeat=dimension - lead):
            found.append([0] * lead + [1, *rest])
    return np.array(found, np.int64)


def points_of(dimension: int, q: int) -> int:
    """Number of points, which is the number of hyperplanes."""
    return int((q ** (dimension + 1) - 1) // (q - 1))


def hyperplanes(dimension: int, q: int) -> Iterator[np.ndarray]:
    """The points on each hyperplane of PG(dimension, q): any ``dimension`` points lie together on one."""
    points = projective_points(dimension, q)
    for normal in points:
        yield np.flatnonzero(points @ normal % q == 0)


def flats(dimension: int, l: int, q: int) -> Iterator[np.ndarray]:
    """The points on each (l - 1)-dimensional flat of PG(dimension, q), dimension >= l: smaller blocks, more of them.

    Each is the row space of a reduced echelon matrix (l, dimension + 1).
    """
    points = projective_points(dimension, q)
    number = {tuple(p): i for i, p in enumerate(points.tolist())}
    weights = projective_points(l - 1, q)
    n = dimension + 1
    for pivots in itertools.combinations(range(n), l):
        free = [(r, c) for r in range(l) for c in range(pivots[r] + 1, n) if c not in pivots]
        for values in itertools.product(range(q), repeat=len(free)):
            basis = np.zeros((l, n), np.int64)
            basis[range(l), pivots] = 1
            for (r, c), value in zip(free, values, strict=True):
                basis[r, c] = value
            # a combination whose first weight is 1 has 1 as its first nonzero entry: it is normalised
            yield np.array(sorted(number[tuple(w)] for w in (weights @ basis % q).tolist()))


def count_flats(dimension: int, l: int, q: int) -> int:
    """Number of (l - 1)-flats: the Gaussian binomial of dimension + 1 over l."""
    top = math.prod(q ** (dimension + 1 - i) - 1 for i in range(l))
    return top // math.prod(q ** (i + 1) - 1 for i in range(l))


def _spread(v: int, points: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Which of v elements stand for each point: one for some (v <= points) or several for each, at random."""
    if v <= points:
        who: list[np.ndarray] = [np.empty(0, np.int64)] * points
        for element, point in enumerate(rng.choice(points, v, replace=False)):
            who[point] = np.array([element])
        return who
    return [np.sort(part) for part in np.array_split(rng.permutation(v), points)]


def projective(
    v: int, k: int, l: int, q: int, rng: np.random.Generator, dimension: int | None = None
) -> Iterator[np.ndarray]:
    """Blocks induced on v elements by PG(dimension, q): CoVerD's covering verification design, of varying sizes.

    Elements are assigned to points at random (several to a point where there are more elements). A block above k is covered
    in turn.
    """
    dimension = l if dimension is None else dimension
    who = _spread(v, points_of(dimension, q), rng)
    for members in hyperplanes(dimension, q) if dimension == l else flats(dimension, l, q):
        block = np.sort(np.concatenate([who[m] for m in members]))
        if len(block) <= k:
            if len(block) >= l:
                yield block
        else:
            for inner in groups(len(block), k, l):
                yield block[inner]


# --- simpler ones ----------------------------------------------------------------------------------------------------


def groups(v: int, k: int, l: int) -> Iterator[np.ndarray]:
    """Unions of l of g nearly equal groups: C(g, l) blocks of at most k."""
    g = group_count(v, k, l)
    parts = np.array_split(np.arange(v), g)
    for chosen in itertools.combinations(range(g), l):
        yield np.concatenate([parts[c] for c in chosen])


def group_count(v: int, k: int, l: int) -> int:
    """The fewest groups whose unions of l have at most k elements."""
    return v if k // l == 0 else max(l, -(-v // (k // l)))


def greedy(v: int, k: int, l: int, rng: np.random.Generator, tries: int = 20) -> Iterator[np.ndarray]:
    """Each next block is grown, element by element, to hold most l-subsets that no block holds yet; for few subsets."""
    subsets = np.array(list(itertools.combinations(range(v), l)), np.int64).reshape(-1, l)
    belongs = np.zeros((len(subsets), v), bool)
    belongs[np.arange(len(subsets))[:, None], subsets] = True
    open_ = np.ones(len(subsets), bool)
    while open_.any():
        left = belongs[open_]
        best = np.empty(0, np.int64)
        most = -1
        for _ in range(min(tries, len(left))):
            inside = left[rng.integers(len(left))].copy()
            while inside.sum() < k:
                missing = l - (left & inside).sum(1)
                worth = np.where(
                    inside, -1.0, (left * (0.1 ** np.maximum(missing - 1, 0) * (missing > 0))[:, None]).sum(0)
                )
                top = np.flatnonzero(worth == worth.max())
                inside[rng.choice(top)] = True
            covered = int(((left & inside).sum(1) == l).sum())
            if covered > most:
                best, most = np.flatnonzero(inside), covered
        yield best
        mask = np.zeros(v, bool)
        mask[best] = True
        open_ &= (belongs & mask).sum(1) < l


def trivial(v: int, l: int) -> Iterator[np.ndarray]:
    """All l-subsets."""
    for subset in itertools.combinations(range(v), l):
        yield np.array(subset, np.int64)


# --- the choice ------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def smallest_projective(v: int, k: int, l: int) -> tuple[int, int, int] | None:
    """(blocks, dimension, q) of the projective covering with fewest blocks whose usual block does not exceed k, or None.

    Blocks of a random projection vary: the mean plus two standard deviations must fit (the few larger ones are split).
    """
    found = []
    for dimension in range(l, l + 3):
        for q in PRIMES:
            points = points_of(dimension, q)
            if points > 20_000:
                break
            members = points_of(l - 1, q)
            if v <= points:
                mean = v * members / points
                usual = min(
                    members, mean + 2 * math.sqrt(mean * (1 - members / points) * (points - v) / max(points - 1, 1))
                )
            else:
                usual = members * math.ceil(v / points)
            if usual <= k:
                found.append((count_flats(dimension, l, q), dimension, q))
                break
    return min(found, default=None)


def covering_size(v: int, k: int, l: int) -> int:
    """Number of blocks that ``kind="auto"`` needs, without making them (projective ones: before splits and drops)."""
    if k >= v or l == 0:
        return 1
    if l == 1:
        return -(-v // k)
    if k == l:
        return math.comb(v, l)
    sizes = [math.comb(group_count(v, k, l), l)]
    if (found := smallest_projective(v, k, l)) is not None:
        sizes.append(found[0])
    return min(sizes)


def covering_design(
    v: int, k: int, l: int, kind: str | Path = "auto", random_state: Any = None
) -> Iterator[np.ndarray]:
    """Blocks of at most k of the points 0..v-1 such that every l of them lie together in one.

    Parameters
    ----------
    v, k, l : int
        Points, largest block, strength; 0 <= l <= k <= v.
    kind : {"auto", "projective", "groups", "greedy", "trivial"} or Path
        "auto" takes the construction with fewest blocks. A path is a file of blocks, a line each, points from 1 on (the
        format of the La Jolla repository); it is checked.
    random_state : int, Generator or None
        Permutes the points and draws projections.

    Yields
    ------
    array of int
        A block, sorted.

    Raises
    ------
    ValueError
        For sizes that do not fit, an unknown kind, a file that is no such covering.
    """
    for name, value in (("v", v), ("k", k), ("l", l)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ValueError(f"{name}: got {value!r}; expected an integer")
    if not 0 <= l <= k <= v or k == 0:
        raise ValueError(f"v, k, l: got {v}, {k}, {l}; expected 0 <= l <= k <= v and k >= 1")
    if not isinstance(kind, Path) and kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}; expected one of {', '.join(KINDS)} or the path of a file of blocks")
    if kind == "greedy" and (v > GREEDY_POINTS or math.comb(v, l) > GREEDY_SUBSETS):
        raise ValueError(
            f"kind: 'greedy' is for v <= {GREEDY_POINTS} and at most {GREEDY_SUBSETS:,} l-subsets; got v={v}, l={l}"
        )
    if isinstance(kind, Path):
        return iter(read_covering(kind, v, l, k))
    return _blocks(int(v), int(k), int(l), kind, np.random.default_rng(random_state))


def _blocks(v: int, k: int, l: int, kind: str, rng: np.random.Generator) -> Iterator[np.ndarray]:
    names = rng.permutation(v)
    if k == v or l == 0:
        yield np.arange(v)[:k] if l == 0 else np.arange(v)
        return
    made: Iterator[np.ndarray]
    if kind == "trivial" or (kind == "auto" and k == l):
        made = trivial(v, l)
    elif kind == "greedy":
        made = greedy(v, k, l, rng)
    elif kind == "projective":
        found = smallest_projective(v, k, l)
        if found is None:
            raise ValueError(f"kind: no projective covering for v={v}, k={k}, l={l}; expected another kind")
        made = projective(v, k, l, found[2], rng, found[1])
    elif kind == "groups" or l == 1:
        made = groups(v, k, l)
    else:
        made = _best(v, k, l, rng)
    for block in made:
        yield np.sort(names[block])


def _best(v: int, k: int, l: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    found = smallest_projective(v, k, l)
    if found is not None and found[0] < math.comb(group_count(v, k, l), l):
        return projective(v, k, l, found[2], rng, found[1])
    return groups(v, k, l)


def read_covering(path: Path, v: int, l: int, k: int | None = None) -> list[np.ndarray]:
    """Blocks from a file, a line each, points from 1 on; the covering property is checked.

    Raises
    ------
    ValueError
        For a line that is no block of the points 1..v, a block above k, an l-subset in no block.
    """
    blocks = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            block = np.unique(np.array(line.replace(",", " ").split(), np.int64)) - 1
        except ValueError:
            raise ValueError(f"{path.name}, line {number}: expected points in 1..{v}, got {line[:60]!r}") from None
        if block[0] < 0 or block[-1] >= v or (k is not None and len(block) > k):
            raise ValueError(f"{path.name}, line {number}: expected a block of at most {k or v} points in 1..{v}")
        if len(block) >= l:
            blocks.append(block)
    missing = uncovered(blocks, v, l)
    if missing is not None:
        raise ValueError(
            f"{path.name}: no block holds {[int(m) + 1 for m in missing]}; it is no covering of strength {l}"
        )
    return blocks


def uncovered(blocks: list[np.ndarray], v: int, l: int) -> tuple[int, ...] | None:
    """An l-subset of 0..v-1 that no block holds, or None."""
    if l == 0:
        return None if blocks else ()
    holds = np.zeros((v, -(-len(blocks) // 64) * 64), bool)
    for i, block in enumerate(blocks):
        holds[block, i] = True
    packed = np.packbits(holds, axis=1).view(np.uint64)

    def search(first: int, common: np.ndarray, chosen: tuple[int, ...]) -> tuple[int, ...] | None:
        for p in range(first, v):
            both = common & packed[p]
            if not both.any():
                rest = [q for q in range(v) if q not in (*chosen, p)][: l - len(chosen) - 1]
                return tuple(sorted((*chosen, p, *rest)))
            if len(chosen) + 1 < l and (found := search(p + 1, both, (*chosen, p))):
                return found
        return None

    return search(0, np.full(packed.shape[1], np.iinfo(np.uint64).max), ())
