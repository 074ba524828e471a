"""Bringing a whole vector to the host, where there is no GPU; test_triton.py goes through its batches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import NonFiniteError, codec
from atoll.kernels.device import HostEncoder

from .every_codec import normal

ROOT = Path(__file__).parents[3]
GRID = ChunkGrid(5 * 4096 + 9, 4096, codec("int4"))


def test_without_a_gpu_it_is_the_grid_that_encodes():
    values, expected = normal(GRID.num_elements), np.empty(GRID.total_encoded, np.uint8)
    GRID.encode(values, expected)
    out = torch.zeros(GRID.total_encoded, dtype=torch.uint8)
    HostEncoder(GRID).encode(torch.from_numpy(values), out)
    assert out.numpy().tobytes() == expected.tobytes()


def test_a_value_that_is_not_finite_is_named_by_its_place_in_the_vector():
    encoder, values = HostEncoder(GRID), torch.ones(GRID.num_elements)
    encoder.batch_chunks = 2
    values[4 * 4096 + 3] = float("nan")
    with pytest.raises(NonFiniteError, match="value 16387 of 20489 is nan"):
        encoder._require_finite(values, [2 * 4096, 2 * 4096, 3])
    encoder._require_finite(values, [2 * 4096, 2 * 4096, 4096 + 9])


def test_what_does_not_fit_the_grid_is_refused():
    out = torch.zeros(GRID.total_encoded, dtype=torch.uint8)
    with pytest.raises(ValueError, match="a flat tensor of 20489 values"):
        HostEncoder(GRID).encode(torch.zeros(3), out)
    with pytest.raises(ValueError, match="the target has"):
        HostEncoder(GRID).encode(torch.zeros(GRID.num_elements), out[1:])
    with pytest.raises(TypeError, match="float64"):
        HostEncoder(GRID).encode(torch.zeros(GRID.num_elements, dtype=torch.float64), out)
    with pytest.raises(TypeError, match="topk64 is encoded chunk by chunk"):
        HostEncoder(ChunkGrid(4096, 4096, codec("topk64")))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_benchmark_says_in_one_line_that_it_needs_a_gpu():
    path = os.pathsep.join([str(ROOT / ".pkg"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert not done.stdout
    assert done.stderr.strip().splitlines() == [
        "benchmarks/gpu.py: PyTorch finds no CUDA device here, so there is nothing to measure"
    ]
