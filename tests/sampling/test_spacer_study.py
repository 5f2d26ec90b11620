"""SpaceR's baselines, streams, text reader, command and smoke check."""

from __future__ import annotations

import bz2
import collections
import gzip
import io
import json
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gnomon
from gnomon import catalog, cli
from gnomon.sampling import SpaceR
from gnomon.sampling.spacer.baselines import (
    CountMin,
    CountSketch,
    CountSketchPP,
    Learned,
    MisraGries,
    SpaceSaving,
    TrivialTop,
    noisy_oracle,
    perfect_oracle,
    two_pass_oracle,
)
from gnomon.sampling.spacer.lines import read_items
from gnomon.sampling.spacer.streams import ORDERS, Stream, arranged, encode, errors, zipf
from gnomon.study.protocol import Cell
from gnomon.study.runner import Running

SMALL = arranged(zipf(2000, 1.0), "shuffled", np.random.default_rng(0))
ALL = np.arange(SMALL.n)
streams = st.lists(st.integers(0, 9), min_size=1, max_size=80).map(lambda xs: Stream(encode(xs)))


# --- sketches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: CountMin(40, 3, random_state=1), lambda: CountSketch(40, 5, random_state=1)])
def test_sketches_are_linear_and_do_not_care_for_order(make):
    first, second = np.split(SMALL.items, 2)
    both = make().fit(SMALL).cells
    parts = [make().add(*np.unique(part, return_counts=True)).cells for part in (first, second)]
    assert (sum(parts) == both).all()
    one_by_one = make()
    for item in SMALL.items[:200]:
        one_by_one.add(np.array([item]), np.array([1]))
    assert (one_by_one.cells == make().add(*np.unique(SMALL.items[:200], return_counts=True)).cells).all()
    assert (make().fit(SMALL).add(ALL, -SMALL.counts).cells == 0).all()


def test_rows_of_a_sketch_have_hashes_of_their_own():
    """With one seed for all rows the median over rows does nothing."""
    sketch = CountSketch(64, 5, random_state=0)
    said = sketch.add(np.arange(3000), np.ones(3000)).rows(np.arange(3000))
    for a in range(5):
        for b in range(a):
            assert abs(np.corrcoef(said[a], said[b])[0, 1]) < 0.1
            assert (said[a] == said[b]).mean() < 0.3
    assert np.std(np.median(said, axis=0)) < 0.8 * np.std(said[0])


def test_hashes_collide_as_pairwise_independent_ones_do():
    """Also on consecutive ids, where a mere multiplication would collide less."""
    collided = []
    for seed in range(60):
        sketch = CountMin(50, 1, random_state=seed).add(np.arange(200), np.ones(200))
        collided.append((sketch.rows(np.arange(200)) - 1).sum() / (200 * 199))
    assert np.mean(collided) == pytest.approx(1 / 50, abs=4 * np.std(collided) / math.sqrt(60))


def test_count_sketch_is_unbiased_and_count_min_never_too_low():
    found = np.array([CountSketch(30, 1, random_state=s).fit(SMALL).estimate_many(ALL[:20]) for s in range(400)])
    assert (np.abs(found.mean(0) - SMALL.counts[:20]) < 4.5 * found.std(0) / 20).all()
    plain = CountMin(100, 3, random_state=2).fit(SMALL).estimate_many(ALL)
    careful = CountMin(100, 3, conservative=True, random_state=2).fit(SMALL).estimate_many(ALL)
    assert (careful >= SMALL.counts).all()
    assert (careful <= plain).all()
    assert careful.sum() < plain.sum()
    with pytest.raises(TypeError, match="not linear"):
        CountMin(10, conservative=True).add(ALL, SMALL.counts)


def test_medians_are_those_of_numpy():
    from gnomon.sampling.spacer.baselines import _median

    for rows in (1, 2, 3, 4, 5, 8):
        given = np.random.default_rng(rows).integers(-9, 9, (rows, 50))
        assert (_median(given) == np.median(given, axis=0)).all()


