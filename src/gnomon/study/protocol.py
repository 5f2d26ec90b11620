"""What a study is: experiments (cells x contenders x seeds), inputs, scales, and claims over their tables.

A study is plain data and a few methods, so that one reads it as the method section of a paper. How it is run is the
runner's business, how it is judged the judge's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure

    from gnomon.study.claims import Claim

SCALES = ("smoke", "laptop", "extended", "paper")


# --- metrics ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """A column of the rows and which way is better.

    Attributes
    ----------
    unit : str
        Physical or information unit for display ("nats", "s", ""); no meaning to the judge.
    sign : int
        +1 when larger is better, -1 when smaller is better.
    log : bool
        Judge on logarithms (errors, times): values must be positive.
    timed : bool
        A time: its experiment runs last and alone, with interleaved repeats.
    """

    unit: str = ""
    sign: int = 1
    log: bool = False
    timed: bool = False


def lower(unit: str = "", *, log: bool = False, timed: bool = False) -> Metric:
    """A metric for which smaller is better."""
    return Metric(unit, -1, log, timed)


def higher(unit: str = "", *, log: bool = False, timed: bool = False) -> Metric:
    """A metric for which larger is better."""
    return Metric(unit, 1, log, timed)


# --- cells -----------------------------------------------------------------------------------------------------------


class Cell(Mapping[str, Any]):
    """One setting of what an experiment sweeps, plus the seed: ``cell.n``, ``cell["n"]``, ``cell.seed``.

    The mapping holds the swept axes only; ``seed`` is an attribute (None where an experiment has no seeds).
    """

    def __init__(self, axes: Mapping[str, Any], seed: int | None = None):
        self._axes = dict(axes)
        self.seed = seed

    def __getitem__(self, key: str) -> Any:
        return self._axes[key]

    def __iter__(self) -> Any:
        return iter(self._axes)

    def __len__(self) -> int:
        return len(self._axes)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_axes"][name]
        except KeyError:
            raise AttributeError(
                f"the cell has no axis {name!r}; it has {sorted(self.__dict__.get('_axes', {}))}"
            ) from None

    def __repr__(self) -> str:
        inside = ", ".join(f"{k}={v}" for k, v in self._axes.items())
        return inside if self.seed is None else f"{inside}{', ' if inside else ''}seed={self.seed}"


def grid(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """The product of the axes, as a list of cells; concatenate two grids with ``+``."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


# --- inputs ----------------------------------------------------------------------------------------------------------


class Options(BaseModel):
    """What a person can set; each field is an option of the command line, checked on the way in."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, protected_namespaces=(), ignored_types=(dict,)
    )


class Inputs(Options):
    """The inputs of a study: fields are options of ``gnomon check`` (and of ``gnomon run`` where it has no own).

    Subclass it inside the study, annotate the fields, and give ``scales``: for each scale the values that differ from
    the defaults. The keys of a scale are field names, and for an experiment's name a dict that may hold ``cells`` (a
    list of cells, or a dict of axis to the values kept), ``contenders`` (names) and ``seeds`` (a number), or ``False``
    to leave the experiment out at that scale.
    """

    scales: ClassVar[dict[str, dict[str, Any]]] = {}
    seeds: int = Field(3, ge=1, description="number of seeds")
    scale: str = Field("laptop", description="smoke, laptop, extended or paper")

    @field_validator("scale")
    @classmethod
    def _known_scale(cls, value: str) -> str:
        if value not in SCALES:
            raise ValueError(f"expected one of {', '.join(SCALES)}")
        return value

    @classmethod
    def at(cls, scale: str = "laptop", **given: Any) -> Inputs:
        """The inputs at a scale; ``given`` wins over the scale's own values."""
        own = {k: v for k, v in cls.scales.get(scale, {}).items() if k in cls.model_fields}
        return cls(**{**own, **given, "scale": scale})


# --- stages ----------------------------------------------------------------------------------------------------------


class View:
    """The declared part of the inputs: shows those names and refuses the others."""

    def __init__(self, values: Mapping[str, Any], fields: Mapping[str, Any]):
        self.__dict__.update(_values=dict(values), _fields=fields)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"the stage reads the input {name!r} but does not declare it") from None


