"""What lies between simulated peers: latency, loss, duplication, bandwidth, partitions, peers that only dial out.

The model of bandwidth
----------------------
A peer's uplink and downlink are two servers that work off what is booked on them in the order of booking, each at its
rate; a path between two regions may have a rate of its own per pair of peers. A transfer is over when its sender's
uplink, its receiver's downlink and its path have all worked it off, plus the latency. Booking costs a constant time and
one event per transfer, however many there are.

Against fair sharing the last of a batch ends at the same time, and earlier ones end earlier; senders therefore begin
with different receivers (`exchange`), or the first receivers would be served better than the last. A downlink is
taken to be busy from the booking on, also if the sender's uplink is busy with others first: where both are the
bottleneck in turn, the model is too fast by at most the smaller of the two.

Messages are small: they take a latency and no bandwidth. They may be lost, doubled, and overtake each other; transfers
are streams that stall while their link is down.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..identity import PeerId


@dataclass(frozen=True)
class Link:
    """How one peer is connected."""

    up_bps: float = math.inf
    """Bits per second."""
    down_bps: float = math.inf
    is_dial_out_only: bool = False
    """Nobody can open a connection to it; two such peers never meet directly."""
    region: str = ""


@dataclass(frozen=True)
class Path:
    """What is between two regions, in either direction, for each pair of peers."""

    latency_s: float
    """One way, without jitter."""
    bps: float = math.inf


@dataclass(frozen=True)
class NetworkModel:
    """A network, as data."""

    latency_s: tuple[float, float] = (0.01, 0.1)
    """One way, drawn evenly per message, added to the path's."""
    loss: float = 0.0
    """Probability per message."""
    duplication: float = 0.0
    link: Link = Link()
    """Of a peer that `links` does not name."""
    links: Mapping[PeerId, Link] = field(default_factory=dict[PeerId, Link])
    paths: Mapping[tuple[str, str], Path] = field(default_factory=dict[tuple[str, str], Path])
    """Between regions, each pair in one order; within a region too, if named."""
    has_relay: bool = False
    """Whether messages (never transfers) between two dial-out-only peers go through a relay."""


