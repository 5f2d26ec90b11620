"""Records: one JSON file for each thing measured, named by what produced it, never trusted without its digest."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
import logging
import math
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

PACKAGE = Path(__file__).resolve().parents[1]
PROTOCOL = 1  # raised when the runner changes what a seed or a row means
PACKAGES = ("numpy", "scipy", "pandas", "torch", "transformers", "scikit-learn", "numba", "joblib")
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # JSON has no such numbers


class DamagedRecord(ValueError):
    """A record whose text does not match its own digest."""


# --- identity --------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _file_hash(path: str, mtime_ns: int, size: int) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def file_content(path: Path) -> str:
    """SHA-256 of a file, or of a folder's files with their names."""
    if path.is_dir():
        inside = [(str(p.relative_to(path)), file_content(p)) for p in sorted(path.rglob("*")) if p.is_file()]
        return hashlib.sha256(repr(inside).encode()).hexdigest()
    stat = path.stat()
    return _file_hash(str(path.resolve()), stat.st_mtime_ns, stat.st_size)


def content(value: Any, field_info: Any = None) -> Any:
    """What a value is, as plain JSON: files by their content, fields with an ``identity`` in their annotation by that."""
    for mark in getattr(field_info, "metadata", ()):
        if hasattr(mark, "identity") and value is not None:
            return mark.identity(value)
    if isinstance(value, Path):
        return {"sha256": file_content(value)} if value.exists() else str(value)
    if isinstance(value, Mapping):
        return {str(k): content(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [content(v) for v in value]
    if hasattr(value, "item"):  # numpy scalars
        return value.item()
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def inputs_content(inputs: Any) -> dict[str, Any]:
    """The inputs that a record depends on: all but the number of seeds and the scale's name."""
    fields = type(inputs).model_fields
    return {n: content(getattr(inputs, n), f) for n, f in fields.items() if n not in ("seeds", "scale")}


def short_hash(value: Any, length: int = 20) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()[:length]


# --- the code that a study reaches -----------------------------------------------------------------------------------

# what a study says about itself, judges and shows does not change what it measures
_NOT_MEASURED = {"claims", "title", "paper", "bibtex", "question", "method", "departures", "command", "example", "Run",
                 "derive", "figure", "run", "present", "picture", "save"}  # fmt: skip


class _Bare(ast.NodeTransformer):
    """Drops docstrings, and from studies what is not measured."""

    def __init__(self, study: bool):
        self.study = study

    def _strip(self, node: Any) -> Any:
        self.generic_visit(node)
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:]
        return node

    visit_Module = visit_FunctionDef = visit_AsyncFunctionDef = _strip

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        if self.study and any("Study" in ast.dump(base) for base in node.bases):
            node.body = [item for item in node.body if not (_names(item) & _NOT_MEASURED)]
        return self._strip(node)


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {t.id for t in targets if isinstance(t, ast.Name)}


def _module_file(name: str) -> Path | None:
    base = PACKAGE.parent.joinpath(*name.split("."))
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def _imports(tree: ast.Module, module: str, is_package: bool) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
                base = ".".join([*parts, base] if base else parts)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@functools.lru_cache(maxsize=256)
def code_digest(module: str) -> str:
    """Hash of the syntax trees of all gnomon modules that ``module`` reaches by its import statements.

    Comments, docstrings and formatting do not count, nor does ``gnomon.study``, whose part in a record has a version of
    its own, nor what a study says about itself (claims, texts, figures); a folder's ``study/claims.py`` holds nothing else.
    """
    trees: dict[str, str] = {}
    queue = [module]
    while queue:
        name = queue.pop()
        path = _module_file(name)
        if name in trees or path is None or not name.startswith("gnomon.") or name.startswith("gnomon.study"):
            continue
        if name.endswith(".study.claims"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        queue.extend(_imports(tree, name, path.name == "__init__.py"))
        trees[name] = ast.dump(_Bare(study=".study" in name).visit(tree))
    return short_hash(sorted(trees.items()))


# --- the environment -------------------------------------------------------------------------------------------------


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@functools.lru_cache(maxsize=1)
def environment() -> dict[str, Any]:
    """Versions, processor and commit, as records and evidence keep them."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        commit = subprocess.run(["git", "-C", str(PACKAGE), "rev-parse", "--short=12", "HEAD"], capture_output=True,
                                text=True, timeout=5, check=False).stdout.strip()  # fmt: skip
    except OSError:
        commit = ""
    return {"gnomon": importlib.metadata.version("gnomon"), "commit": commit, "python": platform.python_version(),
            "platform": platform.platform(aliased=True, terse=True), "processor": _processor(),
            "cores": os.cpu_count() or 1, "packages": versions}  # fmt: skip


# --- the record ------------------------------------------------------------------------------------------------------


@dataclass
class Record:
    """What one contender gave in one cell with one seed."""

    system: str
    experiment: str
    inputs: dict[str, Any]
    cell: dict[str, Any]
    contender: str
    seed: int | None
    code: str
    rows: list[dict[str, Any]]
    wall_s: float
    cpu_s: float
    peak_mb: float
    threads: int
    environment: dict[str, Any]
    created: float = field(default_factory=time.time)

    def to_json(self) -> str:
        body = _words(asdict(self))
        body["digest"] = short_hash(body, 64)
        return json.dumps(body, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Record:
        try:
            body = json.loads(text)
            digest = body.pop("digest")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise DamagedRecord("not a whole record") from None
        if digest != short_hash(body, 64):
            raise DamagedRecord("its digest does not match its content")
        return cls(**{**body, "rows": [_unworded(row) for row in body["rows"]]})


def _unworded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _WORDS.get(v, v) if isinstance(v, str) else v for k, v in row.items()}


def _words(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _words(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_words(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if not isinstance(value, str | int | float | bool | None):
        raise TypeError(f"rows hold plain numbers, strings and booleans; got {type(value).__name__}: {value!r}")
    return value


def write_whole(path: Path, text: str) -> None:
    """Write a text file whole or not at all: a temporary file beside it, then a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class Store:
    """A folder of records, ``<area>/<system>/records/<key>.json``; any number of processes may write to it."""

    def __init__(self, folder: Path, area: str, system: str):
        self.folder = Path(folder) / area / system
        self.damaged: list[Path] = []

    def path(self, key: str) -> Path:
        return self.folder / "records" / f"{key}.json"

    def read(self, key: str) -> Record | None:
        """The record, or None when there is none or it is damaged (which is reported)."""
        path = self.path(key)
        try:
            return Record.from_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (DamagedRecord, UnicodeDecodeError, TypeError) as error:
            log.warning("damaged record %s (%s): it will be computed again", path, error)
            self.damaged.append(path)
            return None

    def write(self, key: str, record: Record) -> None:
        write_whole(self.path(key), record.to_json())


def default_folder() -> Path:
    """Where records go: ``$GNOMON_RESULTS``, else ``gnomon-results`` in the current folder."""
    return Path(os.environ.get("GNOMON_RESULTS") or "gnomon-results")


def query(sql: str = "SELECT * FROM records", folder: Path | str | None = None) -> pd.DataFrame:
    """Ask DuckDB about the records in a folder; the view is called ``records``.

    ``cell``, ``inputs``, ``rows`` and ``environment`` are JSON columns (``cell->>'n'``).
    """
    import duckdb

    root = Path(folder) if folder is not None else default_folder()
    columns = {"system": "VARCHAR", "experiment": "VARCHAR", "contender": "VARCHAR", "seed": "BIGINT", "cell": "JSON",
               "rows": "JSON", "inputs": "JSON", "wall_s": "DOUBLE", "cpu_s": "DOUBLE", "peak_mb": "DOUBLE",
               "threads": "BIGINT", "created": "DOUBLE", "code": "VARCHAR", "environment": "JSON", "digest": "VARCHAR"}  # fmt: skip
    with duckdb.connect() as db:
        if any(root.glob("*/*/records/*.json")):
            source = db.read_json(str(root / "*/*/records/*.json"), columns=columns, ignore_errors=True)
        else:
            source = db.sql(
                "SELECT " + ", ".join(f"NULL::{kind} AS {name}" for name, kind in columns.items()) + " LIMIT 0"
            )
        source.create_view("records")
        return db.sql(sql).df()


def table(folder: Path | str | None = None, system: str | None = None) -> pd.DataFrame:
    """All rows of all records as one DataFrame: system, experiment, contender, seed, cell axes, row columns, costs."""
    import pandas as pd

    name = (system or "").replace("-", "_")
    found = query("SELECT system, experiment, contender, seed, cell, rows, wall_s, cpu_s, peak_mb FROM records"
                  + (f" WHERE system = '{name}'" if name.isidentifier() else ""), folder)  # fmt: skip
    flat: list[dict[str, Any]] = []
    for r in found.to_dict(orient="records"):
        front = {"system": r["system"], "experiment": r["experiment"], "contender": r["contender"], "seed": r["seed"]}
        cost = {"wall_s": r["wall_s"], "cpu_s": r["cpu_s"], "peak_mb": r["peak_mb"]}
        flat.extend({**front, **json.loads(r["cell"]), **_unworded(row), **cost} for row in json.loads(r["rows"]))
    return pd.DataFrame(flat)
