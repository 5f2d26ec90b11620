"""The search: sample, plan, then walk the plan's states, each one's open nodes split into the next one's."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gnomon.guarantees.focusbranch import families, leaf
from gnomon.guarantees.focusbranch.attack import Attack
from gnomon.guarantees.focusbranch.bounds import BOX, ImageBounds, NodeBounds, stack
from gnomon.guarantees.focusbranch.coverings import covering_design, projective
from gnomon.guarantees.focusbranch.families import Family
from gnomon.guarantees.focusbranch.network import Network
from gnomon.guarantees.focusbranch.plan import Plan, Planner, State, Successes, sizes

GREY = 1e-3  # of 1 + |margin at x|: below it float32 proves nothing
PROVED = 1e-6  # what float64 must exceed
FIRST = 4  # nodes a cell in the first round of sampling
SHARE = 0.2  # of the predicted cost that sampling may use
LEAF_GUESS = 0.05  # s, until one is measured
KEPT_BLOCKS = 4000  # safe blocks kept for pruning, a level
KEPT_FLOATS = 100_000_000  # of open nodes' bounds with reuse="parent"; beyond, the root's are reused


class Stopped(Exception):
    """The time is over."""


class Falsified(Exception):
    """An adversarial image was found."""

    def __init__(self, image: np.ndarray):
        super().__init__("falsified")
        self.image = image


@dataclass(frozen=True)
class Options:
    """How to search; see :class:`~gnomon.guarantees.focusbranch.method.FocusBranch`."""

    t: int
    samples: int = 64
    batch_size: int = 512
    exact: bool = True
    timeout: float = 60.0
    leaf_timeout: float = 30.0
    prune: bool = True
    reuse: str = "root"
    covering: str = "auto"
    falsify: bool = True
    alpha_steps: int = 0
    box: bool = False  # bound the box of S, not the node (Calzone)
    levels: tuple[int, ...] | None = None
    incremental: bool = True
    projective_start: bool = False
    clock: Callable[[], float] = time.perf_counter
    progress: Callable[[str, int, float], None] | None = None


@dataclass
class Counts:
    """What a search did."""

    by_level: dict[int, int] = field(default_factory=dict)
    calls: int = 0
    sampling: int = 0
    sampling_seconds: float = 0.0
    rechecks: int = 0
    leaves: int = 0
    concrete: int = 0
    bound_seconds: float = 0.0
    leaf_seconds: float = 0.0
    open_share: dict[int, float] = field(default_factory=dict)  # of the concrete nodes visited, by level


class Search:
    """One image.

    Parameters
    ----------
    options : Options
        How.
    network : Network
        The classifier.
    image : tensor (*shape)
        x.
    label : int
        y.
    rng : numpy.random.Generator
        Draws samples, permutations and projections.
    """

    def __init__(self, options: Options, network: Network, image: Tensor, label: int, rng: np.random.Generator):
        self.o, self.network, self.x, self.label, self.rng = options, network, image, label, rng
        self.v, self.t = network.pixels, options.t
        self.start = options.clock()
        self.counts = Counts()
        self.ball = not options.box and options.reuse != "none"
        single = network.to(torch.float32)
        self.fast = ImageBounds(single, image, label, self.t, self.ball, options.alpha_steps)
        self._slow: ImageBounds | None = None
        self.attack = Attack(single, image, label)
        self.safe_sets = {l: Family(self.v, l) for l in range(1, self.t + 1)}
        self.open_sets = {l: Family(self.v, l) for l in range(1, self.t + 1)}
        self.safe_blocks: dict[int, np.ndarray] = {}
        self.successes = Successes()
        self.remaining: list[np.ndarray] = []  # sets of nodes that are known to be open
        self.rate: list[float] = []  # seconds a call, by batch
        self.leaf_cost: float | None = None

    # --- time ---

    def elapsed(self) -> float:
        return self.o.clock() - self.start

    def tick(self, what: str = "", done: int = 0, of: float = math.nan) -> None:
        if self.o.progress is not None and what:
            self.o.progress(what, done, of)
        if self.elapsed() > self.o.timeout:
            raise Stopped

    # --- bounding ---

    @property
    def slow(self) -> ImageBounds:
        """In float64, made when it is first needed."""
        if self._slow is None:
            self._slow = ImageBounds(self.network.to(torch.float64), self.x, self.label, self.t, self.ball, self.o.alpha_steps)  # fmt: skip
        return self._slow

    def proved(self, bounds: NodeBounds, masks: np.ndarray, l: int) -> np.ndarray:
        """Which nodes are safe: float32 screens, float64 decides what is close."""
        worst = bounds.margins.amin(1).numpy()
        limit = GREY * (1 + abs(self.fast.at_image))
        safe: np.ndarray = worst >= limit
        if (grey := np.flatnonzero((worst > 0) & ~safe)).size:
            self.counts.rechecks += len(grey)
            level = BOX if self.o.box else l
            safe[grey] = (self.slow.bound(masks[grey], level).margins.amin(1) > PROVED).numpy()
        return safe

    def bound(self, masks: np.ndarray, l: int, parent: NodeBounds | None = None) -> tuple[np.ndarray, NodeBounds]:
        """Which of the nodes (S, l) are safe (n,), and their bounds."""
        safe, found = [], []
        size = max(1, min(self.o.batch_size, 4 * self.fast.block()))
        for at in range(0, len(masks), size):
            self.tick()
            some = masks[at : at + size]
            before = self.o.clock()
            bounds = self.fast.bound(
                some, BOX if self.o.box else l, None if parent is None else parent[slice(at, at + size)]
            )
            safe.append(self.proved(bounds, some, l))
            spent = self.o.clock() - before
            self.rate.append(spent / len(some))
            self.counts.bound_seconds += spent
            self.counts.calls += len(some)
            self.counts.by_level[l] = self.counts.by_level.get(l, 0) + len(some)
            found.append(bounds)
        return np.concatenate(safe), stack(found)

    def root(self) -> bool:
        """Whether the whole ball is safe (it was bounded on the way in)."""
        if self.o.box:
            return False
        whole = np.zeros((1, self.v), bool)
        bounds = self.fast.root or self.fast.bound(whole, 0)
        self.counts.calls += 1
        self.counts.by_level[0] = 1
        return bool(self.proved(bounds, whole, 0)[0])

    def falsify(self) -> None:
        if self.o.falsify and (found := self.attack.quick(self.t)) is not None:
            raise Falsified(found)

    # --- sampling ---

    def cells(self) -> list[State]:
        levels = range(1, self.t + 1) if self.o.levels is None else self.o.levels
        return [(k, l) for l in levels for k in sizes(self.v, l)]

    def sample(self, state: State, n: int) -> None:
        """Bound n random nodes of a state; what is safe is kept for pruning."""
        k, l = state
        clustered = (
            k == l and 1 < l < self.t
        )  # all l-subsets of sets of l + 1, so that the share with all of them open is seen
        size, n = (l + 1, -(-n // (l + 1))) if clustered else (k, n)
        sets = np.stack([np.sort(self.rng.choice(self.v, min(size, self.v), replace=False)) for _ in range(n)])
        if clustered and size <= self.v:
            sets = np.stack([np.delete(sets, i, axis=1) for i in range(size)], axis=1).reshape(-1, l)
        elif k == l:
            sets = np.unique(sets, axis=0)
        masks = families.masks_of(sets, self.v)
        safe, _ = self.bound(masks, l)
        self.successes.add(state, len(safe), int(safe.sum()))
        if clustered and size <= self.v:
            self.successes.add_clusters(l, safe.reshape(-1, size))
        if k == l:
            self.safe_sets[l].add(sets[safe])
            self.open_sets[l].add(sets[~safe])
        elif not self.o.box or self.o.prune:
            self._keep(l, masks[safe])

    def _keep(self, l: int, masks: np.ndarray) -> None:
        if self.o.prune:
            known = self.safe_blocks.get(l, np.empty((0, self.v), bool))
            self.safe_blocks[l] = np.concatenate([known, masks])[-KEPT_BLOCKS:]

    def planner(self) -> Planner:
        """Of the plan that needs fewest bound calls.

        Which sets of t pixels stay open does not depend on the way there, so their exact solution is paid under every plan; the
        error of its predicted number would drown what differs. It counts in the predicted seconds.
        """
        return Planner(self.v, self.t, self.successes, 0.0, self.o.prune, self.o.levels)

    def predicted(self, plan: Plan) -> float:
        """Seconds in all: those spent, the plan's calls, and the leaves by the success rate of sets of t pixels."""
        each = float(np.median(self.rate))
        trials, safe = (d.get((self.t, self.t), 0) for d in (self.successes.trials, self.successes.safe))
        open_ = math.comb(self.v, self.t) * (1 - safe / max(trials, 1))
        return self.elapsed() + plan.calls * each + (open_ * (self.leaf_cost or LEAF_GUESS) if self.o.exact else 0.0)

    def plan(self) -> Plan:
        """Sample until the plan is cheaper than another round, or a round would take sampling over its share of the plan's
        predicted calls; then the dynamic program's choice."""
        before, calls = self.o.clock(), self.counts.calls
        cells = self.cells()
        try:
            if not self.o.incremental:
                for cell in cells:
                    self.sample(cell, self.o.samples)
                self._measure_leaf()
                return self._choose()
            for k, l in cells:
                if k == l:
                    self.sample((k, l), FIRST)
            self._measure_leaf()
            done = size = 0
            while True:
                self.tick("sampling", self.counts.calls)
                planner = self.planner()
                best = planner.best()
                size = min(max(FIRST, 2 * size), self.o.samples - done)
                # leaves cost the same under every plan: only bound calls can be saved by knowing more
                used = self.counts.calls - calls
                if size <= 0 or best.calls < size * len(cells) or used + size * len(cells) > SHARE * best.calls:
                    return best
                for cell in cells:
                    self.sample(cell, size)
                done += size
                self._measure_leaf()
        finally:
            self.counts.sampling = self.counts.calls - calls
            self.counts.sampling_seconds = self.o.clock() - before

    def _choose(self) -> Plan:
        planner = self.planner()
        return planner.best_projective() if self.o.projective_start else planner.best()

    def _measure_leaf(self) -> None:
        """Solve one or two of the open leaves met so far, for the cost of the others; what is proved stays so."""
        if self.leaf_cost is not None or not self.o.exact or not len(self.open_sets[self.t]):
            return
        some = self.open_sets[self.t].sets[:2]
        before = self.counts.leaf_seconds
        self._leaves(some, measure=True)
        self.leaf_cost = (self.counts.leaf_seconds - before) / len(some)

    # --- the walk ---

    def walk(self, plan: Plan) -> bool:
        """Whether every node of the plan was proved safe.

        Raises
        ------
        Falsified, Stopped
        """
        masks: np.ndarray | None = None  # open super nodes of the state before
        family: Family | None = None  # open concrete nodes of the state before
        bounds: NodeBounds | None = None
        before: State | None = None
        full = True  # whether every set of this level that is not open has been proved safe
        for state in plan.states:
            k, l = state
            full = full and (before is None or before[1] == l or k == l)
            parents = masks if family is None else families.masks_of(family.sets, self.v)
            if k > l:
                nodes = self._super(state, before, parents, plan)
                masks, bounds, family = self._visit_super(state, nodes)[0], None, None
                left = len(masks)
            else:
                sets = self._concrete(l, before, masks, family, full)
                family, bounds = self._visit_concrete(
                    l, sets, family if before and before[1] == l - 1 else None, bounds, plan
                )
                masks, left = None, len(family)
            if not left:
                return True
            before = state
        if family is None:
            self.remaining = [np.flatnonzero(m) for m in (masks if masks is not None else [])][:1000]
            return False
        return self._leaves(family.sets)

    def _super(
        self, state: State, before: State | None, parents: np.ndarray | None, plan: Plan
    ) -> Iterator[tuple[np.ndarray, bool]]:
        """Masks of a super state, and whether they are known to be open already (an open node that is small enough)."""
        k, l = state
        if before is None or parents is None:
            if plan.q is not None:
                blocks = projective(self.v, self.v, l, plan.q, self.rng)
            else:
                blocks = covering_design(self.v, min(k, self.v), l, self.o.covering, self.rng)
            for block in blocks:
                yield self._mask(block), False
        elif before[1] == l:
            for parent in parents:
                pixels = np.flatnonzero(parent)
                if len(pixels) <= k:
                    yield parent, True
                    continue
                for block in covering_design(len(pixels), k, l, random_state=self.rng):
                    yield self._mask(pixels[block]), False
        else:  # lift: one more changed pixel lies in S or in one of the groups
            for parent in parents:
                rest = self.rng.permutation(np.flatnonzero(~parent))
                each = max(1, k - int(parent.sum()))
                for group in np.array_split(rest, max(1, -(-len(rest) // each))):
                    child = parent.copy()
                    child[group] = True
                    yield child, False

    def _mask(self, pixels: np.ndarray) -> np.ndarray:
        mask = np.zeros(self.v, bool)
        mask[pixels] = True
        return mask

    def _visit_super(self, state: State, nodes: Iterator[tuple[np.ndarray, bool]]) -> tuple[np.ndarray, int]:
        """Open masks of a state, in the order met."""
        k, l = state
        open_: list[np.ndarray] = []
        visited = 0
        while batch := list(itertools.islice(nodes, self.o.batch_size)):
            masks = np.stack([m for m, _ in batch])
            known = np.array([flag for _, flag in batch])
            open_.extend(masks[known])
            fresh = masks[~known]
            if self.o.prune:
                fresh = fresh[~families.inside_any(fresh, self.safe_blocks.get(l, np.empty((0, self.v), bool)))]
            if len(fresh):
                safe, _ = self.bound(fresh, l)
                visited += len(fresh)
                self._keep(l, fresh[safe])
                open_.extend(fresh[~safe])
            self.remaining = [np.flatnonzero(m) for m in open_[:1000]]
            self.tick(f"level {l}, sets of {k}", visited)
        return (np.stack(open_) if open_ else np.empty((0, self.v), bool)), visited

    def _concrete(self, l: int, before: State | None, masks: np.ndarray | None, family: Family | None, full: bool
                  ) -> Iterator[np.ndarray]:  # fmt: skip
        """Sets of l pixels to visit, each once, in chunks."""
        if before is None:
            whole = np.ones((1, self.v), bool)
            sets = families.within(whole, l)
        elif family is None:
            assert masks is not None
            sets = families.within(masks, l)
        elif self.o.prune and full:
            sets = families.joined(family)
        else:
            sets = families.shadow(family)
        for chunk in sets:
            if self.o.prune and len(chunk):
                chunk = chunk[~self._covered(chunk, l)]
            if len(chunk):
                yield chunk

    def _covered(self, sets: np.ndarray, l: int) -> np.ndarray:
        """Which sets lie in a node that was proved safe: a smaller set of a lower level, or a block of this level."""
        found = np.zeros(len(sets), bool)
        if l > 1 and len(self.safe_sets[l - 1]):
            for i in range(l):
                found |= self.safe_sets[l - 1].has(np.delete(sets, i, axis=1))
        blocks = self.safe_blocks.get(l)
        if blocks is not None and len(blocks):
            for at in range(0, len(sets), 5000):
                rows = slice(at, at + 5000)
                inside = np.ones((len(sets[rows]), len(blocks)), bool)
                for column in sets[rows].T:
                    inside &= blocks[:, column].T
                found[rows] |= inside.any(1)
        return found

    def _visit_concrete(self, l: int, chunks: Iterator[np.ndarray], parents: Family | None, above: NodeBounds | None, plan: Plan
                        ) -> tuple[Family, NodeBounds | None]:  # fmt: skip
        """Open sets of l pixels; on leaves those that no attack breaks (else :class:`Falsified`)."""
        open_: list[np.ndarray] = []
        kept: list[NodeBounds] = []
        visited = floats = 0
        keep = self.o.reuse == "parent" and l < self.t
        for sets in families.batches(chunks, self.o.batch_size):
            fresh = []  # open ones of this batch
            if not keep:  # those that were sampled need no second bound
                known = self.open_sets[l].has(sets)
                fresh.append(sets[known])
                sets = sets[~known]
            sets = sets[~self.safe_sets[l].has(sets)]
            if len(sets):
                parent = self._parent_bounds(sets, parents, above)
                safe, bounds = self.bound(families.masks_of(sets, self.v), l, parent)
                visited += len(sets)
                if self.o.prune and l < self.t:
                    self.safe_sets[l].add(sets[safe])
                fresh.append(sets[~safe])
                if keep and floats < KEPT_FLOATS:
                    kept.append(bounds[torch.from_numpy(np.flatnonzero(~safe))])
                    floats += sum(x.numel() for x in kept[-1].lower.values())
            open_.extend(fresh)
            if l == self.t and self.o.falsify and any(map(len, fresh)):
                self._try(np.concatenate(fresh))
            self.counts.concrete += len(sets)
            self.remaining = list(itertools.islice(itertools.chain.from_iterable(open_), 1000))
            self.tick(f"level {l}, sets of {l}", visited, plan.calls)
        every = np.concatenate(open_) if open_ else np.empty((0, l), np.int64)
        family = Family(self.v, l, every)
        if visited:
            self.counts.open_share[l] = len(family) / max(visited, len(family))
        if not keep or floats >= KEPT_FLOATS or not kept:
            return family, None
        order = torch.from_numpy(np.argsort(families.codes(every, self.v), kind="stable"))
        return family, stack(kept)[order]

    def _parent_bounds(self, sets: np.ndarray, parents: Family | None, above: NodeBounds | None) -> NodeBounds | None:
        """Bounds of an open parent of each set, with reuse="parent"."""
        if self.o.reuse != "parent" or self.fast.root is None:
            return None
        if parents is None or above is None:
            assert self.fast.root is not None
            return self.fast.root[torch.zeros(len(sets), dtype=torch.long)]
        at = np.full(len(sets), -1)
        for i in range(sets.shape[1]):
            at = np.where(at < 0, parents.find(np.delete(sets, i, axis=1)), at)
        return above[torch.from_numpy(at)]

    # --- leaves ---

    def _try(self, sets: np.ndarray) -> None:
        """Attack sets of t pixels."""
        if (image := self.attack.on_sets(sets, self.rng)) is not None:
            raise Falsified(image)

    def _leaves(self, sets: np.ndarray, measure: bool = False) -> bool:
        """Whether every set of t pixels is safe by exact solution; the closest to unsafe first."""
        if not self.o.exact:
            self.remaining = list(sets)
            return False
        masks = families.masks_of(sets, self.v)
        level = BOX if self.o.box else self.t
        bounds = self.slow.bound(masks, level)
        order = np.argsort(bounds.margins.amin(1).numpy(), kind="stable")
        if measure and self.o.falsify:
            self._try(sets)
        undecided: list[np.ndarray] = []
        for done, i in enumerate(order.tolist()):
            self.remaining = undecided + list(sets[order[done:]])
            self.tick("" if measure else "leaves", done, float(len(sets)))
            if self.safe_sets[self.t].has(sets[i : i + 1])[0]:
                continue
            before = self.o.clock()
            left = self.o.timeout - self.elapsed()
            found = leaf.decide(self.network.to(torch.float64) if self._slow is None else self.slow.network, self.attack,
                                bounds[slice(i, i + 1)], sets[i], self.t, min(self.o.leaf_timeout, max(left, 0.1)))  # fmt: skip
            self.counts.leaf_seconds += self.o.clock() - before
            self.counts.leaves += 1
            if found.status == "unsafe":
                assert found.image is not None
                raise Falsified(found.image)
            if found.status == "safe":
                self.safe_sets[self.t].add(sets[i : i + 1])
            else:
                undecided.append(sets[i])
        self.remaining = undecided
        return not undecided


def chain_from(first: Sequence[State], t: int) -> tuple[State, ...]:
    """The states given, and the concrete ones down to the leaves.

    Raises
    ------
    ValueError
        Where a state is no split of the one before: same l and smaller k, or l + 1.
    """
    states = [(int(k), int(l)) for k, l in first]
    for (k, l), (k2, l2) in itertools.pairwise(states):
        down, lift = l2 == l and k2 < k, l2 == l + 1 and (k2 > k + 1 or (k == l and k2 == l2))
        if not (down or lift):
            raise ValueError(
                f"strategy: {(k2, l2)} does not follow {(k, l)}; expected the same l and a smaller k, or l + 1"
            )
    for k, l in states:
        if not 1 <= l <= min(t, k):
            raise ValueError(f"strategy: got {(k, l)}; expected pairs (k, l) with 1 <= l <= min(t={t}, k)")
    k, l = states[-1] if states else (0, 0)
    if k > l:
        states.append((l, l))
    return (*states, *((i, i) for i in range(l + 1, t + 1)))
