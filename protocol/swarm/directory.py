"""`transport.Directory` on hivemind's DHT: one key per run, one subkey per peer id, signed values only.

Whatever a stranger stores or returns, `RunRecordValidator` lets through only envelopes of this run that the subkey's
owner signed, of bounded size and lifetime. A record's lifetime in the DHT follows from the signed expiry, so that an
old record cannot be given a new life, and the DHT's own rule (later expiry wins) makes a peer's records monotone.

Clocks: the DHT drops what has expired by the *holder's* clock, so records live `SKEW_ALLOWANCE_S` longer than they say;
hivemind's limit of 3 seconds between clocks applies only to its ``validate``/``strict`` calls, which are not used.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgpack

from ..envelope import Envelope, InvalidMessage
from ..identity import PeerId
from ..messages import Heartbeat
from ._hivemind import DHTID, DHTNode, DHTRecord, Libp2pPeerId, RecordValidatorBase, log
from .p2pd import P2pd

MAX_RECORD_BYTES = 4 << 10
MAX_PEERS = 1000
"""Peers whose records a node keeps, since strangers can make keys for free. All of them fit one answer (4 MiB)."""
SKEW_ALLOWANCE_S = 2 * 3600.0
MAX_LIFETIME_S = 24 * 3600.0
_CALL_TIMEOUT_S = 15.0


def _run_key(run_id: str) -> str:
    return f"atoll/1/{run_id}/peers"


class RunRecordValidator(RecordValidatorBase):
    """Accepts exactly the signed records of one run's peers."""

    def __init__(
        self, run_id: str, now: Callable[[], float] = time.time, admits: Callable[[PeerId], bool] = lambda _: True
    ) -> None:
        self._run_id, self._admits = run_id, admits
        self._now = now
        self._key = DHTID.generate(source=_run_key(run_id)).to_bytes()
        self._expiries: dict[str, float] = {}
        self._verified: dict[str, tuple[bytes, float]] = {}
        """Last accepted (value, expiry) per peer: answers repeat records, and a signature check costs 0.2 ms."""

    def validate(self, record: DHTRecord) -> bool:
        """Whether a peer may store, or return, ``record``. Never raises."""
        try:
            return self._is_valid(record)
        except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
            log.debug("record refused: %s", error)
            return False

    def _is_valid(self, record: DHTRecord) -> bool:
        if record.key != self._key or len(record.subkey) > 80 or len(record.value) > MAX_RECORD_BYTES:
            return False
        subkey, raw = msgpack.unpackb(record.subkey, raw=False), msgpack.unpackb(record.value, raw=False)
        if not isinstance(subkey, str) or not isinstance(raw, bytes):
            return False
        fingerprint = (record.value, record.expiration_time)
        if self._verified.get(subkey) == fingerprint:
            return True
        envelope = check_record(raw, self._run_id, self._now())
        is_own = envelope.header.sender == subkey and record.expiration_time == stored_until(envelope)
        if not is_own or not self._admits(PeerId(subkey)) or not self._has_room(subkey):
            return False
        self._verified[subkey] = fingerprint
        return True

    def _has_room(self, peer: str) -> bool:
        now = self._now()
        if peer not in self._expiries and len(self._expiries) >= MAX_PEERS:
            self._expiries = {name: end for name, end in self._expiries.items() if end > now}
            self._verified = {name: seen for name, seen in self._verified.items() if name in self._expiries}
        if peer not in self._expiries and len(self._expiries) >= MAX_PEERS:
            return False
        self._expiries[peer] = now + SKEW_ALLOWANCE_S
        return True


def check_record(raw: bytes, run_id: str, now_unix_s: float) -> Envelope:
    """The verified envelope. Raises `InvalidMessage` (unsigned, foreign, expired beyond all skew, or for too long)."""
    if len(raw) > MAX_RECORD_BYTES:
        raise InvalidMessage(f"record of {len(raw)} bytes is over the limit of {MAX_RECORD_BYTES}")
    envelope = Envelope.open(raw, run_id=run_id, now_unix_s=now_unix_s - SKEW_ALLOWANCE_S)
    if envelope.body.kind != "heartbeat":
        raise InvalidMessage(f"a {envelope.body.kind} is not a directory record")
    if envelope.header.expires_unix_s > now_unix_s + MAX_LIFETIME_S + SKEW_ALLOWANCE_S:
        raise InvalidMessage("record claims to live for too long")
    return envelope


def stored_until(envelope: Envelope) -> float:
    """Expiry in the DHT; a function of the signed expiry alone."""
    return envelope.header.expires_unix_s + SKEW_ALLOWANCE_S


