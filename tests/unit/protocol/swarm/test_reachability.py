"""What peers' dial-backs come to, when a node changes its position, and which pairs count as relay-only."""

from __future__ import annotations

import pytest

from atoll.protocol.identity import PeerId
from atoll.protocol.swarm.addresses import MAX_RELAYED, by_use, not_listening
from atoll.protocol.swarm.paths import Paths
from atoll.protocol.swarm.reachability import (
    UNMEASURED,
    Position,
    Verdict,
    dialled_ports,
    judge,
    open_ports,
    unroutable,
    witnesses,
)
from atoll.protocol.swarm.seeds import Answer, usable_relays
from atoll.protocol.swarm.settings import SeedCause, SeedResult

A, B, C = PeerId("A"), PeerId("B"), PeerId("C")
RELAYED = "/ip4/45.45.45.1/tcp/4001/p2p/12D3KooWR5DZKSyQX5XCdnwhBEopvPzENzGbYWwTj7U2UwiqfDyF/p2p-circuit"
CLOSED, OPEN = Verdict(False, "closed", measured_by=(A,)), Verdict(True, "open", measured_by=(A,))


def answer(host: str, *ports: int) -> Answer:
    return Answer(run_id="ab", observed_host=host, open_ports=ports)


# --- the verdict


def test_one_peer_that_gets_in_confirms_the_node() -> None:
    verdict = judge([4001], (), {A: answer("45.45.45.9"), B: answer("45.45.45.9", 4001)})
    assert (verdict.reachable, verdict.text, verdict.fix) == (True, "confirmed by 1 of 2 peers", "")


def test_a_closed_port_behind_a_router_names_port_router_measurers_and_remedy() -> None:
    verdict = judge([4040], ("192.168.1.2",), {A: answer("45.45.45.9"), B: answer("45.45.45.9")})
    assert verdict.reachable is False
    assert verdict.text == "TCP port 4040 of your router (45.45.45.9) does not lead here, as 2 peers measured"
    assert verdict.fix.startswith("To fix: forward TCP port 4040 to this machine in the router")
    assert verdict.measured_by == (A, B)


def test_a_closed_port_of_the_own_address_names_the_firewall() -> None:
    verdict = judge([4040], ("45.45.45.9",), {A: answer("45.45.45.9")})
    assert verdict.text == "TCP port 4040 is closed at 45.45.45.9, as 1 peer measured"
    assert verdict.fix == "To fix: open TCP port 4040 in this machine's firewall."


def test_peers_in_the_same_house_do_not_make_a_home_reachable() -> None:
    verdict = judge([4001], (), {A: answer("192.168.1.2", 4001), B: answer("45.45.45.9")})
    assert verdict.reachable is False
    assert verdict.measured_by == (B,)
    assert judge([4001], (), {A: answer("192.168.1.2", 4001)}).reachable


@pytest.mark.parametrize("answers", [{}, {A: answer("")}])
def test_without_a_measurement_nothing_is_known(answers: dict[PeerId, Answer]) -> None:
    assert judge([4001], (), answers) == UNMEASURED
    assert judge([], (), {A: answer("45.45.45.9")}) == UNMEASURED


def test_the_announced_port_is_the_one_to_dial() -> None:
    listen = ("/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4002", "/ip4/0.0.0.0/udp/5/quic-v1", "/ip4/0.0.0.0/tcp/0")
    assert dialled_ports(listen, ()) == (4001, 4002)
    assert dialled_ports(listen, ("/dns4/example.org/tcp/4100",)) == (4100,)


def test_peers_on_the_internet_are_asked_first_and_relayed_ones_never() -> None:
    connected = {A: [RELAYED], B: ["/ip4/192.168.1.7/tcp/1"], C: ["/ip4/45.45.45.9/tcp/1", RELAYED]}
    assert witnesses(connected) == [C, B]


async def test_ports_are_open_while_they_are_measured_and_a_free_one_is_kept() -> None:
    async with open_ports(("/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1")) as (tcp, udp):
        assert dialled_ports((tcp,), ())
        async with open_ports((tcp,)) as taken:  # cannot be opened a second time: left for p2pd to say so
            assert taken == (tcp,)
    assert udp == "/ip4/127.0.0.1/udp/0/quic-v1"


