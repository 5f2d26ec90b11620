"""The study of conformal abstention at smoke scale, its questions, `gnomon run`, and what is written of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gnomon
from gnomon import catalog
from gnomon.guarantees.conformal_abstention.study.experiments import outcome, quality
from gnomon.guarantees.conformal_abstention.study.language import asked
from gnomon.guarantees.conformal_abstention.study.material import KINDS, questions
from gnomon.study.runner import Running


def test_smoke_check_runs_end_to_end(tmp_path):
    check = gnomon.check("conformal-abstention", scale="smoke", running=Running(jobs=1, results=tmp_path))
    verdicts = {v.id: v for v in check.verdicts}
    for statement in (
        "participation",
        "joint-error",
        "within-a-class",
        "false-discovery-rate",
        "both",
        "pac",
        "bayes",
        "ratio",
    ):
        assert verdicts[f"valid-{statement}"].verdict == "holds", statement
    assert {"Synthetic", "Ranking", "Splits", "Shift", "Validity", "Scores"} <= set(check.tables)
    assert set(check.tables["Validity"]["where"]) == {"known truth", "splits"}
    assert len(check.tables["Scores"]) == 40
    assert check.tables["Scores"]["self-consistency"].notna().sum() == 4
    assert check.figure is not None


def test_questions_are_what_they_say():
    found = questions(600, 0)
    kinds = [q.kind for q in found]
    assert {k: kinds.count(k) for k in KINDS} == {
        "capital": 180,
        "city": 180,
        "symbol": 40,
        "number": 40,
        "sum": 40,
        "invented": 120,
    }
    assert len({q.prompt for q in found}) == 600
    assert all(bool(q.answers) == (q.kind != "invented") for q in found)
    assert all(q.prompt.count("\n") == 2 for q in found)
    assert questions(600, 0) == found
    assert questions(600, 1) != found
    mali = next(q for q in questions(830, 0) if q.about == "Mali")
    assert mali.answers[0] == "Bamako"
    a, b = next(q.about.split(" + ") for q in found if q.kind == "sum")
    assert str(int(a) + int(b)) in next(q.answers for q in found if q.about == f"{a} + {b}")


def test_metrics_by_hand():
    S, C = np.array([4.0, 3, 2, 1]), np.array([True, True, False, True])
    found = quality(S, C)
    assert found["coverage"] == 1.0
    assert found["accuracy_50"] == 1.0
    assert found["auroc"] == pytest.approx(2 / 3)
    assert found["aurc"] == pytest.approx((0 + 0 + 1 / 3 + 1 / 4) / 4)
    some = outcome(np.array([True, False, True, False]), C)
    assert (some["answered"], some["joint"], some["wrong_share"], some["right"]) == (0.5, 0.25, 0.5, 0.5)
    none = outcome(np.zeros(4, bool), C)
    assert none["wrong_share"] == 0
    assert np.isnan(none["right"])


# --- gnomon run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    rows = [
        {"question": q.prompt, "answer": list(q.answers), "topic": q.kind}
        for q in questions(40, 5)
        if q.kind in ("capital", "city")
    ]
    (tmp_path / "qa.jsonl").write_text("\n".join(json.dumps(r) for r in rows) + "\n")
    new = [q.prompt.replace("\n", "\\n") for q in questions(40, 6) if q.kind == "city"]
    (tmp_path / "new.txt").write_text("\n".join(new[:3]))
    return tmp_path


def test_run_answers_and_saves(folder, command_line):
    code, out, _ = command_line(folder, "run", "conformal-abstention", "--qa", "qa.jsonl", "--score", "logprob", "--correctness", "0.6", "--ask", "new.txt",
                                "--save", "kept", "--figure", "f.svg")  # fmt: skip
    assert code == 0
    assert "expected share of wrong ones among its answers is at most 0.4" in out.replace("\n", " ")
    assert "is in the country" in out
    assert (folder / "kept" / "judged.csv").read_text().startswith("question,response,correct,split")
    kept = np.load(folder / "kept" / "calibration.npz")
    assert len(kept["scores"]) == len(kept["correct"]) == 14
    assert json.loads((folder / "kept" / "certificate.json").read_text())["all"]["kind"] == "fdr"
    assert len((folder / "kept" / "answers.csv").read_text().splitlines()) > 3
    assert (folder / "f.svg").stat().st_size > 1000


def test_the_documented_command_and_example_run(folder, command_line, capsys):
    study = catalog.find("conformal-abstention").study()
    words = study.command.replace("--model DIR", "--model embedded:smollm2").split()[1:]
    code, out, err = command_line(folder, *words, "--windows", "2")
    assert code == 0, err
    assert "accuracy without abstention" in out
    exec(study.example, {})
    assert "of 200 new questions are answered" in capsys.readouterr().out


def test_mistakes_are_one_line(folder, command_line):
    (folder / "bad.jsonl").write_text('{"question": "x", "answer": "y"}\n{"question": "z"}\n')
    (folder / "few.jsonl").write_text("\n".join(json.dumps({"question": f"{i} is", "answer": "x"}) for i in range(6)))
    for words, said in ((["--qa", "absent.jsonl"], "does not exist"), (["--qa", "bad.jsonl"], "line 2 of bad.jsonl"),
                        (["--qa", "few.jsonl", "--certificate", "pac", "--score", "logprob"], "needs at least 9"),
                        (["--qa", "qa.jsonl", "--certificate", "both", "--score", "logprob"], "participation: got None"),
                        (["--qa", "qa.jsonl", "--correctness", "1.5"], "correctness"),
                        (["--qa", "qa.jsonl", "--score", "vibes"], "score: got 'vibes'")):  # fmt: skip
        code, out, err = command_line(folder, "run", "conformal-abstention", *words)
        assert code == 2, words
        assert "Traceback" not in out + err
        assert said in (out + err).replace("\n", " "), words


def test_questions_of_ones_own_are_studied(folder):
    inputs = catalog.find("conformal-abstention").study().Inputs.at("smoke", qa=folder / "qa.jsonl")
    found = asked(inputs)
    assert {q.kind for q in found} == {"capital", "city"}
    assert len(found) == len((folder / "qa.jsonl").read_text().splitlines())
