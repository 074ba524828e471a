"""Sealing our own messages and accepting those of others: sequence numbers, expiry, replay.

A direct message must come from the peer that the connection authenticates, so only the sender itself could repeat it;
records from the directory pass through strangers. Both must carry a higher sequence number than the last one of that
sender. The directory has a guard of its own, since its records arrive late by nature.

Clocks only expire things: `LIFETIME_S` is long enough for two clocks that are an hour off each way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .envelope import Envelope, Header, InvalidMessage, seal
from .identity import Identity, PeerId
from .messages import OF_ANY_LINEAGE, Message
from .transport import RemoteProtocolError

LIFETIME_S = 3 * 3600.0


RESERVED_SEQUENCES = 1 << 32
"""More messages than a process sends in its life."""
_LAST_SEQUENCE = 2**53


def reserve_sequences(path: Path, now_unix_s: float) -> int:
    """First sequence number of this process: beyond those of earlier ones, even if the clock has been set back.

    Microseconds since 1970, or the end of what an earlier process has reserved in ``path``.
    """
    reserved = _read_reserved(path)
    first = max(int(now_unix_s * 1e6), reserved)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(str(first + RESERVED_SEQUENCES))
    temporary.replace(path)
    return first


def _read_reserved(path: Path) -> int:
    """0 for a file that is missing or damaged: the clock then has to do."""
    try:
        return min(int(path.read_text()[:32]), _LAST_SEQUENCE - RESERVED_SEQUENCES)
    except (OSError, ValueError):
        return 0


def is_left_behind(lineage: int, ours: int, body: Message) -> bool:
    """Whether a message must not be acted on because its sender, or whoever reads it, has missed a new lineage."""
    return lineage != ours and not isinstance(body, OF_ANY_LINEAGE)


class OtherLineage(InvalidMessage):
    """A message of a lineage that the sender, or we, have left behind."""

    def __init__(self, lineage: int, ours: int) -> None:
        super().__init__(f"message of lineage {lineage}, ours is {ours}")
        self.is_newer = lineage > ours
        """Whether we are the ones who have missed something."""


class ClockApart(InvalidMessage):
    """A message that has expired, or will too late, by our clock: the sender's is hours away, or ours."""

    def __init__(self, header: Header, now_unix_s: float) -> None:
        self.offset_s = header.expires_unix_s - LIFETIME_S - now_unix_s
        """The sender's clock minus ours, if the message is new."""
        what = "expired" if self.offset_s < 0 else "expires too far in the future"
        super().__init__(f"message of …{header.sender[-5:]} {what}")


class Sealer:
    """Signs this node's messages, with sequence numbers that also increase over restarts."""

    def __init__(
        self, identity: Identity, run_id: str, lineage: int, first_sequence: int, wall_clock: Callable[[], float]
    ) -> None:
        self._identity, self._run_id, self._wall_clock = identity, run_id, wall_clock
        self.lineage = lineage
        self._first = self._sequence = first_sequence

    @property
    def life(self) -> int:
        """The number before the first one sealed here: no two starts of a node share it."""
        return self._first

    def used_since(self, life: int) -> range:
        """Numbers of the messages that were sealed by this process, and by others from that life on."""
        return range(life + 1, self._sequence + 1)

    def seal(self, body: Message) -> bytes:
        """Wire form of ``body``."""
        self._sequence += 1
        header = Header(
            run_id=self._run_id,
            lineage=self.lineage,
            sender=self._identity.peer_id,
            sequence=self._sequence,
            expires_unix_s=max(0.0, self._wall_clock() + LIFETIME_S),
        )
        return seal(self._identity, header, body)


class Guard:
    """Opens messages of others, each at most once and in order per sender."""

    def __init__(self, run_id: str, lineage: int, max_senders: int = 4096) -> None:
        self._run_id, self._max_senders = run_id, max_senders
        self.lineage = lineage
        self._last: dict[PeerId, int] = {}

    def open(self, raw: bytes, now_unix_s: float, remote: PeerId | None = None) -> Envelope:
        """Verified message. ``remote`` is the connection's peer, None for records from the directory.

        Raises `InvalidMessage` for what is malformed, foreign or replayed (`OtherLineage`: what has been left behind,
        which is nobody's fault; `ClockApart`: what has expired, or will too late), `RemoteProtocolError` if ``remote``
        speaks in another's name.
        """
        envelope = Envelope.open(raw, run_id=self._run_id)
        header = envelope.header
        if remote is not None and header.sender != remote:
            raise RemoteProtocolError(remote, "sender", f"sent a message of …{header.sender[-5:]}")
        if is_left_behind(header.lineage, self.lineage, envelope.body):
            raise OtherLineage(header.lineage, self.lineage)
        if not now_unix_s <= header.expires_unix_s <= now_unix_s + 2 * LIFETIME_S:
            raise ClockApart(header, now_unix_s)
        if header.sequence <= self._last.get(header.sender, -1):
            raise InvalidMessage(f"message of …{header.sender[-5:]} is a replay")
        self._remember(header.sender, header.sequence)
        return envelope

    def _remember(self, sender: PeerId, sequence: int) -> None:
        self._last.pop(sender, None)
        self._last[sender] = sequence
        if len(self._last) > self._max_senders:
            del self._last[next(iter(self._last))]  # the one longest silent
