"""DISCA's simulated worlds, smoke check, command and example."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gnomon
from gnomon import catalog
from gnomon.decisions import human_amce
from gnomon.decisions.disca.human import COUNTRIES
from gnomon.decisions.disca.study.worlds import REGIMES, derangement, effects, log_odds, mis, world
from gnomon.study.runner import Running


@pytest.fixture(scope="module")
def people():
    try:
        return human_amce().loc[list(COUNTRIES)]
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


def test_log_odds_are_cut():
    np.testing.assert_allclose(effects(log_odds(np.array([0.3, -0.9, 1.0]))), [0.3, -0.9, 0.96])


def test_worlds_are_as_declared(people):
    drawn = [world(people, "agreeing biased", np.random.default_rng(s)) for s in range(200)]
    one = drawn[0]
    assert one.panel.shape == (20, 9, 8)
    usa = log_odds(people.loc["USA"].to_numpy())
    base = np.stack([w.base for w in drawn])
    np.testing.assert_allclose(base.mean(0), 1.6 * usa, atol=4 * 0.3 / np.sqrt(200))
    toward = np.stack(
        [(w.panel - w.people[..., None]).mean((0, 2)) for w in drawn]
    )  # u has mean 1: only the bias is left
    assert toward.std(0).mean() == pytest.approx(1.0, abs=0.12)
    noise = world(people, "noise", np.random.default_rng(0))
    assert (noise.panel - noise.base[None, :, None]).std() == pytest.approx(0.8, abs=0.05)


def test_distance_and_derangement(people):
    human = people.to_numpy()
    assert mis(log_odds(human), human) < 0.01  # but for the cut
    for n in (2, 3, 20):
        found = derangement(n, np.random.default_rng(n))
        assert (found != np.arange(n)).all()


@pytest.fixture(scope="module")
def outcome(tmp_path_factory, people):
    running = Running(jobs=1, results=tmp_path_factory.mktemp("results"))
    return gnomon.check("disca", scale="smoke", running=running)


def test_smoke(outcome):
    study = catalog.find("disca").study()
    assert {v["id"] for v in outcome.evidence["claims"]} == {c.id for c in study.claims}
    verdicts = {v["id"]: v["verdict"] for v in outcome.evidence["claims"]}
    assert verdicts["bound-idle"] == verdicts["largest-shift"] == "holds"
    assert set(outcome.tables["Panels"]["regime"]) == set(REGIMES)
    model = outcome.tables["Model"]
    assert (model["mis_low"] < model["mis_high"]).all()
    assert study().figure(outcome.tables) is not None


QUESTIONS = [
    {"question": "A car cannot stop. Whom should it save?", "options": ["a child", "an old man"]},
    {"question": "What should a guest be offered?", "options": ["tea", "coffee", "water"]},
]


@pytest.fixture
def room(tmp_path, monkeypatch):
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_and_the_example_of_the_docs(command_line, room, capsys):
    study = catalog.find("disca").study()
    code, out, err = command_line(room, *study.command.split()[1:])
    assert code == 0, err
    assert "ungrounded" in out
    assert "give --wvs" in out
    kept = [json.loads(line) for line in (room / "decided/decisions.jsonl").read_text().splitlines()]
    assert [k["question"] for k in kept] == [q["question"] for q in QUESTIONS]
    assert all(abs(sum(k["probabilities"]) - 1) < 1e-9 and not k["grounded"] for k in kept)
    assert json.loads((room / "decided/panel.json").read_text())["country"] == "VNM"
    exec(compile(study.example, "example", "exec"), {"__name__": "example"})
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("[0.461 1.453]")


def test_beside_and_a_picture(command_line, room):
    code, out, err = command_line(room, "run", "disca", "--country", "EGY", "--questions", "questions.jsonl", "--beside",
                                  "--figure", "q.svg")  # fmt: skip
    assert code == 0, err
    assert "panel mean" in out
    assert "country prompt" in out
    assert (room / "q.svg").stat().st_size > 0


@pytest.mark.parametrize(
    ("text", "country", "says"),
    [
        ("{", "VNM", "line 1"),
        ("[1]", "VNM", "expected an object"),
        ('{"question": "q"}', "VNM", "under 'options'"),
        ('{"question": "", "options": ["a", "b"]}', "VNM", "under 'question'"),
        ("", "VNM", "is empty"),
        ("\n\n \n", "VNM", "is empty"),
        ('{"question": "q", "options": ["a", "a"]}', "VNM", "all differ"),
        ('{"question": "q", "options": ["a", "b"]}', "Vietnam", "near: .*VNM"),
    ],
)
def test_run_says_what_is_wrong(command_line, room, text, country, says):
    import re

    (room / "bad.jsonl").write_text(text)
    code, _, err = command_line(room, "run", "disca", "--country", country, "--questions", "bad.jsonl")
    assert code != 0
    assert re.search(says, " ".join(err.split()))


def test_a_survey_grounds_the_panel(command_line, room):
    from tests.decisions.test_disca import survey

    survey().to_csv(room / "wvs.csv", index=False)
    code, out, err = command_line(
        room, "run", "disca", "--country", "VNM", "--questions", "questions.jsonl", "--wvs", "wvs.csv"
    )
    assert code == 0, err
    assert "resting on the survey file" in " ".join(out.split())
    assert "ungrounded" not in out
