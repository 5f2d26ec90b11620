"""What can be said before and after exploring: how many agents, how far the model can be off, and what a lock costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from scipy import optimize

from gnomon.decisions.reward_free.tabular import Floats, Model, whole


def visits(counts: Any) -> Floats:
    """How often each state and action was tried: the row sums (S * A,) of a step's counts."""
    return np.asarray(counts.sum(axis=1), dtype=float).ravel()


def value_error(counts: Sequence[Any], model: Model, delta: float, starts: float | None = None) -> float:
    r"""A bound on :math:`|V^\pi - \hat V^\pi|` that holds for every policy and reward at once.

    With :math:`\beta(N) = \ln(3SAH/\delta) + S \ln(8e(1 + N))`, the error of a step's transitions is at most
    :math:`\sqrt{2\beta/N}` in total variation norm, at every N, with probability 1 - delta; values after step h lie in
    [0, H - h], so that

    .. math:: e_h(s, a) = \min\Big(H - h,\ \tfrac{H - h}{2} \sqrt{2\beta/N_h(s,a)} + \sum_{s'} \hat P_h(s'|s,a) \max_{a'} e_{h+1}(s', a')\Big).

    Parameters
    ----------
    counts : sequence of H arrays (S * A, S)
        Observed transitions of each step.
    model : Model
        Estimated from them.
    delta : float
        In (0, 1).
    starts : float, optional
        From how many episodes the initial distribution was estimated: a step 0 with one state and one action. None where
        it is known.

    Returns
    -------
    float
        In [0, H - 1] (H where the initial distribution was estimated). A plan's suboptimality is at most twice this.

    Notes
    -----
    The deviation is the time-uniform one of Jonsson et al., "Planning in Markov decision processes with gap-dependent
    sample complexity" (2020), with Pinsker's inequality. What is learned of the last step's transitions changes no value.
    """
    S, A, H = model.n_states, model.n_actions, model.horizon

    def deviation(n: Floats) -> Floats:
        beta = math.log(3 * S * A * H / delta) + S * np.log(8 * math.e * (1 + n))
        return np.where(n > 0, np.sqrt(2 * beta / np.maximum(n, 1)), np.inf)

    later = np.zeros(S)
    for h in range(H - 2, -1, -1):
        most = H - 1 - h
        error = np.minimum(most, most / 2 * deviation(visits(counts[h])) + model.kernels[h] @ later)
        later = error.reshape(S, A).max(axis=1)
    found = float(model.initial @ later)
    if starts is None:
        return found
    return min(float(H), H / 2 * float(deviation(np.array(starts))) + found)


def gap_bound(truth: Model, model: Model) -> float:
    r"""The largest suboptimality that any reward can cause, bounded by dynamic programming in the true model.

    :math:`\|\mu - \hat\mu\|_1 H + \max_\pi E_\pi \sum_h \|P_h - \hat P_h\|_1 (H - h)`: each of the two differences of values costs half of it.

    Parameters
    ----------
    truth, model : Model
        The true MDP and the estimate; the sink's share of a row counts as a difference.

    Returns
    -------
    float
        At most H.
    """
    S, A, H = truth.n_states, truth.n_actions, truth.horizon
    later = np.zeros(S)
    for h in range(H - 2, -1, -1):
        difference, estimate = abs(truth.kernels[h] - model.kernels[h]), model.kernels[h]
        missing = 1 - np.asarray(estimate.sum(axis=1)).ravel()
        off = np.asarray(difference.sum(axis=1)).ravel() + np.maximum(missing, 0)
        later = (off * (H - 1 - h) + truth.kernels[h] @ later).reshape(S, A).max(axis=1)
    start = float(np.abs(truth.initial - model.initial).sum()) * H
    return min(float(H), start + float(truth.initial @ later))


