"""Vtrees: binary trees over variables that say how a structured-decomposable circuit splits its scopes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gnomon.architectures.probabilistic_circuits.data import check_symbols

KINDS = ("balanced", "linear", "chow_liu", "random", "pairs")


class Vtree:
    """A binary tree whose leaves are variables, given as nested pairs: ``Vtree(((0, 1), (2, 3)))``.

    Parameters
    ----------
    tree : int, or pair of trees
        A variable, or (left, right). Lists and other vtrees may stand where a pair does.

    Attributes
    ----------
    variables : tuple of int
        Sorted.
    order : tuple of int
        The leaves from left to right.
    nodes : tuple of (int, int, int)
        ``(id, left, right)`` of the inner nodes, children before parents, nodes of equal height together. A leaf's id
        is its position in `variables`; inner nodes are numbered from ``len(variables)`` on, the root last.
    levels : tuple of slice
        The runs of `nodes` of equal height.
    scopes : tuple of frozenset
        The variables under each id.

    Raises
    ------
    ValueError
        When a variable stands on both sides of a split ("not decomposable: variables [...]").
    TypeError
        When a leaf is no integer or a node no pair.
    """

    def __init__(self, tree: Any):
        self.tree = _plain(tree)
        leaves = list(_leaves(self.tree))
        self.order = tuple(leaves)
        self.variables = tuple(sorted(set(leaves)))
        scopes = _scopes(self.tree)
        place = {v: i for i, v in enumerate(self.variables)}
        inner = [(height, position, left, right) for position, (height, left, right) in enumerate(scopes) if height]
        inner.sort(key=lambda n: n[0])  # stable: left to right within a height
        number: dict[int, int] = {}
        for i, (_, position, _, _) in enumerate(inner):
            number[position] = len(place) + i

        def identity(position: int) -> int:
            return number[position] if position in number else place[scopes[position][1]]

        self.nodes = tuple((identity(p), identity(left), identity(right)) for _, p, left, right in inner)
        heights = [n[0] for n in inner]
        starts = [i for i, h in enumerate(heights) if i == 0 or h != heights[i - 1]]
        self.levels = tuple(slice(a, b) for a, b in zip(starts, [*starts[1:], len(inner)], strict=False))

    @cached_property
    def scopes(self) -> tuple[frozenset[int], ...]:
        found = [frozenset([v]) for v in self.variables]
        for _, left, right in self.nodes:
            found.append(found[left] | found[right])
        return tuple(found)

    @cached_property
    def parent(self) -> dict[int, tuple[int, int]]:
        """For each id but the root's: the parent's id, and 0 for a left or 1 for a right child."""
        return {c: (n, side) for n, left, right in self.nodes for side, c in enumerate((left, right))}

    @property
    def depth(self) -> int:
        """Levels of inner nodes."""
        return len(self.levels)

    def cuts(self, matching: Iterable[tuple[int, int]]) -> list[int]:
        """For each inner node below the root, in the order of `nodes`: how many pairs have one end in its scope."""
        pairs = list(matching)
        return [sum((a in self.scopes[n]) != (b in self.scopes[n]) for a, b in pairs) for n, _, _ in self.nodes[:-1]]

    def relabel(self, names: Sequence[int]) -> Vtree:
        """The same tree with ``names[v]`` in the place of variable v."""
        return Vtree(_renamed(self.tree, names))

    def __repr__(self) -> str:
        return f"Vtree({self.tree!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vtree) and self.tree == other.tree

    def __hash__(self) -> int:
        return hash(self.tree)


def vtree(
    kind: str,
    n_variables: int | None = None,
    *,
    variables: Sequence[int] | None = None,
    data: ArrayLike | None = None,
    pairs: Iterable[tuple[int, int]] | None = None,
    random_state: int | np.random.Generator | None = None,
) -> Vtree:
    """Build a vtree.

    Parameters
    ----------
    kind : {"balanced", "linear", "chow_liu", "random", "pairs"}
        ``balanced`` halves the variables in their order. ``linear`` takes one variable off at a time (right-linear):
        a circuit on it is a hidden Markov model. ``chow_liu`` joins variables along the tree of greatest mutual
        information [1]_, strongest edge first. ``random`` is ``balanced`` after a shuffle. ``pairs`` makes each pair
        of a matching siblings, and is balanced above them.
    n_variables : int, optional
        Variables ``0 .. n_variables - 1``.
    variables : sequence of int, optional
        Others, in this order (for ``chow_liu``: the names of the columns of ``data``).
    data : array of int [n, T], optional
        For ``chow_liu``; -1 is missing.
    pairs : iterable of (int, int), optional
        For ``pairs``.
    random_state : int or Generator, optional
        For ``random``.

    References
    ----------
    .. [1] Chow and Liu, "Approximating discrete probability distributions with dependence trees", 1968.
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}: expected one of {', '.join(KINDS)}")
    if kind == "pairs":
        if pairs is None:
            raise ValueError("pairs: needed for kind 'pairs'")
        return Vtree(_halved([(int(a), int(b)) for a, b in pairs]))
    if kind == "chow_liu":
        if data is None:
            raise ValueError("data: needed for kind 'chow_liu' (an array of symbols [n, T])")
        information = mutual_information(data)
        names = list(range(len(information))) if variables is None else list(variables)
        if len(names) != len(information):
            raise ValueError(f"variables: got {len(names)} names for the {len(information)} columns of data")
        return Vtree(_joined(names, tree_edges(information)))
    if variables is None:
        if n_variables is None or int(n_variables) < 1:
            raise ValueError(f"n_variables: got {n_variables!r}; expected a number of at least 1, or variables=")
        variables = range(int(n_variables))
    names = [int(v) for v in variables]
    if not names:
        raise ValueError("variables: got none; expected at least one")
    if kind == "linear":
        tree: Any = names[-1]
        for v in reversed(names[:-1]):
            tree = (v, tree)
        return Vtree(tree)
    if kind == "random":
        np.random.default_rng(random_state).shuffle(names)
    return Vtree(_halved(names))


