"""Multiaddresses as text and bytes, and what can be known of one without libp2p.

An own codec for the few protocols that peers listen on, because hivemind's encodes ``/p2p`` as a CIDv1, which p2pd
rejects in ``connect`` (relayed addresses contain one). Numbers are from the multicodec table.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from ..identity import base58_decode, base58_encode

_CODES = {
    "ip4": 4,
    "tcp": 6,
    "ip6": 41,
    "dns": 53,
    "dns4": 54,
    "dns6": 55,
    "udp": 273,
    "p2p-circuit": 290,
    "p2p": 421,
    "quic": 460,
    "quic-v1": 461,
}
_NAMES = {code: name for name, code in _CODES.items()}
_WITHOUT_VALUE = {"p2p-circuit", "quic", "quic-v1"}
_FIXED_BYTES = {"ip4": 4, "ip6": 16, "tcp": 2, "udp": 2}
_HOSTS = {"ip4", "ip6", "dns", "dns4", "dns6"}
MAX_ADDRESS_CHARS = 256


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes((number,))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise ValueError("truncated address")
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number, at


def parse(text: str) -> list[tuple[str, str]]:
    """Parts of an address, for example ``[("ip4", "127.0.0.1"), ("tcp", "4001")]``. Raises ValueError in one line."""
    fields = text.split("/")
    is_plain = text.isascii() and text.isprintable() and not {" ", "%"} & set(text)
    if len(text) > MAX_ADDRESS_CHARS or len(fields) < 2 or fields[0] or not is_plain:
        raise ValueError(f"not an address such as /ip4/203.0.113.5/tcp/4001: {text[:80]!r}")
    parts: list[tuple[str, str]] = []
    rest = fields[1:]
    while rest:
        name = "p2p" if rest[0] == "ipfs" else rest[0]
        if name not in _CODES:
            raise ValueError(f"address {text[:80]!r}: unknown protocol {name[:20]!r}")
        if name not in _WITHOUT_VALUE and len(rest) < 2:
            raise ValueError(f"address {text[:80]!r}: nothing after /{name}")
        size = 1 if name in _WITHOUT_VALUE else 2
        parts.append((name, rest[1] if size == 2 else ""))
        rest = rest[size:]
    return parts


def _value_to_bytes(name: str, value: str) -> bytes:
    if name in ("ip4", "ip6"):
        packed = ipaddress.ip_address(value).packed
        if len(packed) != _FIXED_BYTES[name]:
            raise ValueError(f"{value} is not an {name} address")
        return packed
    if name in ("tcp", "udp"):
        if not value.isdigit():  # int() takes more: signs, spaces, underscores
            raise ValueError(f"{value} is not a port")
        return int(value).to_bytes(2, "big")
    return base58_decode(value) if name == "p2p" else value.encode()


def to_bytes(text: str) -> bytes:
    """Binary form, as p2pd expects it. Raises ValueError."""
    out = bytearray()
    for name, value in parse(text):
        out += _varint(_CODES[name])
        if name in _WITHOUT_VALUE:
            continue
        try:
            encoded = _value_to_bytes(name, value)
        except (ValueError, OverflowError):
            raise ValueError(f"address {text[:80]!r}: {value[:40]!r} is not a value of /{name}") from None
        out += encoded if name in _FIXED_BYTES else _varint(len(encoded)) + encoded
    return bytes(out)


def _value_to_text(name: str, value: bytes) -> str:
    if name in ("ip4", "ip6"):
        return str(ipaddress.ip_address(value))
    if name in ("tcp", "udp"):
        return str(int.from_bytes(value, "big"))
    return base58_encode(value) if name == "p2p" else value.decode()


def from_bytes(data: bytes) -> str:
    """Text of a binary address. Raises ValueError on protocols that atoll does not use, and on truncation."""
    at, text = 0, ""
    while at < len(data):
        code, at = _read_varint(data, at)
        if code not in _NAMES:
            raise ValueError(f"unknown protocol code {code}")
        name = _NAMES[code]
        text += f"/{name}"
        if name in _WITHOUT_VALUE:
            continue
        size = _FIXED_BYTES.get(name)
        if size is None:
            size, at = _read_varint(data, at)
        if at + size > len(data):
            raise ValueError("truncated address")
        text += "/" + _value_to_text(name, data[at : at + size])
        at += size
    return text


def split_peer(text: str) -> tuple[str, str | None]:
    """``/ip4/…/tcp/…/p2p/ID`` to (address without the last id, id or None)."""
    head, separator, peer = text.rpartition("/p2p/")
    if separator and peer and "/" not in peer:
        return head, peer
    return text, None


@dataclass(frozen=True)
class Endpoint:
    """Where an address listens, if it is a plain one."""

    host: str
    port: int
    transport: str
    """``tcp`` or ``udp``."""


def endpoint(text: str) -> Endpoint | None:
    """Host and port of a direct address; None for relayed ones and other forms."""
    parts = parse(text)
    if len(parts) < 2 or any(name == "p2p-circuit" for name, _ in parts):
        return None
    (host_kind, host), (transport, port) = parts[0], parts[1]
    if host_kind not in _HOSTS or transport not in ("tcp", "udp"):
        return None
    return Endpoint(host, int(port), transport)


def with_port(text: str, port: int) -> str:
    """The same address with another port."""
    fields = text.split("/")
    fields[4] = str(port)
    return "/".join(fields)


def keep_ports(listen: tuple[str, ...], found: Sequence[str]) -> tuple[str, ...]:
    """``listen`` with every port 0 replaced by the port that p2pd chose, as seen in its own"""
    kept: list[str] = []
    for text in listen:
        where = endpoint(text)
        if where is not None and where.port == 0:
            family = parse(text)[0][0]
            same = [
                w.port
                for other in found
                if (w := endpoint(other)) and w.transport == where.transport
                and parse(other)[0][0] == family and _tail(other) == _tail(text)
            ]  # fmt: skip
            text = with_port(text, same[0]) if same else text
        kept.append(text)
    return tuple(kept)


def not_listening(listen: Sequence[str], found: Sequence[str]) -> list[str]:
    """Addresses of ``listen`` whose port is not among p2pd's own: it starts although it could not listen on some."""
    ports = {(w.transport, w.port) for w in map(endpoint, found) if w}
    return [text for text in listen if (w := endpoint(text)) and (w.transport, w.port) not in ports]


