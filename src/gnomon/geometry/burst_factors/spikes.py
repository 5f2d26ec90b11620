"""From spike times to events and bursts: reading, parsing, counting."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter1d
from scipy.signal import find_peaks

from gnomon.geometry.burst_factors.kernels import ROUNDING, find_events

Array = NDArray[Any]
Counts = tuple[Array, Array, Array]
FALLBACK = 0.016  # s


def parse_bursts(spike_trains: Any, bin_size: float = 0.25, theta: float | str = FALLBACK, *,
                 trials: Sequence[tuple[float, float]] | None = None, t_start: float | None = None,
                 t_stop: float | None = None) -> Counts:  # fmt: skip
    """Counts of events, bursts and spikes per bin and neuron.

    An event is a maximal run of spikes whose intervals are all below ``theta``; with two spikes or more it is a burst.
    An event counts in the bin of its first spike (a bin's edge cuts no burst), a spike in its own bin.

    Parameters
    ----------
    spike_trains : list of arrays, list of neo.SpikeTrain, or {neuron: times}
        Sorted spike times in seconds (of a ``neo.SpikeTrain`` in any unit).
    bin_size : float
        Seconds.
    theta : float or "logisi"
        Seconds; an interval equal to it ends a burst. "logisi": for each neuron :func:`logisi_threshold`.
    trials : list of (start, stop), optional
        Only these stretches, one below the other, each of as many whole bins as fit.
    t_start, t_stop : float, optional
        The stretch of the recording, s: from 0 (or the first spike where that is negative) to the end of the bin of
        the last spike by default, or what the ``neo.SpikeTrain`` says. Only whole bins are kept of a given stretch.

    Returns
    -------
    E, B, S : (T, N) int64
        Events, bursts (0 <= B <= E) and spikes.

    Raises
    ------
    ValueError
        Spike times that are not sorted or not finite (names the neuron), a bin or theta that is not positive.

    Notes
    -----
    Events and burst probability as two channels: Naud and Sprekeler, PNAS 2018.
    """
    trains, limits = as_trains(spike_trains)
    bin_size = _positive("bin_size", bin_size)
    if theta != "logisi":
        theta = _positive("theta", theta)
        if theta >= bin_size:
            warnings.warn(f"theta {theta:g} s is no shorter than a bin ({bin_size:g} s)", UserWarning, stacklevel=2)
    if trials is None:
        stretches = [stretch(trains, limits, bin_size, t_start, t_stop)]
    else:
        stretches = [(float(a), _whole(float(b) - float(a), bin_size)) for a, b in trials]
    if not stretches or any(n < 1 for _, n in stretches):
        raise ValueError(f"trials {trials!r}: each must hold at least one bin of {bin_size:g} s")
    counts = [np.zeros((sum(n for _, n in stretches), len(trains)), np.int64) for _ in range(3)]
    for i, times in enumerate(trains):
        limit = logisi_threshold(times) if isinstance(theta, str) else float(theta)
        first, size = find_events(times, limit)
        for count, at in zip(counts, (times[first], times[first[size > 1]], times), strict=True):
            count[:, i] = _histogram(at, stretches, bin_size)
    return counts[0], counts[1], counts[2]


def _histogram(times: Array, stretches: Sequence[tuple[float, int]], bin_size: float) -> Array:
    parts = []
    for start, n in stretches:
        index = np.floor((times - start + ROUNDING) / bin_size).astype(np.int64)
        parts.append(np.bincount(index[(index >= 0) & (index < n)], minlength=n))
    return np.concatenate(parts)


def _whole(seconds: float, bin_size: float) -> int:
    return int(np.floor(seconds / bin_size + 1e-6))


def stretch(trains: list[Array], limits: tuple[float, float] | None, bin_size: float, start: float | None,
             stop: float | None) -> tuple[float, int]:  # fmt: skip
    seen = [t for t in trains if t.size]
    if start is None:
        start = limits[0] if limits else min([0.0, *(float(t[0]) for t in seen)])
    if stop is None and limits:
        stop = limits[1]
    if stop is None:
        if not seen:
            raise ValueError("spike_trains: no spikes; give t_stop")
        return start, int((max(float(t[-1]) for t in seen) - start + ROUNDING) // bin_size) + 1
    n = _whole(stop - start, bin_size)
    if n < 1:
        raise ValueError(f"t_stop {stop:g}: expected at least one bin of {bin_size:g} s after t_start {start:g}")
    return start, n


def as_trains(spike_trains: Any) -> tuple[list[Array], tuple[float, float] | None]:
    """Checked arrays of spike times in seconds, and the common start and stop of ``neo.SpikeTrain`` s."""
    named = spike_trains.items() if isinstance(spike_trains, Mapping) else enumerate(_several(spike_trains))
    trains: list[Array] = []
    limits: list[tuple[float, float]] = []
    for name, train in named:
        if hasattr(train, "rescale"):  # neo, without importing it
            seconds = train.rescale("s")
            limits.append((float(train.t_start.rescale("s").magnitude), float(train.t_stop.rescale("s").magnitude)))
            train = seconds.magnitude
        times = np.ascontiguousarray(train, dtype=float)
        if times.ndim != 1:
            raise ValueError(f"spike times of neuron {name!r}: shape {times.shape}; expected one dimension")
        if not np.isfinite(times).all():
            raise ValueError(
                f"spike times of neuron {name!r}: not finite at position {int(np.argmin(np.isfinite(times)))}"
            )
        if (bad := np.flatnonzero(np.diff(times) < 0)).size:
            raise ValueError(f"spike times of neuron {name!r}: not sorted at position {int(bad[0]) + 1}")
        trains.append(times)
    if not trains:
        raise ValueError("spike_trains: no neurons")
    intervals = np.concatenate([np.diff(t) for t in trains])
    if intervals.size and (middle := float(np.median(intervals))) > 50:
        warnings.warn(f"the median inter-spike interval is {middle:g}: are the spike times in seconds?", UserWarning,
                      stacklevel=3)  # fmt: skip
    return trains, (min(a for a, _ in limits), max(b for _, b in limits)) if limits else None


def _several(spike_trains: Any) -> Iterable[Any]:
    if isinstance(spike_trains, str) or not isinstance(spike_trains, Iterable):
        raise TypeError(f"spike_trains: got {type(spike_trains).__name__}; expected a list of arrays, or a mapping")
    return spike_trains


def logisi_threshold(times: Array, fallback: float = FALLBACK) -> float:
    """The interval at the minimum between the two modes of the smoothed log-interval histogram, s.

    Tenths of a decade, smoothed by a Gaussian of 1.5 of them. The two highest modes count when the valley is below 0.7
    of their geometric mean and ``fallback`` is returned otherwise (after Pasquale et al., J. Comput. Neurosci. 2010).
    """
    intervals = np.diff(np.asarray(times, float))
    intervals = intervals[intervals > 0]
    if intervals.size < 20:
        return fallback
    edges = np.arange(-4.05, 3.0, 0.1)  # log10 s
    density = gaussian_filter1d(np.histogram(np.log10(intervals), edges)[0].astype(float), 1.5)
    peaks, _ = find_peaks(density)
    if peaks.size < 2:
        return fallback
    low, high = sorted(peaks[np.argsort(density[peaks])[-2:]])
    valley = low + int(np.argmin(density[low : high + 1]))
    if density[valley] > 0.7 * np.sqrt(density[low] * density[high]):
        return fallback
    return float(10 ** ((edges[valley] + edges[valley + 1]) / 2))


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < float(value) < np.inf:
        raise ValueError(f"{name}: got {value!r}; expected a positive number of seconds")
    return float(value)


def read_spikes(path: str | Path) -> dict[str, Array]:
    """Spike times in seconds by neuron, from a file.

    ``.json`` (also ``.json.gz``): a list of lists, or {neuron: times}. ``.npz``: an array for each neuron. ``.nwb``: the
    units table (needs ``pynwb``). ``.txt``, ``.tsv`` (also ``.gz``): a column for each neuron below a row of names,
    separated by tabs.

    Raises
    ------
    ValueError
        When there is no such file or it is of another kind.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"{path} is no file; expected .json, .npz, .nwb or a table in .txt")
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    try:
        if kind == ".json":
            found = json.loads(_text(path))
            named = found if isinstance(found, dict) else {str(i): t for i, t in enumerate(found)}
            return {str(k): np.asarray(v, float) for k, v in named.items()}
        if kind == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return {k: np.asarray(arrays[k], float) for k in arrays.files}
        if kind in (".txt", ".tsv"):
            return _columns(_text(path))
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as spike times: {error}") from None
    if kind == ".nwb":
        return _nwb(path)
    raise ValueError(f"{path}: expected a name that ends in .json, .npz, .nwb, .txt or .tsv")


