"""The CUDA back end: on a GPU where there is one, else through Triton's interpreter and its compiler's output."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.kernels.formats import FORMATS, BlockFormat

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


def signatures(name):
    """Of both kernels of a format: what is a pointer, and what is compiled in."""
    from atoll.kernels.gpu import blocks, values

    layout = FORMATS[name]
    if isinstance(layout, BlockFormat):
        module, shape, numbers = blocks, blocks.constants(layout), ("num_elements", "num_blocks")
        sizes = ("total", "chunk_elements", "chunk_bytes")
        writer, reader = "QUANTISE", "LEVEL"
    else:
        module, numbers, sizes = values, ("num_elements",), ("total",)
        shape = {"BYTES": layout.bytes_per_value, "ELEMENTS": values.ELEMENTS}
        writer, reader = "WRITE", "READ"
    integers = dict.fromkeys(numbers, "i32")
    write, read = module.FUNCTIONS[name]
    encoder = (
        {"values": "*fp32", "data": "*u8", "first_bad": "*i64"} | dict.fromkeys(sizes, "i32"),
        shape | {writer: write},
    )
    if module is values:
        encoder[1][reader] = read
    decoder = {"data": "*u8", "out": "*fp32", "weight": "fp32"} | integers, shape | {reader: read}
    yield module._encode, *encoder
    for fresh in (False, True):
        yield module._accumulate, decoder[0], decoder[1] | {"FRESH": fresh}


def compiled(kernel, arguments, constants):
    """A kernel's assembly for a recent GPU; none needs to be here."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = arguments | dict.fromkeys(constants, "constexpr")
    signature = {each: signature[each] for each in kernel.arg_names}
    source = ASTSource(kernel, signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False}).asm["ptx"]


def test_the_choice_of_the_largest_compiles(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from atoll.kernels.gpu.selection import _largest

    arguments = {"values": "*fp32", "indices": "*i16", "first_bad": "*i64", "num_elements": "i32", "kept": "i32"}
    assert "st.global" in compiled(_largest, arguments, {"GROUP": 4096})


@pytest.mark.parametrize("name", FORMATS)
def test_the_compiled_kernels_neither_fuse_nor_flush(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for kernel, arguments, constants in signatures(name):
        ptx = compiled(kernel, arguments, constants)
        assert "st.global" in ptx
        assert "fma" not in ptx
        assert ".ftz" not in ptx
        assert ".approx" not in ptx
        assert "div.full" not in ptx
