"""One scoring vector per person from what people chose: ridge conditional logit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray

PENALTIES = tuple(10.0**k for k in np.arange(-2, 2.1, 0.5))
FOLDS = 5


@dataclass(frozen=True)
class Voters:
    """Scoring vectors of people.

    Attributes
    ----------
    people : list of str
        Who; rows of ``coef``.
    attributes : list of str
        Columns of ``coef``.
    coef : ndarray, shape (n, d)
        On standardised attributes: raw vectors, a person without a lean has a short one.
    items : ndarray, shape (m, d)
        The distinct alternatives that occur, standardised.
    mean, scale : ndarray, shape (d,)
        The standardisation: of all rows of the choices.
    penalty : float
        Used, or chosen by cross-validation.
    tasks : ndarray, shape (n,)
        Choices of each person.
    """

    people: list[str]
    attributes: list[str]
    coef: Array
    items: Array
    mean: Array
    scale: Array
    penalty: float
    tasks: Array


def fit_voters(choices: pd.DataFrame, *, person: str = "person", task: str = "task", chosen: str = "chosen",
               attributes: Sequence[str] | None = None, penalty: float | str = 1.0, random_state: int = 0) -> Voters:  # fmt: skip
    r"""Estimate one linear scoring rule per person from choices among alternatives.

    .. math:: \min_\beta\ -\sum_t \log \frac{e^{\beta^T x_{t, c_t}}}{\sum_j e^{\beta^T x_{tj}}} + \frac{\lambda}{2} |\beta|^2

    for each person, on attributes standardised over all rows. Pairwise comparisons are tasks of two alternatives.

    Parameters
    ----------
    choices : pandas.DataFrame
        One row an alternative. Tasks may differ in how many they offer.
    person, task, chosen : str
        Columns: who, which of their tasks, and whether (0/1 or false/true) the alternative was chosen, once a task.
    attributes : sequence of str, optional
        Numeric columns to score by; by default all others.
    penalty : float or "cv"
        :math:`\lambda` > 0; "cv" takes the one of 0.01 to 100 that predicts best over 5 folds of tasks, one for all.
    random_state : int
        Seed of the folds.

    Raises
    ------
    ValueError
        For columns that are missing, not numeric or constant, tasks without exactly one choice or with one alternative.
    """
    columns = list(attributes) if attributes is not None else [c for c in choices if c not in (person, task, chosen)]
    _check_columns(choices, [person, task, chosen], columns)
    x = choices[columns].to_numpy(float)
    mean, scale = x.mean(axis=0), x.std(axis=0)
    if not scale.all():
        raise ValueError(f"choices: column {columns[int(np.argmin(scale))]!r} is constant; leave it out")
    x = (x - mean) / scale
    who, people = choices[person].astype(str).factorize(sort=False)
    order = np.lexsort([choices[task].factorize()[0], who])
    data = _Tasks.of(
        x[order], who[order], choices[task].factorize()[0][order], _zero_one(choices[chosen], chosen)[order]
    )
    if penalty == "cv":
        penalty = _cross_validated(data, len(people), random_state)
    elif isinstance(penalty, str) or not (np.isfinite(penalty) and penalty > 0):
        raise ValueError(f"penalty is {penalty!r}; expected a number > 0 or 'cv'")
    return Voters(list(map(str, people)), list(map(str, columns)), data.fit(len(people), float(penalty)), np.unique(x, axis=0),
                  mean, scale, float(penalty), np.bincount(data.who, minlength=len(people)))  # fmt: skip


@dataclass(frozen=True)
class _Tasks:
    """Tasks one after the other: rows of alternatives, where each task starts, who answered, and the row chosen."""

    x: Array
    starts: Array
    who: Array
    picked: Array

    @staticmethod
    def of(x: Array, who: Array, task: Array, chosen: Array) -> _Tasks:
        new = np.concatenate([[True], (np.diff(who) != 0) | (np.diff(task) != 0)])
        starts = np.flatnonzero(new)
        count = np.add.reduceat(chosen, starts)
        sizes = np.diff(np.append(starts, len(x)))
        if (count != 1).any():
            raise ValueError(f"choices: {int((count != 1).sum())} tasks have not exactly one chosen alternative")
        if (sizes < 2).any():
            raise ValueError(f"choices: {int((sizes < 2).sum())} tasks offer one alternative; a choice needs two")
        return _Tasks(x, starts, who[starts], np.flatnonzero(chosen))

    def only(self, kept: Array) -> _Tasks:
        sizes = np.diff(np.append(self.starts, len(self.x)))
        rows = np.repeat(kept, sizes)
        shift = np.cumsum(~rows)
        picked = self.picked[kept]
        starts = np.concatenate([[0], np.cumsum(sizes[kept])[:-1]])
        return _Tasks(self.x[rows], starts, self.who[kept], picked - shift[picked])

    def loss(self, beta: Array) -> tuple[Array, Array]:
        """Minus log-likelihood of each task, and the choice probabilities of its rows."""
        sizes = np.diff(np.append(self.starts, len(self.x)))
        score = np.einsum("rd,rd->r", self.x, beta[np.repeat(self.who, sizes)])
        top = np.maximum.reduceat(score, self.starts)
        weight = np.exp(score - np.repeat(top, sizes))
        total = np.add.reduceat(weight, self.starts)
        return np.log(total) + top - score[self.picked], weight / np.repeat(total, sizes)

    def fit(self, people: int, penalty: float) -> Array:
        """All people in one problem: it is a sum over them, so one search solves each."""
        from scipy.optimize import minimize

        d = self.x.shape[1]
        sizes = np.diff(np.append(self.starts, len(self.x)))
        owner = np.repeat(self.who, sizes)

        def objective(flat: Array) -> tuple[float, Array]:
            beta = flat.reshape(people, d)
            loss, chance = self.loss(beta)
            chance[self.picked] -= 1
            gradient = penalty * beta
            np.add.at(gradient, owner, chance[:, None] * self.x)
            return float(loss.sum() + penalty / 2 * (flat @ flat)), gradient.ravel()

        found = minimize(objective, np.zeros(people * d), jac=True, method="L-BFGS-B",
                         options={"maxiter": 2000, "maxfun": 4000, "gtol": 1e-6, "ftol": 1e-15, "maxcor": 20})  # fmt: skip
        if not found.success and np.abs(found.jac).max() > 1e-4:
            warnings.warn(f"the conditional logit has not converged: {found.message}", ConvergenceWarning, stacklevel=3)
        beta: Array = found.x.reshape(people, d)
        return beta


def _cross_validated(data: _Tasks, people: int, random_state: int) -> float:
    """The penalty with the largest held-out likelihood; a person's tasks are dealt evenly to the folds."""
    random = np.random.default_rng(random_state)
    shuffled = np.lexsort([random.random(len(data.who)), data.who])
    fold = np.empty(len(data.who), dtype=int)
    fold[shuffled] = np.arange(len(data.who)) % FOLDS
    losses = []
    for penalty in PENALTIES:
        held = [data.only(fold == k).loss(data.only(fold != k).fit(people, penalty))[0].sum() for k in range(FOLDS)]
        losses.append(sum(held))
    return float(PENALTIES[int(np.argmin(losses))])


