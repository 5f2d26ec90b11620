"""The command line: mistakes give one line and exit code 2, options come from the study's inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gnomon import catalog


def gnomon(*arguments: str, cwd=None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gnomon.cli", *arguments], capture_output=True, text=True, check=False,
                          cwd=cwd, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "160", **environment})  # fmt: skip


def test_version():
    assert gnomon("--version").stdout.startswith("gnomon 0.")


def test_list_is_a_table_and_json():
    plain = gnomon("list")
    assert plain.returncode == 0
    assert "spacer" in plain.stdout
    rows = json.loads(gnomon("list", "--json").stdout)
    assert {r["system"] for r in rows} == {s.slug for s in catalog.systems()}


def test_help_shows_the_options_of_the_study():
    text = gnomon("run", "spacer", "--help").stdout
    for option in ("--input", "--capacity", "--save", "--beside"):
        assert option in text
    assert "--seeds" in gnomon("check", "spacer", "--help").stdout


@pytest.mark.parametrize(("arguments", "says"), [
    (["run", "ghosted-layer"], "did you mean ghosted-layers"),
    (["check", "nonsense"], "unknown system"),
    (["show", "nonsense"], "unknown system"),
    (["list", "--area", "cooking"], "unknown area"),
    (["check", "spacer", "--scale", "huge"], "--scale"),
    (["check", "spacer", "--seeds", "many"], "--seeds"),
    (["check", "spacer", "--seeds", "0"], "--seeds"),
    (["check", "spacer", "--backend", "slurm"], "backend"),
    (["check", "spacer", "--contender", "x"], "name=package.module:factory"),
    (["check"], "--all"),
    (["run", "spacer"], "--input"),
    (["run", "ghosted-layers", "--model", "no/such/folder/here"], "--model"),
])  # fmt: skip
def test_a_mistake_gives_one_line_and_two(arguments, says, tmp_path):
    done = gnomon(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_debug_gives_the_traceback():
    assert "Traceback" in gnomon("--debug", "check", "nonsense").stderr


def test_unknown_option_is_a_usage_error():
    done = gnomon("check", "spacer", "--no-such-option")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_save_never_overwrites(tmp_path):
    (tmp_path / "log.txt").write_text("a\nb\na\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("precious")
    line = ["run", "spacer", "--input", "log.txt", "--capacity", "4", "--save", "out"]
    refused = gnomon(*line, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert (tmp_path / "out/mine.txt").read_text() == "precious"
    assert gnomon(*line, "--force", cwd=tmp_path).returncode == 0
    assert not (tmp_path / "out/mine.txt").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.txt", "out"]


def test_no_colour_off_a_terminal():
    assert "\x1b" not in gnomon("list", NO_COLOR="").stdout


def test_cache_tells_its_size(tmp_path):
    shown = json.loads(gnomon("cache", "--json", GNOMON_CACHE=str(tmp_path / "c")).stdout)
    assert shown["bytes"] == 0
    assert oct((tmp_path / "c").stat().st_mode & 0o777) == "0o700"
