"""Many peers of a trace as arrays: links, speeds, who can be dialled. For modes that add transfers up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .traces import Trace

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Population:
    """Arrays of shape (num_peers,); neighbours are of the same group of the trace."""

    up_bps: Floats
    down_bps: Floats
    speed: Floats
    is_dial_out_only: NDArray[np.bool_]

    @classmethod
    def of(cls, trace: Trace, num_peers: int, random: np.random.Generator) -> Population:
        """Peers drawn as the trace says."""
        counts = trace.counts(num_peers)
        groups = list(zip(trace.groups, counts, strict=True))
        efficiency = trace.network.efficiency
        return cls(
            up_bps=np.concatenate([random.uniform(*group.up_bps, count) for group, count in groups]) * efficiency,
            down_bps=np.concatenate([random.uniform(*group.down_bps, count) for group, count in groups]) * efficiency,
            speed=np.concatenate([np.resize(np.array(group.speeds), count) for group, count in groups]),
            is_dial_out_only=np.concatenate([np.full(count, group.dial_out_only) for group, count in groups]),
        )

    def __len__(self) -> int:
        return len(self.speed)
