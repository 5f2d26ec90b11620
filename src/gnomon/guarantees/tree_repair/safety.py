"""Safety of a policy in a Markov decision process: model checking with explicit states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from gnomon.guarantees.tree_repair.counterexamples import Allowed, Counterexample, demands
from gnomon.guarantees.tree_repair.encoding import EnsembleEncoding
from gnomon.guarantees.tree_repair.method import Infeasible
from gnomon.guarantees.tree_repair.properties import Candidate, Context, Found, Key

PRECISION = 1e-12
SWEEPS = 100_000


class MDP:
    """A finite Markov decision process from a table like ``env.unwrapped.P`` of gymnasium's toy texts.

    Parameters
    ----------
    table : mapping
        ``table[state][action]`` is a list of (probability, next state, reward, done), states 0 .. S-1, actions 0 .. A-1.
    start : int or collection of int
        Where episodes may begin.
    bad : collection
        States (int), or pairs (state, action) where the harm is in the step.

    Attributes
    ----------
    go : csr_matrix, shape (S * A, S)
        Probability of going on in each state (steps that end the episode are left out).
    end : csr_matrix, shape (S * A, S)
        Probability of ending in each state.
    reward : ndarray, shape (S, A)
        Expected.

    Raises
    ------
    ValueError
        For a table that is not of this form, or states that it does not have.
    """

    def __init__(self, table: Mapping[int, Any], start: int | Collection[int], bad: Collection[Any] = ()):
        self.n_states, self.n_actions = len(table), len(table[next(iter(table))])
        s_n, a_n = self.n_states, self.n_actions
        go: list[tuple[int, int, float]] = []
        end: list[tuple[int, int, float]] = []
        self.reward = np.zeros((s_n, a_n))
        for s in range(s_n):
            if s not in table or set(table[s]) != set(range(a_n)):
                raise ValueError(f"table: state {s} lacks actions 0 to {a_n - 1}")
            for a in range(a_n):
                total = 0.0
                for p, after, reward, done in table[s][a]:
                    if not 0 <= after < s_n:
                        raise ValueError(
                            f"table: state {s}, action {a} leads to {after}; there are states 0 to {s_n - 1}"
                        )
                    (end if done else go).append((s * a_n + a, int(after), float(p)))
                    self.reward[s, a] += p * reward
                    total += p
                if abs(total - 1) > 1e-6:
                    raise ValueError(f"table: probabilities of state {s}, action {a} sum to {total}; expected 1")
        self.go, self.end = self._sparse(go), self._sparse(end)
        self.start = sorted({int(start)} if isinstance(start, int | np.integer) else {int(s) for s in start})
        self.bad_state, self.bad_step = np.zeros(s_n, dtype=bool), np.zeros((s_n, a_n), dtype=bool)
        for b in bad:
            at = b if isinstance(b, tuple) else (b,)
            if not (0 <= at[0] < s_n and (len(at) == 1 or 0 <= at[1] < a_n)):
                raise ValueError(f"bad: {b!r} is neither a state in 0 to {s_n - 1} nor a pair of a state and an action")
            if len(at) == 2:
                self.bad_step[at] = True
            else:
                self.bad_state[at[0]] = True
        if not self.start or not all(0 <= s < s_n for s in self.start):
            raise ValueError(f"start: got {start!r}; expected one state or more in 0 to {s_n - 1}")

    @property
    def moves(self) -> np.ndarray:
        """Number of other states that some action of a state may go on to, (S,): 0 where an episode is over or stuck."""
        go = self.go.tocoo()
        there = (go.row // self.n_actions != go.col) & (go.data > 0)
        return np.bincount(go.row[there] // self.n_actions, minlength=self.n_states)

    def _sparse(self, entries: list[tuple[int, int, float]]) -> scipy.sparse.csr_matrix:
        row, column, value = zip(*entries, strict=True) if entries else ((), (), ())
        shape = (self.n_states * self.n_actions, self.n_states)
        return scipy.sparse.csr_matrix((value, (row, column)), shape=shape, dtype=float)

    @classmethod
    def from_gym(cls, env: Any, bad: Callable[[int, int, float, int], bool] | Collection[Any],
                 start: Collection[int] | None = None) -> MDP:  # fmt: skip
        """From an environment with a transition table.

        Parameters
        ----------
        env : gymnasium.Env
            With ``unwrapped.P`` and ``unwrapped.initial_state_distrib``.
        bad : callable or collection
            ``bad(state, action, reward, next_state)`` says which steps are harmful; or as for :class:`MDP`.
        start : collection of int, optional
            Default: every state in which the environment begins with positive probability.
        """
        table = env.unwrapped.P
        if callable(bad):
            bad = {
                (s, a)
                for s in table
                for a in table[s]
                for p, after, reward, _ in table[s][a]
                if p > 0 and bad(s, a, reward, after)
            }
        if start is None:
            start = np.flatnonzero(np.asarray(env.unwrapped.initial_state_distrib) > 0).tolist()
        return cls(table, start, bad)

    def _steps(self, matrix: scipy.sparse.csr_matrix, values: np.ndarray) -> np.ndarray:
        return (matrix @ values).reshape(self.n_states, self.n_actions)

    def safe_actions(self, region: np.ndarray) -> np.ndarray:
        """Actions (S, A) that are not bad and surely stay in a region (or end in a state that is not bad)."""
        leave = self._steps(self.go, (~region).astype(float)) + self._steps(self.end, self.bad_state.astype(float))
        return ~self.bad_step & (leave <= 0) & ~self.bad_state[:, None]

    def safe_region(self, among: np.ndarray | None = None) -> np.ndarray:
        """The greatest set of states from which some policy surely never meets anything bad, a mask (S,).

        ``among`` is a mask (A,) of the actions that the policy may take.
        """
        region = ~self.bad_state
        while True:
            safe = self.safe_actions(region) if among is None else self.safe_actions(region) & among
            smaller = region & safe.any(axis=1)
            if np.array_equal(smaller, region):
                return region
            region = smaller

    def reachable(self, policy: np.ndarray, within: np.ndarray | None = None) -> np.ndarray:
        """States that a policy (S,) can come to from the start while it acts, a mask; only through states ``within``."""
        seen = np.zeros(self.n_states, dtype=bool)
        fresh = [s for s in self.start if within is None or within[s]]
        seen[fresh] = True
        while fresh:
            rows = np.array(fresh) * self.n_actions + policy[fresh]
            after = np.unique(self.go[rows].indices)
            fresh = [int(s) for s in after if not seen[s] and (within is None or within[s])]
            seen[fresh] = True
        return seen

    def risk(self, policy: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Probability of ever meeting something bad: from each state (S,), and after each first action (S, A).

        By value iteration from below; without a policy the least probability that any policy attains.
        """
        at = np.arange(self.n_states)
        value = self.bad_state.astype(float)
        ended = self._steps(self.end, self.bad_state.astype(float))
        for _ in range(SWEEPS):
            steps = np.where(self.bad_step, 1.0, np.minimum(1.0, self._steps(self.go, value) + ended))
            after = np.where(self.bad_state, 1.0, steps.min(axis=1) if policy is None else steps[at, policy])
            change = np.abs(after - value).max()
            value = after
            if change < PRECISION:
                break
        return value, steps

    def expected_return(self, policy: np.ndarray, horizon: int) -> float:
        """Expected sum of rewards over at most ``horizon`` steps, averaged over the starts."""
        rows = np.arange(self.n_states) * self.n_actions + policy
        go, reward = self.go[rows], self.reward.ravel()[rows]
        value = np.zeros(self.n_states)
        for _ in range(horizon):
            value = reward + go @ value
        return float(value[self.start].mean())

    def optimal(self, discount: float = 0.99, penalty: float = 0.0) -> np.ndarray:
        """Actions (S,) of the best policy; ``penalty`` is taken off for every bad step and every step into a bad state."""
        harm = np.maximum(
            self.bad_step, self._steps(self.go, self.bad_state * 1.0) + self._steps(self.end, self.bad_state * 1.0)
        )
        reward, value = self.reward - penalty * harm, np.zeros(self.n_states)
        for _ in range(SWEEPS):
            steps = reward + discount * self._steps(self.go, value)
            after = steps.max(axis=1)
            change = np.abs(after - value).max()
            value = after
            if change < 1e-10:
                break
        return steps.argmax(axis=1)


