"""Runs a study: stages first, then what is not timed in parallel, then what is timed, alone; one record each."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import threadpoolctl

from gnomon import cache
from gnomon.study import records
from gnomon.study.protocol import Cell, Experiment, Inputs, StageCall, Study

if TYPE_CHECKING:
    import pandas as pd

    from gnomon.catalog import System

BACKENDS = ("local", "ray", "dask")


@dataclass(frozen=True)
class Running:
    """How to run: nothing here may change a record."""

    jobs: int = 0  # 0: as many as there are cores
    backend: str = "local"
    address: str | None = None
    results: Path = field(default_factory=records.default_folder)
    fresh: bool = False
    contenders: tuple[str, ...] = ()  # a person's own, "name=package.module:factory"
    progress: Callable[[str, int, int], None] | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"backend {self.backend!r}: expected one of {', '.join(BACKENDS)}")
        if self.jobs < 0:
            raise ValueError(f"jobs {self.jobs}: expected a positive number, or 0 for all cores")


@dataclass(frozen=True)
class Job:
    """One contender in one cell with one seed; sent to a worker as it is."""

    experiment: type[Experiment]
    inputs: Inputs
    cell: Cell
    contender: str
    own: str | None = None  # "package.module:factory" of a person's own contender

    @property
    def label(self) -> str:
        return f"{self.experiment.__name__} [{self.cell!r}] {self.contender}"

    @property
    def problem_key(self) -> str:
        return json.dumps([self.experiment.__name__, records.content(dict(self.cell)), self.cell.seed], sort_keys=True)

    def key(self, shown: dict[str, Any], code: str) -> str:
        mine = records.file_content(Path(_factory_file(self.own))) if self.own else None
        return records.short_hash([records.PROTOCOL, self.experiment.__module__, self.experiment.__qualname__, shown,
                                   records.content(dict(self.cell)), self.contender, self.own, mine, self.cell.seed, code])  # fmt: skip


# --- the plan --------------------------------------------------------------------------------------------------------


def plan(study: type[Study], inputs: Inputs, own: Iterable[str] = ()) -> list[Job]:
    """All jobs at the inputs' scale, those of one problem next to each other."""
    jobs = []
    mine = dict(parse_contender(text) for text in own)
    for experiment in study.all_experiments():
        cut = type(inputs).scales.get(inputs.scale, {}).get(experiment.__name__, {})
        if cut is False:
            continue
        names = [n for n in experiment.contenders if n in cut.get("contenders", experiment.contenders)]
        if clash := set(mine) & set(experiment.contenders):
            raise ValueError(f"contender {clash.pop()!r} is already one of the study's; choose another name")
        count = cut.get("seeds", experiment.seeds)
        count = inputs.seeds if count is None else min(count, inputs.seeds) if experiment.seeds is None else count
        for axes in _cut_cells(experiment.cells, cut.get("cells")):
            for seed in range(count) if experiment.seeds != 0 else [None]:
                cell = Cell(axes, seed)
                for name in [*names, *mine]:
                    if name in mine or experiment().includes(inputs, cell, name):
                        jobs.append(Job(experiment, inputs, cell, name, mine.get(name)))
    return jobs


def _cut_cells(cells: list[dict[str, Any]], cut: Any) -> list[dict[str, Any]]:
    if cut is None:
        return cells
    if isinstance(cut, list):
        return cut
    return [c for c in cells if all(c.get(axis) in kept for axis, kept in cut.items() if axis in c)]


def parse_contender(text: str) -> tuple[str, str]:
    name, _, spec = text.partition("=")
    if not name or ":" not in spec:
        raise ValueError(f"contender {text!r}: expected name=package.module:factory")
    return name, spec


def _load(spec: str) -> Any:
    module, _, attribute = spec.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a person's own file lies where they stand
    try:
        return functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ValueError(f"contender {spec!r} cannot be loaded: {error}") from error


def _factory_file(spec: str) -> str:
    _load(spec)
    return str(sys.modules[spec.partition(":")[0]].__file__)


# --- in a worker -----------------------------------------------------------------------------------------------------


def generator(*what: Any) -> np.random.Generator:
    """A generator that depends on nothing but what it is for."""
    digest = hashlib.sha256(json.dumps(what).encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))


