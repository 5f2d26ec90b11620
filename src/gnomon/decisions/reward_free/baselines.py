"""What phased exploration is compared with: one phase, true reach policies, learners that re-plan after every episode, and a generator.

`rlberry`, which has RF-UCRL and RF-Express, cannot be installed beside this library; they are written from their papers.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numba
import numpy as np

from gnomon.decisions.reward_free.certificate import check_eps_delta
from gnomon.decisions.reward_free.method import Explored, PhasedRewardFree, frequencies, tally
from gnomon.decisions.reward_free.tabular import Floats, Ints, Model, TabularMDP, whole

_jit: Any = numba.njit(nogil=True, cache=True, error_model="numpy")


class UniformExploration(PhasedRewardFree):
    """One phase: every action of every agent is drawn at random. Parameters as of `PhasedRewardFree` without phases."""

    def __init__(self, n_agents: int = 20_000, **options: Any) -> None:
        super().__init__(1, n_agents, **options)


class OracleReach(PhasedRewardFree):
    """The phased algorithm with reach policies of the true model (the MDP explored must be a `TabularMDP`)."""

    def _reach(self, env: Any, model: Model, layer: int) -> tuple[Floats, Ints]:
        return _table(env).reach(layer)


class GenerativeModel(Explored):
    """Even sampling of every (h, s, a) from a generator, which needs no exploring: the floor.

    Parameters
    ----------
    n_trajectories : int
        The H samples of each episode are shared out evenly among all S A H pairs.
    delta, random_state
        See `PhasedRewardFree`.
    """

    def __init__(self, n_trajectories: int = 20_000, *, delta: float = 0.05, random_state: Any = None) -> None:
        self.n_trajectories, self.delta, self.random_state = n_trajectories, delta, random_state

    def explore(self, mdp: TabularMDP) -> Self:
        """Draw the samples; the number for a pair is rounded down, the remainder goes to the first pairs."""
        check_eps_delta(1.0, self.delta)
        rng, rows = np.random.default_rng(self.random_state), _table(mdp).kernels[0].shape[0]
        each, more = divmod(whole("n_trajectories", self.n_trajectories), rows)
        sizes, counts = each + (np.arange(rows) < more), []
        for h in range(mdp.horizon):
            pair = np.repeat(np.arange(rows), sizes)
            following = mdp.step(*np.divmod(pair, mdp.n_actions), h, rng)
            counts.append(tally(pair, following, mdp.n_states, mdp.n_actions))
        self._keep(counts, Model([frequencies(n) for n in counts], mdp.initial), None, self.n_trajectories, 1)
        return self


class _Sequential(Explored):
    """Plan after every episode with the uncertainty itself as reward, follow that policy for one episode, and so on.

    Parameters
    ----------
    n_trajectories : int
        Episodes.
    delta : float
        Failure probability in the bonus.
    scale : float
        Factor of the bonus; 1 is the theory's.
    random_state : int, Generator or None
        Seed. Of actions that are equally uncertain one is drawn.
    """

    def __init__(
        self, n_trajectories: int = 20_000, *, delta: float = 0.05, scale: float = 1.0, random_state: Any = None
    ) -> None:
        self.n_trajectories, self.delta, self.scale, self.random_state = n_trajectories, delta, scale, random_state

    def _bonus(self, S: int, A: int, H: int) -> tuple[float, float, float, float, float, float, float]:
        """Of the bonus ``root sqrt(beta / n) + linear beta / n``, with ``beta = b0 + b1 ln(b2 (1 + n / b3))``: root,
        linear, b0, b1, b2, b3; and by how much later uncertainty is enlarged."""
        raise NotImplementedError

    def explore(self, mdp: TabularMDP) -> Self:
        """Run all episodes. The table is used to draw next states, and for nothing else.

        Raises
        ------
        ValueError, TypeError
            For parameters out of range, and an MDP that is no `TabularMDP` with at most 64 states.
        """
        S, A, H = _table(mdp).n_states, mdp.n_actions, mdp.horizon
        check_eps_delta(1.0, self.delta)
        if not (isinstance(self.scale, int | float) and self.scale > 0):
            raise ValueError(f"scale {self.scale!r}: expected a positive number")
        root, linear, *beta, growth = self._bonus(S, A, H)
        levels = np.cumsum(np.stack(mdp.kernels).reshape(H, S, A, S), axis=-1)
        counts = np.zeros((H, S, A, S), dtype=np.int64)
        seed = np.random.default_rng(self.random_state).integers(2**31)
        episodes(levels, np.cumsum(mdp.initial), counts, whole("n_trajectories", self.n_trajectories), self.scale * root,
                 self.scale * linear, np.array(beta), growth, seed)  # fmt: skip
        seen = list(counts.reshape(H, S * A, S))
        self._keep(
            seen, Model([frequencies(n) for n in seen], mdp.initial), None, self.n_trajectories, self.n_trajectories
        )
        return self


class RFUCRL(_Sequential):
    """RF-UCRL: Kaufmann et al., "Adaptive reward-free exploration", ALT 2021. Parameters of the class above.

    :math:`E_h = \\min(H, H \\sqrt{2 \\beta(n) / n} + \\hat P \\max_a E_{h+1})`, :math:`\\beta = \\ln(2SAH/\\delta) + (S-1) \\ln(e(1 + n/(S-1)))`.
    """

    def _bonus(self, S: int, A: int, H: int) -> tuple[float, float, float, float, float, float, float]:
        free = max(S - 1, 1)
        return math.sqrt(2) * H, 0.0, math.log(2 * S * A * H / self.delta), float(S - 1), math.e, float(free), 0.0


class RFExpress(_Sequential):
    """RF-Express: Menard et al., "Fast active learning for pure exploration in reinforcement learning", ICML 2021.

    :math:`W_h = \\min(H, 15 H^2 \\beta(n) / n + (1 + 1/H) \\hat P \\max_a W_{h+1})`, :math:`\\beta = \\ln(3SAH/\\delta) + S \\ln(8e(n+1))`.
    """

    def _bonus(self, S: int, A: int, H: int) -> tuple[float, float, float, float, float, float, float]:
        return 0.0, 15.0 * H**2, math.log(3 * S * A * H / self.delta), float(S), 8 * math.e, 1.0, 1 / H


class UCBVIZero(_Sequential):
    """UCBVI (Azar et al., ICML 2017) with Hoeffding's bonus 7 H L / sqrt(n), L = ln(5 S A T H / delta), and reward zero."""

    def _bonus(self, S: int, A: int, H: int) -> tuple[float, float, float, float, float, float, float]:
        L = math.log(5 * S * A * H * self.n_trajectories / self.delta)
        return 7 * H * math.sqrt(L), 0.0, L, 0.0, 1.0, 1.0, 0.0


