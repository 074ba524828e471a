"""What every codec can do, and the registry that finds one by the name a run spec gives.

A further codec is one new file with a class that satisfies `Codec`, and one line in `CODECS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Encoded = Bytes | bytes | bytearray | memoryview
"""Contiguous bytes, read without a copy."""

FLOAT32_MAX = float(np.finfo(np.float32).max)
CODECS = {
    "float32": "float32.Float32Codec",
    "int8": "int8.Int8Codec",
}
"""Name in the run spec -> module and class in this package; imported only when asked for."""


class NonFiniteError(ValueError):
    """`encode` met NaN or an infinity. The message names the index of the first; the output is not to be used."""


class InvalidEncoding(ValueError):
    """Bytes that no encoder produces: wrong length, impossible scale, code −128, non-finite value."""


class Codec(Protocol):
    """Turns float32 values into bytes and back, deterministically.

    Data arguments are contiguous bytes (a uint8 array, memoryview, bytes) of exactly `nbytes(num_elements)`, else
    `InvalidEncoding`. Value arguments are float32 arrays of any shape and strides, read and written in C order;
    another dtype is a TypeError that names it. Input and output must not overlap.
    """

    name: str

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
        """out += weight · decoded, with two float32 roundings per element. `weight` is rounded to float32 first."""
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
    if name not in CODECS:
        raise ValueError(f"unknown codec {name!r}: known are {', '.join(sorted(CODECS))}")
    module, _, attribute = CODECS[name].rpartition(".")
    return getattr(import_module(f".{module}", __package__), attribute)()


def back_end() -> str:
    """Which kernels run on this machine: "c-avx512", "c-avx2", "c-baseline", "numpy" or "reference"."""
    from .back_ends import active

    return active().name


def require_float32(values: Any, what: str) -> Float32Array:
    """`values` itself if it is a native float32 array, else a TypeError naming `what` and the dtype found."""
    if isinstance(values, np.ndarray) and values.dtype == np.float32 and values.dtype.isnative:
        return values
    found = f"{type(values).__name__} of {values.dtype}" if hasattr(values, "dtype") else type(values).__name__
    raise TypeError(f"{what} must be a numpy array of float32, not {found}")


def require_bytes(data: Encoded, num_bytes: int, what: str = "encoded data") -> Bytes:
    """`data` as a 1-D uint8 array without a copy; `InvalidEncoding` if it is not exactly `num_bytes` long."""
    view = memoryview(cast("Any", data))
    if view.format not in ("B", "b", "c") or not view.c_contiguous:
        raise TypeError(f"{what} must be contiguous bytes, not format {view.format!r} with strides {view.strides}")
    if view.nbytes != num_bytes:
        raise InvalidEncoding(f"{what} is {view.nbytes} bytes long, expected {num_bytes}")
    return np.frombuffer(view.cast("B") if view.nbytes else b"", np.uint8)


def require_writable_bytes(out: Bytes, num_bytes: int) -> Bytes:
    """`out` as a 1-D uint8 array without a copy; ValueError if it is read-only or not exactly `num_bytes` long."""
    view = memoryview(cast("Any", out))
    if view.readonly or view.nbytes != num_bytes:
        raise ValueError(f"output must be {num_bytes} writable bytes, not {view.nbytes}, read-only {view.readonly}")
    return require_bytes(view, num_bytes, "output") if num_bytes else np.empty(0, np.uint8)


def require_weights(weights: Sequence[float], num_datas: int) -> Float32Array:
    """`weights` rounded to float32, one per contribution; ValueError if the count differs or one is not finite."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(weights, np.float64).astype(np.float32).reshape(-1)
    if rounded.size != num_datas or not np.isfinite(rounded).all():
        raise ValueError(f"expected {num_datas} finite float32 weights, not {list(weights)}")
    return rounded


def require_output(out: Any, what: str = "out") -> Float32Array:
    """`out` itself if it is a writable float32 array; TypeError for another dtype, ValueError if it is read-only."""
    if not require_float32(out, what).flags.writeable:
        raise ValueError(f"{what} is read-only")
    return out


def fits_float32(value: float) -> bool:
    """Whether `value` is finite and stays so as a float32."""
    return abs(value) <= FLOAT32_MAX


def is_plain(values: Float32Array) -> bool:
    """Whether a kernel can walk `values` with a pointer: aligned and contiguous in C order."""
    return values.flags.c_contiguous and values.flags.aligned


def flat_input(values: Any, what: str = "values") -> Float32Array:
    """`values` in C order as an aligned 1-D array; a copy only where the strides demand one."""
    array = require_float32(values, what)
    return array.reshape(-1) if is_plain(array) else np.array(array, np.float32, order="C").reshape(-1)
