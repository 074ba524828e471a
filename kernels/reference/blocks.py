"""Every block format, given how it finds the scales and codes of one block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from ..codec import Bytes, Float32Array, Float64Array
from ..formats import MIN_SCALE_BITS, BlockFormat
from .arithmetic import F, from_bfloat16

Quantise: TypeAlias = "Callable[[Float32Array], tuple[list[int], list[int]]]"
"""A block of finite values -> bits of its scales in ascending order, and the values' codes."""


class BlockKernels:
    """See `Kernels`."""

    def __init__(self, layout: BlockFormat, quantise: Quantise) -> None:
        self.layout, self._quantise = layout, quantise

    def encode(self, values: Float32Array, data: Bytes) -> int:
        finite = np.isfinite(values)
        if not finite.all():
            return int(np.argmin(finite))
        data[:] = 0
        for block, (elements, codes) in enumerate(self.layout.blocks(values.size)):
            with np.errstate(all="ignore"):
                scales, block_codes = self._quantise(values[elements])
            for i, bits in enumerate(scales, block * self.layout.num_scales):
                data[2 * i], data[2 * i + 1] = bits & 0xFF, bits >> 8
            self._pack(block_codes, data[codes])
        return -1

    def decode(self, data: Bytes, out: Float32Array) -> None:
        for i, (scale, level) in enumerate(self._scales_and_levels(data, out.size)):
            out[i] = F(0) + scale * F(level)  # never −0

    def accumulate(self, datas: Sequence[Bytes], weights: Float32Array, out: Float32Array, fresh: bool) -> None:
        if fresh:
            out[:] = 0
        with np.errstate(all="ignore"):
            for data, weight in zip(datas, weights, strict=True):
                for i, (scale, level) in enumerate(self._scales_and_levels(data, out.size)):
                    factor = scale * weight
                    product = factor * F(level)
                    out[i] = out[i] + product

    def check(self, data: Bytes, num_elements: int) -> int:
        scales = [self._scales(data, block) for block in range(self.layout.num_blocks(num_elements))]
        for i, (below, bits) in enumerate(self._neighbours(scales)):
            if bits < below or (bits != 0 and not MIN_SCALE_BITS <= bits <= self.layout.max_scale_bits):
                return 2 * i
        for block, (elements, codes) in enumerate(self.layout.blocks(num_elements)):
            for i, byte in enumerate(data[codes]):
                if self._is_bad(int(byte), i, elements.stop - elements.start, not any(scales[block])):
                    return codes.start + i
        return -1

    def dots(self, data: Bytes, other: Bytes, num_elements: int) -> Float64Array:
        num_scales = self.layout.num_scales
        terms = np.zeros((self.layout.num_blocks(num_elements), num_scales, num_scales), np.float64)
        mine, others = (self._codes(each, num_elements) for each in (data, other))
        for (block, code), (_, other_code) in zip(mine, others, strict=True):
            row, column = self._select(code), self._select(other_code)
            level = self.layout.levels[code] * self.layout.levels[other_code]
            scale = float(from_bfloat16(self._scales(data, block)[row]))
            terms[block, row, column] += scale * float(from_bfloat16(self._scales(other, block)[column])) * level
        return terms.reshape(-1)  # exact, as every sum of such products within a block

    def _pack(self, codes: list[int], data: Bytes) -> None:
        for i, code in enumerate(codes):
            data[i % data.size] |= code << i // data.size * self.layout.bits

    def _select(self, code: int) -> int:
        return self.layout.selects[code] if self.layout.selects else 0

    def _scales(self, data: Bytes, block: int) -> list[int]:
        first = 2 * block * self.layout.num_scales
        return [int(data[i]) | int(data[i + 1]) << 8 for i in range(first, first + 2 * self.layout.num_scales, 2)]

    def _codes(self, data: Bytes, num_elements: int) -> Iterator[tuple[int, int]]:
        for block, (elements, codes) in enumerate(self.layout.blocks(num_elements)):
            num_bytes = codes.stop - codes.start
            for i in range(elements.stop - elements.start):
                byte = int(data[codes.start + i % num_bytes])
                yield block, byte >> i // num_bytes * self.layout.bits & 2**self.layout.bits - 1

    def _scales_and_levels(self, data: Bytes, num_elements: int) -> Iterator[tuple[np.float32, int]]:
        for block, code in self._codes(data, num_elements):
            yield from_bfloat16(self._scales(data, block)[self._select(code)]), self.layout.levels[code]

    def _neighbours(self, scales: list[list[int]]) -> Iterator[tuple[int, int]]:
        """The scale before within the block (0 before the first), and each scale."""
        for block in scales:
            yield from zip([0, *block[:-1]], block, strict=True)

    def _is_bad(self, byte: int, index: int, num: int, is_zero_block: bool) -> bool:
        num_bytes = -(-num * self.layout.bits // 8)
        for slot in range(self.layout.slots):
            code = byte >> slot * self.layout.bits & 2**self.layout.bits - 1
            is_inside = index + slot * num_bytes < num
            if code == self.layout.unused or (code != 0 and (is_zero_block or not is_inside)):
                return True
        return False
