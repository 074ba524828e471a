"""An internet in network namespaces: public hosts, and homes behind routers that translate addresses.

Addresses look public (45.45.45.0/24 and 2a45::/64), because libp2p's AutoNAT disregards private and documentation
ranges; they exist only inside the namespaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

from atoll.protocol.identity import Identity
from atoll.protocol.swarm import SwarmSettings

from .swarm_lab import RUN

Router = Literal["cone", "symmetric"]
"""``cone`` keeps the port of an outgoing connection whoever it goes to, ``symmetric`` takes a random one for each."""

NODE = """
import asyncio, json, sys, time
from atoll.protocol.swarm import Swarm, SwarmSettings
from atoll.protocol.transport import PeerUnreachable, StreamClosed

FRAME = 1 << 20

def say(**values):
    print(json.dumps(values), flush=True)

async def push(swarm, peer, num_frames):
    started_s = time.monotonic()
    stream = await swarm.transport.open(peer, "span")
    opened_s = time.monotonic()
    for _ in range(num_frames):
        await stream.write(bytes(FRAME))
    await stream.write(b"")
    num_bytes = int(await stream.read(64))
    await stream.close()
    seconds = time.monotonic() - opened_s
    return {"bytes": num_bytes, "mb_per_s": num_bytes / 1e6 / seconds, "opened_s": opened_s - started_s,
            "path": swarm.transport.paths.kind(peer)}

async def answer(swarm, what, rest):
    if what == "connect":
        await swarm.connect(*rest)
        return True
    if what == "send":
        await swarm.transport.send(rest[0], rest[1].encode())
        return True
    if what == "push":
        return await push(swarm, *rest)
    if what == "is_met_by":
        return swarm.is_met_by(rest[0])
    health = swarm.health()
    return {"reachable": health.reachable, "reachability": health.reachability, "direct": health.unrelayed_peers,
            "relay_only": health.relay_only_peers, "fix": health.reachability_fix, "connected": health.connected_peers,
            "addresses": health.addresses, "seeds": [r.cause for r in swarm.seed_results]}

async def main():
    swarm = await Swarm.start(SwarmSettings(**json.loads(sys.argv[1])), lambda event: say(event=event.text))
    async def receive(peer, message):
        say(received=message.decode(), peer=peer)
    async def sink(stream):
        num_bytes = 0
        while frame := await stream.read(FRAME):
            num_bytes += len(frame)
        await stream.write(str(num_bytes).encode())
    swarm.transport.on_message(receive)
    swarm.transport.serve("span", sink)
    say(addresses=swarm.addresses)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        what, *rest = json.loads(line)
        try:
            say(done=await answer(swarm, what, rest))
        except (PeerUnreachable, StreamClosed) as error:
            say(done=error.why)
    await swarm.stop()

asyncio.run(main())
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def in_namespace(name: str, *command: str) -> None:
    subprocess.run(["ip", "netns", "exec", name, *command], check=True, capture_output=True)