def test_count_sketch_pp_spends_its_cells_as_laid_out():
    sketch = CountSketchPP(256, tau=0.0, random_state=0)
    assert sketch.large.cells.shape == (3, 42)
    assert len(sketch.small) == 8
    assert {s.cells.shape for s in sketch.small} == {(3, 5)}
    assert sum(s.cells.size for s in (sketch.large, *sketch.small)) <= 256
    sketch.fit(SMALL)
    small, large = sketch.read(ALL)
    assert (small == np.median([s.estimate_many(ALL) for s in sketch.small], axis=0)).all()
    sketch.tau = float(np.quantile(small, 0.9))
    estimates = sketch.estimate_many(ALL)
    assert (estimates[small < sketch.tau] == 0).all()
    assert (estimates[small >= sketch.tau] == large[small >= sketch.tau]).all()
    with pytest.raises(ValueError, match="cells: got 4"):
        CountSketchPP(4)


@pytest.mark.parametrize("make", [lambda v: CountMin(v), lambda v: CountSketch(5, v), lambda v: SpaceSaving(v)])
def test_sizes_are_positive_integers(make):
    for wrong in (0, -1, 2.5):
        with pytest.raises(ValueError, match="expected an integer of 1 or more"):
            make(wrong)


# --- counters and predictions ----------------------------------------------------------------------------------------


