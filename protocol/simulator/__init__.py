"""Round machines in an in-memory soup of messages: loss, duplication, reordering, crashes, restarts, a virtual clock.

The same `round_machine` that the daemon drives, with everything around it replaced by a priority queue: signatures are
strings, a span's bytes are a digest, a disk is what a crash leaves. Tests hunt in it for violations, seeded and exactly
replayable; it checks S1 and S2 while it runs (`Violation`). Faults of the protocol itself are injected by `Soup`
arguments (`amnesia`, `rules_type`), never in a copy. It models no bandwidth yet, and no command starts it.
"""

from .nodes import Disk, Node, Violation, digest, soup_genesis
from .soup import Soup

__all__ = ["Disk", "Node", "Soup", "Violation", "digest", "soup_genesis"]