def _tail(text: str) -> list[str]:
    return [name for name, _ in parse(text)[2:]]


def is_relayed(text: str) -> bool:
    """Whether the address leads through a relay."""
    return "/p2p-circuit" in text


def reach(text: str) -> str:
    """Who can use an address: ``loopback``, ``private``, ``public``, ``relay`` or ``name`` (a host name)."""
    if is_relayed(text):
        return "relay"
    kind, host = parse(text)[0]
    if kind not in ("ip4", "ip6"):
        return "name"
    ip = ipaddress.ip_address(host)
    if ip.is_loopback or ip.is_unspecified:
        return "loopback"
    return "public" if ip.is_global else "private"


MAX_RELAYED = 4
_BY_USE = {"public": 0, "name": 0, "relay": 1, "private": 2, "loopback": 3}


def by_use(texts: Sequence[str]) -> tuple[str, ...]:
    """What others can use first, TCP before UDP (a third of the CPU per byte); at most `MAX_RELAYED` relays."""

    def is_udp(text: str) -> bool:
        return any(name == "udp" for name, _ in parse(text))

    ordered = sorted(texts, key=lambda text: (_BY_USE[reach(text)], is_udp(text)))
    too_many = [text for text in ordered if is_relayed(text)][MAX_RELAYED:]
    return tuple(text for text in ordered if text not in too_many)


class PortInUse(OSError):
    """A listen port is taken; the message names it and the option to change."""


class DirectPortInUse(PortInUse):
    """The port for connections beside libp2p is."""


def check_free(text: str) -> None:
    """Raise `PortInUse` if the address cannot be listened on. Port 0 is always free.

    p2pd binds with SO_REUSEPORT, so two daemons of one user would silently share a port; this probe does not.
    """
    where = endpoint(text)
    if where is None or where.port == 0:
        return
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    kind = socket.SOCK_STREAM if where.transport == "tcp" else socket.SOCK_DGRAM
    with socket.socket(family, kind) as probe:
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not held up by TIME_WAIT after a restart
        try:
            probe.bind((where.host, where.port))
        except OSError as error:
            raise _explain_bind(text, where, error) from None


def _explain_bind(text: str, where: Endpoint, error: OSError) -> PortInUse:
    name = f"{where.transport} port {where.port}"
    if error.errno == errno.EADDRINUSE:
        why = f"{name} on {where.host} is already in use by another program"
    elif error.errno == errno.EACCES:
        why = f"{name} needs administrator rights"
    else:
        why = f"cannot listen on {text}: {error.strerror}"
    return PortInUse(f"{why}; choose another port, or 0 for a free one")
