"""What a counterexample demands of the decision at one input or at two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gnomon.guarantees.tree_repair.encoding import EnsembleEncoding


@dataclass(frozen=True, eq=False)
class Point:
    """The decision at ``x`` must be ``label``."""

    x: Any
    label: Any


@dataclass(frozen=True, eq=False)
class Allowed:
    """The decision at ``x`` must be one of ``labels`` (a forbidden action: all the others)."""

    x: Any
    labels: Sequence[Any]


@dataclass(frozen=True, eq=False)
class Pair:
    """``x`` and ``other`` must get the same decision.

    Attributes
    ----------
    x, other : array_like, shape (features,)
        The two inputs.
    strict : bool
        Whether both decisions must also clear the margin where the two share all their leaves. An exact verifier asks
        for it: a pair that it found on the border of a decision would come back otherwise.
    """

    x: Any
    other: Any
    strict: bool = False


@dataclass(frozen=True, eq=False)
class Close:
    """Every score at ``x`` and ``other`` must be within ``eps`` of each other (a Lipschitz bound)."""

    x: Any
    other: Any
    eps: float


Counterexample = Point | Allowed | Pair | Close


@dataclass(frozen=True)
class Demand:
    """A counterexample in terms of leaves.

    Attributes
    ----------
    kind : {"allowed", "same", "close"}
    leaves : ndarray of int, shape (1 or 2, trees)
        Leaf patterns.
    labels : tuple of int
        Positions of the allowed labels, in order (``allowed`` only).
    eps : float
        Bound of ``close``.
    strict : bool
        See :class:`Pair`.
    """

    kind: str
    leaves: np.ndarray
    labels: tuple[int, ...] = ()
    eps: float = 0.0
    strict: bool = False

    @property
    def key(self) -> tuple[str, bytes, tuple[int, ...]]:
        """Equal for demands that are the same constraint; the order of a pair does not count."""
        return self.kind, b"".join(sorted(row.tobytes() for row in self.leaves)), self.labels


def demands(encoding: EnsembleEncoding, counterexamples: Sequence[Counterexample]) -> list[Demand]:
    """Counterexamples in terms of leaves, checked.

    Raises
    ------
    TypeError
        For something that is no counterexample.
    ValueError
        For inputs of another width, labels that the model does not know, no allowed label, or a negative ``eps``.
    """
    if isinstance(counterexamples, Point | Allowed | Pair | Close):
        raise TypeError(f"counterexamples: got one {type(counterexamples).__name__}; expected a list of them")
    rows: list[Any] = []
    for i, c in enumerate(counterexamples):
        if not isinstance(c, Point | Allowed | Pair | Close):
            raise TypeError(f"counterexamples[{i}]: got {type(c).__name__}; expected Point, Allowed, Pair or Close")
        rows += [c.x, c.other] if isinstance(c, Pair | Close) else [c.x]
    if not rows:
        return []
    widths = {np.shape(r) for r in rows}
    if len(widths) > 1:
        raise ValueError(
            f"counterexamples: inputs of different shapes {sorted(widths, key=str)}; expected one row each"
        )
    patterns = encoding.leaves(encoding.numbers(np.stack([np.asarray(r) for r in rows]), "counterexamples"))
    found, at = [], 0
    for i, c in enumerate(counterexamples):
        name = f"counterexamples[{i}]"
        if isinstance(c, Point | Allowed):
            wanted = [c.label] if isinstance(c, Point) else list(c.labels)
            if not wanted:
                raise ValueError(f"{name}: no label is allowed; expected one or more of {encoding.classes.tolist()}")
            labels = tuple(sorted({int(k) for k in encoding.codes(wanted, name)}))
            found.append(Demand("allowed", patterns[at : at + 1], labels))
            at += 1
        else:
            if isinstance(c, Close) and not (np.isfinite(c.eps) and c.eps >= 0):
                raise ValueError(f"{name}: eps is {c.eps!r}; expected a finite number >= 0")
            kind, eps = ("close", float(c.eps)) if isinstance(c, Close) else ("same", 0.0)
            found.append(Demand(kind, patterns[at : at + 2], eps=eps, strict=isinstance(c, Pair) and c.strict))
            at += 2
    return found


def satisfied(encoding: EnsembleEncoding, model: Any, counterexamples: Sequence[Counterexample],
              slack: float = 1e-6) -> np.ndarray:  # fmt: skip
    """Which counterexamples a model meets, judged by its library's own predictions.

    Parameters
    ----------
    encoding : EnsembleEncoding
        Of the model or of the one it was made from.
    model : estimator or Booster
        What is judged.
    counterexamples : sequence
        See :class:`Point`, :class:`Allowed`, :class:`Pair`, :class:`Close`.
    slack : float
        Absolute rounding allowed to ``Close``.

    Returns
    -------
    ndarray of bool
    """
    if not counterexamples:
        return np.empty(0, dtype=bool)
    first = encoding.numbers(np.stack([np.asarray(c.x) for c in counterexamples]), "counterexamples")
    second = np.stack(
        [np.asarray(c.other if isinstance(c, Pair | Close) else c.x, dtype=float) for c in counterexamples]
    )
    one, two = encoding.predict(model, first), encoding.predict(model, second)
    bounded = any(isinstance(c, Close) for c in counterexamples)
    apart = (
        np.abs(encoding.library.raw(model, first) - encoding.library.raw(model, second)).max(axis=1)
        if bounded
        else one * 0.0
    )
    found = np.empty(len(counterexamples), dtype=bool)
    for i, c in enumerate(counterexamples):
        if isinstance(c, Point):
            found[i] = encoding.classes[one[i]] == c.label
        elif isinstance(c, Allowed):
            found[i] = encoding.classes[one[i]] in list(c.labels)
        else:
            found[i] = one[i] == two[i] if isinstance(c, Pair) else apart[i] <= c.eps + slack
    return found


def components(wanted: Sequence[Demand]) -> list[list[int]]:
    """Groups of demands that leaf patterns tie together: whatever the leaf values, all inputs of one get one decision.

    Inputs with the same leaves have the same scores, and the two of a pair must get the same decision.
    """
    parent: dict[bytes, bytes] = {}

    def root(p: bytes) -> bytes:
        parent.setdefault(p, p)
        while parent[p] != p:
            parent[p] = p = parent[parent[p]]
        return p

    for d in wanted:
        if d.kind == "same":
            parent[root(d.leaves[0].tobytes())] = root(d.leaves[1].tobytes())
    groups: dict[bytes, list[int]] = {}
    for i, d in enumerate(wanted):
        if d.kind != "close":
            groups.setdefault(root(d.leaves[0].tobytes()), []).append(i)
    return list(groups.values())


def agreed(wanted: Sequence[Demand], members: Sequence[int], n_classes: int) -> set[int]:
    """Labels that all demands of a group allow."""
    left = set(range(n_classes))
    for i in members:
        if wanted[i].kind == "allowed":
            left &= set(wanted[i].labels)
    return left


def conflicts(encoding: EnsembleEncoding, wanted: Sequence[Demand]) -> list[list[int]]:
    """Groups of counterexamples that are tied together and ask for decisions that exclude each other (positions)."""
    n = len(encoding.classes)
    return [members for members in components(wanted) if not agreed(wanted, members, n)]