@given(streams, st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_space_saving_is_spacer_that_always_admits(stream, k, seed):
    """Of two implementations, the counts agree exactly (they do not depend on ties)."""
    table = SpaceR(k, "always", seed)
    table.update_many(stream.items)
    found = SpaceSaving(k, seed).fit(stream).estimate_many(np.arange(stream.n))
    assert sorted(found[found > 0]) == sorted(table.items()[1])
    counters = MisraGries(k, seed).fit(stream).estimate_many(np.arange(stream.n))
    truth: dict = {}
    for item in stream.items.tolist():
        if item in truth or len(truth) < k:
            truth[item] = truth.get(item, 0) + 1
        else:
            truth = {i: c - 1 for i, c in truth.items() if c > 1}
    assert {i: c for i, c in enumerate(counters.tolist()) if c} == truth


def test_unbiased_space_saving_is_unbiased():
    stream = Stream(encode(np.random.default_rng(1).zipf(1.5, 300) % 25))
    found = np.array([SpaceSaving(6, s, unbiased=True).fit(stream).counts for s in range(3000)])
    assert (found.sum(1) == 300).all()
    assert (np.abs(found.mean(0) - stream.counts) <= 4.5 * found.std(0) / math.sqrt(3000)).all()


def test_oracles_say_what_they_promise():
    top = set(SMALL.top(20))
    assert set(perfect_oracle(20)(SMALL)) == top
    for flip, wrong in ((0, 0), (0.25, 5), (1, 20)):
        named = noisy_oracle(20, flip, 3)(SMALL)
        assert len(set(named)) == 20
        assert len(set(named) - top) == wrong
    for kind, memory in (("space-saving", 300), ("misra-gries", 300), ("count-sketch", 3000)):
        named = two_pass_oracle(kind, 10, memory, 0)(SMALL)
        assert set(named) <= set(ALL)
        assert len(set(named) & set(SMALL.top(10))) >= 8
    with pytest.raises(ValueError, match="flip"):
        noisy_oracle(5, 1.5)
    with pytest.raises(ValueError, match="kind"):
        two_pass_oracle("guess", 5, 5)


def test_predicted_items_are_counted_exactly_and_kept_out_of_the_sketch():
    learned = Learned(CountSketch(30, 3, random_state=0), perfect_oracle(50)).fit(SMALL)
    rest = SMALL.counts.copy()
    rest[SMALL.top(50)] = 0
    assert (learned.sketch.cells == CountSketch(30, 3, random_state=0).add(ALL, rest).cells).all()
    assert (learned.estimate_many(SMALL.top(50)) == SMALL.counts[SMALL.top(50)]).all()
    trivial = TrivialTop(perfect_oracle(50)).fit(SMALL).estimate_many(ALL)
    assert (trivial == SMALL.counts - rest).all()
    assert errors(SMALL, trivial, 100)["W"] == pytest.approx((rest**2).sum() / SMALL.total)


# --- streams ---------------------------------------------------------------------------------------------------------


def test_orders_keep_the_counts():
    items = zipf(500, 0.8)
    counts = sorted(np.bincount(items))
    for order in ORDERS:
        stream = arranged(items, order, np.random.default_rng(0))
        assert sorted(stream.counts) == counts
        runs = stream.counts[stream.items]
        rising, falling = bool((np.diff(runs) >= 0).all()), bool((np.diff(runs) <= 0).all())
        assert (rising, falling) == (order == "rare first", order == "frequent first" or order == "natural")
        switches = int((np.diff(stream.items) != 0).sum()) + 1
        assert (switches == stream.n) == (order != "shuffled")
    with pytest.raises(ValueError, match="order"):
        arranged(items, "sorted", np.random.default_rng(0))


def test_zipf_has_the_stated_counts():
    assert np.bincount(zipf(10, 1.0)).tolist() == [10, 5, 4, 3, 2, 2, 2, 2, 2, 1]
    assert len(zipf(2000, 1.2)) == sum(math.ceil(2000 / i**1.2 - 1e-9) for i in range(1, 2001))


def test_errors_by_hand():
    stream = Stream(np.repeat(np.arange(4), [5, 3, 1, 1]))
    found = errors(stream, np.array([4, 0, 2, 0]), 4)
    assert found["W"] == pytest.approx((5 * 1 + 3 * 3 + 1 + 1) / 10)
    assert found["U"] == pytest.approx((1 + 3 + 1 + 1) / 4)
    assert found["relative"] == pytest.approx((0.2 + 1) / 2)
    assert found["recall"] == found["overlap"] == 0.5
    ties = Stream(np.repeat(np.arange(4), [5, 2, 2, 1]))
    assert errors(ties, np.array([5, 0, 2, 0]), 4)["recall"] == 1  # as frequent as the second
    assert errors(ties, ties.counts, 4) == {"W": 0, "U": 0, "relative": 0, "recall": 1, "overlap": 1}


# --- text ------------------------------------------------------------------------------------------------------------

LOG = "1 a x\n2 b\n\n3 a z\n4 ünï w\n"


def items_of(*arguments, **options) -> list[str]:
    return [item for block in read_items(*arguments, **options) for item in block]


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_lines_and_fields_of_plain_and_packed_files(tmp_path, suffix):
    path = tmp_path / f"access.log{suffix}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[suffix](LOG.encode()))
    assert items_of(path) == LOG.splitlines()
    assert items_of(str(path), 2, block=2) == ["a", "b", "a", "ünï"]
    assert [len(block) for block in read_items(path, 1, block=3)] == [3, 1]
    with pytest.raises(ValueError, match="line 2: field 3 was asked for, but it has 2"):
        items_of(path, 3)


def test_standard_input_csv_and_bytes_that_are_no_text(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b'a,"x, y"\r\nb,z\r\n')))
    assert items_of("-", 2, ",") == ["x, y", "z"]
    path = tmp_path / "log"
    path.write_bytes(b'a,1\n"b\nc",2\nd\n')
    with pytest.raises(ValueError, match="line 4: field 2"):
        items_of(path, 2, ",")
    path.write_bytes(b"\xff\xfe\nok\n")
    table = SpaceR(3, random_state=0)
    table.update_many(items_of(path))
    assert {i.encode("utf-8", "surrogateescape") for i, _ in table.top()} == {b"\xff\xfe", b"ok"}


