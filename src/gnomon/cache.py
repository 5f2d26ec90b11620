"""Stages kept on disk: where, how much, and pruning. ``joblib.Memory`` does the rest.

The folder is the person's own (readable by that user alone) and the one place where pickles are read: nothing that comes
from elsewhere is ever put there.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import platformdirs

if TYPE_CHECKING:
    from gnomon.study.protocol import StageCall

LIMIT = 10 * 1024**3


def folder() -> Path:
    """``$GNOMON_CACHE``, else the user's cache folder; made on first use with mode 700."""
    path = Path(os.environ.get("GNOMON_CACHE") or platformdirs.user_cache_path("gnomon"))
    if not path.exists():
        path.mkdir(parents=True, mode=0o700)
    return path


def _compute(key: str, call: StageCall) -> Any:
    return call.compute()


@functools.lru_cache(maxsize=4)
def _stages(location: str) -> Any:
    memory = joblib.Memory(location, verbose=0)
    return memory.cache(_compute, ignore=["call"])


def stage(call: StageCall) -> Any:
    """The stage's result: from the cache when it is there and whole, else computed and kept."""
    return _stages(str(folder()))(call.key, call)


def has(call: StageCall) -> bool:
    """Whether the stage's result is on disk."""
    return bool(_stages(str(folder())).check_call_in_cache(call.key, call))


def size() -> int:
    """Bytes on disk."""
    return sum(p.stat().st_size for p in folder().rglob("*") if p.is_file())


def prune(limit: int = LIMIT) -> None:
    """Drop the least recently used stages until the cache is no larger than ``limit`` bytes."""
    joblib.Memory(str(folder()), verbose=0).reduce_size(bytes_limit=limit)
