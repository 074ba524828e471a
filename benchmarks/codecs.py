"""Codec kernels against memcpy and against hivemind's 8-bit codec, in one run on one core.

    python benchmarks/codecs.py [--megabytes 64] [--repeats 15] [--no-fallback] [--codec int8 ...]

Prints one JSON line per figure. Speeds are float32 bytes per CPU-second; a ratio is the median over the repeats of
(reference's CPU-seconds per byte) / (kernel's), each pair measured back to back. Kernels get all values in one call, as
memcpy has; the ``chunked`` figures have them in chunks of 65,536, as the exchange does.
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
from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import CODECS, back_end, codec
from atoll.kernels.error_feedback import ErrorFeedback

NUM_CONTRIBUTIONS = 4
CHUNK_ELEMENTS = 65_536
DRAWS = 16
"""Draws of the error figures: of Student-t data with 3 degrees of freedom, the largest values decide, by the draw."""
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
    kernel[0]()
    reference[0]()
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
        ratio_of_best=round(min(reference_s) / min(kernel_s), 4),
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


def speeds(name: str, values: np.ndarray, repeats: int, prefix: str) -> None:
    """Encode, decode, accumulate and check with the active back end, against memcpy."""
    which, yardstick = codec(name), memcpy(values)
    encoded = [np.zeros(which.nbytes(values.size), np.uint8) for _ in range(NUM_CONTRIBUTIONS)]
    for i, data in enumerate(encoded):
        which.encode(np.roll(values, i), data)
    out, target = np.zeros_like(values), np.zeros_like(encoded[0])
    weights = [1 / NUM_CONTRIBUTIONS] * NUM_CONTRIBUTIONS
    actions = {
        "encode": lambda: which.encode(values, target),
        "decode": lambda: which.decode(encoded[0], out),
        "decode_accumulate": lambda: which.accumulate_many(encoded, weights, out),
        "accumulate_one": lambda: which.accumulate(encoded[0], 0.25, out),
        "check": lambda: which.check(encoded[0], values.size),
        "squared_norm": lambda: which.squared_norm(encoded[0], values.size),
    }
    for action_name, action in actions.items():
        num_bytes = values.nbytes * (NUM_CONTRIBUTIONS if action_name == "decode_accumulate" else 1)
        compare(f"{prefix}_{action_name}_vs_memcpy", (action, num_bytes), yardstick, repeats)


def chunked_speeds(name: str, values: np.ndarray, repeats: int) -> None:
    """Encoding and reducing as the exchange does: chunk by chunk, what is written being read again at once."""
    grid, yardstick = ChunkGrid(values.size, CHUNK_ELEMENTS, codec(name)), memcpy(values)
    data, total = np.zeros(grid.total_encoded, np.uint8), np.zeros(CHUNK_ELEMENTS, np.float32)
    grid.encode(values, data)
    ranges = [grid.encoded_range(chunk) for chunk in range(grid.num_chunks)]
    weights = [1 / NUM_CONTRIBUTIONS] * NUM_CONTRIBUTIONS

    def reduce() -> None:
        for each in ranges:
            grid.codec.accumulate_many([data[each]] * NUM_CONTRIBUTIONS, weights, total)

    compare(f"{name}_encode_chunked_vs_memcpy", (lambda: grid.encode(values, data), values.nbytes), yardstick, repeats)
    reduced = values.nbytes * NUM_CONTRIBUTIONS
    compare(f"{name}_decode_accumulate_chunked_vs_memcpy", (reduce, reduced), yardstick, repeats)


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


def relative_error(decoded: np.ndarray, values: np.ndarray) -> float:
    """‖decoded − x‖ / ‖x‖ in percent."""
    exact = values.astype(np.float64)
    return 100 * float(np.linalg.norm(decoded - exact) / np.linalg.norm(exact))


def error(name: str, kind: str, draw: Callable[[], np.ndarray]) -> None:
    """Report the relative error over some draws together, and of the least and the most fortunate one."""
    squares, errors, which = np.zeros(2), [], codec(name)
    for _ in range(DRAWS):
        values = draw()
        data, decoded = np.empty(which.nbytes(values.size), np.uint8), np.empty_like(values)
        which.encode(values, data)
        which.decode(data, decoded)
        errors.append(relative_error(decoded, values))
        exact = values.astype(np.float64)
        squares += np.square(decoded - exact).sum(), np.square(exact).sum()
    spread = [round(min(errors), 4), round(max(errors), 4)]
    pooled = 100 * float(np.sqrt(squares[0] / squares[1]))
    report(f"{name}_error_{kind}", pooled, "%", repeats=DRAWS, taken="all draws together", range=spread)


def errors(name: str, random: np.random.Generator, num: int) -> None:
    """How far off the decoded values are, and what a value takes on the wire."""
    report(f"{name}_bits", 8 * codec(name).nbytes(CHUNK_ELEMENTS) / CHUNK_ELEMENTS, "bits a value, at most")
    error(name, "normal", lambda: random.standard_normal(num, np.float32))
    error(name, "student3", lambda: random.standard_t(3, num).astype(np.float32))


def error_with_feedback(name: str, random: np.random.Generator, num_rounds: int = 30) -> None:
    """What is still missing of the sum of independent contributions after some rounds with error feedback."""
    grid = ChunkGrid(1 << 18, CHUNK_ELEMENTS, codec(name))
    feedback, data = ErrorFeedback(grid), np.empty(grid.total_encoded, np.uint8)
    sent, given = np.zeros(grid.num_elements, np.float32), np.zeros(grid.num_elements)
    decoded = np.empty(grid.num_elements, np.float32)
    for _ in range(num_rounds):
        values = random.standard_normal(grid.num_elements, np.float32)
        feedback.encode(values, data)
        feedback.settle(counted=True)
        grid.decode(data, decoded)
        sent, given = sent + decoded, given + values
    report(f"{name}_feedback_error_30", relative_error(sent, given), "%", of="the sum of 30 contributions")


def main() -> None:
    """Measure and print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="size of the float32 input")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--no-fallback", action="store_true", help="skip the numpy back end")
    parser.add_argument("--codec", nargs="*", default=list(CODECS), help="only these, besides int8")
    options = parser.parse_args()
    random = np.random.default_rng(0)
    values = random.standard_normal(options.megabytes << 18, np.float32)
    speeds("int8", values, options.repeats, "int8")
    chunked_speeds("int8", values, options.repeats)
    two_threads(values, options.repeats)
    if (theirs := hivemind_encode(values)) is not None:
        int8, target = codec("int8"), np.zeros(codec("int8").nbytes(values.size), np.uint8)
        compare("int8_encode_vs_hivemind", (lambda: int8.encode(values, target), values.nbytes), theirs, 5)
    errors("int8", random, values.size // 4)
    for name in (each for each in options.codec if each != "int8"):
        speeds(name, values, 3, name)
        errors(name, random, values.size // 16)
    for name in ("int4", "stat2", "topk64"):
        error_with_feedback(name, random)
    if not options.no_fallback:
        with using(load("numpy")):
            speeds("int8", values, max(3, options.repeats // 3), "int8_numpy")


if __name__ == "__main__":
    main()