@dataclass(frozen=True)
class StageCall:
    """One stage with the arguments it depends on; ``key`` is what the cache is asked for."""

    experiment: type[Experiment]
    stage: Stage
    inputs: View
    cell: Cell
    seed: int | None

    @property
    def key(self) -> str:
        from gnomon.study.records import content

        # a stage that two experiments inherit is one stage
        owner = next(base for base in self.experiment.__mro__ if self.stage.name in vars(base))
        shown = {k: content(v, self.inputs._fields.get(k)) for k, v in sorted(self.inputs._values.items())}
        return repr((owner.__module__, owner.__qualname__, self.stage.name, self.stage.version,
                     shown, content(dict(self.cell)), self.seed))  # fmt: skip

    def compute(self) -> Any:
        return self.stage.function(self.experiment(), self.inputs, self.cell, self.seed)


class Stage:
    """Descriptor made by :func:`stage`; calling it on an experiment asks the cache first."""

    def __init__(self, function: Callable[..., Any], version: int, inputs: Sequence[str] | None,
                 cell: Sequence[str] | None, seeded: bool):  # fmt: skip
        self.function, self.version, self.inputs, self.cell, self.seeded = function, version, inputs, cell, seeded
        self.name = function.__name__
        self.__doc__ = function.__doc__

    def call(self, experiment: type[Experiment], inputs: Any, cell: Cell, seed: int | None = None) -> StageCall:
        if isinstance(inputs, View):  # called from another stage
            values, fields = inputs._values, inputs._fields
        else:
            values, fields = {n: getattr(inputs, n) for n in type(inputs).model_fields}, type(inputs).model_fields
        names = self.inputs if self.inputs is not None else [n for n in values if n not in ("seeds", "scale")]
        axes = self.cell if self.cell is not None else list(cell)
        seed = (cell.seed if seed is None else seed) if self.seeded else None
        view = View({n: values[n] for n in names}, fields)
        return StageCall(experiment, self, view, Cell({a: cell[a] for a in axes if a in cell}, seed), seed)

    def __get__(self, instance: Experiment | None, owner: type[Experiment]) -> Any:
        if instance is None:
            return self

        def run(inputs: Any, cell: Cell, seed: int | None = None) -> Any:
            from gnomon import cache

            return cache.stage(self.call(owner, inputs, cell, seed))

        return run


def stage(version: int, *, inputs: Sequence[str] | None = None, cell: Sequence[str] | None = None,
          seeded: bool = True) -> Callable[[Callable[..., Any]], Stage]:  # fmt: skip
    """Mark a method ``name(self, inputs, cell, seed)`` as expensive and shared: computed once, kept by content.

    Parameters
    ----------
    version : int
        Part of the key; raise it when the stage's result changes.
    inputs, cell : sequence of str, optional
        The inputs and cell axes it depends on (default: all). Reading another one inside the stage is an error.
    seeded : bool
        False when the result is the same for every seed; the stage then gets ``seed=None``.

    Notes
    -----
    A stage returns arrays, state dicts, tables and plain containers of these, never a live model. It is called as
    ``self.name(inputs, cell)`` from ``prepare`` or from another stage (which must declare what that one needs). The
    runner computes all stages before any record.
    """
    return lambda function: Stage(function, version, inputs, cell, seeded)


# --- experiments and studies -----------------------------------------------------------------------------------------


