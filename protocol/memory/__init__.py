"""An in-process network that implements `transport`, with faults as data. A product: tests and demos build on it.

    network = MemoryNetwork(progress_timeout_s=0.05)
    a, b = network.transport(peer_a), network.transport(peer_b)
    network.inject(CutStream(sender=peer_a, receiver=peer_b, after_bytes=1000))

Everything runs in one event loop and in a fixed order, so a failing test fails again. Peers can be killed, frozen
(connected, but nothing moves), partitioned and restarted while streams are open.
"""

from __future__ import annotations

from .faults import CorruptStream, CutStream, Delay, Die, Drop, Fault, StallStream, Unreachable
from .network import MemoryDirectory, MemoryNetwork, MemoryTransport
from .streams import MemoryStream

__all__ = [
    "CorruptStream",
    "CutStream",
    "Delay",
    "Die",
    "Drop",
    "Fault",
    "MemoryDirectory",
    "MemoryNetwork",
    "MemoryStream",
    "MemoryTransport",
    "StallStream",
    "Unreachable",
]
