"""Encoding on a GPU, against what the device and its bus can copy.

    python benchmarks/gpu.py [--megabytes 1024] [--repeats 10]

Needs a CUDA device and Triton; without them it says so and exits with 2. Meant to end within five minutes. Before
anything is timed, every codec's bytes are compared with the host's. Times are of CUDA events, the best of the repeats.
``encode_of_copy`` figures are the bytes that a kernel reads and writes per second, against those of a copy on the
device; ``to_host_of_copy`` figures are encoded bytes that arrive in pinned memory per second, encoding included,
against a plain copy of as many bytes there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch
from _figures import report

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.kernels.device import HostEncoder
from atoll.kernels.formats import FORMATS

CHUNK_ELEMENTS = 65_536
NUM_CHECKED = 40 * CHUNK_ELEMENTS + 777


def refuse_without_a_device() -> None:
    """Exit with one line that says what is missing."""
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py: PyTorch finds no CUDA device here, so there is nothing to measure", file=sys.stderr)
        sys.exit(2)
    if find_spec("triton") is None:
        print("benchmarks/gpu.py: Triton is not installed, so there are no kernels to measure", file=sys.stderr)
        sys.exit(2)


def best_s(action: Callable[[], object], repeats: int) -> float:
    """Seconds that the device takes, the best of the repeats after one that does not count."""
    action()
    times_s = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        action()
        end.record()
        torch.cuda.synchronize()
        times_s.append(start.elapsed_time(end) / 1e3)
    return min(times_s)


def require_same_bits(name: str) -> None:
    """The device's bytes are the host's, or nothing is worth timing."""
    grid = ChunkGrid(NUM_CHECKED, CHUNK_ELEMENTS, codec(name))
    values = np.random.default_rng(0).standard_t(3, NUM_CHECKED).astype(np.float32)
    expected = np.empty(grid.total_encoded, np.uint8)
    grid.encode(values, expected)
    found = torch.empty(grid.total_encoded, dtype=torch.uint8, pin_memory=True)
    HostEncoder(grid).encode(torch.from_numpy(values).cuda(), found)
    if found.numpy().tobytes() != expected.tobytes():
        sys.exit(f"benchmarks/gpu.py: {name} gives other bytes on the device than on the host")


def measure(name: str, values: torch.Tensor, repeats: int) -> None:
    """Both figures of a codec."""
    from atoll.kernels import gpu

    layout, grid = FORMATS[name], ChunkGrid(values.numel(), CHUNK_ELEMENTS, codec(name))
    data = torch.empty(grid.total_encoded, dtype=torch.uint8, device=values.device)
    pinned = torch.empty(grid.total_encoded, dtype=torch.uint8, pin_memory=True)
    card = torch.cuda.get_device_name(values.device)
    moved = 4 * values.numel() + grid.total_encoded
    copy = torch.empty(moved // 2, dtype=torch.uint8, device=values.device)
    source = torch.empty_like(copy)
    copy_s = best_s(lambda: copy.copy_(source), repeats)
    encode_s = best_s(lambda: gpu.encode_chunks(layout, values, CHUNK_ELEMENTS, data), repeats)
    rate, copy_rate = moved / encode_s / 1e9, moved / copy_s / 1e9
    report(f"gpu_{name}_encode_of_copy", rate, "GB/s", reference=round(copy_rate, 3), repeats=repeats, card=card)
    bus_s = best_s(lambda: pinned.copy_(data, non_blocking=True), repeats)
    encoder = HostEncoder(grid)
    arrive_s = best_s(lambda: encoder.encode(values, pinned), repeats)
    rate, bus_rate = grid.total_encoded / arrive_s / 1e9, grid.total_encoded / bus_s / 1e9
    report(f"gpu_{name}_to_host_of_copy", rate, "GB/s", reference=round(bus_rate, 3), repeats=repeats, card=card)


def whole_vector(values: torch.Tensor, repeats: int) -> None:
    """What it takes to bring the float32 vector itself to the host, for comparison."""
    pinned = torch.empty(values.numel(), dtype=torch.float32, pin_memory=True)
    taken_s = best_s(lambda: pinned.copy_(values, non_blocking=True), repeats)
    report("gpu_float32_copy_to_host", values.nbytes / taken_s / 1e9, "GB/s", repeats=repeats)


def main() -> None:
    """Check, measure and print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the float32 input")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--codec", nargs="*", default=["int8", "int4", "e3m0", "stat2", "bfloat16"])
    options = parser.parse_args()
    refuse_without_a_device()
    values = torch.randn(options.megabytes << 18, device="cuda", dtype=torch.float32)
    whole_vector(values, options.repeats)
    for name in options.codec:
        require_same_bits(name)
        measure(name, values, options.repeats)


if __name__ == "__main__":
    main()