@dataclass(frozen=True)
class SafetyProperty:
    """A policy, the classifier that decides ``actions[label]`` at ``features[state]``, never meets anything bad.

    Attributes
    ----------
    mdp : MDP
        With start and bad states or steps.
    features : array_like, shape (S, features)
        What the policy sees of every state.
    actions : sequence, optional
        Label of each action 0 .. A-1 (default: 0 .. A-1 themselves).
    threshold : float, optional
        None: surely safe. Else: the probability of ever meeting something bad, from every start, is at most this.
    tolerance : float
        With a threshold: actions count as safest within this probability of the least; where that turns out too
        much in sum, a tenth of it, and so on.

    Notes
    -----
    What is asked of a state stays asked in later rounds, also where the repaired policy no longer comes there, and with
    a threshold the safest actions are asked for, which is more than the threshold needs. So ``Infeasible`` says that no
    leaf values meet all these demands together; that no policy at all is safe has a message of its own.
    """

    mdp: MDP
    features: Any
    actions: Sequence[Any] | None = None
    threshold: float | None = None
    tolerance: float = 1e-9

    def bind(self, encoding: EnsembleEncoding, context: Context | None = None) -> SafetyVerifier:
        features = encoding.numbers(self.features, "features")
        if len(features) != self.mdp.n_states:
            raise ValueError(f"features: got {len(features)} rows; the MDP has {self.mdp.n_states} states")
        actions = np.arange(self.mdp.n_actions) if self.actions is None else np.asarray(self.actions)
        if len(actions) != self.mdp.n_actions:
            raise ValueError(f"actions: got {len(actions)} labels; the MDP has {self.mdp.n_actions} actions")
        strange = [c for c in encoding.classes if c not in actions.tolist()]
        if strange:
            raise ValueError(f"actions: the model decides {strange[0]!r}, which is none of {actions.tolist()}")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold: got {self.threshold}; expected a probability")
        action = np.array([actions.tolist().index(c) for c in encoding.classes])
        return SafetyVerifier(self, features, action)