def agents_needed(S: int, A: int, H: int, eps: float, delta: float = 0.05,
                  kind: Literal["paper", "reach", "lower"] = "reach", n_phases: int | None = None) -> float:  # fmt: skip
    r"""How many agents a phase takes so that every plan is within ``eps``, by three counts.

    Parameters
    ----------
    S, A, H : int
        States, actions and steps.
    eps : float
        Suboptimality, in reward over an episode.
    delta : float
        Probability of failure, in (0, 1).
    kind : {"paper", "reach", "lower"}
        "paper": :math:`S^6 H^6 A \ln(SAH/\delta)/\epsilon^2`, the theorem with its constant and further logarithms set
        to 1 (order only). "reach": S A m with :math:`m = 8 H^4 S^3 \ln(2SAH/\delta)/\epsilon^2`, where the reach
        probabilities are known (simulation lemma). "lower": :math:`A^{H/\rho}` for :math:`\rho` phases, below which no
        algorithm succeeds on every MDP (order only).
    n_phases : int, optional
        :math:`\rho`, of "lower"; by default H.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For numbers out of range and an unknown kind.
    """
    for name, value in (("S", S), ("A", A), ("H", H)):
        whole(name, value)
    check_eps_delta(eps, delta)
    if kind == "paper":
        return S**6 * H**6 * A * math.log(S * A * H / delta) / eps**2
    if kind == "reach":
        return S * A * math.ceil(8 * H**4 * S**3 * math.log(2 * S * A * H / delta) / eps**2)
    if kind == "lower":
        return float(A ** (H / len(blocks(H, n_phases))))
    raise ValueError(f"kind {kind!r}: expected 'paper', 'reach' or 'lower'")


def blocks(horizon: int, n_phases: int | None) -> list[tuple[int, int]]:
    """The steps of each phase, (first, one past the last): blocks of ceil(H / rho) steps.

    Where rho does not divide H there may be fewer blocks than rho.

    Raises
    ------
    ValueError
        For ``n_phases`` outside 1..H.
    """
    if n_phases is None:
        n_phases = horizon
    if isinstance(n_phases, bool) or not isinstance(n_phases, int | np.integer) or not 1 <= n_phases <= horizon:
        raise ValueError(
            f"n_phases {n_phases!r}: expected a whole number from 1 to the horizon {horizon}, or None for the horizon"
        )
    length = -(-horizon // int(n_phases))
    return [(first, min(first + length, horizon)) for first in range(0, horizon, length)]


def check_eps_delta(eps: float, delta: float) -> None:
    """Raise ValueError unless eps > 0 and delta lies in (0, 1)."""
    if not (isinstance(eps, int | float) and eps > 0 and math.isfinite(eps)):
        raise ValueError(f"eps {eps!r}: expected a positive number")
    if not (isinstance(delta, int | float) and 0 < delta < 1):
        raise ValueError(f"delta {delta!r}: expected a number in (0, 1)")


def lock_success(m: float, A: int, lengths: Sequence[int]) -> float:
    r"""Probability that m uniform agents a phase open every block of a :func:`combination_lock`.

    :math:`(1 - (1 - A^{-L_1})^m) \prod_{k \ge 2} (1 - (1 - A^{-L_k})^{m/2})`: from the second phase on both states are
    significant and half of the agents go to the good one.

    Parameters
    ----------
    m : float
        Agents a phase.
    A : int
        Actions.
    lengths : sequence of int
        Steps of each block.
    """
    found = 1.0
    for k, length in enumerate(lengths):
        found *= -math.expm1((m if k == 0 else m / 2) * math.log1p(-(float(A) ** -length)))
    return found


def lock_agents(A: int, lengths: Sequence[int], success: float = 0.5) -> float:
    """The m at which :func:`lock_success` is ``success``."""
    top = 2.0
    while lock_success(top, A, lengths) < success:
        top *= 2
    return float(optimize.brentq(lambda m: lock_success(m, A, lengths) - success, 0.0, top))
