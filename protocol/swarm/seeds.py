"""Dialling seeds one by one, with the cause where a dial fails, and the two questions asked of those that answer.

Besides its run's protocols every node serves `HELLO_PROTOCOL`, which carries no run id: a dialler learns from it that
it met an atoll node, and of which run. On it a node also answers whether another peer id is alive behind it
(`ask_whether_taken`) and whether it can reach the dialler's TCP ports (`ask_for_dial_back`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field

from .. import transport as contract
from ..identity import Identity, PeerId, public_key_of
from ..parsing import Unreadable, parse
from . import addresses, run_folder
from .libp2p_transport import Libp2pTransport, protocol_prefix, shorten
from .p2pd import P2pd, P2pdError, P2pdOptions
from .settings import DuplicateIdentity, SeedCause, SeedResult, SwarmEvent, SwarmSettings
from .streams import SwarmStream, welcome

HELLO_PROTOCOL = "/atoll/1/hello"
MAX_DIAL_BACK_PORTS = 4
DIAL_BACK_TIMEOUT_S = 3.0
MAX_REMEMBERED_DIALS = 64
"""Peers met earlier that are dialled at a start; the newest."""


class Question(BaseModel):
    """What a dialler asks in its hello."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    kind: Literal["run", "is_alive", "dial_back"] = "run"
    peer: str = Field(default="", max_length=64)
    ports: tuple[int, ...] = Field(default=(), max_length=MAX_DIAL_BACK_PORTS)


class Answer(BaseModel):
    """A node's answer in its welcome."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    run_id: str = Field(max_length=64)
    is_alive: bool = False
    is_relay: bool = False
    observed_host: str = Field(default="", max_length=64)
    open_ports: tuple[int, ...] = Field(default=(), max_length=MAX_DIAL_BACK_PORTS)


class Answerer:
    """Serves `HELLO_PROTOCOL`."""

    def __init__(self, transport: Libp2pTransport, settings: SwarmSettings) -> None:
        self._transport = transport
        self._run_id = settings.run_id
        self._is_relay = settings.is_seed
        self._timeout_s = settings.connect_timeout_s
        transport.serve_raw(HELLO_PROTOCOL, self._handle)

    async def _handle(self, stream: SwarmStream, hello: bytes, address: str) -> None:
        try:
            question = parse(Question, hello or b"{}")
        except Unreadable:
            raise contract.RemoteProtocolError(stream.remote, "malformed question") from None
        answer = await self._answer(question, stream.remote, address)
        await welcome(stream, answer.model_dump_json().encode())
        with contextlib.suppress(contract.StreamClosed, TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await stream.read(0)  # the dialler closes first, when it has the answer

    async def _answer(self, question: Question, asker: PeerId, address: str) -> Answer:
        if question.kind == "is_alive":
            return Answer(run_id=self._run_id, is_alive=await self._is_alive(question.peer))
        if question.kind == "dial_back":
            return await self._dial_back(question.ports, address)
        return Answer(run_id=self._run_id, is_relay=self._is_relay)

    async def _is_alive(self, peer: str) -> bool:
        """Whether the peer's application answers us; asked by a node that was given the same key.

        A peer that is not connected to us gets little time: nodes keep connections to all their seeds.
        """
        if peer == self._transport.peer_id:
            return True
        try:
            public_key_of(peer)
            is_connected = peer in await (await self._transport.daemon(1.0)).peers(1.0)
            limit_s = self._timeout_s / 2 if is_connected else min(1.0, self._timeout_s / 2)
            stream, _ = await self._transport.open_raw(PeerId(peer), HELLO_PROTOCOL, b"", limit_s)
        except (ValueError, P2pdError, contract.PeerUnreachable):
            return False
        await stream.close()
        return True

    async def _dial_back(self, ports: Sequence[int], address: str) -> Answer:
        """Try TCP ports of the asker, only at the address that its connection comes from (no request forgery)."""
        where = addresses.endpoint(address) if address else None  # None for a relayed one
        if where is None:
            return Answer(run_id=self._run_id)
        found = await asyncio.gather(*(tcp_cause(where.host, port, DIAL_BACK_TIMEOUT_S) for port in ports))
        open_ports = tuple(port for port, cause in zip(ports, found, strict=True) if cause is None)
        return Answer(run_id=self._run_id, observed_host=where.host, open_ports=open_ports)


async def ask(transport: Libp2pTransport, peer: PeerId, question: Question, timeout_s: float) -> Answer:
    """Raises `PeerUnreachable`; an answer that is not one counts as that too."""
    stream, payload = await transport.open_raw(peer, HELLO_PROTOCOL, question.model_dump_json().encode(), timeout_s)
    await stream.close()
    try:
        return parse(Answer, payload)
    except Unreadable:
        raise contract.PeerUnreachable(peer, "it is not an atoll node of this version") from None


# --- one seed, step by step -------------------------------------------------------------------------------------------

_CAUSES = {errno.ECONNREFUSED: SeedCause.REFUSED}
_UNROUTABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EINVAL, errno.EACCES, errno.EPERM}


async def tcp_cause(host: str, port: int, timeout_s: float) -> SeedCause | None:
    """None if the port accepts a TCP connection, else why not."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return SeedCause.TIMED_OUT
    except socket.gaierror:
        return SeedCause.NAME_NOT_FOUND
    except OSError as error:
        return _cause_of(error)
    except (ValueError, OverflowError):
        return SeedCause.INVALID_ADDRESS
    writer.transport.abort()
    return None


