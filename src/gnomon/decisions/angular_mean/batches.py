"""Batch by batch: how often, and by how much, a voter gets less than its share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gnomon.decisions.angular_mean.agreement import Pool, agreement, as_rule
from gnomon.decisions.angular_mean.pairs import alike
from gnomon.decisions.angular_mean.voters import as_covariance, as_rows, as_types, as_weights, root

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray

BLOCK = 1 << 22  # scores held at a time
EXACT = 1e-12  # a share such as 0.3 and 3 of 10 pairs differ by rounding only


@dataclass(frozen=True)
class BatchShortfall:
    """Per-batch proportionality of one rule at one batch size, by Monte Carlo.

    Attributes
    ----------
    m, n_batches : int
        Items in a batch, and batches drawn.
    violation : ndarray, shape (n,)
        P(A_i < alpha_i - eps) of each voter.
    shortfall : ndarray, shape (n,)
        E[(alpha_i - A_i)^+] of each voter.
    shortfall_se : ndarray, shape (n,)
        Its Monte Carlo standard error.
    any_violation : float
        Share of the batches in which some voter is violated.
    agreement, variance : ndarray, shape (n,)
        Mean and variance of A_i over the batches.
    """

    m: int
    n_batches: int
    violation: Array
    shortfall: Array
    shortfall_se: Array
    any_violation: float
    agreement: Array
    variance: Array


def batch_shortfall(theta: Any, voters: Any, m: int, *, weights: Any = None, items: Any = None, covariance: Any = None,
                    n_batches: int = 2000, eps: float = 0.0, random_state: int | None = 0) -> BatchShortfall:  # fmt: skip
    r"""How far batches of ``m`` items fall short of per-batch proportionality, :math:`A_i(\theta; X) \ge \alpha_i`.

    No fixed linear rule can keep it in every batch: with two opposed voters and m = 2 one of them always gets nothing.
    The shortfall of a voter without slack decays as :math:`m^{-1/2}`, that of one with slack exponentially.

    Parameters
    ----------
    theta : array_like, shape (d,)
        The rule, or a fitted estimator.
    voters : array_like, shape (n, d)
        Voter types: rows are taken as they are, equal ones are not merged.
    m : int
        Items in a batch, >= 2.
    weights : array_like, shape (n,), optional
        By default equal.
    items : array_like, shape (M, d), optional
        Batches are drawn from these without replacement, m <= M; else Gaussian items of this ``covariance`` (by default
        isotropic).
    n_batches : int
        Batches drawn.
    eps : float
        Tolerance of a violation, >= 0.
    random_state : int or None
        Seed of the batches.

    Raises
    ------
    ValueError
        For sizes and shapes that do not fit.
    """
    rows = as_rows(voters, "voters")
    share = as_weights(weights, len(rows))
    rule = as_rule(theta, rows.shape[1])
    _whole("m", m, 2)
    _whole("n_batches", n_batches, 1)
    if not eps >= 0:
        raise ValueError(f"eps is {eps}; expected a number >= 0")
    if items is not None and covariance is not None:
        raise ValueError("give items or covariance, not both")
    random = np.random.default_rng(random_state)
    draw = _from_pool(Pool(items, rows.shape[1]), m, random) if items is not None else _gaussian(covariance, m, random)
    both = np.vstack([rule, rows])
    size = max(1, BLOCK // (m * (len(both) + rows.shape[1])))
    totals, some = np.zeros((5, len(rows))), 0
    for start in range(0, n_batches, size):
        scores = draw(both, min(size, n_batches - start))
        found = alike(scores[0], scores[1:])
        lack = np.maximum(share[:, None] - found, 0)
        lack[lack < EXACT] = 0
        violated = lack > eps
        some += int(violated.any(axis=0).sum())
        for row, x in zip(totals, (violated, lack, lack**2, found, found**2), strict=True):
            row += x.sum(axis=1)
    violation, shortfall, squared, mean, mean_squared = totals / n_batches
    return BatchShortfall(m, n_batches, violation, shortfall, np.sqrt(np.maximum(squared - shortfall**2, 0) / n_batches),
                          some / n_batches, mean, np.maximum(mean_squared - mean**2, 0))  # fmt: skip


def proportionality_report(rule: Any, items: Any = None, batch_sizes: Sequence[int] = (2, 5, 10, 50), n_batches: int = 2000,
                           *, voters: Any = None, weights: Any = None, covariance: Any = None,
                           random_state: int | None = 0) -> pd.DataFrame:  # fmt: skip
    """What every voter type gets: in the long run and batch by batch.

    Parameters
    ----------
    rule : AngularMean or array_like, shape (d,)
        A fitted estimator brings its voters, weights and covariance; a vector needs ``voters``.
    items : array_like, shape (M, d), optional
        Items at hand; else Gaussian ones of the estimator's covariance.
    batch_sizes, n_batches
        See :func:`batch_shortfall`.
    voters, weights, covariance : array_like, optional
        Other voters to judge the rule by; equal ones are merged.
    random_state : int or None
        Seed of the batches.

    Returns
    -------
    pandas.DataFrame
        A row for each type: ``voter`` (number), ``weight``, ``agreement`` (E[A]), ``slack`` (E[A] - weight), with
        items also ``gaussian`` (what the formula for Gaussian items says), and for each m ``shortfall_m`` and
        ``violation_m``. Slack >= 0 is long-run proportionality: of the share of pairs, not above chance.
    """
    import pandas as pd

    if voters is None:
        if not hasattr(rule, "types_"):
            raise ValueError("voters: give them, or a fitted AngularMean as rule")
        vectors, share = rule.types_, rule.weights_
    else:
        vectors, share, _ = as_types(voters, weights)
    if covariance is None:
        covariance = getattr(rule, "covariance_", None)
    formula = agreement(rule, vectors, covariance=covariance)
    mean = formula if items is None else agreement(rule, vectors, items)
    table = {"voter": np.arange(len(vectors)), "weight": share, "agreement": mean, "slack": mean - share}
    if items is not None:
        table["gaussian"] = formula
    for m in batch_sizes:
        found = batch_shortfall(rule, vectors, m, weights=share, items=items, n_batches=n_batches,
                                covariance=covariance if items is None else None, random_state=random_state)  # fmt: skip
        table |= {f"shortfall_{m}": found.shortfall, f"violation_{m}": found.violation}
    return pd.DataFrame(table)


Draw = Callable[[Array, int], Array]


def _gaussian(covariance: Any, m: int, random: np.random.Generator) -> Draw:
    def draw(rules: Array, batches: int) -> Array:
        d = rules.shape[1]
        if covariance is not None:
            rules = rules @ root(as_covariance(covariance, d))[0]
        return np.einsum("rd,bmd->rbm", rules, random.normal(size=(batches, m, d)), optimize=True)

    return draw


def _from_pool(pool: Pool, m: int, random: np.random.Generator) -> Draw:
    if m > pool.size:
        raise ValueError(f"m is {m} but there are {pool.size} items: batches are drawn without replacement")

    def draw(rules: Array, batches: int) -> Array:
        chosen = np.stack([random.choice(pool.size, m, replace=False, shuffle=False) for _ in range(batches)])
        return pool.scores(rules, chosen)

    return draw


def _whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}; expected a whole number >= {least}")
