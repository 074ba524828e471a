"""The p2p daemon of libp2p as a supervised child: start, control calls with time limits, certain death.

Each rule answers a measured trap of hivemind 1.1.12 (design, protocol.md): own key and peer id, sockets in a private
folder, no UPnP and no relay service by default, parent-death signal, last output lines in errors, names with the run.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from .. import transport as contract
from ..allowance import Allowances
from ..identity import PeerId
from ..launcher import launched
from ..quotas import DHT_BYTES_AT_ONCE, DHT_BYTES_PER_S, DHT_CALLS_PER_PEER, REQUEST_BYTES
from . import addresses, run_folder
from ._hivemind import P2P, Libp2pPeerId, P2PDaemonError, log

StreamCallback = Callable[[PeerId, str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""(remote peer, its address, reader, writer)."""

NUM_TAIL_LINES = 8
STOP_TIMEOUT_S = 3.0
_IDLE_TIMEOUT_S = 10


class P2pdError(Exception):
    """p2pd did not start, died, or refused a call."""


@dataclass(frozen=True)
class P2pdOptions:
    """Arguments of one start."""

    identity_path: Path
    peer_id: PeerId
    """Derived by ourselves from the key; another answer of p2pd is an error."""
    folder: Path
    protocol_prefix: str
    """Put before hivemind's own RPC names, so that two runs never meet in one DHT."""
    listen: tuple[str, ...] = ()
    """Empty: do not listen at all."""
    announce: tuple[str, ...] = ()
    trusted_relays: tuple[str, ...] = ()
    use_auto_relay: bool = False
    is_relay: bool = False
    map_ports: bool = False
    dht_mode: str = "server"
    start_timeout_s: float = 20.0
    command: tuple[str, ...] = ()


class _P2P(P2P):
    """hivemind's wrapper with our arguments, our socket folder and a memory of the child's output.

    A subclass is made per start, because hivemind keeps these as class attributes and creates the object itself.
    """

    options: ClassVar[P2pdOptions]
    traffic: ClassVar[contract.Traffic]
    started: ClassVar[list[_P2P]]
    """The object under construction, so that a failed start can be cleaned up."""
    tail: collections.deque[str]

    def _make_process_args(self, *args: Any, **kwargs: Any) -> list[str]:
        kwargs["relayService"] = int(self.options.is_relay)
        kwargs["relayDiscovery"] = 0
        binary = self.options.command or (str(args[0]),)
        return P2P._make_process_args(*launched(*binary), **kwargs)

    async def _read_outputs(self, ready: asyncio.Future[None]) -> None:
        self.started.append(self)
        self._num_calls: collections.Counter[PeerId] = collections.Counter()
        self._answers = Allowances(DHT_BYTES_PER_S, DHT_BYTES_AT_ONCE, time.monotonic)
        self.tail = collections.deque(maxlen=NUM_TAIL_LINES)
        child = cast("asyncio.subprocess.Process", self._child)
        assert child.stdout is not None
        with contextlib.suppress(ValueError):  # a line longer than the reader's limit
            while line := await child.stdout.readline():
                text = line.rstrip().decode(errors="replace")
                self.tail.append(text[:500])
                log.debug("p2pd: %s", text)
                if text.startswith("Peer ID:") and not ready.done():
                    ready.set_result(None)
        code = await child.wait()
        if not ready.done():
            ready.set_exception(P2PDaemonError(f"it ended with status {code}"))

    def _name(self, name: str) -> str:
        return self.options.protocol_prefix + name

    async def add_protobuf_handler(self, name: str, *args: Any, **kwargs: Any) -> None:
        await super().add_protobuf_handler(self._name(name), *args, **kwargs)

    async def remove_protobuf_handler(self, name: str, **kwargs: Any) -> None:
        await super().remove_protobuf_handler(self._name(name), **kwargs)

    async def call_protobuf_handler(self, peer_id: Any, name: str, input: Any, output_protobuf_type: Any) -> Any:  # noqa: A002
        peer = PeerId(peer_id.to_base58())
        self.traffic.count_sent(peer, input.ByteSize())
        response = await super().call_protobuf_handler(peer_id, self._name(name), input, output_protobuf_type)
        self.traffic.count_received(peer, cast("Any", response).ByteSize())
        return response

    async def _add_protobuf_unary_handler(
        self, handle_name: str, handler: Any, input_protobuf_type: Any, balanced: bool = False
    ) -> None:
        async def counted(request: Any, context: Any) -> Any:
            peer = PeerId(context.remote_id.to_base58())
            self.traffic.count_received(peer, request.ByteSize())
            if self._num_calls[peer] >= DHT_CALLS_PER_PEER or not self._answers.take(peer, REQUEST_BYTES):
                raise P2PDaemonError("too many calls")
            self._num_calls[peer] += 1
            try:
                response = await handler(request, context)
            finally:
                self._num_calls[peer] -= 1
                if not self._num_calls[peer]:
                    del self._num_calls[peer]  # strangers leave nothing behind
            if not self._answers.take(peer, response.ByteSize()):
                raise P2PDaemonError("too many calls")
            self.traffic.count_sent(peer, response.ByteSize())
            return response

        await super()._add_protobuf_unary_handler(handle_name, counted, input_protobuf_type, balanced)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the loop may be closed and the child gone; neither is news at exit
            self._terminate()