def _check_columns(choices: Any, names: list[str], columns: list[Any]) -> None:
    if lacking := [c for c in [*names, *columns] if c not in choices]:
        raise ValueError(f"choices: no column {', '.join(map(repr, lacking))}; it has {', '.join(map(str, choices))}")
    if not columns or not len(choices):
        raise ValueError("choices: expected rows, and one attribute column or more")
    import pandas as pd

    if words := [str(c) for c in columns if not pd.api.types.is_numeric_dtype(choices[c])]:
        raise ValueError(f"choices: columns {', '.join(words)} hold no numbers; encode them or name the attributes")
    if gaps := [str(c) for c in [*names, *columns] if choices[c].isna().any()]:
        raise ValueError(f"choices: missing values in {', '.join(gaps)}")
    if not np.isfinite(choices[columns].to_numpy(float)).all():
        raise ValueError("choices: infinite values among the attributes")


def _zero_one(column: Any, name: str) -> Array:
    found = column.astype(str).str.lower().map({"true": 1, "false": 0, "1": 1, "0": 0, "1.0": 1, "0.0": 0})
    if found.isna().any():
        raise ValueError(f"choices: column {name!r} holds {column[found.isna()].iloc[0]!r}; expected 0/1 or true/false")
    return found.to_numpy(int)
