"""TG-ITE: a tree finds a candidate, fresh duels verify it, and it then stays in every duel."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from gnomon.decisions.dueling import book, phases
from gnomon.decisions.dueling.streams import generator

if TYPE_CHECKING:
    import pandas as pd

Objective = Literal["bai", "weak", "strong", "joint"]
OBJECTIVES = ("bai", "weak", "strong", "joint")
REGRETS = ("gap", "binary")
FORMAT = "gnomon dueling state 1"
ARRAYS = ("arms", "order", "trace", "pairs", "wins")


class TGITE:
    """Tree-guided identify-then-exploit: the best of N arms when all one can ask is "which of these two?".

    An arm that beats every other one more often than not (a Condorcet winner) is assumed, nothing else: the others may beat
    each other in circles. Ask for a pair, tell who won, until ``done``:

    >>> alg = TGITE(n_arms=20, random_state=0)
    >>> while not alg.done:
    ...     i, j = alg.ask()
    ...     alg.tell(min(i, j))  # a judge who always prefers the lower number
    >>> alg.best_, alg.confidence_
    (0, 0.95)

    Parameters
    ----------
    n_arms : int
        N, 1 or more. Arms are 0..N-1.
    objective : {"bai", "weak", "strong", "joint"}
        ``bai``: name the best arm, wrong with probability ``delta`` at most, in few duels. ``weak``: never end; keep the best
        arm in (almost) every pair shown. ``strong``: never end; show the best arm beside itself, but for ever rarer checks.
        ``joint``: as ``bai``, then on as ``weak``.
    delta : float
        Error of ``bai`` and ``joint``, in (0, 0.5).
    warm_delta : float or None
        Error of the identification that ``weak`` starts with, in (0, 0.5). None: from the tree alone (an ablation; its regret
        is not linear in N).
    replace : bool
        Whether an arm that beats the candidate in a screen is screened next, before a new tree.
    regret : {"gap", "binary"}
        What :func:`simulate` counts: gaps to the best arm (weak: the smaller of the two, strong: their mean), or 1 whenever the
        best arm is not in the pair (weak) or not both of it (strong). It changes no decision.
    max_duels : int or None
        Stop after so many duels; ``best_`` may then be None.
    random_state : int, numpy.random.Generator, SeedSequence or None
        Draws the orders in which arms meet, and the coins at ties.

    Attributes
    ----------
    done : bool
        Whether there is nothing more to ask.
    best_ : int or None
        ``bai``, ``joint`` and ``weak``: the identified arm, or what replaced it since; None before. ``strong``: the arm of the
        latest round in which every other arm was cleared.
    confidence_ : float or None
        1 - error with which ``best_`` was identified; None where nothing is promised (``strong``, ``warm_delta=None``).
    incumbent_ : int
        The candidate at work; of the first tree, until it ends, -1.
    n_duels_, identified_at_ : int, int or None
        Duels so far, and when ``best_`` was first named.
    phase_ : tuple of str and int
        The stage ("tree", "screen", "pass", "round", "exploit", "finished") and the number of its phase, pass or round.
    trace_ : pandas.DataFrame
        One row for each meeting of at least one duel, in order: stage, phase, i, j, wins, losses (of i), end ("cleared",
        "beaten", "capped", or "open" for that at hand).

    Raises
    ------
    ValueError, TypeError
        For parameters out of range.

    Notes
    -----
    Wang and Ding, "Tree-Guided Identify-Then-Exploit", arXiv 2606.01799; tests, constants and caps are this implementation's
    (see the study). Memory grows with the pairs that met, not with N^2.
    """

    def __init__(
        self,
        n_arms: int,
        objective: Objective = "bai",
        delta: float = 0.05,
        warm_delta: float | None = 0.05,
        replace: bool = True,
        regret: Literal["gap", "binary"] = "gap",
        max_duels: int | None = None,
        random_state: Any = None,
    ):
        self.n_arms = _whole("n_arms", n_arms)
        self.objective, self.regret = _one_of("objective", objective, OBJECTIVES), _one_of("regret", regret, REGRETS)
        self.delta = _error("delta", delta)
        self.warm_delta = None if warm_delta is None else _error("warm_delta", warm_delta)
        if not isinstance(replace, bool | np.bool_):
            raise TypeError(f"replace: got {replace!r}; expected True or False")
        self.replace = bool(replace)
        self.max_duels = None if max_duels is None else _whole("max_duels", max_duels)
        self.random_state = random_state
        self._rng = generator(random_state)
        self._arms = np.arange(self.n_arms)
        self._order = self._arms.copy()
        self._trace = np.zeros((64, len(phases.TRACE)), np.int32)
        self._keys, self._wins = book.make()
        self._state = np.zeros(1, phases.STATE)
        self._asked = self._begun = self._warned = False
        for name, value in self._rules().items():
            self._state[name] = value

    def _rules(self) -> dict[str, Any]:
        """What the record of the run is told at its start."""
        warm = self.objective in ("bai", "joint") or (self.objective == "weak" and self.warm_delta is not None)
        then = {"bai": phases.FINISHED, "strong": phases.ROUND}.get(self.objective, phases.PASS)
        return {
            "n": self.n_arms, "warm": warm, "then": then, "replace": self.replace, "reuse": 1,
            "delta": (self.warm_delta or self.delta) if self.objective == "weak" else self.delta,
            "max_duels": phases.FOREVER if self.max_duels is None else self.max_duels,
            "incumbent": -1, "answer": -1, "answered_at": -1, "i": -1, "j": -1,
        }  # fmt: skip

    # --- ask and tell ---

    def ask(self) -> tuple[int, int]:
        """The pair to compare next. Asked again before :meth:`tell`, it is the same pair.

        With ``objective="strong"`` the pair may be one arm twice: show that arm, and tell its number.

        Raises
        ------
        RuntimeError
            When ``done``.
        """
        self._begin()
        if self.done:
            raise RuntimeError(f"ask: nothing is left to ask after {self.n_duels_} duels (done is True)")
        self._asked = True
        return int(self._state["i"][0]), int(self._state["j"][0])

    def tell(self, winner: int) -> None:
        """Who won the pair that was asked for.

        Raises
        ------
        RuntimeError
            When no pair was asked for.
        ValueError
            When ``winner`` is not one of the pair.
        """
        if not self._asked:
            raise RuntimeError("tell: no pair was asked for; call ask() first")
        i, j = int(self._state["i"][0]), int(self._state["j"][0])
        if isinstance(winner, bool) or winner not in (i, j):
            raise ValueError(f"winner: got {winner!r}; expected one of the pair ({i}, {j})")
        self._asked = False
        if not phases.tell(self._state, bool(winner == i), *self._arrays()):
            self._go_on()
        self._warn()

    def allow(self, max_duels: int | None) -> None:
        """Change ``max_duels``; a run that had stopped for want of duels alone goes on."""
        self._begin()
        self.max_duels = None if max_duels is None else _whole("max_duels", max_duels)
        self._state["max_duels"] = most = phases.FOREVER if self.max_duels is None else self.max_duels
        if self._state["stage"][0] != phases.FINISHED:
            self._state["done"], self._warned = self.n_duels_ >= most, False
            self._asked = self._asked and not self.done

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            phases.begin(self._state, self._arms, self._order, self._keys, self._wins, self._rng)

    def _arrays(self) -> tuple[Any, ...]:
        return self._arms, self._order, self._keys, self._wins, self._trace, self._rng

    def _go_on(self) -> None:
        """Make room, and move to the next pair."""
        self._grow()
        while not phases.forward(self._state, *self._arrays()):
            self._grow()

    def _grow(self) -> None:
        if 2 * (int(self._state["pairs"][0]) + 1) > self._keys.size:
            self._keys, self._wins = book.grow(self._keys, self._wins)
        if int(self._state["rows"][0]) == len(self._trace):
            self._trace = np.concatenate([self._trace, np.zeros_like(self._trace)])

    def _warn(self) -> None:
        if self.done and self.best_ is None and not self._warned:
            from sklearn.exceptions import ConvergenceWarning

            self._warned = True
            warnings.warn(
                f"no arm was identified in max_duels = {self.max_duels} duels; incumbent_ is the candidate at work",
                ConvergenceWarning,
                stacklevel=3,
            )

    # --- what is known ---

    @property
    def done(self) -> bool:
        self._begin()
        return bool(self._state["done"][0])

    @property
    def n_duels_(self) -> int:
        return int(self._state["duels"][0])

    @property
    def incumbent_(self) -> int:
        self._begin()
        return int(self._state["incumbent"][0])

    @property
    def best_(self) -> int | None:
        self._begin()
        s = self._state[0]
        if self.objective == "strong":
            return int(s["answer"]) if s["answered_at"] >= 0 else None
        exploiting = s["stage"] == phases.PASS
        return int(s["incumbent"]) if s["answered_at"] >= 0 or exploiting else None

    @property
    def identified_at_(self) -> int | None:
        self._begin()
        at = int(self._state["answered_at"][0])
        return at if at >= 0 else None

    @property
    def confidence_(self) -> float | None:
        if self.identified_at_ is None or self.objective == "strong":
            return None
        return 1.0 if self.n_arms == 1 else 1.0 - float(self._state["delta"][0])

    @property
    def phase_(self) -> tuple[str, int]:
        self._begin()
        return phases.STAGES[self._state["stage"][0]], int(self._state["phase"][0])

    def _meetings(self) -> np.ndarray:
        """The trace, with the meeting at hand, as integers."""
        s = self._state[0]
        rows = self._trace[: s["rows"]]
        if s["met"] == 0 or (s["done"] and s["stage"] == phases.FINISHED):
            return rows
        wins, losses = s["wins"] - s["wins_before"], s["losses"] - s["losses_before"]
        now = (s["stage"], s["phase"], s["i"], s["j"], wins if s["i"] != s["j"] else s["met"], losses, phases.OPEN)
        return np.vstack([rows, np.array([now], np.int32)])

    @property
    def trace_(self) -> pd.DataFrame:
        import pandas as pd

        found = pd.DataFrame(self._meetings().astype(np.int64), columns=list(phases.TRACE))
        found["stage"] = np.array(phases.STAGES, object)[found["stage"]]
        found["end"] = np.array(phases.ENDS, object)[found["end"]]
        return found

    def record_of(self, i: int, j: int) -> tuple[int, int]:
        """Wins of i over j and of j over i so far."""
        for name, arm in (("i", i), ("j", j)):
            if isinstance(arm, bool) or not isinstance(arm, int | np.integer) or not 0 <= arm < self.n_arms:
                raise ValueError(f"{name}: got {arm!r}; expected an arm in 0..{self.n_arms - 1}")
        first, second = (int(c) for c in book.look_up(self._keys, self._wins, self.n_arms, int(i), int(j)))
        s = self._state[0]
        if s["met"] and s["i"] != s["j"] and {i, j} == {int(s["i"]), int(s["j"])} and s["stage"] != phases.FINISHED:
            now = (int(s["wins"] - s["wins_before"]), int(s["losses"] - s["losses_before"]))
            first, second = (a + b for a, b in zip((first, second), now if i == s["i"] else now[::-1], strict=True))
        return first, second

    # --- keeping ---

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain numbers, strings and lists, for JSON: parameters, counts, the meeting at hand, the generator."""
        self._begin()
        pairs, wins = book.entries(self._keys, self._wins, self.n_arms)
        arrays: dict[str, Any] = dict(
            zip(ARRAYS, (self._arms, self._order, self._trace[: self._state["rows"][0]], pairs, wins), strict=True)
        )
        record = {name: self._state[name][0].item() for name in phases.STATE.names or ()}
        for name in ("accept", "reject"):
            record[name] = record[name] if np.isfinite(record[name]) else None  # JSON has no infinity
        return {
            "format": FORMAT,
            "parameters": {name: getattr(self, name) for name in (
                "n_arms", "objective", "delta", "warm_delta", "replace", "regret", "max_duels")},
            "record": record, "asked": self._asked, "warned": self._warned,
            "generator": _plain(self._rng.bit_generator.state),
            **{name: array.tolist() for name, array in arrays.items()},
        }  # fmt: skip

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Self:
        """What :meth:`state_dict` gave, at work again.

        Raises
        ------
        ValueError
            For anything else, damaged states included; the message says what is wrong.
        """
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise ValueError(f"state: expected what state_dict() gives, with format {FORMAT!r}")
        try:
            alg = cls(**state["parameters"])
            kept = state["generator"]
            alg._rng = np.random.Generator(getattr(np.random, _one_of("generator", kept["bit_generator"],
                                                                      ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")))())  # fmt: skip
            alg._rng.bit_generator.state = _arrays_again(kept)
            for name in phases.STATE.names or ():
                value = state["record"][name]
                alg._state[name] = np.inf if value is None else value
            n = alg.n_arms
            alg._arms, alg._order = (np.asarray(state[name], np.int64) for name in ("arms", "order"))
            rows = np.asarray(state["trace"], np.int32).reshape(-1, len(phases.TRACE))
            pairs, wins = (np.asarray(state[name], np.int64).reshape(-1, 2) for name in ("pairs", "wins"))
            alg._trace = np.vstack([rows, np.zeros((max(64, len(rows)), rows.shape[1]), np.int32)])
            alg._keys, alg._wins = book.restore(pairs, wins, n)
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"state: it is damaged ({type(error).__name__}: {error})") from None
        _check_state(alg, len(rows), pairs, wins)
        alg._asked, alg._warned, alg._begun = bool(state.get("asked")), bool(state.get("warned")), True
        return alg

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a ``.json`` or ``.npz`` file, whole or not at all; :meth:`load` reads it. No pickle."""
        path = Path(path)
        if path.suffix not in (".json", ".npz"):
            raise ValueError(f"path: got {str(path)!r}; expected a name that ends in .json or .npz")
        state = self.state_dict()
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=path.name, delete=False) as file:
            if path.suffix == ".json":
                file.write(json.dumps(state).encode())
            else:
                arrays = {name: np.asarray(state.pop(name), np.int64) for name in ARRAYS}
                np.savez_compressed(file, state=np.array(json.dumps(state)), **arrays)  # type: ignore[arg-type]
        os.replace(file.name, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A run that :meth:`save` kept.

        Raises
        ------
        ValueError
            When the file is none of this kind.
        """
        path = Path(path)
        try:
            if path.suffix == ".npz":
                with np.load(path, allow_pickle=False) as held:
                    state = {**json.loads(str(held["state"])), **{name: held[name].tolist() for name in ARRAYS}}
            else:
                state = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise
        except Exception as error:  # zip, JSON, encoding, missing arrays: one answer to all
            raise ValueError(f"path: {path} holds no state of a dueling bandit ({type(error).__name__})") from None
        return cls.from_state_dict(state)


# --- arguments -------------------------------------------------------------------------------------------------------


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}: got {value!r}; expected an integer of 1 or more")
    return int(value)


def _error(name: str, value: Any) -> float:
    ok = isinstance(value, int | float | np.floating) and not isinstance(value, bool) and 0 < value < 0.5
    if not ok:
        raise ValueError(f"{name}: got {value!r}; expected a probability in (0, 0.5)")
    return float(value)


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> Any:
    if value not in known:
        raise ValueError(f"{name}: got {value!r}; expected one of {', '.join(known)}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return {"array": value.tolist(), "dtype": str(value.dtype)} if isinstance(value, np.ndarray) else value


def _arrays_again(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"array", "dtype"}:
            return np.asarray(value["array"], _one_of("dtype", value["dtype"], ("uint32", "uint64")))
        return {k: _arrays_again(v) for k, v in value.items()}
    return value


def _check_state(alg: TGITE, rows: int, pairs: np.ndarray, wins: np.ndarray) -> None:
    """Compiled code checks no index: what comes from a file is checked here."""
    n, s = alg.n_arms, alg._state[0]
    told = alg._rules()
    ok = (
        np.array_equal(np.sort(alg._arms), np.arange(n))
        and alg._order.shape == (n,)
        and bool(((alg._order >= 0) & (alg._order < n)).all())
        and len(pairs) == len(wins) == s["pairs"]
        and rows == s["rows"]
        and bool(((pairs >= 0) & (pairs < n)).all() and (pairs[:, 0] < pairs[:, 1]).all() and (wins >= 0).all())
        and all(s[name] == told[name] for name in ("n", "warm", "then", "replace", "max_duels", "delta"))
        and all(-1 <= s[name] < n for name in ("i", "j", "incumbent", "answer"))
        and (s["done"] or min(s["i"], s["j"]) >= 0)
        and 0 <= s["stage"] <= phases.FINISHED
        and 0 <= s["winners"] <= s["position"] <= n
        and 0 <= s["size"] <= n
        and all(s[name] >= 0 for name in ("phase", "level", "wins", "losses", "met", "cap", "duels"))
        and 0 <= s["wins_before"] <= s["wins"]
        and 0 <= s["losses_before"] <= s["losses"]
    )
    if not ok:
        raise ValueError("state: it is damaged (its numbers contradict each other)")
