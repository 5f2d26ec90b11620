"""A check: verdicts compared with the recorded ones, evidence kept by scale, looks, restated claims."""

from __future__ import annotations

import json

import pytest

from gnomon import study
from gnomon.study.check import check
from gnomon.study.runner import Running
from tests.study.toy import ToyStudy, ToySystem


@pytest.fixture
def system(tmp_path, monkeypatch):
    monkeypatch.setenv("GNOMON_CACHE", str(tmp_path / "cache"))
    return ToySystem(tmp_path / "evidence")


def go(system, scale="laptop", **given):
    return check(system, scale=scale, running=Running(jobs=1, results=system.folder.parent / "results"), **given)


def test_recorded_evidence_is_reproduced(system):
    first = go(system, record=True)
    assert first.exit_code == 0
    kept = system.evidence()["scales"]["laptop"]
    assert [c["id"] for c in kept["claims"]] == ["not-negative", "mean-better"]
    assert kept["inputs"] == {"seeds": 4, "scale": "laptop", "shift": 0.0}
    assert go(system).differences == []


def test_a_different_verdict_gives_exit_code_one(system):
    go(system, record=True)
    path = system.evidence_path()
    path.write_text(path.read_text().replace('"verdict": "holds"', '"verdict": "fails"'))
    outcome = go(system)
    assert outcome.exit_code == 1
    assert "not-negative: recorded fails, now holds" in outcome.differences


@pytest.mark.parametrize("mark", ["timed", "borderline"])
def test_of_timed_and_borderline_claims_it_only_tells(system, mark):
    go(system, record=True)
    path = system.evidence_path()
    kept = json.loads(path.read_text())
    claim = kept["scales"]["laptop"]["claims"][0]
    claim["verdict"], claim["borderline"] = "fails", True
    path.write_text(json.dumps(kept))
    outcome = go(system)
    assert outcome.exit_code == 0
    assert outcome.told


def test_own_inputs_are_compared_with_nothing(system):
    go(system, record=True)
    path = system.evidence_path()
    path.write_text(path.read_text().replace('"verdict": "holds"', '"verdict": "fails"'))
    assert go(system, shift=1.0).differences == []


def test_scales_are_kept_apart(system):
    go(system, "smoke", record=True)
    go(system, "laptop", record=True)
    assert set(system.evidence()["scales"]) == {"smoke", "laptop"}


def test_smoke_decides_only_always(system):
    verdicts = {v.id: v.verdict for v in go(system, "smoke").verdicts}
    assert verdicts == {"not-negative": "holds", "mean-better": "undecided"}


def test_a_restated_claim_says_so(system, monkeypatch):
    go(system, record=True)
    claims = [
        ToyStudy.claims[0],
        study.better("error", "mean", than=["median"], each=["n"], factor=0.2, id="mean-better"),
    ]
    monkeypatch.setattr(ToyStudy, "claims", claims)
    go(system, record=True)
    reasons = {c["id"]: c["reason"] for c in system.evidence()["scales"]["laptop"]["claims"]}
    assert "restated after an earlier result was seen" in reasons["mean-better"]
    assert "restated" not in (reasons["not-negative"] or "")


def test_until_decided_looks_at_n_2n_and_4n(system):
    outcome = go(system, until_decided=True, seeds=3)
    looks = next(v for v in outcome.verdicts if v.id == "mean-better").looks
    assert [look["seeds"] for look in looks][: len(looks)] == [3, 6, 12][: len(looks)]
    assert all(abs(look["level"] - (1 - 0.05 / 3)) < 1e-12 for look in looks)


def test_nothing_of_a_check_without_record_reaches_the_recorded_evidence(system):
    go(system)
    assert not system.evidence_path().exists()
    assert system.evidence(system.folder.parent / "results")["scales"]


def test_unknown_input_is_an_error(system):
    with pytest.raises(ValueError, match="colour"):
        go(system, colour="red")
