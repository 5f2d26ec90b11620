"""Rules of the house that import-linter cannot say."""

from __future__ import annotations

import ast

import pytest

from gnomon import catalog

FILES = [p for s in catalog.systems() for p in sorted(s.folder.rglob("*.py"))]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(catalog.ROOT)) for p in FILES])
def test_system_file(path):
    """Only a study knows studies; no system reaches into another's private parts."""
    area, system, *inside = path.relative_to(catalog.ROOT).parts
    if not inside[0].startswith("study"):
        assert not [m for m, n in imports(path) if m.startswith("gnomon.study") or (m, n) == ("gnomon", "study")]
    others = [(m, n) for m, n in imports(path) if len(m.split(".")) > 2 and m.startswith("gnomon.")
              and m.split(".")[1] in catalog.AREAS and (catalog.ROOT / m.split(".")[1] / m.split(".")[2]).is_dir()
              and m.split(".")[1:3] != [area, system]]  # fmt: skip
    assert not [(m, n) for m, n in others if n.startswith("_") or any(part.startswith("_") for part in m.split("."))]


def test_claims_are_no_part_of_a_measurement():
    """A record's digest leaves a system's ``study/claims.py`` out, so only the study itself may lean on it."""
    for path in FILES:
        named = {name for m, n in imports(path) for name in (m, f"{m}.{n}")} - {"gnomon.study.claims"}
        leans = [name for name in named if name.endswith(".study.claims")]
        assert not leans or path.parts[-2:] == ("study", "__init__.py"), path


def test_no_pickle_and_no_foreign_code():
    """Weights load from safetensors or GGUF only; joblib's private cache is the one exception."""
    for path in catalog.ROOT.rglob("*.py"):
        text = path.read_text()
        assert "trust_remote_code=True" not in text, path
        assert not [m for m, _ in imports(path) if m.split(".")[0] in ("pickle", "dill", "shelve")], path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert "weights_only=True" in ast.unparse(node), f"{path}:{node.lineno}"
