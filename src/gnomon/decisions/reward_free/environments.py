"""Small worlds in which exploring is hard, or easy: locks, trees, corridors, a river, and random transitions."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from gnomon.decisions.reward_free.tabular import TabularMDP, whole

GOOD, BAD = 0, 1


def combination_lock(H: int, A: int, seed: int | np.random.Generator | None = None) -> TabularMDP:
    """The hard instance: at each step one secret action keeps state 0 (good); all others lead to state 1 (bad) for ever.

    Parameters
    ----------
    H, A : int
        Steps and actions; H >= 1, A >= 2.
    seed : int or Generator
        Of the secret, which is kept as ``secret_``, shape (H,).

    Returns
    -------
    TabularMDP
        With reward 1 for the secret action of the last step in the good state.

    Raises
    ------
    ValueError
        For a lock that is none.
    """
    whole("H", H)
    whole("A", A, 2)
    secret = np.random.default_rng(seed).integers(A, size=H)
    P = np.zeros((H, 2, A, 2))
    P[:, :, :, BAD] = 1.0
    P[np.arange(H), GOOD, secret] = [1.0, 0.0]
    rewards = np.zeros((H, 2, A))
    rewards[H - 1, GOOD, secret[-1]] = 1.0
    lock = TabularMDP(P, [1.0, 0.0], rewards=rewards)
    lock.secret_ = secret  # type: ignore[attr-defined]
    return lock


def opened(counts: list, lock: TabularMDP) -> bool:
    """Whether the counts of an exploration hold the secret action of every step of a :func:`combination_lock`."""
    secret = lock.secret_  # type: ignore[attr-defined]
    return all(n[GOOD * lock.n_actions + a, GOOD] > 0 for n, a in zip(counts, secret, strict=True))


def tree(H: int, A: int, seed: int | np.random.Generator | None = None) -> TabularMDP:
    """The lock whose leaves are told apart: an A-ary tree of depth H, one state a node, children in a secret order.

    Parameters
    ----------
    H, A : int
        Depth and actions; the number of states is (A^(H+1) - 1) / (A - 1), at most 100,000.
    seed : int or Generator
        Of the order in which actions lead to children.

    Returns
    -------
    TabularMDP
        With reward 1 for the last action towards one leaf.
    """
    whole("H", H)
    whole("A", A, 2)
    S = (A ** (H + 1) - 1) // (A - 1)
    if S > 100_000:
        raise ValueError(f"H {H}, A {A}: the tree has {S:,} nodes, at most 100,000 are supported")
    inner = S - A**H
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(A), (inner, 1)), axis=1)
    below = (np.arange(inner)[:, None] * A + 1 + order).ravel()
    to = np.concatenate([below, np.repeat(np.arange(inner, S), A)])  # leaves stay
    rewards = np.zeros((S, A))
    rewards[np.divmod(np.flatnonzero(to[: inner * A] == S - 1), A)] = 1.0
    step = sparse.csr_array((np.ones(S * A), (np.arange(S * A), to)), shape=(S * A, S))
    return TabularMDP(step, np.eye(S)[0], H, rewards)


def corridor(length: int, A: int, H: int, seed: int | np.random.Generator | None = None) -> TabularMDP:
    """A corridor with reset: in each state one secret action advances, all others lead back to the start.

    Parameters
    ----------
    length, A, H : int
        States, actions, steps. At the far end the secret action stays.
    seed : int or Generator
        Of the secret.

    Returns
    -------
    TabularMDP
        With reward 1 for the secret action at the far end.
    """
    whole("length", length, 2)
    whole("A", A, 2)
    secret, here = np.random.default_rng(seed).integers(A, size=length), np.arange(length)
    P = np.zeros((length, A, length))
    P[:, :, 0] = 1.0
    P[here, secret, 0] = 0.0
    P[here, secret, np.minimum(here + 1, length - 1)] = 1.0
    rewards = np.zeros((length, A))
    rewards[-1, secret[-1]] = 1.0
    return TabularMDP(P, np.eye(length)[0], H, rewards)


def riverswim(length: int = 6, H: int = 12, drift: float = 0.05, forward: float = 0.35) -> TabularMDP:
    """RiverSwim (Strehl and Littman 2008): action 0 drifts left for certain, action 1 swims right against the current.

    Parameters
    ----------
    length, H : int
        States and steps.
    drift, forward : float
        Of a stroke to the right, the probability of being carried left and of advancing; else the swimmer stays.

    Returns
    -------
    TabularMDP
        From the left bank; reward 0.005 for drifting at the left bank, 1 for swimming at the right one.
    """
    whole("length", length, 2)
    if not (drift >= 0 and forward > 0 and drift + forward <= 1):
        raise ValueError(f"drift {drift:g}, forward {forward:g}: expected probabilities that sum to at most 1")
    here, P = np.arange(length), np.zeros((length, 2, length))
    left, right = np.maximum(here - 1, 0), np.minimum(here + 1, length - 1)
    P[here, 0, left] = 1.0
    for to, p in ((left, drift), (right, forward), (here, 1 - drift - forward)):
        P[here, 1, to] += p  # one target a state, so nothing is lost
    rewards = np.zeros((length, 2))
    rewards[0, 0], rewards[-1, 1] = 0.005, 1.0
    return TabularMDP(P, np.eye(length)[0], H, rewards)


def random_mdp(S: int, A: int, H: int, seed: int | np.random.Generator | None = None) -> TabularMDP:
    """Transitions from Dirichlet(1, ..., 1), anew at each step; the first state is 0, rewards are uniform in [0, 1]."""
    for name, value in (("S", S), ("A", A), ("H", H)):
        whole(name, value)
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(S), size=(H, S, A))
    return TabularMDP(P / P.sum(axis=-1, keepdims=True), np.eye(S)[0], rewards=rng.random((H, S, A)))
