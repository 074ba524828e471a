"""The simulator's network: how long transfers take, who hears whom, and what is lost."""

from __future__ import annotations

import random

import pytest

from atoll.protocol.simulator import Link, Network, NetworkModel, Path, people

A, B, C = people(3)


def network(**model) -> Network:
    return Network(NetworkModel(latency_s=(0.0, 0.0), **model), random.Random(0))


def test_a_transfer_takes_its_bits_over_the_slower_of_both_lines():
    net = network(links={A: Link(up_bps=8e6), B: Link(down_bps=4e6)})
    assert net.book(A, B, 1e6, now=10.0) == 12.0


def test_an_uplink_is_shared_by_all_that_its_peer_sends():
    net = network(link=Link(up_bps=8e6))
    assert [net.book(A, peer, 1e6, now=0.0) for peer in (B, C)] == [1.0, 2.0]


def test_a_downlink_is_shared_by_all_that_send_to_its_peer():
    net = network(link=Link(down_bps=8e6))
    assert [net.book(peer, C, 1e6, now=0.0) for peer in (A, B)] == [1.0, 2.0]


def test_both_directions_of_a_line_are_independent():
    net = network(link=Link(8e6, 8e6))
    assert [net.book(A, B, 1e6, now=0.0), net.book(B, A, 1e6, now=0.0)] == [1.0, 1.0]


def test_a_path_between_regions_limits_each_pair_and_adds_its_latency():
    links = {A: Link(region="usa"), B: Link(region="eu"), C: Link(region="eu")}
    net = network(links=links, paths={("usa", "eu"): Path(latency_s=0.5, bps=8e6)})
    assert [net.book(A, B, 1e6, now=0.0), net.book(A, C, 1e6, now=0.0), net.book(B, C, 1e6, now=0.0)] == [1.5, 1.5, 0.0]


def test_what_a_crashed_peer_was_sending_holds_nobody_up():
    net = network(link=Link(up_bps=8e6))
    net.book(A, B, 1e9, now=0.0)
    net.release(A, now=5.0)
    assert net.book(A, C, 1e6, now=5.0) == 6.0


def test_bytes_are_counted_on_both_sides():
    net = network()
    net.book(A, B, 1000, now=0.0)
    assert (net.sent_bytes[A], net.received_bytes[B], net.sent_bytes[B]) == (1000, 1000, 0)


def test_two_peers_that_only_dial_out_meet_over_a_relay_and_exchange_no_bulk():
    home = Link(is_dial_out_only=True)
    direct, relayed = (network(links={A: home, B: home}, has_relay=relay) for relay in (False, True))
    assert not direct.carries(A, B)
    assert relayed.carries(A, B)
    assert not relayed.connects(A, B)
    assert relayed.connects(A, C)
    assert relayed.connects(C, A)


def test_a_partition_cuts_between_groups_until_it_heals():
    net = network()
    net.partition([A], [B, C])
    assert [net.carries(*pair) for pair in ((A, B), (B, A), (B, C))] == [False, False, True]
    assert net.delays_s(A, B) == ()
    net.heal()
    assert net.carries(A, B)


@pytest.mark.parametrize(("loss", "duplication", "low", "high"), [(0.3, 0.0, 0.65, 0.75), (0.0, 0.5, 1.45, 1.55)])
def test_messages_are_lost_and_doubled_as_often_as_said(loss, duplication, low, high):
    net = network(loss=loss, duplication=duplication)
    copies = [len(net.delays_s(A, B)) for _ in range(10_000)]
    assert low < sum(copies) / len(copies) < high