def mutual_information(data: ArrayLike) -> np.ndarray:
    """Mutual information in nats of every two columns [T, T], from the rows that have both (plug-in estimate)."""
    X = check_symbols(data)
    V = int(X.max(initial=0)) + 1
    seen = (X[..., None] == np.arange(V)).astype(np.float64)  # [n, T, V]; a missing one is all zeros
    n, T, _ = seen.shape
    flat = seen.reshape(n, T * V)
    joint = (flat.T @ flat).reshape(T, V, T, V).transpose(0, 2, 1, 3)
    joint /= np.maximum(joint.sum((2, 3), keepdims=True), 1)
    product = joint.sum(3, keepdims=True) * joint.sum(2, keepdims=True)
    return np.where(
        joint > 0, joint * np.log(np.where(joint > 0, joint, 1) / np.where(product > 0, product, 1)), 0
    ).sum((2, 3))


def tree_edges(information: np.ndarray) -> list[tuple[int, int]]:
    """The edges of the spanning tree of greatest total weight, heaviest first (Kruskal)."""
    T = len(information)
    a, b = np.triu_indices(T, 1)
    group, edges = list(range(T)), []
    for i in np.argsort(-information[a, b], kind="stable"):
        x, y = group[a[i]], group[b[i]]
        if x != y:
            group = [x if g == y else g for g in group]
            edges.append((int(a[i]), int(b[i])))
    return edges


def _joined(names: list[int], edges: list[tuple[int, int]]) -> Any:
    """The order in which the edges join parts, as a tree."""
    part: list[Any] = list(names)
    group = list(range(len(names)))
    for a, b in edges:
        x, y = group[a], group[b]
        part[x] = (part[x], part[y])
        group = [x if g == y else g for g in group]
    return part[group[0]]


def _halved(items: list[Any]) -> Any:
    if len(items) == 1:
        return items[0]
    middle = len(items) // 2
    return (_halved(items[:middle]), _halved(items[middle:]))


# --- nested pairs, without recursion: a linear vtree is as deep as it has variables ---------------------------------


def _postorder(tree: Any) -> Iterator[Any]:
    """Every subtree, children before parents, left before right."""
    stack, out = [tree], []
    while stack:
        node = stack.pop()
        out.append(node)
        if isinstance(node, tuple):
            stack.extend(node)
    return reversed(out)


def _fold(tree: Any, leaf: Any, pair: Any) -> Any:
    done: list[Any] = []
    for node in _postorder(tree):
        if isinstance(node, tuple):
            right, left = done.pop(), done.pop()
            done.append(pair(left, right))
        else:
            done.append(leaf(node))
    return done[0]


def _plain(tree: Any) -> Any:
    """Nested tuples of Python integers."""
    stack: list[tuple[Any, bool]] = [(tree, False)]
    done: list[Any] = []
    while stack:
        node, visited = stack.pop()
        if isinstance(node, Vtree):
            done.append(node.tree)
        elif isinstance(node, int | np.integer) and not isinstance(node, bool):
            if node < 0:
                raise ValueError(f"vtree: variable {node} is negative")
            done.append(int(node))
        elif not isinstance(node, tuple | list) or len(node) != 2:
            raise TypeError(f"vtree: got {node!r}; expected a variable (an int) or a pair of trees")
        elif visited:
            right, left = done.pop(), done.pop()
            done.append((left, right))
        else:
            stack += [(node, True), (node[1], False), (node[0], False)]
    return done[0]


def _leaves(tree: Any) -> Iterator[int]:
    return (node for node in _postorder(tree) if not isinstance(node, tuple))


def _renamed(tree: Any, names: Sequence[int]) -> Any:
    return _fold(tree, lambda v: int(names[v]), lambda a, b: (a, b))


def _scopes(tree: Any) -> list[tuple[int, Any, Any]]:
    """``(height, left, right)`` of each subtree in postorder (children by position); ``(0, variable, None)`` of a leaf."""
    found: list[tuple[int, Any, Any]] = []

    def leaf(v: int) -> tuple[int, frozenset[int]]:
        found.append((0, v, None))
        return len(found) - 1, frozenset([v])

    def pair(left: tuple[int, frozenset[int]], right: tuple[int, frozenset[int]]) -> tuple[int, frozenset[int]]:
        shared = sorted(left[1] & right[1])
        if shared:
            raise ValueError(
                f"not decomposable: variables {shared} are on both sides of a product (the vtree repeats them)"
            )
        found.append((1 + max(found[left[0]][0], found[right[0]][0]), left[0], right[0]))
        return len(found) - 1, left[1] | right[1]

    _fold(tree, leaf, pair)
    return found
