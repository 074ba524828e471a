"""A node's control messages, out and in: sealed, delivered best effort, opened and checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from .envelope import Envelope
from .identity import Identity, PeerId
from .messages import Message, Proposal
from .outbox import Outbox
from .round_machine import Received
from .sealing import Guard, Sealer, reserve_sequences
from .signed_results import seal_of
from .spec import Genesis
from .transport import Transport

_FLUSH_S = 1.0


class Mail:
    """Everything that is signed or verified. Messages to ourselves wait in `own`, sealed like all others."""

    def __init__(
        self,
        identity: Identity,
        genesis: Genesis,
        lineage: int,
        transport: Transport,
        folder: Path,
        wall_clock: Callable[[], float],
        on_unreachable: Callable[[PeerId, str], None],
    ) -> None:
        run = (genesis.run_id, lineage)
        folder.mkdir(parents=True, exist_ok=True)
        first_sequence = reserve_sequences(folder / "sequence", wall_clock())
        self._identity = identity
        self.me, self._wall_clock = identity.peer_id, wall_clock
        self._sealer = Sealer(identity, *run, first_sequence, wall_clock)
        self._direct, self._published = Guard(*run), Guard(*run)
        self._outbox = Outbox(transport, genesis.timing.progress_timeout_s, on_unreachable)
        self.own: deque[Received] = deque()

    @property
    def lineage(self) -> int:
        """What our messages are of, and those that we take."""
        return self._sealer.lineage

    def obey(self, genesis: Genesis) -> None:
        """From now on these time limits hold."""
        self._outbox.timeout_s = genesis.timing.progress_timeout_s

    def begin_lineage(self, lineage: int) -> None:
        """Leave the old one: its votes and plans are refused from now on."""
        self._sealer.lineage = self._direct.lineage = self._published.lineage = lineage
        self.own.clear()

    def seal(self, message: Message) -> bytes:
        """Signed wire form."""
        return self._sealer.seal(message)

    @property
    def life(self) -> int:
        """Tells this start of the process apart from all others (`Member.life`)."""
        return self._sealer.life

    def used_since(self, life: int) -> range:
        """Whether this process, and none before it, has sealed a message with that number."""
        return self._sealer.used_since(life)

    def post(self, to: Iterable[PeerId], message: Message) -> bytes:
        """Sign and send; never waits. Returns what was signed."""
        if isinstance(message, Proposal):
            message = message.model_copy(update={"seal": self._seal_of(message)})
        raw, peers = self.seal(message), tuple(to)
        if self.me in peers:
            self.own.append(Received(self.me, message, raw))
        self._outbox.post((peer for peer in peers if peer != self.me), raw)
        return raw

    def _seal_of(self, proposal: Proposal) -> str:
        return seal_of(self._identity, proposal.ballot, proposal.record.content_id())

    def open(self, remote: PeerId, raw: bytes) -> Envelope:
        """Verify a direct message. Raises `InvalidMessage` (also `OtherLineage`) or `RemoteProtocolError`."""
        return self._direct.open(raw, self._wall_clock(), remote)

    def open_record(self, raw: bytes) -> Envelope:
        """Verify a directory record. Raises `InvalidMessage`, also for one that was read before."""
        return self._published.open(raw, self._wall_clock())

    async def flush(self) -> None:
        """Wait a moment for what is queued to leave."""
        await self._outbox.flush(_FLUSH_S)

    async def close(self) -> None:
        await self._outbox.close()