@dataclass
class SafetyVerifier:
    """See :class:`SafetyProperty`. ``action`` says which action each class of the model is."""

    property: SafetyProperty
    features: np.ndarray
    action: np.ndarray

    def __post_init__(self) -> None:
        mdp = self.property.mdp
        known = np.zeros(mdp.n_actions, dtype=bool)
        known[self.action] = True  # an action that the model cannot decide helps nobody
        if self.property.threshold is None:
            self.region = mdp.safe_region(known)
            self.allowed = mdp.safe_actions(self.region) & known
            if not self.region[mdp.start].all():
                lost = [s for s in mdp.start if not self.region[s]]
                raise Infeasible(f"no safe policy: from start {lost} every policy can meet something bad")
            return
        self.known, self.tolerance = known, self.property.tolerance
        self.least, self.steps = mdp.risk()
        self._allow()
        self.region = np.ones(mdp.n_states, dtype=bool)
        if (worst := float(self.least[mdp.start].max())) > self.property.threshold:
            raise Infeasible(
                f"no safe policy: every policy meets something bad with probability {worst:.3g} or more, "
                f"above the threshold {self.property.threshold}"
            )

    def _allow(self) -> None:
        self.allowed = (self.steps <= self.least[:, None] + self.tolerance) & self.known

    def policy(self, model: Candidate) -> np.ndarray:
        """The action in every state."""
        found: np.ndarray = self.action[model.labels(self.features)]
        return found

    def find(self, model: Candidate, exclude: set[Key], budget: float, limit: int) -> Found:
        mdp, policy = self.property.mdp, self.policy(model)
        at = np.arange(mdp.n_states)
        if self.property.threshold is None:
            states = np.flatnonzero(mdp.reachable(policy, self.region) & ~self.allowed[at, policy] & ~mdp.bad_state)
            risk = float(mdp.risk(policy)[0][mdp.start].max())
            if not len(states):
                return Found(proved=True, rate=risk, note="every reachable state was checked")
            size = np.ones(len(states))
        else:
            value, _ = mdp.risk(policy)
            risk = float(value[mdp.start].max())
            if risk <= self.property.threshold:
                return Found(proved=True, rate=risk, note="probability by value iteration")
            reached = mdp.reachable(policy) & ~mdp.bad_state
            while not len(states := np.flatnonzero(reached & ~self.allowed[at, policy])) and self.tolerance > PRECISION:
                self.tolerance /= 10
                self._allow()
            size = (self.steps[at, policy] - self.least)[states]
        names = model.encoding.classes
        found: list[Counterexample] = []
        seen = set(exclude)
        for i in np.argsort(-size, kind="stable"):
            s = int(states[i])
            case = Allowed(self.features[s], tuple(names[self.allowed[s][self.action]].tolist()))
            (demand,) = demands(model.encoding, [case])
            if demand.key not in seen:
                seen.add(demand.key)
                found.append(case)
            if len(found) == limit:
                break
        return Found(found, rate=risk, note="reachable states")