@dataclass(frozen=True)
class _RawAddress:
    """Looks like hivemind's Multiaddr to `connect`, but keeps our encoding."""

    text: str

    def to_bytes(self) -> bytes:
        return addresses.to_bytes(self.text)


def _texts(multiaddresses: Sequence[Any]) -> tuple[str, ...]:
    texts: list[str] = []
    for address in multiaddresses:
        with contextlib.suppress(ValueError):  # protocols that we do not use (webtransport, …)
            texts.append(addresses.from_bytes(address.to_bytes()))
    return tuple(texts)


class P2pd:
    """One running p2pd. Every call is bounded by its ``timeout_s`` and raises `P2pdError` with one line."""

    def __init__(self, p2p: _P2P, options: P2pdOptions) -> None:
        self.p2p = p2p
        self.options = options
        self._handlers: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, options: P2pdOptions, traffic: contract.Traffic | None = None) -> P2pd:
        """Start the child and wait until it answers. Raises `P2pdError` with its last output lines."""
        prefix = f"/unix{options.folder}/"
        attributes = {
            "options": options,
            "traffic": traffic or contract.Traffic(),
            "started": [],
            "_UNIX_SOCKET_PREFIX": prefix,
        }
        kind = cast("type[_P2P]", type("_P2P", (_P2P,), attributes))
        try:
            # Twice: hivemind limits only the wait for the first output, not its first calls after that.
            async with asyncio.timeout(options.start_timeout_s + 1.0):
                p2p = cast("_P2P", await kind.create(**_create_arguments(options)))
        except BaseException as error:
            await _clean_up_failed_start(kind, options.folder)
            if isinstance(error, (P2PDaemonError, OSError, EOFError, TimeoutError)):
                raise P2pdError(_explain_start(kind, options, error)) from None
            raise
        daemon = cls(p2p, options)
        weakref.finalize(p2p, _close_quietly, cast("Any", daemon._child)._transport)
        _track_connections(daemon._client.control.daemon_connector)
        run_folder.record_child(options.folder, daemon.pid)
        if str(p2p.peer_id) != options.peer_id:
            await daemon.stop()
            raise P2pdError(f"p2pd calls itself {p2p.peer_id} although its key belongs to {options.peer_id}")
        return daemon

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def _child(self) -> asyncio.subprocess.Process:
        return cast("asyncio.subprocess.Process", self.p2p._child)

    @property
    def _client(self) -> Any:
        return cast("Any", self.p2p._client)

    @property
    def last_lines(self) -> str:
        return " | ".join(self.p2p.tail)

    async def wait(self) -> int:
        """Exit status of the child, once it ends."""
        return await self._child.wait()

    async def _call(self, what: str, call: Awaitable[Any], timeout_s: float) -> Any:
        opened: list[asyncio.StreamWriter] = []
        token = _OPENED.set(opened)
        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except BaseException as error:
            for writer in opened:  # hivemind leaves the descriptor of a failed call open
                writer.transport.abort()
            if isinstance(error, TimeoutError):
                raise P2pdError(f"{what}: no answer within {timeout_s:g} s") from None
            if isinstance(error, (P2PDaemonError, OSError, EOFError, ValueError)):
                raise P2pdError(f"{what}: {_one_line(error)}") from None
            raise
        finally:
            _OPENED.reset(token)

    async def identify(self, timeout_s: float) -> tuple[str, ...]:
        """Own addresses, without peer id; also the test of p2pd's health."""
        _, visible = await self._call("p2pd's identify", self._client.identify(), timeout_s)
        return _texts(visible)

    async def connect(self, peer: PeerId, known: Sequence[str], timeout_s: float) -> None:
        """Dial ``peer`` at ``known`` addresses (without its id) unless it is connected already."""
        maddrs = [_RawAddress(text) for text in known]
        await self._call("dial", self._client.connect(Libp2pPeerId.from_base58(peer), maddrs), timeout_s)

    async def disconnect(self, peer: PeerId, timeout_s: float) -> None:
        await self._call("disconnect", self._client.disconnect(Libp2pPeerId.from_base58(peer)), timeout_s)

    async def peers(self, timeout_s: float) -> dict[PeerId, tuple[str, ...]]:
        """Connected peers with the remote addresses of their connections."""
        infos = await self._call("list of peers", self._client.list_peers(), timeout_s)
        found: dict[PeerId, tuple[str, ...]] = {}
        for info in infos:
            peer = PeerId(info.peer_id.to_base58())
            found[peer] = found.get(peer, ()) + _texts(info.addrs)
        return found

    async def open_stream(
        self, peer: PeerId, protocol: str, timeout_s: float
    ) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a raw stream: (address of its connection, reader, writer). Proves nothing of the peer's application."""
        call = self.p2p.call_binary_stream_handler(Libp2pPeerId.from_base58(peer), protocol)
        info, reader, writer = await self._call("stream", call, timeout_s)
        return next(iter(_texts([info.addr])), ""), reader, writer

    async def serve(self, protocol: str, callback: StreamCallback, timeout_s: float) -> None:
        """Hand incoming streams of ``protocol`` to ``callback``, which closes the writer and never raises."""

        async def handle(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = cast("asyncio.Task[None]", asyncio.current_task())
            self._handlers.add(task)
            try:
                address = _texts([info.addr])
                await callback(PeerId(info.peer_id.to_base58()), address[0] if address else "", reader, writer)
            except asyncio.CancelledError:
                pass  # `stop`; the task ends here, and asyncio 3.11 logs a cancelled one with a traceback
            finally:
                self._handlers.discard(task)
                writer.close()

        await self._call(f"handler of {protocol}", self.p2p.add_binary_stream_handler(protocol, handle), timeout_s)

    async def stop(self, grace_s: float = STOP_TIMEOUT_S) -> None:
        """End the child, by force after ``grace_s``, and remove its sockets. Idempotent; never raises."""
        for task in list(self._handlers):
            task.cancel()
        await _end(self.p2p, self.options.folder, grace_s)


_OPENED: contextvars.ContextVar[list[asyncio.StreamWriter] | None] = contextvars.ContextVar("_OPENED", default=None)
"""Connections to p2pd that the current call has opened."""


def _track_connections(connector: Any) -> None:
    original = connector.open_connection

    async def open_connection() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await original()
        if (opened := _OPENED.get()) is not None:
            opened.append(writer)
        return reader, writer

    connector.open_connection = open_connection


def _create_arguments(options: P2pdOptions) -> dict[str, Any]:
    return {
        "identity_path": str(options.identity_path),
        "check_if_identity_free": False,  # knows RSA only; `seeds.ask_whether_taken` is ours
        "host_maddrs": list(options.listen) or None,
        "no_listen": not options.listen,
        "announce_maddrs": list(options.announce) or None,
        "trusted_relays": list(options.trusted_relays) or None,
        "use_auto_relay": options.use_auto_relay,
        "nat_port_map": options.map_ports,
        "dht_mode": options.dht_mode,
        # Measured by ourselves already: a reservation at once instead of after p2pd's own 15 seconds.
        "force_reachability": "private" if options.use_auto_relay else None,
        "startup_timeout": options.start_timeout_s,
        # The second guard against orphans: p2pd ends by itself this long after its owner's connection (measured).
        "idle_timeout": _IDLE_TIMEOUT_S,
    }


def _close_quietly(transport: asyncio.SubprocessTransport) -> None:
    """For a process that ends without `stop`: asyncio's transport would complain that its loop is closed."""
    with contextlib.suppress(Exception):
        transport.close()


async def _end(p2p: _P2P, folder: Path, grace_s: float) -> None:
    client, child = cast("Any", p2p._client), cast("asyncio.subprocess.Process | None", p2p._child)
    if client is not None:
        # Calls that wait for the daemon would otherwise stay pending for ever.
        for call in list(client.control._pending_calls.values()):
            if not call.done():
                call.set_exception(P2PDaemonError("p2pd was stopped"))
    with contextlib.suppress(Exception):
        p2p._terminate()
    if child is not None:
        await _reap(child, grace_s)
    tasks = [task for task in (p2p._listen_task, p2p._reader_task) if task is not None]
    if tasks:  # from Python 3.12 on a server waits for its connections when it is closed
        await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)
    run_folder.remove_sockets(folder)


async def _reap(child: asyncio.subprocess.Process, grace_s: float) -> None:
    try:
        async with asyncio.timeout(grace_s):
            await child.wait()
    except TimeoutError:  # stopped, or deaf to SIGTERM
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


async def _clean_up_failed_start(kind: type[_P2P], folder: Path) -> None:
    for p2p in kind.started:
        await _end(p2p, folder, STOP_TIMEOUT_S)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text.removeprefix("Connect failed. msg=") or type(error).__name__


def _explain_start(kind: type[_P2P], options: P2pdOptions, error: BaseException) -> str:
    lines = " | ".join(line for p2p in kind.started for line in getattr(p2p, "tail", ()))
    why = f"not ready within {options.start_timeout_s:g} s" if "in " in str(error) else _one_line(error)
    return f"p2pd did not start: {why}; its last lines: {lines or '(none)'}"
