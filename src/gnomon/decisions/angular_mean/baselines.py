"""Other rules for the same voters; each returns a unit vector (d,), but the lottery.

All take ``voters`` (n, d) as a person has them and ``weights`` (n,), by default equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gnomon.decisions.angular_mean.solvers import starts
from gnomon.decisions.angular_mean.sphere import angles, exponential, pairwise_angles, unit
from gnomon.decisions.angular_mean.voters import Types, as_covariance, as_rows, as_types, as_weights, root

Array = np.ndarray


def arithmetic_mean(voters: Any, weights: Any = None) -> Array:
    """The weighted mean of the vectors as they are, so that long ones count for more: the common default.

    Raises
    ------
    ValueError
        When it vanishes.
    """
    unit_rows = as_rows(voters, "voters")
    return _direction(as_weights(weights, len(unit_rows)) @ np.asarray(voters, float), "arithmetic mean")


def normalized_mean(voters: Any, weights: Any = None) -> Array:
    """The weighted mean of the unit vectors; the minimiser of squared chords."""
    types = as_types(voters, weights)
    return _direction(types.weights @ types.vectors, "normalised mean")


def heaviest(voters: Any, weights: Any = None) -> Array:
    """The type of the largest weight as a dictator; of equals the first."""
    types = as_types(voters, weights)
    found: Array = types.vectors[int(np.argmax(types.weights))]
    return found


def random_dictator(voters: Any, weights: Any = None, random_state: int | None = 0) -> Array:
    """A draw from the lottery that takes each type's own rule with its weight."""
    types = as_types(voters, weights)
    found: Array = types.vectors[np.random.default_rng(random_state).choice(len(types.weights), p=types.weights)]
    return found


def random_dictator_agreement(voters: Any, weights: Any = None) -> Array:
    """Expected agreement (k,) of the types with the lottery: at least alpha_i, as it takes i's own rule so often."""
    types = as_types(voters, weights)
    expected: Array = (1 - pairwise_angles(types.vectors) / np.pi) @ types.weights
    return expected


def coordinate_median(voters: Any, weights: Any = None) -> Array:
    """The weighted median of each coordinate of the unit vectors."""
    types = as_types(voters, weights)
    order = np.argsort(types.vectors, axis=0)
    below = np.cumsum(types.weights[order], axis=0)
    at = (below >= 0.5 - 1e-12).argmax(axis=0)
    columns = np.arange(types.vectors.shape[1])
    return _direction(types.vectors[order[at, columns], columns], "coordinate-wise median")


def geodesic_median(voters: Any, weights: Any = None, *, n_restarts: int = 8, tol: float = 1e-9, max_iter: int = 500,
                    random_state: int | None = 0) -> Array:  # fmt: skip
    r"""The minimiser of :math:`\sum_i \alpha_i \phi_i` found by Weiszfeld's iteration on the sphere from many starts.

    Every voter is a candidate as well, for the objective has a corner there.

    References
    ----------
    P. T. Fletcher, S. Venkatasubramanian, S. Joshi, "The geometric median on Riemannian manifolds with application to
    robust atlas estimation", NeuroImage 45 (2009).
    """
    types = as_types(voters, weights)
    v, a = types.vectors, types.weights
    theta = starts(v, a, n_restarts, np.random.default_rng(random_state))
    value = _sum_of_angles(theta, v, a)
    length = np.ones(len(theta))
    for _ in range(max_iter):
        step = _weiszfeld(theta, v, a)
        trial = exponential(theta, length[:, None] * step)
        tried = _sum_of_angles(trial, v, a)
        gained = tried < value
        moved = np.where(gained, value - tried, 0.0)
        theta = np.where(gained[:, None], trial, theta)
        value = np.where(gained, tried, value)
        length = np.where(gained, 1.0, length / 4)
        if (moved < tol * 1e-3).all() and (length < 1e-3).all():
            break
    at_voters = _sum_of_angles(v, v, a) if len(v) <= 5000 else np.array([np.inf])
    best = int(np.argmin(value))
    if at_voters.min() <= value[best]:
        corner: Array = v[int(np.argmin(at_voters))]
        return corner
    found: Array = theta[best]
    return found


def kemeny_rule(voters: Any, weights: Any = None, *, covariance: Any = None, **options: Any) -> Array:
    r"""The linear rule with the least expected disagreement, for Gaussian items of a covariance.

    Expected disagreement is :math:`\sum_i \alpha_i \phi_i / \pi` after whitening, so it is the geodesic median there.
    ``options`` go to :func:`geodesic_median`.
    """
    types = as_types(voters, weights)
    if covariance is None:
        return geodesic_median(types.vectors, types.weights, **options)
    half, back = root(as_covariance(covariance, types.vectors.shape[1]))
    return _direction(geodesic_median(types.vectors @ half, types.weights, **options) @ back, "Kemeny rule")


