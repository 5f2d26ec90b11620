"""The Triton kernels against the reference, on a CPU in Triton's interpreter."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@pytest.fixture(scope="module")
def results():
    script = Path(__file__).with_name("semiseparable_triton.py")
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
        timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_kernels_equal_the_reference(results):
    errors = results["errors"]
    assert len(errors) >= 40
    exact = {name: error for name, error in errors.items() if "half" not in name}
    assert max(exact.values()) <= 5e-6, exact
    assert 1e-5 < errors["layer half"] <= 2e-3  # half precision is used, and no worse than it must be


def test_what_the_kernels_refuse(results):
    refusals = results["refusals"]
    assert "chunk_size to be a power of 2, got 24" in refusals["Q"]
    assert "block to be a power of 2, got 5" in refusals["block"]
    assert "chunk_size to be a power of 2, got 24" in refusals["layer chunk"]
    assert "segsum 'hier' only, got 'diff'" in refusals["layer method"]
    assert "float32 states" in refusals["float64"]
