"""The search tree: root, one child per algorithm, and tried configurations below, each a refinement of its parent."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.stats

from gnomon.decisions.lb_mcts.space import Config

ROOT = 0


@dataclass(eq=False)
class Trial:
    """One configuration that was asked for, and what came of it.

    Attributes
    ----------
    number : int
        0, 1, ... in the order of asking.
    algorithm, config, key : str, dict, str
        What is tried, and its canonical name.
    vector : ndarray (d,)
        The configuration as ConfigSpace's vector.
    parent : int
        The node below which it goes.
    proposer : {"bo", "llm"}
        Who was asked; ``source`` says what the configuration came from ("ei", "llm", "prior", "random", ...).
    rho, reliability : float
        Probability of asking Bayesian optimisation, and the surrogate's reliability that it came from.
    loss : float
        What is minimised; NaN until told and where it failed.
    status : {"asked", "done", "failed"}
    prompt_tokens, completion_tokens, longest_prompt, failures : int
        Tokens of all prompts and replies, of the longest prompt, and replies that gave no configuration.
    seconds, llm_seconds, overhead : float
        Spent on the evaluation (as told), waiting for the language model, and on all else between the two.
    """

    number: int
    algorithm: str
    config: Config
    key: str
    vector: np.ndarray
    parent: int
    proposer: str = "bo"
    source: str = ""
    rho: float = math.nan
    reliability: float = math.nan
    loss: float = math.nan
    status: str = "asked"
    error: str = ""
    reflection: str = ""
    node: int = -1
    seconds: float = math.nan
    llm_seconds: float = 0.0
    overhead: float = 0.0
    prompt_tokens: int = 0
    longest_prompt: int = 0
    completion_tokens: int = 0
    failures: int = 0

    @property
    def ok(self) -> bool:
        return self.status == "done"


def scores(losses: Sequence[float], kind: str = "range") -> np.ndarray:
    """Losses (n,) as scores in [0, 1], 1 the best: robust to outliers, recomputed whenever the set grows.

    ``"range"``: clip((hi - f) / (hi - lo), 0, 1) with lo the best and hi the 80 % quantile of the finite ones; where the two are
    equal, 1/2 for the best and 0 for the others. ``"rank"``: ranks, scaled to [0, 1]. Failed ones (NaN) get 0.
    """
    f = np.asarray(losses, dtype=float)
    ok = np.isfinite(f)
    y = np.zeros(len(f))
    if not ok.any():
        return y
    if kind == "rank":
        n = int(ok.sum())
        y[ok] = (n - scipy.stats.rankdata(f[ok])) / (n - 1) if n > 1 else 0.5
        return y
    low, high = float(f[ok].min()), float(np.quantile(f[ok], 0.8))
    if not high > low:
        y[ok] = np.where(f[ok] <= low, 0.5, 0.0)
        return y
    y[ok] = np.clip((high - f[ok]) / (high - low), 0.0, 1.0)
    return y


def ucb(q: float, parent_visits: int, visits: int, c: float) -> float:
    r"""The upper confidence bound :math:`Q + c \sqrt{\ln N_{parent} / N}`."""
    return q + c * math.sqrt(math.log(max(parent_visits, 1)) / visits)


@dataclass
class SearchTree:
    """Nodes by number: 0 is the root, 1 to M the algorithms in the order given, then configurations as they are told.

    Parameters
    ----------
    algorithms : list of str
    c : float
        Weight of exploration.
    best_weight : float
        w in [0, 1]: Q = (1 - w) mean + w max of the subtree's scores.
    widening : (float, float)
        k > 0, q in [0, 1]: a node has at most ceil(k N^q) children.
    max_depth : int
        At least 2: the deepest configuration; nodes at ``max_depth - 1`` always widen.
    """

    algorithms: list[str]
    c: float = 0.7
    best_weight: float = 0.5
    widening: tuple[float, float] = (1.0, 0.5)
    max_depth: int = 5
    parent: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    children: list[list[int]] = field(default_factory=list)
    trials: list[Trial | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        for at in range(len(self.algorithms) + 1):
            self._append(-1 if at == ROOT else ROOT, None)

    def __len__(self) -> int:
        return len(self.parent)

    def _append(self, parent: int, trial: Trial | None) -> int:
        node = len(self.parent)
        self.parent.append(parent)
        self.depth.append(0 if parent < 0 else self.depth[parent] + 1)
        self.children.append([])
        self.trials.append(trial)
        if parent >= 0:
            self.children[parent].append(node)
        return node

    def add(self, trial: Trial) -> int:
        """Put a told trial below its parent; returns its node."""
        trial.node = self._append(trial.parent, trial)
        return trial.node

    def algorithm(self, node: int) -> str:
        """Which algorithm a node below the root belongs to."""
        while self.depth[node] > 1:
            node = self.parent[node]
        return self.algorithms[node - 1]

    def node_of(self, algorithm: str) -> int:
        return self.algorithms.index(algorithm) + 1

    def path(self, node: int) -> list[Trial]:
        """The trials on the way from the algorithm down to the node, its own included: a tuning trajectory."""
        found = []
        while node > 0:
            if (trial := self.trials[node]) is not None:
                found.append(trial)
            node = self.parent[node]
        return found[::-1]

    def statistics(self, y: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Visits N, value sums W and maxima of each node's subtree, from the scores of the told trials in node order."""
        first = len(self.algorithms) + 1
        N, W, top = np.zeros(len(self), int), np.zeros(len(self)), np.full(len(self), -np.inf)
        N[first:], W[first:], top[first:] = 1, y, y
        for node in range(len(self) - 1, ROOT, -1):  # children come after their parents
            above = self.parent[node]
            N[above] += N[node]
            W[above] += W[node]
            top[above] = max(top[above], top[node])
        return N, W, top

    def limit(self, visits: int) -> int:
        """The most children of a node with so many visits."""
        k, q = self.widening
        return math.ceil(k * visits**q)

    def select(self, y: Sequence[float] | np.ndarray, order: Sequence[str], closed: Collection[str] = ()) -> int:
        """The node to expand: unvisited algorithms first in their prior order, then by UCB down to a node that may widen.

        Algorithms in ``closed`` have nothing left to try.
        """
        N, W, top = self.statistics(y)
        for name in order:
            if name not in closed and N[self.node_of(name)] == 0:
                return self.node_of(name)
        node = self._best([self.node_of(a) for a in order if a not in closed], ROOT, N, W, top)
        while self.children[node] and self.depth[node] < self.max_depth - 1:
            if len(self.children[node]) < self.limit(int(N[node])):
                break
            node = self._best(self.children[node], node, N, W, top)
        return node

    def _best(self, nodes: Sequence[int], above: int, N: Any, W: Any, top: Any) -> int:
        w = self.best_weight
        bounds = [ucb((1 - w) * W[n] / N[n] + w * top[n], int(N[above]), int(N[n]), self.c) for n in nodes]
        return nodes[int(np.argmax(bounds))]
