"""The kernels in numpy, for machines without the compiled library: many blocks at a time, temporaries kept in cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .codec import Bytes, Float32Array, Float64Array
from .reference import BLOCK, MAX_SCALE_BITS, MIN_SCALE_BITS

CACHE_BLOCKS = 512
"""Blocks worked on at a time: 512 KiB of float32. With fewer, numpy's cost per call shows; more leave the cache."""
CACHE_ELEMENTS = CACHE_BLOCKS * BLOCK
ROUNDER = np.float32(1.5 * 2**23)
"""v + ROUNDER rounds |v| < 2²² to the nearest even integer, which is then in the low bits: rint and cast in one."""
INFINITY_BITS = 0x7F800000
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def parts(num_elements: int) -> Iterator[tuple[slice, slice]]:
    """Slices over elements, and over their blocks, that fit the cache. All but the last hold whole blocks."""
    num_blocks = -(-num_elements // BLOCK)
    for first in range(0, num_blocks, CACHE_BLOCKS):
        last = min(first + CACHE_BLOCKS, num_blocks)
        yield slice(first * BLOCK, min(last * BLOCK, num_elements)), slice(first, last)


def split(data: Bytes, num_elements: int) -> tuple[NDArray[np.uint16], NDArray[np.int8]]:
    """Views of the scales (bfloat16 bits) and of the codes in an encoding."""
    num_scale_bytes = 2 * -(-num_elements // BLOCK)
    return data[:num_scale_bytes].view("<u2"), data[num_scale_bytes:].view(np.int8)


def scale_values(bits: NDArray[np.uint16]) -> Float32Array:
    """float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def scale_bits(largest: Float32Array) -> NDArray[np.uint32]:
    """bfloat16 bits of largest / 127, and 0 for blocks too small to have a scale."""
    raw = (largest / np.float32(127)).view(np.uint32)
    bits = (raw + np.uint32(0x7FFF) + ((raw >> 16) & np.uint32(1))) >> np.uint32(16)
    bits[bits < MIN_SCALE_BITS] = 0
    return bits.astype(np.uint32, copy=False)


class Blocked:
    """The numpy back end. Needs the usual floating-point mode: a thread that flushes subnormals gets other bits."""

    name = "numpy"

    def encode_int8(self, values: Float32Array, data: Bytes) -> int:
        scales, codes = split(data, values.size)
        scratch = np.zeros((min(CACHE_BLOCKS, scales.size), BLOCK), np.float32)
        with np.errstate(all="ignore"):
            for elements, blocks in parts(values.size):
                first_bad = self._encode_part(values[elements], scales[blocks], codes[elements], scratch)
                if first_bad >= 0:
                    return elements.start + first_bad
        return -1

    def decode_int8(self, data: Bytes, out: Float32Array) -> None:
        scales, codes = split(data, out.size)
        for elements, blocks in parts(out.size):
            np.copyto(out[elements], codes[elements])
            self._multiply_blocks(out[elements], scale_values(scales[blocks]))

    def accumulate_int8(self, datas: Sequence[Bytes], weights: Float32Array, out: Float32Array, fresh: bool) -> None:
        encoded = [split(data, out.size) for data in datas]
        scratch = np.empty(min(CACHE_ELEMENTS, out.size), np.float32)
        with np.errstate(all="ignore"):
            for elements, blocks in parts(out.size):
                total = out[elements]
                if fresh:
                    total[:] = 0
                product = scratch[: total.size]
                for (scales, codes), weight in zip(encoded, weights, strict=True):
                    np.copyto(product, codes[elements])
                    self._multiply_blocks(product, scale_values(scales[blocks]) * weight)
                    total += product

    def check_int8(self, data: Bytes, num_elements: int) -> int:
        scales, codes = split(data, num_elements)
        bad = (scales != 0) & ((scales < MIN_SCALE_BITS) | (scales > MAX_SCALE_BITS))
        if bad.any():
            return 2 * int(np.argmax(bad))
        for elements, blocks in parts(num_elements):
            part = codes[elements]
            bad = part == -128
            if not scales[blocks].all():
                bad |= (part != 0) & np.repeat(scales[blocks] == 0, BLOCK)[: part.size]
            if bad.any():
                return 2 * scales.size + elements.start + int(np.argmax(bad))
        return -1

    def dots_int8(self, data: Bytes, other: Bytes, num_elements: int) -> Float64Array:
        (scales, codes), (other_scales, other_codes) = split(data, num_elements), split(other, num_elements)
        terms = scale_values(scales).astype(np.float64) * scale_values(other_scales)
        num_scratch = min(CACHE_BLOCKS, scales.size)
        mine, others = np.zeros((num_scratch, BLOCK), np.float32), np.zeros((num_scratch, BLOCK), np.float32)
        for elements, blocks in parts(num_elements):
            num_blocks = blocks.stop - blocks.start
            for work, part in ((mine, codes[elements]), (others, other_codes[elements])):
                work.reshape(-1)[: part.size] = part
                work.reshape(-1)[part.size : num_blocks * BLOCK] = 0
            # Sums of integers below 2²⁴ are exact in float32, in whatever order.
            terms[blocks] *= np.einsum("bi,bi->b", mine[:num_blocks], others[:num_blocks])
        return terms

    def nesterov_step(
        self, anchor: Float32Array, momentum: Float32Array, mean: Float32Array, lr: float, beta: float
    ) -> None:
        with np.errstate(all="ignore"):
            for start in range(0, anchor.size, CACHE_ELEMENTS):
                part = slice(start, start + CACHE_ELEMENTS)
                momentum[part] *= np.float32(beta)
                momentum[part] += mean[part]
                ahead = momentum[part] * np.float32(beta)
                ahead += mean[part]
                ahead *= np.float32(lr)
                anchor[part] -= ahead

    def fill_normal(self, out: Float32Array, key: int, start: int, factor: float) -> None:
        with np.errstate(over="ignore"):
            for first in range(0, out.size, CACHE_ELEMENTS):
                part = out[first : first + CACHE_ELEMENTS]
                base = np.uint64((start + first) % 2**64)
                self._fill_part(part, np.uint64(key), base + np.arange(1, part.size + 1, dtype=np.uint64))
                part *= np.float32(factor)

    def _encode_part(
        self, values: Float32Array, scales: NDArray[np.uint16], codes: NDArray[np.int8], scratch: Float32Array
    ) -> int:
        work = scratch[: scales.size].reshape(-1)
        work[values.size :] = 0  # the tail of a partial block
        blocks = work.reshape(-1, BLOCK)
        np.abs(values, out=work[: values.size])
        # Bits of non-negative floats order as the floats do, NaN and infinity on top, and integers reduce faster.
        largest = blocks.view(np.int32).max(axis=1)
        if largest.max() >= INFINITY_BITS:
            return int(np.argmin(np.isfinite(values)))
        bits = scale_bits(largest.view(np.float32))
        scales[:] = bits
        inverses = np.float32(1) / (bits << np.uint32(16)).view(np.float32)
        inverses[bits == 0] = 0
        np.copyto(blocks, inverses[:, None])
        work[: values.size] *= values
        work += ROUNDER
        np.copyto(codes, work.view(np.int32)[: values.size], casting="unsafe")  # keeps the low byte
        return -1

    def _multiply_blocks(self, values: Float32Array, factors: Float32Array) -> None:
        num_whole = values.size // BLOCK
        values[: num_whole * BLOCK].reshape(-1, BLOCK)[...] *= factors[:num_whole, None]
        values[num_whole * BLOCK :] *= factors[-1]

    def _fill_part(self, out: Float32Array, key: np.uint64, counters: NDArray[np.uint64]) -> None:
        z = counters * GOLDEN + key
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        quarters = z.view(np.uint16).reshape(-1, 4)
        out[:] = quarters.sum(axis=1, dtype=np.int32) - 131_070
