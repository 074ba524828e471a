"""The node's network settings, and how reachability reads in the log, the API and on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.node import network
from atoll.node.commands.status import _paths_text, _reach_text
from atoll.node.journal import Journal
from atoll.node.settings import load_settings
from atoll.node.snapshot import NetworkInfo
from atoll.node.status import StatusBoard
from atoll.node.telemetry import Telemetry
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.spec import Genesis, MembershipConfig
from atoll.protocol.swarm import SwarmEvent

ME = Identity.from_seed(bytes(32)).peer_id
CLOSED = "TCP port 4040 of your router (45.45.45.9) does not lead here, as 2 peers measured"
FIX = "To fix: forward TCP port 4040 to this machine in the router."


def test_by_default_all_addresses_of_both_families_are_listened_on() -> None:
    """NET-02."""
    found = network.listen_addresses("", 4001, use_quic=False, has_ip6=True)
    assert found == ("/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001")
    assert network.listen_addresses("", 4001, use_quic=False, has_ip6=False) == ("/ip4/0.0.0.0/tcp/4001",)


@pytest.mark.parametrize(("host", "family"), [("10.0.0.1", "ip4"), ("::1", "ip6")])
def test_one_address_with_quic(host: str, family: str) -> None:
    found = network.listen_addresses(host, 4001, use_quic=True, has_ip6=True)
    assert found == (f"/{family}/{host}/tcp/4001", f"/{family}/{host}/udp/4001/quic-v1")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("", None)])
def test_whether_a_node_is_a_home_is_a_setting_and_measured_by_default(
    text: str, value: bool | None, tmp_path: Path
) -> None:
    environ = {"ATOLL_BEHIND_ROUTER": text, "XDG_CONFIG_HOME": str(tmp_path)}
    assert load_settings(environ=environ).behind_router is value


def test_net_01_that_nobody_gets_in_stays_on_the_dashboard_until_somebody_does(tmp_path: Path) -> None:
    board, journal = StatusBoard(), Journal(tmp_path / "journal.sqlite")
    telemetry = Telemetry(board, journal, json_lines=False)
    network.tell(telemetry, SwarmEvent("reachability", CLOSED, fix=FIX))
    (alert,) = board.snapshot().alerts
    assert (alert.code, alert.severity, alert.fix) == ("not_reachable", "warning", FIX)
    assert CLOSED in alert.text
    network.tell(telemetry, SwarmEvent("reachability", "confirmed by 2 of 2 peers"))
    assert board.snapshot().alerts == ()
    journal.close()


@pytest.mark.parametrize(
    ("wish", "listen_port", "ports"),
    [("auto", 4001, (14001, 0)), ("auto", 0, (0,)), ("auto", 60_000, (0,)), ("off", 4001, ()), (4010, 4001, (4010,))],
)
def test_the_direct_port_follows_the_port_unless_it_is_named(wish, listen_port: int, ports: tuple[int, ...]) -> None:
    assert network.direct_ports(wish, listen_port) == ports


@pytest.mark.parametrize(("text", "value"), [("off", "off"), ("auto", "auto"), ("4002", 4002), ("", "auto")])
def test_the_direct_port_is_a_setting(text: str, value: object, tmp_path: Path) -> None:
    environ = {"ATOLL_DIRECT_PORT": text, "XDG_CONFIG_HOME": str(tmp_path)}
    assert load_settings(environ=environ).direct_port == value


def test_caps_are_set_in_mbit_per_second_and_kept_in_bytes() -> None:
    settings = load_settings({"max_upload_mbit_s": 20.0}, environ={"HOME": "/nowhere"})
    membership = MembershipConfig(roster=(ME,))
    genesis = Genesis(
        name="caps", protocol_version=1, initial_state="0" * 64, operators=(ME,), model={}, membership=membership
    )
    found = network.swarm_settings(settings, genesis, ME, {})
    assert (found.upload_bytes_per_s, found.download_bytes_per_s) == (2_500_000, None)


def test_the_way_that_a_peers_data_take_is_journalled_when_it_changes(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    said = SwarmEvent("path", "bulk data to …AAAAA go over encrypted TCP", PeerId("A"))
    network.tell(Telemetry(StatusBoard(), journal, json_lines=False), said)
    (row,) = journal.events()
    assert (row["point"], row["text"], row["data"]) == ("path", said.text, {"peer": "A"})
    journal.close()


def test_status_says_which_way_bulk_data_go() -> None:
    assert _paths_text(NetworkInfo().model_dump()) == ""
    found = NetworkInfo(num_direct=2, num_libp2p=1, num_relay_only=0)
    assert _paths_text(found.model_dump()) == "2 over encrypted TCP, 1 over libp2p"


def test_status_says_whether_others_reach_the_node_who_measured_it_and_the_remedy() -> None:
    assert _reach_text(NetworkInfo().model_dump()) == ""
    home = NetworkInfo(is_reachable=False, reachability=CLOSED, reachability_fix=FIX, is_relayed=True)
    assert _reach_text(home.model_dump()) == f"no, through relays — {CLOSED}. {FIX}"
    public = NetworkInfo(is_reachable=True, reachability="confirmed by 1 of 1 peers")
    assert _reach_text(public.model_dump()) == "yes — confirmed by 1 of 1 peers"
