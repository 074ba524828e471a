"""Every block format on whole arrays, given how it finds the scales and codes of many blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from ..formats import MIN_SCALE_BITS, BlockFormat
from .arrays import Array, Arrays


class Blocks(NamedTuple):
    """Equally long blocks of finite values, as rows."""

    values: Array
    """Not to be written to. Rows may be padded with zeros, whose code must be 0."""
    largest: Array
    """Bits of each block's largest magnitude."""
    num: int
    """Values per block."""
    work: Array
    """Room for as many values."""


Quantise: TypeAlias = "Callable[[Arrays, Blocks], tuple[Array, Array]]"
"""Blocks -> bits of their scales (num_blocks, num_scales), and their codes, of which only the low bits count."""
CACHE_ELEMENTS = 1 << 17
"""Values worked on at a time: 512 KiB of float32. With fewer, the cost per call shows; more leave the cache."""
INFINITY_BITS = 0x7F800000


class Part(NamedTuple):
    """Equally long blocks that are worked on together."""

    elements: slice
    blocks: slice
    codes: slice
    """Bytes of their codes, after the scales."""
    num: int
    """Values per block."""
    num_bytes: int
    """Bytes of codes per block."""


class BlockKernels:
    """See `Kernels`; arrays are numpy's or torch's. Needs the usual floating-point mode."""

    def __init__(self, arrays: Arrays, layout: BlockFormat, quantise: Quantise) -> None:
        self._arrays, self.layout, self._quantise = arrays, layout, quantise

    def parts(self, num_elements: int) -> Iterator[Part]:
        """Whole blocks, as many as fit the cache; then the last one, if it is shorter."""
        num_whole, rest = divmod(num_elements, self.layout.block)
        step = CACHE_ELEMENTS // self.layout.block
        for first in range(0, num_whole, step):
            yield self._part(first, min(first + step, num_whole), self.layout.block)
        if rest:
            yield self._part(num_whole, num_whole + 1, rest)

    def encode(self, values: Array, data: Array) -> int:
        codes = data[self.layout.scale_bytes(len(values)) :]
        room = self._arrays.zeros((min(len(values) + self.layout.slots, CACHE_ELEMENTS),), "float32", values)
        for part in self.parts(len(values)):
            blocks = self._padded(values[part.elements], part)
            work = room[: blocks.shape[0] * blocks.shape[1]].reshape(blocks.shape)
            largest = self._arrays.largest_magnitude(blocks, work)
            if int(largest.max()) >= INFINITY_BITS:
                return part.elements.start + self._arrays.first(~self._arrays.finite(values[part.elements]))
            scales, found = self._quantise(self._arrays, Blocks(blocks, largest, part.num, work))
            self._write_scales(scales, data, part)
            codes[part.codes] = self._packed(found, part).reshape(-1)  # keeps the low bytes
        return -1

    def decode(self, data: Array, out: Array) -> None:
        for part in self.parts(len(out)):
            decoded = self._decoded(data, part, len(out), None)
            out[part.elements] = decoded + 0.0 if self.layout.selects else decoded  # never −0

    def accumulate(self, datas: Sequence[Array], weights: Array, out: Array, fresh: bool) -> None:
        for part in self.parts(len(out)):
            total = out[part.elements]
            if fresh:
                total[:] = 0
            for data, weight in zip(datas, weights, strict=True):
                total += self._decoded(data, part, len(out), weight)

    def check(self, data: Array, num_elements: int) -> int:
        num_scale_bytes = self.layout.scale_bytes(num_elements)
        scales = self._scales(data[:num_scale_bytes])
        bad = (scales != 0) & ((scales < MIN_SCALE_BITS) | (scales > self.layout.max_scale_bits))
        bad[:, 1:] |= scales[:, 1:] < scales[:, :-1]
        first_bad = self._arrays.first(bad)
        if first_bad >= 0:
            return 2 * first_bad
        for part in self.parts(num_elements):
            is_zero_block = scales[part.blocks, -1] == 0
            first_bad = self._arrays.first(self._bad_codes(self._bytes(data, part, num_elements), is_zero_block, part))
            if first_bad >= 0:
                return num_scale_bytes + part.codes.start + first_bad
        return -1

    def dots(self, data: Array, other: Array, num_elements: int) -> Array:
        num_scales = self.layout.num_scales
        terms = self._arrays.zeros((self.layout.num_blocks(num_elements), num_scales**2), "float64", data)
        for part in self.parts(num_elements):
            mine, others = (self._slots(self._bytes(each, part, num_elements), part) for each in (data, other))
            for (_, codes), (_, other_codes) in zip(mine, others, strict=True):
                products = self._table(self.layout.levels, codes) * self._table(self.layout.levels, other_codes)
                for i in range(num_scales**2):
                    terms[part.blocks, i] += self._sums(products, codes, other_codes, *divmod(i, num_scales))
            factors, other_factors = (self._arrays.float64(self._factors(each, part)) for each in (data, other))
            terms[part.blocks] *= (factors[:, :, None] * other_factors[:, None, :]).reshape(-1, num_scales**2)
        return terms.reshape(-1)

    def _part(self, first: int, last: int, num: int) -> Part:
        """Blocks ``first`` to ``last`` (exclusive), of ``num`` values each."""
        block, num_bytes = self.layout.block, -(-num * self.layout.bits // 8)
        whole_bytes = block * self.layout.bits // 8
        elements = slice(first * block, (last - 1) * block + num)
        codes = slice(first * whole_bytes, (last - 1) * whole_bytes + num_bytes)
        return Part(elements, slice(first, last), codes, num, num_bytes)

    def _padded(self, values: Array, part: Part) -> Array:
        """A matrix with a row per block, as wide as its codes' bytes have room for."""
        width = part.num_bytes * self.layout.slots
        if width == part.num:
            return values.reshape(-1, width)
        row = self._arrays.zeros((1, width), "float32", values)
        row[0, : part.num] = values
        return row

    def _packed(self, codes: Array, part: Part) -> Array:
        """Integers whose low bytes are those of the codes."""
        if self.layout.slots == 1:
            return codes
        slots = (codes & self._mask).reshape(-1, self.layout.slots, part.num_bytes)
        packed = slots[:, 0]
        for slot in range(1, self.layout.slots):
            packed = packed | (slots[:, slot] << (slot * self.layout.bits))
        return packed

    def _write_scales(self, scales: Array, data: Array, part: Part) -> None:
        size = 2 * self.layout.num_scales
        both = self._arrays.stack([scales & 0xFF, scales >> 8])
        data[size * part.blocks.start : size * part.blocks.stop] = self._arrays.uint8(both).reshape(-1)

    def _scales(self, data: Array) -> Array:
        """bfloat16 bits (num_blocks, num_scales) of their bytes."""
        pairs = self._arrays.int32(data.reshape(-1, self.layout.num_scales, 2))
        return pairs[:, :, 0] | (pairs[:, :, 1] << 8)

    def _factors(self, data: Array, part: Part) -> Array:
        size = 2 * self.layout.num_scales
        return self._arrays.floats(self._scales(data[size * part.blocks.start : size * part.blocks.stop]) << 16)

    def _bytes(self, data: Array, part: Part, num_elements: int) -> Array:
        """The codes' bytes (num_blocks, num_bytes)."""
        start = self.layout.scale_bytes(num_elements)
        return data[start + part.codes.start : start + part.codes.stop].reshape(-1, part.num_bytes)

    def _slots(self, data: Array, part: Part) -> Iterator[tuple[slice, Array]]:
        """For each slot of the bytes, which values of a block are there, and their codes (num_blocks, num_values)."""
        for slot in range(self.layout.slots):
            first = slot * part.num_bytes
            values = slice(first, min(first + part.num_bytes, part.num))
            codes = data[:, : max(values.stop - first, 0)]
            yield values, codes if self.layout.slots == 1 else (codes >> (slot * self.layout.bits)) & self._mask

    def _decoded(self, data: Array, part: Part, num_elements: int, weight: Array | None) -> Array:
        """Decoded values of a part, flat; times the weight, if there is one."""
        packed, factors = self._bytes(data, part, num_elements), self._factors(data, part)
        if weight is not None:
            factors = factors * weight
        if self.layout.slots == 1:
            return self._values(packed, factors).reshape(-1)
        decoded = self._arrays.zeros((len(packed), part.num), "float32", data)
        for values, codes in self._slots(packed, part):
            decoded[:, values] = self._values(codes, factors)
        return decoded.reshape(-1)

    def _values(self, codes: Array, factors: Array) -> Array:
        levels = self._table(self.layout.levels, codes)
        if self.layout.selects:
            levels *= self._arrays.where(self._table(self.layout.selects, codes) > 0, factors[:, 1:], factors[:, :1])
        else:
            levels *= factors
        return levels

    def _table(self, table: Sequence[int], codes: Array) -> Array:
        """float32 of a table's entry per code; the 256 levels of int8 are their own."""
        return self._arrays.signed(codes) if self.layout.slots == 1 else self._arrays.table(table, codes)

    def _sums(self, products: Array, codes: Array, others: Array, row: int, column: int) -> Array:
        """Per block, the sum of the products of levels that multiply these scales."""
        if self.layout.selects:
            selects = self._table(self.layout.selects, codes), self._table(self.layout.selects, others)
            products = products * self._arrays.float32((selects[0] == row) & (selects[1] == column))
        # Sums of integers below 2²⁴ are exact in float32, in whatever order.
        return self._arrays.float64(self._arrays.sums(products))

    def _bad_codes(self, data: Array, is_zero_block: Array, part: Part) -> Array:
        """Which bytes (num_blocks, num_bytes) no encoder writes."""
        bad = (data != 0) & is_zero_block[:, None]
        for slot, (values, codes) in enumerate(self._slots(data, part)):
            num = max(values.stop - slot * part.num_bytes, 0)
            if self.layout.unused is not None:
                bad[:, :num] |= codes == self.layout.unused
            bad[:, num:] |= (data[:, num:] >> (slot * self.layout.bits)) & self._mask != 0
        return bad

    @property
    def _mask(self) -> int:
        return 2**self.layout.bits - 1
