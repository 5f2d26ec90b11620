"""Veritas (Devos, Meert and Davis, ICML 2021) as a back-end for robustness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gnomon.guarantees.tree_repair.properties import Candidate


def addtree(model: Any, encoding: Any) -> Any:
    """The ensemble as Veritas keeps it, from this package's own reading of the trees; one score only.

    Its tests are ``x < split`` in float64, so a split is the next number above the largest that goes left.
    """
    import veritas

    table = encoding.table(model.w)
    made = veritas.AddTree(1, veritas.AddTreeType.REGR)
    number = encoding.library.number
    for tree in encoding.trees():
        target = made.add_tree()

        def grow(node: int, at: Any, tree: Any = tree, target: Any = target) -> None:
            if tree.feature[node] < 0:
                target.set_leaf_value(at, 0, float(table[tree.leaf[node], 0]))
                return
            above = float(np.nextafter(number(tree.threshold[node]), number(np.inf)))
            target.split(at, int(tree.feature[node]), above)
            grow(int(tree.left[node]), target.left(at))
            grow(int(tree.right[node]), target.right(at))

        grow(0, target.root())
    made.set_base_score(0, float(encoding.base[0]))
    return made


def veritas_attack(
    model: Candidate, x: np.ndarray, eps: np.ndarray, label: int, budget: float
) -> tuple[np.ndarray | None, float, bool]:
    """See :meth:`RobustnessVerifier.attack`.

    Raises
    ------
    ModuleNotFoundError
        Where ``dtai-veritas`` is not installed.
    ValueError
        For more than two classes.
    """
    try:
        import veritas
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "verifier='veritas' needs the package dtai-veritas: pip install dtai-veritas", name="veritas"
        ) from None
    encoding = model.encoding
    if encoding.n_outputs != 1:
        raise ValueError(f"verifier='veritas': the model has {len(encoding.classes)} classes; expected two")
    number = encoding.library.number
    low, high = (x - eps).astype(number), (x + eps).astype(number)
    box = [veritas.Interval(float(a), float(np.nextafter(b, number(np.inf)))) for a, b in zip(low, high, strict=True)]
    heuristic = veritas.HeuristicType.MIN_OUTPUT if label == 1 else veritas.HeuristicType.MAX_OUTPUT
    config = veritas.Config(heuristic)
    config.stop_when_optimal = True
    search = config.get_search(addtree(model, encoding), box)
    reason = search.step_for(float(budget), 100)
    optimal = reason == veritas.StopReason.OPTIMAL or search.is_optimal()
    empty = reason == veritas.StopReason.NO_MORE_OPEN
    if search.num_solutions() == 0:
        return None, 0.0, bool(empty or optimal)
    found = np.array(x, dtype=float)
    for f, interval in search.get_solution(0).box().items():
        if not interval.lo <= float(number(found[f])) < interval.hi:
            last = float(np.nextafter(number(interval.hi), number(-np.inf)))
            found[f] = interval.lo if abs(interval.lo - found[f]) < abs(last - found[f]) else last
    found = np.clip(found, x - eps, x + eps)
    size = float(model.scores(found[None])[0, 0]) * (-1.0 if label == 1 else 1.0)
    fine = np.finfo(veritas.FloatT).precision >= np.finfo(number).precision  # else its splits are rounded
    exact = bool(optimal or empty) and fine
    return (found, size, exact) if size >= 0 else (None, 0.0, exact)
