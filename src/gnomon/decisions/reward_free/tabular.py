"""Tabular episodic Markov decision processes: transitions known or estimated, and dynamic programming over them.

Steps are numbered 0 to H - 1 here (the paper's 1 to H). A step's transitions are one matrix, row ``s * A + a``, column
the next state; it may be sub-stochastic, and what is missing from a row goes to a sink without reward, so that an
estimated model is pessimistic about what was never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
DENSE = 64  # states up to which a step's matrix is a plain array: products of small ones are faster so
BATCH = 1 << 14  # agents stepped together: their arrays stay in the processor's cache


class Model:
    """Transitions of each step and the distribution of the first state; the missing mass of a row is the sink.

    Parameters
    ----------
    kernels : sequence of H arrays or CSR arrays, shape (S * A, S)
        Rows that sum to at most 1. One object may serve several steps.
    initial : array, shape (S,)
    """

    def __init__(self, kernels: Sequence[Any], initial: Floats) -> None:
        self.kernels, self.initial = list(kernels), initial
        self.horizon, (rows, self.n_states) = len(self.kernels), self.kernels[0].shape
        self.n_actions = rows // self.n_states

    def optimise(self, rewards: Floats) -> tuple[Ints, Floats]:
        """Backward dynamic programming for K rewards at once; of equal actions the smallest.

        Parameters
        ----------
        rewards : array, shape (H, S, A, K)

        Returns
        -------
        policies : array of int, shape (H, S, K)
        values : array, shape (K,)
            From the initial distribution.
        """
        S, A, K = self.n_states, self.n_actions, rewards.shape[-1]
        policies, V = np.empty((self.horizon, S, K), dtype=np.intp), np.zeros((S, K))
        for h in range(self.horizon - 1, -1, -1):
            Q = rewards[h] + (self.kernels[h] @ V).reshape(S, A, K)
            policies[h] = Q.argmax(axis=1)
            V = Q.max(axis=1)
        return policies, self.initial @ V

    def evaluate(self, policies: Ints, rewards: Floats) -> Floats:
        """Values (K,) of K deterministic policies (H, S, K), each under its own of K rewards (H, S, A, K)."""
        S, A, K = self.n_states, self.n_actions, rewards.shape[-1]
        V = np.zeros((S, K))
        for h in range(self.horizon - 1, -1, -1):
            Q = rewards[h] + (self.kernels[h] @ V).reshape(S, A, K)
            V = np.take_along_axis(Q, policies[h][:, None], axis=1)[:, 0]
        return self.initial @ V

    def reach(self, layer: int) -> tuple[Floats, Ints]:
        """How surely each state can be occupied at a step, and by which policy.

        All targets share one recursion: the values form an S x S matrix whose columns are the targets.

        Parameters
        ----------
        layer : int
            The step, 0 <= layer < H; only the transitions before it are used.

        Returns
        -------
        reach : array, shape (S,)
            :math:`\\max_\\pi P(s_{layer} = s)`.
        policies : array of int, shape (layer, S, S)
            At each earlier step, for each target, the action in each state; of equal actions the smallest.
        """
        S, A = self.n_states, self.n_actions
        policies, V = np.empty((layer, S, S), dtype=np.int32), np.eye(S)
        for t in range(layer - 1, -1, -1):
            Q = (self.kernels[t] @ V).reshape(S, A, S)
            policies[t] = Q.argmax(axis=1).T
            V = Q.max(axis=1)
        return self.initial @ V, policies

    def occupancy(self, policy: Ints) -> Floats:
        """Probability (H, S, A) of being in each state and taking each action at each step, under a policy (H, S)."""
        S, A = self.n_states, self.n_actions
        found, here, rows = np.zeros((self.horizon, S * A)), self.initial, np.arange(S) * A
        for h in range(self.horizon):
            found[h, rows + policy[h]] = here
            here = found[h] @ self.kernels[h]
        return found.reshape(self.horizon, S, A)


class TabularMDP(Model):
    """A finite-horizon MDP that is known: to be explored by simulation, and to judge what was learned.

    Parameters
    ----------
    transitions : array, shape (S, A, S) or (H, S, A, S), or a sequence of H sparse matrices (S * A, S)
        :math:`P_h(s' | s, a)`; the first form, or a single sparse matrix, is the same at every step.
    initial : array, shape (S,)
        Distribution of the first state.
    horizon : int, optional
        H; needed where the transitions are the same at every step.
    rewards : array, shape (S, A) or (H, S, A), optional
        The environment's own reward; exploration never looks at it.

    Raises
    ------
    ValueError
        For shapes that do not fit, and a row that is no distribution (to 1e-8): step, state and action are named.

    Examples
    --------
    >>> mdp = TabularMDP.from_gymnasium("FrozenLake-v1", horizon=12, map_name="4x4")
    >>> mdp.n_states, mdp.n_actions, mdp.horizon
    (16, 4, 12)
    """

    max_batch: int | None = BATCH

    def __init__(self, transitions: Any, initial: ArrayLike, horizon: int | None = None,
                 rewards: ArrayLike | None = None) -> None:  # fmt: skip
        matrices = _matrices(transitions)
        if horizon is not None:
            whole("horizon", horizon)
        if (
            len(matrices) == 1
            and horizon is None
            and not (isinstance(transitions, np.ndarray) and transitions.ndim == 4)
        ):
            raise ValueError("horizon: transitions that are the same at every step need one")
        if len(matrices) > 1 and horizon not in (None, len(matrices)):
            raise ValueError(f"horizon {horizon}: the transitions are given for {len(matrices)} steps")
        rows, states = matrices[0].shape
        if rows == 0 or states == 0 or rows % states or any(m.shape != (rows, states) for m in matrices):
            raise ValueError(
                f"transitions: shapes {sorted({m.shape for m in matrices})}: expected S * A rows and S columns"
            )
        for h, matrix in enumerate(matrices):
            _check_rows(matrix, h, rows // states)
        start = np.asarray(initial, dtype=float)
        if start.shape != (states,) or not (start >= 0).all() or abs(start.sum() - 1) > 1e-8:
            raise ValueError(
                f"initial: expected {states} probabilities that sum to 1, got shape {start.shape}, sum {start.sum():g}"
            )
        dense = [m.toarray() if states <= DENSE else m for m in matrices]
        samplers = [_Sampler(m) for m in matrices]
        repeat = (horizon or 1) if len(matrices) == 1 else 1
        super().__init__(dense * repeat, start)
        self._samplers, self._start = samplers * repeat, np.cumsum(start) / start.sum()
        self.rewards = None if rewards is None else _shaped(rewards, self.horizon, states, rows // states)

    @classmethod
    def from_gymnasium(cls, env: Any, horizon: int, **options: Any) -> TabularMDP:
        """From the table ``env.unwrapped.P`` of a gymnasium environment; its own time limit plays no part.

        Terminal states become absorbing, with reward 0; where such a state can also be passed through, an extra
        absorbing state takes the ended episodes.

        Parameters
        ----------
        env : str or gymnasium.Env
            A name or an environment with discrete observations and actions and a table ``P``.
        horizon : int
            H, in steps.
        **options
            Of ``gymnasium.make``, where a name is given.

        Raises
        ------
        TypeError
            For continuous spaces.
        ValueError
            For an environment without the table: sample it instead (``explore(env_fn=..., horizon=...)``).
        """
        import gymnasium

        made = gymnasium.make(env, **options) if isinstance(env, str) else env
        inner: Any = made.unwrapped
        check_spaces(inner.observation_space, inner.action_space)
        table, start = getattr(inner, "P", None), getattr(inner, "initial_state_distrib", None)
        if table is None or start is None:
            raise ValueError(
                f"env {inner!r} has no table P with initial_state_distrib: sample it, explore(env_fn=..., horizon=...)"
            )
        size = int(np.size(start))
        matrix, rewards = _from_table(table, np.asarray(start, dtype=float), int(inner.action_space.n))
        first = np.append(np.asarray(start, dtype=float), np.zeros(matrix.shape[1] - size))
        return cls(matrix, first / first.sum(), horizon, rewards)

    def start(self, n: int, rng: np.random.Generator) -> Ints:
        """First states of n agents."""
        if self.initial.max() == 1:
            return np.full(n, self.initial.argmax())
        return np.minimum(np.searchsorted(self._start, rng.random(n), side="right"), self.n_states - 1)

    def step(self, states: Ints, actions: Ints, h: int, rng: np.random.Generator) -> Ints:
        """Next states of agents who take ``actions`` in ``states`` at step h."""
        return self._samplers[h](states * self.n_actions + actions, rng)


class _Sampler:
    """Draws of next states by inverse distribution functions, all rows in one sorted array: row r fills (r, r + 1]."""

    def __init__(self, matrix: Any) -> None:
        matrix = sparse.csr_array(matrix)
        matrix.eliminate_zeros()
        self.columns, self.last = matrix.indices.astype(np.intp), matrix.indptr[1:].astype(np.intp) - 1
        row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        total = np.cumsum(matrix.data)
        self.levels = row + total - np.append(0.0, total[self.last])[row]
        self.levels[self.last] = np.arange(1, matrix.shape[0] + 1)
        self.certain = len(self.columns) == matrix.shape[0]

    def __call__(self, rows: Ints, rng: np.random.Generator) -> Ints:
        if self.certain:
            return self.columns[rows]
        at = np.searchsorted(self.levels, rows + rng.random(len(rows)), side="right")
        return self.columns[np.minimum(at, self.last[rows])]  # rounding must not spill into the next row


def whole(name: str, value: Any, least: int = 1) -> int:
    """Raise ValueError unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} {value!r}: expected a whole number of {least} or more")
    return int(value)


