"""What can be explored besides a known table: a step function of one's own, or any gymnasium environment by sampling it.

A simulator has ``n_states``, ``n_actions``, ``horizon``, ``initial`` (the distribution of the first state, or None where
it is to be learned), ``max_batch`` (how many agents at once) and the two methods of :class:`Simulator`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from gnomon.decisions.reward_free.tabular import Floats, Ints, check_spaces, whole


class Simulator(Protocol):
    """Copies of one MDP in which agents act side by side; they never meet."""

    n_states: int
    n_actions: int
    horizon: int
    initial: Any
    max_batch: int | None

    def start(self, n: int, rng: np.random.Generator) -> Ints:
        """Begin n episodes: their first states."""

    def step(self, states: Ints, actions: Ints, h: int, rng: np.random.Generator) -> Ints:
        """The next states of those n episodes."""


class StepFunction:
    """A simulator from two functions on integer vectors.

    Parameters
    ----------
    n_states, n_actions, horizon : int
        S, A and H.
    step_fn : callable
        ``step_fn(states, actions, h, rng)`` gives the next states, with h from 0 to H - 1.
    start : int or callable
        The one first state, or ``start(n, rng)`` that gives n of them; a callable's distribution is learned.
    max_batch : int, optional
        Most agents that one call may hold.

    Raises
    ------
    ValueError
        While exploring, for what is no vector of states in 0..S-1.
    """

    def __init__(self, n_states: int, n_actions: int, horizon: int, step_fn: Callable[..., Any],
                 start: int | Callable[..., Any] = 0, max_batch: int | None = None) -> None:  # fmt: skip
        for name, value in (("n_states", n_states), ("n_actions", n_actions), ("horizon", horizon)):
            whole(name, value)
        self.n_states, self.n_actions, self.horizon = n_states, n_actions, horizon
        self.step_fn, self.first, self.max_batch = step_fn, start, max_batch
        self.initial: Floats | None = None
        if not callable(start):
            if not 0 <= start < n_states:
                raise ValueError(f"start {start!r}: expected a state from 0 to {n_states - 1}, or a callable")
            self.initial = np.eye(n_states)[start]

    def start(self, n: int, rng: np.random.Generator) -> Ints:
        """First states of n agents."""
        return self._states("start", self.first(n, rng) if callable(self.first) else np.full(n, self.first), n)

    def step(self, states: Ints, actions: Ints, h: int, rng: np.random.Generator) -> Ints:
        """Next states of agents who take ``actions`` in ``states`` at step h."""
        return self._states("step_fn", self.step_fn(states, actions, h, rng), len(states))

    def _states(self, name: str, given: Any, n: int) -> Ints:
        found = np.asarray(given)
        if found.shape != (n,) or found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= self.n_states:
            raise ValueError(
                f"{name}: gave {found.dtype} of shape {found.shape}, expected {n} states from 0 to {self.n_states - 1}"
            )
        return found.astype(np.intp)


class VectorEnvironment:
    """A gymnasium environment that is only sampled: copies of it step together through ``gymnasium.vector``.

    An episode that terminates stays in its last state for the rest of the horizon.

    Parameters
    ----------
    env_fn : callable
        Makes one environment, with discrete spaces and no time limit within the horizon.
    horizon : int
        H, in steps.
    n_envs : int
        Copies that step together; more agents take turns.

    Raises
    ------
    TypeError
        For continuous spaces.
    ValueError
        While exploring, for an episode that is cut by a time limit.
    """

    initial: Floats | None = None

    def __init__(self, env_fn: Callable[[], Any], horizon: int, n_envs: int = 64) -> None:
        from gymnasium.vector import SyncVectorEnv

        for name, value in (("horizon", horizon), ("n_envs", n_envs)):
            whole(name, value)
        if not callable(env_fn):
            raise TypeError(f"env_fn: expected a callable that makes an environment, got {type(env_fn).__name__}")
        one = env_fn()
        check_spaces(one.observation_space, one.action_space)
        self.n_states, self.n_actions = int(one.observation_space.n), int(one.action_space.n)
        one.close()
        self.horizon, self.max_batch = horizon, n_envs
        self.copies = SyncVectorEnv([env_fn] * n_envs)
        self._ended = np.zeros(n_envs, dtype=bool)

    def start(self, n: int, rng: np.random.Generator) -> Ints:
        """First states of n agents."""
        states, _ = self.copies.reset(seed=int(rng.integers(2**31)))
        self._ended = np.arange(len(states)) >= n
        return np.asarray(states[:n], dtype=np.intp)

    def step(self, states: Ints, actions: Ints, h: int, rng: np.random.Generator) -> Ints:
        """Next states of agents who take ``actions`` at step h."""
        n = len(states)
        chosen = np.zeros(len(self._ended), dtype=np.int64)
        chosen[:n] = actions
        seen, _, ended, cut, _ = self.copies.step(chosen)
        if (cut & ~ended & ~self._ended)[:n].any() and h + 1 < self.horizon:
            raise ValueError(
                f"env_fn: an episode was cut at step {h + 1} of {self.horizon}: turn the environment's time limit off"
            )
        found = np.where(self._ended[:n], states, seen[:n]).astype(np.intp)
        self._ended |= ended
        return found