def _seed_globals(rng: np.random.Generator) -> None:
    """Libraries that draw from global generators give the same record again."""
    seed = int(rng.integers(2**31))
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Every number is made by one thread, so that it does not depend on how many jobs run."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else os.cpu_count()
    given = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # for what is imported from here on
    if torch:
        torch.set_num_threads(1)
    try:
        with threadpoolctl.threadpool_limits(1):
            yield
    finally:
        os.environ.pop("OMP_NUM_THREADS") if given is None else os.environ.update(OMP_NUM_THREADS=given)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(before)


_last: dict[str, Any] = {}  # the last problem of this process: its other contenders come next


def _problem(job: Job) -> Any:
    key = repr((job.experiment.__module__, job.problem_key, records.inputs_content(job.inputs)))
    if key not in _last:
        _last.clear()
        rng = generator("problem", job.problem_key)
        _seed_globals(rng)
        _last[key] = job.experiment().prepare(job.inputs, job.cell, rng)
    return _last[key]


def _reset_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak_mb() -> float:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    import psutil

    return float(psutil.Process().memory_info().rss) / 2**20


@dataclass
class Measured:
    rows: list[dict[str, Any]]
    wall_s: float
    cpu_s: float
    peak_mb: float


def measure(job: Job, repeat: int | None = None) -> Measured:
    """Prepare (or reuse) the problem, run the contender once, and say what it cost."""
    with one_thread():
        try:
            problem = _problem(job)
            contender = _load(job.own) if job.own else job.experiment.contenders[job.contender]
            rng = generator("contender", job.problem_key, job.contender)
            _seed_globals(rng)
            _reset_peak()
            wall, cpu = time.perf_counter(), time.process_time()
            rows = [dict(row) for row in job.experiment().measure(problem, contender, rng)]
            cost = Measured(rows, time.perf_counter() - wall, time.process_time() - cpu, _peak_mb())
        except Exception as error:
            error.add_note(f"while measuring {job.label}")
            raise
    if repeat is not None:
        for row in rows:
            row["repeat"] = repeat
    return cost


def _warm(call: StageCall) -> None:
    """A stage as a job of its own."""
    with one_thread():
        _seed_globals(generator("stage", call.key))
        cache.stage(call)


