"""Homes behind routers, in network namespaces: relays, hole punching, and what each router lets through.

Figures of the design (protocol.md, "Homes behind routers") are measured again by ``ATOLL_NAT=1``, which prints them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from .nat_lab import Internet, Node, Nodes, internet_and_nodes, why_no_translation

pytestmark = pytest.mark.e2e
is_opted_in = pytest.mark.skipif(not os.environ.get("ATOLL_NAT"), reason="long; set ATOLL_NAT=1")
RELAY_ONLY = "only through a relay, no direct connection within"


@pytest.fixture
async def net(tmp_path: Path) -> AsyncIterator[tuple[Internet, Nodes]]:
    if missing := why_no_translation():
        pytest.skip(f"NOT TESTED, homes behind routers: {missing}")
    async with internet_and_nodes(tmp_path) as made:
        yield made


def relayed(health: dict[str, Any]) -> list[str]:
    return [text for text in health["addresses"] if "/p2p-circuit" in text]


async def meet(home: Node, other: Node) -> None:
    """``home`` learns the relayed addresses of ``other``, as it does from heartbeats, and says something to it."""
    known = relayed(await other.until(relayed))
    assert await home.ask("connect", other.peer, known) is True
    assert await home.ask("send", other.peer, "hello") is True
    assert await other.message() == {"received": "hello", "peer": home.peer}


# Whether a punch comes through within the paths' ten seconds is a matter of the machine's load.
@is_opted_in
async def test_homes_punch_through_cone_routers_and_know_where_they_cannot(net: tuple[Internet, Nodes]) -> None:
    """With four public peers, none of which forwards a port; nobody is told that it is a home: peers measure it."""
    internet, nodes = net
    seeds = await nodes.seeds(internet, 4)
    a, b, c, d = await asyncio.gather(
        nodes.start(internet.home(11, "cone"), seeds),
        nodes.start(internet.home(12, "cone"), seeds),
        nodes.start(internet.home(13, "symmetric"), seeds),
        nodes.start(internet.home(14, "symmetric"), seeds),
    )
    health = await a.health()
    assert not health["reachable"]
    assert health["reachability"].startswith("TCP port 4001 of your router (45.45.45.11) does not lead here, as ")
    assert health["fix"].startswith("To fix: forward TCP port 4001 to this machine in the router")
    seed = nodes.all[0]
    for sender, receiver in ((a, seed), (seed, a)):  # over the home's own connection
        pushed = await sender.ask("push", receiver.peer, 32)
        assert pushed["bytes"] == 32 << 20
        assert pushed["path"] == "direct", "the home dials, for its own streams and for those of others"
        print(f"home and public peer: {pushed['mb_per_s']:.0f} MB/s")
    # The three pairs at once: bulk waits for a direct connection, which comes for cone and cone only.
    await meet(a, b)
    await meet(a, c)
    await meet(c, d)
    punched, *refused = await asyncio.gather(
        a.ask("push", b.peer, 32), c.ask("push", a.peer, 1), d.ask("push", c.peer, 1)
    )
    assert punched["bytes"] == 32 << 20
    assert punched["path"] == "libp2p"
    assert punched["opened_s"] < 10
    print(f"punched {punched['opened_s']:.2f} s after the first relayed message, {punched['mb_per_s']:.0f} MB/s")
    assert all(why.startswith(RELAY_ONLY) for why in refused), refused
    assert set((await c.health())["relay_only"]) == {a.peer, d.peer}
    assert (await a.health())["relay_only"] == [c.peer]
    assert await a.ask("is_met_by", [b.peer, seed.peer]), "a home that has punched through to all can own spans"
    assert not await a.ask("is_met_by", [b.peer, c.peer])
    again_s = asyncio.get_running_loop().time()
    assert (await c.ask("push", a.peer, 1)).startswith(RELAY_ONLY)
    assert asyncio.get_running_loop().time() - again_s < 3, "a relay-only peer is refused at once"
    await asyncio.gather(*(node.stop() for node in nodes.all[:4]))  # every seed, and with them every relay, dies
    assert await a.ask("send", b.peer, "still here") is True
    assert (await b.message())["received"] == "still here"
    pushed = await b.ask("push", a.peer, 8)
    assert pushed["bytes"] == 8 << 20
    assert pushed["path"] == "libp2p"


async def test_net_04_messages_pass_a_relay_that_is_cut_short(net: tuple[Internet, Nodes]) -> None:
    """With one public peer the relay keeps libp2p's limit of 128 KiB; control messages go on over new connections."""
    internet, nodes = net
    seeds = await nodes.seeds(internet, 1)
    dead = f"/ip4/45.45.45.99/tcp/4001/p2p/{seeds[0].rpartition('/')[2]}"
    seeds = [seeds[0], dead, seeds[0]]  # a dead and a doubled address must not delay the reservation
    a, b = await asyncio.gather(
        nodes.start(internet.home(11), seeds, behind_router=True, direct_timeout_s=1.0),
        nodes.start(internet.home(12), seeds, behind_router=True, direct_timeout_s=1.0),
    )
    await b.until(relayed, 10)
    await meet(a, b)
    texts = [f"{number} {'x' * 32_000}" for number in range(6)]
    for text in texts:
        while await a.ask("send", b.peer, text) is not True:  # noqa: ASYNC110 - the sender is told, and says it again
            await asyncio.sleep(0.2)
    heard = [(await b.message())["received"] for _ in texts]
    assert heard == texts
    why = await a.ask("push", b.peer, 1)
    while not why.startswith(RELAY_ONLY):  # the relay has cut the connection just now: a new one says what it is
        assert why == "the peer ended it or died"
        await asyncio.sleep(0.2)
        why = await a.ask("push", b.peer, 1)


