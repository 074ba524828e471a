"""The kernels in C (native/), loaded with ctypes, which releases the GIL while they run.

The library is `_native` beside this file, put there by the wheel or by `python setup.py build_ext --inplace`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .back_ends import Kernels
from .codec import Bytes, Float32Array, Float64Array
from .formats import FORMATS, Format

Pointer, Int, Long, Float = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
SIGNATURES = {
    "atoll_source_digest": (ctypes.c_char_p, []),
    "atoll_variant_name": (ctypes.c_char_p, [Int]),
    "atoll_variant_supported": (Int, [Int]),
    "atoll_codec_name": (ctypes.c_char_p, [Int]),
    "atoll_encode": (Long, [Int, Int, Pointer, Long, Pointer]),
    "atoll_decode": (None, [Int, Int, Pointer, Long, Pointer]),
    "atoll_accumulate": (None, [Int, Int, Pointer, Pointer, Long, Long, Pointer, Int]),
    "atoll_check": (Long, [Int, Int, Pointer, Long]),
    "atoll_dots": (None, [Int, Int, Pointer, Pointer, Long, Pointer]),
    "atoll_largest": (Long, [Int, Pointer, Long, Long, Pointer]),
    "atoll_nonzero_rows": (None, [Int, Pointer, Long, Long, Pointer]),
    "atoll_nesterov_step": (None, [Int, Pointer, Pointer, Pointer, Long, Float, Float]),
    "atoll_fill_normal": (None, [Int, Pointer, Long, ctypes.c_uint64, ctypes.c_uint64, Float]),
}


def find_library() -> Path | None:
    """Path of the compiled library, or None if this installation has none."""
    candidates = (Path(__file__).parent / f"_native{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in candidates if path.exists()), None)


@cache
def library() -> ctypes.CDLL:
    """The loaded library with its signatures declared. RuntimeError if there is none."""
    path = find_library()
    if path is None:
        raise RuntimeError("the C kernels are not built: run `python setup.py build_ext --inplace`")
    loaded = ctypes.CDLL(str(path))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def source_digest() -> str:
    """Digest of the C sources that the library was built from; compare with setup.py's `source_digest`."""
    return library().atoll_source_digest().decode()


def variants() -> list[str]:
    """Names of the variants that this processor can run, slowest first."""
    names = _names(library().atoll_variant_name)
    return [name for index, name in enumerate(names) if library().atoll_variant_supported(index)]


def _names(name_of: Callable[[int], bytes | None]) -> list[str]:
    """Names by index, up to the first that there is none of."""
    return [name.decode() for name in iter(map(name_of, count()).__next__, None)]


class CompiledKernels:
    """A format's kernels in one variant. See `Kernels`."""

    def __init__(self, variant: int, layout: Format) -> None:
        self._library, self._layout = library(), layout
        self._which = variant, _names(self._library.atoll_codec_name).index(layout.name)

    def encode(self, values: Float32Array, data: Bytes) -> int:
        return self._library.atoll_encode(*self._which, values.ctypes.data, values.size, data.ctypes.data)

    def decode(self, data: Bytes, out: Float32Array) -> None:
        self._library.atoll_decode(*self._which, data.ctypes.data, out.size, out.ctypes.data)

    def accumulate(self, datas: Sequence[Bytes], weights: Float32Array, out: Float32Array, fresh: bool) -> None:
        pointers = np.array([data.ctypes.data for data in datas], np.uintp)
        self._library.atoll_accumulate(
            *self._which, pointers.ctypes.data, weights.ctypes.data, len(datas), out.size, out.ctypes.data, fresh
        )

    def check(self, data: Bytes, num_elements: int) -> int:
        return self._library.atoll_check(*self._which, data.ctypes.data, num_elements)

    def dots(self, data: Bytes, other: Bytes, num_elements: int) -> Float64Array:
        terms = np.empty(self._layout.num_terms(num_elements), np.float64)
        self._library.atoll_dots(*self._which, data.ctypes.data, other.ctypes.data, num_elements, terms.ctypes.data)
        return terms


class Compiled:
    """One variant of the compiled kernels. The empty name takes the fastest that the processor can run."""

    def __init__(self, variant: str) -> None:
        available = variants()
        if variant not in ("", *available):
            raise RuntimeError(f"this processor or build has no C variant {variant!r}, only {', '.join(available)}")
        self.name = f"c-{variant or available[-1]}"
        # A processor that can run a variant can run all before it, hence the index is the library's.
        self._variant = available.index(variant or available[-1])
        self._library = library()
        self._kernels = {name: CompiledKernels(self._variant, layout) for name, layout in FORMATS.items()}

    def kernels(self, name: str) -> Kernels:
        return self._kernels[name]

    def largest(self, values: Float32Array, kept: int, indices: NDArray[np.uint16]) -> int:
        return self._library.atoll_largest(self._variant, values.ctypes.data, values.size, kept, indices.ctypes.data)

    def nonzero_rows(self, values: Float32Array, width: int, present: Bytes) -> None:
        self._library.atoll_nonzero_rows(self._variant, values.ctypes.data, values.size, width, present.ctypes.data)

    def nesterov_step(
        self, anchor: Float32Array, momentum: Float32Array, mean: Float32Array, lr: float, beta: float
    ) -> None:
        self._library.atoll_nesterov_step(
            self._variant, anchor.ctypes.data, momentum.ctypes.data, mean.ctypes.data, anchor.size, lr, beta
        )

    def fill_normal(self, out: Float32Array, key: int, start: int, factor: float) -> None:
        self._library.atoll_fill_normal(self._variant, out.ctypes.data, out.size, key, start, factor)
