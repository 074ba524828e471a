"""What a byte costs between two nodes on this machine, and how fast it goes, per path.

    libp2p_cpu_s_per_gb   CPU-seconds per 10⁹ bytes over a libp2p stream: both nodes and both p2pd
    direct_cpu_s_per_gb   the same beside libp2p (mutual TLS 1.3), the p2pd that idle meanwhile included
    tcp_cpu_s_per_gb      two processes with plain blocking sockets: no encryption, no frames, no event loop
    libp2p_mb_s, direct_mb_s, tcp_mb_s   10⁶ bytes per second of the same transfers
    libp2p_cap_20_mbit_s, direct_cap_20_mbit_s (and 200)   rate under an upload cap, in Mbit/s, beside the cap

Nodes are processes of their own with the swarm that `atoll join` starts, in the loop that it uses; frames are 1 MiB.
The paths take turns, and each figure is the median: load of the machine moves rates, and CPU-seconds a little.
Usage: python benchmarks/transport.py [--repeats 3] [--mib 512]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
from _figures import report
from _processes import CpuMeter

from atoll.protocol.identity import Identity
from atoll.protocol.swarm import Swarm, SwarmSettings
from atoll.protocol.transport import ByteStream

FRAME_BYTES = 1 << 20
PROTOCOL = "bench"
RUN_ID = "be" * 32
CAPS_MBIT_S = (20, 200)
CAPPED_S = 3.0

# --- a node in a process of its own -----------------------------------------------------------------------------------


async def swallow(stream: ByteStream) -> None:
    """Read so many frames as the first one says, then answer."""
    for _ in range(int.from_bytes(await stream.read(8), "big")):
        await stream.read(FRAME_BYTES)
    await stream.write(b"done")


async def send(swarm: Swarm, peer: Any, num_frames: int) -> dict[str, Any]:
    """Seconds until the peer has read ``num_frames``, and the path that they took."""
    frame, stream = os.urandom(FRAME_BYTES), await swarm.transport.open(peer, PROTOCOL)
    started_s = time.perf_counter()
    await stream.write(num_frames.to_bytes(8, "big"))
    for _ in range(num_frames):
        await stream.write(frame)
    await stream.read(4)
    seconds = time.perf_counter() - started_s
    await stream.close()
    return {"seconds": seconds, "path": swarm.health().path(peer)}


async def be_node(settings: SwarmSettings) -> None:
    """Answer commands on stdin until it ends."""
    swarm = await Swarm.start(settings)
    swarm.transport.serve(PROTOCOL, swallow)
    print(json.dumps({"peer": swarm.peer_id, "address": swarm.addresses[0]}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        print(json.dumps(await send(swarm, command["peer"], command["num_frames"])), flush=True)
    await swarm.stop()


class Process:
    """Something that answers each line with a line."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, __file__, *arguments]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._cpu = CpuMeter(self._child.pid)

    def answer(self) -> dict[str, Any]:
        """The next line that it prints."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"a process of the benchmark ended with exit code {self._child.wait()}")
        return json.loads(line)

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self._child.stdin is not None
        print(json.dumps(command), file=self._child.stdin, flush=True)
        return self.answer()

    def cpu_s(self) -> float:
        """CPU-seconds of it and its children up to now."""
        return self._cpu.read_s()

    def end(self) -> None:
        self._child.communicate(timeout=20.0)


@contextlib.contextmanager
def pair(folder: Path, **settings: Any) -> Iterator[tuple[Process, Process, str]]:
    """A sender, a receiver that it knows, and the receiver's peer id."""
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(node(folder, "receiver"))
        there = receiver.answer()
        sender = stack.enter_context(node(folder, "sender", seeds=[there["address"]], **settings))
        sender.answer()
        yield sender, receiver, there["peer"]


@contextlib.contextmanager
def node(folder: Path, name: str, **settings: Any) -> Iterator[Process]:
    key = folder / f"{name}.key"
    Identity.load_or_create(key)
    values = {"run_id": RUN_ID, "listen": ["/ip4/127.0.0.1/tcp/0"], "runtime_folder": str(folder), **settings}
    process = Process("--node", json.dumps({"identity_path": str(key), **values}))
    try:
        yield process
    finally:
        process.end()


# --- plain TCP --------------------------------------------------------------------------------------------------------


