"""The study of TG-ITE at smoke scale, its real matrices, and the command line at the terminal and on votes."""

from __future__ import annotations

import io
import json
import shlex

import numpy as np
import pandas as pd
import pytest

from gnomon import catalog
from gnomon.decisions import TGITE, PreferenceMatrix
from gnomon.decisions.dueling.study import material, tables
from gnomon.decisions.dueling.study.experiments import Error, Peers, Real, straightness
from gnomon.study.check import check
from gnomon.study.protocol import Cell
from gnomon.study.runner import Running

STUDY = catalog.find("dueling").study()
ITEMS = ["plain rice", "[bold]soup[/bold]", "bread", "pie"]


# --- the study -------------------------------------------------------------------------------------------------------


def test_smoke_scale_runs_from_end_to_end(tmp_path):
    found = check(catalog.find("dueling"), scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v.verdict for v in found.verdicts}
    assert verdicts["weak-incumbent"] == verdicts["joint-answers"] == "holds"
    assert "fails" not in verdicts.values()
    assert found.figure is not None
    error = found.tables["Error"]
    assert len(error) == 10
    assert error["wrong"].sum() <= 1
    assert set(error["run"]) == set(range(5))
    overhead = found.tables["Overhead"]
    assert set(overhead["contender"]) == {"union bounds"}
    assert len(overhead) == 15
    strong = found.tables["Strong"].groupby("contender")["strong"].mean()
    assert strong["tgite"] < strong["no book"]
    assert (found.tables["Weak"]["weak_0.4"] <= found.tables["Weak"]["weak"]).all()
    assert set(found.tables["Real"]["matrix"]) == {"hard 16"}


def test_growth_is_the_slope_of_the_log_ratio():
    rows = [{"matrix": "flat", "run": r, "n": n, "contender": c, "duels": n * (1 if c == "tgite" else n**0.5)}
            for r in range(2) for n in (4, 16, 64) for c in ("tgite", "slow")]  # fmt: skip
    found = tables.overhead(pd.DataFrame(rows))
    assert found["growth"].to_numpy() == pytest.approx([0.5, 0.5])


def test_straightness():
    times = np.geomspace(1, 1e6, 50)
    assert straightness(times, 3 + np.log(times), 100) == pytest.approx(1)
    assert straightness(times, np.ones(50), 100) == 1
    assert straightness(times, times, 100) < 0.8


def test_contenders_of_a_problem_share_matrix_and_seed():
    inputs = STUDY.Inputs.at("smoke")
    one, two = (
        Error().prepare(inputs, Cell({"matrix": "cyclic", "n": 16, "delta": 0.05}), np.random.default_rng(4))
        for _ in range(2)
    )
    assert [p.seed for p in one] == [p.seed for p in two]
    assert len({p.seed for p in one}) == 5
    assert np.array_equal(one[0].matrix.p, two[0].matrix.p)


def test_football_clubs():
    try:
        clubs = material.bundesliga()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert clubs.n_arms == 16
    assert "Bayern" in clubs.labels[clubs.condorcet_winner]
    assert clubs.gap == pytest.approx(0.064, abs=1e-3)
    assert clubs.three_cycles() == 42
    rows = Error().measure(Error().prepare(STUDY.Inputs.at(runs=3), Cell({"matrix": "bundesliga", "n": 16, "delta": 0.1}),
                                           np.random.default_rng(0)), Error.contenders["tgite"], np.random.default_rng(0))  # fmt: skip
    assert len(rows) == 3


def test_rivals_too_close_to_the_best_are_dropped():
    p = np.array([[0.5, 0.505, 0.7, 0.4], [0.495, 0.5, 0.9, 0.6], [0.3, 0.1, 0.5, 0.5], [0.6, 0.4, 0.5, 0.5]])
    kept, dropped = material.with_winner(PreferenceMatrix(p, ["a", "b", "c", "d"]))
    assert (kept.labels, dropped) == (["b", "c", "d"], ["a"])
    assert kept.labels[kept.condorcet_winner] == "b"
    whole, none = material.with_winner(PreferenceMatrix.flat(5))
    assert whole.n_arms == 5
    assert none == []


