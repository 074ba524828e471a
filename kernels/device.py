"""Encoding what lies on a device: there, by Triton's kernels on CUDA, by plain torch operations on anything else.

`HostEncoder` brings a whole vector to the host, so that copying one part overlaps with encoding the next.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from .chunk_grid import ChunkGrid
from .codec import NonFiniteError
from .dense import DenseCodec
from .formats import Format
from .vector import kernels_of, selection
from .vector.arrays import TORCH

if TYPE_CHECKING:
    from torch import Tensor


def has_kernels(values: Tensor) -> bool:
    """Whether there are Triton kernels for where the values are."""
    return values.is_cuda and find_spec("triton") is not None


def encode_dense(layout: Format, values: Tensor) -> tuple[Tensor, int]:
    """The encoding (uint8, 1-D) of a float32 tensor, on its device, and the index of the first value that cannot be
    encoded, or −1. Another dtype is a TypeError that names it. Waits for the result.
    """
    if not has_kernels(values):
        return encode_with_torch(layout, values)
    from . import gpu

    data, first_bad = gpu.encode(layout, values)
    return data, index_of(first_bad, values)


def encode_with_torch(layout: Format, values: Tensor) -> tuple[Tensor, int]:
    """As `encode_dense`, by torch's own operations."""
    import torch

    flat = require_float32(values).contiguous().view(-1)
    data = torch.empty(layout.nbytes(flat.numel()), dtype=torch.uint8, device=flat.device)
    return data, kernels_of(TORCH, layout).encode(flat, data)


def largest(values: Tensor, kept: int, num_chosen: int) -> tuple[Tensor, int]:
    """Where the largest magnitudes of each group lie (int16, in the group), on the device, and as `encode_dense`."""
    import torch

    indices = torch.empty(num_chosen, dtype=torch.int16, device=require_float32(values).device)
    if not has_kernels(values):
        return indices, selection.largest(TORCH, values, kept, indices)
    from .gpu.selection import largest as largest_on_gpu

    first_bad = torch.full((1,), values.numel(), dtype=torch.int64, device=values.device)
    largest_on_gpu(values, kept, indices, first_bad)
    return indices, index_of(first_bad, values)


def index_of(first_bad: Tensor, values: Tensor) -> int:
    """What a kernel has found, as −1 if it is nothing."""
    index = int(first_bad.item())
    return index if index < values.numel() else -1


def require_float32(values: Tensor) -> Tensor:
    """`values` itself, or a TypeError that names its dtype."""
    import torch

    if values.dtype != torch.float32:
        raise TypeError(f"values must be a tensor of float32, not {values.dtype}")
    return values


BATCH_ELEMENTS = 1 << 22
"""Values encoded by one launch: enough to hide what a launch costs, few enough for the copy to begin soon."""
NUM_BUFFERS = 3
"""Batches on the device at once: one being encoded, one being copied, one between."""


class HostEncoder:
    """Encodes flat vectors of a grid on their CUDA device, a batch of chunks at a time, into memory of the host.

    Only codes cross the bus, and while they do, the next batch is encoded. On the device it takes `NUM_BUFFERS` encoded
    batches. The target should be pinned (``torch.empty(…, pin_memory=True)``), or copies wait for each other. Dense
    codecs only: what a sparse one sends is small.
    """

    def __init__(self, grid: ChunkGrid) -> None:
        if not isinstance(grid.codec, DenseCodec):
            raise TypeError(f"{grid.codec.name} is encoded chunk by chunk")
        self.grid, self.layout = grid, grid.codec.layout
        self.batch_chunks = max(1, BATCH_ELEMENTS // grid.chunk_elements)

    def encode(self, values: Tensor, out: Tensor) -> None:
        """As `ChunkGrid.encode`, into a uint8 tensor of the host. Waits until everything is there."""
        if require_float32(values).shape != (self.grid.num_elements,):
            raise ValueError(f"a flat tensor of {self.grid.num_elements} values, not {tuple(values.shape)}")
        if out.numel() != self.grid.total_encoded:
            raise ValueError(f"the target has {out.numel()} bytes instead of {self.grid.total_encoded}")
        if not has_kernels(values):
            return self.grid.encode(values, out.numpy())
        return self._encode_on_gpu(values.contiguous(), out)

    def _encode_on_gpu(self, values: Tensor, out: Tensor) -> None:
        import torch

        compute, copy = torch.cuda.current_stream(values.device), torch.cuda.Stream(values.device)
        size = self.batch_chunks * self.layout.nbytes(self.grid.chunk_elements)
        buffers = [torch.empty(size, dtype=torch.uint8, device=values.device) for _ in range(NUM_BUFFERS)]
        copied = [torch.cuda.Event() for _ in buffers]
        first_bads = []
        for batch, first in enumerate(range(0, self.grid.num_chunks, self.batch_chunks)):
            buffer, is_free = buffers[batch % NUM_BUFFERS], copied[batch % NUM_BUFFERS]
            compute.wait_event(is_free)
            first_bads.append(self._launch(values, first, buffer))
            copy.wait_stream(compute)
            with torch.cuda.stream(copy):
                target = out[self._bytes(first)]
                target.copy_(buffer[: target.numel()], non_blocking=True)
                is_free.record(copy)
        copy.synchronize()
        self._require_finite(values, torch.cat(first_bads).tolist())

    def _last(self, first: int) -> int:
        return min(first + self.batch_chunks, self.grid.num_chunks) - 1

    def _bytes(self, first: int) -> slice:
        return slice(self.grid.encoded_range(first).start, self.grid.encoded_range(self._last(first)).stop)

    def _launch(self, values: Tensor, first: int, buffer: Tensor) -> Tensor:
        from . import gpu

        part = values[self.grid.elements(first).start : self.grid.elements(self._last(first)).stop]
        return gpu.encode_chunks(self.layout, part, self.grid.chunk_elements, buffer)

    def _require_finite(self, values: Tensor, first_bads: list[int]) -> None:
        for batch, index in enumerate(first_bads):
            start = batch * self.batch_chunks * self.grid.chunk_elements
            length = min(self.batch_chunks * self.grid.chunk_elements, self.grid.num_elements - start)
            if index < length:
                value = values[start + index].item()
                raise NonFiniteError(f"value {start + index} of {values.numel()} is {value}: it cannot be encoded")
