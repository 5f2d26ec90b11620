"""Selective Tuning Memory: of all trials, the few that say most about how to refine one node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gnomon.decisions.lb_mcts.space import AlgorithmSpace, Config
from gnomon.decisions.lb_mcts.tree import Trial

KINDS = ("selective", "no_path", "full")


@dataclass(frozen=True)
class Entry:
    """One line of the memory: why it is there, the trial, and how it differs from the one before it on the path."""

    kind: str  # path, best, worst, near, recent, reflection
    trial: Trial
    text: str


@dataclass
class Memory:
    """The entries, at most B, and in which direction each parameter moved in the last step that improved.

    Attributes
    ----------
    entries : list of Entry
        The path in order from the algorithm down, the best, the worst, the nearest siblings, reflections.
    direction : dict of str to int
        +1 or -1 in the unit interval, for the numeric parameters that the last improving step of ``path`` (or of the recent trials)
        changed.
    """

    entries: list[Entry] = field(default_factory=list)
    direction: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        return [f"[{e.kind}] {e.text}" for e in self.entries]


def remember(space: AlgorithmSpace, path: Sequence[Trial], trials: Sequence[Trial], siblings: Sequence[Trial],
             score: Callable[[Trial], float], kind: str = "selective", size: int = 12,
             counts: tuple[int, int, int, int] = (3, 2, 2, 3)) -> Memory:  # fmt: skip
    """The memory for the last trial of ``path`` (an empty path: for the algorithm itself).

    Parameters
    ----------
    space : AlgorithmSpace
        Of the algorithm.
    path : sequence of Trial
        From the algorithm down to the node, in order.
    trials : sequence of Trial
        All told trials of the algorithm, in order of asking.
    siblings : sequence of Trial
        Children of the node's parent (of the algorithm, where the path is empty).
    score : callable
        The current score of a trial in [0, 1].
    kind : {"selective", "no_path", "full"}
        ``"full"``: the last ``size`` trials, whatever their place in the tree; ``"no_path"``: without the path.
    size : int
        B, the most entries.
    counts : four int
        Best, worst or failed, nearest siblings, reflections.

    Notes
    -----
    Ties are broken by the canonical key, so that the memory does not depend on the order in which equal trials came; only the
    recent trials of ``"full"`` do, by their nature.
    """
    if kind == "full":
        recent = list(trials)[-size:]
        return Memory([_entry("recent", t, None, score) for t in recent], direction(space, recent))
    shown = list(path) if kind == "selective" else []
    entries = [_entry("path", t, shown[i - 1] if i else None, score) for i, t in enumerate(shown)]
    seen = {t.key for t in shown}
    best, worst, near, reflections = counts

    def take(found: Sequence[Trial], n: int, name: str) -> None:
        for t in [t for t in found if t.key not in seen][:n]:
            seen.add(t.key)
            entries.append(_entry(name, t, None, score))

    good = sorted((t for t in trials if t.ok), key=lambda t: (t.loss, t.key))
    take(good, best, "best")
    take(sorted(trials, key=lambda t: (t.ok, -t.loss if t.ok else 0.0, t.key)), worst, "worst")
    if path:
        others = sorted((t for t in siblings if t.key not in seen), key=lambda t: t.key)
        if others:
            far = space.distances(path[-1].vector, np.array([t.vector for t in others]))
            take([others[i] for i in np.argsort(far.round(12), kind="stable")], near, "near")
    entries = entries[:size]
    told = [t for t in shown if t.reflection][-reflections:]
    room = size - len(entries)
    entries += [Entry("reflection", t, t.reflection) for t in (told[-room:] if room > 0 else [])]
    return Memory(entries, direction(space, shown))


def direction(space: AlgorithmSpace, steps: Sequence[Trial]) -> dict[str, int]:
    """Which way each numeric parameter moved in the last step that lowered the loss."""
    for before, after in zip(steps[-2::-1], steps[:0:-1], strict=True):
        if before.ok and after.ok and after.loss < before.loss:
            moves = {}
            for j, hp in enumerate(space.hyperparameters):
                gap = after.vector[j] - before.vector[j]
                if not math.isnan(gap) and gap != 0 and hasattr(hp, "lower"):
                    moves[hp.name] = int(math.copysign(1, gap))
            return moves
    return {}


def delta(before: Config, after: Config) -> str:
    """What changed: "C 1 -> 10, kernel rbf -> linear"."""
    names = [n for n in after if after[n] != before.get(n)] + [n for n in before if n not in after]
    return ", ".join(f"{n} {_short(before.get(n, 'off'))} -> {_short(after.get(n, 'off'))}" for n in names) or "nothing"


def told(config: Config) -> str:
    return ", ".join(f"{k}={_short(v)}" for k, v in config.items())


def _entry(kind: str, trial: Trial, before: Trial | None, score: Callable[[Trial], float]) -> Entry:
    result = f"score {score(trial):.3f}" if trial.ok else "failed"
    text = f"{told(trial.config)}: {result}"
    if before is not None:
        gain = (
            f"{before.loss - trial.loss:+.3g}" if before.ok and trial.ok else "failed" if not trial.ok else "works now"
        )
        text += f" (step {delta(before.config, trial.config)}: {gain})"
    return Entry(kind, trial, text)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
