"""A record is named by what produced it: code that the study reaches, not comments, docstrings or other systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnomon.study import records

FILES = {
    "gnomon/__init__.py": "",
    "gnomon/models.py": "def load():\n    return 1\n",
    "gnomon/area/__init__.py": "",
    "gnomon/area/one/__init__.py": "",
    "gnomon/area/one/method.py": "from gnomon import models\n\ndef fit():\n    return models.load()\n",
    "gnomon/area/one/study.py": (
        "from gnomon import study\nfrom gnomon.area.one.method import fit\n\n"
        "class OneStudy(study.Study):\n    claims = [1]\n    size = 3\n    def figure(self, tables):\n        return 0\n"
        "    def measure(self):\n        return fit()\n"
    ),
    "gnomon/area/two/__init__.py": "",
    "gnomon/area/two/method.py": "def other():\n    return 2\n",
    "gnomon/study/__init__.py": "class Study: ...\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(records, "PACKAGE", tmp_path / "gnomon")
    return tmp_path


def digest(package: Path, name: str | None = None, old: str = "", new: str = "") -> str:
    if name:
        path = package / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    records.code_digest.cache_clear()
    return records.code_digest("gnomon.area.one.study")


@pytest.fixture(autouse=True)
def _clear():
    yield
    records.code_digest.cache_clear()


SAME = [
    ("gnomon/area/two/method.py", "return 2", "return 3"),
    ("gnomon/models.py", "return 1", "return 1  # a comment"),
    ("gnomon/models.py", "def load():", 'def load():\n    """Say what it does."""'),
    ("gnomon/area/one/study.py", "claims = [1]", "claims = [1, 2]"),
    ("gnomon/area/one/study.py", "return 0", "return 7"),
    ("gnomon/study/__init__.py", "...", "x = 1"),
]
OTHER = [
    ("gnomon/models.py", "return 1", "return 2"),
    ("gnomon/area/one/method.py", "models.load()", "models.load() + 1"),
    ("gnomon/area/one/study.py", "return fit()", "return fit() + 1"),
    ("gnomon/area/one/study.py", "size = 3", "size = 4"),
]


@pytest.mark.parametrize("change", SAME)
def test_unchanged_by(package, change):
    before = digest(package)
    assert digest(package, *change) == before


@pytest.mark.parametrize("change", OTHER)
def test_changed_by(package, change):
    before = digest(package)
    assert digest(package, *change) != before


def test_files_count_by_content(tmp_path):
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    a.write_text("same")
    b.write_text("same")
    assert records.content(a) == records.content(b)
    b.write_text("other")
    assert records.content(a) != records.content(b)