def check_spaces(observations: Any, actions: Any) -> None:
    """Raise TypeError unless both spaces are discrete and count from 0."""
    from gymnasium.spaces import Discrete

    for name, space in (("observation", observations), ("action", actions)):
        if not isinstance(space, Discrete) or space.start != 0:
            raise TypeError(f"tabular only: the {name} space is {space}, expected Discrete(n) that counts from 0")


def stack_rewards(rewards: Any, horizon: int, states: int, actions: int) -> Floats:
    """Several rewards, each (S, A) or (H, S, A), as one array (H, S, A, K)."""
    return np.stack([_shaped(r, horizon, states, actions) for r in rewards], axis=-1)


def _shaped(reward: ArrayLike, horizon: int, states: int, actions: int) -> Floats:
    """A reward (S, A) or (H, S, A) as (H, S, A); a view where it is the same at every step."""
    found = np.asarray(reward, dtype=float)
    if found.shape not in ((states, actions), (horizon, states, actions)):
        raise ValueError(f"reward: shape {found.shape}, expected {(states, actions)} or {(horizon, states, actions)}")
    if not np.isfinite(found).all():
        raise ValueError(f"reward: {int((~np.isfinite(found)).sum())} values are not finite")
    return np.broadcast_to(found, (horizon, states, actions))


