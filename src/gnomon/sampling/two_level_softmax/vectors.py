"""Vectors from a file of one's own: ``.npy`` and ``.fvecs``, left on disk until they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator


def read_vectors(path: str | Path) -> NDArray[Any]:
    """Vectors (n, d) as a read-only memory map.

    Parameters
    ----------
    path : path
        ``.npy`` (two-dimensional, numbers), or ``.fvecs`` (each vector an int32 length and that many float32).

    Raises
    ------
    ValueError
        When the file is missing, of another kind, or holds something else; the message says which.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"{path} is no file; expected vectors as .npy or .fvecs")
    if path.suffix == ".npy":
        try:
            found = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{path} cannot be read as .npy: {error}") from None
    elif path.suffix == ".fvecs":
        words = np.memmap(path, dtype="<i4", mode="r") if path.stat().st_size else np.empty(0, np.int32)
        width = int(words[0]) if len(words) else 0
        if width < 1 or len(words) % (width + 1) or np.any(words[:: width + 1] != width):
            raise ValueError(f"{path} is no .fvecs file: its vectors do not all have the length that it states")
        found = words.reshape(-1, width + 1)[:, 1:].view("<f4")
    else:
        raise ValueError(f"{path}: expected a file that ends in .npy or .fvecs")
    if found.ndim != 2 or not len(found) or found.dtype.kind not in "fiu":
        raise ValueError(f"{path}: expected numbers of shape (n, d), got {found.dtype} of shape {found.shape}")
    return found


def _readable(path: Path) -> Path:
    read_vectors(path)
    return path.expanduser().resolve()


VectorPath = Annotated[Path, AfterValidator(_readable)]
"""A pydantic type for an option that is a file of vectors: checked when it is given."""