def _cause_of(error: OSError) -> SeedCause:
    # asyncio joins several addresses' errors into one without a number; the text still tells.
    if error.errno in _CAUSES or "refused" in str(error).lower():
        return SeedCause.REFUSED
    return SeedCause.UNROUTABLE if error.errno in _UNROUTABLE or error.errno is None else SeedCause.FAILED


_DETAILS = {
    SeedCause.NAME_NOT_FOUND: "its host name does not resolve; check the spelling and this machine's DNS",
    SeedCause.REFUSED: "the host answers but nothing listens on that port; the seed is down, or the port is wrong",
    SeedCause.UNROUTABLE: "there is no route to that address from here; check this machine's network (IPv6?)",
    SeedCause.TIMED_OUT: "no answer; the host is down, or a firewall drops the packets",
    SeedCause.INVALID_ADDRESS: "the address is malformed",
}


def classify_dial(text: str) -> SeedCause:
    """Cause in p2pd's text about a failed dial."""
    lowered = text.lower()
    if "peer id mismatch" in lowered:
        return SeedCause.WRONG_PEER_ID
    if "connection refused" in lowered:
        return SeedCause.REFUSED
    if "no route" in lowered or "unreachable" in lowered:
        return SeedCause.UNROUTABLE
    if "deadline exceeded" in lowered or "timeout" in lowered or "no answer within" in lowered:
        return SeedCause.TIMED_OUT
    if "security protocol" in lowered or "multistream" in lowered or "protocol" in lowered:
        return SeedCause.NOT_ATOLL
    return SeedCause.FAILED


def _dial_detail(cause: SeedCause, text: str) -> str:
    if cause is SeedCause.WRONG_PEER_ID:
        actual = text.rsplit("matches ", 1)[-1].split()[0].rstrip(".,")
        return f"another peer answers there ({actual}); the seed's key changed, or the address is someone else's now"
    if cause is SeedCause.TIMED_OUT:
        return "the port is open but the program behind it does not answer as a libp2p node; it hangs or is overloaded"
    if cause is SeedCause.NOT_ATOLL:
        return "the program on that port is not a libp2p node"
    return _DETAILS.get(cause, shorten(text))


async def dial_seed(transport: Libp2pTransport, daemon: P2pd, address: str, settings: SwarmSettings) -> SeedResult:
    """Dial one seed in steps (name, TCP, libp2p, atoll, run); the first that fails gives the cause. Never raises."""
    try:
        plain, named = addresses.split_peer(address)
        public_key_of(named or "")
        where = addresses.endpoint(plain)
        addresses.to_bytes(plain)
    except ValueError as error:
        detail = f"{error}; a seed reads like /ip4/203.0.113.5/tcp/4001/p2p/12D3Koo…"
        return SeedResult(address, None, SeedCause.INVALID_ADDRESS, detail)
    peer = PeerId(cast("str", named))
    if peer == transport.peer_id:
        return SeedResult(address, peer, SeedCause.FAILED, "it is this node's own address")
    # Only addresses that the operator or the user has named are probed: those that peers state of themselves may point
    # at anything in this node's network, and get no more than libp2p's own dial.
    is_named = address in settings.seeds or plain not in settings.known_peers.get(peer, ())
    if is_named and where is not None and where.transport == "tcp":
        cause = await tcp_cause(where.host, where.port, settings.seed_timeout_s)
        if cause is not None:
            return SeedResult(address, peer, cause, _DETAILS.get(cause, "it cannot be dialled"))
    return await _dial_libp2p(transport, daemon, address, plain, peer, settings)


async def _dial_libp2p(
    transport: Libp2pTransport, daemon: P2pd, address: str, plain: str, peer: PeerId, settings: SwarmSettings
) -> SeedResult:
    try:
        await daemon.connect(peer, [plain], settings.seed_timeout_s)
    except P2pdError as error:
        cause = classify_dial(str(error))
        return SeedResult(address, peer, cause, _dial_detail(cause, str(error)))
    try:
        answer = await ask(transport, peer, Question(), settings.seed_timeout_s)
    except contract.PeerUnreachable as error:
        if "not supported" in error.why:
            return SeedResult(address, peer, SeedCause.NOT_ATOLL, "it is a libp2p node but not an atoll node")
        return SeedResult(
            address, peer, SeedCause.TIMED_OUT, f"its p2p daemon answers but its node does not ({error.why})"
        )
    if answer.run_id != settings.run_id:
        detail = f"it serves another run ({answer.run_id[:12]}…, not {settings.run_id[:12]}…); check the run spec"
        return SeedResult(address, peer, SeedCause.WRONG_RUN, detail)
    return SeedResult(address, peer, SeedCause.ANSWERED, "answered", answer.is_relay)


