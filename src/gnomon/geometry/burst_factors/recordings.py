"""The recordings of the study, as counts: cultures, retina, cerebellum, antennal lobe, or a person's own file."""

from __future__ import annotations

import functools
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon import datasets
from gnomon.geometry.burst_factors.spikes import parse_bursts, read_spikes

Array = NDArray[Any]
PURKINJE = {"Purkinje, control": "ctl", "Purkinje, bicuculline": "bicu"}
LOBE = {"antennal lobe, vanillin": ("CAL1V", 10.0), "antennal lobe, citronellal": ("e070528citronellal", 13.0)}
NAMES = ("culture", "retina", *PURKINJE, *LOBE)
MIN_BURSTS = 20


@dataclass(frozen=True)
class Recording:
    """Counts of the bins and neurons kept, and what the jitter null needs: all bins' spikes and how they were parsed."""

    E: Array
    B: Array
    trials: Array | None
    trains: list[Array]
    bin_size: float
    theta: float

    def all_bins(self) -> tuple[Array, Array]:
        """Counts of every bin from 0 on."""
        E, B, _ = parse_bursts(self.trains, self.bin_size, self.theta, t_start=0.0)
        return E, B


def load(name: str, spikes: Path | None = None, bin_size: float = 0.25, theta: float = 0.016) -> Recording:
    """A recording by its name in ``NAMES``, or "own" with a file of spike times.

    Culture and retina: 1 s bins, theta 20 ms, bins with at least 5 events; the first 40 electrodes, and the units with at
    least 20 bursts there. Purkinje cells: 0.5 s bins, theta 6 ms, cells with more than 20 bursts. Antennal lobe:
    0.25 s bins of all odour trials, theta 16 ms.
    """
    if name in LOBE:
        return _trials(*LOBE[name])
    if name in PURKINJE:
        return _kept([cell[PURKINJE[name]] for cell in _star()["mPK"].values()], 0.5, 0.006, 1, MIN_BURSTS + 1)
    if name == "own":
        if spikes is None:
            raise ValueError("--spikes: name the file of spike times")
        return _kept(list(read_spikes(spikes).values()), bin_size, theta, 1, 1)
    if name not in NAMES:
        raise ValueError(f"recording {name!r}: expected one of {', '.join(NAMES)} or own")
    file = {"culture": "hippocampus_DIV15.txt.gz", "retina": "retina_P9.txt.gz"}[name]
    trains = list(read_spikes(datasets.data_file("burst_factors", file)).values())
    return _kept(trains, 1.0, 0.02, 5, MIN_BURSTS, 40 if name == "culture" else None)


def _kept(trains: list[Array], bin_size: float, theta: float, events: int, bursts: int,
          first: int | None = None) -> Recording:  # fmt: skip
    """Bins with enough events, then neurons (at most the ``first``) with enough bursts there."""
    E, B, _ = parse_bursts(trains, bin_size, theta, t_start=0.0)
    rows = E.sum(1) >= events
    keep = (B[rows].sum(0) >= bursts) & (np.arange(E.shape[1]) < (first or E.shape[1]))
    return Recording(E[rows][:, keep], B[rows][:, keep], None, [t for t, k in zip(trains, keep, strict=True) if k],
                     bin_size, theta)  # fmt: skip


@functools.lru_cache(maxsize=1)
def _star() -> Any:
    with gzip.open(datasets.data_file("burst_factors", "star_spikes.json.gz"), "rt", encoding="utf-8") as file:
        return json.load(file)


def _trials(name: str, length: float) -> Recording:
    """Trials one after the other, a second of silence between them so that no burst runs on."""
    neurons = list(_star()[name].values())
    labels = sorted(set.intersection(*(set(n) for n in neurons)), key=lambda s: int("".join(filter(str.isdigit, s))))
    trains = [np.sort(np.concatenate([np.asarray(n[k])[np.asarray(n[k]) < length] + i * (length + 1)
                                      for i, k in enumerate(labels)])) for n in neurons]  # fmt: skip
    stretches = [(i * (length + 1), i * (length + 1) + length) for i in range(len(labels))]
    E, B, _ = parse_bursts(trains, 0.25, 0.016, trials=stretches)
    return Recording(E, B, np.repeat(np.arange(len(labels)), len(E) // len(labels)), trains, 0.25, 0.016)
