"""How often a rule and each voter order a pair of items alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnomon.decisions.angular_mean.pairs import alike
from gnomon.decisions.angular_mean.sphere import angles, unit
from gnomon.decisions.angular_mean.voters import as_covariance, as_rows, root

Array = np.ndarray

BLOCK = 1 << 22  # scores held at a time


def agreement(theta: Any, voters: Any, items: Any = None, *, covariance: Any = None) -> Array:
    r"""The long-run agreement of each voter with a linear rule.

    .. math:: A_i = P(\langle\theta, x - y\rangle\ \text{and}\ \langle\theta_i, x - y\rangle\ \text{have the same sign}),

    ties counting 1/2: (1 + Kendall's tau) / 2.

    Parameters
    ----------
    theta : array_like, shape (d,)
        The rule.
    voters : array_like, shape (n, d)
        The voters' rules.
    items : array_like, shape (m, d), optional
        Items: agreement over all their pairs, which is what random batches of them have on average.
    covariance : array_like, shape (d, d), optional
        Without items: of Gaussian items; by default isotropic ones. Then A_i = 1 - phi_i / pi, with phi_i the angle
        between :math:`S^{1/2}\theta` and :math:`S^{1/2}\theta_i`.

    Returns
    -------
    ndarray, shape (n,)
        In [0, 1].

    Raises
    ------
    ValueError
        For shapes that do not fit, zero vectors, or items that are all the same.

    Source: arXiv 2605.12717 (abstract); the formula is that of two correlated Gaussian signs.
    """
    rows = as_rows(voters, "voters")
    rule = as_rule(theta, rows.shape[1])
    if items is not None:
        if covariance is not None:
            raise ValueError("give items or covariance, not both")
        pool = Pool(items, rows.shape[1])
        return np.concatenate([alike(pool.scores(rule[None]), pool.scores(part)[:, None])[:, 0]
                               for part in np.array_split(rows, -(-rows.shape[0] * pool.size // BLOCK))])  # fmt: skip
    if covariance is not None:
        half = root(as_covariance(covariance, rows.shape[1]))[0]
        rule, rows = unit(half @ rule), unit(rows @ half)
    return 1 - angles(rule, rows) / np.pi


class Pool:
    """Items at hand, scored so that equal items tie exactly.

    Attributes
    ----------
    size : int
        How many, equal ones included.
    """

    def __init__(self, items: Any, d: int):
        self.rows = as_items(items, d)
        self.size = len(self.rows)
        self._distinct, which = np.unique(self.rows, axis=0, return_inverse=True)
        self._which = which.ravel()
        if len(self._distinct) < 2:
            raise ValueError(f"items has {self.size} rows but one distinct item: agreement needs two to compare")

    def scores(self, rules: Array, chosen: Array | None = None) -> Array:
        """By each rule, (r, size); or of the items with the indices ``chosen``, (r, *chosen.shape)."""
        which = self._which if chosen is None else self._which[chosen]
        used, at = np.unique(which, return_inverse=True)
        found: Array = (rules @ self._distinct[used].T)[:, at.reshape(which.shape)]
        return found


def as_items(items: Any, d: int) -> Array:
    """Checked items (m, d)."""
    rows = np.asarray(items, dtype=float)
    if rows.ndim != 2 or rows.shape[1] != d:
        raise ValueError(f"items has shape {rows.shape}; expected (m, {d}): the rules have d = {d}")
    if not np.isfinite(rows).all():
        raise ValueError(f"items: row {int(np.argwhere(~np.isfinite(rows))[0, 0])} holds NaN or infinity")
    return rows


def as_rule(theta: Any, d: int) -> Array:
    """A unit vector (d,) from a rule's own, or from a fitted estimator's ``coef_``."""
    vector = np.asarray(getattr(theta, "coef_", theta), dtype=float)
    if vector.shape != (d,):
        raise ValueError(f"theta has shape {vector.shape}; expected ({d},), as the voters have")
    return as_rows(vector[None], "theta")[0]