def test_classifiers_are_24(monkeypatch):
    from sklearn.naive_bayes import GaussianNB
    from sklearn.tree import DecisionTreeClassifier

    assert len(material.contestants()) == 24
    few = {
        "bayes": GaussianNB(),
        "stump": DecisionTreeClassifier(max_depth=1),
        "tree": DecisionTreeClassifier(random_state=0),
    }
    monkeypatch.setattr(material, "contestants", lambda: few)
    scores, names = material.judged_classifiers()
    assert scores.shape == (3, 1019)
    assert names == list(few)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (
        PreferenceMatrix.from_scores(scores, names).labels[PreferenceMatrix.from_scores(scores).condorcet_winner]
        == "tree"
    )


def test_a_matrix_of_ones_own_joins(tmp_path):
    path = tmp_path / "p.csv"
    np.savetxt(path, PreferenceMatrix.flat(5, 0.3, random_state=1).p, delimiter=",")
    inputs = STUDY.Inputs.at("smoke", matrix=path)
    assert Real().includes(inputs, Cell({"matrix": "own"}), "tgite, bai")
    assert not Real().includes(STUDY.Inputs.at("smoke"), Cell({"matrix": "own"}), "tgite, bai")
    problem = Real().prepare(inputs, Cell({"matrix": "own"}, 0), np.random.default_rng(0))
    (row,) = Real().measure(problem, Real.contenders["tgite, bai"], np.random.default_rng(0))
    assert (row["n"], row["right"]) == (5, True)
    path.write_text("0.5,0.9\n0.3,0.5\n")
    with pytest.raises(ValueError, match=r"matrix: p.csv: p\[0, 1\] is 0.9"):
        material.own(path)
    with pytest.raises(ValueError, match="is no file"):
        STUDY.Inputs.at("smoke", matrix="absent.csv")


def test_peers_are_all_of_duelpy_or_none():
    assert len(Peers.contenders) in (2, 13)


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def ask(tmp_path, monkeypatch, command_line):
    """``gnomon run dueling`` with answers typed in, in a folder with items."""
    (tmp_path / "items.txt").write_text("\n".join(ITEMS) + "\n\n")

    def run(answers, *arguments):
        monkeypatch.setattr("sys.stdin", io.StringIO(answers))
        return command_line(tmp_path, "run", "dueling", *arguments)

    return run


class Judge(io.StringIO):
    """Types the number of the item that comes later in the list, whatever is asked."""

    def __init__(self, alg):
        super().__init__()
        self.alg = alg

    def readline(self, *_):
        i, j = self.alg.ask()
        self.alg.tell(max(i, j))
        return "2\n" if j > i else "1\n"


def test_the_documented_command(tmp_path, monkeypatch, command_line):
    (tmp_path / "items.txt").write_text("\n".join(ITEMS))
    monkeypatch.setattr("sys.stdin", Judge(TGITE(4, random_state=0)))
    code, out, err = command_line(tmp_path, *shlex.split(STUDY.command)[1:], "--save", "kept", "--figure", "met.svg")
    assert code == 0, err
    assert "pie, with confidence 0.95 (named after" in out
    assert "Which is better?" in err
    assert "[bold]soup[/bold]" in err
    assert (tmp_path / "met.svg").stat().st_size > 1000
    trace = pd.read_csv(tmp_path / "kept/trace.csv")
    assert set(trace["i"]) <= set(ITEMS)
    held = json.loads((tmp_path / "state.json").read_text())
    assert held == json.loads((tmp_path / "kept/session.json").read_text())
    assert TGITE.from_state_dict(held["bandit"]).best_ == 3
    code, out, err = command_line(tmp_path, *shlex.split(STUDY.command)[1:])  # nothing is left to ask
    assert (code, "Which" in err) == (0, False)
    assert "pie, with confidence 0.95" in out


