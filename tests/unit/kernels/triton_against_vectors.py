"""Compares the Triton kernels, and torch's fallback, with the host's on the committed vectors' inputs.

    python triton_against_vectors.py cuda|cpu [codec …]

Started by test_triton.py. "cpu" needs TRITON_INTERPRET=1, which must be in the environment before triton is imported.
Exits 0 if all bits agree.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import MagicMock, patch

import numpy as np
import torch

from atoll.kernels import gpu
from atoll.kernels.back_ends import active
from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import NonFiniteError, codec
from atoll.kernels.device import HostEncoder, encode_with_torch
from atoll.kernels.formats import FORMATS
from atoll.kernels.gpu import selection as gpu_selection
from atoll.kernels.vector import kernels_of, selection
from atoll.kernels.vector.arrays import TORCH

GENERATOR = Path(__file__).parents[2] / "vectors" / "generate.py"


def inputs():
    spec = importlib.util.spec_from_file_location("vectors_generate", GENERATOR)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.edge_cases() | {"long": module.normal("long", 20_011, 0.02), "none": np.empty(0, np.float32)}


def on_the_host(name, values):
    which = codec(name)
    data, decoded, total = np.empty(which.nbytes(values.size), np.uint8), np.empty_like(values), values.copy()
    try:
        which.encode(values, data)
    except NonFiniteError as error:
        return [str(error).split(":")[0].encode()]
    which.decode(data, decoded)
    which.accumulate(data, 0.3, total)
    return [data.tobytes(), decoded.tobytes(), total.tobytes()]


def found(index, values):
    return [f"value {index} of {values.numel()} is {values[index].item()}".encode()]


def by_triton(name, values, out):
    layout = FORMATS[name]
    data, first_bad = gpu.encode(layout, values)
    if first_bad.item() < values.numel():
        return found(first_bad.item(), values)
    gpu.accumulate(layout, data, 0.3, out)
    return [each.cpu().numpy().tobytes() for each in (data, gpu.decode(layout, data, values.numel()), out)]


def by_torch(name, values, out):
    kernels, decoded = kernels_of(TORCH, FORMATS[name]), torch.empty_like(values)
    data, index = encode_with_torch(FORMATS[name], values)
    if index >= 0:
        return found(index, values)
    kernels.decode(data, decoded)
    kernels.accumulate([data], torch.tensor([0.3], device=values.device), out, False)
    assert kernels.check(data, values.numel()) == -1
    return [each.cpu().numpy().tobytes() for each in (data, decoded, out)]


def differing(device, names):
    for name in names:
        for what, values in inputs().items():
            expected = on_the_host(name, values)
            for way in (by_triton, by_torch):
                there, out = torch.from_numpy(values).to(device), torch.from_numpy(values.copy()).to(device)
                if way(name, there, out) != expected:
                    yield name, what, way.__name__


def choices_differ(device, values):
    """Whether the largest magnitudes are chosen differently from the host."""
    for kept in (1, 64, 4096):
        num = codec(f"topk{kept}").choice.most_values(values.size)
        expected, there = np.empty(num, np.uint16), torch.from_numpy(values).to(device)
        active().largest(values, kept, expected)
        by_gpu, by_torch = (torch.empty(num, dtype=torch.int16, device=device) for _ in range(2))
        if values.size:
            gpu_selection.largest(there, kept, by_gpu, torch.full((1,), values.size, dtype=torch.int64, device=device))
        selection.largest(TORCH, there, kept, by_torch)
        if not all(np.array_equal(each.cpu().numpy(), expected.astype(np.int16)) for each in (by_gpu, by_torch)):
            yield kept


def sparse_tensors_differ(device, name, values):
    """Whether the way of tensors on a device gives other bytes than the host's."""
    which = codec(name)
    data, expected = np.full(which.nbytes(values.size), 9, np.uint8), np.empty(which.nbytes(values.size), np.uint8)
    which.encode(values, expected)
    which.encode_on_device(torch.from_numpy(values).to(device), data)
    return data.tobytes() != expected.tobytes()


@contextmanager
def without_streams():
    """Stands in for CUDA's streams and events where there is no GPU: everything happens at once."""
    with ExitStack() as stack:
        for name in ("Stream", "Event", "current_stream", "stream"):
            stack.enter_context(patch.object(torch.cuda, name, lambda *_: MagicMock()))
        yield


def chunks_differ(device, name):
    """Whether several chunks in one launch come out differently from the host's."""
    values = np.random.default_rng(0).standard_normal(5 * 4096 + 77).astype(np.float32)
    grid = ChunkGrid(values.size, 4096, codec(name))
    expected, there = np.empty(grid.total_encoded, np.uint8), torch.from_numpy(values).to(device)
    grid.encode(values, expected)
    data = torch.zeros(grid.total_encoded, dtype=torch.uint8, device=device)
    first_bad = gpu.encode_chunks(FORMATS[name], there, 4096, data)
    by_host_encoder = torch.zeros(grid.total_encoded, dtype=torch.uint8)
    encoder = HostEncoder(grid)
    encoder.batch_chunks = 2
    if device == "cpu":
        with without_streams():
            encoder._encode_on_gpu(there, by_host_encoder)
    else:
        encoder.encode(there, by_host_encoder)
    if first_bad.item() != values.size or by_host_encoder.numpy().tobytes() != expected.tobytes():
        return True
    there[4096 * 3 + 5] = float("inf")
    return data.cpu().numpy().tobytes() != expected.tobytes() or (
        gpu.encode_chunks(FORMATS[name], there, 4096, data).item() != 4096 * 3 + 5
    )


def names_the_first_non_finite(device, name):
    values = torch.ones(9000, device=device)
    values[700], values[8000] = float("nan"), float("inf")
    return gpu.encode(FORMATS[name], values)[1].item() == 700 == encode_with_torch(FORMATS[name], values)[1]


if __name__ == "__main__":
    chosen = sys.argv[2:] or list(FORMATS)
    with np.errstate(all="ignore"):
        all_differing = list(differing(sys.argv[1], chosen))
        all_differing += [("chunks", name) for name in chosen if chunks_differ(sys.argv[1], name)]
        for what, values in (inputs() | {"ties": np.ones(9000, np.float32)}).items():
            all_differing += [("largest", kept, what) for kept in choices_differ(sys.argv[1], values)]
            for name in ("topk64", "rows256", "rows16-int4"):
                all_differing += [(name, what)] * sparse_tensors_differ(sys.argv[1], name, values)
        named = all(names_the_first_non_finite(sys.argv[1], name) for name in chosen)
    print("differing:", all_differing, "non-finite value named:", named)
    sys.exit(bool(all_differing) or not named)
