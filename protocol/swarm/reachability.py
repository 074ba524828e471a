"""Whether others can dial this node: what peers measured, what it comes to, and what would mend it.

Only a dial-back counts: a node cannot see its router from inside. Peers dial the TCP ports at the address under which
they see the node (`seeds.Answerer`), never at one that it names.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass

from .. import transport as contract
from ..identity import PeerId
from . import addresses, seeds
from .libp2p_transport import Libp2pTransport

NUM_ASKED = 3


@dataclass(frozen=True)
class Verdict:
    """Whether others can dial this node."""

    reachable: bool | None
    """None: nobody has measured it."""
    text: str
    """One sentence: who confirmed it, or which port failed where."""
    fix: str = ""
    measured_by: tuple[PeerId, ...] = ()
    is_translated: bool = False
    """Whether the address that peers see is not one of this machine's own: a router stands between."""


UNMEASURED = Verdict(None, "nobody has confirmed it yet")


def judge(ports: Sequence[int], own_hosts: Collection[str], answers: Mapping[PeerId, seeds.Answer]) -> Verdict:
    """What the peers' answers come to.

    Peers on the internet outweigh peers in the same house, who reach a home that nobody else does.
    """
    heard = {peer: answer for peer, answer in answers.items() if answer.observed_host}
    outside = {peer: answer for peer, answer in heard.items() if _is_public(answer.observed_host)}
    heard = outside or heard
    if not heard or not ports:
        return UNMEASURED
    by = tuple(heard)
    num_confirming = sum(bool(answer.open_ports) for answer in heard.values())
    if num_confirming:
        return Verdict(True, f"confirmed by {num_confirming} of {len(heard)} peers", measured_by=by)
    host = next(iter(heard.values())).observed_host
    return _closed(ports, host, host not in own_hosts, by)


def _closed(ports: Sequence[int], host: str, is_translated: bool, by: tuple[PeerId, ...]) -> Verdict:
    names = f"TCP port {', '.join(map(str, ports))}"
    who = "1 peer" if len(by) == 1 else f"{len(by)} peers"
    if is_translated:
        text = f"{names} of your router ({host}) does not lead here, as {who} measured"
        fix = f"To fix: forward {names} to this machine in the router, or leave it: the node then goes through relays."
    else:
        text = f"{names} is closed at {host}, as {who} measured"
        fix = f"To fix: open {names} in this machine's firewall."
    return Verdict(False, text, fix, by, is_translated)


def _is_public(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return False


def dialled_ports(listen: Sequence[str], announce: Sequence[str]) -> tuple[int, ...]:
    """TCP ports that others would dial: the announced ones if any are, for the router may forward another port."""
    found = (addresses.endpoint(text) for text in announce or listen)
    ports = {where.port for where in found if where is not None and where.transport == "tcp" and where.port}
    return tuple(sorted(ports)[: seeds.MAX_DIAL_BACK_PORTS])


def witnesses(connected: Mapping[PeerId, Sequence[str]]) -> list[PeerId]:
    """Whom to ask: directly connected peers, those at public addresses first."""
    direct = {
        peer: {addresses.reach(text) for text in texts if not addresses.is_relayed(text)}
        for peer, texts in connected.items()
    }
    return sorted((peer for peer, kinds in direct.items() if kinds), key=lambda peer: "public" not in direct[peer])


async def measure(
    transport: Libp2pTransport, connected: Mapping[PeerId, Sequence[str]], ports: Sequence[int], timeout_s: float
) -> Verdict:
    """Ask up to `NUM_ASKED` peers to dial back. Never raises."""
    question = seeds.Question(kind="dial_back", ports=tuple(ports))

    async def ask(peer: PeerId) -> seeds.Answer | None:
        try:
            return await seeds.ask(transport, peer, question, timeout_s)
        except contract.PeerUnreachable:
            return None

    asked = witnesses(connected)[:NUM_ASKED] if ports else []
    answers = await asyncio.gather(*map(ask, asked))
    heard = {peer: answer for peer, answer in zip(asked, answers, strict=True) if answer is not None}
    own_hosts = {answer.observed_host for answer in heard.values() if _is_own(answer.observed_host)}
    return judge(ports, own_hosts, heard)


def _is_own(host: str) -> bool:
    """Whether an address is one of this machine's: others cannot be bound to."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


@contextlib.asynccontextmanager
async def open_ports(listen: Sequence[str]) -> AsyncGenerator[tuple[str, ...]]:
    """Accept and drop TCP connections where p2pd will listen, so that others can try before it runs.

    Yields ``listen`` with a free port in place of each TCP port 0. Addresses that cannot be opened are left as they
    are: p2pd will say so.
    """
    async with contextlib.AsyncExitStack() as stack:
        kept: list[str] = []
        for text in listen:
            where = addresses.endpoint(text)
            if where is not None and where.transport == "tcp":
                with contextlib.suppress(OSError):
                    server = await asyncio.start_server(_drop, where.host, where.port)
                    stack.callback(server.close)
                    text = addresses.with_port(text, server.sockets[0].getsockname()[1])
            kept.append(text)
        yield tuple(kept)


def _drop(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def unroutable(announced: Sequence[str], connected: Mapping[PeerId, Sequence[str]]) -> str:
    """A warning if peers are on the internet and nothing that is announced leads there; empty otherwise."""
    kinds = {addresses.reach(text) for text in announced}
    has_peers_outside = any(addresses.reach(text) == "public" for texts in connected.values() for text in texts)
    if not has_peers_outside or kinds & {"public", "name", "relay"}:
        return ""
    shown = ", ".join(announced[:4]) or "nothing"
    return f"no announced address can be reached from the internet ({shown}); announce one that can"


class Position:
    """Where this node stands: open to everybody, or a home behind a router that goes through relays. Pure.

    One wrong measurement must not restart p2pd, so the position changes after two of the same outcome in a row. An
    announced address is the user's word that others get in: it is measured and reported, and nothing is changed.
    """

    def __init__(self, behind_router: bool | None, is_announced: bool) -> None:
        self.is_home = behind_router is True
        self.verdict = UNMEASURED
        self._is_fixed = behind_router is not None or is_announced
        self._num_against = 0

    @property
    def reachable(self) -> bool:
        """As far as it is known: a home is not and others are, until peers have measured it.

        Who says of itself that it is behind a router is taken at its word, and gets nothing that others depend on.
        """
        if self.is_home and self._is_fixed:
            return False
        return not self.is_home if self.verdict.reachable is None else self.verdict.reachable

    def hear(self, verdict: Verdict) -> bool:
        """Take in a measurement; whether it is news. One that nobody answered changes nothing."""
        if verdict.reachable is None:
            return False
        is_against = verdict.reachable == self.is_home
        self._num_against = self._num_against + 1 if is_against else 0
        is_news = (verdict.reachable, verdict.text) != (self.verdict.reachable, self.verdict.text)
        self.verdict = verdict
        return is_news

    @property
    def is_doubtful(self) -> bool:
        """Whether the last measurement speaks against the position, so that another one should follow soon."""
        return self._num_against > 0 and not self._is_fixed

    @property
    def should_move(self) -> bool:
        return self._num_against >= 2 and not self._is_fixed

    def move(self, num_relays: int) -> str:
        """Home becomes open, or the other way round; the sentence that says so."""
        self.is_home = not self.is_home
        self._num_against = 0
        if not self.is_home:
            return "others can reach this node now; it does without relays"
        if num_relays:
            return f"others reach this node through relays on {num_relays} seeds from now on"
        return "no seed offers to relay: this node takes part with outgoing connections only"
