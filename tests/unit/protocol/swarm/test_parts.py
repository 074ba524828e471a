"""Small decisions of the swarm, and its import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atoll.protocol.identity import PeerId
from atoll.protocol.swarm import SeedCause, SwarmSettings
from atoll.protocol.swarm.addresses import keep_ports
from atoll.protocol.swarm.p2pd import P2pd, P2pdError, P2pdOptions
from atoll.protocol.swarm.seeds import classify_dial, start_with_retries, tcp_cause

TEXTS = {
    SeedCause.WRONG_PEER_ID: "failed to negotiate security protocol: peer id mismatch: expected A, not B",
    SeedCause.REFUSED: "dial tcp4 127.0.0.1:9: connect: connection refused",
    SeedCause.TIMED_OUT: "failed to negotiate security protocol: context deadline exceeded",
    SeedCause.UNROUTABLE: "dial tcp6: connect: network is unreachable",
    SeedCause.NOT_ATOLL: "failed to negotiate security protocol: message did not have trailing newline",
    SeedCause.FAILED: "something new",
}


@pytest.mark.parametrize("cause", TEXTS)
def test_a_failed_dials_text_tells_its_cause(cause: SeedCause) -> None:
    assert classify_dial(TEXTS[cause]) is cause


async def test_a_host_name_that_does_not_resolve_is_told_apart() -> None:
    assert await tcp_cause("does-not-exist.invalid", 4001, 5.0) is SeedCause.NAME_NOT_FOUND


def test_chosen_ports_are_kept_for_restarts() -> None:
    listen = ("/ip4/0.0.0.0/tcp/0", "/ip4/0.0.0.0/udp/0/quic-v1", "/ip6/::/tcp/4001")
    found = ["/ip4/127.0.0.1/tcp/1111", "/ip4/127.0.0.1/udp/2222/quic-v1", "/ip4/192.0.2.2/tcp/1111"]
    assert keep_ports(listen, found) == ("/ip4/0.0.0.0/tcp/1111", "/ip4/0.0.0.0/udp/2222/quic-v1", "/ip6/::/tcp/4001")


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_importing_the_swarm_loads_neither_torch_nor_the_rest_of_hivemind() -> None:
    code = (
        "import sys, atoll.protocol.swarm\n"
        "print('torch' in sys.modules, 'hivemind.averaging' in sys.modules, 'hivemind.dht.dht' in sys.modules)"
    )
    assert run_python(code).split() == ["False", "False", "False"]


def test_hivemind_prints_nothing_to_the_user() -> None:
    code = (
        "import logging, atoll.protocol.swarm\n"
        "logging.getLogger('hivemind.dht.node').warning('noise')\n"
        "print(logging.getLevelName(logging.WARNING))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("WARNING\n", "")


async def test_net_06_each_attempt_to_start_p2pd_may_take_twice_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_s: list[float] = []

    async def start(options: P2pdOptions) -> str:
        limits_s.append(options.start_timeout_s)
        if options.start_timeout_s < 60:  # a machine that needs a minute
            raise P2pdError("not ready")
        return "p2pd"

    monkeypatch.setattr(P2pd, "start", start)
    options = P2pdOptions(tmp_path / "key", PeerId("12D3KooW"), tmp_path, "/x/")
    settings = SwarmSettings(identity_path=tmp_path / "key", run_id="ab" * 32)
    assert await start_with_retries(options, settings) == "p2pd"
    assert limits_s == [20.0, 40.0, 80.0]