def dial_targets(settings: SwarmSettings, own: PeerId, *, with_own: bool = False) -> list[str]:
    """Seeds, and the peers met last; ``with_own``: this node's own addresses among them too."""
    remembered = list(settings.known_peers.items())[-MAX_REMEMBERED_DIALS:]
    known = [f"{text}/p2p/{peer}" for peer, texts in remembered for text in texts[:2]]
    targets = dict.fromkeys([*settings.seeds, *known])
    return [text for text in targets if with_own or not text.endswith(f"/p2p/{own}")]


async def may_listen(address: str, timeout_s: float) -> bool:
    """Ask a TCP port ourselves first: after each failure p2pd refuses to dial for five seconds and more."""
    where = addresses.endpoint(address)
    if where is None or where.transport != "tcp":
        return True
    return await tcp_cause(where.host, where.port, timeout_s) is None


async def dial_all(
    transport: Libp2pTransport, daemon: P2pd, seeds: Sequence[str], settings: SwarmSettings
) -> list[SeedResult]:
    """All seeds at once, results in their order."""
    return list(await asyncio.gather(*(dial_seed(transport, daemon, address, settings) for address in seeds)))


# --- before the node's own p2pd runs ----------------------------------------------------------------------------------


class Probe(contextlib.AbstractAsyncContextManager["Probe"]):
    """A short-lived p2pd with a throw-away key that listens nowhere: dials without showing this node's identity."""

    def __init__(self, settings: SwarmSettings) -> None:
        self._settings = settings
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            folder = run_folder.create(self._settings.runtime_folder)
            stack.callback(run_folder.remove, folder)
            identity = Identity.create(folder / "key")
            self.transport = Libp2pTransport(identity.peer_id, self._settings, _ignore)
            options = P2pdOptions(
                identity_path=folder / "key",
                peer_id=identity.peer_id,
                folder=folder,
                protocol_prefix=protocol_prefix(self._settings.run_id),
                dht_mode="client",
                start_timeout_s=self._settings.start_timeout_s,
                command=self._settings.p2pd_command,
            )
            self.daemon = await start_with_retries(options, self._settings)
            stack.push_async_callback(self.daemon.stop)
            stack.push_async_callback(self.transport.close, 0.0)
            await self.transport.attach(self.daemon)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._stack.aclose()

    async def dial(self, seeds: Sequence[str]) -> list[SeedResult]:
        return await dial_all(self.transport, self.daemon, seeds, self._settings)


def _ignore(_event: SwarmEvent) -> None:
    return


async def start_with_retries(options: P2pdOptions, settings: SwarmSettings, **kwargs: Any) -> P2pd:
    """Start p2pd, again if it fails or is slow; each attempt may take twice as long as the one before.

    Raises the last `P2pdError`, which carries the child's last lines.
    """
    for attempt in range(settings.num_start_attempts):
        patient = replace(options, start_timeout_s=options.start_timeout_s * 2**attempt)
        try:
            return await P2pd.start(patient, **kwargs)
        except P2pdError as error:
            if attempt + 1 == settings.num_start_attempts:
                times = f" ({settings.num_start_attempts} attempts)" if attempt else ""
                raise P2pdError(f"{error}{times}") from None
    raise AssertionError("num_start_attempts is at least 1")


async def dial_seeds(seeds: Sequence[str], run_id: str, *, timeout_s: float = 6.0) -> list[SeedResult]:
    """Dial ``seeds`` of run ``run_id`` with a throw-away identity (``atoll doctor``), results in their order.

    Raises `P2pdError` only if p2pd itself cannot be started.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "key"
        Identity.create(path)
        settings = SwarmSettings(identity_path=path, run_id=run_id, seed_timeout_s=timeout_s)
        async with Probe(settings) as probe:
            return await probe.dial(seeds)


async def ask_whether_taken(probe: Probe, own: PeerId, answered: Sequence[SeedResult], settings: SwarmSettings) -> None:
    """Raise `DuplicateIdentity` if a peer that answered has a live connection to our own peer id.

    The question is asked with a throw-away key, so that the node that runs already is not disturbed.
    """
    peers = {result.peer for result in answered if result.answered and result.peer is not None}
    question = Question(kind="is_alive", peer=own)
    answers = await asyncio.gather(
        *(ask(probe.transport, peer, question, settings.seed_timeout_s) for peer in peers), return_exceptions=True
    )
    if own in peers or any(isinstance(answer, Answer) and answer.is_alive for answer in answers):
        raise DuplicateIdentity(
            f"another node is running with the same identity …{own[-5:]} (file {settings.identity_path}); "
            "stop that node, or give this one a key of its own: move the file away and start again"
        )


def usable_relays(results: Sequence[SeedResult]) -> tuple[str, ...]:
    """Seeds that just answered and offer to relay, each once: a dead or doubled one delays the reservation to 180 s."""
    return tuple({result.peer: result.address for result in results if result.answered and result.is_relay}.values())


def to_json(results: Sequence[SeedResult]) -> str:
    """For logs and ``--json``."""
    return json.dumps([{"address": r.address, "cause": r.cause, "detail": r.detail} for r in results])


Emit = Callable[[SwarmEvent], None]
