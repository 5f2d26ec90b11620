"""The runner: stages once, records resumed, damaged ones computed again, the same numbers whatever runs beside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gnomon.study import records
from gnomon.study.protocol import Cell
from gnomon.study.runner import Running, generator, plan, run
from tests.study.toy import Location, ToyStudy, ToySystem

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def room(tmp_path, monkeypatch):
    monkeypatch.setenv("GNOMON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOY_COUNT", str(tmp_path / "count"))
    (tmp_path / "count").mkdir()
    return tmp_path


def go(room, scale="smoke", **given):
    running = given.pop("running", Running(jobs=1, results=room / "results"))
    return run(ToySystem(room / "evidence"), ToyStudy.Inputs.at(scale, **given), running)


def count(room, what):
    return len(list((room / "count").glob(f"{what}-*")))


def files(room):
    return sorted((room / "results/toys/toy/records").glob("*.json"))


def test_plan_counts_cells_contenders_and_seeds():
    jobs = plan(ToyStudy, ToyStudy.Inputs.at("laptop"))
    assert sum(j.experiment is Location for j in jobs) == 2 * 2 * 4
    assert sum(j.experiment.timed() for j in jobs) == 2
    assert len(plan(ToyStudy, ToyStudy.Inputs.at("smoke"))) == 2 * 2


def test_tables_hold_rows_costs_and_cells(room):
    table = go(room)["Location"]
    assert {"n", "contender", "seed", "error", "wall_s", "cpu_s", "peak_mb"} <= set(table)
    assert len(table) == 4
    assert table["peak_mb"].min() > 10


def test_problem_is_paired_and_contenders_draw_apart(room):
    table = go(room)["Location"].pivot(index="seed", columns="contender", values=["draw", "own"])
    assert (table["draw", "mean"] == table["draw", "median"]).all()
    assert (table["own", "mean"] != table["own", "median"]).all()


def test_stage_is_computed_once_for_contenders_in_two_processes(room):
    go(room, "laptop", running=Running(jobs=2, results=room / "results"))
    assert count(room, "sample") == 2 * 4
    assert count(room, "base") == 1


def test_jobs_do_not_change_numbers(room):
    one = go(room, "laptop")["Location"].drop(columns=["wall_s", "cpu_s", "peak_mb"])
    two = go(room, "laptop", running=Running(jobs=2, results=room / "other"))["Location"]
    assert one.equals(two[one.columns])


def test_second_run_computes_nothing(room, monkeypatch):
    go(room)
    monkeypatch.setattr(Location, "measure", None)
    monkeypatch.setattr(Location, "prepare", None)
    assert len(go(room)["Location"]) == 4


def test_more_seeds_reuse_the_first(room):
    go(room)
    before = {f: f.stat().st_mtime_ns for f in files(room)}
    go(room, seeds=3)
    assert len(files(room)) == 6
    assert all(f.stat().st_mtime_ns == t for f, t in before.items())


def test_fresh_computes_again(room):
    go(room)
    before = {f: f.stat().st_mtime_ns for f in files(room)}
    go(room, running=Running(jobs=1, results=room / "results", fresh=True))
    assert all(f.stat().st_mtime_ns > t for f, t in before.items())


@pytest.mark.parametrize("damage", [lambda t: t[: len(t) // 2], lambda t: t.replace('"error": ', '"error": 1'),
                                    lambda t: "", lambda t: "[1, 2]", lambda t: "\x00\xff"])  # fmt: skip
def test_damaged_record_is_reported_and_computed_again(room, caplog, damage):
    whole = go(room)["Location"]
    victim = files(room)[0]
    victim.write_text(damage(victim.read_text()), encoding="latin-1")
    with caplog.at_level("WARNING"):
        again = go(room)["Location"]
    assert "damaged record" in caplog.text
    assert whole["error"].equals(again["error"])
    records.Record.from_json(victim.read_text())


def test_damaged_cache_entry_is_computed_again(room, caplog):
    first = go(room)["Location"]
    for pickle in (room / "cache").rglob("output.pkl"):
        pickle.write_bytes(b"not a pickle")
    with caplog.at_level("WARNING"):
        again = go(room, running=Running(jobs=1, results=room / "other"))["Location"]
    assert "Exception while loading" in caplog.text
    assert first["error"].equals(again["error"])


def test_timed_rows_are_repeated_and_interleaved(room):
    table = go(room, "laptop")["Speed"]
    assert sorted(table["repeat"]) == [0, 0, 1, 1, 2, 2]


def test_own_contender_joins_in_every_cell(room, tmp_path, monkeypatch):
    (tmp_path / "mine_module.py").write_text("def first(x):\n    return float(x[0])\n")
    monkeypatch.chdir(tmp_path)
    running = Running(jobs=1, results=room / "results", contenders=("mine=mine_module:first",))
    assert set(go(room, running=running)["Location"]["contender"]) == {"mean", "median", "mine"}


@pytest.mark.parametrize(("spec", "says"), [("nonsense", "expected name=package.module:factory"),
                                            ("mean=json:dumps", "already one"), ("x=no_such_module:f", "cannot be loaded")])  # fmt: skip
def test_own_contender_mistakes(room, spec, says):
    with pytest.raises(ValueError, match=says):
        go(room, running=Running(jobs=1, results=room / "results", contenders=(spec,)))


def test_error_names_the_job(room, monkeypatch):
    def broken(self, problem, contender, rng):
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(Location, "measure", broken)
    with pytest.raises(ZeroDivisionError) as caught:
        go(room)
    assert "Location [n=10, seed=0] mean" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(("bad", "says"), [({"backend": "slurm"}, "slurm"), ({"jobs": -1}, "-1")])
def test_running_rejects(bad, says):
    with pytest.raises(ValueError, match=says):
        Running(**bad)


def test_stage_refuses_what_it_did_not_declare(room, monkeypatch):
    call = Location.stages()[1].call(Location, ToyStudy.Inputs.at("smoke"), Cell({"n": 10}, 0))
    with pytest.raises(AttributeError, match="does not declare"):
        _ = call.inputs.seeds


def test_generator_depends_only_on_its_words():
    assert generator("a", 1).integers(1 << 30) == generator("a", 1).integers(1 << 30)
    assert generator("a", 1).integers(1 << 30) != generator("a", 2).integers(1 << 30)


SCRIPT = """
import sys, json
from pathlib import Path
from gnomon.study.check import check
from gnomon.study.runner import Running
from tests.study.toy import ToySystem
room = Path(sys.argv[1])
outcome = check(ToySystem(room / "evidence"), scale="laptop", running=Running(jobs=int(sys.argv[2]), results=room / "results"))
print(json.dumps([[v.id, v.verdict, v.effect] for v in outcome.verdicts]))
"""


def script(room, jobs=1, pause="0"):
    environment = {**os.environ, "TOY_PAUSE": pause, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(room), str(jobs)], cwd=ROOT, env=environment,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))  # fmt: skip


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_check_resumes_with_the_same_evidence(room, how):
    (room / "whole").mkdir()
    expected, _ = script(room / "whole").communicate(timeout=100)
    process = script(room, pause="0.3")
    until = time.time() + 60
    while len(files(room)) < 3 and time.time() < until:
        time.sleep(0.05)
    process.send_signal(how)
    process.communicate(timeout=60)
    kept = {f: f.stat().st_mtime_ns for f in files(room)}
    assert 3 <= len(kept) < 18
    again, errors = script(room).communicate(timeout=100)
    assert json.loads(again) == json.loads(expected), errors
    assert all(f.stat().st_mtime_ns == t for f, t in kept.items())


def test_two_checks_at_once_on_one_folder_both_end_right(room):
    both = [script(room, jobs=2) for _ in range(2)]
    ends = [p.communicate(timeout=100) for p in both]
    assert [p.returncode for p in both] == [0, 0], ends
    assert json.loads(ends[0][0]) == json.loads(ends[1][0])
    assert len(files(room)) == 18
    assert all(records.Record.from_json(f.read_text()) for f in files(room))


def test_record_keeps_numbers_that_json_lacks():
    body = records.Record("s", "e", {}, {}, "c", 0, "", [{"a": float("nan"), "b": np.float64(np.inf), "c": np.int64(3)}],
                          0.0, 0.0, 0.0, 1, {})  # fmt: skip
    row = records.Record.from_json(body.to_json()).rows[0]
    assert np.isnan(row["a"])
    assert row["b"] == np.inf
    assert row["c"] == 3


def test_record_refuses_what_is_not_plain():
    body = records.Record("s", "e", {}, {}, "c", 0, "", [{"a": np.zeros(2)}], 0.0, 0.0, 0.0, 1, {})
    with pytest.raises((TypeError, ValueError)):
        body.to_json()


def test_duckdb_asks_the_records(room):
    go(room)
    found = records.query(
        "SELECT contender, count(*) AS n FROM records GROUP BY contender ORDER BY 1", room / "results"
    )
    assert found.values.tolist() == [["mean", 2], ["median", 2]]
    rows = records.table(room / "results", "toy")
    assert len(rows) == 4
    assert {"n", "error"} <= set(rows)
    assert records.query(folder=room / "nothing").empty
