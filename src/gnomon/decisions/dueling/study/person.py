"""``gnomon run``: questions at the terminal, or a simulation on a person's votes."""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from gnomon.datasets import text_file
from gnomon.decisions.dueling.baselines import relative_ucb, winner_stays_weak
from gnomon.decisions.dueling.matrix import PreferenceMatrix
from gnomon.decisions.dueling.method import OBJECTIVES, TGITE
from gnomon.decisions.dueling.simulation import simulate
from gnomon.decisions.dueling.study import drawing
from gnomon.study import Options, Outcome

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FORMAT = "gnomon dueling session 1"
SHOWN = 20


def _file(path: Path) -> Path:
    text_file(path)
    return path.expanduser()


class Run(Options):
    """What a person gives."""

    items: Annotated[Path, AfterValidator(_file)] | None = Field(
        None, description="text file with one item a line: asks which is better"
    )
    votes: Annotated[Path, AfterValidator(_file)] | None = Field(
        None, description="CSV with columns winner, loser: simulates instead"
    )
    objective: Literal["bai", "weak", "strong", "joint"] = Field(
        "bai", description="name the best, keep showing good pairs, or both"
    )
    delta: float = Field(0.05, gt=0, lt=0.5, description="probability of naming a wrong item")
    state: Path | None = Field(None, description="JSON file: answers are kept in it one by one, and taken up from it")
    max_duels: int | None = Field(None, ge=1, description="stop after so many answers")
    horizon: int = Field(100_000, ge=1, description="duels of the simulation")
    random_state: int = Field(0, ge=0, description="seed of the order in which items meet")

    @model_validator(mode="after")
    def _one(self) -> Any:
        if (self.items is None) == (self.votes is None):
            raise ValueError("--items, --votes: expected one of the two")
        if self.votes is not None and self.state is not None:
            raise ValueError("--state: it keeps answers to --items; --votes asks nothing")
        return self

    def bandit(self, n: int, objective: str | None = None) -> TGITE:
        """The bandit that these options ask for."""
        return TGITE(n, objective or self.objective, self.delta, warm_delta=self.delta, max_duels=self.max_duels,  # type: ignore[arg-type]
                     random_state=self.random_state)  # fmt: skip


# --- asking ----------------------------------------------------------------------------------------------------------


@dataclass
class Session:
    """Items and a bandit, kept in a file."""

    items: list[str]
    alg: TGITE
    file: Path | None

    def keep(self) -> None:
        """Write the file whole or not at all."""
        if self.file is None:
            return
        body = json.dumps({"format": FORMAT, "items": self.items, "bandit": self.alg.state_dict()})
        with tempfile.NamedTemporaryFile(
            "w", dir=self.file.parent, prefix=self.file.name, delete=False, encoding="utf-8"
        ) as file:
            file.write(body)
        os.replace(file.name, self.file)


