"""Homes behind routers, in network namespaces: two public seeds and two homes behind address translation.

Addresses look public (45.45.45.0/24), because libp2p's AutoNAT disregards private and documentation ranges; they exist
only inside the namespaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atoll.protocol.identity import Identity
from atoll.protocol.swarm import SwarmSettings

from .swarm_lab import RUN

NODE = """
import asyncio, json, sys
from atoll.protocol.swarm import Swarm, SwarmSettings
from atoll.protocol.transport import PeerUnreachable

def say(**values):
    print(json.dumps(values), flush=True)

async def main():
    swarm = await Swarm.start(SwarmSettings(**json.loads(sys.argv[1])))
    async def receive(peer, message):
        say(received=message.decode(), peer=peer)
    async def sink(stream):
        while True:
            await stream.write(str(len(await stream.read(4 << 20))).encode())
    swarm.transport.on_message(receive)
    swarm.transport.serve("span", sink)
    say(addresses=swarm.addresses)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        what, *rest = json.loads(line)
        try:
            if what == "connect":
                await swarm.connect(*rest)
                say(done=True)
            elif what == "send":
                await swarm.transport.send(rest[0], rest[1].encode())
                say(done=True)
            elif what == "open":
                stream = await swarm.transport.open(rest[0], "span")
                await stream.write(bytes(1 << 20))
                say(done=(await stream.read(64)).decode())
            else:
                health = swarm.health()
                say(done=[health.reachable, health.reachability, health.direct_peers, swarm.addresses])
        except PeerUnreachable as error:
            say(done=error.why)
    await swarm.stop()

asyncio.run(main())
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def in_namespace(name: str, *command: str) -> None:
    subprocess.run(["ip", "netns", "exec", name, *command], check=True, capture_output=True)


def can_translate() -> bool:
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("iptables"):
        return False
    name = f"atoll-nat-probe-{os.getpid()}"
    try:
        ip("netns", "add", name)
        in_namespace(name, "iptables", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
    except (subprocess.CalledProcessError, OSError):
        return False
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return True


class Internet:
    """A bridge with public hosts, and routers that hide one home each."""

    def __init__(self) -> None:
        self.prefix = f"atoll{os.getpid()}-"
        self.names: list[str] = []
        self.wan = self._namespace("wan")
        ip("-n", self.wan, "link", "add", "br0", "type", "bridge")
        ip("-n", self.wan, "link", "set", "br0", "up")

    def _namespace(self, name: str) -> str:
        full = self.prefix + name
        ip("netns", "add", full)
        self.names.append(full)
        ip("-n", full, "link", "set", "lo", "up")
        return full

    def public_host(self, number: int) -> str:
        name = self._namespace(f"host{number}")
        ip("link", "add", f"w{number}", "netns", self.wan, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", self.wan, "link", "set", f"w{number}", "master", "br0", "up")
        ip("-n", name, "addr", "add", f"45.45.45.{number}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        return name

    def home(self, number: int) -> str:
        router = self.public_host(number)
        name = self._namespace(f"home{number}")
        ip("link", "add", "lan", "netns", router, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", router, "addr", "add", f"192.168.{number}.1/24", "dev", "lan")
        ip("-n", router, "link", "set", "lan", "up")
        ip("-n", name, "addr", "add", f"192.168.{number}.2/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "route", "add", "default", "via", f"192.168.{number}.1")
        in_namespace(router, "sysctl", "-w", "net.ipv4.ip_forward=1")
        in_namespace(router, "iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE")
        # Like a home router: nothing comes in that was not asked for.
        state = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
        in_namespace(router, "iptables", "-A", "FORWARD", "-i", "eth0", *state)
        in_namespace(router, "iptables", "-A", "FORWARD", "-i", "eth0", "-j", "DROP")
        return name

    def remove(self) -> None:
        for name in reversed(self.names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Node:
    """A swarm in a process of its own, inside a namespace."""

    def __init__(self, process: asyncio.subprocess.Process, peer: str) -> None:
        self.process, self.peer = process, peer
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            said = json.loads(line)
            (self.received if "received" in said else self.answers).put_nowait(said)

    async def ask(self, *what: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        async with asyncio.timeout(60):
            return (await self.answers.get())["done"]

    async def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                await self.process.wait()
        if self.process.returncode is None:
            self.process.kill()
        await self.reader


async def start_node(folder: Path, namespace: str, name: str, seeds: list[str], **changes: Any) -> Node:
    key = folder / name
    identity = Identity.create(key)
    settings = SwarmSettings(
        identity_path=key,
        run_id=RUN,
        runtime_folder=folder / "run",
        listen=("/ip4/0.0.0.0/tcp/4001", "/ip4/0.0.0.0/udp/4001/quic-v1"),
        seeds=tuple(seeds),
        direct_timeout_s=1.0,
        **changes,
    )
    process = await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", namespace, sys.executable, "-c", NODE, settings.model_dump_json()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    node = Node(process, identity.peer_id)
    async with asyncio.timeout(120):
        await node.answers.get()
    return node


pytestmark = pytest.mark.e2e


@pytest.fixture
async def internet() -> AsyncIterator[Internet]:
    if not can_translate():
        pytest.skip("needs root, iproute2 and iptables")
    made = Internet()
    try:
        yield made
    finally:
        made.remove()


async def test_homes_reach_public_peers_directly_and_each_other_by_messages(internet: Internet, tmp_path: Path) -> None:
    hosts, homes = [internet.public_host(1), internet.public_host(2)], [internet.home(11), internet.home(12)]
    nodes: list[Node] = []
    try:
        seeds: list[str] = []
        for number, host in enumerate(hosts, 1):
            seed = await start_node(tmp_path, host, f"seed{number}", seeds, is_seed=True)
            nodes.append(seed)
            seeds = [*seeds, f"/ip4/45.45.45.{number}/tcp/4001/p2p/{seed.peer}"]
        a, b = await asyncio.gather(
            *(start_node(tmp_path, home, home[-6:], seeds, behind_router=True) for home in homes)
        )
        nodes += [a, b]
        assert await nodes[0].ask("open", a.peer) == str(1 << 20)  # over the home's own connection
        reachable, why, _, _ = await a.ask("health")
        assert not reachable, why
        relayed = [f"{seeds[0]}/p2p-circuit"]
        for _ in range(20):  # the reservation takes about 15 s
            if await a.ask("connect", b.peer, relayed) is True:
                break
            await asyncio.sleep(2)
        assert await a.ask("send", b.peer, "from home to home") is True
        async with asyncio.timeout(60):
            assert (await b.received.get()) == {"received": "from home to home", "peer": a.peer}
        assert await a.ask("open", b.peer) == "only through a relay, no direct connection within 1 s"
        _, _, direct, _ = await a.ask("health")
        assert {*direct} == {seed.peer for seed in nodes[:2]}
    finally:
        for node in nodes:
            await node.stop()