def test_a_warning_says_that_nothing_announced_can_be_reached_from_the_internet() -> None:
    bridge = ("/ip4/172.17.0.2/tcp/4001", "/ip4/127.0.0.1/tcp/4001")
    outside, inside = {A: ["/ip4/45.45.45.9/tcp/1"]}, {A: ["/ip4/172.17.0.3/tcp/1"]}
    assert "172.17.0.2" in unroutable(bridge, outside)
    assert not unroutable(bridge, inside)
    assert not unroutable((*bridge, "/dns4/example.org/tcp/4001"), outside)
    assert not unroutable((*bridge, RELAYED), outside)


# --- the position


def test_two_closed_measurements_in_a_row_make_a_home_and_two_open_ones_undo_it() -> None:
    position = Position(None, is_announced=False)
    for verdict, is_home in ((CLOSED, True), (OPEN, False)):
        assert position.hear(verdict)
        assert position.is_doubtful
        assert not position.should_move
        assert not position.hear(verdict), "the same again is no news"
        assert position.should_move
        position.move(2)
        assert position.is_home is is_home
        assert not position.should_move


def test_a_wrong_measurement_between_right_ones_moves_nothing() -> None:
    position = Position(None, is_announced=False)
    for verdict in (CLOSED, OPEN, CLOSED, UNMEASURED, OPEN, CLOSED):
        position.hear(verdict)
        assert not position.should_move


@pytest.mark.parametrize(("behind_router", "is_announced"), [(True, False), (False, False), (None, True)])
def test_what_the_user_says_is_measured_but_not_overruled(behind_router: bool | None, is_announced: bool) -> None:
    position = Position(behind_router, is_announced)
    for verdict in (OPEN, OPEN, CLOSED, CLOSED, OPEN):
        position.hear(verdict)
        assert not position.should_move
    assert position.reachable is (behind_router is not True)


def test_until_peers_have_measured_a_home_is_closed_and_others_are_open() -> None:
    assert not Position(True, is_announced=False).reachable
    assert Position(None, is_announced=False).reachable


@pytest.mark.parametrize(("num_relays", "text"), [(2, "through relays on 2 seeds"), (0, "outgoing connections only")])
def test_a_move_says_how_others_reach_the_node(num_relays: int, text: str) -> None:
    assert text in Position(None, is_announced=False).move(num_relays)


def test_relays_are_seeds_that_answered_each_once() -> None:
    def result(peer: PeerId, address: str, cause: SeedCause, is_relay: bool) -> SeedResult:
        return SeedResult(address, peer, cause, "", is_relay)

    answered, refused = SeedCause.ANSWERED, SeedCause.REFUSED
    results = [result(A, "a", answered, True), result(A, "a2", answered, True), result(B, "b", answered, False)]
    assert usable_relays([*results, result(C, "c", refused, False)]) == ("a2",)


# --- pairs


def test_a_pair_counts_as_relay_only_after_its_time_and_no_longer_when_a_direct_connection_is_seen() -> None:
    paths, direct = Paths(settle_s=10.0), "/ip4/45.45.45.9/tcp/1"
    paths.see({A: [RELAYED], B: [direct, RELAYED]}, now_s=100.0)
    assert (paths.kind(A), paths.kind(B), paths.kind(C)) == ("relayed", "libp2p", None)
    assert not paths.is_relay_only(A, 109.9)
    assert paths.relay_only(110.0) == (A,)
    paths.see({}, now_s=111.0)
    paths.see({A: [RELAYED]}, now_s=112.0)
    assert paths.is_relay_only(A, 112.0), "a new relayed connection is no reason to wait again"
    paths.see({A: [RELAYED, direct]}, now_s=113.0)
    assert not paths.is_relay_only(A, 200.0)
    assert paths.unrelayed() == (A,)


def test_addresses_of_use_to_others_come_first_and_relays_are_few() -> None:
    relays = [RELAYED.replace("/4001/", f"/{port}/") for port in range(1, 9)]
    texts = ["/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.2/tcp/1", "/ip4/45.45.45.9/udp/1/quic-v1", *relays]
    ordered = by_use([*texts, "/ip4/45.45.45.9/tcp/1"])
    assert ordered[:2] == ("/ip4/45.45.45.9/tcp/1", "/ip4/45.45.45.9/udp/1/quic-v1")
    assert ordered[2 : 2 + MAX_RELAYED] == tuple(relays[:MAX_RELAYED])
    assert ordered[-2:] == ("/ip4/192.168.1.2/tcp/1", "/ip4/127.0.0.1/tcp/1")


def test_a_port_on_which_nothing_listens_is_named() -> None:
    assert not_listening(("/ip4/0.0.0.0/tcp/1", "/ip6/::/tcp/2"), ("/ip4/127.0.0.1/tcp/1",)) == ["/ip6/::/tcp/2"]
