"""The Triton kernels against the recurrence in Triton's interpreter, and compiled for a GPU that need not be there."""

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
    script = Path(__file__).with_name("gated_deltanet2_triton.py")
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
        timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_kernels_equal_the_recurrence(results):
    errors = results["errors"]
    assert len(errors) == 29
    assert max(errors.values()) <= 5e-6, errors


def test_what_the_kernels_refuse(results):
    refusals = results["refusals"]
    assert "powers of two, the former from 16 to 64, got 48" in refusals["chunk"]
    assert "got 64 and 24" in refusals["block"]
    assert "computes in float32, got torch.float64" in refusals["float64"]


@pytest.mark.parametrize("kernel", ["scores", "solve", "walk"])
def test_kernels_compile_for_hopper(kernel, tmp_path, monkeypatch):
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gnomon.architectures.gated_deltanet2 import gpu

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    function = getattr(gpu, f"_{kernel}_kernel")
    sizes = {"H": 4, "K": 64, "V": 64, "BK": 64, "BV": 32 if kernel == "walk" else 64, "C": 64, "S": 16, "KEEP": True,
             "PRECISION": "tf32"}  # fmt: skip
    sizes = {name: value for name, value in sizes.items() if name in function.arg_names}
    signature = {
        name: "constexpr" if name in sizes else "i32" if name in ("T", "COUNT") else "*fp32"
        for name in function.arg_names
    }
    constants = {(function.arg_names.index(name),): value for name, value in sizes.items()}
    built = compile(ASTSource(function, signature, constants), target=GPUTarget("cuda", 90, 32),
                    options={"num_warps": 8, "num_stages": 1})  # fmt: skip
    assert built.asm["cubin"]
    assert built.metadata.shared < 227 * 1024  # what a block may have there
    assert "mma" in built.asm["ptx"]  # products go to the tensor cores
