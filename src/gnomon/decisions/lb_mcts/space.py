"""The space of algorithm selection and tuning: one ConfigSpace per algorithm, seen as vectors, features and text."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import ConfigSpace as cs
import numpy as np
from ConfigSpace.hyperparameters import NumericalHyperparameter

Config = dict[str, Any]  # the active hyperparameters of one algorithm, by name
DIGITS = 6  # significant digits that a float keeps, so that a configuration and its key say the same
STEP = 0.2  # standard deviation of a numeric neighbour in the unit cube


class AlgorithmSpace:
    """The hyperparameters of one algorithm.

    A configuration is a dict of its active hyperparameters. Its vector (d,) is ConfigSpace's: numeric ones in the unit
    interval (logarithmic where declared so), the index of a category, NaN where inactive.

    Parameters
    ----------
    name : str
        The algorithm.
    space : ConfigSpace.ConfigurationSpace or mapping
        Its hyperparameters with conditions and forbidden clauses; a mapping as ConfigSpace takes it
        (``{"C": (1e-3, 1e3), "kernel": ["rbf", "linear"]}``).

    Raises
    ------
    ValueError
        For a mapping that ConfigSpace refuses: reversed bounds, no choices, a default outside.
    """

    def __init__(self, name: str, space: cs.ConfigurationSpace | Mapping[str, Any]):
        if isinstance(space, Mapping) and not isinstance(space, cs.ConfigurationSpace):
            for key, bounds in space.items():
                if isinstance(bounds, tuple) and len(bounds) == 2 and bounds[0] >= bounds[1]:
                    raise ValueError(f"space: {name!r} has bounds {bounds} for {key!r}; expected lower < upper")
            try:
                space = cs.ConfigurationSpace(space=dict(space))
            except (ValueError, TypeError) as error:
                raise ValueError(f"space: {name!r} cannot be read by ConfigSpace: {error}") from error
        if not isinstance(space, cs.ConfigurationSpace):
            raise TypeError(f"space: {name!r} is a {type(space).__name__}; expected a ConfigurationSpace or a mapping")
        self.name = name
        self.space = copy.deepcopy(space)  # sampling seeds it
        self.hyperparameters = [self.space[n] for n in self.space]  # parents before children
        self.names = [hp.name for hp in self.hyperparameters]
        self._at = {n: i for i, n in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.hyperparameters)

    # --- configurations and vectors ---

    def config(self, vector: np.ndarray) -> Config:
        """The configuration of a vector, floats with six significant digits."""
        found = {}
        for hp, v in zip(self.hyperparameters, vector, strict=True):
            if not np.isnan(v):
                found[hp.name] = _value(hp, v)
        return found

    def vector(self, config: Mapping[str, Any]) -> np.ndarray:
        """The vector of a configuration.

        Raises
        ------
        ValueError
            For a configuration that the space does not hold (unknown, inactive, missing or illegal values).
        """
        try:
            return np.asarray(cs.Configuration(self.space, values=dict(config)).get_array(), dtype=float)
        except Exception as error:  # ConfigSpace has many classes of them
            raise ValueError(f"config: {self.name!r} does not hold {dict(config)}: {error}") from error

    @property
    def default(self) -> Config:
        """ConfigSpace's default configuration."""
        return self.config(np.asarray(self.space.get_default_configuration().get_array(), dtype=float))

    def key(self, config: Mapping[str, Any]) -> str:
        """The canonical name of a configuration: two that name the same trial have the same."""
        return self.name + json.dumps({k: config[k] for k in sorted(config)}, default=str)

    def legalise(self, vectors: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Put vectors in order after a change: inactive parameters off, active ones on (drawn), integers whole.

        Rows that a forbidden clause excludes are left out.
        """
        x = np.array(vectors, dtype=float, ndmin=2)
        for j, hp in enumerate(self.hyperparameters):
            active = np.ones(len(x), dtype=bool)
            for condition in self.space.parent_conditions_of[hp.name]:
                active &= np.asarray(condition.satisfied_by_vector_array(x.T), dtype=bool)
            x[~active, j] = np.nan
            lacking = active & np.isnan(x[:, j])
            if lacking.any():
                x[lacking, j] = _draw(hp, int(lacking.sum()), rng)
            if whole(hp):
                on = ~np.isnan(x[:, j])
                x[on, j] = hp.to_vector(hp.to_value(x[on, j]))
        keep = np.ones(len(x), dtype=bool)
        for clause in self.space.forbidden_clauses:
            keep &= ~np.asarray(clause.is_forbidden_vector_array(x.T), dtype=bool)
        return x[keep]

    # --- drawing ---

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """``n`` random configurations as vectors (n, d)."""
        if not len(self):
            return np.zeros((n, 0))
        self.space.seed(int(rng.integers(2**31)))
        drawn: Any = self.space.sample_configuration(n)
        return np.array([c.get_array() for c in (drawn if n > 1 else [drawn])], dtype=float)

    def neighbours(self, vector: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
        """Up to ``n`` changes of one parameter: numeric by N(0, 0.2) in the unit interval, a category to another one."""
        free = [j for j, hp in enumerate(self.hyperparameters) if not np.isnan(vector[j]) and _size(hp) > 1]
        if not free:
            return np.empty((0, len(self)))
        x = np.repeat(vector[None], n, axis=0)
        for row, j in enumerate(rng.choice(free, n)):
            x[row, j] = _moved(self.hyperparameters[j], x[row, j], rng)
        return self.legalise(x, rng)

    # --- what surrogates and memory see ---

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """Features (n, F): numeric in the unit interval and -1 where inactive, ordinals scaled, categories one-hot."""
        x = np.atleast_2d(vectors)
        columns = []
        for j, hp in enumerate(self.hyperparameters):
            if isinstance(hp, cs.CategoricalHyperparameter):
                columns += [(x[:, j] == i).astype(float) for i in range(len(hp.choices))]
            else:
                top = max(_size(hp) - 1, 1) if isinstance(hp, cs.OrdinalHyperparameter) else 1
                columns.append(np.where(np.isnan(x[:, j]), -1.0, x[:, j] / top))
        return np.stack(columns, axis=1) if columns else np.zeros((len(x), 1))

    @property
    def categorical_features(self) -> np.ndarray:
        """Which columns of :meth:`encode` are one-hot (F,) bool."""
        flags: list[bool] = []
        for hp in self.hyperparameters:
            many = len(hp.choices) if isinstance(hp, cs.CategoricalHyperparameter) else 0
            flags += [True] * many or [False]
        return np.array(flags or [False])

    def distances(self, one: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Gower distance (m,) in [0, 1]: the mean over parameters of |difference| in the unit interval, 0/1 for
        categories and where just one is active."""
        others = np.atleast_2d(others)
        total = np.zeros(len(others))
        for j, hp in enumerate(self.hyperparameters):
            a, b = one[j], others[:, j]
            if isinstance(hp, NumericalHyperparameter):
                gap = np.abs(a - b)
            elif isinstance(hp, cs.OrdinalHyperparameter):
                gap = np.abs(a - b) / max(_size(hp) - 1, 1)
            else:
                gap = (a != b).astype(float)
            total += np.where(np.isnan(a) & np.isnan(b), 0.0, np.where(np.isnan(a) != np.isnan(b), 1.0, gap))
        return total / max(len(self), 1)

    def card(self) -> list[str]:
        """One line per hyperparameter: type, range, scale, default, condition."""
        lines = []
        for hp in self.hyperparameters:
            when = " and ".join(str(c).replace(f"{hp.name} | ", "") for c in self.space.parent_conditions_of[hp.name])
            lines.append(
                f"{hp.name}: {_kind(hp)}, default {_plain(hp.default_value)}" + (f", only if {when}" if when else "")
            )
        return lines


class CASHSpace(Mapping[str, AlgorithmSpace]):
    """Algorithms with their hyperparameters: a mapping from names to :class:`AlgorithmSpace`.

    Parameters
    ----------
    algorithms : mapping of str to ConfigurationSpace, mapping or AlgorithmSpace
        At least one.

    Raises
    ------
    ValueError
        When it is empty or a space cannot be read.

    Examples
    --------
    >>> space = CASHSpace({"ridge": {"alpha": (1e-3, 1e3)}, "tree": {"depth": (1, 8), "criterion": ["gini", "entropy"]}})
    >>> list(space), space["tree"].names
    (['ridge', 'tree'], ['criterion', 'depth'])
    """

    def __init__(self, algorithms: Mapping[str, Any]):
        if not isinstance(algorithms, Mapping):
            raise TypeError(f"algorithms: got {type(algorithms).__name__}; expected a mapping from names to spaces")
        if not algorithms:
            raise ValueError("algorithms: the space is empty; expected at least one algorithm")
        self._spaces = {
            str(n): s if isinstance(s, AlgorithmSpace) else AlgorithmSpace(str(n), s) for n, s in algorithms.items()
        }

    def __getitem__(self, name: str) -> AlgorithmSpace:
        try:
            return self._spaces[name]
        except KeyError:
            raise UnknownAlgorithm(name, list(self._spaces)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._spaces)

    def __len__(self) -> int:
        return len(self._spaces)

    def __contains__(self, name: object) -> bool:
        return name in self._spaces

    def joint(self) -> cs.ConfigurationSpace:
        """One conditional ConfigSpace with a root ``algorithm``, as SMAC takes it: parameters are "name:parameter"."""
        whole = cs.ConfigurationSpace()
        root = cs.CategoricalHyperparameter("algorithm", list(self))
        whole.add(root)
        for name, one in self.items():
            parent = {"parent": root, "value": name}
            whole.add_configuration_space(name, copy.deepcopy(one.space), parent_hyperparameter=parent)
        return whole

    def split(self, values: Mapping[str, Any]) -> tuple[str, Config]:
        """The algorithm and the configuration of a configuration of :meth:`joint`, values as the space knows them."""
        name = str(values["algorithm"])
        space, prefix = self[name], f"{name}:"
        given = {str(k).removeprefix(prefix): v for k, v in values.items() if str(k).startswith(prefix)}
        return name, {n: tidy(space.space[n], given[n]) for n in space.names if n in given}


class UnknownAlgorithm(KeyError, ValueError):
    """The space has no such algorithm."""

    def __init__(self, name: str, known: list[str]):
        super().__init__(name)
        self.message = f"algorithm: got {name!r}; the space has {', '.join(known)}"

    def __str__(self) -> str:
        return self.message


# --- single hyperparameters ------------------------------------------------------------------------------------------


def choices(hp: Any) -> list[Any]:
    """The values of a categorical, ordinal or constant; empty for numeric ones."""
    if isinstance(hp, cs.CategoricalHyperparameter):
        return list(hp.choices)
    if isinstance(hp, cs.OrdinalHyperparameter):
        return list(hp.sequence)
    return [hp.value] if isinstance(hp, cs.Constant) else []


def whole(hp: Any) -> bool:
    """Whether its values are integers on a scale."""
    return isinstance(hp, NumericalHyperparameter) and isinstance(hp.lower, int | np.integer)


def tidy(hp: Any, value: Any) -> Any:
    """A legal value as plain Python: one of the choices itself, an int, a float of six digits inside the bounds."""
    for choice in choices(hp):
        if choice == value or str(choice) == str(value):
            return choice
    if whole(hp):
        return int(min(max(round(float(value)), int(hp.lower)), int(hp.upper)))
    rounded = float(f"{float(value):.{DIGITS}g}")
    return min(max(rounded, float(hp.lower)), float(hp.upper))


def _value(hp: Any, v: float) -> Any:
    if values := choices(hp):
        return values[round(v) if len(values) > 1 else 0]
    return tidy(hp, hp.to_value(min(max(v, 0.0), 1.0)))


def _size(hp: Any) -> float:
    values = choices(hp)
    return len(values) if values else math.inf if hp.lower < hp.upper else 1


def _draw(hp: Any, n: int, rng: np.random.Generator) -> np.ndarray:
    if values := choices(hp):
        return (
            rng.integers(len(values), size=n).astype(float) if len(values) > 1 else np.full(n, hp.to_vector(values[0]))
        )
    return rng.random(n)


def _moved(hp: Any, v: float, rng: np.random.Generator) -> float:
    if values := choices(hp):
        other = int(rng.integers(len(values) - 1))
        return float(other + (other >= v))
    moved = v + STEP * rng.standard_normal()
    moved = abs(moved) % 2  # reflected at the walls
    return float(2 - moved if moved > 1 else moved)


def _kind(hp: Any) -> str:
    if values := choices(hp):
        kind = "ordinal" if isinstance(hp, cs.OrdinalHyperparameter) else "one of"
        return f"{kind} [{', '.join(map(str, values))}]"
    kind = "integer" if whole(hp) else "float"
    return f"{kind} in [{_plain(hp.lower)}, {_plain(hp.upper)}]{', log scale' if getattr(hp, 'log', False) else ''}"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float | np.number) and not isinstance(value, bool) else str(value)