def test_unreadable_files_name_themselves(tmp_path):
    whole = gzip.compress(LOG.encode() * 1000)
    for name, data in (("cut.gz", whole[:-20]), ("plain.gz", b"no gzip"), ("plain.bz2", b"no bzip2")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name} cannot be read"):
            items_of(tmp_path / name)
    with pytest.raises(ValueError, match="absent cannot be read: No such file"):
        items_of(tmp_path / "absent")
    (tmp_path / "open.csv").write_text('a,b\nc,"' + "x\n" * 70_000)
    with pytest.raises(ValueError, match=r"open.csv, line \d+: .*does a quote not end\?"):
        items_of(tmp_path / "open.csv", 2, ",")
    for field, sep in ((0, None), (1, "ab"), (None, ",")):
        with pytest.raises(ValueError, match=r"field|sep"):
            items_of(tmp_path / "cut.gz", field, sep)


# --- the command -----------------------------------------------------------------------------------------------------


def command(*words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["gnomon", *words])
        try:
            cli.main()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "access.log.gz"
    lines = [f"10.0.0.{x % 7} GET /{x}" for x in np.random.default_rng(0).zipf(1.5, 2000) % 500]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path, collections.Counter(line.split()[2] for line in lines)


def test_run_prints_and_saves_the_top_of_a_log(log, tmp_path, capsys):
    path, truth = log
    keep = tmp_path / "kept"
    assert command("run", "spacer", "--input", str(path), "--field", "3", "--capacity", "64", "--top", "5",
                   "--save", str(keep), "--figure", str(tmp_path / "ranks.svg"), "--json") == 0  # fmt: skip
    shown = capsys.readouterr().out
    for item, _ in truth.most_common(3):
        assert item in shown
    rows = (keep / "items.csv").read_text().splitlines()
    assert rows[0] == "item,estimate,at least,std,share"
    assert len(rows) == 65
    table = SpaceR.from_bytes((keep / "table.spacer").read_bytes())
    assert table.n_seen_ == 2000
    assert [r.split(",")[0] for r in rows[1:6]] == [item for item, _ in table.top(5)]
    assert (tmp_path / "ranks.svg").stat().st_size > 1000
    assert command("run", "spacer", "--input", str(path), "--field", "3", "--beside") == 0
    assert "always" in capsys.readouterr().out


def test_the_documented_command_and_example_run(tmp_path, monkeypatch, capsys):
    study = catalog.find("spacer").study()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "access.log").write_text("10.0.0.1 GET /\n10.0.0.2 GET /a\n10.0.0.1 GET /b\n")
    assert command(*study.command.split()[1:]) == 0
    assert "10.0.0.1" in capsys.readouterr().out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"x\ny\nx\n")))
        assert command("run", "spacer", "--input", "-", "--top", "1") == 0
    assert "3 items read" in capsys.readouterr().out
    exec(study.example, {})
    assert capsys.readouterr().out == "[('to', 5), ('be', 3)] 1 5\n"


def test_items_are_shown_as_they_are(tmp_path, capsys):
    """Neither as markup, nor as what a terminal obeys."""
    path = tmp_path / "log"
    path.write_bytes(b"[error] [/] x\n\x1b[31mred\n\xff\0a\n\xff\0b\n")
    assert command("run", "spacer", "--input", str(path)) == 0
    shown = capsys.readouterr().out
    for item in ("[error] [/] x", "\\x1b[31mred", "\\udcff\\x00a", "\\udcff\\x00b"):
        assert item in shown
    assert "\x1b" not in shown


def test_an_empty_file_and_a_pipe_are_streams(tmp_path, capsys):
    (tmp_path / "empty").write_text("")
    assert command("run", "spacer", "--input", str(tmp_path / "empty"), "--beside", "--save", str(tmp_path / "kept"),
                   "--figure", str(tmp_path / "f.svg")) == 0  # fmt: skip
    assert "0 items read" in capsys.readouterr().out
    assert (tmp_path / "kept" / "items.csv").read_text() == "item,estimate,at least,std,share\n"
    reading, writing = os.pipe()
    os.write(writing, b"x\ny\nx\n")
    os.close(writing)
    assert command("run", "spacer", "--input", f"/dev/fd/{reading}") == 0
    os.close(reading)
    assert "3 items read" in capsys.readouterr().out