class Experiment:
    """One table: cells x contenders x seeds, each giving rows.

    Attributes
    ----------
    cells : list of dict
        What is swept (see :func:`grid`).
    contenders : dict of str to object
        Factories by name; the first is the paper's method. ``measure`` receives the factory itself.
    metrics : dict of str to Metric
        Columns of the rows that claims may lean on, with their direction.
    unit : str or tuple of str
        What a claim generalises over: columns of the rows ("seed", or ("seed", "window")).
    cluster : str or None
        What the units come in: averaged to one number each before judging.
    seeds : int or None
        None: as many as the inputs say; 0: no seeds (identities, hand cases); a number: exactly so many.
    repeats : int
        For experiments with timed metrics: interleaved repeats, each stamped with a ``repeat`` column.
    """

    cells: ClassVar[list[dict[str, Any]]] = [{}]
    contenders: ClassVar[Mapping[str, Any]] = {}
    metrics: ClassVar[Mapping[str, Metric]] = {}
    unit: ClassVar[str | tuple[str, ...]] = "seed"
    cluster: ClassVar[str | None] = None
    seeds: ClassVar[int | None] = None
    repeats: ClassVar[int] = 7

    @classmethod
    def timed(cls) -> bool:
        return any(m.timed for m in cls.metrics.values())

    @classmethod
    def stages(cls) -> list[Stage]:
        """The stages of this experiment, in the order in which the class defines them."""
        found: dict[str, Stage] = {}
        for base in reversed(cls.__mro__):
            found.update({k: v for k, v in vars(base).items() if isinstance(v, Stage)})
        return list(found.values())

    def includes(self, inputs: Any, cell: Cell, contender: str) -> bool:
        """Whether this contender takes part in this cell (default: always)."""
        return True

    def prepare(self, inputs: Any, cell: Cell, rng: np.random.Generator) -> Any:
        """The problem: the same for every contender of a cell and seed; contenders must not change it."""
        raise NotImplementedError

    def measure(self, problem: Any, contender: Any, rng: np.random.Generator) -> Iterable[Mapping[str, Any]]:
        """Run one contender on the problem; return rows of plain numbers, strings and booleans."""
        raise NotImplementedError


@dataclass
class Outcome:
    """What ``gnomon run`` got: the problem, what each contender made of it, and the options given."""

    inputs: Any
    problem: Any
    results: dict[str, Any]

    @property
    def result(self) -> Any:
        """What the paper's method gave (the first contender)."""
        return next(iter(self.results.values()))


class Study:
    """A system's study; ``Inputs``, ``experiments`` and ``claims`` are its public face.

    A study of one experiment is one class that inherits both ``Study`` and ``Experiment``.

    Attributes
    ----------
    Inputs, Run : type
        Options of ``gnomon check``, and of ``gnomon run`` where using a method needs other options than studying it.
    title, paper, bibtex : str
        What the pages name and how to cite the paper.
    question, method : str
        What is asked, and the method in brief (one paragraph each).
    departures : sequence of str
        Where the system or its study departs from the paper, and why.
    command, example : str
        A ``gnomon run`` line and a Python example, executed in the tests and shown in the docs.
    experiments, claims : sequence
        What is run and what must come out.
    """

    Inputs: ClassVar[type[Inputs]] = Inputs
    Run: ClassVar[type[Options] | None] = None
    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    bibtex: ClassVar[str] = ""
    question: ClassVar[str] = ""
    method: ClassVar[str] = ""
    departures: ClassVar[Sequence[str]] = ()
    command: ClassVar[str] = ""
    example: ClassVar[str] = ""
    experiments: ClassVar[Sequence[type[Experiment]]] = ()
    claims: ClassVar[Sequence[Claim]] = ()

    @classmethod
    def all_experiments(cls) -> list[type[Experiment]]:
        return list(cls.experiments) or ([cls] if issubclass(cls, Experiment) else [])

    def derive(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Fits, hitting times, areas, frontiers: tables by name, added to those of the experiments. Pure."""
        return {}

    def figure(self, tables: dict[str, pd.DataFrame]) -> Figure | None:
        """The picture a person would rather look at (matplotlib), or None."""
        return None

    # --- gnomon run ---
    def run(self, inputs: Any, beside: bool = False) -> Outcome:
        """Use the method on a person's own input; ``beside`` runs every contender."""
        raise NotImplementedError(f"{type(self).__name__} has no run")

    def present(self, outcome: Outcome) -> Any:
        """What ``gnomon run`` shows: a str, a DataFrame, a dict of these, or a list of them."""
        return outcome.result

    def picture(self, outcome: Outcome) -> Figure | None:
        """What ``gnomon run --figure FILE`` draws."""
        return None

    def save(self, outcome: Outcome, directory: Path) -> None:
        """Write what ``gnomon run --save`` keeps into an empty directory (moved into place when it is complete)."""
        raise NotImplementedError(f"{type(self).__name__} has nothing to save")