@_jit
def episodes(levels, first, counts, n, root, linear, beta, growth, seed):  # type: ignore[no-untyped-def]
    """Run n episodes, planning anew before each; adds to ``counts`` (H, S, A, S).

    ``levels`` (H, S, A, S) and ``first`` (S,) are distribution functions, from which alone is drawn.
    """
    np.random.seed(seed)  # noqa: NPY002 - numba's own generator
    H, S, A, _ = levels.shape
    tried, model = np.zeros((H, S, A)), np.zeros((H, S, A, S))
    doubt, bonus, worst = np.full((H, S, A), float(H)), np.full((H, S, A), float(H)), np.zeros((H + 1, S))
    for _ in range(n):
        for h in range(H - 1, -1, -1):
            for s in range(S):
                most = 0.0
                for a in range(A):
                    if tried[h, s, a] > 0:
                        later = 0.0
                        for y in range(S):
                            later += model[h, s, a, y] * worst[h + 1, y]
                        doubt[h, s, a] = min(float(H), bonus[h, s, a] + (1 + growth) * later)
                    most = max(most, doubt[h, s, a])
                worst[h, s] = most
        state = min(np.searchsorted(first, np.random.random(), side="right"), S - 1)  # noqa: NPY002
        for h in range(H):
            action, ties = 0, 0
            for a in range(A):
                if doubt[h, state, a] == worst[h, state]:
                    ties += 1
                    if np.random.random() * ties < 1:  # noqa: NPY002
                        action = a
            following = min(np.searchsorted(levels[h, state, action], np.random.random(), side="right"), S - 1)  # noqa: NPY002
            counts[h, state, action, following] += 1
            tried[h, state, action] += 1
            k = tried[h, state, action]
            for y in range(S):
                model[h, state, action, y] = counts[h, state, action, y] / k
            b = beta[0] + beta[1] * math.log(beta[2] * (1 + k / beta[3]))
            bonus[h, state, action] = root * math.sqrt(b / k) + linear * b / k
            state = following


def _table(mdp: Any) -> TabularMDP:
    if not isinstance(mdp, TabularMDP):
        raise TypeError(f"explore: this baseline needs a TabularMDP, got {type(mdp).__name__}")
    return mdp