def _text(path: Path) -> str:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return file.read()
    return path.read_text(encoding="utf-8")


def _columns(text: str) -> dict[str, Array]:
    """Columns of unequal length padded by empty cells; a file may separate its rows by a tab too."""
    names = text.split("\n", 1)[0].rstrip("\r").split("\t")
    names = [
        n for n in names if n.strip() and not n.replace(".", "", 1).isdigit()
    ]  # a first row that runs on into the times
    cells = text.replace("\r", "").rstrip("\n").replace("\n", "\t").split("\t")[len(names) :]
    if names and any(c.strip() for c in cells[len(cells) - len(cells) % len(names) :]):
        raise ValueError(f"{len(cells)} cells do not make rows of {len(names)}")
    if not names:
        raise ValueError("no row of names")
    return {n: np.array([float(c) for c in cells[i :: len(names)] if c.strip()]) for i, n in enumerate(names)}


def _nwb(path: Path) -> dict[str, Array]:
    try:
        from pynwb import NWBHDF5IO
    except ImportError:
        raise ValueError(f"{path}: reading .nwb needs the package pynwb: pip install pynwb") from None
    with NWBHDF5IO(str(path), "r") as file:
        units = file.read().units
        if units is None:
            raise ValueError(f"{path}: no table of units")
        return {str(u): np.asarray(units["spike_times"][i], float) for i, u in enumerate(units.id[:])}
