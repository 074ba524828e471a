"""Seeds and their causes, duplicate identities, ports, and a p2pd that is slow or broken."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path

import pytest

from atoll.protocol.identity import Identity
from atoll.protocol.swarm import (
    DuplicateIdentity,
    PortInUse,
    SeedCause,
    Swarm,
    SwarmError,
    dial_seeds,
)
from atoll.protocol.swarm._hivemind import P2PD_BINARY
from atoll.protocol.swarm.limits import raise_open_file_limit
from atoll.protocol.swarm.p2pd import P2pd, P2pdOptions
from atoll.protocol.swarm.reachability import UNMEASURED

from .swarm_lab import LOOPBACK, RUN, Lab, until

GHOST = Identity.from_seed(b"\7" * 32).peer_id
SILENT = Identity.from_seed(b"\6" * 32).peer_id
"""Another than the ghost, since p2pd dials all addresses that it was told of a peer."""


def script(folder: Path, code: str) -> tuple[str, ...]:
    path = folder / "fake_p2pd.py"
    path.write_text(code)
    return (sys.executable, "-I", str(path))


async def test_each_seed_is_reported_with_its_own_cause_and_the_node_starts(lab: Lab, tmp_path: Path) -> None:
    good = await lab.start("good")
    other_run = await lab.start("other", run_id="cd" * 32)
    options = P2pdOptions(lab.key("bare"), lab.identity("bare").peer_id, tmp_path, "/x/", LOOPBACK)
    bare = await P2pd.start(options)
    bare_address = (await bare.identify(2.0))[0]
    with socket.socket() as silent, socket.socket() as closed:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        closed.bind(("127.0.0.1", 0))
        ports = silent.getsockname()[1], closed.getsockname()[1]
        seeds = {
            good.addresses[0]: SeedCause.ANSWERED,
            f"/ip4/127.0.0.1/tcp/{ports[1]}/p2p/{GHOST}": SeedCause.REFUSED,
            f"/ip4/127.0.0.1/tcp/{ports[0]}/p2p/{SILENT}": SeedCause.TIMED_OUT,
            good.addresses[0].replace(good.peer_id, GHOST): SeedCause.WRONG_PEER_ID,
            other_run.addresses[0]: SeedCause.WRONG_RUN,
            f"{bare_address}/p2p/{bare.options.peer_id}": SeedCause.NOT_ATOLL,
            f"/dns4/nowhere.invalid/tcp/1/p2p/{GHOST}": SeedCause.NAME_NOT_FOUND,
            "/ip4/127.0.0.1/tcp/1": SeedCause.INVALID_ADDRESS,
        }
        node = await lab.start("node", *seeds)
    await bare.stop()
    assert {result.address: result.cause for result in node.seed_results} == seeds
    assert all("\n" not in result.detail for result in node.seed_results)
    assert lab.kinds().count("seed") == len(seeds)
    assert "identity free, OK" in next(event.text for event in lab.events if event.kind == "identity")
    assert good.peer_id in node.health().connected_peers


async def test_the_doctor_dials_without_a_node(lab: Lab) -> None:
    seed = await lab.start("a")
    results = await dial_seeds([seed.addresses[0], f"/ip4/127.0.0.1/tcp/1/p2p/{GHOST}"], RUN, timeout_s=10.0)
    assert [result.cause for result in results] == [SeedCause.ANSWERED, SeedCause.REFUSED]


async def test_without_any_seed_alive_a_known_peer_is_enough(lab: Lab) -> None:
    friend = await lab.start("friend")
    known = {friend.peer_id: (friend.addresses[0],)}
    node = await lab.start("node", f"/ip4/127.0.0.1/tcp/1/p2p/{GHOST}", known_peers=known)
    assert [result.cause for result in node.seed_results] == [SeedCause.REFUSED]
    await node.transport.send(friend.peer_id, b"hello")
    assert await lab.received(friend) == (node.peer_id, b"hello")


async def test_a_seed_that_starts_late_is_met(lab: Lab) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"/ip4/127.0.0.1/tcp/{reserved.getsockname()[1]}"
    seed_id = lab.identity("seed").peer_id
    node = await lab.start("node", f"{address}/p2p/{seed_id}")
    assert not node.health().connected_peers
    await lab.start("seed", listen=(address,))
    await until(lambda: seed_id in node.health().connected_peers)


async def test_a_second_node_with_the_same_key_refuses_and_the_first_is_not_disturbed(lab: Lab) -> None:
    seed = await lab.start("seed")
    first = await lab.start("first", seed)
    await first.transport.send(seed.peer_id, b"before")
    with pytest.raises(DuplicateIdentity, match=r"first\.key.*key of its own"):
        await lab.start("first", seed)
    await first.transport.send(seed.peer_id, b"after")
    await seed.transport.send(first.peer_id, b"still you")
    assert [await lab.received(seed) for _ in range(2)] == [(first.peer_id, b"before"), (first.peer_id, b"after")]
    assert await lab.received(first) == (seed.peer_id, b"still you")


async def test_a_copy_of_the_only_seeds_key_is_refused_too(lab: Lab) -> None:
    seed = await lab.start("seed")
    with pytest.raises(DuplicateIdentity):
        await lab.start("seed", seed)


async def test_only_the_given_address_is_announced(lab: Lab) -> None:
    node = await lab.start("a", announce=("/ip4/203.0.113.5/tcp/4001",))
    assert node.addresses == (f"/ip4/203.0.113.5/tcp/4001/p2p/{node.peer_id}",)


async def test_a_seed_may_be_given_by_host_name(lab: Lab) -> None:
    seed = await lab.start("seed")
    node = await lab.start("node", seed.addresses[0].replace("/ip4/127.0.0.1", "/dns4/localhost"))
    assert [result.cause for result in node.seed_results] == [SeedCause.ANSWERED]


async def test_a_node_restarts_with_its_key_at_once(lab: Lab) -> None:
    seed = await lab.start("seed")
    first = await lab.start("first", seed)
    await first.stop()
    again = await lab.start("first", seed)
    await again.transport.send(seed.peer_id, b"back")
    assert await lab.received(seed) == (again.peer_id, b"back")


async def test_a_port_in_use_gives_one_error_that_names_port_and_option(lab: Lab) -> None:
    """NET-10."""
    first = await lab.start("a")
    taken = first.addresses[0].split("/p2p/")[0]
    port = taken.rsplit("/", 1)[1]
    with pytest.raises(PortInUse, match=rf"port {port} .*another port"):
        await lab.start("b", listen=(taken,))


async def test_a_slow_p2pd_is_waited_for(lab: Lab, tmp_path: Path) -> None:
    """NET-06."""
    code = f"import os, sys, time\ntime.sleep(0.5)\nos.execv({str(P2PD_BINARY)!r}, ['p2pd', *sys.argv[1:]])"
    node = await lab.start("a", p2pd_command=script(tmp_path, code), start_timeout_s=60.0)
    assert node.health().alive


async def test_a_p2pd_that_never_gets_ready_is_retried_then_reported(lab: Lab, tmp_path: Path) -> None:
    """NET-06."""
    code = "import time\nprint('waiting for the moon', flush=True)\ntime.sleep(60)"
    with pytest.raises(SwarmError, match=r"not ready within 2\.5 s.*waiting for the moon.*2 attempts"):
        await lab.start("a", p2pd_command=script(tmp_path, code), start_timeout_s=1.25, num_start_attempts=2)


async def test_a_p2pd_that_fails_is_reported_with_its_last_lines(lab: Lab, tmp_path: Path) -> None:
    """NET-06."""
    code = "import sys\nprint('no entropy')\nprint('giving up')\nsys.exit(3)"
    with pytest.raises(SwarmError, match=r"status 3.*no entropy \| giving up"):
        await lab.start("a", p2pd_command=script(tmp_path, code), num_start_attempts=1)


async def test_a_p2pd_for_another_platform_is_named(lab: Lab, tmp_path: Path) -> None:
    binary = tmp_path / "p2pd"
    binary.write_bytes(b"\x7fELF" + b"\0" * 60)
    binary.chmod(0o755)
    with pytest.raises(SwarmError, match=r"cannot run .*p2pd: Exec format error"):
        await lab.start("a", p2pd_command=(str(binary),), num_start_attempts=1)


async def test_reachability_is_confirmed_by_others_or_named_with_the_port(lab: Lab) -> None:
    seed = await lab.start("seed")
    node = await lab.start("node", seed)
    assert node.reachable
    assert node.health().reachability == "confirmed by 1 of 1 peers"
    closed = 1
    node._listen = (f"/ip4/127.0.0.1/tcp/{closed}",)
    node._position.verdict = UNMEASURED
    await node._check_reachability(node._transport, node._connected)
    assert not node.reachable
    assert "TCP port 1 is closed at 127.0.0.1" in node.health().reachability


async def test_starting_waits_for_no_time_limit(lab: Lab) -> None:
    seed = await lab.start("seed")
    began_s = time.monotonic()
    await lab.start("node", seed)
    assert time.monotonic() - began_s < 20.0


async def test_a_start_that_is_cancelled_leaves_nothing(lab: Lab) -> None:
    seed = await lab.start("seed")
    for delay_s in (0.05, 0.3, 0.5):
        starting = asyncio.create_task(Swarm.start(lab.settings("node", seeds=(seed.addresses[0],))))
        _, pending = await asyncio.wait({starting}, timeout=delay_s)
        if pending:
            starting.cancel()
            await asyncio.wait({starting})
        else:
            await starting.result().stop()
    await until(lambda: sum(1 for path in lab.runtime.iterdir()) == 1)


def test_too_low_a_limit_of_open_files_is_named() -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_open_file_limit(limits[0])
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
