"""Phased reward-free exploration: many agents act side by side, and are re-programmed only a few times.

In each phase every agent gets a policy and runs one episode; the trajectories are pooled when the phase ends. Phase k
explores one block of steps: the model of the steps before says how to get to each state of the block's first step, and
the agents are shared out evenly among these states (and, where a block is one step, among the actions there).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.exceptions import NotFittedError

from gnomon.decisions.reward_free.certificate import blocks, check_eps_delta, gap_bound, value_error, visits
from gnomon.decisions.reward_free.simulators import Simulator, VectorEnvironment
from gnomon.decisions.reward_free.tabular import DENSE, Floats, Ints, Model, check_spaces, stack_rewards, whole


class Explored:
    """What every explorer gives once it has explored: counts, the model, plans for any reward, and a certificate.

    Attributes
    ----------
    counts_ : list of H arrays, shape (S * A, S)
        Transitions seen at each step, row s * A + a; sparse where S is over 64.
    model_ : Model
        Frequencies; what was never tried leads to a sink without reward.
    n_trajectories_, n_phases_ : int
        Episodes run, and how often policies were changed.
    certificate_ : float
        At most this far is any policy's value in the model from the truth, for every reward in [0, 1] at once, with
        probability 1 - delta; a plan's suboptimality is at most min(H, 2 ``certificate_``). Loose.
    """

    delta: float = 0.05
    counts_: list[Any]
    model_: Model
    n_trajectories_: int
    n_phases_: int

    def _keep(self, counts: list[Any], model: Model, starts: Floats | None, trajectories: int, phases: int) -> None:
        """Set the fitted attributes; ``starts`` counts first states where their distribution was estimated."""
        self.counts_, self.model_, self._starts = counts, model, starts
        self.n_trajectories_, self.n_phases_ = trajectories, phases
        self._certificate: float | None = None

    def _fitted(self) -> Model:
        if not hasattr(self, "model_"):
            raise NotFittedError(f"this {type(self).__name__} has not explored yet: call explore first")
        return self.model_

    @property
    def certificate_(self) -> float:
        """See the class."""
        model = self._fitted()
        if self._certificate is None:
            starts = None if self._starts is None else float(self._starts.sum())
            self._certificate = value_error(self.counts_, model, self.delta, starts)
        return self._certificate

    def plan(self, reward: ArrayLike, reward_range: tuple[float, float] = (0.0, 1.0)) -> tuple[Ints, float]:
        """The best policy for a reward, in the learned model; no further episode is needed.

        Parameters
        ----------
        reward : array, shape (S, A) or (H, S, A)
            Values in ``reward_range``.
        reward_range : (float, float)
            Least and largest reward of a step; the sink pays the least, and certificates grow with the range's width.

        Returns
        -------
        policy : array of int, shape (H, S)
        value : float
            Of the policy in the model: pessimistic about what was never seen.

        Raises
        ------
        NotFittedError
            Before ``explore``.
        ValueError
            For another shape, values that are not finite or outside the range.
        """
        model = self._fitted()
        low, high = map(float, reward_range)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"reward_range {reward_range!r}: expected (low, high) with low < high")
        given = stack_rewards([reward], model.horizon, model.n_states, model.n_actions)
        if given.min() < low or given.max() > high:
            raise ValueError(f"reward: values from {given.min():g} to {given.max():g}, expected them in [{low:g}, {high:g}]; "
                             "give reward_range=(low, high)")  # fmt: skip
        policies, values = model.optimise((given - low) / (high - low))
        return policies[:, :, 0], float(values[0] * (high - low) + model.horizon * low)

    def exact_gap(self, truth: Model, rewards: ArrayLike | None = None) -> Any:
        """How suboptimal plans are in truth; needs the true model.

        Parameters
        ----------
        truth : Model
            Such as the ``TabularMDP`` that was explored.
        rewards : array, shape (H, S, A, K), optional
            In [0, 1].

        Returns
        -------
        array, shape (K,), or float
            V*(r) - V(plan for r) of each reward; without rewards an upper bound over all of them (to find the largest
            itself is intractable).
        """
        model = self._fitted()
        if (sizes := _sizes(truth)) != _sizes(model):
            raise ValueError(f"truth: has (S, A, H) = {sizes}, but {_sizes(model)} was explored")
        if rewards is None:
            return gap_bound(truth, model)
        return suboptimality(truth, model, np.asarray(rewards, dtype=float))


class PhasedRewardFree(Explored):
    """Cooperative reward-free exploration in a few phases.

    Parameters
    ----------
    n_phases : int, optional
        How often agents may be re-programmed, 1 to H. None: H, the layer-by-layer algorithm, for which polynomially many
        agents are enough; with fewer phases blocks of steps are explored by acting at random, and on hard instances
        the agents needed grow as A^(H / n_phases). 1 is uniform exploration.
    n_agents : int
        Episodes of each phase.
    eps : float
        States that cannot be reached with probability eps / (4 S H^2) get no agents.
    delta : float
        Failure probability of the certificate.
    reuse : bool
        Whether a step's estimate takes the data of every phase (agents also act at the steps before and after their
        block) or, as in the paper, of its own phase alone.
    design : {"split", "random"}
        Where a block is one step: whether its actions are shared out among the agents, or drawn.
    known_start : bool
        Whether to use the distribution of the first state where the simulator knows it; else it is estimated.
    random_state : int, Generator or None
        Seed.

    Attributes
    ----------
    phases_ : DataFrame
        Of each phase: steps (numbered from 1), agents, states that got agents, agents needed for one visit of each of their pairs, and the
        fewest and the mean visits that their pairs have at the block's first step when the phase ends.
    counts_, model_, certificate_, n_trajectories_, n_phases_
        See :class:`Explored`.

    Notes
    -----
    The agents are copies in parallel copies of one MDP, not players in one shared environment.

    References
    ----------
    I. Barnea, O. Levy, Y. Mansour, "The Horizon Threshold in Cooperative Multi-Agent Reward-Free Exploration",
    arXiv 2602.01453.

    Examples
    --------
    >>> lock = combination_lock(6, 3, seed=0)
    >>> learned = PhasedRewardFree(n_agents=60, random_state=0).explore(lock)
    >>> float(learned.plan(lock.rewards)[1])
    1.0
    """

    def __init__(self, n_phases: int | None = None, n_agents: int = 20_000, eps: float = 0.1, delta: float = 0.05, *,
                 reuse: bool = True, design: Literal["split", "random"] = "split", known_start: bool = True,
                 random_state: int | np.random.Generator | None = None) -> None:  # fmt: skip
        self.n_phases, self.n_agents, self.eps, self.delta = n_phases, n_agents, eps, delta
        self.reuse, self.design, self.known_start, self.random_state = reuse, design, known_start, random_state

    def explore(self, mdp: Simulator | None = None, *, env_fn: Callable[[], Any] | None = None,
                horizon: int | None = None) -> Self:  # fmt: skip
        """Run all phases.

        Parameters
        ----------
        mdp : Simulator
            A ``TabularMDP``, ``StepFunction``, ``VectorEnvironment``, or anything with their methods.
        env_fn, horizon : callable and int
            Instead: what makes a gymnasium environment with discrete spaces, which is then only sampled, and H.

        Raises
        ------
        ValueError
            For parameters out of range.
        TypeError
            For continuous spaces, and where neither or both of ``mdp`` and ``env_fn`` are given.

        Warns
        -----
        UserWarning
            Where a phase has fewer agents than pairs to visit.
        """
        env = _simulator(mdp, env_fn, horizon)
        S, A, H = env.n_states, env.n_actions, env.horizon
        plan, m = blocks(H, self.n_phases), self._agents()
        known = env.initial if self.known_start else None
        rng = np.random.default_rng(self.random_state)
        counts, starts, self._table = [_nothing(S, A) for _ in range(H)], np.zeros(S), []
        kernels = list(counts)
        for k, (first, stop) in enumerate(plan):
            reach, policies = self._reach(env, Model(kernels, _initial(known, starts)), first)
            significant = np.flatnonzero(reach >= threshold(self.eps, S, H))
            if not len(significant):
                significant = np.array([reach.argmax()])
            if not first and known is None:
                significant = np.array([0])  # nobody has seen a first state yet, and no policy leads there
            places, needed = len(significant), len(significant) * A
            if m < needed:
                warnings.warn(f"n_agents {m}: phase {k + 1} has {places} states to visit and {A} actions each, so some pairs stay "
                              f"unvisited; {needed} are needed", UserWarning, stacklevel=2)  # fmt: skip
            agents = np.arange(m)
            split = stop - first == 1 and self.design == "split"
            task = Task(first, H if self.reuse else stop, policies[:, significant], agents % places,
                        agents // places % A if split else None)  # fmt: skip
            seen, began = run_agents(env, task, rng)
            if self.reuse or k == 0:
                starts += began
            for h in range(0 if self.reuse else first, len(seen)):
                counts[h] = counts[h] + seen[h]
                kernels[h] = frequencies(counts[h])
            tried = visits(counts[first]).reshape(S, A)[significant]
            self._table.append((k + 1, first + 1, stop, m, places, needed, int(tried.min()), float(tried.mean())))
        model = Model(kernels, _initial(known, starts))
        self._keep(counts, model, starts if known is None else None, m * len(plan), len(plan))
        return self

    @property
    def phases_(self) -> pd.DataFrame:
        """See the class."""
        self._fitted()
        columns = [
            "phase",
            "first step",
            "last step",
            "agents",
            "states",
            "agents needed",
            "fewest visits",
            "mean visits",
        ]
        return pd.DataFrame(self._table, columns=columns)

    def _reach(self, env: Any, model: Model, layer: int) -> tuple[Floats, Ints]:
        """Reach probabilities and policies for the states of a step, from what the phases before have seen."""
        return model.reach(layer)

    def _agents(self) -> int:
        check_eps_delta(self.eps, self.delta)
        if self.design not in ("split", "random"):
            raise ValueError(f"design {self.design!r}: expected 'split' or 'random'")
        return whole("n_agents", self.n_agents)


@dataclass
class Task:
    """What the agents of one phase do.

    Attributes
    ----------
    first, stop : int
        The step at which an agent's own part begins, and the one before which its episode may end.
    policies : array of int, shape (first, K, S)
        How to get to each of K places.
    place : array of int, shape (m,)
        Each agent's place.
    actions : array of int, shape (m,), or None
        Each agent's action at step ``first``; None: drawn, as at all later steps.
    """

    first: int
    stop: int
    policies: Ints
    place: Ints
    actions: Ints | None


def run_agents(env: Simulator, task: Task, rng: np.random.Generator) -> tuple[list[Any], Floats]:
    """One episode of every agent: the transitions of each step, and the first states, counted.

    All agents of a batch step together, as vectors of states.
    """
    S, A, m = env.n_states, env.n_actions, len(task.place)
    seen, starts = [_nothing(S, A) for _ in range(task.stop)], np.zeros(S)
    ways, size = [np.ascontiguousarray(p).ravel() for p in task.policies], env.max_batch or m
    for begin in range(0, m, size):
        place = task.place[begin : begin + size]
        states = env.start(len(place), rng)
        starts += np.bincount(states, minlength=S)
        for h in range(task.stop):
            if h < task.first:
                actions = ways[h].take(place * S + states).astype(np.intp)
            elif h == task.first and task.actions is not None:
                actions = task.actions[begin : begin + size]
            else:
                actions = rng.integers(A, size=len(place))
            following = env.step(states, actions, h, rng)
            seen[h] = seen[h] + tally(states * A + actions, following, S, A)
            states = following
    return seen, starts


def threshold(eps: float, S: int, H: int) -> float:
    """Least reach probability of a state that gets agents: eps / (4 S H^2)."""
    return eps / (4 * S * H**2)


def frequencies(counts: Any) -> Any:
    """Rows of counts divided by their sums; a row without any stays empty, and leads to the sink."""
    scale = 1 / np.maximum(visits(counts), 1)
    return sparse.diags_array(scale) @ counts if sparse.issparse(counts) else counts * scale[:, None]


def suboptimality(truth: Model, model: Model, rewards: Floats) -> Floats:
    """V*(r) - V(the model's plan for r) in the true model, for rewards (H, S, A, K)."""
    policies, _ = model.optimise(rewards)
    return truth.optimise(rewards)[1] - truth.evaluate(policies, rewards)


def _simulator(mdp: Any, env_fn: Any, horizon: Any) -> Any:
    if (mdp is None) == (env_fn is None):
        raise TypeError("explore: expected either a simulator, or env_fn= and horizon=")
    if mdp is None:
        if horizon is None:
            raise TypeError("explore: env_fn needs horizon=, the number of steps")
        return VectorEnvironment(env_fn, horizon)
    if hasattr(mdp, "observation_space"):
        check_spaces(mdp.observation_space, mdp.action_space)
        raise TypeError("explore: got one gymnasium environment; give TabularMDP.from_gymnasium(env, horizon=...), or "
                        "env_fn= that makes copies of it and horizon=")  # fmt: skip
    if missing := [
        n for n in ("n_states", "n_actions", "horizon", "initial", "max_batch", "start", "step") if not hasattr(mdp, n)
    ]:
        raise TypeError(f"explore: {type(mdp).__name__} is no simulator, it lacks {', '.join(missing)}")
    return mdp


def _sizes(model: Model) -> tuple[int, int, int]:
    return model.n_states, model.n_actions, model.horizon


def _initial(known: Any, starts: Any) -> Floats:
    return known if known is not None else starts / max(starts.sum(), 1)


def _nothing(S: int, A: int) -> Any:
    return np.zeros((S * A, S), dtype=np.int64) if S <= DENSE else sparse.csr_array((S * A, S), dtype=np.int64)


def tally(rows: Ints, following: Ints, S: int, A: int) -> Any:
    """How often each row led to each state: (S * A, S)."""
    if S <= DENSE:
        return np.bincount(rows * S + following, minlength=S * A * S).reshape(S * A, S)
    return sparse.csr_array((np.ones(len(rows), dtype=np.int64), (rows, following)), shape=(S * A, S))
