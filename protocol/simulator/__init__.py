"""Round machines in a simulated world: a virtual clock, a network as data, crashes, sleepers, joiners, liars.

The same `round_machine` that the daemon drives, with everything around it replaced by a priority queue: signatures are
stubs, a span's bytes are a digest, a disk is what a crash leaves. A seed replays a run exactly. Operators choose
settings with it (``atoll simulate``), tests hunt in it for violations, benchmarks use it where machines are too few.

| file            | what it is                                                                   |
|-----------------|------------------------------------------------------------------------------|
| `clock`         | virtual time                                                                 |
| `network`       | latency, loss, duplication, bandwidth, partitions, dial-out-only peers       |
| `nodes`         | a node and its disk                                                          |
| `behaviours`    | honest and misbehaving peers                                                 |
| `heartbeats`    | heartbeats, and the ticks of machines                                        |
| `mail`          | all other messages                                                           |
| `exchanges`     | bulk transfers                                                               |
| `world`         | nodes, network and machines together; faults                                 |
| `checks`        | S1 and S2 at every vote and decision                                         |

Faults of the protocol itself are injected by `World` arguments (`amnesia`, `rules_type`), never in a copy.
"""

from .behaviours import BEHAVIOURS, Behaviour
from .network import Link, Network, NetworkModel, Path
from .nodes import Disk, Node, Violation, digest, people, world_genesis
from .world import World

__all__ = [
    "BEHAVIOURS",
    "Behaviour",
    "Disk",
    "Link",
    "Network",
    "NetworkModel",
    "Node",
    "Path",
    "Violation",
    "World",
    "digest",
    "people",
    "world_genesis",
]
