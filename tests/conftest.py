"""One cache of stages for the run, the data folder of the design, and a list of files that are over their budget."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUDGET = 40.0  # seconds of one core for a test file

_spent: dict[str, float] = defaultdict(float)
_stale: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """The process that starts the run makes the folders; its workers inherit the environment."""
    data = ROOT.parent / "shared" / "data"
    if "GNOMON_DATA" not in os.environ and data.is_dir():
        os.environ["GNOMON_DATA"] = str(data)
    if not hasattr(config, "workerinput"):
        config.stash[_folder] = room = tempfile.mkdtemp(prefix="gnomon-tests-")
        os.environ["GNOMON_CACHE"] = os.path.join(room, "cache")
        os.environ["GNOMON_RESULTS"] = os.path.join(room, "results")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


_folder = pytest.StashKey[str]()


def pytest_unconfigure(config: pytest.Config) -> None:
    if room := config.stash.get(_folder, None):
        shutil.rmtree(room, ignore_errors=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _spent[report.nodeid.split("::")[0]] += report.duration
    if report.when == "call":
        _stale.extend(value for name, value in report.user_properties if name == "stale")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    over = sorted(((s, f) for f, s in _spent.items() if s > BUDGET), reverse=True)
    if over and not hasattr(terminalreporter.config, "workerinput"):
        terminalreporter.section(f"files over {BUDGET:.0f} s")
        for seconds, file in over:
            terminalreporter.write_line(f"{seconds:7.1f} s  {file}")
    if _stale:
        terminalreporter.section("evidence older than its code (check again)")
        terminalreporter.write_line(", ".join(sorted(_stale)))


@pytest.fixture
def invoke(monkeypatch):
    """``gnomon`` in this process: arguments in, exit code out."""
    from rich.console import Console

    from gnomon import cli

    def call(*arguments):
        monkeypatch.setattr(cli, "out", Console(width=200))  # so that no cell is cut, whatever the terminal
        monkeypatch.setattr("sys.argv", ["gnomon", *arguments])
        try:
            cli.main()
        except SystemExit as stop:
            return stop.code or 0
        return 0

    return call


@pytest.fixture
def command_line(monkeypatch, capsys, invoke):
    """The same in a folder: ``(folder, *arguments)`` give exit code, output, and what went wrong."""

    def run(folder, *arguments):
        monkeypatch.chdir(folder)
        capsys.readouterr()
        return invoke(*arguments), *capsys.readouterr()

    return run
