"""What a language model is told: the task, the space, the memory, and the request for one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gnomon.decisions.lb_mcts.memory import Memory, delta, told
from gnomon.decisions.lb_mcts.space import AlgorithmSpace, Config
from gnomon.decisions.lb_mcts.tree import Trial

KEEP = {"reflection": 0, "near": 1, "worst": 2, "best": 3, "recent": 3, "path": 4}  # dropped in this order


def describe(X: Any, y: Any = None, scoring: str = "", name: str = "", task: str = "classification") -> dict[str, Any]:
    """The task card of a table: counts and shares only, never a value of a cell.

    Returns
    -------
    dict
        ``name`` (where given), ``task``, ``rows``, ``features``, ``categorical``, ``missing`` (share), ``classes`` (shares, largest
        first), ``metric``.
    """
    import pandas as pd

    table = pd.DataFrame(X)
    numeric = table.select_dtypes("number").shape[1]
    card: dict[str, Any] = {"name": name} if name else {}
    card |= {"task": task, "rows": len(table), "features": table.shape[1], "categorical": table.shape[1] - numeric,
             "missing": round(float(table.isna().to_numpy().mean()), 4)}  # fmt: skip
    if y is not None and task == "classification":
        counts = np.sort(np.unique(np.asarray(y).astype(str), return_counts=True)[1])[::-1]
        card["classes"] = [round(float(c), 3) for c in counts[:20] / counts.sum()]
    if scoring:
        card["metric"] = scoring
    return card


def proposal(algorithm: str, space: AlgorithmSpace, node: Config | None, memory: Memory, card: Mapping[str, Any], left: int,
             attempt: int = 0, *, most: int = 2000, count: Callable[[str], int] | None = None) -> str:  # fmt: skip
    """The prompt for one configuration, of at most ``most`` tokens: entries of the memory are left out, the path last.

    Parameters
    ----------
    node : dict or None
        The configuration to refine; None: the first ones of the algorithm.
    left : int
        Evaluations left.
    attempt : int
        How many proposals for this trial were there already.
    count : callable, optional
        Tokens of a text; by default a quarter of its characters.
    """
    entries = list(memory.entries)
    while True:
        text = _proposal(algorithm, space, node, Memory(entries), card, left, attempt)
        if not entries or (count or tokens)(text) <= most:
            return text
        rank = min(KEEP.get(e.kind, 0) for e in entries)
        last = max(i for i, e in enumerate(entries) if KEEP.get(e.kind, 0) == rank)
        entries.pop(0 if rank == KEEP["path"] else last)  # of a path the oldest step


def _proposal(algorithm: str, space: AlgorithmSpace, node: Config | None, memory: Memory, card: Mapping[str, Any], left: int,
              attempt: int) -> str:  # fmt: skip
    parts = [
        "You tune a machine-learning algorithm. Scores lie between 0 (poor or failed) and 1 (best so far).",
        "Task: " + ", ".join(f"{k} {v}" for k, v in card.items()) + f", evaluations left {left}.",
        f"Algorithm: {algorithm}. Parameters:",
        *(f"- {line}" for line in space.card()),
    ]
    if memory.entries:
        parts += ["Tried so far:", *(f"- {line}" for line in memory.lines())]
    parts.append(f"Refine this configuration: {told(node)}." if node else "Propose a configuration to begin with.")
    if attempt:
        parts.append("Your last proposal was tried already: propose a different one.")
    parts.append(
        'Answer with one JSON object that holds every active parameter and a one-line "reason", and nothing else.'
    )
    return "\n".join(parts)


def reflection(trial: Trial, before: Trial | None, gain: float | None) -> str:
    """The prompt for a one-line lesson from a trial."""
    step = delta(before.config, trial.config) if before else told(trial.config)
    outcome = f"it failed: {trial.error[:200]}" if not trial.ok else f"the score changed by {gain:+.3f}" if gain is not None else (
        "it is the first of its kind")  # fmt: skip
    return f"Tuning {trial.algorithm}. The change was: {step}. Result: {outcome}. What is the lesson? One sentence."


def lesson(trial: Trial, before: Trial | None, gain: float | None) -> str:
    """The lesson without a language model: what changed and its effect."""
    step = delta(before.config, trial.config) if before else told(trial.config)
    if not trial.ok:
        return f"{step}: failed ({trial.error[:80]})" if trial.error else f"{step}: failed"
    if gain is None:
        return f"{step}: a first value"
    return f"{step}: {'helped' if gain > 0 else 'hurt' if gain < 0 else 'changed nothing'} ({gain:+.3f})"


def tokens(text: str) -> int:
    """Tokens of a text, taken as a quarter of its characters."""
    return -(-len(text) // 4)
