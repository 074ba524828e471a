"""Codec kernels against memcpy and against hivemind's 8-bit codec, in one run on one core.

    python benchmarks/codecs.py [--megabytes 64] [--repeats 15] [--no-fallback]

Prints one JSON line per figure. Speeds are float32 bytes per CPU-second; a ratio is the median over the repeats of
(reference's CPU-seconds per byte) / (kernel's), each pair measured back to back.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from _figures import report

from atoll.kernels.back_ends import load, using
from atoll.kernels.codec import back_end, codec

NUM_CONTRIBUTIONS = 4
Action = Callable[[], object]
Timed = tuple[Action, int]
"""Something to time, and the float32 bytes it handles."""


def cpu_s(action: Action) -> float:
    """CPU-seconds of this process that `action` takes."""
    start = time.process_time()
    action()
    return time.process_time() - start


def compare(name: str, kernel: Timed, reference: Timed, repeats: int) -> None:
    """Report a kernel's speed against a reference's."""
    kernel[0](), reference[0]()
    kernel_s, reference_s = [], []
    for _ in range(repeats):
        reference_s.append(cpu_s(reference[0]) / reference[1])
        kernel_s.append(cpu_s(kernel[0]) / kernel[1])
    ratios = sorted(theirs / ours for ours, theirs in zip(kernel_s, reference_s, strict=True))
    report(
        name,
        1e-9 / statistics.median(kernel_s),
        "GB per CPU-s",
        reference=round(1e-9 / statistics.median(reference_s), 6),
        repeats=repeats,
        ratio=round(statistics.median(ratios), 4),
        ratio_range=[round(ratios[0], 4), round(ratios[-1], 4)],
        back_end=back_end(),
    )


def memcpy(values: np.ndarray) -> Timed:
    """The C library's memcpy of all values, the yardstick."""
    target = np.zeros_like(values)
    arguments = (target.ctypes.data, values.ctypes.data, values.nbytes)
    keep_alive = (target, values)
    return lambda: (ctypes.memmove(*arguments), keep_alive), values.nbytes


def hivemind_encode(values: np.ndarray) -> Timed | None:
    """hivemind's Uniform8BitQuantization on the same values and one thread, where hivemind is installed."""
    try:
        import torch
        from hivemind.compression import CompressionInfo, Uniform8BitQuantization
        from hivemind.utils.tensor_descr import TensorDescriptor
    except ImportError:
        print("hivemind is not installed: no comparison with it", file=sys.stderr)
        return None
    torch.set_num_threads(1)
    tensor = torch.from_numpy(values)
    info = CompressionInfo("values", TensorDescriptor.from_tensor(tensor))
    return lambda: Uniform8BitQuantization().compress(tensor, info), values.nbytes


def speeds(values: np.ndarray, repeats: int, prefix: str) -> None:
    """Encode, decode, accumulate and check with the active back end, against memcpy."""
    int8, yardstick = codec("int8"), memcpy(values)
    encoded = [np.zeros(int8.nbytes(values.size), np.uint8) for _ in range(NUM_CONTRIBUTIONS)]
    for i, data in enumerate(encoded):
        int8.encode(np.roll(values, i), data)
    out, target = np.zeros_like(values), np.zeros_like(encoded[0])
    weights = [1 / NUM_CONTRIBUTIONS] * NUM_CONTRIBUTIONS
    actions = {
        "encode": lambda: int8.encode(values, target),
        "decode": lambda: int8.decode(encoded[0], out),
        "decode_accumulate": lambda: int8.accumulate_many(encoded, weights, out),
        "accumulate_one": lambda: int8.accumulate(encoded[0], 0.25, out),
        "check": lambda: int8.check(encoded[0], values.size),
    }
    for name, action in actions.items():
        num_bytes = values.nbytes * (NUM_CONTRIBUTIONS if name == "decode_accumulate" else 1)
        compare(f"{prefix}_{name}_vs_memcpy", (action, num_bytes), yardstick, repeats)


def wall_s(action: Action) -> float:
    """Seconds on the wall that `action` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def two_threads(values: np.ndarray, repeats: int) -> None:
    """Wall-clock gain of encoding two halves in two threads: shows that the kernels run without the GIL."""
    int8 = codec("int8")
    halves = [half.copy() for half in np.split(values, 2)]
    targets = [np.zeros(int8.nbytes(half.size), np.uint8) for half in halves]
    with ThreadPoolExecutor(2) as pool:
        serial_s = [wall_s(lambda: list(map(int8.encode, halves, targets))) for _ in range(repeats)]
        parallel_s = [wall_s(lambda: list(pool.map(int8.encode, halves, targets))) for _ in range(repeats)]
    # The best of each: other work on the machine only ever makes either slower.
    report(
        "int8_encode_two_threads", min(serial_s) / min(parallel_s), "times one thread", repeats=repeats, taken="best"
    )


def error(name: str, values: np.ndarray) -> None:
    """Relative error ‖decoded − x‖ / ‖x‖ in percent."""
    int8 = codec("int8")
    data, decoded = np.empty(int8.nbytes(values.size), np.uint8), np.empty_like(values)
    int8.encode(values, data)
    int8.decode(data, decoded)
    exact = values.astype(np.float64)
    report(name, 100 * float(np.linalg.norm(decoded - exact) / np.linalg.norm(exact)), "%")


def main() -> None:
    """Measure and print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="size of the float32 input")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--no-fallback", action="store_true", help="skip the numpy back end")
    options = parser.parse_args()
    random = np.random.default_rng(0)
    values = random.standard_normal(options.megabytes << 18, np.float32)
    speeds(values, options.repeats, "int8")
    two_threads(values, options.repeats)
    if (theirs := hivemind_encode(values)) is not None:
        int8, target = codec("int8"), np.zeros(codec("int8").nbytes(values.size), np.uint8)
        compare("int8_encode_vs_hivemind", (lambda: int8.encode(values, target), values.nbytes), theirs, 3)
    error("int8_error_normal", values)
    error("int8_error_student3", random.standard_t(3, values.size).astype(np.float32))
    if not options.no_fallback:
        with using(load("numpy")):
            speeds(values, max(3, options.repeats // 3), "int8_numpy")


if __name__ == "__main__":
    main()
