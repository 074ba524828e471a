"""Evidence on its way: found here, spread to the roster, verified by everybody for themselves, asked for where lacking.

On an ``evidence`` stream the first frame is a tag with what follows:

    T header    take this: the receiver answers `payload.NO` (not needed, or not from this peer) or `payload.YES`, and
                then gets the payload, whose length follows from the header, the grid and the receiver's own rules
    S peer id   what is held against this peer? `payload.NO`, or `payload.YES`, a frame with the header, and the payload

Whatever does not verify does nothing to the accused. It is a rejection of its sender, of whom no evidence is taken
any more until this node restarts. Evidence is only taken against peers of the present roster: keys cost nothing, and
whoever signs nonsense with a thousand of its own would fill every disk. What a peer may say at all is in `quotas`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor

from . import evidence as proofs
from .allowance import Allowances
from .amendments import RunRules
from .chunks import ChunkGrid
from .evidence import Evidence, FalseEvidence, Header, OtherRules
from .evidence_store import EvidenceStore
from .identity import PeerId
from .offload import off_loop
from .payload import NO, YES, read_answer, read_payload, write_payload
from .quotas import (
    EVIDENCE_AT_ONCE,
    EVIDENCE_HELD,
    EVIDENCE_PER_S,
    EVIDENCE_STREAMS_PER_PEER,
    MAX_UNFINISHED_EVIDENCE,
    SOUGHT_AT_ONCE,
)
from .stream_limit import StreamLimit
from .tasks import run_all
from .transport import ByteStream, PeerUnreachable, RemoteProtocolError, StreamClosed, Transport

PROTOCOL = "evidence"
_TAKE, _SEEK = b"T", b"S"


class Docket:
    """One node's evidence. ``on_proven`` hears of each peer once, after the evidence is durable here."""

    def __init__(
        self,
        grid: ChunkGrid,
        transport: Transport,
        store: EvidenceStore,
        executor: Executor,
        rules: Callable[[], RunRules],
        roster: Callable[[], Sequence[PeerId]],
        on_proven: Callable[[PeerId, str], None],
        on_misconduct: Callable[[RemoteProtocolError], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grid, self._transport, self._store, self._executor = grid, transport, store, executor
        self._rules, self._roster = rules, roster
        self._on_proven, self._on_misconduct = on_proven, on_misconduct
        self._limit = StreamLimit(EVIDENCE_STREAMS_PER_PEER)
        self._incoming, self._outgoing = StreamLimit(1), StreamLimit(1)
        self._accusations = Allowances(EVIDENCE_PER_S, EVIDENCE_AT_ONCE, clock)
        self._searches = Allowances(EVIDENCE_PER_S, EVIDENCE_AT_ONCE, clock)
        self._num_unfinished: Counter[PeerId] = Counter()
        self._accepting = asyncio.Lock()
        self._discredited: set[PeerId] = set()
        self._sought: set[PeerId] = set()
        transport.serve(PROTOCOL, self._handle)

    @property
    def proven(self) -> frozenset[PeerId]:
        """Peers against whom verified evidence is on this node's disk."""
        return frozenset(self._store.accused)

    async def keep(self, evidence: Evidence) -> bool:
        """Evidence found by this node: verified and durable. False if it proves nothing, or nothing new."""
        try:
            return await self._accept(evidence)
        except (FalseEvidence, OtherRules):
            return False

    async def spread(self, evidence: Evidence, roster: Iterable[PeerId]) -> None:
        """Offer evidence to everybody in ``roster``. Who cannot be reached asks for it when a plan rests on it."""
        others = [peer for peer in roster if peer not in (self._transport.peer_id, evidence.accused)]
        await run_all(self._offer(peer, evidence) for peer in others)

    async def remind(self, accused: PeerId, peers: Iterable[PeerId]) -> None:
        """Offer ``peers`` what is held here against ``accused``."""
        evidence = await off_loop(self._executor, self._store.load, accused)
        if evidence is not None:
            await self.spread(evidence, peers)

    async def seek(self, accused: Iterable[PeerId], sender: PeerId, peers: Sequence[PeerId]) -> None:
        """Get what is lacking against those whom ``sender`` has named, from the first that has it: it, or ``peers``."""
        lacking = set(accused).intersection(self._roster()) - self._store.accused - self._sought
        if not lacking or not self._searches.take(sender):
            return
        sought = sorted(lacking)[:SOUGHT_AT_ONCE]
        self._sought.update(sought)
        try:
            for peer in sought:
                await self._seek(peer, (sender, *peers))
        finally:
            self._sought.difference_update(sought)

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _accept(self, evidence: Evidence) -> bool:
        """Verify and keep; False if the peer was known already. Raises what `evidence.judge` raises, and OSError."""
        accused = PeerId(evidence.accused)
        async with self._accepting:  # several may come at once
            if accused in self._store.accused:
                return False
            genesis = proofs.rules_of(proofs.header_of(evidence), self._rules())
            await off_loop(self._executor, proofs.judge, evidence, genesis, self._grid, self._roster())
            await off_loop(self._executor, self._store.save, evidence)
        self._on_proven(accused, proofs.kind_of(evidence))
        return True

    async def _offer(self, peer: PeerId, evidence: Evidence) -> None:
        try:
            stream = await self._transport.open(peer, PROTOCOL)
        except PeerUnreachable:
            return
        try:
            await stream.write(_TAKE + proofs.encode_header(evidence))
            if await read_answer(stream):
                await write_payload(stream, proofs.encode_payload(evidence))
                await read_answer(stream)
        except (StreamClosed, RemoteProtocolError):
            return  # whoever lacks it asks for it
        finally:
            await stream.close()

    async def _handle(self, stream: ByteStream) -> None:
        with self._limit.hold(stream.remote):
            frame = await stream.read(1 + proofs.MAX_HEADER_BYTES)
            if frame[:1] == _TAKE:
                await self._take(stream, frame[1:])
            elif frame[:1] == _SEEK:
                await self._show(stream, frame[1:])
            else:
                raise RemoteProtocolError(stream.remote, "malformed evidence request")

    async def _take(self, stream: ByteStream, data: bytes) -> None:
        """Somebody accuses somebody."""
        if not self._hears(stream.remote):
            await stream.write(NO)
            return
        try:
            header = await off_loop(self._executor, self._checked_header, data)
            if header is None:
                await stream.write(NO)
                return
            with self._incoming.hold(stream.remote):
                await stream.write(YES)
                await self._accept(await self._receive(stream, header))
            await stream.write(YES)
        except OtherRules:
            await stream.write(NO)
        except FalseEvidence as error:
            self._discredit(stream.remote, str(error))

    def _hears(self, peer: PeerId) -> bool:
        """Whether an accusation of ``peer`` is looked at now."""
        is_credible = peer not in self._discredited and self._num_unfinished[peer] < MAX_UNFINISHED_EVIDENCE
        return is_credible and self._incoming.num_open < EVIDENCE_HELD and self._accusations.take(peer)

    def _checked_header(self, data: bytes) -> Header | None:
        """None if what follows is not needed. Raises as `evidence.judge` does (runs in the executor)."""
        header = proofs.decode_header(data)
        accused = proofs.accused_of(header)
        if accused in self._store.accused or accused not in self._roster():
            return None
        proofs.check_header(header, proofs.rules_of(header, self._rules()), self._grid)
        return header

    async def _receive(self, stream: ByteStream, header: Header) -> Evidence:
        num_bytes = proofs.payload_bytes(header, self._grid)
        try:
            payload = await read_payload(stream, num_bytes) if num_bytes else b""
        except StreamClosed:
            self._num_unfinished[stream.remote] += 1
            raise
        return proofs.assemble(header, payload, self._grid)

    async def _show(self, stream: ByteStream, data: bytes) -> None:
        accused = PeerId(data[:64].decode("ascii", "replace"))
        if accused not in self._store.accused or self._outgoing.num_open >= EVIDENCE_HELD:
            await stream.write(NO)
            return
        with self._outgoing.hold(stream.remote):
            evidence = await off_loop(self._executor, self._store.load, accused)
            await stream.write(NO if evidence is None else YES)
            if evidence is not None:
                await stream.write(proofs.encode_header(evidence))
                await write_payload(stream, proofs.encode_payload(evidence))

    async def _seek(self, accused: PeerId, peers: Sequence[PeerId]) -> None:
        for peer in peers:
            if peer in (self._transport.peer_id, accused) or peer in self._discredited:
                continue
            try:
                if await self._ask(peer, accused):
                    return
            except FalseEvidence as error:
                self._discredit(peer, str(error))
            except (PeerUnreachable, StreamClosed, RemoteProtocolError, OtherRules, OSError):
                continue

    async def _ask(self, peer: PeerId, accused: PeerId) -> bool:
        stream = await self._transport.open(peer, PROTOCOL)
        try:
            await stream.write(_SEEK + accused.encode())
            if not await read_answer(stream):
                return False
            header = await off_loop(self._executor, proofs.decode_header, await stream.read(proofs.MAX_HEADER_BYTES))
            if proofs.accused_of(header) != accused:
                raise FalseEvidence("it is against somebody else")
            proofs.check_header(header, proofs.rules_of(header, self._rules()), self._grid)
            await self._accept(await self._receive(stream, header))
            return True
        finally:
            await stream.close()

    def _discredit(self, peer: PeerId, why: str) -> None:
        self._discredited.add(peer)
        self._on_misconduct(RemoteProtocolError(peer, "false evidence", why))
