"""S1 and S2 in the situations that break naive protocols; with a bug injected, the same situations find it."""

from __future__ import annotations

import pytest

from atoll.protocol.identity import PeerId
from atoll.protocol.messages import Commit, Heartbeat
from atoll.protocol.round_machine import Phase, Rules
from atoll.protocol.simulator import Soup, Violation, soup_genesis


class Half:
    """A wrong quorum: half of the roster is enough."""

    def __init__(self, roster: tuple[PeerId, ...]) -> None:
        self.roster = roster

    def reached(self, voters) -> bool:
        return 2 * len(set(self.roster).intersection(voters)) >= len(self.roster)


class HalfIsEnough(Rules):
    @property
    def quorum(self):
        return Half(self.roster)


def everybody_contributes(soup: Soup) -> None:
    for peer in soup.nodes:
        soup.contribute(peer)


def commit_known_to_the_leader_only(**faults: object) -> Soup:
    """All have voted and the leader has decided; it vanishes before anybody hears, and all others restart."""
    soup = Soup(soup_genesis(3), **faults)
    soup.passes = lambda _sender, _receiver, body: not isinstance(body, Commit)
    everybody_contributes(soup)
    assert soup.run(30, until=lambda: bool(soup.decided))
    leader = next(peer for peer, node in soup.nodes.items() if node.disk.commits)
    soup.run(1)
    soup.crash(leader)
    others = [peer for peer in soup.nodes if peer != leader]
    for peer in others:
        soup.crash(peer)
    soup.passes = lambda _sender, _receiver, _body: True
    for peer in others:
        soup.start(peer)
        soup.contribute(peer, tokens=77)
    return soup


def test_a_commit_that_nobody_heard_of_is_decided_again_by_those_who_voted():
    soup = commit_known_to_the_leader_only()
    assert soup.run(60, until=lambda: sum(len(node.disk.commits) for node in soup.nodes.values()) == 3)
    assert not soup.rejected


def test_members_that_forget_their_votes_are_found_out():
    soup = commit_known_to_the_leader_only(amnesia=True)
    with pytest.raises(Violation, match="two records"):
        soup.run(60)


def two_halves(**faults: object) -> tuple[Soup, list[list[PeerId]]]:
    soup = Soup(soup_genesis(4), **faults)
    order = next(iter(soup.nodes.values())).state.rules.order
    halves = [order[:2], order[2:]]
    soup.passes = lambda sender, receiver, _body: (sender in halves[0]) == (receiver in halves[0])
    everybody_contributes(soup)
    return soup, halves


def test_of_two_halves_exactly_one_goes_on():
    soup, halves = two_halves()
    soup.run(60)
    assert [[len(soup.nodes[peer].disk.commits) for peer in half] for half in halves] == [[1, 1], [0, 0]]
    assert all("no quorum: 2 of 4 members" in soup.nodes[peer].given_up[0] for peer in halves[1])


def test_a_quorum_of_half_the_roster_is_found_out():
    soup, _ = two_halves(rules_type=HalfIsEnough)
    with pytest.raises(Violation, match="two records"):
        soup.run(60)


def test_of_a_pair_the_tie_breaker_goes_on_alone_and_the_other_waits():
    soup = Soup(soup_genesis(2))
    first, second = next(iter(soup.nodes.values())).state.rules.order
    soup.passes = lambda sender, receiver, _body: sender == receiver
    everybody_contributes(soup)
    soup.run(40)
    assert len(soup.nodes[first].disk.commits) == 1
    assert not soup.nodes[second].disk.commits


def test_who_has_voted_neither_gives_up_nor_forgets_until_it_learns_the_outcome():
    soup = Soup(soup_genesis(3))
    everybody_contributes(soup)
    node = soup.nodes[next(iter(soup.nodes.values())).state.rules.order[1]]
    soup.passes = lambda _sender, _receiver, body: not isinstance(body, Commit)
    assert soup.run(30, until=lambda: node.state.phase is Phase.IN_DOUBT)
    soup.passes = lambda sender, receiver, _body: sender == receiver
    soup.run(500)
    assert node.state.phase is Phase.IN_DOUBT
    assert not node.given_up
    soup.passes = lambda _sender, _receiver, _body: True
    assert soup.run(60, until=lambda: len(node.disk.commits) == 1)


def test_a_commit_is_learnt_from_anybody_who_has_it():
    soup = Soup(soup_genesis(3))
    peers = list(soup.nodes)
    soup.passes = lambda _sender, receiver, body: receiver != peers[0] or isinstance(body, Heartbeat)
    everybody_contributes(soup)
    soup.run(60, until=lambda: all(soup.nodes[peer].disk.commits for peer in peers[1:]))
    soup.passes = lambda _sender, _receiver, _body: True
    assert soup.run(5, until=lambda: len(soup.nodes[peers[0]].disk.commits) == 1)
