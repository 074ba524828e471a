"""Choosing a back end, the freshness of the binary, and the guards around it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from atoll.kernels import compiled
from atoll.kernels.back_ends import choices, load, using
from atoll.kernels.codec import back_end as back_end_name
from atoll.kernels.codec import codec

ROOT = Path(__file__).parents[3]
needs_library = pytest.mark.skipif(compiled.find_library() is None, reason="the C kernels are not built")


def run_python(code, **environment):
    environment = os.environ | {"PYTHONPATH": str(ROOT / ".pkg")} | environment
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    return (done.stdout + done.stderr).strip()


@needs_library
def test_the_binary_is_as_new_as_its_sources():
    in_tree = compiled.find_library().resolve().parent == ROOT / "kernels"
    if not in_tree:
        pytest.skip("testing an installed wheel")
    expected = runpy.run_path(str(ROOT / "setup.py"))["source_digest"]()
    assert compiled.source_digest() == expected, "rebuild: python setup.py build_ext --inplace"


@pytest.mark.parametrize("choice", choices())
def test_the_environment_chooses_the_back_end(choice):
    code = "from atoll.kernels.codec import back_end; print(back_end())"
    assert run_python(code, ATOLL_KERNELS=choice) == choice


def test_an_unknown_choice_is_an_error_that_lists_the_known():
    with pytest.raises(RuntimeError, match="none of reference, numpy, c, c-baseline"):
        load("fortran")


@needs_library
def test_a_variant_that_the_processor_lacks_is_an_error():
    with pytest.raises(RuntimeError, match="no C variant 'avx1024', only baseline"):
        load("c-avx1024")


@needs_library
def test_the_fastest_variant_is_the_default():
    assert load("").name == load("c").name == f"c-{compiled.variants()[-1]}"


def test_without_a_library_numpy_serves(monkeypatch):
    monkeypatch.setattr(compiled, "find_library", lambda: None)
    assert load.__wrapped__("").name == "numpy"


def test_a_back_end_is_put_back_after_use():
    before = back_end_name()
    with using(load("reference")):
        assert back_end_name() == "reference"
    assert back_end_name() == before


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, atoll.kernels; print([m for m in ('numpy', 'torch', 'triton', 'hivemind') if m in sys.modules])"
    assert run_python(code) == "[]"


def test_the_kernels_do_not_load_torch():
    code = """
import sys, numpy as np
from atoll.kernels.codec import codec
from atoll.kernels import outer_step, initial, hash_tree
codec("int8").encode(np.ones(3, np.float32), np.empty(5, np.uint8)), codec("float32")
print([m for m in ("torch", "triton", "hivemind") if m in sys.modules])"""
    assert run_python(code) == "[]"


@needs_library
def test_a_thread_that_flushes_subnormals_gets_the_same_bits():
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        data = np.array([0x80, 0x00, 1, 127, 129], np.uint8)
        out = np.empty(3, np.float32)
        codec("int8").accumulate_many([data], [0.001], out)
        flushed = np.array([1e-39], np.float32) * np.float32(1)
    finally:
        torch.set_flush_denormal(False)
    expected = np.empty(3, np.float32)
    with using(load("reference")):
        codec("int8").accumulate_many([data], [0.001], expected)
    assert flushed[0] == 0, "the mode was not on, so that the test shows nothing"
    assert out.all()
    assert out.tobytes() == expected.tobytes()


@needs_library
def test_the_callers_floating_point_mode_is_restored():
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        codec("int8").encode(np.ones(3, np.float32), np.empty(5, np.uint8))
        after = np.array([1e-39], np.float32) * np.float32(1)
    finally:
        torch.set_flush_denormal(False)
    assert after[0] == 0


@needs_library
def test_kernels_run_without_the_gil():
    values, int8 = np.ones(1 << 18, np.float32), codec("int8")
    data = np.empty(int8.nbytes(values.size), np.uint8)
    others_ran = threading.Event()

    def encode_until_others_ran():
        for _ in range(20_000):
            int8.encode(values, data)
            if others_ran.is_set():
                return True
        return False

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(100)  # threads take turns only where one releases the GIL by itself
    try:
        with ThreadPoolExecutor(1) as pool:
            outcome = pool.submit(encode_until_others_ran)
            others_ran.set()
            assert outcome.result()
    finally:
        sys.setswitchinterval(interval_s)
