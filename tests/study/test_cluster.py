"""The same records from a real local Ray cluster of two workers and from Dask as from this machine's processes."""

from __future__ import annotations

import pytest

from gnomon import catalog
from gnomon.study.runner import Running, run

pytestmark = pytest.mark.cluster


def rows(system, tmp_path, backend, address=None):
    running = Running(jobs=2, backend=backend, address=address, results=tmp_path / backend)
    tables = run(system, system.study().Inputs.at("smoke"), running)
    costs = ["wall_s", "cpu_s", "peak_mb"]
    return {name: t.drop(columns=costs) for name, t in tables.items() if not _timed(system, name)}


def _timed(system, name):
    return next(e for e in system.study().all_experiments() if e.__name__ == name).timed()


@pytest.mark.parametrize("backend", ["ray", "dask"])
@pytest.mark.timeout(400)
def test_spacer_gives_the_same_records(tmp_path, monkeypatch, backend):
    monkeypatch.setenv("GNOMON_CACHE", str(tmp_path / "cache"))
    system = catalog.find("spacer")
    here = rows(system, tmp_path, "local")
    if backend == "ray":
        ray = pytest.importorskip("ray")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        there = rows(system, tmp_path, backend)
    finally:
        if backend == "ray":
            ray.shutdown()
    assert set(here) == set(there)
    for name in here:
        assert here[name].equals(there[name]), name
