"""Bulk streams beside libp2p between real swarms, and over libp2p again when that does not work."""

from __future__ import annotations

import asyncio
import os
import signal

from atoll.protocol import transport as contract
from atoll.protocol.swarm import Swarm

from .swarm_lab import Lab, until
from .test_swarm_traffic import echo


async def exchange(here: Swarm, there: Swarm, num_bytes: int = 1 << 20) -> None:
    """One stream with a frame there and back."""
    stream = await here.transport.open(there.peer_id, "span")
    frame = os.urandom(num_bytes)
    _, got = await asyncio.gather(stream.write(frame), stream.read(contract.MAX_FRAME_BYTES))
    assert got == frame
    await stream.close()


def path(here: Swarm, there: Swarm) -> str | None:
    return here._transport.paths.kind(there.peer_id)


def paths_said(lab: Lab) -> list[str]:
    return [event.text.partition(" go ")[2] for event in lab.events if event.kind == "path"]


async def test_bulk_data_take_the_direct_path_both_ways_and_outlive_p2pd(lab: Lab) -> None:
    a = await lab.start("a")
    b = await lab.start("b", a)
    for swarm in (a, b):
        swarm.transport.serve("span", echo)
    await exchange(b, a)
    await exchange(a, b)
    assert (path(a, b), path(b, a)) == ("direct", "direct")
    await until(lambda: a.health().path(b.peer_id) == "direct")
    assert paths_said(lab) == ["over encrypted TCP", "over encrypted TCP"]
    stream = await b.transport.open(a.peer_id, "span")
    pid = b.health().p2pd_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await stream.write(b"still here")
    assert await stream.read(100) == b"still here"
    await until(lambda: b.health().num_restarts == 1 and b.health().alive)
    await exchange(b, a)
    await stream.close()


async def test_a_node_without_the_direct_path_gets_its_streams_over_libp2p(lab: Lab) -> None:
    a = await lab.start("a", direct_ports=())
    b = await lab.start("b", a)
    for swarm in (a, b):
        swarm.transport.serve("span", echo)
    await exchange(b, a)
    await exchange(a, b)
    assert (path(a, b), path(b, a)) == ("libp2p", "libp2p")
    assert a.health().direct_port == 0


async def test_a_home_dials_out_for_the_streams_of_others(lab: Lab) -> None:
    a = await lab.start("a", behind_router=False)
    home = await lab.start("b", a, behind_router=True)
    home.transport.serve("span", echo)
    await exchange(a, home)
    assert path(a, home) == "direct"