@is_opted_in
async def test_bulk_passes_a_relay_when_a_second_public_peer_confirms_the_seed(net: tuple[Internet, Nodes]) -> None:
    internet, nodes = net
    seeds = await nodes.seeds(internet, 2)
    a, b = await asyncio.gather(
        nodes.start(internet.home(11, "symmetric"), seeds, bulk_over_relay=True),
        nodes.start(internet.home(12, "symmetric"), seeds, bulk_over_relay=True),
    )
    await meet(a, b)
    async with asyncio.timeout(60):  # AutoNAT finds the seeds public after about 22 s
        while isinstance(pushed := await a.ask("push", b.peer, 32), str):  # noqa: ASYNC110 - another process
            await asyncio.sleep(1)
    assert pushed["bytes"] == 32 << 20
    assert pushed["path"] == "relayed"
    print(f"over the relay {pushed['mb_per_s']:.0f} MB/s")


@is_opted_in
async def test_without_a_relay_a_home_takes_part_with_outgoing_connections(net: tuple[Internet, Nodes]) -> None:
    internet, nodes = net
    host = internet.public_host(1)
    public = await nodes.start(host)
    address = f"/ip4/45.45.45.1/tcp/4001/p2p/{public.peer}"
    home = await nodes.start(internet.home(11), [address])
    assert any("with outgoing connections only" in text for text in home.events), home.events
    assert not relayed(await home.health())
    pushed = await public.ask("push", home.peer, 4)
    assert (pushed["bytes"], pushed["path"]) == (4 << 20, "direct")


async def test_net_03_an_announced_address_behind_a_forwarded_port_is_the_only_one_announced(
    net: tuple[Internet, Nodes],
) -> None:
    internet, nodes = net
    seeds = await nodes.seeds(internet, 1)
    announce = ("/ip4/45.45.45.11/tcp/4100",)
    wrong = ("/ip4/45.45.45.12/tcp/4100",)
    a, b = await asyncio.gather(
        nodes.start(internet.home(11, forwards=4100), seeds, announce=announce),
        nodes.start(internet.home(12), seeds, announce=wrong),
    )
    health = await a.health()
    assert health["addresses"] == [f"{announce[0]}/p2p/{a.peer}"]
    assert health["reachable"]
    assert health["reachability"] == "confirmed by 1 of 1 peers"
    health = await b.health()
    assert not health["reachable"]
    assert health["reachability"].startswith("TCP port 4100 of your router (45.45.45.12) does not lead here")
    assert await b.ask("connect", a.peer, list(announce)) is True
    pushed = await b.ask("push", a.peer, 4)
    assert (pushed["bytes"], pushed["path"]) == (4 << 20, "libp2p"), "its router forwards no direct port"


async def test_peers_with_ipv6_only_meet(net: tuple[Internet, Nodes]) -> None:
    internet, nodes = net
    listen = ("/ip6/::/tcp/4001",)
    seed = await nodes.start(internet.public_host(1, ip6_only=True), listen=listen, is_seed=True)
    address = f"/ip6/2a45::1/tcp/4001/p2p/{seed.peer}"
    unroutable = f"/ip4/45.45.45.9/tcp/4001/p2p/{seed.peer}"
    node = await nodes.start(internet.public_host(2, ip6_only=True), [address, unroutable], listen=listen)
    health = await node.health()
    assert health["reachable"]
    assert health["reachability"] == "confirmed by 1 of 1 peers"
    assert health["seeds"] == ["answered", "unroutable"]
    assert f"/ip6/2a45::2/tcp/4001/p2p/{node.peer}" in health["addresses"]
    pushed = await seed.ask("push", node.peer, 4)
    assert (pushed["bytes"], pushed["path"]) == (4 << 20, "direct")