def be_tcp_receiver() -> None:
    """Swallow connections that begin with a length, and answer each."""
    buffer = bytearray(FRAME_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(json.dumps({"port": server.getsockname()[1]}), flush=True)
        server.settimeout(60.0)
        connection, _ = server.accept()
        with connection:
            left = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
            while left:
                left -= connection.recv_into(buffer, min(left, FRAME_BYTES))
            connection.sendall(b"done")
    sys.stdin.read()


def be_tcp_sender() -> None:
    """The other side, once it is told where."""
    print("{}", flush=True)
    command = json.loads(sys.stdin.readline())
    frame, num_bytes = os.urandom(FRAME_BYTES), command["num_frames"] * FRAME_BYTES
    with socket.create_connection(("127.0.0.1", command["port"])) as connection:
        started_s = time.perf_counter()
        connection.sendall(num_bytes.to_bytes(8, "big"))
        for _ in range(command["num_frames"]):
            connection.sendall(frame)
        connection.recv(4, socket.MSG_WAITALL)
        print(json.dumps({"seconds": time.perf_counter() - started_s}), flush=True)
    sys.stdin.read()


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(sender: Process, receiver: Process, num_frames: int, **command: Any) -> tuple[float, float, str]:
    """(CPU-seconds per GB, MB per second, path) of one transfer."""
    before_s = sender.cpu_s() + receiver.cpu_s()
    answer = sender.ask(num_frames=num_frames, **command)
    used_s = sender.cpu_s() + receiver.cpu_s() - before_s
    num_bytes = num_frames * FRAME_BYTES
    return used_s / num_bytes * 1e9, num_bytes / answer["seconds"] / 1e6, answer.get("path", "")


def measure_tcp(num_frames: int) -> tuple[float, float]:
    receiver, sender = Process("--tcp", "receiver"), Process("--tcp", "sender")
    port = receiver.answer()["port"]
    sender.answer()
    cost, rate, _ = measure(sender, receiver, num_frames, port=port)
    sender.end()
    receiver.end()
    return cost, rate


def compare(folder: Path, num_frames: int, repeats: int) -> None:
    """All three paths in turns."""
    found: dict[str, list[tuple[float, float]]] = {"tcp": [], "direct": [], "libp2p": []}
    with pair(folder, direct_ports=[]) as libp2p, pair(folder) as direct:
        for _ in range(repeats):
            found["tcp"].append(measure_tcp(num_frames))
            for name, (sender, receiver, peer) in (("direct", direct), ("libp2p", libp2p)):
                cost, rate, path = measure(sender, receiver, num_frames, peer=peer)
                if path != name:
                    raise SystemExit(f"the {name} path was to be measured, but the stream went over {path}")
                found[name].append((cost, rate))
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    for name, (cost, rate) in medians.items():
        against = medians["tcp"] if name != "tcp" else (None, None)
        details = {"repeats": repeats, "taken": "median", "mib": num_frames}
        report(f"{name}_cpu_s_per_gb", cost, "CPU-s/GB", reference=against[0], **details)
        report(f"{name}_mb_s", rate, "MB/s", reference=against[1], **details)


def hold_caps(folder: Path) -> None:
    """Rates under a cap, counted in the frames that have arrived."""
    for cap in CAPS_MBIT_S:
        num_frames = max(2, round(cap * 125_000 * CAPPED_S / FRAME_BYTES))
        for name, ports in (("direct", [0]), ("libp2p", [])):
            with pair(folder, direct_ports=ports, upload_bytes_per_s=cap * 125_000) as (sender, receiver, peer):
                _, rate, _ = measure(sender, receiver, num_frames, peer=peer)
            report(f"{name}_cap_{cap}_mbit_s", 8 * rate, "Mbit/s", reference=cap)


def main() -> None:
    """Measure everything, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mib", type=int, default=512, help="size of one transfer")
    parser.add_argument("--node", help=argparse.SUPPRESS)
    parser.add_argument("--tcp", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.node:
        uvloop.run(be_node(SwarmSettings.model_validate_json(arguments.node)))
    elif arguments.tcp:
        be_tcp_sender() if arguments.tcp == "sender" else be_tcp_receiver()
    else:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            compare(Path(folder), arguments.mib, arguments.repeats)
            hold_caps(Path(folder))


if __name__ == "__main__":
    main()