def max_min_slack(voters: Any, weights: Any = None, *, n_restarts: int = 8, max_starts: int | None = None,
                  random_state: int | None = 0) -> Array:  # fmt: skip
    """The rule with the largest min_i slack_i, by sequential quadratic programming from many starts.

    ``max_starts`` keeps those starts that have the largest least slack themselves.
    """
    from scipy.optimize import minimize

    types = as_types(voters, weights)
    v, a = types.vectors, types.weights
    first = starts(v, a, n_restarts, np.random.default_rng(random_state))
    least = np.array([_slack(theta, types).min() for theta in first])
    best, best_value = first[int(np.argmax(least))], float(least.max())
    for k in np.argsort(-least, kind="stable")[:max_starts]:
        found = minimize(
            lambda x: -x[-1], np.append(first[k], least[k]), jac=lambda x: np.append(np.zeros(len(x) - 1), -1.0), method="SLSQP",
            constraints=[{"type": "ineq", "fun": lambda x: _slack(unit(x[:-1]), types) - x[-1],
                          "jac": lambda x: np.column_stack([_slack_gradient(x[:-1], v), -np.ones(len(v))])},
                         {"type": "eq", "fun": lambda x: x[:-1] @ x[:-1] - 1, "jac": lambda x: np.append(2 * x[:-1], 0.0)}],
            options={"maxiter": 200, "ftol": 1e-10},
        )  # fmt: skip
        theta = found.x[:-1]
        if np.isfinite(theta).all() and np.linalg.norm(theta) > 0.1:
            value = float(_slack(unit(theta), types).min())
            if value > best_value:
                best, best_value = unit(theta), value
    return best


def leximin(voters: Any, weights: Any = None, *, n_restarts: int = 8, max_starts: int | None = None, tol: float = 1e-6,
            random_state: int | None = 0) -> Array:  # fmt: skip
    """The rule whose sorted slacks are lexicographically largest: raise the least, fix who cannot rise, go on.

    Each level is found by bisection; that all slacks can be at least so large is decided by least squares on what is
    lacking, begun at the rule so far and the max-min rule. A search, no proof: the feasible set need not be convex.
    """
    types = as_types(voters, weights)
    theta = max_min_slack(
        types.vectors, types.weights, n_restarts=n_restarts, max_starts=max_starts, random_state=random_state
    )
    floor = np.full(len(types.weights), -np.inf)
    free = np.ones(len(floor), dtype=bool)
    for _ in range(types.vectors.shape[1]):  # that many tight constraints leave no freedom
        slack = _slack(theta, types)
        low, high = float(slack[free].min()), float((1 - types.weights[free]).min())
        while high - low > tol:
            middle = (low + high) / 2
            better = _reach(np.where(free, middle, floor - tol), theta, types)
            if better is None:
                high = middle
            else:
                theta, low = better, max(middle, float(_slack(better, types)[free].min()))
        slack = _slack(theta, types)
        tight = np.flatnonzero(free & (slack <= low + 10 * tol))
        for i in tight:  # who could rise while the others keep theirs stays free
            asked = np.where(free, low - tol, floor - tol)
            asked[i] = low + 100 * tol
            if _reach(asked, theta, types) is None:
                free[i], floor[i] = False, low
        if not free.any() or free[tight].all():
            break
    return theta


def _reach(asked: Array, theta: Array, types: Types) -> Array | None:
    """A rule near ``theta`` whose slacks are at least ``asked``, if least squares finds one."""
    from scipy.optimize import minimize

    wanted = np.isfinite(asked)
    v, bound = types.vectors[wanted], (asked + types.weights)[wanted]

    def lacking(x: Array) -> tuple[float, Array]:
        lack = np.maximum(bound - (1 - angles(unit(x), v) / np.pi), 0)
        return float(lack @ lack), -2 * lack @ _slack_gradient(x, v)

    found = minimize(
        lacking, theta, jac=True, method="L-BFGS-B", options={"maxiter": 300, "ftol": 1e-20, "gtol": 1e-12}
    )
    near = unit(found.x)
    return near if (bound - (1 - angles(near, v) / np.pi)).max() <= 1e-7 else None


def _slack(theta: Array, types: Types) -> Array:
    found: Array = 1 - angles(theta, types.vectors) / np.pi - types.weights
    return found


def _slack_gradient(x: Array, v: Array) -> Array:
    """Of 1 - angle / pi with respect to x of any length, (n, d)."""
    length = np.linalg.norm(x)
    theta = x / length
    cosine = v @ theta
    tangent = v - cosine[:, None] * theta
    return tangent / (np.maximum(np.linalg.norm(tangent, axis=1, keepdims=True), 1e-12) * np.pi * length)


def _sum_of_angles(theta: Array, v: Array, a: Array) -> Array:
    return np.arccos(np.clip(theta @ v.T, -1.0, 1.0)) @ a


def _weiszfeld(theta: Array, v: Array, a: Array) -> Array:
    """Logarithms averaged with weights alpha / phi, (s, d)."""
    cosine = np.clip(theta @ v.T, -1.0, 1.0)
    phi = np.maximum(np.arccos(cosine), 1e-12)
    pull = a / np.maximum(np.sqrt((1 - cosine) * (1 + cosine)), 1e-12)
    step = pull @ v - (pull * cosine).sum(axis=1)[:, None] * theta
    return step / (a / phi).sum(axis=1)[:, None]


def _direction(x: Array, name: str) -> Array:
    length = float(np.linalg.norm(x))
    if length < 1e-12:
        raise ValueError(f"the {name} of these voters vanishes: it has no direction")
    return x / length
