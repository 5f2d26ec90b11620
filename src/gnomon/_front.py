"""The two functions that ``import gnomon`` offers itself: check and records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from gnomon.study.check import Check


def check(system: str, **options: Any) -> Check:
    """Run a system's study and judge every claim; see :func:`gnomon.study.check.check`.

    Parameters
    ----------
    system : str
        The system's name, ``"ghosted-layers"``.
    **options
        ``scale``, ``until_decided``, ``record``, ``running``, and values for the study's inputs.
    """
    from gnomon import catalog
    from gnomon.study.check import check as run

    return run(catalog.find(system), **options)


def records(system: str | None = None, folder: Path | str | None = None) -> pd.DataFrame:
    """All rows of all records in a results folder, one DataFrame; see :mod:`gnomon.study.records`.

    Parameters
    ----------
    system : str, optional
        Only this system's.
    folder : path, optional
        Default: ``$GNOMON_RESULTS``, else ``gnomon-results`` in the current folder.
    """
    from gnomon.study.records import table

    return table(folder, system)