def test_a_session_stops_and_goes_on(ask, tmp_path):
    options = ("--items", "items.txt", "--state", "state.json")
    code, out, err = ask("1\n2\nx\n1\nq\n", *options)
    assert code == 0
    assert "not yet known after 3 answers" in out
    assert "expected 1, 2 or q" in err
    code, out, err = ask("1\n1\n", *options)  # the answers end
    assert "4. Which is better?" in err
    assert "not yet known after 5 answers" in out
    code, out, _ = ask("1\n1\n", *options, "--max-duels", "5")
    assert "not yet known after 5 answers" in out
    straight = ask("1\n2\n1\n1\n1\n", "--items", "items.txt", "--state", "other.json")
    assert straight[0] == 0
    assert (
        json.loads((tmp_path / "state.json").read_text())["bandit"]
        == json.loads((tmp_path / "other.json").read_text())["bandit"]
    )


def test_endless_objectives_and_limits(ask):
    code, out, _ = ask("1\n" * 40, "--items", "items.txt", "--objective", "strong", "--max-duels", "30")
    assert code == 0
    assert "30 answers" in out or "30 in all" in out
    code, out, err = ask(
        "1\n" * 400 + "\n" * 300, "--items", "items.txt", "--objective", "strong", "--max-duels", "300", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["best"]


def test_votes_are_simulated(ask, tmp_path):
    rng = np.random.default_rng(0)
    pairs = [(a, b) for a in "abcd" for b in "abcd" if a < b for _ in range(40)]
    rows = [(a, b) if rng.random() < 0.8 else (b, a) for a, b in pairs]
    pd.DataFrame(rows, columns=["winner", "loser"]).to_csv(tmp_path / "votes.csv", index=False)
    code, out, err = ask(
        "", "--votes", "votes.csv", "--horizon", "20000", "--beside", "--save", "kept", "--figure", "r.svg"
    )
    assert code == 0, err
    for words in ("4 items; a beats every other", "weak regret", "winner stays", "relative UCB", "joint"):
        assert words in out
    assert len(pd.read_csv(tmp_path / "kept/matrix.csv")) == 4
    assert set(pd.read_csv(tmp_path / "kept/regret.csv")["objective"]) >= {"bai", "weak", "strong", "joint"}
    assert (tmp_path / "r.svg").stat().st_size > 1000
    circle = [p for p in (("a", "b"), ("b", "c"), ("c", "a")) for _ in range(9)]
    pd.DataFrame(circle, columns=["winner", "loser"]).to_csv(tmp_path / "votes.csv", index=False)
    code, out, _ = ask("", "--votes", "votes.csv")
    assert code == 0
    assert "none beats every other more often than not; 1 triples" in out
    assert "no best item to find" in out


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "expected one of the two"),
    (("--items", "items.txt", "--votes", "items.txt"), "expected one of the two"),
    (("--votes", "items.txt", "--state", "s.json"), "--votes asks nothing"),
    (("--items", "none.txt"), "does not exist"),
    (("--items", "twice.txt"), "pie more than once"),
    (("--items", "items.txt", "--delta", "0.7"), "delta"),
    (("--items", "items.txt", "--objective", "good"), "objective"),
    (("--items", "items.txt", "--state", "twice.txt"), "is no session of this command; it is left as it is"),
    (("--items", "items.txt", "--state", "no/where.json"), "is no folder"),
    (("--items", "items.txt", "--state", "held.json", "--delta", "0.1"), "the session in held.json has 0.05; got 0.1"),
    (("--items", "other.txt", "--state", "held.json"), "holds a session of other items"),
    (("--votes", "items.txt"), "no column loser or winner"),
    (("--votes", "empty.csv"), "has no votes"),
    (("--votes", "self.csv"), "against itself"),
])  # fmt: skip
def test_mistakes_on_the_command_line(ask, tmp_path, arguments, message):
    (tmp_path / "twice.txt").write_text("pie\npie\n")
    (tmp_path / "other.txt").write_text("x\ny\n")
    (tmp_path / "empty.csv").write_text("winner,loser\n")
    (tmp_path / "self.csv").write_text("winner,loser\na,a\n")
    if "held.json" in arguments:
        ask("1\n", "--items", "items.txt", "--state", "held.json")
    code, _, err = ask("q\n", *arguments)
    assert code == 2
    assert message in " ".join(err.split())
    assert (tmp_path / "twice.txt").read_text() == "pie\npie\n"


def test_example(capsys):
    exec(STUDY.example, {})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("7 0.95 ")
    assert second.startswith("a ")
