"""Error feedback: what a codec leaves out of one contribution is added to the next (Seide et al. 2014; with local steps
as in MuLoCo 2505.23725 and SparseLoCo 2508.15706).

    p    = decay · residual + values        what should be sent
    sent = decode(encode(p))
    once counted:  residual = p − sent

A part beside the codec, for any codec. The residual is private: nobody else needs to have the same.
"""

from __future__ import annotations

import numpy as np

from .arguments import fits_float32, is_plain, require_float32
from .chunk_grid import ChunkGrid
from .codec import Bytes, Float32Array


class ErrorFeedback:
    """Keeps the residual of one member, two float32 vectors of the grid's length in all.

    A contribution changes the residual only when `settle` is told that it counted: a round that failed, or that went on
    without us, leaves it as it was, and the caller's carry or next pseudo-gradient brings the values again. An encoding
    that fails changes nothing either. ``decay`` of 1 loses nothing ever, a smaller one forgets.
    """

    def __init__(self, grid: ChunkGrid, decay: float = 1.0) -> None:
        if not 0 <= decay <= 1 or not fits_float32(decay):
            raise ValueError(f"the decay must be between 0 and 1, not {decay}")
        self.grid, self.decay = grid, np.float32(decay)
        self._residual, self._next = np.zeros(grid.num_elements, np.float32), np.empty(grid.num_elements, np.float32)
        self._is_pending = False

    @property
    def residual(self) -> Float32Array:
        """What is owed (num_elements,), for a checkpoint; not to be written to."""
        view = self._residual.view()
        view.flags.writeable = False
        return view

    def restore(self, residual: Float32Array) -> None:
        """Take over a checkpoint's residual; zeros after a state sync. ValueError for a wrong length or what is not
        finite: such a residual would spoil every further contribution."""
        if require_float32(residual, "residual").shape != self._residual.shape or not np.isfinite(residual).all():
            raise ValueError(f"a residual has {self._residual.size} finite values")
        self._residual[:], self._is_pending = residual, False

    def encode(self, values: Float32Array, out: Bytes) -> None:
        """Encode all chunks of ``values`` (num_elements,) plus what is owed into ``out`` (total_encoded,).

        As `ChunkGrid.encode`, whose errors it raises. A second call before `settle` takes the place of the first.
        """
        if require_float32(values, "values").shape != self._residual.shape or not is_plain(values):
            raise ValueError(f"values must be {self._residual.size} contiguous ones, not {values.shape}")
        self._is_pending = False
        with np.errstate(over="ignore"):  # then the codec says which value is not finite
            for chunk in range(self.grid.num_chunks):
                self._encode_chunk(chunk, values, out)
        self._is_pending = True

    def settle(self, *, counted: bool) -> None:
        """Hear whether the last contribution is in the mean. Without one this does nothing."""
        if counted and self._is_pending:
            self._residual, self._next = self._next, self._residual
        self._is_pending = False

    def _encode_chunk(self, chunk: int, values: Float32Array, out: Bytes) -> None:
        part, data = self.grid.elements(chunk), out[self.grid.encoded_range(chunk)]
        owed = self._next[part]
        np.multiply(self._residual[part], self.decay, out=owed)
        owed += values[part]
        self.grid.codec.encode(owed, data)
        self.grid.codec.accumulate(data, -1.0, owed)
