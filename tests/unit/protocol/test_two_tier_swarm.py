"""Two-tier rounds among real drivers: three delegates and nine followers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from atoll.protocol.exchange import owner as owners
from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.messages import Commit
from atoll.protocol.outcomes import RoundEvent

from .groups_swarm import TIMING, TwoTierSwarm, two_tier_genesis

PEOPLE = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 13)]
DELEGATES, FOLLOWERS = PEOPLE[:3], PEOPLE[3:]


@pytest.fixture
async def swarm(tmp_path: Path, request: pytest.FixtureRequest):
    """Nine followers in three groups of at most four, or as the parameter says; the n-th peer gives 20 + n."""
    genesis = two_tier_genesis(DELEGATES, FOLLOWERS, **{"group_size": 4, **getattr(request, "param", {})})
    swarm = TwoTierSwarm(tmp_path, genesis)
    for number, person in enumerate(PEOPLE, 1):
        await swarm.begin(person, 20.0 + number)  # near enough to each other that no norm is cut
    yield swarm
    await swarm.close()


def tokens_of(commit: Commit) -> int:
    return sum(member.tokens for member in commit.record.plan.members)


def check_accounts(swarm: TwoTierSwarm, since: int = 1) -> None:
    """What each commit says to weigh is what the peers believe to have counted: nothing twice, nothing for nobody."""
    for commit in swarm.chain[since - 1 :]:
        number = commit.record.plan.round
        assert tokens_of(commit) == sum(work.counted.get(number, 0) for work in swarm.work.values()), number


async def test_all_twelve_count_all_states_are_equal_and_the_mean_is_the_flat_weighted_mean(swarm):
    for number, person in enumerate(PEOPLE, 1):
        swarm.work[person.peer_id].tokens = 100 + 10 * number
    whole = sum(work.tokens for work in swarm.work.values())
    await swarm.until(lambda: sum(tokens_of(commit) == whole for commit in swarm.chain) == 2)
    await swarm.until_quiet()
    check_accounts(swarm)
    assert swarm.states_are_equal()
    places = [(place.round, place.member, place.seat) for work in swarm.work.values() for place in work.places.values()]
    assert len(places) == len(set(places))
    number = next(n for n in range(len(swarm.chain), 1, -1) if all(n in work.counted for work in swarm.work.values()))
    weights = np.array([swarm.work[person.peer_id].counted[number] for person in PEOPLE], float)
    np.testing.assert_allclose(swarm.means[number], weights @ np.arange(21, 33) / weights.sum(), rtol=1e-6)


async def test_a_killed_follower_costs_its_own_work_and_nothing_else(swarm):
    await swarm.until(lambda: tokens_of(swarm.chain[-1]) == 1200 if swarm.chain else False)
    await swarm.kill(FOLLOWERS[4])
    await swarm.until(lambda: tokens_of(swarm.chain[-1]) == 1100)
    await swarm.until_quiet()
    check_accounts(swarm, since=len(swarm.chain))
    assert swarm.states_are_equal()


@pytest.mark.parametrize("swarm", [{"group_size": 8}], indirect=True)
@pytest.mark.skipif(
    "ATOLL_TWO_TIER" not in os.environ, reason="stalls now and then, cause not found: set ATOLL_TWO_TIER=1"
)
async def test_followers_of_a_killed_delegate_withdraw_find_another_and_carry_what_missed(swarm):
    victims: list[PeerId] = []

    def kill(peer: PeerId, event: RoundEvent) -> None:
        """Between the two tiers: its group has reduced, and nobody else has heard of it."""
        if event.point == "group.reduced" and event.round == 4 and event.fields["num_peers"] > 1 and not victims:
            victims.append(peer)
            swarm.network.kill(peer)

    note = swarm.on_event
    swarm.on_event = lambda peer, event: (note(peer, event), kill(peer, event))
    await swarm.until(lambda: bool(victims))
    victim = next(person for person in DELEGATES if person.peer_id == victims[0])
    orphans = [p for p, work in swarm.work.items() if work.places[4].member == victims[0] and p != victims[0]]
    await swarm.kill(victim)
    await swarm.until(lambda: all("group.left" in swarm.nodes[peer].points() for peer in orphans))
    await swarm.until(lambda: swarm.have_counted_after(4, orphans))
    for peer in orphans:
        work = swarm.work[peer]
        assert 4 not in work.counted
        first = min(number for number in work.counted if number > 4)
        assert work.counted[first] == (200 if first - 1 in work.given else 100)  # a carry is at most one round old
        assert {place.member for number, place in work.places.items() if number > 5}.isdisjoint(victims)
    await swarm.until_quiet()
    assert swarm.states_are_equal()
    check_accounts(swarm)


@pytest.mark.parametrize("swarm", [{"drop_after_s": 3.0}], indirect=True)
@pytest.mark.skipif(
    "ATOLL_TWO_TIER" not in os.environ, reason="stalls now and then, cause not found: set ATOLL_TWO_TIER=1"
)
async def test_a_follower_takes_the_place_of_a_delegate_that_is_gone_for_good(swarm):
    await swarm.until(lambda: tokens_of(swarm.chain[-1]) == 1200 if swarm.chain else False)
    await swarm.kill(DELEGATES[0])
    gone = DELEGATES[0].peer_id
    await swarm.until(lambda: gone not in (roster := swarm.roster) and len(roster) == 3)
    promoted = next(peer for peer in swarm.roster if peer not in {person.peer_id for person in DELEGATES})
    number = swarm.chain[-1].record.plan.round
    places = swarm.work[promoted].places
    await swarm.until(lambda: any(worked_on > number + 1 for worked_on in places))  # it may pass over a round at first
    assert {places[worked_on].member for worked_on in places if worked_on > number + 1} == {promoted}
    await swarm.until(lambda: tokens_of(swarm.chain[-1]) == 1100)  # and it has a group of its own
    assert TIMING.drop_after_s > 3.0


@pytest.mark.parametrize("swarm", [{"audited_share": 1024.0}], indirect=True)
async def test_a_follower_that_lies_about_a_mean_is_found_by_its_delegate_and_left_out(swarm, monkeypatch):
    liar, honest = FOLLOWERS[2].peer_id, owners.SpanOwner._reduce

    def reduce(self, generation, chunk, members, datas, shares):
        lie = [bytes(len(data)) for data in datas] if self._host.me == liar and swarm.has_begun else datas
        return honest(self, generation, chunk, members, lie, shares)

    monkeypatch.setattr(owners.SpanOwner, "_reduce", reduce)
    swarm.has_begun = False
    await swarm.until(lambda: tokens_of(swarm.chain[-1]) == 1200 if swarm.chain else False)
    swarm.has_begun = True
    await swarm.until(lambda: swarm.accused() == {liar})
    reached = len(swarm.chain)
    await swarm.until(lambda: len(swarm.chain) > reached)
    assert all(21 <= mean <= 32 for mean in swarm.means.values())  # no zeros of the liar's in any
    assert swarm.states_are_equal()


@pytest.mark.parametrize("swarm", [{"group_size": 8}], indirect=True)
async def test_a_delegate_that_alters_its_groups_mean_is_left_by_the_followers_who_have_reduced_it(swarm):
    await swarm.until(lambda: tokens_of(swarm.chain[-1]) == 1200 if swarm.chain else False)
    liar = max((person.peer_id for person in DELEGATES), key=lambda peer: swarm.nodes[peer].driver.group.num_peers)
    parts = swarm.nodes[liar].driver._topology._parts
    honest = parts.store.mean

    async def see_nothing(*_: object) -> tuple[set, set]:
        return set(), set()

    parts.store.mean = lambda record: memoryview((-np.frombuffer(honest(record), np.float32)).tobytes())
    parts.reduction.inspect = see_nothing
    betrayed = lambda: [p for p, node in swarm.nodes.items() if "group.betrayed" in node.points()]  # noqa: E731
    await swarm.until(lambda: betrayed() and swarm.nodes[liar].driver.group.num_peers == 1)
    await swarm.until(lambda: swarm.have_counted_after(len(swarm.chain) - 1, betrayed()))
    groups = [swarm.nodes[peer].driver.group for peer in betrayed()]
    assert liar not in {group.delegate for group in groups if group is not None}
