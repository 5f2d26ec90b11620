"""Real sequences: words and characters of the Wikipedia excerpt, soprano and bass of Bach's chorales."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from gnomon import datasets

TEST_ARTICLES = 10  # the last ones; the ten before them validate
LETTERS = "abcdefghijklmnopqrstuvwxyz "
STEPS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
BEATS = 16


def words(vocabulary: int) -> dict[str, np.ndarray]:
    """Word streams ``train``, ``valid`` and ``test``: the most frequent words of ``train``, the last id for all others."""
    articles = [re.findall("[a-z]+", a.lower()) for a in datasets.wikipedia()]
    train = [w for a in articles[: -2 * TEST_ARTICLES] for w in a]
    ids = {w: i for i, (w, _) in enumerate(Counter(train).most_common(vocabulary - 1))}
    parts = {"train": train, "valid": [w for a in articles[-2 * TEST_ARTICLES : -TEST_ARTICLES] for w in a],
             "test": [w for a in articles[-TEST_ARTICLES:] for w in a]}  # fmt: skip
    return {name: np.array([ids.get(w, vocabulary - 1) for w in part]) for name, part in parts.items()}


def characters(text: str) -> np.ndarray:
    """Letters and blanks of a text as 0 .. 26; whatever else stands between is one blank."""
    plain = re.sub("[^a-z]+", " ", text.lower())
    return np.array([LETTERS.index(c) for c in plain])


def text_windows(length: int, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Windows of characters at random places: n to train, a tenth to validate and to test, from articles of their own."""
    articles = datasets.wikipedia()
    parts = {"train": (articles[: -2 * TEST_ARTICLES], n), "valid": (articles[-2 * TEST_ARTICLES : -TEST_ARTICLES], n // 10),
             "test": (articles[-TEST_ARTICLES:], n // 10)}  # fmt: skip
    found = {}
    for name, (some, count) in parts.items():
        stream = characters(" ".join(some))
        starts = rng.integers(len(stream) - length + 1, size=(count, 1))
        found[name] = stream[starts + np.arange(length)]
    return found


def chorales() -> np.ndarray:
    """Soprano and bass of Bach's four-part chorales on every beat [windows, 2 x 16], MIDI pitches, 0 for a rest.

    From the MusicXML in the music21 wheel, read without importing it; windows of 16 beats, one after the other, in the
    order of the files, each but once (Bach used some settings twice). Repeats are not played.
    """
    rows = []
    for path in sorted((datasets.package_dir("music21") / "corpus" / "bach").glob("*.mxl")):
        voices = _voices(path)
        if len(voices) != 4:
            continue
        top, bottom = voices[0], voices[-1]
        for start in range(0, min(len(top), len(bottom)) - BEATS + 1, BEATS):
            rows.append(np.concatenate([top[start : start + BEATS], bottom[start : start + BEATS]]))
    return np.array(list(dict.fromkeys(tuple(int(p) for p in row) for row in rows)))


def _voices(path: Path) -> list[list[int]]:
    """The sounding pitch on each beat, by part."""
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith((".xml", ".musicxml")) and not n.startswith("META-INF"))
        root = ElementTree.fromstring(archive.read(name))
    return [_beats(part) for part in root.iter("part")]


def _beats(part: ElementTree.Element) -> list[int]:
    divisions, now, sounding = 1.0, 0.0, []  # quarters
    for item in part.iter():
        if item.tag == "divisions":
            divisions = float(item.text or 1)
        elif item.tag in ("backup", "forward"):
            length = float(item.findtext("duration") or 0) / divisions
            now += -length if item.tag == "backup" else length
        elif item.tag == "note" and item.find("chord") is None and item.find("grace") is None:
            length = float(item.findtext("duration") or 0) / divisions
            sounding.append((now, now + length, _pitch(item)))
            now += length
    beats = [0] * int(max((end for _, end, _ in sounding), default=0))
    for start, end, pitch in sounding:
        for beat in range(int(np.ceil(start - 1e-9)), min(int(np.ceil(end - 1e-9)), len(beats))):
            beats[beat] = pitch
    return beats


def _pitch(note: ElementTree.Element) -> int:
    pitch = note.find("pitch")
    if pitch is None:
        return 0
    octave, alter = int(pitch.findtext("octave") or 4), int(float(pitch.findtext("alter") or 0))
    return 12 * (octave + 1) + STEPS[pitch.findtext("step") or "C"] + alter


def coded(pitches: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """Pitches as small symbols, one alphabet for each voice (0 a rest), and the alphabets of the columns."""
    out, sizes = np.zeros_like(pitches), []
    for voice in (slice(0, BEATS), slice(BEATS, 2 * BEATS)):
        part = pitches[:, voice]
        least = part[part > 0].min()
        out[:, voice] = np.where(part > 0, part - least + 1, 0)
        sizes += [int(out[:, voice].max()) + 1] * BEATS
    return out, tuple(sizes)