def open_session(inputs: Run) -> Session:
    """A new session, or the one in the file.

    Raises
    ------
    ValueError
        For items that repeat, and a file that holds no session, or one of other items or options.
    """
    assert inputs.items is not None
    items = [line.strip() for line in text_file(inputs.items).splitlines() if line.strip()]
    if repeated := sorted({item for item in items if items.count(item) > 1}):
        raise ValueError(f"items: {', '.join(repeated)} more than once")
    file = None if inputs.state is None else inputs.state.expanduser()
    if file is None or not file.exists():
        if file is not None and not file.parent.is_dir():
            raise ValueError(f"state: {file.parent} is no folder")
        return Session(items, inputs.bandit(len(items)), file)
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        known = held["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise ValueError(f"state: {file} is no session of this command; it is left as it is")
    if held.get("items") != items:
        raise ValueError(f"state: {file} holds a session of other items")
    alg = TGITE.from_state_dict(held.get("bandit"))
    for name in ("objective", "delta"):
        if getattr(alg, name) != getattr(inputs, name):
            raise ValueError(f"{name}: the session in {file} has {getattr(alg, name)}; got {getattr(inputs, name)}")
    alg.allow(inputs.max_duels)
    return Session(items, alg, file)


def question(session: Session, i: int, j: int) -> list[str]:
    """What the person sees."""
    first = f"{session.alg.n_duels_ + 1}. Which is better?"
    if i == j:
        return [
            f"{session.alg.n_duels_ + 1}. Show this one; press Enter when it was seen.",
            f"   1  {session.items[i]}",
        ]
    return [first, f"   1  {session.items[i]}", f"   2  {session.items[j]}", "   1, 2, or q to stop"]


def ask(session: Session) -> None:
    """Ask until the bandit is done, the person stops, or the answers end."""
    from rich.console import Console
    from rich.text import Text

    out = Console(stderr=True, highlight=False)  # the result alone goes to standard output
    alg = session.alg
    while not alg.done:
        i, j = alg.ask()
        for line in ("", *question(session, i, j)):  # below whatever else the terminal shows
            out.print(Text(line))
        answer = sys.stdin.readline()
        while answer and answer.strip().lower() not in ({"1", "2", "q"} if i != j else {"", "1", "q"}):
            out.print(Text("   expected 1, 2 or q" if i != j else "   expected Enter or q"))
            answer = sys.stdin.readline()
        if not answer or answer.strip().lower() == "q":
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the result says that nothing was identified
            alg.tell(j if answer.strip() == "2" else i)
        session.keep()


# --- votes -----------------------------------------------------------------------------------------------------------


def read_votes(path: Path) -> PreferenceMatrix:
    """The matrix of a CSV with columns winner and loser."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        if lacking := {"winner", "loser"} - set(table.fieldnames or ()):
            raise ValueError(
                f"votes: {path.name} has no column {' or '.join(sorted(lacking))}; it has {', '.join(table.fieldnames or ())}"
            )
        rows = [(row["winner"], row["loser"]) for row in table]
    if not rows or any(not a or not b for a, b in rows):
        raise ValueError(f"votes: {path.name} has no votes, or a vote without a name")
    return PreferenceMatrix.from_votes(*zip(*rows, strict=True))


def run(inputs: Run, beside: bool) -> Outcome:
    """Ask, or simulate; ``beside`` simulates the other objectives and two baselines on the votes as well."""
    if inputs.items is not None:
        session = open_session(inputs)
        ask(session)
        return Outcome(inputs, session, {"tgite": session.alg})
    assert inputs.votes is not None
    matrix = read_votes(inputs.votes)
    results: dict[str, Any] = {}
    if matrix.condorcet_winner is not None:
        objectives = (inputs.objective, *(o for o in OBJECTIVES if beside and o != inputs.objective))
        for objective in objectives:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results[objective] = simulate(inputs.bandit(matrix.n_arms, objective), matrix, inputs.horizon,
                                              random_state=inputs.random_state)  # fmt: skip
        if beside and matrix.n_arms > 1:
            for name, baseline in (("winner stays", winner_stays_weak), ("relative UCB", relative_ucb)):
                results[name] = baseline(matrix, inputs.horizon, random_state=inputs.random_state)
    return Outcome(inputs, matrix, results)


# --- what is shown ---------------------------------------------------------------------------------------------------


def present(outcome: Outcome) -> dict[str, Any]:
    """The answer and how it came about."""
    return _of_session(outcome) if isinstance(outcome.problem, Session) else _of_votes(outcome)


def verdict(session: Session) -> str:
    """The answer in a sentence."""
    alg, items = session.alg, session.items
    if alg.best_ is None:
        return f"not yet known after {alg.n_duels_} answers; the candidate is {items[max(alg.incumbent_, 0)]}" if alg.incumbent_ >= 0 else (
            f"not yet known after {alg.n_duels_} answers")  # fmt: skip
    sure = "" if alg.confidence_ is None else f", with confidence {alg.confidence_:g}"
    return f"{items[alg.best_]}{sure} (named after {alg.identified_at_} answers; {alg.n_duels_} in all)"


def _of_session(outcome: Outcome) -> dict[str, Any]:
    session = outcome.problem
    kept = {} if session.file is None else {"kept in": str(session.file)}
    return {"best": verdict(session), "duels won": records(session), **kept}


def records(session: Session) -> pd.DataFrame:
    """Wins and duels of each item, the most successful first."""
    import pandas as pd

    trace = session.alg.trace_
    trace = trace[trace["i"] != trace["j"]]
    won = pd.concat([trace.groupby("i")["wins"].sum(), trace.groupby("j")["losses"].sum()]).groupby(level=0).sum()
    met = trace.assign(n=trace["wins"] + trace["losses"])
    duels = pd.concat([met.groupby("i")["n"].sum(), met.groupby("j")["n"].sum()]).groupby(level=0).sum()
    found = pd.DataFrame({"item": session.items, "won": won.reindex(range(len(session.items)), fill_value=0).astype(int),
                          "duels": duels.reindex(range(len(session.items)), fill_value=0).astype(int)})  # fmt: skip
    return found.sort_values(["duels", "won"], ascending=False).head(SHOWN).reset_index(drop=True)


def _of_votes(outcome: Outcome) -> dict[str, Any]:
    import pandas as pd

    matrix, a = outcome.problem, outcome.problem.condorcet_winner
    circles = f"{matrix.three_cycles()} triples beat each other in circles"
    if a is None:
        return {"votes": f"{matrix.n_arms} items; none beats every other more often than not; {circles}",
                "simulation": "none: there is no best item to find"}  # fmt: skip
    if matrix.n_arms > 1:
        rival = matrix.labels[int((matrix.p[a] + (matrix.p[a] == 0.5)).argmin())]
        circles = f"{matrix.labels[a]} beats every other, {rival} most narrowly (by {matrix.gap:.3f} above one half); {circles}"
    rows = []
    for name, found in outcome.results.items():
        named = "" if found.best is None else matrix.labels[found.best]
        rows.append({"objective": name, "duels": found.n_duels, "named": named,
                     "after": "" if found.duels_to_answer is None else str(found.duels_to_answer),
                     "weak regret": found.weak_gap[-1], "strong regret": found.strong_gap[-1]})  # fmt: skip
    return {"votes": f"{matrix.n_arms} items; {circles}", "simulation": pd.DataFrame(rows)}


def picture(outcome: Outcome) -> Figure | None:
    """Who met whom; or regret over duels."""
    if isinstance(outcome.problem, Session):
        return drawing.standings(outcome.problem.items, outcome.problem.alg.trace_)
    return drawing.regrets(outcome.results, outcome.inputs.objective) if outcome.results else None


def save(outcome: Outcome, directory: Path) -> None:
    """``session.json`` and ``trace.csv``; or ``matrix.csv`` and ``regret.csv``."""
    import pandas as pd

    if isinstance(outcome.problem, Session):
        session = outcome.problem
        Session(session.items, session.alg, directory / "session.json").keep()
        trace = session.alg.trace_
        trace.assign(i=[session.items[k] for k in trace["i"]], j=[session.items[k] for k in trace["j"]]).to_csv(
            directory / "trace.csv", index=False
        )
        return
    matrix = outcome.problem
    pd.DataFrame(matrix.p, index=matrix.labels, columns=matrix.labels).to_csv(directory / "matrix.csv")
    curves = [pd.DataFrame({"objective": name, "duels": found.times, "weak_gap": found.weak_gap, "strong_gap": found.strong_gap,
                            "weak_binary": found.weak_binary, "strong_binary": found.strong_binary})
              for name, found in outcome.results.items()]  # fmt: skip
    if curves:
        pd.concat(curves).to_csv(directory / "regret.csv", index=False)
