"""Items from a text file of any length: its lines, or one field of each, in blocks."""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import io
import itertools
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

BLOCK = 1 << 16  # lines


def read_items(
    source: str | Path, field: int | None = None, sep: str | None = None, block: int = BLOCK
) -> Iterator[list[str]]:
    """The items of a text file, at most ``block`` at a time.

    Parameters
    ----------
    source : str or path
        A file, plain or ending in .gz or .bz2; ``-`` is standard input. UTF-8; bytes that are not come through
        unharmed (``surrogateescape``).
    field : int, optional
        Which field of each line, from 1; by default the whole line. Empty lines have none and are passed over.
    sep : str, optional
        What separates fields: one character, read as CSV with quotes; by default white space.
    block : int
        Lines in memory at once.

    Raises
    ------
    ValueError
        When there is no such file, it is cut short or not of the kind that its name says, a line has no such field, or
        a quote does not end; the message names the file and the line.
    """
    if field is not None and field < 1:
        raise ValueError(f"field: got {field}; expected 1 or more")
    if sep is not None and (field is None or len(sep) != 1):
        raise ValueError(f"sep: got {sep!r}; expected one character" if field else "sep: is of use only with a field")
    name = "standard input" if str(source) == "-" else str(source)
    try:
        with _opened(source) as file:
            items = (line.rstrip("\r\n") for line in file) if field is None else _fields(file, field, sep, name)
            while found := list(itertools.islice(items, block)):
                yield found
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None


@contextlib.contextmanager
def _opened(source: str | Path) -> Iterator[IO[str]]:
    if str(source) == "-":
        file = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="surrogateescape", newline="")
        try:
            yield file
        finally:
            file.detach()  # else it would close standard input when it is collected
        return
    path = Path(source).expanduser()
    opener: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
    with opener(path, "rt", encoding="utf-8", errors="surrogateescape", newline="") as file:
        yield file


def _fields(file: Iterable[str], field: int, sep: str | None, name: str) -> Iterator[str]:
    reader: Any = csv.reader(file, delimiter=sep) if sep else (line.split() for line in file)
    try:
        for number, fields in enumerate(reader, 1):
            if len(fields) >= field:
                yield fields[field - 1]
            elif fields:
                line = reader.line_num if sep else number
                raise ValueError(f"{name}, line {line}: field {field} was asked for, but it has {len(fields)}")
    except csv.Error as error:
        raise ValueError(f"{name}, line {reader.line_num}: {error}; does a quote not end?") from None