class Network:
    """A network while it runs: what its links are busy with, and what is cut at present."""

    def __init__(self, model: NetworkModel, seed: random.Random) -> None:
        self.replace(model)
        self.cut: set[tuple[PeerId, PeerId]]
        """Directions, sender and receiver, in which nothing passes at present."""
        self.sent_bytes: Counter[PeerId] = Counter()
        self.received_bytes: Counter[PeerId] = Counter()
        self.num_messages: Counter[PeerId] = Counter()
        """Messages by sender, lost ones included."""
        self._random = seed
        self._up_free_s: dict[PeerId, float] = {}
        self._down_free_s: dict[PeerId, float] = {}
        self._path_free_s: dict[tuple[PeerId, PeerId], float] = {}

    def replace(self, model: NetworkModel) -> None:
        """Another network from now on, with nothing cut."""
        self.model, self.links, self.cut = model, dict(model.links), set()
        self._has_direct = not model.link.is_dial_out_only and not any(x.is_dial_out_only for x in model.links.values())

    # --- settings that faults change ----------------------------------------------------------------------------------

    def link_of(self, peer: PeerId) -> Link:
        return self.links.get(peer, self.model.link)

    def set_link(self, peer: PeerId, link: Link) -> None:
        """Reconnect a peer otherwise, as with a slower line. What is booked already keeps its time."""
        self.links[peer] = link
        self._has_direct = self._has_direct and not link.is_dial_out_only

    def partition(self, *groups: Iterable[PeerId]) -> None:
        """Only peers of one group hear each other; a peer of no group hears everybody. Replaces earlier cuts."""
        sides = {peer: number for number, group in enumerate(groups) for peer in group}
        self.cut = {(a, b) for a in sides for b in sides if sides[a] != sides[b]}

    def heal(self) -> None:
        """No direction is cut any more."""
        self.cut = set()

    # --- messages -----------------------------------------------------------------------------------------------------

    def connects(self, sender: PeerId, receiver: PeerId) -> bool:
        """Whether a stream from one to the other moves at present."""
        return (sender, receiver) not in self.cut and (self._has_direct or self._meets(sender, receiver))

    def carries(self, sender: PeerId, receiver: PeerId) -> bool:
        """Whether messages pass: over streams, or over a relay."""
        return (sender, receiver) not in self.cut and (
            self._has_direct or self.model.has_relay or self._meets(sender, receiver)
        )

    def _meets(self, sender: PeerId, receiver: PeerId) -> bool:
        return not (self.link_of(sender).is_dial_out_only and self.link_of(receiver).is_dial_out_only)

    def delays_s(self, sender: PeerId, receiver: PeerId) -> Sequence[float]:
        """When the copies of a message arrive; none if it is lost or cannot pass."""
        self.num_messages[sender] += 1
        if not self.carries(sender, receiver):
            return ()
        model = self.model
        if not model.loss and not model.duplication:
            return (self.latency_s(sender, receiver),)
        num_copies = 0 if self._random.random() < model.loss else 1 + (self._random.random() < model.duplication)
        return [self.latency_s(sender, receiver) for _ in range(num_copies)]

    def delivers(self, sender: PeerId, receiver: PeerId) -> bool:
        """Whether a message that may come twice as well as once arrives at all; drawn for each."""
        if receiver == sender:
            return True
        self.num_messages[sender] += 1
        loss = self.model.loss
        return self.carries(sender, receiver) and (not loss or self._random.random() >= loss)

    def path_latency_s(self, sender: PeerId, receiver: PeerId) -> float:
        """One way, without what is drawn."""
        path = self._path(sender, receiver) if self.model.paths else None
        return 0.0 if path is None else path.latency_s

    def latency_s(self, sender: PeerId, receiver: PeerId) -> float:
        """One way, for the next message."""
        model = self.model
        low_s, high_s = model.latency_s
        delay_s = low_s + (high_s - low_s) * self._random.random()
        if model.paths and (path := self._path(sender, receiver)) is not None:
            return path.latency_s + delay_s
        return delay_s

    def _path(self, sender: PeerId, receiver: PeerId) -> Path | None:
        a, b = self.link_of(sender).region, self.link_of(receiver).region
        return self.model.paths.get((a, b)) or self.model.paths.get((b, a))

    # --- transfers ----------------------------------------------------------------------------------------------------

    def book(self, sender: PeerId, receiver: PeerId, num_bytes: float, now: float) -> float:
        """Queue a transfer; returns when it is over if nothing breaks. See the module for the model."""
        self.sent_bytes[sender] += int(num_bytes)
        self.received_bytes[receiver] += int(num_bytes)
        bits = 8 * num_bytes
        up_s = self._up_free_s[sender] = max(now, self._up_free_s.get(sender, 0.0)) + bits / self.link_of(sender).up_bps
        down_free_s = max(now, self._down_free_s.get(receiver, 0.0))
        down_s = self._down_free_s[receiver] = down_free_s + bits / self.link_of(receiver).down_bps
        path = self._path(sender, receiver) if self.model.paths else None
        path_s = now if path is None else self._book_path((sender, receiver), path, bits, now)
        return max(up_s, down_s, path_s) + self.latency_s(sender, receiver)

    def _book_path(self, pair: tuple[PeerId, PeerId], path: Path, bits: float, now: float) -> float:
        free_s = self._path_free_s[pair] = max(now, self._path_free_s.get(pair, 0.0)) + bits / path.bps
        return free_s

    def release(self, peer: PeerId, now: float) -> None:
        """Forget what a peer's links were to carry: it has crashed, or stopped its exchange."""
        self._up_free_s[peer] = min(now, self._up_free_s.get(peer, now))
        self._down_free_s[peer] = min(now, self._down_free_s.get(peer, now))

    def busy_until_s(self, peer: PeerId) -> float:
        """When a peer's uplink will have sent what is booked on it."""
        return self._up_free_s.get(peer, 0.0)
