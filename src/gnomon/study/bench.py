"""What every benchmark script needs: calls timed in turns, a table on the screen, the same rows in a JSON file.

A script in ``benchmarks/<area>/bench_<system>.py`` reads

.. code-block:: python

    options = bench.parser(__file__, __doc__).parse_args()
    table = bench.Table()
    times = bench.seconds({"ours": ours, "peer": peer}, repeats=5)
    table.times("a call at n = 1000", times)
    table.save(options.json)

and the documentation shows the rows beside the system.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import rich

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def parser(file: str, doc: str | None) -> argparse.ArgumentParser:
    """Options of the script ``file``: ``--json`` (by default ``results/<area>/<system>.json`` beside the areas) and ``--clock``."""
    script = Path(file).resolve()
    default = script.parents[1] / "results" / script.parent.name / f"{script.stem.removeprefix('bench_')}.json"
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, default=default, help="where to write the figures")
    made.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: processor time, for a machine that is shared"
    )
    return made


def seconds(
    calls: Mapping[str, Callable[[], Any]],
    repeats: int = 5,
    *,
    clock: Literal["wall", "cpu"] = "wall",
    warm: bool = True,
) -> dict[str, float]:
    """The least time of each call, one after the other in turns: what a busy machine adds is never negative.

    Parameters
    ----------
    calls : mapping of str to callable
        What is timed; by custom this implementation first.
    repeats : int
        Turns.
    clock : {"wall", "cpu"}
        Elapsed or processor seconds (of all threads of this process together).
    warm : bool
        Whether each is called once, untimed, first.

    Returns
    -------
    dict of str to float
        Seconds.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; at least 1 is needed")
    now = CLOCKS[clock]
    if warm:
        for call in calls.values():
            call()
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = now()
            call()
            best[name] = min(best[name], now() - start)
    return best


class Table:
    """Rows of figures, shown as they come.

    Attributes
    ----------
    rows : list of dict
        ``name``, ``value``, ``unit`` and ``ratio`` (a peer's figure over this implementation's, or None).
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, name: str, value: float, unit: str, ratio: float | None = None, **more: float | str) -> None:
        """One figure, shown at once; ``more`` are further columns."""
        row = {"name": name, "value": float(f"{value:.4g}"), "unit": unit}
        row["ratio"] = None if ratio is None else float(f"{ratio:.3g}")
        self.rows.append({**row, **more})
        tail = "" if ratio is None else f"  {ratio:8.3g} x ours"
        tail += "".join(f"  {key} {value}" for key, value in more.items())
        _say(f"{name:72s} {value:10.4g} {unit}{tail}")

    def times(self, work: str, times: Mapping[str, float], unit: Literal["s", "ms", "us"] = "ms") -> None:
        """Seconds of each call of `seconds`: the first is this implementation, the others get their ratio to it."""
        scale = {"s": 1.0, "ms": 1e3, "us": 1e6}[unit]
        own = next(iter(times.values()))
        for position, (name, spent) in enumerate(times.items()):
            self.add(f"{work}: {name}", spent * scale, unit, spent / own if position else None)

    def save(self, path: Path) -> None:
        """Write the rows whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(self.rows, indent=1) + "\n", encoding="utf-8")
        os.replace(part, path)
        _say(f"written: {path}")


def _say(line: str) -> None:
    rich.get_console().print(line, markup=False, highlight=False, soft_wrap=True)
