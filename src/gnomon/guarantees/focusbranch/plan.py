"""Where to start and how to branch: a cost model from sampled nodes, and a dynamic program over it.

A state is (k, l): nodes whose set has k pixels, of which at least l change; k = l is concrete, k > l super. Costs are in bound calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from gnomon.guarantees.focusbranch.coverings import PRIMES, covering_size, points_of

State = tuple[int, int]


@dataclass(frozen=True)
class Plan:
    """A chain of states from the first covering of all pixels down to the leaves.

    Attributes
    ----------
    states : tuple of (k, l)
        Nodes of each state that stay open are split into nodes of the next. Empty: the root alone.
    calls, leaves : float
        Predicted bound calls and sets of t pixels that stay open.
    q : int or None
        Order of the projective geometry whose blocks are the start (CoVerD); they vary in size.
    """

    states: tuple[State, ...]
    calls: float = math.nan
    leaves: float = math.nan
    q: int | None = None

    def __str__(self) -> str:
        if not self.states:
            return "root"
        names = [f"{k} of level {l}" if k > l else f"concrete {l}" for k, l in self.states]
        return " > ".join([f"{names[0]} (order {self.q})" if self.q else names[0], *names[1:]])


def sizes(v: int, l: int, steps: int = 6) -> list[int]:
    """A geometric grid of set sizes from l up to below v."""
    if l >= v:
        return [l]
    grid = {round(l * (v / l) ** (i / steps)) for i in range(steps)}
    return sorted(grid | {l})


@dataclass
class Successes:
    """How many sampled nodes of each state were safe.

    ``clusters`` counts, by l, sets of l + 1 pixels all of whose subsets of l were sampled, those with all of them open, and those
    with all of them safe: open sets share pixels, so that independence would see too few.
    """

    trials: dict[State, int] = field(default_factory=dict)
    safe: dict[State, int] = field(default_factory=dict)
    clusters: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def add(self, state: State, trials: int, safe: int) -> None:
        self.trials[state] = self.trials.get(state, 0) + trials
        self.safe[state] = self.safe.get(state, 0) + safe

    def add_clusters(self, l: int, safe: np.ndarray) -> None:
        """Take in which subsets are safe, (clusters, l + 1) bool."""
        n, all_open, all_safe = self.clusters.get(l, (0, 0, 0))
        self.clusters[l] = (n + len(safe), all_open + int((~safe).all(1).sum()), all_safe + int(safe.all(1).sum()))

    def rates(self, l: int) -> dict[int, float]:
        """Success by k at level l: (safe + 1/2) / (trials + 1), made to fall with k by pooling neighbours."""
        found = sorted(k for k, level in self.trials if level == l)
        weight = [self.trials[k, l] + 1.0 for k in found]
        rate = [(self.safe[k, l] + 0.5) / w for k, w in zip(found, weight, strict=True)]
        return dict(zip(found, falling(rate, weight), strict=True))


def falling(values: list[float], weights: list[float]) -> list[float]:
    """Isotonic regression, non-increasing, by pooling adjacent violators."""
    pools: list[list[float]] = []  # value, weight, how many
    for value, weight in zip(values, weights, strict=True):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            b, a = pools.pop(), pools.pop()
            total = a[1] + b[1]
            pools.append([(a[0] * a[1] + b[0] * b[1]) / total, total, a[2] + b[2]])
    return [value for value, _, n in pools for _ in range(int(n))]


@dataclass
class _Best:
    """Least expected cost of splitting an open node: calls, leaves, and the states that follow."""

    cost: float
    calls: float
    leaves: float
    chain: tuple[State, ...]


class Planner:
    """The dynamic program.

    Parameters
    ----------
    v, t : int
        Pixels, and how many change.
    successes : Successes
        Of the sampled states; others take no part.
    leaf : float
        Cost of a leaf's exact solution in bound calls.
    prune : bool
        Whether a concrete set is visited only when all its subsets are open.
    levels : iterable of int, optional
        Those allowed (default: all).
    """

    def __init__(self, v: int, t: int, successes: Successes, leaf: float, prune: bool = True,
                 levels: Iterable[int] | None = None):  # fmt: skip
        self.v, self.t, self.leaf, self.prune = v, t, leaf, prune
        allowed = set(range(1, t + 1) if levels is None else levels)
        self.rate = {(k, l): p for l in sorted(allowed) for k, p in successes.rates(l).items()}
        self.clusters = successes.clusters
        self._split: dict[State, _Best] = {}

    def visit(self, state: State, parent: float) -> _Best:
        """Expected cost of a node of which a share ``parent`` was safe before it is looked at.

        That is the success rate of the parent's state; of a concrete node all of whose subsets are open, the share with a safe one.
        """
        p = self.rate[state]
        gain = 1.0 if parent >= 1 else min(max((p - parent) / (1 - parent), 0.0), 1.0)
        rest = self.split(state)
        open_ = 1 - gain
        return _Best(1 + open_ * rest.cost, 1 + open_ * rest.calls, open_ * rest.leaves, (state, *rest.chain))

    def split(self, state: State) -> _Best:
        """Expected cost of an open node's descendants, by the best branching."""
        if state not in self._split:
            options = [(_Best(self.leaf, 0.0, 1.0, ()), 1.0)] if state == (self.t, self.t) else []
            for child, n in self.children(state):
                known = self.met(state[1]) if child == (state[1] + 1,) * 2 else self.rate[state]
                options.append((self.visit(child, known), n))
            found = [_Best(n * b.cost, n * b.calls, n * b.leaves, b.chain) for b, n in options]
            none = _Best(math.inf, math.inf, math.inf, ())
            self._split[state] = min(found, key=lambda b: b.cost, default=none)
        return self._split[state]

    def children(self, state: State) -> list[tuple[State, float]]:
        """States that cover an open node, and how many nodes of them for each open one."""
        k, l = state
        found: list[tuple[State, float]] = []
        if k == l and l < self.t and (l + 1, l + 1) in self.rate:
            found.append(((l + 1, l + 1), self.shadow(l)))
        for small in (s for s, level in self.rate if level == l and s < k):
            if small == l:
                copies = covering_size(self.v, k, l) * math.comb(k, l) / math.comb(self.v, l)
                found.append(((l, l), math.comb(k, l) / max(1.0, copies)))
            else:
                found.append(((small, l), covering_size(k, small, l)))
        if l < self.t:
            for large in (s for s, level in self.rate if level == l + 1 and s > max(k, l + 1)):
                found.append(((large, l + 1), -(-(self.v - k) // (large - k))))
        return found

    def met(self, l: int) -> float:
        """Share of the sets of level l + 1 that are not visited: a subset is safe (pruned), or all are."""
        u = 1 - self.rate[l, l]
        n, all_open, all_safe = self.clusters.get(l, (0, 0, 0))
        met = (all_open + u ** (l + 1)) / (n + 1), (all_safe + (1 - u) ** (l + 1)) / (n + 1)
        if not self.prune:
            return met[1]
        above = self.rate.get((l + 1, l + 1), 1.0)
        return 1 - max(met[0], 1 - above)  # an open set has open subsets

    def shadow(self, l: int) -> float:
        """Distinct concrete sets of level l + 1 for each open one of level l."""
        u = 1 - self.rate[l, l]
        return math.comb(self.v, l + 1) * (1 - self.met(l)) / max(math.comb(self.v, l) * u, 1e-12)

    def starts(self) -> list[Plan]:
        """The best plan from each covering of all pixels."""
        plans = []
        for k, l in self.rate:
            n = covering_size(self.v, k, l)
            best = self.visit((k, l), 0.0)
            if math.isfinite(best.cost):
                plans.append((n * best.cost, Plan(best.chain, n * best.calls, n * best.leaves)))
        return [plan for _, plan in sorted(plans, key=lambda pair: pair[0])]

    def cost(self, plan: Plan) -> float:
        """Predicted cost in bound calls, leaves included."""
        return plan.calls + self.leaf * plan.leaves

    def best(self) -> Plan:
        """The start of least predicted cost."""
        return self.starts()[0]

    def best_projective(self) -> Plan:
        """CoVerD's start: hyperplanes of PG(t, q) on randomly assigned pixels, with the distribution of block sizes predicted.

        A block's cost is that of the next larger sampled size.
        """
        known = sorted(k for k, l in self.rate if l == self.t)
        plans = []
        for q in PRIMES:
            points = points_of(self.t, q)
            if points > 20 * max(self.v, 50) ** 1.5:
                break
            members = points_of(self.t - 1, q)
            spread = _block_sizes(self.v, points, members)
            if max(spread) > known[-1] and q > 2 and self.v > points:
                continue
            visits = {k: self.visit((k, self.t), 0.0) for k in known}
            cost = calls = leaves = 0.0
            for size, share in spread.items():
                best = visits[next((k for k in known if k >= size), known[-1])]
                cost, calls, leaves = cost + share * best.cost, calls + share * best.calls, leaves + share * best.leaves
            typical = next(
                (k for k in known if k >= np.average(list(spread), weights=list(spread.values()))), known[-1]
            )
            chain = ((typical, self.t), *self.split((typical, self.t)).chain)
            plans.append((points * cost, Plan(chain, points * calls, points * leaves, q)))
        return min(plans, key=lambda pair: pair[0])[1]


def _block_sizes(v: int, points: int, members: int) -> dict[int, float]:
    """Share of induced blocks by size: hypergeometric, or that of equal groups where there are more pixels than points."""
    from scipy.stats import hypergeom

    if v > points:
        size = round(members * v / points)
        return {max(size, 1): 1.0}
    x = np.arange(0, min(members, v) + 1)
    share = hypergeom(points, members, v).pmf(x)
    return {int(a): float(s) for a, s in zip(x, share, strict=True) if s > 1e-9}
