"""The Triton kernels against the reference in Triton's interpreter, and compiled for a GPU that need not be there."""

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


@pytest.mark.parametrize("kernel", ["mask", "layer"])
def test_kernels_compile_for_hopper(kernel, tmp_path, monkeypatch):
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gnomon.architectures.semiseparable import gpu

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pointers = {"a_ptr": "*fp32", "out_ptr": "*fp32"}
    if kernel == "mask":
        function, sizes = gpu._hier_kernel, {"Q": 64, "S": 16, "LOG": False}
    else:
        function = gpu._walk_kernel
        sizes = {"HEADS": 8, "GROUPS": 1, "P": 64, "N": 64, "BP": 64, "BN": 64, "Q": 64, "S": 16, "OUTPUTS": True,
                 "LEAVE": True, "PRECISION": "ieee"}  # fmt: skip
        pointers |= {"x_ptr": "*fp32", "b_ptr": "*bf16", "c_ptr": "*bf16", "y_ptr": "*fp32", "state_ptr": "*fp32",
                     "total_ptr": "*fp32", "start_ptr": "*i64", "stop_ptr": "*i64"}  # fmt: skip
    signature = {name: pointers.get(name, "constexpr") for name in function.arg_names}
    constants = {(function.arg_names.index(name),): value for name, value in sizes.items()}
    built = compile(ASTSource(function, signature, constants), target=GPUTarget("cuda", 90, 32))
    assert built.asm["cubin"]
    assert built.metadata.shared < 227 * 1024  # what a block may have there
    if kernel == "layer":
        assert "wgmma" in built.asm["ptx"]  # bfloat16 goes to the tensor cores
