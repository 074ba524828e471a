"""What the kernels' entry points demand of their arguments, each with an error that says what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from .codec import Bytes, Encoded, Float32Array, InvalidEncoding

FLOAT32_MAX = float(np.finfo(np.float32).max)


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
