"""The formats of the dense codecs, as values: all that the back ends need to know besides how to choose the codes.

**Block formats.** A block of values shares one or more *scales* (bfloat16, positive). A value's *code* names a small
whole number, its *level*, and which scale multiplies it. Encoded values are the scales of all blocks, then the codes of
all blocks. A block of m values has s = ⌈m · bits / 8⌉ bytes of codes: byte j holds values j, j + s, j + 2s, … from its
low bits up, and bits without a value are 0. With every operation a float32 one, rounded to nearest even:

    decoded = +0 + scale · level                 never −0
    out     = out + (scale · weight) · level

A block whose scales are all 0 is one of zeros. `reference/` says how each format finds scales and codes.

**Value formats** write every value by itself, little endian: out = out + weight · value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

MIN_SCALE_BITS = 0x0080
"""bfloat16 2⁻¹²⁶, the smallest normal number: a smaller scale has no finite reciprocal and too few digits."""
GROUP = 4096
"""Values among which a sparse codec chooses the largest."""
LANES = 4096
"""Running sums of the value formats' inner products; part of the protocol, since it decides how they round."""


@dataclass(frozen=True)
class BlockFormat:
    """A format of blocks. See the module's docstring for the layout."""

    name: str
    bits: int
    """Of a code: 2, 4 or 8."""
    block: int
    """Values that share their scales; the last block may have fewer."""
    levels: tuple[int, ...]
    """Level of each code. Code 0 comes first and is the one that blocks of zeros are made of."""
    max_scale_bits: int
    """bfloat16 bits of the largest scale that an encoder writes; its decoded values are finite."""
    selects: tuple[int, ...] = ()
    """Which scale each code multiplies. Empty: there is one."""
    unused: int | None = None
    """A code that no encoder writes."""

    @cached_property
    def num_scales(self) -> int:
        """Scales per block, in ascending order."""
        return max(self.selects, default=0) + 1

    @property
    def slots(self) -> int:
        """Codes in a byte."""
        return 8 // self.bits

    def num_blocks(self, num_elements: int) -> int:
        return -(-num_elements // self.block)

    def scale_bytes(self, num_elements: int) -> int:
        """Bytes of the scales of `num_elements` values, which come before the codes."""
        return 2 * self.num_scales * self.num_blocks(num_elements)

    def nbytes(self, num_elements: int) -> int:
        # The bytes of whole blocks are whole: rounding up concerns the last one only.
        return self.scale_bytes(num_elements) + -(-num_elements * self.bits // 8)

    def num_terms(self, num_elements: int) -> int:
        """Terms of an inner product: one per block and pair of scales, each exact in float64."""
        return self.num_scales**2 * self.num_blocks(num_elements)

    def blocks(self, num_elements: int) -> Iterator[tuple[slice, slice]]:
        """Elements of each block, and the bytes of its codes."""
        start = self.scale_bytes(num_elements)
        for first in range(0, num_elements, self.block):
            num = min(self.block, num_elements - first)
            num_bytes = -(-num * self.bits // 8)
            yield slice(first, first + num), slice(start, start + num_bytes)
            start += num_bytes

    def complaint(self, offset: int, num_elements: int) -> str:
        """What is wrong with an encoding whose byte at `offset` no encoder writes."""
        what = "scale" if offset < self.scale_bytes(num_elements) else "code"
        return f"byte {offset}: a {what} that no {self.name} encoder writes"


@dataclass(frozen=True)
class ValueFormat:
    """A format that writes each value by itself."""

    name: str
    bytes_per_value: int

    def nbytes(self, num_elements: int) -> int:
        return self.bytes_per_value * num_elements

    def num_terms(self, num_elements: int) -> int:
        """Terms of an inner product: lane i sums the products of values i, i + `LANES`, … in that order."""
        return min(LANES, num_elements)

    def complaint(self, offset: int, num_elements: int) -> str:
        """What is wrong with an encoding whose byte at `offset` begins a value that no encoder writes."""
        return f"value {offset // self.bytes_per_value} of {num_elements} is not finite"


Format = BlockFormat | ValueFormat

INT8 = BlockFormat("int8", 8, 256, (*range(128), *range(-128, 0)), max_scale_bits=0x7C01, unused=128)
"""Levels −127 … 127; 8.0625 bits a value. The largest scale is bfloat16(largest float32 / 127)."""
INT4 = BlockFormat("int4", 4, 64, (*range(8), *range(-8, 0)), max_scale_bits=0x7E12, unused=8)
"""Levels −7 … 7; 4.25 bits a value. Blocks of 64, because a level is coarse: of 256 they err by 1.2 times as much."""
E3M0 = BlockFormat("e3m0", 4, 256, (0, 1, 2, 4, 8, 16, 32, 64, 0, -1, -2, -4, -8, -16, -32, -64), 0x7C7F, unused=8)
"""Sign and three bits of exponent, as in Streaming DiLoCo (2501.18512); 4.0625 bits a value."""
STAT2 = BlockFormat("stat2", 2, 256, (1, 1, -1, -1), max_scale_bits=0x7F7F, selects=(0, 1, 0, 1))
"""Two magnitudes per block, each the mean of the values it stands for; 2.125 bits a value. Of the kind that MuLoCo and
SparseLoCo use (2505.23725, 2508.15706), which take the means of four bins; meant to be used with error feedback."""

FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        ValueFormat("float32", 4),
        ValueFormat("float16", 2),
        ValueFormat("bfloat16", 2),
        INT8,
        INT4,
        E3M0,
        STAT2,
    )
}
"""Name in the run spec -> format."""


def block_format(name: str) -> BlockFormat:
    """The block format called `name`; TypeError if it is none."""
    found = FORMATS[name]
    if not isinstance(found, BlockFormat):
        raise TypeError(f"{name} has no blocks")
    return found
