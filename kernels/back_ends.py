"""Which implementation of the kernels runs: the compiled one, else numpy; `ATOLL_KERNELS` chooses another for tests.

ATOLL_KERNELS = "reference", "numpy", "c" (best variant), or "c-baseline", "c-avx2", "c-avx512". A choice that this
machine cannot honour is a RuntimeError, never a silent substitute.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .codec import Bytes, Float32Array, Float64Array


class Kernels(Protocol):
    """A format's raw kernels. Callers have checked lengths, dtypes and strides: all arrays are 1-D, contiguous, aligned
    (bytes may not be)."""

    def encode(self, values: Float32Array, data: Bytes) -> int:
        """Encode; the index of the first value that cannot be, or −1."""
        ...

    def decode(self, data: Bytes, out: Float32Array) -> None: ...

    def accumulate(self, datas: Sequence[Bytes], weights: Float32Array, out: Float32Array, fresh: bool) -> None:
        """Add every contribution in order onto `out`, or onto +0.0 if `fresh`."""
        ...

    def check(self, data: Bytes, num_elements: int) -> int:
        """Offset of the first byte that no encoder writes, or −1."""
        ...

    def dots(self, data: Bytes, other: Bytes, num_elements: int) -> Float64Array:
        """Terms (format.num_terms(num_elements),) whose correctly rounded sum is the inner product."""
        ...


class BackEnd(Protocol):
    """One implementation of everything. Arrays are as `Kernels` wants them."""

    @property
    def name(self) -> str: ...

    def kernels(self, name: str) -> Kernels:
        """The kernels of a format in `formats.FORMATS`."""
        ...

    def largest(self, values: Float32Array, kept: int, indices: NDArray[np.uint16]) -> int:
        """Where the ``kept`` largest magnitudes of each `GROUP` of values are, in the group and ascending; of two equal
        ones the first is chosen. The index of the first value that is not finite (then nothing is chosen), or −1."""
        ...

    def nonzero_rows(self, values: Float32Array, width: int, present: Bytes) -> None:
        """Per row of so many values, the last of which may be shorter: 1 if any is not 0, else 0."""
        ...

    def nesterov_step(
        self, anchor: Float32Array, momentum: Float32Array, mean: Float32Array, lr: float, beta: float
    ) -> None: ...

    def fill_normal(self, out: Float32Array, key: int, start: int, factor: float) -> None:
        """out[i] = (centred integer of counter start + i) · float32(factor)."""
        ...


_override: BackEnd | None = None


def active() -> BackEnd:
    """The back end in use by this process."""
    return _override or _chosen()


@cache
def _chosen() -> BackEnd:
    return load(os.environ.get("ATOLL_KERNELS", ""))


@cache
def load(choice: str) -> BackEnd:
    """The back end called `choice`; the empty string takes the fastest there is."""
    from .compiled import Compiled, find_library
    from .numpy_back_end import Numpy
    from .reference import Reference

    if choice == "":
        return Compiled("") if find_library() else Numpy()
    if choice == "reference":
        return Reference()
    if choice == "numpy":
        return Numpy()
    if choice == "c" or choice.startswith("c-"):
        return Compiled(choice.removeprefix("c").removeprefix("-"))
    raise RuntimeError(f"ATOLL_KERNELS={choice!r} is none of reference, numpy, c, c-baseline, c-avx2, c-avx512")


def choices() -> list[str]:
    """Every back end that this machine can run, the specification first."""
    from .compiled import find_library, variants

    return ["reference", "numpy", *(f"c-{variant}" for variant in (variants() if find_library() else []))]


@contextmanager
def using(back_end: BackEnd) -> Iterator[None]:
    """Tests: run the enclosed code on `back_end`. Process-wide, hence not for concurrent use."""
    global _override
    previous, _override = _override, back_end
    try:
        yield
    finally:
        _override = previous
