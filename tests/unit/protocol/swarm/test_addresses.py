"""Multiaddresses without libp2p."""

from __future__ import annotations

import socket

import pytest

from atoll.protocol.identity import Identity
from atoll.protocol.swarm import addresses

PEER = Identity.from_seed(b"\1" * 32).peer_id
DIRECT = [
    "/ip4/203.0.113.5/tcp/4001",
    "/ip6/2001:db8::1/tcp/4001",
    "/ip4/127.0.0.1/udp/9/quic-v1",
    "/dns4/seed.example.org/tcp/443",
    f"/ip4/203.0.113.5/tcp/4001/p2p/{PEER}",
]


@pytest.mark.parametrize("text", DIRECT)
def test_an_address_survives_its_binary_form(text: str) -> None:
    assert addresses.from_bytes(addresses.to_bytes(text)) == text


def test_a_relayed_address_carries_the_raw_multihash_that_p2pd_accepts() -> None:
    text = f"/ip4/203.0.113.5/tcp/4001/p2p/{PEER}/p2p-circuit"
    data = addresses.to_bytes(text)
    assert bytes.fromhex("a503") + b"\x26\x00\x24\x08\x01\x12\x20" in data
    assert addresses.from_bytes(data) == text
    assert addresses.is_relayed(text)


@pytest.mark.parametrize(
    "text",
    ["", "203.0.113.5:4001", "/ip4", "/ip4/300.1.1.1/tcp/1", "/ip4/1.2.3.4/tcp/70000", "/onion/x", "/ip4/1.2.3.4/tcp/x",
     "/ip6/1.2.3.4/tcp/1", "/" + "a" * 300],
)  # fmt: skip
def test_a_malformed_address_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        addresses.to_bytes(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"\x04\x7f", b"\x06\x01", b"\xff\xff\xff\xff\xff\xff", b"\xa5\x03\x7f\x00", b"\x80"])
def test_truncated_binary_addresses_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        addresses.from_bytes(data)


def test_who_can_use_an_address_is_told_from_its_text() -> None:
    assert addresses.reach("/ip4/127.0.0.1/tcp/1") == "loopback"
    assert addresses.reach("/ip4/172.17.0.2/tcp/1") == "private"
    assert addresses.reach("/ip4/8.8.8.8/tcp/1") == "public"
    assert addresses.reach("/dns4/example.org/tcp/1") == "name"
    assert addresses.reach(f"/ip4/8.8.8.8/tcp/1/p2p/{PEER}/p2p-circuit") == "relay"


def test_the_peer_id_is_split_off() -> None:
    assert addresses.split_peer(f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}") == ("/ip4/1.2.3.4/tcp/1", PEER)
    assert addresses.split_peer("/ip4/1.2.3.4/tcp/1") == ("/ip4/1.2.3.4/tcp/1", None)


@pytest.mark.parametrize(("kind", "form"), [(socket.SOCK_STREAM, "tcp/{}"), (socket.SOCK_DGRAM, "udp/{}/quic-v1")])
def test_a_port_in_use_is_named_together_with_the_option(kind: socket.SocketKind, form: str) -> None:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(addresses.PortInUse, match=rf"port {port} .*already in use.*another port"):
            addresses.check_free("/ip4/127.0.0.1/" + form.format(port))
    addresses.check_free("/ip4/127.0.0.1/" + form.format(port))
    addresses.check_free("/ip4/127.0.0.1/tcp/0")
