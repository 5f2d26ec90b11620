"""The Triton trimmed mean in Triton's interpreter, and compiled for a GPU that need not be there."""

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
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("byzantine_triton.py"))],
                          env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=110, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_kernel_equals_the_sort(results):
    errors = results["errors"]
    assert len(errors) == 7
    for name, error in errors.items():
        assert error <= (1e-12 if "float64" in name else 2e-6), name


def test_what_the_kernel_refuses(results):
    assert len(results["refusals"]) == 3
    assert "2f < n <= 64; got n=65, f=1" in results["refusals"][0]
    assert "got n=4, f=2" in results["refusals"][1]
    assert "float16" in results["refusals"][2]


def test_kernel_compiles_for_hopper(tmp_path, monkeypatch):
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gnomon.optimization.byzantine import gpu

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    signature = {
        "x_ptr": "*fp32",
        "out_ptr": "*fp32",
        "d": "i32",
        "n": "i32",
        "f": "i32",
        "ROWS": "constexpr",
        "BLOCK": "constexpr",
    }
    source = ASTSource(gpu._trimmed_mean_kernel, signature, {"ROWS": 32, "BLOCK": 128})
    made = compile(source, target=GPUTarget("cuda", 90, 32))
    assert "cubin" in made.asm or "ptx" in made.asm
    assert made.metadata.shared <= 64 * 1024
