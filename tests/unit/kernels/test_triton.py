"""The CUDA back end: on a GPU where there is one, else through Triton's interpreter and its compiler's output."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("triton_against_vectors.py")
PACKAGES = Path(__file__).parents[3] / ".pkg"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def compare(device, **environment):
    path = os.pathsep.join([str(PACKAGES), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path} | environment
    command = [sys.executable, str(SCRIPT), device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gpu
def test_the_gpu_gives_the_same_bits():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    compare("cuda")


def test_the_interpreter_gives_the_same_bits():
    compare("cpu", TRITON_INTERPRET="1")


@pytest.mark.parametrize(
    ("name", "constants"), [("_encode", {}), ("_accumulate", {"FRESH": True}), ("_accumulate", {"FRESH": False})]
)
def test_the_compiled_kernels_neither_fuse_nor_flush(name, constants, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from atoll.kernels import triton_int8

    types = {
        "_encode": {"values": "*fp32", "data": "*u8", "first_bad": "*i64"},
        "_accumulate": {"data": "*u8", "out": "*fp32", "weight": "fp32"},
    }[name]
    constants = {"BLOCK": 256, "ROWS": triton_int8.ROWS} | constants
    signature = types | {"num_elements": "i32", "num_blocks": "i32"} | dict.fromkeys(constants, "constexpr")
    source = ASTSource(getattr(triton_int8, name), signature, constexprs=constants)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False}).asm["ptx"]
    assert "mul" in ptx
    assert "fma" not in ptx
    assert ".ftz" not in ptx
    assert ".approx" not in ptx
    assert "div.full" not in ptx
