"""Benchmarks: calls in turns, rows on the screen and on disk."""

import json
from pathlib import Path

import pytest

from gnomon.study import bench


def test_calls_come_in_turns_and_the_least_time_counts(monkeypatch):
    now, order = [0.0], []
    monkeypatch.setitem(bench.CLOCKS, "wall", lambda: now[0])

    def spend(name, times):
        left = iter(times)

        def call():
            order.append(name)
            now[0] += next(left)

        return call

    found = bench.seconds({"a": spend("a", [9, 3, 2]), "b": spend("b", [9, 4, 5])}, repeats=2)
    assert order == ["a", "b"] * 3
    assert found == {"a": 2.0, "b": 4.0}
    with pytest.raises(ValueError, match="repeats is 0"):
        bench.seconds({}, repeats=0)


def test_rows_have_the_ratio_to_the_first(tmp_path, capsys):
    table = bench.Table()
    table.times("a draw", {"ours": 0.5, "peer": 1.25})
    table.add("memory [peak]", 3.0, "MB")
    table.save(tmp_path / "new" / "x.json")
    assert json.loads((tmp_path / "new" / "x.json").read_text()) == [
        {"name": "a draw: ours", "value": 500.0, "unit": "ms", "ratio": None},
        {"name": "a draw: peer", "value": 1250.0, "unit": "ms", "ratio": 2.5},
        {"name": "memory [peak]", "value": 3.0, "unit": "MB", "ratio": None},
    ]
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["x.json"]
    assert "memory [peak]" in capsys.readouterr().out


def test_the_results_lie_beside_the_areas():
    options = bench.parser("/somewhere/benchmarks/sampling/bench_spacer.py", "what").parse_args([])
    assert options.json == Path("/somewhere/benchmarks/results/sampling/spacer.json")
    assert options.clock == "wall"
