"""Claims: a quantity and the region it is said to lie in.

A claim is data. What it is judged on, and how, is in :mod:`gnomon.study.judge`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

KINDS = ("always", "rate", "better", "worse", "close", "at_least", "at_most", "between", "slope", "correlates",
         "ordered", "beyond", "estimate")  # fmt: skip
Selection = str | Mapping[str, Any]  # a contender by name, or rows by their columns ({"probe": "verification"})
Bounds = tuple[float, float]


class Common(TypedDict, total=False):
    """What every constructor takes besides its own arguments; see :class:`Claim`."""

    on: Mapping[str, Any] | Callable[[Any], Any] | None
    each: str | Sequence[str]
    when: Claim | Callable[..., Any] | None
    unit: str | Sequence[str] | None
    cluster: str | None
    report: bool
    paper: str
    table: str | None
    id: str
    text: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Claim:
    """One published statement, ready to be judged. Made by the constructors of this module, not by hand.

    Attributes
    ----------
    kind : str
        The constructor that made it.
    metric : str or None
        The column that is judged. It is looked up in the one table that has it; ``table`` says which if several do.
    a : str, mapping or None
        The contender: a name of the ``contender`` column, or rows by their columns (``{"probe": "verification"}``,
        ``{"contender": "ghosted", "n": 32}``).
    than : tuple of str or mapping
        What it is compared with, in the same terms.
    by, factor, within : float
        The margin of a comparison.
    bounds : (float, float)
        The region of a level, rate, slope, correlation or estimate; infinite where open.
    along : str, tuple or None
        What a slope, an order or a correlation runs along.
    share : float
        Of ``always`` the share of rows, of ``beyond`` the share of the null.
    test : str, callable or None
        The event, test or statistic of ``rate``, ``always`` and ``estimate``.
    on : mapping or callable, optional
        Which rows: axis -> value or list of values (any column of the table, ``contender`` too), or a callable that
        takes the rows (a DataFrame) and gives a mask. A listed value that was not run makes the claim undecided.
    each : sequence of str
        Columns: a verdict for each combination of their values; the claim is their conjunction. Cells that ``each``
        does not tell apart are averaged within each unit.
    when : Claim or callable, optional
        What must hold for the claim to be measurable, else it is undecided: another claim, or a callable that takes
        the tables and gives a bool or ``(bool, reason)``.
    unit, cluster : str or sequence of str, optional
        What this claim generalises over, and what its units come in, where it differs from its experiment.
    report : bool
        Effect and interval, no verdict.
    paper : str
        What the paper says, with where it says it.
    table : str, optional
        An experiment's class name or a derived table.
    id, text : str
        Name and sentence; by default made from the definition. Ids are unique within a study.
    """

    kind: str
    metric: str | None = None
    a: Selection | None = None
    than: tuple[Selection, ...] = ()
    by: float = 0.0
    factor: float = 1.0
    within: float = 0.0
    bounds: Bounds = (-math.inf, math.inf)
    along: Any = None
    over: str | None = None
    towards: str = "better"
    share: float = 1.0
    test: str | Callable[..., Any] | None = None
    on: Mapping[str, Any] | Callable[[Any], Any] | None = None
    each: str | Sequence[str] = ()
    when: Claim | Callable[..., Any] | None = None
    unit: str | Sequence[str] | None = None
    cluster: str | None = None
    report: bool = False
    paper: str = ""
    table: str | None = None
    id: str = ""
    text: str = ""

    def __post_init__(self) -> None:
        keep = functools.partial(object.__setattr__, self)
        keep("each", _columns("each", self.each))
        keep("unit", None if self.unit is None else _columns("unit", self.unit))
        _expect(self.unit is None or self.unit, "unit", self.unit, "a column or several")
        _expect(self.on is None or callable(self.on) or _is_selection(self.on, several=True), "on", self.on,
                "a mapping from columns to a value or a list of values, or a callable on the rows")  # fmt: skip
        _expect(self.when is None or isinstance(self.when, Claim) or callable(self.when), "when", self.when,
                "a claim or a callable on the tables")  # fmt: skip
        for name in ("cluster", "table"):
            value = getattr(self, name)
            _expect(value is None or (isinstance(value, str) and value), name, value, "a name")
        _expect(isinstance(self.report, bool), "report", self.report, "True or False")
        for name in ("paper", "id", "text"):
            _expect(isinstance(getattr(self, name), str), name, getattr(self, name), "a string")
        low, high = self.bounds
        open_ended = low == -math.inf and high == math.inf
        needs = self.kind in ("rate", "slope", "correlates", "estimate", "at_least", "at_most", "between")
        _expect(not (needs and open_ended) or self.report, "bounds", self.bounds,
                "at_least=, at_most= or between= (or report=True)")  # fmt: skip
        keep("text", self.text or _sentence(self))
        keep("id", self.id or _slug(self))

    @property
    def digest(self) -> str:
        """Short SHA-256 of the definition; ``text``, ``paper`` and ``id`` are no part of it."""
        body = {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name not in ("text", "paper", "id")}
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


# --- the constructors ------------------------------------------------------------------------------------------------


def always(test: str | Callable[..., Any], *, share: float = 1.0, **common: Unpack[Common]) -> Claim:
    """At least ``share`` of the rows pass: identities, theorems, "in every seed", "in 9 of 10 cells".

    A count over the rows at hand with no interval: it speaks of these rows and no others, at every scale.

    Parameters
    ----------
    test : str or callable
        A column of 0/1, or a callable on the rows (a DataFrame) that gives a boolean Series, or a Series of numbers
        that are >= 0 where the test passes (then the worst row is shown, not the first).
    share : float
        In (0, 1].
    **common
        See :class:`Claim`.
    """
    _test("test", test)
    _expect(_number(share) and 0 < share <= 1, "share", share, "a number in (0, 1]")
    return Claim(kind="always", test=test, metric=test if isinstance(test, str) else None, share=float(share), **common)


def rate(event: str | Callable[..., Any], a: Selection | None = None, *, at_most: float | None = None,
         at_least: float | None = None, **common: Unpack[Common]) -> Claim:  # fmt: skip
    """How often an event happens: error, coverage, size, power, false alarms, a share of units.

    Clopper-Pearson over the units; where items are crossed with seeds, with the effective number of units.

    Parameters
    ----------
    event : str or callable
        A column of 0/1, or a callable on the rows (a DataFrame) that gives a boolean Series.
    a : str or mapping, optional
        The contender; not needed where the table has one.
    at_most, at_least : float
        In [0, 1].
    **common
        See :class:`Claim`.
    """
    _test("event", event)
    for name, value in (("at_most", at_most), ("at_least", at_least)):
        _expect(value is None or (_number(value) and 0 <= value <= 1), name, value, "a rate in [0, 1]")
    return Claim(kind="rate", test=event, metric=event if isinstance(event, str) else None,
                 a=_one("a", a, optional=True), bounds=_bounds(at_least, at_most, None), **common)  # fmt: skip


def better(metric: str, a: Selection, than: Selection | Sequence[Selection], *, by: float = 0.0, factor: float = 1.0,
           **common: Unpack[Common]) -> Claim:  # fmt: skip
    """``a`` is better than each of ``than``, in the metric's direction, judged on paired numbers.

    Parameters
    ----------
    metric : str
        A metric of the experiment, or a column of a derived table (then larger is better unless an experiment
        declares a metric of this name).
    a : str or mapping
        The contender.
    than : str, mapping or list of these
        What it is compared with; the claim is the conjunction.
    by : float
        The margin in the metric's own unit: the difference exceeds ``by``. Negative: "not worse by more than".
        Not for metrics declared ``log``: use ``factor``.
    factor : float
        Three times better is ``factor=3``: of a ``lower`` metric the paired b - 3a is above 0, of a ``higher`` one
        a - 3b, of a ``log`` one the ratio exceeds 3. A factor below 1 is a relative margin (1 / 1.02: at most 2 %
        worse).
    **common
        See :class:`Claim`.
    """
    return _comparison("better", metric, a, than, by, factor, common)


def worse(metric: str, a: Selection, than: Selection | Sequence[Selection], *, by: float = 0.0, factor: float = 1.0,
          **common: Unpack[Common]) -> Claim:  # fmt: skip
    """``a`` is worse than each of ``than``: :func:`better` with the sides exchanged."""
    return _comparison("worse", metric, a, than, by, factor, common)


def close(metric: str, a: Selection, b: Selection | Sequence[Selection], *, within: float,
          **common: Unpack[Common]) -> Claim:  # fmt: skip
    """``a`` and ``b`` do not differ by more than ``within``: ties, invariances under noise.

    Parameters
    ----------
    metric : str
        See :func:`better`.
    a, b : str or mapping
        The two sides; several ``b`` are a conjunction.
    within : float
        Positive, in the metric's own unit. For a metric declared ``log`` it is relative: 0.1 means a ratio between
        1 / 1.1 and 1.1.
    **common
        See :class:`Claim`.
    """
    _expect(_number(within) and within > 0, "within", within, "a positive number")
    return Claim(kind="close", metric=_column("metric", metric), a=_one("a", a), than=_several("b", b),
                 within=float(within), **common)  # fmt: skip


def at_least(metric: str, a: Selection | None, bound: float, **common: Unpack[Common]) -> Claim:
    """The mean of one contender is at least ``bound`` (a ``log`` metric: its geometric mean)."""
    return _level("at_least", metric, a, (_bound("bound", bound), math.inf), common)


def at_most(metric: str, a: Selection | None, bound: float, **common: Unpack[Common]) -> Claim:
    """The mean of one contender is at most ``bound`` (a ``log`` metric: its geometric mean)."""
    return _level("at_most", metric, a, (-math.inf, _bound("bound", bound)), common)


def between(metric: str, a: Selection | None, low: float, high: float, **common: Unpack[Common]) -> Claim:
    """The mean of one contender lies in [``low``, ``high``] (a ``log`` metric: its geometric mean)."""
    return _level("between", metric, a, _bounds(None, None, (low, high)), common)


def slope(metric: str, a: Selection | None = None, *, along: str, between: Bounds | None = None,
          at_least: float | None = None, at_most: float | None = None, **common: Unpack[Common]) -> Claim:  # fmt: skip
    """The exponent of a power law: a log-log least-squares fit within each unit, and the mean of the slopes.

    Parameters
    ----------
    metric, along : str
        Columns of positive numbers: the ordinate and the abscissa.
    a : str or mapping, optional
        The contender; not needed where the table has one.
    between, at_least, at_most
        Where the slope lies.
    **common
        See :class:`Claim`.
    """
    return Claim(kind="slope", metric=_column("metric", metric), a=_one("a", a, optional=True),
                 along=_column("along", along), bounds=_bounds(at_least, at_most, between), **common)  # fmt: skip


def correlates(x: str, y: str, a: Selection | None = None, *, at_least: float | None = None,
               at_most: float | None = None, over: str | None = None, **common: Unpack[Common]) -> Claim:  # fmt: skip
    """The Spearman correlation of two columns, on Fisher's z.

    Parameters
    ----------
    x, y : str
        Columns of one table.
    a : str or mapping, optional
        The contender.
    at_least, at_most : float
        In [-1, 1].
    over : str, optional
        A column whose values are the points of one single correlation, each averaged over all else: it generalises
        over these ("a correlation over 14 graphs") with the Bonett-Wright error, from 10 points on. By default the
        correlation is taken over the rows within each unit and generalises over units; where each unit has but one
        row, over the units.
    **common
        See :class:`Claim`.
    """
    for name, value in (("at_least", at_least), ("at_most", at_most)):
        _expect(value is None or (_number(value) and -1 <= value <= 1), name, value, "a correlation in [-1, 1]")
    return Claim(kind="correlates", metric=_column("x", x), along=_column("y", y), a=_one("a", a, optional=True),
                 over=None if over is None else _column("over", over),
                 bounds=_bounds(at_least, at_most, None), **common)  # fmt: skip


def ordered(metric: str, a: Selection | None = None, *, along: str | Sequence[Selection], slack: float = 0.0,
            towards: Literal["better", "worse"] = "better", **common: Unpack[Common]) -> Claim:  # fmt: skip
    """Monotone in a sweep or in a list of contenders: each next is no worse than the one before.

    Parameters
    ----------
    metric : str
        See :func:`better`; of a column that no experiment declares, larger counts as better.
    a : str or mapping, optional
        The contender; not needed where the table has one or where ``along`` lists contenders.
    along : str or list
        A column (its values in ascending order), or a list of contenders or of rows by their columns.
    slack : float
        How much a neighbour may fall short by, in the metric's unit (of a ``log`` metric relative).
    towards : {"better", "worse"}
        Whether the metric gets better or worse along the way.
    **common
        See :class:`Claim`.
    """
    _expect(_number(slack) and slack >= 0, "slack", slack, "a number >= 0")
    _expect(towards in ("better", "worse"), "towards", towards, "'better' or 'worse'")
    way: Any = along if isinstance(along, str) else _several("along", along)
    _expect(bool(way) and (isinstance(way, str) or len(way) > 1), "along", along, "a column, or two selections or more")
    return Claim(kind="ordered", metric=_column("metric", metric), a=_one("a", a, optional=True), along=way,
                 by=-float(slack), towards=towards, **common)  # fmt: skip


def beyond(metric: str, a: Selection, null: Selection, *, share: float = 0.95, **common: Unpack[Common]) -> Claim:
    """``a`` lies beyond ``share`` of a null: random directions, shuffled labels, permuted layers.

    The Monte Carlo p = (1 + nulls as extreme) / (1 + nulls), one-sided in the metric's direction. The rows of the
    null within a cell and unit are its draws; with several units the mean over units is tested.

    Parameters
    ----------
    metric : str
        See :func:`better`.
    a, null : str or mapping
        The observed rows and those of the null.
    share : float
        In (0, 1).
    **common
        See :class:`Claim`.
    """
    _expect(_number(share) and 0 < share < 1, "share", share, "a number in (0, 1)")
    return Claim(kind="beyond", metric=_column("metric", metric), a=_one("a", a), than=(_one("null", null),),
                 share=float(share), **common)  # fmt: skip


def estimate(column: str | Callable[..., Any], a: Selection | None = None, *, at_least: float | None = None,
             at_most: float | None = None, between: Bounds | None = None,
             **common: Unpack[Common]) -> Claim:  # fmt: skip
    """All else: a gap that grows, hypervolume, a lead, leave-one-out R².

    Parameters
    ----------
    column : str or callable
        A column of a derived table with one number per unit, judged on its mean; or, for a statistic that exists only
        over all the units, a callable on the rows (a DataFrame) that gives a number, judged by the BCa bootstrap of
        the units from 20 units on.
    a : str or mapping, optional
        The contender.
    at_least, at_most, between
        Where it lies.
    **common
        See :class:`Claim`.
    """
    _test("column", column)
    return Claim(kind="estimate", metric=column if isinstance(column, str) else None,
                 test=None if isinstance(column, str) else column, a=_one("a", a, optional=True),
                 bounds=_bounds(at_least, at_most, between), **common)  # fmt: skip


# --- arguments -------------------------------------------------------------------------------------------------------


def _comparison(kind: str, metric: str, a: Selection, than: Selection | Sequence[Selection], by: float, factor: float,
                common: Common) -> Claim:  # fmt: skip
    _expect(_number(by), "by", by, "a finite number")
    _expect(_number(factor) and factor > 0, "factor", factor, "a positive number")
    _expect(by == 0 or factor == 1, "factor", factor, "1 where by is given: a margin is absolute or relative")
    return Claim(kind=kind, metric=_column("metric", metric), a=_one("a", a), than=_several("than", than),
                 by=float(by), factor=float(factor), **common)  # fmt: skip


def _level(kind: str, metric: str, a: Selection | None, bounds: Bounds, common: Common) -> Claim:
    return Claim(kind=kind, metric=_column("metric", metric), a=_one("a", a, optional=True), bounds=bounds, **common)


def _expect(ok: Any, name: str, value: Any, expected: str) -> None:
    if not ok:
        raise ValueError(f"{name} {value!r}: expected {expected}")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _column(name: str, value: Any) -> str:
    _expect(isinstance(value, str) and value, name, value, "the name of a column")
    return str(value)


def _columns(name: str, value: str | Sequence[str]) -> tuple[str, ...]:
    several = (value,) if isinstance(value, str) else tuple(value)
    return tuple(_column(name, v) for v in several)


def _test(name: str, value: Any) -> None:
    _expect(callable(value) or (isinstance(value, str) and value), name, value, "a column or a callable on the rows")


def _is_selection(value: Any, several: bool = False) -> bool:
    plain = (str, int, float, bool, type(None)) + ((list, tuple) if several else ())
    return (isinstance(value, Mapping) and bool(value)
            and all(isinstance(k, str) and isinstance(v, plain) for k, v in value.items()))  # fmt: skip


def _one(name: str, value: Any, optional: bool = False) -> Any:
    ok = (optional and value is None) or (isinstance(value, str) and value) or _is_selection(value)
    _expect(ok, name, value, "the name of a contender, or a mapping from columns to one value each")
    return value


def _several(name: str, value: Any) -> tuple[Selection, ...]:
    several = (value,) if isinstance(value, str | Mapping) else tuple(value)
    _expect(several, name, value, "one contender or more")
    return tuple(_one(name, v) for v in several)


def _bound(name: str, value: Any) -> float:
    _expect(_number(value), name, value, "a finite number")
    return float(value)


def _bounds(low: Any, high: Any, both: Any) -> Bounds:
    if both is not None:
        _expect(low is None and high is None, "between", both, "either between= or at_least= and at_most=")
        _expect(isinstance(both, tuple | list) and len(both) == 2, "between", both, "a pair (low, high)")
        low, high = both
    bounds = (
        -math.inf if low is None else _bound("at_least", low),
        math.inf if high is None else _bound("at_most", high),
    )
    _expect(bounds[0] <= bounds[1], "between", bounds, "low <= high")
    return bounds


# --- names -----------------------------------------------------------------------------------------------------------


def label(selection: Selection | None) -> str:
    """A contender or selection as a person writes it: ``ghosted``, ``probe=verification``."""
    if selection is None or isinstance(selection, str):
        return selection or ""
    return ", ".join(f"{k}={'|'.join(map(str, v)) if isinstance(v, list | tuple) else v}" for k, v in selection.items())


def _region(claim: Claim) -> str:
    low, high = claim.bounds
    if low == -math.inf:
        return "" if high == math.inf else f"at most {high:g}"
    return f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"


def _what(value: Any) -> str:
    if isinstance(value, str):
        return value
    name = getattr(value, "__name__", "")
    return "" if name == "<lambda>" else name.strip("_").replace("_", " ")


def _sentence(claim: Claim) -> str:
    a, others = label(claim.a), " and ".join(map(label, claim.than))
    metric = claim.metric or _what(claim.test) or "the stated quantity"
    of = f" of {a}" if a else ""
    margin = (
        f" by more than {claim.by:g}"
        if claim.by > 0
        else f", or not by more than {-claim.by:g} short of it,"
        if claim.by
        else ""
    )
    times = f" by a factor of {claim.factor:g}" if claim.factor != 1 else ""
    along = claim.along if isinstance(claim.along, str) else ", ".join(map(label, claim.along or ()))
    body = {
        "always": f"{metric} holds in {'every row' if claim.share == 1 else f'at least {claim.share:.0%} of the rows'}",
        "rate": f"the rate of {metric}{of} is {_region(claim)}",
        "better": f"{a} has better {metric} than {others}{margin}{times}",
        "worse": f"{a} has worse {metric} than {others}{margin}{times}",
        "close": f"{metric} of {a} is within {claim.within:g} of {others}",
        "slope": f"{metric}{of} scales with {along} with an exponent {_region(claim)}",
        "correlates": f"{metric} and {along}{of} correlate {_region(claim)}",
        "ordered": f"{metric}{of} gets no {'worse' if claim.towards == 'better' else 'better'} along {along}"
                   + (f" (slack {-claim.by:g})" if claim.by else ""),
        "beyond": f"{metric} of {a} lies beyond {claim.share:.0%} of {others}",
    }.get(claim.kind, f"{metric}{of} is {_region(claim)}")  # fmt: skip
    where = label(claim.on) if isinstance(claim.on, Mapping) else _what(claim.on) if claim.on else ""
    each = f"for each {' and '.join(claim.each)}" if claim.each else ""
    tail = "; ".join(filter(None, [where, each]))
    return re.sub(r"\s+", " ", f"{body} ({tail})" if tail else body).strip(" ,")


def _slug(claim: Claim) -> str:
    named = claim.metric or _what(claim.test)
    parts = [claim.kind, named or claim.text, label(claim.a)]
    parts += ["than" if claim.than and claim.kind in ("better", "worse") else "", *map(label, claim.than)]
    parts += [claim.along if isinstance(claim.along, str) else " ".join(map(label, claim.along or ()))]
    parts += [label(claim.on) if isinstance(claim.on, Mapping) else _what(claim.on) if claim.on else "", *claim.each]
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(filter(None, parts)).lower()).strip("-.")[:80].rstrip("-.")


# --- the digest ------------------------------------------------------------------------------------------------------


def _plain(value: Any, seen: tuple[Any, ...] = ()) -> Any:
    """A value of a claim's definition as JSON; callables by their source and by what they refer to."""
    if isinstance(value, Claim):
        return value.digest
    if isinstance(value, Mapping):
        return {str(k): _plain(v, seen) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v, seen) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, functools.partial):
        return [_plain(value.func, seen), _plain(value.args, seen), _plain(value.keywords, seen)]
    if inspect.isfunction(value):
        return _function(value, seen)
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name else f"{type(value).__module__}.{type(value).__qualname__}"