# --- in the process that asked ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _backend(running: Running) -> Iterator[int]:
    """joblib's own backends; yields the number of workers."""
    if running.backend == "local":
        workers = running.jobs or joblib.cpu_count()
        with joblib.parallel_config(backend="loky", n_jobs=workers, inner_max_num_threads=1):
            yield workers
    elif running.backend == "ray":
        ray: Any = importlib.import_module("ray")
        importlib.import_module("ray.util.joblib").register_ray()
        started = not ray.is_initialized()
        if started:
            ray.init(address=running.address, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
        try:
            workers = running.jobs or int(ray.cluster_resources().get("CPU", 1))
            with joblib.parallel_config(backend="ray", n_jobs=workers):
                yield workers
        finally:
            if started:
                ray.shutdown()
    else:
        local = {"n_workers": running.jobs or joblib.cpu_count(), "threads_per_worker": 1, "dashboard_address": None}
        distributed: Any = importlib.import_module("distributed")
        with distributed.Client(running.address, **({} if running.address else local)) as client:
            workers = running.jobs or len(client.scheduler_info()["workers"])
            with joblib.parallel_config(backend="dask", n_jobs=workers):
                yield workers


def _indexed(index: int, function: Callable[..., Any], argument: Any) -> tuple[int, Any]:
    return index, function(argument)


def _each(function: Callable[[Any], Any], arguments: list[Any], running: Running) -> Iterator[tuple[int, Any]]:
    """(index, result) as they come; in this process when one worker is enough."""
    if not arguments:
        return
    if running.backend == "local" and (running.jobs == 1 or len(arguments) == 1):
        for i, argument in enumerate(arguments):
            yield i, function(argument)
        return
    calls = [joblib.delayed(_indexed)(i, function, a) for i, a in enumerate(arguments)]
    with _backend(running) as workers:
        if running.backend != "ray":
            yield from joblib.Parallel(return_as="generator_unordered", batch_size=1)(calls)
            return
        step = 4 * workers  # Ray's backend gives lists only: small ones, so that finished records are kept as we go
        for start in range(0, len(calls), step):
            yield from joblib.Parallel(batch_size=1)(calls[start : start + step])


def run(system: System, inputs: Inputs, running: Running) -> dict[str, pd.DataFrame]:
    """The tables of a study: from the records that are there, and from new ones for the rest.

    Interrupted, it leaves every finished record in place; called again, it goes on.
    """
    study = system.study()
    jobs = plan(study, inputs, running.contenders)
    store = records.Store(running.results, system.area, system.name)
    shown, code = records.inputs_content(inputs), records.code_digest(f"{system.module}.study")
    keys = [job.key(shown, code) for job in jobs]
    found = {} if running.fresh else {k: r for k in keys if (r := store.read(k)) is not None}
    missing = [(j, k) for j, k in zip(jobs, keys, strict=True) if k not in found]
    total, done = len(jobs), len(jobs) - len(missing)

    def tell(label: str, done: int, total: int) -> None:
        if running.progress:
            running.progress(f"{system.slug}: {label}", done, total)

    tell("planning", done, total)

    def keep(job: Job, key: str, cost: Measured) -> None:
        nonlocal done
        found[key] = records.Record(system.slug.replace("-", "_"), job.experiment.__name__, shown, dict(job.cell),
                                    job.contender, job.cell.seed, code, cost.rows, cost.wall_s, cost.cpu_s, cost.peak_mb,
                                    1, records.environment())  # fmt: skip
        store.write(key, found[key])
        done += 1
        tell(job.label, done, total)

    for wave in _stage_waves([job for job, _ in missing]):
        for i, _ in _each(_warm, wave, running):
            tell(f"stage {wave[i].stage.name}", done, total)
    plain = [(j, k) for j, k in missing if not j.experiment.timed()]
    for i, cost in _each(measure, [j for j, _ in plain], running):
        keep(*plain[i], cost)
    timed = [(j, k) for j, k in missing if j.experiment.timed()]
    if timed and running.jobs != 1:
        _alone()
    if timed:
        for group in _problems(timed):
            for (job, key), cost in zip(group, _interleaved([j for j, _ in group]), strict=True):
                keep(job, key, cost)
    _last.clear()
    return tables([(j, found[k]) for j, k in zip(jobs, keys, strict=True)])


def _stage_waves(jobs: list[Job]) -> Iterator[list[StageCall]]:
    """The stages that the jobs need and the cache lacks; a stage defined later may lean on an earlier one."""
    experiments = list(dict.fromkeys(j.experiment for j in jobs))
    for position in range(max((len(e.stages()) for e in experiments), default=0)):
        calls = {}
        for job in jobs:
            stages = job.experiment.stages()
            if position < len(stages):
                call = stages[position].call(job.experiment, job.inputs, job.cell)
                calls[call.key] = call
        lacking = [call for call in calls.values() if not cache.has(call)]
        if lacking:
            yield lacking


def _problems(jobs: list[tuple[Job, str]]) -> list[list[tuple[Job, str]]]:
    groups: dict[str, list[tuple[Job, str]]] = {}
    for job, key in jobs:
        groups.setdefault(job.problem_key, []).append((job, key))
    return list(groups.values())


def _alone() -> None:
    """Idle workers hold memory and may still be winding down."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


def _interleaved(jobs: list[Job]) -> list[Measured]:
    """Every contender in turn, again and again: a drift of the machine meets all alike."""
    runs: list[list[Measured]] = [[] for _ in jobs]
    for repeat in range(jobs[0].experiment.repeats):
        for i, job in enumerate(jobs):
            runs[i].append(measure(job, repeat))
    return [replace(r[0], rows=[row for m in r for row in m.rows], wall_s=sum(m.wall_s for m in r),
                    cpu_s=sum(m.cpu_s for m in r), peak_mb=max(m.peak_mb for m in r)) for r in runs]  # fmt: skip


def tables(pairs: Iterable[tuple[Job, records.Record]]) -> dict[str, pd.DataFrame]:
    """One table per experiment: cell axes, contender, seed, the rows' own columns, and what the record cost."""
    import pandas as pd

    rows: dict[str, list[dict[str, Any]]] = {}
    for job, record in pairs:
        cost = {"wall_s": record.wall_s, "cpu_s": record.cpu_s, "peak_mb": record.peak_mb}
        front = {**dict(job.cell), "contender": record.contender, "seed": record.seed}
        rows.setdefault(record.experiment, []).extend({**cost, **front, **row} for row in record.rows)
    return {name: pd.DataFrame(r) for name, r in rows.items()}
