"""p2pd dies or hangs, the daemon is killed, several nodes share a host."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from atoll.protocol import transport as contract
from atoll.protocol.swarm import Swarm

from .swarm_lab import Lab, make_heartbeat, until

CHILD = """
import asyncio, json, signal, sys
from atoll.protocol.swarm import Swarm, SwarmSettings

async def main():
    settings = SwarmSettings(**json.loads(sys.argv[1]))
    swarm = await Swarm.start(settings)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(json.dumps([swarm.health().p2pd_pid, swarm.addresses]), flush=True)
    await stopped.wait()
    if len(sys.argv) == 2:
        await swarm.stop()

if len(sys.argv) > 3:
    import uvloop
    uvloop.install()
asyncio.run(main())
"""


def start_process(lab: Lab, name: str, *extra: str) -> tuple[subprocess.Popen[str], int]:
    lab.key(name)
    command = [sys.executable, "-c", CHILD, lab.settings(name).model_dump_json(), *extra]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())[0]


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def wait_for_restart(swarm: Swarm, num_restarts: int = 1) -> None:
    await until(lambda: swarm.health().num_restarts == num_restarts and swarm.health().alive)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_p2pd_that_dies_or_hangs_is_replaced_and_traffic_resumes(lab: Lab, how: signal.Signals) -> None:
    a = await lab.start("a")
    b = await lab.start("b", a)
    await b.directory.publish(make_heartbeat(lab.identity("b")), 0)
    await b.transport.send(a.peer_id, b"before")
    await lab.received(a)
    old_pid, addresses = b.health().p2pd_pid, b.addresses
    assert old_pid is not None
    os.kill(old_pid, how)
    await wait_for_restart(b)
    assert b.health().p2pd_pid != old_pid
    assert b.addresses == addresses
    assert not is_running(old_pid)
    assert [kind for kind in lab.kinds() if kind.startswith("p2pd")] == ["p2pd_failed", "p2pd_restarted"]
    await b.transport.send(a.peer_id, b"after")
    assert await lab.received(a) == (b.peer_id, b"after")
    await a.transport.send(b.peer_id, b"and back")
    assert await lab.received(b) == (a.peer_id, b"and back")
    assert len(await b.directory.records()) == 1
    b.transport.serve("span", lambda stream: stream.close())
    await (await a.transport.open(b.peer_id, "span")).close()


async def test_a_seed_whose_p2pd_restarts_meets_its_peers_again(lab: Lab) -> None:
    a = await lab.start("a")
    b = await lab.start("b", a)
    pid = a.health().p2pd_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await wait_for_restart(a)
    await a.transport.send(b.peer_id, b"I am back")
    assert await lab.received(b) == (a.peer_id, b"I am back")


async def test_calls_during_a_restart_wait_for_it(lab: Lab) -> None:
    a = await lab.start("a")
    b = await lab.start("b", a)
    pid = b.health().p2pd_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: "p2pd_failed" in lab.kinds())
    await b.transport.send(a.peer_id, b"patient")
    assert await lab.received(a) == (b.peer_id, b"patient")


async def test_a_stopped_peer_does_not_count_as_open(lab: Lab) -> None:
    a = await lab.start("a", health_timeout_s=60.0, health_interval_s=60.0)
    b = await lab.start("b", a, connect_timeout_s=4.0)
    pid = a.health().p2pd_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(contract.PeerUnreachable, match="no answer within"):
        await b.transport.open(a.peer_id, "span")
    os.kill(pid, signal.SIGCONT)


async def test_a_stalled_stream_ends_within_the_progress_limit(lab: Lab) -> None:
    a = await lab.start("a", progress_timeout_s=60.0)
    b = await lab.start("b", a, progress_timeout_s=3.0)
    stall = asyncio.Event()

    async def handler(_stream: contract.ByteStream) -> None:
        await stall.wait()

    a.transport.serve("span", handler)
    stream = await b.transport.open(a.peer_id, "span")
    with pytest.raises(contract.StreamClosed, match="did not read"):
        await asyncio.gather(*[write_all(stream, 30)])
    stall.set()


async def write_all(stream: contract.ByteStream, num_frames: int) -> None:
    for _ in range(num_frames):
        await stream.write(bytes(1 << 20))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_no_p2pd_and_no_folder_survives_a_killed_daemon(lab: Lab, loop: str) -> None:
    process, p2pd_pid = await asyncio.to_thread(start_process, lab, "a", "x", *(["uvloop"] * (loop == "uvloop")))
    process.kill()
    process.communicate()
    await until(lambda: not is_running(p2pd_pid) and not any(lab.runtime.iterdir()))


async def test_a_start_sweeps_what_is_left_where_no_guard_could_run(lab: Lab) -> None:
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await owner.wait()
    left = lab.runtime / "atoll-left"
    left.mkdir(parents=True)
    (left / "owner.json").write_text(json.dumps({"owner_pid": owner.pid, "owner_start": 1}))
    await lab.start("a")
    assert not left.exists()


async def test_sigterm_ends_everything_without_a_word(lab: Lab) -> None:
    process, p2pd_pid = await asyncio.to_thread(start_process, lab, "a")
    process.terminate()
    _, errors = await asyncio.to_thread(process.communicate, timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert not is_running(p2pd_pid)
    assert not any(lab.runtime.iterdir())


async def test_leaving_without_stop_leaves_no_process_and_no_traceback(lab: Lab) -> None:
    process, p2pd_pid = await asyncio.to_thread(start_process, lab, "a", "do not stop")
    process.terminate()
    _, errors = await asyncio.to_thread(process.communicate, timeout=60)
    assert "Traceback" not in errors
    await until(lambda: not is_running(p2pd_pid))


async def test_stopping_after_p2pd_died_is_clean(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    a = await lab.start("a", health_interval_s=60.0)
    pid = a.health().p2pd_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await a.stop()
    await a.stop()
    assert not [record for record in caplog.records if record.exc_info]


async def test_stopping_one_of_two_nodes_leaves_the_others_p2pd_alone(lab: Lab) -> None:
    a, b = await asyncio.gather(lab.start("a"), lab.start("b"))
    pid = b.health().p2pd_pid
    await a.stop()
    assert b.health().p2pd_pid == pid
    assert is_running(pid or 0)
    records = [json.loads(path.read_text()) for path in lab.runtime.glob("*/owner.json")]
    assert [record["child_pid"] for record in records] == [pid]


async def test_the_control_sockets_are_private_and_not_in_the_temporary_folder(lab: Lab) -> None:
    await lab.start("a")
    (folder,) = lab.runtime.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert len([*folder.glob("*.sock")]) == 2


async def test_p2pd_is_started_without_upnp_relay_service_or_the_users_key_in_its_arguments(lab: Lab) -> None:
    a = await lab.start("a")
    seed = await lab.start("seed", is_seed=True)
    arguments = psutil.Process(a.health().p2pd_pid).cmdline()
    assert {"-natPortMap=0", "-relayService=0", "-relayDiscovery=0"} <= {*arguments}
    assert "-relayService=1" in psutil.Process(seed.health().p2pd_pid).cmdline()
    assert lab.key("a").read_bytes().hex()[8:72] not in " ".join(arguments)