def _function(f: Any, seen: tuple[Any, ...]) -> Any:
    """Source, defaults, closure, and the constants and functions of its own module that it names (a bound in a helper
    or in a constant is as much part of the claim as one in the lambda)."""
    if f in seen:
        return f.__qualname__
    node = _node(f)
    if node is None:  # typed in at a prompt
        code = f.__code__
        return [code.co_code.hex(), [repr(c) for c in code.co_consts if not inspect.iscode(c)], list(code.co_names)]
    free = {n: c.cell_contents for n, c in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)}
    named = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & set(f.__globals__)
    used = {n: v for n in named if _belongs(v := f.__globals__[n], f.__module__)}
    inside = (*seen, f)
    return [ast.unparse(node), _plain(f.__defaults__, inside), _plain(f.__kwdefaults__, inside), _plain(free, inside),
            _plain(dict(sorted(used.items())), inside)]  # fmt: skip


def _belongs(value: Any, module: str) -> bool:
    return isinstance(value, str | int | float | tuple | list | dict) or (
        inspect.isfunction(value) and value.__module__ == module
    )


@functools.lru_cache(maxsize=64)
def _tree(file: str, mtime: float) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"))


def _node(f: Any) -> ast.AST | None:
    """The function's own node: ``inspect.getsource`` gives the whole line of a lambda, with its neighbours."""
    code, file = f.__code__, Path(f.__code__.co_filename)
    if not file.is_file():
        return None
    spans = [p for p in code.co_positions() if None not in p and p[:1] + p[2:3] != p[1:2] + p[3:]]
    found = []
    for node in ast.walk(_tree(str(file), file.stat().st_mtime)):
        if isinstance(node, ast.FunctionDef) and node.name == f.__name__:
            if code.co_firstlineno in (node.lineno, *(d.lineno for d in node.decorator_list)):
                return node
        elif isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            start, end = (node.body.lineno, node.body.col_offset), (node.body.end_lineno, node.body.end_col_offset)
            if spans and all(start <= (p[0], p[2]) and (p[1], p[3]) <= end for p in spans):
                found.append(node)
    return min(found, key=lambda n: len(ast.unparse(n)), default=None)  # the inner one of two that hold the code