def why_no_translation() -> str:
    """Empty if namespaces with address translation can be made here, else what is missing."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if missing := [name for name in ("ip", "iptables", "sysctl") if not shutil.which(name)]:
        return f"needs {' and '.join(missing)}"
    name = f"atoll-nat-probe-{os.getpid()}"
    try:
        ip("netns", "add", name)
        in_namespace(name, "iptables", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE", "--random-fully")
    except (subprocess.CalledProcessError, OSError) as error:
        return f"cannot translate addresses in a namespace: {getattr(error, 'stderr', error)}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return ""


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

    def public_host(self, number: int, *, ip6_only: bool = False) -> str:
        """Namespace of a host with the address 45.45.45.(number), or 2a45::(number)."""
        name = self._namespace(f"host{number}")
        ip("link", "add", f"w{number}", "netns", self.wan, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", self.wan, "link", "set", f"w{number}", "master", "br0", "up")
        address = f"2a45::{number}/64" if ip6_only else f"45.45.45.{number}/24"
        ip("-n", name, "addr", "add", address, "dev", "eth0", *(["nodad"] if ip6_only else []))
        ip("-n", name, "link", "set", "eth0", "up")
        return name

    def home(self, number: int, router_kind: Router = "cone", *, forwards: int | None = None) -> str:
        """Namespace of a home behind a router with the address 45.45.45.(number).

        ``forwards``: the TCP port of the router that leads to the home's port 4001, if one does.
        """
        router = self.public_host(number)
        name = self._namespace(f"home{number}")
        ip("link", "add", "lan", "netns", router, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", router, "addr", "add", f"192.168.{number}.1/24", "dev", "lan")
        ip("-n", router, "link", "set", "lan", "up")
        ip("-n", name, "addr", "add", f"192.168.{number}.2/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "route", "add", "default", "via", f"192.168.{number}.1")
        in_namespace(router, "sysctl", "-w", "net.ipv4.ip_forward=1")
        random = ["--random-fully"] if router_kind == "symmetric" else []
        in_namespace(router, "iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE", *random)
        if forwards is not None:
            to = ("-j", "DNAT", "--to-destination", f"192.168.{number}.2:4001")
            in_namespace(
                router, *("iptables", "-t", "nat", "-A", "PREROUTING", "-i", "eth0"), *("-p", "tcp"),
                *("--dport", str(forwards)), *to,
            )  # fmt: skip
            in_namespace(router, "iptables", "-A", "FORWARD", "-p", "tcp", "--dport", "4001", "-j", "ACCEPT")
        # Like a home router: nothing comes in that was not asked for, and nothing is answered (a reset in answer to the
        # first packet of a hole punch would make a conntrack entry, and the home's own packet another port).
        state = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
        for chain in ("FORWARD", "INPUT"):
            in_namespace(router, "iptables", "-A", chain, "-i", "eth0", *state)
            in_namespace(router, "iptables", "-A", chain, "-i", "eth0", "-j", "DROP")
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
        self.events: list[str] = []
        self.reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            said = json.loads(line)
            if "event" in said:
                self.events.append(said["event"])
            else:
                (self.received if "received" in said else self.answers).put_nowait(said)

    async def ask(self, *what: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        async with asyncio.timeout(90):
            return (await self.answers.get())["done"]

    async def health(self) -> dict[str, Any]:
        return await self.ask("health")

    async def until(self, found: Callable[[dict[str, Any]], Any], timeout_s: float = 60.0) -> dict[str, Any]:
        """Poll the node's health until ``found`` is true of it."""
        health: dict[str, Any] = {}
        try:
            async with asyncio.timeout(timeout_s):
                while not found(health := await self.health()):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s} s; health {health}; events {self.events}") from None
        return health

    async def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                await self.process.wait()
        if self.process.returncode is None:
            self.process.kill()
        await self.reader

    async def message(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            return await self.received.get()


LISTEN = ("/ip4/0.0.0.0/tcp/4001", "/ip4/0.0.0.0/udp/4001/quic-v1")


class Nodes:
    """The nodes of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[Node] = []

    async def start(self, namespace: str, seeds: list[str] | tuple[str, ...] = (), **changes: Any) -> Node:
        key = self.folder / f"{namespace}.key"
        identity = Identity.load_or_create(key)
        values = {"listen": LISTEN, "direct_timeout_s": 10.0, "seeds": tuple(seeds), **changes}
        settings = SwarmSettings(identity_path=key, run_id=RUN, runtime_folder=self.folder / "run", **values)
        process = await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", namespace, sys.executable, "-c", NODE, settings.model_dump_json()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        node = Node(process, identity.peer_id)
        self.all.append(node)
        async with asyncio.timeout(120):
            await node.answers.get()
        return node

    async def seeds(self, internet: Internet, count: int, **changes: Any) -> list[str]:
        """Addresses of ``count`` public seeds that know each other."""
        hosts = [internet.public_host(number) for number in range(1, count + 1)]
        ids = [Identity.load_or_create(self.folder / f"{host}.key").peer_id for host in hosts]
        texts = [f"/ip4/45.45.45.{number}/tcp/4001/p2p/{peer}" for number, peer in enumerate(ids, 1)]
        await asyncio.gather(*(self.start(host, texts, is_seed=True, **changes) for host in hosts))
        return texts

    async def stop(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.all))


@contextlib.asynccontextmanager
async def internet_and_nodes(folder: Path) -> AsyncIterator[tuple[Internet, Nodes]]:
    """Everything that is started and made inside is ended and removed."""
    internet, nodes = Internet(), Nodes(folder)
    try:
        yield internet, nodes
    finally:
        await nodes.stop()
        internet.remove()
