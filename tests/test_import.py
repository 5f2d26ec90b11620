"""Importing gnomon is quick and loads nothing heavy; every public name can be reached, in any order."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys

import pytest

from gnomon import catalog

HEAVY = ("torch", "transformers", "pandas", "scipy", "matplotlib", "sklearn", "numba", "pydantic")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_nothing_heavy():
    loaded = python("import sys, gnomon, gnomon.catalog; print(*sys.modules)").split()
    assert not {m.split(".")[0] for m in loaded} & set(HEAVY)


@pytest.mark.parametrize("command", ["--version", "list", "--help"])
def test_plain_commands_load_no_torch(command):
    code = f"import sys; sys.argv = ['gnomon', '{command}']\nfrom gnomon import cli\ntry: cli.main()\nexcept SystemExit: pass\n"
    assert python(code + "print('torch' in sys.modules)").endswith("False")


AREAS = sorted({s.area for s in catalog.systems()})


def names(area: str) -> list[tuple[str, str]]:
    """(module, name) in the area's one list of public names."""
    tree = ast.parse((catalog.ROOT / area / "__init__.pyi").read_text())
    return [(node.module or "", alias.asname or alias.name)
            for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]  # fmt: skip


@pytest.mark.parametrize("area", AREAS)
def test_every_public_name_is_there(area):
    listed = [name for _, name in names(area)]
    assert len(listed) == len(set(listed)), "a public name belongs to one system of its area"
    python(f"import gnomon.{area} as a\nfor n in {listed!r}: getattr(a, n)")


SAME = [(a, module, name) for a in AREAS for module, name in names(a) if module.split(".")[0] == name]


@pytest.mark.parametrize(("area", "system", "name"), SAME)
@pytest.mark.parametrize("order", ["function first", "folder first"])
def test_function_named_like_its_folder(area, system, name, order):
    function = f"from gnomon.{area} import {name} as before"
    folder = f"import gnomon.{area}.{system}.method"
    first, second = (function, folder) if order == "function first" else (folder, function)
    python(f"{first}\n{second}\nfrom gnomon.{area} import {name}\nassert callable({name}), {name}")


def test_code_reaches_code_by_concrete_modules():
    """Records are named by what a study's import statements reach: a lazy area would hide it."""
    hidden = []
    for path in catalog.ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in {f"gnomon.{a}" for a in catalog.AREAS}:
                modules = {a.name for a in node.names if importlib.util.find_spec(f"{node.module}.{a.name}") is None}
                hidden += [f"{path.relative_to(catalog.ROOT)}:{node.lineno} {m}" for m in modules]
    assert not hidden