def _matrices(transitions: Any) -> list[Any]:
    if sparse.issparse(transitions):
        return [sparse.csr_array(transitions)]
    if isinstance(transitions, list | tuple) and transitions and all(sparse.issparse(m) for m in transitions):
        return [sparse.csr_array(m) for m in transitions]
    table = np.asarray(transitions, dtype=float)
    if table.ndim not in (3, 4) or 0 in table.shape:
        raise ValueError(f"transitions: shape {table.shape}, expected (S, A, S) or (H, S, A, S)")
    table = table[None] if table.ndim == 3 else table
    return [sparse.csr_array(step.reshape(-1, table.shape[-1])) for step in table]


def _check_rows(matrix: Any, h: int, actions: int) -> None:
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    negative = row[~(matrix.data >= 0)]  # or NaN
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    bad = np.union1d(negative, np.flatnonzero(~(np.abs(sums - 1) <= 1e-8)))
    if len(bad):
        state, action = divmod(int(bad[0]), actions)
        what = "has a negative probability" if bad[0] in negative else f"sums to {sums[bad[0]]:.10g}"
        raise ValueError(
            f"transitions: the row of (h, s, a) = ({h}, {state}, {action}) {what}; expected probabilities that sum to 1"
        )


def _from_table(table: Any, start: Floats, actions: int) -> tuple[Any, Floats]:
    """Gymnasium's lists of (probability, next state, reward, terminated) as a sparse matrix and expected rewards."""
    states = len(start)
    outcomes = {
        s: [(a, p, int(t), r, bool(d)) for a in range(actions) for p, t, r, d in table[s][a] if p > 0]
        for s in range(states)
    }
    seen, todo = set(np.flatnonzero(start).tolist()), np.flatnonzero(start).tolist()
    while todo:
        new = {t for _, _, t, _, done in outcomes[todo.pop()] if not done} - seen
        seen |= new
        todo += new
    ends = {t for s in range(states) for _, _, t, _, done in outcomes[s] if done}
    passed = bool(ends & seen)  # an episode can be there without having ended
    size, absorbing = states + passed, {states} if passed else ends
    matrix, rewards = sparse.lil_array((size * actions, size)), np.zeros((size, actions))
    for s in set(range(states)) - absorbing:
        for a, p, t, r, done in outcomes[s]:
            matrix[s * actions + a, states if done and passed else t] += p
            rewards[s, a] += p * r
    for s in absorbing:
        matrix[s * actions + np.arange(actions), s] = 1.0
    found = sparse.csr_array(matrix)
    sums = np.asarray(found.sum(axis=1)).ravel()
    if np.allclose(sums, 1, rtol=0, atol=1e-8):
        found = sparse.csr_array(sparse.diags_array(1 / sums) @ found)  # thirds that sum to 1 + 2e-16
    return found, rewards