class DhtDirectory:
    """Publishes this node's record and collects all others'. Best effort: failures are logged, never raised."""

    def __init__(
        self,
        peer_id: PeerId,
        run_id: str,
        learn: Callable[[PeerId, tuple[str, ...]], None],
        on_conflict: Callable[[str], None],
    ) -> None:
        self._learn = learn
        self._peer_id = peer_id
        self._run_id = run_id
        self._on_conflict = on_conflict
        self._admits: Callable[[PeerId], bool] = lambda _: True
        self._node: Any = None
        self._own: Envelope | None = None
        self._latest: dict[PeerId, Envelope] = {}

    async def attach(self, daemon: P2pd, peers: Iterable[PeerId], *, client_only: bool = False) -> None:
        """(Re)build the DHT node on a new p2pd; keeps what was stored and publishes our record again.

        ``client_only``: others cannot dial us, so we stay out of their routing tables.
        """
        stored = self._node.protocol.storage if self._node is not None else None
        async with asyncio.timeout(_CALL_TIMEOUT_S):  # with p2pd gone, registering handlers would wait for ever
            self._node = await self._create_node(daemon, client_only)
        if stored is not None:
            self._node.protocol.storage = stored
        await self.meet(peers)
        if self._own is not None:
            await self._store(self._own)

    async def _create_node(self, daemon: P2pd, client_only: bool) -> Any:
        return await DHTNode.create(
            p2p=daemon.p2p,
            record_validator=RunRecordValidator(self._run_id, admits=lambda peer: self._admits(peer)),
            client_mode=client_only,
            ensure_bootstrap_success=False,
            strict=False,
            # The application keeps its own latest records; hivemind's caches would only start refresh tasks.
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            cache_refresh_before_expiry=0,
        )

    def admit(self, admits: Callable[[PeerId], bool]) -> None:
        self._admits = admits

    def admits(self, peer: PeerId) -> bool:
        """Whether the run lets the peer in, as far as this node was told."""
        return self._admits(peer)

    async def meet(self, peers: Iterable[PeerId]) -> None:
        """Enter ``peers`` into the routing table, and us into theirs."""
        node = self._node
        if node is None:
            return
        pings = [node.protocol.call_ping(Libp2pPeerId.from_base58(peer)) for peer in peers]
        await asyncio.gather(*pings, return_exceptions=True)

    async def publish(self, record: bytes, expires_unix_s: float) -> None:
        """Store ``record``, a sealed heartbeat of this node. Its lifetime is the envelope's own expiry.

        Raises ValueError for a record that others would refuse anyway.
        """
        envelope = check_record(record, self._run_id, time.time())
        if envelope.header.sender != self._peer_id:
            raise ValueError("a node publishes only records that it signed itself")
        self._own = envelope
        self._latest[self._peer_id] = envelope
        await self._store(envelope)

    async def _store(self, envelope: Envelope) -> None:
        if self._node is None:
            return
        call = self._node.store(
            key=_run_key(self._run_id),
            subkey=str(envelope.header.sender),
            value=envelope.raw,
            expiration_time=stored_until(envelope),
        )
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                if not await call:
                    log.debug("own directory record was refused or found no holder")
        except Exception as error:
            log.debug("own directory record was not stored: %r", error)

    async def records(self) -> list[bytes]:
        """Latest record of every known peer, our own included; never an older one than was returned before."""
        for raw in await self._lookup():
            self._keep(raw)
        now = time.time()
        self._latest = {peer: entry for peer, entry in self._latest.items() if stored_until(entry) > now}
        return [entry.raw for entry in self._latest.values()]

    async def _lookup(self) -> list[bytes]:
        if self._node is None:
            return []
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                found = await self._node.get(_run_key(self._run_id), latest=True)
        except Exception as error:
            log.debug("directory lookup failed: %r", error)
            return []
        values = getattr(found, "value", None)
        return [entry.value for entry in values.values()] if isinstance(values, dict) else []

    def _keep(self, raw: Any) -> None:
        try:
            envelope = check_record(cast("bytes", raw), self._run_id, time.time())
        except (InvalidMessage, TypeError):
            return
        sender, sequence = envelope.header.sender, envelope.header.sequence
        known = self._latest.get(sender)
        if sender == self._peer_id and self._own is not None and sequence > self._own.header.sequence:
            self._on_conflict("a directory record signed with this node's key, but not by this node, is in circulation")
            return
        if known is None or sequence > known.header.sequence:
            self._latest[sender] = envelope
            if isinstance(envelope.body, Heartbeat):
                self._learn(sender, envelope.body.addresses)

    async def detach(self) -> None:
        """Stop the DHT's background work; its RPC handlers end with p2pd."""
        node = self._node
        if node is None:
            return
        node.is_alive = False
        if node.cache_refresh_task is not None:
            node.cache_refresh_task.cancel()
        with contextlib.suppress(Exception):
            node.blacklist.clear()
