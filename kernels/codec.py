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

FAMILIES = (("dense", re.compile("|".join(FORMATS))),)
"""Module in this package whose ``create`` makes the codecs with such names; imported only when asked for."""
CODECS = (*FORMATS,)
"""Every codec; of those with a number in their name, the usual ones."""


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
        """Encoded size in bytes of `num_elements` values."""
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
    raise ValueError(f"unknown codec {name!r}: known are {', '.join(sorted(CODECS))}")


def back_end() -> str:
    """Which kernels run on this machine: "c-avx512", "c-avx2", "c-baseline", "numpy" or "reference"."""
    from .back_ends import active

    return active().name
