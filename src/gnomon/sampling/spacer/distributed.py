"""One table from the partitions of a stream, each read where it lies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import joblib
import numpy as np

from gnomon.sampling.spacer.keys import blocks
from gnomon.sampling.spacer.method import SpaceR


def spacer_partitioned(
    partitions: Sequence[Iterable[Any] | Callable[[], Iterable[Any]]],
    capacity: int,
    admission: str = "inverse",
    reduce: str = "largest",
    random_state: int | None = None,
    n_jobs: int | None = None,
) -> SpaceR:
    """Summarise each partition of a stream in a table of its own, in parallel, and merge the tables.

    The work goes to joblib: processes on this machine with ``n_jobs``, or whatever backend the caller has set, a Ray or
    Dask cluster too. Tables travel, streams do not.

    Parameters
    ----------
    partitions : sequence of arrays, iterables or functions
        A function is called by the worker and returns the partition, so that each worker reads its own file.
    capacity, admission : as in :class:`SpaceR`
        Of every table.
    reduce : {"largest", "unbiased"}, default "largest"
        As in :meth:`SpaceR.merge`; take ``"unbiased"`` with ``admission="unbiased"``.
    random_state : int or None, default None
        Each partition gets coins of its own from it; the result does not depend on who did what when.
    n_jobs : int or None, default None
        Number of workers; None: what the surrounding ``joblib.parallel_config`` says, else 1.

    Returns
    -------
    SpaceR
        Of the whole stream. Without partitions, an empty table.

    Raises
    ------
    ValueError, TypeError
        As :class:`SpaceR` and :meth:`SpaceR.merge`, before any partition is read where that can be known.

    Examples
    --------
    On a Dask cluster (``client = distributed.Client(...)``), and on Ray after ``ray.util.joblib.register_ray()``::

        with joblib.parallel_config(backend="dask"):  # or "ray"
            table = spacer_partitioned([functools.partial(read, path) for path in paths], capacity=4096)
    """
    empty = SpaceR(capacity, admission, random_state)
    empty.merge(empty, reduce)  # what cannot merge should say so before the work, not after it
    seeds = np.random.SeedSequence(random_state).spawn(len(partitions))
    tables = joblib.Parallel(n_jobs=n_jobs)(
        joblib.delayed(_summary)(part, capacity, admission, seed) for part, seed in zip(partitions, seeds, strict=True)
    )
    return functools.reduce(lambda left, right: left.merge(right, reduce), tables) if tables else empty


def _summary(partition: Any, capacity: int, admission: str, seed: np.random.SeedSequence) -> SpaceR:
    table = SpaceR(capacity, admission, seed)
    for block in blocks(partition() if callable(partition) else partition):
        table.update_many(block)
    return table
