"""What FocusBranch is compared with: Calzone, CoVerD, the hull bound, one program for the ball, brute force.

All but the last two share its bounds, coverings, attacks and leaves, and differ in what the papers differ in.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch

from gnomon.guarantees.focusbranch import families, leaf
from gnomon.guarantees.focusbranch.attack import Attack, margin
from gnomon.guarantees.focusbranch.bounds import BOX, ImageBounds
from gnomon.guarantees.focusbranch.method import FocusBranch, L0Result
from gnomon.guarantees.focusbranch.network import Network


class Calzone(FocusBranch):
    """Calzone (Shapira et al. 2023): sets all of which may change (l = t), boxes bounded, sizes by a dynamic program.

    Every size is sampled in full before the search, blocks that fail are covered again under a random permutation, and sets of t
    pixels are left to the mixed-integer program. A block inside one that was proved safe is not visited again.
    """

    _box, _top_only, _incremental = True, True, False


class CoVerD(Calzone):
    """CoVerD (Shapira et al. 2024): the first covering is induced by the hyperplanes of PG(t, q), its block sizes predicted."""

    _projective = True


class TopCoVerD(CoVerD):
    """CoVerD with the exact least value over at most t changes of S in place of the box of all of S."""

    _box = False


class IncrementalCalzone(Calzone):
    """Calzone with FocusBranch's sampling in rounds: what the sampling alone is worth."""

    _incremental = True


class Hull(FocusBranch):
    """The bound of the whole ball alone, which is exact on the convex hull of few-pixel changes for a linear function."""

    def __init__(self, t: int, **options: Any):
        super().__init__(t, **{**options, "strategy": "root"})


class _Whole(FocusBranch):
    """One image without any branching on sets."""

    def _answer(self, network: Network, x: torch.Tensor, y: int) -> L0Result:
        if int(network.real(x[None])[0].argmax()) != y or float(margin(network.to(torch.float32), x[None], y)) <= 0:
            return L0Result("misclassified", x.numpy().copy())
        if self.t == 0:
            return L0Result("verified")
        attack = Attack(network.to(torch.float32), x, y)
        if self.falsify and (found := attack.quick(self.t)) is not None:
            return L0Result("falsified", found)
        try:
            return self._decide(network, x, y, attack)
        except KeyboardInterrupt:
            return L0Result("unknown", reason="interrupted")

    def _decide(self, network: Network, x: torch.Tensor, y: int, attack: Attack) -> L0Result:
        raise NotImplementedError


class BallMilp(_Whole):
    """One mixed-integer program a class for the whole ball: a binary for each pixel, at most t of them one."""

    def _decide(self, network: Network, x: torch.Tensor, y: int, attack: Attack) -> L0Result:
        double = network.to(torch.float64)
        root = ImageBounds(double, x, y, self.t).root
        assert root is not None
        found = leaf.decide(double, attack, root, None, self.t, self.timeout)
        status = {"safe": "verified", "unsafe": "falsified", "unknown": "timeout"}[found.status]
        result = L0Result(status, found.image, {0: 1})
        result.counts.calls, result.counts.leaves = 1, found.programs
        return result


class BruteForce(_Whole):
    """Every set of t pixels, its box bounded in float64, and what stays open solved exactly. No planning, no coverings."""

    def _decide(self, network: Network, x: torch.Tensor, y: int, attack: Attack) -> L0Result:
        v, t = network.pixels, self.t
        bounder = ImageBounds(network.to(torch.float64), x, y, t, ball=False)
        result = L0Result("verified", nodes_by_level={t: 0})
        start, rng = self.clock(), np.random.default_rng(self.random_state)
        combos = itertools.combinations(range(v), t)
        left = math.comb(v, t)
        while len(sets := np.array(list(itertools.islice(combos, self.batch_size)), np.int64)):
            bounds = bounder.bound(families.masks_of(sets, v), BOX)
            result.nodes_by_level[t] += len(sets)
            result.counts.calls += len(sets)
            left -= len(sets)
            open_ = np.flatnonzero((bounds.margins.amin(1) <= 1e-6).numpy())
            if len(open_) and self.falsify and (found := attack.on_sets(sets[open_], rng)) is not None:
                result.status, result.adversarial = "falsified", found
                return result
            for i in open_.tolist():
                decided = leaf.decide(bounder.network, attack, bounds[slice(i, i + 1)], sets[i], t, self.leaf_timeout)
                result.counts.leaves += 1
                if decided.status == "unsafe":
                    result.status, result.adversarial = "falsified", decided.image
                    return result
                if decided.status == "unknown":
                    result.status, result.reason = "unknown", "a leaf ran out of its time"
                    result.remaining.append(sets[i])
                if self.clock() - start > self.timeout:
                    result.status, result.reason = "timeout", f"{left} sets not visited"
                    return result
            if self.clock() - start > self.timeout:
                result.status, result.reason = "timeout", f"{left} sets not visited"
                return result
        return result
