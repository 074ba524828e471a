"""Compares the Triton kernels with the host's on the committed vectors' inputs; started by test_triton.py.

    python triton_against_vectors.py cuda|cpu

"cpu" needs TRITON_INTERPRET=1, which must be in the environment before triton is imported. Exits 0 if all bits agree.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch

from atoll.kernels import triton_int8
from atoll.kernels.codec import NonFiniteError, codec

GENERATOR = Path(__file__).parents[2] / "vectors" / "generate.py"


def inputs():
    spec = importlib.util.spec_from_file_location("vectors_generate", GENERATOR)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.edge_cases() | {"long": module.normal("long", 20_011, 0.02), "none": np.empty(0, np.float32)}


def agree(device, values):
    int8 = codec("int8")
    data, decoded, total = np.empty(int8.nbytes(values.size), np.uint8), np.empty_like(values), values.copy()
    int8.encode(values, data)
    int8.decode(data, decoded)
    int8.accumulate(data, 0.3, total)
    on_device, total_there = torch.from_numpy(values).to(device), torch.from_numpy(values.copy()).to(device)
    encoded = triton_int8.encode(on_device)
    triton_int8.accumulate(encoded, 0.3, total_there)
    theirs = encoded, triton_int8.decode(encoded, values.size), total_there
    ours = data, decoded, total
    return all(a.cpu().numpy().tobytes() == b.tobytes() for a, b in zip(theirs, ours, strict=True))


def names_the_first_non_finite(device):
    values = torch.ones(9000, device=device)
    values[700], values[8000] = float("nan"), float("inf")
    try:
        triton_int8.encode(values)
    except NonFiniteError as error:
        return "value 700 of 9000" in str(error)
    return False


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        differing = [name for name, values in inputs().items() if not agree(sys.argv[1], values)]
        named = names_the_first_non_finite(sys.argv[1])
    print("differing:", differing, "non-finite value named:", named)
    sys.exit(bool(differing) or not named)