def test_mistakes_are_one_line_and_leave_nothing(log, tmp_path, capsys):
    path, _ = log
    for words in (["--input", "absent.log"], ["--input", str(path), "--field", "9"], ["--input", str(path), "--capacity", "0"],
                  ["--input", str(path), "--capacity", str(10**13)], ["--input", str(tmp_path)],
                  ["--input", str(path), "--sep", ","], ["--input", str(path), "--field", "0"]):  # fmt: skip
        assert command("run", "spacer", *words, "--save", str(tmp_path / "kept")) == 2
        said = capsys.readouterr()
        assert "Traceback" not in said.err + said.out
        assert said.err.strip()
    assert not (tmp_path / "kept").exists()


# --- the study -------------------------------------------------------------------------------------------------------


def test_smoke_check_runs_end_to_end_and_again_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_for_spacer.py").write_text("def mean(stream, budget, rng):\n    return stream.counts * 0 + 1\n")
    running = Running(jobs=1, results=tmp_path / "a", contenders=("mine=mine_for_spacer:mean",))
    first = gnomon.check("spacer", scale="smoke", running=running)
    verdicts = {v.id: v.verdict for v in first.verdicts}
    assert verdicts["trivial-closed-form"] == verdicts["trivial-limit"] == "holds"
    assert set(first.tables) >= {"Accuracy", "Best", "Ratios", "Crossings", "Law"}
    best = first.tables["Best"].groupby(["source", "budget", "B", "contender"])["W"].mean().unstack()
    assert (best["spacer"] < best["Space Saving"]).all()
    assert (best["spacer"] < best["mine"]).all()
    assert (best["trivial, perfect"] <= best["learned CountSketch++, perfect"]).all()
    assert first.figure is not None

    study = catalog.find("spacer").study()
    experiment = study.experiments[0]()
    inputs = study.Inputs.at("smoke")
    cell = Cell({"source": "Zipf 1, n = 2000", "order": "shuffled"}, 0)
    problem = experiment.prepare(inputs, cell, np.random.default_rng(0))
    for name, contender in experiment.contenders.items():
        rows = [experiment.measure(problem, contender, np.random.default_rng(1)) for _ in range(2)]
        assert rows[0] == rows[1], name
        json.dumps(rows[0])


def test_a_stream_of_ones_own_is_judged_alone(tmp_path):
    path = tmp_path / "words.txt"
    rng = np.random.default_rng(0)
    path.write_text("\n".join(f"w{x}" for x in rng.permutation(zipf(3000, 1.0))))
    check = gnomon.check("spacer", scale="smoke", stream=path, seeds=1, running=Running(jobs=1, results=tmp_path / "r"))
    assert set(check.tables["Accuracy"]["source"]) == {"file"}
    assert check.tables["Accuracy"]["main"].any()
    study = catalog.find("spacer").study()
    path.write_text("a\na\0\nb\n")
    ids = study.experiments[0]().encoded(study.Inputs.at("smoke", stream=path), Cell({"source": "file"}, None))
    assert ids.tolist() == [0, 1, 2]
    path.write_text("a\nb\n")
    with pytest.raises(ValueError, match="--stream: it has 2 distinct items"):
        gnomon.check("spacer", scale="smoke", stream=path, seeds=1, running=Running(jobs=1, results=tmp_path / "r"))
    with pytest.raises(ValueError, match="text file that exists"):
        catalog.find("spacer").study().Inputs.at("smoke", stream="absent")
    with pytest.raises(ValueError, match="--stream: this scale reads a stream of yours"):
        gnomon.check("spacer", scale="paper", running=Running(jobs=1, results=tmp_path / "p"))
