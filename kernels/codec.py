"""What every codec can do, and the registry that finds one by the name a run spec gives.

A name stands for one format for ever: a codec that gives another bit, or refuses another byte, gets another name.
`dense.py` serves codecs that say something of every value, `sparse.py` those that name the values they speak of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from .formats import FORMATS

if TYPE_CHECKING:
    from torch import Tensor

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Encoded = Bytes | bytes | bytearray | memoryview
"""Contiguous bytes, read without a copy."""

SPARSE = re.compile(rf"(topk|rows)([1-9]\d{{0,3}})(?:-({'|'.join(FORMATS)}))?")
"""Names of sparse codecs: kind of choice, its number, and the codec of the chosen values unless it is the usual one."""
FAMILIES = (("dense", re.compile("|".join(FORMATS))), ("sparse", SPARSE))
"""Module in this package whose ``create`` makes the codecs with such names; imported only when asked for."""
CODECS = (*FORMATS, "topk64", "topk64-int8", "rows256")
"""Every dense codec, and some of the sparse ones."""


class NonFiniteError(ValueError):
    """`encode` met a value that is not finite, or would not be once decoded. The message names the index of the first;
    the output is not to be used."""


class InvalidEncoding(ValueError):
    """Bytes that no encoder produces: wrong length, impossible scale, unused code, non-finite value."""


class Codec(Protocol):
    """Turns float32 values into bytes and back, deterministically.

    Data arguments are contiguous bytes (a uint8 array, memoryview, bytes) of exactly `nbytes(num_elements)`, else
    `InvalidEncoding`. Value arguments are float32 arrays of any shape and strides, read and written in C order;
    another dtype is a TypeError that names it. Input and output must not overlap.
    """

    @property
    def name(self) -> str: ...

    def nbytes(self, num_elements: int) -> int:
        """Encoded size in bytes of `num_elements` values, whatever they are."""
        ...

    @property
    def head_bytes(self) -> int:
        """How many of the first bytes `used_bytes` needs; 0 if all bytes of every encoding are used."""
        ...

    def used_bytes(self, data: Encoded, num_elements: int) -> int:
        """After how many bytes an encoding has zeros only, which need not travel; at most `nbytes`.

        Looks at the first `head_bytes` of ``data`` only. `InvalidEncoding` if no encoder writes them.
        """
        ...

    def encode(self, values: Float32Array, out: Bytes) -> None:
        """Write the encoding of `values` into `out`. NaN or infinity: `NonFiniteError`, and `out` is undefined."""
        ...

    def encode_tensor(self, values: Tensor, out: Bytes) -> None:
        """As `encode`, for a 1-D torch tensor, most likely on a GPU: the same bits, encoded there if it can be."""
        ...

    def decode(self, data: Encoded, out: Float32Array) -> None:
        """Write the decoded values into `out`. `data` is trusted here: run `check` on what a peer sent."""
        ...

    def accumulate(self, data: Encoded, weight: float, out: Float32Array) -> None:
        """out += weight · decoded, rounded as the format says. `weight` is rounded to float32 first."""
        ...

    def accumulate_many(self, datas: Sequence[Encoded], weights: Sequence[float], out: Float32Array) -> None:
        """out = Σ weight · decoded, in the order given: the bits of `accumulate` one after another from +0.0."""
        ...

    def check(self, data: Encoded, num_elements: int) -> None:
        """Raise `InvalidEncoding` unless `data` can be the encoding of `num_elements` finite values."""
        ...

    def dot(self, data: Encoded, other: Encoded, num_elements: int) -> float:
        """Inner product of two valid encodings' decoded values, as a float64 with the same bits everywhere."""
        ...

    def squared_norm(self, data: Encoded, num_elements: int) -> float:
        """Σ decoded² of valid data, as a float64 with the same bits everywhere."""
        ...


@cache
def codec(name: str) -> Codec:
    """The codec registered as `name`. Unknown name: ValueError that lists the known ones."""
    for module, names in FAMILIES:
        if names.fullmatch(name):
            return import_module(f".{module}", __package__).create(name)
    raise ValueError(f"unknown codec {name!r}: known are {', '.join(sorted(CODECS))} and their like")


def split_name(name: str) -> tuple[str, int, str | None]:
    """The parts of a sparse codec's name."""
    found = SPARSE.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no sparse codec")
    return found[1], int(found[2]), found[3]


def back_end() -> str:
    """Which kernels run on this machine: "c-avx512", "c-avx2", "c-baseline", "numpy" or "reference"."""
    from .back_ends import active

    return active().name
